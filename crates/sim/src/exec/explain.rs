//! Texts of faults: parts of a kernel by their names, both sides of a conflict, the state of barriers.

use super::context::Cx;
use crate::error::{Fault, FaultKind, Place};
use crate::hazard::{Conflict, Event, GlobalConflict, GlobalEvent, Missing, Overlap};

/// The kind of fault that two accesses are.
pub(super) fn kind_of(missing: Missing) -> FaultKind {
    match missing {
        Missing::Order | Missing::Scope => FaultKind::Race,
        Missing::ProxyFence => FaultKind::ProxyOrder,
    }
}

/// What is wrong between two accesses, in words.
fn unordered(missing: Missing, writes: bool, earlier_writes: bool) -> (FaultKind, String) {
    let verb = |writes: bool| if writes { "write" } else { "read" };
    let reason = match missing {
        Missing::Order => "is not ordered after it",
        Missing::ProxyFence => "is ordered after it but with no proxy fence between them",
        Missing::Scope => "is not ordered after it: a scope does not include the thread of the other side",
    };
    (
        kind_of(missing),
        format!("this {} follows an earlier {} and {reason}", verb(writes), verb(earlier_writes)),
    )
}

impl Cx<'_> {
    /// A part of shared memory by its name, or by its offset.
    pub(crate) fn shared_text(&self, offset: u32) -> String {
        self.shared_name(offset).unwrap_or_else(|| format!("{offset:#x}"))
    }

    /// Where the last warp of a CTA has left.
    pub(crate) fn exit_place(&self, cta: usize) -> Place {
        let (warp, pc) = self.cluster.ctas[cta].left;
        self.place(warp, pc)
    }

    /// Two accesses to shared memory with nothing that orders them.
    pub(crate) fn conflict(&self, c: &Conflict, cta: usize, writes: bool) -> Fault {
        let (kind, order) = unordered(c.missing, writes, c.earlier_writes);
        let first = c.offsets.iter().min().copied().unwrap_or(0);
        let mut fault = Fault::new(
            kind,
            format!("shared memory of CTA {} at offset {first:#x}: {order}", self.cluster.ctas[cta].index),
        );
        fault.other = Some(Box::new(self.place(c.earlier.warp, c.earlier.pc)));
        fault.notes = self.barrier_notes(cta);
        fault
    }

    /// Conflicts of an access to shared memory by an instruction of a warp.
    pub(crate) fn conflicts(
        &mut self,
        conflicts: Vec<Conflict>,
        cta: usize,
        at: (u32, u32),
        writes: bool,
    ) -> Result<(), Fault> {
        conflicts.iter().try_for_each(|c| {
            self.hazard(kind_of(c.missing), at, Some(c.earlier.pc), |cx| cx.conflict(c, cta, writes))
        })
    }

    /// Two accesses to global memory with nothing that orders them.
    pub(crate) fn global_conflict(
        &mut self,
        c: GlobalConflict,
        at: (u32, u32),
        writes: bool,
    ) -> Result<(), Fault> {
        let earlier = c.earlier.event;
        self.hazard(kind_of(c.missing), at, Some(earlier.pc), |cx| {
            let (kind, order) = unordered(c.missing, writes, c.earlier_writes);
            let mut fault = Fault::new(kind, format!("{}: {order}", cx.global_text(c.address)));
            fault.other = Some(Box::new(cx.place_of(&c.earlier)));
            if let Some(grid) = cx.peers.and_then(|peers| peers.of(c.earlier.seat))
                && c.earlier.seat.device != cx.device
            {
                let (own, other) = (&cx.kernel.name, &grid.kernel.name);
                let (here, there) = (cx.device, c.earlier.seat.device);
                fault.notes.push(format!("`{own}` of device {here} and `{other}` of device {there}"));
            }
            fault
        })
    }

    /// Global memory at an address, with its device where there are several.
    pub(crate) fn global_text(&self, address: u64) -> String {
        match self.peers {
            Some(_) => format!("global memory of device {} at {address:#x}", self.memory.owner(address)),
            None => format!("global memory at {address:#x}"),
        }
    }

    /// The place of an access to global memory by a thread of any grid.
    pub(crate) fn place_of(&self, by: &GlobalEvent) -> Place {
        let Event { warp, pc, .. } = by.event;
        let (kernel, warps) = match self.peers.and_then(|peers| peers.of(by.seat)) {
            Some(grid) => (&*grid.kernel, grid.warps_per_cta),
            None => (self.kernel, self.cluster.warps_per_cta as u32),
        };
        let device = self.peers.map(|_| by.seat.device);
        Place { cta: by.cta, warp: warp % warps, device, ..kernel.place(pc) }
    }

    /// An access that may meet one of the kernel before.
    pub(crate) fn too_early(&self, overlap: Overlap, writes: bool) -> Fault {
        let verb = |writes: bool| if writes { "write" } else { "read" };
        let names = self.predecessor.map(|before| before.names()).unwrap_or_default();
        Fault::new(
            FaultKind::Race,
            format!(
                "global memory at {:#x}: this {} comes before griddepcontrol.wait, and the kernel before, {names}, may \
                 still {} there",
                overlap.address,
                verb(writes),
                verb(overlap.other_writes)
            ),
        )
    }

    /// An mbarrier by its name, where the kernel gives it one, and its offset.
    pub(crate) fn mbar_name(&self, at: u32) -> String {
        match self.shared_name(at) {
            Some(name) => format!("the mbarrier {name} ({at:#x})"),
            None => format!("the mbarrier at {at:#x}"),
        }
    }

    /// What the kernel calls this part of shared memory.
    pub(crate) fn shared_name(&self, offset: u32) -> Option<String> {
        self.kernel.names.shared(offset.checked_sub(self.kernel.dynamic_shared)?)
    }

    /// The state of an mbarrier: its phase, what it misses, who changed it last, and which waits were passed.
    pub(crate) fn mbar_state(&self, cta: usize, at: u32) -> String {
        let Some(m) = self.cluster.ctas[cta].mbars.get(&at) else { return String::new() };
        let mut text = format!(
            "{} of CTA {}: {}; last changed by {}",
            self.mbar_name(at),
            self.cluster.ctas[cta].index,
            m.describe(),
            self.place(m.last.0, m.last.1)
        );
        for p in m.passed.iter().take(16) {
            let what = p.parity.map_or("its token's phase".to_owned(), |parity| format!("parity {parity}"));
            let warp = p.warp as usize % self.cluster.warps_per_cta;
            let line = self.place(p.warp, p.pc).line_text();
            text += &format!("; warp {warp} last passed a wait for {what} in phase {} at {line}", p.phase);
        }
        text
    }

    /// The states of a CTA's mbarriers.
    pub(crate) fn barrier_notes(&self, cta: usize) -> Vec<String> {
        self.cluster.ctas[cta].mbars.keys().take(32).map(|at| self.mbar_state(cta, *at)).collect()
    }
}
