"""Calls of Mega MoE as SGLang and vLLM make them, against ``moe.forward``: on the CPU, in the simulator, on a GPU."""

import torch

from oxigemm import deep_gemm, moe

TOKENS, TOPK, EXPERTS, INNER, COLUMNS = 5, 2, 3, 128, 256
SHAPES = (2 * INNER, COLUMNS), (COLUMNS, INNER)


def buffer_of(mma_type="fp8xfp8", group=None, device="cpu", most=8):
    sizes = EXPERTS, most, TOPK, COLUMNS, INNER
    named = dict(num_shared_experts=0, mma_type=mma_type, activation="swiglu")
    return deep_gemm.get_symm_buffer_for_mega_moe(group, *sizes, **named, device=device)


def routed(device="cpu"):
    """Tokens, their choices and weights."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(TOKENS, COLUMNS, generator=random).to(torch.bfloat16)
    ids = torch.tensor([[0, 1], [2, 2], [-1, 0], [1, 0], [2, 0]], dtype=torch.int32)
    return [one.to(device) for one in (x, ids, torch.rand(TOKENS, TOPK, generator=random))]


def weights_of(recipe, device="cpu"):
    """Both weights of all experts, as calls take them."""
    random, found = torch.Generator().manual_seed(4), []
    for n, k in SHAPES:
        exact = torch.randn(EXPERTS, n, k, generator=random)
        if recipe == "bf16":
            found.append((exact / 16).to(device, torch.bfloat16))
            continue
        if recipe == "fp8":
            pair = exact.to(torch.float8_e4m3fn), torch.full((EXPERTS, n // 128, k // 128), 1 / 16)
        else:
            codes, scales = deep_gemm.per_token_cast_to_fp4(exact.view(-1, k) / 16, True, 32)
            pair = codes.view(torch.int8).view(EXPERTS, n, k // 2), scales.view(EXPERTS, n, k // 32)
        found.append(tuple(one.to(device) for one in pair))
    return found


def dispatch(buffer, x, ids, weights, **others):
    staged = buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights
    blackwell = buffer.x_sf.dtype == torch.int32
    function = deep_gemm.mega_moe_pre_dispatch if blackwell else deep_gemm.mega_moe_pre_dispatch_sm90
    function(x, ids, weights, *staged, **{"group_size": 32 if blackwell else 128, **others})


def output(device="cpu", tokens=TOKENS):
    """A row more than there are tokens, if there are none: engines want an address."""
    return torch.full((max(tokens, 1), COLUMNS), 7.0, dtype=torch.bfloat16, device=device)


def end(buffer):
    """Nothing went wrong between ranks, where they reach each other's memory."""
    if buffer.peers is not None:
        buffer.peers.check()
    buffer.destroy()


def check_fp8(group=None, device="cpu"):
    (x, ids, factors), weights = routed(device), weights_of("fp8", device)
    buffer, y = buffer_of("fp8xfp8", group, device), output(device)
    stats = torch.tensor([1, 2, 3], dtype=torch.int32, device=device)
    w1, w2 = deep_gemm.transform_weights_for_mega_moe_sm90(*weights)
    dispatch(buffer, x, ids, factors, num_tokens=TOKENS, group_size=128, routed_scaling_factor=2.0)
    named = dict(recipe=(128, 128, 128), activation="swiglu", activation_clamp=1.5, fast_math=True)
    deep_gemm.fp8_mega_moe(y, w1, w2, buffer, cumulative_local_expert_recv_stats=stats, **named)
    assert torch.equal(y, moe.forward(x, ids, 2 * factors, *weights, gate=(1.0, 1.5, 0.0))) and y.any()
    assert stats.tolist() == [1 + 4, 2 + 2, 3 + 3]
    # Rows behind the tokens choose nobody; fewer tokens leave nothing of those before.
    assert (buffer.topk_idx[TOKENS:] == -1).all() and not buffer.topk_weights[TOKENS:].any()
    dispatch(buffer, x[:0], ids[:0], factors[:0], num_tokens=0)
    deep_gemm.fp8_mega_moe(y[:1], w1, w2, buffer)
    assert not y[:1].any() and (buffer.topk_idx == -1).all() and not buffer.topk_weights.any()
    end(buffer)


def check_fp4(group=None, device="cpu"):
    (x, ids, factors), weights = routed(device), weights_of("fp4", device)
    buffer, y = buffer_of("fp8xfp4", group, device), output(device)
    w1, w2 = deep_gemm.transform_weights_for_mega_moe(*weights)
    dispatch(buffer, x, ids, factors, num_tokens=TOKENS)
    deep_gemm.fp8_fp4_mega_moe(y, w1, w2, buffer, recipe=(1, 1, 32), activation="swiglu", fast_math=True)
    expected = moe.forward(x, ids, factors, *((codes.view(torch.uint8), scales) for codes, scales in weights))
    if buffer.x_sf.dtype == torch.int32:
        # On Blackwell tokens have scales of 32 here, and of 128 there.
        assert deep_gemm.calc_diff(y, expected) < 2e-3
    else:
        assert torch.equal(y, expected)
    assert y.any()
    end(buffer)


