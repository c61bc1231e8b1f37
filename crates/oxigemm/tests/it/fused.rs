//! Fused epilogues of FP8 GEMMs in the simulator: whatever the schedule, the same bits, no hazard, and what the single
//! steps give for the same accumulators, rounded once.

use crate::common::{ACTIVATIONS, AddendKind, Case, EpilogueSpec, GPT_OSS, PLAIN, ScaleOrder, in_turn};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, Gate, GemmOptions, HeadSplits,
    RawEpilogue, RawGemm, RawMatrix, RawScaleFactors, Sim, Tensor, fp8_gemm_nt_fused, gemm_raw, random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::sm90::split_k;

/// A case with a fused epilogue.
fn with(case: Case, epilogue: EpilogueSpec) -> Case {
    Case { epilogue: Some(epilogue), ..case }
}

fn every_schedule_gives_the_same_bits(
    case: Case,
    what: EpilogueSpec,
    choice: Option<GemmConfig>,
    nth: usize,
    sim: &Sim,
) {
    let problem = with(case, what).simulated(sim);
    problem.every_schedule_gives_the_same_bits(choice, in_turn(nth, 2), sim);
}

fn kernels_with(fusion: Fusion) -> impl Iterator<Item = GemmKernel> {
    GemmKernel::fused(Arch::Sm90a).filter(move |kernel| kernel.fusion() == fusion)
}

/// Every kernel with each kind of output; over the set every cluster.
fn kernels(fusion: Fusion) {
    let sim = Sim::new();
    for (i, config) in kernels_with(fusion).enumerate() {
        if config.is_split_k() || config.operands() != OperandKind::FP8 {
            continue;
        }
        let cluster = [[1, 2], [2, 1], [1, 1], [2, 1]][i % 4];
        let choice = GemmConfig { cluster, ..GemmConfig::of(config) };
        let gated = fusion == Fusion::Gated;
        let m = (config.tile()[0] * cluster[0]) as usize - 3;
        let n = if gated { 512 } else { 120 };
        let case = Case { dims: [m, n, (choice.stages as usize + 1) * 128 - 112], ..PLAIN };
        let what = EpilogueSpec {
            activation: Activation::Silu,
            gated,
            bias: Some(DType::Bf16),
            ..EpilogueSpec::NONE
        };
        every_schedule_gives_the_same_bits(case, what, Some(choice), i, &sim);
        let gate = if gated { GPT_OSS } else { Gate::PLAIN };
        let what = EpilogueSpec { gate, alpha: 0.5, beta: -2.0, bias: Some(DType::F32), ..what };
        let unaligned = Case { gaps: [1, 3], c: AddendKind::Other, scales: ScaleOrder::Mn, ..case };
        every_schedule_gives_the_same_bits(unaligned, what, Some(choice), i + 1, &sim);
        let quantized = EpilogueSpec { quantized: Some((ScaleOrder::RowPadded, ScaleFormat::F32)), ..what };
        let wider = Case { dims: [m, if gated { 768 } else { 272 }, case.dims[2]], ..case };
        every_schedule_gives_the_same_bits(wider, quantized, Some(choice), i + 2, &sim);
    }
}

#[test]
fn every_elementwise_kernel_with_every_output() {
    kernels(Fusion::Elementwise);
}

#[test]
fn every_gated_kernel_with_every_output() {
    kernels(Fusion::Gated);
}

