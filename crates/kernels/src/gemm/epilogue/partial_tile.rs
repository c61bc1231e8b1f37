//! Partial tiles of m-grouped kernels: output that ends inside a tile, where the rows of another group follow.

use super::{
    FOURS, OutputFlags, OutputParams, PANEL_BYTES, Panels, ROW_BYTES, WARP_ROWS, WarpOutput, chunk_offset,
};
use crate::common::WARP;
use oxigemm_ptx::{Kernel, Pred, U32};

impl<'k> OutputParams<'k> {
    /// Those of one slab of D and C, which are `stride` elements apart, for rows before `end`.
    pub(crate) fn in_slab(self, slab: U32<'k>, stride: U32<'k>, end: U32<'k>) -> Self {
        let elements = slab.widening_mul(stride);
        let bytes = elements << self.has(OutputFlags::F32).select::<u32>(2, 1);
        OutputParams { d: self.d.at(bytes), c: self.c.at(bytes), rows: end, ..self }
    }
}

impl<'k> OutputParams<'k> {
    /// Those of one slab of a quantized D, whose slabs are `stride` bytes apart.
    pub(crate) fn quantized_in_slab(self, slab: U32<'k>, stride: U32<'k>, end: U32<'k>) -> Self {
        OutputParams { d: self.d.at(slab.widening_mul(stride)), rows: end, ..self }
    }

    /// Those of D and C from a row on.
    pub(crate) fn beginning_at(self, row: U32<'k>) -> Self {
        let bytes =
            |pitch: U32<'k>| row.widening_mul(pitch) << self.has(OutputFlags::F32).select::<u32>(2, 1);
        OutputParams { d: self.d.at(bytes(self.d_pitch)), c: self.c.at(bytes(self.c_pitch)), ..self }
    }
}

impl<'k> Panels<'k> {
    /// Whether all of its rows lie before `end`: only then TMA may store them.
    pub fn is_before(&self, end: U32<'k>) -> Pred<'k> {
        (self.row + Self::MAP_TILE[0]).le(end)
    }
}

impl<'k> WarpOutput<'k, '_> {
    /// [`store_left_over`](Self::store_left_over) for rows that are not the last of D: where TMA may not
    /// store the panels, the lanes store those of the warp's rows that lie before [`rows`](super::OutputParams::rows).
    pub fn store_within(&self, k: &'k Kernel, columns: u32) {
        let end = self.params.rows;
        k.if_else(
            self.place.is_before(end),
            || self.store_left_over(k, columns),
            || {
                k.if_(self.first_row().lt(end), || {
                    let panels = columns.div_ceil(Self::PANEL_COLUMNS);
                    for (panel, column) in (0..panels).zip((0..columns).step_by(Self::PANEL_COLUMNS as usize))
                    {
                        let chunks = (columns - column).min(Self::PANEL_COLUMNS) / 8;
                        let staged = self.rows_of(0).at(panel * PANEL_BYTES);
                        self.copy_bf16(k, self.place.column + column, staged, chunks);
                    }
                });
            },
        );
    }

    /// The same for a panel of FP32, of which a row is 32 columns one after the other: adds C, if there is one.
    pub fn store_f32_within(&self, k: &'k Kernel) {
        let end = self.params.rows;
        let straddles = !self.place.is_before(end) & self.first_row().lt(end);
        k.if_(straddles, || {
            k.for_(self.lane, WARP_ROWS * FOURS, WARP, |index| {
                let (row, four) = (index / FOURS, index % FOURS);
                let accumulators = self.rows_of(0).at(chunk_offset(row, four)).load_vec::<f32, 4>();
                self.params.store_four(k, self.first_row() + row, self.place.column + four * 4, accumulators);
            });
        });
        k.sync_warp();
    }

    /// Columns of a panel of BF16.
    const PANEL_COLUMNS: u32 = ROW_BYTES / 2;
}
