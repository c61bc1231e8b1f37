"""Quantized layers of torch: on the CPU with the reference, and on a Hopper GPU where there is one.

Without torch nothing of this file is run: see ``conftest.py``.
"""

import copy

import pytest
import torch
from conftest import HAS_GPU

import oxigemm
from oxigemm import nn, quantization

DEVICE = "cuda" if HAS_GPU else "cpu"
on_the_cpu = pytest.mark.skipif(HAS_GPU, reason="tensors of a GPU are not computed in the simulator")
on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="there is no Hopper GPU")

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.fixture
def blackwell():
    oxigemm.set_device("sim:sm_100a")
    yield
    oxigemm.set_device("cpu")


class Mlp(torch.nn.Module):
    """A block with a head, a bias, a layer that is used twice and one that does not fit."""

    def __init__(self, hidden=256, inner=384):
        super().__init__()
        self.up = torch.nn.Linear(hidden, inner, bias=True)
        self.down = torch.nn.Linear(inner, hidden, bias=False)
        self.again = self.down
        self.odd = torch.nn.Linear(hidden, 24)
        self.tail = torch.nn.Linear(24 + 1, hidden)
        self.lm_head = torch.nn.Linear(hidden, 32, bias=False)

    def forward(self, x):
        h = self.down(torch.relu(self.up(x))) + self.again(torch.relu(self.up(x)))
        odd = self.odd(h)
        h = h + self.tail(torch.cat([odd, odd[..., :1]], -1))
        return self.lm_head(h)


def model(seed=0, dtype=torch.bfloat16):
    torch.manual_seed(seed)
    return Mlp().to(DEVICE, dtype).eval()


def inputs(*shape, dtype=torch.bfloat16, seed=1):
    torch.manual_seed(seed)
    return torch.randn(*shape).to(DEVICE, dtype)


def apart(found, exact):
    found, exact = found.double(), exact.double()
    return float((found - exact).norm() / exact.norm())


def state_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same_state(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name].cpu(), tensor.cpu()), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("recipe", [None, "fp8", "mxfp8", "mxfp4", "nvfp4"])
def test_layers_are_replaced_and_come_back(recipe, dtype):
    found = model(dtype=dtype)
    x = inputs(3, 5, 256, dtype=dtype)
    with torch.no_grad():
        before, state = found(x), state_of(found)
        objects = dict(found.named_modules())
        report = oxigemm.optimize(found, recipe=recipe, sample=x)
        after = found(x)
    assert after.dtype == dtype and after.shape == before.shape
    limit = 0.06 if recipe in (None, "fp8", "mxfp8") else 0.3
    assert 1e-4 < apart(after, before) < limit
    assert [layer.name for layer in report.layers] == ["up", "down", "odd"]
    assert found.down is found.again and isinstance(found.down, nn.QuantizedLinear)
    assert report.left_alone["lm_head"] == "skipped by 'lm_head'"
    assert "K must be a multiple of 16" in report.left_alone["tail"]
    for layer in report.layers:
        assert 0 < layer.weight_error < limit and 0 < layer.output_error < limit
        assert layer.recipe == (recipe or "fp8")
    if dtype != torch.float32:
        assert report.bytes_after < 0.6 * report.bytes_before
    same_state(found.state_dict(), state)
    assert nn.restore(found) == 3
    assert dict(found.named_modules()) == objects and type(found.up) is torch.nn.Linear
    same_state(found.state_dict(), state)
    with torch.no_grad():
        assert torch.equal(found(x), before) and found.up.weight.device.type == torch.device(DEVICE).type


def test_the_report_is_a_table():
    report = oxigemm.optimize(model(), sample=inputs(2, 256))
    lines = str(report).splitlines()
    assert lines[0].split()[:3] == ["layer", "shape", "recipe"]
    assert lines[1].split()[:5] == ["up", "384x256", "fp8", "fp8", "128x128"]
    assert lines[4].startswith("3 layers: ") and lines[5] == "left alone:"
    assert "lm_head: skipped by 'lm_head'" in lines[6] + lines[7]
    assert report.lossy == ["up", "down", "odd"]


def test_keep_by_reference_moves_nothing():
    found = model()
    weight = found.up.weight
    oxigemm.optimize(found, keep="reference")
    assert found.up.original.weight is weight and weight.device.type == DEVICE
    nn.restore(found)
    assert found.up.weight is weight