/// Every split-K kernel with each kind of output; over the set every way to split K.
#[test]
fn every_split_k_kernel_with_every_output() {
    let sim = Sim::new();
    let configs = GemmKernel::fused(Arch::Sm90a)
        .filter(|kernel| kernel.is_split_k() && kernel.operands() == OperandKind::FP8);
    for (i, config) in configs.enumerate() {
        let gated = config.fusion() == Fusion::Gated;
        let choice = |nth: usize| {
            let split_k = split_k::fp8::SPLITS[(i + nth) % split_k::fp8::SPLITS.len()];
            Some(GemmConfig { split_k, stages: 2, ..GemmConfig::of(config) })
        };
        // A tile more, of few rows.
        let m = config.tile()[0] as usize + 3;
        let case = Case { dims: [m, if gated { 512 } else { 120 }, 1100], ..PLAIN };
        let what = EpilogueSpec {
            activation: Activation::Silu,
            gated,
            bias: Some(DType::Bf16),
            ..EpilogueSpec::NONE
        };
        every_schedule_gives_the_same_bits(case, what, choice(0), i, &sim);
        let gate = if gated { GPT_OSS } else { Gate::PLAIN };
        let what = EpilogueSpec { gate, alpha: 0.5, beta: -2.0, bias: Some(DType::F32), ..what };
        let unaligned = Case { gaps: [1, 3], c: AddendKind::Other, scales: ScaleOrder::Mn, ..case };
        every_schedule_gives_the_same_bits(unaligned, what, choice(1), i + 1, &sim);
        let quantized = EpilogueSpec { quantized: Some((ScaleOrder::RowPadded, ScaleFormat::F32)), ..what };
        // More blocks of K than scales come together of.
        let wider = Case { dims: [m, if gated { 512 } else { 272 }, 2200], ..case };
        every_schedule_gives_the_same_bits(wider, quantized, choice(2), i + 2, &sim);
        let quantized = EpilogueSpec { quantized: Some((ScaleOrder::Mn, ScaleFormat::PowerOfTwo)), ..what };
        every_schedule_gives_the_same_bits(wider, quantized, choice(3), i + 3, &sim);
    }
}

#[test]
fn every_activation_bias_and_type() {
    let sim = Sim::new();
    let biases = [None, Some(DType::Bf16), Some(DType::F32)];
    for (i, activation) in ACTIVATIONS.into_iter().enumerate() {
        for gated in [false, true] {
            let what = EpilogueSpec {
                activation,
                gated,
                bias: biases[i % 3],
                alpha: 0.1,
                beta: 3.0,
                ..EpilogueSpec::NONE
            };
            let c = [AddendKind::None, AddendKind::Inplace, AddendKind::Other][(i + usize::from(gated)) % 3];
            let d_type = if i % 2 == 0 { DType::F32 } else { DType::Bf16 };
            let case = Case { dims: [5, 256, 144], c, d_type, ..PLAIN };
            every_schedule_gives_the_same_bits(case, what, None, i, &sim);
        }
    }
}

#[test]
fn quantized_output_of_many_tiles_in_any_layout() {
    let sim = Sim::new();
    let choices = [
        "sm90_fp8_persistent_fused_64x128_s6_c1x1",
        "sm90_fp8_persistent_gated_64x128_s6_c1x2",
        "sm90_fp8_persistent_gated_128x128_s5_c2x1",
    ];
    for (i, name) in choices.into_iter().enumerate() {
        let choice = plan::parse(name).expect("the name of a choice");
        for (layout, format) in
            [(ScaleOrder::Mn, ScaleFormat::F32), (ScaleOrder::RowOdd, ScaleFormat::PowerOfTwo)]
        {
            let gated = name.contains("gated");
            let what = EpilogueSpec {
                gated,
                quantized: Some((layout, format)),
                activation: ACTIVATIONS[i + 1],
                ..EpilogueSpec::NONE
            };
            let case = Case { dims: [131, 768, 272], gaps: [0, i], num_sms: Some(2), ..PLAIN };
            every_schedule_gives_the_same_bits(case, what, Some(choice), i, &sim);
        }
    }
}

#[test]
fn heads_skip_their_middle() {
    let sim = Sim::new();
    for (left, mid, right, heads) in
        [(64, 64, 64, 2), (128, 64, 64, 1), (5, 3, 7, 11), (0, 8, 16, 5), (12, 4, 0, 9)]
    {
        let splits = HeadSplits { left, mid, right };
        let what = EpilogueSpec { heads: Some(splits), activation: Activation::Relu, ..EpilogueSpec::NONE };
        for (d_type, c) in [
            (DType::Bf16, AddendKind::None),
            (DType::Bf16, AddendKind::Other),
            (DType::F32, AddendKind::Inplace),
        ] {
            let case = Case { dims: [66, (left + right) as usize * heads, 144], d_type, c, ..PLAIN };
            every_schedule_gives_the_same_bits(case, what, None, 9, &sim);
        }
    }
}

