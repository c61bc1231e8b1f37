//! `tcgen05`: Blackwell's tensor core and tensor memory (PTX manual, "Tensorcore 5th Generation Family Instructions").
//!
//! Tensor memory holds accumulators, scales and optionally A: 128 lanes by 512 columns of 32 bits in each SM. One thread
//! issues an MMA for the whole CTA, or for a pair of CTAs; it is asynchronous, and [`commit`](Kernel::tcgen05_commit)
//! reports its end to an mbarrier.
//!
//! ```
//! use oxigemm_ptx::tcgen05::{CtaGroup, Instruction, Kind, MatrixA, OutputType, TensorMemory};
//! use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
//! use oxigemm_ptx::{Kernel, MBarrier, Target};
//!
//! let k = Kernel::new("product", Target::Sm100a).threads(128);
//! let shared = k.dynamic_shared();
//! let (place, done) = (shared.at(65536), MBarrier(shared.at(65544)));
//! // One warp takes 128 columns; all read where they are.
//! k.if_(k.thread_index().lt(32), || k.tensor_memory_alloc(CtaGroup::One, place, 128));
//! k.sync_threads();
//! let accumulator = TensorMemory::at(place.load());
//! k.if_(k.thread_index().eq(0), || {
//!     let a = Descriptor::k_major(shared, Swizzle::B128);
//!     let b = Descriptor::k_major(shared.at(16384), Swizzle::B128);
//!     let instruction = Instruction::new(Kind::Bf16, OutputType::F32, 128, 128);
//!     let first = k.constant(false);
//!     k.tcgen05_mma(CtaGroup::One, &instruction, accumulator, MatrixA::Shared(a), b, first);
//!     k.tcgen05_commit(CtaGroup::One, done);
//! });
//! done.wait(0);
//! k.tcgen05_fence_after();
//! let row = accumulator.load_rows(32);
//! k.tensor_memory_wait_loads();
//! # let _ = row;
//! # k.if_(k.thread_index().lt(32), || k.tensor_memory_dealloc(CtaGroup::One, accumulator, 128));
//! assert!(k.finish()?.text.contains("tcgen05.mma.cta_group::1.kind::f16"));
//! # Ok::<(), oxigemm_ptx::BuildError>(())
//! ```

mod memory;
mod mma;

pub use memory::{CopyShape, TensorMemory};
pub use mma::{BlockScale, Element, Instruction, Kind, MatrixA, OutputType, ScaleBytes, Scales};

use crate::kernel::Kernel;
use crate::mbarrier::MBarrier;
use crate::target::Needs;
use crate::value::U16;
use std::fmt;

/// How many CTAs share an operation: one, or the two of a pair (ranks 2 i and 2 i + 1 of a cluster).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtaGroup {
    /// One CTA.
    One,
    /// A pair: each holds half of A, of B and of the accumulator.
    Two,
}

impl CtaGroup {
    /// CTAs of the group.
    pub const fn ctas(self) -> u32 {
        match self {
            CtaGroup::One => 1,
            CtaGroup::Two => 2,
        }
    }
}

impl fmt::Display for CtaGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cta_group::{}", self.ctas())
    }
}

impl Kernel {
    /// Arrives once at `barrier` when all MMAs and tensor-memory copies that this thread has issued are complete.
    #[track_caller]
    pub fn tcgen05_commit(&self, group: CtaGroup, barrier: MBarrier<'_>) {
        self.emit(
            Needs::TCGEN05,
            format_args!("tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster.b64 {};", barrier.0),
        );
    }

    /// The same for the barriers at this offset in every CTA of the cluster whose bit is set.
    #[track_caller]
    pub fn tcgen05_commit_multicast<'k>(&'k self, group: CtaGroup, barrier: MBarrier<'k>, ctas: U16<'k>) {
        let mask = ctas.in_register().operand();
        self.emit(
            Needs::TCGEN05,
            format_args!(
                "tcgen05.commit.{group}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 {}, {mask};",
                barrier.0
            ),
        );
    }

    /// Orders this thread's earlier `tcgen05` operations before a synchronization that follows.
    #[track_caller]
    pub fn tcgen05_fence_before(&self) {
        self.emit(Needs::TCGEN05, format_args!("tcgen05.fence::before_thread_sync;"));
    }

    /// Orders this thread's later `tcgen05` operations after a synchronization that came before.
    #[track_caller]
    pub fn tcgen05_fence_after(&self) {
        self.emit(Needs::TCGEN05, format_args!("tcgen05.fence::after_thread_sync;"));
    }
}
