//! Races in global memory: who touched each word last, in the whole grid.
//!
//! Within a cluster the order of two accesses is that of its clocks, as for shared memory. Between clusters only
//! global memory itself can order them: a strong store or an atomic releases a view to its location, and whoever
//! reads that location acquires it. A word records its last write and its last two readers.
//!
//! Where a strict reading of the memory model would condemn what everybody writes, it is let pass: a write of the
//! bytes that are there already, a plain read of what others change by atomics, and a barrier of the block between
//! a fence and the relaxed atomic that it should stand next to (see `named_barrier`).

use super::Scope;
use super::maps::Acquires;
use super::shadow::MANY;
use super::view::{Ticks, View, get};
use super::{Class, Event, Footprint, Hazards, Missing, Proxy, Released, Seat, Unit};
use std::collections::{BTreeMap, HashMap};

/// An access to global memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalEvent {
    pub(crate) event: Event,
    pub(crate) seat: Seat,
    /// The CTA, by its index in the grid.
    pub(crate) cta: u32,
    /// The lane that stands for it, and when its lanes were in step.
    lane: u8,
    epoch: u32,
}

impl GlobalEvent {
    /// The lane that stands for it.
    pub(crate) fn lane(&self) -> u8 {
        self.lane
    }
}

/// An access that is not ordered after an earlier one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalConflict {
    pub(crate) earlier: GlobalEvent,
    pub(crate) earlier_writes: bool,
    pub(crate) missing: Missing,
    pub(crate) address: u64,
}

/// One access in a word: its event (0 for none), its bytes and its lane.
#[derive(Clone, Copy, Default)]
struct Touch {
    event: u32,
    bytes: u8,
    lane: u8,
}

#[derive(Clone, Copy, Default)]
struct Word {
    write: Touch,
    reads: [Touch; 2],
}

/// Words of a page of the shadow.
pub(super) const PAGE: u64 = 256;
/// When there are this many events the shadow starts anew, and misses what spans that moment.
const MAX_EVENTS: usize = 1 << 22;

/// The shadow of global memory during one grid.
#[derive(Default)]
pub(crate) struct GlobalShadow {
    pages: HashMap<u64, Box<[Word]>>,
    events: Vec<GlobalEvent>,
    /// What strong stores and atomics released to locations, by cluster; and by block where the kernel has scopes
    /// that are narrower than the GPU.
    locations: HashMap<u64, BTreeMap<u32, Ticks>>,
    scoped: Option<HashMap<u64, Released>>,
    /// Who acquired the tensor maps at addresses.
    pub(super) acquires: HashMap<u64, Acquires>,
    /// Whether a thread has waited for the kernel before, and whether one has let the next start without knowing
    /// that it has ended.
    pub(crate) waited: bool,
    pub(crate) launched_early: bool,
}

impl GlobalShadow {
    /// The shadow at the start of a grid; `scoped` where its kernel has scopes narrower than the GPU.
    pub(crate) fn new(scoped: bool) -> GlobalShadow {
        GlobalShadow { scoped: scoped.then(HashMap::new), ..GlobalShadow::default() }
    }

    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> u64 {
        let pages = self.pages.len() as u64 * PAGE * size_of::<Word>() as u64;
        let released = self.scoped.as_ref().map_or(0, HashMap::len) + self.locations.len();
        pages + (self.events.capacity() * size_of::<GlobalEvent>()) as u64 + released as u64 * 128
    }

    /// What the grid has touched, for the kernel that follows it; with what those before it have, where the next may
    /// start before they have ended.
    pub(crate) fn footprint(&self, kernel: &str, before: Option<&Footprint>) -> Footprint {
        let mut footprint = Footprint::new(kernel);
        if let Some(before) = before.filter(|_| !self.waited || self.launched_early) {
            footprint.join(before);
        }
        for (page, words) in &self.pages {
            let touches = words.iter().map(|word| (word.write.event != 0, word.reads[0].event != 0));
            footprint.touch(*page, touches);
        }
        footprint
    }

    /// Forgets everything: all that it knows of is ordered before what comes.
    pub(crate) fn forget(&mut self) {
        *self = GlobalShadow::new(self.scoped.is_some());
    }

    /// The last write to a word: its event and its lane.
    pub(super) fn write_of(&self, word: u64) -> Option<(u32, u8)> {
        let write = self.pages.get(&(word / PAGE))?[(word % PAGE) as usize].write;
        (write.event != 0).then_some((write.event, write.lane))
    }

    /// An event by its number, and the number of events.
    pub(crate) fn event(&self, number: u32) -> GlobalEvent {
        self.events[number as usize - 1]
    }

