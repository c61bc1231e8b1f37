//! What a thread reads next, on its way while it converts what it has.
//!
//! Every thread has places of its own in shared memory, so that none waits for another. Registers are only for what is
//! being converted, and the code is there once. What is in registers leaves its places to what comes next but one.

use oxigemm_ptx::{Kernel, Shared, U32};

use super::vec8::{Input, VECTOR};

/// Rounds that are under way while one is converted.
const AHEAD: u32 = 2;

/// The vectors of a round, for every thread of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// Threads of a block.
    pub threads: u32,
    /// Vectors that a thread reads in a round.
    pub vectors: u32,
}

/// Where the vectors of a thread's round are.
#[derive(Clone, Copy)]
pub(super) struct Slots<'k> {
    first: Shared<'k>,
    threads: u32,
}

impl<'k> Slots<'k> {
    /// Those of one of its chunks.
    pub fn of(self, input: Input, chunk: u32) -> impl Iterator<Item = Shared<'k>> {
        let vectors = input.vectors();
        let each = chunk * vectors..(chunk + 1) * vectors;
        each.map(move |vector| self.first.at(vector * self.threads * VECTOR))
    }
}

impl Flight {
    const fn round_bytes(self) -> u32 {
        self.threads * self.vectors * VECTOR
    }

    /// Bytes of shared memory.
    pub const fn bytes(self) -> u32 {
        AHEAD * self.round_bytes()
    }

    /// Goes from `first` to `end` in steps: `ask` starts the copies of a round, `take` has them from their places to registers, and
    /// `convert` does the rest.
    #[track_caller]
    pub fn rounds<'k, T>(
        self,
        k: &'k Kernel,
        memory: Shared<'k>,
        [first, end, step]: [U32<'k>; 3],
        ask: impl Fn(U32<'k>, Slots<'k>),
        take: impl FnOnce(U32<'k>, Slots<'k>) -> T,
        convert: impl FnOnce(U32<'k>, T),
    ) {
        let own = memory.at(k.thread_index() * VECTOR);
        let slots = |offset: U32<'k>| Slots { first: own.at(offset), threads: self.threads };
        let asked = k.var_from(first);
        let offset = k.var(0u32);
        let next = |offset: U32<'k>| {
            let next = offset + self.round_bytes();
            next.eq(self.bytes()).select(0u32, next)
        };
        let ask_next = || {
            ask(asked.get(), slots(offset.get()));
            k.copies_commit();
            asked.set(asked.live() + step);
            offset.set(next(offset.live()));
        };
        (0..AHEAD).for_each(|_| ask_next());
        k.for_(first, end, step, |at| {
            k.copies_wait_but(AHEAD - 1);
            // What comes next of those asked for is the oldest.
            let taken = take(at, slots(offset.get()));
            ask_next();
            convert(at, taken);
        });
        // Of rounds behind the end nothing is read, but they were asked for.
        k.copies_wait();
    }
}
