//! `oxigemm mutate`: deletes or weakens every synchronization instruction of a kernel, one at a time, and counts how
//! many of these mutants the simulator finds.
//!
//! A mutant is found when some schedule of some case reports a fault or gives other bits than the kernel itself. One
//! that survives is a miss of the simulator, or an instruction that the kernel could do without.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use indicatif::ProgressBar;
use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, Choice, Family, Limits};
use oxigemm::sim::{Options, Policy};
use oxigemm::{Activation, DType, Device, Error, GemmLayout, GemmOptions, Sim};
use oxigemm_kernels::epilogue::fused::Fusion;
use oxigemm_kernels::grouping::{GroupLayout, Grouping};
use oxigemm_kernels::launch::Config;
use oxigemm_kernels::params::ScalesOfB;
use oxigemm_kernels::{fp8_slim, fp8_wide, half_slim, half_wide};
use oxigemm_sim::{Mutant, mutants};
use rayon::prelude::*;
use serde_json::json;

use crate::fused::{EpilogueSpec, FusedSpec};
use crate::fused_grouped::FusedGroupedSpec;
use crate::grouped::GroupedSpec;
use crate::kgrouped::{KGroupedForm, KGroupedSpec};
use crate::output::{print_json, print_line, progress};
use crate::problem::{AddendKind, ScaleOrder, Spec};
use crate::task::{Task, Work};
use crate::trace::simulator;
use crate::verdict::Effort;
use crate::{Common, Failure, Op, Outcome};

/// Arguments of `mutate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The kernel, as `prebuild --list` names it; without it, one of each family.
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
}

/// The kernels that stand for their families.
const FAMILIES: [&str; 10] = [
    "fp8_gemm_wide_256x128_s3",
    "fp8_gemm_slim_8x64",
    "fp8_gemm_wide_grouped_64x128_s8",
    "bf16_gemm_wide_nt_128x192_s4",
    "bf16_gemm_slim_nn_8x64",
    "fp8_gemm_wide_1d1d_64x128_s6",
    "fp8_gemm_wide_kgrouped_1d1d_128x128_s4",
    "fp8_gemm_wide_fused_64x128_s6",
    "fp8_gemm_wide_fused_grouped_64x128_s6",
    "bf16_gemm_wide_fused_nt_64x128_s8",
];
/// The share of mutants that must be found.
const BAR: f64 = 0.95;
/// A mutant that loops is given up after this many warp instructions.
const INSTRUCTION_LIMIT: u64 = 20_000_000;

/// Instructions of those kernels whose mutants may survive: what is done, in which file, how often, and why nothing is
/// lost without them.
struct Redundant {
    kernel: &'static str,
    what: &'static str,
    file: &'static str,
    times: usize,
    why: &'static str,
}

const BEHIND_FP32: &str =
    "behind the last wave in FP32: the products of a whole tile come before the area is staged again";

const FENCED_BEFORE: &str =
    "of the second block of a few: the fence of the first is behind all that touched its products";
const OWN_COPIES: &str = "between the wait for copies and the arrival: every lane arrives for its own copies";

const BEHIND_ROWS: &str =
    "behind rows that lanes store: the products of a whole tile come before the area is staged again";
const BETWEEN_STAGES: &str = "between the stages of a tile only products touch the sums";

