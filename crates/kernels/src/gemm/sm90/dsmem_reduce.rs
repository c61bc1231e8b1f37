//! Partial sums of the slices of K, exchanged in a cluster.
//!
//! Every block of a cluster lays its sums out in its own shared memory; then the blocks take turns to add them up, always
//! in the order of the slices, so that the result does not depend on timing.

use crate::WARP;
use crate::gemm::epilogue::OutputParams;
use oxigemm_ptx::{F32, Kernel, Pred, Shared, U32, Var};

/// The ways K may be split: clusters of this many blocks.
pub const SPLITS: [u32; 5] = [1, 2, 3, 4, 8];

/// The shape of a block's partial sums.
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
    /// Floats from one row of partial sums to the next: four more than a row, so that the eight columns and
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

    /// Rows that there are for each warp, where no other block takes some.
    const fn rows_of_a_warp(&self) -> u32 {
        self.rows / (self.threads / WARP)
    }
}

/// A block's partial sums in shared memory, and its place among the slices.
pub(crate) struct DsmemReduce<'k> {
    pub shape: ReduceShape,
    pub at: Shared<'k>,
    /// Slices of K, and which of them is this block's.
    pub split: U32<'k>,
    pub rank: U32<'k>,
    /// Whether sums are finished here, in the shared memory of the block that adds them up.
    pub finished: bool,
}

impl<'k> DsmemReduce<'k> {
    /// Lays a warp's part of the fragment out for the cluster to read: `[rows][pitch]`.
    pub fn share(&self, k: &'k Kernel, warp: U32<'k>, lane: U32<'k>, sums: &[Var<'k, f32>]) {
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
            // Rows of the tile that D does not have are as good as any other, and not stored.
            let takes_part = if turns > 1 { math } else { math & four_of(0).0.lt(rows) };
            k.if_(takes_part & self.split.eq(split), || {
                for (turn, slices) in (0..turns).zip(loaded.chunks(split as usize)) {
                    let (row, column) = four_of(turn);
                    let from = self.at.at((row * self.shape.pitch() + column) * 4);
                    let load = || {
                        for (rank, four) in (0u32..).zip(slices) {
                            let part: [F32<'k>; 4] = from.in_block(rank).load_vec();
                            four.iter().zip(part).for_each(|(var, part)| var.set(part));
                        }
                    };
                    // Several turns may end behind the tile.
                    match self.ends_behind(split, turn) {
                        true => k.if_(row.lt(self.shape.rows), load),
                        false => load(),
                    }
                }
            });
        }
        // Rows that are finished are whole warps'; else lanes have parted.
        if !self.finished {
            k.sync_warp();
        }
        loaded
    }

    /// Adds the slices in order and writes D, whose tile begins at `tile`.
    pub fn add(&self, k: &'k Kernel, loaded: &Loaded<'k>, output: &OutputParams<'k>, tile: [U32<'k>; 2]) {
        self.add_to(k, loaded, self.rows(output, tile), |row, column, sums| {
            output.store_four(k, tile[0] + row, tile[1] + column, sums);
        });
    }

    /// Adds the slices in order and leaves the sums in this block's shared memory, in place of its own slice of them: no other block
    /// reads there.
    fn add_in_place(&self, k: &'k Kernel, loaded: &Loaded<'k>, rows: U32<'k>) {
        self.add_to(k, loaded, rows, |row, column, sums| {
            self.at.at((row * self.shape.pitch() + column) * 4).store_vec(sums);
        });
    }

    /// Adds the slices in order, and tells which rows of the sums are this warp's to finish. A lane has four neighbours of each of `parts` equal
    /// parts of their columns.
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
            shape: self.shape,
            parts,
            at: self.at.at(k.lane() * 16),
            first: warp % each + ((warp / each) * self.split + self.rank) * each,
            step: self.split * (parts * each),
            end,
        }
    }

    /// Adds the slices in order and hands the sums of every four that this thread takes over.
    fn add_to(
        &self,
        k: &'k Kernel,
        loaded: &Loaded<'k>,
        rows: U32<'k>,
        take: impl Fn(U32<'k>, U32<'k>, [F32<'k>; 4]),
    ) {
        for split in self.ways() {
            k.if_(self.split.eq(split), || {
                for (turn, slices) in (0..self.turns(split)).zip(loaded.chunks(split as usize)) {
                    let (row, column) = self.four(k, split, turn);
                    let sums = std::array::from_fn(|i| {
                        slices.iter().fold(k.constant(0.0f32), |sum, slice| sum + slice[i].live())
                    });
                    k.if_(row.lt(rows), || take(row, column, sums));
                }
            });
        }
    }

    /// The ways K may be split in which there is something to add: a single slice is written at once without operands swapped, and is
    /// where it has to be where sums are finished.
    fn ways(&self) -> impl Iterator<Item = u32> {
        let single = self.shape.swapped && !self.finished;
        SPLITS.into_iter().filter(move |split| single || *split > 1)
    }

    /// How often a thread takes four neighbours.
    fn turns(&self, split: u32) -> u32 {
        (self.shape.rows * self.shape.columns / 4).div_ceil(split * self.shape.threads)
    }

    /// Whether some threads of the cluster have none left of a tile the `turn`-th time, where that is not the first.
    fn ends_behind(&self, split: u32, turn: u32) -> bool {
        turn > 0 && (turn + 1) * split * self.shape.threads > self.shape.rows * self.shape.columns / 4
    }

    /// The row and column of the four neighbours that this thread takes the `turn`-th time.
    fn four(&self, k: &'k Kernel, split: u32, turn: u32) -> (U32<'k>, U32<'k>) {
        let index = k.thread_index() + (self.rank + turn * split) * self.shape.threads;
        let fours = self.shape.columns / 4;
        (index / fours, (index % fours) * 4)
    }

    /// Rows of the tile that exist.
    pub fn rows(&self, output: &OutputParams<'k>, tile: [U32<'k>; 2]) -> U32<'k> {
        (output.rows - tile[0]).min(self.shape.rows)
    }
}

