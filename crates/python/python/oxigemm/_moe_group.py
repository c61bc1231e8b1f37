"""Experts of several ranks: rows travel to the ranks of their experts and back, by collectives of torch.distributed.

A rank tells the others what it calls with and how many rows it has for each of them: one gather, and all that the host
waits for. Rows go out with their choices, and sums of rows come back: two exchanges. The layer is ``moe.forward``
without a group, on each rank for its own experts.
"""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from . import _call, moe
from ._arrays import dtype_name, expect_elements, expect_matrix
from ._moe_experts import Biases, Experts, Gate, Weight, experts_of
from .errors import ArgumentError, ArgumentTypeError, OxigemmError
from .quantization import gather_quantize

#: What ``moe.forward`` has besides tokens: weights, biases, the activation, whether it has gates, and what these do.
Layer = Tuple[Weight, Weight, Biases, str, bool, Gate]

#: Ranks are sorted by as experts are, by ``moe.permute``.
_MOST_RANKS = 1024
#: Bytes of what a rank says of its call.
_CALL_BYTES = 1024
#: Tokens that are quantized have a multiple of so many columns.
_QUANTIZED_COLUMNS = 16
#: Characters of an error that other ranks get to read.
_REASON = 300
#: Seconds in which ranks find each other after a collective has failed, and between two looks.
_ROLL_CALL, _LOOK = 2.0, 0.05
#: How many calls each group has made: the same on all its ranks.
_calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class Tokens(NamedTuple):
    """Rows and their choices: of this rank, as they are packed for the others, or as they arrived."""

    x: Any
    #: Of ``x``, if it is quantized.
    scales: Optional[Any]
    ids: Any
    weights: Any

    @classmethod
    def of(cls, x: Any, ids: Any, weights: Any) -> Tokens:
        """Tokens as ``moe.forward`` takes them."""
        x, scales = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x, None)
        return cls(x, scales, ids, weights)

    def first(self, count: int) -> Tokens:
        """So many of them, of what has rows."""
        return Tokens(*(each[:count] if getattr(each, "ndim", 0) > 0 else each for each in self))

    def run(self, layer: Layer, out: Optional[Any] = None) -> Any:
        """The layer of this rank."""
        gate_up, down, biases, activation, gated, gate = layer
        named = {"biases": biases, "activation": activation, "gated": gated, "gate": gate}
        x = self.x if self.scales is None else (self.x, self.scales)
        return moe.forward(x, self.ids, self.weights, gate_up, down, **named, out=out)

    def run_arrived(self, layer: Layer) -> Any:
        """``run``, with a row of no expert if none arrived.

        What only a launch finds out about a call is then an error on every rank.
        """
        if len(self.x) > 0:
            return self.run(layer)
        none = Tokens(*(None if each is None else each.new_zeros(1, each.shape[1]) for each in self))
        return none._replace(ids=none.ids - 1).run(layer)[:0]


