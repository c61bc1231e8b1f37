//! Hyper-connection (HC) pre-norm GEMM: a GEMM with few columns, and the sum of squares of every row on the way.
//!
//! `D[m,n] = sum over k of  X[m,k] * W[n,k]`, `squares[m] = sum over k of  X[m,k]²`, for BF16 X and FP32 W, which is
//! rounded to TF32.
//!
//! Reading X limits it, so every CTA reads the same number of consecutive stages of 128 rows and 64 of K: see
//! `scheduler.rs`.

mod params;
mod scheduler;
pub mod sm100;
pub mod sm90;

pub use params::Args;

use crate::arch::Arch;
use oxigemm_ptx::{Bf16x2, BuildError, Module, Val, Var};

/// M of a tile.
pub const BLOCK_M: u32 = 128;
/// K of a stage: 128 bytes of a row of X.
pub const BLOCK_K: u32 = 64;
/// Numbers of columns that there are kernels for.
pub const COLUMNS: [u32; 4] = [8, 16, 24, 32];

/// Kernel of the pre-norm GEMM. Shapes and splits are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The architecture.
    pub arch: Arch,
    /// N: one of [`COLUMNS`].
    pub columns: u32,
}

/// How TMA loads W: in boxes of this many columns and rows, which lie in the order 0, i, 2i, ..., 1, i + 1, ... of
/// `interleave` = i.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WTile {
    /// Elements of K of a box.
    pub k: u32,
    /// Rows of a box, of which those behind the last of W are zeros.
    pub rows: u32,
    /// Neighbouring rows of W that are apart in shared memory.
    pub interleave: u32,
    /// Whether lines have the 128-byte swizzle.
    pub is_swizzled: bool,
}

impl Config {
    /// All of an architecture.
    pub fn all(arch: Arch) -> impl Iterator<Item = Config> {
        COLUMNS.into_iter().map(move |columns| Config { arch, columns })
    }

    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        self.arch.kernel_name(&format!("tf32_hc_prenorm_gemm_n{}", self.columns))
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        match self.arch {
            Arch::Sm90a => sm90::THREADS,
            Arch::Sm100a => sm100::THREADS,
        }
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        match self.arch {
            Arch::Sm90a => sm90::Config { columns: self.columns }.shared_bytes(),
            Arch::Sm100a => sm100::Config { columns: self.columns }.shared_bytes(),
        }
    }

    /// Bytes of the workspace in which so many CTAs of any of the architecture's kernels reduce their accumulators: zeros
    /// at first.
    pub fn workspace_bytes(&self, ctas: u32) -> u64 {
        match self.arch {
            Arch::Sm90a => sm90::Config::workspace_bytes(ctas),
            Arch::Sm100a => sm100::Config::workspace_bytes(ctas),
        }
    }

    /// How W is loaded.
    pub fn w_tile(&self) -> WTile {
        match self.arch {
            Arch::Sm90a => sm90::Config { columns: self.columns }.w_tile(),
            Arch::Sm100a => sm100::Config { columns: self.columns }.w_tile(),
        }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        match self.arch {
            Arch::Sm90a => sm90::Config { columns: self.columns }.build(&self.name()),
            Arch::Sm100a => sm100::Config { columns: self.columns }.build(&self.name()),
        }
    }
}

/// Adds the squares of eight neighbours.
fn square<'k>(words: [Val<'k, Bf16x2>; 4], squares: &[Var<'k, f32>; 4]) {
    for (word, square) in words.into_iter().zip(squares) {
        word.to_f32().into_iter().for_each(|x| square.fma(x, x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_fits_the_shared_memory_of_a_cta() {
        for config in Arch::ALL.into_iter().flat_map(Config::all) {
            assert!(config.shared_bytes() <= config.arch.limits().shared_per_block, "{}", config.name());
        }
    }
}
