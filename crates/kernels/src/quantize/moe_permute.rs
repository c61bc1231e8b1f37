//! Tokens to the places of their experts, and back.
//!
//! `PERMUTE` tells where each choice of an expert goes: rows are sorted by expert, and within one by token. A block has 1024 choices
//! and talks to no other. It counts all choices of each expert, and those that come before its own, which is cheap beside
//! what a launch costs; a prefix sum over the experts, rounded up, gives where each begins. Its warps then take places
//! one after another, and lanes of one expert in their order, so that the result depends on nothing but the choices.
//!
//! `UNPERMUTE` adds the rows that a token's choices became, each with its weight, in the order of the choices.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Ptr, Scope, Shared, U32};

use super::by_access;
use super::params::{Args, Divisor, Launch, Params};
use super::vec8::{Access, CHUNK, Chunk, Input, Part};
use crate::common::WARP;

pub(super) const PERMUTE: &str = "moe_permute";
pub(super) const UNPERMUTE: &str = "moe_unpermute_bf16";
/// Threads of a block that permutes.
pub const THREADS: u32 = 1024;
/// The most experts: one for each thread.
pub const MOST_EXPERTS: u32 = THREADS;
/// Threads of a block that adds rows.
pub const UNPERMUTE_THREADS: u32 = 128;
/// Rows that are in flight at a time.
const ROWS: u32 = 8;
const WARPS: u32 = THREADS / WARP;
/// What is written where there is no row, no group, no place.
const NONE: u32 = u32::MAX;

/// What the arguments are for a kernel that permutes.
#[derive(Clone, Copy, Debug)]
pub struct PermuteArgs {
    /// Address of the choices.
    pub ids: u64,
    /// How many there are.
    pub choices: u32,
    /// How many a token has.
    pub of_token: u32,
    /// How many experts there are.
    pub experts: u32,
    /// A group begins at a multiple of this power of two.
    pub alignment_shift: u32,
    /// How many rows there is room for.
    pub rows: u32,
    /// Address of the token of each row.
    pub tokens: u64,
    /// Address of the group of each row.
    pub groups: u64,
    /// Address of the end of each group.
    pub ends: u64,
    /// Address of the place of each choice.
    pub places: u64,
}

impl PermuteArgs {
    /// The launch, and the arguments of the kernel.
    pub fn launch(&self) -> (Launch, Args) {
        let args = Args {
            x: self.ids,
            codes: self.tokens,
            scales: self.groups,
            from: self.ends,
            group_stride: self.places,
            dims: [self.choices, self.rows],
            shifts: [self.alignment_shift, 0],
            source_rows: self.experts,
            across: Divisor::new(self.of_token),
            ..Args::default()
        };
        let grid = [self.choices.div_ceil(THREADS).max(1), 1];
        (Launch { grid, threads: THREADS, shared_bytes: Lists::BYTES }, args)
    }
}

/// The launch that adds rows of `columns`, and the arguments that go with it.
pub fn unpermute_launch(args: &Args) -> (Launch, Args) {
    let [tokens, columns] = args.dims;
    let across = columns.div_ceil(CHUNK * UNPERMUTE_THREADS);
    let launch = Launch { grid: [tokens * across, 1], threads: UNPERMUTE_THREADS, shared_bytes: 0 };
    (launch, Args { across: Divisor::new(across), ..*args })
}

/// Shared memory: two numbers for each expert, one for each warp, and one.
struct Lists<'k> {
    base: Shared<'k>,
}

impl<'k> Lists<'k> {
    const BYTES: u32 = 4 * (2 * MOST_EXPERTS + WARPS + 1);

