//! Plans of products whose rows are grouped.
//!
//! How many rows a group has only the device knows. A plan is made for the rows that a group is expected to have, and
//! computes any others as well, only not as fast.

use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::launch::GemmKernel;

use super::cost::{self, Cost, Persistent, Speeds, Tile};
use super::{GemmConfig, Limits, MGroupedShape, OperandKind, Plan, Why, blocks_of, choices_of};
use crate::check::Fused;

/// Numbers of rows that a group may turn out to have, in parts of what is expected: tokens are not shared out evenly.
const SPREAD: [f64; 7] = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3];
/// What half of a tile takes that has no rows, in parts of a whole one: only its loads count. (Fitted when one warpgroup had all rows of the
/// other half.)
const HALF_TILE: f64 = 0.047;
/// Reading where the groups are, laying out the table and looking tiles up, in microseconds; of FP8 and of 16-bit operands.
const FINDING_GROUPS: f64 = 1.19;
const FINDING_GROUPS_HALF: f64 = 4.4;
/// What is read again of a B that two clusters of a group multiply one after the other, in parts of it; of both.
const READ_AGAIN: f64 = 0.352;
const READ_AGAIN_HALF: f64 = 0.12;

/// As the kernels reach them whose B changes from group to group, and comes from memory.
const GROUPED: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.792e6, l2: 12.78e6, feed: 125.2e3, output: 121e3, start: 3.92 };
const GROUPED_HALF: Speeds =
    Speeds { tensor: 12.69e6, memory: 3.95e6, l2: 11.1e6, feed: 124e3, output: 121e3, start: 3.92 };

/// How much of the tensor cores' speed a tile keeps.
fn efficiency(tile: &Tile) -> f64 {
    if tile.family != OperandKind::Fp8 {
        return cost::half_efficiency(tile);
    }
    match (tile.m, tile.n) {
        (256, _) => 0.96,
        (128, 192) => 0.9696,
        (128, _) => 0.717,
        (_, 256) => 0.642,
        (_, 128) => 0.6996,
        (_, 96) => 0.5169,
        _ => 0.3225,
    }
}

impl Plan {
    /// The cheapest candidate of a product with FP8 operands whose rows are grouped; `None` where no kernel has room for
    /// so many groups.
    ///
    /// ```
    /// use oxigemm::plan::{MGroupedShape, Limits, Plan};
    ///
    /// let few = MGroupedShape { groups: 32, slabs: 32, rows: 4096, expected: 20, n: 7168, k: 2048 };
    /// let plan = Plan::best_grouped(&few, &Limits::h200()).unwrap();
    /// assert!(plan.name().starts_with("wide_grouped_64x"));
    /// ```
    #[must_use]
    pub fn best_grouped(shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
        Plan::best_grouped_of(OperandKind::Fp8, shape, limits)
    }

    /// The same of some family.
    #[must_use]
    pub fn best_grouped_of(family: OperandKind, shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
        Plan::first_of(&grouped_ranking_of(family, shape, limits), shape, limits)
    }

    /// The cheapest candidate of a batch of products with FP8 operands; `None` as above.
    ///
    /// ```
    /// use oxigemm::plan::{MGroupedShape, Limits, Plan};
    ///
    /// let heads = MGroupedShape { groups: 8, slabs: 8, rows: 4096, expected: 4096, n: 1024, k: 4096 };
    /// let plan = Plan::best_batched(&heads, &Limits::h200()).unwrap();
    /// assert!(plan.name().starts_with("wide_batched_"));
    /// ```
    #[must_use]
    pub fn best_batched(shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
        Plan::first_of(&batched_ranking(shape, limits), shape, limits)
    }

    /// A given choice for a batch of products with FP8 operands, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_batched(choice: GemmConfig, shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
        (choice.config().is_batched() && fits(&choice, shape, limits))
            .then(|| plan(choice, estimate(&choice, shape, None, limits), shape, limits))?
    }

    fn first_of(ranking: &[(GemmConfig, Cost)], shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
        let (choice, estimate) = *ranking.first()?;
        let before = ranking.get(1).map(|(choice, cost)| (*choice, cost.us));
        Some(Plan {
            why: Why::Cheapest { of: ranking.len(), before },
            ..plan(choice, estimate, shape, limits)?
        })
    }

    /// A given choice for a product whose rows are grouped, or `None` where it cannot serve it on this device.
    #[must_use]
    pub fn of_grouped(choice: GemmConfig, shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
        serves(&choice, shape, limits)
            .then(|| plan(choice, estimate(&choice, shape, None, limits), shape, limits))?
    }
}

