//! Planning: which kernel of the closed set computes a GEMM, and how it is launched.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the entry points [`plan`](plan()) and [`rank`], [`PlanRequest`], [`Plan`] |
//! | `cost.rs` | [`Cost`]: the form of the cost model |
//! | `sm90/` | candidates and cost model for Hopper, fitted to an H200 |
//! | `sm100/` | candidates and cost model for Blackwell, by figures of a B200 |
//! | `k_order.rs` | [`KOrder`]: forward or serpentine K by family |
//! | `name.rs` | [`name`] and [`parse`]: names of configurations |
//! | `tuned.rs` | [`TunedConfigs`]: measured configurations of some problems, and their file |
//! | `attention.rs` | [`MqaPlan`], [`PagedMqaPlan`]: MQA logits |
//!
//! Planning is a pure function of a [`PlanRequest`], of the [`Limits`] of a device and of the [`TunedConfigs`] that a user
//! may have measured ([`plan_with`]), so a plan can be made, explained and tested without a GPU. A request has few
//! candidates; each gets an estimate of its time, and the cheapest is taken, unless there is a tuned configuration. Equal
//! arguments give equal plans. [`plan`](plan()) takes the tuned configurations of the process, which are none by default.
//!
//! A new architecture is a module beside `sm90` and an arm in each of two functions here.
//!
//! ```
//! use oxigemm::plan::{self, GemmShape, Limits, OperandKind, PlanRequest};
//!
//! let plan = |m| {
//!     let request = PlanRequest::dense(OperandKind::FP8, GemmShape { m, n: 7168, k: 2048 });
//!     plan::plan(&request, &Limits::h200())
//! };
//! assert!(plan(1)?.name().starts_with("sm90_fp8_split_k_"));
//! assert!(plan(4096)?.name().starts_with("sm90_fp8_persistent_"));
//! # Ok::<(), oxigemm::Error>(())
//! ```

mod attention;
mod cost;
mod k_order;
mod name;
mod sm100;
mod sm90;
mod tuned;

use std::fmt;

use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::GemmKernel;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;

pub use attention::{MqaPlan, PagedMqaPlan};
pub use cost::Cost;
pub use k_order::{KOrder, Traversal};
pub use name::{name, operands_name, parse};
pub use oxigemm_kernels::gemm::{GemmConfig, GemmShape, KGroupedShape, Launch, MGroupedShape, OperandKind};
pub use sm100::TileWork;
pub use tuned::{TunedConfigs, set_tuned, tuned};

pub use crate::device::Limits;
use crate::error::{Error, Result};

/// What a plan depends on, apart from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanRequest {
    /// Types, majors and scales of the operands.
    pub operands: OperandKind,
    /// Shape and grouping. With a gate, N counts the columns of D.
    pub shape: PlanShape,
    /// What the epilogue fuses.
    pub fusion: Fusion,
    /// Whether a fused epilogue quantizes D.
    pub quantized_output: bool,
    /// Whether it quantizes D to a format whose scales are bytes.
    pub block_scaled_output: bool,
    /// Whether a row's result must not depend on the number of rows: see [`is_batch_invariant`].
    pub batch_invariant: bool,
    /// The configuration that the caller wants.
    pub config: Option<GemmConfig>,
    /// The K order that the caller wants.
    pub k_order: Option<KOrder>,
    /// The raster band that the caller wants, in rows of tiles.
    pub raster_band: Option<u32>,
}

/// The shape of a GEMM by its grouping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanShape {
    /// One GEMM.
    Dense(GemmShape),
    /// A batch of GEMMs.
    Batched(MGroupedShape),
    /// The sum of a batch of GEMMs.
    Summed {
        /// One of them.
        gemm: GemmShape,
        /// How many there are.
        batch: u32,
    },
    /// An m-grouped GEMM, masked or contiguous.
    MGrouped(MGroupedShape),
    /// A k-grouped GEMM.
    KGrouped(KGroupedShape),
}

impl PlanShape {
    /// One GEMM: a slab of groups, one of equal k-groups, and a sum as one GEMM whose K is that of the whole batch,
    /// each in whole stages.
    #[must_use]
    pub fn gemm(&self, operands: OperandKind) -> GemmShape {
        match self {
            PlanShape::Dense(shape) => *shape,
            PlanShape::Summed { gemm, batch } => {
                GemmShape { k: batch * operands.k_blocks(gemm.k) * operands.block_k(), ..*gemm }
            }
            PlanShape::Batched(shape) | PlanShape::MGrouped(shape) => shape.slab(),
            PlanShape::KGrouped(shape) => shape.group(),
        }
    }

