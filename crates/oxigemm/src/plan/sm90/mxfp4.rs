//! Cost of kernels of FP8 by MXFP4.

use super::super::{Cost, GemmConfig, Limits, PlanRequest, PlanShape};
use super::m_grouped::SPREAD;

/// Constants by the rows of A of a tile, fitted to `oxigemm bench --suite widened --sweep`, off by 4%.
struct Tile {
    rows: u32,
    /// Time of one SM for 128 rows of B by 128 of K, where every SM has tiles.
    stage: f64,
    /// The same of a block that has its SM, and the memory, nearly for itself.
    alone: f64,
    /// Output of a tile, and what surrounds it.
    output: f64,
}

const TILES: [Tile; 4] = [
    Tile { rows: 16, stage: 0.384, alone: 0.730, output: 0.02 },
    Tile { rows: 32, stage: 0.428, alone: 0.836, output: 0.13 },
    Tile { rows: 64, stage: 0.517, alone: 0.538, output: 0.58 },
    Tile { rows: 128, stage: 0.733, alone: 0.757, output: 1.33 },
];
/// Memory of all SMs.
const MEMORY: f64 = 4.6e6;
/// From the launch to the first MMA, and from the last instruction to the end.
const START: f64 = 4.4;

/// A dense or an m-grouped GEMM.
pub(super) fn estimate(config: &GemmConfig, request: &PlanRequest, limits: &Limits) -> Cost {
    let ([block_m, block_n], columns) = (config.tile(), config.kernel.tile_columns());
    let gemm = request.shape.gemm(request.operands);
    let (groups, rows, spread): (_, _, &[f64]) = match request.shape {
        PlanShape::MGrouped(shape) => (f64::from(shape.groups), f64::from(shape.expected.max(1)), &SPREAD),
        _ => (1.0, f64::from(gemm.m), &[1.0]),
    };
    let tiles_of_group = |part: &f64| (rows * part / f64::from(block_m)).ceil();
    let tiles_m = spread.iter().map(tiles_of_group).sum::<f64>() / spread.len() as f64;
    let tiles = groups * tiles_m * f64::from(gemm.n.div_ceil(columns));
    let [sms, of_sm] = [limits.clusters(1), config.kernel.spec().blocks_per_sm()].map(f64::from);
    let tile = TILES.iter().find(|tile| tile.rows == block_m).expect("tiles have these rows");
    let is_alone = tiles <= sms;
    // Blocks that share an SM take as much longer. Groups have more or fewer rows, which evens waves out.
    let waves = match request.shape {
        _ if is_alone => 1.0,
        PlanShape::MGrouped(_) => tiles / sms,
        _ => (tiles / (sms * of_sm)).ceil() * of_sm,
    };
    let blocks = f64::from(config.k_blocks(gemm.k));
    // Two subtiles hide what one waits for.
    let step = match block_n / 128 {
        1 if is_alone => tile.alone,
        subtiles => f64::from(subtiles) * tile.stage,
    };
    let rows_of_b = f64::from(gemm.n) * f64::from(block_n / columns);
    let [k, n] = [gemm.k, gemm.n].map(f64::from);
    let bytes = groups * (rows_of_b * k * (0.5 + 1.0 / 32.0) + rows * (k + 2.0 * n));
    Cost {
        tensor: waves * blocks * step,
        memory: bytes / MEMORY,
        l2: 0.0,
        feed: 0.0,
        output: waves * tile.output,
        start: START,
        us: 0.0,
    }
    .overlapped(4.0)
}
