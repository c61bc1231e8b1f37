//! The closed set of kernels, and how each is launched for a shape.

use crate::common::BLOCK_K;
use crate::gemm::epilogue::Panels;
use crate::gemm::operand::f16;
use crate::gemm::operand::fp8::E5m2;
use crate::gemm::params::{PersistentTuning, ScaleLayout, ScalesOfB, SplitKTuning};
use crate::gemm::scheduler::dynamic;
use crate::gemm::scheduler::k_grouped;
use crate::gemm::scheduler::m_grouped::{Grouping, table_bytes};
use crate::gemm::scheduler::order::Sweep;
use crate::gemm::scheduler::stream_k::StreamK;
use crate::gemm::sm90::f16_persistent;
use crate::gemm::sm90::fp8_persistent;
use crate::gemm::sm90::scale_pipeline::loaded_blocks;
use crate::gemm::sm90::split_k;
use f16::{Major, Operands};

/// A kernel of the closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmKernel {
    /// Many rows.
    Wide(fp8_persistent::Config),
    /// Few rows.
    Slim(split_k::fp8::Config),
    /// Many rows, operands of 16 bits.
    HalfWide(f16_persistent::Config),
    /// Few rows, operands of 16 bits.
    HalfSlim(split_k::f16::Config),
    /// What makes FP8 operands K-major: see [`crate::gemm::transpose`].
    Transpose,
}

/// What a kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandKind {
    /// FP8 with fine-grained scales, both operands e4m3 and K-major: one for a row of A, one for 128 rows of B.
    Fp8,
    /// The same with one scale for each row of B, as A has them.
    Fp8Rows,
    /// The same with operands that are e5m2, and one scale for 128 rows of B.
    Fp8E5m2(E5m2),
    /// BF16 or FP16.
    Half(Operands),
}

impl OperandKind {
    /// Elements of K in one stage.
    pub const fn block_k(self) -> u32 {
        match self {
            OperandKind::Fp8 | OperandKind::Fp8Rows | OperandKind::Fp8E5m2(_) => BLOCK_K,
            OperandKind::Half(_) => f16::BLOCK_K,
        }
    }

    /// Bytes of an element of A or B.
    pub const fn element_bytes(self) -> u32 {
        match self {
            OperandKind::Fp8 | OperandKind::Fp8Rows | OperandKind::Fp8E5m2(_) => 1,
            OperandKind::Half(_) => 2,
        }
    }

    /// Whether the operands have scales.
    pub const fn has_scales(self) -> bool {
        matches!(self, OperandKind::Fp8 | OperandKind::Fp8Rows | OperandKind::Fp8E5m2(_))
    }

    /// Stages that K takes, the tail included.
    pub const fn k_blocks(self, k: u32) -> u32 {
        k.div_ceil(self.block_k())
    }
}

/// A kernel and what its launch chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmConfig {
    /// Many rows: clusters of `cluster_m` by `cluster_n` blocks, each 1 or 2.
    Wide {
        /// The kernel.
        config: fp8_persistent::Config,
        /// Blocks of a cluster along M; they share B.
        cluster_m: u32,
        /// Blocks of a cluster along N; they share A.
        cluster_n: u32,
    },
    /// Few rows: K split into `split` slices, one of [`split_k::fp8::SPLITS`].
    Slim {
        /// The kernel.
        config: split_k::fp8::Config,
        /// Slices of K; the blocks of a cluster.
        split: u32,
        /// Stages of the pipeline.
        stages: u32,
    },
    /// Many rows, operands of 16 bits: clusters as for `Wide`.
    HalfWide {
        /// The kernel.
        config: f16_persistent::Config,
        /// Blocks of a cluster along M; they share B.
        cluster_m: u32,
        /// Blocks of a cluster along N; they share A.
        cluster_n: u32,
    },
    /// Few rows, operands of 16 bits: K split as for `Slim`.
    HalfSlim {
        /// The kernel.
        config: split_k::f16::Config,
        /// Slices of K; the blocks of a cluster.
        split: u32,
        /// Stages of the pipeline.
        stages: u32,
    },
}

