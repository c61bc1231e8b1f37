"""Grouped GEMMs: m-grouped contiguous and masked, and k-grouped."""

import numpy as np
import pytest

from oxigemm import deep_gemm

from arrays import BF16, calc_diff, dequantized, normals, per_32, per_block, per_token, scales

ALIGNMENT = 128
COUNTS = [3, 0, 130]


def contiguous_rows(counts, alignment=ALIGNMENT):
    """The group of every row, the end of every group, and which rows there are."""
    ids, ends, start = [], [], 0
    for group, count in enumerate(counts):
        start = -(-start // alignment) * alignment
        ids += [-1] * (start - len(ids)) + [group] * count
        start += count
        ends.append(start)
    return np.array(ids, np.int32), np.array(ends, np.int32)


def expected_of(a, b, ids):
    """What every row should be, by its group."""
    exact = np.zeros((a.shape[0], b.shape[1]))
    for group in range(b.shape[0]):
        exact[ids == group] = a[ids == group] @ b[group].T
    return exact


@pytest.mark.parametrize("psum", [False, True])
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_fp8_contiguous(device, psum, layout):
    n, k = 128, 256
    ids, ends = contiguous_rows(COUNTS)
    a, b = per_token(len(ids), k), per_block(len(COUNTS), n, k, seed=1)
    d = np.full((len(ids), n), 7.0, BF16)
    given = b if layout == "nt" else tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in b)
    function = getattr(deep_gemm, f"m_grouped_fp8_gemm_{layout}_contiguous")
    function(a, given, d, ends if psum else ids, use_psum_layout=psum)
    exact = expected_of(dequantized(a), dequantized(b), ids)
    assert calc_diff(d[ids >= 0], exact[ids >= 0]) < 1e-4
    assert (d[ids < 0] == (7.0 if psum else 0.0)).all(), "rows of no group"


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("psum", [False, True])
def test_fp8_contiguous_with_scales_of_32(device, rows, psum):
    n, k = 128, 160
    ids, ends = contiguous_rows(COUNTS)
    a, b = per_32(len(ids), k), per_32(len(COUNTS), n, k, rows=rows, seed=1)
    d = np.full((len(ids), n), 7.0, np.float32)
    given = {"recipe_a": (1, 32), "recipe_b": (rows, 32), "use_psum_layout": psum}
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ends if psum else ids, **given)
    exact = expected_of(dequantized(a, 32), dequantized(b, 32), ids)
    assert calc_diff(d[ids >= 0], exact[ids >= 0]) < 1e-4
    assert (d[ids < 0] == (7.0 if psum else 0.0)).all(), "rows of no group"


@pytest.mark.parametrize("rows, recipe", [(1, (1, 1, 32)), (32, (1, 32, 32))])
def test_fp8_masked_with_scales_of_32(device, rows, recipe):
    groups, m, n, k = 3, 8, 72, 256
    a, b = per_32(groups, m, k), per_32(groups, n, k, rows=rows, seed=1)
    d = np.full((groups, m, n), 7.0, BF16)
    counts = np.array([5, 0, 8], np.int32)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, 4, recipe=recipe)
    exact = dequantized(a, 32) @ dequantized(b, 32).swapaxes(1, 2)
    for group, count in enumerate(counts):
        assert count == 0 or calc_diff(d[group, :count], exact[group, :count]) < 1e-4
        assert (d[group, count:] == 7.0).all()


def test_fp8_contiguous_with_another_alignment(device):
    n, k = 128, 128
    ids, _ = contiguous_rows(COUNTS, 16)
    a, b = per_token(len(ids), k), per_block(len(COUNTS), n, k, seed=1)
    d = np.zeros((len(ids), n), BF16)
    deep_gemm.set_mk_alignment_for_contiguous_layout(16)
    try:
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ids)
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(128)
    assert calc_diff(d, expected_of(dequantized(a), dequantized(b), ids)) < 1e-4


