//! Grid scheduler: which clusters are resident, which warp runs, and when asynchronous work happens.

mod loops;
mod waits;

use crate::decode::{Kernel, SHARED_BASE};
use crate::error::{Fault, FaultKind};
use crate::exec::clc::{self, Waiting};
use crate::exec::cluster::{Cluster, ClusterBarrier, Cta, NamedBarrier};
use crate::exec::context::Cx;
use crate::exec::exit;
use crate::exec::finding::Findings;
use crate::exec::peers::Peers;
use crate::exec::remote::RemoteStores;
use crate::exec::warp::{Env, Group, Wait, Warp};
use crate::exec::{self, WarpStatus};

use crate::hazard::{Footprint, GlobalShadow, Hazards, Origin, View};
use crate::memory::{Memory, Written};
use crate::options::{Options, Policy};
use crate::report::{Report, TraceEvent, TraceUnit};
use crate::rng::Rng;
use crate::units::copy::Kind;
use oxigemm_threads::Interrupt;
use std::cell::RefCell;
use std::sync::Arc;
use waits::waits_for;

/// The shape of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) grid: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) explicit: bool,
    pub(crate) block: [u32; 3],
    /// Bytes of shared memory of a CTA, static and dynamic.
    pub(crate) shared: u32,
    pub(crate) dynamic: u32,
    /// Bytes that the run takes at its largest, without what hazards are found by.
    pub(crate) bytes: u64,
}

impl Geometry {
    /// The clusters of the grid.
    pub(crate) fn clusters(&self) -> u32 {
        let product = |v: [u32; 3]| v.iter().map(|x| u64::from(*x)).product::<u64>();
        (product(self.grid) / product(self.cluster)) as u32
    }
}

/// Polls per live warp without anything else happening after which a grid counts as stuck.
const STUCK_AFTER_POLLS: u64 = 5_000;
/// Instructions for a kernel that polls with plain loads, or counts: per live warp, and at most.
const STUCK_AFTER_EACH: u64 = 20_000_000;
const STUCK_AFTER: u64 = 200_000_000;
/// Rounds over the warps of one cluster before another cluster runs.
pub(crate) const ROUNDS: usize = 64;

/// What the grids that are in flight share.
pub(crate) struct Shared<'a> {
    pub(crate) memory: &'a mut Memory,
    /// Who touched it.
    pub(crate) global: &'a mut GlobalShadow,
    /// The grids of other devices, where there are some.
    pub(crate) peers: Option<&'a Peers>,
    /// Stores to their memory that they do not see yet.
    pub(crate) remote: Option<&'a mut RemoteStores>,
    pub(crate) interrupt: &'a Interrupt,
}

impl Shared<'_> {
    /// Other devices see all stores of a device, whose grid has stopped.
    pub(crate) fn send_all(&mut self, device: u32) -> Result<(), Fault> {
        match &mut self.remote {
            Some(remote) => remote.send_all(device, self.memory, self.global),
            None => Ok(()),
        }
    }

    /// Other devices see one more store, the newest or (with a generator) any.
    pub(crate) fn send_one(&mut self, rng: Option<&mut Rng>) {
        if let Some(remote) = &mut self.remote {
            // It was checked at its issue, and is lost where its memory has been freed since.
            let _ = remote.send_one(rng, self.memory, self.global);
        }
    }
}

/// A grid in flight.
pub(crate) struct Grid {
    pub(crate) kernel: Arc<Kernel>,
    geometry: Geometry,
    params: Vec<u8>,
    pub(crate) options: Options,
    rng: Rng,
    pub(crate) report: Report,
    progress: u64,
    polls: u64,
    executed: Vec<bool>,
    findings: RefCell<Findings>,
    predecessor: Option<Footprint>,
    waiting: Waiting,
    output: String,
    pub(crate) origin: Origin,
    /// What its threads know of other devices when they start, and what they knew at their end.
    known: View,
    pub(crate) learned: View,
    /// Clusters that run, and how many may at one time.
    live: Vec<Cluster>,
    resident: usize,
    /// Progress and instructions before the last turn.
    before: (u64, u64),
    stalls: u32,
    /// Polls and instructions when anything happened last.
    last_progress: (u64, u64),
    look_after: u64,
}

