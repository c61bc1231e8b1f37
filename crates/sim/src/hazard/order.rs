//! Happens-before: lanes that diverge and converge, releases, acquires and fences.

use super::Scope;
use super::view::{View, get, join};
use super::{ByScope, Class, Clock, Event, GlobalEvent, Hazards, Released, Unit};
use crate::lanes::{LANES, lanes};

impl Hazards {
    /// What follows is done by these lanes of a warp; `exited` lanes hold nobody back.
    pub(crate) fn select(&mut self, active: u32, exited: u32) {
        self.selected = active | exited;
        self.lead = active.trailing_zeros() as u8;
    }

    /// Parts the selected lanes of a warp from the others, and gives their classes.
    pub(super) fn selected(&mut self, warp: u32) -> impl Iterator<Item = &mut Class> {
        let (lanes, clock) = (self.selected, &mut self.clocks[warp as usize]);
        for i in 0..clock.classes.len() {
            let inside = clock.classes[i].lanes & lanes;
            if inside == 0 || inside == clock.classes[i].lanes {
                continue;
            }
            let (agent, tick) = clock.spare.pop().unwrap_or_else(|| {
                self.agents += 1;
                (self.agents - 1, 0)
            });
            let whole = &mut clock.classes[i];
            let mut part = Class { lanes: inside, agent, tick, returned: 0, ..whole.clone() };
            // What the others did since they were last in step is not behind these lanes.
            part.now.seen[whole.agent as usize] = (whole.since - 1).max(whole.returned);
            whole.lanes &= !lanes;
            whole.bump();
            part.bump();
            part.since = part.tick;
            clock.classes.push(part);
        }
        clock.classes.iter_mut().filter(move |c| c.lanes & !lanes == 0)
    }

    /// The selected lanes of a warp are in step from here on.
    pub(crate) fn converge(&mut self, warp: u32) {
        let _ = self.selected(warp).count();
        let lanes = self.selected;
        let clock = &mut self.clocks[warp as usize];
        let inside = |c: &Class| c.lanes & !lanes == 0;
        let most = clock.classes.iter().filter(|c| inside(c)).map(|c| c.copied).max().unwrap_or(0);
        let alike = lanes == u32::MAX && clock.classes.iter().all(|c| c.copied == most);
        if most > 0 && !alike {
            // Not all lanes have waited for as many copies: each vouches for its own.
            let agents = clock.copies(&mut self.agents);
            clock.classes.iter_mut().filter(|c| inside(c)).for_each(|c| c.vouch(&agents));
        }
        let mut together: Option<Class> = None;
        let mut i = 0;
        while i < clock.classes.len() {
            if !inside(&clock.classes[i]) {
                i += 1;
                continue;
            }
            let c = clock.classes.swap_remove(i);
            match &mut together {
                None => together = Some(c),
                Some(t) => {
                    t.lanes |= c.lanes;
                    t.now.join(&c.now);
                    t.released.join(&c.released);
                    t.observed.join(&c.observed);
                    t.passed.join(&c.passed);
                    super::view::join(&mut t.ordered, &c.ordered);
                    t.copied = t.copied.min(c.copied);
                    clock.spare.push((c.agent, c.tick));
                }
            }
        }
        if let Some(mut t) = together {
            clock.epochs += 1;
            t.epoch = clock.epochs;
            t.bump();
            t.since = t.tick;
            if lanes == u32::MAX {
                t.now.raise(Self::agent(warp, Unit::CpAsync), t.copied);
            }
            clock.classes.push(t);
        }
    }

    pub(super) fn class(&self, warp: u32, lane: u8) -> &Class {
        let classes = &self.clocks[warp as usize].classes;
        classes.iter().find(|c| c.lanes >> (lane & 31) & 1 == 1).unwrap_or(&classes[0])
    }

    /// What the selected lanes have waited for of their own `cp.async` is part of what they release.
    fn vouch(&mut self, warp: u32) {
        let _ = self.selected(warp).count();
        let selected = self.selected;
        let clock = &mut self.clocks[warp as usize];
        let agent = Self::agent(warp, Unit::CpAsync);
        let news = |c: &Class| c.lanes & !selected == 0 && !c.now.has(agent, c.copied);
        if !clock.classes.iter().any(news) {
            return;
        }
        if let [all] = &mut clock.classes[..] {
            all.now.raise(agent, all.copied);
            return;
        }
        let agents = clock.copies(&mut self.agents);
        clock.classes.iter_mut().filter(|c| news(c)).for_each(|c| c.vouch(&agents));
    }

    /// Whether a view holds the `cp.async` with this tick of one lane of a warp, or (`MANY`) of any of them.
    pub(super) fn has_copied(&self, view: &View, warp: u32, lane: u8, tick: u32) -> bool {
        let own = || {
            let agents = self.clocks[warp as usize].copies.as_ref();
            agents.and_then(|agents| agents.get(lane as usize)).is_some_and(|agent| view.has(*agent, tick))
        };
        view.has(Self::agent(warp, Unit::CpAsync), tick) || own()
    }

