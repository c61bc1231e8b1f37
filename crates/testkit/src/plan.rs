//! The planner, asked about cases: the only place that names its entry points.

use oxigemm::plan::{self, Choice, Cost, Family, GroupedShape, KGroupedShape, Limits, Plan, Shape};
use oxigemm::{Device, GemmLayout, GemmOptions};
use oxigemm_kernels::half::Half;
use oxigemm_kernels::kgroups::PITCH_UNIT;
use oxigemm_kernels::launch::Config;
use oxigemm_kernels::transpose_groups::result_extent;

use crate::case::{GemmCase, Grouping};
use crate::groups::MGroups;
use crate::op::{BF16, FP8, FP8_1D1D, FP16, Op, OperandTypes};
use oxigemm::DType;

/// The plan for a case, or `None` where no kernel, or not this choice, serves it.
pub fn plan(case: &GemmCase, choice: Option<Choice>, limits: &Limits) -> Option<Plan> {
    let family = family(case);
    if choice.is_some_and(|choice| choice.config().family() != family) {
        return None;
    }
    let fused = case.epilogue.map(|epilogue| epilogue.fused());
    match (&case.grouping, fused, choice) {
        (Grouping::Dense, None, None) => Some(Plan::best_of(family, shape(case), limits)),
        (Grouping::Dense, None, Some(choice)) => Plan::of(choice, shape(case), limits),
        (Grouping::Dense, Some(fused), None) => Some(Plan::best_fused(family, shape(case), &fused, limits)),
        (Grouping::Dense, Some(fused), Some(choice)) => Plan::of_fused(choice, shape(case), &fused, limits),
        (Grouping::Summed(_), _, None) => Plan::best_summed(family, shape(case), limits),
        (Grouping::Summed(_), _, Some(choice)) => Plan::of_summed(choice, shape(case), limits),
        (Grouping::M(groups), Some(fused), None) => {
            Plan::best_fused_grouped(family, &m_shape(case, groups), &fused, limits)
        }
        (Grouping::M(groups), Some(fused), Some(choice)) => {
            Plan::of_fused_grouped(choice, &m_shape(case, groups), &fused, limits)
        }
        (Grouping::M(groups), None, None) if is_fp8_batch(case, groups) => {
            Plan::best_batched(&m_shape(case, groups), limits)
        }
        (Grouping::M(groups), None, Some(choice)) if is_fp8_batch(case, groups) => {
            Plan::of_batched(choice, &m_shape(case, groups), limits)
        }
        (Grouping::M(groups), None, None) => Plan::best_grouped_of(family, &m_shape(case, groups), limits),
        (Grouping::M(groups), None, Some(choice)) => Plan::of_grouped(choice, &m_shape(case, groups), limits),
        (Grouping::K(ks), _, None) => Plan::best_k_grouped_of(family, &k_shape(case, ks), limits),
        (Grouping::K(ks), _, Some(choice)) => Plan::of_k_grouped(choice, &k_shape(case, ks), limits),
    }
}

/// The plan of a batch-invariant call. Grouped kernels are all batch-invariant, and so is the plan of an epilogue.
pub fn batch_invariant_plan(case: &GemmCase, limits: &Limits) -> Option<Plan> {
    match (&case.grouping, &case.epilogue) {
        (Grouping::Dense, None) => Some(Plan::best_batch_invariant(family(case), shape(case), limits)),
        (Grouping::Summed(_), _) => None,
        _ => plan(case, None, limits),
    }
}

/// All candidates for a case with their estimates, the best first.
pub fn rank(case: &GemmCase, limits: &Limits) -> Vec<(Choice, Cost)> {
    let (family, fused) = (family(case), case.epilogue.map(|epilogue| epilogue.fused()));
    match (&case.grouping, fused) {
        (Grouping::Dense, None) => plan::ranking_of(family, shape(case), limits),
        (Grouping::Dense, Some(fused)) => plan::fused_ranking(family, shape(case), &fused, limits),
        (Grouping::Summed(_), _) => plan::summed_ranking_of(family, shape(case), limits),
        (Grouping::M(groups), Some(fused)) => {
            plan::fused_grouped_ranking(family, &m_shape(case, groups), &fused, limits)
        }
        (Grouping::M(groups), None) if is_fp8_batch(case, groups) => {
            plan::batched_ranking(&m_shape(case, groups), limits)
        }
        (Grouping::M(groups), None) => plan::grouped_ranking_of(family, &m_shape(case, groups), limits),
        (Grouping::K(ks), _) => plan::k_grouped_ranking_of(family, &k_shape(case, ks), limits),
    }
}

