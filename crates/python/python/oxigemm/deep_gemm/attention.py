"""MQA logits of the attention indexer, einsums of attention, and the prenorm GEMM of hyper-connections."""

from __future__ import annotations

import numbers
from typing import Any, Dict, Optional, Tuple

from .. import _call
from .. import _oxigemm as _C
from .._arrays import dtype_name, empty, expect_shape, is_torch, rows_of
from ..errors import ArgumentError, ArgumentTypeError
from . import epilogue as _epilogue
from .gemm import fp8_gemm_nt_skip_head_mid

__all__ = [
    "einsum",
    "fp8_einsum",
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_gemm_nt_skip_head_mid",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_mqa_logits_metadata",
    "get_paged_mqa_logits_metadata",
    "tf32_hc_prenorm_gemm",
]


def _with_scales(name: str, pair: Any) -> Tuple[Any, Any]:
    """The operand of a pair and its scales, which are None unless it is FP4."""
    if not isinstance(pair, (tuple, list)):
        return _query(name, pair), None
    if len(pair) != 2:
        expected = "(q, scales or None)"
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected {expected}, found {len(pair)} parts", name)
    return _query(name, pair[0]), pair[1]


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


def _is_flag(value: Any) -> bool:
    """Whether it is a bool, of Python or of numpy."""
    return value is True or value is False or type(value).__name__ in ("bool", "bool_")


def _is_integer(value: Any) -> bool:
    """Whether it is an integer, of Python or of numpy. An array is none: reading it would wait for the device."""
    return type(value) is int or (not _is_flag(value) and isinstance(value, (int, numbers.Integral)))


def _found(value: Any) -> str:
    return f"{type(value).__name__} {value}" if isinstance(value, (int, float, str)) else type(value).__name__


def _flag(name: str, value: Any) -> bool:
    if not _is_flag(value):
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected a bool, found {_found(value)}", name)
    return bool(value)


def _count(name: str, value: Any) -> int:
    """An integer of 0 or more."""
    if not _is_integer(value):
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected an int, found {_found(value)}", name)
    if value < 0:
        raise ArgumentError(f"`{name}` is out of range: expected 0 or more, found {value}", name)
    return int(value)


def _merged(places: Tuple[Any, ...], names: Tuple[str, ...], named: Dict[str, Any]) -> Dict[str, Any]:
    """Arguments by place and by name together; those that are None count as not given."""
    if not places:
        return named
    if len(places) > len(names):
        found = f"{len(places)} of them"
        message = f"`{names[-1]}` is the last argument by place: expected up to {len(names)} there, found {found}"
        raise ArgumentTypeError(message, names[-1])
    for name, value in zip(names, places):
        if named.get(name) is not None:
            raise ArgumentTypeError(
                f"`{name}` is given twice: expected one value, found one by place and by name", name
            )
        named[name] = value
    return named


