//! Fused epilogues of m-grouped FP8 GEMMs in the simulator: whatever the schedule, the same bits, no hazard, what the
//! single steps give for the same accumulators, rounded once, and nothing else written to.

use crate::common::{
    AddendKind, EpilogueSpec, FP8, GPT_OSS, GroupedCase as Case, ScaleOrder, ends, ids, in_turn,
};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, Gate, GemmOptions, GroupedRows,
    HeadSplits, RawEpilogue, RawGemm, RawGrouping, RawGroups, RawMatrix, RawScaleFactors, RowGroups, Sim,
    Tensor, gemm_raw, m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_fused,
    m_grouped_fp8_gemm_nt_masked,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;
use oxigemm_testkit::OperandTypes;

/// SwiGLU, stored as it is and quantized.
pub const SWIGLU: EpilogueSpec =
    EpilogueSpec { activation: Activation::Silu, gated: true, ..EpilogueSpec::NONE };
pub const CODES: EpilogueSpec =
    EpilogueSpec { quantized: Some((ScaleOrder::Row, ScaleFormat::F32)), ..SWIGLU };

fn every_schedule_gives_the_same_bits(case: Case, choice: Option<GemmConfig>, nth: usize, sim: &Sim) {
    case.simulated(sim).every_schedule_gives_the_same_bits(choice, in_turn(nth, 2), sim);
}

/// Every kernel with a cluster; over the set every cluster occurs.
fn kernels(fusion: Fusion) -> impl Iterator<Item = (GemmKernel, GemmConfig)> {
    let all = GemmKernel::fused_m_grouped(Arch::Sm90a).filter(move |kernel| kernel.fusion() == fusion);
    let fp8 = all.enumerate().filter(|(_, kernel)| kernel.operands() == OperandKind::FP8);
    fp8.map(|(i, kernel)| {
        let cluster = [[1, 2], [2, 1], [1, 1]][i % 3];
        (kernel, GemmConfig { cluster, ..GemmConfig::of(kernel) })
    })
}

/// Every kernel with each kind of output and of groups.
fn every_kernel(fusion: Fusion) {
    let sim = Sim::new();
    let gated = fusion == Fusion::Gated;
    for (i, (config, choice)) in kernels(fusion).enumerate() {
        // Rows for one warpgroup and a bit, none, and one row.
        let some = config.tile()[0] as usize / 2 + 5;
        let sizes = [some, 0, 1];
        let n = if gated { 512 } else { 144 };
        let depth = (choice.stages as usize + 1) * 128 - 112;
        let masked = Case::masked(&sizes.map(|x| x as i32), [some + 2, n, depth]);
        let alignment = [1, 16, 64][i % 3];
        let contiguous = Case::ids(&ids(&sizes, alignment), 3, alignment, [n, depth]);
        every_output([masked, contiguous], gated, (i, Some(choice)), &sim);
    }
}

/// Each kind of output: rounded and quantized, aligned and not, with a bias for each group and for all.
pub fn every_output(
    [masked, contiguous]: [Case; 2],
    gated: bool,
    (nth, choice): (usize, Option<GemmConfig>),
    sim: &Sim,
) {
    let what =
        EpilogueSpec { activation: Activation::Silu, gated, bias: Some(DType::Bf16), ..EpilogueSpec::NONE };
    every_schedule_gives_the_same_bits(masked.clone().with(what), choice, nth, sim);
    let quantized = EpilogueSpec { quantized: Some((ScaleOrder::Mn, ScaleFormat::F32)), ..what };
    every_schedule_gives_the_same_bits(masked.with(quantized), choice, nth + 1, sim);
    let gate = if gated { GPT_OSS } else { Gate::PLAIN };
    let what = EpilogueSpec { gate, alpha: 0.5, beta: -2.0, bias: Some(DType::F32), ..what };
    let contiguous = Case { shared_bias: true, ..contiguous };
    let scales = if contiguous.types.has_scales() { ScaleOrder::Mn } else { contiguous.scales };
    let unaligned = Case { gap: 3, scales, c: AddendKind::Other, ..contiguous.clone() };
    every_schedule_gives_the_same_bits(unaligned.with(what), choice, nth + 2, sim);
    let quantized = EpilogueSpec { quantized: Some((ScaleOrder::RowOdd, ScaleFormat::PowerOfTwo)), ..what };
    every_schedule_gives_the_same_bits(contiguous.with(quantized), choice, nth + 3, sim);
}

