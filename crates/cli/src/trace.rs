//! `oxigemm trace`: the timeline of one problem in the simulator, in the format of Perfetto.

use std::collections::{BTreeMap, BTreeSet};
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

/// The events of the Trace Event Format: a process per CTA; in it a track per role of its warps, and one per
/// asynchronous unit.
///
/// Warps take turns, so the bars of a role never overlap. What a unit works on does: where it overlaps, the track of
/// the unit has rows.
fn timeline(trace: &[TraceEvent]) -> Vec<Value> {
    let tracks = Tracks::new(trace);
    let mut events = tracks.names();
    let mut rows: BTreeMap<(u32, &str), Vec<u64>> = BTreeMap::new();
    let mut ordered: Vec<&TraceEvent> = trace.iter().collect();
    ordered.sort_by_key(|event| event.start);
    let mut named = BTreeSet::new();
    for event in ordered {
        let place = &event.place;
        let source = place.source.as_ref().map(|(file, line)| format!("{file}:{line}"));
        let (track, row, name) = match unit_name(event.unit) {
            None => (tracks.of_warp(place.cta, place.warp), 0, turn_name(event)),
            Some(unit) => {
                let rows = rows.entry((place.cta, unit)).or_default();
                let free = rows.iter().position(|end| *end <= event.start).unwrap_or(rows.len());
                rows.resize(rows.len().max(free + 1), 0);
                rows[free] = event.end.max(event.start + 1);
                (tracks.of_unit(unit), free as u32, event.detail.clone())
            }
        };
        let tid = track + row;
        if let Some(unit) = unit_name(event.unit).filter(|_| named.insert((place.cta, tid))) {
            let label = if row == 0 { unit.to_owned() } else { format!("{unit} ({})", row + 1) };
            events.extend(name_track(place.cta, tid, &label));
        }
        events.push(json!({
            "ph": "X", "cat": category(event.unit), "name": name,
            "ts": event.start, "dur": event.end - event.start, "pid": place.cta, "tid": tid,
            "args": {
                "warp": place.warp, "role": event.role, "opcode": place.opcode, "source": source,
                "ptx_line": place.line, "detail": event.detail,
            },
        }));
    }
    events
}

/// What a warp's turn is called: what it ended for, or else where.
fn turn_name(event: &TraceEvent) -> String {
    match event.detail.as_str() {
        "" => event.place.opcode.clone(),
        detail => format!("until it waits for {detail}"),
    }
}

/// Asynchronous units, in the order of their tracks.
const UNITS: [&str; 4] = ["TMA load", "tensor core", "TMA store", "cp.async"];

fn unit_name(unit: TraceUnit) -> Option<&'static str> {
    match unit {
        TraceUnit::Warp => None,
        TraceUnit::Load => Some(UNITS[0]),
        TraceUnit::Wgmma => Some(UNITS[1]),
        TraceUnit::Store => Some(UNITS[2]),
        TraceUnit::CpAsync => Some(UNITS[3]),
    }
}

fn category(unit: TraceUnit) -> &'static str {
    match unit {
        TraceUnit::Warp => "warp",
        TraceUnit::Wgmma => "wgmma",
        TraceUnit::Load => "load",
        TraceUnit::Store => "store",
        TraceUnit::CpAsync => "cp.async",
    }
}

/// The tracks of the timeline.
struct Tracks {
    /// The track of every warp of a CTA, and its name.
    warps: BTreeMap<(u32, u32), (u32, String)>,
}

/// Rows that the track of a unit has room for.
const ROWS: u32 = 10_000;

impl Tracks {
    /// Warps of one role share a track; where a role is that of several warpgroups, each has its own. A warp without
    /// a role is a track.
    fn new(trace: &[TraceEvent]) -> Tracks {
        let mut time: BTreeMap<(u32, u32), BTreeMap<Option<&str>, u64>> = BTreeMap::new();
        for event in trace.iter().filter(|event| event.unit == TraceUnit::Warp) {
            let of_warp = time.entry((event.place.cta, event.place.warp)).or_default();
            *of_warp.entry(event.role.as_deref()).or_default() += 1 + event.end - event.start;
        }
        // What it does most, apart from what every warp does.
        let role = |times: &BTreeMap<Option<&str>, u64>| {
            let named = times.iter().filter_map(|(role, time)| role.map(|role| (*time, role)));
            named.max().map(|(_, role)| role.to_owned())
        };
        let roles: BTreeMap<(u32, u32), Option<String>> =
            time.iter().map(|(warp, times)| (*warp, role(times))).collect();
        let mut warps = BTreeMap::new();
        for (&(cta, warp), role) in &roles {
            let groups: BTreeSet<u32> = roles
                .iter()
                .filter(|((other, _), of)| *other == cta && *of == role)
                .map(|((_, warp), _)| warp / 4)
                .collect();
            let track = match role {
                None => (warp, format!("warp {warp}")),
                Some(role) => {
                    // A track has the number of its first warp.
                    let same = |(other, w): &(u32, u32)| {
                        *other == cta && roles[&(*other, *w)].as_deref() == Some(role) && w / 4 == warp / 4
                    };
                    let first = roles.keys().find(|key| same(key)).map_or(warp, |(_, warp)| *warp);
                    let number = groups.iter().position(|group| *group == warp / 4).unwrap_or(0);
                    match groups.len() {
                        1 => (first, role.clone()),
                        _ => (first, format!("{role} warpgroup {number}")),
                    }
                }
            };
            warps.insert((cta, warp), track);
        }
        Tracks { warps }
    }

    fn of_warp(&self, cta: u32, warp: u32) -> u32 {
        self.warps.get(&(cta, warp)).map_or(warp, |track| track.0)
    }

    fn of_unit(&self, unit: &str) -> u32 {
        (1 + UNITS.iter().position(|name| *name == unit).unwrap_or(0) as u32) * ROWS
    }

    /// The names of the CTAs and of their roles.
    fn names(&self) -> Vec<Value> {
        let mut events = Vec::new();
        let mut known = BTreeSet::new();
        for ((cta, _), (track, name)) in &self.warps {
            if known.insert((*cta, None)) {
                events.push(metadata("process_name", *cta, 0, json!({ "name": format!("CTA {cta}") })));
            }
            if known.insert((*cta, Some(*track))) {
                events.extend(name_track(*cta, *track, name));
            }
        }
        events
    }
}

fn metadata(what: &str, cta: u32, track: u32, args: Value) -> Value {
    json!({ "ph": "M", "name": what, "pid": cta, "tid": track, "args": args })
}

/// A track's name and place.
fn name_track(cta: u32, track: u32, name: &str) -> [Value; 2] {
    [
        metadata("thread_name", cta, track, json!({ "name": name })),
        metadata("thread_sort_index", cta, track, json!({ "sort_index": track })),
    ]
}
