//! `oxigemm bench`: the peer's cases, timed as the peer's were.

mod attention;
mod compare;
mod einsum;
mod figures;
mod fused;
mod gemm;
mod hyper_connection;
mod k_order;
mod models;
mod passes;
mod quantize;
mod router;
mod sweep;

use std::path::PathBuf;
use std::time::Duration;

use oxigemm::{Cuda, Device};
use oxigemm_testkit::{Failure, Op, Verdict};

use crate::baseline::Anchor;
use crate::baseline::attention::AttentionAnchor;
use crate::cases::gemm::named;
use crate::timing::Clock;
use crate::{Common, Outcome};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cases.
    #[arg(long, value_enum, default_value_t)]
    suite: Suite,
    /// The operation, of those that the peer has cases of.
    #[arg(long, value_parser = named::<Op>(), default_value = "fp8")]
    op: Op,
    /// Only cases whose name, such as `m4096 n7168 k2048`, `fp8_masked g32 em20 n7168 k3072` or `paged_mqa ...`,
    /// contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// All cases of quantization; else those that say whether it is fast.
    #[arg(long)]
    all: bool,
    /// Draw the result of the dense cases as an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// What the cases of public models are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many of them are drawn.
    #[arg(long, default_value_t = 80)]
    count: usize,
    /// Calls that are timed for each case.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Times that the whole suite is gone through; the best of them counts, as for the anchor's figures.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Rest before each case, in milliseconds. The anchor's figures were taken with 400.
    #[arg(long, default_value_t = 400)]
    rest_ms: u64,
    /// Time the candidates of every case instead, one JSON line each.
    #[arg(long)]
    sweep: bool,
    /// Which candidates to sweep.
    #[arg(long, value_enum, default_value_t, requires = "sweep")]
    choices: Choices,
    /// Do not check the results, of the anchor's cases or of a sweep.
    #[arg(long)]
    unchecked: bool,
    /// Do not time the calibration GEMM beside each case.
    #[arg(long)]
    uncalibrated: bool,
    /// Measure nothing: read what `--sweep` wrote and show how good the plans are.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "plot", "filter"])]
    replay: Option<PathBuf>,
}

impl Args {
    /// A clock as the arguments want it.
    fn clock(&self, cuda: &Cuda) -> Result<Clock, Failure> {
        let rest = Duration::from_millis(self.rest_ms);
        if self.uncalibrated { Clock::new(cuda, rest) } else { Clock::calibrated(cuda, rest) }
    }

    /// Whether the filter lets a case pass.
    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| name.contains(text.as_str()))
    }

    /// The error where a filter leaves no case.
    fn no_case(&self) -> Failure {
        format!("no case contains {:?}", self.filter.as_deref().unwrap_or_default()).into()
    }

    /// The verdict, where results are checked.
    fn judged(&self, judge: impl FnOnce() -> Result<Verdict, Failure>) -> Result<Option<Verdict>, Failure> {
        (!self.unchecked).then(judge).transpose()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The cases of the peer's benchmark; those of FP8 are dense, m-grouped and k-grouped GEMMs, and attention logits.
    #[default]
    Anchor,
    /// Fused epilogues, beside the same GEMMs without one.
    Fused,
    /// Quantization, beside the bandwidth of a copy.
    Quantize,
    /// The GEMM before the norm of a hyper-connection, beside the bandwidth of a copy.
    Hc,
    /// The router of a mixture of experts: gate GEMM and top-k.
    Router,
    /// Layers of public models, drawn from a seed.
    Models,
    /// FP8 by MXFP4 at many rows, with the packing of scales.
    Widened,
    /// Einsums of attention: batched GEMMs of heads, and sums of a batch.
    Einsum,
    /// Large GEMMs with serpentine and with forward K in turn.
    KOrder,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Choices {
    /// The ten with the lowest estimates.
    #[default]
    Top,
    /// Of public models: the one with the lowest estimate of each kernel, number of splits and cluster.
    Kernels,
    /// All.
    All,
}

/// What every suite needs.
struct Bench<'a> {
    common: &'a Common,
    cuda: &'a Cuda,
    args: &'a Args,
    clock: Clock,
}

impl Bench<'_> {
    /// Whether the filter lets a case pass.
    fn wants(&self, name: &str) -> bool {
        self.args.wants(name)
    }

    /// The error where a filter leaves no case.
    fn no_case(&self) -> Failure {
        self.args.no_case()
    }
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    if let Some(path) = &args.replay {
        return match args.suite {
            Suite::Fused => fused::replay(common, path),
            Suite::Models => models::replay(common, path),
            _ => sweep::replay(common, path, &args.op),
        };
    }
    let device = common.device()?;
    let Device::Cuda(cuda) = &device else {
        return Err(format!(
            "bench needs a GPU: times on the CPU, of {device} as well, would say nothing; inspect shows estimates"
        )
        .into());
    };
    let suite = match args.suite {
        Suite::Anchor => return anchor(common, cuda, args),
        Suite::Fused => fused::run,
        Suite::Quantize => quantize::run,
        Suite::Hc => hyper_connection::run,
        Suite::Router => router::run,
        Suite::Models => models::run,
        Suite::Widened => models::run_widened,
        Suite::Einsum => einsum::run,
        Suite::KOrder => k_order::run,
    };
    suite(&mut Bench { common, cuda, args, clock: args.clock(cuda)? })
}

/// The cases of the peer's benchmark: times of what the planner chooses, or of every candidate.
fn anchor(common: &Common, cuda: &Cuda, args: &Args) -> Outcome {
    // The figures of k-grouped GEMMs stand beside those of dense ones with the same scales.
    let anchor = Anchor::named(args.op.types.name).filter(|_| gemm::has_figures(&args.op));
    let anchor = anchor.ok_or_else(|| format!("the peer has no {}", args.op))?;
    let mut cases = gemm::cases(&args.op);
    cases.retain(|case| args.wants(&case.name));
    // A sweep times candidates, of which logits have none.
    let logits = AttentionAnchor::fp8().cases.iter().filter(|_| args.op == Op::default() && !args.sweep);
    let logits: Vec<_> = logits.filter(|case| args.wants(&case.name())).collect();
    if cases.is_empty() && logits.is_empty() {
        return Err(args.no_case());
    }
    let dense = |case: &gemm::Case| case.kind == gemm::Kind::Dense;
    if args.plot.is_some() && !cases.iter().any(dense) {
        return Err("only dense cases are drawn, and the filter leaves none".into());
    }
    let mut bench = Bench { common, cuda, args, clock: args.clock(cuda)? };
    match args.sweep {
        true => sweep::run(&mut bench, &cases),
        false => compare::run(&mut bench, anchor, &cases, &logits),
    }
}
