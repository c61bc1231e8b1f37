//! RMSNorm, and a scale for 128 neighbours of a row of its result.
//!
//! `y = x * (1 / sqrt(mean(x * x) + epsilon)) * weight`, all in FP32. A block has one row, as for a scale of a row. The
//! order in which squares are added is fixed: the chunks of a thread one after another, the lanes of a warp as a
//! butterfly, then the warps. So the result is the same everywhere, to the bit.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, U32};

use super::by_access;
use super::chunk::{Access, CHUNK, Chunk, Code, Input, Part, store_codes};
use super::groups::across_lanes;
use super::params::{Args, Launch, Params, bits, largest};
use super::scale::{Scale, ScalePlaces};
use super::tiles;
use crate::{BLOCK_K, WARP};

/// Threads of a block.
pub const THREADS: u32 = tiles::THREADS;
/// Warps of a block.
pub const WARPS: u32 = THREADS / WARP;
/// Chunks that a thread holds; a longer row is read again.
const CHUNKS: u32 = 4;
/// Columns that a block has one chunk of each thread for.
pub const ROUND: u32 = THREADS * CHUNK;
/// Lanes that share a scale.
const LANES: u32 = BLOCK_K / CHUNK;

/// A kernel of this file; its codes are e4m3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// What is normalized, and the type of the weights.
    pub input: Input,
}

impl Config {
    pub(super) fn name(&self) -> String {
        format!("quantize_1x128_rmsnorm_{}_e4m3", self.input.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        (Launch { grid: [args.scale_dims[0], 1], threads: THREADS, shared_bytes: 4 * WARPS }, *args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.row(k, p, access));
    }

    fn row<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let (row, first) = (k.block_index(0), k.thread_index() * CHUNK);
        let (exists, bytes) = (row.lt(p.rows), self.input.bytes());
        let load = |column: U32<'k>| {
            let part = Part::of(access, exists, column, p.columns);
            (column, part, Chunk::load(k, self.input, p.x_at(row, column, bytes), &part))
        };
        let held: Vec<_> = (0..CHUNKS).map(|i| load(first + i * ROUND)).collect();
        let sum = k.var(0f32);
        let add = |chunk: &Chunk<'k>| chunk.values().into_iter().for_each(|value| sum.fma(value, value));
        held.iter().for_each(|(_, _, chunk)| add(chunk));
        let rest = first + CHUNKS * ROUND;
        k.for_(rest, p.columns, ROUND, |column| add(&load(column).2));
        let mean = sum_of_block(k, sum.get()).divide(p.columns.to_f32());
        let factor = (mean + p.epsilon).sqrt().reciprocal();

        let places = ScalePlaces::new(p);
        let [_, scale_columns] = p.scale_dims;
        let store = |(column, part, chunk): &(U32<'k>, Part<'k>, Chunk<'k>)| {
            let weights = p.from.at(column.widening_mul(bytes));
            let weights = Chunk::load(k, self.input, weights, part).values();
            let values: Vec<F32> = chunk
                .values()
                .into_iter()
                .zip(weights)
                .map(|(value, weight)| value * factor * weight)
                .collect();
            let magnitude = largest(values.iter().map(|value| bits(*value) & 0x7fff_ffff));
            let scale = Scale::of(p, Code::E4m3, across_lanes(k, magnitude, LANES));
            let codes = scale.encode(k, Code::E4m3, &values);
            store_codes(k, &codes, p.codes_at(row, *column, Code::E4m3), part);
            let group = *column / BLOCK_K;
            let at = p.scales.at(places.offset(row, group));
            let real = exists & column.lt(p.columns);
            let wanted = (k.lane() % LANES).eq(0) & group.lt(scale_columns);
            places.store(k, at, real.select(scale.scale, 0f32), wanted);
        };
        held.iter().for_each(store);
        // Whole rounds, so that no warp parts; what fills a layout of scales up is among them.
        let end = (scale_columns * BLOCK_K).div_ceil(ROUND) * ROUND;
        k.for_(rest, end, ROUND, |column| store(&load(column)));
    }
}

/// The sum of all threads of a block, in all of them.
#[track_caller]
fn sum_of_block<'k>(k: &'k Kernel, value: F32<'k>) -> F32<'k> {
    let shared = k.dynamic_shared();
    let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
    let of_warp = steps.fold(value, |sum, step| sum + k.shuffle(Shuffle::Xor, sum, step));
    k.guard(k.lane().eq(0), || shared.at((k.thread_index() >> 5) * 4).store(of_warp));
    k.sync_threads();
    let of_warps = (0..WARPS / 4).flat_map(|i| shared.at(16 * i).load_vec::<f32, 4>());
    of_warps.reduce(|a, b| a + b).expect("there are warps")
}
