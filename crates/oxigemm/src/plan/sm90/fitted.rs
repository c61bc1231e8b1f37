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

/// Dense FP8 GEMMs with 1x128 and 128x128 scales.
pub(super) const FP8: Fitted = Fitted {
    start: 3.80,
    prefetch_gain: 1.00,
    memory: 4.30e6,
    l2: 13.3e6,
    partial_wave: 1.00,
    read_again: 0.25,
    sharpness: 4.2,
    tiles: &[
        TileCost {
            tile: (64, 64),
            multicast: false,
            efficiency: 0.604,
            step: 0.005,
            output: 0.53,
            memory: 0.714,
        },
        TileCost {
            tile: (64, 128),
            multicast: false,
            efficiency: 0.998,
            step: 0.168,
            output: 0.46,
            memory: 1.000,
        },
        TileCost {
            tile: (64, 256),
            multicast: false,
            efficiency: 1.176,
            step: 0.210,
            output: 0.20,
            memory: 1.000,
        },
        TileCost {
            tile: (128, 96),
            multicast: false,
            efficiency: 0.814,
            step: 0.006,
            output: 0.14,
            memory: 0.756,
        },
        TileCost {
            tile: (128, 112),
            multicast: false,
            efficiency: 0.911,
            step: 0.271,
            output: 0.37,
            memory: 0.822,
        },
        TileCost {
            tile: (128, 128),
            multicast: false,
            efficiency: 0.967,
            step: 0.211,
            output: 0.29,
            memory: 0.876,
        },
        TileCost {
            tile: (128, 144),
            multicast: false,
            efficiency: 0.925,
            step: 0.247,
            output: 0.46,
            memory: 0.938,
        },
        TileCost {
            tile: (128, 160),
            multicast: false,
            efficiency: 1.149,
            step: 0.371,
            output: 0.63,
            memory: 1.000,
        },
        TileCost {
            tile: (128, 176),
            multicast: false,
            efficiency: 1.176,
            step: 0.462,
            output: 0.58,
            memory: 1.000,
        },
        TileCost {
            tile: (128, 192),
            multicast: false,
            efficiency: 1.176,
            step: 0.425,
            output: 0.66,
            memory: 1.000,
        },
        TileCost {
            tile: (256, 128),
            multicast: false,
            efficiency: 1.024,
            step: 0.490,
            output: 0.96,
            memory: 0.670,
        },
        TileCost {
            tile: (256, 128),
            multicast: true,
            efficiency: 1.026,
            step: 0.498,
            output: 1.09,
            memory: 0.671,
        },
    ],
};

/// M-grouped FP8 GEMMs and batches; the start includes reading the group layout and building the table.
pub(super) const FP8_M_GROUPED: Fitted = Fitted {
    start: 6.40,
    prefetch_gain: 0.0,
    memory: 4.30e6,
    l2: 40.0e6,
    partial_wave: 0.90,
    read_again: 0.0,
    sharpness: 4.4,
    tiles: &[
        TileCost {
            tile: (64, 64),
            multicast: false,
            efficiency: 0.966,
            step: 0.252,
            output: 0.33,
            memory: 1.000,
        },
        TileCost {
            tile: (64, 96),
            multicast: false,
            efficiency: 1.176,
            step: 0.299,
            output: 0.37,
            memory: 0.962,
        },
        TileCost {
            tile: (64, 128),
            multicast: false,
            efficiency: 1.176,
            step: 0.311,
            output: 0.33,
            memory: 0.944,
        },
        TileCost {
            tile: (64, 256),
            multicast: false,
            efficiency: 1.176,
            step: 0.459,
            output: 0.30,
            memory: 0.916,
        },
        TileCost {
            tile: (128, 128),
            multicast: false,
            efficiency: 1.176,
            step: 0.427,
            output: 0.25,
            memory: 0.967,
        },
        TileCost {
            tile: (128, 192),
            multicast: false,
            efficiency: 1.176,
            step: 0.630,
            output: 0.40,
            memory: 0.951,
        },
        TileCost {
            tile: (256, 128),
            multicast: false,
            efficiency: 1.176,
            step: 0.770,
            output: 0.54,
            memory: 1.000,
        },
        TileCost {
            tile: (256, 128),
            multicast: true,
            efficiency: 1.176,
            step: 0.688,
            output: 0.64,
            memory: 0.878,
        },
    ],
};

