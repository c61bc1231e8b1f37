//! Quantization to FP8 and FP4 with scales of any granularity, dequantization, scale layouts and MoE permutation.
//!
//! Every kernel is the same few steps on [`Vec8`](vec8)s, eight neighbours of a row: load, amax, [`scale`], convert,
//! store. The kernels differ in which elements share a scale, and so in how far the amax has to be reduced:
//!
//! | file | scale granularity | reduction of the amax |
//! |---|---|---|
//! | `block_1x128.rs` | 1x128, 1x32 or 1x16 (NVFP4) | shuffles of a few lanes |
//! | `block_128x128.rs` | 128x128, or 128x1 | shared memory of a CTA |
//! | `dual.rs` | either, for row-wise and transposed output | shuffles, and shared memory of a CTA |
//! | `rms_norm.rs` | 1x128, after RMSNorm | shuffles of a few lanes |
//! | `per_row.rs` | per row | shared memory of a CTA |
//! | `per_tensor.rs` | per tensor | an atomic maximum, and a second kernel that converts |
//! | `per_tensor_single.rs` | per tensor, for small matrices | a grid barrier |
//!
//! All of them are limited by memory bandwidth, so a thread has several vectors in flight. Where a CTA works on several
//! tiles, the next ones are copied meanwhile (`async_copy.rs`). Data that is read once is evicted first; results stay
//! in L2. Types are compiled in; shapes, strides, the layout of scales and power-of-two rounding are arguments.

mod async_copy;
pub mod block_128x128;
pub mod block_1x128;
pub mod dequantize;
pub mod dual;
pub mod moe_permute;
pub mod params;
pub mod per_row;
pub mod per_tensor;
pub mod per_tensor_single;
pub mod rms_norm;
pub mod scale;
pub mod scale_layout;
mod scale_writer;
pub mod vec8;
pub mod zero_padding;

pub use block_1x128::Source;
pub use params::{Args, Flags, Launch};
pub use vec8::{Code, Input};

use crate::arch::Arch;
use oxigemm_ptx::{BuildError, Module};

/// Quantization kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// Scales for 128, 32 or 16 neighbours of a row.
    Block1x128(block_1x128::Config),
    /// Scales for 128x128 blocks, or for 128 elements of a column.
    Block128x128(block_128x128::Config),
    /// Row-wise and transposed output.
    Dual(dual::Config),
    /// Scales per row.
    PerRow(per_row::Config),
    /// RMSNorm, then scales for 128 neighbours of a row.
    RmsNorm(rms_norm::Config),
    /// Per-tensor scale, first kernel: the scale.
    PerTensorScale(per_tensor::ScaleConfig),
    /// Per-tensor scale, second kernel: the codes, by a scale that exists.
    PerTensorCodes(per_tensor::CodesConfig),
    /// Per-tensor scale in one cooperative kernel, for a matrix that one grid can hold.
    PerTensorSingle(per_tensor_single::Config),
    /// Codes and scales to numbers.
    Dequantize(dequantize::Config),
    /// Scales from one layout to another.
    ScaleLayout,
    /// MoE permutation: rows of tokens, sorted by expert.
    MoePermute,
    /// MoE unpermutation: the weighted sum of each token's rows.
    MoeUnpermute,
    /// Zeros for rows of no group.
    ZeroPadding,
}

impl Config {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Config> {
        let types = || Input::ALL.into_iter().flat_map(|input| Code::FP8.map(|code| (input, code)));
        block_1x128::Config::all()
            .map(Config::Block1x128)
            .chain(types().flat_map(|(input, code)| {
                block_128x128::Granularity::ALL.map(|granularity| {
                    Config::Block128x128(block_128x128::Config { input, code, granularity })
                })
            }))
            .chain(types().flat_map(|(input, code)| {
                dual::Granularity::ALL
                    .map(|granularity| Config::Dual(dual::Config { input, code, granularity }))
            }))
            .chain(types().flat_map(|(input, code)| {
                [
                    Config::PerRow(per_row::Config { input, code }),
                    Config::PerTensorScale(per_tensor::ScaleConfig { input, code }),
                    Config::PerTensorCodes(per_tensor::CodesConfig { input, code }),
                    Config::PerTensorSingle(per_tensor_single::Config { input, code }),
                ]
            }))
            .chain(types().flat_map(|(output, code)| {
                [dequantize::Scales::PerBlock, dequantize::Scales::PerChannel]
                    .map(|scales| Config::Dequantize(dequantize::Config { code, output, scales }))
            }))
            .chain(Input::ALL.into_iter().flat_map(|output| {
                [dequantize::Scales::PerBlock, dequantize::Scales::TwoLevels]
                    .map(|scales| Config::Dequantize(dequantize::Config { code: Code::E2m1, output, scales }))
            }))
            .chain(
                Input::ALL
                    .map(|input| Config::PerTensorScale(per_tensor::ScaleConfig { input, code: Code::E2m1 })),
            )
            .chain(Input::ALL.map(|input| Config::RmsNorm(rms_norm::Config { input })))
            .chain([Config::ScaleLayout, Config::MoePermute, Config::MoeUnpermute, Config::ZeroPadding])
    }