/// What becomes of a grid in which nothing happens.
pub(crate) enum Idle {
    /// It may still go on.
    Waits,
    /// Nothing can.
    Stuck,
}

/// Runs a grid to its end on a device of its own.
pub(crate) fn run_grid(
    mut grid: Grid,
    memory: &mut Memory,
    interrupt: &Interrupt,
) -> (Result<Report, Fault>, Footprint, String) {
    let mut global = GlobalShadow::new(grid.kernel.scoped);
    let shared = &mut Shared { memory, global: &mut global, peers: None, remote: None, interrupt };
    let outcome = loop {
        match grid.turn(shared, ROUNDS) {
            Err(fault) => break Err(fault),
            Ok(true) => break Ok(()),
            Ok(false) if grid.progressed() => grid.goes_on(),
            Ok(false) => match grid.idle(shared, grid.ran(), true) {
                Err(fault) => break Err(fault),
                Ok(Idle::Stuck) => break Err(grid.deadlock(shared)),
                Ok(Idle::Waits) => {}
            },
        }
    };
    let footprint = global.footprint(&grid.kernel.name, grid.predecessor.as_ref());
    let (outcome, output) = grid.finish(outcome);
    (outcome, footprint, output)
}

impl Grid {
    /// A grid that has not begun, with what its threads know of other devices.
    pub(crate) fn new(
        kernel: Arc<Kernel>,
        geometry: Geometry,
        params: Vec<u8>,
        options: &Options,
        predecessor: Option<Footprint>,
        (origin, known): (Origin, View),
    ) -> Grid {
        let mut rng = Rng::new(options.seed ^ u64::from(origin.device) << 48);
        let g = &geometry;
        let size: u32 = g.cluster.iter().product();
        let clusters = g.clusters();
        let resident = (options.resident_ctas / size).max(1) as usize;
        let resident = clc::resident(&kernel, resident, options.policy, &mut rng);
        let mut order: Vec<u32> = (0..clusters).rev().collect();
        match options.policy {
            Policy::Eager => {}
            Policy::Lazy => order.reverse(),
            Policy::Random => shuffle(&mut order, &mut rng),
        }
        Grid {
            waiting: Waiting::new(order, g.grid, g.cluster),
            executed: vec![false; kernel.code.len()],
            options: options.clone(),
            kernel,
            geometry,
            params,
            rng,
            report: Report::default(),
            progress: 0,
            polls: 0,
            findings: RefCell::default(),
            predecessor,
            output: String::new(),
            origin,
            known,
            learned: View::default(),
            live: Vec::new(),
            resident,
            before: (0, 0),
            stalls: 0,
            last_progress: (0, 0),
            look_after: loops::LOOK_AFTER,
        }
    }

    /// Starts clusters where there is room, and lets each run for some rounds; whether the grid has ended.
    pub(crate) fn turn(&mut self, shared: &mut Shared<'_>, rounds: usize) -> Result<bool, Fault> {
        while self.live.len() < self.resident
            && let Some(index) = self.waiting.next()
        {
            let cluster = self.start(index);
            self.live.push(cluster);
        }
        self.before = (self.progress, self.report.instructions);
        if self.live.is_empty() {
            return Ok(true);
        }
        self.expect_room(shared)?;
        let mut live = std::mem::take(&mut self.live);
        let outcome = self.run_clusters(&mut live, shared, rounds);
        self.live = live;
        outcome.map(|()| false)
    }

    fn run_clusters(
        &mut self,
        live: &mut Vec<Cluster>,
        shared: &mut Shared<'_>,
        rounds: usize,
    ) -> Result<(), Fault> {
        let mut i = 0;
        while i < live.len() {
            self.run_cluster(&mut live[i], shared, rounds)?;
            if live[i].done() {
                self.flush(&mut live[i], shared)?;
                let cluster = live.swap_remove(i);
                if let Some(hazards) = cluster.hazards.filter(|_| self.origin.several) {
                    self.learned.join_foreign(&hazards.learned, &self.origin.clusters);
                }
                self.progress += 1;
            } else {
                i += 1;
            }
        }
        Ok(())
    }

    /// Whether anything has happened in the last turn.
    pub(crate) fn progressed(&self) -> bool {
        self.progress != self.before.0
    }

    /// Whether a warp has executed anything in the last turn.
    pub(crate) fn ran(&self) -> bool {
        self.report.instructions != self.before.1
    }

