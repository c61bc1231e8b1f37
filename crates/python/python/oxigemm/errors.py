"""Exceptions. Every class is a ``RuntimeError``, as engines expect of such a library."""

from __future__ import annotations

from typing import Optional

__all__ = ["ArgumentError", "ArgumentTypeError", "OxigemmError"]


class OxigemmError(RuntimeError):
    """A call that failed: a wrong argument, or an error of the device."""

    def __init__(self, message: str, argument: Optional[str] = None) -> None:
        super().__init__(message)
        #: The name of the argument at fault, where one is.
        self.argument = argument


class ArgumentError(OxigemmError, ValueError):
    """An argument of the wrong shape, strides, alignment, device or value."""


class ArgumentTypeError(OxigemmError, TypeError):
    """An argument, or its elements, of the wrong type."""
