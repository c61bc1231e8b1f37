//! Epilogue of the persistent FP8 kernel: from accumulators to staging areas, and from there to D.

use super::Block;
use crate::common::pipeline::Reader;
use crate::gemm::epilogue::fp8_output::{QuantizedOutput, panels};
use crate::gemm::epilogue::fusion::{EpilogueFlags, EpilogueParams, FusedAccumulators};
use crate::gemm::epilogue::{OutputFlags, OutputParams, PANEL_BYTES, Panels, WarpOutput};
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileInfo;
use crate::gemm::sm90::store_pipeline::{AddOrder, StorePipeline};
use crate::gemm::sm90::warpgroups::{M_SUBTILE_STRIDE, MATH_WARPGROUPS, MATH_WARPS};
use oxigemm_ptx::{Pred, Shared, U32, Var};

/// A warpgroup's part of a tile on its way to D.
#[derive(Clone, Copy)]
pub(super) struct OutputTile<'k> {
    pub warpgroup: U32<'k>,
    /// The first row and column of the tile.
    pub at: [U32<'k>; 2],
    /// The row of D behind the group's last, in grouped kernels.
    pub end: Option<U32<'k>>,
    /// The slab of D that these are rows of, where it is stored slab by slab.
    pub slab: Option<U32<'k>>,
    /// The group that these are rows of, where the epilogue depends on it.
    pub group: Option<U32<'k>>,
    /// The tile's K blocks.
    pub k_blocks: U32<'k>,
    /// Which of its passes, where there are several.
    pub pass: Option<U32<'k>>,
    /// Whether its accumulators are those of all K blocks, in stream-K kernels: else they are not written.
    pub complete: Option<Pred<'k>>,
}

