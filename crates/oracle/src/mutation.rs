//! Mutants of a kernel: how many of them the simulator finds.

use std::collections::BTreeMap;
use std::sync::Mutex;

use oxigemm_sim::{Module, Mutant, Options, Policy, misvalued, mutants};

use crate::case::{Case, Operands};
use crate::check::Failure;
use crate::kernel::Kernel;

/// What became of the mutants of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Score {
    /// How many were found, by the kind of fault.
    pub found: BTreeMap<String, usize>,
    /// Those that no schedule found: line and what was done.
    pub survivors: Vec<(u32, String)>,
    /// Those of instructions that the launch does not execute.
    pub not_executed: usize,
}

impl Score {
    /// Mutants that were found.
    pub fn count(&self) -> usize {
        self.found.values().sum()
    }
}

/// Lazy, eager, and some random schedules; a mutant that loops is given up.
fn schedules(limit: u64) -> impl Iterator<Item = Options> {
    let random = (0..4).map(|seed| (Policy::Random, seed));
    [(Policy::Lazy, 0), (Policy::Eager, 0)].into_iter().chain(random).map(move |(policy, seed)| Options {
        policy,
        seed,
        instruction_limit: limit,
        ..Options::default()
    })
}

/// Every mutant of a kernel under six schedules, until one of them reports a fault or gives other bits.
pub fn score(kernel: &Kernel, threads: usize, done: impl Fn(usize, usize) + Sync) -> Result<Score, Failure> {
    let fail = |what: String| Failure::new(format!("{}: {what}", kernel.name));
    let case = Case::new(kernel, Operands::Normals).map_err(fail)?;
    let module = Module::parse(&kernel.ptx).map_err(|error| fail(error.to_string()))?;
    let (report, known) = case.run(&module, &Options::default()).map_err(|fault| fail(fault.to_string()))?;
    case.judge(&known).map_err(fail)?;
    let all: Vec<Mutant> = [mutants(&kernel.ptx), misvalued(&kernel.ptx)].concat();
    let total = all.len();
    let queue = Mutex::new(all.iter().enumerate());
    let score = Mutex::new(Score::default());
    let one = |mutant: &Mutant| -> Result<Option<String>, Failure> {
        let module = Module::parse(&mutant.text).map_err(|error| fail(format!("{}: {error}", mutant.what)))?;
        for options in schedules(100 * report.instructions + 1_000_000) {
            match case.run(&module, &options) {
                Err(fault) => return Ok(Some(format!("{:?}", fault.kind))),
                Ok((_, outputs)) if outputs != known => return Ok(Some("other bits".to_owned())),
                Ok(_) => {}
            }
        }
        Ok(None)
    };
    let work = || -> Result<(), Failure> {
        loop {
            let next = queue.lock().expect("no thread panics with it").next();
            let Some((index, mutant)) = next else { return Ok(()) };
            let executed = report.lines.binary_search(&mutant.line).is_ok();
            let fate = if executed { one(mutant)? } else { None };
            let mut score = score.lock().expect("no thread panics with it");
            match fate {
                Some(kind) => *score.found.entry(kind).or_default() += 1,
                None if executed => score.survivors.push((mutant.line, mutant.what.clone())),
                None => score.not_executed += 1,
            }
            done(index + 1, total);
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
    })?;
    let mut score = score.into_inner().expect("no thread panics with it");
    score.survivors.sort();
    Ok(score)
}
