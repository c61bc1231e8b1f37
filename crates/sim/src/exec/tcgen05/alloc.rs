//! Allocation of tensor memory.

use super::uniform;
use crate::decode::isa::{Addr, Src};
use crate::error::{Fault, FaultKind};
use crate::exec::Next;
use crate::exec::access::Location;
use crate::exec::aligned::converged;
use crate::exec::context::Cx;
use crate::exec::memory::{address, check_alignment};
use crate::exec::warp::{Wait, Warp};
use crate::hazard::{Event, Proxy, TensorAccess, TensorConflict, TensorMissing};
use crate::record::Way;
use crate::text::ast::Space;
use crate::units::tcgen05::queue::{Role, TensorUse};
use crate::units::tensor_memory::{
    Allocation, Area, FreeError, Request, TENSOR_COLUMNS, TENSOR_LANES, TensorAddress, TensorMemory, Use,
};

fn wrong(message: String) -> Fault {
    Fault::new(FaultKind::TensorMemory, message)
}

/// `tcgen05.alloc`: the address of the columns goes to shared memory, when there are that many.
pub(super) fn allocate(
    warp: &mut Warp,
    cx: &mut Cx<'_>,
    (dst, space): (&Addr, Space),
    columns: Src,
    pair: bool,
    pc: u32,
) -> Result<Next, Fault> {
    let rank = warp.env.rank as usize;
    let by = (warp.index, pc);
    let count = uniform(warp, columns, "the number of columns")? as u32;
    uniform(warp, dst.base, "the destination")?;
    let to = cx.resolve(warp, space, address(warp, dst, space, 0))?;
    match to {
        Location::Shared(cta, offset) if cta == rank => {
            check_alignment(u64::from(offset), 4)?;
            cx.shared_range(cta, offset, 4)?;
        }
        _ => {
            return Err(Fault::new(
                FaultKind::BadOperand,
                "the destination is not in the CTA's shared memory",
            ));
        }
    }
    if !TensorMemory::allocatable(count) {
        return Err(Fault::new(
            FaultKind::BadOperand,
            format!("an allocation of {count} columns: it takes a power of two from 32 to 512"),
        ));
    }
    let memory = cx.cluster.ctas[rank].tensor();
    if !memory.requests.iter().any(|r| r.by.0 == warp.index) {
        if let Some((w, p)) = memory.relinquished {
            let mut fault = wrong("the CTA has given up the right to allocate tensor memory".into());
            fault.other = Some(Box::new(cx.place(w, p)));
            return Err(fault);
        }
        if memory.last_columns.is_some_and(|last| count > last) {
            let last = memory.last_columns.unwrap_or(0);
            return Err(wrong(format!(
                "an allocation of {count} columns after one of {last}: the next may not be larger"
            )));
        }
        memory.requests.push(Request { columns: count, pair, by, granted: None });
    }
    cx.grant_columns(rank)?;
    let memory = cx.cluster.ctas[rank].tensor();
    let Some(at) = memory.requests.iter().position(|r| r.by.0 == warp.index && r.granted.is_some()) else {
        return Ok(Next::Retry(Wait::TensorColumns(count, pair)));
    };
    let granted = memory.requests.remove(at).granted.unwrap_or(0);
    let Location::Shared(cta, offset) = to else { return Ok(Next::Step) };
    if let Some(h) = &mut cx.cluster.hazards {
        let (agent, tick) = h.tick(warp.index);
        let event = Event { agent, tick, proxy: Proxy::Any, strong: None, warp: warp.index, pc };
        cx.shadow_async(event, None, std::iter::once((offset, 4)), cta, true)?;
    }
    cx.shared_store(cta, offset, &granted.to_le_bytes())?;
    let area = Area::new(granted, count, 0, TENSOR_LANES);
    cx.record_tensor((warp.index, pc), 0, Way::Plain, &TensorUse { cta: rank, area, role: Role::Write });
    cx.trace_tensor_memory((warp.index, pc), rank, Use::Columns(granted), |_| {
        format!("columns {granted} to {} allocated", granted + count - 1)
    });
    // All lanes have done this together.
    converged(warp, cx, u32::MAX);
    Ok(Next::Step)
}

