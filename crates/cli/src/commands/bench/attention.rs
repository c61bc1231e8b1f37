//! The peer's cases of indexer logits.

use oxigemm::check::MqaLogits;
use oxigemm::plan::MqaPlan;
use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;

use super::figures::{Figures, Live, Peer, Work};
use super::{Args, time};
use crate::anchor::indexer::IndexerCase;
use crate::anchor::{Anchor, geometric_mean};
use crate::indexer::{PagedHost, PagedOperands, PrefillHost, PrefillOperands};
use crate::output::progress;
use crate::timing::Clock;
use crate::verdict::Verdict;
use crate::{Common, Failure};

/// A case that was timed.
#[derive(Serialize)]
pub struct Row {
    case: String,
    /// Keys of each sequence, where they are in pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    lengths: Option<Vec<i32>>,
    anchor_calibration_us: f64,
    #[serde(flatten)]
    pub figures: Figures,
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

/// Times each case.
pub fn rows(
    common: &Common,
    cuda: &Cuda,
    args: &Args,
    cases: &[&IndexerCase],
    clock: &mut Clock,
) -> Result<Vec<Row>, Failure> {
    let bar = progress(cases.len() * args.passes as usize);
    let live = Live::new(common, cases.iter().map(|case| case.name()));
    let mut measured = Vec::new();
    for case in cases {
        bar.set_message(case.name());
        measured.push(measure(case, cuda, args, clock)?);
        bar.inc(1);
        if args.passes == 1 {
            live.row(&bar, &case.name(), &measured[measured.len() - 1].0.figures);
        }
    }
    for pass in 1..args.passes {
        for (row, operands) in &mut measured {
            bar.set_message(row.case.clone());
            row.figures.improve(&time(args, clock, |options| operands.run(options))?);
            bar.inc(1);
            if pass + 1 == args.passes {
                live.row(&bar, &row.case, &row.figures);
            }
        }
    }
    bar.finish_and_clear();
    Ok(measured.into_iter().map(|(row, _)| row).collect())
}

/// The mean ratio and the worst one, if there are any.
pub fn means(rows: &[Row]) -> Option<(String, f64, f64)> {
    let ratios = || rows.iter().map(|row| row.figures.ratio);
    Some(("logits".to_owned(), geometric_mean(ratios())?, ratios().reduce(f64::min)?))
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
