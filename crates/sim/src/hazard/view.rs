//! Vector clocks: up to which tick of every agent somebody has synchronized.

use std::collections::BTreeMap;
use std::ops::Range;

/// What a warp, or a barrier on its behalf, has synchronized with.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(super) seen: Vec<u32>,
    pub(super) proxied: Vec<u32>,
    pub(super) proxied_global: Vec<u32>,
    /// What a release of tensor maps came after.
    pub(super) mapped: Vec<u32>,
    /// What is known to be over, though its writes may not be visible: arrivals with too narrow a scope say so.
    past: Vec<u32>,
    /// The same for other clusters, with which only global memory synchronizes.
    pub(super) others: BTreeMap<u32, Ticks>,
    /// How many grids of each device are known to have ended, where there are several devices.
    pub(super) grids: Vec<u32>,
}

/// The ticks of one cluster's agents: seen as such, through a proxy fence for shared and for global memory, and
/// through a release of tensor maps.
#[derive(Clone, Debug, Default)]
pub(super) struct Ticks {
    pub(super) seen: Vec<u32>,
    pub(super) proxied: Vec<u32>,
    pub(super) proxied_global: Vec<u32>,
    pub(super) mapped: Vec<u32>,
}

impl Ticks {
    pub(super) fn join(&mut self, other: &Ticks) {
        join(&mut self.seen, &other.seen);
        join(&mut self.proxied, &other.proxied);
        join(&mut self.proxied_global, &other.proxied_global);
        join(&mut self.mapped, &other.mapped);
    }
}

pub(super) fn join(into: &mut Vec<u32>, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

pub(super) fn get(of: &[u32], agent: u32) -> u32 {
    of.get(agent as usize).copied().unwrap_or(0)
}

impl View {
    pub(crate) fn join(&mut self, other: &View) {
        join(&mut self.seen, &other.seen);
        join(&mut self.proxied, &other.proxied);
        join(&mut self.proxied_global, &other.proxied_global);
        join(&mut self.mapped, &other.mapped);
        join(&mut self.past, &other.past);
        for (cluster, ticks) in &other.others {
            self.others.entry(*cluster).or_default().join(ticks);
        }
        join(&mut self.grids, &other.grids);
    }

    /// Whether a grid of a device is known to have ended.
    pub(super) fn knows_end(&self, device: u32, launch: u32) -> bool {
        get(&self.grids, device) > launch
    }

    /// Takes what a view knows of clusters that are not among `own`.
    pub(crate) fn join_foreign(&mut self, other: &View, own: &Range<u32>) {
        for (cluster, ticks) in other.others.iter().filter(|(cluster, _)| !own.contains(cluster)) {
            self.others.entry(*cluster).or_default().join(ticks);
        }
        join(&mut self.grids, &other.grids);
    }

    /// The first `grids` of a device have ended.
    pub(crate) fn raise_grids(&mut self, device: u32, grids: u32) {
        let i = device as usize;
        if self.grids.len() <= i {
            self.grids.resize(i + 1, 0);
        }
        self.grids[i] = self.grids[i].max(grids);
    }

    /// Forgets of clusters what follows from the end of their grids: device and number of the grid of each.
    pub(crate) fn forget_ended(&mut self, grid_of: impl Fn(u32) -> (u32, u32)) {
        let grids = std::mem::take(&mut self.grids);
        self.others.retain(|cluster, _| {
            let (device, launch) = grid_of(*cluster);
            get(&grids, device) <= launch
        });
        self.grids = grids;
    }

    /// Everything in the other view is over.
    pub(crate) fn pass(&mut self, other: &View) {
        join(&mut self.past, &other.seen);
        join(&mut self.past, &other.past);
    }

    pub(crate) fn raise(&mut self, agent: u32, tick: u32) {
        let i = agent as usize;
        if self.seen.len() <= i {
            self.seen.resize(i + 1, 0);
        }
        self.seen[i] = self.seen[i].max(tick);
    }

    pub(crate) fn has(&self, agent: u32, tick: u32) -> bool {
        get(&self.seen, agent) >= tick
    }

    /// Whether this is known to be over, visible or not.
    pub(crate) fn is_past(&self, agent: u32, tick: u32) -> bool {
        self.has(agent, tick) || get(&self.past, agent) >= tick
    }

    /// The last tick of an agent that is known to be over.
    pub(super) fn last_past(&self, agent: u32) -> u32 {
        get(&self.seen, agent).max(get(&self.past, agent))
    }

    pub(crate) fn clear(&mut self) {
        self.seen.clear();
        self.proxied.clear();
        self.proxied_global.clear();
        self.mapped.clear();
        self.past.clear();
        self.others.clear();
        self.grids.clear();
    }

    /// The ticks of the view's own cluster.
    pub(super) fn own(&self) -> Ticks {
        let (seen, proxied, proxied_global) =
            (self.seen.clone(), self.proxied.clone(), self.proxied_global.clone());
        Ticks { seen, proxied, proxied_global, mapped: self.mapped.clone() }
    }

    /// The view of a cluster that knows these ticks of all clusters.
    pub(super) fn of_clusters(mut clusters: BTreeMap<u32, Ticks>, own: u32, grids: Vec<u32>) -> View {
        let Ticks { seen, proxied, proxied_global, mapped } = clusters.remove(&own).unwrap_or_default();
        View { seen, proxied, proxied_global, mapped, past: Vec::new(), others: clusters, grids }
    }

    /// What a thread of cluster `to` learns from a view of cluster `from`.
    pub(super) fn between(&self, from: u32, to: u32) -> View {
        let mut clusters = self.others.clone();
        clusters.insert(from, self.own());
        View::of_clusters(clusters, to, self.grids.clone())
    }
}
