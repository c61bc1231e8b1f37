"""The router of a mixture of experts: which experts a token goes to, and with which weights."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

from . import _call
from . import _oxigemm as _C
from ._arrays import dtype_name, empty, expect_bool, expect_choice, expect_elements, expect_int, expect_matrix, is_torch
from .errors import ArgumentError, ArgumentTypeError

_SCORINGS = ("softmax", "sigmoid", "sqrtsoftplus")
_GROUP_SCORES = ("sum_of_two", "best")
#: Most experts of a token, and most groups.
_MOST = 32


class Routing(NamedTuple):
    """The experts of tokens, from the best to the worst."""

    #: int32 [T, topk]; -1 where there is none.
    ids: Any
    #: float32 [T, topk]; 0 where there is none.
    weights: Any


def top_k(
    logits: Any,
    topk: int,
    *,
    scoring: str = "softmax",
    bias: Optional[Any] = None,
    groups: int = 1,
    topk_groups: int = 1,
    group_score: str = "sum_of_two",
    renormalize: bool = False,
    scale: float = 1.0,
    token_mask: Optional[Any] = None,
    token_count: Optional[Any] = None,
    expert_mask: Optional[Any] = None,
    map: Optional[Any] = None,
    out: Optional[Tuple[Any, Any]] = None,
) -> Routing:
    """Chooses the experts of each token from logits, [T, E] of float32 or bfloat16; E is 1 to 512, ``topk`` 1 to 32.

    ``scoring`` makes scores of logits: "softmax", "sigmoid" or "sqrtsoftplus". Experts are ranked by score plus
    ``bias``, float32 [E]; without a bias by their logits. Ties go to the lower index, and NaN is below all numbers.
    Where there are ``groups`` of neighbouring experts, the ``topk_groups`` best of them are chosen from: by the sum of
    their two best experts, or by their "best" one. Weights are scores without the bias, divided by their sum where
    ``renormalize`` says so, times ``scale``.

    ``token_mask`` is bool or uint8 [T]: tokens that are 0 are routed nowhere; so are those from ``token_count``, int32
    [1], on. ``expert_mask``, bool or uint8 [E], turns experts off that are 0. ``map``, int32 [E], has the id that is
    returned for each expert. ``out`` are arrays for the result. Everything is read on the device: a CUDA graph may be
    replayed with other numbers.

    >>> ids, weights = top_k(logits, 8, scoring="sigmoid", bias=bias, groups=8, topk_groups=4, renormalize=True)
    """
    tokens, _ = expect_matrix("logits", logits)
    lists = bias, _bytes("token_mask", token_mask), token_count, _bytes("expert_mask", expert_mask), map
    choice = _choice(scoring, groups, topk_groups, group_score, renormalize, scale)
    found = _outputs(logits, tokens, topk, out)
    if _call.is_compiling():
        _call.ops().moe_top_k(logits, *found, *lists, *choice)
    else:
        _C.moe_top_k(logits, found, lists, choice)
    return found


def route(
    x: Any,
    gate: Any,
    topk: int,
    *,
    scoring: str = "softmax",
    bias: Optional[Any] = None,
    groups: int = 1,
    topk_groups: int = 1,
    group_score: str = "sum_of_two",
    renormalize: bool = False,
    scale: float = 1.0,
    token_mask: Optional[Any] = None,
    token_count: Optional[Any] = None,
    expert_mask: Optional[Any] = None,
    map: Optional[Any] = None,
    out: Optional[Tuple[Any, Any]] = None,
) -> Routing:
    """Chooses the experts of each token from hidden states: ``top_k`` of the logits ``x @ gate.T``, float32 sums.

    ``x`` is bfloat16 [T, K], ``gate`` bfloat16 [E, K]; their rows start at multiples of 16 bytes. The others are those
    of ``top_k``. Two kernels, of which the second starts while the first ends; logits stay on the device.

    >>> ids, weights = route(x, gate, 8, scoring="sigmoid", bias=bias, groups=8, topk_groups=4, renormalize=True)
    """
    tokens, _ = expect_matrix("x", x)
    lists = bias, _bytes("token_mask", token_mask), token_count, _bytes("expert_mask", expert_mask), map
    choice = _choice(scoring, groups, topk_groups, group_score, renormalize, scale)
    found = _outputs(x, tokens, topk, out)
    if _call.is_compiling():
        _call.ops().moe_route(x, gate, *found, *lists, *choice)
    else:
        _C.moe_route(x, gate, found, lists, choice)
    return found


def _choice(scoring, groups, topk_groups, group_score, renormalize, scale):
    """How experts are chosen, as the extension takes it."""
    return (
        expect_choice("scoring", scoring, _SCORINGS),
        expect_int("groups", groups, 1, _MOST),
        expect_int("topk_groups", topk_groups, 1, _MOST),
        expect_choice("group_score", group_score, _GROUP_SCORES),
        expect_bool("renormalize", renormalize),
        scale,
    )


def _bytes(argument: str, mask: Optional[Any]) -> Optional[Any]:
    """A mask as bytes: a bool is one."""
    if mask is None:
        return None
    expect_elements(argument, mask, ("bool", "uint8"))
    if dtype_name(mask.dtype) != "bool":
        return mask
    if is_torch(mask):
        import torch

        return mask.view(torch.uint8)
    return mask.view("uint8")


def _outputs(like: Any, tokens: int, topk: int, out: Optional[Tuple[Any, Any]]) -> Routing:
    topk = expect_int("topk", topk, 1, _MOST)
    if out is None:
        return Routing(empty(like, (tokens, topk), "int32"), empty(like, (tokens, topk), "float32"))
    if not isinstance(out, tuple) or len(out) != 2:
        message = f"`out` has the wrong type: expected a tuple of ids and weights, found {type(out).__name__}"
        raise ArgumentTypeError(message, "out")
    for name, array in zip(Routing._fields, out):
        if expect_matrix(name, array) != (tokens, topk):
            message = f"`{name}` has the wrong shape: expected {(tokens, topk)}, found {tuple(array.shape)}"
            raise ArgumentError(message, name)
    return Routing(*out)
