"""Operands of GEMMs, and what they mean, in numpy."""

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
E5M2 = ml_dtypes.float8_e5m2
BF16 = ml_dtypes.bfloat16


def normals(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def scales(*shape, seed=0):
    return np.random.default_rng([seed, 1, *shape]).uniform(0.5, 2.0, shape).astype(np.float32)


def per_token(*shape, seed=0, dtype=E4M3):
    """Codes with 1x128 scales."""
    *rows, k = shape
    return normals(*shape, seed=seed).astype(dtype), scales(*rows, -(-k // 128), seed=seed)


def per_block(*shape, seed=0, dtype=E4M3):
    """Codes with 128x128 scales."""
    *groups, n, k = shape
    return normals(*shape, seed=seed).astype(dtype), scales(*groups, -(-n // 128), -(-k // 128), seed=seed)


def per_32(*shape, rows=1, seed=0):
    """Codes with 1x32 scales, or with 32x32 scales: over many exponents, of any bits."""
    *groups, n, k = shape
    factors = scales(*groups, -(-n // rows), -(-k // 32), seed=seed)
    exponents = np.random.default_rng([seed, 2]).integers(-20, 20, factors.shape)
    return normals(*shape, seed=seed).astype(E4M3), np.ldexp(factors, exponents).astype(np.float32)


def dequantized(pair, block=128):
    """The numbers that codes and scales mean."""
    codes, factors = pair
    x = codes.astype(np.float64)
    for axis in (-2, -1):
        if factors.shape[axis] != x.shape[axis]:
            factors = np.repeat(factors, block, axis).take(np.arange(x.shape[axis]), axis)
    return x * factors


def calc_diff(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    norm = (x * x + y * y).sum()
    return 0.0 if norm == 0 else 1 - 2 * (x * y).sum() / norm
