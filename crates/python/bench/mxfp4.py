"""FP8 by MXFP4 beside FP8 by FP8 on a Hopper GPU: the same activations, weights of 4 and of 8 bits.

    python crates/python/bench/mxfp4.py [--rows 1,8,16,32,64,128,512,1024,4096] [--groups]

Times are those of all kernels of a call, by torch's profiler, in turn, behind a fill that empties the L2 cache. Scales
of MXFP4 are bytes as checkpoints have them, those of FP8 float32 of 128x128. ``--groups``: m-grouped calls of experts,
the rows of each on average, contiguous and masked. Results are compared with each other.
"""

import argparse
import functools
import math

import torch
from torch.profiler import ProfilerActivity, profile

from oxigemm import deep_gemm

SIZES = [(4096, 7168), (7168, 2048), (24576, 1536), (7168, 16384), (2112, 7168)]
EXPERTS = [(32, 4096, 7168), (32, 7168, 2048), (128, 1536, 4096)]
BLOCK, REPEATS, FLUSH = 128, 10, 1 << 30
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def weights(*shape):
    """The same numbers as MXFP4 and as FP8: a scale for each block of 128x128, the same for its blocks of 1x32."""
    *groups, n, k = shape
    codes = torch.randint(0, 16, (*groups, n, k), dtype=torch.uint8, device="cuda")
    exponents = torch.randint(120, 124, (*groups, -(-n // BLOCK), -(-k // BLOCK)), dtype=torch.uint8, device="cuda")
    of_blocks = exponents.repeat_interleave(BLOCK, -2)[..., :n, :].repeat_interleave(4, -1).contiguous()
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    values = torch.tensor(E2M1, device="cuda")
    values = torch.cat([values, -values]).to(torch.float8_e4m3fn).view(torch.uint8)
    wide = torch.cat([values[part.int()] for part in codes.flatten(0, -2).split(1 << 12)]).view(codes.shape)
    scales = torch.exp2(exponents.float() - 127)
    return (packed.contiguous(), of_blocks), (wide.view(torch.float8_e4m3fn), scales)


def activations(*shape):
    """Codes and scales of 1x128, MN-major as the kernels read them."""
    codes = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 16).to(torch.float8_e4m3fn)
    *rest, rows, k = shape
    scales = torch.rand(*rest, -(-k // BLOCK), -(-rows // 4) * 4, device="cuda").transpose(-1, -2)[..., :rows, :]
    return codes, scales


def times(calls):
    """Mean microseconds of all kernels of each call."""
    flush = torch.empty(FLUSH // 4, dtype=torch.int32, device="cuda")
    for call in calls:
        call()
    totals = [math.inf] * len(calls)
    for _ in range(2):
        for place, call in enumerate(calls):
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                for _ in range(REPEATS):
                    flush.zero_()
                    call()
                torch.cuda.synchronize()
            ours = [event for event in found.key_averages() if "FillFunctor" not in event.key]
            totals[place] = min(totals[place], sum(event.device_time_total for event in ours) / REPEATS)
    return totals


def dense(rows, n, k, made):
    a, d = activations(rows, k), [torch.empty(rows, n, device="cuda", dtype=torch.bfloat16) for _ in made]
    return [functools.partial(deep_gemm.fp8_fp4_gemm_nt, a, b, out) for b, out in zip(made, d)], d


def contiguous(rows, groups, n, k, made):
    counts = torch.poisson(torch.full((groups,), float(rows))).int().tolist()
    ids = []
    for group, count in enumerate(counts):
        ids += [group] * count + [-1] * (-count % BLOCK)
    a, layout = activations(len(ids), k), torch.tensor(ids, dtype=torch.int32, device="cuda")
    d = [torch.zeros(len(ids), n, device="cuda", dtype=torch.bfloat16) for _ in made]
    call = deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous
    return [functools.partial(call, a, b, out, layout) for b, out in zip(made, d)], d


def masked(rows, groups, n, k, made):
    counts = torch.poisson(torch.full((groups,), float(rows))).int().cuda()
    most = -(-int(counts.max()) // 64) * 64
    a = activations(groups, most, k)
    d = [torch.zeros(groups, most, n, device="cuda", dtype=torch.bfloat16) for _ in made]
    call = deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked
    return [functools.partial(call, a, b, out, counts, rows) for b, out in zip(made, d)], d


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,8,16,32,64,128,512,1024,4096")
    parser.add_argument("--groups", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [int(count) for count in arguments.rows.split(",")]
    makers = {"contiguous": contiguous, "masked": masked} if arguments.groups else {"dense": dense}
    print("| case | rows | MXFP4, us | FP8, us | FP8 / MXFP4 | difference |\n|---|---|---|---|---|---|")
    for shape in EXPERTS if arguments.groups else SIZES:
        made = weights(*shape)
        for name, make in makers.items():
            for count in rows:
                calls, (narrow, wide) = make(count, *shape, made)
                us, us_fp8 = times(calls)
                scale = wide.float().abs().max().clamp_min(1e-9)
                difference = ((narrow.float() - wide.float()).abs().max() / scale).item()
                case = f"{name} " + "x".join(map(str, shape))
                print(f"| {case} | {count} | {us:.1f} | {us_fp8:.1f} | {us_fp8 / us:.2f} | {difference:.1e} |")
                del calls, narrow, wide


if __name__ == "__main__":
    main()
