//! The time that a choice should take.
//!
//! A kernel keeps several units busy at once: the tensor cores, the memory, the L2 cache, and the way from there
//! into one multiprocessor. It takes about as long as the busiest, a little more where others are nearly as busy.
//! To that come what nothing overlaps with: starting, filling the pipeline, adding up slices of K, and writing
//! tiles. The constants are fitted to times measured on an H200; `oxigemm bench --replay` compares them with a
//! sweep.

use oxigemm_kernels::gemm::launch::{GemmConfig, GemmShape, OperandKind};
use oxigemm_kernels::gemm::scheduler::stream_k::StreamK;
use oxigemm_kernels::{BLOCK_K, WARPGROUP};

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

    /// The same begun so much sooner.
    pub(super) fn sooner(self, us: f64) -> Cost {
        Cost { us: self.us - us, start: self.start - us, ..self }
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

/// The same of 16-bit operands: nothing is promoted, and so the next stage is asked for earlier than it can be there.
const MANY_ROWS_HALF: Speeds =
    Speeds { tensor: TENSOR_HALF, memory: 3.98e6, l2: 23.5e6, feed: 130e3, output: 121e3, start: 4.22 };
const FEW_ROWS_HALF: Speeds =
    Speeds { tensor: TENSOR_HALF, memory: 3.79e6, l2: 10.5e6, feed: 182e3, output: 121e3, start: 2.75 };

/// What is gained where B is asked for before the copy engine can bring it: of few rows, and of those where several blocks with
/// much of B run on one multiprocessor.
const EARLY: f64 = 0.35;
const EARLY_AMONG_OTHERS: f64 = 0.1;

/// From asking the memory to the answer, under load; of FP8 and of 16-bit operands.
const LATENCY: f64 = 0.766;
const LATENCY_HALF: f64 = 1.08;
/// Answers that are on their way for every one that is waited for, to keep the memory busy; of both.
const IN_FLIGHT: f64 = 1.5;
const IN_FLIGHT_HALF: f64 = 0.9;
/// Waiting for a stage and promoting its products, where one warpgroup does all of it.
const STEP: f64 = 0.026;
/// Meeting in a cluster to exchange partial sums, and what that takes longer for every doubling of a cluster that has no
/// sums to promote meanwhile.
const MEETING: f64 = 1.0;
const LARGER_MEETING_HALF: f64 = 0.04;
/// Partial sums from the shared memory of one multiprocessor to that of another, in bytes per microsecond.
const EXCHANGE: f64 = 25.2e3;
/// The same where sums are finished, which the blocks of a cluster share: a meeting, what it takes longer for every doubling, and the exchange.
const MEETING_FINISHED: f64 = 0.6;
const LARGER_MEETING_FINISHED: f64 = 0.51;
const EXCHANGE_FINISHED: f64 = 61e3;
/// How much longer two stages take to be filled again; where sums are finished, if no other block runs meanwhile.
const TWO_STAGES: f64 = 1.5;
/// How much more is read of memory where two blocks of such a kernel have the same rows of B.
const READ_TWICE: f64 = 1.44;
/// Giving a block its shared memory, in bytes per microsecond.
const SHARED: f64 = 376e3;
/// What a round takes in which some multiprocessors have nothing to do, between nothing and a whole one: the others run
/// a little faster then.
const LAST_ROUND: f64 = 0.915;

/// How much of the tensor cores' speed a kernel keeps that may share out tiles, and one whose tiles are the highest and have no neighbour
/// to share operands with.
const SHARING: f64 = 0.998;
const ALONE: f64 = 0.993;

/// 16-bit operations of one multiprocessor in a microsecond, and [`STEP`] where products are only issued.
const TENSOR_HALF: f64 = 6.3e6;
const STEP_HALF: f64 = 0.013;

/// The estimate for a choice. It knows outputs of 16 bits; the others differ alike for all choices.
#[must_use]
pub fn estimate(choice: GemmConfig, shape: GemmShape, limits: &Limits) -> Cost {
    let (family, k_blocks) = (choice.config().family(), choice.k_blocks(shape.k));
    match choice {
        GemmConfig::Wide { cluster_m, cluster_n, config } => {
            let tile = Tile { family, m: config.block_m, n: config.block_n };
            let cluster = [cluster_m, cluster_n];
            let clusters = limits.clusters(cluster_m * cluster_n);
            let tail = config.stream_k.then(|| choice.launch(shape, clusters).tail);
            wide(&tile, cluster, (config.stages, k_blocks), tail, shape, limits)
        }
        GemmConfig::HalfWide { cluster_m, cluster_n, config } => {
            let tile = Tile { family, m: config.block_m, n: config.block_n };
            wide(&tile, [cluster_m, cluster_n], (config.stages, k_blocks), None, shape, limits)
        }
        GemmConfig::Slim { config, split, stages } => {
            let shape = GemmShape { n: shape.n * config.fusion.accumulators(), ..shape };
            let tile = Tile { family, m: config.block_m, n: config.block_n };
            let block = [stages, config.shared_bytes(stages), config.threads()];
            slim(&tile, split, block, config.is_fused(), shape, limits)
        }
        GemmConfig::HalfSlim { config, split, stages } => {
            let shape = GemmShape { n: shape.n * config.fusion.accumulators(), ..shape };
            let tile = Tile { family, m: config.block_m, n: config.block_n };
            let block = [stages, config.shared_bytes(stages), config.threads()];
            slim(&tile, split, block, config.is_fused(), shape, limits)
        }
    }
}

/// How many blocks of a few-row kernel the registers of a multiprocessor hold: a sum for every two elements of a
/// 64-row part of the tile and, where sums are promoted, as many products.
fn blocks_by_registers(tile: &Tile, threads: u32, finishes: bool) -> u32 {
    // Other warps than those that multiply fill no warpgroup.
    let multiplying = threads - threads % WARPGROUP;
    let sums = tile.m * tile.n / multiplying * if tile.promotes() { 2 } else { 1 };
    let others = if finishes && tile.m < 64 { 56 } else { 40 };
    65_536 / (threads * (sums + others).next_multiple_of(8))
}

pub(super) struct Tile {
    pub family: OperandKind,
    pub m: u32,
    pub n: u32,
}

impl Tile {
    /// Whether warps promote what the tensor core sums up.
    fn promotes(&self) -> bool {
        self.family.has_scales()
    }

    /// Operations of one multiprocessor in a microsecond, where FP8 has these.
    fn tensor_speed(&self, fp8: f64) -> f64 {
        if self.promotes() { fp8 } else { TENSOR_HALF }
    }

    /// Operations of one stage.
    fn step_ops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.family.block_k())
    }

    /// Bytes of A and B in one stage: 128 for a row, whatever the operands are.
    fn step_bytes(&self) -> f64 {
        f64::from(self.m + self.n) * f64::from(ROW_BYTES)
    }

    fn output_bytes(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n)
    }
}

