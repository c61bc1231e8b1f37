"""What functions need to call the extension: directly, or through torch's custom operators while torch traces."""

from __future__ import annotations

import sys
from typing import Any

from .errors import ArgumentError, ArgumentTypeError


def is_compiling() -> bool:
    """Whether torch traces right now. Once torch was seen outside of a trace, this is torch's own function."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    if torch.compiler.is_compiling():
        return True
    globals()["is_compiling"] = torch.compiler.is_compiling
    return False


def ops() -> Any:
    """The operators."""
    return sys.modules["torch"].ops.oxigemm


def refuse_none(name: str, value: Any) -> None:
    """The check of an argument that a function needs, for a part of the epilogue that others may leave out."""
    if value is None:
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected a value, found None", name)


def refuse_psum_layout(use_psum_layout: bool) -> None:
    """The check of k-grouped functions: they have no such layout."""
    if use_psum_layout:
        message = "`use_psum_layout` is not for k-grouped GEMMs: expected False, found True"
        raise ArgumentError(message, "use_psum_layout")
