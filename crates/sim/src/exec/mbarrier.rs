//! mbarriers: initialization, arrivals, expected bytes and waits.

use super::access::{Access, Location};
use super::barrier::{Cluster, split};
use super::context::Cx;
use super::memory::{address, check_alignment};
use super::warp::{MbarWait, PhaseWait, Wait, Warp};
use super::{Issue, Next};
use crate::decode::isa::Addr;
use crate::decode::mbarrier::{Arrive, MbarrierOp, PhaseRef};
use crate::error::{Fault, FaultKind};
use crate::hazard::{Hazards, Scope, Unit, View};
use crate::lanes::lanes;
use crate::record::Deed;
use crate::text::ast::Space;
use crate::units::copy::{Kind, Pending};
use crate::units::mbarrier::{MAX_COUNT, Mbar, MbarError, Passed};
use crate::units::tcgen05::queue::Done;

fn locate(warp: &Warp, cx: &Cx<'_>, addr: &Addr, space: Space, lane: usize) -> Result<(usize, u32), Fault> {
    let a = address(warp, addr, space, lane);
    match cx.resolve(warp, space, a)? {
        Location::Shared(cta, offset) => {
            check_alignment(u64::from(offset), 8)?;
            cx.shared_range(cta, offset, 8)?;
            Ok((cta, offset))
        }
        _ => Err(Fault::new(
            FaultKind::BadOperand,
            format!("{a:#x} is not a shared address: no mbarrier is there"),
        )),
    }
}

