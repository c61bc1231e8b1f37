//! Cluster launch control: clusters of the grid that have not begun, and claims on them.
//!
//! A response is 16 bytes: x, y and z of the first CTA of a cancelled cluster, and a word that says whether there is
//! one. How many claims succeed is the schedule's choice: a GPU refuses them when no cluster is left and when it needs
//! the SM for something else.

use super::context::Cx;
use super::copy::shared_at;
use super::memory::check_alignment;
use super::warp::Warp;
use super::{Issue, Next};
use crate::decode::Kernel;
use crate::decode::clc::ClcOp;
use crate::decode::isa::{Addr, Op, Src};
use crate::error::{Fault, FaultKind};
use crate::lanes::lanes;
use crate::options::Policy;
use crate::record::{Deed, Work};
use crate::rng::Rng;
use crate::text::ast::Space;
use crate::units::copy::Kind;

/// Bytes of a response.
const RESPONSE: u32 = 16;
const CANCELED: u32 = 0x434c_4301;
const FAILED: u32 = 0x434c_4300;
/// What the coordinates of a failed response are: the manual leaves them open.
const UNDEFINED: u32 = 0xdead_c7a1;

/// The clusters of a grid that have not begun.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// By their number in the grid; the last one begins first.
    order: Vec<u32>,
    grid: [u32; 3],
    cluster: [u32; 3],
}

impl Waiting {
    pub(crate) fn new(order: Vec<u32>, grid: [u32; 3], cluster: [u32; 3]) -> Waiting {
        Waiting { order, grid, cluster }
    }

    /// The next cluster that begins.
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.order.pop()
    }

    /// Coordinates of the first CTA of a cluster.
    pub(crate) fn first_cta(&self, index: u32) -> [u32; 3] {
        let per = |i: usize| self.grid[i] / self.cluster[i];
        let origin = [index % per(0), index / per(0) % per(1), index / per(0) / per(1)];
        std::array::from_fn(|i| origin[i] * self.cluster[i])
    }

    /// Takes a cluster out of the grid.
    fn claim(&mut self, policy: Policy, rng: &mut Rng) -> Option<[u32; 3]> {
        let index = match policy {
            Policy::Eager => self.order.pop()?,
            Policy::Lazy if self.order.is_empty() => return None,
            Policy::Lazy => self.order.remove(0),
            // Now and then a claim fails although there is a cluster.
            Policy::Random if self.order.is_empty() || rng.once_in(6) => return None,
            Policy::Random => self.order.swap_remove(rng.below(self.order.len())),
        };
        Some(self.first_cta(index))
    }
}

/// How many clusters of a kernel may run at once, of `resident` that fit: one that claims clusters must find some that
/// have not begun, under the eager schedule all but its own.
pub(crate) fn resident(kernel: &Kernel, resident: usize, policy: Policy, rng: &mut Rng) -> usize {
    let claims = |op: &Op| matches!(op, Op::Clc(ClcOp::TryCancel { .. }));
    if !kernel.code.iter().any(|inst| claims(&inst.op)) {
        return resident;
    }
    match policy {
        Policy::Eager => 1,
        Policy::Lazy => resident,
        Policy::Random => 1 + rng.below(resident.min(8)),
    }
}

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &ClcOp, at: Issue) -> Result<Next, Fault> {
    for l in lanes(at.active) {
        match op {
            ClcOp::TryCancel { addr, mbar, space, all } => {
                try_cancel(warp, cx, (addr, mbar, *space), *all, at.pc, l)?;
            }
            ClcOp::IsCanceled { dst, response } => {
                let canceled = decode(warp, *response, l)?.is_some();
                if !canceled {
                    warp.claim_failed.get_or_insert(at.pc);
                }
                warp.set(*dst, l, u64::from(canceled));
            }
            ClcOp::FirstCtaid { dst, response } => {
                let first = decode(warp, *response, l)?.unwrap_or([UNDEFINED; 3]);
                for (r, value) in dst.iter().zip(first) {
                    if let Some(r) = r {
                        warp.set(*r, l, u64::from(value));
                    }
                }
            }
        }
    }
    Ok(Next::Step)
}

/// The first CTA of the cluster that a response gives.
fn decode(warp: &Warp, response: [Src; 2], l: usize) -> Result<Option<[u32; 3]>, Fault> {
    let [low, high] = response.map(|s| warp.value(s, l));
    match (high >> 32) as u32 {
        CANCELED => Ok(Some([low as u32, (low >> 32) as u32, high as u32])),
        FAILED => Ok(None),
        _ => Err(Fault::new(
            FaultKind::BadOperand,
            format!("{high:016x}{low:016x} is not a response of clusterlaunchcontrol.try_cancel"),
        )),
    }
}

fn try_cancel(
    warp: &Warp,
    cx: &mut Cx<'_>,
    (addr, mbar, space): (&Addr, &Addr, Space),
    all: bool,
    pc: u32,
    l: usize,
) -> Result<(), Fault> {
    if let Some(seen) = warp.claim_failed.filter(|_| cx.options.hazards) {
        let mut fault = Fault::new(
            FaultKind::BadOperand,
            "clusterlaunchcontrol.try_cancel after one that this warp has seen fail: its behavior is undefined",
        );
        fault.other = Some(Box::new(cx.place(warp.index, seen)));
        return Err(fault);
    }
    let own = warp.env.rank as usize;
    let (cta, offset) = shared_at(warp, cx, addr, space, l)?;
    check_alignment(u64::from(offset), RESPONSE)?;
    let (mbar_cta, mbar) = shared_at(warp, cx, mbar, space, l)?;
    check_alignment(u64::from(mbar), 8)?;
    if cta != own || mbar_cta != own {
        return Err(Fault::new(
            FaultKind::BadOperand,
            "the response and its mbarrier are not in the shared memory of the CTA itself",
        ));
    }
    let receivers = if all { 0..cx.cluster.ctas.len() } else { own..own + 1 };
    for cta in receivers.clone() {
        cx.shared_range(cta, offset, RESPONSE)?;
        cx.shared_range(cta, mbar, 8)?;
        cx.mbar(warp.index, cta, mbar, true)?;
        let event = cx.copy_event(warp.index, pc, (cta, mbar));
        let work = Work::Reports(cta as u32, mbar, cx.phase_of(cta, mbar));
        cx.record_at((warp.index, pc), 1 << l, Deed::Issue(work));
        cx.shadow_async(event, None, std::iter::once((offset, RESPONSE)), cta, true)?;
    }
    let first = cx.waiting.claim(cx.options.policy, cx.rng);
    if first.is_some() {
        *cx.progress += 1;
        cx.report.cancelled += cx.cluster.ctas.len() as u64;
    }
    let ([x, y, z], state) = first.map_or(([UNDEFINED; 3], FAILED), |first| (first, CANCELED));
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let values = vec![pair(x, y), pair(z, state)];
    for cta in receivers {
        let (values, mbar) = (values.clone(), (cta, mbar));
        cx.submit(warp.index, pc, None, Kind::Words { cta, offset, values, bytes: 8, reduce: None, mbar })?;
    }
    Ok(())
}
