//! Plans of products whose sums are finished before they are stored.

use oxigemm_kernels::grouping::Grouping;
#[cfg(test)]
use oxigemm_kernels::half::{Half, Major, Operands};
use oxigemm_kernels::launch::Config;

use super::cost::{self, Cost, Persistent, Tile};
use super::{Choice, Family, Limits, Plan, Shape, Why, blocks_of, choices_of};
use crate::check::Fused;

impl Plan {
    /// The cheapest candidate of a family whose sums are finished. A shape with elements always has one; its N is that of
    /// the columns that are computed.
    ///
    /// # Panics
    /// Where a family has no such kernels: the check of a call sees to that.
    #[must_use]
    pub fn best_fused(family: Family, shape: Shape, fused: &Fused, limits: &Limits) -> Plan {
        let ranking = fused_ranking(family, shape, fused, limits);
        let (choice, estimate) = *ranking.first().expect("many-row kernels serve every shape");
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        Plan {
            why: Why::Cheapest { of: ranking.len(), before },
            ..plan(choice, estimate, shape, fused, limits)
        }
    }

    /// A given choice for a product whose sums are finished, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_fused(choice: Choice, shape: Shape, fused: &Fused, limits: &Limits) -> Option<Plan> {
        serves(&choice, fused, limits)
            .then(|| plan(choice, estimate(&choice, shape, fused, limits), shape, fused, limits))
    }
}

fn plan(choice: Choice, estimate: Cost, shape: Shape, fused: &Fused, limits: &Limits) -> Plan {
    let passes = passes(&choice, fused);
    let launch = choice.launch_in_passes(shape, passes, limits.clusters(blocks_of(&choice)));
    Plan { shape, groups: None, k_groups: None, passes, choice, launch, estimate, why: Why::Asked }
}

pub(super) fn passes(choice: &Choice, fused: &Fused) -> u32 {
    if fused.quantized.is_some() { choice.quantized_passes() } else { 1 }
}

