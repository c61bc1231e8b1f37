//! Pipeline of shared-memory stages between producers and consumers: a ring with full and empty barriers.

use oxigemm_ptx::{Arg, Kernel, MBarrier, Pred, RemoteMBarrier, Shared, U32, Var};

/// Pipeline with two barriers per stage: `full` ends a phase when the stage's data has landed, `empty` when every
/// consumer has released it.
#[derive(Clone, Copy)]
pub struct Pipeline<'k> {
    k: &'k Kernel,
    barriers: Shared<'k>,
    stages: U32<'k>,
    max_stages: u32,
}

impl<'k> Pipeline<'k> {
    /// Bytes of barriers for up to `max_stages` stages.
    pub const fn barrier_bytes(max_stages: u32) -> u32 {
        2 * max_stages * MBarrier::BYTES
    }

    /// A ring of `stages` stages, known when the kernel is built or at run time, with its barriers at `barriers`.
    pub fn new(k: &'k Kernel, barriers: Shared<'k>, stages: impl Arg<'k, u32>, max_stages: u32) -> Self {
        Pipeline { k, barriers, stages: stages.val(k), max_stages }
    }

    /// Gives names to the barriers of a ring that lies `offset` bytes into dynamic shared memory.
    pub fn name_barriers(k: &Kernel, [full, empty]: [&str; 2], offset: u32, max_stages: u32) {
        k.name_shared(full, offset, MBarrier::BYTES, max_stages);
        k.name_shared(empty, offset + max_stages * MBarrier::BYTES, MBarrier::BYTES, max_stages);
    }

    /// Initializes every barrier; one thread does it and then fences, before the block (or cluster) synchronizes.
    pub fn init(&self, full_arrivals: impl Arg<'k, u32>, empty_arrivals: impl Arg<'k, u32>) {
        let (full, empty) = (full_arrivals.val(self.k), empty_arrivals.val(self.k));
        for stage in 0..self.max_stages {
            self.full(self.k.constant(stage)).init(full);
            self.empty(self.k.constant(stage)).init(empty);
        }
    }

    /// The same where the number of stages is known at run time only: few take less time.
    pub fn init_in_use(&self, full_arrivals: u32, empty_arrivals: u32) {
        const AT_ONCE: u32 = 4;
        assert!(self.max_stages.is_multiple_of(AT_ONCE), "{} stages", self.max_stages);
        self.k.for_(0, self.stages, AT_ONCE, |first| {
            for stage in (0..AT_ONCE).map(|nth| first + nth) {
                self.full(stage).init(full_arrivals);
                self.empty(stage).init(empty_arrivals);
            }
        });
    }

    /// Ends a phase when the stage's data has landed.
    pub fn full(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.barriers.at(stage * MBarrier::BYTES))
    }

    /// Ends a phase when the stage may be filled again.
    pub fn empty(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.barriers.at(self.max_stages * MBarrier::BYTES).at(stage * MBarrier::BYTES))
    }

    /// The `empty` barriers of another block of the cluster: `at(stage)` of the result is one of them.
    pub fn empty_in_block(&self, rank: U32<'k>) -> RemoteEmpty<'k> {
        RemoteEmpty(MBarrier(self.barriers.at(self.max_stages * MBarrier::BYTES)).in_block(rank))
    }

    /// Cursor of a producer: its first wait for an empty stage returns at once.
    pub fn writer(&self) -> Cursor<'k> {
        self.cursor(1)
    }

    /// Cursor by which a producer never has more than so many stages under way, of a ring that has all it can have: its
    /// stage is not the one to be written, but the one that was written so many ago, which it waits for.
    pub fn writer_of(&self, under_way: u32) -> Cursor<'k> {
        Cursor { stage: self.k.var(self.max_stages - under_way), ..self.writer() }
    }

    /// Cursor of a consumer.
    pub fn reader(&self) -> Cursor<'k> {
        self.cursor(0)
    }

    /// Writes a warp's part of a stage for `reader`. If that is TMA, the warp waits for the stage to be empty and
    /// commits it; `parity` is that of its next wait.
    pub fn write_stage(
        &self,
        reader: Reader,
        (stage, lane): (U32<'k>, U32<'k>),
        parity: Var<'k, u32>,
        write: impl FnOnce(),
    ) {
        match reader {
            Reader::Tma => {
                self.empty(stage).wait(parity.get());
                write();
                self.commit(stage, lane, parity);
            }
            Reader::Warp => {
                write();
                self.k.sync_warp();
            }
        }
    }

    /// Commits a warp's part of a stage that TMA reads next, and flips the `parity` of its next wait.
    pub fn commit(&self, stage: U32<'k>, lane: U32<'k>, parity: Var<'k, u32>) {
        let k = self.k;
        k.fence_async_shared();
        k.sync_warp();
        let full = self.full(stage);
        k.guard(lane.eq(0), || full.arrive());
        parity.set(parity.live() ^ 1);
    }

    fn cursor(&self, parity: u32) -> Cursor<'k> {
        Cursor { pipeline: *self, stage: self.k.var(0), parity: self.k.var(parity) }
    }
}

