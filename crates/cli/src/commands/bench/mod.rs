//! `oxigemm bench`: the peer's cases, timed as the peer's were.

mod figures;
mod fused;
mod grouped;
mod hc;
mod indexer;
mod kgrouped;
mod quantize;
mod sweep;

use std::path::PathBuf;
use std::time::Duration;

use figures::{Figures, Live, Peer, Times, Work};
use oxigemm::plan::{Family, Plan, Shape};
use oxigemm::{Cuda, DType, Device, GemmLayout, GemmOptions};
use serde::Serialize;
use serde_json::json;

use crate::anchor::grouped::{GroupedAnchor, GroupedCase};
use crate::anchor::indexer::{IndexerAnchor, IndexerCase};
use crate::anchor::kgrouped::{KGroupedAnchor, KGroupedCase};
use crate::anchor::{Anchor, Case, geometric_mean};
use crate::output::{print_json, print_line, progress};
use crate::plot::{Bar, Chart, svg};
use crate::problem::{AddendKind, Host, Operands, Spec};
use crate::timing::Clock;
use crate::verdict::{self, Effort, Verdict};
use crate::{Common, Failure, Op, Outcome};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The cases.
    #[arg(long, value_enum, default_value_t)]
    suite: Suite,
    /// The function, of those that the peer has dense cases of.
    #[arg(long, value_enum, default_value_t)]
    op: Op,
    /// Only cases whose name, such as `m4096 n7168 k2048`, `fp8_masked g32 em20 n7168 k3072` or `paged_mqa ...`, contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// All cases of quantization; else those that say whether it is fast.
    #[arg(long)]
    all: bool,
    /// Draw the result of the dense cases as an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
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
    /// Do not time the calibration product beside each case.
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

    /// The verdict, where results are checked.
    fn judged(&self, judge: impl FnOnce() -> Result<Verdict, Failure>) -> Result<Option<Verdict>, Failure> {
        (!self.unchecked).then(judge).transpose()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// The cases of the peer's benchmark; those of FP8 are dense and grouped products, and logits of an indexer.
    #[default]
    Anchor,
    /// Products whose sums are finished, beside those that store them as they are.
    Fused,
    /// Quantization, beside the speed of a copy.
    Quantize,
    /// The product before the norm of a hyper-connection, beside the bandwidth of a copy.
    Hc,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Choices {
    /// The ten with the lowest estimates.
    #[default]
    Top,
    /// All.
    All,
}

#[derive(Serialize)]
struct Row {
    m: u32,
    n: u32,
    k: u32,
    cublaslt_us: Option<f64>,
    #[serde(flatten)]
    figures: Figures,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    if let Some(path) = &args.replay {
        return match args.suite {
            Suite::Fused => fused::replay(common, path),
            _ => sweep::replay(common, path, args.op),
        };
    }
    let device = common.device()?;
    let Device::Cuda(cuda) = &device else {
        return Err("bench needs a GPU: times on the CPU would say nothing".into());
    };
    match args.suite {
        Suite::Anchor => {}
        Suite::Fused => {
            let mut clock = args.clock(cuda)?;
            return fused::run(common, cuda, args, &mut clock);
        }
        Suite::Quantize => {
            let mut clock = args.clock(cuda)?;
            return quantize::run(common, cuda, args, &mut clock);
        }
        Suite::Hc => return hc::run(common, cuda, args),
    }
    // The figures of groups along K are beside those of the same scales.
    let anchor_op = if args.op == Op::Fp8Kgrouped { Op::Fp81d1d } else { args.op };
    let anchor = Anchor::of(anchor_op).ok_or_else(|| format!("the peer has no {}", args.op))?;
    let wanted = |name: String| args.filter.as_ref().is_none_or(|text| name.contains(text.as_str()));
    let dense = anchor.cases.iter().filter(|_| args.op == anchor_op);
    let cases: Vec<&Case> = dense.filter(|case| wanted(name(case))).collect();
    let grouped = GroupedAnchor::of(args.op).map_or(&[][..], |anchor| &anchor.cases);
    let grouped: Vec<&GroupedCase> = grouped.iter().filter(|case| wanted(case.name())).collect();
    let k_grouped =
        KGroupedAnchor::fp8().cases.iter().filter(|_| matches!(args.op, Op::Fp8 | Op::Fp8Kgrouped));
    let k_grouped: Vec<&KGroupedCase> = k_grouped.filter(|case| wanted(case.name())).collect();
    // A sweep times candidates, of which logits have none.
    let logits = IndexerAnchor::fp8().cases.iter().filter(|_| args.op == Op::Fp8 && !args.sweep);
    let logits: Vec<&IndexerCase> = logits.filter(|case| wanted(case.name())).collect();
    if cases.is_empty() && grouped.is_empty() && k_grouped.is_empty() && logits.is_empty() {
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    if cases.is_empty() && args.plot.is_some() {
        return Err("only dense cases are drawn, and the filter leaves none".into());
    }
    let mut clock = args.clock(cuda)?;
    if args.sweep {
        Ok(sweep::run(cuda, args, &cases, &mut clock)?
            & grouped::sweep(cuda, args, &grouped, &mut clock)?
            & kgrouped::sweep(cuda, args, &k_grouped, &mut clock)?)
    } else {
        compare(common, cuda, args, anchor, (&cases, &grouped, &k_grouped, &logits), &mut clock)
    }
}

fn name(case: &Case) -> String {
    format!("m{} n{} k{}", case.m, case.n, case.k)
}

fn shape(case: &Case) -> Shape {
    Shape { m: case.m, n: case.n, k: case.k }
}

fn family(op: Op) -> Family {
    op.family(GemmLayout::Nt)
}

fn prepare(op: Op, case: &Case, cuda: &Cuda) -> Result<(Host, Operands), Failure> {
    let dims = [case.m, case.n, case.k].map(|x| x as usize);
    let spec = Spec::of(op, GemmLayout::Nt, dims);
    let host = Host::draw(match op {
        // The peer's kernel only adds.
        Op::Fp81d1d => Spec { d_type: DType::F32, addend: AddendKind::Inplace, ..spec },
        _ => spec,
    })?;
    let operands = host.upload(&Device::Cuda(cuda.clone()))?;
    Ok((host, operands))
}

/// Times what the planner chooses and compares with the anchor.
fn compare(
    common: &Common,
    cuda: &Cuda,
    args: &Args,
    anchor: &Anchor,
    (cases, grouped, k_grouped, logits): (&[&Case], &[&GroupedCase], &[&KGroupedCase], &[&IndexerCase]),
    clock: &mut Clock,
) -> Outcome {
    let bar = progress(cases.len() * args.passes as usize);
    let live = Live::new(common, cases.iter().map(|case| name(case)));
    let mut measured = Vec::new();
    for case in cases {
        bar.set_message(name(case));
        measured.push(measure(case, cuda, args, anchor, clock)?);
        bar.inc(1);
        if args.passes == 1 {
            live.row(&bar, &name(case), &measured[measured.len() - 1].0.figures);
        }
    }
    for pass in 1..args.passes {
        for (case, (row, operands)) in cases.iter().zip(&mut measured) {
            bar.set_message(name(case));
            // As if the suite had been started again.
            operands.relocate()?;
            row.figures.improve(&time(args, clock, |options| operands.run(options))?);
            bar.inc(1);
            if pass + 1 == args.passes {
                live.row(&bar, &name(case), &row.figures);
            }
        }
    }
    bar.finish_and_clear();
    let rows: Vec<Row> = measured.into_iter().map(|(row, _)| row).collect();
    let grouped = grouped::rows(common, cuda, args, grouped, clock)?;
    let k_grouped = kgrouped::rows(common, cuda, args, k_grouped, clock)?;
    let logits = indexer::rows(common, cuda, args, logits, clock)?;
    let of_groups = || grouped.iter().map(|row| &row.figures).chain(k_grouped.iter().map(|row| &row.figures));
    let of_products = || rows.iter().map(|row| &row.figures).chain(of_groups());
    let figures = || of_products().chain(logits.iter().map(|row| &row.figures));
    let calibration = geometric_mean(figures().filter_map(|figures| figures.calibration_us));
    if let Some(path) = &args.plot {
        draw(path, cuda, args.op, anchor, &rows, calibration, &clock.method())?;
    }
    let right = figures().all(Figures::is_right);
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(),
            "op": args.op.to_string(),
            "timed_by": clock.method(),
            "calibration_us": calibration,
            "anchor_calibration_us": anchor.calibration_us(),
            "anchor": { "device": anchor.device, "note": anchor.note },
            "ceilings": anchor.ceilings.iter().map(|ceiling| json!({
                "m": ceiling.m, "n": ceiling.n, "k": ceiling.k, "tflops": ceiling.tflops,
            })).collect::<Vec<_>>(),
            "comparable": calibration.is_some_and(|us| anchor.is_comparable(us)),
            "geometric_means": groups(&rows).map(|(name, ratio, worst)| json!({
                "group": name, "ratio": ratio, "worst": worst
            })),
            "cases": rows,
            "grouped_anchor": GroupedAnchor::of(args.op).map(|anchor| json!({ "note": anchor.note })),
            "grouped_means": grouped::means(&grouped).into_iter().map(|(name, ratio, worst)| json!({
                "group": name, "ratio": ratio, "worst": worst
            })).collect::<Vec<_>>(),
            "grouped": grouped,
            "k_grouped_anchor": { "note": KGroupedAnchor::fp8().note },
            "k_grouped": k_grouped,
            "logits_anchor": { "note": IndexerAnchor::fp8().note },
            "logits": logits,
        }));
    } else {
        print(cuda, anchor, &rows, (&grouped, &k_grouped, &logits), calibration, clock);
    }
    Ok(right)
}

