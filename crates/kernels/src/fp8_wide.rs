//! FP8 GEMM with fine-grained scales, for many rows: persistent, warp-specialized, multicast.
//!
//! A block computes tiles of `block_m` by `block_n`. Two warpgroups multiply, each its own half of the rows;
//! a third one feeds them: one thread issues the tensor loads, two warps load the scales. Clusters of up to
//! 2x2 blocks share their operands: each block loads its part of a tile and multicasts it.

use crate::epilogue::WarpOutput;
use crate::params::{Params, ScaleRow};
use crate::pipeline::{Pipeline, RemoteEmpty};
use crate::promote::multiply_stage;
use crate::schedule::{KernelTileOrder, TileOrder};
use crate::{BLOCK_K, WARP, WARPGROUP};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Pred, Shared, SharedLayout, Target, U16, U32, Var};

/// What is compiled in. Shapes, strides, the cluster's dimensions and the output type are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of a tile: 128 or 256.
    pub block_m: u32,
    /// Columns of a tile, a multiple of 16.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
}

/// Warpgroups that multiply.
const MATH_WARPGROUPS: u32 = 2;
const MATH_WARPS: u32 = MATH_WARPGROUPS * 4;
/// Warps that load scales.
const SCALE_WARPS: u32 = 2;
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

    /// 64-row products that a warpgroup makes of each stage, one after another.
    fn waves(&self) -> u32 {
        self.block_m / (MATH_WARPGROUPS * 64)
    }

    /// Columns that are sure to share one scale of B, whatever tile they are in.
    fn scale_columns(&self) -> u32 {
        gcd(self.block_n, BLOCK_K)
    }

    /// Scales of B in one stage.
    fn scale_groups(&self) -> u32 {
        self.block_n / self.scale_columns()
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
    row_scales: u32,
    column_scales: u32,
    barriers: u32,
    bytes: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let a = layout.place(cfg.stages * cfg.block_m * BLOCK_K, 1024);
        let b = layout.place(cfg.stages * cfg.block_n * BLOCK_K, 1024);
        let staging = layout.place(MATH_WARPS * WarpOutput::STAGING_BYTES, 128);
        let row_scales = layout.place(cfg.stages * cfg.block_m * 4, 16);
        let column_scales = layout.place(cfg.stages * column_scale_bytes(cfg), 16);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        SharedMap { a, b, staging, row_scales, column_scales, barriers, bytes: layout.bytes() }
    }
}

fn column_scale_bytes(cfg: &Config) -> u32 {
    (cfg.scale_groups() * 4).next_multiple_of(16)
}

/// The block's place in its cluster, and the tiles that it takes.
#[derive(Clone, Copy)]
struct Place<'k> {
    order: KernelTileOrder<'k>,
    cluster: (U32<'k>, U32<'k>),
    rank: (U32<'k>, U32<'k>),
}

impl<'k> Place<'k> {
    fn new(k: &'k Kernel, cfg: &Config, p: &Params<'k>) -> Self {
        let [cluster_m, cluster_n, band] = p.tuning;
        let rank = k.cluster_rank();
        let rank_m = rank / cluster_n;
        Place {
            order: TileOrder {
                m_tiles: p.output.rows.div_ceil(cluster_m * cfg.block_m),
                n_tiles: p.output.columns.div_ceil(cluster_n * cfg.block_n),
                band,
            },
            cluster: (cluster_m, cluster_n),
            rank: (rank_m, rank - rank_m * cluster_n),
        }
    }

