//! Fused epilogues of 16-bit GEMMs in the simulator: whatever the schedule, the same bits, no hazard, and what the single
//! steps give for the same accumulators, rounded once.

use crate::common::{
    ACTIVATIONS, AddendKind, Case, EpilogueSpec, GPT_OSS, PLAIN_BF16 as PLAIN, PLAIN_FP16 as F16, ScaleOrder,
    in_turn,
};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, Gate, GemmOptions, HeadSplits,
    RawEpilogue, RawGemm, RawMatrix, Sim, Tensor, bf16_gemm_nt_fused, fp16_gemm_nt_fused, gemm_raw,
    half_gemm_nt_fused, random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::operand::f16::Half;
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

/// Every dense kernel of 16-bit operands with a fused epilogue.
fn f16_kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::fused(Arch::Sm90a).filter(|kernel| !kernel.operands().is_fp8())
}

/// The plain case of a kernel's operands.
fn plain_case(kernel: &GemmKernel) -> Case {
    let operands = kernel.operands().as_f16().expect("16-bit operands");
    if operands.element == Half::Bf16 { PLAIN } else { F16 }
}

/// Every kernel with each kind of output; over the set every cluster.
fn kernels(fusion: Fusion) {
    let sim = Sim::new();
    let configs = f16_kernels().filter(|kernel| !kernel.is_split_k() && kernel.fusion() == fusion);
    for (i, config) in configs.enumerate() {
        let plain = plain_case(&config);
        let cluster = [[1, 2], [2, 1], [2, 1], [1, 2]][i % 4];
        let choice = GemmConfig { cluster, ..GemmConfig::of(config) };
        let gated = fusion == Fusion::Gated;
        let m = (config.tile()[0] * cluster[0]) as usize - 3;
        // Half of a tile's columns is not the end of one.
        let n = if gated { 464 } else { 120 };
        let case = Case { dims: [m, n, (choice.stages as usize + 1) * 64 - 56], ..plain };
        let what = EpilogueSpec {
            activation: Activation::Silu,
            gated,
            bias: Some(plain.d_type),
            ..EpilogueSpec::NONE
        };
        every_schedule_gives_the_same_bits(case, what, Some(choice), i, &sim);
        let gate = if gated { GPT_OSS } else { Gate::PLAIN };
        let what = EpilogueSpec { gate, alpha: 0.5, beta: -2.0, bias: Some(DType::F32), ..what };
        let unaligned = Case { gaps: [1, 3], c: AddendKind::Other, ..case };
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
    let configs = f16_kernels().filter(GemmKernel::is_split_k);
    for (i, config) in configs.enumerate() {
        let plain = plain_case(&config);
        let gated = config.fusion() == Fusion::Gated;
        let choice = |nth: usize| {
            let split_k = split_k::f16::SPLITS[(i + nth) % split_k::f16::SPLITS.len()];
            Some(GemmConfig { split_k, stages: 2, ..GemmConfig::of(config) })
        };
        // A tile more, of few rows; gates that end inside a tile, where ups begin.
        let m = config.tile()[0] as usize + 3;
        let case = Case { dims: [m, if gated { 464 } else { 120 }, 600], ..plain };
        let what = EpilogueSpec {
            activation: Activation::Silu,
            gated,
            bias: Some(plain.d_type),
            ..EpilogueSpec::NONE
        };
        every_schedule_gives_the_same_bits(case, what, choice(0), i, &sim);
        let gate = if gated { GPT_OSS } else { Gate::PLAIN };
        let what = EpilogueSpec { gate, alpha: 0.5, beta: -2.0, bias: Some(DType::F32), ..what };
        let unaligned = Case { gaps: [1, 3], c: AddendKind::Other, ..case };
        every_schedule_gives_the_same_bits(unaligned, what, choice(1), i + 1, &sim);
        let quantized = EpilogueSpec { quantized: Some((ScaleOrder::RowPadded, ScaleFormat::F32)), ..what };
        let wider = Case { dims: [m, if gated { 544 } else { 272 }, 600], ..case };
        every_schedule_gives_the_same_bits(wider, quantized, choice(2), i + 2, &sim);
    }
}

#[test]
fn every_activation_bias_and_type() {
    let sim = Sim::new();
    for (i, activation) in ACTIVATIONS.into_iter().enumerate() {
        for gated in [false, true] {
            let plain = if (i % 2 == 0) == gated { PLAIN } else { F16 };
            let biases = [None, Some(plain.d_type), Some(DType::F32)];
            let what = EpilogueSpec {
                activation,
                gated,
                bias: biases[i % 3],
                alpha: 0.1,
                beta: 3.0,
                ..EpilogueSpec::NONE
            };
            let c = [AddendKind::None, AddendKind::Inplace, AddendKind::Other][(i + usize::from(gated)) % 3];
            let d_type = if i % 2 == 0 { DType::F32 } else { plain.d_type };
            let case = Case { dims: [5, 254, 144], c, d_type, ..plain };
            every_schedule_gives_the_same_bits(case, what, None, i, &sim);
        }
    }
}

/// In FP32 TMA could add D to D, but it knows no factors.
#[test]
fn d_has_its_factor_where_it_is_added_to() {
    let sim = Sim::new();
    for (i, c) in [AddendKind::Inplace, AddendKind::Other, AddendKind::None].into_iter().enumerate() {
        for choice in
            ["sm90_bf16_persistent_fused_nt_256x128_s3_c1x1", "sm90_bf16_persistent_gated_nt_128x256_s4_c1x1"]
        {
            let choice = plan::parse(choice).expect("the name of a choice");
            let gated = choice.kernel.fusion() == Fusion::Gated;
            let what = EpilogueSpec { alpha: 2.0, beta: 0.25, gated, ..EpilogueSpec::NONE };
            let case = Case { dims: [70, 512, 128], c, d_type: DType::F32, gaps: [0, 4 * i], ..PLAIN };
            every_schedule_gives_the_same_bits(case, what, Some(choice), i, &sim);
        }
    }
}

#[test]
fn quantized_output_of_many_tiles_in_any_layout() {
    let sim = Sim::new();
    let choices = [
        "sm90_bf16_persistent_fused_nt_64x128_s8_c1x1",
        "sm90_fp16_persistent_gated_nt_64x128_s7_c1x2",
        "sm90_bf16_persistent_gated_nt_128x256_s4_c2x1",
        "sm90_fp16_persistent_fused_nt_256x128_s3_c1x1",
    ];
    for (i, name) in choices.into_iter().enumerate() {
        let choice = plan::parse(name).expect("the name of a choice");
        let plain = if name.starts_with("sm90_bf16_") { PLAIN } else { F16 };
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
            let case = Case { dims: [131, 800, 136], gaps: [0, i], num_sms: Some(2), ..plain };
            every_schedule_gives_the_same_bits(case, what, Some(choice), i, &sim);
        }
    }
}

