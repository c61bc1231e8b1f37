//! Issuing asynchronous copies, committing and waiting for their groups, and changing tensor maps.

use super::memory::{address, check_alignment};
use super::{Next, cp_async};
use crate::text::ast::Space;
use crate::exec::context::{Access, Cx, Location};
use crate::units::copy::{Kind, Source, Target, reducible};
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Hazards, Proxy, Unit};
use crate::decode::isa::{Addr, BulkCopy, BulkReduce, BulkWay, Op, Scope, Sem, Src, TensorCopy};
use crate::units::tma::{pieces, ranges};
use crate::exec::warp::{Wait, Warp, lanes};
use crate::{Swizzle, TENSOR_MAP_BYTES};

pub(super) fn copy(warp: &mut Warp, cx: &mut Cx<'_>, op: &Op, pc: u32, active: u32) -> Result<Next, Fault> {
    match op {
        Op::Tensor(t) => {
            for l in lanes(active) {
                tensor(warp, cx, t, pc, l)?;
            }
        }
        Op::Bulk(b) => {
            for l in lanes(active) {
                bulk(warp, cx, b, pc, l)?;
            }
        }
        Op::BulkCommit => {
            for l in lanes(active) {
                let g = warp.bulk.entry(l as u32).or_default();
                let open = std::mem::take(&mut g.open);
                g.groups.push_back(open);
                g.ticks.push_back(g.newest);
            }
        }
        Op::BulkWait { pending, read } => return bulk_wait(warp, cx, *pending, *read, active),
        Op::BulkPrefetch { addr, size } => {
            for l in lanes(active) {
                let bytes = warp.value(*size, l) as u32;
                prefetch(warp, cx, addr, bytes as usize, l)?;
            }
        }
        Op::TensorPrefetch { map } => {
            for l in lanes(active) {
                prefetch(warp, cx, map, TENSOR_MAP_BYTES, l)?;
            }
        }
        Op::CpAsync { .. } => cp_async::copy(warp, cx, op, pc, active)?,
        Op::CpAsyncCommit => cp_async::commit(warp, active),
        Op::CpAsyncWait { pending } => return cp_async::wait(warp, cx, *pending, active),
        Op::CpAsyncMbar { .. } => cp_async::arrive(warp, cx, op, pc, active)?,
        Op::StAsync { .. } => store_async(warp, cx, op, pc, active)?,
        Op::TensorMapAcquire { addr, scope, .. } => {
            for l in lanes(active) {
                let a = address(warp, addr, Space::Generic, l);
                let location = cx.resolve(warp, Space::Generic, a)?;
                let sem = Sem { acquire: true, release: false, strong: Some(*scope) };
                super::memory::acquire(warp, cx, location, &sem);
                let me = cx.identity(warp.index);
                if let Location::Global(a) = location
                    && let Some(change) = cx.maps.get_mut(&a)
                    && change.released
                {
                    change.acquired.push(me);
                }
            }
        }
        Op::TensorMapReplace { field, addr, space, value } => {
            for l in lanes(active) {
                let a = address(warp, addr, *space, l);
                let location = cx.resolve(warp, *space, a)?;
                let (at, bytes) = crate::units::tensormap::replacement(*field, warp.value(*value, l))?;
                let mut access = Access::new(warp.index, pc, None);
                let location = match location {
                    Location::Global(a) => {
                        cx.map_changed(warp.index, pc, a, false);
                        Location::Global(a + at as u64)
                    }
                    Location::Shared(cta, o) => Location::Shared(cta, o + at as u32),
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
        Op::TensorMapCopyRelease { dst, src } => map_copy(warp, cx, dst, src, pc, active)?,
        _ => {}
    }
    Ok(Next::Step)
}

/// A prefetch moves nothing here; what it names must exist.
fn prefetch(warp: &Warp, cx: &mut Cx<'_>, addr: &Addr, bytes: usize, l: usize) -> Result<(), Fault> {
    let a = address(warp, addr, Space::Generic, l);
    match cx.resolve(warp, Space::Generic, a)? {
        Location::Global(a) if !cx.memory.contains(a, bytes) => {
            Err(Fault::new(FaultKind::OutOfBounds, format!("prefetch of {bytes} bytes at {a:#x}")))
        }
        _ => Ok(()),
    }
}

/// `tensormap.cp_fenceproxy`: the warp copies a map from shared to global memory.
fn map_copy(
    warp: &mut Warp,
    cx: &mut Cx<'_>,
    dst: &Addr,
    src: &Addr,
    pc: u32,
    active: u32,
) -> Result<(), Fault> {
    let l = active.trailing_zeros() as usize;
    let from = cx.resolve(warp, Space::Shared, address(warp, src, Space::Shared, l))?;
    let to = cx.resolve(warp, Space::Global, address(warp, dst, Space::Global, l))?;
    let mut bytes = [0; TENSOR_MAP_BYTES];
    let mut access = Access::new(warp.index, pc, None);
    cx.read(warp, l, &mut access, from, &mut bytes)?;
    cx.write(warp, l, &mut access, to, &bytes)?;
    let sem = Sem { acquire: false, release: true, strong: Some(Scope::Gpu) };
    super::memory::release(warp, cx, to, &sem);
    if let Location::Global(a) = to {
        cx.map_changed(warp.index, pc, a, true);
    }
    Ok(())
}

pub(super) fn shared_at(
    warp: &Warp,
    cx: &Cx<'_>,
    addr: &Addr,
    space: Space,
    lane: usize,
) -> Result<(usize, u32), Fault> {
    let a = address(warp, addr, space, lane);
    match cx.resolve(warp, space, a)? {
        Location::Shared(cta, offset) => Ok((cta, offset)),
        _ => Err(Fault::new(FaultKind::BadOperand, format!("{a:#x} is not a shared-memory address"))),
    }
}

/// The CTAs that a load goes to: those of the mask, or the one that the address names.
fn receivers(
    warp: &Warp,
    cx: &Cx<'_>,
    mask: Option<Src>,
    own: usize,
    lane: usize,
) -> Result<Vec<usize>, Fault> {
    let Some(mask) = mask else { return Ok(vec![own]) };
    let mask = warp.value(mask, lane) as u16;
    let ranks: Vec<usize> = (0..16).filter(|r| mask >> r & 1 == 1).collect();
    match ranks.iter().find(|r| **r >= cx.cluster.ctas.len()) {
        Some(r) => Err(Fault::new(
            FaultKind::BadOperand,
            format!("the multicast mask {mask:#x} names rank {r} of a cluster of {}", cx.cluster.ctas.len()),
        )),
        None if ranks.is_empty() => Err(Fault::new(FaultKind::BadOperand, "the multicast mask is empty")),
        None => Ok(ranks),
    }
}

/// Sends a load to its receivers.
#[allow(clippy::too_many_arguments)]
fn send(
    warp: &Warp,
    cx: &mut Cx<'_>,
    pc: u32,
    map: Option<u64>,
    source: &Source,
    swizzle: Swizzle,
    ranks: &[usize],
    offset: u32,
    bytes: u32,
    mbar: u32,
    mbar_cta: Option<usize>,
    reduce: Option<BulkReduce>,
) -> Result<(), Fault> {
    // Every receiver is checked before anything moves.
    for &cta in ranks {
        let owner = mbar_cta.unwrap_or(cta);
        cx.shared_range(cta, offset, bytes)?;
        cx.shared_range(owner, mbar, 8)?;
        cx.mbar(warp.index, owner, mbar, true)?;
        // Reductions are atomic among themselves.
        let event = Event {
            strong: reduce.is_some().then_some(Scope::Gpu),
            ..cx.copy_event(warp.index, pc, (owner, mbar))
        };
        let span = span(swizzle, offset, bytes);
        cx.shadow_async(event, None, std::iter::once(span), cta, true)?;
        let event = Event { strong: None, ..event };
        match source {
            Source::Shared(from, o) => {
                cx.shadow_async(event, None, std::iter::once((*o, bytes)), *from, false)?;
            }
            Source::Global(a) => {
                cx.shadow_global_async(event, None, std::iter::once((*a, u64::from(bytes))), false)?;
            }
            Source::Tensor(map, coords) => {
                cx.shadow_global_async(event, None, ranges(map, *coords), false)?;
            }
        }
    }
    for &cta in ranks {
        let owner = mbar_cta.unwrap_or(cta);
        let mbar = (owner, mbar);
        let kind = Kind::Load { source: source.clone(), cta, offset, bytes, mbar, reduce };
        cx.submit(warp.index, pc, map, kind)?;
    }
    Ok(())
}

/// The bytes that a swizzled box touches: it stays within the rows that it covers.
fn span(swizzle: Swizzle, offset: u32, bytes: u32) -> (u32, u32) {
    if swizzle == Swizzle::None {
        return (offset, bytes);
    }
    let low = pieces(swizzle, offset, bytes).map(|p| p.0).min().unwrap_or(offset);
    let high = pieces(swizzle, offset, bytes).map(|p| p.0 + p.2).max().unwrap_or(offset);
    (low, high - low)
}

fn tensor(warp: &mut Warp, cx: &mut Cx<'_>, t: &TensorCopy, pc: u32, l: usize) -> Result<(), Fault> {
    let (map, map_at) = cx.load_map(warp, address(warp, &t.map, Space::Generic, l))?;
    if map.rank != t.rank {
        return Err(Fault::new(
            FaultKind::TensorMap,
            format!("the map has rank {} and the instruction rank {}", map.rank, t.rank),
        ));
    }
    let mut coords = [0i32; 5];
    for (c, s) in coords.iter_mut().zip(&t.coords) {
        *c = warp.value(*s, l) as i32;
    }
    let first = i64::from(coords[0]) * map.element.bytes() as i64;
    if first % 16 != 0 {
        return Err(Fault::new(
            FaultKind::Misaligned,
            format!("the box begins {first} bytes into a row: the copy engine begins at multiples of 16"),
        ));
    }
    let bytes = map.box_bytes();
    let swizzle = map.swizzle;
    if let Some(mbar) = &t.mbar {
        let (cta, offset) = shared_at(warp, cx, &t.shared, Space::Cluster, l)?;
        check_alignment(u64::from(offset), 128)?;
        let (mbar_cta, at) = shared_at(warp, cx, mbar, Space::Cluster, l)?;
        check_alignment(u64::from(at), 8)?;
        let ranks = receivers(warp, cx, t.multicast, cta, l)?;
        // A multicast copy reports to the same offset in every receiver.
        let owner = if t.multicast.is_some() { None } else { Some(mbar_cta) };
        return send(
            warp,
            cx,
            pc,
            map_at,
            &Source::Tensor(map, coords),
            swizzle,
            &ranks,
            offset,
            bytes,
            at,
            owner,
            None,
        );
    }
    let (cta, offset) = shared_at(warp, cx, &t.shared, Space::Shared, l)?;
    check_alignment(u64::from(offset), 128)?;
    cx.shared_range(cta, offset, bytes)?;
    store(warp, cx, pc, l, map_at, swizzle, (cta, offset, bytes), Target::Tensor(map, coords, t.reduce))
}

#[allow(clippy::too_many_arguments)]
fn store(
    warp: &mut Warp,
    cx: &mut Cx<'_>,
    pc: u32,
    l: usize,
    map: Option<u64>,
    swizzle: Swizzle,
    (cta, offset, bytes): (usize, u32, u32),
    target: Target,
) -> Result<(), Fault> {
    let (event, tick) = cx.store_event(warp.index, pc);
    cx.shadow_async(event, None, std::iter::once(span(swizzle, offset, bytes)), cta, false)?;
    let write = Event { strong: target.reduces().then_some(Scope::Gpu), ..Hazards::bulk_write(event) };
    match &target {
        Target::Tensor(map, coords, _) => cx.shadow_global_async(write, None, ranges(map, *coords), true)?,
        Target::Global(a, _) => {
            cx.shadow_global_async(write, None, std::iter::once((*a, u64::from(bytes))), true)?;
        }
        Target::Masked(a, mask) => {
            let written = (0..u64::from(bytes)).filter(|i| mask >> (i % 16) & 1 == 1);
            cx.shadow_global_async(write, None, written.map(|i| (a + i, 1)), true)?;
        }
    }
    let id = cx.submit(warp.index, pc, map, Kind::Store { cta, offset, bytes, target, data: None })?;
    let g = warp.bulk.entry(l as u32).or_default();
    g.open.push(id);
    g.newest = tick;
    g.last_pc = pc;
    Ok(())
}

fn bulk(warp: &mut Warp, cx: &mut Cx<'_>, b: &BulkCopy, pc: u32, l: usize) -> Result<(), Fault> {
    let bytes = warp.value(b.size, l) as u32;
    if !bytes.is_multiple_of(16) || bytes == 0 {
        return Err(Fault::new(
            FaultKind::BadOperand,
            format!("a bulk copy of {bytes} bytes: the size is a multiple of 16"),
        ));
    }
    let global = |warp: &Warp, cx: &Cx<'_>, a: &Addr| -> Result<u64, Fault> {
        let a = address(warp, a, Space::Generic, l);
        check_alignment(a, 16)?;
        match cx.resolve(warp, Space::Generic, a)? {
            Location::Global(a) => Ok(a),
            _ => Err(Fault::new(FaultKind::BadOperand, format!("{a:#x} is not a global address"))),
        }
    };
    if b.reduce.is_some_and(|r| !reducible(r)) {
        return Err(Fault::new(FaultKind::BadOperand, "this reduction does not exist for the type"));
    }
    if b.way == BulkWay::SharedToGlobal {
        let (cta, offset) = shared_at(warp, cx, &b.src, Space::Shared, l)?;
        check_alignment(u64::from(offset), 16)?;
        cx.shared_range(cta, offset, bytes)?;
        let to = global(warp, cx, &b.dst)?;
        let target = match b.mask {
            Some(mask) => Target::Masked(to, warp.value(mask, l) as u16),
            None => Target::Global(to, b.reduce),
        };
        return store(warp, cx, pc, l, None, Swizzle::None, (cta, offset, bytes), target);
    }
    let (cta, offset) = shared_at(warp, cx, &b.dst, Space::Cluster, l)?;
    check_alignment(u64::from(offset), 16)?;
    let Some(mbar) = &b.mbar else { return Ok(()) };
    let (owner, at) = shared_at(warp, cx, mbar, Space::Cluster, l)?;
    check_alignment(u64::from(at), 8)?;
    let ranks = receivers(warp, cx, b.multicast, cta, l)?;
    let owner = if b.multicast.is_some() { None } else { Some(owner) };
    let source = if b.way == BulkWay::GlobalToShared {
        Source::Global(global(warp, cx, &b.src)?)
    } else {
        let (c, o) = shared_at(warp, cx, &b.src, Space::Shared, l)?;
        check_alignment(u64::from(o), 16)?;
        cx.shared_range(c, o, bytes)?;
        Source::Shared(c, o)
    };
    send(warp, cx, pc, None, &source, Swizzle::None, &ranks, offset, bytes, at, owner, b.reduce)
}

fn bulk_wait(warp: &mut Warp, cx: &mut Cx<'_>, pending: u32, read: bool, active: u32) -> Result<Next, Fault> {
    let mut ids = Vec::new();
    for l in lanes(active) {
        if let Some(g) = warp.bulk.get(&(l as u32)) {
            let old = g.groups.len().saturating_sub(pending as usize);
            ids.extend(g.groups.iter().take(old).skip(if read { g.read } else { 0 }).flatten().copied());
        }
    }
    if !cx.copies_done(&ids, read) {
        return Ok(Next::Retry(Wait::Copies(ids, read)));
    }
    let mut done = |unit: Unit, tick: u32| {
        if let Some(h) = &mut cx.cluster.hazards {
            h.completed(warp.index, Hazards::agent(warp.index, unit), tick);
        }
    };
    for l in lanes(active) {
        let Some(g) = warp.bulk.get_mut(&(l as u32)) else { continue };
        let old = g.groups.len().saturating_sub(pending as usize);
        let Some(&tick) = old.checked_sub(1).and_then(|last| g.ticks.get(last)) else { continue };
        done(Unit::BulkStore, tick);
        if read {
            g.read = g.read.max(old);
        } else {
            done(Unit::BulkWrite, tick);
            g.groups.drain(..old);
            g.ticks.drain(..old);
            g.read = g.read.saturating_sub(old);
        }
    }
    Ok(Next::Step)
}

/// `st.async` and `red.async`: values that land in a peer's shared memory and report to its mbarrier.
fn store_async(warp: &mut Warp, cx: &mut Cx<'_>, op: &Op, pc: u32, active: u32) -> Result<(), Fault> {
    let Op::StAsync { addr, mbar, src, bytes, reduce } = op else { return Ok(()) };
    for l in lanes(active) {
        let (cta, offset) = shared_at(warp, cx, addr, Space::Cluster, l)?;
        let (owner, at) = shared_at(warp, cx, mbar, Space::Cluster, l)?;
        if owner != cta {
            return Err(Fault::new(
                FaultKind::BadOperand,
                "the mbarrier is not in the CTA of the destination",
            ));
        }
        let total = *bytes * src.len() as u32;
        check_alignment(u64::from(offset), total)?;
        cx.shared_range(cta, offset, total)?;
        cx.mbar(warp.index, owner, at, false)?;
        // Ordered by the mbarrier's phase like a copy, but through the generic proxy.
        let event = Event {
            proxy: Proxy::Generic,
            strong: reduce.is_some().then_some(Scope::Gpu),
            ..cx.copy_event(warp.index, pc, (owner, at))
        };
        cx.shadow_async(event, None, std::iter::once((offset, total)), cta, true)?;
        let values = src.iter().map(|s| warp.value(*s, l)).collect();
        let kind = Kind::Words { cta, offset, values, bytes: *bytes, reduce: *reduce, mbar: (owner, at) };
        cx.submit(warp.index, pc, None, kind)?;
    }
    Ok(())
}
