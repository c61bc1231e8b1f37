use super::*;
use oxigemm_kernels::gemm::operand::f16::{Half, Operands};
use oxigemm_kernels::gemm::operand::fp8::E5m2;
use std::collections::HashSet;

const ANCHOR: [(u32, u32); 7] =
    [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)];

/// FP8 in every mix of types, and both 16-bit types in every layout.
fn families() -> impl Iterator<Item = OperandKind> {
    let e5m2 = E5m2::ALL.map(OperandKind::Fp8E5m2);
    std::iter::once(OperandKind::Fp8).chain(Operands::all().map(OperandKind::Half)).chain(e5m2)
}

fn half(layout: &str) -> OperandKind {
    let same = |operands: &Operands| operands.element == Half::Bf16 && operands.layout() == layout;
    OperandKind::Half(Operands::all().find(same).expect("one of four layouts"))
}

fn shapes() -> impl Iterator<Item = GemmShape> {
    let rows = [1, 2, 7, 8, 9, 63, 64, 65, 128, 129, 1000, 4096, 100_003];
    let others = [(1, 1), (1, 128), (17, 129), (64, 100), (129, 4097)];
    rows.into_iter()
        .flat_map(move |m| ANCHOR.into_iter().chain(others).map(move |(n, k)| GemmShape { m, n, k }))
}

#[test]
fn every_shape_has_a_plan_that_fits_the_device() {
    for limits in [Limits::h200(), Limits::hopper(114, 232_448), Limits::h200().restricted_to(24)] {
        for (family, shape) in families().flat_map(|family| shapes().map(move |shape| (family, shape))) {
            let plan = Plan::best_of(family, shape, &limits);
            assert_eq!(plan.choice.config().family(), family, "{shape:?}");
            assert!(plan.launch.shared_bytes <= limits.shared_per_block, "{shape:?}");
            assert!(plan.launch.grid[0] > 0 && plan.launch.grid[1] > 0 && plan.launch.grid[1] <= MAX_GRID_Y);
            assert_eq!(plan.launch.grid[0] % plan.launch.cluster, 0, "{shape:?}");
            assert!(plan.estimate.us.is_finite() && plan.estimate.us > 0.0, "{shape:?}");
        }
    }
}

#[test]
fn the_same_arguments_give_the_same_plan() {
    for shape in shapes() {
        assert_eq!(Plan::best(shape, &Limits::h200()), Plan::best(shape, &Limits::h200()));
    }
}

#[test]
fn the_best_plan_is_the_first_of_the_ranking() {
    for shape in shapes() {
        let (plan, ranking) = (Plan::best(shape, &Limits::h200()), ranking(shape, &Limits::h200()));
        assert_eq!(plan.choice, ranking[0].0, "{shape:?}");
        let Why::Cheapest { of, before } = plan.why else { panic!("nobody asked for it") };
        assert_eq!(of, ranking.len());
        assert_eq!(before.map(|(choice, _)| choice), ranking.get(1).map(|(choice, _)| *choice), "{shape:?}");
    }
}

#[test]
fn the_last_round_is_shared_out_where_that_pays() {
    let limits = Limits::h200();
    let of = |[m, n, k]: [u32; 3]| Plan::best(GemmShape { m, n, k }, &limits);
    let shared = of([8192; 3]);
    assert!(shared.choice.shares_tail() && !is_batch_invariant(&shared.choice), "{}", shared.name());
    assert!(shared.launch.tail.tiles > 0 && shared.launch.room_bytes > 0);
    // Rounds that are full, and a short K.
    for whole in [of([8448, 8192, 8192]), of([4096, 7168, 2048])] {
        assert!(!whole.choice.shares_tail() && whole.launch.room_bytes == 0, "{}", whole.name());
    }
    let invariant = Plan::best_batch_invariant(OperandKind::Fp8, shared.shape, &limits);
    assert!(!invariant.choice.shares_tail());
    let planned = shapes().map(|shape| Plan::best(shape, &limits)).filter(|plan| plan.choice.shares_tail());
    assert!(planned.into_iter().all(|plan| plan.launch.tail.tiles > 0), "else another kernel is as good");
}

#[test]
fn few_rows_take_slim_kernels_and_many_take_wide_ones() {
    for (n, k) in ANCHOR {
        let kind =
            |m| matches!(Plan::best(GemmShape { m, n, k }, &Limits::h200()).choice, GemmConfig::Slim { .. });
        assert!(kind(1), "m=1 n={n} k={k}");
        assert!(!kind(8192), "m=8192 n={n} k={k}");
    }
}

#[test]
fn few_rows_of_16_bits_take_slim_kernels_and_many_take_wide_ones() {
    for (n, k) in ANCHOR {
        let choice = |layout, m| Plan::best_of(half(layout), GemmShape { m, n, k }, &Limits::h200()).choice;
        for layout in ["nt", "nn"] {
            assert!(matches!(choice(layout, 1), GemmConfig::HalfSlim { .. }), "{layout} m=1 n={n} k={k}");
        }
        for layout in ["nt", "nn", "tn", "tt"] {
            assert!(
                matches!(choice(layout, 8192), GemmConfig::HalfWide { .. }),
                "{layout} m=8192 n={n} k={k}"
            );
        }
    }
}

