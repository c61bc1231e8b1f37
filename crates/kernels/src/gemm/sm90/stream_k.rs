//! Stream-K fix-up of persistent kernels: of two blocks that have each computed some K blocks of a tile, one leaves its
//! accumulators in the workspace, the other adds them to its own.

use super::warpgroups::MATH_WARPGROUPS;
use crate::common::WARPGROUP;
use crate::gemm::scheduler::ClusterPosition;
use crate::gemm::scheduler::stream_k::{FixupSlot, StreamKPart};
use oxigemm_ptx::memory::{AtomicOp, Scope};
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32, Var};

/// Bytes of shared memory: for each consumer warpgroup a word of its own, and one that tells its store thread whether
/// to store.
pub(super) const SHARED_BYTES: u32 = 2 * MATH_WARPGROUPS * 4;

/// Vectors of accumulators that are loaded at a time.
const AT_ONCE: usize = 16;

/// Neighbours swapped. What is stored as a vector sits in registers in that order, and an accumulator should sit in one
/// of another parity than its product: registers of the same parity are read one after the other.
fn swapped<T>([a, b, c, d]: [T; 4]) -> [T; 4] {
    [b, a, d, c]
}

/// Fix-ups of a block's consumer warpgroups.
#[derive(Clone, Copy)]
pub(super) struct Fixups<'k> {
    pub k: &'k Kernel,
    pub workspace: Global<'k>,
    /// [`SHARED_BYTES`] of shared memory.
    pub words: Shared<'k>,
    /// Accumulators of a block.
    pub accumulators: u32,
    pub cluster: ClusterPosition<'k>,
    /// This thread's warp.
    pub warp: U32<'k>,
}

impl<'k> Fixups<'k> {
    fn word(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.words.at(warpgroup * 4)
    }

    fn store_word(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.word(warpgroup).at(MATH_WARPGROUPS * 4)
    }

    /// Makes the accumulators of a part those of the whole tile, if the other part has been computed; says whether they
    /// are. All threads of a consumer warpgroup call it.
    pub fn fix_up(&self, slot: FixupSlot<'k>, accumulators: &[Vec<Var<'k, f32>>]) -> Pred<'k> {
        let k = self.k;
        let complete = k.var(1u32);
        k.if_(slot.exists(), || {
            let (warpgroup, blocks) = (self.warp >> 2, self.cluster.rank_and_size());
            let fixup = slot.of(self.workspace, blocks, warpgroup, self.accumulators);
            let accumulators: Vec<_> = accumulators.iter().flatten().copied().collect();
            complete.set(0);
            // The owner comes second as a rule, and then leaves nothing.
            k.if_(slot.is_owners(), || {
                self.broadcast(warpgroup, complete, || fixup.counter.load_acquire::<u32>(Scope::Gpu));
            });
            k.if_(complete.live().eq(0), || {
                self.leave(fixup.own, &accumulators);
                // All threads have left theirs, and have read the word of before.
                self.sync(warpgroup);
                self.broadcast(warpgroup, complete, || {
                    fixup.counter.atomic_ordered::<u32>(AtomicOp::Add, 1u32, Scope::Gpu)
                });
            });
            k.if_(complete.live().ne(0), || {
                self.add(fixup.other, &accumulators);
                // For the next grid.
                k.guard(self.leads(), || fixup.counter.store(0u32));
            });
        });
        complete.get().ne(0)
    }

    fn leave(&self, at: Global<'k>, accumulators: &[Var<'k, f32>]) {
        for (at, four) in self.fours(at, accumulators.len()).zip(accumulators.as_chunks::<4>().0) {
            at.store_vec(swapped(four.map(|accumulator| accumulator.live())));
        }
    }

    fn add(&self, left_at: Global<'k>, accumulators: &[Var<'k, f32>]) {
        let vectors: Vec<_> = self.fours(left_at, accumulators.len()).collect();
        for (vectors, accumulators) in vectors.chunks(AT_ONCE).zip(accumulators.chunks(4 * AT_ONCE)) {
            let left: Vec<_> = vectors.iter().flat_map(|at| swapped(at.load_vec::<f32, 4>())).collect();
            accumulators.iter().zip(left).for_each(|(own, left)| own.set(own.live() + left));
        }
    }

    /// Where this thread's accumulators are left, four at a time: beside those of the block's other threads.
    fn fours(&self, at: Global<'k>, count: usize) -> impl Iterator<Item = Global<'k>> {
        let own = at.at(self.k.thread_index().widening_mul(16));
        let pitch = u64::from(MATH_WARPGROUPS * WARPGROUP * 16);
        (0..count as u64 / 4).map(move |four| own.at(four * pitch))
    }

    /// Whether this is the first thread of its warpgroup.
    fn leads(&self) -> Pred<'k> {
        (self.k.thread_index() % WARPGROUP).eq(0)
    }

    fn sync(&self, warpgroup: U32<'k>) {
        self.k.barrier_sync(warpgroup + 1, WARPGROUP);
    }

    /// Broadcasts a value of the warpgroup's first thread to all of its threads.
    fn broadcast(&self, warpgroup: U32<'k>, to: Var<'k, u32>, value: impl FnOnce() -> U32<'k>) {
        let (k, word) = (self.k, self.word(warpgroup));
        k.if_(self.leads(), || word.store(value()));
        k.sync_warp();
        self.sync(warpgroup);
        to.set(word.load::<u32>());
    }

    /// Tells the store thread of a warpgroup whether there is something to store.
    pub fn signal_store(&self, warpgroup: U32<'k>, complete: Pred<'k>) {
        let (word, stores) = (self.store_word(warpgroup), complete.select::<u32>(1, 0));
        self.k.guard(self.leads(), || word.store(stores));
    }

    /// Whether the store thread is to store a part.
    pub fn is_signalled(&self, warpgroup: U32<'k>, part: StreamKPart<'k>) -> Pred<'k> {
        !part.fixup.exists() | self.store_word(warpgroup).load::<u32>().ne(0)
    }
}
