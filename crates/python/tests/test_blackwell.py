"""The calls of Blackwell in the simulator, against products of what codes and scales mean.

Scales are powers of two, as its tensor core takes them. ``set_device("sim:sm_100a")`` is all that differs.
"""

import ml_dtypes
import numpy as np
import pytest
from conftest import HAS_GPU
from test_grouped import COUNTS, contiguous_rows, expected_of

import oxigemm
from oxigemm import deep_gemm, fused, nvfp4, quantization
from oxigemm.deep_gemm import utils

from arrays import BF16, E4M3, calc_diff, dequantized, normals


@pytest.fixture(autouse=True)
def blackwell():
    before = oxigemm.get_device()
    oxigemm.set_device("sim:sm_100a")
    yield
    oxigemm.set_device(before)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def powers(*shape, seed=0):
    """Scales that are powers of two."""
    return np.ldexp(np.float32(1), np.random.default_rng([seed, 7, *shape]).integers(-6, 6, shape)).astype(np.float32)


def fp8(*shape, block=(1, 128), seed=0):
    *groups, n, k = shape
    factors = powers(*groups, -(-n // block[0]), -(-k // block[1]), seed=seed)
    return normals(*shape, seed=seed).astype(E4M3), factors


def fp4(*shape, block=32, seed=0):
    """int8 codes, as DeepGEMM has them, with 1x32 (or 1x128) scales."""
    *rows, k = shape
    codes = np.random.default_rng([seed, 3, *shape]).integers(0, 256, (*rows, k // 2)).astype(np.int8)
    return codes, powers(*rows, -(-k // block), seed=seed)


def values(pair, block=(1, 128)):
    """What FP8 or FP4 codes and their scales mean."""
    codes, factors = pair
    if codes.dtype in (np.int8, np.uint8):
        bits = codes.view(np.uint8)
        codes = E2M1[np.stack([bits & 15, bits >> 4], -1)].reshape(*bits.shape[:-1], -1)
    x = codes.astype(np.float64)
    for axis, size in ((-2, block[0]), (-1, block[1])):
        factors = np.repeat(factors, size, axis).take(np.arange(x.shape[axis]), axis)
    return x * factors


def close(found, expected, limit=1e-5):
    assert calc_diff(found, expected) < limit


RECIPES = [
    # the block of A, that of B, how the call says it
    ((1, 128), (128, 128), {}),
    ((1, 128), (128, 128), {"recipe": (1, 128, 128)}),
    ((1, 128), (1, 128), {"recipe": (1, 1, 128)}),
    ((1, 32), (1, 32), {"recipe": (1, 1, 32)}),
    ((1, 32), (32, 32), {"recipe_a": (1, 32), "recipe_b": (32, 32)}),
]


@pytest.mark.parametrize("block_a, block_b, given", RECIPES)
def test_fp8_recipes(block_a, block_b, given):
    # One of few rows and one of many.
    m, out = (3, BF16) if block_b[0] == 1 else (130, np.float32)
    n, k = 144, 160
    a, b = fp8(m, k, block=block_a), fp8(n, k, block=block_b, seed=1)
    exact = values(a, block_a) @ values(b, block_b).T
    d = np.empty((m, n), out)
    deep_gemm.fp8_gemm_nt(a, b, d, **given)
    close(d, exact)
    # Packed scales are those that a checkpoint was transformed to: a row for each of N.
    granularity = [(block_a, m), (block_b, n)]
    packed = [
        (pair[0], deep_gemm.transform_sf_into_required_layout(pair[1], rows, k, block))
        for pair, (block, rows) in zip((a, b), granularity)
    ]
    assert all(sf.dtype == np.int32 and sf.strides[-2] == 4 for _, sf in packed)
    assert packed[1][1].shape == (n, -(-k // (4 * block_b[1])))
    again = np.empty_like(d)
    recipe = {"recipe": (1, 1, block_a[1])}
    deep_gemm.fp8_gemm_nt(*packed, again, disable_ue8m0_cast=True, **recipe)
    assert (again.view(np.uint8) == d.view(np.uint8)).all()


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_fp8_layouts_with_an_addend(layout):
    m, n, k = 32, 144, 256
    a, b = fp8(m, k), fp8(n, k, block=(128, 128), seed=1)
    turned = lambda x: tuple(np.ascontiguousarray(part.T) for part in x)  # noqa: E731
    d = old = normals(m, n, seed=2)
    exact = old + values(a) @ values(b, (128, 128)).T
    given = (turned(a) if layout[0] == "t" else a), (turned(b) if layout[1] == "n" else b)
    getattr(deep_gemm, f"fp8_gemm_{layout}")(*given, d, c=d)
    close(d, exact)


FP4_RECIPES = [
    # granularity of A and B where each is FP4, or None for FP8 of 128
    (fp4, 32, fp4, 32, {}),
    (fp8, 128, fp4, 32, {"recipe_a": (1, 128), "recipe_b": (1, 32)}),
    (fp8, 32, fp4, 32, {"recipe": (1, 1, 32)}),
    (fp4, 32, fp8, 32, {"recipe": (1, 1, 32)}),
]


@pytest.mark.parametrize("make_a, of_a, make_b, of_b, given", FP4_RECIPES)
def test_fp4(make_a, of_a, make_b, of_b, given):
    m, n, k = (132 if of_a == 128 else 5), 144, 256
    make = lambda make, block, rows, seed: (  # noqa: E731
        make(rows, k, block=block, seed=seed) if make is fp4 else make(rows, k, block=(1, block), seed=seed)
    )
    a, b = make(make_a, of_a, m, 0), make(make_b, of_b, n, 1)
    d = np.empty((m, n), BF16)
    function = deep_gemm.fp4_gemm_nt if make_a is make_b else deep_gemm.fp8_fp4_gemm_nt
    function(a, b, d, **given)
    close(d, values(a, (1, of_a)) @ values(b, (1, of_b)).T)


def test_float32_scales_are_cast_unless_that_is_disabled():
    a, b = fp8(4, 128), fp8(128, 128, block=(128, 128), seed=1)
    rounded = a[0], a[1] * np.float32(1.75)
    found, expected = np.empty((4, 128), np.float32), np.empty((4, 128), np.float32)
    deep_gemm.fp8_gemm_nt(rounded, b, found)
    deep_gemm.fp8_gemm_nt(a, b, expected)
    assert (found == expected).all()
    with pytest.raises(ValueError, match="`disable_ue8m0_cast` has no kernels on Blackwell.*found float32 scales"):
        deep_gemm.fp8_gemm_nt(a, b, found, disable_ue8m0_cast=True)
    with pytest.raises(ValueError, match="`disable_ue8m0_cast` has no kernels on Blackwell"):
        deep_gemm.transform_sf_into_required_layout(a[1], 4, 128, (1, 128), disable_ue8m0_cast=True)
    oxigemm.set_device("cpu")
    deep_gemm.fp8_gemm_nt(a, b, found, disable_ue8m0_cast=True)
    assert deep_gemm.get_arch_major() == 9
    oxigemm.set_device("sim:sm_100a")
    if not HAS_GPU:  # where there is one, torch's device counts
        assert deep_gemm.get_arch_major() == 10 and deep_gemm.get_num_sms() == 148


@pytest.mark.parametrize("psum", [False, True])
@pytest.mark.parametrize("kind", ["fp8", "mxfp8", "fp8_fp4", "fp4", "bf16"])
def test_contiguous_groups(kind, psum):
    n, k = 144, 256
    ids, ends = contiguous_rows(COUNTS)
    m, groups = len(ids), len(COUNTS)
    given = {}
    if kind == "bf16":
        a, b = normals(m, k).astype(BF16), normals(groups, n, k, seed=1).astype(BF16)
        left, right = a.astype(np.float64), b.astype(np.float64)
    else:
        block_a, block_b = {"fp8": ((1, 128), (128, 128)), "fp8_fp4": ((1, 128), (1, 32))}.get(kind, ((1, 32),) * 2)
        a = fp4(m, k) if kind == "fp4" else fp8(m, k, block=block_a)
        b = fp4(groups, n, k, seed=1) if "fp4" in kind else fp8(groups, n, k, block=block_b, seed=1)
        left, right = values(a, block_a), values(b, block_b)
        given = {"recipe_a": block_a, "recipe_b": block_b}
    d = np.full((m, n), 7.0, BF16)
    name = {"mxfp8": "fp8"}.get(kind, kind)
    function = getattr(deep_gemm, f"m_grouped_{name}_gemm_nt_contiguous")
    function(a, b, d, ends if psum else ids, use_psum_layout=psum, **given)
    close(d[ids >= 0], expected_of(left, right, ids)[ids >= 0])
    assert (d[ids < 0] == (7.0 if psum else 0.0)).all(), "rows of no group"


@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16"])
def test_masked_groups(kind):
    groups, m, n, k = 3, 8, 144, 256
    counts = np.array([5, 0, 8], np.int32)
    if kind == "bf16":
        a, b = normals(groups, m, k).astype(BF16), normals(groups, n, k, seed=1).astype(BF16)
        left, right = a.astype(np.float64), b.astype(np.float64)
    elif kind == "fp4":
        a, b = fp4(groups, m, k), fp4(groups, n, k, seed=1)
        left, right = values(a, (1, 32)), values(b, (1, 32))
    else:
        a, b = fp8(groups, m, k), fp8(groups, n, k, block=(128, 128), seed=1)
        left, right = values(a), values(b, (128, 128))
    d = np.full((groups, m, n), 7.0, np.float32)
    getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked")(a, b, d, counts, 4)
    exact = left @ right.swapaxes(1, 2)
    for group, count in enumerate(counts):
        assert count == 0 or calc_diff(d[group, :count], exact[group, :count]) < 1e-5
        assert (d[group, count:] == 7.0).all()


KS = [128, 0, 96]


def lists(parts, pad):
    """Operands of groups [M, K_g], one behind the other, with rows of whole 16 bytes."""
    flat = []
    for codes, _ in parts:
        flat.append(np.pad(codes, ((0, 0), (0, -codes.shape[1] % pad))).reshape(-1))
    return np.concatenate(flat), np.concatenate([factors for _, factors in parts], axis=1)


@pytest.mark.parametrize("kind", ["fp8_nt", "mxfp8_nt", "fp8_tn", "fp4_nt", "bf16_tn"])
def test_k_groups(kind):
    m, n = 48, 64
    name, layout = kind.split("_")
    block = 32 if name in ("mxfp8", "fp4") else 128
    given, parts = {"recipe": (1, 1, block)}, None
    old = normals(len(KS), m, n, seed=3)
    if name == "bf16":
        a, b = normals(sum(KS), m).astype(BF16), normals(sum(KS), n, seed=1).astype(BF16)
        given, ends = {}, np.cumsum(KS)
        exact = [a[e - k : e].astype(np.float64).T @ b[e - k : e].astype(np.float64) for k, e in zip(KS, ends)]
    else:
        make = lambda rows, k, seed: (  # noqa: E731
            fp4(rows, k, seed=seed) if name == "fp4" else fp8(rows, k, block=(1, block), seed=seed)
        )
        parts = [(make(m, k, i), make(n, k, 10 + i)) for i, k in enumerate(KS)]
        exact = [values(left, (1, block)) @ values(right, (1, block)).T for left, right in parts]
        if layout == "nt":
            a, b = (lists([part[side] for part in parts], 16) for side in (0, 1))
        else:
            columns = lambda side: tuple(  # noqa: E731
                np.concatenate([np.ascontiguousarray(part[side][i].T) for part in parts]) for i in (0, 1)
            )
            a, b = columns(0), columns(1)
    d = old.copy()
    function = getattr(deep_gemm, f"k_grouped_{name.replace('mx', '')}_gemm_{layout}_contiguous")
    function(a, b, d, KS, np.array(KS, np.int32), c=d, **given)
    for group, product in enumerate(exact):
        assert calc_diff(d[group], old[group] + product) < 1e-10


def test_k_grouped_fp4_has_scales_of_32_by_default():
    m, n, k = 16, 16, 64
    a, b = fp4(m, k), fp4(n, k, seed=1)
    d = np.empty((1, m, n), np.float32)
    flat = [(codes.reshape(-1), factors) for codes, factors in (a, b)]
    deep_gemm.k_grouped_fp4_gemm_nt_contiguous(*flat, d, [k], np.array([k], np.int32))
    close(d[0], values(a, (1, 32)) @ values(b, (1, 32)).T)
    with pytest.raises(ValueError, match="`recipe`.*expected \\(1, 1, 128\\) or \\(1, 1, 32\\)"):
        deep_gemm.k_grouped_fp4_gemm_nt_contiguous(*flat, d, [k], np.array([k], np.int32), recipe=(1, 32, 32))


@pytest.mark.parametrize("expr", ["bhr,hdr->bhd", "bhd,hdr->bhr", "bmk,bnk->mn"])
def test_einsum(expr):
    b, h, r, d = 5, 2, 48, 32
    sizes = {"b": b, "h": h, "r": r, "d": d, "m": 24, "n": 40, "k": 64}
    inputs, output = expr.split("->")
    x, y = (normals(*(sizes[i] for i in part), seed=s).astype(BF16) for s, part in enumerate(inputs.split(",")))
    out = np.empty([sizes[i] for i in output], np.float32)
    deep_gemm.einsum(expr, x, y, out)
    close(out, np.einsum(expr, x.astype(np.float64), y.astype(np.float64)), 1e-10)


@pytest.mark.parametrize("expr", ["bhr,hdr->bhd", "bhd,hdr->bhr", "bhd,bhr->hdr"])
def test_fp8_einsum(expr):
    sizes = {"b": 16, "h": 2, "r": 256, "d": 128}
    inputs, output = expr.split("->")
    first, second = inputs.split(",")
    gradients = expr == "bhd,bhr->hdr"

    def operand(letters, blocks, seed):
        codes = normals(*(sizes[i] for i in letters), seed=seed).astype(E4M3)
        factors = powers(*(-(-sizes[i] // size) for i, size in zip(letters, blocks)), seed=seed)
        wide = factors
        for axis, size in enumerate(blocks):
            wide = np.repeat(wide, size, axis).take(np.arange(codes.shape[axis]), axis)
        return (codes, factors), codes.astype(np.float64) * wide

    (a, exact_a) = operand(first, (128, 1, 1) if gradients else (1, 1, 128), 0)
    (b, exact_b) = operand(second, (128, 1, 1) if gradients else (1, 128, 128), 1)
    d = np.empty([sizes[i] for i in output], BF16)
    deep_gemm.fp8_einsum(expr, a, b, d, recipe=(1, 1, 128) if gradients else (1, 128, 128))
    close(d, np.einsum(expr, exact_a, exact_b))


def test_fused_gate_with_fp8_output_feeds_the_next_product():
    m, n, k = 24, 512, 256
    a, b = fp8(m, k), fp8(n, k, block=(128, 128), seed=1)
    codes, factors = np.empty((m, n // 2), E4M3), np.empty((m, n // 256), np.float32)
    given = {"activation": "silu", "gated": True, "power_of_two": True, "alpha": 2.0**-12}
    fused.fp8_gemm_nt_fused(a, b, codes, d_scales=factors, **given)
    product = values(a) @ values(b, (128, 128)).T * 2.0**-12
    gate, up = product[:, : n // 2], product[:, n // 2 :]
    exact = gate / (1 + np.exp(-gate)) * up
    close(dequantized((codes, factors)), exact, 2e-3)
    down = fp8(144, n // 2, block=(128, 128), seed=2)
    d = np.empty((m, 144), BF16)
    deep_gemm.fp8_gemm_nt((codes, factors), down, d)
    close(d, dequantized((codes, factors)) @ values(down, (128, 128)).T)


def test_prenorm_gemm():
    m, n, k = 13, 24, 320
    a, b = normals(m, k).astype(BF16), normals(n, k, seed=1)
    d, squares = np.empty((m, n), np.float32), np.empty(m, np.float32)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares)
    x = a.astype(np.float64)
    assert calc_diff(d, x @ b.astype(np.float64).T) < 1e-7 and calc_diff(squares, (x * x).sum(1)) < 1e-10


def scale_words(*shape, seed):
    """Four scales in each int32, as exponents, and what they are."""
    exponents = np.random.default_rng([seed, 11, *shape]).integers(121, 133, (*shape, 4)).astype(np.uint8)
    return exponents.view(np.int32)[..., 0], np.ldexp(1.0, exponents.astype(np.int32) - 127)


def fp4_keys(*shape, seed):
    """Codes of 128 elements for each of ``shape``, their words, and what they mean."""
    codes, _ = fp4(*shape, 128, seed=seed)
    words, factors = scale_words(*shape, seed=seed)
    return codes, words, values((codes, factors), (1, 32))


def exact_logits(q, keys, weights):
    return np.einsum("shk,sh->sk", np.maximum(np.einsum("shd,kd->shk", q, keys), 0), weights.astype(np.float64))


def test_fp4_mqa_logits():
    starts, ends = np.array([0, 3, 50, 7, 20], np.int32), np.array([70, 10, 70, 7, 60], np.int32)
    (q, q_words, exact_q), (keys, key_words, exact_keys) = fp4_keys(5, 16, seed=1), fp4_keys(70, 1, seed=2)
    keys, key_words, exact_keys = keys[:, 0], key_words[:, 0], exact_keys[:, 0]
    weights = normals(5, 16, seed=3)
    logits = deep_gemm.fp8_fp4_mqa_logits((q, q_words), (keys, key_words), weights, starts, ends)
    exact, places = exact_logits(exact_q, exact_keys, weights), np.arange(70)
    seen = (places >= starts[:, None]) & (places < ends[:, None])
    assert calc_diff(logits[seen], exact[seen]) < 5e-6 and (logits[~seen] == -np.inf).all()


def test_fp4_paged_mqa_logits():
    page, next_n, pages = 64, 2, 3
    lengths = np.array([[40, 41], [70, 71]], np.int32)
    table = np.array([[2, 0], [0, 1]], np.int32)
    q, q_words, exact_q = fp4_keys(2, next_n, 32, seed=1)
    keys, key_words, exact_keys = fp4_keys(pages, page, seed=2)
    weights = normals(2 * next_n, 32, seed=3)
    cache = np.concatenate([keys.reshape(pages, -1).view(np.uint8), key_words.view(np.uint8)], axis=1)
    meta = deep_gemm.get_paged_mqa_logits_metadata(lengths, page, 148)
    cache = cache.reshape(pages, page, 1, 68)
    logits = deep_gemm.fp8_fp4_paged_mqa_logits((q, q_words), cache, weights, lengths, table, meta, 2 * page, True)
    for sequence, named in enumerate(table):
        rows = slice(sequence * next_n, (sequence + 1) * next_n)
        exact = exact_logits(exact_q[sequence], exact_keys[named].reshape(-1, 128), weights[rows])
        for row, expected, length in zip(logits[rows], exact, lengths[sequence]):
            assert calc_diff(row[:length], expected[:length]) < 5e-6 and (row[length:] == -np.inf).all()


def test_fp8_mqa_logits():
    starts, ends = np.array([0, 3, 50], np.int32), np.array([70, 10, 70], np.int32)
    q, keys, factors = normals(3, 32, 64).astype(E4M3), normals(70, 64, seed=1).astype(E4M3), powers(70)
    weights = normals(3, 32, seed=3)
    logits = deep_gemm.fp8_mqa_logits(q, (keys, factors), weights, starts, ends, clean_logits=False)
    exact, places = (
        exact_logits(q.astype(np.float64), keys * factors[:, None].astype(np.float64), weights),
        np.arange(70),
    )
    seen = (places >= starts[:, None]) & (places < ends[:, None])
    assert calc_diff(logits[seen], exact[seen]) < 5e-6


@pytest.mark.parametrize("m", [3, 130])
def test_nvfp4_of_its_quantizer(m):
    n, k = 144, 256
    x, y = normals(m, k).astype(BF16), normals(n, k, seed=1).astype(BF16)
    a, b = quantization.quantize_nvfp4(x), quantization.quantize_nvfp4(y)
    exact = [values((codes, factors.astype(np.float64)), (1, 16)) * float(scale[0]) for codes, factors, scale in (a, b)]
    d = np.empty((m, n), np.float32)
    nvfp4.gemm_nt(a[:2], b[:2], d, (float(a[2][0]), float(b[2][0])))
    close(d, exact[0] @ exact[1].T, 1e-10)
    old = normals(m, n, seed=4)
    nvfp4.gemm_nt(a[:2], b[:2], d, (1.0, 1.0), c=old)
    close(d, old + exact[0] @ exact[1].T / (float(a[2][0]) * float(b[2][0])), 1e-10)
    bias, alpha = normals(n, seed=5), float(a[2][0]) * float(b[2][0])
    fused.fp8_gemm_nt_fused(a[:2], b[:2], d, alpha=alpha, bias=bias, activation="relu", recipe=(1, 1, 16))
    close(d, np.maximum(exact[0] @ exact[1].T + bias, 0), 1e-10)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 0.25)])
def test_nvfp4_groups(scales):
    groups, m, n, k = 2, 8, 144, 128
    codes = lambda *shape, seed: np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)  # noqa: E731
    factors = lambda *shape, seed: np.abs(normals(*shape, seed=seed)).astype(E4M3)  # noqa: E731
    a = codes(groups, m, k // 2, seed=1), factors(groups, m, k // 16, seed=2)
    b = codes(groups, n, k // 2, seed=3), factors(groups, n, k // 16, seed=4)
    counts = np.array([3, 8], np.int32)
    d = np.full((groups, m, n), 7.0, np.float32)
    nvfp4.m_grouped_gemm_nt(a, b, d, scales, masked_m=counts, expected_m=4)
    exact = values((a[0], a[1].astype(np.float64)), (1, 16)) @ values(
        (b[0], b[1].astype(np.float64)), (1, 16)
    ).swapaxes(1, 2)
    for group, count in enumerate(counts):
        assert calc_diff(d[group, :count], scales[0] * scales[1] * exact[group, :count]) < 1e-10
        assert (d[group, count:] == 7.0).all()


@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_casts_are_those_of_the_cpu(dtype):
    x = normals(20, 256).astype(dtype)

    def casts():
        return [
            *utils.per_token_cast_to_fp8(x, True),
            *utils.per_block_cast_to_fp8(x, True),
            *utils.per_token_cast_to_fp4(x, True),
            *quantization.quantize(x, "1x128"),
            *quantization.quantize_nvfp4(x),
        ]

    on_blackwell = casts()
    oxigemm.set_device("cpu")
    for found, expected in zip(on_blackwell, casts()):
        assert found.tobytes() == expected.tobytes()


def test_hopper_refuses_what_it_lacks_by_name():
    oxigemm.set_device("sim")
    a, b = fp4(4, 128), fp4(128, 128, seed=1)
    d = np.empty((4, 128), BF16)
    with pytest.raises(RuntimeError, match="sm_90a has no FP4"):
        deep_gemm.fp4_gemm_nt(a, b, d)
    wide = a[0].view(np.uint8), np.ones((4, 8), ml_dtypes.float8_e4m3fn)
    with pytest.raises(RuntimeError, match="sm_90a has no FP4"):
        nvfp4.gemm_nt(wide, (b[0].view(np.uint8), np.ones((128, 8), ml_dtypes.float8_e4m3fn)), d, (1.0, 1.0))
