//! MMA and head reduction: `sum over heads of  relu(Q · KV) * weight` from the accumulators of `wgmma`.

use crate::attention::shape::Heads;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType};
use oxigemm_ptx::{F32, Fp8, Kernel, Pred, Shared, U32, Var};

impl Heads {
    /// Issues `accumulators = KV · Qᵀ`. The caller fences, commits and waits.
    pub(crate) fn mma<'k>(
        &self,
        k: &'k Kernel,
        accumulators: &[Var<'k, f32>],
        keys: Descriptor<'k>,
        queries: Descriptor<'k>,
    ) {
        let types = MmaType::Fp8(Fp8::E4m3, Fp8::E4m3);
        for step in (0..self.dim).step_by(types.k() as usize) {
            let (a, b) = (MatrixA::Shared(keys.advance(step)), queries.advance(step));
            k.wgmma(types, accumulators, a, b, (Major::K, Major::K), k.constant(step > 0));
        }
    }

    /// Loads a thread's weights of some contiguous columns: two of every eight.
    pub(crate) fn load_weights<'k>(from: Shared<'k>, lane: U32<'k>, weights: &[Var<'k, f32>]) {
        let from = from.at((lane & 3) * 8);
        for (octet, pair) in (0u32..).zip(weights.chunks(2)) {
            let loaded: [F32<'k>; 2] = from.at(octet * 32).load_vec();
            pair.iter().zip(loaded).for_each(|(var, weight)| var.set(weight));
        }
    }

    /// Weighted sums over heads, [scattered](Self::reduce_scatter) over the four threads of a key.
    pub(crate) fn reduce<'k>(
        &self,
        k: &'k Kernel,
        lane: U32<'k>,
        accumulators: &[Var<'k, f32>],
        weights: &[Var<'k, f32>],
    ) -> Vec<F32<'k>> {
        Self::reduce_scatter(k, lane, self.thread_sums(accumulators, weights))
    }

    /// Weighted sums over a thread's own heads, of two keys for each query.
    ///
    /// The weights are [halved](Self::halved).
    pub(crate) fn thread_sums<'k>(
        &self,
        accumulators: &[Var<'k, f32>],
        weights: &[Var<'k, f32>],
    ) -> Vec<F32<'k>> {
        let octets = (self.heads / 8) as usize;
        let mut sums = Vec::new();
        for (accumulators, weights) in accumulators.chunks(octets * 4).zip(weights.chunks(octets * 2)) {
            for row in 0..2 {
                let mut sum: Option<F32<'k>> = None;
                for (four, pair) in accumulators.chunks(4).zip(weights.chunks(2)) {
                    for (accumulator, weight) in four[2 * row..].iter().zip(pair) {
                        let head = accumulator.live() + accumulator.live().abs();
                        sum = Some(match sum {
                            None => head * weight.live(),
                            Some(sum) => head.fma(weight.live(), sum),
                        });
                    }
                }
                sums.extend(sum);
            }
        }
        sums
    }

    /// Reduce-scatter of the sums of four threads: each ends up with some of the totals.
    pub(crate) fn reduce_scatter<'k>(k: &'k Kernel, lane: U32<'k>, mut sums: Vec<F32<'k>>) -> Vec<F32<'k>> {
        for distance in [1u32, 2] {
            if let [last] = sums[..] {
                sums = vec![last + k.shuffle(Shuffle::Xor, last, distance)];
                continue;
            }
            // Each of two threads keeps one half of the sums and sends the other.
            let upper = (lane & distance).ne(0);
            let (low, high) = sums.split_at(sums.len() / 2);
            let halves = low.iter().zip(high).map(|(&low, &high)| {
                let (kept, sent) = (upper.select(high, low), upper.select(low, high));
                kept + k.shuffle(Shuffle::Xor, sent, distance)
            });
            sums = halves.collect();
        }
        sums
    }
}

/// Layout of the logits after [`Heads::reduce_scatter`]: which of `queries` queries and of the warp's 16 keys a thread
/// has.
#[derive(Clone, Copy)]
pub(crate) struct LogitLayout<'k> {
    queries: u32,
    lane: U32<'k>,
}

impl<'k> LogitLayout<'k> {
    pub fn new(queries: u32, lane: U32<'k>) -> Self {
        LogitLayout { queries, lane }
    }

    /// First query of the thread's logits.
    pub fn first_query(&self) -> U32<'k> {
        let (first, second) = (self.lane & 1, (self.lane >> 1) & 1);
        match self.queries {
            1 => self.lane.kernel().constant(0),
            2 => first,
            _ => first * (self.queries / 2) + second * (self.queries / 4),
        }
    }

    /// Keys of the thread's logits of one query, relative to the warp's first: one, or two that are eight apart.
    pub fn keys(&self) -> Vec<U32<'k>> {
        let key = self.lane >> 2;
        match self.queries {
            1 => vec![key + (self.lane & 1) * 8],
            2 => vec![key + ((self.lane >> 1) & 1) * 8],
            _ => vec![key, key + 8],
        }
    }

    /// Whether this thread stores its logits: of a single query, two threads have the same.
    pub fn stores(&self) -> Pred<'k> {
        match self.queries {
            1 => (self.lane & 2).eq(0),
            _ => self.lane.kernel().constant(true),
        }
    }
}
