//! RMSNorm, and a scale for 128 neighbours of a row of its result.
//!
//! `y = x * weight * (1 / sqrt(mean(x * x) + epsilon))`, all in FP32. A block has a row at a time and as many warps as can hold
//! it, and the rows behind it are under way, if it has any; the weights stay in registers. Rows that no block can hold are read twice.
//!
//! The order in which squares are added is fixed: those of a chunk, the chunks of a thread one after another, the lanes of a warp as
//! a butterfly, then the warps in pairs, and pairs of pairs. So the result is the same everywhere, to the bit.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, MBarrier, Shared, U32, Var};

use super::block_1x128::LaneMagnitudes;
use super::by_access;
use super::params::{Args, Flags, Launch, Params, bits};
use super::scale::{Scale, ScalePlaces};
use super::scale_writer::{RUN, Run};
use super::vec8::{Access, CHUNK, Chunk, Code, Input, Part, VECTOR, magnitude_of, store_codes};
use crate::common::{BLOCK_K, WARP};

/// Warps of a block at most.
const WARPS: u32 = 16;
/// Threads of a block at most.
pub const THREADS: u32 = WARPS * WARP;
/// Warps that a multiprocessor has registers for.
const RESIDENT_WARPS: u32 = 18;
/// Chunks that a thread holds.
const CHUNKS: u32 = 4;
/// Columns that a warp holds.
const WARP_COLUMNS: u32 = CHUNKS * CHUNK * WARP;
/// Rows of a block that are there or under way.
const STAGES: u32 = 2;
/// Bytes of shared memory for the sums of warps of one row.
const SUMS: u32 = 4 * WARPS;
/// Where barriers are in shared memory, behind the sums of one row and the next.
const BARRIERS: u32 = 2 * SUMS;
/// Where scales of rows are that follow each other.
const KEPT: u32 = BARRIERS + 128;
/// Where rows are in shared memory.
const ROWS: u32 = KEPT + THREADS / LANES * CHUNKS * Run::BYTES;
/// Lanes that share a scale.
const LANES: u32 = BLOCK_K / CHUNK;