/// Reader of what a warp writes to a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// TMA, issued by a thread that waits until the stage is full.
    Tma,
    /// The lanes of the same warp, and nobody else.
    Warp,
}

impl Reader {
    /// The reader of a part of a tile of which panels are whole or none is.
    pub fn of_panels(some_are_whole: bool) -> Reader {
        if some_are_whole { Reader::Tma } else { Reader::Warp }
    }
}

/// The `empty` barriers of one block of the cluster.
#[derive(Clone, Copy)]
pub struct RemoteEmpty<'k>(RemoteMBarrier<'k>);

impl<'k> RemoteEmpty<'k> {
    /// The barrier of one stage.
    pub fn at(self, stage: U32<'k>) -> RemoteMBarrier<'k> {
        RemoteMBarrier(self.0.0.at(stage * MBarrier::BYTES))
    }
}

/// Cursor of a role in the ring, kept from tile to tile.
#[derive(Clone, Copy)]
pub struct Cursor<'k> {
    pipeline: Pipeline<'k>,
    stage: Var<'k, u32>,
    parity: Var<'k, u32>,
}

impl<'k> Cursor<'k> {
    /// The current stage.
    pub fn stage(&self) -> U32<'k> {
        self.stage.get()
    }

    /// The parity of the phase that a wait for the current stage waits for.
    pub fn parity(&self) -> U32<'k> {
        self.parity.get()
    }

    /// Waits until the current stage may be written.
    pub fn wait_empty(&self) {
        self.pipeline.empty(self.stage.get()).wait(self.parity.get());
    }

    /// The same where threads of other blocks have read it.
    pub fn wait_empty_in_cluster(&self) {
        self.pipeline.empty(self.stage.get()).wait_for_cluster(self.parity.get());
    }

    /// Waits until the current stage may be read.
    pub fn wait_full(&self) {
        self.pipeline.full(self.stage.get()).wait(self.parity.get());
    }

    /// Whether the current stage may be read, without waiting.
    pub fn is_full(&self) -> Pred<'k> {
        self.pipeline.full(self.stage.get()).test_wait(self.parity.get())
    }

    /// Moves to the next stage; each wrap flips the parity.
    pub fn advance(&self) {
        self.stage.set(self.stage.live() + 1);
        let wrapped = self.stage.live().eq(self.pipeline.stages);
        self.parity.set_if(wrapped, self.parity.live() ^ 1);
        self.stage.set_if(wrapped, 0);
    }

    /// Waits, in ring order, until every stage has been released. A block of a cluster does this before it ends,
    /// because the other blocks write to its memory and arrive at its barriers.
    pub fn drain(&self) {
        self.drain_of(self.pipeline.stages);
    }

    /// The same of a [writer](Pipeline::writer_of) that has this many stages under way.
    pub fn drain_of(&self, under_way: impl Arg<'k, u32>) {
        self.pipeline.k.for_(0, under_way, 1, |_| {
            self.wait_empty();
            self.advance();
        });
    }
}
