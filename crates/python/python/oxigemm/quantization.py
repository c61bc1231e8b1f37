"""Quantization to FP8, MXFP4 and NVFP4, alone and fused with the operation before it. For torch and for numpy.

DeepGEMM's casts are in ``oxigemm.deep_gemm.utils``. These functions have every scale granularity, both FP8 types, and
preallocated outputs.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from . import _call
from . import _oxigemm as _C
from ._arrays import (
    FLOATS,
    FP8,
    dtype_name,
    empty,
    expect_choice,
    expect_dtype,
    expect_elements,
    expect_matrix,
    expect_shape,
)
from .errors import ArgumentError

__all__ = [
    "dequantize",
    "dequantize_nvfp4",
    "gather_quantize",
    "quantize",
    "quantize_by_scale",
    "quantize_nvfp4",
    "quantize_with_transpose",
    "rms_norm_quantize",
    "swiglu_quantize",
]

#: Rows and columns that share a scale; 0 for all of them.
_BLOCKS = {
    "1x128": (1, 128),
    "1x32": (1, 32),
    "128x128": (128, 128),
    "128x1": (128, 1),
    "row": (1, 0),
    "tensor": (0, 0),
}


def _ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def _scales_shape(granularity: str, rows: int, columns: int) -> Tuple[int, int]:
    down, across = _BLOCKS[expect_choice("granularity", granularity, tuple(_BLOCKS))]
    return _ceil_div(rows, down or max(rows, 1)), _ceil_div(columns, across or max(columns, 1))


def _per_code(dtype: Any) -> int:
    """Values in an element of codes: a byte holds two of FP4."""
    return 2 if dtype_name(dtype) in ("uint8", "int8") else 1


def _outputs(x: Any, rows: int, columns: int, codes: Any, scales: Any) -> Tuple[Any, Any]:
    """Outputs with 1x128 scales and e4m3 codes, new where they are not given."""
    codes = empty(x, (rows, columns), "float8_e4m3fn") if codes is None else codes
    scales = empty(x, (rows, _ceil_div(columns, 128)), "float32") if scales is None else scales
    return codes, scales


def quantize(
    x: Any,
    granularity: str = "1x128",
    power_of_two: bool = False,
    dtype: Any = "float8_e4m3fn",
    codes: Optional[Any] = None,
    scales: Optional[Any] = None,
) -> Tuple[Any, Any]:
    """Codes and scales such that ``x ≈ codes * scales``.

    ``x`` is [M, K] of bfloat16, float16 or float32. ``granularity`` is the block that shares a scale: ``1x128``
    (activations), ``1x32``, ``128x128`` (weights), ``128x1``, ``row`` (per token) or ``tensor``. A scale is
    ``max(amax, 1e-4) / largest``; ``power_of_two`` rounds it up to a power of two. ``scales`` that are given may have
    any strides, or be packed (int32), as for the library's ``quantize``.

    ``dtype`` is ``float8_e4m3fn`` or ``float8_e5m2``; or, with ``1x32`` and an even K, ``uint8``: codes [M, K/2] of FP4
    (e2m1), two in a byte, the first in the low half. It is a name, or a type of torch or numpy. It is not looked at
    where ``codes`` are given.

    >>> codes, scales = quantize(x, "128x128", dtype=torch.float8_e5m2)
    """
    rows, columns = expect_matrix("x", x)
    shape = _scales_shape(granularity, rows, columns)
    if codes is None:
        name = expect_dtype("dtype", dtype, (*FP8, "uint8", "int8") if granularity == "1x32" else FP8)
        if columns % _per_code(name) != 0:
            message = f"`x` has the wrong shape: expected two columns for each byte of codes, found {tuple(x.shape)}"
            raise ArgumentError(message, "x")
        codes = empty(x, (rows, columns // _per_code(name)), name)
    scales = empty(x, shape, "float32") if scales is None else scales
    if _call.is_compiling():
        _call.ops().quantize(x, codes, scales, granularity, power_of_two)
    else:
        _C.quantize(x, codes, scales, granularity, power_of_two)
    return codes, scales


def quantize_by_scale(x: Any, scale: Any, dtype: Any = "float8_e4m3fn", codes: Optional[Any] = None) -> Any:
    """Codes of ``x`` [M, K] with a given per-tensor scale, e.g. from calibration: ``x / scale``, rounded and saturated.

    ``scale`` is [1, 1] of float32, as from ``quantize`` with ``tensor``, and is read on the device.
    """
    rows, columns = expect_matrix("x", x)
    codes = empty(x, (rows, columns), expect_dtype("dtype", dtype, FP8)) if codes is None else codes
    if (rows == 0 or columns == 0) and expect_matrix("scale", scale) == (1, 1):
        # The library counts scales by elements, of which there are none.
        scale = scale[: min(rows, 1), : min(columns, 1)]
    if _call.is_compiling():
        _call.ops().quantize_by_scale(x, scale, codes)
    else:
        _C.quantize_by_scale(x, scale, codes)
    return codes


def dequantize(
    codes: Any, scales: Any, granularity: str = "1x128", dtype: Any = "bfloat16", x: Optional[Any] = None
) -> Any:
    """``codes * scales``, rounded once to ``dtype``: bfloat16, float16 or float32. A byte of uint8 is two FP4 codes."""
    rows, columns = expect_matrix("codes", codes)
    if x is None:
        x = empty(codes, (rows, columns * _per_code(codes.dtype)), expect_dtype("dtype", dtype, FLOATS))
    if _call.is_compiling():
        _call.ops().dequantize(codes, scales, x, granularity)
    else:
        _C.dequantize(codes, scales, x, granularity)
    return x


def quantize_with_transpose(
    x: Any, granularity: str = "1x128", power_of_two: bool = False, dtype: Any = "float8_e4m3fn"
) -> Tuple[Any, Any, Any, Any]:
    """``quantize`` with dual output: codes and scales of ``x`` [M, K], and codes and scales of its transpose.

    ``x`` is read once. ``granularity`` is ``1x128``, with scales [M, K/128] and [K, M/128]; or ``128x128``, where codes
    and scales of the transpose are the transposes of the codes and the scales.
    """
    rows, columns = expect_matrix("x", x)
    expect_choice("granularity", granularity, ("1x128", "128x128"))
    dtype = expect_dtype("dtype", dtype, FP8)
    codes, scales = empty(x, (rows, columns), dtype), empty(x, _scales_shape(granularity, rows, columns), "float32")
    transposed = empty(x, (columns, rows), dtype)
    own = empty(x, _scales_shape(granularity, columns, rows), "float32") if granularity == "1x128" else None
    if _call.is_compiling():
        _call.ops().quantize_with_transpose(x, codes, scales, transposed, own, granularity, power_of_two)
    else:
        _C.quantize_with_transpose(x, codes, scales, (transposed, own), granularity, power_of_two)
    return codes, scales, transposed, scales.swapaxes(0, 1) if own is None else own


def quantize_nvfp4(
    x: Any, tensor_scale: Optional[Any] = None, codes: Optional[Any] = None, scales: Optional[Any] = None
) -> Tuple[Any, Any, Any]:
    """Codes and scales such that ``x ≈ codes * scales * tensor_scale``: ``(codes, scales, tensor_scale)``.

    ============ ============== =============================== ============================================
    argument     shape          type                            what
    ============ ============== =============================== ============================================
    x            [M, K], K even bfloat16, float16 or float32    rows of any pitch
    codes        [M, K/2]       uint8                           two e2m1 each, first in the low half
    scales       [M, K/16]      e4m3                            any strides; or packed (int32)
    tensor_scale [1]            float32                         ``max(amax, 1e-4) / 2688`` unless it is given
    ============ ============== =============================== ============================================
    """
    rows, columns = expect_matrix("x", x)
    codes = empty(x, (rows, columns // 2), "uint8") if codes is None else codes
    scales = empty(x, (rows, _ceil_div(columns, 16)), "float8_e4m3fn") if scales is None else scales
    computed = tensor_scale is None
    tensor_scale = empty(x, (1,), "float32") if computed else tensor_scale
    if _call.is_compiling():
        if computed:
            _call.ops().quantize_nvfp4(x, codes, scales, tensor_scale)
        else:
            _call.ops().quantize_nvfp4_by(x, codes, scales, tensor_scale)
    else:
        _C.quantize_nvfp4(x, codes, scales, tensor_scale, computed)
    return codes, scales, tensor_scale


def dequantize_nvfp4(
    codes: Any, scales: Any, tensor_scale: Any, dtype: Any = "bfloat16", x: Optional[Any] = None
) -> Any:
    """``codes * scales * tensor_scale`` of ``quantize_nvfp4``, [M, K] of ``dtype``: bfloat16, float16 or float32."""
    rows, columns = expect_matrix("codes", codes)
    x = empty(codes, (rows, 2 * columns), expect_dtype("dtype", dtype, FLOATS)) if x is None else x
    if _call.is_compiling():
        _call.ops().dequantize_nvfp4(codes, scales, tensor_scale, x)
    else:
        _C.dequantize_nvfp4(codes, scales, tensor_scale, x)
    return x


def swiglu_quantize(
    x: Any, power_of_two: bool = False, codes: Optional[Any] = None, scales: Optional[Any] = None
) -> Tuple[Any, Any]:
    """SwiGLU quantized with 1x128 scales, in one kernel: ``silu(gate) * up`` of ``x`` [M, 2K], gates first in a row."""
    rows, columns = expect_matrix("x", x)
    codes, scales = _outputs(x, rows, columns // 2, codes, scales)
    if _call.is_compiling():
        _call.ops().swiglu_quantize(x, codes, scales, power_of_two)
    else:
        _C.swiglu_quantize(x, codes, scales, power_of_two)
    return codes, scales


def gather_quantize(
    x: Any,
    rows: Any,
    power_of_two: bool = False,
    codes: Optional[Any] = None,
    scales: Optional[Any] = None,
    granularity: str = "1x128",
) -> Tuple[Any, Any]:
    """Rows ``rows[i]`` of ``x`` quantized with 1x128 scales, in one kernel: tokens gathered to rows of their experts.

    ``rows`` is int32 [M], read on the device. Where it is -1, or no row of ``x``, codes and scales keep their values.
    ``granularity`` may also be ``1x32``.
    """
    _, columns = expect_matrix("x", x)
    expect_elements("rows", rows, ("int32",))
    (count,) = expect_shape("rows", rows, 1)
    expect_choice("granularity", granularity, ("1x128", "1x32"))
    scales = empty(x, _scales_shape(granularity, count, columns), "float32") if scales is None else scales
    codes, scales = _outputs(x, count, columns, codes, scales)
    if _call.is_compiling():
        _call.ops().gather_quantize(x, rows, codes, scales, granularity, power_of_two)
    else:
        _C.gather_quantize(x, rows, codes, scales, granularity, power_of_two)
    return codes, scales


def rms_norm_quantize(
    x: Any,
    weight: Any,
    epsilon: float,
    power_of_two: bool = False,
    codes: Optional[Any] = None,
    scales: Optional[Any] = None,
) -> Tuple[Any, Any]:
    """RMSNorm of each row quantized with 1x128 scales, in one kernel: ``x / sqrt(mean(x * x) + epsilon) * weight``."""
    rows, columns = expect_matrix("x", x)
    codes, scales = _outputs(x, rows, columns, codes, scales)
    if _call.is_compiling():
        _call.ops().rms_norm_quantize(x, weight, epsilon, codes, scales, power_of_two)
    else:
        _C.rms_norm_quantize(x, weight, epsilon, codes, scales, power_of_two)
    return codes, scales