/// What a launch needs to know of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmShape {
    /// Rows of A and D.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
}

impl GemmShape {
    /// 128-wide blocks of K, the tail included.
    pub fn k_blocks(&self) -> u32 {
        self.k.div_ceil(BLOCK_K)
    }
}

/// What a launch needs to know of a problem whose rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MGroupedShape {
    /// How many groups there are.
    pub groups: u32,
    /// Slabs of A and D: one for each group, or one for all.
    pub slabs: u32,
    /// Rows of a slab.
    pub rows: u32,
    /// Rows that a group is expected to have.
    pub expected: u32,
    /// Rows of a group's B, columns of D.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
}

impl MGroupedShape {
    /// One slab, as the shape of a product.
    pub fn slab(&self) -> GemmShape {
        GemmShape { m: self.rows, n: self.n, k: self.k }
    }
}

/// What a launch needs to know of a problem whose groups are along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KGroupedShape {
    /// How many groups there are.
    pub groups: u32,
    /// Rows of A and of a group's D.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// The K of all groups together.
    pub k: u32,
}

impl KGroupedShape {
    /// One group, as the shape of a product, if all were equal.
    pub fn group(&self) -> GemmShape {
        GemmShape { m: self.m, n: self.n, k: self.k.div_ceil(self.groups.max(1)).max(1) }
    }
}

/// A tensor map as plain numbers: a matrix in memory, or slabs of it, and the tile that one copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixMap {
    /// Elements along the contiguous dimension and the other.
    pub dims: [u32; 2],
    /// Elements from one row to the next.
    pub pitch: u64,
    /// Elements of a tile along the same dimensions.
    pub tile: [u32; 2],
    /// Such matrices of which a tile has something of each, or of one: gates and ups.
    pub parts: Option<Outer>,
    /// Those of which a tile is of one.
    pub slabs: Option<Outer>,
}

/// A dimension beyond those of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// How many matrices there are.
    pub count: u32,
    /// Elements from one to the next.
    pub pitch: u64,
    /// How many of them a tile has something of.
    pub tile: u32,
}

impl MatrixMap {
    fn new(dims: [u32; 2], pitch: u64, tile: [u32; 2]) -> MatrixMap {
        MatrixMap { dims, pitch, tile, parts: None, slabs: None }
    }

    /// The same matrix several times, `pitch` elements apart.
    #[must_use]
    pub fn in_slabs(self, count: u32, pitch: u64) -> MatrixMap {
        MatrixMap { slabs: Some(Outer { count, pitch, tile: 1 }), ..self }
    }

    /// A matrix of which the rows are those of several one behind another, of which a tile has the same of so many, or of one; as it is where that is 0.
    #[must_use]
    pub fn in_parts(self, count: u32, of_tile: u32) -> MatrixMap {
        if of_tile == 0 {
            return self;
        }
        let [columns, rows] = [self.dims[0], self.dims[1] / count];
        let parts = Some(Outer { count, pitch: u64::from(rows) * self.pitch, tile: of_tile });
        MatrixMap { dims: [columns, rows], parts, ..self }
    }

    /// The dimensions beyond those of one matrix.
    pub fn outer(&self) -> impl Iterator<Item = Outer> + Clone {
        self.parts.into_iter().chain(self.slabs)
    }
}

