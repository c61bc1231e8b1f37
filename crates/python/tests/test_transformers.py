"""FP8 models of Hugging Face transformers: on a Hopper GPU, else small ones with the CPU reference."""

import copy
import dataclasses
import importlib.util
import os
import subprocess
import sys
import types

import pytest
import torch
import transformers
from conftest import HAS_GPU

import oxigemm
from oxigemm import deep_gemm
from oxigemm.integrations import transformers as integration

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "transformers_client.py")
_spec = importlib.util.spec_from_file_location("transformers_client", SCRIPT)
client = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(client)

DEVICE = "cuda" if HAS_GPU else "cpu"
on_a_gpu = pytest.mark.skipif(not HAS_GPU, reason="there is no Hopper GPU")

#: What makes the models small enough for the reference.
SMALL = {
    "qwen3-moe": {"num_hidden_layers": 1, "num_experts": 8, "moe_intermediate_size": 128, "num_experts_per_tok": 2},
    "qwen3-dense": {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2},
    "deepseek-v3": {
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 16},
        **{"moe_intermediate_size": 128, "q_lora_rank": 256, "num_experts_per_tok": 2},
    },
}
for changes in SMALL.values():
    changes.update(hidden_size=256, intermediate_size=256)


def dequantized(x):
    codes, scales = x
    down, across = (-(-a // b) for a, b in zip(codes.shape[-2:], scales.shape[-2:]))
    # Blocks of 128, or rows of their own; the last block may be cut.
    down, across = 1 if down == 1 else 128, 128
    wide = scales.repeat_interleave(down, -2).repeat_interleave(across, -1)
    return codes.float() * wide[..., : codes.shape[-2], : codes.shape[-1]]


def by_torch():
    """Transformers' table with the same formulas in float32."""

    def matmul(a, b, d, **_):
        d.copy_(dequantized(a) @ dequantized(b).mT)

    def grouped(a, b, d, layout, **_):
        x, w = dequantized(a), dequantized(b)
        for group in range(len(w)):
            rows = layout == group
            d[rows] = (x[rows] @ w[group].T).to(d.dtype)

    def cast(x, use_ue8m0, gran_k):
        blocks = x.float().unflatten(-1, (-1, gran_k))
        scales = blocks.abs().amax(-1).clamp(1e-4) / 448.0
        return (blocks / scales[..., None]).flatten(-2).to(torch.float8_e4m3fn), scales

    return types.SimpleNamespace(
        fp8_fp4_matmul=matmul, grouped_fp8_fp4_matmul_nt=grouped, per_token_cast_to_fp8=cast, m_alignment=128
    )


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Transformers as it was, afterwards. It asks the GPU for its generation even where the tensors are the CPU's."""
    if not HAS_GPU:
        monkeypatch.setattr(client.table, "is_sm100", lambda: False)
        monkeypatch.setattr(client.fp8, "is_sm100", lambda: False)
    yield
    integration.uninstall()
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)


@pytest.fixture(scope="module", params=list(client.MODELS))
def models(request):
    model = client.bf16_model(request.param, DEVICE, **({} if HAS_GPU else SMALL[request.param]))
    generator = torch.Generator(DEVICE).manual_seed(1)
    shape = (4, 512) if HAS_GPU else (2, 9)
    ids = torch.randint(0, client.VOCABULARY, shape, device=DEVICE, generator=generator)
    with torch.no_grad():
        yield request.param, model, ids, model(ids).logits


def prepared(model, variant):
    found = client.fp8_model(model)
    if variant == "aligned":
        deep_gemm.set_mk_alignment_for_contiguous_layout(16)
    integration.install()
    if variant != "plain":
        count = integration.fuse(found)
        assert sum(count.values()) > 0
    return found


VARIANTS = ["plain", "fused", "aligned"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits(models, variant, monkeypatch):
    name, model, ids, expected = models
    with torch.no_grad():
        found = prepared(model, variant)(ids).logits
        integration.uninstall()
        monkeypatch.setattr(client.table, "_DEEPGEMM", by_torch())
        monkeypatch.setattr(client.table, "is_deepgemm_loadable", lambda raise_error=False: True)
        monkeypatch.setattr(client.fp8, "is_deepgemm_loadable", lambda raise_error=False: True)
        same = client.fp8_model(model)(ids).logits
    # FP8 is coarse, and may choose another expert than BF16: as far as the same formulas in float32 do, and no further.
    assert client.cosine(found, expected) > min(0.97, client.cosine(same, expected) - 0.01), name
    assert client.cosine(found, same) > min(0.995, client.cosine(same, expected)), name


def test_every_layer_is_fused(models):
    name, model, _, _ = models
    layers = len(model.model.layers)
    integration.install()
    count = integration.fuse(client.fp8_model(model))
    assert (
        count
        == {
            "qwen3-moe": {"linears": 4 * layers, "mlps": 0, "experts": layers},
            "qwen3-dense": {"linears": 4 * layers, "mlps": layers, "experts": 0},
            # A dense MLP in the first layer, a shared expert in each of the others.
            "deepseek-v3": {"linears": 5 * layers, "mlps": layers, "experts": layers - 1},
        }[name]
    )


def test_projections_share_one_cast(models, monkeypatch):
    name, model, ids, _ = models
    found = prepared(model, "fused")
    inputs, quantize = [], integration.quantization.quantize
    monkeypatch.setattr(integration.quantization, "quantize", lambda x: inputs.append(x) or quantize(x))
    with torch.no_grad():
        found(ids)
    # The input of the attention, that of its last projection, and that of an MLP; MLA has two more.
    layer = {"qwen3-moe": 2, "qwen3-dense": 3, "deepseek-v3": 5}[name]
    assert len(inputs) == layer * len(model.model.layers)


def test_a_cast_is_shared_inside_of_forward_and_while_nothing_changes():
    casts, x = integration._Casts(), torch.randn(3, 256, device=DEVICE, dtype=torch.bfloat16)
    assert casts.quantize(x) is not casts.quantize(x)
    casts.depth = 1
    first = casts.quantize(x)
    assert casts.quantize(x) is first
    x.mul_(2)
    second = casts.quantize(x)
    torch.testing.assert_close(second[1], 2 * first[1])
    casts.close()
    assert casts.quantize(x) is not second


def test_a_choice_that_is_no_expert_adds_nothing():
    model = client.bf16_model("qwen3-moe", DEVICE, **SMALL["qwen3-moe"])
    experts = prepared(model, "fused").model.layers[0].mlp.experts
    x = torch.randn(5, 256, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.tensor([[0, 1], [2, 8], [8, 8], [3, 3], [7, 0]], device=DEVICE)
    weights = torch.rand(5, 2, device=DEVICE)
    with torch.no_grad():
        found = experts(x, ids, weights)
        expected = client.table.deepgemm_fp8_fp4_experts_forward(experts, x, ids, weights)
    assert (found[2] == 0).all() and client.cosine(found, expected) > 0.999


#: Changes of fused experts, and whether they still are: then the gate that the epilogue gets.
FORMS = {
    "as they are": ({}, True, None),
    "limit": ({"limit": 1.0}, True, (1.0, 1.0, 0.0)),
    "slope and limit": ({"swiglu_alpha": 1.702, "swiglu_limit": 7.0, "limit": 7.0}, True, (1.702, 7.0, 1.0)),
    "softcap": ({"gate_softcap": 5.0}, False, None),
    "another activation": ({"act_fn": torch.nn.GELU()}, False, None),
    "static scales": ({"activation_scheme": "static"}, False, None),
    "biases": ({"has_bias": True}, False, None),
    "blocks of 64": ({"block_size": (64, 64)}, False, None),
}


@pytest.mark.parametrize("form", FORMS)
def test_experts_of_another_form_are_transformers_own(form, monkeypatch):
    model = client.bf16_model("qwen3-moe", DEVICE, **SMALL["qwen3-moe"])
    experts = prepared(model, "fused").model.layers[0].mlp.experts
    changes, is_fused, gate = FORMS[form]
    for name, value in changes.items():
        setattr(experts, name, value)
    ours, theirs, routed = [], [], integration.routed
    monkeypatch.setattr(integration, "routed", lambda *given: ours.append(given) or routed(*given))
    answer = torch.randn(5, 256, device=DEVICE, dtype=torch.bfloat16)
    monkeypatch.setattr(client.table, "deepgemm_fp8_fp4_experts_forward", lambda *given: theirs.append(given) or answer)
    x = torch.randn(5, 256, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.zeros(5, 2, device=DEVICE, dtype=torch.int64)
    with torch.no_grad():
        found = experts(x, ids, torch.ones(5, 2, device=DEVICE))
    assert (len(ours), len(theirs)) == ((1, 0) if is_fused else (0, 1))
    assert ours[0][-1] == gate if is_fused else found is answer


@pytest.mark.parametrize("changes", [{}, {"limit": 0.5}, {"swiglu_alpha": 1.702, "swiglu_limit": 0.5, "limit": 0.5}])
def test_fused_gates_are_those_of_transformers(changes):
    model = client.bf16_model("qwen3-moe", DEVICE, **SMALL["qwen3-moe"])
    experts = prepared(model, "fused").model.layers[0].mlp.experts
    for name, value in changes.items():
        setattr(experts, name, value)
    # Tokens so large that many gates and ups are beyond the limits.
    x = 100 * torch.randn(5, 256, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.tensor([[0, 1], [2, 7], [3, 4], [3, 3], [7, 0]], device=DEVICE)
    with torch.no_grad():
        found = experts(x, ids, torch.ones(5, 2, device=DEVICE))
        expected = client.table.deepgemm_fp8_fp4_experts_forward(experts, x, ids, torch.ones(5, 2, device=DEVICE))
    assert client.cosine(found, expected) > 0.999


def test_what_is_not_installed_is_not_fused():
    with pytest.raises(oxigemm.OxigemmError, match="install"):
        integration.fuse(torch.nn.Linear(2, 2))


def test_every_function_of_the_table_is_there():
    integration.install()
    table = client.table._DEEPGEMM
    for field in dataclasses.fields(table):
        assert "refuse" not in getattr(getattr(table, field.name), "__qualname__", ""), field.name


@on_a_gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_decode_is_replayed_from_a_graph(models, variant):
    _, model, ids, _ = models
    with torch.no_grad():
        decode = client.Decode(prepared(model, variant), ids)
        decode.captured()
        for token in (3, 4711):
            decode.ids.fill_(token)
            decode.rewind()
            decode.graph.replay()
            replayed = decode.logits.clone()
            decode.rewind()
            assert client.cosine(replayed, decode.step()) > 0.9999


@on_a_gpu
def test_fused_layers_launch_less(models):
    name, model, ids, _ = models
    launches, own = {}, {}
    with torch.no_grad():
        for variant in ("plain", "fused"):
            decode = client.Decode(prepared(model, variant), ids)
            found = client.profile_of(decode.step, oxigemm._oxigemm)
            launches[variant], own[variant] = found["own_launches"] + found["other_launches"], found["own_launches"]
            integration.uninstall()
    assert own["plain"] > 0 and own["fused"] > 0
    # Norms, rotations and the attention itself are torch's; a mixture of experts is most of what is left.
    assert launches["fused"] < (1.0 if name == "qwen3-dense" else 0.8) * launches["plain"], launches


@on_a_gpu
def test_the_first_forward_pass_compiles_nothing():
    code = f"""
import runpy, sys
sys.argv = ["client"]
client = runpy.run_path({SCRIPT!r})
import torch
from oxigemm.integrations import transformers as integration
model = client["bf16_model"]("qwen3-moe")
ids = torch.randint(0, 8192, (4, 512), device="cuda")
with torch.no_grad():
    reference = model(ids).logits
    found = client["fp8_model"](model)
    integration.install()
    import time
    torch.cuda.synchronize()
    start = time.perf_counter()
    found(ids)
    torch.cuda.synchronize()
    print("seconds", time.perf_counter() - start)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert "seconds" in run.stdout, run.stderr
    seconds = float(run.stdout.split("seconds")[1])
    prebuilt = os.path.isdir(os.path.join(os.path.dirname(oxigemm.__file__), "cubins"))
    assert seconds < (0.1 if prebuilt else 30), seconds


@pytest.mark.parametrize("quantized", [False, True], ids=["bf16", "fp8"])
def test_optimize_takes_every_layer_and_gives_it_back(models, quantized):
    name, model, ids, expected = models
    found = client.fp8_model(model) if quantized else copy.deepcopy(model)
    experts = {"qwen3-moe": len(model.model.layers), "qwen3-dense": 0, "deepseek-v3": len(model.model.layers) - 1}[name]
    state = {key: tensor.clone() for key, tensor in found.state_dict().items()}
    with torch.no_grad():
        report = oxigemm.optimize(found)
        logits = found(ids).logits
    assert sum(layer.kind == "experts" for layer in report.layers) == experts
    assert all(layer.runs_as == "fp8 128x128" for layer in report.layers)
    assert report.lossy == [] if quantized else len(report.lossy) == len(report.layers)
    # Heads and routers.
    assert all("lm_head" in left or "gate" in left for left in report.left_alone), report.left_alone
    with torch.no_grad():
        integration.install()
        own = client.fp8_model(model)(ids).logits
        integration.uninstall()
    # FP8 may choose other experts than BF16: as far as transformers' own FP8 does, and no further.
    assert client.cosine(logits, expected) > min(0.97, client.cosine(own, expected) - 0.01), name
    again = found.state_dict()
    assert list(again) == list(state)
    assert all(torch.equal(again[key].cpu().view(torch.uint8), state[key].cpu().view(torch.uint8)) for key in state)
    oxigemm.nn.restore(found)
    assert not any(
        isinstance(module, (oxigemm.nn.QuantizedLinear, oxigemm.nn.QuantizedExperts)) for module in found.modules()
    )


def test_optimize_takes_the_experts_of_gpt_oss():
    """Transposed weights, biases, rows of gate and up in turn, a clamped gate."""
    config = transformers.GptOssConfig(
        **{"num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 128, "num_local_experts": 4},
        **{"num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
        vocab_size=256,
    )
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(0, 256, (2, 9), device=DEVICE)
    with torch.no_grad():
        expected = model(ids).logits
        report = oxigemm.optimize(model, recipe="mxfp4", sample=(ids,))
        logits = model(ids).logits
    assert [layer.kind for layer in report.layers].count("experts") == 1
    assert all(0 < layer.output_error < 0.4 for layer in report.layers), report
    assert client.cosine(logits, expected) > 0.9
