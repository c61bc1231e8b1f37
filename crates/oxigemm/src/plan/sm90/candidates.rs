//! Candidates: which configurations are worth an estimate for a request.

use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;

use super::super::{GemmConfig, Limits, PlanRequest, PlanShape};

/// Split-K kernels are considered with so many stages that this many blocks share an SM.
const BLOCKS_PER_SM: std::ops::RangeInclusive<u32> = 1..=4;

/// Clusters that persistent kernels are considered with: all; those along N where the tiles are the largest, and so wait
/// for the tensor cores and not for the slower of two blocks, and for groups of 16-bit rows; none.
const CLUSTERS: [[u32; 2]; 3] = [[1, 1], [1, 2], [2, 1]];
const ALONG_N: [[u32; 2]; 2] = [[1, 1], [1, 2]];
const NO_CLUSTER: [[u32; 2]; 1] = [[1, 1]];

/// Every configuration that is worth an estimate, in a fixed order, whether it fits the device or not.
pub(in crate::plan) fn candidates(request: &PlanRequest, limits: &Limits) -> Vec<GemmConfig> {
    let kernels =
        GemmKernel::all(Arch::Sm90a).filter(|kernel| request.is_for(kernel) && suits(kernel, request));
    let all: Vec<GemmConfig> = kernels.flat_map(|kernel| configs(kernel, request, limits)).collect();
    // The grid of a split-K kernel covers D, and cannot be held back to some SMs.
    if !limits.restricted && is_small(request) && all.iter().any(GemmConfig::is_split_k) {
        return all.into_iter().filter(GemmConfig::is_split_k).collect();
    }
    all
}

/// Whether split-K kernels alone are worth an estimate, where there are some: few rows, and no more columns than a few
/// waves of theirs have. (A sweep over layers of models lost 0.2%; estimates of the two kinds differ by more.)
fn is_small(request: &PlanRequest) -> bool {
    const ROWS: u32 = 64;
    const COLUMNS: u32 = 40_000;
    let PlanShape::Dense(shape) = request.shape else { return false };
    request.fusion == Fusion::None && shape.m <= ROWS && shape.n <= COLUMNS
}

/// The configurations of a kernel.
fn configs(kernel: GemmKernel, request: &PlanRequest, limits: &Limits) -> Vec<GemmConfig> {
    if !kernel.is_split_k() {
        return clusters(&kernel).iter().flat_map(|cluster| kernel.with_clusters([*cluster])).collect();
    }
    let k_blocks = request.operands.k_blocks(request.shape.gemm(request.operands).k);
    // Splits without a K block would be idle. The K of a summed batch is long, and no split is left out.
    let summed = matches!(request.shape, PlanShape::Summed { .. });
    let splits = kernel.spec().splits().iter().filter(|split| summed || **split <= k_blocks);
    splits.flat_map(|&split_k| with_stages(kernel, split_k, k_blocks, limits)).collect()
}

/// Clusters that a persistent kernel is considered with. A sweep over layers of models lost 0.1% without the others.
fn clusters(kernel: &GemmKernel) -> &'static [[u32; 2]] {
    let operands = kernel.operands();
    let plain = kernel.fusion() == Fusion::None;
    let fitted = plain && !operands.is_1d1d() && (operands.is_fp8() || kernel.grouping() == Grouping::Dense);
    match kernel.tile() {
        _ if plain && !operands.is_fp8() && kernel.grouping() == Grouping::Rows => &ALONG_N,
        _ if !fitted => &CLUSTERS,
        [256, _] | [_, 256] if kernel.tile()[0] >= 128 => &ALONG_N,
        _ => &NO_CLUSTER,
    }
}

/// A split-K kernel with every number of stages that lets another number of blocks share an SM.
fn with_stages(
    kernel: GemmKernel,
    split_k: u32,
    k_blocks: u32,
    limits: &Limits,
) -> impl Iterator<Item = GemmConfig> {
    let (least, most) = kernel.stages().into_inner();
    let needed = k_blocks.div_ceil(split_k).clamp(least, most);
    let mut found: Vec<GemmConfig> = BLOCKS_PER_SM
        .filter_map(|blocks| {
            let reserved = limits.arch.limits().reserved_shared;
            let available = (limits.shared_per_sm / blocks).saturating_sub(reserved);
            let available = available.min(limits.shared_per_block);
            (least..=needed)
                .rev()
                .map(|stages| GemmConfig { split_k, stages, ..GemmConfig::of(kernel) })
                .find(|config| config.shared_bytes() <= available)
        })
        .collect();
    found.dedup();
    found.into_iter()
}

/// Whether a kernel's tiles are not needlessly high for a dense or m-grouped FP8 GEMM. Of other GEMMs there are few
/// kernels of each kind, and any number of rows may take them.
fn suits(kernel: &GemmKernel, request: &PlanRequest) -> bool {
    if let PlanShape::MGrouped(shape) = request.shape
        && kernel.operands().is_fp8()
        && request.fusion == Fusion::None
    {
        // With half of their rows missing, the highest tiles keep too few loads in flight.
        return kernel.tile()[0] <= 128 || shape.expected > 128;
    }
    let PlanShape::Dense(shape) = request.shape else { return true };
    let ([block_m, _], m, operands) = (kernel.tile(), shape.m, kernel.operands());
    if !kernel.is_split_k() {
        // Not every layout of 16-bit operands has low tiles.
        let always = if operands.is_fp8() { 64 } else { 128 };
        return request.fusion != Fusion::None || block_m <= always || m > block_m / 2;
    }
    if !operands.is_fp8() || request.fusion != Fusion::None {
        return suits_few_heights(block_m, m);
    }
    match block_m {
        8 if operands.e5m2().is_some() => m <= 8,
        _ if operands.e5m2().is_some() => m > 8,
        // A tile of twice the height computes the same rows.
        ..64 => block_m >= m && (block_m == 8 || block_m / 2 < m),
        _ => m > 32 && (block_m == 64 || m > 64),
    }
}

/// The same for split-K kernels that do not have tiles of every height.
fn suits_few_heights(block_m: u32, m: u32) -> bool {
    match block_m {
        8 => m <= 8,
        32 => (9..=32).contains(&m),
        64 => m > 8,
        _ => m > 64,
    }
}
