//! Operands of a GEMM: element types, majors and their tiles in shared memory.

pub mod f16;
pub mod fp8;
