"""Mixture of experts: permute and unpermute."""

import math

import numpy as np
import pytest

import oxigemm
from oxigemm import moe

from arrays import BF16, E4M3, calc_diff, normals


def run(device, name, *arguments, **named):
    """A function on the device of a test."""
    function = getattr(moe, name)
    if device in ("torch", "cuda"):
        import torch

        from on_torch import on_torch

        function = on_torch(function, torch.device("cpu" if device == "torch" else "cuda"))
    return function(*arguments, **named)


def choices(tokens, topk, experts):
    """Different experts for each token, and one that is none."""
    ids = np.argsort(normals(tokens, experts), 1)[:, :topk].astype(np.int32)
    ids[0, 0] = -1
    return ids


@pytest.mark.parametrize("alignment", [1, 16, 128])
def test_rows_are_sorted_by_expert(device, alignment):
    ids = choices(20, 2, 5)
    tokens, groups, ends, places = run(device, "permute", ids, 5, alignment)
    assert len(tokens) == len(groups) == moe.rows_needed(20, 2, 5, alignment)
    first = 0
    for expert in range(5):
        chosen = [token for token in range(20) if expert in ids[token]]
        first = -(-first // alignment) * alignment
        assert ends[expert] == first + len(chosen)
        assert list(tokens[first : ends[expert]]) == chosen and (groups[first : ends[expert]] == expert).all()
        first = int(ends[expert])
    assert ((tokens == -1) == (groups == -1)).all() and (tokens >= 0).sum() == 39
    assert places[0, 0] == -1
    for token, choice in np.argwhere(ids >= 0):
        assert tokens[places[token, choice]] == token and groups[places[token, choice]] == ids[token, choice]


def test_fewer_rows_than_these_ids_need(device):
    ids = np.array([[0], [-1], [0], [7]], np.int32)
    if device == "cuda":
        # A GPU cannot tell.
        found = run(device, "permute", ids, 1, 1, rows=1)
        assert [list(x.ravel()) for x in found] == [[0], [0], [1], [0, -1, -1, -1]]
        return
    with pytest.raises(ValueError, match="2") as caught:
        run(device, "permute", ids, 1, 1, rows=1)
    assert caught.value.argument == "rows"


def test_fewer_rows_than_other_ids_would_need(device):
    ids = np.array([[0], [-1], [0], [7]], np.int32)
    found = run(device, "permute", ids, 1, 1, rows=2)
    assert [list(x.ravel()) for x in found] == [[0, 2], [0, 0], [2], [0, -1, 1, -1]]


def test_tokens_come_back(device):
    x = normals(9, 24).astype(BF16)
    ids, weights = choices(9, 3, 4), normals(9, 3, seed=1)
    permuted = run(device, "permute", ids, 4, 16)
    rows = x[permuted[0].clip(0)]
    exact = (weights * (ids >= 0)).sum(1, keepdims=True) * x.astype(np.float64)
    found = run(device, "unpermute", rows, permuted[3], weights)
    assert found.dtype == BF16 and calc_diff(found, exact) < 1e-5
    out = np.zeros((9, 24), BF16)
    assert run(device, "unpermute", rows, permuted[3], weights, out) is out
    assert (out == found).all()


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_rows_of_no_group_become_zero(device, dtype):
    ids = np.array([0, -1, 1, 2, 7, 1], np.int32)
    d = np.full((6, 40), 7.0, dtype)
    run(device, "zero_padding_rows", ids, 2, d[:, :33])
    assert (d[[1, 3, 4], :33] == 0).all() and (d[[0, 2, 5]] == 7).all() and (d[:, 33:] == 7).all()


WRONG = [
    (lambda: moe.permute(np.zeros(4, np.int32), 2), "ids"),
    (lambda: moe.permute(np.zeros((4, 1), np.float32), 2), "ids"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), 2, 5), "alignment"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), 2000), "experts"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), 0), "experts"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), -1), "experts"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), 2.0), "experts"),
    (lambda: moe.permute(np.zeros((4, 1), np.int64), 2), "ids"),
    (lambda: moe.permute([[0, 1]], 2), "ids"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), 2, 1, rows=-1), "rows"),
    (lambda: moe.permute(np.zeros((4, 1), np.int32), 2, 1, rows=1 << 70), "rows"),
    (lambda: moe.rows_needed(4, 1, 0), "experts"),
    (lambda: moe.rows_needed(4, 1, 2, 0), "alignment"),
    (lambda: moe.unpermute(None, np.zeros((4, 1), np.int32), normals(4, 1)), "rows"),
    (lambda: moe.zero_padding_rows(np.zeros(4, np.int32), -1, normals(4, 8)), "num_groups"),
    (lambda: moe.unpermute(normals(4, 8), np.zeros((4, 1), np.int32), normals(4, 1)), "rows"),
    (lambda: moe.unpermute(normals(4, 8).astype(BF16), np.zeros((4, 1), np.int32), normals(4, 2)), "weights"),
    (lambda: moe.zero_padding_rows(np.zeros(3, np.int32), 1, normals(4, 8)), "ids"),
    (lambda: moe.zero_padding_rows(np.zeros(4, np.int32), 1, normals(4)), "d"),
]


@pytest.mark.parametrize("call, argument", WRONG)
def test_what_is_wrong_is_named(call, argument):
    with pytest.raises(oxigemm.OxigemmError) as caught:
        call()
    assert caught.value.argument == argument


