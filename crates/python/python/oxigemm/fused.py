"""Products whose sums are finished before they are stored: bias, activation, gate, quantization. Of torch and of numpy."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _call
from . import _oxigemm as _C

__all__ = [
    "bf16_gemm_nt_fused",
    "fp16_gemm_nt_fused",
    "fp8_gemm_nt_fused",
    "m_grouped_bf16_gemm_nt_fused",
    "m_grouped_fp16_gemm_nt_fused",
    "m_grouped_fp8_gemm_nt_fused",
]


def fp8_gemm_nt_fused(
    a: Tuple[Any, Any],
    b: Tuple[Any, Any],
    d: Any,
    c: Optional[Any] = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Optional[Any] = None,
    activation: str = "none",
    gated: bool = False,
    head_splits: Optional[Tuple[int, int, int]] = None,
    d_scales: Optional[Any] = None,
    power_of_two: bool = False,
) -> None:
    """``D = act(alpha * A·Bᵀ + bias) + beta * C``, all in float32 and rounded once.

    With ``gated`` the first half of B's rows are gates and the other half ups: ``D = act(gate) * up + beta * C``, of which
    ``activation="silu"`` is SwiGLU.

    ======== ================================== ======================= ==========================================
    argument shape                              type                    layout
    ======== ================================== ======================= ==========================================
    a[0]     [M, K]                             e4m3                    rows of K, pitch multiples of 16 bytes
    a[1]     [M, K/128]                         float32                 any strides
    b[0]     [N, K]                             e4m3                    rows of K, pitch multiples of 16 bytes
    b[1]     [N/128, K/128]                     float32                 any strides
    bias     [N]                                bfloat16 or float32     contiguous
    c        as d                               as d                    rows of any pitch; may be d itself
    d        [M, N]; [M, N/2] with a gate       bfloat16, float32, e4m3 rows of any pitch
    d_scales [M, N/128]; [M, N/2/128]           float32                 any strides; with a d of e4m3, and only then
    ======== ================================== ======================= ==========================================

    ``activation`` is ``none``, ``relu``, ``gelu``, ``gelu_tanh`` or ``silu``. ``head_splits`` is ``(left, mid, right)``: of every
    ``left + mid + right`` columns of D the middle ones are skipped, and stay as they are. A ``d`` of e4m3 is quantized by 1x128, as
    ``quantization.quantize`` does it, with ``power_of_two`` by scales that are powers of two; then nothing is added and skipped.
    """
    if _call.is_compiling():
        _call.ops().fp8_gemm_nt_fused(
            *a, *b, d, c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two
        )
    else:
        _C.fp8_gemm_nt_fused(a, b, d, c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two)


def _half(dtype: str, a: Any, b: Any, d: Any, *finish: Any) -> None:
    if _call.is_compiling():
        _call.ops().half_gemm_nt_fused(dtype, a, b, d, *finish)
    else:
        _C.half_gemm_nt_fused(dtype, a, b, d, *finish)


def bf16_gemm_nt_fused(
    a: Any,
    b: Any,
    d: Any,
    c: Optional[Any] = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Optional[Any] = None,
    activation: str = "none",
    gated: bool = False,
    head_splits: Optional[Tuple[int, int, int]] = None,
    d_scales: Optional[Any] = None,
    power_of_two: bool = False,
) -> None:
    """``fp8_gemm_nt_fused`` for operands of bfloat16: A [M, K] and B [N, K], rows of K with pitches of multiples of 16 bytes.

    D is bfloat16, float32, or e4m3 with ``d_scales``; the bias is bfloat16 or float32. Gates and ups are of any number.
    """
    _half("bfloat16", a, b, d, c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two)


def fp16_gemm_nt_fused(
    a: Any,
    b: Any,
    d: Any,
    c: Optional[Any] = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Optional[Any] = None,
    activation: str = "none",
    gated: bool = False,
    head_splits: Optional[Tuple[int, int, int]] = None,
    d_scales: Optional[Any] = None,
    power_of_two: bool = False,
) -> None:
    """``bf16_gemm_nt_fused`` with float16 wherever that has bfloat16."""
    _half("float16", a, b, d, c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two)


def m_grouped_fp8_gemm_nt_fused(
    a: Tuple[Any, Any],
    b: Tuple[Any, Any],
    d: Any,
    grouped_layout: Optional[Any] = None,
    masked_m: Optional[Any] = None,
    expected_m: Optional[int] = None,
    use_psum_layout: bool = False,
    c: Optional[Any] = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Optional[Any] = None,
    activation: str = "none",
    gated: bool = False,
    head_splits: Optional[Tuple[int, int, int]] = None,
    d_scales: Optional[Any] = None,
    power_of_two: bool = False,
) -> None:
    """``fp8_gemm_nt_fused`` for rows that are grouped, each group with a B of its own: the first product of experts.

    ============== ====================================== =======================================================
    argument       one behind another                     masked
    ============== ====================================== =======================================================
    a[0], a[1]     [M, K], [M, K/128]                     [G, M, K], [G, M, K/128]
    b[0], b[1]     [G, N, K], [G, N/128, K/128]           the same
    bias           [G, N], or [N] for all groups          the same
    d, d_scales    [M, N], [M, N/128]; N/2 with a gate    [G, M, N], [G, M, N/128]; N/2 with a gate
    grouped_layout int32 [M]: the group of each row or -1 None
                   or, with ``use_psum_layout``, [G]:
                   the row behind the last of each group
    masked_m       None                                   int32 [G]: the rows of each group
    expected_m     with ``use_psum_layout``: rows that a  rows that a group should have
                   group should have
    ============== ====================================== =======================================================

    All else is as for ``fp8_gemm_nt_fused``. Where the groups are only the device reads, so a graph may be replayed with others.
    ``expected_m`` decides which kernel is taken and nothing else. Rows of no group stay as they are, in D and in its scales, and may
    hold anything when the next product of the same groups reads them.
    """
    groups = grouped_layout, masked_m, expected_m, use_psum_layout
    finish = c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two
    if _call.is_compiling():
        _call.ops().m_grouped_fp8_gemm_nt_fused(*a, *b, d, *groups, *finish)
    else:
        _C.m_grouped_fp8_gemm_nt_fused(a, b, d, *groups, *finish)


def _grouped_half(dtype: str, a: Any, b: Any, d: Any, *rest: Any) -> None:
    if _call.is_compiling():
        _call.ops().m_grouped_half_gemm_nt_fused(dtype, a, b, d, *rest)
    else:
        _C.m_grouped_half_gemm_nt_fused(dtype, a, b, d, *rest)


def m_grouped_bf16_gemm_nt_fused(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Optional[Any] = None,
    masked_m: Optional[Any] = None,
    expected_m: Optional[int] = None,
    use_psum_layout: bool = False,
    c: Optional[Any] = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Optional[Any] = None,
    activation: str = "none",
    gated: bool = False,
    head_splits: Optional[Tuple[int, int, int]] = None,
    d_scales: Optional[Any] = None,
    power_of_two: bool = False,
) -> None:
    """``bf16_gemm_nt_fused`` for rows that are grouped, each group with a B of its own.

    A is [M, K] or, masked, [G, M, K]; B is [G, N, K]. All else is as for ``m_grouped_fp8_gemm_nt_fused``.
    """
    groups = grouped_layout, masked_m, expected_m, use_psum_layout
    finish = c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two
    _grouped_half("bfloat16", a, b, d, *groups, *finish)


def m_grouped_fp16_gemm_nt_fused(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Optional[Any] = None,
    masked_m: Optional[Any] = None,
    expected_m: Optional[int] = None,
    use_psum_layout: bool = False,
    c: Optional[Any] = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias: Optional[Any] = None,
    activation: str = "none",
    gated: bool = False,
    head_splits: Optional[Tuple[int, int, int]] = None,
    d_scales: Optional[Any] = None,
    power_of_two: bool = False,
) -> None:
    """``m_grouped_bf16_gemm_nt_fused`` with float16 wherever that has bfloat16."""
    groups = grouped_layout, masked_m, expected_m, use_psum_layout
    finish = c, alpha, beta, bias, activation, gated, head_splits, d_scales, power_of_two
    _grouped_half("float16", a, b, d, *groups, *finish)
