//! The peer's cases of indexer logits.

use oxigemm::check::MqaLogits;
use oxigemm::plan::MqaPlan;
use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;
use serde_json::json;

use super::figures::{Figures, Live, Peer, Work};
use super::{Args, time};
use crate::anchor::indexer::{IndexerAnchor, IndexerCase};
use crate::anchor::{Anchor, geometric_mean};
use crate::indexer::{PagedHost, PagedOperands, PrefillHost, PrefillOperands};
use crate::output::{print_json, print_line, progress};
use crate::timing::Clock;
use crate::verdict::Verdict;
use crate::{Common, Failure, Outcome};

#[derive(Serialize)]
struct Row {
    case: String,
    /// Keys of each sequence, where they are in pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    lengths: Option<Vec<i32>>,
    anchor_calibration_us: f64,
    #[serde(flatten)]
    figures: Figures,
}

/// The operands of a case.
enum Operands {
    Prefill(Box<PrefillOperands>),
    Paged(Box<PagedOperands>),
}

impl Operands {
    fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        match self {
            Operands::Prefill(operands) => operands.run(options),
            Operands::Paged(operands) => operands.run(options),
        }
    }
}

/// Times the cases and compares with the anchor.
pub fn run(common: &Common, cuda: &Cuda, args: &Args) -> Outcome {
    let wanted =
        |case: &&IndexerCase| args.filter.as_ref().is_none_or(|text| case.name().contains(text.as_str()));
    let cases: Vec<&IndexerCase> = IndexerAnchor::fp8().cases.iter().filter(wanted).collect();
    if cases.is_empty() {
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    let mut clock = args.clock(cuda)?;
    let bar = progress(cases.len() * args.passes as usize);
    let live = Live::new(common, cases.iter().map(|case| case.name()));
    let mut measured = Vec::new();
    for case in &cases {
        bar.set_message(case.name());
        measured.push(measure(case, cuda, args, &mut clock)?);
        bar.inc(1);
        if args.passes == 1 {
            live.row(&bar, &case.name(), &measured[measured.len() - 1].0.figures);
        }
    }
    for pass in 1..args.passes {
        for (row, operands) in &mut measured {
            bar.set_message(row.case.clone());
            row.figures.improve(&time(args, &mut clock, |options| operands.run(options))?);
            bar.inc(1);
            if pass + 1 == args.passes {
                live.row(&bar, &row.case, &row.figures);
            }
        }
    }
    bar.finish_and_clear();
    let rows: Vec<Row> = measured.into_iter().map(|(row, _)| row).collect();
    let calibration = geometric_mean(rows.iter().filter_map(|row| row.figures.calibration_us));
    let comparable = calibration.is_some_and(|us| Anchor::dense_fp8().is_comparable(us));
    let slowest = rows.iter().map(|row| row.figures.ratio).reduce(f64::min);
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(),
            "timed_by": clock.method(),
            "calibration_us": calibration,
            "comparable": comparable,
            "anchor": { "note": IndexerAnchor::fp8().note },
            "slowest": slowest,
            "cases": rows,
        }));
    } else {
        print_line("");
        if let Some(slowest) = slowest {
            print_line(&format!("the slowest at {slowest:.3}x the anchor's speed"));
        }
        print_line(&format!("timed by {} on {}", clock.method(), cuda.gpu().name()));
        let word = if comparable { "comparable" } else { "NOT comparable" };
        print_line(
            &calibration.map_or("no calibration".to_owned(), |us| format!("calibration {us:.1} us: {word}")),
        );
    }
    Ok(rows.iter().all(|row| row.figures.is_right()))
}

/// The first pass, with its verdict, and the operands for others.
fn measure(
    case: &IndexerCase,
    cuda: &Cuda,
    args: &Args,
    clock: &mut Clock,
) -> Result<(Row, Operands), Failure> {
    let device = Device::Cuda(cuda.clone());
    let (mut operands, judge, pairs, bytes, plan): (Operands, Judge, f64, f64, String);
    if let Some(spec) = case.prefill() {
        let host = PrefillHost::draw(spec);
        let uploaded = host.upload(&device)?;
        plan = describe(&uploaded, spec.form, cuda)?;
        (pairs, bytes) = (spec.pairs(), spec.bytes());
        operands = Operands::Prefill(Box::new(uploaded));
        judge = Box::new(move |operands| match operands {
            Operands::Prefill(operands) => host.judge(operands),
            Operands::Paged(_) => unreachable!("these are the operands of a prefill"),
        });
    } else {
        let spec = case.paged().expect("a case is one or the other");
        (pairs, bytes) = (spec.pairs(), spec.bytes());
        let host = PagedHost::draw(spec);
        let mut uploaded = host.upload(&device)?;
        uploaded.plan(&GemmOptions::default())?;
        device.synchronize()?;
        plan = "schedule".to_owned();
        operands = Operands::Paged(Box::new(uploaded));
        judge = Box::new(move |operands| match operands {
            Operands::Paged(operands) => host.judge(operands),
            Operands::Prefill(_) => unreachable!("these are the operands of sequences"),
        });
    }
    let times = time(args, clock, |options| operands.run(options))?;
    let verdict = args.judged(|| judge(&operands))?;
    let flops = 2.0 * pairs * (case.heads * case.dim) as f64;
    let floor_us = Anchor::dense_fp8().roofline().floor_us(flops, bytes);
    let work = Work { flops, bytes, floor_us };
    let peer = Peer { call_us: case.call_us, main_kernel_us: case.main_kernel_us, diff: case.diff };
    let figures = Figures::of((plan, floor_us), work, peer, verdict, &times);
    let lengths = case.paged().map(|spec| spec.lengths);
    let row = Row { case: case.name(), lengths, anchor_calibration_us: case.calibration_us, figures };
    Ok((row, operands))
}

/// Whether what is in the operands is right.
type Judge = Box<dyn Fn(&Operands) -> Result<Verdict, Failure>>;

/// How a prefill is launched.
fn describe(
    operands: &PrefillOperands,
    form: oxigemm::check::Logits,
    cuda: &Cuda,
) -> Result<String, Failure> {
    let [starts, ends] = &operands.bounds;
    let arguments = MqaLogits {
        q: operands.q.describe("q"),
        kv: operands.kv.describe("kv"),
        kv_scales: operands.kv_scales.describe("kv_scales"),
        weights: operands.weights.describe("weights"),
        starts: starts.describe("starts"),
        ends: ends.describe("ends"),
        logits: operands.logits.describe("logits"),
        form,
    };
    let problem = arguments.check()?.ok_or("there is nothing to compute")?;
    let plan = MqaPlan::best(&problem, cuda.limits().sms);
    Ok(format!("{} blocks", plan.blocks))
}
