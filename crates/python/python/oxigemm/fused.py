"""Products whose sums are finished before they are stored: bias, activation, gate, quantization. Of torch and of numpy."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _call
from . import _oxigemm as _C

__all__ = ["fp8_gemm_nt_fused"]


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
