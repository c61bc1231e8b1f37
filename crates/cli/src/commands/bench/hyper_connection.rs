//! The GEMM before the norm of a hyper-connection: the part of a copy's bandwidth that it reaches.

use oxigemm::{Device, GemmOptions};
use oxigemm_testkit::Verdict;
use serde::Serialize;
use serde_json::json;

use super::Bench;
use crate::Outcome;
use crate::baseline::Anchor;
use crate::cases::hyper_connection::{HcHost, HcSpec};
use crate::output::{LiveTable, print_json, print_line, progress};

#[derive(Serialize)]
struct Row {
    case: String,
    us: f64,
    gb_per_s: f64,
    /// Of the bandwidth of a large copy.
    part_of_copy: f64,
    #[serde(flatten)]
    verdict: Verdict,
}

/// Shapes of the peer's tests: rows, depth, splits.
const CASES: [(usize, usize, Option<usize>); 7] = [
    (4096, 7168, None),
    (4096, 28672, None),
    (4096, 7168, Some(4)),
    (4096, 7168, Some(16)),
    (4096, 28672, Some(16)),
    (8192, 7680, None),
    (137, 7168, None),
];

const COLUMNS: [&str; 5] = ["case", "us", "GB/s", "of a copy", "diff"];

impl Row {
    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            self.case.clone(),
            format!("{:.2}", self.us),
            format!("{:.0}", self.gb_per_s),
            format!("{:.2}", self.part_of_copy),
            format!("{:.1e}{}", self.verdict.diff, if self.verdict.right { "" } else { " WRONG" }),
        ]
    }
}

/// Times the cases.
pub fn run(bench: &mut Bench) -> Outcome {
    let (common, cuda, args) = (bench.common, bench.cuda, bench.args);
    let device = Device::Cuda(cuda.clone());
    let copy = Anchor::dense_fp8().copy_gb_per_s;
    let mut rows = Vec::new();
    let specs = CASES.map(|(m, k, splits)| HcSpec::new([m, 24, k], splits, 1));
    let longest_name = specs.iter().map(|spec| spec.to_string().len()).max().unwrap_or(0);
    let table = (!common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let bar = progress(specs.len());
    for spec in specs {
        let case = spec.to_string();
        bar.inc(1);
        if !bench.wants(&case) {
            continue;
        }
        bar.set_message(case.clone());
        let host = HcHost::draw(spec);
        let mut operands = host.upload(&device)?;
        let mut us = f64::INFINITY;
        for _ in 0..args.passes {
            let runs = args.runs as usize;
            us = us.min(bench.clock.calls(&GemmOptions::default(), runs, |options| operands.run(options))?);
        }
        let gb_per_s = spec.bytes() / us * 1e-3;
        let verdict = host.judge(&operands)?;
        let row = Row { case, us, gb_per_s, part_of_copy: gb_per_s / copy, verdict };
        if let Some(table) = &table {
            table.row(&bar, row.cells());
        }
        rows.push(row);
    }
    bar.finish_and_clear();
    if rows.is_empty() {
        return Err(bench.no_case());
    }
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(), "timed_by": bench.clock.method(), "copy_gb_per_s": copy, "cases": rows,
        }));
    } else {
        print_line(&format!("timed by {} on {}", bench.clock.method(), cuda.gpu().name()));
    }
    Ok(rows.iter().all(|row| row.verdict.right))
}
