//! `oxigemm tune`: measures which configuration of a problem is the fastest, or how good the planner's plans are.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the command, and the tuning of given problems |
//! | `problems.rs` | problems by the arguments of `gemm`, from the command line or from a file |
//! | `contest.rs` | the timed candidates of a problem, and which of them wins |
//! | `check.rs` | plans of random problems beside the best candidate |
//! | `draw.rs` | random problems of every family that the architecture serves |

mod check;
mod contest;
mod draw;
mod problems;

use std::path::PathBuf;
use std::time::Duration;

use oxigemm::metrics::calc_diff;
use oxigemm::plan::{self, GemmConfig, TunedConfigs};
use oxigemm::{Cuda, Device, GemmOptions};
use oxigemm_testkit::{DIFF_LIMIT, Effort, Failure, Fill, Gemm, GemmCase, plan as planner};
use serde_json::json;

use crate::output::{LiveTable, print_json, print_line, progress};
use crate::{Common, Outcome};
use contest::{Contest, Timer};
use problems::Problem;

/// Arguments of `tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file of tuned configurations to write; OXIGEMM_TUNED=FILE makes planning read it. Without it, what was found
    /// is only shown.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    out: Option<PathBuf>,
    /// Keep what the file has of other problems.
    #[arg(long, requires = "out")]
    append: bool,
    /// A file of problems: one a line, by the arguments of `gemm`; `#` begins a comment.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["problem", "check"])]
    problems: Option<PathBuf>,
    /// Record nothing: draw random problems of all families, time their plans beside other candidates, and fail where
    /// plans are too slow.
    #[arg(long, conflicts_with = "problem")]
    check: bool,
    /// How many problems are drawn.
    #[arg(long, default_value_t = 500, requires = "check", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// What they are drawn from.
    #[arg(long, default_value_t = 1, requires = "check")]
    seed: u64,
    /// Only drawn problems whose name, such as `fp8-masked g32 em20 n7168 k2048`, contains this.
    #[arg(long, value_name = "TEXT", requires = "check")]
    filter: Option<String>,
    /// Calls of each candidate that are timed: the mean counts. 20, or 5 with --check.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Candidates of a problem that are timed, by estimate.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    candidates: u32,
    /// A problem, by the arguments of `gemm`: --op fp8 -m 16 -n 4096 -k 7168. With -m 1,16,128, one for each. Comes
    /// last.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROBLEM")]
    problem: Vec<String>,
}

impl Args {
    fn runs(&self, usual: usize) -> usize {
        self.runs.map_or(usual, |runs| runs as usize)
    }

    /// The problems that are given.
    fn given(&self) -> Result<Vec<Problem>, Failure> {
        let found = match &self.problems {
            Some(path) => problems::read(path)?,
            None => problems::parse(&self.problem)
                .map_err(|error| format!("{error}; a problem comes last, behind the options of tune"))?,
        };
        if found.is_empty() {
            return Err("no problem is given: expected the arguments of gemm, such as --op fp8 -m 16 -n 4096 -k 7168, \
                        or --problems FILE, or --check"
                .into());
        }
        Ok(found)
    }
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let problems = if args.check { Vec::new() } else { args.given()? };
    let before = match (&args.out, args.append) {
        (Some(path), true) if path.exists() => TunedConfigs::load(path)?,
        _ => TunedConfigs::default(),
    };
    let device = common.device()?;
    let Device::Cuda(cuda) = &device else {
        return Err(format!(
            "tune needs a GPU: times on the CPU, of {device} as well, would say nothing; inspect shows estimates"
        )
        .into());
    };
    match args.check {
        true => check::run(common, args, cuda),
        false => tune(common, args, cuda, &problems, before),
    }
}

/// How much faster than the plan a recorded configuration is, at least: less is noise.
const GAIN: f64 = 1.02;
/// Candidates that are timed again beside the plan, how often, and the rest before each time.
const FINALISTS: usize = 3;
const ROUNDS: usize = 3;
const REST: Duration = Duration::from_millis(100);
/// Calls of each candidate that are timed.
const RUNS: usize = 20;

