//! `oxigemm sim`: any kernel, from its PTX and a description of its launch.

mod launch;
mod npy;
mod place;

use std::path::{Path, PathBuf};

use oxigemm::sim::{Options, Policy};
use oxigemm_sim::{Machine, Module, Report};
use serde_json::json;

use super::trace::{expect_writable, simulator, write_timeline};
use crate::output::{print_json, print_line};
use crate::{Common, Failure, Outcome};
use launch::{Buffer, Description};
use npy::Array;

/// Arguments of `sim`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The PTX.
    ptx: PathBuf,
    /// The launch, as JSON: grid, block, cluster, shared_bytes, buffers and params; docs/simulator.md has an example.
    #[arg(long, value_name = "FILE")]
    launch: PathBuf,
    /// Run it under the eager, the lazy and eight random schedules, which must all leave the same bytes.
    #[arg(long)]
    every_schedule: bool,
    /// Do not look for hazards.
    #[arg(long)]
    no_hazards: bool,
    /// Write every buffer that has changed into this folder, as NAME.npy.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Write the timeline of the first schedule, for Perfetto.
    #[arg(long, value_name = "FILE", conflicts_with = "every_schedule")]
    trace: Option<PathBuf>,
}

/// What one schedule left behind.
struct Ran {
    report: Report,
    /// Every buffer with its bytes.
    after: Vec<(Buffer, Vec<u8>)>,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let text = std::fs::read_to_string(&args.ptx).map_err(|e| format!("{}: {e}", args.ptx.display()))?;
    let module = Module::parse(&text).map_err(|error| format!("{}: {error}", args.ptx.display()))?;
    let description = Description::read(&args.launch)?;
    if let Some(out) = &args.out {
        description.expect_file_names()?;
        std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    if let Some(path) = &args.trace {
        expect_writable(path)?;
    }
    let folder = args.launch.parent().unwrap_or(Path::new("."));
    let base = Options {
        hazards: !args.no_hazards,
        trace: args.trace.is_some(),
        ..simulator(common, "runs a PTX file")?.options()
    };
    let first = simulate(&module, &description, folder, &base)?;
    let mut schedules = 1;
    if args.every_schedule {
        let others = [(Policy::Eager, 0), (Policy::Lazy, 0)].into_iter();
        let others = others.chain((0..8).map(|seed| (Policy::Random, seed)));
        for (policy, seed) in others.filter(|&schedule| schedule != (base.policy, base.seed)) {
            let options = Options { policy, seed, ..base.clone() };
            let ran = simulate(&module, &description, folder, &options)
                .map_err(|failure| format!("{policy:?}, seed {seed}: {failure}"))?;
            for ((buffer, bytes), (_, expected)) in ran.after.iter().zip(&first.after) {
                if let Some(at) = bytes.iter().zip(expected).position(|(x, y)| x != y) {
                    let name = &buffer.name;
                    return Err(format!("{policy:?}, seed {seed}: byte {at} of `{name}` is another").into());
                }
            }
            schedules += 1;
        }
    }
    let changed: Vec<&(Buffer, Vec<u8>)> =
        first.after.iter().filter(|(buffer, bytes)| buffer.before.bytes != *bytes).collect();
    if let Some(out) = &args.out {
        for (buffer, bytes) in &changed {
            let path = out.join(format!("{}.npy", buffer.name));
            let array = Array { bytes: bytes.clone(), ..buffer.before.clone() };
            std::fs::write(&path, array.to_file()).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    if let Some(path) = &args.trace {
        write_timeline(path, &first.report.trace)?;
    }
    print(common, args, &first.report, &changed, schedules);
    Ok(true)
}

fn simulate(
    module: &Module,
    description: &Description,
    folder: &Path,
    options: &Options,
) -> Result<Ran, Failure> {
    let mut machine = Machine::new();
    let buffers = description.buffers(folder, &mut machine)?;
    let launch = description.launch(module, &buffers)?;
    let report = machine.run(module, &launch, options).map_err(|fault| description.fault(fault))?;
    let mut after = Vec::new();
    for buffer in buffers {
        let bytes = machine.memory.read(buffer.address, buffer.len)?.to_vec();
        after.push((buffer, bytes));
    }
    Ok(Ran { report, after })
}

fn print(common: &Common, args: &Args, report: &Report, changed: &[&(Buffer, Vec<u8>)], schedules: usize) {
    let names: Vec<&str> = changed.iter().map(|(buffer, _)| buffer.name.as_str()).collect();
    let Report { ctas, instructions, copies, macs, .. } = report;
    if common.json {
        print_json(&json!({
            "ctas": ctas, "instructions": instructions, "copies": copies, "macs": macs,
            "schedules": schedules, "hazards_looked_for": !args.no_hazards, "changed": names,
        }));
        return;
    }
    print_line(&format!(
        "{ctas} CTAs, {instructions} warp instructions, {copies} asynchronous copies, {macs} multiply-adds"
    ));
    let hazards = if args.no_hazards { "hazards not looked for" } else { "no hazards" };
    let same = if schedules > 1 { "; every schedule left the same bytes" } else { "" };
    print_line(&format!("{schedules} schedules, {hazards}{same}"));
    print_line(&format!(
        "changed: {}",
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    ));
}
