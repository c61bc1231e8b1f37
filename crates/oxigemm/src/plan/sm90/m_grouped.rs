//! Cost of m-grouped GEMMs and batches.
//!
//! Only the device knows how many rows a group has. A plan is made for the expected rows, and computes any others as
//! well, only not as fast.

use super::super::{Cost, GemmConfig, Limits, MGroupedShape, OperandKind};
use super::persistent::{self, Work};
use super::{Speeds, Tile};

/// Rows that a group may turn out to have, in parts of what is expected: tokens are not routed evenly.
const SPREAD: [f64; 7] = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3];
/// Time of half of a tile that has no rows, in parts of a whole tile: only its loads count. (Fitted when one warpgroup
/// had all rows of the other half.)
const EMPTY_HALF: f64 = 0.047;
/// Reading the group layout, building the table and looking tiles up; FP8 and 16-bit operands.
const GROUP_TABLE: f64 = 1.19;
const GROUP_TABLE_F16: f64 = 4.4;
/// Part of a group's B that is read again where two clusters multiply it one after the other; of both.
const READ_AGAIN: f64 = 0.352;
const READ_AGAIN_F16: f64 = 0.12;

/// B changes from group to group, and comes from memory.
const FP8: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.792e6, l2: 12.78e6, feed: 125.2e3, output: 121e3, start: 3.92 };
const F16: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.95e6, l2: 11.1e6, feed: 124e3, output: 121e3, start: 3.92 };

/// Part of the tensor cores' speed that a tile keeps.
fn efficiency(tile: &Tile) -> f64 {
    if tile.operands.has_scales_of_32() {
        return persistent::scales32_efficiency(tile);
    }
    if tile.operands != OperandKind::FP8 {
        return persistent::f16_efficiency(tile);
    }
    match (tile.m, tile.n) {
        (256, _) => 0.96,
        (128, 192) => 0.9696,
        (128, _) => 0.717,
        (_, 256) => 0.642,
        (_, 128) => 0.6996,
        (_, 96) => 0.5169,
        _ => 0.3225,
    }
}

/// An m-grouped GEMM in so many passes. A fused epilogue takes the time of some output, alike for all configurations.
pub(super) fn estimate(config: &GemmConfig, shape: &MGroupedShape, passes: u32, limits: &Limits) -> Cost {
    let (tile, [cluster_m, _]) = (Tile::of(config), config.cluster);
    let rows = f64::from(shape.expected.max(1));
    let high = f64::from(tile.m * cluster_m);
    // Tiles of a group along M, and the time of those that are multiplied, on average.
    let mean = |of: &dyn Fn(f64) -> f64| {
        SPREAD.iter().map(|part| of((rows * part).ceil())).sum::<f64>() / SPREAD.len() as f64
    };
    let tiles_m = mean(&|rows| (rows / high).ceil());
    let is_fp8 = tile.operands == OperandKind::FP8;
    let multiplied = mean(&|rows| {
        if !is_fp8 || cluster_m > 1 {
            // Every 64 rows without a row are skipped, of FP8 every half of a tile.
            let part = if is_fp8 { f64::from(tile.m) / 2.0 } else { 64.0 };
            return (rows / part).ceil() * part / high;
        }
        let last = rows - ((rows / high).ceil() - 1.0) * high;
        let half = tile.m > 64 && last <= f64::from(tile.m) / 2.0;
        (rows / high).ceil() - if half { 1.0 - EMPTY_HALF } else { 0.0 }
    });
    let groups = f64::from(shape.groups);
    let [_, columns] = config.cluster_tile(passes);
    let tiles = groups * tiles_m * f64::from(shape.n.div_ceil(columns));
    let [n, k] = [shape.n, shape.k].map(f64::from);
    let rows_of_b = n * f64::from(config.kernel.fusion().accumulators());
    let (read_again, table, speeds) = match is_fp8 {
        true => (READ_AGAIN, GROUP_TABLE, &FP8),
        false => (READ_AGAIN_F16, GROUP_TABLE_F16, &F16),
    };
    let read = 1.0 + read_again * (tiles_m.min(2.0) - 1.0);
    let bytes = f64::from(tile.operands.element_bytes());
    let scales = if is_fp8 { k / 32.0 } else { 0.0 };
    let work = Work {
        tiles,
        k_blocks: config.k_blocks(shape.k) * passes,
        memory: groups * (rows_of_b * k * bytes * read + rows * (k * bytes + 2.0 * n + scales)),
        multiplied: multiplied / tiles_m,
        efficiency: efficiency(&tile),
        overlaps: false,
        last_wave: None,
    };
    persistent::grid(config, &work, speeds, limits).later(table)
}
