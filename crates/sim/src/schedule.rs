//! Grid scheduler: which clusters are resident, which warp runs, and when asynchronous work happens.

mod loops;

use crate::decode::{Kernel, SHARED_BASE};
use crate::error::{Fault, FaultKind, Place};
use crate::exec::clc::{self, Waiting};
use crate::exec::cluster::{Cluster, ClusterBarrier, Cta, NamedBarrier};
use crate::exec::context::Cx;
use crate::exec::exit;
use crate::exec::finding::Findings;
use crate::exec::warp::{Env, Group, PhaseWait, Wait, Warp};
use crate::exec::{self, WarpStatus};
use crate::hazard::{Footprint, GlobalShadow, Hazards};
use crate::memory::{Memory, Written};
use crate::options::{Options, Policy};
use crate::report::{Report, TraceEvent, TraceUnit};
use crate::rng::Rng;
use crate::units::copy::Kind;
use oxigemm_threads::Interrupt;
use std::cell::RefCell;

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

/// Polls per live warp without anything else happening after which a grid counts as stuck.
const STUCK_AFTER_POLLS: u64 = 5_000;
/// Instructions for a kernel that polls with plain loads, or counts: per live warp, and at most.
const STUCK_AFTER_EACH: u64 = 20_000_000;
const STUCK_AFTER: u64 = 200_000_000;
/// Rounds over the warps of one cluster before another cluster runs.
const ROUNDS: usize = 64;

struct Grid<'a> {
    kernel: &'a Kernel,
    geometry: &'a Geometry,
    memory: &'a mut Memory,
    params: &'a [u8],
    options: &'a Options,
    rng: Rng,
    report: Report,
    progress: u64,
    polls: u64,
    executed: Vec<bool>,
    findings: RefCell<Findings>,
    global: GlobalShadow,
    predecessor: Option<&'a Footprint>,
    interrupt: &'a Interrupt,
    waiting: Waiting,
    output: String,
}

pub(crate) fn run_grid(
    kernel: &Kernel,
    geometry: &Geometry,
    memory: &mut Memory,
    params: &[u8],
    options: &Options,
    predecessor: Option<&Footprint>,
    interrupt: &Interrupt,
) -> (Result<Report, Fault>, Footprint, String) {
    let rng = Rng::new(options.seed);
    let mut grid = Grid {
        kernel,
        geometry,
        memory,
        params,
        options,
        rng,
        report: Report::default(),
        progress: 0,
        polls: 0,
        executed: vec![false; kernel.code.len()],
        findings: RefCell::default(),
        global: GlobalShadow::new(kernel.scoped),
        predecessor,
        interrupt,
        waiting: Waiting::new(Vec::new(), geometry.grid, geometry.cluster),
        output: String::new(),
    };
    let outcome = grid.run();
    let footprint = grid.global.footprint(&kernel.name, predecessor);
    let lines =
        kernel.code.iter().zip(&grid.executed).filter(|(_, executed)| **executed).map(|(i, _)| i.line);
    grid.report.lines = lines.collect();
    grid.report.lines.sort_unstable();
    grid.report.lines.dedup();
    let Findings { notes, faults, .. } = grid.findings.into_inner();
    (grid.report.notes, grid.report.faults) = (notes, faults);
    let outcome = match outcome {
        // The last of the faults, which ended the run.
        Err(fault) if options.keep_going && fault.kind != FaultKind::Interrupted => {
            grid.report.faults.push(fault);
            grid.report.stopped = true;
            Ok(())
        }
        outcome => outcome,
    };
    (outcome.map(|()| grid.report), footprint, grid.output)
}

