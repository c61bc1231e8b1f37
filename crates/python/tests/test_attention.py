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


def ranged(logits, x):
    """The logits of each query's keys, one behind another."""
    ranges = zip(logits, x["cu_seq_len_k_start"], x["cu_seq_len_k_end"])
    return np.concatenate([row[start:end] for row, start, end in ranges]).astype(np.float64)


def compressed(logits, x):
    """The same where the first column is a query's first key."""
    counts = np.maximum(x["cu_seq_len_k_end"] - x["cu_seq_len_k_start"], 0)
    return np.concatenate([row[:count] for row, count in zip(logits, counts)]).astype(np.float64)


def test_logits_by_place_as_in_2_8(device):
    x = mqa_arguments()
    places = (x["q"], None), x["kv"], x["weights"], x["cu_seq_len_k_start"], x["cu_seq_len_k_end"]
    expected = ranged(mqa_expected(x["q"], *x["kv"], x["weights"]), x)
    meta = deep_gemm.get_mqa_logits_metadata(x["cu_seq_len_k_start"], x["cu_seq_len_k_end"], 200, 32)
    assert meta.shape == (5, 2) and meta.dtype == np.int32
    assert (meta[:, 0] == x["cu_seq_len_k_start"]).all() and (meta[:, 1] == x["cu_seq_len_k_end"]).all()
    for more, named in [
        ((200,), {}),
        ((np.int64(200),), {}),
        ((200, None), {}),
        ((200, meta), {}),
        ((200,), {"schedule_meta": meta}),
        ((200,), {"clean_logits": False, "logits_dtype": "float32"}),
        ((), {"max_seqlen_k": 200}),
        ((), {"max_seqlen_k": 200, "clean_logits": False, "schedule_meta": meta}),
        ((False, 200), {}),
        ((False, 200, np.float32, meta), {}),
        ((np.False_,), {"max_seqlen_k": 200}),
    ]:
        logits = deep_gemm.fp8_fp4_mqa_logits(*places, *more, **named)
        assert logits.shape == (5, 200) and logits.dtype == np.float32
        assert calc_diff(compressed(logits, x), expected) < 5e-6
    # Fewer columns than a range has keys, as many as the int says.
    assert deep_gemm.fp8_fp4_mqa_logits(*places, 1).shape == (5, 1)
    assert deep_gemm.fp8_fp4_mqa_logits(*places, 0).shape == (5, 0)


def test_logits_by_place_as_in_2_6(device):
    x = mqa_arguments()
    places = x["q"], x["kv"], x["weights"], x["cu_seq_len_k_start"], x["cu_seq_len_k_end"]
    expected = ranged(mqa_expected(x["q"], *x["kv"], x["weights"]), x)
    hidden = 5 * 200 - len(expected)
    for more, named in [((), {}), ((True,), {}), ((True, 0), {}), ((), {"clean_logits": True, "max_seqlen_k": 0})]:
        logits = deep_gemm.fp8_mqa_logits(*places, *more, **named)
        assert logits.shape == (5, 200) and (logits == -np.inf).sum() == hidden
        assert calc_diff(ranged(logits, x), expected) < 5e-6
    for more, named in [((False,), {}), ((False, 0), {}), ((), {"clean_logits": False})]:
        logits = deep_gemm.fp8_mqa_logits(*places, *more, **named)
        assert logits.shape == (5, 200)
        assert calc_diff(ranged(logits, x), expected) < 5e-6
    for more, named in [((False, 200), {}), ((200,), {}), ((), {"clean_logits": False, "max_seqlen_k": 200})]:
        logits = deep_gemm.fp8_mqa_logits(*places, *more, **named)
        assert calc_diff(compressed(logits, x), expected) < 5e-6
    logits = deep_gemm.fp8_fp4_mqa_logits((x["q"], None), *places[1:], True, 0, BF16)
    assert logits.dtype == BF16 and (logits.astype(np.float32) == -np.inf).sum() == hidden


