//! The planner, asked about cases: the only place that names its entry points.

use oxigemm::plan::{
    self, Cost, GemmConfig, GemmShape, KGroupedShape, KOrder, Limits, MGroupedShape, OperandKind, Plan,
    PlanRequest, PlanShape, TunedConfigs,
};
use oxigemm::{DType, Device, GemmLayout, GemmOptions};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
use oxigemm_kernels::gemm::scheduler::k_grouped::PITCH_UNIT;
use oxigemm_kernels::gemm::transpose_k_grouped::result_extent;

use crate::case::{GemmCase, Grouping};
use crate::groups::MGroups;
use crate::op::{
    BF16, FP8, FP8_1D1D, FP8_1X32, FP8_32X32, FP8_FP4, FP8_UE8M0, FP16, MXFP8, NVFP4, Op, OperandTypes, TF32,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::ElementType;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};

/// The plan for a case, or `None` where no kernel, or not this configuration, serves it.
pub fn plan(case: &GemmCase, config: Option<GemmConfig>, limits: &Limits) -> Option<Plan> {
    plan::plan(&PlanRequest { config, ..request(case, limits.arch) }, limits).ok()
}

/// The plan of a batch-invariant call.
pub fn batch_invariant_plan(case: &GemmCase, limits: &Limits) -> Option<Plan> {
    if matches!(case.grouping, Grouping::Summed(_)) {
        return None;
    }
    plan::plan(&PlanRequest { batch_invariant: true, ..request(case, limits.arch) }, limits).ok()
}

/// The same in a K order.
pub fn plan_in_order(
    case: &GemmCase,
    config: Option<GemmConfig>,
    k_order: KOrder,
    limits: &Limits,
) -> Option<Plan> {
    plan::plan(&PlanRequest { config, k_order: Some(k_order), ..request(case, limits.arch) }, limits).ok()
}

/// The planner's own plan, whatever was tuned.
pub fn untuned_plan(case: &GemmCase, limits: &Limits) -> Option<Plan> {
    plan::plan_with(&request(case, limits.arch), limits, &TunedConfigs::default()).ok()
}

/// All candidates for a case with their estimates, the best first.
pub fn rank(case: &GemmCase, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    plan::rank(&request(case, limits.arch), limits)
}

/// What planning is told of a case on an architecture.
pub fn request(case: &GemmCase, arch: Arch) -> PlanRequest {
    let [m, n, k] = [case.m, case.fused().columns(case.n), case.k].map(|x| x as u32);
    let shape = match &case.grouping {
        Grouping::Dense => PlanShape::Dense(GemmShape { m, n, k }),
        Grouping::Summed(gemms) => {
            let batch = *gemms as u32;
            PlanShape::Summed { gemm: GemmShape { m, n, k: k / batch.max(1) }, batch }
        }
        Grouping::M(groups) if groups.is_batch() => PlanShape::Batched(m_shape(case, groups)),
        Grouping::M(groups) => PlanShape::MGrouped(m_shape(case, groups)),
        Grouping::K(ks) => PlanShape::KGrouped(k_shape(case, ks, arch)),
    };
    let plain = PlanRequest::new(operand_kind_on(case, arch), shape);
    match case.epilogue.map(|epilogue| epilogue.fused()) {
        // The scales of both tensors are a factor.
        None if case.types.is_nvfp4() => PlanRequest { fusion: Fusion::Elementwise, ..plain },
        None => plain,
        Some(fused) => {
            PlanRequest { fusion: fused.fusion, quantized_output: fused.quantized.is_some(), ..plain }
        }
    }
}

/// How the GEMM alone gives the very accumulators that a run with an epilogue had: with K split alike.
pub(crate) fn accumulator_options(case: &GemmCase, last: &GemmOptions, device: &Device) -> GemmOptions {
    let unsplit = GemmOptions { batch_invariant: true, ..Default::default() };
    if case.epilogue.is_none() || !matches!(case.grouping, Grouping::Dense) {
        return GemmOptions::default();
    }
    // The CPU splits nothing.
    let Some(limits) = device.limits() else { return unsplit };
    let limits = last.num_sms.map_or(*limits, |sms| limits.restricted_to(sms));
    let request = PlanRequest { batch_invariant: last.batch_invariant, ..request(case, limits.arch) };
    let best = || plan::plan(&request, &limits).expect("every dense case has a plan").config;
    let config = last.config.unwrap_or_else(best);
    if !config.is_split_k() || config.split_k == 1 {
        return unsplit;
    }
    // Any plain split-K kernel for the same operands: all of them split K alike.
    let is_plain = |kernel: &GemmKernel| kernel.is_split_k() && kernel.operands() == config.operands();
    let mut plain = GemmKernel::dense(limits.arch).filter(is_plain).flat_map(GemmConfig::all);
    let plain = plain.find(|plain| plain.split_k == config.split_k).expect("splits are the same for all");
    GemmOptions { config: Some(plain), ..Default::default() }
}

