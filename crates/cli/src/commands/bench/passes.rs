//! The loop over passes: every case is timed in each, and the best time counts.

use oxigemm::{Device, GemmOptions};
use oxigemm_testkit::{AddendKind, Effort, Failure, Gemm, Grouping, Verdict};

use super::Bench;
use super::figures::{Figures, Live, Times, Work};
use crate::baseline::Peer;
use crate::output::progress;

/// What is timed.
pub trait Call {
    /// Runs it.
    fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()>;
    /// Compares what was computed by these options.
    fn judge(&mut self, options: &GemmOptions, effort: Effort) -> Result<Verdict, Failure>;
    /// Makes a pass independent of the one before it.
    fn relocate(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Call for Gemm {
    fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        Gemm::run(self, options)
    }

    /// Compares what was computed last or, where D was added to again and again, one GEMM more.
    fn judge(&mut self, options: &GemmOptions, effort: Effort) -> Result<Verdict, Failure> {
        if self.case().addend == AddendKind::Inplace {
            self.restore()?;
            Gemm::run(self, options)?;
        }
        Gemm::judge(self, effort)
    }

    /// As if the suite had been started again: dense operands lie elsewhere.
    fn relocate(&mut self) -> Result<(), Failure> {
        if matches!(self.case().grouping, Grouping::Dense) { Gemm::relocate(self) } else { Ok(()) }
    }
}

/// A call with what is said about it.
pub struct Prepared {
    pub call: Box<dyn Call>,
    /// The name and the estimate of its plan.
    pub plan: (String, f64),
    pub work: Work,
    pub peer: Peer,
}

/// Times a call, and the calibration GEMM beside it.
pub fn time(bench: &mut Bench, call: &mut dyn Call) -> Result<Times, Failure> {
    let runs = bench.args.runs as usize;
    let us = bench.clock.calls(&GemmOptions::default(), runs, |options| call.run(options))?;
    Ok(Times { us, calibration_us: bench.clock.calibration(runs)? })
}

/// Times cases, and prints each when its figures will not change any more.
///
/// Operands of all cases stay on the GPU for the next pass, unless they are said not to fit: then all passes of a case
/// follow each other.
pub fn figures<C>(
    bench: &mut Bench,
    cases: &[C],
    name: impl Fn(&C) -> String,
    fit: bool,
    prepare: impl Fn(&C, &Device) -> Result<Prepared, Failure>,
) -> Result<Vec<Figures>, Failure> {
    let (device, passes) = (Device::Cuda(bench.cuda.clone()), bench.args.passes);
    let bar = progress(cases.len() * passes as usize);
    let live = Live::new(bench.common, cases.iter().map(&name));
    let mut all: Vec<Figures> = Vec::new();
    for cases in cases.chunks(if fit { cases.len().max(1) } else { 1 }) {
        let first = all.len();
        let mut calls: Vec<Box<dyn Call>> = Vec::new();
        for pass in 0..passes {
            for (i, case) in cases.iter().enumerate() {
                bar.set_message(name(case));
                if pass == 0 {
                    let Prepared { mut call, plan, work, peer } = prepare(case, &device)?;
                    let times = time(bench, &mut *call)?;
                    let judge = || call.judge(&GemmOptions::default(), Effort::BENCH);
                    let verdict = bench.args.judged(judge)?;
                    all.push(Figures::new(plan, work, peer, verdict, &times));
                    calls.push(call);
                } else {
                    calls[i].relocate()?;
                    all[first + i].improve(&time(bench, &mut *calls[i])?);
                }
                bar.inc(1);
                if pass + 1 == passes {
                    live.row(&bar, &name(case), &all[first + i]);
                }
            }
        }
    }
    bar.finish_and_clear();
    Ok(all)
}