    /// Whether a view holds a proxy fence behind the `cp.async` of one lane that the lane itself has waited for.
    pub(super) fn has_fenced_copy(&self, view: &View, copy: &Event, lane: u8) -> bool {
        let agents = self.clocks[copy.warp as usize].copies.as_ref();
        let own = agents.and_then(|agents| agents.get(lane as usize));
        copy.agent == Self::agent(copy.warp, Unit::CpAsync)
            && own.is_some_and(|agent| get(&view.proxied, *agent) >= copy.tick)
    }

    /// Adds the selected lanes' view to a synchronization object, for threads within a scope; a release gives
    /// everything, a relaxed operation what fences released before.
    pub(crate) fn release(&mut self, warp: u32, release: bool, scope: Scope, into: &mut View) {
        self.vouch(warp);
        for c in self.selected(warp) {
            if release {
                into.join(&c.now);
            } else {
                c.released.reaching(scope).for_each(|view| into.join(view));
            }
            c.bump();
        }
    }

    /// Says to a synchronization object how far the selected lanes have come, and nothing of what they have written.
    pub(crate) fn release_nothing(&mut self, warp: u32, into: &mut View) {
        self.vouch(warp);
        for c in self.selected(warp) {
            into.pass(&c.now);
            c.bump();
        }
    }

    /// The same for a location, whoever may come to read it.
    pub(crate) fn release_to(&mut self, warp: u32, release: bool, scope: Scope, into: &mut Released) {
        self.vouch(warp);
        let seat = self.seat(warp);
        for c in self.selected(warp) {
            if release {
                into.add(seat, scope, &c.now);
            } else {
                c.released.iter().for_each(|(reach, view)| into.add(seat, scope.min(*reach), view));
            }
            c.bump();
        }
    }

    /// Whether the selected lanes come after an access to global memory.
    pub(crate) fn comes_after(&mut self, warp: u32, x: &GlobalEvent) -> bool {
        let here = x.seat.cluster == self.cluster;
        self.selected(warp).any(|c| match here {
            true => x.event.agent == c.agent || c.now.has(x.event.agent, x.event.tick),
            false => {
                let other = c.now.others.get(&x.seat.cluster);
                c.now.knows_end(x.seat.device, x.seat.launch)
                    || other.is_some_and(|ticks| get(&ticks.seen, x.event.agent) >= x.event.tick)
            }
        })
    }

    /// The agent of a lane's own `cp.async`.
    pub(crate) fn copies_of(&mut self, warp: u32, lane: usize) -> u32 {
        self.clocks[warp as usize].copies(&mut self.agents)[lane]
    }

    /// The selected lanes have waited for their own `cp.async`.
    pub(crate) fn copied(&mut self, warp: u32, tick: u32) {
        self.selected(warp).for_each(|c| c.copied = c.copied.max(tick));
    }

    /// The selected lanes have learned this from threads at a distance.
    pub(crate) fn acquire(&mut self, warp: u32, acquire: bool, distance: Scope, from: &View) {
        for c in self.selected(warp) {
            if acquire {
                c.returned = c.returned.max(get(&from.seen, c.agent));
                c.now.join(from);
            } else {
                c.observed.at(distance).join(from);
            }
        }
    }

    /// The selected lanes know that this is over.
    pub(crate) fn acquire_nothing(&mut self, warp: u32, from: &View) {
        self.selected(warp).for_each(|c| c.now.pass(from));
    }

    /// The selected lanes have read a location with this scope.
    pub(super) fn acquire_from(&mut self, warp: u32, acquire: bool, scope: Scope, from: &Released) {
        let seat = self.seat(warp);
        for (distance, view) in from.reaching(seat, scope) {
            self.acquire(warp, acquire, distance, &view);
        }
    }

    /// The view of lanes for those who only need to know how far they have come.
    pub(crate) fn pass(&mut self, warp: u32, into: &mut View) {
        self.selected(warp).for_each(|c| into.join(&c.now));
    }

    pub(crate) fn passed(&mut self, warp: u32, from: &View) {
        self.selected(warp).for_each(|c| c.passed.join(from));
    }

    /// Agent and tick of the running lane.
    pub(crate) fn tick(&mut self, warp: u32) -> (u32, u32) {
        let _ = self.selected(warp).count();
        let c = self.class(warp, self.lead);
        (c.agent, c.tick)
    }

    pub(crate) fn exit_warp(&mut self, warp: u32, cta: usize) {
        for c in &self.clocks[warp as usize].classes {
            self.exits[cta].join(&c.now);
            self.exits[cta].join(&c.passed);
            if self.origin.several {
                self.learned.join_foreign(&c.now, &self.origin.clusters);
            }
        }
    }

    /// The selected lanes have waited for an asynchronous unit.
    pub(crate) fn completed(&mut self, warp: u32, agent: u32, tick: u32) {
        self.selected(warp).for_each(|c| c.now.raise(agent, tick));
    }

    pub(crate) fn fence_thread(&mut self, warp: u32, acquire: bool, release: bool, scope: Scope) {
        if release {
            self.vouch(warp);
        }
        for c in self.selected(warp) {
            if acquire {
                c.observed.take(scope).for_each(|observed| c.now.join(&observed));
            }
            if release {
                c.released.set(scope, c.now.clone());
                c.bump();
            }
        }
    }

