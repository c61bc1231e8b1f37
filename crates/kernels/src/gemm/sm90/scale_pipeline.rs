//! Scales on their way to the math warps: a ring of their own, beside the ring of tiles.
//!
//! A tile arrives just in time; scales come a few blocks of K at a time and run ahead, so that a math warp finds them
//! when it looks for the next ones while the tensor core works. The copy engine brings what it can address: the scales
//! of A's rows in either layout, by a tensor map or as one piece, and of B where a tile needs one row of them. A warp copies the rest.

use crate::common::pipeline::{Cursor, Pipeline};
use crate::gemm::params::{Params, ScaleLayout};
use crate::gemm::scheduler::TileInfo;
use crate::gemm::scheduler::stream_k::StreamKPart;
use crate::{BLOCK_K, WARP};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, Pred, Shared, U32, Var};

/// Blocks of K whose scales come together: 32 bytes of a row, one sector of the L2 cache. Groups start at multiples of it; a tile may
/// start inside one.
pub(crate) const GROUP: u32 = 8;
/// The same of dense tiles of at most [`LOW_ROWS`]. The copy engine works row by row, so the fewer groups the better, as far as shared
/// memory reaches: where rows are grouped, it has a table of the groups as well.
const LONG_GROUP: u32 = 16;
const LOW_ROWS: u32 = 128;
/// Blocks of K whose scales one load by a tensor map may bring, the most first; 16 bytes of a row at least.
const LOADS: [u32; 3] = [16, 8, 4];
/// Groups in flight.
const SLOTS: u32 = 2;

/// Those of [`LOADS`] that are a group or a part of one.
fn loads(group: u32) -> impl Iterator<Item = u32> {
    LOADS.into_iter().filter(move |blocks| *blocks <= group)
}

/// Blocks of K whose scales one load by a tensor map brings: a whole group, or less where K has no more.
pub(crate) fn loaded_blocks(k_blocks: u32, group: u32) -> u32 {
    loads(group).filter(|blocks| k_blocks <= *blocks).last().unwrap_or(group)
}

/// The first block of a block's group.
#[track_caller]
pub(crate) fn group_start(block: U32<'_>, group: u32) -> U32<'_> {
    block - block % group
}

/// The scales of a tile, as far as they are compiled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleShape {
    /// Rows of A in a tile.
    pub rows: u32,
    /// Columns of a tile that are sure to share one scale of B, wherever the tile starts.
    pub columns_per_scale: u32,
    /// Scales of B for one block of K.
    pub columns: u32,
    /// Blocks of K whose scales come together.
    pub group: u32,
    /// Whether those of a tile's rows may be [one piece](ScaleLayout::Packed).
    pub one_piece: bool,
}

impl ScaleShape {
    /// Bytes of the ring's barriers.
    pub const BARRIER_BYTES: u32 = Pipeline::barrier_bytes(SLOTS);
    /// No scales: the ring tells the math warps where tiles are, and nothing else.
    pub const PLACES: ScaleShape = ScaleShape::grouped(0, 1, 0);

    /// Where one product has all rows.
    pub const fn dense(rows: u32, columns_per_scale: u32, columns: u32) -> Self {
        let group = if rows <= LOW_ROWS { LONG_GROUP } else { GROUP };
        ScaleShape { rows, columns_per_scale, columns, group, one_piece: true }
    }

    /// Where rows are grouped.
    pub const fn grouped(rows: u32, columns_per_scale: u32, columns: u32) -> Self {
        ScaleShape { rows, columns_per_scale, columns, group: GROUP, one_piece: false }
    }

    /// Rows and blocks of K whose scales may be one piece; none where they never are.
    pub fn piece(&self) -> [u32; 2] {
        if self.one_piece { [self.rows, self.group] } else { [0; 2] }
    }

    /// Floats from the column scales of one block of K to those of the next.
    fn column_pitch(&self) -> u32 {
        match self.columns {
            1 => 1,
            columns => columns.next_multiple_of(4),
        }
    }

