//! Scale consumer: what a math warp reads of the scale pipeline.

use super::ScalePipeline;
use crate::common::pipeline::Cursor;
use oxigemm_ptx::{F32, Pred, Shared, U32, Var};

/// Consumer side of the scale pipeline, of a math warp.
pub(crate) struct ScaleConsumer<'k> {
    pub(super) pipe: ScalePipeline<'k>,
    pub(super) cursor: Cursor<'k>,
    /// Whether the scales of a row are contiguous in a slot.
    pub(super) by_rows: Pred<'k>,
    pub(super) row_stride: U32<'k>,
    pub(super) block_stride: U32<'k>,
    /// Zero, as a number that the assembler takes for each lane's own: what is loaded by a uniform address it moves to
    /// a uniform register, and waits for it on the way.
    pub(super) lane_zero: U32<'k>,
}

impl<'k> ScaleConsumer<'k> {
    /// Waits for the current scale group.
    pub fn wait(&self) {
        self.cursor.wait_full();
    }

    /// Releases the current group and moves to the next. Every lane arrives itself for what it has read: that costs
    /// nothing, needs no warp barrier, and compute-sanitizer takes no lane's arrival for the others.
    pub fn release(&self) {
        self.pipe.pipe.empty(self.cursor.stage()).arrive();
        self.cursor.advance();
    }

    fn slot(&self) -> Shared<'k> {
        self.pipe.slot(self.cursor.stage())
    }

    /// Where the scale of a row lies.
    pub fn row_offset(&self, row: U32<'k>) -> U32<'k> {
        row * self.row_stride
    }

    /// The scale of the row at an offset that [`row_offset`](Self::row_offset) gave, for one K block of the group.
    pub fn row(&self, within: U32<'k>, offset: U32<'k>) -> F32<'k> {
        self.slot().at(within * self.block_stride).at(offset).load::<f32>()
    }

    /// Loads the scales of some rows for one, two or four K blocks of the group from the `within`-th on: of rows that
    /// lie `below` one, by its [`row_offset`](Self::row_offset). Where K is contiguous, those of a row are one vector.
    pub fn load_rows(&self, within: U32<'k>, offset: U32<'k>, below: &[u32], to: &[Vec<Var<'k, f32>>]) {
        let slot = self.slot().at(within * self.block_stride).at(offset);
        if to.iter().all(|to| to.len() == 1) {
            for (&below, to) in below.iter().zip(to.iter().flatten()) {
                to.set(slot.at(self.row_stride * below).load::<f32>());
            }
            return;
        }
        self.pipe.k.if_else(
            self.by_rows,
            || {
                for (&below, to) in below.iter().zip(to) {
                    let scales = load_few(slot.at(self.row_stride * below), to.len());
                    to.iter().zip(scales).for_each(|(to, scale)| to.set(scale));
                }
            },
            || {
                for (below, to) in below.iter().zip(to) {
                    for (block, to) in (0u32..).zip(to) {
                        to.set(slot.at((block * self.pipe.shape.rows + below) * 4).load::<f32>());
                    }
                }
            },
        );
    }

    /// The scale that all columns share, for one, two or four K blocks of the group from the `within`-th on.
    pub fn column(&self, within: U32<'k>, blocks: usize) -> Vec<F32<'k>> {
        load_few(self.pipe.columns(self.slot()).at(within * 4).at(self.lane_zero), blocks)
    }

    /// The scales of the tile's columns for one K block of the group, from the `first` on, `count` of them.
    pub fn columns(&self, within: U32<'k>, first: U32<'k>, count: u32) -> Vec<F32<'k>> {
        let pitch = self.pipe.shape.column_pitch();
        let from = self.pipe.columns(self.slot()).at(within * (pitch * 4)).at(first * 4);
        // Parts of the columns need not start at a vector.
        let vectors = count == self.pipe.shape.columns || count.is_multiple_of(4);
        if count < 3 || !vectors {
            return (0..count).map(|i| from.at(i * 4).load::<f32>()).collect();
        }
        let vectors = (0..count.div_ceil(4)).flat_map(|i| from.at(i * 16).load_vec::<f32, 4>());
        vectors.take(count as usize).collect()
    }

    /// The message about the tile that the current group belongs to.
    pub fn message(&self) -> Shared<'k> {
        self.pipe.message(self.slot())
    }
}

/// One, two or four neighbours.
fn load_few(from: Shared<'_>, count: usize) -> Vec<F32<'_>> {
    match count {
        1 => vec![from.load::<f32>()],
        2 => from.load_vec::<f32, 2>().to_vec(),
        _ => from.load_vec::<f32, 4>().to_vec(),
    }
}
