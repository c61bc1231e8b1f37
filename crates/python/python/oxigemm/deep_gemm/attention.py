"""MQA logits of the attention indexer, einsums of attention, and the prenorm GEMM of hyper-connections."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .. import _call
from .. import _oxigemm as _C
from .._arrays import dtype_name, empty, expect_int, expect_shape, rows_of
from ..errors import ArgumentError, ArgumentTypeError
from .gemm import fp8_gemm_nt_skip_head_mid

__all__ = [
    "einsum",
    "fp8_einsum",
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_gemm_nt_skip_head_mid",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_paged_mqa_logits_metadata",
    "tf32_hc_prenorm_gemm",
]


def _only_fp8(name: str, pair: Any) -> Any:
    """The operand of a pair whose scales, those of FP4, are None."""
    if not isinstance(pair, (tuple, list)):
        return _query(name, pair)
    if len(pair) != 2:
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected (q, None), found {len(pair)} parts", name)
    if pair[1] is not None:
        raise ArgumentError(f"`{name}[1]` is for FP4: expected None, found scales", name)
    return _query(name, pair[0])


def _query(name: str, query: Any) -> Any:
    if len(expect_shape(name, query)) not in (3, 4):
        found = tuple(query.shape)
        raise ArgumentError(f"`{name}` has the wrong rank: expected 3 dimensions, or 4 if paged, found {found}", name)
    return query


def _logits_dtype(dtype: Any) -> str:
    name = dtype_name(dtype)
    if name not in ("float32", "bfloat16"):
        expected = "float32 or bfloat16"
        raise ArgumentTypeError(f"`logits_dtype` is wrong: expected {expected}, found {name}", "logits_dtype")
    return name


def fp8_fp4_mqa_logits(
    q: Tuple[Any, None],
    kv: Tuple[Any, Any],
    weights: Any,
    cu_seq_len_k_start: Any,
    cu_seq_len_k_end: Any,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    logits_dtype: Any = None,
) -> Any:
    """MQA logits: ``logits[i, j] = kv[1][j] * sum over heads of relu(q[i, h] · kv[0][j]) * weights[i, h]``
    for keys ``cu_seq_len_k_start[i] <= j < cu_seq_len_k_end[i]``.

    ==================== ===================================== ======= ===================================
    argument             shape                                 type    layout
    ==================== ===================================== ======= ===================================
    q[0]                 [S, H, D]; H 8 to 64, D 32, 64 or 128 e4m3    contiguous
    kv[0]                [SKV, D]                              e4m3    row-major, pitch multiples of 16 bytes
    kv[1]                [SKV]                                 float32 contiguous
    weights              [S, H]                                float32 row-major, any pitch
    cu_seq_len_k_start   [S]                                   int32   contiguous
    cu_seq_len_k_end     [S]                                   int32   contiguous
    ==================== ===================================== ======= ===================================

    Returns [S, SKV] of ``logits_dtype`` (float32, or bfloat16). Outside of a query's keys there is -inf, or anything if
    ``clean_logits`` is False. With ``max_seqlen_k`` the logits are compressed to [S, max_seqlen_k]: column 0 is the
    first key of each query.
    """
    query = _only_fp8("q", q)
    max_seqlen_k = expect_int("max_seqlen_k", max_seqlen_k, 0)
    if max_seqlen_k > 0 and clean_logits:
        message = "`clean_logits` is not for compressed logits: expected False with `max_seqlen_k`, found True"
        raise ArgumentError(message, "clean_logits")
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        raise ArgumentTypeError("`kv` has the wrong type: expected a pair of keys and their scales", "kv")
    keys, scales = kv
    expect_shape("kv", keys, 2)
    columns = max_seqlen_k if max_seqlen_k > 0 else keys.shape[0]
    logits = rows_of(query, query.shape[0], columns, _logits_dtype(logits_dtype))
    form = "compressed" if max_seqlen_k > 0 else "clean" if clean_logits else "partial"
    if _call.is_compiling():
        _call.ops().mqa_logits(query, keys, scales, weights, cu_seq_len_k_start, cu_seq_len_k_end, logits, form)
    else:
        k_ranges = cu_seq_len_k_start, cu_seq_len_k_end
        _C.mqa_logits(query, (keys, scales), weights, k_ranges, logits, form)
    return logits


def fp8_mqa_logits(
    q: Any,
    kv: Tuple[Any, Any],
    weights: Any,
    cu_seq_len_k_start: Any,
    cu_seq_len_k_end: Any,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
) -> Any:
    """``fp8_fp4_mqa_logits`` with a plain ``q`` and logits of float32."""
    return fp8_fp4_mqa_logits((q, None), kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, clean_logits, max_seqlen_k)


def _no_indices(indices: Any) -> None:
    if indices is not None:
        raise ArgumentError("`indices` is not for Hopper: expected None, found indices", "indices")


def get_paged_mqa_logits_metadata(context_lens: Any, block_kv: int, num_sms: int, indices: Optional[Any] = None) -> Any:
    """Schedule metadata of ``fp8_paged_mqa_logits``, the keys of each SM: int32 [num_sms + 1, 2].

    ``context_lens`` is int32 [B, next_n] or [B], contiguous. It is read on the device: a CUDA graph of the call may be
    replayed with other lengths.
    """
    _no_indices(indices)
    if expect_int("block_kv", block_kv) not in (16, 32, 64, 128):
        message = f"`block_kv` is wrong: expected 16, 32, 64 or 128 keys of a page, found {block_kv}"
        raise ArgumentError(message, "block_kv")
    num_sms = expect_int("num_sms", num_sms, 1, 65535)
    schedule = empty(context_lens, (num_sms + 1, 2), "int32")
    if _call.is_compiling():
        _call.ops().paged_mqa_logits_metadata(context_lens, schedule)
    else:
        _C.paged_mqa_logits_metadata(context_lens, schedule)
    return schedule


def fp8_fp4_paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    max_context_len: int,
    clean_logits: bool = False,
    logits_dtype: Any = None,
    indices: Optional[Any] = None,
) -> Any:
    """Paged MQA logits: ``fp8_fp4_mqa_logits`` for a paged KV cache of B sequences with ``next_n`` queries each.

    ============= =========================================== ============= ==========================================
    argument      shape                                       type          layout
    ============= =========================================== ============= ==========================================
    q             [B, next_n, H, D], or (that, None); 1 to 4  e4m3          contiguous
    kv_cache      [pages, block_kv, 1, D + 4]                 uint8 or e4m3 each page: elements, then float32 scales
    weights       [B * next_n, H]                             float32       row-major, any pitch
    context_lens  [B, next_n] or [B]                          int32         contiguous
    block_table   [B, any]                                    int32         row-major, any pitch
    schedule_meta [parts + 1, 2]                              int32         of ``get_paged_mqa_logits_metadata``
    ============= =========================================== ============= ==========================================

    Returns [B * next_n, max_context_len] of ``logits_dtype``. Past a query's length there is -inf if ``clean_logits``,
    else anything.
    """
    _no_indices(indices)
    query = _only_fp8("q", q)
    max_context_len = expect_int("max_context_len", max_context_len, 0)
    rows = query.shape[0] * query.shape[1]
    logits = rows_of(query, rows, max_context_len, _logits_dtype(logits_dtype))
    if _call.is_compiling():
        _call.ops().paged_mqa_logits(
            query, kv_cache, weights, context_lens, block_table, schedule_meta, logits, clean_logits
        )
    else:
        paging = context_lens, block_table, schedule_meta
        _C.paged_mqa_logits(query, kv_cache, weights, paging, logits, clean_logits)
    return logits


def fp8_paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    max_context_len: int,
    clean_logits: bool = False,
    indices: Optional[Any] = None,
) -> Any:
    """``fp8_fp4_paged_mqa_logits`` with logits of float32."""
    return fp8_fp4_paged_mqa_logits(
        q,
        kv_cache,
        weights,
        context_lens,
        block_table,
        schedule_meta,
        max_context_len,
        clean_logits,
        None,
        indices,
    )


def einsum(expr: str, a: Any, b: Any, d: Any, c: Optional[Any] = None, use_cublaslt: bool = False) -> None:
    """Einsums of bfloat16 (or float16) operands that are batched GEMMs.

    ================ =========== =========== ===========
    ``expr``         a           b           d
    ================ =========== =========== ===========
    bhr,hdr->bhd     [b, h, r]   [h, d, r]   [b, h, d]
    bhd,hdr->bhr     [b, h, d]   [h, d, r]   [b, h, r]
    bmk,bnk->mn      [b, m, k]   [b, n, k]   [m, n]
    ================ =========== =========== ===========

    Last dimensions are contiguous, all other strides are free. ``use_cublaslt`` computes the same with cuBLASLt, where
    it is found, for tensors of a GPU.
    """
    if use_cublaslt:
        layouts = {"bhr,hdr->bhd": "nt", "bhd,hdr->bhr": "nn"}
        if expr not in layouts:
            expected = "bhr,hdr->bhd or bhd,hdr->bhr"
            raise ArgumentError(f"`expr` is wrong: expected {expected} with `use_cublaslt`, found {expr}", "expr")
        # The batch comes first.
        by_head = [None if x is None else x.swapaxes(0, 1) for x in (a, d, c)]
        return _C.cublaslt_gemm(layouts[expr], by_head[0], b, by_head[1], by_head[2])
    if _call.is_compiling():
        return _call.ops().einsum(expr, a, b, d, c)
    return _C.einsum(expr, a, b, d, c)


def fp8_einsum(
    expr: str,
    a: Tuple[Any, Any],
    b: Tuple[Any, Any],
    d: Any,
    c: Optional[Any] = None,
    recipe: Tuple[int, int, int] = (1, 128, 128),
) -> None:
    """``bhr,hdr->bhd`` and ``bhd,hdr->bhr`` of FP8 operands with scales: batched GEMMs, one for each head.

    ======== ================== =================== =====================================
    argument shape              type                layout
    ======== ================== =================== =====================================
    a[0]     [b, h, r]          e4m3                last dimension contiguous
    a[1]     [b, h, r/128]      float32             any strides
    b[0]     [h, d, r]          e4m3                last dimension contiguous
    b[1]     [h, d/128, r/128]  float32             any strides
    c, d     [b, h, d]          bfloat16 or float32 last dimension contiguous
    ======== ================== =================== =====================================

    Shapes are those of the first expression. Only that takes ``c``, with a launch for each head.
    """
    if _call.is_compiling():
        return _call.ops().fp8_einsum(expr, *a, *b, d, c, recipe)
    return _C.fp8_einsum(expr, (a, b, recipe, None, None), d, c)


def tf32_hc_prenorm_gemm(a: Any, b: Any, d: Any, sqr_sum: Any, num_splits: Optional[int] = None) -> None:
    """The prenorm GEMM of hyper-connections: D = A·Bᵀ with few columns, and the sum of squares of each row of A.

    ======== ============================== ======== ====================================
    argument shape                          type     layout
    ======== ============================== ======== ====================================
    a        [M, K]                         bfloat16 K-major, pitch multiples of 16 bytes
    b        [N, K]; N is 8, 16, 24 or 32   float32  K-major, pitch multiples of 16 bytes
    d        [M, N], or [num_splits, M, N]  float32  row-major, any pitch
    sqr_sum  [M], or [num_splits, M]        float32  contiguous
    ======== ============================== ======== ====================================

    B is rounded to TF32. ``num_splits`` is split-K: blocks of 64 along K go to the splits round-robin, and the caller
    adds the splits.
    """
    if _call.is_compiling():
        return _call.ops().hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
    return _C.hc_prenorm_gemm(a, b, d, sqr_sum, num_splits)
