"""Settings of the process, as DeepGEMM has them."""

from __future__ import annotations

import sys
from typing import Any, Optional, Tuple, Union

from .. import _oxigemm
from .._arrays import expect_int
from .._oxigemm import get_pdl, set_pdl
from ..errors import ArgumentError

__all__ = [
    "get_k_alignment_for_contiguous_layout",
    "get_m_alignment_for_contiguous_layout",
    "get_mk_alignment_for_contiguous_layout",
    "get_num_sms",
    "get_pdl",
    "get_tc_util",
    "get_theoretical_mk_alignment_for_contiguous_layout",
    "set_block_size_multiple_of",
    "set_ignore_compile_dims",
    "set_mk_alignment_for_contiguous_layout",
    "set_num_sms",
    "set_pdl",
    "set_tc_util",
]

_tc_util = 100


def _current_gpu() -> Optional[int]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.current_device()


def set_num_sms(new_num_sms: int) -> None:
    """Sets how many SMs kernels may use; 0 for all, those of torch's current GPU or of the simulated one."""
    most = _oxigemm.sm_count(_current_gpu())
    _oxigemm.set_num_sms(expect_int("new_num_sms", new_num_sms, 0, most))


def get_num_sms() -> int:
    """How many SMs kernels may use."""
    return _oxigemm.get_num_sms() or _oxigemm.sm_count(_current_gpu())


def set_tc_util(new_tc_util: int) -> None:
    """Stored without effect: no kernel for Hopper throttles its tensor cores."""
    global _tc_util
    _tc_util = expect_int("new_tc_util", new_tc_util, 0, 100) or 100


def get_tc_util() -> int:
    """The value of ``set_tc_util``, 100 by default."""
    return _tc_util


def set_ignore_compile_dims(new_value: bool) -> None:
    """Without effect: no dimension is ever compiled into a kernel."""


def set_block_size_multiple_of(new_value: Union[int, Tuple[int, int]]) -> None:
    """Without effect: tiles come from a closed set of kernels."""


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Sets the alignment of the first row of each group: 1, 16, 32, 64 or 128."""
    if expect_int("new_value", new_value) not in (1, 16, 32, 64, 128):
        expected = "1, 16, 32, 64 or 128"
        raise ArgumentError(f"`new_value` is no alignment: expected {expected}, found {new_value}", "new_value")
    _oxigemm.set_alignment(new_value)


def get_mk_alignment_for_contiguous_layout() -> int:
    """The alignment of the first row of each group, 128 by default."""
    return _oxigemm.get_alignment()


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: Optional[int] = None, num_groups: Optional[int] = None
) -> int:
    """The best alignment for groups of so many rows: 128 on Hopper."""
    return 128
