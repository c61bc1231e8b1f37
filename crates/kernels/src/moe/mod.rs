//! Top-k of a mixture-of-experts router: scores of experts from logits, the best of each token, and their weights.
//!
//! A warp has a token, and its lanes the logits: `slots` of them each, expert `32 * slot + lane`. The choice of the best
//! expert is two `redux`: the largest key, then the lowest index with that key. So ties go to the lower index, and the
//! choice depends on nothing but the logits.
//!
//! Scores are made of correctly rounded instructions only ([`score`]): every device computes the same bits, and so
//! chooses the same experts also where scores nearly tie.
//!
//! | file | holds |
//! |---|---|
//! | `top_k.rs` | the kernel |
//! | `groups.rs` | group-limited choice: the experts of the best groups remain |
//! | `score.rs` | softmax, sigmoid and sqrtsoftplus |
//! | `key.rs` | numbers as unsigned integers of the same order |
//! | `params.rs` | the parameters |

mod groups;
mod key;
mod params;
pub mod score;
mod top_k;

pub use params::{Args, Flags};

use crate::arch::Arch;
use crate::common::WARP;
use oxigemm_ptx::{BuildError, Module};

/// Threads of a CTA.
pub const THREADS: u32 = 128;
/// Tokens of a CTA: a warp for each.
pub const TOKENS: u32 = THREADS / WARP;
/// Most experts.
pub const MAX_EXPERTS: u32 = 512;
/// Most experts of a token: a lane for each.
pub const MAX_TOP_K: u32 = WARP;
/// Most groups of experts: a lane for each.
pub const MAX_GROUPS: u32 = WARP;

/// Top-k kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The architecture.
    pub arch: Arch,
    /// Most experts: one of [`Config::CAPACITIES`].
    pub capacity: u32,
}

impl Config {
    /// Numbers of experts that there are kernels for.
    pub const CAPACITIES: [u32; 3] = [128, 256, MAX_EXPERTS];

    /// All of an architecture.
    pub fn all(arch: Arch) -> impl Iterator<Item = Config> {
        Config::CAPACITIES.into_iter().map(move |capacity| Config { arch, capacity })
    }

    /// The kernel for so many experts, which are at most [`MAX_EXPERTS`].
    pub fn for_experts(arch: Arch, experts: u32) -> Config {
        let [small, medium, large] = Config::CAPACITIES;
        let fits = [small, medium].into_iter().find(|capacity| experts <= *capacity);
        Config { arch, capacity: fits.unwrap_or(large) }
    }

    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        self.arch.kernel_name(&format!("moe_top_k_{}", self.capacity))
    }

    /// CTAs for so many tokens.
    pub fn ctas(&self, tokens: u32) -> u32 {
        tokens.div_ceil(TOKENS)
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        TOKENS * top_k::SmemToken::bytes(self.capacity)
    }

    /// Logits of a lane.
    fn slots(&self) -> u32 {
        self.capacity / WARP
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        let k = &self.arch.kernel(&format!("moe_top_k_{}", self.capacity)).threads(THREADS);
        top_k::write(k, self);
        k.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_kernel_that_has_the_experts_is_taken() {
        let capacity = |experts| Config::for_experts(Arch::Sm90a, experts).capacity;
        assert_eq!([1, 128, 129, 256, 257, 512].map(capacity), [128, 128, 256, 256, 512, 512]);
    }
}
