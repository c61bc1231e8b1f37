//! Einsums of attention: batched GEMMs of heads, and sums of a batch.

use oxigemm::{Device, GemmOptions};
use oxigemm_testkit::{Effort, Failure, Verdict, plan};
use serde::Serialize;
use serde_json::json;

use super::Bench;
use super::passes::Call;
use crate::Outcome;
use crate::cases::einsum::Einsum;
use crate::output::{LiveTable, print_json, print_line, progress};

#[derive(Serialize)]
struct Row {
    case: String,
    plan: String,
    us: f64,
    tflops: f64,
    gb_per_s: f64,
    #[serde(flatten)]
    verdict: Option<Verdict>,
}

const COLUMNS: [&str; 6] = ["case", "us", "TFLOPS", "GB/s", "exact", "plan"];

impl Row {
    fn is_right(&self) -> bool {
        self.verdict.as_ref().is_none_or(|verdict| verdict.right)
    }

    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            self.case.clone(),
            format!("{:.2}", self.us),
            format!("{:.0}", self.tflops),
            format!("{:.0}", self.gb_per_s),
            self.verdict.as_ref().map_or("-".to_owned(), |verdict| {
                format!("{:.1e}{}", verdict.diff, if verdict.right { "" } else { " WRONG" })
            }),
            self.plan.clone(),
        ]
    }
}

/// Times the cases.
pub fn run(bench: &mut Bench) -> Outcome {
    let cases: Vec<Einsum> =
        Einsum::all().into_iter().filter(|case| bench.wants(&case.to_string())).collect();
    if cases.is_empty() {
        return Err(bench.no_case());
    }
    let bar = progress(cases.len());
    let longest_name = cases.iter().map(|case| case.to_string().len()).max().unwrap_or(0);
    let table = (!bench.common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.to_string());
        let row = measure(case, bench)?;
        bar.inc(1);
        if let Some(table) = &table {
            table.row(&bar, row.cells());
        }
        rows.push(row);
    }
    bar.finish_and_clear();
    let device = bench.cuda.gpu().name();
    if bench.common.json {
        print_json(&json!({ "device": device, "timed_by": bench.clock.method(), "cases": rows }));
    } else {
        print_line(&format!("timed by {} on {device}", bench.clock.method()));
    }
    Ok(rows.iter().all(Row::is_right))
}

fn measure(case: Einsum, bench: &mut Bench) -> Result<Row, Failure> {
    let (gemm, options) = (case.gemm(), GemmOptions::default());
    let plan = plan::plan(&gemm, None, bench.cuda.limits()).ok_or("no kernel takes so many groups")?.name();
    let mut call = gemm.on(&Device::Cuda(bench.cuda.clone()))?;
    let mut us = f64::INFINITY;
    for _ in 0..bench.args.passes {
        us = us.min(bench.clock.calls(&options, bench.args.runs as usize, |options| call.run(options))?);
    }
    let verdict = bench.args.judged(|| Call::judge(&mut call, &options, Effort::BENCH))?;
    let (tflops, gb_per_s) = (gemm.flops() / us * 1e-6, gemm.bytes() / us * 1e-3);
    Ok(Row { case: case.to_string(), plan, us, tflops, gb_per_s, verdict })
}
