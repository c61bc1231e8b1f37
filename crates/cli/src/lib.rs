//! The oxigemm command line: what runs here, whether it is right, and how fast it is.
//!
//! - `commands`: a file or a folder for each command, and the table of them.
//! - `cases`: what commands compute. GEMMs of all operations are cases of `oxigemm-testkit`.
//! - `candidates`: which configurations of a case are timed.
//! - `baseline`: the peer's figures, which `bench` compares with.

mod baseline;
mod candidates;
mod cases;
mod commands;
mod counting;
mod found;
mod output;
mod plot;
mod timing;

use std::ffi::OsString;

use clap::Parser;
use oxigemm::Device;
use oxigemm_testkit::Failure;

/// Whether everything that a command checked was right.
type Outcome = Result<bool, Failure>;

/// Tensor-core kernels for large language models, with only the GPU driver.
#[derive(Debug, Parser)]
#[command(name = "oxigemm", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: commands::Command,
}

/// What every command understands.
#[derive(Debug, clap::Args)]
struct Common {
    /// Where to run: auto, cuda, cuda:N, sim or cpu. Auto takes a supported GPU, else the simulator.
    ///
    /// The simulator runs the same kernels on the CPU and looks for hazards; sim:lazy, or sim:N for any seed N, takes
    /// another schedule than the eager one. sim:sm_100a is a GPU of that target, also with a schedule:
    /// sim:sm_100a:lazy; sim:2xsm_90a is the first of two that see each other's memory. The CPU computes the reference.
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE", value_parser = parse_device)]
    device: String,
    /// Write JSON for machines instead of text for people.
    #[arg(long, global = true)]
    json: bool,
}

/// Checks the name of a device, also for commands that open none. A GPU is looked for when it is needed.
fn parse_device(name: &str) -> Result<String, String> {
    let known = match name {
        "auto" | "cuda" => return Ok(name.to_owned()),
        _ if name.strip_prefix("cuda:").is_some_and(|number| number.parse::<usize>().is_ok()) => {
            return Ok(name.to_owned());
        }
        _ => name.parse::<Device>(),
    };
    known.map(|_| name.to_owned()).map_err(|error| error.to_string())
}

impl Common {
    fn device(&self) -> Result<Device, Failure> {
        Ok(self.device.parse()?)
    }
}

/// Runs the command line that these arguments are, the name of the program among them, and gives the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    // Whoever runs a second command, or has a subscriber of its own, keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .without_time()
        // It would report a standard error that cannot be written to there.
        .log_internal_errors(false)
        .try_init();
    let Cli { common, command } = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and versions are not errors, unless they cannot be written.
            let written = output::note_failure(error.print());
            return if written && output::flush() { u8::try_from(error.exit_code()).unwrap_or(2) } else { 2 };
        }
    };
    let status = match command.run(&common) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(failure) => {
            output::print_error(&failure.to_string());
            2
        }
    };
    if output::flush() { status } else { 2 }
}
