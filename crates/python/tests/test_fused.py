"""Products whose sums are finished before they are stored."""

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


def run(device, *arguments, **named):
    """The function on the device of a test."""
    function = fused.fp8_gemm_nt_fused
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