    /// The groups of an m-grouped GEMM or a batch.
    #[must_use]
    pub fn m_grouped(&self) -> Option<&MGroupedShape> {
        match self {
            PlanShape::Batched(shape) | PlanShape::MGrouped(shape) => Some(shape),
            PlanShape::Dense(_) | PlanShape::Summed { .. } | PlanShape::KGrouped(_) => None,
        }
    }

    fn groups(&self) -> u32 {
        match self {
            PlanShape::Dense(_) | PlanShape::Summed { .. } => 1,
            PlanShape::Batched(shape) | PlanShape::MGrouped(shape) => shape.groups,
            PlanShape::KGrouped(shape) => shape.groups,
        }
    }

    fn grouping(&self) -> Grouping {
        match self {
            PlanShape::Dense(_) | PlanShape::Summed { .. } => Grouping::Dense,
            PlanShape::Batched(_) | PlanShape::MGrouped(_) => Grouping::Rows,
            PlanShape::KGrouped(_) => Grouping::K,
        }
    }
}

impl PlanRequest {
    /// A request without a fused epilogue and without wishes.
    #[must_use]
    pub const fn new(operands: OperandKind, shape: PlanShape) -> PlanRequest {
        PlanRequest {
            operands,
            shape,
            fusion: Fusion::None,
            quantized_output: false,
            block_scaled_output: false,
            batch_invariant: false,
            config: None,
            k_order: None,
            raster_band: None,
        }
    }

    /// The same for one GEMM.
    #[must_use]
    pub const fn dense(operands: OperandKind, shape: GemmShape) -> PlanRequest {
        PlanRequest::new(operands, PlanShape::Dense(shape))
    }

    /// The same for an m-grouped GEMM.
    #[must_use]
    pub const fn m_grouped(operands: OperandKind, shape: MGroupedShape) -> PlanRequest {
        PlanRequest::new(operands, PlanShape::MGrouped(shape))
    }

    /// The same for a k-grouped GEMM.
    #[must_use]
    pub const fn k_grouped(operands: OperandKind, shape: KGroupedShape) -> PlanRequest {
        PlanRequest::new(operands, PlanShape::KGrouped(shape))
    }

    /// The request with a given configuration.
    #[must_use]
    pub const fn with_config(self, config: GemmConfig) -> PlanRequest {
        PlanRequest { config: Some(config), ..self }
    }

    /// Whether a kernel is made for such a GEMM.
    fn is_for(&self, kernel: &GemmKernel) -> bool {
        // Batches of FP8 have kernels of their own; those of 16-bit operands, and fused ones, are m-grouped.
        let batched = matches!(self.shape, PlanShape::Batched(_))
            && self.operands == OperandKind::FP8
            && self.fusion == Fusion::None;
        kernel.operands() == self.operands
            && kernel.fusion() == self.fusion
            && kernel.grouping() == self.shape.grouping()
            && (!self.block_scaled_output || kernel.spec().quantizes_to_blocks())
            && kernel.is_batched() == batched
            && kernel.is_summed() == matches!(self.shape, PlanShape::Summed { .. })
    }

    /// Passes over K in which a configuration computes a tile.
    fn passes(&self, config: &GemmConfig) -> u32 {
        if self.quantized_output { config.quantized_passes() } else { 1 }
    }

    /// Whether batch invariance excludes a configuration. A sum of a batch has one order of K for each configuration.
    fn excludes(&self, config: &GemmConfig) -> bool {
        self.batch_invariant && !matches!(self.shape, PlanShape::Summed { .. }) && !is_batch_invariant(config)
    }

    /// Whether a configuration can be launched for the request on a device.
    fn fits(&self, config: &GemmConfig, limits: &Limits) -> bool {
        if !self.is_for(&config.kernel) || !config.is_valid() {
            return false;
        }
        let [x, y] = match config.covers_d() {
            true => self.launch(config, 1).grid,
            false => [config.cluster_blocks(), 1],
        };
        config.grouped_shared_bytes(self.shape.groups()) <= limits.shared_per_block
            && y <= limits.arch.limits().max_grid_y
            && (!limits.restricted || u64::from(x) * u64::from(y) <= limits.sms.into())
    }

    /// The launch of a configuration whose kernel is made for the request.
    fn launch(&self, config: &GemmConfig, concurrent: u32) -> Launch {
        launch(config, &self.shape, self.passes(config), concurrent)
    }

    /// The plan with a configuration that fits.
    fn plan(&self, config: GemmConfig, estimate: Cost, limits: &Limits, why: Why) -> Result<Plan> {
        let traversal = Traversal { k_order: KOrder::of(self)?, raster_band: self.raster_band };
        let launch = traversal.of(self.launch(&config, limits.clusters(config.cluster_blocks())), &config);
        Ok(Plan { shape: self.shape, passes: self.passes(&config), config, traversal, launch, estimate, why })
    }

