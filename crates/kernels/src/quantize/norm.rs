//! RMSNorm, and a scale for 128 neighbours of a row of its result.
//!
//! `y = x * (1 / sqrt(mean(x * x) + epsilon)) * weight`, all in FP32. A block has one row, as for a scale of a row. The
//! order in which squares are added is fixed: the chunks of a thread one after another, the lanes of a warp as a
//! butterfly, then the warps. So the result is the same everywhere, to the bit.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, U32};

use super::by_access;
use super::chunk::{Access, CHUNK, Chunk, Code, Input, Part, magnitude_of, store_codes};
use super::groups::LaneScales;
use super::params::{Args, Launch, Params};
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
            let x = Chunk::load(k, self.input, p.x_at(row, column, bytes), &part);
            Piece { column, part, x }
        };
        let weights = |piece: &Piece<'k>| {
            Chunk::load(k, self.input, p.from.at(piece.column.widening_mul(bytes)), &piece.part)
        };
        let held: Vec<_> = (0..CHUNKS).map(|i| load(first + i * ROUND)).collect();
        // Nobody should wait for them once the sum is there.
        let held_weights: Vec<_> = held.iter().map(weights).collect();
        let sum = k.var(0f32);
        let add = |piece: &Piece<'k>| piece.x.values().into_iter().for_each(|value| sum.fma(value, value));
        held.iter().for_each(add);
        let rest = first + CHUNKS * ROUND;
        k.for_(rest, p.columns, ROUND, |column| add(&load(column)));
        let mean = sum_of_block(k, sum.get()).divide(p.columns.to_f32());
        let factor = (mean + p.epsilon).sqrt().reciprocal();

        let places = ScalePlaces::new(p);
        let [_, scale_columns] = p.scale_dims;
        let store = |pieces: &[Piece<'k>], weights: &[Chunk<'k>]| {
            let normal = |(piece, weights): (&Piece<'k>, &Chunk<'k>)| {
                let pairs = piece.x.values().into_iter().zip(weights.values());
                pairs.map(|(value, weight)| value * factor * weight).collect()
            };
            let values: Vec<Vec<F32>> = pieces.iter().zip(weights).map(normal).collect();
            let magnitudes = values.iter().map(|values| magnitude_of(values)).collect();
            let scale = |magnitude| Scale::of(p, Code::E4m3, magnitude);
            let scales = LaneScales::new(k, LANES, Input::F32, magnitudes, scale);
            for (i, (piece, values)) in (0..).zip(pieces.iter().zip(&values)) {
                let factor = scales.factor(k, i);
                let scaled: Vec<F32> = values.iter().map(|value| *value * factor).collect();
                let codes = Code::E4m3.encode(k, &scaled);
                store_codes(k, &codes, p.codes_at(row, piece.column, Code::E4m3), &piece.part);
            }
            for (chunk, scale, mine) in scales.own(k) {
                let column = pieces[0].column + chunk * ROUND;
                let group = column / BLOCK_K;
                let at = p.scales.at(places.offset(row, group));
                let real = exists & (group * BLOCK_K).lt(p.columns);
                places.store(k, at, real.select(scale, 0f32), mine & group.lt(scale_columns));
            }
        };
        store(&held, &held_weights);
        // Whole rounds, so that no warp parts; what fills a layout of scales up is among them.
        let end = (scale_columns * BLOCK_K).div_ceil(ROUND) * ROUND;
        k.for_(rest, end, ROUND, |column| {
            let piece = load(column);
            let weights = weights(&piece);
            store(&[piece], &[weights]);
        });
    }
}

/// Eight numbers and where they are in their row.
struct Piece<'k> {
    column: U32<'k>,
    part: Part<'k>,
    x: Chunk<'k>,
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
