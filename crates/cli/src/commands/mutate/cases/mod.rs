//! Cases that mutants of a kernel are run on.

mod fused;
mod grouped;

use oxigemm::plan::{self, GemmConfig, Limits};
use oxigemm::{DType, GemmLayout};
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::params::ScalesOfB;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;
use oxigemm_kernels::gemm::sm90::fp8_persistent;
use oxigemm_kernels::gemm::sm90::split_k;
use oxigemm_testkit::plan::{case_of, operands_of, plan};
use oxigemm_testkit::{AddendKind, FP8, GemmCase, Grouping as Groups, OperandTypes, ScaleOrder};

/// A GEMM and how it is launched.
#[derive(Clone)]
pub(super) struct Case {
    pub gemm: GemmCase,
    pub choice: GemmConfig,
    pub num_sms: Option<u32>,
}

/// A persistent kernel, as cases see it.
struct Persistent {
    types: OperandTypes,
    layout: GemmLayout,
    block_m: usize,
    block_n: usize,
    /// A K beyond the stages; of FP8 beyond a group of scales too, in fours of blocks: TMA brings all of those.
    depth: usize,
    /// So short a K that scales or a tile's output are what is waited for.
    short: usize,
    choice: Box<dyn Fn([u32; 2]) -> GemmConfig>,
}

impl Persistent {
    fn new(config: &GemmKernel) -> Option<Persistent> {
        let (types, layout) = operands_of(config);
        let (tile, depth, short, choice): (_, _, _, Box<dyn Fn([u32; 2]) -> GemmConfig>) = match *config {
            GemmKernel::Wide(config) => {
                let choice =
                    move |[cluster_m, cluster_n]: [u32; 2]| GemmConfig::Wide { config, cluster_m, cluster_n };
                ([config.block_m, config.block_n], fp8_depth(&config), 100, Box::new(choice))
            }
            GemmKernel::HalfWide(config) => {
                let choice = move |[cluster_m, cluster_n]: [u32; 2]| GemmConfig::HalfWide {
                    config,
                    cluster_m,
                    cluster_n,
                };
                let depth = (config.stages as usize + 1) * 64 - 8;
                ([config.block_m, config.block_n], depth, 40, Box::new(choice))
            }
            _ => return None,
        };
        let [block_m, block_n] = tile.map(|x| x as usize);
        Some(Persistent { types, layout, block_m, block_n, depth, short, choice })
    }

    /// A case in clusters on so many SMs.
    fn case(&self, gemm: GemmCase, cluster: [u32; 2], sms: u32) -> Case {
        Case { gemm, choice: (self.choice)(cluster), num_sms: Some(sms) }
    }
}

/// Cases that together execute every instruction of a kernel: more tiles than CTAs, more blocks of K than stages, every
/// layout of scales, edges inside the rows of a warp.
pub(super) fn cases(config: GemmKernel, limits: &Limits) -> Vec<Case> {
    let fits = |case: &Case| plan(&case.gemm, Some(case.choice), limits).is_some();
    if let Some(kernel) = Persistent::new(&config) {
        let (grouping, fused, dynamic) = match &config {
            GemmKernel::Wide(wide) => (wide.grouping, wide.is_fused(), wide.hands_out_tiles()),
            GemmKernel::HalfWide(wide) => (wide.grouping, wide.is_fused(), false),
            _ => (Grouping::Dense, false, false),
        };
        let grouped = grouping == Grouping::Rows;
        return match config {
            GemmKernel::Wide(wide) if wide.d_in_slabs => grouped::batched(&kernel),
            _ if grouped && fused => fused::m_grouped(&kernel, config.fusion()),
            _ if grouped => grouped::m_grouped(&kernel, dynamic),
            _ if grouping == Grouping::K => grouped::k_grouped(&kernel, &config),
            _ if fused => fused::dense(&kernel, config.fusion()),
            GemmKernel::Wide(wide) => fp8_dense(&kernel, &config, &wide),
            _ => half_dense(&kernel),
        };
    }
    match config {
        GemmKernel::HalfSlim(slim) if slim.is_fused() => {
            let choice = |split, stages| GemmConfig::HalfSlim { config: slim, split, stages };
            fused::split_k(&config, slim.block_m as usize, choice, fits)
        }
        GemmKernel::Slim(slim) if slim.is_fused() => {
            let choice = |split, stages| GemmConfig::Slim { config: slim, split, stages };
            fused::split_k(&config, slim.block_m as usize, choice, fits)
        }
        GemmKernel::HalfSlim(slim) => half_split_k(&config, slim, fits),
        GemmKernel::Slim(slim) => fp8_split_k(&config, slim, fits),
        _ => transposed(),
    }
}

