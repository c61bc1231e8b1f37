//! Cost of persistent kernels by constants that were fitted to a sweep over layers of public models.
//!
//! `oxigemm bench --suite models --sweep` times the candidates of drawn cases; the constants are those with the smallest
//! squared error of the logarithm over the candidates that are near the best of their case. A quarter of the cases was
//! held out. `--replay` shows what plans by today's constants lose against the best that was measured.

use oxigemm_kernels::gemm::GemmConfig;

use super::super::{Cost, Limits};
use super::{ROW_BYTES, Tile};

/// Constants of one kind of kernels.
pub(super) struct Fitted {
    /// Launch, pipeline fill and the end.
    start: f64,
    /// Time that L2 prefetch of B gains where M is small.
    prefetch_gain: f64,
    /// Bytes of memory read or written in a microsecond.
    memory: f64,
    /// Bytes of the L2 cache read in a microsecond.
    l2: f64,
    /// Time of a partial wave, between none and a whole one.
    partial_wave: f64,
    /// Part of B that is read again where a second tile along M needs it.
    read_again: f64,
    /// How well units overlap: see [`Cost::overlapped`].
    sharpness: f64,
    tiles: &'static [TileCost],
}

/// Constants of a tile.
struct TileCost {
    tile: (u32, u32),
    /// Whether they are of clusters of two.
    multicast: bool,
    /// Part of the tensor cores' speed that MMAs and promotion reach.
    efficiency: f64,
    /// Least time of a K block, in microseconds, whatever is multiplied.
    step: f64,
    /// Time of a tile that overlaps with nothing, in microseconds: its output, and refilling the pipeline.
    output: f64,
    /// Part of the memory's speed that the loads in flight reach.
    memory: f64,
}

/// Constants of a tile without a cluster: efficiency, step, output and memory.
const fn block(m: u32, n: u32, [efficiency, step, output, memory]: [f64; 4]) -> TileCost {
    TileCost { tile: (m, n), multicast: false, efficiency, step, output, memory }
}

/// The same of clusters of two.
const fn cluster(m: u32, n: u32, constants: [f64; 4]) -> TileCost {
    TileCost { multicast: true, ..block(m, n, constants) }
}

/// The work of a persistent grid.
pub(super) struct Work {
    /// Tiles of whole clusters.
    pub tiles: f64,
    /// Part of the rows of these tiles that are multiplied.
    pub multiplied: f64,
    /// K blocks of each tile.
    pub k_blocks: u32,
    /// Bytes that cross the memory bus, with B read once.
    pub memory: f64,
    /// Bytes of B that a second tile along M reads.
    pub read_again: f64,
    /// Time of the last wave, in parts of a whole one, where it is a stream-K tail.
    pub last_wave: Option<f64>,
    /// Whether kernels prefetch B into the L2 cache before they start.
    pub prefetches: bool,
}

/// Dense FP8 GEMMs with 1x128 and 128x128 scales. The efficiency of 64x256 is that of a later sweep (299 problems), with
/// which plans lose the least to the best.
pub(super) const FP8: Fitted = Fitted {
    start: 3.80,
    prefetch_gain: 1.00,
    memory: 4.30e6,
    l2: 13.3e6,
    partial_wave: 1.00,
    read_again: 0.25,
    sharpness: 4.2,
    tiles: &[
        block(64, 64, [0.604, 0.005, 0.53, 0.714]),
        block(64, 128, [0.998, 0.168, 0.46, 1.000]),
        block(64, 256, [1.000, 0.210, 0.20, 1.000]),
        block(128, 96, [0.814, 0.006, 0.14, 0.756]),
        block(128, 112, [0.911, 0.271, 0.37, 0.822]),
        block(128, 128, [0.967, 0.211, 0.29, 0.876]),
        block(128, 144, [0.925, 0.247, 0.46, 0.938]),
        block(128, 160, [1.149, 0.371, 0.63, 1.000]),
        block(128, 176, [1.176, 0.462, 0.58, 1.000]),
        block(128, 192, [1.176, 0.425, 0.66, 1.000]),
        block(256, 128, [1.024, 0.490, 0.96, 0.670]),
        cluster(256, 128, [1.026, 0.498, 1.09, 0.671]),
    ],
};

