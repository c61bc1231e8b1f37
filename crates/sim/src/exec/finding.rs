//! Findings: a fault that ends the run, one that the run goes on after, or a note.

use super::context::Cx;
use crate::error::{Fault, FaultKind};
use std::collections::HashSet;

/// Most places of faults that a run goes on after; the next one ends it.
const MOST: usize = 1000;

/// What was found and did not end the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) notes: Vec<Fault>,
    pub(crate) faults: Vec<Fault>,
    /// By kind, instruction and the instruction of the other side.
    places: HashSet<(FaultKind, u32, Option<u32>)>,
}

impl Cx<'_> {
    /// Whether the run goes on after faults of this kind.
    pub(crate) fn goes_on(&self, kind: FaultKind) -> bool {
        self.options.keep_going || self.options.allow.contains(kind)
    }

    /// A fault of an instruction of a warp, with the instruction on the other side: an error, unless the run goes on
    /// after faults of its kind. `fault` is called where it is the first of its places.
    pub(crate) fn hazard(
        &self,
        kind: FaultKind,
        (warp, pc): (u32, u32),
        other: Option<u32>,
        fault: impl FnOnce(&Self) -> Fault,
    ) -> Result<(), Fault> {
        if !self.goes_on(kind) {
            return Err(self.locate(fault(self), warp, pc));
        }
        let mut findings = self.findings.borrow_mut();
        if !findings.places.insert((kind, pc, other)) {
            return Ok(());
        }
        let fault = self.locate(fault(self), warp, pc);
        if findings.places.len() > MOST {
            return Err(fault.note(format!("the run ends after faults at {MOST} pairs of places")));
        }
        let allowed = self.options.allow.contains(kind);
        if allowed {
            findings.notes.push(fault)
        } else {
            findings.faults.push(fault)
        }
        Ok(())
    }

    /// What the manual does not promise and hardware does all the same: a note, or a fault where the options are
    /// strict.
    pub(crate) fn remark(
        &self,
        kind: FaultKind,
        at: (u32, u32),
        other: Option<u32>,
        fault: impl FnOnce(&Self) -> Fault,
    ) -> Result<(), Fault> {
        if self.options.strict {
            return self.hazard(kind, at, other, fault);
        }
        let mut findings = self.findings.borrow_mut();
        if findings.notes.len() < MOST && findings.places.insert((kind, at.1, other)) {
            findings.notes.push(self.locate(fault(self), at.0, at.1));
        }
        Ok(())
    }
}
