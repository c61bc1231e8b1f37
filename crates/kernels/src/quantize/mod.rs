//! Quantization to FP8 and FP4 with scales of any granularity, and back; scales from one layout to another.
//!
//! Every kernel is the same few steps on [chunks](vec8) of eight neighbours of a row: load, take the largest
//! magnitude, [`scale`], convert, store. The families differ in who shares a scale, and so in how far the
//! magnitude travels:
//!
//! | file | a scale belongs to | the magnitude goes through |
//! |---|---|---|
//! | `groups.rs` | 128, 32 or 16 neighbours of a row | shuffles of a few lanes |
//! | `tiles.rs` | 128 by 128, or 128 of a column | shared memory of a block |
//! | `both.rs` | either, and the same of the transpose | shuffles, and shared memory of a block |
//! | `norm.rs` | 128 neighbours of a row, after RMSNorm | shuffles of a few lanes |
//! | `rows.rs` | a row | shared memory of a block |
//! | `whole.rs` | the matrix | an atomic maximum, and a second kernel that converts |
//! | `meeting.rs` | a small matrix | words in memory, for which all blocks wait |
//!
//! All of them are limited by memory, so a thread has several vectors in flight; where blocks are few and have to meet, what
//! they read next is under way meanwhile (`flight.rs`). What is read once leaves the cache first, and results stay in it.
//! Types are compiled in; shapes, strides, the layout of the scales and whether they are powers of two are arguments.

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
pub use params::{Args, Divisor, Flags, Launch};
pub use vec8::{Code, Input};

use oxigemm_ptx::{BuildError, Kernel, Module, Target};

/// A kernel of this family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// A scale for some neighbours of a row.
    Groups(block_1x128::Config),
    /// A scale for 128 by 128, or for 128 of a column.
    Tiles(block_128x128::Config),
    /// A matrix and its transpose.
    Both(dual::Config),
    /// A scale for a row.
    Rows(per_row::Config),
    /// RMSNorm, and a scale for some neighbours of a row.
    Norm(rms_norm::Config),
    /// The scale of the whole matrix.
    WholeScale(per_tensor::ScaleConfig),
    /// Codes by scales that are already there.
    WholeCodes(per_tensor::CodesConfig),
    /// A scale for a whole matrix that one grid can hold.
    Meeting(per_tensor_single::Config),
    /// Codes and scales back to numbers.
    Dequantize(dequantize::Config),
    /// Scales from one layout to another.
    Transform,
    /// Where tokens go that experts are chosen for.
    Permute,
    /// The sum of what became of a token.
    Unpermute,
    /// Rows of no group become zero.
    Padding,
}

impl Config {
    /// Every kernel of this family.
    pub fn all() -> impl Iterator<Item = Config> {
        let types = || Input::ALL.into_iter().flat_map(|input| Code::FP8.map(|code| (input, code)));
        block_1x128::Config::all()
            .map(Config::Groups)
            .chain(types().flat_map(|(input, code)| {
                block_128x128::Sharing::ALL
                    .map(|sharing| Config::Tiles(block_128x128::Config { input, code, sharing }))
            }))
            .chain(types().flat_map(|(input, code)| {
                dual::Sharing::ALL.map(|sharing| Config::Both(dual::Config { input, code, sharing }))
            }))
            .chain(types().flat_map(|(input, code)| {
                [
                    Config::Rows(per_row::Config { input, code }),
                    Config::WholeScale(per_tensor::ScaleConfig { input, code }),
                    Config::WholeCodes(per_tensor::CodesConfig { input, code }),
                    Config::Meeting(per_tensor_single::Config { input, code }),
                ]
            }))
            .chain(types().flat_map(|(output, code)| {
                [dequantize::Scales::PerChunk, dequantize::Scales::PerColumn]
                    .map(|scales| Config::Dequantize(dequantize::Config { code, output, scales }))
            }))
            .chain(Input::ALL.into_iter().flat_map(|output| {
                [dequantize::Scales::PerChunk, dequantize::Scales::TwoLevels]
                    .map(|scales| Config::Dequantize(dequantize::Config { code: Code::E2m1, output, scales }))
            }))
            .chain(
                Input::ALL
                    .map(|input| Config::WholeScale(per_tensor::ScaleConfig { input, code: Code::E2m1 })),
            )
            .chain(Input::ALL.map(|input| Config::Norm(rms_norm::Config { input })))
            .chain([Config::Transform, Config::Permute, Config::Unpermute, Config::Padding])
    }

