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
//! generic write meets the async proxy, a path leads through a proxy fence of one of the two threads. Then no schedule
//! can exchange them. Any path counts, so that an order through several barriers and threads is one.
//!
//! Beside that no mbarrier may be overtaken: an arrival at a phase comes after a path from the completion of the phase
//! before; a thread that waits for a phase knows that the one before is complete; and some arrival at the next phase
//! comes behind its wait. Then every arrival and every wait is about the same phase under every schedule.
//!
//! What orders nothing here, so that a pair that needs it is reported: relaxed operations, `fence` of the memory model,
//! atomics, the issue order of different threads' work in the tensor core.

use std::collections::{BTreeSet, HashMap, HashSet};

use oxigemm_sim::{Deed, Step, Store, Way, Work};

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

type Node = u32;

/// What an edge says: that one moment comes after another, or also that it sees what was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Strength {
    /// A relaxed arrival or wait, or one whose scope does not include the other side.
    Later,
    /// A release and an acquire.
    Sees,
}
use Strength::{Later, Sees};

/// An mbarrier: cluster, CTA rank, offset, and which of those that began there.
type Mbar = (u32, u32, u32, u32);

/// The moments of a run, with those before each.
#[derive(Default)]
struct Graph {
    before: Vec<Vec<(Node, Strength)>>,
    /// The last step that added to a moment: never less than that of a moment before it.
    time: Vec<u32>,
    seen: Vec<u32>,
    searches: u32,
    known: HashMap<(Node, Node, Strength), bool>,
}

impl Graph {
    fn node(&mut self, time: usize) -> Node {
        self.before.push(Vec::new());
        self.time.push(time as u32);
        self.before.len() as u32 - 1
    }

    fn edge(&mut self, from: Node, to: Node, strength: Strength, time: usize) {
        if self.before[to as usize].last() != Some(&(from, strength)) {
            self.before[to as usize].push((from, strength));
        }
        self.time[to as usize] = self.time[to as usize].max(time as u32);
    }

    /// Whether a path of at least this strength leads from one moment to another, by a search backward.
    fn reaches(&mut self, from: Node, to: Node, least: Strength) -> bool {
        if from == to {
            return true;
        }
        if let Some(known) = self.known.get(&(from, to, least)) {
            return *known;
        }
        self.searches += 1;
        self.seen.resize(self.before.len(), 0);
        let mut open = vec![to];
        let mut found = false;
        while let Some(node) = open.pop() {
            if node == from {
                found = true;
                break;
            }
            for &(next, strength) in &self.before[node as usize] {
                let (seen, early) = (&mut self.seen[next as usize], self.time[next as usize]);
                if strength >= least && *seen != self.searches && early >= self.time[from as usize] {
                    *seen = self.searches;
                    open.push(next);
                }
            }
        }
        self.known.insert((from, to, least), found);
        found
    }
}

/// A thread: its moments, and its work without an end.
#[derive(Default)]
struct Thread {
    warp: (u32, u32),
    moments: Vec<Node>,
    /// Whether it has touched memory since its last moment.
    busy: bool,
    /// Proxy fences: which moment, for shared memory, for global memory.
    fences: Vec<(u32, bool, bool)>,
    /// Fences behind initializations of mbarriers.
    init_fences: Vec<u32>,
    open: HashMap<u8, Vec<u32>>,
    groups: HashMap<u8, Vec<Vec<u32>>>,
    /// The last `tcgen05.commit`.
    commit: Option<Node>,
}

/// A piece of asynchronous work.
#[derive(Default)]
struct Piece {
    tensor_core: bool,
    /// What says that it is over; for bulk stores also, that it has read its source.
    over: Vec<Node>,
    read: Vec<Node>,
}

/// One access, between two moments of its thread.
#[derive(Clone, Copy)]
struct Access {
    thread: u32,
    moment: u32,
    line: u32,
    place: (u32, Store),
    at: u64,
    count: u64,
    write: bool,
    /// Whether it writes what was there: then it does not matter which of the two writes came first.
    same: bool,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
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
    fn mbarrier(self) -> bool {
        matches!(self, Kind::Mbarrier | Kind::MbarrierLater(_))
    }

