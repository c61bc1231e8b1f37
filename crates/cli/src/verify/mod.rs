//! `oxigemm verify`: the correctness suite, on any device.
//!
//! Every check states a property and prints one line. Data, shapes and layouts are drawn from a seed, so a failure
//! can be repeated from what its line says.

mod products;
mod runtime;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use oxigemm::{Cuda, Device};
use serde_json::json;

use crate::output::{print_json, print_line, progress};
use crate::{Common, Failure, Outcome};

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Fewer cases of everything.
    #[arg(long)]
    quick: bool,
    /// Only checks whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// What shapes and data are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give up when one case takes longer than this: a kernel that hangs never comes back.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    patience: u64,
}

/// What every check may use.
pub struct Setup {
    device: Device,
    quick: bool,
    seed: u64,
    doing: Mutex<Doing>,
}

/// What is being run, and since when.
struct Doing {
    what: String,
    since: Instant,
}

impl Setup {
    /// Says what is run from now on.
    fn now(&self, what: String) {
        let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        *doing = Doing { what, since: Instant::now() };
    }

    /// Ends the process when a case does not come back: nothing else ends a kernel that hangs.
    fn watch(&self, patience: Duration) -> ! {
        loop {
            thread::sleep(Duration::from_millis(500));
            let doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
            if doing.since.elapsed() > patience {
                eprintln!("error: {} has not come back for {} s", doing.what, patience.as_secs());
                std::process::exit(3);
            }
        }
    }

    /// A number of cases, less where it should go fast: on the CPU, or if asked.
    fn count(&self, full: usize) -> usize {
        let part = match (&self.device, self.quick) {
            (Device::Cuda(_), false) => 1,
            (Device::Cuda(_), true) => 5,
            (_, false) => 5,
            (_, true) => 20,
        };
        full.div_ceil(part)
    }

    /// The GPU, for checks that are only run on one.
    fn cuda(&self) -> Result<&Cuda, Failure> {
        self.device.as_cuda().ok_or_else(|| "this needs a GPU".into())
    }
}

/// What a check does: a note, or what is wrong.
type Run = dyn Fn(&Setup) -> Result<String, Failure>;

/// A check: a note if its property holds, else what was found.
struct Check {
    name: String,
    needs_gpu: bool,
    run: Box<Run>,
}

impl Check {
    fn anywhere(name: &str, run: impl Fn(&Setup) -> Result<String, Failure> + 'static) -> Check {
        Check { name: name.to_owned(), needs_gpu: false, run: Box::new(run) }
    }

    fn on_gpu(name: impl Into<String>, run: impl Fn(&Setup) -> Result<String, Failure> + 'static) -> Check {
        Check { name: name.into(), needs_gpu: true, run: Box::new(run) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Passed,
    Failed,
    Skipped,
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::Passed => "ok",
            Mark::Failed => "FAILED",
            Mark::Skipped => "skipped",
        }
    }
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let doing = Mutex::new(Doing { what: "the start".to_owned(), since: Instant::now() });
    let setup = Arc::new(Setup { device: common.device()?, quick: args.quick, seed: args.seed, doing });
    let (watched, patience) = (Arc::clone(&setup), Duration::from_secs(args.patience));
    thread::spawn(move || watched.watch(patience));
    let mut checks = products::checks();
    checks.extend(runtime::checks());
    checks.retain(|check| args.filter.as_ref().is_none_or(|text| check.name.contains(text.as_str())));
    if checks.is_empty() {
        return Err(format!("no check contains {:?}", args.filter.as_deref().unwrap_or_default()).into());
    }
    let bar = progress(checks.len());
    let mut marks = Vec::new();
    for check in &checks {
        bar.set_message(check.name.clone());
        setup.now(check.name.clone());
        let started = Instant::now();
        let (mark, note) = if check.needs_gpu && setup.device.as_cuda().is_none() {
            (Mark::Skipped, "this needs a GPU".to_owned())
        } else {
            match (check.run)(&setup) {
                Ok(note) => (Mark::Passed, note),
                Err(failure) => (Mark::Failed, failure.to_string()),
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        marks.push(mark);
        bar.suspend(|| {
            if common.json {
                print_json(&json!({
                    "check": check.name, "result": mark.word(), "note": note, "seconds": seconds,
                }));
            } else {
                print_line(&format!("{:<8} {}: {note} ({seconds:.1} s)", mark.word(), check.name));
            }
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    let count = |mark| marks.iter().filter(|found| **found == mark).count();
    let (passed, failed, skipped) = (count(Mark::Passed), count(Mark::Failed), count(Mark::Skipped));
    if common.json {
        print_json(
            &json!({ "device": setup.device.to_string(), "passed": passed, "failed": failed, "skipped": skipped }),
        );
    } else {
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        print_line(&format!("on {}: {passed} passed, {failed} failed{skipped}", setup.device));
    }
    Ok(failed == 0 && passed > 0)
}

/// Fails with a sentence unless a condition holds.
fn ensure(condition: bool, failure: impl FnOnce() -> String) -> Result<(), Failure> {
    if condition { Ok(()) } else { Err(failure().into()) }
}
