"""Times of two modules with DeepGEMM's functions, case by case in turn, and the tables of docs/performance.md.

    python crates/python/bench/versus.py deep_gemm --seeds 101,102,103 [--markdown FILE] [--json FILE]
    python crates/python/bench/versus.py deep_gemm --set anchor --rounds 2
    python crates/python/bench/versus.py deep_gemm --seeds 101,102,103 --warm --part 1/8
    python crates/python/bench/versus.py --merge FILE FILE --markdown FILE

The first argument is the peer: any module that has DeepGEMM's functions, such as a prebuilt ``deep_gemm``. Both modules
get the same operands. A time is that of all kernels of a call by CUPTI: the mean of 20 calls, each after a fill of 4 GB
that flushes the L2 cache, with 0.4 s of idle time before; the better of the rounds. A result that differs from the
reference is an error, and its time counts nowhere. A ratio is the peer's time by ours. Logits are not cleaned: neither
side writes what no query sees.

``--warm`` calls the peer once for each case and times nothing: it compiles its kernels. Several such processes, each
with a ``--part``, do so in parallel. ``--merge`` makes the tables of files that ``--json`` has written, without a GPU;
of a case that several have, the last file's result counts. The exit status is 1 if a case has an error.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, Optional

import torch

from versus_cases import anchor_cases, model_cases
from versus_operands import E4M3, Case
from versus_tables import Result, Run, merged, progress, tables

DEVICE = "cuda"
#: The calls whose mean counts. As many before them do not count.
CALLS = 20
#: Calls of which the host's time is taken: at most so many, those that the GPU needs this long for, at least so many.
HOST_CALLS = 200
HOST_GPU_US = 20_000
LEAST_HOST_CALLS = 20
#: Cases from one calibration to the next. Its time differs by less than 1% between them.
CALIBRATION_EVERY = 10
FLUSH_BYTES = 4 << 30
#: The time that each kernel of such a fill takes at least; torch fills memory in parts.
FLUSH_US = 100
REST_S = 0.4
#: How different a result may be. The roundings of BF16 alone make 1.4e-6, a scale of another block 1e-3 or more.
LARGEST_DIFFERENCE = 1e-4
#: Elements that are compared at a time, in FP64.
COMPARED = 1 << 26


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse(text: str) -> NoReturn:
    say(f"versus.py: {text}")
    raise SystemExit(2)


class CaseError(Exception):
    """What is wrong with a case, in a line."""


@contextlib.contextmanager
def errors_of(side: str) -> Iterator[None]:
    """A context whose errors become those of the case, with the name of the side."""
    try:
        yield
    except CaseError as error:
        raise CaseError(f"{side}: {error}") from error
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise CaseError(f"{side}: {type(error).__name__}: {first[:300]}") from error


# Times


def calls_of(kernels: Iterable[tuple[str, float]]) -> list[float]:
    """The time of each call: of the kernels between two fills. A short fill is one of the call's own."""
    calls: list[float] = []
    is_filling = False
    for name, us in kernels:
        if us > FLUSH_US and ("Memset" in name or "FillFunctor" in name):
            calls += [] if is_filling else [0.0]
            is_filling = True
        elif calls:
            calls[-1] += us
            is_filling = False
    return calls


