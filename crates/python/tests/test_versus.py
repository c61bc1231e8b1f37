"""The benchmark beside a peer: its cases by seed, their operands, what it refuses, and its tables."""

import hashlib
import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")
BENCH = pathlib.Path(__file__).parents[1] / "bench"

sys.path.insert(0, str(BENCH))
versus = importlib.import_module("versus")
cases = importlib.import_module("versus_cases")
operands = importlib.import_module("versus_operands")
tables = importlib.import_module("versus_tables")
sys.path.remove(str(BENCH))

#: A small case of every kind, with rows that no tile divides.
SMALL = [
    operands.Dense(5, 136, 256),
    operands.Dense(7, 200, 384, mn=True),
    operands.Dense(5, 136, 192, bf16=True),
    operands.Accumulated(128, 256, 128),
    operands.MGrouped("contig", 3, 20, 128, 256),
    operands.MGrouped("contig", 3, 20, 128, 256, skewed=True, mn=True),
    operands.MGrouped("contig", 2, 20, 128, 192, bf16=True),
    operands.MGrouped("masked", 3, 20, 128, 256, capacity=128),
    operands.MGrouped("masked", 3, 20, 128, 256, skewed=True, mn=True, capacity=130),
    operands.MGrouped("masked", 2, 20, 128, 192, bf16=True, capacity=64),
    operands.KGrouped(3, 128, 256, 200),
    operands.Prefill(70, 200, 32, 64),
    operands.Paged(3, 2, 32, 128, 150),
]
by_name = pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)


def digest(found):
    return hashlib.sha256("\n".join(case.name for case in found).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    "seed, first, names",
    [
        (1, "fp8_dense m1052 n57344 k8192", "24f208148563fa2f"),
        (7, "fp8_dense m357 n7168 k2048 mn", "98386662d681dc6e"),
        (101, "fp8_masked g16 em24 n4096 k1536 mn", "bcbbd30dc1899880"),
        (105, "fp8_dense m17 n9216 k4096", "4fed6194a89d3a00"),
    ],
)
def test_a_seed_means_the_same_cases_for_ever(seed, first, names):
    found = cases.model_cases(seed)
    assert (len(found), found[0].name, digest(found)) == (80, first, names)
    assert cases.model_cases(seed, 11) == found[:11]


def test_the_anchor_has_76_cases():
    found = cases.anchor_cases()
    assert (len(found), len({case.name for case in found}), digest(found)) == (76, 76, "8f01de831520829e")


def test_groups_are_of_the_mean_size_and_only_some_are_hot():
    assert all(70 <= size <= 130 for size in operands.even(64, 100))
    sizes = operands.skewed(64, 100)
    assert 6400 - 64 <= sum(sizes) <= 6400 and max(sizes) > 400 and sorted(sizes)[32] < 100
    hot = operands.MGrouped("masked", 64, 100, 128, 128, skewed=True, capacity=256)
    assert max(hot.sizes()) == 256


def shapes(operand):
    if isinstance(operand, torch.Tensor):
        return list(operand.shape)
    return [list(tensor.shape) for tensor in operand]


@pytest.mark.parametrize(
    "case, expected",
    [
        (SMALL[0], {"a": [[5, 256], [5, 2]], "b": [[136, 256], [2, 2]]}),
        (SMALL[1], {"a": [[7, 384], [7, 3]], "b": [[200, 384], [2, 3]]}),
        (SMALL[2], {"a": [5, 192], "b": [136, 192]}),
        (SMALL[3], {"a": [[128, 128], [128, 1]], "b": [[256, 128], [256, 1]]}),
        (SMALL[4], {"a": [[384, 256], [384, 2]], "b": [[3, 128, 256], [3, 1, 2]], "layout": [384]}),
        (SMALL[8], {"a": [[3, 130, 256], [3, 130, 2]], "b": [[3, 128, 256], [3, 1, 2]], "counts": [3]}),
        (SMALL[9], {"a": [2, 64, 192], "b": [2, 128, 192], "counts": [2]}),
    ],
    ids=lambda value: value.name if isinstance(value, operands.Case) else "",
)
def test_shapes_of_operands(case, expected):
    found = case.build("cpu")
    assert {name: shapes(operand) for name, operand in found.operands.items()} == expected
    assert found.flops > 0 and found.bytes > 0


