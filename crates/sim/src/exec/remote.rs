//! Stores to the memory of other devices that these do not see yet.
//!
//! A store that is not a release goes out when the schedule says, in any order among those to other addresses, and at
//! the latest with a release or a fence of system scope by a thread that comes after it, or with the end of its grid. Its
//! own device sees it at once: an access there to the same bytes sends it out.

use super::access::{Access, Location};
use super::context::Cx;
use super::warp::Warp;
use crate::decode::isa::Sem;
use crate::error::Fault;
use crate::hazard::{GlobalEvent, GlobalShadow, Released};
use crate::memory::Memory;
use crate::options::Policy;
use crate::rng::Rng;
use crate::units::copy::{Kind, Source, Target};

/// Stores under way, in the order in which they were issued.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteStores {
    list: Vec<RemoteStore>,
}

#[derive(Clone, Debug)]
struct RemoteStore {
    /// Whose it is.
    device: u32,
    by: Option<GlobalEvent>,
    address: u64,
    bytes: Vec<u8>,
    /// What it releases to its location.
    released: Released,
}

impl RemoteStore {
    fn overlaps(&self, address: u64, len: usize) -> bool {
        self.address < address + len as u64 && address < self.address + self.bytes.len() as u64
    }

    fn perform(self, memory: &mut Memory, global: &mut GlobalShadow) -> Result<(), Fault> {
        memory.write(self.address, &self.bytes)?;
        global.publish(self.address, &self.released);
        Ok(())
    }
}

impl RemoteStores {
    /// Sends out the stores that `which` names, in order.
    fn send(
        &mut self,
        memory: &mut Memory,
        global: &mut GlobalShadow,
        mut which: impl FnMut(&RemoteStore) -> bool,
    ) -> Result<(), Fault> {
        self.list.extract_if(.., |store| which(store)).try_for_each(|store| store.perform(memory, global))
    }

    /// Sends out all stores of a device, whose grid has stopped.
    pub(crate) fn send_all(
        &mut self,
        device: u32,
        memory: &mut Memory,
        global: &mut GlobalShadow,
    ) -> Result<(), Fault> {
        self.send(memory, global, |store| store.device == device)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there are stores of a device.
    pub(crate) fn has(&self, device: u32) -> bool {
        self.list.iter().any(|store| store.device == device)
    }

    /// Sends out one store, the newest or (with a generator) any.
    pub(crate) fn send_one(
        &mut self,
        rng: Option<&mut Rng>,
        memory: &mut Memory,
        global: &mut GlobalShadow,
    ) -> Result<(), Fault> {
        let Some(last) = self.list.len().checked_sub(1) else { return Ok(()) };
        let store = self.list.remove(rng.map_or(last, |rng| rng.below(last + 1)));
        store.perform(memory, global)
    }
}

impl Cx<'_> {
    /// Sends out the device's own stores to these bytes, before another access of the device to them.
    pub(crate) fn settle(&mut self, address: u64, len: usize) -> Result<(), Fault> {
        let device = self.device;
        match &mut self.remote {
            Some(remote) if !remote.list.is_empty() => remote.send(self.memory, self.global, |store| {
                store.device == device && store.overlaps(address, len)
            }),
            _ => Ok(()),
        }
    }

    /// The same before a copy to or from these bytes.
    pub(crate) fn settle_copy(&mut self, kind: &Kind) -> Result<(), Fault> {
        if self.remote.as_ref().is_none_or(|remote| remote.list.is_empty()) {
            return Ok(());
        }
        let ranges: Vec<(u64, u64)> = match kind {
            Kind::Load { source: Source::Global(a, _), bytes, .. } => vec![(*a, u64::from(*bytes))],
            Kind::Load { source: Source::Tensor(part), .. } => part.ranges().collect(),
            Kind::Store { target: Target::Tensor(part, _), .. } => part.ranges().collect(),
            Kind::Store { target: Target::Global(a, _) | Target::Masked(a, _), bytes, .. } => {
                vec![(*a, u64::from(*bytes))]
            }
            Kind::CpAsync(list) => list.iter().map(|c| (c.global, u64::from(c.valid))).collect(),
            _ => Vec::new(),
        };
        ranges.into_iter().try_for_each(|(address, len)| self.settle(address, len as usize))
    }

    /// A release of system scope by the selected lanes of a warp: what they come after goes out before.
    pub(crate) fn send_before(&mut self, warp: u32) -> Result<(), Fault> {
        let (device, hazards) = (self.device, &mut self.cluster.hazards);
        match &mut self.remote {
            Some(remote) if !remote.list.is_empty() => remote.send(self.memory, self.global, |store| {
                let before = |h: &mut crate::hazard::Hazards, by: &GlobalEvent| h.comes_after(warp, by);
                store.device == device
                    && match (hazards.as_deref_mut(), &store.by) {
                        (Some(hazards), Some(by)) => before(hazards, by),
                        _ => true,
                    }
            }),
            _ => Ok(()),
        }
    }

    /// Whether a store of a thread stays under way for now.
    pub(crate) fn stays_out(&mut self, location: Location, sem: &Sem) -> bool {
        let (Some(_), Location::Global(address), false) = (&self.remote, location, sem.release) else {
            return false;
        };
        self.memory.owner(address) != self.device
            && match self.options.policy {
                Policy::Eager => false,
                Policy::Lazy => true,
                Policy::Random => !self.rng.once_in(4),
            }
    }

    /// A store that other devices do not see yet.
    pub(crate) fn write_later(
        &mut self,
        warp: &Warp,
        lane: usize,
        access: &mut Access,
        (address, bytes): (u64, &[u8]),
        sem: &Sem,
    ) -> Result<(), Fault> {
        self.settle(address, bytes.len())?;
        let by = self.record_write(access, lane, address, bytes)?;
        let mut released = Released::default();
        if let (Some(hazards), Some(scope)) = (&mut self.cluster.hazards, sem.strong) {
            hazards.release_to(warp.index, false, scope, &mut released);
        }
        let (device, bytes) = (self.device, bytes.to_vec());
        if let Some(remote) = &mut self.remote {
            remote.list.push(RemoteStore { device, by, address, bytes, released });
        }
        *self.progress += 1;
        Ok(())
    }
}
