"""The calls of vLLM 0.33, SGLang 0.5.23 and transformers 5.17 on Hopper, as docs/engines.md lists them."""

import inspect
import pathlib
import re

import ml_dtypes
import numpy as np
import pytest

from oxigemm import deep_gemm
from oxigemm.deep_gemm import epilogue

from arrays import BF16, E4M3, calc_diff, dequantized, normals, per_block, per_token

E8M0 = ml_dtypes.float8_e8m0fnu
TABLE = pathlib.Path(__file__).parents[3] / "docs" / "engines.md"
#: A call, what it does and the test that makes it: the rows of the tables.
ROWS = re.findall(r"^\| `(\w[\w.]*)\((.*)\)` \| (.*) \| `(test_\w+)` \|$", TABLE.read_text(encoding="utf-8"), re.M)


def test_every_row_of_the_table_names_a_test_and_arguments_that_exist():
    assert len(ROWS) > 40
    tests = {path: path.read_text(encoding="utf-8") for path in pathlib.Path(__file__).parent.glob("test_*.py")}
    for name, arguments, _, test in ROWS:
        assert any(re.search(rf"^def {test}\(", text, re.M) for text in tests.values()), test
        function = deep_gemm
        for part in name.split("."):
            function = getattr(function, part)
        accepted = inspect.signature(function).parameters
        for keyword in re.findall(r"(?:^|[ (])(\w+)=", arguments):
            assert keyword in accepted, f"{name} has no {keyword}"


def test_every_test_of_this_file_is_in_the_table():
    own = {name for name, value in globals().items() if name.startswith("test_") and inspect.isfunction(value)}
    listed = {test for _, _, _, test in ROWS}
    about_the_table = {name for name in own if "_the_table" in name}
    assert own - about_the_table <= listed


@pytest.fixture
def alignment():
    """Sets the alignment, for the time of a test."""
    before = deep_gemm.get_mk_alignment_for_contiguous_layout()
    yield deep_gemm.set_mk_alignment_for_contiguous_layout
    deep_gemm.set_mk_alignment_for_contiguous_layout(before)


