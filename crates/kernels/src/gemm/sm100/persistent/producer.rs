//! Producer of the persistent kernel: operand tiles.

use super::Block;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::scheduler::tile::TileInfo;
use crate::gemm::sm100::operand::LINE_BYTES;
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::{MBarrier, Shared, U32};

impl<'k> Block<'k, '_> {
    /// Producer: this CTA's rows of A and its share of the rows of B. The barrier is that of the CTA that multiplies,
    /// which also announces the bytes of both.
    pub(super) fn load_tiles(&self) {
        let k = self.k;
        let cursor = self.pipe.writer();
        self.scheduler.for_each_tile(k, |tile| {
            k.for_(0, self.k_stages(), 1, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                k.if_(self.is_leader, || full.arrive_expecting(self.cfg.loaded_bytes()));
                self.load_stage(
                    &tile,
                    block * self.cfg.operands.block_k(),
                    self.stage(stage),
                    self.of_leader(full),
                );
                cursor.advance();
            });
        });
        k.launch_dependents();
        cursor.drain();
    }

    /// Loads a stage of a tile, from a depth of K on.
    fn load_stage(&self, tile: &TileInfo<'k>, depth: U32<'k>, [a, b]: [Shared<'k>; 2], full: MBarrier<'k>) {
        let (p, tiles) = (&self.params, self.cfg.tiles());
        let options = LoadOptions { pair: self.cfg.pair, ..LoadOptions::default() };
        let [slab, group] = match &tile.group {
            Some(group) => [Some(group.slab), Some(group.group)],
            None => [None; 2],
        };
        for ([x, y], to) in tiles[0].boxes([tile.m, depth], a) {
            let at: Vec<U32<'k>> = [x, y].into_iter().chain(slab).collect();
            p.a.load(&at, to, full, options);
        }
        let rank = self.k.cluster_rank() - self.leader;
        if self.cfg.fusion == Fusion::Gated {
            // Gates and ups are parts of B; a CTA of a pair has one of them.
            let (columns, parts) = (self.cfg.tile_columns(), 2 / self.cfg.ctas());
            let depth = tiles[1].depth_in_map(depth);
            for nth in 0..parts {
                let part = if self.cfg.pair { rank } else { self.k.constant(nth) };
                let at: Vec<U32<'k>> = [depth, tile.n, part].into_iter().chain(group).collect();
                p.b.load(&at, b.at(nth * columns * LINE_BYTES), full, options);
            }
            return;
        }
        let row = if self.cfg.pair { tile.n + rank * tiles[1].rows } else { tile.n };
        for ([x, y], to) in tiles[1].boxes([row, depth], b) {
            let at: Vec<U32<'k>> = [x, y].into_iter().chain(group).collect();
            p.b.load(&at, to, full, options);
        }
    }
}
