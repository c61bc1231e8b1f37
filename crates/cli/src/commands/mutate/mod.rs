//! `oxigemm mutate`: deletes or weakens every synchronization instruction of a kernel, one at a time, and counts how
//! many of these mutants the simulator finds.
//!
//! A mutant is found when some schedule of some case reports a fault or gives other bits than the kernel itself. One
//! that survives is a miss of the simulator, or an instruction that the kernel could do without.

mod blackwell;
mod cases;
mod explained;
mod oracle;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use indicatif::ProgressBar;
use oxigemm::plan::{KOrder, Limits};
use oxigemm::sim::{Options, Policy};
use oxigemm::{Device, Error, GemmOptions, Sim};
use oxigemm_kernels::{Arch, KernelId};
use oxigemm_sim::{Mutant, mutants};
use oxigemm_testkit::{Effort, Failure, Gemm};
use rayon::prelude::*;
use serde_json::json;

use self::cases::{Case, cases};
use super::trace::simulator;
use crate::output::{print_json, print_line, progress};
use crate::{Common, Outcome};

/// Arguments of `mutate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The kernel, as `prebuild --list` names it; without it, some of each family.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Kernels of other compilers instead; with --kernel, that one.
    #[arg(long)]
    oracle: bool,
    /// The architecture whose kernels are meant; without it, that of the kernel or of the device.
    #[arg(long, value_name = "ARCH", value_parser = parse_arch, conflicts_with = "oracle")]
    arch: Option<Arch>,
    /// Every so many-th mutant only, of kernels of sm_100a.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
}

/// The kernels that stand for their families.
const FAMILIES: [&str; 17] = [
    "sm90_fp8_gemm_persistent_stream_k_256x128_s3",
    "sm90_fp8_gemm_split_k_8x64",
    "sm90_fp8_gemm_persistent_m_grouped_64x128_s8",
    "sm90_bf16_gemm_persistent_nt_128x192_s4",
    "sm90_bf16_gemm_split_k_nn_8x64",
    "sm90_fp8_gemm_persistent_1d1d_64x128_s6",
    "sm90_fp8_gemm_persistent_k_grouped_1d1d_128x128_s4",
    "sm90_fp8_gemm_persistent_fused_64x128_s6",
    "sm90_fp8_gemm_persistent_fused_m_grouped_64x128_s6",
    "sm90_bf16_gemm_persistent_fused_nt_64x128_s8",
    "sm90_fp8_gemm_persistent_gated_64x128_s6",
    "sm90_bf16_gemm_persistent_gated_nt_64x128_s7",
    "sm90_bf16_gemm_persistent_fused_m_grouped_nt_128x128_s5",
    "sm90_fp8_gemm_split_k_fused_32x128",
    "sm90_bf16_gemm_split_k_gated_nt_8x256",
    "sm90_fp8_gemm_persistent_m_grouped_256x128_s3",
    "sm90_bf16_gemm_persistent_stream_k_nt_128x128_s6",
];
/// The share of mutants that must be found.
const BAR: f64 = 0.95;
/// A mutant that loops is given up after this many warp instructions.
const INSTRUCTION_LIMIT: u64 = 20_000_000;

/// Instructions of those kernels whose mutants may survive: what is done, in which file, how often, and why nothing is
/// lost without them.
struct Redundant {
    kernel: &'static str,
    what: &'static str,
    file: &'static str,
    times: usize,
    why: &'static str,
}

const BETWEEN_STAGES: &str = "between the stages of a tile only `wgmma` touches the accumulators";

/// What persistent kernels of 16-bit operands can do without.
const fn of_f16_persistent(kernel: &'static str) -> Redundant {
    Redundant { kernel, what: "wgmma.fence", file: "mainloop.rs", times: 1, why: BETWEEN_STAGES }
}

const PASSED_BY: &str =
    "lanes that skip a tile diverge by no more than the stages of the ring, as each releases the scales";

/// What m-grouped FP8 kernels, where every lane releases scales, can do without here; not with fewer stages.
const fn of_m_grouped(kernel: &'static str) -> Redundant {
    Redundant { kernel, what: "bar.warp.sync", file: "mainloop.rs", times: 1, why: PASSED_BY }
}

const STAGES_TELL: &str =
    "a producer that also loads tiles has waited for a stage that was released after those scales";

