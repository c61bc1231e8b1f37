//! What finishing sums costs: each case beside the product of the same size that stores them as they are.

use oxigemm::plan::Plan;
use oxigemm::{Cuda, Device, GemmOptions};
use serde::Serialize;

use super::Args;
use crate::fused::{FusedSpec, FusedTask};
use crate::output::{LiveTable, print_json, print_line, progress};
use crate::problem::Spec;
use crate::timing::Clock;
use crate::{Common, Failure, Outcome};

/// What is done with the sums of which sizes; N is that of B's rows.
const EPILOGUES: [&str; 6] = ["bias", "bias,relu", "bias,gelu", "fp8", "swiglu", "swiglu,fp8"];
const SIZES: [[usize; 2]; 3] = [[4096, 7168], [7168, 2048], [24576, 1536]];
const ROWS: [usize; 3] = [64, 128, 4096];
/// The peer's case of skipped columns.
const HEADS: (&str, [usize; 2]) = ("heads=128/64/128", [32768, 512]);

#[derive(Serialize)]
struct Row {
    case: String,
    plan: String,
    us: f64,
    plain_us: f64,
    /// How many times as long as the product alone.
    ratio: f64,
    tflops: f64,
    right: bool,
}

fn cases() -> impl Iterator<Item = (&'static str, [usize; 3])> {
    let sizes = ROWS.into_iter().flat_map(|m| SIZES.map(|[n, k]| [m, n, k]));
    let common = sizes.flat_map(|dims| EPILOGUES.map(|words| (words, dims)));
    let (heads, [n, k]) = HEADS;
    common.chain([128, 4096].map(|m| (heads, [m, n, k])))
}

/// Runs the suite.
pub fn run(common: &Common, cuda: &Cuda, args: &Args, clock: &mut Clock) -> Outcome {
    let name = |words: &str, [m, n, k]: [usize; 3]| format!("{words} m{m} n{n} k{k}");
    let wanted = |(words, dims): &(&str, [usize; 3])| {
        args.filter.as_ref().is_none_or(|text| name(words, *dims).contains(text.as_str()))
    };
    let cases: Vec<_> = cases().filter(wanted).collect();
    if cases.is_empty() {
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    let bar = progress(cases.len());
    let longest_name = cases.iter().map(|(words, dims)| name(words, *dims).len()).max().unwrap_or(0);
    let table = (!common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let mut rows = Vec::new();
    for (words, dims) in cases {
        bar.set_message(name(words, dims));
        let row = measure(name(words, dims), words, dims, (cuda, args, clock))?;
        bar.inc(1);
        match &table {
            Some(table) => table.row(&bar, row.cells()),
            None => print_json(&row),
        }
        rows.push(row);
    }
    bar.finish_and_clear();
    let right = rows.iter().all(|row| row.right);
    if common.json {
        return Ok(right);
    }
    print_line(&format!("timed by {} on {}", clock.method(), cuda.gpu().name()));
    Ok(right)
}

const COLUMNS: [&str; 7] = ["case", "us", "plain", "ratio", "TFLOPS", "result", "plan"];

impl Row {
    fn cells(&self) -> [String; COLUMNS.len()] {
        [
            self.case.clone(),
            format!("{:.2}", self.us),
            format!("{:.2}", self.plain_us),
            format!("{:.3}", self.ratio),
            format!("{:.0}", self.tflops),
            if self.right { "right" } else { "WRONG" }.to_owned(),
            self.plan.clone(),
        ]
    }
}

fn measure(
    case: String,
    words: &str,
    [m, n, k]: [usize; 3],
    (cuda, args, clock): (&Cuda, &Args, &mut Clock),
) -> Result<Row, Failure> {
    let device = Device::Cuda(cuda.clone());
    let spec = FusedSpec { product: Spec::new(m, n, k), epilogue: words.parse()? };
    let plan = Plan::best_fused(spec.product.family(), spec.shape(), &spec.epilogue.fused(), cuda.limits());
    let mut task = FusedTask::new(spec, &device)?;
    let mut plain = task.plain(&device)?;
    let runs = args.runs as usize;
    let (mut us, mut plain_us) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..args.passes {
        us = us.min(clock.calls(&GemmOptions::default(), runs, |options| task.run(options))?);
        plain_us = plain_us.min(clock.product(&mut plain, &GemmOptions::default(), runs)?);
    }
    let right = task.judge()?.right;
    let tflops = 2.0 * m as f64 * n as f64 * k as f64 / us * 1e-6;
    Ok(Row { case, plan: plan.name(), us, plain_us, ratio: us / plain_us, tflops, right })
}