    pub(super) fn events(&self) -> u32 {
        self.events.len() as u32
    }

    /// Remembers an event; accesses refer to it.
    pub(crate) fn record(&mut self, event: GlobalEvent) -> u32 {
        if self.events.len() >= MAX_EVENTS {
            self.events.clear();
            self.pages.clear();
            self.acquires.clear();
        }
        self.events.push(event);
        self.events.len() as u32
    }

    /// Checks and records one access, by one lane or (`None`) by an asynchronous unit. A write of what is there
    /// already (`same`) does not conflict with an earlier write. Gives the first conflict.
    pub(crate) fn access(
        &mut self,
        hazards: &Hazards,
        event: u32,
        lane: Option<u8>,
        range: (u64, u64),
        write: bool,
        same: bool,
    ) -> Result<(), GlobalConflict> {
        let lane = lane.unwrap_or(MANY);
        let (start, end) = (range.0, range.0 + range.1);
        let now = self.events[event as usize - 1];
        let class = hazards.class(now.event.warp, now.lane);
        let mut conflict = Ok(());
        let mut at = start & !3;
        while at < end {
            let index = at / 4;
            let page = self
                .pages
                .entry(index / PAGE)
                .or_insert_with(|| vec![Word::default(); PAGE as usize].into_boxed_slice());
            while at < end && at / 4 / PAGE == index / PAGE {
                let word = &mut page[(at / 4 % PAGE) as usize];
                let low = start.max(at) - at;
                let high = end.min(at + 4) - at;
                let touch = Touch { event, bytes: (((1u8 << (high - low)) - 1) << low), lane };
                let check = |earlier: Touch, earlier_writes: bool| {
                    if earlier.event == 0 || earlier.event == event || earlier.bytes & touch.bytes == 0 {
                        return Ok(());
                    }
                    let x = &self.events[earlier.event as usize - 1];
                    ordered(hazards, class, x, earlier.lane, &now, lane, [earlier_writes, write]).map_err(
                        |missing| GlobalConflict { earlier: *x, earlier_writes, missing, address: at },
                    )
                };
                if conflict.is_ok() && !(write && same) {
                    conflict = check(word.write, true);
                }
                if write {
                    if conflict.is_ok() {
                        conflict = check(word.reads[0], false).and_then(|()| check(word.reads[1], false));
                    }
                    *word = Word { write: touch, ..Word::default() };
                } else if word.reads[0].event == 0 || same_reader(&self.events, word.reads[0], touch) {
                    word.reads[0] = Touch { bytes: word.reads[0].bytes | touch.bytes, ..touch };
                } else {
                    word.reads[1] = touch;
                }
                at += 4;
            }
        }
        conflict
    }

    /// A strong store or atomic of the selected lanes: releases to the location.
    pub(crate) fn release(
        &mut self,
        hazards: &mut Hazards,
        warp: u32,
        location: u64,
        release: bool,
        scope: Scope,
    ) {
        if let Some(scoped) = &mut self.scoped {
            hazards.release_to(warp, release, scope, scoped.entry(location).or_default());
            return;
        }
        let mut view = View::default();
        hazards.release(warp, release, scope.min(Scope::Gpu), &mut view);
        let released = self.locations.entry(location).or_default();
        released.entry(hazards.cluster).or_default().join(&view.own());
        for (cluster, ticks) in &view.others {
            released.entry(*cluster).or_default().join(ticks);
        }
    }

    /// What a store releases to its location when other devices see it.
    pub(crate) fn publish(&mut self, location: u64, released: &Released) {
        if let Some(scoped) = self.scoped.as_mut().filter(|_| !released.is_empty()) {
            scoped.entry(location).or_default().join(released);
        }
    }

    /// A strong load or atomic of the selected lanes: acquires what was released there.
    pub(crate) fn acquire(
        &self,
        hazards: &mut Hazards,
        warp: u32,
        location: u64,
        acquire: bool,
        scope: Scope,
    ) {
        if let Some(scoped) = &self.scoped {
            if let Some(released) = scoped.get(&location) {
                hazards.acquire_from(warp, acquire, scope, released);
            }
        } else if let Some(released) = self.locations.get(&location) {
            let view = View::of_clusters(released.clone(), hazards.cluster, Vec::new());
            hazards.acquire(warp, acquire, scope.min(Scope::Gpu), &view);
        }
    }
}

/// Whether a read stands for an earlier one: the same lanes of the same warp.
fn same_reader(events: &[GlobalEvent], earlier: Touch, now: Touch) -> bool {
    let (x, e) = (&events[earlier.event as usize - 1], &events[now.event as usize - 1]);
    (x.seat.cluster, x.event.agent) == (e.seat.cluster, e.event.agent) && earlier.lane == now.lane
}

