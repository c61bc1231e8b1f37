//! The integration tests in one program, which links once and runs the tests of all files side by side.

mod arithmetic;
mod asynchronous;
mod broken;
mod clc;
mod common;
mod convergence;
mod conversions;
mod dependents;
mod findings;
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
mod tensor;
mod tensor_maps;
mod tma;
