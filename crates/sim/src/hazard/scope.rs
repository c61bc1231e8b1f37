//! Scopes: a release and an acquire synchronize if the scope of each includes the thread of the other.

use super::view::View;

/// How far a strong operation reaches, from the narrowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Cluster,
    Gpu,
    /// All GPUs, and the host.
    Sys,
}

/// The place of a thread, as far as scopes tell threads apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) device: u32,
    /// The number of the grid among those of its device.
    pub(crate) launch: u32,
    /// The cluster, by its number among all of the world.
    pub(crate) cluster: u32,
    /// The CTA, by its rank in the cluster.
    pub(crate) cta: u32,
}

impl Seat {
    /// The narrowest scope that includes both.
    pub(crate) fn distance(self, other: Seat) -> Scope {
        match () {
            () if self == other => Scope::Cta,
            () if self.cluster == other.cluster => Scope::Cluster,
            () if self.device == other.device => Scope::Gpu,
            () => Scope::Sys,
        }
    }
}

/// Views, each for threads within a scope of where it comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct ByScope(Vec<(Scope, View)>);

impl ByScope {
    /// The view for exactly this scope.
    pub(super) fn at(&mut self, scope: Scope) -> &mut View {
        let i = self.0.iter().position(|part| part.0 == scope).unwrap_or_else(|| {
            self.0.push((scope, View::default()));
            self.0.len() - 1
        });
        &mut self.0[i].1
    }

    /// A view that holds more than all before for threads within the scope.
    pub(super) fn set(&mut self, scope: Scope, view: View) {
        self.0.retain(|part| part.0 > scope);
        self.0.push((scope, view));
    }

    pub(super) fn join(&mut self, other: &ByScope) {
        other.0.iter().for_each(|(scope, view)| self.at(*scope).join(view));
    }

    /// The views that reach this far.
    pub(super) fn reaching(&self, distance: Scope) -> impl Iterator<Item = &View> {
        self.0.iter().filter(move |part| part.0 >= distance).map(|part| &part.1)
    }

    /// Takes the views that a scope includes.
    pub(super) fn take(&mut self, scope: Scope) -> impl Iterator<Item = View> {
        self.0.extract_if(.., move |part| part.0 <= scope).map(|part| part.1)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Scope, View)> {
        self.0.iter()
    }
}

/// What was released to a location: by whom, and how far it reaches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Released(Vec<(Seat, Scope, View)>);

impl Released {
    pub(super) fn add(&mut self, from: Seat, scope: Scope, view: &View) {
        // What an earlier grid of the device has released is part of what this one knows.
        self.0.retain(|part| part.0.device != from.device || part.0.launch == from.launch || part.1 > scope);
        match self.0.iter_mut().find(|part| (part.0, part.1) == (from, scope)) {
            Some(part) => part.2.join(view),
            None => self.0.push((from, scope, view.clone())),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what was released elsewhere.
    pub(super) fn join(&mut self, other: &Released) {
        other.0.iter().for_each(|(from, scope, view)| self.add(*from, *scope, view));
    }

    /// The views that a thread gets by an access with this scope, and the distances that they come from.
    pub(super) fn reaching(&self, to: Seat, scope: Scope) -> impl Iterator<Item = (Scope, View)> {
        self.0.iter().filter_map(move |(from, reach, view)| {
            let distance = from.distance(to);
            let own = from.cluster == to.cluster;
            let view = || if own { view.clone() } else { view.between(from.cluster, to.cluster) };
            (*reach >= distance && scope >= distance).then(|| (distance, view()))
        })
    }
}