/// Bytes of a row of A or B in one stage.
const ROW_BYTES: u32 = BLOCK_K;

/// Bytes that cross the memory bus at least once.
pub(super) fn memory_bytes(family: OperandKind, shape: GemmShape) -> f64 {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(f64::from);
    let scales = match family {
        OperandKind::Fp8 | OperandKind::Fp8E5m2(_) => {
            f64::from(shape.k_blocks()) * (m + n / f64::from(BLOCK_K))
        }
        OperandKind::Fp8Rows => f64::from(shape.k_blocks()) * (m + n),
        OperandKind::Half(_) => 0.0,
    };
    (m + n) * k * f64::from(family.element_bytes()) + 4.0 * scales + 2.0 * m * n
}

/// How much of the tensor cores' speed a tile of a many-row kernel keeps. Wide tiles hide the promotion of sums;
/// tiles that straddle blocks of scales have more of it.
pub(super) fn efficiency(tile: &Tile) -> f64 {
    match tile.family {
        OperandKind::Half(_) => return half_efficiency(tile),
        OperandKind::Fp8Rows => return rows_efficiency(tile),
        OperandKind::Fp8 | OperandKind::Fp8E5m2(_) => {}
    }
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

/// The same where every product has a scale of its own, which the tensor core computes as well.
fn rows_efficiency(tile: &Tile) -> f64 {
    if tile.m == 128 { 0.66 } else { 0.54 }
}

/// The same without promotion: low and narrow tiles read more of shared memory for a product.
pub(super) fn half_efficiency(tile: &Tile) -> f64 {
    match (tile.m, tile.n) {
        (256, 128) | (128, 256) => 1.0,
        (128, 192) => 0.985,
        (128, 176) => 0.975,
        (128, 144) => 0.955,
        (128, _) => 0.94,
        (64, 64) => 0.45,
        _ => 0.747,
    }
}

/// The speeds that kernels of many rows reach.
pub(super) fn many_rows(tile: &Tile) -> &'static Speeds {
    if tile.promotes() { &MANY_ROWS } else { &MANY_ROWS_HALF }
}

