//! The suite of the router: the whole call, from hidden states to ids and weights.
//!
//! The kernel of the choice starts while the GEMM ends, so the sum of both durations counts some of the time twice; the
//! span from the first start to the last end does not.

use oxigemm::{Device, GemmOptions, Scoring, plan};
use serde::Serialize;
use serde_json::json;

use super::Bench;
use crate::Outcome;
use crate::cases::router::RouterSpec;
use crate::output::{LiveTable, print_json, print_line, progress};

#[derive(Serialize)]
struct Row {
    case: String,
    us: f64,
    /// From the start of the GEMM to the end of the choice, where kernels are recorded.
    span_us: Option<f64>,
    right: bool,
}

const COLUMNS: [&str; 4] = ["case", "us", "span", "result"];

/// DeepSeek-V3 with the tokens of decoding and of a prompt, and other routers with a few.
fn specs() -> Vec<RouterSpec> {
    let v3 = RouterSpec::deepseek_v3;
    let plain = RouterSpec { groups: [1, 1], bias: false, ..v3(64) };
    let mut specs: Vec<RouterSpec> = [1, 8, 32, 64, 128, 1024, 4096].map(v3).to_vec();
    // Narrower tiles than planned: more CTAs.
    let gemm = plan::parse("sm90_bf16_split_k_nt_32x64_k8_s14");
    let narrow = |tokens| RouterSpec { gemm, ..v3(tokens) };
    specs.extend([64, 128].map(narrow));
    specs.extend([
        RouterSpec { scoring: Scoring::Softmax, ..plain },
        RouterSpec { scoring: Scoring::SqrtSoftplus, bias: true, ..plain },
        RouterSpec { scoring: Scoring::Softmax, experts: 128, k: 4096, ..plain },
        RouterSpec { scoring: Scoring::Softmax, experts: 512, k: 4096, topk: 10, ..plain },
        RouterSpec { scoring: Scoring::Softmax, experts: 32, k: 2880, topk: 4, ..plain },
    ]);
    specs
}

/// Times the cases.
pub fn run(bench: &mut Bench) -> Outcome {
    let (common, cuda, args) = (bench.common, bench.cuda, bench.args);
    let device = Device::Cuda(cuda.clone());
    let mut specs = specs();
    specs.retain(|spec| bench.wants(&spec.to_string()));
    if specs.is_empty() {
        return Err(bench.no_case());
    }
    let longest_name = specs.iter().map(|spec| spec.to_string().len()).max().unwrap_or(0);
    let table = (!common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let bar = progress(specs.len());
    let mut rows = Vec::new();
    for spec in specs {
        let case = spec.to_string();
        bar.set_message(case.clone());
        let mut task = spec.on(&device)?;
        let (mut us, mut span_us) = (f64::INFINITY, None);
        for _ in 0..args.passes {
            let runs = args.runs as usize;
            let found = bench.clock.calls(&GemmOptions::default(), runs, |options| task.run(options))?;
            if found < us {
                (us, span_us) = (found, bench.clock.span());
            }
        }
        let right = task.is_right(&device)?;
        if let Some(table) = &table {
            let result = if right { "right" } else { "WRONG" };
            let span = span_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
            table.row(&bar, [case.clone(), format!("{us:.2}"), span, result.to_owned()]);
        }
        bar.inc(1);
        rows.push(Row { case, us, span_us, right });
    }
    bar.finish_and_clear();
    if common.json {
        print_json(&json!({ "device": cuda.gpu().name(), "timed_by": bench.clock.method(), "cases": rows }));
    } else {
        print_line(&format!("timed by {} on {}", bench.clock.method(), cuda.gpu().name()));
    }
    Ok(rows.iter().all(|row| row.right))
}