/// Types, majors and scales of the operands of a case, as kernels of an architecture read them.
pub fn operand_kind_on(case: &GemmCase, arch: Arch) -> OperandKind {
    match (case.types.scale_blocks, &case.grouping) {
        (Some(_), Grouping::K(_)) if arch == Arch::Sm100a && case.layout == GemmLayout::Tn => {
            block_scaled(case).with_k_first()
        }
        (Some(_), _) if arch == Arch::Sm100a => block_scaled(case),
        _ => operand_kind(case),
    }
}

/// The contiguous dimensions of A and B in a layout.
fn majors(layout: GemmLayout) -> [Major; 2] {
    let operands = layout.operands(Half::Bf16);
    [operands.a, operands.b]
}

/// The same where kernels multiply sums with FP32 scales, and widen MXFP4 beside FP8. Other FP4 has scales that the tensor
/// core applies.
pub fn operand_kind(case: &GemmCase) -> OperandKind {
    match (case.e5m2, case.types.ab, case.types.scale_blocks) {
        (Some(e5m2), ..) => OperandKind::fp8_e5m2(e5m2),
        (_, DType::Bf16, _) => OperandKind::f16(case.layout.operands(Half::Bf16)),
        (_, DType::F16, _) => OperandKind::f16(case.layout.operands(Half::F16)),
        (_, DType::F32, _) => OperandKind::tf32(majors(case.layout)),
        (.., blocks) if case.types.fp4 == FP8_FP4.fp4 && blocks == FP8_FP4.scale_blocks => {
            OperandKind::FP8_MXFP4
        }
        _ if case.types.has_fp4() => block_scaled(case),
        (.., Some([[1, 128], [1, 128]])) => OperandKind::FP8_1D1D,
        (.., Some([[1, 32], [1, 32]])) => OperandKind::FP8_1X32,
        (.., Some([[1, 32], [32, 32]])) => OperandKind::FP8_32X32,
        _ => OperandKind::FP8,
    }
}

/// The same where the tensor core applies scales, of the finest granularity of both.
fn block_scaled(case: &GemmCase) -> OperandKind {
    let elements = case.ab_types().map(|dtype| match dtype {
        DType::U8 => ElementType::E2m1,
        DType::E5m2 => ElementType::E5m2,
        _ => ElementType::E4m3,
    });
    let [_, [rows_of_b, _]] = case.types.scale_blocks.unwrap_or([[1, 128]; 2]);
    let block = scale_block(case);
    let blocks = rows_of_b == 128 && block == ScaleBlock::Of128;
    let scales = if blocks { ScalesOfB::Blocks } else { ScalesOfB::Rows };
    let kind = OperandKind::block_scaled(elements, scales, block);
    // Others that are not K-major are transposed first.
    let reads_all = elements == [ElementType::E4m3; 2]
        && matches!(case.grouping, Grouping::Dense)
        && case.epilogue.is_none();
    match reads_all {
        true => kind.with_majors(majors(case.layout)),
        false => kind,
    }
}

/// Steps of K that share the finest scales of a case.
pub fn scale_block(case: &GemmCase) -> ScaleBlock {
    let [[_, of_a], [_, of_b]] = case.types.scale_blocks.unwrap_or([[1, 128]; 2]);
    match of_a.min(of_b) {
        16 => ScaleBlock::Of16,
        32 => ScaleBlock::Of32,
        _ => ScaleBlock::Of128,
    }
}

/// What calls say about scales that are codes: how many of them there are does not tell what a short K has.
pub(crate) fn told_scale_blocks(case: &GemmCase) -> Option<[Option<ScaleBlock>; 2]> {
    let codes = [DType::U8, DType::I32].contains(&case.types.scale_type);
    let blocks = case.types.scale_blocks.filter(|_| codes)?;
    let block = |[_, k]: [usize; 2]| Some(if k == 32 { ScaleBlock::Of32 } else { ScaleBlock::Of128 });
    Some(blocks.map(block))
}

