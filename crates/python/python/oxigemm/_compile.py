"""Whether torch is tracing a function to compile it.

Calls of the extension cannot be traced; then they are made through the custom operators of ``_ops``, which torch knows.
"""

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
