"""A layer of a mixture of experts in two calls: the router, and all experts.

On torch tensors of a GPU where there is one, replayed from a CUDA graph with other tokens. Else on torch tensors of the
CPU: with the reference, or with the GPU's kernels in the simulator (OXIGEMM_DEVICE=sim).
"""

import torch

from oxigemm import moe, quantization

TOKENS, EXPERTS, INNER, COLUMNS, TOPK = 24, 16, 128, 256, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL = slice(None)


class Layer:
    """A router and gated experts in FP8, with scales of 128x128: the same weights wherever it is made."""

    def __init__(self, device):
        random = torch.Generator().manual_seed(0)
        self.router = torch.randn(EXPERTS, COLUMNS, generator=random).bfloat16().to(device)
        self.experts = []
        for n, k in ((2 * INNER, COLUMNS), (COLUMNS, INNER)):
            w = torch.randn(EXPERTS * n, k, generator=random).bfloat16().to(device) / k**0.5
            codes, scales = quantization.quantize(w, "128x128", power_of_two=True)
            self.experts.append((codes.view(EXPERTS, n, k), scales.view(EXPERTS, n // 128, k // 128)))

    def __call__(self, x, group=None, own=ALL):
        """The layer's output. With a group of ranks, this one has its ``own`` experts, and the others theirs."""
        ids, weights = moe.route(x, self.router, TOPK, renormalize=True)
        gate_up, down = ((codes[own], scales[own]) for codes, scales in self.experts)
        return moe.forward(x, ids, weights, gate_up, down, group=group)

    def exact(self, x):
        """The formula in float32."""
        x = x.float()
        chosen, ids = (x @ self.router.float().T).topk(TOPK)
        weights = torch.zeros(len(x), EXPERTS, device=x.device).scatter(1, ids, chosen.softmax(1))
        gate_up, down = (
            codes.float() * scales.repeat_interleave(128, 1).repeat_interleave(128, 2) for codes, scales in self.experts
        )
        gates, ups = torch.einsum("tk,enk->ten", x, gate_up).chunk(2, dim=2)
        hidden = torch.nn.functional.silu(gates) * ups
        return torch.einsum("te,ten,ekn->tk", weights, hidden, down)


def difference(found, exact):
    return float((found.float() - exact).norm() / exact.norm())


def replayed(layer, x):
    """A function that computes the layer for what is in ``x``: on a GPU a replay, which the host launches at once."""
    if DEVICE == "cpu":
        return lambda: layer(x)
    # Memory that kernels keep belongs to a stream: the first call in it allocates, and a capture may not.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = layer(x)

    def replay():
        graph.replay()
        return out

    return replay


def main():
    layer, x = Layer(DEVICE), torch.empty(TOKENS, COLUMNS, dtype=torch.bfloat16, device=DEVICE)
    run = replayed(layer, x.zero_())
    for step in range(3):
        # Other tokens choose other experts.
        x.copy_(torch.randn(TOKENS, COLUMNS, generator=torch.Generator().manual_seed(step)))
        error = difference(run(), layer.exact(x))
        print(f"step {step}: difference from the exact product: {error:.1e}")
        # Activations are quantized to FP8 twice.
        assert error < 6e-2


if __name__ == "__main__":
    main()