fn plan(choice: GemmConfig, estimate: Cost, shape: &MGroupedShape, limits: &Limits) -> Option<Plan> {
    let launch = choice.launch_grouped(shape, limits.clusters(blocks_of(&choice)))?;
    Some(Plan {
        shape: shape.slab(),
        groups: Some(*shape),
        k_groups: None,
        passes: 1,
        choice,
        launch,
        estimate,
        why: Why::Asked,
    })
}

/// Every candidate for FP8 operands with its estimate, the cheapest first.
#[must_use]
pub fn grouped_ranking(shape: &MGroupedShape, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    grouped_ranking_of(OperandKind::Fp8, shape, limits)
}

/// Every candidate of a family with its estimate, the cheapest first.
#[must_use]
pub fn grouped_ranking_of(
    family: OperandKind,
    shape: &MGroupedShape,
    limits: &Limits,
) -> Vec<(GemmConfig, Cost)> {
    ranked(grouped_candidates_of(family, shape, limits), shape, limits)
}

/// Every candidate for a batch of products with FP8 operands with its estimate, the cheapest first.
#[must_use]
pub fn batched_ranking(shape: &MGroupedShape, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    let candidates = GemmKernel::batched().flat_map(choices_of);
    ranked(candidates.filter(|choice| fits(choice, shape, limits)), shape, limits)
}

