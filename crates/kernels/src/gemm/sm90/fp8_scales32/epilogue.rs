//! Epilogue of the persistent FP8 kernel with scales of 32: from accumulators to staging areas, and from there to D.

use super::Block;
use crate::gemm::epilogue::OutputParams;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::sm90::store_pipeline::{AddOrder, StorePipeline};
use crate::gemm::sm90::warpgroups::MATH_WARPS;
use oxigemm_ptx::{U32, Var};

impl<'k> Block<'k, '_> {
    /// Writes a consumer warp's accumulators of the tile at a row and column of D, or stages them for the store thread.
    /// `end` is the row of D behind the group's last, in m-grouped kernels. `parity` is that of the warpgroup's staging
    /// area, which begins as a producer's.
    pub(super) fn write(
        &self,
        [m, n]: [U32<'k>; 2],
        end: Option<U32<'k>>,
        accumulators: &[Var<'k, f32>],
        parity: Var<'k, u32>,
    ) {
        let warpgroup = self.warp >> 2;
        let [row, column] = self.cfg.shape().offset_of(warpgroup);
        let (warp, first) = ([self.warp & 3, self.lane], [m + row, n + column]);
        self.store_pipeline(warpgroup, end).write(warp, first, &[accumulators], parity);
    }

    /// Store role: has TMA store what a consumer warpgroup has staged, as TMA makes the issuing thread wait.
    pub(super) fn store_tiles(&self) {
        let k = self.k;
        let warpgroup = (self.warp - MATH_WARPS) >> 1;
        let [first_row, first_column] = self.cfg.shape().offset_of(warpgroup);
        let parity = k.var(0u32);
        match self.cfg.grouping {
            Grouping::Dense => self.scheduler.for_each_dense_tile(k, |m, n| {
                self.store_pipeline(warpgroup, None).store([m + first_row, n + first_column], parity);
            }),
            Grouping::Rows => self.scheduler.for_each_grouped_tile(k, |tile, group| {
                let (row, end) = (group.d_row() + tile.m + first_row, group.d_row() + group.end);
                // Nothing is staged of a part without rows.
                k.if_(row.lt(end), || {
                    self.store_pipeline(warpgroup, Some(end)).store([row, tile.n + first_column], parity);
                });
            }),
            Grouping::K => unreachable!("no such kernel is in the set"),
        }
    }

    /// Store pipeline of a warpgroup's part.
    fn store_pipeline(&self, warpgroup: U32<'k>, end: Option<U32<'k>>) -> StorePipeline<'k> {
        let output = self.params.output;
        StorePipeline {
            k: self.k,
            params: OutputParams { rows: end.unwrap_or(output.rows), ..output },
            slab: None,
            rows_follow: end.is_some(),
            add_order: AddOrder::AtOnce,
            stores_f32: self.cfg.tma_stores_f32(),
            shape: self.cfg.part(),
            panels: self.cfg.part().panels(),
            staging: self.shared.at(self.map.staging).at(warpgroup * self.cfg.staging_bytes()),
            ring: self.staged,
            warpgroup,
        }
    }
}
