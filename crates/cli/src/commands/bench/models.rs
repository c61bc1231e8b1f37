//! Layers of public models: the plan of each drawn case, beside the best of the closed set and its estimate.

use std::collections::HashMap;
use std::path::Path;

use oxigemm::plan::{self, Cost, GemmConfig, Limits};
use oxigemm::{Device, GemmOptions};
use oxigemm_testkit::{plan as planner, timing::Patterns};
use serde::{Deserialize, Serialize};

use super::{Bench, Choices};
use crate::baseline::geometric_mean;
use crate::candidates::worth_timing;
use crate::cases::models::{self, ModelCase};
use crate::output::{Table, print_json, print_line, progress};
use crate::{Common, Outcome};

/// Candidates of a case that are timed without `--choices all`.
const TOP: usize = 16;

/// A timed candidate, as it stands in a line.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Timed {
    seed: u64,
    case: String,
    choice: String,
    planned: bool,
    us: f64,
    estimate_us: f64,
    terms: HashMap<String, f64>,
}

/// The candidates of a case that are timed, the plan first.
fn candidates(case: &ModelCase, limits: &Limits, choices: Choices) -> Vec<(GemmConfig, Cost)> {
    let mut found = worth_timing(&case.gemm, limits, choices == Choices::All);
    if choices == Choices::Top {
        found.truncate(TOP);
    }
    found
}

/// Times the plans of the drawn cases or, in a sweep, their candidates.
pub fn run(bench: &mut Bench) -> Outcome {
    let cases = models::draw(bench.args.seed, bench.args.count);
    run_on(bench, cases)
}

/// The same of FP8 by MXFP4.
pub fn run_widened(bench: &mut Bench) -> Outcome {
    run_on(bench, models::widened())
}

fn run_on(bench: &mut Bench, mut cases: Vec<ModelCase>) -> Outcome {
    let (args, limits) = (bench.args, *bench.cuda.limits());
    cases.retain(|case| bench.wants(&case.name));
    if cases.is_empty() {
        return Err(bench.no_case());
    }
    let device = Device::Cuda(bench.cuda.clone());
    let (patterns, bar, mut all) = (Patterns::new(&device)?, progress(cases.len()), Vec::new());
    for case in &cases {
        bar.set_message(case.name.clone());
        let mut call = case.gemm.for_timing(&patterns, &device)?;
        let choices = candidates(case, &limits, args.choices);
        let timed = choices.into_iter().enumerate().take(if args.sweep { usize::MAX } else { 1 });
        for (rank, (choice, estimate)) in timed {
            let options = GemmOptions { config: Some(choice), ..Default::default() };
            let us = bench.clock.calls(&options, args.runs as usize, |options| call.run(options))?;
            let terms = estimate.terms().into_iter().map(|(name, us)| (name.to_owned(), us)).collect();
            let line = Timed {
                seed: args.seed,
                case: case.name.clone(),
                choice: plan::name(&choice),
                planned: rank == 0,
                us,
                estimate_us: estimate.us,
                terms,
            };
            if bench.common.json {
                bar.suspend(|| print_json(&line));
            }
            all.push(line);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !bench.common.json {
        show(&rows(&all, |case| Some(case.planned.clone())));
    }
    Ok(true)
}

/// Shows what today's plans would have taken, by the times of a sweep. As JSON: its lines again with today's estimates, for
/// a fit of the constants.
pub fn replay(common: &Common, path: &Path) -> Outcome {
    let mut timed: Vec<Timed> = super::sweep::lines(path)?;
    let mut rankings: HashMap<String, Vec<(GemmConfig, Cost)>> = HashMap::new();
    let mut seeds: Vec<u64> = timed.iter().map(|line| line.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    for seed in seeds {
        let wanted = timed.iter().filter(|line| line.seed == seed).map(|line| line.case.as_str());
        let wanted: std::collections::HashSet<&str> = wanted.collect();
        for case in models::draw(seed, 2000).iter().filter(|case| wanted.contains(case.name.as_str())) {
            rankings.insert(case.name.clone(), planner::rank(&case.gemm, &Limits::h200()));
        }
    }
    if !common.json {
        let plan = |case: &Found| {
            let (config, estimate) = rankings.get(&case.case)?.first()?;
            Some((plan::name(config), estimate.us))
        };
        show(&rows(&timed, plan));
        return Ok(true);
    }
    for line in &mut timed {
        let ranking = rankings.get(&line.case).map_or(&[][..], Vec::as_slice);
        let Some(rank) = ranking.iter().position(|(config, _)| plan::name(config) == line.choice) else {
            continue;
        };
        let estimate = &ranking[rank].1;
        line.planned = rank == 0;
        line.estimate_us = estimate.us;
        line.terms = estimate.terms().into_iter().map(|(name, us)| (name.to_owned(), us)).collect();
        print_json(line);
    }
    Ok(true)
}

/// A case: its plan beside the best that was measured.
struct Row {
    case: String,
    planned: (String, f64),
    /// The time of the plan, if it was among those that were timed.
    us: Option<f64>,
    best: String,
    best_us: f64,
}

struct Found {
    case: String,
    planned: (String, f64),
}

fn rows(timed: &[Timed], plan_of: impl Fn(&Found) -> Option<(String, f64)>) -> Vec<Row> {
    let mut rows = Vec::new();
    for lines in timed.chunk_by(|a, b| a.case == b.case) {
        let planned = lines.iter().find(|line| line.planned).unwrap_or(&lines[0]);
        let found =
            Found { case: planned.case.clone(), planned: (planned.choice.clone(), planned.estimate_us) };
        let Some(planned) = plan_of(&found) else { continue };
        let Some(best) = lines.iter().min_by(|a, b| a.us.total_cmp(&b.us)) else { continue };
        rows.push(Row {
            case: found.case,
            us: lines.iter().find(|line| line.choice == planned.0).map(|line| line.us),
            planned,
            best: best.choice.clone(),
            best_us: best.us,
        });
    }
    rows
}

fn show(rows: &[Row]) {
    let mut table = Table::new(["case", "plan", "estimate", "us", "best", "us", "best/plan"]);
    for row in rows {
        let us = |us: Option<f64>, digits: usize| us.map_or("-".to_owned(), |us| format!("{us:.digits$}"));
        table.row([
            row.case.clone(),
            row.planned.0.clone(),
            format!("{:.2}", row.planned.1),
            us(row.us, 2),
            row.best.clone(),
            format!("{:.2}", row.best_us),
            us(row.us.map(|planned| row.best_us / planned), 3),
        ]);
    }
    table.print();
    let reached = rows.iter().filter_map(|row| Some(row.best_us / row.us?));
    let error = rows.iter().filter_map(|row| Some((row.planned.1 / row.us?).ln().abs().exp()));
    print_line(&format!(
        "{} cases: plans reach {:.3} of the best that was measured, {:.3} in the worst case; estimates are off by {:.3}",
        rows.len(),
        geometric_mean(reached.clone()).unwrap_or(1.0),
        reached.fold(1.0, f64::min),
        geometric_mean(error).unwrap_or(1.0),
    ));
}
