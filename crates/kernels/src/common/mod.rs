//! Building blocks that kernels of every operation share.

pub mod block_scale;
pub mod codes;
pub mod even_split;
pub mod fast_divmod;
pub mod grid_barrier;
pub mod index;
pub(crate) mod l2_prefetch;
pub mod params;
pub mod pipeline;
pub(crate) mod tensor_memory;
pub mod workspace_reduce;

/// Elements of K that share one scale, and the K extent of a pipeline stage.
pub const BLOCK_K: u32 = 128;
/// Threads of a warp.
pub const WARP: u32 = 32;
/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;
