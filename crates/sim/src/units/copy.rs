//! Asynchronous copies: issued by a thread, performed when the schedule says.

use crate::exec::context::{Cx, Location};
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Hazards, Proxy, Unit, View};
use crate::decode::isa::{AtomOp, BulkReduce};
use crate::machine::{Policy, TraceUnit};
use crate::units::mbarrier::MbarError;
use crate::units::tensormap::TensorMap;
use crate::units::tma;
use crate::text::types::Ty;

/// A copy in flight.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) id: u64,
    /// Issuing warp (index in the cluster) and instruction.
    pub(crate) warp: u32,
    pub(crate) pc: u32,
    /// When it was issued.
    pub(crate) start: u64,
    /// Address of the tensor map in global memory, while it is in use.
    pub(crate) map: Option<u64>,
    pub(crate) kind: Kind,
}

/// What a copy does.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Into the shared memory of one CTA, reporting to its mbarrier.
    Load {
        source: Source,
        cta: usize,
        offset: u32,
        bytes: u32,
        mbar: (usize, u32),
        reduce: Option<BulkReduce>,
    },
    /// Out of shared memory; `data` once the source has been read.
    Store { cta: usize, offset: u32, bytes: u32, target: Target, data: Option<Vec<u8>> },
    /// The `cp.async` of all lanes of a warp.
    CpAsync(Vec<LaneCopy>),
    /// The arrival of one lane at an mbarrier `after` its `cp.async`, with what it releases.
    Arrive { mbar: (usize, u32), after: Vec<u64>, view: View },
    /// Words of `bytes` bytes for the shared memory of a peer, which report to its mbarrier.
    Words {
        cta: usize,
        offset: u32,
        values: Vec<u64>,
        bytes: u32,
        reduce: Option<(AtomOp, Ty)>,
        mbar: (usize, u32),
    },
}

/// Where a load comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Tensor(TensorMap, [i32; 5]),
    Global(u64),
    Shared(usize, u32),
}

/// Where a store goes.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tensor(TensorMap, [i32; 5], Option<AtomOp>),
    Global(u64, Option<BulkReduce>),
    /// With the bytes of every sixteen that are written.
    Masked(u64, u16),
}

impl Target {
    /// Whether it adds to what is there instead of replacing it; such accesses may meet.
    pub(crate) fn reduces(&self) -> bool {
        matches!(self, Target::Tensor(_, _, Some(_)) | Target::Global(_, Some(_)))
    }
}

/// One lane's `cp.async`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneCopy {
    pub(crate) cta: usize,
    pub(crate) offset: u32,
    pub(crate) global: u64,
    pub(crate) bytes: u32,
    pub(crate) valid: u32,
}

impl Pending {
    /// Whether a wait is satisfied: the copy is gone, or (`read`) has taken its source.
    fn source_taken(&self) -> bool {
        matches!(self.kind, Kind::Store { data: Some(_), .. })
    }
}

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
            let m = self.cluster.ctas[cta].mbars.get_mut(&at);
            if let Some(m) = m {
                m.undelivered += 1;
                m.issued += 1;
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
        // A store first reads its source, then writes.
        if let Kind::Store { cta, offset, bytes, ref target, data: None } = p.kind {
            let swizzle = match target {
                Target::Tensor(map, ..) => map.swizzle,
                Target::Global(..) | Target::Masked(..) => crate::Swizzle::None,
            };
            let mut taken = vec![0; bytes as usize];
            for (from, at, len) in tma::pieces(swizzle, offset, bytes) {
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
        let check = self.options.hazards;
        match p.kind {
            Kind::Load { source, cta, offset, bytes, mbar, reduce } => {
                self.check_running(cta)?;
                let (mut data, swizzle) = match source {
                    Source::Tensor(map, coords) => {
                        (tma::read_box(self.memory, &map, coords, check)?, map.swizzle)
                    }
                    Source::Global(a) => {
                        (self.memory.load(a, bytes as usize, check)?.to_vec(), crate::Swizzle::None)
                    }
                    Source::Shared(c, o) => (self.shared_bytes(c, o, bytes)?.to_vec(), crate::Swizzle::None),
                };
                if let Some(r) = reduce {
                    tma::combine(self.shared_bytes(cta, offset, bytes)?, &mut data, r.op, r.ty)?;
                }
                for (to, at, len) in tma::pieces(swizzle, offset, bytes) {
                    self.shared_store(cta, to, &data[at as usize..(at + len) as usize])?;
                }
                self.complete_tx(mbar, bytes, (p.warp, p.pc))
            }
            Kind::Store { target, data, .. } => {
                let data = data.unwrap_or_default();
                match target {
                    Target::Tensor(map, coords, reduce) => {
                        tma::write_box(self.memory, &map, coords, &data, reduce)
                    }
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
                        let old = tma::word(self.shared_bytes(cta, at, bytes)?);
                        let ty = if ty == Ty::B32 { Ty::U32 } else { ty };
                        value = crate::units::atomic::apply(op, ty, old, value, 0).unwrap_or(value);
                    }
                    data.extend_from_slice(&value.to_le_bytes()[..bytes as usize]);
                }
                self.shared_store(cta, offset, &data)?;
                self.complete_tx(mbar, data.len() as u32, (p.warp, p.pc))
            }
        }
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

    pub(crate) fn mbar_error(&self, cta: usize, at: u32, e: MbarError) -> Fault {
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
            _ => self.cluster.ctas[cta].mbars.get(&at).map(|m| m.last),
        };
        let (kind, message) = match e {
            MbarError::OverArrival { pending, arrivals } => {
                (FaultKind::OverArrival, format!("{arrivals} arrivals on {name}, which misses {pending}"))
            }
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

    pub(crate) fn locate(&self, mut fault: Fault, warp: u32, pc: u32) -> Fault {
        if fault.at.is_none() {
            fault.at = Some(Box::new(self.place(warp, pc)));
        }
        fault
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

    /// Reads 128 bytes of tensor map.
    pub(crate) fn load_map(
        &mut self,
        warp: &crate::exec::warp::Warp,
        address: u64,
    ) -> Result<(TensorMap, Option<u64>), Fault> {
        if !address.is_multiple_of(64) {
            return Err(Fault::new(
                FaultKind::Misaligned,
                format!("the tensor map at {address:#x} is not aligned to 64 bytes"),
            ));
        }
        let location = self.resolve(warp, crate::text::ast::Space::Generic, address)?;
        let mut bytes = [0; crate::TENSOR_MAP_BYTES];
        let global = match location {
            Location::Global(a) => {
                self.check_map_use(warp.index, a)?;
                Some(a)
            }
            Location::Param(_) => None,
            _ => {
                return Err(Fault::new(
                    FaultKind::BadOperand,
                    "a tensor map lives in param, const or global memory",
                ));
            }
        };
        match global {
            // A tensor map is read through a proxy of its own, which `check_map_use` knows about.
            Some(a) => {
                let check = self.options.hazards;
                bytes.copy_from_slice(self.memory.load(a, crate::TENSOR_MAP_BYTES, check)?);
            }
            None => {
                let mut access = crate::exec::context::Access::new(warp.index, 0, None);
                self.read(warp, 0, &mut access, location, &mut bytes)?;
            }
        }
        Ok((TensorMap::decode(&bytes)?, global))
    }
}

/// Whether a bulk reduction exists for a type.
pub(crate) fn reducible(r: BulkReduce) -> bool {
    !matches!(r.ty, Ty::Pred) && crate::units::atomic::apply(r.op, r.ty, 0, 0, 0).is_some()
}