impl Cx<'_> {
    /// The mbarrier at an address, known to be initialized before this use; `by_copy` for copies that
    /// will report to it.
    pub(crate) fn mbar(&mut self, warp: u32, cta: usize, at: u32, by_copy: bool) -> Result<&mut Mbar, Fault> {
        let by = (warp, self.at.1);
        let index = self.cluster.ctas[cta].index;
        let Some(m) = self.cluster.ctas[cta].mbars.get(&at) else {
            return Err(Fault::new(
                FaultKind::BarrierInit,
                format!("{} of CTA {index} is not initialized", self.mbar_name(at)),
            ));
        };
        if let Some(h) = &self.cluster.hazards {
            let agent = Hazards::agent(m.init_warp, Unit::MbarInit);
            let init = (m.init_warp, m.init_pc);
            let fault = |problem: &'static str| {
                move |cx: &Self| {
                    let message = format!("{} of CTA {index} {problem}", cx.mbar_name(at));
                    let mut fault = Fault::new(FaultKind::BarrierInit, message);
                    fault.other = Some(Box::new(cx.place(init.0, init.1)));
                    fault.notes.push(cx.mbar_state(cta, at));
                    fault
                }
            };
            if !h.has_seen(warp, agent, m.init_tick) {
                let problem = "is used with nothing that orders this after its initialization";
                self.hazard(FaultKind::BarrierInit, by, Some(init.1), fault(problem))?;
            } else if by_copy && !m.fenced {
                let fault = fault(
                    "is used by a copy with no fence after its initialization (fence.mbarrier_init or fence.proxy.async)",
                );
                // A thread's copies find the mbarriers of its own CTA as they are; others may not.
                if warp as usize / self.cluster.warps_per_cta == cta {
                    self.remark(FaultKind::BarrierInit, by, Some(init.1), fault)?;
                } else {
                    self.hazard(FaultKind::BarrierInit, by, Some(init.1), fault)?;
                }
            }
        }
        match self.cluster.ctas[cta].mbars.get_mut(&at) {
            Some(m) => Ok(m),
            None => Err(Fault::new(FaultKind::BarrierInit, "the mbarrier is gone")),
        }
    }

    pub(crate) fn mbar_ready(&self, w: &MbarWait) -> bool {
        let cta = &self.cluster.ctas[w.cta];
        match cta.mbars.get(&w.offset) {
            // Let the instruction run and report the missing barrier.
            None => true,
            Some(m) => match w.phase {
                PhaseWait::Parity(p) => m.parity_done(p),
                PhaseWait::Token(t) => m.token_done(t),
            },
        }
    }

    /// One arrival of a warp's thread, with the bytes that it expects.
    fn mbar_arrive(
        &mut self,
        (warp, lane, pc): (u32, usize, u32),
        (cta, at): (usize, u32),
        arrive: &Arrive,
        count: u32,
        expect: Option<u32>,
    ) -> Result<u64, Fault> {
        self.mbar(warp, cta, at, false)?;
        *self.progress += 1;
        let remote = warp as usize / self.cluster.warps_per_cta != cta;
        let (release, far) = (arrive.release, arrive.scope != Scope::Cta);
        let deed = Deed::Arrive { mbar: (cta as u32, at), phase: self.phase_of(cta, at), release, far };
        self.record_at((warp, pc), 1 << lane, deed);
        let Cluster { ctas, hazards } = split(self);
        let Some(m) = ctas[cta].mbars.get_mut(&at) else { return Ok(0) };
        let token = m.token();
        if let Some(h) = hazards {
            if remote {
                let (agent, tick) = h.tick(warp);
                m.remote.retain(|r| r.0 != agent);
                m.remote.push((agent, tick, warp, pc));
            }
            let release = arrive.release;
            h.waits_before(warp, &mut m.after);
            match (remote, arrive.scope) {
                (false, _) => h.release(warp, release, Scope::Cta, &mut m.arriving),
                (true, Scope::Cta) => h.release_nothing(warp, &mut m.arriving),
                (true, _) => h.release(warp, release, Scope::Cluster, &mut m.arriving_far),
            }
        }
        let result = match expect {
            Some(bytes) => m.expect(i64::from(bytes)),
            None => Ok(()),
        }
        .and_then(|()| m.arrive(count, arrive.drop))
        .and_then(|()| m.settle());
        match result {
            Ok(_) => m.last = (warp, pc),
            Err(e) => return Err(self.mbar_error(cta, at, e)),
        }
        Ok(token)
    }

    /// The asynchronous arrival of a lane whose copies are complete.
    pub(crate) fn mbar_arrive_later(
        &mut self,
        by: (u32, u32),
        cta: usize,
        at: u32,
        view: &View,
    ) -> Result<(), Fault> {
        let Some(m) = self.cluster.ctas[cta].mbars.get_mut(&at) else {
            return Err(Fault::new(
                FaultKind::BarrierInit,
                format!("{} is gone while an arrival behind copies is on its way", self.mbar_name(at)),
            ));
        };
        m.arriving.join(view);
        match m.arrive(1, false).and_then(|()| m.settle()) {
            Ok(_) => m.last = by,
            Err(e) => return Err(self.mbar_error(cta, at, e)),
        }
        Ok(())
    }

    /// The arrival of a `tcgen05.commit` whose work is complete.
    pub(crate) fn mbar_arrive_committed(
        &mut self,
        (warp, pc): (u32, u32),
        (cta, at): (usize, u32),
        done: &Done,
    ) -> Result<(), Fault> {
        let remote = warp as usize / self.cluster.warps_per_cta != cta;
        let Some(m) = self.cluster.ctas[cta].mbars.get_mut(&at) else {
            return Err(Fault::new(
                FaultKind::BarrierInit,
                format!("{} is gone while a commit that arrives at it is on its way", self.mbar_name(at)),
            ));
        };
        // That the work is over is known to all who wait, however far they are.
        done.ticks.iter().for_each(|(agent, tick)| m.arriving.raise(*agent, *tick));
        let known = if remote { &mut m.arriving_far } else { &mut m.arriving };
        known.join(&done.view);
        if remote && let Some((agent, tick)) = done.ticks.first() {
            m.remote.retain(|r| r.0 != *agent);
            m.remote.push((*agent, *tick, warp, pc));
        }
        match m.arrive(1, false).and_then(|()| m.settle()) {
            Ok(_) => m.last = (warp, pc),
            Err(e) => return Err(self.mbar_error(cta, at, e)),
        }
        Ok(())
    }

    /// A copy has arrived: its bytes count toward the mbarrier's phase.
    pub(crate) fn complete_tx(
        &mut self,
        (cta, at): (usize, u32),
        bytes: u32,
        (warp, pc): (u32, u32),
    ) -> Result<(), Fault> {
        let Some(m) = self.cluster.ctas[cta].mbars.get_mut(&at) else {
            return Err(Fault::new(
                FaultKind::BarrierInit,
                format!("{} is gone while a copy that reports to it is in flight", self.mbar_name(at)),
            ));
        };
        m.undelivered = m.undelivered.saturating_sub(1);
        let result = m.expect(-i64::from(bytes)).and_then(|()| m.settle());
        match result {
            Ok(_) => {
                m.last = (warp, pc);
                Ok(())
            }
            Err(e) => Err(self.mbar_error(cta, at, e)),
        }
    }

    /// A fault of an mbarrier, with its state.
    fn mbar_error(&self, cta: usize, at: u32, e: MbarError) -> Fault {
        let name = self.mbar_name(at);
        // The other side: a copy still in flight, or who changed the barrier last.
        let reports = |p: &&Pending| match p.kind {
            Kind::Load { mbar, .. } | Kind::Words { mbar, .. } => mbar == (cta, at),
            _ => false,
        };
        let other = match e {
            MbarError::CompletedInFlight(_) => {
                self.cluster.pending.iter().find(reports).map(|p| (p.warp, p.pc))
            }
            MbarError::Overtakes(warp, pc) => Some((warp, pc)),
            _ => self.cluster.ctas[cta].mbars.get(&at).map(|m| m.last),
        };
        let (kind, message) = match e {
            MbarError::OverArrival { pending, arrivals } => {
                (FaultKind::OverArrival, format!("{arrivals} arrivals on {name}, which misses {pending}"))
            }
            MbarError::Overtakes(..) => (
                FaultKind::WrongParity,
                format!(
                    "{name} completes a phase, and nothing orders an arrival after this wait for the phase before: \
                     the wait may be late, and take the parity of the next phase for one that has not begun"
                ),
            ),
            MbarError::TxRange(tx) => (
                FaultKind::TransactionCount,
                format!("the transaction count of {name} would be {tx}, outside of 20 bits"),
            ),
            MbarError::CompletedInFlight(n) => (
                FaultKind::TransactionCount,
                format!(
                    "the phase of {name} completes while {n} copies of it are in flight: \
                     fewer bytes were expected than are copied"
                ),
            ),
        };
        let mut fault = Fault::new(kind, message).note(self.mbar_state(cta, at));
        fault.other = other.map(|(warp, pc)| Box::new(self.place(warp, pc)));
        fault
    }
}

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &MbarrierOp, at: Issue) -> Result<Next, Fault> {
    if let MbarrierOp::Wait { .. } = op {
        return wait(warp, cx, op, at);
    }
    let pc = at.pc;
    for l in lanes(at.active) {
        match op {
            MbarrierOp::Init { addr, space, count } => {
                let (cta, at) = locate(warp, cx, addr, *space, l)?;
                let count = warp.value(*count, l) as u32;
                if count == 0 || count > MAX_COUNT {
                    return Err(Fault::new(
                        FaultKind::BadOperand,
                        format!("an mbarrier of {count} arrivals"),
                    ));
                }
                if let Some(old) = cx.cluster.ctas[cta].mbars.get(&at)
                    && cx.options.hazards
                {
                    let (w, p) = (old.init_warp, old.init_pc);
                    let mut fault = Fault::new(
                        FaultKind::BarrierInit,
                        format!("{} is initialized again without mbarrier.inval", cx.mbar_name(at)),
                    );
                    fault.other = Some(Box::new(cx.place(w, p)));
                    return Err(fault);
                }
                cx.cluster.ctas[cta].mbars.remove(&at);
                let mut access = Access::new(warp.index, pc, None);
                cx.shadow(&mut access, l, cta, at, 8, true)?;
                cx.shared_store(cta, at, &[0; 8])?;
                let mut m = Mbar::new(count);
                (m.init_warp, m.init_pc, m.last) = (warp.index, pc, (warp.index, pc));
                if let Some(h) = &mut cx.cluster.hazards {
                    m.agent = h.new_agent();
                    m.init_tick = h.mbarrier_init(warp.index);
                }
                cx.cluster.ctas[cta].mbars.insert(at, m);
                cx.record(warp.index, 1 << l, Deed::MbarInit(cta as u32, at));
            }
            MbarrierOp::Inval { addr, space } => {
                let (cta, at) = locate(warp, cx, addr, *space, l)?;
                let undelivered = cx.mbar(warp.index, cta, at, false)?.undelivered;
                if undelivered > 0 {
                    let message =
                        format!("{} is invalidated with {undelivered} copies in flight", cx.mbar_name(at));
                    return Err(Fault::new(FaultKind::WorkInFlight, message).note(cx.mbar_state(cta, at)));
                }
                cx.cluster.ctas[cta].mbars.remove(&at);
                let mut access = Access::new(warp.index, pc, None);
                cx.shadow(&mut access, l, cta, at, 8, true)?;
            }
            MbarrierOp::Arrive(a) => {
                let (cta, at) = locate(warp, cx, &a.addr, a.space, l)?;
                let count = warp.value(a.count, l) as u32;
                let expect = a.expect.map(|e| warp.value(e, l) as u32);
                if a.no_complete && cx.mbar(warp.index, cta, at, false)?.pending <= count {
                    return Err(Fault::new(
                        FaultKind::BadOperand,
                        "this arrival completes the phase, which .noComplete excludes",
                    ));
                }
                let token = cx.mbar_arrive((warp.index, l, pc), (cta, at), a, count, expect)?;
                if let Some(t) = a.token {
                    warp.set(t, l, token);
                }
            }
            MbarrierOp::Tx { addr, space, bytes, complete } => {
                let (cta, at) = locate(warp, cx, addr, *space, l)?;
                let bytes = i64::from(warp.value(*bytes, l) as u32);
                cx.record(warp.index, 1 << l, Deed::MbarTouch(cta as u32, at));
                let m = cx.mbar(warp.index, cta, at, false)?;
                let result = if *complete {
                    m.expect(-bytes).and_then(|()| m.settle().map(|_| ()))
                } else {
                    m.expect(bytes)
                };
                match result {
                    Ok(()) => m.last = (warp.index, pc),
                    Err(e) => return Err(cx.mbar_error(cta, at, e)),
                }
                *cx.progress += 1;
            }
            MbarrierOp::Pending { dst, token } => {
                let pending = warp.value(*token, l) & 0xffff_ffff;
                warp.set(*dst, l, pending);
            }
            MbarrierOp::Wait { .. } => {}
        }
    }
    Ok(Next::Step)
}

