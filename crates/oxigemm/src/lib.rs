//! Tensor-core kernels for large language models, in Rust, with only the GPU driver.

pub mod cast;
pub mod check;
mod device;
mod dtype;
mod error;
mod gemm;
mod layout;
pub mod metrics;
pub mod plan;
mod prepared;
pub mod random;
pub mod reference;
mod runtime;
mod storage;
mod tensor;

pub use device::{Device, DeviceId};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use gemm::{Addend, GemmOptions, RawFp8Gemm, fp8_gemm_nt, fp8_gemm_nt_plan, fp8_gemm_nt_raw};
pub use half::{bf16, f16};
pub use layout::MAX_RANK;
pub use runtime::{ARCH, Cuda, Loaded, Stats};
pub use tensor::Tensor;
