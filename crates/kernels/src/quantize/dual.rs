//! A matrix and its transpose, quantized in one pass: what forward and backward products read.
//!
//! A block has one tile of 128 by 128 in its registers, as in `tiles.rs`, and its next two tiles under way. Where scales are those of 1x128, the rows of the
//! tile have the scales of the matrix and its columns those of the transpose, so each number is converted twice; where
//! the tile has one scale, once. Codes of the transpose pass through shared memory, from where they leave as vectors
//! along the rows of the matrix.

use oxigemm_ptx::{F32, Global, Kernel, Ptr, U32};

use super::async_copy::Flight;
use super::block_1x128::LaneMagnitudes;
use super::block_128x128::{ACROSS, CHUNKS, COLUMN_BYTES, ROWS, SIDE, every_chunk, of_block, of_columns};
use super::by_access;
use super::params::{Args, Divisor, Flags, Launch, Params, largest};
use super::scale::{Scale, ScalePlaces};
use super::scale_writer::{RUN, Run};
use super::vec8::{Access, CHUNK, Chunk, Code, Input, Part, store_codes};
use crate::gemm::transpose::{VECTOR, transposed, vector_at};

/// Threads of a block.
pub const THREADS: u32 = super::block_128x128::THREADS;

/// Where codes of the transpose are in shared memory.
const STAGED: u32 = COLUMN_BYTES;
/// Where scales of tiles are that follow each other.
const KEPT: u32 = STAGED + SIDE * SIDE;
/// Where tiles are that are under way.
const NEXT: u32 = KEPT + SIDE * Run::BYTES;

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
        format!("sm90_quantize_{shape}_dual_{}_{}", self.input.name(), self.code.name())
    }

    /// Blocks that a multiprocessor should have at a time, by the registers and the memory that tiles need.
    pub(super) const fn resident(&self) -> u32 {
        match (self.sharing, self.input) {
            (Sharing::Token, Input::F16) | (_, Input::F32) => 1,
            _ => 2,
        }
    }

    /// What a thread has under way.
    const fn flight(&self) -> Flight {
        Flight { threads: THREADS, vectors: CHUNKS * self.input.vectors() }
    }

    /// The launch on `sms` multiprocessors, and the arguments that go with it.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
        let shared_bytes = NEXT + self.flight().bytes();
        let (tiles, most) = (down * across, sms * self.resident());
        // A block has tiles that follow each other along the rows, where that costs no round and their scales are vectors.
        let [row, _, one] = args.scale_strides;
        let vectors = one == 4 && (args.scales | u64::from(row)).is_multiple_of(u64::from(VECTOR));
        let rounds = |run: u32| (tiles / run).div_ceil(most) * run;
        let runs = vectors && across.is_multiple_of(RUN) && rounds(RUN) <= rounds(1);
        let runs = runs && self.sharing == Sharing::Token;
        let (run, flag) = if runs { (RUN, Flags::RUNS) } else { (1, 0) };
        let args = Args {
            across: Divisor::new(across),
            shifts: [run.trailing_zeros(), 0],
            flags: args.flags | flag,
            ..*args
        };
        (Launch { grid: [(tiles / run).min(most), 1], threads: THREADS, shared_bytes }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let [run, _] = p.shifts;
        let runs = (p.rows.div_ceil(SIDE) * p.columns.div_ceil(SIDE)) >> run;
        let (block, blocks) = (k.block_index(0), k.grid_blocks(0));
        let rounds = [k.constant(0), (runs - block).div_ceil(blocks) << run, k.constant(1)];
        let tile_of = |round: U32<'k>| {
            p.split((((round >> run) * blocks + block) << run) + (round & ((k.constant(1) << run) - 1)))
        };
        by_access(k, p, |access| match access {
            Access::Vectors => self.flight().rounds(
                k,
                k.dynamic_shared().at(NEXT),
                rounds,
                |round, slots| {
                    for (i, (at, part)) in (0..).zip(self.origins(k, p, access, tile_of(round))) {
                        let Part::Vector { inside } = part else { unreachable!("these are vectors") };
                        Chunk::ask(at, inside, slots.of(self.input, i));
                    }
                },
                |round, slots| {
                    let chunk = |i, _, _: &_| Chunk::arrived(k, self.input, slots.of(self.input, i));
                    self.pieces(k, p, access, tile_of(round), chunk)
                },
                |round, pieces| self.tile(k, p, tile_of(round), &pieces),
            ),
            Access::Elements => {
                let [first, end, step] = rounds;
                k.for_(first, end, step, |round| {
                    let chunk = |_, at, part: &_| Chunk::load(k, self.input, at, part, None);
                    let tile = tile_of(round);
                    self.tile(k, p, tile, &self.pieces(k, p, access, tile, chunk));
                });
            }
        });
    }

    /// Where the chunks of a thread are, and which part of them there is.
    fn origins<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        [tile_row, tile_column]: [U32<'k>; 2],
    ) -> Vec<(Global<'k>, Part<'k>)> {
        let thread = k.thread_index();
        let column = tile_column * SIDE + thread % ACROSS * CHUNK;
        let first = tile_row * SIDE + thread / ACROSS;
        let bytes = self.input.bytes();
        let x = every_chunk(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        let part = |i: u32| Part::of(access, (first + i * ROWS).lt(p.rows), column, p.columns);
        (0..).zip(x).map(|(i, at)| (at, part(i))).collect()
    }

    /// What a thread has of a tile.
    fn pieces<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        tile: [U32<'k>; 2],
        chunk: impl Fn(u32, Global<'k>, &Part<'k>) -> Chunk<'k>,
    ) -> Vec<Piece<'k>> {
        let origins = (0..).zip(self.origins(k, p, access, tile));
        origins.map(|(i, (at, part))| Piece { part, chunk: chunk(i, at, &part) }).collect()
    }

    /// Quantizes a tile and its transpose.
    fn tile<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        [tile_row, tile_column]: [U32<'k>; 2],
        pieces: &[Piece<'k>],
    ) {
        let thread = k.thread_index();
        let (among, row_of_tile) = (thread % ACROSS, thread / ACROSS);
        let column = tile_column * SIDE + among * CHUNK;
        let first = tile_row * SIDE + row_of_tile;
        let chunks: Vec<&Chunk> = pieces.iter().map(|piece| &piece.chunk).collect();
        let codes = every_chunk(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        // Half of a vector of shared memory is a chunk.
        let staged = |i: u32| {
            let line = row_of_tile + i * ROWS;
            vector_at(k.dynamic_shared().at(STAGED), line, among / 2).at(among % 2 * CHUNK)
        };
        match self.sharing {
            Sharing::Token => {
                let factors = self.column_factors(k, p, &chunks, [tile_row, tile_column]);
                let [of_row, _, of_column] = p.scale_strides;
                let words = chunks.iter().map(|chunk| chunk.magnitude_word()).collect();
                let of_rows = LaneMagnitudes::new(k, ACROSS, self.input, words)
                    .scales(|magnitude| Scale::of(p, self.code, magnitude).parts());
                for ((i, piece), at) in (0..).zip(pieces).zip(codes) {
                    let values = piece.chunk.values();
                    let scaled = |factor: &dyn Fn(usize) -> F32<'k>| -> Vec<F32<'k>> {
                        values.iter().enumerate().map(|(i, value)| *value * factor(i)).collect()
                    };
                    let of_row = of_rows.factor(k, i);
                    let codes = self.code.encode(k, &scaled(&|_| of_row));
                    store_codes(k, &codes, at, &piece.part, p.kept);
                    let codes = self.code.encode(k, &scaled(&|column| factors[column]));
                    staged(i).store_vec([codes[0], codes[1]]);
                }
                for (chunk, scale, mine) in of_rows.own(k) {
                    let row_of_tile = row_of_tile + chunk * ROWS;
                    let row = tile_row * SIDE + row_of_tile;
                    let scales = p.scales.at(row.widening_mul(of_row));
                    let alone = scales.at(tile_column.widening_mul(of_column));
                    let wanted = mine & row.lt(p.rows);
                    let run = Run(k.dynamic_shared().at(KEPT).at(row_of_tile * Run::BYTES));
                    let in_run = || {
                        k.guard(mine, || run.keep(tile_column, scale));
                        let of_run = scales.at((tile_column - tile_column % RUN).widening_mul(4));
                        k.if_((tile_column % RUN).eq(RUN - 1), || run.store(k, of_run, wanted, Some(p.kept)));
                    };
                    k.if_else(p.has(Flags::RUNS), in_run, || {
                        k.guard(wanted, || alone.store_by(scale, p.kept))
                    });
                }
            }
            Sharing::Block => {
                let magnitude = of_block(k, largest(chunks.iter().map(|chunk| chunk.magnitude())));
                let scale = Scale::of(p, self.code, magnitude);
                for ((i, piece), at) in (0..).zip(pieces).zip(codes) {
                    let codes = scale.encode(k, self.code, &piece.chunk.values());
                    store_codes(k, &codes, at, &piece.part, p.kept);
                    staged(i).store_vec([codes[0], codes[1]]);
                }
                let places = ScalePlaces::new(p);
                let at = p.scales.at(places.offset(tile_row, tile_column));
                places.store(k, at, scale.scale, thread.eq(0));
            }
        }
        k.sync_threads();
        store_transposed(k, p, [tile_row * SIDE, tile_column * SIDE]);
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
            // Those of other rows, which lie beside it, come soon.
            k.guard(column.lt(p.columns), || at.store_by(scale.scale, p.kept));
            scale.factor
        })
    }
}

