//! Executing one warp: picking the group of lanes to run, and one instruction of it at a time.

mod aligned;
mod atomic;
mod barrier;
pub(crate) mod cluster;
pub(crate) mod context;
mod control;
pub(crate) mod convergence;
mod copy;
mod cp_async;
pub(crate) mod exit;
mod explain;
mod lanes;
mod matrix;
mod mbarrier;
mod memory;
pub(crate) mod warp;

use crate::exec::context::Cx;
use crate::error::{Fault, FaultKind};
use crate::decode::isa::{Fence, Op};
use crate::exec::warp::{Group, LANES, Wait, Warp, lanes};

use self::aligned::{aligned, converge, in_step};

/// Lets the group wait where lanes are missing.
macro_rules! together {
    ($e:expr) => {
        if let Some(next) = $e? {
            return Ok(next);
        }
    };
}
use together;

/// What happened to a warp in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It used up its turn, or gave it away while polling.
    Ran,
    /// Every group waits.
    Blocked,
    /// All lanes have exited.
    Exited,
}

/// What an instruction asks of the group that ran it.
pub(crate) enum Next {
    /// Go on with the next instruction.
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
    /// The group was changed by hand.
    Done,
}

/// Runs a warp for at most `quantum` instructions.
pub(crate) fn run(warp: &mut Warp, cx: &mut Cx<'_>, quantum: u32) -> Result<Turn, Fault> {
    for _ in 0..quantum {
        if warp.groups.is_empty() {
            return Ok(Turn::Exited);
        }
        let Some(g) = pick(warp, cx)? else { return Ok(Turn::Blocked) };
        let pc = warp.groups[g].pc;
        let yielded = step(warp, g, cx).map_err(|f| {
            let f = cx.locate(f, warp.index, pc);
            annotate(f, cx)
        })?;
        if yielded {
            return Ok(Turn::Ran);
        }
    }
    Ok(if warp.groups.is_empty() { Turn::Exited } else { Turn::Ran })
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
        warp.apart = 0;
        return Ok(Some(0));
    }
    if warp.groups.len() > 1 {
        warp.merge();
    }
    // Lanes that stay apart for long may be polling for one another: each group gets its share.
    warp.apart += 1;
    let turn_around = warp.apart > 4096 && warp.apart >> 8 & 1 == 1;
    let before = |a: u32, b: u32| if turn_around { a > b } else { a < b };
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
        Wait::Registers(need) => cx.cluster.ctas[warp.env.rank as usize].registers.1 >= *need,
    }
}

