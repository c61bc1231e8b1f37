//! `oxigemm verify`: the correctness suite, on any device.
//!
//! Every check states a property and prints one line. Data, shapes and layouts are drawn from a seed, so a failure
//! can be repeated from what its line says.

mod arguments;
mod attention;
mod dense;
mod epilogue;
mod forms;
mod hardware;
mod hyper_connection;
mod k_grouped;
mod kernels;
mod m_grouped;
mod moe;
mod moe_forward;
mod oracle;
mod quantize;
mod random;
mod raw;
mod router;
mod runtime;
mod schedules;
mod simulator;
mod stream_k;
mod summed;

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use oxigemm::plan::{self, Limits};
use oxigemm::sim::Options;
use oxigemm::{Arch, Cuda, Device, GemmOptions, Graph, Stream};
use oxigemm_cuda::assemble::Ptxas;
use oxigemm_testkit::plan::plan as planned;
use oxigemm_testkit::{Effort, Failure, Gemm, GemmCase, Verdict};
use serde_json::json;

use crate::commands::prebuild::target_names;
use crate::output::{print_json, print_line, progress};
use crate::{Common, Outcome};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Fewer cases of everything.
    #[arg(long)]
    quick: bool,
    /// Only checks whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only a part of the checks, such as 1/2, so that processes can share them out.
    #[arg(long, value_name = "NTH/PARTS")]
    part: Option<Part>,
    /// Compare a GPU with this, bit for bit, and check nothing else.
    #[arg(long, value_name = "WITH", conflicts_with_all = ["filter", "quick"])]
    compare: Option<Compare>,
    /// Seed of shapes and operands.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give up when one case takes longer than this: a kernel that hangs never comes back.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    patience: u64,
}

/// Every so many-th check, from one on.
#[derive(Clone, Copy, Debug)]
struct Part {
    nth: usize,
    parts: usize,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Part, String> {
        let numbers =
            text.split_once('/').and_then(|(nth, parts)| Some((nth.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((nth, parts)) if (1..=parts).contains(&nth) => Ok(Part { nth, parts }),
            _ => Err("expected a part and how many there are, such as 1/2".to_owned()),
        }
    }
}

impl Part {
    fn has(self, index: usize) -> bool {
        index % self.parts == self.nth - 1
    }
}

/// What a GPU is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Compare {
    /// The simulator: small cases of every kernel.
    Sim,
}

/// What every check may use.
pub struct Setup {
    device: Device,
    quick: bool,
    seed: u64,
    doing: Mutex<Doing>,
}

/// What is being run, and since when.
struct Doing {
    what: String,
    since: Instant,
}

impl Setup {
    fn new(device: Device, quick: bool, seed: u64) -> Setup {
        let doing = Mutex::new(Doing { what: "the start".to_owned(), since: Instant::now() });
        Setup { device, quick, seed, doing }
    }

    /// Whether a GEMM gives the same bits again and again, each time from the same D.
    fn repeats(&self, case: &GemmCase, options: &GemmOptions) -> Result<(), Failure> {
        let mut gemm = case.on(&self.device)?;
        self.same_bits_again(case, || {
            gemm.poison()?;
            gemm.restore()?;
            gemm.run(options)?;
            gemm.bits()
        })
    }

    /// Launches a graph of a GEMM on poison, and judges what it leaves.
    fn replay(&self, gemm: &mut Gemm, graph: &Graph, stream: &Stream, turn: usize) -> Result<(), Failure> {
        gemm.poison()?;
        graph.launch(stream)?;
        stream.synchronize()?;
        let about = format!("replay {turn} of {}", gemm.case());
        let untouched = gemm.surroundings_untouched()?;
        accept(&gemm.judge(Effort::QUICK)?, untouched, |what| format!("{about}: {what}"))?;
        Ok(())
    }

    /// Whether a run gives the same bits again and again: 20 times on a GPU, a few times where nothing depends on the
    /// time that things take.
    fn same_bits_again<B: PartialEq>(
        &self,
        what: &dyn Display,
        mut run: impl FnMut() -> Result<B, Failure>,
    ) -> Result<(), Failure> {
        let runs = if self.device.as_cuda().is_some() { 20 } else { 3 };
        let first = run()?;
        for repeat in 1..runs {
            ensure(run()? == first, || format!("{what}: repeat {repeat} gave other bits"))?;
        }
        Ok(())
    }

    /// Says what is run from now on.
    fn now(&self, what: String) {
        let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        *doing = Doing { what, since: Instant::now() };
    }

