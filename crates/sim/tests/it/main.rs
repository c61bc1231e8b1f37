//! The integration tests in one program, which links once and runs the tests of all files side by side.

mod arithmetic;
mod asynchronous;
mod broken;
mod common;
mod conversions;
mod dependents;
mod fuzz;
mod gemm;
mod global_races;
mod hazards;
mod instructions;
mod kernel;
mod layers;
mod mma;
mod mutations;
mod nvcc;
mod parser;
mod robust;
mod scopes;
mod stochastic;
mod tcgen05_copy;
mod tcgen05_mma_order;
mod tcgen05_order;
mod tensor;
mod tensor_memory;