const REDUNDANT: [Redundant; 18] = [
    Redundant { kernel: FAMILIES[0], what: "bar.warp.sync", file: "epilogue.rs", times: 1, why: BEHIND_FP32 },
    Redundant { kernel: FAMILIES[0], what: "bar.warp.sync", file: "scales.rs", times: 1, why: OWN_COPIES },
    Redundant { kernel: FAMILIES[2], what: "bar.warp.sync", file: "scales.rs", times: 1, why: OWN_COPIES },
    Redundant { kernel: FAMILIES[2], what: "bar.warp.sync", file: "within.rs", times: 1, why: BEHIND_ROWS },
    Redundant { kernel: FAMILIES[3], what: "bar.warp.sync", file: "epilogue.rs", times: 1, why: BEHIND_FP32 },
    Redundant {
        kernel: FAMILIES[3],
        what: "wgmma.fence",
        file: "half_wide.rs",
        times: 1,
        why: BETWEEN_STAGES,
    },
    Redundant { kernel: FAMILIES[5], what: "bar.warp.sync", file: "epilogue.rs", times: 1, why: BEHIND_FP32 },
    Redundant { kernel: FAMILIES[5], what: "bar.warp.sync", file: "scales.rs", times: 1, why: OWN_COPIES },
    Redundant { kernel: FAMILIES[5], what: "wgmma.fence", file: "math.rs", times: 1, why: FENCED_BEFORE },
    Redundant { kernel: FAMILIES[6], what: "bar.warp.sync", file: "epilogue.rs", times: 1, why: BEHIND_FP32 },
    Redundant { kernel: FAMILIES[6], what: "bar.warp.sync", file: "scales.rs", times: 1, why: OWN_COPIES },
    Redundant { kernel: FAMILIES[6], what: "wgmma.fence", file: "math.rs", times: 1, why: FENCED_BEFORE },
    Redundant {
        kernel: FAMILIES[6],
        what: "fence.acq_rel",
        file: "kgroups.rs",
        times: 1,
        why: "behind the claim of a place for tensor maps: blocks of one launch have different places",
    },
    Redundant { kernel: FAMILIES[7], what: "bar.warp.sync", file: "scales.rs", times: 1, why: OWN_COPIES },
    Redundant { kernel: FAMILIES[8], what: "bar.warp.sync", file: "scales.rs", times: 1, why: OWN_COPIES },
    Redundant { kernel: FAMILIES[8], what: "bar.warp.sync", file: "within.rs", times: 1, why: BEHIND_ROWS },
    Redundant { kernel: FAMILIES[8], what: "bar.warp.sync", file: "epilogue.rs", times: 1, why: BEHIND_FP32 },
    Redundant {
        kernel: FAMILIES[9],
        what: "wgmma.fence",
        file: "half_wide.rs",
        times: 1,
        why: BETWEEN_STAGES,
    },
];

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    // Mutants run under several schedules, whatever that of the device is.
    let limits = *simulator(common, "runs mutants")?.limits();
    let names: Vec<&str> = args.kernel.as_deref().map_or(FAMILIES.to_vec(), |name| vec![name]);
    let mut right = true;
    let (mut all, mut found) = (0, 0);
    for name in &names {
        let config = Config::all()
            .find(|config| config.name() == *name)
            .ok_or_else(|| format!("{name} is not a kernel: `oxigemm prebuild --list` names them"))?;
        let score = Score::of(config, &limits)?;
        score.print(common.json);
        right &= score.good();
        all += score.mutants();
        found += score.found();
    }
    if names.len() > 1 {
        if common.json {
            print_json(&json!({ "mutants": all, "found": found }));
        } else {
            print_line(&format!("{found} of {all} mutants found ({:.1}%)", percent(found, all)));
        }
    }
    Ok(right)
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// A problem and how it is launched.
#[derive(Clone)]
struct Case {
    work: Work,
    choice: Choice,
    num_sms: Option<u32>,
}

