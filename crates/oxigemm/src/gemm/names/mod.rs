//! The GEMM functions under the names that DeepGEMM gives them: thin, as each only names the parts of a
//! [`Gemm`](crate::check::gemm::tensors::Gemm).

mod batched;
mod f16;
mod fp4;
mod fp8;
mod fused;
mod k_grouped;
mod m_grouped;
mod tf32;

pub use batched::*;
pub use f16::*;
pub use fp4::*;
pub use fp8::*;
pub use fused::*;
pub use k_grouped::*;
pub use m_grouped::*;
pub use tf32::*;

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;

/// Refuses an A of another type than that of the function's name.
fn expect_type(a: &Tensor, expected: DType) -> Result<()> {
    if a.dtype() == expected {
        return Ok(());
    }
    Err(Error::DType { argument: "a", expected: expected.to_string(), found: a.dtype().to_string() })
}
