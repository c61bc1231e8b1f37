//! Stream-K scheduler: the stages of a CTA, their coordinates, and the output units that they belong to.
//!
//! Every CTA has the same number of consecutive stages, so an output unit may begin in one CTA and end in another. The
//! stages of some rows are in the order of interleaved K splits: split `s` of `S` has the K blocks `s`, `s + S`,
//! `s + 2S` and so on. A K split is a split of D; where D has one split, it is the part of one of the CTAs that share
//! only these rows. So where each CTA has a K split, they read neighbouring lines of memory at one time.

use super::BLOCK_M;
use super::params::Params;
use crate::common::WARP;
use crate::common::workspace_reduce::Contributors;
use oxigemm_ptx::{Kernel, U32, Var};

/// Stages of this CTA, and of those that share rows with it.
pub(super) struct Scheduler<'k> {
    pub k: &'k Kernel,
    pub params: Params<'k>,
    /// First of the CTAs that share the same rows, and this one.
    pub first_cta: U32<'k>,
    pub index: U32<'k>,
    /// Their first stage.
    pub first_stage: U32<'k>,
    /// Stages of this CTA: the first, and the one behind the last.
    pub begin: U32<'k>,
    pub end: U32<'k>,
}

/// Coordinates of a stage in X and W.
pub(super) struct Position<'k> {
    pub row: Var<'k, u32>,
    /// K split, and K block.
    k_split: Var<'k, u32>,
    pub k_block: Var<'k, u32>,
}

/// Output unit: the rows and the split of D that are accumulated together.
pub(super) struct Unit<'k> {
    pub row: U32<'k>,
    pub split: U32<'k>,
    /// Its stages: the first, and the one behind the last.
    pub begin: U32<'k>,
    pub end: U32<'k>,
}

impl<'k> Scheduler<'k> {
    /// Scheduler of this CTA.
    pub fn new(k: &'k Kernel, params: Params<'k>) -> Self {
        let [sharers, nth] = [0, 1].map(|dimension| k.block_index(dimension));
        let first_cta = sharers * params.sharing_ctas;
        let first_stage = sharers * params.shared_stages;
        let [begin, end] = [nth, nth + 1].map(|nth| first_stage + params.cta_stages().begin(nth));
        let index = first_cta + nth;
        Scheduler { k, params, first_cta, index, first_stage, begin, end }
    }

    /// Output unit of a stage.
    pub fn unit(&self, stage: U32<'k>) -> Unit<'k> {
        let p = &self.params;
        let rows = stage / p.k_blocks;
        let first = rows * p.k_blocks;
        let split = p.d_split_blocks().part_with(stage - first);
        let [begin, end] = [split, split + 1].map(|split| first + p.d_split_blocks().begin(split));
        Unit { row: rows * BLOCK_M, split, begin, end }
    }

    /// CTA that has a stage of the shared rows.
    fn cta_of_stage(&self, stage: U32<'k>) -> U32<'k> {
        self.first_cta + self.params.cta_stages().part_with(stage - self.first_stage)
    }

    /// CTAs that have stages of an output unit.
    pub fn contributors(&self, unit: &Unit<'k>) -> Contributors<'k> {
        let (first, last) = (self.cta_of_stage(unit.begin), self.cta_of_stage(unit.end - 1));
        Contributors { first, last, own: self.index }
    }

    /// Position of this CTA's first stage.
    pub fn first_position(&self) -> Position<'k> {
        let (k, p) = (self.k, &self.params);
        let rows = self.begin / p.k_blocks;
        let nth = self.begin - rows * p.k_blocks;
        let k_split = p.k_split_blocks().part_with(nth);
        let k_block = k_split + (nth - p.k_split_blocks().begin(k_split)) * p.k_splits;
        Position {
            row: k.var_from(rows * BLOCK_M),
            k_split: k.var_from(k_split),
            k_block: k.var_from(k_block),
        }
    }

    /// Moves to the next stage.
    pub fn advance(&self, Position { row, k_split, k_block }: &Position<'k>) {
        let p = &self.params;
        k_block.set(k_block.live() + p.k_splits);
        let split_ended = k_block.live().ge(p.k_blocks);
        k_split.set_if(split_ended, k_split.live() + 1);
        let rows_ended = k_split.live().eq(p.k_splits);
        row.set_if(rows_ended, row.live() + BLOCK_M);
        k_split.set_if(rows_ended, 0);
        k_block.set_if(split_ended, k_split.live());
    }

    /// Zeros for splits of D that have no K block, by so many threads of the CTA.
    pub fn clear_splits(&self, columns: u32, (warp, lane): (U32<'k>, U32<'k>), threads: u32) {
        let (k, p) = (self.k, &self.params);
        let ctas = k.grid_blocks(0) * k.grid_blocks(1);
        k.for_(p.k_blocks + self.index, p.d_splits, ctas, |split| {
            k.for_(warp * WARP + lane, p.rows, threads, |row| {
                let in_d = split.to_u64() * p.d_split_pitch + row.widening_mul(p.d_pitch);
                for column in 0..columns {
                    p.d.at(in_d * 4u64).at(u64::from(column * 4)).store(0.0f32);
                }
                p.squares.at((split.widening_mul(p.rows) + row.to_u64()) * 4u64).store(0.0f32);
            });
        });
        k.sync_warp();
    }
}
