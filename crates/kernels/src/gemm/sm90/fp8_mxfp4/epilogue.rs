//! Epilogue of the persistent FP8 by MXFP4 kernel: accumulators, whose rows are columns of D, through shared memory to
//! rows of D.

use super::Block;
use super::config::ROWS_AT_ONCE;
use super::mainloop::MATH_THREADS;
use crate::common::WARP;
use crate::gemm::epilogue::fusion::{EpilogueParams, Fusion};
use crate::gemm::epilogue::split_k::{FusedRows, ReducedRows};
use crate::gemm::epilogue::{OutputFlags, OutputParams};
use crate::gemm::sm90::warpgroups::MATH_WARPS;
use crate::gemm::split_k::dsmem_reduce::DsmemReduce;
use oxigemm_ptx::{F32, U32, Var};

/// Rows that a warp takes at a time.
const IN_FLIGHT: u32 = 4;
/// Named barrier of the warps that multiply.
const MATH_BARRIER: u32 = 1;

/// A tile on its way to D.
#[derive(Clone, Copy)]
pub(super) struct OutputTile<'k> {
    /// Its first row and column of D.
    pub at: [U32<'k>; 2],
    /// The row of D behind the group's last, and the group, in m-grouped kernels.
    pub group: Option<[U32<'k>; 2]>,
}

impl<'k> Block<'k, '_> {
    /// Writes a tile to D. All consumer warps call it.
    pub(super) fn write(&self, tile: &OutputTile<'k>, accumulators: &[Vec<Var<'k, f32>>]) {
        let (k, warp, shape) = (self.k, self.warp, self.cfg.published());
        let area = self.shared.at(self.map.accumulators);
        let whole = k.constant(1);
        let published = DsmemReduce { shape, at: area, split: whole, rank: k.constant(0), fused: true };
        // All warps have read the rows of the tile before.
        k.barrier_sync(MATH_BARRIER, MATH_THREADS);
        for (subtile, accumulators) in (0u32..).zip(accumulators) {
            let rows_before = subtile * (ROWS_AT_ONCE / 16);
            published.publish(k, warp + rows_before, self.lane, accumulators);
        }
        k.barrier_sync(MATH_BARRIER, MATH_THREADS);

        let output = &self.output(tile);
        let columns = self.cfg.tile_columns();
        let rows = ReducedRows {
            k,
            pitch: shape.bytes() / shape.rows,
            at_once: (shape.rows / MATH_WARPS).clamp(1, IN_FLIGHT),
            parts: self.cfg.fusion.accumulators(),
            part_bytes: columns * 4,
            at: area.at(self.lane * 16),
            first: warp,
            step: k.constant(MATH_WARPS),
            end: published.rows(output, tile.at),
        };
        let [m, column] = [tile.at[0], tile.at[1] + self.lane * (columns / WARP)];
        match &self.epilogue {
            None => self.store_rows([m, column], &rows, output),
            Some(epilogue) => {
                let epilogue = self.epilogue_of(&epilogue.anew(k), tile);
                let rows_of = FusedRows::new(k, epilogue, *output, self.cfg.fusion, [column, self.lane]);
                rows_of.load_biases();
                rows_of.apply(m, &rows);
            }
        }
        // Lanes at edges have diverged, and multiply together next.
        k.sync_warp();
    }

    /// Stores rows as they are, or added to C.
    fn store_rows(&self, [m, column]: [U32<'k>; 2], rows: &ReducedRows<'k>, output: &OutputParams<'k>) {
        debug_assert_eq!(self.cfg.fusion, Fusion::None);
        let k = self.k;
        let each = |store: &dyn Fn(U32<'k>, [F32<'k>; 4])| {
            k.for_(rows.first, rows.end, rows.step, |row| {
                store(m + row, rows.at.at(row * rows.pitch).load_vec());
            });
        };
        k.if_else(
            output.has(OutputFlags::PLAIN),
            || each(&|row, values| output.store_plain_four(k, (row, k.constant(true)), column, values)),
            || each(&|row, values| output.store_four(k, row, column, values)),
        );
    }

    /// Output parameters of the tile's group.
    fn output(&self, tile: &OutputTile<'k>) -> OutputParams<'k> {
        let output = self.params.output;
        tile.group.map_or(output, |[end, _]| OutputParams { rows: end, ..output })
    }

    /// Epilogue parameters of the tile's group.
    fn epilogue_of(&self, epilogue: &EpilogueParams<'k>, tile: &OutputTile<'k>) -> EpilogueParams<'k> {
        match (tile.group, &self.grouped_epilogue, &self.m_groups) {
            (Some([_, group]), Some(strides), Some(groups)) => strides.of(epilogue, group, groups),
            _ => *epilogue,
        }
    }
}