/// Warps that a row of some columns has: as many as can hold it, or all.
pub fn warps(columns: u32) -> u32 {
    columns.div_ceil(WARP_COLUMNS).clamp(1, WARPS)
}

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

    /// The launch on `sms` multiprocessors, and the arguments that go with it.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let [rows, columns] = [args.scale_dims[0], args.dims[1]];
        let warps = warps(columns);
        let row_bytes = warps * WARP_COLUMNS * self.input.bytes();
        let blocks = rows.min(sms * (RESIDENT_WARPS / warps));
        let [row, four, one] = args.scale_strides;
        let vectors = (args.scales | u64::from(four | one)).is_multiple_of(u64::from(VECTOR));
        let runs = row == 4 && vectors && args.flags & (Flags::BYTES | Flags::BLOCKED) == 0;
        let (turns, less) = (args.dims[0].div_ceil(blocks), args.dims[0] / blocks);
        // A block's only row is in registers.
        let shared_bytes = if turns <= 1 { BARRIERS } else { ROWS + STAGES * row_bytes };
        let args = Args {
            shifts: [turns, if runs { less / RUN * RUN } else { 0 }],
            source_rows: args.dims[0] - less * blocks,
            from_strides: [warps * WARP * CHUNK, row_bytes, (1.0 / columns as f32).to_bits()],
            ..*args
        };
        (Launch { grid: [blocks, 1], threads: warps * WARP, shared_bytes }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let row = Row::of(p);
        let held = p.has(Flags::VECTORS) & p.columns.le(row.round * CHUNKS);
        k.if_else(held, || self.held(k, p, &row), || by_access(k, p, |access| self.long(k, p, &row, access)));
    }

    /// Rows that a block holds.
    fn held<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>) {
        // The only row first, so that its instructions follow these.
        let only = || k.if_(k.block_index(0).lt(p.rows), || self.only(k, p, row, k.block_index(0)));
        k.if_else(p.shifts[0].le(1), only, || self.in_turns(k, p, row, &Turns::of(k, p)));
        store_padding(k, p, row);
    }

    /// The only row of a block: loads are there sooner than copies.
    fn only<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, index: U32<'k>) {
        let load = |column| self.load(k, p, Access::Vectors, index, column);
        let pieces: Vec<Piece> = row.columns(k).map(load).collect();
        let weights: Vec<_> =
            row.columns(k).map(|column| self.weights(k, p, Access::Vectors, column)).collect();
        let sum = sum_of_squares(&pieces);
        let weighted = Weighted::new(k, pieces, &weights);
        let sum = row.sum_of_block(k, k.var(0u32), sum);
        self.store(k, p, row, index, factor(p, sum), weighted, None);
    }

    /// Rows one after another, while the next are under way.
    fn in_turns<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, turns: &Turns<'k>) {
        let stages = Stages { k, p, bytes: self.input.bytes(), pitch: p.from_strides[1] };
        let leads = k.thread_index().eq(0);
        k.if_(leads, || stages.begin(turns));
        k.sync_warp();
        let columns: Vec<U32> = row.columns(k).collect();
        let weights: Vec<_> = columns.iter().map(|at| self.weights(k, p, Access::Vectors, *at)).collect();
        // What a row leaves of its place stays 0.
        for column in &columns {
            for stage in 0..STAGES {
                for at in self.vectors(stages.row(k.constant(stage)), *column) {
                    k.guard(column.ge(p.columns), || at.store_vec([k.constant(0u32); 4]));
                }
            }
        }
        k.sync_threads();

        let (sums, stage, parity) = (k.var(0u32), k.var(0u32), k.var(0u32));
        k.for_(0, turns.count, 1, |turn| {
            let index = turns.row(turn);
            let now = stage.get();
            stages.barrier(now).wait(parity.get());
            let piece = |column: &U32<'k>| Piece {
                column: *column,
                part: Part::Vector { inside: column.lt(p.columns) },
                values: Chunk::arrived(k, self.input, self.vectors(stages.row(now), *column)).values(),
            };
            let pieces: Vec<Piece> = columns.iter().map(piece).collect();
            let sum = sum_of_squares(&pieces);
            let weighted = Weighted::new(k, pieces, &weights);
            let sum = row.sum_of_block(k, sums, sum);
            // All have met, so all have read.
            k.if_(leads, || stages.copy(turns, turn + STAGES, now));
            k.sync_warp();
            let last = now.eq(STAGES - 1);
            stage.set(last.select(0u32, now + 1));
            parity.set_if(last, parity.live() ^ 1);
            self.store(k, p, row, index, factor(p, sum), weighted, Some((turns, turn)));
        });
    }

    /// Rows of any length.
    fn long<'k>(&self, k: &'k Kernel, p: &Params<'k>, row: &Row<'k>, access: Access) {
        let [scale_rows, scale_columns] = p.scale_dims;
        let turn = k.var(0u32);
        k.for_(k.block_index(0), scale_rows, k.grid_blocks(0), |index| {
            let load = |column| self.load(k, p, access, index, column);
            let held: Vec<_> = row.columns(k).map(load).collect();
            let sum = k.var_from(sum_of_squares(&held));
            let rest = held[0].column + row.round * CHUNKS;
            k.for_(rest, p.columns, row.round, |column| sum.set(sum.live() + load(column).squares()));
            let weights: Vec<_> = row.columns(k).map(|column| self.weights(k, p, access, column)).collect();
            let weighted = Weighted::new(k, held, &weights);
            let factor = factor(p, row.sum_of_block(k, turn, sum.get()));
            self.store(k, p, row, index, factor, weighted, None);
            // Whole rounds, so that no warp parts; what fills a layout of scales up is among them.
            let end = (scale_columns * BLOCK_K).div_ceil(row.round) * row.round;
            k.for_(rest, end, row.round, |column| {
                let weights = self.weights(k, p, access, column);
                let weighted = Weighted::new(k, vec![load(column)], &[weights]);
                self.store(k, p, row, index, factor, weighted, None);
            });
        });
    }

    /// Where a chunk is in a row of shared memory.
    fn vectors<'k>(&self, row: Shared<'k>, column: U32<'k>) -> impl Iterator<Item = Shared<'k>> {
        let first = row.at(column * self.input.bytes());
        (0..self.input.vectors()).map(move |vector| first.at(vector * VECTOR))
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

    /// Normalizes, quantizes and stores chunks of a row, one of each round; of a turn of the block, if it has turns.
    #[expect(clippy::too_many_arguments)]
    fn store<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        row: &Row<'k>,
        index: U32<'k>,
        factor: F32<'k>,
        Weighted { pieces, magnitudes }: Weighted<'k>,
        turn: Option<(&Turns<'k>, U32<'k>)>,
    ) {
        // Rounding keeps the order, so that the largest of the products is the product of the largest.
        let scales = magnitudes
            .scales(|magnitude| Scale::of(p, Code::E4m3, bits(magnitude.bitcast::<f32>() * factor)).parts());
        let codes = p.codes_at(index, pieces[0].column, Code::E4m3);
        for (i, piece) in (0..).zip(&pieces) {
            let of_group = scales.factor(k, i);
            let scaled: Vec<F32> = piece.values.iter().map(|value| *value * factor * of_group).collect();
            let at = codes.at((row.round * i).to_u64());
            store_codes(k, &Code::E4m3.encode(k, &scaled), at, &piece.part, p.kept);
        }
        let places = ScalePlaces::new(p);
        let [_, scale_columns] = p.scale_dims;
        for (chunk, scale, mine) in scales.own(k) {
            let group = (pieces[0].column + chunk * row.round) / BLOCK_K;
            let at = p.scales.at(places.offset(index, group));
            let real = index.lt(p.rows) & (group * BLOCK_K).lt(p.columns);
            let (scale, wanted) = (real.select(scale, 0u32), mine & group.lt(scale_columns));
            let alone = || places.store(k, at, scale.bitcast(), wanted);
            let Some((turns, turn)) = turn else {
                alone();
                continue;
            };
            let kept = k.thread_index() / LANES * CHUNKS + chunk;
            let run = Run(k.dynamic_shared().at(KEPT).at(kept * Run::BYTES));
            let in_run = || {
                k.guard(mine, || run.keep(index, scale));
                k.if_((turn % RUN).eq(RUN - 1), || {
                    let at = p.scales.at(places.offset(index - (RUN - 1), group));
                    run.store(k, at, wanted, None);
                });
            };
            k.if_else(turn.lt(turns.in_runs), in_run, alone);
        }
    }
}

