//! Dual output: a matrix and its transpose quantized in one pass, for the forward and the backward GEMM.
//!
//! A CTA holds one 128x128 tile in registers, as in `block_128x128.rs`, with the next two tiles in flight. With 1x128
//! scales, rows of the tile have the scales of the matrix and columns those of the transpose, so each number is
//! converted twice; with 128x128 scales, once. Codes of the transpose go through shared memory, and leave it as vectors
//! along the rows of the matrix.

use oxigemm_ptx::{F32, Global, Kernel, Ptr, U32};

use super::async_copy::CpAsyncBuffer;
use super::block_1x128::LaneAmax;
use super::block_128x128::{
    ACROSS, COLUMN_BYTES, ROWS, SIDE, VECS, cta_max, per_column_factors, vec_addresses,
};
use super::params::{Args, Flags, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout};
use super::scale_writer::{RUN_LENGTH, ScaleRun};
use super::vec8::{Access, Code, Input, Mask, VEC8, Vec8, max_of, store_codes};
use crate::common::fast_divmod::FastDivmod;
use crate::gemm::transpose::{VECTOR as VECTOR_BYTES, transposed, vector_at};

/// Threads of a CTA.
pub const THREADS: u32 = super::block_128x128::THREADS;

/// Offset of the transpose's codes in shared memory.
const CODES_OFFSET: u32 = COLUMN_BYTES;
/// Offset of the runs of scales.
const RUNS_OFFSET: u32 = CODES_OFFSET + SIDE * SIDE;
/// Offset of the tiles in flight.
const TILES_OFFSET: u32 = RUNS_OFFSET + SIDE * ScaleRun::BYTES;

/// Scale granularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// 1x128, for the matrix and for the transpose.
    Token,
    /// 128x128.
    Block,
}

impl Granularity {
    /// All of them.
    pub const ALL: [Granularity; 2] = [Granularity::Token, Granularity::Block];
}

/// Configuration of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Input type.
    pub input: Input,
    /// Output type.
    pub code: Code,
    /// Scale granularity.
    pub granularity: Granularity,
}

impl Config {
    pub(super) fn name(&self) -> String {
        let shape = match self.granularity {
            Granularity::Token => "1x128",
            Granularity::Block => "128x128",
        };
        format!("quantize_{shape}_dual_{}_{}", self.input.name(), self.code.name())
    }

    /// CTAs per SM, limited by the registers and the shared memory of tiles.
    pub(super) const fn resident(&self) -> u32 {
        match (self.granularity, self.input) {
            (Granularity::Token, Input::F16) | (_, Input::F32) => 1,
            _ => 2,
        }
    }

    /// Buffer of the tiles in flight.
    const fn copy_buffer(&self) -> CpAsyncBuffer {
        CpAsyncBuffer { threads: THREADS, vectors: VECS * self.input.vectors() }
    }

