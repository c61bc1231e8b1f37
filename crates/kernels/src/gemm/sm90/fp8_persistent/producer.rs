//! Producers of the persistent FP8 kernel: operand tiles, and the scales of 1D2D kernels.

use super::Block;
use crate::common::BLOCK_K;
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::operand::fp8::scale_group_start;
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::dynamic::NextTile;
use crate::gemm::scheduler::k_grouped::KGroups;
use crate::gemm::scheduler::order::KOrder;
use crate::gemm::scheduler::tile::TileInfo;
use crate::gemm::sm90::multicast::MulticastLoad;
use oxigemm_ptx::U32;
use oxigemm_ptx::tma::Eviction;

impl<'k> Block<'k, '_> {
    /// Multicast loads of A and B.
    fn loads(&self) -> [MulticastLoad<'k>; 2] {
        let (cfg, cluster) = (self.cfg, &self.scheduler.cluster);
        [MulticastLoad::of_a(cluster, cfg.block_m), MulticastLoad::of_b(cluster, cfg.block_n)]
    }

    /// K blocks that are loaded of a tile: the first, and the one behind the last.
    fn blocks_of(&self, tile: &TileInfo<'k>) -> [U32<'k>; 2] {
        match tile.part {
            Some(part) => [part.first, part.end],
            None => [self.k.constant(0), self.padded_blocks()],
        }
    }

    /// Producer: this block's part of A and B, multicast to the cluster.
    pub(super) fn load_tiles(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let [a, b] = self.loads();
        let once = k.cache_policy(Eviction::First);
        let cursor = self.pipe.writer();
        if cfg.scales_of_b == ScalesOfB::Rows {
            self.stagger_start(p.k_blocks);
        }
        self.scheduler.for_each_tile(k, |tile| {
            // What is not read again leaves the L2 cache before what other tiles need.
            let b = b.streamed(tile.streams_b, once);
            let boxes = self.scheduler.gate_up.map(|gate_up| b.boxes(&gate_up, cfg.block_n, tile.n));
            KOrder::new(tile.reverse_k, self.blocks_of(&tile), cfg.scale_blocks()).for_each(k, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                let column = block * BLOCK_K;
                let TileInfo { m, n, group, .. } = tile;
                match group {
                    Some(group) => {
                        let rows = (group.end, cfg.shape().group_box_rows());
                        a.load_before(k, &p.a, [column, m, group.slab], rows, self.a(stage), full);
                    }
                    None => a.load(k, &p.a, [column, m], self.a(stage), full),
                }
                match (&boxes, group) {
                    (Some(boxes), _) => {
                        let group = group.map(|group| group.group);
                        b.load_boxes(k, &p.b, (column, group), boxes, self.b(stage), full);
                    }
                    (None, Some(group)) => {
                        b.load_of_slab(k, &p.b, [column, n, group.group], self.b(stage), full);
                    }
                    (None, None) => b.load(k, &p.b, [column, n], self.b(stage), full),
                }
                cursor.advance();
            });
        });
        k.launch_dependents();
        cursor.drain();
    }

    /// Producer of a k-grouped kernel: a warp, of which one lane loads, because it takes all of them to make the tensor
    /// maps of a group.
    pub(super) fn load_k_grouped_tiles(&self, groups: KGroups<'k>) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let [a, b] = self.loads();
        let cursor = self.pipe.writer();
        let drafts = self.shared.at(self.map.map_drafts);
        let maps = DynamicTensorMaps::claim(groups.params, [p.a, p.b], drafts, self.lane);
        self.stagger_start(groups.tile_group(groups.count() - 1).k.div_ceil(BLOCK_K));
        self.scheduler.for_each_tile(k, |tile| {
            let Some(group) = tile.k_group else { return };
            k.if_(group.k.gt(0), || {
                maps.set_group(&group, [p.output.rows, p.output.columns], 1);
                let [map_a, map_b] = maps.maps();
                // By an elected lane: the assembler knows that it is one, and its loads take fewer instructions.
                k.if_(k.elect(), || {
                    k.for_(0, group.k.div_ceil(BLOCK_K), 1, |block| {
                        cursor.wait_empty();
                        let stage = cursor.stage();
                        let full = self.pipe.full(stage);
                        full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                        a.load(k, &map_a, [block * BLOCK_K, tile.m], self.a(stage), full);
                        b.load(k, &map_b, [block * BLOCK_K, tile.n], self.b(stage), full);
                        cursor.advance();
                    });
                });
            });
        });
        k.launch_dependents();
        k.if_(k.elect(), || {
            cursor.drain();
            maps.release();
        });
    }

    /// Starts a cluster later that has a tile less than others, instead of ending it earlier: then not all clusters add
    /// to memory at one time. `blocks` are those of a last tile.
    fn stagger_start(&self, blocks: U32<'k>) {
        // About what a K block takes: half a microsecond where a tile has 128 rows.
        let block_ns = self.cfg.block_m * 3;
        self.k.for_(0, self.scheduler.stagger(self.k, blocks), 1, |_| self.k.sleep(block_ns));
    }

    /// Scale producer: a warp loads the scales, as far ahead of the operands as its ring allows.
    pub(super) fn load_scales(&self) {
        let (k, group) = (self.k, self.cfg.scale_blocks());
        let producer = self.scales.producer(self.lane);
        let load = |tile: TileInfo<'k>, next: Option<&NextTile<'k, '_>>| {
            let view = self.scheduler.view(&self.params, &tile);
            let [first, end] = match tile.part {
                Some(part) => [scale_group_start(part.first, group), part.end],
                None => [k.constant(0), view.k_blocks],
            };
            let order = KOrder::new(tile.reverse_k, [first, self.cfg.padded(end)], group);
            k.for_(first, end, group, |start| {
                if let Some(next) = next {
                    k.if_((start + group).ge(end), || next.request());
                }
                producer.load(&self.params, &view, order.group(start));
            });
        };
        self.scheduler.lead_tiles(k, self.lane, load, || producer.end());
    }
}
