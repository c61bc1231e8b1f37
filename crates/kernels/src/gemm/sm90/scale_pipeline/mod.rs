//! Scale pipeline: scales of FP8 operands on their way to the consumers, in a ring beside that of the operand stages.
//!
//! An operand stage arrives just in time; scales are loaded a few K blocks at a time and run ahead, so that a consumer
//! finds them when it looks for the next ones while the tensor core works. TMA loads what it can address: the scales of
//! A's rows in either layout, by a tensor map or as one piece, and those of B where a tile needs one row of them. A
//! warp copies the rest. Every slot also has the [message](TileMessage) about its tile.

mod consumer;
mod producer;

use crate::common::WARP;
use crate::common::pipeline::Pipeline;
use crate::gemm::operand::fp8::SCALE_GROUP;
use crate::gemm::params::{Params, ScaleLayout};
use crate::gemm::scheduler::tile::TileMessage;
pub(crate) use consumer::ScaleConsumer;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Kernel, Pred, Shared, U32};
pub(crate) use producer::{ScaleCopyProducer, ScaleProducer, ScaleTmaProducer};

/// Scale group of dense tiles of at most [`LOW_ROWS`]. TMA works row by row, so the fewer groups the better, as far as
/// shared memory reaches: m-grouped kernels have a table of the groups there as well.
const LONG_GROUP: u32 = 16;
const LOW_ROWS: u32 = 128;
/// K blocks whose scales one load by a tensor map may take, the most first; 16 bytes of a row at least.
const LOADS: [u32; 3] = [16, 8, 4];
/// Scale groups in flight.
const SLOTS: u32 = 2;

/// Those of [`LOADS`] that are a group or a part of one.
fn loads(group: u32) -> impl Iterator<Item = u32> {
    LOADS.into_iter().filter(move |blocks| *blocks <= group)
}

/// K blocks whose scales one load by a tensor map takes: a whole group, or less where K has no more.
pub(crate) fn loaded_blocks(k_blocks: u32, group: u32) -> u32 {
    loads(group).filter(|blocks| k_blocks <= *blocks).last().unwrap_or(group)
}

/// Shape of a tile's scales, as far as it is compiled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleShape {
    /// Rows of A in a tile.
    pub rows: u32,
    /// Columns of a tile that are sure to share one scale of B, wherever the tile starts.
    pub columns_per_scale: u32,
    /// Scales of B for one K block.
    pub columns: u32,
    /// K blocks whose scales are loaded together.
    pub group: u32,
    /// Whether those of a tile's rows may be [one piece](ScaleLayout::Packed).
    pub one_piece: bool,
}

impl ScaleShape {
    /// Bytes of the ring's barriers.
    pub const BARRIER_BYTES: u32 = Pipeline::barrier_bytes(SLOTS);
    /// No scales: the ring has the messages about tiles, and nothing else.
    pub const MESSAGES: ScaleShape = ScaleShape::grouped(0, 1, 0);

    /// Scales of a dense kernel.
    pub const fn dense(rows: u32, columns_per_scale: u32, columns: u32) -> Self {
        let group = if rows <= LOW_ROWS { LONG_GROUP } else { SCALE_GROUP };
        ScaleShape { rows, columns_per_scale, columns, group, one_piece: true }
    }

    /// Scales of a grouped kernel.
    pub const fn grouped(rows: u32, columns_per_scale: u32, columns: u32) -> Self {
        ScaleShape { rows, columns_per_scale, columns, group: SCALE_GROUP, one_piece: false }
    }

    /// Rows and K blocks whose scales may be one piece; none where they never are.
    pub fn piece(&self) -> [u32; 2] {
        if self.one_piece { [self.rows, self.group] } else { [0; 2] }
    }

    /// Floats from the column scales of one K block to those of the next.
    fn column_pitch(&self) -> u32 {
        match self.columns {
            1 => 1,
            columns => columns.next_multiple_of(4),
        }
    }

    fn row_bytes(&self) -> u32 {
        self.group * self.rows * 4
    }

    /// Bytes of one slot: row scales, column scales, and the tile's message.
    fn slot_bytes(&self) -> u32 {
        (self.row_bytes() + self.group * self.column_pitch() * 4 + TileMessage::BYTES).next_multiple_of(128)
    }

    /// Gives a name to the ring's slots, `offset` bytes into dynamic shared memory.
    pub fn name(&self, k: &Kernel, offset: u32) {
        k.name_shared("scales", offset, self.slot_bytes(), SLOTS);
    }

    /// Bytes of the ring, which wants an alignment of 128.
    pub fn bytes(&self) -> u32 {
        SLOTS * self.slot_bytes()
    }
}

/// Scale pipeline inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct ScalePipeline<'k> {
    k: &'k Kernel,
    shape: ScaleShape,
    slots: Shared<'k>,
    pipe: Pipeline<'k>,
    layout: U32<'k>,
    /// Whether TMA loads the scales of A, and of B.
    by_tma: [Pred<'k>; 2],
    /// K blocks whose row scales one load takes.
    loaded: U32<'k>,
}