    fn row_bytes(&self) -> u32 {
        self.group * self.rows * 4
    }

    /// Bytes of one slot: row scales, column scales, and the tile's place.
    fn slot_bytes(&self) -> u32 {
        (self.row_bytes() + self.group * self.column_pitch() * 4 + TileInfo::BYTES).next_multiple_of(128)
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

/// The ring inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct ScalePipeline<'k> {
    k: &'k Kernel,
    shape: ScaleShape,
    slots: Shared<'k>,
    pipe: Pipeline<'k>,
    layout: U32<'k>,
    /// Whether the copy engine brings the scales of A, and of B.
    by_tma: [Pred<'k>; 2],
    /// Blocks of K whose scales of rows one load brings.
    loaded: U32<'k>,
}

impl<'k> ScalePipeline<'k> {
    /// The ring at `slots`, with its barriers at `barriers`.
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

    fn place(&self, slot: Shared<'k>) -> Shared<'k> {
        self.columns(slot).at(self.shape.group * self.shape.column_pitch() * 4)
    }

    /// The side of the thread that has the copy engine bring scales.
    pub fn writer(&self) -> ScaleTmaProducer<'k> {
        ScaleTmaProducer { ring: *self, cursor: self.pipe.writer() }
    }

    /// The side of the warp that copies what the copy engine cannot bring.
    pub fn copier(&self, lane: U32<'k>) -> ScaleCopyProducer<'k> {
        ScaleCopyProducer { ring: *self, cursor: self.pipe.writer(), lane }
    }

    /// The side of a warp that does both.
    pub fn producer(&self, lane: U32<'k>) -> ScaleProducer<'k> {
        let cursor = self.pipe.writer();
        let (writer, copier) =
            (ScaleTmaProducer { ring: *self, cursor }, ScaleCopyProducer { ring: *self, cursor, lane });
        ScaleProducer { writer, copier }
    }

    /// A math warp's side.
    pub fn reader(&self, lane: U32<'k>) -> ScaleConsumer<'k> {
        // Row scales lie as the copy engine found them; lanes that copy lay them out as if M were contiguous.
        let by_rows = self.layout.eq(ScaleLayout::RowMajor as u32) | self.packed();
        ScaleConsumer {
            ring: *self,
            cursor: self.pipe.reader(),
            by_rows,
            row_stride: by_rows.select(self.loaded * 4, 4),
            block_stride: by_rows.select(4, self.shape.rows * 4),
            lane_zero: self.k.shuffle(Shuffle::Xor, lane, 0) - lane,
        }
    }
}

/// The thread that has the copy engine bring scales.
pub(crate) struct ScaleTmaProducer<'k> {
    ring: ScalePipeline<'k>,
    cursor: Cursor<'k>,
}

impl<'k> ScaleTmaProducer<'k> {
    /// Whether a tile's blocks from `first` on begin a group with `block`.
    pub fn begins_group(&self, block: U32<'k>, first: U32<'k>) -> Pred<'k> {
        (block % self.ring.shape.group).eq(0) | block.eq(first)
    }

    /// Brings the tile's place and the scales of the group of `block`, where the copy engine can.
    pub fn load(&self, params: &Params<'k>, at: [U32<'k>; 2], block: U32<'k>) {
        self.cursor.wait_empty();
        self.load_now(params, at, group_start(block, self.ring.shape.group));
        self.cursor.advance();
    }

    /// Tells where a tile is, where there are no scales. Unless it is `awaited`, something else says when.
    pub fn tell_place(&self, params: &Params<'k>, [m, n]: [U32<'k>; 2], awaited: bool) {
        self.cursor.wait_empty();
        let ring = &self.ring;
        params.store_place(ring.place(ring.slot(self.cursor.stage())), m, n);
        if awaited {
            ring.pipe.full(self.cursor.stage()).arrive();
        }
        self.cursor.advance();
    }

    /// [`load`](Self::load) for the group that begins with `block`, into a slot that is empty.
    fn load_now(&self, params: &Params<'k>, [m, n]: [U32<'k>; 2], block: U32<'k>) {
        let (ring, k) = (&self.ring, self.ring.k);
        let (slot, full) = (ring.slot(self.cursor.stage()), ring.pipe.full(self.cursor.stage()));
        let [rows, columns] = ring.by_tma;
        let row_bytes: U32<'k> = rows.select(ring.loaded * (ring.shape.rows * 4), 0);
        let column_bytes: U32<'k> = columns.select((params.k_blocks - block).min(ring.shape.group) * 4, 0);
        params.store_place(ring.place(slot), m, n);
        full.arrive_expecting(row_bytes + column_bytes);
        let load_by_rows = || {
            let by_rows = ring.layout.eq(ScaleLayout::RowMajor as u32);
            let at = [by_rows.select(block, m), by_rows.select(m, block)];
            let slab = params.group.map(|group| group.slab);
            let at: Vec<U32<'k>> = at.into_iter().chain(slab).collect();
            params.sfa_map.load(&at, slot, full, LoadOptions::default());
        };
        let load_piece = || {
            // A cluster's last tile may lie outside of A.
            let row = m.min(params.output.rows - ring.shape.rows);
            slot.bulk_load(params.sfa.at(row, block), row_bytes, full);
        };
        k.if_(rows, || match ring.shape.one_piece {
            true => k.if_else(ring.packed(), load_piece, load_by_rows),
            false => load_by_rows(),
        });
        k.if_(columns, || {
            // A cluster's last tile may lie outside of B.
            let row = n.min(params.output.columns - 1) / BLOCK_K;
            ring.columns(slot).bulk_load(params.sfb.at(row, block), column_bytes, full);
        });
    }
}

