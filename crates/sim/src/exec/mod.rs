//! Execution of one warp: the group of lanes that runs next, one instruction at a time.

mod access;
mod aligned;
mod atomic;
mod barrier;
pub(crate) mod clc;
pub(crate) mod cluster;
mod collective;
pub(crate) mod context;
mod control;
mod convergence;
mod copy;
mod cp_async;
pub(crate) mod exit;
mod explain;
mod fence;
pub(crate) mod finding;
mod in_flight;
mod matrix;
mod mbarrier;
mod memory;
pub(crate) mod peers;
mod print;
mod record;
pub(crate) mod remote;
mod scalar;
mod tcgen05;
mod tensor_copy;
pub(crate) mod tensormap;
pub(crate) mod warp;
mod wgmma;
mod wmma;

use crate::decode::isa::{Op, Reg};
use crate::error::{Fault, FaultKind};
use crate::lanes::lanes;
use context::Cx;
use warp::{Group, Wait, Warp};

/// Makes the group wait for lanes that have not arrived.
macro_rules! together {
    ($e:expr) => {
        if let Some(next) = $e? {
            return Ok(next);
        }
    };
}
use together;

/// State of a warp after it has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpStatus {
    /// It has run its instructions, or yields while it polls.
    Ran,
    /// Every group waits.
    Blocked,
    /// All lanes have exited.
    Exited,
}

/// What the group does after an instruction.
pub(crate) enum Next {
    /// Go on to the next instruction.
    Step,
    /// All lanes go there.
    Jump(u32),
    /// The active lanes go there, the others to the next instruction.
    Split(u32, u32),
    /// Try again when the wait is over.
    Retry(Wait),
    /// Go on when the wait is over.
    Advance(Wait),
    /// Go on, and let another warp run.
    Yield,
    /// The instruction has changed the groups itself.
    Done,
}

/// An instruction at its issue: where it stands, and the lanes that run it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issue {
    pub(crate) pc: u32,
    /// Lanes of the group, and those of them that the guard lets run.
    pub(crate) mask: u32,
    pub(crate) active: u32,
    /// Index of the group in its warp.
    pub(crate) group: usize,
}

/// Runs a warp for at most `quantum` instructions.
pub(crate) fn run(warp: &mut Warp, cx: &mut Cx<'_>, quantum: u32) -> Result<WarpStatus, Fault> {
    for _ in 0..quantum {
        if warp.groups.is_empty() {
            return Ok(WarpStatus::Exited);
        }
        let Some(g) = pick(warp, cx)? else { return Ok(WarpStatus::Blocked) };
        let pc = warp.groups[g].pc;
        let yielded = step(warp, g, cx).map_err(|f| {
            let f = cx.locate(f, warp.index, pc);
            annotate(f, cx)
        })?;
        if yielded {
            return Ok(WarpStatus::Ran);
        }
    }
    Ok(if warp.groups.is_empty() { WarpStatus::Exited } else { WarpStatus::Ran })
}

/// Adds the state of barriers to faults that are about them.
fn annotate(mut fault: Fault, cx: &Cx<'_>) -> Fault {
    if matches!(fault.kind, FaultKind::OverArrival | FaultKind::TransactionCount | FaultKind::BarrierInit)
        && fault.notes.is_empty()
    {
        fault.notes = (0..cx.cluster.ctas.len()).flat_map(|cta| cx.barrier_notes(cta)).collect();
    }
    fault
}

/// The group that is furthest behind among those that can run.
fn pick(warp: &mut Warp, cx: &mut Cx<'_>) -> Result<Option<usize>, Fault> {
    if warp.groups.len() == 1 && warp.groups[0].wait.is_none() {
        warp.diverged_for = 0;
        return Ok(Some(0));
    }
    if warp.groups.len() > 1 {
        warp.merge();
    }
    // Lanes that stay diverged for long may be polling for one another: every group gets to run.
    warp.diverged_for += 1;
    let reverse = warp.diverged_for > 4096 && warp.diverged_for >> 8 & 1 == 1;
    let before = |a: u32, b: u32| if reverse { a > b } else { a < b };
    let mut best: Option<usize> = None;
    for i in 0..warp.groups.len() {
        let Some(wait) = &warp.groups[i].wait else {
            if best.is_none_or(|b| before(warp.groups[i].pc, warp.groups[b].pc)) {
                best = Some(i);
            }
            continue;
        };
        if ready(warp, &warp.groups[i], wait, cx) {
            let g = &mut warp.groups[i];
            if let Some(Wait::Bar { .. }) = g.wait.take() {
                g.pc += 1;
            }
            if best.is_none_or(|b| before(warp.groups[i].pc, warp.groups[b].pc)) {
                best = Some(i);
            }
        }
    }
    Ok(best)
}