impl<'k> ScalePipeline<'k> {
    /// Pipeline with slots at `slots` and barriers at `barriers`.
    pub fn new(
        k: &'k Kernel,
        shape: ScaleShape,
        slots: Shared<'k>,
        barriers: Shared<'k>,
        params: &Params<'k>,
    ) -> Self {
        let by_tma = match shape.columns {
            0 => [k.constant(true); 2],
            columns => [
                params.sfa_layout.ne(ScaleLayout::Copied as u32),
                if columns == 1 { params.sfb_bulk } else { k.constant(false) },
            ],
        };
        let whole = k.constant(shape.group);
        let by_map = loads(shape.group)
            .skip(1)
            .fold(whole, |loaded, most| params.k_blocks.le(most).select(most, loaded));
        let ring = ScalePipeline {
            k,
            shape,
            slots,
            pipe: Pipeline::new(k, barriers, SLOTS, SLOTS),
            layout: params.sfa_layout,
            by_tma,
            loaded: by_map,
        };
        match shape.one_piece {
            true => ScalePipeline { loaded: ring.packed().select(params.k_blocks, by_map), ..ring },
            false => ring,
        }
    }

    /// Gives names to the barriers, `offset` bytes into dynamic shared memory.
    pub fn name_barriers(k: &Kernel, offset: u32) {
        Pipeline::name_barriers(k, ["scales_full", "scales_empty"], offset, SLOTS);
    }

    /// Initializes the barriers; `readers` warps read the scales. The caller fences.
    pub fn init(&self, readers: u32) {
        self.pipe.init(self.copied().select(1 + WARP, 1), readers * WARP);
    }

    /// Whether a warp has to copy scales.
    pub fn copied(&self) -> Pred<'k> {
        !(self.by_tma[0] & self.by_tma[1])
    }

    /// Whether the scales of a tile's rows are one piece.
    fn packed(&self) -> Pred<'k> {
        self.layout.eq(ScaleLayout::Packed as u32)
    }

    fn slot(&self, slot: U32<'k>) -> Shared<'k> {
        self.slots.at(slot * self.shape.slot_bytes())
    }

    fn columns(&self, slot: Shared<'k>) -> Shared<'k> {
        slot.at(self.shape.row_bytes())
    }

    fn message(&self, slot: Shared<'k>) -> Shared<'k> {
        self.columns(slot).at(self.shape.group * self.shape.column_pitch() * 4)
    }

    /// Producer that loads by TMA, one thread.
    pub fn tma_producer(&self) -> ScaleTmaProducer<'k> {
        ScaleTmaProducer { pipe: *self, cursor: self.pipe.writer() }
    }

    /// Producer that copies what TMA cannot load, a warp.
    pub fn copy_producer(&self, lane: U32<'k>) -> ScaleCopyProducer<'k> {
        ScaleCopyProducer { pipe: *self, cursor: self.pipe.writer(), lane }
    }

    /// Producer that does both, a warp.
    pub fn producer(&self, lane: U32<'k>) -> ScaleProducer<'k> {
        let cursor = self.pipe.writer();
        ScaleProducer {
            tma: ScaleTmaProducer { pipe: *self, cursor },
            copy: ScaleCopyProducer { pipe: *self, cursor, lane },
        }
    }

    /// Consumer side, of a math warp.
    pub fn consumer(&self, lane: U32<'k>) -> ScaleConsumer<'k> {
        // Row scales lie as TMA found them; lanes that copy lay them out as if M were contiguous.
        let by_rows = self.layout.eq(ScaleLayout::RowMajor as u32) | self.packed();
        ScaleConsumer {
            pipe: *self,
            cursor: self.pipe.reader(),
            by_rows,
            row_stride: by_rows.select(self.loaded * 4, 4),
            block_stride: by_rows.select(4, self.shape.rows * 4),
            lane_zero: self.k.shuffle(Shuffle::Xor, lane, 0) - lane,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_takes_no_more_blocks_than_k_has() {
        let loaded = |group| [1, 4, 5, 8, 9, 16, 17, 56].map(|k_blocks| loaded_blocks(k_blocks, group));
        assert_eq!(loaded(SCALE_GROUP), [4, 4, 8, 8, 8, 8, 8, 8]);
        assert_eq!(loaded(LONG_GROUP), [4, 4, 8, 8, 16, 16, 16, 16]);
    }

    #[test]
    fn scales_of_grouped_kernels_are_never_one_piece() {
        assert_eq!(ScaleShape::dense(64, 128, 1).piece(), [64, LONG_GROUP]);
        assert_eq!(ScaleShape::dense(256, 128, 1).piece(), [256, SCALE_GROUP]);
        assert_eq!(ScaleShape::grouped(64, 128, 1).piece(), [0; 2]);
    }
}
