//! GEMM kernels for Blackwell: TMA, `tcgen05`, tensor memory, CTA pairs.
//!
//! [`Kernel`] is the closed set, `tiles` lists it, `spec` and `launch` answer for its members.
//!
//! | folder | kernel |
//! |---|---|
//! | [`persistent`] | persistent, warp-specialized: every operand type, dense and m-grouped |
//! | [`split_k`] | few rows: operands swapped, K split over a cluster |

mod launch;
mod operand;
pub mod persistent;
pub(crate) mod scales;
mod spec;
pub mod split_k;
mod tiles;

pub use spec::Kernel;
