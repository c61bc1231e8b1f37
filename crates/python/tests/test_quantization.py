"""Quantization and its fused forms."""

import numpy as np
import pytest

import oxigemm
from oxigemm import quantization

from arrays import BF16, E4M3, E5M2, calc_diff, normals


def run(device, name, *arguments, **named):
    """A function on the device of a test."""
    function = getattr(quantization, name)
    if device in ("torch", "cuda"):
        import torch

        from on_torch import on_torch

        function = on_torch(function, torch.device("cpu" if device == "torch" else "cuda"))
    return function(*arguments, **named)


@pytest.mark.parametrize("granularity", ["1x128", "1x32", "128x128", "128x1", "row", "tensor"])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_there_and_back(device, granularity, dtype, power_of_two):
    x = normals(130, 256)
    codes, scales = run(device, "quantize", x, granularity, power_of_two, np.dtype(dtype).name)
    assert codes.dtype == dtype and codes.shape == x.shape
    if power_of_two:
        assert (np.frexp(scales)[0] == 0.5).all()
    back = run(device, "dequantize", codes, scales, granularity, "float32")
    assert calc_diff(back, x) < (1e-3 if dtype == E4M3 else 4e-3)


def test_mxfp4_there_and_back(device):
    # Numbers of e2m1, of which each block has the largest, times a power of two.
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 6], np.float32)
    x = np.tile(values, (33, 6)) * np.exp2(np.arange(33, dtype=np.float32) - 12)[:, None]
    codes, scales = run(device, "quantize", x, "1x32", True, "uint8")
    assert codes.dtype == np.uint8 and codes.shape == (33, 48) and scales.shape == (33, 3)
    assert codes[0, :4].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert (run(device, "dequantize", codes, scales, "1x32", "float32") == x).all()


def test_mxfp4_with_packed_scales(device):
    x = normals(5, 256)
    expected, scales = run(device, "quantize", x, "1x32", True, "uint8")
    # MN-major: four scales of a row in each, rows that follow each other.
    packed = np.zeros((2, 8), np.int32).T[:5]
    codes, _ = run(device, "quantize", x, "1x32", True, "uint8", scales=packed)
    assert (codes == expected).all()
    exponents = np.ascontiguousarray(packed).view(np.uint8).reshape(5, 8)
    assert (np.exp2(exponents.astype(np.float32) - 127) == scales).all()


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_by_a_scale_that_is_given(device, dtype):
    x, name = normals(130, 256), np.dtype(dtype).name
    codes, scale = run(device, "quantize", x, "tensor", False, name)
    again = run(device, "quantize_by_scale", x, scale, name)
    assert again.dtype == dtype and (again.view(np.uint8) == codes.view(np.uint8)).all()
    small = run(device, "quantize_by_scale", x, np.full((1, 1), 1e-5, np.float32), name)
    assert (
        np.isfinite(small.astype(np.float32)).all()
        and small.astype(np.float32).max() == {E4M3: 448, E5M2: 57344}[dtype]
    )


@pytest.mark.parametrize("granularity", ["1x128", "128x128"])
def test_with_the_transpose(device, granularity):
    x = normals(130, 256)
    codes, scales, transposed, of_transposed = run(device, "quantize_with_transpose", x, granularity)
    for array, pair in [(x, (codes, scales)), (np.ascontiguousarray(x.T), (transposed, of_transposed))]:
        expected = run(device, "quantize", array, granularity)
        assert (pair[0].view(np.uint8) == expected[0].view(np.uint8)).all() and (pair[1] == expected[1]).all()


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_nvfp4_there_and_back(device, dtype):
    x = normals(33, 64).astype(dtype)
    codes, scales, tensor_scale = run(device, "quantize_nvfp4", x)
    assert codes.dtype == np.uint8 and codes.shape == (33, 32) and scales.dtype == E4M3 and scales.shape == (33, 4)
    assert np.isclose(tensor_scale[0], abs(x.astype(np.float64)).max() / 2688, rtol=1e-6)
    back = run(device, "dequantize_nvfp4", codes, scales, tensor_scale, np.dtype(dtype).name)
    assert back.dtype == dtype and calc_diff(back, x) < 1e-2


def test_nvfp4_by_a_scale_that_is_given(device):
    x, given = normals(5, 32), np.array([0.01], np.float32)
    codes, scales, tensor_scale = run(device, "quantize_nvfp4", x, given)
    assert tensor_scale is given and given[0] == np.float32(0.01)
    assert calc_diff(run(device, "dequantize_nvfp4", codes, scales, given, "float32"), x) < 1e-2


def test_swiglu(device):
    x = normals(5, 512).astype(BF16)
    codes, scales = run(device, "swiglu_quantize", x)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    exact = gate / (1 + np.exp(-gate)) * up
    assert calc_diff(codes.astype(np.float64) * np.repeat(scales, 128, 1), exact) < 1e-3


def test_rms_norm(device):
    x, weight = normals(5, 256), normals(256, seed=1)
    codes, scales = run(device, "rms_norm_quantize", x, weight, 1e-6)
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * weight
    assert calc_diff(codes.astype(np.float64) * np.repeat(scales, 128, 1), exact) < 1e-3