/// The warp that copies what the copy engine cannot bring.
pub(crate) struct ScaleCopyProducer<'k> {
    ring: ScalePipeline<'k>,
    cursor: Cursor<'k>,
    lane: U32<'k>,
}

impl<'k> ScaleCopyProducer<'k> {
    /// Copies for the group of `block`, of a tile's blocks up to before `end`.
    pub fn copy(&self, params: &Params<'k>, at: [U32<'k>; 2], block: U32<'k>, end: U32<'k>) {
        self.cursor.wait_empty();
        self.copy_now(params, at, (group_start(block, self.ring.shape.group), end));
        // Its lanes have gone ways of their own, and go on to meet other warps.
        self.ring.k.sync_warp();
        self.cursor.advance();
    }

    /// The same for the group that begins with `block`, into a slot that is empty. Every lane arrives itself, because the
    /// sanitizer does not take the word of one for the others.
    fn copy_now(&self, params: &Params<'k>, [m, n]: [U32<'k>; 2], (block, end): (U32<'k>, U32<'k>)) {
        let (ring, k) = (&self.ring, self.ring.k);
        let slot = ring.slot(self.cursor.stage());
        let [rows_by_engine, columns_by_engine] = ring.by_tma;
        k.if_(!columns_by_engine, || self.copy_columns(params, ring.columns(slot), n, (block, end)));
        k.if_(!rows_by_engine, || self.copy_rows(params, slot, m, (block, end)));
        k.copies_wait();
        ring.pipe.full(self.cursor.stage()).arrive();
    }

    fn copy_rows(&self, params: &Params<'k>, to: Shared<'k>, m: U32<'k>, (block, end): (U32<'k>, U32<'k>)) {
        let rows = self.ring.shape.rows;
        self.ring.k.for_(self.lane, self.ring.shape.group * rows, WARP, |index| {
            let (later, row) = (index / rows, index % rows);
            let exists = (m + row).lt(params.output.rows) & (block + later).lt(end);
            to.at(index * 4).copy_async(params.sfa.at(m + row, block + later), 4, exists);
        });
    }

    fn copy_columns(
        &self,
        params: &Params<'k>,
        to: Shared<'k>,
        n: U32<'k>,
        (block, end): (U32<'k>, U32<'k>),
    ) {
        let shape = self.ring.shape;
        self.ring.k.for_(self.lane, shape.group * shape.columns, WARP, |index| {
            let later = index / shape.columns;
            let i = index - later * shape.columns;
            let (column, row) = params.place_of(n, i * shape.columns_per_scale);
            let exists = column.lt(params.output.columns) & (block + later).lt(end);
            let to = to.at((later * shape.column_pitch() + i) * 4);
            to.copy_async(params.sfb.at(row / BLOCK_K, block + later), 4, exists);
        });
    }
}