/// Dense GEMMs of 16-bit operands. Tiles of 128x64 and 128x96 are counted between their neighbours and not fitted: the
/// first reads as much shared memory for each MMA as 64x128 does.
pub(super) const F16: Fitted = Fitted {
    start: 2.87,
    prefetch_gain: 0.63,
    memory: 4.29e6,
    l2: 13.5e6,
    partial_wave: 1.00,
    read_again: 0.43,
    sharpness: 4.0,
    tiles: &[
        TileCost {
            tile: (64, 128),
            multicast: false,
            efficiency: 1.021,
            step: 0.052,
            output: 0.00,
            memory: 1.000,
        },
        TileCost {
            tile: (128, 64),
            multicast: false,
            efficiency: 1.021,
            step: 0.052,
            output: 0.00,
            memory: 0.750,
        },
        TileCost {
            tile: (128, 96),
            multicast: false,
            efficiency: 1.100,
            step: 0.030,
            output: 0.03,
            memory: 0.760,
        },
        TileCost {
            tile: (128, 128),
            multicast: false,
            efficiency: 1.158,
            step: 0.013,
            output: 0.05,
            memory: 0.766,
        },
        TileCost {
            tile: (128, 144),
            multicast: false,
            efficiency: 1.155,
            step: 0.015,
            output: 0.11,
            memory: 0.785,
        },
        TileCost {
            tile: (128, 176),
            multicast: false,
            efficiency: 1.126,
            step: 0.031,
            output: 0.33,
            memory: 0.854,
        },
        TileCost {
            tile: (128, 192),
            multicast: false,
            efficiency: 1.116,
            step: 0.038,
            output: 0.27,
            memory: 0.890,
        },
        TileCost {
            tile: (128, 256),
            multicast: false,
            efficiency: 1.123,
            step: 0.035,
            output: 0.92,
            memory: 0.815,
        },
        TileCost {
            tile: (128, 256),
            multicast: true,
            efficiency: 1.060,
            step: 0.056,
            output: 1.07,
            memory: 0.890,
        },
        TileCost {
            tile: (256, 128),
            multicast: false,
            efficiency: 0.963,
            step: 0.071,
            output: 0.34,
            memory: 0.507,
        },
        TileCost {
            tile: (256, 128),
            multicast: true,
            efficiency: 0.988,
            step: 0.082,
            output: 0.62,
            memory: 0.508,
        },
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
        TileCost {
            tile: (64, 128),
            multicast: false,
            efficiency: 0.963,
            step: 0.149,
            output: 0.26,
            memory: 1.000,
        },
        TileCost {
            tile: (64, 128),
            multicast: true,
            efficiency: 0.955,
            step: 0.238,
            output: 0.14,
            memory: 0.989,
        },
        TileCost {
            tile: (64, 256),
            multicast: false,
            efficiency: 1.086,
            step: 0.032,
            output: 0.26,
            memory: 0.885,
        },
        TileCost {
            tile: (64, 256),
            multicast: true,
            efficiency: 0.716,
            step: 0.106,
            output: 0.23,
            memory: 0.890,
        },
        TileCost {
            tile: (128, 128),
            multicast: false,
            efficiency: 1.004,
            step: 0.002,
            output: 0.17,
            memory: 0.939,
        },
        TileCost {
            tile: (128, 128),
            multicast: true,
            efficiency: 0.885,
            step: 0.092,
            output: 0.10,
            memory: 0.852,
        },
        TileCost {
            tile: (128, 256),
            multicast: false,
            efficiency: 1.200,
            step: 0.024,
            output: 0.48,
            memory: 0.865,
        },
        TileCost {
            tile: (128, 256),
            multicast: true,
            efficiency: 1.159,
            step: 0.206,
            output: 1.07,
            memory: 0.901,
        },
        TileCost {
            tile: (256, 128),
            multicast: false,
            efficiency: 1.200,
            step: 0.457,
            output: 0.00,
            memory: 0.616,
        },
        TileCost {
            tile: (256, 128),
            multicast: true,
            efficiency: 1.200,
            step: 0.484,
            output: 0.00,
            memory: 0.641,
        },
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
