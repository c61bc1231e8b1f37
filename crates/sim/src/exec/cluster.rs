//! The state of a running cluster: its CTAs, their shared memory and barriers, its warps, and the
//! asynchronous copies in flight.

use super::warp::Warp;
use crate::hazard::{ByScope, Hazards, Scope, View};
use crate::memory::Written;
use crate::units::copy::Pending;
use crate::units::mbarrier::Mbar;
use crate::units::tcgen05::queue::Queue;
use crate::units::tensor_memory::TensorMemory;
use std::collections::BTreeMap;

/// A named barrier of a CTA.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedBarrier {
    pub(crate) arrived: u32,
    /// Threads expected by the first arrival of this generation; zero while idle.
    pub(crate) expected: u32,
    pub(crate) generation: u64,
    pub(crate) view: View,
    /// What the arriving lanes have released by fences.
    pub(crate) fenced: ByScope,
    /// Warps that wait in this generation, and their lanes.
    pub(crate) waiters: Vec<(u32, u32)>,
    /// Predicates gathered by `bar.red`: any, all, count; and those of the last generation.
    pub(crate) votes: (bool, bool, u32),
    pub(crate) result: (bool, bool, u32),
    pub(crate) last_pc: u32,
    /// Counts all threads of the CTA, so that threads that exit are not waited for.
    pub(crate) whole: bool,
}

/// Shared memory and barriers of one CTA.
#[derive(Debug)]
pub(crate) struct Cta {
    /// Linear index in the grid.
    pub(crate) index: u32,
    pub(crate) shared: Vec<u8>,
    pub(crate) written: Written,
    pub(crate) bars: Vec<NamedBarrier>,
    pub(crate) mbars: BTreeMap<u32, Mbar>,
    /// Tensor memory, once an instruction has asked for it.
    pub(crate) tensor: Option<Box<TensorMemory>>,
    pub(crate) live_warps: u32,
    pub(crate) live_threads: u32,
    /// Registers that a thread has at first, and those that warps have given back.
    pub(crate) registers: (u32, u32),
    pub(crate) exited: bool,
    /// Warp and instruction of the last exit.
    pub(crate) left: (u32, u32),
}

/// The barrier of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterBarrier {
    pub(crate) arrived: u32,
    pub(crate) phase: u32,
    pub(crate) view: View,
    pub(crate) done: View,
    /// How far the arriving warps had come, whatever the strength of the arrival.
    pub(crate) passing: View,
    pub(crate) passed: View,
}

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) ctas: Vec<Cta>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) warps_per_cta: usize,
    pub(crate) barrier: ClusterBarrier,
    pub(crate) pending: Vec<Pending>,
    /// Work of the tensor cores in flight (`tcgen05`).
    pub(crate) tensor_work: Queue,
    pub(crate) hazards: Option<Box<Hazards>>,
    /// Scratch space of the matrix units.
    pub(crate) scratch: crate::units::wgmma::Buffers,
}

impl Cta {
    /// The CTA's tensor memory.
    pub(crate) fn tensor(&mut self) -> &mut TensorMemory {
        self.tensor.get_or_insert_default()
    }
}

impl Cluster {
    pub(crate) fn live_threads(&self) -> u32 {
        self.ctas.iter().map(|c| c.live_threads).sum()
    }

    pub(crate) fn done(&self) -> bool {
        self.warps.iter().all(Warp::done)
    }

    /// Completes the cluster barrier when every thread that has not exited has arrived.
    pub(crate) fn settle_barrier(&mut self) -> bool {
        let live = self.live_threads();
        let b = &mut self.barrier;
        if b.arrived == 0 || b.arrived < live {
            return false;
        }
        b.arrived = 0;
        b.phase += 1;
        let view = std::mem::take(&mut b.view);
        b.done.join(&view);
        let passing = std::mem::take(&mut b.passing);
        b.passed.join(&passing);
        true
    }

    /// Completes a named barrier when its count is reached.
    pub(crate) fn settle_named(&mut self, cta: usize, id: usize) -> bool {
        let live = self.ctas[cta].live_warps * 32;
        let b = &mut self.ctas[cta].bars[id];
        let needed = if b.whole { b.expected.min(live) } else { b.expected };
        if b.expected == 0 || b.arrived < needed {
            return false;
        }
        b.arrived = 0;
        b.expected = 0;
        b.generation += 1;
        b.result = std::mem::replace(&mut b.votes, (false, true, 0));
        let (view, fenced) = (std::mem::take(&mut b.view), std::mem::take(&mut b.fenced));
        let waiters = std::mem::take(&mut b.waiters);
        if let Some(h) = &mut self.hazards {
            for (w, lanes) in waiters {
                h.select(lanes, 0);
                h.acquire(w, true, Scope::Cta, &view);
                h.acquire_fenced(w, &fenced);
            }
        }
        true
    }
}
