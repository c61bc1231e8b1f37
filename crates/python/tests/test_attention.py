"""MQA logits, einsums of attention, and the prenorm GEMM of hyper-connections."""

import numpy as np
import pytest

from oxigemm import deep_gemm

from arrays import BF16, E4M3, calc_diff, dequantized, normals, per_block, per_token, scales


def mqa_arguments(s=5, h=32, dim=64, keys=200):
    starts = np.array([0, 3, 100, 7, 50], np.int32)[:s]
    ends = np.array([200, 10, 180, 7, 120], np.int32)[:s]
    return {
        "q": normals(s, h, dim).astype(E4M3),
        "kv": (normals(keys, dim, seed=1).astype(E4M3), scales(keys)),
        "weights": normals(s, h, seed=2),
        "cu_seq_len_k_start": starts,
        "cu_seq_len_k_end": ends,
    }


def mqa_expected(q, keys, key_scales, weights):
    products = np.maximum(np.einsum("shd,kd->shk", q.astype(np.float64), keys.astype(np.float64)), 0)
    return np.einsum("shk,sh->sk", products, weights.astype(np.float64)) * key_scales


@pytest.mark.parametrize("dtype", [None, "bfloat16", np.float32, BF16])
def test_mqa_logits(device, dtype):
    x = mqa_arguments()
    q = x.pop("q")
    logits = deep_gemm.fp8_fp4_mqa_logits((q, None), **x, logits_dtype=dtype)
    exact = mqa_expected(q, *x["kv"], x["weights"])
    keys = np.arange(exact.shape[1])
    seen = (keys >= x["cu_seq_len_k_start"][:, None]) & (keys < x["cu_seq_len_k_end"][:, None])
    assert logits.shape == exact.shape and logits.dtype == (BF16 if dtype in ("bfloat16", BF16) else np.float32)
    assert (logits[~seen].astype(np.float32) == -np.inf).all()
    assert calc_diff(logits[seen], exact[seen]) < 5e-6

    partial = deep_gemm.fp8_mqa_logits(q, **x, clean_logits=False)
    assert calc_diff(partial[seen], exact[seen]) < 5e-6
    compressed = deep_gemm.fp8_mqa_logits(q, **x, clean_logits=False, max_seqlen_k=70)
    assert compressed.shape == (5, 70)
    for row, (start, end) in enumerate(zip(x["cu_seq_len_k_start"], x["cu_seq_len_k_end"])):
        count = min(end - start, 70)
        assert calc_diff(compressed[row, :count], exact[row, start : start + count]) < 5e-6


def paged_arguments(batch=2, next_n=2, h=32, dim=64, page=64):
    lengths = np.array([[99, 100], [7, 8]], np.int32)
    keys, factors = normals(4, page, dim, seed=1).astype(E4M3), scales(4, page)
    data = keys.reshape(4, -1).view(np.uint8)
    cache = np.concatenate([data, factors.view(np.uint8).reshape(4, -1)], axis=1).reshape(4, page, 1, dim + 4)
    x = {
        "q": normals(batch, next_n, h, dim).astype(E4M3),
        "kv_cache": cache,
        "weights": normals(batch * next_n, h, seed=2),
        "context_lens": lengths,
        "block_table": np.array([[2, 0], [1, 3]], np.int32),
    }
    return x, keys, factors


@pytest.mark.parametrize("pair", [True, False])
def test_paged_mqa_logits(device, pair):
    x, keys, factors = paged_arguments()
    meta = deep_gemm.get_paged_mqa_logits_metadata(x["context_lens"], 64, 132)
    assert meta.shape == (133, 2) and meta.dtype == np.int32
    given = {**x, "q": (x["q"], None)} if pair else x
    logits = deep_gemm.fp8_fp4_paged_mqa_logits(**given, schedule_meta=meta, max_context_len=110, clean_logits=True)
    assert logits.shape == (4, 110)
    for sequence, pages in enumerate(x["block_table"]):
        table, factor = keys[pages].reshape(-1, 64), factors[pages].reshape(-1)
        rows = slice(2 * sequence, 2 * sequence + 2)
        exact = mqa_expected(x["q"][sequence], table, factor, x["weights"][rows])
        for query, length in enumerate(x["context_lens"][sequence]):
            row = logits[2 * sequence + query]
            assert calc_diff(row[:length], exact[query, :length]) < 5e-6
            assert (row[length:] == -np.inf).all()
    legacy = deep_gemm.fp8_paged_mqa_logits(**x, schedule_meta=meta, max_context_len=110)
    assert (legacy[0, :99] == logits[0, :99]).all()


