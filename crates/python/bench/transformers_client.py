"""FP8 models of Hugging Face transformers through a module with DeepGEMM's functions: accuracy, times, profile.

    python crates/python/bench/transformers_client.py [--module NAME] [--models NAMES] [--json FILE] [--no-profile]

Models have random weights, so none is downloaded. NAME is ``oxigemm`` (these functions, then fused layers, then
``oxigemm.optimize``) or any module with DeepGEMM's functions. For each model it prints

- the cosine of the logits to those of the BF16 model, and of a step that is replayed from a CUDA graph
- seconds of the first forward pass, milliseconds of prefill (4 x 512 tokens) and of decode (4 x 1)
- one decode step by torch's profiler: launches and device time of the module's kernels and of all others, host time
  in calls of the module and between them, and the kernels between them
"""

import argparse
import contextlib
import copy
import dataclasses
import importlib
import json
import os
import re
import tempfile
import time
import types
import warnings

import torch

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import transformers  # noqa: E402
from transformers.integrations import deepgemm as table  # noqa: E402
from transformers.integrations import finegrained_fp8 as fp8  # noqa: E402

BATCH, PROMPT, STEPS, VOCABULARY = 4, 512, 64, 8192
BLOCK = (128, 128)


def qwen3_moe():
    """64 experts of 768, 8 of them for each token."""
    return transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig(
        hidden_size=2048,
        num_hidden_layers=4,
        num_experts=64,
        moe_intermediate_size=768,
        num_experts_per_tok=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=VOCABULARY,
        intermediate_size=4096,
        max_position_embeddings=4096,
    )


def qwen3_dense():
    """Attention with 64 heads, and dense MLPs: every linear layer is a dense FP8 GEMM."""
    return transformers.Qwen3ForCausalLM, transformers.Qwen3Config(
        hidden_size=4096,
        num_hidden_layers=4,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=VOCABULARY,
        intermediate_size=4096,
        max_position_embeddings=4096,
    )


def deepseek_v3():
    """MLA (N of 576 and 1536), one dense layer, a shared expert, 64 experts in 8 groups, 4 groups for each token."""
    return transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config(
        hidden_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=16,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=64,
        n_shared_experts=1,
        n_group=8,
        topk_group=4,
        num_experts_per_tok=8,
        moe_intermediate_size=1024,
        first_k_dense_replace=1,
        intermediate_size=4096,
        vocab_size=VOCABULARY,
        max_position_embeddings=4096,
        num_mtp_layers=0,
    )


MODELS = {"qwen3-moe": qwen3_moe, "qwen3-dense": qwen3_dense, "deepseek-v3": deepseek_v3}


def bf16_model(name, device="cuda", **changes):
    """A model with random weights."""
    architecture, config = MODELS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = architecture(config).eval()
    finally:
        torch.set_default_dtype(before)
    model.requires_grad_(False)
    return model


def quantized(weight):
    """Codes and 128x128 scales of weights [..., N, K]; N and K may be any numbers."""
    n, k = weight.shape[-2:]
    padded = torch.zeros(*weight.shape[:-2], -(-n // 128) * 128, -(-k // 128) * 128, device=weight.device)
    padded[..., :n, :k] = weight
    blocks = padded.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128))
    scales = blocks.abs().amax((-3, -1)).clamp(1e-4) / 448.0
    codes = (blocks / scales[..., :, None, :, None]).flatten(-4, -3).flatten(-2, -1)
    return codes[..., :n, :k].to(torch.float8_e4m3fn).contiguous(), scales


def fp8_model(model):
    """The model as transformers would load it from an FP8 checkpoint: its FP8 modules with quantized weights."""
    originals = dict(model.named_modules())
    found = copy.deepcopy(model)
    found.config._experts_implementation = "deepgemm"
    config = transformers.FineGrainedFP8Config(weight_block_size=BLOCK)
    fp8.replace_with_fp8_linear(found, modules_to_not_convert=["lm_head"], quantization_config=config)
    for name, module in found.named_modules():
        weights = ["weight"] if isinstance(module, fp8.FP8Linear) else []
        weights = ["gate_up_proj", "down_proj"] if isinstance(module, fp8.FP8Experts) else weights
        for weight in weights:
            codes, scales = quantized(getattr(originals[name], weight).float())
            setattr(module, weight, torch.nn.Parameter(codes, requires_grad=False))
            setattr(module, f"{weight}_scale_inv", torch.nn.Parameter(scales, requires_grad=False))
        if weights:
            module.eval()
    left = [name for name, tensor in [*found.named_parameters(), *found.named_buffers()] if tensor.is_meta]
    assert not left, f"without values: {left}"
    return found


