//! Planning: which kernel of the closed set serves a problem, and how it is launched.
//!
//! Everything here is a pure function of a shape and of the [`Limits`] of a device, so a plan can be asked for,
//! explained and tested where there is no GPU. The [`candidates`] of a shape are few; each gets an
//! [`estimate`](cost::estimate) of its time, and the cheapest is taken. Equal arguments give equal plans.
//!
//! ```
//! use oxigemm::plan::{Limits, Plan, GemmShape};
//!
//! let limits = Limits::h200();
//! let few = Plan::best(GemmShape { m: 1, n: 7168, k: 2048 }, &limits);
//! let many = Plan::best(GemmShape { m: 4096, n: 7168, k: 2048 }, &limits);
//! assert!(few.name().starts_with("slim_"));
//! assert!(many.name().starts_with("wide_"));
//! ```

pub mod cost;
mod fused;
mod fused_grouped;
mod grouped;
mod indexer;
mod kgrouped;
mod summed;

use std::fmt;

pub use cost::Cost;
pub use fused::{fused_candidates, fused_ranking};
pub use fused_grouped::fused_grouped_ranking;
pub use grouped::{batched_ranking, grouped_ranking, grouped_ranking_of};
pub use indexer::MqaPlan;
pub use kgrouped::k_grouped_ranking_of;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::launch::GemmKernel;
pub use oxigemm_kernels::gemm::launch::{
    GemmConfig, GemmShape, KGroupedShape, Launch, MGroupedShape, OperandKind,
};
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::scheduler::m_grouped::Grouping;
use oxigemm_kernels::gemm::sm90::split_k;
pub use summed::summed_ranking_of;

pub use crate::device::Limits;
use crate::device::limits::RESERVED_SHARED;

/// The most blocks of a grid along y.
const MAX_GRID_Y: u32 = 65_535;
/// Few-row kernels are considered with so many stages that this many blocks share a multiprocessor.
const BLOCKS_PER_SM: std::ops::RangeInclusive<u32> = 1..=4;
/// Fewer stages than this do not overlap loading and multiplying.
const MIN_STAGES: u32 = 2;

/// The kernel and the launch for a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The shape it is for; where rows are grouped, that of a slab.
    pub shape: GemmShape,
    /// The groups it is for, where rows are grouped.
    pub groups: Option<MGroupedShape>,
    /// The groups it is for, where they are along K.
    pub k_groups: Option<KGroupedShape>,
    /// In how many passes a tile is computed: several only where D is quantized.
    pub passes: u32,
    /// The kernel and what its launch chooses.
    pub choice: GemmConfig,
    /// The launch.
    pub launch: Launch,
    /// The time it should take.
    pub estimate: Cost,
    /// Why it was taken.
    pub why: Why,
}

/// Why a plan was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// The caller asked for it.
    Asked,
    /// It has the lowest estimate.
    Cheapest {
        /// How many others there were.
        of: usize,
        /// The next best, with its estimate in microseconds.
        before: Option<(GemmConfig, f64)>,
    },
}

impl Plan {
    /// The cheapest candidate for FP8 operands. A shape with elements always has one.
    #[must_use]
    pub fn best(shape: GemmShape, limits: &Limits) -> Plan {
        Plan::best_of(OperandKind::Fp8, shape, limits)
    }

    /// The cheapest candidate of a family.
    ///
    /// ```
    /// use oxigemm::plan::{OperandKind, Limits, Plan, GemmShape};
    /// use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
    ///
    /// let operands = Operands { element: Half::Bf16, a: Major::K, b: Major::K };
    /// let plan = Plan::best_of(OperandKind::Half(operands), GemmShape { m: 4096, n: 7168, k: 2048 }, &Limits::h200());
    /// assert!(plan.name().starts_with("bf16_wide_nt_"));
    /// ```
    #[must_use]
    pub fn best_of(family: OperandKind, shape: GemmShape, limits: &Limits) -> Plan {
        Plan::best_among(family, shape, limits, |_| true)
    }

