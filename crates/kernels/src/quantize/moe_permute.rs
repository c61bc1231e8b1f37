//! MoE permutation and unpermutation.
//!
//! The permutation gives each choice of an expert a row: rows are sorted by expert, and within one by token. A CTA has
//! 1024 choices and does not communicate with others. It counts all choices of each expert, and those that come before
//! its own, which is cheap beside the cost of a launch; a prefix sum over the experts, rounded up, gives the first row
//! of each. Its warps then take rows in order, and so do the lanes of one expert: the result depends on nothing but the
//! choices.
//!
//! The unpermutation adds the rows of a token's choices, each with its weight, in the order of the choices. A gather is
//! the same with one choice, of no weight.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Ptr, Scope, Shared, U32};

use super::params::{Args, Flags, Launch, Params, by_access};
use super::vec8::{Access, Input, Mask, VEC8, Vec8};
use crate::common::WARP;
use crate::common::fast_divmod::FastDivmod;

pub(super) const PERMUTE: &str = "moe_permute";
pub(super) const UNPERMUTE: &str = "moe_unpermute_bf16";
/// Threads of a CTA of the permutation.
pub const THREADS: u32 = 1024;
/// Most experts: one for each thread.
pub const MAX_EXPERTS: u32 = THREADS;
/// Threads of a CTA of the unpermutation.
pub const UNPERMUTE_THREADS: u32 = 128;
/// Rows in flight.
const ROWS: u32 = 8;
const WARPS: u32 = THREADS / WARP;
/// Value for no token, no group, no row.
const NONE: u32 = u32::MAX;

/// Arguments of the permutation.
#[derive(Clone, Copy, Debug)]
pub struct PermuteArgs {
    /// Address of the chosen expert ids.
    pub ids: u64,
    /// Number of choices.
    pub choices: u32,
    /// Choices of a token.
    pub top_k: u32,
    /// Number of experts.
    pub experts: u32,
    /// Alignment of a group's first row, as a power of two.
    pub alignment_shift: u32,
    /// Capacity in rows.
    pub rows: u32,
    /// Address of each row's token.
    pub tokens: u64,
    /// Address of each row's group.
    pub groups: u64,
    /// Address of each group's end.
    pub ends: u64,
    /// Address of each choice's row.
    pub places: u64,
}

impl PermuteArgs {
    /// Launch shape, and the kernel's arguments.
    pub fn launch(&self) -> (Launch, Args) {
        let args = Args {
            x: self.ids,
            codes: self.tokens,
            scales: self.groups,
            aux: self.ends,
            group_stride: self.places,
            dims: [self.choices, self.rows],
            shifts: [self.alignment_shift, 0],
            source_rows: self.experts,
            items_per_row: FastDivmod::new(self.top_k),
            ..Args::default()
        };
        let grid = [self.choices.div_ceil(THREADS).max(1), 1];
        (Launch { grid, threads: THREADS, shared_bytes: SmemCounters::BYTES }, args)
    }
}

/// Launch shape of the unpermutation, and its arguments.
pub fn unpermute_launch(args: &Args) -> (Launch, Args) {
    let [tokens, columns] = args.dims;
    let across = columns.div_ceil(VEC8 * UNPERMUTE_THREADS);
    let launch = Launch { grid: [tokens * across, 1], threads: UNPERMUTE_THREADS, shared_bytes: 0 };
    (launch, Args { items_per_row: FastDivmod::new(across), ..*args })
}

/// Shared memory: two counters for each expert, one for each warp, and one.
struct SmemCounters<'k> {
    base: Shared<'k>,
}

impl<'k> SmemCounters<'k> {
    const BYTES: u32 = 4 * (2 * MAX_EXPERTS + WARPS + 1);

