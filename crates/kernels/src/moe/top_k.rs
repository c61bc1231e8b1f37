//! The top-k kernel.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Bf16, F32, Kernel, Pred, Shared, U32, Var};

use super::params::{Flags, Params};
use super::score::{self, Scoring};
use super::{Config, TOKENS, groups, key};
use crate::common::WARP;

/// Value for no expert.
const NONE: u32 = u32::MAX;

/// Shared memory of a token: its logits, and the keys of its experts.
pub(super) struct SmemToken<'k> {
    base: Shared<'k>,
    capacity: u32,
}

impl<'k> SmemToken<'k> {
    /// Bytes for so many experts.
    pub const fn bytes(capacity: u32) -> u32 {
        4 * capacity + 4 * (capacity + capacity / WARP)
    }

    /// Logit of an expert.
    fn logit(&self, expert: U32<'k>) -> Shared<'k> {
        self.base.at(expert * 4)
    }

    /// Key of an expert. After 32 of them there is a gap: lanes that read 32 apart are in different banks.
    pub fn key(&self, expert: U32<'k>) -> Shared<'k> {
        self.base.at((expert + (expert >> WARP.trailing_zeros())) * 4 + 4 * self.capacity)
    }
}

/// A warp, its token, and what is the same for all lanes.
struct Token<'a, 'k> {
    k: &'k Kernel,
    p: &'a Params<'k>,
    smem: SmemToken<'k>,
    index: U32<'k>,
    lane: U32<'k>,
    /// Experts of the lane.
    experts: Vec<U32<'k>>,
}

pub(super) fn write(k: &Kernel, config: &Config) {
    let p = &Params::declare(k, "");
    let (warp, lane) = (k.thread_index() >> WARP.trailing_zeros(), k.lane());
    let base = k.dynamic_shared().at(warp * SmemToken::bytes(config.capacity));
    let token = Token {
        k,
        p,
        smem: SmemToken { base, capacity: config.capacity },
        index: k.block_index(0) * TOKENS + warp,
        lane,
        experts: (0..config.slots()).map(|slot| lane + slot * WARP).collect(),
    };
    // The GEMM before this one still writes the logits.
    k.grid_dependency_wait();
    // What follows waits for all of this, and may set itself up meanwhile.
    k.launch_dependents();
    k.if_(token.index.lt(p.tokens), || {
        k.if_else(token.is_routed(), || token.route(), || token.store(k.constant(NONE), k.constant(0.0)));
    });
}

impl<'k> Token<'_, 'k> {
    /// Whether the masks let the token through.
    fn is_routed(&self) -> Pred<'k> {
        let p = self.p;
        let count = p.token_count.load_if(p.has(Flags::TOKEN_COUNT), NONE);
        // A negative number is none at all.
        let is_before = self.index.lt(count) & (count.lt(1 << 31) | !p.has(Flags::TOKEN_COUNT));
        let has_mask = p.has(Flags::TOKEN_MASK);
        let mask = p.token_mask.at(self.index.to_u64()).load_readonly_byte_if(has_mask);
        is_before & (mask.ne(0) | !has_mask)
    }

    /// Chooses experts, and stores them with their weights.
    fn route(&self) {
        let Token { k, p, smem, .. } = self;
        // All loads are under way at once.
        let (is_on, bias, logits) = (self.enabled(), self.bias(), self.logits());
        for (expert, logit) in self.experts.iter().zip(&logits) {
            smem.logit(*expert).store(*logit);
        }
        let softmax = self.softmax(&logits, &is_on);
        let keys = self.keys(&logits, &bias, &is_on, &softmax);
        k.if_(p.groups.gt(1), || groups::keep_best(k, p, smem, &self.experts, &keys));
        k.sync_warp();
        let expert = self.choose(&keys);
        let weight = self.weight(expert, &softmax);
        self.store(expert, weight);
    }

