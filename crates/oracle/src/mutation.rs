//! Mutants of a kernel: how many of them the simulator finds, and which of the others change nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;

use oxigemm_sim::{Module, Mutant, Options, Policy, misvalued, mutants};

use crate::case::{Case, Operands};
use crate::check::Failure;
use crate::explained::why;
use crate::kernel::Kernel;
use crate::order::{Unordered, unordered};

/// What a mutant changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `tcgen05.alloc` and `dealloc`.
    Allocation,
    /// `tcgen05.relinquish_alloc_permit`.
    Permit,
    /// `tcgen05.commit`, and groups of `wgmma`.
    Commit,
    /// Waits for MMAs, loads and stores of tensor memory: `tcgen05.wait`, `wgmma.wait_group`.
    Wait,
    /// Fences.
    Fence,
    /// Waits for a phase of an mbarrier.
    Phase,
    /// The parity of such a wait.
    Parity,
    /// Counts of mbarriers, arrivals, expected bytes.
    Count,
    /// Descriptors of operands, and where scales are.
    Descriptor,
    /// MMAs and copies to tensor memory: whether, when, how many columns, into what.
    Issue,
    /// Programmatic launches: `griddepcontrol`.
    Launch,
    /// Cluster launch control.
    Claim,
    /// Groups of `cp.async`.
    CopyGroup,
    /// Groups of bulk copies.
    BulkGroup,
    /// Barriers of a CTA.
    CtaBarrier,
    /// Barriers of a warp.
    WarpBarrier,
    /// Barriers of a cluster.
    ClusterBarrier,
}

impl Kind {
    /// That of a mutant, by what was done and the instruction.
    pub fn of(what: &str) -> Kind {
        let (done, instruction) = what.split_once(": ").unwrap_or(("", what));
        let unguarded = match instruction.strip_prefix('@') {
            Some(rest) => rest.trim_start_matches(|c: char| !c.is_whitespace()).trim_start(),
            None => instruction,
        };
        let starts = |list: &[&str]| list.iter().any(|opcode| unguarded.starts_with(opcode));
        match done {
            "waits for the other parity" => return Kind::Parity,
            _ if done.starts_with("descriptor") || done.starts_with("scales") => return Kind::Descriptor,
            _ => {}
        }
        match () {
            () if starts(&["tcgen05.alloc", "tcgen05.dealloc"]) => Kind::Allocation,
            () if starts(&["tcgen05.relinquish"]) => Kind::Permit,
            () if starts(&["tcgen05.commit", "wgmma.commit"]) => Kind::Commit,
            () if starts(&["tcgen05.wait", "wgmma.wait"]) => Kind::Wait,
            () if starts(&["fence", "tcgen05.fence", "wgmma.fence"]) => Kind::Fence,
            () if starts(&["mbarrier.try_wait", "mbarrier.test_wait"]) => Kind::Phase,
            () if starts(&["tcgen05.mma", "tcgen05.cp"]) => Kind::Issue,
            () if starts(&["griddepcontrol"]) => Kind::Launch,
            () if starts(&["cp.async.bulk."]) => Kind::BulkGroup,
            () if starts(&["cp.async.mbarrier"]) => Kind::Count,
            () if starts(&["cp.async."]) => Kind::CopyGroup,
            () if starts(&["clusterlaunchcontrol"]) => Kind::Claim,
            () if starts(&["bar.warp."]) => Kind::WarpBarrier,
            () if starts(&["barrier.cluster."]) => Kind::ClusterBarrier,
            () if starts(&["bar.", "barrier."]) => Kind::CtaBarrier,
            () => Kind::Count,
        }
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Allocation => "alloc, dealloc",
            Kind::Permit => "relinquish_alloc_permit",
            Kind::Commit => "commit",
            Kind::Wait => "wait",
            Kind::Fence => "fence",
            Kind::Phase => "mbarrier wait",
            Kind::Parity => "parity",
            Kind::Count => "count, arrival, bytes",
            Kind::Descriptor => "descriptor",
            Kind::Issue => "MMA, cp",
            Kind::Launch => "griddepcontrol",
            Kind::Claim => "cluster launch control",
            Kind::CopyGroup => "cp.async group",
            Kind::BulkGroup => "bulk group",
            Kind::CtaBarrier => "CTA barrier",
            Kind::WarpBarrier => "warp barrier",
            Kind::ClusterBarrier => "cluster barrier",
        }
    }

    /// Whether it is allocation, commit, wait, fence, parity, count or descriptor: what a kernel for the tensor core
    /// cannot do without. Barriers of threads and groups of copies are not among them.
    pub fn is_core(self) -> bool {
        use Kind::*;
        matches!(self, Allocation | Commit | Wait | Fence | Phase | Parity | Count | Descriptor | Issue)
    }

    /// Whether all that a mutant's instruction does is to order accesses to memory, in ways that [`unordered`] follows:
    /// only then what it says is a proof.
    pub fn only_orders(what: &str) -> bool {
        only_orders(Kind::of(what), what)
    }
}

