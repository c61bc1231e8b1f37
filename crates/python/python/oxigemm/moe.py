"""Mixture of experts: the router, all behind it in one call, and its parts. For torch and for numpy."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional

from . import _call
from . import _oxigemm as _C
from ._arrays import empty, expect_elements, expect_int, expect_matrix
from ._moe_experts import Biases, Gate, Weight, expect_columns, experts_of
from ._moe_peers import PeerGroup, symmetric_group
from ._router import Routing, route, top_k
from .errors import ArgumentError, ArgumentTypeError

__all__ = [
    "PeerGroup",
    "Permuted",
    "Routing",
    "forward",
    "permute",
    "route",
    "rows_needed",
    "symmetric_group",
    "top_k",
    "unpermute",
    "zero_padding_rows",
]


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


#: The most experts that a permutation has.
_MOST_EXPERTS = 1024
#: Rows and choices are counted in 31 bits.
_MOST_ROWS = (1 << 30) - 1
_ALIGNMENTS = (1, 16, 32, 64, 128)


def rows_needed(tokens: int, topk: int, experts: int, alignment: int = 128) -> int:
    """The most rows that ``permute`` may need, padding included.

    >>> rows_needed(tokens=100, topk=8, experts=4)
    1280
    """
    tokens, topk = expect_int("tokens", tokens, 0), expect_int("topk", topk, 0)
    experts, choices = _experts(experts), tokens * topk
    alignment = _alignment(alignment)
    # The rows of each expert are a multiple of the alignment, and so is their sum.
    return (choices + min(experts, choices) * (alignment - 1)) // alignment * alignment


def _experts(experts: Any) -> int:
    return expect_int("experts", experts, 1, _MOST_EXPERTS)


def _alignment(alignment: Any) -> int:
    if expect_int("alignment", alignment) not in _ALIGNMENTS:
        message = f"`alignment` is wrong: expected 1, 16, 32, 64 or 128, found {alignment}"
        raise ArgumentError(message, "alignment")
    return alignment


def permute(ids: Any, experts: int, alignment: int = 128, rows: Optional[int] = None) -> Permuted:
    """Sorts tokens by their experts, in one kernel.

    ``ids`` is int32 [T, topk], contiguous: the experts of each token, from 0 to ``experts - 1``. An id that is none of
    them has no row. The rows of an expert start at a multiple of ``alignment``, which is 1, 16, 32, 64 or 128, in the
    order of tokens. ``rows`` is the number of rows in all, by default ``rows_needed``, and has to be enough for these
    ids. Too few of them are an error on the CPU and in the simulator. A GPU cannot tell: choices that find no row have
    place -1 there, and ``unpermute`` adds nothing for them. The ids are read on the device: a CUDA graph may be
    replayed with others.

    >>> tokens, groups, ends, places = permute(ids, experts=256)
    """
    tokens, topk = expect_matrix("ids", ids)
    expect_elements("ids", ids, ("int32",))
    experts, alignment = _experts(experts), _alignment(alignment)
    if tokens * topk > _MOST_ROWS:
        raise ArgumentError(f"`ids` is too large: expected up to {_MOST_ROWS} choices, found {tuple(ids.shape)}", "ids")
    needed = rows_needed(tokens, topk, experts, alignment)
    rows = needed if rows is None else expect_int("rows", rows, 0, _MOST_ROWS)
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

    >>> out = unpermute(rows, permuted.places, weights)
    """
    (_, columns), (tokens, _) = expect_matrix("rows", rows), expect_matrix("places", places)
    out = empty(rows, (tokens, columns), "bfloat16") if out is None else out
    if _call.is_compiling():
        _call.ops().moe_unpermute(rows, places, weights, out)
    else:
        _C.moe_unpermute(rows, places, weights, out)
    return out


