"""New arrays like those of the caller: torch tensors for torch tensors, numpy arrays for all else."""

from __future__ import annotations

import sys
from typing import Any, Sequence


def dtype_name(dtype: Any) -> str:
    """The name of an element type: of torch, of numpy, or a name itself."""
    if dtype is None:
        return "float32"
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    return name[6:] if name.startswith("torch.") else name


def is_torch(array: Any) -> bool:
    """Whether it is a torch tensor."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


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
    pitch = -(-columns // 256) * 256
    return empty(like, (rows, pitch), dtype)[:, :columns]
