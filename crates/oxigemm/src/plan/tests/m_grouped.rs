//! M-grouped GEMMs and batches.

use super::*;

/// DeepGEMM's shapes: groups, slabs, rows of a slab, expected rows of a group.
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

fn fp8(shape: MGroupedShape) -> PlanRequest {
    PlanRequest::m_grouped(OperandKind::FP8, shape)
}

#[test]
fn groups_of_16_bit_rows_share_no_rows_of_b_in_a_cluster() {
    let shape = MGroupedShape { groups: 32, slabs: 32, rows: 4096, expected: 400, n: 4096, k: 7168 };
    let ranking = rank(&PlanRequest::m_grouped(nt(Half::Bf16), shape), &Limits::h200());
    let clusters: HashSet<[u32; 2]> = ranking.iter().map(|(config, _)| config.cluster).collect();
    assert_eq!(clusters, HashSet::from([[1, 1], [1, 2]]));
}

#[test]
fn every_shape_has_a_plan_that_fits_the_device() {
    for limits in [Limits::h200(), Limits::of(Arch::Sm90a, 114, 232_448), Limits::h200().restricted_to(24)] {
        for (shape, operands) in
            shapes().flat_map(|shape| [OperandKind::FP8, nt(Half::Bf16)].map(|operands| (shape, operands)))
        {
            let request = PlanRequest::m_grouped(operands, shape);
            let found = plan(&request, &limits).expect("there is one");
            assert_eq!(found, plan(&request, &limits).unwrap(), "{shape:?}");
            assert!(found.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
            assert_eq!(found.launch.grid[0] % found.launch.cluster, 0, "{shape:?}");
            assert!((1..=limits.sms).contains(&found.launch.grid[0]), "{shape:?}: {:?}", found.launch);
            assert!(found.estimate.us.is_finite() && found.estimate.us > 0.0, "{shape:?}");
            let rows = found.launch.tile_a;
            let of_scales = found.launch.scale_rows;
            assert!(rows > 0 && of_scales.is_multiple_of(rows), "{:?}", found.launch);
        }
    }
}

#[test]
fn the_plan_is_the_first_of_the_ranking() {
    for shape in shapes() {
        let (plan, ranking) = (best(&fp8(shape)), rank(&fp8(shape), &Limits::h200()));
        assert_eq!(plan.config, ranking[0].0, "{shape:?}");
        assert!(matches!(plan.why, Why::Cheapest { candidates, .. } if candidates == ranking.len()));
        assert!(ranking.windows(2).all(|pair| pair[0].1.us <= pair[1].1.us));
    }
}

#[test]
fn few_rows_of_many_groups_take_low_tiles_and_many_rows_take_high_ones() {
    // Of a few groups with few rows, those that fill the SMs best are the fastest, low or high.
    for [groups, slabs, rows, expected] in
        GROUPS.into_iter().filter(|[groups, _, _, rows]| groups * rows > 120)
    {
        for [n, k] in MATRICES {
            let shape = MGroupedShape { groups, slabs, rows, expected, n, k };
            let plan = best(&PlanRequest::m_grouped(nt(Half::Bf16), shape));
            assert_eq!(plan.config.tile()[0] == 64, expected <= 64, "{shape:?}: {}", plan.name());
            // Of FP8, low tiles are also the broadest.
            let plan = best(&fp8(shape));
            let high = plan.config.tile()[0];
            assert!(high <= 128 || expected > 128, "{shape:?}: {}", plan.name());
            assert!(high >= 128 || expected < 1024, "{shape:?}: {}", plan.name());
        }
    }
}

#[test]
fn every_kernel_is_a_candidate() {
    let shape = MGroupedShape { groups: 3, slabs: 3, rows: 1000, expected: 500, n: 256, k: 256 };
    let kernels = || GemmKernel::m_grouped(Arch::Sm90a);
    let operands: HashSet<OperandKind> = kernels().map(|kernel| kernel.operands()).collect();
    let candidates =
        |operands: &OperandKind| rank(&PlanRequest::m_grouped(*operands, shape), &Limits::h200());
    let all: Vec<_> = operands.iter().flat_map(candidates).collect();
    let found: HashSet<GemmKernel> = all.iter().map(|(config, _)| config.kernel).collect();
    assert_eq!(found, kernels().collect());
    for (config, _) in all {
        assert_eq!(parse(&name(&config)), Some(config));
    }
}

#[test]
fn kernels_without_shared_memory_for_the_group_table_are_left_out() {
    let shape = MGroupedShape { groups: 1024, slabs: 1024, rows: 256, expected: 256, n: 4096, k: 4096 };
    let high = "sm90_fp8_persistent_m_grouped_256x128_s3_c1x1";
    assert!(!computes(high, fp8(shape)));
    assert!(computes(high, fp8(MGroupedShape { groups: 128, ..shape })));
    assert!(plan(&fp8(shape), &Limits::h200()).is_ok());
    let text =
        plan(&fp8(MGroupedShape { groups: 100_000, ..shape }), &Limits::h200()).unwrap_err().to_string();
    assert!(text.contains("100000 groups"), "{text}");
}

#[test]
fn an_estimate_never_beats_the_memory() {
    for shape in shapes() {
        for (config, cost) in rank(&fp8(shape), &Limits::h200()) {
            let bytes = f64::from(shape.groups) * f64::from(shape.n) * f64::from(shape.k);
            assert!(cost.us >= bytes / 4.9e6, "{} for {shape:?}", name(&config));
        }
    }
}

#[test]
fn the_grid_has_no_block_that_could_never_have_a_tile() {
    let config = parse("sm90_fp8_persistent_m_grouped_128x128_s5_c1x1").unwrap();
    let grid = |shape| plan(&fp8(shape).with_config(config), &Limits::h200()).unwrap().launch.grid;
    let shape = MGroupedShape { groups: 2, slabs: 2, rows: 100, expected: 100, n: 256, k: 256 };
    assert_eq!(grid(shape), [4, 1]);
    // Two groups in one slab may have three tiles, wherever they start.
    assert_eq!(grid(MGroupedShape { slabs: 1, ..shape }), [6, 1]);
}

#[test]
fn batches_of_fp8_have_kernels_of_their_own_and_those_of_16_bits_are_m_grouped() {
    let shape = MGroupedShape { groups: 8, slabs: 8, rows: 4096, expected: 4096, n: 1024, k: 4096 };
    let batch = |operands| best(&PlanRequest::new(operands, PlanShape::Batched(shape))).name();
    assert!(batch(OperandKind::FP8).starts_with("sm90_fp8_persistent_batched_"));
    assert!(batch(nt(Half::Bf16)).starts_with("sm90_bf16_persistent_m_grouped_nt_"));
    assert!(
        best(&fp8(MGroupedShape { expected: 20, ..shape }))
            .name()
            .starts_with("sm90_fp8_persistent_m_grouped_64x")
    );
}
