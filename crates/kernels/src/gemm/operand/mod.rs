//! Operands of a GEMM: element types, majors, their tiles in shared memory, and the rows of B that a tile takes.

pub mod f16;
pub mod fp8;
pub mod gate_up;
