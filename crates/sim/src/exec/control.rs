//! Branches, calls, returns and exits; `setmaxnreg` and `griddepcontrol`.

use super::aligned::{aligned, converged};
use super::context::Cx;
use super::warp::{Group, Wait, Warp};
use super::{Issue, Next, together};
use crate::decode::control::{CallCopy, CallTarget, ControlOp};
use crate::decode::isa::{Op, Src};
use crate::error::{Fault, FaultKind};
use crate::lanes::{LANES, lanes};
use crate::record::Deed;
use std::cmp::Ordering;

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &ControlOp, at: Issue) -> Result<Next, Fault> {
    let Issue { active, mask, .. } = at;
    match op {
        ControlOp::Branch { target } => {
            Ok(if active == mask { Next::Jump(*target) } else { Next::Split(*target, active) })
        }
        ControlOp::BranchIndexed { index, targets } => branch_indexed(warp, cx, *index, targets, at),
        ControlOp::Call(target) => call(warp, target, at),
        ControlOp::CallPointer { pointer, targets } => call_pointer(warp, *pointer, targets, at),
        ControlOp::Return => Ok(leave(warp, cx, at, false)),
        ControlOp::Exit => Ok(leave(warp, cx, at, true)),
        ControlOp::Trap => Err(Fault::new(FaultKind::Trap, "the kernel executed `trap`")),
        ControlOp::Nop => Ok(Next::Step),
        ControlOp::Print(call) => {
            *cx.progress += 1;
            super::print::print(warp, cx, call, at)?;
            Ok(Next::Step)
        }
        ControlOp::Yield => {
            *cx.polls += 1;
            Ok(Next::Yield)
        }
        ControlOp::SetMaxReg { count } => {
            together!(aligned(warp, cx, at));
            converged(warp, cx, active);
            let next = set_registers(warp, &mut cx.cluster.ctas[warp.env.rank as usize].registers, *count);
            if matches!(next, Next::Step) {
                warp.register_changes.push((at.pc, *count));
                if cx.options.hazards {
                    expect_same_registers(warp, cx)?;
                }
            }
            Ok(next)
        }
        ControlOp::GridDependencyWait => {
            if let Some(h) = &mut cx.cluster.hazards {
                h.predecessor_done(warp.index);
                cx.global.waited = true;
            }
            Ok(Next::Step)
        }
        ControlOp::LaunchDependents => {
            if let Some(h) = &mut cx.cluster.hazards {
                cx.global.launched_early |=
                    !h.knows_predecessor_done(warp.index, active.trailing_zeros() as u8);
            }
            Ok(Next::Step)
        }
    }
}

fn branch_indexed(
    warp: &mut Warp,
    cx: &Cx<'_>,
    index: Src,
    targets: &[u32],
    at: Issue,
) -> Result<Next, Fault> {
    let Issue { pc, mask, active, group: g } = at;
    let stack = warp.groups[g].stack.clone();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    if active != mask {
        parts.push((pc + 1, mask & !active));
    }
    for l in lanes(active) {
        let i = warp.value(index, l) as u32 as usize;
        let Some(target) = targets.get(i) else {
            return Err(Fault::new(
                FaultKind::BadOperand,
                format!("branch index {i} of {} targets", targets.len()),
            ));
        };
        match parts.iter_mut().find(|p| p.0 == *target) {
            Some(p) => p.1 |= 1 << l,
            None => parts.push((*target, 1 << l)),
        }
    }
    if parts.len() > 1 {
        warp.convergence.diverge(mask, pc, cx.kernel.joins().after(pc), stack.len());
    }
    for (i, (target, lanes)) in parts.into_iter().enumerate() {
        if i == 0 {
            warp.groups[g].pc = target;
            warp.groups[g].mask = lanes;
        } else {
            let stack = stack.clone();
            warp.groups.push(Group { pc: target, mask: lanes, wait: None, timed_out: false, stack });
        }
    }
    Ok(Next::Done)
}

fn copy_values(warp: &mut Warp, copies: &[CallCopy], active: u32) {
    for l in lanes(active) {
        for c in copies {
            match *c {
                CallCopy::Bytes { from, to, len } => {
                    let base = l * warp.local_bytes;
                    warp.local
                        .copy_within(base + from as usize..base + (from + len) as usize, base + to as usize);
                }
                CallCopy::Value { from, to } => {
                    let v = warp.value(from, l);
                    warp.set(to, l, v);
                }
            }
        }
    }
}

fn call(warp: &mut Warp, target: &CallTarget, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, mask, active, group: g } = at;
    copy_values(warp, &target.args, active);
    if active != mask {
        let stack = warp.groups[g].stack.clone();
        warp.convergence.diverge(mask, pc, Some(pc + 1), stack.len());
        warp.groups.push(Group { pc: pc + 1, mask: mask & !active, wait: None, timed_out: false, stack });
        warp.groups[g].mask = active;
    }
    let group = &mut warp.groups[g];
    group.stack.push(pc + 1);
    group.pc = target.code.start;
    Ok(Next::Done)
}