def mn_major(sf):
    """The same scales contiguous along rows, in columns of multiples of 16 bytes."""
    *slabs, rows, columns = sf.shape
    memory = np.zeros((*slabs, columns, -(-rows // 4) * 4), sf.dtype)
    view = memory.swapaxes(-1, -2)[..., :rows, :]
    view[...] = sf
    return view


def powers_of_two(pair):
    codes, sf = pair
    return codes, np.exp2(np.round(np.log2(sf))).astype(np.float32)


def exponents(sf):
    """The exponents of powers of two."""
    return (sf.view(np.int32) >> 23).astype(np.uint8)


def packed(sf):
    """Four exponents of a row in an int32, filled up with zeros."""
    *rows, columns = sf.shape
    padded = np.zeros((*rows, -(-columns // 4) * 4), np.uint8)
    padded[..., :columns] = exponents(sf)
    return padded.view(np.int32)


def product(a, b):
    """What D should be: A·Bᵀ of FP8 pairs or of matrices."""
    a, b = (dequantized(x) if isinstance(x, tuple) else x.astype(np.float64) for x in (a, b))
    return np.einsum("...mk,...nk->...mn", a, b)


def expect_product(d, a, b, bound=1e-3):
    assert calc_diff(d, product(a, b)) < bound


# Dense GEMMs.


@pytest.mark.parametrize("disable_ue8m0_cast", [False, True])
def test_vllm_dense(device, disable_ue8m0_cast):
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    d = np.zeros((5, 128), BF16)
    deep_gemm.fp8_gemm_nt((a[0], mn_major(a[1])), b, d, disable_ue8m0_cast=disable_ue8m0_cast)
    expect_product(d, a, b)


def test_vllm_warm_up(device):
    a, b = per_token(8, 256), per_block(128, 256, seed=1)
    d = np.ones((8, 128), BF16)
    deep_gemm.fp8_gemm_nt((a[0][:3], np.zeros_like(a[1])[:3]), b, d[:3], disable_ue8m0_cast=False)
    assert not d[:3].any() and d[3:].all()


def test_sglang_dense(device):
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    d = np.zeros((5, 128), BF16)
    deep_gemm.fp8_gemm_nt((a[0], mn_major(a[1])), b, d)
    expect_product(d, a, b)
    d[:] = 0
    deep_gemm.fp8_gemm_nt(a, b, d, recipe=(1, 128, 128))
    expect_product(d, a, b)


def test_transformers_dense(device):
    x = normals(5, 256).astype(BF16)
    a = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False, gran_k=128)
    b = per_block(576, 256, seed=1)
    d = np.zeros((5, 576), BF16)
    deep_gemm.fp8_fp4_gemm_nt(a, b, d, recipe=None)
    expect_product(d, a, b)


def test_transformers_float16_is_refused(device):
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    with pytest.raises(TypeError) as caught:
        deep_gemm.fp8_fp4_gemm_nt(a, b, np.zeros((5, 128), np.float16), recipe=None)
    assert caught.value.argument == "d"


def test_transformers_experts_with_scales_of_rows(device):
    a, b, ids = per_token(128, 256), per_token(2, 128, 256, seed=1), np.zeros(128, np.int32)
    d = np.zeros((128, 128), BF16)

    def multiply():
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ids, recipe=None)

    if device in ("cpu", "torch"):
        multiply()
        expect_product(d, a, (b[0][0], b[1][0]))
        return
    # Hopper has no kernel for them.
    with pytest.raises(ValueError) as caught:
        multiply()
    assert caught.value.argument == "sfb"


def test_transformers_dense_with_scales_of_rows(device):
    a, b = per_token(5, 256), per_token(128, 256, seed=1)
    d = np.zeros((5, 128), BF16)
    deep_gemm.fp8_fp4_gemm_nt(a, b, d, recipe=None)
    expect_product(d, a, b)


def test_sglang_router_logits(device):
    x, w = normals(5, 256).astype(BF16), normals(16, 256, seed=1).astype(BF16)
    d = np.zeros((5, 16), np.float32)
    deep_gemm.bf16_gemm_nt(x, w, d)
    expect_product(d, x, w, 1e-6)


def test_sglang_batch_invariant(device):
    x, w = normals(5, 256).astype(BF16), normals(64, 256, seed=1).astype(BF16)
    d, alone = np.zeros((5, 64), BF16), np.zeros((1, 64), BF16)
    assert deep_gemm.get_deterministic_algorithms() is False
    deep_gemm.use_deterministic_algorithms(True)
    try:
        assert deep_gemm.get_deterministic_algorithms() is True
        deep_gemm.bf16_gemm_nn(x, w.T, d)
        deep_gemm.bf16_gemm_nn(x[3:4], w.T, alone)
    finally:
        deep_gemm.use_deterministic_algorithms(False)
    expect_product(d, x, w)
    assert (d[3].view(np.uint16) == alone[0].view(np.uint16)).all()
    with pytest.raises(TypeError) as caught:
        deep_gemm.use_deterministic_algorithms(1)
    assert caught.value.argument == "mode"


# UE8M0 scales.


@pytest.mark.parametrize("form", ["packed", "float8_e8m0fnu", "uint8"])
def test_ue8m0_scales_are_exact(device, form):
    a, b = powers_of_two(per_token(5, 640)), powers_of_two(per_block(136, 640, seed=1))
    expected, d = np.zeros((5, 136), BF16), np.zeros((5, 136), BF16)
    deep_gemm.fp8_gemm_nt(a, b, expected)
    convert = {
        "packed": lambda sf: mn_major(packed(sf)),
        "float8_e8m0fnu": lambda sf: exponents(sf).view(E8M0),
        "uint8": exponents,
    }[form]
    for disable_ue8m0_cast in (False, True):
        d[:] = 0
        a_pair, b_pair = (a[0], convert(a[1])), (b[0], convert(b[1]))
        deep_gemm.fp8_gemm_nt(a_pair, b_pair, d, disable_ue8m0_cast=disable_ue8m0_cast)
        assert (d.view(np.uint16) == expected.view(np.uint16)).all()
    deep_gemm.fp8_gemm_nt((a[0], convert(a[1])), (b[0], convert(b[1])), d, recipe=(1, 128, 128))
    with pytest.raises(ValueError) as caught:
        deep_gemm.fp8_gemm_nt((a[0], convert(a[1])[:, :1]), (b[0], convert(b[1])), d, recipe=(1, 128, 128))
    assert caught.value.argument == "sfa"


def test_float32_scales_are_not_rounded(device):
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    exact, rounded = np.zeros((5, 128), np.float32), np.zeros((5, 128), np.float32)
    deep_gemm.fp8_gemm_nt(a, b, exact, disable_ue8m0_cast=False)
    deep_gemm.fp8_gemm_nt(powers_of_two(a), powers_of_two(b), rounded, disable_ue8m0_cast=False)
    assert calc_diff(exact, product(a, b)) < 1e-6 < calc_diff(rounded, product(a, b))


def test_ue8m0_scales_of_groups(device):
    masked_m = np.array([3, 16], np.int32)
    a, b = powers_of_two(per_token(2, 16, 256)), powers_of_two(per_block(2, 128, 256, seed=1))
    expected, d = np.zeros((2, 16, 128), BF16), np.zeros((2, 16, 128), BF16)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, expected, masked_m, 8)
    as_bytes, as_words = (b[0], exponents(b[1])), (a[0], packed(a[1]))
    deep_gemm.fp8_m_grouped_gemm_nt_masked(as_words, as_bytes, d, masked_m, 8)
    assert (d.view(np.uint16) == expected.view(np.uint16)).all() and d.any()


# M-grouped GEMMs.


def contiguous(m=(3, 0, 20), align=16, n=128, k=256):
    """Operands of groups with so many rows, the id of each row, the end of each group, and the rows of each."""
    starts, ends, end = [], [], 0
    for rows in m:
        start = -(-end // align) * align
        starts, end = [*starts, start], start + rows
        ends.append(end)
    rows = -(-end // align) * align
    a, b = per_token(rows, k), per_block(len(m), n, k, seed=1)
    ids = np.full(rows, -1, np.int32)
    for group, (start, stop) in enumerate(zip(starts, ends)):
        ids[start:stop] = group
    return a, b, ids, np.array(ends, np.int32), list(zip(starts, ends))


def expect_groups(d, a, b, ranges):
    for group, (start, end) in enumerate(ranges):
        if end > start:
            of_b = (b[0][group], b[1][group]) if isinstance(b, tuple) else b[group]
            of_a = (a[0][start:end], a[1][start:end]) if isinstance(a, tuple) else a[start:end]
            expect_product(d[start:end], of_a, of_b)


def test_vllm_contiguous(device, alignment):
    alignment(16)
    a, b, ids, _, ranges = contiguous()
    d = np.full((a[0].shape[0], 128), 7, BF16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ids, disable_ue8m0_cast=False)
    expect_groups(d, a, b, ranges)
    assert not d[ids < 0].any()


def test_vllm_contiguous_psum(device, alignment):
    before = deep_gemm.get_mk_alignment_for_contiguous_layout()
    total, groups = 23, 3
    align = min(
        before, deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(expected_m=total, num_groups=groups)
    )
    assert align == 16
    alignment(align)
    a, b, ids, ends, ranges = contiguous(align=align)
    d = np.full((a[0].shape[0], 128), 7, BF16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ends, disable_ue8m0_cast=True, use_psum_layout=True)
    expect_groups(d, a, b, ranges)
    # Padding rows keep their values: zeroing them would be one more launch for every layer.
    assert (d[ids < 0] == 7).all()


def test_ensure_zero_padding(device, alignment):
    alignment(16)
    a, b, ids, ends, ranges = contiguous()
    d = np.full((a[0].shape[0], 128), 7, BF16)
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ids, ensure_zero_padding=False)
    expect_groups(d, a, b, ranges)
    assert not d[ids < 0].any()
    d[:] = 7
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
        a, b, d, ends, use_psum_layout=True, ensure_zero_padding=True, expected_m_for_psum_layout=8
    )
    assert (d[ids < 0] == 7).all()
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ids, ensure_zero_padding=True)
    assert not d[ids < 0].any()
    with pytest.raises(ValueError) as caught:
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ids, expected_m_for_psum_layout=8)
    assert caught.value.argument == "expected_m_for_psum_layout"


def test_sglang_contiguous(device, alignment):
    candidate = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(8)
    assert 0 < candidate <= deep_gemm.get_mk_alignment_for_contiguous_layout()
    alignment(candidate)
    a, b, ids, _, ranges = contiguous(align=candidate)
    d = np.zeros((a[0].shape[0], 128), BF16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((a[0], mn_major(a[1])), b, d, ids)
    expect_groups(d, a, b, ranges)
    d[:] = 0
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ids, recipe_a=(1, 128), recipe_b=(128, 128))
    expect_groups(d, a, b, ranges)


def test_transformers_contiguous(device, alignment):
    alignment(16)
    a, b, ids, _, ranges = contiguous()
    d = np.zeros((a[0].shape[0], 128), BF16)
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, ids, recipe=None, use_psum_layout=False)
    expect_groups(d, a, b, ranges)
    d[:] = 0
    flipped = tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in b)
    deep_gemm.m_grouped_fp8_fp4_gemm_nn_contiguous(a, flipped, d, ids, recipe=None, use_psum_layout=False)
    expect_groups(d, a, b, ranges)


