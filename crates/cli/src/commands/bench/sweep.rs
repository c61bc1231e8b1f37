//! Times of every candidate, and what they say about the plans.

use std::collections::BTreeMap;
use std::path::Path;

use oxigemm::plan::{self, Choice, Limits, Plan, Shape};
use oxigemm::{Cuda, GemmOptions};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Args, Choices, family, judge, name, prepare, shape};
use crate::anchor::{Case, geometric_mean};
use crate::output::{Table, print_json, print_line, progress};
use crate::timing::Clock;
use crate::verdict::Effort;
use crate::{Common, Failure, Op, Outcome};

/// How many candidates are the top.
pub const TOP: usize = 10;

/// Times candidates, to see how good the estimates are.
pub fn run(cuda: &Cuda, args: &Args, cases: &[&Case], clock: &mut Clock) -> Outcome {
    let limits = *cuda.limits();
    let work: Vec<(&Case, Vec<Choice>)> =
        cases.iter().map(|case| (*case, choices(args.op, shape(case), &limits, args.choices))).collect();
    let bar = progress(work.iter().map(|(_, choices)| choices.len()).sum());
    let mut right = true;
    for (case, choices) in work {
        let (host, mut operands) = prepare(args.op, case, cuda)?;
        let calibration_us = clock.calibration(args.runs as usize)?;
        let planned = Plan::best_of(family(args.op), shape(case), &limits).choice;
        for choice in choices {
            bar.set_message(format!("{} {}", name(case), plan::name(&choice)));
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            let us = clock.product(&mut operands, &options, args.runs as usize)?;
            let verdict = if args.unchecked {
                None
            } else {
                Some(judge(&host, &mut operands, &options, Effort::SWEEP)?)
            };
            right &= verdict.as_ref().is_none_or(|verdict| verdict.right);
            let estimate = plan::cost::estimate(choice, shape(case), &limits);
            let terms: serde_json::Map<_, _> =
                estimate.terms().into_iter().map(|(name, us)| (name.to_owned(), json!(us))).collect();
            bar.suspend(|| {
                print_json(&json!({
                    "m": case.m, "n": case.n, "k": case.k,
                    "choice": plan::name(&choice), "planned": choice == planned,
                    "us": us, "anchor_us": case.call_us, "ratio": case.call_us / us,
                    "estimate_us": estimate.us, "terms": terms,
                    "calibration_us": calibration_us,
                    "right": verdict.map(|verdict| verdict.right),
                }));
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(right)
}

fn choices(op: Op, shape: Shape, limits: &Limits, which: Choices) -> Vec<Choice> {
    let count = if which == Choices::All { usize::MAX } else { TOP };
    plan::ranking_of(family(op), shape, limits).into_iter().map(|(choice, _)| choice).take(count).collect()
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
pub fn replay(common: &Common, path: &Path, op: Op) -> Outcome {
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

fn regrets(op: Op, timed: Vec<Timed>, limits: &Limits) -> Vec<Regret> {
    let mut cases: BTreeMap<(u32, u32, u32), (f64, Vec<Took>)> = BTreeMap::new();
    for Timed { m, n, k, took, anchor_us } in timed {
        cases.entry((m, n, k)).or_insert((anchor_us, Vec::new())).1.push(took);
    }
    let regret = |((m, n, k), (anchor_us, times)): ((u32, u32, u32), (f64, Vec<Took>))| {
        let planned = Plan::best_of(family(op), Shape { m, n, k }, limits).name();
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
        let shape = Shape { m: 1, n: 7168, k: 2048 };
        let ranking = plan::ranking(shape, &Limits::h200());
        let timed = |index: usize, us: f64| {
            let took = Took { choice: plan::name(&ranking[index].0), us };
            Timed { m: 1, n: 7168, k: 2048, took, anchor_us: 9.16 }
        };
        let found = regrets(Op::Fp8, vec![timed(1, 6.0), timed(0, 8.0), timed(2, 7.0)], &Limits::h200());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].planned_us, found[0].best_us), (Some(8.0), 6.0));
        assert_eq!(found[0].best, plan::name(&ranking[1].0));
        let found = regrets(Op::Fp8, vec![timed(5, 6.0)], &Limits::h200());
        assert_eq!(found[0].planned_us, None, "the planned one was not timed");
    }
}