/// Eight numbers, and which of them there are.
struct Piece<'k> {
    part: Part<'k>,
    chunk: Chunk<'k>,
}

/// The tile from shared memory to the transpose: vectors where its rows are made of them, else bytes.
fn store_transposed<'k>(k: &'k Kernel, p: &Params<'k>, [row, column]: [U32<'k>; 2]) {
    let tile = transposed(k, k.dynamic_shared().at(STAGED), column);
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
            k.guard(row.lt(p.columns) & line.lt(p.rows), || to.store_vec_by(tile.vectors[later], p.kept));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_tiles_of_a_run_where_that_costs_no_round() {
        let launch = |dims: [u32; 2], scales| {
            let scale_strides = [dims[1] / 128 * 4, 16, 4];
            let config = Config { input: Input::Bf16, code: Code::E4m3, sharing: Sharing::Token };
            let (launch, args) = config.launch(&Args { dims, scales, scale_strides, ..Args::default() }, 132);
            (launch.grid[0], 1 << args.shifts[0])
        };
        assert_eq!(launch([4736, 7168], 0), (264, RUN));
        assert_eq!(launch([4096, 4096], 0), (256, RUN));
        assert_eq!(launch([4096, 4096], 4), (264, 1), "the first scale is no vector");
        assert_eq!(launch([1024, 4096], 0), (256, 1), "four rounds instead of one");
        assert_eq!(launch([4736, 7040], 0), (264, 1), "55 tiles of a row");
    }
}
