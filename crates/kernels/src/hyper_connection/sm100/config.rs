//! Configuration, shared-memory map and tensor-memory map.

use crate::common::pipeline::Pipeline;
use crate::common::tensor_memory::least_shared_bytes;
use crate::common::workspace_reduce::room_bytes;
use crate::common::{WARP, WARPGROUP};
use crate::hyper_connection::{BLOCK_K, BLOCK_M, COLUMNS, WTile};
use oxigemm_ptx::tcgen05::{Instruction, Kind, OutputType, TensorMemory};
use oxigemm_ptx::{Kernel, MBarrier, SharedLayout};

/// Threads of a CTA: four cast warps, the producer warp and the MMA warp.
pub const THREADS: u32 = CAST_THREADS + 2 * WARP;

/// Cast warps: one for each quarter of the lanes of tensor memory, and so a thread for each row.
pub(super) const CAST_WARPS: u32 = 4;
pub(super) const CAST_THREADS: u32 = WARPGROUP;
pub(super) const PRODUCER_WARP: u32 = CAST_WARPS;
/// It also allocates tensor memory and frees it.
pub(super) const MMA_WARP: u32 = CAST_WARPS + 1;

/// Bytes of a line of shared memory: 64 of K of X, 32 of K of W.
pub(super) const LINE: u32 = 128;
/// K of a box of W: a line of FP32.
pub(super) const W_BOX_K: u32 = LINE / 4;
/// Boxes of W of a stage.
pub(super) const W_BOXES: u32 = BLOCK_K / W_BOX_K;
/// Pipeline stages, in shared memory as in tensor memory.
pub(super) const STAGES: u32 = 6;
/// Accumulators that the MMAs of a stage take in turn: the tensor core truncates a sum with every MMA, so each of them
/// loses a quarter of what one would.
pub(super) const ACCUMULATORS: u32 = 4;
pub(super) const KIND: Kind = Kind::Tf32;
/// MMAs of a stage.
pub(super) const STEPS: u32 = BLOCK_K / KIND.k();
/// Columns of tensor memory that are allocated.
pub(super) const ALLOCATED_COLUMNS: u32 = TensorMemory::COLUMNS;

/// Compile-time configuration. Shapes and splits are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// N: one of [`COLUMNS`](crate::hyper_connection::COLUMNS).
    pub columns: u32,
}

impl Config {
    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes.max(least_shared_bytes(ALLOCATED_COLUMNS))
    }

    /// See [`hyper_connection::Config::workspace_bytes`](crate::hyper_connection::Config::workspace_bytes).
    pub fn workspace_bytes(ctas: u32) -> u64 {
        let values = COLUMNS.map(|columns| Config { columns }.values());
        room_bytes(ctas, CAST_THREADS, values.into_iter().fold(0, u32::max))
    }

    /// How W is loaded: as the tensor core reads it.
    pub fn w_tile(&self) -> WTile {
        WTile { k: W_BOX_K, rows: self.mma_columns(), interleave: 1, is_swizzled: true }
    }

    /// Columns of the MMA: of 128 rows, a multiple of 16.
    pub(super) fn mma_columns(&self) -> u32 {
        self.columns.next_multiple_of(16)
    }

    pub(super) fn instruction(&self) -> Instruction {
        Instruction::new(KIND, OutputType::F32, BLOCK_M, self.mma_columns())
    }

    /// Values of a thread: its row of D, and the squares of its row of X.
    pub(super) fn values(&self) -> u32 {
        self.columns + 1
    }

    pub(super) fn x_bytes(&self) -> u32 {
        BLOCK_M * LINE
    }

    pub(super) fn w_box_bytes(&self) -> u32 {
        self.mma_columns() * LINE
    }

    pub(super) fn w_bytes(&self) -> u32 {
        W_BOXES * self.w_box_bytes()
    }

    /// First column of tensor memory of the X of a stage: behind the accumulators. A column has one of K.
    pub(super) fn x_column(&self) -> u32 {
        ACCUMULATORS * self.mma_columns()
    }
}

/// Shared-memory map: every offset in one place.
pub(super) struct SharedMap {
    pub x: u32,
    pub w: u32,
    /// Stages that TMA has loaded, and those that the tensor core has read.
    pub barriers: u32,
    /// Stages whose operands are TF32.
    pub cast: u32,
    /// When the accumulators of an output unit are computed.
    pub computed: u32,
    /// Address of the allocated tensor memory.
    pub allocation: u32,
    pub bytes: u32,
}

impl SharedMap {
    pub fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let x = layout.place(STAGES * cfg.x_bytes(), 1024);
        let w = layout.place(STAGES * cfg.w_bytes(), 1024);
        let barriers = layout.place(Pipeline::barrier_bytes(STAGES), 8);
        let cast = layout.place(STAGES * MBarrier::BYTES, 8);
        let computed = layout.place(MBarrier::BYTES, 8);
        let allocation = layout.place(8, 8);
        SharedMap { x, w, barriers, cast, computed, allocation, bytes: layout.bytes() }
    }

    /// Names the parts for the simulator's messages and timeline.
    pub fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("x", self.x, cfg.x_bytes(), STAGES);
        k.name_shared("w", self.w, cfg.w_bytes(), STAGES);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, STAGES);
        k.name_shared("cast", self.cast, MBarrier::BYTES, STAGES);
        k.name_shared("computed", self.computed, MBarrier::BYTES, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulators_and_stages_fit_tensor_memory() {
        for columns in COLUMNS {
            let used = Config { columns }.x_column() + STAGES * BLOCK_K;
            assert!(used <= ALLOCATED_COLUMNS, "{columns}: {used}");
        }
    }
}
