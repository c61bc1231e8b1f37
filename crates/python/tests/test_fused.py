"""GEMMs with a fused epilogue."""

import math

import numpy as np
import pytest

import oxigemm
from oxigemm import fused

from arrays import BF16, E4M3, calc_diff, dequantized, normals, per_block, per_token

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def run(device, *arguments, name="fp8_gemm_nt_fused", **named):
    """A function on the device of a test."""
    function = getattr(fused, name)
    if device in ("torch", "cuda"):
        import torch

        from on_torch import on_torch

        function = on_torch(function, torch.device("cpu" if device == "torch" else "cuda"))
    return function(*arguments, **named)


def operands(m=5, n=256, k=256):
    a, b = per_token(m, k), per_block(n, k, seed=1)
    return a, b, dequantized(a) @ dequantized(b).T


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_bias_and_activation(device, activation, dtype):
    a, b, exact = operands()
    bias, c = normals(256, seed=2).astype(dtype), normals(5, 256, seed=3).astype(dtype)
    d = np.zeros((5, 256), dtype)
    run(device, a, b, d, c=c, alpha=0.05, beta=2.0, bias=bias, activation=activation)
    expected = ACTIVATIONS[activation](0.05 * exact + bias.astype(np.float64)) + 2.0 * c.astype(np.float64)
    assert calc_diff(d, expected) < (1e-5 if dtype == BF16 else 1e-6)


def test_c_may_be_d(device):
    a, b, exact = operands()
    d = normals(5, 256, seed=3)
    before = d.astype(np.float64)
    run(device, a, b, d, c=d, beta=-1.0)
    assert calc_diff(d, exact - before) < 1e-6


def test_swiglu(device):
    a, b, exact = operands()
    d = np.zeros((5, 128), np.float32)
    run(device, a, b, d, alpha=0.05, activation="silu", gated=True)
    gate, up = np.split(0.05 * exact, 2, axis=1)
    assert calc_diff(d, ACTIVATIONS["silu"](gate) * up) < 1e-6


@pytest.mark.parametrize("power_of_two", [False, True])
def test_quantized(device, power_of_two):
    a, b, exact = operands()
    codes, scales = np.zeros((5, 256), E4M3), np.zeros((5, 2), np.float32)
    run(device, a, b, codes, d_scales=scales, power_of_two=power_of_two)
    assert calc_diff(codes.astype(np.float64) * np.repeat(scales, 128, 1), exact) < 1e-3
    assert not power_of_two or (np.frexp(scales)[0] == 0.5).all()


def test_skipped_columns(device):
    a, b, exact = operands()
    d = np.full((5, 256 + 64), 7.0, BF16)
    run(device, a, b, d, head_splits=(128, 64, 128))
    assert (d[:, 128:192] == 7.0).all()
    assert calc_diff(np.delete(d, np.s_[128:192], axis=1), exact) < 1e-5


HALVES = [(BF16, "bf16_gemm_nt_fused"), (np.float16, "fp16_gemm_nt_fused")]


def half_operands(dtype, m=5, n=250, k=136):
    a, b = normals(m, k).astype(dtype), normals(n, k, seed=1).astype(dtype)
    return a, b, a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize("dtype, name", HALVES)
@pytest.mark.parametrize("out", ["same", "float32"])
def test_half_with_everything_that_is_elementwise(device, dtype, name, out):
    a, b, exact = half_operands(dtype)
    to = dtype if out == "same" else np.float32
    bias, c = normals(250, seed=2).astype(dtype), normals(5, 250, seed=3).astype(to)
    d = np.zeros((5, 250), to)
    run(device, a, b, d, c=c, alpha=0.05, beta=2.0, bias=bias, activation="gelu", name=name)
    expected = ACTIVATIONS["gelu"](0.05 * exact + bias.astype(np.float64)) + 2.0 * c.astype(np.float64)
    assert calc_diff(d, expected) < (1e-5 if out == "same" else 1e-9)


@pytest.mark.parametrize("dtype, name", HALVES)
def test_half_swiglu(device, dtype, name):
    a, b, exact = half_operands(dtype)
    d = np.zeros((5, 125), dtype)
    run(device, a, b, d, alpha=0.1, activation="silu", gated=True, name=name)
    gate, up = np.split(0.1 * exact, 2, axis=1)
    assert calc_diff(d, ACTIVATIONS["silu"](gate) * up) < 1e-5


