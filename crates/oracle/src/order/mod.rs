//! Whether a recorded run would go the same way under any schedule: a second opinion on races, which shares nothing with
//! the vector clocks of the simulator.
//!
//! What a run did ([`Step`]) becomes a graph. Its nodes are the moments at which threads synchronize; an edge leads from
//! an arrival to the barrier's completion and from there to each wait behind it, and from each moment of a thread to its
//! next. An access lies between two moments of its thread. Asynchronous work lies between the moment of its issue and
//! what says that it is over: the phase of an mbarrier, the wait for its group.
//!
//! The criterion: of every two accesses to the same byte by different threads (or by asynchronous work), at least one
//! of which writes, the first is over at a moment from which a path leads to the moment before the second; where a
//! generic write meets the async proxy, a path leads through a proxy fence of one of the two threads; and where a kernel
//! has `tcgen05.fence`, accesses of different warps to tensor memory have both of them on a path. Then no schedule can
//! exchange them. Any path counts, so that an order through several barriers and threads is one.
//!
//! Beside that no mbarrier may be overtaken: an arrival at a phase comes after a path from the completion of the phase
//! before; a thread that waits for a phase knows that the one before is complete; and some arrival at the next phase
//! comes behind its wait. Then every arrival and every wait is about the same phase under every schedule.
//!
//! What orders nothing here, so that a pair that needs it is reported: relaxed operations, `fence` of the memory model,
//! atomics, the issue order of different threads' work in the tensor core.

mod graph;
mod run;

use std::collections::{BTreeSet, HashMap, HashSet};

use oxigemm_sim::{Step, Store};

use graph::Node;
use graph::Strength::{Later, Sees};
use run::{Access, Kind, Mbar, Run, Thread, Visit};

/// Bytes of a granule, which has a bit for each.
const GRANULE: u64 = 16;

/// Two instructions that nothing orders, by their lines in the PTX, and what they meet at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unordered {
    /// The line of the first.
    pub first: u32,
    /// The line of the second.
    pub second: u32,
    /// What is not ordered.
    pub what: &'static str,
}

/// A granule: its memory, and its number there.
type Granule = ((u32, Store), u64);

/// The pairs of instructions of a recorded run that nothing orders, where CTAs have this many warps.
pub fn unordered(record: &[Step], warps_per_cta: u32) -> Vec<Unordered> {
    let mut run = Run { warps_per_cta, ..Run::default() };
    for (time, step) in record.iter().enumerate() {
        run.step(time, step);
    }
    let mut found = BTreeSet::new();
    run.phases_in_order(&mut found);
    run.accesses_in_order(&mut found);
    run.exits_in_order(record.len(), &mut found);
    found.into_iter().collect()
}

impl Run {
    /// The moments at which an access is known to be over.
    fn over(&self, a: &Access) -> Vec<Node> {
        match a.kind.piece() {
            Some(piece) => {
                let piece = &self.pieces[piece as usize];
                let read = if a.write { &[][..] } else { &piece.read };
                piece.over.iter().chain(read).copied().collect()
            }
            None => {
                let next = self.threads[a.thread as usize].moments.get(a.moment as usize + 1);
                next.copied().into_iter().collect()
            }
        }
    }

    fn before(&self, a: &Access) -> Node {
        self.threads[a.thread as usize].moments[a.moment as usize]
    }