    /// Ends the process when a case does not come back: nothing else ends a kernel that hangs.
    fn watch(&self, patience: Duration) -> ! {
        loop {
            thread::sleep(Duration::from_millis(500));
            let doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
            if doing.since.elapsed() > patience {
                eprintln!("error: {} has not come back for {} s", doing.what, patience.as_secs());
                std::process::exit(3);
            }
        }
    }

    /// Whether the simulator should be asked for little: it computes whole tiles, and tests of the library run every kernel
    /// in it with more cases.
    fn is_thrifty(&self) -> bool {
        self.quick && self.device.as_sim().is_some()
    }

    /// Some of the cases, where the simulator should be asked for little.
    fn thinned<T>(&self, cases: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        // It has no divisor in common with the lists that are gone through.
        cases.into_iter().step_by(if self.is_thrifty() { 5 } else { 1 })
    }

    /// A number of cases, less where it should go fast: not on a GPU, or if asked.
    fn count(&self, full: usize) -> usize {
        let part = match (&self.device, self.quick) {
            (Device::Cuda(_), false) => 1,
            (Device::Cuda(_), true) => 5,
            (Device::Sim(_), true) => 60,
            (Device::Sim(_), false) => 3,
            (_, false) => 5,
            (_, true) => 20,
        };
        full.div_ceil(part)
    }

    /// Multiplications of one case: the reference has to compute them too, and the simulator one by one.
    fn largest(&self) -> usize {
        match (&self.device, self.quick) {
            (Device::Sim(_), true) => 1_000_000,
            (Device::Sim(_), false) => 20_000_000,
            _ => 100_000_000,
        }
    }

    /// The architecture whose kernels are verified: the device's own, Hopper's where it has none.
    fn arch(&self) -> Arch {
        self.device.limits().map_or(Arch::Sm90a, |limits| limits.arch)
    }

    /// Whether the device computes such a case: the CPU every one, another that for which there is a kernel.
    fn serves(&self, case: &GemmCase) -> bool {
        self.device.limits().is_none_or(|limits| planned(case, None, limits).is_some())
    }

    /// The checks of operands and groups like those of a case, or one that says that there is no kernel for them.
    fn family(&self, name: impl Display, case: &GemmCase, checks: Vec<Check>) -> Vec<Check> {
        if self.serves(case) { checks } else { vec![Check::absent(name.to_string())] }
    }

    /// A simulator of the device's architecture, which looks for no hazards.
    fn simulator(&self) -> Result<Device, Failure> {
        let device: Device = format!("sim:{}", self.arch()).parse()?;
        if let Some(sim) = device.as_sim() {
            sim.set_options(Options { hazards: false, ..sim.options() });
        }
        Ok(device)
    }

    /// What planning knows of the device, for checks that need kernels.
    fn limits(&self) -> Result<Limits, Failure> {
        self.device.limits().copied().ok_or_else(|| "this needs a GPU or the simulator".into())
    }

    /// The GPU, for checks that are only run on one.
    fn cuda(&self) -> Result<&Cuda, Failure> {
        self.device.as_cuda().ok_or_else(|| "this needs a GPU".into())
    }
}

/// What a check does: a note, or what is wrong.
type Run = dyn Fn(&Setup) -> Result<String, Failure>;

/// Where a check can be run.
#[derive(Clone, Copy)]
enum Needs {
    /// Anywhere.
    Nothing,
    /// Where there are kernels: on a GPU or in the simulator.
    Kernels,
    /// On a GPU.
    Gpu,
    /// On a GPU, with an assembler whose cubins can be cached.
    GpuAndPtxas,
    /// In the simulator.
    Simulator,
    /// A kernel that the architecture has not.
    Kernel,
    /// In the simulator, of a Blackwell GPU.
    SimulatedBlackwell,
}

impl Needs {
    /// Why not on this device, if so.
    fn why_not(self, device: &Device) -> Option<&'static str> {
        match (self, device) {
            (Needs::GpuAndPtxas, Device::Cuda(_)) if Ptxas::find().is_none() => Some("this needs a ptxas"),
            (Needs::Kernel, _) => Some("the architecture has no kernel for this"),
            (Needs::Simulator, Device::Sim(_)) => None,
            (Needs::SimulatedBlackwell, Device::Sim(sim)) if sim.limits().arch == Arch::Sm100a => None,
            (Needs::SimulatedBlackwell, _) => Some("this needs sim:sm_100a"),
            (Needs::Simulator, _) => Some("this needs the simulator"),
            (Needs::Nothing, _) | (_, Device::Cuda(_)) | (Needs::Kernels, Device::Sim(_)) => None,
            (Needs::Kernels, _) => Some("this needs a GPU or the simulator"),
            (Needs::Gpu | Needs::GpuAndPtxas, _) => Some("this needs a GPU"),
        }
    }
}

