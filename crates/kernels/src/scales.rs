//! Scales on their way to the math warps: a ring of their own, beside the ring of tiles.
//!
//! Shared memory is the busiest unit of these kernels, so scales come eight blocks of K at a time. The copy
//! engine brings the scales of A's rows where it can address them, in either layout; the scales of B's columns,
//! and those of A in any other layout, are copied by warps with nothing else to do.

use crate::params::{Params, ScaleLayout, ScaleParams};
use crate::pipeline::{Cursor, Pipeline};
use crate::{BLOCK_K, SCALE_GROUP, WARP};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::{F32, Kernel, Pred, Shared, U32, Var};

/// Blocks of K whose scales a thread loads at once.
pub(crate) const VECTOR: usize = 4;

/// The scales of a tile, as far as they are compiled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleShape {
    /// Rows of A in a tile.
    pub rows: u32,
    /// Columns of a tile that are sure to share one scale of B, wherever the tile starts.
    pub columns_per_scale: u32,
    /// Scales of B for one block of K.
    pub columns: u32,
    /// Groups of eight blocks of K that fit into the ring.
    pub slots: u32,
    /// Warps that copy.
    pub warps: u32,
}

impl ScaleShape {
    /// The shape for a tile of `rows` by `columns`.
    pub fn new(rows: u32, columns: u32, columns_per_scale: u32, slots: u32, warps: u32) -> Self {
        ScaleShape { rows, columns_per_scale, columns: columns / columns_per_scale, slots, warps }
    }

    /// Floats from the column scales of one block of K to those of the next.
    fn column_pitch(&self) -> u32 {
        if self.columns == 1 { 1 } else { self.columns.next_multiple_of(4) }
    }

    fn row_bytes(&self) -> u32 {
        SCALE_GROUP * self.rows * 4
    }

    /// Bytes of one slot: row scales, column scales, and the tile's place.
    fn slot_bytes(&self) -> u32 {
        (self.row_bytes() + SCALE_GROUP * self.column_pitch() * 4 + 8).next_multiple_of(128)
    }

    /// Bytes of the ring, which wants an alignment of 128.
    pub fn bytes(&self) -> u32 {
        self.slots * self.slot_bytes()
    }

    /// Bytes of its barriers.
    pub fn barrier_bytes(&self) -> u32 {
        Pipeline::barrier_bytes(self.slots)
    }
}

/// The ring inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct ScaleRing<'k> {
    k: &'k Kernel,
    shape: ScaleShape,
    slots: Shared<'k>,
    pipe: Pipeline<'k>,
    layout: U32<'k>,
    /// Blocks of K that a load brings: see [`loaded_blocks`].
    loaded: U32<'k>,
}

/// Blocks of K whose scales one load brings: a whole group, or half of one where K has no more.
pub(crate) const fn loaded_blocks(k_blocks: u32) -> u32 {
    if k_blocks <= SCALE_GROUP / 2 { SCALE_GROUP / 2 } else { SCALE_GROUP }
}

impl<'k> ScaleRing<'k> {
    /// The ring at `slots`, with its barriers at `barriers`.
    pub fn new(
        k: &'k Kernel,
        shape: ScaleShape,
        slots: Shared<'k>,
        barriers: Shared<'k>,
        params: &Params<'k>,
    ) -> Self {
        let pipe = Pipeline::new(k, barriers, shape.slots, shape.slots);
        let half = SCALE_GROUP / 2;
        let loaded = params.k_blocks.le(half).select(half, SCALE_GROUP);
        ScaleRing { k, shape, slots, pipe, layout: params.sfa_layout, loaded }
    }

    /// Initializes the barriers; `readers` warps read the scales.
    pub fn init(&self, readers: u32) {
        self.pipe.init(1 + self.shape.warps, readers);
    }

