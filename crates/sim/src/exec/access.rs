//! Memory accesses: addresses resolved, bounds and definedness checked, hazards recorded.
//!
//! The one way through which warps and asynchronous units touch shared memory.

use super::context::Cx;
use super::warp::Warp;
use crate::decode::SHARED_BASE;
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, GlobalEvent, Scope};
use crate::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::record::Store;
use crate::text::ast::Space;

/// A resolved address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Global(u64),
    Shared(usize, u32),
    Local(u32),
    Param(u32),
}

impl Location {
    /// The location this many bytes further.
    pub(crate) fn plus(self, bytes: u32) -> Location {
        match self {
            Location::Global(a) => Location::Global(a + u64::from(bytes)),
            Location::Shared(cta, o) => Location::Shared(cta, o + bytes),
            Location::Local(o) => Location::Local(o + bytes),
            Location::Param(o) => Location::Param(o + bytes),
        }
    }
}

/// The instruction behind a series of accesses, and its event in the shadow memory once it has one.
pub(crate) struct Access {
    pub(crate) warp: u32,
    pub(crate) pc: u32,
    pub(crate) strong: Option<Scope>,
    /// One event per class of lanes, by the class's agent.
    events: Vec<(u32, u32)>,
    /// The same in the shadow of global memory.
    global: Vec<(u32, u32)>,
}

impl Access {
    pub(crate) fn new(warp: u32, pc: u32, strong: Option<Scope>) -> Access {
        Access { warp, pc, strong, events: Vec::new(), global: Vec::new() }
    }
}