@pytest.mark.parametrize("h", [8, 16, 24, 32, 48, 64, 96, 128])
def test_heads_of_a_prefill(device, h):
    x = mqa_arguments(s=3, h=h, dim=32, keys=100)
    x["cu_seq_len_k_end"] = np.minimum(x["cu_seq_len_k_end"], 100)
    x["cu_seq_len_k_start"] = np.minimum(x["cu_seq_len_k_start"], 50)
    logits = deep_gemm.fp8_mqa_logits(**x)
    assert calc_diff(ranged(logits, x), ranged(mqa_expected(x["q"], *x["kv"], x["weights"]), x)) < 5e-6


@pytest.mark.parametrize(
    "h, page, next_n, num_sms",
    [(24, 64, 1, 132), (128, 256, 2, 66), (64, 256, 4, 66), (8, 16, 5, 7), (96, 32, 3, 132), (48, 128, 16, 1)],
)
def test_pages_queries_and_heads(device, h, page, next_n, num_sms):
    dim, pages = 32, 3
    keys, factors = normals(pages, page, dim, seed=1).astype(E4M3), scales(pages, page)
    cache = np.concatenate([keys.reshape(pages, -1).view(np.uint8), factors.view(np.uint8)], axis=1)
    lengths = np.array([[1 + (7 * n) % page for n in range(next_n)], [page + 1 + n for n in range(next_n)]], np.int32)
    q, weights = normals(2, next_n, h, dim).astype(E4M3), normals(2 * next_n, h, seed=2)
    table = np.array([[2, 0], [0, 1]], np.int32)
    meta = deep_gemm.get_paged_mqa_logits_metadata(lengths, page, num_sms)
    cache = cache.reshape(pages, page, 1, dim + 4)
    logits = deep_gemm.fp8_fp4_paged_mqa_logits((q, None), cache, weights, lengths, table, meta, 2 * page, True)
    for sequence, named in enumerate(table):
        rows = slice(sequence * next_n, (sequence + 1) * next_n)
        keys_of, factors_of = keys[named].reshape(-1, dim), factors[named].reshape(-1)
        exact = mqa_expected(q[sequence], keys_of, factors_of, weights[rows])
        for row, expected, length in zip(logits[rows], exact, lengths[sequence]):
            assert calc_diff(row[:length], expected[:length]) < 5e-6
            assert (row[length:] == -np.inf).all()


def test_paged_logits_by_place(device):
    x, keys, factors = paged_arguments()
    # Each query is a row of its own, and the rows of a sequence follow each other.
    x["q"] = x["q"].reshape(4, 1, 32, 64)
    x["context_lens"] = x["context_lens"].reshape(4, 1)
    x["block_table"] = np.repeat(x["block_table"], 2, axis=0)
    indices = np.array([0, 0, 1, 1], np.int32)
    meta = deep_gemm.get_paged_mqa_logits_metadata(x["context_lens"], 64, 132, indices)
    assert (meta == deep_gemm.get_paged_mqa_logits_metadata(x["context_lens"], 64, 132, indices=None)).all()
    places = (x["q"], None), x["kv_cache"], x["weights"], x["context_lens"], x["block_table"], meta, 110
    plain = deep_gemm.fp8_fp4_paged_mqa_logits(*places)
    for more, named, dtype in [
        ((indices,), {}, np.float32),
        ((None,), {}, np.float32),
        ((False,), {"indices": indices}, np.float32),
        ((True, BF16, indices), {}, BF16),
        ((), {"clean_logits": True, "logits_dtype": "bfloat16", "indices": indices}, BF16),
    ]:
        logits = deep_gemm.fp8_fp4_paged_mqa_logits(*places, *more, **named)
        assert logits.shape == (4, 110) and logits.dtype == dtype
        for row, length in enumerate(x["context_lens"][:, 0]):
            assert (logits[row, :length] == plain[row, :length].astype(dtype)).all()
            cleaned = (logits[row, length:].astype(np.float32) == -np.inf).all()
            assert cleaned or dtype == np.float32
    for more, named in [((True,), {}), ((True, indices), {}), ((), {"clean_logits": True, "indices": indices})]:
        logits = deep_gemm.fp8_paged_mqa_logits(x["q"], *places[1:], *more, **named)
        assert (logits[0, 99:] == -np.inf).all() and (logits[3, :8] == plain[3, :8]).all()