/// Problems that together execute every instruction of a kernel: more tiles than blocks, more blocks of K than
/// stages, every layout of scales, edges inside the rows of a warp.
fn cases(config: Config, limits: &Limits) -> Vec<Case> {
    let fits = |case: &Case| case.work.plan(Some(case.choice), limits).is_some();
    match config {
        Config::Transpose => transposed_cases(),
        Config::Wide(wide) if wide.d_in_slabs => batched_cases(wide),
        Config::Wide(wide) if wide.is_grouped() && wide.is_fused() => fused_grouped_cases(wide),
        Config::Wide(wide) if wide.is_grouped() => grouped_cases(wide),
        Config::Wide(wide) if wide.grouping == Grouping::K => k_grouped_cases(wide),
        Config::Wide(wide) if wide.is_fused() => fused_cases(wide),
        Config::Wide(wide) => {
            let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
            // Beyond the stages and beyond a group of scales, in fours: the copy engine brings all of those.
            let depth = (wide.stages as usize + 1).next_multiple_of(4).max(12) * 128 - 16;
            let padded =
                |m, n, k| Spec { sfa: ScaleOrder::RowPadded, ..Spec::of_family(config.family(), [m, n, k]) };
            let plain = padded(block_m / 2 + 2, 2 * block_n + 8, depth);
            let copied = Spec {
                m: block_m * 3 / 4 + 2,
                sfa: ScaleOrder::Odd,
                sfb: ScaleOrder::Odd,
                d_type: DType::F32,
                addend: AddendKind::Inplace,
                ..plain
            };
            // So short a K that scales are what the ring waits for.
            let short = padded(block_m / 2 + 2, 5 * block_n + 8, 100);
            let case = |spec, cluster_m, cluster_n, sms| Case {
                work: Work::Dense(spec),
                choice: Choice::Wide { config: wide, cluster_m, cluster_n },
                num_sms: Some(sms),
            };
            let mut cases = vec![
                case(plain, 1, 2, 2),
                case(Spec { sfa: ScaleOrder::Mn, ..plain }, 2, 1, 2),
                case(copied, 1, 1, 2),
                case(short, 1, 1, 1),
            ];
            if wide.scales_of_b == ScalesOfB::Rows {
                // FP32 by the copy engine, and scales that it brings; rows of D that it cannot address.
                let along = Spec { sfa: ScaleOrder::Mn, sfb: ScaleOrder::Mn, d_type: DType::F32, ..short };
                cases.push(case(along, 1, 1, 1));
                cases.push(case(Spec { addend: AddendKind::Inplace, ..along }, 2, 1, 2));
                cases.push(case(Spec { d_padding: 1, ..along }, 1, 1, 1));
            }
            cases
        }
        Config::HalfWide(wide) if wide.is_grouped() && wide.is_fused() => half_fused_grouped_cases(wide),
        Config::HalfWide(wide) if wide.is_grouped() => half_grouped_cases(wide),
        Config::HalfWide(wide) if wide.grouping == Grouping::K => half_k_grouped_cases(wide),
        Config::HalfWide(wide) if wide.is_fused() => half_fused_cases(wide),
        Config::HalfWide(wide) => {
            let (op, layout) = Op::of(config.family());
            let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
            let depth = (wide.stages as usize + 1) * 64 - 8;
            let plain = Spec::of(op, layout, [block_m / 2 + 2, block_n + 8, depth]);
            let wide_type = Spec { d_type: DType::F32, ..plain };
            let added = Spec { m: block_m * 3 / 4 + 2, addend: AddendKind::Inplace, ..wide_type };
            // Rows of D that the copy engine cannot address.
            let odd = Spec { d_padding: 1, addend: AddendKind::Other, ..plain };
            // So short a K that a tile's output is what the next one waits for.
            let short = Spec { m: block_m + 8, k: 40, ..plain };
            let case = |spec, cluster_m, cluster_n, sms| Case {
                work: Work::Dense(spec),
                choice: Choice::HalfWide { config: wide, cluster_m, cluster_n },
                num_sms: Some(sms),
            };
            vec![
                case(plain, 1, 2, 2),
                case(wide_type, 2, 1, 2),
                case(added, 1, 1, 1),
                case(odd, 1, 1, 1),
                case(short, 1, 1, 1),
                case(Spec { d_type: DType::F32, ..short }, 1, 1, 1),
            ]
        }
        Config::HalfSlim(slim) => {
            let (op, layout) = Op::of(config.family());
            let [block_m, block_n] = [slim.block_m, slim.block_n].map(|x| x as usize);
            let split = Spec {
                d_type: DType::F32,
                addend: AddendKind::Other,
                ..Spec::of(op, layout, [block_m + 5, block_n + 8, 1024])
            };
            let in_place = Spec { addend: AddendKind::Inplace, ..split };
            let plain = Spec::of(op, layout, [block_m, block_n, 17 * 64 + 40]);
            // Products whose stages a slice begins and ends among.
            let slabs = slim.summed.then_some(4);
            let [split, in_place, plain] = [split, in_place, plain].map(|spec| Spec { slabs, ..spec });
            let case = |spec, split, stages| Case {
                work: Work::Dense(spec),
                choice: Choice::HalfSlim { config: slim, split, stages },
                num_sms: None,
            };
            // As many stages as fit, all of them used again; and as few as there can be.
            let most = (2..=half_slim::MAX_STAGES).rev().map(|stages| case(plain, 1, stages)).find(fits);
            // Tall tiles are also written without a detour in every type.
            let direct = (block_m >= 64).then(|| case(split, 1, 2));
            most.into_iter().chain(direct).chain([case(split, 2, 2), case(in_place, 4, 2)]).collect()
        }
        Config::Slim(slim) => {
            let [block_m, block_n] = [slim.block_m, slim.block_n].map(|x| x as usize);
            let copied = Spec {
                sfa: ScaleOrder::Odd,
                sfb: ScaleOrder::Odd,
                d_type: DType::F32,
                addend: AddendKind::Other,
                ..Spec::of_family(config.family(), [block_m + 5, block_n + 8, 2048])
            };
            let in_place = Spec { sfa: ScaleOrder::Mn, addend: AddendKind::Inplace, ..copied };
            let plain = Spec {
                sfa: ScaleOrder::RowPadded,
                ..Spec::of_family(config.family(), [block_m, block_n, 4240])
            };
            let case = |spec, split, stages| Case {
                work: Work::Dense(spec),
                choice: Choice::Slim { config: slim, split, stages },
                num_sms: None,
            };
            // As many stages as fit, all of them used again; and as few as there can be.
            let most = (2..=fp8_slim::MAX_STAGES).rev().map(|stages| case(plain, 1, stages)).find(fits);
            // Tall tiles are also written without a detour in every type.
            let direct = (block_m >= 64).then(|| case(copied, 1, 2));
            let split = [case(copied, 2, 2), case(in_place, 4, 2)];
            most.into_iter().chain(direct).chain(split).collect()
        }
    }
}