def test_tied_weights_stay_where_they_are():
    found = model()
    found.embedding = torch.nn.Embedding(384, 256, device=DEVICE, dtype=torch.bfloat16)
    found.up.weight = found.embedding.weight
    oxigemm.optimize(found)
    assert found.embedding.weight.device.type == DEVICE
    nn.restore(found)
    assert found.up.weight is found.embedding.weight


def test_state_is_loaded_and_quantized_again():
    found, other = model(0), model(1)
    x = inputs(4, 256)
    with torch.no_grad():
        oxigemm.optimize(found)
        places = [buffer.data_ptr() for buffer in found.buffers()]
        found.load_state_dict(other.state_dict())
        assert [buffer.data_ptr() for buffer in found.buffers()] == places, "graphs go on"
        once = found(x)
        oxigemm.optimize(other)
        assert torch.equal(once, other(x))


def test_a_copy_and_a_moved_model_compute_the_same():
    found = model()
    x = inputs(4, 256)
    with torch.no_grad():
        oxigemm.optimize(found)
        before = found(x)
        again = copy.deepcopy(found)
        assert torch.equal(again(x), before)
        again.to(torch.float16).to(torch.bfloat16).to(DEVICE)
        assert again.up.scales.dtype == torch.float32
        assert again.up.codes.untyped_storage().data_ptr() == again.up.scales.untyped_storage().data_ptr()


def test_skip():
    assert "up" in oxigemm.optimize(model(), skip=["u*"]).left_alone
    report = oxigemm.optimize(model(), skip=lambda name, module: module.out_features == 24 if name else False)
    assert report.left_alone["odd"] == "skipped by the caller" and report.layers[-1].name == "lm_head"
    with pytest.raises(ValueError, match="`skip` is wrong: .* found 'nothing'") as caught:
        oxigemm.optimize(model(), skip="nothing")
    assert caught.value.argument == "skip"


def test_wrong_arguments_are_refused_by_name():
    for arguments, name in [
        ({"recipe": "int8"}, "recipe"),
        ({"nvfp4": "drop"}, "nvfp4"),
        ({"keep": "nowhere"}, "keep"),
    ]:
        with pytest.raises(ValueError, match=f"`{name}` is unknown: expected") as caught:
            oxigemm.optimize(model(), **arguments)
        assert caught.value.argument == name
    with pytest.raises(ValueError, match="`model` is a layer itself"):
        oxigemm.optimize(torch.nn.Linear(16, 16))
    with pytest.raises(TypeError, match="`model` has the wrong type"):
        oxigemm.optimize(lambda x: x)
    with pytest.raises(ValueError, match="`linear` cannot be quantized: .* K must be a multiple of 16"):
        nn.QuantizedLinear.from_linear(torch.nn.Linear(17, 4))


def test_gradients_are_refused():
    found = model()
    oxigemm.optimize(found)
    with pytest.raises(oxigemm.OxigemmError, match="`x` needs a gradient: expected inference"):
        found(inputs(2, 256).requires_grad_())
    with torch.no_grad():
        found(inputs(2, 256).requires_grad_())


def test_no_rows():
    found = model()
    oxigemm.optimize(found)
    with torch.no_grad():
        assert found(inputs(0, 256)).shape == (0, 32)


def e8m0(exponents):
    return torch.exp2(exponents.double() - 127)


def of_nibbles(packed):
    nibbles = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return torch.where(nibbles < 8, 1.0, -1.0) * E2M1[nibbles & 7]