    fn slot(&self, slot: U32<'k>) -> Shared<'k> {
        self.slots.at(slot * self.shape.slot_bytes())
    }

    fn columns(&self, slot: Shared<'k>) -> Shared<'k> {
        slot.at(self.shape.row_bytes())
    }

    fn place(&self, slot: Shared<'k>) -> Shared<'k> {
        self.columns(slot).at(SCALE_GROUP * self.shape.column_pitch() * 4)
    }

    /// The producer thread's side.
    pub fn writer(&self) -> ScaleWriter<'k> {
        ScaleWriter { ring: *self, cursor: self.pipe.writer() }
    }

    /// A copying warp's side; `thread` counts through all of them.
    pub fn copier(&self, thread: U32<'k>, lane: U32<'k>) -> ScaleCopier<'k> {
        ScaleCopier { ring: *self, cursor: self.pipe.writer(), thread, lane }
    }

    /// A math warp's side.
    pub fn reader(&self, lane: U32<'k>) -> ScaleReader<'k> {
        // Row scales lie as the copy engine found them; threads that copy lay them out as if M were contiguous.
        let by_rows = self.layout.eq(ScaleLayout::RowMajor as u32);
        ScaleReader {
            ring: *self,
            cursor: self.pipe.reader(),
            lane,
            row_stride: by_rows.select(self.loaded * 4, 4),
            block_stride: by_rows.select(4, self.shape.rows * 4),
        }
    }
}

/// Groups start at multiples of eight blocks, because the copy engine takes coordinates in steps of 16 bytes; a
/// tile may start inside one.
fn group_start(block: U32<'_>) -> U32<'_> {
    block & !(SCALE_GROUP - 1)
}

/// The producer thread: row scales by the copy engine, and the tile's place for the math warps.
pub(crate) struct ScaleWriter<'k> {
    ring: ScaleRing<'k>,
    cursor: Cursor<'k>,
}

impl<'k> ScaleWriter<'k> {
    /// Loads the group of `block`, where it is the first of its group or of the tile (`first`).
    pub fn load(&self, params: &Params<'k>, [m, n]: [U32<'k>; 2], block: U32<'k>, first: U32<'k>) {
        let (ring, k) = (&self.ring, self.ring.k);
        k.if_(begins_group(block, first), || {
            let block = group_start(block);
            self.cursor.wait_empty();
            let (slot, full) = (ring.slot(self.cursor.stage()), ring.pipe.full(self.cursor.stage()));
            ring.place(slot).store_vec([m, n]);
            k.if_else(
                ring.layout.eq(ScaleLayout::Copied as u32),
                || full.arrive(),
                || {
                    full.arrive_expecting(ring.loaded * (ring.shape.rows * 4));
                    let by_rows = ring.layout.eq(ScaleLayout::RowMajor as u32);
                    let at = [by_rows.select(block, m), by_rows.select(m, block)];
                    params.sfa_map.load(&at, slot, full, LoadOptions::default());
                },
            );
            self.cursor.advance();
        });
    }
}

/// A warp that copies the scales of columns, and those of rows that the copy engine cannot address.
pub(crate) struct ScaleCopier<'k> {
    ring: ScaleRing<'k>,
    cursor: Cursor<'k>,
    thread: U32<'k>,
    lane: U32<'k>,
}

impl<'k> ScaleCopier<'k> {
    /// Copies every group of a tile's blocks `first` to `end`.
    pub fn copy_tile(&self, params: &Params<'k>, [m, n]: [U32<'k>; 2], first: U32<'k>, end: U32<'k>) {
        let (ring, k) = (&self.ring, self.ring.k);
        let (rows, columns) = (params.output.rows, params.output.columns);
        // A slice of no blocks has no group, even where it lies inside one.
        let start = first.lt(end).select(group_start(first), end);
        k.for_(start, end, SCALE_GROUP, |block| {
            self.cursor.wait_empty();
            let slot = ring.slot(self.cursor.stage());
            let shape = ring.shape;
            self.copy(
                &params.sfb,
                ring.columns(slot),
                [shape.columns, shape.column_pitch()],
                (block, end),
                |i| {
                    let column = n + i * shape.columns_per_scale;
                    (column / BLOCK_K, column.lt(columns))
                },
            );
            k.if_(ring.layout.eq(ScaleLayout::Copied as u32), || {
                self.copy(&params.sfa, slot, [shape.rows; 2], (block, end), |i| (m + i, (m + i).lt(rows)));
            });
            k.copies_wait();
            k.sync_warp();
            k.guard(self.lane.eq(0), || ring.pipe.full(self.cursor.stage()).arrive());
            self.cursor.advance();
        });
    }

    /// Copies `count` scales for each block of a group, `pitch` floats apart; `row` tells which row of `scales`
    /// an index means and whether it exists.
    fn copy(
        &self,
        scales: &ScaleParams<'k>,
        to: Shared<'k>,
        [count, pitch]: [u32; 2],
        (block, end): (U32<'k>, U32<'k>),
        row: impl Fn(U32<'k>) -> (U32<'k>, Pred<'k>),
    ) {
        let k = self.ring.k;
        k.for_(self.thread, SCALE_GROUP * count, self.ring.shape.warps * WARP, |index| {
            let later = index / count;
            let i = index - later * count;
            let (row, exists) = row(i);
            let block = block + later;
            let to = to.at((later * pitch + i) * 4);
            to.copy_async(scales.at(row, block), 4, exists & block.lt(end));
        });
    }
}

