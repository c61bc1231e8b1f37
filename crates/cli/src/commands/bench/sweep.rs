//! Times of every candidate, and what they say about the plans.

use std::collections::BTreeMap;
use std::path::Path;

use oxigemm::plan::{self, Cost, GemmConfig, Limits};
use oxigemm::{Device, GemmLayout, GemmOptions};
use oxigemm_testkit::{Effort, Failure, GemmCase, Op, plan as planner};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::gemm::{Case, Kind};
use super::passes::Call;
use super::{Bench, Choices};
use crate::baseline::geometric_mean;
use crate::output::{Table, print_json, print_line, progress};
use crate::{Common, Outcome};

/// How many candidates are the top: of dense GEMMs, and of groups.
const TOP: usize = 10;
const TOP_OF_GROUPS: usize = 6;

/// A case whose candidates are timed.
pub struct Sweep<'a> {
    pub name: &'a str,
    pub gemm: &'a GemmCase,
    /// What identifies the case in a line, and the peer's time where it has one.
    pub identity: Value,
    pub anchor_us: Option<f64>,
    pub calibrated: bool,
    pub top: usize,
}

/// Times candidates of the peer's cases, to see how good the estimates are.
pub fn run(bench: &mut Bench, cases: &[Case]) -> Outcome {
    let mut right = true;
    for case in cases {
        // All of the few candidates that k-grouped GEMMs have.
        let top = match case.kind {
            Kind::Dense => TOP,
            Kind::MGrouped => TOP_OF_GROUPS,
            Kind::KGrouped => usize::MAX,
        };
        let (name, gemm, identity) = (case.name.as_str(), &case.gemm, case.identity.clone());
        let anchor_us = Some(case.peer.call_us);
        right &= time_all(bench, Sweep { name, gemm, identity, anchor_us, calibrated: true, top })?;
    }
    Ok(right)
}

/// Candidates of a fused case: as many as of a dense one.
pub fn run_fused(bench: &mut Bench, name: &str, gemm: &GemmCase) -> Outcome {
    let identity = json!({ "case": name });
    time_all(bench, Sweep { name, gemm, identity, anchor_us: None, calibrated: false, top: TOP })
}

/// Times the candidates of a case, one JSON line each.
fn time_all(bench: &mut Bench, sweep: Sweep<'_>) -> Outcome {
    let (args, limits) = (bench.args, *bench.cuda.limits());
    let mut ranking: Vec<(GemmConfig, Cost)> = planner::rank(sweep.gemm, &limits);
    if args.choices == Choices::Top {
        ranking.truncate(sweep.top);
    }
    let planned = planner::plan(sweep.gemm, None, &limits).map(|plan| plan.config);
    let mut call = sweep.gemm.on(&Device::Cuda(bench.cuda.clone()))?;
    let runs = args.runs as usize;
    let calibration_us = if sweep.calibrated { bench.clock.calibration(runs)? } else { None };
    let (bar, mut right) = (progress(ranking.len()), true);
    for (choice, estimate) in ranking {
        bar.set_message(format!("{} {}", sweep.name, plan::name(&choice)));
        let options = GemmOptions { config: Some(choice), ..Default::default() };
        let us = bench.clock.calls(&options, runs, |options| call.run(options))?;
        let verdict = args.judged(|| Call::judge(&mut call, &options, Effort::SWEEP))?;
        right &= verdict.as_ref().is_none_or(|verdict| verdict.right);
        let terms: serde_json::Map<_, _> =
            estimate.terms().into_iter().map(|(name, us)| (name.to_owned(), json!(us))).collect();
        let mut line = sweep.identity.clone();
        let said = json!({
            "choice": plan::name(&choice), "planned": Some(choice) == planned,
            "us": us, "estimate_us": estimate.us, "terms": terms, "calibration_us": calibration_us,
            "anchor_us": sweep.anchor_us, "ratio": sweep.anchor_us.map(|anchor| anchor / us),
            "right": verdict.map(|verdict| verdict.right),
        });
        for (key, value) in said.as_object().into_iter().flatten() {
            line[key] = value.clone();
        }
        bar.suspend(|| print_json(&line));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(right)
}

/// What is read back of a line that a sweep wrote.
#[derive(Debug, Deserialize)]
struct Timed {
    m: u32,
    n: u32,
    k: u32,
    #[serde(flatten)]
    took: Took,
    anchor_us: f64,
}

/// The time of a choice.
#[derive(Clone, Debug, Deserialize)]
pub struct Took {
    pub choice: String,
    pub us: f64,
}

/// The plan of a case beside the best that was measured.
#[derive(Debug, serde::Serialize)]
pub struct Regret {
    case: String,
    planned: String,
    planned_us: Option<f64>,
    best: String,
    best_us: f64,
    /// The peer's, where it has the case.
    anchor_us: Option<f64>,
}

impl Regret {
    /// Of a plan, by the times of its case, of which there are some.
    pub fn new(case: String, planned: String, times: &[Took]) -> Option<Regret> {
        let best = times.iter().min_by(|a, b| a.us.total_cmp(&b.us))?.clone();
        let planned_us = times.iter().find(|took| took.choice == planned).map(|took| took.us);
        Some(Regret { case, planned, planned_us, best: best.choice, best_us: best.us, anchor_us: None })
    }
}

/// The lines that a sweep wrote to a file.
pub fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("could not read {}: {error}", path.display()))?;
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|error| format!("{line:?} is no line of a sweep: {error}").into())
        })
        .collect()
}

