//! `tcgen05`: issue and execution of the tensor core's asynchronous work.
//!
//! A thread issues `mma`, `cp`, `shift` and `commit`; they enter a queue and are done when the schedule says. What a
//! piece of work touches is checked and recorded when it is issued.

mod alloc;
mod copy;
mod mma;
mod moves;
mod timeline;

use super::aligned::{aligned, converged};
use super::context::Cx;
use super::warp::Warp;
use super::{Issue, Next, together};
use crate::decode::isa::{Addr, Src};
use crate::decode::tcgen05::Tcgen05Op;
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Pipe, Proxy, TensorAccess, TensorConflict, TensorMissing};
use crate::lanes::{LANES, lanes};
use crate::options::Policy;
use crate::record::{Deed, Way, Work as Recorded};
use crate::report::TraceUnit;
use crate::text::ast::Space;
use crate::units::tcgen05::queue::{Done, Footprint, Role, TensorUse, Work, WorkKind};
use crate::units::tensor_memory::{Area, TENSOR_COLUMNS, TensorAddress, Use};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &Tcgen05Op, at: Issue) -> Result<Next, Fault> {
    match op {
        Tcgen05Op::Alloc { dst, space, columns, pair } => {
            whole_warp!(warp, cx, at);
            check_group(warp, cx, *pair, at.pc)?;
            alloc::allocate(warp, cx, (dst, *space), *columns, *pair, at.pc)
        }
        Tcgen05Op::Dealloc { addr, columns, pair } => {
            whole_warp!(warp, cx, at);
            check_group(warp, cx, *pair, at.pc)?;
            alloc::free(warp, cx, *addr, *columns, *pair, at.pc)?;
            Ok(Next::Step)
        }
        Tcgen05Op::Relinquish { pair } => {
            whole_warp!(warp, cx, at);
            check_group(warp, cx, *pair, at.pc)?;
            let memory = cx.cluster.ctas[warp.env.rank as usize].tensor();
            memory.relinquished.get_or_insert((warp.index, at.pc));
            Ok(Next::Step)
        }
        Tcgen05Op::Load(load) => {
            whole_warp!(warp, cx, at);
            moves::load(warp, cx, load, at.pc)?;
            Ok(Next::Step)
        }
        Tcgen05Op::Store(store) => {
            whole_warp!(warp, cx, at);
            moves::store(warp, cx, store, at.pc)?;
            Ok(Next::Step)
        }
        Tcgen05Op::Wait { stores } => {
            whole_warp!(warp, cx, at);
            cx.record(warp.index, u32::MAX, Deed::TensorWait { stores: *stores });
            cx.end_tensor_memory(warp.env.rank as usize, Use::Move { warp: warp.index, store: *stores });
            if let Some(h) = &mut cx.cluster.hazards {
                h.tensor_wait(warp.index, *stores);
            }
            Ok(Next::Step)
        }
        Tcgen05Op::Fence { after } => {
            cx.record(warp.index, at.active, Deed::FenceTensor { after: *after });
            if let Some(h) = &mut cx.cluster.hazards {
                h.tensor_fence(warp.index, *after);
            }
            Ok(Next::Step)
        }
        Tcgen05Op::Copy { pair, .. } | Tcgen05Op::Shift { pair, .. } | Tcgen05Op::Commit { pair, .. } => {
            check_group(warp, cx, *pair, at.pc)?;
            issue_all(warp, cx, op, at)
        }
        Tcgen05Op::Mma(m) => {
            check_group(warp, cx, m.pair, at.pc)?;
            issue_all(warp, cx, op, at)
        }
    }
}

/// Requires that all 32 lanes of the warp run this instruction together.
macro_rules! whole_warp {
    ($warp:ident, $cx:ident, $at:ident) => {
        together!(aligned($warp, $cx, $at));
        converged($warp, $cx, $at.active);
        if $at.active != u32::MAX {
            return Err(Fault::new(
                FaultKind::Divergence,
                "this instruction is of a whole warp, and lanes of it have exited or never were",
            ));
        }
    };
}
use whole_warp;

