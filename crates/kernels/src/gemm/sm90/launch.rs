//! Launch geometry of the Hopper kernels, and the tensor map of their scale pipeline.

use super::scale_pipeline::loaded_blocks;
use super::{f16_persistent, fp8_mxfp4, fp8_persistent, fp8_scales32, split_k};
use crate::gemm::epilogue::Panels;
use crate::gemm::params::{PersistentTuning, ScaleLayout, SplitKTuning};
use crate::gemm::scheduler::dynamic;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::order::Sweep;
use crate::gemm::{GemmConfig, GemmShape, Launch, MatrixMap};

/// An A of at most this many bytes stays in the L2 cache while B is streamed once: one raster band holds all of its
/// tiles.
const RESIDENT_A: u64 = 12 << 20;

/// Bytes of a row of A, and rows of tiles of a group, from which on m-grouped kernels traverse K in serpentine order.
/// With shorter rows the L2 cache keeps what a wave reads. With fewer tiles a wave reads the B of several groups, none
/// of which the next wave needs: BF16 groups of 192 rows took 1.7% longer.
const LONG_ROW: u64 = 6 << 10;
const MANY_TILES: u32 = 8;

/// What the raster order of a persistent kernel depends on.
struct Raster {
    config: GemmConfig,
    shape: GemmShape,
    /// Rows and columns of D that a cluster computes at a time.
    tile: [u32; 2],
    /// Clusters that run at a time.
    concurrent: u32,
    /// The grouping of a kernel that can traverse K in serpentine order.
    serpentine: Option<Grouping>,
}

impl Raster {
    /// Clusters' tiles along M and N.
    fn tiles(&self) -> [u32; 2] {
        let ([tile_m, tile_n], GemmShape { m, n, .. }) = (self.tile, self.shape);
        [m.div_ceil(tile_m), n.div_ceil(tile_n)]
    }

    /// The launch of a persistent kernel, except what the kernel itself decides.
    fn launch(&self) -> Launch {
        let operands = self.config.operands();
        let ([cluster_m, cluster_n], [m_tiles, n_tiles]) = (self.config.cluster, self.tiles());
        let (cluster, clusters) = (cluster_m * cluster_n, self.concurrent.min(m_tiles * n_tiles).max(1));
        let line = u64::from(self.shape.k) * u64::from(operands.element_bytes());
        let sweep = Sweep {
            tiles: [m_tiles, n_tiles],
            bytes: self.tile.map(|rows| u64::from(rows) * line),
            concurrent: clusters,
        };
        let serpentine_k = match self.serpentine {
            Some(Grouping::Dense) => true,
            Some(_) => line >= LONG_ROW && m_tiles >= MANY_TILES,
            None => false,
        };
        // Of 16-bit groups with forward K only the smallest wave was measured.
        let band_of = |serpentine_k: bool| match self.serpentine {
            _ if u64::from(self.shape.m) * line <= RESIDENT_A => m_tiles,
            Some(Grouping::Dense) => sweep.best_band(),
            Some(_) if serpentine_k || operands.has_scales() => sweep.best_band(),
            _ => sweep.smallest_wave(),
        };
        Launch {
            grid: [clusters * cluster, 1],
            threads: self.config.threads(),
            shared_bytes: self.config.shared_bytes(),
            cluster,
            tile_d: Panels::MAP_TILE[0],
            tuning: PersistentTuning {
                cluster_m,
                cluster_n,
                raster_band: band_of(serpentine_k),
                serpentine_k: u32::from(serpentine_k),
            }
            .words(),
            forward_band: band_of(false),
            ..Launch::default()
        }
    }
}

/// The launch of the persistent FP8 kernel.
pub(super) fn fp8_persistent(
    cfg: &fp8_persistent::Config,
    config: &GemmConfig,
    shape: GemmShape,
    passes: u32,
    concurrent: u32,
) -> Launch {
    let serpentine = cfg.serpentine_k().then_some(cfg.grouping);
    let raster = Raster { config: *config, shape, tile: config.cluster_tile(passes), concurrent, serpentine };
    let launch = raster.launch();
    let [m_tiles, n_tiles] = raster.tiles();
    let tail = cfg.stream_k_tiles(m_tiles * n_tiles, shape.k_blocks(), launch.grid[0] / launch.cluster);
    let launch = if cfg.is_serpentine_in(shape.k_blocks()) { launch } else { launch.with_forward_k() };
    let [cluster_m, cluster_n] = config.cluster;
    let of_b = cfg.box_of_b(cluster_m, passes);
    Launch {
        tile_a: cfg.box_rows(cluster_n),
        tile_b: of_b.rows,
        parts_of_b: of_b.parts,
        scale_rows: cfg.block_m,
        scale_blocks: cfg.scale_blocks(),
        scale_piece: cfg.scale_piece(),
        stream_k: tail,
        workspace_bytes: match cfg.has_dynamic_scheduler() {
            true => dynamic::WORKSPACE_BYTES,
            false => tail.workspace_bytes(launch.cluster, cfg.accumulators()),
        },
        ..launch
    }
}

