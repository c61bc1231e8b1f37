//! Blackwell's GEMM kernels whose tensor core applies the scales, in the simulator: whatever the schedule, the same bits,
//! no hazard, and the product of what the codes and scales stand for.

use crate::common::blackwell::{blackwell, config_of, every_schedule_gives_the_same_bits, options_of};
use crate::common::{EpilogueSpec, GroupLayout, one_policy, some_schedules};
use oxigemm::plan::{self, GemmConfig, OperandKind};
use oxigemm::sim::Options;
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Tensor, fp8_fp4_gemm_nt, nvfp4_gemm_nt, random,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;
use oxigemm_kernels::gemm::{ElementType, GemmKernel, ScaleType};
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{GemmCase, MGroups};

/// Kernels whose tensor core applies the scales, of e4m3 and FP4.
fn kernels() -> impl Iterator<Item = GemmKernel> {
    let is_of_these = |operands: OperandKind| operands.is_block_scaled() && operands.e5m2().is_none();
    GemmKernel::all(Arch::Sm100a).filter(move |kernel| is_of_these(kernel.operands()))
}

/// Random codes of an operand, and random scales: of UE8M0 within 16 powers of two, of UE4M3 normal numbers.
pub(crate) fn operand(
    seed: u64,
    kind: OperandKind,
    (rows, k, is_b): (usize, usize, bool),
    device: &Device,
) -> (Tensor, Tensor) {
    let bytes = |seed: u64, count: usize| -> Vec<u8> {
        (0..count as u64).map(|i| random::bits(seed, i) as u8).collect()
    };
    let element = if is_b { kind.b.element } else { kind.a.element };
    let (dtype, codes, columns) = match element {
        ElementType::E2m1 => (DType::U8, bytes(seed, rows * k / 2), k / 2),
        _ => (DType::E4m3, DType::E4m3.encode(&random::normals(seed, rows * k)), k),
    };
    let block = kind.scale_block.size() as usize;
    let in_blocks = is_b && kind.scales == Some(ScalesOfB::Blocks);
    let scale_dims = [if in_blocks { rows.div_ceil(block) } else { rows }, k.div_ceil(block)];
    let ue4m3 = kind.scale_type == ScaleType::Ue4m3;
    let scale = |byte: u8| if ue4m3 { 40 + byte % 32 } else { 120 + byte % 16 };
    let scales: Vec<u8> = bytes(seed + 1, scale_dims[0] * scale_dims[1]).into_iter().map(scale).collect();
    let scale_type = if ue4m3 { DType::E4m3 } else { DType::U8 };
    (
        Tensor::from_bytes(dtype, &codes, &[rows, columns], device).expect("codes"),
        Tensor::from_bytes(scale_type, &scales, &scale_dims, device).expect("scales"),
    )
}

/// A product in FP32, by a configuration where one is given.
pub(crate) fn product(
    kind: OperandKind,
    [m, n, k]: [usize; 3],
    device: &Device,
    config: Option<GemmConfig>,
) -> Vec<f32> {
    let (a, sfa) = operand(1, kind, (m, k, false), device);
    let (b, sfb) = operand(3, kind, (n, k, true), device);
    let mut d = Tensor::zeros(DType::F32, &[m, n], device).expect("D");
    let options = config.map_or_else(GemmOptions::default, options_of);
    let run = match kind.scale_block {
        ScaleBlock::Of16 => nvfp4_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, [1.0, 1.0], &options),
        ScaleBlock::Of32 | ScaleBlock::Of128 => {
            fp8_fp4_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options)
        }
    };
    run.unwrap_or_else(|error| {
        panic!("{}: {error}", config.map_or_else(String::new, |config| plan::name(&config)))
    });
    d.to_vec_f32().expect("D")
}

/// The error of a product that is rounded to FP32 once for each K step of an instruction.
pub(crate) fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let (error, size) = found.iter().zip(expected).fold((0.0, 0.0), |(error, size), (x, y)| {
        (error + square(f64::from(*x) - f64::from(*y)), size + square(f64::from(*y)))
    });
    (error / size).sqrt()
}

