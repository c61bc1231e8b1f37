"""The router of a mixture of experts."""

import numpy as np
import pytest

import oxigemm
from oxigemm import moe

from arrays import BF16, normals


def run(device, name, *arguments, **named):
    """A function on the device of a test."""
    function = getattr(moe, name)
    if device in ("torch", "cuda"):
        import torch

        from on_torch import on_torch

        function = on_torch(function, torch.device("cpu" if device == "torch" else "cuda"))
    return function(*arguments, **named)


def scores_of(logits, scoring):
    """Scores in float64."""
    logits = logits.astype(np.float64)
    if scoring == "softmax":
        e = np.exp(logits - logits.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    if scoring == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    return np.sqrt(np.log1p(np.exp(logits)))


def chosen(ranks, topk):
    """The best experts of each token; ties go to the lower index."""
    return np.argsort(-ranks, 1, kind="stable")[:, :topk].astype(np.int32)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_experts_are_the_best(device, scoring, renormalize):
    logits = normals(9, 40)
    ids, weights = run(device, "top_k", logits, 6, scoring=scoring, renormalize=renormalize, scale=2.5)
    scores = scores_of(logits, scoring)
    expected = chosen(logits, 6)
    assert (ids == expected).all()
    exact = np.take_along_axis(scores, expected, 1)
    exact = 2.5 * (exact / exact.sum(1, keepdims=True) if renormalize else exact)
    assert weights.dtype == np.float32 and np.allclose(weights, exact, rtol=2e-6, atol=0)


def test_groups_and_bias_of_deepseek_v3(device):
    logits, bias = normals(7, 64), 0.1 * normals(64, seed=3)
    named = {"scoring": "sigmoid", "bias": bias, "groups": 8, "topk_groups": 4, "renormalize": True}
    ids, weights = run(device, "top_k", logits, 8, **named)
    scores = scores_of(logits, "sigmoid")
    ranks = (scores + bias).reshape(7, 8, 8)
    groups = chosen(np.sort(ranks, 2)[:, :, -2:].sum(2), 4)
    kept = np.zeros((7, 8, 1), bool)
    np.put_along_axis(kept, groups[:, :, None], True, 1)
    expected = chosen(np.where(kept, ranks, -np.inf).reshape(7, 64), 8)
    assert (ids == expected).all()
    exact = np.take_along_axis(scores, expected, 1)
    assert np.allclose(weights, exact / exact.sum(1, keepdims=True), rtol=2e-6)
    best, _ = run(device, "top_k", logits, 8, **{**named, "bias": None, "group_score": "best"})
    groups = np.sort(chosen(logits.reshape(7, 8, 8).max(2), 4), 1)
    assert all(set(best[token] // 8) <= set(groups[token]) for token in range(7))


def test_masks_padding_and_map(device):
    logits, off = normals(5, 8), np.arange(8) % 2 == 0
    named = {"token_mask": np.array([1, 0, 1, 1, 1], np.uint8), "expert_mask": off}
    named.update(token_count=np.array([4], np.int32), map=np.arange(100, 108, dtype=np.int32))
    ids, weights = run(device, "top_k", logits, 5, **named)
    assert (ids[[1, 4]] == -1).all() and (weights[[1, 4]] == 0).all()
    for token in [0, 2, 3]:
        order = chosen(np.where(off, logits, -np.inf)[token : token + 1], 4)[0]
        assert list(ids[token]) == [*(100 + order), -1] and weights[token, 4] == 0
        assert abs(weights[token].sum() - 1) < 1e-6


def test_ties_and_nan(device):
    logits = np.array([[1, 2, np.nan, 2, np.inf, -np.inf, np.nan, 0.0]], np.float32)
    ids, weights = run(device, "top_k", logits, 8, scoring="sigmoid")
    assert list(ids[0]) == [4, 1, 3, 0, 7, 5, 2, 6]
    assert np.isfinite(weights).all() and (weights[0, 5:] == 0).all()


def test_routing_of_hidden_states(device):
    x, gate = normals(6, 128).astype(BF16), normals(24, 128, seed=1).astype(BF16)
    logits = (x.astype(np.float64) @ gate.astype(np.float64).T).astype(np.float32)
    ids, weights = run(device, "route", x, gate, 4, renormalize=True)
    assert (ids == chosen(logits, 4)).all()
    assert np.allclose(weights.sum(1), 1, rtol=1e-6)
    out = np.zeros((6, 4), np.int32), np.zeros((6, 4), np.float32)
    found = run(device, "route", x, gate, 4, renormalize=True, out=out)
    assert (found[0] == ids).all() and (out[0] == ids).all() and (out[1] == weights).all()
    permuted = run(device, "permute", ids, 24, 16)
    assert (permuted[3] >= 0).all()


def test_no_tokens(device):
    ids, weights = run(device, "route", np.zeros((0, 64), BF16), np.zeros((8, 64), BF16), 2)
    assert ids.shape == weights.shape == (0, 2)


LOGITS = normals(4, 8)
WRONG = [
    (lambda: moe.top_k(normals(8), 2), "logits"),
    (lambda: moe.top_k(LOGITS.astype(np.float64), 2), "logits"),
    (lambda: moe.top_k(normals(2, 513), 2), "logits"),
    (lambda: moe.top_k(LOGITS, 0), "topk"),
    (lambda: moe.top_k(LOGITS, 33), "topk"),
    (lambda: moe.top_k(LOGITS, 2.0), "topk"),
    (lambda: moe.top_k(LOGITS, 9), "ids"),
    (lambda: moe.top_k(LOGITS, 2, scoring="relu"), "scoring"),
    (lambda: moe.top_k(LOGITS, 2, groups=3), "groups"),
    (lambda: moe.top_k(LOGITS, 2, groups=0), "groups"),
    (lambda: moe.top_k(LOGITS, 2, groups=4, topk_groups=5), "topk_groups"),
    (lambda: moe.top_k(LOGITS, 2, group_score="worst"), "group_score"),
    (lambda: moe.top_k(LOGITS, 2, renormalize=1), "renormalize"),
    (lambda: moe.top_k(LOGITS, 2, scale=float("nan")), "scale"),
    (lambda: moe.top_k(LOGITS, 2, scale="1"), "scale"),
    (lambda: moe.top_k(LOGITS, 2, bias=normals(7)), "bias"),
    (lambda: moe.top_k(LOGITS, 2, bias=normals(8).astype(BF16)), "bias"),
    (lambda: moe.top_k(LOGITS, 2, token_mask=np.ones(3, bool)), "token_mask"),
    (lambda: moe.top_k(LOGITS, 2, token_mask=np.ones(4, np.int32)), "token_mask"),
    (lambda: moe.top_k(LOGITS, 2, expert_mask=[True] * 8), "expert_mask"),
    (lambda: moe.top_k(LOGITS, 2, token_count=np.ones(2, np.int32)), "token_count"),
    (lambda: moe.top_k(LOGITS, 2, map=np.ones(8, np.int64)), "map"),
    (lambda: moe.top_k(LOGITS, 2, out=(np.zeros((4, 3), np.int32), np.zeros((4, 2), np.float32))), "ids"),
    (lambda: moe.top_k(LOGITS, 2, out=(np.zeros((4, 2), np.int32), np.zeros((4, 3), np.float32))), "weights"),
    (lambda: moe.top_k(LOGITS, 2, out=(np.zeros((4, 2), np.int64), np.zeros((4, 2), np.float32))), "ids"),
    (lambda: moe.top_k(LOGITS, 2, out=[1, 2]), "out"),
    (lambda: moe.route(LOGITS, LOGITS, 2), "x"),
    (lambda: moe.route(LOGITS.astype(BF16), normals(4, 16).astype(BF16), 2), "gate"),
    (lambda: moe.route(LOGITS[:, :7].astype(BF16), LOGITS[:, :7].astype(BF16), 2), "x"),
]


@pytest.mark.parametrize("call, argument", WRONG)
def test_what_is_wrong_is_named(call, argument):
    with pytest.raises(oxigemm.OxigemmError) as caught:
        call()
    assert caught.value.argument == argument