def test_transformers_bf16_contiguous(device, alignment):
    alignment(16)
    fp8, weights, ids, _, ranges = contiguous()
    a, b = fp8[0].astype(BF16), weights[0].astype(BF16)
    d = np.zeros((a.shape[0], 128), BF16)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, ids, use_psum_layout=False)
    expect_groups(d, a, b, ranges)
    d[:] = 0
    flipped = np.ascontiguousarray(b.swapaxes(1, 2))
    deep_gemm.m_grouped_bf16_gemm_nn_contiguous(a, flipped, d, ids, use_psum_layout=False)
    expect_groups(d, a, b, ranges)


def masked():
    a, b = per_token(2, 16, 256), per_block(2, 128, 256, seed=1)
    return a, b, np.array([3, 16], np.int32), [(0, 3), (0, 16)]


def expect_masked(d, a, b, rows):
    for group, (_, end) in enumerate(rows):
        of_a = (a[0][group][:end], a[1][group][:end]) if isinstance(a, tuple) else a[group][:end]
        of_b = (b[0][group], b[1][group]) if isinstance(b, tuple) else b[group]
        expect_product(d[group][:end], of_a, of_b)


def test_vllm_masked(device):
    a, b, masked_m, rows = masked()
    d = np.zeros((2, 16, 128), BF16)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, 8, disable_ue8m0_cast=False)
    expect_masked(d, a, b, rows)
    d[:] = 0
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, masked_m, 8, disable_ue8m0_cast=True)
    expect_masked(d, a, b, rows)


