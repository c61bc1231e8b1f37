//! Split-K GEMM for few rows: operands swapped, K split over a cluster.
//!
//! The rows of B take the 128 lanes of the tensor core and the rows of A its columns, of which there may be as few as 16.
//! Where N alone does not give every SM work, the CTAs of a cluster take a K split each, and reduce their accumulators
//! through distributed shared memory. With a gate, gates and ups have an accumulator each.
//!
//! | role | threads | work |
//! |---|---|---|
//! | math | two warpgroups, four with a gate | from tensor memory to the reduction (`gemm::split_k`) and the epilogue |
//! | producer | one thread | TMA loads of A and B |
//! | MMA | one thread | copies of scales to tensor memory, MMAs |
//! | scale producer | one warp | block scales, where there are some |
//!
//! K may run through a batch of products, which are so added up: then the operands are slabs, and a stage is of one of
//! them.

use crate::common::WARP;
use crate::common::pipeline::Pipeline;
use crate::gemm::TensorMemoryPart;
use crate::gemm::epilogue::fusion::EpilogueParams;
use crate::gemm::kind::{ElementType, OperandKind};
use crate::gemm::operand::f16::Half;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::params::Params;
use crate::gemm::sm100::operand::{
    LINE_BYTES, OperandTile, layout_name, mma_kind, operands_name, scale_words,
};
use crate::gemm::sm100::scales::{
    BlockScales, GROUP_BYTES, GROUP_COLUMNS, GROUP_ROWS, LaneWords, copy_groups, store_words,
};
use crate::gemm::split_k::dsmem_reduce::SPLITS as CLUSTERS;
use crate::gemm::split_k::{KSplit, SplitKTile, TileOutput};
use oxigemm_ptx::tcgen05::{CtaGroup, Instruction, Kind, MatrixA, OutputType, Scales, TensorMemory};
use oxigemm_ptx::tma::{Eviction, LoadOptions, TensorMap};
use oxigemm_ptx::{BuildError, Kernel, MBarrier, Module, Shared, SharedLayout, Target, U32, Var};

/// Numbers of K splits.
pub const SPLITS: [u32; 5] = CLUSTERS;
/// The most stages that there are barriers for.
pub const MAX_STAGES: u32 = 12;
/// Columns of D of a tile: the lanes of tensor memory.
pub const COLUMNS: u32 = 128;
/// MMAs of a stage.
const STEPS: u32 = 4;
/// What a stage begins at a multiple of: swizzled tiles repeat every 1024 bytes.
const STAGE_ALIGNMENT: u32 = 1024;

