//! `oxigemm gemm`: one problem, run, checked and timed.

use std::str::FromStr;
use std::time::Instant;

use oxigemm::plan::{self, Choice};
use oxigemm::{DType, Device, GemmLayout, GemmOptions, Sim};
use oxigemm_cuda::profile::REST;
use oxigemm_kernels::fp8::E5m2;
use oxigemm_kernels::grouping::GroupLayout;
use serde::Serialize;

use crate::anchor::Anchor;
use crate::fused::{EpilogueSpec, FusedSpec};
use crate::fused_grouped::FusedGroupedSpec;
use crate::grouped::{GroupOptions, GroupedSpec, RowLayout};
use crate::kgrouped::{KGroupedForm, KGroupedSpec};
use crate::output::{print_json, print_line};
use crate::problem::{AddendKind, ScaleMode, ScaleOrder, Spec};
use crate::task::Work;
use crate::timing::Clock;
use crate::verdict::{self, Effort, Verdict};
use crate::{Common, Failure, Op, Outcome};

/// Arguments of `gemm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub size: Size,
    /// The type of D and C: f32, or a 16-bit type, which is bf16 unless A and B are f16.
    #[arg(long, value_parser = parse_d_type)]
    d_type: Option<DType>,
    /// What is added to the product.
    #[arg(long, value_enum, default_value_t)]
    c: AddendKind,
    /// Which elements share a scale, of a dense product.
    #[arg(long, value_enum, default_value_t)]
    scales: ScaleMode,
    /// How the scales of A lie in memory.
    #[arg(long, value_enum, default_value_t)]
    sfa: ScaleOrder,
    /// How the scales of B lie in memory.
    #[arg(long, value_enum, default_value_t)]
    sfb: ScaleOrder,
    /// What the operands are drawn from.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A kernel and its launch by name, instead of the planned one; `inspect` lists them.
    #[arg(long, value_parser = parse_choice)]
    choice: Option<Choice>,
    /// Use at most this many multiprocessors.
    #[arg(long)]
    num_sms: Option<u32>,
    /// Give a row the same bits whatever the number of rows.
    #[arg(long)]
    batch_invariant: bool,
    /// Calls that are timed on a GPU; 0 for none.
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

/// The function and its size.
#[derive(Clone, Debug, clap::Args)]
pub struct Size {
    /// The function.
    #[arg(long, value_enum, default_value_t)]
    pub op: Op,
    /// How A and B are given: nt, nn, tn or tt. How the device is told where groups are, that lie one
    /// behind another: ids or ends. Where both are to be told: nn,ends.
    #[arg(long, value_delimiter = ',')]
    pub layout: Vec<LayoutName>,
    /// Rows of A and D; where rows are grouped, those that a group is expected to have.
    #[arg(long, short)]
    pub m: u32,
    /// Rows of B, or of each group's, and columns of D.
    #[arg(long, short)]
    pub n: u32,
    /// Columns of A and B; where groups are along K, those that a group is expected to have.
    #[arg(long, short)]
    pub k: u32,
    /// Which operands are e5m2, of a dense FP8 product.
    #[arg(long, value_parser = parse_e5m2, value_name = "a|b|both")]
    pub e5m2: Option<E5m2>,
    /// What is done with the sums of fp8, bf16 and fp16, and of their contiguous and masked groups, before they are stored, as words between commas: bias, bias-f32, relu, gelu,
    /// gelu-tanh, silu, swiglu, geglu, gated, alpha=X, beta=X, fp8, fp8-pow2, heads=left/mid/right.
    #[arg(long, value_name = "WORDS")]
    pub epilogue: Option<EpilogueSpec>,
    #[command(flatten)]
    pub groups: GroupOptions,
}

/// Reads which operands are e5m2.
fn parse_e5m2(name: &str) -> Result<E5m2, String> {
    match name {
        "a" => Ok(E5m2::A),
        "b" => Ok(E5m2::B),
        "both" => Ok(E5m2::Both),
        _ => Err("expected a, b or both".to_owned()),
    }
}

