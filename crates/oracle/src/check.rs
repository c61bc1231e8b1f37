//! A kernel under schedules.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use oxigemm_sim::{Module, Options, Policy};

use crate::case::{Case, Operands, Outputs};
use crate::kernel::Kernel;

/// Why a kernel is not right and clean: one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    pub(crate) fn new(what: String) -> Failure {
        Failure(what)
    }
}

/// Eager, lazy, and eight random schedules.
pub fn schedules() -> Vec<Options> {
    let policies = [(Policy::Eager, 0), (Policy::Lazy, 0)];
    let random = (0..8).map(|seed| (Policy::Random, seed));
    policies
        .into_iter()
        .chain(random)
        .map(|(policy, seed)| Options { policy, seed, ..Options::default() })
        .collect()
}

/// Runs a kernel under some schedules with both kinds of operands, on `threads` threads. It must leave the right
/// numbers, the same bits each time, and report no fault. Gives a note.
pub fn check(kernel: &Kernel, schedules: &[Options], threads: usize) -> Result<String, Failure> {
    let module = Module::parse(&kernel.ptx).map_err(|error| Failure(error.to_string()))?;
    let mut exact = 0;
    for operands in [Operands::Integers, Operands::Normals] {
        let case = Case::new(kernel, operands).map_err(Failure)?;
        exact += usize::from(case.exact());
        let next = AtomicUsize::new(0);
        let first: Mutex<Option<Outputs>> = Mutex::new(None);
        let failed: Mutex<Option<String>> = Mutex::new(None);
        let one = |options: &Options| -> Result<(), String> {
            let (_, outputs) = case.run(&module, options).map_err(|fault| fault.to_string())?;
            case.judge(&outputs)?;
            let mut first = first.lock().expect("no thread panics with it");
            match &*first {
                // Atomics add in any order.
                Some(known) if *known != outputs && !case.reorders() => {
                    Err("other bits than under another schedule".to_owned())
                }
                Some(_) => Ok(()),
                None => {
                    *first = Some(outputs);
                    Ok(())
                }
            }
        };
        let work = || {
            while let Some(options) = schedules.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(what) = one(options) {
                    let (policy, seed) = (options.policy, options.seed);
                    let what = format!("{operands:?}, {policy:?} {seed}: {what}");
                    failed.lock().expect("no thread panics with it").get_or_insert(what);
                    next.store(schedules.len(), Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        if let Some(what) = failed.into_inner().expect("no thread panics with it") {
            return Err(Failure(what));
        }
    }
    let how = ["within tolerances", "integers exactly, others within tolerances", "bit for bit"][exact];
    Ok(format!("{} schedules, {how}", schedules.len()))
}
