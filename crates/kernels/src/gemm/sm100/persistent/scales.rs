//! Scale producer of the persistent kernel: block scales, laid out for the tensor core.
//!
//! Memory has words of four scales along K, of any strides. The tensor core wants 32 rows of 16 bytes for each 128 rows
//! of an operand: the words of rows `l`, `l + 32`, `l + 64` and `l + 96` in row `l`. So lane `l` loads those and stores
//! them as one vector. It loads the words of several stages at a time, as a load takes longer than a stage.

use super::Block;
use super::config::{BLOCK_M, SCALES_BYTES};
use crate::common::WARP;
use crate::gemm::params::{ScaleBlock, ScaleParams, ScalesOfB};
use crate::gemm::scheduler::tile::TileView;
use oxigemm_ptx::{Pred, Shared, U32};

/// Words that a lane loads at a time, at most.
const MOST_WORDS: u32 = 48;

impl<'k> Block<'k, '_> {
    /// Scale producer: the scales of this CTA's rows of A and of all rows of B.
    pub(super) fn load_scales(&self) {
        let (k, cfg) = (self.k, self.cfg);
        let cursor = self.pipe.writer();
        let each = 4 * cfg.scale_bytes() / SCALES_BYTES;
        let ahead = (MOST_WORDS / each).clamp(1, 4);
        let stages = self.k_stages();
        self.scheduler.for_each_tile(k, |tile| {
            let view = self.scheduler.view(&self.params, &tile);
            k.for_(0, stages, ahead, |first| {
                let words: Vec<_> = (0..ahead).map(|nth| self.words_of(&view, first + nth)).collect();
                for (nth, words) in (0..ahead).zip(words) {
                    let store = || {
                        cursor.wait_empty();
                        let stage = cursor.stage();
                        self.store_words(self.scales(stage), &words);
                        k.fence_async_shared();
                        k.sync_warp();
                        k.if_(self.lane.eq(0), || self.arrive_at_leader(self.pipe.full(stage)));
                        k.sync_warp();
                        cursor.advance();
                    };
                    match nth {
                        0 => store(),
                        _ => k.if_((first + nth).lt(stages), store),
                    }
                }
            });
        });
    }

    /// This lane's words of a stage: four for each 128 rows and each word along K.
    fn words_of(&self, view: &TileView<'k>, stage: U32<'k>) -> Vec<[U32<'k>; 4]> {
        let cfg = self.cfg;
        let [of_a, of_b] = cfg.scaled_groups();
        let scale_words = cfg.scale_words();
        let mut words = Vec::new();
        for word in 0..scale_words {
            for group in 0..of_a {
                let rows = [0, 1, 2, 3].map(|nth| self.lane + (group * BLOCK_M + nth * WARP));
                words.push(rows.map(|row| {
                    let row = view.at[0] + row;
                    self.word(&view.sfa, row, row.lt(view.rows), (stage, word))
                }));
            }
            for group in 0..of_b {
                let rows = [0, 1, 2, 3].map(|nth| self.lane + (group * BLOCK_M + nth * WARP));
                words.push(rows.map(|row| {
                    let (column, row) = view.column_and_row(row);
                    let scaled = match cfg.operands.scales {
                        Some(ScalesOfB::Blocks) => row / cfg.operands.scale_block.size(),
                        _ => row,
                    };
                    self.word(&view.sfb, scaled, column.lt(view.columns), (stage, word))
                }));
            }
        }
        words
    }

    /// A word of a row, which is 0 behind the end of K and of the rows.
    fn word(
        &self,
        scales: &ScaleParams<'k>,
        row: U32<'k>,
        exists: Pred<'k>,
        (stage, word): (U32<'k>, u32),
    ) -> U32<'k> {
        let cfg = self.cfg;
        let all = self.params.k_blocks.div_ceil(4);
        match cfg.operands.scale_block {
            ScaleBlock::Of128 => {
                // One scale for the whole stage, in each byte.
                let index = stage >> 2;
                let loaded: U32<'k> = scales.at(row, index).load_if(exists & index.lt(all), 0u32);
                let byte = stage & 3;
                loaded.permute_bytes(loaded, byte * 0x1111u32)
            }
            ScaleBlock::Of32 | ScaleBlock::Of16 => {
                let index = stage * cfg.scale_words() + word;
                scales.at(row, index).load_if(exists & index.lt(all), 0u32)
            }
        }
    }

    fn store_words(&self, to: Shared<'k>, words: &[[U32<'k>; 4]]) {
        let row = to.at(self.lane * 16);
        for (group, words) in (0u32..).zip(words) {
            row.at(group * SCALES_BYTES).store_vec(*words);
        }
    }
}
