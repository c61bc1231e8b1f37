//! Tensor-core kernels as Rust functions that emit PTX.
//!
//! One file per kernel family, written on shared parts: the [`pipeline`] between loading and multiplying warps,
//! the [`schedule`] of tiles, the [groups](grouping) of rows, the [`epilogue`]. Shapes, strides, cluster sizes, splits
//! and output types are arguments of the kernels, so the set of kernels is closed and small: [`AnyKernel::all`].
//!
//! This crate knows nothing of devices: it gives PTX text, [`launch::Launch`] numbers and [`params::Args`].
//!
//! ```
//! use oxigemm_kernels::launch::Config;
//!
//! for config in Config::dense() {
//!     let module = config.build()?;
//!     assert!(module.text.contains("wgmma.mma_async"));
//! }
//! # Ok::<(), oxigemm_ptx::BuildError>(())
//! ```

mod closed_set;
mod cluster;
pub mod dispatch;
mod early;
pub mod epilogue;
mod few_rows;
pub mod fp8;
pub mod fp8_slim;
pub mod fp8_wide;
pub mod gathering;
pub mod grouping;
pub mod half;
mod half_output;
pub mod half_slim;
pub mod half_wide;
pub mod hc_prenorm;
pub mod indexer;
pub mod kgroups;
pub mod launch;
mod many_rows;
pub mod mqa_logits;
pub mod mqa_paged;
pub mod mqa_schedule;
pub mod params;
mod partials;
pub mod pipeline;
mod promote;
pub mod quantize;
mod scales;
pub mod schedule;
pub mod shares;
pub mod tail;
pub mod transpose;
pub mod transpose_groups;

pub use closed_set::{AnyKernel, Argument};
pub use oxigemm_ptx::wgmma::Swizzle;
pub use oxigemm_ptx::{BuildError, Module, Target};

/// Elements of K that share one scale, and the K extent of a pipeline stage.
pub const BLOCK_K: u32 = 128;
/// Threads of a warp.
pub const WARP: u32 = 32;
/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;
