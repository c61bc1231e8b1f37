//! The way of a warpgroup's part of a tile from its sums to D.

use super::Block;
use crate::common::pipeline::Reader;
use crate::gemm::epilogue::fp8_output::{QuantizedOutput, panels};
use crate::gemm::epilogue::fusion::{EpilogueFlags, EpilogueParams, FusedAccumulators};
use crate::gemm::epilogue::{OutputFlags, OutputParams, PANEL_BYTES, Panels, WarpOutput};
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::TileInfo;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::sm90::store_pipeline::{AddOrder, StorePipeline};
use crate::gemm::sm90::warpgroups::M_SUBTILE_STRIDE;
use oxigemm_ptx::{Pred, Shared, U32, Var};

/// A warpgroup's part of a tile.
#[derive(Clone, Copy)]
pub(super) struct Part<'k> {
    pub warpgroup: U32<'k>,
    /// The first row and column of the tile.
    pub tile: [U32<'k>; 2],
    /// The row of D behind the group's last, where rows are grouped.
    pub end: Option<U32<'k>>,
    /// The slab of D that these are rows of, where it is stored slab by slab.
    pub slab: Option<U32<'k>>,
    /// The group that these are rows of, where it is asked for.
    pub group: Option<U32<'k>>,
    /// The tile's blocks of K.
    pub k_blocks: U32<'k>,
    /// Which of its passes, where tiles are computed in some.
    pub pass: Option<U32<'k>>,
    /// Whether its sums are all of K's, where tiles are shared out along K: else they are not written.
    pub complete: Option<Pred<'k>>,
}