def forward(
    x: Any,
    ids: Any,
    weights: Any,
    gate_up: Weight,
    down: Weight,
    *,
    biases: Biases = (None, None),
    activation: str = "silu",
    gated: bool = True,
    gate: Gate = None,
    group: Optional[Any] = None,
    out: Optional[Any] = None,
) -> Any:
    """``out[t] = sum over c of weights[t, c] * down[e] · (act(gate[e] · x[t]) * (up[e] · x[t]))``, e = ids[t, c].

    ========= ============================================== =======================================================
    argument  shape                                          type
    ========= ============================================== =======================================================
    x         [T, K]                                         bfloat16, rows of any pitch; or a pair: e4m3 with float32
                                                             scales of 1x128, both contiguous. Scales may be int32
                                                             with four UE8M0 of 32 for MXFP4 on Blackwell
    ids       [T, C]                                         int32, contiguous; a number that is no expert adds nothing
    weights   [T, C]                                         float32, contiguous
    gate_up   [E, 2I, K], gates first; [E, I, K] if not      bfloat16, or a pair: e4m3 with float32 scales of 128x128
              gated
    down      [E, K, I]                                      the same; or MXFP4, as ``deep_gemm.fp8_fp4_gemm_nt`` has it
    biases    [E, 2I], [E, K]                                float32 or bfloat16, or None
    out       [T, K]                                         bfloat16; made if None
    ========= ============================================== =======================================================

    ``activation`` and ``gate`` are those of ``fused.fp8_gemm_nt_fused``; gpt-oss has a gate of ``(1.702, 7.0, 1.0)``.
    ``gated=False`` with ``activation="relu_squared"`` is an MLP without gates. On Blackwell, FP8 scales are powers of
    two.

    Experts that every token takes are experts too: behind those that are chosen for a token, name them with a weight of
    1, and the same kernels compute them.

    Five kernels: permutation, gather and quantization, GEMM with activation, gate and quantization, GEMM, weighted sum.
    Nothing is read back, and memory comes from torch's allocator: a CUDA graph may be replayed with other choices.

    With a ``group`` experts lie on several GPUs: ``ids`` count those of all ranks, the weights are those of this rank's
    experts, rank r has those from ``r * E``, and all ranks make the call, each with any number of tokens. A rank's sums
    are rounded to bfloat16 and those of all ranks added in float32, in the order of ranks. A ``PeerGroup`` reaches the
    memory of its peers. It takes ``x`` as a pair where its tokens travel quantized, with scales of its own type.

    A group of torch.distributed exchanges rows by collectives, for torch tensors. A token goes once to each rank with
    experts of it, as FP8 where the weights are no bfloat16. The host waits for how many rows each rank sends, so a CUDA
    graph cannot capture the call. Where arguments of ranks do not fit each other, every rank raises an error that names
    the argument and a rank. Where a collective of the group fails, at the latest after its ``timeout``, an
    ``OxigemmError`` names the ranks that have not come, and the group cannot be used on. That is so with Gloo; NCCL's
    watchdog ends the process instead, and names nobody.

    >>> out = forward(hidden_states, ids, weights, (w1, w1_scales), (w2, w2_scales))
    """
    if group is not None and not isinstance(group, PeerGroup):
        layer = (gate_up, down, biases, activation, gated, gate)
        return _collectives(group).forward(group, (x, ids, weights), layer, out)
    experts = experts_of(gate_up, down, biases, activation, gated, gate)
    if group is not None:
        return group.routed(x, ids, weights, experts, out)
    x, scales = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x, None)
    (tokens, columns), (rows, topk) = expect_matrix("x", x), expect_matrix("ids", ids)
    if rows != tokens:
        raise ArgumentError(f"`ids` has the wrong shape: expected ({tokens}, C), found {tuple(ids.shape)}", "ids")
    expect_columns(experts, columns)
    out = empty(x, (tokens, columns), "bfloat16") if out is None else out
    first, second, between = experts.gate_up, experts.down, experts.between
    if _call.is_compiling():
        _call.ops().moe_forward(x, scales, ids, weights, *first, *second, *between, out)
        return out
    size = _C.moe_scratch_bytes((tokens, topk), (experts.count, experts.inner, columns), experts.is_half)
    scratch = empty(x, (size,), "uint8")
    _C.moe_forward((x, scales), (ids, weights), (first, second), between, scratch, out)
    return out


def _collectives(group: Any) -> Any:
    """The module for a group of torch.distributed. It imports torch, which has such a group been made with."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if not isinstance(group, getattr(distributed, "ProcessGroup", ())):
        expected = "a PeerGroup, or a ProcessGroup of torch.distributed with this process in it"
        message = f"`group` has the wrong type: expected {expected}, found {type(group).__name__}"
        raise ArgumentTypeError(message, "group")
    from . import _moe_group

    return _moe_group


def zero_padding_rows(ids: Any, num_groups: int, d: Any) -> None:
    """Zeroes the rows of D whose group is not from 0 to ``num_groups - 1``.

    ``ids`` is int32 [M], the group of each row; ``d`` is [M, N] of bfloat16, float16 or float32. The m-grouped
    contiguous GEMMs of ``deep_gemm`` do the same themselves, where ``grouped_layout`` has the group of each row.
    """
    num_groups = expect_int("num_groups", num_groups, 0, _MOST_ROWS)
    if _call.is_compiling():
        _call.ops().zero_padding_rows(ids, num_groups, d)
    else:
        _C.zero_padding_rows(ids, num_groups, d)