def test_sglang_masked(device):
    a, b, masked_m, rows = masked()
    d = np.zeros((2, 16, 128), BF16)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, masked_m, 8)
    expect_masked(d, a, b, rows)
    d[:] = 0
    deep_gemm.fp8_m_grouped_gemm_nt_masked(
        a, b, d, masked_m=masked_m, expected_m=8, recipe_a=(1, 128), recipe_b=(128, 128)
    )
    expect_masked(d, a, b, rows)
    d[:] = 0
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, masked_m, 8, enable_overlap=False, max_block_n=256, signal=None)
    expect_masked(d, a, b, rows)


def test_sglang_overlap_is_refused(device):
    a, b, masked_m, _ = masked()
    d = np.zeros((2, 16, 128), BF16)
    refused = {"enable_overlap": True, "max_block_n": 160, "signal": np.zeros(4, np.int32)}
    for name, value in refused.items():
        with pytest.raises(ValueError) as caught:
            deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, masked_m, 8, **{name: value})
        assert caught.value.argument == name
    assert not d.any()


def test_sglang_bf16_grouped(device, alignment):
    alignment(16)
    fp8, weights, ids, _, ranges = contiguous()
    a, b = fp8[0].astype(BF16), weights[0].astype(BF16)
    d = np.zeros((a.shape[0], 128), BF16)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, ids)
    expect_groups(d, a, b, ranges)
    fp8, weights, masked_m, rows = masked()
    a, b = fp8[0].astype(BF16), weights[0].astype(BF16)
    d = np.zeros((2, 16, 128), BF16)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, masked_m, 8)
    expect_masked(d, a, b, rows)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, masked_m=masked_m, expected_m=8)


# K-grouped GEMMs.


def k_groups(ks, m=16, n=32, starts=None):
    """bfloat16 operands [K, M] and [K, N] of groups that begin at these K, NaN elsewhere, and what D should be."""
    starts = np.concatenate([[0], np.cumsum(ks)[:-1]]) if starts is None else starts
    extent = max(start + k for start, k in zip(starts, ks))
    a, b = np.full((extent, m), np.nan, BF16), np.full((extent, n), np.nan, BF16)
    exact = np.zeros((len(ks), m, n))
    for group, (start, k) in enumerate(zip(starts, ks)):
        a[start : start + k] = normals(k, m, seed=group).astype(BF16)
        b[start : start + k] = normals(k, n, seed=group + 9).astype(BF16)
        exact[group] = a[start : start + k].astype(np.float64).T @ b[start : start + k].astype(np.float64)
    return a, b, exact


