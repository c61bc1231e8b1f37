//! Multicast loads: what a block loads of the operands of its cluster, and how it releases stages that others have
//! filled.
//!
//! The blocks of one row of a cluster need the same rows of A, those of one column the same rows of B. Each block loads
//! a part and multicasts it, and a stage is empty when all blocks that received it have read it.

use crate::common::BLOCK_K;
use crate::common::pipeline::{Pipeline, RemoteEmpty};
use crate::gemm::operand::gate_up::{Fusion, GateUpRows};
use crate::gemm::scheduler::ClusterPosition;
use oxigemm_ptx::tma::{CachePolicy, LoadOptions, TensorMap};
use oxigemm_ptx::{Kernel, MBarrier, Pred, Shared, U16, U32};

/// A row, as a signed number, from which no box of a tile reaches a tensor's first row.
const BEFORE_ANY_ROW: u32 = (-256i32).cast_unsigned();

/// Multicast load: the part of an operand tile that this block loads, and for which blocks of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct MulticastLoad<'k> {
    first_row: U32<'k>,
    rows: U32<'k>,
    /// Whether several blocks receive it, and which.
    is_multicast: Pred<'k>,
    blocks: U16<'k>,
    /// Whether it need not stay in the L2 cache, and the policy for that.
    streamed: Option<(Pred<'k>, CachePolicy<'k>)>,
}

/// Box of a tile of a fused kernel, whose [rows of B](GateUpRows) are not contiguous.
#[derive(Clone, Copy)]
pub(crate) struct GateUpBox<'k> {
    /// Whether this block loads it.
    exists: Pred<'k>,
    /// Its first row of the tile.
    in_tile: U32<'k>,
    /// The column of D that this belongs to, and whether it has gates or ups, where there are both.
    column: U32<'k>,
    part: Option<U32<'k>>,
}

impl<'k> MulticastLoad<'k> {
    /// A tile's rows of A, of so many lines of 128 bytes: each block of a row of the cluster loads an equal part for
    /// all of them.
    pub fn of_a(cluster: &ClusterPosition<'k>, lines: u32) -> Self {
        let ([_, blocks], [rank_m, rank_n]) = (cluster.blocks, cluster.rank);
        let k = blocks.kernel();
        let all = (k.constant(1u32) << blocks) - 1;
        let rows = k.constant(lines) / blocks;
        MulticastLoad {
            first_row: rank_n * rows,
            rows,
            is_multicast: blocks.gt(1),
            streamed: None,
            blocks: (all << (rank_m * blocks)).to_u16(),
        }
    }

    /// A tile's rows of B: each block of a column of the cluster loads an equal part.
    pub fn of_b(cluster: &ClusterPosition<'k>, lines: u32) -> Self {
        let ([blocks, cluster_n], [rank_m, rank_n]) = (cluster.blocks, cluster.rank);
        let k = blocks.kernel();
        let other_row = blocks.gt(1).select::<u32>(1, 0) << cluster_n;
        let rows = k.constant(lines) / blocks;
        MulticastLoad {
            first_row: rank_m * rows,
            rows,
            is_multicast: blocks.gt(1),
            streamed: None,
            blocks: ((other_row | 1) << rank_n).to_u16(),
        }
    }

    /// The load with this cache policy where `holds`. (Elsewhere without one: that is faster than the normal policy.)
    pub fn streamed(self, holds: Pred<'k>, policy: CachePolicy<'k>) -> Self {
        MulticastLoad { streamed: Some((holds, policy)), ..self }
    }

    /// Loads this block's part: `row` is the tile's first.
    pub fn load(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, row]: [U32<'k>; 2],
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        let (at, to) = ([column, row + self.first_row], tile.at(self.first_row * BLOCK_K));
        self.load_box(k, tensor, &at, to, full);
    }

    /// Loads it from one of the tensor's slabs.
    pub fn load_of_slab(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, row, slab]: [U32<'k>; 3],
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        let (at, to) = ([column, row + self.first_row, slab], tile.at(self.first_row * BLOCK_K));
        self.load_box(k, tensor, &at, to, full);
    }

    /// Loads its rows before `end` from one of the tensor's slabs, in boxes of `box_rows`. Boxes from `end` on are not
    /// read: rows outside of a tensor are zeros, and arrive as others do.
    pub fn load_before(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, row, slab]: [U32<'k>; 3],
        (end, box_rows): (U32<'k>, u32),
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        k.for_(0, self.rows, box_rows, |offset| {
            let offset = self.first_row + offset;
            let row = row + offset;
            let row = row.lt(end).select(row, BEFORE_ANY_ROW);
            self.load_box(k, tensor, &[column, row, slab], tile.at(offset * BLOCK_K), full);
        });
    }

    /// Boxes of a tile of so many [rows of B](GateUpRows). To find them takes about as long as to load them: once for
    /// all K blocks. `n` is the tile's first column of D.
    pub fn boxes(&self, gate_up: &GateUpRows<'k>, tile_rows: u32, n: U32<'k>) -> Vec<GateUpBox<'k>> {
        let rows = gate_up.box_rows(self.rows);
        let most = (tile_rows / (gate_up.columns * gate_up.fusion.accumulators())).max(1);
        let place = |nth: u32| {
            let offset = rows * nth;
            let in_tile = self.first_row + offset;
            let [column, part] = gate_up.column_and_part(n, in_tile);
            let part = (gate_up.fusion == Fusion::Gated).then_some(part);
            GateUpBox { exists: offset.lt(self.rows), in_tile, column, part }
        };
        (0..most).map(place).collect()
    }