def _expect_numbers(name: str, array: Any, shape: Tuple[int, ...], like: Any) -> None:
    """The check of an int32 array that the kernels do not read."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected an array, found {_found(array)}", name)
    if dtype_name(array.dtype) != "int32":
        found = dtype_name(array.dtype)
        raise ArgumentTypeError(f"`{name}` has the wrong type: expected int32, found {found}", name)
    if tuple(array.shape) != shape:
        message = f"`{name}` has the wrong shape: expected {list(shape)}, found {list(array.shape)}"
        raise ArgumentError(message, name)
    devices = [str(getattr(each, "device", "cpu")) for each in (array, like)]
    if is_torch(array) != is_torch(like) or devices[0] != devices[1]:
        message = f"`{name}` is on the wrong device: expected {devices[1]}, found {devices[0]}"
        raise ArgumentError(message, name)


def _mqa_logits(
    q: Any, kv: Any, weights: Any, starts: Any, ends: Any, places: Tuple[Any, ...], names: Tuple[str, ...], named: Any
) -> Any:
    """MQA logits of the calling styles of DeepGEMM 2.6 and 2.8, which differ in the sixth place."""
    query, q_scales = _with_scales("q", q)
    if places and not _is_flag(places[0]) and not _is_integer(places[0]):
        expected = "a bool (`clean_logits`) or an int (`max_seqlen_k`) in the sixth place"
        message = f"`max_seqlen_k` has the wrong type: expected {expected}, found {_found(places[0])}"
        raise ArgumentTypeError(message, "max_seqlen_k")
    # (Dynamo traces no `bool` of a tuple.)
    is_new = len(places) > 0 and _is_integer(places[0])
    new_names = tuple(name for name in names if name in ("max_seqlen_k", "schedule_meta"))
    named = _merged(places, new_names if is_new else names, named)
    columns = _count("max_seqlen_k", 0 if named["max_seqlen_k"] is None else named["max_seqlen_k"])
    # In the sixth place it is the number of columns, whatever it is; by name, 0 is for logits of all keys.
    compressed = is_new or columns > 0
    clean = _flag("clean_logits", not compressed if named["clean_logits"] is None else named["clean_logits"])
    if compressed and clean:
        message = "`clean_logits` is not for compressed logits: expected False with `max_seqlen_k`, found True"
        raise ArgumentError(message, "clean_logits")
    if not isinstance(kv, (tuple, list)) or len(kv) != 2:
        raise ArgumentTypeError("`kv` has the wrong type: expected a pair of keys and their scales", "kv")
    keys, scales = kv
    expect_shape("kv", keys, 2)
    schedule_meta = named.get("schedule_meta")
    if schedule_meta is not None:
        _expect_numbers("schedule_meta", schedule_meta, (query.shape[0], 2), query)
    columns = columns if compressed else keys.shape[0]
    logits = rows_of(query, query.shape[0], columns, _logits_dtype(named.get("logits_dtype")))
    form = "compressed" if compressed else "clean" if clean else "partial"
    if _call.is_compiling():
        _call.ops().mqa_logits(query, q_scales, keys, scales, weights, starts, ends, logits, form)
    else:
        _C.mqa_logits((query, q_scales), (keys, scales), weights, (starts, ends), logits, form)
    return logits


def fp8_fp4_mqa_logits(
    q: Tuple[Any, Any],
    kv: Tuple[Any, Any],
    weights: Any,
    cu_seq_len_k_start: Any,
    cu_seq_len_k_end: Any,
    *places: Any,
    clean_logits: Optional[bool] = None,
    max_seqlen_k: Optional[int] = None,
    logits_dtype: Any = None,
    schedule_meta: Optional[Any] = None,
) -> Any:
    """MQA logits: ``logits[i, j] = kv[1][j] * sum over heads of relu(q[i, h] · kv[0][j]) * weights[i, h]``
    for keys ``cu_seq_len_k_start[i] <= j < cu_seq_len_k_end[i]``.

    ==================== ====================================== ======= ===================================
    argument             shape                                  type    layout
    ==================== ====================================== ======= ===================================
    q[0]                 [S, H, D]; D 32, 64 or 128             e4m3    contiguous
    kv[0]                [SKV, D]                               e4m3    row-major, pitch multiples of 16 bytes
    kv[1]                [SKV]                                  float32 contiguous
    weights              [S, H]; H a multiple of 8 up to 128    float32 row-major, any pitch
    cu_seq_len_k_start   [S]                                    int32   contiguous
    cu_seq_len_k_end     [S]                                    int32   contiguous
    schedule_meta        [S, 2], or None                        int32   of ``get_mqa_logits_metadata``
    ==================== ====================================== ======= ===================================

    With scales in ``q[1]``, all is FP4, for Blackwell: ``q[0]`` is int8 or uint8 [S, H, D/2] with two e2m1 each, the
    first in the low half, ``kv[0]`` the same [SKV, D/2]; D is 64 or 128. ``q[1]`` [S, H] and ``kv[1]`` [SKV] are int32:
    a UE8M0 scale for 32 elements in each byte, the first in the lowest. Nothing else scales a key.

    Returns [S, SKV] of ``logits_dtype`` (float32, or bfloat16). Outside of a query's keys there is -inf, or anything if
    ``clean_logits`` is False. With ``max_seqlen_k`` the logits are compressed to [S, max_seqlen_k]: column 0 is the
    first key of each query, and behind a query's last key there is anything.

    Arguments behind the ranges are given by name, or by place as in DeepGEMM 2.8 (``max_seqlen_k, schedule_meta``) or
    2.6 (``clean_logits, max_seqlen_k, logits_dtype, schedule_meta``): an int in the sixth place is ``max_seqlen_k``, a
    bool ``clean_logits``. ``schedule_meta`` is checked and otherwise not needed: the kernels split the work themselves.
    """
    names = "clean_logits", "max_seqlen_k", "logits_dtype", "schedule_meta"
    named = dict(zip(names, (clean_logits, max_seqlen_k, logits_dtype, schedule_meta)))
    return _mqa_logits(q, kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, places, names, named)


def fp8_mqa_logits(
    q: Any,
    kv: Tuple[Any, Any],
    weights: Any,
    cu_seq_len_k_start: Any,
    cu_seq_len_k_end: Any,
    *places: Any,
    clean_logits: Optional[bool] = None,
    max_seqlen_k: Optional[int] = None,
) -> Any:
    """``fp8_fp4_mqa_logits`` with a plain ``q`` and logits of float32."""
    names = "clean_logits", "max_seqlen_k"
    named = {"clean_logits": clean_logits, "max_seqlen_k": max_seqlen_k}
    return _mqa_logits((q, None), kv, weights, cu_seq_len_k_start, cu_seq_len_k_end, places, names, named)


def get_mqa_logits_metadata(cu_seq_len_k_start: Any, cu_seq_len_k_end: Any, num_kv_tokens: int, num_heads: int) -> Any:
    """Schedule metadata of ``fp8_fp4_mqa_logits``, the range of each query: int32 [S, 2].

    The kernels for Hopper split the work on the device, from the ranges that the call itself is given, so they do not
    need it. It is made on the device: a CUDA graph of the call may be replayed with other ranges.
    """
    _count("num_kv_tokens", num_kv_tokens)
    if _count("num_heads", num_heads) not in range(8, 129, 8):
        message = f"`num_heads` is wrong: expected a multiple of 8 up to 128, found {num_heads}"
        raise ArgumentError(message, "num_heads")
    if len(expect_shape("cu_seq_len_k_start", cu_seq_len_k_start)) != 1:
        found = list(cu_seq_len_k_start.shape)
        message = f"`cu_seq_len_k_start` has the wrong shape: expected [S], found {found}"
        raise ArgumentError(message, "cu_seq_len_k_start")
    queries = cu_seq_len_k_start.shape[0]
    _expect_numbers("cu_seq_len_k_start", cu_seq_len_k_start, (queries,), cu_seq_len_k_start)
    _expect_numbers("cu_seq_len_k_end", cu_seq_len_k_end, (queries,), cu_seq_len_k_start)
    schedule = empty(cu_seq_len_k_start, (queries, 2), "int32")
    schedule[:, 0] = cu_seq_len_k_start
    schedule[:, 1] = cu_seq_len_k_end
    return schedule


def get_paged_mqa_logits_metadata(context_lens: Any, block_kv: int, num_sms: int, indices: Optional[Any] = None) -> Any:
    """Schedule metadata of ``fp8_paged_mqa_logits``, the keys of each SM: int32 [num_sms + 1, 2].

    ``context_lens`` is int32 [B, next_n] or [B], contiguous. It is read on the device: a CUDA graph of the call may be
    replayed with other lengths. Any ``num_sms`` gives the same logits. For ``indices``, int32 [B], see
    ``fp8_fp4_paged_mqa_logits``.
    """
    if not _is_integer(block_kv) or block_kv not in (16, 32, 64, 128, 256):
        message = f"`block_kv` is wrong: expected 16, 32, 64, 128 or 256 keys of a page, found {_found(block_kv)}"
        raise ArgumentError(message, "block_kv")
    if not _is_integer(num_sms) or not 1 <= num_sms < 1 << 16:
        message = f"`num_sms` is out of range: expected 1 to 65535, found {_found(num_sms)}"
        raise ArgumentError(message, "num_sms")
    if indices is not None:
        _expect_indices(indices, tuple(expect_shape("context_lens", context_lens)), context_lens)
    schedule = empty(context_lens, (num_sms + 1, 2), "int32")
    if _call.is_compiling():
        _call.ops().paged_mqa_logits_metadata(context_lens, schedule)
    else:
        _C.paged_mqa_logits_metadata(context_lens, schedule)
    return schedule


def _expect_indices(indices: Any, rows: Tuple[int, ...], like: Any) -> None:
    """The check of the sequences of query rows: ``rows`` is [B], or [B, next_n]."""
    if len(rows) > 1 and rows[1] != 1:
        message = f"`indices` is for one query in each row: expected `next_n` of 1, found {rows[1]}"
        raise ArgumentError(message, "indices")
    _expect_numbers("indices", indices, rows[:1], like)


def _paged_mqa_logits(
    operands: Tuple[Any, ...], max_context_len: Any, places: Tuple[Any, ...], names: Tuple[str, ...], named: Any
) -> Any:
    """Paged MQA logits of the calling styles of DeepGEMM 2.6 and 2.8, which differ in the eighth place."""
    q, kv_cache, weights, context_lens, block_table, schedule_meta = operands
    query, q_scales = _with_scales("q", q)
    is_new = bool(places) and not _is_flag(places[0])
    if is_new and places[0] is not None and not hasattr(places[0], "shape"):
        expected = "a bool (`clean_logits`) or an int32 array (`indices`) in the eighth place"
        message = f"`indices` has the wrong type: expected {expected}, found {_found(places[0])}"
        raise ArgumentTypeError(message, "indices")
    named = _merged(places, ("indices",) if is_new else names, named)
    clean = _flag("clean_logits", False if named["clean_logits"] is None else named["clean_logits"])
    columns = _count("max_context_len", max_context_len)
    if named["indices"] is not None:
        _expect_indices(named["indices"], tuple(query.shape[:2]), query)
    rows = query.shape[0] * query.shape[1]
    logits = rows_of(query, rows, columns, _logits_dtype(named.get("logits_dtype")))
    paging = context_lens, block_table, schedule_meta
    if _call.is_compiling():
        _call.ops().paged_mqa_logits(query, q_scales, kv_cache, weights, *paging, logits, clean)
    else:
        _C.paged_mqa_logits((query, q_scales), kv_cache, weights, paging, logits, clean)
    return logits


def fp8_fp4_paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    max_context_len: int,
    *places: Any,
    clean_logits: Optional[bool] = None,
    logits_dtype: Any = None,
    indices: Optional[Any] = None,
) -> Any:
    """Paged MQA logits: ``fp8_fp4_mqa_logits`` for a paged KV cache of B sequences with ``next_n`` queries each.

    ============= ====================================== ============= ==========================================
    argument      shape                                  type          layout
    ============= ====================================== ============= ==========================================
    q             [B, next_n, H, D], or (that, None)     e4m3          contiguous
    kv_cache      [pages, block_kv, 1, D + 4]            uint8 or e4m3 each page: elements, then float32 scales
    weights       [B * next_n, H]                        float32       row-major, any pitch
    context_lens  [B, next_n] or [B]                     int32         contiguous
    block_table   [B, any]                               int32         row-major, any pitch
    schedule_meta [parts + 1, 2]                         int32         of ``get_paged_mqa_logits_metadata``
    indices       [B], or None                           int32
    ============= ====================================== ============= ==========================================

    With scales, ``q`` = (codes, scales), all is FP4 as for ``fp8_fp4_mqa_logits``: codes [B, next_n, H, D/2], scales
    [B, next_n, H], and pages of D/2 bytes and an int32 word of scales for each key.

    ``block_kv`` is 16, 32, 64, 128 or 256, ``next_n`` any number. Returns [B * next_n, max_context_len] of
    ``logits_dtype``. Past a query's length there is -inf if ``clean_logits``, else anything.

    ``indices`` is for queries of a sequence that are rows of their own (``next_n`` of 1): rows that follow each other
    with the same index are of one sequence. Each row has its length and its row of the block table all the same, so the
    logits do not depend on it. It is checked and otherwise not needed.

    Arguments behind ``max_context_len`` are given by name, or by place as in DeepGEMM 2.8 (``indices``) or 2.6
    (``clean_logits, logits_dtype, indices``): a bool in the eighth place is ``clean_logits``.
    """
    operands = q, kv_cache, weights, context_lens, block_table, schedule_meta
    names = "clean_logits", "logits_dtype", "indices"
    named = dict(zip(names, (clean_logits, logits_dtype, indices)))
    return _paged_mqa_logits(operands, max_context_len, places, names, named)


def fp8_paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    max_context_len: int,
    *places: Any,
    clean_logits: Optional[bool] = None,
    indices: Optional[Any] = None,
) -> Any:
    """``fp8_fp4_paged_mqa_logits`` with logits of float32."""
    operands = q, kv_cache, weights, context_lens, block_table, schedule_meta
    named = {"clean_logits": clean_logits, "indices": indices}
    return _paged_mqa_logits(operands, max_context_len, places, ("clean_logits", "indices"), named)


def einsum(
    expr: str,
    a: Any,
    b: Any,
    d: Any,
    c: Optional[Any] = None,
    epilogue: Optional[Any] = None,
    use_cublaslt: bool = False,
) -> None:
    """Einsums of bfloat16 (or float16) operands that are batched GEMMs.

    ================ =========== =========== ===========
    ``expr``         a           b           d
    ================ =========== =========== ===========
    bhr,hdr->bhd     [b, h, r]   [h, d, r]   [b, h, d]
    bhd,hdr->bhr     [b, h, d]   [h, d, r]   [b, h, r]
    bmk,bnk->mn      [b, m, k]   [b, n, k]   [m, n]
    ================ =========== =========== ===========

    Last dimensions are contiguous, all other strides are free. ``use_cublaslt`` computes the same with cuBLASLt, where
    it is found, for tensors of a GPU; a ``bool`` in the place of ``epilogue`` means it, as in DeepGEMM 2.6.

    ``epilogue`` is an object of ``deep_gemm.epilogue``, for ``bhr,hdr->bhd`` alone, with a launch for each head. ``d``
    may be a pair ``(d, sfd)`` of e4m3 and its scales, float32 [b, h, d/128].
    """
    if isinstance(epilogue, bool):
        use_cublaslt, epilogue = use_cublaslt or epilogue, None
    fused = None
    if epilogue is not None or isinstance(d, (tuple, list)):
        d, fused = _epilogue.resolve(d, None, epilogue)
    if use_cublaslt:
        if fused is not None:
            raise ArgumentError("`epilogue` is not for `use_cublaslt`: expected None, found an epilogue", "epilogue")
        layouts = {"bhr,hdr->bhd": "nt", "bhd,hdr->bhr": "nn"}
        if expr not in layouts:
            expected = "bhr,hdr->bhd or bhd,hdr->bhr"
            raise ArgumentError(f"`expr` is wrong: expected {expected} with `use_cublaslt`, found {expr}", "expr")
        # The batch comes first.
        by_head = [None if x is None else x.swapaxes(0, 1) for x in (a, d, c)]
        return _C.cublaslt_gemm(layouts[expr], by_head[0], b, by_head[1], by_head[2])
    if _call.is_compiling():
        return _call.ops().einsum(expr, a, b, d, c, *_epilogue.operands(fused))
    return _C.einsum(expr, a, b, d, c, None if fused is None else _epilogue.operands(fused))


def fp8_einsum(
    expr: str,
    a: Tuple[Any, Any],
    b: Tuple[Any, Any],
    d: Any,
    c: Optional[Any] = None,
    recipe: Tuple[int, int, int] = (1, 128, 128),
    epilogue: Optional[Any] = None,
    use_128x4_sfd_layout: bool = False,
) -> None:
    """``bhr,hdr->bhd``, ``bhd,hdr->bhr`` and ``bhd,bhr->hdr`` of FP8 operands with scales: a GEMM for each head.

    ======== ================== =================== =====================================
    argument shape              type                layout
    ======== ================== =================== =====================================
    a[0]     [b, h, r]          e4m3                last dimension contiguous
    a[1]     [b, h, r/128]      float32 or UE8M0    any strides
    b[0]     [h, d, r]          e4m3                last dimension contiguous
    b[1]     [h, d/128, r/128]  float32 or UE8M0    any strides
    c, d     [b, h, d]          bfloat16 or float32 last dimension contiguous
    ======== ================== =================== =====================================

    Shapes are those of the first expression. Only that takes ``c`` or an epilogue, with a launch for each head.
    ``epilogue`` is an object of ``deep_gemm.epilogue``. ``d`` may be a pair ``(d, sfd)`` of e4m3 and its scales,
    float32 [b, h, d/128] of any strides. ``use_128x4_sfd_layout``, scales in blocks of 128x4, is refused.

    The last expression, the gradient of weights, has scales of 128 of the batch for either recipe, [b/128, h, d] and
    [b/128, h, r], and a launch for each head.
    """
    if use_128x4_sfd_layout:
        message = "`use_128x4_sfd_layout` has no kernels: expected False, found True"
        raise ArgumentError(message, "use_128x4_sfd_layout")
    fused = None
    if epilogue is not None or isinstance(d, (tuple, list)):
        d, fused = _epilogue.resolve(d, None, epilogue)
    if _call.is_compiling():
        return _call.ops().fp8_einsum(expr, *a, *b, d, c, recipe, *_epilogue.operands(fused))
    return _C.fp8_einsum(expr, (a, b, recipe, None, None), d, c, None if fused is None else _epilogue.operands(fused))


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
