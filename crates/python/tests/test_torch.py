"""Tensors of torch on the CPU: how they are read, and ``torch.compile``."""

import subprocess
import sys

import pytest
import torch

import oxigemm
from oxigemm import deep_gemm


def operands(m=8, n=64, k=64):
    torch.manual_seed(0)
    return torch.randn(m, k).bfloat16(), torch.randn(n, k).bfloat16(), torch.empty(m, n)


def test_parameters_and_tensors_that_need_gradients():
    a, b, d = operands()
    deep_gemm.bf16_gemm_nt(a, torch.nn.Parameter(b), d)
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=0, atol=1e-3)


def test_a_torch_without_the_exchange_of_dlpack():
    """What torch before 2.10 has: attributes."""

    class Old:
        def __init__(self, tensor):
            self.tensor = tensor

        dtype = property(lambda self: self.tensor.dtype)
        shape = property(lambda self: self.tensor.shape)
        device = property(lambda self: self.tensor.device)

        def stride(self):
            return self.tensor.stride()

        def data_ptr(self):
            return self.tensor.data_ptr()

    a, b, d = operands()
    deep_gemm.bf16_gemm_nt(Old(a), Old(b.T.contiguous().T), Old(d))
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=0, atol=1e-3)
    with pytest.raises(TypeError, match="`a` has the wrong element type: .* found torch.float64"):
        deep_gemm.bf16_gemm_nt(Old(a.double()), Old(b), Old(d))


def test_another_device_is_named():
    a, b, d = operands()
    with pytest.raises(RuntimeError):
        deep_gemm.bf16_gemm_nt(a.to("meta"), b, d)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_compiled_gemms():
    a, b, _ = operands()
    codes = torch.randn(8, 256).to(torch.float8_e4m3fn), torch.rand(8, 2)
    weights = torch.randn(128, 256).to(torch.float8_e4m3fn), torch.rand(1, 2)

    def layer(a, b, codes, weights):
        d = torch.empty(a.shape[0], b.shape[0])
        deep_gemm.bf16_gemm_nt(a, b, d)
        e = torch.ones(8, 128)
        deep_gemm.fp8_gemm_nt(codes, weights, e, c=e, recipe=(1, 128, 128))
        return torch.relu(d), e * 2

    for found, expected in zip(compiled(layer)(a, b, codes, weights), layer(a, b, codes, weights)):
        assert torch.equal(found, expected)


def test_compiled_functions_that_return_something():
    q = torch.randn(4, 32, 64).to(torch.float8_e4m3fn)
    kv = torch.randn(100, 64).to(torch.float8_e4m3fn), torch.rand(100)
    weights, lengths = torch.randn(4, 32), torch.tensor([10, 100, 0, 64], dtype=torch.int32)
    scales = torch.rand(6, 3)

    def logits_and_scales(q, kv, weights, lengths, scales):
        logits = deep_gemm.fp8_mqa_logits(q, kv, weights, torch.zeros_like(lengths), lengths)
        return logits, deep_gemm.get_mn_major_tma_aligned_tensor(scales)

    arguments = q, kv, weights, lengths, scales
    found, expected = compiled(logits_and_scales)(*arguments), logits_and_scales(*arguments)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert found[1].stride() == (1, 8)


def test_compiled_logits_by_place():
    q = torch.randn(4, 24, 64).to(torch.float8_e4m3fn)
    kv = torch.randn(100, 64).to(torch.float8_e4m3fn), torch.rand(100)
    weights, lengths = torch.randn(4, 24), torch.tensor([10, 100, 0, 64], dtype=torch.int32)

    def logits(q, kv, weights, lengths):
        starts = torch.zeros_like(lengths)
        meta = deep_gemm.get_mqa_logits_metadata(starts, lengths, 100, 24)
        return meta, deep_gemm.fp8_fp4_mqa_logits((q, None), kv, weights, starts, lengths, 100, meta)

    arguments = q, kv, weights, lengths
    found, expected = compiled(logits)(*arguments), logits(*arguments)
    assert torch.equal(found[0], expected[0]) and found[1].shape == (4, 100)
    for row, length in enumerate(lengths):
        assert torch.equal(found[1][row, :length], expected[1][row, :length])


def test_compiled_layer_of_experts():
    ids = torch.tensor([[0, 1], [1, 2], [2, 0]], dtype=torch.int32)
    x, weights = torch.randn(3, 256).bfloat16(), torch.rand(3, 2)
    b = torch.randn(3, 128, 256).to(torch.float8_e4m3fn), torch.rand(3, 1, 2)
    w = torch.randn(256, 256).to(torch.float8_e4m3fn), torch.rand(2, 2)
    pairs = torch.randn(3, 256, 256).to(torch.float8_e4m3fn), torch.rand(3, 2, 2)

    def layer(ids, x, weights, b, w, pairs):
        permuted = oxigemm.moe.permute(ids, 3)
        codes, scales = torch.zeros(permuted.tokens.shape[0], 256).to(torch.float8_e4m3fn), torch.zeros(384, 2)
        oxigemm.quantization.gather_quantize(x, permuted.tokens, codes=codes, scales=scales)
        rows = torch.empty(384, 128, dtype=torch.bfloat16)
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous((codes, scales), b, rows, permuted.groups)
        gated = torch.empty(384, 128)
        oxigemm.fused.fp8_gemm_nt_fused((codes, scales), w, gated, activation="silu", gated=True)
        groups = {"grouped_layout": permuted.groups, "activation": "silu", "gated": True}
        oxigemm.fused.m_grouped_fp8_gemm_nt_fused((codes, scales), pairs, gated, **groups)
        relu = torch.empty(3, 3)
        oxigemm.fused.bf16_gemm_nt_fused(x, x, relu, activation="relu")
        packed = oxigemm.quantization.quantize_nvfp4(x)
        back = oxigemm.quantization.dequantize_nvfp4(*packed)
        return oxigemm.moe.unpermute(rows, permuted.places, weights), gated, relu, back

    for found, expected in zip(compiled(layer)(ids, x, weights, b, w, pairs), layer(ids, x, weights, b, w, pairs)):
        assert torch.equal(found, expected)


def test_every_operator_is_sound():
    """That what torch is told of an operator is what it does."""
    a, b, d = operands()
    torch.library.opcheck(torch.ops.oxigemm.half_gemm.default, ("bfloat16", "nt", a, b, d, None, None, None))
    torch.library.opcheck(
        torch.ops.oxigemm.half_gemm.default, ("bfloat16", "nt", a, b, d, torch.ones_like(d), 0.5, None)
    )


@pytest.mark.parametrize("first, second", [("torch", "oxigemm"), ("oxigemm", "torch")])
def test_operators_exist_in_either_order_of_imports(first, second):
    code = f"import {first}, {second}; print(torch.ops.oxigemm.fp8_gemm.default)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "oxigemm.fp8_gemm" in run.stdout


def test_the_version_is_that_of_the_package():
    assert oxigemm.__version__ == deep_gemm.__version__