    /// The cheapest candidate of those that give a row the same bits whatever the number of rows: see
    /// [`is_batch_invariant`].
    ///
    /// ```
    /// use oxigemm::plan::{self, OperandKind, Limits, Plan, GemmShape};
    ///
    /// let shape = GemmShape { m: 1, n: 576, k: 7168 };
    /// assert!(!plan::is_batch_invariant(&Plan::best(shape, &Limits::h200()).choice));
    /// let plan = Plan::best_batch_invariant(OperandKind::Fp8, shape, &Limits::h200());
    /// assert!(plan::is_batch_invariant(&plan.choice));
    /// ```
    #[must_use]
    pub fn best_batch_invariant(family: OperandKind, shape: GemmShape, limits: &Limits) -> Plan {
        Plan::best_among(family, shape, limits, is_batch_invariant)
    }

    fn best_among(
        family: OperandKind,
        shape: GemmShape,
        limits: &Limits,
        allowed: impl Fn(&GemmConfig) -> bool,
    ) -> Plan {
        let mut best: Option<(GemmConfig, Cost)> = None;
        let mut before: Option<(GemmConfig, f64)> = None;
        let mut count = 0;
        for choice in candidates_of(family, shape, *limits).filter(|choice| allowed(choice)) {
            count += 1;
            let cost = cost::estimate(choice, shape, limits);
            match best {
                Some((_, cheapest)) if cheapest.us <= cost.us => {
                    if before.is_none_or(|(_, us)| cost.us < us) {
                        before = Some((choice, cost.us));
                    }
                }
                _ => {
                    before = best.map(|(choice, cost)| (choice, cost.us));
                    best = Some((choice, cost));
                }
            }
        }
        let (choice, estimate) = best.expect("many-row kernels serve every shape");
        let launch = choice.launch(shape, limits.clusters(blocks_of(&choice)));
        let why = Why::Cheapest { of: count, before };
        Plan { shape, groups: None, k_groups: None, passes: 1, choice, launch, estimate, why }
    }

    /// A given choice, or `None` where it cannot serve the shape on this device.
    #[must_use]
    pub fn of(choice: GemmConfig, shape: GemmShape, limits: &Limits) -> Option<Plan> {
        if is_summed(&choice) || !serves(&choice, shape, limits) {
            return None;
        }
        Some(Plan::asked(choice, shape, limits))
    }

    /// A given choice, which serves the shape.
    fn asked(choice: GemmConfig, shape: GemmShape, limits: &Limits) -> Plan {
        let launch = choice.launch(shape, limits.clusters(blocks_of(&choice)));
        let estimate = cost::estimate(choice, shape, limits);
        let why = Why::Asked;
        Plan { shape, groups: None, k_groups: None, passes: 1, choice, launch, estimate, why }
    }

    /// Launches it on a device that runs up to `concurrent` of its clusters at a time.
    pub(crate) fn set_concurrent(&mut self, concurrent: u32) {
        self.launch = match (&self.groups, &self.k_groups) {
            (None, None) => self.choice.launch_in_passes(self.shape, self.passes, concurrent),
            (None, Some(groups)) => {
                self.choice.launch_k_grouped(groups, concurrent).expect("the plan has a kernel for groups")
            }
            (Some(groups), _) => self
                .choice
                .launch_grouped_in_passes(groups, self.passes, concurrent)
                .expect("the plan has a kernel for groups"),
        };
    }

    /// The name of the choice: see [`name`].
    #[must_use]
    pub fn name(&self) -> String {
        name(&self.choice)
    }
}

/// Every candidate for FP8 operands with its estimate, the cheapest first: what [`Plan::best`] chose from.
#[must_use]
pub fn ranking(shape: GemmShape, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    ranking_of(OperandKind::Fp8, shape, limits)
}

/// Every candidate of a family with its estimate, the cheapest first: what [`Plan::best_of`] chose from.
#[must_use]
pub fn ranking_of(family: OperandKind, shape: GemmShape, limits: &Limits) -> Vec<(GemmConfig, Cost)> {
    let mut all: Vec<_> = candidates_of(family, shape, *limits)
        .map(|choice| (choice, cost::estimate(choice, shape, limits)))
        .collect();
    all.sort_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
    all
}

