//! Workspace reduction: accumulators of the same outputs that several blocks have, added up through global memory.
//!
//! Each warp of the blocks, which are neighbours in the grid, leaves the accumulators of its threads in the workspace,
//! and counts itself. Of the same warps of all blocks the one that comes last adds them up, in the order of the blocks,
//! so that the result does not depend on which one that is. Nobody waits, and no two of the blocks need to run at one
//! time.

use crate::common::WARP;
use oxigemm_ptx::memory::{AtomicOp, Scope};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Pred, U32, Var};

/// The most blocks of a reduction, and the most warps of each: they have a counter each, ahead of the accumulators.
pub const MOST_BLOCKS: u32 = 1024;
const MOST_WARPS: u32 = 8;
pub(crate) const MOST_COUNTERS: u32 = MOST_BLOCKS * MOST_WARPS;
pub(crate) const COUNTER_BYTES: u64 = (MOST_COUNTERS * 4) as u64;
/// Slots of a block: for outputs that another has begun, and for those that another goes on with.
const SLOTS: u32 = 2;

/// Bytes of the workspace for so many blocks. It begins as zeros, and the counters are zeros again when a grid ends.
#[must_use]
pub fn room_bytes(blocks: u32, threads: u32, values: u32) -> u64 {
    assert!(blocks <= MOST_BLOCKS, "{blocks} blocks reduce");
    assert!(threads <= MOST_WARPS * WARP, "{threads} threads of a block hold accumulators");
    COUNTER_BYTES + u64::from(blocks * SLOTS) * u64::from(threads * values * 4)
}

/// Reduction of the threads that hold accumulators.
pub(crate) struct WorkspaceReduce<'k> {
    pub k: &'k Kernel,
    pub workspace: Global<'k>,
    /// Threads of a block that hold accumulators, the first ones, and which of them this is.
    pub threads: u32,
    pub thread: U32<'k>,
    /// How many each of them holds.
    pub values: u32,
}

/// Blocks that have accumulators of the same outputs: the first and the last of them, and this one.
#[derive(Clone, Copy)]
pub(crate) struct Contributors<'k> {
    pub first: U32<'k>,
    pub last: U32<'k>,
    pub own: U32<'k>,
}

impl<'k> WorkspaceReduce<'k> {
    /// Has the counters of a block in the L2 cache when they are needed.
    pub fn warm(&self, block: U32<'k>) {
        let counter = self.counter(block);
        self.k.guard(self.is_first_of_warp(), || counter.reduce(AtomicOp::Add, 0u32, Scope::Gpu));
    }

    /// Leaves this thread's accumulators; in the warp that comes last, `finish` gets the totals.
    pub fn reduce(
        &self,
        blocks: Contributors<'k>,
        accumulators: &[F32<'k>],
        finish: impl FnOnce(Vec<F32<'k>>),
    ) {
        let k = self.k;
        assert_eq!(accumulators.len(), self.values as usize);
        self.leave(self.left_by(blocks.own, blocks.first), accumulators);
        k.sync_warp();
        let others = blocks.last - blocks.first;
        let before = k.var(0u32);
        k.if_(self.is_first_of_warp(), || {
            let counter = self.counter(blocks.first);
            before.set(counter.atomic_ordered::<u32>(AtomicOp::Add, 1u32, Scope::Gpu));
            // For the next grid.
            k.guard(before.live().eq(others), || counter.store(0u32));
        });
        k.sync_warp();
        let before = k.shuffle(Shuffle::Index, before.get(), 0u32);
        k.if_(before.eq(others), || finish(self.add(blocks)));
    }

    fn is_first_of_warp(&self) -> Pred<'k> {
        (self.thread % WARP).eq(0)
    }

    /// Counter of this thread's warp.
    fn counter(&self, block: U32<'k>) -> Global<'k> {
        self.workspace.at((block * MOST_WARPS + self.thread / WARP).widening_mul(4))
    }

    /// Where a block leaves what this thread has.
    fn left_by(&self, block: U32<'k>, first: U32<'k>) -> Global<'k> {
        let slot = block * SLOTS + block.eq(first).select(1u32, 0u32);
        let slots = self.workspace.at(COUNTER_BYTES);
        slots.at(slot.widening_mul(self.threads * self.values * 4))
    }

    fn leave(&self, to: Global<'k>, accumulators: &[F32<'k>]) {
        let (fours, ones) = accumulators.as_chunks::<4>();
        for (at, four) in self.fours(to).zip(fours) {
            at.store_vec(*four);
        }
        for (at, one) in self.ones(to).zip(ones) {
            at.store(*one);
        }
    }

    /// The totals, some blocks at a time.
    fn add(&self, blocks: Contributors<'k>) -> Vec<F32<'k>> {
        const AT_ONCE: u32 = 4;
        let k = self.k;
        let accumulators: Vec<Var<'k, f32>> = (0..self.values).map(|_| k.var(0.0f32)).collect();
        k.for_(blocks.first, blocks.last + 1, AT_ONCE, |first| {
            let left: Vec<_> = (0..AT_ONCE)
                .map(|nth| {
                    let block = first + nth;
                    let from = self.left_by(block.min(blocks.last), blocks.first);
                    let fours = self.fours(from).flat_map(|at| at.load_vec::<f32, 4>());
                    let ones = self.ones(from).map(|at| at.load::<f32>());
                    (block.le(blocks.last), fours.chain(ones).collect::<Vec<_>>())
                })
                .collect();
            for (exists, values) in left {
                for (sum, value) in accumulators.iter().zip(values) {
                    sum.set_if(exists, sum.live() + value);
                }
            }
        });
        accumulators.iter().map(|sum| sum.get()).collect()
    }

    /// Addresses of this thread's accumulators, four at a time, and of those that are left.
    fn fours(&self, from: Global<'k>) -> impl Iterator<Item = Global<'k>> {
        let (own, threads) = (from.at(self.thread.widening_mul(16)), self.threads);
        (0..self.values / 4).map(move |four| own.at(u64::from(four * threads * 16)))
    }

    fn ones(&self, from: Global<'k>) -> impl Iterator<Item = Global<'k>> {
        let (own, threads) = (from.at(self.thread.widening_mul(4)), self.threads);
        (self.values / 4 * 4..self.values).map(move |one| own.at(u64::from(one * threads * 4)))
    }
}
