//! From the record of a run to its graph: threads, their moments, and accesses and asynchronous work between them.

use std::collections::HashMap;

use oxigemm_sim::{Deed, Step, Store, Way, Work};

use super::graph::Strength::{Later, Sees};
use super::graph::{Graph, Node};

/// An mbarrier: cluster, CTA rank, offset, and which of those that began there.
pub(super) type Mbar = (u32, u32, u32, u32);

/// A thread: its moments, and its work without an end.
#[derive(Default)]
pub(super) struct Thread {
    pub(super) warp: (u32, u32),
    pub(super) moments: Vec<Node>,
    /// Whether it has touched memory since its last moment.
    pub(super) busy: bool,
    /// Proxy fences: which moment, for shared memory, for global memory.
    pub(super) fences: Vec<(u32, bool, bool)>,
    /// `tcgen05.fence`: before and after a synchronization.
    pub(super) tensor_fences: [Vec<Node>; 2],
    /// Fences behind initializations of mbarriers.
    pub(super) init_fences: Vec<u32>,
    pub(super) open: HashMap<u8, Vec<u32>>,
    pub(super) groups: HashMap<u8, Vec<Vec<u32>>>,
    /// The last `tcgen05.commit`.
    pub(super) commit: Option<Node>,
}

/// A piece of asynchronous work.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) tensor_core: bool,
    /// What says that it is over; for bulk stores also, that it has read its source.
    pub(super) over: Vec<Node>,
    pub(super) read: Vec<Node>,
}

/// One access, between two moments of its thread.
#[derive(Clone, Copy)]
pub(super) struct Access {
    pub(super) thread: u32,
    pub(super) moment: u32,
    pub(super) line: u32,
    pub(super) place: (u32, Store),
    pub(super) at: u64,
    pub(super) count: u64,
    pub(super) write: bool,
    /// Whether it writes what was there: then it does not matter which of the two writes came first.
    pub(super) same: bool,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Strong,
    /// The address that `tcgen05.alloc` writes.
    Address,
    /// An operation on an mbarrier, by the thread itself.
    Mbarrier,
    /// The same when work is over.
    MbarrierLater(u32),
    /// By work, and whether through the async proxy.
    Work(u32, bool),
}

impl Kind {
    pub(super) fn mbarrier(self) -> bool {
        matches!(self, Kind::Mbarrier | Kind::MbarrierLater(_))
    }

    pub(super) fn piece(self) -> Option<u32> {
        match self {
            Kind::MbarrierLater(piece) | Kind::Work(piece, _) => Some(piece),
            _ => None,
        }
    }
}

/// An operation on an mbarrier in a phase: the moments before and behind it.
#[derive(Clone, Copy)]
pub(super) struct Visit {
    pub(super) mbar: Mbar,
    pub(super) phase: u32,
    pub(super) before: Node,
    pub(super) behind: Node,
    pub(super) line: u32,
}

/// The kinds of work that a thread counts groups of.
fn queue(work: Work) -> u8 {
    match work {
        Work::Reports(..) => 0,
        Work::BulkStore => 1,
        Work::CpAsync => 2,
        Work::Wgmma => 3,
        Work::TensorCore => 4,
        Work::TensorLoad => 5,
        Work::TensorStore => 6,
    }
}

#[derive(Default)]
pub(super) struct Run {
    pub(super) graph: Graph,
    pub(super) threads: Vec<Thread>,
    pub(super) index: HashMap<(u32, u32, u32), u32>,
    pub(super) pieces: Vec<Piece>,
    pub(super) accesses: Vec<Access>,
    pub(super) bars: HashMap<(u32, u32, u32, u64), Node>,
    pub(super) clusters: HashMap<(u32, u32), Node>,
    pub(super) begun: HashMap<(u32, u32, u32), u32>,
    pub(super) phases: HashMap<(Mbar, u32), Node>,
    pub(super) peers: HashMap<(Mbar, u32), Node>,
    pub(super) arrivals: Vec<Visit>,
    pub(super) passes: Vec<Visit>,
    /// The last piece of work of a warp.
    pub(super) last: HashMap<(u32, u32), (u32, u32, u32)>,
    /// Whether there is a `tcgen05.fence`: then accesses to tensor memory need them.
    pub(super) has_tensor_fences: bool,
    pub(super) warps_per_cta: u32,
}

impl Run {
    pub(super) fn thread(&mut self, step: &Step, lane: u32) -> u32 {
        let key = (step.cluster, step.warp, lane);
        if let Some(known) = self.index.get(&key) {
            return *known;
        }
        let first = self.graph.node(0);
        self.threads.push(Thread {
            warp: (step.cluster, step.warp),
            moments: vec![first],
            ..Thread::default()
        });
        let new = self.threads.len() as u32 - 1;
        self.index.insert(key, new);
        new
    }

