//! Scale producers: TMA, a warp that copies, and a warp that does both.

use super::ScalePipeline;
use crate::common::pipeline::Cursor;
use crate::common::{BLOCK_K, WARP};
use crate::gemm::operand::fp8::scale_group_start;
use crate::gemm::params::{Params, ScaleLayout};
use crate::gemm::scheduler::tile::{TileMessage, TileView};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::{Pred, Shared, U32};

/// Producer of the scales that TMA can load: one thread.
pub(crate) struct ScaleTmaProducer<'k> {
    pub(super) pipe: ScalePipeline<'k>,
    pub(super) cursor: Cursor<'k>,
}

impl<'k> ScaleTmaProducer<'k> {
    /// Whether a tile's K blocks from `first` on begin a scale group with `block`.
    pub fn begins_group(&self, block: U32<'k>, first: U32<'k>) -> Pred<'k> {
        (block % self.pipe.shape.group).eq(0) | block.eq(first)
    }

    /// Writes the tile's message and loads the scales of the group of `block`.
    pub fn load(&self, params: &Params<'k>, tile: &TileView<'k>, block: U32<'k>) {
        self.cursor.wait_empty();
        self.load_now(params, tile, scale_group_start(block, self.pipe.shape.group));
        self.cursor.advance();
    }

    /// Writes the tile's message, where there are no scales. Unless it is `awaited`, something else tells when it is
    /// there.
    pub fn store_message(&self, tile: &TileView<'k>, awaited: bool) {
        self.cursor.wait_empty();
        let pipe = &self.pipe;
        tile.store_message(pipe.message(pipe.slot(self.cursor.stage())));
        if awaited {
            pipe.pipe.full(self.cursor.stage()).arrive();
        }
        self.cursor.advance();
    }

    /// [`load`](Self::load) for the group that begins with `block`, into a slot that is empty.
    fn load_now(&self, params: &Params<'k>, tile: &TileView<'k>, block: U32<'k>) {
        let (pipe, k, [m, n]) = (&self.pipe, self.pipe.k, tile.at);
        let (slot, full) = (pipe.slot(self.cursor.stage()), pipe.pipe.full(self.cursor.stage()));
        let [rows, columns] = pipe.by_tma;
        let row_bytes: U32<'k> = rows.select(pipe.loaded * (pipe.shape.rows * 4), 0);
        let column_bytes: U32<'k> = columns.select((tile.k_blocks - block).min(pipe.shape.group) * 4, 0);
        tile.store_message(pipe.message(slot));
        full.arrive_expecting(row_bytes + column_bytes);
        let load_by_map = || {
            let by_rows = pipe.layout.eq(ScaleLayout::RowMajor as u32);
            let at = [by_rows.select(block, m), by_rows.select(m, block)];
            let at: Vec<U32<'k>> = at.into_iter().chain(tile.slab).collect();
            params.sfa_map.load(&at, slot, full, LoadOptions::default());
        };
        let load_piece = || {
            // A cluster's last tile may lie outside of A.
            let row = m.min(tile.rows - pipe.shape.rows);
            slot.bulk_load(tile.sfa.at(row, block), row_bytes, full);
        };
        k.if_(rows, || match pipe.shape.one_piece {
            true => k.if_else(pipe.packed(), load_piece, load_by_map),
            false => load_by_map(),
        });
        k.if_(columns, || {
            // A cluster's last tile may lie outside of B.
            let row = n.min(tile.columns - 1) / BLOCK_K;
            pipe.columns(slot).bulk_load(tile.sfb.at(row, block), column_bytes, full);
        });
    }
}

/// Producer of the scales that TMA cannot load: a warp that copies.
pub(crate) struct ScaleCopyProducer<'k> {
    pub(super) pipe: ScalePipeline<'k>,
    pub(super) cursor: Cursor<'k>,
    pub(super) lane: U32<'k>,
}