/// Times a call, and the calibration product beside it.
fn time(
    args: &Args,
    clock: &mut Clock,
    call: impl FnMut(&GemmOptions) -> oxigemm::Result<()>,
) -> Result<Times, Failure> {
    let us = clock.calls(&GemmOptions::default(), args.runs as usize, call)?;
    let calibration_us = clock.calibration(args.runs as usize)?;
    Ok(Times { us, calibration_us })
}

/// The first pass, with its verdict, and the operands for others.
fn measure(
    case: &Case,
    cuda: &Cuda,
    args: &Args,
    anchor: &Anchor,
    clock: &mut Clock,
) -> Result<(Row, Operands), Failure> {
    let (host, mut operands) = prepare(args.op, case, cuda)?;
    let plan = Plan::best_of(family(args.op), shape(case), cuda.limits());
    let times = time(args, clock, |options| operands.run(options))?;
    let verdict = args.judged(|| judge(&host, &mut operands, &GemmOptions::default(), Effort::BENCH))?;
    let (flops, bytes) = (case.flops(), case.bytes(args.op));
    let work = Work { flops, bytes, floor_us: anchor.roofline().floor_us(flops, bytes) };
    let peer = Peer { call_us: case.call_us, main_kernel_us: case.main_kernel_us, diff: case.diff };
    let figures = Figures::new(&plan, work, peer, verdict, &times);
    Ok((Row { m: case.m, n: case.n, k: case.k, cublaslt_us: case.cublaslt_us, figures }, operands))
}