/// A launch as plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x and y.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster (along x).
    pub cluster: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Rows of A that one tensor load brings; where it is M-major, lines along K.
    pub tile_a: u32,
    /// Rows of B that one tensor load brings; where it is N-major, lines along K.
    pub tile_b: u32,
    /// Of how many parts of B it brings so many: gates and ups. 0 where B is one matrix.
    pub parts_of_b: u32,
    /// Rows of A whose scales one tensor load brings, where it has scales.
    pub scale_rows: u32,
    /// Blocks of K whose scales come together.
    pub scale_blocks: u32,
    /// Rows of A and blocks of K whose scales may come as one piece; none where they never do.
    pub scale_piece: [u32; 2],
    /// The words of the kernel's [`PersistentTuning`] or [`SplitKTuning`].
    pub tuning: [u32; 4],
    /// What is shared out of the tiles, where the kernel does that.
    pub tail: StreamK<u32>,
    /// Bytes that its blocks leave sums in, or count tiles.
    pub room_bytes: u64,
}

impl Launch {
    /// Whether every other tile of a block takes K from its end, so that it finds in the L2 cache what was read last.
    #[must_use]
    pub fn turns_back(&self) -> bool {
        PersistentTuning::from_words(self.tuning).serpentine_k != 0
    }

    /// The same where every tile takes K from its beginning, so that sums do not depend on which tile a row is in.
    #[must_use]
    pub fn straight_on(self) -> Launch {
        let tuning = PersistentTuning { serpentine_k: 0, ..PersistentTuning::from_words(self.tuning) };
        Launch { tuning: tuning.words(), ..self }
    }

    /// The map of A, of bytes with 128-byte swizzle.
    pub fn map_a(&self, shape: GemmShape, pitch: u64) -> MatrixMap {
        MatrixMap::new([shape.k, shape.m], pitch, [BLOCK_K, self.tile_a])
    }

    /// The map of B, of bytes with 128-byte swizzle.
    pub fn map_b(&self, shape: GemmShape, pitch: u64) -> MatrixMap {
        MatrixMap::new([shape.k, shape.n], pitch, [BLOCK_K, self.tile_b])
    }

    /// The map of an operand of 16 bits with 128-byte swizzle: `rows` of M or N, which one load brings `lines` of 128
    /// bytes of, by `k`.
    pub fn map_half(&self, major: Major, [rows, k]: [u32; 2], pitch: u64, lines: u32) -> MatrixMap {
        let dims = match major {
            Major::K => [k, rows],
            Major::MN => [rows, k],
        };
        MatrixMap::new(dims, pitch, [f16::BLOCK_K, lines])
    }

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

    /// The map of a plain D, of elements of `size` bytes with 128-byte swizzle.
    pub fn map_d(&self, shape: GemmShape, pitch: u64, size: u32) -> MatrixMap {
        let [rows, halves] = Panels::MAP_TILE;
        MatrixMap::new([shape.n, shape.m], pitch, [halves * 2 / size, rows])
    }
}

/// An A of this many bytes stays in the L2 cache while B passes by once: one band holds all of its tiles.
const RESIDENT_A: u64 = 12 << 20;

/// Bytes of a row of A, and rows of tiles of a group, from which on tiles of groups turn back. With shorter rows the L2 cache keeps what a round
/// reads; with fewer tiles a round reads the B of several groups, none of which the next one needs: BF16 groups of 192 rows took 1.7% longer.
const LONG_ROW: u64 = 6 << 10;
const MANY_TILES: u32 = 8;

impl GemmConfig {
    /// The kernel that is launched.
    pub fn config(&self) -> GemmKernel {
        match *self {
            GemmConfig::Wide { config, .. } => GemmKernel::Wide(config),
            GemmConfig::Slim { config, .. } => GemmKernel::Slim(config),
            GemmConfig::HalfWide { config, .. } => GemmKernel::HalfWide(config),
            GemmConfig::HalfSlim { config, .. } => GemmKernel::HalfSlim(config),
        }
    }

    /// Stages that a K takes, those behind its end included.
    pub fn k_blocks(&self, k: u32) -> u32 {
        let blocks = self.config().family().k_blocks(k);
        match self {
            GemmConfig::Wide { config, .. } => config.padded_blocks(blocks),
            GemmConfig::Slim { .. } | GemmConfig::HalfWide { .. } | GemmConfig::HalfSlim { .. } => blocks,
        }
    }

