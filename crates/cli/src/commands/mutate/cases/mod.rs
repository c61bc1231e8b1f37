//! Cases that mutants of a kernel are run on.

mod fused;
mod grouped;

use oxigemm::plan::{self, GemmConfig, Limits};
use oxigemm::{DType, GemmLayout};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::params::ScalesOfB;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;
use oxigemm_kernels::gemm::sm90::{self, fp8_persistent};
use oxigemm_testkit::plan::{case_of, operands_of, plan};
use oxigemm_testkit::{AddendKind, FP8, GemmCase, Grouping as Groups, OperandTypes, ScaleOrder};

/// A GEMM and how it is launched.
#[derive(Clone)]
pub(super) struct Case {
    pub gemm: GemmCase,
    pub config: GemmConfig,
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
    kernel: GemmKernel,
    /// Configuration of an FP8 kernel.
    fp8: Option<fp8_persistent::Config>,
}

impl Persistent {
    fn new(kernel: GemmKernel) -> Option<Persistent> {
        if kernel.is_split_k() {
            return None;
        }
        let (types, layout) = operands_of(&kernel);
        let fp8 = match kernel {
            GemmKernel::Sm90(sm90::Kernel::Fp8Persistent(config)) => Some(config),
            GemmKernel::Sm90(_) | GemmKernel::Sm100(_) => None,
        };
        let stages = *kernel.stages().start() as usize;
        let (depth, short) = match &fp8 {
            Some(config) => (fp8_depth(config), 100),
            // An odd number of stages, of which the last has scales for a part: they are loaded for two at a time.
            None if types.has_scales() => ((stages | 1) * 128 + 80, 100),
            None => ((stages + 1) * 64 - 8, 40),
        };
        let [block_m, block_n] = kernel.tile().map(|x| x as usize);
        Some(Persistent { types, layout, block_m, block_n, depth, short, kernel, fp8 })
    }

    /// A case in clusters on so many SMs.
    fn case(&self, gemm: GemmCase, cluster: [u32; 2], sms: u32) -> Case {
        let config = GemmConfig { cluster, ..GemmConfig::of(self.kernel) };
        Case { gemm, config, num_sms: (!config.covers_d()).then_some(sms) }
    }
}

/// Cases that together execute every instruction of a kernel: more tiles than CTAs, more blocks of K than stages, every
/// layout of scales, edges inside the rows of a warp.
pub(super) fn cases(id: KernelId, limits: &Limits) -> Vec<Case> {
    let KernelId::Gemm(kernel) = id else { return transposed() };
    let fits = |case: &Case| plan(&case.gemm, Some(case.config), limits).is_some();
    let fused = kernel.fusion() != Fusion::None;
    if let Some(persistent) = Persistent::new(kernel) {
        let dynamic = GemmConfig::of(kernel).has_dynamic_scheduler();
        return match kernel.grouping() {
            Grouping::Rows if kernel.is_batched() => grouped::batched(&persistent),
            Grouping::Rows if fused => fused::m_grouped(&persistent, kernel.fusion()),
            Grouping::Rows => grouped::m_grouped(&persistent, dynamic),
            Grouping::K => grouped::k_grouped(&persistent, &kernel),
            Grouping::Dense if fused => fused::dense(&persistent, kernel.fusion()),
            Grouping::Dense => match &persistent.fp8 {
                Some(config) => fp8_dense(&persistent, &kernel, config),
                None if persistent.types.has_scales() => scales32_dense(&persistent),
                None => half_dense(&persistent),
            },
        };
    }
    match kernel.operands().is_fp8() {
        _ if fused => fused::split_k(&kernel, fits),
        true => fp8_split_k(&kernel, fits),
        false => half_split_k(&kernel, fits),
    }
}

/// Rows and columns of D that end inside a tile, in its last 64 rows, so that lanes of a warp that store in FP32
/// diverge; there is a tile more.
fn diverging([block_m, columns]: [usize; 2]) -> [usize; 2] {
    [2 * block_m - 61, columns - 8]
}

fn fp8_depth(config: &fp8_persistent::Config) -> usize {
    let blocks = (config.stages + 1).next_multiple_of(4).max(config.scale_blocks() + 4);
    blocks as usize * 128 - 16
}

fn fp8_dense(kernel: &Persistent, id: &GemmKernel, config: &fp8_persistent::Config) -> Vec<Case> {
    let (block_m, block_n) = (kernel.block_m, kernel.block_n);
    let padded = |m, n, k| GemmCase { sfa: ScaleOrder::RowPadded, ..case_of(id, [m, n, k]) };
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
        k: plain.k.next_multiple_of(config.scale_blocks() as usize * 128),
        ..plain.clone()
    };
    let mut cases = vec![
        kernel.case(plain, [1, 2], 2),
        kernel.case(serpentine, [2, 1], 2),
        kernel.case(copied, [1, 1], 1),
        kernel.case(short.clone(), [1, 1], 1),
    ];
    if config.stream_k {
        // Three tiles for two clusters, and a K for which one is the stream-K peer of the other.
        let split = |m, n| GemmCase { k: 2048, ..padded(m, n, 0) };
        cases.push(kernel.case(split(2 * block_m + 8, block_n - 28), [1, 1], 2));
        let added = GemmCase { d_type: DType::F32, addend: AddendKind::Inplace, ..split(200, 3 * block_n) };
        cases.push(kernel.case(added, [1, 1], 2));
    }
    if config.scales_of_b == ScalesOfB::Rows {
        // FP32 by TMA stores, and scales by TMA loads; rows of D that TMA cannot address.
        let along = GemmCase { sfa: ScaleOrder::Mn, sfb: ScaleOrder::Mn, d_type: DType::F32, ..short };
        cases.push(kernel.case(along.clone(), [1, 1], 1));
        cases.push(kernel.case(GemmCase { addend: AddendKind::Inplace, ..along.clone() }, [2, 1], 2));
        let odd = GemmCase { m: along.m + 1, n: along.n - 2, d_padding: 2, ..along.clone() };
        cases.push(kernel.case(odd, [1, 1], 1));
        // A single block of K behind those whose scales are written in twos, in a stage that was used before.
        let fours = config.stages.next_multiple_of(4) as usize;
        let deeper = |more| GemmCase { k: (fours + more) * 128, ..along.clone() };
        cases.extend([1, 3].map(|more| kernel.case(deeper(more), [1, 1], 1)));
    }
    cases
}

