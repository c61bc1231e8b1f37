//! `cp.async`: copies of single threads, their groups, and arrivals behind them.

use super::context::Cx;
use super::copy::shared_at;
use super::memory::{address, check_alignment};
use super::warp::{Wait, Warp};
use super::{Issue, Next};
use crate::decode::cp_async::CpAsyncOp;
use crate::error::{Fault, FaultKind};
use crate::hazard::{Event, Hazards, Proxy, Scope, Unit, View};
use crate::lanes::lanes;
use crate::record::{Deed, Work};
use crate::text::ast::Space;
use crate::units::copy::{Kind, LaneCopy, LaneGroups};

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &CpAsyncOp, at: Issue) -> Result<Next, Fault> {
    match op {
        CpAsyncOp::Copy { .. } => copy(warp, cx, op, at)?,
        CpAsyncOp::Commit => {
            cx.record(warp.index, at.active, Deed::Group(Work::CpAsync));
            commit(warp, at.active);
        }
        CpAsyncOp::Wait { pending } => return wait(warp, cx, *pending, at.active),
        CpAsyncOp::Arrive { .. } => arrive(warp, cx, op, at)?,
    }
    Ok(Next::Step)
}

/// Issues the copies of these lanes.
fn copy(warp: &mut Warp, cx: &mut Cx<'_>, op: &CpAsyncOp, at: Issue) -> Result<(), Fault> {
    let Issue { pc, active, .. } = at;
    let CpAsyncOp::Copy { dst, src, bytes, src_bytes, ignore } = op else { return Ok(()) };
    warp.cp_async.newest += 1;
    let tick = warp.cp_async.newest;
    // cp.async works in the generic proxy, asynchronously.
    let event = Event {
        agent: Hazards::agent(warp.index, Unit::CpAsync),
        tick,
        proxy: Proxy::Generic,
        strong: None,
        warp: warp.index,
        pc,
    };
    let mut list = Vec::new();
    for l in lanes(active) {
        let (cta, offset) = shared_at(warp, cx, dst, Space::Shared, l)?;
        check_alignment(u64::from(offset), *bytes)?;
        cx.shared_range(cta, offset, *bytes)?;
        let global = address(warp, src, Space::Global, l);
        check_alignment(global, *bytes)?;
        let mut valid = src_bytes.map_or(*bytes, |s| warp.value(s, l) as u32);
        if ignore.is_some_and(|p| warp.value(p, l) & 1 == 1) {
            valid = 0;
        }
        if valid > *bytes {
            return Err(Fault::new(
                FaultKind::BadOperand,
                format!("{valid} source bytes of a copy of {bytes}"),
            ));
        }
        cx.record(warp.index, 1 << l, Deed::Issue(Work::CpAsync));
        cx.shadow_async(event, Some(l), std::iter::once((offset, *bytes)), cta, true)?;
        cx.shadow_global_async(event, Some(l), std::iter::once((global, u64::from(valid))), false)?;
        list.push(LaneCopy { cta, offset, global, bytes: *bytes, valid });
    }
    let id = cx.submit(warp.index, pc, None, Kind::CpAsync(list))?;
    warp.cp_async.of(active).for_each(|(_, part)| part.open.push(id));
    warp.cp_async.last_pc = pc;
    Ok(())
}

/// The copies of these lanes that no group has become one.
fn commit(warp: &mut Warp, active: u32) {
    let newest = warp.cp_async.newest;
    for (_, part) in warp.cp_async.of(active) {
        let open = std::mem::take(&mut part.open);
        part.groups.push_back((newest, open));
    }
}

/// Waits for groups, or (`None`) for all copies.
fn wait(warp: &mut Warp, cx: &mut Cx<'_>, pending: Option<u32>, active: u32) -> Result<Next, Fault> {
    // `wait_all` also waits for copies that no group has.
    let old = |part: &LaneGroups| part.groups.len().saturating_sub(pending.unwrap_or(0) as usize);
    let newest = warp.cp_async.newest;
    let mut ids: Vec<u64> = Vec::new();
    for (_, part) in warp.cp_async.of(active) {
        ids.extend(part.groups.iter().take(old(part)).flat_map(|group| &group.1));
        if pending.is_none() {
            ids.extend(&part.open);
        }
    }
    if !cx.copies_done(&ids, false) {
        return Ok(Next::Retry(Wait::Copies(ids, false)));
    }
    cx.record(warp.index, active, Deed::GroupWait { work: Work::CpAsync, pending, read: false });
    for (lanes, part) in warp.cp_async.of(active) {
        let mut tick = part.groups.drain(..old(part)).next_back().map_or(0, |group| group.0);
        if pending.is_none() {
            part.open.clear();
            tick = newest;
        }
        if let Some(h) = &mut cx.cluster.hazards {
            h.select(*lanes, warp.exited);
            h.copied(warp.index, tick);
        }
    }
    warp.cp_async.merge();
    Ok(Next::Step)
}

/// `cp.async.mbarrier.arrive`: an arrival once the copies so far are complete, each lane's for its own.
fn arrive(warp: &mut Warp, cx: &mut Cx<'_>, op: &CpAsyncOp, at: Issue) -> Result<(), Fault> {
    let Issue { pc, active, .. } = at;
    let CpAsyncOp::Arrive { addr, space, noinc } = op else { return Ok(()) };
    let tick = warp.cp_async.newest;
    let mut released = View::default();
    if let Some(h) = &mut cx.cluster.hazards {
        h.release(warp.index, true, Scope::Cta, &mut released);
    }
    for l in lanes(active) {
        let mbar = shared_at(warp, cx, addr, *space, l)?;
        let (name, phase) = ((mbar.0 as u32, mbar.1), cx.phase_of(mbar.0, mbar.1));
        cx.record(warp.index, 1 << l, Deed::ArriveBehindCopies { mbar: name, phase });
        let m = cx.mbar(warp.index, mbar.0, mbar.1, false)?;
        if !*noinc {
            m.pending += 1;
        }
        let mut view = released.clone();
        if let Some(h) = &mut cx.cluster.hazards {
            view.raise(h.copies_of(warp.index, l), tick);
        }
        let mut after = Vec::new();
        for (_, part) in warp.cp_async.of(1 << l) {
            after.extend(part.all());
            part.tracked = after.iter().copied().max().unwrap_or(part.tracked);
        }
        after.retain(|id| !cx.copies_done(&[*id], false));
        cx.submit(warp.index, pc, None, Kind::Arrive { mbar, after, view })?;
    }
    Ok(())
}
