//! Math warps of the paged MQA logits: MMA, head reduction and stores of each tile of a unit.

use super::super::heads::LogitLayout;
use super::Cta;
use crate::attention::logits::LogitRow;
use crate::attention::paged::Paged;
use crate::attention::shape::{DEDICATED_NEXT, Heads, TILE_KEYS};
use crate::common::pipeline::Cursor;
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{F32, U32, Var};

/// Queries whose accumulators are live at a time.
const BUFFERS: u32 = 2;

impl<'k> Cta<'k, '_> {
    /// Math warpgroup: 64 keys of each stage with the heads of one query after another.
    pub fn multiply(&self) {
        let &Paged { k, lane, ref lengths, ref smem, .. } = &self.roles;
        if self.cfg.tile.padded {
            let consumer = Consumer::new(self, 1, 1);
            let slots = smem.unit_pipeline.reader();
            smem.for_each_unit(&slots, |slot, unit| {
                consumer.multiply_tiles_of_any(slot, unit.tiles, unit.is_unit);
                smem.release_unit(&slots, lane);
            });
            return;
        }
        let consumer = Consumer::new(self, BUFFERS, DEDICATED_NEXT);
        let slots = smem.unit_pipeline.reader();
        smem.for_each_unit(&slots, |slot, unit| {
            for queries in 1..=DEDICATED_NEXT {
                k.if_(lengths.next.eq(queries), || {
                    consumer.load_weights(slot, queries);
                    consumer.multiply_tiles(slot, unit.tiles, queries);
                });
            }
            smem.release_unit(&slots, lane);
        });
    }
}

