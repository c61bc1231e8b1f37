//! Split-K FP8 GEMM with fine-grained scales, for few rows: K split over a cluster, operands swapped below 64 rows.
//!
//! With few rows of A the product is as fast as B can be read. Below 64 rows B's rows take the tensor core's 64-row
//! side and A's the other, which may be as narrow as 8. Where N alone does not give every SM work, the blocks of a
//! cluster take a K split each. Their accumulators are reduced through distributed shared memory in the order of the
//! splits, so the result does not depend on timing.

use crate::common::pipeline::Pipeline;
use crate::common::{BLOCK_K, WARP};
use crate::gemm::epilogue::fusion::EpilogueParams;
use crate::gemm::operand::fp8::{self, E5m2, scale_group_start};
use crate::gemm::operand::gate_up::{Fusion, GateUpRows};
use crate::gemm::params::Params;
use crate::gemm::scheduler::tile::TileView;
use crate::gemm::sm90::mma::issue_stage;
use crate::gemm::sm90::scale_pipeline::{ScaleConsumer, ScalePipeline, ScaleShape};
pub use crate::gemm::split_k::dsmem_reduce::SPLITS;
use crate::gemm::split_k::{KSplit, SplitKTile, TileOutput};
use oxigemm_ptx::tma::{Eviction, LoadOptions};
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Shared, SharedLayout, Target, U32, Var};

/// Configuration that is compiled in. Shapes, strides, the K split, the number of stages and the output type are
/// run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of A in a tile: 8, 16, 32, 64 or 128.
    pub block_m: u32,
    /// Rows of B in a tile: 64 or 128; 256 with a gate, half of them gates.
    pub block_n: u32,
    /// Which operands are e5m2, if any is.
    pub e5m2: Option<E5m2>,
    /// Fused epilogue; where there is one, a tile has 128 columns of D.
    pub fusion: Fusion,
}

/// The most stages that there are barriers for.
pub const MAX_STAGES: u32 = 16;

