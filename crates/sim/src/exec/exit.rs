//! The end of warps and CTAs: nothing may be left in flight, and no peer may come too late.

use super::context::Cx;
use super::control;
use super::warp::Warp;
use crate::error::{Fault, FaultKind};
use crate::units::copy::Kind;
use crate::units::copy::{CopyGroups, LaneGroups};

/// A warp has exited: what it leaves behind must be complete.
pub(crate) fn leave(warp: &mut Warp, cx: &mut Cx<'_>) -> Result<(), Fault> {
    let pc = warp.left_at;
    cx.cluster.ctas[warp.env.rank as usize].left = (warp.index, pc);
    let rank = warp.env.rank as usize;
    let at = (warp.index, pc);
    let index = warp.index;
    let in_flight = |message: &str, other: u32, cx: &Cx<'_>| {
        let mut fault = Fault::new(FaultKind::WorkInFlight, message);
        fault.other = Some(Box::new(cx.place(index, other)));
        fault
    };
    if cx.options.hazards {
        control::expect_same_registers(warp, cx)?;
        let w = &warp.wgmma;
        if w.open > 0 || w.committed > w.waited && w.issued > 0 {
            let last = w.last_pc;
            cx.hazard(FaultKind::WorkInFlight, at, Some(last), |cx| {
                in_flight("a warp exits without waiting for its wgmma", last, cx)
            })?;
        }
        let unread =
            |g: &&CopyGroups| !g.open.is_empty() || g.groups.iter().skip(g.read).any(|x| !x.is_empty());
        // Copies in a group that nobody waits for must at least be complete, unless an mbarrier counts them.
        let forgotten = |part: &LaneGroups| {
            let tracked = |id: &u64| *id <= part.tracked;
            let grouped = part.groups.iter().flat_map(|group| &group.1).copied();
            !part.open.iter().chain(&grouped.collect::<Vec<_>>()).all(tracked)
        };
        if warp.cp_async.parts().any(forgotten) {
            let last = warp.cp_async.last_pc;
            cx.hazard(FaultKind::WorkInFlight, at, Some(last), |cx| {
                let message = "a thread exits without waiting for its cp.async (commit_group and wait_group)";
                in_flight(message, last, cx)
            })?;
        }
        // Shared memory stays with the CTA until its bulk stores have read it.
        if let Some(last) = warp.bulk.values().find(unread).map(|g| g.last_pc) {
            cx.remark(FaultKind::WorkInFlight, at, Some(last), |cx| {
                let message =
                    "a thread exits without waiting for its bulk stores (commit_group and wait_group.read)";
                in_flight(message, last, cx)
            })?;
        }
    }
    while !warp.wgmma.queue.is_empty() {
        cx.wgmma_execute(warp)?;
    }
    let open = cx.cluster.hazards.as_ref().and_then(|h| h.tensor_moves_open(warp.index));
    if let Some((issued, store)) = open {
        cx.hazard(FaultKind::WorkInFlight, at, Some(issued), |cx| {
            let what = if store { "st" } else { "ld" };
            let message =
                format!("a warp exits without waiting for its tcgen05.{what} (tcgen05.wait::{what})");
            in_flight(&message, issued, cx)
        })?;
    }
    if let Some(h) = &mut cx.cluster.hazards {
        h.exit_warp(warp.index, rank);
    }
    let cta = &mut cx.cluster.ctas[rank];
    cta.live_warps -= 1;
    if cta.live_warps == 0 {
        exit_cta(cx, rank)?;
    }
    for id in 0..16 {
        cx.cluster.settle_named(rank, id);
    }
    cx.cluster.settle_barrier();
    Ok(())
}

