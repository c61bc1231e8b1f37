//! Sums that are [finished](crate::epilogue::fused) before they are stored.

use super::{Block, Config};
use crate::cluster::TilePlace;
use crate::epilogue::Panels;
use crate::epilogue::fused::{FusedFlags, FusedParams, Fusion, Pieces, Sums};
use crate::epilogue::quantized::{QuantizedOutput, panels, passes};
use crate::params::Params;
use oxigemm_ptx::{U32, Var};

impl Config {
    /// Whether sums are finished before they are stored.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    /// Columns of D that a tile's sums become.
    pub fn tile_columns(&self) -> u32 {
        self.block_n / self.fusion.sums()
    }

    /// How many times a block computes that many columns for D to be quantized.
    pub fn quantized_passes(&self) -> u32 {
        if self.is_fused() { passes(self.part().columns) } else { 1 }
    }

    /// Bytes of a staging area that a warpgroup needs for D to be quantized.
    pub(super) fn quantized_bytes(&self) -> u32 {
        let part = self.part();
        if self.is_fused() { QuantizedOutput::staging_bytes(part.waves, part.columns) } else { 0 }
    }

    /// Which rows of B a tile has, in how many passes.
    pub(super) fn pieces<'k>(&self, params: &Params<'k>, passes: U32<'k>) -> Pieces<'k> {
        let columns = self.part().columns;
        Pieces { fusion: self.fusion, columns, stride: passes * columns, ups: params.output.columns }
    }
}

impl<'k> Block<'k, '_> {
    /// The first row and column of D of a warpgroup's part of a tile.
    fn first_finished(&self, warpgroup: U32<'k>, tile: &TilePlace<'k>) -> [U32<'k>; 2] {
        let [row, column] = self.cfg.shape().part_of(warpgroup);
        let column = match (self.params.pieces, column.as_constant()) {
            (Some(pieces), None) => warpgroup * pieces.stride,
            _ => column,
        };
        [tile.m + row, tile.n + column]
    }

    /// The panels of a part in e4m3, with the last pass of its tile.
    fn quantized_panels(&self, warpgroup: U32<'k>, tile: &TilePlace<'k>) -> Vec<Panels<'k>> {
        let part = self.cfg.part();
        panels(self.staging(warpgroup), (part.waves, part.columns), self.first_finished(warpgroup, tile))
    }

    /// A math warp finishes its sums of a tile, and writes them or has them stored. `parity` is the warpgroup's place among
    /// its outputs, which begins as a writer's.
    pub(super) fn finish(
        &self,
        (fused, warpgroup): (&FusedParams<'k>, U32<'k>),
        tile: &TilePlace<'k>,
        sums: &[Vec<Var<'k, f32>>],
        parity: Var<'k, u32>,
    ) {
        let (k, output, fusion, lane) = (self.k, &self.params.output, self.cfg.fusion, self.lane);
        let (params, first) = (&fused.anew(k), self.first_finished(warpgroup, tile));
        let (half, [_, column], columns) = (output.half, first, output.columns);
        let sums = Sums { k, params, fusion, half, column, columns, lane }.finish(sums);
        let (warp, staging, ring) = (self.warp & 3, self.staging(warpgroup), self.staged);
        k.if_else(
            fused.has(FusedFlags::QUANTIZED),
            || {
                let rows = QuantizedOutput { k, params, output, staging, ring, warpgroup, warp, lane };
                rows.write(&sums, (tile.pass, None), || self.quantized_panels(warpgroup, tile), parity);
            },
            || self.outbox(warpgroup).write([warp, lane], first, &sums, parity),
        );
    }

    /// The storing thread's side of the same. `parity` begins as a reader's.
    pub(super) fn store_finished(
        &self,
        (fused, warpgroup): (&FusedParams<'k>, U32<'k>),
        tile: &TilePlace<'k>,
        parity: Var<'k, u32>,
    ) {
        let k = self.k;
        let quantized = || {
            self.staged.full(warpgroup).wait(parity.get());
            for panel in self.quantized_panels(warpgroup, tile) {
                self.params.output.d_map.store(&[panel.column, panel.row], panel.staging);
            }
            k.bulk_commit();
            k.bulk_wait_read(0);
            self.staged.empty(warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        };
        k.if_else(
            fused.has(FusedFlags::QUANTIZED),
            || self.place.if_last_pass(k, tile.pass, quantized),
            || self.outbox(warpgroup).store(self.first_finished(warpgroup, tile), parity),
        );
    }
}
