//! Building blocks that kernels of every operation share.

pub mod even_split;
pub mod fast_divmod;
pub mod index;
pub(crate) mod l2_prefetch;
pub mod params;
pub mod pipeline;
pub mod workspace_reduce;