    /// Whether the kernel may share out tiles along K.
    pub fn shares_tail(&self) -> bool {
        matches!(self, GemmConfig::Wide { config, .. } if config.stream_k)
    }

    /// Whether clusters take tiles [as they get done](crate::gemm::scheduler::dynamic).
    pub fn hands_out_tiles(&self) -> bool {
        matches!(self, GemmConfig::Wide { config, .. } if config.has_dynamic_scheduler())
    }

    /// Whether the kernel has the copy engine store FP32 where it can address D, and add it to D where that is C.
    pub fn stores_f32_panels(&self) -> bool {
        match self {
            GemmConfig::Wide { config, .. } => config.scales_of_b == ScalesOfB::Rows,
            GemmConfig::HalfWide { config, .. } => !config.is_fused(),
            GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. } => false,
        }
    }

    /// The launch for a shape, on a device that runs up to `concurrent` clusters of this choice at a time.
    pub fn launch(&self, shape: GemmShape, concurrent: u32) -> Launch {
        self.launch_in_passes(shape, 1, concurrent)
    }

    /// In how many passes the kernel computes a tile if D is to be quantized.
    pub fn quantized_passes(&self) -> u32 {
        match self {
            GemmConfig::Wide { config, .. } => config.quantized_passes(),
            GemmConfig::HalfWide { config, .. } => config.quantized_passes(),
            GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. } => 1,
        }
    }

    /// The launch where tiles are computed in this many passes.
    pub fn launch_in_passes(&self, shape: GemmShape, passes: u32, concurrent: u32) -> Launch {
        let family = self.config().family();
        match *self {
            GemmConfig::Wide { config, cluster_m, cluster_n } => {
                let (tile, cluster) =
                    ([config.block_m, config.tile_columns() * passes], [cluster_m, cluster_n]);
                let turning = config.serpentine_k().then_some(config.grouping);
                let grid = persistent((family, turning), shape, tile, cluster, concurrent);
                let clusters = grid.grid[0] / grid.cluster;
                let tail = config.stream_k_tiles(tiles_of(shape, tile, cluster), shape.k_blocks(), clusters);
                let grid = if config.is_serpentine_in(shape.k_blocks()) { grid } else { grid.straight_on() };
                let of_b = config.box_of_b(cluster_m, passes);
                Launch {
                    threads: config.threads(),
                    shared_bytes: config.shared_bytes(),
                    tile_a: config.box_rows(cluster_n),
                    tile_b: of_b.rows,
                    parts_of_b: of_b.parts,
                    scale_rows: config.block_m,
                    scale_blocks: config.scale_blocks(),
                    scale_piece: config.scale_piece(),
                    tail,
                    room_bytes: match config.has_dynamic_scheduler() {
                        true => dynamic::WORKSPACE_BYTES,
                        false => tail.workspace_bytes(grid.cluster, config.accumulators()),
                    },
                    ..grid
                }
            }
            GemmConfig::HalfWide { config, cluster_m, cluster_n } => {
                let tile = [config.block_m, config.tile_columns() * passes];
                let cluster = [cluster_m, cluster_n];
                let of_b = config.box_of_b(cluster_m, passes);
                let turning = config.serpentine_k().then_some(config.grouping);
                Launch {
                    threads: config.threads(),
                    shared_bytes: config.shared_bytes(),
                    tile_a: config.loaded_lines_of_a(cluster_n),
                    tile_b: of_b.rows,
                    parts_of_b: of_b.parts,
                    ..persistent((family, turning), shape, tile, cluster, concurrent)
                }
            }
            GemmConfig::Slim { config, split, stages } => Launch {
                threads: config.threads(),
                shared_bytes: config.shared_bytes(stages),
                tile_a: config.block_m,
                tile_b: config.tile_columns(),
                scale_rows: config.block_m,
                scale_blocks: config.scale_blocks(),
                scale_piece: config.scale_piece(),
                ..covering(shape, [config.block_m, config.tile_columns()], split, stages)
            },
            GemmConfig::HalfSlim { config, split, stages } => {
                let [tile_a, tile_b] = config.loaded_lines();
                Launch {
                    threads: config.threads(),
                    shared_bytes: config.shared_bytes(stages),
                    tile_a,
                    tile_b,
                    ..covering(shape, [config.block_m, config.tile_columns()], split, stages)
                }
            }
        }
    }

    /// The same where rows are grouped; only kernels with [`Grouping::Rows`] can be launched so. How many tiles there
    /// are only the device knows, so that the grid is as large as the device runs at a time.
    pub fn launch_grouped(&self, shape: &MGroupedShape, concurrent: u32) -> Option<Launch> {
        self.launch_grouped_in_passes(shape, 1, concurrent)
    }

    /// The same where tiles are computed in this many passes.
    pub fn launch_grouped_in_passes(
        &self,
        shape: &MGroupedShape,
        passes: u32,
        concurrent: u32,
    ) -> Option<Launch> {
        if !self.config().is_grouped() {
            return None;
        }
        let (tile_m, tile_n) = match *self {
            GemmConfig::Wide { config, cluster_m, cluster_n } => {
                (config.block_m * cluster_m, config.tile_columns() * passes * cluster_n)
            }
            GemmConfig::HalfWide { config, cluster_m, cluster_n } => {
                (config.block_m * cluster_m, config.tile_columns() * passes * cluster_n)
            }
            GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. } => return None,
        };
        // As if it were one group, of the rows that a group should have.
        let group = GemmShape { m: shape.expected.clamp(1, shape.rows.max(1)), ..shape.slab() };
        let one = self.launch_in_passes(group, passes, concurrent);
        // More clusters than tiles of whole slabs would have nothing to do, whatever the groups are.
        let tiles = |rows: u32| u64::from(rows.div_ceil(tile_m)) * u64::from(shape.n.div_ceil(tile_n));
        let most = match shape.slabs {
            // A group may begin anywhere, and so have a tile more than its rows would fill.
            1 => tiles(shape.rows) + u64::from(shape.groups) * tiles(1),
            slabs => u64::from(slabs) * tiles(shape.rows),
        };
        let clusters = u64::from(concurrent).min(most).max(1) as u32;
        Some(Launch {
            grid: [clusters * one.cluster, 1],
            shared_bytes: one.shared_bytes + table_bytes(shape.groups),
            ..one
        })
    }
}

