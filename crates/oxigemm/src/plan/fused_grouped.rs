//! Plans of products whose rows are grouped and whose sums are finished before they are stored.

use oxigemm_kernels::gemm::launch::GemmKernel;

use super::cost::Cost;
use super::fused::passes;
use super::grouped::{estimate, has_room};
use super::{GemmConfig, Limits, MGroupedShape, OperandKind, Plan, Why, blocks_of, choices_of};
use crate::check::Fused;

impl Plan {
    /// The cheapest candidate of a family; `None` where no kernel has room for so many groups. The N of the shape is that
    /// of the columns that are computed.
    #[must_use]
    pub fn best_fused_grouped(
        family: OperandKind,
        shape: &MGroupedShape,
        fused: &Fused,
        limits: &Limits,
    ) -> Option<Plan> {
        let ranking = fused_grouped_ranking(family, shape, fused, limits);
        let (choice, estimate) = *ranking.first()?;
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        let why = Why::Cheapest { of: ranking.len(), before };
        Some(Plan { why, ..plan(choice, estimate, shape, fused, limits)? })
    }

    /// A given choice, or `None` where it cannot serve such a product on this device.
    #[must_use]
    pub fn of_fused_grouped(
        choice: GemmConfig,
        shape: &MGroupedShape,
        fused: &Fused,
        limits: &Limits,
    ) -> Option<Plan> {
        serves(&choice, shape, fused, limits)
            .then(|| plan(choice, estimate(&choice, shape, Some(fused), limits), shape, fused, limits))?
    }
}

fn plan(
    choice: GemmConfig,
    estimate: Cost,
    shape: &MGroupedShape,
    fused: &Fused,
    limits: &Limits,
) -> Option<Plan> {
    let passes = passes(&choice, fused);
    let launch = choice.launch_grouped_in_passes(shape, passes, limits.clusters(blocks_of(&choice)))?;
    let (groups, why) = (Some(*shape), Why::Asked);
    Some(Plan { shape: shape.slab(), groups, k_groups: None, passes, choice, launch, estimate, why })
}

/// Every candidate with its estimate, the cheapest first.
#[must_use]
pub fn fused_grouped_ranking(
    family: OperandKind,
    shape: &MGroupedShape,
    fused: &Fused,
    limits: &Limits,
) -> Vec<(GemmConfig, Cost)> {
    let mut all: Vec<_> = GemmKernel::fused_grouped()
        .filter(|config| config.family() == family)
        .flat_map(choices_of)
        .filter(|choice| serves(choice, shape, fused, limits))
        .map(|choice| (choice, estimate(&choice, shape, Some(fused), limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

fn serves(choice: &GemmConfig, shape: &MGroupedShape, fused: &Fused, limits: &Limits) -> bool {
    choice.config().fusion() == fused.fusion && has_room(choice, shape, limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fused::{FAMILIES, samples};
    use crate::plan::{GemmShape, name, parse};

    #[test]
    fn every_shape_has_a_plan_that_fits_the_device_and_leads_the_ranking() {
        let groups =
            [[32, 32, 4096, 20], [6, 6, 4096, 1024], [8, 1, 32768, 4096], [1024, 1024, 3, 1], [1, 1, 1, 1]];
        for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(1)] {
            for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
                for [groups, slabs, rows, expected] in groups {
                    for [n, k] in [[128, 1], [2048, 7168], [3072, 4096]] {
                        let shape = MGroupedShape { groups, slabs, rows, expected, n, k };
                        let plan =
                            Plan::best_fused_grouped(family, &shape, &fused, &limits).expect("there is one");
                        let ranking = fused_grouped_ranking(family, &shape, &fused, &limits);
                        assert_eq!(plan.choice, ranking[0].0, "{shape:?}");
                        assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
                        assert!(
                            (1..=limits.sms).contains(&plan.launch.grid[0]),
                            "{shape:?}: {:?}",
                            plan.launch
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn kernels_serve_what_they_are_made_for_and_nothing_else() {
        let shape = MGroupedShape { groups: 3, slabs: 3, rows: 100, expected: 50, n: 256, k: 256 };
        let (one, limits) = (GemmShape { m: 100, n: 256, k: 256 }, Limits::h200());
        for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
            for (choice, _) in fused_grouped_ranking(family, &shape, &fused, &limits) {
                assert_eq!(parse(&name(&choice)), Some(choice));
                assert!(Plan::of(choice, one, &limits).is_none(), "{}", name(&choice));
                assert!(Plan::of_grouped(choice, &shape, &limits).is_none(), "{}", name(&choice));
                assert!(Plan::of_fused(choice, one, &fused, &limits).is_none(), "{}", name(&choice));
            }
            for other in [
                "wide_grouped_128x128_s5_c1x1",
                "wide_fused_128x128_s5_c1x1",
                "wide_128x128_s5_c1x1",
                "bf16_wide_grouped_nt_128x128_s6_c1x1",
                "bf16_wide_fused_nt_256x128_s3_c1x1",
            ] {
                let choice = parse(other).expect("the name of a choice");
                assert!(Plan::of_fused_grouped(choice, &shape, &fused, &limits).is_none(), "{other}");
            }
        }
    }

    #[test]
    fn few_rows_of_many_groups_take_low_tiles() {
        for fused in samples() {
            for [expected, high] in [[20, 64], [1024, 128]] {
                let shape = MGroupedShape { groups: 32, slabs: 32, rows: 4096, expected, n: 3072, k: 7168 };
                let plan =
                    Plan::best_fused_grouped(OperandKind::Fp8, &shape, &fused, &Limits::h200()).unwrap();
                let GemmConfig::Wide { config, .. } = plan.choice else { panic!("{}", plan.name()) };
                assert_eq!(config.block_m > 64, high > 64, "{}", plan.name());
            }
        }
    }
}
