"""Mega MoE under DeepGEMM's names, as one rank: on the CPU, and in the simulator for both architectures."""

import pytest

import oxigemm
from oxigemm import deep_gemm
from oxigemm.deep_gemm import mega

from mega_cases import CHECKS, buffer_of, dispatch, output, routed, weights_of


@pytest.fixture(params=["cpu", "sim:sm_90a", "sim:sm_100a"], autouse=True)
def simulator(request):
    before = oxigemm.get_device()
    oxigemm.set_device(request.param)
    yield request.param
    oxigemm.set_device(before)


@pytest.mark.parametrize("name", CHECKS)
def test_the_calls_of_an_engine(name, simulator):
    if name == "fp8" and simulator == "sim:sm_100a":
        # The peer's buffer has scales of 32 there, for FP4 weights alone.
        (w1, w2), buffer = weights_of("fp8"), buffer_of()
        dispatch(buffer, *routed())
        with pytest.raises(TypeError) as caught:
            deep_gemm.fp8_mega_moe(output(), w1, w2, buffer)
        assert caught.value.argument == "scales"
        return
    CHECKS[name]()


def test_names_that_engines_look_for():
    for name in mega.__all__:
        assert getattr(deep_gemm, name) is getattr(deep_gemm.mega, name)
    assert callable(deep_gemm._C.fp8_fp4_mega_moe_sm90) and callable(deep_gemm._C.fp8_mega_moe)
    sizes = 8, 256, 128, 100, 8, "fp8xfp4"
    assert deep_gemm.get_block_m_for_mega_moe(*sizes) % deep_gemm.get_token_alignment_for_mega_moe() == 0
    weights = object(), object()
    assert deep_gemm.transform_weights_for_mega_moe_sm90_fp4(*weights) == weights


def test_a_buffer_that_was_destroyed():
    buffer = buffer_of()
    buffer.destroy()
    with pytest.raises(TypeError, match="destroyed"):
        deep_gemm.fp8_mega_moe(None, None, None, buffer)


def test_what_is_wrong_is_named():
    (x, ids, factors), (w1, w2), buffer, y = routed(), weights_of("fp8"), buffer_of(), output()
    staged = buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights
    new = deep_gemm.get_symm_buffer_for_mega_moe
    for call, argument in [
        (lambda: new(None, 4, 8, 2, 100, 128, device="cpu"), "hidden"),
        (lambda: new(None, 4, 8, 2, 128, 100, device="cpu"), "intermediate_hidden"),
        (lambda: new(None, 0, 8, 2, 128, 128, device="cpu"), "num_experts"),
        (lambda: new(None, 4, 8, 2, 128, 128, mma_type="fp4xfp4", device="cpu"), "mma_type"),
        (lambda: new(None, 4, 8, 2, 128, 128, False, "fp8xfp8", device="cpu"), "use_fp8_dispatch"),
        (lambda: new(None, 4, 8, 2, 128, 128, activation="gelu", device="cpu"), "activation"),
        (lambda: new(None, 4, 8, 2, 128, 128, num_shared_experts=1, device="cpu"), "num_shared_experts"),
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
