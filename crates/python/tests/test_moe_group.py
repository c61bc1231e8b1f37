"""``moe.forward`` with a group of torch.distributed: four processes on the CPU."""

import json
import os
import subprocess
import sys

import pytest
import torch

import oxigemm
from oxigemm import moe

import absent_rank
from group_cases import CASES, COLUMNS, DISAGREEMENTS, EXPERTS, LOCAL, RANKS, REFUSALS

TESTS = os.path.dirname(__file__)
RIGHT = [name for name, case in CASES.items() if case.wrong is None]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What came out of every call on every rank: one start of four processes for all tests."""
    directory = tmp_path_factory.mktemp("group")
    start_ranks("group_cases.py", RANKS, lambda rank: [str(rank), str(directory)])
    return [torch.load(directory / f"rank{rank}") for rank in range(RANKS)]


def start_ranks(script, ranks, arguments):
    """Processes of a program on the CPU, until all have ended."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OXIGEMM_DEVICE": "cpu"}
    start = lambda rank: [sys.executable, os.path.join(TESTS, script), *arguments(rank)]  # noqa: E731
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    runs = [subprocess.Popen(start(rank), **pipes) for rank in range(ranks)]
    try:
        texts = [run.communicate(timeout=300)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0] * ranks, "\n".join(texts)


def tokens_of(case, rank):
    """The tokens of a rank. Where there are none, it is the same what type they have."""
    return case._replace(quantized=case.quantized and case.counts[rank] > 0).tokens(rank)


def alone(case, rank):
    """What one process with all experts computes for the tokens of a rank."""
    weights, biases = case.experts()
    return moe.forward(*tokens_of(case, rank), *weights, biases=biases, **case.between())


def by_ranks(case, rank, local=LOCAL):
    """The same, with a sum in bfloat16 for each rank of experts, and these added in order."""
    (x, ids, factors), (weights, biases) = tokens_of(case, rank), case.experts()
    total = torch.zeros(len(ids), COLUMNS)
    for first in range(0, EXPERTS, local):
        own = torch.where((ids >= first) & (ids < first + local), ids, -1)
        total += moe.forward(x, own, factors, *weights, biases=biases, **case.between()).float()
    return total.bfloat16()


