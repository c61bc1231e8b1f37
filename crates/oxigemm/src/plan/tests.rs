//! Properties of planning. Tests for one grouping, or for fused epilogues, stand in the modules below.

use super::*;
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
use oxigemm_kernels::gemm::operand::fp8::E5m2;
use oxigemm_kernels::gemm::params::PersistentTuning;
use std::collections::HashSet;

mod fused;
mod fused_m_grouped;
mod k_grouped;
mod m_grouped;
mod summed;
mod tuned;

const ANCHOR: [(u32, u32); 7] =
    [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)];

/// FP8 in every mix of types, and both 16-bit types in every layout.
fn all_operands() -> impl Iterator<Item = OperandKind> {
    let e5m2 = E5m2::ALL.map(OperandKind::fp8_e5m2);
    std::iter::once(OperandKind::FP8).chain(Operands::all().map(OperandKind::f16)).chain(e5m2)
}

const fn nt(element: Half) -> OperandKind {
    OperandKind::f16(Operands { element, a: Major::K, b: Major::K })
}

fn bf16(layout: &str) -> OperandKind {
    let same = |operands: &Operands| operands.element == Half::Bf16 && operands.layout() == layout;
    OperandKind::f16(Operands::all().find(same).expect("one of four layouts"))
}

fn shapes() -> impl Iterator<Item = GemmShape> {
    let rows = [1, 2, 7, 8, 9, 63, 64, 65, 128, 129, 1000, 4096, 100_003];
    let others = [(1, 1), (1, 128), (17, 129), (64, 100), (129, 4097)];
    rows.into_iter()
        .flat_map(move |m| ANCHOR.into_iter().chain(others).map(move |(n, k)| GemmShape { m, n, k }))
}

fn requests() -> impl Iterator<Item = PlanRequest> {
    all_operands().flat_map(|operands| shapes().map(move |shape| PlanRequest::dense(operands, shape)))
}

fn fp8(m: u32, n: u32, k: u32) -> PlanRequest {
    PlanRequest::dense(OperandKind::FP8, GemmShape { m, n, k })
}

/// The plan on an H200.
fn best(request: &PlanRequest) -> Plan {
    plan(request, &Limits::h200()).expect("there is one")
}

/// Whether a configuration, by its name, computes a GEMM on an H200.
fn computes(config: &str, request: PlanRequest) -> bool {
    let config = parse(config).expect("the name of a configuration");
    plan(&request.with_config(config), &Limits::h200()).is_ok()
}

#[test]
fn every_shape_has_a_plan_that_fits_the_device() {
    for limits in [Limits::h200(), Limits::of(Arch::Sm90a, 114, 232_448), Limits::h200().restricted_to(24)] {
        for request in requests() {
            let plan = plan(&request, &limits).expect("there is one");
            assert_eq!(plan.config.operands(), request.operands, "{request:?}");
            assert_eq!(plan.arch(), limits.arch);
            let launch = plan.launch;
            assert!(launch.shared_bytes <= limits.shared_per_block, "{request:?}");
            assert!(launch.grid[0] > 0 && launch.grid[1] > 0);
            assert!(launch.grid[1] <= limits.arch.limits().max_grid_y);
            assert_eq!(launch.grid[0] % launch.cluster, 0, "{request:?}");
            assert!(plan.estimate.us.is_finite() && plan.estimate.us > 0.0, "{request:?}");
        }
    }
}

#[test]
fn equal_requests_give_equal_plans() {
    for shape in shapes() {
        let request = PlanRequest::dense(OperandKind::FP8, shape);
        assert_eq!(best(&request), best(&request));
    }
}