#[test]
fn an_epilogue_that_does_nothing_gives_the_bits_of_the_gemm() {
    let sim = Sim::new();
    for dims in [[70, 200, 400], [3, 8, 130]] {
        let case = Case { dims, ..PLAIN };
        let (plain, fused) = (case.simulated(&sim), with(case, EpilogueSpec::NONE).simulated(&sim));
        plain.checked(plan::parse("sm90_fp8_persistent_128x128_s5_c1x1"), "the GEMM alone");
        fused.checked(None, "fused");
        let bits = |d: Tensor| d.to_bytes().unwrap();
        let plain = bits(plain.computed(plan::parse("sm90_fp8_persistent_128x128_s5_c1x1")).unwrap());
        assert_eq!(bits(fused.computed(None).unwrap()), plain, "{dims:?}");
    }
}

#[test]
fn the_cpu_computes_the_same() {
    for (gated, quantized) in
        [(false, None), (true, None), (true, Some((ScaleOrder::RowPadded, ScaleFormat::F32)))]
    {
        let what = EpilogueSpec {
            gated,
            quantized,
            activation: Activation::Gelu,
            bias: Some(DType::F32),
            ..EpilogueSpec::NONE
        };
        with(Case { dims: [9, 256, 300], ..PLAIN }, what).on(&Device::cpu()).checked(None, "on the CPU");
    }
}

#[test]
fn raw_addresses_give_the_bits_of_tensors() {
    let sim = Sim::new();
    let what = EpilogueSpec {
        gated: true,
        activation: Activation::Silu,
        bias: Some(DType::Bf16),
        ..EpilogueSpec::NONE
    };
    let what = EpilogueSpec {
        quantized: Some((ScaleOrder::RowPadded, ScaleFormat::PowerOfTwo)),
        alpha: 0.25,
        beta: 1.0,
        ..what
    };
    let p = with(Case { dims: [20, 512, 256], ..PLAIN }, what).simulated(&sim);
    let by_tensors = p.checked(None, "tensors");
    let d = Tensor::empty(DType::E4m3, &[20, 256], p.device()).unwrap();
    let scales = Tensor::empty(DType::F32, &[20, 2], p.device()).unwrap();
    let pitched = |x: &Tensor| RawMatrix::new(x.address(), DType::E4m3, x.strides()[0]);
    let strided = |x: &Tensor| RawScaleFactors::new(x.address(), [x.strides()[0], x.strides()[1]]);
    let [sfa, sfb] = p.scales();
    let epilogue = RawEpilogue {
        alpha: 0.25,
        bias: p.bias.as_ref().unwrap().address(),
        bias_type: DType::Bf16,
        activation: Activation::Silu,
        gated: true,
        d_scales: scales.address(),
        d_scales_strides: [0, 2, 1],
        d_scales_format: ScaleFormat::PowerOfTwo,
        ..Default::default()
    };
    let to = RawMatrix::new(d.address(), DType::E4m3, 256);
    let raw = RawGemm {
        epilogue: Some(epilogue),
        ..RawGemm::new([20, 512, 256], pitched(&p.a), pitched(&p.b), to)
            .with_scales(strided(sfa), strided(sfb))
    };
    // SAFETY: the operands are tensors of this device, which checks every access.
    unsafe { gemm_raw(p.device(), &raw, &GemmOptions::default()).unwrap() };
    let mut bytes = d.to_bytes().unwrap();
    bytes.extend(scales.to_bytes().unwrap());
    assert_eq!(bytes, by_tensors);
    let null = RawGemm { epilogue: Some(RawEpilogue { d_scales: 0, ..epilogue }), ..raw };
    // SAFETY: a null pointer is refused.
    let refused = unsafe { gemm_raw(p.device(), &null, &GemmOptions::default()) };
    assert!(matches!(refused, Err(Error::NullPointer { argument: "d_scales", .. })), "{refused:?}");
    let overlapping = RawEpilogue { d_scales_strides: [0, 1, 1], ..epilogue };
    let shared = RawGemm { epilogue: Some(overlapping), ..raw };
    // SAFETY: scales that share elements are refused.
    let refused = unsafe { gemm_raw(p.device(), &shared, &GemmOptions::default()) };
    assert!(matches!(refused, Err(Error::ScaleLayout { argument: "d_scales", .. })), "{refused:?}");
}

