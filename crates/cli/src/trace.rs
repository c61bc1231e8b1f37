//! `oxigemm trace`: the timeline of one problem in the simulator, in the format of Perfetto.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use oxigemm::plan::{self, Choice};
use oxigemm::sim::{Options, TraceEvent, TraceUnit};
use oxigemm::{Device, GemmOptions, Sim};
use serde_json::{Value, json};

use crate::gemm::{Size, parse_choice};
use crate::output::{print_json, print_line};
use crate::problem::{Host, Spec};
use crate::verdict::{self, Effort};
use crate::{Common, Failure, Op, Outcome};

/// Arguments of `trace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    size: Size,
    /// A kernel and its launch by name, instead of the planned one; `inspect` lists them.
    #[arg(long, value_parser = parse_choice)]
    choice: Option<Choice>,
    /// Use at most this many multiprocessors.
    #[arg(long)]
    num_sms: Option<u32>,
    /// The file to write.
    #[arg(long, default_value = "trace.json", value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let Size { m, n, k, op: Op::Fp8 } = args.size;
    if m == 0 || n == 0 || k == 0 {
        return Err("nothing is multiplied: m, n and k must be at least 1".into());
    }
    let sim = simulator(common, "writes a timeline")?;
    sim.set_options(Options { trace: true, ..sim.options() });
    let host = Host::draw(Spec::new(m as usize, n as usize, k as usize))?;
    let mut operands = host.upload(&Device::Sim(sim.clone()))?;
    let options = GemmOptions { choice: args.choice, num_sms: args.num_sms, ..Default::default() };
    operands.run(&options)?;
    let right = verdict::judge(&host, &operands.result()?, Effort::QUICK)?.right;
    let report = sim.last_report().ok_or("no kernel has run")?;

    let limits = args.num_sms.map_or(*sim.limits(), |sms| sim.limits().restricted_to(sms));
    let best = || plan::Plan::best(plan::Shape { m, n, k }, &limits).choice;
    let name = plan::name(&args.choice.unwrap_or_else(best));
    let events = write_timeline(&args.out, &report.trace)?;
    if common.json {
        print_json(&json!({
            "plan": name, "events": events, "ctas": report.ctas,
            "instructions": report.instructions, "right": right, "out": args.out,
        }));
    } else {
        print_line(&format!(
            "{name}: {} CTAs, {} warp instructions, {} events in {}; the result is {}",
            report.ctas,
            report.instructions,
            events,
            args.out.display(),
            if right { "right" } else { "WRONG" }
        ));
        print_line("open it at ui.perfetto.dev; one microsecond there is one warp instruction of the grid");
    }
    Ok(right)
}

/// The simulator, with its schedule; `auto` stands for it where only the simulator does something.
pub fn simulator(common: &Common, what: &str) -> Result<Sim, Failure> {
    if common.device == "auto" {
        return Ok(Sim::new());
    }
    match common.device()? {
        Device::Sim(sim) => Ok(sim),
        other => Err(format!("only the simulator {what}: use --device sim, not {other}").into()),
    }
}

/// Writes a timeline, and says how many events it has.
pub fn write_timeline(path: &Path, trace: &[TraceEvent]) -> Result<usize, Failure> {
    let events = timeline(trace);
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        serde_json::to_writer(&mut file, &json!({ "traceEvents": events }))?;
        file.flush()
    };
    write().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(events.len())
}

/// The events of the Trace Event Format: a process per CTA, a thread per warp. Asynchronous work of one warp
/// overlaps, so it is given as pairs of a beginning and an end, which Perfetto shows on tracks of their own.
fn timeline(trace: &[TraceEvent]) -> Vec<Value> {
    let mut events = Vec::with_capacity(2 * trace.len());
    let mut warps: Vec<(u32, u32)> = trace.iter().map(|event| (event.place.cta, event.place.warp)).collect();
    warps.sort_unstable();
    warps.dedup();
    let named = |what: &str, cta: u32, warp: u32, name: String| json!({ "ph": "M", "name": what, "pid": cta, "tid": warp, "args": { "name": name } });
    for (i, &(cta, warp)) in warps.iter().enumerate() {
        if i == 0 || warps[i - 1].0 != cta {
            events.push(named("process_name", cta, 0, format!("CTA {cta}")));
        }
        events.push(named("thread_name", cta, warp, format!("warp {warp}")));
    }
    for (id, event) in trace.iter().enumerate() {
        let place = &event.place;
        let source = place.source.as_ref().map(|(file, line)| format!("{file}:{line}"));
        let details = json!({ "source": source, "ptx_line": place.line });
        let at = |phase: &str, category: &str, ts: u64| {
            json!({
                "ph": phase, "cat": category, "name": place.opcode, "id": id, "ts": ts,
                "pid": place.cta, "tid": place.warp, "args": details,
            })
        };
        match event.unit {
            TraceUnit::Warp => {
                let mut bar = at("X", "warp", event.start);
                bar["dur"] = json!(event.end - event.start);
                events.push(bar);
            }
            TraceUnit::Wgmma | TraceUnit::Copy => {
                let category = if event.unit == TraceUnit::Copy { "copy" } else { "wgmma" };
                events.push(at("b", category, event.start));
                events.push(at("e", category, event.end));
            }
        }
    }
    events
}