    /// What is missing between two accesses to the same bytes, if anything.
    fn missing(&mut self, a: &Access, b: &Access) -> Option<&'static str> {
        if !a.write && !b.write
            || a.write && b.same
            || a.kind.mbarrier() && b.kind.mbarrier()
            || a.kind == Kind::Strong && b.kind == Kind::Strong
        {
            return None;
        }
        let tensor_core =
            |run: &Run, x: &Access| x.kind.piece().is_some_and(|p| run.pieces[p as usize].tensor_core);
        let program_order = a.thread == b.thread
            && (a.kind.piece().is_none()
                || a.kind.piece() == b.kind.piece()
                || tensor_core(self, a) && tensor_core(self, b));
        let before = self.before(b);
        // Who writes where others have read need only come later, and so does who writes what a copy has written.
        // That columns are allocated is seen by their address.
        let columns = a.kind == Kind::Plain && matches!(a.place.1, Store::Tensor(_));
        let copied = b.write && matches!(a.kind, Kind::Work(_, true) | Kind::Address);
        let least = if a.write && !a.kind.mbarrier() && !columns && !copied { Sees } else { Later };
        let ordered = program_order
            || self.over(a).into_iter().any(|over| self.graph.reaches(over, before, least))
            || b.kind.mbarrier() && self.initialized(a, before);
        if !ordered {
            return Some("nothing orders them");
        }
        let generic = matches!(a.kind, Kind::Plain | Kind::Work(_, false));
        let through_async = matches!(b.kind, Kind::Work(_, true)) && !matches!(a.place.1, Store::Tensor(_));
        if a.write && generic && through_async && !self.fenced(a, b) {
            return Some("no proxy fence is between them");
        }
        if self.has_tensor_fences && !program_order && !self.fenced_in_tensor_memory(a, b) {
            return Some("tcgen05.fence is missing between them");
        }
        None
    }

    /// Whether two accesses to tensor memory of different warps have `tcgen05.fence` on a path: the second one's, and
    /// before it the first one's, unless that is work that a commit has ended, which is a fence as well. Allocations are no
    /// such accesses.
    fn fenced_in_tensor_memory(&mut self, a: &Access, b: &Access) -> bool {
        let asynchronous = a.kind.piece().is_some() && b.kind.piece().is_some();
        let [first, second] = [a, b].map(|x| &self.threads[x.thread as usize]);
        if !matches!(a.place.1, Store::Tensor(_)) || !asynchronous || first.warp == second.warp {
            return true;
        }
        let committed = a.kind.piece().is_some_and(|p| self.pieces[p as usize].tensor_core);
        let [own, others] = [first.tensor_fences[0].clone(), second.tensor_fences[1].clone()];
        let (over, before) = (self.over(a), self.before(b));
        let froms: Vec<Node> = match committed {
            true => over,
            false => {
                let behind = |fence: &Node| over.iter().any(|over| self.graph.reaches(*over, *fence, Later));
                own.into_iter().filter(behind).collect()
            }
        };
        others.into_iter().any(|fence| {
            self.graph.reaches(fence, before, Later)
                && froms.iter().any(|from| self.graph.reaches(*from, fence, Later))
        })
    }

    /// Whether an mbarrier's initialization is behind a fence for the cluster that comes before a moment.
    fn initialized(&mut self, a: &Access, before: Node) -> bool {
        let thread = &self.threads[a.thread as usize];
        let fence = thread.init_fences.iter().find(|f| **f > a.moment).map(|f| thread.moments[*f as usize]);
        a.kind == Kind::Plain && fence.is_some_and(|fence| self.graph.reaches(fence, before, Later))
    }

    /// Whether a proxy fence of one of the two threads lies on a path between a write and an asynchronous access.
    fn fenced(&mut self, a: &Access, b: &Access) -> bool {
        let global = a.place.1 == Store::Global;
        let moments = |thread: &Thread| -> Vec<Node> {
            let fits = |f: &&(u32, bool, bool)| if global { f.2 } else { f.1 };
            thread.fences.iter().filter(fits).map(|f| thread.moments[f.0 as usize]).collect()
        };
        let (before, over) = (self.before(b), self.over(a));
        let mut fences = moments(&self.threads[a.thread as usize]);
        fences.extend(moments(&self.threads[b.thread as usize]));
        fences.into_iter().any(|fence| {
            self.graph.reaches(fence, before, Sees)
                && over.iter().any(|over| self.graph.reaches(*over, fence, Sees))
        })
    }

    fn accesses_in_order(&mut self, found: &mut BTreeSet<Unordered>) {
        let granules = |a: &Access| a.at / GRANULE..=(a.at + a.count - 1) / GRANULE;
        let accesses: Vec<Access> = std::mem::take(&mut self.accesses);
        let written: HashSet<Granule> = accesses
            .iter()
            .filter(|a| a.write && a.count > 0)
            .flat_map(|a| granules(a).map(|g| (a.place, g)))
            .collect();
        let mut cells: HashMap<Granule, Vec<(u32, u16)>> = HashMap::new();
        for (number, b) in accesses.iter().enumerate().filter(|(_, b)| b.count > 0) {
            for granule in granules(b) {
                if !written.contains(&(b.place, granule)) {
                    continue;
                }
                let low = b.at.max(granule * GRANULE) - granule * GRANULE;
                let high = (b.at + b.count).min((granule + 1) * GRANULE) - granule * GRANULE;
                let mask = (((1u32 << (high - low)) - 1) << low) as u16;
                let cell = cells.entry((b.place, granule)).or_default();
                for (a, _) in cell.iter().filter(|(_, other)| other & mask != 0) {
                    let a = &accesses[*a as usize];
                    if let Some(what) = self.missing(a, b) {
                        found.insert(Unordered { first: a.line, second: b.line, what });
                    }
                }
                // A write that is ordered after all that was there stands for it, and so does a thread's next access
                // for the one before. Operations on mbarriers and strong accesses are not ordered among themselves.
                let covers =
                    b.write && !b.same && matches!(b.kind, Kind::Plain | Kind::Address | Kind::Work(..));
                cell.retain_mut(|(a, bits)| {
                    let a = &accesses[*a as usize];
                    let again = (a.thread, a.write, a.kind) == (b.thread, b.write, b.kind);
                    if covers || again && a.kind.piece().is_none() {
                        *bits &= !mask;
                    }
                    *bits != 0
                });
                cell.push((number as u32, mask));
            }
        }
        self.accesses = accesses;
    }

    /// Every arrival and every wait is about the phase that it is about here.
    fn phases_in_order(&mut self, found: &mut BTreeSet<Unordered>) {
        let mut arrivals: HashMap<(Mbar, u32), Vec<Visit>> = HashMap::new();
        for a in std::mem::take(&mut self.arrivals) {
            if let Some(&done) = a.phase.checked_sub(1).and_then(|p| self.phases.get(&(a.mbar, p)))
                && !self.graph.reaches(done, a.before, Later)
            {
                let what = "an arrival may come in the phase before";
                found.insert(Unordered { first: a.line, second: a.line, what });
            }
            arrivals.entry((a.mbar, a.phase)).or_default().push(a);
        }
        for p in std::mem::take(&mut self.passes) {
            if let Some(&done) = p.phase.checked_sub(2).and_then(|p2| self.phases.get(&(p.mbar, p2)))
                && !self.graph.reaches(done, p.before, Later)
            {
                let what = "a wait may be over a phase too early";
                found.insert(Unordered { first: p.line, second: p.line, what });
            }
            let Some(next) = arrivals.get(&(p.mbar, p.phase)) else { continue };
            if !next.iter().any(|a| self.graph.reaches(p.behind, a.before, Later)) {
                let what = "a wait may be overtaken by the next phase";
                found.insert(Unordered { first: p.line, second: next[0].line, what });
            }
        }
    }

    /// What a peer does with the shared memory of a CTA, and asynchronous work there, is over before the CTA exits.
    fn exits_in_order(&mut self, time: usize, found: &mut BTreeSet<Unordered>) {
        let mut exits: HashMap<(u32, u32), Node> = HashMap::new();
        for thread in 0..self.threads.len() as u32 {
            let (cluster, warp) = self.threads[thread as usize].warp;
            let exit =
                *exits.entry((cluster, warp / self.warps_per_cta)).or_insert_with(|| self.graph.node(time));
            let last = self.now(thread);
            self.graph.edge(last, exit, Sees, time);
        }
        let accesses: Vec<Access> = std::mem::take(&mut self.accesses);
        for a in &accesses {
            let (Store::Shared(cta) | Store::Tensor(cta)) = a.place.1 else { continue };
            let (_, warp) = self.threads[a.thread as usize].warp;
            let own = warp / self.warps_per_cta == cta;
            let stores = a.kind.piece().is_some_and(|p| !a.write && !self.pieces[p as usize].tensor_core);
            if own && (a.kind.piece().is_none() || stores) {
                continue;
            }
            let Some(&exit) = exits.get(&(a.place.0, cta)) else { continue };
            if !self.over(a).into_iter().any(|over| self.graph.reaches(over, exit, Later)) {
                let what = "the CTA may exit before";
                found.insert(Unordered { first: a.line, second: a.line, what });
            }
        }
        self.accesses = accesses;
    }
}
