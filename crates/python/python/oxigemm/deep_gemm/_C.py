"""Names that engines look for in DeepGEMM's extension before they call the functions of ``mega``."""

from __future__ import annotations

from .mega import (
    fp8_fp4_mega_moe as fp8_fp4_mega_moe_sm90,
)
from .mega import (
    fp8_mega_moe,
    get_block_m_for_mega_moe,
    get_token_alignment_for_mega_moe,
    mega_moe_pre_dispatch,
    mega_moe_pre_dispatch_sm90,
)

__all__ = [
    "fp8_fp4_mega_moe_sm90",
    "fp8_mega_moe",
    "get_block_m_for_mega_moe",
    "get_token_alignment_for_mega_moe",
    "mega_moe_pre_dispatch",
    "mega_moe_pre_dispatch_sm90",
]
