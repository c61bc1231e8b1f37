//! Arithmetic on register values: functions of bits, with no knowledge of instructions or lanes.

pub(crate) mod alu;
pub(crate) mod cvt;
pub(crate) mod float;
pub(crate) mod float64;
pub(crate) mod minifloat;
pub(crate) mod simd;

/// A pure function of up to three values per lane.
pub(crate) type AluFn = fn(u64, u64, u64) -> u64;
/// A comparison.
pub(crate) type CmpFn = fn(u64, u64) -> bool;
/// A function of four values.
pub(crate) type Alu4Fn = fn(u64, u64, u64, u64) -> u64;
/// Sum and carry of one step of an extended-precision chain.
pub(crate) type CarryFn = fn(u64, u64, u64, bool) -> (u64, bool);