/// Every choice for FP8 operands that is worth an estimate for a shape, in a fixed order.
pub fn candidates(shape: GemmShape, limits: Limits) -> impl Iterator<Item = GemmConfig> {
    candidates_of(OperandKind::Fp8, shape, limits)
}

/// Every choice of a family that is worth an estimate for a shape, in a fixed order.
pub fn candidates_of(
    family: OperandKind,
    shape: GemmShape,
    limits: Limits,
) -> impl Iterator<Item = GemmConfig> {
    GemmKernel::dense()
        .filter(move |config| config.family() == family && fits(config, shape))
        .flat_map(choices_of)
        .flat_map(move |choice| with_stages(choice, shape, limits))
        .filter(move |choice| !has_idle_slices(choice, shape) && serves(choice, shape, &limits))
}

/// Whether K is split into more slices than it has blocks.
fn has_idle_slices(choice: &GemmConfig, shape: GemmShape) -> bool {
    let k_blocks = choice.config().family().k_blocks(shape.k);
    matches!(choice, GemmConfig::Slim { split, .. } | GemmConfig::HalfSlim { split, .. } if *split > k_blocks)
}

/// Whether a row's result depends neither on the number of rows nor on the others, where no tile [turns back](Launch::turns_back). All kernels of
/// a family then add up K in the same order, block by block, unless they split it: then the number of slices, which planning chooses by the number of
/// rows as well, decides what is added to what.
#[must_use]
pub fn is_batch_invariant(choice: &GemmConfig) -> bool {
    match choice {
        GemmConfig::Wide { config, .. } => !config.shares_tail,
        GemmConfig::HalfWide { .. } => true,
        GemmConfig::Slim { split, .. } | GemmConfig::HalfSlim { split, .. } => *split == 1,
    }
}

/// Whether a kernel's tiles are not needlessly high: a few-row kernel of twice the height computes the same rows.
fn fits(config: &GemmKernel, shape: GemmShape) -> bool {
    match config {
        // It multiplies nothing.
        GemmKernel::Transpose => false,
        GemmKernel::Wide(config) => config.block_m <= 64 || shape.m > config.block_m / 2,
        // There are few of those two kinds.
        GemmKernel::Slim(config) if config.is_fused() => fits_few_tiles(config.block_m, shape),
        GemmKernel::Slim(config) if config.e5m2.is_some() => (config.block_m == 8) == (shape.m <= 8),
        GemmKernel::Slim(config) if config.block_m < 64 => {
            config.block_m >= shape.m && (config.block_m == 8 || config.block_m / 2 < shape.m)
        }
        GemmKernel::Slim(config) => shape.m > 32 && (config.block_m == 64 || shape.m > 64),
        // Not every layout has low tiles.
        GemmKernel::HalfWide(config) => config.block_m <= 128 || shape.m > config.block_m / 2,
        GemmKernel::HalfSlim(config) => fits_few_tiles(config.block_m, shape),
    }
}

/// The same of few-row kernels that do not have tiles of every height.
fn fits_few_tiles(block_m: u32, shape: GemmShape) -> bool {
    match block_m {
        8 => shape.m <= 8,
        32 => (9..=32).contains(&shape.m),
        64 => shape.m > 8,
        _ => shape.m > 64,
    }
}

/// The choices of a kernel; those with a run-time number of stages have none yet.
fn choices_of(config: GemmKernel) -> Vec<GemmConfig> {
    match config {
        GemmKernel::Transpose => Vec::new(),
        GemmKernel::Wide(config) => [(1, 1), (1, 2), (2, 1)]
            .map(|(cluster_m, cluster_n)| GemmConfig::Wide { config, cluster_m, cluster_n })
            .to_vec(),
        GemmKernel::Slim(config) => {
            split_k::fp8::SPLITS.map(|split| GemmConfig::Slim { config, split, stages: 0 }).to_vec()
        }
        GemmKernel::HalfWide(config) => [(1, 1), (1, 2), (2, 1)]
            .map(|(cluster_m, cluster_n)| GemmConfig::HalfWide { config, cluster_m, cluster_n })
            .to_vec(),
        GemmKernel::HalfSlim(config) => {
            split_k::f16::SPLITS.map(|split| GemmConfig::HalfSlim { config, split, stages: 0 }).to_vec()
        }
    }
}

