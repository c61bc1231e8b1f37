//! Blackwell's GEMM kernels in the simulator: whatever the schedule, the same bits, no hazard, and the product.
//!
//! Every kernel runs under an eager, a lazy and a random schedule; one of each kind under five. Over the set the cases
//! have every output type, addend, split of K, cluster and layout of groups.

use crate::common::blackwell::{config_of, every_schedule_gives_the_same_bits};
use crate::common::{
    AddendKind, BF16, EpilogueSpec, FP16, GroupLayout, one_policy, schedules, some_schedules,
};
use oxigemm::DType;
use oxigemm::plan::{self, GemmConfig};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;
use oxigemm_kernels::gemm::{ElementType, GemmKernel};
use oxigemm_testkit::plan::operands_of;
use oxigemm_testkit::{GemmCase, MGroups};

/// Kernels of 16-bit operands.
fn f16_kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::all(Arch::Sm100a).filter(|kernel| kernel.operands().as_f16().is_some())
}

/// A dense case of a kernel, with tails along M, N and K: the `nth` of a set has its own output and addend.
fn dense(kernel: &GemmKernel, nth: usize) -> (GemmCase, GemmConfig) {
    let (types, layout) = operands_of(kernel);
    let [block_m, columns] = [kernel.tile()[0], kernel.tile_columns()].map(|x| x as usize);
    let config = config_of(kernel, nth);
    let m = block_m * config.cluster[0] as usize + [1, block_m / 2 + 3][nth % 2];
    let depth = 64 * (config.split_k as usize * 2 + 1) - 24;
    let (d_type, addend) = [
        (types.d_types[0], AddendKind::None),
        (types.d_types[1], AddendKind::Inplace),
        (types.d_types[0], AddendKind::Other),
        (types.d_types[1], AddendKind::None),
    ][nth % 4];
    let gaps = [[0, 0], [1, 3], [0, 8]][nth % 3];
    let case = GemmCase::dense(types, layout, [m, columns + 8, depth]);
    (GemmCase { d_type, addend, d_offset: gaps[0], d_padding: gaps[1], ..case }, config)
}

#[test]
fn every_second_dense_kernel_of_16_bit_operands() {
    let kernels = f16_kernels().filter(|kernel| {
        kernel.grouping() == Grouping::Dense && kernel.fusion() == Fusion::None && !kernel.is_summed()
    });
    for (nth, kernel) in kernels.step_by(2).enumerate() {
        let (case, config) = dense(&kernel, nth);
        every_schedule_gives_the_same_bits(&case, config, one_policy(nth));
    }
}

#[test]
fn one_kernel_of_each_kind_under_five_schedules() {
    for (nth, name) in [
        "sm100_bf16_persistent_nt_256x128_s8_c2x1",
        "sm100_bf16_persistent_nt_128x64_s8_c1x1",
        "sm100_fp16_persistent_tn_256x256_s6_c2x1",
        "sm100_bf16_split_k_nt_16x128_k4_s3",
        "sm100_fp16_split_k_nn_64x128_k1_s2",
    ]
    .into_iter()
    .enumerate()
    {
        let config = plan::parse(name).expect("the name of a configuration");
        let case = dense(&config.kernel, nth).0;
        every_schedule_gives_the_same_bits(&case, config, some_schedules());
    }
}

#[test]
fn a_pair_walks_many_tiles_through_a_short_pipeline() {
    let config =
        plan::parse("sm100_bf16_persistent_nt_256x128_s8_c2x1").expect("the name of a configuration");
    let case = GemmCase::dense(BF16, oxigemm::GemmLayout::Nt, [700, 390, 704]);
    every_schedule_gives_the_same_bits(&case, config, schedules().step_by(4));
}

