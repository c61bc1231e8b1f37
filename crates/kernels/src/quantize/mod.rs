//! Quantization to FP8 and FP4 with scales of any granularity, and back; scales from one layout to another.
//!
//! Every kernel is the same few steps on [chunks](chunk) of eight neighbours of a row: load, take the largest
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

pub mod both;
pub mod chunk;
pub mod dequantize;
mod flight;
pub mod groups;
pub mod meeting;
pub mod norm;
pub mod padding;
pub mod params;
pub mod permute;
pub mod rows;
mod runs;
pub mod scale;
pub mod tiles;
pub mod transform;
pub mod whole;

pub use chunk::{Code, Input};
pub use groups::Source;
pub use params::{Args, Divisor, Flags, Launch};

use oxigemm_ptx::{BuildError, Kernel, Module, Target};

/// A kernel of this family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Config {
    /// A scale for some neighbours of a row.
    Groups(groups::Config),
    /// A scale for 128 by 128, or for 128 of a column.
    Tiles(tiles::Config),
    /// A matrix and its transpose.
    Both(both::Config),
    /// A scale for a row.
    Rows(rows::Config),
    /// RMSNorm, and a scale for some neighbours of a row.
    Norm(norm::Config),
    /// The scale of the whole matrix.
    WholeScale(whole::ScaleConfig),
    /// Codes by scales that are already there.
    WholeCodes(whole::CodesConfig),
    /// A scale for a whole matrix that one grid can hold.
    Meeting(meeting::Config),
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
        groups::Config::all()
            .map(Config::Groups)
            .chain(types().flat_map(|(input, code)| {
                tiles::Sharing::ALL.map(|sharing| Config::Tiles(tiles::Config { input, code, sharing }))
            }))
            .chain(types().flat_map(|(input, code)| {
                both::Sharing::ALL.map(|sharing| Config::Both(both::Config { input, code, sharing }))
            }))
            .chain(types().flat_map(|(input, code)| {
                [
                    Config::Rows(rows::Config { input, code }),
                    Config::WholeScale(whole::ScaleConfig { input, code }),
                    Config::WholeCodes(whole::CodesConfig { input, code }),
                    Config::Meeting(meeting::Config { input, code }),
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
            .chain(Input::ALL.map(|input| Config::WholeScale(whole::ScaleConfig { input, code: Code::E2m1 })))
            .chain(Input::ALL.map(|input| Config::Norm(norm::Config { input })))
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
            Config::Transform => transform::NAME.to_owned(),
            Config::Permute => permute::PERMUTE.to_owned(),
            Config::Unpermute => permute::UNPERMUTE.to_owned(),
            Config::Padding => padding::NAME.to_owned(),
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
            Config::Transform => transform::write(k, &p),
            Config::Permute => permute::permute(k, &p),
            Config::Unpermute => permute::unpermute(k, &p),
            Config::Padding => padding::write(k, &p),
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
            Config::Groups(_) => groups::THREADS,
            Config::Tiles(_) => tiles::THREADS,
            Config::Both(_) => both::THREADS,
            Config::Rows(_) => rows::THREADS,
            Config::Norm(_) => norm::THREADS,
            Config::WholeScale(_) | Config::WholeCodes(_) => whole::THREADS,
            Config::Meeting(_) => meeting::THREADS,
            Config::Dequantize(_) => dequantize::THREADS,
            Config::Transform => transform::THREADS,
            Config::Permute => permute::THREADS,
            Config::Unpermute => permute::UNPERMUTE_THREADS,
            Config::Padding => padding::THREADS,
        }
    }
}

/// How the kernels ask whether they can move whole vectors: the answer is the same for all of a launch.
#[track_caller]
fn by_access<'k>(k: &'k Kernel, p: &params::Params<'k>, body: impl Fn(chunk::Access)) {
    k.if_else(p.has(Flags::VECTORS), || body(chunk::Access::Vectors), || body(chunk::Access::Elements));
}
