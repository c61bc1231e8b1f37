//! A scale for 128 rows by 128 columns, or for 128 rows of each column.
//!
//! A block has one tile of 128 by 128 in its registers: 16 threads along a row, eight chunks each.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Shared, U32, U64};

use super::by_access;
use super::params::{Args, Divisor, Launch, Params, largest};
use super::scale::{Scale, ScalePlaces};
use super::vec8::{Access, CHUNK, Chunk, Code, Input, Part, every, store_codes};
use crate::common::WARP;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows and columns of a tile.
pub(super) const SIDE: u32 = 128;
/// Threads along a row.
pub(super) const ACROSS: u32 = SIDE / CHUNK;
/// Chunks of a thread.
pub(super) const CHUNKS: u32 = SIDE * ACROSS / THREADS;
/// Rows from a chunk of a thread to its next.
pub(super) const ROWS: u32 = THREADS / ACROSS;
const WARPS: u32 = THREADS / WARP;
/// Bytes of shared memory that [`of_columns`] and [`of_block`] take at most.
pub(super) const COLUMN_BYTES: u32 = 4 * (WARPS + 1) * SIDE;

/// Who shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// The tile.
    Block,
    /// The tile's part of a column.
    Channel,
}

impl Sharing {
    /// Both.
    pub const ALL: [Sharing; 2] = [Sharing::Block, Sharing::Channel];
}

/// A kernel of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// What is quantized.
    pub input: Input,
    /// What it becomes.
    pub code: Code,
    /// Who shares a scale.
    pub sharing: Sharing,
}

impl Config {
    pub(super) fn name(&self) -> String {
        let shape = match self.sharing {
            Sharing::Block => "128x128",
            Sharing::Channel => "128x1",
        };
        format!("quantize_{shape}_{}_{}", self.input.name(), self.code.name())
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
        let shared_bytes = match self.sharing {
            Sharing::Block => 4 * WARPS,
            Sharing::Channel => COLUMN_BYTES,
        };
        let launch = Launch { grid: [down * across, 1], threads: THREADS, shared_bytes };
        (launch, Args { across: Divisor::new(across), ..*args })
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.tile(k, p, access));
    }

    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let [tile_row, tile_column] = p.split(k.block_index(0));
        let thread = k.thread_index();
        let column = tile_column * SIDE + thread % ACROSS * CHUNK;
        let first = tile_row * SIDE + thread / ACROSS;
        let bytes = self.input.bytes();
        let x = every_chunk(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        let pieces: Vec<(Part, Chunk)> = x
            .enumerate()
            .map(|(i, at)| {
                let exists = (first + i as u32 * ROWS).lt(p.rows);
                let part = Part::of(access, exists, column, p.columns);
                (part, Chunk::load(k, self.input, at, &part, Some(p.read_once)))
            })
            .collect();
        let chunks = pieces.iter().map(|(_, chunk)| chunk);
        let places = ScalePlaces::new(p);
        let factors = match self.sharing {
            Sharing::Block => {
                let words = chunks.map(Chunk::magnitude_word);
                let word = words.reduce(|a, b| self.input.larger(a, b)).expect("a thread has chunks");
                let scale = Scale::of(p, self.code, of_block(k, self.input.widen_larger(k, word)));
                let at = p.scales.at(places.offset(tile_row, tile_column));
                places.store(k, at, scale.scale, thread.eq(0));
                vec![scale.factor; CHUNK as usize]
            }
            Sharing::Channel => {
                of_columns(k, self.input, &chunks.collect::<Vec<_>>(), |of_tile, magnitude| {
                    let scale = Scale::of(p, self.code, magnitude);
                    let column = tile_column * SIDE + of_tile;
                    let at = p.scales.at(places.offset(tile_row, column));
                    places.store(k, at, scale.scale, column.lt(p.columns));
                    scale.factor
                })
            }
        };
        let codes = every_chunk(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        for ((part, chunk), at) in pieces.iter().zip(codes) {
            let scaled: Vec<_> =
                chunk.values().iter().zip(&factors).map(|(value, factor)| *value * *factor).collect();
            store_codes(k, &self.code.encode(k, &scaled), at, part, p.kept);
        }
    }
}

/// Where the chunks of a thread are, each a step behind the one before.
pub(super) fn every_chunk<'k>(first: Global<'k>, step: U64<'k>) -> impl Iterator<Item = Global<'k>> {
    every(CHUNKS, first, step)
}

/// The largest magnitude of all threads of a block of [`THREADS`], in all of them.
#[track_caller]
pub(super) fn of_block<'k>(k: &'k Kernel, magnitude: U32<'k>) -> U32<'k> {
    let shared = k.dynamic_shared();
    let of_warp = k.warp_max(magnitude);
    k.guard(k.lane().eq(0), || shared_word(shared, k.thread_index() >> 5).store(of_warp));
    k.sync_threads();
    largest((0..WARPS / 4).flat_map(|i| shared.at(16 * i).load_vec::<u32, 4>()))
}

/// The factors of the eight columns that a thread has chunks of. A thread for each column of the tile finds its largest
/// magnitude over the rows of the block, and `factor` of the column and the magnitude.
///
/// Magnitudes of 16 bits travel in pairs.
#[track_caller]
pub(super) fn of_columns<'k>(
    k: &'k Kernel,
    input: Input,
    chunks: &[&Chunk<'k>],
    factor: impl Fn(U32<'k>, U32<'k>) -> F32<'k>,
) -> Vec<F32<'k>> {
    let shared = k.dynamic_shared();
    let larger = |a: Vec<U32<'k>>, b: Vec<U32<'k>>| -> Vec<U32<'k>> {
        a.into_iter().zip(b).map(|(a, b)| input.larger(a, b)).collect()
    };
    let of_thread =
        chunks.iter().map(|chunk| chunk.magnitude_words()).reduce(larger).expect("a thread has chunks");
    let others = of_thread.iter().map(|word| k.shuffle(Shuffle::Xor, *word, ACROSS)).collect();
    let of_warp = larger(of_thread, others);
    let (thread, lane) = (k.thread_index(), k.lane());
    let bytes = input.bytes();
    let own = shared.at(((thread >> 5) * SIDE + lane % ACROSS * CHUNK) * bytes);
    for (i, four) in of_warp.chunks(4).enumerate() {
        let four = [four[0], four[1], four[2], four[3]];
        k.guard(lane.lt(ACROSS), || own.at(16 * i as u32).store_vec(four));
    }
    k.sync_threads();
    let factors = shared.at(WARPS * SIDE * 4);
    k.if_(thread.lt(SIDE), || {
        // A column's word, which of 16 bits is also its neighbour's.
        let at = shared.at((thread * bytes) & !3);
        let words = (0..WARPS).map(|warp| at.at(warp * SIDE * bytes).load());
        let word: U32 = words.reduce(|a, b| input.larger(a, b)).expect("there are warps");
        let magnitude = match input {
            Input::F32 => word,
            Input::Bf16 | Input::F16 => input.widen_magnitude(k, (word >> (thread % 2 * 16)) & 0xffff),
        };
        factors.at(thread * 4).store(factor(thread, magnitude));
    });
    k.sync_threads();
    let columns = factors.at(lane % ACROSS * (CHUNK * 4));
    (0..CHUNK / 4).flat_map(|four| columns.at(16 * four).load_vec::<f32, 4>()).collect()
}

fn shared_word<'k>(shared: Shared<'k>, index: U32<'k>) -> Shared<'k> {
    shared.at(index * 4)
}
