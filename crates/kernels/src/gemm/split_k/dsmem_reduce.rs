//! Distributed shared memory reduction of the accumulators of a cluster's K splits.
//!
//! Every block of a cluster lays its accumulators out in its own shared memory; then each block adds up a share of
//! them, always in the order of the splits, so that the result does not depend on timing.

use crate::common::WARP;
use crate::gemm::epilogue::split_k::ReducedRows;
use crate::gemm::epilogue::{OutputFlags, OutputParams};
use oxigemm_ptx::{F32, Kernel, Pred, Shared, U32, Var};

/// Numbers of K splits: clusters of this many blocks.
pub const SPLITS: [u32; 5] = [1, 2, 3, 4, 8];

/// Rows that a warp takes at a time in a fused epilogue.
const IN_FLIGHT: u32 = 4;

/// Shape of a block's partial accumulators.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReduceShape {
    pub rows: u32,
    pub columns: u32,
    /// Whether the rows of the fragment are D's columns.
    pub swapped: bool,
    /// Warpgroups side by side, each with as many columns; one where it is swapped.
    pub beside: u32,
    /// Threads that hold the fragment: 128 for each 64 of its rows, and for each of those side by side.
    pub threads: u32,
}

impl ReduceShape {
    /// Floats from one row to the next: four more than a row, so that the eight columns and
    /// four rows that a warp writes at once fall into different banks.
    const fn pitch(&self) -> u32 {
        self.columns + 4
    }

    /// Bytes of shared memory for them.
    pub const fn bytes(&self) -> u32 {
        self.rows * self.pitch() * 4
    }

    /// Rows that all threads of a block take at a time.
    const fn rows_at_a_time(&self) -> u32 {
        self.threads * 4 / self.columns
    }

    /// Rows of each warp, where no other block takes some.
    const fn rows_of_a_warp(&self) -> u32 {
        self.rows / (self.threads / WARP)
    }
}

/// Reduction of a block: its partial accumulators in shared memory, and its rank among the splits.
pub(crate) struct DsmemReduce<'k> {
    pub shape: ReduceShape,
    pub at: Shared<'k>,
    /// K splits, and which of them is this block's.
    pub split: U32<'k>,
    pub rank: U32<'k>,
    /// Whether the epilogue is fused: then the block that adds up leaves the result in its shared memory.
    pub fused: bool,
}