impl GemmConfig {
    /// The launch where groups are along K; only kernels with [`Grouping::K`] can be launched so.
    pub fn launch_k_grouped(&self, shape: &KGroupedShape, concurrent: u32) -> Option<Launch> {
        let (grouping, tile, [cluster_m, cluster_n]) = match *self {
            GemmConfig::Wide { config, cluster_m, cluster_n } => {
                (config.grouping, [config.block_m, config.block_n], [cluster_m, cluster_n])
            }
            GemmConfig::HalfWide { config, cluster_m, cluster_n } => {
                (config.grouping, [config.block_m, config.block_n], [cluster_m, cluster_n])
            }
            GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. } => return None,
        };
        if grouping != Grouping::K {
            return None;
        }
        let one = self.launch(shape.group(), concurrent);
        let tiles = shape.m.div_ceil(tile[0] * cluster_m) * shape.n.div_ceil(tile[1] * cluster_n);
        let clusters = concurrent.min(tiles.saturating_mul(shape.groups)).max(1);
        let table = k_grouped::table_bytes(shape.groups, self.config().family().has_scales());
        Some(Launch { grid: [clusters * one.cluster, 1], shared_bytes: one.shared_bytes + table, ..one })
    }
}

/// Tiles of whole clusters.
fn tiles_of(shape: GemmShape, tile: [u32; 2], cluster: [u32; 2]) -> u32 {
    shape.m.div_ceil(tile[0] * cluster[0]) * shape.n.div_ceil(tile[1] * cluster[1])
}