    /// Name of the kernel, behind that of its architecture.
    pub fn name(&self) -> String {
        match self {
            Config::Block1x128(config) => config.name(),
            Config::Block128x128(config) => config.name(),
            Config::Dual(config) => config.name(),
            Config::PerRow(config) => config.name(),
            Config::RmsNorm(config) => config.name(),
            Config::PerTensorScale(config) => config.name(),
            Config::PerTensorCodes(config) => config.name(),
            Config::PerTensorSingle(config) => config.name(),
            Config::Dequantize(config) => config.name(),
            Config::ScaleLayout => scale_layout::NAME.to_owned(),
            Config::MoePermute => moe_permute::PERMUTE.to_owned(),
            Config::MoeUnpermute => moe_permute::UNPERMUTE.to_owned(),
            Config::ZeroPadding => zero_padding::NAME.to_owned(),
        }
    }

    /// Builds the kernel for an architecture.
    pub fn build(&self, arch: Arch) -> Result<Module, BuildError> {
        let k = &arch.kernel(&self.name()).threads(self.threads()).resident(self.resident());
        let p = params::Params::declare(k);
        // A kernel before this one may still write the inputs, or read the outputs.
        k.grid_dependency_wait();
        match self {
            Config::Block1x128(config) => config.write(k, &p),
            Config::Block128x128(config) => config.write(k, &p),
            Config::Dual(config) => config.write(k, &p),
            Config::PerRow(config) => config.write(k, &p),
            Config::RmsNorm(config) => config.write(k, &p),
            Config::PerTensorScale(config) => config.write(k, &p),
            Config::PerTensorCodes(config) => config.write(k, &p),
            Config::PerTensorSingle(config) => config.write(k, &p),
            Config::Dequantize(config) => config.write(k, &p),
            Config::ScaleLayout => scale_layout::write(k, &p),
            Config::MoePermute => moe_permute::permute(k, &p),
            Config::MoeUnpermute => moe_permute::unpermute(k, &p),
            Config::ZeroPadding => zero_padding::write(k, &p),
        }
        k.finish()
    }

    /// CTAs per SM: while one waits for memory, others convert and store.
    fn resident(&self) -> u32 {
        match self {
            Config::Block1x128(config) => config.resident(),
            // Limited by the registers of a tile.
            Config::Block128x128(config) if config.input == Input::Bf16 => 3,
            Config::Block128x128(_) => 2,
            Config::Dual(config) => config.resident(),
            Config::PerRow(_) => 4,
            Config::RmsNorm(_) => 1,
            Config::PerTensorScale(config) => config.resident(),
            Config::PerTensorCodes(_) => 4,
            Config::PerTensorSingle(_) => 1,
            Config::Dequantize(config) if config.scales == dequantize::Scales::PerChannel => 4,
            Config::Dequantize(_) => 6,
            Config::ScaleLayout => 8,
            Config::MoePermute => 1,
            Config::MoeUnpermute => 6,
            Config::ZeroPadding => 8,
        }
    }

    /// Whether it needs a cooperative launch: its CTAs wait for each other.
    pub const fn is_cooperative(&self) -> bool {
        matches!(self, Config::PerTensorSingle(_))
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        match self {
            Config::Block1x128(_) => block_1x128::THREADS,
            Config::Block128x128(_) => block_128x128::THREADS,
            Config::Dual(_) => dual::THREADS,
            Config::PerRow(_) => per_row::THREADS,
            Config::RmsNorm(_) => rms_norm::THREADS,
            Config::PerTensorScale(_) | Config::PerTensorCodes(_) => per_tensor::THREADS,
            Config::PerTensorSingle(_) => per_tensor_single::THREADS,
            Config::Dequantize(_) => dequantize::THREADS,
            Config::ScaleLayout => scale_layout::THREADS,
            Config::MoePermute => moe_permute::THREADS,
            Config::MoeUnpermute => moe_permute::UNPERMUTE_THREADS,
            Config::ZeroPadding => zero_padding::THREADS,
        }
    }
}