/// The same where groups are along K: groups without any, of which a block comes by several, and more than it has maps.
fn k_grouped_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = (wide.stages as usize + 1).next_multiple_of(4).max(12) * 128 - 16;
    let case = |spec, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::KGrouped(spec),
        choice: Choice::Wide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let spec = |ks: &[usize], m, n| KGroupedSpec {
        scales: [ScaleOrder::Mn; 2],
        ..KGroupedSpec::new(KGroupedForm::FP8_NT, ks.to_vec(), m, n)
    };
    let deep = spec(&[depth, 0, 144], block_m / 2 + 2, block_n + 8);
    let copied = KGroupedSpec {
        scales: [ScaleOrder::Odd, ScaleOrder::Row],
        addend: AddendKind::Other,
        d_gaps: [1, 3],
        ..deep.clone()
    };
    let halves = KGroupedSpec { d_type: DType::Bf16, ..deep.clone() };
    let added = KGroupedSpec { addend: AddendKind::Inplace, ..deep.clone() };
    // So short a K that scales, maps or a tile's output are what is waited for.
    let short: Vec<usize> = (0..20).map(|i| [100, 16, 0, 130][i % 4]).collect();
    let short = spec(&short, block_m / 2 + 2, 24);
    vec![
        case(deep, [1, 2], 2),
        case(added, [2, 1], 2),
        case(halves, [1, 1], 2),
        case(copied, [1, 1], 2),
        case(short, [1, 1], 1),
    ]
}

/// The same of 16-bit operands, with groups of whole stages and others.
fn half_k_grouped_cases(wide: half_wide::Config) -> Vec<Case> {
    let form = KGroupedForm::of_family(Family::Half(wide.operands)).expect("every kernel has a form");
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = (wide.stages as usize + 1) * 64 - 8;
    let case = |spec, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::KGrouped(spec),
        choice: Choice::HalfWide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let spec = |ks: &[usize], m, n| KGroupedSpec::new(form, ks.to_vec(), m, n);
    let deep = spec(&[depth, 0, 64], block_m / 2 + 2, block_n + 8);
    let halves = KGroupedSpec { d_type: form.op.d_types()[1], ..deep.clone() };
    let added = KGroupedSpec { addend: AddendKind::Inplace, ..deep.clone() };
    // Rows of D that the copy engine cannot address.
    let odd = KGroupedSpec { addend: AddendKind::Other, d_gaps: [1, 3], ..halves.clone() };
    // So short a K that maps or a tile's output are what is waited for.
    let short: Vec<usize> = (0..20).map(|i| [100, 16, 0, 64][i % 4]).collect();
    let short = spec(&short, block_m / 2 + 2, 24);
    vec![
        case(deep, [1, 2], 2),
        case(added, [2, 1], 2),
        case(halves, [1, 1], 2),
        case(odd, [1, 1], 2),
        case(short, [1, 1], 1),
    ]
}

/// Operands that are transposed first, one and both, with edges in both directions.
fn transposed_cases() -> Vec<Case> {
    let choice = plan::parse("slim_8x64_k1_s2").expect("it is one of the set");
    let case =
        |layout, dims| Case { work: Work::Dense(Spec::of(Op::Fp8, layout, dims)), choice, num_sms: None };
    vec![case(GemmLayout::Nn, [3, 150, 200]), case(GemmLayout::Tn, [20, 40, 150])]
}

/// Rows of a tile, columns of two for every warpgroup, and a K that goes around the stages.
fn fused_extents(wide: &fp8_wide::Config) -> [usize; 3] {
    let depth = (wide.stages + 1).next_multiple_of(4).max(12) * 128 - 16;
    [wide.block_m, 2 * wide.fusion.sums() * 128, depth].map(|x| x as usize)
}

/// What a kernel does with sums that it rounds, and that it quantizes.
fn epilogues(fusion: Fusion) -> [EpilogueSpec; 2] {
    let rounded = EpilogueSpec {
        activation: Activation::Silu,
        gated: fusion == Fusion::Gated,
        bias: Some(DType::Bf16),
        ..EpilogueSpec::NONE
    };
    [rounded, EpilogueSpec { quantized: Some((ScaleOrder::Row, ScaleFormat::F32)), ..rounded }]
}