def check_vllm(group=None, device="cpu"):
    """Tokens are staged by a kernel of the engine; on Blackwell scales of weights are laid out before."""
    (x, ids, factors), weights = routed(device), weights_of("fp4", device)
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(group, EXPERTS, 8, TOPK, COLUMNS, INNER, device=device)
    staged = buffer_of("fp8xfp4", group, device)
    dispatch(staged, x, ids, factors)
    for name in ("x", "x_sf", "topk_idx", "topk_weights"):
        getattr(buffer, name)[:TOKENS].copy_(getattr(staged, name)[:TOKENS])
    laid_out = weights
    if buffer.x_sf.dtype == torch.int32:
        layout = deep_gemm.transform_sf_into_required_layout
        laid_out = [(codes, layout(sf, n, k, (1, 32), EXPERTS)) for (codes, sf), (n, k) in zip(weights, SHAPES)]
    transformed = deep_gemm.transform_weights_for_mega_moe(*laid_out)
    y, expected = output(device), output(device)
    deep_gemm.fp8_fp4_mega_moe(y, *transformed, buffer, activation_clamp=10.0, fast_math=True)
    deep_gemm.fp8_fp4_mega_moe(expected, *weights, staged, activation_clamp=10.0)
    assert torch.equal(y, expected) and y.any()
    end(buffer)
    end(staged)


def check_bf16(group=None, device="cpu"):
    (x, ids, factors), weights = routed(device), weights_of("bf16", device)
    buffer, y = buffer_of("bf16xbf16", group, device), output(device)
    buffer.x[:TOKENS].copy_(x)
    buffer.topk_idx[:TOKENS].copy_(ids)
    buffer.topk_weights[:TOKENS].copy_(factors)
    deep_gemm.bf16_mega_moe(y, *weights, buffer)
    assert torch.equal(y, moe.forward(x, ids, factors, *weights)) and y.any()
    end(buffer)


def check_ids(group=None, device="cpu"):
    """Numbers of no expert add nothing, also where their low half would be an expert."""
    (x, _, factors), weights = routed(device), weights_of("bf16", device)
    far = [[1 << 32, 1], [-(1 << 32), 2], [EXPERTS, -1], [(1 << 40) + 1, 0], [(1 << 63) - 1, -(1 << 63)]]
    near = [[-1, 1], [-1, 2], [-1, -1], [-1, 0], [-1, -1]]
    buffer, y = buffer_of("bf16xbf16", group, device), output(device)
    stats = torch.zeros(EXPERTS, dtype=torch.int32, device=device)
    buffer.x[:TOKENS].copy_(x)
    buffer.topk_idx[:TOKENS].copy_(torch.tensor(far))
    buffer.topk_weights[:TOKENS].copy_(factors)
    deep_gemm.bf16_mega_moe(y, *weights, buffer, stats)
    expected = moe.forward(x, torch.tensor(near, dtype=torch.int32, device=device), factors, *weights)
    assert torch.equal(y, expected) and stats.tolist() == [1, 1, 1]
    end(buffer)


def check_fields(group=None, device="cpu"):
    """The fields of a buffer, of which those of a call's own rows are None."""
    buffer = buffer_of(group=group, device=device, most=7)
    assert buffer.x.shape == (7, COLUMNS) and buffer.x.dtype == torch.float8_e4m3fn
    assert buffer.x_sf.shape == (7, COLUMNS // 128) and buffer.x_sf.dtype in (torch.float32, torch.int32)
    assert buffer.topk_idx.shape == buffer.topk_weights.shape == (7, TOPK)
    assert buffer.topk_idx.dtype == torch.int64 and buffer.topk_weights.dtype == torch.float32
    assert buffer.num_experts_per_rank == EXPERTS and buffer.handle is None and buffer.buffer is not None
    own = "l1_acts", "l1_acts_sf", "l2_acts", "l2_acts_sf"
    assert all(getattr(buffer, name) is None for name in own)
    buffer.destroy()
    gone = *own, "x", "x_sf", "topk_idx", "topk_weights", "buffer", "handle"
    assert all(getattr(buffer, name) is None for name in gone)


#: What one rank checks by itself.
CHECKS = {
    "fp8": check_fp8,
    "fp4": check_fp4,
    "vllm": check_vllm,
    "bf16": check_bf16,
    "ids": check_ids,
    "fields": check_fields,
}