/// What split-K kernels, whose stages are no more than the blocks of K of one scale load, can do without.
const fn of_split_k(kernel: &'static str) -> Redundant {
    Redundant { kernel, what: "does not wait", file: "pipeline.rs", times: 1, why: STAGES_TELL }
}

const REDUNDANT: [Redundant; 14] = [
    of_split_k(FAMILIES[1]),
    of_m_grouped(FAMILIES[2]),
    of_f16_persistent(FAMILIES[3]),
    of_f16_persistent(FAMILIES[16]),
    Redundant {
        kernel: FAMILIES[16],
        what: "bar.warp.sync",
        file: "epilogue.rs",
        times: 1,
        why: "the lanes of a warp leave a wait together, and one of them writes the word and arrives",
    },
    Redundant {
        kernel: FAMILIES[6],
        what: "fence.acq_rel",
        file: "dynamic_tensor_maps.rs",
        times: 1,
        why: "after a CTA claims a slot for its tensor maps: the CTAs of one launch have different slots",
    },
    of_m_grouped(FAMILIES[8]),
    of_f16_persistent(FAMILIES[9]),
    of_f16_persistent(FAMILIES[11]),
    of_f16_persistent(FAMILIES[12]),
    of_split_k(FAMILIES[13]),
    of_m_grouped(FAMILIES[15]),
    Redundant {
        kernel: FAMILIES[15],
        what: "does not wait",
        file: "pipeline.rs",
        times: 1,
        why: "before it has stored a tile it knows the next one, as consumers stage a tile when the scales of the next have arrived",
    },
    Redundant {
        kernel: FAMILIES[15],
        what: "does not wait",
        file: "pipeline.rs",
        times: 1,
        why: "consumers have waited for a tile's first scales before, when they looked for the next tile",
    },
];

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    if args.oracle {
        return oracle::run(common, args.kernel.as_deref());
    }
    // Mutants run under several schedules, whatever that of the device is.
    let limits = *simulator(common, "runs mutants")?.limits();
    let by_name = |name: &str| Arch::ALL.into_iter().find(|arch| name.starts_with(&arch.kernel_name("")));
    let arch = args.arch.or(args.kernel.as_deref().and_then(by_name)).unwrap_or(limits.arch);
    if arch == Arch::Sm100a {
        let sample = blackwell::Sample { every: args.every as usize };
        return blackwell::run(common, args.kernel.as_deref(), sample);
    }
    let names: Vec<&str> = args.kernel.as_deref().map_or(FAMILIES.to_vec(), |name| vec![name]);
    let mut right = true;
    let (mut all, mut found) = (0, 0);
    for name in &names {
        let kernel = KernelId::all(limits.arch)
            .filter(|kernel| matches!(kernel, KernelId::Gemm(_) | KernelId::Transpose(_)))
            .find(|kernel| kernel.name() == *name)
            .ok_or_else(|| format!("{name} is not a kernel: `oxigemm prebuild --list` names them"))?;
        let score = Score::of(kernel, &limits)?;
        score.print(common.json);
        right &= score.good();
        all += score.mutants();
        found += score.found();
    }
    if names.len() > 1 {
        if common.json {
            print_json(&json!({ "mutants": all, "found": found }));
        } else {
            print_line(&format!("{found} of {all} mutants found ({:.1}%)", percent(found, all)));
        }
    }
    Ok(right)
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// Lazy, eager, and some random schedules. The first finds what makes lanes diverge, at once.
fn schedules() -> impl Iterator<Item = Options> {
    let random = (0..4).map(|seed| (Policy::Random, seed));
    [(Policy::Lazy, 0), (Policy::Eager, 0)].into_iter().chain(random).map(|(policy, seed)| Options {
        policy,
        seed,
        instruction_limit: INSTRUCTION_LIMIT,
        ..Options::default()
    })
}

/// What the kernel itself does in a case.
struct Known {
    case: Case,
    /// How long it takes.
    instructions: u64,
    /// The lines of PTX that it executes.
    lines: Vec<u32>,
    bits: Vec<u8>,
}

