//! Choices of all ranks' tokens: those that are experts of this rank, as numbers of its own, with their weights; all
//! others are none. A thread has a choice.

use oxigemm_ptx::Kernel;

use super::buffer::Buffer;
use super::{NONE, THREADS};
use crate::common::fast_divmod::FastDivmod;
use crate::common::params::kernel_params;

/// Arguments of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Address of this rank's buffer.
    pub own: u64,
    /// Offset of the ids in a buffer.
    pub ids: u64,
    /// Offset of the weights in a buffer.
    pub weights: u64,
    /// Choices of all ranks.
    pub choices: u32,
    /// Choices of a token.
    pub top_k: FastDivmod,
    /// Most tokens of a rank.
    pub tokens: FastDivmod,
    /// This rank's first expert.
    pub first_expert: u32,
    /// Its experts.
    pub experts: u32,
    /// Where ids go, i32.
    pub to_ids: u64,
    /// Where weights go.
    pub to_weights: u64,
}

impl Args {
    /// CTAs.
    pub fn ctas(&self) -> u32 {
        self.choices.div_ceil(THREADS)
    }
}

kernel_params! {
    struct Params from Args {
        own: Pointer = own,
        ids: U64 = ids,
        weights: U64 = weights,
        choices: U32 = choices,
        top_k: U32 = top_k.value,
        top_k_factor: U32 = top_k.factor,
        top_k_shift: U32 = top_k.shift,
        tokens: U32 = tokens.value,
        tokens_factor: U32 = tokens.factor,
        tokens_shift: U32 = tokens.shift,
        first_expert: U32 = first_expert,
        experts: U32 = experts,
        to_ids: Pointer = to_ids,
        to_weights: Pointer = to_weights,
    }
}

pub(super) fn write(k: &Kernel) {
    let p = &Params::declare(k, "");
    let i = k.block_index(0) * THREADS + k.thread_index();
    k.if_(i.lt(p.choices), || {
        let of_all = (i.widening_mul(p.top_k_factor) >> p.top_k_shift).to_u32();
        let rank = (of_all.widening_mul(p.tokens_factor) >> p.tokens_shift).to_u32();
        let token = of_all - rank * p.tokens;
        let own = Buffer(p.own);
        let theirs = own.of(rank).0;
        let at = token.widening_mul(p.top_k) + (i - of_all * p.top_k).to_u64();
        let (id, weight) = (k.var(NONE), k.var(0f32));
        k.if_(token.lt(p.tokens) & !own.is_broken(), || {
            k.if_(token.lt(own.tokens(rank).load::<u32>()), || {
                let [low, high] = theirs.at(p.ids).at(at * 8u64).load_vec::<u32, 2>();
                let expert = low - p.first_expert;
                k.if_(high.eq(0) & expert.lt(p.experts), || {
                    id.set(expert);
                    weight.set(theirs.at(p.weights).at(at * 4u64).load::<f32>());
                });
            });
        });
        p.to_ids.at(i.widening_mul(4)).store(id.get());
        p.to_weights.at(i.widening_mul(4)).store(weight.get());
    });
}
