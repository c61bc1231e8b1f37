//! Main loop of the persistent FP8 by MXFP4 kernel: consumer warpgroups multiply and promote.
//!
//! [`Block::consume`] takes tiles, [`Consumer::multiply_tile`] their stages. Of a stage, [`Consumer::multiply_folded`] or
//! [`Consumer::multiply_steps`] takes 64 rows of B, as the [scale producers](super::scales) decided.

use super::Block;
use super::config::{ROW_SCALE_BYTES, ROWS_AT_ONCE};
use super::epilogue::OutputTile;
use super::fragment::{PackedRows, STEPS, fragment};
use super::scales::{B_WARPS, FOLDED};
use super::widen::{Applied, byte};
use crate::common::pipeline::Cursor;
use crate::common::{BLOCK_K, WARP};
use crate::gemm::operand::fp8::{self, SCALE_K};
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::mma::{StageOperand, issue_stage};
use crate::gemm::sm90::multicast::StageRelease;
use crate::gemm::sm90::warpgroups::MATH_WARPS;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{F32, Fp8, Shared, U32, Var};

/// Threads that multiply, and write D.
pub(super) const MATH_THREADS: u32 = MATH_WARPS * WARP;
/// Rows of B of a thread's accumulators: it has two, so many apart.
const ROWS_APART: u32 = 8;
/// Rows of A, of all subtiles, from which on scales are loaded behind the MMA: registers hold no more beside accumulators.
const MANY_ROWS: u32 = 128;

impl<'k> Block<'k, '_> {
    /// Consumer warpgroup: 64-row products of B by the tile's rows of A, promoted into FP32 accumulators.
    pub(super) fn consume(&self) {
        let k = self.k;
        let consumer = Consumer::new(self);
        let compute = |tile: &dyn Fn() -> OutputTile<'k>| {
            consumer.multiply_tile();
            self.write(&tile(), &consumer.accumulators);
        };
        match self.cfg.grouping {
            Grouping::Dense => self.scheduler.for_each_dense_tile(k, |m, n| {
                compute(&|| OutputTile { at: [m, n], group: None });
            }),
            Grouping::Rows => self.scheduler.for_each_index(k, |_| {
                consumer.cursor.wait_full();
                let (at, group) = TileMessage::load_all(self.message(consumer.cursor.stage()));
                compute(&|| OutputTile { at, group: Some(group) });
            }),
            Grouping::K => unreachable!("no such kernel is in the set"),
        }
    }
}

/// Rows of B of a consumer.
enum RowsOfB<'k> {
    /// Codes, which it widens.
    Packed(PackedRows<'k>),
    /// Widened rows of this warpgroup's first subtile, and the ring of such tiles.
    Widened(StageOperand<'k>, Cursor<'k>),
}

