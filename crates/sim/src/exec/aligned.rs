//! Convergence of a warp, as `.aligned` and `.sync` instructions require it.

use super::context::Cx;
use super::warp::{Wait, Warp};
use super::{Issue, Next};
use crate::error::{Fault, FaultKind};
use crate::options::Policy;

/// Requires that the lanes of `need` (that have not exited) are all in this group.
pub(super) fn converge(warp: &Warp, mask: u32, need: u32) -> Result<Option<Next>, Fault> {
    let need = need & !warp.exited;
    Ok(if need & !mask == 0 { None } else { Some(Next::Retry(Wait::Converge(need))) })
}

/// These lanes have converged at an instruction: what each did before is ordered before what all of them do next.
pub(super) fn converged(warp: &mut Warp, cx: &mut Cx<'_>, active: u32) {
    warp.convergence.converge(active | warp.exited);
    if let Some(h) = &mut cx.cluster.hazards {
        h.select(active, warp.exited);
        h.converge(warp.index);
    }
}

/// Requires that the whole warp runs this instruction.
pub(super) fn aligned(warp: &mut Warp, cx: &Cx<'_>, at: Issue) -> Result<Option<Next>, Fault> {
    let Issue { pc, mask, active, .. } = at;
    if active != mask {
        return Err(Fault::new(
            FaultKind::Divergence,
            format!(
                "lanes {:#010x} of {mask:#010x} are predicated off in an instruction of the whole warp",
                mask & !active
            ),
        ));
    }
    if let Some(next) = converge(warp, mask, warp.valid)? {
        return Ok(Some(next));
    }
    match warp.convergence.diverged_at(!warp.exited) {
        Some(branch) if must_be_together(cx, pc) => {
            let mut fault = Fault::new(
                FaultKind::Divergence,
                "the warp may be diverged at this `.aligned` instruction: a branch has separated its lanes, and \
                 nothing since has waited for all of them (bar.warp.sync would)",
            );
            fault.other = Some(Box::new(cx.place(warp.index, branch)));
            Err(fault)
        }
        _ => Ok(None),
    }
}

/// Whether a diverged warp is an error here. `bar.sync` and its kind are what compilers write for `__syncthreads`,
/// with the reconvergence before it.
fn must_be_together(cx: &Cx<'_>, pc: u32) -> bool {
    cx.options.hazards
        && cx.options.policy != Policy::Eager
        && !cx.kernel.opcodes[pc as usize].starts_with("bar.")
}
