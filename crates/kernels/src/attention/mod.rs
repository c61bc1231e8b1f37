//! What the kernels of indexer logits share: heads on the tensor core, their weighted sum, masks and output.
//!
//! `logit[q, j] = scale[j] * sum over heads of  relu(Q[q,h] . KV[j]) * weight[q,h]`. Keys take the 64-row side of the tensor core
//! and the heads of some queries are its columns, so that a thread has two keys and a quarter of the heads of each
//! query: it sums those in registers, and the four threads of a key then share out the queries between them.

mod heads;
pub mod mqa_logits;
pub mod paged_metadata;
pub mod paged_mqa_logits;
mod smem;

use crate::gemm::sm90::warpgroups::MATH_WARPGROUPS;
pub(crate) use heads::{Counting, Part, Ranges};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{BuildError, F32, Fp8, Global, Kernel, Module, Pred, Shared, U32, U64, Var};
pub(crate) use smem::{Memory, MemoryShape, Span};

/// Numbers of heads that there are kernels for.
pub const HEADS: [u32; 4] = [8, 16, 32, 64];
/// Head dimensions that there are kernels for.
pub const DIMS: [u32; 3] = [32, 64, 128];

/// Keys of a stage: 64 for each math warpgroup.
pub const TILE_KEYS: u32 = 64 * MATH_WARPGROUPS;

/// A kernel of the indexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// Logits of a prefill.
    Prefill(mqa_logits::Config),
    /// Logits of keys in pages.
    Paged(paged_mqa_logits::Config),
    /// Who computes which of those.
    Schedule(paged_metadata::Config),
}

impl Config {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Config> {
        let logits = Heads::all().flat_map(|heads| {
            [Config::Prefill(mqa_logits::Config { heads }), Config::Paged(paged_mqa_logits::Config { heads })]
        });
        logits.chain([Config::Schedule(paged_metadata::Config)])
    }

    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        match self {
            Config::Prefill(config) => config.name(),
            Config::Paged(config) => config.name(),
            Config::Schedule(config) => config.name(),
        }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        match self {
            Config::Prefill(config) => config.threads(),
            Config::Paged(config) => config.threads(),
            Config::Schedule(config) => config.threads(),
        }
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        match self {
            Config::Prefill(config) => config.shared_bytes(),
            Config::Paged(config) => config.shared_bytes(),
            Config::Schedule(config) => config.shared_bytes(),
        }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        match self {
            Config::Prefill(config) => config.build(),
            Config::Paged(config) => config.build(),
            Config::Schedule(config) => config.build(),
        }
    }
}

/// What the output is like, as bits of an argument.
pub struct LogitFlags;

impl LogitFlags {
    /// What lies outside of a query's range becomes -inf; else it stays as it is.
    pub const CLEAN: u32 = 1;
    /// BF16, else FP32.
    pub const BF16: u32 = 2;
    /// The first column of a query is the first key of its range.
    pub const COMPRESSED: u32 = 4;
}

/// Bytes of a logit.
pub(crate) fn logit_size(flags: U32<'_>) -> U32<'_> {
    (flags & LogitFlags::BF16).ne(0).select(2u32, 4u32)
}

/// The heads of a query: what is compiled into a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// How many there are: one of [`HEADS`].
    pub heads: u32,
    /// Elements of each: one of [`DIMS`].
    pub dim: u32,
}

impl Heads {
    /// All that there are kernels for.
    pub fn all() -> impl Iterator<Item = Heads> {
        HEADS.into_iter().flat_map(|heads| DIMS.map(|dim| Heads { heads, dim }))
    }

    /// The permutation of rows in shared memory: as wide as they are.
    pub fn swizzle(&self) -> Swizzle {
        match self.dim {
            32 => Swizzle::B32,
            64 => Swizzle::B64,
            _ => Swizzle::B128,
        }
    }