impl<'k> Block<'k, '_> {
    fn staging(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.staging).at(warpgroup * self.cfg.staging_bytes())
    }

    /// The first row and column of a warpgroup's part, in its tile.
    fn part_of(&self, warpgroup: U32<'k>) -> [U32<'k>; 2] {
        self.cfg.shape().d_offset_of(warpgroup, self.params.gate_up)
    }

    /// Where each 64 rows of a part are staged and belong.
    fn panels(&self, part: &Part<'k>) -> Vec<Panels<'k>> {
        let ([row, column], staging) = (self.part_of(part.warpgroup), self.staging(part.warpgroup));
        let bytes = Panels::staging_bytes(self.cfg.part_columns());
        let subtile = |subtile| Panels {
            row: part.tile[0] + row + subtile * M_SUBTILE_STRIDE,
            column: part.tile[1] + column,
            staging: staging.at(subtile * bytes),
        };
        (0..self.cfg.shape().m_subtiles()).map(subtile).collect()
    }

    /// The same where D is quantized, for the columns of all passes; `part` is of the last.
    fn quantized_panels(&self, part: &Part<'k>) -> Vec<Panels<'k>> {
        let ([row, column], staging) = (self.part_of(part.warpgroup), self.staging(part.warpgroup));
        let shape = (self.cfg.shape().m_subtiles(), self.cfg.part_columns());
        panels(staging, shape, [part.tile[0] + row, part.tile[1] + column])
    }

    /// Does what writes a tile's output, unless its group is empty and D is left as it is.
    fn unless_kept(&self, k_blocks: U32<'k>, write: impl FnOnce()) {
        match self.k_groups {
            Some(groups) => self.k.if_(k_blocks.ne(0) | groups.params.keeps_empty.eq(0), write),
            None => write(),
        }
    }

    /// The way of a warpgroup's part to D in rounds, where it takes that.
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
            room: self.cfg.staging_bytes() / PANEL_BYTES,
            staging: self.staging(warpgroup),
            ring: self.store_pipeline,
            warpgroup,
        })
    }

    /// A math warp writes its sums of a part, of which `first_row` is the first in the tile, or has them written by a
    /// thread that does not multiply. `parity` is the warpgroup's place among its outputs, which begins as a writer's.
    pub(super) fn write(
        &self,
        (part, first_row): (&Part<'k>, U32<'k>),
        sums: &[Vec<Var<'k, f32>>],
        parity: Var<'k, u32>,
    ) {
        let k = self.k;
        let slices = || sums.iter().map(Vec::as_slice).collect::<Vec<_>>();
        if let Some(store_pipeline) = self.store_pipeline_of(part.warpgroup, &self.output(part), None) {
            let [row, column] = self.part_of(part.warpgroup);
            let first = [part.tile[0] + row, part.tile[1] + column];
            return self.unless_kept(part.k_blocks, || {
                store_pipeline.write([self.warp & 3, self.lane], first, &slices(), parity);
            });
        }
        let Some(fused) = &self.fused else {
            return self.write_rounded((part, first_row), &slices(), parity);
        };
        let fused = &self.of_group(&fused.anew(k), part.group);
        let output = &self.params.output;
        let column = part.tile[1] + self.part_of(part.warpgroup)[1];
        let (fusion, half, columns, lane) = (self.cfg.fusion, output.half, output.columns, self.lane);
        let sums = FusedAccumulators { k, params: fused, fusion, half, column, columns, lane }.finish(sums);
        k.if_else(
            fused.has(EpilogueFlags::QUANTIZED),
            || self.write_quantized(fused, part, &sums, parity),
            || self.write_rounded((part, first_row), &sums, parity),
        );
    }

    /// What sums of a group are finished with.
    fn of_group(&self, fused: &EpilogueParams<'k>, group: Option<U32<'k>>) -> EpilogueParams<'k> {
        match (group, &self.fused_groups, &self.grouped) {
            (Some(group), Some(strides), Some(grouped)) => strides.of(fused, group, grouped),
            _ => *fused,
        }
    }

    /// The output as the rows of the part's group have it.
    fn output(&self, part: &Part<'k>) -> OutputParams<'k> {
        let output = self.params.output;
        let end = part.end.unwrap_or(output.rows);
        match (part.slab, &self.grouped) {
            (Some(slab), Some(grouped)) => output.in_slab(slab, grouped.d_slab, end),
            _ => OutputParams { rows: end, ..output },
        }
    }

    fn write_rounded(
        &self,
        (part, first_row): (&Part<'k>, U32<'k>),
        sums: &[&[Var<'k, f32>]],
        parity: Var<'k, u32>,
    ) {
        let (k, columns, output) = (self.k, self.cfg.part_columns(), self.output(part));
        let Part { warpgroup, tile, end, .. } = *part;
        let rows = |place| WarpOutput { params: &output, place, warp: self.warp & 3, lane: self.lane };
        let panels = self.panels(part).into_iter().map(rows);
        let parts: Vec<_> = panels.zip(sums.iter().copied()).collect();
        let by_tma = || {
            let stage = || {
                self.signal_store_warp(part);
                self.if_complete(part, || parts.iter().for_each(|(part, sums)| part.stage(k, sums)));
            };
            let reader = Reader::of_panels(Panels::some_are_whole(columns));
            self.store_pipeline.write_stage(reader, (warpgroup, self.lane), parity, stage);
            self.if_complete(part, || {
                for (part, _) in &parts {
                    match end {
                        None => part.store_left_over(k, columns),
                        Some(_) => part.store_within(k, columns),
                    }
                }
            });
        };
        let in_f32 = || match end {
            None => self.if_complete(part, || WarpOutput::write_f32(k, &parts)),
            Some(end) => {
                k.if_((tile[0] + first_row).lt(end), || WarpOutput::write_f32(k, &parts));
            }
        };
        k.if_else(output.has(OutputFlags::PLAIN), by_tma, in_f32);
    }

    fn write_quantized(
        &self,
        fused: &EpilogueParams<'k>,
        part: &Part<'k>,
        sums: &[&[Var<'k, f32>]],
        parity: Var<'k, u32>,
    ) {
        let rows = QuantizedOutput {
            k: self.k,
            params: fused,
            output: &self.output(part),
            staging: self.staging(part.warpgroup),
            ring: self.store_pipeline,
            warpgroup: part.warpgroup,
            warp: self.warp & 3,
            lane: self.lane,
        };
        rows.write(sums, (part.pass, part.end), || self.quantized_panels(part), parity);
    }

    /// The storing thread has what a warpgroup's part of a tile will be added to fetched, where that pays.
    pub(super) fn prefetch_addend(&self, warpgroup: U32<'k>, tile: &TileInfo<'k>) {
        if let Some(store_pipeline) = self.store_pipeline_of(warpgroup, &self.params.output, None) {
            let [row, column] = self.part_of(warpgroup);
            store_pipeline.prefetch([tile.m + row, tile.n + column]);
        }
    }

    /// The storing thread waits for a warpgroup's part of a tile to be staged, and has it stored.
    pub(super) fn store(&self, warpgroup: U32<'k>, tile: &TileInfo<'k>, parity: Var<'k, u32>) {
        let (k, output) = (self.k, &self.params.output);
        let k_blocks = tile.k_group.map_or(self.params.k_blocks, |group| group.k);
        let slab = tile.k_group.map(|group| group.group);
        if let Some(store_pipeline) = self.store_pipeline_of(warpgroup, output, slab) {
            let [row, column] = self.part_of(warpgroup);
            return self
                .unless_kept(k_blocks, || store_pipeline.store([tile.m + row, tile.n + column], parity));
        }
        self.place.if_last_pass(k, tile.pass, || {
            self.store_pipeline.full(warpgroup).wait(parity.get());
            let (row, end, slab) = match tile.group {
                None => (tile.m, None, None),
                Some(group) if self.cfg.d_in_slabs => (tile.m, Some(group.end), Some(group.slab)),
                Some(group) => {
                    let d_row = group.d_row();
                    (d_row + tile.m, Some(d_row + group.end), None)
                }
            };
            let pass = tile.pass;
            let complete = tile.part.map(|part| self.is_signalled(warpgroup, part));
            let part =
                Part { warpgroup, tile: [row, tile.n], end, slab, group: None, k_blocks, pass, complete };
            self.if_complete(&part, || self.store_staged(&part));
            k.bulk_commit();
            k.bulk_wait_read(0);
            self.store_pipeline.empty(warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        });
    }

    /// Has the copy engine store what is staged of a part.
    fn store_staged(&self, part: &Part<'k>) {
        let (k, output, columns) = (self.k, &self.params.output, self.cfg.part_columns());
        let each = |panels: Vec<Panels<'k>>, store: &dyn Fn(&Panels<'k>)| {
            for panels in &panels {
                match part.end {
                    None => store(panels),
                    Some(end) => k.if_(panels.is_before(end), || store(panels)),
                }
            }
        };
        let rounded = || each(self.panels(part), &|panels| panels.store_in(part.slab, output, columns));
        match &self.fused {
            None => rounded(),
            Some(fused) => {
                let quantized = || {
                    each(self.quantized_panels(part), &|panel| {
                        output.d_map.store(&[panel.column, panel.row], panel.staging);
                    });
                };
                fused.store(k, columns, quantized, rounded);
            }
        }
    }
}