    /// The GEMM, for messages.
    fn description(&self) -> String {
        let GemmShape { m, n, k } = match self.shape {
            PlanShape::Summed { gemm, .. } => gemm,
            PlanShape::KGrouped(KGroupedShape { m, n, k, .. }) => GemmShape { m, n, k },
            shape => shape.gemm(self.operands),
        };
        let kind = match self.shape {
            PlanShape::Dense(_) => String::new(),
            PlanShape::Batched(shape) => format!("a batch of {} GEMMs of ", shape.groups),
            PlanShape::Summed { batch, .. } => format!("the sum of {batch} GEMMs of "),
            PlanShape::MGrouped(shape) => format!("an m-grouped GEMM with {} groups of ", shape.groups),
            PlanShape::KGrouped(shape) => format!("a k-grouped GEMM with {} groups of ", shape.groups),
        };
        let fused = if self.fusion == Fusion::None { "" } else { " with a fused epilogue" };
        format!("{kind}m={m} n={n} k={k}{fused}")
    }

    /// Why there is no candidate.
    fn no_candidate(&self, limits: &Limits) -> Error {
        if !GemmKernel::all(limits.arch).any(|kernel| self.is_for(&kernel)) {
            return Error::DType {
                argument: "a",
                expected: format!(
                    "operands that a kernel for {} multiplies on {}",
                    self.description(),
                    limits.arch
                ),
                found: operands_name(self.operands),
            };
        }
        let groups = |argument, groups| Error::Overflow {
            argument,
            expected: "as many groups as the shared memory of a block has room for".to_owned(),
            found: format!("{groups} groups"),
        };
        match self.shape {
            PlanShape::Batched(shape) | PlanShape::MGrouped(shape) => groups("b", shape.groups),
            PlanShape::KGrouped(shape) => groups("d", shape.groups),
            PlanShape::Dense(shape) | PlanShape::Summed { gemm: shape, .. } => Error::Overflow {
                argument: "d",
                expected: "rows that a grid covers".to_owned(),
                found: format!("{} rows", shape.m),
            },
        }
    }
}

/// The launch of a configuration whose kernel is made for such a shape.
fn launch(config: &GemmConfig, shape: &PlanShape, passes: u32, concurrent: u32) -> Launch {
    match shape {
        PlanShape::Dense(_) | PlanShape::Summed { .. } => {
            config.launch_in_passes(shape.gemm(config.operands()), passes, concurrent)
        }
        PlanShape::Batched(groups) | PlanShape::MGrouped(groups) => {
            config.launch_m_grouped(groups, passes, concurrent).expect("the kernel is m-grouped")
        }
        PlanShape::KGrouped(groups) => {
            config.launch_k_grouped(groups, concurrent).expect("the kernel is k-grouped")
        }
    }
}

/// A configuration and its launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The shape it is for.
    pub shape: PlanShape,
    /// Passes over K in which a tile is computed: several only where D is quantized.
    pub passes: u32,
    /// The kernel and its launch-time choices.
    pub config: GemmConfig,
    /// K order and raster band, as far as the kernel has a choice.
    pub traversal: Traversal,
    /// The launch.
    pub launch: Launch,
    /// The estimated time.
    pub estimate: Cost,
    /// Why the configuration was taken.
    pub why: Why,
}

/// Why a configuration was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// The caller requested it.
    Requested,
    /// It was measured to be the fastest: see [`TunedConfigs`].
    Tuned,
    /// It has the lowest estimate.
    Cheapest {
        /// Number of candidates.
        candidates: usize,
        /// The second candidate, with its estimate in microseconds.
        runner_up: Option<(GemmConfig, f64)>,
    },
}

impl Plan {
    /// The name of the configuration: see [`name`].
    #[must_use]
    pub fn name(&self) -> String {
        name(&self.config)
    }

    /// The architecture of the kernel.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.config.kernel.arch()
    }

    /// Launches it on a device that runs up to `concurrent` of its clusters at a time.
    pub(crate) fn set_concurrent(&mut self, concurrent: u32) {
        let launch = launch(&self.config, &self.shape, self.passes, concurrent);
        self.launch = self.traversal.of(launch, &self.config);
    }
}