    /// Issues `products = KV · Qᵀ`. (The caller fences, commits and waits.)
    pub(crate) fn multiply<'k>(
        &self,
        k: &'k Kernel,
        products: &[Var<'k, f32>],
        keys: Descriptor<'k>,
        queries: Descriptor<'k>,
    ) {
        let types = MmaType::Fp8(Fp8::E4m3, Fp8::E4m3);
        for step in (0..self.dim).step_by(types.k() as usize) {
            let (a, b) = (MatrixA::Shared(keys.advance(step)), queries.advance(step));
            k.wgmma(types, products, a, b, (Major::K, Major::K), k.constant(step > 0));
        }
    }

    /// A weight as [`sums`](Self::sums) wants it.
    pub(crate) fn halved(weight: F32<'_>) -> F32<'_> {
        weight * 0.5
    }

    /// Loads a thread's weights of some columns, which lie one after another: two of every eight.
    pub(crate) fn load_weights<'k>(from: Shared<'k>, lane: U32<'k>, weights: &[Var<'k, f32>]) {
        let from = from.at((lane & 3) * 8);
        for (octet, pair) in (0u32..).zip(weights.chunks(2)) {
            let loaded: [F32<'k>; 2] = from.at(octet * 32).load_vec();
            pair.iter().zip(loaded).for_each(|(var, weight)| var.set(weight));
        }
    }

    /// The weighted sums over heads of the columns in `products`, [shared out](Self::share_out) among the four threads of a key.
    pub(crate) fn sums<'k>(
        &self,
        k: &'k Kernel,
        lane: U32<'k>,
        products: &[Var<'k, f32>],
        weights: &[Var<'k, f32>],
    ) -> Vec<F32<'k>> {
        Self::share_out(k, lane, self.own_sums(products, weights))
    }

    /// The same of a thread's own heads, of two keys for each query.
    ///
    /// Twice the positive part of `x` is `x + |x|`, exactly, and so the weights are [halved](Self::halved): additions are twice as
    /// fast as maxima.
    pub(crate) fn own_sums<'k>(&self, products: &[Var<'k, f32>], weights: &[Var<'k, f32>]) -> Vec<F32<'k>> {
        let octets = (self.heads / 8) as usize;
        let mut sums = Vec::new();
        for (products, weights) in products.chunks(octets * 4).zip(weights.chunks(octets * 2)) {
            for row in 0..2 {
                let mut sum: Option<F32<'k>> = None;
                for (four, pair) in products.chunks(4).zip(weights.chunks(2)) {
                    for (product, weight) in four[2 * row..].iter().zip(pair) {
                        let head = product.live() + product.live().abs();
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

    /// Adds the sums of four threads, so that each ends up with some of them.
    pub(crate) fn share_out<'k>(k: &'k Kernel, lane: U32<'k>, mut sums: Vec<F32<'k>>) -> Vec<F32<'k>> {
        for distance in [1u32, 2] {
            if let [last] = sums[..] {
                sums = vec![last + k.shuffle(Shuffle::Xor, last, distance)];
                continue;
            }
            // Each of two threads keeps one half of the sums and gives the other away.
            let upper = (lane & distance).ne(0);
            let (low, high) = sums.split_at(sums.len() / 2);
            let halves = low.iter().zip(high).map(|(&low, &high)| {
                let (kept, given) = (upper.select(high, low), upper.select(low, high));
                kept + k.shuffle(Shuffle::Xor, given, distance)
            });
            sums = halves.collect();
        }
        sums
    }
}

/// Which logits the sums of a thread are, of `queries` queries and the 16 keys of its warp.
#[derive(Clone, Copy)]
pub(crate) struct Share<'k> {
    queries: u32,
    lane: U32<'k>,
}

impl<'k> Share<'k> {
    pub fn new(queries: u32, lane: U32<'k>) -> Self {
        Share { queries, lane }
    }

    /// The first of the queries that the thread has sums of.
    pub fn first_query(&self) -> U32<'k> {
        let (first, second) = (self.lane & 1, (self.lane >> 1) & 1);
        match self.queries {
            1 => self.lane.kernel().constant(0),
            2 => first,
            _ => first * (self.queries / 2) + second * (self.queries / 4),
        }
    }

    /// The keys of its sums of one query, counted from the warp's first: one, or two that are eight apart.
    pub fn keys(&self) -> Vec<U32<'k>> {
        let key = self.lane >> 2;
        match self.queries {
            1 => vec![key + (self.lane & 1) * 8],
            2 => vec![key + ((self.lane >> 1) & 1) * 8],
            _ => vec![key, key + 8],
        }
    }

    /// Whether this thread stores what it has: of a single query, two have the same.
    pub fn stores(&self) -> Pred<'k> {
        match self.queries {
            1 => (self.lane & 2).eq(0),
            _ => self.lane.kernel().constant(true),
        }
    }
}

