"""The functions of DeepGEMM for Hopper, under its names, with its arguments and defaults.

Functions that only exist on Blackwell are absent, so that engines which look for them find nothing. What DeepGEMM would
read wrongly is an error here, a ``RuntimeError`` that names the argument, what was expected and what came.
"""

from __future__ import annotations

from .._oxigemm import __version__
from ..errors import OxigemmError
from .gemm import *  # noqa: F403
from .gemm import __all__ as _gemm
from .settings import *  # noqa: F403
from .settings import __all__ as _settings

__all__ = ["OxigemmError", "__version__", *_gemm, *_settings]