/// Configuration that is compiled in. Shapes, strides, the K split, the number of stages and whether D is FP32 are
/// run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The operands.
    pub operands: OperandKind,
    /// Rows of A in a tile: a multiple of 16, of 64 where A is M-major.
    pub block_m: u32,
    /// Whether the products of a batch are added up.
    pub summed: bool,
    /// Fused epilogue.
    pub fusion: Fusion,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { operands, block_m, summed, fusion } = *self;
        let (layout, fused) = (layout_name(operands), fusion.name());
        let summed = if summed { "summed_" } else { "" };
        let rows = self.rows_of_b();
        format!("sm100_{}_gemm_split_k_{summed}{fused}{layout}_{block_m}x{rows}", operands_name(operands))
    }

    /// Rows of B in a tile: those of D's columns, twice with a gate.
    pub const fn rows_of_b(&self) -> u32 {
        COLUMNS * self.parts()
    }

    /// Accumulators: gates and ups have one each.
    const fn parts(&self) -> u32 {
        self.fusion.accumulators()
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        let scale_warps = if self.is_scaled() { 1 } else { 0 };
        self.shape().math_threads() + (2 + scale_warps) * WARP
    }

    /// Bytes of dynamic shared memory for a number of stages.
    pub fn shared_bytes(&self, stages: u32) -> u32 {
        SharedMap::new().tiles + (stages * self.stage_bytes()).max(self.shape().reduce().bytes())
    }

    fn is_scaled(&self) -> bool {
        scale_words(self.operands) > 0
    }

    /// The tiles of A and B in a stage.
    pub(super) fn tiles(&self) -> [OperandTile; 2] {
        let OperandKind { a, b, .. } = self.operands;
        let tile = |operand, rows| OperandTile { operand, rows, block_k: self.operands.block_k() };
        [tile(a, self.block_m), tile(b, self.rows_of_b())]
    }

    /// A part of B in a stage whose rows are neighbours: all of it, or gates or ups.
    pub(super) fn part_of_b(&self) -> OperandTile {
        OperandTile { rows: COLUMNS, ..self.tiles()[1] }
    }

    /// Groups of 128 rows that have scales: those of B, then those of A.
    fn scaled_groups(&self) -> u32 {
        self.parts() + self.block_m.div_ceil(GROUP_ROWS)
    }

    /// Bytes of scales of a stage.
    fn scale_bytes(&self) -> u32 {
        scale_words(self.operands) * self.scaled_groups() * GROUP_BYTES
    }

    /// Bytes from one stage to the next.
    fn stage_bytes(&self) -> u32 {
        let tiles: u32 = self.tiles().iter().map(OperandTile::bytes).sum();
        (tiles + self.scale_bytes()).next_multiple_of(STAGE_ALIGNMENT)
    }

    /// Columns of tensor memory: accumulators, then scales.
    pub(super) fn allocated_columns(&self) -> u32 {
        let scales = self.scaled_groups() * scale_words(self.operands) * GROUP_COLUMNS;
        (self.scales_column() + scales).next_power_of_two().max(32)
    }

    fn scales_column(&self) -> u32 {
        self.parts() * self.block_m
    }

    fn shape(&self) -> SplitKTile {
        let (block_m, fusion) = (self.block_m, self.fusion);
        SplitKTile { block_m, block_n: self.rows_of_b(), fusion, swapped: true }
    }

    /// What lies in tensor memory, in the order of its columns.
    pub fn tensor_memory(&self) -> Vec<TensorMemoryPart> {
        let part = |name, columns| TensorMemoryPart { name, columns };
        let words = scale_words(self.operands) * GROUP_COLUMNS;
        let accumulators: &[&str] = match self.fusion {
            Fusion::Gated => &["gates", "ups"],
            Fusion::None | Fusion::Elementwise => &["accumulator"],
        };
        let of_b = words * self.parts();
        let of_a = words * self.scaled_groups() - of_b;
        let used = self.scales_column() + of_a + of_b;
        let parts = accumulators.iter().map(|name| part(name, self.block_m)).chain([
            part("scales of B", of_b),
            part("scales of A", of_a),
            part("free", self.allocated_columns() - used),
        ]);
        parts.filter(|part| part.columns > 0).collect()
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Shared-memory map: every offset in one place. What has a fixed size lies below the stages, whose number is an
/// argument.
struct SharedMap {
    barriers: u32,
    /// Completes when the accumulators do.
    computed: u32,
    /// Address of the allocated tensor memory.
    allocation: u32,
    /// Stages: B, A and their scales. When all have been read, the reduction and the staged output.
    tiles: u32,
}

impl SharedMap {
    fn new() -> Self {
        let mut layout = SharedLayout::default();
        let barriers = layout.place(Pipeline::barrier_bytes(MAX_STAGES), 8);
        let computed = layout.place(MBarrier::BYTES, 8);
        let allocation = layout.place(8, 8);
        let tiles = layout.place(0, STAGE_ALIGNMENT);
        SharedMap { barriers, computed, allocation, tiles }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, cfg: &Config) {
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, MAX_STAGES);
        k.name_shared("computed", self.computed, MBarrier::BYTES, 1);
        let [a, b] = cfg.tiles().map(|tile| tile.bytes());
        k.name_shared_every(cfg.stage_bytes(), "b", self.tiles, b, MAX_STAGES);
        k.name_shared_every(cfg.stage_bytes(), "a", self.tiles + b, a, MAX_STAGES);
        if cfg.is_scaled() {
            k.name_shared_every(
                cfg.stage_bytes(),
                "scales",
                self.tiles + a + b,
                cfg.scale_bytes(),
                MAX_STAGES,
            );
        }
    }
}

