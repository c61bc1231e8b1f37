//! The peer's cases with groups along K.

use oxigemm::plan;
use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;
use serde_json::json;

use super::figures::{self, Figures, Live, Peer};
use super::{Args, time};
use crate::anchor::kgrouped::KGroupedCase;
use crate::anchor::{Anchor, geometric_mean};
use crate::output::{print_json, progress};
use crate::task::{Task, Work};
use crate::timing::Clock;
use crate::verdict::{Effort, Verdict};
use crate::{Common, Failure, Outcome};

/// A case that was timed.
#[derive(Serialize)]
pub struct Row {
    case: String,
    /// The K of each group.
    ks: Vec<usize>,
    anchor_calibration_us: f64,
    #[serde(flatten)]
    pub figures: Figures,
}

/// Times what the planner chooses for each case.
pub fn rows(
    common: &Common,
    cuda: &Cuda,
    args: &Args,
    cases: &[&KGroupedCase],
    clock: &mut Clock,
) -> Result<Vec<Row>, Failure> {
    let bar = progress(cases.len());
    let live = Live::new(common, cases.iter().map(|case| case.name()));
    let mut rows = Vec::new();
    // One after the other: the operands of all do not fit beside each other everywhere.
    for case in cases {
        bar.set_message(case.name());
        let work = Work::KGrouped(case.spec());
        let plan = work.plan(None, cuda.limits()).ok_or("no kernel has room for the groups")?;
        let mut task = work.on(&Device::Cuda(cuda.clone()))?;
        let times = time(args, clock, |options| task.run(options))?;
        let verdict = args.judged(|| judge(&mut task, &GemmOptions::default(), Effort::BENCH))?;
        let (flops, bytes) = (work.flops(), work.bytes());
        let floor_us = Anchor::dense_fp8().roofline().floor_us(flops, bytes);
        let peer = Peer { call_us: case.call_us, main_kernel_us: case.main_kernel_us, diff: case.diff };
        let least = figures::Work { flops, bytes, floor_us };
        let mut figures = Figures::new(&plan, least, peer, verdict, &times);
        for _ in 1..args.passes {
            figures.improve(&time(args, clock, |options| task.run(options))?);
        }
        live.row(&bar, &case.name(), &figures);
        rows.push(Row {
            case: case.name(),
            ks: case.ks.clone(),
            anchor_calibration_us: case.calibration_us,
            figures,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Compares one product more, as D was added to again and again.
fn judge(task: &mut Task, options: &GemmOptions, effort: Effort) -> Result<Verdict, Failure> {
    task.restore()?;
    task.run(options)?;
    task.judge(effort)
}

/// The mean ratio, and the worst one.
pub fn means(rows: &[Row]) -> Option<(String, f64, f64)> {
    let ratios = || rows.iter().map(|row| row.figures.ratio);
    Some(("fp8_kgrouped".to_owned(), geometric_mean(ratios())?, ratios().reduce(f64::min)?))
}

/// Times the candidates of every case, one JSON line each.
pub fn sweep(cuda: &Cuda, args: &Args, cases: &[&KGroupedCase], clock: &mut Clock) -> Outcome {
    let mut right = true;
    for case in cases {
        let spec = case.spec();
        let ranking = plan::k_grouped_ranking_of(spec.family(), &spec.shape(), cuda.limits());
        let mut task = Work::KGrouped(spec).on(&Device::Cuda(cuda.clone()))?;
        let calibration_us = clock.calibration(args.runs as usize)?;
        for (rank, (choice, estimate)) in ranking.into_iter().enumerate() {
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            let us = clock.calls(&options, args.runs as usize, |options| task.run(options))?;
            let verdict = (!args.unchecked).then(|| judge(&mut task, &options, Effort::SWEEP)).transpose()?;
            right &= verdict.as_ref().is_none_or(|verdict| verdict.right);
            print_json(&json!({
                "case": case.name(), "choice": plan::name(&choice), "planned": rank == 0,
                "us": us, "anchor_us": case.call_us, "ratio": case.call_us / us,
                "estimate_us": estimate.us, "calibration_us": calibration_us,
                "right": verdict.map(|verdict| verdict.right),
            }));
        }
    }
    Ok(right)
}