/// Compares what was computed last or, where D was added to again and again, one product more.
fn judge(
    host: &Host,
    operands: &mut Operands,
    options: &GemmOptions,
    effort: Effort,
) -> Result<Verdict, Failure> {
    if host.spec.addend == AddendKind::Inplace {
        operands.restore(host)?;
        operands.run(options)?;
    }
    verdict::judge(host, &operands.result()?, effort)
}

/// The groups whose means count: many rows and few. The mean ratio and the worst one.
fn groups(rows: &[Row]) -> [(&'static str, Option<f64>, Option<f64>); 2] {
    let group = |name, holds: fn(u32) -> bool| {
        let ratios: Vec<f64> = rows.iter().filter(|row| holds(row.m)).map(|row| row.figures.ratio).collect();
        let worst = ratios.iter().copied().reduce(f64::min);
        (name, geometric_mean(ratios), worst)
    };
    [group("m >= 4096", |m| m >= 4096), group("m <= 128", |m| m <= 128)]
}

/// What is said of all cases.
fn print(
    cuda: &Cuda,
    anchor: &Anchor,
    rows: &[Row],
    (grouped, k_grouped, logits): (&[grouped::Row], &[kgrouped::Row], &[indexer::Row]),
    calibration: Option<f64>,
    clock: &Clock,
) {
    print_line("");
    let dense =
        groups(rows).into_iter().filter_map(|(name, ratio, worst)| Some((name.to_owned(), ratio?, worst?)));
    let of_groups = grouped::means(grouped).into_iter().chain(kgrouped::means(k_grouped));
    for (name, ratio, worst) in dense.chain(of_groups).chain(indexer::means(logits)) {
        print_line(&format!(
            "{name}: geometric mean {ratio:.3}x the anchor's speed, the slowest {worst:.3}x"
        ));
    }
    print_line(&format!("timed by {} on {}", clock.method(), cuda.gpu().name()));
    let expected = anchor.calibration_us();
    print_line(&match (calibration, &clock.why_not_calibrated) {
        (Some(us), _) if anchor.is_comparable(us) => {
            format!("calibration {us:.1} us, beside the anchor {expected:.1} us: comparable")
        }
        (Some(us), _) => {
            format!("calibration {us:.1} us, beside the anchor {expected:.1} us: NOT comparable")
        }
        (None, why) => format!("no calibration: {}", why.as_deref().unwrap_or("unknown")),
    });
}

fn draw(
    path: &PathBuf,
    cuda: &Cuda,
    op: Op,
    anchor: &Anchor,
    rows: &[Row],
    calibration: Option<f64>,
    method: &str,
) -> Result<(), Failure> {
    let bars: Vec<Bar> = rows
        .iter()
        .map(|row| Bar { m: row.m, n: row.n, k: row.k, us: row.figures.us, anchor_us: row.figures.anchor_us })
        .collect();
    let text = svg(&Chart {
        title: match op {
            Op::Bf16 => "BF16 GEMM",
            Op::Fp16 => "FP16 GEMM",
            _ => "FP8 GEMM with fine-grained scales",
        },
        subtitle: &format!("{}; {method}", cuda.gpu().name()),
        calibration_us: calibration,
        anchor_calibration_us: anchor.calibration_us(),
        bars: &bars,
    });
    std::fs::write(path, text).map_err(|error| format!("could not write {}: {error}", path.display()).into())
}
