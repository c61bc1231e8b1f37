//! Which tiles of keys of which queries each block of a prefill's grid computes.
//!
//! Only the device knows what queries see, so the kernel itself shares it out: a block looks at all ranges, and takes as much as
//! every other, of blocks of queries that follow one another. One of these counts as many tiles as it has and one more, which is
//! about what it takes to begin one, and so those without any are shared out too.

use super::TILE_KEYS;
use crate::common::WARP;
use crate::common::even_split::Shares;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Global, I32, Kernel, Pred, Shared, U32};

/// The ranges of keys that queries see.
#[derive(Clone, Copy)]
pub(crate) struct Ranges<'k> {
    pub starts: Global<'k>,
    pub ends: Global<'k>,
    pub query_count: U32<'k>,
    pub key_count: U32<'k>,
    /// Logits of a query: of more keys it sees only the first.
    pub columns: U32<'k>,
    /// Queries that are computed together: a power of two, at most a warp.
    pub block_queries: u32,
}

/// What a lane's query sees.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'k> {
    /// Whether there is such a query.
    pub exists: Pred<'k>,
    /// The first key, and how many.
    pub first: U32<'k>,
    pub count: U32<'k>,
    /// The tiles that some query of its block sees: the first, and how many.
    pub tile: U32<'k>,
    pub tiles: U32<'k>,
}

impl<'k> Ranges<'k> {
    /// What 32 queries see, which begin with a whole block of them.
    pub fn seen(&self, k: &'k Kernel, lane: U32<'k>, first_query: U32<'k>) -> Seen<'k> {
        let query = first_query + lane;
        let exists = query.lt(self.query_count);
        let bound = |bounds: Global<'k>| {
            let bound = bounds.at(query.widening_mul(4)).load_readonly_if::<i32>(exists, 0);
            let bound: I32<'k> = bound.max(0);
            bound.bitcast::<u32>().min(self.key_count)
        };
        let (first, end) = (bound(self.starts), bound(self.ends));
        let count = (end.max(first) - first).min(self.columns);
        // Of all that see something the smallest first key, as the largest of what is left to the largest number, and the largest end.
        let sees = count.ne(0);
        let largest = |mut value: U32<'k>| {
            for distance in (0..self.block_queries.ilog2()).map(|bit| 1u32 << bit) {
                value = value.max(k.shuffle(Shuffle::Xor, value, distance));
            }
            value
        };
        let before = largest(sees.select(first ^ u32::MAX, 0u32)) ^ u32::MAX;
        let behind = largest(sees.select(first + count, 0u32));
        let tile = (before / TILE_KEYS).min(self.key_count.div_ceil(TILE_KEYS));
        let tiles = behind.div_ceil(TILE_KEYS).max(tile) - tile;
        Seen { exists, first, count, tile, tiles }
    }

    /// How often a warp looks at 32 queries.
    pub fn steps(&self) -> U32<'k> {
        self.query_count.div_ceil(WARP)
    }
}

/// How the warps of a block share out the looking.
pub(crate) struct Counting<'k> {
    pub ranges: Ranges<'k>,
    /// A word for each warp.
    pub words: Shared<'k>,
    pub warps: u32,
}

/// What a block of the grid takes, in counts of all blocks of queries one behind another.
#[derive(Clone, Copy)]
pub(crate) struct Part<'k> {
    pub begin: U32<'k>,
    pub end: U32<'k>,
    /// Steps before its first, and what they count.
    pub steps: U32<'k>,
    pub counted: U32<'k>,
}

impl<'k> Counting<'k> {
    fn steps_of_warp(&self) -> U32<'k> {
        self.ranges.steps().div_ceil(self.warps)
    }

    /// A warp counts its share.
    pub fn count(&self, k: &'k Kernel, warp: U32<'k>, lane: U32<'k>) {
        let each = self.steps_of_warp();
        let counted = k.var(0u32);
        let is_first = (lane % self.ranges.block_queries).eq(0);
        k.for_(warp * each, ((warp + 1) * each).min(self.ranges.steps()), 1, |step| {
            let seen = self.ranges.seen(k, lane, step * WARP);
            counted.set_if(seen.exists & is_first, counted.live() + seen.tiles + 1);
        });
        let counted = k.warp_sum(counted.get());
        k.if_(lane.eq(0), || self.words.at(warp * 4).store(counted));
        k.sync_warp();
    }

    /// The part of this block of the grid, when all warps have counted.
    pub fn part(&self, k: &'k Kernel) -> Part<'k> {
        let counts: Vec<U32<'k>> = (0..self.warps).map(|warp| self.words.at(warp * 4).load()).collect();
        let total = counts.iter().copied().reduce(|total, count| total + count).expect("there are warps");
        let (block, blocks) = (k.block_index(0), k.grid_blocks(0));
        let shares = Shares { each: total / blocks, more: total % blocks };
        let [begin, end] = [block, block + 1].map(|block| shares.begin(block));
        // Shares of warps that end before it.
        let (mut counted, mut warps, mut sum) = (k.constant(0), k.constant(0), k.constant(0));
        for count in counts {
            sum = sum + count;
            let before = sum.le(begin);
            counted = before.select(sum, counted);
            warps = before.select(warps + 1, warps);
        }
        Part { begin, end, steps: warps * self.steps_of_warp(), counted }
    }
}