@pytest.mark.parametrize("name", ["ks_cpu", "ks"])
def test_k_grouped(device, name):
    ks = [40, 0, 100]
    a, b, exact = k_groups(ks)
    d = np.ones((3, 16, 32), np.float32)
    layout = np.array(ks, np.int32)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, grouped_layout=layout, c=d, **{name: ks})
    assert calc_diff(d - 1, exact) < 1e-6
    for arguments, wrong in (({}, "grouped_layout"), ({"ks_cpu": ks, "ks": ks, "grouped_layout": layout}, "ks")):
        with pytest.raises((TypeError, ValueError)) as caught:
            deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, **arguments)
        assert caught.value.argument == wrong


def test_k_grouped_by_prefix_sums(device, alignment):
    alignment(64)
    ks, starts, ends = [40, 0, 100], [0, 64, 64], np.array([40, 64, 164], np.int32)
    a, b, exact = k_groups(ks, starts=starts)
    for ks_cpu in (None, [], ks):
        d = np.zeros((3, 16, 32), np.float32)
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks_cpu, ends, use_psum_layout=True)
        assert calc_diff(d, exact) < 1e-6


def test_fp8_k_grouped_by_prefix_sums(device, alignment):
    ks, ends = [256, 128], np.array([256, 384], np.int32)
    parts = [(per_token(16, k, seed=i), per_token(32, k, seed=i + 5)) for i, k in enumerate(ks)]
    join = lambda i: (  # noqa: E731
        np.concatenate([part[i][0].ravel() for part in parts]),
        np.concatenate([part[i][1] for part in parts], 1),
    )
    a, b = join(0), join(1)
    d = np.zeros((2, 16, 32), np.float32)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(
        a, b, d, ks, ends, None, (1, 1, 128), "mn", True, None, use_padded_sf_layout=False
    )
    assert calc_diff(d, np.stack([product(*part) for part in parts])) < 1e-6
    with pytest.raises(ValueError) as caught:
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(a, b, d, ks, ends, use_padded_sf_layout=True)
    assert caught.value.argument == "use_padded_sf_layout"
    alignment(1)
    with pytest.raises(ValueError, match="multiples of 16 along K"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(a, b, d, None, ends, use_psum_layout=True)


# Epilogues.


@pytest.mark.parametrize("alpha", [0.5, 2, np.float32(0.25), np.array([0.5], np.float32)])
def test_alpha(device, alpha):
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    c = normals(5, 128)
    expected = float(np.asarray(alpha).item()) * product(a, b)
    # Arrays become tensors of the GPU there, which an epilogue object keeps as they are.
    forms = [{"epilogue": epilogue.Alpha(alpha)}]
    if device != "cuda" or not isinstance(alpha, np.ndarray):
        forms.append({"alpha": alpha})
    for given in forms:
        d = np.zeros((5, 128), np.float32)
        deep_gemm.fp8_gemm_nt(a, b, d, **given)
        assert calc_diff(d, expected) < 1e-6
        deep_gemm.fp8_gemm_nt(a, b, d, c, **given)
        assert calc_diff(d, expected + c) < 1e-6
        half = [x.astype(BF16) for x in (normals(5, 256), normals(128, 256, seed=1))]
        deep_gemm.bf16_gemm_nt(*half, d, **given)
        assert calc_diff(d, float(np.asarray(alpha).item()) * product(*half)) < 1e-6


def test_epilogues_that_mean_nothing_change_nothing(device):
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    expected, d = np.zeros((5, 128), BF16), np.zeros((5, 128), BF16)
    deep_gemm.fp8_gemm_nt(a, b, expected)
    for given in ({"alpha": 1.0}, {"epilogue": epilogue.Identity()}, {"epilogue": epilogue.Alpha(1)}):
        d[:] = 0
        deep_gemm.fp8_gemm_nt(a, b, d, **given)
        assert (d.view(np.uint16) == expected.view(np.uint16)).all()
        flipped = tuple(np.ascontiguousarray(x.T) for x in b)
        deep_gemm.fp8_gemm_nn(a, flipped, d, **given)
        assert (d.view(np.uint16) == expected.view(np.uint16)).all()


def expect_quantized(d, sfd, expected):
    assert d.dtype == E4M3 and calc_diff(dequantized((d, sfd)), expected) < 2e-3


@pytest.mark.parametrize("form", ["pair", "FP8Quantization", "FP8CastWithClamp"])
def test_fp8_output(device, form):
    a, b = per_token(5, 256), per_block(256, 256, seed=1)
    half = [x.astype(BF16) for x in (normals(5, 256), normals(256, 256, seed=1))]
    for function, x, y in ((deep_gemm.fp8_gemm_nt, a, b), (deep_gemm.bf16_gemm_nt, *half)):
        d, sfd = np.zeros((5, 256), E4M3), np.zeros((5, 2), np.float32)
        if form == "pair":
            function(x, y, (d, sfd), alpha=0.5)
        else:
            function(x, y, d, alpha=0.5, epilogue=getattr(epilogue, form)(sfd))
        expect_quantized(d, sfd, 0.5 * product(x, y))


def test_fp8_output_of_groups(device, alignment):
    alignment(16)
    a, b, ids, _, ranges = contiguous()
    d, sfd = np.zeros((a[0].shape[0], 128), E4M3), np.zeros((a[0].shape[0], 1), np.float32)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ids, epilogue=epilogue.FP8Quantization(sfd))
    for group, (start, end) in enumerate(ranges):
        if end > start:
            expected = product((a[0][start:end], a[1][start:end]), (b[0][group], b[1][group]))
            expect_quantized(d[start:end], sfd[start:end], expected)
    a, b, masked_m, rows = masked()
    d, sfd = np.zeros((2, 16, 128), E4M3), np.zeros((2, 16, 1), np.float32)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, (d, sfd), masked_m, 8)
    for group, (_, end) in enumerate(rows):
        expected = product((a[0][group][:end], a[1][group][:end]), (b[0][group], b[1][group]))
        expect_quantized(d[group][:end], sfd[group][:end], expected)