/// As [`cases`]: rounded and quantized output, of whole tiles and of parts, in one pass and in several.
fn fused_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, columns, depth] = fused_extents(&wide);
    let product = |k| Spec { sfa: ScaleOrder::RowPadded, ..Spec::new(block_m / 2 + 2, columns, k) };
    let [epilogue, quantized] = epilogues(wide.fusion);
    let case = |product, epilogue, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::Fused(FusedSpec { product, epilogue }),
        choice: Choice::Wide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let copied = Spec { sfa: ScaleOrder::Odd, sfb: ScaleOrder::Odd, d_type: DType::F32, ..product(depth) };
    // So short a K that a tile's output is what the next one waits for.
    let short = Spec { m: 2 * block_m, n: 2 * columns, ..product(100) };
    vec![
        case(product(depth), epilogue, [1, 2], 2),
        case(product(depth), quantized, [2, 1], 2),
        case(Spec { addend: AddendKind::Inplace, ..copied }, epilogue, [1, 1], 1),
        case(short, epilogue, [1, 1], 1),
        case(short, quantized, [1, 1], 1),
    ]
}

/// The same of 16-bit operands.
fn half_fused_cases(wide: half_wide::Config) -> Vec<Case> {
    let (op, layout) = Op::of(Family::Half(wide.operands));
    let [block_m, columns, depth] =
        [wide.block_m, 2 * wide.fusion.sums() * 128, (wide.stages + 1) * 64 - 8].map(|x| x as usize);
    let product = |k| Spec::of(op, layout, [block_m / 2 + 2, columns, k]);
    let [epilogue, quantized] = epilogues(wide.fusion).map(|epilogue| epilogue.beside(op));
    let case = |product, epilogue, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::Fused(FusedSpec { product, epilogue }),
        choice: Choice::HalfWide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let wide_type = Spec { d_type: DType::F32, addend: AddendKind::Inplace, ..product(depth) };
    // So short a K that a tile's output is what the next one waits for.
    let short = Spec { m: block_m + 8, ..product(40) };
    vec![
        case(product(depth), epilogue, [1, 2], 2),
        case(product(depth), quantized, [2, 1], 2),
        case(wide_type, epilogue, [1, 1], 1),
        case(short, epilogue, [1, 1], 1),
        case(short, quantized, [1, 1], 1),
    ]
}

/// The same where rows are grouped.
fn half_fused_grouped_cases(wide: half_wide::Config) -> Vec<Case> {
    let (op, layout) = Op::of(Family::Half(wide.operands));
    let [block_m, columns, depth] =
        [wide.block_m, 2 * wide.fusion.sums() * 128, (wide.stages + 1) * 64 - 8].map(|x| x as usize);
    let product = |groups, rows: &[usize], k| {
        let spec = GroupedSpec::new(groups, rows.to_vec(), columns, k).of(op, layout);
        GroupedSpec { alignment: if groups == GroupLayout::Counts { 1 } else { 16 }, ..spec }
    };
    let [epilogue, quantized] = epilogues(wide.fusion).map(|epilogue| epilogue.beside(op));
    let case = |product, epilogue, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::FusedGrouped(FusedGroupedSpec { product, epilogue }),
        choice: Choice::HalfWide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let rows = [block_m / 2 + 2, 0, block_m + 1];
    let added = product(GroupLayout::Ends, &rows[..2], depth);
    let added = GroupedSpec { d_type: DType::F32, addend: AddendKind::Inplace, ..added };
    // So short a K that a tile's output is what the next one waits for.
    let short = product(GroupLayout::Ends, &[block_m, 1, 17, 2], 40);
    vec![
        case(product(GroupLayout::Counts, &rows, depth), epilogue, [1, 2], 2),
        case(GroupedSpec { alignment: 1, ..product(GroupLayout::Ids, &rows, depth) }, quantized, [2, 1], 2),
        case(added, epilogue, [1, 1], 2),
        case(short.clone(), epilogue, [1, 1], 1),
        case(short, quantized, [1, 1], 1),
    ]
}

/// The same of FP8.
fn fused_grouped_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, columns, depth] = fused_extents(&wide);
    let rows = [block_m / 2 + 2, 0, block_m + 1];
    let product = |layout, rows: &[usize], k| {
        let spec = GroupedSpec::new(layout, rows.to_vec(), columns, k);
        GroupedSpec { alignment: if layout == GroupLayout::Counts { 1 } else { 16 }, ..spec }
    };
    let [epilogue, quantized] = epilogues(wide.fusion);
    let case = |product, epilogue, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::FusedGrouped(FusedGroupedSpec { product, epilogue }),
        choice: Choice::Wide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let masked = GroupedSpec { sfa: ScaleOrder::RowPadded, ..product(GroupLayout::Counts, &rows, depth) };
    let ids = product(GroupLayout::Ids, &rows, depth);
    let ids = GroupedSpec { sfa: ScaleOrder::Mn, alignment: 1, ..ids };
    let copied = product(GroupLayout::Ends, &rows[..2], depth);
    let copied =
        GroupedSpec { sfa: ScaleOrder::Odd, d_type: DType::F32, addend: AddendKind::Inplace, ..copied };
    // So short a K that a tile's output is what the next one waits for.
    let short = product(GroupLayout::Ends, &[block_m, 1, 17, 2], 100);
    vec![
        case(masked, epilogue, [1, 2], 2),
        case(ids, quantized, [2, 1], 2),
        case(copied, epilogue, [1, 1], 2),
        case(short.clone(), epilogue, [1, 1], 1),
        case(short, quantized, [1, 1], 1),
    ]
}