    /// Something has happened, here or elsewhere.
    pub(crate) fn goes_on(&mut self) {
        self.stalls = 0;
        self.last_progress = (self.polls, self.report.instructions);
        self.look_after = loops::LOOK_AFTER;
    }

    /// Nothing has happened in the last turn; `ran` where a warp of any grid has executed something. `alone` where
    /// only this grid changes what it reads.
    pub(crate) fn idle(&mut self, shared: &mut Shared<'_>, ran: bool, alone: bool) -> Result<Idle, Fault> {
        let warps = self.live.iter().map(|c| c.warps.len() as u64).sum::<u64>();
        let idle = self.report.instructions - self.last_progress.1;
        if idle > self.look_after && self.polls == self.last_progress.0 {
            self.look_after = idle * 2;
            let mut live = std::mem::take(&mut self.live);
            let found = self.endless(&mut live, shared, alone);
            self.live = live;
            if let Some(fault) = found? {
                return Err(fault);
            }
        }
        let most = self.options.idle_limit.unwrap_or((STUCK_AFTER_EACH * warps).min(STUCK_AFTER));
        if idle > most && self.polls == self.last_progress.0 {
            let mut fault = self.deadlock(shared);
            if fault.kind == FaultKind::Deadlock {
                fault.kind = FaultKind::EndlessLoop;
                fault.message = format!(
                    "{idle} instructions without a store, an atomic or an arrival: a loop never ends"
                );
            }
            return Err(fault);
        }
        let stuck = self.polls - self.last_progress.0 > STUCK_AFTER_POLLS * warps || idle > STUCK_AFTER;
        if !ran || stuck {
            self.stalls += 1;
            // A blocking wait may give up; only when that changes nothing is it a deadlock.
            if self.stalls > 3 || stuck {
                return Ok(Idle::Stuck);
            }
            for warp in self.live.iter_mut().flat_map(|c| &mut c.warps) {
                for group in &mut warp.groups {
                    if let Some(Wait::Mbar(_)) = group.wait {
                        group.wait = None;
                        group.timed_out = true;
                    }
                }
            }
        }
        if self.report.instructions > self.options.instruction_limit {
            return Err(Fault::new(
                FaultKind::InstructionLimit,
                format!("more than {} instructions", self.options.instruction_limit),
            ));
        }
        Ok(Idle::Waits)
    }

    /// What it did, and what it printed.
    pub(crate) fn finish(mut self, outcome: Result<(), Fault>) -> (Result<Report, Fault>, String) {
        let code = self.kernel.code.iter().zip(&self.executed);
        self.report.lines = code.filter(|(_, executed)| **executed).map(|(i, _)| i.line).collect();
        self.report.lines.sort_unstable();
        self.report.lines.dedup();
        let Findings { notes, faults, .. } = self.findings.into_inner();
        (self.report.notes, self.report.faults) = (notes, faults);
        let outcome = match outcome {
            // The last of the faults, which ended the run.
            Err(fault) if self.options.keep_going && fault.kind != FaultKind::Interrupted => {
                self.report.faults.push(fault);
                self.report.stopped = true;
                Ok(())
            }
            outcome => outcome,
        };
        (outcome.map(|()| self.report), self.output)
    }

    /// Refuses to go on where shadows, or the timeline, have outgrown the memory.
    fn expect_room(&self, shared: &Shared<'_>) -> Result<(), Fault> {
        let Some(limit) = self.options.memory_limit else { return Ok(()) };
        let hazards =
            self.live.iter().filter_map(|cluster| cluster.hazards.as_ref()).map(|h| h.bytes()).sum::<u64>();
        let trace = self.report.trace.len() as u64 * 2 * size_of::<TraceEvent>() as u64;
        let hazards = hazards + shared.global.bytes();
        let all = self.geometry.bytes + hazards + trace;
        if all <= limit {
            return Ok(());
        }
        let message = format!("the run takes {all} bytes by now, more than the {limit} that it has");
        let note = format!("hazards are found by {hazards}, the timeline has {trace}");
        Err(Fault::new(FaultKind::MemoryLimit, message).note(note))
    }