/// The last warp of a CTA has exited: its shared memory is gone.
fn exit_cta(cx: &mut Cx<'_>, rank: usize) -> Result<(), Fault> {
    let touches = |k: &Kind| match k {
        Kind::Load { cta, source, .. } => {
            *cta == rank || matches!(source, crate::units::copy::Source::Shared(c, _) if *c == rank)
        }
        Kind::Store { cta, data: None, .. } => *cta == rank,
        Kind::Store { .. } => false,
        Kind::CpAsync(list) => list.iter().any(|c| c.cta == rank),
        Kind::Arrive { mbar, .. } => mbar.0 == rank,
        Kind::Words { cta, .. } => *cta == rank,
    };
    while let Some(i) = cx.cluster.pending.iter().position(|p| touches(&p.kind)) {
        let p = &cx.cluster.pending[i];
        // A bulk store takes its source with it: the thread that left it behind has been told.
        let (at, store) = ((p.warp, p.pc), matches!(p.kind, Kind::Store { .. }));
        if cx.options.hazards && !store {
            cx.hazard(FaultKind::WorkInFlight, at, None, |cx| {
                let mut f = Fault::new(
                    FaultKind::WorkInFlight,
                    format!(
                        "CTA {} exits while this copy or arrival uses its shared memory",
                        cx.cluster.ctas[rank].index
                    ),
                );
                f.other = Some(Box::new(cx.exit_place(rank)));
                f.notes = cx.barrier_notes(rank);
                f
            })?;
        }
        cx.perform(i)?;
    }
    let busy = cx.cluster.ctas[rank].mbars.iter().find(|(_, m)| m.issued > 0).map(|(at, m)| (*at, m.last));
    if let Some((mbar, last)) = busy.filter(|_| cx.options.hazards) {
        let left = cx.cluster.ctas[rank].left;
        cx.hazard(FaultKind::WorkInFlight, left, Some(last.1), |cx| {
            let mut f = Fault::new(
                FaultKind::WorkInFlight,
                format!(
                    "CTA {} exits in the middle of a phase of {} that copies report to",
                    cx.cluster.ctas[rank].index,
                    cx.mbar_name(mbar)
                ),
            );
            f.other = Some(Box::new(cx.place(last.0, last.1)));
            f.notes.push(cx.mbar_state(rank, mbar));
            f
        })?;
    }
    exit_tensor(cx, rank)?;
    check_peers(cx, rank)?;
    cx.cluster.ctas[rank].exited = true;
    Ok(())
}

/// Work of the tensor core is over, and tensor memory is given back.
fn exit_tensor(cx: &mut Cx<'_>, rank: usize) -> Result<(), Fault> {
    let index = cx.cluster.ctas[rank].index;
    let in_flight = cx.cluster.tensor_work.of_cta(rank).map(|i| &cx.cluster.tensor_work.work[i]);
    let in_flight = in_flight.filter(|_| cx.options.hazards).map(|w| (w.warp, w.pc));
    let unfinished = cx.cluster.hazards.as_ref().and_then(|h| h.tensor_unfinished(rank));
    if let Some(at) = in_flight.or(unfinished) {
        cx.hazard(FaultKind::WorkInFlight, at, None, |cx| {
            let message = format!(
                "CTA {index} exits and none of its warps has waited for this work of the tensor core"
            );
            let mut fault = Fault::new(FaultKind::WorkInFlight, message);
            fault.other = Some(Box::new(cx.exit_place(rank)));
            fault.notes = cx.barrier_notes(rank);
            fault
        })?;
    }
    while cx.cluster.tensor_work.of_cta(rank).is_some()
        && let Some(next) = cx.cluster.tensor_work.first()
    {
        cx.perform_work(next)?;
    }
    let kept = cx.cluster.ctas[rank].tensor.as_ref().and_then(|t| t.allocations.first().copied());
    if let Some(a) = kept.filter(|_| cx.options.hazards) {
        cx.hazard(FaultKind::TensorMemory, a.by, None, |cx| {
            let last = a.column + a.columns - 1;
            let mut fault = Fault::new(
                FaultKind::TensorMemory,
                format!(
                    "CTA {index} exits with columns {} to {last} of tensor memory allocated: they are never freed",
                    a.column
                ),
            );
            fault.other = Some(Box::new(cx.exit_place(rank)));
            fault
        })?;
    }
    Ok(())
}

/// Nothing that a peer does with this CTA's shared memory may come after its exit: some warp of the CTA
/// must have waited for each remote access and arrival.
fn check_peers(cx: &mut Cx<'_>, rank: usize) -> Result<(), Fault> {
    let Some(h) = &cx.cluster.hazards else { return Ok(()) };
    if cx.cluster.ctas.len() == 1 {
        return Ok(());
    }
    let index = cx.cluster.ctas[rank].index;
    let access =
        h.exit_cta(rank, cx.cluster.warps_per_cta).map(|e| (e.warp, e.pc, "access to its shared memory"));
    let arrival = || {
        let remote = cx.cluster.ctas[rank].mbars.values().flat_map(|m| &m.remote);
        remote
            .filter(|(agent, tick, ..)| !h.exit_covers(rank, *agent, *tick))
            .map(|r| (r.2, r.3, "arrival at its mbarrier"))
            .next()
    };
    let Some((warp, pc, what)) = access.or_else(arrival) else { return Ok(()) };
    cx.hazard(FaultKind::PeerExited, (warp, pc), None, |cx| {
        let mut fault = Fault::new(
            FaultKind::PeerExited,
            format!("CTA {index} exits and none of its warps has waited for this {what} by a peer"),
        );
        fault.other = Some(Box::new(cx.exit_place(rank)));
        fault.notes = cx.barrier_notes(rank);
        fault
    })
}