def test_alpha_of_groups(device, alignment):
    alignment(16)
    a, b, ids, _, ranges = contiguous()
    d = np.full((a[0].shape[0], 128), 7, BF16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ids, epilogue=epilogue.Alpha(0.5))
    expect_groups(2 * d.astype(np.float32), a, b, ranges)
    assert not d[ids < 0].any()


def test_refused_epilogues_are_named():
    a, b = per_token(5, 256), per_block(128, 256, seed=1)
    d, sfd = np.zeros((5, 128), E4M3), np.zeros((5, 1), np.float32)
    count = np.zeros(1, np.int32)
    bf16 = np.zeros((5, 128), BF16)
    half = [x.astype(BF16) for x in (normals(5, 256), normals(128, 256, seed=1))]
    refused = [
        ("clamp_value", d, {"epilogue": epilogue.FP8CastWithClamp(sfd, clamp_value=10.0)}),
        ("clamped_count", d, {"epilogue": epilogue.FP8CastWithClamp(sfd, clamped_count=count)}),
        ("epilogue", bf16, {"epilogue": epilogue.BF16StochasticRounding()}),
        ("epilogue", bf16, {"epilogue": "alpha"}),
        ("epilogue", (d, sfd), {"epilogue": epilogue.FP8Quantization(sfd)}),
        ("alpha", bf16, {"alpha": 2.0, "epilogue": epilogue.Alpha(2.0)}),
        ("alpha", bf16, {"alpha": "2"}),
        ("alpha", bf16, {"alpha": np.ones(2, np.float32)}),
        ("sfd", (d, sfd.astype(np.int32)), {}),
        ("sfd", (d, np.zeros((5, 2), np.float32)), {}),
        ("sfd", d, {"epilogue": epilogue.FP8Quantization(None)}),
        ("d", (d, sfd, sfd), {}),
        ("d", (bf16, sfd), {}),
        ("c", (d, sfd), {"c": bf16}),
        ("compiled_dims", bf16, {"compiled_dims": "xyz"}),
        ("compiled_dims", bf16, {"compiled_dims": None}),
    ]
    for name, output, given in refused:
        for function, x, y in ((deep_gemm.fp8_gemm_nt, a, b), (deep_gemm.bf16_gemm_nt, *half)):
            with pytest.raises((TypeError, ValueError)) as caught:
                function(x, y, output, **given)
            assert caught.value.argument == name, caught.value
    flipped = tuple(np.ascontiguousarray(x.T) for x in b)
    for name, output, given in (("alpha", bf16, {"alpha": 2.0}), ("d", (d, sfd), {})):
        with pytest.raises((TypeError, ValueError)) as caught:
            deep_gemm.fp8_gemm_nn(a, flipped, output, **given)
        assert caught.value.argument == name
    with pytest.raises(ValueError) as caught:
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(
            half[0], half[1], np.zeros((1, 5, 128)), [1], np.ones(1, np.int32), epilogue=epilogue.Alpha(2.0)
        )
    assert caught.value.argument == "epilogue"


