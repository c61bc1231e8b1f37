//! Candidates that are worth timing.

use oxigemm::plan::{Cost, GemmConfig, Limits};
use oxigemm_testkit::{GemmCase, plan as planner};

/// Candidates with so many times the lowest estimate are not timed.
const HOPELESS: f64 = 4.0;

/// The candidates of a case, the cheapest first, without hopeless ones: the best of each kernel, number of splits and
/// cluster, or all. The planner's own plan is the first.
pub fn worth_timing(case: &GemmCase, limits: &Limits, all: bool) -> Vec<(GemmConfig, Cost)> {
    let mut found: Vec<(GemmConfig, Cost)> = Vec::new();
    for (config, cost) in planner::rank(case, limits) {
        let same = |other: &GemmConfig| {
            (other.kernel, other.split_k, other.cluster) == (config.kernel, config.split_k, config.cluster)
        };
        if all || !found.iter().any(|(other, _)| same(other)) {
            found.push((config, cost));
        }
    }
    let worth = found.first().map_or(0.0, |(_, cost)| cost.us * HOPELESS);
    found.retain(|(_, cost)| cost.us <= worth);
    found
}
