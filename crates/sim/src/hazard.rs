//! Shared-memory hazards: who touched each word last, and what orders the next access after it.
//!
//! Time is a vector clock. Its components are *agents*: every warp (program order within a warp counts as
//! order), and every unit that works on its own (a warp's `wgmma`, its bulk stores, its `cp.async`, and
//! each mbarrier for the copies that report to it). A warp's [`View`] says up to which tick of every
//! agent it has synchronized, twice: once as such, and once through a proxy fence. A generic write must
//! be in the second view of the thread that starts an asynchronous access to the same bytes; everything
//! else needs the first view only.
//!
//! An asynchronous access enters the shadow memory when it is issued, with a tick that its completion
//! mechanism hands out later: the phase of the mbarrier, or the number of the group. So a missing wait
//! is found under every schedule, also one where the copy happens to be early.

/// What a warp, or a barrier on its behalf, has synchronized with.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    seen: Vec<u32>,
    proxied: Vec<u32>,
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
    }
}

/// The units of one warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Wgmma = 1,
    BulkStore,
    CpAsync,
    MbarInit,
}

/// Agents per warp; the first is the warp's own threads.
const UNITS: u32 = 5;

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
}

#[derive(Clone, Debug, Default)]
struct Clock {
    now: View,
    /// What a relaxed operation releases: the view at the last fence.
    released: View,
    /// What relaxed loads observed, waiting for a fence.
    observed: View,
    /// What barriers of any strength have waited for: enough to know that a peer is past an access, not
    /// that its writes are visible.
    passed: View,
    tick: u32,
    inits: u32,
    bulk: u32,
}

/// The hazard state of one cluster.
pub(crate) struct Hazards {
    clocks: Vec<Clock>,
    shadow: Vec<Vec<Cell>>,
    base: u32,
    events: Vec<Event>,
    sets: Vec<Vec<u32>>,
    agents: u32,
    /// Views released to memory locations by strong stores and atomics.
    locations: std::collections::HashMap<u64, View>,
    /// Per CTA: the views of its warps at their exits.
    exits: Vec<View>,
}

/// Events and read sets are compacted when they pass this number.
const COMPACT_AT: usize = 1 << 19;

impl Hazards {
    pub(crate) fn new(warps: usize, ctas: usize, base: u32, bytes: u32) -> Hazards {
        let cells = bytes.div_ceil(4) as usize;
        let dummy = Event { agent: 0, tick: 0, proxy: Proxy::Generic, strong: false, warp: 0, pc: 0 };
        let mut hazards = Hazards {
            clocks: vec![Clock { tick: 1, ..Clock::default() }; warps],
            shadow: vec![vec![Cell::default(); cells]; ctas],
            base,
            events: vec![dummy],
            sets: vec![Vec::new()],
            agents: warps as u32 * UNITS,
            locations: Default::default(),
            exits: vec![View::default(); ctas],
        };
        for w in 0..warps as u32 {
            hazards.clocks[w as usize].now.raise(w * UNITS, 1);
        }
        hazards
    }

    pub(crate) fn agent(warp: u32, unit: Unit) -> u32 {
        warp * UNITS + unit as u32
    }

    /// An agent for a new mbarrier.
    pub(crate) fn new_agent(&mut self) -> u32 {
        self.agents += 1;
        self.agents - 1
    }

    fn bump(&mut self, warp: u32) {
        let c = &mut self.clocks[warp as usize];
        c.tick += 1;
        raise(&mut c.now.seen, warp * UNITS, c.tick);
    }

    /// Adds the warp's view to a synchronization object; `strong` operations release everything, relaxed
    /// ones what a fence released before.
    pub(crate) fn release(&mut self, warp: u32, release: bool, into: &mut View) {
        let c = &self.clocks[warp as usize];
        into.join(if release { &c.now } else { &c.released });
        self.bump(warp);
    }

    pub(crate) fn acquire(&mut self, warp: u32, acquire: bool, from: &View) {
        let c = &mut self.clocks[warp as usize];
        if acquire { c.now.join(from) } else { c.observed.join(from) }
    }

    /// The warp's view for those who only need to know how far it has come.
    pub(crate) fn pass(&self, warp: u32, into: &mut View) {
        into.join(&self.clocks[warp as usize].now);
    }

    pub(crate) fn passed(&mut self, warp: u32, from: &View) {
        self.clocks[warp as usize].passed.join(from);
    }

    /// The tick of the warp's threads.
    pub(crate) fn tick(&self, warp: u32) -> (u32, u32) {
        (warp * UNITS, self.clocks[warp as usize].tick)
    }