/// A warp that brings scales: one of its lanes has the copy engine bring what it can, and all copy the rest.
pub(crate) struct ScaleProducer<'k> {
    /// Both with the same cursor.
    writer: ScaleTmaProducer<'k>,
    copier: ScaleCopyProducer<'k>,
}

impl<'k> ScaleProducer<'k> {
    /// Brings those of the group that begins with `block`, of a tile at `at`.
    pub fn load(&self, params: &Params<'k>, at: [U32<'k>; 2], block: U32<'k>) {
        let (writer, copier) = (&self.writer, &self.copier);
        let (ring, k) = (&writer.ring, writer.ring.k);
        writer.cursor.wait_empty();
        k.if_(copier.lane.eq(0), || writer.load_now(params, at, block));
        k.if_(ring.copied(), || copier.copy_now(params, at, (block, params.k_blocks)));
        writer.cursor.advance();
    }

    /// Tells that no tile follows.
    pub fn end(&self) {
        let (writer, copier) = (&self.writer, &self.copier);
        let (ring, k, stage) = (&writer.ring, writer.ring.k, writer.cursor.stage());
        let (place, full) = (ring.place(ring.slot(stage)), ring.pipe.full(stage));
        writer.cursor.wait_empty();
        k.if_(copier.lane.eq(0), || {
            TileInfo::tell_end(k, place);
            full.arrive();
        });
        k.if_(ring.copied(), || full.arrive());
    }
}

/// A math warp's view of the scales.
pub(crate) struct ScaleConsumer<'k> {
    ring: ScalePipeline<'k>,
    cursor: Cursor<'k>,
    by_rows: Pred<'k>,
    row_stride: U32<'k>,
    block_stride: U32<'k>,
    /// Zero, as a number that the assembler takes for each lane's own: what is loaded by a uniform address it moves
    /// to a uniform register, and waits for it on the way.
    lane_zero: U32<'k>,
}

impl<'k> ScaleConsumer<'k> {
    /// Waits for the current group.
    pub fn wait(&self) {
        self.cursor.wait_full();
    }

    /// Lets go of the current group and moves to the next. Every lane arrives itself for what it has read: that costs nothing, needs no
    /// meeting of theirs, and a sanitizer takes the word of none for the others.
    pub fn release(&self) {
        self.ring.pipe.empty(self.cursor.stage()).arrive();
        self.cursor.advance();
    }