    /// All choices of an expert.
    fn all(&self, expert: U32<'k>) -> Shared<'k> {
        self.base.at(expert * 4)
    }

    /// Choices of it before the block's; then the place of the next.
    fn next(&self, expert: U32<'k>) -> Shared<'k> {
        self.base.at(expert * 4 + 4 * MOST_EXPERTS)
    }

    /// Rows of the experts of a warp; then of the warps before.
    fn of_warp(&self, warp: U32<'k>) -> Shared<'k> {
        self.base.at(warp * 4 + 8 * MOST_EXPERTS)
    }

    /// Rows of all experts.
    fn rows(&self) -> Shared<'k> {
        self.base.at(8 * MOST_EXPERTS + 4 * WARPS)
    }
}

pub(super) fn permute<'k>(k: &'k Kernel, p: &Params<'k>) {
    let (choices, capacity, experts) = (p.rows, p.columns, p.source_rows);
    let lists = Lists { base: k.dynamic_shared() };
    let (thread, block) = (k.thread_index(), k.block_index(0));
    let first = block * THREADS;

    k.guard(thread.lt(experts), || lists.all(thread).store(0u32));
    k.guard(thread.lt(experts), || lists.next(thread).store(0u32));
    k.sync_threads();
    k.for_(thread, choices, THREADS, |i| {
        let id: U32 = p.x.at(i.widening_mul(4)).load_readonly();
        // A negative number is a large one.
        k.guard(id.lt(experts), || lists.all(id).reduce(AtomicOp::Add, 1u32, Scope::Cta));
        k.guard(id.lt(experts) & i.lt(first), || lists.next(id).reduce(AtomicOp::Add, 1u32, Scope::Cta));
    });
    // Lanes leave such a loop one by one, and what follows wants all of them.
    k.sync_warp();
    k.sync_threads();

    // Each thread has an expert.
    let exists = thread.lt(experts);
    let count = lists.all(thread).load_if(exists, 0u32);
    let unit = k.constant(1) << p.shifts[0];
    let padded = ((count + unit - 1) >> p.shifts[0]) << p.shifts[0];
    let start = exclusive_sum(k, &lists, padded);
    let before = lists.next(thread).load_if(exists, 0u32);
    k.guard(exists, || lists.next(thread).store(start + before));
    k.guard((thread + 1).eq(experts), || lists.rows().store(start + padded));
    let (end, rows) = (start + count, [p.codes, p.scales]);
    k.guard(exists & block.eq(0), || p.from.at(thread.widening_mul(4)).store(end.min(capacity)));
    let none = |row: U32<'k>| {
        for list in rows {
            k.guard(row.lt(capacity), || list.at(row.widening_mul(4)).store(NONE));
        }
    };
    // What a group is rounded up by, and what is behind the last one, are rows of nobody.
    let mine = exists & (thread - thread / k.grid_blocks(0) * k.grid_blocks(0)).eq(block);
    k.for_(end, mine.select(start + padded, end), 1, none);
    k.sync_warp();
    k.sync_threads();
    let behind = lists.rows().load::<u32>();
    k.for_(behind + first + thread, capacity, k.grid_blocks(0) * THREADS, none);
    k.sync_warp();

    take_places(k, p, &lists, first + thread);
}

/// Takes a place for each choice of the block.
fn take_places<'k>(k: &'k Kernel, p: &Params<'k>, lists: &Lists<'k>, i: U32<'k>) {
    let (choices, capacity, experts) = (p.rows, p.columns, p.source_rows);
    let warp = k.thread_index() >> 5;
    let id = p.x.at(i.widening_mul(4)).load_readonly_if(i.lt(choices), NONE);
    let valid = id.lt(experts);
    let peers = lanes_alike(k, id, valid);
    let earlier = (peers & ((k.constant(1) << k.lane()) - 1)).count_ones();
    let base = k.var(0u32);
    k.for_(0, WARPS, 1, |turn| {
        k.if_(warp.eq(turn), || {
            base.set(lists.next(id).load_if(valid, 0u32));
            k.sync_warp();
            let next = base.get() + peers.count_ones();
            k.guard(valid & earlier.eq(0), || lists.next(id).store(next));
        });
        k.sync_threads();
    });
    let place = base.get() + earlier;
    let fits = valid & place.lt(capacity);
    let at = |list: Global<'k>, index: U32<'k>| list.at(index.widening_mul(4));
    let [token, _] = p.split(i);
    k.guard(i.lt(choices), || at(Ptr::new(p.group_stride), i).store(fits.select(place, NONE)));
    k.guard(fits, || at(p.codes, place).store(token));
    k.guard(fits, || at(p.scales, place).store(id));
}

