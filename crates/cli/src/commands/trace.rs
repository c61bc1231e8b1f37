//! `oxigemm trace`: the timeline of one GEMM in the simulator, in the format of Perfetto.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use oxigemm::plan::GemmConfig;
use oxigemm::sim::{Options, TraceEvent, TraceUnit};
use oxigemm::{Device, GemmOptions, Sim};
use oxigemm_testkit::{Effort, Failure, plan};
use serde_json::{Value, json};

use crate::cases::gemm::{GemmArgs, parse_choice};
use crate::output::{print_json, print_line, waiting};
use crate::{Common, Outcome};

/// Arguments of `trace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    gemm: GemmArgs,
    /// A kernel and its launch by name, instead of the planned one; `inspect` lists them.
    #[arg(long, value_parser = parse_choice)]
    choice: Option<GemmConfig>,
    /// Use at most this many SMs.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    num_sms: Option<u32>,
    /// The file to write.
    #[arg(long, default_value = "trace.json", value_name = "FILE")]
    out: PathBuf,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let case = args.gemm.drawn_case(0)?;
    if case.is_empty() || args.gemm.k == 0 {
        return Err("nothing is multiplied: m, n, k and the sizes of groups must be at least 1".into());
    }
    let sim = simulator(common, "writes a timeline")?;
    expect_writable(&args.out)?;
    sim.set_options(Options { trace: true, ..sim.options() });
    let mut gemm = case.on(&Device::Sim(sim.clone()))?;
    let options = GemmOptions { config: args.choice, num_sms: args.num_sms, ..Default::default() };
    let GemmArgs { m, n, k, op, .. } = args.gemm;
    waiting(format!("simulating {op} m={m} n={n} k={k}"), || gemm.run(&options))?;
    let right = waiting("checking the result".to_owned(), || gemm.judge(Effort::QUICK))?.right;
    let report = sim.last_report().ok_or("no kernel has run")?;

    let limits = args.num_sms.map_or(*sim.limits(), |sms| sim.limits().restricted_to(sms));
    let name = plan::plan(&case, args.choice, &limits).ok_or("no kernel serves this")?.name();
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

/// Refuses a file that cannot be written, before the work that it is for.
pub fn expect_writable(path: &Path) -> Result<(), Failure> {
    let opened = File::options().create(true).append(true).open(path);
    opened.map(|_| ()).map_err(|error| format!("{}: {error}", path.display()).into())
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
/// Warps take turns, so the bars of a role never overlap. What a unit works on does: it is given as pairs of a
/// beginning and an end, all of a unit under one name, which Perfetto shows as one track with as many rows as it takes.
/// Inside each stands what it works on.
fn timeline(trace: &[TraceEvent]) -> Vec<Value> {
    let tracks = Tracks::new(trace);
    let mut events = tracks.names();
    for (id, event) in trace.iter().enumerate() {
        let place = &event.place;
        let source = place.source.as_ref().map(|(file, line)| format!("{file}:{line}"));
        let bar = |phase: &str, name: &str, ts: u64| {
            json!({
                "ph": phase, "cat": category(event.unit), "name": name, "ts": ts, "id": id,
                "pid": place.cta, "tid": tracks.of_warp(place.cta, place.warp),
                "args": {
                    "warp": place.warp, "role": event.role, "opcode": place.opcode, "source": source,
                    "ptx_line": place.line, "detail": event.detail,
                },
            })
        };
        match unit_name(event.unit) {
            None => {
                let mut turn = bar("X", &turn_name(event), event.start);
                turn["dur"] = json!(event.end - event.start);
                events.push(turn);
            }
            Some(unit) => {
                events.push(bar("b", unit, event.start));
                events.push(bar("b", &event.detail, event.start));
                events.push(bar("e", &event.detail, event.end));
                events.push(bar("e", unit, event.end));
            }
        }
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

/// The name of an asynchronous unit.
fn unit_name(unit: TraceUnit) -> Option<&'static str> {
    match unit {
        TraceUnit::Warp => None,
        TraceUnit::Load => Some("TMA load"),
        TraceUnit::Wgmma | TraceUnit::Tcgen05 => Some("tensor core"),
        TraceUnit::TensorMemory => Some("tensor memory"),
        TraceUnit::Store => Some("TMA store"),
        TraceUnit::CpAsync => Some("cp.async"),
        TraceUnit::RemoteStore => Some("st.async"),
    }
}

fn category(unit: TraceUnit) -> &'static str {
    match unit {
        TraceUnit::Warp => "warp",
        TraceUnit::Wgmma => "wgmma",
        TraceUnit::Tcgen05 => "tcgen05",
        TraceUnit::TensorMemory => "tensor memory",
        TraceUnit::Load => "load",
        TraceUnit::Store => "store",
        TraceUnit::CpAsync => "cp.async",
        TraceUnit::RemoteStore => "st.async",
    }
}

/// The tracks of roles.
struct Tracks {
    /// The track of every warp of a CTA, and its name.
    warps: BTreeMap<(u32, u32), (u32, String)>,
}

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