/// Whether all that an instruction does is to order accesses to memory, in ways that [`unordered`] follows. (`wgmma` also
/// orders registers; fences, allocations and descriptors are something else.)
fn only_orders(kind: Kind, what: &str) -> bool {
    use Kind::*;
    match kind {
        CopyGroup | BulkGroup | CtaBarrier | WarpBarrier | ClusterBarrier | Phase | Parity | Count => true,
        Commit | Wait => what.contains("tcgen05."),
        Fence => what.contains("tcgen05.fence"),
        Allocation | Permit | Descriptor | Claim | Issue | Launch => false,
    }
}

/// A mutant that no schedule found.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// The line of the PTX.
    pub line: u32,
    /// What was done, and to which instruction.
    pub what: String,
    /// The kind.
    pub kind: Kind,
    /// What is not in order without it, by [`unordered`]; `None` where the kind does more than to order memory.
    pub unordered: Option<Vec<Unordered>>,
    /// Why nothing is lost without it, where it is not redundant by proof and somebody has looked.
    pub why: Option<&'static str>,
}

impl Survivor {
    /// Whether every access is in order without it.
    pub fn redundant(&self) -> bool {
        self.unordered.as_ref().is_some_and(Vec::is_empty)
    }
}

/// The mutants of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All that the launch executes.
    pub mutants: usize,
    /// Those that were found.
    pub found: usize,
    /// Those of the others that are redundant by proof.
    pub redundant: usize,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: Tally) {
        self.mutants += other.mutants;
        self.found += other.found;
        self.redundant += other.redundant;
    }

    /// The part of those that are not redundant by proof that were found.
    pub fn share(self) -> f64 {
        self.found as f64 / (self.mutants - self.redundant).max(1) as f64
    }
}

/// What became of the mutants of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Score {
    /// How many were found, by the kind of fault.
    pub found: BTreeMap<String, usize>,
    /// By what they change.
    pub kinds: BTreeMap<Kind, Tally>,
    /// Those that no schedule found.
    pub survivors: Vec<Survivor>,
    /// Those that were found though [`unordered`] sees everything in order: it is wrong about them.
    pub disputed: Vec<(u32, String)>,
    /// Found mutants that [`unordered`] was asked about.
    pub asked: usize,
    /// Those of instructions that the launch does not execute.
    pub not_executed: usize,
}

impl Score {
    /// Mutants that were found.
    pub fn count(&self) -> usize {
        self.found.values().sum()
    }

    /// Mutants of instructions that the launch executes.
    pub fn mutants(&self) -> usize {
        self.count() + self.survivors.len()
    }

    /// Survivors that are redundant by proof.
    pub fn redundant(&self) -> usize {
        self.survivors.iter().filter(|s| s.redundant()).count()
    }

    /// The other survivors that are explained.
    pub fn explained(&self) -> usize {
        self.survivors.iter().filter(|s| s.why.is_some()).count()
    }

    /// A row of the table in `docs/blackwell.md`: mutants, found, redundant by proof, explained, and the first three of
    /// the kinds that a kernel for the tensor core cannot do without.
    pub fn row(&self, kernel: &str) -> String {
        let (all, core) = (self.tally(|_| true), self.tally(Kind::is_core));
        let (of_all, of_core) = (self.mutants(), core.mutants);
        format!(
            "| `{kernel}` | {of_all} | {} | {} | {} | {of_core} | {} | {} |",
            all.found,
            all.redundant,
            self.explained(),
            core.found,
            core.redundant
        )
    }

    /// The mutants of some kinds.
    pub fn tally(&self, of: impl Fn(Kind) -> bool) -> Tally {
        let mut sum = Tally::default();
        self.kinds.iter().filter(|(kind, _)| of(**kind)).for_each(|(_, tally)| sum.add(*tally));
        sum
    }
}

/// Lazy, eager, and some random schedules; a mutant that loops is given up.
fn schedules(limit: u64) -> impl Iterator<Item = Options> {
    let random = (0..4).map(|seed| (Policy::Random, seed));
    [(Policy::Lazy, 0), (Policy::Eager, 0)].into_iter().chain(random).map(move |(policy, seed)| Options {
        policy,
        seed,
        instruction_limit: limit,
        ..Options::default()
    })
}

/// Schedules whose records are looked at.
const RECORDED: usize = 3;