fn ranked(
    candidates: impl Iterator<Item = GemmConfig>,
    shape: &MGroupedShape,
    limits: &Limits,
) -> Vec<(GemmConfig, Cost)> {
    let mut all: Vec<_> = candidates.map(|choice| (choice, estimate(&choice, shape, None, limits))).collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

/// Every choice of a family that can serve a product whose rows are grouped, in a fixed order.
fn grouped_candidates_of(
    family: OperandKind,
    shape: &MGroupedShape,
    limits: &Limits,
) -> impl Iterator<Item = GemmConfig> {
    GemmKernel::grouped()
        .filter(move |config| config.family() == family)
        .flat_map(choices_of)
        .filter(move |choice| serves(choice, shape, limits))
}

fn serves(choice: &GemmConfig, shape: &MGroupedShape, limits: &Limits) -> bool {
    !choice.config().is_batched() && fits(choice, shape, limits)
}

fn fits(choice: &GemmConfig, shape: &MGroupedShape, limits: &Limits) -> bool {
    choice.config().fusion() == Fusion::None && has_room(choice, shape, limits)
}

/// Whether a choice can be launched for such groups on a device.
pub(super) fn has_room(choice: &GemmConfig, shape: &MGroupedShape, limits: &Limits) -> bool {
    let blocks = blocks_of(choice);
    (!limits.restricted || blocks <= limits.sms)
        && choice
            .launch_grouped(shape, limits.clusters(blocks))
            .is_some_and(|launch| launch.shared_bytes <= limits.shared_per_block)
}

/// The estimate for a choice; what is done with sums, where that is `fused`, takes the time of some output, alike for all.
pub(super) fn estimate(
    choice: &GemmConfig,
    shape: &MGroupedShape,
    fused: Option<&Fused>,
    limits: &Limits,
) -> Cost {
    let family = choice.config().family();
    let sums = fused.map_or(1, |fused| fused.fusion.sums());
    let passes = fused.map_or(1, |fused| super::fused::passes(choice, fused));
    let (m, n, stages, [cluster_m, cluster_n]) = match *choice {
        GemmConfig::Wide { config, cluster_m, cluster_n } => {
            (config.block_m, config.block_n, config.stages, [cluster_m, cluster_n])
        }
        GemmConfig::HalfWide { config, cluster_m, cluster_n } => {
            (config.block_m, config.block_n, config.stages, [cluster_m, cluster_n])
        }
        GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. } => {
            unreachable!("only many-row kernels have groups: `serves` has seen to it")
        }
    };
    let tile = Tile { family, m, n };
    let rows = f64::from(shape.expected.max(1));
    let high = f64::from(tile.m * cluster_m);
    // Tiles of a group along M, and what those take that are multiplied, on average.
    let mean = |of: &dyn Fn(f64) -> f64| {
        SPREAD.iter().map(|part| of((rows * part).ceil())).sum::<f64>() / SPREAD.len() as f64
    };
    let tiles_m = mean(&|rows| (rows / high).ceil());
    let is_fp8 = family == OperandKind::Fp8;
    let multiplied = mean(&|rows| {
        if !is_fp8 || cluster_m > 1 {
            // Every 64 rows without a row are left out, of FP8 every half of a tile.
            let part = if is_fp8 { f64::from(tile.m) / 2.0 } else { 64.0 };
            return (rows / part).ceil() * part / high;
        }
        let last = rows - ((rows / high).ceil() - 1.0) * high;
        let half = tile.m > 64 && last <= f64::from(tile.m) / 2.0;
        (rows / high).ceil() - if half { 1.0 - HALF_TILE } else { 0.0 }
    });
    let groups = f64::from(shape.groups);
    let columns = tile.n / sums * passes * cluster_n;
    let tiles = groups * tiles_m * f64::from(shape.n.div_ceil(columns));
    let ([n, k], rows_of_b) = ([shape.n, shape.k].map(f64::from), f64::from(shape.n) * f64::from(sums));
    let (read_again, finding, speeds) = match is_fp8 {
        true => (READ_AGAIN, FINDING_GROUPS, &GROUPED),
        false => (READ_AGAIN_HALF, FINDING_GROUPS_HALF, &GROUPED_HALF),
    };
    let read = 1.0 + read_again * (tiles_m.min(2.0) - 1.0);
    let bytes = f64::from(family.element_bytes());
    let scales = if is_fp8 { k / 32.0 } else { 0.0 };
    let work = Persistent {
        tiles,
        k_blocks: choice.k_blocks(shape.k) * passes,
        memory: groups * (rows_of_b * k * bytes * read + rows * (k * bytes + 2.0 * n + scales)),
        multiplied: multiplied / tiles_m,
        efficiency: efficiency(&tile),
        overlaps: false,
        last_round: None,
    };
    let cost = cost::persistent(&tile, [cluster_m, cluster_n], stages, &work, speeds, limits);
    Cost { us: cost.us + finding, start: cost.start + finding, ..cost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{name, parse};
    use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
    use std::collections::HashSet;

    const NT: OperandKind = OperandKind::Half(Operands { element: Half::Bf16, a: Major::K, b: Major::K });

    /// The peer's shapes: groups, slabs, rows of a slab, rows expected of a group.
    const GROUPS: [[u32; 4]; 6] = [
        [32, 32, 4096, 20],
        [6, 6, 4096, 20],
        [32, 32, 4096, 192],
        [6, 6, 4096, 1024],
        [8, 1, 32768, 4096],
        [4, 1, 32768, 8192],
    ];
    const MATRICES: [[u32; 2]; 4] = [[6144, 7168], [7168, 3072], [4096, 4096], [4096, 2048]];

    fn shapes() -> impl Iterator<Item = MGroupedShape> {
        let odd = [[1, 1, 1, 1], [1, 1, 7, 7], [1024, 1024, 3, 1], [300, 1, 100_003, 333]];
        let all = GROUPS.into_iter().chain(odd);
        all.flat_map(|[groups, slabs, rows, expected]| {
            let matrices = MATRICES.into_iter().chain([[1, 1], [130, 16], [8, 100_000]]);
            matrices.map(move |[n, k]| MGroupedShape { groups, slabs, rows, expected, n, k })
        })
    }

    #[test]
    fn every_shape_has_a_plan_that_fits_the_device() {
        for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(24)] {
            for (shape, family) in
                shapes().flat_map(|shape| [OperandKind::Fp8, NT].map(|family| (shape, family)))
            {
                let plan = Plan::best_grouped_of(family, &shape, &limits).expect("there is one");
                assert_eq!(plan, Plan::best_grouped_of(family, &shape, &limits).unwrap(), "{shape:?}");
                assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
                assert_eq!(plan.launch.grid[0] % plan.launch.cluster, 0, "{shape:?}");
                assert!((1..=limits.sms).contains(&plan.launch.grid[0]), "{shape:?}: {:?}", plan.launch);
                assert!(plan.estimate.us.is_finite() && plan.estimate.us > 0.0, "{shape:?}");
                let rows = plan.launch.tile_a;
                let of_scales = plan.launch.scale_rows;
                assert!(rows > 0 && of_scales.is_multiple_of(rows), "{:?}", plan.launch);
            }
        }
    }

    #[test]
    fn the_best_plan_is_the_first_of_the_ranking() {
        for shape in shapes() {
            let plan = Plan::best_grouped(&shape, &Limits::h200()).unwrap();
            let ranking = grouped_ranking(&shape, &Limits::h200());
            assert_eq!(plan.choice, ranking[0].0, "{shape:?}");
            assert!(matches!(plan.why, Why::Cheapest { of, .. } if of == ranking.len()));
            assert!(ranking.windows(2).all(|pair| pair[0].1.us <= pair[1].1.us));
        }
    }

    #[test]
    fn few_rows_of_many_groups_take_low_tiles_and_many_rows_take_high_ones() {
        // Of a few groups with few rows, those that fill the multiprocessors best are the fastest, low or high.
        for [groups, slabs, rows, expected] in
            GROUPS.into_iter().filter(|[groups, _, _, rows]| groups * rows > 120)
        {
            for [n, k] in MATRICES {
                let shape = MGroupedShape { groups, slabs, rows, expected, n, k };
                let plan = Plan::best_grouped(&shape, &Limits::h200()).unwrap();
                let GemmConfig::Wide { config, .. } = plan.choice else { panic!("{}", plan.name()) };
                assert_eq!(config.block_m == 64, expected <= 64, "{shape:?}: {}", plan.name());
                let plan = Plan::best_grouped_of(NT, &shape, &Limits::h200()).unwrap();
                let GemmConfig::HalfWide { config, .. } = plan.choice else { panic!("{}", plan.name()) };
                assert_eq!(config.block_m == 64, expected <= 64, "{shape:?}: {}", plan.name());
            }
        }
    }

    #[test]
    fn names_are_unique_and_lead_back() {
        let shape = MGroupedShape { groups: 3, slabs: 3, rows: 100, expected: 50, n: 256, k: 256 };
        let families: HashSet<OperandKind> = GemmKernel::grouped().map(|config| config.family()).collect();
        let candidates = |family: &OperandKind| {
            grouped_candidates_of(*family, &shape, &Limits::h200()).collect::<Vec<_>>()
        };
        let all: Vec<GemmConfig> = families.iter().flat_map(candidates).collect();
        assert_eq!(all.len(), GemmKernel::grouped().count() * 3, "three clusters each");
        for choice in all {
            assert_eq!(parse(&name(&choice)), Some(choice));
        }
    }

    #[test]
    fn kernels_without_room_for_the_groups_are_left_out() {
        let shape = MGroupedShape { groups: 1024, slabs: 1024, rows: 256, expected: 256, n: 4096, k: 4096 };
        let high = parse("wide_grouped_256x128_s3_c1x1").unwrap();
        assert!(Plan::of_grouped(high, &shape, &Limits::h200()).is_none());
        assert!(Plan::of_grouped(high, &MGroupedShape { groups: 128, ..shape }, &Limits::h200()).is_some());
        assert!(Plan::best_grouped(&shape, &Limits::h200()).is_some());
    }

    #[test]
    fn an_estimate_never_beats_the_memory() {
        for shape in shapes() {
            for (choice, cost) in grouped_ranking(&shape, &Limits::h200()) {
                let bytes = f64::from(shape.groups) * f64::from(shape.n) * f64::from(shape.k);
                assert!(cost.us >= bytes / 4.9e6, "{} for {shape:?}", name(&choice));
            }
        }
    }

    #[test]
    fn the_grid_has_no_block_that_could_never_have_a_tile() {
        let choice = parse("wide_grouped_128x128_s5_c1x1").unwrap();
        let shape = MGroupedShape { groups: 2, slabs: 2, rows: 100, expected: 100, n: 256, k: 256 };
        assert_eq!(Plan::of_grouped(choice, &shape, &Limits::h200()).unwrap().launch.grid, [4, 1]);
        // Two groups in one slab may have three tiles, wherever they start.
        let shared = MGroupedShape { slabs: 1, ..shape };
        assert_eq!(Plan::of_grouped(choice, &shared, &Limits::h200()).unwrap().launch.grid, [6, 1]);
    }
}