/// A persistent grid: each block takes tiles until none is left.
fn wide(
    tile: &Tile,
    [cluster_m, cluster_n]: [u32; 2],
    (stages, k_blocks): (u32, u32),
    tail: Option<StreamK<u32>>,
    shape: GemmShape,
    limits: &Limits,
) -> Cost {
    let tiles =
        f64::from(shape.m.div_ceil(tile.m * cluster_m)) * f64::from(shape.n.div_ceil(tile.n * cluster_n));
    let work = Persistent {
        tiles,
        k_blocks,
        memory: memory_bytes(tile.family, shape),
        multiplied: 1.0,
        efficiency: efficiency(tile)
            * if tail.is_some() { SHARING } else { 1.0 }
            * if (tile.m, cluster_m * cluster_n) == (256, 1) && tile.promotes() { ALONE } else { 1.0 },
        // Low and broad ones do.
        overlaps: (tile.m, tile.n) == (64, 256),
        last_round: tail
            .filter(|tail| tail.tiles > 0)
            .map(|tail| f64::from(tail.blocks(k_blocks)) / f64::from(k_blocks)),
    };
    let cost = persistent(tile, [cluster_m, cluster_n], stages, &work, many_rows(tile), limits);
    cost.sooner(if fetches_early(shape) { EARLY } else { 0.0 })
}

/// Whether kernels of many rows ask for B before the copy engine can bring it.
pub(super) fn fetches_early(shape: GemmShape) -> bool {
    shape.m <= 128
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
    /// What the last round takes, in parts of a whole one, where its tiles are shared out.
    pub last_round: Option<f64>,
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
    let busy = match work.last_round {
        Some(last) => rounds - 1.0 + last,
        None if rounds > 1.0 => rounds - (1.0 - LAST_ROUND) * (rounds - tiles / clusters),
        None => rounds,
    };
    let steps = busy * f64::from(work.k_blocks);
    let active = clusters.min(tiles) * f64::from(cluster_m * cluster_n);
    // What a block of a cluster receives by multicast is read from the L2 cache once.
    let (m, n) = (f64::from(tile.m) / f64::from(cluster_n), f64::from(tile.n) / f64::from(cluster_m));
    let read = (m + n) * f64::from(ROW_BYTES);
    // Blocks of a cluster wait for each other.
    let meeting = match (several, rounds > 1.0) {
        (false, _) => 0.0,
        (true, false) => 0.24,
        (true, true) => 0.75,
    };
    let overlapped = if work.overlaps && rounds > 1.0 { 0.83 } else { 0.0 };
    let begin = if tile.m == 64 { 0.31 } else { 0.0 } - overlapped;
    Cost {
        tensor: steps * tile.step_ops() * work.multiplied
            / (tile.tensor_speed(speed.tensor) * work.efficiency),
        memory: work.memory / speed.memory,
        l2: steps * active * read / speed.l2,
        feed: steps * tile.step_bytes() / speed.feed,
        // A warpgroup of the highest tiles writes two parts, one after the other.
        output: rounds * tile.output_bytes() / speed.output * if tile.m == 256 { 1.28 } else { 1.0 },
        start: speed.start + f64::from(stages) * 0.02 + meeting + begin,
        us: 0.0,
    }
    .add_up(if tile.promotes() { 4 } else { 8 })
}