class Experts(torch.nn.Module):
    """Experts as transformers has them."""

    def __init__(self, experts=4, inner=128, outer=256, bias=False, transposed=False, interleaved=False):
        super().__init__()
        self.num_experts, self.is_transposed, self.is_concatenated = experts, transposed, not interleaved
        shapes = (experts, 2 * inner, outer), (experts, outer, inner)
        for name, (e, n, k) in zip(("gate_up_proj", "down_proj"), shapes):
            weight = torch.randn(e, *((k, n) if transposed else (n, k))) * 0.08
            self.register_parameter(name, torch.nn.Parameter(weight))
            if bias:
                self.register_parameter(f"{name}_bias", torch.nn.Parameter(torch.randn(e, n) * 0.1))
        self.act_fn = torch.nn.SiLU()
        if interleaved:
            self._apply_gate = self._clamped

    def _clamped(self, both):
        gate, up = both[..., ::2].clamp(max=7.0), both[..., 1::2].clamp(-7.0, 7.0)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)

    def forward(self, x, ids, weights):
        out = torch.zeros_like(x, dtype=torch.float32)
        for token in range(len(x)):
            for expert, weight in zip(ids[token].tolist(), weights[token]):
                if expert >= self.num_experts:
                    continue
                w1, w2 = self.gate_up_proj[expert].float(), self.down_proj[expert].float()
                w1, w2 = (w1.T, w2.T) if self.is_transposed else (w1, w2)
                both = w1 @ x[token].float()
                if hasattr(self, "gate_up_proj_bias"):
                    both = both + self.gate_up_proj_bias[expert]
                gate, up = both.chunk(2)
                hidden = self._clamped(both) if not self.is_concatenated else self.act_fn(gate) * up
                y = w2 @ hidden
                if hasattr(self, "down_proj_bias"):
                    y = y + self.down_proj_bias[expert]
                out[token] += weight * y
        return out.to(x.dtype)


