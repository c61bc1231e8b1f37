//! RMSNorm, and a scale for 128 neighbours of a row of its result.
//!
//! `y = x * (1 / sqrt(mean(x * x) + epsilon)) * weight`, all in FP32. A block has a row at a time, and its next row is under
//! way; the weights stay in its registers. The order in which squares are added is fixed: the chunks of a thread one after another, the lanes of a warp as a
//! butterfly, then the warps. So the result is the same everywhere, to the bit.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, U32, Var};

use super::by_access;
use super::chunk::{Access, CHUNK, Chunk, Code, Input, Part, magnitude_of, store_codes};
use super::flight::Flight;
use super::groups::LaneScales;
use super::params::{Args, Launch, Params};
use super::scale::{Scale, ScalePlaces};
use super::tiles;
use crate::{BLOCK_K, WARP};

/// Threads of a block.
pub const THREADS: u32 = tiles::THREADS;
/// Warps of a block.
pub const WARPS: u32 = THREADS / WARP;
/// Blocks that a multiprocessor has at a time.
pub(super) const RESIDENT: u32 = 2;
/// Chunks that a thread holds; a longer row is read again.
const CHUNKS: u32 = 4;
/// Columns that a block has one chunk of each thread for.
pub const ROUND: u32 = THREADS * CHUNK;
/// Bytes of shared memory for the sums of warps, of one row and the next.
const SUMS: u32 = 2 * 4 * WARPS;
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

    /// What a thread has under way.
    const fn flight(&self) -> Flight {
        Flight { threads: THREADS, vectors: CHUNKS * self.input.vectors() }
    }

    /// The launch on `sms` multiprocessors, and the arguments that go with it.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let grid = [args.scale_dims[0].min(sms * RESIDENT), 1];
        let shared_bytes = SUMS + self.flight().bytes();
        (Launch { grid, threads: THREADS, shared_bytes }, *args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.rows(k, p, access));
    }

    fn rows<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let first = k.thread_index() * CHUNK;
        let columns = || (0..CHUNKS).map(|i| first + i * ROUND);
        let weights: Vec<_> = columns().map(|column| self.weights(k, p, access, column)).collect();
        let turn = k.var(0u32);
        let rounds = [k.block_index(0), p.scale_dims[0], k.grid_blocks(0)];
        match access {
            Access::Vectors => self.flight().rounds(
                k,
                k.dynamic_shared().at(SUMS),
                rounds,
                |row, slots| {
                    let x = every(p.x_at(row, first, self.input.bytes()), self.input.bytes());
                    for (i, (at, column)) in (0..).zip(x.zip(columns())) {
                        let inside = row.lt(p.rows) & column.lt(p.columns);
                        Chunk::ask(at, inside, slots.of(self.input, i));
                    }
                },
                |row, slots| {
                    let held = (0..).zip(columns()).map(|(i, column)| Piece {
                        column,
                        part: Part::of(access, row.lt(p.rows), column, p.columns),
                        values: Chunk::arrived(k, self.input, slots.of(self.input, i)).values(),
                    });
                    self.row(k, p, access, turn, row, &held.collect::<Vec<_>>(), &weights);
                },
            ),
            Access::Elements => {
                let [start, end, step] = rounds;
                k.for_(start, end, step, |row| {
                    let held: Vec<_> = columns().map(|column| self.load(k, p, access, row, column)).collect();
                    self.row(k, p, access, turn, row, &held, &weights);
                });
            }
        }
    }

    #[track_caller]
    fn weights<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access, column: U32<'k>) -> Vec<F32<'k>> {
        let part = Part::of(access, k.constant(true), column, p.columns);
        let at = p.from.at(column.widening_mul(self.input.bytes()));
        Chunk::load(k, self.input, at, &part, None).values()
    }

    #[track_caller]
    fn load<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        row: U32<'k>,
        column: U32<'k>,
    ) -> Piece<'k> {
        let part = Part::of(access, row.lt(p.rows), column, p.columns);
        let x = Chunk::load(k, self.input, p.x_at(row, column, self.input.bytes()), &part, Some(p.read_once));
        Piece { column, part, values: x.values() }
    }

    /// A row, of which a thread holds some chunks.
    #[expect(clippy::too_many_arguments)]
    fn row<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        turn: Var<'k, u32>,
        row: U32<'k>,
        held: &[Piece<'k>],
        held_weights: &[Vec<F32<'k>>],
    ) {
        let exists = row.lt(p.rows);
        let sum = k.var(0f32);
        let add = |piece: &Piece<'k>| piece.values.iter().for_each(|value| sum.fma(*value, *value));
        held.iter().for_each(add);
        let rest = held[0].column + CHUNKS * ROUND;
        k.for_(rest, p.columns, ROUND, |column| add(&self.load(k, p, access, row, column)));
        let mean = sum_of_block(k, turn, sum.get()).divide(p.columns.to_f32());
        let factor = (mean + p.epsilon).sqrt().reciprocal();

        let places = ScalePlaces::new(p);
        let [_, scale_columns] = p.scale_dims;
        let store = |pieces: &[Piece<'k>], weights: &[Vec<F32<'k>>]| {
            let normal = |(piece, weights): (&Piece<'k>, &Vec<F32<'k>>)| {
                let pairs = piece.values.iter().zip(weights);
                pairs.map(|(value, weight)| *value * factor * *weight).collect()
            };
            let values: Vec<Vec<F32>> = pieces.iter().zip(weights).map(normal).collect();
            let magnitudes = values.iter().map(|values| magnitude_of(values)).collect();
            let scale = |magnitude| Scale::of(p, Code::E4m3, magnitude);
            let scales = LaneScales::new(k, LANES, Input::F32, magnitudes, scale);
            let codes_at = every(p.codes_at(row, pieces[0].column, Code::E4m3), 1);
            for ((i, (piece, values)), at) in (0..).zip(pieces.iter().zip(&values)).zip(codes_at) {
                let factor = scales.factor(k, i);
                let scaled: Vec<F32> = values.iter().map(|value| *value * factor).collect();
                let codes = Code::E4m3.encode(k, &scaled);
                store_codes(k, &codes, at, &piece.part, p.kept);
            }
            for (chunk, scale, mine) in scales.own(k) {
                let column = pieces[0].column + chunk * ROUND;
                let group = column / BLOCK_K;
                let at = p.scales.at(places.offset(row, group));
                let real = exists & (group * BLOCK_K).lt(p.columns);
                places.store(k, at, real.select(scale, 0f32), mine & group.lt(scale_columns));
            }
        };
        store(held, held_weights);
        // Whole rounds, so that no warp parts; what fills a layout of scales up is among them.
        let end = (scale_columns * BLOCK_K).div_ceil(ROUND) * ROUND;
        k.for_(rest, end, ROUND, |column| {
            let piece = self.load(k, p, access, row, column);
            let weights = self.weights(k, p, access, column);
            store(&[piece], &[weights]);
        });
    }
}