#[test]
fn every_second_m_grouped_kernel_of_16_bit_operands() {
    let kernels =
        f16_kernels().filter(|kernel| kernel.grouping() == Grouping::Rows && kernel.fusion() == Fusion::None);
    let layouts = [GroupLayout::Counts, GroupLayout::Ends, GroupLayout::Ids, GroupLayout::All];
    for (nth, kernel) in kernels.step_by(2).enumerate() {
        let (types, layout) = operands_of(&kernel);
        let groups = groups(layouts[nth % 4]);
        let case =
            GemmCase { layout, ..GemmCase::m_grouped(types, groups, [kernel.tile()[1] as usize + 8, 136]) };
        let config = GemmConfig::of(kernel);
        every_schedule_gives_the_same_bits(&case, config, one_policy(nth));
    }
}

/// Groups that end inside a tile, inside the rows of a warp, an empty one and one with a single row.
fn groups(layout: GroupLayout) -> MGroups {
    let sizes = if layout == GroupLayout::All { vec![70; 3] } else { vec![130, 0, 1, 67, 200] };
    let groups = MGroups::new(layout, sizes);
    match layout {
        GroupLayout::Counts => MGroups { max_m: 270, ..groups },
        GroupLayout::Ends => MGroups { alignment: 16, trailing_rows: 5, ..groups },
        GroupLayout::Ids => MGroups { trailing_rows: 5, ..groups },
        GroupLayout::All => groups,
    }
}

#[test]
fn every_second_fused_kernel_of_16_bit_operands() {
    let plain = ["bias,relu", "bias,fp8", "alpha=2,beta=0.5,gelu", "heads=32/16/32", "bias-f32,fp8-pow2"];
    let gated = ["swiglu", "swiglu,fp8", "geglu,bias"];
    let kernels = f16_kernels().filter(|kernel| kernel.fusion() != Fusion::None);
    for (nth, kernel) in kernels.step_by(2).enumerate() {
        let words: &[&str] = if kernel.fusion() == Fusion::Gated { &gated } else { &plain };
        let grouped = kernel.grouping() == Grouping::Rows;
        let of_kernel = words.iter().copied().filter(|word| !(grouped && word.contains("heads")));
        for word in of_kernel.skip(nth % 2).step_by(2) {
            let (types, layout) = operands_of(&kernel);
            let epilogue: EpilogueSpec = word.parse().expect("an epilogue");
            let bias = epilogue.bias.map(|bias| if bias == DType::F32 { bias } else { types.ab });
            let epilogue = EpilogueSpec { bias, ..epilogue };
            let n = if epilogue.gated { 512 } else { 256 };
            let case = match grouped {
                true => GemmCase::m_grouped(types, groups(GroupLayout::Ends), [n, 136]),
                false => GemmCase::dense(types, layout, [kernel.tile()[0] as usize + 9, n, 264]),
            };
            let addend = if word.contains("beta") { AddendKind::Other } else { AddendKind::None };
            let case = GemmCase { epilogue: Some(epilogue), addend, ..case };
            let splits = kernel.spec().splits();
            let config = GemmConfig { split_k: splits[nth % splits.len()], ..GemmConfig::of(kernel) };
            every_schedule_gives_the_same_bits(&case, config, one_policy(nth).step_by(2));
        }
    }
}

#[test]
fn sums_of_batches() {
    for (nth, kernel) in GemmKernel::summed(Arch::Sm100a).enumerate() {
        let types = if kernel.operands().a.element == ElementType::Bf16 { BF16 } else { FP16 };
        let case = GemmCase::summed(types, 3, [kernel.tile()[0] as usize + 2, 136, 72]);
        let (d_type, addend) =
            [(types.d_types[0], AddendKind::None), (DType::F32, AddendKind::Inplace)][nth % 2];
        let config = GemmConfig { split_k: [1, 3][nth % 2], ..GemmConfig::of(kernel) };
        every_schedule_gives_the_same_bits(&GemmCase { d_type, addend, ..case }, config, one_policy(nth));
    }
}
