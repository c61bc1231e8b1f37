"""Results of ``versus.py``: their files, and the tables of docs/performance.md in Markdown."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Optional

#: Ratios below which cases are counted.
BARS = (1, 0.97, 0.93)
#: The slowest cases that a table lists.
SLOWEST = 15
#: How tables name the kinds of cases.
KINDS = {
    "fp8_dense": "FP8",
    "bf16_dense": "BF16",
    "fp8_contig": "FP8 contiguous",
    "bf16_contig": "BF16 contiguous",
    "fp8_masked": "FP8 masked",
    "bf16_masked": "BF16 masked",
    "fp8_1d1d": "1D1D",
    "fp8_kgrouped": "k-grouped",
    "paged_mqa": "paged MQA",
    "mqa": "prefill MQA",
}
#: Kinds of cases of a family, and the most rows: of the GEMM or, on average, of a group. The first that fits counts.
FAMILIES = {
    "FP8 dense, 1 to 128 rows": (("fp8_dense",), 128),
    "FP8 dense, 129 to 1024 rows": (("fp8_dense",), 1024),
    "FP8 dense, more rows": (("fp8_dense",), math.inf),
    "BF16 dense, 1 to 128 rows": (("bf16_dense",), 128),
    "BF16 dense, more rows": (("bf16_dense",), math.inf),
    "m-grouped contiguous, up to 150 rows per group": (("fp8_contig", "bf16_contig"), 150),
    "m-grouped contiguous, more rows": (("fp8_contig", "bf16_contig"), math.inf),
    "m-grouped masked": (("fp8_masked", "bf16_masked"), math.inf),
    "1D1D": (("fp8_1d1d",), math.inf),
    "k-grouped": (("fp8_kgrouped",), math.inf),
    "paged MQA logits": (("paged_mqa",), math.inf),
    "prefill MQA logits": (("mqa",), math.inf),
}


@dataclasses.dataclass
class Result:
    """A case of a seed, and what was measured: ``us`` is the time of its kernels, ``diff`` that to the reference."""

    #: None: the case is of the anchor.
    seed: Optional[int]
    #: The place among the cases of the seed, which may have a case twice.
    index: int
    case: str
    peer_us: Optional[float] = None
    ours_us: Optional[float] = None
    ratio: Optional[float] = None
    peer_host_us: Optional[float] = None
    ours_host_us: Optional[float] = None
    peer_first_s: Optional[float] = None
    ours_first_s: Optional[float] = None
    peer_diff: Optional[float] = None
    ours_diff: Optional[float] = None
    calibration_us: Optional[float] = None
    tflops: Optional[float] = None
    gbs: Optional[float] = None
    error: Optional[str] = None

    @property
    def is_timed(self) -> bool:
        return self.error is None and self.ratio is not None


@dataclasses.dataclass
class Run:
    """What was timed where, and the results."""

    peer: str
    ours: str
    gpu: str
    cases: list[Result]

    def write(self, path: str) -> None:
        pathlib.Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @staticmethod
    def read(path: str) -> Run:
        """The run of a file; a ValueError says which file is none."""
        try:
            found = json.loads(pathlib.Path(path).read_text())
            return Run(found["peer"], found["ours"], found["gpu"], [Result(**case) for case in found["cases"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} has no results of versus.py ({type(error).__name__}: {error})") from error


def merged(runs: list[Run]) -> Run:
    """All cases by seed, each as the last run has it."""

    def names(field: str) -> str:
        return ", ".join(dict.fromkeys(getattr(run, field) for run in runs))

    cases = {(case.seed, case.index, case.case): case for run in runs for case in run.cases}
    ordered = sorted(cases.values(), key=lambda case: (case.seed is not None, case.seed or 0, case.index))
    return Run(names("peer"), names("ours"), names("gpu"), ordered)


def seed_name(result: Result) -> str:
    return "anchor" if result.seed is None else str(result.seed)


def title(case: str) -> str:
    """A case as tables name it."""
    kind, _, sizes = case.partition(" ")
    return f"{KINDS[kind]} {sizes}".replace(" mn", ", MN-major")


def family(case: str) -> str:
    kind, _, sizes = case.partition(" ")
    found = re.search(r"\be?m(\d+)", sizes)
    rows = int(found[1]) if found else 0
    return next(name for name, (kinds, most) in FAMILIES.items() if kind in kinds and rows <= most)


def progress(result: Result) -> str:
    """The case in a line."""
    name = f"{seed_name(result)} {result.case}"
    if not result.is_timed:
        return f"{name}: {result.error or 'called'}"
    return f"{name}: {result.ours_us:.2f} us, peer {result.peer_us:.2f} us, {result.ratio:.3f}x"


def table(head: Sequence[Any], rows: Iterable[Iterable[Any]]) -> str:
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def summary(label: str, results: list[Result]) -> list[Any]:
    """A row: the number of cases, their geometric mean, and which are slow."""
    ratios = [result.ratio for result in results]
    mean = f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}x"
    slowest = min(results, key=lambda result: result.ratio)
    slow = [sum(ratio < bar for ratio in ratios) for bar in BARS]
    mean = f"**{mean}**" if label == "all" else mean
    return [label, len(results), mean, f"{slowest.ratio:.3f}x", *slow, title(slowest.case)]


def summaries(what: str, groups: dict[str, list[Result]]) -> str:
    """A table with a row for each group that has cases."""
    head = [what, "cases", "geometric mean", "slowest", *[f"below {bar}" for bar in BARS], "slowest case"]
    return table(head, [summary(label, results) for label, results in groups.items() if results])


def by_seed(results: list[Result]) -> str:
    names = dict.fromkeys(map(seed_name, results))
    groups = {name: [result for result in results if seed_name(result) == name] for name in names}
    return summaries("seed", {**groups, "all": results} if len(groups) > 1 else groups)


def by_family(results: list[Result]) -> str:
    return summaries("family", {name: [x for x in results if family(x.case) == name] for name in FAMILIES})


def slowest(results: list[Result]) -> str:
    found = sorted(results, key=lambda result: result.ratio)[:SLOWEST]
    rows = [(title(x.case), seed_name(x), f"{x.ours_us:.2f}", f"{x.peer_us:.2f}", f"{x.ratio:.3f}x") for x in found]
    return table(("slowest cases", "seed", "ours, us", "peer, us", "ratio"), rows)


def without_ratio(results: list[Result]) -> str:
    rows = [(title(result.case), seed_name(result), result.error or "not timed") for result in results]
    return table(("cases without a ratio", "seed", "error"), rows)


def tables(run: Run) -> str:
    """All tables of a run."""
    timed = [result for result in run.cases if result.is_timed]
    others = [result for result in run.cases if not result.is_timed]
    calibration = [result.calibration_us for result in timed if result.calibration_us is not None]
    head = f"{run.ours} beside {run.peer}, {run.gpu}."
    if calibration:
        head += f" Calibration {min(calibration):.1f} to {max(calibration):.1f} us."
    parts = [head]
    if timed:
        parts += [by_seed(timed), by_family(timed), slowest(timed)]
    if others:
        parts += [without_ratio(others)]
    return "\n\n".join(parts) + "\n"
