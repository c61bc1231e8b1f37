//! The product before the norm of a hyper-connection: a few columns, and the sum of squares of every row on the way.
//!
//! `D[m,n] = sum over k of  X[m,k] * W[n,k]`, `squares[m] = sum over k of  X[m,k]²`, for BF16 X and FP32 W, of which the tensor core
//! takes the upper 19 bits (TF32).
//!
//! Reading X is what limits it. A block takes 128 rows and a slice of K; each of two warpgroups reads its 64 rows of a stage
//! from shared memory into registers, where BF16 becomes TF32 exactly and is squared, and the tensor core takes them from
//! there. The slices of a cluster are added in their order, so the same call gives the same bits.

use crate::many_rows::{MATH_WARPGROUPS, MATH_WARPS};
use crate::pipeline::Pipeline;
use crate::{WARP, WARPGROUP};
use oxigemm_ptx::tma::{LoadOptions, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{
    Bf16, BuildError, F32, Global, Kernel, Module, Shared, SharedLayout, Target, U32, U64, Val, Var,
};

/// Rows of a block.
pub const BLOCK_M: u32 = 64 * MATH_WARPGROUPS;
/// Elements of K in a stage: a line of 128 bytes of X, and two of W.
pub const BLOCK_K: u32 = 64;
/// Elements of a line of W.
pub const W_LINE: u32 = 32;
/// Blocks of a cluster, which share out a slice of K.
pub const CLUSTERS: [u32; 4] = [1, 2, 4, 8];
/// Numbers of columns that there are kernels for.
pub const COLUMNS: [u32; 4] = [8, 16, 24, 32];

const LINE: u32 = 128;
const STAGES: u32 = 8;
const THREADS: u32 = MATH_WARPGROUPS * WARPGROUP + WARP;

/// What is compiled in. Shapes and slices are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Columns of D: one of [`COLUMNS`].
    pub columns: u32,
}

impl Config {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Config> {
        COLUMNS.into_iter().map(|columns| Config { columns })
    }

    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        format!("tf32_hc_prenorm_gemm_n{}", self.columns)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    fn x_bytes(&self) -> u32 {
        BLOCK_M * LINE
    }

    /// Bytes of one line of all rows of W.
    fn w_panel(&self) -> u32 {
        self.columns * LINE
    }

    fn w_bytes(&self) -> u32 {
        BLOCK_K / W_LINE * self.w_panel()
    }

    /// Floats from the partial sums of one row to those of the next: its columns, its square, and what keeps rows apart
    /// in the banks.
    fn partial_pitch(&self) -> u32 {
        self.columns + 5
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        let k = Kernel::new(&self.name(), Target::Sm90a).threads(THREADS);
        write(&k, self);
        k.finish()
    }
}

/// Shared memory, every offset in one place.
struct SharedMap {
    x: u32,
    w: u32,
    partials: u32,
    barriers: u32,
    bytes: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let x = layout.place(STAGES * cfg.x_bytes(), 1024);
        let w = layout.place(STAGES * cfg.w_bytes(), 1024);
        let partials = layout.place(BLOCK_M * cfg.partial_pitch() * 4, 16);
        let barriers = layout.place(Pipeline::barrier_bytes(STAGES), 8);
        SharedMap { x, w, partials, barriers, bytes: layout.bytes() }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("x", self.x, cfg.x_bytes(), STAGES);
        k.name_shared("w", self.w, cfg.w_bytes(), STAGES);
        k.name_shared("partials", self.partials, cfg.partial_pitch() * 4, BLOCK_M);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, STAGES);
    }
}

/// The parameters, in order.
struct Params<'k> {
    x: TensorMap<'k>,
    w: TensorMap<'k>,
    d: Global<'k>,
    squares: Global<'k>,
    /// Elements from one split of D to the next.
    d_split: U64<'k>,
    /// Elements from one row of D to the next.
    d_pitch: U32<'k>,
    rows: U32<'k>,
    k_blocks: U32<'k>,
}

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    map: SharedMap,
    shared: Shared<'k>,
    ring: Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
    /// The first row of this block.
    row: U32<'k>,
    /// Which split this block's cluster computes.
    split: U32<'k>,
    /// The blocks of K that this block sums: the first, and the one behind the last.
    slice: [U32<'k>; 2],
}

