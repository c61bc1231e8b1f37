//! Operands of Blackwell's dense GEMMs beside K-major e4m3 and those of 16 bits: e4m3 of every major.

use crate::common::AddendKind;
use crate::common::blackwell::{blackwell, config_of, every_schedule_gives_the_same_bits};
use crate::common::{policies, schedules};
use oxigemm::plan;
use oxigemm::{
    Addend, DType, GemmLayout, GemmOptions, Sim, Tensor, fp8_gemm_nn, fp8_gemm_tn,
    fp8_gemm_tt,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{FP8, FP8_UE8M0, GemmCase, MXFP8};

/// The `nth` case of a kernel, with tails along M, N and K, its own output and addend; K is less than the stages of a
/// pipeline, or more.
fn case_of(kernel: &GemmKernel, nth: usize) -> GemmCase {
    let (types, layout) = operands_of(kernel);
    let config = config_of(kernel, nth);
    let [rows, columns] = [kernel.tile()[0] * config.cluster[0], kernel.tile_columns()].map(|x| x as usize);
    let block_k = kernel.operands().block_k() as usize;
    let k = [2, 8][nth % 2] * block_k + block_k / 4 + 1;
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
    GemmKernel::dense(Arch::Sm100a).filter(|kernel| {
        kernel.operands().is_block_scaled() && operands_of(kernel).1 != GemmLayout::Nt
    })
}

#[test]
fn every_kernel_of_e4m3_that_is_not_k_major() {
    let mut count = 0;
    for (nth, kernel) in e4m3_layouts().enumerate() {
        every_schedule_gives_the_same_bits(&case_of(&kernel, nth), config_of(&kernel, nth), policies(nth));
        count += 1;
    }
    // 1x32, 1x128 and 128x128 scales: nn, tn and tt.
    assert_eq!(count, 3 * (4 + 3 + 3));
}

#[test]
fn one_kernel_of_each_layout_under_ten_schedules() {
    for (nth, name) in [
        "sm100_mxfp8_persistent_nn_128x128_s5_c1x1",
        "sm100_ue8m0_e4m3_blocks_persistent_tt_256x192_s5_c2x1",
        "sm100_mxfp8_split_k_tn_128x128_k2_s3",
    ]
    .into_iter()
    .enumerate()
    {
        let config = plan::parse(name).unwrap_or_else(|| panic!("{name} is the name of a configuration"));
        every_schedule_gives_the_same_bits(&case_of(&config.kernel, nth), config, schedules());
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

type FP8Gemm = fn(
    (&Tensor, &Tensor),
    (&Tensor, &Tensor),
    Addend<'_>,
    &mut Tensor,
    &GemmOptions,
) -> oxigemm::Result<()>;

#[test]
fn the_planned_kernel_serves_any_shape_of_any_layout() {
    let (device, _) = blackwell();
    for types in [FP8, FP8_UE8M0, MXFP8] {
        for layout in GemmLayout::ALL {
            for dims in [[1, 1, 1], [3, 70, 300], [130, 33, 160]] {
                let case = GemmCase { d_type: DType::F32, ..GemmCase::dense(types, layout, dims) };
                let mut gemm = case.on(&device).expect("operands");
                gemm.run(&GemmOptions::default()).unwrap_or_else(|error| panic!("{case}: {error}"));
                let error = crate::common::blackwell::f32_error(&gemm).expect("FP32");
                assert!(error < 1e-6, "{case}: {error:e}");
            }
        }
    }
}
