"""A model in BF16 and optimized: memory, tokens per second, and what each layer loses.

python optimize_model.py Qwen/Qwen3-8B               # a model of transformers, on a Hopper GPU
python optimize_model.py Qwen/Qwen3-30B-A3B --recipe mxfp4
python optimize_model.py config.json                 # random weights of a configuration
python optimize_model.py                             # a toy model: on a GPU, else with the CPU reference
OXIGEMM_DEVICE=sim python optimize_model.py          # the toy model by the GPU's kernels in the simulator
OXIGEMM_DEVICE=sim:sm_100a python optimize_model.py  # the same by Blackwell's
"""

import argparse
import json
import time

import oxigemm


def toy(torch, device):
    """Two blocks of a gated MLP on an embedding, and a head."""

    class Block(torch.nn.Module):
        def __init__(self, hidden=256, inner=256):
            super().__init__()
            self.norm = torch.nn.RMSNorm(hidden)
            self.gate_proj, self.up_proj = (torch.nn.Linear(hidden, inner, bias=False) for _ in range(2))
            self.down_proj = torch.nn.Linear(inner, hidden, bias=False)

        def forward(self, x):
            h = self.norm(x)
            return x + self.down_proj(torch.nn.functional.silu(self.gate_proj(h)) * self.up_proj(h))

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(512, 256)
            self.blocks = torch.nn.ModuleList([Block(), Block()])
            self.lm_head = torch.nn.Linear(256, 512, bias=False)

        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.lm_head(x)

    torch.manual_seed(0)
    model = Toy().to(device, torch.bfloat16).eval()
    return model, torch.randint(0, 512, (1, 12), device=device)


def from_hub(torch, name, device):
    """A model of transformers, and the tokens of a prompt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, device_map=device).eval()
    prompt = "The Hopper architecture of NVIDIA GPUs is"
    return model, AutoTokenizer.from_pretrained(name)(prompt, return_tensors="pt").input_ids.to(device)


def of_config(torch, path, device):
    """A model of transformers with random weights, and random tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    return model, torch.randint(0, config.vocab_size, (1, 12), device=device)


def logits_of(output):
    return output if hasattr(output, "float") else output.logits


def tokens_per_second(torch, model, ids, tokens):
    """Tokens that are generated in a second, after one run that loads what there is to load."""
    if hasattr(model, "generate"):
        options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        generate = lambda: model.generate(ids, **options)  # noqa: E731
    else:

        def generate():
            found = ids
            for _ in range(tokens):
                found = torch.cat([found, logits_of(model(found))[:, -1:].argmax(-1)], -1)

    generate()
    if ids.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    generate()
    if ids.is_cuda:
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def graph_milliseconds(torch, model, ids):
    """Of a pass of one token, replayed from a CUDA graph: no time goes into Python. None on a CPU."""
    if not ids.is_cuda:
        return None
    named = {"use_cache": False} if hasattr(model, "generate") else {}
    token, stream = ids[:, :1].clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(token, **named)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(token, **named)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    before.record()
    for _ in range(20):
        graph.replay()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after) / 20


def figures_of(torch, model, ids, tokens, device):
    """Bytes, tokens per second, and milliseconds of a replayed pass."""
    return (
        memory(torch, model, device),
        tokens_per_second(torch, model, ids, tokens),
        graph_milliseconds(torch, model, ids),
    )


def memory(torch, model, device):
    """Bytes on the GPU; without one, those of the tensors that the model computes with."""
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", help="a model of the hub, a folder or a config.json; a toy model without it"
    )
    parser.add_argument("--recipe", choices=["fp8", "mxfp8", "mxfp4", "nvfp4"], help="what layers become; fp8")
    parser.add_argument("--nvfp4", choices=["requantize", "bf16"], default="requantize")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    parser.add_argument("--tokens", type=int, help="tokens to generate: 64, or 4 of the toy model")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch is not installed: this example needs it, so there is no difference from the exact product")
        return
    device = "cuda" if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9 else "cpu"
    if arguments.model is None:
        model, ids = toy(torch, device)
    else:
        make = of_config if arguments.model.endswith(".json") else from_hub
        model, ids = make(torch, arguments.model, device)
    tokens = arguments.tokens or (4 if arguments.model is None else 64)
    with torch.no_grad():
        exact = logits_of(model(ids)).float()
        before = figures_of(torch, model, ids, tokens, device)
        report = oxigemm.optimize(model, recipe=arguments.recipe, sample=(ids,), nvfp4=arguments.nvfp4)
        found = logits_of(model(ids)).float()
        after = figures_of(torch, model, ids, tokens, device)
    difference = float((found - exact).norm() / exact.norm())
    cosine = float(torch.nn.functional.cosine_similarity(found.flatten(), exact.flatten(), 0))
    if arguments.json:
        figures = {"layers": len(report.layers), "difference": difference, "cosine": cosine}
        for what, (size, speed, replayed) in (("before", before), ("after", after)):
            figures[what] = {"bytes": size, "tokens_per_second": speed, "graph_ms": replayed}
        print(json.dumps(figures))
    else:
        print(report)
        for what, (size, speed, replayed) in (("before", before), ("after", after)):
            graph = "" if replayed is None else f"  {replayed:8.2f} ms for a token from a CUDA graph"
            print(f"{what:6}  {size / 1e6:10.1f} MB  {speed:8.1f} tokens/s{graph}")
        print(f"logits: difference from the exact product of BF16 weights: {difference:.1e}, cosine {cosine:.5f}")
    assert difference < 0.5


if __name__ == "__main__":
    main()
