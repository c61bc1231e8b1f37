//! Cases for oxigemm: what is computed, random operands for it, and whether a result is right.
//!
//! - [`Op`]: the table of operations, one row each.
//! - [`GemmCase`]: one GEMM of any operation, with its layouts, groups, addend and epilogue.
//! - [`GemmData`]: its operands on the host, drawn from a seed.
//! - [`Gemm`]: the same on a device, with poison in all memory that is no part of an operand or of the result: run,
//!   judged against a float64 reference, and inspected for writes outside of D.
//! - [`timing`]: operands that are timed and not judged.
//! - [`plan`]: the only place that asks the planner about a case.
//! - [`memory`], [`Draw`], [`schedules`]: poisoned tensors, random numbers and schedules for other kinds of cases.
//!
//! The integration tests of `oxigemm` and the commands `verify`, `bench`, `mutate` and `gemm` use the same cases.

mod case;
mod data;
mod draw;
mod epilogue;
mod gemm;
mod groups;
mod judge;
pub mod memory;
mod op;
pub mod plan;
mod schedule;
#[cfg(test)]
mod tests;
pub mod timing;
mod upload;

pub use case::{AddendKind, GemmCase, Grouping, ScaleMode};
pub use data::{Fp8Pair, GemmData, GroupData, values};
pub use draw::{Draw, spread};
pub use epilogue::{ACTIVATIONS, EpilogueSpec, GPT_OSS};
pub use gemm::Gemm;
pub use groups::{MGroups, ends, ids};
pub use judge::{DIFF_LIMIT, Effort, UNQUANTIZED_LIMIT, Verdict};
pub use memory::{Fill, POISON, ScaleOrder};
pub use op::{
    BF16, FP4_FP8, FP8, FP8_1D1D, FP8_1X32, FP8_32X32, FP8_FP4, FP8_UE8M0, FP16, GroupingKind, MXFP4, MXFP8,
    NVFP4, Named, Op, OperandTypes, TF32,
};
pub use oxigemm_kernels::gemm::operand::fp8::E5m2;
pub use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;
pub use schedule::{in_turn, one_policy, policies, same_bits, schedules, some_schedules};

/// Failure of a case: one sentence.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