impl Size {
    /// What is to be computed, without gaps.
    pub fn work(&self, seed: u64) -> Result<Work, Failure> {
        let dims = [self.m, self.n, self.k].map(|x| x as usize);
        if self.e5m2.is_some() && self.op != Op::Fp8 {
            return Err(format!("--e5m2 is for --op fp8, not for {}", self.op).into());
        }
        let (mut operands, mut rows) = (None, None);
        for name in &self.layout {
            let told = match *name {
                LayoutName::Operands(layout) => operands.replace(layout).is_some(),
                LayoutName::Rows(layout) => rows.replace(layout).is_some(),
            };
            if told {
                return Err("--layout names the same twice".into());
            }
        }
        let (op, layout) = (self.op, operands.unwrap_or_default());
        if let Some(epilogue) = self.epilogue {
            let groups = op.groups(rows.unwrap_or_default());
            let batch = groups == Some(GroupLayout::All) || op.is_summed() || op.is_k_grouped();
            if batch || op == Op::Fp81d1d || self.e5m2.is_some() {
                let which =
                    "only products of e4m3, bf16 and fp16 have, and their contiguous and masked groups";
                return Err(format!("{op} has no --epilogue: {which}").into());
            }
            let contiguous = matches!(groups, Some(GroupLayout::Ids | GroupLayout::Ends));
            if layout != GemmLayout::Nt || (rows.is_some() && !contiguous) {
                return Err(format!("{op} has no such --layout with an --epilogue: expected nt").into());
            }
            let epilogue = epilogue.beside(op);
            if let Some(groups) = groups {
                let product = self.groups.spec(groups, dims, seed).of(op.dense(), layout);
                return Ok(Work::FusedGrouped(FusedGroupedSpec { product, epilogue }));
            }
            let product = Spec { seed, ..Spec::of(op, layout, dims) };
            return Ok(Work::Fused(FusedSpec { product, epilogue }));
        }
        let expected = match (op.dense(), op.groups(rows.unwrap_or_default())) {
            (_, None) if op.is_k_grouped() => match (KGroupedForm::of(op, operands), rows) {
                (Some(form), None) => return Ok(Work::KGrouped(self.groups.k_spec(form, dims, seed))),
                _ => "tn or nt",
            },
            (op, None) if self.op.is_summed() => match (layout, rows) {
                (GemmLayout::Nt, None) => {
                    let slabs = self.groups.groups;
                    let [m, n, k] = dims;
                    let spec = Spec::of(op, layout, [m, n, slabs * k]);
                    return Ok(Work::Dense(Spec { seed, slabs: Some(slabs), ..spec }));
                }
                _ => "nt",
            },
            (Op::Fp81d1d, None) if layout != GemmLayout::Nt || rows.is_some() => {
                "nt, as its operands are K-major"
            }
            (_, None) if rows.is_some() => "nt, nn, tn or tt",
            (Op::Fp8, Some(GroupLayout::All)) if layout != GemmLayout::Nt || rows.is_some() => "nt",
            (Op::Fp8, Some(groups)) if operands.is_some() && groups != GroupLayout::All => "ids or ends",
            (_, Some(GroupLayout::All)) if layout.a_begins_with_k() || rows.is_some() => "nt or nn",
            (_, Some(_)) if layout.a_begins_with_k() => "nt or nn, and ids or ends",
            (op, None) => {
                return Ok(Work::Dense(Spec { seed, e5m2: self.e5m2, ..Spec::of(op, layout, dims) }));
            }
            (op, Some(groups)) => {
                let spec = self.groups.spec(groups, dims, seed);
                return Ok(Work::Grouped(spec.of(op, layout)));
            }
        };
        Err(format!("{op} has no such --layout: expected {expected}").into())
    }
}

/// What `--layout` may name.
#[derive(Clone, Copy, Debug)]
pub enum LayoutName {
    /// How A and B are given.
    Operands(GemmLayout),
    /// How the device is told where groups are.
    Rows(RowLayout),
}

impl FromStr for LayoutName {
    type Err = String;

    fn from_str(name: &str) -> Result<LayoutName, String> {
        let operands = || name.parse().map(LayoutName::Operands);
        let rows = || <RowLayout as clap::ValueEnum>::from_str(name, false).map(LayoutName::Rows);
        operands().or_else(|_| rows()).map_err(|_| "expected nt, nn, tn or tt, or ids or ends".to_owned())
    }
}

/// Reads the type of D.
fn parse_d_type(name: &str) -> Result<DType, String> {
    match name.parse() {
        Ok(dtype @ (DType::Bf16 | DType::F16 | DType::F32)) => Ok(dtype),
        _ => Err("expected bf16, f16 or f32".to_owned()),
    }
}

/// Reads the name of a choice.
pub fn parse_choice(name: &str) -> Result<Choice, String> {
    plan::parse(name).ok_or_else(|| {
        "expected a name like wide_128x128_s5_c1x2 or bf16_wide_nn_256x128_s3_c1x1; `oxigemm inspect` lists them"
            .to_owned()
    })
}

#[derive(Serialize)]
struct Report {
    device: String,
    op: &'static str,
    layout: &'static str,
    groups: Option<usize>,
    /// Whether sums are finished; the result is compared with the single steps then.
    epilogue: bool,
    m: u32,
    n: u32,
    k: u32,
    computed_rows: usize,
    d_type: String,
    plan: Option<String>,
    host_first_call_us: Option<f64>,
    simulated: Option<Simulated>,
    us: Option<f64>,
    timed_by: Option<String>,
    tflops: Option<f64>,
    gb_per_s: Option<f64>,
    anchor_us: Option<f64>,
    #[serde(skip)]
    unquantized_limit: f64,
    #[serde(flatten)]
    verdict: Verdict,
    nothing_outside_written: bool,
}