impl<'k> Block<'k, '_> {
    /// Store role: has TMA store what a consumer warpgroup has staged, so that no consumer ever waits for TMA.
    pub(super) fn store_tiles(&self) {
        let k = self.k;
        match self.cfg.scales_of_b {
            ScalesOfB::Blocks => {
                let (warpgroup, parity) = ((self.warp - MATH_WARPS) >> 1, k.var(0u32));
                self.scheduler.for_each_tile(k, |tile| self.store(warpgroup, &tile, parity));
            }
            ScalesOfB::Rows => {
                let both = (0..MATH_WARPGROUPS).map(|warpgroup| (k.constant(warpgroup), k.var(0u32)));
                let both: Vec<_> = both.collect();
                self.scheduler.for_each_tile(k, |tile| {
                    both.iter().for_each(|&(warpgroup, _)| self.prefetch_addend(warpgroup, &tile));
                    both.iter().for_each(|&(warpgroup, parity)| self.store(warpgroup, &tile, parity));
                });
            }
        }
    }

    fn staging(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.staging).at(warpgroup * self.cfg.staging_bytes())
    }

    /// The first row and column of a warpgroup's part, in its tile.
    fn offset_of(&self, warpgroup: U32<'k>) -> [U32<'k>; 2] {
        self.cfg.shape().d_offset_of(warpgroup, self.scheduler.gate_up)
    }

    /// Where each 64 rows of a part are staged and belong.
    fn panels(&self, tile: &OutputTile<'k>) -> Vec<Panels<'k>> {
        let ([row, column], staging) = (self.offset_of(tile.warpgroup), self.staging(tile.warpgroup));
        let bytes = Panels::staging_bytes(self.cfg.part_columns());
        let subtile = |subtile| Panels {
            row: tile.at[0] + row + subtile * M_SUBTILE_STRIDE,
            column: tile.at[1] + column,
            staging: staging.at(subtile * bytes),
        };
        (0..self.cfg.shape().m_subtiles()).map(subtile).collect()
    }

    /// The same where D is quantized, for the columns of all passes; the tile is of the last.
    fn quantized_panels(&self, tile: &OutputTile<'k>) -> Vec<Panels<'k>> {
        let ([row, column], staging) = (self.offset_of(tile.warpgroup), self.staging(tile.warpgroup));
        let shape = (self.cfg.shape().m_subtiles(), M_SUBTILE_STRIDE, self.cfg.part_columns());
        panels(staging, shape, [tile.at[0] + row, tile.at[1] + column])
    }

    /// Store pipeline of a warpgroup's part, in 1D1D kernels.
    fn store_pipeline_of(
        &self,
        warpgroup: U32<'k>,
        output: &OutputParams<'k>,
        slab: Option<U32<'k>>,
    ) -> Option<StorePipeline<'k>> {
        (self.cfg.scales_of_b == ScalesOfB::Rows).then(|| StorePipeline {
            k: self.k,
            params: *output,
            slab,
            rows_follow: false,
            add_order: match self.cfg.grouping {
                Grouping::Dense => AddOrder::Prefetched,
                Grouping::Rows | Grouping::K => AddOrder::OneByOne,
            },
            stores_f32: true,
            shape: self.cfg.part(),
            panels: self.cfg.staging_bytes() / PANEL_BYTES,
            staging: self.staging(warpgroup),
            ring: self.staged,
            warpgroup,
        })
    }

    /// Writes a consumer warp's accumulators of a part, of which `first_row` is the first in the tile, or stages them
    /// for the store thread. `parity` is that of the warpgroup's staging area, which begins as a producer's.
    pub(super) fn write(
        &self,
        (tile, first_row): (&OutputTile<'k>, U32<'k>),
        accumulators: &[Vec<Var<'k, f32>>],
        parity: Var<'k, u32>,
    ) {
        let k = self.k;
        let slices = || accumulators.iter().map(Vec::as_slice).collect::<Vec<_>>();
        if let Some(store_pipeline) = self.store_pipeline_of(tile.warpgroup, &self.output(tile), None) {
            let [row, column] = self.offset_of(tile.warpgroup);
            let first = [tile.at[0] + row, tile.at[1] + column];
            return self.unless_kept(tile.k_blocks, || {
                store_pipeline.write([self.warp & 3, self.lane], first, &slices(), parity);
            });
        }
        let Some(epilogue) = &self.epilogue else {
            return self.write_rounded((tile, first_row), &slices(), parity);
        };
        let epilogue = &self.epilogue_of(&epilogue.anew(k), tile.group);
        let output = &self.params.output;
        let column = tile.at[1] + self.offset_of(tile.warpgroup)[1];
        let (fusion, half, columns, lane) = (self.cfg.fusion, output.half, output.columns, self.lane);
        let accumulators = FusedAccumulators { k, params: epilogue, fusion, half, column, columns, lane }
            .apply(accumulators);
        k.if_else(
            epilogue.has(EpilogueFlags::QUANTIZED),
            || self.write_quantized(epilogue, tile, &accumulators, parity),
            || self.write_rounded((tile, first_row), &accumulators, parity),
        );
    }

    /// Epilogue parameters of a group.
    fn epilogue_of(&self, epilogue: &EpilogueParams<'k>, group: Option<U32<'k>>) -> EpilogueParams<'k> {
        match (group, &self.grouped_epilogue, &self.m_groups) {
            (Some(group), Some(strides), Some(groups)) => strides.of(epilogue, group, groups),
            _ => *epilogue,
        }
    }

    /// Output parameters of the part's group.
    fn output(&self, tile: &OutputTile<'k>) -> OutputParams<'k> {
        let output = self.params.output;
        let end = tile.end.unwrap_or(output.rows);
        match (tile.slab, &self.m_groups) {
            (Some(slab), Some(groups)) => output.in_slab(slab, groups.d_slab, end),
            _ => OutputParams { rows: end, ..output },
        }
    }

    /// Runs `body` where the accumulators are those of the whole tile.
    fn if_complete(&self, tile: &OutputTile<'k>, body: impl FnOnce()) {
        match tile.complete {
            Some(complete) => self.k.if_(complete, body),
            None => body(),
        }
    }

    fn write_rounded(
        &self,
        (tile, first_row): (&OutputTile<'k>, U32<'k>),
        accumulators: &[&[Var<'k, f32>]],
        parity: Var<'k, u32>,
    ) {
        let (k, columns, output) = (self.k, self.cfg.part_columns(), self.output(tile));
        let OutputTile { warpgroup, at, end, .. } = *tile;
        let rows = |place| WarpOutput { params: &output, place, warp: self.warp & 3, lane: self.lane };
        let panels = self.panels(tile).into_iter().map(rows);
        let parts: Vec<_> = panels.zip(accumulators.iter().copied()).collect();
        let by_tma = || {
            let stage = || {
                if let (Some(fixups), Some(complete)) = (self.fixups, tile.complete) {
                    fixups.signal_store(tile.warpgroup, complete);
                }
                self.if_complete(tile, || {
                    parts.iter().for_each(|(part, accumulators)| part.stage(k, accumulators))
                });
            };
            let reader = Reader::of_panels(Panels::some_are_whole(columns));
            self.staged.write_stage(reader, (warpgroup, self.lane), parity, stage);
            self.if_complete(tile, || {
                for (part, _) in &parts {
                    match end {
                        None => part.store_left_over(k, columns),
                        Some(_) => part.store_within(k, columns),
                    }
                }
            });
        };
        let in_f32 = || match end {
            None => self.if_complete(tile, || WarpOutput::write_f32(k, &parts)),
            Some(end) => {
                k.if_((at[0] + first_row).lt(end), || WarpOutput::write_f32(k, &parts));
            }
        };
        k.if_else(output.has(OutputFlags::PLAIN), by_tma, in_f32);
    }

    fn write_quantized(
        &self,
        epilogue: &EpilogueParams<'k>,
        tile: &OutputTile<'k>,
        accumulators: &[&[Var<'k, f32>]],
        parity: Var<'k, u32>,
    ) {
        let rows = QuantizedOutput {
            k: self.k,
            params: epilogue,
            output: &self.output(tile),
            staging: self.staging(tile.warpgroup),
            ring: self.staged,
            warpgroup: tile.warpgroup,
            warp: self.warp & 3,
            lane: self.lane,
        };
        rows.write(accumulators, (tile.pass, tile.end), || self.quantized_panels(tile), parity);
    }

    /// Prefetches what a warpgroup's part of a tile will be added to, where that pays.
    fn prefetch_addend(&self, warpgroup: U32<'k>, tile: &TileInfo<'k>) {
        if let Some(store_pipeline) = self.store_pipeline_of(warpgroup, &self.params.output, None) {
            let [row, column] = self.offset_of(warpgroup);
            store_pipeline.prefetch([tile.m + row, tile.n + column]);
        }
    }

    /// Waits for a warpgroup's part of a tile to be staged, and has TMA store it.
    fn store(&self, warpgroup: U32<'k>, tile: &TileInfo<'k>, parity: Var<'k, u32>) {
        let (k, output) = (self.k, &self.params.output);
        let k_blocks = tile.k_group.map_or(self.params.k_blocks, |group| group.k);
        let slab = tile.k_group.map(|group| group.group);
        if let Some(store_pipeline) = self.store_pipeline_of(warpgroup, output, slab) {
            let [row, column] = self.offset_of(warpgroup);
            return self
                .unless_kept(k_blocks, || store_pipeline.store([tile.m + row, tile.n + column], parity));
        }
        self.scheduler.if_last_pass(k, tile.pass, || {
            self.staged.full(warpgroup).wait(parity.get());
            let (row, end, slab) = match tile.group {
                None => (tile.m, None, None),
                Some(group) if self.cfg.d_in_slabs => (tile.m, Some(group.end), Some(group.slab)),
                Some(group) => {
                    let d_row = group.d_row();
                    (d_row + tile.m, Some(d_row + group.end), None)
                }
            };
            let pass = tile.pass;
            let signalled = |part| Some(self.fixups?.is_signalled(warpgroup, part));
            let complete = tile.part.and_then(signalled);
            let at = [row, tile.n];
            let tile = OutputTile { warpgroup, at, end, slab, group: None, k_blocks, pass, complete };
            self.if_complete(&tile, || self.store_staged(&tile));
            k.bulk_commit();
            k.bulk_wait_read(0);
            self.staged.empty(warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        });
    }

    /// Has TMA store what is staged of a part.
    fn store_staged(&self, tile: &OutputTile<'k>) {
        let (k, output, columns) = (self.k, &self.params.output, self.cfg.part_columns());
        let each = |panels: Vec<Panels<'k>>, store: &dyn Fn(&Panels<'k>)| {
            for panels in &panels {
                match tile.end {
                    None => store(panels),
                    Some(end) => k.if_(panels.is_before(end), || store(panels)),
                }
            }
        };
        let rounded = || each(self.panels(tile), &|panels| panels.store_in(tile.slab, output, columns));
        match &self.epilogue {
            None => rounded(),
            Some(epilogue) => {
                let quantized = || {
                    each(self.quantized_panels(tile), &|panel| {
                        output.d_map.store(&[panel.column, panel.row], panel.staging);
                    });
                };
                epilogue.store(k, columns, quantized, rounded);
            }
        }
    }
}