/// Batches of FP8 GEMMs, m-grouped ones whose groups have slabs of their own, and all m-grouped ones with a fused epilogue; the
/// start includes reading the group layout and building the table.
pub(super) const FP8_M_GROUPED: Fitted = Fitted {
    start: 6.40,
    prefetch_gain: 0.0,
    memory: 4.30e6,
    l2: 40.0e6,
    partial_wave: 0.90,
    read_again: 0.0,
    sharpness: 4.4,
    tiles: &[
        block(64, 64, [0.966, 0.252, 0.33, 1.000]),
        block(64, 96, [1.176, 0.299, 0.37, 0.962]),
        block(64, 128, [1.176, 0.311, 0.33, 0.944]),
        block(64, 256, [1.176, 0.459, 0.30, 0.916]),
        block(128, 128, [1.176, 0.427, 0.25, 0.967]),
        block(128, 192, [1.176, 0.630, 0.40, 0.951]),
        block(256, 128, [1.176, 0.770, 0.54, 1.000]),
        cluster(256, 128, [1.176, 0.688, 0.64, 0.878]),
    ],
};

/// M-grouped contiguous FP8 GEMMs without a fused epilogue. (A fit of their problems and of those of slabs together: alone, the
/// problems held out lost more.)
pub(super) const FP8_CONTIGUOUS: Fitted = Fitted {
    start: 5.82,
    prefetch_gain: 0.0,
    memory: 4.33e6,
    l2: 40.0e6,
    partial_wave: 0.60,
    read_again: 0.0,
    sharpness: 8.0,
    tiles: &[
        block(64, 64, [0.967, 0.184, 0.38, 0.886]),
        block(64, 96, [1.176, 0.265, 0.28, 0.886]),
        block(64, 128, [1.176, 0.321, 0.36, 0.946]),
        block(64, 256, [1.180, 0.527, 0.26, 1.050]),
        block(128, 128, [0.675, 0.349, 0.19, 0.882]),
        block(128, 192, [0.820, 0.326, 1.10, 0.897]),
        block(256, 128, [0.869, 0.849, 0.51, 0.809]),
        cluster(256, 128, [1.250, 0.746, 0.26, 0.654]),
    ],
};

/// Dense GEMMs of 16-bit operands. The efficiency of 128x64 and 128x96 and the memory of 64x128 are those of a later sweep
/// (157 problems) with which plans lose the least to the best.
pub(super) const F16: Fitted = Fitted {
    start: 2.87,
    prefetch_gain: 0.63,
    memory: 4.29e6,
    l2: 13.5e6,
    partial_wave: 1.00,
    read_again: 0.43,
    sharpness: 4.0,
    tiles: &[
        block(64, 128, [1.021, 0.052, 0.00, 0.900]),
        block(128, 64, [0.700, 0.052, 0.00, 0.750]),
        block(128, 96, [0.900, 0.030, 0.03, 0.760]),
        block(128, 128, [1.158, 0.013, 0.05, 0.766]),
        block(128, 144, [1.155, 0.015, 0.11, 0.785]),
        block(128, 176, [1.126, 0.031, 0.33, 0.854]),
        block(128, 192, [1.116, 0.038, 0.27, 0.890]),
        block(128, 256, [1.123, 0.035, 0.92, 0.815]),
        cluster(128, 256, [1.060, 0.056, 1.07, 0.890]),
        block(256, 128, [0.963, 0.071, 0.34, 0.507]),
        cluster(256, 128, [0.988, 0.082, 0.62, 0.508]),
    ],
};

