//! Main loop of the persistent FP8 kernel with scales of 32: consumer warpgroups multiply and promote.
//!
//! From `build` to the `wgmma`: [`Block::consume`] takes tiles, [`Consumer::multiply_tile`] their stages,
//! [`Consumer::multiply_stage`] the steps of a stage, each one instruction.

use super::Block;
use super::config::STEPS;
use crate::common::BLOCK_K;
use crate::common::pipeline::Cursor;
use crate::gemm::operand::fp8::{self, SCALE_K};
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::mma::StageOperand;
use crate::gemm::sm90::multicast::StageRelease;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{F32, Shared, U32, Var};

impl<'k> Block<'k, '_> {
    /// Consumer warpgroup: 64-row products of each 32 of K, promoted into FP32 accumulators with their scales.
    pub(super) fn consume(&self) {
        let k = self.k;
        let consumer = Consumer::new(self);
        let warpgroup = self.warp >> 2;
        let first_row = self.cfg.shape().offset_of(warpgroup)[0];
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        match self.cfg.grouping {
            Grouping::Dense => self.scheduler.for_each_dense_tile(k, |m, n| {
                consumer.multiply_tile();
                self.write([m, n], None, &consumer.accumulators, parity);
            }),
            Grouping::Rows => self.scheduler.for_each_index(k, |_| {
                let (at, end) = consumer.message();
                let compute = || {
                    consumer.multiply_tile();
                    self.write(at, Some(end), &consumer.accumulators, parity);
                };
                k.if_else((at[0] + first_row).lt(end), compute, || consumer.skip_tile());
            }),
            Grouping::K => unreachable!("no such kernel is in the set"),
        }
    }
}

