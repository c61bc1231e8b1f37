//! FP8 GEMM with fine-grained scales, for few rows: swapped operands, K split over a cluster.
//!
//! With few rows of A the product is as fast as B can be read. So B's rows take the tensor core's 64-row side
//! and A's few rows the other, which may be as narrow as 8; and where N alone does not give every
//! multiprocessor work, the blocks of a cluster take a slice of K each. Their partial sums meet in distributed
//! shared memory and are added in the order of the slices, so the result does not depend on timing.

use crate::params::{Params, ScaleRow};
use crate::pipeline::Pipeline;
use crate::promote::multiply_stage;
use crate::{BLOCK_K, WARP, WARPGROUP};
use oxigemm_ptx::tma::{Eviction, LoadOptions};
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Pred, Shared, Target, U32, Var};

/// What is compiled in. Shapes, strides, the split of K, the number of stages and the output type are run-time
/// arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of A in a tile: 8, 16, 32, 64 or 128.
    pub block_m: u32,
    /// Rows of B in a tile: 64 or 128.
    pub block_n: u32,
}

/// Stages that the barriers have room for.
pub const MAX_STAGES: u32 = 16;
/// The ways K may be split: clusters of this many blocks.
pub const SPLITS: [u32; 4] = [1, 2, 4, 8];
/// Barriers lie below the tiles, which start at a multiple of the swizzle's period.
const TILES: u32 = 1024;

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        format!("fp8_gemm_slim_{}x{}", self.block_m, self.block_n)
    }

    /// Threads of a block: the math warpgroups, a warp that loads tiles and one that loads scales.
    pub fn threads(&self) -> u32 {
        self.math_threads() + 2 * WARP
    }

    /// Bytes of dynamic shared memory for a number of stages.
    pub fn shared_bytes(&self, stages: u32) -> u32 {
        let ring = stages * (self.stage_bytes() + self.block_m * 4);
        TILES + ring.max(self.partial_bytes())
    }

    /// Bytes of the tiles of one stage.
    pub fn stage_bytes(&self) -> u32 {
        (self.block_n + self.block_m) * BLOCK_K
    }

    /// Floats from one row of partial sums to the next: four more than a row, so that the eight columns and
    /// four rows that a warp writes at once fall into different banks.
    fn partial_pitch(&self) -> u32 {
        self.block_n + 4
    }

    fn partial_bytes(&self) -> u32 {
        self.block_m * self.partial_pitch() * 4
    }

    fn math_threads(&self) -> u32 {
        self.block_n / 64 * WARPGROUP
    }

    fn math_warps(&self) -> u32 {
        self.math_threads() / WARP
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// The block's tile and its slice of K.
struct Place<'k> {
    m: U32<'k>,
    n: U32<'k>,
    split: U32<'k>,
    rank: U32<'k>,
    first_block: U32<'k>,
    end_block: U32<'k>,
}

impl<'k> Place<'k> {
    fn new(k: &'k Kernel, cfg: &Config, p: &Params<'k>) -> Self {
        let (split, rank) = (k.cluster_blocks(), k.cluster_rank());
        Place {
            m: k.block_index(1) * cfg.block_m,
            n: k.cluster_index() * cfg.block_n,
            split,
            rank,
            first_block: rank * p.k_blocks / split,
            end_block: (rank + 1) * p.k_blocks / split,
        }
    }
}

/// The stages of shared memory; their number is known at run time.
struct Ring<'k> {
    shared: Shared<'k>,
    cfg: Config,
    scales: Shared<'k>,
}