    /// Logits of the lane's experts; 0 where there is none.
    fn logits(&self) -> Vec<F32<'k>> {
        let Token { k, p, .. } = self;
        let logits: Vec<Var<f32>> = self.experts.iter().map(|_| k.var(0.0)).collect();
        let element = |expert: U32<'k>| self.index.widening_mul(p.logits_pitch) + expert.to_u64();
        let each = || self.experts.iter().zip(&logits).map(|(expert, logit)| (*expert, logit));
        k.if_else(
            p.has(Flags::BF16),
            || {
                let load = |(expert, logit): (U32<'k>, &Var<'k, f32>)| {
                    let from = p.logits.at(element(expert) << 1u32);
                    (logit.to_owned(), from.load_if(expert.lt(p.experts), Bf16(0)))
                };
                let loaded: Vec<_> = each().map(load).collect();
                loaded.into_iter().for_each(|(logit, value)| logit.set(value.to_f32()));
            },
            || {
                let load = |(expert, logit): (U32<'k>, &Var<'k, f32>)| {
                    let from = p.logits.at(element(expert) << 2u32);
                    (logit.to_owned(), from.load_if(expert.lt(p.experts), 0f32))
                };
                let loaded: Vec<_> = each().map(load).collect();
                loaded.into_iter().for_each(|(logit, value)| logit.set(value));
            },
        );
        logits.into_iter().map(Var::get).collect()
    }

    /// Whether the lane's experts exist and are on.
    fn enabled(&self) -> Vec<Pred<'k>> {
        let p = self.p;
        let has_mask = p.has(Flags::EXPERT_MASK);
        let is_on = |expert: &U32<'k>| {
            let exists = expert.lt(p.experts);
            let mask = p.expert_mask.at(expert.to_u64()).load_readonly_byte_if(exists & has_mask);
            exists & (mask.ne(0) | !has_mask)
        };
        self.experts.iter().map(is_on).collect()
    }

    /// Bias of the lane's experts; 0 where there is none.
    fn bias(&self) -> Vec<F32<'k>> {
        let p = self.p;
        let has_bias = p.has(Flags::BIAS);
        let load = |expert: &U32<'k>| {
            let at = p.bias.at(expert.widening_mul(4));
            at.load_if(has_bias & expert.lt(p.experts), 0f32)
        };
        self.experts.iter().map(load).collect()
    }

    /// The largest logit, and the sum of all exponentials; of softmax alone.
    fn softmax(&self, logits: &[F32<'k>], is_on: &[Pred<'k>]) -> Softmax<'k> {
        let k = self.k;
        let softmax = Softmax { max: k.var(0.0), sum: k.var(0.0) };
        k.if_(self.p.scores_by(Scoring::Softmax), || {
            let finite = |(logit, is_on): (&F32<'k>, &Pred<'k>)| {
                is_on.select(score::finite(*logit), k.constant(-f32::MAX))
            };
            let own = logits.iter().zip(is_on).map(finite).reduce(F32::max).expect("a lane has slots");
            softmax.max.set(key::number(k.warp_max(key::of(own))));
            let exp = |(logit, is_on): (&F32<'k>, &Pred<'k>)| {
                is_on.select(score::exp_below(*logit, softmax.max.live()), k.constant(0.0))
            };
            let own = logits.iter().zip(is_on).map(exp).reduce(|a, b| a + b).expect("a lane has slots");
            softmax.sum.set(warp_sum(k, own));
        });
        softmax
    }

    /// Keys that experts are ranked by.
    fn keys(
        &self,
        logits: &[F32<'k>],
        bias: &[F32<'k>],
        is_on: &[Pred<'k>],
        softmax: &Softmax<'k>,
    ) -> Vec<Var<'k, u32>> {
        let Token { k, p, .. } = self;
        let ranks: Vec<Var<f32>> = logits.iter().map(|logit| k.var_from(*logit)).collect();
        k.if_(!p.has(Flags::BY_LOGITS), || {
            let set = |score: &dyn Fn(F32<'k>) -> F32<'k>| {
                logits.iter().zip(&ranks).for_each(|(logit, rank)| rank.set(score(*logit)));
            };
            k.if_else(
                p.scores_by(Scoring::Softmax),
                || {
                    let factor = positive_or_one(softmax.sum.get()).reciprocal();
                    set(&|logit| score::exp_below(logit, softmax.max.live()) * factor);
                },
                || {
                    k.if_else(
                        p.scores_by(Scoring::Sigmoid),
                        || set(&score::sigmoid),
                        || set(&score::sqrt_softplus),
                    );
                },
            );
            for (rank, bias) in ranks.iter().zip(bias) {
                rank.set(rank.live() + *bias);
            }
        });
        let key = |((logit, rank), is_on): ((&F32<'k>, &Var<'k, f32>), &Pred<'k>)| {
            // A logit that is NaN has a score that is none.
            let key = key::is_nan(*logit).select(key::NAN, key::of(rank.get()));
            k.var_from(is_on.select(key, k.constant(key::ABSENT)))
        };
        logits.iter().zip(&ranks).zip(is_on).map(key).collect()
    }

    /// The expert that lane k has chosen as the k-th, or none.
    fn choose(&self, keys: &[Var<'k, u32>]) -> U32<'k> {
        let Token { k, p, lane, .. } = self;
        let chosen = k.var(NONE);
        k.for_(0, p.top_k, 1, |turn| {
            let own = keys.iter().map(|key| key.live()).reduce(U32::max).expect("a lane has slots");
            let best = k.warp_max(own);
            // Of the lanes with the best key, each has its first expert; the first of these is taken.
            let first =
                self.experts.iter().zip(keys).rev().fold(k.constant(NONE), |first, (expert, key)| {
                    key.live().eq(best).select(*expert, first)
                });
            let expert = k.warp_max(first ^ NONE) ^ NONE;
            for (own, key) in self.experts.iter().zip(keys) {
                key.set(own.eq(expert).select(k.constant(key::ABSENT), key.live()));
            }
            // Where nothing is left, every key is that of what is absent.
            chosen.set_if(lane.eq(turn) & best.ne(key::ABSENT), expert);
        });
        chosen.get()
    }

    /// Weight of the lane's choice; 0 of none.
    fn weight(&self, expert: U32<'k>, softmax: &Softmax<'k>) -> F32<'k> {
        let Token { k, p, smem, .. } = self;
        // The score of NaN is 0.
        let logit = k.var_from(smem.logit(expert).load_if(expert.ne(NONE), f32::NAN));
        let score = k.var(0.0);
        k.if_else(
            p.scores_by(Scoring::Softmax),
            || score.set(score::exp_below(logit.get(), softmax.max.live())),
            || {
                k.if_else(
                    p.scores_by(Scoring::Sigmoid),
                    || score.set(score::sigmoid(logit.get())),
                    || score.set(score::sqrt_softplus(logit.get())),
                );
            },
        );
        let of_all = p.scores_by(Scoring::Softmax).select(softmax.sum.live(), k.constant(1.0));
        let sum = p.has(Flags::RENORMALIZE).select(warp_sum(k, score.get()), of_all);
        expert.ne(NONE).select(score.get() * p.scale.divide(positive_or_one(sum)), 0.0)
    }

    /// Stores the choices and weights of the lanes that have one.
    fn store(&self, expert: U32<'k>, weight: F32<'k>) {
        let Token { k, p, lane, index, .. } = self;
        let is_mapped = p.has(Flags::MAP) & expert.ne(NONE);
        let at = p.map.at(expert.widening_mul(4));
        let physical: U32 = at.load_if(is_mapped, NONE);
        let id = is_mapped.select(physical, expert);
        let offset = (index.widening_mul(p.top_k) + lane.to_u64()) << 2u32;
        let has_one = lane.lt(p.top_k);
        k.guard(has_one, || p.ids.at(offset).store(id));
        k.guard(has_one, || p.weights.at(offset).store(weight));
    }
}

/// What softmax subtracts, and what it divides by.
struct Softmax<'k> {
    max: Var<'k, f32>,
    sum: Var<'k, f32>,
}

/// A sum of scores as a divisor: 1 where all scores are 0.
#[track_caller]
fn positive_or_one(sum: F32<'_>) -> F32<'_> {
    sum.gt(0.0).select(sum, 1.0)
}

/// Sum over the warp, in all lanes.
#[track_caller]
fn warp_sum<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
    steps.fold(value, |sum, step| sum + k.shuffle(Shuffle::Xor, sum, step))
}
