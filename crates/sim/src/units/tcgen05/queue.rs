//! Asynchronous `tcgen05` work: what is issued and not yet done, and what each piece of it touches.
//!
//! The tensor core of a CTA does its work in the order of issue; work for a pair of CTAs waits for both. A commit
//! waits for the work of its own thread alone.

use super::mma::{MmaBuffers, MmaWork};
use super::shapes::CopyShape;
use crate::hazard::View;
use crate::units::tensor_memory::{Area, TensorAddress};

/// Work that was issued.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    /// Issuing thread: warp (index in the cluster) and lane; the instruction.
    pub(crate) warp: u32,
    pub(crate) lane: u32,
    pub(crate) pc: u32,
    /// When it was issued.
    pub(crate) start: u64,
    /// Ranks of the CTAs whose tensor cores do it: bit `r` is rank `r`.
    pub(crate) ctas: u32,
    pub(crate) kind: WorkKind,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) enum WorkKind {
    /// `tcgen05.mma`
    Mma(Box<MmaWork>),
    /// `tcgen05.cp`: the same for each CTA, out of its own shared memory.
    Copy { to: TensorAddress, descriptor: u64, shape: CopyShape },
    /// `tcgen05.shift.down`.
    Shift { at: TensorAddress },
    /// `tcgen05.commit`: arrivals at mbarriers (CTA rank and offset).
    Commit { mbars: Vec<(usize, u32)>, done: Done },
}

/// What a commit tells those who wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// What the issuing thread knew.
    pub(crate) view: View,
    /// Agents of the thread's work, with the ticks that are complete.
    pub(crate) ticks: Vec<(u32, u32)>,
}

/// What a piece of work touches, as the hazard shadow records it when the work is issued.
#[derive(Clone, Debug, Default)]
pub(crate) struct Footprint {
    /// Shared memory that is read: CTA rank, and ranges of offset and length.
    pub(crate) shared: Vec<(usize, Vec<(u32, u32)>)>,
    pub(crate) tensor: Vec<TensorUse>,
}

/// A use of tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorUse {
    pub(crate) cta: usize,
    pub(crate) area: Area,
    pub(crate) role: Role,
}

/// What work does with an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Reads it: A, scales or metadata of an MMA; a load.
    Operand,
    /// The accumulator of an MMA: written, and read if it accumulates.
    Accumulator,
    /// Writes it, whatever it held.
    Write,
}

impl Role {
    pub(crate) fn writes(self) -> bool {
        self != Role::Operand
    }
}

/// The work of a cluster that is in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) work: Vec<Work>,
    issued: u64,
    /// Space for the operands of an MMA.
    pub(crate) buffers: MmaBuffers,
}

impl Queue {
    /// Adds work and gives its number.
    pub(crate) fn push(&mut self, mut work: Work) -> u64 {
        self.issued += 1;
        work.id = self.issued;
        self.work.push(work);
        self.issued
    }

    /// Whether nothing holds back this piece of work.
    pub(crate) fn is_next(&self, index: usize) -> bool {
        let w = &self.work[index];
        let before = &self.work[..index];
        match &w.kind {
            WorkKind::Commit { .. } => !before.iter().any(|b| (b.warp, b.lane) == (w.warp, w.lane)),
            _ => !before.iter().any(|b| b.ctas & w.ctas != 0 && !matches!(b.kind, WorkKind::Commit { .. })),
        }
    }

    /// Work that can be done now.
    pub(crate) fn next(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.work.len()).filter(|i| self.is_next(*i))
    }

    /// The oldest work that can be done now.
    pub(crate) fn first(&self) -> Option<usize> {
        self.next().next()
    }

    /// The first work that uses a CTA's tensor memory, shared memory or mbarriers.
    pub(crate) fn of_cta(&self, rank: usize) -> Option<usize> {
        self.work.iter().position(|w| match &w.kind {
            WorkKind::Commit { mbars, .. } => mbars.iter().any(|m| m.0 == rank),
            _ => w.ctas >> rank & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(warp: u32, ctas: u32, commit: bool) -> Work {
        let kind = if commit {
            WorkKind::Commit { mbars: Vec::new(), done: Done::default() }
        } else {
            WorkKind::Shift { at: TensorAddress::new(0) }
        };
        Work { id: 0, warp, lane: 0, pc: 0, start: 0, ctas, kind }
    }

    #[test]
    fn a_cta_works_in_order_and_a_commit_waits_for_its_thread() {
        let mut q = Queue::default();
        for w in [work(0, 1, false), work(1, 2, false), work(0, 3, false), work(1, 2, true), work(2, 1, true)]
        {
            q.push(w);
        }
        // The pair's work waits for both CTAs; the commit of warp 1 for its own; that of warp 2 for nothing.
        assert_eq!(q.next().collect::<Vec<_>>(), [0, 1, 4]);
        q.work.remove(1);
        assert_eq!(q.next().collect::<Vec<_>>(), [0, 2, 3]);
        q.work.remove(0);
        assert_eq!(q.next().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((q.of_cta(0), q.of_cta(1), q.of_cta(2)), (Some(0), Some(0), None));
    }
}
