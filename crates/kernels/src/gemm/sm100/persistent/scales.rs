//! Scale producer of the persistent kernel.

use super::Block;
use crate::gemm::scheduler::k_grouped::TileKGroup;
use crate::gemm::scheduler::launch_control::Reader;
use crate::gemm::scheduler::tile::TileView;
use crate::gemm::sm100::scales::{BlockScales, GROUP_BYTES, LaneWords, store_words};
use oxigemm_ptx::U32;

/// Words that a lane loads at a time, at most.
const MOST_WORDS: u32 = 48;

impl<'k> Block<'k, '_> {
    /// Scale producer: the scales of this CTA's rows of A and of all rows of B. The warp loads the words of several
    /// stages at a time, as a load takes longer than a stage.
    pub(super) fn load_scales(&self) {
        let (k, cfg) = (self.k, self.cfg);
        let cursor = self.pipe.writer();
        let each = 4 * cfg.scale_bytes() / GROUP_BYTES;
        let ahead = (MOST_WORDS / each).clamp(1, 4);
        self.for_each_tile(Reader::Warp(self.lane), |tile| {
            let stages = self.k_stages(tile.k_group.as_ref());
            let view = match tile.k_group {
                // Scales of its group begin anywhere in a word.
                Some(_) => TileView::dense(&self.params, [tile.m, tile.n], None),
                None => self.scheduler.view(&self.params, &tile),
            };
            k.for_(0, stages, ahead, |first| {
                let words: Vec<_> =
                    (0..ahead).map(|nth| self.words_of(&view, tile.k_group.as_ref(), first + nth)).collect();
                for (nth, words) in (0..ahead).zip(words) {
                    let store = || {
                        cursor.wait_empty();
                        let stage = cursor.stage();
                        store_words(self.scales(stage), self.lane, &words);
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

    /// This lane's words of a stage: for each word along K those of A, then those of B.
    fn words_of(
        &self,
        view: &TileView<'k>,
        group: Option<&TileKGroup<'k>>,
        stage: U32<'k>,
    ) -> Vec<LaneWords<'k>> {
        let cfg = self.cfg;
        let [of_a, of_b] = cfg.scaled_groups();
        let operands = cfg.operands;
        let first = group.map(|group| group.first_block);
        let blocks =
            group.map_or(self.params.k_blocks, |group| group.k.div_ceil(operands.scale_block.size()));
        let a = BlockScales { operands, params: view.sfa, is_b: false, first, blocks };
        let b = BlockScales { operands, params: view.sfb, is_b: true, first, blocks };
        let mut words = Vec::new();
        for word in 0..cfg.scale_words() {
            for group in 0..of_a {
                words.push(BlockScales::rows_of_lane(group, self.lane).map(|row| {
                    let row = view.at[0] + row;
                    a.word((row, row.lt(view.rows)), (stage, word))
                }));
            }
            for group in 0..of_b {
                words.push(BlockScales::rows_of_lane(group, self.lane).map(|row| {
                    let (column, row) = view.column_and_row(row);
                    b.word((row, column.lt(view.columns)), (stage, word))
                }));
            }
        }
        words
    }
}
