"""The functions of DeepGEMM for Hopper, under its names, with its arguments and defaults.

Functions that need Blackwell are absent, so engines that look for them find nothing. An argument that DeepGEMM would
misread is an error here: a ``RuntimeError`` that names the argument, what was expected and what was found.
"""

from __future__ import annotations

from .._oxigemm import __version__
from ..errors import OxigemmError
from . import attention, baseline, epilogue, gemm, grouped, layout, settings, testing, utils
from .attention import *  # noqa: F403
from .baseline import *  # noqa: F403
from .gemm import *  # noqa: F403
from .grouped import *  # noqa: F403
from .layout import *  # noqa: F403
from .settings import *  # noqa: F403
from .testing import *  # noqa: F403
from .utils import *  # noqa: F403

__all__ = [
    "OxigemmError",
    "__version__",
    *attention.__all__,
    *baseline.__all__,
    "epilogue",
    *gemm.__all__,
    *grouped.__all__,
    *layout.__all__,
    *settings.__all__,
    *testing.__all__,
    "testing",
    *utils.__all__,
    "utils",
]
