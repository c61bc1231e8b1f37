//! The warps of the many-row kernel that multiply.

use super::{Block, Config, scales_1d1d};
use crate::BLOCK_K;
use crate::common::pipeline::Cursor;
use crate::gemm::operand::fp8;
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::Release;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::stream_k::FixupSlot;
use crate::gemm::sm90::mma::multiply_stage;
use crate::gemm::sm90::scale_pipeline::ScaleConsumer;
use crate::gemm::sm90::warpgroups::M_SUBTILE_STRIDE;
use oxigemm_ptx::wgmma::{Descriptor, DescriptorVar, Swizzle};
use oxigemm_ptx::{F32, Pred, Shared, U32, Var};

/// A tile, as a math warp is told of it.
pub(super) struct ConsumerTileInfo<'k> {
    /// Its first row and column of D.
    pub at: [U32<'k>; 2],
    /// The row of D behind the group's last, where there are groups.
    pub end: Option<U32<'k>>,
    /// The slab that these are rows of, where D is stored slab by slab.
    pub slab: Option<U32<'k>>,
    /// The group, where its sums are finished.
    pub group: Option<U32<'k>>,
    /// Its blocks of K.
    pub k_blocks: U32<'k>,
    /// Where sums of the part that was computed may be left, where tiles are shared out along K.
    pub fixup: Option<FixupSlot<'k>>,
}

/// An operand in the first stage, and in the one that is multiplied next.
#[derive(Clone, Copy)]
struct Operand<'k> {
    first: Descriptor<'k>,
    next: DescriptorVar<'k>,
    stage_bytes: u32,
    advance: fn(Descriptor<'k>, U32<'k>) -> Descriptor<'k>,
}

impl<'k> Operand<'k> {
    fn new(first: Descriptor<'k>, stage_bytes: u32) -> Self {
        Operand { first, next: first.var(), stage_bytes, advance: Descriptor::advance }
    }

    /// The same of scales.
    fn of_scales(first: Descriptor<'k>, stage_bytes: u32) -> Self {
        Operand { advance: Descriptor::advance_start, ..Self::new(first, stage_bytes) }
    }

    fn turn_to(&self, stage: U32<'k>) {
        self.next.set((self.advance)(self.first, stage * self.stage_bytes));
    }

    fn get(self) -> Descriptor<'k> {
        self.next.get()
    }
}

