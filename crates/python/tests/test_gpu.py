"""On a Hopper GPU: streams, graphs, threads, compiled functions, and kernels that nobody has to compile."""

import threading

import pytest
import torch

import oxigemm
from oxigemm import deep_gemm


def fp8_operands(m=64, n=512, k=1024, seed=0, device="cuda"):
    generator = torch.Generator(device).manual_seed(seed)
    randn = lambda *shape: torch.randn(shape, device=device, generator=generator)  # noqa: E731
    rand = lambda *shape: torch.rand(shape, device=device, generator=generator) + 0.5  # noqa: E731
    a = randn(m, k).to(torch.float8_e4m3fn), rand(m, k // 128)
    b = randn(n, k).to(torch.float8_e4m3fn), rand(n // 128, k // 128)
    return a, b, torch.zeros(m, n, device=device, dtype=torch.bfloat16)


def exact(a, b):
    x = a[0].double() * a[1].double().repeat_interleave(128, 1)
    y = b[0].double() * b[1].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return x @ y.T


def calc_diff(x, y):
    x, y = x.double(), y.double()
    return 1 - 2 * (x * y).sum() / (x * x + y * y).sum()


def test_the_current_stream_is_used():
    a, b, d = fp8_operands()
    deep_gemm.fp8_gemm_nt(a, b, d)
    expected = d.clone()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        # In another stream the GEMM would not wait for this.
        torch.cuda._sleep(200_000_000)
        d.zero_()
        deep_gemm.fp8_gemm_nt(a, b, d)
    assert not stream.query()
    stream.synchronize()
    assert torch.equal(d, expected)


def test_many_streams_at_once():
    cases = [fp8_operands(m=16 + i, seed=i) for i in range(8)]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (a, b, d) in zip(streams, cases):
            with torch.cuda.stream(stream):
                deep_gemm.fp8_gemm_nt(a, b, d)
    torch.cuda.synchronize()
    for a, b, d in cases:
        assert calc_diff(d, exact(a, b)) < 1e-4


def test_a_graph_is_replayed_with_other_values():
    a, b, d = fp8_operands()
    deep_gemm.fp8_gemm_nt(a, b, d)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        deep_gemm.fp8_gemm_nt(a, b, d)
    other, _, _ = fp8_operands(seed=5)
    a[0].copy_(other[0])
    a[1].copy_(other[1])
    graph.replay()
    assert calc_diff(d, exact(a, b)) < 1e-4


def test_a_graph_of_a_mixture_is_replayed_with_other_counts():
    groups, m, n, k = 4, 64, 256, 512
    a = torch.randn(groups, m, k, device="cuda").to(torch.float8_e4m3fn), torch.rand(groups, m, k // 128, device="cuda")
    b = (
        torch.randn(groups, n, k, device="cuda").to(torch.float8_e4m3fn),
        torch.rand(groups, n // 128, k // 128, device="cuda"),
    )
    d = torch.zeros(groups, m, n, device="cuda", dtype=torch.bfloat16)
    counts = torch.tensor([1, 0, 64, 7], device="cuda", dtype=torch.int32)
    call = lambda: deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, counts, 16)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for numbers in [[1, 0, 64, 7], [64, 64, 64, 64], [0, 0, 0, 0], [13, 64, 0, 1]]:
        counts.copy_(torch.tensor(numbers, dtype=torch.int32))
        d.fill_(7.0)
        graph.replay()
        for group, count in enumerate(numbers):
            if count:
                part = exact((a[0][group], a[1][group]), (b[0][group], b[1][group]))
                assert calc_diff(d[group, :count], part[:count]) < 1e-4
            assert (d[group, count:] == 7.0).all()


def test_logits_of_pages_in_a_graph():
    batch, heads, dim, page = 3, 64, 128, 64
    q = torch.randn(batch, 1, heads, dim, device="cuda").to(torch.float8_e4m3fn)
    cache = torch.zeros(8, page, 1, dim + 4, device="cuda", dtype=torch.uint8)
    weights = torch.randn(batch, heads, device="cuda")
    lengths = torch.tensor([[100], [0], [128]], device="cuda", dtype=torch.int32)
    table = torch.arange(6, device="cuda", dtype=torch.int32).reshape(3, 2)

    def call():
        meta = deep_gemm.get_paged_mqa_logits_metadata(lengths, page, deep_gemm.get_num_sms())
        return deep_gemm.fp8_paged_mqa_logits(q, cache, weights, lengths, table, meta, 128, clean_logits=True)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = call()
    lengths.copy_(torch.tensor([[1], [128], [0]], dtype=torch.int32))
    graph.replay()
    finite = torch.isfinite(logits).sum(1).tolist()
    assert finite == [1, 128, 0]


def test_logits_of_today_s_calls_in_a_graph():
    """Padded heads, six queries of a sequence, pages of 256, ``indices`` and ``schedule_meta``: other numbers later."""
    batch, next_n, heads, dim, page, keys = 2, 6, 24, 64, 256, 300
    q = torch.randn(batch, next_n, heads, dim, device="cuda").to(torch.float8_e4m3fn)
    # Codes and scales below 2.
    cache = torch.randint(0, 64, (4, page, 1, dim + 4), device="cuda", dtype=torch.uint8)
    weights = torch.randn(batch * next_n, heads, device="cuda")
    lengths = torch.full((batch, next_n), 300, device="cuda", dtype=torch.int32)
    table = torch.arange(4, device="cuda", dtype=torch.int32).reshape(2, 2)
    rows, tables = q.view(-1, 1, heads, dim), table.repeat_interleave(next_n, 0)
    indices = torch.arange(batch, device="cuda", dtype=torch.int32).repeat_interleave(next_n)
    kv = torch.randn(keys, dim, device="cuda").to(torch.float8_e4m3fn), torch.rand(keys, device="cuda")
    starts, ends = torch.zeros(12, device="cuda", dtype=torch.int32), torch.full((12,), 300, device="cuda").int()

    def call():
        meta = deep_gemm.get_paged_mqa_logits_metadata(lengths, page, deep_gemm.get_num_sms() // 2)
        paged = deep_gemm.fp8_fp4_paged_mqa_logits((q, None), cache, weights, lengths, table, meta, 512, True)
        flat = lengths.view(-1, 1)
        meta = deep_gemm.get_paged_mqa_logits_metadata(flat, page, deep_gemm.get_num_sms(), indices)
        varlen = deep_gemm.fp8_fp4_paged_mqa_logits((rows, None), cache, weights, flat, tables, meta, 512, indices)
        meta = deep_gemm.get_mqa_logits_metadata(starts, ends, keys, heads)
        dense = deep_gemm.fp8_fp4_mqa_logits((q.flatten(0, 1), None), kv, weights, starts, ends, 300, meta)
        return paged, varlen, dense

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    for length, first in [(300, 0), (0, 100), (257, 299)]:
        lengths.fill_(length)
        starts.fill_(first)
        graph.replay()
        paged, varlen, dense = captured
        assert torch.isfinite(paged).sum(1).tolist() == [length] * 12
        assert torch.equal(varlen[:, :length], paged[:, :length])
        full = deep_gemm.fp8_mqa_logits(q.flatten(0, 1), kv, weights, starts, ends)
        assert torch.equal(dense[:, : 300 - first], full[:, first:])


def test_threads():
    failures = []

    def work(seed):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for m in range(1, 40):
                    a, b, d = fp8_operands(m=m, n=256, k=256, seed=seed)
                    deep_gemm.fp8_gemm_nt(a, b, d)
                    assert calc_diff(d, exact(a, b)) < 1e-4
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_compiled_with_inductor():
    a, b, _ = fp8_operands()

    def layer(a, b):
        d = torch.empty(64, 512, device="cuda", dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt(a, b, d)
        return torch.nn.functional.silu(d)

    torch._dynamo.reset()
    found = torch.compile(layer, fullgraph=True)(a, b)
    torch.testing.assert_close(found, layer(a, b))


def test_compiled_with_graphs():
    a, b, _ = fp8_operands()

    def layer(a, b):
        d = torch.empty(64, 512, device="cuda", dtype=torch.bfloat16)
        deep_gemm.fp8_gemm_nt(a, b, d)
        return d * 2

    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    expected = layer(a, b)
    for _ in range(4):
        assert torch.equal(fast(a, b), expected)


def test_no_shape_compiles_and_kernels_come_with_the_package():
    import os

    for m in [1, 3, 17, 64, 100, 200, 1000]:
        a, b, d = fp8_operands(m=m)
        deep_gemm.fp8_gemm_nt(a, b, d)
    stats = oxigemm.config.gpu_stats(torch.cuda.current_device())
    assert stats["kernels"] > 0
    if os.path.isdir(os.path.join(os.path.dirname(oxigemm.__file__), "cubins")):
        assert stats["compilations"] == 0, stats


def test_fewer_sms_and_programmatic_dependent_launch():
    a, b, d = fp8_operands(m=512)
    deep_gemm.set_num_sms(66)
    deep_gemm.set_pdl(True)
    try:
        assert deep_gemm.get_num_sms() == 66
        for _ in range(5):
            deep_gemm.fp8_gemm_nt(a, b, d)
    finally:
        deep_gemm.set_num_sms(0)
        deep_gemm.set_pdl(False)
    assert calc_diff(d, exact(a, b)) < 1e-4


def test_tensors_of_two_devices_are_refused():
    a, b, d = fp8_operands()
    with pytest.raises(ValueError, match="`sfb` is on the wrong device: expected cuda:0, where `a` is, found cpu"):
        deep_gemm.fp8_gemm_nt(a, (b[0], b[1].cpu()), d)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_cublaslt(layout, out):
    m, n, k = 64, 128, 256
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    expected = a.double() @ b.double().T
    d = torch.empty(m, n, device="cuda", dtype=out)
    given_a = a.T.contiguous() if layout[0] == "t" else a
    given_b = b.T.contiguous() if layout[1] == "n" else b
    getattr(deep_gemm, f"cublaslt_gemm_{layout}")(given_a, given_b, d)
    assert calc_diff(d, expected) < 1e-5
    getattr(deep_gemm, f"cublaslt_gemm_{layout}")(given_a, given_b, d, c=d)
    assert calc_diff(d, 2 * expected) < 1e-5


def test_cublaslt_of_fp8_and_of_heads():
    a, b, d = fp8_operands()
    deep_gemm.cublaslt_gemm_nt(a[0], b[0], d)
    assert calc_diff(d, a[0].double() @ b[0].double().T) < 1e-3
    x = torch.randn(8, 4, 64, device="cuda").bfloat16()
    w = torch.randn(4, 32, 64, device="cuda").bfloat16()
    y = torch.empty(8, 4, 32, device="cuda", dtype=torch.bfloat16)
    deep_gemm.einsum("bhr,hdr->bhd", x, w, y, use_cublaslt=True)
    assert calc_diff(y, torch.einsum("bhr,hdr->bhd", x.double(), w.double())) < 1e-5


@pytest.mark.parametrize("b", [128, 4096])
def test_einsum_sums_in_the_order_of_torch(b):
    """DeepGEMM's tests hold it so close that K must be visited forward in every tile."""
    h, r, d = 8, 4096, 1024
    x = torch.randn(b, h, r, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(h, d, r + 128, device="cuda", dtype=torch.bfloat16)[:, :, :r]
    y = torch.empty(b, h, d, device="cuda", dtype=torch.bfloat16)
    deep_gemm.einsum("bhr,hdr->bhd", x, w, y)
    assert calc_diff(y, torch.einsum("bhr,hdr->bhd", x, w)) < 1e-10


def test_rows_of_an_einsum_do_not_depend_on_their_place():
    b, h, r, d = 4096, 8, 4096, 1024
    x = torch.randn(b, h, r, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(h, d, r, device="cuda", dtype=torch.bfloat16)
    y, moved = (torch.empty(b, h, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    deep_gemm.einsum("bhr,hdr->bhd", x, w, y)
    deep_gemm.einsum("bhr,hdr->bhd", x.roll(128, 0), w, moved)
    assert torch.equal(moved, y.roll(128, 0))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_second_gpu():
    a, b, d = fp8_operands(device="cuda:1")
    assert torch.cuda.current_device() == 0
    deep_gemm.fp8_gemm_nt(a, b, d)
    assert calc_diff(d, exact(a, b)) < 1e-4
    assert torch.cuda.current_device() == 0


def test_how_engines_call_it():
    """vLLM and SGLang: scales along M, flags, and the old names."""
    a, b, d = fp8_operands()
    sfa = deep_gemm.get_mn_major_tma_aligned_tensor(a[1])
    deep_gemm.fp8_gemm_nt((a[0], sfa), b, d, disable_ue8m0_cast=True)
    assert calc_diff(d, exact(a, b)) < 1e-4
    ids = torch.zeros(128, device="cuda", dtype=torch.int32)
    x, w, y = fp8_operands(m=128, n=256, k=512)
    grouped = (w[0].unsqueeze(0), w[1].unsqueeze(0))
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(x, grouped, y, ids, disable_ue8m0_cast=True)
    assert calc_diff(y, exact(x, w)) < 1e-4


def test_every_kernel_loads_and_none_is_compiled():
    import os

    oxigemm.config.load_all(torch.cuda.current_device())
    stats = oxigemm.config.gpu_stats(torch.cuda.current_device())
    assert stats["kernels"] >= 210
    if os.path.isdir(os.path.join(os.path.dirname(oxigemm.__file__), "cubins")):
        assert stats["compilations"] == 0, stats


def test_processes_fork_after_importing():
    import subprocess
    import sys

    code = """
import os, torch, oxigemm
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        x = torch.ones(8, 64, device="cuda", dtype=torch.bfloat16)
        d = torch.empty(8, 8, device="cuda")
        oxigemm.deep_gemm.bf16_gemm_nt(x, x, d)
        assert (d == 64).all()
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert run.stdout.strip() == "[0, 0, 0, 0]", run.stderr


def test_alpha_in_gpu_memory_is_refused():
    a, b, d = fp8_operands()
    with pytest.raises(ValueError) as caught:
        deep_gemm.fp8_gemm_nt(a, b, d, alpha=torch.ones(1, device="cuda"))
    assert caught.value.argument == "alpha"
    deep_gemm.fp8_gemm_nt(a, b, d, alpha=torch.tensor(0.5))
    assert calc_diff(d, 0.5 * exact(a, b)) < 1e-4


@pytest.mark.parametrize("form", ["packed", "float8_e8m0fnu", "uint8"])
def test_a_graph_unpacks_ue8m0_scales(form):
    a, b, d = fp8_operands()
    a, b = ((codes, torch.exp2(torch.round(torch.log2(sf)))) for codes, sf in (a, b))
    expected = torch.zeros_like(d)
    deep_gemm.fp8_gemm_nt(a, b, expected)
    exponents = lambda sf: (sf.view(torch.int32) >> 23).to(torch.uint8)  # noqa: E731
    convert = {
        "packed": deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor,
        "float8_e8m0fnu": lambda sf: exponents(sf).view(torch.float8_e8m0fnu),
        "uint8": exponents,
    }[form]
    a, b = (a[0], convert(a[1])), (b[0], convert(b[1]))
    # The workspace belongs to a stream: the first call in it allocates, and a capture may not.
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        deep_gemm.fp8_gemm_nt(a, b, d)
    stream.synchronize()
    assert torch.equal(d, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        deep_gemm.fp8_gemm_nt(a, b, d)
    d.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(d, expected)