#[test]
fn one_scale_may_hold_for_all_rows_or_all_of_k() {
    let sim = Sim::new();
    let swiglu = EpilogueSpec { gated: true, activation: Activation::Silu, ..EpilogueSpec::NONE };
    let codes = EpilogueSpec { quantized: Some((ScaleOrder::Mn, ScaleFormat::F32)), ..swiglu };
    let case = Case { dims: [20, 512, 400], ..PLAIN };
    for what in [EpilogueSpec { bias: Some(DType::F32), ..EpilogueSpec::NONE }, swiglu, codes] {
        let mut problem = with(case, what).simulated(&sim);
        // Per token for A, per tensor for B.
        let [sfa, sfb] = problem.scales();
        let sfb = sfb.narrow(0, 0, 1).unwrap().narrow(1, 0, 1).unwrap();
        let scales = Some([sfa.narrow(1, 0, 1).unwrap(), sfb]);
        problem.accumulators.as_mut().unwrap().scales = scales.clone();
        problem.scales = scales;
        problem.checked(None, &format!("{what:?}"));
    }
}

#[test]
fn a_graph_is_replayed_with_another_bias() {
    let sim = Sim::new();
    let what = EpilogueSpec { activation: Activation::Relu, bias: Some(DType::F32), ..EpilogueSpec::NONE };
    let mut problem = with(Case { dims: [7, 136, 200], ..PLAIN }, what).simulated(&sim);
    let stream = problem.device().new_stream().unwrap();
    let options = problem.options(None, Some(stream.clone()));
    let graph = stream.capture(|_| problem.run(&options)).unwrap();
    for seed in [1, 2] {
        problem.bias.as_mut().unwrap().write_f32(&random::normals(seed, 136)).unwrap();
        graph.launch(&stream).unwrap();
        assert_eq!(problem.bits().unwrap(), problem.checked(None, "at once"), "seed {seed}");
    }
}

/// D and its scales, what is fused and added, the argument that is refused, and the kind of the error.
type BadCase<'a> = ((Tensor, Option<Tensor>), Epilogue<'a>, Addend<'a>, &'a str, &'a str);

