//! `tcgen05.mma`: issue and execution.

use crate::decode::tcgen05::mma::TensorMma;
use crate::error::{Fault, FaultKind};
use crate::exec::context::Cx;
use crate::exec::warp::Warp;
use crate::units::tcgen05::mma::MmaWork;
use crate::units::tcgen05::queue::Footprint;

/// An MMA of one lane: its work, what it touches, and a number that is the same for MMAs that are in order on one
/// accumulator (same address, shape and kind).
pub(super) fn issue(
    _warp: &Warp,
    _cx: &Cx<'_>,
    _mma: &TensorMma,
    _lane: usize,
) -> Result<(MmaWork, Footprint, u64), Fault> {
    Err(Fault::new(FaultKind::BadOperand, "tcgen05.mma is not modelled"))
}

/// Does an MMA in the CTAs of the mask.
pub(super) fn perform(_cx: &mut Cx<'_>, _work: &MmaWork, _ctas: u32) -> Result<(), Fault> {
    Ok(())
}

/// For the timeline.
pub(super) fn detail(_cx: &Cx<'_>, _work: &MmaWork) -> String {
    String::new()
}
