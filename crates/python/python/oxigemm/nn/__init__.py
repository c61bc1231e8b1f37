"""Quantized layers for torch: linear layers and experts of a model, replaced by ones that these kernels multiply.

    report = oxigemm.optimize(model, sample=(ids,))
    print(report)                               # layers, memory, errors, what was left alone and why
    oxigemm.nn.restore(model)                   # the model as it was

Torch is imported with this module, and not with ``oxigemm``.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("`oxigemm.nn` needs torch: expected an installed torch, found none") from error

from .experts import QuantizedExperts
from .linear import QuantizedLinear
from .optimize import optimize, restore
from .report import LayerReport, Report

del _torch

__all__ = ["LayerReport", "QuantizedExperts", "QuantizedLinear", "Report", "optimize", "restore"]