    pub(crate) fn exit_warp(&mut self, warp: u32, cta: usize) {
        let c = &self.clocks[warp as usize];
        self.exits[cta].join(&c.now);
        self.exits[cta].join(&c.passed);
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
                if foreign(&self.events[write as usize]) {
                    return Some(self.events[write as usize]);
                }
            }
            if cell.reads != 0 && cell.reads != reads {
                reads = cell.reads;
                if let Some(r) =
                    self.sets[reads as usize].iter().find(|r| foreign(&self.events[**r as usize]))
                {
                    return Some(self.events[*r as usize]);
                }
            }
        }
        None
    }

    /// The warp has waited for an asynchronous unit.
    pub(crate) fn completed(&mut self, warp: u32, agent: u32, tick: u32) {
        self.clocks[warp as usize].now.raise(agent, tick);
    }

    pub(crate) fn fence_thread(&mut self, warp: u32, acquire: bool, release: bool) {
        let c = &mut self.clocks[warp as usize];
        if acquire {
            let observed = std::mem::take(&mut c.observed);
            c.now.join(&observed);
        }
        if release {
            c.released = c.now.clone();
            self.bump(warp);
        }
    }

    pub(crate) fn fence_proxy(&mut self, warp: u32) {
        let c = &mut self.clocks[warp as usize];
        let seen = c.now.seen.clone();
        join(&mut c.now.proxied, &seen);
        self.bump(warp);
    }

    pub(crate) fn fence_mbarrier_init(&mut self, warp: u32) {
        let c = &mut self.clocks[warp as usize];
        let inits = c.inits;
        c.released.raise(Self::agent(warp, Unit::MbarInit), inits);
    }

    /// A new initialization of an mbarrier by this warp: its tick.
    pub(crate) fn mbarrier_init(&mut self, warp: u32) -> u32 {
        let c = &mut self.clocks[warp as usize];
        c.inits += 1;
        let inits = c.inits;
        c.now.raise(Self::agent(warp, Unit::MbarInit), inits);
        inits
    }

    pub(crate) fn has_seen(&self, warp: u32, agent: u32, tick: u32) -> bool {
        self.clocks[warp as usize].now.has(agent, tick)
    }

    /// The tick of a new bulk store of this warp.
    pub(crate) fn bulk_tick(&mut self, warp: u32) -> u32 {
        let c = &mut self.clocks[warp as usize];
        c.bulk += 1;
        c.bulk
    }

    /// A strong store or atomic to a location: releases to it.
    pub(crate) fn release_location(&mut self, warp: u32, location: u64, release: bool) {
        let mut view = self.locations.remove(&location).unwrap_or_default();
        self.release(warp, release, &mut view);
        self.locations.insert(location, view);
    }

    pub(crate) fn acquire_location(&mut self, warp: u32, location: u64, acquire: bool) {
        if let Some(view) = self.locations.get(&location).cloned() {
            self.acquire(warp, acquire, &view);
        }
    }

    /// An event of the warp's own threads.
    pub(crate) fn thread_event(&mut self, warp: u32, pc: u32, strong: bool) -> u32 {
        let tick = self.clocks[warp as usize].tick;
        self.event(Event { agent: warp * UNITS, tick, proxy: Proxy::Generic, strong, warp, pc })
    }

    pub(crate) fn event(&mut self, event: Event) -> u32 {
        if self.events.len() >= COMPACT_AT || self.sets.len() >= COMPACT_AT {
            self.compact();
        }
        self.events.push(event);
        self.events.len() as u32 - 1
    }

    /// Checks and records one access to `len` bytes of a CTA's shared memory.
    pub(crate) fn access(
        &mut self,
        event: u32,
        cta: usize,
        offset: u32,
        len: u32,
        write: bool,
    ) -> Result<(), Conflict> {
        if len == 0 {
            return Ok(());
        }
        let e = self.events[event as usize];
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
                self.ordered(cell.write, &e, true, write).map_err(|only_proxy| Conflict {
                    earlier: self.events[cell.write as usize],
                    earlier_writes: true,
                    only_proxy,
                    offset: c * 4 + self.base,
                })?;
                fine_write = cell.write;
            }
            if write {
                if cell.reads != 0 && cell.reads != fine_reads && cell.read_bytes & bytes != 0 {
                    for r in &self.sets[cell.reads as usize] {
                        self.ordered(*r, &e, false, write).map_err(|only_proxy| Conflict {
                            earlier: self.events[*r as usize],
                            earlier_writes: false,
                            only_proxy,
                            offset: c * 4 + self.base,
                        })?;
                    }
                    fine_reads = cell.reads;
                }
                cell = Cell { write: event, write_bytes: bytes, ..Cell::default() };
            } else {
                if cell.reads == 0 {
                    cell.read_bytes = 0;
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

    /// Whether the event `earlier` is ordered before an access by `e`; the error says if only the proxy
    /// fence is missing.
    fn ordered(&self, earlier: u32, e: &Event, earlier_writes: bool, writes: bool) -> Result<(), bool> {
        let x = &self.events[earlier as usize];
        if !earlier_writes && !writes || x.strong && e.strong {
            return Ok(());
        }
        // Copies of one phase, or products of one warp, that overlap are still unordered among themselves,
        // except reads and a warp's own thread.
        let view = &self.clocks[e.warp as usize].now;
        let same_thread = x.agent == e.warp * UNITS;
        if !same_thread && !view.has(x.agent, x.tick) {
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
        let e = self.events[event as usize];
        let old = &self.sets[set as usize];
        if old.last() == Some(&event) {
            return set;
        }
        let view = &self.clocks[e.warp as usize].now;
        let mut new: Vec<u32> = old
            .iter()
            .copied()
            .filter(|r| {
                let x = &self.events[*r as usize];
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
        let mut keep = |old: u32, events: &mut Vec<Event>| {
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