impl Known {
    /// The kernel itself must be free of faults, or nothing could be said of its mutants.
    fn of(case: &Case) -> Result<Known, Failure> {
        let sim = Sim::new();
        let mut trial = Trial::new(case, &sim)?;
        let (mut instructions, mut lines, mut bits) = (0, Vec::new(), Vec::new());
        for schedule in schedules() {
            trial.run(&sim, schedule)??;
            let report = sim.last_report().ok_or("no kernel has run")?;
            (instructions, lines) = (report.instructions, report.lines);
            bits = trial.gemm.d_memory.to_bytes()?;
        }
        let verdict = trial.gemm.judge(Effort::QUICK)?;
        if !verdict.right {
            return Err(format!("{}: {verdict:?}", case.gemm).into());
        }
        Ok(Known { case: case.clone(), instructions, lines, bits })
    }

    fn executes(&self, mutant: &Mutant) -> bool {
        self.lines.binary_search(&mutant.line).is_ok()
    }
}

/// A case on a simulated device, to be run again and again.
struct Trial {
    gemm: Gemm,
    options: GemmOptions,
    /// D before the GEMM.
    before: Vec<u8>,
}

impl Trial {
    fn new(case: &Case, sim: &Sim) -> Result<Trial, Failure> {
        let gemm = case.gemm.on(&Device::Sim(sim.clone()))?;
        let (config, num_sms, k_order) = (Some(case.config), case.num_sms, Some(KOrder::Serpentine));
        let options = GemmOptions { config, num_sms, k_order, ..Default::default() };
        let before = gemm.d_memory.to_bytes()?;
        Ok(Trial { gemm, options, before })
    }

    fn run(&mut self, sim: &Sim, schedule: Options) -> Result<Result<(), Error>, Failure> {
        sim.set_options(schedule);
        self.gemm.d_memory.write_bytes(&self.before)?;
        Ok(self.gemm.run(&self.options))
    }

    /// What a schedule finds wrong, if anything.
    fn verdict(&mut self, sim: &Sim, schedule: Options, known: &Known) -> Result<Option<String>, Failure> {
        match self.run(sim, schedule)? {
            Err(Error::Fault { fault, .. }) => Ok(Some(format!("{:?}", fault.kind))),
            Err(error) => Err(error.into()),
            Ok(()) => Ok((self.gemm.d_memory.to_bytes()? != known.bits).then(|| "other bits".to_owned())),
        }
    }
}

/// What became of a mutant.
enum Fate {
    NotExecuted,
    Found(String),
    Survived,
}