/// Tunes problems.
fn tune(common: &Common, args: &Args, cuda: &Cuda, problems: &[Problem], mut tuned: TunedConfigs) -> Outcome {
    let mut timer = Timer::new(cuda, REST)?;
    let (bar, mut right, mut recorded) = (progress(problems.len()), true, 0);
    let longest = problems.iter().map(|problem| problem.words.len()).max().unwrap_or(0);
    let headings = ["problem", "us", "best us", "gain", "plan", "best"];
    let table = (!common.json).then(|| LiveTable::new(headings, longest));
    for problem in problems {
        bar.set_message(problem.words.clone());
        let about = |error: Failure| -> Failure { format!("{}: {error}", problem.words).into() };
        let (contest, verdict) = one(&mut timer, args, &problem.case).map_err(about)?;
        let [planned, best] = [contest.planned(), contest.best()];
        let (gain, limits) = (planned.us() / best.us(), cuda.limits());
        let request = planner::request(&problem.case, limits.arch);
        tuned.remove(&request, limits);
        if verdict == Some(true) {
            tuned.insert(&request, limits, best.config)?;
            recorded += 1;
        }
        right &= verdict != Some(false);
        if let Some(path) = &args.out {
            // Each time, so that an interruption loses one problem.
            tuned.save(path)?;
        }
        let names = [planned, best].map(|timed| plan::name(&timed.config));
        match &table {
            None => bar.suspend(|| {
                print_json(&json!({
                    "problem": problem.words, "plan": names[0], "us": planned.us(), "best": names[1],
                    "best_us": best.us(), "gain": gain, "recorded": verdict == Some(true),
                    "right": verdict, "candidates": contest.as_json(),
                }));
            }),
            Some(table) => {
                let [plan, best_name] = names;
                let best_name = match verdict {
                    Some(true) => best_name,
                    Some(false) => format!("{best_name} WRONG"),
                    None => "the plan".to_owned(),
                };
                let numbers = [planned.us(), best.us()].map(|us| format!("{us:.2}"));
                let gain = format!("{:.1}%", (gain - 1.0) * 100.0);
                let cells = [vec![problem.words.clone()], numbers.into(), vec![gain, plan, best_name]];
                table.row(&bar, cells.into_iter().flatten());
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !common.json {
        let all = problems.len();
        let file = match &args.out {
            Some(path) => format!(", {} with {} in all", path.display(), tuned.len()),
            None => ", no --out to write to".to_owned(),
        };
        print_line(&format!(
            "{recorded} of {all} problems have a configuration more than {:.0}% faster than the plan{file}; {}",
            (GAIN - 1.0) * 100.0,
            timer.method(),
        ));
    }
    Ok(right)
}

/// Times the candidates of a problem, and says of one that is faster than the plan whether its result is right.
fn one(timer: &mut Timer, args: &Args, case: &GemmCase) -> Result<(Contest, Option<bool>), Failure> {
    let runs = args.runs(RUNS);
    let case = &GemmCase { fill: Fill::Zeros, ..case.clone() };
    let mut call = timer.operands(case)?;
    let mut contest = timer.contest(case, &mut call, args.candidates as usize, runs)?;
    let finalists = contest.finalists(FINALISTS, f64::INFINITY);
    timer.again(&mut contest, &mut call, &finalists, ROUNDS, runs)?;
    if contest.planned().us() <= contest.best().us() * GAIN {
        return Ok((contest, None));
    }
    let configs = [contest.planned().config, contest.best().config];
    let right = is_right(case, &mut call, configs)?;
    Ok((contest, Some(right)))
}

/// Elements of operands that are drawn, so that a reference can judge the result.
const DRAWN: usize = 1 << 25;

/// Whether the second configuration gives the result of the first, and that of the reference where operands are few.
fn is_right(case: &GemmCase, call: &mut Gemm, configs: [GemmConfig; 2]) -> Result<bool, Failure> {
    let device = call.device().clone();
    let [planned, best] =
        configs.map(|config| GemmOptions { config: Some(config), ..GemmOptions::default() });
    let mut results = |options: &GemmOptions| -> Result<Vec<Vec<f32>>, Failure> {
        call.run(options)?;
        device.synchronize()?;
        (0..case.gemms().len()).map(|group| call.result(group)).collect()
    };
    let (expected, found) = (results(&planned)?, results(&best)?);
    // Codes of a quantized result are next to each other where sums differ by a rounding.
    let limit = if case.fused().quantized.is_some() { 1e-3 } else { DIFF_LIMIT };
    let same = expected.iter().zip(&found).all(|(expected, found)| {
        let expected: Vec<f64> = expected.iter().copied().map(f64::from).collect();
        // No elements have no distance.
        expected.is_empty() || calc_diff(found, &expected) < limit
    });
    if !same || draw::elements(case) > DRAWN {
        return Ok(same);
    }
    let mut drawn = GemmCase { fill: Fill::Poison, ..case.clone() }.on(&device)?;
    drawn.run(&best)?;
    device.synchronize()?;
    Ok(drawn.judge(Effort::SWEEP)?.right && drawn.surroundings_untouched()?)
}
