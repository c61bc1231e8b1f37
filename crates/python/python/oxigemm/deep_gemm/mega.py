"""Mega MoE: a mixture of experts on several GPUs in one call, as DeepGEMM and SGLang's build of it name it.

Weights stay as they are, so ``transform_weights_for_mega_moe`` gives back what it gets. On a GPU, ranks reach each
other's memory (``oxigemm.moe.PeerGroup``); tensors of the CPU, which the reference or the simulator computes, travel by
the collectives of the process group.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from .. import _call, moe, quantization
from .._arrays import expect_bool, expect_choice, expect_int, expect_matrix
from ..errors import ArgumentError, ArgumentTypeError

__all__ = [
    "SymmBuffer",
    "bf16_mega_moe",
    "fp8_fp4_mega_moe",
    "fp8_mega_moe",
    "get_block_m_for_mega_moe",
    "get_symm_buffer_for_mega_moe",
    "get_token_alignment_for_mega_moe",
    "mega_moe_pre_dispatch",
    "mega_moe_pre_dispatch_sm90",
    "transform_weights_for_mega_moe",
    "transform_weights_for_mega_moe_sm90",
    "transform_weights_for_mega_moe_sm90_fp4",
]

_MMA_TYPES = ("fp8xfp4", "fp8xfp8", "bf16xbf16")
#: Rows of experts begin at multiples of this.
_BLOCK_M = 16


class SymmBuffer:
    """A rank's symmetric buffer: its tokens, their scales, choices and weights.

    ============ ========================== =====================================================================
    field        shape                      type
    ============ ========================== =====================================================================
    x            [tokens, hidden]           float8_e4m3fn, or bfloat16 for "bf16xbf16"
    x_sf         [tokens, hidden / 128]     float32 on Hopper; int32 on Blackwell, with four UE8M0 scales of 32
    topk_idx     [tokens, topk]             int64: experts of all ranks, or -1
    topk_weights [tokens, topk]             float32
    ============ ========================== =====================================================================

    ``tokens`` is ``num_max_tokens_per_rank``. ``buffer`` is all of it; ``handle`` is what torch's symmetric memory gave
    for it, None where there is one rank. ``get_symm_buffer_for_mega_moe`` makes one.

    ``l1_acts``, ``l1_acts_sf``, ``l2_acts`` and ``l2_acts_sf`` are None: rows on their way through the GEMMs lie in
    scratch memory of a call, which ends with it, and not in this buffer.
    """

    #: What DeepGEMM's buffer keeps of a call, for those who look into it. There is no such memory here.
    l1_acts = l1_acts_sf = l2_acts = l2_acts_sf = None

    def __init__(
        self,
        group: Any,
        num_experts: int,
        num_max_tokens_per_rank: int,
        num_topk: int,
        hidden: int,
        intermediate_hidden: int,
        num_ring_tokens: Optional[int] = None,
        mma_type: str = "fp8xfp4",
        activation: str = "swiglu",
        device: Any = None,
    ) -> None:
        import torch

        expect_choice("mma_type", mma_type, _MMA_TYPES)
        _expect_swiglu(activation)
        ranks = 1 if group is None else torch.distributed.get_world_size(group)
        self.group = group
        self.rank = 0 if group is None else torch.distributed.get_rank(group)
        self.num_experts = expect_int("num_experts", num_experts, 1)
        self.num_max_tokens_per_rank = expect_int("num_max_tokens_per_rank", num_max_tokens_per_rank, 0)
        self.num_topk = expect_int("num_topk", num_topk, 1)
        self.hidden = expect_int("hidden", hidden, 1)
        self.intermediate_hidden = expect_int("intermediate_hidden", intermediate_hidden, 1)
        #: Of no meaning here: a call has room for all rows.
        self.num_ring_tokens = num_ring_tokens
        self.mma_type, self.activation = mma_type, activation
        if num_experts % ranks != 0:
            message = (
                f"`num_experts` is wrong: expected a multiple of {ranks}, the number of ranks, found {num_experts}"
            )
            raise ArgumentError(message, "num_experts")
        is_half = mma_type == "bf16xbf16"
        for name, size in (("hidden", hidden), ("intermediate_hidden", intermediate_hidden)):
            if size % 128 != 0 and not is_half:
                raise ArgumentError(f"`{name}` is wrong: expected a multiple of 128, found {size}", name)
        if device is None:
            device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
        device = torch.device(device)
        dtype = "bfloat16" if is_half else "float8_e4m3fn"
        sizes = dict(tokens=num_max_tokens_per_rank, topk=num_topk, experts=num_experts // ranks, columns=hidden)
        packed = not is_half and _call.arch_major(torch.empty(0, device=device)) == 10
        self.peers: Optional[moe.PeerGroup] = None
        if device.type == "cuda":
            self.peers = moe.symmetric_group(
                group if ranks > 1 else None, dtype=dtype, packed=packed, device=device, **sizes
            )
            self.buffer: Any = self.peers.buffer
            self.handle = getattr(self.peers, "handle", None)
            self.x, self.x_sf = self.peers.x, self.peers.scales
            self.topk_idx, self.topk_weights = self.peers.ids, self.peers.weights
        else:
            rows, self.handle = num_max_tokens_per_rank, None
            self.buffer = self.x = torch.zeros(rows, hidden, device=device).to(getattr(torch, dtype))
            scales = torch.int32 if packed else torch.float32
            self.x_sf = torch.zeros(rows, 0 if is_half else hidden // 128, dtype=scales, device=device)
            self.topk_weights = torch.zeros(rows, num_topk, device=device)
            self.topk_idx = torch.zeros(rows, num_topk, dtype=torch.int64, device=device)
        self.topk_idx.fill_(-1)

    @property
    def num_experts_per_rank(self) -> int:
        """Experts of a rank."""
        ranks = 1 if self.peers is None else self.peers.ranks
        if self.peers is None and self.group is not None:
            import torch

            ranks = torch.distributed.get_world_size(self.group)
        return self.num_experts // ranks

    def destroy(self) -> None:
        """Lets go of the memory. No call can follow."""
        self.peers = self.handle = self.buffer = self.group = None
        self.x = self.x_sf = self.topk_idx = self.topk_weights = None


def get_symm_buffer_for_mega_moe(
    group: Any,
    num_experts: int,
    num_max_tokens_per_rank: int,
    num_topk: int,
    hidden: int,
    intermediate_hidden: int,
    use_fp8_dispatch: Optional[bool] = None,
    mma_type: str = "fp8xfp4",
    activation: str = "swiglu",
    device: Any = None,
    *,
    num_shared_experts: int = 0,
) -> SymmBuffer:
    """A ``SymmBuffer`` for a process group of torch, or for one rank alone (None). All ranks call it.

    ``use_fp8_dispatch`` is an older name of what ``mma_type`` says. ``device`` is this rank's GPU, by default torch's
    current one; "cpu" for the reference and the simulator. ``num_shared_experts`` is 0: a shared expert is one of
    ``num_experts`` here, which every token names with a weight of 1.

    >>> buffer = get_symm_buffer_for_mega_moe(group, 256, 128, 8, 7168, 2048)
    """
    if expect_int("num_shared_experts", num_shared_experts, 0) != 0:
        expected = "0, and shared experts among `num_experts`"
        message = f"`num_shared_experts` has no kernels: expected {expected}, found {num_shared_experts}"
        raise ArgumentError(message, "num_shared_experts")
    if use_fp8_dispatch is not None:
        is_fp8 = expect_bool("use_fp8_dispatch", use_fp8_dispatch)
        if not is_fp8 and mma_type == "fp8xfp4":
            mma_type = "bf16xbf16"
        elif is_fp8 != mma_type.startswith("fp8"):
            message = f"`use_fp8_dispatch` is wrong: expected what `mma_type` ({mma_type}) says, found {is_fp8}"
            raise ArgumentError(message, "use_fp8_dispatch")
    sizes = num_experts, num_max_tokens_per_rank, num_topk, hidden, intermediate_hidden
    return SymmBuffer(group, *sizes, mma_type=mma_type, activation=activation, device=device)


def get_token_alignment_for_mega_moe() -> int:
    """What the most tokens of a rank have to be a multiple of: any number will do.

    >>> get_token_alignment_for_mega_moe()
    1
    """
    return 1


def get_block_m_for_mega_moe(*_sizes: Any, **_named: Any) -> int:
    """What the rows of an expert are rounded up to, whatever the sizes.

    >>> get_block_m_for_mega_moe(8, 256, 128, 100, 8, "fp8xfp4")
    16
    """
    return _BLOCK_M


def transform_weights_for_mega_moe(l1_weights: Any, l2_weights: Any, activation: str = "swiglu") -> Tuple[Any, Any]:
    """The weights themselves: kernels read them as they are, gates before ups.

    >>> l1_weights, l2_weights = transform_weights_for_mega_moe(l1_weights, l2_weights)
    """
    _expect_swiglu(activation)
    return l1_weights, l2_weights


def transform_weights_for_mega_moe_sm90(l1_weights: Any, l2_weights: Any) -> Tuple[Any, Any]:
    """``transform_weights_for_mega_moe`` of FP8 weights, as SGLang names it."""
    return l1_weights, l2_weights


def transform_weights_for_mega_moe_sm90_fp4(l1_weights: Any, l2_weights: Any) -> Tuple[Any, Any]:
    """``transform_weights_for_mega_moe`` of FP4 weights, as SGLang names it."""
    return l1_weights, l2_weights


def mega_moe_pre_dispatch_sm90(
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    buf_x: Any,
    buf_x_sf: Any,
    buf_topk_idx: Any,
    buf_topk_weights: Any,
    num_tokens: Optional[int] = None,
    group_size: int = 128,
    routed_scaling_factor: float = 1.0,
) -> None:
    """Quantizes a rank's tokens into its buffer, with their choices and weights.

    Rows behind them choose no expert, with weights of 0.
    ``x`` is bfloat16 [T, hidden], of which the first ``num_tokens`` count; weights are multiplied by
    ``routed_scaling_factor``. Scales are float32, one for each 128 of a row.

    >>> mega_moe_pre_dispatch_sm90(x, ids, weights, buf.x, buf.x_sf, buf.topk_idx, buf.topk_weights)
    """
    if expect_int("group_size", group_size) != 128:
        raise ArgumentError(f"`group_size` has no kernels: expected 128, found {group_size}", "group_size")
    rows = _rows(x, buf_x, num_tokens)
    if rows:
        quantization.quantize(x[:rows], "1x128", codes=buf_x[:rows], scales=buf_x_sf[:rows])
    _put_choices((topk_ids, topk_weights), (buf_topk_idx, buf_topk_weights), rows, routed_scaling_factor)


def mega_moe_pre_dispatch(
    x: Any,
    topk_ids: Any,
    topk_weights: Any,
    buf_x: Any,
    buf_x_sf: Any,
    buf_topk_idx: Any,
    buf_topk_weights: Any,
    num_tokens: Optional[int] = None,
    group_size: int = 32,
    routed_scaling_factor: float = 1.0,
) -> None:
    """``mega_moe_pre_dispatch_sm90`` for Blackwell: scales are UE8M0, one for each 32 of a row, four in an int32.

    >>> mega_moe_pre_dispatch(x, ids, weights, buf.x, buf.x_sf, buf.topk_idx, buf.topk_weights)
    """
    from .utils import per_token_cast_to_fp8

    if expect_int("group_size", group_size) != 32:
        raise ArgumentError(f"`group_size` has no kernels: expected 32, found {group_size}", "group_size")
    rows = _rows(x, buf_x, num_tokens)
    if rows:
        codes, scales = per_token_cast_to_fp8(x[:rows], True, 32, True)
        buf_x[:rows].copy_(codes)
        buf_x_sf[:rows].copy_(scales)
    _put_choices((topk_ids, topk_weights), (buf_topk_idx, buf_topk_weights), rows, routed_scaling_factor)


def fp8_mega_moe(
    y: Any,
    l1_weights: Tuple[Any, Any],
    l2_weights: Tuple[Any, Any],
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Optional[Any] = None,
    recipe: Tuple[int, int, int] = (128, 128, 128),
    activation: str = "swiglu",
    activation_clamp: Optional[float] = None,
    fast_math: bool = True,
) -> None:
    """A mixture of experts of all ranks, for the tokens in this rank's buffer: as many as ``y`` has rows.

    ``y`` is bfloat16 [tokens, hidden]. Weights are those of this rank's experts, each with its scales: e4m3
    [E, 2I, hidden], gates before ups, and [E, hidden, I], with float32 scales of 128x128. All ranks make the call.
    ``cumulative_local_expert_recv_stats`` is int32 [E], to which the rows of each expert are added. Gates are
    limited to ``activation_clamp``, ups to it on both sides. ``fast_math`` changes nothing.

    >>> fp8_mega_moe(y, (w1, w1_scales), (w2, w2_scales), buffer)
    """
    _expect_recipe(recipe, ((128, 128, 128), (1, 128, 128)))
    _run(y, (l1_weights, l2_weights), sym_buffer, cumulative_local_expert_recv_stats, activation, activation_clamp)


def fp8_fp4_mega_moe(
    y: Any,
    l1_weights: Tuple[Any, Any],
    l2_weights: Tuple[Any, Any],
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Optional[Any] = None,
    recipe: Tuple[int, int, int] = (1, 1, 32),
    activation: str = "swiglu",
    activation_clamp: Optional[float] = None,
    fast_math: bool = True,
) -> None:
    """``fp8_mega_moe`` with MXFP4 weights: two codes in a byte, scales of 1x32 as ``fp8_fp4_gemm_nt`` takes them.

    >>> fp8_fp4_mega_moe(y, (w1, w1_scales), (w2, w2_scales), buffer)
    """
    _expect_recipe(recipe, ((1, 1, 32),))
    weights = _bytes("l1_weights", l1_weights), _bytes("l2_weights", l2_weights)
    _run(y, weights, sym_buffer, cumulative_local_expert_recv_stats, activation, activation_clamp)


def bf16_mega_moe(
    y: Any,
    l1_weights: Any,
    l2_weights: Any,
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: Optional[Any] = None,
    activation: str = "swiglu",
    activation_clamp: Optional[float] = None,
    fast_math: bool = True,
) -> None:
    """``fp8_mega_moe`` with bfloat16 weights and tokens.

    >>> bf16_mega_moe(y, w1, w2, buffer)
    """
    weights = l1_weights, l2_weights
    _run(y, weights, sym_buffer, cumulative_local_expert_recv_stats, activation, activation_clamp)


def _run(
    y: Any,
    weights: Tuple[Any, Any],
    buffer: SymmBuffer,
    stats: Optional[Any],
    activation: str,
    clamp: Optional[float],
) -> None:
    """A call of any recipe."""
    if not isinstance(buffer, SymmBuffer) or buffer.x is None:
        found = "one that was destroyed" if isinstance(buffer, SymmBuffer) else type(buffer).__name__
        message = f"`sym_buffer` has the wrong type: expected a SymmBuffer, found {found}"
        raise ArgumentTypeError(message, "sym_buffer")
    _expect_swiglu(activation)
    gate = None if clamp is None else (1.0, _limit(clamp), 0.0)
    tokens, _ = expect_matrix("y", y)
    if tokens > buffer.num_max_tokens_per_rank:
        most = buffer.num_max_tokens_per_rank
        raise ArgumentError(f"`y` has the wrong shape: expected up to {most} rows, found {tuple(y.shape)}", "y")
    if buffer.peers is not None:
        buffer.peers.forward(tokens, *weights, gate=gate, counts=stats, out=y)
        return
    import torch

    # A number that is no expert stays none in 32 bits.
    ids = buffer.topk_idx[:tokens].clamp(-1, buffer.num_experts).to(torch.int32)
    x = buffer.x[:tokens] if buffer.mma_type == "bf16xbf16" else (buffer.x[:tokens], buffer.x_sf[:tokens])
    is_alone = buffer.group is None or torch.distributed.get_world_size(buffer.group) == 1
    group = None if is_alone else buffer.group
    moe.forward(x, ids, buffer.topk_weights[:tokens], *weights, gate=gate, group=group, out=y)
    if stats is not None:
        stats += _received(buffer, tokens, group)


def _received(buffer: SymmBuffer, tokens: int, group: Any) -> Any:
    """The rows of each of this rank's experts, where ranks reach each other by collectives."""
    import torch

    ids = buffer.topk_idx.clone()
    ids[tokens:] = -1
    if group is not None:
        parts = [torch.empty_like(ids) for _ in range(torch.distributed.get_world_size(group))]
        torch.distributed.all_gather(parts, ids, group)
        ids = torch.cat(parts)
    count = buffer.num_experts_per_rank
    own = ids - buffer.rank * count
    own = own[(own >= 0) & (own < count)]
    return torch.bincount(own, minlength=count).to(torch.int32)


