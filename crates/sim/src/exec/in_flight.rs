//! Copies in flight: submitted by a warp, performed when the schedule says.

use super::barrier::{Cluster, split};
use super::context::Cx;
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Hazards, Proxy, Unit};
use crate::memory::word;
use crate::options::Policy;
use crate::report::TraceUnit;
use crate::text::types::Ty;
use crate::units::atomic;
use crate::units::copy::{Kind, Pending, Source, Target};
use crate::units::tensormap::Swizzle;
use crate::units::tma;

impl Cx<'_> {
    /// Whether all of these copies are complete (or have read their source).
    pub(crate) fn copies_done(&self, ids: &[u64], read: bool) -> bool {
        !self.cluster.pending.iter().any(|p| ids.contains(&p.id) && !(read && p.source_taken()))
    }

    /// Takes a new copy: performs it at once or leaves it to the schedule.
    pub(crate) fn submit(&mut self, warp: u32, pc: u32, map: Option<u64>, kind: Kind) -> Result<u64, Fault> {
        self.report.copies += 1;
        let id = self.report.copies;
        if let Kind::Load { mbar: (cta, at), .. } | Kind::Words { mbar: (cta, at), .. } = kind {
            let Cluster { ctas, hazards } = split(self);
            if let Some(m) = ctas[cta].mbars.get_mut(&at) {
                m.undelivered += 1;
                m.issued += 1;
                // The phase is not complete before the copy is issued.
                if let Some(h) = hazards {
                    h.waits_before(warp, &mut m.after);
                }
            }
        }
        let start = self.report.instructions;
        self.cluster.pending.push(Pending { id, warp, pc, start, map, kind });
        let now = match self.options.policy {
            Policy::Eager => true,
            Policy::Lazy => false,
            Policy::Random => self.rng.once_in(3),
        };
        if now && self.performable(self.cluster.pending.len() - 1) {
            let last = self.cluster.pending.len() - 1;
            while self.cluster.pending.get(last).is_some_and(|p| p.id == id) {
                self.perform(last)?;
            }
        }
        Ok(id)
    }

    /// Whether nothing holds back a copy in flight.
    pub(crate) fn performable(&self, index: usize) -> bool {
        match &self.cluster.pending[index].kind {
            Kind::Arrive { after, .. } => self.copies_done(after, false),
            _ => true,
        }
    }

    /// Performs one step of a copy in flight.
    pub(crate) fn perform(&mut self, index: usize) -> Result<(), Fault> {
        *self.progress += 1;
        let p = &self.cluster.pending[index];
        let (warp, pc) = (p.warp, p.pc);
        self.at = (warp, pc);
        // A store first reads its source, then writes.
        if let Kind::Store { cta, offset, bytes, ref target, data: None } = p.kind {
            let swizzle = match target {
                Target::Tensor(part, _) => part.map.swizzle,
                Target::Global(..) | Target::Masked(..) => Swizzle::None,
            };
            self.report.traffic.stored += u64::from(bytes);
            let mut taken = vec![0; bytes as usize];
            for (from, at, len) in tma::pieces(swizzle, false, offset, bytes) {
                let piece = self.shared_bytes(cta, from, len).map_err(|f| self.locate(f, warp, pc))?;
                taken[at as usize..(at + len) as usize].copy_from_slice(piece);
            }
            if let Kind::Store { data, .. } = &mut self.cluster.pending[index].kind {
                *data = Some(taken);
            }
            return Ok(());
        }
        let p = self.cluster.pending.remove(index);
        let unit = match p.kind {
            Kind::Load { .. } => TraceUnit::Load,
            Kind::Store { .. } => TraceUnit::Store,
            Kind::CpAsync(_) | Kind::Arrive { .. } => TraceUnit::CpAsync,
            Kind::Words { .. } => TraceUnit::RemoteStore,
        };
        self.trace(unit, warp, pc, p.start, None, |cx| match &p.kind {
            Kind::Load { offset, mbar: (_, at), .. } | Kind::Words { offset, mbar: (_, at), .. } => {
                format!("{}, reports to {}", cx.shared_text(*offset), cx.shared_text(*at))
            }
            Kind::Store { offset, .. } => cx.shared_text(*offset),
            Kind::CpAsync(list) => list.first().map_or(String::new(), |c| cx.shared_text(c.offset)),
            Kind::Arrive { mbar, .. } => format!("arrives at {}", cx.shared_text(mbar.1)),
        });
        self.finish(p).map_err(|f| self.locate(f, warp, pc))
    }

    fn finish(&mut self, p: Pending) -> Result<(), Fault> {
        let check = self.options.hazards && !self.goes_on(FaultKind::Uninitialized);
        self.settle_copy(&p.kind)?;
        match p.kind {
            Kind::Load { source, cta, offset, bytes, mbar, reduce } => {
                self.check_running(cta)?;
                self.check_running(mbar.0)?;
                let (mut data, swizzle, filled) = match &source {
                    Source::Tensor(part) => {
                        for (a, len) in part.ranges() {
                            self.expect_defined(a, len as usize)?;
                        }
                        (part.read(self.memory, check)?, part.map.swizzle, part.map.element.filled())
                    }
                    Source::Global(a, edges) => (self.global_source(*a, bytes, *edges)?, Swizzle::None, 16),
                    Source::Shared(c, o) => (self.shared_bytes(*c, *o, bytes)?.to_vec(), Swizzle::None, 16),
                };
                if let Some(r) = reduce {
                    tma::combine(self.shared_bytes(cta, offset, bytes)?, &mut data, r.op, r.ty)?;
                }
                for (to, at, len) in tma::pieces(swizzle, filled < 16, offset, bytes) {
                    let used = if filled < 16 { filled } else { len };
                    self.shared_store(cta, to, &data[at as usize..(at + used) as usize])?;
                    self.shared_forget(cta, to + used, len - used)?;
                }
                let counted = match &source {
                    Source::Tensor(part) => part.counted(),
                    Source::Global(_, [left, right]) => {
                        self.shared_forget(cta, offset, *left)?;
                        self.shared_forget(cta, offset + bytes - right, *right)?;
                        bytes
                    }
                    Source::Shared(..) => bytes,
                };
                if !matches!(source, Source::Shared(..)) {
                    self.report.traffic.loaded += u64::from(counted);
                }
                self.complete_tx(mbar, counted, (p.warp, p.pc))
            }
            Kind::Store { target, data, .. } => {
                let data = data.unwrap_or_default();
                match target {
                    Target::Tensor(part, reduce) => part.write(self.memory, &data, reduce),
                    Target::Global(a, None) => self.memory.write(a, &data),
                    Target::Masked(a, mask) => {
                        for (i, byte) in data.iter().enumerate().filter(|(i, _)| mask >> (i % 16) & 1 == 1) {
                            self.memory.write(a + i as u64, &[*byte])?;
                        }
                        Ok(())
                    }
                    Target::Global(a, Some(r)) => tma::reduce_bytes(self.memory, a, &data, r.op, r.ty),
                }
            }
            Kind::CpAsync(list) => {
                for c in list {
                    let mut data = vec![0; c.bytes as usize];
                    let valid = c.valid as usize;
                    if valid > 0 {
                        self.expect_defined(c.global, valid)?;
                        data[..valid].copy_from_slice(self.memory.load(c.global, valid, check)?);
                    }
                    self.shared_store(c.cta, c.offset, &data)?;
                }
                Ok(())
            }
            Kind::Arrive { mbar: (cta, at), view, .. } => {
                self.mbar_arrive_later((p.warp, p.pc), cta, at, &view)
            }
            Kind::Words { cta, offset, values, bytes, reduce, mbar } => {
                self.check_running(cta)?;
                let mut data = Vec::with_capacity(values.len() * bytes as usize);
                for (at, mut value) in (offset..).step_by(bytes as usize).zip(values) {
                    if let Some((op, ty)) = reduce {
                        let old = word(self.shared_bytes(cta, at, bytes)?);
                        let ty = if ty == Ty::B32 { Ty::U32 } else { ty };
                        value = atomic::apply(op, ty, old, value, 0).unwrap_or(value);
                    }
                    data.extend_from_slice(&value.to_le_bytes()[..bytes as usize]);
                }
                self.shared_store(cta, offset, &data)?;
                self.complete_tx(mbar, data.len() as u32, (p.warp, p.pc))
            }
        }
    }

    /// The source of a bulk copy; `edges` may lie outside of an allocation, and are zeros here.
    fn global_source(&mut self, address: u64, bytes: u32, [left, right]: [u32; 2]) -> Result<Vec<u8>, Fault> {
        let mut data = vec![0; bytes as usize];
        let inner = &mut data[left as usize..(bytes - right) as usize];
        let address = address + u64::from(left);
        self.expect_defined(address, inner.len())?;
        let check = self.options.hazards && !self.goes_on(FaultKind::Uninitialized);
        inner.copy_from_slice(self.memory.load(address, inner.len(), check)?);
        Ok(data)
    }

    /// A copy must not come into the shared memory of a CTA that has exited.
    fn check_running(&self, cta: usize) -> Result<(), Fault> {
        let cta = &self.cluster.ctas[cta];
        if cta.exited {
            return Err(Fault::new(
                FaultKind::WorkInFlight,
                format!("CTA {} has exited before this copy into its shared memory was complete", cta.index),
            ));
        }
        Ok(())
    }

    /// The shadow-memory event of a copy that reports to an mbarrier.
    pub(crate) fn copy_event(&self, warp: u32, pc: u32, mbar: (usize, u32)) -> Event {
        let (agent, tick) =
            self.cluster.ctas[mbar.0].mbars.get(&mbar.1).map_or((0, 0), |m| (m.agent, m.phase + 1));
        Event { agent, tick, proxy: Proxy::Async, strong: None, warp, pc }
    }

    /// The shadow-memory event of a bulk store, and its tick.
    pub(crate) fn store_event(&mut self, warp: u32, pc: u32) -> (Event, u32) {
        let tick = self.cluster.hazards.as_mut().map_or(0, |h| h.bulk_tick(warp));
        let agent = Hazards::agent(warp, Unit::BulkStore);
        (Event { agent, tick, proxy: Proxy::Async, strong: None, warp, pc }, tick)
    }
}
