//! Record of a run: every access to shared, global and tensor memory, and everything that synchronizes, in the order in
//! which it ran.
//!
//! The record says what happened and nothing of what is ordered after what: who reads it draws its own conclusions,
//! apart from those of the hazard checks.

/// A memory whose words are followed. Ranks count the CTAs of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Store {
    /// Global memory, by address.
    Global,
    /// Shared memory of a CTA, by offset.
    Shared(u32),
    /// Tensor memory of a CTA: 128 lanes of a column, then those of the next.
    Tensor(u32),
}

/// Asynchronous work, by what says that it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A phase of an mbarrier: CTA rank, offset, and the number of phases that were complete at the issue.
    Reports(u32, u32, u32),
    /// A bulk group of the thread.
    BulkStore,
    /// A group of `cp.async` of the thread.
    CpAsync,
    /// A group of `wgmma` of the warp.
    Wgmma,
    /// A `tcgen05.commit` of the thread.
    TensorCore,
    /// The warp's `tcgen05.wait::ld`.
    TensorLoad,
    /// The warp's `tcgen05.wait::st`.
    TensorStore,
}

/// How an access is performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the instruction itself.
    Plain,
    /// By the instruction itself, atomically or as a strong access.
    Strong,
    /// By `tcgen05.alloc`: what it writes is ordered with both proxies.
    Address,
    /// By the [`Work`] that the thread has issued last.
    Generic,
    /// The same through the async proxy.
    Async,
}

/// What lanes do in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An access to `count` bytes (of tensor memory: lanes) from `at` on.
    Access {
        /// Which memory.
        store: Store,
        /// The first byte or lane.
        at: u64,
        /// How many.
        count: u64,
        /// Whether it writes.
        write: bool,
        /// Whether it writes what is there already.
        same: bool,
        /// How.
        way: Way,
    },
    /// Asynchronous work is issued; its accesses follow.
    Issue(Work),
    /// The lanes have converged at an instruction that orders their memory accesses.
    Together,
    /// The lanes have waited for each other at an instruction that orders no accesses.
    Met,
    /// An arrival at a named barrier of the CTA: its number, and how often it was complete before.
    Bar {
        /// The barrier.
        id: u32,
        /// The generation.
        generation: u64,
        /// Whether the lanes wait there.
        waits: bool,
    },
    /// An arrival at the cluster barrier that completes this phase.
    ClusterArrive {
        /// The phase.
        phase: u32,
        /// Whether it releases.
        release: bool,
    },
    /// A wait for this phase of the cluster barrier is over.
    ClusterWait {
        /// The phase.
        phase: u32,
        /// Whether it acquires.
        acquire: bool,
    },
    /// An mbarrier begins.
    MbarInit(u32, u32),
    /// Something is done to an mbarrier that neither arrives nor waits.
    MbarTouch(u32, u32),
    /// An arrival at an mbarrier (CTA rank, offset) after so many complete phases.
    Arrive {
        /// The mbarrier.
        mbar: (u32, u32),
        /// Phases that were complete.
        phase: u32,
        /// Whether it releases what the thread has done.
        release: bool,
        /// Whether its scope is the cluster or more.
        far: bool,
    },
    /// The same by `cp.async.mbarrier.arrive`: behind the copies of the thread.
    ArriveBehindCopies {
        /// The mbarrier.
        mbar: (u32, u32),
        /// Phases that were complete.
        phase: u32,
    },
    /// `tcgen05.commit`: an arrival behind the work of the thread.
    Commit {
        /// The mbarrier.
        mbar: (u32, u32),
        /// Phases that were complete at the issue.
        phase: u32,
    },
    /// A wait for an mbarrier is over.
    Pass {
        /// The mbarrier.
        mbar: (u32, u32),
        /// Phases that are complete.
        phase: u32,
        /// Whether it acquires.
        acquire: bool,
        /// Whether its scope is the cluster or more.
        far: bool,
    },
    /// Work without a group becomes one.
    Group(Work),
    /// A wait that leaves so many groups (`None`: no work at all) unfinished; `read` for bulk stores that need only have
    /// read their sources.
    GroupWait {
        /// Which work.
        work: Work,
        /// Groups that may be unfinished.
        pending: Option<u32>,
        /// Whether the sources only are waited for.
        read: bool,
    },
    /// `tcgen05.wait`
    TensorWait {
        /// Stores, or loads.
        stores: bool,
    },
    /// `tcgen05.fence`
    FenceTensor {
        /// `after_thread_sync`, or `before_thread_sync`.
        after: bool,
    },
    /// A proxy fence for shared and for global memory.
    FenceProxy {
        /// For shared memory.
        shared: bool,
        /// For global memory.
        global: bool,
    },
    /// A fence behind the initialization of mbarriers, for the cluster.
    FenceInit,
    /// The lanes leave the kernel.
    Exit,
}

/// One step of a recorded run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The first CTA of the cluster.
    pub cluster: u32,
    /// The warp, counted over the cluster.
    pub warp: u32,
    /// Its lanes.
    pub lanes: u32,
    /// Line of the instruction in the PTX.
    pub line: u32,
    /// What they do.
    pub deed: Deed,
}
