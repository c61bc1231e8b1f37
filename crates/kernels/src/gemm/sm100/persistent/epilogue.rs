//! Epilogue of the persistent kernel: from tensor memory to D.
//!
//! A warp reads its quarter of the lanes, 32 rows, as two fragments of 16: those that `wgmma` gives to two of the four warps
//! of 64 rows. So what follows is shared with Hopper: fused epilogue, rounding, staging, quantization. Each warp has TMA
//! store its own rows.

use super::config::BUFFERS;
use super::tensor_memory::Accumulator;
use super::{Block, EPILOGUE_WARP};
use crate::gemm::epilogue::BlockOutput;
use crate::gemm::epilogue::block_output::BlockRows;
use crate::gemm::epilogue::fp8_output::QuantizedRows;
use crate::gemm::epilogue::fusion::{EpilogueFlags, EpilogueParams, FusedAccumulators, SCALED_COLUMNS};
use crate::gemm::epilogue::{
    OutputFlags, OutputParams, PANEL_BYTES, Panels, ROW_BYTES, WARP_ROWS, WarpOutput,
};
use crate::gemm::scheduler::launch_control::Reader;
use crate::gemm::scheduler::m_grouped::TileGroup;
use crate::gemm::scheduler::tile::TileInfo;
use oxigemm_ptx::tcgen05::TensorMemory;
use oxigemm_ptx::{F32, Global, MBarrier, Ptr, Shared, U32, Var};

/// Rows of an epilogue warp: TMA stores so many at a time.
pub(in crate::gemm::sm100) const ROWS: u32 = 32;
/// Columns of D that a warp writes at a time where D is not quantized: those of a panel.
pub(super) const COLUMNS: u32 = 64;

/// A warp's part of a tile.
struct Part<'k> {
    /// The accumulators of its rows.
    accumulator: Accumulator<'k>,
    /// Ends a phase when they are read.
    read: MBarrier<'k>,
    /// The first row of the 64 that its rows belong to, and the tile's first column of D.
    first: [U32<'k>; 2],
    group: Option<TileGroup<'k>>,
    /// The slab of D where there are several.
    slab: Option<U32<'k>>,
    output: OutputParams<'k>,
    epilogue: Option<EpilogueParams<'k>>,
}

