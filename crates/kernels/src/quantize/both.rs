//! A matrix and its transpose, quantized in one pass: what forward and backward products read.
//!
//! A block has one tile of 128 by 128 in its registers, as in `tiles.rs`. Where scales are those of 1x128, the rows of the
//! tile have the scales of the matrix and its columns those of the transpose, so each number is converted twice; where
//! the tile has one scale, once. Codes of the transpose pass through shared memory, from where they leave as vectors
//! along the rows of the matrix.

use oxigemm_ptx::{F32, Global, Kernel, Pred, Ptr, U32};

use super::by_access;
use super::chunk::{Access, CHUNK, Chunk, Code, Input, Part, store_codes};
use super::groups::across_lanes;
use super::params::{Args, Divisor, Flags, Launch, Params, largest};
use super::scale::{Scale, ScalePlaces};
use super::tiles::{ACROSS, COLUMN_BYTES, ROWS, SIDE, every, of_block, of_columns};
use crate::transpose::{VECTOR, transposed, vector_at};

/// Threads of a block.
pub const THREADS: u32 = super::tiles::THREADS;

/// Who shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// 128 of a row, and of the transpose's row.
    Token,
    /// The tile.
    Block,
}

impl Sharing {
    /// Both.
    pub const ALL: [Sharing; 2] = [Sharing::Token, Sharing::Block];
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
            Sharing::Token => "1x128",
            Sharing::Block => "128x128",
        };
        format!("quantize_{shape}_both_{}_{}", self.input.name(), self.code.name())
    }

    /// Blocks that a multiprocessor should have at a time, by the registers that tiles need.
    pub(super) const fn resident(&self) -> u32 {
        match (self.sharing, self.input) {
            (Sharing::Token, Input::F16 | Input::F32) => 1,
            _ => 2,
        }
    }

    /// The launch, and the arguments that go with it.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
        let shared_bytes = COLUMN_BYTES + SIDE * SIDE;
        let launch = Launch { grid: [down * across, 1], threads: THREADS, shared_bytes };
        (launch, Args { across: Divisor::new(across), ..*args })
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.tile(k, p, access));
        k.sync_threads();
        let [tile_row, tile_column] = p.split(k.block_index(0));
        store_transposed(k, p, [tile_row * SIDE, tile_column * SIDE]);
    }

    /// Quantizes a tile; the codes of the transpose are left in shared memory.
    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let [tile_row, tile_column] = p.split(k.block_index(0));
        let thread = k.thread_index();
        let (among, row_of_tile) = (thread % ACROSS, thread / ACROSS);
        let column = tile_column * SIDE + among * CHUNK;
        let first = tile_row * SIDE + row_of_tile;
        let bytes = self.input.bytes();
        let x = every(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        let pieces: Vec<Piece> = x
            .enumerate()
            .map(|(i, at)| {
                let exists = (first + i as u32 * ROWS).lt(p.rows);
                let part = Part::of(access, exists, column, p.columns);
                Piece { exists, part, chunk: Chunk::load(k, self.input, at, &part) }
            })
            .collect();
        let chunks: Vec<&Chunk> = pieces.iter().map(|piece| &piece.chunk).collect();
        let codes = every(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        // Half of a vector of shared memory is a chunk.
        let staged = |i: u32| {
            let line = row_of_tile + i * ROWS;
            vector_at(k.dynamic_shared().at(COLUMN_BYTES), line, among / 2).at(among % 2 * CHUNK)
        };
        match self.sharing {
            Sharing::Token => {
                let factors = self.column_factors(k, p, &chunks, [tile_row, tile_column]);
                let [of_row, _, of_column] = p.scale_strides;
                let scales = p.scales.at(first.widening_mul(of_row) + tile_column.widening_mul(of_column));
                let scales = every(scales, of_row.widening_mul(ROWS));
                for (((i, piece), at), scale_at) in (0..).zip(&pieces).zip(codes).zip(scales) {
                    let magnitude = across_lanes(k, piece.chunk.magnitude(), ACROSS);
                    let scale = Scale::of(p, self.code, magnitude);
                    let values = piece.chunk.values();
                    store_codes(k, &scale.encode(k, self.code, &values), at, &piece.part);
                    k.guard(among.eq(0) & piece.exists, || scale_at.store(scale.scale));
                    let scaled: Vec<F32> =
                        values.iter().zip(&factors).map(|(value, factor)| *value * *factor).collect();
                    let codes = self.code.encode(k, &scaled);
                    staged(i).store_vec([codes[0], codes[1]]);
                }
            }
            Sharing::Block => {
                let magnitude = of_block(k, largest(chunks.iter().map(|chunk| chunk.magnitude())));
                let scale = Scale::of(p, self.code, magnitude);
                for ((i, piece), at) in (0..).zip(&pieces).zip(codes) {
                    let codes = scale.encode(k, self.code, &piece.chunk.values());
                    store_codes(k, &codes, at, &piece.part);
                    staged(i).store_vec([codes[0], codes[1]]);
                }
                let places = ScalePlaces::new(p);
                let at = p.scales.at(places.offset(tile_row, tile_column));
                places.store(k, at, scale.scale, thread.eq(0));
            }
        }
    }

    /// The scales of the columns, which are stored, and what a thread's numbers are multiplied with.
    fn column_factors<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        chunks: &[&Chunk<'k>],
        [tile_row, tile_column]: [U32<'k>; 2],
    ) -> Vec<F32<'k>> {
        let [_, of_row, of_column] = p.from_strides;
        of_columns(k, self.input, chunks, |of_tile, magnitude| {
            let column = tile_column * SIDE + of_tile;
            let place = column.widening_mul(of_row) + tile_row.widening_mul(of_column);
            let at: Global = Ptr::new(p.group_stride + place * 4u64);
            let scale = Scale::of(p, self.code, magnitude);
            k.guard(column.lt(p.columns), || at.store(scale.scale));
            scale.factor
        })
    }
}

/// Eight numbers of a row that exists or not.
struct Piece<'k> {
    exists: Pred<'k>,
    part: Part<'k>,
    chunk: Chunk<'k>,
}

/// The tile from shared memory to the transpose: vectors where its rows are made of them, else bytes.
fn store_transposed<'k>(k: &'k Kernel, p: &Params<'k>, [row, column]: [U32<'k>; 2]) {
    let tile = transposed(k, k.dynamic_shared().at(COLUMN_BYTES), column);
    let [pitch, ..] = p.from_strides;
    let line = row + tile.lines * VECTOR;
    let places: Vec<(U32, Global)> = (0..4u32)
        .map(|later| {
            let row = tile.column + later;
            (row, p.from.at(row.widening_mul(pitch)).at(line.to_u64()))
        })
        .collect();
    let vectors = || {
        for (later, (row, to)) in places.iter().enumerate() {
            k.guard(row.lt(p.columns) & line.lt(p.rows), || to.store_vec(tile.vectors[later]));
        }
    };
    let bytes = || {
        for (later, (row, to)) in places.iter().enumerate() {
            let count = (row.lt(p.columns) & line.lt(p.rows)).select(p.rows - line, 0);
            for i in 0..VECTOR {
                let byte = tile.vectors[later][i as usize / 4] >> (8 * (i % 4));
                k.guard(count.gt(i), || to.at(u64::from(i)).store_byte(byte));
            }
        }
    };
    k.if_else(p.has(Flags::TRANSPOSED_VECTORS), vectors, bytes);
}
