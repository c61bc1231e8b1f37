//! Memory hazards: who touched each word last, and what orders the next access after it.
//!
//! Time is a vector clock. Its components are *agents*: the lanes of a warp that are in step, and every unit
//! that works on its own (a warp's `wgmma`, its bulk stores, its `cp.async`, and each mbarrier for the copies
//! that report to it). Lanes are in step after an instruction that all of them take part in (`bar.warp.sync`,
//! a shuffle, anything `.aligned`); they part when only some of them wait, arrive, fence or copy, and no lane
//! may then rely on what another has done. Between two such instructions, one lane's access to a word that
//! another lane has touched is a race as well. A [`View`] says up to which tick of every
//! agent lanes have synchronized: as such, and through a proxy fence for shared and for global memory. A
//! generic write must be behind the fence for its memory in the view of the thread that starts an
//! asynchronous access to the same bytes; everything else needs the plain view only.
//!
//! An asynchronous access enters the shadow memory when it is issued, with a tick that its completion
//! mechanism hands out later: the phase of the mbarrier, or the number of the group. So a missing wait
//! is found under every schedule, also one where the copy happens to be early.

mod global;
mod order;

pub(crate) use global::{GlobalConflict, GlobalShadow};

use std::collections::BTreeMap;

/// What a warp, or a barrier on its behalf, has synchronized with.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    seen: Vec<u32>,
    proxied: Vec<u32>,
    proxied_global: Vec<u32>,
    /// The same for other clusters, with which only global memory synchronizes.
    others: BTreeMap<u32, Ticks>,
}

/// The ticks of one cluster's agents: seen as such, and through a proxy fence for shared and for global memory.
#[derive(Clone, Debug, Default)]
struct Ticks {
    seen: Vec<u32>,
    proxied: Vec<u32>,
    proxied_global: Vec<u32>,
}

impl Ticks {
    fn join(&mut self, other: &Ticks) {
        join(&mut self.seen, &other.seen);
        join(&mut self.proxied, &other.proxied);
        join(&mut self.proxied_global, &other.proxied_global);
    }
}

fn join(into: &mut Vec<u32>, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

fn raise(into: &mut Vec<u32>, agent: u32, tick: u32) {
    let i = agent as usize;
    if into.len() <= i {
        into.resize(i + 1, 0);
    }
    into[i] = into[i].max(tick);
}

fn get(of: &[u32], agent: u32) -> u32 {
    of.get(agent as usize).copied().unwrap_or(0)
}

impl View {
    pub(crate) fn join(&mut self, other: &View) {
        join(&mut self.seen, &other.seen);
        join(&mut self.proxied, &other.proxied);
        join(&mut self.proxied_global, &other.proxied_global);
        for (cluster, ticks) in &other.others {
            self.others.entry(*cluster).or_default().join(ticks);
        }
    }

    pub(crate) fn raise(&mut self, agent: u32, tick: u32) {
        raise(&mut self.seen, agent, tick);
    }

    pub(crate) fn has(&self, agent: u32, tick: u32) -> bool {
        get(&self.seen, agent) >= tick
    }

    pub(crate) fn clear(&mut self) {
        self.seen.clear();
        self.proxied.clear();
        self.proxied_global.clear();
        self.others.clear();
    }
}

/// The units of one warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Wgmma = 1,
    BulkStore,
    CpAsync,
    MbarInit,
    /// The writes of bulk stores, which are complete later than the reads of their sources.
    BulkWrite,
}

/// Agents per warp; the first is the warp's own threads.
const UNITS: u32 = 6;

/// How an access reaches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    Generic,
    Async,
}

/// One access as the shadow memory remembers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) agent: u32,
    pub(crate) tick: u32,
    pub(crate) proxy: Proxy,
    pub(crate) strong: bool,
    /// Warp (index in the cluster) and instruction that issued it.
    pub(crate) warp: u32,
    pub(crate) pc: u32,
}

