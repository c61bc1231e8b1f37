//! `oxigemm gemm`: one GEMM, run, checked and timed.

use std::time::Instant;

use oxigemm::plan::{GemmConfig, KOrder};
use oxigemm::{DType, Device, GemmLayout, GemmOptions, Sim};
use oxigemm_cuda::profile::REST;
use oxigemm_testkit::{
    AddendKind, DIFF_LIMIT, Effort, FP8_1D1D, Failure, GemmCase, Grouping, ScaleMode, ScaleOrder, Verdict,
    plan,
};
use serde::Serialize;

use crate::baseline::Anchor;
use crate::cases::gemm::{GemmArgs, named, parse_choice, parse_k_order};
use crate::output::{print_json, print_line, waiting};
use crate::timing::Clock;
use crate::{Common, Outcome};

/// Arguments of `gemm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    gemm: GemmArgs,
    /// Type of D and C: f32, or a 16-bit type, which is bf16 unless A and B are f16, or f32 themselves.
    #[arg(long, value_parser = parse_d_type)]
    d_type: Option<DType>,
    /// What is added to the product.
    #[arg(long, value_parser = named::<AddendKind>(), default_value = "none")]
    c: AddendKind,
    /// Scale granularity, of a dense GEMM.
    #[arg(long, value_parser = named::<ScaleMode>(), default_value = "fine")]
    scales: ScaleMode,
    /// Layout of the scales of A.
    #[arg(long, value_parser = named::<ScaleOrder>(), default_value = "row")]
    sfa: ScaleOrder,
    /// Layout of the scales of B.
    #[arg(long, value_parser = named::<ScaleOrder>(), default_value = "row")]
    sfb: ScaleOrder,
    /// Seed of the operands.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A kernel and its launch by name, instead of the planned one; `inspect` lists them.
    #[arg(long, value_parser = parse_choice)]
    choice: Option<GemmConfig>,
    /// Use at most this many SMs.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    num_sms: Option<u32>,
    /// Batch invariance: give a row the same bits whatever the number of rows.
    #[arg(long)]
    batch_invariant: bool,
    /// Order in which tiles visit K, instead of the usual one of the operation.
    #[arg(long, value_parser = parse_k_order, value_name = "forward|serpentine")]
    k_order: Option<KOrder>,
    /// Rows of tiles in a raster band, instead of the planned ones.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    raster_band: Option<u32>,
    /// Calls that are timed on a GPU; 0 for none.
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

/// Reads the type of D.
fn parse_d_type(name: &str) -> Result<DType, String> {
    match name.parse() {
        Ok(dtype @ (DType::Bf16 | DType::F16 | DType::F32)) => Ok(dtype),
        _ => Err("expected bf16, f16 or f32".to_owned()),
    }
}

#[derive(Serialize)]
struct Report {
    device: String,
    op: &'static str,
    layout: &'static str,
    groups: Option<usize>,
    /// Whether it has a fused epilogue; the result is compared with the single steps then.
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
    quantized: bool,
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
    let GemmArgs { m, n, k, op, .. } = args.gemm;
    let case = case(args)?;
    let mut gemm = case.on(&device)?;
    let Args { choice: config, num_sms, batch_invariant, k_order, raster_band, .. } = *args;
    let options =
        GemmOptions { config, num_sms, batch_invariant, k_order, raster_band, ..Default::default() };
    let started = Instant::now();
    match device {
        Device::Cuda(_) => gemm.run(&options)?,
        _ => waiting(format!("computing {op} m={m} n={n} k={k} on {device}"), || gemm.run(&options))?,
    }
    let host_first_call_us = device.as_sim().is_none().then(|| started.elapsed().as_secs_f64() * 1e6);
    device.synchronize()?;
    let verdict = waiting("checking the result".to_owned(), || gemm.judge(Effort::THOROUGH))?;
    let untouched = gemm.surroundings_untouched()?;