#[test]
fn every_elementwise_kernel_with_every_output() {
    every_kernel(Fusion::Elementwise);
}

#[test]
fn every_gated_kernel_with_every_output() {
    every_kernel(Fusion::Gated);
}

/// Quantized output, and one that is added to.
pub fn many_tiles(case: Case, gated: bool, choice: Option<GemmConfig>, nth: usize, sim: &Sim) {
    let what = EpilogueSpec { gated, activation: Activation::Gelu, ..CODES };
    every_schedule_gives_the_same_bits(case.clone().with(what), choice, nth, sim);
    let matrix = EpilogueSpec { quantized: None, alpha: 1.0, beta: 0.5, ..what };
    let added = Case { d_type: DType::F32, c: AddendKind::Inplace, ..case };
    every_schedule_gives_the_same_bits(added.with(matrix), choice, nth + 1, sim);
}

#[test]
fn many_tiles_of_contiguous_groups() {
    let sim = Sim::new();
    for (i, name) in [
        "sm90_fp8_persistent_gated_m_grouped_64x128_s6_c1x1",
        "sm90_fp8_persistent_gated_m_grouped_128x128_s5_c2x1",
        "sm90_fp8_persistent_fused_m_grouped_64x128_s6_c1x2",
    ]
    .into_iter()
    .enumerate()
    {
        let choice = plan::parse(name).expect("the name of a choice");
        let sizes = [65, 3, 0, 131];
        let rows = ids(&sizes, 1).len();
        let case = Case::ends(&ends(&sizes, 1), 1, [rows + 9, 512, 272]);
        many_tiles(case, name.contains("gated"), Some(choice), 3 + i, &sim);
    }
}

/// Heads of some sizes, stored and added to.
pub fn heads_of(types: OperandTypes) {
    let sim = Sim::new();
    for (left, mid, right, heads) in [(64, 64, 64, 2), (5, 3, 7, 11)] {
        let heads_skip = Some(HeadSplits { left, mid, right });
        let what = EpilogueSpec { heads: heads_skip, activation: Activation::Relu, ..EpilogueSpec::NONE };
        let n = (left + right) as usize * heads;
        for (d_type, c) in [(DType::Bf16, AddendKind::None), (DType::F32, AddendKind::Inplace)] {
            let case = Case { d_type, c, ..Case::masked(&[66, 1, 0], [70, n, 144]) };
            every_schedule_gives_the_same_bits(case.of(types).with(what), None, 9, &sim);
        }
    }
}

#[test]
fn heads_skip_their_middle() {
    heads_of(FP8);
}

#[test]
fn what_is_no_group_is_clamped() {
    let sim = Sim::new();
    for case in [
        Case::masked(&[-1, i32::MIN, 41, i32::MAX, 40], [40, 256, 128]),
        Case::ends(&[10, 5, 1000, 40, -7], 16, [50, 256, 128]),
        Case::ids(&[7, 7, -2, 0, 0, i32::MIN, 2, 2, -1, 4, i32::MAX, 3, 1, 1, -1, 7], 4, 1, [256, 128]),
    ] {
        every_schedule_gives_the_same_bits(case.with(CODES), None, 5, &sim);
    }
}

#[test]
fn groups_without_rows_need_no_tile() {
    let sim = Sim::new();
    for counts in [&[0, 0, 0][..], &[0, 1, 0]] {
        let case = Case { num_sms: Some(8), ..Case::masked(counts, [30, 256, 200]) };
        every_schedule_gives_the_same_bits(case.with(CODES), None, 5, &sim);
    }
}