impl Cx<'_> {
    /// Resolves an address in a space for a warp.
    pub(crate) fn resolve(&self, warp: &Warp, space: Space, address: u64) -> Result<Location, Fault> {
        Ok(match space {
            Space::Global | Space::Const => Location::Global(self.memory.own(self.device, address)),
            Space::Shared => {
                let (rank, offset) = self.split_shared(address)?;
                if rank != warp.env.rank as usize {
                    return Err(Fault::new(
                        FaultKind::OutOfBounds,
                        format!(
                            "shared::cta address {address:#x} belongs to CTA rank {rank}, not to rank {}",
                            warp.env.rank
                        ),
                    ));
                }
                Location::Shared(rank, offset)
            }
            Space::Cluster => {
                let (rank, offset) = self.split_shared(address)?;
                Location::Shared(rank, offset)
            }
            Space::Local => Location::Local(address as u32),
            Space::Param => Location::Param(address as u32),
            Space::Generic => {
                let window = |base: u64| (base..base + WINDOW_BYTES).contains(&address);
                if window(SHARED_WINDOW) {
                    let (rank, offset) = self.split_shared(address - SHARED_WINDOW)?;
                    Location::Shared(rank, offset)
                } else if window(LOCAL_WINDOW) {
                    Location::Local((address - LOCAL_WINDOW) as u32)
                } else if window(PARAM_WINDOW) {
                    Location::Param((address - PARAM_WINDOW) as u32)
                } else {
                    Location::Global(self.memory.own(self.device, address))
                }
            }
        })
    }

    /// CTA rank and offset of an address in the cluster's shared window.
    pub(crate) fn split_shared(&self, address: u64) -> Result<(usize, u32), Fault> {
        let rank = (address >> 24) as usize;
        if address > u64::from(u32::MAX) || rank >= self.cluster.ctas.len() {
            return Err(Fault::new(
                FaultKind::OutOfBounds,
                format!("{address:#x} is not a shared-memory address of this cluster"),
            ));
        }
        Ok((rank, (address & 0xff_ffff) as u32))
    }

    /// Checks that a range of shared memory exists, and gives its index in the CTA's bytes.
    pub(crate) fn shared_range(&self, cta: usize, offset: u32, len: u32) -> Result<usize, Fault> {
        let c = &self.cluster.ctas[cta];
        if c.exited {
            let mut fault = Fault::new(
                FaultKind::PeerExited,
                format!("shared memory of CTA {} is used after that CTA has exited", c.index),
            );
            fault.other = Some(Box::new(self.exit_place(cta)));
            fault.notes = self.barrier_notes(cta);
            return Err(fault);
        }
        let start = u64::from(offset).wrapping_sub(u64::from(SHARED_BASE));
        if offset < SHARED_BASE || start + u64::from(len) > c.shared.len() as u64 {
            return Err(Fault::new(
                FaultKind::OutOfBounds,
                format!(
                    "shared access of {len} bytes at offset {offset:#x}: the CTA has {:#x} to {:#x}",
                    SHARED_BASE,
                    SHARED_BASE as usize + c.shared.len()
                ),
            ));
        }
        Ok(start as usize)
    }

    /// Records a generic access in the shadow memory.
    pub(crate) fn shadow(
        &mut self,
        access: &mut Access,
        lane: usize,
        cta: usize,
        offset: u32,
        len: u32,
        write: bool,
    ) -> Result<(), Fault> {
        self.shadow_store(access, lane, (cta, offset, len), write, false)
    }

    /// The same; `same` for a write of what is there already.
    fn shadow_store(
        &mut self,
        access: &mut Access,
        lane: usize,
        (cta, offset, len): (usize, u32, u32),
        write: bool,
        same: bool,
    ) -> Result<(), Fault> {
        let (by, strong) = ((access.warp, access.pc), access.strong.is_some());
        let bytes = (u64::from(offset), u64::from(len));
        self.record_access(by, lane, Store::Shared(cta as u32), bytes, [write, same, strong]);
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        let lane = lane as u8;
        let agent = h.lane_agent(access.warp, lane);
        let event = match access.events.iter().find(|e| e.0 == agent) {
            Some(e) => e.1,
            None => {
                if access.events.is_empty() {
                    h.make_room();
                }
                let id = h.thread_event(access.warp, lane, access.pc, access.strong);
                access.events.push((agent, id));
                id
            }
        };
        let range = std::iter::once((offset, len));
        let conflicts = h.access_with(event, Some(lane), cta, range, write, same);
        self.conflicts(conflicts, cta, (access.warp, access.pc), write)
    }

    /// Records an access of an asynchronous unit.
    pub(crate) fn shadow_async(
        &mut self,
        event: Event,
        lane: Option<usize>,
        ranges: impl Iterator<Item = (u32, u32)>,
        cta: usize,
        write: bool,
    ) -> Result<(), Fault> {
        if self.options.record {
            let ranges: Vec<_> = ranges.collect();
            let wide: Vec<_> = ranges.iter().map(|(at, len)| (u64::from(*at), u64::from(*len))).collect();
            self.record_work_access(event, lane, Store::Shared(cta as u32), &wide, write);
            return self.check_async(event, lane, ranges.into_iter(), cta, write);
        }
        self.check_async(event, lane, ranges, cta, write)
    }

    fn check_async(
        &mut self,
        event: Event,
        lane: Option<usize>,
        ranges: impl Iterator<Item = (u32, u32)>,
        cta: usize,
        write: bool,
    ) -> Result<(), Fault> {
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        h.make_room();
        let id = h.event(event);
        let lane = lane.map(|l| l as u8);
        let conflicts = h.access(id, lane, cta, ranges, write);
        self.conflicts(conflicts, cta, (event.warp, event.pc), write)
    }

    /// Records a generic access to global memory.
    fn shadow_global(
        &mut self,
        access: &mut Access,
        lane: usize,
        range: (u64, u64),
        write: bool,
        same: bool,
    ) -> Result<Option<GlobalEvent>, Fault> {
        let cta = self.cta_index(access.warp);
        let (by, strong) = ((access.warp, access.pc), access.strong.is_some());
        self.record_access(by, lane, Store::Global, range, [write, same, strong]);
        self.check_predecessor((access.warp, access.pc), lane as u8, range, write)?;
        let Some(h) = &mut self.cluster.hazards else { return Ok(None) };
        let lane = lane as u8;
        let agent = h.lane_agent(access.warp, lane);
        let event = match access.global.iter().find(|e| e.0 == agent) {
            Some(e) => e.1,
            None => {
                let event = h.global_thread_event(access.warp, lane, access.pc, access.strong, cta);
                let id = self.global.record(event);
                access.global.push((agent, id));
                id
            }
        };
        let by = self.global.event(event);
        match self.global.access(h, event, Some(lane), range, write, same) {
            Ok(()) => Ok(Some(by)),
            Err(c) => self.global_conflict(c, (access.warp, access.pc), write).map(|()| Some(by)),
        }
    }

    /// Records an access of an asynchronous unit to global memory.
    pub(crate) fn shadow_global_async(
        &mut self,
        event: Event,
        lane: Option<usize>,
        ranges: impl Iterator<Item = (u64, u64)>,
        write: bool,
    ) -> Result<(), Fault> {
        if self.options.record {
            let ranges: Vec<_> = ranges.collect();
            self.record_work_access(event, lane, Store::Global, &ranges, write);
            return self.check_global_async(event, lane, ranges.into_iter(), write);
        }
        self.check_global_async(event, lane, ranges, write)
    }

    fn check_global_async(
        &mut self,
        event: Event,
        lane: Option<usize>,
        ranges: impl Iterator<Item = (u64, u64)>,
        write: bool,
    ) -> Result<(), Fault> {
        let cta = self.cta_index(event.warp);
        let lane = lane.map(|l| l as u8);
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        let now = h.global_unit_event(event, cta);
        let id = self.global.record(now);
        for range in ranges {
            self.check_predecessor((event.warp, event.pc), lane.unwrap_or(now.lane()), range, write)?;
            let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
            if let Err(c) = self.global.access(h, id, lane, range, write, false) {
                self.global_conflict(c, (event.warp, event.pc), write)?;
            }
        }
        Ok(())
    }

    /// An access to global memory must not meet those of a kernel before that may still run.
    fn check_predecessor(
        &mut self,
        at: (u32, u32),
        lane: u8,
        range: (u64, u64),
        writes: bool,
    ) -> Result<(), Fault> {
        let (Some(before), Some(h)) = (self.predecessor, &mut self.cluster.hazards) else { return Ok(()) };
        match before.meets(range, writes) {
            Some(overlap) if !h.knows_predecessor_done(at.0, lane) => {
                self.hazard(FaultKind::Race, at, None, |cx| cx.too_early(overlap, writes))
            }
            _ => Ok(()),
        }
    }

    /// Where a run goes on after reads of global memory that nothing wrote: notes one. (Otherwise the read itself
    /// fails.)
    pub(crate) fn expect_defined(&mut self, address: u64, len: usize) -> Result<(), Fault> {
        let kind = FaultKind::Uninitialized;
        if self.options.hazards
            && self.goes_on(kind)
            && let Err(fault) = self.memory.load(address, len, true)
        {
            if fault.kind != kind {
                return Err(fault);
            }
            self.hazard(kind, self.at, None, |_| fault)?;
        }
        Ok(())
    }

    /// Reads shared memory; the caller has recorded the access.
    pub(crate) fn shared_bytes(&self, cta: usize, offset: u32, len: u32) -> Result<&[u8], Fault> {
        let at = self.shared_range(cta, offset, len)?;
        let c = &self.cluster.ctas[cta];
        if self.options.hazards
            && let Some(missing) = c.written.first_missing(at, len as usize)
        {
            self.hazard(FaultKind::Uninitialized, self.at, None, |_| {
                Fault::new(
                    FaultKind::Uninitialized,
                    format!(
                        "shared byte {:#x} of CTA {} is read and was never written",
                        missing as u32 + SHARED_BASE,
                        c.index
                    ),
                )
            })?;
        }
        Ok(&c.shared[at..at + len as usize])
    }

    /// Writes shared memory; the caller has recorded the access.
    pub(crate) fn shared_store(&mut self, cta: usize, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.shared_range(cta, offset, bytes.len() as u32)?;
        let check = self.options.hazards;
        let c = &mut self.cluster.ctas[cta];
        if check
            && let Some((o, m)) = c.mbars.range(offset.saturating_sub(7)..offset + bytes.len() as u32).next()
        {
            let (pc, warp) = (m.init_pc, m.init_warp);
            let mut fault = Fault::new(
                FaultKind::BarrierInit,
                format!("a write to {offset:#x} overlaps the live mbarrier at {o:#x}"),
            );
            fault.other = Some(Box::new(self.place(warp, pc)));
            return Err(fault);
        }
        c.shared[at..at + bytes.len()].copy_from_slice(bytes);
        if check {
            c.written.set(at, bytes.len());
        }
        *self.progress += 1;
        Ok(())
    }

    /// From now on bytes of shared memory count as never written.
    pub(crate) fn shared_forget(&mut self, cta: usize, offset: u32, len: u32) -> Result<(), Fault> {
        if len > 0 && self.options.hazards {
            let at = self.shared_range(cta, offset, len)?;
            self.cluster.ctas[cta].written.clear(at, len as usize);
        }
        Ok(())
    }

    /// Bytes at a location, for the threads of a warp; all of them must have been written.
    pub(crate) fn read(
        &mut self,
        warp: &Warp,
        lane: usize,
        access: &mut Access,
        location: Location,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        if let Location::Global(a) = location {
            self.settle(a, out.len())?;
        }
        if self.options.hazards {
            match location {
                Location::Global(a) if self.goes_on(FaultKind::Uninitialized) => {
                    self.expect_defined(a, out.len())?;
                }
                Location::Global(a) => {
                    self.memory.load(a, out.len(), true)?;
                }
                Location::Shared(cta, offset) => {
                    self.shared_bytes(cta, offset, out.len() as u32)?;
                }
                _ => {}
            }
        }
        self.peek(warp, lane, access, location, out)
    }

    /// Whether every byte at a location was written.
    pub(crate) fn defined(&mut self, location: Location, len: usize) -> bool {
        match location {
            Location::Global(a) => self.memory.defined(a, len),
            Location::Shared(cta, offset) => self.shared_range(cta, offset, len as u32).is_ok_and(|at| {
                !self.options.hazards || self.cluster.ctas[cta].written.first_missing(at, len).is_none()
            }),
            _ => true,
        }
    }

    /// Bytes at a location, written or not.
    pub(crate) fn peek(
        &mut self,
        warp: &Warp,
        lane: usize,
        access: &mut Access,
        location: Location,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let len = out.len();
        match location {
            Location::Global(a) => {
                self.settle(a, len)?;
                self.shadow_global(access, lane, (a, len as u64), false, false)?;
                out.copy_from_slice(self.memory.load(a, len, false)?);
            }
            Location::Shared(cta, offset) => {
                let at = self.shared_range(cta, offset, len as u32)?;
                self.shadow(access, lane, cta, offset, len as u32, false)?;
                out.copy_from_slice(&self.cluster.ctas[cta].shared[at..at + len]);
            }
            Location::Local(a) => {
                let at = local_range(warp, lane, a, len)?;
                out.copy_from_slice(&warp.local[at..at + len]);
            }
            Location::Param(a) => {
                let end = a as usize + len;
                if end > self.params.len() {
                    return Err(Fault::new(
                        FaultKind::OutOfBounds,
                        format!("parameter bytes {a}..{end} of {}", self.params.len()),
                    ));
                }
                out.copy_from_slice(&self.params[a as usize..end]);
            }
        }
        Ok(())
    }

    /// Checks and records a write to global memory, which the caller performs.
    pub(super) fn record_write(
        &mut self,
        access: &mut Access,
        lane: usize,
        address: u64,
        bytes: &[u8],
    ) -> Result<Option<GlobalEvent>, Fault> {
        self.check_map_change(address, bytes.len())?;
        let there = self.memory.read(address, bytes.len())?;
        let same = self.options.hazards && there == bytes;
        self.shadow_global(access, lane, (address, bytes.len() as u64), true, same)
    }

    pub(crate) fn write(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        access: &mut Access,
        location: Location,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        match location {
            Location::Global(a) => {
                self.settle(a, bytes.len())?;
                self.record_write(access, lane, a, bytes)?;
                self.memory.write(a, bytes)?;
                *self.progress += 1;
            }
            Location::Shared(cta, offset) => {
                let (at, len) = (self.shared_range(cta, offset, bytes.len() as u32)?, bytes.len());
                let c = &self.cluster.ctas[cta];
                let same = self.options.hazards
                    && c.shared[at..at + len] == *bytes
                    && c.written.first_missing(at, len).is_none();
                self.shadow_store(access, lane, (cta, offset, len as u32), true, same)?;
                self.shared_store(cta, offset, bytes)?;
            }
            Location::Local(a) => {
                let at = local_range(warp, lane, a, bytes.len())?;
                warp.local[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Location::Param(_) => {
                return Err(Fault::new(FaultKind::OutOfBounds, "a kernel's parameters are read-only"));
            }
        }
        Ok(())
    }
}

fn local_range(warp: &Warp, lane: usize, offset: u32, len: usize) -> Result<usize, Fault> {
    if offset as usize + len > warp.local_bytes {
        return Err(Fault::new(
            FaultKind::OutOfBounds,
            format!("local access of {len} bytes at {offset:#x}: the thread has {:#x}", warp.local_bytes),
        ));
    }
    Ok(lane * warp.local_bytes + offset as usize)
}
