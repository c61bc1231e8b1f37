//! Hopper kernels of the MQA logits: heads on `wgmma`, persistent CTAs, keys by TMA.
//!
//! Keys take the 64-row side of the tensor core, and the heads of some queries are its columns. So a thread has two
//! keys and a quarter of the heads of each query: it sums those in registers, and the four threads of a key then
//! reduce-scatter the queries.

mod heads;
pub mod mqa_logits;
pub mod paged_mqa_logits;
