//! Sums that are [finished](crate::gemm::epilogue::fusion) before they are stored.

use super::{Block, Config};
use crate::gemm::epilogue::fp8_output::{QuantizedOutput, panels, passes};
use crate::gemm::epilogue::fusion::{EpilogueFlags, EpilogueParams, FusedAccumulators, Fusion, GateUpRows};
use crate::gemm::epilogue::{OutputParams, Panels};
use crate::gemm::params::Params;
use crate::gemm::scheduler::TileInfo;
use crate::gemm::sm90::store_pipeline::StorePipeline;
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
        if self.is_fused() { QuantizedOutput::staging_bytes(part.m_subtiles, part.columns) } else { 0 }
    }

    /// Which rows of B a tile has, in how many passes.
    pub(super) fn gate_up<'k>(&self, params: &Params<'k>, passes: U32<'k>) -> GateUpRows<'k> {
        let columns = self.part().columns;
        GateUpRows { fusion: self.fusion, columns, stride: passes * columns, ups: params.output.columns }
    }
}

/// A tile whose sums are finished.
pub(super) struct FusedTile<'k> {
    /// Its first row, of the slab of its group if rows are grouped, and its first column of D.
    pub at: [U32<'k>; 2],
    /// Which of its passes, where there are some.
    pub pass: Option<U32<'k>>,
    /// Its group and the row behind the group's last, where rows are grouped.
    pub rows: Option<[U32<'k>; 2]>,
}

impl<'k> FusedTile<'k> {
    pub fn of(tile: &TileInfo<'k>) -> Self {
        let rows = tile.group.map(|place| [place.group, place.end]);
        FusedTile { at: [tile.m, tile.n], pass: tile.pass, rows }
    }
}

/// Where the rows of a group are, as the way to D needs it.
#[derive(Clone, Copy)]
struct GroupRows<'k> {
    group: U32<'k>,
    slab: U32<'k>,
    end: U32<'k>,
}

impl<'k> Block<'k, '_> {
    fn rows_of(&self, tile: &FusedTile<'k>) -> Option<GroupRows<'k>> {
        let (Some(grouped), Some([group, end])) = (&self.grouped, tile.rows) else { return None };
        Some(GroupRows { group, slab: grouped.slab_of(group), end })
    }

    /// The first row and column of D of a warpgroup's part of a tile.
    fn first_of(&self, warpgroup: U32<'k>, tile: &FusedTile<'k>) -> [U32<'k>; 2] {
        let [row, column] = self.cfg.shape().d_offset_of(warpgroup, self.params.gate_up);
        [tile.at[0] + row, tile.at[1] + column]
    }

    /// The panels of a part in e4m3, with the last pass of its tile.
    fn quantized_panels(&self, warpgroup: U32<'k>, tile: &FusedTile<'k>) -> Vec<Panels<'k>> {
        let part = self.cfg.part();
        panels(self.staging(warpgroup), (part.m_subtiles, part.columns), self.first_of(warpgroup, tile))
    }

    /// The way of a part to D where it is rounded.
    fn rounded(&self, warpgroup: U32<'k>, rows: Option<GroupRows<'k>>) -> StorePipeline<'k> {
        let store_pipeline = self.store_pipeline(warpgroup);
        rows.map_or(store_pipeline, |GroupRows { slab, end, .. }| {
            store_pipeline.in_slab(slab, self.d_slab(), end)
        })
    }

    /// The output where it is quantized.
    fn quantized(&self, rows: Option<GroupRows<'k>>) -> OutputParams<'k> {
        let output = self.params.output;
        rows.map_or(output, |GroupRows { slab, end, .. }| OutputParams {
            d: output.d.at(slab.widening_mul(self.d_slab())),
            rows: end,
            ..output
        })
    }

    fn fused(&self) -> &EpilogueParams<'k> {
        self.fused.as_ref().expect("sums are finished")
    }

    /// A math warp finishes its sums of a tile, and writes them or has them stored. `parity` is the warpgroup's place among
    /// its outputs, which begins as a writer's.
    pub(super) fn finish(
        &self,
        warpgroup: U32<'k>,
        tile: &FusedTile<'k>,
        sums: &[Vec<Var<'k, f32>>],
        parity: Var<'k, u32>,
    ) {
        let (k, output, fusion, lane) = (self.k, &self.params.output, self.cfg.fusion, self.lane);
        let (rows, first) = (self.rows_of(tile), self.first_of(warpgroup, tile));
        let params = match (rows, &self.fused_groups) {
            (Some(rows), Some(groups)) => groups.in_slab(&self.fused().anew(k), [rows.group, rows.slab]),
            _ => self.fused().anew(k),
        };
        let (params, half, [_, column], columns) = (&params, output.half, first, output.columns);
        let sums = FusedAccumulators { k, params, fusion, half, column, columns, lane }.finish(sums);
        let (warp, staging, ring) = (self.warp & 3, self.staging(warpgroup), self.staged);
        k.if_else(
            params.has(EpilogueFlags::QUANTIZED),
            || {
                let output = &self.quantized(rows);
                let end = rows.map(|rows| rows.end);
                let quantized = QuantizedOutput { k, params, output, staging, ring, warpgroup, warp, lane };
                quantized.write(&sums, (tile.pass, end), || self.quantized_panels(warpgroup, tile), parity);
            },
            || self.rounded(warpgroup, rows).write([warp, lane], first, &sums, parity),
        );
    }

    /// The storing thread's side of the same. `parity` begins as a reader's.
    pub(super) fn store_fused(&self, warpgroup: U32<'k>, tile: &FusedTile<'k>, parity: Var<'k, u32>) {
        let (k, d_map) = (self.k, &self.params.output.d_map);
        let (rows, first) = (self.rows_of(tile), self.first_of(warpgroup, tile));
        let quantized = || {
            self.staged.full(warpgroup).wait(parity.get());
            for panel in self.quantized_panels(warpgroup, tile) {
                match rows {
                    None => d_map.store(&[panel.column, panel.row], panel.staging),
                    Some(GroupRows { slab, end, .. }) => k.if_(panel.is_before(end), || {
                        d_map.store(&[panel.column, panel.row, slab], panel.staging);
                    }),
                }
            }
            k.bulk_commit();
            k.bulk_wait_read(0);
            self.staged.empty(warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        };
        let store = || {
            self.fused().store(
                k,
                self.cfg.part().columns,
                || self.place.if_last_pass(k, tile.pass, quantized),
                || self.rounded(warpgroup, rows).store(first, parity),
            );
        };
        match rows {
            None => store(),
            // Of a part without rows nothing is staged.
            Some(rows) => k.if_(first[0].lt(rows.end), store),
        }
    }
}
