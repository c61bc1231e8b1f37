//! Epilogue of the persistent 16-bit kernel: from accumulators to staging areas, and from there to D.

use super::Block;
use crate::gemm::epilogue::fp8_output::{QuantizedOutput, panels};
use crate::gemm::epilogue::fusion::{EpilogueFlags, EpilogueParams, FusedAccumulators};
use crate::gemm::epilogue::{OutputParams, Panels};
use crate::gemm::scheduler::m_grouped::{Grouping, TileGroup};
use crate::gemm::scheduler::stream_k::StreamKPart;
use crate::gemm::scheduler::tile::TileInfo;
use crate::gemm::sm90::store_pipeline::{AddOrder, StorePipeline};
use crate::gemm::sm90::warpgroups::{M_SUBTILE_STRIDE, MATH_WARPS};
use oxigemm_ptx::{Pred, Shared, U32, Var};

/// Tile of a kernel with a fused epilogue.
pub(super) struct FusedTile<'k> {
    /// Its first row, of the slab of its group in m-grouped kernels, and its first column of D.
    pub at: [U32<'k>; 2],
    /// Which of its passes, where there are several.
    pub pass: Option<U32<'k>>,
    /// Its group and the row behind the group's last, in m-grouped kernels.
    pub rows: Option<[U32<'k>; 2]>,
}

impl<'k> FusedTile<'k> {
    pub fn of(tile: &TileInfo<'k>) -> Self {
        let rows = tile.group.map(|group| [group.group, group.end]);
        FusedTile { at: [tile.m, tile.n], pass: tile.pass, rows }
    }
}

/// Rows of a group in D.
#[derive(Clone, Copy)]
struct GroupRows<'k> {
    group: U32<'k>,
    slab: U32<'k>,
    end: U32<'k>,
}