impl<'k> ScaleCopyProducer<'k> {
    /// Copies the scales of the group of `block`, of a tile's K blocks up to before `end`.
    pub fn copy(&self, tile: &TileView<'k>, block: U32<'k>, end: U32<'k>) {
        self.cursor.wait_empty();
        self.copy_now(tile, (scale_group_start(block, self.pipe.shape.group), end));
        // Its lanes have diverged, and go on to synchronize with other warps.
        self.pipe.k.sync_warp();
        self.cursor.advance();
    }

    /// The same for the group that begins with `block`, into a slot that is empty. Every lane arrives itself, because
    /// compute-sanitizer does not take one lane's arrival for the others.
    fn copy_now(&self, tile: &TileView<'k>, (block, end): (U32<'k>, U32<'k>)) {
        let (pipe, k) = (&self.pipe, self.pipe.k);
        let slot = pipe.slot(self.cursor.stage());
        let [rows_by_tma, columns_by_tma] = pipe.by_tma;
        k.if_(!columns_by_tma, || self.copy_columns(tile, pipe.columns(slot), (block, end)));
        k.if_(!rows_by_tma, || self.copy_rows(tile, slot, (block, end)));
        k.copies_wait();
        pipe.pipe.full(self.cursor.stage()).arrive();
    }

    fn copy_rows(&self, tile: &TileView<'k>, to: Shared<'k>, (block, end): (U32<'k>, U32<'k>)) {
        let (rows, m) = (self.pipe.shape.rows, tile.at[0]);
        self.pipe.k.for_(self.lane, self.pipe.shape.group * rows, WARP, |index| {
            let (later, row) = (index / rows, index % rows);
            let exists = (m + row).lt(tile.rows) & (block + later).lt(end);
            to.at(index * 4).copy_async(tile.sfa.at(m + row, block + later), 4, exists);
        });
    }

    fn copy_columns(&self, tile: &TileView<'k>, to: Shared<'k>, (block, end): (U32<'k>, U32<'k>)) {
        let shape = self.pipe.shape;
        self.pipe.k.for_(self.lane, shape.group * shape.columns, WARP, |index| {
            let later = index / shape.columns;
            let i = index - later * shape.columns;
            let (column, row) = tile.column_and_row(i * shape.columns_per_scale);
            let exists = column.lt(tile.columns) & (block + later).lt(end);
            let to = to.at((later * shape.column_pitch() + i) * 4);
            to.copy_async(tile.sfb.at(row / BLOCK_K, block + later), 4, exists);
        });
    }
}

/// Producer of all scales, a warp: one of its lanes loads by TMA, and all copy the rest.
pub(crate) struct ScaleProducer<'k> {
    /// Both with the same cursor.
    pub(super) tma: ScaleTmaProducer<'k>,
    pub(super) copy: ScaleCopyProducer<'k>,
}

impl<'k> ScaleProducer<'k> {
    /// Loads the scales of the group that begins with `block`.
    pub fn load(&self, params: &Params<'k>, tile: &TileView<'k>, block: U32<'k>) {
        let (pipe, k) = (&self.tma.pipe, self.tma.pipe.k);
        self.tma.cursor.wait_empty();
        k.if_(self.copy.lane.eq(0), || self.tma.load_now(params, tile, block));
        k.if_(pipe.copied(), || self.copy.copy_now(tile, (block, tile.k_blocks)));
        self.tma.cursor.advance();
    }

    /// Writes the message that no tile follows.
    pub fn end(&self) {
        let (pipe, k, stage) = (&self.tma.pipe, self.tma.pipe.k, self.tma.cursor.stage());
        let (message, full) = (pipe.message(pipe.slot(stage)), pipe.pipe.full(stage));
        self.tma.cursor.wait_empty();
        k.if_(self.copy.lane.eq(0), || {
            TileMessage::store_end(k, message);
            full.arrive();
        });
        k.if_(pipe.copied(), || full.arrive());
    }
}
