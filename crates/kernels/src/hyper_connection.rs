//! The product before the norm of a hyper-connection: a few columns, and the sum of squares of every row on the way.
//!
//! `D[m,n] = sum over k of  X[m,k] * W[n,k]`, `squares[m] = sum over k of  X[m,k]²`, for BF16 X and FP32 W, which is rounded to
//! TF32. The 11 bits of that are the sum of two BF16 numbers: `upper`, the nearest, and `lower`, what is left.
//!
//! Reading X is what limits it, so every block reads the same number of stages, of 128 rows and 64 of K, one behind another. What a
//! block begins, the next may go on with; their sums are [gathered](crate::common::workspace_reduce). The stages of some rows are dealt out to
//! hands, one stage to each in turn, and those of a hand are one behind another. A hand is a split of D; where there is one split, what one
//! of the blocks that share no other rows has. So where each block has a hand, they read neighbouring lines of memory at one time.
//!
//! Rows of W arrive as FP32. Four warps write over each its upper parts and then its lower parts, in the
//! place of the 64 numbers that both came from. The tensor core takes them as two columns, which the same thread
//! holds and adds. While it works, that thread squares its part of X. Rows of W come in an order in which the columns of D that a
//! thread holds are neighbours.

use crate::common::even_split::Shares;
use crate::common::l2_prefetch::Rows;
use crate::common::pipeline::Pipeline;
use crate::common::workspace_reduce::{Contributors, WorkspaceReduce, room_bytes};
use crate::common::{WARP, WARPGROUP};
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS};
use oxigemm_ptx::tma::{Eviction, LoadOptions, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{
    Bf16x2, BuildError, F32, Global, Kernel, MBarrier, Module, Pred, Shared, SharedLayout, Target, U32, U64,
    Val, Var,
};

/// Rows of a stage.
pub const BLOCK_M: u32 = 64 * MATH_WARPGROUPS;
/// Elements of K in a stage: a line of 128 bytes of X.
pub const BLOCK_K: u32 = 64;
/// Numbers of columns that there are kernels for.
pub const COLUMNS: [u32; 4] = [8, 16, 24, 32];

/// Threads that share a row of the tensor core's sums.
pub const QUAD: u32 = 4;

const LINE: u32 = 128;
/// Bytes of a row of W in a stage, in FP32 as in two lines of BF16.
const W_ROW: u32 = W_LINES * LINE;
const W_LINES: u32 = 2;
/// Stages of the ring. With more, an H200 was slower: perhaps as loads that are not needed yet drive more out of the L2 cache, which
/// then has to be written.
const STAGES: u32 = 4;
const PRODUCER: u32 = MATH_WARPS;
/// Warps that split W, behind the producer.
const SPLITTERS: u32 = 4;
const MATH_THREADS: u32 = MATH_WARPGROUPS * WARPGROUP;
const THREADS: u32 = MATH_THREADS + (1 + SPLITTERS) * WARP;
/// More than the upper part of any number leaves.
const LEFT: f32 = 1e38;

/// What is compiled in. Shapes and shares are run-time arguments.
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

    /// Bytes of global memory in which so many blocks of any of the kernels gather their sums: zeros at first.
    pub fn room_bytes(blocks: u32) -> u64 {
        let values = COLUMNS.map(|columns| Config { columns }.values());
        room_bytes(blocks, MATH_THREADS, values.into_iter().fold(0, u32::max))
    }

    fn x_bytes(&self) -> u32 {
        BLOCK_M * LINE
    }

    fn w_bytes(&self) -> u32 {
        self.columns * W_ROW
    }

    /// Neighbouring columns of D that a thread holds, of two rows. The tensor core deals columns out to four threads in
    /// turn, so W is loaded as `[QUAD, run, K]` with its first two dimensions exchanged.
    pub fn run(&self) -> u32 {
        self.columns / QUAD
    }

    /// What a thread has of a block's sums: two rows of a quarter of the columns, and the squares of one row.
    fn values(&self) -> u32 {
        2 * self.run() + 1
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
    barriers: u32,
    /// A barrier for each stage of W before it is split.
    landed: u32,
    bytes: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let x = layout.place(STAGES * cfg.x_bytes(), 1024);
        let w = layout.place(STAGES * cfg.w_bytes(), 1024);
        let barriers = layout.place(Pipeline::barrier_bytes(STAGES), 8);
        let landed = layout.place(STAGES * MBarrier::BYTES, 8);
        SharedMap { x, w, barriers, landed, bytes: layout.bytes() }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("x", self.x, cfg.x_bytes(), STAGES);
        k.name_shared("w", self.w, cfg.w_bytes(), STAGES);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, STAGES);
        k.name_shared("landed", self.landed, MBarrier::BYTES, STAGES);
    }
}

