//! GEMM of BF16 or FP16 operands, for few rows: K split over a cluster, operands swapped below 64 rows.
//!
//! With few rows of A the product is as fast as B can be read. Below 64 rows B's rows take the tensor core's 64-row
//! side and A's the other, which may be as narrow as 8. Where N alone does not give every multiprocessor work, the
//! blocks of a cluster take a slice of K each, and exchange their partial sums.
//!
//! K may run through a batch of products, which are so added up: then the operands are slabs, and a stage is of one of them.

use crate::WARP;
use crate::common::pipeline::Pipeline;
use crate::gemm::epilogue::fusion::{FusedParams, Fusion};
use crate::gemm::operand::f16::{BLOCK_K, OperandTile, Operands};
use crate::gemm::params::Params;
use crate::gemm::sm90::split_k::{FewRows, Slice, TileOutput};
use oxigemm_ptx::tma::{Eviction, LoadOptions, TensorMap};
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA};
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, SharedLayout, Target, U32, Var};

pub use crate::gemm::sm90::dsmem_reduce::SPLITS;

/// What is compiled in. Shapes, strides, the split of K, the number of stages and whether D is FP32 are run-time
/// arguments.
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
    /// What is done with the sums; where that is something, a tile becomes 128 columns of D.
    pub fusion: Fusion,
}

/// Stages that the barriers have room for.
pub const MAX_STAGES: u32 = 16;

/// Shared memory, every offset in one place. What has a fixed size lies below the tiles, whose number is an argument.
struct SharedMap {
    barriers: u32,
    /// Stages, each with its tile of B and then of A; and, when all of them have been read, what is made of them.
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

    /// Threads of a block: the math warpgroups, and a warp that loads tiles.
    pub fn threads(&self) -> u32 {
        self.shape().math_threads() + WARP
    }

    /// Bytes of dynamic shared memory for a number of stages.
    pub fn shared_bytes(&self, stages: u32) -> u32 {
        SharedMap::new().tiles + (stages * self.stage_bytes()).max(self.shape().partials().bytes())
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

    /// Lines that one tensor load of A, and of B, brings.
    pub(crate) fn loaded_lines(&self) -> [u32; 2] {
        [self.tiles()[0].lines(), self.part_of_b().lines()]
    }

    /// Columns of D that a tile becomes.
    pub fn tile_columns(&self) -> u32 {
        self.shape().columns()
    }

    /// Whether sums are finished before they are stored.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    fn shape(&self) -> FewRows {
        FewRows { block_m: self.block_m, block_n: self.block_n, fusion: self.fusion }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// What every role of the kernel works with: the block's tile, its slice of K, its shared memory.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    /// The stages; and what takes their place when all of them have been read.
    tiles: Shared<'k>,
    pipe: Pipeline<'k>,
    /// The tile's first row and column.
    tile: [U32<'k>; 2],
    slice: Slice<'k>,
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
    let fused = cfg.is_fused().then(|| FusedParams::declare(k));
    let shared = k.dynamic_shared();
    let map = SharedMap::new();
    map.name(k, cfg);
    let [stages, ..] = params.tuning;
    let pipe = Pipeline::new(k, shared.at(map.barriers), stages, MAX_STAGES);
    let tiles = shared.at(map.tiles);
    let slice = Slice::new(k, params.k_blocks);
    let tile = [k.block_index(1) * cfg.block_m, slice.cluster * cfg.tile_columns()];
    let (warp, lane) = (k.warp_index(), k.lane());
    let block = Block { k, cfg, params, tiles, pipe, tile, slice, warp, lane };
    let math_warps = cfg.shape().math_warps();
    let tile_warp = math_warps;

    k.if_else(
        warp.eq(tile_warp),
        || {
            // The loads start as soon as their barriers exist; nobody else is waited for.
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
                block.params.b_rows.fetch_parts(k, (tile[1], cfg.block_n), cfg.fusion, slice.blocks);
            }
            k.barrier_sync(0, cfg.threads());
            k.grid_dependency_wait();
        },
    );

    let output = TileOutput {
        k,
        shape: cfg.shape(),
        params: &block.params.output,
        slice,
        tile,
        area: tiles,
        warp,
        lane,
        fused,
    };
    output.finish(|| block.multiply());
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The producer thread.
    fn load_tiles(&self) {
        let (k, p) = (self.k, &self.params);
        // Where every row of B is read once, it need not stay in the L2 cache.
        let [_, stream, ..] = p.tuning;
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..Default::default() };
        let ([a_tile, _], [m, n]) = (self.cfg.tiles(), self.tile);
        let (b_part, b_parts) = (self.cfg.part_of_b(), self.cfg.fusion.sums());
        let cursor = self.pipe.writer();
        k.for_(self.slice.blocks[0], self.slice.blocks[1], 1, |block| {
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

    /// The depth of K that a block begins at and, where products are added up, whose it is.
    fn depth(&self, block: U32<'k>) -> (U32<'k>, Option<U32<'k>>) {
        if !self.cfg.summed {
            return (block * BLOCK_K, None);
        }
        let [_, _, of_each, _] = self.params.tuning;
        let slab = block / of_each;
        ((block - slab * of_each) * BLOCK_K, Some(slab))
    }

    /// A math warpgroup: 64 rows of one operand against all rows of the other, one stage always in flight.
    fn multiply(&self) -> Vec<Var<'k, f32>> {
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
        let sums = k.fragment::<f32>(columns as usize / 2);
        sums.iter().for_each(|sum| sum.set(0.0));

        let (cursor, previous) = (self.pipe.reader(), k.var(0u32));
        k.for_(self.slice.blocks[0], self.slice.blocks[1], 1, |block| {
            cursor.wait_full();
            let stage = cursor.stage();
            let offset = stage * cfg.stage_bytes();
            let (tall, other) = (tall.advance(offset), other.advance(offset));
            k.wgmma_fence();
            for depth in (0..BLOCK_K).step_by(types.k() as usize) {
                let tall = MatrixA::Shared(tall.advance(tall_tile.depth_offset(depth)));
                let other = other.advance(other_tile.depth_offset(depth));
                k.wgmma(types, &sums, tall, other, majors, k.constant(true));
            }
            k.wgmma_commit();
            k.wgmma_wait(1);
            let done = self.pipe.empty(previous.get());
            k.guard(self.lane.eq(0) & block.gt(self.slice.blocks[0]), || done.arrive());
            previous.set(stage);
            cursor.advance();
        });
        // The last stage is let go by nobody: nothing is loaded after it.
        k.wgmma_wait(0);
        sums
    }
}