/// A math warp's view of the scales.
pub(crate) struct ScaleReader<'k> {
    ring: ScaleRing<'k>,
    cursor: Cursor<'k>,
    lane: U32<'k>,
    row_stride: U32<'k>,
    block_stride: U32<'k>,
}

/// The scales of one block of K.
pub(crate) struct BlockScales<'k> {
    rows: Shared<'k>,
    columns: Shared<'k>,
    place: Shared<'k>,
}

impl<'k> ScaleReader<'k> {
    /// Waits for the next group.
    pub fn wait(&self) {
        self.cursor.wait_full();
    }

    /// The scales of the `within`-th block of the current group.
    pub fn block(&self, within: U32<'k>) -> BlockScales<'k> {
        let ring = &self.ring;
        let slot = ring.slot(self.cursor.stage());
        BlockScales {
            rows: slot.at(within * self.block_stride),
            columns: ring.columns(slot).at(within * (ring.shape.column_pitch() * 4)),
            place: ring.place(slot),
        }
    }

    /// Loads the scales of some rows (given as [`row_offset`](Self::row_offset)s) for [`VECTOR`] blocks of the
    /// group, from its `within`-th on.
    ///
    /// Where K is contiguous, the scales of a row are one vector.
    pub fn load_rows(&self, within: U32<'k>, offsets: &[U32<'k>], to: &[[Var<'k, f32>; VECTOR]]) {
        let (ring, k) = (&self.ring, self.ring.k);
        let rows = ring.slot(self.cursor.stage()).at(within * self.block_stride);
        k.if_else(
            ring.layout.eq(ScaleLayout::RowMajor as u32),
            || {
                for (&offset, to) in offsets.iter().zip(to) {
                    let scales = rows.at(offset).load_vec::<f32, VECTOR>();
                    to.iter().zip(scales).for_each(|(to, scale)| to.set(scale));
                }
            },
            || {
                for (&offset, to) in offsets.iter().zip(to) {
                    for (block, to) in (0u32..).zip(to) {
                        to.set(rows.at(block * ring.shape.rows * 4).at(offset).load::<f32>());
                    }
                }
            },
        );
    }

    /// Multiplies scales that [`load_rows`](Self::load_rows) brought by those of one column.
    pub fn multiply_by_column(&self, within: U32<'k>, column: U32<'k>, rows: &[[Var<'k, f32>; VECTOR]]) {
        let ring = &self.ring;
        let pitch = ring.shape.column_pitch();
        let from = ring.columns(ring.slot(self.cursor.stage())).at((within * pitch + column) * 4);
        let columns = match pitch {
            1 => from.load_vec::<f32, VECTOR>(),
            _ => std::array::from_fn(|block| from.at(block as u32 * pitch * 4).load::<f32>()),
        };
        for row in rows {
            row.iter().zip(columns).for_each(|(scale, column)| scale.set(scale.live() * column));
        }
    }

    /// Where the scale of a row lies: what [`BlockScales::row`] takes.
    pub fn row_offset(&self, row: U32<'k>) -> U32<'k> {
        row * self.row_stride
    }

    /// Lets go of the group.
    pub fn release(&self) {
        let k = self.ring.k;
        k.sync_warp();
        k.guard(self.lane.eq(0), || self.ring.pipe.empty(self.cursor.stage()).arrive());
        self.cursor.advance();
    }
}

/// Whether a tile's blocks from `first` on begin a group with `block`.
pub(crate) fn begins_group<'k>(block: U32<'k>, first: U32<'k>) -> Pred<'k> {
    (block % SCALE_GROUP).eq(0) | block.eq(first)
}

/// Whether a tile's blocks up to before `end` end a group with `block`.
pub(crate) fn ends_group<'k>(block: U32<'k>, end: U32<'k>) -> Pred<'k> {
    ((block + 1) % SCALE_GROUP).eq(0) | (block + 1).eq(end)
}

impl<'k> BlockScales<'k> {
    /// The scale of the row at an offset that [`ScaleReader::row_offset`] gave.
    pub fn row(&self, offset: U32<'k>) -> F32<'k> {
        self.rows.at(offset).load::<f32>()
    }

    /// The scales of the tile's columns from group `first` on, `count` of them.
    pub fn columns(&self, first: U32<'k>, count: u32) -> Vec<F32<'k>> {
        let from = self.columns.at(first * 4);
        if count < 3 {
            return (0..count).map(|i| from.at(i * 4).load::<f32>()).collect();
        }
        (0..count.div_ceil(4)).flat_map(|i| from.at(i * 16).load_vec::<f32, 4>()).collect()
    }

    /// The first row and column of the tile.
    pub fn place(&self) -> [U32<'k>; 2] {
        self.place.load_vec::<u32, 2>()
    }
}
