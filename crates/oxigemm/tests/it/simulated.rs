//! Every FP8 kernel of the closed set in the simulator, through the public function: whatever the schedule, the same
//! bits, no hazard, and the product.

use crate::common::{AddendKind, Case, PLAIN, ScaleOrder, in_turn, schedules};
use oxigemm::plan::{self, GemmConfig, GemmShape, KOrder, Limits, OperandKind, PlanRequest};
use oxigemm::sim::{FaultKind, Options};
use oxigemm::{Addend, DType, Device, Error, GemmOptions, Sim, Tensor, fp8_gemm_nt};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::{GemmKernel, Launch};

/// Runs a case under some schedules, which must all give the same, right bits.
fn every_schedule_gives_the_same_bits(
    case: Case,
    choice: GemmConfig,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
) {
    case.simulated(sim).every_schedule_gives_the_same_bits(Some(choice), schedules, sim);
}

/// A small shape with tails of M, N and K, more blocks of K than stages, and a launch; over the set they cover every
/// cluster and split.
fn small(i: usize, config: GemmKernel) -> Option<(GemmConfig, Case)> {
    let depth = |blocks: u32| blocks as usize * 128 - 112;
    if config.operands() != OperandKind::FP8 {
        return None;
    }
    let ([block_m, block_n], of_kernel) = (config.tile(), GemmConfig::of(config));
    Some(match config.is_split_k() {
        false => {
            let cluster = [[1, 1], [1, 2], [2, 1]][i % 3];
            let choice = GemmConfig { cluster, ..of_kernel };
            let (m, n) = (block_m * cluster[0] - 3, block_n * cluster[1] - 8);
            (choice, Case { dims: [m as usize, n as usize, depth(choice.stages + 1)], ..PLAIN })
        }
        true => {
            let (split_k, stages) = ([4, 1, 2][i % 3], 2 + i as u32 % 2);
            let choice = GemmConfig { split_k, stages, ..of_kernel };
            let (m, n) = (block_m - 1, block_n + 8);
            (choice, Case { dims: [m as usize, n as usize, depth(split_k * (stages + 1))], ..PLAIN })
        }
    })
}

/// Tests run side by side: the set is dealt to two of them.
fn part_of_the_set(part: usize, parts: usize) {
    let sim = Sim::new();
    let kernels = GemmKernel::dense(Arch::Sm90a).enumerate().filter_map(|(i, config)| small(i, config));
    for (i, (choice, case)) in kernels.skip(part).step_by(parts).enumerate() {
        every_schedule_gives_the_same_bits(case, choice, in_turn(i, 2), &sim);
    }
}

#[test]
fn every_kernel_by_schedules_in_turn_first_part() {
    part_of_the_set(0, 2);
}

#[test]
fn every_kernel_by_schedules_in_turn_second_part() {
    part_of_the_set(1, 2);
}

/// Every type, addend and layout of scales, on aligned and on unaligned outputs.
fn features(choices: &[&str], dims: [usize; 3], num_sms: Option<u32>) {
    let sim = Sim::new();
    let mut i = 0;
    for (d_type, c) in [
        (DType::Bf16, AddendKind::None),
        (DType::Bf16, AddendKind::Inplace),
        (DType::Bf16, AddendKind::Other),
        (DType::F32, AddendKind::None),
        (DType::F32, AddendKind::Inplace),
        (DType::F32, AddendKind::Other),
    ] {
        for scales in [ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::RowOdd] {
            let gaps = [[0, 0], [1, 3], [4, 4], [0, 8]][i % 4];
            let case = Case { dims, d_type, c, scales, gaps, num_sms, ..PLAIN };
            let choice = plan::parse(choices[i % choices.len()]).expect("the name of a choice");
            every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 3).step_by(3), &sim);
            i += 1;
        }
    }
}

#[test]
fn features_of_persistent_kernels() {
    // More tiles than blocks: each walks several.
    let choices = [
        "sm90_fp8_persistent_64x64_s12_c1x1",
        "sm90_fp8_persistent_64x64_s12_c1x2",
        "sm90_fp8_persistent_64x64_s12_c2x1",
    ];
    features(&choices, [129, 137, 144], Some(2));
}

#[test]
fn features_of_split_k_kernels() {
    let choices = [
        "sm90_fp8_split_k_8x64_k1_s2",
        "sm90_fp8_split_k_16x64_k2_s3",
        "sm90_fp8_split_k_8x64_k4_s2",
        "sm90_fp8_split_k_32x64_k2_s2",
        "sm90_fp8_split_k_64x64_k3_s2",
    ];
    features(&choices, [9, 69, 656], None);
}

