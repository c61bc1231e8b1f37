//! Operands of Blackwell's dense GEMMs beside K-major e4m3 and FP4 and those of 16 bits: e4m3 of every major, e5m2, and
//! FP32 that is multiplied as TF32.

use crate::common::blackwell::{blackwell, config_of, every_schedule_gives_the_same_bits, f32_error};
use crate::common::{AddendKind, one_policy, some_schedules};
use oxigemm::plan;
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Sim, Tensor, fp8_gemm_nn, fp8_gemm_tn, fp8_gemm_tt,
    half_gemm, reference, tf32_gemm, tf32_gemm_nn, tf32_gemm_nt, tf32_gemm_tn, tf32_gemm_tt,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::{ElementType, GemmKernel};
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{E5m2, FP8, FP8_UE8M0, GemmCase, MXFP8, TF32};

/// The `nth` case of a kernel, with tails along M, N and K, its own output and addend; K is less than the stages of a
/// pipeline, or more.
fn case_of(kernel: &GemmKernel, nth: usize) -> GemmCase {
    let (types, layout) = operands_of(kernel);
    // Of a pair, the second CTA has some rows.
    let [rows, columns] = [kernel.tile()[0], kernel.tile_columns()].map(|x| x as usize);
    let block_k = kernel.operands().block_k() as usize;
    let k = [2, 6][nth % 2] * block_k + block_k / 4 + 1;
    let [narrow, wide] = types.d_types;
    let (d_type, addend) = [
        (wide, AddendKind::None),
        (wide, AddendKind::Other),
        (narrow, AddendKind::None),
        (wide, AddendKind::Inplace),
    ][nth % 4];
    let case = GemmCase::dense(types, layout, [rows + [3, 40][nth / 2 % 2], columns + 9, k]);
    GemmCase { d_type, addend, e5m2: kernel.operands().e5m2(), d_padding: nth % 3, ..case }
}

/// Dense kernels of e4m3 operands of which one is not K-major.
fn e4m3_layouts() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::dense(Arch::Sm100a)
        .filter(|kernel| kernel.operands().is_block_scaled() && operands_of(kernel).1 != GemmLayout::Nt)
}

#[test]
fn every_second_kernel_of_e4m3_that_is_not_k_major() {
    let mut count = 0;
    for (nth, kernel) in e4m3_layouts().step_by(2).enumerate() {
        every_schedule_gives_the_same_bits(&case_of(&kernel, nth), config_of(&kernel, nth), one_policy(nth));
        count += 1;
    }
    // 1x32, 1x128 and 128x128 scales: nn, tn and tt.
    assert_eq!(count, 3 * (4 + 3 + 3) / 2);
}

#[test]
fn one_kernel_of_each_layout_under_five_schedules() {
    for (nth, name) in [
        "sm100_mxfp8_persistent_nn_128x128_s5_c1x1",
        "sm100_ue8m0_e4m3_blocks_persistent_tt_256x256_s5_c2x1",
        "sm100_mxfp8_split_k_tn_128x128_k2_s3",
    ]
    .into_iter()
    .enumerate()
    {
        let config = plan::parse(name).unwrap_or_else(|| panic!("{name} is the name of a configuration"));
        every_schedule_gives_the_same_bits(&case_of(&config.kernel, nth), config, some_schedules());
    }
}

/// The kernels that a call launched, by their names.
fn launches(sim: &Sim, call: impl FnOnce()) -> Vec<String> {
    let before = sim.recent_kernels().len();
    call();
    sim.recent_kernels().split_off(before)
}