/// A query as its logits are written: which keys it sees, which columns it has, and where they are.
///
/// Laid out in shared memory, eight words each.
#[derive(Clone, Copy)]
pub(crate) struct Row<'k> {
    /// The first key that it sees, and how many.
    pub first: U32<'k>,
    pub count: U32<'k>,
    /// The first key whose logit is stored, and how many are.
    pub stored_first: U32<'k>,
    pub stored_count: U32<'k>,
    /// Where the logit of key 0 is, or would be.
    pub at: U64<'k>,
}

impl<'k> Row<'k> {
    pub const BYTES: u32 = 32;

    pub fn store(&self, to: Shared<'k>) {
        to.store_vec([self.first, self.count, self.stored_first, self.stored_count]);
        to.at(16).store(self.at);
    }

    pub fn load(from: Shared<'k>) -> Row<'k> {
        let [first, count, stored_first, stored_count] = from.load_vec();
        Row { first, count, stored_first, stored_count, at: from.at(16).load() }
    }

    /// Stores the logit of a key: -inf where the query does not see it.
    pub fn put(&self, k: &'k Kernel, key: U32<'k>, logit: F32<'k>, flags: U32<'k>, also: Pred<'k>) {
        let seen = (key - self.first).lt(self.count);
        let logit = seen.select(logit, f32::NEG_INFINITY);
        let stored = (key - self.stored_first).lt(self.stored_count) & also;
        let bf16 = (flags & LogitFlags::BF16).ne(0);
        let to = Global::new(self.at + key.widening_mul(logit_size(flags)));
        let narrow = logit.to_bf16();
        k.guard(stored & bf16, || to.store(narrow));
        k.guard(stored & !bf16, || to.store(logit));
    }

    /// A warp makes the logits of some keys -inf.
    pub fn clear(&self, k: &'k Kernel, lane: U32<'k>, keys: [U32<'k>; 2], flags: U32<'k>) {
        let bf16 = (flags & LogitFlags::BF16).ne(0);
        let stored_end = self.stored_first + self.stored_count;
        let [first, end] = [keys[0].max(self.stored_first), keys[1].min(stored_end)];
        k.if_(first.lt(end), || {
            let size = logit_size(flags);
            let (start, end) = (self.at + first.widening_mul(size), self.at + end.widening_mul(size));
            // Whole vectors of 16 bytes, and what is left over at either side.
            let aligned = |address: U64<'k>| address & !15u64;
            let body = aligned(start + 15u64).min(end);
            let tail = aligned(end).max(body);
            let infinity: U32<'k> = bf16.select(0xff80_ff80u32, 0xff80_0000u32);
            let narrow = (infinity >> 16).to_u16();
            for (from, to) in [(start, body), (tail, end)] {
                let at = from + lane.widening_mul(size);
                let inside = at.lt(to);
                k.guard(inside & bf16, || Global::new(at).store(narrow));
                k.guard(inside & !bf16, || Global::new(at).store(infinity));
            }
            let at = k.var_from(body + lane.widening_mul(16));
            k.while_(
                || at.live().lt(tail),
                || {
                    Global::new(at.get()).store_vec([infinity; 4]);
                    at.set(at.live() + 512u64);
                },
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_fits_the_shared_memory_of_a_block() {
        for config in Config::all() {
            assert!(config.shared_bytes() <= 232_448, "{}", config.name());
        }
    }
}
