//! Scale producers of the persistent FP8 kernel with scales of 32: warps that load the scales of each stage.
//!
//! A lane has some of a tile's rows, or some of its columns. It loads their scales from memory in whatever layout they
//! have, two stages at a time, while those of the two stages before are written to shared memory. There, neighbouring
//! rows are neighbours, so that a consumer thread finds the scales of two columns in one vector.

use super::Block;
use super::config::{PER_LANE, PER_WARP, STEPS};
use crate::common::WARP;
use crate::gemm::operand::fp8::SCALE_K;
use crate::gemm::params::{ScaleParams, ScalesOfB};
use crate::gemm::scheduler::tile::TileView;
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32, Var};

/// Stages whose scales are loaded at once: 32 bytes of a row, one sector of the L2 cache.
const STAGES: u32 = 2;
/// K blocks whose scales are loaded at once.
const AT_ONCE: u32 = STAGES * STEPS;

impl<'k> Block<'k, '_> {
    /// Scale producer, one of several warps: writes scales of its rows or columns, stage by stage.
    pub(super) fn load_scales(&self, scale_warp: U32<'k>) {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let (cursor, blocks) = (self.pipe.writer(), self.scale_blocks);
        let loader = ScaleLoader::new(k, cfg.block_m, cfg.scales_of_b, (scale_warp, lane));
        let to = self.scales(k.constant(0)).at(loader.first * 4);
        let put = |nth: u32| {
            cursor.wait_empty();
            let stage = cursor.stage();
            loader.put(nth, to.at(stage * cfg.scale_bytes()), cfg.step_bytes());
            k.sync_warp();
            let full = self.pipe.full(stage);
            k.guard(lane.eq(0), || full.arrive());
            cursor.advance();
        };
        self.scheduler.for_each_tile(k, |tile| {
            loader.begin_tile(&self.scheduler.view(&self.params, &tile));
            loader.fetch(blocks);
            k.for_(0, blocks, AT_ONCE, |block| {
                loader.take();
                let left = blocks - block;
                k.if_(left.gt(AT_ONCE), || loader.fetch(left - AT_ONCE));
                put(0);
                (1..STAGES).for_each(|nth| k.if_(left.gt(nth * STEPS), || put(nth)));
            });
        });
    }
}

/// Loader of the scales of some of a tile's rows, or of its columns, in the registers of a warp.
struct ScaleLoader<'k> {
    k: &'k Kernel,
    /// Rows of a tile.
    rows: u32,
    scales_of_b: ScalesOfB,
    /// Whether the warp has rows, and not columns.
    has_rows: Pred<'k>,
    /// The first that the lane has, of rows and then columns.
    first: U32<'k>,
    /// What the lane has: the rows (or columns) from there on, 32 apart.
    lane_scales: Vec<LaneScales<'k>>,
    /// Elements from the scale of a K block to that of the next.
    stride: Var<'k, u32>,
    /// Whether those of a stage are a vector.
    vectors: Var<'k, bool>,
}

/// Scales of a row (or column) of a lane.
struct LaneScales<'k> {
    /// Address of the scale that is loaded next.
    next: Var<'k, u64>,
    /// Scales that are being written to stages.
    held: Vec<Var<'k, f32>>,
    /// Those of the K blocks behind, in flight from memory; 0 behind the end of K.
    ahead: Vec<Var<'k, f32>>,
}

impl<'k> ScaleLoader<'k> {
    /// Loader of one of the scale warps, for tiles of so many rows.
    fn new(k: &'k Kernel, rows: u32, scales_of_b: ScalesOfB, (warp, lane): (U32<'k>, U32<'k>)) -> Self {
        let some = || (0..AT_ONCE).map(|_| k.var(0.0f32)).collect();
        let lane_scales =
            (0..PER_LANE).map(|_| LaneScales { next: k.var(0u64), held: some(), ahead: some() });
        ScaleLoader {
            k,
            rows,
            scales_of_b,
            has_rows: warp.lt(rows / PER_WARP),
            first: warp * PER_WARP + lane,
            lane_scales: lane_scales.collect(),
            stride: k.var(0u32),
            vectors: k.var(false),
        }
    }

    /// Begins a tile.
    fn begin_tile(&self, tile: &TileView<'k>) {
        let (of_rows, of_columns) = (tile.at[0] + self.first, tile.at[1] + self.first - self.rows);
        let per_scale = match self.scales_of_b {
            ScalesOfB::Rows => 1,
            ScalesOfB::Blocks => SCALE_K,
        };
        self.k.if_else(
            self.has_rows,
            || self.begin(&tile.sfa, (of_rows, 1), tile.rows),
            || self.begin(&tile.sfb, (of_columns, per_scale), tile.columns),
        );
    }

    /// Begins with the scales of the row `first`, of those before `limit`, so many of which share one. (The others take
    /// the scale of the last: nobody stores what becomes of it.)
    fn begin(&self, scales: &ScaleParams<'k>, (first, per_scale): (U32<'k>, u32), limit: U32<'k>) {
        for (nth, lane_scales) in (0u32..).zip(&self.lane_scales) {
            let row = (first + nth * WARP).min(limit - 1) / per_scale;
            lane_scales.next.set(scales.at(row, self.k.constant(0)).address());
        }
        self.stride.set(scales.stride_k);
        self.vectors.set(scales.has_fours_along_k());
    }

    /// Issues the loads of the next K blocks' scales, of which so many are left: at least one.
    fn fetch(&self, left: U32<'k>) {
        let (k, step) = (self.k, self.stride.get().widening_mul(4));
        let each = |later: u32| {
            for LaneScales { next, ahead, .. } in &self.lane_scales {
                let from = Global::new(next.get()).at(step * u64::from(later));
                ahead[later as usize].set(from.load_readonly::<f32>());
            }
        };
        let vectors = || {
            for LaneScales { next, ahead, .. } in &self.lane_scales {
                for (nth, ahead) in (0u64..).zip(ahead.as_chunks::<{ STEPS as usize }>().0) {
                    let from = Global::new(next.get()).at(nth * u64::from(STEPS * 4));
                    let scales = from.load_readonly_vec::<f32, { STEPS as usize }>();
                    ahead.iter().zip(scales).for_each(|(ahead, scale)| ahead.set(scale));
                }
            }
        };
        let all = || k.if_else(self.vectors.get(), vectors, || (0..AT_ONCE).for_each(each));
        let some = || {
            each(0);
            for later in 1..AT_ONCE {
                let behind_end = || {
                    for LaneScales { ahead, .. } in &self.lane_scales {
                        ahead[later as usize].set(0.0);
                    }
                };
                k.if_else(left.gt(later), || each(later), behind_end);
            }
        };
        k.if_else(left.ge(AT_ONCE), all, some);
        for LaneScales { next, .. } in &self.lane_scales {
            next.set(next.live() + step * u64::from(AT_ONCE));
        }
    }

    /// Takes what was loaded.
    fn take(&self) {
        for LaneScales { held, ahead, .. } in &self.lane_scales {
            held.iter().zip(ahead).for_each(|(held, ahead)| held.set(ahead.live()));
        }
    }

    /// Writes those of the `nth` stage; `to` is where the lane's first belongs, and steps are so many bytes apart.
    fn put(&self, nth: u32, to: Shared<'k>, step_bytes: u32) {
        for (further, LaneScales { held, .. }) in (0u32..).zip(&self.lane_scales) {
            for step in 0..STEPS {
                let scale = held[(nth * STEPS + step) as usize].get();
                to.at(further * WARP * 4 + step * step_bytes).store(scale);
            }
        }
    }
}
