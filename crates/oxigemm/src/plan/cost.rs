//! The time that a choice should take.
//!
//! A kernel keeps several units busy at once: the tensor cores, the memory, the L2 cache, and the way from there
//! into one multiprocessor. It takes about as long as the busiest, a little more where others are nearly as busy.
//! To that come what nothing overlaps with: starting, filling the pipeline, adding up slices of K, and writing
//! tiles. The constants are fitted to times measured on an H200; `oxigemm bench --replay` compares them with a
//! sweep.

use oxigemm_kernels::BLOCK_K;
use oxigemm_kernels::launch::{Choice, Shape};

use super::{Limits, RESERVED_SHARED};

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
    /// The terms by name: the first four overlap, the others add up.
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

    /// The sum, where the busy units overlap the better the higher `sharpness` is: 1 is not at all, and with very
    /// high ones only the busiest counts.
    fn add_up(self, sharpness: i32) -> Cost {
        let units = [self.tensor, self.memory, self.l2, self.feed];
        let busy: f64 = units.iter().map(|unit| unit.powi(sharpness)).sum();
        Cost { us: busy.powf(1.0 / f64::from(sharpness)) + self.output + self.start, ..self }
    }
}

/// Speeds, in bytes or operations per microsecond, and times in microseconds, as a family of kernels reaches them.
pub(super) struct Speeds {
    /// FP8 operations of one multiprocessor that does nothing else.
    pub tensor: f64,
    /// Memory, read and written by many.
    pub memory: f64,
    /// The L2 cache, read by many.
    pub l2: f64,
    /// From the L2 cache into one multiprocessor.
    pub feed: f64,
    /// Output of one multiprocessor, while it multiplies nothing.
    pub output: f64,
    /// From the launch to the first product, and from the last instruction to the end.
    pub start: f64,
}

const MANY_ROWS: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.57e6, l2: 23.5e6, feed: 154e3, output: 121e3, start: 3.92 };
const FEW_ROWS: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.94e6, l2: 9.83e6, feed: 154e3, output: 121e3, start: 3.43 };

/// From asking the memory to the answer, under load.
const LATENCY: f64 = 0.766;
/// Waiting for a stage and promoting its products, where one warpgroup does all of it.
const STEP: f64 = 0.026;
/// Meeting in a cluster to exchange partial sums.
const MEETING: f64 = 1.0;
/// Partial sums from the shared memory of one multiprocessor to that of another, in bytes per microsecond.
const EXCHANGE: f64 = 25.2e3;
/// Giving a block its shared memory, in bytes per microsecond.
const SHARED: f64 = 376e3;
/// What a round takes in which some multiprocessors have nothing to do, between nothing and a whole one: the others run
/// a little faster then.
const LAST_ROUND: f64 = 0.915;

/// The estimate for a choice. It knows BF16 output; the others differ alike for all choices.
#[must_use]
pub fn estimate(choice: Choice, shape: Shape, limits: &Limits) -> Cost {
    match choice {
        Choice::Wide { cluster_m, cluster_n, config } => {
            let tile = Tile { m: config.block_m, n: config.block_n };
            wide(&tile, [cluster_m, cluster_n], config.stages, shape, limits)
        }
        Choice::Slim { config, split, stages } => {
            let tile = Tile { m: config.block_m, n: config.block_n };
            let shared = config.shared_bytes(stages);
            let by_shared = limits.shared_per_sm / (shared + RESERVED_SHARED);
            let per_sm = by_shared.min(blocks_by_registers(&tile, config.threads()));
            slim(&tile, split, [stages, shared], per_sm, shape, limits)
        }
    }
}

/// How many blocks of a few-row kernel the registers of a multiprocessor hold: sums and products are one register
/// each for every two elements of a 64-row part of the tile.
fn blocks_by_registers(tile: &Tile, threads: u32) -> u32 {
    let side = if tile.m < 64 { tile.m } else { tile.n };
    65_536 / (threads * (side + 40).next_multiple_of(8))
}

