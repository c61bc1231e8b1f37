"""GEMMs of NVFP4 operands: e2m1 codes, e4m3 scales of 16, and a scale of the tensor. For torch and for numpy.

``quantization.quantize_nvfp4`` makes the operands. Hopper has no FP4: there it is refused by name.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _call
from . import _oxigemm as _C

__all__ = ["gemm_nt", "m_grouped_gemm_nt"]

Pair = Tuple[Any, Any]


def gemm_nt(a: Pair, b: Pair, d: Any, tensor_scales: Tuple[float, float], c: Optional[Any] = None) -> None:
    """D = C + s·A·Bᵀ, where s is the product of both ``tensor_scales``.

    ======== ========= =================== ===============================================================
    argument shape     type                layout
    ======== ========= =================== ===============================================================
    a[0]     [M, K/2]  uint8 or int8       two e2m1 each, the first in the low half; K-major, pitch
                                           multiples of 16 bytes
    a[1]     [M, K/16] e4m3, or packed     any strides; packed: int32 [M, K/64], four of a row in each
    b[0]     [N, K/2]  as a[0]             as a[0]
    b[1]     [N, K/16] as a[1]             as a[1]
    c, d     [M, N]    bfloat16 or float32 row-major, any pitch; ``c`` may be ``d`` itself
    ======== ========= =================== ===============================================================
    """
    scale_a, scale_b = tensor_scales
    if _call.is_compiling():
        return _call.ops().nvfp4_gemm(*a, *b, d, c, [scale_a, scale_b])
    return _C.nvfp4_gemm(a, b, d, c, (scale_a, scale_b), None)


def m_grouped_gemm_nt(
    a: Pair,
    b: Pair,
    d: Any,
    tensor_scales: Tuple[float, float],
    grouped_layout: Optional[Any] = None,
    masked_m: Optional[Any] = None,
    expected_m: Optional[int] = None,
    use_psum_layout: bool = False,
) -> None:
    """``gemm_nt`` for m-grouped rows, each group with a B [N, K/2] of [G, N, K/2]; nothing is added.

    A is [M, K/2], or masked [G, M, K/2], and D alike. ``grouped_layout``, ``masked_m``, ``expected_m`` and
    ``use_psum_layout`` are as for ``fused.m_grouped_fp8_gemm_nt_fused``. Each of ``tensor_scales`` is one for all
    groups. Rows of no group keep their values.
    """
    scale_a, scale_b = tensor_scales
    groups = (grouped_layout, masked_m, expected_m, use_psum_layout)
    if _call.is_compiling():
        return _call.ops().m_grouped_nvfp4_gemm(*a, *b, d, [scale_a, scale_b], *groups)
    return _C.nvfp4_gemm(a, b, d, None, (scale_a, scale_b), groups)