/// Whether a wait is over.
pub(crate) fn ready(warp: &Warp, group: &Group, wait: &Wait, cx: &Cx<'_>) -> bool {
    match wait {
        Wait::Converge(need) => need & !warp.exited & !group.mask == 0,
        Wait::Bar { id, generation } | Wait::BarRetry { id, generation } => {
            cx.cluster.ctas[warp.env.rank as usize].bars[*id].generation != *generation
        }
        Wait::Cluster => lanes(group.mask).all(|l| cx.cluster.barrier.phase >= warp.cluster_arrivals[l]),
        Wait::Mbar(list) => list.iter().any(|w| cx.mbar_ready(w)),
        Wait::Wgmma(groups) => cx.wgmma_ready(warp, *groups),
        Wait::Copies(ids, read) => cx.copies_done(ids, *read),
        Wait::TensorColumns(..) => cx.columns_granted(warp),
        Wait::Registers(need) => cx.cluster.ctas[warp.env.rank as usize].registers.1 >= *need,
    }
}

/// Runs one instruction of group `g`; true when the warp should let others run.
fn step(warp: &mut Warp, g: usize, cx: &mut Cx<'_>) -> Result<bool, Fault> {
    let kernel = cx.kernel;
    let (pc, mask) = (warp.groups[g].pc, warp.groups[g].mask);
    let inst = &kernel.code[pc as usize];
    cx.at = (warp.index, pc);
    // PTX promises nothing of where lanes meet; compilers join them where their ways come together.
    if !warp.convergence.whole() && !cx.options.strict {
        warp.convergence.arrive(mask, pc, warp.groups[g].stack.len());
    }
    let mut active = mask;
    if let Some((r, negate)) = inst.guard {
        if cx.options.hazards && warp.written[r.index()] & mask != mask {
            cx.hazard(FaultKind::Uninitialized, (warp.index, pc), None, |cx| {
                uninitialized(warp, cx, r, mask)
            })?;
        }
        let mut set = 0;
        for l in lanes(mask) {
            set |= (warp.get(r, l) as u32 & 1) << l;
        }
        active = mask & if negate { !set } else { set };
    }
    warp.clock += 1;
    cx.report.instructions += 1;
    if active == 0 {
        warp.groups[g].pc += 1;
        return Ok(false);
    }
    cx.executed[pc as usize] = true;
    if cx.options.trace && kernel.names.role(inst.line).is_some() {
        warp.role_line = inst.line;
    }
    if cx.options.hazards {
        check_registers(warp, cx, pc, active)?;
    }
    if let Some(h) = &mut cx.cluster.hazards {
        h.select(active, warp.exited);
    }
    let next = execute(warp, cx, Issue { pc, mask, active, group: g })?;
    let group = &mut warp.groups.get_mut(g);
    match next {
        Next::Step => {
            if let Some(group) = group {
                group.pc = pc + 1;
            }
        }
        Next::Yield => {
            if let Some(group) = group {
                group.pc = pc + 1;
            }
            return Ok(true);
        }
        Next::Jump(target) => {
            if let Some(group) = group {
                group.pc = target;
            }
        }
        Next::Split(target, taken) => {
            let rest = mask & !taken;
            let depth = warp.groups[g].stack.len();
            warp.convergence.diverge(mask, pc, kernel.joins().after(pc), depth);
            let group = &mut warp.groups[g];
            group.mask = taken;
            group.pc = target;
            let stack = group.stack.clone();
            warp.groups.push(Group { pc: pc + 1, mask: rest, wait: None, timed_out: false, stack });
        }
        Next::Retry(wait) | Next::Advance(wait) => {
            // Lanes that are predicated off wait with their group: no branch has separated them.
            warp.groups[g].wait = Some(wait);
        }
        Next::Done => {}
    }
    Ok(false)
}