fn write<'k>(k: &'k Kernel, cfg: &Config) {
    let params = Params {
        x: k.param_tensor_map("x"),
        w: k.param_tensor_map("w"),
        d: k.param_pointer("d"),
        squares: k.param_pointer("squares"),
        d_split: k.param("d_split"),
        d_pitch: k.param("d_pitch"),
        rows: k.param("rows"),
        k_blocks: k.param("k_blocks"),
    };
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);
    let ring = Pipeline::new(k, shared.at(map.barriers), STAGES, STAGES);
    let (warp, lane) = (k.warp_index(), k.lane());
    let (rank, ranks) = (k.cluster_rank(), k.cluster_blocks());
    let (split, splits) = (k.block_index(1), k.grid_blocks(1));
    // Slices of splits differ by at most one block.
    let bound = |nth: U32<'k>| {
        let slices = (ranks * splits).to_u64();
        (nth.widening_mul(params.k_blocks) / slices).to_u32()
    };
    let nth = split * ranks + rank;
    let slice = [bound(nth), bound(nth + 1)];
    let row = (k.block_index(0) / ranks) * BLOCK_M;
    let block = Block { k, cfg, params, map, shared, ring, warp, lane, row, split, slice };

    k.if_(warp.eq(MATH_WARPS), || {
        k.if_(lane.eq(0), || {
            block.params.x.prefetch();
            block.params.w.prefetch();
            ring.init(1, MATH_WARPS);
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    k.sync_threads();
    k.grid_dependency_wait();
    k.if_else(
        warp.eq(MATH_WARPS),
        || {
            k.if_(k.elect(), || k.role("producer", || block.load()));
            k.sync_warp();
        },
        || k.role("math", || block.multiply()),
    );
    k.cluster_sync();
    block.add([rank, ranks]);
    // Nobody leaves while others read its partial sums.
    k.cluster_sync();
}

impl<'k> Block<'k, '_> {
    fn x(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.x).at(stage * self.cfg.x_bytes())
    }

    fn w(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.w).at(stage * self.cfg.w_bytes())
    }

    fn partial(&self, row: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.partials).at(row * (self.cfg.partial_pitch() * 4))
    }

    /// The thread that loads both operands.
    fn load(&self) {
        let (k, cfg) = (self.k, self.cfg);
        let cursor = self.ring.writer();
        let [first, end] = self.slice;
        k.for_(first, end, 1, |block| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let full = self.ring.full(stage);
            full.arrive_expecting(cfg.x_bytes() + cfg.w_bytes());
            let column = block * BLOCK_K;
            self.params.x.load(&[column, self.row], self.x(stage), full, LoadOptions::default());
            for line in 0..BLOCK_K / W_LINE {
                let to = self.w(stage).at(line * cfg.w_panel());
                let at = [column + line * W_LINE, k.constant(0)];
                self.params.w.load(&at, to, full, LoadOptions::default());
            }
            cursor.advance();
        });
        k.launch_dependents();
    }

    /// A math warpgroup: 64 rows of every stage.
    fn multiply(&self) {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let cursor = self.ring.reader();
        let sums: Vec<Var<'k, f32>> = (0..cfg.columns / 2).map(|_| k.var(0.0f32)).collect();
        let squares = [(); 2].map(|()| k.var(0.0f32));
        // A thread has two rows, eight apart, and of every eight of K one and the one four further on.
        let row = self.warp * 16 + (lane >> 2);
        let types = MmaType::Tf32;
        let steps = BLOCK_K / types.k();
        let chunk = |step: u32| row * LINE + (((lane >> 2) ^ step) << 4) + (lane & 3) * 2;
        let chunks: Vec<U32<'k>> = (0..steps).map(chunk).collect();
        let [first, end] = self.slice;
        k.for_(first, end, 1, |_| {
            cursor.wait_full();
            let stage = cursor.stage();
            let x = self.x(stage);
            let fragments: Vec<[U32<'k>; 4]> = chunks
                .iter()
                .map(|&chunk| {
                    // The order of a fragment: both rows of the first column, then of the other.
                    [[0, 0], [1, 0], [0, 1], [1, 1]].map(|[lower, further]: [u32; 2]| {
                        let at = x.at(chunk).at(lower * 8 * LINE + further * 8);
                        let value = at.load::<Bf16>().to_f32();
                        squares[lower as usize].fma(value, value);
                        value.bitcast::<u32>()
                    })
                })
                .collect();
            k.wgmma_fence();
            for (step, fragment) in (0u32..).zip(&fragments) {
                let per_line = W_LINE / types.k();
                let panel = self.w(stage).at((step / per_line) * cfg.w_panel());
                let w = Descriptor::k_major(panel, Swizzle::B128).advance((step % per_line) * types.k() * 4);
                let majors = (Major::K, Major::K);
                k.wgmma(types, &sums, MatrixA::Registers(fragment), w, majors, k.constant(true));
            }
            k.wgmma_commit();
            k.wgmma_wait(0);
            k.sync_warp();
            k.guard(lane.eq(0), || self.ring.empty(stage).arrive());
            cursor.advance();
        });
        for (lower, square) in (0u32..).zip(squares) {
            let partial = self.partial(row + lower * 8);
            for (octet, four) in (0u32..).zip(sums.chunks(4)) {
                for (column, sum) in (0u32..).zip(&four[2 * lower as usize..][..2]) {
                    partial.at(((lane & 3) * 2 + (octet * 8 + column)) * 4).store(sum.live());
                }
            }
            let mut square: F32<'k> = square.get();
            for distance in [1u32, 2] {
                square = square + k.shuffle(Shuffle::Xor, square, distance);
            }
            k.guard((lane & 3).eq(0), || partial.at(cfg.columns * 4).store(square));
        }
    }

    /// Adds the slices of the cluster, of some of the rows.
    fn add(&self, [rank, ranks]: [U32<'k>; 2]) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let share = k.constant(BLOCK_M) / ranks;
        let per_row = cfg.columns + 1;
        k.for_(k.thread_index(), share * per_row, THREADS, |index| {
            let (row, column) = (rank * share + index / per_row, index % per_row);
            let part = self.partial(row).at(column * 4);
            let sum = k.var(0.0f32);
            k.for_(0, ranks, 1, |rank| {
                let slice: F32<'k> = part.in_block(rank).load();
                sum.set(sum.live() + slice);
            });
            let row = self.row + row;
            let exists = row.lt(p.rows);
            let sum: Val<'k, f32> = sum.get();
            let in_d = self.split.to_u64() * p.d_split + row.widening_mul(p.d_pitch) + column.to_u64();
            let of_row = self.split.widening_mul(p.rows) + row.to_u64();
            let is_square = column.eq(cfg.columns);
            let to_d = p.d.at(in_d * 4u64);
            let to_squares = p.squares.at(of_row * 4u64);
            k.guard(exists & !is_square, || to_d.store(sum));
            k.guard(exists & is_square, || to_squares.store(sum));
        });
        k.sync_warp();
    }
}
