//! Mutants of Blackwell's kernels: the kinds that other compilers' kernels have, and the same second analysis.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use oxigemm::sim::Options;
use oxigemm::{Device, Error, Sim};
use oxigemm_kernels::{Arch, KernelId};
use oxigemm_oracle::{Fate, Kind, Score, Tally, Unordered, unordered};
use oxigemm_sim::{Mutant, misissued, misvalued, mutants};
use oxigemm_testkit::Failure;

use super::explained::why;
use super::{BAR, INSTRUCTION_LIMIT, schedules, sources};
use crate::cases::blackwell::{Case, Loaded, cases};
use crate::output::{print_json, print_line, progress};
use crate::{Common, Outcome};
use serde_json::json;

/// The kernels that stand for their families.
const FAMILIES: [&str; 16] = [
    "sm100_bf16_gemm_persistent_nt_128x64_s8",
    "sm100_bf16_gemm_persistent_nt_256x128_s8",
    "sm100_mxfp8_gemm_persistent_nt_128x64_s6",
    "sm100_ue8m0_e4m3_blocks_gemm_persistent_nt_256x128_s6",
    "sm100_mxfp4_gemm_persistent_nt_128x64_s6",
    "sm100_nvfp4_gemm_persistent_fused_nt_256x128_s6",
    "sm100_mxfp8_gemm_persistent_fused_nt_128x128_s5",
    "sm100_mxfp8_gemm_persistent_gated_nt_256x256_s5",
    "sm100_bf16_gemm_persistent_m_grouped_nt_128x128_s5",
    "sm100_mxfp8_gemm_persistent_m_grouped_nt_256x256_s5",
    "sm100_bf16_gemm_persistent_k_grouped_tn_128x128_s5",
    "sm100_mxfp8_gemm_persistent_k_grouped_nt_128x128_s5",
    "sm100_bf16_gemm_split_k_nt_16x128",
    "sm100_mxfp8_gemm_split_k_nt_16x128",
    "sm100_mxfp8_gemm_split_k_gated_nt_16x256",
    "sm100_tf32_hc_prenorm_gemm_n24",
];
/// Schedules whose records are looked at.
const RECORDED: usize = 3;

/// Which mutants are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Every so many-th.
    pub every: usize,
}

/// Runs the command for some kernels.
pub(super) fn run(common: &Common, name: Option<&str>, sample: Sample) -> Outcome {
    let names: Vec<&str> = name.map_or(FAMILIES.to_vec(), |name| vec![name]);
    let (mut good, mut core, mut all) = (true, Tally::default(), Tally::default());
    for name in names {
        let kernel = KernelId::all(Arch::Sm100a)
            .find(|kernel| kernel.name() == name)
            .ok_or_else(|| format!("{name} is not a kernel: `oxigemm prebuild --list` names them"))?;
        let known = cases(kernel);
        if known.is_empty() {
            return Err(
                format!("{name} has no mutants: it is written in plain PTX for every architecture").into()
            );
        }
        let (score, sources) = score(kernel, &known, sample)?;
        good &= super::oracle::print(common, name, &score, &sources);
        core.add(score.tally(|kind| kind.is_core()));
        all.add(score.tally(|_| true));
    }
    if common.json {
        let counts = super::oracle::counts;
        print_json(&json!({ "core": counts(core), "all": counts(all) }));
    } else {
        print_line(&format!("core kinds: {}", super::oracle::words(core)));
        print_line(&format!("all kinds: {}", super::oracle::words(all)));
    }
    Ok(good && core.share() >= BAR && all.share() >= BAR)
}

fn device() -> Result<(Device, Sim), Failure> {
    let device: Device = "sim:sm_100a".parse()?;
    let sim = device.as_sim().ok_or("the simulator is one")?.clone();
    Ok((device, sim))
}

/// What the kernel itself does in a case.
struct Known {
    case: Case,
    instructions: u64,
    lines: Vec<u32>,
    bits: Vec<u8>,
    /// What the analysis does not see in order.
    disorder: Vec<Unordered>,
}

/// A case under a schedule: what is wrong, and what the analysis says of it.
fn trial(
    (loaded, sim): (&mut Loaded, &Sim),
    schedule: Options,
    expected: Option<&[u8]>,
    warps: u32,
) -> Result<(Option<String>, Vec<Unordered>), Failure> {
    let record = schedule.record;
    sim.set_options(schedule);
    match loaded.run()? {
        Err(Error::Fault { fault, .. }) => return Ok((Some(format!("{:?}", fault.kind)), Vec::new())),
        Err(error) => return Err(error.into()),
        Ok(()) => {}
    }
    if expected.is_some_and(|expected| loaded.bits().is_ok_and(|bits| bits != expected)) {
        return Ok((Some("other bits".to_owned()), Vec::new()));
    }
    let report = if record { sim.last_report() } else { None };
    Ok((None, report.map_or(Vec::new(), |report| unordered(&report.record, warps))))
}

/// Records of some schedules, one case after another: what is in no order.
fn disorder(
    (loaded, sim): (&mut Loaded, &Sim),
    expected: Option<&[u8]>,
    warps: u32,
) -> Result<Option<Vec<Unordered>>, Failure> {
    let mut all = Vec::new();
    for schedule in schedules().take(RECORDED) {
        let schedule = Options { record: true, ..schedule };
        let (found, list) = trial((&mut *loaded, sim), schedule, expected, warps)?;
        if found.is_some() {
            return Ok(None);
        }
        all.extend(list);
    }
    all.sort();
    all.dedup();
    Ok(Some(all))
}

