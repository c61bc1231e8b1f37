"""Comparison of tensors."""

from __future__ import annotations

from typing import Any

from ..._arrays import is_torch

__all__ = ["assert_bitwise_equal", "calc_diff", "count_bytes"]


def _doubles(x: Any) -> Any:
    return x.double() if is_torch(x) else x.astype("float64")


def calc_diff(x: Any, y: Any) -> float:
    """How different two tensors are: 0 if they are equal, ``1 - 2 * sum(x * y) / sum(x * x + y * y)``."""
    x, y = _doubles(x), _doubles(y)
    norm = (x * x + y * y).sum()
    if norm == 0:
        return 0.0
    return 1 - 2 * (x * y).sum() / norm


def assert_bitwise_equal(x: Any, y: Any) -> None:
    """Fails unless two tensors have the same shape, type and bytes."""
    assert tuple(x.shape) == tuple(y.shape) and x.dtype == y.dtype, f"{x.shape} {x.dtype}, {y.shape} {y.dtype}"
    if is_torch(x):
        import torch

        same = [t.contiguous().view(torch.uint8) for t in (x, y)]
    else:
        same = [t.copy().view("uint8") for t in (x, y)]
    different = (same[0] != same[1]).sum()
    assert different == 0, f"{int(different)} bytes differ"


def count_bytes(*tensors: Any) -> int:
    """The bytes of all tensors, also of those in tuples and lists; None counts nothing."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, (tuple, list)):
            total += count_bytes(*tensor)
        elif tensor is not None:
            total += tensor.numel() * tensor.element_size() if is_torch(tensor) else tensor.nbytes
    return total