@pytest.mark.parametrize("dtype, name", HALVES)
def test_half_quantized_and_skipped(device, dtype, name):
    a, b, exact = half_operands(dtype, n=256)
    codes, scales = np.zeros((5, 256), E4M3), np.zeros((5, 2), np.float32)
    run(device, a, b, codes, d_scales=scales, name=name)
    assert calc_diff(codes.astype(np.float64) * np.repeat(scales, 128, 1), exact) < 1e-3
    d = np.full((5, 256 + 64), 7.0, dtype)
    run(device, a, b, d, head_splits=(128, 64, 128), name=name)
    assert (d[:, 128:192] == 7.0).all()
    assert calc_diff(np.delete(d, np.s_[128:192], axis=1), exact) < 1e-5


GROUPS = "m_grouped_fp8_gemm_nt_fused"


def swiglu(accumulators):
    gate, up = np.split(0.05 * accumulators, 2, axis=-1)
    return ACTIVATIONS["silu"](gate) * up


def test_masked_groups_quantized(device):
    masked, (m, n, k) = np.array([3, 0, 8], np.int32), (8, 256, 256)
    a, b = per_token(3, m, k), per_block(3, n, k, seed=1)
    codes, scales = np.zeros((3, m, 128), E4M3), np.full((3, m, 1), 7.0, np.float32)
    finish = dict(alpha=0.05, activation="silu", gated=True, d_scales=scales)
    run(device, a, b, codes, masked_m=masked, expected_m=4, name=GROUPS, **finish)
    expected = swiglu(dequantized(a) @ dequantized(b).swapaxes(1, 2))
    for group, rows in enumerate(masked):
        found = codes[group, :rows].astype(np.float64) * scales[group, :rows]
        assert calc_diff(found, expected[group, :rows]) < 1e-3
        assert (scales[group, rows:] == 7.0).all(), "rows of no group"


@pytest.mark.parametrize("psum", [False, True])
def test_contiguous_groups_with_a_bias_of_each(device, psum):
    ids = np.array([0] * 3 + [-1] * 125 + [2] * 5, np.int32)
    a, b, bias = per_token(len(ids), 128), per_block(3, 128, 128, seed=1), normals(3, 128, seed=2)
    d = np.full((len(ids), 128), 7.0, BF16)
    told = {"grouped_layout": np.array([3, 3, 133], np.int32), "use_psum_layout": True, "expected_m": 4}
    told = told if psum else {"grouped_layout": ids}
    run(device, a, b, d, **told, bias=bias, activation="relu", name=GROUPS)
    for group in (0, 2):
        rows = ids == group
        exact = dequantized(a)[rows] @ dequantized(b)[group].T + bias[group]
        assert calc_diff(d[rows], np.maximum(exact, 0)) < 1e-5
    assert (d[ids < 0] == 7.0).all(), "rows of no group"


GROUPED_HALVES = [(dtype, f"m_grouped_{name}") for dtype, name in HALVES]


@pytest.mark.parametrize("dtype, name", GROUPED_HALVES)
def test_masked_groups_of_halves_quantized(device, dtype, name):
    masked, (m, n, k) = np.array([3, 0, 8], np.int32), (8, 256, 136)
    a, b = normals(3, m, k).astype(dtype), normals(3, n, k, seed=1).astype(dtype)
    codes, scales = np.zeros((3, m, 128), E4M3), np.full((3, m, 1), 7.0, np.float32)
    finish = dict(alpha=0.05, activation="silu", gated=True, d_scales=scales)
    run(device, a, b, codes, masked_m=masked, expected_m=4, name=name, **finish)
    expected = swiglu(a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2))
    for group, rows in enumerate(masked):
        found = codes[group, :rows].astype(np.float64) * scales[group, :rows]
        assert calc_diff(found, expected[group, :rows]) < 1e-3
        assert (scales[group, rows:] == 7.0).all(), "rows of no group"


