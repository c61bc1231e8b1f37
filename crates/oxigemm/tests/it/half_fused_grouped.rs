//! Products of 16-bit operands whose rows are grouped and whose sums are finished, in the simulator: whatever the schedule, the
//! same bits, no hazard, what the single steps give for the same sums, rounded once, and nothing else written to.

use crate::common::fused_grouped::{self, CODES, Fused, NOTHING, Product, SWIGLU, What};
use crate::common::half_grouped::{Case, Problem};
use crate::common::{C, Scales, grouped};
use grouped::{ends, ids};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, GemmOptions, GroupedRows, HeadSplits,
    RawEpilogue, RawGemm, RawGrouping, RawGroups, RawMatrix, RowGroups, Sim, Tensor, gemm_raw,
    m_grouped_bf16_gemm_nt_fused, m_grouped_fp16_gemm_nt_fused, m_grouped_half_gemm,
    m_grouped_half_gemm_nt_fused,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::Half;

impl Product for Problem {
    fn case(&self) -> &grouped::Case {
        &self.case.of
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn numbers(&self) -> &Tensor {
        &self.numbers
    }

    fn sums(&self) -> Vec<f32> {
        let grouped::Case { rows, n, .. } = self.case.of;
        let dims = [self.case.of.slabs(), rows, n];
        let all = Tensor::zeros(DType::F32, &dims, &self.device).unwrap();
        let mut d = if self.case.of.is_masked() { all.clone() } else { all.select(0).unwrap() };
        let (groups, options) = (self.groups(), GemmOptions::default());
        m_grouped_half_gemm(self.case.layout, &self.a, &self.b, Addend::None, &mut d, groups, &options)
            .unwrap();
        all.to_vec_f32().unwrap()
    }

    fn run_fused(
        &self,
        c: Addend<'_>,
        d: FusedOutput<'_>,
        groups: RowGroups<'_>,
        epilogue: &Epilogue<'_>,
        options: &GemmOptions,
    ) -> oxigemm::Result<()> {
        m_grouped_half_gemm_nt_fused(&self.a, &self.b, c, d, groups, epilogue, options)
    }
}

fn fused(of: grouped::Case, ab_type: DType, what: What, sim: &Sim) -> Fused<Problem> {
    sim.set_options(Default::default());
    // D has the type of the operands unless it is FP32.
    let d_type = if of.d_type == DType::F32 { DType::F32 } else { ab_type };
    let bias = what.bias.map(|(dtype, each)| (if dtype == DType::F32 { dtype } else { ab_type }, each));
    let case = Case { ab_type, ..Case::new(grouped::Case { d_type, ..of }) };
    Fused::new(Problem::poisoned(case, sim), What { bias, ..what })
}

fn every_schedule_gives_the_same_bits(
    (of, ab_type): (grouped::Case, DType),
    what: What,
    choice: Option<GemmConfig>,
    step: usize,
    sim: &Sim,
) {
    let fused = fused(of, ab_type, what, sim);
    fused_grouped::every_schedule_gives_the_same_bits(&fused, choice, step, sim);
}

/// Every kernel with each kind of output and of groups, and every cluster.
#[test]
fn every_kernel_with_every_output() {
    let sim = Sim::new();
    let configs = GemmKernel::fused_m_grouped(Arch::Sm90a)
        .filter_map(|kernel| Some((kernel, kernel.operands().as_f16()?.element)));
    for (i, (kernel, element)) in configs.enumerate() {
        let cluster = [[1, 2], [2, 1], [2, 1], [1, 2]][i % 4];
        let config = GemmConfig { cluster, ..GemmConfig::of(kernel) };
        let choice = Some(config);
        let ab_type = if element == Half::Bf16 { DType::Bf16 } else { DType::F16 };
        let gated = kernel.fusion().accumulators() == 2;
        // Rows for one warpgroup and a bit, none, and one row.
        let sizes = [69, 0, 1];
        let (n, depth) = (if gated { 480 } else { 144 }, (config.stages as usize + 1) * 64 - 56);
        let masked = grouped::Case::masked(&sizes.map(|x| x as i32), [72, n, depth]);
        let what = What { activation: Activation::Silu, gated, bias: Some((DType::Bf16, true)), ..NOTHING };
        every_schedule_gives_the_same_bits((masked.clone(), ab_type), what, choice, 4, &sim);
        let quantized = What { quantized: Some((Scales::MnMajor, ScaleFormat::F32)), ..what };
        every_schedule_gives_the_same_bits((masked, ab_type), quantized, choice, 3, &sim);
        let alignment = [1, 16, 64][i % 3];
        let contiguous = grouped::Case::ids(&ids(&sizes, alignment), 3, alignment, [n, depth]);
        let what = What { factors: [0.5, -2.0], bias: Some((DType::F32, false)), c: C::Other, ..what };
        let unaligned = grouped::Case { gap: 3, ..contiguous.clone() };
        every_schedule_gives_the_same_bits((unaligned, ab_type), what, choice, 9, &sim);
        let quantized = What { quantized: Some((Scales::Odd, ScaleFormat::PowerOfTwo)), c: C::None, ..what };
        every_schedule_gives_the_same_bits((contiguous, ab_type), quantized, choice, 4, &sim);
    }
}

#[test]
fn many_tiles_of_groups_one_behind_another() {
    let sim = Sim::new();
    for (i, name) in [
        "sm90_bf16_persistent_gated_m_grouped_nt_128x256_s3_c1x1",
        "sm90_fp16_persistent_fused_m_grouped_nt_128x128_s5_c2x1",
    ]
    .into_iter()
    .enumerate()
    {
        let choice = Some(plan::parse(name).expect("the name of a choice"));
        let ab_type = if name.starts_with("bf16") { DType::Bf16 } else { DType::F16 };
        let sizes = [70, 3, 0, 65, 131];
        let rows = ids(&sizes, 1).len();
        let case = grouped::Case::ends(&ends(&sizes, 1), 1, [rows + 9, 544, 136]);
        let what = What { gated: name.contains("gated"), activation: Activation::Gelu, ..CODES };
        every_schedule_gives_the_same_bits((case.clone(), ab_type), what, choice, 3 + i, &sim);
        let matrix = What { quantized: None, c: C::InPlace, factors: [1.0, 0.5], ..what };
        let wide = grouped::Case { d_type: DType::F32, ..case };
        every_schedule_gives_the_same_bits((wide, ab_type), matrix, choice, 9, &sim);
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
            let case = grouped::Case { d_type, ..grouped::Case::masked(&[66, 1, 0], [70, n, 144]) };
            every_schedule_gives_the_same_bits((case, DType::Bf16), What { c, ..what }, None, 9, &sim);
        }
    }
}

