//! The oxigemm command line: what runs here, whether it is right, and how fast it is.

mod anchor;
mod bench;
mod counting;
mod devices;
mod found;
mod fused;
mod fused_grouped;
mod gemm;
mod grouped;
mod hc;
mod indexer;
mod inspect;
mod kgrouped;
mod logits;
mod mutate;
mod output;
mod plot;
mod prebuild;
mod prenorm;
mod problem;
mod quantize;
mod simulate;
mod task;
mod timing;
mod trace;
mod verdict;
mod verify;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use oxigemm::plan::Family;
use oxigemm::{DType, Device, GemmLayout};
use oxigemm_kernels::grouping::GroupLayout;
use oxigemm_kernels::half::Half;

use grouped::RowLayout;

/// What a command's failure is: one sentence.
type Failure = Box<dyn std::error::Error + Send + Sync>;
/// Whether everything that a command checked was right.
type Outcome = Result<bool, Failure>;

/// Tensor-core kernels for large language models, with only the GPU driver.
#[derive(Debug, Parser)]
#[command(name = "oxigemm", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
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

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what can run here, and why something cannot.
    Devices,
    /// Run one problem, check it, and time it.
    Gemm(gemm::Args),
    /// Quantize a matrix, or what belongs to it, compare with the CPU, and time it.
    Quantize(quantize::Args),
    /// Compute the logits of an indexer for one problem, check them, and time it.
    Logits(logits::Args),
    /// Compute the product before the norm of a hyper-connection, check it, and time it.
    Hc(prenorm::Args),
    /// Run the correctness suite.
    Verify(verify::Args),
    /// Time the peer's cases and compare with its figures.
    Bench(bench::Args),
    /// Show the plan for a problem, why it was taken, and the code.
    Inspect(inspect::Args),
    /// Build the closed set of kernels ahead.
    Prebuild(prebuild::Args),
    /// Write the timeline of a problem in the simulator, for Perfetto.
    Trace(trace::Args),
    /// Delete a kernel's synchronization piece by piece, and count what the simulator finds.
    Mutate(mutate::Args),
    /// Run any kernel in the simulator, from its PTX and a description of its launch.
    Sim(simulate::Args),
}

/// The function that is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Op {
    /// The dense FP8 GEMM with fine-grained scales, `fp8_gemm_nt`.
    #[default]
    Fp8,
    /// The same with a scale for each row of B, as A has them.
    #[value(name = "fp8-1d1d")]
    Fp81d1d,
    /// The same for groups of rows one behind another, `m_grouped_fp8_gemm_nt_contiguous`.
    Fp8Contiguous,
    /// The same for groups that each have room for the same number of rows, `m_grouped_fp8_gemm_nt_masked`.
    Fp8Masked,
    /// A batch of products, `fp8_bgemm_nt`.
    Fp8Batched,
    /// Groups that share M and N, each with a K of its own, `k_grouped_fp8_gemm_nt_contiguous`.
    Fp8Kgrouped,
    /// The same of BF16 operands, `k_grouped_bf16_gemm_tn_contiguous` and its kind.
    Bf16Kgrouped,
    /// The same of FP16 operands, `k_grouped_fp16_gemm_tn_contiguous` and its kind.
    Fp16Kgrouped,
    /// The dense GEMM of BF16 operands, `bf16_gemm_nt` and its kind.
    Bf16,
    /// The dense GEMM of FP16 operands, `fp16_gemm_nt` and its kind.
    Fp16,
    /// That of BF16 for groups of rows one behind another, `m_grouped_bf16_gemm_nt_contiguous` and its kind.
    Bf16Contiguous,
    /// The same for groups that each have room for the same number of rows, `m_grouped_bf16_gemm_nt_masked`.
    Bf16Masked,
    /// That of FP16 for groups of rows one behind another, `m_grouped_fp16_gemm_nt_contiguous` and its kind.
    Fp16Contiguous,
    /// The same for groups that each have room for the same number of rows, `m_grouped_fp16_gemm_nt_masked`.
    Fp16Masked,
    /// A batch of products of BF16 operands, `bf16_bgemm_nt` and its kind.
    Bf16Batched,
    /// A batch of products of FP16 operands, `fp16_bgemm_nt` and its kind.
    Fp16Batched,
    /// The sum of a batch of products of BF16 operands, `einsum` of `bmk,bnk->mn`; `--groups` says how many.
    Bf16Summed,
    /// The same of FP16 operands.
    Fp16Summed,
}

