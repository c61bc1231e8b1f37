//! Context lengths of the sequences of a decode step.

use crate::attention::shape::DEDICATED_NEXT;
use oxigemm_ptx::{Global, I32, Pred, U32};

/// Context lengths as a kernel reads them: one for each query, or one for each sequence. In the latter case the last
/// query sees all of it, and every query before it one key less than the next.
#[derive(Clone, Copy)]
pub(crate) struct ContextLens<'k> {
    pub at: Global<'k>,
    pub sequences: U32<'k>,
    /// Queries of a sequence.
    pub next: U32<'k>,
    /// 1 where every query has a length of its own.
    pub per_query: U32<'k>,
    /// Upper bound: longer lengths count as this.
    pub limit: U32<'k>,
    /// Whether a sequence may have more queries than [`DEDICATED_NEXT`].
    pub any_next: bool,
}

impl<'k> ContextLens<'k> {
    fn is_per_query(&self) -> Pred<'k> {
        self.per_query.ne(0)
    }

    fn load_if(&self, condition: Pred<'k>, index: U32<'k>) -> I32<'k> {
        self.at.at(index.widening_mul(4)).load_readonly_if(condition, 0)
    }

    fn clamped(&self, length: I32<'k>) -> U32<'k> {
        length.max(0).bitcast::<u32>().min(self.limit)
    }

    /// Keys that a query of a sequence sees, where the condition holds.
    pub fn of_query_if(&self, condition: Pred<'k>, sequence: U32<'k>, query: U32<'k>) -> U32<'k> {
        let index: U32<'k> = self.is_per_query().select(sequence * self.next + query, sequence);
        let behind: U32<'k> = self.is_per_query().select(0u32, self.next - 1 - query);
        // Before clamping: a query sees less than the sequence has, not less than the limit.
        self.clamped(self.load_if(condition, index) - behind.bitcast::<i32>())
    }

    /// Most keys that a query of a sequence sees.
    pub fn longest(&self, sequence: U32<'k>) -> U32<'k> {
        self.longest_if(sequence.kernel().constant(true), sequence)
    }

    /// The same where the condition holds, else 0.
    pub fn longest_if(&self, condition: Pred<'k>, sequence: U32<'k>) -> U32<'k> {
        if self.any_next {
            return self.longest_of_any_if(condition, sequence);
        }
        let lengths = (0..DEDICATED_NEXT).map(|query| {
            // A length per sequence is that of the last query, which is the longest.
            let (index, wanted) = match query {
                0 => (self.is_per_query().select(sequence * self.next, sequence), condition),
                _ => (sequence * self.next + query, condition & self.is_per_query() & self.next.gt(query)),
            };
            self.load_if(wanted, index)
        });
        let longest = lengths.reduce(|longest, length| longest.max(length)).expect("there are several");
        self.clamped(longest)
    }

    /// The same for any number of queries: a loop over their lengths, after which lanes may have diverged.
    fn longest_of_any_if(&self, condition: Pred<'k>, sequence: U32<'k>) -> U32<'k> {
        let k = sequence.kernel();
        let lengths: U32<'k> = self.is_per_query().select(self.next, 1u32);
        let longest = k.var(0i32);
        k.for_(0, condition.select(lengths, 0u32), 1, |query| {
            let length = self.load_if(k.constant(true), sequence * lengths + query);
            longest.set(longest.live().max(length));
        });
        self.clamped(longest.get())
    }
}
