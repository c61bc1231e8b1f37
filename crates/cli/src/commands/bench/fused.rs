//! The cost of fused epilogues: each case beside the same GEMM without one.

use std::collections::HashMap;
use std::path::Path;

use oxigemm::plan::Limits;
use oxigemm::{Device, GemmLayout, GemmOptions};
use oxigemm_testkit::{
    BF16, Effort, EpilogueSpec, FP8, Failure, Fill, GemmCase, GroupLayout, MGroups, OperandTypes, ScaleOrder,
    plan, spread,
};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::sweep::{self, Regret, Took};
use crate::output::{LiveTable, print_json, print_line, progress};
use crate::{Common, Outcome};

/// Epilogues, and sizes N x K of B.
const EPILOGUES: [&str; 6] = ["bias", "bias,relu", "bias,gelu", "fp8", "swiglu", "swiglu,fp8"];
const SIZES: [[usize; 2]; 3] = [[4096, 7168], [7168, 2048], [24576, 1536]];
const ROWS: [usize; 4] = [8, 64, 128, 4096];
/// The peer's case of skipped columns.
const HEADS: (&str, [usize; 2]) = ("heads=128/64/128", [32768, 512]);

#[derive(Serialize)]
struct Row {
    case: String,
    plan: String,
    us: f64,
    plain_us: f64,
    /// How many times as long as the GEMM alone.
    ratio: f64,
    tflops: f64,
    right: bool,
}

/// The first GEMM of experts: groups, rows that are expected of each, and sizes N x K of B.
const EXPERTS: [[usize; 2]; 3] = [[32, 20], [32, 192], [6, 1024]];
const EXPERT_SIZES: [[usize; 2]; 2] = [[4096, 7168], [6144, 7168]];
const EXPERT_EPILOGUES: [&str; 2] = ["swiglu", "swiglu,fp8"];
/// What the rows of experts are drawn from.
const SEED: u64 = 0;
/// Experts with a B of their own. The others have the same numbers in memory of their own, because drawing is slow.
const DISTINCT: usize = 3;

/// The same of BF16.
const BF16_SIZES: [[usize; 2]; 2] = [[4096, 4096], [7168, 2048]];
const BF16_EPILOGUES: [&str; 5] = ["bias", "bias,gelu", "fp8", "swiglu", "swiglu,fp8"];

/// A case: one GEMM, or one for each of some groups of an m-grouped masked call.
#[derive(Clone, Copy)]
struct Case {
    types: OperandTypes,
    words: &'static str,
    groups: Option<usize>,
    dims: [usize; 3],
}

impl Case {
    fn name(&self) -> String {
        let (Case { types, words, groups, .. }, [m, n, k]) = (self, self.dims);
        let types = if *types == FP8 { String::new() } else { format!("{types} ") };
        let groups = groups.map_or(String::new(), |groups| format!("g{groups} "));
        format!("{types}{words} {groups}m{m} n{n} k{k}")
    }

    fn gemm(&self) -> Result<GemmCase, Failure> {
        let epilogue = self.words.parse::<EpilogueSpec>()?.beside(&self.types);
        Ok(GemmCase { epilogue: Some(epilogue), ..self.plain() })
    }

