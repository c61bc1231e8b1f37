"""New arrays like those of the caller, and checks of what the extension does not see: shapes, types and numbers."""

from __future__ import annotations

import sys
from typing import Any, Optional, Sequence, Tuple

from .errors import ArgumentError, ArgumentTypeError

#: Element types of outputs, in torch and in numpy with ml_dtypes.
FP8 = ("float8_e4m3fn", "float8_e5m2")
FLOATS = ("bfloat16", "float16", "float32")
#: The largest dimension that kernels count.
MOST = (1 << 31) - 1


def dtype_name(dtype: Any) -> str:
    """The name of an element type: of torch, of numpy, or a name itself."""
    if dtype is None:
        return "float32"
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return name[6:] if name.startswith("torch.") else name


def expect_dtype(argument: str, dtype: Any, allowed: Sequence[str]) -> str:
    """The name of an element type that is one of these."""
    name = "None" if dtype is None else dtype_name(dtype)
    if name not in allowed:
        message = f"`{argument}` is no element type for this: expected {_either(allowed)}, found {name}"
        raise ArgumentTypeError(message, argument)
    return name


def expect_elements(argument: str, array: Any, allowed: Sequence[str]) -> None:
    """Refuses an array with elements of another type."""
    expect_shape(argument, array)
    name = dtype_name(array.dtype)
    if name not in allowed:
        message = f"`{argument}` has the wrong element type: expected {_either(allowed)}, found {name}"
        raise ArgumentTypeError(message, argument)
    if not getattr(array.dtype, "isnative", True):
        message = f"`{argument}` has the wrong element type: expected native {name}, found big-endian {name}"
        raise ArgumentTypeError(message, argument)


def expect_shape(argument: str, array: Any, rank: Optional[int] = None) -> Tuple[int, ...]:
    """The shape of an array, of so many dimensions."""
    shape = getattr(array, "shape", None)
    # To look for what a tensor does not have takes as long as all other checks.
    is_tensor = is_torch(array)
    has_mask = not is_tensor and hasattr(array, "mask") and hasattr(array, "filled")
    if not is_tensor and (not isinstance(shape, tuple) or not hasattr(array, "dtype") or has_mask):
        expected = "an array without a mask" if has_mask else "a torch tensor or an array"
        found = type(array).__name__
        raise ArgumentTypeError(f"`{argument}` has the wrong type: expected {expected}, found {found}", argument)
    if rank is not None and len(shape) != rank:
        message = f"`{argument}` has the wrong rank: expected {rank} dimensions, found {tuple(shape)}"
        raise ArgumentError(message, argument)
    for dim in shape:
        if dim > MOST:
            message = f"`{argument}` is too large: expected dimensions up to {MOST}, found {tuple(shape)}"
            raise ArgumentError(message, argument)
    return shape


def expect_matrix(argument: str, array: Any) -> Tuple[int, int]:
    """Rows and columns of a matrix."""
    rows, columns = expect_shape(argument, array, 2)
    return rows, columns


def expect_int(argument: str, value: Any, least: Optional[int] = None, most: Optional[int] = None) -> int:
    """An integer in a range, of Python or of numpy. A bool is none."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"`{argument}` has the wrong type: expected an integer, found {_found(value)}", argument
        )
    if not isinstance(value, int):
        try:
            value = value.__index__()
        except TypeError:
            # An array of several, or of floats.
            message = f"`{argument}` has the wrong type: expected an integer, found {_found(value)}"
            raise ArgumentTypeError(message, argument) from None
    if (least is not None and value < least) or (most is not None and value > most):
        expected = f"{least} or more" if most is None else f"{least} to {most}"
        raise ArgumentError(f"`{argument}` is out of range: expected {expected}, found {_found(value)}", argument)
    return value


def expect_bool(argument: str, value: Any) -> bool:
    """A bool, of Python or of numpy."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        message = f"`{argument}` has the wrong type: expected True or False, found {_found(value)}"
        raise ArgumentTypeError(message, argument)
    return bool(value)


def expect_choice(argument: str, value: Any, allowed: Sequence[str]) -> str:
    """A string that is one of these."""
    if not isinstance(value, str):
        message = f"`{argument}` has the wrong type: expected {_either(allowed)}, found {_found(value)}"
        raise ArgumentTypeError(message, argument)
    if value not in allowed:
        raise ArgumentError(f"`{argument}` is unknown: expected {_either(allowed)}, found {value}", argument)
    return value


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _found(value: Any) -> str:
    """A value for a message: itself where it is short, and its type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 64 else "a larger number"
    kind = type(value).__name__
    text = repr(value) if isinstance(value, (bool, float, str, tuple, list)) else ""
    return f"{text} ({kind})" if 0 < len(text) <= 60 else kind


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor."""
    torch: Any = sys.modules.get("torch")
    # The first answers for nearly all tensors, in a fraction of the time.
    return torch is not None and (type(array) is torch.Tensor or isinstance(array, torch.Tensor))


def empty(like: Any, shape: Sequence[int], dtype: str) -> Any:
    """A new array on the device of another one, uninitialized."""
    if is_torch(like):
        torch: Any = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=like.device)
    return numpy_empty(shape, dtype)


def numpy_empty(shape: Sequence[int], dtype: str) -> Any:
    """A new numpy array, uninitialized."""
    import numpy

    if dtype.startswith(("float8", "bfloat16")):
        import ml_dtypes

        return numpy.empty(tuple(shape), getattr(ml_dtypes, dtype))
    return numpy.empty(tuple(shape), dtype)


def rows_of(like: Any, rows: int, columns: int, dtype: str) -> Any:
    """A new matrix with a pitch of a multiple of 256 elements."""
    if rows > MOST or columns > MOST:
        count, what = (rows, "rows") if rows > MOST else (columns, "columns")
        message = f"`logits` would be too large: expected up to {MOST} {what}, found {_found(count)}"
        raise ArgumentError(message, "logits")
    pitch = -(-columns // 256) * 256
    whole = empty(like, (rows, pitch), dtype)
    return whole if columns == pitch else whole[:, :columns]
