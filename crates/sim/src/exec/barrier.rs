//! Named barriers and the cluster barrier.

use super::aligned::{aligned, converged};
use super::cluster::Cta;
use super::context::Cx;
use super::warp::{Wait, Warp};
use super::{Issue, Next, together};
use crate::decode::barrier::BarrierOp;
use crate::decode::collective::Vote;
use crate::decode::isa::Src;
use crate::error::{Fault, FaultKind};
use crate::hazard::{Hazards, Scope};
use crate::lanes::lanes;
use crate::record::Deed;

pub(super) fn execute(warp: &mut Warp, cx: &mut Cx<'_>, op: &BarrierOp, at: Issue) -> Result<Next, Fault> {
    let active = at.active;
    match op {
        BarrierOp::Named { id, threads, aligned: is_aligned, arrive_only } => {
            if *is_aligned {
                together!(aligned(warp, cx, at));
                converged(warp, cx, active);
            }
            let id = arrive(warp, cx, (*id, *threads), at, !*arrive_only)?;
            if *arrive_only {
                settle(warp, cx, id);
                return Ok(Next::Step);
            }
            let generation = cx.cluster.ctas[warp.env.rank as usize].bars[id].generation;
            settle(warp, cx, id);
            Ok(Next::Advance(Wait::Bar { id, generation }))
        }
        BarrierOp::Reduce { .. } => reduce(warp, cx, op, at),
        BarrierOp::ClusterArrive { release, aligned: is_aligned } => {
            if *is_aligned {
                together!(aligned(warp, cx, at));
                converged(warp, cx, active);
            }
            for l in lanes(active) {
                if warp.cluster_arrivals[l] > warp.cluster_waits[l] {
                    return Err(Fault::new(
                        FaultKind::OverArrival,
                        format!("lane {l} arrives twice at the cluster barrier without a wait between"),
                    ));
                }
                warp.cluster_arrivals[l] += 1;
            }
            let phase = cx.cluster.barrier.phase + 1;
            cx.record(warp.index, active, Deed::ClusterArrive { phase, release: *release });
            cx.cluster.barrier.arrived += active.count_ones();
            if let Some(h) = &mut cx.cluster.hazards {
                h.pass(warp.index, &mut cx.cluster.barrier.passing);
                h.release(warp.index, *release, Scope::Cluster, &mut cx.cluster.barrier.view);
                // A relaxed arrival still says that what the lanes have read or waited for is over.
                if !*release {
                    h.release_nothing(warp.index, &mut cx.cluster.barrier.view);
                }
            }
            *cx.progress += 1;
            cx.cluster.settle_barrier();
            Ok(Next::Step)
        }
        BarrierOp::ClusterWait { acquire, aligned: is_aligned } => {
            if *is_aligned {
                together!(aligned(warp, cx, at));
                converged(warp, cx, active);
            }
            if let Some(l) = lanes(active).find(|l| warp.cluster_arrivals[*l] == 0) {
                return Err(Fault::new(
                    FaultKind::BadOperand,
                    format!("lane {l} waits at the cluster barrier and has never arrived"),
                ));
            }
            if lanes(active).any(|l| cx.cluster.barrier.phase < warp.cluster_arrivals[l]) {
                return Ok(Next::Retry(Wait::Cluster));
            }
            lanes(active).for_each(|l| warp.cluster_waits[l] = warp.cluster_arrivals[l]);
            let phase = cx.cluster.barrier.phase;
            cx.record(warp.index, active, Deed::ClusterWait { phase, acquire: *acquire });
            if let Some(h) = &mut cx.cluster.hazards {
                h.passed(warp.index, &cx.cluster.barrier.passed);
                h.acquire(warp.index, *acquire, Scope::Cluster, &cx.cluster.barrier.done);
            }
            Ok(Next::Step)
        }
    }
}

fn settle(warp: &Warp, cx: &mut Cx<'_>, id: usize) {
    *cx.progress += 1;
    cx.cluster.settle_named(warp.env.rank as usize, id);
}