#[test]
fn heads_skip_their_middle() {
    let sim = Sim::new();
    for (i, (left, mid, right, heads)) in
        [(64, 64, 64, 2), (128, 64, 64, 1), (5, 3, 7, 11), (0, 8, 16, 5), (12, 4, 0, 9)]
            .into_iter()
            .enumerate()
    {
        let splits = HeadSplits { left, mid, right };
        let what = EpilogueSpec { heads: Some(splits), activation: Activation::Relu, ..EpilogueSpec::NONE };
        let plain = if i % 2 == 0 { PLAIN } else { F16 };
        for (d_type, c) in [
            (plain.d_type, AddendKind::None),
            (plain.d_type, AddendKind::Other),
            (DType::F32, AddendKind::Inplace),
        ] {
            let case = Case { dims: [66, (left + right) as usize * heads, 144], d_type, c, ..plain };
            every_schedule_gives_the_same_bits(case, what, None, i, &sim);
        }
    }
}

#[test]
fn an_epilogue_that_does_nothing_gives_the_bits_of_the_gemm() {
    let sim = Sim::new();
    for (plain, choice) in
        [(PLAIN, "sm90_bf16_persistent_nt_128x128_s6_c1x1"), (F16, "sm90_fp16_persistent_nt_128x128_s6_c1x1")]
    {
        for dims in [[70, 200, 400], [3, 8, 130]] {
            let case = Case { dims, ..plain };
            let (plain, fused) = (case.simulated(&sim), with(case, EpilogueSpec::NONE).simulated(&sim));
            plain.checked(plan::parse(choice), "the GEMM alone");
            fused.checked(None, "fused");
            let bits = |d: Tensor| d.to_bytes().unwrap();
            let plain = bits(plain.computed(plan::parse(choice)).unwrap());
            assert_eq!(bits(fused.computed(None).unwrap()), plain, "{dims:?}");
        }
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
        with(Case { dims: [9, 256, 304], ..F16 }, what).on(&Device::cpu()).checked(None, "on the CPU");
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
    let pitched = |x: &Tensor| RawMatrix::new(x.address(), DType::Bf16, x.strides()[0]);
    let to = RawMatrix::new(d.address(), DType::E4m3, 256);
    let gemm = RawGemm::new([20, 512, 256], pitched(&p.a), pitched(&p.b), to);
    let epilogue = RawEpilogue {
        alpha: 0.25,
        bias: p.bias.as_ref().unwrap().address(),
        activation: Activation::Silu,
        gated: true,
        d_scales: scales.address(),
        d_scales_strides: [0, 2, 1],
        d_scales_format: ScaleFormat::PowerOfTwo,
        ..Default::default()
    };
    let run = |gemm: RawGemm<'_>, epilogue| {
        let gemm = RawGemm { epilogue: Some(epilogue), ..gemm };
        // SAFETY: the operands are tensors of this device, which checks every access; what is not is refused.
        unsafe { gemm_raw(p.device(), &gemm, &GemmOptions::default()) }
    };
    run(gemm, epilogue).unwrap();
    let mut bytes = d.to_bytes().unwrap();
    bytes.extend(scales.to_bytes().unwrap());
    assert_eq!(bytes, by_tensors);
    let refused = run(gemm, RawEpilogue { d_scales: 0, ..epilogue });
    assert!(matches!(refused, Err(Error::NullPointer { argument: "d_scales", .. })), "{refused:?}");
    let refused = run(gemm, RawEpilogue { d_scales_strides: [0, 1, 1], ..epilogue });
    assert!(matches!(refused, Err(Error::ScaleLayout { argument: "d_scales", .. })), "{refused:?}");
    let n_major = RawMatrix { strides: [0, 1, 512], ..gemm.b };
    let refused = run(RawGemm { b: n_major, ..gemm }, epilogue);
    assert!(matches!(refused, Err(Error::Stride { argument: "b", .. })), "{refused:?}");
}

