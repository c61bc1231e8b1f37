//! Products whose rows are grouped and whose sums are finished, in the simulator: whatever the schedule, the same bits, no
//! hazard, what the single steps give for the same sums, rounded once, and nothing else written to.

use crate::common::fused_grouped::{self, CODES, Fused, NOTHING, Product, SWIGLU, What};
use crate::common::grouped::{Case, POISON, Problem, ends, ids};
use crate::common::{C, Scales};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, GemmOptions, GroupedRows, HeadSplits,
    RawEpilogue, RawGemm, RawGrouping, RawGroups, RawMatrix, RawScaleFactors, RowGroups, Sim, Tensor,
    gemm_raw, m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_fused, m_grouped_fp8_gemm_nt_masked,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

impl Product for Problem {
    fn case(&self) -> &Case {
        &self.case
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn numbers(&self) -> &Tensor {
        &self.numbers
    }

    fn sums(&self) -> Vec<f32> {
        Problem::sums(self)
    }

    fn run_fused(
        &self,
        c: Addend<'_>,
        d: FusedOutput<'_>,
        groups: RowGroups<'_>,
        epilogue: &Epilogue<'_>,
        options: &GemmOptions,
    ) -> oxigemm::Result<()> {
        let (a, b) = ((&self.a, &self.sfa), (&self.b, &self.sfb));
        m_grouped_fp8_gemm_nt_fused(a, b, c, d, groups, epilogue, options)
    }
}

fn fused(case: Case, what: What, sim: &Sim) -> Fused<Problem> {
    sim.set_options(Default::default());
    Fused::new(Problem::new(case, sim), what)
}

fn every_schedule_gives_the_same_bits(
    case: Case,
    what: What,
    choice: Option<GemmConfig>,
    step: usize,
    sim: &Sim,
) {
    fused_grouped::every_schedule_gives_the_same_bits(&fused(case, what, sim), choice, step, sim);
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
        let what = What { activation: Activation::Silu, gated, bias: Some((DType::Bf16, true)), ..NOTHING };
        every_schedule_gives_the_same_bits(masked.clone(), what, Some(choice), 4, &sim);
        let quantized = What { quantized: Some((Scales::MnMajor, ScaleFormat::F32)), ..what };
        every_schedule_gives_the_same_bits(masked, quantized, Some(choice), 3, &sim);
        let alignment = [1, 16, 64][i % 3];
        let contiguous = Case::ids(&ids(&sizes, alignment), 3, alignment, [n, depth]);
        let what = What { factors: [0.5, -2.0], bias: Some((DType::F32, false)), c: C::Other, ..what };
        let unaligned = Case { gap: 3, scales: Scales::MnMajor, ..contiguous.clone() };
        every_schedule_gives_the_same_bits(unaligned, what, Some(choice), 9, &sim);
        let quantized = What { quantized: Some((Scales::Odd, ScaleFormat::PowerOfTwo)), c: C::None, ..what };
        every_schedule_gives_the_same_bits(contiguous, quantized, Some(choice), 4, &sim);
    }
}

#[test]
fn every_kernel_that_finishes_single_sums() {
    every_kernel(Fusion::Elementwise);
}

#[test]
fn every_kernel_with_a_gate() {
    every_kernel(Fusion::Gated);
}

#[test]
fn many_tiles_of_groups_one_behind_another() {
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
        let what = What { gated: name.contains("gated"), activation: Activation::Gelu, ..CODES };
        every_schedule_gives_the_same_bits(case.clone(), what, Some(choice), 3 + i, &sim);
        let matrix = What { quantized: None, c: C::InPlace, factors: [1.0, 0.5], ..what };
        every_schedule_gives_the_same_bits(
            Case { d_type: DType::F32, ..case },
            matrix,
            Some(choice),
            9,
            &sim,
        );
    }
}

#[test]
fn heads_skip_their_middle() {
    let sim = Sim::new();
    for (left, mid, right, heads) in [(64, 64, 64, 2), (5, 3, 7, 11)] {
        let what =
            What { heads: Some(HeadSplits { left, mid, right }), activation: Activation::Relu, ..NOTHING };
        let n = (left + right) as usize * heads;
        for (d_type, c) in [(DType::Bf16, C::None), (DType::F32, C::InPlace)] {
            let case = Case { d_type, ..Case::masked(&[66, 1, 0], [70, n, 144]) };
            every_schedule_gives_the_same_bits(case, What { c, ..what }, None, 9, &sim);
        }
    }
}

#[test]
fn what_is_no_group_is_clamped() {
    let sim = Sim::new();
    for case in [
        Case::masked(&[-1, i32::MIN, 41, i32::MAX, 40], [40, 256, 128]),
        Case::ends(&[10, 5, 1000, 40, -7], 16, [50, 256, 128]),
        Case::ids(&[7, 7, -2, 0, 0, i32::MIN, 2, 2, 0, 0, i32::MAX, 3, 1, -1, 1, 1], 4, 1, [256, 128]),
    ] {
        every_schedule_gives_the_same_bits(case, CODES, None, 5, &sim);
    }
}

