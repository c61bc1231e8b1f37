//! Epilogue role: sums over heads, scales of keys, stores. A thread has a key.

use super::Cta;
use super::config::{Keys, WARPGROUP_WARPS};
use crate::attention::logits::LogitRow;
use crate::attention::shape::{Format, TILE_KEYS};
use crate::attention::smem::WorkUnit;
use oxigemm_ptx::tcgen05::TensorMemory;
use oxigemm_ptx::{F32, Shared, U32};

/// Columns that a thread has in registers at a time, and of one load.
const COLUMNS: u32 = 32;
const LOAD: u32 = 32;

/// A tile, as an epilogue warp uses it.
struct Tile<'k> {
    slot: U32<'k>,
    /// This thread's key.
    key: U32<'k>,
    /// What its sums are multiplied by, unless the tensor core has done so.
    scale: Option<F32<'k>>,
    /// The warp's lanes of the accumulator.
    accumulator: TensorMemory<'k>,
}

impl<'k> Cta<'k, '_> {
    /// Epilogue warp: its 32 keys of every tile of its warpgroup.
    pub(super) fn reduce(&self, memory: TensorMemory<'k>, flags: U32<'k>) {
        let (k, smem) = (self.k, self.smem);
        let group = self.warp / WARPGROUP_WARPS;
        let (keys, slots) = (smem.key_pipeline.reader(), smem.unit_pipeline.reader());
        let accumulators = self.accumulators.reader();
        let lane = self.first_lane() + self.lane;
        let scale_at = self.scale_offset(lane);
        smem.for_each_unit(&slots, |slot, unit| {
            let WorkUnit { tiles: [first, end], is_unit, .. } = unit;
            let queries = match self.cfg.keys {
                Keys::Matrix => k.constant(self.cfg.unit_queries()),
                Keys::Pages => is_unit,
            };
            k.for_(first, end, 1, |tile| {
                k.if_(accumulators.stage().eq(group), || {
                    keys.wait_full();
                    let has_scale = self.cfg.format == Format::Fp8;
                    let scale = has_scale.then(|| smem.scales(keys.stage()).at(scale_at).load());
                    smem.release(keys.stage(), self.lane);
                    accumulators.wait_full();
                    k.tcgen05_fence_after();
                    let accumulator = self.accumulator(memory, group).lane(self.first_lane());
                    let tile = Tile { slot, key: tile * TILE_KEYS + lane, scale, accumulator };
                    k.for_(0, queries, 1, |query| self.reduce_query(&tile, query, flags));
                    k.tcgen05_fence_before();
                    k.sync_warp();
                    k.guard(self.lane.eq(0), || self.accumulators.empty(group).arrive());
                });
                keys.advance();
                accumulators.advance();
            });
            smem.release_unit(&slots, self.lane);
        });
    }

    /// Logits of a query.
    fn reduce_query(&self, tile: &Tile<'k>, query: U32<'k>, flags: U32<'k>) {
        let (k, smem) = (self.k, self.smem);
        let first = query * self.cfg.heads.heads;
        let sum = self.sum_heads(tile.accumulator.column(first), smem.weights(tile.slot).at(first * 4));
        let logit = match tile.scale {
            Some(scale) => sum * scale,
            None => sum,
        };
        let row = LogitRow::load(smem.row(tile.slot, query));
        row.store_logit(k, tile.key, logit, flags, k.constant(true));
    }

    /// Weighted sum over the heads of a query: four chains of fused sums, so that none waits for another.
    fn sum_heads(&self, columns: TensorMemory<'k>, weights: Shared<'k>) -> F32<'k> {
        let (k, heads) = (self.k, self.cfg.heads.heads);
        let mut sums: [Option<F32<'k>>; 4] = [None; 4];
        for first in (0..heads).step_by(COLUMNS as usize) {
            let loads = (first..heads.min(first + COLUMNS)).step_by(LOAD as usize);
            let heads: Vec<U32<'k>> =
                loads.flat_map(|column| columns.column(column).load_rows(LOAD)).collect();
            k.tensor_memory_wait_loads();
            for (nth, four) in (0u32..).zip(heads.as_chunks::<4>().0) {
                let weights: [F32<'k>; 4] = weights.at((first + nth * 4) * 4).load_vec();
                for ((sum, head), weight) in sums.iter_mut().zip(four).zip(weights) {
                    let head = head.bitcast::<f32>();
                    let twice = head + head.abs();
                    *sum = Some(match *sum {
                        None => twice * weight,
                        Some(sum) => twice.fma(weight, sum),
                    });
                }
            }
        }
        let [a, b, c, d] = sums.map(|sum| sum.expect("there are heads"));
        (a + b) + (c + d)
    }
}
