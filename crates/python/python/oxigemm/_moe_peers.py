"""A mixture whose experts lie on several GPUs that reach each other's memory."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from . import _call
from . import _oxigemm as _C
from ._arrays import dtype_name, empty, expect_bool, expect_elements, expect_int, expect_matrix, expect_shape, is_torch
from ._moe_experts import Biases, Experts, Gate, Weight, experts_of
from .errors import ArgumentError, ArgumentTypeError

#: How tokens travel: as e4m3 with float32 scales of 1x128, or as they are.
_TRAVEL = ("float8_e4m3fn", "bfloat16")
#: Ranks, tokens, choices, experts and columns; whether tokens travel as bfloat16, and whether scales are packed.
_Sizes = Tuple[Tuple[int, ...], Tuple[bool, bool]]


class PeerGroup:
    """One rank of a group of GPUs that reach each other's memory, with its symmetric buffer.

    The library brings no transport: every rank allocates ``PeerGroup.bytes`` that all ranks can read and write (torch's
    symmetric memory, NCCL windows, CUDA IPC), and passes the addresses of all buffers in its own address space.
    ``symmetric_group`` does so with torch. Expert ``e`` of all belongs to rank ``e // experts``.

    ========== ======================================================================================================
    argument   what it is
    ========== ======================================================================================================
    buffer     this rank's buffer: uint8, contiguous, on its GPU; an array of numpy for the simulator, as one rank
    buffers    the addresses of the buffers of all ranks, as integers; its own included
    rank       this rank
    tokens     the most tokens of a rank
    topk       choices of a token
    experts    experts of a rank
    columns    columns of a token: a multiple of 16
    dtype      how tokens travel: "float8_e4m3fn" with scales of 1x128, or "bfloat16"
    packed     whether scales are int32, with four UE8M0 scales of 32 columns each: for FP4 weights on Blackwell
    timeout    after how many seconds in a barrier another rank counts as missing
    ========== ======================================================================================================

    The buffer's header is written here. All ranks have to have made their group before one of them makes a call.

    >>> group = PeerGroup(buffer, handle.buffer_ptrs, rank=0, tokens=128, topk=8, experts=32, columns=7168)
    """

    def __init__(
        self,
        buffer: Any,
        buffers: Sequence[int],
        *,
        rank: int,
        tokens: int,
        topk: int,
        experts: int,
        columns: int,
        dtype: str = "float8_e4m3fn",
        packed: bool = False,
        timeout: float = 60.0,
    ) -> None:
        expect_shape("buffer", buffer, 1)
        expect_elements("buffer", buffer, ("uint8",))
        self.buffer = buffer
        self.buffers = [expect_int("buffers", address, 0, (1 << 64) - 1) for address in buffers]
        self._sizes = _sizes(len(self.buffers), tokens, topk, experts, columns, dtype, packed)
        self.rank = expect_int("rank", rank, 0, max(len(self.buffers) - 1, 0))
        self.timeout = _seconds(timeout)
        self.tokens, self.topk, self.experts, self.columns = tokens, topk, experts, columns
        #: How tokens travel.
        self.dtype = dtype
        _C.moe_group_init(self._self, self.buffers)
        _, offsets = _C.moe_group_layout(self._sizes)
        blocks = 0 if dtype == "bfloat16" else -(-columns // 128)
        scales = (blocks, "int32" if packed else "float32")
        parts = [(columns, dtype), scales, (topk, "int64"), (topk, "float32")]
        #: [tokens, columns]: this rank's tokens. ``publish`` writes them, or who calls ``forward`` without tokens.
        self.x: Any
        #: [tokens, columns / 128] float32 or int32: their scales; without columns if they are bfloat16.
        self.scales: Any
        #: [tokens, topk] int64: experts of all ranks. Another number is no expert.
        self.ids: Any
        #: [tokens, topk] float32.
        self.weights: Any
        self.x, self.scales, self.ids, self.weights = (
            _part(buffer, offset, (tokens, *part)) for offset, part in zip(offsets, parts)
        )

    @staticmethod
    def bytes(
        *,
        ranks: int,
        tokens: int,
        topk: int,
        experts: int,
        columns: int,
        dtype: str = "float8_e4m3fn",
        packed: bool = False,
    ) -> int:
        """How many bytes the buffer of each rank has.

        >>> PeerGroup.bytes(ranks=8, tokens=128, topk=8, experts=32, columns=7168) < 18 << 20
        True
        """
        count, _ = _C.moe_group_layout(_sizes(ranks, tokens, topk, experts, columns, dtype, packed))
        return count

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.buffers)

    @property
    def _self(self) -> Tuple[Any, _Sizes, int, float]:
        return self.buffer, self._sizes, self.rank, self.timeout

    def publish(self, x: Any, ids: Any, weights: Any, factor: float = 1.0) -> None:
        """Puts this rank's tokens into its buffer, quantized if they travel so: two kernels, or one.

        ``x`` is bfloat16 [T, K], ``ids`` int32 [T, topk], experts of all ranks, ``weights`` float32 [T, topk]; each
        weight is multiplied by ``factor``. Where tokens travel quantized, ``x`` may be a pair: e4m3 with the scales
        that the group has, on the device of its buffer. It is copied as it is, also after ``check`` has found trouble.

        >>> group.publish(hidden_states, ids, weights)
        """
        if isinstance(x, (tuple, list)):
            self._publish_quantized(x, ids, weights, factor)
        elif _call.is_compiling():
            (counts, flags), ops = self._sizes, _call.ops()
            rank = self.buffer, list(counts), list(flags), self.rank, self.timeout
            ops.moe_group_publish(*rank, x, ids, weights, factor)
        else:
            _C.moe_group_publish(self._self, x, (ids, weights), factor)

    def _publish_quantized(self, x: Any, ids: Any, weights: Any, factor: float) -> None:
        if self.dtype == "bfloat16" or len(x) != 2:
            pair = "" if self.dtype == "bfloat16" else ", or codes and scales"
            message = f"`x` has the wrong type: expected bfloat16 tokens{pair}, found {len(x)} values"
            raise ArgumentTypeError(message, "x")
        tokens = expect_shape("x", x[0], 2)[0]
        if tokens > self.tokens:
            message = f"`x` has the wrong shape: expected up to {self.tokens} rows, found {tuple(x[0].shape)}"
            raise ArgumentError(message, "x")
        parts = {"x": self.x, "scales": self.scales, "ids": self.ids, "weights": self.weights}
        given = dict(zip(parts, (*x, ids, weights)))
        for name, part in parts.items():
            array, dims = given[name], (tokens, part.shape[1])
            expect_elements(name, array, ("int32",) if name == "ids" else (dtype_name(part.dtype),))
            if tuple(array.shape) != dims:
                message = f"`{name}` has the wrong shape: expected {dims}, found {tuple(array.shape)}"
                raise ArgumentError(message, name)
            if _place(array) != _place(part):
                expected = f"{_place(part)}, as `buffer` is"
                message = f"`{name}` is on the wrong device: expected {expected}, found {_place(array)}"
                raise ArgumentError(message, name)
        for name, part in parts.items():
            part[:tokens] = given[name].detach() if is_torch(part) else given[name]
        if factor != 1.0:
            self.weights[:tokens] *= factor

    def forward(
        self,
        tokens: int,
        gate_up: Weight,
        down: Weight,
        *,
        biases: Biases = (None, None),
        activation: str = "silu",
        gated: bool = True,
        gate: Gate = None,
        most_rows: Optional[int] = None,
        counts: Optional[Any] = None,
        out: Optional[Any] = None,
    ) -> Any:
        """What ``moe.forward`` computes, with the experts of all ranks, for the ``tokens`` in this rank's buffer.

        All ranks make the call, with any number of tokens, also none. Weights are those of this rank's experts, and the
        other arguments those of ``moe.forward``. ``most_rows`` limits the rows of this rank's experts, each rounded up
        to 16, and so the memory of the call: choices behind them are dropped, and ``check`` tells. ``counts`` is int32
        [experts], to which the rows of each expert are added.

        A rank's sums are rounded to bfloat16 and those of all ranks added in float32, in the order of ranks: the same
        bits in every run. Nothing is read back: a CUDA graph may be replayed with other tokens and choices.

        >>> out = group.forward(tokens, (w1, w1_scales), (w2, w2_scales))
        """
        experts = experts_of(gate_up, down, biases, activation, gated, gate)
        return self._forward(tokens, experts, most_rows, counts, out)

    def _forward(
        self, tokens: int, experts: Experts, most_rows: Optional[int], counts: Optional[Any], out: Optional[Any]
    ) -> Any:
        tokens = expect_int("tokens", tokens, 0)
        if most_rows is not None:
            most_rows = expect_int("most_rows", most_rows, 0)
        size = _C.moe_group_scratch_bytes(self._sizes, experts.inner, most_rows)
        scratch = empty(self.buffer, (size,), "uint8")
        out = empty(self.buffer, (tokens, self.columns), "bfloat16") if out is None else out
        first, second, between = experts.gate_up, experts.down, experts.between
        if _call.is_compiling():
            (sizes, flags), ops = self._sizes, _call.ops()
            rank = self.buffer, list(sizes), list(flags), self.rank, self.timeout
            ops.moe_group_forward(*rank, tokens, most_rows, counts, *first, *second, *between, scratch, out)
        else:
            _C.moe_group_forward(self._self, (tokens, most_rows, counts), (first, second), between, scratch, out)
        return out

    def routed(self, x: Any, ids: Any, weights: Any, experts: Experts, out: Optional[Any]) -> Any:
        """``publish`` and ``forward``: what ``moe.forward`` does with a group."""
        tokens, _ = expect_matrix("x", x[0] if isinstance(x, (tuple, list)) and len(x) == 2 else x)
        self.publish(x, ids, weights)
        return self._forward(tokens, experts, None, None, out)

    def check(self) -> None:
        """Waits for the device, and raises what went wrong between ranks so far: a rank that is missing or has other
        sizes, or more rows than ``most_rows``. It is for after a batch, not for each call.

        >>> group.check()
        """
        _C.moe_group_check(self._self)


def symmetric_group(
    group: Any,
    *,
    tokens: int,
    topk: int,
    experts: int,
    columns: int,
    dtype: str = "float8_e4m3fn",
    packed: bool = False,
    device: Any = None,
    timeout: float = 60.0,
) -> PeerGroup:
    """A ``PeerGroup`` whose buffer is symmetric memory of torch, for the ranks of a process group on one node.

    All ranks call it. ``device`` is this rank's GPU, by default torch's current one. Without a process group (None)
    there is one rank, in memory of its own.

    >>> group = symmetric_group(torch.distributed.group.WORLD, tokens=128, topk=8, experts=32, columns=7168)
    """
    import torch

    device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    sizes = dict(tokens=tokens, topk=topk, experts=experts, columns=columns, dtype=dtype, packed=packed)
    if group is None:
        memory = torch.empty(PeerGroup.bytes(ranks=1, **sizes), dtype=torch.uint8, device=device)
        return PeerGroup(memory, [memory.data_ptr()], rank=0, timeout=timeout, **sizes)
    import torch.distributed as distributed
    import torch.distributed._symmetric_memory as symmetric

    ranks = distributed.get_world_size(group)
    memory = symmetric.empty(PeerGroup.bytes(ranks=ranks, **sizes), dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(memory, group)
    made = PeerGroup(memory, handle.buffer_ptrs, rank=distributed.get_rank(group), timeout=timeout, **sizes)
    # Memory of peers is theirs as long as they keep this.
    made.handle = handle
    distributed.barrier(group)
    return made


def _sizes(ranks: int, tokens: int, topk: int, experts: int, columns: int, dtype: str, packed: bool) -> _Sizes:
    names = ("ranks", "tokens", "topk", "experts", "columns")
    counts = (ranks, tokens, topk, experts, columns)
    found = tuple(expect_int(name, count, 0, (1 << 31) - 1) for name, count in zip(names, counts))
    if dtype not in _TRAVEL:
        message = f"`dtype` is unknown: expected 'float8_e4m3fn' or 'bfloat16', found {dtype!r}"
        raise ArgumentError(message, "dtype")
    return found, (dtype == "bfloat16", expect_bool("packed", packed))


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        message = f"`timeout` has the wrong type: expected seconds, found {type(timeout).__name__}"
        raise ArgumentTypeError(message, "timeout")
    if not timeout > 0:
        raise ArgumentError(f"`timeout` is out of range: expected more than 0 seconds, found {timeout}", "timeout")
    return float(timeout)


def _place(array: Any) -> str:
    return f"a torch tensor on {array.device}" if is_torch(array) else "an array on the CPU"


def _part(buffer: Any, offset: int, part: Tuple[int, int, str]) -> Any:
    """A part of a buffer, as rows of elements of a type."""
    rows, columns, dtype = part
    if is_torch(buffer):
        import torch

        element = getattr(torch, dtype)
        count = rows * columns * element.itemsize
        return buffer[offset : offset + count].view(element).view(rows, columns)
    import ml_dtypes
    import numpy

    element = numpy.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    count = rows * columns * element.itemsize
    return buffer[offset : offset + count].view(element).reshape(rows, columns)
