//! MMA role: a warp lays out the scales of FP4, and its first lane multiplies.

use super::Cta;
use super::config::Keys;
use crate::attention::shape::Format;
use crate::attention::smem::WorkUnit;
use crate::common::pipeline::Cursor;
use oxigemm_ptx::tcgen05::{CtaGroup, MatrixA, TensorMemory};
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{MBarrier, U32};

impl<'k> Cta<'k, '_> {
    /// MMA warp: all tiles of every unit, for the warpgroups in turn.
    pub(super) fn multiply(&self, memory: TensorMemory<'k>) {
        let (k, smem) = (self.k, self.smem);
        let (keys, slots) = (smem.key_pipeline.reader(), smem.unit_pipeline.reader());
        let accumulators = self.accumulators.writer();
        let has_scales = self.cfg.format == Format::Fp4;
        smem.for_each_unit(&slots, |slot, unit| {
            let WorkUnit { tiles: [first, end], is_unit: queries, .. } = unit;
            if has_scales {
                self.one_lane(|| self.copy_query_scales(memory, slot));
            }
            k.for_(first, end, 1, |_| {
                keys.wait_full();
                if has_scales {
                    self.lay_out_key_scales(keys.stage());
                }
                accumulators.wait_empty();
                self.one_lane(|| {
                    k.tcgen05_fence_after();
                    if has_scales {
                        self.copy_key_scales(memory, keys.stage());
                    }
                    self.multiply_tile(memory, (slot, queries), &keys, &accumulators);
                });
                keys.advance();
                accumulators.advance();
            });
            self.one_lane(|| self.commit(smem.unit_pipeline.empty(slot)));
            slots.advance();
        });
    }

    fn one_lane(&self, body: impl FnOnce()) {
        self.k.if_(self.lane.eq(0), body);
        self.k.sync_warp();
    }

    fn commit(&self, barrier: MBarrier<'k>) {
        self.k.tcgen05_commit(CtaGroup::One, barrier);
    }

    /// Issues the MMAs of a tile.
    fn multiply_tile(
        &self,
        memory: TensorMemory<'k>,
        (slot, queries): (U32<'k>, U32<'k>),
        keys: &Cursor<'k>,
        accumulators: &Cursor<'k>,
    ) {
        let (k, cfg, smem) = (self.k, self.cfg, self.smem);
        let tiles = [smem.keys(keys.stage()), smem.queries(slot)];
        let operands = tiles.map(|tile| Descriptor::k_major(tile, cfg.swizzle()));
        let to = accumulators.stage();
        match cfg.keys {
            Keys::Matrix => self.issue(memory, to, operands, cfg.unit_queries()),
            // An instruction has a constant number of columns.
            Keys::Pages => (1..=cfg.unit_queries()).for_each(|count| {
                k.if_(queries.eq(count), || self.issue(memory, to, operands, count));
            }),
        }
        self.commit(smem.key_pipeline.empty(keys.stage()));
        self.commit(self.accumulators.full(to));
    }

    /// Multiplies a tile of keys by the heads of so many queries.
    fn issue(&self, memory: TensorMemory<'k>, to: U32<'k>, [a, b]: [Descriptor<'k>; 2], queries: u32) {
        let (k, cfg, group) = (self.k, self.cfg, CtaGroup::One);
        let (kind, instruction) = (cfg.kind(), cfg.instruction(queries));
        let accumulator = self.accumulator(memory, to);
        for step in 0..cfg.heads.dim / kind.k() {
            let offset = step * cfg.format.row_bytes(kind.k());
            let (a, b) = (MatrixA::Shared(a.advance(offset)), b.advance(offset));
            let adds = k.constant(step > 0);
            match cfg.format {
                Format::Fp8 => k.tcgen05_mma(group, &instruction, accumulator, a, b, adds),
                Format::Fp4 => {
                    let byte = step * kind.scales();
                    let instruction = instruction.scale_bytes(byte, byte);
                    let scales = self.scales(memory);
                    k.tcgen05_mma_scaled(group, &instruction, accumulator, a, b, scales, adds);
                }
            }
        }
    }
}