#[test]
fn a_block_walks_many_tiles_through_a_short_pipeline() {
    let sim = Sim::new();
    for name in ["sm90_fp8_persistent_256x128_s3_c1x1", "sm90_fp8_persistent_128x96_s5_c1x2"] {
        let choice = plan::parse(name).expect("the name of a choice");
        let case = Case { dims: [260, 260, 640], num_sms: Some(2), ..PLAIN };
        every_schedule_gives_the_same_bits(case, choice, schedules().step_by(4), &sim);
    }
}

#[test]
fn tma_loads_every_scale() {
    // K in fours of blocks: a part of a group, more than one, more than the ring has room for. The last block of a cluster lies outside
    // of B.
    let sim = Sim::new();
    for (name, m, num_sms, ks) in [
        ("sm90_fp8_persistent_256x128_s3_c1x2", 270, Some(2), [512, 1536]),
        ("sm90_fp8_persistent_128x128_s5_c2x1", 270, Some(2), [512, 2560]),
        ("sm90_fp8_split_k_8x64_k2_s3", 20, None, [1024, 5120]),
        ("sm90_fp8_split_k_8x64_k1_s2", 5, None, [1536, 4608]),
        ("sm90_fp8_split_k_64x64_k1_s2", 70, None, [512, 2560]),
    ] {
        let choice = plan::parse(name).expect("the name of a choice");
        for k in ks {
            let case = Case { dims: [m, 120, k], num_sms, ..PLAIN };
            every_schedule_gives_the_same_bits(case, choice, schedules().step_by(2), &sim);
        }
    }
}

#[test]
fn scales_of_a_tile_that_are_one_piece() {
    // Whole tiles, and a K of up to 16 blocks in fours, or 8 where a tile has 256 rows. The second block of a cluster lies outside of A.
    let sim = Sim::new();
    for (name, dims, num_sms) in [
        ("sm90_fp8_persistent_64x256_s4_c1x1", [128, 250, 512], Some(1)),
        ("sm90_fp8_persistent_64x128_s8_c2x1", [64, 120, 1000], None),
        ("sm90_fp8_persistent_256x128_s3_c1x2", [512, 200, 1024], Some(2)),
        ("sm90_fp8_persistent_128x192_s4_c1x1", [128, 200, 1500], None),
        ("sm90_fp8_split_k_64x64_k2_s3", [64, 60, 2048], None),
        ("sm90_fp8_split_k_8x64_k1_s2", [16, 60, 500], None),
        ("sm90_fp8_split_k_32x64_k2_s2", [32, 60, 1024], None),
    ] {
        let choice = plan::parse(name).expect("the name of a choice");
        every_schedule_gives_the_same_bits(
            Case { dims, num_sms, ..PLAIN },
            choice,
            schedules().step_by(3),
            &sim,
        );
    }
}

/// The launch of a case.
fn launch_of(choice: GemmConfig, case: &Case) -> Launch {
    let [m, n, k] = case.dims.map(|dim| dim as u32);
    let limits = Limits::h200().restricted_to(case.num_sms.unwrap_or(u32::MAX));
    let request = PlanRequest::dense(OperandKind::FP8, GemmShape { m, n, k }).with_config(choice);
    let request = PlanRequest { k_order: Some(KOrder::Serpentine), ..request };
    plan::plan(&request, &limits).expect("it computes the shape").launch
}

/// Tiles that stream-K splits.
fn stream_k_tiles(choice: GemmConfig, case: &Case) -> u32 {
    launch_of(choice, case).stream_k.tiles
}

/// Whether K order is serpentine.
fn is_serpentine(choice: GemmConfig, case: &Case) -> bool {
    launch_of(choice, case).is_serpentine()
}