/// How the threads of a block share a row.
struct Row<'k> {
    /// Columns that there is one chunk of each thread for.
    round: U32<'k>,
}

impl<'k> Row<'k> {
    fn of(p: &Params<'k>) -> Row<'k> {
        Row { round: p.from_strides[0] }
    }

    /// Where the chunks are that a thread holds.
    fn columns(&self, k: &'k Kernel) -> impl Iterator<Item = U32<'k>> {
        (0..CHUNKS).map(|i| k.thread_index() * CHUNK + self.round * i)
    }

    /// The sum of all threads of a block, in all of them. Blocks add by turns in two places, so that one meeting is enough.
    #[track_caller]
    fn sum_of_block(&self, k: &'k Kernel, turn: Var<'k, u32>, value: F32<'k>) -> F32<'k> {
        let shared = k.dynamic_shared().at(turn.get());
        turn.set(turn.live() ^ SUMS);
        let steps = (0..WARP.trailing_zeros()).map(|bit| 1u32 << bit);
        let of_warp = steps.fold(value, |sum, step| sum + k.shuffle(Shuffle::Xor, sum, step));
        // The lanes of the last warp store zeros for the warps that a block does not have.
        let (lane, warp) = (k.lane(), k.thread_index() / WARP);
        let (first, place) = (lane.eq(0), warp + lane);
        let missing = ((warp + 1) * (WARP * CHUNK)).eq(self.round) & place.lt(WARPS);
        k.guard(first | missing, || shared.at(place * 4).store(first.select(of_warp, 0f32)));
        k.sync_threads();
        let of_warps = |vectors: std::ops::Range<u32>| {
            in_pairs(vectors.flat_map(move |i| shared.at(16 * i).load_vec::<f32, 4>()).collect())
        };
        let sum = k.var_from(of_warps(0..WARPS / 8));
        // Blocks that have no more warps than these are the usual ones.
        k.if_(self.round.gt(THREADS / 2 * CHUNK), || {
            sum.set(sum.live() + of_warps(WARPS / 8..WARPS / 4));
        });
        sum.get()
    }
}

/// The rows that a block has, one after another. Where scales are stored together these are runs of neighbours, as long as every
/// block has a whole one; for the rest, and elsewhere, neighbours are those of other blocks.
struct Turns<'k> {
    block: U32<'k>,
    blocks: U32<'k>,
    /// Turns that belong to runs.
    in_runs: U32<'k>,
    /// All of them.
    count: U32<'k>,
}

impl<'k> Turns<'k> {
    fn of(k: &'k Kernel, p: &Params<'k>) -> Turns<'k> {
        let (block, blocks) = (k.block_index(0), k.grid_blocks(0));
        let [most, in_runs] = p.shifts;
        // Where not all have as many, the first of them have one more.
        let less = p.source_rows.ne(0) & block.ge(p.source_rows);
        let count = most - less.select(1u32, 0u32);
        Turns { block, blocks, in_runs, count }
    }

    fn row(&self, turn: U32<'k>) -> U32<'k> {
        let of_run = turn % RUN;
        let in_run = (turn - of_run) * self.blocks + self.block * RUN + of_run;
        turn.lt(self.in_runs).select(in_run, turn * self.blocks + self.block)
    }
}

/// The rows of a block that are under way.
struct Stages<'a, 'k> {
    k: &'k Kernel,
    p: &'a Params<'k>,
    /// Bytes of an element.
    bytes: u32,
    /// Bytes from a row of shared memory to the next.
    pitch: U32<'k>,
}

impl<'k> Stages<'_, 'k> {
    fn barrier(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.k.dynamic_shared().at(BARRIERS).at(stage * MBarrier::BYTES))
    }