/// `tcgen05.dealloc`
pub(super) fn free(
    warp: &mut Warp,
    cx: &mut Cx<'_>,
    addr: Src,
    columns: Src,
    pair: bool,
    pc: u32,
) -> Result<(), Fault> {
    let rank = warp.env.rank as usize;
    let at = TensorAddress::new(uniform(warp, addr, "the address")? as u32);
    let count = uniform(warp, columns, "the number of columns")? as u32;
    let index = cx.cluster.ctas[rank].index;
    let memory = cx.cluster.ctas[rank].tensor();
    let found = if at.lane == 0 { memory.find(at.column, count, pair) } else { Err(FreeError::NotAllocated) };
    let allocation = match found {
        Ok(i) => i,
        Err(e) => {
            let what = format!(
                "tensor memory of CTA {index}, {count} columns from {} in lane {}",
                at.column, at.lane
            );
            let (message, other) = match e {
                FreeError::NotAllocated => match memory.freed {
                    Some((a, by)) if a.column == at.column => {
                        (format!("{what}: no allocation begins there; it was freed before"), Some(by))
                    }
                    _ => (format!("{what}: no allocation begins there"), None),
                },
                FreeError::Size(a) => {
                    (format!("{what}: the allocation there has {} columns", a.columns), Some(a.by))
                }
                FreeError::Group(a) => {
                    let made = if a.pair { "cta_group::2" } else { "cta_group::1" };
                    (format!("{what}: the allocation was made with {made}"), Some(a.by))
                }
            };
            let mut fault = wrong(message);
            fault.other = other.map(|(w, p)| Box::new(cx.place(w, p)));
            return Err(fault);
        }
    };
    let area = Area::new(at.column, count, 0, TENSOR_LANES);
    cx.record_tensor((warp.index, pc), 0, Way::Plain, &TensorUse { cta: rank, area, role: Role::Write });
    if let Some(h) = &mut cx.cluster.hazards {
        let range = at.column..at.column + count;
        let event = h.tensor_move(warp.index, pc, true);
        h.tensor_moved(warp.index, true);
        let conflicts = h.tensor_access(event, rank, range.clone(), u128::MAX, TensorAccess::Write);
        h.tensor_forget(rank, range);
        // To free columns is synchronous: it needs no fence.
        let used = |c: &&TensorConflict| c.missing != TensorMissing::Unfenced;
        conflicts.iter().filter(used).try_for_each(|c| {
            cx.tensor_conflict(c, (warp.index, pc), rank, true).map_err(|mut fault| {
                fault.message = format!("columns are freed while in use: {}", fault.message);
                fault
            })
        })?;
    }
    cx.cluster.ctas[rank].tensor().free(allocation, (warp.index, pc));
    cx.end_tensor_memory(rank, Use::Columns(at.column));
    *cx.progress += 1;
    cx.grant_columns(rank)
}

impl Cx<'_> {
    /// Makes the allocations that warps of a CTA (and of its peer) wait for, the oldest first.
    fn grant_columns(&mut self, rank: usize) -> Result<(), Fault> {
        loop {
            let Some(own) =
                self.cluster.ctas[rank].tensor().requests.iter().find(|r| r.granted.is_none()).copied()
            else {
                return Ok(());
            };
            let peer = if own.pair {
                let open = |r: &&Request| r.granted.is_none();
                match self.cluster.ctas[rank ^ 1].tensor().requests.iter().find(open).copied() {
                    Some(peer) => Some(peer),
                    // The other CTA has not come yet.
                    None => return Ok(()),
                }
            } else {
                None
            };
            if let Some(peer) = peer
                && (peer.columns, peer.pair) != (own.columns, own.pair)
            {
                let mut fault = wrong(format!(
                    "the two CTAs of a pair allocate {} and {} columns together",
                    own.columns, peer.columns
                ));
                fault.at = Some(Box::new(self.place(own.by.0, own.by.1)));
                fault.other = Some(Box::new(self.place(peer.by.0, peer.by.1)));
                return Err(fault);
            }
            let other = peer.and_then(|_| self.cluster.ctas[rank ^ 1].tensor.as_deref());
            let memory = self.cluster.ctas[rank].tensor.as_deref();
            let Some(column) = memory.and_then(|m| m.place(own.columns, other)) else { return Ok(()) };
            let ranks = [Some((rank, own)), peer.map(|p| (rank ^ 1, p))];
            for (cta, request) in ranks.into_iter().flatten() {
                let Request { columns, pair, by, .. } = request;
                let memory = self.cluster.ctas[cta].tensor();
                memory.allocate(Allocation { column, columns, pair, by });
                if let Some(r) = memory.requests.iter_mut().find(|r| r.granted.is_none()) {
                    r.granted = Some(column);
                }
                *self.progress += 1;
            }
        }
    }

    /// Whether a warp has got the columns that it waits for.
    pub(crate) fn columns_granted(&self, warp: &Warp) -> bool {
        let memory = self.cluster.ctas[warp.env.rank as usize].tensor.as_deref();
        memory.is_none_or(|m| m.requests.iter().any(|r| r.by.0 == warp.index && r.granted.is_some()))
    }

    /// Why an allocation waits, in words.
    pub(crate) fn columns_missing(&self, warp: &Warp, columns: u32, pair: bool) -> String {
        let rank = warp.env.rank as usize;
        let used = |cta: usize| -> u32 {
            self.cluster.ctas[cta]
                .tensor
                .as_deref()
                .map_or(0, |m| m.allocations.iter().map(|a| a.columns).sum())
        };
        let peer_asks =
            |cta: usize| self.cluster.ctas[cta].tensor.as_deref().is_some_and(|m| !m.requests.is_empty());
        if pair && !peer_asks(rank ^ 1) {
            return "no warp of the peer CTA allocates with it".into();
        }
        let most = used(rank).max(if pair { used(rank ^ 1) } else { 0 });
        format!("{most} of {TENSOR_COLUMNS} columns are allocated and {columns} in a row are not free")
    }
}
