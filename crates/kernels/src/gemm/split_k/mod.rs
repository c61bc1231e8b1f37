//! Split-K kernels for few rows: the tile on the tensor core, the K split of a block, and the epilogue, which all of
//! them share.

pub mod dsmem_reduce;

use crate::common::fast_divmod::FastDivmod;
use crate::common::{WARP, WARPGROUP};
use crate::gemm::epilogue::fusion::EpilogueParams;
use crate::gemm::epilogue::split_k::FusedRows;
use crate::gemm::epilogue::{OutputFlags, OutputParams, Panels, SwappedOutput, WarpOutput};
use crate::gemm::operand::gate_up::Fusion;
use dsmem_reduce::{DsmemReduce, ReduceShape};
use oxigemm_ptx::{Kernel, Shared, U32, Var};

/// Tile of a split-K kernel: rows of A and rows of B.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitKTile {
    pub block_m: u32,
    pub block_n: u32,
    /// Fused epilogue.
    pub fusion: Fusion,
    /// Whether the operands are swapped: B's rows take the side of the tensor core that has 64 rows or more.
    pub swapped: bool,
}

impl SplitKTile {
    /// Whether the operands are swapped.
    pub const fn swapped(&self) -> bool {
        self.swapped
    }

    /// Columns of D of a tile.
    pub const fn columns(&self) -> u32 {
        self.block_n / self.fusion.accumulators()
    }

    /// Warpgroups side by side on the 64-row side, each with as many rows of the other: gates and ups have one each, so
    /// that a thread does not hold more than it has registers for. Swapped, they lie along the 64-row side.
    const fn beside(&self) -> u32 {
        if self.swapped() { 1 } else { self.fusion.accumulators() }
    }

    /// Rows of the tile along the 64-row side, and along the other as far as one warpgroup has them.
    pub const fn sides(&self) -> (u32, u32) {
        match self.swapped() {
            true => (self.block_n, self.block_m),
            false => (self.block_m, self.block_n / self.beside()),
        }
    }

    /// Which 64 rows of the 64-row side a warpgroup has, and which of the parts of the other.
    pub fn parts_of<'k>(&self, warpgroup: U32<'k>) -> [U32<'k>; 2] {
        let zero = warpgroup.kernel().constant(0);
        match self.beside() {
            1 => [warpgroup, zero],
            _ => [zero, warpgroup],
        }
    }

    /// Consumer threads: a warpgroup for each 64 rows of that side, and for each of those side by side.
    pub const fn math_threads(&self) -> u32 {
        self.sides().0 / 64 * self.beside() * WARPGROUP
    }

    pub const fn math_warps(&self) -> u32 {
        self.math_threads() / WARP
    }

    /// Reduction of the tile's accumulators, which take more space than its staged output.
    pub const fn reduce(&self) -> ReduceShape {
        ReduceShape {
            rows: self.block_m,
            columns: self.block_n,
            swapped: self.swapped(),
            beside: self.beside(),
            threads: self.math_threads(),
        }
    }

    /// Bytes that a warpgroup stages its output in.
    fn output_bytes(&self) -> u32 {
        match self.swapped() {
            true => (self.block_m * 128).next_multiple_of(1024),
            false => Panels::staging_bytes(self.block_n),
        }
    }
}

/// K split of a block of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct KSplit<'k> {
    /// K splits, and which of them is this block's.
    split: U32<'k>,
    rank: U32<'k>,
    /// Its cluster.
    pub cluster: U32<'k>,
    /// Its first K block, and the one behind its last.
    pub blocks: [U32<'k>; 2],
}

impl<'k> KSplit<'k> {
    /// An equal share of the K blocks, of one of [`SPLITS`](dsmem_reduce::SPLITS).
    pub fn new(k: &'k Kernel, k_blocks: U32<'k>) -> Self {
        let (split, rank) = (k.cluster_blocks(), k.cluster_rank());
        // The logarithm of 1, 2, 4 and 8: everything waits for this, and a division takes long, as does reading the
        // cluster's index, which is a division by a number that an SM has to fetch first.
        let halvings = (split >> 1) - (split >> 3);
        let share = |all: U32<'k>| split.eq(3).select(third(all), all >> halvings);
        let blocks = [rank, rank + 1].map(|nth| share(nth * k_blocks));
        KSplit { split, rank, cluster: share(k.block_index(0)), blocks }
    }
}