/// Counts the arrival of these lanes at a named barrier.
fn arrive(
    warp: &Warp,
    cx: &mut Cx<'_>,
    (id, threads): (Src, Option<Src>),
    at: Issue,
    waits: bool,
) -> Result<usize, Fault> {
    let Issue { pc, active, .. } = at;
    let bad = |m: String| Err(Fault::new(FaultKind::BadOperand, m));
    let (Some(id), Some(count)) =
        (warp.uniform(id, active), threads.map_or(Some(0), |t| warp.uniform(t, active)))
    else {
        return bad("the lanes name different barriers or counts".into());
    };
    let (id, count) = (id as u32 as usize, count as u32);
    if id >= 16 {
        return bad(format!("barrier {id} does not exist: a CTA has 16"));
    }
    if threads.is_some() && (count == 0 || count % 32 != 0) {
        return bad(format!("the thread count {count} of barrier {id} is not a multiple of 32"));
    }
    let rank = warp.env.rank as usize;
    let all = cx.cluster.ctas[rank].live_warps * 32;
    let block = warp.env.warps * 32;
    if count > block {
        return bad(format!("barrier {id} expects {count} threads of a CTA of {block}"));
    }
    let whole = threads.is_none();
    let expected = if whole { all } else { count };
    // Lanes that exited, or that the block never had, count with their warp.
    let arriving = if active | warp.exited == u32::MAX { 32 } else { active.count_ones() };
    let generation = cx.cluster.ctas[rank].bars[id].generation;
    cx.record_at((warp.index, pc), active, Deed::Bar { id: id as u32, generation, waits });
    let Cluster { ctas, hazards } = split(cx);
    let b = &mut ctas[rank].bars[id];
    if b.expected != 0 && b.expected != expected && !(b.whole && whole) {
        let (other, pc) = (b.expected, b.last_pc);
        let mut fault = Fault::new(
            FaultKind::BadOperand,
            format!("barrier {id} is used with {expected} threads while others expect {other}"),
        );
        fault.other = Some(Box::new(cx.place(warp.index, pc)));
        return Err(fault);
    }
    if b.expected == 0 {
        b.votes = (false, true, 0);
    }
    b.expected = expected;
    b.whole = whole;
    b.last_pc = pc;
    b.arrived += arriving;
    if b.arrived > expected {
        return Err(Fault::new(
            FaultKind::OverArrival,
            format!("{} threads arrive at barrier {id}, which expects {expected}", b.arrived),
        ));
    }
    if let Some(h) = hazards {
        h.named_barrier(warp.index, &mut b.fenced);
        h.release(warp.index, true, Scope::Cta, &mut b.view);
    }
    if waits {
        b.waiters.push((warp.index, active | warp.exited));
    }
    Ok(id)
}

/// The parts of a cluster that a barrier needs at once.
pub(super) struct Cluster<'c> {
    pub(super) ctas: &'c mut Vec<Cta>,
    pub(super) hazards: Option<&'c mut Hazards>,
}

pub(super) fn split<'c>(cx: &'c mut Cx<'_>) -> Cluster<'c> {
    Cluster { ctas: &mut cx.cluster.ctas, hazards: cx.cluster.hazards.as_deref_mut() }
}

/// `bar.red`: a barrier that also combines a predicate. The first pass arrives, the second takes the result.
fn reduce(warp: &mut Warp, cx: &mut Cx<'_>, op: &BarrierOp, at: Issue) -> Result<Next, Fault> {
    let active = at.active;
    let BarrierOp::Reduce { id, threads, kind, dst, src, popc } = op else { return Ok(Next::Step) };
    together!(aligned(warp, cx, at));
    converged(warp, cx, active);
    let rank = warp.env.rank as usize;
    let number = warp.uniform(*id, active).unwrap_or(u64::MAX) as u32 as usize;
    if let Some(done) = warp.bar_red.take() {
        if cx.cluster.ctas[rank].bars[number].generation == done {
            warp.bar_red = Some(done);
            return Ok(Next::Retry(Wait::BarRetry { id: number, generation: done }));
        }
        let (any, all, count) = cx.cluster.ctas[rank].bars[number].result;
        let v = match kind {
            _ if *popc => u64::from(count),
            Vote::All => u64::from(all),
            _ => u64::from(any),
        };
        lanes(active).for_each(|l| warp.set(*dst, l, v));
        return Ok(Next::Step);
    }
    let id = arrive(warp, cx, (*id, *threads), at, true)?;
    let b = &mut cx.cluster.ctas[rank].bars[id];
    for l in lanes(active) {
        let p = warp.value(*src, l) & 1 == 1;
        b.votes.0 |= p;
        b.votes.1 &= p;
        b.votes.2 += u32::from(p);
    }
    let generation = b.generation;
    warp.bar_red = Some(generation);
    settle(warp, cx, id);
    Ok(Next::Retry(Wait::BarRetry { id, generation }))
}