impl Known {
    /// The kernel itself must be free of faults, or nothing could be said of its mutants.
    fn of(case: &Case, warps: u32) -> Result<Known, Failure> {
        let (device, sim) = device()?;
        let mut loaded = case.on(&device)?;
        let (mut instructions, mut lines, mut bits) = (0, Vec::new(), Vec::new());
        for schedule in schedules() {
            let (found, _) = trial((&mut loaded, &sim), schedule, None, warps)?;
            if let Some(fault) = found {
                return Err(format!("{case}: {fault} in the kernel itself").into());
            }
            let report = sim.last_report().ok_or("no kernel has run")?;
            (instructions, lines) = (report.instructions, report.lines);
            bits = loaded.bits()?;
        }
        if !loaded.is_right()? {
            return Err(format!("{case}: the result is wrong").into());
        }
        let disorder = disorder((&mut loaded, &sim), None, warps)?.unwrap_or_default();
        Ok(Known { case: case.clone(), instructions, lines, bits, disorder })
    }

    fn executes(&self, mutant: &Mutant) -> bool {
        self.lines.binary_search(&mutant.line).is_ok()
    }
}

/// The mutants of a kernel, and where the lines of its PTX come from.
fn score(kernel: KernelId, cases: &[Case], sample: Sample) -> Result<(Score, Vec<String>), Failure> {
    let text = kernel.build()?.text;
    let warps = warps_of(&text)?;
    let sources = sources(&text);
    let mut list = [mutants(&text), misvalued(&text), misissued(&text)].concat();
    list.sort_by(|a, b| (a.line, &a.what).cmp(&(b.line, &b.what)));
    let list: Vec<Mutant> = list.into_iter().step_by(sample.every).collect();
    let mut known = cases.iter().map(|case| Known::of(case, warps)).collect::<Result<Vec<_>, Failure>>()?;
    // What is quickly done finds most of them: it comes first.
    known.sort_by_key(|known| known.instructions);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let (queue, total) = (Mutex::new(list.iter()), Mutex::new(Score::default()));
    let bar = progress(list.len());
    bar.set_message(kernel.name());
    let work = || -> Result<(), Failure> {
        let (device, sim) = device()?;
        let mut loaded =
            known.iter().map(|known| known.case.on(&device)).collect::<Result<Vec<_>, Failure>>()?;
        loop {
            let next = queue.lock().expect("no thread panics with it").next();
            let Some(mutant) = next else { return Ok(()) };
            let fate = fate(kernel, mutant, (&known, &mut loaded, &sim), warps)?;
            total.lock().expect("no thread panics with it").add(mutant, fate);
            bar.inc(1);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| Failure::from("a thread panicked"))?)
    })?;
    bar.finish_and_clear();
    let mut score = total.into_inner().expect("no thread panics with it");
    score.survivors.sort_by(|a, b| (a.line, &a.what).cmp(&(b.line, &b.what)));
    let mut uses = BTreeMap::new();
    for survivor in &mut score.survivors {
        let source = &sources[survivor.line as usize - 1];
        survivor.why =
            why(&kernel.name(), source, &survivor.what, &mut uses).filter(|_| !survivor.redundant());
    }
    Ok((score, sources))
}

/// What becomes of a mutant; nothing where no case executes its instruction.
fn fate(
    kernel: KernelId,
    mutant: &Mutant,
    (known, loaded, sim): (&[Known], &mut [Loaded], &Sim),
    warps: u32,
) -> Result<Option<Fate>, Failure> {
    sim.replace_kernel(kernel, &mutant.text)
        .map_err(|error| format!("{} of line {}: {error}", mutant.what, mutant.line))?;
    let executed = |known: &Known| known.executes(mutant);
    if !known.iter().any(executed) {
        return Ok(None);
    }
    for schedule in schedules() {
        for (known, loaded) in known.iter().zip(&mut *loaded).filter(|(known, _)| executed(known)) {
            let schedule = Options {
                instruction_limit: 20 * known.instructions + INSTRUCTION_LIMIT / 40,
                ..schedule.clone()
            };
            let (found, _) = trial((&mut *loaded, sim), schedule, Some(&known.bits), warps)?;
            if found.is_some() {
                return Ok(Some((found, None)));
            }
            // Two launches with nothing between them, of which the second may begin while the first one runs.
            let again = |loaded: &mut Loaded| loaded.run_again().and_then(|()| loaded.run_again());
            if Kind::of(&mutant.what) == Kind::Launch
                && let Err(Error::Fault { fault, .. }) = again(loaded)
            {
                return Ok(Some((Some(format!("{:?}", fault.kind)), None)));
            }
        }
    }
    if !Kind::only_orders(&mutant.what) {
        return Ok(Some((None, None)));
    }
    // A proof for all cases that execute it; what the kernel itself leaves open proves nothing.
    let mut all = Vec::new();
    for (known, loaded) in known.iter().zip(loaded).filter(|(known, _)| executed(known)) {
        match disorder((loaded, sim), Some(&known.bits), warps)? {
            Some(list) => all.extend(list.into_iter().filter(|pair| !known.disorder.contains(pair))),
            None => return Ok(Some((Some("other bits".to_owned()), None))),
        }
    }
    Ok(Some((None, Some(all))))
}

/// Warps of a CTA, by the kernel's own word.
fn warps_of(text: &str) -> Result<u32, Failure> {
    let threads = [".reqntid", ".maxntid"].iter().find_map(|word| text.split_once(word));
    let threads =
        threads.and_then(|(_, rest)| rest.split([',', '\n', '{']).next()?.trim().parse::<u32>().ok());
    Ok(threads.ok_or("a kernel says how many threads it has")?.div_ceil(32))
}
