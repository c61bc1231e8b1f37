//! GEMM kernels for Hopper: TMA, `wgmma`, clusters.
//!
//! [`Kernel`] is the closed set, `tiles` lists it, `spec` and `launch` answer for its members.

pub mod f16_persistent;
pub mod fp8_mxfp4;
pub mod fp8_persistent;
pub mod fp8_scales32;
mod launch;
mod mma;
pub(crate) mod multicast;
mod roles;
mod row_loader;
pub(crate) mod scale_pipeline;
mod spec;
pub mod split_k;
mod store_pipeline;
mod stream_k;
mod tiles;
pub(crate) mod warpgroups;

pub use spec::Kernel;
