//! Main loop of the persistent 16-bit kernel: consumer warpgroups multiply.
//!
//! From `build` to the `wgmma`: [`Block::consume`] takes tiles, [`Consumer::multiply_tile`] their stages, and
//! [`Consumer::issue_stage`] issues the instructions.

use super::Block;
use super::epilogue::FusedTile;
use crate::common::pipeline::Cursor;
use crate::gemm::operand::f16::{BLOCK_K, Major, OperandTile, Operands, PANEL};
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::multicast::StageRelease;
use crate::gemm::sm90::store_pipeline::StorePipeline;
use crate::gemm::sm90::warpgroups::M_SUBTILE_STRIDE;
use oxigemm_ptx::wgmma::{Descriptor, DescriptorVar, MatrixA};
use oxigemm_ptx::{U32, Var};

impl<'k> Block<'k, '_> {
    /// Consumer warpgroup: the products of all stages of a tile, one stage always in flight.
    pub(super) fn consume(&self) {
        let k = self.k;
        let consumer = Consumer::new(self);
        let warpgroup = self.warp >> 2;
        let ([first_row, first_column], store_pipeline) =
            (self.cfg.shape().offset_of(warpgroup), self.store_pipeline(warpgroup));
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        let (m_subtiles, k_blocks) = (self.cfg.shape().m_subtiles(), self.params.k_blocks);
        let write = |[m, n]: [U32<'k>; 2], store_pipeline: StorePipeline<'k>| {
            let first = [m + first_row, n + first_column];
            let accumulators: Vec<_> = consumer.accumulators.iter().map(Vec::as_slice).collect();
            store_pipeline.write([self.warp & 3, self.lane], first, &accumulators, parity);
        };
        match self.cfg.grouping {
            Grouping::Dense if self.epilogue.is_some() => self.scheduler.for_each_tile(k, |tile| {
                consumer.multiply_tile(m_subtiles, k_blocks);
                self.write_fused(warpgroup, &FusedTile::of(&tile), &consumer.accumulators, parity);
            }),
            Grouping::Dense if self.fixups.is_some() => self.scheduler.for_each_tile(k, |tile| {
                let (Some(part), Some(fixups)) = (tile.part, self.fixups) else { return };
                consumer.multiply_tile(m_subtiles, part.end - part.first);
                let complete = fixups.fix_up(part.fixup, &consumer.accumulators);
                self.signal_store([warpgroup, self.lane], (part, complete), parity);
                k.if_(complete, || write([tile.m, tile.n], store_pipeline));
            }),
            Grouping::Dense => self.scheduler.for_each_dense_tile(k, |m, n| {
                consumer.multiply_tile(m_subtiles, k_blocks);
                write([m, n], store_pipeline);
            }),
            Grouping::K => self.scheduler.for_each_tile(k, |tile| {
                let Some(group) = tile.k_group else { return };
                let zeros = || consumer.accumulators.iter().flatten().for_each(|x| x.set(0.0));
                let k_blocks = group.k.div_ceil(BLOCK_K);
                k.if_else(k_blocks.eq(0), zeros, || consumer.multiply_tile(m_subtiles, k_blocks));
                let store_pipeline =
                    store_pipeline.of_group(group.group, group.d_row + self.params.output.rows);
                self.unless_kept(group.k, || write([group.d_row + tile.m, tile.n], store_pipeline));
            }),
            Grouping::Rows => self.scheduler.for_each_index(k, |index| {
                let (at, [end, word]) = consumer.message();
                let row = at[0] + first_row;
                let compute = || {
                    match m_subtiles {
                        2 => {
                            let all = (row + M_SUBTILE_STRIDE).lt(end);
                            let some = || consumer.multiply_tile(1, k_blocks);
                            k.if_else(all, || consumer.multiply_tile(2, k_blocks), some)
                        }
                        m_subtiles => consumer.multiply_tile(m_subtiles, k_blocks),
                    }
                    match self.epilogue {
                        None => write(at, store_pipeline.in_slab(word, self.d_slab(), end)),
                        Some(_) => {
                            let tile = FusedTile { at, pass: index.pass, rows: Some([word, end]) };
                            self.write_fused(warpgroup, &tile, &consumer.accumulators, parity);
                        }
                    }
                };
                k.if_else(row.lt(end), compute, || consumer.skip_tile());
            }),
        }
    }
}

