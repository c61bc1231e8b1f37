"""Grouped GEMMs of a mixture in FP8: m-grouped contiguous (prefill), and m-grouped masked under a CUDA graph (decode).

On torch tensors of a GPU where there is one; else on torch tensors of the CPU with the reference, without a graph.
"""

import torch

from oxigemm import deep_gemm

EXPERTS, N, K = 4, 256, 512
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def weights_of_experts():
    w = torch.randn(EXPERTS, N, K, device=DEVICE, dtype=torch.bfloat16)
    codes, scales = zip(*(deep_gemm.per_block_cast_to_fp8(expert, use_ue8m0=False) for expert in w))
    return w, (torch.stack(codes), torch.stack(scales))


def prefill(w, weights):
    """Tokens sorted by expert. The rows of an expert start at a multiple of the alignment, here 1: no padding."""
    deep_gemm.set_mk_alignment_for_contiguous_layout(1)
    expert_of_row = torch.tensor([0] * 5 + [2] * 70 + [3] * 53, device=DEVICE, dtype=torch.int32)
    x = torch.randn(len(expert_of_row), K, device=DEVICE, dtype=torch.bfloat16)
    y = torch.empty(len(expert_of_row), N, device=DEVICE, dtype=torch.bfloat16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False), weights, y, expert_of_row
    )
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)
    exact = torch.stack([x[i].float() @ w[expert].float().T for i, expert in enumerate(expert_of_row.tolist())])
    return deep_gemm.calc_diff(y, exact)


def decode(w, weights):
    """Up to 16 tokens for each expert. The kernel reads their number, so one graph serves all steps."""
    max_m = 16
    x = torch.randn(EXPERTS, max_m, K, device=DEVICE, dtype=torch.bfloat16)
    codes, scales = deep_gemm.per_token_cast_to_fp8(x.reshape(-1, K), use_ue8m0=False)
    activations = codes.reshape(EXPERTS, max_m, K), scales.reshape(EXPERTS, max_m, -1)
    y = torch.zeros(EXPERTS, max_m, N, device=DEVICE, dtype=torch.bfloat16)
    counts = torch.tensor([1, 0, 16, 3], device=DEVICE, dtype=torch.int32)

    def step():
        deep_gemm.m_grouped_fp8_gemm_nt_masked(activations, weights, y, counts, expected_m=4)

    step()
    if DEVICE == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        step = graph.replay
    worst = 0.0
    for numbers in ([1, 0, 16, 3], [16, 2, 0, 7]):
        counts.copy_(torch.tensor(numbers, dtype=torch.int32))
        step()
        for expert, count in enumerate(numbers):
            exact = x[expert, :count].float() @ w[expert].float().T
            worst = max(worst, float(deep_gemm.calc_diff(y[expert, :count], exact)))
    return worst


def main():
    torch.manual_seed(0)
    w, weights = weights_of_experts()
    for name, layer in (("prefill", prefill), ("decode", decode)):
        difference = float(layer(w, weights))
        print(f"{name}: difference from the exact product: {difference:.1e}")
        assert difference < 1e-3


if __name__ == "__main__":
    main()