/// An epilogue of no stages gives the bits of the GEMM alone.
pub fn does_nothing(case: Case, sim: &Sim) {
    let fused = case.clone().with(EpilogueSpec::NONE).simulated(sim);
    let plain = case.simulated(sim).checked(None, "the GEMM alone");
    assert_eq!(fused.checked(None, "fused"), plain, "{case:?}");
}

#[test]
fn an_epilogue_that_does_nothing_gives_the_bits_of_the_gemm() {
    let sim = Sim::new();
    for case in [
        Case::masked(&[65, 0, 3], [70, 200, 400]),
        Case { d_type: DType::F32, ..Case::ids(&ids(&[65, 0, 3], 16), 3, 16, [72, 144]) },
    ] {
        does_nothing(case, &sim);
    }
}

/// Both products of an expert layer: what the first has quantized is what the second reads, groups and all.
#[test]
fn the_next_gemm_reads_what_was_quantized() {
    let sim = Sim::new();
    let (hidden, model, sizes) = (256, 136, [70, 0, 5]);
    for case in [
        Case::masked(&sizes.map(|x| x as i32), [72, 2 * hidden, 272]),
        Case::ids(&ids(&sizes, 16), 3, 16, [2 * hidden, 272]),
    ] {
        let blocks = hidden / 128;
        // As engines have them: MN-major, columns padded to 16 bytes.
        let quantized = Some((ScaleOrder::Mn, ScaleFormat::PowerOfTwo));
        let mut fused = case.clone().with(EpilogueSpec { quantized, ..CODES }).simulated(&sim);
        fused.run(&GemmOptions::default()).unwrap();
        let (d, scales) = (fused.d.clone(), fused.d_scales.clone().unwrap());
        // The second layer's weights, by the same means.
        let second = Case { n: model, k: hidden, ..case.clone() }.simulated(&sim);
        let (mut out, options) = (second.d.clone(), GemmOptions::default());
        let (a, b) = ((&d, &scales), (&second.b, second.scales()[1]));
        match fused.row_groups().unwrap() {
            RowGroups::Masked { masked_m, expected_m } => {
                m_grouped_fp8_gemm_nt_masked(a, b, &mut out, masked_m, expected_m, &options).unwrap();
            }
            RowGroups::Contiguous { rows, alignment, expected_m } => {
                m_grouped_fp8_gemm_nt_contiguous(a, b, &mut out, rows, alignment, expected_m, &options)
                    .unwrap();
            }
        }
        for (group, rows) in sizes.into_iter().enumerate() {
            let codes = fused.rows_of(&d, group).unwrap();
            let scales = fused.rows_of(&scales, group).unwrap().to_vec_f32().unwrap();
            let (codes, found) = (codes.to_vec_f32().unwrap(), second.result(group).unwrap());
            let weights = second.data.groups[group].quantized().unwrap().b.dequantize();
            for row in 0..rows {
                let code = &codes[row * hidden..][..hidden];
                let of_a = |k: usize| f64::from(code[k]) * f64::from(scales[row * blocks + k / 128]);
                for column in 0..model {
                    let weights = &weights[column * hidden..][..hidden];
                    let exact: f64 = (0..hidden).map(|k| of_a(k) * f64::from(weights[k])).sum();
                    let size: f64 = (0..hidden).map(|k| (of_a(k) * f64::from(weights[k])).abs()).sum();
                    let error = (f64::from(found[row * model + column]) - exact).abs();
                    assert!(error <= exact.abs() / 256.0 + size / 1000.0, "row {row} column {column}");
                }
            }
        }
    }
}

