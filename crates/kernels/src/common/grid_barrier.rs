//! Grid barrier with an all-reduce maximum: every CTA of a cooperative launch contributes a value and gets the maximum.
//!
//! Each CTA stores its value in a slot of its own in the workspace and polls the slots of all others, so all CTAs have
//! to be resident at once. One bit of a slot is the phase of the launch that wrote it. The phase of the last launch is
//! in the workspace too; CTA 0 flips it when it has seen all slots, and by then every CTA has read it. Every launch on
//! a device has the same number of CTAs, also where some have no data, so that no slot is older than the last launch.

use crate::common::WARP;
use oxigemm_ptx::{Global, Kernel, Scope, Shared, U32};

/// Maximum number of CTAs: the slots that one warp polls.
pub(crate) const MAX_CTAS: u32 = SLOTS_PER_LANE * WARP;
/// Maximum number of warps of a CTA.
const MAX_WARPS: u32 = 32;
/// Slots that a lane polls.
const SLOTS_PER_LANE: u32 = 4;
/// Bytes from one slot to the next: an L2 sector, so that polling a slot delays no other.
const SLOT_STRIDE: u32 = 32;
/// Offset of the last launch's phase, behind the slots.
const PHASE_OFFSET: u64 = (MAX_CTAS * SLOT_STRIDE) as u64;
/// Delay before the first poll, in nanoseconds. Earlier polls delay the CTAs that have not arrived yet.
const POLL_DELAY_NS: u32 = 200;
/// Offset of the grid's maximum in shared memory, behind those of the warps.
const RESULT_OFFSET: u32 = 4 * MAX_WARPS;

/// Bytes of the workspace. It starts as zeros, and each launch leaves it ready for the next.
pub const WORKSPACE_BYTES: u64 = PHASE_OFFSET + 128;

/// Barrier of a grid of at most [`MAX_CTAS`] CTAs.
pub(crate) struct GridBarrier<'k> {
    pub k: &'k Kernel,
    /// [`WORKSPACE_BYTES`] of global memory.
    pub workspace: Global<'k>,
    /// Threads of a CTA.
    pub threads: U32<'k>,
}

impl<'k> GridBarrier<'k> {
    /// Bytes of dynamic shared memory.
    pub const SHARED_BYTES: u32 = RESULT_OFFSET + 4;

    /// The phase of this launch. It also prefetches the slots into L2, although the assembler puts the prefetch behind
    /// the wait for the CTA's data.
    pub fn begin(&self) -> U32<'k> {
        const LINE: u32 = 128;
        let k = self.k;
        let phase = self.last_phase().load_relaxed::<u32>(Scope::Gpu) ^ 1;
        let line = self.workspace.at(k.thread_index().widening_mul(LINE));
        k.guard(k.thread_index().lt(MAX_CTAS * SLOT_STRIDE / LINE), || line.prefetch());
        phase
    }

    /// Maximum over all threads of the grid, in all of them. The values have 31 bits.
    #[track_caller]
    pub fn all_reduce_max(&self, phase: U32<'k>, value: U32<'k>) -> U32<'k> {
        let (k, shared) = (self.k, self.k.dynamic_shared());
        let of_warp = k.warp_max(value);
        let word = |warp: U32<'k>| shared.at(warp * 4);
        let (lane, warp) = (k.lane(), k.thread_index() / WARP);
        k.guard(lane.eq(0), || word(warp).store(of_warp));
        k.sync_threads();
        let result: Shared = shared.at(RESULT_OFFSET);
        k.if_(warp.eq(0), || {
            // Lanes beyond the CTA's last warp read the last warp's word again.
            let of_cta = k.warp_max(word(lane.min(self.threads / WARP - 1)).load());
            let of_grid = self.exchange(phase, of_cta);
            k.guard(lane.eq(0), || result.store(of_grid));
        });
        k.sync_threads();
        result.load()
    }

    /// One warp stores the value of its CTA, waits for the slots of all CTAs and returns the maximum.
    #[track_caller]
    fn exchange(&self, phase: U32<'k>, value: U32<'k>) -> U32<'k> {
        let (k, first_lane) = (self.k, self.k.lane().eq(0));
        let (cta, ctas) = (k.block_index(0), k.grid_blocks(0));
        k.guard(first_lane, || self.slot(cta).store_relaxed((value << 1) | phase, Scope::Gpu));
        k.sleep(POLL_DELAY_NS);
        // Slots beyond the grid's last CTA are the last CTA's slot again.
        let slots: Vec<Global> =
            (0..SLOTS_PER_LANE).map(|i| self.slot((k.lane() + i * WARP).min(ctas - 1))).collect();
        let (found, missing) = (k.var(0u32), k.var(1u32));
        k.while_(
            || missing.live().ne(0),
            || {
                let words: Vec<U32> = slots.iter().map(|slot| slot.load_relaxed(Scope::Gpu)).collect();
                let stale = words.iter().map(|word| (*word ^ phase) & 1);
                missing.set(k.warp_max(stale.reduce(|a, b| a | b).expect("a lane has slots")));
                found.set(words.into_iter().reduce(|a, b| a.max(b)).expect("a lane has slots"));
            },
        );
        k.guard(first_lane & cta.eq(0), || self.last_phase().store_relaxed(phase, Scope::Gpu));
        k.warp_max(found.get()) >> 1
    }

    fn slot(&self, cta: U32<'k>) -> Global<'k> {
        self.workspace.at(cta.widening_mul(SLOT_STRIDE))
    }

    fn last_phase(&self) -> Global<'k> {
        self.workspace.at(PHASE_OFFSET)
    }
}
