//! mbarriers: initialization, arrivals, expectations and waits.

use super::Next;
use super::barrier::{Cluster, split};
use super::memory::address;
use crate::text::ast::Space;
use crate::exec::context::{Access, Cx, Location};
use crate::error::{Fault, FaultKind};
use crate::hazard::{Hazards, Unit, View};
use crate::decode::isa::{Addr, Op, PhaseRef, Scope};
use crate::units::mbarrier::{MAX_COUNT, Mbar, Passed};
use crate::exec::warp::{MbarWait, PhaseWait, Wait, Warp, lanes};

fn locate(warp: &Warp, cx: &Cx<'_>, addr: &Addr, space: Space, lane: usize) -> Result<(usize, u32), Fault> {
    let a = address(warp, addr, space, lane);
    match cx.resolve(warp, space, a)? {
        Location::Shared(cta, offset) => {
            super::memory::check_alignment(u64::from(offset), 8)?;
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
        let index = self.cluster.ctas[cta].index;
        let Some(m) = self.cluster.ctas[cta].mbars.get(&at) else {
            return Err(Fault::new(
                FaultKind::BarrierInit,
                format!("{} of CTA {index} is not initialized", self.mbar_name(at)),
            ));
        };
        if let Some(h) = &self.cluster.hazards {
            let agent = Hazards::agent(m.init_warp, Unit::MbarInit);
            let problem = if !h.has_seen(warp, agent, m.init_tick) {
                Some("is used with nothing that orders this after its initialization")
            } else if by_copy && !m.fenced {
                Some(
                    "is used by a copy with no fence after its initialization (fence.mbarrier_init or fence.proxy.async)",
                )
            } else {
                None
            };
            if let Some(problem) = problem {
                let (w, pc) = (m.init_warp, m.init_pc);
                let mut fault = Fault::new(
                    FaultKind::BarrierInit,
                    format!("{} of CTA {index} {problem}", self.mbar_name(at)),
                );
                fault.other = Some(Box::new(self.place(w, pc)));
                fault.notes.push(self.mbar_state(cta, at));
                return Err(fault);
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

    /// One arrival (with an optional expectation of bytes) by a warp's thread; `order` says whether it releases, and
    /// how far.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn mbar_arrive(
        &mut self,
        warp: u32,
        pc: u32,
        cta: usize,
        at: u32,
        count: u32,
        expect: Option<u32>,
        order: (bool, Scope),
        drop: bool,
    ) -> Result<u64, Fault> {
        self.mbar(warp, cta, at, false)?;
        *self.progress += 1;
        let remote = warp as usize / self.cluster.warps_per_cta != cta;
        let Cluster { ctas, hazards } = split(self);
        let Some(m) = ctas[cta].mbars.get_mut(&at) else { return Ok(0) };
        let token = m.token();
        if let Some(h) = hazards {
            if remote {
                let (agent, tick) = h.tick(warp);
                m.remote.retain(|r| r.0 != agent);
                m.remote.push((agent, tick, warp, pc));
            }
            let (release, scope) = order;
            match (remote, scope) {
                (false, _) => h.release(warp, release, Scope::Cta, &mut m.arriving),
                (true, Scope::Cta) => h.release_nothing(warp, &mut m.arriving),
                (true, _) => h.release(warp, release, Scope::Cluster, &mut m.arriving_far),
            }
        }
        let result = match expect {
            Some(bytes) => m.expect(i64::from(bytes)),
            None => Ok(()),
        }
        .and_then(|()| m.arrive(count, drop))
        .and_then(|()| m.settle());
        match result {
            Ok(_) => m.last = (warp, pc),
            Err(e) => return Err(self.mbar_error(cta, at, e)),
        }
        Ok(token)
    }
}

impl Cx<'_> {
    /// An arrival in its own time, of a lane whose copies are complete.
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
}

pub(super) fn mbarrier(
    warp: &mut Warp,
    cx: &mut Cx<'_>,
    op: &Op,
    pc: u32,
    active: u32,
) -> Result<Next, Fault> {
    for l in lanes(active) {
        match op {
            Op::MbarInit { addr, space, count } => {
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
            }
            Op::MbarInval { addr, space } => {
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
            Op::MbarArrive(a) => {
                let (cta, at) = locate(warp, cx, &a.addr, a.space, l)?;
                let count = warp.value(a.count, l) as u32;
                let expect = a.expect.map(|e| warp.value(e, l) as u32);
                if a.no_complete && cx.mbar(warp.index, cta, at, false)?.pending <= count {
                    return Err(Fault::new(
                        FaultKind::BadOperand,
                        "this arrival completes the phase, which .noComplete excludes",
                    ));
                }
                let token =
                    cx.mbar_arrive(warp.index, pc, cta, at, count, expect, (a.release, a.scope), a.drop)?;
                if let Some(t) = a.token {
                    warp.set(t, l, token);
                }
            }
            Op::MbarTx { addr, space, bytes, complete } => {
                let (cta, at) = locate(warp, cx, addr, *space, l)?;
                let bytes = i64::from(warp.value(*bytes, l) as u32);
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
            Op::MbarPending { dst, token } => {
                let pending = warp.value(*token, l) & 0xffff_ffff;
                warp.set(*dst, l, pending);
            }
            _ => {}
        }
    }
    Ok(Next::Step)
}

pub(super) fn mbarrier_wait(
    warp: &mut Warp,
    g: usize,
    cx: &mut Cx<'_>,
    op: &Op,
    pc: u32,
    active: u32,
) -> Result<Next, Fault> {
    let Op::MbarWait { dst, addr, space, phase, blocking, acquire, scope } = op else {
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
    let timed_out = std::mem::take(&mut warp.groups[g].timed_out);
    if done == 0 && *blocking && !timed_out {
        return Ok(Next::Retry(Wait::Mbar(waits)));
    }
    for l in lanes(active) {
        warp.set(*dst, l, u64::from(done >> l & 1));
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