fn uninitialized(warp: &Warp, cx: &Cx<'_>, r: Reg, lanes_of: u32) -> Fault {
    let lane = (lanes_of & !warp.written[r.index()]).trailing_zeros();
    let name = &cx.kernel.registers[r.index()];
    match warp.undefined.get(&r) {
        Some(pc) => {
            let mut fault = Fault::new(
                FaultKind::Uninitialized,
                format!(
                    "register {name} is used in lane {lane} and was loaded from memory that nothing wrote"
                ),
            );
            fault.other = Some(Box::new(cx.place(warp.index, *pc)));
            fault
        }
        None => Fault::new(
            FaultKind::Uninitialized,
            format!("register {name} is read in lane {lane} and was never written"),
        ),
    }
}

/// Uninitialized reads, and registers that a `wgmma` in flight owns.
fn check_registers(warp: &mut Warp, cx: &mut Cx<'_>, pc: u32, active: u32) -> Result<(), Fault> {
    let kernel = cx.kernel;
    let uses = &kernel.code[pc as usize].uses;
    let in_flight = warp.wgmma.issued > 0;
    let at = (warp.index, pc);
    for &r in &uses.reads {
        if warp.written[r.index()] & active != active {
            cx.hazard(FaultKind::Uninitialized, at, None, |cx| uninitialized(warp, cx, r, active))?;
        }
        if in_flight {
            let (group, writes) = warp.wgmma.busy[r.index()];
            if writes && group > warp.wgmma.waited {
                cx.busy_register(warp, pc, r, "read")?;
            }
        }
        warp.wgmma.touched[r.index()] = (warp.wgmma.fences + 1, pc);
    }
    for &r in &uses.copied {
        if in_flight {
            let (group, writes) = warp.wgmma.busy[r.index()];
            if writes && group > warp.wgmma.waited {
                cx.busy_register(warp, pc, r, "read")?;
            }
        }
        warp.wgmma.touched[r.index()] = (warp.wgmma.fences + 1, pc);
    }
    for &r in &uses.writes {
        if in_flight && warp.wgmma.busy[r.index()].0 > warp.wgmma.waited {
            cx.busy_register(warp, pc, r, "written")?;
        }
        if uses.copied.is_empty() {
            warp.written[r.index()] |= active;
        }
        warp.wgmma.touched[r.index()] = (warp.wgmma.fences + 1, pc);
    }
    if !uses.copied.is_empty()
        && let Op::Scalar(op) = &kernel.code[pc as usize].op
    {
        scalar::follow(warp, op, active);
    }
    Ok(())
}

fn execute(warp: &mut Warp, cx: &mut Cx<'_>, at: Issue) -> Result<Next, Fault> {
    let kernel = cx.kernel;
    match &kernel.code[at.pc as usize].op {
        Op::Scalar(op) => {
            scalar::execute(warp, op, at.active);
            Ok(Next::Step)
        }
        Op::Control(op) => control::execute(warp, cx, op, at),
        Op::Memory(op) => memory::execute(warp, cx, op, at),
        Op::Atomic(op) => atomic::execute(warp, cx, op, at),
        Op::Collective(op) => collective::execute(warp, cx, op, at),
        Op::Barrier(op) => barrier::execute(warp, cx, op, at),
        Op::Mbarrier(op) => mbarrier::execute(warp, cx, op, at),
        Op::Fence(op) => fence::execute(warp, cx, op, at),
        Op::CpAsync(op) => cp_async::execute(warp, cx, op, at),
        Op::Copy(op) => copy::execute(warp, cx, op, at),
        Op::TensorMap(op) => tensormap::execute(warp, cx, op, at),
        Op::Wgmma(op) => wgmma::execute(warp, cx, op, at),
        Op::Matrix(op) => matrix::execute(warp, cx, op, at),
        Op::Wmma(op) => wmma::execute(warp, cx, op, at),
        Op::Tcgen05(op) => tcgen05::execute(warp, cx, op, at),
        Op::Clc(op) => clc::execute(warp, cx, op, at),
    }
}
