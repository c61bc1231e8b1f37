//! Two blocks that have computed the products of a tile, each for some blocks of K: one leaves its sums, the other adds them to its own.

use super::Block;
use super::epilogue::Part;
use crate::WARPGROUP;
use crate::gemm::scheduler::stream_k::{FixupSlot, StreamKPart};
use crate::gemm::sm90::warpgroups::MATH_WARPGROUPS;
use oxigemm_ptx::memory::{AtomicOp, Scope};
use oxigemm_ptx::{Global, Pred, Shared, U32, Var};

/// For each math warpgroup a word of its own, and one by which the thread that stores for it learns whether to.
pub(super) const SHARED_BYTES: u32 = 2 * MATH_WARPGROUPS * 4;

/// Vectors of sums that are loaded at a time.
const AT_ONCE: usize = 16;

/// Neighbours in each other's place. What is stored as a vector sits in registers in that order, and a sum should sit in one of another parity
/// than its product: those of the same parity are read one after the other.
fn swapped<T>([a, b, c, d]: [T; 4]) -> [T; 4] {
    [b, a, d, c]
}

impl<'k> Block<'k, '_> {
    fn word(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.fixup_words).at(warpgroup * 4)
    }

    fn store_word(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.word(warpgroup).at(MATH_WARPGROUPS * 4)
    }

    /// Makes the sums of a part those of the whole tile, if the other part has been computed; says whether they are. All threads of a
    /// math warpgroup call it.
    pub(super) fn complete(&self, place: FixupSlot<'k>, sums: &[Vec<Var<'k, f32>>]) -> Pred<'k> {
        let (k, tail) = (self.k, self.tail.expect("tiles are shared out"));
        let complete = k.var(1u32);
        k.if_(place.exists(), || {
            let (warpgroup, blocks) = (self.warp >> 2, self.place.rank_in_cluster());
            let fixup = place.of(tail.room, blocks, warpgroup, self.cfg.accumulators());
            let sums: Vec<_> = sums.iter().flatten().copied().collect();
            complete.set(0);
            // The owner comes second as a rule, and then leaves nothing.
            k.if_(place.is_owners(), || {
                self.agree(warpgroup, complete, || fixup.counter.load_acquire::<u32>(Scope::Gpu));
            });
            k.if_(complete.live().eq(0), || {
                self.leave(fixup.own, &sums);
                // All have left theirs, and know what they agreed on before.
                self.meet(warpgroup);
                self.agree(warpgroup, complete, || {
                    fixup.counter.atomic_ordered::<u32>(AtomicOp::Add, 1u32, Scope::Gpu)
                });
            });
            k.if_(complete.live().ne(0), || {
                self.add(fixup.other, &sums);
                // For the next grid.
                k.guard(self.leads(), || fixup.counter.store(0u32));
            });
        });
        complete.get().ne(0)
    }

    fn leave(&self, at: Global<'k>, sums: &[Var<'k, f32>]) {
        for (at, four) in self.fours(at, sums.len()).zip(sums.as_chunks::<4>().0) {
            at.store_vec(swapped(four.map(|sum| sum.live())));
        }
    }

    fn add(&self, left_at: Global<'k>, sums: &[Var<'k, f32>]) {
        let places: Vec<_> = self.fours(left_at, sums.len()).collect();
        for (places, sums) in places.chunks(AT_ONCE).zip(sums.chunks(4 * AT_ONCE)) {
            let left: Vec<_> = places.iter().flat_map(|at| swapped(at.load_vec::<f32, 4>())).collect();
            sums.iter().zip(left).for_each(|(sum, left)| sum.set(sum.live() + left));
        }
    }

    /// Where this thread's sums are left, four at a time: beside those of the block's other threads.
    fn fours(&self, at: Global<'k>, sums: usize) -> impl Iterator<Item = Global<'k>> {
        let own = at.at(self.k.thread_index().widening_mul(16));
        let pitch = u64::from(MATH_WARPGROUPS * WARPGROUP * 16);
        (0..sums as u64 / 4).map(move |four| own.at(four * pitch))
    }

    /// Whether this is the first thread of its warpgroup.
    fn leads(&self) -> Pred<'k> {
        (self.k.thread_index() % WARPGROUP).eq(0)
    }

    fn meet(&self, warpgroup: U32<'k>) {
        self.k.barrier_sync(warpgroup + 1, WARPGROUP);
    }

    /// All threads of a warpgroup get what its first one does.
    fn agree(&self, warpgroup: U32<'k>, on: Var<'k, u32>, what: impl FnOnce() -> U32<'k>) {
        let (k, word) = (self.k, self.word(warpgroup));
        k.if_(self.leads(), || word.store(what()));
        k.sync_warp();
        self.meet(warpgroup);
        on.set(word.load::<u32>());
    }

    /// Does what only complete sums are good for.
    pub(super) fn if_complete(&self, part: &Part<'k>, body: impl FnOnce()) {
        match part.complete {
            Some(complete) => self.k.if_(complete, body),
            None => body(),
        }
    }

    /// A math warp tells the thread that stores whether there is something to store.
    pub(super) fn signal_store_warp(&self, part: &Part<'k>) {
        if let Some(complete) = part.complete {
            let (word, stores) = (self.store_word(part.warpgroup), complete.select::<u32>(1, 0));
            self.k.guard(self.leads(), || word.store(stores));
        }
    }

    /// What that thread was told.
    pub(super) fn is_signalled(&self, warpgroup: U32<'k>, part: StreamKPart<'k>) -> Pred<'k> {
        !part.fixup.exists() | self.store_word(warpgroup).load::<u32>().ne(0)
    }
}