/// A third of a number below 2³¹, rounded down.
fn third(number: U32<'_>) -> U32<'_> {
    const THREE: FastDivmod = FastDivmod::new(3);
    (number.widening_mul(THREE.factor) >> THREE.shift).to_u32()
}

/// Epilogue of a block's tile.
pub(crate) struct TileOutput<'k, 'p> {
    pub k: &'k Kernel,
    pub shape: SplitKTile,
    pub params: &'p OutputParams<'k>,
    pub k_split: KSplit<'k>,
    /// The tile's first row and column.
    pub tile: [U32<'k>; 2],
    /// Shared memory that is free when all stages have been read.
    pub area: Shared<'k>,
    pub warp: U32<'k>,
    pub lane: U32<'k>,
    /// The warp whose part of the fragment this one has, where that is not itself.
    pub fragment_warp: Option<U32<'k>>,
    /// Fused epilogue, where there is one.
    pub fused: Option<EpilogueParams<'k>>,
}

impl<'k> TileOutput<'k, '_> {
    /// All warps call it: consumers multiply, and then write the tile or reduce its splits.
    pub fn run(&self, multiply: impl FnOnce() -> Vec<Var<'k, f32>>) {
        let (k, shape) = (self.k, self.shape);
        let KSplit { split, rank, .. } = self.k_split;
        let fused = self.fused.is_some();
        let reduce = DsmemReduce { shape: shape.reduce(), at: self.area, split, rank, fused };
        // One split needs no reduction (with operands swapped: in the plain output type): each warp writes its part.
        let writable = if shape.swapped() { self.params.has(OutputFlags::PLAIN) } else { k.constant(true) };
        let direct = if fused { k.constant(false) } else { split.eq(1) & writable };
        let rows = self.fused.map(|fused| self.fused_rows(fused));
        k.if_(self.warp.lt(shape.math_warps()), || {
            // Long before they are needed.
            rows.iter().for_each(FusedRows::load_biases);
            let accumulators = k.role("math", multiply);
            // What comes next overwrites the operand stages: no warpgroup may still read those.
            k.barrier_sync(1, shape.math_threads());
            k.if_else(
                direct,
                || self.write(&accumulators),
                || reduce.publish(k, self.fragment_warp.unwrap_or(self.warp), self.lane, &accumulators),
            );
        });
        k.if_(!direct, || {
            let math = self.warp.lt(shape.math_warps());
            // Every split's accumulators are in place, and visible to the cluster.
            k.cluster_sync();
            let loaded = reduce.load(k, math, self.params, self.tile);
            // Nobody leaves while another block still reads its shared memory.
            k.cluster_arrive();
            k.if_(math, || match &rows {
                None => reduce.add(k, &loaded, self.params, self.tile),
                Some(rows) => {
                    let end = reduce.rows(self.params, self.tile);
                    rows.apply(
                        self.tile[0],
                        &reduce.reduced_rows(k, &loaded, end, shape.fusion.accumulators()),
                    );
                }
            });
            k.sync_warp();
            k.cluster_wait();
        });
    }

    /// Fused epilogue of this warp's rows.
    fn fused_rows(&self, fused: EpilogueParams<'k>) -> FusedRows<'k> {
        let (output, column) = (fused.output(*self.params), self.tile[1] + self.lane * 4);
        FusedRows::new(self.k, fused, output, self.shape.fusion, [column, self.lane])
    }

    /// Writes the accumulators of the only split to D.
    fn write(&self, accumulators: &[Var<'k, f32>]) {
        let (k, shape, params, [m, n]) = (self.k, self.shape, self.params, self.tile);
        let fragment_warp = self.fragment_warp.unwrap_or(self.warp);
        let (warpgroup, warp) = (fragment_warp >> 2, fragment_warp & 3);
        let thread = match self.fragment_warp {
            None => k.thread_index() % WARPGROUP,
            Some(_) => warp * WARP + self.lane,
        };
        let staging = self.area.at(warpgroup * shape.output_bytes());
        if shape.swapped() {
            let (column, barrier) = (n + warpgroup * 64, (1, shape.math_threads()));
            SwappedOutput { params, row: m, column, staging, thread, barrier }.write(k, accumulators);
            return;
        }
        let place = Panels { row: m + warpgroup * 64, column: n, staging };
        let output = WarpOutput { params, place, warp, lane: self.lane };
        k.if_else(
            params.has(OutputFlags::PLAIN),
            || {
                output.stage(k, accumulators);
                k.fence_async_shared();
                k.barrier_sync(1, shape.math_threads());
                k.if_(thread.eq(0), || {
                    place.store(params, shape.block_n);
                    k.bulk_commit();
                    k.bulk_wait_read(0);
                });
            },
            || WarpOutput::write_f32(k, &[(output, accumulators)]),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_accumulators_take_more_space_than_staged_output() {
        for block_m in [8, 16, 32, 64, 128] {
            for block_n in [64, 128] {
                let shape = SplitKTile { block_m, block_n, fusion: Fusion::None, swapped: block_m < 64 };
                let staged = shape.math_threads() / WARPGROUP * shape.output_bytes();
                assert!(staged <= shape.reduce().bytes(), "{shape:?}");
            }
        }
    }
}
