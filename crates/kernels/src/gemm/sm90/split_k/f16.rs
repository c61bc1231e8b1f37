//! Split-K GEMM of BF16 or FP16 operands, for few rows: K split over a cluster, operands swapped below 64 rows.
//!
//! With few rows of A the product is as fast as B can be read. Below 64 rows B's rows take the tensor core's 64-row
//! side and A's the other, which may be as narrow as 8. Where N alone does not give every SM work, the blocks of a
//! cluster take a K split each, and reduce their accumulators through distributed shared memory.
//!
//! K may run through a batch of products, which are so added up: then the operands are slabs, and a stage is of one of
//! them.

use crate::common::WARP;
use crate::common::pipeline::Pipeline;
use crate::gemm::epilogue::fusion::EpilogueParams;
use crate::gemm::operand::f16::{BLOCK_K, OperandTile, Operands};
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::params::Params;
use crate::gemm::split_k::{KSplit, SplitKTile, TileOutput};
use oxigemm_ptx::tma::{Eviction, LoadOptions, TensorMap};
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA};
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, SharedLayout, Target, U32, Var};

pub use crate::gemm::split_k::dsmem_reduce::SPLITS;

/// Configuration that is compiled in. Shapes, strides, the K split, the number of stages and whether D is FP32 are
/// run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The operands; A is K-major.
    pub operands: Operands,
    /// Rows of A in a tile: 8, 16, 32, 64 or 128.
    pub block_m: u32,
    /// Rows of B in a tile: 64 or 128; 256 with a gate, half of them gates.
    pub block_n: u32,
    /// Whether the products of a batch are added up.
    pub summed: bool,
    /// Fused epilogue; where there is one, a tile has 128 columns of D.
    pub fusion: Fusion,
}

/// The most stages that there are barriers for.
pub const MAX_STAGES: u32 = 16;

/// Shared-memory map: every offset in one place. What has a fixed size lies below the stages, whose number is an
/// argument.
struct SharedMap {
    barriers: u32,
    /// Stages, each with its tile of B and then of A; when all of them have been read, the reduction and the staged
    /// output.
    tiles: u32,
}

impl SharedMap {
    fn new() -> Self {
        let mut layout = SharedLayout::default();
        let barriers = layout.place(Pipeline::barrier_bytes(MAX_STAGES), 8);
        // Swizzled tiles repeat every 1024 bytes.
        let tiles = layout.place(0, 1024);
        SharedMap { barriers, tiles }
    }

