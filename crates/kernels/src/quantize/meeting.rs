//! The largest magnitude of a matrix that the blocks of a grid hold among them, all at one time.
//!
//! Every block has a place in a room, of 64 bits: what it has found, and behind it the turn, which tells it from what was left there
//! by the grid before. Both are stored at once, so that nothing has to be ordered, and each thread of a block waits for the place
//! of one block. Nothing is reset: the next grid takes the next turn.
//!
//! Who waits for others must be sure that they run: there is no more than one block for each multiprocessor.

use oxigemm_ptx::{Global, Kernel, Scope, U32, U64};

use super::params::largest;
use super::tiles::{THREADS, of_block};

/// The most blocks that meet: a thread waits for each.
pub const MOST_BLOCKS: u32 = THREADS;
/// Bytes of a room. They begin as zeros, and belong to one grid at a time.
pub const ROOM_BYTES: u64 = PLACE_BYTES as u64 * MOST_BLOCKS as u64;
const PLACE_BYTES: u32 = 8;
/// Bytes of shared memory: what [`of_block`] takes, twice.
pub(super) const SHARED_BYTES: u32 = 2 * OF_ALL;
const WARPS: u32 = THREADS / crate::WARP;
/// Where the magnitudes of all blocks are in shared memory.
const OF_ALL: u32 = 4 * WARPS;

/// Where the blocks of a grid meet.
pub(super) struct Meeting<'k> {
    pub k: &'k Kernel,
    pub room: Global<'k>,
}

impl<'k> Meeting<'k> {
    fn place(&self, block: U32<'k>) -> Global<'k> {
        self.room.at(block.widening_mul(PLACE_BYTES))
    }

    /// The turn of this grid; nothing waits for it before it is needed.
    #[track_caller]
    pub fn turn(&self) -> U32<'k> {
        self.place(self.k.block_index(0)).load_relaxed::<u64>(Scope::Gpu).to_u32() + 1
    }

    /// Tells all blocks the largest magnitude of this one, and gives it.
    #[track_caller]
    pub fn tell(&self, turn: U32<'k>, magnitude: U32<'k>) -> U32<'k> {
        let k = self.k;
        // All threads of the block know the turn when they have met.
        let own = of_block(k, magnitude);
        let word = (own.to_u64() << 32u32) | turn.to_u64();
        // Places of blocks that this grid does not have take the turn too, for one that has them.
        let place = k.block_index(0) + k.thread_index() * k.grid_blocks(0);
        k.guard(place.lt(MOST_BLOCKS), || self.place(place).store_relaxed(word, Scope::Gpu));
        own
    }

    /// Waits for what the blocks tell: the largest of it, in every thread.
    #[track_caller]
    pub fn hear(&self, turn: U32<'k>) -> U32<'k> {
        let k = self.k;
        let thread = k.thread_index();
        let found = k.var(0u32);
        k.if_(thread.lt(k.grid_blocks(0)), || {
            k.do_while(|| {
                let word: U64 = self.place(thread).load_relaxed(Scope::Gpu);
                found.set((word >> 32u32).to_u32());
                word.to_u32().ne(turn)
            });
        });
        k.sync_warp();
        let of_warp = k.warp_max(found.get());
        let shared = k.dynamic_shared().at(OF_ALL);
        k.guard(k.lane().eq(0), || shared.at((thread >> 5) * 4).store(of_warp));
        k.sync_threads();
        largest((0..WARPS / 4).flat_map(|i| shared.at(16 * i).load_vec::<u32, 4>()))
    }
}
