//! Scale producers of the persistent FP8 by MXFP4 kernel, and what they decide.
//!
//! A row of B has four scales in a stage, all of them powers of two. What a stage holds of them, for each 64 rows that a
//! warpgroup multiplies at a time:
//!
//! | the four scales of each of the 64 rows | codes | promotion |
//! |---|---|---|
//! | lie within 2^[`FOLDS`] | times the power of two above the lowest: [exact in e4m3](super::widen) | once for 128 of K, with the lowest: as that of FP8 weights |
//! | do not, of some row | as they are | after each 32 of K, with their own |
//!
//! Either is exact but for the sums. The scales of trained weights hardly ever lie that far apart, and the first costs a
//! quarter of the second; to choose takes one vote of the warp that loads them.

use super::Block;
use super::config::{ROW_SCALE_BYTES, ROWS_AT_ONCE};
use super::widen::{Applied, FOLDS};
use crate::common::WARP;
use crate::gemm::scheduler::tile::TileView;
use crate::gemm::sm90::row_loader::RowLoader;
use oxigemm_ptx::{Shared, U32};

/// Warps that load scales of B: each those of 64 rows that one warpgroup multiplies.
pub(super) const B_WARPS: u32 = 2;
/// Stages whose scales are loaded at once: one vector of a row.
const AT_ONCE: u32 = 4;

/// What a scale producer warp loads.
#[derive(Clone, Copy)]
pub(super) enum ScaleRole<'k> {
    /// Scales of the tile's rows of A.
    OfA,
    /// Scales of half of its rows of B: which.
    OfB(U32<'k>),
}

/// How the 64 rows of B of a warpgroup are multiplied.
pub(super) const FOLDED: u32 = 0;
const STEP_BY_STEP: u32 = 1;

impl<'k> Block<'k, '_> {
    /// Scale producer: writes scales, stage by stage.
    pub(super) fn load_scales(&self, role: ScaleRole<'k>) {
        let (k, blocks) = (self.k, self.params.k_blocks);
        let rows = self.rows_of(role);
        let loader = RowLoader::new(k, rows.len(), AT_ONCE, 0u32, None);
        let cursor = self.pipe.writer();
        let put = |nth: u32| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let words: Vec<U32<'k>> = (0..rows.len()).map(|row| loader.held(row, nth)).collect();
            self.put(role, &rows, &words, self.scales(stage));
            k.sync_warp();
            let full = self.pipe.full(stage);
            k.guard(self.lane.eq(0), || full.arrive());
            cursor.advance();
        };
        self.scheduler.for_each_tile(k, |tile| {
            let view = self.scheduler.view(&self.params, &tile);
            match role {
                ScaleRole::OfA => {
                    let row = |row: &U32<'k>| (view.at[0] + *row).min(view.rows - 1);
                    loader.begin(&view.sfa, rows.iter().map(row));
                }
                ScaleRole::OfB(_) => loader.begin(&view.sfb, rows.iter().map(|row| row_of_b(&view, *row))),
            }
            loader.fetch(blocks);
            k.for_(0, blocks, AT_ONCE, |block| {
                loader.take();
                let left = blocks - block;
                k.if_(left.gt(AT_ONCE), || loader.fetch(left - AT_ONCE));
                put(0);
                (1..AT_ONCE).for_each(|nth| k.if_(left.gt(nth), || put(nth)));
            });
        });
    }

    /// Rows of a tile whose scales a lane loads: of B two for each 64 rows that the warp has, one behind the other.
    fn rows_of(&self, role: ScaleRole<'k>) -> Vec<U32<'k>> {
        match role {
            ScaleRole::OfA => {
                (0..self.cfg.block_m).step_by(WARP as usize).map(|row| self.lane + row).collect()
            }
            ScaleRole::OfB(half) => (0..self.cfg.block_n)
                .step_by(ROWS_AT_ONCE as usize)
                .flat_map(|first| [first, first + WARP])
                .map(|first| half * 64 + self.lane + first)
                .collect(),
        }
    }

    /// Writes the words of a lane's rows to a stage.
    fn put(&self, role: ScaleRole<'k>, rows: &[U32<'k>], words: &[U32<'k>], to: Shared<'k>) {
        let (k, [of_b, applied, _]) = (self.k, self.cfg.scale_map());
        let half = match role {
            ScaleRole::OfA => {
                rows.iter().zip(words).for_each(|(row, word)| to.at(*row * 4).store(*word));
                return;
            }
            ScaleRole::OfB(half) => half,
        };
        for (subtile, (rows, words)) in (0u32..).zip(rows.chunks(2).zip(words.chunks(2))) {
            let all: Vec<Applied<'k>> = words.iter().map(|word| Applied::new(k, *word)).collect();
            let apart = all.iter().map(|row| row.spread.gt(FOLDS)).reduce(|a, b| a | b);
            let apart = k.any(apart.expect("a warp has rows"));
            for ((row, word), Applied { folds, scale, .. }) in rows.iter().zip(words).zip(&all) {
                let to = to.at(of_b).at(*row * ROW_SCALE_BYTES);
                to.store_vec([apart.select(*word, *folds), *scale]);
            }
            let to = to.at(applied).at((half + subtile * B_WARPS) * 4);
            let how: U32<'k> = apart.select(STEP_BY_STEP, FOLDED);
            k.guard(self.lane.eq(0), || to.store(how));
        }
    }
}

/// The row of B of one of a tile's accumulator columns; behind the last column of D, the row of that.
fn row_of_b<'k>(view: &TileView<'k>, accumulator: U32<'k>) -> U32<'k> {
    let (column, row) = view.column_and_row(accumulator);
    column.min(view.columns - 1) + (row - column)
}