impl<'k> Block<'k, '_> {
    /// Store role: has TMA store what a consumer warpgroup has staged, as TMA makes the issuing thread wait.
    pub(super) fn store_tiles(&self) {
        let k = self.k;
        let warpgroup = (self.warp - MATH_WARPS) >> 1;
        let ([first_row, first_column], store_pipeline) =
            (self.cfg.shape().offset_of(warpgroup), self.store_pipeline(warpgroup));
        let parity = k.var(0u32);
        if self.epilogue.is_some() {
            let store = |tile| self.store_fused(warpgroup, &FusedTile::of(&tile), parity);
            return self.scheduler.for_each_tile(k, store);
        }
        match self.cfg.grouping {
            Grouping::Dense if self.fixups.is_some() => self.scheduler.for_each_tile(k, |tile| {
                let Some(part) = tile.part else { return };
                let stores = self.is_signalled(warpgroup, part, parity);
                k.if_(stores, || store_pipeline.store([tile.m + first_row, tile.n + first_column], parity));
            }),
            Grouping::Dense => self.scheduler.for_each_dense_tile(k, |m, n| {
                store_pipeline.store([m + first_row, n + first_column], parity);
            }),
            Grouping::K => self.scheduler.for_each_tile(k, |tile| {
                let Some(group) = tile.k_group else { return };
                let store_pipeline = store_pipeline.of_group(group.group, self.params.output.rows);
                let first = [tile.m + first_row, tile.n + first_column];
                self.unless_kept(group.k, || store_pipeline.store(first, parity));
            }),
            Grouping::Rows => self.scheduler.for_each_grouped_tile(k, |tile, TileGroup { slab, end, .. }| {
                let (row, column) = (tile.m + first_row, tile.n + first_column);
                k.if_(row.lt(end), || {
                    store_pipeline.in_slab(slab, self.d_slab(), end).store([row, column], parity);
                });
            }),
        }
    }

    /// Tells the store thread of a warpgroup, if there is one, whether a part is complete: as if that were staged, one
    /// batch before the part itself. `parity` is that of the warpgroup's staging area.
    pub(super) fn signal_store(
        &self,
        [warpgroup, lane]: [U32<'k>; 2],
        (part, complete): (StreamKPart<'k>, Pred<'k>),
        parity: Var<'k, u32>,
    ) {
        let Some(fixups) = self.fixups else { return };
        let is_stored = self.params.output.is_stored_by_tma(self.cfg.part().columns, None);
        let k = self.k;
        k.if_(part.fixup.exists() & is_stored, || {
            self.staged.empty(warpgroup).wait(parity.get());
            fixups.signal_store(warpgroup, complete);
            // No lane may still wait for what the store thread is about to release again.
            k.sync_warp();
            k.guard(lane.eq(0), || self.staged.full(warpgroup).arrive());
            parity.set(parity.live() ^ 1);
        });
    }

    /// The store thread's side of the same: whether to store a part. `parity` is its own.
    fn is_signalled(&self, warpgroup: U32<'k>, part: StreamKPart<'k>, parity: Var<'k, u32>) -> Pred<'k> {
        let (k, stores) = (self.k, self.k.var(1u32));
        k.if_(part.fixup.exists(), || {
            self.staged.full(warpgroup).wait(parity.get());
            let signalled = self.fixups.map(|fixups| fixups.is_signalled(warpgroup, part));
            stores.set(signalled.expect("a stream-K kernel").select::<u32>(1, 0));
            self.staged.empty(warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        });
        stores.get().ne(0)
    }

    /// Store pipeline of a warpgroup's part.
    pub(super) fn store_pipeline(&self, warpgroup: U32<'k>) -> StorePipeline<'k> {
        StorePipeline {
            k: self.k,
            params: self.params.output,
            slab: None,
            rows_follow: false,
            add_order: AddOrder::AtOnce,
            stores_f32: !self.cfg.is_fused(),
            shape: self.cfg.part(),
            panels: self.cfg.part().panels(),
            staging: self.staging(warpgroup),
            ring: self.staged,
            warpgroup,
        }
    }

    fn staging(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.staging).at(warpgroup * self.cfg.staging_bytes())
    }

    /// Elements from one slab of D, and of C, to the next, in m-grouped kernels.
    pub(super) fn d_slab(&self) -> U32<'k> {
        self.m_groups.expect("an m-grouped kernel").d_slab
    }

    fn rows_of(&self, tile: &FusedTile<'k>) -> Option<GroupRows<'k>> {
        let (Some(groups), Some([group, end])) = (&self.m_groups, tile.rows) else { return None };
        Some(GroupRows { group, slab: groups.slab_of(group), end })
    }

    /// The first row and column of D of a warpgroup's part of a tile.
    fn first_of(&self, warpgroup: U32<'k>, tile: &FusedTile<'k>) -> [U32<'k>; 2] {
        let [row, column] = self.cfg.shape().d_offset_of(warpgroup, self.scheduler.gate_up);
        [tile.at[0] + row, tile.at[1] + column]
    }

    /// The panels of a part in e4m3, with the last pass of its tile.
    fn quantized_panels(&self, warpgroup: U32<'k>, tile: &FusedTile<'k>) -> Vec<Panels<'k>> {
        let part = self.cfg.part();
        let shape = (part.m_subtiles, M_SUBTILE_STRIDE, part.columns);
        panels(self.staging(warpgroup), shape, self.first_of(warpgroup, tile))
    }

    /// Store pipeline of a part where D is rounded.
    fn rounded(&self, warpgroup: U32<'k>, rows: Option<GroupRows<'k>>) -> StorePipeline<'k> {
        let store_pipeline = self.store_pipeline(warpgroup);
        rows.map_or(store_pipeline, |GroupRows { slab, end, .. }| {
            store_pipeline.in_slab(slab, self.d_slab(), end)
        })
    }

    /// Output parameters where D is quantized.
    fn quantized(&self, rows: Option<GroupRows<'k>>) -> OutputParams<'k> {
        let output = self.params.output;
        rows.map_or(output, |GroupRows { slab, end, .. }| OutputParams {
            d: output.d.at(slab.widening_mul(self.d_slab())),
            rows: end,
            ..output
        })
    }

    fn fused(&self) -> &EpilogueParams<'k> {
        self.epilogue.as_ref().expect("a fused kernel")
    }

    /// Applies the fused epilogue to a consumer warp's accumulators of a tile, and writes them or stages them for the
    /// store thread. `parity` is that of the warpgroup's staging area, which begins as a producer's.
    pub(super) fn write_fused(
        &self,
        warpgroup: U32<'k>,
        tile: &FusedTile<'k>,
        accumulators: &[Vec<Var<'k, f32>>],
        parity: Var<'k, u32>,
    ) {
        let (k, output, fusion, lane) = (self.k, &self.params.output, self.cfg.fusion, self.lane);
        let (rows, first) = (self.rows_of(tile), self.first_of(warpgroup, tile));
        let params = match (rows, &self.grouped_epilogue) {
            (Some(rows), Some(groups)) => groups.in_slab(&self.fused().anew(k), [rows.group, rows.slab]),
            _ => self.fused().anew(k),
        };
        let (params, half, [_, column], columns) = (&params, output.half, first, output.columns);
        let accumulators =
            FusedAccumulators { k, params, fusion, half, column, columns, lane }.apply(accumulators);
        let (warp, staging, ring) = (self.warp & 3, self.staging(warpgroup), self.staged);
        k.if_else(
            params.has(EpilogueFlags::QUANTIZED),
            || {
                let output = &self.quantized(rows);
                let end = rows.map(|rows| rows.end);
                let quantized = QuantizedOutput { k, params, output, staging, ring, warpgroup, warp, lane };
                quantized.write(
                    &accumulators,
                    (tile.pass, end),
                    || self.quantized_panels(warpgroup, tile),
                    parity,
                );
            },
            || self.rounded(warpgroup, rows).write([warp, lane], first, &accumulators, parity),
        );
    }

    /// The store thread's side of the same. `parity` begins as a consumer's.
    fn store_fused(&self, warpgroup: U32<'k>, tile: &FusedTile<'k>, parity: Var<'k, u32>) {
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
                || self.scheduler.if_last_pass(k, tile.pass, quantized),
                || self.rounded(warpgroup, rows).store(first, parity),
            );
        };
        match rows {
            None => store(),
            // Nothing is staged of a part without rows.
            Some(rows) => k.if_(first[0].lt(rows.end), store),
        }
    }
}
