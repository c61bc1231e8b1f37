"""Times of the dense FP8 and BF16 cases of `oxigemm bench`, called from Python with torch tensors, beside those of the command line.

    python crates/python/bench/anchor.py [--filter "m4096 n7168"]

Both are durations of kernels, after a fill that flushes the L2 cache and 0.4 s of rest before each case. The cases are those that
the command line prints, case by case right before or after the same case here.
"""

import argparse
import json
import subprocess
import sys
import time

import torch

from oxigemm import deep_gemm


def fp8(m, n, k):
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    a, b = deep_gemm.per_token_cast_to_fp8(a, False), deep_gemm.per_block_cast_to_fp8(b, False)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d)


def bf16(m, n, k):
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: deep_gemm.bf16_gemm_nt(a, b, d)


def command_line(op, filter_text):
    """The cases that the command line has, with its times."""
    command = [sys.executable, "-m", "oxigemm", "bench", "--op", op, "--json"]
    if filter_text:
        command += ["--filter", filter_text]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if not run.stdout.strip():
        raise SystemExit(run.stderr)
    rows = []

    def collect(found):
        if isinstance(found, dict):
            if {"m", "n", "k", "us"} <= found.keys():
                rows.append(found)
            for part in found.values():
                collect(part)
        elif isinstance(found, list):
            for part in found:
                collect(part)

    for line in run.stdout.splitlines():
        collect(json.loads(line))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="")
    arguments = parser.parse_args()
    worst = 0.0
    for op, operands in (("fp8", fp8), ("bf16", bf16)):
        for row in command_line(op, arguments.filter):
            m, n, k, there = row["m"], row["n"], row["k"], row["us"]
            call = operands(m, n, k)
            time.sleep(0.4)
            here = min(
                deep_gemm.bench_kineto(call, "gemm", num_tests=20, suppress_kineto_output=True) for _ in range(2)
            )
            ratio = here * 1e6 / there
            worst = max(worst, abs(ratio - 1))
            print(f"{op} m{m} n{n} k{k}: {here * 1e6:.2f} us, command line {there:.2f} us, {ratio:.3f}")
    print(f"largest difference {worst:.1%}")


if __name__ == "__main__":
    main()