/// A check: a note if its property holds, else what was found.
struct Check {
    name: String,
    needs: Needs,
    run: Box<Run>,
    /// Whether `--quick` leaves it out.
    long: bool,
}

impl Check {
    fn anywhere(name: &str, run: impl Fn(&Setup) -> Result<String, Failure> + 'static) -> Check {
        Check { name: name.to_owned(), needs: Needs::Nothing, run: Box::new(run), long: false }
    }

    fn with_kernels(
        name: impl Into<String>,
        run: impl Fn(&Setup) -> Result<String, Failure> + 'static,
    ) -> Check {
        Check { name: name.into(), needs: Needs::Kernels, run: Box::new(run), long: false }
    }

    fn on_gpu(name: impl Into<String>, run: impl Fn(&Setup) -> Result<String, Failure> + 'static) -> Check {
        Check { name: name.into(), needs: Needs::Gpu, run: Box::new(run), long: false }
    }

    /// What stands for the checks of a family without a kernel.
    fn absent(name: impl Into<String>) -> Check {
        let run = |_: &Setup| Err("the architecture has no kernel for this".into());
        Check { name: name.into(), needs: Needs::Kernel, run: Box::new(run), long: false }
    }

    fn on_gpu_with_ptxas(name: &str, run: impl Fn(&Setup) -> Result<String, Failure> + 'static) -> Check {
        Check { name: name.to_owned(), needs: Needs::GpuAndPtxas, run: Box::new(run), long: false }
    }
}