/// State of a math warp.
struct Consumer<'k, 'b, 'c> {
    cta: &'b Cta<'k, 'c>,
    cursor: Cursor<'k>,
    /// This thread's key in a tile, and the offset of its scale.
    key: U32<'k>,
    scale: U32<'k>,
    layout: LogitLayout<'k>,
    /// Accumulators of one query and, where there are two, of the next.
    accumulators: Vec<Vec<Var<'k, f32>>>,
    /// Weights of every query, or of the current one.
    weights: Vec<Vec<Var<'k, f32>>>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    /// A warp with accumulators and weights for this many queries.
    fn new(cta: &'b Cta<'k, 'c>, buffers: u32, weights: u32) -> Self {
        let &Paged { k, lane, ref smem, .. } = &cta.roles;
        let heads = cta.cfg.heads().heads as usize;
        let layout = LogitLayout::new(1, lane);
        let key = cta.warp * 16 + layout.keys()[0];
        let loaded = cta.roles.load_size();
        let weights_of = |_| (0..heads / 4).map(|_| k.var(0.0f32)).collect();
        Consumer {
            cta,
            cursor: smem.key_pipeline.reader(),
            key,
            scale: (key / loaded) * cta.roles.scale_bytes() + (key % loaded) * 4,
            layout,
            accumulators: (0..buffers).map(|_| k.fragment(heads / 2)).collect(),
            weights: (0..weights).map(weights_of).collect(),
        }
    }

    fn load_weights(&self, slot: U32<'k>, queries: u32) {
        let Cta { cfg, roles: Paged { lane, smem, .. }, .. } = self.cta;
        for (query, weights) in (0..queries).zip(&self.weights) {
            let from = smem.weights(slot).at(query * cfg.heads().heads * 4);
            Heads::load_weights(from, *lane, weights);
        }
    }

    /// All tiles of a unit whose sequence has this many queries.
    fn multiply_tiles(&self, slot: U32<'k>, [first, end]: [U32<'k>; 2], queries: u32) {
        self.cta.roles.k.for_(first, end, 1, |tile| self.multiply_tile(slot, tile, queries));
    }

    /// One tile. While the heads of one query are reduced, the tensor core works on those of the next.
    fn multiply_tile(&self, slot: U32<'k>, tile: U32<'k>, queries: u32) {
        let &Cta { roles: Paged { k, lane, ref smem, .. }, .. } = self.cta;
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        let scale: F32<'k> = smem.scales(stage).at(self.scale).load();
        (0..queries.min(BUFFERS)).for_each(|query| self.issue(slot, query));
        for query in 0..queries {
            let behind = queries - query - 1;
            k.wgmma_wait(behind.min(BUFFERS - 1));
            if behind == 0 {
                smem.release(stage, lane);
            }
            self.finish(slot, query, tile, scale);
            if behind >= BUFFERS {
                self.issue(slot, query + BUFFERS);
            }
        }
        self.cursor.advance();
    }

    /// All tiles of a unit of any number of queries, one after another: while this warpgroup reduces, the tensor core
    /// works for the other.
    fn multiply_tiles_of_any(&self, slot: U32<'k>, [first, end]: [U32<'k>; 2], queries: U32<'k>) {
        let &Cta { cfg, roles: Paged { k, lane, ref smem, .. }, .. } = self.cta;
        let heads = cfg.heads();
        let (accumulators, weights) = (&self.accumulators[0], &self.weights[0]);
        k.for_(first, end, 1, |tile| {
            self.cursor.wait_full();
            let stage = self.cursor.stage();
            let scale: F32<'k> = smem.scales(stage).at(self.scale).load();
            k.for_(0, queries, 1, |query| {
                self.issue_at(slot, query * (heads.heads * heads.dim), accumulators);
                Heads::load_weights(smem.weights(slot).at(query * (heads.heads * 4)), lane, weights);
                k.wgmma_wait(0);
                self.store(slot, query, [accumulators, weights], tile, scale);
            });
            smem.release(stage, lane);
            self.cursor.advance();
        });
    }

    /// Issues the MMA of the current tile with the heads of a query.
    fn issue(&self, slot: U32<'k>, query: u32) {
        let Heads { heads, dim } = self.cta.cfg.heads();
        let offset = self.cta.roles.k.constant(query * heads * dim);
        self.issue_at(slot, offset, &self.accumulators[(query % BUFFERS) as usize]);
    }

    /// The same with those at an offset in the unit's queries.
    fn issue_at(&self, slot: U32<'k>, offset: U32<'k>, accumulators: &[Var<'k, f32>]) {
        let &Cta { cfg, roles: Paged { k, ref smem, .. }, warp } = self.cta;
        let heads = cfg.heads();
        let keys = smem.keys(self.cursor.stage()).at((warp >> 2) * (64 * heads.dim));
        let queries = smem.queries(slot).at(offset);
        let [keys, queries] = [keys, queries].map(|tile| Descriptor::k_major(tile, heads.swizzle()));
        k.wgmma_fence();
        heads.mma(k, accumulators, keys, queries);
        k.wgmma_commit();
    }

    /// Reduces the heads of a query and stores the logits.
    fn finish(&self, slot: U32<'k>, query: u32, tile: U32<'k>, scale: F32<'k>) {
        let accumulators = &self.accumulators[(query % BUFFERS) as usize];
        let fragments: [&[Var<'k, f32>]; 2] = [accumulators, &self.weights[query as usize]];
        self.store(slot, self.cta.roles.k.constant(query), fragments, tile, scale);
    }

    fn store(
        &self,
        slot: U32<'k>,
        query: U32<'k>,
        [accumulators, weights]: [&[Var<'k, f32>]; 2],
        tile: U32<'k>,
        scale: F32<'k>,
    ) {
        let &Cta { cfg, roles: Paged { k, lane, ref smem, ref params, .. }, .. } = self.cta;
        let row = LogitRow::load(smem.row(slot, query));
        for sum in cfg.heads().reduce(k, lane, accumulators, weights) {
            row.store_logit(k, tile * TILE_KEYS + self.key, sum * scale, params.flags, self.layout.stores());
        }
    }
}
