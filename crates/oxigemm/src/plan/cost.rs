//! The time that a choice should take.
//!
//! A kernel is as slow as the slowest of what it keeps busy: the tensor cores, the memory, the L2 cache, and the
//! way from there into one multiprocessor. To that come what nothing overlaps with: starting, filling the pipeline,
//! adding up slices of K, and writing the last tile.

use oxigemm_kernels::BLOCK_K;
use oxigemm_kernels::launch::{Choice, Shape};

use super::{Limits, RESERVED_SHARED, blocks_of};

/// An estimated time and what it is made of, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The whole.
    pub us: f64,
    /// What the busiest multiprocessor's tensor cores take.
    pub tensor: f64,
    /// What the memory takes.
    pub memory: f64,
    /// What the L2 cache takes.
    pub l2: f64,
    /// What the way into the busiest multiprocessor takes.
    pub feed: f64,
    /// What the output of the busiest multiprocessor takes on its own.
    pub output: f64,
    /// What starting and filling the pipeline take.
    pub start: f64,
}

impl Cost {
    /// The terms by name: the longest of the first four counts, and all of the others.
    #[must_use]
    pub fn terms(&self) -> [(&'static str, f64); 6] {
        [
            ("tensor", self.tensor),
            ("memory", self.memory),
            ("l2", self.l2),
            ("feed", self.feed),
            ("output", self.output),
            ("start", self.start),
        ]
    }

    fn add_up(self) -> Cost {
        let busy = self.tensor.max(self.memory).max(self.l2).max(self.feed);
        Cost { us: busy + self.output + self.start, ..self }
    }
}

/// Speeds, in bytes or operations per microsecond.
struct Speeds {
    /// FP8 operations of one multiprocessor.
    tensor: f64,
    /// Memory, read and written by many.
    memory: f64,
    /// The L2 cache, read by many.
    l2: f64,
    /// From the L2 cache into one multiprocessor.
    feed: f64,
    /// Output of one multiprocessor.
    output: f64,
    /// From asking the memory to the answer, under load.
    latency: f64,
    /// From the launch to the first instruction, and from the last one to the end.
    launch: f64,
    /// Exchanging partial sums in a cluster.
    exchange: f64,
}

/// Measured on an H200.
const HOPPER: Speeds = Speeds {
    tensor: 12.1e6,
    memory: 4.0e6,
    l2: 12e6,
    feed: 85e3,
    output: 60e3,
    latency: 1.0,
    launch: 2.2,
    exchange: 0.8,
};

/// The estimate for a choice. It knows BF16 output; the others differ alike for all choices.
#[must_use]
pub fn estimate(choice: Choice, shape: Shape, limits: &Limits) -> Cost {
    let (tile_m, tile_n) = match choice {
        Choice::Wide { config, .. } => (config.block_m, config.block_n),
        Choice::Slim { config, .. } => (config.block_m, config.block_n),
    };
    let tile = Tile { m: tile_m, n: tile_n };
    match choice {
        Choice::Wide { cluster_m, cluster_n, config } => {
            wide(&tile, [cluster_m, cluster_n], config.stages, shape, limits)
        }
        Choice::Slim { config, split, stages } => {
            let shared = config.shared_bytes(stages) + RESERVED_SHARED;
            slim(&tile, split, stages, limits.shared_per_sm / shared, shape, limits)
        }
    }
    .scaled_to(limits, blocks_of(&choice))
}

struct Tile {
    m: u32,
    n: u32,
}

impl Tile {
    /// Operations of 128 of K.
    fn step_ops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(BLOCK_K)
    }

    /// Bytes of A and B for 128 of K.
    fn step_bytes(&self) -> f64 {
        f64::from(self.m + self.n) * f64::from(BLOCK_K)
    }

    fn output_bytes(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n)
    }
}

/// Bytes that cross the memory bus at least once.
fn memory_bytes(shape: Shape) -> f64 {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(f64::from);
    let scales = f64::from(shape.k_blocks()) * (m + n / f64::from(BLOCK_K));
    (m + n) * k + 4.0 * scales + 2.0 * m * n
}