#[test]
fn the_plan_is_the_first_of_the_ranking() {
    for shape in shapes() {
        let request = PlanRequest::dense(OperandKind::FP8, shape);
        let (plan, ranking) = (best(&request), rank(&request, &Limits::h200()));
        assert_eq!(plan.config, ranking[0].0, "{shape:?}");
        let Why::Cheapest { candidates, runner_up } = plan.why else { panic!("nobody requested it") };
        assert_eq!(candidates, ranking.len());
        assert_eq!(
            runner_up.map(|(config, _)| config),
            ranking.get(1).map(|(config, _)| *config),
            "{shape:?}"
        );
    }
}

#[test]
fn the_last_wave_is_a_stream_k_tail_where_that_pays() {
    let stream_k = best(&fp8(8192, 8192, 8192));
    assert!(stream_k.config.is_stream_k() && !is_batch_invariant(&stream_k.config), "{}", stream_k.name());
    assert!(stream_k.launch.stream_k.tiles > 0 && stream_k.launch.workspace_bytes > 0);
    // Full waves, and a short K.
    for whole in [best(&fp8(8448, 8192, 8192)), best(&fp8(4096, 7168, 2048))] {
        assert!(!whole.config.is_stream_k() && whole.launch.workspace_bytes == 0, "{}", whole.name());
    }
    let invariant = best(&PlanRequest { batch_invariant: true, ..fp8(8192, 8192, 8192) });
    assert!(!invariant.config.is_stream_k());
    let planned = shapes().map(|shape| best(&PlanRequest::dense(OperandKind::FP8, shape)));
    let mut planned = planned.filter(|plan| plan.config.is_stream_k());
    assert!(planned.all(|plan| plan.launch.stream_k.tiles > 0), "else another kernel is as good");
}

#[test]
fn the_last_wave_of_16_bit_tiles_is_a_stream_k_tail_where_that_pays() {
    let request = |m, n, k| PlanRequest::dense(bf16("nt"), GemmShape { m, n, k });
    // 2.3 waves of 128x256 tiles.
    let split = best(&request(2347, 4096, 14336));
    assert!(split.config.is_stream_k() && split.launch.stream_k.tiles > 0, "{}", split.name());
    let invariant = best(&PlanRequest { batch_invariant: true, ..request(2347, 4096, 14336) });
    assert!(!invariant.config.is_stream_k(), "{}", invariant.name());
    // Full waves, and a short K.
    for whole in [best(&request(4224, 8192, 8192)), best(&request(2347, 4096, 512))] {
        assert!(!whole.config.is_stream_k(), "{}", whole.name());
    }
}

/// Narrow tiles give more SMs something to do where a few rows of tiles would leave many of them idle.
#[test]
fn a_few_hundred_rows_of_16_bits_take_narrow_tiles() {
    let plan = best(&PlanRequest::dense(bf16("nt"), GemmShape { m: 345, n: 3072, k: 1536 }));
    assert_eq!(plan.config.tile(), [128, 96], "{}", plan.name());
}

#[test]
fn small_m_takes_split_k_kernels_and_large_m_persistent_ones() {
    for (n, k) in ANCHOR {
        assert!(best(&fp8(1, n, k)).config.is_split_k(), "m=1 n={n} k={k}");
        assert!(!best(&fp8(8192, n, k)).config.is_split_k(), "m=8192 n={n} k={k}");
    }
}

#[test]
fn problems_that_read_little_take_split_k_kernels() {
    for (m, n, k) in [(813, 544, 160), (379, 512, 560)] {
        assert!(best(&fp8(m, n, k)).config.is_split_k(), "m={m} n={n} k={k}");
    }
}

#[test]
fn small_m_of_16_bits_takes_split_k_kernels_and_large_m_persistent_ones() {
    for (n, k) in ANCHOR {
        let split_k =
            |layout, m| best(&PlanRequest::dense(bf16(layout), GemmShape { m, n, k })).config.is_split_k();
        for layout in ["nt", "nn"] {
            assert!(split_k(layout, 1), "{layout} m=1 n={n} k={k}");
        }
        for layout in ["nt", "nn", "tn", "tt"] {
            assert!(!split_k(layout, 8192), "{layout} m=8192 n={n} k={k}");
        }
    }
}