/// The value of an operand that all lanes must agree on.
fn uniform(warp: &Warp, s: Src, name: &str) -> Result<u64, Fault> {
    let different = || Fault::new(FaultKind::BadOperand, format!("{name} differs between the lanes"));
    warp.uniform(s, u32::MAX).ok_or_else(different)
}

/// A tensor-memory address of one lane.
fn tensor_address(warp: &Warp, addr: &Addr, lane: usize) -> TensorAddress {
    TensorAddress::new((warp.value(addr.base, lane) as u32).wrapping_add(addr.offset as u32))
}

/// All instructions of a kernel say the same `cta_group`; a pair needs its second CTA.
fn check_group(warp: &Warp, cx: &mut Cx<'_>, pair: bool, pc: u32) -> Result<(), Fault> {
    let (rank, ctas) = (warp.env.rank as usize, cx.cluster.ctas.len());
    if pair && rank ^ 1 >= ctas {
        return Err(Fault::new(
            FaultKind::BadOperand,
            format!("cta_group::2 takes a pair of CTAs: rank {rank} of a cluster of {ctas} has no peer"),
        ));
    }
    let (first, by) = *cx.cluster.ctas[rank].tensor().group.get_or_insert((pair, (warp.index, pc)));
    if first != pair && cx.options.hazards {
        let name = |pair: bool| if pair { "cta_group::2" } else { "cta_group::1" };
        let mut fault = Fault::new(
            FaultKind::BadOperand,
            format!("{} in a kernel that has used {}: one kernel has one", name(pair), name(first)),
        );
        fault.other = Some(Box::new(cx.place(by.0, by.1)));
        return Err(fault);
    }
    Ok(())
}

/// The CTAs that an instruction is for: bit `r` is rank `r`.
fn cta_mask(rank: u32, pair: bool) -> u32 {
    if pair { 3 << (rank & !1) } else { 1 << rank }
}

/// Issues asynchronous work, for each lane its own.
fn issue_all(warp: &Warp, cx: &mut Cx<'_>, op: &Tcgen05Op, at: Issue) -> Result<Next, Fault> {
    let many = at.active.count_ones() > 1;
    for lane in lanes(at.active) {
        if many && let Some(h) = &mut cx.cluster.hazards {
            h.select(1 << lane, 0);
        }
        issue(warp, cx, op, at.pc, lane)?;
    }
    Ok(Next::Step)
}

/// Issues asynchronous work of one lane.
fn issue(warp: &Warp, cx: &mut Cx<'_>, op: &Tcgen05Op, pc: u32, lane: usize) -> Result<(), Fault> {
    let rank = warp.env.rank;
    let (kind, footprint, pipe, pair) = match op {
        Tcgen05Op::Copy { addr, descriptor, shape, pair } => {
            let to = tensor_address(warp, addr, lane);
            let descriptor = warp.value(*descriptor, lane);
            let footprint = copy::footprint(to, descriptor, *shape, cta_mask(rank, *pair))?;
            let pipe = Pipe::Copy { rows4: shape.rows.rows() == 4 };
            (WorkKind::Copy { to, descriptor, shape: *shape }, footprint, pipe, *pair)
        }
        Tcgen05Op::Shift { addr, pair } => {
            let at = tensor_address(warp, addr, lane);
            let footprint = copy::shift_footprint(at, cta_mask(rank, *pair))?;
            (WorkKind::Shift { at }, footprint, Pipe::Shift, *pair)
        }
        Tcgen05Op::Mma(m) => {
            let (work, footprint, form) = mma::issue(warp, cx, m, lane)?;
            (WorkKind::Mma(Box::new(work)), footprint, Pipe::Mma { form }, m.pair)
        }
        Tcgen05Op::Commit { mbar, space, mask, pair } => {
            return commit(warp, cx, (mbar, *space), *mask, *pair, pc, lane);
        }
        _ => return Ok(()),
    };
    cx.record_work(warp.index, lane as u8, pc, pipe, &footprint)?;
    cx.submit_work(warp.index, lane as u32, pc, cta_mask(rank, pair), kind)
}

