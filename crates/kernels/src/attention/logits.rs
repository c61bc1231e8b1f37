//! Logits in global memory: masks, output types, stores and -inf fills.

use crate::attention::shape::LogitFlags;
use oxigemm_ptx::{F32, Global, Kernel, Pred, Shared, U32, U64};

/// Bytes of a logit.
pub(crate) fn logit_size(flags: U32<'_>) -> U32<'_> {
    (flags & LogitFlags::BF16).ne(0).select(2u32, 4u32)
}

/// Heads of a query, which padded kernels find in the flags.
pub(crate) fn head_count(flags: U32<'_>) -> U32<'_> {
    flags >> LogitFlags::HEADS_SHIFT
}

/// Output row of a query: its range of keys, the columns that are stored, and their address.
///
/// In shared memory, a row is eight words.
#[derive(Clone, Copy)]
pub(crate) struct LogitRow<'k> {
    /// Range of keys that the query sees: the first, and how many.
    pub first: U32<'k>,
    pub count: U32<'k>,
    /// Range of keys whose logits are stored: the first, and how many.
    pub stored_first: U32<'k>,
    pub stored_count: U32<'k>,
    /// Address of key 0's logit, also where that is not stored.
    pub at: U64<'k>,
}

impl<'k> LogitRow<'k> {
    pub const BYTES: u32 = 32;

    pub fn store(&self, to: Shared<'k>) {
        to.store_vec([self.first, self.count, self.stored_first, self.stored_count]);
        to.at(16).store(self.at);
    }

    pub fn load(from: Shared<'k>) -> LogitRow<'k> {
        let [first, count, stored_first, stored_count] = from.load_vec();
        LogitRow { first, count, stored_first, stored_count, at: from.at(16).load() }
    }

    /// Stores the logit of a key where `also` holds: -inf where the query does not see the key.
    pub fn store_logit(&self, k: &'k Kernel, key: U32<'k>, logit: F32<'k>, flags: U32<'k>, also: Pred<'k>) {
        let seen = (key - self.first).lt(self.count);
        let logit = seen.select(logit, f32::NEG_INFINITY);
        let stored = (key - self.stored_first).lt(self.stored_count) & also;
        let bf16 = (flags & LogitFlags::BF16).ne(0);
        let to = Global::new(self.at + key.widening_mul(logit_size(flags)));
        let narrow = logit.to_bf16();
        k.guard(stored & bf16, || to.store(narrow));
        k.guard(stored & !bf16, || to.store(logit));
    }

    /// Fills the logits of a range of keys with -inf; one warp.
    pub fn fill(&self, k: &'k Kernel, lane: U32<'k>, keys: [U32<'k>; 2], flags: U32<'k>) {
        let bf16 = (flags & LogitFlags::BF16).ne(0);
        let stored_end = self.stored_first + self.stored_count;
        let [first, end] = [keys[0].max(self.stored_first), keys[1].min(stored_end)];
        k.if_(first.lt(end), || {
            let size = logit_size(flags);
            let (start, end) = (self.at + first.widening_mul(size), self.at + end.widening_mul(size));
            // 16-byte vectors, and single logits before and behind them.
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