#[test]
fn what_is_no_group_is_clamped() {
    let sim = Sim::new();
    for case in [
        grouped::Case::masked(&[-1, i32::MIN, 41, i32::MAX, 40], [40, 256, 64]),
        grouped::Case::ends(&[10, 5, 1000, 40, -7], 16, [50, 256, 64]),
        grouped::Case::ids(&[7, 7, -2, 0, 0, i32::MIN, 2, 2, 0, 0, i32::MAX, 3, 1, -1, 1], 4, 1, [256, 64]),
    ] {
        every_schedule_gives_the_same_bits((case, DType::F16), CODES, None, 5, &sim);
    }
}

#[test]
fn an_epilogue_that_does_nothing_gives_the_bits_of_the_product() {
    let sim = Sim::new();
    for of in [
        grouped::Case::masked(&[65, 0, 3], [70, 200, 400]),
        grouped::Case { d_type: DType::F32, ..grouped::Case::ids(&ids(&[65, 0, 3], 16), 3, 16, [72, 144]) },
    ] {
        let fused = fused(of.clone(), DType::Bf16, NOTHING, &sim);
        let product = Problem::new(Case::new(of.clone()), &sim).checked(None, "the product alone");
        assert_eq!(fused.checked(None, "finished"), product, "{of:?}");
    }
}

#[test]
fn the_cpu_computes_the_same() {
    let sim = Sim::new();
    for of in [
        grouped::Case::masked(&[9, 0, 4], [9, 256, 104]),
        grouped::Case::ends(&[9, 9, 20], 16, [30, 256, 104]),
    ] {
        for what in [
            What { activation: Activation::Gelu, bias: Some((DType::F32, true)), c: C::InPlace, ..SWIGLU },
            What { bias: Some((DType::Bf16, false)), ..CODES },
        ] {
            let mut fused = fused(of.clone(), DType::F16, what, &sim);
            let (cpu, p) = (Device::cpu(), &mut fused.problem);
            for x in [&mut p.a, &mut p.b, &mut p.numbers].into_iter().chain(&mut fused.bias) {
                *x = x.to_device(&cpu).unwrap();
            }
            p.device = cpu;
            fused.checked(None, &format!("on the CPU {of:?} {what:?}"));
        }
    }
}

