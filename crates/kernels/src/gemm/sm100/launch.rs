//! Launch geometry of the Blackwell kernels.

use super::persistent::{self, EPILOGUE_ROWS};
use super::split_k;
use crate::common::tensor_memory::least_shared_bytes;
use crate::gemm::epilogue::Panels;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::params::{PersistentTuning, SplitKTuning};
use crate::gemm::scheduler::order::Sweep;
use crate::gemm::{GemmConfig, GemmShape, Launch};

/// The launch of the persistent kernel.
pub(super) fn persistent(
    cfg: &persistent::Config,
    config: &GemmConfig,
    shape: GemmShape,
    passes: u32,
    concurrent: u32,
) -> Launch {
    let ([cluster_m, cluster_n], [tile_m, tile_n]) = (config.cluster, config.cluster_tile(passes));
    let tiles = [shape.m.div_ceil(tile_m), shape.n.div_ceil(tile_n)];
    let clusters = concurrent.min(tiles[0].saturating_mul(tiles[1])).max(1);
    let bits = [cfg.operands.a, cfg.operands.b].map(|operand| u64::from(operand.element.bits()));
    let bytes = [tile_m, tile_n];
    let bytes = [0, 1].map(|side| u64::from(bytes[side]) * u64::from(shape.k) * bits[side] / 8);
    let raster_band = Sweep { tiles, bytes, concurrent: clusters }.smallest_wave();
    let [a, b] = cfg.tiles();
    Launch {
        grid: [clusters * cluster_m * cluster_n, 1],
        threads: config.threads(),
        shared_bytes: config.shared_bytes().max(least_shared_bytes(cfg.allocated_columns())),
        cluster: cluster_m * cluster_n,
        tile_a: a.lines(),
        tile_b: if cfg.fusion == Fusion::Gated { cfg.tile_columns() } else { b.lines() },
        tile_d: EPILOGUE_ROWS,
        parts_of_b: if cfg.fusion == Fusion::Gated { 1 } else { 0 },
        tuning: PersistentTuning { cluster_m, cluster_n, raster_band, serpentine_k: 0 }.words(),
        forward_band: raster_band,
        ..Launch::default()
    }
}

/// The launch of the split-K kernel: a CTA for each tile and split.
pub(super) fn split_k(cfg: &split_k::Config, config: &GemmConfig, shape: GemmShape) -> Launch {
    let [tile_m, tile_n] = config.cluster_tile(1);
    let m_tiles = shape.m.div_ceil(tile_m);
    Launch {
        grid: [shape.n.div_ceil(tile_n) * config.split_k, m_tiles],
        threads: config.threads(),
        shared_bytes: config.shared_bytes().max(least_shared_bytes(cfg.allocated_columns())),
        cluster: config.split_k,
        tile_a: cfg.tiles()[0].lines(),
        tile_b: cfg.part_of_b().lines(),
        tile_d: Panels::MAP_TILE[0],
        tuning: SplitKTuning {
            stages: config.stages,
            stream_b_once: u32::from(m_tiles == 1),
            slab_k_blocks: 0,
        }
        .words(),
        ..Launch::default()
    }
}
