//! Deleting or weakening a synchronization instruction of a shipped kernel is found by the simulator.
//!
//! `cargo test -p oxigemm --test mutations -- --nocapture` prints the score and the survivors. Instructions that none
//! of the cases executes are left out, and counted.

mod common;

use std::collections::BTreeMap;
use std::thread;

use common::{C, Case, PLAIN, Problem, Scales, schedules};
use oxigemm::plan::{self, Choice};
use oxigemm::sim::Options;
use oxigemm::{DType, Error, Sim};
use oxigemm_sim::{Mutant, mutants};

/// Tests share two cores; the mutants of a kernel are independent of each other.
const THREADS: usize = 2;

/// A case with the lines that it executes and the bits that it gives.
struct Known {
    problem: Problem,
    choice: Choice,
    lines: Vec<u32>,
    bits: Vec<u8>,
}

impl Known {
    fn new((name, case): &(&str, Case), sim: &Sim) -> Known {
        let choice = plan::parse(name).expect("the name of a choice");
        let problem = Problem::new(*case, sim);
        let bits = problem.checked(Some(choice), name);
        let lines = sim.last_report().expect("a kernel has run").lines;
        Known { problem, choice, lines, bits }
    }

    fn executes(&self, mutant: &Mutant) -> bool {
        self.lines.binary_search(&mutant.line).is_ok()
    }

    /// What a schedule finds wrong, if anything.
    fn verdict(&self, sim: &Sim, options: Options) -> Option<String> {
        sim.set_options(Options { instruction_limit: 20_000_000, ..options });
        match self.problem.run(Some(self.choice)) {
            Err(Error::Fault { fault, .. }) => Some(format!("{:?}", fault.kind)),
            Err(error) => panic!("{error}"),
            Ok(d) if d.to_bytes().expect("D can be read") != self.bits => Some("other bits".to_owned()),
            Ok(_) => None,
        }
    }
}

/// What became of a mutant.
enum Fate {
    NotExecuted,
    Found(String),
    Survived,
}

/// Runs mutants of the kernel of these cases.
fn fates(cases: &[(&str, Case)], mutants: &[&Mutant]) -> Vec<Fate> {
    let sim = Sim::new();
    let known: Vec<Known> = cases.iter().map(|case| Known::new(case, &sim)).collect();
    let config = known[0].choice.config();
    assert!(known.iter().all(|known| known.choice.config() == config), "one kernel at a time");
    let fate = |mutant: &&Mutant| {
        let executing: Vec<&Known> = known.iter().filter(|known| known.executes(mutant)).collect();
        if executing.is_empty() {
            return Fate::NotExecuted;
        }
        sim.replace_kernel(&config, &mutant.text).expect("a mutant is PTX");
        let mut runs = schedules()
            .take(6)
            .flat_map(|options| executing.iter().map(move |known| (known, options.clone())));
        runs.find_map(|(known, options)| known.verdict(&sim, options)).map_or(Fate::Survived, Fate::Found)
    };
    mutants.iter().map(fate).collect()
}

/// Mutants that may survive: what was done, in which file, and how often. `docs/simulator.md` tells why.
type Survivor = (&'static str, &'static str, usize);

/// Runs every mutant of a kernel; all but the accepted survivors must be found.
fn score(cases: &[(&str, Case)], accepted: &[Survivor]) {
    let config = plan::parse(cases[0].0).expect("the name of a choice").config();
    let text = config.build().expect("the kernel can be written").text;
    let (mutants, sources) = (mutants(&text), sources(&text));
    let parts: Vec<Vec<&Mutant>> =
        (0..THREADS).map(|part| mutants.iter().skip(part).step_by(THREADS).collect()).collect();
    let fates: Vec<(&Mutant, Fate)> = thread::scope(|scope| {
        let handles: Vec<_> = parts.iter().map(|part| scope.spawn(|| fates(cases, part))).collect();
        let fates = handles.into_iter().map(|handle| handle.join().expect("a part came to its end"));
        parts.iter().zip(fates).flat_map(|(part, fates)| part.iter().copied().zip(fates)).collect()
    });
    let (mut found, mut survivors, mut left_out) = (BTreeMap::new(), Vec::new(), 0);
    for (mutant, fate) in fates {
        match fate {
            Fate::NotExecuted => left_out += 1,
            Fate::Found(kind) => *found.entry(kind).or_insert(0) += 1,
            Fate::Survived => {
                let (line, what) = (mutant.line, &mutant.what);
                survivors.push(format!("{}, PTX line {line}: {what}", sources[line as usize - 1]));
            }
        }
    }
    survivors.sort();
    let (name, count) = (config.name(), found.values().sum::<usize>());
    println!("{name}: {count} of {} found, {left_out} not executed; {found:?}", count + survivors.len());
    survivors.iter().for_each(|survivor| println!("    {survivor}"));
    assert!(count > 20, "only {count} mutants were found");
    for (what, file, times) in accepted {
        let mut left = *times;
        survivors.retain(|survivor| {
            let explained = left > 0 && survivor.contains(what) && survivor.starts_with(file);
            left -= usize::from(explained);
            !explained
        });
    }
    assert!(survivors.is_empty(), "{name}: not found: {survivors:#?}");
}

