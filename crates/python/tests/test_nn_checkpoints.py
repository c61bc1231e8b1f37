"""Quantized linear layers by the names and types that checkpoints have: each value is that of its formula."""

import pytest
import torch
from test_nn import DEVICE, apart, e8m0, inputs, of_nibbles

import oxigemm
from oxigemm import nn


class Checkpoint(torch.nn.Module):
    """A linear layer as a checkpoint holds it, computed in float64."""

    def __init__(self, tensors, dense):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.to(DEVICE))
        self.dense = dense.double()

    def forward(self, x):
        return x.double() @ self.dense.T.to(x.device)


def codes_of_fp8(n, k):
    return (torch.randn(n, k) * 3).to(torch.float8_e4m3fn)


def checkpoints(n=144, k=288):
    """Layers of all layouts, with their exact values: name, recipe, what it runs as, tensors, values."""
    torch.manual_seed(2)
    codes, packed = codes_of_fp8(n, k), torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    values, fp4 = codes.double(), of_nibbles(packed).double()
    blocks = torch.rand(2, 3) + 0.5
    wide = blocks.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k].double()
    channel = torch.rand(n, 1) + 0.5
    mx = torch.randint(120, 130, (n, k // 32), dtype=torch.uint8)
    by_32 = e8m0(mx).repeat_interleave(32, 1)
    nv = (torch.rand(n, k // 16) * 4 + 0.1).to(torch.float8_e4m3fn)
    by_16, all_of = nv.double().repeat_interleave(16, 1), torch.tensor(0.03)
    far = mx.clone()
    far[:, ::2] -= 40
    e4m3, u8 = {"weight": codes}, {"weight": packed}
    yield "deepseek", "fp8", "fp8 128x128", {**e4m3, "weight_scale_inv": blocks}, values * wide
    yield "bf16 scales", "fp8", "fp8 128x128", {**e4m3, "weight_scale_inv": blocks.bfloat16()}, values * wide.bfloat16()
    yield "channel", "fp8", "fp8 1x128", {**e4m3, "weight_scale": channel}, values * channel
    yield "tensor", "fp8", "fp8 128x128", {**e4m3, "weight_scale": torch.tensor(0.5)}, values * 0.5
    yield "mxfp8", "mxfp8", "fp8 1x32", {**e4m3, "weight_scale": mx}, values * by_32
    yield "mxfp4", "mxfp4", "fp8 128x128", {**u8, "weight_scale": mx}, fp4 * by_32
    packed_mx = {"weight_packed": packed, "weight_scale": mx.view(torch.float8_e8m0fnu)}
    yield "mxfp4 packed", "mxfp4", "fp8 128x128", packed_mx, fp4 * by_32
    yield "mxfp4 far", "mxfp4", "fp8 1x32", {**u8, "weight_scale": far}, fp4 * e8m0(far).repeat_interleave(32, 1)
    modelopt = {**u8, "weight_scale": nv, "weight_scale_2": all_of}
    yield "nvfp4", "nvfp4", "fp8 128x128", modelopt, fp4 * by_16 * all_of.double()
    compressed = {"weight_packed": packed, "weight_scale": nv, "weight_global_scale": 1 / all_of[None]}
    yield "nvfp4 packed", "nvfp4", "fp8 128x128", compressed, fp4 * by_16 * (1 / (1 / all_of)).double()


CHECKPOINTS = {name: rest for name, *rest in checkpoints()}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", list(CHECKPOINTS))
def test_layers_of_checkpoints(name, bias):
    recipe, runs_as, tensors, dense = CHECKPOINTS[name]
    tensors = {**tensors, **({"bias": torch.randn(len(dense))} if bias else {})}
    found = torch.nn.Sequential(Checkpoint(tensors, dense))
    x = inputs(7, dense.shape[1])
    with torch.no_grad():
        expected = found(x) + (tensors["bias"].to(DEVICE) if bias else 0)
        (layer,) = oxigemm.optimize(found).layers
        after = found(x)
    assert (layer.recipe, layer.runs_as) == (recipe, runs_as)
    assert apart(after, expected) < 0.05
    if recipe == "nvfp4":
        assert 1e-3 < layer.weight_error < 0.05 and "rounded from nvfp4" in layer.note
    else:
        # Not one value differs from the exact product of code and scale.
        assert layer.weight_error == 0
        down, across = found[0]._block
        n, k = dense.shape
        scales = found[0].scales.double().cpu().repeat_interleave(down, 0)[:n].repeat_interleave(across, 1)[:, :k]
        assert torch.equal(found[0].codes.double().cpu() * scales, dense)
    assert ("scales of 32" in layer.note) == (name == "mxfp4 far")


@pytest.mark.parametrize("bias", [False, True])
def test_nvfp4_in_bf16_loses_nothing(bias):
    _, _, tensors, dense = CHECKPOINTS["nvfp4"]
    tensors = {**tensors, **({"bias": torch.randn(len(dense))} if bias else {})}
    found = torch.nn.Sequential(Checkpoint(tensors, dense))
    x = inputs(7, dense.shape[1])
    with torch.no_grad():
        expected = found(x) + (tensors["bias"].to(DEVICE) if bias else 0)
        (layer,) = oxigemm.optimize(found, nvfp4="bf16").layers
        after = found(x.bfloat16())
    assert (layer.runs_as, layer.weight_error) == ("bf16", 0)
    assert apart(after, expected) < 3e-3
    values = found[0].codes.double().cpu() * found[0]._alpha
    torch.testing.assert_close(values, dense, rtol=1e-12, atol=0)


def test_a_layer_without_its_scale_is_left_alone():
    codes = torch.randint(0, 256, (32, 32), dtype=torch.uint8)
    scales = torch.ones(32, 4).to(torch.float8_e4m3fn)
    found = torch.nn.Sequential(Checkpoint({"weight": codes, "weight_scale": scales}, torch.zeros(32, 64)))
    report = oxigemm.optimize(found)
    assert report.left_alone == {"0": "it has NVFP4 codes without a scale of all"} and not report.layers


@pytest.mark.parametrize("name", ["deepseek", "channel", "mxfp8", "mxfp4", "mxfp4 far", "nvfp4"])
def test_layers_are_saved_and_loaded(name, tmp_path):
    save = pytest.importorskip("safetensors.torch")
    recipe, runs_as, tensors, dense = CHECKPOINTS[name]
    path = tmp_path / "model.safetensors"
    save.save_file({f"mlp.up.{key}": value for key, value in {**tensors, "bias": torch.ones(len(dense))}.items()}, path)
    layer = nn.QuantizedLinear.from_tensors(save.load_file(path, device=DEVICE), "mlp.up")
    assert (layer.recipe, layer.runs_as) == (recipe, runs_as)
    save.save_file(layer.tensors("again"), path)
    again = nn.QuantizedLinear.from_tensors(save.load_file(path, device=DEVICE), "again")
    x = inputs(5, dense.shape[1])
    with torch.no_grad():
        assert torch.equal(layer(x), again(x)) and again.weight_error == 0
    with pytest.raises(ValueError, match="`tensors` has no layer of this name: expected keys that start with 'x.'"):
        nn.QuantizedLinear.from_tensors(layer.tensors("again"), "x")


def test_a_layer_in_bf16_is_not_saved():
    _, _, tensors, _ = CHECKPOINTS["nvfp4"]
    tensors = {f"up.{key}": value.to(DEVICE) for key, value in tensors.items()}
    layer = nn.QuantizedLinear.from_tensors(tensors, "up", nvfp4="bf16")
    with pytest.raises(oxigemm.OxigemmError, match="the layer runs in BF16: expected one in FP8"):
        layer.tensors("up")
