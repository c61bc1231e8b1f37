//! FP8 GEMM with fine-grained scales, for many rows: persistent, warp-specialized, multicast.
//!
//! A block computes tiles of `block_m` by `block_n`. Two warpgroups multiply: each its own half of the rows, or
//! of the columns where a tile has 64 rows. A third one feeds them: one thread issues the tensor loads, and warps
//! copy the scales that the copy engine cannot bring. Clusters of blocks share their operands: each block loads
//! its part of a tile and multicasts it.

use crate::cluster::{Place, Release};
use crate::epilogue::WarpOutput;
use crate::params::Params;
use crate::pipeline::{Cursor, Pipeline};
use crate::promote::multiply_stage;
use crate::scales::{ScaleReader, ScaleRing, ScaleShape, VECTOR};
use crate::{BLOCK_K, SCALE_GROUP, WARP, WARPGROUP};
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Shared, SharedLayout, Target, U32, Var};

/// What is compiled in. Shapes, strides, the cluster's dimensions and the output type are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of a tile: 64, 128 or 256.
    pub block_m: u32,
    /// Columns of a tile: a multiple of 16, of 32 where it has 64 rows.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
}

/// Warpgroups that multiply.
const MATH_WARPGROUPS: u32 = 2;
const MATH_WARPS: u32 = MATH_WARPGROUPS * 4;
/// Warps that copy scales.
const SCALE_WARPS: u32 = 2;
/// Groups of scales in flight.
const SCALE_SLOTS: u32 = 2;
const PRODUCER_REGISTERS: u32 = 40;
const MATH_REGISTERS: u32 = 232;

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        format!("fp8_gemm_wide_{}x{}_s{}", self.block_m, self.block_n, self.stages)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        (MATH_WARPGROUPS + 1) * WARPGROUP
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    /// Warpgroups side by side along N: both, where one of them covers all rows.
    fn warpgroups_n(&self) -> u32 {
        if self.block_m == 64 { MATH_WARPGROUPS } else { 1 }
    }

    /// Columns of a warpgroup's products.
    fn warpgroup_n(&self) -> u32 {
        self.block_n / self.warpgroups_n()
    }

    /// 64-row products that a warpgroup makes of each stage, one after another.
    fn waves(&self) -> u32 {
        (self.block_m * self.warpgroups_n()) / (MATH_WARPGROUPS * 64)
    }

    /// Columns that are sure to share one scale of B, whatever tile and warpgroup they are in.
    fn columns_per_scale(&self) -> u32 {
        gcd(self.warpgroup_n(), BLOCK_K)
    }

    fn scales(&self) -> ScaleShape {
        ScaleShape::new(self.block_m, self.block_n, self.columns_per_scale(), SCALE_SLOTS, SCALE_WARPS)
    }

    /// Bytes of a math warp's staging area.
    fn staging_bytes(&self) -> u32 {
        self.waves() * WarpOutput::staging_bytes(self.warpgroup_n())
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Shared memory, every offset in one place.
struct SharedMap {
    a: u32,
    b: u32,
    staging: u32,
    scales: u32,
    barriers: u32,
    scale_barriers: u32,
    bytes: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let a = layout.place(cfg.stages * cfg.block_m * BLOCK_K, 1024);
        let b = layout.place(cfg.stages * cfg.block_n * BLOCK_K, 1024);
        let staging = layout.place(MATH_WARPS * cfg.staging_bytes(), 1024);
        let scales = layout.place(cfg.scales().bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let scale_barriers = layout.place(cfg.scales().barrier_bytes(), 8);
        SharedMap { a, b, staging, scales, barriers, scale_barriers, bytes: layout.bytes() }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("a", self.a, cfg.block_m * BLOCK_K, cfg.stages);
        k.name_shared("b", self.b, cfg.block_n * BLOCK_K, cfg.stages);
        k.name_shared("staging", self.staging, cfg.staging_bytes(), MATH_WARPS);
        k.name_shared("scales", self.scales, cfg.scales().bytes() / SCALE_SLOTS, SCALE_SLOTS);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        Pipeline::name_barriers(k, ["scales_full", "scales_empty"], self.scale_barriers, SCALE_SLOTS);
    }
}

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    map: SharedMap,
    shared: Shared<'k>,
    place: Place<'k>,
    pipe: Pipeline<'k>,
    scales: ScaleRing<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Block<'k, '_> {
    /// `block_m` rows of A in a stage, 128 bytes each, swizzled.
    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.a).at(stage * (self.cfg.block_m * BLOCK_K))
    }

    /// `block_n` rows of B in a stage.
    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.b).at(stage * (self.cfg.block_n * BLOCK_K))
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k);
    let map = SharedMap::new(cfg);
    let shared = k.dynamic_shared();
    map.name(k, cfg);
    let place = Place::new(k, [cfg.block_m, cfg.block_n], &params);
    let pipe = Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages);
    let scales =
        ScaleRing::new(k, cfg.scales(), shared.at(map.scales), shared.at(map.scale_barriers), &params);
    let (warp, lane) = (k.warp_index(), k.lane());
    let block = Block { k, cfg, params, map, shared, place, pipe, scales, warp, lane };

    let tile_warp = MATH_WARPS;
    let first_scale_warp = MATH_WARPS + 4 - SCALE_WARPS;
    k.if_(warp.eq(tile_warp), || {
        k.if_(lane.eq(0), || {
            block.params.a.prefetch();
            block.params.b.prefetch();
            block.params.sfa_map.prefetch();
            block.params.output.d_map.prefetch();
            pipe.init(1, place.sharers() * MATH_WARPS);
            scales.init(MATH_WARPS);
        });
        k.sync_warp();
    });
    k.cluster_arrive();
    k.cluster_wait();
    k.grid_dependency_wait();

    k.if_else(
        warp.ge(tile_warp),
        || {
            k.registers_down(PRODUCER_REGISTERS);
            k.if_(warp.eq(tile_warp), || k.if_(k.elect(), || k.role("producer", || block.load_tiles())));
            k.if_(warp.ge(first_scale_warp), || {
                k.role("scale copier", || block.copy_scales(warp - first_scale_warp));
            });
        },
        || {
            k.registers_up(MATH_REGISTERS);
            k.role("math", || block.multiply());
        },
    );
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The producer thread: this block's part of A and B, multicast to the blocks that share them, and scales.
    fn load_tiles(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let (a, b) = (self.place.share_of_a(), self.place.share_of_b());
        let (cursor, scales) = (self.pipe.writer(), self.scales.writer());
        self.place.for_each_tile(k, |m, n| {
            k.for_(0, p.k_blocks, 1, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                let column = block * BLOCK_K;
                a.load(k, &p.a, [column, m], self.a(stage), full);
                b.load(k, &p.b, [column, n], self.b(stage), full);
                scales.load(p, [m, n], block, k.constant(0));
                cursor.advance();
            });
        });
        k.launch_dependents();
        cursor.drain();
    }

    /// The warps that copy the scales of B, and those of A that the copy engine cannot address.
    fn copy_scales(&self, warp: U32<'k>) {
        let (k, p) = (self.k, &self.params);
        let copier = self.scales.copier(warp * WARP + self.lane, self.lane);
        self.place.for_each_tile(k, |m, n| {
            copier.copy_tile(p, [m, n], k.constant(0), p.k_blocks);
        });
    }

    /// A math warpgroup: 64-row products of each stage, promoted into FP32 sums with their scales.
    fn multiply(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let math = Math::new(self);
        self.place.for_each_turn(k, |_| {
            math.sums.iter().flatten().for_each(|sum| sum.set(0.0));
            k.for_(0, p.k_blocks, VECTOR as u32, |first| {
                math.multiply_blocks(first, 0);
                let next = first + VECTOR as u32;
                k.if_((next % SCALE_GROUP).eq(0) | next.ge(p.k_blocks), || math.scales.release());
            });
            WarpOutput::reclaim(k, self.lane);
            for (wave, sums) in (0u32..).zip(&math.sums) {
                let output = WarpOutput {
                    params: &p.output,
                    row: math.tile[0].get() + math.first_row + wave * 64 + (self.warp & 3) * 16,
                    column: math.tile[1].get() + math.first_column,
                    staging: math.staging.at(wave * WarpOutput::staging_bytes(cfg.warpgroup_n())),
                    lane: self.lane,
                };
                output.write(k, sums);
            }
        });
        WarpOutput::finish(k, self.lane);
    }
}