/// The choice with every number of stages that lets another number of blocks share a multiprocessor.
fn with_stages(choice: GemmConfig, shape: GemmShape, limits: Limits) -> Vec<GemmConfig> {
    let numbers = |family: OperandKind, split, max_stages, shared_bytes: &dyn Fn(u32) -> u32| {
        let needed = family.k_blocks(shape.k).div_ceil(split).clamp(MIN_STAGES, max_stages);
        let mut found: Vec<u32> = BLOCKS_PER_SM
            .filter_map(|blocks| {
                let room = (limits.shared_per_sm / blocks).saturating_sub(RESERVED_SHARED);
                let room = room.min(limits.shared_per_block);
                (MIN_STAGES..=needed).rev().find(|&stages| shared_bytes(stages) <= room)
            })
            .collect();
        found.dedup();
        found
    };
    let family = choice.config().family();
    match choice {
        GemmConfig::Wide { .. } | GemmConfig::HalfWide { .. } => vec![choice],
        GemmConfig::Slim { config, split, .. } => {
            numbers(family, split, split_k::fp8::MAX_STAGES, &|stages| config.shared_bytes(stages))
                .into_iter()
                .map(|stages| GemmConfig::Slim { config, split, stages })
                .collect()
        }
        GemmConfig::HalfSlim { config, split, .. } => {
            numbers(family, split, split_k::f16::MAX_STAGES, &|stages| config.shared_bytes(stages))
                .into_iter()
                .map(|stages| GemmConfig::HalfSlim { config, split, stages })
                .collect()
        }
    }
}

/// Whether a choice computes a shape on a device at all.
fn serves(choice: &GemmConfig, shape: GemmShape, limits: &Limits) -> bool {
    choice.config().fusion() == Fusion::None && fits_device(choice, shape, limits)
}

/// Whether a choice of a kernel without groups fits a device.
fn fits_device(choice: &GemmConfig, shape: GemmShape, limits: &Limits) -> bool {
    if limits.restricted && blocks_of(choice) > limits.sms {
        return false;
    }
    // The grid of a few-row kernel covers D.
    let covers = |[block_m, block_n]: [u32; 2], split: u32, stages: u32, max_stages: u32, shared: u32| {
        let m_tiles = shape.m.div_ceil(block_m);
        let blocks = u64::from(shape.n.div_ceil(block_n)) * u64::from(split) * u64::from(m_tiles);
        (MIN_STAGES..=max_stages).contains(&stages)
            && shared <= limits.shared_per_block
            && m_tiles <= MAX_GRID_Y
            // It cannot be held back to some multiprocessors.
            && (!limits.restricted || blocks <= u64::from(limits.sms))
    };
    match *choice {
        GemmConfig::Wide { config, .. } => {
            config.grouping == Grouping::Dense && config.shared_bytes() <= limits.shared_per_block
        }
        GemmConfig::HalfWide { config, .. } => {
            config.grouping == Grouping::Dense && config.shared_bytes() <= limits.shared_per_block
        }
        GemmConfig::Slim { config, split, stages } => {
            let tile = [config.block_m, config.tile_columns()];
            covers(tile, split, stages, split_k::fp8::MAX_STAGES, config.shared_bytes(stages))
        }
        GemmConfig::HalfSlim { config, split, stages } => {
            let tile = [config.block_m, config.tile_columns()];
            covers(tile, split, stages, split_k::f16::MAX_STAGES, config.shared_bytes(stages))
        }
    }
}

/// Whether a choice is a kernel that adds the products of a batch up.
fn is_summed(choice: &GemmConfig) -> bool {
    matches!(choice, GemmConfig::HalfSlim { config, .. } if config.summed)
}

/// Blocks of a cluster.
pub(crate) fn blocks_of(choice: &GemmConfig) -> u32 {
    match *choice {
        GemmConfig::Wide { cluster_m, cluster_n, .. } | GemmConfig::HalfWide { cluster_m, cluster_n, .. } => {
            cluster_m * cluster_n
        }
        GemmConfig::Slim { split, .. } | GemmConfig::HalfSlim { split, .. } => split,
    }
}