@pytest.mark.parametrize("dtype, name", GROUPED_HALVES)
@pytest.mark.parametrize("psum", [False, True])
def test_contiguous_groups_of_halves_with_a_bias_of_each(device, dtype, name, psum):
    ids = np.array([0] * 3 + [-1] * 125 + [2] * 5, np.int32)
    a, b = normals(len(ids), 72).astype(dtype), normals(3, 136, 72, seed=1).astype(dtype)
    bias, d = normals(3, 136, seed=2), np.full((len(ids), 136), 7.0, dtype)
    told = {"grouped_layout": np.array([3, 3, 133], np.int32), "use_psum_layout": True, "expected_m": 4}
    told = told if psum else {"grouped_layout": ids}
    run(device, a, b, d, **told, bias=bias, activation="relu", name=name)
    for group in (0, 2):
        rows = ids == group
        exact = a.astype(np.float64)[rows] @ b.astype(np.float64)[group].T + bias[group]
        assert calc_diff(d[rows], np.maximum(exact, 0)) < 1e-5
    assert (d[ids < 0] == 7.0).all(), "rows of no group"


WRONG = [
    ({"activation": "tanh"}, "activation", "gelu_tanh"),
    ({"bias": normals(255)}, "bias", "256"),
    ({"bias": normals(256).astype(np.float16)}, "bias", "bf16"),
    ({"c": normals(4, 256)}, "c", "[5, 256]"),
    ({"d": np.zeros((5, 256), E4M3)}, "d", "bf16"),
    ({"d_scales": np.zeros((5, 2), np.float32)}, "d", "e4m3"),
    ({"gated": True}, "d", "128"),
    ({"head_splits": (100, 0, 100)}, "head_splits", "256 rows"),
]


@pytest.mark.parametrize("changes, argument, words", WRONG)
def test_what_is_wrong_is_named(changes, argument, words):
    a, b, _ = operands()
    with pytest.raises(oxigemm.OxigemmError) as caught:
        fused.fp8_gemm_nt_fused(**{"a": a, "b": b, "d": np.zeros((5, 256), np.float32), **changes})
    assert caught.value.argument == argument and words in str(caught.value), str(caught.value)


WRONG_HALVES = [
    ({"a": normals(5, 136)}, "a", "bfloat16"),
    ({"b": normals(250, 136).astype(np.float16)}, "b", "bf16"),
    ({"d": np.zeros((5, 250), np.float16)}, "d", "bf16"),
    ({"bias": normals(250).astype(np.float16)}, "bias", "bf16"),
    ({"gated": True}, "d", "125"),
    ({"activation": "tanh"}, "activation", "gelu_tanh"),
]


@pytest.mark.parametrize("changes, argument, words", WRONG_HALVES)
def test_what_is_wrong_of_halves_is_named(changes, argument, words):
    a, b, _ = half_operands(BF16)
    with pytest.raises(oxigemm.OxigemmError) as caught:
        fused.bf16_gemm_nt_fused(**{"a": a, "b": b, "d": np.zeros((5, 250), np.float32), **changes})
    assert caught.value.argument == argument and words in str(caught.value), str(caught.value)


IDS = np.zeros(5, np.int32)
WRONG_GROUPS = [
    ({}, "grouped_layout", "neither"),
    ({"grouped_layout": IDS, "masked_m": IDS[:3]}, "grouped_layout", "more"),
    ({"masked_m": IDS[:3], "use_psum_layout": True}, "grouped_layout", "more"),
    ({"grouped_layout": IDS, "expected_m": 4}, "expected_m", "use_psum_layout"),
    ({"grouped_layout": IDS[:3], "use_psum_layout": True, "expected_m": 0}, "expected_m", "1 or more"),
    ({"grouped_layout": IDS[:4]}, "grouped_layout", "5"),
    ({"grouped_layout": IDS, "bias": normals(2, 128)}, "bias", "[3, 128]"),
]


@pytest.mark.parametrize("changes, argument, words", WRONG_GROUPS)
def test_what_is_wrong_of_groups_is_named(changes, argument, words):
    a, b, d = per_token(5, 128), per_block(3, 128, 128, seed=1), np.zeros((5, 128), np.float32)
    with pytest.raises(oxigemm.OxigemmError) as caught:
        fused.m_grouped_fp8_gemm_nt_fused(a, b, d, **changes)
    assert caught.value.argument == argument and words in str(caught.value), str(caught.value)


