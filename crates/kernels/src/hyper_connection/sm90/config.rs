//! Tile shape, configuration and shared-memory layout.

use crate::common::pipeline::Pipeline;
use crate::common::workspace_reduce::room_bytes;
use crate::common::{WARP, WARPGROUP};
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS};
use crate::hyper_connection::{BLOCK_K, BLOCK_M, COLUMNS, WTile};
use oxigemm_ptx::{Kernel, MBarrier, SharedLayout};

/// Threads that hold a row of the accumulators.
pub(super) const QUAD: u32 = 4;

pub(super) const LINE: u32 = 128;
/// Bytes of a row of W in a stage, in FP32 as in two lines of BF16.
pub(super) const W_ROW: u32 = W_LINES * LINE;
pub(super) const W_LINES: u32 = 2;
/// Pipeline stages. With more, an H200 was slower: perhaps because loads that are not needed yet evict more from L2,
/// which then has to be written back.
pub(super) const STAGES: u32 = 4;
/// The producer warp, behind the math warps.
pub(super) const PRODUCER: u32 = MATH_WARPS;
/// Warps that split W into BF16 parts, behind the producer.
pub(super) const SPLITTERS: u32 = 4;
pub(super) const MATH_THREADS: u32 = MATH_WARPGROUPS * WARPGROUP;
/// Threads of a CTA.
pub const THREADS: u32 = MATH_THREADS + (1 + SPLITTERS) * WARP;

/// Compile-time configuration. Shapes and splits are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// N: one of [`COLUMNS`](crate::hyper_connection::COLUMNS).
    pub columns: u32,
}

impl Config {
    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        SmemLayout::new(self).bytes
    }

    /// See [`hyper_connection::Config::workspace_bytes`](crate::hyper_connection::Config::workspace_bytes).
    pub fn workspace_bytes(ctas: u32) -> u64 {
        let values = COLUMNS.map(|columns| Config { columns }.values());
        room_bytes(ctas, MATH_THREADS, values.into_iter().fold(0, u32::max))
    }

    /// How W is loaded: in an order of rows in which the columns of D that a thread holds are neighbours, not swizzled.
    pub fn w_tile(&self) -> WTile {
        WTile { k: BLOCK_K, rows: self.columns, interleave: self.run(), is_swizzled: false }
    }

    pub(super) fn x_bytes(&self) -> u32 {
        BLOCK_M * LINE
    }

    pub(super) fn w_bytes(&self) -> u32 {
        self.columns * W_ROW
    }

    /// Neighbouring columns of D that a thread holds, of two rows. The accumulator layout interleaves columns over four
    /// threads, so W is loaded as `[QUAD, run, K]` with its first two dimensions exchanged.
    pub(super) fn run(&self) -> u32 {
        self.columns / QUAD
    }

    /// Values of a thread: two rows of a quarter of the columns, and the squares of one row.
    pub(super) fn values(&self) -> u32 {
        2 * self.run() + 1
    }
}

/// Layout of the shared memory.
pub(super) struct SmemLayout {
    pub x: u32,
    pub w: u32,
    pub barriers: u32,
    /// A barrier for each stage of W before it is split.
    pub landed: u32,
    pub bytes: u32,
}

impl SmemLayout {
    pub fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let x = layout.place(STAGES * cfg.x_bytes(), 1024);
        let w = layout.place(STAGES * cfg.w_bytes(), 1024);
        let barriers = layout.place(Pipeline::barrier_bytes(STAGES), 8);
        let landed = layout.place(STAGES * MBarrier::BYTES, 8);
        SmemLayout { x, w, barriers, landed, bytes: layout.bytes() }
    }

    /// Names the parts for the simulator's messages and timeline.
    pub fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("x", self.x, cfg.x_bytes(), STAGES);
        k.name_shared("w", self.w, cfg.w_bytes(), STAGES);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, STAGES);
        k.name_shared("landed", self.landed, MBarrier::BYTES, STAGES);
    }
}
