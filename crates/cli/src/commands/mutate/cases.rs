//! What mutants of a kernel are run on.

use oxigemm::cast::ScaleFormat;
use oxigemm::plan::{self, Choice, Family, Limits};
use oxigemm::{Activation, DType, GemmLayout};
use oxigemm_kernels::epilogue::fused::Fusion;
use oxigemm_kernels::grouping::{GroupLayout, Grouping};
use oxigemm_kernels::launch::Config;
use oxigemm_kernels::params::ScalesOfB;
use oxigemm_kernels::{fp8_slim, fp8_wide, half_slim, half_wide};

use crate::Op;
use crate::fused::{EpilogueSpec, FusedSpec};
use crate::fused_grouped::FusedGroupedSpec;
use crate::grouped::GroupedSpec;
use crate::kgrouped::{KGroupedForm, KGroupedSpec};
use crate::problem::{AddendKind, ScaleOrder, Spec};
use crate::task::Work;

/// A problem and how it is launched.
#[derive(Clone)]
pub(super) struct Case {
    pub work: Work,
    pub choice: Choice,
    pub num_sms: Option<u32>,
}

/// Problems that together execute every instruction of a kernel: more tiles than blocks, more blocks of K than
/// stages, every layout of scales, edges inside the rows of a warp.
pub(super) fn cases(config: Config, limits: &Limits) -> Vec<Case> {
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
            let depth = depth(&wide);
            let padded =
                |m, n, k| Spec { sfa: ScaleOrder::RowPadded, ..Spec::of_family(config.family(), [m, n, k]) };
            let plain = padded(block_m / 2 + 2, 2 * block_n + 8, depth);
            let [m, n] = parting([block_m, block_n]);
            let copied = Spec {
                m,
                n,
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
            // Two groups of scales, which every other tile takes from the end.
            let turning = Spec {
                sfa: ScaleOrder::Mn,
                k: plain.k.next_multiple_of(wide.scale_blocks() as usize * 128),
                ..plain
            };
            let mut cases = vec![
                case(plain, 1, 2, 2),
                case(turning, 2, 1, 2),
                case(copied, 1, 1, 1),
                case(short, 1, 1, 1),
            ];
            if wide.shares_tail {
                // Three tiles for two clusters, and a K for which one helps the other.
                let shared = |m, n| Spec { k: 2048, ..padded(m, n, 0) };
                cases.push(case(shared(2 * block_m + 8, block_n - 28), 1, 1, 2));
                let added =
                    Spec { d_type: DType::F32, addend: AddendKind::Inplace, ..shared(200, 3 * block_n) };
                cases.push(case(added, 1, 1, 2));
            }
            if wide.scales_of_b == ScalesOfB::Rows {
                // FP32 by the copy engine, and scales that it brings; rows of D that it cannot address.
                let along = Spec { sfa: ScaleOrder::Mn, sfb: ScaleOrder::Mn, d_type: DType::F32, ..short };
                cases.push(case(along, 1, 1, 1));
                cases.push(case(Spec { addend: AddendKind::Inplace, ..along }, 2, 1, 2));
                let odd = Spec { m: along.m + 1, n: along.n - 2, d_padding: 2, ..along };
                cases.push(case(odd, 1, 1, 1));
                // A single block of K behind those whose scales are written in twos, in a stage that was used before.
                let fours = wide.stages.next_multiple_of(4) as usize;
                cases.extend([1, 3].map(|more| case(Spec { k: (fours + more) * 128, ..along }, 1, 1, 1)));
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
            // Rows of D that the copy engine cannot address, and lanes can in fours.
            let [m, n] = parting([block_m, block_n]);
            let odd = Spec { m, n, d_padding: 4, addend: AddendKind::Other, ..plain };
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
        Config::HalfSlim(slim) if slim.is_fused() => {
            let choice = |split, stages| Choice::HalfSlim { config: slim, split, stages };
            slim_fused_cases(config, slim.block_m as usize, choice, fits)
        }
        Config::Slim(slim) if slim.is_fused() => {
            let choice = |split, stages| Choice::Slim { config: slim, split, stages };
            slim_fused_cases(config, slim.block_m as usize, choice, fits)
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

/// Rows and columns of D that end inside a tile, in its last 64 rows, so that lanes of a warp that store in FP32 part; there is
/// a tile more.
fn parting([block_m, columns]: [usize; 2]) -> [usize; 2] {
    [2 * block_m - 61, columns - 8]
}

/// The same where groups are along K: groups without any, of which a block comes by several, and more than it has maps.
fn k_grouped_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = depth(&wide);
    let case = |spec, [cluster_m, cluster_n]: [u32; 2], sms| Case {
        work: Work::KGrouped(spec),
        choice: Choice::Wide { config: wide, cluster_m, cluster_n },
        num_sms: Some(sms),
    };
    let spec = |ks: &[usize], m, n| KGroupedSpec {
        scales: [ScaleOrder::Mn; 2],
        ..KGroupedSpec::new(KGroupedForm::FP8_NT, ks.to_vec(), m, n)
    };
    let deep = spec(&[depth, 0, 272], block_m / 2 + 2, block_n + 8);
    // Lanes part at the last columns; a tile of the next group follows.
    let copied = KGroupedSpec {
        n: block_n - 8,
        scales: [ScaleOrder::Odd, ScaleOrder::Row],
        addend: AddendKind::Other,
        d_gaps: [4, 8],
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
        case(copied, [1, 1], 1),
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

/// A K beyond the stages and beyond a group of scales, in fours of blocks: the copy engine brings all of those.
fn depth(wide: &fp8_wide::Config) -> usize {
    let blocks = (wide.stages + 1).next_multiple_of(4).max(wide.scale_blocks() + 4);
    blocks as usize * 128 - 16
}

/// Rows of a tile, columns of two for every warpgroup, and a K that goes around the stages.
fn fused_extents(wide: &fp8_wide::Config) -> [usize; 3] {
    let [m, n] = [wide.block_m, 2 * wide.fusion.sums() * 128].map(|x| x as usize);
    [m, n, depth(wide)]
}

/// As [`parting`], for sums that are finished: rows of A and of B, whose gates are multiples of 128.
fn fused_parting(wide: &fp8_wide::Config) -> [usize; 2] {
    let [m, n] = parting([wide.block_m as usize, 128]);
    [m, if wide.fusion == Fusion::Gated { 2 * 128 } else { n }]
}

/// The same of 16-bit operands, whose gates are any.
fn half_fused_parting(wide: &half_wide::Config) -> [usize; 2] {
    let [m, n] = parting([wide.block_m as usize, 128]);
    [m, n * wide.fusion.sums() as usize]
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
    let [m, n] = fused_parting(&wide);
    let copied = Spec {
        m,
        n,
        sfa: ScaleOrder::Odd,
        sfb: ScaleOrder::Odd,
        d_type: DType::F32,
        addend: AddendKind::Inplace,
        ..product(depth)
    };
    // So short a K that a tile's output is what the next one waits for.
    let short = Spec { m: 2 * block_m, n: 2 * columns, ..product(100) };
    let choice = |[cluster_m, cluster_n]: [u32; 2]| Choice::Wide { config: wide, cluster_m, cluster_n };
    finished([product(depth), copied, short], epilogues(wide.fusion), choice)
}

/// A deep product in clusters, one that lanes store, and one whose K is short, with sums rounded and quantized.
fn finished(
    [deep, copied, short]: [Spec; 3],
    [rounded, quantized]: [EpilogueSpec; 2],
    choice: impl Fn([u32; 2]) -> Choice,
) -> Vec<Case> {
    let case = |product, epilogue, cluster, sms| Case {
        work: Work::Fused(FusedSpec { product, epilogue }),
        choice: choice(cluster),
        num_sms: Some(sms),
    };
    vec![
        case(deep, rounded, [1, 2], 2),
        case(deep, quantized, [2, 1], 2),
        case(copied, rounded, [1, 1], 1),
        case(short, rounded, [1, 1], 1),
        case(short, quantized, [1, 1], 1),
    ]
}

/// As [`fused_cases`], of few rows: with K split and not, rounded and quantized, and as lanes store it one by one.
fn slim_fused_cases(
    config: Config,
    block_m: usize,
    choice: impl Fn(u32, u32) -> Choice,
    fits: impl Fn(&Case) -> bool,
) -> Vec<Case> {
    let (op, layout) = Op::of(config.family());
    let [rounded, quantized] = epilogues(config.fusion()).map(|epilogue| epilogue.beside(op));
    // Columns that end inside a tile, where that is allowed, and a K that goes around all rings.
    let columns = if config.family() == Family::Fp8 && config.fusion() == Fusion::Gated { 128 } else { 112 };
    let product = |m| {
        let (n, k) =
            (columns * config.fusion().sums() as usize, 33 * config.family().block_k() as usize + 16);
        let dims = [m, n, k];
        Spec { sfa: ScaleOrder::RowPadded, ..Spec::of(op, layout, dims) }
    };
    let copied = Spec { sfa: ScaleOrder::Odd, sfb: ScaleOrder::Odd, ..product(block_m + 5) };
    let added = Spec { d_type: DType::F32, addend: AddendKind::Inplace, ..copied };
    let case = |product, epilogue, split, stages| Case {
        work: Work::Fused(FusedSpec { product, epilogue }),
        choice: choice(split, stages),
        num_sms: None,
    };
    // As many stages as fit, all of them used again; and as few as there can be.
    let stages = (2..=half_slim::MAX_STAGES).rev();
    let most = stages.map(|stages| case(product(block_m), rounded, 1, stages)).find(fits);
    let few =
        [case(product(block_m), quantized, 2, 2), case(copied, quantized, 4, 2), case(added, rounded, 2, 2)];
    most.into_iter().chain(few).collect()
}

/// As [`fused_extents`], of 16-bit operands.
fn half_fused_extents(wide: &half_wide::Config) -> [usize; 3] {
    [wide.block_m, 2 * wide.fusion.sums() * 128, (wide.stages + 1) * 64 - 8].map(|x| x as usize)
}

/// As [`fused_cases`], of 16-bit operands.
fn half_fused_cases(wide: half_wide::Config) -> Vec<Case> {
    let (op, layout) = Op::of(Family::Half(wide.operands));
    let [block_m, columns, depth] = half_fused_extents(&wide);
    let product = |k| Spec::of(op, layout, [block_m / 2 + 2, columns, k]);
    let [m, n] = half_fused_parting(&wide);
    let wide_type = Spec { m, n, d_type: DType::F32, addend: AddendKind::Inplace, ..product(depth) };
    // So short a K that a tile's output is what the next one waits for.
    let short = Spec { m: block_m + 8, ..product(40) };
    let choice = |[cluster_m, cluster_n]: [u32; 2]| Choice::HalfWide { config: wide, cluster_m, cluster_n };
    let epilogues = epilogues(wide.fusion).map(|epilogue| epilogue.beside(op));
    finished([product(depth), wide_type, short], epilogues, choice)
}

/// The same where rows are grouped.
fn half_fused_grouped_cases(wide: half_wide::Config) -> Vec<Case> {
    let (op, layout) = Op::of(Family::Half(wide.operands));
    let [block_m, columns, depth] = half_fused_extents(&wide);
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
    let [m, n] = half_fused_parting(&wide);
    let added = product(GroupLayout::Ends, &[m, 0], depth);
    let added = GroupedSpec { n, d_type: DType::F32, addend: AddendKind::Inplace, ..added };
    // So short a K that a tile's output is what the next one waits for.
    let short = product(GroupLayout::Ends, &[block_m, 1, 17, 2], 40);
    vec![
        case(product(GroupLayout::Counts, &rows, depth), epilogue, [1, 2], 2),
        case(GroupedSpec { alignment: 1, ..product(GroupLayout::Ids, &rows, depth) }, quantized, [2, 1], 2),
        case(added, epilogue, [1, 1], 1),
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
    let [m, n] = fused_parting(&wide);
    let copied = product(GroupLayout::Ends, &[m, 0], depth);
    let copied =
        GroupedSpec { n, sfa: ScaleOrder::Odd, d_type: DType::F32, addend: AddendKind::Inplace, ..copied };
    // So short a K that a tile's output is what the next one waits for.
    let short = product(GroupLayout::Ends, &[block_m, 1, 17, 2], 100);
    vec![
        case(masked, epilogue, [1, 2], 2),
        case(ids, quantized, [2, 1], 2),
        case(copied, epilogue, [1, 1], 1),
        case(short.clone(), epilogue, [1, 1], 1),
        case(short, quantized, [1, 1], 1),
    ]
}

/// The same where rows are grouped: every layout of groups, and groups that end inside the rows of a warp, of a
/// warpgroup, and of a cluster.
fn grouped_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = depth(&wide);
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
    let mut cases =
        vec![case(masked, [1, 2], 2), case(ids, [2, 1], 2), case(copied, [1, 1], 2), case(short, [1, 1], 1)];
    if wide.hands_out_tiles() {
        // So many for a cluster that what tells of them goes round; lanes that store in FP32 part.
        let rows = [block_m - 61, 1, block_m / 2 - 3, 17, block_m / 2 + 2];
        let many = spec(GroupLayout::Ends, &rows, 4 * block_n + 8, 100);
        let wide_type = GroupedSpec { d_type: DType::F32, ..many.clone() };
        cases.extend([case(many, [1, 2], 2), case(wide_type, [1, 1], 1)]);
    }
    cases
}

/// The same of a batch: every way to D, for products that lie row beside row and one behind another.
fn batched_cases(wide: fp8_wide::Config) -> Vec<Case> {
    let [block_m, block_n] = [wide.block_m, wide.block_n].map(|x| x as usize);
    let depth = depth(&wide);
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
