"""Casts to FP8 and FP4, and arithmetic of shapes and scales. For torch and for numpy."""

from __future__ import annotations

import sys
from typing import Any, Optional, Sequence, Set, Tuple

from ... import _call
from ... import _oxigemm as _C
from ..._arrays import (
    FLOATS,
    FP8,
    dtype_name,
    empty,
    expect_bool,
    expect_elements,
    expect_int,
    expect_matrix,
    expect_shape,
    is_torch,
)
from ...errors import ArgumentError, ArgumentTypeError

__all__ = [
    "align",
    "cast_back_from_fp4",
    "cast_back_from_fp8",
    "cast_back_from_nvfp4",
    "ceil_div",
    "ceil_to_ue8m0",
    "pack_ue8m0_to_int",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_custom_dims_cast_to_fp8",
    "per_token_cast_to_fp4",
    "per_token_cast_to_fp8",
    "per_token_cast_to_nvfp4",
    "transpose_packed_fp4",
    "unpack_e4m3_sf_from_int",
    "unpack_ue8m0_from_int",
]

#: The largest finite e4m3.
_LARGEST = 448.0
#: The values of e2m1 without their sign, by their codes, and what lies between two neighbours.
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
#: The most columns that share a scale.
_LARGEST_BLOCK = 1 << 16
#: The least amax of a block.
_SMALLEST = 1e-4