# Einsums.


def heads():
    a, b = per_token(5, 2, 256), per_block(2, 128, 256, seed=1)
    of_rows = dequantized((a[0].reshape(10, 256), a[1].reshape(10, 2))).reshape(5, 2, 256)
    return a, b, np.einsum("bhr,hdr->bhd", of_rows, dequantized(b))


def test_vllm_einsum(device):
    a, b, exact = heads()
    d = np.zeros((5, 2, 128), BF16)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d, recipe=(1, 128, 128))
    assert calc_diff(d, exact) < 1e-3
    d[:] = 0
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d, recipe=(1, 128, 128), use_128x4_sfd_layout=False)
    assert calc_diff(d, exact) < 1e-3
    with pytest.raises(ValueError) as caught:
        deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d, use_128x4_sfd_layout=True)
    assert caught.value.argument == "use_128x4_sfd_layout"


def test_sglang_einsum(device):
    a, b, exact = heads()
    d = np.zeros((5, 2, 128), BF16)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d)
    assert calc_diff(d, exact) < 1e-3


def test_fp8_output_of_einsum(device):
    a, b, exact = heads()
    for given in ("pair", "epilogue"):
        d, sfd = np.zeros((5, 2, 128), E4M3), np.zeros((5, 2, 1), np.float32)
        if given == "pair":
            deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, (d, sfd), recipe=(1, 128, 128))
        else:
            deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d, epilogue=epilogue.FP8Quantization(sfd))
        expect_quantized(d, sfd, exact)
    with pytest.raises(ValueError) as caught:
        deep_gemm.fp8_einsum("bhd,hdr->bhr", a, b, (d, sfd))
    assert caught.value.argument == "expr"


def test_alpha_of_einsums(device):
    a, b, exact = heads()
    d = np.zeros((5, 2, 128), np.float32)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, d, epilogue=epilogue.Alpha(0.5))
    assert calc_diff(d, 0.5 * exact) < 1e-6
    x, w = a[0].astype(BF16), b[0].astype(BF16)
    exact = np.einsum("bhr,hdr->bhd", x.astype(np.float64), w.astype(np.float64))
    deep_gemm.einsum("bhr,hdr->bhd", x, w, d, None, epilogue.Alpha(0.5))
    assert calc_diff(d, 0.5 * exact) < 1e-6
    # DeepGEMM 2.6 had `use_cublaslt` in the place of `epilogue`.
    deep_gemm.einsum("bhr,hdr->bhd", x, w, d, None, False)
    assert calc_diff(d, exact) < 1e-6


def test_ue8m0_scales_of_einsum(device):
    a, b, _ = heads()
    a, b = powers_of_two(a), powers_of_two(b)
    expected, d = np.zeros((5, 2, 128), BF16), np.zeros((5, 2, 128), BF16)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", a, b, expected, recipe=(1, 128, 128))
    deep_gemm.fp8_einsum("bhr,hdr->bhd", (a[0], packed(a[1])), (b[0], exponents(b[1])), d, recipe=(1, 128, 128))
    assert (d.view(np.uint16) == expected.view(np.uint16)).all() and d.any()


# The indexer and hyper-connections.


def test_sglang_logits(device):
    q, k = normals(4, 32, 64).astype(E4M3), per_token(48, 64, seed=1)
    k = k[0], np.ascontiguousarray(k[1][:, 0])
    weights, starts, ends = normals(4, 32), np.array([0, 3, 5, 0], np.int32), np.array([48, 40, 6, 1], np.int32)
    full = deep_gemm.fp8_mqa_logits(q, k, weights, starts, ends, clean_logits=False)
    assert full.shape == (4, 48)
    some = deep_gemm.fp8_mqa_logits(q, k, weights, starts, ends, clean_logits=False, max_seqlen_k=48)
    dots = np.einsum("mhd,nd->mhn", q.astype(np.float64), k[0].astype(np.float64))
    exact = (np.maximum(dots, 0) * weights[:, :, None]).sum(1) * k[1]
    for row, (start, end) in enumerate(zip(starts, ends)):
        assert calc_diff(full[row, start:end], exact[row, start:end]) < 1e-3
        assert calc_diff(some[row, : end - start], exact[row, start:end]) < 1e-3


