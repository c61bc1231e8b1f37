//! mbarrier objects: phases, pending arrivals and transaction counts.

use crate::hazard::View;

/// Most arrivals of a phase, and the bound of a transaction count.
pub(crate) const MAX_COUNT: u32 = (1 << 20) - 1;

/// One mbarrier.
#[derive(Clone, Debug)]
pub(crate) struct Mbar {
    /// Arrivals that complete a phase.
    pub(crate) count: u32,
    /// Arrivals still missing in this phase.
    pub(crate) pending: u32,
    /// Bytes expected and not yet copied; negative when a copy comes before its expectation.
    pub(crate) tx: i64,
    /// Completed phases.
    pub(crate) phase: u32,
    /// Copies issued in this phase and not delivered, and all copies of this phase.
    pub(crate) undelivered: u32,
    pub(crate) issued: u32,
    /// The agent that stands for copies reporting here.
    pub(crate) agent: u32,
    pub(crate) init_warp: u32,
    pub(crate) init_pc: u32,
    pub(crate) init_tick: u32,
    /// A fence has made the initialization visible to the async proxy.
    pub(crate) fenced: bool,
    /// Warp and instruction that last changed it, for messages.
    pub(crate) last: (u32, u32),
    /// The last wait that each warp passed, for messages.
    pub(crate) passed: Vec<Passed>,
    /// What arrivals of the own CTA and copies release, in this phase and in the last.
    pub(crate) arriving: View,
    pub(crate) done: View,
    /// What arrivals of peers release, to waits whose scope is the cluster.
    pub(crate) arriving_far: View,
    pub(crate) done_far: View,
    /// The last arrival of every warp of another CTA: agent, tick, warp, instruction.
    pub(crate) remote: Vec<(u32, u32, u32, u32)>,
    /// The waits that those who arrive or issue copies in this phase came after, whatever the strength of the arrival.
    pub(crate) after: View,
    /// Waits by parity for the last phase: agent and tick, warp, instruction.
    pub(crate) waits: Vec<(u32, u32, u32, u32)>,
}

/// A wait that a warp has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) warp: u32,
    pub(crate) pc: u32,
    /// The parity it waited for, where it was a parity.
    pub(crate) parity: Option<u32>,
    /// Phases that were complete then.
    pub(crate) phase: u32,
}

/// Why an operation on an mbarrier is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MbarError {
    OverArrival {
        pending: u32,
        arrivals: u32,
    },
    TxRange(i64),
    CompletedInFlight(u32),
    /// No arrival of the phase comes after this wait (warp, instruction) for the phase before.
    Overtakes(u32, u32),
}

impl Mbar {
    pub(crate) fn new(count: u32) -> Mbar {
        Mbar {
            count,
            pending: count,
            tx: 0,
            phase: 0,
            undelivered: 0,
            issued: 0,
            agent: 0,
            init_warp: 0,
            init_pc: 0,
            init_tick: 0,
            fenced: false,
            last: (0, 0),
            passed: Vec::new(),
            arriving: View::default(),
            done: View::default(),
            arriving_far: View::default(),
            done_far: View::default(),
            remote: Vec::new(),
            after: View::default(),
            waits: Vec::new(),
        }
    }

    /// Whether the phase that a parity wait names has completed.
    pub(crate) fn parity_done(&self, parity: u32) -> bool {
        self.phase & 1 != parity & 1
    }

    /// Whether the phase that was current when `token` was made has completed.
    pub(crate) fn token_done(&self, token: u64) -> bool {
        self.phase & 0x7fff_ffff != (token >> 32) as u32
    }

    /// A warp has passed a wait.
    pub(crate) fn pass(&mut self, passed: Passed) {
        match self.passed.iter_mut().find(|p| p.warp == passed.warp) {
            Some(p) => *p = passed,
            None => self.passed.push(passed),
        }
    }

    /// Phases that were complete when a warp last passed a wait here; 0 for none.
    pub(crate) fn seen_by(&self, warp: u32) -> u32 {
        self.passed.iter().find(|p| p.warp == warp).map_or(0, |p| p.phase)
    }

