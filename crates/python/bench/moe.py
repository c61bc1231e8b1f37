"""A layer of experts on a GPU: one call beside the calls that engines make for it.

    python crates/python/bench/moe.py [--tokens 32,128,1024,4096] [--experts 32] [--hidden 7168] [--inner 2048]
        [--peer MODULE]

Times are those of CUDA graphs, which are replayed in turn, with weights that the L2 cache does not hold; host time is
that of a call that is not captured.

- "separate" gathers and quantizes rows, multiplies, computes SwiGLU with quantization, multiplies and adds rows, in a
  call of this library each
- "peer" are the two GEMMs of a module with DeepGEMM's functions, with torch's sort, gather, casts, SwiGLU and sum
  around them
"""

import argparse
import functools
import importlib
import time

import torch

from oxigemm import deep_gemm, moe, quantization

BLOCK = 128


def weights(experts, n, k):
    """FP8 weights of all experts, with scales of 128x128."""
    codes = (torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16) * 16).to(torch.float8_e4m3fn)
    scales = torch.rand(experts, -(-n // BLOCK), -(-k // BLOCK), device="cuda") * 1e-3 + 1e-4
    return codes, scales


def separate(x, ids, factors, w1, w2):
    """The calls of an engine."""
    experts, both, outer = w1[0].shape
    rows = moe.permute(ids, experts, 128)
    gathered = x.index_select(0, rows.tokens.clamp_min(0))
    a = quantization.quantize(gathered, "1x128")
    hidden = torch.empty(len(gathered), both, device="cuda", dtype=torch.bfloat16)
    groups = {"use_psum_layout": True, "expected_m_for_psum_layout": max(1, ids.numel() // experts)}
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, w1, hidden, rows.ends, **groups)
    h = quantization.swiglu_quantize(hidden)
    out = torch.empty(len(gathered), outer, device="cuda", dtype=torch.bfloat16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(h, w2, out, rows.ends, **groups)
    return moe.unpermute(out, rows.places, factors)


def one_call(x, ids, factors, w1, w2):
    return moe.forward(x, ids, factors, w1, w2)


def with_torch(peer, x, ids, factors, w1, w2):
    """The GEMMs of a peer, and what torch has for all else. No number is read back: the graph takes other choices."""
    (experts, both, columns), (tokens, topk) = w1[0].shape, ids.shape
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    expert = flat[order]
    counts = torch.zeros(experts, dtype=torch.int64, device="cuda").scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + BLOCK - 1) // BLOCK * BLOCK
    firsts = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    places = torch.arange(len(flat), device="cuda") + firsts[expert]
    rows = moe.rows_needed(tokens, topk, experts)
    groups = torch.full((rows,), -1, dtype=torch.int32, device="cuda").scatter_(0, places, expert.int())
    gathered = torch.zeros(rows, columns, dtype=torch.bfloat16, device="cuda")
    gathered[places] = x[order // topk]
    cast = functools.partial(peer.utils.per_token_cast_to_fp8, use_ue8m0=False)
    hidden = torch.empty(rows, both, device="cuda", dtype=torch.bfloat16)
    peer.m_grouped_fp8_gemm_nt_contiguous(cast(gathered), w1, hidden, groups)
    gate, up = hidden.chunk(2, dim=-1)
    down = torch.empty(rows, w2[0].shape[1], device="cuda", dtype=torch.bfloat16)
    peer.m_grouped_fp8_gemm_nt_contiguous(cast(torch.nn.functional.silu(gate) * up), w2, down, groups)
    weighted = down[places] * factors.flatten()[order, None]
    return torch.zeros_like(x, dtype=torch.float32).index_add_(0, order // topk, weighted).to(x.dtype)


def host_us(step, repeats=20):
    """Microseconds of the host in a call that is not captured."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    taken = (time.perf_counter() - start) / repeats * 1e6
    torch.cuda.synchronize()
    return taken


def graph_us(steps, repeats=20):
    """Microseconds of a replay of each, the median."""
    graphs = []
    for step in steps:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graphs.append(graph)
    times = [[] for _ in graphs]
    for _ in range(repeats):
        for graph, taken in zip(graphs, times):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            graph.replay()
            after.record()
            torch.cuda.synchronize()
            taken.append(before.elapsed_time(after) * 1e3)
    return [sorted(taken)[repeats // 2] for taken in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1,32,128,1024,4096")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--peer", help="a module with DeepGEMM's functions")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    w1 = weights(arguments.experts, 2 * arguments.inner, arguments.hidden)
    w2 = weights(arguments.experts, arguments.hidden, arguments.inner)
    steps = {"one call": one_call, "separate": separate}
    if arguments.peer:
        steps["peer"] = functools.partial(with_torch, importlib.import_module(arguments.peer))
    others = list(steps)[1:]
    columns = [f"{name}, us" for name in steps] + [f"{name} / one" for name in others]
    columns += [f"host: {name}" for name in steps] + [f"cosine: {name}" for name in others]
    print("| tokens | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for tokens in map(int, arguments.tokens.split(",")):
        x = torch.randn(tokens, arguments.hidden, device="cuda", dtype=torch.bfloat16)
        scores = torch.rand(tokens, arguments.experts, device="cuda")
        factors, ids = scores.topk(arguments.topk)
        factors, ids = factors.contiguous(), ids.to(torch.int32).contiguous()
        calls = [functools.partial(step, x, ids, factors, w1, w2) for step in steps.values()]
        first, *rest = (call().double().flatten() for call in calls)
        cosines = [torch.nn.functional.cosine_similarity(first, other, 0).item() for other in rest]
        host, times = [host_us(call) for call in calls], graph_us(calls)
        cells = [f"{us:.1f}" for us in times] + [f"{us / times[0]:.2f}" for us in times[1:]]
        cells += [f"{us:.0f}" for us in host] + [f"{cosine:.6f}" for cosine in cosines]
        print(f"| {tokens} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