/// The plan for a request on a device: the requested configuration, the [tuned] one of the process, or the cheapest
/// candidate.
///
/// ```
/// use oxigemm::plan::{self, GemmShape, Limits, OperandKind, PlanRequest};
///
/// let request = PlanRequest::dense(OperandKind::FP8, GemmShape { m: 1, n: 576, k: 7168 });
/// assert!(!plan::is_batch_invariant(&plan::plan(&request, &Limits::h200())?.config));
/// let request = PlanRequest { batch_invariant: true, ..request };
/// assert!(plan::is_batch_invariant(&plan::plan(&request, &Limits::h200())?.config));
/// # Ok::<(), oxigemm::Error>(())
/// ```
///
/// # Errors
/// If the requested configuration has other operands, depends on the batch where it must not, or does not fit. Without
/// one, if no kernel computes such a GEMM, or none fits.
pub fn plan(request: &PlanRequest, limits: &Limits) -> Result<Plan> {
    plan_with(request, limits, &tuned())
}

/// The same with given tuned configurations; with the default, which has none, the planner's own plan.
///
/// # Errors
/// Like [`plan`](plan()).
pub fn plan_with(request: &PlanRequest, limits: &Limits, tuned: &TunedConfigs) -> Result<Plan> {
    let Some(config) = request.config else {
        if let Some(config) = tuned.get(request, limits) {
            return request.plan(config, estimate(&config, request, limits), limits, Why::Tuned);
        }
        let ranking = rank(request, limits);
        let (config, estimate) = *ranking.first().ok_or_else(|| request.no_candidate(limits))?;
        let runner_up = ranking.get(1).map(|(config, cost)| (*config, cost.us));
        let why = Why::Cheapest { candidates: ranking.len(), runner_up };
        return request.plan(config, estimate, limits, why);
    };
    if config.operands() != request.operands {
        let expected = operands_name(request.operands);
        return Err(Error::ConfigOperands { name: name(&config), expected });
    }
    if request.excludes(&config) {
        return Err(Error::ConfigBatchInvariant { name: name(&config) });
    }
    if !request.fits(&config, limits) {
        let shape = format!("{} on {} SMs", request.description(), limits.sms);
        return Err(Error::Config { name: name(&config), shape });
    }
    request.plan(config, estimate(&config, request, limits), limits, Why::Requested)
}

/// Every candidate for a request with its estimate, the cheapest first: what [`plan`](plan()) chooses from.
///
/// ```
/// use oxigemm::plan::{self, KGroupedShape, Limits, OperandKind, PlanRequest};
///
/// let shape = KGroupedShape { groups: 4, m: 4096, n: 7168, k: 32768 };
/// let ranking = plan::rank(&PlanRequest::k_grouped(OperandKind::FP8_1D1D, shape), &Limits::h200());
/// assert!(plan::name(&ranking[0].0).starts_with("sm90_fp8_persistent_k_grouped_1d1d_"));
/// ```
#[must_use]
pub fn rank(request: &PlanRequest, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    // A sum's grid covers D, and cannot be held back to some SMs.
    let restricted = limits.restricted && !matches!(request.shape, PlanShape::Summed { .. });
    let limits = &Limits { restricted, ..*limits };
    let mut all: Vec<_> = candidates(request, limits)
        .into_iter()
        .filter(|config| !request.excludes(config) && request.fits(config, limits))
        .map(|config| (config, estimate(&config, request, limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

/// Every configuration that is worth an estimate, in a fixed order, whether it fits or not.
fn candidates(request: &PlanRequest, limits: &Limits) -> Vec<GemmConfig> {
    match limits.arch {
        Arch::Sm90a => sm90::candidates(request, limits),
        Arch::Sm100a => sm100::candidates(request, limits),
    }
}

/// The estimated time of a configuration. It knows outputs of 16 bits; others differ alike for all configurations.
fn estimate(config: &GemmConfig, request: &PlanRequest, limits: &Limits) -> Cost {
    match config.kernel {
        GemmKernel::Sm90(_) => sm90::estimate(config, request, limits),
        GemmKernel::Sm100(_) => sm100::estimate(config, request, limits),
    }
}

/// Batch invariance: whether a row's result depends neither on the number of rows nor on the other rows, where every
/// tile has forward K. All kernels for the same operands then accumulate K in the same order, block by block, unless
/// they split K: the number of splits, or the stream-K tail, depends on the number of rows.
#[must_use]
pub fn is_batch_invariant(config: &GemmConfig) -> bool {
    config.split_k == 1 && !config.is_stream_k()
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Requested => f.write_str("requested by the caller"),
            Why::Tuned => f.write_str("a tuned configuration: measured on such a GPU, not estimated"),
            Why::Cheapest { candidates: 1, .. } | Why::Cheapest { runner_up: None, .. } => {
                f.write_str("the only candidate")
            }
            Why::Cheapest { candidates, runner_up: Some((config, us)) } => {
                write!(
                    f,
                    "lowest estimate of {candidates} candidates, runner-up {} with {us:.2} us",
                    name(config)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
