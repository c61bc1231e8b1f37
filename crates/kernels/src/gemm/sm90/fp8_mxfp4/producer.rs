//! Producer of the persistent FP8 by MXFP4 kernel: rows of A, and codes of B.

use super::Block;
use super::config::CODE_LINE;
use crate::common::BLOCK_K;
use crate::gemm::scheduler::tile::{TileInfo, TileMessage};
use crate::gemm::sm90::multicast::MulticastLoad;
use oxigemm_ptx::U32;
use oxigemm_ptx::tma::{Eviction, LoadOptions};

impl<'k> Block<'k, '_> {
    /// Producer: a stage of A and of B after the other.
    pub(super) fn load_tiles(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let a = MulticastLoad::of_a(&self.scheduler.cluster, cfg.block_m);
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..LoadOptions::default() };
        let cursor = self.pipe.writer();
        self.scheduler.for_each_tile(k, |TileInfo { m, n, group, streams_b, .. }| {
            k.for_(0, p.k_blocks, 1, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let (full, column) = (self.pipe.full(stage), block * BLOCK_K);
                if let Some(group) = group {
                    TileMessage::GroupedWithGroup(group).store(self.message(stage), [m, n]);
                }
                full.arrive_expecting(cfg.stage_bytes());
                match group {
                    Some(group) => {
                        let rows = (group.end, cfg.box_rows());
                        a.load_before(k, &p.a, [column, m, group.slab], rows, self.a(stage), full);
                    }
                    None => a.load(k, &p.a, [column, m], self.a(stage), full),
                }
                let slab = group.map(|group| group.group);
                // What is not read again leaves the L2 cache before what other tiles need.
                k.if_else(
                    streams_b,
                    || self.load_codes([block, n, stage], slab, once),
                    || self.load_codes([block, n, stage], slab, LoadOptions::default()),
                );
                cursor.advance();
            });
        });
        k.launch_dependents();
        cursor.drain();
    }

    /// Loads the codes of a K block to a stage, for the columns of D from `n` on: with a gate, of its rows and of those of ups.
    fn load_codes(&self, [block, n, stage]: [U32<'k>; 3], slab: Option<U32<'k>>, options: LoadOptions<'k>) {
        let (cfg, p) = (self.cfg, &self.params);
        for part in 0..cfg.fusion.accumulators() {
            let row = n + p.output.columns * part;
            let at: Vec<U32<'k>> = [block * CODE_LINE, row].into_iter().chain(slab).collect();
            let to = self.codes(stage).at(part * (cfg.tile_columns() * CODE_LINE));
            p.b.load(&at, to, self.pipe.full(stage), options);
        }
    }
}
