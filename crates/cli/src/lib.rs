//! The oxigemm command line: what runs here, whether it is right, and how fast it is.
//!
//! - `commands`: a file or a folder for each command, and the table of them.
//! - `cases`: what commands compute. GEMMs of all operations are cases of `oxigemm-testkit`.
//! - `baseline`: the peer's figures, which `bench` compares with.

mod baseline;
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
    /// another schedule than the eager one. The CPU computes the reference.
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    device: String,
    /// Write JSON for machines instead of text for people.
    #[arg(long, global = true)]
    json: bool,
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
        .try_init();
    let Cli { common, command } = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and versions are not errors; a closed pipe is not one of ours.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    match command.run(&common) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(failure) => {
            eprintln!("error: {failure}");
            2
        }
    }
}