class Clock:
    """Times of calls on torch's current GPU."""

    def __init__(self) -> None:
        self.fill = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        a, b = (torch.randn(4096, 4096, device="cuda").to(E4M3) for _ in range(2))
        one = torch.ones((), device="cuda")

        def calibration() -> torch.Tensor:
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        self.calibration = calibration

    def first_s(self, run: Callable[[], Any]) -> float:
        """Seconds until a call has been computed."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def kernels_us(self, run: Callable[[], Any], calls: int = CALLS) -> float:
        """The mean time of all kernels of a call."""
        run()
        torch.cuda.synchronize()
        time.sleep(REST_S)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(2 * calls):
                self.fill.zero_()
                run()
            torch.cuda.synchronize()
        events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        events.sort(key=lambda event: event.time_range.start)
        times = calls_of((event.name, event.time_range.end - event.time_range.start) for event in events)
        if len(times) != 2 * calls:
            names = sorted({event.name for event in events})
            raise CaseError(f"expected {2 * calls} calls, the profiler has seen {len(times)}, among {names}")
        return sum(times[calls:]) / calls

    def host_us(self, run: Callable[[], Any], kernels_us: float) -> float:
        """Microseconds of the host in a call, of many that are queued, whose kernels take so long each."""
        calls = min(max(int(HOST_GPU_US / kernels_us), LEAST_HOST_CALLS), HOST_CALLS)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        taken = time.perf_counter() - start
        torch.cuda.synchronize()
        return taken / calls * 1e6

    def calibration_us(self) -> float:
        """The calibration GEMM: FP8 by cuBLASLt, 4096^3."""
        return self.kernels_us(self.calibration, 10)


# Cases


def difference(x: torch.Tensor, y: torch.Tensor) -> float:
    """DeepGEMM's measure of how different two tensors are: 0 if they are equal."""
    if x.shape != y.shape:
        raise CaseError(f"the result has the shape {tuple(x.shape)}, the reference {tuple(y.shape)}")
    product = norm = 0.0
    for left, right in zip(x.flatten().split(COMPARED), y.flatten().split(COMPARED)):
        left, right = left.double(), right.double()
        product += (left * right).sum().item()
        norm += (left * left + right * right).sum().item()
    return 1 - 2 * product / norm if norm else 0.0


def measure(
    result: Result, case: Case, sides: dict[str, Any], clock: Any, rounds: int, calibrates: bool = True
) -> None:
    """The measurement of a case: both sides are called, compared with the reference, and timed in turn."""
    torch.manual_seed(0)
    with errors_of("operands"):
        problem = case.build(DEVICE)
        reference = problem.reference()
    calls = {}
    for side, module in sides.items():
        with errors_of(side):
            calls[side] = problem.call(module)
            setattr(result, f"{side}_first_s", round(clock.first_s(calls[side].run), 4))
            found = difference(calls[side].result(), reference)
            setattr(result, f"{side}_diff", found)
            # NaN is refused too.
            if not found <= LARGEST_DIFFERENCE:
                raise CaseError(f"differs from the reference by {found:.1e}, expected {LARGEST_DIFFERENCE} at most")
    del reference
    if calibrates:
        with errors_of("calibration"):
            result.calibration_us = round(clock.calibration_us(), 2)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side in list(sides) * rounds:
        with errors_of(side):
            times[side].append(clock.kernels_us(calls[side].run))
    for side in sides:
        setattr(result, f"{side}_us", round(min(times[side]), 3))
        with errors_of(side):
            host_us = clock.host_us(calls[side].run, min(times[side]))
            setattr(result, f"{side}_host_us", round(host_us, 2))
    ours = min(times["ours"])
    result.ratio = round(min(times["peer"]) / ours, 4)
    result.tflops, result.gbs = round(problem.flops / ours / 1e6, 1), round(problem.bytes / ours / 1e3, 1)


def call_once(case: Case, peer: Any) -> None:
    """One call, for which the peer compiles its kernels."""
    torch.manual_seed(0)
    with errors_of("operands"):
        problem = case.build(DEVICE)
    with errors_of("peer"):
        problem.call(peer).run()


def chosen(arguments: argparse.Namespace) -> list[tuple[Result, Case]]:
    """The cases that the arguments name, or this part of them."""
    sets: dict[Optional[int], list[Case]] = {None: anchor_cases()}
    if arguments.set == "models":
        sets = {seed: model_cases(seed, arguments.count) for seed in arguments.seeds}
    found = [(Result(seed, i, case.name), case) for seed, cases in sets.items() for i, case in enumerate(cases)]
    place, parts = arguments.part
    return [pair for pair in found if arguments.only in pair[0].case][place - 1 :: parts]


