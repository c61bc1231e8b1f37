//! `oxigemm sim`: any kernel, from its PTX and a description of its launch.

mod buffers;
mod launch;
mod npy;
mod params;
mod place;

use std::io::Write;
use std::path::{Path, PathBuf};

use oxigemm::sim::{Options, Policy};
use oxigemm_sim::{Fault, FaultKind, Machine, Module, Place, Report};
use serde_json::{Value, json};

use super::trace::{expect_writable, simulator, write_timeline};
use crate::output::{print_json, print_line};
use crate::{Common, Failure, Outcome};
use buffers::{After, Buffer};
use launch::Description;
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
    /// Only note faults of this kind, where the run can go on after them; may be given more than once.
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    allow: Vec<FaultKind>,
    /// Go on after faults where that is possible, and list all of them, each pair of places once.
    #[arg(long)]
    keep_going: bool,
    /// Take for a fault also what the manual does not promise and hardware does.
    #[arg(long)]
    strict: bool,
    /// Give up after this many warp instructions; also how many may run in a row without any effect.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_instructions: Option<u64>,
    /// Refuse a run that takes more memory than this: bytes, or with K, M or G behind the number.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Write every buffer that has changed into this folder, as NAME.npy. Elements that nobody wrote are NaN, or zero
    /// where there is none, and true in NAME.unwritten.npy.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Write the timeline of the first schedule, for Perfetto.
    #[arg(long, value_name = "FILE", conflicts_with = "every_schedule")]
    trace: Option<PathBuf>,
}

/// A kind of fault that a run can go on after.
fn parse_kind(name: &str) -> Result<FaultKind, String> {
    let list = || {
        let kinds = FaultKind::ALL.into_iter().filter(|kind| kind.can_go_on());
        kinds.map(FaultKind::name).collect::<Vec<_>>().join(", ")
    };
    match name.parse::<FaultKind>() {
        Ok(kind) if kind.can_go_on() => Ok(kind),
        Ok(kind) => Err(format!("a run cannot go on after {}: it can after {}", kind.name(), list())),
        Err(_) => Err(format!("`{name}` is not a kind of fault that a run can go on after: {}", list())),
    }
}

/// A number of bytes: `4096`, `64K`, `512M`, `2G`.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|bytes| *bytes > 0).ok_or_else(|| format!("`{text}` is not a size such as 512M or 2G"))
}

/// What one schedule left behind.
struct Ran {
    report: Report,
    /// Every buffer with what it holds.
    after: Vec<(Buffer, After)>,
}

/// Why a schedule did not end well.
enum Stopped {
    Fault(Fault),
    Other(Failure),
}

