"""Times of all cases of `oxigemm bench`, called from Python with torch tensors, beside those of the command line.

    python crates/python/bench/anchor.py [--family bf16] [--filter "m4096 n7168"] [--json]

Both are kernel durations by CUPTI: the mean of calls, each after a fill of 4 GB that flushes the L2 cache, with 0.4 s
of idle time before each case. Group sizes and sequence lengths are those that the command line has drawn. Every page of
a paged cache belongs to one place of one sequence. The command line runs once for each family; then all of its cases
are timed here in one session of torch's profiler.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import time

import torch

from oxigemm import deep_gemm

#: The arguments of `oxigemm bench` that have these cases timed.
FAMILIES = {
    "fp8": ["--op", "fp8"],
    "fp8-1d1d": ["--op", "fp8-1d1d"],
    "bf16": ["--op", "bf16"],
}
#: The bytes that the command line fills before a call. Torch fills them in parts; each takes at least so many
#: microseconds.
FLUSH_BYTES = 4 << 30
FLUSH_US = 100
REST_S = 0.4
#: The rows of memory of a masked group, and the alignment of contiguous groups.
MAX_M, ALIGNMENT = 4096, 128
BLOCK_KV = 64


def say(text):
    print(text, file=sys.stderr, flush=True)


def normals(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, device="cuda", dtype=dtype)


def numbers(values):
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def weights(groups, n, k):
    """FP8 [G, N, K] with 128x128 scales."""
    codes = empty(groups, n, k, dtype=torch.float8_e4m3fn)
    scales = empty(groups, -(-n // 128), -(-k // 128), dtype=torch.float32)
    for group in range(groups):
        codes[group], scales[group] = deep_gemm.per_block_cast_to_fp8(normals(n, k), False)
    return codes, scales


def contiguous_groups(rows):
    """The group of each row, where groups start at multiples of the alignment."""
    ids = []
    for group, count in enumerate(rows):
        ids += [group] * count + [-1] * (-count % ALIGNMENT)
    return numbers(ids)


def fp8_dense(m, n, k):
    a = deep_gemm.per_token_cast_to_fp8(normals(m, k), False)
    b = deep_gemm.per_block_cast_to_fp8(normals(n, k), False)
    d = empty(m, n)
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d)


def fp8_1d1d(m, n, k):
    a, b = (deep_gemm.per_token_cast_to_fp8(normals(rows, k), False) for rows in (m, n))
    d = normals(m, n, dtype=torch.float32)
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d, c=d, recipe=(1, 1, 128))


def bf16_dense(m, n, k):
    a, b, d = normals(m, k), normals(n, k), empty(m, n)
    return lambda: deep_gemm.bf16_gemm_nt(a, b, d)


def fp8_contiguous(rows, n, k):
    ids, b = contiguous_groups(rows), weights(len(rows), n, k)
    a = deep_gemm.per_token_cast_to_fp8(normals(len(ids), k), False)
    d = empty(len(ids), n)
    return lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ids)


def bf16_contiguous(rows, n, k):
    ids, b = contiguous_groups(rows), normals(len(rows), n, k)
    a, d = normals(len(ids), k), empty(len(ids), n)
    return lambda: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, ids)


def fp8_masked(rows, expected, n, k):
    groups, counts, b = len(rows), numbers(rows), weights(len(rows), n, k)
    a = empty(groups, MAX_M, k, dtype=torch.float8_e4m3fn), empty(groups, MAX_M, -(-k // 128), dtype=torch.float32)
    for group in range(groups):
        # Also rows of no group: uninitialized ones may be zeros, which take less power.
        a[0][group], a[1][group] = deep_gemm.per_token_cast_to_fp8(normals(MAX_M, k), False)
    d = empty(groups, MAX_M, n)
    return lambda: deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, expected * 6 // 5)


def bf16_masked(rows, expected, n, k):
    groups, counts, b = len(rows), numbers(rows), normals(len(rows), n, k)
    a, d = normals(groups, MAX_M, k), empty(groups, MAX_M, n)
    return lambda: deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, counts, expected)


def fp8_k_grouped(ks, m, n):
    def operand(rows):
        """The groups, contiguous, and MN-major scales."""
        parts = [deep_gemm.per_token_cast_to_fp8(normals(rows, k), False) for k in ks]
        codes = torch.cat([codes.flatten().view(torch.uint8) for codes, _ in parts]).view(torch.float8_e4m3fn)
        return codes, torch.cat([scales.T for _, scales in parts]).T

    a, b, d, counts = operand(m), operand(n), normals(len(ks), m, n, dtype=torch.float32), numbers(ks)
    return lambda: deep_gemm.k_grouped_fp8_gemm_nt_contiguous(a, b, d, ks, counts, d)


def prefill(queries, keys, heads, dim):
    q = normals(queries, heads, dim).to(torch.float8_e4m3fn)
    kv = deep_gemm.per_custom_dims_cast_to_fp8(normals(keys, dim), (0,), False)
    of_heads = normals(queries, heads, dtype=torch.float32)
    starts = numbers([0] * queries)
    ends = numbers(range(keys - queries + 1, keys + 1))
    return lambda: deep_gemm.fp8_mqa_logits(q, kv, of_heads, starts, ends)


def block_table(lengths, block_kv):
    """The pages of each sequence, one row each, and how many there are.

    Every page belongs to one place of one sequence, as in an engine: pages drawn with repetition would be read from the
    L2 cache.
    """
    used = [-(-length // block_kv) for length in lengths]
    pages = list(range(sum(used)))
    random.Random(0).shuffle(pages)
    drawn = iter(pages)
    return [[next(drawn) for _ in range(count)] + [0] * (max(used) - count) for count in used], len(pages)


def paged(lengths, next_n, heads, dim):
    sequences, longest = len(lengths), max(lengths)
    table, pages = block_table(lengths, BLOCK_KV)
    codes, scales = deep_gemm.per_custom_dims_cast_to_fp8(normals(pages * BLOCK_KV, dim), (0,), False)
    cache = empty(pages, BLOCK_KV * (dim + 4), dtype=torch.uint8)
    cache[:, : BLOCK_KV * dim] = codes.view(torch.uint8).view(pages, -1)
    cache[:, BLOCK_KV * dim :] = scales.view(pages, BLOCK_KV).view(torch.uint8)
    cache = cache.view(pages, BLOCK_KV, 1, dim + 4)
    q = normals(sequences, next_n, heads, dim).to(torch.float8_e4m3fn)
    of_heads = normals(sequences * next_n, heads, dtype=torch.float32)
    table, counts = numbers(table), numbers(lengths)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(counts, BLOCK_KV, deep_gemm.get_num_sms())
    return lambda: deep_gemm.fp8_paged_mqa_logits(q, cache, of_heads, counts, table, schedule, longest)


def name(row):
    return row.get("case") or f"m{row['m']} n{row['n']} k{row['k']}"


def call_of(family, row):
    """The call of a case, with operands as the command line has them."""
    kind = name(row).split()[0]
    sizes = {letters: int(digits) for letters, digits in re.findall(r"\b([a-z]+)(\d+)\b", name(row))}
    if kind == "mqa":
        return prefill(sizes["sq"], sizes["sk"], sizes["h"], sizes["d"])
    if kind == "paged_mqa":
        return paged(row["lengths"], sizes["n"], sizes["h"], sizes["d"])
    if kind == "fp8_kgrouped":
        return fp8_k_grouped(row["ks"], sizes["m"], sizes["n"])
    if kind in ("fp8_contig", "bf16_contig"):
        build = fp8_contiguous if kind == "fp8_contig" else bf16_contiguous
        return build(row["rows_of_groups"], sizes["n"], sizes["k"])
    if kind in ("fp8_masked", "bf16_masked"):
        build = fp8_masked if kind == "fp8_masked" else bf16_masked
        return build(row["rows_of_groups"], sizes["em"], sizes["n"], sizes["k"])
    dense = {"fp8": fp8_dense, "fp8-1d1d": fp8_1d1d, "bf16": bf16_dense}
    return dense[family](sizes["m"], sizes["n"], sizes["k"])


def command_line(family, text, runs):
    """The cases that the command line has of a family, with its times."""
    command = [sys.executable, "-m", "oxigemm", "bench", *FAMILIES[family], "--json", "--passes", "1"]
    command += ["--runs", str(runs), "--unchecked", "--uncalibrated", *(["--filter", text] if text else [])]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if text and "no case contains" in run.stderr:
        return []
    if not run.stdout.strip():
        raise SystemExit(run.stderr)
    found = json.loads(run.stdout)
    families = ("cases", "grouped", "k_grouped", "logits")
    return [row for family in families for row in found.get(family, [])]


def calls_of_cases(events):
    """The times of the kernels of every call: what is between two fills. A case ends with a fill."""
    kernels = sorted(
        (event for event in events if event.device_type == torch.autograd.DeviceType.CUDA),
        key=lambda event: event.time_range.start,
    )
    calls, call = [], None
    for event in kernels:
        us = event.time_range.end - event.time_range.start
        if us > FLUSH_US and ("Memset" in event.name or "FillFunctor" in event.name):
            # Another part of the same fill ends nothing.
            calls += [call] if call else []
            call = []
        elif call is not None:
            call.append(us)
    return calls


def times(cases, runs):
    """The mean time of the kernels of a call, in microseconds, of every case."""
    flush = empty(FLUSH_BYTES, dtype=torch.uint8)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for family, row in cases:
            call = call_of(family, row)
            call()
            torch.cuda.synchronize()
            time.sleep(REST_S)
            for _ in range(runs):
                flush.zero_()
                call()
            # Ends the last call; what follows is not of a case.
            flush.zero_()
            torch.cuda.synchronize()
            say(f"timed {family} {name(row)}")
            del call
    # Between the last fill of a case and the first of the next there are its operands.
    events = profiler.events()
    calls = [call for i, call in enumerate(calls_of_cases(events)) if i % (runs + 1) < runs]
    if len(calls) != runs * len(cases):
        names = sorted({event.name for event in events})
        raise SystemExit(f"expected {runs * len(cases)} calls, the profiler has seen {len(calls)}, among {names}")
    sums = [sum(call) for call in calls]
    return [sum(sums[i : i + runs]) / runs for i in range(0, len(sums), runs)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="all unless some are given")
    parser.add_argument("--filter", default="", help="only cases whose name contains this")
    parser.add_argument("--runs", type=int, default=10, help="calls of a case")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    started = time.monotonic()
    cases = []
    for family in arguments.family or FAMILIES:
        found = command_line(family, arguments.filter, arguments.runs)
        cases += [(family, row) for row in found]
        say(f"the command line has timed {len(found)} cases of {family}, after {time.monotonic() - started:.0f} s")
    if not cases:
        raise SystemExit(f"no case contains {arguments.filter!r}")
    results = [
        {"family": family, "case": name(row), "us": us, "command_line_us": row["us"], "ratio": us / row["us"]}
        for (family, row), us in zip(cases, times(cases, arguments.runs))
    ]
    worst = max(abs(result["ratio"] - 1) for result in results)
    took = time.monotonic() - started
    if arguments.json:
        print(json.dumps({"cases": results, "largest_difference": worst, "seconds": took}))
        return
    for result in results:
        there = f"command line {result['command_line_us']:.2f} us, {result['ratio']:.3f}"
        print(f"{result['family']} {result['case']}: {result['us']:.2f} us, {there}")
    print(f"largest difference {worst:.1%} of {len(results)} cases, {took:.0f} s")


if __name__ == "__main__":
    main()