pub(super) struct Tile {
    pub m: u32,
    pub n: u32,
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

/// How much of the tensor cores' speed a tile of a many-row kernel keeps. Wide tiles hide the promotion of sums;
/// tiles that straddle blocks of scales have more of it.
fn efficiency(tile: &Tile) -> f64 {
    match (tile.m, tile.n) {
        (256, 128) => 0.957,
        (128, 192) => 0.946,
        (128, 128) => 0.896,
        (128, 160) => 0.859,
        (128, 176) => 0.841,
        (128, 144) => 0.821,
        (128, _) => 0.806,
        (64, 256) => 0.684,
        (64, 128) => 1.012,
        _ => 0.546,
    }
}

/// A persistent grid: each block takes tiles until none is left.
fn wide(tile: &Tile, [cluster_m, cluster_n]: [u32; 2], stages: u32, shape: Shape, limits: &Limits) -> Cost {
    let tiles =
        f64::from(shape.m.div_ceil(tile.m * cluster_m)) * f64::from(shape.n.div_ceil(tile.n * cluster_n));
    let work = Persistent {
        tiles,
        k_blocks: shape.k_blocks(),
        memory: memory_bytes(shape),
        multiplied: 1.0,
        efficiency: efficiency(tile),
        // Low and broad ones do.
        overlaps: (tile.m, tile.n) == (64, 256),
    };
    persistent(tile, [cluster_m, cluster_n], stages, &work, &MANY_ROWS, limits)
}

/// What a persistent grid has to do.
pub(super) struct Persistent {
    /// Tiles of whole clusters.
    pub tiles: f64,
    /// Blocks of K of each.
    pub k_blocks: u32,
    /// Bytes that cross the memory bus.
    pub memory: f64,
    /// What the tensor cores take, in parts of what they would if every row of every tile were multiplied.
    pub multiplied: f64,
    /// How much of the tensor cores' speed its tiles keep.
    pub efficiency: f64,
    /// Whether tiles overlap some of their start with the tile before.
    pub overlaps: bool,
}

pub(super) fn persistent(
    tile: &Tile,
    [cluster_m, cluster_n]: [u32; 2],
    stages: u32,
    work: &Persistent,
    speed: &Speeds,
    limits: &Limits,
) -> Cost {
    let tiles = work.tiles;
    let several = cluster_m * cluster_n > 1;
    let clusters = f64::from(limits.clusters(cluster_m * cluster_n));
    let rounds = (tiles / clusters).ceil();
    let busy = if rounds > 1.0 { rounds - (1.0 - LAST_ROUND) * (rounds - tiles / clusters) } else { rounds };
    let steps = busy * f64::from(work.k_blocks);
    let active = clusters.min(tiles) * f64::from(cluster_m * cluster_n);
    // What a block of a cluster receives by multicast is read from the L2 cache once.
    let (m, n) = (f64::from(tile.m) / f64::from(cluster_n), f64::from(tile.n) / f64::from(cluster_m));
    let read = (m + n) * f64::from(BLOCK_K);
    // Blocks of a cluster wait for each other.
    let meeting = match (several, rounds > 1.0) {
        (false, _) => 0.0,
        (true, false) => 0.24,
        (true, true) => 0.75,
    };
    let overlapped = if work.overlaps && rounds > 1.0 { 0.83 } else { 0.0 };
    let begin = if tile.m == 64 { 0.31 } else { 0.0 } - overlapped;
    Cost {
        tensor: steps * tile.step_ops() * work.multiplied / (speed.tensor * work.efficiency),
        memory: work.memory / speed.memory,
        l2: steps * active * read / speed.l2,
        feed: steps * tile.step_bytes() / speed.feed,
        // A warpgroup of the highest tiles writes two parts, one after the other.
        output: rounds * tile.output_bytes() / speed.output * if tile.m == 256 { 1.28 } else { 1.0 },
        start: speed.start + f64::from(stages) * 0.02 + meeting + begin,
        us: 0.0,
    }
    .add_up(4)
}

/// A block for every tile and slice of K; `per_sm` of them share a multiprocessor.
fn slim(
    tile: &Tile,
    split: u32,
    [stages, shared]: [u32; 2],
    per_sm: u32,
    shape: Shape,
    limits: &Limits,
) -> Cost {
    let speed = &FEW_ROWS;
    let m_tiles = f64::from(shape.m.div_ceil(tile.m));
    let tiles = m_tiles * f64::from(shape.n.div_ceil(tile.n));
    let blocks = tiles * f64::from(split);
    let steps = (f64::from(shape.k_blocks()) / f64::from(split)).ceil();
    let sms = f64::from(limits.sms);
    let per_sm = f64::from(per_sm.max(1));
    let rounds = (tiles / (f64::from(limits.clusters(split)) * per_sm)).ceil();
    // Of the multiprocessor with the most blocks.
    let most = (blocks / sms).ceil();
    let resident = per_sm.min(most);
    // A block cannot ask for more than its stages hold.
    let refill = LATENCY + tile.step_bytes() / speed.feed;
    let refills = steps * refill / f64::from(stages).min(steps);
    // What is on its way at a time bounds the bandwidth.
    let in_flight = blocks.min(sms * resident) * f64::from(stages).min(steps) * tile.step_bytes();
    let bandwidth = speed.memory.min(in_flight / (1.5 * LATENCY));
    let read = tiles * f64::from(shape.k_blocks()) * tile.step_bytes();
    // The tensor core takes at least 16 cycles for 64 rows of B, however few the rows of A are.
    let narrow = f64::from(tile.m.max(32)) / f64::from(tile.m);
    // One warpgroup alone leaves the tensor cores idle while it promotes; two take turns.
    let alone = tile.m == 64;
    let turns = if alone { 0.71 } else { 0.75 };
    let multiply = tile.step_ops() * narrow / (speed.tensor * turns);
    let partial = f64::from(tile.m.min(shape.m)) * f64::from(tile.n) * 4.0;
    let exchange = match split {
        // Without operands swapped, a block waits for the copy engine to have stored its tile.
        1 if tile.m >= 64 => 0.9 + (most - 1.0) * 0.4,
        1 => 0.3,
        _ => MEETING + most * partial / EXCHANGE,
    };
    let output = most * tile.output_bytes() / f64::from(split) / speed.output;
    Cost {
        tensor: rounds * steps * (STEP + resident * multiply),
        memory: memory_bytes(shape) / bandwidth,
        l2: read / speed.l2,
        feed: (most * steps * tile.step_bytes() / speed.feed).max(rounds * refills),
        output: output + exchange + (rounds - 1.0) * 1.76,
        start: speed.start + f64::from(shared) / SHARED,
        us: 0.0,
    }
    .add_up(8)
}
