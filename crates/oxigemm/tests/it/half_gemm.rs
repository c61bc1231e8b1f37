//! Every kernel of 16-bit operands in the simulator, through the public function: whatever the schedule, the same
//! bits, no hazard, and the product.

use crate::common::{AddendKind, BF16, Case, FP16, PLAIN_BF16 as PLAIN, in_turn, schedules};
use oxigemm::plan::{self, GemmConfig, GemmShape, Limits, OperandKind, PlanRequest};
use oxigemm::sim::Options;
use oxigemm::{Addend, DType, Device, Error, GemmLayout, GemmOptions, Sim, Tensor, half_gemm};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::{Half, Operands};

/// Runs a case under some schedules, which must all give the same, right bits.
fn every_schedule_gives_the_same_bits(
    case: Case,
    choice: GemmConfig,
    schedules: impl Iterator<Item = Options>,
    sim: &Sim,
) {
    case.simulated(sim).every_schedule_gives_the_same_bits(Some(choice), schedules, sim);
}

fn layout_of(operands: Operands) -> GemmLayout {
    operands.layout().parse().expect("the same names")
}

/// A small shape with tails of M, N and K, more blocks of K than stages, and a launch; over the set they cover every
/// cluster and split.
fn small(i: usize, config: GemmKernel) -> Option<(GemmConfig, Case)> {
    let operands = config.operands().as_f16()?;
    let ([block_m, block_n], of_kernel) = (config.tile(), GemmConfig::of(config));
    let types = if operands.element == Half::Bf16 { BF16 } else { FP16 };
    let plain = Case { layout: layout_of(operands), types, d_type: types.ab, ..PLAIN };
    let depth = |blocks: u32| blocks as usize * 64 - 56;
    Some(match config.is_split_k() {
        false => {
            let cluster = [[1, 1], [1, 2], [2, 1]][i % 3];
            let choice = GemmConfig { cluster, ..of_kernel };
            let (m, n) = (block_m * cluster[0] - 3, block_n * cluster[1] - 8);
            (choice, Case { dims: [m as usize, n as usize, depth(choice.stages + 1)], ..plain })
        }
        true => {
            let (split_k, stages) = ([4, 1, 2][i % 3], 2 + i as u32 % 2);
            let choice = GemmConfig { split_k, stages, ..of_kernel };
            let (m, n) = (block_m - 1, block_n + 8);
            (choice, Case { dims: [m as usize, n as usize, depth(split_k * (stages + 1))], ..plain })
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

/// Every type of D and addend, on aligned and on unaligned outputs, in some layouts and every type of operands.
fn features(
    dims: [usize; 3],
    num_sms: Option<u32>,
    layouts: &[GemmLayout],
    choice: impl Fn(usize, DType, GemmLayout) -> String,
) {
    let sim = Sim::new();
    let all_gaps = [[0, 0], [1, 3], [4, 4], [0, 8]];
    let mut i = 0;
    for types in [BF16, FP16] {
        let ab_type = types.ab;
        for (output, (wide, c)) in [false, true]
            .into_iter()
            .flat_map(|wide| [AddendKind::None, AddendKind::Inplace, AddendKind::Other].map(|c| (wide, c)))
            .enumerate()
        {
            let d_type = if wide { DType::F32 } else { ab_type };
            // What FP16 has of its own are conversions: of single elements, and of pairs.
            let some_gaps = [all_gaps[1], all_gaps[[0, 2, 3][(output + output / 3) % 3]]];
            for &gaps in if ab_type == DType::Bf16 { &all_gaps[..] } else { &some_gaps } {
                let layout = layouts[(i + i / 4) % layouts.len()];
                let case = Case { layout, types, dims, d_type, c, gaps, num_sms, ..PLAIN };
                let name = choice(i, ab_type, layout);
                let choice = plan::parse(&name).unwrap_or_else(|| panic!("{name} is no choice"));
                every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 3).step_by(4), &sim);
                i += 1;
            }
        }
        i += 1;
    }
}

fn type_name(dtype: DType) -> &'static str {
    if dtype == DType::Bf16 { "bf16" } else { "fp16" }
}

#[test]
fn features_of_persistent_kernels() {
    // More tiles than blocks: each walks several.
    features([129, 272, 144], Some(2), &GemmLayout::ALL, |i, dtype, layout| {
        let cluster = ["1x1", "1x2", "2x1"][i % 3];
        format!("sm90_{}_persistent_{layout}_128x128_s6_c{cluster}", type_name(dtype))
    });
}

#[test]
fn features_of_split_k_kernels() {
    // An M-major A has no split-K kernels.
    features([9, 72, 328], None, &[GemmLayout::Nt, GemmLayout::Nn], |i, dtype, layout| {
        let launch = ["k1_s2", "k2_s3", "k4_s2"][i % 3];
        let tile = if layout == GemmLayout::Nt { "32x64" } else { "8x64" };
        format!("sm90_{}_split_k_{layout}_{tile}_{launch}", type_name(dtype))
    });
}

/// Tiles that stream-K splits.
fn stream_k_tiles(choice: GemmConfig, case: &Case) -> u32 {
    let [m, n, k] = case.dims.map(|dim| dim as u32);
    let limits = Limits::h200().restricted_to(case.num_sms.unwrap_or(u32::MAX));
    let operands = OperandKind::f16(choice.operands().as_f16().expect("operands of 16 bits"));
    let request = PlanRequest::dense(operands, GemmShape { m, n, k }).with_config(choice);
    plan::plan(&request, &limits).expect("it computes the shape").launch.stream_k.tiles
}

#[test]
fn stream_k_peers_take_part_of_a_tile() {
    // Three tiles for two clusters: the second of these is the stream-K peer of the last tile.
    let sim = Sim::new();
    let wide = Case { d_type: DType::F32, ..PLAIN };
    let fp16 = Case { types: FP16, d_type: FP16.ab, ..PLAIN };
    for (i, (name, sms, case)) in [
        ("bf16_persistent_stream_k_nt_128x256_s3_c1x1", 2, Case { dims: [260, 200, 1000], ..PLAIN }),
        (
            "bf16_persistent_stream_k_nt_128x256_s3_c1x2",
            4,
            Case { dims: [300, 264, 1024], c: AddendKind::Other, ..PLAIN },
        ),
        (
            "bf16_persistent_stream_k_nt_128x256_s3_c2x1",
            4,
            Case { dims: [130, 520, 1000], c: AddendKind::Inplace, ..wide },
        ),
        // Rows of D that TMA cannot address: nobody has to be told to store.
        (
            "bf16_persistent_stream_k_nt_128x128_s6_c1x1",
            2,
            Case { dims: [257, 72, 1000], gaps: [1, 3], ..PLAIN },
        ),
        ("bf16_persistent_stream_k_nt_128x128_s6_c1x2", 4, Case { dims: [260, 136, 1100], ..wide }),
        ("fp16_persistent_stream_k_nt_128x128_s6_c2x1", 4, Case { dims: [130, 264, 1000], ..fp16 }),
        ("fp16_persistent_stream_k_nt_128x256_s3_c1x1", 2, Case { dims: [100, 520, 1000], ..fp16 }),
    ]
    .into_iter()
    .enumerate()
    {
        let choice = plan::parse(&format!("sm90_{name}")).expect("the name of a choice");
        let case = Case { num_sms: Some(sms), ..case };
        assert_eq!(stream_k_tiles(choice, &case), 1, "{name}");
        // Eager and lazy in turn, and random ones.
        every_schedule_gives_the_same_bits(case, choice, schedules().skip(i % 2).step_by(3), &sim);
    }
}

#[test]
fn a_stream_k_peer_serves_two_tiles_behind_whole_ones() {
    let sim = Sim::new();
    let choice =
        plan::parse("sm90_bf16_persistent_stream_k_nt_128x128_s6_c1x1").expect("the name of a choice");
    let case = Case { dims: [1100, 72, 2048], num_sms: Some(7), ..PLAIN };
    assert_eq!(stream_k_tiles(choice, &case), 2);
    every_schedule_gives_the_same_bits(case, choice, schedules().take(4), &sim);
    let case = Case { dims: [600, 72, 2048], num_sms: Some(3), ..PLAIN };
    assert_eq!(stream_k_tiles(choice, &case), 2);
    every_schedule_gives_the_same_bits(case, choice, schedules().take(4), &sim);
}

#[test]
fn splits_of_no_blocks_do_nothing() {
    // More splits than blocks of K: a forced choice, which planning never makes.
    let sim = Sim::new();
    for (name, [m, n]) in
        [("sm90_bf16_split_k_nt_128x128_k8_s2", [66, 136]), ("sm90_bf16_split_k_nt_8x64_k8_s2", [10, 72])]
    {
        let choice = plan::parse(name).expect("the name of a choice");
        let case = Case { dims: [m, n, 320], ..PLAIN };
        every_schedule_gives_the_same_bits(case, choice, schedules(), &sim);
    }
}

#[test]
fn a_block_walks_many_tiles_through_a_short_pipeline() {
    let sim = Sim::new();
    for (name, d_type) in [
        ("sm90_bf16_persistent_nt_256x128_s3_c1x1", DType::Bf16),
        ("sm90_bf16_persistent_nt_128x176_s4_c1x2", DType::F32),
        ("sm90_bf16_persistent_nt_128x144_s5_c2x1", DType::Bf16),
    ] {
        let choice = plan::parse(name).expect("the name of a choice");
        for k in [40, 440] {
            let case = Case { dims: [260, 360, k], d_type, num_sms: Some(2), ..PLAIN };
            every_schedule_gives_the_same_bits(case, choice, schedules().step_by(4), &sim);
        }
    }
}

#[test]
fn the_planned_kernel_serves_any_shape() {
    let sim = Sim::new();
    for dims in [[1, 1, 1], [1, 576, 100], [2, 7, 129], [65, 8, 384], [33, 200, 16], [8, 8, 1]] {
        for layout in GemmLayout::ALL {
            for types in [BF16, FP16] {
                let case = Case { layout, types, d_type: types.ab, dims, ..PLAIN };
                case.simulated(&sim).checked(None, &format!("{case:?}"));
                let report = sim.last_report().expect("a kernel has run");
                assert!(report.instructions > 0 && report.macs > 0, "{report:?}");
            }
        }
    }
}

#[test]
fn a_captured_call_does_nothing_and_each_launch_reads_what_is_there() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let case = Case { layout: GemmLayout::Nn, dims: [5, 64, 128], ..PLAIN };
    let problem = case.simulated(&sim);
    let expected = problem.checked(None, "not captured");
    let mut d = Tensor::zeros(DType::Bf16, &[5, 64], &device).unwrap();
    let graph = stream
        .capture(|_| half_gemm(case.layout, &problem.a, &problem.b, Addend::None, &mut d, &options))
        .unwrap();
    assert!(d.to_bytes().unwrap().iter().all(|byte| *byte == 0), "nothing was done yet");
    graph.launch(&stream).unwrap();
    assert_eq!(d.to_bytes().unwrap(), expected);
    let zeros = vec![0; problem.a.len() * 2];
    problem.a.clone().write_bytes(&zeros).unwrap();
    graph.launch(&stream).unwrap();
    assert!(d.to_vec_f32().unwrap().iter().all(|x| *x == 0.0), "the launch reads A as it is now");
}

