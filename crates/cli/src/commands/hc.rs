//! `oxigemm hc`: the GEMM before the norm of a hyper-connection, run, checked and timed.

use oxigemm::GemmOptions;

use crate::cases::hyper_connection::{HcHost, HcSpec};
use crate::found::{Found, call_us, expect_size};
use crate::{Common, Outcome};

/// Arguments of `hc`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rows of A.
    #[arg(short, long)]
    m: usize,
    /// Rows of B: 8, 16, 24 or 32.
    #[arg(short, long, default_value_t = 24)]
    n: usize,
    /// Columns of both.
    #[arg(short, long)]
    k: usize,
    /// Split-K: splits of K whose results stay apart, for the caller to add.
    #[arg(long)]
    splits: Option<usize>,
    /// Seed of the operands.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Calls that are timed on a GPU; 0 for none.
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let Args { m, n, k, splits, seed, .. } = *args;
    expect_size("-m and -k", &[m, k])?;
    expect_size("-n and -k", &[n, k])?;
    expect_size("--splits, -m and -n", &[splits.unwrap_or(1), m, n])?;
    let device = common.device()?;
    let spec = HcSpec { m, n, k, splits, seed, at_end: false };
    let host = HcHost::draw(spec);
    let mut operands = host.upload(&device)?;
    operands.run(&GemmOptions::default())?;
    let us = call_us(&device, args.runs, |options| operands.run(options))?;
    let found = Found { problem: spec.to_string(), verdict: host.judge(&operands)?, us };
    Ok(found.print(common, &device))
}