/// What the shadow memory adds to an event: the lane that stands for it, and when its lanes were in step.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    event: Event,
    lane: u8,
    epoch: u32,
}

/// An access that is not ordered after an earlier one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub(crate) earlier: Event,
    pub(crate) earlier_writes: bool,
    /// Ordered, but without the proxy fence.
    pub(crate) only_proxy: bool,
    pub(crate) offset: u32,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// Last write, as an index into the events; zero for none.
    write: u32,
    /// Reads since then, as an index into the read sets; zero for none.
    reads: u32,
    write_bytes: u8,
    read_bytes: u8,
    /// The lane of the last write and of the reads.
    write_lane: u8,
    read_lane: u8,
}

/// More than one lane, or none.
const MANY: u8 = 0xff;

/// Lanes of a warp that are in step.
#[derive(Clone, Debug, Default)]
struct Class {
    lanes: u32,
    agent: u32,
    tick: u32,
    /// Changes whenever the lanes come together.
    epoch: u32,
    /// The tick at that moment.
    since: u32,
    /// The class's own tick that came back to it through a barrier: its lanes are in step up to there.
    returned: u32,
    /// The tick of `cp.async` that the lanes have waited for, each for its own copies; and whether the class
    /// is still whole since then, so that its lanes together stand for all of them.
    copied: u32,
    whole: bool,
    now: View,
    /// What a relaxed operation releases: the view at the last fence.
    released: View,
    /// What relaxed loads observed, waiting for a fence.
    observed: View,
    /// What barriers of any strength have waited for: enough to know that a peer is past an access, not
    /// that its writes are visible.
    passed: View,
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
    epochs: u32,
    inits: u32,
    bulk: u32,
}

/// The hazard state of one cluster.
pub(crate) struct Hazards {
    /// Which cluster of the grid this is.
    cluster: u32,
    clocks: Vec<Clock>,
    /// The lanes of the running instruction (with those that have exited), and the first that runs.
    selected: u32,
    lead: u8,
    shadow: Vec<Vec<Cell>>,
    base: u32,
    events: Vec<Recorded>,
    sets: Vec<Vec<u32>>,
    agents: u32,
    /// Views released to shared-memory locations by strong stores and atomics.
    locations: std::collections::HashMap<u64, View>,
    /// Per CTA: the views of its warps at their exits.
    exits: Vec<View>,
}

/// Events and read sets are compacted when they pass this number.
const COMPACT_AT: usize = 1 << 19;