#[test]
fn stream_k_peers_take_part_of_a_tile() {
    // Three tiles for two clusters: the second of these is the stream-K peer of the last tile.
    let sim = Sim::new();
    let added = Case { d_type: DType::F32, c: AddendKind::Inplace, scales: ScaleOrder::RowOdd, ..PLAIN };
    for (i, (name, sms, case)) in [
        ("sm90_fp8_persistent_stream_k_256x128_s3_c1x1", 2, Case { dims: [520, 100, 2000], ..PLAIN }),
        ("sm90_fp8_persistent_stream_k_256x128_s3_c1x1", 2, Case { dims: [200, 264, 2048], ..added }),
        (
            "sm90_fp8_persistent_stream_k_256x128_s3_c1x2",
            4,
            Case { dims: [520, 136, 2048], scales: ScaleOrder::Mn, ..PLAIN },
        ),
        (
            "sm90_fp8_persistent_stream_k_256x128_s3_c2x1",
            4,
            Case { dims: [258, 264, 2048], c: AddendKind::Other, ..PLAIN },
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let choice = plan::parse(name).expect("the name of a choice");
        let case = Case { num_sms: Some(sms), ..case };
        assert_eq!(stream_k_tiles(choice, &case), 1);
        // Eager and lazy in turn, and random ones.
        every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 2).step_by(3), &sim);
    }
}

#[test]
fn tiles_alternate_in_serpentine_k_order() {
    // Two groups of scales, of eight blocks of K or of sixteen; one block less, which is made up for; behind two whole tiles of each block,
    // one that is shared out.
    let sim = Sim::new();
    for (name, sms, case) in [
        ("sm90_fp8_persistent_256x128_s3_c1x1", 1, Case { dims: [260, 100, 2048], ..PLAIN }),
        (
            "sm90_fp8_persistent_256x128_s3_c1x2",
            2,
            Case { dims: [260, 200, 2048], scales: ScaleOrder::RowOdd, ..PLAIN },
        ),
        (
            "sm90_fp8_persistent_128x192_s4_c2x1",
            2,
            Case { dims: [300, 200, 4096], scales: ScaleOrder::Mn, ..PLAIN },
        ),
        (
            "sm90_fp8_persistent_128x176_s4_c1x1",
            1,
            Case { dims: [140, 180, 3900], scales: ScaleOrder::RowOdd, ..PLAIN },
        ),
        ("sm90_fp8_persistent_stream_k_256x128_s3_c1x1", 2, Case { dims: [1034, 100, 2048], ..PLAIN }),
    ] {
        let choice = plan::parse(name).expect("the name of a choice");
        let case = Case { num_sms: Some(sms), ..case };
        assert!(is_serpentine(choice, &case), "{name}");
        every_schedule_gives_the_same_bits(case, choice, schedules().step_by(5), &sim);
    }
    let forward = Case { dims: [260, 100, 1900], num_sms: Some(1), ..PLAIN };
    assert!(!is_serpentine(plan::parse("sm90_fp8_persistent_256x128_s3_c1x1").expect("a choice"), &forward));
}

#[test]
fn a_stream_k_peer_serves_two_tiles() {
    let sim = Sim::new();
    let choice = plan::parse("sm90_fp8_persistent_stream_k_256x128_s3_c1x1").expect("the name of a choice");
    let case = Case { dims: [1100, 72, 4096], num_sms: Some(3), ..PLAIN };
    assert_eq!(stream_k_tiles(choice, &case), 2);
    every_schedule_gives_the_same_bits(case, choice, schedules().take(4), &sim);
}

#[test]
fn splits_of_no_blocks_do_nothing() {
    // More splits than blocks of K: a forced choice, which planning never makes.
    let sim = Sim::new();
    for (name, [m, n]) in
        [("sm90_fp8_split_k_128x128_k8_s2", [66, 136]), ("sm90_fp8_split_k_8x64_k8_s2", [10, 72])]
    {
        let choice = plan::parse(name).expect("the name of a choice");
        let case = Case { dims: [m, n, 640], ..PLAIN };
        every_schedule_gives_the_same_bits(case, choice, schedules(), &sim);
    }
}

#[test]
fn the_planned_kernel_serves_any_shape() {
    let sim = Sim::new();
    for dims in [[1, 1, 1], [1, 576, 100], [2, 7, 129], [65, 8, 384], [33, 200, 16]] {
        Case { dims, ..PLAIN }.simulated(&sim).checked(None, &format!("{dims:?}"));
        let report = sim.last_report().expect("a kernel has run");
        assert!(report.instructions > 0 && report.macs > 0, "{report:?}");
    }
}

