"""A dense layer in FP8: activations and weights are quantized and multiplied by the library's kernels.

On torch tensors of a GPU where there is one; else on numpy arrays with the CPU reference.
"""

from oxigemm import deep_gemm


def arrays():
    """Activations, weights, an output, and the exact product."""
    m, n, k = 64, 512, 1024
    try:
        import torch

        if torch.cuda.is_available():
            x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
            return x, w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16), x.float() @ w.float().T
    except ImportError:
        pass
    import ml_dtypes
    import numpy as np

    random = np.random.default_rng(0)
    x, w = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return x, w, np.empty((m, n), ml_dtypes.bfloat16), x.astype(np.float32) @ w.astype(np.float32).T


def main():
    x, w, y, exact = arrays()
    # 1x128 scales for activations, 128x128 scales for weights, which are quantized once.
    activations = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)
    weights = deep_gemm.per_block_cast_to_fp8(w, use_ue8m0=False)
    deep_gemm.fp8_gemm_nt(activations, weights, y)
    difference = float(deep_gemm.calc_diff(y, exact))
    print(f"difference from the exact product: {difference:.1e}")
    assert difference < 1e-3


if __name__ == "__main__":
    main()
