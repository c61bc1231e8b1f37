//! GEMM: what every architecture shares, and a folder for each architecture.

pub mod epilogue;
pub mod launch;
pub mod operand;
pub mod params;
pub mod scheduler;
pub mod sm90;
pub mod transpose;
pub mod transpose_k_grouped;