def functions_of(module):
    """Transformers' table of the functions of a module with DeepGEMM's names."""

    def absent(*_arguments, **_named):
        raise NotImplementedError("not for Hopper")

    names = {
        "fp8_fp4_matmul": "fp8_fp4_gemm_nt",
        "grouped_fp8_fp4_matmul_nt": "m_grouped_fp8_fp4_gemm_nt_contiguous",
        "grouped_fp8_fp4_matmul_nn": "m_grouped_fp8_fp4_gemm_nn_contiguous",
        "grouped_bf16_matmul_nt": "m_grouped_bf16_gemm_nt_contiguous",
        "grouped_bf16_matmul_nn": "m_grouped_bf16_gemm_nn_contiguous",
        "transform_sf_into_required_layout": "transform_sf_into_required_layout",
    }
    functions = {field: getattr(module, name) for field, name in names.items()}
    functions["per_token_cast_to_fp8"] = module.utils.per_token_cast_to_fp8
    functions["m_alignment"] = module.get_mk_alignment_for_contiguous_layout()
    fields = [field.name for field in dataclasses.fields(table.DeepGEMM)]
    return table.DeepGEMM(**{field: functions.get(field, absent) for field in fields})


def use(module):
    """Makes transformers call this module."""
    table._DEEPGEMM = functions_of(module)
    table.is_deepgemm_loadable = fp8.is_deepgemm_loadable = lambda raise_error=False: True


def cosine(x, y):
    return torch.nn.functional.cosine_similarity(x.flatten().double(), y.flatten().double(), 0).item()


def milliseconds(step, count=20, warm_up=3):
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