#[test]
fn e4m3_of_any_layout_is_multiplied_where_it_lies() {
    let (device, sim) = blackwell();
    let (m, n, k) = (48, 160, 512);
    let codes = |dims: [usize; 2]| Tensor::zeros(DType::E4m3, &dims, &device).expect("codes");
    // Four scales of a row in each word, as the tensor core reads them.
    let words = |rows: usize| Tensor::zeros(DType::I32, &[rows, 1], &device).expect("scales");
    let first = |scales: &Tensor| scales.transpose(0, 1).expect("a view");
    let (sfa, sfb) = (words(m), words(n));
    let (a, b) = ((codes([m, k]), sfa.clone()), (codes([n, k]), sfb.clone()));
    let (a_first, b_first) = ((codes([k, m]), first(&sfa)), (codes([k, n]), first(&sfb)));
    let mut d = Tensor::zeros(DType::F32, &[m, n], &device).expect("D");
    let options = GemmOptions::default();
    for (name, gemm, a, b) in [
        ("nn", fp8_gemm_nn as FP8Gemm, &a, &b_first),
        ("tn", fp8_gemm_tn, &a_first, &b_first),
        ("tt", fp8_gemm_tt, &a_first, &b),
    ] {
        let names = launches(&sim, || {
            gemm((&a.0, &a.1), (&b.0, &b.1), Addend::None, &mut d, &options)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        });
        let is_gemm = |kernel: &String| kernel.starts_with("sm100_ue8m0_e4m3_gemm_");
        assert!(names.len() == 1 && is_gemm(&names[0]) && names[0].contains(name), "{name}: {names:?}");
    }
}

type FP8Gemm =
    fn((&Tensor, &Tensor), (&Tensor, &Tensor), Addend<'_>, &mut Tensor, &GemmOptions) -> oxigemm::Result<()>;

/// Runs a case by the planned kernel.
fn planned_is_right(case: &GemmCase, device: &Device) {
    let mut gemm = case.on(device).expect("operands");
    gemm.run(&GemmOptions::default()).unwrap_or_else(|error| panic!("{case}: {error}"));
    let error = f32_error(&gemm).expect("FP32");
    assert!(error < 1e-6, "{case}: {error:e}");
}

#[test]
fn the_planned_kernel_serves_any_shape_of_any_layout() {
    let (device, _) = blackwell();
    for types in [FP8, FP8_UE8M0, MXFP8, TF32] {
        for layout in GemmLayout::ALL {
            for dims in [[1, 1, 1], [3, 70, 300], [130, 33, 160]] {
                let case = GemmCase { d_type: DType::F32, ..GemmCase::dense(types, layout, dims) };
                planned_is_right(&case, &device);
            }
        }
    }
}

#[test]
fn every_second_kernel_of_e5m2() {
    let kernels = GemmKernel::dense(Arch::Sm100a).filter(|kernel| kernel.operands().e5m2().is_some());
    let mut count = 0;
    for (nth, kernel) in kernels.step_by(2).enumerate() {
        every_schedule_gives_the_same_bits(&case_of(&kernel, nth), config_of(&kernel, nth), one_policy(nth));
        count += 1;
    }
    assert_eq!(count, 3 * 4 / 2);
}

#[test]
fn the_planned_kernel_serves_any_mix_of_e5m2() {
    let (device, _) = blackwell();
    for mix in E5m2::ALL {
        // Of other layouts, operands are transposed first.
        for (layout, dims) in [
            (GemmLayout::Nt, [1, 1, 1]),
            (GemmLayout::Nt, [17, 130, 160]),
            (GemmLayout::Nn, [70, 40, 129]),
            (GemmLayout::Tn, [5, 40, 300]),
        ] {
            let case = GemmCase { e5m2: Some(mix), d_type: DType::F32, ..GemmCase::dense(FP8, layout, dims) };
            planned_is_right(&case, &device);
        }
    }
}

/// Dense kernels of FP32 operands.
fn tf32_kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::dense(Arch::Sm100a).filter(|kernel| kernel.operands().a.element == ElementType::Tf32)
}