/// A persistent grid: each block takes tiles until none is left, and writes one while it computes the next.
fn wide(tile: &Tile, [cluster_m, cluster_n]: [u32; 2], stages: u32, shape: Shape, limits: &Limits) -> Cost {
    let speed = &HOPPER;
    let tiles =
        f64::from(shape.m.div_ceil(tile.m * cluster_m)) * f64::from(shape.n.div_ceil(tile.n * cluster_n));
    let clusters = f64::from(limits.clusters(cluster_m * cluster_n));
    let rounds = (tiles / clusters).ceil();
    let steps = rounds * f64::from(shape.k_blocks());
    let active = clusters.min(tiles) * f64::from(cluster_m * cluster_n);
    // What a block of a cluster receives by multicast is read from the L2 cache once.
    let (m, n) = (f64::from(tile.m) / f64::from(cluster_n), f64::from(tile.n) / f64::from(cluster_m));
    let read = (m + n) * f64::from(BLOCK_K);
    // Narrow tiles wait longer for the promotion of their sums than wide ones.
    let efficiency = match tile.m * tile.n {
        area if area >= 128 * 160 => 1.0,
        area if area >= 128 * 128 => 0.98,
        _ => 0.93,
    };
    Cost {
        tensor: steps * tile.step_ops() / (speed.tensor * efficiency),
        memory: memory_bytes(shape) / speed.memory,
        l2: steps * active * read / speed.l2,
        feed: steps * tile.step_bytes() / speed.feed,
        output: tile.output_bytes() / speed.output,
        start: speed.launch + speed.latency + f64::from(stages) * 0.02,
        us: 0.0,
    }
    .add_up()
}

/// A block for every tile and slice of K; several may share a multiprocessor.
fn slim(tile: &Tile, split: u32, stages: u32, per_sm: u32, shape: Shape, limits: &Limits) -> Cost {
    let speed = &HOPPER;
    let tiles = f64::from(shape.m.div_ceil(tile.m)) * f64::from(shape.n.div_ceil(tile.n));
    let blocks = tiles * f64::from(split);
    let steps = (f64::from(shape.k_blocks()) / f64::from(split)).ceil();
    let sms = f64::from(limits.sms);
    // The multiprocessor with the most blocks.
    let most = (blocks / sms).ceil();
    let resident = f64::from(per_sm).min(most).max(1.0);
    let rounds = (blocks / (sms * f64::from(per_sm.max(1)))).ceil();
    // What is on its way at a time bounds the bandwidth.
    let in_flight = blocks.min(sms * resident) * f64::from(stages).min(steps) * tile.step_bytes();
    let bandwidth = speed.memory.min(in_flight / speed.latency);
    let read = tiles * f64::from(shape.k_blocks()) * tile.step_bytes();
    // The tensor core takes at least 16 cycles for 64 rows of B, however few the rows of A are.
    let narrow = f64::from(tile.m.max(32)) / f64::from(tile.m);
    let exchange = if split > 1 { speed.exchange + f64::from(split) * 0.1 } else { 0.3 };
    Cost {
        tensor: most * steps * tile.step_ops() * narrow / (speed.tensor * 0.7),
        memory: memory_bytes(shape) / bandwidth,
        l2: read / speed.l2,
        feed: most * steps * tile.step_bytes() / speed.feed,
        output: most * tile.output_bytes() / f64::from(split) / speed.output + exchange,
        start: speed.launch + rounds * speed.latency,
        us: 0.0,
    }
    .add_up()
}

impl Cost {
    /// Clusters that do not fill the device leave multiprocessors without work: already counted for persistent
    /// grids, and for the others where the clusters of eight do not fit everywhere.
    fn scaled_to(self, limits: &Limits, cluster: u32) -> Cost {
        if cluster < 8 {
            return self;
        }
        let usable = f64::from(limits.clusters(cluster) * cluster) / f64::from(limits.sms);
        Cost { feed: self.feed / usable.min(1.0), tensor: self.tensor / usable.min(1.0), ..self }.add_up()
    }
}
