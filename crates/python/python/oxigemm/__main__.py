"""The command line: ``python -m oxigemm``."""

from __future__ import annotations

import os
import signal
import sys

from . import _oxigemm


def main() -> int:
    """Runs the command line with the arguments of the process."""
    # Nothing of Python runs meanwhile that could handle it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    cubins = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cubins")
    if os.path.isdir(cubins):
        os.environ.setdefault("OXIGEMM_PREBUILT_DIR", cubins)
    return _oxigemm.command_line(["oxigemm", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