/// State of a consumer warp.
struct Consumer<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// The operands in the first stage, and in the cursor's.
    operands: [Descriptor<'k>; 2],
    current: [DescriptorVar<'k>; 2],
    cursor: Cursor<'k>,
    /// The stage whose products were issued last, and the one before it.
    issued: [Var<'k, u32>; 2],
    /// The accumulators of each M-subtile.
    accumulators: Vec<Vec<Var<'k, f32>>>,
    stages: StageRelease<'k>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg) = (block.k, block.cfg);
        let (m_subtiles, columns) = (cfg.shape().m_subtiles(), cfg.shape().columns());
        let zero = k.constant(0);
        let [first_row, first_column] = cfg.shape().offset_of(block.warp >> 2);
        debug_assert!(cfg.operands.b == Major::K || columns.is_multiple_of(PANEL));
        let ([a, b], [a_tile, b_tile]) = (block.stage(zero), cfg.tiles());
        let operands = [
            a_tile.descriptor(a.at(first_row * OperandTile::row_offset(1))),
            b_tile.descriptor(b.at(first_column * OperandTile::row_offset(1))),
        ];
        let accumulators: Vec<Vec<Var<'k, f32>>> =
            (0..m_subtiles).map(|_| k.fragment(columns as usize / 2)).collect();
        if cfg.is_grouped() {
            // M-subtiles without rows are staged all the same.
            accumulators[1..].iter().flatten().for_each(|accumulator| accumulator.set(0.0));
        }
        Consumer {
            block,
            operands,
            current: operands.map(Descriptor::var),
            cursor: block.pipe.reader(),
            issued: [k.var(0), k.var(0)],
            accumulators,
            stages: StageRelease::new(k, &block.scheduler.cluster, &block.pipe, block.lane),
        }
    }

    /// Message about the tile that comes next, in m-grouped kernels: the first row and column, the row behind its
    /// group's last, and its slab, or its group where the epilogue is fused.
    fn message(&self) -> ([U32<'k>; 2], [U32<'k>; 2]) {
        self.cursor.wait_full();
        TileMessage::load_all(self.block.message(self.cursor.stage()))
    }

    /// All stages of a tile, at least one, of which so many M-subtiles have rows.
    fn multiply_tile(&self, m_subtiles: u32, k_blocks: U32<'k>) {
        let (k, accumulators) = (self.block.k, &self.accumulators[..m_subtiles as usize]);
        // In m-grouped kernels the tile's message has arrived with its first stage.
        if !self.block.cfg.is_grouped() {
            self.cursor.wait_full();
        }
        self.issue_stage(accumulators, false);
        k.for_(1, k_blocks, 1, |_| {
            self.cursor.wait_full();
            self.issue_stage(accumulators, true);
            k.wgmma_wait(1);
            self.release_previous();
        });
        k.wgmma_wait(0);
        self.release_last();
    }

    /// Releases all stages of a tile in which no row of this warpgroup belongs to the tile's group.
    fn skip_tile(&self) {
        let k = self.block.k;
        k.for_(0, self.block.params.k_blocks, 1, |_| {
            self.cursor.wait_full();
            // No lane may still wait for what another has released, or read its message.
            k.sync_warp();
            self.stages.release(k, self.cursor.stage());
            self.advance();
        });
    }

    /// Issues the products of a full stage, as one `wgmma` group. The first of a tile overwrite the accumulators.
    fn issue_stage(&self, accumulators: &[Vec<Var<'k, f32>>], accumulate: bool) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let Operands { a: major_a, b: major_b, .. } = cfg.operands;
        let (types, [a_tile, b_tile]) = (cfg.operands.mma_type(), cfg.tiles());
        let [a, b] = self.current.map(DescriptorVar::get);
        // Between stages only products touch the accumulators, but the assembler wants the fence in every basic block.
        k.wgmma_fence();
        for depth in (0..BLOCK_K).step_by(types.k() as usize) {
            let b = b.advance(b_tile.depth_offset(depth));
            for (subtile, accumulators) in (0u32..).zip(accumulators) {
                let a = a.advance(
                    OperandTile::row_offset(subtile * M_SUBTILE_STRIDE) + a_tile.depth_offset(depth),
                );
                let adds = k.constant(accumulate || depth > 0);
                k.wgmma(types, accumulators, MatrixA::Shared(a), b, (major_a, major_b), adds);
            }
        }
        k.wgmma_commit();
        self.advance();
    }

    /// Moves to the next stage.
    fn advance(&self) {
        let [last, previous] = self.issued;
        previous.set(last.live());
        last.set(self.cursor.stage());
        self.cursor.advance();
        let stage = self.cursor.stage();
        for ((current, first), tile) in self.current.iter().zip(self.operands).zip(self.block.cfg.tiles()) {
            current.set(first.advance(stage * tile.bytes()));
        }
    }

    /// Releases the stage before the one whose products were issued last.
    fn release_previous(&self) {
        self.stages.release(self.block.k, self.issued[1].get());
    }

    /// Releases the stage whose products were issued last.
    fn release_last(&self) {
        self.stages.release(self.block.k, self.issued[0].get());
    }
}