#[test]
fn large_products_of_16_bits_take_the_tiles_that_read_least() {
    for shape in [GemmShape { m: 4096, n: 7168, k: 16384 }, GemmShape { m: 8192, n: 8192, k: 8192 }] {
        let plan = Plan::best_of(half("nt"), shape, &Limits::h200());
        let GemmConfig::HalfWide { config, .. } = plan.choice else { panic!("{}", plan.name()) };
        assert_eq!(config.block_m * config.block_n, 256 * 128, "{}", plan.name());
    }
    // Twelve tiles of 176 columns are 2112: three rounds that are nearly full.
    let plan = Plan::best_of(half("nt"), GemmShape { m: 4096, n: 2112, k: 7168 }, &Limits::h200());
    assert!(plan.name().contains("128x176"), "{}", plan.name());
}

#[test]
fn a_small_n_is_split_along_k() {
    let shape = GemmShape { m: 1, n: 576, k: 7168 };
    let plan = Plan::best(shape, &Limits::h200());
    assert!(matches!(plan.choice, GemmConfig::Slim { split: 4.., .. }), "{}", plan.name());
    let plan = Plan::best_of(half("nt"), shape, &Limits::h200());
    assert!(matches!(plan.choice, GemmConfig::HalfSlim { split: 4.., .. }), "{}", plan.name());
}

#[test]
fn a_restricted_plan_stays_within_its_multiprocessors() {
    for sms in [1, 2, 7, 64] {
        let limits = Limits::h200().restricted_to(sms);
        for (family, shape) in families().flat_map(|family| shapes().map(move |shape| (family, shape))) {
            let launch = Plan::best_of(family, shape, &limits).launch;
            let blocks = u64::from(launch.grid[0]) * u64::from(launch.grid[1]);
            assert!(blocks <= u64::from(sms), "{shape:?} on {sms}: {launch:?}");
        }
    }
    assert_eq!(Limits::h200().restricted_to(500), Limits::h200());
}

#[test]
fn names_are_unique_and_lead_back() {
    let mut seen = HashSet::new();
    let of = |shape| families().flat_map(move |family| candidates_of(family, shape, Limits::h200()));
    let all = shapes().flat_map(of);
    let unique: HashSet<GemmConfig> = all.collect();
    for choice in unique {
        assert!(seen.insert(name(&choice)), "{} twice", name(&choice));
        assert_eq!(parse(&name(&choice)), Some(choice));
    }
    for wrong in
        ["", "wide", "wide_128x128", "slim_8x64_k4_s60", "slim_8x64_k5_s6", "fp8_gemm_wide_128x128_s5"]
    {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}

#[test]
fn what_cannot_serve_is_refused() {
    let limits = Limits::h200();
    let slim = parse("slim_8x64_k1_s4").unwrap();
    assert!(Plan::of(slim, GemmShape { m: 8 * 65_535, n: 64, k: 64 }, &limits).is_some());
    assert!(Plan::of(slim, GemmShape { m: 8 * 65_535 + 1, n: 64, k: 64 }, &limits).is_none());
    let deep = parse("slim_128x128_k1_s16").unwrap();
    assert!(
        Plan::of(deep, GemmShape { m: 1, n: 64, k: 64 }, &limits).is_none(),
        "more shared memory than there is"
    );
}

#[test]
fn an_estimate_never_beats_the_memory() {
    for shape in shapes() {
        for (choice, cost) in ranking(shape, &Limits::h200()) {
            let bytes = f64::from(shape.m + shape.n) * f64::from(shape.k);
            assert!(cost.us >= bytes / 4.9e6, "{} for {shape:?}", name(&choice));
            assert!(cost.terms().iter().all(|(_, us)| *us >= 0.0 && *us <= cost.us), "{cost:?}");
        }
        for (choice, cost) in ranking_of(half("nn"), shape, &Limits::h200()) {
            let bytes = 2.0 * f64::from(shape.m + shape.n) * f64::from(shape.k);
            assert!(cost.us >= bytes / 4.9e6, "{} for {shape:?}", name(&choice));
        }
    }
}

#[test]
fn a_shape_has_few_candidates() {
    for shape in shapes() {
        for family in families() {
            let count = candidates_of(family, shape, Limits::h200()).count();
            assert!((1..400).contains(&count), "{count} for {shape:?}");
        }
    }
}

#[test]
fn clusters_are_counted_by_their_blocks() {
    let limits = Limits::h200();
    assert_eq!([1, 2, 4, 8].map(|blocks| limits.clusters(blocks)), [132, 66, 30, 15]);
    assert_eq!(Limits::hopper(132, 232_448), limits);
    assert_eq!(Limits::hopper(0, 232_448).clusters(8), 1, "there is always one");
}