#[test]
fn large_gemms_of_16_bits_take_the_tiles_that_read_least() {
    for shape in [GemmShape { m: 4096, n: 7168, k: 16384 }, GemmShape { m: 8192, n: 8192, k: 8192 }] {
        let plan = best(&PlanRequest::dense(bf16("nt"), shape));
        let [block_m, block_n] = plan.config.tile();
        assert!(!plan.config.is_split_k() && block_m * block_n == 256 * 128, "{}", plan.name());
    }
    // Twelve tiles of 176 columns are 2112: three waves that are nearly full.
    let plan = best(&PlanRequest::dense(bf16("nt"), GemmShape { m: 4096, n: 2112, k: 7168 }));
    assert!(plan.name().contains("128x176"), "{}", plan.name());
}

#[test]
fn a_small_n_is_split_along_k() {
    for operands in [OperandKind::FP8, bf16("nt")] {
        let plan = best(&PlanRequest::dense(operands, GemmShape { m: 1, n: 576, k: 7168 }));
        assert!(plan.config.is_split_k() && plan.config.split_k >= 4, "{}", plan.name());
    }
}

#[test]
fn a_restricted_plan_stays_within_its_sms() {
    for sms in [1, 2, 7, 64] {
        let limits = Limits::h200().restricted_to(sms);
        for request in requests() {
            let launch = plan(&request, &limits).expect("there is one").launch;
            let blocks = u64::from(launch.grid[0]) * u64::from(launch.grid[1]);
            assert!(blocks <= u64::from(sms), "{request:?} on {sms}: {launch:?}");
        }
    }
    assert_eq!(Limits::h200().restricted_to(500), Limits::h200());
}