/// Rows of sums in shared memory that a warp finishes.
pub(crate) struct ReducedRows<'k> {
    k: &'k Kernel,
    shape: ReduceShape,
    parts: u32,
    /// Where this lane's part of the tile's first row lies.
    at: Shared<'k>,
    /// The first row of the tile that is this warp's, and from one to the next.
    first: U32<'k>,
    step: U32<'k>,
    /// The row behind the last that D has.
    end: U32<'k>,
}

/// A row of sums, as far as a lane has it.
pub(crate) struct ReducedRow<'k> {
    /// Which of the tile's.
    pub row: U32<'k>,
    /// Whether D has it.
    pub exists: Pred<'k>,
    /// Four neighbours of each part of its columns.
    pub sums: Vec<[F32<'k>; 4]>,
    at: Shared<'k>,
}

impl<'k> ReducedRow<'k> {
    /// Leaves what the sums of its first part have become in their place, if D has the row.
    pub fn put_back(&self, k: &'k Kernel, values: [F32<'k>; 4]) {
        k.guard(self.exists, || self.at.store_vec(values));
    }
}

impl<'k> ReducedRows<'k> {
    /// Rows that a warp takes at a time, so that none has to be waited for alone.
    const IN_FLIGHT: u32 = 4;

    fn at(&self, row: U32<'k>) -> Shared<'k> {
        self.at.at(row * (self.shape.pitch() * 4))
    }

    /// All rows, a few at a time, of which the last may not exist.
    pub fn for_each_few(&self, take: impl FnOnce(&[ReducedRow<'k>])) {
        let count = self.shape.rows_of_a_warp().clamp(1, Self::IN_FLIGHT);
        let part = self.shape.columns / self.parts * 4;
        self.k.for_(self.first, self.end, self.step * count, |first| {
            let row = |nth: u32| {
                let row = first + self.step * nth;
                let exists = row.lt(self.end);
                // Others may write to what is not this warp's.
                let at = self.at(exists.select(row, first));
                let sums = (0..self.parts).map(|nth| at.at(nth * part).load_vec()).collect();
                ReducedRow { row, exists, sums, at }
            };
            take(&(0..count).map(row).collect::<Vec<_>>());
        });
    }

    /// All rows, one at a time: what lies in their first part.
    pub fn for_each(&self, take: impl FnOnce(U32<'k>, [F32<'k>; 4])) {
        self.k.for_(self.first, self.end, self.step, |row| take(row, self.at(row).load_vec()));
    }
}

/// Fours of partial sums: those of all slices for the first turn, then for the next.
pub(crate) type Loaded<'k> = Vec<[Var<'k, f32>; 4]>;