def test_shapes_of_groups_along_k():
    problem = operands.KGrouped(3, 128, 256, 200).build("cpu")
    total = int(problem.operands["counts"].sum())
    assert total % 128 == 0 and total >= 3 * 128
    assert shapes(problem.operands["a"]) == [[128 * total], [128, total // 128]]
    assert shapes(problem.operands["b"]) == [[256 * total], [256, total // 128]]


def test_scales_for_the_kernels_are_mn_major():
    for case, rows in ((SMALL[1], 8), (SMALL[5], None), (SMALL[8], 132)):
        scales = case.build("cpu").operands["a"][1]
        assert scales.stride(-2) == 1 and scales.stride(-1) == (rows or scales.shape[-2])


@pytest.mark.parametrize("shape, rows", [((5, 256), 1), ((130, 200), 128), ((1, 128), 1)])
def test_codes_and_scales_stand_for_the_numbers(shape, rows):
    x = torch.randn(shape)
    found = operands.exact(operands.quantized(x, rows))
    assert found.shape == x.shape and versus.difference(found, x) < 1e-3
    # Scales of other blocks are told from the right ones.
    codes, scales = operands.quantized(x * torch.arange(1, 1 + shape[1]), rows)
    if scales.numel() > 1:
        right, wrong = (operands.exact((codes, each)) for each in (scales, scales.flip(-1)))
        assert versus.difference(right, wrong) > 10 * versus.LARGEST_DIFFERENCE


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_every_page_belongs_to_one_place_of_one_sequence(length):
    found = operands.Paged(5, 1, 8, 128, length).build("cpu").operands
    lengths = found["context"][:, 0].tolist()
    read = [page for row, length in zip(found["table"].tolist(), lengths) for page in row[: -(-length // 64)]]
    assert sorted(read) == list(range(len(found["cache"])))


@by_name
def test_the_facade_gives_the_reference(case):
    from oxigemm import deep_gemm

    torch.manual_seed(0)
    problem = case.build("cpu")
    reference, call = problem.reference(), problem.call(deep_gemm)
    call.run()
    assert versus.difference(call.result(), reference) < 1e-5
    # Accumulated calls have added to their output by now.
    call.run()
    assert versus.difference(call.result(), reference) < 1e-5


@by_name
def test_the_names_of_deep_gemm_2_8_give_the_reference(case):
    from oxigemm import deep_gemm

    old = ("fp8_mqa_logits", "fp8_paged_mqa_logits")
    peer = types.SimpleNamespace(**{name: getattr(deep_gemm, name) for name in deep_gemm.__all__ if name not in old})
    problem = case.build("cpu")
    call = problem.call(peer)
    call.run()
    assert versus.difference(call.result(), problem.reference()) < 1e-5


class FakeClock:
    """Times that are listed, in the order in which they are asked for."""

    def __init__(self, times):
        self.times, self.called = iter(times), []

    def first_s(self, run):
        run()
        return 0.5

    def kernels_us(self, run):
        self.called.append(run)
        return next(self.times)

    def host_us(self, run, kernels_us):
        return 3.0

    def calibration_us(self):
        return 92.0


@pytest.fixture
def on_the_cpu(monkeypatch):
    """What would be timed on a GPU is called on the CPU."""
    monkeypatch.setattr(versus, "DEVICE", "cpu")
    monkeypatch.setattr(versus, "Clock", lambda: FakeClock(itertools.cycle([30.0, 24.0])))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "no GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(versus, "model_cases", lambda seed, count: SMALL[:count])


def product(factor):
    """A module whose GEMM is wrong by a factor."""

    def gemm(a, b, d):
        d.copy_(factor * operands.exact(a) @ operands.exact(b).T)

    return types.SimpleNamespace(fp8_gemm_nt=gemm, bf16_gemm_nt=gemm)


def test_the_sides_take_turns_and_the_better_round_counts(on_the_cpu):
    case, clock = operands.Dense(5, 128, 128), FakeClock([30.0, 24.0, 28.0, 20.0])
    result = tables.Result(1, 0, case.name)
    versus.measure(result, case, {"peer": product(1), "ours": product(1)}, clock, rounds=2)
    assert (result.peer_us, result.ours_us, result.ratio, result.calibration_us) == (28.0, 20.0, 1.4, 92.0)
    assert clock.called[0] is clock.called[2] and clock.called[1] is clock.called[3]
    assert clock.called[0] is not clock.called[1] and result.is_timed
    assert result.ours_diff < 1e-5 and result.ours_host_us == 3.0


def test_most_cases_have_no_calibration_of_their_own(on_the_cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(versus, "model_cases", lambda seed, count: [operands.Dense(m, 128, 128) for m in range(1, 13)])
    monkeypatch.setattr(versus, "imported", lambda name: product(1))
    path = str(tmp_path / "run")
    assert versus.main(["peer", "--seeds", "1", "--json", path]) == 0
    run = tables.Run.read(path)
    assert [case.index for case in run.cases if case.calibration_us is not None] == [0, 10]


@pytest.mark.parametrize(
    "peer, ours, message",
    [
        (1, 1.05, r"^ours: differs from the reference by 1\.2e-03, expected 0\.0001 at most$"),
        (0, 1, "^peer: differs from the reference by 1.0e[+]00"),
        (1, float("nan"), "^ours: differs from the reference by nan"),
    ],
)
def test_a_wrong_result_is_not_timed(on_the_cpu, peer, ours, message):
    case, clock = operands.Dense(5, 128, 128), FakeClock([])
    result = tables.Result(1, 0, case.name)
    with pytest.raises(versus.CaseError, match=message) as caught:
        versus.measure(result, case, {"peer": product(peer), "ours": product(ours)}, clock, 1)
    result.error = str(caught.value)
    assert not clock.called and not result.is_timed
    assert "geometric mean" not in tables.tables(tables.Run("peer", "ours", "none", [result]))


def test_an_error_of_a_side_is_a_line(on_the_cpu):
    def failing(*_arguments):
        raise RuntimeError("no such kernel\nand more lines")

    sides = {"peer": types.SimpleNamespace(fp8_gemm_nt=failing), "ours": product(1)}
    case = operands.Dense(5, 128, 128)
    with pytest.raises(versus.CaseError, match="^peer: RuntimeError: no such kernel$"):
        versus.measure(tables.Result(1, 0, case.name), case, sides, FakeClock([]), 1)
    with pytest.raises(versus.CaseError, match="^peer: AttributeError: .*bf16_gemm_nt"):
        case = operands.Dense(5, 128, 128, bf16=True)
        versus.measure(tables.Result(1, 0, case.name), case, sides, FakeClock([]), 1)


def test_a_result_of_another_shape_is_an_error():
    with pytest.raises(versus.CaseError, match=r"shape \(2, 3\), the reference \(3, 2\)"):
        versus.difference(torch.zeros(2, 3), torch.zeros(3, 2))


def test_calls_are_what_lies_between_two_flushes():
    flush = [("Memset (Device)", 700.0)]
    parts = [("void vectorized_elementwise_kernel<4, FillFunctor<int>>", 400.0)] * 2
    kernels = [
        ("before", 9.0),
        *flush,
        ("transpose", 2.0),
        ("gemm", 5.0),
        *parts,
        ("Memset (Device)", 1.5),
        ("gemm", 4.0),
    ]
    assert versus.calls_of(kernels) == [7.0, 5.5]
    assert versus.calls_of([*flush, ("prefill", 200.0), *flush]) == [200.0, 0.0]
    assert versus.calls_of([("gemm", 200.0)]) == []


@pytest.mark.parametrize(
    "case, family, title",
    [
        ("fp8_dense m128 n576 k7168", "FP8 dense, 1 to 128 rows", "FP8 m128 n576 k7168"),
        ("fp8_dense m129 n576 k7168 mn", "FP8 dense, 129 to 1024 rows", "FP8 m129 n576 k7168, MN-major"),
        ("fp8_dense m1025 n576 k7168", "FP8 dense, more rows", "FP8 m1025 n576 k7168"),
        ("bf16_dense m1 n576 k7168", "BF16 dense, 1 to 128 rows", "BF16 m1 n576 k7168"),
        ("bf16_dense m129 n576 k7168", "BF16 dense, more rows", "BF16 m129 n576 k7168"),
        (
            "fp8_contig g8 em150 n4096 k7168 skewed mn",
            "m-grouped contiguous, up to 150 rows per group",
            "FP8 contiguous g8 em150 n4096 k7168 skewed, MN-major",
        ),
        (
            "bf16_contig g8 em151 n4096 k4096",
            "m-grouped contiguous, more rows",
            "BF16 contiguous g8 em151 n4096 k4096",
        ),
        ("fp8_masked g6 em20 n4096 k2048", "m-grouped masked", "FP8 masked g6 em20 n4096 k2048"),
        ("fp8_1d1d m4096 n7168 k4096", "1D1D", "1D1D m4096 n7168 k4096"),
        ("fp8_kgrouped g4 m4096 n7168 ek8192", "k-grouped", "k-grouped g4 m4096 n7168 ek8192"),
        ("paged_mqa b64 n1 h64 d128 l8192", "paged MQA logits", "paged MQA b64 n1 h64 d128 l8192"),
        ("mqa sq2048 sk8192 h64 d128", "prefill MQA logits", "prefill MQA sq2048 sk8192 h64 d128"),
    ],
)
def test_families_and_titles(case, family, title):
    assert (tables.family(case), tables.title(case)) == (family, title)


def test_every_case_is_of_a_family():
    found = {tables.family(case.name) for seed in range(20) for case in cases.model_cases(seed)}
    found |= {tables.family(case.name) for case in cases.anchor_cases()}
    assert found == set(tables.FAMILIES)


def result(seed, index, case, peer, ours, calibration=92.0):
    times = {"peer_us": peer, "ours_us": ours, "ratio": peer / ours, "calibration_us": calibration}
    return tables.Result(seed, index, case, **times)


RESULTS = [
    result(101, 0, "fp8_dense m1 n576 k7168", 20.0, 10.0, 91.5),
    result(101, 1, "fp8_dense m7 n576 k7168 mn", 10.0, 20.0),
    result(101, 2, "bf16_dense m200 n576 k7168", 9.6, 10.0),
    result(102, 0, "paged_mqa b64 n1 h64 d128 l8192", 9.9, 10.0),
    tables.Result(102, 1, "fp8_masked g6 em20 n4096 k2048", error="ours: differs | from the reference"),
]
EXPECTED = """\
oxigemm.deep_gemm 1 beside deep_gemm 2, a GPU. Calibration 91.5 to 92.0 us.

| seed | cases | geometric mean | slowest | below 1 | below 0.97 | below 0.93 | slowest case |
|---|---|---|---|---|---|---|---|
| 101 | 3 | 0.986x | 0.500x | 2 | 2 | 1 | FP8 m7 n576 k7168, MN-major |
| 102 | 1 | 0.990x | 0.990x | 1 | 0 | 0 | paged MQA b64 n1 h64 d128 l8192 |
| all | 4 | **0.987x** | 0.500x | 3 | 2 | 1 | FP8 m7 n576 k7168, MN-major |

| family | cases | geometric mean | slowest | below 1 | below 0.97 | below 0.93 | slowest case |
|---|---|---|---|---|---|---|---|
| FP8 dense, 1 to 128 rows | 2 | 1.000x | 0.500x | 1 | 1 | 1 | FP8 m7 n576 k7168, MN-major |
| BF16 dense, more rows | 1 | 0.960x | 0.960x | 1 | 1 | 0 | BF16 m200 n576 k7168 |
| paged MQA logits | 1 | 0.990x | 0.990x | 1 | 0 | 0 | paged MQA b64 n1 h64 d128 l8192 |

| slowest cases | seed | ours, us | peer, us | ratio |
|---|---|---|---|---|
| FP8 m7 n576 k7168, MN-major | 101 | 20.00 | 10.00 | 0.500x |
| BF16 m200 n576 k7168 | 101 | 10.00 | 9.60 | 0.960x |
| paged MQA b64 n1 h64 d128 l8192 | 102 | 10.00 | 9.90 | 0.990x |
| FP8 m1 n576 k7168 | 101 | 10.00 | 20.00 | 2.000x |

| cases without a ratio | seed | error |
|---|---|---|
| FP8 masked g6 em20 n4096 k2048 | 102 | ours: differs \\| from the reference |
"""


def run_of(results):
    return tables.Run("deep_gemm 2", "oxigemm.deep_gemm 1", "a GPU", results)


def test_tables():
    assert tables.tables(run_of(RESULTS)) == EXPECTED
    many = [result(None, i, "fp8_1d1d m4096 n7168 k4096", 10.0 + i, 10.0) for i in range(20)]
    text = tables.tables(run_of(many))
    assert text.count("| anchor | 10.00 |") == 15 and "| all |" not in text and "| anchor | 20 |" in text


def test_files_are_merged_without_a_gpu(tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("a.json", "b.json", "out.json", "out.md")]
    # The first file has an older time of a case that the second has too.
    run_of([result(101, 0, RESULTS[0].case, 30.0, 10.0), *RESULTS[3:]]).write(files[0])
    run_of(RESULTS[:3]).write(files[1])
    assert versus.main(["--merge", *files[:2], "--markdown", files[3], "--json", files[2]]) == 1
    assert pathlib.Path(files[3]).read_text() == EXPECTED and capsys.readouterr().out == ""
    assert tables.Run.read(files[2]) == run_of(RESULTS)
    assert versus.main(["--merge", files[1]]) == 0
    assert capsys.readouterr().out.startswith("oxigemm.deep_gemm 1 beside deep_gemm 2, a GPU. Calibration 91.5")


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"peer": "", "ours": "", "gpu": "", "cases": [{"a": 1}]})])
def test_a_file_of_something_else_is_named(tmp_path, capsys, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        versus.main(["--merge", str(file)])
    assert f"{file} has no results of versus.py" in capsys.readouterr().err


def test_the_cases_of_a_command():
    every = versus.chosen(versus.parsed(["deep_gemm", "--seeds", "101,7", "--count", "9"]))
    assert [(result.seed, result.index) for result, _ in every] == [(s, i) for s in (101, 7) for i in range(9)]
    parts = [
        versus.chosen(versus.parsed(["x", "--seeds", "101,7", "--count", "9", "--part", f"{i}/4"]))
        for i in (1, 2, 3, 4)
    ]
    assert sorted(result.case for part in parts for result, _ in part) == sorted(result.case for result, _ in every)
    anchor = versus.chosen(versus.parsed(["x", "--set", "anchor", "--only", "paged"]))
    assert [(result.seed, result.index) for result, _ in anchor] == [(None, 73), (None, 74), (None, 75)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "expected PEER_MODULE or --merge, and not both"),
        (["deep_gemm", "--merge", "a.json"], "expected PEER_MODULE or --merge, and not both"),
        (["deep_gemm", "--part", "0/4"], "expected I/N with I from 1 to N, found '0/4'"),
        (["deep_gemm", "--part", "4"], "expected I/N with I from 1 to N, found '4'"),
        (["deep_gemm", "--rounds", "0"], "expected --rounds and --count of at least 1"),
        (["deep_gemm", "--seeds", "1,x"], "invalid seeds value: '1,x'"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        versus.main(arguments)
    assert message in capsys.readouterr().err


def test_without_a_gpu_there_is_one_sentence():
    command = [sys.executable, str(BENCH / "versus.py"), "deep_gemm", "--seeds", "1"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("versus.py: torch finds no GPU: ")


def test_a_module_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        versus.imported("no_such_module_of_kernels")
    assert "`no_such_module_of_kernels` cannot be imported" in capsys.readouterr().err
    assert versus.described("json.decoder", json.decoder) == f"json.decoder {json.__version__}"


def test_a_run_of_the_command(on_the_cpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "right_peer", product(1))
    monkeypatch.setitem(sys.modules, "wrong_peer", product(2))
    file = str(tmp_path / "out.json")
    command = ["--ours", "right_peer", "--seeds", "5,6", "--count", "3", "--only", "fp8", "--json", file]
    assert versus.main(["right_peer", *command]) == 0
    out, err = capsys.readouterr()
    assert out == tables.tables(tables.Run.read(file)) and "| all | 4 | **1.250x** | 1.250x |" in out
    assert err.splitlines()[0] == "1/4 5 fp8_dense m5 n136 k256: 24.00 us, peer 30.00 us, 1.250x"
    assert versus.main(["wrong_peer", *command, "--rounds", "1"]) == 1
    assert all("peer: differs" in case.error for case in tables.Run.read(file).cases)
    capsys.readouterr()
    assert versus.main(["right_peer", "--seeds", "5", "--count", "4", "--warm", "--part", "2/2"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "1/2 5 fp8_dense m7 n200 k384 mn: called\n2/2 5 fp8_1d1d" in err and "peer: TypeError" in err