/// The same where rows are grouped: every layout of groups, and groups that end inside the rows of a warp, of a
/// warpgroup, and of a cluster.
fn grouped_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = (wide.stages as usize + 1).next_multiple_of(4).max(12) * 128 - 16;
    let case = |spec, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::Grouped(spec),
        choice: Choice::Wide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let spec = |layout, rows: &[usize], n, k| {
        let spec = GroupedSpec::new(layout, rows.to_vec(), n, k);
        GroupedSpec { alignment: if layout == GroupLayout::Counts { 1 } else { 16 }, ..spec }
    };
    let rows = [block_m / 2 + 2, 0, block_m + 1];
    let masked =
        GroupedSpec { sfa: ScaleOrder::RowPadded, ..spec(GroupLayout::Counts, &rows, block_n + 8, depth) };
    // So many rows to look at that several warps do.
    let ids = spec(GroupLayout::Ids, &rows, block_n + 8, depth);
    let ids = GroupedSpec { sfa: ScaleOrder::Mn, alignment: 1, ..ids };
    let copied = GroupedSpec {
        sfa: ScaleOrder::Odd,
        d_type: DType::F32,
        ..spec(GroupLayout::Ends, &rows[..2], 2 * block_n + 8, depth)
    };
    // So short a K that scales are what the ring waits for.
    let short = spec(GroupLayout::Ends, &[block_m, 1, 17, 2], 3 * block_n + 8, 100);
    vec![case(masked, [1, 2], 2), case(ids, [2, 1], 2), case(copied, [1, 1], 2), case(short, [1, 1], 1)]
}

/// The same of a batch: every way to D, for products that lie row beside row and one behind another.
fn batched_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = (wide.stages as usize + 1).next_multiple_of(4).max(12) * 128 - 16;
    let case = |spec, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::Grouped(spec),
        choice: Choice::Wide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let spec = |rows, products, n, k| GroupedSpec::new(GroupLayout::All, vec![rows; products], n, k);
    let beside = GroupedSpec { beside: true, ..spec(block_m + 1, 2, block_n + 8, depth) };
    let behind = GroupedSpec { sfa: ScaleOrder::Mn, ..spec(block_m / 2 + 2, 3, block_n + 8, depth) };
    let copied = GroupedSpec { sfa: ScaleOrder::Odd, d_type: DType::F32, d_padding: 3, ..behind.clone() };
    // So short a K that scales are what the ring waits for.
    let short = spec(block_m, 3, 3 * block_n + 8, 100);
    vec![case(beside, [1, 2], 2), case(behind, [2, 1], 2), case(copied, [1, 1], 2), case(short, [1, 1], 1)]
}

/// The same of 16-bit operands: every way to D, for rows that others follow and for those that none does.
fn half_grouped_cases(wide: half_wide::Config) -> Vec<Case> {
    let (op, layout) = Op::of(Config::HalfWide(wide).family());
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = (wide.stages as usize + 1) * 64 - 8;
    let case = |spec: GroupedSpec, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::Grouped(spec),
        choice: Choice::HalfWide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let rows = [block_m / 2 + 2, 0, block_m + 1];
    let spec = |groups, rows: &[usize], k| {
        let spec = GroupedSpec::new(groups, rows.to_vec(), block_n + 8, k).of(op, layout);
        GroupedSpec { alignment: if groups == GroupLayout::Counts { 1 } else { 16 }, ..spec }
    };
    let masked = spec(GroupLayout::Counts, &rows, depth);
    // So many rows to look at that several warps do.
    let ids = GroupedSpec { alignment: 1, d_type: DType::F32, ..spec(GroupLayout::Ids, &rows, depth) };
    let added = GroupedSpec { addend: AddendKind::Inplace, ..ids.clone() };
    let odd = spec(GroupLayout::Ends, &rows[..2], depth);
    let odd = GroupedSpec { d_padding: 1, addend: AddendKind::Other, ..odd };
    // So short a K that a tile's output is what the next one waits for.
    let short = spec(GroupLayout::Ends, &[block_m, 1, 17, 2], 40);
    vec![
        case(masked, [1, 2], 2),
        case(ids, [2, 1], 2),
        case(added, [1, 1], 1),
        case(odd, [1, 1], 1),
        case(short.clone(), [1, 1], 1),
        case(GroupedSpec { d_type: DType::F32, ..short }, [1, 1], 1),
    ]
}