    /// Number of an expert's choices.
    fn all(&self, expert: U32<'k>) -> Shared<'k> {
        self.base.at(expert * 4)
    }

    /// Number of its choices before the CTA's; then the row of its next choice.
    fn next(&self, expert: U32<'k>) -> Shared<'k> {
        self.base.at(expert * 4 + 4 * MAX_EXPERTS)
    }

    /// Rows of a warp's experts; then those of the warps before.
    fn of_warp(&self, warp: U32<'k>) -> Shared<'k> {
        self.base.at(warp * 4 + 8 * MAX_EXPERTS)
    }

    /// Rows of all experts.
    fn rows(&self) -> Shared<'k> {
        self.base.at(8 * MAX_EXPERTS + 4 * WARPS)
    }
}

pub(super) fn permute<'k>(k: &'k Kernel, p: &Params<'k>) {
    let (choices, capacity, experts) = (p.rows, p.columns, p.source_rows);
    let counters = SmemCounters { base: k.dynamic_shared() };
    let (thread, cta) = (k.thread_index(), k.block_index(0));
    let first = cta * THREADS;

    k.guard(thread.lt(experts), || counters.all(thread).store(0u32));
    k.guard(thread.lt(experts), || counters.next(thread).store(0u32));
    k.sync_threads();
    k.for_(thread, choices, THREADS, |i| {
        let id: U32 = p.x.at(i.widening_mul(4)).load_readonly();
        // As an unsigned number, a negative id is too large.
        k.guard(id.lt(experts), || counters.all(id).reduce(AtomicOp::Add, 1u32, Scope::Cta));
        k.guard(id.lt(experts) & i.lt(first), || counters.next(id).reduce(AtomicOp::Add, 1u32, Scope::Cta));
    });
    // Lanes leave the loop one by one: reconverge.
    k.sync_warp();
    k.sync_threads();

    // One thread for each expert.
    let exists = thread.lt(experts);
    let count = counters.all(thread).load_if(exists, 0u32);
    let unit = k.constant(1) << p.shifts()[0];
    let padded = ((count + unit - 1) >> p.shifts()[0]) << p.shifts()[0];
    let start = exclusive_sum(k, &counters, padded);
    let before = counters.next(thread).load_if(exists, 0u32);
    k.guard(exists, || counters.next(thread).store(start + before));
    k.guard((thread + 1).eq(experts), || counters.rows().store(start + padded));
    let (end, rows) = (start + count, [p.codes, p.scales]);
    k.guard(exists & cta.eq(0), || p.aux.at(thread.widening_mul(4)).store(end.min(capacity)));
    let none = |row: U32<'k>| {
        for list in rows {
            k.guard(row.lt(capacity), || list.at(row.widening_mul(4)).store(NONE));
        }
    };
    // Padding of groups, and rows behind the last group, have no token.
    let is_owner = exists & (thread - thread / k.grid_blocks(0) * k.grid_blocks(0)).eq(cta);
    k.for_(end, is_owner.select(start + padded, end), 1, none);
    k.sync_warp();
    k.sync_threads();
    let behind = counters.rows().load::<u32>();
    k.for_(behind + first + thread, capacity, k.grid_blocks(0) * THREADS, none);
    k.sync_warp();

    assign_rows(k, p, &counters, first + thread);
}

/// Assigns a row to each choice of the CTA.
fn assign_rows<'k>(k: &'k Kernel, p: &Params<'k>, counters: &SmemCounters<'k>, i: U32<'k>) {
    let (choices, capacity, experts) = (p.rows, p.columns, p.source_rows);
    let warp = k.thread_index() >> 5;
    let id = p.x.at(i.widening_mul(4)).load_readonly_if(i.lt(choices), NONE);
    let valid = id.lt(experts);
    let peers = match_any(k, id, valid);
    let earlier = (peers & ((k.constant(1) << k.lane()) - 1)).count_ones();
    let base = k.var(0u32);
    k.for_(0, WARPS, 1, |nth| {
        k.if_(warp.eq(nth), || {
            base.set(counters.next(id).load_if(valid, 0u32));
            k.sync_warp();
            let next = base.get() + peers.count_ones();
            k.guard(valid & earlier.eq(0), || counters.next(id).store(next));
        });
        k.sync_threads();
    });
    let row = base.get() + earlier;
    let fits = valid & row.lt(capacity);
    let at = |list: Global<'k>, index: U32<'k>| list.at(index.widening_mul(4));
    let [token, _] = p.divmod(i);
    k.guard(i.lt(choices), || at(Ptr::new(p.group_stride), i).store(fits.select(row, NONE)));
    k.guard(fits, || at(p.codes, row).store(token));
    k.guard(fits, || at(p.scales, row).store(id));
}