def test_fp8_masked(device):
    groups, m, n, k = 3, 8, 128, 256
    a, b = per_token(groups, m, k), per_block(groups, n, k, seed=1)
    d = np.full((groups, m, n), 7.0, np.float32)
    masked = np.array([5, 0, 8], np.int32)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, masked, 4)
    exact = dequantized(a) @ dequantized(b).swapaxes(1, 2)
    for group, count in enumerate(masked):
        assert count == 0 or calc_diff(d[group, :count], exact[group, :count]) < 1e-4
        assert (d[group, count:] == 7.0).all()


@pytest.mark.parametrize("dtype, name", [(BF16, "bf16"), (np.float16, "fp16")])
@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("psum", [False, True])
def test_half_contiguous(device, dtype, name, layout, psum):
    n, k = 64, 64
    ids, ends = contiguous_rows(COUNTS)
    a, b = normals(len(ids), k).astype(dtype), normals(len(COUNTS), n, k, seed=1).astype(dtype)
    given = b if layout == "nt" else np.ascontiguousarray(b.swapaxes(1, 2))
    d = np.zeros((len(ids), n), np.float32)
    function = getattr(deep_gemm, f"m_grouped_{name}_gemm_{layout}_contiguous")
    function(a, given, d, ends if psum else ids, use_psum_layout=psum)
    assert calc_diff(d, expected_of(a.astype(np.float64), b.astype(np.float64), ids)) < 1e-10


@pytest.mark.parametrize("dtype, name", [(BF16, "bf16"), (np.float16, "fp16")])
def test_half_masked(device, dtype, name):
    groups, m, n, k = 2, 8, 64, 64
    a, b = normals(groups, m, k).astype(dtype), normals(groups, n, k, seed=1).astype(dtype)
    d = np.zeros((groups, m, n), dtype)
    masked = np.array([8, 3], np.int32)
    getattr(deep_gemm, f"m_grouped_{name}_gemm_nt_masked")(a, b, d, masked, 8)
    exact = a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2)
    exact[1, 3:] = 0
    assert calc_diff(d, exact) < 1e-5


@pytest.mark.parametrize("ks", [[128, 256], [256, 0, 128]])
@pytest.mark.parametrize("knows", [True, False])
def test_fp8_k_grouped(device, ks, knows):
    m, n = 64, 48
    parts = [(per_token(m, k, seed=i), per_token(n, k, seed=10 + i)) for i, k in enumerate(ks) if k]
    join = lambda side: (  # noqa: E731
        np.concatenate([part[side][0].reshape(-1) for part in parts]),
        np.concatenate([part[side][1] for part in parts], axis=1),
    )
    old = normals(len(ks), m, n, seed=3)
    d = old.copy()
    ks_cpu = ks if knows else None
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(join(0), join(1), d, ks_cpu, np.array(ks, np.int32), c=d)
    left = iter(parts)
    for group, k in enumerate(ks):
        exact = old[group].astype(np.float64)
        if k:
            a, b = next(left)
            exact = exact + dequantized(a) @ dequantized(b).T
        assert calc_diff(d[group], exact) < 1e-4


@pytest.mark.parametrize("dtype, name", [(BF16, "bf16"), (np.float16, "fp16")])
@pytest.mark.parametrize("ks", [[64, 128], [40, 0, 24]])
def test_half_k_grouped(device, dtype, name, ks):
    m, n = 64, 32
    a, b = normals(sum(ks), m).astype(dtype), normals(sum(ks), n, seed=1).astype(dtype)
    old = normals(len(ks), m, n, seed=2)
    d = old.copy()
    function = getattr(deep_gemm, f"k_grouped_{name}_gemm_tn_contiguous")
    function(a, b, d, ks, np.array(ks, np.int32), c=d)
    ends = np.cumsum(ks)
    for group, (k, end) in enumerate(zip(ks, ends)):
        left, right = a[end - k : end].astype(np.float64), b[end - k : end].astype(np.float64)
        assert calc_diff(d[group], old[group] + left.T @ right) < 1e-10


