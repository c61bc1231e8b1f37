//! Fused epilogues of m-grouped 16-bit GEMMs in the simulator: whatever the schedule, the same bits, no hazard, what the
//! single steps give for the same accumulators, rounded once, and nothing else written to.

use crate::common::{AddendKind, BF16, EpilogueSpec, FP16, GroupedCase as Case, ends, ids, schedules};
use crate::fused_grouped::{CODES, SWIGLU, does_nothing, every_output, heads_of, many_tiles};
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, GemmConfig};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, GemmOptions, GroupedRows, RawEpilogue,
    RawGemm, RawGrouping, RawGroups, RawMatrix, RowGroups, Sim, Tensor, gemm_raw,
    m_grouped_bf16_gemm_nt_fused, m_grouped_fp16_gemm_nt_fused, m_grouped_half_gemm_nt_fused,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::Half;

/// Every kernel with each kind of output and of groups, and every cluster.
#[test]
fn every_kernel_with_every_output() {
    let sim = Sim::new();
    let kernels = GemmKernel::fused_m_grouped(Arch::Sm90a)
        .filter_map(|kernel| Some((kernel, kernel.operands().as_f16()?.element)));
    for (i, (kernel, element)) in kernels.enumerate() {
        let cluster = [[1, 2], [2, 1], [2, 1], [1, 2]][i % 4];
        let choice = GemmConfig { cluster, ..GemmConfig::of(kernel) };
        let types = if element == Half::Bf16 { BF16 } else { FP16 };
        let gated = kernel.fusion().accumulators() == 2;
        // Rows for one warpgroup and a bit, none, and one row.
        let sizes = [69, 0, 1];
        let (n, depth) = (if gated { 480 } else { 144 }, (choice.stages as usize + 1) * 64 - 56);
        let masked = Case::masked(&sizes.map(|x| x as i32), [72, n, depth]);
        let alignment = [1, 16, 64][i % 3];
        let contiguous = Case::ids(&ids(&sizes, alignment), 3, alignment, [n, depth]);
        every_output([masked, contiguous].map(|case| case.of(types)), gated, (i, Some(choice)), &sim);
    }
}

#[test]
fn many_tiles_of_contiguous_groups() {
    let sim = Sim::new();
    for (i, name) in [
        "sm90_bf16_persistent_gated_m_grouped_nt_128x256_s3_c1x1",
        "sm90_fp16_persistent_fused_m_grouped_nt_128x128_s5_c2x1",
    ]
    .into_iter()
    .enumerate()
    {
        let choice = Some(plan::parse(name).expect("the name of a choice"));
        let types = if name.starts_with("sm90_bf16_") { BF16 } else { FP16 };
        let sizes = [70, 3, 0, 65, 131];
        let rows = ids(&sizes, 1).len();
        let case = Case::ends(&ends(&sizes, 1), 1, [rows + 9, 544, 136]);
        many_tiles(case.of(types), name.contains("gated"), choice, 3 + i, &sim);
    }
}

#[test]
fn heads_skip_their_middle() {
    heads_of(BF16);
}

#[test]
fn what_is_no_group_is_clamped() {
    let sim = Sim::new();
    for case in [
        Case::masked(&[-1, i32::MIN, 41, i32::MAX, 40], [40, 256, 64]),
        Case::ends(&[10, 5, 1000, 40, -7], 16, [50, 256, 64]),
        Case::ids(&[7, 7, -2, 0, 0, i32::MIN, 2, 2, -1, 4, i32::MAX, 3, 1, 1, -1], 4, 1, [256, 64]),
    ] {
        let problem = case.of(FP16).with(CODES).simulated(&sim);
        problem.every_schedule_gives_the_same_bits(None, schedules().step_by(5), &sim);
    }
}

#[test]
fn an_epilogue_that_does_nothing_gives_the_bits_of_the_gemm() {
    let sim = Sim::new();
    for of in [
        Case::masked(&[65, 0, 3], [70, 200, 400]),
        Case { d_type: DType::F32, ..Case::ids(&ids(&[65, 0, 3], 16), 3, 16, [72, 144]) },
    ] {
        does_nothing(of.of(BF16), &sim);
    }
}

#[test]
fn the_cpu_computes_the_same() {
    for case in [Case::masked(&[9, 0, 4], [9, 256, 104]), Case::ends(&[9, 9, 20], 16, [30, 256, 104])] {
        let case = case.of(FP16);
        let gelu = EpilogueSpec { activation: Activation::Gelu, bias: Some(DType::F32), ..SWIGLU };
        for case in [
            Case { c: AddendKind::Inplace, ..case.clone() }.with(gelu),
            Case { shared_bias: true, ..case }.with(EpilogueSpec { bias: Some(DType::Bf16), ..CODES }),
        ] {
            case.on(&Device::cpu()).checked(None, &format!("on the CPU {case:?}"));
        }
    }
}

#[test]
fn raw_addresses_give_the_bits_of_tensors() {
    let sim = Sim::new();
    let what = EpilogueSpec { bias: Some(DType::Bf16), ..CODES };
    for of in [Case::masked(&[3, 0, 20], [20, 512, 128]), Case::ends(&[3, 3, 20], 1, [20, 512, 128])] {
        let p = of.clone().of(BF16).with(what).simulated(&sim);
        let by_tensors = p.checked(None, "tensors");
        let fresh = p.fresh();
        let (d, scales) = (&fresh.d, fresh.d_scales.as_ref().unwrap());
        let rows = match of.is_masked() {
            true => RawGroups::Masked { masked_m: p.numbers().address(), expected_m: 20 },
            false => RawGroups::Ends { ends: p.numbers().address(), alignment: 1, expected_m: None },
        };
        let a = RawMatrix::new(p.a.address(), DType::Bf16, 128).groups_apart(20 * 128);
        let b = RawMatrix::new(p.b.address(), DType::Bf16, 128).groups_apart(512 * 128);
        let to = RawMatrix::new(d.address(), DType::E4m3, 256).groups_apart(20 * 256);
        let gemm = RawGemm {
            grouping: RawGrouping::MGrouped { groups: 3, rows },
            ..RawGemm::new([20, 512, 128], a, b, to)
        };
        let epilogue = RawEpilogue {
            bias: p.bias.as_ref().unwrap().address(),
            bias_stride: 512,
            activation: Activation::Silu,
            gated: true,
            d_scales: scales.address(),
            d_scales_strides: [20 * 2, 2, 1],
            ..Default::default()
        };
        let run = |gemm: RawGemm<'_>, epilogue| {
            let gemm = RawGemm { epilogue: Some(epilogue), ..gemm };
            // SAFETY: the operands are tensors of this device, which checks every access; what is not is refused.
            unsafe { gemm_raw(p.device(), &gemm, &GemmOptions::default()) }
        };
        run(gemm, epilogue).unwrap();
        assert_eq!(fresh.bits().unwrap(), by_tensors);
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
