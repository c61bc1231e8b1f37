//! Hazards: who touched each word last, and what orders the next access after it.
//!
//! Time is a vector clock. Its components are *agents*: the lanes of a warp that are in step, and every
//! asynchronous unit (a warp's `wgmma`, its bulk stores, its `cp.async`, and each mbarrier for the copies that
//! report to it). Lanes are in step after `bar.warp.sync` and any `.aligned` instruction (not after a shuffle or a
//! vote, which do not order memory). They part when only some of them wait, arrive, fence or copy, and no lane may
//! then rely on what another has done. Between two such instructions, one lane's access to a word that another lane
//! has touched is a race as well.
//!
//! A [`View`] says up to which tick of every agent lanes have synchronized: as such, and through a proxy fence for
//! shared and for global memory. A generic write must be before the fence for its memory in the view of the thread
//! that issues an asynchronous access to the same bytes; everything else needs the plain view only.
//!
//! A release publishes a view, and an acquire takes it, if the scope of each includes the thread of the other (see
//! `scope`). Two strong accesses may meet on the same condition. An arrival at a peer's mbarrier with too narrow a
//! scope says only that what came before it is over: enough to write where the peer has read, not to read what it
//! has written.
//!
//! An asynchronous access enters the shadow memory when it is issued, with a tick that its completion mechanism
//! gives later: the phase of the mbarrier, or the number of the group. So a missing wait is found under every
//! schedule, also one where the copy happens to be early.

mod global;
mod maps;
mod order;
mod predecessor;
mod scope;
mod shadow;
mod tensor;
mod view;

pub(crate) use global::{GlobalConflict, GlobalEvent, GlobalShadow};
pub(crate) use maps::MapMissing;
pub(crate) use predecessor::{Footprint, Overlap};
pub(crate) use scope::{ByScope, Released, Scope, Seat};
pub(crate) use shadow::{Conflict, Missing};
pub(crate) use tensor::{Pipe, TensorAccess, TensorConflict, TensorMissing};
pub(crate) use view::View;

use crate::lanes::LANES;
use shadow::Shadow;
use std::ops::Range;

/// The units of one warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Wgmma = 1,
    BulkStore,
    CpAsync,
    MbarInit,
    /// The writes of bulk stores, which are complete later than the reads of their sources.
    BulkWrite,
    /// Waits for mbarriers that are over.
    Waits,
}

/// Agents per warp; the first is the warp's own threads.
const UNITS: u32 = 7;

/// How an access reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    Generic,
    Async,
    /// Ordered with both: the address that `tcgen05.alloc` writes.
    Any,
}

/// One access, as the shadow memory records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) agent: u32,
    pub(crate) tick: u32,
    pub(crate) proxy: Proxy,
    /// The scope of a strong access.
    pub(crate) strong: Option<Scope>,
    /// Warp (index in the cluster) and instruction that issued it.
    pub(crate) warp: u32,
    pub(crate) pc: u32,
}

/// Lanes of a warp that are in step.
#[derive(Clone, Debug, Default)]
struct Class {
    lanes: u32,
    agent: u32,
    tick: u32,
    /// Changes whenever the lanes converge.
    epoch: u32,
    /// The tick at that moment.
    since: u32,
    /// The class's own tick that came back to it through a barrier: its lanes are in step up to there.
    returned: u32,
    /// The tick of `cp.async` up to which each lane has waited for its own copies.
    copied: u32,
    now: View,
    /// What a relaxed operation releases: the views at the last fences.
    released: ByScope,
    /// What relaxed loads observed, waiting for a fence of this scope.
    observed: ByScope,
    /// What barriers of any strength have waited for: enough to know that a peer is past an access, not
    /// that its writes are visible.
    passed: View,
    /// What the class had seen at its last `tcgen05.fence::after_thread_sync`.
    ordered: Vec<u32>,
}

impl Class {
    fn bump(&mut self) {
        self.tick += 1;
        self.now.raise(self.agent, self.tick);
    }
}

/// The clocks of one warp.
#[derive(Clone, Debug, Default)]
struct Clock {
    classes: Vec<Class>,
    /// Agents of classes that have merged, with their last ticks, to be used again.
    spare: Vec<(u32, u32)>,
    /// The agents of the lanes' own `cp.async`, once some lanes have waited for theirs without the others. Their
    /// ticks are those of the warp's.
    copies: Option<Box<[u32; LANES]>>,
    epochs: u32,
    inits: u32,
    bulk: u32,
    waits: u32,
}

/// The grid that clusters belong to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Whether there are other devices.
    pub(crate) several: bool,
    pub(crate) device: u32,
    /// The number of the grid among those of its device.
    pub(crate) launch: u32,
    /// The numbers of its clusters among those of all grids.
    pub(crate) clusters: Range<u32>,
}

/// The hazard state of one cluster.
pub(crate) struct Hazards {
    /// Which cluster this is.
    cluster: u32,
    origin: Origin,
    warps_per_cta: u32,
    clocks: Vec<Clock>,
    /// The lanes of the running instruction (with those that have exited), and the first that runs.
    selected: u32,
    lead: u8,
    shadow: Shadow,
    agents: u32,
    /// Views released to shared-memory locations by strong stores and atomics.
    locations: std::collections::HashMap<u64, Released>,
    /// Per CTA: the views of its warps at their exits.
    exits: Vec<View>,
    /// What all of them knew of other devices.
    pub(crate) learned: View,
    /// Who touched tensor memory, once somebody has.
    tensor: Option<Box<tensor::TensorShadow>>,
}

impl Hazards {
    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.shadow.bytes() + self.locations.len() as u64 * 128
    }

    /// The state at the start of a cluster of the grid, by its index, whose threads know of `known`.
    pub(crate) fn new(
        (origin, index, known): (&Origin, u32, &View),
        warps: usize,
        ctas: usize,
        base: u32,
        bytes: u32,
    ) -> Hazards {
        let clock = |w: u32| {
            let mut class =
                Class { lanes: u32::MAX, agent: w * UNITS, now: known.clone(), ..Class::default() };
            class.bump();
            class.since = class.tick;
            Clock { classes: vec![class], ..Clock::default() }
        };
        Hazards {
            cluster: origin.clusters.start + index,
            origin: origin.clone(),
            learned: View::default(),
            warps_per_cta: (warps / ctas.max(1)).max(1) as u32,
            clocks: (0..warps as u32).map(clock).collect(),
            selected: u32::MAX,
            lead: 0,
            shadow: Shadow::new(ctas, base, bytes),
            // The first beside the units is the kernel before.
            agents: warps as u32 * UNITS + 1,
            locations: Default::default(),
            exits: vec![View::default(); ctas],
            tensor: None,
        }
    }

    pub(crate) fn agent(warp: u32, unit: Unit) -> u32 {
        warp * UNITS + unit as u32
    }

    /// An agent for a new mbarrier.
    pub(crate) fn new_agent(&mut self) -> u32 {
        self.agents += 1;
        self.agents - 1
    }

    /// Its number among the clusters of all grids.
    pub(crate) fn number(&self) -> u32 {
        self.cluster
    }

    /// Where a warp's threads sit.
    pub(crate) fn seat(&self, warp: u32) -> Seat {
        let Origin { device, launch, .. } = self.origin;
        Seat { device, launch, cluster: self.cluster, cta: warp / self.warps_per_cta }
    }

    /// Whether some warp of an exiting CTA has waited for this tick.
    pub(crate) fn exit_covers(&self, cta: usize, agent: u32, tick: u32) -> bool {
        self.exits[cta].is_past(agent, tick)
    }
}
