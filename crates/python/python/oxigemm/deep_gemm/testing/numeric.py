"""Comparison of tensors."""

from __future__ import annotations

from typing import Any

from ..._arrays import dtype_name, expect_shape, is_torch
from ...errors import ArgumentError, ArgumentTypeError

__all__ = ["assert_bitwise_equal", "calc_diff", "count_bytes"]


def _doubles(name: str, x: Any) -> Any:
    if dtype_name(x.dtype).startswith("complex"):
        message = f"`{name}` has the wrong element type: expected real numbers, found {dtype_name(x.dtype)}"
        raise ArgumentTypeError(message, name)
    if is_torch(x):
        return x.double()
    import numpy

    # A matrix of numpy has another product.
    return numpy.asarray(x).astype("float64")


def calc_diff(x: Any, y: Any) -> float:
    """How different two tensors are: 0 if they are equal, ``1 - 2 * sum(x * y) / sum(x * x + y * y)``.

    >>> calc_diff(numpy.ones(3), -numpy.ones(3))
    2.0
    """
    if tuple(expect_shape("x", x)) != tuple(expect_shape("y", y)):
        # Broadcasting would compare something else.
        found = tuple(y.shape)
        raise ArgumentError(f"`y` has the wrong shape: expected {tuple(x.shape)}, as `x` has, found {found}", "y")
    x, y = _doubles("x", x), _doubles("y", y)
    norm = (x * x + y * y).sum()
    if norm == 0:
        return 0.0
    return 1 - 2 * (x * y).sum() / norm


def _bytes(x: Any) -> Any:
    """The bytes of all elements, row-major."""
    if is_torch(x):
        import torch

        # A lazy negation is of no consequence for the values, which are compared.
        return x.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    import numpy

    return numpy.asarray(x).reshape(-1).copy().view("uint8")


def assert_bitwise_equal(x: Any, y: Any, label: str = "") -> None:
    """Fails unless two tensors have the same shape, type and bytes; ``label`` begins the text of the failure.

    >>> assert_bitwise_equal(d, expected, "second call")
    """
    prefix = f"{label}: " if label else ""
    for name, tensor in (("x", x), ("y", y)):
        expect_shape(name, tensor)
    found = f"{prefix}{tuple(x.shape)} {x.dtype}, {tuple(y.shape)} {y.dtype}"
    assert tuple(x.shape) == tuple(y.shape) and x.dtype == y.dtype, found
    different = (_bytes(x) != _bytes(y)).sum()
    assert different == 0, f"{prefix}{int(different)} bytes differ"


def count_bytes(*tensors: Any) -> int:
    """The bytes of all tensors, also of those in tuples and lists; None counts nothing."""
    total = 0
    for tensor in tensors:
        if isinstance(tensor, (tuple, list)):
            total += count_bytes(*tensor)
        elif tensor is not None:
            total += tensor.numel() * tensor.element_size() if is_torch(tensor) else tensor.nbytes
    return total