/// What is not in order in some schedules of a module; `None` where it does not run to its end.
fn disorder(kernel: &Kernel, case: &Case<'_>, module: &Module, limit: u64) -> Option<Vec<Unordered>> {
    let warps = kernel.block.iter().product::<u32>().div_ceil(32);
    let mut all = Vec::new();
    for options in schedules(limit).take(RECORDED) {
        let options = Options { record: true, keep_going: true, ..options };
        let (report, _) = case.run(module, &options).ok()?;
        if report.stopped {
            return None;
        }
        all.extend(unordered(&report.record, warps));
    }
    all.sort();
    all.dedup();
    Some(all)
}

/// Every mutant of a kernel under six schedules, until one of them reports a fault or gives other bits. What survives
/// and only orders memory is compared with [`unordered`].
pub fn score(kernel: &Kernel, threads: usize, done: impl Fn(usize, usize) + Sync) -> Result<Score, Failure> {
    let fail = |what: String| Failure::new(format!("{}: {what}", kernel.name));
    let case = Case::new(kernel, Operands::Normals).map_err(fail)?;
    let module = Module::parse(&kernel.ptx).map_err(|error| fail(error.to_string()))?;
    let (report, known) = case.run(&module, &Options::default()).map_err(|fault| fail(fault.to_string()))?;
    case.judge(&known).map_err(fail)?;
    let all: Vec<Mutant> = [mutants(&kernel.ptx), misvalued(&kernel.ptx)].concat();
    let total = all.len();
    let limit = 100 * report.instructions + 1_000_000;
    let queue = Mutex::new(all.iter().enumerate());
    let score = Mutex::new(Score::default());
    let one = |mutant: &Mutant| -> Result<(Option<String>, Option<Vec<Unordered>>), Failure> {
        let module =
            Module::parse(&mutant.text).map_err(|error| fail(format!("{}: {error}", mutant.what)))?;
        let found = schedules(limit).find_map(|options| match case.run(&module, &options) {
            Err(fault) => Some(format!("{:?}", fault.kind)),
            Ok((_, outputs)) => (outputs != known).then(|| "other bits".to_owned()),
        });
        let asks = only_orders(Kind::of(&mutant.what), &mutant.what);
        Ok((found, asks.then(|| disorder(kernel, &case, &module, limit)).flatten()))
    };
    let work = || -> Result<(), Failure> {
        loop {
            let next = queue.lock().expect("no thread panics with it").next();
            let Some((index, mutant)) = next else { return Ok(()) };
            let executed = report.lines.binary_search(&mutant.line).is_ok();
            let fate = if executed { Some(one(mutant)?) } else { None };
            let mut score = score.lock().expect("no thread panics with it");
            score.add(mutant, fate);
            drop(score);
            done(index + 1, total);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
    })?;
    let mut score = score.into_inner().expect("no thread panics with it");
    score.survivors.sort_by(|a, b| (a.line, &a.what).cmp(&(b.line, &b.what)));
    score.disputed.sort();
    for survivor in &mut score.survivors {
        survivor.why = why(&kernel.name, survivor).filter(|_| !survivor.redundant());
    }
    Ok(score)
}

/// What became of a mutant: what found it, and what is not in order, where that was looked for.
pub type Fate = (Option<String>, Option<Vec<Unordered>>);

impl Score {
    /// Counts a mutant, without a fate where nothing executes its instruction.
    pub fn add(&mut self, mutant: &Mutant, fate: Option<Fate>) {
        let Some((found, unordered)) = fate else {
            self.not_executed += 1;
            return;
        };
        let (line, what, kind) = (mutant.line, mutant.what.clone(), Kind::of(&mutant.what));
        let tally = self.kinds.entry(kind).or_default();
        tally.mutants += 1;
        match found {
            Some(fault) => {
                tally.found += 1;
                self.asked += usize::from(unordered.is_some());
                if unordered.is_some_and(|list| list.is_empty()) {
                    self.disputed.push((line, what));
                }
                *self.found.entry(fault).or_default() += 1;
            }
            None => {
                let survivor = Survivor { line, what, kind, unordered, why: None };
                tally.redundant += usize::from(survivor.redundant());
                self.survivors.push(survivor);
            }
        }
    }
}

/// What is not in order in a kernel itself: nothing, or [`unordered`] knows too little to judge its mutants.
pub fn disorder_of(kernel: &Kernel) -> Result<Vec<Unordered>, Failure> {
    let fail = |what: String| Failure::new(format!("{}: {what}", kernel.name));
    let case = Case::new(kernel, Operands::Normals).map_err(fail)?;
    let module = Module::parse(&kernel.ptx).map_err(|error| fail(error.to_string()))?;
    disorder(kernel, &case, &module, u64::MAX).ok_or_else(|| fail("it does not run to its end".into()))
}
