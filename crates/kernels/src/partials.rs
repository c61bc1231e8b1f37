//! Partial sums of the slices of K, exchanged in a cluster.
//!
//! Every block of a cluster lays its sums out in its own shared memory; then the blocks take turns to add them up, always
//! in the order of the slices, so that the result does not depend on timing.

use crate::epilogue::OutputParams;
use oxigemm_ptx::{F32, Kernel, Pred, Shared, U32, Var};

/// The ways K may be split: clusters of this many blocks.
pub const SPLITS: [u32; 4] = [1, 2, 4, 8];

/// The shape of a block's partial sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialShape {
    pub rows: u32,
    pub columns: u32,
    /// Whether the rows of the fragment are D's columns.
    pub swapped: bool,
    /// Threads that hold the fragment: 128 for each 64 of its rows.
    pub threads: u32,
}

impl PartialShape {
    /// Floats from one row of partial sums to the next: four more than a row, so that the eight columns and
    /// four rows that a warp writes at once fall into different banks.
    const fn pitch(&self) -> u32 {
        self.columns + 4
    }

    /// Bytes of shared memory for them.
    pub const fn bytes(&self) -> u32 {
        self.rows * self.pitch() * 4
    }
}

/// A block's partial sums in shared memory, and its place among the slices.
pub(crate) struct Partials<'k> {
    pub shape: PartialShape,
    pub at: Shared<'k>,
    /// Slices of K, and which of them is this block's.
    pub split: U32<'k>,
    pub rank: U32<'k>,
}

impl<'k> Partials<'k> {
    /// Lays a warp's part of the fragment out for the cluster to read: `[rows][pitch]`.
    pub fn share(&self, k: &'k Kernel, warp: U32<'k>, lane: U32<'k>, sums: &[Var<'k, f32>]) {
        let pitch = self.shape.pitch();
        // Element (i, j) of the fragment is D's (row, column), or the reverse.
        let place = |i: U32<'k>, j: U32<'k>| if self.shape.swapped { j * pitch + i } else { i * pitch + j };
        let to = self.at.at(place(warp * 16 + (lane >> 2), (lane & 3) * 2) * 4);
        for (octet, sums) in (0u32..).zip(sums.chunks(4)) {
            for (index, sum) in (0u32..).zip(sums) {
                let (i, j) = (k.constant((index / 2) * 8), k.constant(octet * 8 + index % 2));
                to.at(place(i, j) * 4).store(sum.live());
            }
        }
    }

    /// Loads what this thread adds up: the same four neighbours of every slice, so often that the cluster's threads
    /// cover the tile. All loads are in flight together.
    pub fn load(
        &self,
        k: &'k Kernel,
        math: Pred<'k>,
        output: &OutputParams<'k>,
        tile: [U32<'k>; 2],
    ) -> Loaded<'k> {
        let most = self.ways().map(|split| self.turns(split) * split).max().unwrap_or(0);
        let loaded: Loaded<'k> = (0..most).map(|_| std::array::from_fn(|_| k.var(0.0f32))).collect();
        let rows = self.rows(output, tile);
        for split in self.ways() {
            let turns = self.turns(split);
            let four_of = |turn: u32| self.four(k, split, turn);
            // Where there are several turns, rows that do not exist are as good as any other, and not stored.
            let takes_part = if turns > 1 { math } else { math & four_of(0).0.lt(rows) };
            k.if_(takes_part & self.split.eq(split), || {
                for (turn, slices) in (0..turns).zip(loaded.chunks(split as usize)) {
                    let (row, column) = four_of(turn);
                    let from = self.at.at((row.min(rows - 1) * self.shape.pitch() + column) * 4);
                    for (rank, four) in (0u32..).zip(slices) {
                        let part: [F32<'k>; 4] = from.in_block(rank).load_vec();
                        four.iter().zip(part).for_each(|(var, part)| var.set(part));
                    }
                }
            });
        }
        k.sync_warp();
        loaded
    }

    /// Adds the slices in order and writes D, whose tile begins at `tile`.
    pub fn add(&self, k: &'k Kernel, loaded: &Loaded<'k>, output: &OutputParams<'k>, tile: [U32<'k>; 2]) {
        let rows = self.rows(output, tile);
        for split in self.ways() {
            k.if_(self.split.eq(split), || {
                for (turn, slices) in (0..self.turns(split)).zip(loaded.chunks(split as usize)) {
                    let (row, column) = self.four(k, split, turn);
                    let sums = std::array::from_fn(|i| {
                        slices.iter().fold(k.constant(0.0f32), |sum, slice| sum + slice[i].live())
                    });
                    k.if_(row.lt(rows), || output.store_four(k, tile[0] + row, tile[1] + column, sums));
                }
            });
        }
    }

    /// The ways K may be split that get here: without operands swapped, a single slice is written at once.
    fn ways(&self) -> impl Iterator<Item = u32> {
        let swapped = self.shape.swapped;
        SPLITS.into_iter().filter(move |split| swapped || *split > 1)
    }

    /// How often a thread takes four neighbours.
    fn turns(&self, split: u32) -> u32 {
        (self.shape.rows * self.shape.columns / 4).div_ceil(split * self.shape.threads)
    }

    /// The row and column of the four neighbours that this thread takes the `turn`-th time.
    fn four(&self, k: &'k Kernel, split: u32, turn: u32) -> (U32<'k>, U32<'k>) {
        let index = k.thread_index() + (self.rank + turn * split) * self.shape.threads;
        let fours = self.shape.columns / 4;
        (index / fours, (index % fours) * 4)
    }

    /// Rows of the tile that exist.
    fn rows(&self, output: &OutputParams<'k>, tile: [U32<'k>; 2]) -> U32<'k> {
        (output.rows - tile[0]).min(self.shape.rows)
    }
}

/// Fours of partial sums: those of all slices for the first turn, then for the next.
pub(crate) type Loaded<'k> = Vec<[Var<'k, f32>; 4]>;