    /// Runs `body` with the first row and column of every tile of this block.
    fn for_each_tile(&self, k: &'k Kernel, cfg: &Config, body: impl FnOnce(U32<'k>, U32<'k>)) {
        k.for_(k.cluster_index(), self.order.count(), k.grid_clusters(), |index| {
            let (m, n) = self.order.tile(index);
            let block = |tile, cluster, rank, size| (tile * cluster + rank) * size;
            body(
                block(m, self.cluster.0, self.rank.0, k.constant(cfg.block_m)),
                block(n, self.cluster.1, self.rank.1, k.constant(cfg.block_n)),
            );
        });
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let p = Params::declare(k);
    let map = SharedMap::new(cfg);
    let shared = k.dynamic_shared();
    let place = Place::new(k, cfg, &p);
    let pipe = Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages);

    let warp = k.warp_index();
    let lane = k.lane();
    // Blocks that share a row or a column of the cluster: each of them writes to this block's stages.
    let sharers = place.cluster.0 + place.cluster.1 - 1;
    k.if_(warp.eq(MATH_WARPS), || {
        k.guard(lane.eq(0), || {
            p.a.prefetch();
            p.b.prefetch();
        });
        k.if_(lane.eq(0), || pipe.init(1 + SCALE_WARPS, sharers * MATH_WARPS));
        k.sync_warp();
    });
    k.cluster_arrive();
    k.cluster_wait();
    k.grid_dependency_wait();

    k.if_else(
        warp.ge(MATH_WARPS),
        || {
            k.registers_down(PRODUCER_REGISTERS);
            k.if_(warp.eq(MATH_WARPS), || {
                k.if_(k.elect(), || load_tiles(k, cfg, &p, &map, shared, &place, &pipe));
            });
            k.if_(warp.ge(MATH_WARPS + 4 - SCALE_WARPS), || {
                load_scales(
                    k,
                    cfg,
                    &p,
                    &map,
                    shared,
                    &place,
                    &pipe,
                    warp - (MATH_WARPS + 4 - SCALE_WARPS),
                    lane,
                );
            });
        },
        || {
            k.registers_up(MATH_REGISTERS);
            multiply(k, cfg, &p, &map, shared, &place, &pipe, warp, lane);
        },
    );
    k.finish()
}

/// The producer thread: this block's part of A and B, multicast to the blocks that share them.
fn load_tiles<'k>(
    k: &'k Kernel,
    cfg: &Config,
    p: &Params<'k>,
    map: &SharedMap,
    shared: Shared<'k>,
    place: &Place<'k>,
    pipe: &Pipeline<'k>,
) {
    let (cluster_m, cluster_n) = place.cluster;
    let (rank_m, rank_n) = place.rank;
    // A tile's rows are shared along N: `cluster_n` blocks load one part each. B likewise along M.
    let a_rows = k.constant(cfg.block_m) / cluster_n;
    let b_rows = k.constant(cfg.block_n) / cluster_m;
    let a_part = rank_n * a_rows;
    let b_part = rank_m * b_rows;
    let one = k.constant(1u32);
    let a_mask = ((one << cluster_n) - 1) << (rank_m * cluster_n);
    // Bits rank_n and rank_n + cluster_n (if there are two rows of blocks).
    let b_mask = (one | (cluster_m.gt(1).select::<u32>(1, 0) << cluster_n)) << rank_n;
    let share_a = share(cluster_n, a_mask);
    let share_b = share(cluster_m, b_mask);

    let cursor = pipe.writer();
    place.for_each_tile(k, cfg, |m, n| {
        let (a_row, b_row) = (m + a_part, n + b_part);
        k.for_(0, p.k_blocks, 1, |block| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let full = pipe.full(stage);
            full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
            let a = shared.at(map.a).at(stage * (cfg.block_m * BLOCK_K) + a_part * BLOCK_K);
            let b = shared.at(map.b).at(stage * (cfg.block_n * BLOCK_K) + b_part * BLOCK_K);
            let column = block * BLOCK_K;
            load_shared(k, &p.a, [column, a_row], a, full, share_a);
            load_shared(k, &p.b, [column, b_row], b, full, share_b);
            cursor.advance();
        });
    });
    k.launch_dependents();
    cursor.drain();
}