def experts_of(recipe, gated, seed):
    """Weights of three experts as calls take them, and what they mean."""
    groups, inner, outer = 3, 128, 256
    found = []
    for n, k in ((2 * inner if gated else inner, outer), (outer, inner)):
        exact = normals(groups, n, k, seed=seed + n) / 16
        if recipe == "bf16":
            weight = exact.astype(BF16)
            found.append((weight, weight.astype(np.float64)))
            continue
        scales = np.ldexp(np.float32(1), np.random.default_rng(n).integers(-4, 0, (groups, -(-n // 128), -(-k // 128))))
        scales = scales.astype(np.float32)
        codes = (exact * 16).astype(E4M3)
        wide = np.repeat(np.repeat(scales, 128, 1), 128, 2)[:, :n, :k]
        found.append(((codes, scales), codes.astype(np.float64) * wide))
    return found


def hidden_of(hidden, activation, gated, gate):
    """What lies between the products, of what the first one gives."""
    slope, limit, offset = gate or (1.0, np.inf, 0.0)
    if not gated:
        return np.maximum(hidden, 0) ** 2
    inner = len(hidden) // 2
    g, up = np.minimum(hidden[:inner], limit), np.clip(hidden[inner:], -limit, limit)
    if activation == "gelu":
        return g * 0.5 * (1 + np.vectorize(math.erf)(g / math.sqrt(2))) * up
    if activation == "gelu_tanh":
        return g * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) * up
    return g / (1 + np.exp(-slope * g)) * (up + offset)


#: The activation, whether it has gates, what these do, and whether experts have biases.
BETWEEN = {
    "SwiGLU": ("silu", True, None, False),
    "gpt-oss": ("silu", True, (1.702, 7.0, 1.0), True),
    "GeGLU": ("gelu", True, None, False),
    "GeGLU by tanh": ("gelu_tanh", True, None, False),
    "squared ReLU": ("relu_squared", False, None, False),
}


@pytest.mark.parametrize("recipe", ["fp8", "bf16"])
@pytest.mark.parametrize("between", BETWEEN)
def test_forward_is_the_mixture(device, recipe, between):
    activation, gated, gate, biased = BETWEEN[between]
    (w1, first), (w2, second) = experts_of(recipe, gated, 3)
    # Some gates and ups are beyond the limits, on either side.
    x, factors = (4 * normals(11, 256)).astype(BF16), np.abs(normals(11, 2, seed=4))
    ids = choices(11, 2, 3)
    biases = [normals(3, weight.shape[1], seed=5) if biased else None for weight in (first, second)]
    named = dict(biases=tuple(biases), activation=activation, gated=gated, gate=gate)
    out = run(device, "forward", x, ids, factors, w1, w2, **named)
    exact, beyond = np.zeros((11, 256)), 0
    for token, choice in np.argwhere(ids >= 0):
        expert = ids[token, choice]
        hidden = first[expert] @ x[token].astype(np.float64) + (biases[0][expert] if biased else 0)
        beyond += (np.abs(hidden) > 7).sum()
        hidden = hidden_of(hidden, activation, gated, gate)
        exact[token] += factors[token, choice] * (second[expert] @ hidden + (biases[1][expert] if biased else 0))
    assert beyond > 10
    assert calc_diff(out, exact) < (2e-3 if recipe == "fp8" else 1e-5)


@pytest.mark.parametrize("recipe", ["fp8", "bf16"])
def test_a_shared_expert_is_a_last_choice(device, recipe):
    (w1, first), (w2, second) = experts_of(recipe, True, 3)
    x, factors = normals(9, 256).astype(BF16), np.abs(normals(9, 2, seed=4))
    # Two experts are chosen from, and the last one is every token's.
    ids = np.concatenate([choices(9, 1, 2), np.full((9, 1), 2, np.int32)], 1)
    factors[:, 1] = 1
    out = run(device, "forward", x, ids, factors, w1, w2)
    mlp = lambda expert, token: second[expert] @ hidden_of(first[expert] @ token, "silu", True, None)  # noqa: E731
    exact = np.stack([mlp(2, token) for token in x.astype(np.float64)])
    assert calc_diff(out[:1], exact[:1]) < (2e-3 if recipe == "fp8" else 1e-5), "a token that is routed nowhere"
    for token in range(9):
        if ids[token, 0] >= 0:
            exact[token] += factors[token, 0] * mlp(ids[token, 0], x[token].astype(np.float64))
    assert calc_diff(out, exact) < (2e-3 if recipe == "fp8" else 1e-5)


def test_forward_names_what_is_wrong():
    (w1, _), (w2, _) = experts_of("fp8", True, 3)
    x, ids, factors = np.zeros((2, 256), BF16), np.zeros((2, 2), np.int32), np.zeros((2, 2), np.float32)
    with pytest.raises(ValueError, match="`down_scales`"):
        moe.forward(x, ids, factors, w1, w2[0])
    with pytest.raises(ValueError, match="`x`"):
        moe.forward(x[:, :128], ids, factors, w1, w2)
    with pytest.raises(ValueError, match="`gate`"):
        moe.forward(x, ids, factors, w1, w2, activation="gelu", gate=(1.702, 7.0, 1.0))
