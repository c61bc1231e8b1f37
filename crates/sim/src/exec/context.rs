//! Context: what an executing warp can reach.

use super::clc::Waiting;
use super::cluster::Cluster;
use super::finding::Findings;
use super::peers::Peers;
use super::remote::RemoteStores;
use crate::decode::Kernel;
use crate::error::{Fault, Place};
use crate::hazard::{Footprint, GlobalShadow};
use crate::memory::Memory;
use crate::options::Options;
use crate::report::{Report, TraceEvent, TraceUnit};
use crate::rng::Rng;
use std::cell::RefCell;

/// Everything around one warp while it runs.
pub(crate) struct Cx<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) memory: &'a mut Memory,
    pub(crate) params: &'a [u8],
    pub(crate) options: &'a Options,
    pub(crate) rng: &'a mut Rng,
    pub(crate) report: &'a mut Report,
    /// Counts everything that may let another warp go on.
    pub(crate) progress: &'a mut u64,
    /// Counts what only looks whether something has changed.
    pub(crate) polls: &'a mut u64,
    /// Per instruction: whether a lane has executed it.
    pub(crate) executed: &'a mut [bool],
    /// What was found and did not end the run.
    pub(crate) findings: &'a RefCell<Findings>,
    /// The warp and the instruction whose work is done.
    pub(crate) at: (u32, u32),
    /// Who touched global memory.
    pub(crate) global: &'a mut GlobalShadow,
    /// The device among others, where there are several.
    pub(crate) device: u32,
    pub(crate) peers: Option<&'a Peers>,
    /// Stores to their memory that they do not see yet.
    pub(crate) remote: Option<&'a mut RemoteStores>,
    /// What the kernel before touches, where it may still run.
    pub(crate) predecessor: Option<&'a Footprint>,
    /// Clusters that have not begun.
    pub(crate) waiting: &'a mut Waiting,
    /// What the kernel prints.
    pub(crate) output: &'a mut String,
}

impl Cx<'_> {
    /// The place of an instruction of a warp of this cluster.
    pub(crate) fn place(&self, warp: u32, pc: u32) -> Place {
        let rank = warp as usize / self.cluster.warps_per_cta;
        Place {
            cta: self.cluster.ctas[rank].index,
            warp: (warp as usize % self.cluster.warps_per_cta) as u32,
            device: self.peers.map(|_| self.device),
            ..self.kernel.place(pc)
        }
    }

    /// Adds a bar that ends now to the timeline; `role` is that of the warp where the instruction has none.
    pub(crate) fn trace(
        &mut self,
        unit: TraceUnit,
        warp: u32,
        pc: u32,
        start: u64,
        role: Option<&str>,
        detail: impl FnOnce(&Self) -> String,
    ) {
        if self.options.trace {
            let place = self.place(warp, pc);
            let role = self.kernel.names.role(place.line).or(role).map(str::to_owned);
            let (detail, end) = (detail(self), self.report.instructions);
            self.report.trace.push(TraceEvent { unit, place, role, detail, start, end });
        }
    }

    pub(super) fn cta_index(&self, warp: u32) -> u32 {
        self.cluster.ctas[warp as usize / self.cluster.warps_per_cta].index
    }

    /// This warp among all of the grid.
    pub(crate) fn identity(&self, warp: u32) -> (u32, u32) {
        (self.cluster.hazards.as_ref().map_or(0, |hazards| hazards.number()), warp)
    }

    /// Gives a fault its place, where it has none.
    pub(crate) fn locate(&self, mut fault: Fault, warp: u32, pc: u32) -> Fault {
        if fault.at.is_none() {
            fault.at = Some(Box::new(self.place(warp, pc)));
        }
        fault
    }
}
