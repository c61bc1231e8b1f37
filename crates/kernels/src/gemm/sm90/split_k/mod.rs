//! Split-K kernels for few rows, on [shared parts](crate::gemm::split_k).

pub mod f16;
pub mod fp8;
