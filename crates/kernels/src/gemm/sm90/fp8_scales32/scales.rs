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
use crate::gemm::sm90::row_loader::RowLoader;
use oxigemm_ptx::{Kernel, Pred, Shared, U32};

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
            loader.loader.fetch(blocks);
            k.for_(0, blocks, AT_ONCE, |block| {
                loader.loader.take();
                let left = blocks - block;
                k.if_(left.gt(AT_ONCE), || loader.loader.fetch(left - AT_ONCE));
                put(0);
                (1..STAGES).for_each(|nth| k.if_(left.gt(nth * STEPS), || put(nth)));
            });
        });
    }
}

/// Loader of the scales of some of a tile's rows, or of its columns.
struct ScaleLoader<'k> {
    k: &'k Kernel,
    /// Rows of a tile.
    rows: u32,
    scales_of_b: ScalesOfB,
    /// Whether the warp has rows, and not columns.
    has_rows: Pred<'k>,
    /// The first that the lane has, of rows and then columns; the others are 32 apart.
    first: U32<'k>,
    loader: RowLoader<'k, f32>,
}

impl<'k> ScaleLoader<'k> {
    /// Loader of one of the scale warps, for tiles of so many rows.
    fn new(k: &'k Kernel, rows: u32, scales_of_b: ScalesOfB, (warp, lane): (U32<'k>, U32<'k>)) -> Self {
        ScaleLoader {
            k,
            rows,
            scales_of_b,
            has_rows: warp.lt(rows / PER_WARP),
            first: warp * PER_WARP + lane,
            // Steps of a stage behind the end of K multiply zeros.
            loader: RowLoader::new(k, PER_LANE as usize, AT_ONCE, 0.0, Some(0.0)),
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
        let row = |nth: u32| (first + nth * WARP).min(limit - 1) / per_scale;
        self.loader.begin(scales, (0..PER_LANE).map(row));
    }

    /// Writes those of the `nth` stage; `to` is where the lane's first belongs, and steps are so many bytes apart.
    fn put(&self, nth: u32, to: Shared<'k>, step_bytes: u32) {
        for row in 0..PER_LANE {
            for step in 0..STEPS {
                let scale = self.loader.held(row as usize, nth * STEPS + step);
                to.at(row * WARP * 4 + step * step_bytes).store(scale);
            }
        }
    }
}