/// Eager, lazy, and some random schedules.
fn schedules() -> impl Iterator<Item = Options> {
    let random = (0..4).map(|seed| (Policy::Random, seed));
    [(Policy::Eager, 0), (Policy::Lazy, 0)].into_iter().chain(random).map(|(policy, seed)| Options {
        policy,
        seed,
        instruction_limit: INSTRUCTION_LIMIT,
        ..Options::default()
    })
}

/// What the kernel itself does in a case.
struct Known {
    case: Case,
    /// How long it takes.
    instructions: u64,
    /// The lines of PTX that it executes.
    lines: Vec<u32>,
    bits: Vec<u8>,
}

impl Known {
    /// The kernel itself must be free of faults, or nothing could be said of its mutants.
    fn of(case: &Case) -> Result<Known, Failure> {
        let sim = Sim::new();
        let mut trial = Trial::new(case, &sim)?;
        let (mut instructions, mut lines, mut bits) = (0, Vec::new(), Vec::new());
        for schedule in schedules() {
            trial.run(&sim, schedule)??;
            let report = sim.last_report().ok_or("no kernel has run")?;
            (instructions, lines) = (report.instructions, report.lines);
            bits = trial.task.memory().to_bytes()?;
        }
        let verdict = trial.task.judge(Effort::QUICK)?;
        if !verdict.right {
            return Err(format!("{:?}: {verdict:?}", case.work).into());
        }
        Ok(Known { case: case.clone(), instructions, lines, bits })
    }

    fn executes(&self, mutant: &Mutant) -> bool {
        self.lines.binary_search(&mutant.line).is_ok()
    }
}

/// A case on a simulated device, to be run again and again.
struct Trial {
    task: Task,
    options: GemmOptions,
    /// D before the product.
    before: Vec<u8>,
}

impl Trial {
    fn new(case: &Case, sim: &Sim) -> Result<Trial, Failure> {
        let mut task = case.work.on(&Device::Sim(sim.clone()))?;
        let options = GemmOptions { choice: Some(case.choice), num_sms: case.num_sms, ..Default::default() };
        let before = task.memory().to_bytes()?;
        Ok(Trial { task, options, before })
    }

    fn run(&mut self, sim: &Sim, schedule: Options) -> Result<Result<(), Error>, Failure> {
        sim.set_options(schedule);
        self.task.memory().write_bytes(&self.before)?;
        Ok(self.task.run(&self.options))
    }

    /// What a schedule finds wrong, if anything.
    fn verdict(&mut self, sim: &Sim, schedule: Options, known: &Known) -> Result<Option<String>, Failure> {
        match self.run(sim, schedule)? {
            Err(Error::Fault { fault, .. }) => Ok(Some(format!("{:?}", fault.kind))),
            Err(error) => Err(error.into()),
            Ok(()) => Ok((self.task.memory().to_bytes()? != known.bits).then(|| "other bits".to_owned())),
        }
    }
}

/// What became of a mutant.
enum Fate {
    NotExecuted,
    Found(String),
    Survived,
}

