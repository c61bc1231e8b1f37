//! The product before the norm of a hyper-connection: the part of a copy's bandwidth that it reaches.

use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;
use serde_json::json;

use super::{Args, time};
use crate::anchor::Anchor;
use crate::hc::{HcHost, HcSpec};
use crate::output::{LiveTable, print_json, print_line, progress};
use crate::verdict::Verdict;
use crate::{Common, Outcome};

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
pub fn run(common: &Common, cuda: &Cuda, args: &Args) -> Outcome {
    let device = Device::Cuda(cuda.clone());
    let copy = Anchor::dense_fp8().copy_gb_per_s;
    let mut clock = args.clock(cuda)?;
    let mut rows = Vec::new();
    let specs = CASES.map(|(m, k, splits)| HcSpec::new([m, 24, k], splits, 1));
    let longest_name = specs.iter().map(|spec| spec.to_string().len()).max().unwrap_or(0);
    let table = (!common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let bar = progress(specs.len());
    for spec in specs {
        let case = spec.to_string();
        bar.inc(1);
        if args.filter.as_ref().is_some_and(|text| !case.contains(text.as_str())) {
            continue;
        }
        bar.set_message(case.clone());
        let host = HcHost::draw(spec);
        let mut operands = host.upload(&device)?;
        let mut us = f64::INFINITY;
        for _ in 0..args.passes {
            us = us.min(time(args, &mut clock, |options: &GemmOptions| operands.run(options))?.us);
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
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(), "timed_by": clock.method(), "copy_gb_per_s": copy, "cases": rows,
        }));
    } else {
        print_line(&format!("timed by {} on {}", clock.method(), cuda.gpu().name()));
    }
    Ok(rows.iter().all(|row| row.verdict.right))
}
