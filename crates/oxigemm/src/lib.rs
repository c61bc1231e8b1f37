//! Tensor-core kernels for large language models, in Rust, with only the GPU driver.

pub mod check;
mod device;
mod dtype;
mod error;
mod layout;
mod storage;
mod tensor;

pub use device::{Device, DeviceId};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use layout::MAX_RANK;
pub use tensor::Tensor;
