//! What finishing sums costs: each case beside the product of the same size that stores them as they are.

use std::collections::HashMap;
use std::path::Path;

use oxigemm::plan::{self, Limits, fused_ranking};
use oxigemm::{Cuda, Device, GemmLayout, GemmOptions};
use oxigemm_kernels::grouping::GroupLayout;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::sweep::{self, Regret, TOP, Took};
use super::{Args, Choices};
use crate::fused::{EpilogueSpec, FusedSpec};
use crate::fused_grouped::FusedGroupedSpec;
use crate::grouped::GroupedSpec;
use crate::output::{LiveTable, print_json, print_line, progress};
use crate::problem::{ScaleOrder, Spec};
use crate::task::Work;
use crate::timing::Clock;
use crate::verdict::Effort;
use crate::{Common, Failure, Op, Outcome};

/// What is done with the sums of which sizes; N is that of B's rows.
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
    /// How many times as long as the product alone.
    ratio: f64,
    tflops: f64,
    right: bool,
}

/// The first product of experts: groups, rows that are expected of each, and rows of B by K.
const EXPERTS: [[usize; 2]; 3] = [[32, 20], [32, 192], [6, 1024]];
const EXPERT_SIZES: [[usize; 2]; 2] = [[4096, 7168], [6144, 7168]];
const EXPERT_EPILOGUES: [&str; 2] = ["swiglu", "swiglu,fp8"];

/// The same of BF16.
const BF16_SIZES: [[usize; 2]; 2] = [[4096, 4096], [7168, 2048]];
const BF16_EPILOGUES: [&str; 5] = ["bias", "bias,gelu", "fp8", "swiglu", "swiglu,fp8"];

/// A case: one product, or one for each of some groups, whose rows are masked.
#[derive(Clone, Copy)]
struct Case {
    op: Op,
    words: &'static str,
    groups: Option<usize>,
    dims: [usize; 3],
}

impl Case {
    fn name(&self) -> String {
        let (Case { op, words, groups, .. }, [m, n, k]) = (self, self.dims);
        let op = if *op == Op::Fp8 { String::new() } else { format!("{op} ") };
        let groups = groups.map_or(String::new(), |groups| format!("g{groups} "));
        format!("{op}{words} {groups}m{m} n{n} k{k}")
    }

    fn work(&self) -> Result<Work, Failure> {
        let epilogue = self.words.parse::<EpilogueSpec>()?.beside(self.op);
        Ok(match self.groups {
            None => Work::Fused(FusedSpec { product: self.product(), epilogue }),
            Some(groups) => Work::FusedGrouped(FusedGroupedSpec { product: self.experts(groups), epilogue }),
        })
    }

    fn product(&self) -> Spec {
        Spec::of(self.op, GemmLayout::Nt, self.dims)
    }

    /// The product alone, which stores its sums in BF16.
    fn plain(&self) -> Work {
        match self.groups {
            None => Work::Dense(self.product()),
            Some(groups) => Work::Grouped(self.experts(groups)),
        }
    }

