//! Bulk copies: issue, groups and prefetches; `st.async` and `red.async`.

use super::access::Location;
use super::context::Cx;
use super::memory::{address, check_alignment};
use super::warp::{Wait, Warp};
use super::{Issue, Next, tensor_copy};
use crate::decode::copy::{BulkCopy, BulkDirection, CopyOp};
use crate::decode::isa::{Addr, Src};
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Hazards, Proxy, Scope, Unit};
use crate::lanes::lanes;
use crate::record::{Deed, Work};
use crate::text::ast::Space;
use crate::text::types::Ty;
use crate::units::atomic::AtomFn;
use crate::units::copy::{BulkReduce, Kind, Source, Target};
use crate::units::tensormap::{Swizzle, TENSOR_MAP_BYTES};
use crate::units::tma::pieces;

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &CopyOp, at: Issue) -> Result<Next, Fault> {
    if let CopyOp::Wait { pending, read } = op {
        return bulk_wait(warp, cx, *pending, *read, at.active);
    }
    for l in lanes(at.active) {
        match op {
            CopyOp::Tensor(t) => tensor_copy::issue(warp, cx, t, at.pc, l)?,
            CopyOp::Bulk(b) => bulk(warp, cx, b, at.pc, l)?,
            CopyOp::Commit => {
                cx.record(warp.index, 1 << l, Deed::Group(Work::BulkStore));
                let g = warp.bulk.entry(l as u32).or_default();
                let open = std::mem::take(&mut g.open);
                g.groups.push_back(open);
                g.ticks.push_back(g.newest);
            }
            CopyOp::Prefetch { addr, size } => {
                let bytes = warp.value(*size, l) as u32;
                prefetch(warp, cx, addr, bytes as usize, l)?;
            }
            CopyOp::PrefetchMap { map } => prefetch(warp, cx, map, TENSOR_MAP_BYTES, l)?,
            CopyOp::StoreAsync { addr, mbar, src, bytes, reduce } => {
                let values = src.iter().map(|s| warp.value(*s, l)).collect();
                let words = Words { addr, mbar, values, bytes: *bytes, reduce: *reduce };
                store_async(warp, cx, words, at.pc, l)?;
            }
            CopyOp::Wait { .. } => {}
        }
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
pub(super) fn receivers(
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

/// The mbarriers that a load reports to.
#[derive(Clone, Copy)]
pub(super) enum Report {
    /// That of one CTA.
    To(usize),
    /// That of each receiver.
    Receiver,
    /// That of the CTA with this parity in the pair of each receiver.
    Pair(usize),
}

impl Report {
    /// The CTA whose mbarrier a receiver reports to.
    fn of(self, receiver: usize) -> usize {
        match self {
            Report::To(cta) => cta,
            Report::Receiver => receiver,
            Report::Pair(parity) => receiver & !1 | parity,
        }
    }
}

/// A copy into shared memory, before it goes to its receivers.
pub(super) struct Load<'a> {
    /// The lane that issues it.
    pub(super) lane: usize,
    /// Address of the tensor map in global memory.
    pub(super) map: Option<u64>,
    pub(super) source: &'a Source,
    pub(super) swizzle: Swizzle,
    /// Ranks of the receiving CTAs.
    pub(super) ranks: &'a [usize],
    pub(super) offset: u32,
    pub(super) bytes: u32,
    /// Offset of the mbarrier.
    pub(super) mbar: u32,
    pub(super) report: Report,
    pub(super) reduce: Option<BulkReduce>,
}

/// Sends a load to its receivers.
pub(super) fn send(warp: &Warp, cx: &mut Cx<'_>, pc: u32, load: Load<'_>) -> Result<(), Fault> {
    let Load { lane, map, source, swizzle, ranks, offset, bytes, mbar, report, reduce } = load;
    // Every receiver is checked before anything moves.
    for &cta in ranks {
        let owner = report.of(cta);
        if owner >= cx.cluster.ctas.len() {
            return Err(Fault::new(
                FaultKind::BadOperand,
                format!(
                    "CTA {cta} of the cluster has no peer: a cluster of pairs has an even number of CTAs"
                ),
            ));
        }
        cx.shared_range(cta, offset, bytes)?;
        cx.shared_range(owner, mbar, 8)?;
        cx.mbar(warp.index, owner, mbar, true)?;
        let work = Work::Reports(owner as u32, mbar, cx.phase_of(owner, mbar));
        cx.record_at((warp.index, pc), 1 << lane, Deed::Issue(work));
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
            Source::Global(a, [left, right]) => {
                let read = (a + u64::from(*left), u64::from(bytes - left - right));
                cx.shadow_global_async(event, None, std::iter::once(read), false)?;
            }
            Source::Tensor(part) => cx.shadow_global_async(event, None, part.ranges(), false)?,
        }
    }
    cx.report.traffic.read += u64::from(match source {
        Source::Tensor(part) => part.counted(),
        Source::Global(..) => bytes,
        Source::Shared(..) => 0,
    });
    for &cta in ranks {
        let mbar = (report.of(cta), mbar);
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
    let low = pieces(swizzle, false, offset, bytes).map(|p| p.0).min().unwrap_or(offset);
    let high = pieces(swizzle, false, offset, bytes).map(|p| p.0 + p.2).max().unwrap_or(offset);
    (low, high - low)
}

/// A copy out of shared memory.
pub(super) struct Store {
    /// Address of the tensor map in global memory.
    pub(super) map: Option<u64>,
    pub(super) swizzle: Swizzle,
    pub(super) cta: usize,
    pub(super) offset: u32,
    pub(super) bytes: u32,
    pub(super) target: Target,
}

pub(super) fn store(warp: &mut Warp, cx: &mut Cx<'_>, pc: u32, l: usize, copy: Store) -> Result<(), Fault> {
    let Store { map, swizzle, cta, offset, bytes, target } = copy;
    let (event, tick) = cx.store_event(warp.index, pc);
    cx.record_at((warp.index, pc), 1 << l, Deed::Issue(Work::BulkStore));
    cx.shadow_async(event, None, std::iter::once(span(swizzle, offset, bytes)), cta, false)?;
    let write = Event { strong: target.reduces().then_some(Scope::Gpu), ..Hazards::bulk_write(event) };
    match &target {
        Target::Tensor(part, _) => cx.shadow_global_async(write, None, part.ranges(), true)?,
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
    if b.reduce.is_some_and(|r| !r.exists()) {
        return Err(Fault::new(FaultKind::BadOperand, "this reduction does not exist for the type"));
    }
    if b.direction == BulkDirection::SharedToGlobal {
        let (cta, offset) = shared_at(warp, cx, &b.src, Space::Shared, l)?;
        check_alignment(u64::from(offset), 16)?;
        cx.shared_range(cta, offset, bytes)?;
        let to = global(warp, cx, &b.dst)?;
        let target = match b.mask {
            Some(mask) => Target::Masked(to, warp.value(mask, l) as u16),
            None => Target::Global(to, b.reduce),
        };
        return store(
            warp,
            cx,
            pc,
            l,
            Store { map: None, swizzle: Swizzle::None, cta, offset, bytes, target },
        );
    }
    let (cta, offset) = shared_at(warp, cx, &b.dst, Space::Cluster, l)?;
    check_alignment(u64::from(offset), 16)?;
    let Some(mbar) = &b.mbar else { return Ok(()) };
    let (owner, at) = shared_at(warp, cx, mbar, Space::Cluster, l)?;
    check_alignment(u64::from(at), 8)?;
    let ranks = receivers(warp, cx, b.multicast, cta, l)?;
    let report = if b.multicast.is_some() { Report::Receiver } else { Report::To(owner) };
    let source = if b.direction == BulkDirection::GlobalToShared {
        let edges = match b.edges {
            Some((left, right)) => [warp.value(left, l) as u32, warp.value(right, l) as u32],
            None => [0; 2],
        };
        if edges.iter().any(|n| *n > 15) {
            return Err(Fault::new(
                FaultKind::BadOperand,
                format!("{edges:?} bytes that may lie out of bounds: at most 15 at either end"),
            ));
        }
        Source::Global(global(warp, cx, &b.src)?, edges)
    } else {
        let (c, o) = shared_at(warp, cx, &b.src, Space::Shared, l)?;
        check_alignment(u64::from(o), 16)?;
        cx.shared_range(c, o, bytes)?;
        Source::Shared(c, o)
    };
    let load = Load {
        lane: l,
        map: None,
        source: &source,
        swizzle: Swizzle::None,
        ranks: &ranks,
        offset,
        bytes,
        mbar: at,
        report,
        reduce: b.reduce,
    };
    send(warp, cx, pc, load)
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
    let deed = Deed::GroupWait { work: Work::BulkStore, pending: Some(pending), read };
    cx.record(warp.index, active, deed);
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

/// The words of a `st.async` or `red.async`.
struct Words<'a> {
    addr: &'a Addr,
    mbar: &'a Addr,
    values: Vec<u64>,
    /// Width of a word.
    bytes: u32,
    reduce: Option<(AtomFn, Ty)>,
}

/// `st.async` and `red.async`: values that land in a peer's shared memory and report to its mbarrier.
fn store_async(warp: &Warp, cx: &mut Cx<'_>, words: Words<'_>, pc: u32, l: usize) -> Result<(), Fault> {
    let Words { addr, mbar, values, bytes, reduce } = words;
    let (cta, offset) = shared_at(warp, cx, addr, Space::Cluster, l)?;
    let (owner, at) = shared_at(warp, cx, mbar, Space::Cluster, l)?;
    if owner != cta {
        return Err(Fault::new(FaultKind::BadOperand, "the mbarrier is not in the CTA of the destination"));
    }
    let total = bytes * values.len() as u32;
    check_alignment(u64::from(offset), total)?;
    cx.shared_range(cta, offset, total)?;
    cx.mbar(warp.index, owner, at, false)?;
    // Ordered by the mbarrier's phase like a copy, but through the generic proxy.
    let work = Work::Reports(owner as u32, at, cx.phase_of(owner, at));
    cx.record_at((warp.index, pc), 1 << l, Deed::Issue(work));
    let event = Event {
        proxy: Proxy::Generic,
        strong: reduce.is_some().then_some(Scope::Gpu),
        ..cx.copy_event(warp.index, pc, (owner, at))
    };
    cx.shadow_async(event, None, std::iter::once((offset, total)), cta, true)?;
    cx.submit(warp.index, pc, None, Kind::Words { cta, offset, values, bytes, reduce, mbar: (owner, at) })?;
    Ok(())
}