# The command


def seeds(text: str) -> list[int]:
    """Seeds, with commas between them."""
    return [int(seed) for seed in text.split(",")]


def part(text: str) -> tuple[int, int]:
    """The I-th of N parts."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    place, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= place <= parts:
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, found {text!r}")
    return place, parts


def parsed(command: Optional[list[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", nargs="?", metavar="PEER_MODULE", help="a module with DeepGEMM's functions")
    parser.add_argument("--ours", default="oxigemm.deep_gemm", metavar="MODULE")
    parser.add_argument("--set", default="models", choices=["models", "anchor"])
    parser.add_argument("--seeds", type=seeds, default="101,102,103,104,105", help="of --set models")
    parser.add_argument("--count", type=int, default=80, help="cases of a seed")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--part", type=part, default="1/1", metavar="I/N", help="only the I-th of N parts of the cases")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", action="store_true", help="call the peer once for each case, and time nothing")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="tables of these results, without a GPU")
    parser.add_argument("--json", metavar="FILE", help="the results; written after every case")
    parser.add_argument("--markdown", metavar="FILE", help="the tables, which are printed otherwise")
    arguments = parser.parse_args(command)
    if (arguments.peer is None) == (arguments.merge is None):
        parser.error("expected PEER_MODULE or --merge, and not both")
    if arguments.rounds < 1 or arguments.count < 1:
        parser.error("expected --rounds and --count of at least 1")
    return arguments


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        refuse(f"the module `{name}` cannot be imported ({error}): install it, or put its directory on PYTHONPATH")


def described(name: str, module: Any) -> str:
    """A module with its version, which may be that of its package."""
    package = sys.modules.get(name.partition(".")[0], module)
    version = getattr(module, "__version__", None) or getattr(package, "__version__", "")
    return f"{name} {version}".strip()


def timed(arguments: argparse.Namespace) -> Run:
    """The results of all cases; with ``--warm`` the peer is called, and nothing timed."""
    if not torch.cuda.is_available():
        refuse("torch finds no GPU: run it where torch, the peer and oxigemm have one, or use --merge")
    pairs = chosen(arguments)
    if not pairs:
        refuse("no case is chosen: expected another --only, --part or --count")
    peer = imported(arguments.peer)
    ours, clock = (None, None) if arguments.warm else (imported(arguments.ours), Clock())
    names = described(arguments.peer, peer), described(arguments.ours, ours)
    run = Run(*names, gpu=torch.cuda.get_device_name(), cases=[])
    for place, (result, case) in enumerate(pairs, 1):
        try:
            if arguments.warm:
                call_once(case, peer)
            else:
                calibrates = place % CALIBRATION_EVERY == 1
                measure(result, case, {"peer": peer, "ours": ours}, clock, arguments.rounds, calibrates)
        except CaseError as error:
            result.error = str(error)
        run.cases.append(result)
        say(f"{place}/{len(pairs)} {progress(result)}")
        if arguments.json and not arguments.warm:
            run.write(arguments.json)
        # These raise after an error that leaves no GPU to go on with. The file has the cases up to there.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return run


def main(command: Optional[list[str]] = None) -> int:
    arguments = parsed(command)
    if arguments.merge:
        try:
            run = merged([Run.read(path) for path in arguments.merge])
        except ValueError as error:
            refuse(str(error))
        if arguments.json:
            run.write(arguments.json)
    else:
        run = timed(arguments)
    if not arguments.warm:
        text = tables(run)
        if arguments.markdown:
            pathlib.Path(arguments.markdown).write_text(text)
        else:
            print(text, end="")
    return int(any(result.error for result in run.cases))


if __name__ == "__main__":
    raise SystemExit(main())
