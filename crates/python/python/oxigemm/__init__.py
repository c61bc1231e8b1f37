"""Tensor-core kernels for large language models, with only the GPU driver.

``oxigemm.deep_gemm`` has the functions, under the names that engines call. Torch tensors of a GPU are computed on that
GPU, in torch's current stream. CPU arrays (numpy with ml_dtypes, torch, any DLPack array) are computed by the CPU
reference, or by the GPU's kernels in a simulator after ``set_device("sim")``.

Importing the package touches no GPU and imports neither torch nor numpy.
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _oxigemm
from ._oxigemm import __version__, get_device, set_device
from .errors import ArgumentError, ArgumentTypeError, OxigemmError

_oxigemm.set_prebuilt(_os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "cubins"))

from . import _ops, config, deep_gemm, fused, moe, nvfp4, quantization  # noqa: E402
from ._install import install_as_deep_gemm  # noqa: E402

_ops.register_with_torch()


if _TYPE_CHECKING:
    from . import nn as nn
    from .nn import optimize as optimize
else:

    def __getattr__(name):
        """``nn`` and its ``optimize`` need torch, which is imported with them."""
        if name in ("nn", "optimize"):
            import importlib

            module = importlib.import_module(".nn", __name__)
            return module if name == "nn" else module.optimize
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "OxigemmError",
    "__version__",
    "config",
    "deep_gemm",
    "fused",
    "get_device",
    "install_as_deep_gemm",
    "moe",
    "nvfp4",
    "quantization",
    "set_device",
]
