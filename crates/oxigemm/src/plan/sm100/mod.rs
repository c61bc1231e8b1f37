//! Candidates and cost model for Blackwell.
//!
//! No constant is measured. Peak rates and memory are NVIDIA's figures of a B200; widths of paths are those of Hopper, and
//! the start, the reduction of splits and the overlap of units are assumed. Times are in microseconds, speeds in bytes or
//! operations per microsecond.

use oxigemm_kernels::gemm::{GemmKernel, OperandKind};

use super::{Cost, GemmConfig, GemmShape, Limits, PlanRequest, PlanShape};

/// Multiply-adds of one SM in a cycle, for elements of 8 bits: 4.5 petaFLOPS of dense FP8 (B200 datasheet) by 148 SMs at
/// 1.85 GHz. Elements of 4 bits have twice as many, of 16 bits half, and TF32 a quarter.
const MACS_PER_CYCLE: f64 = 8192.0;
/// Clock of the SMs under load.
const CYCLES: f64 = 1850.0;
/// Memory: 8 TB/s by the datasheet, of which copies reach about 90% on Hopper.
const MEMORY: f64 = 7.2e6;
/// L2 cache, read by all SMs: 64 bytes in a cycle for each, as on Hopper.
const L2: f64 = 148.0 * 64.0 * CYCLES;
/// From the L2 cache into one SM.
const FEED: f64 = 64.0 * CYCLES;
/// From tensor memory to D, by the four epilogue warps of an SM: 32 bytes of FP32 a cycle for each.
const OUTPUT: f64 = 128.0 * CYCLES;
/// From the launch to the first MMA, and from the last one to the end: assumed.
const START: f64 = 4.0;
/// How far units overlap: see [`Cost::overlapped`](super::cost::Cost).
const SHARPNESS: f64 = 4.0;

/// Exchange of the K splits of a cluster through distributed shared memory: about what it takes on an H200.
const REDUCTION: f64 = 1.5;

/// Every configuration of a kernel that is made for the request; of split-K kernels, with as many stages as fit and as K
/// has blocks for.
pub(super) fn candidates(request: &PlanRequest, limits: &Limits) -> Vec<GemmConfig> {
    let kernels = GemmKernel::all(limits.arch).filter(|kernel| request.is_for(kernel));
    let k = request.shape.gemm(request.operands).k;
    let of_kernel = |kernel: GemmKernel| -> Vec<GemmConfig> {
        if !kernel.is_split_k() {
            return GemmConfig::all(kernel).collect();
        }
        let deepest = |split_k: u32| {
            let most = |stages: &u32| {
                let config = GemmConfig { split_k, stages: *stages, ..GemmConfig::of(kernel) };
                config.shared_bytes() <= limits.shared_per_block
                    && (*stages == *kernel.stages().start()
                        || *stages <= config.k_blocks(k).div_ceil(split_k).max(1))
            };
            kernel.stages().rev().find(most)
        };
        let splits = kernel.spec().splits().iter();
        splits
            .filter_map(|&split_k| {
                Some(GemmConfig { split_k, stages: deepest(split_k)?, ..GemmConfig::of(kernel) })
            })
            .collect()
    };
    kernels.flat_map(of_kernel).collect()
}

/// The estimated time of a configuration: waves of clusters, each as long as its busiest unit.
pub(super) fn estimate(config: &GemmConfig, request: &PlanRequest, limits: &Limits) -> Cost {
    let (shape, groups) = match request.shape {
        PlanShape::Batched(shape) | PlanShape::MGrouped(shape) => {
            (GemmShape { m: shape.expected, ..shape.slab() }, shape.groups)
        }
        PlanShape::KGrouped(shape) => (shape.group(), shape.groups),
        _ => (request.shape.gemm(request.operands), 1),
    };
    let ([tile_m, tile_n], [block_m, block_n]) = (config.cluster_tile(1), config.tile());
    let tiles = u64::from(shape.m.div_ceil(tile_m)) * u64::from(shape.n.div_ceil(tile_n)) * u64::from(groups);
    let clusters = u64::from(limits.clusters(config.cluster_blocks()));
    let waves = tiles.div_ceil(clusters.max(1)) as f64;
    let blocks = config.k_blocks(shape.k).div_ceil(config.split_k);
    let k = f64::from(blocks) * f64::from(request.operands.block_k());
    let [m, n] = [block_m, block_n].map(f64::from);
    let [bits_a, bits_b] = bits(request.operands);
    // A CTA of a pair loads its own rows of A, and half of the rows of B.
    let loaded = k * (m * bits_a + n / f64::from(config.cluster[0]) * bits_b) / 8.0;
    let accumulators = f64::from(config.kernel.fusion().accumulators());
    let parts = tiles as f64 * f64::from(config.cluster_blocks());
    let cost = Cost {
        tensor: waves * m * n * k / (MACS_PER_CYCLE * 8.0 / bits_a.max(bits_b) * CYCLES),
        memory: memory_bytes(request.operands, shape, accumulators) * f64::from(groups) / MEMORY,
        l2: parts * loaded / L2,
        feed: waves * loaded / FEED,
        // The last tile's; those of others overlap the MMAs of the next.
        output: 4.0 * m * n / OUTPUT,
        start: START,
        us: 0.0,
    }
    .overlapped(SHARPNESS);
    if config.split_k > 1 { cost.later(REDUCTION) } else { cost }
}

fn bits(operands: OperandKind) -> [f64; 2] {
    [operands.a, operands.b].map(|operand| f64::from(operand.element.bits()))
}

/// Bytes that cross the memory bus at least once.
fn memory_bytes(operands: OperandKind, shape: GemmShape, rows_of_b: f64) -> f64 {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(f64::from);
    let [bits_a, bits_b] = bits(operands);
    let scales = match operands.has_scales() {
        true => k / f64::from(operands.scale_block.size()) * (m + n * rows_of_b),
        false => 0.0,
    };
    k * (m * bits_a + n * rows_of_b * bits_b) / 8.0 + scales + 2.0 * m * n
}