/// The name of a choice, for people and for the command line: `wide_128x144_s5_c1x2` is the kernel of 128 by 144
/// tiles and 5 stages with clusters of 1 by 2 blocks, `slim_8x64_k4_s6` that of 8 by 64 tiles with K split in 4 and
/// 6 stages, `wide_1d1d_128x128_s4_c1x1` one with a scale for each row of B. Those of other operands begin with their type and layout: `bf16_wide_nn_256x128_s3_c1x1`.
#[must_use]
pub fn name(choice: &GemmConfig) -> String {
    let config = choice.config().name().replace("_gemm_", "_");
    let kernel = config.strip_prefix("fp8_").unwrap_or(&config);
    match choice {
        GemmConfig::Wide { cluster_m, cluster_n, .. } | GemmConfig::HalfWide { cluster_m, cluster_n, .. } => {
            format!("{kernel}_c{cluster_m}x{cluster_n}")
        }
        GemmConfig::Slim { split, stages, .. } | GemmConfig::HalfSlim { split, stages, .. } => {
            format!("{kernel}_k{split}_s{stages}")
        }
    }
}

/// The name of a family, for people: its operands.
#[must_use]
pub fn family_name(family: OperandKind) -> String {
    match family {
        OperandKind::Fp8 => "fp8 operands with scales".to_owned(),
        OperandKind::Fp8Rows => "fp8 operands with a scale for each row of both".to_owned(),
        OperandKind::Fp8E5m2(e5m2) => {
            format!("fp8 operands with scales, {}", e5m2.name().replace('_', " and "))
        }
        OperandKind::Half(operands) => {
            let major = |major, other| if major == Major::K { 'K' } else { other };
            let (a, b) = (major(operands.a, 'M'), major(operands.b, 'N'));
            format!("{} operands, A {a}-major and B {b}-major", operands.element.name())
        }
    }
}

/// The choice of a name.
///
/// ```
/// use oxigemm::plan;
///
/// let choice = plan::parse("slim_8x64_k4_s6").unwrap();
/// assert_eq!(plan::name(&choice), "slim_8x64_k4_s6");
/// assert!(plan::parse("slim_9x64_k4_s6").is_none());
/// ```
#[must_use]
pub fn parse(wanted: &str) -> Option<GemmConfig> {
    let clusters = [(1, 1), (1, 2), (2, 1), (2, 2)];
    let wide = |config| {
        clusters.map(|(cluster_m, cluster_n)| GemmConfig::Wide { config, cluster_m, cluster_n }).to_vec()
    };
    let half_wide = |config| {
        clusters.map(|(cluster_m, cluster_n)| GemmConfig::HalfWide { config, cluster_m, cluster_n }).to_vec()
    };
    let slices = |max_stages| {
        let stages = move |split| (MIN_STAGES..=max_stages).map(move |stages| (split, stages));
        split_k::fp8::SPLITS.into_iter().flat_map(stages)
    };
    let slim = |config| -> Vec<GemmConfig> {
        let all = slices(split_k::fp8::MAX_STAGES);
        all.map(|(split, stages)| GemmConfig::Slim { config, split, stages }).collect()
    };
    let half_slim = |config| -> Vec<GemmConfig> {
        let all = slices(split_k::f16::MAX_STAGES);
        all.map(|(split, stages)| GemmConfig::HalfSlim { config, split, stages }).collect()
    };
    GemmKernel::all()
        .flat_map(|config| match config {
            GemmKernel::Wide(config) => wide(config),
            GemmKernel::Slim(config) => slim(config),
            GemmKernel::HalfWide(config) => half_wide(config),
            GemmKernel::HalfSlim(config) => half_slim(config),
            GemmKernel::Transpose => Vec::new(),
        })
        .find(|choice| name(choice) == wanted)
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Asked => f.write_str("it was asked for"),
            Why::Cheapest { of, before: None } => write!(f, "the only one of {of} candidates"),
            Why::Cheapest { of, before: Some((choice, us)) } => {
                write!(f, "the lowest estimate of {of} candidates, before {} with {us:.2} us", name(choice))
            }
        }
    }
}

#[cfg(test)]
mod tests;