    /// The GEMM alone, which stores accumulators in BF16. Experts have the rows that a router might give them, of which
    /// no tile height is a divisor.
    fn plain(&self) -> GemmCase {
        let [m, n, k] = self.dims;
        match self.groups {
            None => GemmCase::dense(self.types, GemmLayout::Nt, self.dims),
            Some(groups) => {
                let groups = MGroups::new(GroupLayout::Counts, spread(groups, m, SEED));
                let groups = MGroups { distinct_b: DISTINCT, ..groups };
                let case = GemmCase::m_grouped(self.types, groups, [n, k]);
                GemmCase { m, sfa: ScaleOrder::Mn, fill: Fill::Rows, ..case }
            }
        }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = ROWS.into_iter().flat_map(|m| SIZES.map(|[n, k]| [m, n, k]));
    let types = FP8;
    let common = sizes.flat_map(move |dims| EPILOGUES.map(|words| Case { types, words, groups: None, dims }));
    let (words, [n, k]) = HEADS;
    let heads = [128, 4096].map(|m| Case { types, words, groups: None, dims: [m, n, k] });
    let experts = EXPERTS.into_iter().flat_map(move |[groups, m]| {
        EXPERT_SIZES.into_iter().flat_map(move |[n, k]| {
            EXPERT_EPILOGUES.map(|words| Case { types, words, groups: Some(groups), dims: [m, n, k] })
        })
    });
    let (types, sizes) = (BF16, ROWS.into_iter().flat_map(|m| BF16_SIZES.map(|[n, k]| [m, n, k])));
    let bf16 =
        sizes.flat_map(move |dims| BF16_EPILOGUES.map(|words| Case { types, words, groups: None, dims }));
    let bf16_experts = EXPERTS.into_iter().flat_map(move |[groups, m]| {
        let [n, k] = EXPERT_SIZES[0];
        EXPERT_EPILOGUES.map(|words| Case { types, words, groups: Some(groups), dims: [m, n, k] })
    });
    common.chain(heads).chain(experts).chain(bf16).chain(bf16_experts)
}

/// Runs the suite.
pub fn run(bench: &mut Bench) -> Outcome {
    let cases: Vec<_> = cases().filter(|case| bench.wants(&case.name())).collect();
    if cases.is_empty() {
        return Err(bench.no_case());
    }
    if bench.args.sweep {
        return sweep_all(bench, &cases);
    }
    let bar = progress(cases.len());
    let longest_name = cases.iter().map(|case| case.name().len()).max().unwrap_or(0);
    let table = (!bench.common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let mut right = true;
    for case in cases {
        bar.set_message(case.name());
        let row = measure(&case, bench)?;
        bar.inc(1);
        match &table {
            Some(table) => table.row(&bar, row.cells()),
            None => print_json(&row),
        }
        right &= row.right;
    }
    bar.finish_and_clear();
    if !bench.common.json {
        print_line(&format!("timed by {} on {}", bench.clock.method(), bench.cuda.gpu().name()));
    }
    Ok(right)
}

/// Times the candidates of every case without groups, to see how good the estimates are.
fn sweep_all(bench: &mut Bench, cases: &[Case]) -> Outcome {
    // Those of groups have no ranking of few rows to compare.
    let cases: Vec<_> = cases.iter().filter(|case| case.groups.is_none()).collect();
    if cases.is_empty() {
        return Err("groups are not swept, and no other case was asked for".into());
    }
    let mut right = true;
    for case in cases {
        right &= sweep::run_fused(bench, &case.name(), &case.gemm()?)?;
    }
    Ok(right)
}

/// What is read back of a line that a sweep wrote.
#[derive(Deserialize)]
struct Timed {
    case: String,
    #[serde(flatten)]
    took: Took,
}

/// Shows what today's plans would have taken, by the times of a sweep.
pub fn replay(common: &Common, path: &Path) -> Outcome {
    let mut times: HashMap<String, Vec<Took>> = HashMap::new();
    for Timed { case, took } in sweep::lines(path)? {
        times.entry(case).or_default().push(took);
    }
    if let Some(unknown) = times.keys().find(|name| cases().all(|case| case.name() != **name)) {
        return Err(format!("{unknown:?} is no case of this suite: was another swept?").into());
    }
    let regret = |case: Case| -> Option<Result<Regret, Failure>> {
        let times = times.get(&case.name())?;
        let plan =
            case.gemm().map(|gemm| plan::plan(&gemm, None, &Limits::h200()).expect("it has no groups"));
        plan.map(|plan| Regret::new(case.name(), plan.name(), times)).transpose()
    };
    let regrets: Vec<Regret> = cases().filter_map(regret).collect::<Result<_, _>>()?;
    sweep::show(common, path, &regrets)
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

fn measure(case: &Case, bench: &mut Bench) -> Result<Row, Failure> {
    let device = Device::Cuda(bench.cuda.clone());
    let (gemm, options, runs) = (case.gemm()?, GemmOptions::default(), bench.args.runs as usize);
    let plan = plan::plan(&gemm, None, bench.cuda.limits()).ok_or("no kernel takes so many groups")?.name();
    let (mut fused, mut plain) = (gemm.on(&device)?, case.plain().on(&device)?);
    let (mut us, mut plain_us) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..bench.args.passes {
        us = us.min(bench.clock.calls(&options, runs, |options| fused.run(options))?);
        plain_us = plain_us.min(bench.clock.calls(&options, runs, |options| plain.run(options))?);
    }
    let (right, tflops) = (fused.judge(Effort::QUICK)?.right, gemm.flops() / us * 1e-6);
    Ok(Row { case: case.name(), plan, us, plain_us, ratio: us / plain_us, tflops, right })
}
