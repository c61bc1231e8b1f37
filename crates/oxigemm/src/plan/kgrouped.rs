//! Plans of products with groups along K.
//!
//! How large the K of each group is only the device knows. A plan is made as if all were alike.

use oxigemm_kernels::gemm::launch::{GemmKernel, KGroupedShape, OperandKind};

use super::cost::{self, Cost};
use super::{GemmConfig, Limits, Plan, Why, blocks_of, choices_of};

impl Plan {
    /// The cheapest candidate of a product with groups along K; `None` where no kernel has room for so many groups.
    ///
    /// ```
    /// use oxigemm::plan::{OperandKind, KGroupedShape, Limits, Plan};
    ///
    /// let shape = KGroupedShape { groups: 4, m: 4096, n: 7168, k: 32768 };
    /// let plan = Plan::best_k_grouped_of(OperandKind::Fp8Rows, &shape, &Limits::h200()).unwrap();
    /// assert!(plan.name().starts_with("wide_kgrouped_1d1d_"));
    /// ```
    #[must_use]
    pub fn best_k_grouped_of(family: OperandKind, shape: &KGroupedShape, limits: &Limits) -> Option<Plan> {
        let ranking = k_grouped_ranking_of(family, shape, limits);
        let (choice, estimate) = *ranking.first()?;
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        let why = Why::Cheapest { of: ranking.len(), before };
        Some(Plan { why, ..plan(choice, estimate, shape, limits)? })
    }

    /// A given choice for a product with groups along K, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_k_grouped(choice: GemmConfig, shape: &KGroupedShape, limits: &Limits) -> Option<Plan> {
        serves(&choice, shape, limits)
            .then(|| plan(choice, estimate(choice, shape, limits), shape, limits))?
    }
}

fn plan(choice: GemmConfig, estimate: Cost, shape: &KGroupedShape, limits: &Limits) -> Option<Plan> {
    let launch = choice.launch_k_grouped(shape, limits.clusters(blocks_of(&choice)))?;
    let (shape, groups, k_groups, why) = (shape.group(), None, Some(*shape), Why::Asked);
    Some(Plan { shape, groups, k_groups, passes: 1, choice, launch, estimate, why })
}

/// Every candidate of a family with its estimate, the cheapest first.
#[must_use]
pub fn k_grouped_ranking_of(
    family: OperandKind,
    shape: &KGroupedShape,
    limits: &Limits,
) -> Vec<(GemmConfig, Cost)> {
    let mut all: Vec<_> = GemmKernel::k_grouped()
        .filter(|config| config.family() == family)
        .flat_map(choices_of)
        .filter(|choice| serves(choice, shape, limits))
        .map(|choice| (choice, estimate(choice, shape, limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

fn serves(choice: &GemmConfig, shape: &KGroupedShape, limits: &Limits) -> bool {
    let blocks = blocks_of(choice);
    (!limits.restricted || blocks <= limits.sms)
        && choice
            .launch_k_grouped(shape, limits.clusters(blocks))
            .is_some_and(|launch| launch.shared_bytes <= limits.shared_per_block)
}

/// How much of the time that the L2 cache takes is not hidden by that of the tensor cores.
const L2_SEEN: f64 = 0.28;

/// As one product with the rows of all groups, one below another: as many tiles, each as deep as a group.
fn estimate(choice: GemmConfig, shape: &KGroupedShape, limits: &Limits) -> Cost {
    let rows = u64::from(shape.m) * u64::from(shape.groups);
    let all = super::GemmShape { m: u32::try_from(rows).unwrap_or(u32::MAX), ..shape.group() };
    let cost = cost::estimate(choice, all, limits);
    Cost { us: cost.us + L2_SEEN * cost.l2, ..cost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{name, parse};
    use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};

    fn families() -> [OperandKind; 3] {
        let half = |element, major| OperandKind::Half(Operands { element, a: major, b: major });
        [OperandKind::Fp8Rows, half(Half::Bf16, Major::MN), half(Half::F16, Major::K)]
    }

    #[test]
    fn every_shape_has_a_plan_that_fits_the_device() {
        for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(24)] {
            for (groups, m, n, k) in
                [(4, 4096, 7168, 32768), (8, 7168, 2048, 32768), (1, 1, 1, 16), (1024, 64, 40, 0)]
            {
                for family in families() {
                    let shape = KGroupedShape { groups, m, n, k };
                    let plan = Plan::best_k_grouped_of(family, &shape, &limits).expect("there is one");
                    assert_eq!(plan.choice.config().family(), family);
                    assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
                    assert_eq!(plan.launch.grid[0] % plan.launch.cluster, 0, "{shape:?}");
                    assert!((1..=limits.sms).contains(&plan.launch.grid[0]), "{shape:?}: {:?}", plan.launch);
                    assert_eq!(parse(&name(&plan.choice)), Some(plan.choice));
                    let same = Plan::of_k_grouped(plan.choice, &shape, &limits).unwrap();
                    assert_eq!(same.launch, plan.launch);
                }
            }
        }
    }

    #[test]
    fn blocks_share_the_larger_operand() {
        for (groups, m, n, k) in [(4, 4096, 7168, 32768), (8, 7168, 2048, 32768)] {
            let shape = KGroupedShape { groups, m, n, k };
            let plan = Plan::best_k_grouped_of(OperandKind::Fp8Rows, &shape, &Limits::h200()).unwrap();
            assert_eq!(plan.name(), "wide_kgrouped_1d1d_128x128_s4_c1x2");
        }
    }

    #[test]
    fn other_kernels_are_refused() {
        let shape = KGroupedShape { groups: 2, m: 64, n: 64, k: 256 };
        for dense in ["wide_1d1d_128x128_s4_c1x1", "bf16_wide_tn_128x128_s6_c1x1"] {
            assert!(Plan::of_k_grouped(parse(dense).unwrap(), &shape, &Limits::h200()).is_none());
        }
        for family in families() {
            let grouped = Plan::best_k_grouped_of(family, &shape, &Limits::h200()).unwrap().choice;
            assert!(Plan::of(grouped, shape.group(), &Limits::h200()).is_none());
        }
    }
}
