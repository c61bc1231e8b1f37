//! Producer of the persistent kernel: operand tiles.

use super::Block;
use crate::common::pipeline::Cursor;
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::persistent::KRanges;
use crate::gemm::scheduler::k_grouped::KGroups;
use crate::gemm::scheduler::launch_control::Reader;
use crate::gemm::scheduler::tile::TileInfo;
use crate::gemm::sm100::operand::LINE_BYTES;
use oxigemm_ptx::tma::{LoadOptions, TensorMap};
use oxigemm_ptx::{MBarrier, Shared, U32};

impl<'k> Block<'k, '_> {
    /// Producer: this CTA's rows of A and its share of the rows of B. The barrier is that of the CTA that multiplies,
    /// which also announces the bytes of both.
    pub(super) fn load_tiles(&self) {
        let k = self.k;
        let cursor = self.pipe.writer();
        self.scheduler.for_each_tile(k, |tile| {
            k.for_(0, self.k_stages(None), 1, |block| {
                self.fill_stage(&cursor, &tile, self.maps(), block * self.cfg.operands.block_k());
            });
        });
        k.launch_dependents();
        cursor.drain();
    }

    /// Producer of a k-grouped kernel: a warp, of which one elected lane loads, because it takes all of them to make a
    /// tensor map.
    pub(super) fn load_k_grouped_tiles(&self, groups: KGroups<'k>) {
        let (k, p) = (self.k, &self.params);
        let cursor = self.pipe.writer();
        let drafts = self.shared.at(self.map.map_drafts);
        let maps = DynamicTensorMaps::claim(groups.params, self.maps(), drafts, self.lane);
        let block_k = self.cfg.operands.block_k();
        self.for_each_tile(Reader::Warp(self.lane), |tile| {
            let Some(group) = tile.k_group else { return };
            let load = |maps, stages: [U32<'k>; 2], first: U32<'k>| {
                k.if_(k.elect(), || {
                    k.for_(stages[0], stages[1], 1, |block| {
                        self.fill_stage(&cursor, &tile, maps, first + block * block_k);
                    });
                });
            };
            let [none, one] = [0, 1].map(|count| k.constant(count));
            match self.cfg.k_ranges() {
                KRanges::OwnMatrices(..) => k.if_(group.k.ne(0), || {
                    let rows = [p.output.rows, p.output.columns];
                    maps.set_group(&group, rows, self.cfg.elements_of_byte());
                    load(maps.maps(), [none, self.stages_of(&group)], none);
                }),
                // Behind a whole number of stages, there is one by maps that end with the group, with zeros behind.
                KRanges::OfOneMatrix(..) => {
                    let whole = group.k / block_k;
                    load(self.maps(), [none, whole], group.start);
                    k.if_((group.k % block_k).ne(0), || {
                        maps.set_end(&group, self.cfg.tiles().map(|tile| tile.k_dimension()));
                        load(maps.maps(), [whole, whole + 1], group.start);
                    });
                }
            }
            // Zeros, which are behind the end of all operands.
            k.if_(group.k.eq(0), || load(self.maps(), [none, one], groups.extent()));
        });
        k.launch_dependents();
        k.if_(k.elect(), || {
            cursor.drain();
            maps.release();
        });
    }

    /// The tensor maps of A and B that the host made.
    fn maps(&self) -> [TensorMap<'k>; 2] {
        [self.params.a, self.params.b]
    }

    /// Loads the next stage, from a depth of K of a tile on.
    fn fill_stage(&self, cursor: &Cursor<'k>, tile: &TileInfo<'k>, maps: [TensorMap<'k>; 2], depth: U32<'k>) {
        cursor.wait_empty();
        let stage = cursor.stage();
        let full = self.pipe.full(stage);
        self.k.if_(self.is_leader, || full.arrive_expecting(self.cfg.loaded_bytes()));
        self.load_stage((tile, depth), maps, self.stage(stage), self.of_leader(full));
        cursor.advance();
    }

    /// Loads a stage of a tile, from a depth of K on.
    fn load_stage(
        &self,
        (tile, depth): (&TileInfo<'k>, U32<'k>),
        [map_a, map_b]: [TensorMap<'k>; 2],
        [a, b]: [Shared<'k>; 2],
        full: MBarrier<'k>,
    ) {
        let tiles = self.cfg.tiles();
        let options = LoadOptions { pair: self.cfg.pair, ..LoadOptions::default() };
        let [slab, group] = match &tile.group {
            Some(group) => [Some(group.slab), Some(group.group)],
            None => [None; 2],
        };
        for ([x, y], to) in tiles[0].boxes([tile.m, depth], a) {
            let at: Vec<U32<'k>> = [x, y].into_iter().chain(slab).collect();
            map_a.load(&at, to, full, options);
        }
        let rank = self.k.cluster_rank() - self.leader;
        if self.cfg.fusion == Fusion::Gated {
            // Gates and ups are parts of B; a CTA of a pair has one of them.
            let (columns, parts) = (self.cfg.tile_columns(), 2 / self.cfg.ctas());
            let depth = tiles[1].depth_in_map(depth);
            for nth in 0..parts {
                let part = if self.cfg.pair { rank } else { self.k.constant(nth) };
                let at: Vec<U32<'k>> = [depth, tile.n, part].into_iter().chain(group).collect();
                map_b.load(&at, b.at(nth * columns * LINE_BYTES), full, options);
            }
            return;
        }
        let row = if self.cfg.pair { tile.n + rank * tiles[1].rows } else { tile.n };
        for ([x, y], to) in tiles[1].boxes([row, depth], b) {
            let at: Vec<U32<'k>> = [x, y].into_iter().chain(group).collect();
            map_b.load(&at, to, full, options);
        }
    }
}
