//! The peer's cases whose rows are grouped.

use oxigemm::plan;
use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;
use serde_json::json;

use super::{Args, Choices};
use crate::anchor::grouped::{Family, GroupedCase};
use crate::anchor::{Anchor, geometric_mean};
use crate::grouped::GroupedHost;
use crate::output::{Table, print_json, print_line, progress};
use crate::timing::Clock;
use crate::verdict::{Effort, Verdict};
use crate::{Failure, Outcome};

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
    plan: String,
    us: f64,
    estimate_us: f64,
    anchor_us: f64,
    anchor_main_kernel_us: f64,
    anchor_calibration_us: f64,
    ratio: f64,
    tflops: f64,
    gb_per_s: f64,
    roofline: f64,
    pub calibration_us: Option<f64>,
    anchor_diff: f64,
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Times what the planner chooses for each case.
pub fn rows(
    cuda: &Cuda,
    args: &Args,
    cases: &[&GroupedCase],
    clock: &mut Clock,
) -> Result<Vec<Row>, Failure> {
    let bar = progress(cases.len());
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.name());
        rows.push(measure(case, cuda, args, clock)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn measure(case: &GroupedCase, cuda: &Cuda, args: &Args, clock: &mut Clock) -> Result<Row, Failure> {
    let spec = case.spec();
    let plan =
        plan::Plan::best_grouped(&spec.shape(), cuda.limits()).ok_or("no kernel has room for the groups")?;
    let host = GroupedHost::draw(spec)?;
    let mut operands = host.upload(&Device::Cuda(cuda.clone()))?;
    let us = clock.calls(&GemmOptions::default(), args.runs as usize, |options| operands.run(options))?;
    let calibration_us = clock.calibration(args.runs as usize)?;
    let verdict = host.judge(&operands, Effort::BENCH)?;
    let (flops, bytes) = (host.spec.flops(), host.spec.bytes());
    Ok(Row {
        case: case.name(),
        family: case.family,
        groups: case.groups,
        expected: case.expected,
        n: case.n,
        k: case.k,
        plan: plan.name(),
        us,
        estimate_us: plan.estimate.us,
        anchor_us: case.call_us,
        anchor_main_kernel_us: case.main_kernel_us,
        anchor_calibration_us: case.calibration_us,
        ratio: case.call_us / us,
        tflops: flops / us * 1e-6,
        gb_per_s: bytes / us * 1e-3,
        roofline: Anchor::dense_fp8().roofline().floor_us(flops, bytes) / us,
        calibration_us,
        anchor_diff: case.diff,
        verdict,
    })
}

/// The mean ratio of each kind of case, and the worst one.
pub fn means(rows: &[Row]) -> Vec<(String, f64, f64)> {
    let kind = |row: &Row| (row.family.name(), row.expected);
    rows.chunk_by(|a, b| kind(a) == kind(b))
        .filter_map(|rows| {
            let ratios = || rows.iter().map(|row| row.ratio);
            let name = format!("{} em{}", rows[0].family.name(), rows[0].expected);
            Some((name, geometric_mean(ratios())?, ratios().reduce(f64::min)?))
        })
        .collect()
}

/// Prints the cases as a table.
pub fn print(rows: &[Row]) {
    let mut table = Table::new([
        "case", "us", "anchor", "ratio", "TFLOPS", "GB/s", "roofline", "diff", "anchor's", "exact", "calib.",
        "plan",
    ]);
    for row in rows {
        table.row([
            row.case.clone(),
            format!("{:.2}", row.us),
            format!("{:.2}", row.anchor_us),
            format!("{:.3}", row.ratio),
            format!("{:.0}", row.tflops),
            format!("{:.0}", row.gb_per_s),
            format!("{:.2}", row.roofline),
            format!("{:.2e}", row.verdict.diff_unquantized),
            format!("{:.2e}", row.anchor_diff),
            format!("{:.1e}{}", row.verdict.diff, if row.verdict.right { "" } else { " WRONG" }),
            row.calibration_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
            row.plan.clone(),
        ]);
    }
    table.print();
    print_line("");
}

/// Times the candidates of every case, one JSON line each.
pub fn sweep(cuda: &Cuda, args: &Args, cases: &[&GroupedCase], clock: &mut Clock) -> Outcome {
    let mut right = true;
    for case in cases {
        let spec = case.spec();
        let mut ranking = plan::grouped_ranking(&spec.shape(), cuda.limits());
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