#[test]
fn a_choice_for_other_operands_is_refused() {
    let sim = Sim::new();
    let problem = Case { dims: [8, 64, 64], ..PLAIN }.simulated(&sim);
    for (name, fits) in [
        ("sm90_bf16_split_k_nt_8x64_k1_s2", true),
        ("sm90_bf16_split_k_nn_8x64_k1_s2", false),
        ("sm90_fp16_split_k_nt_8x64_k1_s2", false),
        ("sm90_fp8_split_k_8x64_k1_s2", false),
    ] {
        let result = problem.computed(plan::parse(name));
        assert_eq!(result.is_ok(), fits, "{name}");
        if let Err(error) = result {
            assert!(matches!(error, Error::ConfigOperands { .. }), "{error}");
            assert!(error.to_string().contains("bf16 operands, A K-major and B K-major"), "{error}");
        }
    }
}

#[test]
fn what_multiplies_nothing_needs_no_kernel() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    for layout in GemmLayout::ALL {
        for [m, n, k] in [[0, 64, 128], [4, 0, 128], [3, 5, 0]] {
            let dims = |k_first, rows| if k_first { [k, rows] } else { [rows, k] };
            let new = |dims: [usize; 2]| Tensor::zeros(DType::F16, &dims, &device).unwrap();
            let (a, b) = (new(dims(layout.a_begins_with_k(), m)), new(dims(layout.b_begins_with_k(), n)));
            let filled = |value| Tensor::from_f32(DType::F16, &vec![value; m * n], &[m, n], &device).unwrap();
            let c = filled(2.5);
            for (addend, expected) in [(Addend::None, 0.0), (Addend::From(&c), 2.5), (Addend::InPlace, 7.0)] {
                let mut d = filled(7.0);
                half_gemm(layout, &a, &b, addend, &mut d, &GemmOptions::default()).unwrap();
                assert_eq!(d.to_vec_f32().unwrap(), vec![expected; m * n], "{layout}");
            }
        }
    }
    assert!(sim.last_report().is_none(), "no kernel has run");
}