/// Whether a tile is shared at all, and with whom.
fn share<'k>(blocks: U32<'k>, mask: U32<'k>) -> (Pred<'k>, U16<'k>) {
    (blocks.gt(1), mask.to_u16())
}

fn load_shared<'k>(
    k: &'k Kernel,
    tensor: &TensorMap<'k>,
    at: [U32<'k>; 2],
    to: Shared<'k>,
    full: oxigemm_ptx::MBarrier<'k>,
    (shared, mask): (Pred<'k>, U16<'k>),
) {
    k.if_else(
        shared,
        || tensor.load(&at, to, full, LoadOptions { multicast: Some(mask), ..Default::default() }),
        || tensor.load(&at, to, full, LoadOptions::default()),
    );
}

/// Two warps bring the scales of each stage, in whatever layout they have in memory. The loads of a stage are
/// in flight while the warps wait for it to become empty.
#[allow(clippy::too_many_arguments)]
fn load_scales<'k>(
    k: &'k Kernel,
    cfg: &Config,
    p: &Params<'k>,
    map: &SharedMap,
    shared: Shared<'k>,
    place: &Place<'k>,
    pipe: &Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
) {
    let lanes = SCALE_WARPS * WARP;
    let thread = warp * WARP + lane;
    let uniform = cfg.scale_groups() == 1;
    let cursor = pipe.writer();
    place.for_each_tile(k, cfg, |m, n| {
        let rows: Vec<(ScaleRow<'k>, Pred<'k>)> = (0..cfg.block_m / lanes)
            .map(|i| {
                let row = m + thread + i * lanes;
                (p.sfa.row(row), row.lt(p.output.rows))
            })
            .collect();
        // One scale of B for the whole tile, or one per group of columns, a lane each.
        let column = if uniform { n } else { n + thread * cfg.scale_columns() };
        let has_column = if uniform {
            column.lt(p.output.columns)
        } else {
            column.lt(p.output.columns) & thread.lt(cfg.scale_groups())
        };
        let sfb = p.sfb.row(column / BLOCK_K);
        k.for_(0, p.k_blocks, 1, |block| {
            let row_scales: Vec<F32<'k>> =
                rows.iter().map(|(row, valid)| row.at(block).load_readonly_if(*valid, 0.0f32)).collect();
            let column_scale = sfb.at(block).load_readonly_if(has_column, 0.0f32);
            cursor.wait_empty();
            let stage = cursor.stage();
            let to = shared.at(map.row_scales).at(stage * (cfg.block_m * 4) + thread * 4);
            for (i, &scale) in row_scales.iter().enumerate() {
                let scale = if uniform { scale * column_scale } else { scale };
                to.at(i as u32 * lanes * 4).store(scale);
            }
            if !uniform {
                let to = shared.at(map.column_scales).at(stage * column_scale_bytes(cfg) + thread * 4);
                k.guard(thread.lt(cfg.scale_groups()), || to.store(column_scale));
            }
            k.sync_warp();
            k.guard(lane.eq(0), || pipe.full(stage).arrive());
            cursor.advance();
        });
    });
}