/// Shows what today's plans would have taken, by the times of a sweep.
pub fn replay(common: &Common, path: &Path, op: &Op) -> Outcome {
    show(common, path, &regrets(op, lines(path)?, &Limits::h200()))
}

/// Shows plans beside the best that was measured in the file.
pub fn show(common: &Common, path: &Path, regrets: &[Regret]) -> Outcome {
    if regrets.is_empty() {
        return Err(format!("{} has no times", path.display()).into());
    }
    if common.json {
        print_json(&regrets);
        return Ok(true);
    }
    let mut table =
        Table::new(["case", "planned", "us", "best", "us", "best/planned", "ratio", "best ratio"]);
    let number =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    for regret in regrets {
        table.row([
            regret.case.clone(),
            regret.planned.clone(),
            number(regret.planned_us, 2),
            regret.best.clone(),
            format!("{:.2}", regret.best_us),
            number(regret.planned_us.map(|us| regret.best_us / us), 3),
            number(regret.anchor_us.zip(regret.planned_us).map(|(anchor, us)| anchor / us), 3),
            number(regret.anchor_us.map(|anchor| anchor / regret.best_us), 3),
        ]);
    }
    table.print();
    let reached =
        geometric_mean(regrets.iter().filter_map(|regret| Some(regret.best_us / regret.planned_us?)));
    print_line(&format!("plans reach {} of the best that was measured", number(reached, 3)));
    Ok(true)
}

fn regrets(op: &Op, timed: Vec<Timed>, limits: &Limits) -> Vec<Regret> {
    let mut cases: BTreeMap<(u32, u32, u32), (f64, Vec<Took>)> = BTreeMap::new();
    for Timed { m, n, k, took, anchor_us } in timed {
        cases.entry((m, n, k)).or_insert((anchor_us, Vec::new())).1.push(took);
    }
    let regret = |((m, n, k), (anchor_us, times)): ((u32, u32, u32), (f64, Vec<Took>))| {
        let dims = [m, n, k].map(|x| x as usize);
        let gemm = GemmCase::dense(op.types, GemmLayout::Nt, dims);
        let planned = planner::plan(&gemm, None, limits)?.name();
        let regret = Regret::new(format!("m{m} n{n} k{k}"), planned, &times)?;
        Some(Regret { anchor_us: Some(anchor_us), ..regret })
    };
    cases.into_iter().filter_map(regret).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_found_among_the_times() {
        let op = Op::default();
        let ranking = planner::rank(&GemmCase::fp8(1, 7168, 2048), &Limits::h200());
        let timed = |index: usize, us: f64| {
            let took = Took { choice: plan::name(&ranking[index].0), us };
            Timed { m: 1, n: 7168, k: 2048, took, anchor_us: 9.16 }
        };
        let found = regrets(&op, vec![timed(1, 6.0), timed(0, 8.0), timed(2, 7.0)], &Limits::h200());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].planned_us, found[0].best_us), (Some(8.0), 6.0));
        assert_eq!(found[0].best, plan::name(&ranking[1].0));
        let found = regrets(&op, vec![timed(5, 6.0)], &Limits::h200());
        assert_eq!(found[0].planned_us, None, "the planned one was not timed");
    }
}