impl<'k> Block<'k, '_> {
    /// Epilogue: every tile of this CTA, while the next one is multiplied.
    pub(super) fn write_tiles(&self, memory: TensorMemory<'k>) {
        let (k, cfg) = (self.k, self.cfg);
        let quarter = self.warp - EPILOGUE_WARP;
        let computed = self.accumulators.reader();
        // Which of the warp's staging buffers comes next.
        let buffer = k.var(0u32);
        self.for_each_tile(Reader::Warp(self.lane), |tile| {
            computed.wait_full();
            k.tcgen05_fence_after();
            let accumulator = self.accumulator(memory.lane(quarter * ROWS), &computed, 0);
            let read = self.accumulators.empty(computed.stage());
            let part = self.part(&tile, (accumulator, read), quarter);
            match &part.epilogue {
                None => self.write_rounded(&part, quarter, buffer),
                Some(epilogue) => k.if_else(
                    epilogue.has(EpilogueFlags::QUANTIZED),
                    || self.write_quantized(&part, epilogue, quarter, buffer),
                    || self.write_rounded(&part, quarter, buffer),
                ),
            }
            if !cfg.shares_columns() {
                self.release(&part);
            }
            computed.advance();
        });
        // TMA reads what is staged until then.
        k.bulk_wait_read(0);
    }

    /// Tells the MMA role that this warp has read the accumulators.
    fn release(&self, part: &Part<'k>) {
        let k = self.k;
        k.tcgen05_fence_before();
        k.sync_warp();
        k.if_(self.lane.eq(0), || self.arrive_at_leader(part.read));
    }

    fn part(
        &self,
        tile: &TileInfo<'k>,
        (accumulator, read): (Accumulator<'k>, MBarrier<'k>),
        quarter: U32<'k>,
    ) -> Part<'k> {
        let (k, group) = (self.k, tile.group);
        let output = match (group, &self.m_groups) {
            (Some(group), Some(groups)) => self.output_of_group(&group, groups.d_slab),
            _ => {
                tile.k_group.map_or(self.params.output, |group| self.params.output.beginning_at(group.d_row))
            }
        };
        let slab = group.map(|group| group.slab).or(tile.k_group.map(|group| group.group));
        let epilogue = self.epilogue.map(|epilogue| match (group, &self.grouped_epilogue) {
            (Some(group), Some(groups)) => groups.in_slab(&epilogue.anew(k), [group.group, group.slab]),
            _ => epilogue.anew(k),
        });
        let first = [tile.m + (quarter >> 1) * 64, tile.n];
        Part { accumulator, read, first, group, slab, output, epilogue }
    }

    /// Output parameters of a group, where slabs of D are so many elements apart.
    fn output_of_group(&self, group: &TileGroup<'k>, d_slab: U32<'k>) -> OutputParams<'k> {
        let (output, TileGroup { slab, end, .. }) = (self.params.output, *group);
        let rounded = OutputParams { c: self.c_of_slab(slab, d_slab), ..output.in_slab(slab, d_slab, end) };
        let Some(epilogue) = &self.epilogue else { return rounded };
        let quantized = output.quantized_in_slab(slab, d_slab, end);
        let d = epilogue.has(EpilogueFlags::QUANTIZED).select(quantized.d.address(), rounded.d.address());
        OutputParams { d: Ptr::new(d), ..rounded }
    }

    /// C of a slab. Operands with scales have slabs of C that are as many rows apart as those of D, of a pitch of their own;
    /// others as many elements.
    fn c_of_slab(&self, slab: U32<'k>, d_slab: U32<'k>) -> Global<'k> {
        let output = self.params.output;
        match self.cfg.operands.has_scales() {
            true => output.beginning_at(slab * (d_slab / output.d_pitch)).c,
            false => output.in_slab(slab, d_slab, output.rows).c,
        }
    }

    /// The warp's place in 64 rows, as `wgmma` numbers its warps: that of the `half`-th 16 of its rows.
    fn virtual_warp(quarter: U32<'k>, half: U32<'k>) -> U32<'k> {
        (quarter & 1) * 2 + half
    }

    /// The next staging buffer of 64 rows, when TMA has read what this warp has staged there.
    fn next_buffer(&self, quarter: U32<'k>, buffer: Var<'k, u32>) -> Shared<'k> {
        let k = self.k;
        k.bulk_wait_read(BUFFERS - 1);
        k.sync_warp();
        let nth = buffer.get();
        buffer.set(nth ^ 1);
        let panels = self.shared.at(self.map.staging).at((quarter >> 1) * (BUFFERS * PANEL_BYTES));
        panels.at(nth * PANEL_BYTES)
    }

    /// The accumulators of 16 rows and some columns of D from `column` of the tile on; with a gate, those of the gates and
    /// then those of the ups.
    fn load(&self, part: &Part<'k>, half: U32<'k>, column: U32<'k>, columns: u32) -> Vec<Var<'k, f32>> {
        let k = self.k;
        let rows = part.accumulator.memory.lane(half * WARP_ROWS);
        let parts = (0..self.cfg.fusion.accumulators()).map(|nth| nth * self.cfg.tile_columns());
        let words: Vec<U32<'k>> =
            parts.flat_map(|first| rows.column(column + first).load_fragment(columns)).collect();
        k.tensor_memory_wait_loads();
        words.into_iter().map(|word| k.var_from(word.bitcast::<f32>())).collect()
    }

    /// Applies the fused epilogue, if there is one, and gives the elements of D but for C.
    fn finish<'s>(
        &self,
        part: &Part<'k>,
        column: U32<'k>,
        accumulators: &'s [Vec<Var<'k, f32>>],
    ) -> Vec<&'s [Var<'k, f32>]> {
        let (k, lane) = (self.k, self.lane);
        match &part.epilogue {
            None => accumulators.iter().map(Vec::as_slice).collect(),
            Some(params) => {
                let (half, columns) = (self.params.output.half, self.params.output.columns);
                let fusion = self.cfg.fusion;
                FusedAccumulators { k, params, fusion, half, column, columns, lane }.apply(accumulators)
            }
        }
    }

    /// Writes the warp's rows in 16 bits or FP32, a panel of 64 columns at a time.
    fn write_rounded(&self, part: &Part<'k>, quarter: U32<'k>, buffer: Var<'k, u32>) {
        let (k, lane) = (self.k, self.lane);
        let plain = part.output.has(OutputFlags::PLAIN);
        k.for_(0, self.cfg.tile_columns(), COLUMNS, |nth| {
            let column = self.column_read(part.accumulator, nth, COLUMNS);
            let staging = self.next_buffer(quarter, buffer);
            let place = Panels { row: part.first[0], column: part.first[1] + column, staging };
            let rows = |half| WarpOutput {
                params: &part.output,
                place,
                warp: Self::virtual_warp(quarter, half),
                lane,
            };
            k.for_(0, 2, 1, |half| {
                let accumulators = [self.load(part, half, column, COLUMNS)];
                self.release_shared(nth.eq(0) & half.eq(1), || self.release(part));
                let values = self.finish(part, place.column, &accumulators);
                k.if_else(
                    plain,
                    || rows(half).stage(k, values[0]),
                    || WarpOutput::write_f32(k, &[(rows(half), values[0])]),
                );
            });
            k.if_(plain, || {
                self.store(part, &place, quarter);
                if part.group.is_some() {
                    k.for_(0, 2, 1, |half| rows(half).store_within(k, COLUMNS));
                }
            });
        });
    }

    /// Writes the warp's rows in e4m3 or e2m1, 128 columns at a time, and their scales.
    fn write_quantized(
        &self,
        part: &Part<'k>,
        params: &EpilogueParams<'k>,
        quarter: U32<'k>,
        buffer: Var<'k, u32>,
    ) {
        let (k, lane, output, format) = (self.k, self.lane, &part.output, params.block_output());
        k.for_(0, self.cfg.tile_columns(), SCALED_COLUMNS, |nth| {
            let column = self.column_read(part.accumulator, nth, SCALED_COLUMNS);
            let staging = self.next_buffer(quarter, buffer);
            let place = Panels { row: part.first[0], column: part.first[1] + column, staging };
            let rows =
                |half| QuantizedRows { k, params, output, warp: Self::virtual_warp(quarter, half), lane };
            k.for_(0, 2, 1, |half| {
                let accumulators = [self.load(part, half, column, SCALED_COLUMNS)];
                self.release_shared(nth.eq(0) & half.eq(1), || self.release(part));
                let values = self.finish(part, place.column, &accumulators);
                let values: Vec<F32<'k>> = values[0].iter().map(|value| value.live()).collect();
                k.if_(format.eq(0), || rows(half).stage(&place, &values));
                for output in BlockOutput::ALL {
                    let rows = BlockRows { rows: rows(half), format: output };
                    k.if_(format.eq(output as u32), || rows.stage(&place, &values));
                }
            });
            k.if_else(
                format.ge(BlockOutput::Mxfp4 as u32),
                || {
                    k.sync_warp();
                    k.for_(0, 2, 1, |half| {
                        BlockRows { rows: rows(half), format: BlockOutput::Mxfp4 }
                            .copy_e2m1(&place, output.rows);
                    });
                },
                || {
                    self.store(part, &place, quarter);
                    if let Some(group) = part.group {
                        k.for_(0, 2, 1, |half| rows(half).store_within(&place, group.end));
                    }
                },
            );
        });
    }

    /// Has TMA store the warp's rows of a staged panel, unless rows of another group follow in it.
    fn store(&self, part: &Part<'k>, place: &Panels<'k>, quarter: U32<'k>) {
        let (k, d_map) = (self.k, &part.output.d_map);
        k.fence_async_shared();
        k.sync_warp();
        let lower = (quarter & 1) * ROWS;
        let store = || {
            let from = place.staging.at(lower * ROW_BYTES);
            let column = part.output.column_of_d(place.column);
            let at: Vec<U32<'k>> = [column, place.row + lower].into_iter().chain(part.slab).collect();
            k.if_(self.lane.eq(0), || d_map.store(&at, from));
        };
        match part.group {
            None => store(),
            Some(group) => k.if_(place.is_before(group.end), store),
        }
        k.bulk_commit();
    }
}