#[test]
fn the_cpu_computes_the_same() {
    for case in [Case::masked(&[9, 0, 4], [9, 256, 304]), Case::ends(&[9, 9, 20], 4 * 4, [30, 256, 304])] {
        let gelu = EpilogueSpec { activation: Activation::Gelu, bias: Some(DType::F32), ..SWIGLU };
        let heads = Some(HeadSplits { left: 5, mid: 3, right: 3 });
        for case in [
            Case { c: AddendKind::Other, ..case.clone() }.with(gelu),
            Case { shared_bias: true, ..case.clone() }
                .with(EpilogueSpec { bias: Some(DType::Bf16), ..CODES }),
            Case { n: 64, c: AddendKind::Inplace, ..case }.with(EpilogueSpec { heads, ..EpilogueSpec::NONE }),
        ] {
            // Accumulators of the tensor core have 13 bits: those of the CPU are compared.
            case.on(&Device::cpu()).checked(None, &format!("on the CPU {case:?}"));
        }
    }
}

#[test]
fn a_graph_is_replayed_with_other_groups() {
    let sim = Sim::new();
    let case = Case::masked(&[3, 0, 9], [70, 256, 272]).with(CODES);
    let mut problem = case.simulated(&sim);
    let stream = problem.device().new_stream().unwrap();
    let options = problem.options(None, Some(stream.clone()));
    let graph = stream.capture(|_| problem.run(&options)).unwrap();
    for numbers in [[0, 64, 1], [70, 0, 0], [0, 0, 0], [5, 6, 7]] {
        problem.change_numbers(&case, &numbers);
        problem.poison().unwrap();
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(problem.bits().unwrap(), problem.checked(None, "at once"), "{numbers:?}");
    }
}

#[test]
fn raw_addresses_give_the_bits_of_tensors() {
    let sim = Sim::new();
    let sizes = [3, 0, 20];
    for case in [
        Case::masked(&sizes.map(|x| x as i32), [20, 512, 256]),
        Case::ids(&ids(&sizes, 16), 3, 16, [512, 256]),
        Case::ends(&ends(&sizes, 16), 16, [40, 512, 256]),
    ] {
        let what = EpilogueSpec { bias: Some(DType::Bf16), alpha: 0.25, ..CODES };
        let case = case.with(what);
        let p = case.simulated(&sim);
        let by_tensors = p.checked(None, "tensors");
        let fresh = p.fresh();
        let (d, scales, [sfa, sfb]) = (&fresh.d, fresh.d_scales.as_ref().unwrap(), p.scales());
        let strides = |tensor: &Tensor| -> [usize; 3] {
            let strides = tensor.strides();
            let last = strides.len() - 1;
            [if last == 2 { strides[0] } else { 0 }, strides[last - 1], strides[last]]
        };
        let (numbers, alignment) = (p.numbers().address(), case.alignment);
        let matrix =
            |x: &Tensor| RawMatrix { strides: strides(x), ..RawMatrix::new(x.address(), DType::E4m3, 0) };
        let factors =
            |x: &Tensor| RawScaleFactors { address: x.address(), dtype: x.dtype(), strides: strides(x) };
        let rows = match case.layout {
            GroupLayout::Counts => RawGroups::Masked { masked_m: numbers, expected_m: 20 },
            GroupLayout::Ids => RawGroups::Ids { ids: numbers, alignment, expected_m: None },
            _ => RawGroups::Ends { ends: numbers, alignment, expected_m: None },
        };
        let gemm = RawGemm {
            grouping: RawGrouping::MGrouped { groups: 3, rows },
            ..RawGemm::new([case.rows, 512, 256], matrix(&p.a), matrix(&p.b), matrix(d))
                .with_scales(factors(sfa), factors(sfb))
        };
        let epilogue = RawEpilogue {
            alpha: 0.25,
            bias: p.bias.as_ref().unwrap().address(),
            bias_stride: 512,
            activation: Activation::Silu,
            gated: true,
            d_scales: scales.address(),
            d_scales_strides: strides(scales),
            ..Default::default()
        };
        let raw = RawGemm { epilogue: Some(epilogue), ..gemm };
        let run = |raw: &RawGemm<'_>, device: &Device| {
            let options = GemmOptions { num_sms: case.num_sms, ..Default::default() };
            // SAFETY: the simulator checks every access, and all else is refused.
            unsafe { gemm_raw(device, raw, &options) }
        };
        run(&raw, p.device()).unwrap();
        assert_eq!(fresh.bits().unwrap(), by_tensors, "{case:?}");
        let refused = run(&raw, &Device::Cpu);
        assert!(matches!(refused, Err(Error::Device { argument: "device", .. })));
        let null = RawGemm { epilogue: Some(RawEpilogue { d_scales: 0, ..epilogue }), ..raw };
        let refused = run(&null, p.device());
        assert!(matches!(refused, Err(Error::NullPointer { argument: "d_scales", .. })), "{refused:?}");
        let c = RawGemm { c: Some(raw.d), ..raw };
        let refused = run(&c, p.device());
        assert!(matches!(refused, Err(Error::Shape { argument: "c", .. })), "{refused:?}");
    }
}

