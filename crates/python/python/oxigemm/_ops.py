"""The functions as custom operators of torch, for ``torch.compile``.

Each writes into its output, which torch is told; none has a shape of its own to infer. They are registered when a
function is traced for the first time.
"""

from __future__ import annotations

from typing import Any, Optional

from . import _oxigemm as _C


def fp8_gemm(layout, a, b, d, c, recipe, recipe_a, recipe_b) -> None:
    import torch

    torch.ops.oxigemm.fp8_gemm(layout, a[0], a[1], b[0], b[1], d, c, recipe, recipe_a, recipe_b)


def half_gemm(dtype, layout, a, b, d, c) -> None:
    import torch

    torch.ops.oxigemm.half_gemm(dtype, layout, a, b, d, c)