#[test]
fn bad_arguments_are_refused_by_name() {
    let cpu = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &cpu).unwrap();
    let (a, sfa) = (new(DType::E4m3, &[8, 256]), new(DType::F32, &[8, 2]));
    let (b, sfb) = (new(DType::E4m3, &[512, 256]), new(DType::F32, &[4, 2]));
    let none = Epilogue::default();
    let gated = Epilogue { gated: true, ..none };
    let matrix = |columns: usize| (new(DType::Bf16, &[8, columns]), None);
    let codes = |columns: usize, scales: Tensor| (new(DType::E4m3, &[8, columns]), Some(scales));
    let scales = |dims: &[usize]| new(DType::F32, dims);
    let heads = |left, mid, right| Some(HeadSplits { left, mid, right });
    let (short, wrong) = (new(DType::F32, &[511]), new(DType::I32, &[512]));
    let flat = new(DType::F32, &[1, 512]);
    let spread = new(DType::F32, &[512, 2]).transpose(0, 1).unwrap().select(0).unwrap();
    let with_bias = |bias| Epilogue { bias: Some(bias), ..none };
    let with_gate = |gate| Epilogue { gate, ..gated };
    let c = new(DType::E4m3, &[8, 512]);
    let cases: Vec<BadCase<'_>> = vec![
        (matrix(512), gated, Addend::None, "d", "shape"),
        (matrix(512), Epilogue { gate: GPT_OSS, ..none }, Addend::None, "gate", "value"),
        (matrix(256), Epilogue { gate: GPT_OSS, ..gated }, Addend::None, "gate", "value"),
        (matrix(256), with_gate(Gate { limit: 0.0, ..Gate::PLAIN }), Addend::None, "gate", "value"),
        (matrix(256), with_gate(Gate { up_offset: f32::NAN, ..Gate::PLAIN }), Addend::None, "gate", "value"),
        (matrix(511), none, Addend::None, "d", "shape"),
        (codes(512, scales(&[8, 3])), none, Addend::None, "d_scales", "scale shape"),
        (codes(512, scales(&[8, 1])), none, Addend::None, "d_scales", "scale shape"),
        (codes(512, scales(&[1, 4])), none, Addend::None, "d_scales", "scale shape"),
        (codes(512, new(DType::Bf16, &[8, 4])), none, Addend::None, "d_scales", "type"),
        (codes(512, scales(&[8, 4])), none, Addend::From(&c), "c", "shape"),
        (codes(256, scales(&[8, 4])), gated, Addend::None, "d_scales", "scale shape"),
        ((new(DType::Bf16, &[8, 512]), Some(scales(&[8, 4]))), none, Addend::None, "d", "type"),
        ((new(DType::E4m3, &[8, 512]), None), none, Addend::None, "d", "type"),
        (
            (new(DType::E4m3, &[8, 520]).narrow(1, 0, 512).unwrap(), Some(scales(&[8, 4]))),
            none,
            Addend::None,
            "d",
            "tma",
        ),
        (matrix(512), with_bias(&short), Addend::None, "bias", "shape"),
        (matrix(512), with_bias(&wrong), Addend::None, "bias", "type"),
        (matrix(512), with_bias(&flat), Addend::None, "bias", "rank"),
        (matrix(512), with_bias(&spread), Addend::None, "bias", "stride"),
        (matrix(512), Epilogue { heads: heads(100, 8, 100), ..none }, Addend::None, "heads", "shape"),
        (matrix(512), Epilogue { heads: heads(0, 8, 0), ..none }, Addend::None, "heads", "shape"),
        (matrix(512), Epilogue { heads: heads(64, 8, 64), ..none }, Addend::None, "d", "shape"),
        (matrix(256), Epilogue { heads: heads(64, 8, 64), ..gated }, Addend::None, "heads", "shape"),
        (
            codes(512, scales(&[8, 4])),
            Epilogue { heads: heads(64, 0, 64), ..none },
            Addend::None,
            "heads",
            "shape",
        ),
    ];
    for (i, ((mut d, scales), epilogue, c, argument, kind)) in cases.into_iter().enumerate() {
        let mut scales = scales;
        let to = match &mut scales {
            None => FusedOutput::Matrix(&mut d),
            Some(scales) => FusedOutput::Fp8 { d: &mut d, scales, format: ScaleFormat::F32 },
        };
        let result = fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), c, to, &epilogue, &GemmOptions::default());
        let error = result.expect_err(&format!("case {i}"));
        assert_eq!(error.argument(), Some(argument), "case {i}: {error}");
        let right = match kind {
            "shape" => matches!(error, Error::Shape { .. }),
            "scale shape" => matches!(error, Error::ScaleShape { .. }),
            "type" => matches!(error, Error::DType { .. }),
            "tma" => matches!(error, Error::Tma { .. }),
            "value" => matches!(error, Error::Value { .. }),
            "rank" => matches!(error, Error::Rank { .. }),
            _ => matches!(error, Error::Stride { .. }),
        };
        assert!(right, "case {i}: {error}");
    }
    // Gates of 100 rows, and sums of nothing.
    let (b100, sfb100) = (new(DType::E4m3, &[200, 256]), new(DType::F32, &[2, 2]));
    let mut d = new(DType::Bf16, &[8, 100]);
    let to = FusedOutput::Matrix(&mut d);
    let options = GemmOptions::default();
    let error =
        fp8_gemm_nt_fused((&a, &sfa), (&b100, &sfb100), Addend::None, to, &gated, &options).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "b", .. }), "{error}");
    let (a0, sf0) = (new(DType::E4m3, &[8, 0]), new(DType::F32, &[8, 0]));
    let (b0, sfb0) = (new(DType::E4m3, &[512, 0]), new(DType::F32, &[4, 0]));
    let mut d = new(DType::Bf16, &[8, 512]);
    let to = FusedOutput::Matrix(&mut d);
    let error =
        fp8_gemm_nt_fused((&a0, &sf0), (&b0, &sfb0), Addend::InPlace, to, &none, &options).unwrap_err();
    assert!(matches!(error, Error::Shape { argument: "b", .. }), "{error}");
    // What other products take: operands of e5m2.
    let e5m2 = |dims: &[usize]| new(DType::E5m2, dims);
    let refused = |a: &Tensor, b: &Tensor, sfb: &Tensor| {
        let mut d = new(DType::Bf16, &[8, 512]);
        let to = FusedOutput::Matrix(&mut d);
        fp8_gemm_nt_fused((a, &sfa), (b, sfb), Addend::None, to, &none, &options).unwrap_err()
    };
    let error = refused(&e5m2(&[8, 256]), &b, &sfb);
    assert!(matches!(error, Error::DType { argument: "a", .. }), "{error}");
    let error = refused(&a, &e5m2(&[512, 256]), &sfb);
    assert!(matches!(error, Error::DType { argument: "b", .. }), "{error}");
    // Hopper's kernels with an epilogue have no scale for each row of B.
    let sim = Device::sim();
    let on_sim = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &sim).unwrap();
    let each_row = on_sim(DType::F32, &[512, 2]);
    let (codes, sf, mut to) =
        (on_sim(DType::E4m3, &[512, 256]), on_sim(DType::F32, &[8, 2]), on_sim(DType::Bf16, &[8, 512]));
    let (a8, to) = ((&codes.narrow(0, 0, 8).unwrap(), &sf), FusedOutput::Matrix(&mut to));
    let error = fp8_gemm_nt_fused(a8, (&codes, &each_row), Addend::None, to, &none, &options).unwrap_err();
    assert!(matches!(error, Error::ScaleShape { argument: "sfb", .. }), "{error}");
    // Scales that lie in an input.
    let d = new(DType::E4m3, &[8, 512]);
    let mut inside = sfb.clone().view(&[1, 8]).unwrap().transpose(0, 1).unwrap();
    let (b128, sfb128) = (new(DType::E4m3, &[128, 256]), sfb.narrow(0, 0, 1).unwrap());
    let mut d128 = d.narrow(1, 0, 128).unwrap();
    let to = FusedOutput::Fp8 { d: &mut d128, scales: &mut inside, format: ScaleFormat::F32 };
    let error =
        fp8_gemm_nt_fused((&a, &sfa), (&b128, &sfb128), Addend::None, to, &none, &options).unwrap_err();
    assert!(matches!(error, Error::Overlap { argument: "sfb", with: "d_scales", .. }), "{error}");
}

#[test]
fn what_has_no_elements_needs_no_kernel() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, sfa) = (new(DType::E4m3, &[0, 256]), new(DType::F32, &[0, 2]));
    let (b, sfb) = (new(DType::E4m3, &[256, 256]), new(DType::F32, &[2, 2]));
    let (mut d, mut scales) = (new(DType::E4m3, &[0, 128]), new(DType::F32, &[0, 1]));
    let gated = Epilogue { gated: true, activation: Activation::Silu, ..Default::default() };
    let to = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::F32 };
    fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, to, &gated, &GemmOptions::default()).unwrap();
    assert!(sim.last_report().is_none(), "no kernel has run");
}