    /// The kernel's name, which is also the entry's.
    pub fn name(&self) -> String {
        match self {
            Config::Groups(config) => config.name(),
            Config::Tiles(config) => config.name(),
            Config::Both(config) => config.name(),
            Config::Rows(config) => config.name(),
            Config::Norm(config) => config.name(),
            Config::WholeScale(config) => config.name(),
            Config::WholeCodes(config) => config.name(),
            Config::Meeting(config) => config.name(),
            Config::Dequantize(config) => config.name(),
            Config::Transform => scale_layout::NAME.to_owned(),
            Config::Permute => moe_permute::PERMUTE.to_owned(),
            Config::Unpermute => moe_permute::UNPERMUTE.to_owned(),
            Config::Padding => zero_padding::NAME.to_owned(),
        }
    }

    /// Writes the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        let k = &Kernel::new(&self.name(), Target::Sm90a).threads(self.threads()).resident(self.resident());
        let p = params::Params::declare(k);
        // A kernel before this one may still be writing what is read here, or reading what is written.
        k.grid_dependency_wait();
        match self {
            Config::Groups(config) => config.write(k, &p),
            Config::Tiles(config) => config.write(k, &p),
            Config::Both(config) => config.write(k, &p),
            Config::Rows(config) => config.write(k, &p),
            Config::Norm(config) => config.write(k, &p),
            Config::WholeScale(config) => config.write(k, &p),
            Config::WholeCodes(config) => config.write(k, &p),
            Config::Meeting(config) => config.write(k, &p),
            Config::Dequantize(config) => config.write(k, &p),
            Config::Transform => scale_layout::write(k, &p),
            Config::Permute => moe_permute::permute(k, &p),
            Config::Unpermute => moe_permute::unpermute(k, &p),
            Config::Padding => zero_padding::write(k, &p),
        }
        k.finish()
    }

    /// Blocks that a multiprocessor should have at a time: while one waits for memory, others convert and store.
    fn resident(&self) -> u32 {
        match self {
            Config::Groups(config) => config.resident(),
            // As many as tiles leave registers for.
            Config::Tiles(config) if config.input == Input::Bf16 => 3,
            Config::Tiles(_) => 2,
            Config::Both(config) => config.resident(),
            Config::Rows(_) => 4,
            Config::Norm(_) => 1,
            Config::WholeScale(config) => config.resident(),
            Config::WholeCodes(_) => 4,
            Config::Meeting(_) => 1,
            Config::Dequantize(config) if config.scales == dequantize::Scales::PerColumn => 4,
            Config::Dequantize(_) => 6,
            Config::Transform => 8,
            Config::Permute => 1,
            Config::Unpermute => 6,
            Config::Padding => 8,
        }
    }

    /// Whether its blocks wait for each other, so that all of them have to run at one time.
    pub const fn meets(&self) -> bool {
        matches!(self, Config::Meeting(_))
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        match self {
            Config::Groups(_) => block_1x128::THREADS,
            Config::Tiles(_) => block_128x128::THREADS,
            Config::Both(_) => dual::THREADS,
            Config::Rows(_) => per_row::THREADS,
            Config::Norm(_) => rms_norm::THREADS,
            Config::WholeScale(_) | Config::WholeCodes(_) => per_tensor::THREADS,
            Config::Meeting(_) => per_tensor_single::THREADS,
            Config::Dequantize(_) => dequantize::THREADS,
            Config::Transform => scale_layout::THREADS,
            Config::Permute => moe_permute::THREADS,
            Config::Unpermute => moe_permute::UNPERMUTE_THREADS,
            Config::Padding => zero_padding::THREADS,
        }
    }
}

/// How the kernels ask whether they can move whole vectors: the answer is the same for all of a launch.
#[track_caller]
fn by_access<'k>(k: &'k Kernel, p: &params::Params<'k>, body: impl Fn(vec8::Access)) {
    k.if_else(p.has(Flags::VECTORS), || body(vec8::Access::Vectors), || body(vec8::Access::Elements));
}
