//! Codes that consumers widen in registers: fragments of `wgmma`, whose first operand may lie there.

use super::Block;
use super::config::{CODE_LINE, ROWS_AT_ONCE};
use super::widen::Table;
use crate::common::BLOCK_K;
use crate::gemm::operand::fp8::SCALE_K;
use oxigemm_ptx::{Shared, U16, U32};
use std::ops::Range;

/// Bytes of a row's codes in one instruction: as many as the swizzle moves together.
const STEP_BYTES: u32 = SCALE_K / 2;
/// Instructions of a stage.
pub(super) const STEPS: u32 = BLOCK_K / SCALE_K;
/// Rows of B in a thread's half of a fragment: it has two, so many apart.
const ROWS_APART: u32 = 8;

/// Where a thread's codes lie.
#[derive(Clone, Copy)]
pub(super) struct PackedRows<'k> {
    /// Its rows in the first stage.
    rows: Shared<'k>,
    /// Which chunk of a row is that of the first step: each step's is the exclusive or of both.
    line: U32<'k>,
    /// That of each step.
    steps: [Shared<'k>; STEPS as usize],
}

/// Four codes of each half of both rows: of 32 of K.
type Codes<'k> = [U32<'k>; 2];

impl<'k> PackedRows<'k> {
    /// Of this thread; `row` is its first row in a tile.
    pub fn new(block: &Block<'k, '_>, row: U32<'k>) -> Self {
        let (k, lane) = (block.k, block.lane);
        let rows = block.codes(k.constant(0)).at(row * CODE_LINE + (lane & 3) * 2);
        // 64-byte swizzle: two rows share a line of 128 bytes, and lines permute 16-byte chunks.
        let line = (lane >> 3) & (STEPS - 1);
        let steps = std::array::from_fn(|step| rows.at((line ^ step as u32) * STEP_BYTES));
        PackedRows { rows, line, steps }
    }

    /// Codes of some steps of a stage, all loads before the first that waits for one.
    pub fn load_steps(
        &self,
        block: &Block<'k, '_>,
        stage: U32<'k>,
        subtile: u32,
        steps: Range<u32>,
    ) -> Vec<Codes<'k>> {
        let steps = &self.steps[steps.start as usize..steps.end as usize];
        let loads: Vec<_> = steps.iter().map(|step| Self::load(block, *step, stage, subtile)).collect();
        loads.into_iter().map(|halves| halves.map(|[low, high]| block.k.join_halves(low, high))).collect()
    }

    /// Codes of one step.
    pub fn load_step(&self, block: &Block<'k, '_>, stage: U32<'k>, subtile: u32, step: U32<'k>) -> Codes<'k> {
        let from = self.rows.at((self.line ^ step) * STEP_BYTES);
        Self::load(block, from, stage, subtile).map(|[low, high]| block.k.join_halves(low, high))
    }

    fn load(block: &Block<'k, '_>, from: Shared<'k>, stage: U32<'k>, subtile: u32) -> [[U16<'k>; 2]; 2] {
        let stage = stage * (block.cfg.block_n * CODE_LINE);
        let from = from.at(stage).at(subtile * ROWS_AT_ONCE * CODE_LINE);
        [0, 1].map(|nth: u32| {
            let row = from.at(nth * ROWS_APART * CODE_LINE);
            [row, row.at(STEP_BYTES / 2)].map(|half| half.load::<u16>())
        })
    }
}

/// The fragment of these codes, with a fold for each row.
pub(super) fn fragment<'k>(codes: Codes<'k>, folds: [U32<'k>; 2]) -> [U32<'k>; 4] {
    let [upper, lower] = [0, 1].map(|nth| Table::new(folds[nth]).widen(codes[nth]));
    [upper[0], lower[0], upper[1], lower[1]]
}