/// Every candidate with its estimate, the cheapest first.
#[must_use]
pub fn fused_ranking(family: Family, shape: Shape, fused: &Fused, limits: &Limits) -> Vec<(Choice, Cost)> {
    let mut all: Vec<_> = fused_candidates(family, fused, limits)
        .map(|choice| (choice, estimate(&choice, shape, fused, limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

/// Every choice of a family that can serve a product whose sums are finished, in a fixed order.
pub fn fused_candidates(family: Family, fused: &Fused, limits: &Limits) -> impl Iterator<Item = Choice> {
    Config::fused()
        .filter(move |config| config.family() == family)
        .flat_map(choices_of)
        .filter(move |choice| serves(choice, fused, limits))
}

fn serves(choice: &Choice, fused: &Fused, limits: &Limits) -> bool {
    let config = choice.config();
    let fits = match config {
        Config::Wide(config) => !config.is_grouped() && config.shared_bytes() <= limits.shared_per_block,
        Config::HalfWide(config) => {
            config.grouping == Grouping::Dense && config.shared_bytes() <= limits.shared_per_block
        }
        Config::Slim(_) | Config::HalfSlim(_) | Config::Transpose => false,
    };
    fits && config.fusion() == fused.fusion && (!limits.restricted || blocks_of(choice) <= limits.sms)
}

/// As a product that stores its sums. What is done with them takes the time of some output, alike for all choices.
fn estimate(choice: &Choice, shape: Shape, fused: &Fused, limits: &Limits) -> Cost {
    let (m, n, stages, [cluster_m, cluster_n]) = match *choice {
        Choice::Wide { config, cluster_m, cluster_n } => {
            (config.block_m, config.block_n, config.stages, [cluster_m, cluster_n])
        }
        Choice::HalfWide { config, cluster_m, cluster_n } => {
            (config.block_m, config.block_n, config.stages, [cluster_m, cluster_n])
        }
        Choice::Slim { .. } | Choice::HalfSlim { .. } => {
            unreachable!("only many-row kernels finish sums: `serves` has seen to it")
        }
    };
    let (family, passes) = (choice.config().family(), passes(choice, fused));
    let tile = Tile { family, m, n };
    let columns = tile.n / fused.fusion.sums() * passes * cluster_n;
    let whole = Shape { n: shape.n * fused.fusion.sums(), ..shape };
    let work = Persistent {
        tiles: f64::from(shape.m.div_ceil(tile.m * cluster_m)) * f64::from(shape.n.div_ceil(columns)),
        k_blocks: choice.k_blocks(shape.k) * passes,
        memory: cost::memory_bytes(family, whole),
        multiplied: 1.0,
        efficiency: cost::efficiency(&tile),
        overlaps: false,
        last_round: None,
    };
    cost::persistent(&tile, [cluster_m, cluster_n], stages, &work, cost::many_rows(&tile), limits)
}

/// The families that have such kernels.
#[cfg(test)]
pub(super) const FAMILIES: [Family; 3] = [Family::Fp8, half(Half::Bf16), half(Half::F16)];

#[cfg(test)]
const fn half(element: Half) -> Family {
    Family::Half(Operands { element, a: Major::K, b: Major::K })
}

/// One of each kind that plans tell apart.
#[cfg(test)]
pub(super) fn samples() -> impl Iterator<Item = Fused> {
    use crate::check::QuantizedRows;
    use oxigemm_kernels::epilogue::{Activation, fused::Fusion};

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
    use oxigemm_kernels::epilogue::fused::Fusion;

    /// Rows and columns of D that a cluster computes at a time.
    fn cluster_tile(plan: &Plan) -> [u32; 2] {
        match plan.choice {
            Choice::Wide { config, cluster_m, cluster_n } => {
                [config.block_m * cluster_m, config.tile_columns() * plan.passes * cluster_n]
            }
            Choice::HalfWide { config, cluster_m, cluster_n } => {
                [config.block_m * cluster_m, config.tile_columns() * plan.passes * cluster_n]
            }
            _ => panic!("{}", plan.name()),
        }
    }

    #[test]
    fn every_shape_has_a_plan_that_fits_the_device_and_leads_the_ranking() {
        for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(1)] {
            for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
                for [m, n, k] in [[1, 128, 1], [64, 2048, 7168], [130, 24576, 1536], [4096, 3072, 7168]] {
                    let shape = Shape { m, n, k };
                    let plan = Plan::best_fused(family, shape, &fused, &limits);
                    let ranking = fused_ranking(family, shape, &fused, &limits);
                    assert_eq!(plan.choice, ranking[0].0, "{shape:?}");
                    assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
                    assert!((1..=limits.sms).contains(&plan.launch.grid[0]), "{shape:?}: {:?}", plan.launch);
                    // A cluster without a tile would wait for scales that nobody brings.
                    let [rows, columns] = cluster_tile(&plan);
                    let tiles = m.div_ceil(rows) * n.div_ceil(columns);
                    assert!(
                        plan.launch.grid[0] / plan.launch.cluster <= tiles,
                        "{shape:?}: {:?}",
                        plan.launch
                    );
                }
            }
        }
    }

    #[test]
    fn kernels_serve_what_they_are_made_for_and_nothing_else() {
        let (shape, limits) = (Shape { m: 100, n: 256, k: 256 }, Limits::h200());
        for (fused, family) in samples().flat_map(|fused| FAMILIES.map(|family| (fused, family))) {
            for choice in fused_candidates(family, &fused, &limits) {
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
        for plain in ["wide_128x128_s5_c1x1", "bf16_wide_nt_256x128_s3_c1x1"] {
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
        assert_eq!(passes("bf16_wide_fused_nt_256x128_s3_c1x1"), 1);
        assert_eq!(passes("bf16_wide_gated_nt_128x256_s4_c1x1"), 1);
        assert_eq!(passes("fp16_wide_gated_nt_64x128_s7_c1x1"), 4);
    }

    #[test]
    fn few_rows_of_16_bits_take_low_tiles_and_many_high_ones() {
        // Quantized, low tiles take more passes than there are multiprocessors to share them.
        for fused in samples().filter(|fused| fused.quantized.is_none()) {
            for [m, high] in [[32, 64], [4096, 128]] {
                let shape = Shape { m, n: 2048, k: 4096 };
                let plan = Plan::best_fused(half(Half::Bf16), shape, &fused, &Limits::h200());
                let Choice::HalfWide { config, .. } = plan.choice else { panic!("{}", plan.name()) };
                assert_eq!(config.block_m > 64, high > 64, "{}", plan.name());
            }
        }
    }
}
