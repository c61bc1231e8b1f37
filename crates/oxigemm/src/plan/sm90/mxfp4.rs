//! Cost of kernels of FP8 by MXFP4.

use super::super::{Cost, GemmConfig, Limits, PlanRequest, PlanShape};
use super::m_grouped::SPREAD;

/// Time of one SM for 128 rows of B by 128 of K, by the rows of A of a tile, where all SMs do the same.
const STAGE: [(u32, f64); 4] = [(16, 0.41), (32, 0.44), (64, 0.57), (128, 0.79)];
/// Output of one SM, and what surrounds it, in bytes and alone.
const OUTPUT: f64 = 121e3;
const TILE: f64 = 0.5;
/// Memory of all SMs.
const MEMORY: f64 = 4.0e6;
/// From the launch to the first MMA, and from the last instruction to the end.
const START: f64 = 4.5;

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
    // Blocks that share an SM take as much longer.
    let waves = if tiles <= sms { 1.0 } else { (tiles / (sms * of_sm)).ceil() * of_sm };
    let blocks = f64::from(config.k_blocks(gemm.k));
    let subtiles = f64::from(block_n / 128);
    let (_, of_subtile) =
        STAGE.into_iter().find(|(rows, _)| *rows == block_m).expect("tiles have these rows");
    let step = subtiles * of_subtile;
    let rows_of_b = f64::from(gemm.n) * f64::from(block_n / columns);
    let [k, n] = [gemm.k, gemm.n].map(f64::from);
    let bytes = groups * (rows_of_b * k * (0.5 + 1.0 / 32.0) + rows * (k + 2.0 * n));
    let output = f64::from(block_m * columns) * 2.0 / OUTPUT + TILE;
    Cost {
        tensor: waves * blocks * step,
        memory: bytes / MEMORY,
        l2: 0.0,
        feed: 0.0,
        output: waves * output,
        start: START,
        us: 0.0,
    }
    .overlapped(4.0)
}