#[test]
fn every_second_kernel_of_tf32() {
    let mut count = 0;
    for (nth, kernel) in tf32_kernels().step_by(2).enumerate() {
        every_schedule_gives_the_same_bits(&case_of(&kernel, nth), config_of(&kernel, nth), one_policy(nth));
        count += 1;
    }
    // With a K-major A, and with an M-major one.
    assert_eq!(count, (2 * 4 + 2 * 3) / 2);
}

#[test]
fn tf32_under_five_schedules() {
    for (nth, name) in ["sm100_tf32_persistent_tn_128x128_s6_c1x1", "sm100_tf32_split_k_nt_16x128_k2_s3"]
        .into_iter()
        .enumerate()
    {
        let config = plan::parse(name).unwrap_or_else(|| panic!("{name} is the name of a configuration"));
        every_schedule_gives_the_same_bits(&case_of(&config.kernel, nth), config, some_schedules());
    }
}

#[test]
fn tf32_operands_are_truncated_on_every_device_that_has_them() {
    let value = |bits: u32| f32::from_bits(bits);
    // What lies behind ten bits of mantissa is cut off, of numbers of either sign, however near the next one is.
    assert_eq!(reference::truncated_to_tf32(value(0x3f80_1fff)), 1.0);
    assert_eq!(reference::truncated_to_tf32(value(0xbf80_3fff)), -value(0x3f80_2000));
    for device in [Device::Cpu, blackwell().0] {
        let fill = |x: f32, dims: [usize; 2]| {
            Tensor::from_f32(DType::F32, &vec![x; dims[0] * dims[1]], &dims, &device).expect("an operand")
        };
        let mut d = Tensor::zeros(DType::F32, &[8, 16], &device).expect("D");
        let options = GemmOptions::default();
        let (a, b) = (value(0x3f80_1fff), value(0xc080_3fff));
        for (gemm, a, b) in [
            (tf32_gemm_nt as HalfGemm, fill(a, [8, 12]), fill(b, [16, 12])),
            (tf32_gemm_nn, fill(a, [8, 12]), fill(b, [12, 16])),
            (tf32_gemm_tn, fill(a, [12, 8]), fill(b, [12, 16])),
            (tf32_gemm_tt, fill(a, [12, 8]), fill(b, [16, 12])),
        ] {
            gemm(&a, &b, Addend::None, &mut d, &options).expect("a product");
            assert_eq!(d.to_vec_f32().expect("D"), [12.0 * value(0xc080_2000); 8 * 16], "{device}");
        }
    }
}

type HalfGemm = fn(&Tensor, &Tensor, Addend<'_>, &mut Tensor, &GemmOptions) -> oxigemm::Result<()>;

#[test]
fn f32_is_refused_where_it_is_not_multiplied() {
    let operands = |device: &Device, dtype: DType| {
        let zeros = |dtype: DType| Tensor::zeros(dtype, &[64, 64], device).expect("an operand");
        (zeros(dtype), zeros(dtype), zeros(DType::F32))
    };
    let options = GemmOptions::default();
    // Hopper has no kernel.
    let (a, b, mut d) = operands(&Device::Sim(Sim::new()), DType::F32);
    let error = tf32_gemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &options).expect_err("no kernel");
    let message = error.to_string();
    assert!(message.contains("sm_90a") && message.contains("tf32"), "{message}");
    // Other functions do not lose what FP32 has beyond TF32, and this one takes nothing else.
    let (device, _) = blackwell();
    let (a, b, mut d) = operands(&device, DType::F32);
    let error = half_gemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &options).expect_err("f32");
    assert!(error.to_string().contains("TF32"), "{error}");
    let (a, b, mut d) = operands(&device, DType::Bf16);
    let error = tf32_gemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &options).expect_err("bf16");
    assert!(error.to_string().contains("f32"), "{error}");
    let (a, b, _) = operands(&device, DType::F32);
    let mut d = Tensor::zeros(DType::Bf16, &[64, 64], &device).expect("D");
    let error = tf32_gemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &options).expect_err("a bf16 D");
    assert!(error.to_string().contains("f32"), "{error}");
}