    fn slot(&self) -> Shared<'k> {
        self.ring.slot(self.cursor.stage())
    }

    /// Where the scale of a row lies.
    pub fn row_offset(&self, row: U32<'k>) -> U32<'k> {
        row * self.row_stride
    }

    /// The scale of the row at an offset that [`row_offset`](Self::row_offset) gave, for one block of the group.
    pub fn row(&self, within: U32<'k>, offset: U32<'k>) -> F32<'k> {
        self.slot().at(within * self.block_stride).at(offset).load::<f32>()
    }

    /// Loads the scales of some rows for one, two or four blocks of the group from the `within`-th on: of rows that lie `below`
    /// one, by its [`row_offset`](Self::row_offset). Where K is contiguous, those of a row are one vector.
    pub fn load_rows(&self, within: U32<'k>, offset: U32<'k>, below: &[u32], to: &[Vec<Var<'k, f32>>]) {
        let slot = self.slot().at(within * self.block_stride).at(offset);
        if to.iter().all(|to| to.len() == 1) {
            for (&below, to) in below.iter().zip(to.iter().flatten()) {
                to.set(slot.at(self.row_stride * below).load::<f32>());
            }
            return;
        }
        self.ring.k.if_else(
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
                        to.set(slot.at((block * self.ring.shape.rows + below) * 4).load::<f32>());
                    }
                }
            },
        );
    }

    /// The scale that all columns share, for one, two or four blocks of the group from the `within`-th on.
    pub fn column(&self, within: U32<'k>, blocks: usize) -> Vec<F32<'k>> {
        load_few(self.ring.columns(self.slot()).at(within * 4).at(self.lane_zero), blocks)
    }

    /// The scales of the tile's columns for one block of the group, from the `first` on, `count` of them.
    pub fn columns(&self, within: U32<'k>, first: U32<'k>, count: u32) -> Vec<F32<'k>> {
        let pitch = self.ring.shape.column_pitch();
        let from = self.ring.columns(self.slot()).at(within * (pitch * 4)).at(first * 4);
        // Parts of the columns need not start at a vector.
        let vectors = count == self.ring.shape.columns || count.is_multiple_of(4);
        if count < 3 || !vectors {
            return (0..count).map(|i| from.at(i * 4).load::<f32>()).collect();
        }
        let vectors = (0..count.div_ceil(4)).flat_map(|i| from.at(i * 16).load_vec::<f32, 4>());
        vectors.take(count as usize).collect()
    }

    /// The first row and column of the tile that the current group belongs to.
    pub fn place(&self) -> [U32<'k>; 2] {
        self.ring.place(self.slot()).load_vec::<u32, 2>()
    }

    /// The same where rows are grouped, and the row of D behind the group's last.
    pub fn place_in_group(&self) -> ([U32<'k>; 2], U32<'k>) {
        TileInfo::told_in_group(self.ring.place(self.slot()))
    }

    /// Whether it belongs to a tile at all: what it is where rows are grouped and no tile follows.
    pub fn has_tile(&self) -> Pred<'k> {
        !TileInfo::is_told_end(self.ring.place(self.slot()))
    }

    /// The first row and column and the row behind the group's last with the slab, whose rows they are then, where D is stored slab by slab; with the group where sums are
    /// finished.
    pub fn place_and_whose(&self) -> ([U32<'k>; 2], [U32<'k>; 2]) {
        TileInfo::told_whose(self.ring.place(self.slot()))
    }

    /// The same where tiles are shared out along K, and the part.
    pub fn place_and_part(&self) -> ([U32<'k>; 2], StreamKPart<'k>) {
        StreamKPart::told(self.ring.place(self.slot()))
    }

    /// The same where groups are along K, and the tile's blocks of K.
    pub fn place_in_k_group(&self) -> ([U32<'k>; 2], U32<'k>, U32<'k>) {
        let [row, column, end, k_blocks] = self.ring.place(self.slot()).load_vec::<u32, 4>();
        ([row, column], end, k_blocks)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_brings_no_more_than_k_has_room_for() {
        let loaded = |group| [1, 4, 5, 8, 9, 16, 17, 56].map(|k_blocks| loaded_blocks(k_blocks, group));
        assert_eq!(loaded(GROUP), [4, 4, 8, 8, 8, 8, 8, 8]);
        assert_eq!(loaded(LONG_GROUP), [4, 4, 8, 8, 16, 16, 16, 16]);
    }

    #[test]
    fn scales_of_grouped_rows_are_never_one_piece() {
        assert_eq!(ScaleShape::dense(64, 128, 1).piece(), [64, LONG_GROUP]);
        assert_eq!(ScaleShape::dense(256, 128, 1).piece(), [256, GROUP]);
        assert_eq!(ScaleShape::grouped(64, 128, 1).piece(), [0; 2]);
    }
}
