//! Candidates and cost model for Hopper.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the model's parts: [`Tile`], [`Speeds`], dispatch over groupings |
//! | `candidates.rs` | which configurations are worth an estimate |
//! | `fitted.rs` | persistent kernels: constants of each tile, fitted to a sweep over layers of models |
//! | `persistent.rs` | persistent kernels: dense and fused |
//! | `m_grouped.rs` | m-grouped GEMMs and batches |
//! | `split_k.rs` | split-K kernels |
//! | `mxfp4.rs` | kernels that widen FP4 |
//!
//! Constants are fitted to times measured on an H200 (SXM, 132 SMs); `oxigemm bench --replay` compares them with a
//! sweep. Times are in microseconds, speeds in bytes or operations per microsecond.

mod candidates;
mod fitted;
mod m_grouped;
mod mxfp4;
mod persistent;
mod split_k;

use oxigemm_kernels::BLOCK_K;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::params::ScalesOfB;

use super::{Cost, GemmConfig, GemmShape, KGroupedShape, Limits, OperandKind, PlanRequest, PlanShape};
pub(super) use candidates::candidates;

/// The estimated time of a configuration.
pub(super) fn estimate(config: &GemmConfig, request: &PlanRequest, limits: &Limits) -> Cost {
    if request.operands.widens_b() {
        return mxfp4::estimate(config, request, limits);
    }
    match request.shape {
        PlanShape::Dense(shape) if request.fusion != Fusion::None && !config.is_split_k() => {
            persistent::fused(config, shape, request.passes(config), limits)
        }
        PlanShape::Dense(_) | PlanShape::Summed { .. } => {
            dense(config, request.shape.gemm(request.operands), limits)
        }
        PlanShape::Batched(shape) => {
            m_grouped::estimate(config, &shape, &m_grouped::EQUAL, request.passes(config), limits)
        }
        PlanShape::MGrouped(shape) => {
            m_grouped::estimate(config, &shape, &m_grouped::SPREAD, request.passes(config), limits)
        }
        PlanShape::KGrouped(shape) => k_grouped(config, &shape, limits),
    }
}

/// One GEMM.
fn dense(config: &GemmConfig, shape: GemmShape, limits: &Limits) -> Cost {
    match config.is_split_k() {
        true => split_k::estimate(config, shape, limits),
        false => persistent::dense(config, shape, limits),
    }
}

/// How much of the L2 cache's time the tensor cores of k-grouped kernels do not hide.
const K_GROUPED_L2_SEEN: f64 = 0.28;

/// A k-grouped GEMM, as a dense one with the rows of all groups: as many tiles, each as deep as a group. Only the
/// device knows the K of each group, so all count as equal.
fn k_grouped(config: &GemmConfig, shape: &KGroupedShape, limits: &Limits) -> Cost {
    let rows = u64::from(shape.m) * u64::from(shape.groups);
    let all = GemmShape { m: u32::try_from(rows).unwrap_or(u32::MAX), ..shape.group() };
    let cost = dense(config, all, limits);
    Cost { us: cost.us + K_GROUPED_L2_SEEN * cost.l2, ..cost }
}

/// Speeds that a kind of kernel reaches, and its launch time.
struct Speeds {
    /// FP8 operations of one SM that does nothing else.
    tensor: f64,
    /// Memory, read and written by many SMs.
    memory: f64,
    /// The L2 cache, read by many SMs.
    l2: f64,
    /// From the L2 cache into one SM.
    feed: f64,
    /// Output of one SM whose tensor cores are idle.
    output: f64,
    /// From the launch to the first MMA, and from the last instruction to the end.
    start: f64,
}

/// 16-bit operations of one SM.
const TENSOR_F16: f64 = 6.3e6;

/// Bytes of a row of A or B in one stage.
const ROW_BYTES: u32 = BLOCK_K;

/// The accumulator tile of a block.
struct Tile {
    operands: OperandKind,
    m: u32,
    n: u32,
}

impl Tile {
    fn of(config: &GemmConfig) -> Tile {
        let [m, n] = config.tile();
        Tile { operands: config.operands(), m, n }
    }

    /// Whether warps promote the accumulators of the tensor core, with scales.
    fn promotes(&self) -> bool {
        self.operands.has_scales()
    }

    /// Operations of one SM, where FP8 has these.
    fn tensor_speed(&self, fp8: f64) -> f64 {
        if self.promotes() { fp8 } else { TENSOR_F16 }
    }

    /// Operations of one stage.
    fn stage_ops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.operands.block_k())
    }

    /// Bytes of A and B in one stage: 128 for a row, whatever the operands are.
    fn stage_bytes(&self) -> f64 {
        f64::from(self.m + self.n) * f64::from(ROW_BYTES)
    }

    fn output_bytes(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n)
    }
}

/// Bytes that cross the memory bus at least once.
fn memory_bytes(operands: OperandKind, shape: GemmShape) -> f64 {
    let [m, n, k] = [shape.m, shape.n, shape.k].map(f64::from);
    let blocks = f64::from(operands.scale_blocks(shape.k));
    let scales = match operands.scales {
        Some(ScalesOfB::Rows) => blocks * (m + n),
        Some(ScalesOfB::Blocks) => blocks * (m + n / f64::from(operands.scale_block.size())),
        None => 0.0,
    };
    (m + n) * k * f64::from(operands.element_bytes()) + 4.0 * scales + 2.0 * m * n
}
