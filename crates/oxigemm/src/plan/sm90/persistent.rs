//! Plans of products whose sums are finished before they are stored.

use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::launch::GemmKernel;
#[cfg(test)]
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};

use super::cost::{self, Cost, Persistent, Tile};
use super::{
    GemmConfig, GemmShape, Limits, OperandKind, Plan, Why, blocks_of, choices_of, fits, fits_device,
    has_idle_slices, is_batch_invariant, with_stages,
};
use crate::check::Fused;

impl Plan {
    /// The cheapest candidate of a family whose sums are finished. A shape with elements always has one; its N is that of
    /// the columns that are computed.
    ///
    /// # Panics
    /// Where a family has no such kernels: the check of a call sees to that.
    #[must_use]
    pub fn best_fused(family: OperandKind, shape: GemmShape, fused: &Fused, limits: &Limits) -> Plan {
        Plan::best_fused_among(family, shape, fused, limits, |_| true)
    }

    /// The cheapest of those in which a row's result does not depend on which others there are.
    ///
    /// # Panics
    /// As [`best_fused`](Plan::best_fused).
    #[must_use]
    pub fn best_batch_invariant_fused(
        family: OperandKind,
        shape: GemmShape,
        fused: &Fused,
        limits: &Limits,
    ) -> Plan {
        Plan::best_fused_among(family, shape, fused, limits, is_batch_invariant)
    }

    fn best_fused_among(
        family: OperandKind,
        shape: GemmShape,
        fused: &Fused,
        limits: &Limits,
        allowed: impl Fn(&GemmConfig) -> bool,
    ) -> Plan {
        let mut ranking = fused_ranking(family, shape, fused, limits);
        ranking.retain(|(choice, _)| allowed(choice));
        let (choice, estimate) = *ranking.first().expect("many-row kernels serve every shape");
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        Plan {
            why: Why::Cheapest { of: ranking.len(), before },
            ..plan(choice, estimate, shape, fused, limits)
        }
    }

    /// A given choice for a product whose sums are finished, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_fused(choice: GemmConfig, shape: GemmShape, fused: &Fused, limits: &Limits) -> Option<Plan> {
        serves(&choice, shape, fused, limits)
            .then(|| plan(choice, estimate(&choice, shape, fused, limits), shape, fused, limits))
    }
}

fn plan(choice: GemmConfig, estimate: Cost, shape: GemmShape, fused: &Fused, limits: &Limits) -> Plan {
    let passes = passes(&choice, fused);
    let launch = choice.launch_in_passes(shape, passes, limits.clusters(blocks_of(&choice)));
    Plan { shape, groups: None, k_groups: None, passes, choice, launch, estimate, why: Why::Asked }
}

pub(super) fn passes(choice: &GemmConfig, fused: &Fused) -> u32 {
    if fused.quantized.is_some() { choice.quantized_passes() } else { 1 }
}

