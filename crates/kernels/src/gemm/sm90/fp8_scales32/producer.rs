//! Producer of the persistent FP8 kernel with scales of 32: operand tiles.

use super::Block;
use crate::common::BLOCK_K;
use crate::gemm::scheduler::tile::{TileInfo, TileMessage};
use crate::gemm::sm90::multicast::MulticastLoad;
use oxigemm_ptx::tma::Eviction;

impl<'k> Block<'k, '_> {
    /// Producer: this block's part of A and B, multicast to the cluster.
    pub(super) fn load_tiles(&self) {
        let (k, cfg, p, cluster) = (self.k, self.cfg, &self.params, &self.scheduler.cluster);
        let (a, b) = (MulticastLoad::of_a(cluster, cfg.block_m), MulticastLoad::of_b(cluster, cfg.block_n));
        let once = k.cache_policy(Eviction::First);
        let cursor = self.pipe.writer();
        self.scheduler.for_each_tile(k, |TileInfo { m, n, group, streams_b, .. }| {
            // What is not read again leaves the L2 cache before what other tiles need.
            let b = b.streamed(streams_b, once);
            k.for_(0, p.k_blocks, 1, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let (full, column) = (self.pipe.full(stage), block * BLOCK_K);
                if let Some(group) = group {
                    TileMessage::Grouped(group).store(self.message(stage), [m, n]);
                }
                full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                match group {
                    Some(group) => {
                        let rows = (group.end, cfg.shape().group_box_rows());
                        a.load_before(k, &p.a, [column, m, group.slab], rows, self.a(stage), full);
                        b.load_of_slab(k, &p.b, [column, n, group.group], self.b(stage), full);
                    }
                    None => {
                        a.load(k, &p.a, [column, m], self.a(stage), full);
                        b.load(k, &p.b, [column, n], self.b(stage), full);
                    }
                }
                cursor.advance();
            });
        });
        k.launch_dependents();
        cursor.drain();
    }
}