/// `tcgen05.commit`: the arrivals come behind the work that this thread has issued.
fn commit(
    warp: &Warp,
    cx: &mut Cx<'_>,
    (mbar, space): (&Addr, Space),
    mask: Option<Src>,
    pair: bool,
    pc: u32,
    lane: usize,
) -> Result<(), Fault> {
    let space = if space == Space::Generic { Space::Generic } else { Space::Cluster };
    let (cta, offset) = super::copy::shared_at(warp, cx, mbar, space, lane)?;
    super::memory::check_alignment(u64::from(offset), 8)?;
    let ranks = super::copy::receivers(warp, cx, mask, cta, lane)?;
    for &rank in &ranks {
        cx.shared_range(rank, offset, 8)?;
        cx.mbar(warp.index, rank, offset, false)?;
        let (mbar, phase) = ((rank as u32, offset), cx.phase_of(rank, offset));
        cx.record_at((warp.index, pc), 1 << lane, Deed::Commit { mbar, phase });
    }
    let mut done = Done::default();
    if let Some(h) = &mut cx.cluster.hazards {
        (done.view, done.ticks) = h.tensor_commit(warp.index, lane as u8);
    }
    let mbars = ranks.into_iter().map(|rank| (rank, offset)).collect();
    let kind = WorkKind::Commit { mbars, done };
    cx.submit_work(warp.index, lane as u32, pc, cta_mask(warp.env.rank, pair), kind)
}