/// The ways to D of 16-bit operands, with every layout of scales.
fn scales32_dense(kernel: &Persistent) -> Vec<Case> {
    let orders = [ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::Odd];
    let mut cases = half_dense(kernel);
    for (case, order) in cases.iter_mut().zip(orders.into_iter().cycle()) {
        (case.gemm.sfa, case.gemm.sfb) = (order, order);
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
    let mut cases = vec![
        kernel.case(plain.clone(), [1, 2], 2),
        kernel.case(wide_type.clone(), [2, 1], 2),
        kernel.case(added, [1, 1], 1),
        kernel.case(odd, [1, 1], 1),
        kernel.case(short.clone(), [1, 1], 1),
        kernel.case(GemmCase { d_type: DType::F32, ..short }, [1, 1], 1),
    ];
    if kernel.kernel.spec().is_stream_k() {
        // As of FP8; and a whole tile of each block before its part.
        let split = |m, n, of: &GemmCase| GemmCase { m, n, k: 1024, ..of.clone() };
        cases.push(kernel.case(split(2 * block_m + 8, block_n - 28, &plain), [1, 1], 2));
        cases.push(kernel.case(split(100, 3 * block_n, &wide_type), [1, 1], 2));
    }
    cases
}

fn half_split_k(kernel: &GemmKernel, fits: impl Fn(&Case) -> bool) -> Vec<Case> {
    let (types, layout) = operands_of(kernel);
    let [block_m, block_n] = kernel.tile().map(|x| x as usize);
    let split = GemmCase {
        d_type: DType::F32,
        addend: AddendKind::Other,
        ..GemmCase::dense(types, layout, [block_m + 5, block_n + 8, 1024])
    };
    let in_place = GemmCase { addend: AddendKind::Inplace, ..split.clone() };
    let plain = GemmCase::dense(types, layout, [block_m, block_n, 17 * 64 + 40]);
    // GEMMs whose stages a split begins and ends among.
    let grouping = if kernel.is_summed() { Groups::Summed(4) } else { Groups::Dense };
    let with = |gemm: GemmCase| GemmCase { grouping: grouping.clone(), ..gemm };
    split_k(kernel, [plain, split, in_place].map(with), fits)
}

fn fp8_split_k(kernel: &GemmKernel, fits: impl Fn(&Case) -> bool) -> Vec<Case> {
    let [block_m, block_n] = kernel.tile().map(|x| x as usize);
    let copied = GemmCase {
        sfa: ScaleOrder::Odd,
        sfb: ScaleOrder::Odd,
        d_type: DType::F32,
        addend: AddendKind::Other,
        ..case_of(kernel, [block_m + 5, block_n + 8, 2048])
    };
    let in_place = GemmCase { sfa: ScaleOrder::Mn, addend: AddendKind::Inplace, ..copied.clone() };
    let plain = GemmCase { sfa: ScaleOrder::RowPadded, ..case_of(kernel, [block_m, block_n, 4240]) };
    split_k(kernel, [plain, copied, in_place], fits)
}

/// A case of a split-K kernel.
fn split_case(kernel: GemmKernel, gemm: GemmCase, split_k: u32, stages: u32) -> Case {
    Case { gemm, config: GemmConfig { split_k, stages, ..GemmConfig::of(kernel) }, num_sms: None }
}

/// A split-K kernel unsplit with as many stages as fit, all of them used again; and split, with as few as there can be.
fn split_k(
    kernel: &GemmKernel,
    [plain, split, in_place]: [GemmCase; 3],
    fits: impl Fn(&Case) -> bool,
) -> Vec<Case> {
    let case = |gemm: &GemmCase, split, stages| split_case(*kernel, gemm.clone(), split, stages);
    let most = kernel.stages().rev().map(|stages| case(&plain, 1, stages)).find(fits);
    // Tall tiles are also stored directly in every type.
    let direct = (kernel.tile()[0] >= 64).then(|| case(&split, 1, 2));
    most.into_iter().chain(direct).chain([case(&split, 2, 2), case(&in_place, 4, 2)]).collect()
}

/// Operands that are transposed first, one and both, with edges in both directions.
fn transposed() -> Vec<Case> {
    let config = plan::parse("sm90_fp8_split_k_8x64_k1_s2").expect("it is one of the set");
    let case = |layout, dims| Case { gemm: GemmCase::dense(FP8, layout, dims), config, num_sms: None };
    vec![case(GemmLayout::Nn, [3, 150, 200]), case(GemmLayout::Tn, [20, 40, 150])]
}
