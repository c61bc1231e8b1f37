//! Asynchronous copies: what is in flight, and the groups that threads wait for.

use super::atomic::{self, AtomFn};
use super::tma::TensorPart;
use crate::hazard::View;
use crate::text::types::Ty;
use std::collections::VecDeque;

/// A reduction that a bulk store applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BulkReduce {
    pub(crate) op: AtomFn,
    pub(crate) ty: Ty,
}

impl BulkReduce {
    /// Whether the reduction exists for its type.
    pub(crate) fn exists(self) -> bool {
        !matches!(self.ty, Ty::Pred) && atomic::apply(self.op, self.ty, 0, 0, 0).is_some()
    }
}

/// A copy in flight.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    /// Issuing warp (index in the cluster) and instruction.
    pub(crate) warp: u32,
    pub(crate) pc: u32,
    /// When it was issued.
    pub(crate) start: u64,
    /// Address of the tensor map in global memory, while it is in use.
    pub(crate) map: Option<u64>,
    pub(crate) kind: Kind,
}

/// What a copy does.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Into the shared memory of one CTA, reporting to its mbarrier.
    Load {
        source: Source,
        cta: usize,
        offset: u32,
        bytes: u32,
        mbar: (usize, u32),
        reduce: Option<BulkReduce>,
    },
    /// Out of shared memory; `data` once the source has been read.
    Store { cta: usize, offset: u32, bytes: u32, target: Target, data: Option<Vec<u8>> },
    /// The `cp.async` of all lanes of a warp.
    CpAsync(Vec<LaneCopy>),
    /// The arrival of one lane at an mbarrier `after` its `cp.async`, with what it releases.
    Arrive { mbar: (usize, u32), after: Vec<u64>, view: View },
    /// Words of `bytes` bytes for the shared memory of a peer, which report to its mbarrier.
    Words {
        cta: usize,
        offset: u32,
        values: Vec<u64>,
        bytes: u32,
        reduce: Option<(AtomFn, Ty)>,
        mbar: (usize, u32),
    },
}

/// Where a load comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Tensor(Box<TensorPart>),
    /// Address; how many bytes at either end may lie out of bounds, and are undefined then.
    Global(u64, [u32; 2]),
    Shared(usize, u32),
}

/// Where a store goes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tensor(Box<TensorPart>, Option<AtomFn>),
    Global(u64, Option<BulkReduce>),
    /// With the bytes of every sixteen that are written.
    Masked(u64, u16),
}

impl Target {
    /// Whether it adds to what is there instead of replacing it; such accesses may meet.
    pub(crate) fn reduces(&self) -> bool {
        matches!(self, Target::Tensor(_, Some(_)) | Target::Global(_, Some(_)))
    }
}

/// One lane's `cp.async`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneCopy {
    pub(crate) cta: usize,
    pub(crate) offset: u32,
    pub(crate) global: u64,
    pub(crate) bytes: u32,
    pub(crate) valid: u32,
}

impl Pending {
    /// Whether a wait is satisfied: the copy is gone, or (`read`) has taken its source.
    pub(crate) fn source_taken(&self) -> bool {
        matches!(self.kind, Kind::Store { data: Some(_), .. })
    }
}

/// Groups of asynchronous bulk copies of one lane.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyGroups {
    pub(crate) open: Vec<u64>,
    pub(crate) groups: VecDeque<Vec<u64>>,
    /// The hazard tick of the newest copy.
    pub(crate) newest: u32,
    /// Groups, from the front, that are known to have read their sources.
    pub(crate) read: usize,
    /// The instruction of the newest copy.
    pub(crate) last_pc: u32,
    /// Ticks at each commit, in step with `groups`.
    pub(crate) ticks: VecDeque<u32>,
}

/// The `cp.async` of a warp. Groups are a thread's own: lanes that have done the same share them.
#[derive(Clone, Debug)]
pub(crate) struct LaneCopies {
    parts: Vec<(u32, LaneGroups)>,
    /// The hazard tick of the newest copy.
    pub(crate) newest: u32,
    /// The instruction of the newest copy.
    pub(crate) last_pc: u32,
}

/// The copies of some lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneGroups {
    /// Copies that no group has.
    pub(crate) open: Vec<u64>,
    /// Groups that were not waited for, each with the newest tick at its commit.
    pub(crate) groups: VecDeque<(u32, Vec<u64>)>,
    /// The newest copy for which an mbarrier has an arrival coming.
    pub(crate) tracked: u64,
}

impl LaneGroups {
    /// All copies that were not waited for.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        self.groups.iter().flat_map(|group| &group.1).chain(&self.open).copied()
    }
}

impl Default for LaneCopies {
    fn default() -> LaneCopies {
        LaneCopies { parts: vec![(u32::MAX, LaneGroups::default())], newest: 0, last_pc: 0 }
    }
}

impl LaneCopies {
    /// The groups of these lanes, with the lanes that share each.
    pub(crate) fn of(&mut self, lanes: u32) -> impl Iterator<Item = &mut (u32, LaneGroups)> {
        for i in 0..self.parts.len() {
            let (all, inside) = (self.parts[i].0, self.parts[i].0 & lanes);
            if inside != 0 && inside != all {
                let groups = self.parts[i].1.clone();
                self.parts[i].0 = inside;
                self.parts.push((all & !lanes, groups));
            }
        }
        self.parts.iter_mut().filter(move |part| part.0 & lanes != 0)
    }

    /// Lanes that have nothing left to wait for are alike again.
    pub(crate) fn merge(&mut self) {
        let idle = |part: &(u32, LaneGroups)| part.1.open.is_empty() && part.1.groups.is_empty();
        let lanes = self.parts.iter().filter(|part| idle(part)).fold(0, |lanes, part| lanes | part.0);
        if lanes != 0 {
            self.parts.retain(|part| !idle(part));
            self.parts.push((lanes, LaneGroups::default()));
        }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &LaneGroups> {
        self.parts.iter().map(|part| &part.1)
    }
}