/// The parameters, in order.
struct Params<'k> {
    x: TensorMap<'k>,
    w: TensorMap<'k>,
    d: Global<'k>,
    squares: Global<'k>,
    /// Where blocks gather sums.
    room: Global<'k>,
    /// Elements from one split of D to the next.
    d_split: U64<'k>,
    /// Elements from one row of D to the next.
    d_pitch: U32<'k>,
    rows: U32<'k>,
    k_blocks: U32<'k>,
    /// Splits of D, and how the stages of some rows are shared out to those that have any.
    splits: U32<'k>,
    of_splits: Shares<U32<'k>>,
    /// Hands that these stages are dealt out to, how many each has, and how many of them a block has where something is fetched early.
    hands: U32<'k>,
    of_hands: Shares<U32<'k>>,
    hands_of_block: U32<'k>,
    /// Stages of the rows that some blocks share, how many blocks these are, and what each has.
    shared_stages: U32<'k>,
    sharing_blocks: U32<'k>,
    of_blocks: Shares<U32<'k>>,
    /// X as threads see it, and bytes from one row to the next; 0 where they ask for nothing.
    x_rows: Global<'k>,
    x_pitch: U32<'k>,
    /// The same of W.
    w_rows: Global<'k>,
    w_pitch: U32<'k>,
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
    /// The first of the blocks that share the same rows, and this one.
    first_block: U32<'k>,
    block: U32<'k>,
    /// Their first stage.
    first_stage: U32<'k>,
    /// The stages of this block: the first, and the one behind the last.
    begin: U32<'k>,
    end: U32<'k>,
}

/// Where a stage is of X and W.
struct Dealt<'k> {
    row: Var<'k, u32>,
    /// The hand that it was dealt to, and the block of K.
    hand: Var<'k, u32>,
    block: Var<'k, u32>,
}

/// Rows and a split: what is summed together.
struct Unit<'k> {
    row: U32<'k>,
    split: U32<'k>,
    /// Its stages: the first, and the one behind the last.
    begin: U32<'k>,
    end: U32<'k>,
}