class Mixture(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.experts = Experts(**options)

    def forward(self, x, ids, weights):
        return self.experts(x, ids, weights)


FORMS = [
    {},
    {"bias": True},
    {"transposed": True, "interleaved": True, "bias": True, "inner": 96},
]


@pytest.mark.parametrize("form", FORMS, ids=["swiglu", "bias", "gpt-oss"])
@pytest.mark.parametrize("recipe", ["fp8", "mxfp8", "mxfp4", "nvfp4"])
def test_experts(form, recipe):
    torch.manual_seed(3)
    found = Mixture(**form).to(DEVICE, torch.bfloat16)
    x = inputs(6, 256)
    ids = torch.tensor([[0, 1], [2, 2], [3, 0], [4, 0], [4, 4], [1, 3]], device=DEVICE)
    weights = torch.rand(6, 2, device=DEVICE)
    with torch.no_grad():
        before, state = found(x, ids, weights), state_of(found)
        report = oxigemm.optimize(found, recipe=recipe, sample=(x, ids, weights))
        after = found(x, ids, weights)
        (layer,) = report.layers
        assert (layer.kind, layer.recipe, layer.runs_as) == ("experts", recipe, "fp8 128x128")
        limit = 0.12 if recipe in ("fp8", "mxfp8") else 0.4
        assert apart(after, before) < limit and 0 < layer.output_error < limit
        assert (after[4] == 0).all(), "choices that are no expert add nothing"
        same_state(found.state_dict(), state)
        assert nn.restore(found) == 1 and type(found.experts) is Experts
        assert torch.equal(found(x, ids, weights), before)


@on_the_cpu
@pytest.mark.parametrize("form", FORMS[::2], ids=["swiglu", "gpt-oss"])
@pytest.mark.parametrize("recipe", [None, "fp8", "mxfp4"])
def test_experts_on_blackwell(blackwell, form, recipe):
    torch.manual_seed(3)
    experts = Experts(**form).bfloat16()
    x, ids = inputs(4, 256), torch.tensor([[0, 1], [2, 2], [3, 0], [4, 4]])
    weights = torch.rand(4, 2)
    with torch.no_grad():
        layer = nn.QuantizedExperts.from_experts(experts, recipe)
        found, exact = layer(x, ids, weights), experts(x, ids, weights)
    limit = 0.4 if recipe == "mxfp4" else 0.12
    assert layer.recipe == (recipe or "mxfp8") and 0 < layer.weight_error < limit
    assert apart(found, exact) < limit and (found[3] == 0).all()
    saved = layer.tensors("mlp.experts")
    again = nn.QuantizedExperts.from_tensors(saved, "mlp.experts", apply_gate=layer._gate)
    assert torch.equal(again.gate_up_scales, layer.gate_up_scales) and torch.equal(again.down_scales, layer.down_scales)
    assert again.weight_error == 0


def test_mxfp4_experts_lose_nothing_on_the_way_to_fp8():
    torch.manual_seed(4)
    experts = Experts()
    packed, exact = {}, {}
    for name in ("gate_up_proj", "down_proj"):
        e, n, k = getattr(experts, name).shape
        blocks = torch.randint(0, 256, (e, n, k // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 126, (e, n, k // 32), dtype=torch.uint8)
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = blocks, scales
        exact[name] = (of_nibbles(blocks).double() * e8m0(scales)[..., None]).flatten(-2)
        delattr(experts, name)
    for name, tensor in packed.items():
        experts.register_buffer(name, tensor.to(DEVICE))
    found = nn.QuantizedExperts.from_experts(experts)
    assert found.weight_error == 0 and found.note == ""
    for name, part in (("gate_up_proj", "gate_up"), ("down_proj", "down")):
        codes, scales = (getattr(found, f"{part}_{what}").double().cpu() for what in ("codes", "scales"))
        wide = scales.repeat_interleave(128, 1).repeat_interleave(128, 2)
        assert torch.equal(codes * wide, exact[name])


def test_mxfp4_is_found_again_in_dequantized_weights():
    """What a checkpoint held in MXFP4 and was loaded in BF16."""
    torch.manual_seed(5)
    packed = torch.randint(0, 256, (128, 128), dtype=torch.uint8)
    scales = torch.randint(120, 126, (128, 8), dtype=torch.uint8)
    dense = (of_nibbles(packed).double() * e8m0(scales).repeat_interleave(32, 1)).bfloat16()
    found = torch.nn.Sequential(torch.nn.Linear(256, 128, bias=False)).to(DEVICE, torch.bfloat16)
    found[0].weight.data = dense.to(DEVICE)
    (layer,) = oxigemm.optimize(found, recipe="mxfp4").layers
    assert layer.weight_error == 0 and layer.runs_as == "fp8 128x128"


def test_the_kernels_of_the_gpu_in_the_simulator():
    if HAS_GPU:
        pytest.skip("tensors of a GPU are computed on it")
    layer = nn.QuantizedLinear.from_linear(torch.nn.Linear(160, 72).bfloat16())
    x = inputs(3, 160)
    with torch.no_grad():
        expected = layer(x)
        oxigemm.set_device("sim")
        try:
            found = layer(x)
        finally:
            oxigemm.set_device("cpu")
    assert apart(found, expected) < 1e-2


@on_the_cpu
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("recipe", [None, "fp8", "mxfp8", "mxfp4", "nvfp4"])
def test_layers_of_blackwell(blackwell, recipe, bias):
    torch.manual_seed(0)
    linear = torch.nn.Linear(160, 72, bias=bias).bfloat16()
    x = inputs(5, 160)
    with torch.no_grad():
        layer = nn.QuantizedLinear.from_linear(linear, recipe)
        limit = 0.06 if recipe in (None, "fp8", "mxfp8") else 0.25
        assert layer.recipe == (recipe or "mxfp8") and 0 < layer.weight_error < limit
        assert apart(layer(x), linear(x)) < limit
        # The product of what the layer stores by activations that are hardly rounded is much closer.
        stored = nn.QuantizedLinear.from_tensors(layer.tensors("up"), "up")
        assert torch.equal(stored.codes.view(torch.uint8), layer.codes.view(torch.uint8))
        assert torch.equal(stored.scales, layer.scales) and stored.weight_error == 0
        assert torch.equal(stored(x), layer(x))
    assert layer.runs_as == {"fp8": "fp8 128x128", "mxfp4": "mxfp4 1x32", "nvfp4": "nvfp4 1x16"}.get(
        recipe, "mxfp8 1x32"
    )


@on_the_cpu
def test_fp8_scales_of_blackwell_become_powers_of_two(blackwell):
    torch.manual_seed(0)
    holder = torch.nn.Module()
    holder.weight = torch.randn(136, 256).to(torch.float8_e4m3fn)
    holder.weight_scale_inv = torch.rand(2, 2) + 0.5
    layer = nn.QuantizedLinear.from_linear(holder)
    assert 0 < layer.weight_error < 0.03 and "powers of two" in layer.note
    wide = holder.weight_scale_inv.repeat_interleave(128, 0)[:136].repeat_interleave(128, 1)
    x = inputs(3, 256)
    assert apart(layer(x), x.float() @ (holder.weight.float() * wide).T) < 0.05
    # One scale for all is a factor.
    del holder.weight_scale_inv
    holder.weight_scale = torch.tensor([0.3])
    layer = nn.QuantizedLinear.from_linear(holder)
    assert layer.weight_error == 0
    assert apart(layer(x), 0.3 * x.float() @ holder.weight.float().T) < 0.05


@on_the_cpu
@pytest.mark.parametrize("recipe", [None, "fp8", "mxfp4", "nvfp4"])
def test_a_model_on_blackwell(blackwell, recipe):
    found = model()
    x = inputs(3, 256)
    with torch.no_grad():
        before = found(x)
        report = oxigemm.optimize(found, recipe=recipe, sample=x)
        after = found(x)
    limit = 0.06 if recipe in (None, "fp8") else 0.3
    assert 1e-4 < apart(after, before) < limit and len(report.layers) == 3
    assert all(0 < layer.output_error < limit for layer in report.layers)
    assert nn.restore(found) == 3
    with torch.no_grad():
        assert torch.equal(found(x), before)


def test_torch_compile():
    found = model()
    oxigemm.optimize(found)
    torch._dynamo.reset()
    compiled = torch.compile(found, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for rows in (3, 4, 5):
            x = inputs(rows, 256)
            torch.testing.assert_close(compiled(x), found(x), rtol=2e-2, atol=2e-2)


def test_torch_compile_of_experts():
    found = Mixture().to(DEVICE, torch.bfloat16)
    x, ids = inputs(6, 256), torch.randint(0, 4, (6, 2), device=DEVICE)
    weights = torch.rand(6, 2, device=DEVICE)
    oxigemm.optimize(found)
    torch._dynamo.reset()
    compiled = torch.compile(found, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, ids, weights), found(x, ids, weights), rtol=2e-2, atol=2e-2)


@on_a_gpu
@pytest.mark.parametrize("recipe", ["fp8", "mxfp8", "mxfp4"])
def test_cuda_graph(recipe):
    found = model()
    x = inputs(16, 256)
    with torch.no_grad():
        oxigemm.optimize(found, recipe=recipe)
        expected = found(x)
        static = torch.zeros_like(x)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            found(static)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = found(static)
        static.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(out, expected)


@on_a_gpu
def test_two_kernels_a_layer():
    layer = nn.QuantizedLinear.from_linear(torch.nn.Linear(1024, 512, device="cuda", dtype=torch.bfloat16))
    x = inputs(64, 1024)
    with torch.no_grad():
        layer(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            layer(x)
            torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 2, [event.name for event in kernels]


@on_a_gpu
def test_memory_of_the_gpu_shrinks():
    found = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)))
    found = found.to("cuda", torch.bfloat16)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    oxigemm.optimize(found)
    freed = before - torch.cuda.memory_allocated()
    assert freed > 4 * 4096 * 4096 * 0.95
    nn.restore(found)
    assert torch.cuda.memory_allocated() >= before


@on_a_gpu
def test_torch_compile_with_graphs():
    found = model()
    oxigemm.optimize(found)
    torch._dynamo.reset()
    compiled = torch.compile(found, mode="reduce-overhead", fullgraph=True)
    x = inputs(8, 256)
    with torch.no_grad():
        for _ in range(4):
            result = compiled(x).clone()
        torch.testing.assert_close(result, found(x), rtol=2e-2, atol=2e-2)


def test_dequantized_weights_match_the_library():
    weight = torch.randn(200, 160)
    layer = nn.QuantizedLinear.from_linear(torch.nn.Linear(160, 200, bias=False))
    layer.original.weight.data.copy_(weight)
    layer._quantize_again()
    codes, scales = quantization.quantize(weight, "128x128")
    assert torch.equal(layer.codes.view(torch.uint8).cpu(), codes.view(torch.uint8))
    assert torch.equal(layer.scales.cpu(), scales)


def test_experts_are_saved_and_loaded(tmp_path):
    save = pytest.importorskip("safetensors.torch")
    torch.manual_seed(6)
    experts = Experts(bias=True).to(DEVICE, torch.bfloat16)
    layer = nn.QuantizedExperts.from_experts(experts)
    path = tmp_path / "model.safetensors"
    save.save_file(layer.tensors("mlp.experts"), path)
    again = nn.QuantizedExperts.from_tensors(save.load_file(path, device=DEVICE), "mlp.experts")
    x, ids, weights = inputs(4, 256), torch.tensor([[0], [1], [3], [1]], device=DEVICE), torch.ones(4, 1, device=DEVICE)
    with torch.no_grad():
        assert torch.equal(layer(x, ids, weights), again(x, ids, weights)) and again.weight_error == 0
        clamped = nn.QuantizedExperts.from_tensors(
            save.load_file(path, device=DEVICE), "mlp.experts", apply_gate=experts._clamped
        )
        assert not torch.equal(clamped(x, ids, weights), again(x, ids, weights))
