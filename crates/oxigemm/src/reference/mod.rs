//! The library's functions on the CPU, in `f64`: what every kernel is measured against.
//!
//! The product of two e4m3 values is a multiple of 2⁻¹⁸ below 2¹⁸, so that a sum of 128 products needs 43 bits: in
//! `f64` it is exact, in any order. The result depends on rounding only where scaled sums are added, 2⁻⁵³ each. With
//! e5m2 values, of a wider range, such a sum may be rounded as well.

mod attention;
mod epilogue;
mod f16;
mod fp8;
mod gemm;
mod hyper_connection;
pub(crate) mod moe;
pub(crate) mod nvfp4;
pub(crate) mod quantize;
pub(crate) mod router;

pub use attention::mqa_logit;
pub(crate) use attention::{mqa_logits_tensors, paged_mqa_logits_tensors, paged_mqa_schedule_tensors};
pub use epilogue::Finish;
pub use f16::{gemm_nt, gemm_nt_rows, truncated_to_tf32};
pub use fp8::{fp8_gemm_nt, fp8_gemm_nt_rows};
pub use gemm::fp8_gemm_nt_tensors;
pub(crate) use gemm::gemm;
pub(crate) use hyper_connection::hc_prenorm_tensors;
pub use hyper_connection::tf32;

pub use crate::cast::Fp8Matrix;