/// A block, with these stages, bytes of shared memory and threads, for every tile and slice of K. Whether it `finishes` its sums makes it slower.
fn slim(
    tile: &Tile,
    split: u32,
    [stages, shared, threads]: [u32; 3],
    finishes: bool,
    shape: GemmShape,
    limits: &Limits,
) -> Cost {
    let by_shared = limits.shared_per_sm / (shared + RESERVED_SHARED);
    let per_sm = by_shared.min(blocks_by_registers(tile, threads, finishes));
    let k_blocks = f64::from(tile.family.k_blocks(shape.k));
    let speed = if tile.promotes() { &FEW_ROWS } else { &FEW_ROWS_HALF };
    let m_tiles = f64::from(shape.m.div_ceil(tile.m));
    let tiles = m_tiles * f64::from(shape.n.div_ceil(tile.n));
    let blocks = tiles * f64::from(split);
    let steps = (k_blocks / f64::from(split)).ceil();
    let sms = f64::from(limits.sms);
    let per_sm = f64::from(per_sm.max(1));
    let rounds = (tiles / (f64::from(limits.clusters(split)) * per_sm)).ceil();
    // Of the multiprocessor with the most blocks: clusters leave some multiprocessors out.
    let most = (tiles / f64::from(limits.clusters(split))).ceil();
    let resident = per_sm.min(most);
    let (latency, on_their_way) = match tile.promotes() {
        true => (LATENCY, IN_FLIGHT),
        false => (LATENCY_HALF, IN_FLIGHT_HALF),
    };
    // What is on its way at a time bounds the bandwidth.
    let in_flight = blocks.min(sms * resident) * f64::from(stages).min(steps) * tile.step_bytes();
    let bandwidth = speed.memory.min(in_flight / (on_their_way * latency));
    let read = tiles * k_blocks * tile.step_bytes();
    // The tensor core takes at least 16 cycles for 64 rows of B, however few the rows of A are.
    let narrow = f64::from(tile.m.max(32)) / f64::from(tile.m);
    // One warpgroup alone leaves the tensor cores idle while it promotes; two take turns.
    let alone = tile.m == 64;
    let (step, turns) = match tile.promotes() {
        true if alone => (STEP, 0.71),
        true if finishes => (STEP, 0.67),
        true => (STEP, 0.75),
        false => (STEP_HALF, if alone { 0.9 } else { 1.0 }),
    };
    let multiply = tile.step_ops() * narrow / (tile.tensor_speed(speed.tensor) * turns);
    // A block cannot ask for more than its stages hold; with large tiles, that is not asked for before the last is multiplied.
    let refill = latency + tile.step_bytes() / speed.feed;
    let refill = if finishes || tile.m >= 128 { refill + step + resident * multiply } else { refill };
    let empty = stages == 2 && (resident < 2.0 || !finishes);
    let refill = refill * if empty { TWO_STAGES } else { 1.0 };
    let refills = steps * refill / f64::from(stages).min(steps);
    let partial = f64::from(tile.m.min(shape.m)) * f64::from(tile.n) * 4.0;
    let exchange = match (split, finishes) {
        (1, true) if tile.m >= 64 => 0.95,
        (1, true) => 0.56,
        // Without operands swapped, a block waits for the copy engine to have stored its tile.
        (1, false) if tile.m >= 64 => 0.9 + (most - 1.0) * 0.2,
        (1, false) => 0.3,
        (_, true) => {
            let larger = LARGER_MEETING_FINISHED * f64::from(split).log2();
            MEETING_FINISHED + larger + most * partial / EXCHANGE_FINISHED
        }
        (_, false) => {
            let larger = if tile.promotes() { 0.0 } else { LARGER_MEETING_HALF * f64::from(split).log2() };
            MEETING + larger + most * partial / EXCHANGE
        }
    };
    // Blocks that read the same of B at the same time are in each other's way.
    let again = if finishes && m_tiles > 1.0 { READ_TWICE } else { 1.0 };
    let output = most * tile.output_bytes() / f64::from(split) / speed.output;
    Cost {
        tensor: rounds * steps * (step + resident * multiply),
        memory: memory_bytes(tile.family, shape) * again / bandwidth,
        l2: read / speed.l2,
        feed: (most * steps * tile.step_bytes() / speed.feed).max(rounds * refills),
        output: output + exchange + (rounds - 1.0) * 1.76,
        start: speed.start + f64::from(shared) / SHARED,
        us: 0.0,
    }
    .add_up(8)
    .sooner(if tile.m < 64 || tile.n == 64 { EARLY } else { EARLY_AMONG_OTHERS })
}
