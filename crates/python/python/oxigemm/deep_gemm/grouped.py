"""Products of groups: of rows, each with a B of its own (the experts of a mixture), and along K, each with a D of its own."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from .. import _call
from .. import _oxigemm as _C
from ..errors import ArgumentError

__all__ = [
    "bf16_m_grouped_gemm_nt_masked",
    "fp8_m_grouped_gemm_nt_masked",
    "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp16_gemm_nn_contiguous",
    "m_grouped_fp16_gemm_nt_contiguous",
    "m_grouped_fp16_gemm_nt_masked",
    "m_grouped_fp8_fp4_gemm_nn_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_contiguous",
    "m_grouped_fp8_fp4_gemm_nt_masked",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
]

Pair = Tuple[Any, Any]
Recipe = Optional[Tuple[int, int, int]]
RecipeOf = Optional[Tuple[int, int]]


def m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    grouped_layout: Any,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: Optional[int] = None,
) -> None:
    """D = A·Bᵀ for groups of rows one behind another: each with the B of its own.

    ============== ================= =================== =====================================================
    argument       shape             type                layout
    ============== ================= =================== =====================================================
    a[0]           [M, K]            e4m3                rows of K, pitch multiples of 16 bytes
    a[1]           [M, K/128]        float32             any strides
    b[0]           [G, N, K]         e4m3                rows of K, pitch and groups multiples of 16 bytes
    b[1]           [G, N/128, K/128] float32             any strides
    d              [M, N]            bfloat16 or float32 rows of N, any pitch
    grouped_layout [M], psum [G]     int32               contiguous
    ============== ================= =================== =====================================================

    ``grouped_layout`` has the group of every row, -1 for rows of none; with ``use_psum_layout`` the row behind the last
    of every group. The first row of a group is a multiple of ``get_mk_alignment_for_contiguous_layout()``. Rows of no group
    cost no product, whatever they hold in A. Where their group is -1 they become zero in D; with ``use_psum_layout`` they are left
    as they are. The kernel reads ``grouped_layout``: a graph may be replayed with another.
    ``expected_m_for_psum_layout`` is how many rows a group will have: the plan depends on it, and with that the last bits
    of large groups.
    """
    if _call.is_compiling():
        return _call.ops().m_grouped_fp8_gemm_contiguous(
            "nt", *a, *b, d, grouped_layout, recipe, recipe_a, recipe_b, use_psum_layout, expected_m_for_psum_layout
        )
    return _C.m_grouped_fp8_gemm_contiguous(
        "nt", a, b, d, grouped_layout, recipe, recipe_a, recipe_b, use_psum_layout, expected_m_for_psum_layout
    )


def m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    grouped_layout: Any,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """``m_grouped_fp8_fp4_gemm_nt_contiguous`` for B [G, K, N] with scales [G, K/128, N/128], D = A·B.

    A B that is not contiguous along K is transposed first: who can should keep it so.
    """
    if _call.is_compiling():
        return _call.ops().m_grouped_fp8_gemm_contiguous(
            "nn", *a, *b, d, grouped_layout, recipe, recipe_a, recipe_b, use_psum_layout, None
        )
    return _C.m_grouped_fp8_gemm_contiguous(
        "nn", a, b, d, grouped_layout, recipe, recipe_a, recipe_b, use_psum_layout, None
    )


def m_grouped_fp8_fp4_gemm_nt_masked(
    a: Pair,
    b: Pair,
    d: Any,
    masked_m: Any,
    expected_m: int,
    recipe: Recipe = None,
    recipe_a: RecipeOf = None,
    recipe_b: RecipeOf = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
) -> None:
    """D = A·Bᵀ for groups that each have room for the same number of rows, of which the first ``masked_m[g]`` count.

    ======== ================= =================== =======================================================
    argument shape             type                layout
    ======== ================= =================== =======================================================
    a[0]     [G, M, K]         e4m3                rows of K, pitch and groups multiples of 16 bytes
    a[1]     [G, M, K/128]     float32             any strides
    b[0]     [G, N, K]         e4m3                as a[0]
    b[1]     [G, N/128, K/128] float32             any strides
    d        [G, M, N]         bfloat16 or float32 rows of N, any pitch
    masked_m [G]               int32               contiguous
    ======== ================= =================== =======================================================

    Further rows are left as they are in D and cost nothing. The kernel reads ``masked_m``: a graph may be replayed with
    other counts. ``expected_m`` is how many rows a group will have: the plan depends on it, and with that the last bits of
    large groups.
    """
    if _call.is_compiling():
        return _call.ops().m_grouped_fp8_gemm_masked("nt", *a, *b, d, masked_m, expected_m, recipe, recipe_a, recipe_b)
    return _C.m_grouped_fp8_gemm_masked("nt", a, b, d, masked_m, expected_m, recipe, recipe_a, recipe_b)


m_grouped_fp8_gemm_nt_contiguous = m_grouped_fp8_fp4_gemm_nt_contiguous
m_grouped_fp8_gemm_nn_contiguous = m_grouped_fp8_fp4_gemm_nn_contiguous
m_grouped_fp8_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_fp4_gemm_nt_masked


def _half_contiguous(dtype, layout, a, b, d, grouped_layout, use_psum_layout, expected_m) -> None:
    if _call.is_compiling():
        return _call.ops().m_grouped_half_gemm_contiguous(
            dtype, layout, a, b, d, grouped_layout, use_psum_layout, expected_m
        )
    return _C.m_grouped_half_gemm_contiguous(dtype, layout, a, b, d, grouped_layout, use_psum_layout, expected_m)


def _half_masked(dtype, layout, a, b, d, masked_m, expected_m) -> None:
    if _call.is_compiling():
        return _call.ops().m_grouped_half_gemm_masked(dtype, layout, a, b, d, masked_m, expected_m)
    return _C.m_grouped_half_gemm_masked(dtype, layout, a, b, d, masked_m, expected_m)


def m_grouped_bf16_gemm_nt_contiguous(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: Optional[int] = None,
) -> None:
    """D = A·Bᵀ for groups of rows one behind another: A [M, K] and B [G, N, K] bfloat16, D [M, N] bfloat16 or float32.

    Groups are as for ``m_grouped_fp8_gemm_nt_contiguous``. B is contiguous along either of its last dimensions.
    """
    return _half_contiguous("bfloat16", "nt", a, b, d, grouped_layout, use_psum_layout, expected_m_for_psum_layout)


def m_grouped_bf16_gemm_nn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """``m_grouped_bf16_gemm_nt_contiguous`` for B [G, K, N], D = A·B."""
    return _half_contiguous("bfloat16", "nn", a, b, d, grouped_layout, use_psum_layout, None)


def m_grouped_bf16_gemm_nt_masked(
    a: Any, b: Any, d: Any, masked_m: Any, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """D = A·Bᵀ for groups with room for M rows each: A [G, M, K] and B [G, N, K] bfloat16, D [G, M, N] bfloat16 or float32.

    Groups are as for ``m_grouped_fp8_gemm_nt_masked``.
    """
    return _half_masked("bfloat16", "nt", a, b, d, masked_m, expected_m)


bf16_m_grouped_gemm_nt_masked = m_grouped_bf16_gemm_nt_masked


def m_grouped_fp16_gemm_nt_contiguous(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: Optional[int] = None,
) -> None:
    """``m_grouped_bf16_gemm_nt_contiguous`` for float16."""
    return _half_contiguous("float16", "nt", a, b, d, grouped_layout, use_psum_layout, expected_m_for_psum_layout)


def m_grouped_fp16_gemm_nn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    compiled_dims: str = "nk",
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
) -> None:
    """``m_grouped_bf16_gemm_nn_contiguous`` for float16."""
    return _half_contiguous("float16", "nn", a, b, d, grouped_layout, use_psum_layout, None)


def m_grouped_fp16_gemm_nt_masked(
    a: Any, b: Any, d: Any, masked_m: Any, expected_m: int, compiled_dims: str = "nk"
) -> None:
    """``m_grouped_bf16_gemm_nt_masked`` for float16."""
    return _half_masked("float16", "nt", a, b, d, masked_m, expected_m)


def _no_psum(use_psum_layout: bool) -> None:
    if use_psum_layout:
        message = "`use_psum_layout` is not for groups along K: expected False, found True"
        raise ArgumentError(message, "use_psum_layout")


def _half_k_grouped(dtype, a, b, d, ks_cpu, grouped_layout, c, use_psum_layout) -> None:
    _no_psum(use_psum_layout)
    if _call.is_compiling():
        return _call.ops().k_grouped_half_gemm(dtype, "tn", a, b, d, ks_cpu, grouped_layout, c)
    return _C.k_grouped_half_gemm(dtype, "tn", a, b, d, ks_cpu, grouped_layout, c)


def k_grouped_bf16_gemm_tn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    ks_cpu: Optional[Sequence[int]],
    grouped_layout: Any,
    c: Optional[Any] = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """D[g] = C[g] + A_gᵀ·B_g for groups that share M and N and have rows of A and B of their own: gradients of weights.

    A [sum of K_g, M] and B [sum of K_g, N] bfloat16, rows of any pitch that is a multiple of 16 bytes; C and D [G, M, N], bfloat16
    or float32. ``grouped_layout`` is int32 [G]: the K of each group, which may be any. ``ks_cpu`` are the same numbers on the
    host; None or nothing where it does not know them.
    """
    return _half_k_grouped("bfloat16", a, b, d, ks_cpu, grouped_layout, c, use_psum_layout)


def k_grouped_fp16_gemm_tn_contiguous(
    a: Any,
    b: Any,
    d: Any,
    ks_cpu: Optional[Sequence[int]],
    grouped_layout: Any,
    c: Optional[Any] = None,
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """``k_grouped_bf16_gemm_tn_contiguous`` for float16."""
    return _half_k_grouped("float16", a, b, d, ks_cpu, grouped_layout, c, use_psum_layout)


def k_grouped_fp8_gemm_nt_contiguous(
    a: Pair,
    b: Pair,
    d: Any,
    ks_cpu: Optional[Sequence[int]],
    grouped_layout: Any,
    c: Optional[Any] = None,
    recipe: Recipe = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """D[g] = C[g] + A_g·B_gᵀ for groups that share M and N and have a K of their own: gradients of weights.

    ============== ======================================= =================== ====================================
    argument       shape                                   type                layout
    ============== ======================================= =================== ====================================
    a[0]           all elements, of each group [M, K_g]    e4m3                contiguous; K_g rounded up to 16
    a[1]           [M, sum of K_g/128]                     float32             any strides
    b[0]           all elements, of each group [N, K_g]    e4m3                contiguous; K_g rounded up to 16
    b[1]           [N, sum of K_g/128]                     float32             any strides
    c, d           [G, M, N]                               bfloat16 or float32 rows of N, any pitch
    grouped_layout [G]: the K of each group                int32               contiguous
    ============== ======================================= =================== ====================================

    ``ks_cpu`` are the same numbers on the host, compared with the shapes; None or nothing where it does not know them. Any K
    will do, also 0.
    """
    _no_psum(use_psum_layout)
    if _call.is_compiling():
        return _call.ops().k_grouped_fp8_gemm(*a, *b, d, ks_cpu, grouped_layout, c, recipe)
    return _C.k_grouped_fp8_gemm(a, b, d, ks_cpu, grouped_layout, c, recipe)
