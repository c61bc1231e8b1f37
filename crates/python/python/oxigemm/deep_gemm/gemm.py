"""Dense products."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .. import _call
from .. import _oxigemm as _C

__all__ = [
    "bf16_gemm_nn",
    "bf16_gemm_nt",
    "bf16_gemm_tn",
    "bf16_gemm_tt",
    "fp16_gemm_nn",
    "fp16_gemm_nt",
    "fp16_gemm_tn",
    "fp16_gemm_tt",
    "fp8_fp4_gemm_nn",
    "fp8_fp4_gemm_nt",
    "fp8_fp4_gemm_tn",
    "fp8_fp4_gemm_tt",
    "fp8_gemm_nn",
    "fp8_gemm_nt",
    "fp8_gemm_tn",
    "fp8_gemm_tt",
]

Pair = Tuple[Any, Any]
Recipe = Optional[Tuple[int, int, int]]
RecipeOf = Optional[Tuple[int, int]]


def fp8_fp4_gemm_nt(
    a: Pair,
    b: Pair,
    d: Any,
    c: Optional[Any] = None,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """D = C + A·Bᵀ with FP8 operands and fine-grained scales.

    ======== ============================== ====================== ==========================================
    argument shape                          type                   layout
    ======== ============================== ====================== ==========================================
    a[0]     [M, K]                         e4m3 or e5m2           one stride 1; pitch multiples of 16 bytes
    a[1]     [M, K/128]                     float32                any strides
    b[0]     [N, K]                         e4m3 or e5m2           one stride 1; pitch multiples of 16 bytes
    b[1]     [N/128, K/128]                 float32                any strides
    c, d     [M, N]                         bfloat16 or float32    rows of N, any pitch
    ======== ============================== ====================== ==========================================

    Scales of B with N instead of N/128 belong to single rows. ``recipe`` (or ``recipe_a`` and ``recipe_b``) says so
    too, and is compared with the shapes: ``(1, 128, 128)`` or ``(1, 1, 128)``. Where scales have 1 along a dimension,
    that one holds for all. ``c`` may be ``d`` itself. ``compiled_dims`` and ``disable_ue8m0_cast`` change nothing: no
    dimension is ever compiled in, and scales of Hopper are float32.
    """
    if _call.is_compiling():
        return _call.ops().fp8_gemm("nt", *a, *b, d, c, recipe, recipe_a, recipe_b)
    return _C.fp8_gemm("nt", a, b, d, c, recipe, recipe_a, recipe_b)


def fp8_fp4_gemm_nn(
    a: Pair,
    b: Pair,
    d: Any,
    c: Optional[Any] = None,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``fp8_fp4_gemm_nt`` for D = C + A·B: A [M, K] with scales [M, K/128],
    B [K, N] with scales [K/128, N/128] (or [K/128, N]).
    """
    if _call.is_compiling():
        return _call.ops().fp8_gemm("nn", *a, *b, d, c, recipe, recipe_a, recipe_b)
    return _C.fp8_gemm("nn", a, b, d, c, recipe, recipe_a, recipe_b)


def fp8_fp4_gemm_tn(
    a: Pair,
    b: Pair,
    d: Any,
    c: Optional[Any] = None,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``fp8_fp4_gemm_nt`` for D = C + Aᵀ·B: A [K, M] with scales [K/128, M],
    B [K, N] with scales [K/128, N/128] (or [K/128, N]).
    """
    if _call.is_compiling():
        return _call.ops().fp8_gemm("tn", *a, *b, d, c, recipe, recipe_a, recipe_b)
    return _C.fp8_gemm("tn", a, b, d, c, recipe, recipe_a, recipe_b)


def fp8_fp4_gemm_tt(
    a: Pair,
    b: Pair,
    d: Any,
    c: Optional[Any] = None,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "mn",
    disable_ue8m0_cast: bool = False,
) -> None:
    """``fp8_fp4_gemm_nt`` for D = C + Aᵀ·Bᵀ: A [K, M] with scales [K/128, M],
    B [N, K] with scales [N/128, K/128] (or [N, K/128]).
    """
    if _call.is_compiling():
        return _call.ops().fp8_gemm("tt", *a, *b, d, c, recipe, recipe_a, recipe_b)
    return _C.fp8_gemm("tt", a, b, d, c, recipe, recipe_a, recipe_b)


fp8_gemm_nt = fp8_fp4_gemm_nt
fp8_gemm_nn = fp8_fp4_gemm_nn
fp8_gemm_tn = fp8_fp4_gemm_tn
fp8_gemm_tt = fp8_fp4_gemm_tt


def bf16_gemm_nt(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "nk") -> None:
    """D = C + A·Bᵀ with bfloat16 operands: A [M, K], B [N, K], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], bfloat16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("bfloat16", "nt", a, b, d, c)
    return _C.half_gemm("bfloat16", "nt", a, b, d, c)


def bf16_gemm_nn(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "nk") -> None:
    """D = C + A·B with bfloat16 operands: A [M, K], B [K, N], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], bfloat16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("bfloat16", "nn", a, b, d, c)
    return _C.half_gemm("bfloat16", "nn", a, b, d, c)


def bf16_gemm_tn(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "mn") -> None:
    """D = C + Aᵀ·B with bfloat16 operands: A [K, M], B [K, N], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], bfloat16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("bfloat16", "tn", a, b, d, c)
    return _C.half_gemm("bfloat16", "tn", a, b, d, c)


def bf16_gemm_tt(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "mn") -> None:
    """D = C + Aᵀ·Bᵀ with bfloat16 operands: A [K, M], B [N, K], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], bfloat16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("bfloat16", "tt", a, b, d, c)
    return _C.half_gemm("bfloat16", "tt", a, b, d, c)


def fp16_gemm_nt(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "nk") -> None:
    """D = C + A·Bᵀ with float16 operands: A [M, K], B [N, K], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], float16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("float16", "nt", a, b, d, c)
    return _C.half_gemm("float16", "nt", a, b, d, c)


def fp16_gemm_nn(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "nk") -> None:
    """D = C + A·B with float16 operands: A [M, K], B [K, N], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], float16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("float16", "nn", a, b, d, c)
    return _C.half_gemm("float16", "nn", a, b, d, c)


def fp16_gemm_tn(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "mn") -> None:
    """D = C + Aᵀ·B with float16 operands: A [K, M], B [K, N], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], float16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("float16", "tn", a, b, d, c)
    return _C.half_gemm("float16", "tn", a, b, d, c)


def fp16_gemm_tt(a: Any, b: Any, d: Any, c: Optional[Any] = None, compiled_dims: str = "mn") -> None:
    """D = C + Aᵀ·Bᵀ with float16 operands: A [K, M], B [N, K], each with a stride of 1 along one dimension and a pitch of
    multiples of 16 bytes; C and D [M, N], float16 or float32, rows of any pitch. ``c`` may be ``d`` itself.
    """
    if _call.is_compiling():
        return _call.ops().half_gemm("float16", "tt", a, b, d, c)
    return _C.half_gemm("float16", "tt", a, b, d, c)
