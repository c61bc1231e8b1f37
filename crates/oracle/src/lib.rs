//! Kernels of other compilers, run in the simulator and compared with models of what they compute.
//!
//! `ptx/` has PTX that Triton has written from the kernels in `triton/`, with a description of a launch of each.
//! Neither this library's builder nor its reading of the manual has touched that text, and the compiler is proven on
//! the chips, so a kernel that goes wrong here is first a question to the simulator.
//!
//! - [`Kernel`]: the PTX and its description; [`corpus`] reads all of them.
//! - [`Case`]: a kernel with operands and what it has to leave in memory. [`Operands::Integers`] are small, so that
//!   every result is exact and any order of sums gives the same bits. [`Operands::Normals`] are compared with a model
//!   of the tensor core (`tensor_core`) bit for bit where all of the kernel is modelled, else within a tolerance.
//! - [`check`]: a kernel under schedules with both operands, without faults.
//! - [`score`]: mutants of a kernel, and which of them the simulator finds. [`unordered`] is a second opinion on the
//!   others: a graph of what the run did, searched for paths, which shares nothing with the simulator's vector clocks.
//! - [`Factor`], [`product`]: the same model for kernels that are not in the corpus: what MMAs of sm_100a, one after another
//!   along K, make of codes and scales.
//! - [`coverage`]: which instruction forms the corpus uses, as the table of `docs/blackwell.md`.
//!
//! The models here know formats and published arithmetic, and nothing of the simulator's code.

#![warn(missing_docs)]

mod blackwell;
mod case;
mod check;
mod coverage;
mod explained;
mod format;
mod kernel;
mod mutation;
mod order;
mod reference;
mod tensor_core;

pub use blackwell::{BlockScale, Codes, Factor, product};
pub use case::{Case, Operands, Outputs};
pub use check::{Failure, check, schedules};
pub use coverage::coverage;
pub use kernel::{Element, Kernel, Param, corpus, folder};
pub use mutation::{Fate, Kind, Score, Survivor, Tally, disorder_of, score};
pub use order::{Unordered, unordered};
