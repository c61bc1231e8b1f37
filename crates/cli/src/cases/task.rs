//! A problem of any function, with its data on the host and on a device.

use std::fmt;

use oxigemm::plan::{Choice, Limits, Plan, Shape};
use oxigemm::{Device, GemmOptions, Tensor};

use crate::fused::{FusedSpec, FusedTask};
use crate::fused_grouped::{FusedGroupedSpec, FusedGroupedTask};
use crate::grouped::{GroupedHost, GroupedOperands, GroupedSpec};
use crate::kgrouped::{KGroupedHost, KGroupedOperands, KGroupedSpec};
use crate::problem::{AddendKind, Host, Operands, Spec};
use crate::verdict::{self, Effort, Verdict};
use crate::{Failure, Op};

/// What is to be computed.
#[derive(Clone, Debug)]
pub enum Work {
    /// One product.
    Dense(Spec),
    /// A product for each group of rows.
    Grouped(GroupedSpec),
    /// A product for each group along K.
    KGrouped(KGroupedSpec),
    /// A product whose sums are finished.
    Fused(FusedSpec),
    /// The same for each group of rows.
    FusedGrouped(FusedGroupedSpec),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Dense(spec) => spec.fmt(f),
            Work::Grouped(spec) => spec.fmt(f),
            Work::KGrouped(spec) => spec.fmt(f),
            Work::Fused(spec) => spec.fmt(f),
            Work::FusedGrouped(spec) => spec.fmt(f),
        }
    }
}

impl Work {
    /// The plan on a device, or `None` where a choice cannot serve it.
    pub fn plan(&self, choice: Option<Choice>, limits: &Limits) -> Option<Plan> {
        match (self, choice) {
            (Work::Dense(spec), None) if spec.slabs.is_some() => {
                Plan::best_summed(spec.family(), shape(spec), limits)
            }
            (Work::Dense(spec), Some(choice)) if spec.slabs.is_some() => {
                Plan::of_summed(choice, shape(spec), limits)
                    .filter(|_| choice.config().family() == spec.family())
            }
            (Work::Dense(spec), None) => Some(Plan::best_of(spec.family(), shape(spec), limits)),
            (Work::Dense(spec), Some(choice)) => {
                Plan::of(choice, shape(spec), limits).filter(|_| choice.config().family() == spec.family())
            }
            (Work::Grouped(spec), None) if spec.is_fp8_batch() => Plan::best_batched(&spec.shape(), limits),
            (Work::Grouped(spec), Some(choice)) if spec.is_fp8_batch() => {
                Plan::of_batched(choice, &spec.shape(), limits)
            }
            (Work::Grouped(spec), None) => Plan::best_grouped_of(spec.family(), &spec.shape(), limits),
            (Work::Grouped(spec), Some(choice)) => Plan::of_grouped(choice, &spec.shape(), limits)
                .filter(|_| choice.config().family() == spec.family()),
            (Work::KGrouped(spec), None) => Plan::best_k_grouped_of(spec.family(), &spec.shape(), limits),
            (Work::KGrouped(spec), Some(choice)) => Plan::of_k_grouped(choice, &spec.shape(), limits)
                .filter(|_| choice.config().family() == spec.family()),
            (Work::Fused(spec), None) => {
                let fused = spec.epilogue.fused();
                Some(Plan::best_fused(spec.product.family(), spec.shape(), &fused, limits))
            }
            (Work::Fused(spec), Some(choice)) => {
                Plan::of_fused(choice, spec.shape(), &spec.epilogue.fused(), limits)
                    .filter(|_| choice.config().family() == spec.product.family())
            }
            (Work::FusedGrouped(spec), None) => {
                Plan::best_fused_grouped(spec.family(), &spec.shape(), &spec.epilogue.fused(), limits)
            }
            (Work::FusedGrouped(spec), Some(choice)) => {
                Plan::of_fused_grouped(choice, &spec.shape(), &spec.epilogue.fused(), limits)
                    .filter(|_| choice.config().family() == spec.family())
            }
        }
    }