/// Rows and columns of D that end inside a tile, in its last 64 rows, so that lanes of a warp that store in FP32
/// diverge; there is a tile more.
fn diverging([block_m, columns]: [usize; 2]) -> [usize; 2] {
    [2 * block_m - 61, columns - 8]
}

fn fp8_depth(wide: &fp8_persistent::Config) -> usize {
    let blocks = (wide.stages + 1).next_multiple_of(4).max(wide.scale_blocks() + 4);
    blocks as usize * 128 - 16
}

fn fp8_dense(kernel: &Persistent, config: &GemmKernel, wide: &fp8_persistent::Config) -> Vec<Case> {
    let (block_m, block_n) = (kernel.block_m, kernel.block_n);
    let padded = |m, n, k| GemmCase { sfa: ScaleOrder::RowPadded, ..case_of(config, [m, n, k]) };
    let plain = padded(block_m / 2 + 2, 2 * block_n + 8, kernel.depth);
    let [m, n] = diverging([block_m, block_n]);
    let copied = GemmCase {
        m,
        n,
        sfa: ScaleOrder::Odd,
        sfb: ScaleOrder::Odd,
        d_type: DType::F32,
        addend: AddendKind::Inplace,
        ..plain.clone()
    };
    let short = padded(block_m / 2 + 2, 5 * block_n + 8, kernel.short);
    // Two groups of scales, in serpentine K order.
    let serpentine = GemmCase {
        sfa: ScaleOrder::Mn,
        k: plain.k.next_multiple_of(wide.scale_blocks() as usize * 128),
        ..plain.clone()
    };
    let mut cases = vec![
        kernel.case(plain, [1, 2], 2),
        kernel.case(serpentine, [2, 1], 2),
        kernel.case(copied, [1, 1], 1),
        kernel.case(short.clone(), [1, 1], 1),
    ];
    if wide.shares_tail {
        // Three tiles for two clusters, and a K for which one is the stream-K peer of the other.
        let split = |m, n| GemmCase { k: 2048, ..padded(m, n, 0) };
        cases.push(kernel.case(split(2 * block_m + 8, block_n - 28), [1, 1], 2));
        let added = GemmCase { d_type: DType::F32, addend: AddendKind::Inplace, ..split(200, 3 * block_n) };
        cases.push(kernel.case(added, [1, 1], 2));
    }
    if wide.scales_of_b == ScalesOfB::Rows {
        // FP32 by TMA stores, and scales by TMA loads; rows of D that TMA cannot address.
        let along = GemmCase { sfa: ScaleOrder::Mn, sfb: ScaleOrder::Mn, d_type: DType::F32, ..short };
        cases.push(kernel.case(along.clone(), [1, 1], 1));
        cases.push(kernel.case(GemmCase { addend: AddendKind::Inplace, ..along.clone() }, [2, 1], 2));
        let odd = GemmCase { m: along.m + 1, n: along.n - 2, d_padding: 2, ..along.clone() };
        cases.push(kernel.case(odd, [1, 1], 1));
        // A single block of K behind those whose scales are written in twos, in a stage that was used before.
        let fours = wide.stages.next_multiple_of(4) as usize;
        let deeper = |more| GemmCase { k: (fours + more) * 128, ..along.clone() };
        cases.extend([1, 3].map(|more| kernel.case(deeper(more), [1, 1], 1)));
    }
    cases
}