def ceil_div(x: int, y: int) -> int:
    """``x / y``, rounded up.

    >>> ceil_div(7, 4)
    2
    """
    return -(-expect_int("x", x) // _divisor(y))


def align(x: int, y: int) -> int:
    """The first multiple of ``y`` that is not below ``x``.

    >>> align(7, 4)
    8
    """
    return ceil_div(x, y) * y


def _divisor(y: Any) -> int:
    return expect_int("y", y, 1)


def _bits(x: Any, name: str) -> Any:
    """The same bytes as elements of another type."""
    if is_torch(x):
        return x.view(getattr(sys.modules["torch"], name))
    return x.view(name)


def _cast(x: Any, name: str) -> Any:
    """The same values as elements of another type."""
    if is_torch(x):
        return x.to(getattr(sys.modules["torch"], name))
    import numpy

    # A matrix of numpy has another product.
    x = numpy.asarray(x)
    if name.startswith("float8"):
        import ml_dtypes

        return x.astype(getattr(ml_dtypes, name))
    return x.astype(name)


def _row_major(x: Any) -> Any:
    """The same values, row-major without gaps."""
    if is_torch(x):
        return x.contiguous()
    # Unlike numpy.ascontiguousarray, this keeps the rank of a scalar.
    return x if x.flags.c_contiguous else x.copy()


def ceil_to_ue8m0(x: Any) -> Any:
    """Positive float32 numbers rounded up to powers of two."""
    expect_elements("x", x, ("float32",))
    bits = _bits(x, "int32")
    exponent = (bits >> 23) + _cast((bits & 0x7FFFFF) != 0, "int32")
    return _bits(exponent.clip(1, 254) << 23, "float32")


def pack_ue8m0_to_int(x: Any) -> Any:
    """Powers of two, float32 [..., K] with K a multiple of 4, as int32 [..., K/4]: four exponents in each.

    Other numbers lose their mantissa. The call does not synchronize, so it can be captured into a CUDA graph.
    """
    expect_elements("x", x, ("float32",))
    shape = expect_shape("x", x)
    if not shape or shape[-1] % 4 != 0:
        raise ArgumentError(f"`x` has the wrong shape: expected a multiple of 4 columns, found {tuple(shape)}", "x")
    exponents = _cast(_bits(x, "int32") >> 23, "uint8")
    # Strides of the caller are kept by a cast, and four bytes have to follow each other.
    return _bits(_row_major(exponents), "int32")


def unpack_ue8m0_from_int(packed: Any) -> Any:
    """The powers of two of ``pack_ue8m0_to_int``: float32 [..., 4 * K]."""
    expect_elements("packed", packed, ("int32",))
    if not expect_shape("packed", packed):
        raise ArgumentError("`packed` has the wrong rank: expected 1 dimension or more, found ()", "packed")
    packed = _row_major(packed)
    return _bits(_cast(_bits(packed, "uint8"), "int32") << 23, "float32")


def unpack_e4m3_sf_from_int(packed_sf: Any) -> Any:
    """Packed e4m3 scales, int32 [..., K] with four in each, as float32 [..., 4 * K]."""
    expect_elements("packed_sf", packed_sf, ("int32",))
    if not expect_shape("packed_sf", packed_sf):
        raise ArgumentError("`packed_sf` has the wrong rank: expected 1 dimension or more, found ()", "packed_sf")
    return _cast(_e4m3(_bits(_row_major(packed_sf), "uint8")), "float32")


def _e4m3(x: Any) -> Any:
    """Bytes as e4m3."""
    if is_torch(x):
        return x.view(sys.modules["torch"].float8_e4m3fn)
    import ml_dtypes

    return x.view(ml_dtypes.float8_e4m3fn)


def _packed_ue8m0(sf: Any) -> Any:
    """``pack_ue8m0_to_int`` of any number of columns: the last int32 is filled up with scales of 1."""
    rows, columns = sf.shape
    if columns % 4 == 0:
        return pack_ue8m0_to_int(sf)
    padded = empty(sf, (rows, align(columns, 4)), "float32")
    padded[:, :columns], padded[:, columns:] = sf, 1.0
    return pack_ue8m0_to_int(padded)


def _quantize(x: Any, granularity: str, scales: Sequence[int], use_ue8m0: bool) -> Tuple[Any, Any]:
    use_ue8m0 = expect_bool("use_ue8m0", use_ue8m0)
    codes, sf = empty(x, x.shape, "float8_e4m3fn"), empty(x, scales, "float32")
    if _call.is_compiling():
        _call.ops().quantize(x, codes, sf, granularity, use_ue8m0)
    else:
        _C.quantize(x, codes, sf, granularity, use_ue8m0)
    return codes, sf


def _expect_gran_k(gran_k: int, allowed: Sequence[int]) -> None:
    if expect_int("gran_k", gran_k) not in allowed:
        expected = " or ".join(map(str, allowed))
        raise ArgumentError(f"`gran_k` has no kernels: expected {expected}, found {gran_k}", "gran_k")


def per_token_cast_to_fp8(
    x: Any, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> Tuple[Any, Any]:
    """A matrix [M, K] of bfloat16, float16 or float32 as e4m3 [M, K] and 1x128 scales, float32 [M, K/128]: activations.

    A scale is ``max(amax, 1e-4) / 448``; ``use_ue8m0`` rounds it up to a power of two, ``use_packed_ue8m0`` packs four
    of a row into an int32. ``gran_k``, the columns that share a scale, is 128 or 32.
    """
    m, k = expect_matrix("x", x)
    use_ue8m0, use_packed_ue8m0 = expect_bool("use_ue8m0", use_ue8m0), expect_bool("use_packed_ue8m0", use_packed_ue8m0)
    _expect_gran_k(gran_k, (128, 32))
    if use_packed_ue8m0 and not use_ue8m0:
        message = "`use_packed_ue8m0` needs powers of two: expected `use_ue8m0`, found False"
        raise ArgumentError(message, "use_packed_ue8m0")
    codes, sf = _quantize(x, f"1x{gran_k}", (m, ceil_div(k, gran_k)), use_ue8m0)
    return codes, _packed_ue8m0(sf) if use_packed_ue8m0 else sf


def per_channel_cast_to_fp8(x: Any, use_ue8m0: bool, gran_k: int = 128) -> Tuple[Any, Any]:
    """A matrix [M, N] as e4m3 [M, N] and 128x1 scales, float32 [M/128, N]."""
    m, n = expect_matrix("x", x)
    _expect_gran_k(gran_k, (128,))
    if m % gran_k != 0:
        message = f"`x` has the wrong shape: expected a multiple of {gran_k} rows, found {tuple(x.shape)}"
        raise ArgumentError(message, "x")
    return _quantize(x, "128x1", (m // gran_k, n), use_ue8m0)


def per_block_cast_to_fp8(x: Any, use_ue8m0: bool, gran_k: int = 128) -> Tuple[Any, Any]:
    """A matrix [N, K] as e4m3 [N, K] and 128x128 scales, float32 [N/128, K/128]: weights."""
    n, k = expect_matrix("x", x)
    _expect_gran_k(gran_k, (128,))
    return _quantize(x, "128x128", (ceil_div(n, gran_k), ceil_div(k, gran_k)), use_ue8m0)


def per_custom_dims_cast_to_fp8(x: Any, dims: Sequence[int], use_ue8m0: bool) -> Tuple[Any, Any]:
    """An array of any rank as e4m3, and float32 scales along ``dims``: all other dimensions share one."""
    shape = expect_shape("x", x)
    expect_elements("x", x, FLOATS)
    use_ue8m0 = expect_bool("use_ue8m0", use_ue8m0)
    kept = _dims(dims, len(shape))
    others = tuple(dim for dim in range(len(shape)) if dim not in kept)
    if any(shape[dim] == 0 for dim in others):
        message = f"`x` has the wrong shape: expected elements for each scale, found {tuple(shape)}"
        raise ArgumentError(message, "x")
    if kept == {0} and len(shape) == 2:
        codes, sf = _quantize(x, "row", (shape[0], 1), use_ue8m0)
        return codes, sf.squeeze()
    values = _cast(x, "float32")
    largest = abs(values)
    # For torch, no dimensions are all of them.
    if others:
        largest = largest.amax(dim=others, keepdim=True) if is_torch(x) else largest.max(others, keepdims=True)
    sf = largest.clip(_SMALLEST) / _LARGEST
    sf = ceil_to_ue8m0(sf) if use_ue8m0 else sf
    return _cast(values * (1.0 / sf), "float8_e4m3fn"), sf.squeeze()


def _dims(dims: Any, rank: int) -> Set[int]:
    """Dimensions, counted from the end where they are negative, as a set."""
    if not isinstance(dims, (tuple, list)):
        found = type(dims).__name__
        raise ArgumentTypeError(f"`dims` has the wrong type: expected a tuple of integers, found {found}", "dims")
    if rank == 0 and dims:
        raise ArgumentError(f"`dims` is out of range: expected none, as `x` has no dimensions, found {dims}", "dims")
    return {expect_int("dims", dim, -rank, rank - 1) % rank for dim in dims}


def _fp4_codes(values: Any) -> Any:
    """The nearest e2m1 of every value, as uint8; the smaller one of two that are as near."""
    if is_torch(values):
        torch: Any = sys.modules["torch"]
        middles = torch.tensor(_FP4_MIDDLES, device=values.device, dtype=values.dtype)
        codes = torch.bucketize(abs(values), middles)
    else:
        import numpy

        codes = numpy.searchsorted(numpy.array(_FP4_MIDDLES, values.dtype), abs(values))
    sign = _cast((values < 0) & (codes != 0), "uint8")
    return _cast(codes, "uint8") | (sign << 3)


def _packed_fp4(codes: Any) -> Any:
    """Pairs of codes along the last dimension in a byte each, the first in its low half, as int8."""
    return _bits(codes[..., ::2] | (codes[..., 1::2] << 4), "int8")


def _unpacked_fp4(packed: Any) -> Any:
    """The codes of ``_packed_fp4``."""
    pairs = _bits(packed, "uint8")
    codes = empty(packed, (*packed.shape[:-1], 2 * packed.shape[-1]), "uint8")
    codes[..., ::2], codes[..., 1::2] = pairs & 15, pairs >> 4
    return codes


def per_token_cast_to_fp4(
    x: Any, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> Tuple[Any, Any]:
    """A matrix [M, K] as e2m1, int8 [M, K/2] with two of a row in each, and float32 scales [M, K/gran_k].

    A scale is ``max(amax, 1e-4) / 6``; ``use_ue8m0`` rounds it up to a power of two, ``use_packed_ue8m0`` packs four of
    a row into an int32. No GEMM for Hopper takes such operands.
    """
    m, k = expect_matrix("x", x)
    use_ue8m0, use_packed_ue8m0 = expect_bool("use_ue8m0", use_ue8m0), expect_bool("use_packed_ue8m0", use_packed_ue8m0)
    if k % 2 != 0:
        raise ArgumentError(f"`x` has the wrong shape: expected an even number of columns, found {(m, k)}", "x")
    expect_elements("x", x, FLOATS)
    expect_int("gran_k", gran_k, 1, _LARGEST_BLOCK)
    if use_packed_ue8m0 and not use_ue8m0:
        message = "`use_packed_ue8m0` needs powers of two: expected `use_ue8m0`, found False"
        raise ArgumentError(message, "use_packed_ue8m0")
    values = empty(x, (m, align(k, gran_k)), "float32")
    values[:, :k], values[:, k:] = _cast(x, "float32"), 0
    blocks = values.reshape(m, ceil_div(k, gran_k), gran_k)
    largest = abs(blocks).amax(dim=2) if is_torch(x) else abs(blocks).max(2)
    sf = largest.clip(_SMALLEST) / 6.0
    sf = ceil_to_ue8m0(sf) if use_ue8m0 else sf
    codes = _fp4_codes((blocks * (1.0 / sf)[:, :, None]).reshape(m, align(k, gran_k))[:, :k])
    return _packed_fp4(codes), _packed_ue8m0(sf) if use_packed_ue8m0 else sf


def transpose_packed_fp4(packed: Any) -> Any:
    """A matrix of e2m1, int8 [M, K/2], transposed: int8 [K, M/2]."""
    rows, _ = expect_matrix("packed", packed)
    expect_elements("packed", packed, ("int8", "uint8"))
    if rows % 2 != 0:
        expected, found = "an even number of rows", tuple(packed.shape)
        raise ArgumentError(f"`packed` has the wrong shape: expected {expected}, found {found}", "packed")
    codes = _unpacked_fp4(packed).swapaxes(0, 1)
    return _packed_fp4(codes)


def _expected_scales(sf: Any, shape: Tuple[int, int], gran_k: Any, use_packed_ue8m0: Any) -> Any:
    """A scale for each element of a matrix: those of ``sf``, each for ``gran_k`` columns."""
    (m, k), is_packed = shape, expect_bool("use_packed_ue8m0", use_packed_ue8m0)
    expect_int("gran_k", gran_k, 1, _LARGEST_BLOCK)
    expect_matrix("sf", sf)
    expect_elements("sf", sf, ("int32",) if is_packed else ("float32",))
    count = ceil_div(k, gran_k)
    expected = (m, ceil_div(count, 4) if is_packed else count)
    if tuple(sf.shape) != expected:
        found = tuple(sf.shape)
        raise ArgumentError(f"`sf` has the wrong number of scales: expected {expected}, found {found}", "sf")
    scales = _cast(unpack_ue8m0_from_int(sf) if is_packed else sf, "float32")
    scales = scales.repeat_interleave(gran_k, 1) if is_torch(scales) else scales.repeat(gran_k, 1)
    return scales[:, :k]


def cast_back_from_fp4(packed: Any, sf: Any, gran_k: int = 128, use_packed_ue8m0: bool = False) -> Any:
    """The float32 [M, K] that ``per_token_cast_to_fp4`` has cast."""
    m, half = expect_matrix("packed", packed)
    expect_elements("packed", packed, ("int8", "uint8"))
    scales = _expected_scales(sf, (m, 2 * half), gran_k, use_packed_ue8m0)
    codes = _unpacked_fp4(packed)
    if is_torch(packed):
        torch: Any = sys.modules["torch"]
        values = torch.tensor(_FP4_VALUES, device=packed.device)[_cast(codes & 7, "int64")]
    else:
        import numpy

        values = numpy.array(_FP4_VALUES, numpy.float32)[codes & 7]
    return values * (1.0 - 2.0 * _cast(codes >> 3, "float32")) * scales


def cast_back_from_fp8(x_fp8: Any, sf: Any, gran_k: int = 128, use_packed_ue8m0: bool = False) -> Any:
    """The float32 [M, K] that ``per_token_cast_to_fp8`` has cast: codes times their scales."""
    m, k = expect_matrix("x_fp8", x_fp8)
    expect_elements("x_fp8", x_fp8, FP8)
    scales = _expected_scales(sf, (m, k), gran_k, use_packed_ue8m0)
    return _cast(x_fp8, "float32") * scales


def per_token_cast_to_nvfp4(
    x: Any, gran_k: int = 16, use_packed_e4m3: bool = False, global_scale: Optional[float] = None
) -> Tuple[Any, Any]:
    """A matrix [M, K] as e2m1, int8 [M, K/2] with two of a row in each, and scales of 16 columns, float32 [M, K/16].

    Scales have values of e4m3; ``use_packed_e4m3`` packs four of a row into an int32. ``global_scale`` is a factor of
    the whole matrix, 1 without it: ``x ≈ codes * scales * global_scale``. K is a multiple of 64.
    """
    m, k = expect_matrix("x", x)
    use_packed_e4m3 = expect_bool("use_packed_e4m3", use_packed_e4m3)
    _expect_gran_k(gran_k, (16,))
    if k % 64 != 0:
        raise ArgumentError(f"`x` has the wrong shape: expected a multiple of 64 columns, found {(m, k)}", "x")
    factor = 1.0 if global_scale is None else _number("global_scale", global_scale)
    if not 0.0 < factor < float("inf"):
        message = f"`global_scale` is out of range: expected a positive number, found {global_scale}"
        raise ArgumentError(message, "global_scale")
    codes, sf = empty(x, (m, k // 2), "uint8"), empty(x, (m, k // 16), "float8_e4m3fn")
    tensor_scale = empty(x, (1,), "float32")
    tensor_scale[:] = factor
    if _call.is_compiling():
        _call.ops().quantize_nvfp4_by(x, codes, sf, tensor_scale)
    else:
        _C.quantize_nvfp4(x, codes, sf, tensor_scale, False)
    return _bits(codes, "int8"), _bits(sf, "int32") if use_packed_e4m3 else _cast(sf, "float32")


def cast_back_from_nvfp4(packed: Any, sf: Any, global_scale: float = 1.0) -> Any:
    """The float32 [M, K] that ``per_token_cast_to_nvfp4`` has cast, with packed or float32 scales."""
    expect_elements("sf", sf, ("float32", "int32"))
    scales = _cast(sf if dtype_name(sf.dtype) == "float32" else unpack_e4m3_sf_from_int(sf), "float32")
    return cast_back_from_fp4(packed, scales * _number("global_scale", global_scale), gran_k=16)


def _number(argument: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        found = type(value).__name__
        raise ArgumentTypeError(f"`{argument}` has the wrong type: expected a number, found {found}", argument)
    return float(value)