/// The operands whose scales a kernel's tensor core applies.
fn block_scaled_types(kind: OperandKind) -> OperandTypes {
    let types = match kind.scale_block {
        ScaleBlock::Of16 => NVFP4,
        ScaleBlock::Of32 => MXFP8,
        ScaleBlock::Of128 => FP8_UE8M0,
    };
    let k = kind.scale_block.size() as usize;
    let rows_of_b = if kind.scales == Some(ScalesOfB::Blocks) { k } else { 1 };
    let fp4 = [kind.a, kind.b].map(|operand| operand.element == ElementType::E2m1);
    OperandTypes { fp4, scale_blocks: Some([[1, k], [rows_of_b, k]]), ..types }
}

/// The operands and the layout that a kernel serves.
pub fn operands_of(kernel: &GemmKernel) -> (OperandTypes, GemmLayout) {
    let kind = kernel.operands();
    let same = |layout: &GemmLayout| majors(*layout) == [kind.a.major, kind.b.major];
    let layout = GemmLayout::ALL.into_iter().find(same).expect("there are four of both");
    match kind.as_f16() {
        None if kind.a.element == ElementType::Tf32 => (TF32, layout),
        None if kind.is_block_scaled() => (block_scaled_types(kind), layout),
        None if kind.widens_b() => (FP8_FP4, GemmLayout::Nt),
        None if kind.is_1d1d() => (FP8_1D1D, GemmLayout::Nt),
        None if kind == OperandKind::FP8_1X32 => (FP8_1X32, GemmLayout::Nt),
        None if kind == OperandKind::FP8_32X32 => (FP8_32X32, GemmLayout::Nt),
        None => (FP8, GemmLayout::Nt),
        Some(operands) => (if operands.element == Half::Bf16 { BF16 } else { FP16 }, layout),
    }
}

/// A dense case that a kernel serves, without gaps.
pub fn case_of(kernel: &GemmKernel, dims: [usize; 3]) -> GemmCase {
    let (types, layout) = operands_of(kernel);
    GemmCase { e5m2: kernel.operands().e5m2(), ..GemmCase::dense(types, layout, dims) }
}

/// Operand types and layout of a k-grouped case that a kernel serves.
pub fn k_grouped_form_of(kernel: &GemmKernel) -> Option<(OperandTypes, GemmLayout)> {
    Op::k_grouped_forms().into_iter().find(|&(types, layout)| {
        operand_kind_on(&GemmCase::k_grouped(types, layout, Vec::new(), [1, 1]), kernel.arch())
            == kernel.operands()
    })
}

/// What the K of each group of a k-grouped case is rounded up to in memory.
pub(crate) fn k_unit(case: &GemmCase) -> usize {
    match operand_kind(case).as_f16() {
        Some(operands) => Operands::k_unit(operands) as usize,
        None if case.layout == GemmLayout::Tn => 1,
        // Two FP4 elements to a byte.
        None if case.types.has_fp4() => 2 * PITCH_UNIT as usize,
        None => PITCH_UNIT as usize,
    }
}

fn m_shape(case: &GemmCase, groups: &MGroups) -> MGroupedShape {
    let ([slabs, rows], count) = (groups.slabs(), groups.sizes.len());
    let expected = match groups.has_slabs() {
        true => case.m,
        false => MGroupedShape::likely_rows((rows / count.max(1)) as u32, groups.alignment as u32) as usize,
    };
    MGroupedShape {
        groups: count as u32,
        slabs: slabs as u32,
        rows: rows as u32,
        expected: expected.clamp(1, rows.max(1)) as u32,
        n: case.fused().columns(case.n) as u32,
        k: case.k as u32,
    }
}

fn k_shape(case: &GemmCase, ks: &[usize], arch: Arch) -> KGroupedShape {
    let extent: usize = ks.iter().map(|k| k.next_multiple_of(k_unit(case))).sum();
    let [groups, m, n, k] = [ks.len(), case.m, case.n, extent].map(|x| x as u32);
    // Operands that are transposed first are then rounded up.
    let transposed = case.types.has_scales()
        && case.layout == GemmLayout::Tn
        && !operand_kind_on(case, arch).is_block_scaled();
    KGroupedShape { groups, m, n, k: if transposed { result_extent(k.into(), groups) as u32 } else { k } }
}