/// How the GEMM alone gives the very accumulators that a run with an epilogue had: with K split alike.
pub(crate) fn accumulator_options(case: &GemmCase, last: &GemmOptions, device: &Device) -> GemmOptions {
    let unsplit = GemmOptions { batch_invariant: true, ..Default::default() };
    let Some(epilogue) = case.epilogue.filter(|_| matches!(case.grouping, Grouping::Dense)) else {
        return GemmOptions::default();
    };
    // The CPU splits nothing.
    let Some(limits) = device.limits() else { return unsplit };
    let limits = last.num_sms.map_or(*limits, |sms| limits.restricted_to(sms));
    let best = match last.batch_invariant {
        true => Plan::best_batch_invariant_fused,
        false => Plan::best_fused,
    };
    let best = || best(family(case), shape(case), &epilogue.fused(), &limits).choice;
    let (operands, split) = match last.choice.unwrap_or_else(best) {
        Choice::Slim { split, .. } => ("slim".to_owned(), split),
        Choice::HalfSlim { config, split, .. } => {
            (format!("{}_slim_nt", config.operands.element.name()), split)
        }
        Choice::Wide { .. } | Choice::HalfWide { .. } => return unsplit,
    };
    if split == 1 {
        return unsplit;
    }
    let plain = plan::parse(&format!("{operands}_64x64_k{split}_s2")).expect("it is one of the set");
    GemmOptions { choice: Some(plain), ..Default::default() }
}

/// The kernels that serve a case.
pub fn family(case: &GemmCase) -> Family {
    match (case.e5m2, case.types.ab) {
        (Some(e5m2), _) => Family::Fp8E5m2(e5m2),
        (_, DType::Bf16) => Family::Half(case.layout.operands(Half::Bf16)),
        (_, DType::F16) => Family::Half(case.layout.operands(Half::F16)),
        _ if case.types == FP8_1D1D => Family::Fp8Rows,
        _ => Family::Fp8,
    }
}

/// The operands and the layout that a kernel serves.
pub fn operands_of(config: &Config) -> (OperandTypes, GemmLayout) {
    match config.family() {
        Family::Fp8 | Family::Fp8E5m2(_) => (FP8, GemmLayout::Nt),
        Family::Fp8Rows => (FP8_1D1D, GemmLayout::Nt),
        Family::Half(operands) => {
            let same = |layout: &GemmLayout| layout.operands(operands.element) == operands;
            let layout = GemmLayout::ALL.into_iter().find(same).expect("there are four of both");
            (if operands.element == Half::Bf16 { BF16 } else { FP16 }, layout)
        }
    }
}

/// A dense case that a kernel serves, without gaps.
pub fn case_of(config: &Config, dims: [usize; 3]) -> GemmCase {
    let (types, layout) = operands_of(config);
    let e5m2 = match config.family() {
        Family::Fp8E5m2(e5m2) => Some(e5m2),
        _ => None,
    };
    GemmCase { e5m2, ..GemmCase::dense(types, layout, dims) }
}

/// Operand types and layout of a k-grouped case that a kernel serves.
pub fn k_grouped_form_of(config: &Config) -> Option<(OperandTypes, GemmLayout)> {
    Op::k_grouped_forms().into_iter().find(|&(types, layout)| {
        family(&GemmCase::k_grouped(types, layout, Vec::new(), [1, 1])) == config.family()
    })
}

/// What the K of each group of a k-grouped case is rounded up to in memory.
pub(crate) fn k_unit(case: &GemmCase) -> usize {
    match family(case) {
        Family::Half(operands) => operands.k_unit() as usize,
        _ if case.layout == GemmLayout::Tn => 1,
        _ => PITCH_UNIT as usize,
    }
}

/// An FP8 batch has kernels of its own.
fn is_fp8_batch(case: &GemmCase, groups: &MGroups) -> bool {
    groups.is_batch() && case.types.has_scales()
}

/// The shape that planning is told: columns that are computed, and whole stages of each GEMM that is summed.
fn shape(case: &GemmCase) -> Shape {
    let [m, n, k] = [case.m, case.fused().columns(case.n), case.k].map(|x| x as u32);
    let k = match &case.grouping {
        Grouping::Summed(gemms) => {
            let gemms = *gemms as u32;
            gemms * (k / gemms.max(1)).next_multiple_of(family(case).block_k())
        }
        _ => k,
    };
    Shape { m, n, k }
}

fn m_shape(case: &GemmCase, groups: &MGroups) -> GroupedShape {
    let ([slabs, rows], count) = (groups.slabs(), groups.sizes.len());
    let expected = if groups.has_slabs() { case.m } else { rows / count.max(1) };
    GroupedShape {
        groups: count as u32,
        slabs: slabs as u32,
        rows: rows as u32,
        expected: expected.clamp(1, rows.max(1)) as u32,
        n: case.fused().columns(case.n) as u32,
        k: case.k as u32,
    }
}

fn k_shape(case: &GemmCase, ks: &[usize]) -> KGroupedShape {
    let extent: usize = ks.iter().map(|k| k.next_multiple_of(k_unit(case))).sum();
    let [groups, m, n, k] = [ks.len(), case.m, case.n, extent].map(|x| x as u32);
    // Operands that are transposed first are then rounded up.
    let transposed = case.types.has_scales() && case.layout == GemmLayout::Tn;
    KGroupedShape { groups, m, n, k: if transposed { result_extent(k.into(), groups) as u32 } else { k } }
}