impl Grid<'_> {
    fn run(&mut self) -> Result<(), Fault> {
        let g = self.geometry;
        let size: u32 = g.cluster.iter().product();
        let clusters = (g.grid.iter().map(|x| u64::from(*x)).product::<u64>() / u64::from(size)) as u32;
        let resident = (self.options.resident_ctas / size).max(1) as usize;
        let resident = clc::resident(self.kernel, resident, self.options.policy, &mut self.rng);
        let mut order: Vec<u32> = (0..clusters).rev().collect();
        match self.options.policy {
            Policy::Eager => {}
            Policy::Lazy => order.reverse(),
            Policy::Random => shuffle(&mut order, &mut self.rng),
        }
        self.waiting = Waiting::new(order, g.grid, g.cluster);
        let mut live: Vec<Cluster> = Vec::new();
        let mut stalls = 0;
        let mut last_progress = (0, 0);
        let mut look_after = loops::LOOK_AFTER;
        loop {
            while live.len() < resident
                && let Some(index) = self.waiting.next()
            {
                live.push(self.start(index));
            }
            if live.is_empty() {
                return Ok(());
            }
            self.expect_room(&live)?;
            let before = (self.progress, self.report.instructions);
            let mut i = 0;
            while i < live.len() {
                self.run_cluster(&mut live[i])?;
                if live[i].done() {
                    self.flush(&mut live[i])?;
                    live.swap_remove(i);
                    self.progress += 1;
                } else {
                    i += 1;
                }
            }
            if self.progress != before.0 {
                stalls = 0;
                last_progress = (self.polls, self.report.instructions);
                look_after = loops::LOOK_AFTER;
                continue;
            }
            let warps = live.iter().map(|c| c.warps.len() as u64).sum::<u64>();
            let idle = self.report.instructions - last_progress.1;
            if idle > look_after && self.polls == last_progress.0 {
                look_after = idle * 2;
                if let Some(fault) = self.endless(&mut live)? {
                    return Err(fault);
                }
            }
            let most = self.options.idle_limit.unwrap_or((STUCK_AFTER_EACH * warps).min(STUCK_AFTER));
            if idle > most && self.polls == last_progress.0 {
                let mut fault = self.deadlock(&mut live);
                if fault.kind == FaultKind::Deadlock {
                    fault.kind = FaultKind::EndlessLoop;
                    fault.message = format!(
                        "{idle} instructions without a store, an atomic or an arrival: a loop never ends"
                    );
                }
                return Err(fault);
            }
            let stuck = self.polls - last_progress.0 > STUCK_AFTER_POLLS * warps || idle > STUCK_AFTER;
            if self.report.instructions == before.1 || stuck {
                stalls += 1;
                // A blocking wait may give up; only when that changes nothing is it a deadlock.
                if stalls > 3 || stuck {
                    return Err(self.deadlock(&mut live));
                }
                for warp in live.iter_mut().flat_map(|c| &mut c.warps) {
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
        }
    }

    /// Refuses to go on where shadows, or the timeline, have outgrown the memory.
    fn expect_room(&self, live: &[Cluster]) -> Result<(), Fault> {
        let Some(limit) = self.options.memory_limit else { return Ok(()) };
        let hazards =
            live.iter().filter_map(|cluster| cluster.hazards.as_ref()).map(|h| h.bytes()).sum::<u64>();
        let trace = self.report.trace.len() as u64 * 2 * size_of::<TraceEvent>() as u64;
        let all = self.geometry.bytes + hazards + self.global.bytes() + trace;
        if all <= limit {
            return Ok(());
        }
        let message = format!("the run takes {all} bytes by now, more than the {limit} that it has");
        let note =
            format!("hazards are found by {}, the timeline has {trace}", hazards + self.global.bytes());
        Err(Fault::new(FaultKind::MemoryLimit, message).note(note))
    }

    fn start(&mut self, index: u32) -> Cluster {
        let g = self.geometry;
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
                let k = self.kernel;
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
        let hazards = self
            .options
            .hazards
            .then(|| Box::new(Hazards::new(index, warps.len(), size as usize, SHARED_BASE, g.shared)));
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

    fn cx<'c>(&'c mut self, cluster: &'c mut Cluster) -> Cx<'c> {
        Cx {
            kernel: self.kernel,
            cluster,
            memory: self.memory,
            params: self.params,
            options: self.options,
            rng: &mut self.rng,
            report: &mut self.report,
            progress: &mut self.progress,
            polls: &mut self.polls,
            executed: &mut self.executed,
            findings: &self.findings,
            at: (0, 0),
            global: &mut self.global,
            predecessor: self.predecessor,
            waiting: &mut self.waiting,
            output: &mut self.output,
        }
    }

    /// Runs the warps of one cluster until they wait for others, or long enough.
    fn run_cluster(&mut self, cluster: &mut Cluster) -> Result<(), Fault> {
        let mut order: Vec<usize> = (0..cluster.warps.len()).collect();
        if self.options.policy == Policy::Lazy {
            order.reverse();
        }
        let mut idle_rounds = 0;
        for _ in 0..ROUNDS {
            if self.options.policy == Policy::Random {
                shuffle(&mut order, &mut self.rng);
            }
            let before = (self.progress, self.report.instructions);
            for &w in &order {
                if cluster.warps[w].done() {
                    continue;
                }
                if self.interrupt.is_raised() {
                    return Err(Fault::new(FaultKind::Interrupted, "the run was asked to end"));
                }
                let quantum = match self.options.policy {
                    Policy::Random => 1 + self.rng.below(200) as u32,
                    _ => 4096,
                };
                let mut warp = std::mem::take(&mut cluster.warps[w]);
                let mut cx = self.cx(cluster);
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
                    self.complete_one(cluster)?;
                }
            }
            if cluster.done() {
                return Ok(());
            }
            // Nothing ran, or only polling did: time for something asynchronous to happen.
            idle_rounds = if self.progress == before.0 { idle_rounds + 1 } else { 0 };
            if self.report.instructions == before.1 || idle_rounds >= 3 {
                idle_rounds = 0;
                if !self.complete_one(cluster)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Performs one piece of asynchronous work; false when there is none.
    fn complete_one(&mut self, cluster: &mut Cluster) -> Result<bool, Fault> {
        let busy: Vec<usize> =
            (0..cluster.warps.len()).filter(|w| !cluster.warps[*w].wgmma.queue.is_empty()).collect();
        let cx = self.cx(cluster);
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
            let result = self.cx(cluster).wgmma_execute(&mut warp);
            cluster.warps[w] = warp;
            result?;
        } else if choice < busy.len() + copies.len() {
            self.cx(cluster).perform(copies[choice - busy.len()])?;
        } else {
            self.cx(cluster).perform_work(tensor[choice - busy.len() - copies.len()])?;
        }
        Ok(true)
    }

    /// The writes that a finished cluster still has under way.
    fn flush(&mut self, cluster: &mut Cluster) -> Result<(), Fault> {
        while !cluster.pending.is_empty() {
            self.cx(cluster).perform(0)?;
        }
        while let Some(next) = cluster.tensor_work.first() {
            self.cx(cluster).perform_work(next)?;
        }
        Ok(())
    }

    fn deadlock(&mut self, live: &mut [Cluster]) -> Fault {
        let mut notes = Vec::new();
        let mut why = Why::default();
        let mut at = None;
        for cluster in live.iter_mut() {
            let mut warps = std::mem::take(&mut cluster.warps);
            let cx = self.cx(cluster);
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
        let (kind, message) =
            why.kind.unwrap_or((FaultKind::Deadlock, "nothing can run any more".to_owned()));
        let mut fault = Fault::new(kind, message);
        fault.at = at;
        fault.other = why.other;
        fault.notes = notes;
        fault
    }
}

/// Registers that a thread starts with, in multiples of eight: those that `.maxnreg` names, else the most that a thread
/// of a CTA with so many can have.
fn registers_at_first(threads: u32, named: Option<u32>) -> u32 {
    const MOST: u32 = 248;
    let fit = 65_536 / threads.next_multiple_of(32).max(32) / 8 * 8;
    named.map_or(fit.min(MOST), |named| named.min(256).next_multiple_of(8).min(fit))
}

/// What a warp stopped to wait for, in a few words.
fn waits_for(wait: Option<&Wait>, cx: &Cx<'_>) -> String {
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
        None => "runs without effect on anything else (it polls)".into(),
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

fn shuffle<T>(list: &mut [T], rng: &mut Rng) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i + 1));
    }
}