def test_gathered_rows(device):
    x = normals(4, 128)
    rows = np.array([3, -1, 0, 9], np.int32)
    codes, scales = np.zeros((4, 128), E4M3), np.full((4, 1), 7.0, np.float32)
    run(device, "gather_quantize", x, rows, codes=codes, scales=scales)
    assert scales[1] == 7.0 == scales[3] and (codes[1].astype(np.float32) == 0).all()
    for i in (0, 2):
        assert calc_diff(codes[i].astype(np.float64) * scales[i], x[rows[i]]) < 1e-3


@pytest.mark.parametrize("given", [E4M3, np.dtype(E4M3), "float8_e4m3fn"])
def test_names_and_types_of_numpy_are_element_types(given):
    assert quantization.quantize(normals(4, 128), dtype=given)[0].dtype == E4M3
    assert quantization.quantize_with_transpose(normals(4, 128), dtype=given)[2].dtype == E4M3


@pytest.mark.parametrize("shape", [(0, 128), (3, 0), (0, 0)])
def test_a_given_scale_of_no_values(device, shape):
    codes = run(device, "quantize_by_scale", np.zeros(shape, np.float32), np.ones((1, 1), np.float32))
    assert codes.shape == shape


#: Outputs whose elements lie on each other.
OVERLAPPING = [
    ("scales", lambda: np.broadcast_to(np.zeros((1, 2), np.float32), (6, 2))),
    ("scales", lambda: np.lib.stride_tricks.as_strided(np.zeros(16, np.float32), (6, 2), (4, 4))),
    ("codes", lambda: np.lib.stride_tricks.as_strided(np.zeros(999, E4M3), (6, 256), (128, 1))),
]


@pytest.mark.parametrize("argument, make", OVERLAPPING)
def test_outputs_have_memory_for_each_element(argument, make):
    given = make()
    if not given.flags.writeable:
        given.flags.writeable = True
    with pytest.raises(ValueError, match="strides") as caught:
        quantization.quantize(normals(6, 256), **{argument: given})
    assert caught.value.argument == argument
    with pytest.raises(ValueError):
        oxigemm.moe.zero_padding_rows(np.zeros(6, np.int32), 1, np.broadcast_to(np.zeros(4, np.float32), (6, 4)))


WRONG = [
    (lambda x: quantization.quantize(x, "2x2"), "granularity", "1x128"),
    (lambda x: quantization.quantize(x[0]), "x", "2 dimensions"),
    (lambda x: quantization.quantize(x, dtype="float16"), "dtype", "e4m3"),
    (lambda x: quantization.quantize(x, "1x128", dtype="uint8"), "dtype", "e4m3"),
    (lambda x: quantization.quantize(x, "1x128", codes=np.zeros((6, 256), np.uint8)), "codes", "e4m3"),
    (lambda x: quantization.quantize(x, dtype=None), "dtype", "found None"),
    (lambda x: quantization.quantize(x, ["1x128"]), "granularity", "list"),
    (lambda x: quantization.quantize(x, power_of_two=1), "power_of_two", "True or False"),
    (lambda x: quantization.quantize(x.tolist()), "x", "found list"),
    (lambda x: quantization.dequantize(x.astype(E4M3), x, dtype="float64"), "dtype", "float32"),
    (lambda x: quantization.dequantize(x.astype(E4M3), x, 5), "granularity", "a string"),
    (lambda x: quantization.rms_norm_quantize(x, x[0], "small"), "epsilon", "a number"),
    (lambda x: quantization.rms_norm_quantize(x, x[0], 1e300), "epsilon", "out of range"),
    (lambda x: quantization.gather_quantize(x, np.zeros(3, np.int64)), "rows", "expected int32, found int64"),
    (lambda x: quantization.quantize(x[:, :5], "1x32", dtype="uint8"), "x", "two columns"),
    (lambda x: quantization.quantize(x, scales=np.zeros((3, 3), np.float32)), "scales", "[6, 2]"),
    (lambda x: quantization.dequantize(x[0], x), "codes", "2 dimensions"),
    (lambda x: quantization.quantize_by_scale(x, x[:2, :1]), "scale", "[1, 1]"),
    (lambda x: quantization.rms_norm_quantize(x, x[0, :5], 1e-6), "weight", "256"),
    (lambda x: quantization.quantize_with_transpose(x, "1x32"), "granularity", "1x128 or 128x128"),
    (lambda x: quantization.quantize_nvfp4(x[:, :5]), "x", "two columns"),
    (lambda x: quantization.quantize_nvfp4(x, x[0, :2]), "tensor_scale", "[1]"),
    (lambda x: quantization.dequantize_nvfp4(x[0], x, x), "codes", "2 dimensions"),
    (lambda x: quantization.gather_quantize(x, np.zeros(3, np.float32)), "rows", "int32"),
]


@pytest.mark.parametrize("function, argument, words", WRONG)
def test_what_is_wrong_is_named(function, argument, words):
    with pytest.raises(oxigemm.OxigemmError) as caught:
        function(normals(6, 256))
    assert caught.value.argument == argument and words in str(caught.value)
