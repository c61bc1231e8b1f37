//! Typed PTX builder: Rust functions that write GPU kernels, down to the last instruction.
//!
//! A kernel is written by calling methods of [`Kernel`] and operators of its values; the result is a
//! [`Module`], which is PTX text. That text is the whole interface: an assembler, the CUDA driver and a
//! simulator all read the same artifact.
//!
//! * Values ([`Val`]) are typed `Copy` handles. Arithmetic is Rust's own; constants fold.
//! * A Rust `for` or `if` runs while the kernel is built. [`Kernel::for_`], [`Kernel::while_`] and
//!   [`Kernel::if_`] write control flow.
//! * State that changes is explicit: [`Var`].
//! * Instructions are grouped as the PTX manual groups them: [`memory`], [`mbarrier`], [`tma`], [`wgmma`],
//!   [`ldmatrix`], [`sync`], [`warp`], [`convert`].
//! * Every instruction carries the Rust line that wrote it (`.loc`), so profilers, sanitizers and simulators
//!   point at Rust source.
//! * What Rust's types cannot check (an instruction the target lacks, an illegal shape) is an error of
//!   [`Kernel::finish`], with that line.
//! * The module states the lowest PTX version that has what it uses, so that old drivers take it.
//!
//! ```
//! use oxigemm_ptx::{Kernel, Target};
//!
//! // y[i] = a * x[i] + y[i]
//! let k = Kernel::new("axpy", Target::Sm90a).threads(256);
//! let (x, y) = (k.param_pointer("x"), k.param_pointer("y"));
//! let (a, n) = (k.param::<f32>("a"), k.param::<u32>("n"));
//!
//! let i = k.block_index(0) * 256 + k.thread_index();
//! k.if_(i.lt(n), || {
//!     let offset = i.widening_mul(4);
//!     let (x, y) = (x.at(offset), y.at(offset));
//!     y.store(x.load::<f32>().fma(a, y.load::<f32>()));
//! });
//!
//! let module = k.finish()?;
//! assert!(module.text.contains("fma.rn.f32"));
//! # Ok::<(), oxigemm_ptx::BuildError>(())
//! ```

mod control;
pub mod convert;
mod descriptor;
mod error;
mod kernel;
pub mod launch_control;
pub mod ldmatrix;
pub mod mbarrier;
pub mod memory;
mod ops;
pub mod sync;
mod target;
pub mod tcgen05;
pub mod tma;
mod value;
pub mod warp;
pub mod wgmma;

pub use convert::Fp8;
pub use error::{BuildError, BuildErrorKind};
pub use kernel::{Kernel, Module};
pub use mbarrier::{MBarrier, RemoteMBarrier};
pub use memory::{ClusterShared, Global, Ptr, Scope, Shared, SharedLayout, Space};
pub use ops::{Bits, Int, Num};
pub use target::{PtxVersion, Target};
pub use value::{Arg, Bf16, Bf16x2, Class, F16, F16x2, F32, Fp8x2, I32, Pred, Type, U16, U32, U64, Val, Var};
