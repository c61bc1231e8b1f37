//! Who is ordered after whom: lanes that part and come together, releases, acquires and fences.

use super::{Class, Hazards, Unit, View, get, join};

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
            whole.whole = false;
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
        let mut together: Option<Class> = None;
        let mut i = 0;
        while i < clock.classes.len() {
            if clock.classes[i].lanes & !lanes != 0 {
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
                    t.copied = t.copied.max(c.copied);
                    clock.spare.push((c.agent, c.tick));
                }
            }
        }
        if let Some(mut t) = together {
            clock.epochs += 1;
            t.epoch = clock.epochs;
            t.bump();
            t.since = t.tick;
            let copied = t.copied;
            t.now.raise(Self::agent(warp, Unit::CpAsync), copied);
            clock.classes.push(t);
        }
    }

    pub(super) fn class(&self, warp: u32, lane: u8) -> &Class {
        let classes = &self.clocks[warp as usize].classes;
        classes.iter().find(|c| c.lanes >> (lane & 31) & 1 == 1).unwrap_or(&classes[0])
    }

    /// Adds the selected lanes' view to a synchronization object; a release gives everything, a relaxed
    /// operation what a fence released before.
    pub(crate) fn release(&mut self, warp: u32, release: bool, into: &mut View) {
        for c in self.selected(warp) {
            if c.whole {
                let copied = c.copied;
                c.now.raise(Self::agent(warp, Unit::CpAsync), copied);
            }
            into.join(if release { &c.now } else { &c.released });
            c.bump();
        }
    }

    /// The selected lanes have waited for their own `cp.async`.
    pub(crate) fn copied(&mut self, warp: u32, tick: u32) {
        let everyone = self.clocks[warp as usize].classes.len() == 1;
        for c in self.selected(warp) {
            c.copied = c.copied.max(tick);
            c.whole = everyone;
        }
    }

    pub(crate) fn acquire(&mut self, warp: u32, acquire: bool, from: &View) {
        for c in self.selected(warp) {
            if acquire {
                c.returned = c.returned.max(get(&from.seen, c.agent));
                c.now.join(from);
            } else {
                c.observed.join(from);
            }
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
        }
    }

    /// The selected lanes have waited for an asynchronous unit.
    pub(crate) fn completed(&mut self, warp: u32, agent: u32, tick: u32) {
        self.selected(warp).for_each(|c| c.now.raise(agent, tick));
    }

    pub(crate) fn fence_thread(&mut self, warp: u32, acquire: bool, release: bool) {
        for c in self.selected(warp) {
            if acquire {
                let observed = std::mem::take(&mut c.observed);
                c.now.join(&observed);
            }
            if release {
                c.released = c.now.clone();
                c.bump();
            }
        }
    }

    /// A proxy fence of the selected lanes for shared memory, global memory, or both.
    pub(crate) fn fence_proxy(&mut self, warp: u32, shared: bool, global: bool) {
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

    pub(crate) fn fence_mbarrier_init(&mut self, warp: u32) {
        let agent = Self::agent(warp, Unit::MbarInit);
        for c in self.selected(warp) {
            let inits = get(&c.now.seen, agent);
            c.released.raise(agent, inits);
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
}