/// Runs mutants of a kernel, one after another, until the queue is empty.
fn fates<'a>(
    config: Config,
    known: &[Known],
    queue: &Mutex<impl Iterator<Item = &'a Mutant>>,
    bar: &ProgressBar,
) -> Result<Vec<(&'a Mutant, Fate)>, Failure> {
    let sim = Sim::new();
    let mut trials = known
        .iter()
        .map(|known| Ok((known, Trial::new(&known.case, &sim)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut fates = Vec::new();
    let next = || queue.lock().expect("no thread panics with it").next();
    while let Some(mutant) = next() {
        sim.replace_kernel(config, &mutant.text)?;
        let mut fate = Fate::NotExecuted;
        'found: for schedule in schedules() {
            for (known, trial) in trials.iter_mut().filter(|(known, _)| known.executes(mutant)) {
                fate = match trial.verdict(&sim, schedule.clone(), known)? {
                    Some(kind) => Fate::Found(kind),
                    None => Fate::Survived,
                };
                if matches!(fate, Fate::Found(_)) {
                    break 'found;
                }
            }
        }
        fates.push((mutant, fate));
        bar.inc(1);
    }
    Ok(fates)
}

/// A mutant that nothing was found of.
struct Survivor {
    /// File and line of the kernel's source.
    source: String,
    line: u32,
    what: String,
    why: Option<&'static str>,
}

/// What became of the mutants of one kernel.
struct Score {
    kernel: String,
    /// How many were found, by what.
    kinds: BTreeMap<String, usize>,
    survivors: Vec<Survivor>,
    not_executed: usize,
}

impl Score {
    fn of(config: Config, limits: &Limits) -> Result<Score, Failure> {
        let text = config.build()?.text;
        let (mutants, sources) = (mutants(&text), sources(&text));
        // What is quickly done finds most of them: it comes first.
        let mut known = cases(config, limits).par_iter().map(Known::of).collect::<Result<Vec<_>, _>>()?;
        known.sort_by_key(|known| known.instructions);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
        let queue = Mutex::new(mutants.iter());
        let bar = progress(mutants.len());
        bar.set_message(config.name());
        let done = thread::scope(|scope| {
            let run = || fates(config, &known, &queue, &bar);
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            let join = |handle: thread::ScopedJoinHandle<'_, Result<Vec<_>, Failure>>| {
                handle.join().map_err(|_| Failure::from("a thread panicked"))?
            };
            handles.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        });
        bar.finish_and_clear();
        let mut score =
            Score { kernel: config.name(), kinds: BTreeMap::new(), survivors: Vec::new(), not_executed: 0 };
        for (mutant, fate) in done?.into_iter().flatten() {
            match fate {
                Fate::NotExecuted => score.not_executed += 1,
                Fate::Found(kind) => *score.kinds.entry(kind).or_default() += 1,
                Fate::Survived => score.survivors.push(Survivor {
                    source: sources[mutant.line as usize - 1].clone(),
                    line: mutant.line,
                    what: mutant.what.clone(),
                    why: None,
                }),
            }
        }
        score.survivors.sort_by(|a, b| (a.line, &a.what).cmp(&(b.line, &b.what)));
        score.explain();
        Ok(score)
    }

    /// Gives survivors the reasons that are known.
    fn explain(&mut self) {
        for known in REDUNDANT.iter().filter(|known| self.kernel == known.kernel) {
            let explained = |s: &&mut Survivor| {
                s.why.is_none() && s.what.contains(known.what) && s.source.starts_with(known.file)
            };
            self.survivors
                .iter_mut()
                .filter(explained)
                .take(known.times)
                .for_each(|s| s.why = Some(known.why));
        }
    }

    fn found(&self) -> usize {
        self.kinds.values().sum()
    }

    fn mutants(&self) -> usize {
        self.found() + self.survivors.len()
    }

    /// Enough were found, and of the others it is known why not.
    fn good(&self) -> bool {
        let share = self.found() as f64 / self.mutants().max(1) as f64;
        share >= BAR && self.not_executed == 0 && self.survivors.iter().all(|survivor| survivor.why.is_some())
    }

    fn print(&self, as_json: bool) {
        let (found, all) = (self.found(), self.mutants());
        if as_json {
            let survivors: Vec<_> = self
                .survivors
                .iter()
                .map(|s| json!({ "source": s.source, "ptx_line": s.line, "what": s.what, "why": s.why }))
                .collect();
            return print_json(&json!({
                "kernel": self.kernel, "mutants": all, "found": found, "survivors": survivors,
                "not_executed": self.not_executed, "kinds": self.kinds,
            }));
        }
        print_line(&format!("{}: {found} of {all} mutants found ({:.1}%)", self.kernel, percent(found, all)));
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        print_line(&format!("  by {}", kinds.join(", ")));
        if self.not_executed > 0 {
            print_line(&format!("  {} are of instructions that no case executes", self.not_executed));
        }
        for s in &self.survivors {
            let why = s.why.map_or("NOT EXPLAINED".to_owned(), |why| format!("redundant: {why}"));
            print_line(&format!("  survives: {}, PTX line {}: {}; {why}", s.source, s.line, s.what));
        }
    }
}

/// The line of the kernel's source for every line of PTX, by its `.loc` directives.
fn sources(text: &str) -> Vec<String> {
    let mut files = BTreeMap::new();
    let mut now = String::new();
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if let Some((number, path)) = line.strip_prefix(".file ").and_then(|rest| rest.split_once(' ')) {
            let name = path.trim_matches('"').rsplit('/').next().unwrap_or_default();
            files.insert(number, name);
        }
        if let Some(rest) = line.strip_prefix(".loc ") {
            let mut words = rest.split_whitespace();
            let file = words.next().and_then(|number| files.get(number)).copied().unwrap_or("?");
            now = format!("{file}:{}", words.next().unwrap_or("?"));
        }
        sources.push(now.clone());
    }
    sources
}
