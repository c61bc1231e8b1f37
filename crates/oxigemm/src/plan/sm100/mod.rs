//! Candidates and cost model for Blackwell.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | candidates, and the time of a configuration |
//! | `machine.rs` | what a B200 is taken to be, with sources: no constant is measured |
//! | `waves.rs` | how many tiles the busiest cluster has |
//! | `work.rs` | [`TileWork`]: bytes of a tile by path, and cycles |
//!
//! Times are in microseconds.

mod machine;
mod waves;
mod work;

use oxigemm_kernels::gemm::sm100::Kernel;
use oxigemm_kernels::gemm::{GemmKernel, OperandKind};

use super::{Cost, GemmConfig, GemmShape, Limits, PlanRequest, PlanShape};
use machine::{CYCLES, HANDOVER, L2, MEMORY, REDUCTION, SHARPNESS, START};
use waves::Waves;
pub use work::TileWork;

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
///
/// Operands pass the L2 cache, the port of an SM and its shared memory in sequence, so the slowest of the three
/// counts, and not each.
pub(super) fn estimate(config: &GemmConfig, request: &PlanRequest, limits: &Limits) -> Cost {
    let (shape, groups) = match request.shape {
        PlanShape::Batched(shape) | PlanShape::MGrouped(shape) => {
            (GemmShape { m: shape.expected, ..shape.slab() }, shape.groups)
        }
        PlanShape::KGrouped(shape) => (shape.group(), shape.groups),
        _ => (request.shape.gemm(request.operands), 1),
    };
    let [tile_m, tile_n] = config.cluster_tile(1);
    let tiles = u64::from(shape.m.div_ceil(tile_m)) * u64::from(shape.n.div_ceil(tile_n)) * u64::from(groups);
    let clusters = u64::from(limits.clusters(config.cluster_blocks()));
    let k_groups = if matches!(request.shape, PlanShape::KGrouped(_)) { f64::from(groups) } else { 1.0 };
    let waves = Waves { tiles: tiles as f64, clusters: clusters.max(1) as f64, k_groups }.of(config);
    let blocks = config.k_blocks(shape.k).div_ceil(config.split_k);
    let work = TileWork::new(config, blocks * request.operands.block_k());
    let accumulators = f64::from(config.kernel.fusion().accumulators());
    let parts = tiles as f64 * f64::from(config.cluster_blocks());
    let units = Cost {
        tensor: waves * (work.tensor() + handover(config)) / CYCLES,
        memory: memory_bytes(request.operands, shape, accumulators) * f64::from(groups) / MEMORY,
        l2: parts * work.from_l2() / (L2 * CYCLES),
        feed: waves * work.port().max(work.shared()) / CYCLES,
        // The last tile's; those of others overlap the MMAs of the next.
        output: work.output() / CYCLES,
        start: START,
        us: 0.0,
    };
    let slowest = Cost { l2: 0.0, feed: units.feed.max(units.l2), ..units }.overlapped(SHARPNESS);
    let cost = Cost { us: slowest.us, ..units };
    if config.split_k > 1 { cost.later(REDUCTION) } else { cost }
}

/// Cycles of a tile in which the tensor core waits for columns that it shares with the tile before.
fn handover(config: &GemmConfig) -> f64 {
    match config.kernel {
        GemmKernel::Sm100(Kernel::Persistent(kernel)) if kernel.shared_columns() > 0 => HANDOVER,
        _ => 0.0,
    }
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
