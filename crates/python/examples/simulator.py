"""The GPU's kernels without a GPU: numpy arrays, computed by the simulator under three schedules of async work."""

import ml_dtypes
import numpy as np

import oxigemm
from oxigemm import deep_gemm


def main():
    random = np.random.default_rng(0)
    m, n, k = 5, 256, 384
    x, w = (random.standard_normal((rows, k)).astype(np.float32) for rows in (m, n))
    activations = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)
    weights = deep_gemm.per_block_cast_to_fp8(w, use_ue8m0=False)
    results = []
    for schedule in ("sim", "sim:lazy", "sim:7"):
        oxigemm.set_device(schedule)
        y = np.empty((m, n), ml_dtypes.bfloat16)
        deep_gemm.fp8_gemm_nt(activations, weights, y)
        results.append(y)
    oxigemm.set_device("cpu")
    for y in results[1:]:
        deep_gemm.assert_bitwise_equal(results[0], y)
    difference = float(deep_gemm.calc_diff(results[0], x @ w.T))
    print(f"the same bits under every schedule; difference from the exact product: {difference:.1e}")
    assert difference < 1e-3


if __name__ == "__main__":
    main()