    fn start(&mut self, index: u32) -> Cluster {
        let g = &self.geometry;
        let first = self.waiting.first_cta(index);
        let threads: u32 = g.block.iter().product();
        let warps_per_cta = threads.div_ceil(32);
        let size: u32 = g.cluster.iter().product();
        let mut ctas = Vec::new();
        let mut warps = Vec::new();
        for rank in 0..size {
            let inside =
                [rank % g.cluster[0], rank / g.cluster[0] % g.cluster[1], rank / g.cluster[0] / g.cluster[1]];
            let ctaid: [u32; 3] = std::array::from_fn(|i| first[i] + inside[i]);
            let cta_index = (ctaid[2] * g.grid[1] + ctaid[1]) * g.grid[0] + ctaid[0];
            ctas.push(Cta {
                index: cta_index,
                shared: vec![0; g.shared as usize],
                written: Written::new(g.shared as usize),
                bars: vec![NamedBarrier { votes: (false, true, 0), ..NamedBarrier::default() }; 16],
                mbars: Default::default(),
                tensor: None,
                live_warps: warps_per_cta,
                live_threads: threads,
                registers: (registers_at_first(threads, self.kernel.max_registers), 0),
                exited: false,
                left: (0, 0),
            });
            for w in 0..warps_per_cta {
                let lanes = (threads - w * 32).min(32);
                let env = Env {
                    ntid: g.block,
                    ctaid,
                    nctaid: g.grid,
                    cluster: g.cluster,
                    explicit: g.explicit,
                    rank,
                    warp: w,
                    warps: warps_per_cta,
                    cta_index,
                    dynamic_shared: g.dynamic,
                    total_shared: g.shared,
                };
                let valid = if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 };
                let k = &self.kernel;
                warps.push(Warp::new(
                    warps.len() as u32,
                    env,
                    k.registers.len(),
                    valid,
                    k.local_bytes as usize,
                ));
            }
        }
        self.report.ctas += u64::from(size);
        self.progress += 1;
        let hazards = self.options.hazards.then(|| {
            let start = (&self.origin, index, &self.known);
            Box::new(Hazards::new(start, warps.len(), size as usize, SHARED_BASE, g.shared))
        });
        Cluster {
            ctas,
            warps,
            warps_per_cta: warps_per_cta as usize,
            barrier: ClusterBarrier::default(),
            pending: Vec::new(),
            tensor_work: Default::default(),
            hazards,
            scratch: Default::default(),
        }
    }

    fn cx<'c>(&'c mut self, cluster: &'c mut Cluster, shared: &'c mut Shared<'_>) -> Cx<'c> {
        Cx {
            kernel: &self.kernel,
            cluster,
            memory: shared.memory,
            params: &self.params,
            options: &self.options,
            rng: &mut self.rng,
            report: &mut self.report,
            progress: &mut self.progress,
            polls: &mut self.polls,
            executed: &mut self.executed,
            findings: &self.findings,
            at: (0, 0),
            global: shared.global,
            device: self.origin.device,
            peers: shared.peers,
            remote: shared.remote.as_deref_mut(),
            predecessor: self.predecessor.as_ref(),
            waiting: &mut self.waiting,
            output: &mut self.output,
        }
    }

    /// Runs the warps of one cluster until they wait for others, or long enough.
    fn run_cluster(
        &mut self,
        cluster: &mut Cluster,
        shared: &mut Shared<'_>,
        rounds: usize,
    ) -> Result<(), Fault> {
        let mut order: Vec<usize> = (0..cluster.warps.len()).collect();
        if self.options.policy == Policy::Lazy {
            order.reverse();
        }
        let mut idle_rounds = 0;
        for _ in 0..rounds {
            if self.options.policy == Policy::Random {
                shuffle(&mut order, &mut self.rng);
            }
            let before = (self.progress, self.report.instructions);
            for &w in &order {
                if cluster.warps[w].done() {
                    continue;
                }
                if shared.interrupt.is_raised() {
                    return Err(Fault::new(FaultKind::Interrupted, "the run was asked to end"));
                }
                let quantum = match self.options.policy {
                    // Devices meet after few instructions.
                    Policy::Random if self.origin.several && self.rng.once_in(2) => {
                        1 + self.rng.below(8) as u32
                    }
                    Policy::Random => 1 + self.rng.below(200) as u32,
                    _ => 4096,
                };
                let mut warp = std::mem::take(&mut cluster.warps[w]);
                let mut cx = self.cx(cluster, shared);
                let start = cx.report.instructions;
                let turn = exec::run(&mut warp, &mut cx, quantum);
                if cx.report.instructions > start {
                    // Lanes that only wait for others of their warp say nothing of what it does.
                    let busy = |g: &&Group| !matches!(g.wait, Some(Wait::Converge(_)));
                    let group = warp.groups.iter().find(busy).or(warp.groups.first());
                    let pc = group.map_or(warp.left_at, |g| g.pc);
                    let wait = group.and_then(|g| g.wait.as_ref());
                    let role = cx.kernel.names.role(warp.role_line);
                    cx.trace(TraceUnit::Warp, warp.index, pc, start, role, |cx| waits_for(wait, cx));
                }
                if let Ok(WarpStatus::Exited) = turn {
                    exit::leave(&mut warp, &mut cx)?;
                }
                cluster.warps[w] = warp;
                turn?;
                if self.options.policy == Policy::Random && self.rng.once_in(6) {
                    self.complete_one(cluster, shared)?;
                }
            }
            if cluster.done() {
                return Ok(());
            }
            // Nothing ran, or only polling did: time for something asynchronous to happen.
            idle_rounds = if self.progress == before.0 { idle_rounds + 1 } else { 0 };
            if self.report.instructions == before.1 || idle_rounds >= 3 {
                idle_rounds = 0;
                if !self.complete_one(cluster, shared)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Performs one piece of asynchronous work; false when there is none.
    fn complete_one(&mut self, cluster: &mut Cluster, shared: &mut Shared<'_>) -> Result<bool, Fault> {
        let busy: Vec<usize> =
            (0..cluster.warps.len()).filter(|w| !cluster.warps[*w].wgmma.queue.is_empty()).collect();
        let cx = self.cx(cluster, shared);
        let copies: Vec<usize> = (0..cx.cluster.pending.len()).filter(|i| cx.performable(*i)).collect();
        let tensor: Vec<usize> = cx.cluster.tensor_work.next().collect();
        if busy.is_empty() && copies.is_empty() && tensor.is_empty() {
            return Ok(false);
        }
        // As late as possible: what writes shared memory comes before what still reads it.
        let load = copies.iter().rposition(|i| !matches!(cluster.pending[*i].kind, Kind::Store { .. }));
        let choice = match self.options.policy {
            Policy::Random => self.rng.below(busy.len() + copies.len() + tensor.len()),
            _ if load.is_some() => busy.len() + load.unwrap_or(0),
            // The newest that nothing holds back: a commit before the work of other threads.
            _ if !tensor.is_empty() => busy.len() + copies.len() + tensor.len() - 1,
            _ if !busy.is_empty() => busy.len() - 1,
            _ => busy.len() + copies.len() - 1,
        };
        if choice < busy.len() {
            let w = busy[choice];
            let mut warp = std::mem::take(&mut cluster.warps[w]);
            let result = self.cx(cluster, shared).wgmma_execute(&mut warp);
            cluster.warps[w] = warp;
            result?;
        } else if choice < busy.len() + copies.len() {
            self.cx(cluster, shared).perform(copies[choice - busy.len()])?;
        } else {
            self.cx(cluster, shared).perform_work(tensor[choice - busy.len() - copies.len()])?;
        }
        Ok(true)
    }

    /// The writes that a finished cluster still has under way.
    fn flush(&mut self, cluster: &mut Cluster, shared: &mut Shared<'_>) -> Result<(), Fault> {
        while !cluster.pending.is_empty() {
            self.cx(cluster, shared).perform(0)?;
        }
        while let Some(next) = cluster.tensor_work.first() {
            self.cx(cluster, shared).perform_work(next)?;
        }
        Ok(())
    }
}

/// Registers that a thread starts with, in multiples of eight: those that `.maxnreg` names, else the most that a thread
/// of a CTA with so many can have.
fn registers_at_first(threads: u32, named: Option<u32>) -> u32 {
    const MOST: u32 = 248;
    let fit = 65_536 / threads.next_multiple_of(32).max(32) / 8 * 8;
    named.map_or(fit.min(MOST), |named| named.min(256).next_multiple_of(8).min(fit))
}

pub(crate) fn shuffle<T>(list: &mut [T], rng: &mut Rng) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i + 1));
    }
}
