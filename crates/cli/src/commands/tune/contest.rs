//! The timed candidates of a problem, and which of them wins.

use std::time::Duration;

use oxigemm::plan::{self, Cost, GemmConfig};
use oxigemm::{Cuda, Device, GemmOptions};
use oxigemm_testkit::timing::Patterns;
use oxigemm_testkit::{Failure, Gemm, GemmCase};
use serde_json::{Value, json};

use crate::candidates::worth_timing;
use crate::timing::Clock;

/// A candidate with its times.
pub struct Timed {
    pub config: GemmConfig,
    pub estimate: Cost,
    /// The time of the first pass.
    first_us: f64,
    /// The times of the finals, one a round.
    again_us: Vec<f64>,
}

impl Timed {
    #[cfg(test)]
    pub fn new((config, estimate): (GemmConfig, Cost), first_us: f64) -> Timed {
        Timed { config, estimate, first_us, again_us: Vec::new() }
    }

    /// The time that counts: of the finals, where it was among them.
    pub fn us(&self) -> f64 {
        match self.again_us.len() {
            0 => self.first_us,
            rounds => self.again_us.iter().sum::<f64>() / rounds as f64,
        }
    }
}

/// The candidates of a problem. The first is the planner's own plan.
pub struct Contest {
    timed: Vec<Timed>,
}

impl Contest {
    #[cfg(test)]
    pub fn new(timed: Vec<Timed>) -> Contest {
        Contest { timed }
    }

    /// The planner's own plan.
    pub fn planned(&self) -> &Timed {
        &self.timed[0]
    }

    /// The fastest: of the finals, where there were some.
    pub fn best(&self) -> &Timed {
        let finals = self.timed.iter().any(|timed| !timed.again_us.is_empty());
        let counts = |timed: &&Timed| !finals || !timed.again_us.is_empty();
        let fastest = self.timed.iter().filter(counts).min_by(|a, b| a.us().total_cmp(&b.us()));
        fastest.expect("the plan is a candidate")
    }

    /// How much slower than the best the plan is, in parts of it.
    pub fn behind(&self) -> f64 {
        self.planned().us() / self.best().us() - 1.0
    }

    /// The plan, and so many others of the fastest that take at most `within` times as long as the fastest.
    pub fn finalists(&self, most: usize, within: f64) -> Vec<usize> {
        let mut others: Vec<usize> = (1..self.timed.len()).collect();
        others.sort_by(|a, b| self.timed[*a].first_us.total_cmp(&self.timed[*b].first_us));
        let limit = self.best().first_us * within;
        others.retain(|i| self.timed[*i].first_us <= limit);
        others.truncate(most);
        [vec![0], others].concat()
    }

    /// All candidates with their estimates.
    pub fn as_json(&self) -> Vec<Value> {
        let one = |timed: &Timed| {
            let terms: serde_json::Map<_, _> =
                timed.estimate.terms().into_iter().map(|(name, us)| (name.to_owned(), json!(us))).collect();
            json!({
                "choice": plan::name(&timed.config), "us": timed.us(), "first_us": timed.first_us,
                "again_us": timed.again_us, "estimate_us": timed.estimate.us, "terms": terms,
            })
        };
        self.timed.iter().map(one).collect()
    }
}

/// What times candidates on a GPU.
pub struct Timer {
    cuda: Cuda,
    clock: Clock,
    patterns: Patterns,
}

impl Timer {
    /// A timer that rests this long before each candidate.
    pub fn new(cuda: &Cuda, rest: Duration) -> Result<Timer, Failure> {
        let patterns = Patterns::new(&Device::Cuda(cuda.clone()))?;
        Ok(Timer { cuda: cuda.clone(), clock: Clock::new(cuda, rest)?, patterns })
    }

    /// How times are taken, for people.
    pub fn method(&self) -> String {
        self.clock.method()
    }

    /// Operands of a case: filled with patterns or, of layouts that have none, drawn.
    pub fn operands(&self, case: &GemmCase) -> Result<Gemm, Failure> {
        let device = Device::Cuda(self.cuda.clone());
        case.for_timing(&self.patterns, &device).or_else(|_| case.on(&device))
    }

    /// Times the candidates of a case that are worth it, at most so many.
    pub fn contest(
        &mut self,
        case: &GemmCase,
        call: &mut Gemm,
        most: usize,
        runs: usize,
    ) -> Result<Contest, Failure> {
        let mut candidates = worth_timing(case, self.cuda.limits(), false);
        candidates.truncate(most);
        if candidates.is_empty() {
            return Err("no kernel of this GPU computes it".into());
        }
        let mut timed = Vec::new();
        for (config, estimate) in candidates {
            let first_us = self.us(call, config, runs)?;
            timed.push(Timed { config, estimate, first_us, again_us: Vec::new() });
        }
        // The first of a problem finds the card cooler than the others do: the plan is the last as well.
        let last_us = self.us(call, timed[0].config, runs)?;
        timed[0].first_us = (timed[0].first_us + last_us) / 2.0;
        Ok(Contest { timed })
    }

    /// Times some of the candidates again, in turn; in each round with operands in other memory, because where they lie
    /// decides about some percent.
    pub fn again(
        &mut self,
        contest: &mut Contest,
        call: &mut Gemm,
        finalists: &[usize],
        rounds: usize,
        runs: usize,
    ) -> Result<(), Failure> {
        for round in 0..rounds {
            if round > 0 {
                call.relocate()?;
            }
            for i in finalists {
                let us = self.us(call, contest.timed[*i].config, runs)?;
                contest.timed[*i].again_us.push(us);
            }
        }
        Ok(())
    }

    fn us(&mut self, call: &mut Gemm, config: GemmConfig, runs: usize) -> Result<f64, Failure> {
        let options = GemmOptions { config: Some(config), ..GemmOptions::default() };
        let us = self.clock.calls(&options, runs, |options| call.run(options));
        us.map_err(|error| format!("{}: {error}", plan::name(&config)).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::plan::Limits;
    use oxigemm_testkit::plan as planner;

    fn contest(us: &[f64]) -> Contest {
        let ranking = planner::rank(&GemmCase::fp8(16, 4096, 7168), &Limits::h200());
        Contest::new(ranking.into_iter().zip(us).map(|(one, us)| Timed::new(one, *us)).collect())
    }

    #[test]
    fn finalists_are_the_plan_and_the_fastest_others() {
        let contest = contest(&[10.0, 12.0, 9.0, 9.8, 9.1]);
        assert_eq!(contest.finalists(3, f64::INFINITY), [0, 2, 4, 3]);
        assert_eq!(contest.finalists(9, 1.05), [0, 2, 4]);
        assert_eq!(contest.best().us(), 9.0);
        assert!((contest.behind() - 1.0 / 9.0).abs() < 1e-9);
    }

    #[test]
    fn the_finals_decide() {
        let mut contest = contest(&[10.0, 12.0, 9.0]);
        contest.timed[0].again_us = vec![9.0, 9.2];
        contest.timed[2].again_us = vec![9.4, 9.6];
        assert_eq!(contest.best().config, contest.planned().config);
        assert_eq!(contest.behind(), 0.0);
        contest.timed[1].first_us = 1.0;
        assert_eq!(contest.behind(), 0.0, "who was not among them does not count");
    }
}