/// Shared-memory map: every offset in one place. What has a fixed size lies below the stages, whose number is an
/// argument.
struct SharedMap {
    barriers: u32,
    scale_barriers: u32,
    scales: u32,
    /// Stages, each with its rows of B and then of A; when all of them have been read, the reduction and the staged
    /// output.
    tiles: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        let barriers = layout.place(Pipeline::barrier_bytes(MAX_STAGES), 8);
        let scale_barriers = layout.place(ScaleShape::BARRIER_BYTES, 8);
        let scales = layout.place(cfg.scales().bytes(), 128);
        // Swizzled tiles repeat every 1024 bytes.
        let tiles = layout.place(0, 1024);
        SharedMap { barriers, scale_barriers, scales, tiles }
    }

    /// Gives the parts names, for the simulator's messages and timelines.
    fn name(&self, k: &Kernel, cfg: &Config) {
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, MAX_STAGES);
        ScalePipeline::name_barriers(k, self.scale_barriers);
        cfg.scales().name(k, self.scales);
        let (a, b) = (cfg.block_m * BLOCK_K, cfg.block_n * BLOCK_K);
        k.name_shared_every(cfg.stage_bytes(), "b", self.tiles, b, MAX_STAGES);
        k.name_shared_every(cfg.stage_bytes(), "a", self.tiles + b, a, MAX_STAGES);
    }
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let (types, fusion) = (fp8::prefix(self.e5m2), self.fusion.name());
        format!("sm90_fp8_gemm_split_k_{types}{fusion}{}x{}", self.block_m, self.block_n)
    }

    /// Threads of a block: the consumer warpgroups, a producer warp and one that copies scales.
    pub fn threads(&self) -> u32 {
        self.shape().math_threads() + 2 * WARP
    }

    /// Bytes of dynamic shared memory for a number of stages.
    pub fn shared_bytes(&self, stages: u32) -> u32 {
        SharedMap::new(self).tiles + (stages * self.stage_bytes()).max(self.shape().reduce().bytes())
    }

    /// Bytes of the tiles of one stage.
    pub fn stage_bytes(&self) -> u32 {
        (self.block_n + self.block_m) * BLOCK_K
    }

    /// K blocks whose scales are loaded together.
    pub fn scale_blocks(&self) -> u32 {
        self.scales().group
    }

    /// Rows of A and K blocks whose scales may be loaded as one piece.
    pub fn scale_piece(&self) -> [u32; 2] {
        self.scales().piece()
    }

    fn scales(&self) -> ScaleShape {
        let columns = self.fusion.accumulators();
        ScaleShape::dense(self.block_m, self.tile_columns(), columns)
    }

    /// Columns of D of a tile.
    pub fn tile_columns(&self) -> u32 {
        self.shape().columns()
    }

    /// Rows of B of a tile.
    fn gate_up<'k>(&self, params: &Params<'k>) -> GateUpRows<'k> {
        let columns = self.tile_columns();
        let stride = params.k_blocks.kernel().constant(columns);
        GateUpRows { fusion: self.fusion, columns, stride, ups: params.output.columns }
    }

    /// Whether the epilogue is fused.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    fn shape(&self) -> SplitKTile {
        // Below 64 rows the operands are swapped.
        let Config { block_m, block_n, fusion, .. } = *self;
        SplitKTile { block_m, block_n, fusion, swapped: block_m < 64 }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Block of this kernel, what every role works with: its tile, its K split, its shared memory.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    /// The stages.
    tiles: Shared<'k>,
    pipe: Pipeline<'k>,
    scales: ScalePipeline<'k>,
    /// The tile's first row and column.
    tile: [U32<'k>; 2],
    view: TileView<'k>,
    k_split: KSplit<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Block<'k, '_> {
    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.tiles.at(stage * self.cfg.stage_bytes())
    }

    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.b(stage).at(self.cfg.block_n * BLOCK_K)
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k);
    let fused = cfg.is_fused().then(|| EpilogueParams::declare(k));
    let gate_up = cfg.is_fused().then(|| cfg.gate_up(&params));
    let shared = k.dynamic_shared();
    let map = SharedMap::new(cfg);
    map.name(k, cfg);
    let stages = params.split_k_tuning().stages;
    let pipe = Pipeline::new(k, shared.at(map.barriers), stages, MAX_STAGES);
    let (ring, ring_barriers) = (shared.at(map.scales), shared.at(map.scale_barriers));
    let scales = ScalePipeline::new(k, cfg.scales(), ring, ring_barriers, &params);
    let tiles = shared.at(map.tiles);
    let k_split = KSplit::new(k, params.k_blocks);
    let tile = [k.block_index(1) * cfg.block_m, k_split.cluster * cfg.tile_columns()];
    let (warp, lane) = (k.warp_index(), k.lane());
    let view = TileView::dense(&params, tile, gate_up);
    let block = Block { k, cfg, params, tiles, pipe, scales, tile, view, k_split, warp, lane };
    let math_warps = cfg.shape().math_warps();
    let (tile_warp, scale_warp) = (math_warps, math_warps + 1);

    k.if_else(
        warp.eq(tile_warp),
        || {
            // The loads start as soon as their barriers exist, and wait for no other warp.
            k.if_(lane.eq(0), || {
                block.params.a.prefetch();
                block.params.b.prefetch();
                pipe.init_in_use(1, math_warps);
                scales.init(math_warps);
                k.fence_barrier_init();
            });
            k.sync_warp();
            k.barrier_arrive(0, cfg.threads());
            k.grid_dependency_wait();
            k.if_(lane.eq(0), || k.role("producer", || block.load_tiles()));
            k.sync_warp();
        },
        || {
            block.params.b_rows.prefetch(
                k,
                (tile[1], cfg.block_n),
                cfg.fusion.accumulators(),
                k_split.blocks,
            );
            k.barrier_sync(0, cfg.threads());
            k.grid_dependency_wait();
        },
    );
    k.if_(warp.eq(scale_warp) & scales.copied(), || k.role("scales", || block.copy_scales()));

    let output = TileOutput {
        k,
        shape: cfg.shape(),
        params: &block.params.output,
        k_split,
        tile,
        area: tiles,
        warp,
        lane,
        fragment_warp: None,
        fused,
    };
    output.run(|| block.consume());
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// Producer thread: A, B and the scales that TMA can load.
    fn load_tiles(&self) {
        let (k, p) = (self.k, &self.params);
        // Where every row of B is read once, it need not stay in the L2 cache.
        let stream = p.split_k_tuning().stream_b_once;
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..Default::default() };
        let (cursor, scales) = (self.pipe.writer(), self.scales.tma_producer());
        let [m, n] = self.tile;
        k.for_(self.k_split.blocks[0], self.k_split.blocks[1], 1, |block| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let full = self.pipe.full(stage);
            full.arrive_expecting(self.cfg.stage_bytes());
            let column = block * BLOCK_K;
            let load_b = |options| {
                for part in 0..self.cfg.fusion.accumulators() {
                    let to = self.b(stage).at(part * self.cfg.tile_columns() * BLOCK_K);
                    p.b.load(&[column, n + p.output.columns * part], to, full, options);
                }
            };
            k.if_else(stream.ne(0), || load_b(once), || load_b(LoadOptions::default()));
            p.a.load(&[column, m], self.a(stage), full, LoadOptions::default());
            k.if_(scales.begins_group(block, self.k_split.blocks[0]), || scales.load(p, &self.view, block));
            cursor.advance();
        });
        k.launch_dependents();
    }

    /// Scale producer: a warp that copies the scales that TMA cannot load.
    fn copy_scales(&self) {
        let (k, [first, end]) = (self.k, self.k_split.blocks);
        let producer = self.scales.copy_producer(self.lane);
        // A K split of no blocks has no scale group, even where it lies inside one.
        let group = self.cfg.scale_blocks();
        let start = first.lt(end).select(scale_group_start(first, group), end);
        k.for_(start, end, group, |block| producer.copy(&self.view, block, end));
    }

    /// Consumer warpgroup: 64 rows of one operand against all rows of the other, promoted into FP32 accumulators.
    fn consume(&self) -> Vec<Var<'k, f32>> {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let zero = k.constant(0);
        let [a_type, b_type] = fp8::types(cfg.e5m2);
        let (types, tall, other) = match cfg.shape().swapped() {
            true => ([b_type, a_type], self.b(zero), self.a(zero)),
            false => ([a_type, b_type], self.a(zero), self.b(zero)),
        };
        let ([tall_part, other_part], (_, columns)) =
            (cfg.shape().parts_of(self.warp >> 2), cfg.shape().sides());
        let tall = Descriptor::k_major(tall.at(tall_part * 64 * BLOCK_K), Swizzle::B128);
        let other = Descriptor::k_major(other.at(other_part * columns * BLOCK_K), Swizzle::B128);
        let products = k.fragment::<f32>(columns as usize / 2);
        let accumulators: Vec<Var<'k, f32>> = products.iter().map(|_| k.var(0.0f32)).collect();

        let (cursor, scales, group) = (self.pipe.reader(), self.scales.consumer(lane), cfg.scale_blocks());
        k.for_(self.k_split.blocks[0], self.k_split.blocks[1], 1, |block| {
            cursor.wait_full();
            let stage = cursor.stage();
            let offset = stage * cfg.stage_bytes();
            issue_stage(k, types, &products, || [tall.advance(offset), other.advance(offset)]);
            let within = block % group;
            k.if_(within.eq(0) | block.eq(self.k_split.blocks[0]), || scales.wait());
            let rows = self.row_scales(&scales, within);
            k.wgmma_wait(0);
            let empty = self.pipe.empty(stage);
            k.guard(lane.eq(0), || empty.arrive());
            for (i, (accumulator, product)) in accumulators.iter().zip(&products).enumerate() {
                // Swapped, the tensor core's columns are A's rows: two for each octet of them.
                let scale = if cfg.shape().swapped() { rows[i / 4][i % 2] } else { rows[0][(i / 2) % 2] };
                accumulator.fma(product.live(), scale);
            }
            let next = block + 1;
            k.if_((next % group).eq(0) | next.eq(self.k_split.blocks[1]), || scales.release());
            cursor.advance();
        });
        accumulators
    }

    /// The column scale of this warp: gates have one, and ups.
    fn columns_part(&self) -> U32<'k> {
        match self.cfg.fusion {
            Fusion::None | Fusion::Elementwise => self.k.constant(0),
            Fusion::Gated => self.warp / (self.cfg.shape().math_warps() / 2),
        }
    }

    /// The scales of the rows that this thread holds, in pairs, those of the columns multiplied in.
    fn row_scales(&self, scales: &ScaleConsumer<'k>, within: U32<'k>) -> Vec<[F32<'k>; 2]> {
        let [column] = scales.columns(within, self.columns_part(), 1)[..] else {
            unreachable!("one was asked for")
        };
        let scale = |row: U32<'k>| scales.row(within, scales.row_offset(row)) * column;
        if self.cfg.shape().swapped() {
            let first = (self.lane & 3) * 2;
            (0..self.cfg.block_m / 8).map(|octet| [0, 1].map(|i| scale(first + (octet * 8 + i)))).collect()
        } else {
            // Warpgroups side by side have the same rows.
            let warp = if self.cfg.fusion == Fusion::Gated { self.warp & 3 } else { self.warp };
            let first = warp * 16 + (self.lane >> 2);
            vec![[0, 8].map(|below| scale(first + below))]
        }
    }
}
