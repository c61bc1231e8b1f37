//! Plans of products whose rows are grouped.
//!
//! How many rows a group has only the device knows. A plan is made for the rows that a group is expected to have, and
//! computes any others as well, only not as fast.

use oxigemm_kernels::launch::Config;

use super::cost::{self, Cost, Persistent, Tile};
use super::{Choice, GroupedShape, Limits, Plan, Why, blocks_of, choices_of};

/// Numbers of rows that a group may turn out to have, in parts of what is expected: tokens are not shared out evenly.
const SPREAD: [f64; 7] = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3];
/// Reading where the groups are and laying out the table, in microseconds.
const FINDING_GROUPS: f64 = 1.2;

impl Plan {
    /// The cheapest candidate of a product whose rows are grouped; `None` where no kernel has room for so many groups.
    ///
    /// ```
    /// use oxigemm::plan::{GroupedShape, Limits, Plan};
    ///
    /// let few = GroupedShape { groups: 32, slabs: 32, rows: 4096, expected: 20, n: 7168, k: 2048 };
    /// let plan = Plan::best_grouped(&few, &Limits::h200()).unwrap();
    /// assert!(plan.name().starts_with("wide_grouped_64x"));
    /// ```
    #[must_use]
    pub fn best_grouped(shape: &GroupedShape, limits: &Limits) -> Option<Plan> {
        let ranking = grouped_ranking(shape, limits);
        let (choice, estimate) = *ranking.first()?;
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        Some(Plan {
            why: Why::Cheapest { of: ranking.len(), before },
            ..plan(choice, estimate, shape, limits)?
        })
    }

    /// A given choice for a product whose rows are grouped, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_grouped(choice: Choice, shape: &GroupedShape, limits: &Limits) -> Option<Plan> {
        serves(&choice, shape, limits)
            .then(|| plan(choice, estimate(&choice, shape, limits), shape, limits))?
    }
}

fn plan(choice: Choice, estimate: Cost, shape: &GroupedShape, limits: &Limits) -> Option<Plan> {
    let launch = choice.launch_grouped(shape, limits.clusters(blocks_of(&choice)))?;
    Some(Plan { shape: shape.slab(), groups: Some(*shape), choice, launch, estimate, why: Why::Asked })
}

/// Every candidate with its estimate, the cheapest first.
#[must_use]
pub fn grouped_ranking(shape: &GroupedShape, limits: &Limits) -> Vec<(Choice, Cost)> {
    let mut all: Vec<_> =
        grouped_candidates(shape, limits).map(|choice| (choice, estimate(&choice, shape, limits))).collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

/// Every choice that can serve a product whose rows are grouped, in a fixed order.
pub fn grouped_candidates(shape: &GroupedShape, limits: &Limits) -> impl Iterator<Item = Choice> {
    Config::grouped().flat_map(choices_of).filter(move |choice| serves(choice, shape, limits))
}

fn serves(choice: &Choice, shape: &GroupedShape, limits: &Limits) -> bool {
    let blocks = blocks_of(choice);
    (!limits.restricted || blocks <= limits.sms)
        && choice
            .launch_grouped(shape, limits.clusters(blocks))
            .is_some_and(|launch| launch.shared_bytes <= limits.shared_per_block)
}

fn estimate(choice: &Choice, shape: &GroupedShape, limits: &Limits) -> Cost {
    let Choice::Wide { config, cluster_m, cluster_n } = *choice else {
        unreachable!("only many-row kernels have groups: `serves` has seen to it")
    };
    let tile = Tile { m: config.block_m, n: config.block_n };
    let rows = f64::from(shape.expected.max(1));
    let high = f64::from(tile.m * cluster_m);
    // Tiles of a group along M, on average.
    let tiles_m = SPREAD.iter().map(|part| (rows * part / high).ceil()).sum::<f64>() / SPREAD.len() as f64;
    let groups = f64::from(shape.groups);
    let tiles = groups * tiles_m * f64::from(shape.n.div_ceil(tile.n * cluster_n));
    let [n, k] = [shape.n, shape.k].map(f64::from);
    let memory = groups * (n * k + rows * (k + 2.0 * n + k / 32.0));
    let work = Persistent { tiles, k_blocks: shape.slab().k_blocks(), memory };
    let cost = cost::persistent(&tile, [cluster_m, cluster_n], config.stages, &work, limits);
    Cost { us: cost.us + FINDING_GROUPS, start: cost.start + FINDING_GROUPS, ..cost }
}