impl<'k> DsmemReduce<'k> {
    /// Writes a warp's part of the fragment for the cluster to read: `[rows][pitch]`.
    pub fn publish(&self, k: &'k Kernel, warp: U32<'k>, lane: U32<'k>, accumulators: &[Var<'k, f32>]) {
        let pitch = self.shape.pitch();
        // Element (i, j) of the fragment is D's (row, column), or the reverse.
        let place = |i: U32<'k>, j: U32<'k>| if self.shape.swapped { j * pitch + i } else { i * pitch + j };
        let (row, column) = (lane >> 2, (lane & 3) * 2);
        let to = self.at.at(match self.shape.beside {
            1 => place(warp * 16 + row, column) * 4,
            beside => {
                let first = (warp >> 2) * (self.shape.columns / beside);
                place((warp & 3) * 16 + row, first + column) * 4
            }
        });
        for (octet, values) in (0u32..).zip(accumulators.chunks(4)) {
            for (index, value) in (0u32..).zip(values) {
                let (i, j) = (k.constant((index / 2) * 8), k.constant(octet * 8 + index % 2));
                to.at(place(i, j) * 4).store(value.live());
            }
        }
    }

    /// Loads what this thread adds up: the same four neighbours of every split, so often that the cluster's threads
    /// cover the tile. All loads are in flight together.
    pub fn load(
        &self,
        k: &'k Kernel,
        math: Pred<'k>,
        output: &OutputParams<'k>,
        tile: [U32<'k>; 2],
    ) -> Loaded<'k> {
        let most = self.split_counts().map(|split| self.steps(split) * split).max().unwrap_or(0);
        let loaded: Loaded<'k> = (0..most).map(|_| std::array::from_fn(|_| k.var(0.0f32))).collect();
        let rows = self.rows(output, tile);
        for split in self.split_counts() {
            let steps = self.steps(split);
            let four_of = |step: u32| self.four(k, split, step);
            // Rows of the tile that D does not have are as good as any other, and not stored.
            let takes_part = if steps > 1 { math } else { math & four_of(0).0.lt(rows) };
            k.if_(takes_part & self.split.eq(split), || {
                for (step, splits) in (0..steps).zip(loaded.chunks(split as usize)) {
                    let (row, column) = four_of(step);
                    let from = self.at.at((row * self.shape.pitch() + column) * 4);
                    let load = || {
                        for (rank, four) in (0u32..).zip(splits) {
                            let part: [F32<'k>; 4] = from.in_block(rank).load_vec();
                            four.iter().zip(part).for_each(|(var, part)| var.set(part));
                        }
                    };
                    // Several steps may end behind the tile.
                    match self.ends_behind(split, step) {
                        true => k.if_(row.lt(self.shape.rows), load),
                        false => load(),
                    }
                }
            });
        }
        // Rows of a fused epilogue are whole warps'; else lanes have diverged.
        if !self.fused {
            k.sync_warp();
        }
        loaded
    }

    /// Adds the splits in order and writes D, whose tile begins at `tile`.
    ///
    /// Output that is not plain is rare, and the code for it is long: too long for each step of each number of splits,
    /// as the driver compiles a kernel while its first caller waits. It goes through this block's shared memory to a
    /// loop.
    pub fn add(&self, k: &'k Kernel, loaded: &Loaded<'k>, output: &OutputParams<'k>, tile: [U32<'k>; 2]) {
        let (rows, plain) = (self.rows(output, tile), output.has(OutputFlags::PLAIN));
        self.add_to(k, loaded, rows, |row, column, sums| {
            output.store_plain_four(k, (tile[0] + row, plain), tile[1] + column, sums);
            k.guard(!plain, || self.own(row, column).store_vec(sums));
        });
        k.if_(!plain, || {
            let fours = self.shape.columns / 4;
            let first = k.thread_index() + self.rank * self.shape.threads;
            k.for_(first, rows * fours, self.split * self.shape.threads, |four| {
                let (row, column) = (four / fours, (four % fours) * 4);
                let sums = self.own(row, column).load_vec();
                output.store_four(k, tile[0] + row, tile[1] + column, sums);
            });
        });
    }

    /// Four neighbours in this block's shared memory. No other block reads those that this one adds up.
    fn own(&self, row: U32<'k>, column: U32<'k>) -> Shared<'k> {
        self.at.at((row * self.shape.pitch() + column) * 4)
    }

    /// Adds the splits in order and leaves the result in this block's shared memory, in place of its own split.
    fn add_in_place(&self, k: &'k Kernel, loaded: &Loaded<'k>, rows: U32<'k>) {
        self.add_to(k, loaded, rows, |row, column, sums| {
            self.own(row, column).store_vec(sums);
        });
    }

    /// Adds the splits in order, and gives the rows that this warp applies the fused epilogue to. A lane has four
    /// neighbours of each of `parts` equal parts of their columns.
    pub fn reduced_rows(
        &self,
        k: &'k Kernel,
        loaded: &Loaded<'k>,
        end: U32<'k>,
        parts: u32,
    ) -> ReducedRows<'k> {
        let ReduceShape { columns, threads, .. } = self.shape;
        assert_eq!(columns / parts, WARP * 4, "a warp has a row");
        self.add_in_place(k, loaded, end);
        if parts > 1 {
            // Each part of a row was added up by another warp.
            k.barrier_sync(1, threads);
        }
        let (each, warp) = (self.shape.rows_at_a_time(), k.warp_index());
        ReducedRows {
            k,
            pitch: self.shape.pitch() * 4,
            at_once: self.shape.rows_of_a_warp().clamp(1, IN_FLIGHT),
            parts,
            part_bytes: columns / parts * 4,
            at: self.at.at(k.lane() * 16),
            first: warp % each + ((warp / each) * self.split + self.rank) * each,
            step: self.split * (parts * each),
            end,
        }
    }

    /// Adds the splits in order and gives `take` every four sums of this thread.
    fn add_to(
        &self,
        k: &'k Kernel,
        loaded: &Loaded<'k>,
        rows: U32<'k>,
        take: impl Fn(U32<'k>, U32<'k>, [F32<'k>; 4]),
    ) {
        for split in self.split_counts() {
            k.if_(self.split.eq(split), || {
                for (step, splits) in (0..self.steps(split)).zip(loaded.chunks(split as usize)) {
                    let (row, column) = self.four(k, split, step);
                    let sums = std::array::from_fn(|i| {
                        splits.iter().fold(k.constant(0.0f32), |sum, part| sum + part[i].live())
                    });
                    k.if_(row.lt(rows), || take(row, column, sums));
                }
            });
        }
    }

    /// Numbers of splits with which there is something to add: a single split is written at once without operands
    /// swapped, and is where it has to be with a fused epilogue.
    fn split_counts(&self) -> impl Iterator<Item = u32> {
        let single = self.shape.swapped && !self.fused;
        SPLITS.into_iter().filter(move |split| single || *split > 1)
    }

    /// How often a thread takes four neighbours.
    fn steps(&self, split: u32) -> u32 {
        (self.shape.rows * self.shape.columns / 4).div_ceil(split * self.shape.threads)
    }

    /// Whether some threads of the cluster have none left of a tile in a step that is not the first.
    fn ends_behind(&self, split: u32, step: u32) -> bool {
        step > 0 && (step + 1) * split * self.shape.threads > self.shape.rows * self.shape.columns / 4
    }

    /// The row and column of the four neighbours that this thread takes in a step.
    fn four(&self, k: &'k Kernel, split: u32, step: u32) -> (U32<'k>, U32<'k>) {
        let index = k.thread_index() + (self.rank + step * split) * self.shape.threads;
        let fours = self.shape.columns / 4;
        (index / fours, (index % fours) * 4)
    }

    /// Rows of the tile that exist.
    pub fn rows(&self, output: &OutputParams<'k>, tile: [U32<'k>; 2]) -> U32<'k> {
        (output.rows - tile[0]).min(self.shape.rows)
    }
}

/// Fours of partial accumulators: those of all splits for the first step, then for the next.
pub(crate) type Loaded<'k> = Vec<[Var<'k, f32>; 4]>;
