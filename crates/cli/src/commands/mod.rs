//! The commands. A new one is a module with `Args` and `run`, and a row of the table.

mod bench;
mod devices;
mod gemm;
mod hc;
mod inspect;
mod logits;
mod mutate;
mod prebuild;
mod quantize;
mod sim;
mod trace;
mod tune;
mod verify;

use crate::{Common, Outcome};

/// The table: what a command does, its name, and its module.
macro_rules! commands {
    ($($(#[$about:meta])+ $name:ident => $module:ident,)+) => {
        /// A command with its arguments.
        #[derive(Debug, clap::Subcommand)]
        pub enum Command {
            $($(#[$about])+ $name($module::Args),)+
        }

        impl Command {
            /// Runs it.
            pub fn run(&self, common: &Common) -> Outcome {
                match self {
                    $(Command::$name(args) => $module::run(common, args),)+
                }
            }
        }
    };
}

commands! {
    /// Show what can run here, and why something cannot.
    Devices => devices,
    /// Run one GEMM of any operation, check it, and time it.
    Gemm => gemm,
    /// Quantize or dequantize a matrix, compare with the CPU, and time it.
    Quantize => quantize,
    /// Compute attention (MQA) logits of the indexer, check them, and time it.
    Logits => logits,
    /// Compute the GEMM before the norm of a hyper-connection, check it, and time it.
    Hc => hc,
    /// Run the correctness suite.
    Verify => verify,
    /// Time the peer's cases and compare with its figures.
    Bench => bench,
    /// Show the plan for a GEMM, why it was taken, and the code.
    Inspect => inspect,
    /// Measure which configuration of a problem is the fastest, or how good the planner's plans are.
    Tune => tune,
    /// Build the closed set of kernels ahead of time.
    Prebuild => prebuild,
    /// Write the timeline of a GEMM in the simulator, for Perfetto.
    Trace => trace,
    /// Delete a kernel's synchronization piece by piece, and count what the simulator finds.
    Mutate => mutate,
    /// Run any kernel in the simulator, from its PTX and a description of its launch.
    Sim => sim,
}