    /// So many experts, all of as many rows, that share a B. (Drawing is slow.)
    fn experts(&self, groups: usize) -> GroupedSpec {
        let [m, n, k] = self.dims;
        let spec = GroupedSpec::new(GroupLayout::Counts, vec![m; groups], n, k).of(self.op, GemmLayout::Nt);
        GroupedSpec { sfa: ScaleOrder::Mn, different: 1, poison: false, ..spec }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let sizes = ROWS.into_iter().flat_map(|m| SIZES.map(|[n, k]| [m, n, k]));
    let op = Op::Fp8;
    let common = sizes.flat_map(move |dims| EPILOGUES.map(|words| Case { op, words, groups: None, dims }));
    let (words, [n, k]) = HEADS;
    let heads = [128, 4096].map(|m| Case { op, words, groups: None, dims: [m, n, k] });
    let experts = EXPERTS.into_iter().flat_map(move |[groups, m]| {
        EXPERT_SIZES.into_iter().flat_map(move |[n, k]| {
            EXPERT_EPILOGUES.map(|words| Case { op, words, groups: Some(groups), dims: [m, n, k] })
        })
    });
    let sizes = ROWS.into_iter().flat_map(|m| BF16_SIZES.map(|[n, k]| [m, n, k]));
    let bf16 =
        sizes.flat_map(|dims| BF16_EPILOGUES.map(|words| Case { op: Op::Bf16, words, groups: None, dims }));
    let bf16_experts = EXPERTS.into_iter().flat_map(|[groups, m]| {
        let [n, k] = EXPERT_SIZES[0];
        EXPERT_EPILOGUES.map(|words| Case { op: Op::Bf16, words, groups: Some(groups), dims: [m, n, k] })
    });
    common.chain(heads).chain(experts).chain(bf16).chain(bf16_experts)
}

/// Runs the suite.
pub fn run(common: &Common, cuda: &Cuda, args: &Args, clock: &mut Clock) -> Outcome {
    let wanted = |case: &Case| args.filter.as_ref().is_none_or(|text| case.name().contains(text.as_str()));
    let cases: Vec<_> = cases().filter(wanted).collect();
    if cases.is_empty() {
        return Err(format!("no case contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    if args.sweep {
        return time_all(cuda, args, &cases, clock);
    }
    let bar = progress(cases.len());
    let longest_name = cases.iter().map(|case| case.name().len()).max().unwrap_or(0);
    let table = (!common.json).then(|| LiveTable::new(COLUMNS, longest_name));
    let mut rows = Vec::new();
    for case in cases {
        bar.set_message(case.name());
        let row = measure(&case, (cuda, args, clock))?;
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

/// Times the candidates of every case without groups, to see how good the estimates are.
fn time_all(cuda: &Cuda, args: &Args, cases: &[Case], clock: &mut Clock) -> Outcome {
    let (device, limits) = (Device::Cuda(cuda.clone()), cuda.limits());
    let mut right = true;
    // Those of groups have no ranking of few rows to compare.
    let cases: Vec<_> = cases.iter().filter(|case| case.groups.is_none()).collect();
    if cases.is_empty() {
        return Err("groups are not swept, and no other case was asked for".into());
    }
    for case in cases {
        let Work::Fused(spec) = case.work()? else { unreachable!("it has no groups") };
        let (family, fused) = (spec.product.family(), spec.epilogue.fused());
        let count = if args.choices == Choices::All { usize::MAX } else { TOP };
        let mut task = Work::Fused(spec).on(&device)?;
        for (nth, (choice, estimate)) in
            fused_ranking(family, spec.shape(), &fused, limits).into_iter().take(count).enumerate()
        {
            let options = GemmOptions { choice: Some(choice), ..Default::default() };
            let us = clock.calls(&options, args.runs as usize, |options| task.run(options))?;
            let verdict = args.judged(|| task.judge(Effort::SWEEP))?.map(|verdict| verdict.right);
            right &= verdict.unwrap_or(true);
            print_json(&json!({
                "case": case.name(), "choice": plan::name(&choice), "planned": nth == 0,
                "us": us, "estimate_us": estimate.us, "right": verdict,
            }));
        }
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
        let plan = case.work().map(|work| work.plan(None, &Limits::h200()).expect("it has no groups"));
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

fn measure(case: &Case, (cuda, args, clock): (&Cuda, &Args, &mut Clock)) -> Result<Row, Failure> {
    let device = Device::Cuda(cuda.clone());
    let (work, options, runs) = (case.work()?, GemmOptions::default(), args.runs as usize);
    let plan = work.plan(None, cuda.limits()).ok_or("no kernel has room for the groups")?;
    let (mut task, mut plain) = (work.on(&device)?, case.plain().on(&device)?);
    let (mut us, mut plain_us) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..args.passes {
        us = us.min(clock.calls(&options, runs, |options| task.run(options))?);
        plain_us = plain_us.min(clock.calls(&options, runs, |options| plain.run(options))?);
    }
    let (right, tflops) = (task.judge(Effort::QUICK)?.right, work.flops() / us * 1e-6);
    let (case, plan, ratio) = (case.name(), plan.name(), us / plain_us);
    Ok(Row { case, plan, us, plain_us, ratio, tflops, right })
}