def _rows(x: Any, buf_x: Any, num_tokens: Optional[int]) -> int:
    """How many tokens go into a buffer."""
    (rows, _), (most, _) = expect_matrix("x", x), expect_matrix("buf_x", buf_x)
    rows = rows if num_tokens is None else expect_int("num_tokens", num_tokens, 0, rows)
    if rows > most:
        raise ArgumentError(f"`num_tokens` is out of range: expected up to {most}, found {rows}", "num_tokens")
    return rows


def _put_choices(choices: Tuple[Any, Any], to: Tuple[Any, Any], rows: int, factor: float) -> None:
    (ids, weights), (to_ids, to_weights) = choices, to
    to_ids[:rows].copy_(ids[:rows])
    to_ids[rows:].fill_(-1)
    to_weights[:rows].copy_(weights[:rows])
    to_weights[rows:].zero_()
    if factor != 1.0:
        to_weights[:rows].mul_(factor)


def _bytes(argument: str, weights: Any) -> Any:
    """FP4 weights whose codes are bytes without a sign."""
    if not isinstance(weights, (tuple, list)) or len(weights) != 2:
        message = f"`{argument}` has the wrong type: expected codes and scales, found {type(weights).__name__}"
        raise ArgumentTypeError(message, argument)
    codes, scales = weights
    import torch

    return (codes.view(torch.uint8) if getattr(codes, "dtype", None) == torch.int8 else codes), scales


def _limit(clamp: Any) -> float:
    if isinstance(clamp, bool) or not isinstance(clamp, (int, float)) or not clamp >= 0:
        message = f"`activation_clamp` is wrong: expected 0 or more, or None, found {clamp!r}"
        raise ArgumentError(message, "activation_clamp")
    return float(clamp)


def _expect_recipe(recipe: Any, allowed: Tuple[Tuple[int, int, int], ...]) -> None:
    if tuple(recipe) not in allowed:
        either = " or ".join(str(one) for one in allowed)
        raise ArgumentError(f"`recipe` has no kernels: expected {either}, found {recipe!r}", "recipe")


def _expect_swiglu(activation: Any) -> None:
    if activation != "swiglu":
        raise ArgumentError(f"`activation` has no kernels: expected 'swiglu', found {activation!r}", "activation")