    pub(super) fn threads_of(&mut self, step: &Step) -> Vec<u32> {
        (0..32).filter(|lane| step.lanes >> lane & 1 == 1).map(|lane| self.thread(step, lane)).collect()
    }

    pub(super) fn now(&self, thread: u32) -> Node {
        *self.threads[thread as usize].moments.last().expect("a thread has a first moment")
    }

    /// A new moment for each of these threads. Those that have done nothing since a common moment share it: they know
    /// the same.
    pub(super) fn moment(&mut self, threads: &[u32], time: usize) {
        let mut shared: Vec<(Node, Node)> = Vec::new();
        for &thread in threads {
            let last = self.now(thread);
            let node = match shared.iter().find(|(old, _)| *old == last) {
                Some((_, node)) if !self.threads[thread as usize].busy => *node,
                _ => {
                    let node = self.graph.node(time);
                    self.graph.edge(last, node, Sees, time);
                    if !self.threads[thread as usize].busy {
                        shared.push((last, node));
                    }
                    node
                }
            };
            let thread = &mut self.threads[thread as usize];
            thread.moments.push(node);
            thread.busy = false;
        }
    }

    /// One moment for all of these threads.
    pub(super) fn together(&mut self, threads: &[u32], time: usize) {
        let first = self.now(threads[0]);
        if threads.iter().all(|t| self.now(*t) == first && !self.threads[*t as usize].busy) {
            return;
        }
        let node = self.graph.node(time);
        for &thread in threads {
            let last = self.now(thread);
            self.graph.edge(last, node, Sees, time);
            let thread = &mut self.threads[thread as usize];
            thread.moments.push(node);
            thread.busy = false;
        }
    }

    pub(super) fn mbar(&self, step: &Step, (cta, at): (u32, u32)) -> Mbar {
        (step.cluster, cta, at, self.begun.get(&(step.cluster, cta, at)).copied().unwrap_or(0))
    }

    pub(super) fn phase(&mut self, mbar: Mbar, phase: u32, time: usize) -> Node {
        match self.phases.get(&(mbar, phase)) {
            Some(known) => *known,
            None => {
                let node = self.graph.node(time);
                self.phases.insert((mbar, phase), node);
                node
            }
        }
    }

    /// What arrivals of peers release to waits of cluster scope.
    pub(super) fn far(&mut self, mbar: Mbar, phase: u32, time: usize) -> Node {
        match self.peers.get(&(mbar, phase)) {
            Some(known) => *known,
            None => {
                let node = self.graph.node(time);
                self.peers.insert((mbar, phase), node);
                node
            }
        }
    }

    pub(super) fn access(
        &mut self,
        thread: u32,
        step: &Step,
        place: (u32, Store),
        bytes: (u64, u64),
        [write, same]: [bool; 2],
        kind: Kind,
    ) {
        let moment = self.threads[thread as usize].moments.len() as u32 - 1;
        self.threads[thread as usize].busy = true;
        let (at, count) = bytes;
        self.accesses.push(Access { thread, moment, line: step.line, place, at, count, write, same, kind });
    }

    /// An operation on an mbarrier as an access to its bytes.
    pub(super) fn touch(&mut self, thread: u32, step: &Step, (cta, at): (u32, u32), kind: Kind) {
        self.access(
            thread,
            step,
            (step.cluster, Store::Shared(cta)),
            (u64::from(at), 8),
            [true, false],
            kind,
        );
    }

    pub(super) fn piece(&mut self, thread: u32, work: Work) -> u32 {
        let piece = self.pieces.len() as u32;
        self.pieces.push(Piece { tensor_core: work == Work::TensorCore, ..Piece::default() });
        self.threads[thread as usize].open.entry(queue(work)).or_default().push(piece);
        piece
    }