/// The grid of a persistent kernel, for tiles and clusters of these dimensions and up to `concurrent` clusters at a
/// time. `grouping` is that of a kernel that can take K from its end. What the kernel itself decides is left open.
fn persistent(
    (family, grouping): (OperandKind, Option<Grouping>),
    shape: GemmShape,
    [block_m, block_n]: [u32; 2],
    [cluster_m, cluster_n]: [u32; 2],
    concurrent: u32,
) -> Launch {
    let (tile_m, tile_n) = (block_m * cluster_m, block_n * cluster_n);
    let (m_tiles, n_tiles) = (shape.m.div_ceil(tile_m), shape.n.div_ceil(tile_n));
    let (cluster, clusters) = (cluster_m * cluster_n, concurrent.min(m_tiles * n_tiles).max(1));
    let line = u64::from(shape.k) * u64::from(family.element_bytes());
    let sweep = Sweep {
        tiles: [m_tiles, n_tiles],
        bytes: [tile_m, tile_n].map(|rows| u64::from(rows) * line),
        concurrent: clusters,
    };
    let turns_back = match grouping {
        Some(Grouping::Dense) => true,
        Some(_) => line >= LONG_ROW && m_tiles >= MANY_TILES,
        None => false,
    };
    let band = match grouping {
        _ if u64::from(shape.m) * line <= RESIDENT_A => m_tiles,
        Some(_) if turns_back || family.has_scales() => sweep.best_band(),
        _ => sweep.smallest_wave(),
    };
    Launch {
        grid: [clusters * cluster, 1],
        cluster,
        tuning: PersistentTuning {
            cluster_m,
            cluster_n,
            raster_band: band,
            serpentine_k: u32::from(turns_back),
        }
        .words(),
        ..Launch::default()
    }
}

/// The grid of a kernel that takes one tile and one slice of K for each block.
fn covering(shape: GemmShape, [block_m, block_n]: [u32; 2], split: u32, stages: u32) -> Launch {
    let m_tiles = shape.m.div_ceil(block_m);
    Launch {
        grid: [shape.n.div_ceil(block_n) * split, m_tiles],
        cluster: split,
        tuning: SplitKTuning { stages, stream_b_once: u32::from(m_tiles == 1), slab_k_blocks: 0 }.words(),
        ..Launch::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::transpose;
    use std::collections::HashSet;

    #[test]
    fn the_set_is_small_and_its_names_are_unique() {
        let names: HashSet<String> = GemmKernel::all().map(|config| config.name()).collect();
        assert_eq!(names.len(), GemmKernel::all().count());
        assert!(names.len() <= 170, "{}", names.len());
    }

    #[test]
    fn every_kernel_fits_the_shared_memory_of_a_block() {
        for config in GemmKernel::all() {
            let bytes = match config {
                GemmKernel::Wide(config) if config.is_grouped() => config.shared_bytes() + table_bytes(128),
                GemmKernel::Wide(config) if config.grouping == Grouping::K => {
                    config.shared_bytes() + k_grouped::table_bytes(128, true)
                }
                GemmKernel::Wide(config) => config.shared_bytes(),
                GemmKernel::Slim(config) => config.shared_bytes(2),
                GemmKernel::HalfWide(config) if config.is_grouped() => {
                    config.shared_bytes() + table_bytes(128)
                }
                GemmKernel::HalfWide(config) if config.grouping == Grouping::K => {
                    config.shared_bytes() + k_grouped::table_bytes(128, false)
                }
                GemmKernel::HalfWide(config) => config.shared_bytes(),
                GemmKernel::HalfSlim(config) => config.shared_bytes(2),
                GemmKernel::Transpose => transpose::TILE * transpose::TILE,
            };
            assert!(bytes <= 232_448, "{} needs {bytes} bytes", config.name());
        }
    }
}
