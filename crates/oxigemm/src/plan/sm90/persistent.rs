//! Cost of persistent kernels.

use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::params::ScalesOfB;

use super::super::{Cost, GemmConfig, GemmShape, Limits};
use super::{ROW_BYTES, Speeds, TENSOR_F16, Tile, fitted, memory_bytes};

const FP8: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.57e6, l2: 23.5e6, feed: 154e3, output: 121e3, start: 3.92 };
/// Without promotion the next stage is needed earlier than it can be there.
const F16: Speeds =
    Speeds { tensor: TENSOR_F16, memory: 3.98e6, l2: 23.5e6, feed: 130e3, output: 121e3, start: 4.22 };

/// Time that L2 prefetch of B gains before TMA can load it, for small M; dense and fused.
const L2_PREFETCH: f64 = 0.35;
const L2_PREFETCH_FUSED: f64 = 0.27;
/// The largest M for which persistent kernels prefetch B.
const L2_PREFETCH_ROWS: u32 = 128;

/// Time of a partial wave, between none and a whole one: the SMs that have a tile run a little faster.
const PARTIAL_WAVE: f64 = 0.915;

/// How much longer stream-K kernels of 16-bit operands take than their waves: the median of 173 times was 1%.
const STREAM_K_F16: f64 = 0.01;