/// State of a consumer warp.
struct Consumer<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// A and B.
    operands: [StageOperand<'k>; 2],
    cursor: Cursor<'k>,
    /// Where the scales of this thread's first row and first column lie, in the first stage.
    first_scales: [Shared<'k>; 2],
    /// The products of a step.
    products: Vec<Var<'k, f32>>,
    /// The FP32 accumulators.
    accumulators: Vec<Var<'k, f32>>,
    stages: StageRelease<'k>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg, warp, lane) = (block.k, block.cfg, block.warp, block.lane);
        let (zero, columns) = (k.constant(0), cfg.shape().columns());
        let [first_row, first_column] = cfg.shape().offset_of(warp >> 2);
        let operand = |tile: Shared<'k>, first: U32<'k>, rows: u32| {
            StageOperand::new(Descriptor::k_major(tile.at(first * BLOCK_K), Swizzle::B128), rows * BLOCK_K)
        };
        // The row and the column of this thread's first accumulator.
        let row = first_row + (warp & 3) * 16 + (lane >> 2);
        let column = match cfg.scales_of_b {
            ScalesOfB::Rows => first_column + (lane & 3) * 2,
            ScalesOfB::Blocks => first_column,
        };
        let scales = block.scales(zero);
        Consumer {
            block,
            operands: [
                operand(block.a(zero), first_row, cfg.block_m),
                operand(block.b(zero), first_column, cfg.block_n),
            ],
            cursor: block.pipe.reader(),
            first_scales: [scales.at(row * 4), scales.at(cfg.block_m * 4).at(column * 4)],
            products: k.fragment(columns as usize / 2),
            accumulators: k.fragment(columns as usize / 2),
            stages: StageRelease::new(k, &block.scheduler.cluster, &block.pipe, lane),
        }
    }

    /// Message about the tile that comes next, in m-grouped kernels: its first row and column of D, and the row behind
    /// its group's last.
    fn message(&self) -> ([U32<'k>; 2], U32<'k>) {
        self.cursor.wait_full();
        TileMessage::load_grouped(self.block.message(self.cursor.stage()))
    }

    /// All stages of a tile.
    fn multiply_tile(&self) {
        self.accumulators.iter().for_each(|accumulator| accumulator.set(0.0));
        self.block.k.for_(0, self.block.params.k_blocks, 1, |_| {
            self.cursor.wait_full();
            self.multiply_stage();
        });
    }

    /// Releases all stages of a tile in which no row of this warpgroup belongs to the tile's group.
    fn skip_tile(&self) {
        self.block.k.for_(0, self.block.params.k_blocks, 1, |_| {
            self.cursor.wait_full();
            self.release();
            self.advance();
        });
    }

    /// All steps of a full stage. Steps behind the end of K have operands and scales of 0.
    fn multiply_stage(&self) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let [a_type, b_type] = fp8::types(None);
        let types = MmaType::Fp8(a_type, b_type);
        debug_assert_eq!(types.k(), SCALE_K);
        let [a, b] = self.operands.map(StageOperand::get);
        let scales = self.first_scales.map(|first| first.at(self.cursor.stage() * cfg.scale_bytes()));
        for step in 0..STEPS {
            let depth = step * SCALE_K;
            k.wgmma_fence();
            let (a, b) = (MatrixA::Shared(a.advance(depth)), b.advance(depth));
            k.wgmma(types, &self.products, a, b, (Major::K, Major::K), k.constant(false));
            k.wgmma_commit();
            // While the tensor core works.
            let [rows, columns] = scales.map(|scales| scales.at(step * cfg.step_bytes()));
            let rows = [rows, rows.at(8 * 4)].map(|row| row.load::<f32>());
            let columns = self.column_scales(columns);
            k.wgmma_wait(0);
            if step + 1 == STEPS {
                self.release();
                self.advance();
            }
            promote(&self.accumulators, &self.products, rows, (cfg.scales_of_b, &columns));
        }
    }

    /// Scales of this thread's columns: the one that each 32 of them share, or one each.
    fn column_scales(&self, from: Shared<'k>) -> Vec<F32<'k>> {
        let columns = self.block.cfg.shape().columns();
        match self.block.cfg.scales_of_b {
            ScalesOfB::Blocks => {
                (0..columns / SCALE_K).map(|nth| from.at(nth * SCALE_K * 4).load::<f32>()).collect()
            }
            ScalesOfB::Rows => {
                (0..columns / 8).flat_map(|octet| from.at(octet * 8 * 4).load_vec::<f32, 2>()).collect()
            }
        }
    }

    /// Releases the current stage, which no lane may still read a message or scales of.
    fn release(&self) {
        self.block.k.sync_warp();
        self.stages.release(self.block.k, self.cursor.stage());
    }

    /// Moves to the next stage.
    fn advance(&self) {
        self.cursor.advance();
        self.operands.iter().for_each(|operand| operand.set_stage(self.cursor.stage()));
    }
}

/// `accumulators += row scale * column scale * products`, in full FP32. Of four neighbours, two are of the thread's
/// upper row and two of its lower, each pair of the same two columns.
fn promote<'k>(
    accumulators: &[Var<'k, f32>],
    products: &[Var<'k, f32>],
    rows: [F32<'k>; 2],
    (scales_of_b, columns): (ScalesOfB, &[F32<'k>]),
) {
    let pairs: Vec<_> = accumulators.iter().zip(products).collect();
    match scales_of_b {
        ScalesOfB::Rows => {
            for (four, columns) in pairs.chunks(4).zip(columns.chunks(2)) {
                for (i, (accumulator, product)) in four.iter().enumerate() {
                    accumulator.fma(product.live(), rows[i / 2] * columns[i % 2]);
                }
            }
        }
        ScalesOfB::Blocks => {
            for (block, &column) in pairs.chunks(SCALE_K as usize / 2).zip(columns) {
                let scales = rows.map(|row| row * column);
                for (i, (accumulator, product)) in block.iter().enumerate() {
                    accumulator.fma(product.live(), scales[(i / 2) % 2]);
                }
            }
        }
    }
}