/// The tick of `x`'s agent in a view: of its own cluster, or of another one.
pub(super) fn own_or_other(
    hazards: &Hazards,
    view: &View,
    x: &GlobalEvent,
    which: fn(&Ticks) -> &Vec<u32>,
    own: fn(&View) -> &Vec<u32>,
) -> u32 {
    if x.seat.cluster == hazards.cluster {
        get(own(view), x.event.agent)
    } else {
        view.others.get(&x.seat.cluster).map_or(0, |ticks| get(which(ticks), x.event.agent))
    }
}

/// Whether `x` is ordered before `e`, or else what is missing.
pub(super) fn ordered(
    hazards: &Hazards,
    class: &Class,
    x: &GlobalEvent,
    x_lane: u8,
    e: &GlobalEvent,
    e_lane: u8,
    [x_writes, e_writes]: [bool; 2],
) -> Result<(), Missing> {
    if class.now.knows_end(x.seat.device, x.seat.launch) {
        return Ok(());
    }
    let mut missing = Missing::Order;
    let near = x.seat.device == e.seat.device;
    match (x.event.strong, e.event.strong) {
        // Two strong accesses may meet, if each has the other in its scope.
        (Some(a), Some(b)) if a.min(b) >= x.seat.distance(e.seat) => return Ok(()),
        (Some(_), Some(_)) => missing = Missing::Scope,
        // A plain read may meet a strong write on the same device: `atomicCAS` loops begin with one.
        (Some(_), None) if !e_writes && near => return Ok(()),
        (None, Some(_)) if !x_writes && near => return Ok(()),
        _ => {}
    }
    let here = x.seat.cluster == hazards.cluster;
    let ticks = |view: &View, which: fn(&Ticks) -> &Vec<u32>, own: fn(&View) -> &Vec<u32>| -> u32 {
        own_or_other(hazards, view, x, which, own)
    };
    let seen = |view: &View| {
        view.knows_end(x.seat.device, x.seat.launch) || ticks(view, |t| &t.seen, |v| &v.seen) >= x.event.tick
    };
    let issuer = if e_lane == MANY { e.lane } else { e_lane };
    let same_thread = here && x.event.warp == e.event.warp && x_lane == issuer;
    if here && x.event.agent == Hazards::agent(x.event.warp, Unit::CpAsync) {
        let own = same_thread && x.event.tick <= class.copied;
        if !own && !hazards.has_copied(&class.now, x.event.warp, x_lane, x.event.tick) {
            return Err(missing);
        }
    } else if same_thread {
        // Program order.
    } else if here && x.event.agent == class.agent {
        // Lanes that were in step: another lane's access since then is not ordered.
        if e_lane != MANY && x.epoch == class.epoch && x.event.tick > class.returned {
            return Err(missing);
        }
    } else if !(seen(&class.now) || x.event.strong.is_some() && class.observed.iter().any(|o| seen(&o.1))) {
        return Err(missing);
    }
    let fenced = ticks(&class.now, |t| &t.proxied_global, |v| &v.proxied_global) >= x.event.tick;
    if x_writes && x.event.proxy == Proxy::Generic && e.event.proxy == Proxy::Async && !fenced {
        return Err(Missing::ProxyFence);
    }
    Ok(())
}

impl Hazards {
    /// An access to global memory by the lanes that are in step with `lane`.
    pub(crate) fn global_thread_event(
        &mut self,
        warp: u32,
        lane: u8,
        pc: u32,
        strong: Option<Scope>,
        cta: u32,
    ) -> GlobalEvent {
        let agent = self.lane_agent(warp, lane);
        let tick = self.class(warp, lane).tick;
        let event = Event { agent, tick, proxy: Proxy::Generic, strong, warp, pc };
        GlobalEvent { event, seat: self.seat(warp), cta, lane, epoch: self.class(warp, lane).epoch }
    }

    /// An access to global memory by an asynchronous unit, issued by the running lane.
    pub(crate) fn global_unit_event(&mut self, event: Event, cta: u32) -> GlobalEvent {
        let _ = self.selected(event.warp).count();
        let lane = self.lead;
        let epoch = self.class(event.warp, lane).epoch;
        GlobalEvent { event, seat: self.seat(event.warp), cta, lane, epoch }
    }

    /// The writes of a bulk store with this tick.
    pub(crate) fn bulk_write(event: Event) -> Event {
        Event { agent: Self::agent(event.warp, Unit::BulkWrite), ..event }
    }
}