/// A bit for each lane that has the same expert; of lanes without one it means nothing.
#[track_caller]
fn lanes_alike<'k>(k: &'k Kernel, id: U32<'k>, valid: oxigemm_ptx::Pred<'k>) -> U32<'k> {
    (0..MOST_EXPERTS.trailing_zeros()).fold(k.ballot(valid), |alike, bit| {
        let set = ((id >> bit) & 1).ne(0);
        let with = k.ballot(set);
        alike & set.select(with, with ^ NONE)
    })
}

/// The sum of the threads before.
#[track_caller]
fn exclusive_sum<'k>(k: &'k Kernel, lists: &Lists<'k>, value: U32<'k>) -> U32<'k> {
    let (lane, warp) = (k.lane(), k.thread_index() >> 5);
    let inclusive = |value: U32<'k>| {
        let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
        steps.fold(value, |sum, step| {
            let before = k.shuffle(Shuffle::Up, sum, step);
            sum + lane.ge(step).select(before, 0)
        })
    };
    let of_warp = inclusive(value);
    k.guard(lane.eq(WARP - 1), || lists.of_warp(warp).store(of_warp));
    k.sync_threads();
    k.if_(warp.eq(0), || {
        let own: U32 = lists.of_warp(lane).load();
        let sum = inclusive(own);
        k.sync_warp();
        lists.of_warp(lane).store(sum - own);
    });
    k.sync_threads();
    lists.of_warp(warp).load::<u32>() + of_warp - value
}

pub(super) fn unpermute<'k>(k: &'k Kernel, p: &Params<'k>) {
    by_access(k, p, |access| add_rows(k, p, access));
}

/// `x` are the rows, `codes` the tokens, `from` the places and `scales` the weights; `source_rows` rows exist, and a
/// token has `shifts[0]` choices.
fn add_rows<'k>(k: &'k Kernel, p: &Params<'k>, access: Access) {
    let [token, part_of_row] = p.split(k.block_index(0));
    let column = (part_of_row * UNPERMUTE_THREADS + k.thread_index()) * CHUNK;
    let of_token = p.shifts[0];
    let bytes = Input::Bf16.bytes();
    let sums: Vec<_> = (0..CHUNK).map(|_| k.var(0f32)).collect();
    let first = token.widening_mul(of_token);
    k.for_(0, of_token, ROWS, |round| {
        let rows: Vec<(F32, Chunk)> = (0..ROWS)
            .map(|i| {
                let choice = round + i;
                let at = (first + choice.to_u64()) * 4u64;
                let place = p.from.at(at).load_readonly_if(choice.lt(of_token), NONE);
                let exists = place.lt(p.source_rows);
                let weight = p.scales.at(at).load_readonly_if(exists, 0f32);
                let part = Part::of(access, exists, column, p.columns);
                (weight, Chunk::load(k, Input::Bf16, p.x_at(place, column, bytes), &part, Some(p.read_once)))
            })
            .collect();
        for (weight, row) in &rows {
            for (sum, value) in sums.iter().zip(row.values()) {
                sum.fma(value, *weight);
            }
        }
    });
    let part = Part::of(access, k.constant(true), column, p.columns);
    let to = p.codes.at((token.widening_mul(p.codes_pitch) + column.to_u64()) * u64::from(bytes));
    let values: Vec<F32> = sums.iter().map(|sum| sum.get()).collect();
    Input::Bf16.store(k, &values, to, &part, p.kept);
}