/// What the simulator did. Its time says nothing of a GPU's.
#[derive(Serialize)]
struct Simulated {
    policy: String,
    seed: u64,
    hazards: bool,
    instructions: u64,
    macs: u64,
    copies: u64,
    ctas: u64,
}

impl Simulated {
    fn last(sim: &Sim) -> Option<Simulated> {
        let (options, report) = (sim.options(), sim.last_report()?);
        Some(Simulated {
            policy: format!("{:?}", options.policy).to_lowercase(),
            seed: options.seed,
            hazards: options.hazards,
            instructions: report.instructions,
            macs: report.macs,
            copies: report.copies,
            ctas: report.ctas,
        })
    }
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let device = common.device()?;
    let Size { m, n, k, op, .. } = args.size;
    let work = work(args)?;
    let mut task = work.on(&device)?;
    let Args { choice, num_sms, batch_invariant, .. } = *args;
    let options = GemmOptions { choice, num_sms, batch_invariant, ..Default::default() };
    let started = Instant::now();
    task.run(&options)?;
    let host_first_call_us = device.as_sim().is_none().then(|| started.elapsed().as_secs_f64() * 1e6);
    device.synchronize()?;
    let verdict = task.judge(Effort::THOROUGH)?;
    let untouched = task.surroundings_untouched()?;

    let plan = planned(&device, &work, args);
    let (mut us, mut timed_by) = (None, None);
    if let (Device::Cuda(cuda), true, true) = (&device, args.runs > 0, plan.is_some()) {
        let mut clock = Clock::new(cuda, REST)?;
        us = Some(clock.calls(&options, args.runs, |options| task.run(options))?);
        timed_by = Some(clock.method());
    }
    let (layout, d_type, unquantized_limit) = match &work {
        Work::Dense(spec) => (spec.layout.name(), spec.d_type, verdict::unquantized_limit(spec)),
        Work::Grouped(spec) => (spec.operands.name(), spec.d_type, verdict::UNQUANTIZED_LIMIT),
        Work::KGrouped(spec) => (spec.form.layout.name(), spec.d_type, verdict::UNQUANTIZED_LIMIT),
        Work::Fused(FusedSpec { product, epilogue }) => {
            let d_type = if epilogue.quantized.is_some() { DType::E4m3 } else { product.d_type };
            ("nt", d_type, verdict::UNQUANTIZED_LIMIT)
        }
        Work::FusedGrouped(spec) => ("nt", spec.d_type(), verdict::UNQUANTIZED_LIMIT),
    };
    let usual = if op == Op::Fp81d1d { args.c == AddendKind::Inplace } else { d_type == DType::Bf16 };
    let dense = matches!(&work, Work::Dense(spec) if spec.layout == GemmLayout::Nt) && usual;
    let anchor = Anchor::of(op).and_then(|anchor| anchor.case(m, n, k)).filter(|_| dense);
    let report = Report {
        device: device.to_string(),
        op: op.name(),
        layout,
        groups: match &work {
            Work::Dense(_) | Work::Fused(_) => None,
            Work::Grouped(spec) | Work::FusedGrouped(FusedGroupedSpec { product: spec, .. }) => {
                Some(spec.rows.len())
            }
            Work::KGrouped(spec) => Some(spec.ks.len()),
        },
        epilogue: matches!(work, Work::Fused(_) | Work::FusedGrouped(_)),
        m,
        n,
        k,
        computed_rows: work.rows(),
        d_type: d_type.to_string(),
        plan,
        host_first_call_us,
        simulated: device.as_sim().and_then(Simulated::last),
        us,
        timed_by,
        tflops: us.map(|us| work.flops() / us * 1e-6),
        gb_per_s: us.map(|us| work.bytes() / us * 1e-3),
        anchor_us: anchor.map(|case| case.call_us),
        nothing_outside_written: untouched,
        unquantized_limit,
        verdict,
    };
    if common.json {
        print_json(&report);
    } else {
        print(&report);
    }
    Ok(report.verdict.right && untouched)
}

/// The plan that was run: none on the CPU, and none where nothing is multiplied.
fn planned(device: &Device, work: &Work, args: &Args) -> Option<String> {
    let limits = device.limits().filter(|_| !work.is_empty())?;
    let limits = args.num_sms.map_or(*limits, |sms| limits.restricted_to(sms));
    let plan = match (args.choice, args.batch_invariant) {
        (None, true) => work.batch_invariant_plan(&limits),
        (choice, _) => work.plan(choice, &limits),
    };
    Some(plan?.name())
}