impl<T: Into<Failure>> From<T> for Stopped {
    fn from(failure: T) -> Stopped {
        Stopped::Other(failure.into())
    }
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let text = std::fs::read_to_string(&args.ptx).map_err(|e| format!("{}: {e}", args.ptx.display()))?;
    let module = Module::parse(&text).map_err(|error| {
        if common.json {
            let (line, column) = (error.at.line, error.at.column);
            print_json(&json!({ "error": { "line": line, "column": column, "message": error.message } }));
        }
        format!("{}: {error}", args.ptx.display())
    })?;
    let description = Description::read(&args.launch)?;
    if let Some(out) = &args.out {
        description.expect_file_names()?;
        std::fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    if let Some(path) = &args.trace {
        expect_writable(path)?;
    }
    let folder = args.launch.parent().unwrap_or(Path::new("."));
    let mut base = Options {
        hazards: !args.no_hazards,
        trace: args.trace.is_some(),
        allow: args.allow.iter().copied().collect(),
        keep_going: args.keep_going,
        strict: args.strict,
        idle_limit: args.max_instructions,
        memory_limit: args.memory,
        ..simulator(common, "runs a PTX file")?.options()
    };
    base.instruction_limit = args.max_instructions.unwrap_or(base.instruction_limit);
    let simulate = |options: &Options, first: bool| {
        simulate(&module, &description, folder, options).map_err(|stopped| -> Failure {
            let schedule = match first {
                true => String::new(),
                false => format!("{:?}, seed {}: ", options.policy, options.seed),
            };
            match stopped {
                Stopped::Fault(fault) => {
                    if common.json {
                        let schedule = format!("{:?}", options.policy).to_lowercase();
                        let seed = options.seed;
                        print_json(
                            &json!({ "fault": fault_json(&fault), "schedule": schedule, "seed": seed }),
                        );
                    }
                    let failure = description.fault(fault);
                    if first { failure } else { format!("{schedule}{failure}").into() }
                }
                Stopped::Other(failure) if first => failure,
                Stopped::Other(failure) => format!("{schedule}{failure}").into(),
            }
        })
    };
    let mut first = simulate(&base, true)?;
    let mut schedules = 1;
    if args.every_schedule {
        let others = [(Policy::Eager, 0), (Policy::Lazy, 0)].into_iter();
        let others = others.chain((0..8).map(|seed| (Policy::Random, seed)));
        for (policy, seed) in others.filter(|&schedule| schedule != (base.policy, base.seed)) {
            let ran = simulate(&Options { policy, seed, ..base.clone() }, false)?;
            for ((buffer, after), (_, expected)) in ran.after.iter().zip(&first.after) {
                let name = &buffer.name;
                if let Some(at) = after.bytes.iter().zip(&expected.bytes).position(|(x, y)| x != y) {
                    return Err(format!("{policy:?}, seed {seed}: byte {at} of `{name}` is another").into());
                }
                if after.unwritten != expected.unwritten {
                    let message = format!("{policy:?}, seed {seed}: other elements of `{name}` are written");
                    return Err(message.into());
                }
            }
            let Report { notes, faults, .. } = ran.report;
            add_new(&mut first.report.notes, notes);
            add_new(&mut first.report.faults, faults);
            schedules += 1;
        }
    }
    let changed: Vec<&(Buffer, After)> =
        first.after.iter().filter(|(buffer, after)| buffer.changed(after)).collect();
    if let Some(out) = &args.out {
        for (buffer, after) in &changed {
            let array = Array { bytes: after.bytes.clone(), ..buffer.before.clone() };
            write_array(out, &buffer.name, &array)?;
            let mask = format!("{}.unwritten", buffer.name);
            if after.missing > 0 {
                let bytes = after.unwritten.iter().map(|unwritten| u8::from(*unwritten)).collect();
                let shape = buffer.before.shape.clone();
                write_array(out, &mask, &Array { descr: "|b1".to_owned(), shape, bytes })?;
            } else {
                // One of an earlier run would say something else.
                let _ = std::fs::remove_file(out.join(format!("{mask}.npy")));
            }
        }
    }
    if let Some(path) = &args.trace {
        write_timeline(path, &first.report.trace)?;
    }
    print(common, args, &first, &changed, schedules);
    Ok(first.report.faults.is_empty())
}

/// Adds faults that are not at the places of others.
fn add_new(list: &mut Vec<Fault>, new: Vec<Fault>) {
    let line = |place: &Option<Box<Place>>| place.as_ref().map(|place| (place.line, place.column));
    let places = |fault: &Fault| (fault.kind, line(&fault.at), line(&fault.other));
    for fault in new {
        if !list.iter().any(|known| places(known) == places(&fault)) {
            list.push(fault);
        }
    }
}

fn write_array(folder: &Path, name: &str, array: &Array) -> Result<(), Failure> {
    let path = folder.join(format!("{name}.npy"));
    std::fs::write(&path, array.to_file()).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn simulate(
    module: &Module,
    description: &Description,
    folder: &Path,
    options: &Options,
) -> Result<Ran, Stopped> {
    let mut machine = Machine::new();
    machine.memory.limit = options.memory_limit;
    let buffers = description.buffers(folder, &mut machine)?;
    let launch = description.launch(module, &buffers)?;
    let outcome = machine.run(module, &launch, options);
    // To standard error: what a kernel prints is not a result of the command.
    let _ = std::io::stderr().lock().write_all(machine.output.as_bytes());
    let report = outcome.map_err(Stopped::Fault)?;
    let mut after = Vec::new();
    for buffer in buffers {
        let left = buffer.after(&mut machine.memory)?;
        after.push((buffer, left));
    }
    Ok(Ran { report, after })
}

/// A fault for machines.
fn fault_json(fault: &Fault) -> Value {
    let place = |place: &Place| {
        json!({
            "line": place.line, "column": place.column, "opcode": place.opcode, "cta": place.cta, "warp": place.warp,
            "source": place.source.as_ref().map(|(file, line)| json!({ "file": file, "line": line })),
        })
    };
    json!({
        "kind": fault.kind.name(), "message": fault.message,
        "at": fault.at.as_deref().map(place), "other": fault.other.as_deref().map(place), "notes": fault.notes,
    })
}

fn print(common: &Common, args: &Args, ran: &Ran, changed: &[&(Buffer, After)], schedules: usize) {
    let names: Vec<&str> = changed.iter().map(|(buffer, _)| buffer.name.as_str()).collect();
    let unwritten = || ran.after.iter().filter(|(_, after)| after.missing > 0);
    let Report { ctas, instructions, copies, macs, notes, faults, stopped, .. } = &ran.report;
    if common.json {
        let unwritten: serde_json::Map<String, Value> =
            unwritten().map(|(buffer, after)| (buffer.name.clone(), after.missing.into())).collect();
        print_json(&json!({
            "ctas": ctas, "instructions": instructions, "copies": copies, "macs": macs,
            "schedules": schedules, "hazards_looked_for": !args.no_hazards, "changed": names,
            "unwritten": unwritten, "stopped": stopped,
            "notes": notes.iter().map(fault_json).collect::<Vec<_>>(),
            "faults": faults.iter().map(fault_json).collect::<Vec<_>>(),
        }));
        return;
    }
    for note in notes {
        print_line(&format!("note: {note}"));
    }
    for fault in faults {
        print_line(&format!("fault: {fault}"));
    }
    print_line(&format!(
        "{ctas} CTAs, {instructions} warp instructions, {copies} asynchronous copies, {macs} multiply-adds"
    ));
    let hazards = match (args.no_hazards, faults.len(), notes.len()) {
        (true, ..) => "hazards not looked for".to_owned(),
        (_, 0, 0) => "no hazards".to_owned(),
        (_, 0, notes) => format!("{notes} notes"),
        (_, faults, _) if *stopped => format!("{faults} faults, the last of which ended the run"),
        (_, faults, _) => format!("{faults} faults"),
    };
    let same = if schedules > 1 { "; every schedule left the same bytes" } else { "" };
    print_line(&format!("{schedules} schedules, {hazards}{same}"));
    print_line(&format!(
        "changed: {}",
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    ));
    for (buffer, after) in unwritten() {
        let (missing, all) = (after.missing, after.unwritten.len());
        print_line(&format!("`{}`: {missing} of {all} elements were never written", buffer.name));
    }
}
