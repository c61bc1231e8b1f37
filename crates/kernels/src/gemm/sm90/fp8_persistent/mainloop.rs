//! Main loop of the persistent FP8 kernel: consumer warpgroups multiply and promote.
//!
//! From `build` to the `wgmma`: [`Block::consume`] takes tiles, [`Consumer::multiply_tile`] their K blocks,
//! [`Consumer::multiply_block`] or [`Consumer::multiply_subtiles`] a stage, and [`issue_stage`] issues the
//! instructions.

use super::epilogue::OutputTile;
use super::{Block, Config, scales_1d1d};
use crate::common::BLOCK_K;
use crate::common::pipeline::Cursor;
use crate::gemm::operand::fp8;
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::stream_k::{FixupSlot, StreamKPart};
use crate::gemm::scheduler::tile::{TileIndex, TileMessage};
use crate::gemm::sm90::mma::{StageOperand, issue_stage};
use crate::gemm::sm90::multicast::StageRelease;
use crate::gemm::sm90::scale_pipeline::ScaleConsumer;
use crate::gemm::sm90::warpgroups::M_SUBTILE_STRIDE;
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{F32, Pred, Shared, U32, Var};

impl<'k> Block<'k, '_> {
    /// Consumer warpgroup: 64-row products of each stage, promoted into FP32 accumulators with their scales.
    pub(super) fn consume(&self) {
        let k = self.k;
        let consumer = Consumer::new(self);
        let warpgroup = self.warp >> 2;
        let shape = self.cfg.shape();
        let (first_row, m_subtiles) = (shape.offset_of(warpgroup)[0], shape.m_subtiles());
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        self.scheduler.if_any_tile(k, || consumer.load_first_scales());
        // How consumers learn whether a tile follows, with the dynamic scheduler.
        let follows = self.cfg.has_dynamic_scheduler().then(|| k.var_from(self.scheduler.has_any_tile(k)));
        let compute = |index: TileIndex<'k>| {
            consumer.accumulators.iter().flatten().for_each(|accumulator| accumulator.set(0.0));
            let blocks = consumer.blocks();
            match self.cfg.grouping {
                Grouping::Dense | Grouping::K => consumer.multiply_tile(m_subtiles, blocks),
                Grouping::Rows => consumer.multiply_rows(m_subtiles, first_row, blocks),
            }
            // Only now: until here it would take registers.
            let (tile, fixup) = consumer.tile(warpgroup, index.pass);
            match follows {
                Some(follows) => {
                    consumer.scales.release();
                    consumer.scales.wait();
                    follows.set(!TileMessage::is_end(consumer.scales.message()));
                    k.if_(follows.get(), || consumer.load_first_scales());
                }
                None => k.if_(self.scheduler.has_next(k, index), || {
                    consumer.scales.release();
                    consumer.load_first_scales();
                }),
            }
            let complete = fixup.map(|slot| {
                let fixups = self.fixups.expect("a stream-K kernel");
                fixups.fix_up(slot, &consumer.accumulators)
            });
            self.write((&OutputTile { complete, ..tile }, first_row), &consumer.accumulators, parity);
        };
        match follows {
            Some(follows) => {
                let index = TileIndex { index: k.constant(0), pass: None };
                k.while_(|| follows.live(), || compute(index));
            }
            None => self.scheduler.for_each_index(k, compute),
        }
    }
}

