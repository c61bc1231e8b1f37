//! Producer of the persistent 16-bit kernel: operand tiles.

use super::Block;
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::operand::f16::BLOCK_K;
use crate::gemm::scheduler::k_grouped::KGroups;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::order::KOrder;
use crate::gemm::scheduler::tile::{TileInfo, TileMessage};
use crate::gemm::sm90::multicast::MulticastLoad;
use oxigemm_ptx::tma::{Eviction, TensorMap};
use oxigemm_ptx::{MBarrier, Pred, Shared, U32};

impl<'k> Block<'k, '_> {
    /// Producer: this block's part of A and B, multicast to the cluster.
    pub(super) fn load_tiles(&self) {
        let (k, p, tiles) = (self.k, &self.params, self.cfg.tiles());
        let loads = self.loads();
        let cursor = self.pipe.writer();
        // Every stage of a tile: `tell` writes its message before the loads, which `load` issues for a depth of K.
        type Load<'a, 'k> = &'a dyn Fn([Shared<'k>; 2], U32<'k>, MBarrier<'k>);
        let all = [k.constant(0), p.k_blocks];
        type Order<'k> = (Option<Pred<'k>>, [U32<'k>; 2]);
        let stages = |(reverse_k, blocks): Order<'k>, tell: &dyn Fn(U32<'k>), load: Load<'_, 'k>| {
            KOrder::new(reverse_k, blocks, 1).for_each(k, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                tell(stage);
                full.arrive_expecting(self.cfg.stage_bytes());
                load(self.stage(stage), block * BLOCK_K, full);
                cursor.advance();
            });
        };
        let gate_up = self.scheduler.gate_up;
        match self.cfg.grouping {
            Grouping::Dense => {
                self.scheduler.for_each_tile(k, |TileInfo { m, n, part, reverse_k, .. }| {
                    let boxes = gate_up.map(|gate_up| loads[1].boxes(&gate_up, self.cfg.block_n, n));
                    let blocks = part.map_or(all, |part| [part.first, part.end]);
                    stages((reverse_k, blocks), &|_| {}, &|operands, depth, full| {
                        if let Some(boxes) = &boxes {
                            loads[0].load(k, &p.a, [depth, m], operands[0], full);
                            return loads[1].load_boxes(k, &p.b, (depth, None), boxes, operands[1], full);
                        }
                        self.load_stage((&loads, [&p.a, &p.b]), [m, n, depth], operands, full);
                    });
                })
            }
            Grouping::K => unreachable!("a warp loads the tiles of a k-grouped kernel"),
            Grouping::Rows => {
                let once = k.cache_policy(Eviction::First);
                self.scheduler.for_each_grouped_tile(k, |tile, group| {
                    let TileInfo { m, n, streams_b, reverse_k, .. } = tile;
                    // What is not read again leaves the L2 cache before what other tiles need.
                    let of_b = loads[1].streamed(streams_b, once);
                    let message = match gate_up {
                        None => TileMessage::InSlab(group),
                        Some(_) => TileMessage::InSlabWithGroup(group),
                    };
                    let boxes = gate_up.map(|gate_up| of_b.boxes(&gate_up, self.cfg.block_n, n));
                    let tell = |stage| message.store(self.message(stage), [m, n]);
                    stages((reverse_k, all), &tell, &|[a, b], depth, full| {
                        let rows = (group.end, self.cfg.shape().group_box_rows());
                        loads[0].load_before(k, &p.a, [depth, m, group.slab], rows, a, full);
                        if let Some(boxes) = &boxes {
                            return of_b.load_boxes(k, &p.b, (depth, Some(group.group)), boxes, b, full);
                        }
                        tiles[1].boxes([n, depth], b).for_each(|([x, y], to)| {
                            of_b.load_of_slab(k, &p.b, [x, y, group.group], to, full);
                        });
                    });
                });
            }
        }
        k.launch_dependents();
        cursor.drain();
    }

    /// Multicast loads of A and B.
    fn loads(&self) -> [MulticastLoad<'k>; 2] {
        let ([a, b], cluster) = (self.cfg.tiles(), &self.scheduler.cluster);
        [MulticastLoad::of_a(cluster, a.lines()), MulticastLoad::of_b(cluster, b.lines())]
    }

    /// Loads this block's part of a stage of the tile at row `m` and column `n`, from a depth of K on.
    fn load_stage(
        &self,
        (loads, maps): (&[MulticastLoad<'k>; 2], [&TensorMap<'k>; 2]),
        [m, n, depth]: [U32<'k>; 3],
        operands: [Shared<'k>; 2],
        full: MBarrier<'k>,
    ) {
        let tiles = self.cfg.tiles().into_iter().zip(operands).zip([m, n]);
        for (((tile, to), first), (load, map)) in tiles.zip(loads.iter().zip(maps)) {
            tile.boxes([first, depth], to).for_each(|(at, to)| load.load(self.k, map, at, to, full));
        }
    }

    /// Producer of a k-grouped kernel: a warp, of which one elected lane loads, because it takes all of them to make a
    /// tensor map. Where the K of a group is no whole number of stages, the last has maps that end with the group, and
    /// zeros behind.
    pub(super) fn load_k_grouped_tiles(&self, groups: KGroups<'k>) {
        let (k, p, loads) = (self.k, &self.params, self.loads());
        let cursor = self.pipe.writer();
        let drafts = self.shared.at(self.map.map_drafts);
        let maps = DynamicTensorMaps::claim(groups.params, [p.a, p.b], drafts, self.lane);
        let k_dimensions = self.cfg.tiles().map(|tile| tile.k_dimension());
        self.scheduler.for_each_tile(k, |tile| {
            let Some(group) = tile.k_group else { return };
            let load = |maps: [&TensorMap<'k>; 2], block: U32<'k>| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting(self.cfg.stage_bytes());
                let depth = group.start + block * BLOCK_K;
                self.load_stage((&loads, maps), [tile.m, tile.n, depth], self.stage(stage), full);
                cursor.advance();
            };
            let whole = group.k / BLOCK_K;
            k.if_(k.elect(), || k.for_(0, whole, 1, |block| load([&p.a, &p.b], block)));
            k.if_((group.k % BLOCK_K).ne(0), || {
                maps.set_end(&group, k_dimensions);
                let [a, b] = maps.maps();
                k.if_(k.elect(), || load([&a, &b], whole));
            });
        });
        k.launch_dependents();
        k.if_(k.elect(), || {
            cursor.drain();
            maps.release();
        });
    }
}