    /// The plan of a batch-invariant call; kernels for groups, and those that finish sums, are all of them.
    pub fn batch_invariant_plan(&self, limits: &Limits) -> Option<Plan> {
        match self {
            Work::Dense(spec) if spec.slabs.is_none() => {
                Some(Plan::best_batch_invariant(spec.family(), shape(spec), limits))
            }
            Work::Dense(_) => None,
            Work::Grouped(_) | Work::KGrouped(_) | Work::Fused(_) | Work::FusedGrouped(_) => {
                self.plan(None, limits)
            }
        }
    }

    /// Whether nothing is multiplied, and so nothing planned.
    pub fn is_empty(&self) -> bool {
        match self {
            Work::Dense(spec) | Work::Fused(FusedSpec { product: spec, .. }) => {
                spec.m == 0 || spec.n == 0 || spec.k == 0
            }
            Work::Grouped(spec) | Work::FusedGrouped(FusedGroupedSpec { product: spec, .. }) => {
                spec.is_empty()
            }
            Work::KGrouped(spec) => spec.is_empty(),
        }
    }

    /// Rows of the result that are computed.
    pub fn rows(&self) -> usize {
        match self {
            Work::Dense(spec) | Work::Fused(FusedSpec { product: spec, .. }) => spec.m,
            Work::Grouped(spec) | Work::FusedGrouped(FusedGroupedSpec { product: spec, .. }) => {
                spec.rows.iter().sum()
            }
            Work::KGrouped(spec) => spec.ks.len() * spec.m,
        }
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        match self {
            Work::Dense(spec) | Work::Fused(FusedSpec { product: spec, .. }) => {
                2.0 * spec.m as f64 * spec.n as f64 * spec.k as f64
            }
            Work::Grouped(spec) | Work::FusedGrouped(FusedGroupedSpec { product: spec, .. }) => spec.flops(),
            Work::KGrouped(spec) => spec.flops(),
        }
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        match self {
            Work::Dense(spec) => {
                let [m, n, k] = [spec.m, spec.n, spec.k].map(|x| x as f64);
                let scales = match spec.op {
                    Op::Bf16 | Op::Fp16 => 0.0,
                    Op::Fp81d1d => (k / 128.0).ceil() * (m + n),
                    _ => (k / 128.0).ceil() * (m + (n / 128.0).ceil()),
                };
                let outputs = if spec.addend == AddendKind::None { 1.0 } else { 2.0 };
                let operands = (m + n) * k * spec.op.ab_type().size() as f64;
                operands + 4.0 * scales + outputs * m * n * spec.d_type.size() as f64
            }
            Work::Grouped(spec) => spec.bytes(),
            Work::KGrouped(spec) => spec.bytes(),
            Work::Fused(spec) => spec.bytes(),
            Work::FusedGrouped(spec) => spec.bytes(),
        }
    }

    /// Draws the data and puts it on a device.
    pub fn on(&self, device: &Device) -> Result<Task, Failure> {
        Ok(match self {
            Work::Dense(spec) => {
                let host = Host::draw(*spec)?;
                let operands = host.upload(device)?;
                Task::Dense(Box::new((host, operands)))
            }
            Work::Grouped(spec) => {
                let host = GroupedHost::draw(spec.clone())?;
                let operands = host.upload(device)?;
                Task::Grouped(Box::new((host, operands)))
            }
            Work::KGrouped(spec) => {
                let host = KGroupedHost::draw(spec.clone())?;
                let operands = host.upload(device)?;
                Task::KGrouped(Box::new((host, operands)))
            }
            Work::Fused(spec) => Task::Fused(Box::new(FusedTask::new(*spec, device)?)),
            Work::FusedGrouped(spec) => {
                Task::FusedGrouped(Box::new(FusedGroupedTask::new(spec.clone(), device)?))
            }
        })
    }
}