/// A math warp's state.
pub(super) struct Consumer<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// The first column of the part of a tile that the warpgroup computes.
    first_column: U32<'k>,
    /// A and B.
    operands: [Operand<'k>; 2],
    /// Their scales, where the tensor core [multiplies](outer) those too.
    scale_operands: Option<[Operand<'k>; 2]>,
    cursor: Cursor<'k>,
    /// Where the scale of this thread's first row lies, and how far below it the others are: two for each wave.
    first_scale: U32<'k>,
    below: Vec<u32>,
    /// The scales of those rows for the blocks that come next, and those of the columns if all have the same.
    row_scales: Vec<Vec<Var<'k, f32>>>,
    column_scales: Option<Vec<Var<'k, f32>>>,
    pub scales: ScaleConsumer<'k>,
    /// The products of a wave.
    products: Vec<Var<'k, f32>>,
    /// Their scales, where each has its own.
    product_scales: Vec<Var<'k, f32>>,
    /// The sums of each wave.
    pub sums: Vec<Vec<Var<'k, f32>>>,
    release: Release<'k>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    pub fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg, warp, lane) = (block.k, block.cfg, block.warp, block.lane);
        let (m_subtiles, columns) = (cfg.shape().m_subtiles(), cfg.shape().columns());
        let zero = k.constant(0);
        let [first_row, first_column] = cfg.shape().part_of(warp >> 2);
        // The row of this thread's first accumulators within a 64-row product.
        let row = (warp & 3) * 16 + (lane >> 2);
        let scales = block.scales.reader(lane);
        let operand = |tile: Shared<'k>, first: U32<'k>, rows: u32| {
            Operand::new(Descriptor::k_major(tile.at(first * BLOCK_K), Swizzle::B128), rows * BLOCK_K)
        };
        let operands = [
            operand(block.a(zero), first_row, cfg.block_m),
            operand(block.b(zero), first_column, cfg.block_n),
        ];
        let each = cfg.scales_of_b == ScalesOfB::Rows;
        let scale_operands = each.then(|| {
            let [rows, columns] = block.scale_operands(zero);
            let [behind_rows, behind_columns] = block.zeros_behind_scale_operands();
            let rows = scales_1d1d::descriptor(rows, behind_rows, first_row);
            let columns = scales_1d1d::descriptor(columns, behind_columns, first_column);
            [rows, columns].map(|first| Operand::of_scales(first, cfg.scale_operand_bytes()))
        });
        let few = || (0..cfg.unroll()).map(|_| k.var(0.0f32)).collect();
        Consumer {
            block,
            first_column,
            operands,
            scale_operands,
            cursor: block.pipe.reader(),
            first_scale: scales.row_offset(first_row + row),
            below: (0..m_subtiles)
                .flat_map(|subtile| [subtile * M_SUBTILE_STRIDE, subtile * M_SUBTILE_STRIDE + 8])
                .collect(),
            row_scales: (0..if each { 0 } else { 2 * m_subtiles }).map(|_| few()).collect(),
            column_scales: (cfg.scales().columns == 1).then(few),
            scales,
            products: k.fragment(columns as usize / 2),
            product_scales: k.fragment(if each { columns as usize / 2 } else { 0 }),
            sums: (0..m_subtiles).map(|_| k.fragment(columns as usize / 2)).collect(),
            release: Release::new(k, &block.place, &block.pipe, lane),
        }
    }

    /// Blocks of K whose scales come together.
    fn group(&self) -> u32 {
        self.block.cfg.scale_blocks()
    }

    /// The current tile.
    pub fn tile(&self) -> ConsumerTileInfo<'k> {
        let k_blocks = self.block.params.k_blocks;
        let tile = |at, end| ConsumerTileInfo { at, end, slab: None, group: None, k_blocks, fixup: None };
        match self.block.cfg.grouping {
            Grouping::Dense if self.block.tail.is_some() => {
                let (at, part) = self.scales.place_and_part();
                ConsumerTileInfo { fixup: Some(part.fixup), ..tile(at, None) }
            }
            Grouping::Dense => tile(self.scales.place(), None),
            Grouping::Rows if self.block.cfg.d_in_slabs => {
                let (at, [end, slab]) = self.scales.place_and_whose();
                ConsumerTileInfo { slab: Some(slab), ..tile(at, Some(end)) }
            }
            Grouping::Rows if self.block.cfg.is_fused() => {
                let (at, [end, group]) = self.scales.place_and_whose();
                ConsumerTileInfo { group: Some(group), ..tile(at, Some(end)) }
            }
            Grouping::Rows => {
                let (at, end) = self.scales.place_in_group();
                tile(at, Some(end))
            }
            Grouping::K => {
                let (at, end, k_blocks) = self.scales.place_in_k_group();
                ConsumerTileInfo { k_blocks, ..tile(at, Some(end)) }
            }
        }
    }

    /// The blocks of K of the current tile, those behind the end of K included: from one on to before another. They are counted from the
    /// beginning of the first one's group of scales.
    pub fn blocks(&self) -> [U32<'k>; 2] {
        let zero = self.block.k.constant(0);
        match self.block.cfg.grouping {
            Grouping::Dense if self.block.tail.is_some() => {
                let (_, part) = self.scales.place_and_part();
                [part.first, part.end]
            }
            Grouping::Dense | Grouping::Rows => [zero, self.block.padded_blocks()],
            Grouping::K => [zero, self.tile().k_blocks],
        }
    }

    /// Loads the scales that a tile begins with.
    pub fn load_first_scales(&self) {
        let zero = self.block.k.constant(0);
        if self.block.tail.is_none() {
            return self.load_scales(zero);
        }
        self.scales.wait();
        self.load_waited_scales(self.blocks()[0]);
    }

    /// Whether the part of the current tile from its `first_row` on has rows of the tile's group.
    pub fn has_rows(&self, first_row: U32<'k>) -> Pred<'k> {
        let (tile, end) = self.scales.place_in_group();
        (tile[0] + first_row).lt(end)
    }

    /// Loads the scales of a few blocks, from the `within`-th of a group on, or waits for what else a tile begins with.
    pub fn load_scales(&self, within: U32<'k>) {
        match (self.block.cfg.scales_of_b, self.block.cfg.grouping) {
            (ScalesOfB::Blocks, _) => self.block.k.if_(within.eq(0), || self.scales.wait()),
            // How many blocks of K there are; else a tile's place is told before its first stage.
            (ScalesOfB::Rows, Grouping::K) => return self.scales.wait(),
            (ScalesOfB::Rows, _) => return,
        }
        self.load_waited_scales(within);
    }

    /// The same of a group that is there.
    fn load_waited_scales(&self, within: U32<'k>) {
        self.scales.load_rows(within, self.first_scale, &self.below, &self.row_scales);
        if let Some(vars) = &self.column_scales {
            vars.iter().zip(self.scales.column(within, vars.len())).for_each(|(var, scale)| var.set(scale));
        }
    }

    /// The scales of this thread's rows for a block of the group, which those of the columns are part of where all
    /// have the same.
    fn block_rows(&self, within: usize) -> Vec<F32<'k>> {
        let column = self.column_scales.as_ref().map(|column| column[within].get());
        let scale = |row: &Vec<Var<'k, f32>>| match column {
            Some(column) => row[within].get() * column,
            None => row[within].get(),
        };
        self.row_scales.iter().map(scale).collect()
    }

    /// The scales of this warpgroup's columns for a block of the group, where there are several.
    fn block_columns(&self, within: U32<'k>) -> Vec<F32<'k>> {
        let (per_scale, columns) = (self.block.cfg.columns_per_scale(), self.block.cfg.shape().columns());
        match self.column_scales {
            Some(_) => Vec::new(),
            None => self.scales.columns(within, self.first_column / per_scale, columns / per_scale),
        }
    }

    /// All blocks of a tile, of those of `m_subtiles` waves that have rows of the tile's group. The first is at the tile's `first_row`.
    pub fn multiply_rows(&self, m_subtiles: u32, first_row: U32<'k>, blocks: [U32<'k>; 2]) {
        let last = first_row + (m_subtiles - 1) * M_SUBTILE_STRIDE;
        let fewer = || match m_subtiles {
            1 => self.skip_tile(),
            _ => self.multiply_rows(m_subtiles - 1, first_row, blocks),
        };
        self.block.k.if_else(self.has_rows(last), || self.multiply_tile(m_subtiles, blocks), fewer);
    }

    /// All blocks of a tile, of its first `m_subtiles`.
    pub fn multiply_tile(&self, m_subtiles: u32, [first, k_blocks]: [U32<'k>; 2]) {
        let k = self.block.k;
        if let Some(scales) = self.scale_operands {
            let whole = k_blocks & !1u32;
            k.for_(0, whole, 2, |_| (0..2).for_each(|_| self.multiply_each(scales)));
            return k.for_(whole, k_blocks, 1, |_| self.multiply_each(scales));
        }
        if self.sums.len() > 1 {
            return self.multiply_subtiles(m_subtiles as usize, [first, k_blocks]);
        }
        let unroll = self.block.cfg.unroll();
        if self.block.cfg.pads_k() {
            return k.for_(first, k_blocks, unroll, |first| self.multiply_blocks(first, k_blocks));
        }
        // Tests between unrolled blocks would cost 2 to 4%: what is left over goes one by one.
        let whole = k_blocks - k_blocks % unroll;
        k.for_(0, whole, unroll, |first| self.multiply_blocks(first, k_blocks));
        k.for_(whole, k_blocks, 1, |block| self.multiply_single(block % self.group()));
    }

    /// Lets go of all blocks of a tile in which no row of this warpgroup belongs to the tile's group.
    pub fn skip_tile(&self) {
        let (k, k_blocks) = (self.block.k, self.block.padded_blocks());
        k.for_(0, k_blocks, 1, |block| {
            self.cursor.wait_full();
            // No lane may still wait for what another has let go of.
            k.sync_warp();
            self.release.stage(k, self.cursor.stage());
            self.advance();
            let next = block + 1;
            k.if_((next % self.group()).eq(0) & next.lt(k_blocks), || {
                self.scales.release();
                self.scales.wait();
            });
        });
    }

    /// As many blocks as are unrolled. While the tensor core works on the last, the next scales are loaded.
    fn multiply_blocks(&self, first: U32<'k>, k_blocks: U32<'k>) {
        let unroll = self.block.cfg.unroll();
        for later in 0..unroll {
            self.cursor.wait_full();
            let rows = self.block_rows(later as usize);
            let columns = || self.block_columns(first % self.group() + later);
            self.multiply_block(&rows, columns, || {
                let next = first + unroll;
                if later + 1 == unroll {
                    self.load_next_scales(next, k_blocks);
                }
            });
        }
    }

    /// One of the last blocks of a tile, which do not fill the unrolled loop; the scales of the others move up.
    fn multiply_single(&self, within: U32<'k>) {
        self.cursor.wait_full();
        let rows = self.block_rows(0);
        self.multiply_block(&rows, || self.block_columns(within), || {});
        self.move_scales_up();
    }

    /// One block of K where every product has a scale of its own, a product as well. While one warpgroup promotes, the tensor core works
    /// for the other.
    fn multiply_each(&self, scales: [Operand<'k>; 2]) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        let [a, b] = self.operands.map(Operand::get);
        k.wgmma_fence();
        scales_1d1d::multiply(k, &self.product_scales, scales.map(Operand::get));
        multiply_stage(k, fp8::types(cfg.e5m2), &self.products, a, b);
        k.wgmma_commit();
        self.advance();
        k.wgmma_wait(0);
        self.release.stage(k, stage);
        for ((sum, product), scale) in self.sums[0].iter().zip(&self.products).zip(&self.product_scales) {
            sum.fma(product.live(), scale.live());
        }
    }

    /// Loads the scales of the blocks from `next` on, if there are any.
    fn load_next_scales(&self, next: U32<'k>, k_blocks: U32<'k>) {
        let k = self.block.k;
        k.if_(next.lt(k_blocks), || {
            let within = next % self.group();
            k.if_(within.eq(0), || self.scales.release());
            self.load_scales(within);
        });
    }

    /// Makes the scales of the next block those of the first.
    fn move_scales_up(&self) {
        for scales in self.row_scales.iter().chain(&self.column_scales) {
            for (to, from) in scales.iter().zip(&scales[1..]) {
                to.set(from.live());
            }
        }
    }

    /// One block of K. While the tensor core works, `columns` gives the scales of the columns where there are
    /// several, and `ahead` prepares what comes next.
    fn multiply_block(&self, rows: &[F32<'k>], columns: impl FnOnce() -> Vec<F32<'k>>, ahead: impl FnOnce()) {
        let (k, cfg, stage) = (self.block.k, self.block.cfg, self.cursor.stage());
        self.issue(self.operands.map(Operand::get), 0);
        let columns = columns();
        self.advance();
        ahead();
        k.wgmma_wait(0);
        self.release.stage(k, stage);
        promote(cfg, &self.sums[0], &self.products, [rows[0], rows[1]], &columns);
    }

    /// Has the tensor core compute the products of a wave.
    fn issue(&self, [a, b]: [Descriptor<'k>; 2], subtile: u32) {
        let k = self.block.k;
        k.wgmma_fence();
        let a = a.advance(subtile * M_SUBTILE_STRIDE * BLOCK_K);
        multiply_stage(k, fp8::types(self.block.cfg.e5m2), &self.products, a, b);
        k.wgmma_commit();
    }

    /// All blocks of a tile of several waves, of which there is at least one. The step into the next round takes a while: it is taken
    /// while the tensor core works on the first wave, so a round ends between a block and the issue of the next.
    fn multiply_subtiles(&self, m_subtiles: usize, [first, k_blocks]: [U32<'k>; 2]) {
        let k = self.block.k;
        let (block, is_full) = (k.var_from(first), k.var(false));
        let begin = || {
            k.if_(!is_full.get(), || self.cursor.wait_full());
            self.issue(self.operands.map(Operand::get), 0);
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

    /// The rest of a block whose first wave is issued, so much `later` than the `first` of its round. While the tensor core works on the
    /// last wave, `ahead` prepares what comes next, and the next stage is asked whether it is full.
    fn complete_subtiles(
        &self,
        m_subtiles: usize,
        (first, later): (U32<'k>, u32),
        is_full: Var<'k, bool>,
        ahead: impl FnOnce(),
    ) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let (stage, operands) = (self.cursor.stage(), self.operands.map(Operand::get));
        let (rows, columns) =
            (self.block_rows(later as usize), self.block_columns(first % self.group() + later));
        self.advance();
        let promote = |subtile: usize| {
            promote(
                cfg,
                &self.sums[subtile],
                &self.products,
                [rows[2 * subtile], rows[2 * subtile + 1]],
                &columns,
            );
        };
        let last = m_subtiles - 1;
        for subtile in 0..last {
            k.wgmma_wait(0);
            promote(subtile);
            self.issue(operands, subtile as u32 + 1);
        }
        ahead();
        is_full.set(self.cursor.is_full());
        k.wgmma_wait(0);
        self.release.stage(k, stage);
        promote(last);
    }

    /// Loads the scales of a round that begins with the block `next`, without a branch around the loads: behind a tile's last block,
    /// what they give is not used.
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
        operands.for_each(|operand| operand.turn_to(self.cursor.stage()));
    }
}

/// `sums += scale * products`: the second level of accumulation, in full FP32. Without column scales, the row
/// scales are all there is.
fn promote<'k>(
    cfg: &Config,
    sums: &[Var<'k, f32>],
    products: &[Var<'k, f32>],
    row_scales: [F32<'k>; 2],
    column_scales: &[F32<'k>],
) {
    let per_group = cfg.columns_per_scale() as usize / 2;
    for (group, (sums, products)) in sums.chunks(per_group).zip(products.chunks(per_group)).enumerate() {
        let scales = match column_scales.get(group) {
            Some(&column) => row_scales.map(|row| row * column),
            None => row_scales,
        };
        for (i, (sum, product)) in sums.iter().zip(products).enumerate() {
            sum.fma(product.live(), scales[(i / 2) % 2]);
        }
    }
}
