//! Convergence of a warp, as `.aligned` and `.sync` instructions require it.

use super::context::Cx;
use super::warp::{Wait, Warp};
use super::{Issue, Next};
use crate::error::{Fault, FaultKind};
use crate::record::Deed;

/// Requires that the lanes of `need` (that have not exited) are all in this group.
pub(super) fn converge(warp: &Warp, mask: u32, need: u32) -> Result<Option<Next>, Fault> {
    let need = need & !warp.exited;
    Ok(if need & !mask == 0 { None } else { Some(Next::Retry(Wait::Converge(need))) })
}

/// These lanes have converged at an instruction: what each did before is ordered before what all of them do next.
pub(super) fn converged(warp: &mut Warp, cx: &mut Cx<'_>, active: u32) {
    warp.convergence.converge(active | warp.exited);
    cx.record(warp.index, active, Deed::Together);
    if let Some(h) = &mut cx.cluster.hazards {
        h.select(active, warp.exited);
        h.converge(warp.index);
    }
}

/// Requires that the whole warp runs this instruction.
pub(super) fn aligned(warp: &mut Warp, cx: &mut Cx<'_>, at: Issue) -> Result<Option<Next>, Fault> {
    let Issue { mask, active, .. } = at;
    if active != mask {
        return Err(Fault::new(
            FaultKind::Divergence,
            format!(
                "lanes {:#010x} of {mask:#010x} are predicated off in an instruction of the whole warp",
                mask & !active
            ),
        ));
    }
    if cx.options.hazards {
        expect_together(warp, cx, at)?;
    }
    converge(warp, mask, warp.valid)
}

/// No lane of the group may be apart from the others, and none of the warp may have left.
fn expect_together(warp: &Warp, cx: &mut Cx<'_>, at: Issue) -> Result<(), Fault> {
    let by = (warp.index, at.pc);
    let opcode = &cx.kernel.opcodes[at.pc as usize];
    // What compilers write for `__syncthreads`, with the reconvergence before it.
    if opcode.starts_with("bar.") {
        return Ok(());
    }
    if let Some(branch) = warp.convergence.diverged_at(at.mask) {
        return cx.hazard(FaultKind::Divergence, by, Some(branch), |cx| {
            let mut fault = Fault::new(
                FaultKind::Divergence,
                "the warp may be diverged at this `.aligned` instruction: it lies between a branch that separates \
                 lanes and the place where their ways come together, and nothing has waited for all of them \
                 (bar.warp.sync would)",
            );
            fault.other = Some(Box::new(cx.place(warp.index, branch)));
            fault
        });
    }
    // A barrier of the CTA is for the threads that have not exited.
    let gone = warp.exited & warp.valid;
    if gone != 0 && (!opcode.starts_with("barrier.") || opcode.starts_with("barrier.cluster")) {
        return cx.hazard(FaultKind::Divergence, by, Some(warp.left_at), |cx| {
            let message = format!("lanes {gone:#010x} have exited before this instruction of the whole warp");
            let mut fault = Fault::new(FaultKind::Divergence, message);
            fault.other = Some(Box::new(cx.place(warp.index, warp.left_at)));
            fault
        });
    }
    Ok(())
}