/// CTA of this kernel, what every role works with: its tile, its K split, its shared memory.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    /// The stages.
    tiles: Shared<'k>,
    pipe: Pipeline<'k>,
    computed: MBarrier<'k>,
    /// The tile's first row and column.
    tile: [U32<'k>; 2],
    k_split: KSplit<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

/// `D[m,n] = C[m,n] + sum over k of  A[m,k] * B[n,k]`, each product times the scales of its blocks where there are some,
/// and with a fused epilogue where there is one; products are added up also over those of a batch.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm100a).threads(cfg.threads());
    let mut params = Params::declare(k);
    if cfg.operands.a.element == ElementType::F16 {
        params.output.half = Half::F16;
    }
    let fused = (cfg.fusion != Fusion::None).then(|| EpilogueParams::declare(k));
    let (shared, map) = (k.dynamic_shared(), SharedMap::new());
    map.name(k, cfg);
    let pipe = Pipeline::new(k, shared.at(map.barriers), params.split_k_tuning().stages, MAX_STAGES);
    let stages = match cfg.operands.is_block_scaled() {
        false => params.k_blocks,
        true => params.k_blocks.div_ceil(cfg.operands.block_k() / cfg.operands.scale_block.size()),
    };
    let k_split = KSplit::new(k, stages);
    let tile = [k.block_index(1) * cfg.block_m, k_split.cluster * COLUMNS];
    let (warp, lane) = (k.warp_index(), k.lane());
    let (tiles, computed) = (shared.at(map.tiles), MBarrier(shared.at(map.computed)));
    let block = &Block { k, cfg, params, tiles, pipe, computed, tile, k_split, warp, lane };
    let math_warps = cfg.shape().math_warps();
    let [producer, mma, scales] = [math_warps, math_warps + 1, math_warps + 2];

    // Barriers and tensor memory.
    let allocation = shared.at(map.allocation);
    k.if_(warp.eq(producer), || {
        k.if_(lane.eq(0), || {
            block.params.a.prefetch();
            block.params.b.prefetch();
            pipe.init_in_use(if cfg.is_scaled() { 2 } else { 1 }, 1);
            computed.init(1);
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    k.if_(warp.eq(mma), || {
        k.tensor_memory_alloc(CtaGroup::One, allocation, cfg.allocated_columns());
        k.tensor_memory_relinquish(CtaGroup::One);
        k.tcgen05_fence_before();
    });
    k.sync_threads();
    k.tcgen05_fence_after();
    k.grid_dependency_wait();
    let memory = TensorMemory::at(allocation.load());

    // Roles.
    let one_thread = |warp_of_role: u32, name: &str, body: &dyn Fn()| {
        k.if_(warp.eq(warp_of_role), || {
            k.if_(k.elect(), || k.role(name, body));
            k.sync_warp();
        });
    };
    one_thread(producer, "producer", &|| block.load_tiles());
    one_thread(mma, "mma", &|| block.multiply(memory));
    if cfg.is_scaled() {
        k.if_(warp.eq(scales), || k.role("scales", || block.load_scales()));
    }
    let output = TileOutput {
        k,
        shape: cfg.shape(),
        params: &block.params.output,
        k_split,
        tile,
        area: tiles,
        warp,
        lane,
        fragment_warp: Some(block.fragment_warp()),
        fused,
    };
    output.run(|| block.accumulators(memory));

    // Every warp has read its accumulators.
    k.sync_warp();
    k.sync_threads();
    k.if_(warp.eq(mma), || {
        k.tcgen05_fence_after();
        k.tensor_memory_dealloc(CtaGroup::One, memory, cfg.allocated_columns());
    });
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The tiles of A and B in a stage, and their scales: those of B, then those of A, word by word.
    fn stage(&self, stage: U32<'k>) -> [Shared<'k>; 3] {
        let [a_bytes, b_bytes] = self.cfg.tiles().map(|tile| tile.bytes());
        let b = self.tiles.at(stage * self.cfg.stage_bytes());
        [b.at(b_bytes), b, b.at(b_bytes + a_bytes)]
    }

    /// Producer: A and B. What is read only once need not stay in the L2 cache.
    fn load_tiles(&self) {
        let (k, p, cfg) = (self.k, &self.params, self.cfg);
        let stream = p.split_k_tuning().stream_b_once;
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..Default::default() };
        let ([a_tile, b_tile], b_part, [m, n]) = (cfg.tiles(), cfg.part_of_b(), self.tile);
        let cursor = self.pipe.writer();
        k.for_(self.k_split.blocks[0], self.k_split.blocks[1], 1, |block| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let full = self.pipe.full(stage);
            full.arrive_expecting(a_tile.loaded_bytes() + b_tile.loaded_bytes());
            let ([a, b, _], (depth, slab)) = (self.stage(stage), self.depth(block));
            let load = |map: &TensorMap<'k>, [x, y]: [U32<'k>; 2], to, options| {
                let at: Vec<U32<'k>> = [x, y].into_iter().chain(slab).collect();
                map.load(&at, to, full, options);
            };
            let load_b = |options| {
                for part in 0..cfg.parts() {
                    let (row, to) = (n + p.output.columns * part, b.at(part * COLUMNS * LINE_BYTES));
                    b_part.boxes([row, depth], to).for_each(|(at, to)| load(&p.b, at, to, options));
                }
            };
            k.if_else(stream.ne(0), || load_b(once), || load_b(LoadOptions::default()));
            a_tile.boxes([m, depth], a).for_each(|(at, to)| load(&p.a, at, to, LoadOptions::default()));
            cursor.advance();
        });
        k.launch_dependents();
    }

    /// The depth of K that a stage begins at and, in a batch, its slab.
    fn depth(&self, block: U32<'k>) -> (U32<'k>, Option<U32<'k>>) {
        let block_k = self.cfg.operands.block_k();
        if !self.cfg.summed {
            return (block * block_k, None);
        }
        let of_each = self.params.split_k_tuning().slab_k_blocks;
        let slab = block / of_each;
        ((block - slab * of_each) * block_k, Some(slab))
    }

    /// Scale producer: the scales of the tile's rows of B and of A.
    fn load_scales(&self) {
        let k = self.k;
        let cursor = self.pipe.writer();
        k.for_(self.k_split.blocks[0], self.k_split.blocks[1], 1, |block| {
            // Loaded before the stage is empty: a load takes longer than a stage.
            let words = self.words_of(block);
            cursor.wait_empty();
            let stage = cursor.stage();
            let [_, _, to] = self.stage(stage);
            store_words(to, self.lane, &words);
            k.fence_async_shared();
            k.sync_warp();
            k.if_(self.lane.eq(0), || self.pipe.full(stage).arrive());
            k.sync_warp();
            cursor.advance();
        });
    }

    /// This lane's words of a stage: for each word along K those of B, then those of A.
    fn words_of(&self, stage: U32<'k>) -> Vec<LaneWords<'k>> {
        let (p, operands, [m, n]) = (&self.params, self.cfg.operands, self.tile);
        let blocks = p.k_blocks;
        let a = BlockScales { operands, params: p.sfa, is_b: false, first: None, blocks };
        let b = BlockScales { operands, params: p.sfb, is_b: true, first: None, blocks };
        let mut words = Vec::new();
        for word in 0..scale_words(operands) {
            for part in 0..self.cfg.parts() {
                words.push(BlockScales::rows_of_lane(0, self.lane).map(|row| {
                    let column = n + row;
                    let exists = column.lt(p.output.columns);
                    b.word((column + p.output.columns * part, exists), (stage, word))
                }));
            }
            for group in 0..self.cfg.block_m.div_ceil(GROUP_ROWS) {
                words.push(BlockScales::rows_of_lane(group, self.lane).map(|row| {
                    let exists = row.lt(self.cfg.block_m) & (m + row).lt(p.output.rows);
                    a.word((m + row, exists), (stage, word))
                }));
            }
        }
        words
    }

    /// MMA: all stages of this CTA's K split into one accumulator, or one for gates and one for ups.
    fn multiply(&self, memory: TensorMemory<'k>) {
        let (k, cfg) = (self.k, self.cfg);
        let (cursor, kind) = (self.pipe.reader(), swapped_kind(cfg.operands));
        let ([a_tile, b_tile], part_bytes) = (cfg.tiles(), COLUMNS * LINE_BYTES);
        let first = self.k_split.blocks[0];
        k.for_(first, self.k_split.blocks[1], 1, |block| {
            cursor.wait_full();
            k.tcgen05_fence_after();
            let stage = cursor.stage();
            let [a, b, scales] = self.stage(stage);
            let of_scales = memory.column(cfg.scales_column());
            copy_groups(CtaGroup::One, scales, of_scales, cfg.scale_bytes() / GROUP_BYTES);
            let other = a_tile.descriptor(a);
            for part in 0..cfg.parts() {
                let tall = b_tile.descriptor(b.at(part * part_bytes));
                let accumulator = memory.column(part * cfg.block_m);
                for step in 0..STEPS {
                    let tall = MatrixA::Shared(tall.advance(b_tile.step_offset(step, kind.k())));
                    let other = other.advance(a_tile.step_offset(step, kind.k()));
                    let adds = if step == 0 { block.ne(first) } else { k.constant(true) };
                    let first_scale = step * kind.scales();
                    let instruction = Instruction::new(kind, OutputType::F32, COLUMNS, cfg.block_m)
                        .majors(cfg.operands.b.major, cfg.operands.a.major)
                        .scale_bytes(first_scale % 4, first_scale % 4);
                    if !kind.has_scales() {
                        k.tcgen05_mma(CtaGroup::One, &instruction, accumulator, tall, other, adds);
                        continue;
                    }
                    let word = of_scales.column(first_scale / 4 * cfg.scaled_groups() * GROUP_COLUMNS);
                    let scales = Scales {
                        a: word.column(part * GROUP_COLUMNS),
                        b: word.column(cfg.parts() * GROUP_COLUMNS),
                    };
                    k.tcgen05_mma_scaled(CtaGroup::One, &instruction, accumulator, tall, other, scales, adds);
                }
            }
            k.tcgen05_commit(CtaGroup::One, self.pipe.empty(stage));
            cursor.advance();
        });
        k.tcgen05_commit(CtaGroup::One, self.computed);
    }

    /// The warp whose part of `wgmma` fragments a math warp has: a warp reads a quarter of the lanes alone, 32 rows, and
    /// the two of a quarter have 16 each.
    fn fragment_warp(&self) -> U32<'k> {
        let (part, warp) = (self.warp >> 3, self.warp & 7);
        part * 8 + (warp & 3) * 2 + (warp >> 2)
    }

    /// Math: this warp's part of the accumulators, zeros where the K split is empty.
    fn accumulators(&self, memory: TensorMemory<'k>) -> Vec<Var<'k, f32>> {
        let (k, cfg) = (self.k, self.cfg);
        self.computed.wait(0);
        k.tcgen05_fence_after();
        let (part, lane) = (self.warp >> 3, (self.warp & 3) * 32 + ((self.warp >> 2) & 1) * 16);
        let rows = memory.column(part * cfg.block_m).lane(lane);
        let empty = self.k_split.blocks[0].eq(self.k_split.blocks[1]);
        let accumulators = k.fragment::<f32>(cfg.block_m as usize / 2);
        accumulators.iter().for_each(|accumulator| accumulator.set(0.0));
        k.if_(!empty, || {
            let words = rows.load_fragment(cfg.block_m);
            k.tensor_memory_wait_loads();
            accumulators.iter().zip(words).for_each(|(to, word)| to.set(word.bitcast::<f32>()));
        });
        k.tcgen05_fence_before();
        accumulators
    }
}

/// The kind of MMA with B's rows in the place of A's.
const fn swapped_kind(operands: OperandKind) -> Kind {
    mma_kind(OperandKind { a: operands.b, b: operands.a, ..operands })
}
