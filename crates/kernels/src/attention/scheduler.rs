//! Tile scheduler of a prefill: which tiles of keys of which query blocks each CTA computes.
//!
//! Only the device knows the ranges of keys, so the kernel itself splits the work: every CTA reads all ranges and takes
//! an equal part of the cost, of consecutive query blocks. A query block costs its tiles and one more, which is about
//! what its start costs; so blocks without tiles are split too.

use crate::attention::shape::TILE_KEYS;
use crate::common::WARP;
use crate::common::even_split::Shares;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Global, I32, Kernel, Pred, Shared, U32};

/// Ranges of keys that queries see, in global memory.
#[derive(Clone, Copy)]
pub(crate) struct KeyRanges<'k> {
    pub starts: Global<'k>,
    pub ends: Global<'k>,
    pub query_count: U32<'k>,
    pub key_count: U32<'k>,
    /// Columns of the logits: of a longer range, a query sees only the first keys.
    pub columns: U32<'k>,
    /// Queries of a query block: a power of two, at most a warp.
    pub block_queries: u32,
}

/// Range of a lane's query, and of its query block.
#[derive(Clone, Copy)]
pub(crate) struct VisibleKeys<'k> {
    /// Whether the query exists.
    pub exists: Pred<'k>,
    /// Keys of the query: the first, and how many.
    pub first: U32<'k>,
    pub count: U32<'k>,
    /// Tiles of its query block: the first, and how many.
    pub tile: U32<'k>,
    pub tiles: U32<'k>,
}

impl<'k> KeyRanges<'k> {
    /// Ranges of 32 queries, from the first of a query block on.
    pub fn visible(&self, k: &'k Kernel, lane: U32<'k>, first_query: U32<'k>) -> VisibleKeys<'k> {
        let query = first_query + lane;
        let exists = query.lt(self.query_count);
        let bound = |bounds: Global<'k>| {
            let bound = bounds.at(query.widening_mul(4)).load_readonly_if::<i32>(exists, 0);
            let bound: I32<'k> = bound.max(0);
            bound.bitcast::<u32>().min(self.key_count)
        };
        let (first, end) = (bound(self.starts), bound(self.ends));
        let count = (end.max(first) - first).min(self.columns);
        // Of all non-empty ranges: the smallest first key, as the maximum of the complements, and the largest end.
        let sees = count.ne(0);
        let maximum = |mut value: U32<'k>| {
            for distance in (0..self.block_queries.ilog2()).map(|bit| 1u32 << bit) {
                value = value.max(k.shuffle(Shuffle::Xor, value, distance));
            }
            value
        };
        let before = maximum(sees.select(first ^ u32::MAX, 0u32)) ^ u32::MAX;
        let behind = maximum(sees.select(first + count, 0u32));
        let tile = (before / TILE_KEYS).min(self.key_count.div_ceil(TILE_KEYS));
        let tiles = behind.div_ceil(TILE_KEYS).max(tile) - tile;
        VisibleKeys { exists, first, count, tile, tiles }
    }

    /// Steps of 32 queries.
    pub fn steps(&self) -> U32<'k> {
        self.query_count.div_ceil(WARP)
    }
}

/// Cost of all query blocks, cost by the warps of a CTA.
pub(crate) struct CostCount<'k> {
    pub ranges: KeyRanges<'k>,
    /// A word of shared memory for each warp.
    pub words: Shared<'k>,
    pub warps: u32,
}

/// CostRange of a CTA, in the cost of all query blocks in order.
#[derive(Clone, Copy)]
pub(crate) struct CostRange<'k> {
    pub begin: U32<'k>,
    pub end: U32<'k>,
    /// Steps before its first one, and their cost.
    pub steps: U32<'k>,
    pub cost: U32<'k>,
}

impl<'k> CostCount<'k> {
    fn steps_per_warp(&self) -> U32<'k> {
        self.ranges.steps().div_ceil(self.warps)
    }

    /// Counts the cost of a warp's steps.
    pub fn count(&self, k: &'k Kernel, warp: U32<'k>, lane: U32<'k>) {
        let each = self.steps_per_warp();
        let cost = k.var(0u32);
        let is_first = (lane % self.ranges.block_queries).eq(0);
        k.for_(warp * each, ((warp + 1) * each).min(self.ranges.steps()), 1, |step| {
            let visible = self.ranges.visible(k, lane, step * WARP);
            cost.set_if(visible.exists & is_first, cost.live() + visible.tiles + 1);
        });
        let cost = k.warp_sum(cost.get());
        k.if_(lane.eq(0), || self.words.at(warp * 4).store(cost));
        k.sync_warp();
    }

    /// Part of this CTA, when all warps have counted.
    pub fn cta_range(&self, k: &'k Kernel) -> CostRange<'k> {
        let counts: Vec<U32<'k>> = (0..self.warps).map(|warp| self.words.at(warp * 4).load()).collect();
        let total = counts.iter().copied().reduce(|total, count| total + count).expect("there are warps");
        let (cta, ctas) = (k.block_index(0), k.grid_blocks(0));
        let split = Shares { each: total / ctas, more: total % ctas };
        let [begin, end] = [cta, cta + 1].map(|cta| split.begin(cta));
        // Warps whose steps all end before it.
        let (mut cost, mut warps, mut sum) = (k.constant(0), k.constant(0), k.constant(0));
        for count in counts {
            sum = sum + count;
            let before = sum.le(begin);
            cost = before.select(sum, cost);
            warps = before.select(warps + 1, warps);
        }
        CostRange { begin, end, steps: warps * self.steps_per_warp(), cost }
    }
}