    /// Launch shape on `sms` SMs, and its arguments.
    pub fn launch(&self, args: &Args, sms: u32) -> (Launch, Args) {
        let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
        let shared_bytes = TILES_OFFSET + self.copy_buffer().bytes();
        let (tiles, most) = (down * across, sms * self.resident());
        // A CTA has runs of tiles along the rows, where that costs no wave and their scales are vectors.
        let [row, _, one] = args.scale_strides;
        let vectors = one == 4 && (args.scales | u64::from(row)).is_multiple_of(u64::from(VECTOR_BYTES));
        let waves = |run: u32| (tiles / run).div_ceil(most) * run;
        let runs = vectors && across.is_multiple_of(RUN_LENGTH) && waves(RUN_LENGTH) <= waves(1);
        let runs = runs && self.granularity == Granularity::Token;
        let (run, flag) = if runs { (RUN_LENGTH, Flags::SCALE_RUNS) } else { (1, 0) };
        let args = Args {
            items_per_row: FastDivmod::new(across),
            shifts: [run.trailing_zeros(), 0],
            flags: args.flags | flag,
            ..*args
        };
        (Launch { grid: [(tiles / run).min(most), 1], threads: THREADS, shared_bytes }, args)
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        let [run, _] = p.shifts();
        let runs = (p.rows.div_ceil(SIDE) * p.columns.div_ceil(SIDE)) >> run;
        let (cta, ctas) = (k.block_index(0), k.grid_blocks(0));
        let steps = [k.constant(0), (runs - cta).div_ceil(ctas) << run, k.constant(1)];
        let tile_of = |step: U32<'k>| {
            p.divmod((((step >> run) * ctas + cta) << run) + (step & ((k.constant(1) << run) - 1)))
        };
        by_access(k, p, |access| match access {
            Access::Vectors => self.copy_buffer().for_each_tile(
                k,
                k.dynamic_shared().at(TILES_OFFSET),
                steps,
                |step, slots| {
                    for (i, (at, mask)) in (0..).zip(self.sources(k, p, access, tile_of(step))) {
                        let Mask::Vector { inside } = mask else { unreachable!("these are vectors") };
                        Vec8::copy_async(at, inside, slots.of(self.input, i));
                    }
                },
                |step, slots| {
                    let vec = |i, _, _: &_| Vec8::from_shared(k, self.input, slots.of(self.input, i));
                    self.fragments(k, p, access, tile_of(step), vec)
                },
                |step, fragments| self.tile(k, p, tile_of(step), &fragments),
            ),
            Access::Elements => {
                let [first, end, by] = steps;
                k.for_(first, end, by, |step| {
                    let vec = |_, at, mask: &_| Vec8::load(k, self.input, at, mask, None);
                    let tile = tile_of(step);
                    self.tile(k, p, tile, &self.fragments(k, p, access, tile, vec));
                });
            }
        });
    }

    /// Addresses and masks of a thread's `Vec8`s.
    fn sources<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        [tile_row, tile_column]: [U32<'k>; 2],
    ) -> Vec<(Global<'k>, Mask<'k>)> {
        let thread = k.thread_index();
        let column = tile_column * SIDE + thread % ACROSS * VEC8;
        let first = tile_row * SIDE + thread / ACROSS;
        let bytes = self.input.bytes();
        let x = vec_addresses(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        let mask = |i: u32| Mask::of(access, (first + i * ROWS).lt(p.rows), column, p.columns);
        (0..).zip(x).map(|(i, at)| (at, mask(i))).collect()
    }

    /// Fragments of a thread in a tile.
    fn fragments<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        access: Access,
        tile: [U32<'k>; 2],
        vec: impl Fn(u32, Global<'k>, &Mask<'k>) -> Vec8<'k>,
    ) -> Vec<Fragment<'k>> {
        let sources = (0..).zip(self.sources(k, p, access, tile));
        sources.map(|(i, (at, mask))| Fragment { mask, vec: vec(i, at, &mask) }).collect()
    }

    /// Quantizes a tile and its transpose.
    fn tile<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        [tile_row, tile_column]: [U32<'k>; 2],
        fragments: &[Fragment<'k>],
    ) {
        let thread = k.thread_index();
        let (vec_of_row, row_of_tile) = (thread % ACROSS, thread / ACROSS);
        let column = tile_column * SIDE + vec_of_row * VEC8;
        let first = tile_row * SIDE + row_of_tile;
        let vecs: Vec<&Vec8> = fragments.iter().map(|fragment| &fragment.vec).collect();
        let codes = vec_addresses(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        // The codes of a `Vec8` are half of a vector of shared memory.
        let staged = |i: u32| {
            let line = row_of_tile + i * ROWS;
            vector_at(k.dynamic_shared().at(CODES_OFFSET), line, vec_of_row / 2).at(vec_of_row % 2 * VEC8)
        };
        match self.granularity {
            Granularity::Token => {
                let factors = self.column_factors(k, p, &vecs, [tile_row, tile_column]);
                let [of_row, _, of_column] = p.scale_strides();
                let words = vecs.iter().map(|vec| vec.amax_word()).collect();
                let of_rows = LaneAmax::new(k, ACROSS, self.input, words)
                    .scales(|amax| Scale::of(p, self.code, amax).bits_and_factor());
                for ((i, fragment), at) in (0..).zip(fragments).zip(codes) {
                    let values = fragment.vec.values();
                    let scaled = |factor: &dyn Fn(usize) -> F32<'k>| -> Vec<F32<'k>> {
                        values.iter().enumerate().map(|(i, value)| *value * factor(i)).collect()
                    };
                    let of_row = of_rows.factor(k, i);
                    let codes = self.code.encode(k, &scaled(&|_| of_row));
                    store_codes(k, &codes, at, &fragment.mask, p.evict_last);
                    let codes = self.code.encode(k, &scaled(&|column| factors[column]));
                    staged(i).store_vec([codes[0], codes[1]]);
                }
                for (vec, scale, is_owner) in of_rows.owned(k) {
                    let row_of_tile = row_of_tile + vec * ROWS;
                    let row = tile_row * SIDE + row_of_tile;
                    let scales = p.scales.at(row.widening_mul(of_row));
                    let alone = scales.at(tile_column.widening_mul(of_column));
                    let wanted = is_owner & row.lt(p.rows);
                    let run = ScaleRun(k.dynamic_shared().at(RUNS_OFFSET).at(row_of_tile * ScaleRun::BYTES));
                    let in_run = || {
                        k.guard(is_owner, || run.stage(tile_column, scale));
                        let of_run = scales.at((tile_column - tile_column % RUN_LENGTH).widening_mul(4));
                        k.if_((tile_column % RUN_LENGTH).eq(RUN_LENGTH - 1), || {
                            run.store(k, of_run, wanted, Some(p.evict_last))
                        });
                    };
                    k.if_else(p.has(Flags::SCALE_RUNS), in_run, || {
                        k.guard(wanted, || alone.store_by(scale, p.evict_last))
                    });
                }
            }
            Granularity::Block => {
                let amax = cta_max(k, max_of(vecs.iter().map(|vec| vec.amax())));
                let scale = Scale::of(p, self.code, amax);
                for ((i, fragment), at) in (0..).zip(fragments).zip(codes) {
                    let codes = scale.encode(k, self.code, &fragment.vec.values());
                    store_codes(k, &codes, at, &fragment.mask, p.evict_last);
                    staged(i).store_vec([codes[0], codes[1]]);
                }
                let layout = ScaleLayout::new(p);
                let at = p.scales.at(layout.offset(tile_row, tile_column));
                layout.store(k, at, scale.scale, thread.eq(0));
            }
        }
        k.sync_threads();
        store_transposed(k, p, [tile_row * SIDE, tile_column * SIDE]);
    }

    /// Stores the scales of the columns; returns the factors of the thread's columns.
    fn column_factors<'k>(
        &self,
        k: &'k Kernel,
        p: &Params<'k>,
        vecs: &[&Vec8<'k>],
        [tile_row, tile_column]: [U32<'k>; 2],
    ) -> Vec<F32<'k>> {
        let [_, of_row, of_column] = p.aux_strides();
        per_column_factors(k, self.input, vecs, |of_tile, amax| {
            let column = tile_column * SIDE + of_tile;
            let index = column.widening_mul(of_row) + tile_row.widening_mul(of_column);
            let at: Global = Ptr::new(p.group_stride + index * 4u64);
            let scale = Scale::of(p, self.code, amax);
            // Stays in L2: the scales beside it come soon.
            k.guard(column.lt(p.columns), || at.store_by(scale.scale, p.evict_last));
            scale.factor
        })
    }
}

/// `Vec8` of a thread, and its mask.
struct Fragment<'k> {
    mask: Mask<'k>,
    vec: Vec8<'k>,
}

