//! Tensor-core kernels as Rust functions that emit PTX.
//!
//! | module | holds |
//! |---|---|
//! | [`Arch`] | the architectures, their PTX targets and limits |
//! | [`KernelId`] | the registry: every kernel, its name and its PTX |
//! | [`common`] | what operations share: the [`pipeline`](common::pipeline), L2 prefetch, workspace reduction |
//! | [`gemm`] | GEMM: tile [`scheduler`](gemm::scheduler), [`epilogue`](gemm::epilogue), launch geometry |
//! | [`gemm::sm90`] | GEMM kernels for Hopper |
//! | [`quantize`] | quantization, scale layouts, MoE permutation |
//! | [`attention`] | MQA logits of attention indexers |
//! | [`hyper_connection`] | the GEMM before the norm of a hyper-connection |
//! | [`moe`] | top-k of a mixture-of-experts router |
//! | [`exchange`] | tokens of a mixture whose experts lie on several GPUs |
//!
//! Shapes, strides, cluster sizes, splits and output types are arguments of the kernels, so the set of kernels is
//! closed and small: [`KernelId::all`].
//!
//! This crate knows nothing of devices: it gives PTX text, [`gemm::Launch`] numbers and [`gemm::params::GemmArgs`].
//!
//! ```
//! use oxigemm_kernels::Arch;
//! use oxigemm_kernels::gemm::GemmKernel;
//!
//! for kernel in GemmKernel::dense(Arch::Sm90a) {
//!     let module = kernel.build()?;
//!     assert!(module.text.contains("wgmma.mma_async"));
//! }
//! # Ok::<(), oxigemm_ptx::BuildError>(())
//! ```

mod arch;
pub mod attention;
pub mod common;
pub mod exchange;
pub mod gemm;
pub mod hyper_connection;
pub mod moe;
pub mod quantize;
mod registry;

pub use arch::{Arch, ArchLimits};
pub use common::params::KernelArg;
pub use common::{BLOCK_K, WARP, WARPGROUP};
pub use oxigemm_ptx::wgmma::Swizzle;
pub use oxigemm_ptx::{BuildError, Module, Target};
pub use registry::KernelId;