/// M-grouped GEMMs and batches of 16-bit operands without a fused epilogue, fitted to 36 problems of `oxigemm tune --check`.
/// Clusters along M have no constants: they were slower in nearly all.
pub(super) const F16_M_GROUPED: Fitted = Fitted {
    start: 5.00,
    prefetch_gain: 0.0,
    memory: 4.54e6,
    l2: 27.9e6,
    partial_wave: 1.00,
    read_again: 0.0,
    sharpness: 2.0,
    tiles: &[
        block(64, 128, [0.963, 0.149, 0.26, 1.000]),
        cluster(64, 128, [0.955, 0.238, 0.14, 0.989]),
        block(64, 256, [1.086, 0.032, 0.26, 0.885]),
        cluster(64, 256, [0.716, 0.106, 0.23, 0.890]),
        block(128, 128, [1.004, 0.002, 0.17, 0.939]),
        cluster(128, 128, [0.885, 0.092, 0.10, 0.852]),
        block(128, 256, [1.200, 0.024, 0.48, 0.865]),
        cluster(128, 256, [1.159, 0.206, 1.07, 0.901]),
        block(256, 128, [1.200, 0.457, 0.00, 0.616]),
        cluster(256, 128, [1.200, 0.484, 0.00, 0.641]),
    ],
};

impl Fitted {
    /// The constants of a configuration: those of its tile, also where no cluster was fitted.
    fn tile(&self, config: &GemmConfig) -> Option<&TileCost> {
        let ([m, n], multicast) = (config.tile(), config.cluster_blocks() > 1);
        let same = |cost: &&TileCost| cost.tile == (m, n);
        let tiles = || self.tiles.iter().filter(same);
        tiles().find(|cost| cost.multicast == multicast).or_else(|| tiles().next())
    }

    /// The estimate of a configuration; none for a tile that was not fitted.
    pub fn estimate(&self, config: &GemmConfig, work: &Work, limits: &Limits) -> Option<Cost> {
        let cost = self.tile(config)?;
        let (tile, [cluster_m, cluster_n]) = (Tile::of(config), config.cluster);
        let blocks = f64::from(cluster_m * cluster_n);
        let concurrent = f64::from(limits.clusters(cluster_m * cluster_n));
        let waves = (work.tiles / concurrent).ceil();
        let busy = match work.last_wave {
            Some(last) => waves - 1.0 + last,
            None if waves > 1.0 => waves - (1.0 - self.partial_wave) * (waves - work.tiles / concurrent),
            None => waves,
        };
        let steps = busy * f64::from(work.k_blocks);
        // Few SMs do not keep the memory busy.
        let active = (work.tiles * blocks / f64::from(limits.sms)).min(1.0).sqrt();
        // Multicast reads the L2 cache once for all blocks of a cluster.
        let (m, n) = (f64::from(tile.m) / f64::from(cluster_n), f64::from(tile.n) / f64::from(cluster_m));
        let read = work.tiles * blocks * f64::from(work.k_blocks) * (m + n) * f64::from(ROW_BYTES);
        // Tiles of one wave read the same B at the same time.
        let again = if waves > 1.0 { self.read_again } else { 0.0 };
        let memory = work.memory + again * work.read_again;
        let prefetch_gain = if work.prefetches { self.prefetch_gain } else { 0.0 };
        let cost = Cost {
            tensor: steps * tile.stage_ops() * work.multiplied
                / (tile.tensor_speed(PEAK_FP8) * cost.efficiency),
            memory: memory / (self.memory * cost.memory * active),
            l2: read / self.l2,
            feed: steps * cost.step,
            output: waves * cost.output,
            start: self.start - prefetch_gain,
            us: 0.0,
        };
        Some(cost.overlapped(self.sharpness))
    }
}

/// FP8 operations of one SM in a microsecond.
const PEAK_FP8: f64 = 12.69e6;