#[test]
fn names_are_unique_and_parse_back() {
    let all = Arch::ALL.into_iter().flat_map(GemmKernel::all).flat_map(GemmConfig::all);
    let mut seen = HashSet::new();
    for config in all {
        assert!(seen.insert(name(&config)), "{} twice", name(&config));
        assert_eq!(parse(&name(&config)), Some(config));
    }
    for wrong in [
        "",
        "sm90_fp8_persistent",
        "sm90_fp8_persistent_128x128",
        "sm90_fp8_split_k_8x64_k4_s60",
        "sm90_fp8_split_k_8x64_k5_s6",
        "sm90_fp8_gemm_persistent_128x128_s5",
    ] {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    let split_k = "sm90_fp8_split_k_8x64_k1_s4";
    assert!(computes(split_k, fp8(8 * 65_535, 64, 64)));
    assert!(!computes(split_k, fp8(8 * 65_535 + 1, 64, 64)));
    let deep = "sm90_fp8_split_k_128x128_k1_s16";
    assert!(!computes(deep, fp8(1, 64, 64)), "more shared memory than there is");
    let invalid = GemmConfig { stages: 60, ..parse(split_k).unwrap() };
    assert!(plan(&fp8(8, 64, 64).with_config(invalid), &Limits::h200()).is_err());
}

#[test]
fn errors_name_the_configuration_and_the_gemm() {
    let message = |config: &str, request: PlanRequest| {
        let config = parse(config).expect("the name of a configuration");
        plan(&request.with_config(config), &Limits::h200()).expect_err("it is refused").to_string()
    };
    let fused = PlanRequest { fusion: Fusion::Gated, ..fp8(1, 128, 256) };
    let text = message("sm90_fp8_persistent_128x128_s5_c1x1", fused);
    assert!(text.contains("m=1 n=128 k=256 with a fused epilogue on 132 SMs"), "{text}");
    let groups = MGroupedShape { groups: 4, slabs: 4, rows: 64, expected: 64, n: 128, k: 256 };
    let text = message("sm90_fp8_split_k_8x64_k1_s4", PlanRequest::m_grouped(OperandKind::FP8, groups));
    assert!(text.contains("an m-grouped GEMM with 4 groups of m=64 n=128 k=256"), "{text}");
    let text = message(
        "sm90_fp8_split_k_8x64_k1_s4",
        PlanRequest::dense(bf16("nn"), GemmShape { m: 1, n: 1, k: 1 }),
    );
    assert!(text.contains("bf16 operands, A K-major and B N-major"), "{text}");
    let invariant = PlanRequest { batch_invariant: true, ..fp8(1, 128, 256) };
    assert!(matches!(
        plan(&invariant.with_config(parse("sm90_fp8_split_k_8x64_k2_s4").unwrap()), &Limits::h200()),
        Err(Error::ConfigBatchInvariant { .. })
    ));
}

#[test]
fn operands_without_a_kernel_are_refused() {
    let fused = PlanRequest {
        fusion: Fusion::Gated,
        ..PlanRequest::dense(OperandKind::FP8_1D1D, GemmShape { m: 1, n: 128, k: 128 })
    };
    assert!(rank(&fused, &Limits::h200()).is_empty());
    let text = plan(&fused, &Limits::h200()).expect_err("it is refused").to_string();
    assert!(text.contains("fp8 operands with 1D1D scales"), "{text}");
}

#[test]
fn an_estimate_never_beats_the_memory() {
    for shape in shapes() {
        for (config, cost) in rank(&PlanRequest::dense(OperandKind::FP8, shape), &Limits::h200()) {
            let bytes = f64::from(shape.m + shape.n) * f64::from(shape.k);
            assert!(cost.us >= bytes / 4.9e6, "{} for {shape:?}", name(&config));
            assert!(cost.terms().iter().all(|(_, us)| *us >= 0.0 && *us <= cost.us), "{cost:?}");
        }
        for (config, cost) in rank(&PlanRequest::dense(bf16("nn"), shape), &Limits::h200()) {
            let bytes = 2.0 * f64::from(shape.m + shape.n) * f64::from(shape.k);
            assert!(cost.us >= bytes / 4.9e6, "{} for {shape:?}", name(&config));
        }
    }
}

#[test]
fn a_shape_has_few_candidates() {
    for request in requests() {
        let count = rank(&request, &Limits::h200()).len();
        assert!((1..400).contains(&count), "{count} for {request:?}");
    }
}

#[test]
fn clusters_are_counted_by_their_blocks() {
    let limits = Limits::h200();
    assert_eq!([1, 2, 4, 8].map(|blocks| limits.clusters(blocks)), [132, 66, 30, 15]);
    assert_eq!(Limits::of(Arch::Sm90a, 132, 232_448), limits);
    assert_eq!(Limits::of(Arch::Sm90a, 0, 232_448).clusters(8), 1, "there is always one");
}

/// Batches have forward K, with the raster band of forward K; whoever wants it gets serpentine K.
#[test]
fn batches_have_forward_k() {
    let shape = MGroupedShape { groups: 8, slabs: 8, rows: 4096, expected: 4096, n: 1024, k: 4096 };
    let request = PlanRequest::new(bf16("nt"), PlanShape::Batched(shape));
    let in_order = |k_order| best(&PlanRequest { k_order, ..request });
    let band = |plan: &Plan| PersistentTuning::from_words(plan.launch.tuning).raster_band;
    let (usual, serpentine) = (in_order(None), in_order(Some(KOrder::Serpentine)));
    assert!(!usual.launch.is_serpentine() && serpentine.launch.is_serpentine());
    assert_eq!(usual.launch, in_order(Some(KOrder::Forward)).launch);
    assert_eq!(band(&usual), usual.launch.forward_band);
    // As often as it is launched again on another part of the device.
    let mut again = usual;
    again.set_concurrent(3);
    assert!(!again.launch.is_serpentine());
    let banded = best(&PlanRequest { raster_band: Some(5), ..request });
    assert_eq!((band(&banded), banded.launch.is_serpentine()), (5, false));
}