fn half_dense(kernel: &Persistent) -> Vec<Case> {
    let (block_m, block_n) = (kernel.block_m, kernel.block_n);
    let plain = GemmCase::dense(kernel.types, kernel.layout, [block_m / 2 + 2, block_n + 8, kernel.depth]);
    let wide_type = GemmCase { d_type: DType::F32, ..plain.clone() };
    let added = GemmCase { m: block_m * 3 / 4 + 2, addend: AddendKind::Inplace, ..wide_type.clone() };
    // Rows of D that TMA cannot address, and lanes can in fours.
    let [m, n] = diverging([block_m, block_n]);
    let odd = GemmCase { m, n, d_padding: 4, addend: AddendKind::Other, ..plain.clone() };
    let short = GemmCase { m: block_m + 8, k: kernel.short, ..plain.clone() };
    vec![
        kernel.case(plain, [1, 2], 2),
        kernel.case(wide_type, [2, 1], 2),
        kernel.case(added, [1, 1], 1),
        kernel.case(odd, [1, 1], 1),
        kernel.case(short.clone(), [1, 1], 1),
        kernel.case(GemmCase { d_type: DType::F32, ..short }, [1, 1], 1),
    ]
}

fn half_split_k(config: &GemmKernel, slim: split_k::f16::Config, fits: impl Fn(&Case) -> bool) -> Vec<Case> {
    let (types, layout) = operands_of(config);
    let [block_m, block_n] = [slim.block_m, slim.block_n].map(|x| x as usize);
    let split = GemmCase {
        d_type: DType::F32,
        addend: AddendKind::Other,
        ..GemmCase::dense(types, layout, [block_m + 5, block_n + 8, 1024])
    };
    let in_place = GemmCase { addend: AddendKind::Inplace, ..split.clone() };
    let plain = GemmCase::dense(types, layout, [block_m, block_n, 17 * 64 + 40]);
    // GEMMs whose stages a split begins and ends among.
    let grouping = if slim.summed { Groups::Summed(4) } else { Groups::Dense };
    let with = |gemm: GemmCase| GemmCase { grouping: grouping.clone(), ..gemm };
    let [split, in_place, plain] = [split, in_place, plain].map(with);
    let choice = |split, stages| GemmConfig::HalfSlim { config: slim, split, stages };
    split_k([plain, split, in_place], block_m, split_k::f16::MAX_STAGES, choice, fits)
}

fn fp8_split_k(config: &GemmKernel, slim: split_k::fp8::Config, fits: impl Fn(&Case) -> bool) -> Vec<Case> {
    let [block_m, block_n] = [slim.block_m, slim.block_n].map(|x| x as usize);
    let copied = GemmCase {
        sfa: ScaleOrder::Odd,
        sfb: ScaleOrder::Odd,
        d_type: DType::F32,
        addend: AddendKind::Other,
        ..case_of(config, [block_m + 5, block_n + 8, 2048])
    };
    let in_place = GemmCase { sfa: ScaleOrder::Mn, addend: AddendKind::Inplace, ..copied.clone() };
    let plain = GemmCase { sfa: ScaleOrder::RowPadded, ..case_of(config, [block_m, block_n, 4240]) };
    let choice = |split, stages| GemmConfig::Slim { config: slim, split, stages };
    split_k([plain, copied, in_place], block_m, split_k::fp8::MAX_STAGES, choice, fits)
}

/// A split-K kernel unsplit with as many stages as fit, all of them used again; and split, with as few as there can be.
fn split_k(
    [plain, split, in_place]: [GemmCase; 3],
    block_m: usize,
    max_stages: u32,
    choice: impl Fn(u32, u32) -> GemmConfig,
    fits: impl Fn(&Case) -> bool,
) -> Vec<Case> {
    let case = |gemm: &GemmCase, split, stages| Case {
        gemm: gemm.clone(),
        choice: choice(split, stages),
        num_sms: None,
    };
    let most = (2..=max_stages).rev().map(|stages| case(&plain, 1, stages)).find(fits);
    // Tall tiles are also stored directly in every type.
    let direct = (block_m >= 64).then(|| case(&split, 1, 2));
    most.into_iter().chain(direct).chain([case(&split, 2, 2), case(&in_place, 4, 2)]).collect()
}

/// Operands that are transposed first, one and both, with edges in both directions.
fn transposed() -> Vec<Case> {
    let choice = plan::parse("sm90_fp8_split_k_8x64_k1_s2").expect("it is one of the set");
    let case = |layout, dims| Case { gemm: GemmCase::dense(FP8, layout, dims), choice, num_sms: None };
    vec![case(GemmLayout::Nn, [3, 150, 200]), case(GemmLayout::Tn, [20, 40, 150])]
}