class Decode:
    """Steps with a static cache behind a prompt: one at a time, and replayed from a CUDA graph."""

    def __init__(self, model, ids):
        self.model, self.cache = model, transformers.StaticCache(config=model.config, max_cache_len=PROMPT + STEPS)
        model(ids, past_key_values=self.cache, use_cache=True)
        self.ids, self.prompt = ids[:, -1:].clone(), ids.shape[1]
        self.rewind()

    def rewind(self):
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.prompt)

    def step(self):
        return self.model(self.ids, past_key_values=self.cache, use_cache=True).logits

    def rewound(self, step, count):
        """The step for timing: the cache has room for a few steps, and is rewound before it is full."""
        self.taken = 0

        def run():
            if self.taken % count == 0:
                self.rewind()
            self.taken += 1
            return step()

        return run

    def captured(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.rewind()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.step()
        self.rewind()
        return self.graph.replay


RANGE = "call "


def ranged(name, function):
    """The function inside a range of the profiler."""

    def run(*arguments, **named):
        with torch.profiler.record_function(RANGE + name):
            return function(*arguments, **named)

    return run


@contextlib.contextmanager
def calls_in_ranges(extension=None):
    """Every call of the table's functions, and of the extension's, is a range of the profiler."""
    before = table._DEEPGEMM
    fields = {field.name: getattr(before, field.name) for field in dataclasses.fields(before)}
    table._DEEPGEMM = types.SimpleNamespace(
        **{name: ranged(name, value) if callable(value) else value for name, value in fields.items()}
    )
    kept = {}
    if extension is not None:
        kept = {name: value for name, value in vars(extension).items() if type(value).__name__.startswith("builtin_")}
        for name, value in kept.items():
            setattr(extension, name, ranged(name, value))
    try:
        yield
    finally:
        table._DEEPGEMM = before
        for name, value in kept.items():
            setattr(extension, name, value)


def short(kernel):
    """A kernel's name without templates and namespaces; of an elementwise kernel also the operation."""
    name = re.sub(r"^void ", "", kernel)
    base = re.split(r"[<(]", name)[0].split("::")[-1]
    operations = re.findall(r"(\w+?)(?:Functor|_kernel_cuda|_kernel_impl|Ops?)\b", name)
    operations = [x for x in operations if not re.fullmatch(r"(?:Binary|[AB]?Unary|CUDA|gpu)\w*", x)]
    if "elementwise" in base and operations:
        return f"{base.replace('_kernel', '')}:{operations[-1]}"
    return base


def trace_of(step):
    """Events of one step as a list, by torch's profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        with open(file.name) as read:
            return [event for event in json.load(read)["traceEvents"] if "dur" in event]


def profile_of(step, extension=None):
    """Launches, device time and host time of one step."""
    with calls_in_ranges(extension):
        events = trace_of(step)
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], event["tid"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(RANGE)
    )
    outer = []
    for start, end, thread in ranges:
        if not outer or start >= outer[-1][1]:
            outer.append((start, end, thread))
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }

    def within(at):
        return any(start <= at <= end for start, end, _ in outer)

    own, others = [], []
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        at = launches.get(event["args"].get("correlation"))
        # A launch through the driver that the profiler does not record is none of torch's, except cuBLAS's.
        inside = not event["name"].startswith(("nvjet", "sm90_xmma")) if at is None else within(at)
        (own if inside else others).append((event["name"], event["dur"]))
    between = {}
    for name, duration in others:
        count, total = between.get(short(name), (0, 0.0))
        between[short(name)] = count + 1, total + duration
    host = sorted(end - start for start, end, _ in outer)
    gaps = [after[0] - before[1] for before, after in zip(outer, outer[1:])]
    return {
        "own_launches": len(own),
        "own_us": sum(duration for _, duration in own),
        "other_launches": len(others),
        "other_us": sum(duration for _, duration in others),
        "own_kernels": {name: sum(x == name for x, _ in own) for name in sorted({name for name, _ in own})},
        "between": dict(sorted(between.items(), key=lambda item: -item[1][1])),
        "calls": len(outer),
        "host_us_in_calls": sum(host),
        "host_us_of_a_call": host[len(host) // 2] if host else 0.0,
        "host_us_between_calls": sum(gaps),
    }


def measured(model, ids, reference, extension=None, profile=True):
    """All numbers of one model."""
    found = {}
    with torch.no_grad():
        torch.cuda.synchronize()
        start = time.perf_counter()
        logits = model(ids).logits
        torch.cuda.synchronize()
        found["first_s"] = time.perf_counter() - start
        found["cosine"] = cosine(logits, reference)
        found["prefill_ms"] = milliseconds(lambda: model(ids))
        found["token_ms"] = milliseconds(lambda: model(ids[:, :1]))
        decode = Decode(model, ids)
        eager = decode.step()
        decode.rewind()
        found["decode_ms"] = milliseconds(decode.rewound(decode.step, 20))
        decode.rewind()
        if profile:
            found["profile"] = profile_of(decode.step, extension)
        replay = decode.captured()
        replay()
        found["graph_cosine"] = cosine(decode.logits, eager)
        found["graph_ms"] = milliseconds(decode.rewound(replay, 20))
    return found


def show(name, variant, found):
    line = f"{name:12} {variant:22} cosine {found['cosine']:.5f}"
    line += f", first {found['first_s']:.3f} s, prefill {found['prefill_ms']:.2f} ms"
    line += f", one token {found['token_ms']:.2f} ms, decode {found['decode_ms']:.2f} ms"
    line += f", graph {found['graph_ms']:.3f} ms (cosine {found['graph_cosine']:.5f})"
    print(line, flush=True)
    if "profile" not in found:
        return
    step = found["profile"]
    share = step["own_us"] / max(step["own_us"] + step["other_us"], 1e-9)
    print(
        f"    decode step: {step['own_launches']} of {step['own_launches'] + step['other_launches']} launches and "
        f"{share:.0%} of {step['own_us'] + step['other_us']:.0f} us on the device are the module's; "
        f"{step['calls']} calls, {step['host_us_of_a_call']:.0f} us of host time each (median, profiled), "
        f"{step['host_us_between_calls']:.0f} us between them"
    )
    kernels = [f"{kernel} {count}x {us:.0f}" for kernel, (count, us) in list(step["between"].items())[:14]]
    print(f"    its kernels: {', '.join(f'{k} {n}x' for k, n in step['own_kernels'].items())}")
    print(f"    others, us: {', '.join(kernels)}", flush=True)


def variants_of(name):
    """The variants of a module: what they are called, how transformers is made to use them, and the extension."""
    if name != "oxigemm":
        module = importlib.import_module(name)
        return {name: (lambda model: use(module), None)}
    import oxigemm
    from oxigemm import deep_gemm
    from oxigemm.integrations import transformers as integration

    def fused(model):
        integration.install()
        integration.fuse(model)

    def aligned_fused(model):
        deep_gemm.set_mk_alignment_for_contiguous_layout(16)
        fused(model)

    def optimized(model):
        report = oxigemm.optimize(model)
        print(f"    optimized: {len(report.layers)} layers, {report.bytes_before / 1e6:.1f} MB before, ", end="")
        print(f"{report.bytes_after / 1e6:.1f} MB after", flush=True)

    return {
        "oxigemm": (lambda model: integration.install(), oxigemm._oxigemm),
        "oxigemm fused": (fused, oxigemm._oxigemm),
        "oxigemm fused, 16 rows": (aligned_fused, oxigemm._oxigemm),
        "oxigemm optimized": (optimized, oxigemm._oxigemm),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="oxigemm")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--json")
    parser.add_argument("--no-profile", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.models.split(","):
        model = bf16_model(name)
        ids = torch.randint(0, VOCABULARY, (BATCH, PROMPT), device="cuda")
        with torch.no_grad():
            reference = model(ids).logits
        for variant, (prepare, extension) in variants_of(arguments.module).items():
            quantized_model = fp8_model(model)
            alignment = None
            if extension is not None:
                alignment = extension.get_alignment()
            try:
                prepare(quantized_model)
                results[f"{name}, {variant}"] = found = measured(
                    quantized_model, ids, reference, extension, not arguments.no_profile
                )
            finally:
                if alignment is not None:
                    extension.set_alignment(alignment)
            show(name, variant, found)
            del quantized_model
            torch.cuda.empty_cache()
        del model
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