/// The launch of the persistent FP8 kernel with scales of 32, which TMA does not load.
pub(super) fn fp8_scales32(
    cfg: &fp8_scales32::Config,
    config: &GemmConfig,
    shape: GemmShape,
    concurrent: u32,
) -> Launch {
    let raster =
        Raster { config: *config, shape, tile: config.cluster_tile(1), concurrent, serpentine: None };
    let [cluster_m, cluster_n] = config.cluster;
    Launch { tile_a: cfg.box_rows(cluster_n), tile_b: cfg.block_n / cluster_m, ..raster.launch() }
}

/// The launch of the persistent FP8 by MXFP4 kernel, whose gates and ups are two boxes of B.
pub(super) fn fp8_mxfp4(
    cfg: &fp8_mxfp4::Config,
    config: &GemmConfig,
    shape: GemmShape,
    passes: u32,
    concurrent: u32,
) -> Launch {
    let raster =
        Raster { config: *config, shape, tile: config.cluster_tile(passes), concurrent, serpentine: None };
    Launch { tile_a: cfg.box_rows(), tile_b: cfg.tile_columns(), ..raster.launch() }
}

/// The launch of the persistent 16-bit kernel.
pub(super) fn f16_persistent(
    cfg: &f16_persistent::Config,
    config: &GemmConfig,
    shape: GemmShape,
    passes: u32,
    concurrent: u32,
) -> Launch {
    let serpentine = cfg.serpentine_k().then_some(cfg.grouping);
    let raster = Raster { config: *config, shape, tile: config.cluster_tile(passes), concurrent, serpentine };
    let launch = raster.launch();
    let [m_tiles, n_tiles] = raster.tiles();
    let k_blocks = config.operands().k_blocks(shape.k);
    let tail = cfg.stream_k_tiles(m_tiles * n_tiles, k_blocks, launch.grid[0] / launch.cluster);
    let [cluster_m, cluster_n] = config.cluster;
    let of_b = cfg.box_of_b(cluster_m, passes);
    Launch {
        tile_a: cfg.loaded_lines_of_a(cluster_n),
        tile_b: of_b.rows,
        parts_of_b: of_b.parts,
        stream_k: tail,
        workspace_bytes: tail.workspace_bytes(launch.cluster, cfg.accumulators()),
        ..launch
    }
}

/// The launch of the FP8 split-K kernel.
pub(super) fn fp8_split_k(cfg: &split_k::fp8::Config, config: &GemmConfig, shape: GemmShape) -> Launch {
    Launch {
        tile_a: cfg.block_m,
        tile_b: cfg.tile_columns(),
        scale_rows: cfg.block_m,
        scale_blocks: cfg.scale_blocks(),
        scale_piece: cfg.scale_piece(),
        ..split_k_grid(config, shape)
    }
}

/// The launch of the 16-bit split-K kernel.
pub(super) fn f16_split_k(cfg: &split_k::f16::Config, config: &GemmConfig, shape: GemmShape) -> Launch {
    let [tile_a, tile_b] = cfg.loaded_lines();
    Launch { tile_a, tile_b, ..split_k_grid(config, shape) }
}

/// The grid of a split-K kernel: a block for each tile and split.
fn split_k_grid(config: &GemmConfig, shape: GemmShape) -> Launch {
    let [tile_m, tile_n] = config.cluster_tile(1);
    let m_tiles = shape.m.div_ceil(tile_m);
    Launch {
        grid: [shape.n.div_ceil(tile_n) * config.split_k, m_tiles],
        threads: config.threads(),
        shared_bytes: config.shared_bytes(),
        cluster: config.split_k,
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

impl Launch {
    /// The map of A's scales, of FP32 without swizzle; none where threads copy them.
    pub fn map_sfa(
        &self,
        shape: GemmShape,
        layout: ScaleLayout,
        [stride_m, stride_k]: [u32; 2],
    ) -> Option<MatrixMap> {
        let (m, k, rows) = (shape.m, shape.k_blocks(), self.scale_rows);
        let blocks = loaded_blocks(k, self.scale_blocks);
        match layout {
            ScaleLayout::RowMajor => Some(MatrixMap::new([k, m], u64::from(stride_m), [blocks, rows])),
            ScaleLayout::MnMajor => Some(MatrixMap::new([m, k], u64::from(stride_k), [rows, blocks])),
            ScaleLayout::Copied | ScaleLayout::Packed => None,
        }
    }
}