def test_skip_head_mid(device):
    m, n, k = 3, 512, 128
    a, b = per_token(m, k), per_block(n, k, seed=1)
    d = np.full((m, n + 2 * 64), 7.0, BF16)
    deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, d, (128, 64, 128))
    exact = (dequantized(a) @ dequantized(b).T).reshape(m, 2, 2, 128)
    found = d.reshape(m, 2, 320)
    assert calc_diff(found[:, :, :128], exact[:, :, 0]) < 1e-4
    assert calc_diff(found[:, :, 192:], exact[:, :, 1]) < 1e-4
    assert (found[:, :, 128:192] == 7.0).all()


@pytest.mark.parametrize("expr", ["bhr,hdr->bhd", "bhd,hdr->bhr"])
@pytest.mark.parametrize("dtype", [BF16, np.float16])
def test_einsum(device, expr, dtype):
    b, h, r, d = 5, 3, 64, 32
    left = normals(b, h, r if expr[2] == "r" else d).astype(dtype)
    wide = normals(h, d, r + 8, seed=1).astype(dtype)
    right = wide[:, :, :r]
    out = np.zeros((b, h, d if expr[2] == "r" else r), dtype)
    deep_gemm.einsum(expr, left, right, out)
    assert calc_diff(out, np.einsum(expr, left.astype(np.float64), right.astype(np.float64))) < 1e-5


@pytest.mark.parametrize("add", [True, False])
def test_einsum_over_the_batch(device, add):
    a, b = normals(3, 16, 32).astype(BF16), normals(3, 64, 32, seed=1).astype(BF16)
    d = normals(16, 64, seed=2)
    exact = np.einsum("bmk,bnk->mn", a.astype(np.float64), b.astype(np.float64)) + (d if add else 0)
    deep_gemm.einsum("bmk,bnk->mn", a, b, d, c=d if add else None)
    assert calc_diff(d, exact) < 1e-10


@pytest.mark.parametrize("add", ["nothing", "other", "same"])
def test_fp8_einsum(device, add):
    b, h, r, d = 5, 2, 256, 128
    left, right = per_token(b, h, r), per_block(h, d, r, seed=1)
    old = normals(b, h, d, seed=2)
    out = old.copy() if add == "same" else np.zeros((b, h, d), np.float32)
    c = {"nothing": None, "other": old, "same": out}[add]
    deep_gemm.fp8_einsum("bhr,hdr->bhd", left, right, out, c=c)
    exact = np.einsum("bhr,hdr->bhd", dequantized_rows(left), dequantized(right)) + (0 if c is None else old)
    assert calc_diff(out, exact) < 1e-4


def test_fp8_einsum_of_the_other_side(device):
    b, h, r, d = 5, 2, 256, 128
    left, right = per_token(b, h, d), per_block(h, d, r, seed=1)
    out = np.zeros((b, h, r), BF16)
    deep_gemm.fp8_einsum("bhd,hdr->bhr", left, right, out)
    exact = np.einsum("bhd,hdr->bhr", dequantized_rows(left), dequantized(right))
    assert calc_diff(out, exact) < 1e-4


def dequantized_rows(pair):
    return pair[0].astype(np.float64) * np.repeat(pair[1], 128, -1)


@pytest.mark.parametrize("splits", [None, 4])
def test_hc_prenorm(device, splits):
    m, n, k = 13, 24, 256
    a, b = normals(m, k).astype(BF16), normals(n, k, seed=1)
    shape = (m, n) if splits is None else (splits, m, n)
    d, squares = np.zeros(shape, np.float32), np.zeros(shape[:-1], np.float32)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, splits)
    if splits:
        d, squares = d.sum(0), squares.sum(0)
    x = a.astype(np.float64)
    # B is rounded to the 11 bits of TF32.
    rounded = ((b.view(np.uint32) + 0x1000) & ~np.uint32(0x1FFF)).view(np.float32)
    assert calc_diff(d, x @ rounded.astype(np.float64).T) < 1e-10
    assert calc_diff(squares, (x * x).sum(1)) < 1e-8


def mqa(**changes):
    deep_gemm.fp8_mqa_logits(**{**mqa_arguments(), **changes})


def paged(**changes):
    x, _, _ = paged_arguments()
    meta = np.zeros((133, 2), np.int32)
    deep_gemm.fp8_fp4_paged_mqa_logits(**{**x, "schedule_meta": meta, "max_context_len": 110, **changes})


def metadata(**changes):
    x = {"context_lens": np.zeros((2, 1), np.int32), "block_kv": 64, "num_sms": 132}
    deep_gemm.get_paged_mqa_logits_metadata(**{**x, **changes})


def skip(**changes):
    x = {"a": per_token(3, 128), "b": per_block(256, 128), "d": np.zeros((3, 320), BF16)}
    deep_gemm.fp8_gemm_nt_skip_head_mid(**{**x, "head_splits": (128, 64, 128), **changes})


def batched(**changes):
    x = {"a": normals(4, 2, 16).astype(BF16), "b": normals(2, 8, 16).astype(BF16), "d": np.zeros((4, 2, 8), BF16)}
    deep_gemm.einsum(**{"expr": "bhr,hdr->bhd", **x, **changes})