#[test]
fn groups_without_rows_need_no_tile() {
    let sim = Sim::new();
    for counts in [&[0, 0, 0][..], &[0, 1, 0]] {
        let case = Case { num_sms: Some(8), ..Case::masked(counts, [30, 256, 200]) };
        every_schedule_gives_the_same_bits(case, CODES, None, 5, &sim);
    }
}

#[test]
fn an_epilogue_that_does_nothing_gives_the_bits_of_the_product() {
    let sim = Sim::new();
    for case in [
        Case::masked(&[65, 0, 3], [70, 200, 400]),
        Case { d_type: DType::F32, ..Case::ids(&ids(&[65, 0, 3], 16), 3, 16, [72, 144]) },
    ] {
        let fused = fused(case.clone(), NOTHING, &sim);
        let plain = Problem::new(case.clone(), &sim).checked(None, "the product alone");
        assert_eq!(fused.checked(None, "finished"), plain, "{case:?}");
    }
}

/// Both products of an expert layer: what the first has quantized is what the second reads, groups and all.
#[test]
fn the_next_product_reads_what_was_quantized() {
    let sim = Sim::new();
    let (hidden, model, sizes) = (256, 136, [70, 0, 5]);
    for case in [
        Case::masked(&sizes.map(|x| x as i32), [72, 2 * hidden, 272]),
        Case::ids(&ids(&sizes, 16), 3, 16, [2 * hidden, 272]),
    ] {
        let fused = fused(case.clone(), CODES, &sim);
        let blocks = hidden / 128;
        // As engines have them: along M, columns padded to 16 bytes.
        let dims = [case.slabs(), blocks, case.rows.next_multiple_of(4)];
        let memory =
            Tensor::from_f32(DType::F32, &vec![1.0; dims.iter().product()], &dims, &fused.problem.device);
        let lines = memory.unwrap().narrow(2, 0, case.rows).unwrap().transpose(1, 2).unwrap();
        let (mut d, mut scales) = (fused.rows(DType::E4m3, hidden, 0).tensor, fused.shaped(lines));
        let to = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::PowerOfTwo };
        fused.run(Addend::None, to, None).unwrap();
        // The second layer's weights, by the same means.
        let second = Problem::new(Case { n: model, k: hidden, ..case.clone() }, &sim);
        let (mut out, memory) = second.output();
        let (a, b, options) = ((&d, &scales), (&second.b, &second.sfb), GemmOptions::default());
        match fused.groups() {
            RowGroups::Masked { masked_m, expected_m } => {
                m_grouped_fp8_gemm_nt_masked(a, b, &mut out, masked_m, expected_m, &options).unwrap();
            }
            RowGroups::Contiguous { rows, alignment, expected_m } => {
                m_grouped_fp8_gemm_nt_contiguous(a, b, &mut out, rows, alignment, expected_m, &options)
                    .unwrap();
            }
        }
        let (codes, scales) = (d.to_bytes().unwrap(), scales.to_vec_f32().unwrap());
        let found = DType::Bf16.decode(&memory.to_bytes().unwrap());
        let weights = second.b_values();
        for (group, rows) in case.found(&case.numbers).into_iter().enumerate() {
            for row in rows {
                let code = DType::E4m3.decode(&codes[row * hidden..][..hidden]);
                let of_a = |k: usize| f64::from(code[k]) * f64::from(scales[row * blocks + k / 128]);
                for column in 0..model {
                    let weights = &weights[group][column * hidden..][..hidden];
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
    let sim = Sim::new();
    for case in [Case::masked(&[9, 0, 4], [9, 256, 304]), Case::ends(&[9, 9, 20], 4 * 4, [30, 256, 304])] {
        for what in [
            What { activation: Activation::Gelu, bias: Some((DType::F32, true)), c: C::Other, ..SWIGLU },
            What { bias: Some((DType::Bf16, false)), ..CODES },
            What { heads: Some(HeadSplits { left: 5, mid: 3, right: 3 }), c: C::InPlace, ..NOTHING },
        ] {
            let n = if what.heads.is_some() { 64 } else { case.n };
            let mut fused = fused(Case { n, ..case.clone() }, what, &sim);
            let cpu = Device::cpu();
            let p = &mut fused.problem;
            for x in [&mut p.a, &mut p.sfa, &mut p.b, &mut p.sfb, &mut p.numbers]
                .into_iter()
                .chain(&mut fused.bias)
            {
                *x = x.to_device(&cpu).unwrap();
            }
            p.device = cpu.clone();
            // Those of the tensor core have 13 bits.
            fused.sums = fused.problem.sums();
            fused.checked(None, &format!("on the CPU {case:?} {what:?}"));
        }
    }
}

#[test]
fn a_graph_is_replayed_with_other_groups() {
    let sim = Sim::new();
    let mut fused = fused(Case::masked(&[3, 0, 9], [70, 256, 272]), CODES, &sim);
    let stream = fused.problem.device.new_stream().unwrap();
    let (mut d, mut scales) = (fused.rows(DType::E4m3, 128, 0), fused.scales(Scales::RowMajor, 1));
    let graph = {
        let p = &fused.problem;
        let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
        let to = FusedOutput::Fp8 { d: &mut d.tensor, scales: &mut scales.tensor, format: ScaleFormat::F32 };
        stream
            .capture(|_| {
                let (a, b) = ((&p.a, &p.sfa), (&p.b, &p.sfb));
                m_grouped_fp8_gemm_nt_fused(
                    a,
                    b,
                    Addend::None,
                    to,
                    fused.groups(),
                    &fused.epilogue(),
                    &options,
                )
            })
            .unwrap()
    };
    for numbers in [[0, 64, 1], [70, 0, 0], [0, 0, 0], [5, 6, 7]] {
        let numbers_bytes: Vec<u8> = numbers.iter().flat_map(|number: &i32| number.to_le_bytes()).collect();
        fused.problem.numbers.write_bytes(&numbers_bytes).unwrap();
        fused.problem.case.numbers = numbers.to_vec();
        fused.sums = fused.problem.sums();
        for memory in [&mut d.memory, &mut scales.memory] {
            let poison = vec![POISON; memory.to_bytes().unwrap().len()];
            memory.write_bytes(&poison).unwrap();
        }
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        let bytes = [d.memory.to_bytes().unwrap(), scales.memory.to_bytes().unwrap()].concat();
        assert_eq!(bytes, fused.checked(None, "at once"), "{numbers:?}");
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
        let what = What { bias: Some((DType::Bf16, true)), factors: [0.25, 1.0], ..CODES };
        let fused = fused(case.clone(), what, &sim);
        let by_tensors = fused.checked(None, "tensors");
        let p = &fused.problem;
        let (d, scales) = (fused.rows(DType::E4m3, 256, 0), fused.scales(Scales::RowMajor, 2));
        let strides = |tensor: &Tensor| -> [usize; 3] {
            let strides = tensor.strides();
            let last = strides.len() - 1;
            [if last == 2 { strides[0] } else { 0 }, strides[last - 1], strides[last]]
        };
        let (numbers, alignment) = (p.numbers.address(), case.alignment);
        let matrix =
            |x: &Tensor| RawMatrix { strides: strides(x), ..RawMatrix::new(x.address(), DType::E4m3, 0) };
        let factors = |x: &Tensor| RawScaleFactors { address: x.address(), strides: strides(x) };
        let rows = match case.layout {
            GroupLayout::Counts => RawGroups::Masked { masked_m: numbers, expected_m: 20 },
            GroupLayout::Ids => RawGroups::Ids { ids: numbers, alignment, expected_m: None },
            _ => RawGroups::Ends { ends: numbers, alignment, expected_m: None },
        };
        let gemm = RawGemm {
            grouping: RawGrouping::MGrouped { groups: 3, rows },
            ..RawGemm::new([case.rows, 512, 256], matrix(&p.a), matrix(&p.b), matrix(&d.tensor))
                .with_scales(factors(&p.sfa), factors(&p.sfb))
        };
        let epilogue = RawEpilogue {
            alpha: 0.25,
            bias: fused.bias.as_ref().unwrap().address(),
            bias_stride: 512,
            activation: Activation::Silu,
            gated: true,
            d_scales: scales.tensor.address(),
            d_scales_strides: strides(&scales.tensor),
            ..Default::default()
        };
        let raw = RawGemm { epilogue: Some(epilogue), ..gemm };
        let run = |raw: &RawGemm<'_>, device: &Device| {
            let options = GemmOptions { num_sms: case.num_sms, ..Default::default() };
            // SAFETY: the simulator checks every access, and all else is refused.
            unsafe { gemm_raw(device, raw, &options) }
        };
        run(&raw, &p.device).unwrap();
        let bytes = [d.memory.to_bytes().unwrap(), scales.memory.to_bytes().unwrap()].concat();
        assert_eq!(bytes, by_tensors, "{case:?}");
        let refused = run(&raw, &Device::Cpu);
        assert!(matches!(refused, Err(Error::Device { argument: "device", .. })));
        let null = RawGemm { epilogue: Some(RawEpilogue { d_scales: 0, ..epilogue }), ..raw };
        let refused = run(&null, &p.device);
        assert!(matches!(refused, Err(Error::NullPointer { argument: "d_scales", .. })), "{refused:?}");
        let c = RawGemm { c: Some(raw.d), ..raw };
        let refused = run(&c, &p.device);
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
        "sm90_fp8_persistent_grouped_64x128_s8_c1x1",
        "sm90_fp8_persistent_fused_64x128_s6_c1x1",
        "sm90_fp8_persistent_gated_grouped_64x128_s6_c1x1",
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