#[test]
fn what_multiplies_nothing_needs_no_kernel() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for (dims, d_type) in [([0, 64, 128], DType::Bf16), ([4, 0, 128], DType::F32), ([3, 5, 0], DType::F32)] {
        let [m, n, k] = dims;
        let new = |dtype, dims: [usize; 2]| Tensor::zeros(dtype, &dims, &device).unwrap();
        let (a, sfa) = (new(DType::E4m3, [m, k]), new(DType::F32, [m, k.div_ceil(128)]));
        let (b, sfb) = (new(DType::E4m3, [n, k]), new(DType::F32, [n.div_ceil(128), k.div_ceil(128)]));
        let c = Tensor::from_f32(d_type, &vec![2.5; m * n], &[m, n], &device).unwrap();
        for (addend, expected) in [(Addend::None, 0.0), (Addend::From(&c), 2.5), (Addend::InPlace, 7.0)] {
            let mut d = Tensor::from_f32(d_type, &vec![7.0; m * n], &[m, n], &device).unwrap();
            fp8_gemm_nt((&a, &sfa), (&b, &sfb), addend, &mut d, &GemmOptions::default()).unwrap();
            assert_eq!(d.to_vec_f32().unwrap(), vec![expected; m * n], "{dims:?}");
        }
    }
    assert!(sim.last_report().is_none(), "no kernel has run");
}

#[test]
fn a_hazard_is_an_error_that_names_the_source() {
    let sim = Sim::new();
    let problem = Case { dims: [8, 64, 128], d_type: DType::F32, ..PLAIN }.simulated(&sim);
    // D was never written to, and is added to.
    let (mut d, [sfa, sfb]) = (problem.fresh().d.clone(), problem.scales());
    let error =
        fp8_gemm_nt((&problem.a, sfa), (&problem.b, sfb), Addend::InPlace, &mut d, &GemmOptions::default())
            .unwrap_err();
    let Error::Fault { kernel, fault } = &error else { panic!("{error}") };
    assert!(kernel.starts_with("sm90_fp8_gemm_"), "{kernel}");
    assert_eq!(fault.kind, FaultKind::Uninitialized);
    assert!(error.to_string().contains(".rs:"), "{error}");
    // The device is as good as before.
    problem.checked(None, "after a fault");
}

#[test]
fn two_simulated_devices_share_nothing() {
    let case = Case { dims: [8, 64, 128], ..PLAIN };
    let (here, there) = (case.simulated(&Sim::new()), case.simulated(&Sim::new()));
    let mut d = here.fresh().d.clone();
    let error = fp8_gemm_nt(
        (&here.a, here.scales()[0]),
        (&there.b, there.scales()[1]),
        Addend::None,
        &mut d,
        &GemmOptions::default(),
    );
    assert!(matches!(error, Err(Error::Device { argument: "b", .. })), "{error:?}");
}

#[test]
fn calls_from_a_thread_pool_wait_for_each_other() {
    use rayon::prelude::*;
    let sim = Sim::new();
    let problem = Case { dims: [8, 64, 256], ..PLAIN }.simulated(&sim);
    let results: Vec<Vec<u8>> = (0..16).into_par_iter().map(|_| problem.checked(None, "pool")).collect();
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_dependent_kernel_waits_for_the_one_before() {
    for name in
        ["sm90_fp8_persistent_64x64_s12_c1x2", "sm90_fp8_split_k_8x64_k2_s2", "sm90_fp8_split_k_64x64_k1_s2"]
    {
        let choice = plan::parse(name).expect("the name of a choice");
        let config = choice.kernel;
        let ptx = config.build().expect("it is built").text;
        let sim = Sim::new();
        let problem = Case { dims: [40, 72, 256], d_type: DType::F32, ..PLAIN }.simulated(&sim);
        // The second adds to what the first has written, and may start while that still runs.
        let twice = || {
            let (mut d, [sfa, sfb]) = (problem.fresh().d.clone(), problem.scales());
            for (addend, programmatic) in [(Addend::None, false), (Addend::InPlace, true)] {
                let options = GemmOptions { config: Some(choice), programmatic, ..Default::default() };
                fp8_gemm_nt((&problem.a, sfa), (&problem.b, sfb), addend, &mut d, &options)?;
            }
            Ok::<(), Error>(())
        };
        for options in schedules().step_by(3) {
            sim.set_options(options);
            twice().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let waits = ptx.matches("griddepcontrol.wait;").count();
        assert!(waits > 0, "{name}");
        sim.replace_kernel(config, &ptx.replace("griddepcontrol.wait;", "")).expect("it is PTX");
        for options in schedules().step_by(3) {
            sim.set_options(options);
            let error = twice().expect_err(name);
            let Error::Fault { fault, .. } = &error else { panic!("{error}") };
            assert_eq!(fault.kind, FaultKind::Race, "{error}");
            assert!(fault.message.contains("before griddepcontrol.wait"), "{error}");
        }
    }
}