def owners(ids, local=LOCAL):
    """How many ranks have experts of each token."""
    valid = (ids >= 0) & (ids < EXPERTS)
    return torch.tensor([len({int(i) // local for i in row[keep]}) for row, keep in zip(ids, valid)])


def expect_same(found, expected):
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)


@pytest.mark.parametrize("name", RIGHT)
def test_tokens_of_every_rank_get_the_mixture_of_all_experts(found, name):
    case = CASES[name]
    for rank in range(RANKS):
        out, exact = found[rank][name], alone(case, rank)
        expect_same(out, by_ranks(case, rank))
        # A sum that no other is added to has the bits of one process.
        few = owners(case.tokens(rank)[1]) <= 1
        assert torch.equal(out[few], exact[few])
        torch.testing.assert_close(out, exact, rtol=0.02, atol=0.02 * float(exact.abs().max()) if len(exact) else 0)


def test_cases_have_what_they_are_for():
    counts = torch.cat([owners(CASES["bf16"].tokens(rank)[1]) for rank in range(RANKS)])
    assert set(counts.tolist()) >= {1, 2, 3}
    ids = torch.cat([CASES["bf16"].tokens(rank)[1] for rank in range(RANKS)])
    assert (ids < 0).any() and (ids >= EXPERTS).any() and (ids.sort(1)[0].diff(dim=1) == 0).any()
    one = torch.cat([owners(CASES["one rank"].tokens(rank)[1]) for rank in range(RANKS)])
    assert (one == 1).all()


def test_an_output_that_is_given_and_rows_of_another_pitch(found):
    for rank in range(RANKS):
        expect_same(found[rank]["given output"], by_ranks(CASES["fp8"], rank))


@pytest.mark.parametrize("recipe", ["fp8", "mxfp4", "bf16"])
def test_mega_moe_of_all_ranks(found, recipe):
    case = CASES[recipe]
    ids = torch.cat([case.tokens(rank)[1] for rank in range(RANKS)])
    for rank in range(RANKS):
        y, stats = found[rank][f"mega {recipe}"]
        count = case.counts[rank]
        expect_same(y[:count], by_ranks(case, rank))
        assert not y[count:].any()
        assert stats.tolist() == [int((ids == rank * LOCAL + expert).sum()) for expert in range(LOCAL)]


def test_a_part_of_the_ranks(found):
    for rank in (1, 3):
        expect_same(found[rank]["pair"], by_ranks(CASES["bf16"], rank // 2, local=EXPERTS // 2))
    for rank in (0, 2):
        kind, argument, text = found[rank]["pair"]
        assert (kind, argument) == ("ArgumentTypeError", "group") and "this process" in text


def test_a_rank_alone(found):
    for rank in range(RANKS):
        expect_same(found[rank]["alone"], alone(CASES["fp8"], 0))


def test_a_trace_leaves_the_call_out(found):
    weights, biases = CASES["fp8"].experts()
    x, *rest = CASES["fp8"].tokens(0)
    expect_same(found[0]["compiled"], moe.forward(x * 2, *rest, *weights) * 2)


def test_a_capture_is_refused(found):
    kind, argument, text = found[0]["capture"]
    assert (kind, argument) == ("ArgumentError", "group") and "CUDA graph" in text


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_every_rank_names_what_differs(found, name):
    errors = [found[rank][f"wrong {name}"] for rank in range(RANKS)]
    assert len(set(errors)) == 1, errors
    kind, argument, text = errors[0]
    assert (kind, argument) == ("ArgumentError", DISAGREEMENTS[name]), text
    assert f"`{argument}` differs between ranks: expected " in text and text.endswith("on rank 2"), text


@pytest.mark.parametrize("name", REFUSALS)
def test_what_one_rank_refuses_fails_on_all(found, name):
    errors = [found[rank][f"wrong {name}"] for rank in range(RANKS)]
    (kind, argument, text), others = errors[1], {errors[rank] for rank in (0, 2, 3)}
    assert kind in ("ArgumentError", "ArgumentTypeError") and argument == REFUSALS[name], text
    expected = f"`group` has no result: rank 1 refused its arguments: {text}"
    assert others == {("ArgumentError", "group", expected)}


@pytest.fixture(scope="module")
def without_one(tmp_path_factory):
    """What calls gave to which the last of three ranks did not come."""
    directory = tmp_path_factory.mktemp("absent")
    start_ranks("absent_rank.py", absent_rank.RANKS, lambda rank: [str(rank), str(directory)])
    read = lambda name: json.loads((directory / name).read_text(encoding="utf-8"))  # noqa: E731
    return {how: [read(f"{how}{rank}") for rank in range(absent_rank.RANKS - 1)] for how in absent_rank.HOW}


@pytest.mark.parametrize("how", absent_rank.HOW)
def test_a_rank_that_does_not_come_is_named(without_one, how):
    for rank, ((kind, argument, text), seconds) in enumerate(without_one[how]):
        assert (kind, argument) == ("OxigemmError", "group"), text
        beginning = f"`group` has no result: rank {absent_rank.RANKS - 1} did not come within "
        assert text.startswith(beginning) and f" s to rank {rank};" in text, text
        # The timeout of an exchange or two, and the time in which the others find each other: no half hour.
        assert seconds < 10 * absent_rank.SECONDS, text


@pytest.mark.parametrize("group", [None, 4, "gloo", object()])
def test_what_is_no_group(group):
    (tensors, named) = (*CASES["bf16"].tokens(0), *CASES["bf16"].experts()[0]), CASES["bf16"].between()
    if group is None:
        expect_same(moe.forward(*tensors, **named, group=None), alone(CASES["bf16"], 0))
        return
    with pytest.raises(oxigemm.ArgumentTypeError, match="`group` has the wrong type") as caught:
        moe.forward(*tensors, **named, group=group)
    assert caught.value.argument == "group"