/// Runs mutants of a kernel, one after another, until the queue is empty.
fn fates<'a>(
    kernel: KernelId,
    known: &[Known],
    queue: &Mutex<impl Iterator<Item = &'a Mutant>>,
    bar: &ProgressBar,
) -> Result<Vec<(&'a Mutant, Fate)>, Failure> {
    let sim = Sim::new();
    let mut trials = known
        .iter()
        .map(|known| Ok((known, Trial::new(&known.case, &sim)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut fates = Vec::new();
    let next = || queue.lock().expect("no thread panics with it").next();
    while let Some(mutant) = next() {
        sim.replace_kernel(kernel, &mutant.text)?;
        let mut fate = Fate::NotExecuted;
        'found: for schedule in schedules() {
            for (known, trial) in trials.iter_mut().filter(|(known, _)| known.executes(mutant)) {
                fate = match trial.verdict(&sim, schedule.clone(), known)? {
                    Some(kind) => Fate::Found(kind),
                    None => Fate::Survived,
                };
                if matches!(fate, Fate::Found(_)) {
                    break 'found;
                }
            }
        }
        fates.push((mutant, fate));
        bar.inc(1);
    }
    Ok(fates)
}

/// A mutant that nothing was found of.
struct Survivor {
    /// File and line of the kernel's source.
    source: String,
    line: u32,
    what: String,
    why: Option<&'static str>,
}

/// What became of the mutants of one kernel.
struct Score {
    kernel: String,
    /// How many were found, by what.
    kinds: BTreeMap<String, usize>,
    survivors: Vec<Survivor>,
    not_executed: usize,
}

impl Score {
    fn of(kernel: KernelId, limits: &Limits) -> Result<Score, Failure> {
        let text = kernel.build()?.text;
        let (mutants, sources) = (mutants(&text), sources(&text));
        // What is quickly done finds most of them: it comes first.
        let mut known = cases(kernel, limits).par_iter().map(Known::of).collect::<Result<Vec<_>, _>>()?;
        known.sort_by_key(|known| known.instructions);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
        let queue = Mutex::new(mutants.iter());
        let bar = progress(mutants.len());
        bar.set_message(kernel.name());
        let done = thread::scope(|scope| {
            let run = || fates(kernel, &known, &queue, &bar);
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            let join = |handle: thread::ScopedJoinHandle<'_, Result<Vec<_>, Failure>>| {
                handle.join().map_err(|_| Failure::from("a thread panicked"))?
            };
            handles.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        });
        bar.finish_and_clear();
        let mut score =
            Score { kernel: kernel.name(), kinds: BTreeMap::new(), survivors: Vec::new(), not_executed: 0 };
        for (mutant, fate) in done?.into_iter().flatten() {
            match fate {
                Fate::NotExecuted => score.not_executed += 1,
                Fate::Found(kind) => *score.kinds.entry(kind).or_default() += 1,
                Fate::Survived => score.survivors.push(Survivor {
                    source: sources[mutant.line as usize - 1].clone(),
                    line: mutant.line,
                    what: mutant.what.clone(),
                    why: None,
                }),
            }
        }
        score.survivors.sort_by(|a, b| (a.line, &a.what).cmp(&(b.line, &b.what)));
        score.explain();
        Ok(score)
    }

    /// Gives survivors the reasons that are known.
    fn explain(&mut self) {
        for known in REDUNDANT.iter().filter(|known| self.kernel == known.kernel) {
            let explained = |s: &&mut Survivor| {
                s.why.is_none() && s.what.contains(known.what) && s.source.starts_with(known.file)
            };
            self.survivors
                .iter_mut()
                .filter(explained)
                .take(known.times)
                .for_each(|s| s.why = Some(known.why));
        }
    }

    fn found(&self) -> usize {
        self.kinds.values().sum()
    }

    fn mutants(&self) -> usize {
        self.found() + self.survivors.len()
    }

    /// Enough were found, and of the others it is known why not.
    fn good(&self) -> bool {
        let share = self.found() as f64 / self.mutants().max(1) as f64;
        share >= BAR && self.not_executed == 0 && self.survivors.iter().all(|survivor| survivor.why.is_some())
    }

    fn print(&self, as_json: bool) {
        let (found, all) = (self.found(), self.mutants());
        if as_json {
            let survivors: Vec<_> = self
                .survivors
                .iter()
                .map(|s| json!({ "source": s.source, "ptx_line": s.line, "what": s.what, "why": s.why }))
                .collect();
            return print_json(&json!({
                "kernel": self.kernel, "mutants": all, "found": found, "survivors": survivors,
                "not_executed": self.not_executed, "kinds": self.kinds,
            }));
        }
        print_line(&format!("{}: {found} of {all} mutants found ({:.1}%)", self.kernel, percent(found, all)));
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        print_line(&format!("  by {}", kinds.join(", ")));
        if self.not_executed > 0 {
            print_line(&format!("  {} are of instructions that no case executes", self.not_executed));
        }
        for s in &self.survivors {
            let why = s.why.map_or("NOT EXPLAINED".to_owned(), |why| format!("redundant: {why}"));
            print_line(&format!("  survives: {}, PTX line {}: {}; {why}", s.source, s.line, s.what));
        }
    }
}

/// The line of the kernel's source for every line of PTX, by its `.loc` directives.
fn sources(text: &str) -> Vec<String> {
    let mut files = BTreeMap::new();
    let mut now = String::new();
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some((number, path)) = line.strip_prefix(".file ").and_then(|rest| rest.split_once(' ')) {
            let name = path.trim_matches('"').rsplit('/').next().unwrap_or_default();
            files.insert(number, name);
        }
        if let Some(rest) = line.strip_prefix(".loc ") {
            let mut words = rest.split_whitespace();
            let file = words.next().and_then(|number| files.get(number)).copied().unwrap_or("?");
            now = format!("{file}:{}", words.next().unwrap_or("?"));
        }
        sources.push(now.clone());
    }
    sources
}

/// An architecture that has kernels.
fn parse_arch(name: &str) -> Result<Arch, String> {
    let found = Arch::ALL.into_iter().find(|arch| arch.name() == name);
    found.ok_or_else(|| {
        format!("no kernel is written for {name}: expected {}", Arch::ALL.map(Arch::name).join(", "))
    })
}
