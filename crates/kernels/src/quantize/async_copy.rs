//! `cp.async` double buffering: the next tiles are copied to shared memory while the current one is converted.
//!
//! Every thread copies to slots of its own and reads only those, so no thread waits for another. Registers hold only
//! the tile that is converted, and the code of the loop body exists once. A stage is free again as soon as its vectors
//! are in registers.

use oxigemm_ptx::{Kernel, Shared, U32};

use super::vec8::{Input, VECTOR_BYTES};

/// Tiles that are in flight while one is converted.
const STAGES: u32 = 2;

/// Shape of the buffer: the 16-byte vectors of a stage, for every thread of a CTA.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpAsyncBuffer {
    /// Threads of a CTA.
    pub threads: u32,
    /// 16-byte vectors that a thread copies for a tile.
    pub vectors: u32,
}

/// Slots of one thread in one stage.
#[derive(Clone, Copy)]
pub(super) struct Slots<'k> {
    first: Shared<'k>,
    threads: u32,
}

impl<'k> Slots<'k> {
    /// Slots of one of the thread's `Vec8`s.
    pub fn of(self, input: Input, index: u32) -> impl Iterator<Item = Shared<'k>> {
        let vectors = input.vectors();
        let each = index * vectors..(index + 1) * vectors;
        each.map(move |vector| self.first.at(vector * self.threads * VECTOR_BYTES))
    }
}

impl CpAsyncBuffer {
    const fn stage_bytes(self) -> u32 {
        self.threads * self.vectors * VECTOR_BYTES
    }

    /// Bytes of shared memory.
    pub const fn bytes(self) -> u32 {
        STAGES * self.stage_bytes()
    }

    /// Loop over the tiles `first`, `first + step`, ... below `end`: `issue` starts the copies of a tile, `load` moves
    /// them from their slots to registers, and `convert` does the rest.
    #[track_caller]
    pub fn for_each_tile<'k, T>(
        self,
        k: &'k Kernel,
        memory: Shared<'k>,
        [first, end, step]: [U32<'k>; 3],
        issue: impl Fn(U32<'k>, Slots<'k>),
        load: impl FnOnce(U32<'k>, Slots<'k>) -> T,
        convert: impl FnOnce(U32<'k>, T),
    ) {
        let own = memory.at(k.thread_index() * VECTOR_BYTES);
        let slots = |offset: U32<'k>| Slots { first: own.at(offset), threads: self.threads };
        let issued = k.var_from(first);
        let offset = k.var(0u32);
        let next = |offset: U32<'k>| {
            let next = offset + self.stage_bytes();
            next.eq(self.bytes()).select(0u32, next)
        };
        let issue_next = || {
            issue(issued.get(), slots(offset.get()));
            k.copies_commit();
            issued.set(issued.live() + step);
            offset.set(next(offset.live()));
        };
        (0..STAGES).for_each(|_| issue_next());
        k.for_(first, end, step, |at| {
            k.copies_wait_but(STAGES - 1);
            // The offset of the next copies is that of the oldest ones.
            let loaded = load(at, slots(offset.get()));
            issue_next();
            convert(at, loaded);
        });
        // Copies were issued for tiles behind the end, although they read nothing.
        k.copies_wait();
    }
}