fn write(k: &Kernel, cfg: &Config) {
    let params = Params {
        x: k.param_tensor_map("x"),
        w: k.param_tensor_map("w"),
        d: k.param_pointer("d"),
        squares: k.param_pointer("squares"),
        room: k.param_pointer("room"),
        d_split: k.param("d_split"),
        d_pitch: k.param("d_pitch"),
        rows: k.param("rows"),
        k_blocks: k.param("k_blocks"),
        splits: k.param("splits"),
        of_splits: Shares { each: k.param("split_each"), more: k.param("split_more") },
        hands: k.param("hands"),
        of_hands: Shares { each: k.param("hand_each"), more: k.param("hand_more") },
        hands_of_block: k.param("hands_of_block"),
        shared_stages: k.param("shared_stages"),
        sharing_blocks: k.param("sharing_blocks"),
        of_blocks: Shares { each: k.param("block_each"), more: k.param("block_more") },
        x_rows: k.param_pointer("x_rows"),
        x_pitch: k.param("x_pitch"),
        w_rows: k.param_pointer("w_rows"),
        w_pitch: k.param("w_pitch"),
    };
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);
    let ring = Pipeline::new(k, shared.at(map.barriers), STAGES, STAGES);
    let (warp, lane) = (k.warp_index(), k.lane());
    let [sharers, nth] = [0, 1].map(|dimension| k.block_index(dimension));
    let first_block = sharers * params.sharing_blocks;
    let first_stage = sharers * params.shared_stages;
    let [begin, end] = [nth, nth + 1].map(|nth| first_stage + params.of_blocks.begin(nth));
    let block = Block {
        k,
        cfg,
        params,
        map,
        shared,
        ring,
        warp,
        lane,
        first_block,
        block: first_block + nth,
        first_stage,
        begin,
        end,
    };

    k.if_(warp.eq(PRODUCER), || {
        k.if_(lane.eq(0), || {
            block.params.x.prefetch();
            block.params.w.prefetch();
            ring.init(1 + SPLITTERS, MATH_WARPS);
            (0..STAGES).for_each(|stage| block.landed(k.constant(stage)).init(1u32));
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    // Where rows are shared by blocks that have none else. A division would take longer than is gained.
    let of_one_tile = block.params.shared_stages.eq(block.params.k_blocks);
    k.if_(warp.ne(PRODUCER) & of_one_tile, || block.fetch_early());
    k.sync_threads();
    k.grid_dependency_wait();
    k.if_else(
        warp.lt(MATH_WARPS),
        || k.role("math", || block.multiply()),
        || {
            k.if_else(
                warp.eq(PRODUCER),
                || {
                    k.if_(k.elect(), || k.role("producer", || block.load()));
                    k.sync_warp();
                },
                || k.role("splitter", || block.split()),
            );
        },
    );
}

impl<'k> Block<'k, '_> {
    fn x(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.x).at(stage * self.cfg.x_bytes())
    }

    fn w(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.w).at(stage * self.cfg.w_bytes())
    }

    /// Ends a phase when W has arrived as FP32.
    fn landed(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.shared.at(self.map.landed).at(stage * MBarrier::BYTES))
    }

    /// What the sums of a stage are part of.
    fn unit(&self, stage: U32<'k>) -> Unit<'k> {
        let p = &self.params;
        let rows = stage / p.k_blocks;
        let first = rows * p.k_blocks;
        let split = p.of_splits.part_with(stage - first);
        let [begin, end] = [split, split + 1].map(|split| first + p.of_splits.begin(split));
        Unit { row: rows * BLOCK_M, split, begin, end }
    }

    /// The block that has a stage of the shared rows.
    fn with_stage(&self, stage: U32<'k>) -> U32<'k> {
        self.first_block + self.params.of_blocks.part_with(stage - self.first_stage)
    }

    /// The math warps ask for X of the first two stages, those that split W for W of these.
    fn fetch_early(&self) {
        let (k, p) = (self.k, &self.params);
        let [rows, nth] = [0, 1].map(|dimension| k.block_index(dimension));
        let first = nth * p.hands_of_block;
        let x = Rows { at: p.x_rows, pitch: p.x_pitch, count: p.rows };
        let w = Rows { at: p.w_rows, pitch: p.w_pitch, count: k.constant(self.cfg.columns) };
        k.if_else(
            self.warp.lt(MATH_WARPS),
            || {
                for block in [first, first + p.hands] {
                    let tile = (rows * BLOCK_M, BLOCK_M);
                    x.prefetch_lines(k, k.thread_index(), tile, [block, p.k_blocks], 1);
                }
            },
            || {
                let thread = k.thread_index() - (PRODUCER + 1) * WARP;
                for block in [first, first + p.hands] {
                    // Of the last block of K there may be one line only.
                    let lines = [block * W_LINES, p.k_blocks * W_LINES - (W_LINES - 1)];
                    w.prefetch_lines(k, thread, (k.constant(0), self.cfg.columns), lines, W_LINES);
                }
            },
        );
    }

    /// Where this block's first stage is.
    fn first_dealt(&self) -> Dealt<'k> {
        let (k, p) = (self.k, &self.params);
        let rows = self.begin / p.k_blocks;
        let nth = self.begin - rows * p.k_blocks;
        let hand = p.of_hands.part_with(nth);
        let block = hand + (nth - p.of_hands.begin(hand)) * p.hands;
        Dealt { row: k.var_from(rows * BLOCK_M), hand: k.var_from(hand), block: k.var_from(block) }
    }

    /// Moves on to the next.
    fn deal(&self, Dealt { row, hand, block }: &Dealt<'k>) {
        let p = &self.params;
        block.set(block.live() + p.hands);
        let has_all = block.live().ge(p.k_blocks);
        hand.set_if(has_all, hand.live() + 1);
        let ended = hand.live().eq(p.hands);
        row.set_if(ended, row.live() + BLOCK_M);
        hand.set_if(ended, 0);
        block.set_if(has_all, hand.live());
    }

    /// The thread that loads both operands.
    fn load(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let cursor = self.ring.writer();
        // X is read once.
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..LoadOptions::default() };
        let dealt = self.first_dealt();
        k.for_(self.begin, self.end, 1, |_| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let (landed, full) = (self.landed(stage), self.ring.full(stage));
            let column = dealt.block.live() * BLOCK_K;
            landed.arrive_expecting(cfg.w_bytes());
            p.w.load(&[column, k.constant(0), k.constant(0)], self.w(stage), landed, LoadOptions::default());
            full.arrive_expecting(cfg.x_bytes());
            p.x.load(&[column, dealt.row.get()], self.x(stage), full, once);
            cursor.advance();
            self.deal(&dealt);
        });
        k.launch_dependents();
    }

    /// A warp that writes the two parts of W over W, half a warp for each row.
    fn split(&self) {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let cursor = self.ring.reader();
        let row = (self.warp - (PRODUCER + 1)) * 2 + (lane >> 4);
        let nth = lane & 15;
        let from = row * W_ROW + nth * 16;
        // The lines are swizzled for the tensor core; four numbers are half of what is exchanged.
        let to = [0, 1].map(|part: u32| {
            let line = row * 2 + part;
            line * LINE + (((nth >> 1) ^ (line & 7)) << 4) + (nth & 1) * 8
        });
        // Rows that the four warps take at a time: a whole number of patterns.
        const ROWS: u32 = SPLITTERS * 2;
        k.for_(self.begin, self.end, 1, |_| {
            let stage = cursor.stage();
            self.landed(stage).wait(cursor.parity());
            let w = self.w(stage);
            let rows = (0..cfg.columns / ROWS).map(|turn| turn * ROWS * W_ROW);
            let numbers: Vec<[F32<'k>; 4]> = rows.clone().map(|row| w.at(from).at(row).load_vec()).collect();
            k.sync_warp();
            for (row, numbers) in rows.zip(numbers) {
                for (to, part) in to.into_iter().zip(self.parts(numbers)) {
                    w.at(to).at(row).store_vec(part);
                }
            }
            k.fence_async_shared();
            k.sync_warp();
            k.guard(lane.eq(0), || self.ring.full(stage).arrive());
            cursor.advance();
        });
    }

    /// The upper and the lower parts of four numbers, which are rounded to TF32.
    fn parts(&self, numbers: [F32<'k>; 4]) -> [[Val<'k, Bf16x2>; 2]; 2] {
        let numbers = numbers.map(|number| number.to_tf32().bitcast::<f32>());
        let pairs = [[numbers[0], numbers[1]], [numbers[2], numbers[3]]];
        let upper = pairs.map(|[a, b]| self.k.pack_bf16(a, b));
        let lower = [0, 1].map(|pair| {
            let (numbers, upper) = (pairs[pair], upper[pair].to_f32());
            // What is left where the upper part is infinite must be finite: of NaN and a number both give the number.
            let left = |i: usize| (numbers[i] - upper[i]).max(-LEFT).min(LEFT);
            self.k.pack_bf16(left(0), left(1))
        });
        [upper, lower]
    }

    /// A math warpgroup: 64 rows of every stage.
    fn multiply(&self) {
        let (k, cfg, p, lane) = (self.k, self.cfg, &self.params, self.lane);
        let gathering = WorkspaceReduce {
            k,
            workspace: p.room,
            threads: MATH_THREADS,
            thread: self.warp * WARP + lane,
            values: cfg.values(),
        };
        k.if_(p.sharing_blocks.gt(1), || gathering.warm(self.block));
        let sums = k.fragment::<f32>(cfg.columns as usize);
        let squares = [(); 4].map(|()| k.var(0.0f32));
        // Eight neighbouring lanes read the same part of eight rows, which the swizzle puts into different banks.
        let swizzled = ((lane >> 4) * 4) ^ (lane & 7);
        let parts = [0u32, 1, 2, 3].map(|part| self.square_row() * LINE + ((swizzled ^ part) << 4));
        let cursor = self.ring.reader();
        let stage = k.var_from(self.begin);
        k.while_(
            || stage.live().lt(self.end),
            || {
                let first = stage.get();
                let unit = self.unit(first);
                squares.iter().for_each(|square| square.set(0.0));
                let end = unit.end.min(self.end);
                k.do_while(|| {
                    cursor.wait_full();
                    self.multiply_stage(cursor.stage(), &sums, stage.live().ne(first));
                    let x = self.x(cursor.stage());
                    let words = parts.map(|part| x.at(part).load_vec::<Bf16x2, 4>());
                    words.into_iter().for_each(|words| square(words, &squares));
                    k.wgmma_wait(0);
                    k.sync_warp();
                    k.guard(lane.eq(0), || self.ring.empty(cursor.stage()).arrive());
                    cursor.advance();
                    stage.set(stage.live() + 1);
                    stage.live().lt(end)
                });
                let values = self.values(&sums, &squares);
                let whole = unit.begin.ge(self.begin) & unit.end.le(self.end);
                k.if_else(
                    whole,
                    || self.store(&unit, &values),
                    || {
                        let (first, last) = (self.with_stage(unit.begin), self.with_stage(unit.end - 1));
                        let blocks = Contributors { first, last, own: self.block };
                        gathering.reduce(blocks, &values, |sums| self.store(&unit, &sums));
                    },
                );
            },
        );
        self.clear_splits();
    }

    /// Begins the products of a stage.
    fn multiply_stage(&self, stage: U32<'k>, sums: &[Var<'k, f32>], accumulate: Pred<'k>) {
        let (k, types) = (self.k, MmaType::Bf16);
        let x = self.x(stage).at((self.warp >> 2) * (64 * LINE));
        let [x, w] = [x, self.w(stage)].map(|tile| Descriptor::k_major(tile, Swizzle::B128));
        k.wgmma_fence();
        for step in 0..BLOCK_K / types.k() {
            let along = step * types.k() * 2;
            let accumulate = if step == 0 { accumulate } else { k.constant(true) };
            let a = MatrixA::Shared(x.advance(along));
            k.wgmma(types, sums, a, w.advance(along), (Major::K, Major::K), accumulate);
        }
        k.wgmma_commit();
    }

    /// The row whose squares a thread adds up, half of them; the other half are those of the lane 16 further on.
    fn square_row(&self) -> U32<'k> {
        self.warp * 16 + (self.lane & 15)
    }

    /// What this thread has of the sums: its columns of two rows, and the squares of a row.
    fn values(&self, sums: &[Var<'k, f32>], squares: &[Var<'k, f32>; 4]) -> Vec<F32<'k>> {
        // Neighbours are the products with the two parts of the same number.
        let products = sums.as_chunks::<2>().0.iter().map(|[upper, lower]| upper.live() + lower.live());
        let [a, b, c, d] = squares.map(|square| square.live());
        let square = (a + b) + (c + d);
        let square = square + self.k.shuffle(Shuffle::Xor, square, 16u32);
        products.chain([square]).collect()
    }

    /// Writes the sums of a unit.
    fn store(&self, unit: &Unit<'k>, values: &[F32<'k>]) {
        let (k, p, lane) = (self.k, &self.params, self.lane);
        let (square, products) = values.split_last().expect("a thread has squares");
        let split = p.d.at(unit.split.to_u64() * p.d_split * 4u64);
        let aligned = (p.d.address() | (p.d_split * 4u64) | p.d_pitch.widening_mul(4)) & 7u64;
        for lower in 0..2u32 {
            let row = unit.row + self.warp * 16 + (lane >> 2) + lower * 8;
            let column = lane % QUAD * self.cfg.run();
            let to = split.at((row.widening_mul(p.d_pitch) + column.to_u64()) * 4u64);
            let own: Vec<F32> = products.iter().skip(lower as usize).step_by(2).copied().collect();
            let exists = row.lt(p.rows);
            let pairs = || {
                for (nth, pair) in (0u64..).zip(own.as_chunks::<2>().0) {
                    k.guard(exists, || to.at(nth * 8).store_vec(*pair));
                }
            };
            let ones = || {
                for (nth, one) in (0u64..).zip(&own) {
                    k.guard(exists, || to.at(nth * 4).store(*one));
                }
            };
            k.if_else(aligned.eq(0u64), pairs, ones);
        }
        let row = unit.row + self.square_row();
        let to = p.squares.at((unit.split.widening_mul(p.rows) + row.to_u64()) * 4u64);
        k.guard(row.lt(p.rows) & lane.lt(16), || to.store(*square));
    }

    /// Splits that have no part of K are zeros.
    fn clear_splits(&self) {
        let (k, p) = (self.k, &self.params);
        let blocks = k.grid_blocks(0) * k.grid_blocks(1);
        k.for_(p.k_blocks + self.block, p.splits, blocks, |split| {
            k.for_(self.warp * WARP + self.lane, p.rows, MATH_THREADS, |row| {
                let in_d = split.to_u64() * p.d_split + row.widening_mul(p.d_pitch);
                for column in 0..self.cfg.columns {
                    p.d.at(in_d * 4u64).at(u64::from(column * 4)).store(0.0f32);
                }
                p.squares.at((split.widening_mul(p.rows) + row.to_u64()) * 4u64).store(0.0f32);
            });
        });
        k.sync_warp();
    }
}

/// Adds the squares of eight neighbours.
fn square<'k>(words: [Val<'k, Bf16x2>; 4], squares: &[Var<'k, f32>; 4]) {
    for (word, square) in words.into_iter().zip(squares) {
        word.to_f32().into_iter().for_each(|x| square.fma(x, x));
    }
}