/// A math warpgroup: 64-row products of each stage, promoted into FP32 sums with the stage's scales.
#[allow(clippy::too_many_arguments)]
fn multiply<'k>(
    k: &'k Kernel,
    cfg: &Config,
    p: &Params<'k>,
    map: &SharedMap,
    shared: Shared<'k>,
    place: &Place<'k>,
    pipe: &Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
) {
    let rows = cfg.waves() * 64;
    let first_row = (warp >> 2) * rows;
    // The row of this thread's first accumulators within a 64-row product.
    let row = (warp & 3) * 16 + (lane >> 2);
    let a = Descriptor::k_major(shared.at(map.a).at(first_row * BLOCK_K), Swizzle::B128);
    let b = Descriptor::k_major(shared.at(map.b), Swizzle::B128);
    let row_scales = shared.at(map.row_scales).at((first_row + row) * 4);
    let staging = shared.at(map.staging).at(warp * WarpOutput::STAGING_BYTES);

    let products = k.fragment::<f32>(cfg.block_n as usize / 2);
    let sums: Vec<_> = (0..cfg.waves()).map(|_| k.fragment::<f32>(cfg.block_n as usize / 2)).collect();

    let release = Release::new(k, place, pipe, lane);
    let cursor = pipe.reader();
    place.for_each_tile(k, cfg, |m, n| {
        sums.iter().flatten().for_each(|sum| sum.set(0.0));
        k.for_(0, p.k_blocks, 1, |_| {
            cursor.wait_full();
            let stage = cursor.stage();
            let a = a.advance(stage * (cfg.block_m * BLOCK_K));
            let b = b.advance(stage * (cfg.block_n * BLOCK_K));
            for (wave, sums) in (0u32..).zip(&sums) {
                let scales = row_scales.at(stage * (cfg.block_m * 4)).at(wave * 64 * 4);
                let scales = [scales.load::<f32>(), scales.at(8 * 4).load::<f32>()];
                k.wgmma_fence();
                multiply_stage(k, &products, a.advance(wave * 64 * BLOCK_K), b);
                k.wgmma_commit();
                let columns = column_scales(cfg, map, shared, stage);
                k.wgmma_wait(0);
                if wave + 1 == cfg.waves() {
                    release.stage(k, stage);
                }
                promote(cfg, sums, &products, scales, &columns);
            }
            cursor.advance();
        });
        for (wave, sums) in (0u32..).zip(&sums) {
            let row = m + first_row + wave * 64 + (warp & 3) * 16;
            WarpOutput { params: &p.output, row, column: n, staging, lane }.write(k, sums);
        }
    });
}

/// The scales of B of this stage, one per group of columns; none where the row scales include them.
fn column_scales<'k>(cfg: &Config, map: &SharedMap, shared: Shared<'k>, stage: U32<'k>) -> Vec<F32<'k>> {
    if cfg.scale_groups() == 1 {
        return Vec::new();
    }
    let from = shared.at(map.column_scales).at(stage * column_scale_bytes(cfg));
    (0..cfg.scale_groups().div_ceil(4)).flat_map(|i| from.at(i * 16).load_vec::<f32, 4>()).collect()
}

/// `sums += scale * products`: the second level of accumulation, in full FP32.
fn promote<'k>(
    cfg: &Config,
    sums: &[Var<'k, f32>],
    products: &[Var<'k, f32>],
    row_scales: [F32<'k>; 2],
    column_scales: &[F32<'k>],
) {
    let per_group = cfg.scale_columns() as usize / 2;
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

/// How a math warp lets go of a stage: lane `i` tells the `i`-th block that writes to it.
struct Release<'k> {
    takes_part: Pred<'k>,
    empty: RemoteEmpty<'k>,
}

impl<'k> Release<'k> {
    fn new(k: &'k Kernel, place: &Place<'k>, pipe: &Pipeline<'k>, lane: U32<'k>) -> Self {
        let (cluster_m, cluster_n) = place.cluster;
        let (rank_m, rank_n) = place.rank;
        // Lanes below cluster_n: the blocks of this block's row. The next cluster_m - 1: the others of its column.
        let in_row = lane.lt(cluster_n);
        let other_row = (rank_m + 1 + (lane - cluster_n)) % cluster_m;
        let target = in_row.select(rank_m * cluster_n + lane, other_row * cluster_n + rank_n);
        let takes_part = lane.lt(cluster_m + cluster_n - 1);
        let own = k.cluster_rank();
        Release { takes_part, empty: pipe.empty_in_block(takes_part.select(target, own)) }
    }

    fn stage(&self, k: &'k Kernel, stage: U32<'k>) {
        let barrier = self.empty.at(stage);
        k.guard(self.takes_part, || barrier.arrive());
    }
}
