//! Report of a run: counts, executed lines and the timeline.

use crate::error::{Fault, Place};
use crate::record::Step;
use crate::traffic::Traffic;

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Warp instructions executed.
    pub instructions: u64,
    /// Multiply-adds of the tensor cores.
    pub macs: u64,
    /// Asynchronous copies (one per receiver of a multicast).
    pub copies: u64,
    /// Bytes moved, by path.
    pub traffic: Traffic,
    /// CTAs run.
    pub ctas: u64,
    /// CTAs that never ran, as a running cluster has taken them over (`clusterlaunchcontrol`).
    pub cancelled: u64,
    /// Lines of the PTX text with an instruction that some lane executed (not predicated off), in order.
    pub lines: Vec<u32>,
    /// What is not a fault and worth a look: faults of [kinds that are allowed](crate::Options::allow), and what
    /// hardware does though the manual does not promise it. Once for every pair of places.
    pub notes: Vec<Fault>,
    /// The faults of a run that [goes on](crate::Options::keep_going) after them, once for every pair of places.
    pub faults: Vec<Fault>,
    /// Whether the last of these faults has ended the run.
    pub stopped: bool,
    /// What ran when, if asked for.
    pub trace: Vec<TraceEvent>,
    /// Every access and everything that synchronizes, if asked for.
    pub record: Vec<Step>,
}

/// The unit that a [`TraceEvent`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceUnit {
    /// The warp's own threads, up to the instruction at which it stopped.
    Warp,
    /// A `wgmma` from its issue to its completion.
    Wgmma,
    /// A `tcgen05.mma`, `cp`, `shift` or `commit` from its issue to its completion.
    Tcgen05,
    /// Columns of tensor memory from `tcgen05.alloc` to `dealloc`; a `tcgen05.ld` or `st` up to the wait of its warp.
    TensorMemory,
    /// A bulk or tensor copy into shared memory, from its issue to its completion.
    Load,
    /// A bulk or tensor copy out of shared memory.
    Store,
    /// The `cp.async` of a warp.
    CpAsync,
    /// A `st.async` or `red.async` to a peer.
    RemoteStore,
}

/// One bar of the timeline. Time counts the warp instructions of the whole grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Which track.
    pub unit: TraceUnit,
    /// The instruction, its source line, its CTA and its warp.
    pub place: Place,
    /// The role of the code that the instruction is part of, or that the warp came from, where the kernel names roles
    /// (`//@ role NAME`).
    pub role: Option<String>,
    /// What the warp stopped to wait for, or which parts of shared memory and which barrier the work uses, by the names
    /// that the kernel gives them (`//@ shared NAME OFFSET BYTES COUNT`); empty if there is nothing to say.
    pub detail: String,
    /// First moment.
    pub start: u64,
    /// Last moment.
    pub end: u64,
}