fn dense_kernel_gives_the_product(kernel: GemmKernel, nth: usize, schedules: impl Iterator<Item = Options>) {
    let (device, sim) = blackwell();
    let (kind, config) = (kernel.operands(), config_of(&kernel, nth));
    let [rows, columns] = [kernel.tile()[0] * config.cluster[0], kernel.tile_columns()].map(|x| x as usize);
    // More stages than the pipeline has, and a remainder; of FP4 beside FP8 whole lines of 128.
    let dims = [rows + 3, columns + 40, [640, 1152][nth % 2]];
    let expected = product(kind, dims, &Device::Cpu, None);
    let mut first: Option<Vec<u32>> = None;
    for schedule in schedules {
        let about = format!("{}, {dims:?}, {:?} {}", plan::name(&config), schedule.policy, schedule.seed);
        sim.set_options(schedule);
        let found = product(kind, dims, &device, Some(config));
        let error = relative_error(&found, &expected);
        assert!(error < 1e-6, "{about}: {error:e}");
        let bits: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
        assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{about}: other bits");
    }
}

#[test]
fn every_second_dense_kernel_with_scales() {
    // Those of other layouts and of e5m2: `blackwell_operands.rs`.
    let is_of_these = |kernel: &GemmKernel| {
        let kind = kernel.operands();
        kind.is_block_scaled() && kind.e5m2().is_none() && operands_of(kernel).1 == GemmLayout::Nt
    };
    let dense = GemmKernel::dense(Arch::Sm100a).filter(is_of_these);
    for (nth, kernel) in dense.step_by(2).enumerate() {
        dense_kernel_gives_the_product(kernel, nth, one_policy(nth));
    }
}

#[test]
fn one_kernel_of_each_kind_under_five_schedules() {
    for (nth, name) in [
        "sm100_mxfp8_persistent_nt_256x192_s5_c2x1",
        "sm100_mxfp4_persistent_nt_256x128_s6_c2x1",
        "sm100_mx_e4m3_e2m1_persistent_nt_128x128_s5_c1x1",
        "sm100_ue8m0_e4m3_blocks_persistent_nt_256x192_s5_c2x1",
        "sm100_mxfp8_split_k_nt_16x128_k4_s3",
    ]
    .into_iter()
    .enumerate()
    {
        let kernel = plan::parse(name).expect("the name of a configuration").kernel;
        dense_kernel_gives_the_product(kernel, nth, some_schedules());
    }
}

/// Groups that end inside a tile, inside the rows of a warp, an empty one and one with a single row.
fn groups(layout: GroupLayout) -> MGroups {
    let groups = MGroups::new(layout, vec![130, 0, 1, 67, 140]);
    match layout {
        GroupLayout::Counts => MGroups { max_m: 270, ..groups },
        GroupLayout::Ends => MGroups { alignment: 16, trailing_rows: 5, ..groups },
        _ => MGroups { trailing_rows: 5, ..groups },
    }
}

#[test]
fn every_second_m_grouped_kernel_with_scales() {
    let grouped =
        kernels().filter(|kernel| kernel.grouping() == Grouping::Rows && kernel.fusion() == Fusion::None);
    let layouts = [GroupLayout::Counts, GroupLayout::Ends, GroupLayout::Ids];
    for (nth, kernel) in grouped.step_by(2).enumerate() {
        // Tensor scales of NVFP4 are a factor, which takes a fused epilogue.
        if kernel.operands().scale_block == ScaleBlock::Of16 {
            continue;
        }
        let (types, _) = operands_of(&kernel);
        let case = GemmCase::m_grouped(types, groups(layouts[nth % 3]), [kernel.tile()[1] as usize + 8, 384]);
        every_schedule_gives_the_same_bits(&case, config_of(&kernel, nth), one_policy(nth).step_by(2));
    }
}

#[test]
fn every_second_fused_kernel_with_scales() {
    let fused = kernels().filter(|kernel| kernel.fusion() != Fusion::None);
    for (nth, kernel) in fused.step_by(2).enumerate() {
        let gated = kernel.fusion() == Fusion::Gated;
        let words = if gated { ["swiglu", "swiglu,fp8"] } else { ["bias,fp8", "alpha=2,gelu,bias"] };
        let epilogue: EpilogueSpec = words[nth / 2 % 2].parse().expect("an epilogue");
        let (types, n) = (operands_of(&kernel).0, if gated { 512 } else { 256 });
        let case = match kernel.grouping() {
            Grouping::Rows => GemmCase::m_grouped(types, groups(GroupLayout::Ends), [n, 384]),
            _ => GemmCase::dense(types, GemmLayout::Nt, [kernel.tile()[0] as usize + 9, n, 640]),
        };
        // Tensor scales of NVFP4 are the factor of its fused epilogue.
        let nvfp4 = kernel.operands().scale_block == ScaleBlock::Of16;
        let case = GemmCase { epilogue: (!nvfp4).then_some(epilogue), ..case };
        every_schedule_gives_the_same_bits(&case, config_of(&kernel, nth), one_policy(nth).step_by(2));
    }
}
