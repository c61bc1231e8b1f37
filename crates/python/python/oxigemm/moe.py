"""Mixture of experts: permute tokens to the rows of their experts, and unpermute. For torch and for numpy."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _call
from . import _oxigemm as _C
from ._arrays import empty
from .errors import ArgumentError

__all__ = ["Permuted", "permute", "rows_needed", "unpermute", "zero_padding_rows"]


class Permuted(NamedTuple):
    """The permutation of tokens; int32."""

    #: [M]: the token of each row, or -1; ``rows`` of ``quantization.gather_quantize``.
    tokens: Any
    #: [M]: the expert of each row, or -1; ``grouped_layout`` of an m-grouped contiguous GEMM.
    groups: Any
    #: [E]: the end row of each expert; ``grouped_layout`` with ``use_psum_layout``.
    ends: Any
    #: [T, topk]: the row of each choice, or -1; ``places`` of ``unpermute``.
    places: Any


def rows_needed(tokens: int, topk: int, experts: int, alignment: int = 128) -> int:
    """The most rows that ``permute`` may need, padding included."""
    choices, alignment = tokens * topk, max(alignment, 1)
    # The rows of each expert are a multiple of the alignment, and so is their sum.
    return (choices + min(experts, choices) * (alignment - 1)) // alignment * alignment


def _choices(ids: Any) -> Any:
    if len(ids.shape) != 2:
        raise ArgumentError(f"`ids` has the wrong rank: expected 2 dimensions, found {tuple(ids.shape)}", "ids")
    return ids.shape[0], ids.shape[1]


def permute(ids: Any, experts: int, alignment: int = 128, rows: Optional[int] = None) -> Permuted:
    """Sorts tokens by their experts, in one kernel.

    ``ids`` is int32 [T, topk], contiguous: the experts of each token, from 0 to ``experts - 1``. The rows of an expert
    start at a multiple of ``alignment``, which is 1, 16, 32, 64 or 128, in the order of tokens. ``rows`` is the number
    of rows in all, by default ``rows_needed``. The ids are read on the device: a CUDA graph may be replayed with
    others.
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

    ``rows`` is bfloat16 [M, K], ``places`` int32 [T, topk] of ``permute``, ``weights`` float32 [T, topk], ``out``
    bfloat16 [T, K]. A place that is no row adds nothing.
    """
    out = empty(rows, (places.shape[0], rows.shape[-1]), "bfloat16") if out is None else out
    if _call.is_compiling():
        _call.ops().moe_unpermute(rows, places, weights, out)
    else:
        _C.moe_unpermute(rows, places, weights, out)
    return out


def zero_padding_rows(ids: Any, num_groups: int, d: Any) -> None:
    """Zeroes the rows of D whose group is not from 0 to ``num_groups - 1``.

    ``ids`` is int32 [M], the group of each row; ``d`` is [M, N] of bfloat16, float16 or float32. The m-grouped
    contiguous GEMMs of ``deep_gemm`` do the same themselves, where ``grouped_layout`` has the group of each row.
    """
    if _call.is_compiling():
        _call.ops().zero_padding_rows(ids, num_groups, d)
    else:
        _C.zero_padding_rows(ids, num_groups, d)
