//! Tensor maps: reading, changing, and the fences that a change needs.

use super::access::{Access, Location};
use super::aligned::{aligned, converged};
use super::context::Cx;
use super::memory::{address, release};
use super::warp::Warp;
use super::{Issue, Next, together};
use crate::decode::isa::{Addr, Sem};
use crate::decode::tensormap::TensorMapOp;
use crate::error::{Fault, FaultKind};
use crate::hazard::{MapMissing, Scope};
use crate::lanes::lanes;
use crate::text::ast::Space;
use crate::units::tensormap::{TENSOR_MAP_BYTES, TensorMap, replacement};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &TensorMapOp, at: Issue) -> Result<Next, Fault> {
    match op {
        TensorMapOp::Replace { field, addr, space, value } => {
            for l in lanes(at.active) {
                let a = address(warp, addr, *space, l);
                let location = cx.resolve(warp, *space, a)?;
                let (field_at, bytes) = replacement(*field, warp.value(*value, l))?;
                let mut access = Access::new(warp.index, at.pc, None);
                let location = match location {
                    Location::Global(a) => Location::Global(a + field_at as u64),
                    Location::Shared(cta, o) => Location::Shared(cta, o + field_at as u32),
                    _ => {
                        return Err(Fault::new(
                            FaultKind::BadOperand,
                            "the map is not in global or shared memory",
                        ));
                    }
                };
                cx.write(warp, l, &mut access, location, &bytes)?;
            }
        }
        TensorMapOp::CopyRelease { dst, src } => {
            together!(aligned(warp, cx, at));
            converged(warp, cx, at.active);
            map_copy(warp, cx, dst, src, at)?;
        }
    }
    Ok(Next::Step)
}

/// `tensormap.cp_fenceproxy`: the warp copies a map from shared to global memory.
fn map_copy(warp: &mut Warp, cx: &mut Cx<'_>, dst: &Addr, src: &Addr, at: Issue) -> Result<(), Fault> {
    let l = at.active.trailing_zeros() as usize;
    let from = cx.resolve(warp, Space::Shared, address(warp, src, Space::Shared, l))?;
    let to = cx.resolve(warp, Space::Global, address(warp, dst, Space::Global, l))?;
    let mut bytes = [0; TENSOR_MAP_BYTES];
    let mut access = Access::new(warp.index, at.pc, None);
    cx.read(warp, l, &mut access, from, &mut bytes)?;
    cx.write(warp, l, &mut access, to, &bytes)?;
    if let Some(h) = &mut cx.cluster.hazards {
        h.fence_maps(warp.index);
    }
    let sem = Sem { acquire: false, release: true, strong: Some(Scope::Gpu) };
    release(warp, cx, to, &sem);
    Ok(())
}

impl Cx<'_> {
    /// The bytes of a tensor map in global memory.
    fn map_range(address: u64) -> (u64, u64) {
        (address, TENSOR_MAP_BYTES as u64)
    }

    /// The running lane acquires the tensor map at `address`.
    pub(super) fn acquire_map(&mut self, warp: &Warp, pc: u32, address: u64) {
        let (cta, identity) = (self.cta_index(warp.index), self.identity(warp.index));
        let Some(h) = &mut self.cluster.hazards else { return };
        let by = h.map_event(warp.index, pc, cta);
        self.global.acquire_map(h, by, identity, Self::map_range(address));
    }

    /// A use of the tensor map at `address` must follow a release by who changed it and an acquire by this warp or one before it.
    fn check_map_use(&mut self, warp: &Warp, address: u64) -> Result<(), Fault> {
        let (cta, identity) = (self.cta_index(warp.index), self.identity(warp.index));
        let Some(h) = &mut self.cluster.hazards else { return Ok(()) };
        let by = h.map_event(warp.index, self.at.1, cta);
        let range = Self::map_range(address);
        let Err((write, missing)) = self.global.check_map(h, by, identity, range) else {
            // Who changes it next must come after this use.
            let id = self.global.record(by);
            return match self.global.access(h, id, Some(by.lane()), range, false, false) {
                Ok(()) => Ok(()),
                Err(c) => self.global_conflict(c, (warp.index, self.at.1), false),
            };
        };
        self.hazard(FaultKind::TensorMap, (warp.index, self.at.1), Some(write.event.pc), |cx| {
            let missing = match missing {
                MapMissing::Order => "nothing that orders this after its change",
                MapMissing::Release => "no fence.proxy.tensormap::generic.release after its change",
                MapMissing::Acquire => {
                    "no fence.proxy.tensormap::generic.acquire between the release of its change and this use"
                }
            };
            let message = format!("the tensor map at {address:#x} is used with {missing}");
            let mut fault = Fault::new(FaultKind::TensorMap, message);
            fault.other = Some(Box::new(cx.place_of(&write)));
            fault
        })
    }

    /// A write to global memory must not hit a tensor map that a copy in flight uses.
    pub(super) fn check_map_change(&self, address: u64, len: usize) -> Result<(), Fault> {
        if !self.options.hazards {
            return Ok(());
        }
        for p in &self.cluster.pending {
            if let Some(map) = p.map
                && address < map + TENSOR_MAP_BYTES as u64
                && map < address + len as u64
            {
                self.hazard(FaultKind::TensorMap, self.at, Some(p.pc), |cx| {
                    let message = format!(
                        "the tensor map at {map:#x} is changed while a copy that uses it is in flight"
                    );
                    let mut fault = Fault::new(FaultKind::TensorMap, message);
                    fault.other = Some(Box::new(cx.place(p.warp, p.pc)));
                    fault
                })?;
            }
        }
        Ok(())
    }

    /// Reads 128 bytes of tensor map.
    pub(crate) fn load_map(&mut self, warp: &Warp, address: u64) -> Result<(TensorMap, Option<u64>), Fault> {
        if !address.is_multiple_of(64) {
            return Err(Fault::new(
                FaultKind::Misaligned,
                format!("the tensor map at {address:#x} is not aligned to 64 bytes"),
            ));
        }
        let location = self.resolve(warp, Space::Generic, address)?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let global = match location {
            Location::Global(a) => {
                self.check_map_use(warp, a)?;
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
                bytes.copy_from_slice(self.memory.load(a, TENSOR_MAP_BYTES, check)?);
            }
            None => {
                let mut access = Access::new(warp.index, 0, None);
                self.read(warp, 0, &mut access, location, &mut bytes)?;
            }
        }
        Ok((TensorMap::decode(&bytes)?, global))
    }
}