    let plan = planned(&device, &case, args);
    let (mut us, mut timed_by) = (None, None);
    if let (Device::Cuda(cuda), true, true) = (&device, args.runs > 0, plan.is_some()) {
        let mut clock = Clock::new(cuda, REST)?;
        us = Some(clock.calls(&options, args.runs, |options| gemm.run(options))?);
        timed_by = Some(clock.method());
    }
    let anchor = Anchor::of(&op).and_then(|anchor| anchor.case(m, n, k)).filter(|_| is_as_timed(&case));
    let report = Report {
        device: device.to_string(),
        op: op.name,
        layout: case.layout.name(),
        groups: case.groups(),
        epilogue: case.epilogue.is_some(),
        m,
        n,
        k,
        computed_rows: case.rows(),
        d_type: case.output_type().to_string(),
        plan,
        host_first_call_us,
        simulated: device.as_sim().and_then(Simulated::last),
        us,
        timed_by,
        tflops: us.map(|us| case.flops() / us * 1e-6),
        gb_per_s: us.map(|us| case.bytes() / us * 1e-3),
        anchor_us: anchor.map(|case| case.figures.call_us),
        nothing_outside_written: untouched,
        quantized: case.types.has_scales(),
        unquantized_limit: case.unquantized_limit(),
        verdict,
    };
    if common.json {
        print_json(&report);
    } else {
        print(&report);
    }
    Ok(report.verdict.right && untouched)
}

/// Whether the peer's figures are for such a call: K-major operands, the usual output, and nothing fused.
fn is_as_timed(case: &GemmCase) -> bool {
    let usual = match case.types == FP8_1D1D {
        true => case.addend == AddendKind::Inplace,
        false => case.d_type == DType::Bf16,
    };
    let plain = matches!(case.grouping, Grouping::Dense) && case.epilogue.is_none();
    usual && plain && case.layout == GemmLayout::Nt
}

/// The plan that was run: none on the CPU, and none where nothing is multiplied.
fn planned(device: &Device, case: &GemmCase, args: &Args) -> Option<String> {
    let limits = device.limits().filter(|_| !case.is_empty())?;
    let limits = args.num_sms.map_or(*limits, |sms| limits.restricted_to(sms));
    let plan = match (args.choice, args.batch_invariant) {
        (None, true) => plan::batch_invariant_plan(case, &limits),
        (choice, _) => plan::plan(case, choice, &limits),
    };
    Some(plan?.name())
}

/// The case with everything that the arguments say.
fn case(args: &Args) -> Result<GemmCase, Failure> {
    let op = args.gemm.op;
    let d_type = args.d_type.unwrap_or(op.d_types()[0]);
    if !op.d_types().contains(&d_type) {
        let [usual, wide] = op.d_types();
        return Err(format!("{op} gives {usual} or {wide}, not {d_type}").into());
    }
    let case = args.gemm.drawn_case(args.seed)?;
    let Args { c: addend, scales, sfa, sfb, .. } = *args;
    let usual = scales == ScaleMode::Fine && sfa == ScaleOrder::Row && sfb == ScaleOrder::Row;
    if !op.types.has_scales() && !usual {
        return Err(format!("--scales, --sfa and --sfb are for FP8 operands: {op} has no scales").into());
    }
    if op.types.scale_type != DType::F32 && scales != ScaleMode::Fine {
        return Err(format!("--scales is for FP32 scales: those of {op} are codes").into());
    }
    if op.types.has_scales() && case.m_groups().is_some() {
        let fine = scales == ScaleMode::Fine && sfb == ScaleOrder::Row;
        if !fine || (addend != AddendKind::None && case.epilogue.is_none()) {
            let rule = "scales are fine, those of B K-major, and nothing can be added without an --epilogue";
            return Err(format!("m-grouped and batched FP8 GEMMs: {rule}").into());
        }
    }
    Ok(GemmCase { d_type, addend, scales, sfa, sfb, ..case })
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
                verdict.diff, DIFF_LIMIT, verdict.rows, report.computed_rows
            ),
        );
    }
    line("worst element", format!("{:.2} of what is allowed", verdict.worst_element));
    if report.quantized && !report.epilogue {
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