/// State of a consumer warp.
struct Consumer<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// The first column of the part of a tile that the warpgroup computes.
    first_column: U32<'k>,
    /// A and B.
    operands: [StageOperand<'k>; 2],
    /// Their scales, where the tensor core [multiplies](scales_1d1d) those too.
    scale_operands: Option<[StageOperand<'k>; 2]>,
    cursor: Cursor<'k>,
    /// Where the scale of this thread's first row lies, and how far below it the others are: two for each M-subtile.
    first_scale: U32<'k>,
    below: Vec<u32>,
    /// The scales of those rows for the K blocks that come next, and those of the columns if all have the same.
    row_scales: Vec<Vec<Var<'k, f32>>>,
    column_scales: Option<Vec<Var<'k, f32>>>,
    scales: ScaleConsumer<'k>,
    /// The products of an M-subtile.
    products: Vec<Var<'k, f32>>,
    /// Their scales, where each has its own.
    product_scales: Vec<Var<'k, f32>>,
    /// The FP32 accumulators of each M-subtile.
    accumulators: Vec<Vec<Var<'k, f32>>>,
    stages: StageRelease<'k>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg, warp, lane) = (block.k, block.cfg, block.warp, block.lane);
        let (m_subtiles, columns) = (cfg.shape().m_subtiles(), cfg.shape().columns());
        let zero = k.constant(0);
        let [first_row, first_column] = cfg.shape().offset_of(warp >> 2);
        // The row of this thread's first accumulators within a 64-row product.
        let row = (warp & 3) * 16 + (lane >> 2);
        let scales = block.scales.consumer(lane);
        let operand = |tile: Shared<'k>, first: U32<'k>, rows: u32| {
            StageOperand::new(Descriptor::k_major(tile.at(first * BLOCK_K), Swizzle::B128), rows * BLOCK_K)
        };
        let operands = [
            operand(block.a(zero), first_row, cfg.block_m),
            operand(block.b(zero), first_column, cfg.block_n),
        ];
        let is_1d1d = cfg.scales_of_b == ScalesOfB::Rows;
        let scale_operands = is_1d1d.then(|| {
            let [rows, columns] = block.scale_operands(zero);
            let [behind_rows, behind_columns] = block.zeros_behind_scale_operands();
            let rows = scales_1d1d::descriptor(rows, behind_rows, first_row);
            let columns = scales_1d1d::descriptor(columns, behind_columns, first_column);
            [rows, columns].map(|first| StageOperand::of_scales(first, cfg.scale_operand_bytes()))
        });
        let few = || (0..cfg.unroll()).map(|_| k.var(0.0f32)).collect();
        let below = |subtile: u32| [subtile * M_SUBTILE_STRIDE, subtile * M_SUBTILE_STRIDE + 8];
        Consumer {
            block,
            first_column,
            operands,
            scale_operands,
            cursor: block.pipe.reader(),
            first_scale: scales.row_offset(first_row + row),
            below: (0..m_subtiles).flat_map(below).collect(),
            row_scales: (0..if is_1d1d { 0 } else { 2 * m_subtiles }).map(|_| few()).collect(),
            column_scales: (cfg.scales().columns == 1).then(few),
            scales,
            products: k.fragment(columns as usize / 2),
            product_scales: k.fragment(if is_1d1d { columns as usize / 2 } else { 0 }),
            accumulators: (0..m_subtiles).map(|_| k.fragment(columns as usize / 2)).collect(),
            stages: StageRelease::new(k, &block.scheduler.cluster, &block.pipe, lane),
        }
    }

    /// K blocks whose scales are loaded together.
    fn group(&self) -> u32 {
        self.block.cfg.scale_blocks()
    }

    /// A warpgroup's part of the current tile, and its fix-up slot in stream-K kernels.
    fn tile(&self, warpgroup: U32<'k>, pass: Option<U32<'k>>) -> (OutputTile<'k>, Option<FixupSlot<'k>>) {
        let (cfg, message) = (self.block.cfg, || self.scales.message());
        let k_blocks = self.block.params.k_blocks;
        let tile = |at, end| OutputTile {
            warpgroup,
            at,
            end,
            slab: None,
            group: None,
            k_blocks,
            pass,
            complete: None,
        };
        let tile = match cfg.grouping {
            Grouping::Dense if cfg.stream_k => {
                let (at, part) = StreamKPart::load(message());
                return (tile(at, None), Some(part.fixup));
            }
            Grouping::Dense => tile(TileMessage::load(message()), None),
            Grouping::Rows if cfg.d_in_slabs => {
                let (at, [end, slab]) = TileMessage::load_all(message());
                OutputTile { slab: Some(slab), ..tile(at, Some(end)) }
            }
            Grouping::Rows if cfg.is_fused() => {
                let (at, [end, group]) = TileMessage::load_all(message());
                OutputTile { group: Some(group), ..tile(at, Some(end)) }
            }
            Grouping::Rows => {
                let (at, end) = TileMessage::load_grouped(message());
                tile(at, Some(end))
            }
            Grouping::K => {
                let (at, [end, k_blocks]) = TileMessage::load_all(message());
                OutputTile { k_blocks, ..tile(at, Some(end)) }
            }
        };
        (tile, None)
    }

    /// K blocks of the current tile, those behind the end of K included: from one on to before another. They are
    /// counted from the beginning of the first one's scale group.
    fn blocks(&self) -> [U32<'k>; 2] {
        let (zero, cfg) = (self.block.k.constant(0), self.block.cfg);
        match cfg.grouping {
            Grouping::Dense if cfg.stream_k => {
                let (_, part) = StreamKPart::load(self.scales.message());
                [part.first, part.end]
            }
            Grouping::Dense | Grouping::Rows => [zero, self.block.padded_blocks()],
            Grouping::K => {
                let (_, [_, k_blocks]) = TileMessage::load_all(self.scales.message());
                [zero, k_blocks]
            }
        }
    }

    /// Loads the scales that a tile begins with.
    fn load_first_scales(&self) {
        let zero = self.block.k.constant(0);
        if !self.block.cfg.stream_k {
            return self.load_scales(zero);
        }
        self.scales.wait();
        self.load_waited_scales(self.blocks()[0]);
    }

    /// Whether the part of the current tile from its `first_row` on has rows of the tile's group.
    fn has_rows(&self, first_row: U32<'k>) -> Pred<'k> {
        let (tile, end) = TileMessage::load_grouped(self.scales.message());
        (tile[0] + first_row).lt(end)
    }

    /// Loads the scales of a few K blocks, from the `within`-th of a scale group on; in 1D1D kernels waits for the
    /// tile's message.
    fn load_scales(&self, within: U32<'k>) {
        match (self.block.cfg.scales_of_b, self.block.cfg.grouping) {
            (ScalesOfB::Blocks, _) => self.block.k.if_(within.eq(0), || self.scales.wait()),
            // The message has the number of K blocks; elsewhere it is there before the tile's first stage.
            (ScalesOfB::Rows, Grouping::K) => return self.scales.wait(),
            (ScalesOfB::Rows, _) => return,
        }
        self.load_waited_scales(within);
    }

    /// The same of a scale group that has arrived.
    fn load_waited_scales(&self, within: U32<'k>) {
        self.scales.load_rows(within, self.first_scale, &self.below, &self.row_scales);
        if let Some(vars) = &self.column_scales {
            vars.iter().zip(self.scales.column(within, vars.len())).for_each(|(var, scale)| var.set(scale));
        }
    }

    /// The scales of this thread's rows for a K block of the group, multiplied with that of the columns where all have
    /// the same.
    fn block_rows(&self, within: usize) -> Vec<F32<'k>> {
        let column = self.column_scales.as_ref().map(|column| column[within].get());
        let scale = |row: &Vec<Var<'k, f32>>| match column {
            Some(column) => row[within].get() * column,
            None => row[within].get(),
        };
        self.row_scales.iter().map(scale).collect()
    }

    /// The scales of this warpgroup's columns for a K block of the group, where there are several.
    fn block_columns(&self, within: U32<'k>) -> Vec<F32<'k>> {
        let (per_scale, columns) = (self.block.cfg.columns_per_scale(), self.block.cfg.shape().columns());
        match self.column_scales {
            Some(_) => Vec::new(),
            None => self.scales.columns(within, self.first_column / per_scale, columns / per_scale),
        }
    }

    /// All K blocks of a tile, of those of its M-subtiles that have rows of the tile's group. The first is at the
    /// tile's `first_row`.
    fn multiply_rows(&self, m_subtiles: u32, first_row: U32<'k>, blocks: [U32<'k>; 2]) {
        let last = first_row + (m_subtiles - 1) * M_SUBTILE_STRIDE;
        let fewer = || match m_subtiles {
            1 => self.skip_tile(),
            _ => self.multiply_rows(m_subtiles - 1, first_row, blocks),
        };
        self.block.k.if_else(self.has_rows(last), || self.multiply_tile(m_subtiles, blocks), fewer);
    }

    /// All K blocks of a tile, of its first M-subtiles.
    fn multiply_tile(&self, m_subtiles: u32, [first, k_blocks]: [U32<'k>; 2]) {
        let k = self.block.k;
        if let Some(scales) = self.scale_operands {
            let whole = k_blocks & !1u32;
            k.for_(0, whole, 2, |_| (0..2).for_each(|_| self.multiply_1d1d(scales)));
            return k.for_(whole, k_blocks, 1, |_| self.multiply_1d1d(scales));
        }
        if self.accumulators.len() > 1 {
            return self.multiply_subtiles(m_subtiles as usize, [first, k_blocks]);
        }
        let unroll = self.block.cfg.unroll();
        // Unrolled blocks. While the tensor core works on the last, the next scales are loaded.
        let unrolled = |first: U32<'k>| {
            for later in 0..unroll {
                let columns = || self.block_columns(first % self.group() + later);
                self.multiply_block(later as usize, columns, || {
                    let next = first + unroll;
                    if later + 1 == unroll {
                        self.load_next_scales(next, k_blocks);
                    }
                });
            }
        };
        if self.block.cfg.pads_k() {
            return k.for_(first, k_blocks, unroll, unrolled);
        }
        // Tests between unrolled blocks would cost 2 to 4%: the rest goes one by one, and the scales of the others move
        // up.
        let whole = k_blocks - k_blocks % unroll;
        k.for_(0, whole, unroll, unrolled);
        k.for_(whole, k_blocks, 1, |block| {
            let within = block % self.group();
            self.multiply_block(0, || self.block_columns(within), || {});
            self.move_scales_up();
        });
    }

    /// Releases all stages of a tile in which no row of this warpgroup belongs to the tile's group.
    fn skip_tile(&self) {
        let (k, k_blocks) = (self.block.k, self.block.padded_blocks());
        k.for_(0, k_blocks, 1, |block| {
            self.cursor.wait_full();
            // No lane may still wait for what another has released.
            k.sync_warp();
            self.stages.release(k, self.cursor.stage());
            self.advance();
            let next = block + 1;
            k.if_((next % self.group()).eq(0) & next.lt(k_blocks), || {
                self.scales.release();
                self.scales.wait();
            });
        });
    }

    /// One K block of a 1D1D tile, where every product has a scale of its own, a product as well. While one warpgroup
    /// promotes, the tensor core works for the other.
    fn multiply_1d1d(&self, scales: [StageOperand<'k>; 2]) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        let [a, b] = self.operands.map(StageOperand::get);
        issue_stage(k, fp8::types(cfg.e5m2), &self.products, || {
            scales_1d1d::multiply(k, &self.product_scales, scales.map(StageOperand::get));
            [a, b]
        });
        self.advance();
        k.wgmma_wait(0);
        self.stages.release(k, stage);
        let products = self.products.iter().zip(&self.product_scales);
        for (accumulator, (product, scale)) in self.accumulators[0].iter().zip(products) {
            accumulator.fma(product.live(), scale.live());
        }
    }

    /// Loads the scales of the K blocks from `next` on, if there are any.
    fn load_next_scales(&self, next: U32<'k>, k_blocks: U32<'k>) {
        let k = self.block.k;
        k.if_(next.lt(k_blocks), || {
            let within = next % self.group();
            k.if_(within.eq(0), || self.scales.release());
            self.load_scales(within);
        });
    }

    /// Makes the scales of the next K block those of the first.
    fn move_scales_up(&self) {
        for scales in self.row_scales.iter().chain(&self.column_scales) {
            for (to, from) in scales.iter().zip(&scales[1..]) {
                to.set(from.live());
            }
        }
    }

    /// One K block, with the `nth` of the loaded row scales. While the tensor core works, `columns` gives the scales of
    /// the columns where there are several, and `ahead` prepares what comes next.
    fn multiply_block(&self, nth: usize, columns: impl FnOnce() -> Vec<F32<'k>>, ahead: impl FnOnce()) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        self.cursor.wait_full();
        let rows = self.block_rows(nth);
        let (stage, operands) = (self.cursor.stage(), self.operands.map(StageOperand::get));
        issue_stage(k, fp8::types(cfg.e5m2), &self.products, || operands);
        let columns = columns();
        self.advance();
        ahead();
        k.wgmma_wait(0);
        self.stages.release(k, stage);
        promote(cfg, &self.accumulators[0], &self.products, [rows[0], rows[1]], &columns);
    }

    /// All K blocks of a tile of several M-subtiles, of which there is at least one. The step into the next iteration
    /// takes a while: it is taken while the tensor core works on the first M-subtile, so an iteration ends between a
    /// block and the issue of the next.
    fn multiply_subtiles(&self, m_subtiles: usize, [first, k_blocks]: [U32<'k>; 2]) {
        let k = self.block.k;
        let (block, is_full) = (k.var_from(first), k.var(false));
        let begin = || {
            k.if_(!is_full.get(), || self.cursor.wait_full());
            let operands = self.operands.map(StageOperand::get);
            issue_stage(k, fp8::types(self.block.cfg.e5m2), &self.products, || operands);
        };
        begin();
        k.while_(
            || {
                let last = self.block.cfg.unroll() - 1;
                for later in 0..last {
                    self.complete_subtiles(m_subtiles, (block.get(), later), is_full, || {});
                    begin();
                }
                self.complete_subtiles(m_subtiles, (block.get(), last), is_full, || {
                    block.set(block.live() + last + 1);
                    self.advance_scales(block.get(), k_blocks);
                });
                block.live().lt(k_blocks)
            },
            begin,
        );
    }

    /// The rest of a K block whose first M-subtile is issued, so much `later` than the `first` of its iteration. While
    /// the tensor core works on the last M-subtile, `ahead` prepares what comes next, and the next stage is tested for
    /// being full.
    fn complete_subtiles(
        &self,
        m_subtiles: usize,
        (first, later): (U32<'k>, u32),
        is_full: Var<'k, bool>,
        ahead: impl FnOnce(),
    ) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let (stage, [a, b]) = (self.cursor.stage(), self.operands.map(StageOperand::get));
        let (rows, columns) =
            (self.block_rows(later as usize), self.block_columns(first % self.group() + later));
        self.advance();
        let promote = |nth: usize| {
            let rows = [rows[2 * nth], rows[2 * nth + 1]];
            promote(cfg, &self.accumulators[nth], &self.products, rows, &columns);
        };
        let last = m_subtiles - 1;
        for subtile in 0..last {
            k.wgmma_wait(0);
            promote(subtile);
            let rows_below = (subtile as u32 + 1) * M_SUBTILE_STRIDE;
            issue_stage(k, fp8::types(cfg.e5m2), &self.products, || [a.advance(rows_below * BLOCK_K), b]);
        }
        ahead();
        is_full.set(self.cursor.is_full());
        k.wgmma_wait(0);
        self.stages.release(k, stage);
        promote(last);
    }

    /// Loads the scales of an iteration that begins with the K block `next`, without a branch around the loads: behind
    /// a tile's last block, what they give is not used.
    fn advance_scales(&self, next: U32<'k>, k_blocks: U32<'k>) {
        let within = next % self.group();
        self.block.k.if_(within.eq(0) & next.lt(k_blocks), || {
            self.scales.release();
            self.scales.wait();
        });
        self.load_waited_scales(within);
    }

    /// Moves to the next stage.
    fn advance(&self) {
        self.cursor.advance();
        let operands = self.operands.iter().chain(self.scale_operands.iter().flatten());
        operands.for_each(|operand| operand.set_stage(self.cursor.stage()));
    }
}

/// `accumulators += scale * products`: the second level of accumulation, in full FP32. Without column scales, the row
/// scales are all there is.
fn promote<'k>(
    cfg: &Config,
    accumulators: &[Var<'k, f32>],
    products: &[Var<'k, f32>],
    row_scales: [F32<'k>; 2],
    column_scales: &[F32<'k>],
) {
    let per_scale = cfg.columns_per_scale() as usize / 2;
    let scaled = accumulators.chunks(per_scale).zip(products.chunks(per_scale));
    for (nth, (accumulators, products)) in scaled.enumerate() {
        let scales = match column_scales.get(nth) {
            Some(&column) => row_scales.map(|row| row * column),
            None => row_scales,
        };
        for (i, (accumulator, product)) in accumulators.iter().zip(products).enumerate() {
            accumulator.fma(product.live(), scales[(i / 2) % 2]);
        }
    }
}