/// Part of the tensor cores' speed that a tile keeps. Broad tiles hide promotion; tiles that straddle 128-column blocks
/// of scales have more of it.
fn efficiency(tile: &Tile) -> f64 {
    if !tile.promotes() {
        return f16_efficiency(tile);
    }
    if tile.operands.is_1d1d() {
        // Every product has a scale of its own, which the tensor core computes as well.
        return if tile.m == 128 { 0.66 } else { 0.54 };
    }
    if tile.operands.has_scales_of_32() {
        return scales32_efficiency(tile);
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

/// The same with scales of 32, counted and not fitted: promotion after each 32 of K takes as many instructions as the
/// tensor core takes cycles, with 1x32 scales of B twice as many.
pub(super) fn scales32_efficiency(tile: &Tile) -> f64 {
    let promotion = match tile.operands.scales {
        Some(ScalesOfB::Rows) => 0.42,
        _ => 0.66,
    };
    match (tile.m, tile.n) {
        (128, 128) => promotion,
        (64, 128) => 0.9 * promotion,
        _ => 0.75 * promotion,
    }
}

/// The same without promotion: low and narrow tiles read more shared memory for each MMA.
pub(super) fn f16_efficiency(tile: &Tile) -> f64 {
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

/// Part of a tile's speed that remains with a fused epilogue.
fn fused_efficiency(tile: &Tile, fusion: Fusion, cluster: u32) -> f64 {
    let (alone, f16) = (cluster == 1, !tile.operands.is_fp8());
    match (tile.m, fusion) {
        (256, _) if alone => 0.893,
        (64, Fusion::Gated) if f16 && alone => 1.0,
        (64, Fusion::Gated) if f16 => 0.755,
        (64, _) if f16 => 0.855,
        (64, Fusion::Gated) if alone => 0.8,
        (64, Fusion::Gated) => 0.5,
        (64, _) => 0.84,
        _ => 1.0,
    }
}

fn speeds(tile: &Tile) -> &'static Speeds {
    if tile.promotes() { &FP8 } else { &F16 }
}

fn prefetch_gain(shape: GemmShape, gain: f64) -> f64 {
    if shape.m <= L2_PREFETCH_ROWS { gain } else { 0.0 }
}

/// A dense GEMM.
pub(super) fn dense(config: &GemmConfig, shape: GemmShape, limits: &Limits) -> Cost {
    let (tile, [cluster_m, cluster_n]) = (Tile::of(config), config.cluster);
    let (cluster, k_blocks) = (cluster_m * cluster_n, config.k_blocks(shape.k));
    let m_tiles = shape.m.div_ceil(tile.m * cluster_m);
    let tiles = f64::from(m_tiles) * f64::from(shape.n.div_ceil(tile.n * cluster_n));
    let memory = memory_bytes(tile.operands, shape);
    if !tile.operands.is_1d1d() && !tile.operands.has_scales_of_32() {
        let tail = config.is_stream_k().then(|| config.launch(shape, limits.clusters(cluster)).stream_k);
        let b_bytes = f64::from(shape.n) * f64::from(shape.k) * f64::from(tile.operands.element_bytes());
        let work = fitted::Work {
            tiles,
            multiplied: 1.0,
            k_blocks,
            memory,
            read_again: if m_tiles > 1 { b_bytes } else { 0.0 },
            last_wave: tail
                .filter(|tail| tail.tiles > 0)
                .map(|tail| f64::from(tail.blocks(k_blocks)) / f64::from(k_blocks)),
            prefetches: shape.m <= L2_PREFETCH_ROWS,
        };
        let constants = if tile.promotes() { &fitted::FP8 } else { &fitted::F16 };
        if let Some(cost) = constants.estimate(config, &work, limits) {
            let later = if config.is_stream_k() && !tile.promotes() { STREAM_K_F16 } else { 0.0 };
            return cost.later(later * cost.us);
        }
    }
    let efficiency = efficiency(&tile);
    let work =
        Work { tiles, k_blocks, memory, multiplied: 1.0, efficiency, overlaps: false, last_wave: None };
    grid(config, &work, speeds(&tile), limits).sooner(prefetch_gain(shape, L2_PREFETCH))
}

/// A dense GEMM with a fused epilogue, as one without. The epilogue takes the time of some output, alike for all
/// configurations.
pub(super) fn fused(config: &GemmConfig, shape: GemmShape, passes: u32, limits: &Limits) -> Cost {
    let (tile, fusion) = (Tile::of(config), config.kernel.fusion());
    let [rows, columns] = config.cluster_tile(passes);
    let whole = GemmShape { n: shape.n * fusion.accumulators(), ..shape };
    let work = Work {
        tiles: f64::from(shape.m.div_ceil(rows)) * f64::from(shape.n.div_ceil(columns)),
        k_blocks: config.k_blocks(shape.k) * passes,
        memory: memory_bytes(tile.operands, whole),
        multiplied: 1.0,
        efficiency: efficiency(&tile) * fused_efficiency(&tile, fusion, config.cluster_blocks()),
        overlaps: false,
        last_wave: None,
    };
    grid(config, &work, speeds(&tile), limits).sooner(prefetch_gain(shape, L2_PREFETCH_FUSED))
}

/// The work of a persistent grid.
pub(super) struct Work {
    /// Tiles of whole clusters.
    pub tiles: f64,
    /// K blocks of each tile.
    pub k_blocks: u32,
    /// Bytes that cross the memory bus.
    pub memory: f64,
    /// Time of the MMAs, in parts of that of tiles whose rows are all multiplied.
    pub multiplied: f64,
    /// Part of the tensor cores' speed that tiles keep.
    pub efficiency: f64,
    /// Whether tiles overlap some of their start with the previous tile.
    pub overlaps: bool,
    /// Time of the last wave, in parts of a whole one, where it is a stream-K tail.
    pub last_wave: Option<f64>,
}

/// A persistent grid: each cluster computes tiles until none is left.
pub(super) fn grid(config: &GemmConfig, work: &Work, speed: &Speeds, limits: &Limits) -> Cost {
    let (tile, [cluster_m, cluster_n], tiles) = (Tile::of(config), config.cluster, work.tiles);
    let several = cluster_m * cluster_n > 1;
    let clusters = f64::from(limits.clusters(cluster_m * cluster_n));
    let waves = (tiles / clusters).ceil();
    let busy = match work.last_wave {
        Some(last) => waves - 1.0 + last,
        None if waves > 1.0 => waves - (1.0 - PARTIAL_WAVE) * (waves - tiles / clusters),
        None => waves,
    };
    let steps = busy * f64::from(work.k_blocks);
    let active = clusters.min(tiles) * f64::from(cluster_m * cluster_n);
    // Multicast reads the L2 cache once for all blocks of a cluster.
    let (m, n) = (f64::from(tile.m) / f64::from(cluster_n), f64::from(tile.n) / f64::from(cluster_m));
    let read = (m + n) * f64::from(ROW_BYTES);
    // Blocks of a cluster wait for each other.
    let cluster_sync = match (several, waves > 1.0) {
        (false, _) => 0.0,
        (true, false) => 0.24,
        (true, true) => 0.75,
    };
    let overlapped = if work.overlaps && waves > 1.0 { 0.83 } else { 0.0 };
    let begin = if tile.m == 64 { 0.31 } else { 0.0 } - overlapped;
    Cost {
        tensor: steps * tile.stage_ops() * work.multiplied
            / (tile.tensor_speed(speed.tensor) * work.efficiency),
        memory: work.memory / speed.memory,
        l2: steps * active * read / speed.l2,
        feed: steps * tile.stage_bytes() / speed.feed,
        // A warpgroup of the highest tiles stores two m-subtiles, one after the other.
        output: waves * tile.output_bytes() / speed.output * if tile.m == 256 { 1.28 } else { 1.0 },
        start: speed.start + f64::from(config.stages) * 0.02 + cluster_sync + begin,
        us: 0.0,
    }
    .overlapped(if tile.promotes() { 4.0 } else { 8.0 })
}