impl Cx<'_> {
    /// Requires that an area exists and is allocated.
    pub(super) fn check_area(&self, cta: usize, area: &Area) -> Result<(), Fault> {
        let index = self.cluster.ctas[cta].index;
        if area.column + area.columns > TENSOR_COLUMNS {
            return Err(Fault::new(
                FaultKind::TensorMemory,
                format!("tensor memory of CTA {index}, {area}: there are {TENSOR_COLUMNS} columns"),
            ));
        }
        let memory = self.cluster.ctas[cta].tensor.as_deref();
        let missing = memory.map_or(Some(area.column), |m| m.unallocated(area));
        let Some(column) = missing else { return Ok(()) };
        let mut fault = Fault::new(
            FaultKind::TensorMemory,
            format!("tensor memory of CTA {index}, {area}: column {column} is not allocated"),
        );
        if let Some((a, by)) = memory.and_then(|m| m.freed)
            && (a.column..a.column + a.columns).contains(&column)
        {
            fault.notes.push(format!("columns {} to {} were freed", a.column, a.column + a.columns - 1));
            fault.other = Some(Box::new(self.place(by.0, by.1)));
        }
        Err(fault)
    }

    /// Checks what a piece of work touches, and records it in the shadow memories.
    fn record_work(
        &mut self,
        warp: u32,
        lane: u8,
        pc: u32,
        pipe: Pipe,
        footprint: &Footprint,
    ) -> Result<(), Fault> {
        for (cta, ranges) in &footprint.shared {
            ranges.iter().try_for_each(|(at, len)| self.shared_range(*cta, *at, *len).map(|_| ()))?;
        }
        for u in &footprint.tensor {
            self.check_area(u.cta, &u.area)?;
        }
        self.record_at((warp, pc), 1 << lane, Deed::Issue(Recorded::TensorCore));
        for u in &footprint.tensor {
            self.record_tensor((warp, pc), u32::from(lane), Way::Async, u);
        }
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        let (id, (agent, tick)) = h.tensor_work(warp, lane, pc, pipe);
        for (cta, ranges) in &footprint.shared {
            let event = Event { agent, tick, proxy: Proxy::Async, strong: None, warp, pc };
            self.shadow_async(event, None, ranges.iter().copied(), *cta, false)?;
        }
        footprint.tensor.iter().try_for_each(|u| self.shadow_tensor(id, (warp, pc), u))
    }

    /// Records one access to tensor memory by an instruction of a warp.
    pub(super) fn shadow_tensor(&mut self, event: u32, at: (u32, u32), u: &TensorUse) -> Result<(), Fault> {
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        let does = match u.role {
            Role::Operand => TensorAccess::Read,
            Role::Accumulator => TensorAccess::Accumulate,
            Role::Write => TensorAccess::Write,
        };
        let columns = u.area.column..u.area.column + u.area.columns;
        let conflicts = h.tensor_access(event, u.cta, columns, u.area.lanes, does);
        conflicts.iter().try_for_each(|c| self.tensor_conflict(c, at, u.cta, u.role.writes()))
    }

    /// Two accesses to tensor memory with nothing that orders them, or without the fences that should.
    pub(super) fn tensor_conflict(
        &self,
        c: &TensorConflict,
        at: (u32, u32),
        cta: usize,
        writes: bool,
    ) -> Result<(), Fault> {
        let verb = |writes: bool| if writes { "write" } else { "read" };
        let (kind, reason) = match c.missing {
            TensorMissing::Completion => (FaultKind::Race, "nothing says that it is over"),
            TensorMissing::Fence => (
                FaultKind::Race,
                "only its issue is known to be before, without tcgen05.fence::before_thread_sync and \
                 ::after_thread_sync on the two sides of the synchronization",
            ),
            TensorMissing::Unfenced => (
                FaultKind::TensorFence,
                "it is over, but the manual asks for tcgen05.fence::before_thread_sync (a commit is one) and \
                 ::after_thread_sync on the two sides of the synchronization",
            ),
        };
        let fault = |cx: &Self| {
            let mut fault = Fault::new(
                kind,
                format!(
                    "tensor memory of CTA {}, column {}, lane {}: this {} follows an earlier {} and {reason}",
                    cx.cluster.ctas[cta].index,
                    c.column,
                    c.lane,
                    verb(writes),
                    verb(c.earlier_writes)
                ),
            );
            fault.other = Some(Box::new(cx.place(c.earlier.warp, c.earlier.pc)));
            if kind == FaultKind::Race {
                fault.notes = cx.barrier_notes(cta);
            }
            fault
        };
        let other = Some(c.earlier.pc);
        if kind == FaultKind::Race {
            self.hazard(kind, at, other, fault)
        } else {
            self.remark(kind, at, other, fault)
        }
    }

    /// Takes new work: does it at once or leaves it to the schedule.
    fn submit_work(&mut self, warp: u32, lane: u32, pc: u32, ctas: u32, kind: WorkKind) -> Result<(), Fault> {
        let start = self.report.instructions;
        self.cluster.tensor_work.push(Work { id: 0, warp, lane, pc, start, ctas, kind });
        let now = match self.options.policy {
            Policy::Eager => true,
            Policy::Lazy => false,
            Policy::Random => self.rng.once_in(3),
        };
        while now && let Some(next) = self.cluster.tensor_work.first() {
            self.perform_work(next)?;
        }
        Ok(())
    }

    /// Does a piece of work.
    pub(crate) fn perform_work(&mut self, index: usize) -> Result<(), Fault> {
        *self.progress += 1;
        let work = self.cluster.tensor_work.work.remove(index);
        let Work { warp, pc, start, ctas, .. } = work;
        self.trace(TraceUnit::Tcgen05, warp, pc, start, None, |cx| match &work.kind {
            WorkKind::Mma(m) => mma::detail(cx, m),
            WorkKind::Copy { to, descriptor, .. } => copy::detail(cx, *to, *descriptor),
            WorkKind::Shift { at } => format!("tensor memory at column {}", at.column),
            WorkKind::Commit { mbars, .. } => {
                let names: Vec<String> = mbars.iter().map(|m| cx.shared_text(m.1)).take(1).collect();
                format!("arrives at {}", names.join(", "))
            }
        });
        let result = match work.kind {
            WorkKind::Mma(m) => mma::perform(self, &m, ctas),
            WorkKind::Copy { to, descriptor, shape } => copy::perform(self, to, descriptor, shape, ctas),
            WorkKind::Shift { at } => copy::perform_shift(self, at, ctas),
            WorkKind::Commit { mbars, done } => {
                mbars.into_iter().try_for_each(|m| self.mbar_arrive_committed((warp, pc), m, &done))
            }
        };
        result.map_err(|f| self.locate(f, warp, pc))
    }
}

/// The lanes of a warp, for those who write registers of all of them.
const ALL: std::ops::Range<usize> = 0..LANES;