/// Every candidate with its estimate, the cheapest first.
#[must_use]
pub fn fused_ranking(
    family: OperandKind,
    shape: GemmShape,
    fused: &Fused,
    limits: &Limits,
) -> Vec<(GemmConfig, Cost)> {
    let mut all: Vec<_> = fused_candidates(family, shape, fused, limits)
        .map(|choice| (choice, estimate(&choice, shape, fused, limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

/// Every choice of a family that can serve a product whose sums are finished, in a fixed order.
pub fn fused_candidates(
    family: OperandKind,
    shape: GemmShape,
    fused: &Fused,
    limits: &Limits,
) -> impl Iterator<Item = GemmConfig> {
    GemmKernel::fused()
        // There are few many-row kernels of each kind, and any number of rows may take them.
        .filter(move |config| config.family() == family && (!config.has_few_rows() || fits(config, shape)))
        .flat_map(choices_of)
        .flat_map(move |choice| with_stages(choice, shape, *limits))
        .filter(move |choice| !has_idle_slices(choice, shape) && serves(choice, shape, fused, limits))
}

fn serves(choice: &GemmConfig, shape: GemmShape, fused: &Fused, limits: &Limits) -> bool {
    choice.config().fusion() == fused.fusion && fits_device(choice, shape, limits)
}

/// What is gained where B is asked for before the copy engine can bring it.
const EARLY: f64 = 0.27;

/// How much of the speed of a tile one keeps whose sums are finished.
fn kept(tile: &Tile, fusion: Fusion, cluster: u32) -> f64 {
    let alone = cluster == 1;
    match (tile.m, tile.family, fusion) {
        (256, ..) if alone => 0.893,
        (64, OperandKind::Half(_), Fusion::Gated) if alone => 1.0,
        (64, OperandKind::Half(_), Fusion::Gated) => 0.755,
        (64, OperandKind::Half(_), _) => 0.855,
        (64, _, Fusion::Gated) if alone => 0.8,
        (64, _, Fusion::Gated) => 0.5,
        (64, ..) => 0.84,
        _ => 1.0,
    }
}

/// As a product that stores its sums. What is done with them takes the time of some output, alike for all choices.
fn estimate(choice: &GemmConfig, shape: GemmShape, fused: &Fused, limits: &Limits) -> Cost {
    let (m, n, stages, [cluster_m, cluster_n]) = match *choice {
        GemmConfig::Wide { config, cluster_m, cluster_n } => {
            (config.block_m, config.block_n, config.stages, [cluster_m, cluster_n])
        }
        GemmConfig::HalfWide { config, cluster_m, cluster_n } => {
            (config.block_m, config.block_n, config.stages, [cluster_m, cluster_n])
        }
        GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. } => {
            return cost::estimate(*choice, shape, limits);
        }
    };
    let (family, passes) = (choice.config().family(), passes(choice, fused));
    let tile = Tile { family, m, n };
    let columns = tile.n / fused.fusion.sums() * passes * cluster_n;
    let whole = GemmShape { n: shape.n * fused.fusion.sums(), ..shape };
    let work = Persistent {
        tiles: f64::from(shape.m.div_ceil(tile.m * cluster_m)) * f64::from(shape.n.div_ceil(columns)),
        k_blocks: choice.k_blocks(shape.k) * passes,
        memory: cost::memory_bytes(family, whole),
        multiplied: 1.0,
        efficiency: cost::efficiency(&tile) * kept(&tile, fused.fusion, cluster_m * cluster_n),
        overlaps: false,
        last_round: None,
    };
    let cost = cost::persistent(&tile, [cluster_m, cluster_n], stages, &work, cost::many_rows(&tile), limits);
    cost.sooner(if cost::fetches_early(shape) { EARLY } else { 0.0 })
}

/// The families that have such kernels.
#[cfg(test)]
pub(super) const FAMILIES: [OperandKind; 3] = [OperandKind::Fp8, half(Half::Bf16), half(Half::F16)];

#[cfg(test)]
const fn half(element: Half) -> OperandKind {
    OperandKind::Half(Operands { element, a: Major::K, b: Major::K })
}

/// One of each kind that plans tell apart.
#[cfg(test)]
pub(super) fn samples() -> impl Iterator<Item = Fused> {
    use crate::check::QuantizedRows;
    use oxigemm_kernels::gemm::epilogue::{Activation, fusion::Fusion};

    let rows = QuantizedRows { format: crate::cast::ScaleFormat::F32, strides: [1, 1], slab: 0 };
    [Fusion::Elementwise, Fusion::Gated].into_iter().flat_map(move |fusion| {
        [None, Some(rows)].map(|quantized| Fused {
            fusion,
            activation: Activation::Silu,
            bias: None,
            bias_group: 0,
            heads: None,
            quantized,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{name, parse};
    use oxigemm_kernels::gemm::epilogue::fusion::Fusion;

    /// Rows and columns of D that a cluster computes at a time.
    fn cluster_tile(plan: &Plan) -> [u32; 2] {
        match plan.choice {
            GemmConfig::Wide { config, cluster_m, cluster_n } => {
                [config.block_m * cluster_m, config.tile_columns() * plan.passes * cluster_n]
            }
            GemmConfig::HalfWide { config, cluster_m, cluster_n } => {
                [config.block_m * cluster_m, config.tile_columns() * plan.passes * cluster_n]
            }
            GemmConfig::Slim { config, .. } => [config.block_m, config.tile_columns()],
            GemmConfig::HalfSlim { config, .. } => [config.block_m, config.tile_columns()],
        }
    }

    #[test]
    fn every_shape_has_a_plan_that_fits_the_device_and_leads_the_ranking() {
        for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(1)] {
            for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
                for [m, n, k] in [[1, 128, 1], [64, 2048, 7168], [130, 24576, 1536], [4096, 3072, 7168]] {
                    let shape = GemmShape { m, n, k };
                    let plan = Plan::best_fused(family, shape, &fused, &limits);
                    let ranking = fused_ranking(family, shape, &fused, &limits);
                    assert_eq!(plan.choice, ranking[0].0, "{shape:?}");
                    assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
                    let [rows, columns] = cluster_tile(&plan);
                    let (tiles, [x, y]) = (m.div_ceil(rows) * n.div_ceil(columns), plan.launch.grid);
                    if plan.choice.config().has_few_rows() {
                        assert_eq!(x / plan.launch.cluster * y, tiles, "{shape:?}: {:?}", plan.launch);
                        assert!(!limits.restricted || x * y <= limits.sms, "{shape:?}: {:?}", plan.launch);
                        continue;
                    }
                    assert!((1..=limits.sms).contains(&x), "{shape:?}: {:?}", plan.launch);
                    // A cluster without a tile would wait for scales that nobody brings.
                    assert!(x / plan.launch.cluster <= tiles, "{shape:?}: {:?}", plan.launch);
                }
            }
        }
    }

    #[test]
    fn kernels_serve_what_they_are_made_for_and_nothing_else() {
        let (shape, limits) = (GemmShape { m: 100, n: 256, k: 256 }, Limits::h200());
        for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
            for choice in fused_candidates(family, shape, &fused, &limits) {
                assert_eq!(parse(&name(&choice)), Some(choice));
                assert!(Plan::of(choice, shape, &limits).is_none(), "{} for a plain call", name(&choice));
                let other = match fused.fusion {
                    Fusion::Gated => Fusion::Elementwise,
                    _ => Fusion::Gated,
                };
                let other = Fused { fusion: other, ..fused };
                assert!(Plan::of_fused(choice, shape, &other, &limits).is_none(), "{}", name(&choice));
            }
        }
        for plain in ["wide_128x128_s5_c1x1", "bf16_wide_nt_256x128_s3_c1x1", "slim_64x128_k2_s4"] {
            let choice = parse(plain).unwrap();
            assert!(
                samples().all(|fused| Plan::of_fused(choice, shape, &fused, &limits).is_none()),
                "{plain}"
            );
        }
    }

    #[test]
    fn quantized_output_takes_as_many_passes_as_make_128_columns() {
        let passes = |name: &str| parse(name).unwrap().quantized_passes();
        assert_eq!(passes("wide_fused_256x128_s3_c1x1"), 1);
        assert_eq!(passes("wide_fused_64x128_s6_c1x1"), 2, "warpgroups share the columns");
        assert_eq!(passes("wide_gated_128x128_s5_c1x1"), 2);
        assert_eq!(passes("wide_gated_64x128_s6_c1x1"), 4);
        assert_eq!(passes("wide_gated_64x64_s10_c1x1"), 8);
        assert_eq!(passes("bf16_wide_fused_nt_256x128_s3_c1x1"), 1);
        assert_eq!(passes("bf16_wide_gated_nt_128x256_s4_c1x1"), 1);
        assert_eq!(passes("fp16_wide_gated_nt_64x128_s7_c1x1"), 4);
    }

    #[test]
    fn few_rows_take_kernels_that_split_k_and_many_do_not() {
        for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
            for m in [1, 24, 64] {
                let shape = GemmShape { m, n: 2048, k: 7168 };
                let plan = Plan::best_fused(family, shape, &fused, &Limits::h200());
                assert!(!is_batch_invariant(&plan.choice), "{shape:?}: {}", plan.name());
                let plan = Plan::best_batch_invariant_fused(family, shape, &fused, &Limits::h200());
                assert!(is_batch_invariant(&plan.choice), "{shape:?}: {}", plan.name());
            }
            let plan =
                Plan::best_fused(family, GemmShape { m: 4096, n: 2048, k: 7168 }, &fused, &Limits::h200());
            assert!(!plan.choice.config().has_few_rows(), "{}", plan.name());
        }
    }
}