    fn piece(self) -> Option<u32> {
        match self {
            Kind::MbarrierLater(piece) | Kind::Work(piece, _) => Some(piece),
            _ => None,
        }
    }
}

/// An operation on an mbarrier in a phase: the moments before and behind it.
#[derive(Clone, Copy)]
struct Visit {
    mbar: Mbar,
    phase: u32,
    before: Node,
    behind: Node,
    line: u32,
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
struct Run {
    graph: Graph,
    threads: Vec<Thread>,
    index: HashMap<(u32, u32, u32), u32>,
    pieces: Vec<Piece>,
    accesses: Vec<Access>,
    bars: HashMap<(u32, u32, u32, u64), Node>,
    clusters: HashMap<(u32, u32), Node>,
    begun: HashMap<(u32, u32, u32), u32>,
    phases: HashMap<(Mbar, u32), Node>,
    peers: HashMap<(Mbar, u32), Node>,
    arrivals: Vec<Visit>,
    passes: Vec<Visit>,
    /// The last piece of work of a warp.
    last: HashMap<(u32, u32), (u32, u32, u32)>,
    warps_per_cta: u32,
}

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
    fn thread(&mut self, step: &Step, lane: u32) -> u32 {
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

    fn threads_of(&mut self, step: &Step) -> Vec<u32> {
        (0..32).filter(|lane| step.lanes >> lane & 1 == 1).map(|lane| self.thread(step, lane)).collect()
    }

    fn now(&self, thread: u32) -> Node {
        *self.threads[thread as usize].moments.last().expect("a thread has a first moment")
    }

    /// A new moment for each of these threads. Those that have done nothing since a common moment share it: they know
    /// the same.
    fn moment(&mut self, threads: &[u32], time: usize) {
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
    fn together(&mut self, threads: &[u32], time: usize) {
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

    fn mbar(&self, step: &Step, (cta, at): (u32, u32)) -> Mbar {
        (step.cluster, cta, at, self.begun.get(&(step.cluster, cta, at)).copied().unwrap_or(0))
    }

    fn phase(&mut self, mbar: Mbar, phase: u32, time: usize) -> Node {
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
    fn far(&mut self, mbar: Mbar, phase: u32, time: usize) -> Node {
        match self.peers.get(&(mbar, phase)) {
            Some(known) => *known,
            None => {
                let node = self.graph.node(time);
                self.peers.insert((mbar, phase), node);
                node
            }
        }
    }

    fn access(
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
    fn touch(&mut self, thread: u32, step: &Step, (cta, at): (u32, u32), kind: Kind) {
        self.access(
            thread,
            step,
            (step.cluster, Store::Shared(cta)),
            (u64::from(at), 8),
            [true, false],
            kind,
        );
    }

    fn piece(&mut self, thread: u32, work: Work) -> u32 {
        let piece = self.pieces.len() as u32;
        self.pieces.push(Piece { tensor_core: work == Work::TensorCore, ..Piece::default() });
        self.threads[thread as usize].open.entry(queue(work)).or_default().push(piece);
        piece
    }

    fn step(&mut self, time: usize, step: &Step) {
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

    fn cluster(&mut self, step: &Step, phase: u32, time: usize) -> Node {
        match self.clusters.get(&(step.cluster, phase)) {
            Some(known) => *known,
            None => {
                let node = self.graph.node(time);
                self.clusters.insert((step.cluster, phase), node);
                node
            }
        }
    }

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
        None
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
        let written: HashSet<((u32, Store), u64)> = accesses
            .iter()
            .filter(|a| a.write && a.count > 0)
            .flat_map(|a| granules(a).map(|g| (a.place, g)))
            .collect();
        let mut cells: HashMap<((u32, Store), u64), Vec<(u32, u16)>> = HashMap::new();
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
