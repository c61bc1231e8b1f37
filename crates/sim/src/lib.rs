//! Functional simulator of PTX: it parses a module and runs its kernels on the CPU bit for bit, under schedules
//! that a GPU could choose but rarely does, and reports what a GPU would let pass in silence.
//!
//! ```
//! use oxigemm_sim::{Launch, Machine, Module, Options, Param};
//!
//! let module = Module::parse("
//!     .version 8.0
//!     .target sm_90
//!     .address_size 64
//!     .visible .entry double(.param .u64 x) {
//!         .reg .b32 v; .reg .b64 a, i;
//!         ld.param.u64 a, [x];
//!         mov.u32 v, %tid.x;
//!         mul.wide.u32 i, v, 4;
//!         add.u64 a, a, i;
//!         ld.global.u32 v, [a];
//!         add.u32 v, v, v;
//!         st.global.u32 [a], v;
//!         ret;
//!     }")?;
//! let mut machine = Machine::new();
//! let x = machine.memory.allocate_with(&[1, 0, 0, 0, 2, 0, 0, 0]);
//! let launch = Launch {
//!     entry: "double".into(),
//!     grid: [1, 1, 1],
//!     cluster: None,
//!     block: [2, 1, 1],
//!     shared_bytes: 0,
//!     params: vec![Param::U64(x)],
//! };
//! machine.run(&module, &launch, &Options::default())?;
//! assert_eq!(machine.memory.read(x, 8)?, [2, 0, 0, 0, 4, 0, 0, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # From text to execution
//!
//! Text becomes a syntax tree (`text`), which becomes one flat array of decoded instructions per entry (`decode`):
//! names resolved, registers as dense indices, arithmetic as function pointers (`arith`). `schedule` starts
//! clusters and chooses which warp runs; `exec` runs one instruction of one group of lanes at a time. Execution is
//! on one thread and deterministic; only the arithmetic inside one matrix instruction is split between threads.
//!
//! An instruction is a variant of its family's enum with its decoder (`decode/FAMILY.rs`), and an executor
//! (`exec/FAMILY.rs`). The order in which the folders import each other is in `tests/it/layers.rs`.
//!
//! # Model
//!
//! * **Warps** (`exec::warp`). Lanes at the same instruction run together; the group that is furthest behind goes
//!   first; groups merge where they meet. Blocking waits (`mbarrier.try_wait`, barriers, group waits) let the other
//!   groups and warps run. `.sync` instructions wait for the lanes they need; `.aligned` ones require a converged
//!   warp (`exec::convergence`).
//! * **Memory** (`memory`, `exec::access`). Global allocations lie at 64-bit addresses with guards between them;
//!   every access is checked against its allocation. Shared addresses carry the CTA's rank in the cluster from bit
//!   24 up, as on Hopper, and start at 1 KiB. Generic addresses have one window per space.
//! * **mbarriers** (`units::mbarrier`) are objects beside shared memory: pending arrivals, transaction bytes and
//!   completed phases. Writing over a live one is an error.
//! * **Copies** (`units::copy`, `units::tma`, `units::tensormap`): `cp.async`, bulk and tensor copies are issued
//!   with all their operands and performed when the schedule says, one receiver of a multicast at a time; stores
//!   read their source and write their target as two steps. A tensor map is 128 bytes in this crate's own encoding,
//!   made by [`TensorMapSpec`].
//! * **Tensor cores** (`units::tensor_core`, `units::integer_core`, `units::mma`, `units::wgmma`): the fused,
//!   truncated accumulation of the hardware. A `wgmma` runs at any moment between its issue and the wait that
//!   covers it.
//! * **Approximations** (`ex2`, `lg2`, `rcp.approx`, `tanh`, ...) are the correctly rounded result, which is within
//!   the manual's bound and not always the hardware's bits.
//! * **Programmatic launches** ([`Machine::run_dependent`]): every kernel runs to its end; an access that a GPU could
//!   perform while the previous kernel still runs, and that conflicts with it, is a race.
//! * **Several devices** ([`World`]): grids of all devices are in flight at once and reach each other's memory; only
//!   releases and acquires of system scope order them.
//! * **Without effect**: cache operators and policies, prefetches (addresses are checked).
//!
//! # Schedules
//!
//! [`Policy::Eager`] does asynchronous work at once, [`Policy::Lazy`] only when nothing else can run,
//! [`Policy::Random`] at moments drawn from a seed; the order of warps and clusters follows. A kernel is correct
//! when every schedule gives the same bits and none reports a [`Fault`].
//!
//! # Hazards
//!
//! With [`Options::hazards`], shared and global memory have a shadow of who touched each word last, and every warp
//! a vector clock of what it has synchronized with (`hazard`): races, missing proxy fences, sources and
//! destinations of copies touched too early. Registers are tracked for `wgmma` in flight and for reads of what was
//! never written. mbarriers are checked for their counts, CTAs for what they leave in flight. Lanes of a warp are
//! ordered by `bar.warp.sync` and by `.aligned` instructions; shuffles, votes and elections make them converge, and
//! order no memory accesses. Groups of `cp.async` are counted per warp. Clusters are ordered by releases and
//! acquires in global memory.
//!
//! A fault ends the run, unless its kind is [allowed](Options::allow) or the run is to [keep going](Options::keep_going).
//! What the manual does not promise and hardware does all the same is a [note](Report::notes), and a fault where the
//! options are [strict](Options::strict).
//!
//! [`mutants`] gives every variant of a kernel with one synchronization instruction deleted or weakened; a kernel
//! is well synchronized when each is found, or known to be redundant.

#![warn(missing_docs)]

mod arith;
mod decode;
mod error;
mod exec;
mod hazard;
mod lanes;
mod machine;
mod memory;
mod module;
mod mutate;
mod options;
mod record;
mod report;
mod rng;
mod schedule;
mod target;
mod text;
mod traffic;
mod units;
mod world;

pub use error::{Fault, FaultKind, FaultKinds, LaunchPart, ParseError, Place, Position};
pub use machine::{Launch, MAX_CLUSTER, Machine, Param};
pub use memory::{MAX_SHARED_BYTES, Memory};
pub use module::Module;
pub use mutate::{Mutant, misissued, misscoped, misvalued, mutants};
pub use options::{Options, Policy};
pub use oxigemm_threads::Interrupt;
pub use record::{Deed, Step, Store, Way, Work};
pub use report::{Report, TraceEvent, TraceUnit};
pub use target::{Features, Target};
pub use traffic::Traffic;
pub use units::tensormap::{
    Element, Fill, Im2col, Swizzle, TENSOR_MAP_BYTES, TensorMapDetails, TensorMapSpec,
};
pub use world::{Ended, World};
