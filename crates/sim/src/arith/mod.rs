//! Arithmetic on register values: functions of bits, with no knowledge of instructions or lanes.

pub(crate) mod alu;
pub(crate) mod cvt;
pub(crate) mod float;
pub(crate) mod float64;
pub(crate) mod minifloat;
pub(crate) mod simd;