/// The suite, in its order.
const CHECKS: [fn(&Setup) -> Vec<Check>; 20] = [
    dense::checks,
    stream_k::checks,
    arguments::checks,
    raw::checks,
    m_grouped::checks,
    summed::checks,
    k_grouped::checks,
    forms::checks,
    epilogue::checks,
    kernels::checks,
    quantize::checks,
    moe::checks,
    moe_forward::checks,
    router::checks,
    attention::checks,
    hyper_connection::checks,
    runtime::checks,
    hardware::checks,
    oracle::checks,
    schedules::checks,
];
/// Checks that compare a GPU with the simulator.
const COMPARISONS: [fn(&Setup) -> Vec<Check>; 3] =
    [simulator::checks, epilogue::comparisons, quantize::comparisons];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Passed,
    Failed,
    Skipped,
    Absent,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Passed => "ok",
            Mark::Failed => "FAILED",
            Mark::Skipped => "skipped",
            Mark::Absent => "absent",
        }
    }
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let device = common.device()?;
    if args.compare.is_some() && device.as_cuda().is_none_or(|cuda| !cuda.is_supported()) {
        return Err(format!(
            "--compare runs the same inputs on a GPU of {} and in the simulator; the device here is {device}",
            target_names().join(" or ")
        )
        .into());
    }
    let setup = Arc::new(Setup::new(device, args.quick, args.seed));
    let (watched, patience) = (Arc::clone(&setup), Duration::from_secs(args.patience));
    thread::spawn(move || watched.watch(patience));
    let mut checks = Vec::new();
    if args.compare.is_none() {
        checks.extend(CHECKS.iter().flat_map(|checks| checks(&setup)));
    }
    checks.extend(COMPARISONS.iter().flat_map(|checks| checks(&setup)));
    checks.retain(|check| !(args.quick && check.long));
    checks.retain(|check| args.filter.as_ref().is_none_or(|text| check.name.contains(text.as_str())));
    if checks.is_empty() {
        return Err(format!("no check contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    if let Some(part) = args.part {
        let mut indices = 0..;
        let all = checks.len();
        checks.retain(|_| indices.next().is_some_and(|index| part.has(index)));
        if checks.is_empty() {
            return Err(format!("part {}/{} of {all} checks has none", part.nth, part.parts).into());
        }
    }
    let bar = progress(checks.len());
    let mut marks = Vec::new();
    for check in &checks {
        bar.set_message(check.name.clone());
        setup.now(check.name.clone());
        let started = Instant::now();
        let (mark, note) = if let Some(why_not) = check.needs.why_not(&setup.device) {
            let absent = matches!(check.needs, Needs::Kernel);
            (if absent { Mark::Absent } else { Mark::Skipped }, why_not.to_owned())
        } else {
            match (check.run)(&setup) {
                Ok(note) => (Mark::Passed, note),
                Err(failure) => (Mark::Failed, failure.to_string()),
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        marks.push(mark);
        bar.suspend(|| {
            if common.json {
                print_json(&json!({
                    "check": check.name, "result": mark.word(), "note": note, "seconds": seconds,
                }));
            } else {
                print_line(&format!("{:<8} {}: {note} ({seconds:.1} s)", mark.word(), check.name));
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let count = |mark| marks.iter().filter(|found| **found == mark).count();
    let (passed, failed, skipped) = (count(Mark::Passed), count(Mark::Failed), count(Mark::Skipped));
    let of_marks = checks.iter().zip(&marks);
    let absent: Vec<&str> =
        of_marks.filter(|(_, mark)| **mark == Mark::Absent).map(|(check, _)| check.name.as_str()).collect();
    let (device, arch) = (setup.device.to_string(), setup.arch().name());
    if common.json {
        print_json(&json!({
            "device": device, "arch": arch, "passed": passed, "failed": failed, "skipped": skipped,
            "absent": absent,
        }));
    } else {
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        if !absent.is_empty() {
            print_line(&format!("without a kernel of {arch}: {}", absent.join("; ")));
        }
        let absent = if absent.is_empty() { String::new() } else { format!(", {} absent", absent.len()) };
        print_line(&format!(
            "on {device}, kernels of {arch}: {passed} passed, {failed} failed{skipped}{absent}"
        ));
    }
    Ok(failed == 0 && passed > 0)
}

/// Fails with a sentence unless a condition holds.
fn ensure(condition: bool, failure: impl FnOnce() -> String) -> Result<(), Failure> {
    if condition { Ok(()) } else { Err(failure().into()) }
}

/// Puts what is run before what is found.
fn about(spec: &dyn std::fmt::Display, options: &GemmOptions) -> impl Fn(&str) -> String + use<> {
    let choice = options.config.map_or(String::new(), |choice| format!(" by {}", plan::name(&choice)));
    let start = format!("{spec}{choice}");
    move |what: &str| format!("{start}: {what}")
}

/// Fails unless a result was found right.
fn expect_right(verdict: &Verdict, about: impl Fn(&str) -> String) -> Result<(), Failure> {
    let Verdict { right, diff, worst_element, .. } = verdict;
    ensure(*right, || about(&format!("diff {diff:.2e}, worst element {worst_element:.2} of what is allowed")))
}

/// The worst element of a result, in parts of what is allowed. Fails where it is wrong, or memory that is no part of it
/// was written to.
fn accept(verdict: &Verdict, untouched: bool, about: impl Fn(&str) -> String) -> Result<f64, Failure> {
    expect_right(verdict, &about)?;
    ensure(untouched, || about("memory that is no part of the result was written to"))?;
    Ok(verdict.worst_element)
}

/// Runs a GEMM and compares its result, as many rows of a large one as a check among many has time for. The result
/// starts as poison, and so does everything around it, which is compared whole.
fn computed(setup: &Setup, case: &GemmCase, options: &GemmOptions) -> Result<f64, Failure> {
    let about = about(case, options);
    setup.now(about("this"));
    let mut gemm = case.on(&setup.device)?;
    gemm.run(options).map_err(|error| about(&error.to_string()))?;
    setup.device.synchronize().map_err(|error| about(&error.to_string()))?;
    let untouched = gemm.surroundings_untouched()?;
    accept(&gemm.judge(Effort::QUICK)?, untouched, about)
}

/// Runs GEMMs and compares their results.
fn gemms(setup: &Setup, cases: impl IntoIterator<Item = (GemmCase, GemmOptions)>) -> Result<String, Failure> {
    tally(cases.into_iter().map(|(case, options)| computed(setup, &case, &options)))
}

/// Cases with the default options.
fn each(cases: impl IntoIterator<Item = GemmCase>) -> impl Iterator<Item = (GemmCase, GemmOptions)> {
    cases.into_iter().map(|case| (case, GemmOptions::default()))
}

/// Counts results, each given as its worst element in parts of what is allowed.
fn tally(results: impl Iterator<Item = Result<f64, Failure>>) -> Result<String, Failure> {
    let (mut count, mut worst) = (0, 0.0f64);
    for result in results {
        worst = worst.max(result?);
        count += 1;
    }
    Ok(format!("{count} results, the worst element at {worst:.2} of what is allowed"))
}
