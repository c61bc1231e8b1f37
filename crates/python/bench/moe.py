"""A layer of experts on a GPU: one call beside the calls that engines make for it.

    python crates/python/bench/moe.py [--tokens 32,128,1024,4096] [--experts 32] [--hidden 7168] [--inner 2048]

Times are those of CUDA graphs, which are replayed with weights that the L2 cache does not hold; host time is that of
a call that is not captured. "Separate" gathers and quantizes rows, multiplies, computes SwiGLU with quantization,
multiplies and adds rows, in a call of this library each.
"""

import argparse
import functools
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


def graph_us(step, repeats=20):
    """Microseconds of a replay, and of the host in an eager call."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    host = (time.perf_counter() - start) / repeats * 1e6
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(repeats):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e3)
    return sorted(times)[repeats // 2], host


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="1,32,128,1024,4096")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--inner", type=int, default=2048)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    w1 = weights(arguments.experts, 2 * arguments.inner, arguments.hidden)
    w2 = weights(arguments.experts, arguments.hidden, arguments.inner)
    print("| tokens | one call, us | separate calls, us | ratio | host: one call | separate | cosine |")
    print("|---|---|---|---|---|---|---|")
    for tokens in map(int, arguments.tokens.split(",")):
        x = torch.randn(tokens, arguments.hidden, device="cuda", dtype=torch.bfloat16)
        scores = torch.rand(tokens, arguments.experts, device="cuda")
        factors, ids = scores.topk(arguments.topk)
        factors, ids = factors.contiguous(), ids.to(torch.int32).contiguous()
        found = {}
        for step in (one_call, separate):
            found[step] = graph_us(functools.partial(step, x, ids, factors, w1, w2))
        one, other = (step(x, ids, factors, w1, w2).double().flatten() for step in (one_call, separate))
        cosine = torch.nn.functional.cosine_similarity(one, other, 0).item()
        (us, host), (us_separate, host_separate) = found[one_call], found[separate]
        print(
            f"| {tokens} | {us:.1f} | {us_separate:.1f} | {us_separate / us:.2f} | {host:.0f} | {host_separate:.0f} "
            f"| {cosine:.6f} |"
        )


if __name__ == "__main__":
    main()
