//! MQA logits of the attention indexer: for a prefill, and for a decode step with a paged KV cache.
//!
//! `logit[q, j] = scale[j] * sum over heads of  relu(Q[q,h] . KV[j]) * weight[q,h]`
//!
//! | file | |
//! |---|---|
//! | `shape.rs` | heads, tiles and flags |
//! | `context_lens.rs` | context lengths of a decode step |
//! | `paged_metadata.rs` | kernel: schedule of a decode step, for every architecture |
//! | `prefill.rs`, `paged.rs` | arguments, and roles that the kernels of every architecture share |
//! | `smem.rs`, `scheduler.rs`, `logits.rs` | shared memory, schedule of a prefill, stores of logits |
//! | `sm90/` | kernels for Hopper |
//! | `sm100/` | kernels for Blackwell |

mod context_lens;
mod logits;
pub mod paged;
pub mod paged_metadata;
pub mod prefill;
mod scheduler;
mod shape;
pub mod sm100;
pub mod sm90;
mod smem;

pub use shape::{
    DEDICATED_NEXT, DIMS, Format, HEAD_STEP, HEADS, HeadTile, Heads, LogitFlags, MAX_HEADS, PADDED_HEADS,
    PAGE_SIZES, TILE_KEYS,
};

use crate::arch::Arch;
use oxigemm_ptx::{BuildError, Module};
use sm90::{mqa_logits, paged_mqa_logits};

/// Kernel of the MQA logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// Logits of a prefill.
    MqaLogits(mqa_logits::Config),
    /// Logits of a decode step, with a paged KV cache.
    PagedMqaLogits(paged_mqa_logits::Config),
    /// Logits of either on Blackwell.
    Sm100(sm100::Config),
    /// Schedule metadata of the latter.
    PagedMetadata(paged_metadata::Config),
}

impl Config {
    /// All of an architecture.
    pub fn all(arch: Arch) -> impl Iterator<Item = Config> {
        let (sm90, sm100) = match arch {
            Arch::Sm90a => (Some(HeadTile::all()), None),
            Arch::Sm100a => (None, Some(sm100::Config::all().map(Config::Sm100))),
        };
        let logits = sm90.into_iter().flatten().flat_map(|tile| {
            [
                Config::MqaLogits(mqa_logits::Config { tile }),
                Config::PagedMqaLogits(paged_mqa_logits::Config { tile }),
            ]
        });
        let metadata = [false, true].map(|any_next| paged_metadata::Config { arch, any_next });
        logits.chain(sm100.into_iter().flatten()).chain(metadata.map(Config::PagedMetadata))
    }

    /// The architecture it is for.
    pub fn arch(&self) -> Arch {
        match self {
            Config::MqaLogits(_) | Config::PagedMqaLogits(_) => Arch::Sm90a,
            Config::Sm100(_) => Arch::Sm100a,
            Config::PagedMetadata(config) => config.arch,
        }
    }

    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        match self {
            Config::MqaLogits(config) => config.name(),
            Config::PagedMqaLogits(config) => config.name(),
            Config::Sm100(config) => config.name(),
            Config::PagedMetadata(config) => config.name(),
        }
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        match self {
            Config::MqaLogits(config) => config.threads(),
            Config::PagedMqaLogits(config) => config.threads(),
            Config::Sm100(config) => config.threads(),
            Config::PagedMetadata(config) => config.threads(),
        }
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        match self {
            Config::MqaLogits(config) => config.shared_bytes(),
            Config::PagedMqaLogits(config) => config.shared_bytes(),
            Config::Sm100(config) => config.shared_bytes(),
            Config::PagedMetadata(config) => config.shared_bytes(),
        }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        match self {
            Config::MqaLogits(config) => config.build(),
            Config::PagedMqaLogits(config) => config.build(),
            Config::Sm100(config) => config.build(),
            Config::PagedMetadata(config) => config.build(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_fits_the_shared_memory_of_a_cta() {
        for config in Arch::ALL.into_iter().flat_map(Config::all) {
            assert!(config.shared_bytes() <= 232_448, "{}", config.name());
        }
    }
}
