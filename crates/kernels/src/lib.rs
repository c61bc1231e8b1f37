//! Tensor-core kernels as Rust functions that emit PTX.
//!
//! A folder for each operation, on shared building blocks: the [`pipeline`](common::pipeline) between producers and
//! consumers, the tile [`scheduler`](gemm::scheduler), the [`epilogue`](gemm::epilogue), and the Hopper kernels in
//! [`gemm::sm90`]. Shapes, strides, cluster sizes, splits and output types are arguments of the kernels, so the set of
//! kernels is closed and small: [`KernelId::all`].
//!
//! This crate knows nothing of devices: it gives PTX text, [`Launch`](gemm::launch::Launch) numbers and
//! [`GemmArgs`](gemm::params::GemmArgs).
//!
//! ```
//! use oxigemm_kernels::gemm::launch::GemmKernel;
//!
//! for config in GemmKernel::dense() {
//!     let module = config.build()?;
//!     assert!(module.text.contains("wgmma.mma_async"));
//! }
//! # Ok::<(), oxigemm_ptx::BuildError>(())
//! ```

pub mod attention;
pub mod common;
pub mod gemm;
pub mod hyper_connection;
pub mod quantize;
mod registry;

pub use common::params::KernelArg;
pub use common::{BLOCK_K, WARP, WARPGROUP};
pub use oxigemm_ptx::wgmma::Swizzle;
pub use oxigemm_ptx::{BuildError, Module, Target};
pub use registry::KernelId;