/// D and its scales, what is fused and added, the argument that is refused, and the kind of the error.
type BadCase<'a> = ((Tensor, Option<Tensor>), Epilogue<'a>, Addend<'a>, &'a str, &'a str);

#[test]
fn bad_arguments_are_refused_by_name() {
    let cpu = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &cpu).unwrap();
    let (a, sfa) = (new(DType::E4m3, &[3, 8, 256]), new(DType::F32, &[3, 8, 2]));
    let (b, sfb) = (new(DType::E4m3, &[3, 512, 256]), new(DType::F32, &[3, 4, 2]));
    let counts = new(DType::I32, &[3]);
    let none = Epilogue::default();
    let gated = Epilogue { gated: true, ..none };
    let matrix = |columns: usize| (new(DType::Bf16, &[3, 8, columns]), None);
    let codes = |scales: Tensor| (new(DType::E4m3, &[3, 8, 512]), Some(scales));
    let scales = |dims: &[usize]| new(DType::F32, dims);
    let heads = |left, mid, right| Some(HeadSplits { left, mid, right });
    let (short, wrong, other) = (scales(&[3, 511]), new(DType::I32, &[3, 512]), scales(&[2, 512]));
    let cube = scales(&[1, 3, 512]);
    let with_bias = |bias| Epilogue { bias: Some(bias), ..none };
    let (c, few) = (new(DType::E4m3, &[3, 8, 512]), new(DType::Bf16, &[3, 7, 512]));
    let apart = new(DType::Bf16, &[3, 16, 512]).narrow(1, 0, 8).unwrap();
    let mixed = scales(&[8, 3, 4]).transpose(0, 1).unwrap();
    let cases: Vec<BadCase<'_>> = vec![
        (matrix(512), gated, Addend::None, "d", "shape"),
        (matrix(511), none, Addend::None, "d", "shape"),
        ((new(DType::Bf16, &[24, 512]), None), none, Addend::None, "d", "rank"),
        (codes(scales(&[3, 8, 3])), none, Addend::None, "d_scales", "scale shape"),
        (codes(scales(&[3, 1, 4])), none, Addend::None, "d_scales", "scale shape"),
        (codes(scales(&[24, 4])), none, Addend::None, "d_scales", "rank"),
        (codes(mixed), none, Addend::None, "d_scales", "scale layout"),
        (codes(new(DType::Bf16, &[3, 8, 4])), none, Addend::None, "d_scales", "type"),
        (codes(scales(&[3, 8, 4])), none, Addend::From(&c), "c", "shape"),
        ((new(DType::E4m3, &[3, 8, 512]), None), none, Addend::None, "d", "type"),
        (
            (new(DType::E4m3, &[3, 8, 520]).narrow(2, 0, 512).unwrap(), Some(scales(&[3, 8, 4]))),
            none,
            Addend::None,
            "d",
            "tma",
        ),
        (matrix(512), none, Addend::From(&few), "c", "shape"),
        (matrix(512), none, Addend::From(&apart), "c", "stride"),
        (matrix(512), with_bias(&short), Addend::None, "bias", "shape"),
        (matrix(512), with_bias(&other), Addend::None, "bias", "shape"),
        (matrix(512), with_bias(&cube), Addend::None, "bias", "shape"),
        (matrix(512), with_bias(&wrong), Addend::None, "bias", "type"),
        (matrix(512), Epilogue { heads: heads(100, 8, 100), ..none }, Addend::None, "heads", "shape"),
        (matrix(256), Epilogue { heads: heads(64, 8, 64), ..gated }, Addend::None, "heads", "shape"),
    ];
    for (i, ((mut d, scales), epilogue, c, argument, kind)) in cases.into_iter().enumerate() {
        let mut scales = scales;
        let to = match &mut scales {
            None => FusedOutput::Matrix(&mut d),
            Some(scales) => FusedOutput::Fp8 { d: &mut d, scales, format: ScaleFormat::F32 },
        };
        let rows = RowGroups::Masked { masked_m: &counts, expected_m: 4 };
        let (a, b, options) = ((&a, &sfa), (&b, &sfb), GemmOptions::default());
        let result = m_grouped_fp8_gemm_nt_fused(a, b, c, to, rows, &epilogue, &options);
        let error = result.expect_err(&format!("case {i}"));
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
        let right = match kind {
            "shape" => matches!(error, Error::Shape { .. }),
            "scale shape" => matches!(error, Error::ScaleShape { .. }),
            "scale layout" => matches!(error, Error::ScaleLayout { .. }),
            "type" => matches!(error, Error::DType { .. }),
            "tma" => matches!(error, Error::Tma { .. }),
            "rank" => matches!(error, Error::Rank { .. }),
            _ => matches!(error, Error::Stride { .. }),
        };
        assert!(right, "case {i}: {error}");
    }
    // A kernel for other products.
    let device = Device::sim();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, sfa) = (new(DType::E4m3, &[8, 256]), new(DType::F32, &[8, 2]));
    let (b, sfb) = (new(DType::E4m3, &[3, 128, 256]), new(DType::F32, &[3, 1, 2]));
    let (ends, mut d) = (new(DType::I32, &[3]), new(DType::Bf16, &[8, 128]));
    for name in [
        "sm90_fp8_persistent_m_grouped_64x128_s8_c1x1",
        "sm90_fp8_persistent_fused_64x128_s6_c1x1",
        "sm90_fp8_persistent_gated_m_grouped_64x128_s6_c1x1",
    ] {
        let options = GemmOptions { config: plan::parse(name), ..Default::default() };
        let rows = RowGroups::Contiguous { rows: GroupedRows::Ends(&ends), alignment: 1, expected_m: None };
        let (a, b, to) = ((&a, &sfa), (&b, &sfb), FusedOutput::Matrix(&mut d));
        let refused = m_grouped_fp8_gemm_nt_fused(a, b, Addend::None, to, rows, &none, &options);
        assert!(matches!(&refused, Err(Error::Config { name: found, .. }) if found == name), "{refused:?}");
    }
}

#[test]
fn what_has_no_elements_needs_no_kernel() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, sfa) = (new(DType::E4m3, &[3, 0, 256]), new(DType::F32, &[3, 0, 2]));
    let (b, sfb) = (new(DType::E4m3, &[3, 256, 256]), new(DType::F32, &[3, 2, 2]));
    let (mut d, mut scales) = (new(DType::E4m3, &[3, 0, 128]), new(DType::F32, &[3, 0, 1]));
    let counts = new(DType::I32, &[3]);
    let swiglu = Epilogue { gated: true, activation: Activation::Silu, ..Default::default() };
    let to = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::F32 };
    let rows = RowGroups::Masked { masked_m: &counts, expected_m: 4 };
    let (a, b, options) = ((&a, &sfa), (&b, &sfb), GemmOptions::default());
    m_grouped_fp8_gemm_nt_fused(a, b, Addend::None, to, rows, &swiglu, &options).unwrap();
    assert!(sim.last_report().is_none(), "no kernel has run");
}
