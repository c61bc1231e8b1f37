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
    a, b, d = operands()
    deep_gemm.bf16_gemm_nt(Attributes(a), Attributes(b.T.contiguous().T), Attributes(d))
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=0, atol=1e-3)
    with pytest.raises(TypeError, match="`a` has the wrong element type: .* found torch.float64"):
        deep_gemm.bf16_gemm_nt(Attributes(a.double()), Attributes(b), Attributes(d))


def test_another_device_is_named():
    a, b, d = operands()
    for wrong in (a.to("meta"), a.to_sparse()):
        with pytest.raises(RuntimeError, match="^`a` cannot be read: expected a dense array.*$") as caught:
            deep_gemm.bf16_gemm_nt(wrong, b, d)
        assert caught.value.argument == "a" and "\n" not in str(caught.value)


class Attributes:
    """What torch before 2.10 has: no exchange of DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    dtype = property(lambda self: self.tensor.dtype)
    shape = property(lambda self: self.tensor.shape)
    device = property(lambda self: self.tensor.device)

    def stride(self):
        return self.tensor.stride()

    def data_ptr(self):
        return self.tensor.data_ptr()

    def is_neg(self):
        return self.tensor.is_neg()


@pytest.mark.parametrize("read_as", [lambda x: x, torch.nn.Parameter, Attributes])
def test_lazy_negation_is_refused(read_as):
    a, b, d = operands()
    deep_gemm.bf16_gemm_nt(read_as(a), b, d)
    expected = d.clone()
    negated = torch._neg_view(a)
    assert negated.is_neg() and negated.data_ptr() == a.data_ptr()
    with pytest.raises(ValueError, match="`a` is negated lazily: .*resolve_neg") as caught:
        deep_gemm.bf16_gemm_nt(read_as(negated), b, d)
    assert caught.value.argument == "a" and torch.equal(d, expected)
    deep_gemm.bf16_gemm_nt(read_as(negated.resolve_neg()), b, d)
    assert torch.equal(d, -expected)
    with pytest.raises(ValueError, match="`d` is negated lazily"):
        deep_gemm.bf16_gemm_nt(a, b, torch._neg_view(d))


def test_parts_of_conjugated_numbers_are_refused():
    """Views that public functions of torch make."""
    scales = torch.view_as_complex(torch.rand(8, 2, 2)).conj()
    codes, d = torch.randn(8, 256).to(torch.float8_e4m3fn), torch.empty(8, 128)
    weights = torch.randn(128, 256).to(torch.float8_e4m3fn), torch.rand(1, 2)
    with pytest.raises(ValueError, match="negated lazily") as caught:
        deep_gemm.fp8_gemm_nt((codes, scales.imag), weights, d)
    assert caught.value.argument == "sfa"
    deep_gemm.fp8_gemm_nt((codes, scales.real), weights, d)
    with pytest.raises(TypeError, match="`a` has the wrong element type: .* found complex64"):
        deep_gemm.bf16_gemm_nt(torch.zeros(8, 64, dtype=torch.complex64).conj(), *operands()[1:])


def test_element_types_of_torch():
    x = torch.randn(4, 256)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        assert oxigemm.quantization.quantize(x, dtype=dtype)[0].dtype == dtype
        assert oxigemm.quantization.quantize_with_transpose(x, dtype=dtype)[2].dtype == dtype
        codes, scale = oxigemm.quantization.quantize(x, "tensor", dtype=dtype)
        assert torch.equal(oxigemm.quantization.quantize_by_scale(x, scale, dtype).float(), codes.float())
        assert oxigemm.quantization.dequantize(codes, scale, "tensor", torch.float16).dtype == torch.float16
    assert oxigemm.quantization.quantize(x, "1x32", True, torch.uint8)[0].dtype == torch.uint8
    with pytest.raises(TypeError, match="`dtype` is no element type for this: .* found float64") as caught:
        oxigemm.quantization.quantize(x, dtype=torch.float64)
    assert caught.value.argument == "dtype"


@pytest.mark.parametrize("name", ["grouped_layout", "masked_m"])
def test_numbers_of_64_bits_are_told_the_type_that_they_should_have(name):
    a = torch.zeros(2, 8, 64).bfloat16() if name == "masked_m" else torch.zeros(256, 64).bfloat16()
    b, d = torch.zeros(2, 64, 64).bfloat16(), torch.zeros(*a.shape[:-1], 64)
    with pytest.raises(TypeError, match=f"`{name}` has the wrong element type: expected int32, found int64"):
        if name == "masked_m":
            deep_gemm.m_grouped_bf16_gemm_nt_masked(a, b, d, torch.tensor([3, 8]), 4)
        else:
            deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, torch.zeros(256, dtype=torch.int64))


DIST = """
import sys
import torch
from oxigemm.deep_gemm.utils.dist import dist_print, init_dist, uneven_all_gather

local = int(sys.argv[1])
rank, ranks, group = init_dist(local, 2)
assert (rank, ranks) == (local, 2)
for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64):
    for dim, shape in ((0, (rank + 1, 3)), (1, (3, 2 * rank)), (-1, (2, 2, 5 - rank))):
        own = (torch.arange(torch.Size(shape).numel()).reshape(shape) + 10 * rank).to(dtype)
        found = uneven_all_gather(own, dim, group)
        shapes = [[r + 1, 3] if dim == 0 else [3, 2 * r] if dim == 1 else [2, 2, 5 - r] for r in range(2)]
        parts = [(torch.arange(torch.Size(s).numel()).reshape(s) + 10 * r).to(dtype) for r, s in enumerate(shapes)]
        assert found.dtype == dtype and torch.equal(found.float(), torch.cat([p.float() for p in parts], dim))
dist_print("once", once_in_node=True)
dist_print(f"rank {rank}")
torch.distributed.destroy_process_group()
"""


def test_processes_that_gather():
    import os
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        environment.pop(name, None)
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", DIST, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    found = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], found
    assert [text for text, _ in found] == ["once\nrank 0\n", "rank 1\n"]


def test_what_is_wrong_with_processes_is_named(monkeypatch):
    from oxigemm.deep_gemm.utils import dist

    with pytest.raises(RuntimeError, match="`init_dist` was not called"):
        dist.dist_print("text")
    with pytest.raises(ValueError, match="`dim` is out of range: expected -1 to 0, found 9"):
        dist.uneven_all_gather(torch.zeros(3), 9)
    with pytest.raises(TypeError, match="`tensor` has the wrong type"):
        dist.uneven_all_gather([1, 2])
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(ValueError, match="`RANK` of the environment is wrong"):
        dist.init_dist(0, 1)
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="`WORLD_SIZE` of the environment is wrong"):
        dist.init_dist(0, 1)


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


def test_compiled_router():
    x, gate = torch.randn(5, 64).bfloat16(), torch.randn(16, 64).bfloat16()
    bias, off = torch.randn(16), torch.arange(16) % 3 > 0

    def layer(x, gate, bias, off):
        named = {"scoring": "sigmoid", "bias": bias, "renormalize": True, "expert_mask": off}
        routing = oxigemm.moe.route(x, gate, 4, groups=4, topk_groups=2, **named)
        alone = oxigemm.moe.top_k(x.float() @ gate.float().T, 4, scale=2.0)
        return (*routing, *alone)

    for found, expected in zip(compiled(layer)(x, gate, bias, off), layer(x, gate, bias, off)):
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