impl Op {
    /// The function of one product with the same operands.
    fn dense(self) -> Op {
        match self {
            Op::Fp8 | Op::Fp8Contiguous | Op::Fp8Masked | Op::Fp8Batched => Op::Fp8,
            Op::Fp81d1d => Op::Fp81d1d,
            Op::Fp8Kgrouped => Op::Fp8Kgrouped,
            Op::Bf16 | Op::Bf16Contiguous | Op::Bf16Masked | Op::Bf16Batched | Op::Bf16Kgrouped => Op::Bf16,
            Op::Bf16Summed => Op::Bf16,
            Op::Fp16 | Op::Fp16Contiguous | Op::Fp16Masked | Op::Fp16Batched | Op::Fp16Kgrouped => Op::Fp16,
            Op::Fp16Summed => Op::Fp16,
        }
    }

    /// Whether the products of a batch are added up.
    fn is_summed(self) -> bool {
        matches!(self, Op::Bf16Summed | Op::Fp16Summed)
    }

    /// Whether groups are along K.
    fn is_k_grouped(self) -> bool {
        matches!(self, Op::Fp8Kgrouped | Op::Bf16Kgrouped | Op::Fp16Kgrouped)
    }

    /// How the device is told where groups are, of a function that has some: as `rows` says where it can be told so.
    fn groups(self, rows: RowLayout) -> Option<GroupLayout> {
        match self {
            Op::Fp8 | Op::Fp81d1d | Op::Bf16 | Op::Fp16 => None,
            Op::Fp8Kgrouped | Op::Bf16Kgrouped | Op::Fp16Kgrouped => None,
            Op::Bf16Summed | Op::Fp16Summed => None,
            Op::Fp8Contiguous | Op::Bf16Contiguous | Op::Fp16Contiguous => Some(match rows {
                RowLayout::Ids => GroupLayout::Ids,
                RowLayout::Ends => GroupLayout::Ends,
            }),
            Op::Fp8Masked | Op::Bf16Masked | Op::Fp16Masked => Some(GroupLayout::Counts),
            Op::Fp8Batched | Op::Bf16Batched | Op::Fp16Batched => Some(GroupLayout::All),
        }
    }

    /// The kernels that serve it, for operands in some layout.
    fn family(self, layout: GemmLayout) -> Family {
        match self.dense() {
            Op::Fp81d1d | Op::Fp8Kgrouped => Family::Fp8Rows,
            Op::Bf16 => Family::Half(layout.operands(Half::Bf16)),
            Op::Fp16 => Family::Half(layout.operands(Half::F16)),
            _ => Family::Fp8,
        }
    }

    /// The function and the layout that a kernel serves.
    fn of(family: Family) -> (Op, GemmLayout) {
        match family {
            Family::Fp8 | Family::Fp8E5m2(_) => (Op::Fp8, GemmLayout::Nt),
            Family::Fp8Rows => (Op::Fp81d1d, GemmLayout::Nt),
            Family::Half(operands) => {
                let same = |layout: &GemmLayout| layout.operands(operands.element) == operands;
                let layout = GemmLayout::ALL.into_iter().find(same).expect("there are four of both");
                (if operands.element == Half::Bf16 { Op::Bf16 } else { Op::Fp16 }, layout)
            }
        }
    }

    /// The type of A and B.
    fn ab_type(self) -> DType {
        match self.dense() {
            Op::Bf16 => DType::Bf16,
            Op::Fp16 => DType::F16,
            _ => DType::E4m3,
        }
    }

    /// The types that D may have; the first is the usual one.
    fn d_types(self) -> [DType; 2] {
        let types = match self.dense() {
            Op::Fp16 => [DType::F16, DType::F32],
            _ => [DType::Bf16, DType::F32],
        };
        if self.is_k_grouped() { [types[1], types[0]] } else { types }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
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
    let outcome = match command {
        Command::Devices => devices::run(&common),
        Command::Gemm(args) => gemm::run(&common, &args),
        Command::Quantize(args) => quantize::run(&common, &args),
        Command::Logits(args) => logits::run(&common, &args),
        Command::Hc(args) => prenorm::run(&common, &args),
        Command::Verify(args) => verify::run(&common, &args),
        Command::Bench(args) => bench::run(&common, &args),
        Command::Inspect(args) => inspect::run(&common, &args),
        Command::Prebuild(args) => prebuild::run(&common, &args),
        Command::Trace(args) => trace::run(&common, &args),
        Command::Mutate(args) => mutate::run(&common, &args),
        Command::Sim(args) => simulate::run(&common, &args),
    };
    match outcome {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(failure) => {
            eprintln!("error: {failure}");
            2
        }
    }
}