/// Where the chunks of a thread are in a row.
fn every(first: Global<'_>, bytes: u32) -> impl Iterator<Item = Global<'_>> {
    (0..u64::from(CHUNKS)).map(move |i| first.at(i * u64::from(ROUND * bytes)))
}

/// Eight numbers and where they are in their row.
struct Piece<'k> {
    column: U32<'k>,
    part: Part<'k>,
    values: Vec<F32<'k>>,
}

/// The sum of all threads of a block, in all of them. Blocks add by turns in two places, so that one meeting is enough.
#[track_caller]
fn sum_of_block<'k>(k: &'k Kernel, turn: Var<'k, u32>, value: F32<'k>) -> F32<'k> {
    let shared = k.dynamic_shared().at(turn.get());
    turn.set(turn.live() ^ (SUMS / 2));
    let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
    let of_warp = steps.fold(value, |sum, step| sum + k.shuffle(Shuffle::Xor, sum, step));
    k.guard(k.lane().eq(0), || shared.at((k.thread_index() >> 5) * 4).store(of_warp));
    k.sync_threads();
    let of_warps = (0..WARPS / 4).flat_map(|i| shared.at(16 * i).load_vec::<f32, 4>());
    of_warps.reduce(|a, b| a + b).expect("there are warps")
}