impl<'k> Ring<'k> {
    fn new(shared: Shared<'k>, cfg: Config, stages: U32<'k>) -> Self {
        let scales = shared.at(TILES).at(stages * cfg.stage_bytes());
        Ring { shared, cfg, scales }
    }

    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(TILES).at(stage * self.cfg.stage_bytes())
    }

    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.b(stage).at(self.cfg.block_n * BLOCK_K)
    }

    /// The products of both scales, one for each row of A.
    fn scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.scales.at(stage * (self.cfg.block_m * 4))
    }

    /// Partial sums `[block_m][partial_pitch]`, where the tiles were.
    fn partials(&self) -> Shared<'k> {
        self.shared.at(TILES)
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let p = Params::declare(k);
    // `stream` is not zero where every row of B is read once: it need not stay in the L2 cache.
    let [stages, stream, _] = p.tuning;
    let shared = k.dynamic_shared();
    let pipe = Pipeline::new(k, shared, stages, MAX_STAGES);
    let place = Place::new(k, cfg, &p);
    let ring = Ring::new(shared, *cfg, stages);
    let (warp, lane) = (k.warp_index(), k.lane());
    let (tile_warp, scale_warp) = (cfg.math_warps(), cfg.math_warps() + 1);

    k.if_(warp.eq(tile_warp), || {
        k.if_(lane.eq(0), || {
            p.a.prefetch();
            p.b.prefetch();
            pipe.init(2, cfg.math_warps());
        });
        k.sync_warp();
    });
    k.sync_threads();
    k.grid_dependency_wait();

    k.if_(warp.eq(tile_warp), || {
        k.if_(k.elect(), || load_tiles(k, &p, &place, &ring, &pipe, stream.ne(0)));
        k.sync_warp();
    });
    k.if_(warp.eq(scale_warp), || load_scales(k, &p, &place, &ring, &pipe, lane));
    k.if_(warp.lt(tile_warp), || multiply(k, cfg, &place, &ring, &pipe, warp, lane));

    // Every slice's partial sums are in place, and visible to the cluster.
    k.cluster_sync();
    k.launch_dependents();
    k.if_(warp.lt(tile_warp), || add_partials(k, cfg, &p, &place, &ring));
    // Nobody leaves while another block still reads its shared memory.
    k.cluster_sync();
    k.finish()
}

fn load_tiles<'k>(
    k: &'k Kernel,
    p: &Params<'k>,
    place: &Place<'k>,
    ring: &Ring<'k>,
    pipe: &Pipeline<'k>,
    stream: Pred<'k>,
) {
    let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..Default::default() };
    let cursor = pipe.writer();
    k.for_(place.first_block, place.end_block, 1, |block| {
        cursor.wait_empty();
        let stage = cursor.stage();
        let full = pipe.full(stage);
        full.arrive_expecting(ring.cfg.stage_bytes());
        let column = block * BLOCK_K;
        k.if_else(
            stream,
            || p.b.load(&[column, place.n], ring.b(stage), full, once),
            || p.b.load(&[column, place.n], ring.b(stage), full, LoadOptions::default()),
        );
        p.a.load(&[column, place.m], ring.a(stage), full, LoadOptions::default());
        cursor.advance();
    });
}

