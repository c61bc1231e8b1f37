//! Prefill: arguments and the roles that the kernels of every architecture share. They differ in who multiplies.
//!
//! Every query has a range of keys. A work unit is a query block and some of the key tiles that it sees. One thread
//! produces keys, a warp produces units, and some warps fill with -inf where no query of a query block sees a key, so that
//! this needs no pass of its own.

use crate::attention::logits::{LogitRow, head_count, logit_size};
use crate::attention::scheduler::{CostRange, KeyRanges};
use crate::attention::shape::{Heads, LogitFlags, TILE_KEYS};
use crate::attention::smem::{Smem, WorkUnit};
use crate::common::WARP;
use crate::common::params::kernel_params;
use crate::common::pipeline::Cursor;
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, U32};

/// Warps that fill with -inf.
pub(crate) const FILL_WARPS: u32 = 2;

/// Arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Tensor map of Q: rows are heads; a load brings those of a query block. For a padded kernel: elements, heads,
    /// queries; a load brings the padded heads of a query block.
    pub queries: [u64; 16],
    /// Tensor map of the keys; a load brings [`TILE_KEYS`].
    pub keys: [u64; 16],
    /// Tensor map of the keys' scales; a load brings [`TILE_KEYS`].
    pub scales: [u64; 16],
    /// Address of the weights.
    pub weights: u64,
    /// Address of the first key of each query.
    pub starts: u64,
    /// Address of the end of each query's keys.
    pub ends: u64,
    /// Address of the logits.
    pub logits: u64,
    /// Pitch of the weights in elements.
    pub weights_pitch: u32,
    /// Pitch of the logits in elements.
    pub logits_pitch: u32,
    /// Number of queries.
    pub query_count: u32,
    /// Number of keys.
    pub key_count: u32,
    /// Columns of the logits.
    pub columns: u32,
    /// [`LogitFlags`].
    pub flags: u32,
}

kernel_params! {
    pub(crate) struct Params from Args {
        queries: TensorMap = queries,
        keys: TensorMap = keys,
        scales: TensorMap = scales,
        weights: Pointer = weights,
        starts: Pointer = starts,
        ends: Pointer = ends,
        logits: Pointer = logits,
        weights_pitch: U32 = weights_pitch,
        logits_pitch: U32 = logits_pitch,
        query_count: U32 = query_count,
        key_count: U32 = key_count,
        columns: U32 = columns,
        flags: U32 = flags,
    }
}

/// What the shared roles work with.
pub(crate) struct Prefill<'k> {
    pub k: &'k Kernel,
    pub params: Params<'k>,
    pub smem: Smem<'k>,
    pub ranges: KeyRanges<'k>,
    /// Whether queries are padded to the heads of the kernel.
    pub padded: bool,
    pub lane: U32<'k>,
}