/// Stores the tile of the transpose from shared memory: as vectors where its layout allows them, else as bytes.
fn store_transposed<'k>(k: &'k Kernel, p: &Params<'k>, [row, column]: [U32<'k>; 2]) {
    let tile = transposed(k, k.dynamic_shared().at(CODES_OFFSET), column);
    let [pitch, ..] = p.aux_strides();
    let line = row + tile.lines * VECTOR_BYTES;
    let targets: Vec<(U32, Global)> = (0..4u32)
        .map(|later| {
            let row = tile.column + later;
            (row, p.aux.at(row.widening_mul(pitch)).at(line.to_u64()))
        })
        .collect();
    let vectors = || {
        for (later, (row, to)) in targets.iter().enumerate() {
            k.guard(row.lt(p.columns) & line.lt(p.rows), || {
                to.store_vec_by(tile.vectors[later], p.evict_last)
            });
        }
    };
    let bytes = || {
        for (later, (row, to)) in targets.iter().enumerate() {
            let count = (row.lt(p.columns) & line.lt(p.rows)).select(p.rows - line, 0);
            for i in 0..VECTOR_BYTES {
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
    fn a_cta_has_runs_of_tiles_where_that_costs_no_wave() {
        let launch = |dims: [u32; 2], scales| {
            let scale_strides = [dims[1] / 128 * 4, 16, 4];
            let config = Config { input: Input::Bf16, code: Code::E4m3, granularity: Granularity::Token };
            let (launch, args) = config.launch(&Args { dims, scales, scale_strides, ..Args::default() }, 132);
            (launch.grid[0], 1 << args.shifts[0])
        };
        assert_eq!(launch([4736, 7168], 0), (264, RUN_LENGTH));
        assert_eq!(launch([4096, 4096], 0), (256, RUN_LENGTH));
        assert_eq!(launch([4096, 4096], 4), (264, 1), "the first scale is no vector");
        assert_eq!(launch([1024, 4096], 0), (256, 1), "four waves instead of one");
        assert_eq!(launch([4736, 7040], 0), (264, 1), "55 tiles of a row");
    }
}