impl Op {
    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Op::Fp8 => "fp8",
            Op::Fp81d1d => "fp8-1d1d",
            Op::Fp8Contiguous => "fp8-contiguous",
            Op::Fp8Masked => "fp8-masked",
            Op::Fp8Batched => "fp8-batched",
            Op::Fp8Kgrouped => "fp8-kgrouped",
            Op::Bf16Kgrouped => "bf16-kgrouped",
            Op::Fp16Kgrouped => "fp16-kgrouped",
            Op::Bf16 => "bf16",
            Op::Fp16 => "fp16",
            Op::Bf16Contiguous => "bf16-contiguous",
            Op::Bf16Masked => "bf16-masked",
            Op::Fp16Contiguous => "fp16-contiguous",
            Op::Fp16Masked => "fp16-masked",
            Op::Bf16Batched => "bf16-batched",
            Op::Fp16Batched => "fp16-batched",
            Op::Bf16Summed => "bf16-summed",
            Op::Fp16Summed => "fp16-summed",
        }
    }
}

/// What planning is told. Products that are added up take whole stages each.
pub fn shape(spec: &Spec) -> Shape {
    let [m, n, k] = [spec.m, spec.n, spec.k].map(|x| x as u32);
    let summed = |slabs: u32| slabs * (k / slabs.max(1)).next_multiple_of(spec.family().block_k());
    Shape { m, n, k: spec.slabs.map_or(k, |slabs| summed(slabs as u32)) }
}

/// Work with its data.
pub enum Task {
    Dense(Box<(Host, Operands)>),
    Grouped(Box<(GroupedHost, GroupedOperands)>),
    KGrouped(Box<(KGroupedHost, KGroupedOperands)>),
    Fused(Box<FusedTask>),
    FusedGrouped(Box<FusedGroupedTask>),
}

impl Task {
    /// Runs it.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        match self {
            Task::Dense(task) => task.1.run(options),
            Task::Grouped(task) => task.1.run(options),
            Task::KGrouped(task) => task.1.run(options),
            Task::Fused(task) => task.run(options),
            Task::FusedGrouped(task) => task.run(options),
        }
    }

    /// Puts into D what is added to, where it is D.
    pub fn restore(&mut self) -> Result<(), Failure> {
        match self {
            Task::Dense(task) => task.1.restore(&task.0),
            Task::Grouped(_) => Ok(()),
            Task::KGrouped(task) => task.1.restore(&task.0),
            Task::Fused(task) => task.restore(),
            Task::FusedGrouped(task) => task.restore(),
        }
    }

    /// All of the memory that the result is a part of.
    pub fn memory(&mut self) -> &mut Tensor {
        match self {
            Task::Dense(task) => &mut task.1.d_memory,
            Task::Grouped(task) => &mut task.1.d_memory,
            Task::KGrouped(task) => &mut task.1.d_memory,
            Task::Fused(task) => &mut task.d_memory,
            Task::FusedGrouped(task) => &mut task.d_memory,
        }
    }

    /// Compares the result with the references.
    pub fn judge(&mut self, effort: Effort) -> Result<Verdict, Failure> {
        match self {
            Task::Dense(task) => verdict::judge(&task.0, &task.1.result()?, effort),
            Task::Grouped(task) => task.0.judge(&task.1, effort),
            Task::KGrouped(task) => task.0.judge(&task.1, effort),
            Task::Fused(task) => task.judge(),
            Task::FusedGrouped(task) => task.judge(),
        }
    }

    /// Whether nothing was written to that is not part of the result.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        match self {
            Task::Dense(task) => task.1.surroundings_untouched(),
            Task::Grouped(task) => task.1.surroundings_untouched(),
            Task::KGrouped(task) => task.1.surroundings_untouched(),
            Task::Fused(task) => task.surroundings_untouched(),
            Task::FusedGrouped(task) => task.surroundings_untouched(),
        }
    }
}
