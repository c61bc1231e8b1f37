//! The peer's cases whose rows are grouped.

use oxigemm::plan;
use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;
use serde_json::json;

use super::figures::{Figures, Live, Peer, Work};
use super::{Args, Choices, time};
use crate::anchor::grouped::{Family, GroupedCase};
use crate::anchor::{Anchor, geometric_mean};
use crate::grouped::{GroupedHost, GroupedOperands};
use crate::output::{print_json, progress};
use crate::timing::Clock;
use crate::verdict::Effort;
use crate::{Common, Failure, Outcome};

/// How many candidates are the top.
const TOP: usize = 6;

/// A case that was timed.
#[derive(Serialize)]
pub struct Row {
    case: String,
    family: Family,
    groups: usize,
    expected: usize,
    n: usize,
    k: usize,
    /// The rows of each group.
    rows_of_groups: Vec<usize>,
    anchor_calibration_us: f64,
    #[serde(flatten)]
    pub figures: Figures,
}

/// Times what the planner chooses for each case.
pub fn rows(
    common: &Common,
    cuda: &Cuda,
    args: &Args,
    cases: &[&GroupedCase],
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

/// The first pass, with its verdict, and the operands for others.
fn measure(
    case: &GroupedCase,
    cuda: &Cuda,
    args: &Args,
    clock: &mut Clock,
) -> Result<(Row, GroupedOperands), Failure> {
    let spec = case.spec();
    let plan = plan::Plan::best_grouped_of(spec.family(), &spec.shape(), cuda.limits())
        .ok_or("no kernel has room for the groups")?;
    let anchor = Anchor::of(spec.op).ok_or("the peer has no such product")?;
    let host = GroupedHost::draw(spec)?;
    let mut operands = host.upload(&Device::Cuda(cuda.clone()))?;
    let times = time(args, clock, |options| operands.run(options))?;
    let verdict = args.judged(|| host.judge(&operands, Effort::BENCH))?;
    let (flops, bytes) = (host.spec.flops(), host.spec.bytes());
    let work = Work { flops, bytes, floor_us: anchor.roofline().floor_us(flops, bytes) };
    let peer = Peer { call_us: case.call_us, main_kernel_us: case.main_kernel_us, diff: case.diff };
    let row = Row {
        case: case.name(),
        family: case.family,
        groups: case.groups,
        expected: case.expected,
        n: case.n,
        k: case.k,
        rows_of_groups: case.rows.clone(),
        anchor_calibration_us: case.calibration_us,
        figures: Figures::new(&plan, work, peer, verdict, &times),
    };
    Ok((row, operands))
}

/// The mean ratio of each kind of case, and the worst one.
pub fn means(rows: &[Row]) -> Vec<(String, f64, f64)> {
    let kind = |row: &Row| (row.family.name(), row.expected);
    rows.chunk_by(|a, b| kind(a) == kind(b))
        .filter_map(|rows| {
            let ratios = || rows.iter().map(|row| row.figures.ratio);
            let name = format!("{} em{}", rows[0].family.name(), rows[0].expected);
            Some((name, geometric_mean(ratios())?, ratios().reduce(f64::min)?))
        })
        .collect()
}

/// Times the candidates of every case, one JSON line each.
pub fn sweep(cuda: &Cuda, args: &Args, cases: &[&GroupedCase], clock: &mut Clock) -> Outcome {
    let mut right = true;
    for case in cases {
        let spec = case.spec();
        let mut ranking = plan::grouped_ranking_of(spec.family(), &spec.shape(), cuda.limits());
        if args.choices == Choices::Top {
            ranking.truncate(TOP);
        }
        let host = GroupedHost::draw(spec)?;
        let mut operands = host.upload(&Device::Cuda(cuda.clone()))?;
        let calibration_us = clock.calibration(args.runs as usize)?;
        for (rank, (choice, estimate)) in ranking.into_iter().enumerate() {
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            let us = clock.calls(&options, args.runs as usize, |options| operands.run(options))?;
            let verdict = (!args.unchecked).then(|| host.judge(&operands, Effort::SWEEP)).transpose()?;
            right &= verdict.as_ref().is_none_or(|verdict| verdict.right);
            let terms: serde_json::Map<_, _> =
                estimate.terms().into_iter().map(|(name, us)| (name.to_owned(), json!(us))).collect();
            print_json(&json!({
                "case": case.name(), "choice": plan::name(&choice), "planned": rank == 0,
                "us": us, "anchor_us": case.call_us, "ratio": case.call_us / us,
                "estimate_us": estimate.us, "terms": terms, "calibration_us": calibration_us,
                "right": verdict.map(|verdict| verdict.right),
            }));
        }
    }
    Ok(right)
}
