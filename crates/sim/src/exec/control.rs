//! Branch tables, calls, returns and exits.

use super::Next;
use crate::context::Cx;
use crate::error::{Fault, FaultKind};
use crate::isa::{CallCopy, Op};
use crate::warp::{Group, Warp, lanes};

pub(super) fn branch_indexed(
    warp: &mut Warp,
    g: usize,
    index: crate::isa::Src,
    targets: &[u32],
    mask: u32,
    active: u32,
    pc: u32,
) -> Result<Next, Fault> {
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
    for (i, (target, lanes)) in parts.into_iter().enumerate() {
        if lanes != mask {
            warp.convergence.part(lanes, pc);
        }
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

pub(super) fn call(
    warp: &mut Warp,
    g: usize,
    target: u32,
    args: &[CallCopy],
    mask: u32,
    active: u32,
    pc: u32,
) -> Result<Next, Fault> {
    copy_values(warp, args, active);
    if active != mask {
        warp.convergence.part(active, pc);
        let stack = warp.groups[g].stack.clone();
        warp.groups.push(Group { pc: pc + 1, mask: mask & !active, wait: None, timed_out: false, stack });
        warp.groups[g].mask = active;
    }
    let group = &mut warp.groups[g];
    group.stack.push(pc + 1);
    group.pc = target;
    Ok(Next::Done)
}

/// `ret` and `exit`: back to the caller, or out of the kernel.
pub(super) fn leave(warp: &mut Warp, g: usize, cx: &mut Cx<'_>, active: u32, pc: u32, exit: bool) -> Next {
    let mask = warp.groups[g].mask;
    let back = if exit { None } else { warp.groups[g].stack.last().copied() };
    match back {
        Some(to) => {
            let caller = &cx.kernel.code[to as usize - 1];
            if let Op::Call { ret, .. } = &caller.op {
                copy_values(warp, ret, active);
                for c in ret {
                    if let CallCopy::Value { to, .. } = c {
                        warp.written[*to as usize] |= active;
                    }
                }
            }
            if active != mask {
                warp.convergence.part(active, pc);
                let stack = warp.groups[g].stack.clone();
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
            warp.exited |= active;
            warp.left_at = pc;
            *cx.progress += 1;
            let rank = warp.env.rank as usize;
            cx.cluster.ctas[rank].live_threads -= active.count_ones();
            if active == mask {
                warp.groups.swap_remove(g);
            } else {
                warp.groups[g].mask &= !active;
                warp.groups[g].pc = pc + 1;
            }
            Next::Done
        }
    }
}
