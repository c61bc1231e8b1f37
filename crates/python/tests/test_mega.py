"""Mega MoE under DeepGEMM's names, as one rank: on the CPU, and in the simulator for both architectures."""

import pytest
import torch

import oxigemm
from oxigemm import deep_gemm, moe
from oxigemm.deep_gemm import mega

TOKENS, TOPK, EXPERTS, INNER, COLUMNS = 5, 2, 3, 128, 256


@pytest.fixture(params=["cpu", "sim:sm_90a", "sim:sm_100a"], autouse=True)
def simulator(request):
    before = oxigemm.get_device()
    oxigemm.set_device(request.param)
    yield request.param
    oxigemm.set_device(before)


def buffer_of(mma_type="fp8xfp8", most=8):
    arguments = None, EXPERTS, most, TOPK, COLUMNS, INNER
    return deep_gemm.get_symm_buffer_for_mega_moe(*arguments, mma_type=mma_type, device="cpu")


def routed():
    torch.manual_seed(3)
    x = torch.randn(TOKENS, COLUMNS).to(torch.bfloat16)
    ids = torch.tensor([[0, 1], [2, 2], [-1, 0], [1, 0], [2, 0]], dtype=torch.int32)
    return x, ids, torch.rand(TOKENS, TOPK)


def fp8_weights():
    torch.manual_seed(4)
    found = []
    for n, k in ((2 * INNER, COLUMNS), (COLUMNS, INNER)):
        codes = torch.randn(EXPERTS, n, k).to(torch.float8_e4m3fn)
        found.append((codes, torch.full((EXPERTS, n // 128, k // 128), 1 / 16)))
    return found


def dispatch(buffer, x, ids, weights, **others):
    staged = buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights
    blackwell = buffer.x_sf.dtype == torch.int32
    function = deep_gemm.mega_moe_pre_dispatch if blackwell else deep_gemm.mega_moe_pre_dispatch_sm90
    function(x, ids, weights, *staged, **others)


def test_fp8_has_the_bits_of_the_mixture(simulator):
    (x, ids, factors), (w1, w2) = routed(), fp8_weights()
    buffer, y = buffer_of(), torch.empty(TOKENS, COLUMNS, dtype=torch.bfloat16)
    if simulator == "sim:sm_100a":
        # The peer's buffer has scales of 32 there, for FP4 weights alone.
        dispatch(buffer, x, ids, factors)
        with pytest.raises(TypeError) as caught:
            deep_gemm.fp8_mega_moe(y, w1, w2, buffer)
        assert caught.value.argument == "scales"
        return
    stats = torch.tensor([1, 2, 3], dtype=torch.int32)
    w1, w2 = deep_gemm.transform_weights_for_mega_moe_sm90(w1, w2)
    dispatch(buffer, x, ids, factors, num_tokens=TOKENS, group_size=128, routed_scaling_factor=2.0)
    deep_gemm.fp8_mega_moe(y, w1, w2, buffer, stats, activation_clamp=1.5)
    assert torch.equal(y, moe.forward(x, ids, 2 * factors, w1, w2, gate=(1.0, 1.5, 0.0))) and y.any()
    assert stats.tolist() == [1 + 4, 2 + 2, 3 + 3]
    # Rows behind the tokens choose nobody; fewer tokens leave nothing of those before.
    assert (buffer.topk_idx[TOKENS:] == -1).all()
    dispatch(buffer, x, ids, factors, num_tokens=0)
    deep_gemm.fp8_mega_moe(y[:1], w1, w2, buffer)
    assert not y[:1].any() and (buffer.topk_idx == -1).all()


def test_fp4_weights(simulator):
    (x, ids, factors), weights = routed(), []
    for n, k in ((2 * INNER, COLUMNS), (COLUMNS, INNER)):
        codes, scales = deep_gemm.per_token_cast_to_fp4(torch.randn(EXPERTS * n, k) / 16, True, 32)
        weights.append((codes.view(torch.int8).view(EXPERTS, n, k // 2), scales.view(EXPERTS, n, k // 32)))
    w1, w2 = deep_gemm.transform_weights_for_mega_moe(*weights)
    buffer, y = buffer_of("fp8xfp4"), torch.empty(TOKENS, COLUMNS, dtype=torch.bfloat16)
    dispatch(buffer, x, ids, factors)
    deep_gemm.fp8_fp4_mega_moe(y, w1, w2, buffer)
    (w1, s1), (w2, s2) = w1, w2
    expected = moe.forward(x, ids, factors, (w1.view(torch.uint8), s1), (w2.view(torch.uint8), s2))
    # On Blackwell tokens have scales of 32 here, and of 128 there.
    assert deep_gemm.calc_diff(y, expected) < (2e-3 if simulator == "sim:sm_100a" else 1e-12)
    assert y.any()


def test_bf16_has_the_bits_of_the_mixture():
    x, ids, factors = routed()
    w1 = (torch.randn(EXPERTS, 2 * INNER, COLUMNS) / 16).to(torch.bfloat16)
    w2 = (torch.randn(EXPERTS, COLUMNS, INNER) / 16).to(torch.bfloat16)
    buffer, y = buffer_of("bf16xbf16"), torch.empty(TOKENS, COLUMNS, dtype=torch.bfloat16)
    buffer.x[:TOKENS].copy_(x)
    buffer.topk_idx[:TOKENS].copy_(ids)
    buffer.topk_weights[:TOKENS].copy_(factors)
    deep_gemm.bf16_mega_moe(y, w1, w2, buffer)
    assert torch.equal(y, moe.forward(x, ids, factors, w1, w2)) and y.any()


def test_names_that_engines_look_for():
    for name in mega.__all__:
        assert getattr(deep_gemm, name) is getattr(deep_gemm.mega, name)
    assert callable(deep_gemm._C.fp8_fp4_mega_moe_sm90) and callable(deep_gemm._C.fp8_mega_moe)
    sizes = 8, 256, 128, 100, 8, "fp8xfp4"
    assert deep_gemm.get_block_m_for_mega_moe(*sizes) % deep_gemm.get_token_alignment_for_mega_moe() == 0
    weights = object(), object()
    assert deep_gemm.transform_weights_for_mega_moe_sm90_fp4(*weights) == weights


def test_sizes_of_the_buffer():
    buffer = buffer_of(most=7)
    assert buffer.x.shape == (7, COLUMNS) and buffer.x_sf.shape == (7, COLUMNS // 128)
    assert buffer.topk_idx.shape == buffer.topk_weights.shape == (7, TOPK)
    assert buffer.topk_idx.dtype == torch.int64 and buffer.num_experts_per_rank == EXPERTS
    buffer.destroy()
    with pytest.raises(TypeError, match="destroyed"):
        deep_gemm.fp8_mega_moe(None, None, None, buffer)


def test_what_is_wrong_is_named():
    (x, ids, factors), (w1, w2) = routed(), fp8_weights()
    buffer, y = buffer_of(), torch.empty(TOKENS, COLUMNS, dtype=torch.bfloat16)
    staged = buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights
    new = deep_gemm.get_symm_buffer_for_mega_moe
    for call, argument in [
        (lambda: new(None, 4, 8, 2, 100, 128, device="cpu"), "hidden"),
        (lambda: new(None, 4, 8, 2, 128, 100, device="cpu"), "intermediate_hidden"),
        (lambda: new(None, 0, 8, 2, 128, 128, device="cpu"), "num_experts"),
        (lambda: new(None, 4, 8, 2, 128, 128, mma_type="fp4xfp4", device="cpu"), "mma_type"),
        (lambda: new(None, 4, 8, 2, 128, 128, False, "fp8xfp8", device="cpu"), "use_fp8_dispatch"),
        (lambda: new(None, 4, 8, 2, 128, 128, activation="gelu", device="cpu"), "activation"),
        (lambda: deep_gemm.fp8_mega_moe(y, w1, w2, object()), "sym_buffer"),
        (lambda: deep_gemm.fp8_mega_moe(y, w1, w2, buffer, recipe=(1, 1, 32)), "recipe"),
        (lambda: deep_gemm.fp8_mega_moe(y, w1, w2, buffer, activation_clamp=-1.0), "activation_clamp"),
        (lambda: deep_gemm.fp8_mega_moe(y.repeat(2, 1), w1, w2, buffer), "y"),
        (lambda: deep_gemm.fp8_fp4_mega_moe(y, w1[0], w2, buffer), "l1_weights"),
        (lambda: deep_gemm.fp8_fp4_mega_moe(y, w1, w2[0], buffer), "l2_weights"),
        (lambda: deep_gemm.mega_moe_pre_dispatch_sm90(x, ids, factors, *staged, group_size=32), "group_size"),
        (lambda: deep_gemm.mega_moe_pre_dispatch(x, ids, factors, *staged, group_size=128), "group_size"),
        (lambda: deep_gemm.mega_moe_pre_dispatch_sm90(x, ids, factors, *staged, num_tokens=6), "num_tokens"),
        (lambda: deep_gemm.mega_moe_pre_dispatch_sm90(x.repeat(2, 1), ids, factors, *staged), "num_tokens"),
    ]:
        with pytest.raises(oxigemm.OxigemmError) as caught:
            call()
        assert caught.value.argument == argument, caught.value
    assert new(None, 4, 8, 2, 128, 128, False, device="cpu").mma_type == "bf16xbf16"
