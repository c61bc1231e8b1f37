//! Rows for the GEMMs of a rank's experts, from the buffers of all ranks: a gather whose source is many memories. A CTA
//! has a row at a time. Rows that only round an expert up become zeros; those behind the last expert stay as they are.
//! Without a buffer it is a gather of rows of this device, with their scales.

use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::{Global, Kernel, Pred, Ptr, Scope, U32};

use super::buffer::{Buffer, Trouble};
use super::{NONE, THREADS};
use crate::common::fast_divmod::FastDivmod;
use crate::common::params::kernel_params;

/// Bytes of a vector.
const VECTOR: u32 = 16;
/// Vectors of a thread that are under way at once.
const VECTORS: u32 = 4;

/// Arguments of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Address of this rank's buffer, or 0.
    pub own: u64,
    /// Offset of tokens in a buffer, or their address where there is none.
    pub x: u64,
    /// The same of their scales.
    pub scales: u64,
    /// Bytes of a row: a multiple of 16.
    pub row_bytes: u32,
    /// Scales of a row.
    pub row_scales: u32,
    /// Most tokens of a rank.
    pub tokens: FastDivmod,
    /// Address of the token of each row, by the number among the tokens of all ranks.
    pub rows: u64,
    /// Number of rows.
    pub row_count: u32,
    /// Address of the end of each expert.
    pub ends: u64,
    /// Number of experts.
    pub experts: u32,
    /// Rows of an expert begin at multiples of this, as a power of two.
    pub alignment_shift: u32,
    /// 1 where [`row_count`](Self::row_count) is not enough for every choice.
    pub limited: u32,
    /// Address of numbers to which the rows of each expert are added, or 0.
    pub counts: u64,
    /// Where rows go.
    pub to: u64,
    /// Where scales go: `[row_scales, row_count]`.
    pub to_scales: u64,
}

kernel_params! {
    struct Params from Args {
        own: Pointer = own,
        x: U64 = x,
        scales: U64 = scales,
        row_bytes: U32 = row_bytes,
        row_scales: U32 = row_scales,
        tokens: U32 = tokens.value,
        tokens_factor: U32 = tokens.factor,
        tokens_shift: U32 = tokens.shift,
        rows: Pointer = rows,
        row_count: U32 = row_count,
        ends: Pointer = ends,
        experts: U32 = experts,
        alignment_shift: U32 = alignment_shift,
        limited: U32 = limited,
        counts: Pointer = counts,
        to: Pointer = to,
        to_scales: Pointer = to_scales,
    }
}

pub(super) fn write(k: &Kernel) {
    let p = &Params::declare(k, "");
    let end = end_of(p, p.experts - 1);
    k.if_(k.block_index(0).eq(0), || {
        count(k, p);
        let is_full = p.limited.ne(0) & end.ge(p.row_count);
        k.guard(is_full & k.thread_index().eq(0), || {
            Buffer(p.own).status().reduce(AtomicOp::Min, Trouble::FULL, Scope::Sys);
        });
    });
    let end = round_up(k, p, end).min(p.row_count);
    k.for_(k.block_index(0), end, k.grid_blocks(0), |row| pull(k, p, row));
}

/// Where an expert ends.
#[track_caller]
fn end_of<'k>(p: &Params<'k>, expert: U32<'k>) -> U32<'k> {
    p.ends.at(expert.widening_mul(4)).load_readonly()
}

#[track_caller]
fn round_up<'k>(k: &'k Kernel, p: &Params<'k>, row: U32<'k>) -> U32<'k> {
    let unit = k.constant(1) << p.alignment_shift;
    ((row + unit - 1) >> p.alignment_shift) << p.alignment_shift
}

/// Adds the rows of each expert to the counts.
fn count<'k>(k: &'k Kernel, p: &Params<'k>) {
    k.if_(p.counts.address().ne(0), || {
        k.for_(k.thread_index(), p.experts, THREADS, |expert| {
            let before = p.ends.at((expert.max(1) - 1).widening_mul(4)).load_readonly::<u32>();
            let start = expert.eq(0).select(0, round_up(k, p, before));
            let to = p.counts.at(expert.widening_mul(4));
            to.store(to.load::<u32>() + (end_of(p, expert) - start));
        });
    });
}

/// Fetches a row and its scales.
fn pull<'k>(k: &'k Kernel, p: &Params<'k>, row: U32<'k>) {
    let of_all = p.rows.at(row.widening_mul(4)).load_readonly::<u32>();
    let exists = of_all.ne(NONE);
    let of_all = exists.select(of_all, 0);
    let rank = (of_all.widening_mul(p.tokens_factor) >> p.tokens_shift).to_u32();
    let token = of_all - rank * p.tokens;
    let peer = p.own.at(rank.widening_mul(8));
    let theirs: Global = Ptr::new(peer.load_readonly_if(p.own.address().ne(0), 0u64));
    let from = theirs.at(p.x).at(token.widening_mul(p.row_bytes));
    copy_row(k, exists, [from, p.to.at(row.widening_mul(p.row_bytes))], p.row_bytes);
    let scales = theirs.at(p.scales).at(token.widening_mul(p.row_scales) * 4u64);
    k.for_(k.thread_index(), p.row_scales, THREADS, |i| {
        let scale = scales.at(i.widening_mul(4)).load_if(exists, 0f32);
        let at = i.widening_mul(p.row_count) + row.to_u64();
        p.to_scales.at(at * 4u64).store(scale);
    });
}

/// The CTA copies a row, or clears it where there is none.
pub(super) fn copy_row<'k>(k: &'k Kernel, exists: Pred<'k>, [from, to]: [Global<'k>; 2], row_bytes: U32<'k>) {
    const STEP: u32 = THREADS * VECTOR;
    k.for_(k.thread_index() * VECTOR, row_bytes, STEP * VECTORS, |first| {
        let offsets = (0..VECTORS).map(|i| first + i * STEP);
        let vectors: Vec<_> = offsets
            .map(|offset| {
                let inside = offset.lt(row_bytes);
                let at = offset.to_u64();
                (inside, at, from.at(at).load_readonly_vec_if::<u32, 4>(inside & exists, 0, None))
            })
            .collect();
        for (inside, at, vector) in vectors {
            k.guard(inside, || to.at(at).store_vec(vector));
        }
    });
}
