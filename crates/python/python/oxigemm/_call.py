"""From the functions of the package to those of the extension: directly, or through torch's operators while torch traces."""

from __future__ import annotations

import sys
from typing import Any


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