/// Runs one instruction of group `g`; true when the warp should let others run.
fn step(warp: &mut Warp, g: usize, cx: &mut Cx<'_>) -> Result<bool, Fault> {
    let kernel = cx.kernel;
    let (pc, mask) = (warp.groups[g].pc, warp.groups[g].mask);
    let inst = &kernel.code[pc as usize];
    let mut active = mask;
    if let Some((r, negate)) = inst.guard {
        if cx.options.hazards && warp.written[r as usize] & mask != mask {
            return Err(uninitialized(warp, cx, r, mask));
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
    let next = execute(warp, g, cx, pc, mask, active)?;
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
            warp.convergence.part(taken, pc);
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

fn uninitialized(warp: &Warp, cx: &Cx<'_>, r: u32, lanes_of: u32) -> Fault {
    let lane = (lanes_of & !warp.written[r as usize]).trailing_zeros();
    let name = &cx.kernel.registers[r as usize];
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
    let uses = &cx.kernel.code[pc as usize].uses;
    let in_flight = warp.wgmma.issued > 0;
    for &r in &uses.reads {
        if warp.written[r as usize] & active != active && !uses.copies {
            return Err(uninitialized(warp, cx, r, active));
        }
        if in_flight {
            let (group, writes) = warp.wgmma.busy[r as usize];
            if writes && group > warp.wgmma.waited {
                return Err(cx.busy_register(warp, r, "read"));
            }
        }
        warp.wgmma.touched[r as usize] = (warp.wgmma.fences + 1, pc);
    }
    for &r in &uses.writes {
        if in_flight && warp.wgmma.busy[r as usize].0 > warp.wgmma.waited {
            return Err(cx.busy_register(warp, r, "written"));
        }
        match uses.reads.first() {
            Some(&from) if uses.copies => {
                let defined = warp.written[from as usize] & active;
                warp.written[r as usize] = warp.written[r as usize] & !active | defined;
            }
            _ => warp.written[r as usize] |= active,
        }
        warp.wgmma.touched[r as usize] = (warp.wgmma.fences + 1, pc);
    }
    Ok(())
}

fn execute(
    warp: &mut Warp,
    g: usize,
    cx: &mut Cx<'_>,
    pc: u32,
    mask: u32,
    active: u32,
) -> Result<Next, Fault> {
    let inst = &cx.kernel.code[pc as usize];
    match &inst.op {
        Op::Alu { f, dst, a, b, c } if active == u32::MAX => {
            let (a, b, c) = (warp.all(*a), warp.all(*b), warp.all(*c));
            let out = warp.row_mut(*dst);
            for (l, v) in out.iter_mut().enumerate() {
                *v = f(a[l], b[l], c[l]);
            }
            Ok(Next::Step)
        }
        Op::Alu { f, dst, a, b, c } => {
            for l in lanes(active) {
                let v = f(warp.value(*a, l), warp.value(*b, l), warp.value(*c, l));
                warp.set(*dst, l, v);
            }
            Ok(Next::Step)
        }
        Op::Alu4 { f, dst, src } => {
            for l in lanes(active) {
                let [a, b, c, d] = src.map(|s| warp.value(s, l));
                warp.set(*dst, l, f(a, b, c, d));
            }
            Ok(Next::Step)
        }
        Op::Cvt { cvt, dst, a, b } => {
            for l in lanes(active) {
                let v = cvt.apply(warp.value(*a, l), warp.value(*b, l));
                warp.set(*dst, l, v);
            }
            Ok(Next::Step)
        }
        Op::CvtWith { cvt, dst, src } => {
            for l in lanes(active) {
                let v = cvt.apply_with(src.map(|s| warp.value(s, l)));
                warp.set(*dst, l, v);
            }
            Ok(Next::Step)
        }
        Op::Carry { f, dst, a, b, c, writes } => {
            for l in lanes(active) {
                let carry = warp.carry >> l & 1 == 1;
                let (v, out) = f(warp.value(*a, l), warp.value(*b, l), warp.value(*c, l), carry);
                warp.set(*dst, l, v);
                if *writes {
                    warp.carry = warp.carry & !(1 << l) | u32::from(out) << l;
                }
            }
            Ok(Next::Step)
        }
        Op::Setp { cmp, a, b, combine, p, q, packed } => {
            for l in lanes(active) {
                let (a, b) = (warp.value(*a, l), warp.value(*b, l));
                let r = cmp(a, b);
                let other = if *packed { cmp(a >> 16, b >> 16) } else { !r };
                let with = |r: bool| combine.map_or(r, |(how, c)| how.apply(r, warp.value(c, l) & 1 == 1));
                let (x, y) = (with(r), with(other));
                if let Some(p) = p {
                    warp.set(*p, l, u64::from(x));
                }
                if let Some(q) = q {
                    warp.set(*q, l, u64::from(y));
                }
            }
            Ok(Next::Step)
        }
        Op::Pack { dst, parts, bits } => {
            for l in lanes(active) {
                let low = crate::text::types::low_mask(*bits);
                let v = parts.iter().rev().fold(0u64, |v, p| v << bits | warp.value(*p, l) & low);
                warp.set(*dst, l, v);
            }
            Ok(Next::Step)
        }
        Op::Unpack { parts, src, bits } => {
            for l in lanes(active) {
                let v = warp.value(*src, l);
                for (i, p) in parts.iter().enumerate() {
                    if let Some(p) = p {
                        warp.set(*p, l, v >> (i as u32 * bits) & crate::text::types::low_mask(*bits));
                    }
                }
            }
            Ok(Next::Step)
        }
        Op::Branch { target } => {
            Ok(if active == mask { Next::Jump(*target) } else { Next::Split(*target, active) })
        }
        Op::BranchIndexed { index, targets } => {
            control::branch_indexed(warp, g, *index, targets, mask, active, pc)
        }
        Op::Call(target) => control::call(warp, g, target, mask, active, pc),
        Op::CallPointer { pointer, targets } => {
            control::call_pointer(warp, g, *pointer, targets, mask, active, pc)
        }
        Op::Return => Ok(control::leave(warp, g, cx, active, pc, false)),
        Op::Exit => Ok(control::leave(warp, g, cx, active, pc, true)),
        Op::Trap => Err(Fault::new(FaultKind::Trap, "the kernel executed `trap`")),
        Op::Nop => Ok(Next::Step),
        Op::GridDependencyWait => {
            if let Some(h) = &mut cx.cluster.hazards {
                h.predecessor_done(warp.index);
                cx.global.waited = true;
            }
            Ok(Next::Step)
        }
        Op::LaunchDependents => {
            if let Some(h) = &mut cx.cluster.hazards {
                cx.global.hurried |= !h.knows_predecessor_done(warp.index, active.trailing_zeros() as u8);
            }
            Ok(Next::Step)
        }
        Op::SetMaxReg { count } => {
            together!(aligned(warp, cx, pc, mask, active));
            in_step(warp, cx, active);
            Ok(set_registers(warp, &mut cx.cluster.ctas[warp.env.rank as usize].registers, *count))
        }
        Op::Yield => {
            *cx.polls += 1;
            Ok(Next::Yield)
        }
        Op::Fence(fence) => {
            if let Fence::TensorMapRelease(_) = fence {
                let me = cx.identity(warp.index);
                cx.maps.values_mut().filter(|m| m.writer == me).for_each(|m| m.released = true);
            }
            if let Some(h) = &mut cx.cluster.hazards {
                match fence {
                    Fence::Thread { acquire, release, scope } => {
                        h.fence_thread(warp.index, *acquire, *release, *scope);
                    }
                    Fence::ProxyAsync { shared, global } => h.fence_proxy(warp.index, *shared, *global),
                    Fence::MbarrierInit => h.fence_mbarrier_init(warp.index),
                    Fence::TensorMapRelease(scope) => h.fence_thread(warp.index, false, true, *scope),
                    Fence::Nothing => {}
                }
                if matches!(fence, Fence::ProxyAsync { shared: true, .. } | Fence::MbarrierInit) {
                    for m in cx.cluster.ctas.iter_mut().flat_map(|c| c.mbars.values_mut()) {
                        m.fenced |= m.init_warp == warp.index;
                    }
                }
            }
            Ok(Next::Step)
        }
        op => other(warp, g, cx, op, pc, mask, active),
    }
}

/// Functions of registers that are rare enough to stand aside of the others.
fn rare(warp: &mut Warp, op: &Op, active: u32) {
    match op {
        Op::Set { cmp, dst, a, b, one, combine, packed } => {
            for l in lanes(active) {
                let (a, b) = (warp.value(*a, l), warp.value(*b, l));
                let with = |r: bool| combine.map_or(r, |(how, c)| how.apply(r, warp.value(c, l) & 1 == 1));
                let half = |shift: u32| if with(cmp(a >> shift, b >> shift)) { *one } else { 0 };
                let v = if *packed { half(0) | half(16) << 16 } else { half(0) };
                warp.set(*dst, l, v);
            }
        }
        Op::Lop3(x) => {
            for l in lanes(active) {
                let [a, b, c, table] = x.src.map(|s| warp.value(s, l));
                let v = crate::arith::alu::lop3(a, b, c, table);
                let set = x.combine.0.apply(v != 0, warp.value(x.combine.1, l) & 1 == 1);
                if let Some(d) = x.dst {
                    warp.set(d, l, v);
                }
                if let Some(p) = x.p {
                    warp.set(p, l, u64::from(set));
                }
            }
        }
        Op::Move { pairs } => {
            for l in lanes(active) {
                let values: Vec<u64> = pairs.iter().map(|(_, s)| warp.value(*s, l)).collect();
                pairs.iter().zip(values).for_each(|((d, _), v)| warp.set(*d, l, v));
            }
        }
        _ => {}
    }
}

/// Everything that reaches beyond the registers, and what is rare.
fn other(
    warp: &mut Warp,
    g: usize,
    cx: &mut Cx<'_>,
    op: &Op,
    pc: u32,
    mask: u32,
    active: u32,
) -> Result<Next, Fault> {
    match op {
        Op::Load { .. } | Op::Store { .. } => memory::access(warp, cx, op, pc, active),
        Op::Set { .. } | Op::Lop3(_) | Op::Move { .. } => {
            rare(warp, op, active);
            Ok(Next::Step)
        }
        Op::Atom { .. } => atomic::atom(warp, cx, op, pc, active),
        Op::AtomWide { .. } => atomic::wide(warp, cx, op, pc, active),
        Op::AtomVector { .. } => atomic::vector(warp, cx, op, pc, active),
        Op::StoreZeros { .. } | Op::Discard { .. } => memory::clear(warp, cx, op, pc, active),
        Op::CvtaTo { .. }
        | Op::CvtaFrom { .. }
        | Op::Mapa { .. }
        | Op::GetCtaRank { .. }
        | Op::IsSpace { .. } => memory::convert(warp, cx, op, active),
        Op::Shfl { .. }
        | Op::Vote { .. }
        | Op::Match { .. }
        | Op::Redux { .. }
        | Op::Elect { .. }
        | Op::ActiveMask { .. }
        | Op::WarpSync { .. } => {
            let next = lanes::exchange(warp, op, mask, active)?;
            if matches!(next, Next::Step) {
                match op {
                    Op::ActiveMask { .. } => {}
                    Op::WarpSync { .. } => in_step(warp, cx, active),
                    // They are together, but what one did in memory is not behind the others.
                    _ => warp.convergence.join(active | warp.exited),
                }
            }
            Ok(next)
        }
        Op::Bar { .. } | Op::BarReduce { .. } | Op::ClusterArrive { .. } | Op::ClusterWait { .. } => {
            barrier::barrier(warp, cx, op, pc, mask, active)
        }
        Op::MbarInit { .. }
        | Op::MbarInval { .. }
        | Op::MbarArrive(_)
        | Op::MbarTx { .. }
        | Op::MbarPending { .. } => mbarrier::mbarrier(warp, cx, op, pc, active),
        Op::MbarWait { .. } => mbarrier::mbarrier_wait(warp, g, cx, op, pc, active),
        Op::CpAsync { .. }
        | Op::CpAsyncCommit
        | Op::CpAsyncWait { .. }
        | Op::CpAsyncMbar { .. }
        | Op::Bulk(_)
        | Op::Tensor(_)
        | Op::BulkCommit
        | Op::BulkWait { .. }
        | Op::BulkPrefetch { .. }
        | Op::TensorPrefetch { .. }
        | Op::StAsync { .. }
        | Op::TensorMapAcquire { .. }
        | Op::TensorMapReplace { .. } => copy::copy(warp, cx, op, pc, active),
        Op::TensorMapCopyRelease { .. } => {
            together!(aligned(warp, cx, pc, mask, active));
            in_step(warp, cx, active);
            copy::copy(warp, cx, op, pc, active)
        }
        Op::Wgmma(_) | Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait { .. } => {
            together!(aligned(warp, cx, pc, mask, active));
            in_step(warp, cx, active);
            cx.wgmma(warp, op, pc)
        }
        Op::Mma(_)
        | Op::LdMatrix { .. }
        | Op::StMatrix { .. }
        | Op::MovMatrix { .. }
        | Op::WmmaLoad(_)
        | Op::WmmaStore(_)
        | Op::WmmaMma(_) => {
            together!(aligned(warp, cx, pc, mask, active));
            in_step(warp, cx, active);
            let next = matrix::matrix(warp, cx, op, pc)?;
            // All lanes take part in the loads: none of them can overwrite a row too early.
            if let Op::LdMatrix { .. } | Op::WmmaLoad(_) = op {
                in_step(warp, cx, active);
            }
            Ok(next)
        }
        _ => Err(Fault::new(FaultKind::BadOperand, "the instruction has no executor")),
    }
}

/// `setmaxnreg`: a warp gives registers back to its CTA, or takes some, which may have to be given back first.
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