@torch.compiler.disable
@torch.no_grad()
def forward(group: Any, called: Tuple[Any, Any, Any], layer: Layer, out: Optional[Any]) -> Any:
    """``moe.forward`` of ``called``, which are ``x``, ``ids`` and ``weights``, with the experts of all ranks."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    tokens = Tokens.of(*called)
    _refuse_capture(tokens.x)
    _calls[group] = _calls.get(group, 0) + 1
    packed, refusal = None, None
    try:
        _check(group, ranks, tokens, layer, out)
        experts = experts_of(*layer)
        packed = moe.permute(_owners(tokens.ids, experts.count, ranks), ranks, alignment=1)
        call = _agreement(tokens, layer, experts)
    except Exception as error:
        # The others wait for what this rank calls with. It says why it does not, and they fail as well.
        call, refusal = {"refused": _plain(str(error))}, error
    calls, rows = _gather(call, packed, ranks, group)
    if refusal is not None:
        raise refusal
    _expect_agreement(calls)
    sent, received = rows[rank], [row[rank] for row in rows]
    packed_rows = _pack(tokens, packed, sum(sent), experts, ranks)
    arrived = Tokens(*_exchange(packed_rows, sent, received, group))
    (sums,) = _exchange([arrived.run_arrived(layer)], received, sent, group)
    # The places of a token are sorted by ranks, and that is the order in which its sums are added.
    ones = torch.ones(packed.places.shape, dtype=torch.float32, device=sums.device)
    return moe.unpermute(sums, packed.places, ones, out)


def _refuse_capture(x: Any) -> None:
    if getattr(x, "is_cuda", False) and torch.cuda.is_current_stream_capturing():
        reason = "the host reads how many rows each rank sends"
        message = f"`group` has no kernels for a CUDA graph: {reason}; expected no capture, found one"
        raise ArgumentError(message, "group")


def _check(group: Any, ranks: int, tokens: Tokens, layer: Layer, out: Optional[Any]) -> None:
    """The checks of a call without a group, and those of one with it."""
    for name, array in {**tokens._asdict(), "out": out}.items():
        if not isinstance(array, torch.Tensor) and not (array is None and name in ("scales", "out")):
            expected, found = "a torch tensor, as `group` is one of torch", type(array).__name__
            raise ArgumentTypeError(f"`{name}` has the wrong type: expected {expected}, found {found}", name)
    x, scales, ids, weights = tokens
    backends = _backends(group)
    if ranks > _MOST_RANKS:
        raise ArgumentError(f"`group` is too large: expected up to {_MOST_RANKS} ranks, found {ranks}", "group")
    if x.device.type not in backends:
        expected, found = " or ".join(backends), x.device.type
        message = f"`x` is on a device that `group` cannot send from: expected {expected}, found {found}"
        raise ArgumentError(message, "x")
    shapes = {"ids": (*x.shape[:1], *ids.shape[1:]), "weights": ids.shape, "out": x.shape}
    for name, array in {"ids": ids, "weights": weights, "out": out}.items():
        if array is not None and array.shape != shapes[name]:
            expected, found = tuple(shapes[name]), tuple(array.shape)
            raise ArgumentError(f"`{name}` has the wrong shape: expected {expected}, found {found}", name)
    # A call without tokens launches nothing and checks everything but their number.
    few = tokens.first(0)
    if scales is not None:
        _check_quantized(x, scales, experts_of(*layer))
        few = few._replace(x=torch.empty_like(few.x, dtype=torch.bfloat16), scales=None)
    few.run(layer, None if out is None else out[:0])


def _check_quantized(x: Any, scales: Any, experts: Experts) -> None:
    """The checks of tokens that are quantized already."""
    # The extension has them too, but not for no tokens.
    rows, columns = expect_matrix("x", x)
    expect_elements("x", x, ("float8_e4m3fn",))
    expect_elements("scales", scales, ("float32",))
    expected, found = (rows, -(-columns // 128)), tuple(scales.shape)
    if found != expected:
        raise ArgumentError(f"`scales` has the wrong shape: expected {expected}, found {found}", "scales")
    if columns % _QUANTIZED_COLUMNS != 0:
        expected = f"a K that is a multiple of {_QUANTIZED_COLUMNS}, as it is quantized"
        raise ArgumentError(f"`x` has the wrong shape: expected {expected}, found {tuple(x.shape)}", "x")
    if experts.is_half:
        expected = "float8_e4m3fn or uint8, as `x` is quantized"
        found = dtype_name(experts.gate_up[0].dtype)
        message = f"`gate_up` has the wrong element type: expected {expected}, found {found}"
        raise ArgumentTypeError(message, "gate_up")


def _agreement(tokens: Tokens, layer: Layer, experts: Experts) -> Dict[str, Any]:
    """What every rank has to call with, by the argument that says it."""
    _, _, biases, activation, gated, gate = layer
    return {
        "x": f"{experts.columns} columns",
        "ids": f"{tokens.ids.shape[1]} choices",
        "gate_up": _described(experts.gate_up[0]),
        "down": _described(experts.down[0]),
        "biases": [bias is not None for bias in biases],
        "activation": activation,
        "gated": gated,
        "gate": None if gate is None else [float(number) for number in gate],
    }


def _described(array: Any) -> str:
    return f"{dtype_name(array.dtype)} {tuple(array.shape)}"


def _pack(tokens: Tokens, packed: moe.Permuted, count: int, experts: Experts, ranks: int) -> Tokens:
    """The rows that this rank sends, sorted by the ranks that they go to."""
    x, scales, ids, weights = tokens
    rows, there = packed.tokens[:count], packed.groups[:count, None]
    own = rows.long()
    if scales is not None:
        x, scales = x[own], scales[own]
    elif experts.is_half or experts.columns % _QUANTIZED_COLUMNS != 0:
        x = x[own]
    else:
        # What `moe.forward` would do with them there: half as many bytes go by the wire.
        x, scales = gather_quantize(x, rows, power_of_two=_call.arch_major(x) == 10)
    is_there = _owner(ids[own], experts.count, ranks) == there
    return Tokens(x, scales, torch.where(is_there, ids[own] - there * experts.count, -1), weights[own])


def _backends(group: Any) -> Dict[str, str]:
    """The backend of each type of device."""
    return dict(part.split(":", 1) for part in dist.get_backend_config(group).split(","))


def _owner(ids: Any, experts: int, ranks: int) -> Any:
    """The rank of each expert; -1 where a number is none."""
    is_expert = (ids >= 0) & (ids < experts * ranks)
    return torch.where(is_expert, ids.div(max(experts, 1), rounding_mode="floor"), -1)


def _owners(ids: Any, experts: int, ranks: int) -> Any:
    """The ranks of each token's experts, ascending and each once; -1 in all other places."""
    owners, _ = _owner(ids, experts, ranks).sort(dim=1)
    again = torch.zeros_like(owners, dtype=torch.bool)
    again[:, 1:] = owners[:, 1:] == owners[:, :-1]
    return owners.masked_fill(again, -1)