/// State of a consumer warp.
struct Consumer<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    cursor: Cursor<'k>,
    /// Rows of A, which are the columns of `wgmma`.
    a: StageOperand<'k>,
    b: RowsOfB<'k>,
    /// The row of B of this thread's first accumulators, in its tile.
    row: U32<'k>,
    /// The products of 64 rows.
    products: Vec<Var<'k, f32>>,
    /// The FP32 accumulators of each subtile.
    accumulators: Vec<Vec<Var<'k, f32>>>,
    stages: StageRelease<'k>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg, warp, lane) = (block.k, block.cfg, block.warp, block.lane);
        let zero = k.constant(0);
        let a = Descriptor::k_major(block.a(zero), Swizzle::B128);
        // Rows of a fragment: see `Kernel::wgmma`. The warps of the second warpgroup have the next 64.
        let row = warp * 16 + (lane >> 2);
        let b = match cfg.widens_in_registers() {
            true => RowsOfB::Packed(PackedRows::new(block, row)),
            false => {
                let rows = block.wide_tile(zero).at((warp >> 2) * (64 * BLOCK_K));
                let rows = Descriptor::k_major(rows, Swizzle::B128);
                RowsOfB::Widened(StageOperand::new(rows, cfg.wide_bytes()), block.wide.reader())
            }
        };
        let fragment = || k.fragment(cfg.block_m as usize / 2);
        Consumer {
            block,
            cursor: block.pipe.reader(),
            a: StageOperand::new(a, cfg.a_bytes()),
            b,
            row,
            products: fragment(),
            accumulators: (0..cfg.subtiles()).map(|_| fragment()).collect(),
            stages: StageRelease::new(k, &block.scheduler.cluster, &block.pipe, lane),
        }
    }

    /// All stages of a tile.
    fn multiply_tile(&self) {
        let (k, block) = (self.block.k, self.block);
        self.accumulators.iter().flatten().for_each(|accumulator| accumulator.set(0.0));
        k.for_(0, block.params.k_blocks, 1, |_| {
            self.cursor.wait_full();
            let scales = block.scales(self.cursor.stage());
            let [_, applied, _] = block.cfg.scale_map();
            let applied = scales.at(applied).at((block.warp >> 2) * 4);
            let how: Vec<U32<'k>> =
                (0..block.cfg.subtiles()).map(|subtile| applied.at(subtile * B_WARPS * 4).load()).collect();
            if let RowsOfB::Widened(_, tiles) = &self.b {
                tiles.wait_full();
            }
            for (subtile, how) in (0u32..).zip(how) {
                k.if_else(
                    how.eq(FOLDED),
                    || self.multiply_folded(subtile, scales),
                    || self.multiply_steps(subtile, scales),
                );
            }
            // No lane may still read scales of the stage.
            k.sync_warp();
            self.stages.release(k, self.cursor.stage());
            self.cursor.advance();
            self.a.set_stage(self.cursor.stage());
            if let RowsOfB::Widened(rows, tiles) = &self.b {
                let empty = block.wide.empty(tiles.stage());
                k.guard(block.lane.eq(0), || empty.arrive());
                tiles.advance();
                rows.set_stage(tiles.stage());
            }
        });
    }

    /// All of a stage by 64 rows whose scales are folded into their codes: as FP8 weights are multiplied.
    fn multiply_folded(&self, subtile: u32, scales: Shared<'k>) {
        let k = self.block.k;
        let rows = self.row_scales(subtile, scales);
        match &self.b {
            RowsOfB::Widened(..) => {
                let operands = || [self.widened(subtile), self.a.get()];
                issue_stage(k, self.types(), &self.products, operands);
            }
            RowsOfB::Packed(packed) => {
                // Accumulators of two subtiles leave registers for half of the codes.
                let at_once = STEPS / self.block.cfg.subtiles();
                for first in (0..STEPS).step_by(at_once as usize) {
                    let steps = first..first + at_once;
                    let stage = self.cursor.stage();
                    for (step, codes) in
                        steps.clone().zip(packed.load_steps(self.block, stage, subtile, steps))
                    {
                        // While the tensor core has the step before.
                        let fragment = fragment(codes, rows.map(|[folds, _]| byte(k, folds, step)));
                        self.issue_step(MatrixA::Registers(&fragment), k.constant(step), step > 0);
                    }
                }
                k.wgmma_commit();
            }
        }
        // While the tensor core works.
        let rows = rows.map(|[_, scale]| scale.bitcast());
        let few = self.block.cfg.block_m * self.block.cfg.subtiles() < MANY_ROWS;
        let columns = few.then(|| self.column_scales(scales));
        k.wgmma_wait(0);
        self.promote(subtile, rows, &columns.unwrap_or_else(|| self.column_scales(scales)));
    }

    /// The same by 64 rows of which some have scales too far apart: 32 of K at a time, promoted with scales of their own.
    fn multiply_steps(&self, subtile: u32, scales: Shared<'k>) {
        let k = self.block.k;
        k.for_(0, STEPS, 1, |step| {
            let rows = self.row_scales(subtile, scales);
            let applied = rows.map(|[word, _]| Applied::of_one((word >> (step * 8)) & 0xff));
            match &self.b {
                RowsOfB::Widened(..) => {
                    let rows = self.widened(subtile).advance(step * SCALE_K);
                    self.issue_step(MatrixA::Shared(rows), step, false);
                }
                RowsOfB::Packed(packed) => {
                    let codes = packed.load_step(self.block, self.cursor.stage(), subtile, step);
                    let fragment = fragment(codes, applied.each_ref().map(|row| row.folds));
                    self.issue_step(MatrixA::Registers(&fragment), step, false);
                }
            }
            k.wgmma_commit();
            k.wgmma_wait(0);
            self.promote(subtile, applied.map(|row| row.scale.bitcast()), &self.column_scales(scales));
        });
    }

    /// Issues `products (+)= rows · Aᵀ` over 32 of K.
    fn issue_step(&self, rows: MatrixA<'k, '_>, step: U32<'k>, accumulate: bool) {
        let k = self.block.k;
        let [b_type, a_type] = self.types();
        let types = MmaType::Fp8(b_type, a_type);
        debug_assert_eq!(types.k(), SCALE_K);
        let a = self.a.get().advance(step * SCALE_K);
        k.wgmma_fence();
        k.wgmma(types, &self.products, rows, a, (Major::K, Major::K), k.constant(accumulate));
    }

    /// Types of B and of A.
    fn types(&self) -> [Fp8; 2] {
        let [a, b] = fp8::types(None);
        [b, a]
    }

    /// The widened rows of a subtile.
    fn widened(&self, subtile: u32) -> Descriptor<'k> {
        let RowsOfB::Widened(rows, _) = &self.b else { unreachable!("consumers widen") };
        rows.get().advance(subtile * ROWS_AT_ONCE * BLOCK_K)
    }

    /// What was written for this thread's two rows of a subtile: see [`super::scales`].
    fn row_scales(&self, subtile: u32, scales: Shared<'k>) -> [[U32<'k>; 2]; 2] {
        let [of_b, ..] = self.block.cfg.scale_map();
        let first =
            scales.at(of_b).at(self.row * ROW_SCALE_BYTES).at(subtile * ROWS_AT_ONCE * ROW_SCALE_BYTES);
        [first, first.at(ROWS_APART * ROW_SCALE_BYTES)].map(|row| row.load_vec::<u32, 2>())
    }

    /// Scales of this thread's rows of A: two neighbours of each octet.
    fn column_scales(&self, scales: Shared<'k>) -> Vec<F32<'k>> {
        let first = scales.at((self.block.lane & 3) * 8);
        (0..self.block.cfg.block_m / 8).flat_map(|octet| first.at(octet * 32).load_vec::<f32, 2>()).collect()
    }

    /// `accumulators += row scale * column scale * products`, in full FP32. Of four neighbours, two are of the thread's
    /// upper row of B and two of its lower, each pair of the same two rows of A.
    fn promote(&self, subtile: u32, rows: [F32<'k>; 2], columns: &[F32<'k>]) {
        let pairs: Vec<_> = self.accumulators[subtile as usize].iter().zip(&self.products).collect();
        for (four, columns) in pairs.chunks(4).zip(columns.chunks(2)) {
            for (i, (accumulator, product)) in four.iter().enumerate() {
                accumulator.fma(product.live(), columns[i % 2] * rows[i / 2]);
            }
        }
    }
}