WRONG_GROUPED_HALVES = [
    ({}, "grouped_layout", "neither"),
    ({"a": normals(5, 72), "grouped_layout": IDS}, "a", "bfloat16"),
    ({"grouped_layout": IDS[:4]}, "grouped_layout", "5"),
    ({"grouped_layout": IDS, "bias": normals(2, 128)}, "bias", "[3, 128]"),
    ({"grouped_layout": IDS, "gated": True}, "d", "64"),
]


@pytest.mark.parametrize("changes, argument, words", WRONG_GROUPED_HALVES)
def test_what_is_wrong_of_groups_of_halves_is_named(changes, argument, words):
    a, b = normals(5, 72).astype(BF16), normals(3, 128, 72, seed=1).astype(BF16)
    with pytest.raises(oxigemm.OxigemmError) as caught:
        fused.m_grouped_bf16_gemm_nt_fused(**{"a": a, "b": b, "d": np.zeros((5, 128), np.float32), **changes})
    assert caught.value.argument == argument and words in str(caught.value), str(caught.value)


FORMATS = {"fp8": (128, 1), "mxfp8": (32, 1), "mxfp4": (32, 2), "nvfp4": (16, 2)}
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def on_each_device(call):
    """What a call gives on the CPU and on a simulated Blackwell GPU."""
    found = []
    for device in ("cpu", "sim:sm_100a"):
        oxigemm.set_device(device)
        try:
            found.append(call())
        finally:
            oxigemm.set_device("cpu")
    return found


@pytest.mark.parametrize("d_format", FORMATS)
def test_scales_of_bytes(d_format):
    width, per_byte = FORMATS[d_format]
    m, n, k = 5, 160, 64
    # Exact in float32, so that every device quantizes the same numbers.
    integers = np.random.default_rng(1).integers
    a, b = integers(-8, 9, (m, k)).astype(np.float32), integers(-8, 9, (n, k)).astype(np.float32)
    blocks = -(-n // width)

    def call():
        d = np.zeros((m, n // per_byte), E4M3 if per_byte == 1 else np.uint8)
        d_scales = np.full((m, -(-blocks // 4)), -1, np.int32)
        named = dict(alpha=0.5, d_scales=d_scales, d_format=d_format, tensor_scale=0.25)
        fused.bf16_gemm_nt_fused(a.astype(BF16), b.astype(BF16), d, **named)
        return d, d_scales

    (d, d_scales), (simulated, simulated_scales) = on_each_device(call)
    assert d.tobytes() == simulated.tobytes() and d_scales.tobytes() == simulated_scales.tobytes()
    scale_bytes = d_scales.view(np.uint8)
    assert (scale_bytes[:, blocks:] == 0).all()
    scale_bytes = np.ascontiguousarray(scale_bytes[:, :blocks])
    if d_format == "nvfp4":
        scales = scale_bytes.view(E4M3).astype(np.float64) * 0.25
    else:
        scales = 2.0 ** (scale_bytes.astype(np.float64) - 127)
    if per_byte == 2:
        codes = E2M1_VALUES[np.stack([d & 15, d >> 4], axis=-1).reshape(m, n)]
    else:
        codes = d.astype(np.float64)
    found = codes * np.repeat(scales, width, axis=1)[:, :n]
    assert calc_diff(found, 0.5 * a.astype(np.float64) @ b.T) < (1e-3 if per_byte == 1 else 2e-2)


def test_formats_that_are_refused():
    a, b = np.zeros((4, 64), BF16), np.zeros((64, 64), BF16)
    d, d_scales = np.zeros((4, 64), E4M3), np.zeros((4, 1), np.int32)
    with pytest.raises(oxigemm.OxigemmError, match="`d_format` is unknown: expected fp8, mxfp8, mxfp4 or nvfp4"):
        fused.bf16_gemm_nt_fused(a, b, d, d_scales=d_scales, d_format="mxfp6")
    with pytest.raises(oxigemm.OxigemmError, match="`d_scales` is missing"):
        fused.bf16_gemm_nt_fused(a, b, d, d_format="mxfp8")
    oxigemm.set_device("sim")
    try:
        with pytest.raises(oxigemm.OxigemmError, match="f32 scales of 1x128, as kernels write on sm_90a"):
            fused.bf16_gemm_nt_fused(a, b, d, d_scales=d_scales, d_format="mxfp8")
    finally:
        oxigemm.set_device("cpu")