    fn row(&self, stage: U32<'k>) -> Shared<'k> {
        self.k.dynamic_shared().at(ROWS).at(stage * self.pitch)
    }

    /// One thread starts the first copies.
    fn begin(&self, turns: &Turns<'k>) {
        let stages = || (0..STAGES).map(|stage| self.k.constant(stage));
        stages().for_each(|stage| self.barrier(stage).init(1));
        self.k.fence_barrier_init();
        stages().for_each(|stage| self.copy(turns, stage, stage));
    }

    /// One thread starts to copy the row of a turn, if there is one.
    fn copy(&self, turns: &Turns<'k>, turn: U32<'k>, stage: U32<'k>) {
        let bytes = self.p.columns * self.bytes;
        self.k.if_(turn.lt(turns.count), || {
            self.barrier(stage).arrive_expecting(bytes);
            let x = self.p.x_at(turns.row(turn), self.k.constant(0), self.bytes);
            self.row(stage).bulk_load_by(x, bytes, self.barrier(stage), Some(self.p.read_once));
        });
    }
}

/// Eight numbers and where they are in their row.
struct Piece<'k> {
    column: U32<'k>,
    part: Part<'k>,
    values: Vec<F32<'k>>,
}

impl<'k> Piece<'k> {
    /// The sum of their squares.
    #[track_caller]
    fn squares(&self) -> F32<'k> {
        let (first, others) = self.values.split_first().expect("there are numbers");
        others.iter().fold(*first * *first, |sum, value| value.fma(*value, sum))
    }
}