    /// Why a warp that waits for this parity and is not let through has the wrong one, where that is plain.
    pub(crate) fn wrong_parity(&self, warp: u32, parity: u32) -> Option<String> {
        let (seen, done) = (self.seen_by(warp), self.phase);
        if self.parity_done(parity) {
            return None;
        }
        if done >= seen + 2 {
            return Some(format!(
                "the warp has waited for {seen} phases and {done} are complete: it is a round behind, and parity \
                 {parity} now means a phase two ahead"
            ));
        }
        // The phase that it waits for has not begun, and the one before it was never waited for.
        let idle = self.pending == self.count && self.tx == 0 && self.undelivered == 0;
        (idle && done == seen + 1).then(|| {
            format!(
                "phase {seen} is complete and the warp has not waited for it, but for phase {done}, which nobody \
                 has begun: the parity should be {}",
                parity ^ 1
            )
        })
    }

    /// The state that an arrival returns: phase and pending count before it.
    pub(crate) fn token(&self) -> u64 {
        u64::from(self.phase & 0x7fff_ffff) << 32 | u64::from(self.pending)
    }

    pub(crate) fn expect(&mut self, bytes: i64) -> Result<(), MbarError> {
        self.tx += bytes;
        if self.tx.unsigned_abs() > u64::from(MAX_COUNT) {
            return Err(MbarError::TxRange(self.tx));
        }
        Ok(())
    }

    pub(crate) fn arrive(&mut self, arrivals: u32, drop: bool) -> Result<(), MbarError> {
        if arrivals == 0 || arrivals > self.pending {
            return Err(MbarError::OverArrival { pending: self.pending, arrivals });
        }
        self.pending -= arrivals;
        if drop {
            self.count -= arrivals.min(self.count);
        }
        Ok(())
    }

    /// Completes the phase when nothing is missing any more.
    pub(crate) fn settle(&mut self) -> Result<bool, MbarError> {
        if self.pending != 0 || self.tx != 0 {
            return Ok(false);
        }
        if self.undelivered != 0 {
            return Err(MbarError::CompletedInFlight(self.undelivered));
        }
        let views = [&self.after, &self.arriving, &self.arriving_far];
        let behind = |agent: u32, tick: u32| views.iter().any(|view| view.is_past(agent, tick));
        let overtaken = self.waits.iter().find(|w| !behind(w.0, w.1)).map(|w| (w.2, w.3));
        if let Some((warp, pc)) = overtaken {
            return Err(MbarError::Overtakes(warp, pc));
        }
        self.waits.clear();
        self.phase = self.phase.wrapping_add(1);
        self.pending = self.count;
        self.issued = 0;
        self.done.clear();
        std::mem::swap(&mut self.done, &mut self.arriving);
        self.done_far.clear();
        std::mem::swap(&mut self.done_far, &mut self.arriving_far);
        self.done.raise(self.agent, self.phase);
        // Who waits for this phase comes after them as well.
        self.done.join(&self.after);
        self.after.clear();
        Ok(true)
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "phase {} (parity {}), {} of {} arrivals missing, {} bytes missing, {} copies undelivered",
            self.phase,
            self.phase & 1,
            self.pending,
            self.count,
            self.tx,
            self.undelivered
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_needs_arrivals_and_bytes() {
        let mut m = Mbar::new(2);
        let token = m.token();
        assert!(m.parity_done(1) && !m.parity_done(0));
        m.arrive(1, false).unwrap();
        m.expect(64).unwrap();
        m.arrive(1, false).unwrap();
        assert!(!m.settle().unwrap() && !m.token_done(token));
        m.expect(-64).unwrap();
        assert!(m.settle().unwrap() && m.token_done(token));
        assert!(m.parity_done(0) && !m.parity_done(1));
        assert_eq!(m.pending, 2);
    }

    #[test]
    fn misuse_is_an_error() {
        let mut m = Mbar::new(1);
        assert_eq!(m.arrive(2, false), Err(MbarError::OverArrival { pending: 1, arrivals: 2 }));
        assert!(m.expect(1 << 20).is_err());
        let mut m = Mbar::new(1);
        m.undelivered = 1;
        m.arrive(1, false).unwrap();
        assert_eq!(m.settle(), Err(MbarError::CompletedInFlight(1)));
    }
}
