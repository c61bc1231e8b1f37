//! Exchange of tokens between ranks, for a mixture whose experts lie on several GPUs.
//!
//! Each rank has a *symmetric buffer* ([`buffer`]): memory that all ranks read and write by addresses of their own. Its
//! tokens lie there with their choices, so a rank can fetch those that it has experts for, and so do the sums that it
//! makes for the tokens of others.
//!
//! | step | file | what it does |
//! |---|---|---|
//! | publish | `publish.rs` | a rank's tokens, ids and weights go into its own buffer |
//! | (quantize) | | where tokens travel as codes: the rows that publish has listed |
//! | meet | `meet.rs` | barrier: all ranks have published; they agree about sizes |
//! | collect | `collect.rs` | the choices of all ranks that are experts of this one |
//! | pull | `pull.rs` | rows of tokens, sorted by expert, from the buffers of all ranks |
//! | (GEMMs) | | and the sum of each token's rows, into this rank's buffer |
//! | meet | | barrier: all sums are there |
//! | combine | `combine.rs` | the sums of a rank's tokens, from the buffers of all ranks |
//!
//! Nothing is written to the memory of another rank but a line of the barrier, and its status where something is wrong.
//! Two barriers are enough: what a rank overwrites before the first of its next call was read before the last of this
//! one, and what it overwrites after the first was read before others came there.

pub mod buffer;
pub mod collect;
pub mod combine;
pub mod meet;
pub mod publish;
pub mod pull;

use crate::arch::Arch;
use oxigemm_ptx::{BuildError, Module};

/// Threads of a CTA, but of the barrier.
pub const THREADS: u32 = 128;
/// Value for no token, and for no expert.
const NONE: u32 = u32::MAX;

/// Kernel of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Tokens into the symmetric buffer.
    Publish,
    /// The barrier.
    Meet,
    /// Choices of all ranks.
    Collect,
    /// Rows of all ranks.
    Pull,
    /// Sums of all ranks.
    Combine,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 5] = [Step::Publish, Step::Meet, Step::Collect, Step::Pull, Step::Combine];

    /// Name of the kernel, without the architecture.
    pub const fn name(self) -> &'static str {
        match self {
            Step::Publish => "moe_publish",
            Step::Meet => "moe_meet",
            Step::Collect => "moe_collect",
            Step::Pull => "moe_pull",
            Step::Combine => "moe_combine",
        }
    }

    /// Builds the kernel.
    pub fn build(self, arch: Arch) -> Result<Module, BuildError> {
        let threads = if self == Step::Meet { buffer::MAX_RANKS } else { THREADS };
        let k = &arch.kernel(self.name()).threads(threads);
        match self {
            Step::Publish => publish::write(k),
            Step::Meet => meet::write(k),
            Step::Collect => collect::write(k),
            Step::Pull => pull::write(k),
            Step::Combine => combine::write(k),
        }
        k.finish()
    }
}