#[test]
fn a_graph_is_replayed_with_another_bias() {
    let sim = Sim::new();
    let what = EpilogueSpec { activation: Activation::Relu, bias: Some(DType::F16), ..EpilogueSpec::NONE };
    let mut problem = with(Case { dims: [7, 136, 200], ..F16 }, what).simulated(&sim);
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

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Shape { .. } => "shape",
        Error::ScaleShape { .. } => "scale shape",
        Error::DType { .. } => "type",
        Error::Tma { .. } => "tma",
        Error::Stride { .. } => "stride",
        Error::Overlap { .. } => "overlap",
        _ => "other",
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let cpu = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &cpu).unwrap();
    let (a, b) = (new(DType::F16, &[8, 256]), new(DType::F16, &[512, 256]));
    let none = Epilogue::default();
    let gated = Epilogue { gated: true, ..none };
    let matrix = |columns: usize| (new(DType::F16, &[8, columns]), None);
    let codes = |columns: usize, scales: Tensor| (new(DType::E4m3, &[8, columns]), Some(scales));
    let scales = |dims: &[usize]| new(DType::F32, dims);
    let heads = |left, mid, right| Some(HeadSplits { left, mid, right });
    let (short, other) = (new(DType::F16, &[511]), new(DType::Bf16, &[512]));
    let with_bias = |bias| Epilogue { bias: Some(bias), ..none };
    let c = new(DType::E4m3, &[8, 512]);
    let odd = (new(DType::E4m3, &[8, 520]).narrow(1, 0, 512).unwrap(), Some(scales(&[8, 4])));
    let cases: Vec<BadCase<'_>> = vec![
        (matrix(512), gated, Addend::None, "d", "shape"),
        (matrix(511), none, Addend::None, "d", "shape"),
        ((new(DType::Bf16, &[8, 512]), None), none, Addend::None, "d", "type"),
        ((new(DType::E4m3, &[8, 512]), None), none, Addend::None, "d", "type"),
        ((new(DType::F16, &[8, 512]), Some(scales(&[8, 4]))), none, Addend::None, "d", "type"),
        (codes(512, scales(&[8, 3])), none, Addend::None, "d_scales", "scale shape"),
        (codes(512, new(DType::F16, &[8, 4])), none, Addend::None, "d_scales", "type"),
        (codes(512, scales(&[8, 4])), none, Addend::From(&c), "c", "shape"),
        (odd, none, Addend::None, "d", "tma"),
        (matrix(512), with_bias(&short), Addend::None, "bias", "shape"),
        (matrix(512), with_bias(&other), Addend::None, "bias", "type"),
        (matrix(512), Epilogue { heads: heads(100, 8, 100), ..none }, Addend::None, "heads", "shape"),
        (matrix(512), Epilogue { heads: heads(64, 8, 64), ..none }, Addend::None, "d", "shape"),
        (matrix(256), Epilogue { heads: heads(64, 8, 64), ..gated }, Addend::None, "heads", "shape"),
    ];
    let options = GemmOptions::default();
    for (i, ((mut d, scales), epilogue, c, argument, expected)) in cases.into_iter().enumerate() {
        let mut scales = scales;
        let to = match &mut scales {
            None => FusedOutput::Matrix(&mut d),
            Some(scales) => FusedOutput::Fp8 { d: &mut d, scales, format: ScaleFormat::F32 },
        };
        let error = half_gemm_nt_fused(&a, &b, c, to, &epilogue, &options).expect_err(&format!("case {i}"));
        assert_eq!((error.argument(), kind(&error)), (Some(argument), expected), "case {i}: {error}");
    }
    // Operands of other types and layouts, an odd number of gates and ups, and sums of nothing.
    let bf16 = new(DType::Bf16, &[512, 256]);
    let across = new(DType::F16, &[256, 512]).transpose(0, 1).unwrap();
    let (empty_a, empty_b) = (new(DType::F16, &[8, 0]), new(DType::F16, &[512, 0]));
    let refused = |a: &Tensor, b: &Tensor, epilogue: &Epilogue<'_>| {
        let mut d = new(DType::F16, &[8, 512]);
        half_gemm_nt_fused(a, b, Addend::None, FusedOutput::Matrix(&mut d), epilogue, &options).unwrap_err()
    };
    for (error, argument, expected) in [
        (refused(&a, &bf16, &none), "b", "type"),
        (refused(&new(DType::E4m3, &[8, 256]), &b, &none), "a", "type"),
        (refused(&a, &across, &none), "b", "stride"),
        (refused(&a, &new(DType::F16, &[511, 256]), &gated), "b", "shape"),
        (refused(&a, &new(DType::F16, &[512, 128]), &none), "b", "shape"),
        (refused(&empty_a, &empty_b, &none), "b", "shape"),
    ] {
        assert_eq!((error.argument(), kind(&error)), (Some(argument), expected), "{error}");
    }
    // Each name takes its own type.
    type Call =
        fn(&Tensor, &Tensor, Addend<'_>, FusedOutput<'_>, &Epilogue<'_>, &GemmOptions) -> oxigemm::Result<()>;
    for (call, dtype) in [(bf16_gemm_nt_fused as Call, DType::Bf16), (fp16_gemm_nt_fused as Call, DType::F16)]
    {
        let run = |dtype| {
            let (a, b) = (new(dtype, &[2, 8]), new(dtype, &[4, 8]));
            call(&a, &b, Addend::None, FusedOutput::Matrix(&mut new(dtype, &[2, 4])), &none, &options)
        };
        run(dtype).unwrap();
        let other = if dtype == DType::F16 { DType::Bf16 } else { DType::F16 };
        assert!(matches!(run(other), Err(Error::DType { argument: "a", .. })));
    }
}

#[test]
fn what_has_no_elements_needs_no_kernel() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &device).unwrap();
    let (a, b) = (new(DType::Bf16, &[0, 256]), new(DType::Bf16, &[256, 256]));
    let (mut d, mut scales) = (new(DType::E4m3, &[0, 128]), new(DType::F32, &[0, 1]));
    let gated = Epilogue { gated: true, activation: Activation::Silu, ..Default::default() };
    let to = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::F32 };
    half_gemm_nt_fused(&a, &b, Addend::None, to, &gated, &GemmOptions::default()).unwrap();
    assert!(sim.last_report().is_none(), "no kernel has run");
}