/// One warp brings the scales of each stage; a tile has one scale of B, which is multiplied in here.
fn load_scales<'k>(
    k: &'k Kernel,
    p: &Params<'k>,
    place: &Place<'k>,
    ring: &Ring<'k>,
    pipe: &Pipeline<'k>,
    lane: U32<'k>,
) {
    let rows: Vec<(U32<'k>, ScaleRow<'k>, Pred<'k>)> = (0..ring.cfg.block_m.div_ceil(WARP))
        .map(|i| {
            let (inside, row) = (lane + i * WARP, place.m + lane + i * WARP);
            let valid = row.lt(p.output.rows) & inside.lt(ring.cfg.block_m);
            (inside, p.sfa.row(row), valid)
        })
        .collect();
    let sfb = p.sfb.row(place.n / BLOCK_K);
    let cursor = pipe.writer();
    k.for_(place.first_block, place.end_block, 1, |block| {
        let row_scales: Vec<F32<'k>> =
            rows.iter().map(|(_, row, valid)| row.at(block).load_readonly_if(*valid, 0.0f32)).collect();
        let column_scale = sfb.at(block).load_readonly::<f32>();
        cursor.wait_empty();
        let stage = cursor.stage();
        for (&(inside, ..), &scale) in rows.iter().zip(&row_scales) {
            let (to, product) = (ring.scales(stage).at(inside * 4), scale * column_scale);
            k.guard(inside.lt(ring.cfg.block_m), || to.store(product));
        }
        k.sync_warp();
        k.guard(lane.eq(0), || pipe.full(stage).arrive());
        cursor.advance();
    });
}

/// A math warpgroup: 64 rows of B against all rows of the A tile, promoted into FP32 sums.
fn multiply<'k>(
    k: &'k Kernel,
    cfg: &Config,
    place: &Place<'k>,
    ring: &Ring<'k>,
    pipe: &Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
) {
    let first_row = (warp >> 2) * 64;
    let zero = k.constant(0u32);
    let b = Descriptor::k_major(ring.b(zero).at(first_row * BLOCK_K), Swizzle::B128);
    let a = Descriptor::k_major(ring.a(zero), Swizzle::B128);
    let products = k.fragment::<f32>(cfg.block_m as usize / 2);
    let sums: Vec<Var<'k, f32>> = products.iter().map(|_| k.var(0.0f32)).collect();
    let column = (lane & 3) * 2;

    let cursor = pipe.reader();
    k.for_(place.first_block, place.end_block, 1, |_| {
        cursor.wait_full();
        let stage = cursor.stage();
        k.wgmma_fence();
        multiply_stage(
            k,
            &products,
            b.advance(stage * cfg.stage_bytes()),
            a.advance(stage * cfg.stage_bytes()),
        );
        k.wgmma_commit();
        k.wgmma_wait(0);
        // Here the tensor core's columns are A's rows: two scales for each octet of them.
        let scales = ring.scales(stage).at(column * 4);
        for (octet, (sums, products)) in (0u32..).zip(sums.chunks(4).zip(products.chunks(4))) {
            let pair = scales.at(octet * 32).load_vec::<f32, 2>();
            for (i, (sum, product)) in sums.iter().zip(products).enumerate() {
                sum.fma(product.live(), pair[i % 2]);
            }
        }
        k.sync_warp();
        k.guard(lane.eq(0), || pipe.empty(stage).arrive());
        cursor.advance();
    });

    // The partial sums take the place of the tiles: no warpgroup may still read those.
    k.barrier_sync(1, cfg.math_threads());
    let row = first_row + (warp & 3) * 16 + (lane >> 2);
    let to = ring.partials().at((column * cfg.partial_pitch() + row) * 4);
    for (octet, sums) in (0u32..).zip(sums.chunks(4)) {
        for (i, sum) in (0u32..).zip(sums) {
            let (row, column) = ((i / 2) * 8, octet * 8 + i % 2);
            to.at((column * cfg.partial_pitch() + row) * 4).store(sum.live());
        }
    }
}

/// Adds the slices in order and writes D; the cluster's blocks take turns of four neighbours a thread.
fn add_partials<'k>(k: &'k Kernel, cfg: &Config, p: &Params<'k>, place: &Place<'k>, ring: &Ring<'k>) {
    let fours = cfg.block_n / 4;
    let rows = (p.output.rows - place.m).min(cfg.block_m);
    let first = place.rank * cfg.math_threads() + k.thread_index();
    k.for_(first, rows * fours, place.split * cfg.math_threads(), |index| {
        let (row, column) = (index / fours, (index % fours) * 4);
        let from = ring.partials().at((row * cfg.partial_pitch() + column) * 4);
        let sums: [Var<'k, f32>; 4] = std::array::from_fn(|_| k.var(0.0f32));
        for split in SPLITS {
            k.if_(place.split.eq(split), || {
                // All loads are in flight before the first addition.
                let slices: Vec<[F32<'k>; 4]> =
                    (0..split).map(|rank| from.in_block(rank).load_vec::<f32, 4>()).collect();
                for slice in slices {
                    sums.iter().zip(slice).for_each(|(sum, part)| sum.set(sum.live() + part));
                }
            });
        }
        p.output.store_four(k, place.m + row, place.n + column, sums.map(|sum| sum.live()));
    });
}
