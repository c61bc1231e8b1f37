"""A mixture of experts: tokens to the places of their experts, and back. Of torch and of numpy."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _call
from . import _oxigemm as _C
from ._arrays import empty
from .errors import ArgumentError

__all__ = ["Permuted", "permute", "rows_needed", "unpermute", "zero_padding_rows"]


class Permuted(NamedTuple):
    """Where tokens go; int32."""

    #: [M]: the token of each row, or -1. What ``quantization.gather_quantize`` takes.
    tokens: Any
    #: [M]: the expert of each row, or -1: ``grouped_layout`` of a product.
    groups: Any
    #: [E]: the row behind the last of each expert: ``grouped_layout`` with ``use_psum_layout``.
    ends: Any
    #: [T, topk]: the row of each choice, or -1. What ``unpermute`` takes.
    places: Any


def rows_needed(tokens: int, topk: int, experts: int, alignment: int = 128) -> int:
    """The most rows that ``permute`` may need, with those that round experts up."""
    choices, alignment = tokens * topk, max(alignment, 1)
    # Each expert has a multiple of the alignment, and so have all.
    return (choices + min(experts, choices) * (alignment - 1)) // alignment * alignment


def _choices(ids: Any) -> Any:
    if len(ids.shape) != 2:
        raise ArgumentError(f"`ids` has the wrong rank: expected 2 dimensions, found {tuple(ids.shape)}", "ids")
    return ids.shape[0], ids.shape[1]


def permute(ids: Any, experts: int, alignment: int = 128, rows: Optional[int] = None) -> Permuted:
    """Sorts tokens by the experts that are chosen for them, in one kernel.

    ``ids`` is int32 [T, topk], contiguous: experts from 0 to ``experts - 1``. Rows of an expert begin at a multiple of ``alignment``, which
    is 1, 16, 32, 64 or 128, and follow the order of tokens. There are ``rows`` of them, as many as may be needed unless it is given.
    The choices are read on the device: a graph may be replayed with others.
    """
    tokens, topk = _choices(ids)
    rows = rows_needed(tokens, topk, experts, alignment) if rows is None else rows
    found = Permuted(*(empty(ids, shape, "int32") for shape in ((rows,), (rows,), (experts,), (tokens, topk))))
    if _call.is_compiling():
        _call.ops().moe_permute(ids, alignment, *found)
    else:
        _C.moe_permute(ids, alignment, *found)
    return found


def unpermute(rows: Any, places: Any, weights: Any, out: Optional[Any] = None) -> Any:
    """``out[t] = sum over k of weights[t, k] * rows[places[t, k]]``, added in float32 in the order of the choices.

    ``rows`` is bfloat16 [M, K], ``places`` int32 [T, topk] as ``permute`` has them, ``weights`` float32 [T, topk], ``out`` bfloat16 [T, K]. A
    place that is no row adds nothing.
    """
    out = empty(rows, (places.shape[0], rows.shape[-1]), "bfloat16") if out is None else out
    if _call.is_compiling():
        _call.ops().moe_unpermute(rows, places, weights, out)
    else:
        _C.moe_unpermute(rows, places, weights, out)
    return out


def zero_padding_rows(ids: Any, num_groups: int, d: Any) -> None:
    """Makes the rows of D zero whose group, int32 [M], is not from 0 to ``num_groups - 1``; ``d`` is [M, N] of bfloat16, float16 or float32.

    The contiguous products of ``deep_gemm`` do so themselves where they are told the group of every row.
    """
    if _call.is_compiling():
        _call.ops().zero_padding_rows(ids, num_groups, d)
    else:
        _C.zero_padding_rows(ids, num_groups, d)