impl<'k> Prefill<'k> {
    /// Unit producer warp: queries, their weights and ranges, and the tiles of this CTA.
    ///
    /// The cursor that it gives is at the slot of the end. `also` writes what else an architecture needs of a unit, of
    /// which it is given the slot and the first query.
    pub fn produce_units(&self, range: CostRange<'k>, also: impl Fn(U32<'k>, U32<'k>)) -> Cursor<'k> {
        let (k, smem, lane) = (self.k, &self.smem, self.lane);
        let queries = smem.shape.queries;
        let cursor = smem.unit_pipeline.writer();
        let (step, cost) = (k.var_from(range.steps), k.var_from(range.cost));
        k.while_(
            || cost.live().lt(range.end) & step.live().lt(self.ranges.steps()),
            || {
                let first_query = step.get() * WARP;
                let visible = self.ranges.visible(k, lane, first_query);
                k.for_(0, WARP, queries, |nth| {
                    let of_block = |value| k.shuffle(Shuffle::Index, value, nth);
                    let (tile, tiles) = (of_block(visible.tile), of_block(visible.tiles));
                    // Its tiles come behind the cost of its start.
                    let at = cost.get() + 1;
                    let behind = |count: U32<'k>| count.max(at) - at;
                    let [from, to] = [range.begin, range.end].map(|count| behind(count).min(tiles));
                    k.if_(from.lt(to), || {
                        let of_lane = |value| k.shuffle(Shuffle::Index, value, nth + lane % queries);
                        let (first, count) = (of_lane(visible.first), of_lane(visible.count));
                        self.produce_unit(
                            &cursor,
                            first_query + nth,
                            [tile + from, tile + to],
                            [first, count],
                            &also,
                        );
                    });
                    cost.set_if((first_query + nth).lt(self.params.query_count), at + tiles);
                });
                step.set(step.live() + 1);
            },
        );
        smem.end_units(&cursor, lane);
        cursor
    }

    /// One unit, from the range of each lane's query: the first key, and how many.
    fn produce_unit(
        &self,
        cursor: &Cursor<'k>,
        query: U32<'k>,
        tiles: [U32<'k>; 2],
        [first, count]: [U32<'k>; 2],
        also: impl Fn(U32<'k>, U32<'k>),
    ) {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let (queries, heads) = (smem.shape.queries, smem.shape.heads.heads);
        cursor.wait_empty();
        let slot = cursor.stage();
        k.if_(lane.lt(queries), || self.row(query + lane, [first, count]).store(smem.row(slot, lane)));
        // Four loads at a time: this warp has few registers.
        let steps: Vec<u32> = (0..smem.shape.columns() / WARP).collect();
        for steps in steps.chunks(4) {
            let weight = |step: &u32| {
                let column = lane + step * WARP;
                let (query, head) = (query + column / heads, column % heads);
                let at = query.widening_mul(p.weights_pitch) + head.to_u64();
                let from = p.weights.at(at * 4u64);
                let exists = query.lt(p.query_count);
                let exists = if self.padded { exists & head.lt(head_count(p.flags)) } else { exists };
                from.load_readonly_if(exists, 0.0)
            };
            let weights: Vec<F32<'k>> = steps.iter().map(weight).collect();
            for (step, weight) in steps.iter().zip(weights) {
                smem.weights(slot).at((lane + step * WARP) * 4).store(Heads::halved(weight));
            }
        }
        also(slot, query);
        k.if_(lane.eq(0), || {
            smem.set_unit(slot, &WorkUnit { tiles, sequence: k.constant(0), is_unit: k.constant(1) });
        });
        smem.commit_unit(slot, lane, k.constant(smem.shape.query_bytes()), |full| {
            let zero = k.constant(0);
            let at = if self.padded { vec![zero, zero, query] } else { vec![zero, query * heads] };
            p.queries.load(&at, smem.queries(slot), full, LoadOptions::default());
        });
        cursor.advance();
    }

    /// Output row of a query.
    fn row(&self, query: U32<'k>, [first, count]: [U32<'k>; 2]) -> LogitRow<'k> {
        let p = &self.params;
        let clean = (p.flags & LogitFlags::CLEAN).ne(0);
        let compressed = (p.flags & LogitFlags::COMPRESSED).ne(0);
        let skipped: U32<'k> = compressed.select(first, 0u32);
        let start = query.widening_mul(p.logits_pitch) - skipped.to_u64();
        let all: U32<'k> = query.lt(p.query_count).select(p.key_count, 0u32);
        LogitRow {
            first,
            count,
            stored_first: clean.select(0u32, first),
            stored_count: clean.select(all, count),
            at: p.logits.address() + start * logit_size(p.flags).to_u64(),
        }
    }

    /// Key producer thread: keys and their scales.
    pub fn load_keys(&self) {
        let (k, p, smem) = (self.k, &self.params, &self.smem);
        let (cursor, slots) = (smem.key_pipeline.writer(), smem.unit_pipeline.reader());
        smem.for_each_unit(&slots, |slot, WorkUnit { tiles: [first, end], .. }| {
            smem.unit_pipeline.empty(slot).arrive();
            slots.advance();
            k.for_(first, end, 1, |tile| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = smem.key_pipeline.full(stage);
                full.arrive_expecting(smem.shape.stage_bytes());
                let (zero, key) = (k.constant(0), tile * TILE_KEYS);
                p.keys.load(&[zero, key], smem.keys(stage), full, LoadOptions::default());
                p.scales.load(&[key, zero], smem.scales(stage), full, LoadOptions::default());
                cursor.advance();
            });
        });
        k.launch_dependents();
    }

    /// Fill warp, one of [`FILL_WARPS`]: -inf for the tiles that no query of a query block sees, for some of the grid's
    /// query blocks.
    pub fn fill(&self, nth: U32<'k>) {
        let (k, p) = (self.k, &self.params);
        let queries = self.smem.shape.queries;
        k.if_((p.flags & LogitFlags::CLEAN).ne(0), || {
            let (first, step) = (k.block_index(0) * FILL_WARPS + nth, k.grid_blocks(0) * FILL_WARPS);
            k.for_(first, p.query_count.div_ceil(queries), step, |block| {
                let visible = self.ranges.visible(k, self.lane, block * queries);
                let [tile, tiles] =
                    [visible.tile, visible.tiles].map(|value| k.shuffle(Shuffle::Index, value, 0));
                let none = k.constant(0);
                k.for_(block * queries, ((block + 1) * queries).min(p.query_count), 1, |query| {
                    for keys in [[none, tile * TILE_KEYS], [(tile + tiles) * TILE_KEYS, p.key_count]] {
                        self.row(query, [none; 2]).fill(k, self.lane, keys, p.flags);
                    }
                });
            });
        });
    }
}
