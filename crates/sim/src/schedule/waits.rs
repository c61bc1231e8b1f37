//! What warps wait for, in words, and why nothing can run any more.

use super::{Grid, Shared};
use crate::error::{Fault, FaultKind, Place};
use crate::exec::context::Cx;
use crate::exec::warp::{PhaseWait, Wait, Warp};

impl Grid {
    /// What the first warp that polls, or else the first that waits, waits for.
    pub(crate) fn waits(&mut self, shared: &mut Shared<'_>) -> Option<String> {
        let mut live = std::mem::take(&mut self.live);
        let mut first: Option<(bool, String)> = None;
        for cluster in &mut live {
            let warps = std::mem::take(&mut cluster.warps);
            let cx = self.cx(cluster, shared);
            for (warp, group) in warps.iter().flat_map(|w| w.groups.iter().map(move |g| (w, g))) {
                let polls = group.wait.is_none() && warp.polled.is_some();
                if first.as_ref().is_none_or(|(polled, _)| polls && !polled) {
                    let wait = group.wait.as_ref();
                    let text = describe(warp, wait, group.timed_out, &cx, &mut Why::default());
                    first = Some((polls, text));
                }
            }
            cluster.warps = warps;
        }
        self.live = live;
        first.map(|(_, text)| text)
    }

    /// Why nothing can run.
    pub(crate) fn deadlock(&mut self, shared: &mut Shared<'_>) -> Fault {
        let mut notes = Vec::new();
        let mut why = Why::default();
        let mut at = None;
        let mut live = std::mem::take(&mut self.live);
        for cluster in &mut live {
            let mut warps = std::mem::take(&mut cluster.warps);
            let cx = self.cx(cluster, shared);
            for warp in &mut warps {
                for group in &warp.groups {
                    let place = cx.place(warp.index, group.pc);
                    let wait = describe(warp, group.wait.as_ref(), group.timed_out, &cx, &mut why);
                    if notes.len() < 64 {
                        notes.push(format!("{place}: lanes {:#010x} {wait}", group.mask));
                    }
                    if why.other.is_some() && !std::mem::replace(&mut why.placed, true) {
                        at = Some(Box::new(place.clone()));
                    }
                    at.get_or_insert_with(|| Box::new(place));
                }
            }
            cluster.warps = warps;
        }
        self.live = live;
        let (kind, message) =
            why.kind.unwrap_or((FaultKind::Deadlock, "nothing can run any more".to_owned()));
        let mut fault = Fault::new(kind, message);
        fault.at = at;
        fault.other = why.other;
        fault.notes = notes;
        fault
    }
}

/// What a warp stopped to wait for, in a few words.
pub(super) fn waits_for(wait: Option<&Wait>, cx: &Cx<'_>) -> String {
    match wait {
        None => String::new(),
        Some(Wait::Converge(_)) => "lanes of the warp".into(),
        Some(Wait::Bar { id, .. } | Wait::BarRetry { id, .. }) => format!("barrier {id}"),
        Some(Wait::Cluster) => "the cluster barrier".into(),
        Some(Wait::Mbar(list)) => {
            let mut names: Vec<String> = list.iter().map(|w| cx.shared_text(w.offset)).collect();
            names.dedup();
            names.join(", ")
        }
        Some(Wait::Wgmma(_)) => "the tensor core".into(),
        Some(Wait::Copies(..)) => "copies".into(),
        Some(Wait::Registers(need)) => format!("{need} registers"),
        Some(Wait::TensorColumns(columns, _)) => format!("{columns} columns of tensor memory"),
    }
}

/// What is known of the reason why nothing can run: the first wait that a mistake explains.
#[derive(Default)]
struct Why {
    kind: Option<(FaultKind, String)>,
    /// Who changed that barrier last.
    other: Option<Box<Place>>,
    /// The place of the wait has been taken.
    placed: bool,
}

/// What a group waits for, in words; a barrier that misses only bytes, or a wrong parity, is why.
fn describe(warp: &Warp, wait: Option<&Wait>, timed_out: bool, cx: &Cx<'_>, why: &mut Why) -> String {
    match wait {
        None if timed_out => "polls an mbarrier".into(),
        None => match warp.polled {
            Some((address, value)) => {
                format!("polls {}, which is {value:#x}", cx.global_text(address))
            }
            None => "runs without effect on anything else (it polls)".into(),
        },
        Some(Wait::Converge(need)) => format!("waits for lanes {need:#010x} to come to the same instruction"),
        Some(Wait::Bar { id, .. } | Wait::BarRetry { id, .. }) => {
            let b = &cx.cluster.ctas[warp.env.rank as usize].bars[*id];
            format!("waits at barrier {id}: {} of {} threads are there", b.arrived, b.expected)
        }
        Some(Wait::Cluster) => {
            let (arrived, live) = (cx.cluster.barrier.arrived, cx.cluster.live_threads());
            format!("waits at the cluster barrier: {arrived} of {live} threads are there")
        }
        Some(Wait::Mbar(list)) => {
            let mut text = String::from("waits for");
            for w in list.iter().take(4) {
                let Some(m) = cx.cluster.ctas[w.cta].mbars.get(&w.offset) else { continue };
                let name = cx.mbar_name(w.offset);
                let mut explain = |kind: FaultKind, message: String| {
                    if why.kind.is_none() {
                        why.kind = Some((kind, format!("nothing can run: {message}")));
                        why.other = Some(Box::new(cx.place(m.last.0, m.last.1)));
                    }
                };
                if m.tx != 0 && m.undelivered == 0 && (m.pending == 0 || m.tx < 0) {
                    explain(
                        FaultKind::TransactionCount,
                        format!("{name} misses bytes that no copy will bring"),
                    );
                } else if let PhaseWait::Parity(p) = w.phase
                    && let Some(reason) = m.wrong_parity(warp.index, p)
                {
                    explain(FaultKind::WrongParity, format!("a wait for parity {p} of {name}: {reason}"));
                }
                let phase = match w.phase {
                    PhaseWait::Parity(p) => format!("parity {p}"),
                    PhaseWait::Token(t) => format!("phase {}", t >> 32),
                };
                text += &format!(" {phase} of {}: {};", cx.mbar_name(w.offset), m.describe());
            }
            text
        }
        Some(Wait::Wgmma(n)) => {
            format!("waits for {n} wgmma groups, which need all four warps of the warpgroup")
        }
        Some(Wait::Copies(ids, _)) => format!("waits for {} copies", ids.len()),
        Some(Wait::Registers(need)) => {
            let free = cx.cluster.ctas[warp.env.rank as usize].registers.1;
            format!("waits for {need} registers: {free} have been given back")
        }
        Some(Wait::TensorColumns(columns, pair)) => {
            let missing = cx.columns_missing(warp, *columns, *pair);
            if why.kind.is_none() {
                let text = format!("nothing can run: tcgen05.alloc of {columns} columns waits, as {missing}");
                why.kind = Some((FaultKind::Deadlock, text));
            }
            format!("waits for {columns} columns of tensor memory: {missing}")
        }
    }
}