/// The line of the kernel's source for every line of PTX, by its `.loc` directives.
fn sources(text: &str) -> Vec<String> {
    let mut files = BTreeMap::new();
    for line in text.lines() {
        if let Some((number, name)) = line.trim().strip_prefix(".file ").and_then(|rest| rest.split_once(' '))
        {
            files.insert(
                number.to_owned(),
                name.trim_matches('"').rsplit('/').next().unwrap_or("").to_owned(),
            );
        }
    }
    let mut now = String::new();
    let mut sources = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.trim().strip_prefix(".loc ") {
            let mut words = rest.split_whitespace();
            let file = words.next().and_then(|number| files.get(number)).map_or("?", String::as_str);
            now = format!("{file}:{}", words.next().unwrap_or("?"));
        }
        sources.push(now.clone());
    }
    sources
}

/// The fence behind the barriers of the tiles: the same thread fences again behind those of the scales.
const FIRST_OF_TWO_FENCES: Survivor = ("fence.mbarrier_init", "pipeline.rs", 1);

#[test]
fn mutants_of_a_many_row_kernel() {
    // More tiles than blocks, more blocks of K than stages; and so short a K that scales are what the ring waits for.
    let plain = Case { dims: [130, 264, 528], num_sms: Some(2), ..PLAIN };
    let copied = Case { scales: Scales::Odd, d_type: DType::F32, c: C::InPlace, ..plain };
    let short = Case { dims: [130, 648, 100], num_sms: Some(1), ..PLAIN };
    let cases = [
        ("wide_256x128_s3_c1x2", plain),
        ("wide_256x128_s3_c2x1", Case { scales: Scales::MnMajor, ..plain }),
        ("wide_256x128_s3_c1x1", copied),
        ("wide_256x128_s3_c1x1", short),
    ];
    let accepted = [
        FIRST_OF_TWO_FENCES,
        // Behind the barriers' initialization: it brings the warp together, which the simulator does by itself.
        ("bar.warp.sync", "fp8_wide.rs", 1),
        // Before a group of scales is let go: products, which are aligned, lie behind the last read.
        ("bar.warp.sync", "scales.rs", 1),
        // Before the staging area is written again: by `stmatrix`, which is aligned. Behind the last FP32 panel of
        // either wave: the products of a whole tile come before the area is written again.
        ("bar.warp.sync", "epilogue.rs", 3),
        // Behind the stores of the first wave: the second wave commits them with its own.
        ("cp.async.bulk.commit_group", "epilogue.rs", 1),
    ];
    score(&cases, &accepted);
}

#[test]
fn mutants_of_a_few_row_kernel() {
    // Every stage is used and used again, and so is every slot of scales.
    let plain = Case { dims: [8, 64, 4240], ..PLAIN };
    let copied = Case { dims: [13, 72, 2048], scales: Scales::Odd, d_type: DType::F32, c: C::Other, ..PLAIN };
    let cases = [
        ("slim_8x64_k1_s16", plain),
        ("slim_8x64_k2_s2", copied),
        ("slim_8x64_k4_s2", Case { scales: Scales::MnMajor, c: C::InPlace, ..copied }),
    ];
    // Behind the barriers' initialization and behind the producer's loop: they bring the warp together, which the
    // simulator does by itself.
    score(&cases, &[FIRST_OF_TWO_FENCES, ("bar.warp.sync", "fp8_slim.rs", 2)]);
}