def _plain(text: str) -> str:
    """The beginning of a text, such that it needs hardly more bytes than it has characters."""
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in text)[:_REASON]


def _gather(call: Dict[str, Any], packed: Optional[Any], ranks: int, group: Any) -> Tuple[List[bytes], List[List[int]]]:
    """What every rank calls with, and how many rows it has for each: ``rows[from][to]``."""
    on_gpu = torch.cuda.is_available() and _backends(group).get("cuda", "gloo") != "gloo"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    text = torch.frombuffer(bytearray(json.dumps(call).encode().ljust(_CALL_BYTES)), dtype=torch.uint8)
    ends = torch.zeros(ranks, dtype=torch.int32) if packed is None else packed.ends
    own = torch.cat([text.to(device), ends.to(device).view(torch.uint8)])
    found = torch.empty((ranks, len(own)), dtype=torch.uint8, device=device)
    with _naming_absent(group):
        dist.all_gather(list(found.unbind()), own, group=group)
    texts, ends = found.cpu().split([_CALL_BYTES, len(own) - _CALL_BYTES], 1)
    ends = ends.contiguous().view(torch.int32)
    rows = ends.diff(dim=1, prepend=ends.new_zeros(ranks, 1))
    return [bytes(text.tolist()) for text in texts], rows.tolist()


@contextlib.contextmanager
def _naming_absent(group: Any) -> Iterator[None]:
    """Names the ranks that did not come to a collective, if it fails. One that does not fail costs nothing more."""
    start = time.monotonic()
    try:
        yield
    except RuntimeError as error:
        absent = _absent(group)
        if not absent:
            raise
        ranks = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {', '.join(map(str, absent))}"
        waited = f"{time.monotonic() - start:.1f} s"
        message = f"`group` has no result: {ranks} did not come within {waited} to rank {dist.get_rank(group)}"
        raise OxigemmError(f"{message}; all ranks make the same calls ({_plain(str(error))})", "group") from error


def _absent(group: Any) -> List[int]:
    """The ranks whose collective of this call has not failed: they have not come. No rank if that cannot be told.

    Every rank whose collective fails says so in the store that the group was made with.
    """
    ranks, call = range(dist.get_world_size(group)), _calls[group]
    came: Optional[Set[int]] = None
    try:
        _, store = dist.distributed_c10d._world.pg_map[group]
        store.set(f"oxigemm/moe/{call}/{dist.get_rank(group)}", "failed")
        end = time.monotonic() + _ROLL_CALL
        while came is None or (len(came) < len(ranks) and time.monotonic() < end):
            came = {rank for rank in ranks if store.check([f"oxigemm/moe/{call}/{rank}"])}
            time.sleep(_LOOK)
    except (AttributeError, KeyError, RuntimeError):
        # The store may have been that of a rank that is gone, also in between.
        pass
    return [] if came is None else [rank for rank in ranks if rank not in came]


def _expect_agreement(texts: List[bytes]) -> None:
    """The same error on every rank, if there is one."""
    if all(text == texts[0] for text in texts):
        return
    calls = [json.loads(text) for text in texts]
    for rank, call in enumerate(calls):
        if "refused" in call:
            raise ArgumentError(f"`group` has no result: rank {rank} refused its arguments: {call['refused']}", "group")
    for name in calls[0]:
        values = [json.dumps(call[name]) for call in calls]
        usual = max(values, key=values.count)
        for rank, value in enumerate(values):
            if value != usual:
                expected = f"{usual}, as on rank {values.index(usual)}"
                found = f"{value} on rank {rank}"
                raise ArgumentError(f"`{name}` differs between ranks: expected {expected}, found {found}", name)


def _exchange(parts: Sequence[Any], sent: List[int], received: List[int], group: Any) -> List[Any]:
    """The rows that all ranks send to this one, by ranks; of those that are given, ``sent[r]`` go to rank r.

    A row travels as the bytes of all parts that are not None: one exchange, and no backend has to know their types.
    """
    rows = [None if part is None else part.contiguous().view(torch.uint8) for part in parts]
    joined = torch.cat([row for row in rows if row is not None], 1)
    # Gloo exchanges memory of the CPU alone.
    staged = joined.is_cuda and _backends(group)["cuda"] == "gloo"
    joined, device = joined.cpu() if staged else joined, joined.device
    found = joined.new_empty(sum(received), joined.shape[1])
    with _naming_absent(group):
        dist.all_to_all_single(found, joined, received, sent, group=group)
    widths = [0 if row is None else row.shape[1] for row in rows]
    found = found.to(device).split(widths, 1)
    return [None if part is None else each.contiguous().view(part.dtype) for each, part in zip(found, parts)]
