//! A functional simulator of PTX: it parses a module, runs its kernels on the CPU, and reports what a GPU
//! would let pass in silence.

#![warn(missing_docs)]

mod alu;
mod ast;
mod atomic;
mod cluster;
mod context;
mod copy;
mod cvt;
mod decode;
mod error;
mod exec;
mod hazard;
mod isa;
mod machine;
mod mbarrier;
mod memory;
mod minifloat;
mod mma;
mod operands;
mod parse;
mod rng;
mod schedule;
mod special;
mod tensor_core;
mod tensormap;
mod tma;
mod types;
mod warp;
mod wgmma;

pub use ast::Position;
pub use error::{Fault, FaultKind, ParseError, Place};
pub use machine::{Launch, MAX_CLUSTER, MAX_SHARED_BYTES, Machine, Module, Options, Param, Policy, Report};
pub use memory::Memory;
pub use tensormap::{Element, Swizzle, TENSOR_MAP_BYTES, TensorMapSpec};