def test_no_sequence_has_a_key(device):
    x, _, _ = paged_arguments()
    lengths = np.zeros((2, 2), np.int32)
    for num_sms in (1, 66, 132):
        meta = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, num_sms)
        assert (meta == [2, 0]).all()
        x["context_lens"] = lengths
        logits = deep_gemm.fp8_fp4_paged_mqa_logits(**x, schedule_meta=meta, max_context_len=110, clean_logits=True)
        assert (logits == -np.inf).all()


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


def mqa_by_place(*more, **changes):
    x = {**mqa_arguments(), **changes}
    ranges = x["cu_seq_len_k_start"], x["cu_seq_len_k_end"]
    named = {name: value for name, value in changes.items() if name not in mqa_arguments()}
    deep_gemm.fp8_fp4_mqa_logits((x["q"], None), x["kv"], x["weights"], *ranges, *more, **named)


def mqa_sixth(sixth, **changes):
    mqa_by_place(sixth, **changes)


def paged_eighth(eighth, **changes):
    x, _, _ = paged_arguments()
    meta = np.zeros((133, 2), np.int32)
    deep_gemm.fp8_fp4_paged_mqa_logits(*x.values(), meta, 110, eighth, **changes)


def ranges(**changes):
    x = {"cu_seq_len_k_start": np.zeros(3, np.int32), "cu_seq_len_k_end": np.ones(3, np.int32)}
    deep_gemm.get_mqa_logits_metadata(**{**x, "num_kv_tokens": 100, "num_heads": 64, **changes})


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
    (fp8_batched, {"expr": "bhd,bhr->hrd"}, "expr", "bhr,hdr->bhd"),
    (fp8_batched, {"d": np.zeros((4, 3, 128), BF16)}, "d", "2"),
    (fp8_batched, {"d": np.zeros((4, 128), BF16)}, "d", "3 dimensions"),
    (fp8_batched, {"d": np.zeros((4, 3, 128), BF16), "c": np.zeros((4, 3, 128), BF16)}, "d", "2 heads"),
    (fp8_batched, {"expr": "bhd,hdr->bhr", "c": np.zeros((4, 2, 128), BF16)}, "expr", "bhr,hdr->bhd"),
    (fp8_batched, {"recipe": (1, 1, 128)}, "recipe", "(1, 128, 128)"),
    (fp8_batched, {"b": per_block(2, 128, 256)}, "b", "256"),
    (batched, {"expr": "bmk,bnk->mn", "a": normals(4, 16).astype(BF16)}, "a", "3 dimensions"),
    (mqa, {"q": normals(5, 7, 64).astype(E4M3)}, "q", "heads"),
    (mqa, {"kv": normals(200, 64).astype(E4M3)}, "kv", "a pair"),
    (mqa, {"kv": (normals(200, 64).astype(E4M3), scales(199))}, "kv[1]", "[200]"),
    (mqa, {"kv": (normals(200, 32).astype(E4M3), scales(200))}, "kv", "64"),
    (mqa, {"weights": normals(5, 64)}, "weights", "[5, 32]"),
    (mqa, {"cu_seq_len_k_start": np.zeros(4, np.int32)}, "cu_seq_len_k_start", "[5]"),
    (mqa, {"cu_seq_len_k_end": np.zeros(5, np.int16)}, "cu_seq_len_k_end", "int16"),
    (mqa, {"q": normals(5, 136, 64).astype(E4M3), "weights": normals(5, 136)}, "q", "a multiple of 8 heads up to 128"),
    (mqa, {"max_seqlen_k": 64, "clean_logits": True}, "clean_logits", "False"),
    (mqa, {"max_seqlen_k": True}, "max_seqlen_k", "an int"),
    (mqa, {"max_seqlen_k": 3.0}, "max_seqlen_k", "an int"),
    (mqa, {"clean_logits": 1}, "clean_logits", "a bool"),
    (mqa_sixth, {"sixth": 3.0}, "max_seqlen_k", "a bool (`clean_logits`) or an int (`max_seqlen_k`)"),
    (mqa_sixth, {"sixth": None}, "max_seqlen_k", "NoneType"),
    (mqa_sixth, {"sixth": np.zeros(1, np.int32)}, "max_seqlen_k", "in the sixth place"),
    (mqa_sixth, {"sixth": -1}, "max_seqlen_k", "0 or more"),
    (mqa_sixth, {"sixth": 64, "clean_logits": True}, "clean_logits", "False"),
    (mqa_sixth, {"sixth": 64, "max_seqlen_k": 64}, "max_seqlen_k", "twice"),
    (mqa_sixth, {"sixth": True, "clean_logits": True}, "clean_logits", "twice"),
    (mqa_sixth, {"sixth": 64, "schedule_meta": np.zeros((4, 2), np.int32)}, "schedule_meta", "[5, 2]"),
    (mqa_sixth, {"sixth": 64, "schedule_meta": np.zeros((5, 2), np.float32)}, "schedule_meta", "int32"),
    (mqa_sixth, {"sixth": 64, "schedule_meta": 7}, "schedule_meta", "an array"),
    (ranges, {"num_heads": 12}, "num_heads", "a multiple of 8"),
    (ranges, {"num_heads": 64.0}, "num_heads", "an int"),
    (ranges, {"num_kv_tokens": -1}, "num_kv_tokens", "0 or more"),
    (ranges, {"cu_seq_len_k_start": np.zeros((3, 1), np.int32)}, "cu_seq_len_k_start", "[S]"),
    (ranges, {"cu_seq_len_k_end": np.zeros(4, np.int32)}, "cu_seq_len_k_end", "[3]"),
    (ranges, {"cu_seq_len_k_end": np.zeros(3, np.float32)}, "cu_seq_len_k_end", "int32"),
    (paged_eighth, {"eighth": 1}, "indices", "a bool (`clean_logits`) or an int32 array (`indices`)"),
    (paged_eighth, {"eighth": "bfloat16"}, "indices", "str bfloat16"),
    (paged_eighth, {"eighth": np.zeros(2, np.int32)}, "indices", "`next_n` of 1"),
    (paged_eighth, {"eighth": True, "clean_logits": True}, "clean_logits", "twice"),
    (mqa, {"max_seqlen_k": -1}, "max_seqlen_k", "0 or more"),
    (paged, {"q": (normals(2, 2, 32, 64).astype(E4M3), scales(2))}, "q", "found e4m3"),
    (paged, {"q": normals(2, 0, 32, 64).astype(E4M3), "weights": normals(0, 32)}, "q", "1 or more"),
    (paged, {"kv_cache": np.zeros((4, 48, 1, 68), np.uint8)}, "kv_cache", "128 or 256"),
    (paged, {"clean_logits": 0}, "clean_logits", "a bool"),
    (paged, {"block_table": np.zeros((3, 2), np.int32)}, "block_table", "[2, 2]"),
    (paged, {"schedule_meta": np.zeros((133, 3), np.int32)}, "schedule_meta", "2"),
    (paged, {"indices": np.zeros(2, np.int32)}, "indices", "`next_n` of 1"),
    (paged, {"logits_dtype": np.float16}, "logits_dtype", "float32 or bfloat16"),
    (paged, {"max_context_len": -3}, "max_context_len", "0 or more"),
    (metadata, {"context_lens": np.zeros((2, 0), np.int32)}, "context_lens", "1 or more"),
    (metadata, {"block_kv": 100}, "block_kv", "64"),
    (metadata, {"block_kv": 64.0}, "block_kv", "float"),
    (metadata, {"num_sms": 66.0}, "num_sms", "float"),
    (metadata, {"num_sms": 0}, "num_sms", "1 to 65535"),
    (metadata, {"indices": np.zeros(3, np.int32)}, "indices", "[2]"),
    (metadata, {"indices": np.zeros(2, np.int16)}, "indices", "int32"),
    (skip, {"d": np.zeros((3, 256), BF16)}, "d", "320"),
    (skip, {"recipe": (1, 1, 128)}, "sfb", "by `recipe`"),
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


@pytest.mark.parametrize("function", [mqa, mqa_by_place, paged, ranges, metadata, skip, batched, fp8_batched, prenorm])
def test_what_is_right_passes(device, function):
    function()