fn wait(warp: &mut Warp, cx: &mut Cx<'_>, op: &MbarrierOp, at: Issue) -> Result<Next, Fault> {
    let Issue { pc, active, group, .. } = at;
    let MbarrierOp::Wait { dst, addr, space, phase, blocking, acquire, scope } = op else {
        return Ok(Next::Step);
    };
    let mut waits: Vec<MbarWait> = Vec::new();
    let mut done = 0u32;
    for l in lanes(active) {
        let (cta, at) = locate(warp, cx, addr, *space, l)?;
        if cta != warp.env.rank as usize {
            return Err(Fault::new(
                FaultKind::BadOperand,
                "a wait on an mbarrier of another CTA: only the own CTA's can be waited for",
            ));
        }
        cx.mbar(warp.index, cta, at, false)?;
        let phase = match phase {
            PhaseRef::Parity(s) => PhaseWait::Parity(warp.value(*s, l) as u32 & 1),
            PhaseRef::Token(s) => PhaseWait::Token(warp.value(*s, l)),
        };
        let wait = MbarWait { cta, offset: at, phase };
        if cx.mbar_ready(&wait) {
            done |= 1 << l;
        }
        if !waits.contains(&wait) {
            waits.push(wait);
        }
    }
    let timed_out = std::mem::take(&mut warp.groups[group].timed_out);
    if done == 0 && *blocking && !timed_out {
        return Ok(Next::Retry(Wait::Mbar(waits)));
    }
    for l in lanes(active) {
        warp.set(*dst, l, u64::from(done >> l & 1));
    }
    if cx.options.record {
        for w in &waits {
            let here = |l: &usize| locate(warp, cx, addr, *space, *l).is_ok_and(|at| at == (w.cta, w.offset));
            let passed: u32 = lanes(done).filter(here).map(|l| 1 << l).sum();
            let (mbar, phase) = ((w.cta as u32, w.offset), cx.phase_of(w.cta, w.offset));
            if passed != 0 {
                let (acquire, far) = (*acquire, *scope != Scope::Cta);
                cx.record_at((warp.index, pc), passed, Deed::Pass { mbar, phase, acquire, far });
            }
        }
    }
    if done != 0 {
        let Cluster { ctas, hazards } = split(cx);
        if let Some(h) = hazards {
            h.select(done, if done == active { warp.exited } else { 0 });
            for w in &waits {
                let Some(m) = ctas[w.cta].mbars.get_mut(&w.offset) else { continue };
                let over = match w.phase {
                    PhaseWait::Parity(p) => m.parity_done(p),
                    PhaseWait::Token(t) => m.token_done(t),
                };
                if over && m.phase > 0 {
                    h.acquire(warp.index, *acquire, Scope::Cta, &m.done);
                    match scope {
                        Scope::Cta => h.acquire_nothing(warp.index, &m.done_far),
                        _ => h.acquire(warp.index, *acquire, Scope::Cluster, &m.done_far),
                    }
                }
                if over && let PhaseWait::Parity(_) = w.phase {
                    let (agent, tick) = h.mbarrier_wait(warp.index);
                    // A later wait of the same warp for the same phase stands for this one.
                    m.waits.retain(|w| w.0 != agent);
                    m.waits.push((agent, tick, warp.index, pc));
                }
                if over {
                    let parity = match w.phase {
                        PhaseWait::Parity(p) => Some(p),
                        PhaseWait::Token(_) => None,
                    };
                    m.pass(Passed { warp: warp.index, pc, parity, phase: m.phase });
                }
            }
        }
    }
    if done == active {
        return Ok(Next::Step);
    }
    *cx.polls += 1;
    Ok(Next::Yield)
}