/// A math warp's state.
struct Math<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// The part of a tile that the warpgroup computes.
    first_row: U32<'k>,
    first_column: U32<'k>,
    a: Descriptor<'k>,
    b: Descriptor<'k>,
    /// Where the scales of this thread's rows lie: two rows for each wave.
    rows: Vec<U32<'k>>,
    /// The scales of those rows, for a few blocks of K.
    row_scales: Vec<[Var<'k, f32>; VECTOR]>,
    staging: Shared<'k>,
    products: Vec<Var<'k, f32>>,
    /// The sums of each wave.
    sums: Vec<Vec<Var<'k, f32>>>,
    /// The first row and column of the tile.
    tile: [Var<'k, u32>; 2],
    cursor: Cursor<'k>,
    scales: ScaleReader<'k>,
    /// Whether the cursor's stage was full when it was last looked at.
    ready: Var<'k, bool>,
    release: Release<'k>,
}

impl<'k, 'b, 'c> Math<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg, warp, lane) = (block.k, block.cfg, block.warp, block.lane);
        let (waves, columns) = (cfg.waves(), cfg.warpgroup_n());
        let (warpgroup, zero) = (warp >> 2, k.constant(0));
        let (first_row, first_column) = match cfg.warpgroups_n() {
            1 => (warpgroup * (waves * 64), zero),
            _ => (zero, warpgroup * columns),
        };
        // The row of this thread's first accumulators within a 64-row product.
        let row = (warp & 3) * 16 + (lane >> 2);
        let scales = block.scales.reader(lane);
        let cursor = block.pipe.reader();
        Math {
            block,
            first_row,
            first_column,
            a: Descriptor::k_major(block.a(zero).at(first_row * BLOCK_K), Swizzle::B128),
            b: Descriptor::k_major(block.b(zero).at(first_column * BLOCK_K), Swizzle::B128),
            rows: (0..waves)
                .flat_map(|wave| [wave * 64, wave * 64 + 8])
                .map(|below| scales.row_offset(first_row + row + below))
                .collect(),
            row_scales: (0..2 * waves).map(|_| std::array::from_fn(|_| k.var(0.0f32))).collect(),
            staging: block.shared.at(block.map.staging).at(warp * cfg.staging_bytes()),
            products: k.fragment(columns as usize / 2),
            sums: (0..waves).map(|_| k.fragment(columns as usize / 2)).collect(),
            tile: [k.var(0), k.var(0)],
            ready: k.var_from(cursor.is_full()),
            cursor,
            scales,
            release: Release::new(k, &block.place, &block.pipe, lane),
        }
    }

    /// The `later`-th of a few blocks that start with `first`, and those after it. Unrolled, so that the scales of
    /// all of them are loaded into registers at once.
    fn multiply_blocks(&self, first: U32<'k>, later: usize) {
        let k = self.block.k;
        self.multiply_block(first, later);
        if later + 1 < VECTOR {
            let more = (first + (later as u32 + 1)).lt(self.block.params.k_blocks);
            k.if_(more, || self.multiply_blocks(first, later + 1));
        }
    }

    fn multiply_block(&self, first: U32<'k>, later: usize) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        k.if_(!self.ready.get(), || self.cursor.wait_full());
        let stage = self.cursor.stage();
        let a = self.a.advance(stage * (cfg.block_m * BLOCK_K));
        let b = self.b.advance(stage * (cfg.block_n * BLOCK_K));
        let mut loaded = None;
        for (wave, sums) in self.sums.iter().enumerate() {
            k.wgmma_fence();
            multiply_stage(k, &self.products, a.advance(wave as u32 * 64 * BLOCK_K), b);
            k.wgmma_commit();
            // While the tensor core works: the scales of all waves, and a look at the next stage.
            let (rows, columns) = loaded.get_or_insert_with(|| self.load_scales(first, later));
            let last = wave + 1 == self.sums.len();
            if last {
                self.cursor.advance();
                self.ready.set(self.cursor.is_full());
            }
            k.wgmma_wait(0);
            if last {
                self.release.stage(k, stage);
            }
            promote(cfg, sums, &self.products, rows[wave], columns);
        }
    }

    /// The scales of a block: of this thread's rows in each wave, and of the warpgroup's columns.
    fn load_scales(&self, first: U32<'k>, later: usize) -> (Vec<[F32<'k>; 2]>, Vec<F32<'k>>) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let within = first % SCALE_GROUP;
        let per_scale = cfg.columns_per_scale();
        let (first_column, count) = (self.first_column / per_scale, cfg.warpgroup_n() / per_scale);
        if later == 0 {
            k.if_(within.eq(0), || self.scales.wait());
            self.scales.load_rows(within, &self.rows, &self.row_scales);
            if count == 1 {
                self.scales.multiply_by_column(within, first_column, &self.row_scales);
            }
            k.if_(first.eq(0), || {
                let place = self.scales.block(within).place();
                self.tile.iter().zip(place).for_each(|(var, place)| var.set(place));
            });
        }
        // A single column scale is part of the row scales.
        let columns = match count {
            1 => Vec::new(),
            _ => self.scales.block(within + later as u32).columns(first_column, count),
        };
        let scale = |row: usize| self.row_scales[row][later].get();
        ((0..self.sums.len()).map(|wave| [scale(2 * wave), scale(2 * wave + 1)]).collect(), columns)
    }
}

/// `sums += scale * products`: the second level of accumulation, in full FP32. Without column scales, the row
/// scales are all there is.
fn promote<'k>(
    cfg: &Config,
    sums: &[Var<'k, f32>],
    products: &[Var<'k, f32>],
    row_scales: [F32<'k>; 2],
    column_scales: &[F32<'k>],
) {
    let per_group = cfg.columns_per_scale() as usize / 2;
    for (group, (sums, products)) in sums.chunks(per_group).zip(products.chunks(per_group)).enumerate() {
        let scales = match column_scales.get(group) {
            Some(&column) => row_scales.map(|row| row * column),
            None => row_scales,
        };
        for (i, (sum, product)) in sums.iter().zip(products).enumerate() {
            sum.fma(product.live(), scales[(i / 2) % 2]);
        }
    }
}
