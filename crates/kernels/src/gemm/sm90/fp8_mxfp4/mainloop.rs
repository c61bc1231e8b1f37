//! Main loop of the persistent FP8 by MXFP4 kernel: consumer warpgroups widen, multiply and promote.
//!
//! [`Block::consume`] takes tiles, [`Consumer::multiply_tile`] their stages. Of a stage, [`Consumer::multiply_folded`] or
//! [`Consumer::multiply_steps`] takes 64 rows of B, as the [scale producers](super::scales) decided.

use super::Block;
use super::config::{CODE_LINE, ROW_SCALE_BYTES, ROWS_AT_ONCE};
use super::epilogue::OutputTile;
use super::scales::{B_WARPS, FOLDED};
use super::widen::{Applied, Table, byte};
use crate::common::pipeline::Cursor;
use crate::common::{BLOCK_K, WARP};
use crate::gemm::operand::fp8::{self, SCALE_K};
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::mma::StageOperand;
use crate::gemm::sm90::multicast::StageRelease;
use crate::gemm::sm90::warpgroups::MATH_WARPS;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{F32, Shared, U32, Var};

/// Threads that multiply, and write D.
pub(super) const MATH_THREADS: u32 = MATH_WARPS * WARP;
/// Instructions of a stage, each with a scale of its own of every row of B.
const STEPS: u32 = BLOCK_K / SCALE_K;
/// Bytes of a row's codes in one instruction: as many as the swizzle moves together.
const STEP_BYTES: u32 = SCALE_K / 2;
/// Rows of B in a thread's half of a fragment: it has two, so many apart.
const ROWS_APART: u32 = 8;

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

/// State of a consumer warp.
struct Consumer<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    cursor: Cursor<'k>,
    /// Rows of A, which are the columns of `wgmma`.
    a: StageOperand<'k>,
    /// Where this thread's rows of codes lie in the first stage, and which chunk of them is that of the first step: each
    /// step's is the exclusive or of both, and of each step here.
    code_rows: Shared<'k>,
    line: U32<'k>,
    codes: [Shared<'k>; STEPS as usize],
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
        // Rows of a fragment: see `Kernel::wgmma`. The warps of the second warpgroup have the next 64.
        let row = warp * 16 + (lane >> 2);
        let code_rows = block.codes(zero).at(row * CODE_LINE + (lane & 3) * 2);
        // 64-byte swizzle: two rows share a line of 128 bytes, and lines permute 16-byte chunks.
        let line = (lane >> 3) & (STEPS - 1);
        let operand = Descriptor::k_major(block.a(zero), Swizzle::B128);
        let fragment = || k.fragment(cfg.block_m as usize / 2);
        Consumer {
            block,
            cursor: block.pipe.reader(),
            a: StageOperand::new(operand, cfg.a_bytes()),
            code_rows,
            line,
            codes: std::array::from_fn(|step| code_rows.at((line ^ step as u32) * STEP_BYTES)),
            row,
            products: fragment(),
            accumulators: (0..cfg.subtiles()).map(|_| fragment()).collect(),
            stages: StageRelease::new(k, &block.scheduler.cluster, &block.pipe, lane),
        }
    }

    /// All stages of a tile.
    fn multiply_tile(&self) {
        let k = self.block.k;
        self.accumulators.iter().flatten().for_each(|accumulator| accumulator.set(0.0));
        k.for_(0, self.block.params.k_blocks, 1, |_| {
            self.cursor.wait_full();
            let scales = self.block.scales(self.cursor.stage());
            let [_, applied, _] = self.block.cfg.scale_map();
            let applied = scales.at(applied).at((self.block.warp >> 2) * 4);
            for subtile in 0..self.block.cfg.subtiles() {
                let how = applied.at(subtile * B_WARPS * 4).load::<u32>();
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
        });
    }

    /// All of a stage by 64 rows whose scales are folded into their codes: as FP8 weights are multiplied.
    fn multiply_folded(&self, subtile: u32, scales: Shared<'k>) {
        let k = self.block.k;
        let rows = self.row_scales(subtile, scales);
        for step in 0..STEPS {
            // While the tensor core has the step before.
            let folds = rows.map(|[folds, _]| byte(k, folds, step));
            let fragment = self.fragment(subtile, self.codes[step as usize], folds);
            k.wgmma_fence();
            self.issue(&fragment, self.a.get().advance(step * SCALE_K), step > 0);
        }
        k.wgmma_commit();
        // While the tensor core works.
        let columns = self.column_scales(scales);
        k.wgmma_wait(0);
        self.promote(subtile, rows.map(|[_, scale]| scale.bitcast()), &columns);
    }

    /// The same by 64 rows of which some have scales too far apart: 32 of K at a time, promoted with scales of their own.
    fn multiply_steps(&self, subtile: u32, scales: Shared<'k>) {
        let k = self.block.k;
        k.for_(0, STEPS, 1, |step| {
            let rows = self.row_scales(subtile, scales);
            let applied = rows.map(|[word, _]| Applied::of_one((word >> (step * 8)) & 0xff));
            let codes = self.code_rows.at((self.line ^ step) * STEP_BYTES);
            let fragment = self.fragment(subtile, codes, [applied[0].folds, applied[1].folds]);
            k.wgmma_fence();
            self.issue(&fragment, self.a.get().advance(step * SCALE_K), false);
            k.wgmma_commit();
            let columns = self.column_scales(scales);
            k.wgmma_wait(0);
            self.promote(subtile, applied.map(|row| row.scale.bitcast()), &columns);
        });
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

    /// Codes of the current stage in the layout of `wgmma`: four of each row from each half of 32, with these folds.
    fn fragment(&self, subtile: u32, codes: Shared<'k>, folds: [U32<'k>; 2]) -> [U32<'k>; 4] {
        let k = self.block.k;
        let stage = self.cursor.stage() * (self.block.cfg.block_n * CODE_LINE);
        let codes = codes.at(stage).at(subtile * ROWS_AT_ONCE * CODE_LINE);
        let [upper, lower] = [0, 1].map(|nth: u32| {
            let row = codes.at(nth * ROWS_APART * CODE_LINE);
            let halves = [row, row.at(STEP_BYTES / 2)].map(|half| half.load::<u16>());
            Table::new(folds[nth as usize]).widen(k.join_halves(halves[0], halves[1]))
        });
        [upper[0], lower[0], upper[1], lower[1]]
    }

    /// Issues `products (+)= fragment · Aᵀ` over 32 of K.
    fn issue(&self, fragment: &[U32<'k>; 4], a: Descriptor<'k>, accumulate: bool) {
        let k = self.block.k;
        let [a_type, b_type] = fp8::types(None);
        let types = MmaType::Fp8(b_type, a_type);
        debug_assert_eq!(types.k(), SCALE_K);
        let fragment = MatrixA::Registers(fragment);
        k.wgmma(types, &self.products, fragment, a, (Major::K, Major::K), k.constant(accumulate));
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
