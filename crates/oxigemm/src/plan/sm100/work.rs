//! Work of a tile, path by path, and the cycles that each path takes for it.
//!
//! The bytes are counted as the simulator counts them (`oxigemm_sim::Traffic`), which a test compares.

use oxigemm_kernels::gemm::GemmConfig;

use super::machine::{L2, OUTPUT, PORT, SHARED, macs_per_cycle};

/// Bytes of a word of four scales.
const WORD: f64 = 4.0;
/// Rows whose scales go to tensor memory at a time.
const SCALED_ROWS: u32 = 128;
/// Copies of scales in tensor memory: each quarter of the lanes has them.
const SCALE_COPIES: f64 = 4.0;
/// MMAs of a stage.
const STEPS: f64 = 4.0;
/// SMs whose loads an L2 cache serves at a time.
const SMS: f64 = 148.0;

/// What one CTA does for one tile of a Blackwell kernel, with the K of one split: bytes by path, and multiply-adds.
///
/// Tiles are counted as whole ones, whose elements all exist, with a D of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileWork {
    /// Operands that TMA loads into shared memory. No kernel multicasts: they leave the L2 cache as often.
    pub loaded: f64,
    /// Scales that threads load.
    pub scales: f64,
    /// Operands and scales that the tensor core takes from shared memory.
    pub operands: f64,
    /// Scales that are copied to tensor memory, each copy of a row.
    pub tensor_copies: f64,
    /// Accumulators that MMAs read.
    pub accumulators_read: f64,
    /// Accumulators that MMAs write.
    pub accumulators_written: f64,
    /// Accumulators that the epilogue reads.
    pub tensor_loads: f64,
    /// D, which goes through shared memory.
    pub stored: f64,
    /// Multiply-adds.
    pub macs: f64,
    /// Multiply-adds of the tensor core in a cycle.
    macs_per_cycle: f64,
}

impl TileWork {
    /// The work of a configuration's tile with so much K.
    #[must_use]
    pub fn new(config: &GemmConfig, k: u32) -> TileWork {
        let operands = config.operands();
        let [m, n] = config.tile();
        let stages = f64::from(k.div_ceil(operands.block_k()));
        let depth = stages * f64::from(operands.block_k());
        let [bits_a, bits_b] = [operands.a, operands.b].map(|operand| operand.element.bits());
        let words = match operands.is_block_scaled() {
            true => f64::from((operands.block_k() / (4 * operands.scale_block.size())).max(1)),
            false => 0.0,
        };
        // A CTA of a pair loads its own rows of A, and half of the rows of B, but all of B's scales.
        let rows_of_b = f64::from(n) / f64::from(config.cluster[0]);
        let loaded = depth * (f64::from(m) * f64::from(bits_a) + rows_of_b * f64::from(bits_b)) / 8.0;
        let scaled_rows = f64::from(m.next_multiple_of(SCALED_ROWS) + n.next_multiple_of(SCALED_ROWS));
        let copied = stages * words * scaled_rows * WORD;
        let accumulator = 4.0 * f64::from(m) * f64::from(n);
        TileWork {
            loaded,
            scales: stages * words * f64::from(m + n) * WORD,
            operands: loaded + copied,
            tensor_copies: SCALE_COPIES * copied,
            accumulators_read: (STEPS * stages - 1.0) * accumulator,
            accumulators_written: STEPS * stages * accumulator,
            tensor_loads: accumulator,
            stored: accumulator / 2.0 / f64::from(config.kernel.fusion().accumulators()),
            macs: f64::from(m) * f64::from(n) * depth,
            macs_per_cycle: macs_per_cycle(bits_a.max(bits_b)),
        }
    }

    /// Cycles of the tensor core.
    #[must_use]
    pub fn tensor(&self) -> f64 {
        self.macs / self.macs_per_cycle
    }

    /// Bytes that come from the L2 cache.
    #[must_use]
    pub fn from_l2(&self) -> f64 {
        self.loaded + self.scales
    }

    /// Cycles of the L2 cache where all SMs have such a tile.
    #[must_use]
    pub fn l2(&self) -> f64 {
        SMS * self.from_l2() / L2
    }

    /// Cycles of the path from the L2 cache into the SM.
    #[must_use]
    pub fn port(&self) -> f64 {
        self.from_l2() / PORT
    }

    /// Cycles of shared memory: operands and scales are written and read, and so is D.
    #[must_use]
    pub fn shared(&self) -> f64 {
        (self.from_l2() + self.operands + 2.0 * self.stored) / SHARED
    }

    /// Cycles of the epilogue.
    #[must_use]
    pub fn output(&self) -> f64 {
        self.tensor_loads / OUTPUT
    }

    /// The cycles by the names of what takes them, the epilogue aside.
    #[must_use]
    pub fn cycles(&self) -> [(&'static str, f64); 4] {
        [
            ("tensor core", self.tensor()),
            ("L2 cache", self.l2()),
            ("port of the SM", self.port()),
            ("shared memory", self.shared()),
        ]
    }

    /// What takes the most cycles.
    #[must_use]
    pub fn bound_by(&self) -> &'static str {
        let [first, ..] = self.cycles();
        self.cycles().into_iter().fold(first, |most, path| if path.1 > most.1 { path } else { most }).0
    }
}
