//! Cost of m-grouped GEMMs and batches.
//!
//! Only the device knows how many rows a group has. A plan is made for the expected rows, and computes any others as
//! well, only not as fast.

use oxigemm_kernels::gemm::epilogue::fusion::Fusion;

use super::super::{Cost, GemmConfig, Limits, MGroupedShape};
use super::persistent::{self, Work};
use super::{Speeds, Tile, fitted};

/// Rows that a group may turn out to have, in parts of what is expected: tokens are not routed evenly.
pub(super) const SPREAD: [f64; 9] = [0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5];
/// Those of a batch.
pub(super) const EQUAL: [f64; 1] = [1.0];
/// Reading the group layout, building the table and looking tiles up, with 16-bit operands and a fused epilogue.
const GROUP_TABLE_F16: f64 = 4.4;
/// Part of a group's B that is read again where two clusters multiply it one after the other, of 16-bit operands.
const READ_AGAIN_F16: f64 = 0.12;

/// B changes from group to group, and comes from memory.
const F16: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.95e6, l2: 11.1e6, feed: 124e3, output: 121e3, start: 3.92 };

/// An m-grouped GEMM or a batch in so many passes, whose groups have these parts of the expected rows. A fused epilogue takes
/// the time of some output, alike for all configurations.
pub(super) fn estimate(
    config: &GemmConfig,
    shape: &MGroupedShape,
    spread: &[f64],
    passes: u32,
    limits: &Limits,
) -> Cost {
    let (tile, [cluster_m, _]) = (Tile::of(config), config.cluster);
    let is_fp8 = tile.operands.is_fp8();
    let scales_of_32 = tile.operands.has_scales_of_32();
    let rows = f64::from(shape.expected.max(1));
    let high = f64::from(tile.m * cluster_m);
    // Tiles of a group along M, and the rows that are multiplied in parts of theirs, on average.
    let mean = |of: &dyn Fn(f64) -> f64| {
        spread.iter().map(|part| of((rows * part).ceil())).sum::<f64>() / spread.len() as f64
    };
    let tiles_m = mean(&|rows| (rows / high).ceil());
    // Every 64 rows without a row are skipped, of FP8 every half of a tile.
    let part = if is_fp8 { f64::from(tile.m / 2).max(64.0) } else { 64.0 };
    let multiplied = mean(&|rows| (rows / part).ceil() * part / high);
    let groups = f64::from(shape.groups);
    let [_, columns] = config.cluster_tile(passes);
    let tiles = groups * tiles_m * f64::from(shape.n.div_ceil(columns));
    let [n, k] = [shape.n, shape.k].map(f64::from);
    let rows_of_b = n * f64::from(config.kernel.fusion().accumulators());
    let bytes = f64::from(tile.operands.element_bytes());
    let (b_bytes, k_blocks) = (groups * rows_of_b * k * bytes, config.k_blocks(shape.k) * passes);
    let others = groups * rows * (k * bytes + 2.0 * n);
    let (plain, contiguous) = (config.kernel.fusion() == Fusion::None, shape.slabs < shape.groups);
    let constants = match is_fp8 {
        true if scales_of_32 => None,
        true if plain && contiguous => Some(&fitted::FP8_CONTIGUOUS),
        true => Some(&fitted::FP8_M_GROUPED),
        false => plain.then_some(&fitted::F16_M_GROUPED),
    };
    if let Some(constants) = constants {
        let work = fitted::Work {
            tiles,
            multiplied: multiplied / tiles_m,
            k_blocks,
            memory: b_bytes + others,
            read_again: 0.0,
            last_wave: None,
            prefetches: false,
        };
        if let Some(cost) = constants.estimate(config, &work, limits) {
            return cost;
        }
    }
    let work = Work {
        tiles,
        k_blocks,
        memory: b_bytes * (1.0 + READ_AGAIN_F16 * (tiles_m.min(2.0) - 1.0)) + others,
        multiplied: multiplied / tiles_m,
        efficiency: match scales_of_32 {
            true => persistent::scales32_efficiency(&tile),
            false => persistent::f16_efficiency(&tile),
        },
        overlaps: false,
        last_wave: None,
    };
    persistent::grid(config, &work, &F16, limits).later(GROUP_TABLE_F16)
}
