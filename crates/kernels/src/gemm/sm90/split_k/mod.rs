//! Split-K kernels for few rows, on the shared parts of `gemm::split_k`.

pub mod f16;
pub mod fp8;