    /// A proxy fence of the selected lanes for shared memory, global memory, or both.
    pub(crate) fn fence_proxy(&mut self, warp: u32, shared: bool, global: bool) {
        // A thread's own copies that it has waited for are among what it fences.
        self.vouch(warp);
        for c in self.selected(warp) {
            if shared {
                join(&mut c.now.proxied, &c.now.seen);
            }
            if global {
                join(&mut c.now.proxied_global, &c.now.seen);
                c.now.others.values_mut().for_each(|ticks| join(&mut ticks.proxied_global, &ticks.seen));
            }
            c.bump();
        }
    }

    /// A release of tensor maps by the selected lanes: what they know of is behind it.
    pub(crate) fn fence_maps(&mut self, warp: u32) {
        for c in self.selected(warp) {
            join(&mut c.now.mapped, &c.now.seen);
            c.now.others.values_mut().for_each(|ticks| join(&mut ticks.mapped, &ticks.seen));
            c.bump();
        }
    }

    pub(crate) fn fence_mbarrier_init(&mut self, warp: u32) {
        let agent = Self::agent(warp, Unit::MbarInit);
        for c in self.selected(warp) {
            let inits = get(&c.now.seen, agent);
            c.released.at(Scope::Cluster).raise(agent, inits);
        }
    }

    /// A wait of the selected lanes for an mbarrier is over: its agent and tick. Each of them knows of it, whatever else
    /// they do together.
    pub(crate) fn mbarrier_wait(&mut self, warp: u32) -> (u32, u32) {
        self.clocks[warp as usize].waits += 1;
        let (agent, tick) = (Self::agent(warp, Unit::Waits), self.clocks[warp as usize].waits);
        self.selected(warp).for_each(|c| c.now.raise(agent, tick));
        (agent, tick)
    }

    /// The waits for mbarriers that the selected lanes come after, whatever the strength of what they do next.
    pub(crate) fn waits_before(&mut self, warp: u32, into: &mut View) {
        let warps = self.clocks.len() as u32;
        for c in self.selected(warp) {
            for agent in (0..warps).map(|warp| Self::agent(warp, Unit::Waits)) {
                into.raise(agent, c.now.last_past(agent));
            }
        }
    }

    /// A new initialization of an mbarrier by this warp: its tick.
    pub(crate) fn mbarrier_init(&mut self, warp: u32) -> u32 {
        self.clocks[warp as usize].inits += 1;
        let inits = self.clocks[warp as usize].inits;
        self.selected(warp).for_each(|c| c.now.raise(Self::agent(warp, Unit::MbarInit), inits));
        inits
    }

    /// Whether the running lane has synchronized with a tick.
    pub(crate) fn has_seen(&self, warp: u32, agent: u32, tick: u32) -> bool {
        self.class(warp, self.lead).now.has(agent, tick)
    }

    /// The tick of a new bulk store of this warp.
    pub(crate) fn bulk_tick(&mut self, warp: u32) -> u32 {
        let c = &mut self.clocks[warp as usize];
        c.bulk += 1;
        c.bulk
    }

    /// A strong store or atomic to a location of shared memory: releases to it.
    pub(crate) fn release_location(&mut self, warp: u32, location: u64, release: bool, scope: Scope) {
        let mut released = self.locations.remove(&location).unwrap_or_default();
        self.release_to(warp, release, scope, &mut released);
        self.locations.insert(location, released);
    }

    pub(crate) fn acquire_location(&mut self, warp: u32, location: u64, acquire: bool, scope: Scope) {
        if let Some(released) = self.locations.remove(&location) {
            self.acquire_from(warp, acquire, scope, &released);
            self.locations.insert(location, released);
        }
    }

    /// The selected lanes come to a barrier of their block: what they observed through relaxed operations counts
    /// as acquired, and what they released by a fence counts as released by whoever waits with them. A fence should
    /// stand on the other side of the barrier too; almost nobody writes it.
    pub(crate) fn named_barrier(&mut self, warp: u32, fenced: &mut ByScope) {
        self.fence_thread(warp, true, false, Scope::Gpu);
        self.selected(warp).for_each(|c| fenced.join(&c.released));
    }

    /// The selected lanes have passed a barrier behind lanes that released this by fences.
    pub(crate) fn acquire_fenced(&mut self, warp: u32, fenced: &ByScope) {
        self.selected(warp).for_each(|c| c.released.join(fenced));
    }
}

impl Clock {
    /// The agents of the lanes' own copies.
    fn copies(&mut self, agents: &mut u32) -> [u32; LANES] {
        **self.copies.get_or_insert_with(|| {
            let first = *agents;
            *agents += LANES as u32;
            Box::new(std::array::from_fn(|lane| first + lane as u32))
        })
    }
}

impl Class {
    /// Each lane has waited for its own copies.
    fn vouch(&mut self, agents: &[u32; LANES]) {
        for lane in lanes(self.lanes) {
            self.now.raise(agents[lane], self.copied);
        }
    }
}