def contiguous(**changes):
    ids, _ = contiguous_rows(COUNTS)
    arguments = {
        "a": per_token(len(ids), 128),
        "b": per_block(3, 128, 128, seed=1),
        "d": np.zeros((len(ids), 128), BF16),
        "grouped_layout": ids,
        **changes,
    }
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(**arguments)


def masked(**changes):
    arguments = {
        "a": per_token(2, 8, 128),
        "b": per_block(2, 128, 128, seed=1),
        "d": np.zeros((2, 8, 128), BF16),
        "masked_m": np.array([8, 8], np.int32),
        "expected_m": 8,
        **changes,
    }
    deep_gemm.m_grouped_fp8_gemm_nt_masked(**arguments)


def k_grouped(**changes):
    arguments = {
        "a": (per_token(8, 128)[0].reshape(-1), scales(8, 1)),
        "b": (per_token(16, 128)[0].reshape(-1), scales(16, 1)),
        "d": np.zeros((1, 8, 16), np.float32),
        "ks_cpu": [128],
        "grouped_layout": np.array([128], np.int32),
        **changes,
    }
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(**arguments)


WRONG = [
    (contiguous, {"grouped_layout": np.zeros(5, np.int32)}, "grouped_layout", ValueError, "[258]"),
    (contiguous, {"grouped_layout": np.zeros(258, np.float32)}, "grouped_layout", TypeError, "i32"),
    (contiguous, {"grouped_layout": np.zeros(516, np.int32)[::2]}, "grouped_layout", ValueError, "strides"),
    (contiguous, {"use_psum_layout": True}, "grouped_layout", ValueError, "[3]"),
    (contiguous, {"expected_m_for_psum_layout": 4}, "expected_m_for_psum_layout", ValueError, "None"),
    (contiguous, {"recipe": (1, 1, 128)}, "recipe", ValueError, "(1, 128, 128)"),
    (contiguous, {"b": per_block(128, 128)}, "b", ValueError, "3 dimensions"),
    (contiguous, {"d": np.zeros((258, 64), BF16)}, "d", ValueError, "[258, 128]"),
    (masked, {"masked_m": np.array([8], np.int32)}, "masked_m", ValueError, "[2]"),
    (masked, {"expected_m": 0}, "expected_m", ValueError, "1 or more"),
    (masked, {"d": np.zeros((2, 4, 128), BF16)}, "d", ValueError, "8"),
    (masked, {"recipe": (1, 1, 128)}, "recipe", ValueError, "(1, 128, 128)"),
    (k_grouped, {"ks_cpu": [256]}, "ks_cpu", ValueError, "128"),
    (k_grouped, {"ks_cpu": [-1]}, "ks_cpu", ValueError, "0 or more"),
    (k_grouped, {"recipe": (1, 128, 128)}, "recipe", ValueError, "(1, 1, 128)"),
    (k_grouped, {"use_padded_sf_layout": True}, "use_padded_sf_layout", ValueError, "False"),
    (k_grouped, {"grouped_layout": np.array([1, 2], np.int32)}, "grouped_layout", ValueError, "[1]"),
]


@pytest.mark.parametrize("function, changes, argument, kind, words", WRONG)
def test_what_is_wrong_is_named(device, function, changes, argument, kind, words):
    with pytest.raises(kind) as caught:
        function(**changes)
    assert caught.value.argument == argument, str(caught.value)
    assert f"`{argument}`" in str(caught.value) and words in str(caught.value)


def test_what_is_right_passes(device):
    contiguous()
    contiguous(ensure_zero_padding=False, compiled_dims="", disable_ue8m0_cast=True)
    masked(recipe=(1, 128, 128))
    k_grouped(ks_cpu=[])
