//! Plans of batches of products that are added up.
//!
//! K of the whole batch is as that of one product. Where D has few tiles it is split over clusters.

use oxigemm_kernels::gemm::launch::{GemmKernel, OperandKind};

use super::cost::{self, Cost};
use super::{GemmConfig, GemmShape, Limits, Plan, Why, choices_of, is_summed, serves, with_stages};

impl Plan {
    /// The cheapest candidate of a sum of products; the K of the shape is that of all of them, in whole stages each. `None`
    /// where D has more rows than a grid covers.
    ///
    /// ```
    /// use oxigemm::plan::{OperandKind, Limits, Plan, GemmShape};
    /// use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
    ///
    /// let family = OperandKind::Half(Operands { element: Half::Bf16, a: Major::K, b: Major::K });
    /// let plan = Plan::best_summed(family, GemmShape { m: 128, n: 384, k: 4096 * 128 }, &Limits::h200()).unwrap();
    /// assert!(plan.name().starts_with("bf16_slim_summed_nt_64x64_k8"));
    /// ```
    #[must_use]
    pub fn best_summed(family: OperandKind, shape: GemmShape, limits: &Limits) -> Option<Plan> {
        let ranking = summed_ranking_of(family, shape, limits);
        let (choice, _) = *ranking.first()?;
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        let why = Why::Cheapest { of: ranking.len(), before };
        Some(Plan { why, ..Plan::asked(choice, shape, limits) })
    }

    /// A given choice for a sum of products, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_summed(choice: GemmConfig, shape: GemmShape, limits: &Limits) -> Option<Plan> {
        (is_summed(&choice) && serves(&choice, shape, limits)).then(|| Plan::asked(choice, shape, limits))
    }
}

/// Every candidate of a family with its estimate, the cheapest first.
#[must_use]
pub fn summed_ranking_of(family: OperandKind, shape: GemmShape, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    // The grid of these covers D, and cannot be held back to some multiprocessors.
    let limits = &Limits { restricted: false, ..*limits };
    let mut all: Vec<_> = GemmKernel::summed()
        .filter(|config| config.family() == family)
        .flat_map(choices_of)
        .flat_map(|choice| with_stages(choice, shape, *limits))
        .filter(|choice| serves(choice, shape, limits))
        .map(|choice| (choice, cost::estimate(choice, shape, limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{name, parse};
    use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};

    #[test]
    fn every_shape_has_a_plan() {
        let family = OperandKind::Half(Operands { element: Half::F16, a: Major::K, b: Major::K });
        for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(24)] {
            for (m, n, k) in [(1, 1, 64), (128, 384, 1 << 20), (4096, 7168, 8192), (70, 33, 192)] {
                let shape = GemmShape { m, n, k };
                let plan = Plan::best_summed(family, shape, &limits).expect("there is one");
                assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
                assert_eq!(parse(&name(&plan.choice)), Some(plan.choice));
            }
        }
    }

    #[test]
    fn other_kernels_are_refused() {
        let (shape, limits) = (GemmShape { m: 64, n: 64, k: 256 }, Limits::h200());
        let dense = parse("bf16_slim_nt_64x64_k4_s2").unwrap();
        let summed = parse("bf16_slim_summed_nt_64x64_k4_s2").unwrap();
        assert!(Plan::of_summed(dense, shape, &limits).is_none());
        assert!(Plan::of(summed, shape, &limits).is_none());
        assert!(Plan::of_summed(summed, shape, &limits).is_some());
    }
}