/// Of all that a thread has.
#[track_caller]
fn sum_of_squares<'k>(pieces: &[Piece<'k>]) -> F32<'k> {
    pieces.iter().map(Piece::squares).reduce(|a, b| a + b).expect("there are pieces")
}

/// The sum of numbers, as many as a power of two: of pairs, of pairs of pairs, and so on.
#[track_caller]
fn in_pairs(numbers: Vec<F32<'_>>) -> F32<'_> {
    match numbers[..] {
        [only] => only,
        _ => in_pairs(numbers.chunks(2).map(|pair| pair[0] + pair[1]).collect()),
    }
}

/// What a thread has of a row times its weights, and the largest magnitudes.
struct Weighted<'k> {
    pieces: Vec<Piece<'k>>,
    magnitudes: LaneMagnitudes<'k>,
}

impl<'k> Weighted<'k> {
    #[track_caller]
    fn new(k: &'k Kernel, pieces: Vec<Piece<'k>>, weights: &[Vec<F32<'k>>]) -> Weighted<'k> {
        let weigh = |(piece, weights): (Piece<'k>, &Vec<F32<'k>>)| {
            let pairs = piece.values.iter().zip(weights);
            Piece { values: pairs.map(|(value, weight)| *value * *weight).collect(), ..piece }
        };
        let pieces: Vec<Piece> = pieces.into_iter().zip(weights).map(weigh).collect();
        let words = pieces.iter().map(|piece| magnitude_of(&piece.values)).collect();
        Weighted { magnitudes: LaneMagnitudes::new(k, LANES, Input::F32, words), pieces }
    }
}

/// `1 / sqrt(mean + epsilon)`, of the sum of squares; NaN where that is infinite. Infinity times 0 is NaN, and the largest product
/// would not be that of the largest number.
#[track_caller]
fn factor<'k>(p: &Params<'k>, sum: F32<'k>) -> F32<'k> {
    let per_column: F32 = p.from_strides[2].bitcast();
    let factor = (sum * per_column + p.epsilon).sqrt().reciprocal();
    // A finite factor stays as it is.
    factor.fma(0.0, factor)
}

/// Rows of scales that only fill a layout up.
fn store_padding<'k>(k: &'k Kernel, p: &Params<'k>, row: &Row<'k>) {
    let places = ScalePlaces::new(p);
    let [scale_rows, scale_columns] = p.scale_dims;
    k.for_(p.rows + k.block_index(0), scale_rows, k.grid_blocks(0), |index| {
        k.for_(k.thread_index(), scale_columns, row.round / CHUNK, |group| {
            let at = p.scales.at(places.offset(index, group));
            places.store(k, at, k.constant(0f32), k.constant(true));
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_warps_that_hold_a_row() {
        assert_eq!([8, 1024, 1032, 7168, 16384, 20000].map(warps), [1, 1, 2, 7, 16, 16]);
    }

    #[test]
    fn scales_are_stored_together_where_they_are_vectors() {
        let runs = |[row, one]: [u32; 2], scales| {
            let (dims, scale_dims) = ([4736, 7168], [4736, 56]);
            let args =
                Args { dims, scale_dims, scales, scale_strides: [row, 4 * one, one], ..Args::default() };
            let (_, args) = Config { input: Input::Bf16 }.launch(&args, 132);
            args.shifts[1] != 0
        };
        assert!(runs([4, 4 * 4736], 256));
        assert!(!runs([224, 4], 256), "along a row");
        assert!(!runs([4, 4 * 4737], 256), "columns are no vectors");
        assert!(!runs([4, 4 * 4736], 260), "the first is none");
    }
}
