//! Plans of random problems beside the best candidate.
//!
//! A few calls of every candidate come first. Where the plan is slower than the best of them by more than noise, those
//! near the best and the plan are timed again, in turn, and these times count.

use std::time::Duration;

use oxigemm::Cuda;
use oxigemm::plan;
use oxigemm_testkit::Failure;
use serde_json::{Value, json};

use super::Args;
use super::contest::{Contest, Timer};
use super::draw::{self, Drawn};
use crate::output::{Table, print_json, print_line, progress};
use crate::{Common, Outcome};

/// Calls of each candidate that are timed first.
const RUNS: usize = 5;
/// A plan that is so much slower than the best of the first times is as good as the best.
const NOISE: f64 = 0.025;
/// Those that are timed again take at most so many times as long as the best; at most so many of them, beside the plan,
/// in so many rounds of so many calls.
const NEAR: f64 = 1.1;
const FINALISTS: usize = 4;
const ROUNDS: usize = 3;
const FINAL_RUNS: usize = 8;
/// How much slower than the best most plans may be, the share of them, and how much slower any may be.
const CLOSE: f64 = 0.05;
const SHARE: f64 = 0.98;
const WORST: f64 = 0.15;
/// The worst problems that are listed.
const LISTED: usize = 10;

/// The plan of a problem beside the best.
struct Row {
    family: String,
    name: String,
    plan: String,
    us: f64,
    best: String,
    best_us: f64,
    behind: f64,
}

impl Row {
    fn new(drawn: &Drawn, contest: &Contest) -> Row {
        let [planned, best] = [contest.planned(), contest.best()];
        Row {
            family: drawn.family.clone(),
            name: drawn.name.clone(),
            plan: plan::name(&planned.config),
            us: planned.us(),
            best: plan::name(&best.config),
            best_us: best.us(),
            behind: contest.behind(),
        }
    }

    fn as_json(&self, contest: &Contest) -> Value {
        json!({
            "family": self.family, "problem": self.name, "plan": self.plan, "us": self.us, "best": self.best,
            "best_us": self.best_us, "behind": self.behind, "candidates": contest.as_json(),
        })
    }
}

/// Runs the check.
pub fn run(common: &Common, args: &Args, cuda: &Cuda) -> Outcome {
    let mut drawn = draw::draw(args.seed, args.count as usize, cuda.limits());
    drawn.retain(|drawn| args.filter.as_ref().is_none_or(|text| drawn.name.contains(text.as_str())));
    if drawn.is_empty() {
        let text = args.filter.as_deref().unwrap_or_default();
        return Err(format!("no drawn problem contains {text:?}").into());
    }
    let mut timer = Timer::new(cuda, Duration::ZERO)?;
    let (bar, mut rows, mut failed) = (progress(drawn.len()), Vec::new(), 0);
    for drawn in &drawn {
        bar.set_message(drawn.name.clone());
        match one(&mut timer, args, drawn) {
            Ok(contest) => {
                let row = Row::new(drawn, &contest);
                if common.json {
                    bar.suspend(|| print_json(&row.as_json(&contest)));
                }
                rows.push(row);
            }
            Err(error) => {
                failed += 1;
                bar.suspend(|| match common.json {
                    true => print_json(&json!({ "problem": drawn.name, "error": error.to_string() })),
                    false => print_line(&format!("FAILED {}: {error}", drawn.name)),
                });
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let found = Summary::new(&rows, failed);
    if common.json {
        print_json(&json!({
            "problems": rows.len(), "failed": failed, "within_5_percent": found.share, "worst": found.worst,
            "passed": found.passed(),
        }));
    } else {
        show(&mut rows);
        let verdict = if found.passed() { "passed" } else { "FAILED" };
        let failures = if failed > 0 { format!(", {failed} could not be timed") } else { String::new() };
        print_line(&format!(
            "{} problems: {} of plans within {:.0}% of the best, expected {}; the worst {} behind, expected at most {}{}: {verdict}; {}",
            rows.len(),
            percent(found.share),
            CLOSE * 100.0,
            percent(SHARE),
            percent(found.worst),
            percent(WORST),
            failures,
            timer.method(),
        ));
    }
    Ok(found.passed())
}

/// Times the candidates of a problem, and those that decide again.
fn one(timer: &mut Timer, args: &Args, drawn: &Drawn) -> Result<Contest, Failure> {
    let mut call = timer.operands(&drawn.case)?;
    let mut contest = timer.contest(&drawn.case, &mut call, args.candidates as usize, args.runs(RUNS))?;
    if contest.behind() > NOISE {
        let finalists = contest.finalists(FINALISTS, NEAR);
        timer.again(&mut contest, &mut call, &finalists, ROUNDS, FINAL_RUNS)?;
    }
    Ok(contest)
}

/// What was found of all problems.
struct Summary {
    /// The share of plans that are close to the best.
    share: f64,
    /// How far behind the worst is.
    worst: f64,
    failed: usize,
}

impl Summary {
    fn new(rows: &[Row], failed: usize) -> Summary {
        Summary { share: share(rows.iter()), worst: worst(rows.iter()).map_or(0.0, |row| row.behind), failed }
    }

    fn passed(&self) -> bool {
        self.failed == 0 && self.share >= SHARE && self.worst <= WORST
    }
}

fn share<'a>(rows: impl Iterator<Item = &'a Row> + Clone) -> f64 {
    let close = rows.clone().filter(|row| row.behind <= CLOSE).count();
    close as f64 / rows.count().max(1) as f64
}

fn worst<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.max_by(|a, b| a.behind.total_cmp(&b.behind))
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

/// Shows each family, and the worst problems.
fn show(rows: &mut [Row]) {
    let mut families: Vec<&str> = rows.iter().map(|row| row.family.as_str()).collect();
    families.sort_unstable();
    families.dedup();
    let mut table = Table::new(["family", "problems", "within 5%", "worst", "its problem"]);
    for family in families {
        let of_family = || rows.iter().filter(|row| row.family == family);
        let Some(worst) = worst(of_family()) else { continue };
        table.row([
            family.to_owned(),
            of_family().count().to_string(),
            percent(share(of_family())),
            percent(worst.behind),
            worst.name.clone(),
        ]);
    }
    table.print();
    print_line("");
    rows.sort_by(|a, b| b.behind.total_cmp(&a.behind));
    let mut table = Table::new(["worst problems", "behind", "us", "best us", "plan", "best"]);
    for row in rows.iter().take(LISTED) {
        table.row([
            row.name.clone(),
            percent(row.behind),
            format!("{:.2}", row.us),
            format!("{:.2}", row.best_us),
            row.plan.clone(),
            row.best.clone(),
        ]);
    }
    table.print();
    print_line("");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(behind: f64) -> Row {
        let [family, name, plan, best] = ["fp8", "fp8 m1", "a", "b"].map(str::to_owned);
        Row { family, name, plan, us: 1.0 + behind, best, best_us: 1.0, behind }
    }

    #[test]
    fn two_percent_may_be_slower_and_none_much() {
        let rows = |slow: usize, behind: f64| -> Vec<Row> {
            (0..100).map(|i| row(if i < slow { behind } else { 0.01 })).collect()
        };
        assert!(Summary::new(&rows(2, 0.14), 0).passed());
        assert!(!Summary::new(&rows(3, 0.06), 0).passed());
        assert!(!Summary::new(&rows(1, 0.16), 0).passed());
        assert!(!Summary::new(&rows(0, 0.0), 1).passed(), "one could not be timed");
    }
}
