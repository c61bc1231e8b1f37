"""Host time of a call with torch tensors of a GPU: 1000 calls are queued without synchronization.

    python crates/python/bench/host_time.py

The host time is that of the loop, which does nothing else. Kernels are small, so the driver's queue never fills. Host
time does not depend on values, so all scales are 1. `layers` is the time of a model; the others repeat one call.
"""

import argparse
import itertools
import json
import time

import torch

from oxigemm import deep_gemm


def fp8(m, n, k):
    a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn), torch.ones(m, k // 128, device="cuda")
    b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn), torch.ones(n // 128, k // 128, device="cuda")
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d)


def fp8_with_addend(m, n, k):
    a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn), torch.ones(m, k // 128, device="cuda")
    b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn), torch.ones(n // 128, k // 128, device="cuda")
    d = torch.zeros(m, n, device="cuda")
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d, c=d, recipe=(1, 128, 128), disable_ue8m0_cast=True)


def bf16(m, n, k):
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: deep_gemm.bf16_gemm_nt(a, b, d)


def masked(m, n, k, groups=4):
    a = torch.randn(groups, m, k, device="cuda").to(torch.float8_e4m3fn), torch.ones(groups, m, k // 128, device="cuda")
    b = (
        torch.randn(groups, n, k, device="cuda").to(torch.float8_e4m3fn),
        torch.ones(groups, n // 128, k // 128, device="cuda"),
    )
    d = torch.empty(groups, m, n, device="cuda", dtype=torch.bfloat16)
    counts = torch.full((groups,), m, device="cuda", dtype=torch.int32)
    return lambda: deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, m)


def new_outputs(m, n, k):
    """As in a model: a new output tensor for each call."""
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))

    def call():
        d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        deep_gemm.bf16_gemm_nt(a, b, d)

    return call


def layers(m, n, k, count=256):
    """As in a model: the weights of many layers in turn, so that no call has the operands of the one before."""
    calls = itertools.cycle([fp8(m, n, k) for _ in range(count)])
    return lambda: next(calls)()


def empty_tensor(m, n, k):
    """Torch's own part of `new_outputs`."""
    return lambda: torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def microseconds(call, calls=1000, rounds=7):
    for _ in range(100):
        call()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return best / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases = [fp8, fp8_with_addend, bf16, masked, layers, new_outputs, empty_tensor]
    found = {case.__name__: microseconds(case(8, 256, 256)) for case in cases}
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, time_of_call in found.items():
            print(f"{name:20} {time_of_call:6.2f} us")


if __name__ == "__main__":
    main()