/// A call through a pointer: lanes with the same target run together, the others after them.
fn call_pointer(
    warp: &mut Warp,
    pointer: Src,
    targets: &[(u64, CallTarget)],
    at: Issue,
) -> Result<Next, Fault> {
    let Issue { pc, mask, active, group: g } = at;
    let lane = active.trailing_zeros() as usize;
    let address = warp.value(pointer, lane);
    let Some((_, target)) = targets.iter().find(|target| target.0 == address) else {
        return Err(Fault::new(
            FaultKind::BadOperand,
            format!(
                "a call through {address:#x}, which is not the address of a function with these parameters"
            ),
        ));
    };
    // Registers and local memory of a function exist once.
    if target.code.contains(&pc) || warp.groups[g].stack.iter().any(|back| target.code.contains(&(back - 1)))
    {
        return Err(Fault::new(
            FaultKind::BadOperand,
            "a call through a pointer of a function that is running: recursion is not supported",
        ));
    }
    let together = lanes(active).filter(|l| warp.value(pointer, *l) == address).fold(0, |m, l| m | 1 << l);
    if together != active {
        // They come back to this instruction; lanes that are predicated off go with them.
        let stack = warp.groups[g].stack.clone();
        warp.convergence.diverge(mask, pc, Some(pc + 1), stack.len());
        warp.groups.push(Group { pc, mask: mask & !together, wait: None, timed_out: false, stack });
        warp.groups[g].mask = together;
    }
    let mask = if together == active { mask } else { together };
    call(warp, target, Issue { mask, active: together, ..at })
}

/// `ret` and `exit`: back to the caller, or out of the kernel.
fn leave(warp: &mut Warp, cx: &mut Cx<'_>, at: Issue, exit: bool) -> Next {
    let Issue { pc, active, group: g, .. } = at;
    let mask = warp.groups[g].mask;
    let back = if exit { None } else { warp.groups[g].stack.last().copied() };
    match back {
        Some(to) => {
            let caller = &cx.kernel.code[to as usize - 1];
            let target = match &caller.op {
                Op::Control(ControlOp::Call(target)) => Some(target),
                Op::Control(ControlOp::CallPointer { targets, .. }) => {
                    targets.iter().map(|target| &target.1).find(|target| target.code.contains(&pc))
                }
                _ => None,
            };
            if let Some(CallTarget { ret, .. }) = target {
                copy_values(warp, ret, active);
                for c in ret {
                    if let CallCopy::Value { to, .. } = c {
                        warp.written[to.index()] |= active;
                    }
                }
            }
            if active != mask {
                let stack = warp.groups[g].stack.clone();
                warp.convergence.diverge(mask, pc, cx.kernel.joins().after(pc), stack.len());
                warp.groups.push(Group {
                    pc: pc + 1,
                    mask: mask & !active,
                    wait: None,
                    timed_out: false,
                    stack,
                });
                warp.groups[g].mask = active;
            }
            let group = &mut warp.groups[g];
            group.stack.pop();
            group.pc = to;
            Next::Done
        }
        None => {
            cx.record_at((warp.index, pc), active, Deed::Exit);
            warp.exited |= active;
            warp.left_at = pc;
            *cx.progress += 1;
            let rank = warp.env.rank as usize;
            cx.cluster.ctas[rank].live_threads -= active.count_ones();
            // Those that have arrived at the cluster's barrier are no longer among those that it waits for.
            let barrier = &mut cx.cluster.barrier;
            barrier.arrived -=
                lanes(active).filter(|l| warp.cluster_arrivals[*l] > barrier.phase).count() as u32;
            if active == mask {
                warp.groups.swap_remove(g);
            } else {
                warp.groups[g].mask &= !active;
                warp.groups[g].pc = pc + 1;
            }
            // The last lanes leave with their warp.
            if !warp.groups.is_empty() {
                cx.cluster.settle_barrier();
            }
            Next::Done
        }
    }
}

/// All warps of a warpgroup execute a `setmaxnreg` of the same number, or none does. By the manual it is also the same
/// instruction; Triton has one for every partition of fewer than four warps.
pub(super) fn expect_same_registers(warp: &Warp, cx: &mut Cx<'_>) -> Result<(), Fault> {
    let first = warp.index - warp.env.warp % 4;
    let end = (first + 4).min(warp.index - warp.env.warp + warp.env.warps);
    let mine = &warp.register_changes;
    for peer in (first..end).filter(|i| *i != warp.index) {
        let other = &cx.cluster.warps[peer as usize];
        let theirs = &other.register_changes;
        let apart = mine.iter().zip(theirs).find(|(a, b)| a.1 != b.1).map(|(a, b)| (Some(a.0), Some(b.0)));
        // What one of them has done and another has left without.
        let (done, gone) = (other.done(), warp.done());
        let missed = || match mine.len().cmp(&theirs.len()) {
            Ordering::Greater if done => Some((Some(mine[theirs.len()].0), None)),
            Ordering::Less if gone => Some((None, Some(theirs[mine.len()].0))),
            _ => None,
        };
        let Some((a, b)) = apart.or_else(missed) else { continue };
        let at = a.map_or((peer, b.unwrap_or(0)), |pc| (warp.index, pc));
        let with = if a.is_some() { peer } else { warp.index };
        let left = if a.is_some() { other.left_at } else { warp.left_at };
        let other = (with, if a.is_some() { b.unwrap_or(left) } else { left });
        cx.hazard(FaultKind::Divergence, at, Some(other.1), |cx| {
            let number = with as usize % cx.cluster.warps_per_cta;
            let message =
                format!("setmaxnreg is for all warps of a warpgroup, and warp {number} has not executed it");
            let mut fault = Fault::new(FaultKind::Divergence, message);
            fault.other = Some(Box::new(cx.place(other.0, other.1)));
            fault
        })?;
    }
    Ok(())
}

/// `setmaxnreg`: a warp releases registers to its CTA, or acquires some, which may have to be released first.
fn set_registers(warp: &mut Warp, (at_first, free): &mut (u32, u32), count: u32) -> Next {
    let lanes = LANES as u32;
    let (had, wants) = (warp.registers.unwrap_or(*at_first) * lanes, count * lanes);
    if wants > had + *free {
        return Next::Retry(Wait::Registers(wants - had));
    }
    *free = had + *free - wants;
    warp.registers = Some(count);
    Next::Step
}