/// Mask of the lanes with the same expert (`match.any`); undefined for lanes without one.
#[track_caller]
fn match_any<'k>(k: &'k Kernel, id: U32<'k>, valid: oxigemm_ptx::Pred<'k>) -> U32<'k> {
    (0..MAX_EXPERTS.trailing_zeros()).fold(k.ballot(valid), |alike, bit| {
        let set = ((id >> bit) & 1).ne(0);
        let with = k.ballot(set);
        alike & set.select(with, with ^ NONE)
    })
}

/// Exclusive prefix sum over the CTA.
#[track_caller]
fn exclusive_sum<'k>(k: &'k Kernel, counters: &SmemCounters<'k>, value: U32<'k>) -> U32<'k> {
    let (lane, warp) = (k.lane(), k.thread_index() >> 5);
    let inclusive = |value: U32<'k>| {
        let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
        steps.fold(value, |sum, step| {
            let before = k.shuffle(Shuffle::Up, sum, step);
            sum + lane.ge(step).select(before, 0)
        })
    };
    let of_warp = inclusive(value);
    k.guard(lane.eq(WARP - 1), || counters.of_warp(warp).store(of_warp));
    k.sync_threads();
    k.if_(warp.eq(0), || {
        let own: U32 = counters.of_warp(lane).load();
        let sum = inclusive(own);
        k.sync_warp();
        counters.of_warp(lane).store(sum - own);
    });
    k.sync_threads();
    counters.of_warp(warp).load::<u32>() + of_warp - value
}

pub(super) fn unpermute<'k>(k: &'k Kernel, p: &Params<'k>) {
    by_access(k, p, |access| add_rows(k, p, access));
}

/// Weighted sum of a token's rows. `x` are the rows, `codes` the tokens, `aux` the row of each choice and `scales` the
/// weights; `source_rows` rows exist, and a token has `shifts[0]` choices.
fn add_rows<'k>(k: &'k Kernel, p: &Params<'k>, access: Access) {
    let [token, part_of_row] = p.divmod(k.block_index(0));
    let column = (part_of_row * UNPERMUTE_THREADS + k.thread_index()) * VEC8;
    let top_k = p.shifts()[0];
    let bytes = Input::Bf16.bytes();
    let sums: Vec<_> = (0..VEC8).map(|_| k.var(0f32)).collect();
    let first = token.widening_mul(top_k);
    let unweighted = p.has(Flags::UNWEIGHTED);
    // 0 where the token is to stay as it is.
    let is_stored = k.var_from(p.has(Flags::CHOSEN_ONLY).select(0, k.constant(1)));
    k.for_(0, top_k, ROWS, |first_choice| {
        let rows: Vec<(F32, Vec8)> = (0..ROWS)
            .map(|i| {
                let choice = first_choice + i;
                let at = (first + choice.to_u64()) * 4u64;
                let row = p.aux.at(at).load_readonly_if(choice.lt(top_k), NONE);
                let exists = row.lt(p.source_rows);
                is_stored.set_if(exists, 1);
                let weight = p.scales.at(at).load_readonly_if(exists & !unweighted, 0f32);
                let weight = unweighted.select(1f32, weight);
                let mask = Mask::of(access, exists, column, p.columns);
                (weight, Vec8::load(k, Input::Bf16, p.x_at(row, column, bytes), &mask, Some(p.evict_first)))
            })
            .collect();
        for (weight, row) in &rows {
            for (sum, value) in sums.iter().zip(row.values()) {
                sum.fma(value, *weight);
            }
        }
    });
    let mask = Mask::of(access, is_stored.get().ne(0), column, p.columns);
    let to = p.codes.at((token.widening_mul(p.codes_pitch) + column.to_u64()) * u64::from(bytes));
    let values: Vec<F32> = sums.iter().map(|sum| sum.get()).collect();
    Input::Bf16.store(k, &values, to, &mask, p.evict_last);
}