    /// Loads such boxes, from one of B's groups if there are some.
    pub fn load_boxes(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        (depth, group): (U32<'k>, Option<U32<'k>>),
        boxes: &[GateUpBox<'k>],
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        self.load_by(k, |options| {
            for (nth, piece) in boxes.iter().enumerate() {
                let at: Vec<U32<'k>> =
                    [depth, piece.column].into_iter().chain(piece.part).chain(group).collect();
                let load = || tensor.load(&at, tile.at(piece.in_tile * BLOCK_K), full, options);
                // A block loads one at least.
                if nth == 0 { load() } else { k.if_(piece.exists, load) }
            }
        });
    }

    fn load_box(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        at: &[U32<'k>],
        to: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        self.load_by(k, |options| tensor.load(at, to, full, options));
    }

    /// Loads for all blocks that receive it, with its cache policy.
    fn load_by(&self, k: &'k Kernel, load: impl Fn(LoadOptions<'k>)) {
        let load = |cache| {
            let alone = LoadOptions { cache, ..LoadOptions::default() };
            let shared = LoadOptions { multicast: Some(self.blocks), ..alone };
            k.if_else(self.is_multicast, || load(shared), || load(alone));
        };
        match self.streamed {
            None => load(None),
            Some((holds, policy)) => k.if_else(holds, || load(Some(policy)), || load(None)),
        }
    }
}

/// Release of stages by a consumer warp: lane `i` arrives at the `empty` barrier of the `i`-th block that writes to
/// them.
pub(crate) struct StageRelease<'k> {
    takes_part: Pred<'k>,
    empty: RemoteEmpty<'k>,
}

impl<'k> StageRelease<'k> {
    /// For the blocks that load into the stages of this one.
    pub fn new(k: &'k Kernel, cluster: &ClusterPosition<'k>, pipe: &Pipeline<'k>, lane: U32<'k>) -> Self {
        let ([cluster_m, cluster_n], [rank_m, rank_n]) = (cluster.blocks, cluster.rank);
        // Lanes below cluster_n: the blocks of this block's row. The next cluster_m - 1: the others of its column.
        let in_row = lane.lt(cluster_n);
        let other_row = (rank_m + 1 + (lane - cluster_n)) % cluster_m;
        let target = in_row.select(rank_m * cluster_n + lane, other_row * cluster_n + rank_n);
        let takes_part = lane.lt(cluster_m + cluster_n - 1);
        let own = k.cluster_rank();
        StageRelease { takes_part, empty: pipe.empty_in_block(takes_part.select(target, own)) }
    }

    /// Releases a stage.
    pub fn release(&self, k: &'k Kernel, stage: U32<'k>) {
        let barrier = self.empty.at(stage);
        k.guard(self.takes_part, || barrier.arrive());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::gemm::epilogue::fusion::SCALED_COLUMNS;
    use crate::gemm::operand::gate_up::BoxOfB;
    use crate::gemm::{GemmConfig, GemmKernel};
    use oxigemm_ptx::Target;

    /// Columns of D that a warpgroup has, rows of a tile, and passes where D is quantized, of every persistent kernel
    /// with a fused epilogue.
    fn tiles() -> impl Iterator<Item = (Fusion, u32, u32, u32)> {
        let fused = GemmKernel::fused(Arch::Sm90a).chain(GemmKernel::fused_m_grouped(Arch::Sm90a));
        fused.filter(|kernel| !kernel.is_split_k()).map(|kernel| {
            let ([_, rows], passes) = (kernel.tile(), GemmConfig::of(kernel).quantized_passes());
            (kernel.fusion(), SCALED_COLUMNS / passes, rows, passes)
        })
    }

    #[test]
    fn the_host_and_the_kernel_mean_the_same_box() {
        let k = &Kernel::new("boxes", Target::Sm90a);
        let mut seen = 0;
        for (fusion, columns, rows, quantized) in tiles() {
            for (cluster_m, passes) in [(1, 1), (2, 1), (1, quantized), (2, quantized)] {
                let share = rows / cluster_m;
                let host = BoxOfB::of(fusion, share, columns, passes);
                let ups = k.constant(4096);
                let gate_up = GateUpRows { fusion, columns, stride: k.constant(passes * columns), ups };
                let kernel = gate_up.box_rows(k.constant(share)).as_constant().expect("all of it is known");
                let about =
                    format!("{fusion:?} {columns} columns, {rows} rows, {cluster_m}, {passes} passes");
                assert_eq!(host.rows * host.parts.max(1), kernel, "{about}");
                assert!(share.is_multiple_of(kernel), "{about}");
                assert!(share / kernel <= (rows / (columns * fusion.accumulators())).max(1), "{about}");
                seen += 1;
            }
        }
        assert!(seen >= 4 * 12, "{seen}");
    }
}