@pytest.mark.parametrize("positional", [False, True])
def test_hyper_connection(device, positional):
    x, fn = normals(5, 256).astype(BF16), normals(24, 256, seed=1)
    d, squares = np.zeros((2, 5, 24), np.float32), np.zeros((2, 5), np.float32)
    if positional:
        deep_gemm.tf32_hc_prenorm_gemm(x, fn, d, squares, 2)
    else:
        deep_gemm.tf32_hc_prenorm_gemm(x, fn, d, squares, num_splits=2)
    assert calc_diff(d.sum(0), product(x, fn)) < 1e-5
    assert calc_diff(squares.sum(0), (x.astype(np.float64) ** 2).sum(1)) < 1e-6


# Settings and layouts.


def test_settings(alignment):
    sms = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(sms // 2)
    assert deep_gemm.get_num_sms() == sms // 2
    deep_gemm.set_num_sms(0)
    before = deep_gemm.get_pdl()
    deep_gemm.set_pdl(True)
    deep_gemm.set_pdl(before)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    deep_gemm.shutdown()
    assert deep_gemm.get_num_sms() == sms


def test_theoretical_alignment(alignment):
    theoretical = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout
    assert theoretical() == theoretical(None, 4) == 128
    rows = {0: 16, 1: 16, 63: 16, 127: 16, 128: 32, 255: 32, 256: 64, 511: 64, 512: 128, 100000: 128}
    for m, expected in rows.items():
        # One argument is the rows of a group, two are all rows and the groups.
        assert theoretical(m) == theoretical(m * 7, 7) == theoretical(expected_m=m * 7, num_groups=7) == expected
        alignment(theoretical(m))
    assert theoretical(7 * 128 + 1, 7) == 32
    for arguments, name in (((-1,), "expected_m"), ((8, 0), "num_groups"), ((8.0,), "expected_m")):
        with pytest.raises((TypeError, ValueError)) as caught:
            theoretical(*arguments)
        assert caught.value.argument == name


@pytest.mark.parametrize("disable_ue8m0_cast", [False, True])
def test_vllm_weight_scales(device, disable_ue8m0_cast):
    sf = per_block(3, 256, 384)[1]
    found = deep_gemm.transform_sf_into_required_layout(
        sf=sf, mn=256, k=384, recipe=(1, 128, 128), num_groups=3, is_sfa=False, disable_ue8m0_cast=disable_ue8m0_cast
    )
    assert (found == sf).all()
    words = packed(powers_of_two(per_token(8, 640))[1])
    assert (deep_gemm.transform_sf_into_required_layout(words, 8, 640, (1, 128)) == words).all()


def test_layouts_of_scales(device):
    sf = powers_of_two(per_token(8, 512))[1]
    assert (deep_gemm.get_mn_major_tma_aligned_tensor(sf) == sf).all()
    words = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    assert (words == deep_gemm.pack_ue8m0_to_int(sf)).all() and (words == packed(sf)).all()
    assert deep_gemm.get_tma_aligned_size(5, 4) == 8 and deep_gemm.align(5, 4) == 8
    ks = [512, 1024]
    of_groups = np.exp2(np.round(normals(12, 16))).astype(np.float32)
    found = deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(of_groups, np.array(ks, np.int32), ks, 128)
    expected = np.concatenate([packed(of_groups[:4].T.copy()).T, packed(of_groups[4:].T.copy()).T])
    assert found.shape == (3, 16) and (found == expected).all()


def test_casts_back(device):
    x = normals(6, 640)
    codes, sf = deep_gemm.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True)
    assert sf.shape == (6, 2)
    assert calc_diff(deep_gemm.cast_back_from_fp8(codes, sf, use_packed_ue8m0=True), x) < 1e-3
    codes, sf = deep_gemm.per_token_cast_to_fp8(x, False)
    assert calc_diff(deep_gemm.cast_back_from_fp8(codes, sf), x) < 1e-3
    for arguments in ({}, {"global_scale": 0.25}):
        codes, sf = deep_gemm.per_token_cast_to_nvfp4(x, **arguments)
        assert codes.shape == (6, 320) and sf.shape == (6, 40) and codes.dtype == np.int8
        assert calc_diff(deep_gemm.cast_back_from_nvfp4(codes, sf, **arguments), x) < 2e-2
        same, words = deep_gemm.per_token_cast_to_nvfp4(x, use_packed_e4m3=True, **arguments)
        assert (same == codes).all() and words.shape == (6, 10)
        assert (deep_gemm.unpack_e4m3_sf_from_int(words) == sf).all()
        assert calc_diff(deep_gemm.cast_back_from_nvfp4(codes, words, **arguments), x) < 2e-2