    /// Gives the parts names, for the simulator's messages and timelines.
    fn name(&self, k: &Kernel, cfg: &Config) {
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, MAX_STAGES);
        let [a, b] = cfg.tiles().map(|tile| tile.bytes());
        k.name_shared_every(cfg.stage_bytes(), "b", self.tiles, b, MAX_STAGES);
        k.name_shared_every(cfg.stage_bytes(), "a", self.tiles + b, a, MAX_STAGES);
    }
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { operands, block_m, block_n, summed, fusion } = self;
        let (element, layout, fusion) = (operands.element.name(), operands.layout(), fusion.name());
        let summed = if *summed { "summed_" } else { "" };
        format!("sm90_{element}_gemm_split_k_{summed}{fusion}{layout}_{block_m}x{block_n}")
    }

    /// Threads of a block: the consumer warpgroups, and a producer warp.
    pub fn threads(&self) -> u32 {
        self.shape().math_threads() + WARP
    }

    /// Bytes of dynamic shared memory for a number of stages.
    pub fn shared_bytes(&self, stages: u32) -> u32 {
        SharedMap::new().tiles + (stages * self.stage_bytes()).max(self.shape().reduce().bytes())
    }

    /// Bytes of the tiles of one stage.
    pub fn stage_bytes(&self) -> u32 {
        self.tiles().iter().map(OperandTile::bytes).sum()
    }

    /// The parts of A and B in a stage.
    fn tiles(&self) -> [OperandTile; 2] {
        let Operands { a, b, .. } = self.operands;
        [OperandTile { major: a, rows: self.block_m }, OperandTile { major: b, rows: self.block_n }]
    }

    /// A part of B in a stage whose rows are neighbours: all of it, or gates or ups.
    fn part_of_b(&self) -> OperandTile {
        OperandTile { major: self.operands.b, rows: self.tile_columns() }
    }

    /// Lines of 128 bytes that one tensor load of A, and of B, takes.
    pub(crate) fn loaded_lines(&self) -> [u32; 2] {
        [self.tiles()[0].lines(), self.part_of_b().lines()]
    }

    /// Columns of D of a tile.
    pub fn tile_columns(&self) -> u32 {
        self.shape().columns()
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
    /// The tile's first row and column.
    tile: [U32<'k>; 2],
    k_split: KSplit<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Block<'k, '_> {
    /// The tiles of A and B in a stage.
    fn stage(&self, stage: U32<'k>) -> [Shared<'k>; 2] {
        let b = self.tiles.at(stage * self.cfg.stage_bytes());
        [b.at(self.cfg.tiles()[1].bytes()), b]
    }
}

/// `D[m,n] = C[m,n] + sum over k of  A[m,k] * B[n,k]`, where products are added up also over those of a batch.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let mut params = Params::declare(k);
    params.output.half = cfg.operands.element;
    let fused = cfg.is_fused().then(|| EpilogueParams::declare(k));
    let shared = k.dynamic_shared();
    let map = SharedMap::new();
    map.name(k, cfg);
    let stages = params.split_k_tuning().stages;
    let pipe = Pipeline::new(k, shared.at(map.barriers), stages, MAX_STAGES);
    let tiles = shared.at(map.tiles);
    let k_split = KSplit::new(k, params.k_blocks);
    let tile = [k.block_index(1) * cfg.block_m, k_split.cluster * cfg.tile_columns()];
    let (warp, lane) = (k.warp_index(), k.lane());
    let block = Block { k, cfg, params, tiles, pipe, tile, k_split, warp, lane };
    let math_warps = cfg.shape().math_warps();
    let tile_warp = math_warps;

    k.if_else(
        warp.eq(tile_warp),
        || {
            // The loads start as soon as their barriers exist, and wait for no other warp.
            k.if_(lane.eq(0), || {
                block.params.a.prefetch();
                block.params.b.prefetch();
                pipe.init_in_use(1, math_warps);
                k.fence_barrier_init();
            });
            k.sync_warp();
            k.barrier_arrive(0, cfg.threads());
            k.grid_dependency_wait();
            k.if_(lane.eq(0), || k.role("producer", || block.load_tiles()));
            k.sync_warp();
        },
        || {
            if cfg.operands.b == Major::K && !cfg.summed {
                block.params.b_rows.prefetch(
                    k,
                    (tile[1], cfg.block_n),
                    cfg.fusion.accumulators(),
                    k_split.blocks,
                );
            }
            k.barrier_sync(0, cfg.threads());
            k.grid_dependency_wait();
        },
    );

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
    /// Producer thread: A and B.
    fn load_tiles(&self) {
        let (k, p) = (self.k, &self.params);
        // Where every row of B is read once, it need not stay in the L2 cache.
        let stream = p.split_k_tuning().stream_b_once;
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..Default::default() };
        let ([a_tile, _], [m, n]) = (self.cfg.tiles(), self.tile);
        let (b_part, b_parts) = (self.cfg.part_of_b(), self.cfg.fusion.accumulators());
        let cursor = self.pipe.writer();
        k.for_(self.k_split.blocks[0], self.k_split.blocks[1], 1, |block| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let full = self.pipe.full(stage);
            full.arrive_expecting(self.cfg.stage_bytes());
            let ([a, b], (depth, slab)) = (self.stage(stage), self.depth(block));
            let load = |map: &TensorMap<'k>, [x, y]: [U32<'k>; 2], to, options| {
                let at: Vec<U32<'k>> = [x, y].into_iter().chain(slab).collect();
                map.load(&at, to, full, options);
            };
            let load_b = |options| {
                for part in 0..b_parts {
                    let (row, to) = (n + p.output.columns * part, b.at(part * b_part.bytes()));
                    b_part.boxes([row, depth], to).for_each(|(at, to)| load(&p.b, at, to, options));
                }
            };
            k.if_else(stream.ne(0), || load_b(once), || load_b(LoadOptions::default()));
            a_tile.boxes([m, depth], a).for_each(|(at, to)| load(&p.a, at, to, LoadOptions::default()));
            cursor.advance();
        });
        k.launch_dependents();
    }

    /// The depth of K that a K block begins at and, in a batch, its slab.
    fn depth(&self, block: U32<'k>) -> (U32<'k>, Option<U32<'k>>) {
        if !self.cfg.summed {
            return (block * BLOCK_K, None);
        }
        let of_each = self.params.split_k_tuning().slab_k_blocks;
        let slab = block / of_each;
        ((block - slab * of_each) * BLOCK_K, Some(slab))
    }

    /// Consumer warpgroup: 64 rows of one operand against all rows of the other, one stage always in flight.
    fn consume(&self) -> Vec<Var<'k, f32>> {
        let (k, cfg) = (self.k, self.cfg);
        let types = cfg.operands.mma_type();
        let ([a, b], [a_tile, b_tile]) = (self.stage(k.constant(0)), cfg.tiles());
        let ((tall, tall_tile), (other, other_tile)) =
            if cfg.shape().swapped() { ((b, b_tile), (a, a_tile)) } else { ((a, a_tile), (b, b_tile)) };
        let ([tall_part, other_part], (_, columns)) =
            (cfg.shape().parts_of(self.warp >> 2), cfg.shape().sides());
        let tall = tall_tile.descriptor(tall.at(tall_part * OperandTile::row_offset(64)));
        let other: Descriptor<'k> =
            other_tile.descriptor(other.at(other_part * OperandTile::row_offset(columns)));
        let majors: (Major, Major) = (tall_tile.major, other_tile.major);
        let accumulators = k.fragment::<f32>(columns as usize / 2);
        accumulators.iter().for_each(|accumulator| accumulator.set(0.0));

        let (cursor, previous) = (self.pipe.reader(), k.var(0u32));
        k.for_(self.k_split.blocks[0], self.k_split.blocks[1], 1, |block| {
            cursor.wait_full();
            let stage = cursor.stage();
            let offset = stage * cfg.stage_bytes();
            let (tall, other) = (tall.advance(offset), other.advance(offset));
            k.wgmma_fence();
            for depth in (0..BLOCK_K).step_by(types.k() as usize) {
                let tall = MatrixA::Shared(tall.advance(tall_tile.depth_offset(depth)));
                let other = other.advance(other_tile.depth_offset(depth));
                k.wgmma(types, &accumulators, tall, other, majors, k.constant(true));
            }
            k.wgmma_commit();
            k.wgmma_wait(1);
            let done = self.pipe.empty(previous.get());
            k.guard(self.lane.eq(0) & block.gt(self.k_split.blocks[0]), || done.arrive());
            previous.set(stage);
            cursor.advance();
        });
        // Nobody releases the last stage: nothing is loaded after it.
        k.wgmma_wait(0);
        accumulators
    }
}
