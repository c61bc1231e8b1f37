//! The sum of what all ranks computed for a token, in the order of ranks. Only ranks with one of its experts are read.
//! A thread has eight columns of a token.

use oxigemm_ptx::tma::Eviction;
use oxigemm_ptx::{F32, Kernel, Ptr, U32};

use super::THREADS;
use super::buffer::{Buffer, MAX_RANKS};
use crate::common::fast_divmod::FastDivmod;
use crate::common::params::kernel_params;
use crate::quantize::vec8::{Input, Mask, VEC8, Vec8};

/// Ranks whose sums are under way at once.
const AT_ONCE: u32 = 8;

/// Arguments of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Address of this rank's buffer.
    pub own: u64,
    /// Offset of the ids in a buffer.
    pub ids: u64,
    /// Offset of the sums in a buffer.
    pub sums: u64,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Most tokens of a rank.
    pub tokens: u32,
    /// Choices of a token.
    pub top_k: u32,
    /// Experts of a rank.
    pub experts: FastDivmod,
    /// Columns: a multiple of 8.
    pub columns: u32,
    /// CTAs of a token.
    pub across: FastDivmod,
    /// Address of the result, `[T, columns]` BF16.
    pub out: u64,
    /// Elements from one row of it to the next: a multiple of 8.
    pub out_pitch: u32,
}

impl Args {
    /// CTAs of a token with so many columns.
    pub fn across(columns: u32) -> FastDivmod {
        FastDivmod::new(columns.div_ceil(VEC8 * THREADS))
    }
}

kernel_params! {
    struct Params from Args {
        own: Pointer = own,
        ids: U64 = ids,
        sums: U64 = sums,
        rank: U32 = rank,
        ranks: U32 = ranks,
        tokens: U32 = tokens,
        top_k: U32 = top_k,
        experts_factor: U32 = experts.factor,
        experts_shift: U32 = experts.shift,
        columns: U32 = columns,
        across: U32 = across.value,
        across_factor: U32 = across.factor,
        across_shift: U32 = across.shift,
        out: Pointer = out,
        out_pitch: U32 = out_pitch,
    }
}

pub(super) fn write(k: &Kernel) {
    let p = &Params::declare(k, "");
    let token = (k.block_index(0).widening_mul(p.across_factor) >> p.across_shift).to_u32();
    let part = k.block_index(0) - token * p.across;
    let column = (part * THREADS + k.thread_index()) * VEC8;
    let owners = owners(k, p, token);
    let row = p.rank * p.tokens + token;
    let offset = (row.widening_mul(p.columns) + column.to_u64()) * 2u64 + p.sums;
    let sums: Vec<_> = (0..VEC8).map(|_| k.var(0f32)).collect();
    k.for_(0, p.ranks, AT_ONCE, |first| {
        let parts: Vec<Vec8> = (0..AT_ONCE)
            .map(|i| {
                let rank = first + i;
                let exists = rank.lt(p.ranks) & ((owners >> rank.min(MAX_RANKS - 1)) & 1).ne(0);
                let theirs = p.own.at(rank.min(p.ranks - 1).widening_mul(8)).load_readonly::<u64>();
                let mask = Mask::Vector { inside: exists & column.lt(p.columns) };
                Vec8::load(k, Input::Bf16, Ptr::new(theirs + offset), &mask, None)
            })
            .collect();
        for part in &parts {
            for (sum, value) in sums.iter().zip(part.values()) {
                sum.set(sum.get() + value);
            }
        }
    });
    let values: Vec<F32> = sums.iter().map(|sum| sum.get()).collect();
    let mask = Mask::Vector { inside: column.lt(p.columns) };
    let to = p.out.at((token.widening_mul(p.out_pitch) + column.to_u64()) * 2u64);
    Input::Bf16.store(k, &values, to, &mask, k.cache_policy(Eviction::Last));
}

/// A bit for each rank that has an expert of a token.
fn owners<'k>(k: &'k Kernel, p: &Params<'k>, token: U32<'k>) -> U32<'k> {
    let owners = k.var(0u32);
    let first = token.widening_mul(p.top_k);
    k.for_(0, p.top_k, 1, |choice| {
        let at = (first + choice.to_u64()) * 8u64 + p.ids;
        let [low, high] = Buffer(p.own).0.at(at).load_readonly_vec::<u32, 2>();
        let rank = (low.widening_mul(p.experts_factor) >> p.experts_shift).to_u32();
        let exists = high.eq(0) & low.lt(1 << 31) & rank.lt(p.ranks);
        let bit = k.constant(1) << rank.min(MAX_RANKS - 1);
        owners.set(owners.get() | exists.select(bit, 0));
    });
    Buffer(p.own).is_broken().select(0, owners.get())
}