#[test]
fn raw_addresses_give_the_bits_of_tensors() {
    let sim = Sim::new();
    let what = What { bias: Some((DType::Bf16, true)), ..CODES };
    for of in [
        grouped::Case::masked(&[3, 0, 20], [20, 512, 128]),
        grouped::Case::ends(&[3, 3, 20], 1, [20, 512, 128]),
    ] {
        let fused = fused(of.clone(), DType::Bf16, what, &sim);
        let by_tensors = fused.checked(None, "tensors");
        let p = &fused.problem;
        let (d, scales) = (fused.rows(DType::E4m3, 256, 0), fused.scales(Scales::RowMajor, 2));
        let rows = match of.is_masked() {
            true => RawGroups::Masked { masked_m: p.numbers.address(), expected_m: 20 },
            false => RawGroups::Ends { ends: p.numbers.address(), alignment: 1, expected_m: None },
        };
        let a = RawMatrix::new(p.a.address(), DType::Bf16, 128).groups_apart(20 * 128);
        let b = RawMatrix::new(p.b.address(), DType::Bf16, 128).groups_apart(512 * 128);
        let to = RawMatrix::new(d.tensor.address(), DType::E4m3, 256).groups_apart(20 * 256);
        let gemm = RawGemm {
            grouping: RawGrouping::MGrouped { groups: 3, rows },
            ..RawGemm::new([20, 512, 128], a, b, to)
        };
        let epilogue = RawEpilogue {
            bias: fused.bias.as_ref().unwrap().address(),
            bias_stride: 512,
            activation: Activation::Silu,
            gated: true,
            d_scales: scales.tensor.address(),
            d_scales_strides: [20 * 2, 2, 1],
            ..Default::default()
        };
        let run = |gemm: RawGemm<'_>, epilogue| {
            let gemm = RawGemm { epilogue: Some(epilogue), ..gemm };
            // SAFETY: the operands are tensors of this device, which checks every access; what is not is refused.
            unsafe { gemm_raw(&p.device, &gemm, &GemmOptions::default()) }
        };
        run(gemm, epilogue).unwrap();
        let mut bytes = d.memory.to_bytes().unwrap();
        bytes.extend(scales.memory.to_bytes().unwrap());
        assert_eq!(bytes, by_tensors);
        let refused = run(gemm, RawEpilogue { d_scales: 0, ..epilogue });
        assert!(matches!(refused, Err(Error::NullPointer { argument: "d_scales", .. })), "{refused:?}");
    }
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let cpu = Device::cpu();
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &cpu).unwrap();
    let (a, b) = (new(DType::F16, &[3, 8, 64]), new(DType::F16, &[3, 512, 64]));
    let masked_m = new(DType::I32, &[3]);
    let options = GemmOptions::default();
    let run =
        |a: &Tensor, b: &Tensor, d: &mut Tensor, scales: Option<&mut Tensor>, epilogue: &Epilogue<'_>| {
            let to = match scales {
                None => FusedOutput::Matrix(d),
                Some(scales) => FusedOutput::Fp8 { d, scales, format: ScaleFormat::F32 },
            };
            let rows = RowGroups::Masked { masked_m: &masked_m, expected_m: 4 };
            m_grouped_half_gemm_nt_fused(a, b, Addend::None, to, rows, epilogue, &options)
                .unwrap_err()
                .argument()
                .expect("an argument is named")
                .to_owned()
        };
    let (none, gated) = (Epilogue::default(), Epilogue { gated: true, ..Default::default() });
    let d = |columns| new(DType::F16, &[3, 8, columns]);
    let across = new(DType::F16, &[3, 64, 512]).transpose(1, 2).unwrap();
    let (two, short) = (new(DType::F16, &[2, 512]), new(DType::F32, &[3, 511]));
    let with = |bias| Epilogue { bias: Some(bias), ..none };
    assert_eq!(run(&a, &b, &mut d(512), None, &gated), "d");
    assert_eq!(run(&a, &b, &mut new(DType::Bf16, &[3, 8, 512]), None, &none), "d");
    assert_eq!(run(&a, &across, &mut d(512), None, &none), "b");
    assert_eq!(run(&a, &new(DType::Bf16, &[3, 512, 64]), &mut d(512), None, &none), "b");
    assert_eq!(run(&a, &new(DType::F16, &[3, 511, 64]), &mut d(512), None, &gated), "b");
    assert_eq!(run(&a, &b, &mut d(512), None, &with(&two)), "bias");
    assert_eq!(run(&a, &b, &mut d(512), None, &with(&short)), "bias");
    let mut scales = new(DType::F32, &[3, 8, 3]);
    assert_eq!(run(&a, &b, &mut new(DType::E4m3, &[3, 8, 512]), Some(&mut scales), &none), "d_scales");
    // Each name takes its own type.
    let rows =
        || RowGroups::Contiguous { rows: GroupedRows::Ends(&masked_m), alignment: 1, expected_m: None };
    let flat = new(DType::Bf16, &[8, 64]);
    let mut out = d(512);
    let wrong = m_grouped_fp16_gemm_nt_fused(
        &flat,
        &b,
        Addend::None,
        FusedOutput::Matrix(&mut out),
        rows(),
        &none,
        &options,
    );
    assert!(matches!(wrong, Err(Error::DType { argument: "a", .. })), "{wrong:?}");
    let wrong = m_grouped_bf16_gemm_nt_fused(
        &a,
        &b,
        Addend::None,
        FusedOutput::Matrix(&mut out),
        rows(),
        &none,
        &options,
    );
    assert!(matches!(wrong, Err(Error::DType { argument: "a", .. })), "{wrong:?}");
}