/// What is to be computed, with its layout.
fn work(args: &Args) -> Result<Work, Failure> {
    let op = args.size.op;
    let d_type = args.d_type.unwrap_or(op.d_types()[0]);
    if !op.d_types().contains(&d_type) {
        let [usual, wide] = op.d_types();
        return Err(format!("{op} gives {usual} or {wide}, not {d_type}").into());
    }
    match args.size.work(args.seed)? {
        Work::Dense(spec) => {
            let Args { c: addend, scales, sfa, sfb, .. } = *args;
            Ok(Work::Dense(Spec { d_type, addend, scales, sfa, sfb, ..spec }))
        }
        Work::KGrouped(spec) => {
            Ok(Work::KGrouped(KGroupedSpec { d_type, addend: args.c, scales: [args.sfa, args.sfb], ..spec }))
        }
        Work::Fused(FusedSpec { product, epilogue }) => {
            let Args { c: addend, scales, sfa, sfb, .. } = *args;
            let product = Spec { d_type, addend, scales, sfa, sfb, ..product };
            Ok(Work::Fused(FusedSpec { product, epilogue }))
        }
        Work::FusedGrouped(FusedGroupedSpec { product, epilogue }) => match (args.scales, args.sfb) {
            (ScaleMode::Fine, ScaleOrder::Row) => {
                let product = GroupedSpec { d_type, addend: args.c, sfa: args.sfa, ..product };
                Ok(Work::FusedGrouped(FusedGroupedSpec { product, epilogue }))
            }
            _ => Err("scales of FP8 rows that are grouped are fine, and those of B lie along K".into()),
        },
        Work::Grouped(spec) => match (op.dense(), args.c, args.scales, args.sfb) {
            (Op::Bf16 | Op::Fp16, addend, ..) => Ok(Work::Grouped(GroupedSpec { d_type, addend, ..spec })),
            (_, AddendKind::None, ScaleMode::Fine, ScaleOrder::Row) => {
                Ok(Work::Grouped(GroupedSpec { d_type, sfa: args.sfa, ..spec }))
            }
            _ => Err("to FP8 rows that are grouped nothing can be added, scales are fine, and those of B lie along K"
                .into()),
        },
    }
}

fn print(report: &Report) {
    let Report { op, layout, m, n, k, d_type, device, verdict, .. } = report;
    let line = |name: &str, text: String| print_line(&format!("{name:<22} {text}"));
    let groups = report.groups.map_or(String::new(), |groups| format!(" groups={groups}"));
    let layout = if report.groups.is_some() { String::new() } else { format!(" {layout}") };
    line("problem", format!("{op}{layout}{groups} m={m} n={n} k={k}, {d_type} out, on {device}"));
    if let Some(plan) = &report.plan {
        line("plan", plan.clone());
    }
    if report.epilogue {
        let rows = verdict.rows;
        line("single steps", format!("diff {:.2e} in {rows} of {} rows", verdict.diff, report.computed_rows));
    } else {
        line(
            "exact product",
            format!(
                "diff {:.2e} (below {:.0e}) in {} of {} rows",
                verdict.diff,
                verdict::DIFF_LIMIT,
                verdict.rows,
                report.computed_rows
            ),
        );
    }
    line("worst element", format!("{:.2} of what is allowed", verdict.worst_element));
    if op.starts_with("fp8") && !report.epilogue {
        line(
            "unquantized product",
            format!("diff {:.2e} (below {:.0e})", verdict.diff_unquantized, report.unquantized_limit),
        );
    }
    line("outside of D", if report.nothing_outside_written { "untouched" } else { "WRITTEN TO" }.to_owned());
    if let Some(us) = report.host_first_call_us {
        line("first call", format!("{us:.0} us of host time"));
    }
    if let Some(Simulated { policy, seed, hazards, instructions, macs, copies, ctas }) = &report.simulated {
        let schedule = if policy == "random" { format!("random, seed {seed}") } else { policy.clone() };
        let found = if *hazards { "no hazards" } else { "hazards not looked for" };
        line("schedule", format!("{schedule}; {found}"));
        line(
            "simulated",
            format!(
                "{ctas} CTAs, {instructions} warp instructions, {copies} asynchronous copies, {macs} multiply-adds"
            ),
        );
    }
    if let (Some(us), Some(tflops), Some(gb), Some(by)) =
        (report.us, report.tflops, report.gb_per_s, &report.timed_by)
    {
        line("time", format!("{us:.2} us, {tflops:.1} TFLOPS, {gb:.0} GB/s, by {by}"));
        if let Some(anchor) = report.anchor_us {
            line("anchor", format!("{anchor:.2} us: {:.3}x", anchor / us));
        }
    }
    line(
        "result",
        if verdict.right && report.nothing_outside_written { "right" } else { "WRONG" }.to_owned(),
    );
}
