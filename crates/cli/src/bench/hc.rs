//! The product before the norm of a hyper-connection: the part of a copy's bandwidth that it reaches.

use std::time::Duration;

use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;
use serde_json::json;

use super::{Args, time};
use crate::anchor::Anchor;
use crate::hc::{HcHost, HcSpec};
use crate::output::{Table, print_json, print_line};
use crate::timing::Clock;
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
const CASES: [(usize, usize, Option<usize>); 6] = [
    (4096, 7168, None),
    (4096, 28672, None),
    (4096, 7168, Some(16)),
    (4096, 28672, Some(16)),
    (8192, 7680, None),
    (137, 7168, None),
];

/// Times the cases.
pub fn run(common: &Common, cuda: &Cuda, args: &Args) -> Outcome {
    let device = Device::Cuda(cuda.clone());
    let copy = Anchor::dense_fp8().copy_gb_per_s;
    let mut clock = Clock::new(cuda, Duration::from_millis(args.rest_ms))?;
    let mut rows = Vec::new();
    for (m, k, splits) in CASES {
        let spec = HcSpec { m, n: 24, k, splits, seed: 1 };
        let case = spec.to_string();
        if args.filter.as_ref().is_some_and(|text| !case.contains(text.as_str())) {
            continue;
        }
        let host = HcHost::draw(spec);
        let mut operands = host.upload(&device)?;
        let mut us = f64::INFINITY;
        for _ in 0..args.passes {
            us = us.min(time(args, &mut clock, |options: &GemmOptions| operands.run(options))?.us);
        }
        let gb_per_s = spec.bytes() / us * 1e-3;
        let verdict = host.judge(&operands)?;
        rows.push(Row { case, us, gb_per_s, part_of_copy: gb_per_s / copy, verdict });
    }
    if rows.is_empty() {
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    if common.json {
        print_json(&json!({
            "device": cuda.gpu().name(), "timed_by": clock.method(), "copy_gb_per_s": copy, "cases": rows,
        }));
    } else {
        let mut table = Table::new(["case", "us", "GB/s", "of a copy", "diff"]);
        for row in &rows {
            table.row([
                row.case.clone(),
                format!("{:.2}", row.us),
                format!("{:.0}", row.gb_per_s),
                format!("{:.2}", row.part_of_copy),
                format!("{:.1e}{}", row.verdict.diff, if row.verdict.right { "" } else { " WRONG" }),
            ]);
        }
        table.print();
        print_line(&format!("timed by {} on {}", clock.method(), cuda.gpu().name()));
    }
    Ok(rows.iter().all(|row| row.verdict.right))
}
