"""Products by cuBLASLt, where it is found: what others are compared with."""

from __future__ import annotations

from typing import Any, Optional

from .. import _call
from .. import _oxigemm as _C

__all__ = ["cublaslt_gemm_nn", "cublaslt_gemm_nt", "cublaslt_gemm_tn", "cublaslt_gemm_tt"]


def cublaslt_gemm_nt(a: Any, b: Any, d: Any, c: Optional[Any] = None) -> None:
    """D = C + A·Bᵀ by cuBLASLt, without scales: A [M, K], B [N, K], C and D [M, N], tensors of a GPU.

    An error says so where cuBLASLt is not found, or has no such product.
    """
    if _call.is_compiling():
        return _call.ops().cublaslt_gemm("nt", a, b, d, c)
    return _C.cublaslt_gemm("nt", a, b, d, c)


def cublaslt_gemm_nn(a: Any, b: Any, d: Any, c: Optional[Any] = None) -> None:
    """D = C + A·B by cuBLASLt, without scales: A [M, K], B [K, N], C and D [M, N], tensors of a GPU.

    An error says so where cuBLASLt is not found, or has no such product.
    """
    if _call.is_compiling():
        return _call.ops().cublaslt_gemm("nn", a, b, d, c)
    return _C.cublaslt_gemm("nn", a, b, d, c)


def cublaslt_gemm_tn(a: Any, b: Any, d: Any, c: Optional[Any] = None) -> None:
    """D = C + Aᵀ·B by cuBLASLt, without scales: A [K, M], B [K, N], C and D [M, N], tensors of a GPU.

    An error says so where cuBLASLt is not found, or has no such product.
    """
    if _call.is_compiling():
        return _call.ops().cublaslt_gemm("tn", a, b, d, c)
    return _C.cublaslt_gemm("tn", a, b, d, c)


def cublaslt_gemm_tt(a: Any, b: Any, d: Any, c: Optional[Any] = None) -> None:
    """D = C + Aᵀ·Bᵀ by cuBLASLt, without scales: A [K, M], B [N, K], C and D [M, N], tensors of a GPU.

    An error says so where cuBLASLt is not found, or has no such product.
    """
    if _call.is_compiling():
        return _call.ops().cublaslt_gemm("tt", a, b, d, c)
    return _C.cublaslt_gemm("tt", a, b, d, c)