impl Hazards {
    pub(crate) fn new(cluster: u32, warps: usize, ctas: usize, base: u32, bytes: u32) -> Hazards {
        let cells = bytes.div_ceil(4) as usize;
        let event = Event { agent: 0, tick: 0, proxy: Proxy::Generic, strong: false, warp: 0, pc: 0 };
        let clock = |w: u32| {
            let mut class = Class { lanes: u32::MAX, agent: w * UNITS, ..Class::default() };
            class.bump();
            class.since = class.tick;
            Clock { classes: vec![class], ..Clock::default() }
        };
        Hazards {
            cluster,
            clocks: (0..warps as u32).map(clock).collect(),
            selected: u32::MAX,
            lead: 0,
            shadow: vec![vec![Cell::default(); cells]; ctas],
            base,
            events: vec![Recorded { event, lane: MANY, epoch: 0 }],
            sets: vec![Vec::new()],
            agents: warps as u32 * UNITS,
            locations: Default::default(),
            exits: vec![View::default(); ctas],
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

    /// Whether some warp of an exiting CTA has waited for this tick.
    pub(crate) fn exit_covers(&self, cta: usize, agent: u32, tick: u32) -> bool {
        self.exits[cta].has(agent, tick)
    }

    /// An access of another CTA to this CTA's shared memory that no warp of it has waited for.
    pub(crate) fn exit_cta(&self, cta: usize, warps_per_cta: usize) -> Option<Event> {
        let foreign = |e: &Event| {
            e.warp as usize / warps_per_cta != cta && e.tick > 0 && !self.exit_covers(cta, e.agent, e.tick)
        };
        let (mut write, mut reads) = (0, 0);
        for cell in &self.shadow[cta] {
            if cell.write != 0 && cell.write != write {
                write = cell.write;
                if foreign(&self.events[write as usize].event) {
                    return Some(self.events[write as usize].event);
                }
            }
            if cell.reads != 0 && cell.reads != reads {
                reads = cell.reads;
                let set = self.sets[reads as usize].iter().map(|r| &self.events[*r as usize].event);
                if let Some(e) = set.into_iter().find(|e| foreign(e)) {
                    return Some(*e);
                }
            }
        }
        None
    }

    /// The agent of a lane.
    pub(crate) fn lane_agent(&mut self, warp: u32, lane: u8) -> u32 {
        let _ = self.selected(warp).count();
        self.class(warp, lane).agent
    }

    /// An event of the lanes that are in step with `lane`.
    pub(crate) fn thread_event(&mut self, warp: u32, lane: u8, pc: u32, strong: bool) -> u32 {
        let _ = self.selected(warp).count();
        let (agent, tick) = (self.class(warp, lane).agent, self.class(warp, lane).tick);
        self.record(Event { agent, tick, proxy: Proxy::Generic, strong, warp, pc }, lane)
    }

    /// An event of an asynchronous unit, issued by the running lane.
    pub(crate) fn event(&mut self, event: Event) -> u32 {
        let _ = self.selected(event.warp).count();
        self.record(event, self.lead)
    }

    fn record(&mut self, event: Event, lane: u8) -> u32 {
        if self.events.len() >= COMPACT_AT || self.sets.len() >= COMPACT_AT {
            self.compact();
        }
        let epoch = self.class(event.warp, lane).epoch;
        self.events.push(Recorded { event, lane, epoch });
        self.events.len() as u32 - 1
    }

    /// Checks and records one access to `len` bytes of a CTA's shared memory, by one lane or (`None`) by an
    /// asynchronous unit.
    pub(crate) fn access(
        &mut self,
        event: u32,
        lane: Option<u8>,
        cta: usize,
        offset: u32,
        len: u32,
        write: bool,
    ) -> Result<(), Conflict> {
        if len == 0 {
            return Ok(());
        }
        let lane = lane.unwrap_or(MANY);
        let start = offset - self.base;
        let (first, last) = (start / 4, (start + len - 1) / 4);
        let (mut fine_write, mut fine_reads) = (0, 0);
        let (mut from, mut to) = (u32::MAX, 0);
        for c in first..=last {
            let low = start.max(c * 4) - c * 4;
            let high = (start + len).min(c * 4 + 4) - c * 4;
            let bytes = ((1u8 << (high - low)) - 1) << low;
            let mut cell = self.shadow[cta][c as usize];
            if cell.write != 0 && cell.write != fine_write && cell.write_bytes & bytes != 0 {
                self.ordered(cell.write, event, [cell.write_lane, lane], true, write).map_err(
                    |only_proxy| Conflict {
                        earlier: self.events[cell.write as usize].event,
                        earlier_writes: true,
                        only_proxy,
                        offset: c * 4 + self.base,
                    },
                )?;
                fine_write = if lane == MANY { cell.write } else { 0 };
            }
            if write {
                if cell.reads != 0 && cell.reads != fine_reads && cell.read_bytes & bytes != 0 {
                    for r in &self.sets[cell.reads as usize] {
                        self.ordered(*r, event, [cell.read_lane, lane], false, write).map_err(
                            |only_proxy| Conflict {
                                earlier: self.events[*r as usize].event,
                                earlier_writes: false,
                                only_proxy,
                                offset: c * 4 + self.base,
                            },
                        )?;
                    }
                    fine_reads = cell.reads;
                }
                cell = Cell { write: event, write_bytes: bytes, write_lane: lane, ..Cell::default() };
            } else {
                if cell.reads == 0 {
                    cell.read_bytes = 0;
                    cell.read_lane = lane;
                } else if cell.read_lane != lane {
                    cell.read_lane = MANY;
                }
                if cell.reads != from || from == u32::MAX {
                    from = cell.reads;
                    to = self.extend(from, event);
                }
                cell.reads = to;
                cell.read_bytes |= bytes;
            }
            self.shadow[cta][c as usize] = cell;
        }
        Ok(())
    }

    /// Whether the event `earlier` is ordered before `event`; the error says if only the proxy fence is
    /// missing. `lanes` are the lanes of the two accesses.
    fn ordered(
        &self,
        earlier: u32,
        event: u32,
        lanes: [u8; 2],
        earlier_writes: bool,
        writes: bool,
    ) -> Result<(), bool> {
        let Recorded { event: x, epoch, .. } = self.events[earlier as usize];
        let Recorded { event: e, lane, .. } = self.events[event as usize];
        if earlier == event || !earlier_writes && !writes || x.strong && e.strong {
            return Ok(());
        }
        let class = self.class(e.warp, lane);
        let view = &class.now;
        let issuer = if lanes[1] == MANY { lane } else { lanes[1] };
        let same_thread = x.warp == e.warp && lanes[0] == issuer;
        if same_thread && x.agent == Self::agent(e.warp, Unit::CpAsync) {
            if x.tick > class.copied && !view.has(x.agent, x.tick) {
                return Err(false);
            }
        } else if same_thread {
            // Program order.
        } else if x.agent == class.agent {
            // Lanes that were in step: another lane's access since then is not ordered.
            if lanes[1] != MANY && epoch == class.epoch && x.tick > class.returned {
                return Err(false);
            }
        } else if !view.has(x.agent, x.tick) {
            return Err(false);
        }
        if earlier_writes
            && x.proxy == Proxy::Generic
            && e.proxy == Proxy::Async
            && get(&view.proxied, x.agent) < x.tick
        {
            return Err(true);
        }
        Ok(())
    }

    fn extend(&mut self, set: u32, event: u32) -> u32 {
        let Recorded { event: e, lane, .. } = self.events[event as usize];
        let old = &self.sets[set as usize];
        if old.last() == Some(&event) {
            return set;
        }
        let view = &self.class(e.warp, lane).now;
        let mut new: Vec<u32> = old
            .iter()
            .copied()
            .filter(|r| {
                let x = &self.events[*r as usize].event;
                // A later read of the same agent stands for the earlier ones, and so does a read by a
                // warp that has synchronized with them.
                x.agent != e.agent && !view.has(x.agent, x.tick)
            })
            .collect();
        new.push(event);
        self.sets.push(new);
        self.sets.len() as u32 - 1
    }

    /// Drops events and read sets that no cell refers to.
    fn compact(&mut self) {
        let mut events = vec![self.events[0]];
        let mut sets = vec![Vec::new()];
        let mut new_event = std::collections::HashMap::new();
        let mut new_set = std::collections::HashMap::new();
        let mut keep = |old: u32, events: &mut Vec<Recorded>| {
            *new_event.entry(old).or_insert_with(|| {
                events.push(self.events[old as usize]);
                events.len() as u32 - 1
            })
        };
        for cell in self.shadow.iter_mut().flatten() {
            if cell.write != 0 {
                cell.write = keep(cell.write, &mut events);
            }
            if cell.reads != 0 {
                cell.reads = *new_set.entry(cell.reads).or_insert_with(|| {
                    sets.push(self.sets[cell.reads as usize].iter().map(|e| keep(*e, &mut events)).collect());
                    sets.len() as u32 - 1
                });
            }
        }
        self.events = events;
        self.sets = sets;
    }
}