def prenorm(**changes):
    x = {"a": normals(4, 64).astype(BF16), "b": normals(8, 64), "d": np.zeros((4, 8), np.float32)}
    deep_gemm.tf32_hc_prenorm_gemm(**{**x, "sqr_sum": np.zeros(4, np.float32), **changes})


def fp8_batched(**changes):
    x = {"a": per_token(4, 2, 128), "b": per_block(2, 128, 128), "d": np.zeros((4, 2, 128), BF16)}
    deep_gemm.fp8_einsum(**{"expr": "bhr,hdr->bhd", **x, **changes})


WRONG = [
    (fp8_batched, {"expr": "bhd,bhr->hdr"}, "expr", "bhr,hdr->bhd"),
    (fp8_batched, {"d": np.zeros((4, 3, 128), BF16)}, "d", "2"),
    (fp8_batched, {"d": np.zeros((4, 128), BF16)}, "d", "3 dimensions"),
    (fp8_batched, {"d": np.zeros((4, 3, 128), BF16), "c": np.zeros((4, 3, 128), BF16)}, "d", "2 heads"),
    (fp8_batched, {"expr": "bhd,hdr->bhr", "c": np.zeros((4, 2, 128), BF16)}, "expr", "bhr,hdr->bhd"),
    (fp8_batched, {"recipe": (1, 1, 128)}, "recipe", "(1, 128, 128)"),
    (fp8_batched, {"b": per_block(2, 128, 256)}, "a", "256"),
    (batched, {"expr": "bmk,bnk->mn", "a": normals(4, 16).astype(BF16)}, "a", "3 dimensions"),
    (mqa, {"q": normals(5, 7, 64).astype(E4M3)}, "q", "heads"),
    (mqa, {"kv": normals(200, 64).astype(E4M3)}, "kv", "a pair"),
    (mqa, {"kv": (normals(200, 64).astype(E4M3), scales(199))}, "kv[1]", "[200]"),
    (mqa, {"kv": (normals(200, 32).astype(E4M3), scales(200))}, "kv", "64"),
    (mqa, {"weights": normals(5, 64)}, "weights", "[5, 32]"),
    (mqa, {"cu_seq_len_k_start": np.zeros(4, np.int32)}, "cu_seq_len_k_start", "[5]"),
    (mqa, {"cu_seq_len_k_end": np.zeros(5, np.int16)}, "cu_seq_len_k_end", "int16"),
    (mqa, {"max_seqlen_k": 64}, "clean_logits", "False"),
    (mqa, {"max_seqlen_k": -1}, "max_seqlen_k", "0 or more"),
    (paged, {"q": (normals(2, 2, 32, 64).astype(E4M3), scales(2))}, "q", "FP4"),
    (paged, {"q": normals(2, 5, 32, 64).astype(E4M3), "weights": normals(10, 32)}, "q", "1 to 4"),
    (paged, {"kv_cache": np.zeros((4, 48, 1, 68), np.uint8)}, "kv_cache", "64"),
    (paged, {"block_table": np.zeros((3, 2), np.int32)}, "block_table", "[2, 2]"),
    (paged, {"schedule_meta": np.zeros((133, 3), np.int32)}, "schedule_meta", "2"),
    (paged, {"indices": np.zeros(2, np.int32)}, "indices", "None"),
    (paged, {"logits_dtype": np.float16}, "logits_dtype", "float32 or bfloat16"),
    (paged, {"max_context_len": -3}, "max_context_len", "0 or more"),
    (metadata, {"context_lens": np.zeros((2, 9), np.int32)}, "context_lens", "1 to 4"),
    (metadata, {"block_kv": 100}, "block_kv", "64"),
    (metadata, {"num_sms": 0}, "num_sms", "1 to 65535"),
    (metadata, {"indices": np.zeros(2, np.int32)}, "indices", "None"),
    (skip, {"d": np.zeros((3, 256), BF16)}, "d", "320"),
    (skip, {"recipe": (1, 1, 128)}, "recipe", "(1, 128, 128)"),
    (batched, {"expr": "ab,bc->ac"}, "expr", "bhr,hdr->bhd"),
    (batched, {"a": normals(4, 16).astype(BF16)}, "a", "3 dimensions"),
    (prenorm, {"b": normals(9, 64)}, "b", "8"),
    (prenorm, {"num_splits": 2}, "d", "[2, M, N]"),
    (prenorm, {"d": np.zeros((2, 4, 8), np.float32)}, "d", "[M, N]"),
    (prenorm, {"sqr_sum": np.zeros(5, np.float32)}, "sqr_sum", "4"),
]


@pytest.mark.parametrize("function, changes, argument, words", WRONG)
def test_what_is_wrong_is_named(device, function, changes, argument, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        function(**changes)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.argument == argument, str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("function", [mqa, paged, metadata, skip, batched, fp8_batched, prenorm])
def test_what_is_right_passes(device, function):
    function()
