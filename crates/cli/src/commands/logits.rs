//! `oxigemm logits`: attention (MQA) logits of the indexer, run, checked and timed.

use oxigemm::check::Logits;
use oxigemm::{DType, Device, GemmOptions};
use oxigemm_kernels::attention::{DIMS, Format, HEAD_STEP, MAX_HEADS, PAGE_SIZES};

use crate::cases::attention::{PagedHost, PagedSpec, PrefillHost, PrefillSpec, Ranges};
use crate::found::{Found, call_us, expect_size};
use crate::{Common, Outcome};
use oxigemm_testkit::Failure;

/// Arguments of `logits`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Heads of a query: a multiple of 8 up to 128.
    #[arg(long, default_value_t = 64, value_parser = heads)]
    heads: usize,
    /// Elements of a head: 32, 64 or 128.
    #[arg(long, default_value_t = 128, value_parser = one_of(DIMS))]
    dim: usize,
    /// Queries of a prefill, of which each sees the keys before its own.
    #[arg(long, default_value_t = 16)]
    queries: usize,
    /// Keys of a prefill.
    #[arg(long, default_value_t = 300)]
    keys: usize,
    /// What a prefill's logits are like where a query does not see a key.
    #[arg(long, value_enum, default_value_t)]
    form: Form,
    /// Keys in pages instead, of sequences of these lengths.
    #[arg(long, value_delimiter = ',', value_name = "LENGTHS")]
    paged: Vec<i32>,
    /// Queries of each of those: 1 to 64.
    #[arg(long, default_value_t = 1, requires = "paged", value_parser = next)]
    next: usize,
    /// Keys of a page: 16, 32, 64, 128 or 256.
    #[arg(long, default_value_t = 64, requires = "paged", value_parser = one_of(PAGE_SIZES))]
    page: usize,
    /// FP4 queries and keys, for devices of sm_100a.
    #[arg(long)]
    fp4: bool,
    /// The type of the logits: f32 or bf16.
    #[arg(long, default_value = "f32")]
    logits: DType,
    /// Seed of the operands.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..1 << 63))]
    seed: u64,
    /// Calls that are timed on a GPU; 0 for none.
    #[arg(long, default_value_t = 20)]
    runs: usize,
}

/// Reads a size that there are kernels for.
fn one_of<const N: usize>(
    sizes: [u32; N],
) -> impl Fn(&str) -> Result<usize, String> + Clone + Send + Sync + 'static {
    move |word| match word.parse() {
        Ok(size) if sizes.contains(&size) => Ok(size as usize),
        _ => Err(format!("expected one of {sizes:?}")),
    }
}

/// Reads a number of heads that there are kernels for.
fn heads(word: &str) -> Result<usize, String> {
    let (step, most) = (HEAD_STEP as usize, MAX_HEADS as usize);
    match word.parse() {
        Ok(heads) if heads % step == 0 && (step..=most).contains(&heads) => Ok(heads),
        _ => Err(format!("expected a multiple of {step} up to {most}")),
    }
}

/// Reads a number of queries. The library takes any; more than these make a case that is no decode step.
fn next(word: &str) -> Result<usize, String> {
    match word.parse() {
        Ok(next @ 1..=64) => Ok(next),
        _ => Err("expected 1 to 64".to_owned()),
    }
}

impl Args {
    fn format(&self) -> Result<Format, Failure> {
        let format = if self.fp4 { Format::Fp4 } else { Format::Fp8 };
        match format.dims().contains(&(self.dim as u32)) {
            true => Ok(format),
            false => Err(format!("--dim {} has no kernel with --fp4", self.dim).into()),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// -inf.
    #[default]
    Clean,
    /// As they were.
    Partial,
    /// Not there: the first column is the first key of the range.
    Compressed,
}

/// Runs the command.
pub fn run(common: &Common, args: &Args) -> Outcome {
    let device = common.device()?;
    let found = if args.paged.is_empty() { prefill(args, &device)? } else { paged(args, &device)? };
    Ok(found.print(common, &device))
}

fn prefill(args: &Args, device: &Device) -> Result<Found, Failure> {
    let form = match args.form {
        Form::Clean => Logits::Clean,
        Form::Partial => Logits::Partial,
        Form::Compressed => Logits::Compressed,
    };
    let Args { heads, dim, queries, keys, .. } = *args;
    expect_size("--queries", &[queries, heads, dim])?;
    expect_size("--keys", &[keys, dim])?;
    expect_size("--queries and --keys", &[queries, keys])?;
    let spec = PrefillSpec {
        format: args.format()?,
        form,
        dtype: args.logits,
        seed: args.seed,
        ..PrefillSpec::new([heads, dim], [queries, keys], Ranges::Causal)
    };
    let host = PrefillHost::draw(spec);
    let mut operands = host.upload(device)?;
    operands.run(&GemmOptions::default())?;
    let us = call_us(device, args.runs, |options| operands.run(options))?;
    Ok(Found { problem: spec.to_string(), verdict: host.judge(&operands)?, us })
}

fn paged(args: &Args, device: &Device) -> Result<Found, Failure> {
    let spec = PagedSpec {
        format: args.format()?,
        page_keys: args.page,
        dtype: args.logits,
        seed: args.seed,
        ..PagedSpec::new([args.heads, args.dim], args.next, args.paged.clone())
    };
    let keys = spec.lengths.iter().map(|&length| length.max(0) as usize).sum();
    expect_size("--paged", &[keys, spec.dim])?;
    expect_size("--paged", &[spec.sequences(), spec.next, spec.columns])?;
    let problem = spec.to_string();
    let host = PagedHost::draw(spec);
    let mut operands = host.upload(device)?;
    operands.plan(&GemmOptions::default())?;
    operands.run(&GemmOptions::default())?;
    let us = call_us(device, args.runs, |options| operands.run(options))?;
    Ok(Found { problem, verdict: host.judge(&operands)?, us })
}