    pub(super) fn step(&mut self, time: usize, step: &Step) {
        let threads = self.threads_of(step);
        let Some(&one) = threads.first() else { return };
        match step.deed {
            Deed::Access { store, at, count, write, same, way } => {
                let cluster = if store == Store::Global { 0 } else { step.cluster };
                let last = self.last.get(&(step.cluster, step.warp)).copied();
                match (way, last) {
                    (Way::Generic | Way::Async, Some((piece, thread, moment))) => {
                        let kind = Kind::Work(piece, way == Way::Async);
                        let line = step.line;
                        let place = (cluster, store);
                        self.accesses.push(Access {
                            thread,
                            moment,
                            line,
                            place,
                            at,
                            count,
                            write,
                            same,
                            kind,
                        });
                    }
                    _ => {
                        let kind = match way {
                            Way::Strong => Kind::Strong,
                            Way::Address => Kind::Address,
                            _ => Kind::Plain,
                        };
                        self.access(one, step, (cluster, store), (at, count), [write, same], kind);
                    }
                }
            }
            Deed::Issue(work) => {
                let piece = self.piece(one, work);
                let moment = self.threads[one as usize].moments.len() as u32 - 1;
                self.last.insert((step.cluster, step.warp), (piece, one, moment));
                self.threads[one as usize].busy = true;
                if let Work::Reports(cta, at, phase) = work {
                    let mbar = self.mbar(step, (cta, at));
                    let over = self.phase(mbar, phase, time);
                    let before = self.now(one);
                    self.graph.edge(before, over, Later, time);
                    self.pieces[piece as usize].over.push(over);
                    self.touch(one, step, (cta, at), Kind::MbarrierLater(piece));
                    self.arrivals.push(Visit { mbar, phase, before, behind: before, line: step.line });
                }
            }
            Deed::Together => self.together(&threads, time),
            Deed::Met => {
                let first = self.now(one);
                if threads.iter().all(|t| self.now(*t) == first && !self.threads[*t as usize].busy) {
                    return;
                }
                self.moment(&threads, time);
                let met = self.graph.node(time);
                for &thread in &threads {
                    let from = self.now(thread);
                    self.graph.edge(from, met, Later, time);
                }
                self.moment(&threads, time);
                for thread in threads {
                    let to = self.now(thread);
                    self.graph.edge(met, to, Later, time);
                }
            }
            Deed::Bar { id, generation, waits } => {
                self.moment(&threads, time);
                let cta = step.warp / self.warps_per_cta;
                let key = (step.cluster, cta, id, generation);
                let node = match self.bars.get(&key) {
                    Some(known) => *known,
                    None => {
                        let node = self.graph.node(time);
                        self.bars.insert(key, node);
                        node
                    }
                };
                for thread in threads {
                    let from = self.now(thread);
                    self.graph.edge(from, node, Sees, time);
                    if waits {
                        self.threads[thread as usize].moments.push(node);
                    }
                }
            }
            Deed::ClusterArrive { phase, release } => {
                self.moment(&threads, time);
                let node = self.cluster(step, phase, time);
                let strength = if release { Sees } else { Later };
                for thread in threads {
                    let from = self.now(thread);
                    self.graph.edge(from, node, strength, time);
                }
            }
            Deed::ClusterWait { phase, acquire } => {
                self.moment(&threads, time);
                let node = self.cluster(step, phase, time);
                let strength = if acquire { Sees } else { Later };
                for thread in threads {
                    let to = self.now(thread);
                    self.graph.edge(node, to, strength, time);
                }
            }
            Deed::MbarInit(cta, at) => *self.begun.entry((step.cluster, cta, at)).or_default() += 1,
            Deed::MbarTouch(cta, at) => self.touch(one, step, (cta, at), Kind::Mbarrier),
            Deed::Arrive { mbar: at, phase, release, far } => {
                self.touch(one, step, at, Kind::Mbarrier);
                let (mbar, before) = (self.mbar(step, at), self.now(one));
                self.moment(&threads, time);
                let (behind, node) = (self.now(one), self.phase(mbar, phase, time));
                let remote = step.warp / self.warps_per_cta != at.0;
                let strength = if release && !remote { Sees } else { Later };
                self.graph.edge(behind, node, strength, time);
                if release && remote && far {
                    let node = self.far(mbar, phase, time);
                    self.graph.edge(behind, node, Sees, time);
                }
                self.arrivals.push(Visit { mbar, phase, before, behind, line: step.line });
            }
            Deed::ArriveBehindCopies { mbar: at, phase } => {
                let (mbar, before) = (self.mbar(step, at), self.now(one));
                let node = self.phase(mbar, phase, time);
                self.graph.edge(before, node, Later, time);
                let piece = self.pieces.len() as u32;
                self.pieces.push(Piece { over: vec![node], ..Piece::default() });
                self.touch(one, step, at, Kind::MbarrierLater(piece));
                let own = &self.threads[one as usize];
                let queue = queue(Work::CpAsync);
                let grouped = own.groups.get(&queue).into_iter().flatten().flatten();
                let all: Vec<u32> =
                    own.open.get(&queue).into_iter().flatten().chain(grouped).copied().collect();
                all.iter().for_each(|p| self.pieces[*p as usize].over.push(node));
                self.arrivals.push(Visit { mbar, phase, before, behind: before, line: step.line });
            }
            Deed::Commit { mbar: at, phase } => {
                let (mbar, before) = (self.mbar(step, at), self.now(one));
                let phase_node = self.phase(mbar, phase, time);
                let commit = self.graph.node(time);
                if let Some(earlier) = self.threads[one as usize].commit.replace(commit) {
                    self.graph.edge(earlier, commit, Sees, time);
                }
                // The arrival comes behind its issue, and in the order of the thread's commits.
                self.graph.edge(before, commit, Later, time);
                self.graph.edge(commit, phase_node, Sees, time);
                let open =
                    self.threads[one as usize].open.remove(&queue(Work::TensorCore)).unwrap_or_default();
                open.iter().for_each(|p| self.pieces[*p as usize].over.push(commit));
                let piece = self.pieces.len() as u32;
                self.pieces.push(Piece { over: vec![commit], ..Piece::default() });
                self.touch(one, step, at, Kind::MbarrierLater(piece));
                self.arrivals.push(Visit { mbar, phase, before, behind: before, line: step.line });
            }
            Deed::Pass { mbar: at, phase, acquire, far } => {
                let mbar = self.mbar(step, at);
                for &thread in &threads {
                    // That a wait looks at its mbarrier makes no difference between threads that know the same.
                    let busy = self.threads[thread as usize].busy;
                    self.touch(thread, step, at, Kind::Mbarrier);
                    self.threads[thread as usize].busy = busy;
                }
                let before: Vec<Node> = threads.iter().map(|t| self.now(*t)).collect();
                self.moment(&threads, time);
                for (&thread, before) in threads.iter().zip(before) {
                    let behind = self.now(thread);
                    if let Some(last) = phase.checked_sub(1) {
                        let strength = if acquire { Sees } else { Later };
                        let done = self.phase(mbar, last, time);
                        self.graph.edge(done, behind, strength, time);
                        let done = self.far(mbar, last, time);
                        self.graph.edge(done, behind, if far { strength } else { Later }, time);
                    }
                    let visit = Visit { mbar, phase, before, behind, line: step.line };
                    if self
                        .passes
                        .last()
                        .is_none_or(|p| (p.mbar, p.before, p.behind) != (mbar, before, behind))
                    {
                        self.passes.push(visit);
                    }
                }
            }
            Deed::Group(work) => {
                for thread in threads {
                    let own = &mut self.threads[thread as usize];
                    let open = own.open.remove(&queue(work)).unwrap_or_default();
                    own.groups.entry(queue(work)).or_default().push(open);
                }
            }
            Deed::GroupWait { work, pending, read } => {
                self.moment(&threads, time);
                for thread in threads {
                    let now = self.now(thread);
                    let own = &mut self.threads[thread as usize];
                    let groups = own.groups.entry(queue(work)).or_default();
                    let old = groups.len().saturating_sub(pending.unwrap_or(0) as usize);
                    let mut done: Vec<u32> = groups[..old].concat();
                    if !read {
                        groups.drain(..old);
                    }
                    if pending.is_none() {
                        done.extend(own.open.remove(&queue(work)).unwrap_or_default());
                    }
                    for piece in done {
                        let piece = &mut self.pieces[piece as usize];
                        if read { piece.read.push(now) } else { piece.over.push(now) }
                    }
                }
            }
            Deed::TensorWait { stores } => {
                self.moment(&threads, time);
                let kind = queue(if stores { Work::TensorStore } else { Work::TensorLoad });
                for thread in threads {
                    let now = self.now(thread);
                    let done = self.threads[thread as usize].open.remove(&kind).unwrap_or_default();
                    done.iter().for_each(|p| self.pieces[*p as usize].over.push(now));
                }
            }
            Deed::FenceProxy { shared, global } => {
                self.moment(&threads, time);
                for thread in threads {
                    let own = &mut self.threads[thread as usize];
                    own.fences.push((own.moments.len() as u32 - 1, shared, global));
                }
            }
            Deed::FenceTensor { after } => {
                self.has_tensor_fences = true;
                self.moment(&threads, time);
                for thread in threads {
                    let now = self.now(thread);
                    self.threads[thread as usize].tensor_fences[usize::from(after)].push(now);
                }
            }
            Deed::FenceInit => {
                self.moment(&threads, time);
                for thread in threads {
                    let own = &mut self.threads[thread as usize];
                    own.init_fences.push(own.moments.len() as u32 - 1);
                }
            }
            Deed::Exit => {}
        }
    }

    pub(super) fn cluster(&mut self, step: &Step, phase: u32, time: usize) -> Node {
        match self.clusters.get(&(step.cluster, phase)) {
            Some(known) => *known,
            None => {
                let node = self.graph.node(time);
                self.clusters.insert((step.cluster, phase), node);
                node
            }
        }
    }
}
