//! The warps of the many-row kernel that multiply.

use super::{Block, Config};
use crate::BLOCK_K;
use crate::cluster::Release;
use crate::fp8;
use crate::grouping::Grouping;
use crate::params::ScalesOfB;
use crate::pipeline::Cursor;
use crate::promote::multiply_stage;
use crate::scales::{GROUP, ScaleReader};
use oxigemm_ptx::wgmma::{Descriptor, DescriptorVar, Swizzle};
use oxigemm_ptx::{F32, Pred, U32, Var};

/// How many times the scales of sixteen columns are loaded before the products are there, where every column has its own.
const QUADS_AHEAD: u32 = 2;

/// A tile, as a math warp is told of it.
pub(super) struct MathTile<'k> {
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
}

/// A math warp's state.
pub(super) struct Math<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// The first column of the part of a tile that the warpgroup computes.
    first_column: U32<'k>,
    /// The operands in the first stage, and in the cursor's.
    operands: [Descriptor<'k>; 2],
    current: [DescriptorVar<'k>; 2],
    cursor: Cursor<'k>,
    /// Where the scale of this thread's first row lies, and how far below it the others are: two for each wave.
    first_scale: U32<'k>,
    below: Vec<u32>,
    /// The scales of those rows for the blocks that come next, and those of the columns if all have the same.
    row_scales: Vec<Vec<Var<'k, f32>>>,
    column_scales: Option<Vec<Var<'k, f32>>>,
    pub scales: ScaleReader<'k>,
    /// The products of a wave; where promoting them takes long, also those of the next.
    products: Vec<Vec<Var<'k, f32>>>,
    /// The sums of each wave.
    pub sums: Vec<Vec<Var<'k, f32>>>,
    release: Release<'k>,
}

impl<'k, 'b, 'c> Math<'k, 'b, 'c> {
    pub fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg, warp, lane) = (block.k, block.cfg, block.warp, block.lane);
        let (waves, columns) = (cfg.shape().waves(), cfg.shape().columns());
        let zero = k.constant(0);
        let [first_row, first_column] = cfg.shape().part_of(warp >> 2);
        // The row of this thread's first accumulators within a 64-row product.
        let row = (warp & 3) * 16 + (lane >> 2);
        let scales = block.scales.reader(lane);
        let operands = [
            Descriptor::k_major(block.a(zero).at(first_row * BLOCK_K), Swizzle::B128),
            Descriptor::k_major(block.b(zero).at(first_column * BLOCK_K), Swizzle::B128),
        ];
        let buffers = if cfg.overlaps() { 2 } else { 1 };
        let few = || (0..Config::UNROLL).map(|_| k.var(0.0f32)).collect();
        Math {
            block,
            first_column,
            operands,
            current: operands.map(Descriptor::var),
            cursor: block.pipe.reader(),
            first_scale: scales.row_offset(first_row + row),
            below: (0..waves).flat_map(|wave| [wave * 64, wave * 64 + 8]).collect(),
            row_scales: (0..2 * waves).map(|_| few()).collect(),
            column_scales: (cfg.scales().columns == 1).then(few),
            scales,
            products: (0..buffers).map(|_| k.fragment(columns as usize / 2)).collect(),
            sums: (0..waves).map(|_| k.fragment(columns as usize / 2)).collect(),
            release: Release::new(k, &block.place, &block.pipe, lane),
        }
    }

    /// The current tile.
    pub fn tile(&self) -> MathTile<'k> {
        let k_blocks = self.block.params.k_blocks;
        let tile = |at, end| MathTile { at, end, slab: None, group: None, k_blocks };
        match self.block.cfg.grouping {
            Grouping::Dense => tile(self.scales.place(), None),
            Grouping::Rows if self.block.cfg.d_in_slabs => {
                let (at, [end, slab]) = self.scales.place_and_whose();
                MathTile { slab: Some(slab), ..tile(at, Some(end)) }
            }
            Grouping::Rows if self.block.cfg.is_fused() => {
                let (at, [end, group]) = self.scales.place_and_whose();
                MathTile { group: Some(group), ..tile(at, Some(end)) }
            }
            Grouping::Rows => {
                let (at, end) = self.scales.place_in_group();
                tile(at, Some(end))
            }
            Grouping::K => {
                let (at, end, k_blocks) = self.scales.place_in_k_group();
                MathTile { k_blocks, ..tile(at, Some(end)) }
            }
        }
    }

    /// The blocks of K of the current tile, those behind the end of K included.
    pub fn k_blocks(&self) -> U32<'k> {
        match self.block.cfg.grouping {
            Grouping::Dense | Grouping::Rows => self.block.padded_blocks(),
            Grouping::K => self.tile().k_blocks,
        }
    }

    /// Whether the part of the current tile from its `first_row` on has rows of the tile's group.
    pub fn has_rows(&self, first_row: U32<'k>) -> Pred<'k> {
        let (tile, end) = self.scales.place_in_group();
        (tile[0] + first_row).lt(end)
    }

    /// Loads the scales of a few blocks, from the `within`-th of a group on.
    pub fn load_scales(&self, within: U32<'k>) {
        self.block.k.if_(within.eq(0), || self.scales.wait());
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

    /// The scales of this warpgroup's columns for a block of the group, where there are several; in the order of the products
    /// where each column has its own.
    fn block_columns(&self, within: U32<'k>) -> Vec<F32<'k>> {
        let (per_scale, columns) = (self.block.cfg.columns_per_scale(), self.block.cfg.shape().columns());
        match (self.block.cfg.scales_of_b, &self.column_scales) {
            (ScalesOfB::Rows, _) => {
                let quads = self.scales.quads(within, self.first_column);
                (0..columns / 16).flat_map(|nth| quads.load(nth)).collect()
            }
            (ScalesOfB::Blocks, Some(_)) => Vec::new(),
            (ScalesOfB::Blocks, None) => {
                self.scales.columns(within, self.first_column / per_scale, columns / per_scale)
            }
        }
    }

    /// All blocks of a tile.
    pub fn multiply_tile(&self, k_blocks: U32<'k>) {
        let k = self.block.k;
        if self.block.cfg.pads_k() {
            return k.for_(0, k_blocks, Config::UNROLL, |first| self.multiply_blocks(first, k_blocks));
        }
        // Tests between unrolled blocks would cost 2 to 4%: what is left over goes one by one.
        let whole = k_blocks - k_blocks % Config::UNROLL;
        if self.block.cfg.overlaps() {
            k.for_(0, whole, Config::UNROLL, |first| {
                self.multiply_overlapped(first % GROUP, Config::UNROLL);
                self.load_next_scales(first + Config::UNROLL, k_blocks);
            });
            k.for_(whole, k_blocks, 1, |block| {
                self.multiply_overlapped(block % GROUP, 1);
                self.move_scales_up();
            });
            return;
        }
        k.for_(0, whole, Config::UNROLL, |first| self.multiply_blocks(first, k_blocks));
        k.for_(whole, k_blocks, 1, |block| self.multiply_single(block % GROUP));
    }

    /// Lets go of all blocks of a tile in which no row of this warpgroup belongs to the tile's group.
    pub fn pass_tile_by(&self) {
        let (k, k_blocks) = (self.block.k, self.block.padded_blocks());
        k.for_(0, k_blocks, 1, |block| {
            self.cursor.wait_full();
            // No lane may still wait for what another has let go of.
            k.sync_warp();
            self.release.stage(k, self.cursor.stage());
            self.advance();
            let next = block + 1;
            k.if_((next % GROUP).eq(0) & next.lt(k_blocks), || {
                self.scales.release();
                self.scales.wait();
            });
        });
    }

    /// As many blocks as are unrolled. While the tensor core works on the last, the next scales are loaded.
    fn multiply_blocks(&self, first: U32<'k>, k_blocks: U32<'k>) {
        let unroll = Config::UNROLL;
        for later in 0..unroll {
            self.cursor.wait_full();
            let rows = self.block_rows(later as usize);
            let columns = || self.block_columns(first % GROUP + later);
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

    /// Some blocks from the `within`-th of a group on. While one is promoted, the tensor core works on the next.
    fn multiply_overlapped(&self, within: U32<'k>, blocks: u32) {
        let k = self.block.k;
        let buffer = |block: u32| self.products[block as usize % self.products.len()].as_slice();
        self.cursor.wait_full();
        self.issue(buffer(0));
        for block in 0..blocks {
            let stage = self.cursor.stage();
            let is_last = block + 1 == blocks;
            self.advance();
            if !is_last {
                self.cursor.wait_full();
                self.issue(buffer(block + 1));
            }
            let columns = self.scales.quads(within + block, self.first_column);
            let ahead: Vec<_> = (0..QUADS_AHEAD).map(|nth| columns.load(nth)).collect();
            k.wgmma_wait(u32::from(!is_last));
            self.release.stage(k, stage);
            let rows = self.block_rows(block as usize);
            let columns = |nth: u32| ahead.get(nth as usize).copied().unwrap_or_else(|| columns.load(nth));
            for (sums, rows) in self.sums.iter().zip(rows.chunks(2)) {
                promote_each(self.block.cfg, sums, buffer(block), [rows[0], rows[1]], columns);
            }
        }
    }

    /// Has the current stage multiplied, of which the warpgroup has a single wave.
    fn issue(&self, products: &[Var<'k, f32>]) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let [a, b] = self.current.map(DescriptorVar::get);
        k.wgmma_fence();
        multiply_stage(k, fp8::types(cfg.e5m2), products, a, b);
        k.wgmma_commit();
    }

    /// Loads the scales of the blocks from `next` on, if there are any.
    fn load_next_scales(&self, next: U32<'k>, k_blocks: U32<'k>) {
        let k = self.block.k;
        k.if_(next.lt(k_blocks), || {
            let within = next % GROUP;
            k.if_(within.eq(0), || {
                // Scales of columns have only just been read.
                if self.column_scales.is_none() {
                    k.sync_warp();
                }
                self.scales.release();
            });
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
        let (k, cfg) = (self.block.k, self.block.cfg);
        let stage = self.cursor.stage();
        let [a, b] = self.current.map(DescriptorVar::get);
        let mut first_wave = Some((columns, ahead));
        let mut columns = Vec::new();
        for (wave, (sums, rows)) in self.sums.iter().zip(rows.chunks(2)).enumerate() {
            k.wgmma_fence();
            let a = a.advance(wave as u32 * 64 * BLOCK_K);
            multiply_stage(k, fp8::types(cfg.e5m2), &self.products[0], a, b);
            k.wgmma_commit();
            if cfg.scales_of_b == ScalesOfB::Rows {
                // Else the assembler has the last product wait for what is loaded behind it.
                k.sync_warp();
            }
            if let Some((load_columns, ahead)) = first_wave.take() {
                columns = load_columns();
                self.advance();
                ahead();
            }
            k.wgmma_wait(0);
            if wave + 1 == self.sums.len() {
                self.release.stage(k, stage);
            }
            let rows = [rows[0], rows[1]];
            match cfg.scales_of_b {
                ScalesOfB::Blocks => promote(cfg, sums, &self.products[0], rows, &columns),
                ScalesOfB::Rows => {
                    let quad = |nth: u32| std::array::from_fn(|i| columns[nth as usize * 4 + i]);
                    promote_each(cfg, sums, &self.products[0], rows, quad);
                }
            }
        }
    }

    /// Moves to the next stage.
    fn advance(&self) {
        self.cursor.advance();
        let (stage, cfg) = (self.cursor.stage(), self.block.cfg);
        for ((current, first), rows) in self.current.iter().zip(self.operands).zip([cfg.block_m, cfg.block_n])
        {
            current.set(first.advance(stage * (rows * BLOCK_K)));
        }
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

/// The same where every column has a scale: of each eight columns a thread has two neighbours, in two rows.
///
/// Products times columns first are 2% faster than rows times columns, but the assembler keeps more of them at a time: too many
/// where groups are along K.
fn promote_each<'k>(
    cfg: &Config,
    sums: &[Var<'k, f32>],
    products: &[Var<'k, f32>],
    row_scales: [F32<'k>; 2],
    column_scales: impl Fn(u32) -> [F32<'k>; 4],
) {
    for (nth, (sums, products)) in (0u32..).zip(sums.chunks(8).zip(products.chunks(8))) {
        let columns = column_scales(nth);
        for ((sums, products), columns) in sums.chunks(4).zip(products.chunks(4)).zip(columns.chunks(2)) {
            for (i, (sum, product)) in sums.iter().zip(products).enumerate() {
                let (product, row, column) = (product.live(), row_scales[i / 2], columns[i % 2]);
                match cfg.grouping {
                    Grouping::Dense => sum.fma(product * column, row),
                    Grouping::Rows | Grouping::K => sum.fma(product, row * column),
                }
            }
        }
    }
}
