//! The CUDA driver, for kernels that are PTX text.
//!
//! This crate is the only one of oxigemm that talks to a GPU, and it needs nothing but the driver: no toolkit, no
//! runtime library, no compiler. The driver is loaded on first use, so a program that links this crate also starts on a
//! machine without a GPU, and gets an [`Error`] that says what is missing.
//!
//! It has three layers, each thin:
//!
//! * the driver's functions, resolved once and each checked for;
//! * errors that carry the driver's own name and words;
//! * owned types: [`Device`], [`Buffer`], [`Stream`], [`Event`], [`Graph`], [`Module`], [`Function`]. All of
//!   them are `Send` and `Sync`; whatever is made on a device keeps it open.
//!
//! # From PTX to code
//!
//! [`Device::load`] takes PTX and gives a [`Module`]. The code comes from the first of these that has it:
//!
//! 1. a directory of cubins that were built ahead ([`CubinCache::with_prebuilt`] or `OXIGEMM_PREBUILT_DIR`);
//! 2. the user's [`CubinCache`];
//! 3. a `ptxas`, where one is found ([`assemble`]); its cubin then goes into the cache;
//! 4. the driver's own compiler, whose result the driver caches.
//!
//! The driver's *linker* is never used, nor is `ptxas -c`: both drop `setmaxnreg`, and a kernel that lost it
//! spills. For the same reason code that spills, has a stack, or lost `setmaxnreg` is an error and not a slow
//! kernel: see [`assemble::Report::fault`].
//!
//! The way from PTX to a cubin needs no GPU, so kernels can be built ahead anywhere:
//!
//! ```
//! use oxigemm_cuda::{CubinCache, PtxModule};
//!
//! let text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry nothing() { ret; }\n";
//! let ptx = PtxModule { name: "nothing", text, arch: "sm_90a" };
//! match CubinCache::disabled().cubin(&ptx)? {
//!     Some(cubin) => println!("{} bytes from {}", cubin.bytes.len(), cubin.assembler),
//!     None => println!("no assembler here: the driver will have to compile it"),
//! }
//! # Ok::<(), oxigemm_cuda::Error>(())
//! ```
//!
//! # Measuring
//!
//! [`profile::KernelTimer`] times calls by the durations of their kernels, and [`cublaslt`] has the calibration GEMM,
//! which tells whether a card is cool enough for its times to be compared.

#![warn(missing_docs)]

mod arch;
pub mod assemble;
mod buffer;
mod cache;
pub mod cublaslt;
mod device;
mod driver;
mod error;
mod graph;
mod launch;
mod library;
mod module;
pub mod profile;
mod search;
mod stream;
mod tensor_map;

pub use buffer::Buffer;
pub use cache::{CacheStats, Cubin, CubinCache, Key};
pub use device::{Device, device_count};
pub use error::{Error, Result};
pub use graph::Graph;
pub use launch::{Function, FunctionAttributes, LaunchConfig};
pub use module::{Module, Provenance, PtxModule};
pub use stream::{Event, Stream};
pub use tensor_map::{Element, L2Promotion, Swizzle, TensorMap, TensorMapRule, TiledTensor};
