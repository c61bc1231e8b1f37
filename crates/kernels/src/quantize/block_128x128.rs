//! 128x128 and 128x1 block scales: one scale for a tile, or for each column of a tile.
//!
//! A CTA holds one 128x128 tile in registers: 16 threads along a row, eight `Vec8`s each.

use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, Shared, U32, U64};

use super::params::{Args, Launch, Params, by_access};
use super::scale::{Scale, ScaleLayout};
use super::vec8::{Access, Code, Input, Mask, VEC8, Vec8, max_of, store_codes, strided_addresses};
use crate::common::WARP;
use crate::common::fast_divmod::FastDivmod;

/// Threads of a CTA.
pub const THREADS: u32 = 256;
/// Rows and columns of a tile.
pub(super) const SIDE: u32 = 128;
/// Threads along a row.
pub(super) const ACROSS: u32 = SIDE / VEC8;
/// `Vec8`s of a thread.
pub(super) const VECS: u32 = SIDE * ACROSS / THREADS;
/// Rows from a `Vec8` of a thread to its next.
pub(super) const ROWS: u32 = THREADS / ACROSS;
const WARPS: u32 = THREADS / WARP;
/// Bytes of shared memory that [`per_column_factors`] and [`cta_max`] take at most.
pub(super) const COLUMN_BYTES: u32 = 4 * (WARPS + 1) * SIDE;

/// Scale granularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granularity {
    /// 128x128: the tile.
    Block,
    /// 128x1: a column of the tile.
    Channel,
}

impl Granularity {
    /// All of them.
    pub const ALL: [Granularity; 2] = [Granularity::Block, Granularity::Channel];
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
            Granularity::Block => "128x128",
            Granularity::Channel => "128x1",
        };
        format!("quantize_{shape}_{}_{}", self.input.name(), self.code.name())
    }

    /// Launch shape, and its arguments.
    pub fn launch(&self, args: &Args) -> (Launch, Args) {
        let [down, across] = args.dims.map(|x| x.div_ceil(SIDE));
        let shared_bytes = match self.granularity {
            Granularity::Block => 4 * WARPS,
            Granularity::Channel => COLUMN_BYTES,
        };
        let launch = Launch { grid: [down * across, 1], threads: THREADS, shared_bytes };
        (launch, Args { items_per_row: FastDivmod::new(across), ..*args })
    }

    pub(super) fn write<'k>(&self, k: &'k Kernel, p: &Params<'k>) {
        by_access(k, p, |access| self.tile(k, p, access));
    }

    fn tile<'k>(&self, k: &'k Kernel, p: &Params<'k>, access: Access) {
        let [tile_row, tile_column] = p.divmod(k.block_index(0));
        let thread = k.thread_index();
        let column = tile_column * SIDE + thread % ACROSS * VEC8;
        let first = tile_row * SIDE + thread / ACROSS;
        let bytes = self.input.bytes();
        let x = vec_addresses(p.x_at(first, column, bytes), p.x_pitch.widening_mul(ROWS * bytes));
        let fragments: Vec<(Mask, Vec8)> = x
            .enumerate()
            .map(|(i, at)| {
                let exists = (first + i as u32 * ROWS).lt(p.rows);
                let mask = Mask::of(access, exists, column, p.columns);
                (mask, Vec8::load(k, self.input, at, &mask, Some(p.evict_first)))
            })
            .collect();
        let vecs = fragments.iter().map(|(_, vec)| vec);
        let layout = ScaleLayout::new(p);
        let factors = match self.granularity {
            Granularity::Block => {
                let words = vecs.map(Vec8::amax_word);
                let word = words.reduce(|a, b| self.input.larger(a, b)).expect("a thread has some");
                let scale = Scale::of(p, self.code, cta_max(k, self.input.widen_larger(k, word)));
                let at = p.scales.at(layout.offset(tile_row, tile_column));
                layout.store(k, at, scale.scale, thread.eq(0));
                vec![scale.factor; VEC8 as usize]
            }
            Granularity::Channel => {
                per_column_factors(k, self.input, &vecs.collect::<Vec<_>>(), |of_tile, amax| {
                    let scale = Scale::of(p, self.code, amax);
                    let column = tile_column * SIDE + of_tile;
                    let at = p.scales.at(layout.offset(tile_row, column));
                    layout.store(k, at, scale.scale, column.lt(p.columns));
                    scale.factor
                })
            }
        };
        let codes = vec_addresses(p.codes_at(first, column, self.code), p.codes_pitch.widening_mul(ROWS));
        for ((mask, vec), at) in fragments.iter().zip(codes) {
            let scaled: Vec<_> =
                vec.values().iter().zip(&factors).map(|(value, factor)| *value * *factor).collect();
            store_codes(k, &self.code.encode(k, &scaled), at, mask, p.evict_last);
        }
    }
}

/// Addresses of a thread's `Vec8`s.
pub(super) fn vec_addresses<'k>(first: Global<'k>, step: U64<'k>) -> impl Iterator<Item = Global<'k>> {
    strided_addresses(VECS, first, step)
}

/// Maximum over all threads of a CTA of [`THREADS`], in all of them.
#[track_caller]
pub(super) fn cta_max<'k>(k: &'k Kernel, amax: U32<'k>) -> U32<'k> {
    let shared = k.dynamic_shared();
    let of_warp = k.warp_max(amax);
    k.guard(k.lane().eq(0), || shared_word(shared, k.thread_index() >> 5).store(of_warp));
    k.sync_threads();
    max_of((0..WARPS / 4).flat_map(|i| shared.at(16 * i).load_vec::<u32, 4>()))
}

/// Factors of the eight columns of a thread's `Vec8`s. One thread for each column of the tile reduces its amax over the
/// rows, and computes `factor` of the column and the amax.
///
/// 16-bit magnitudes are exchanged in pairs.
#[track_caller]
pub(super) fn per_column_factors<'k>(
    k: &'k Kernel,
    input: Input,
    vecs: &[&Vec8<'k>],
    factor: impl Fn(U32<'k>, U32<'k>) -> F32<'k>,
) -> Vec<F32<'k>> {
    let shared = k.dynamic_shared();
    let larger = |a: Vec<U32<'k>>, b: Vec<U32<'k>>| -> Vec<U32<'k>> {
        a.into_iter().zip(b).map(|(a, b)| input.larger(a, b)).collect()
    };
    let of_thread = vecs.iter().map(|vec| vec.abs_words()).reduce(larger).expect("a thread has some");
    let others = of_thread.iter().map(|word| k.shuffle(Shuffle::Xor, *word, ACROSS)).collect();
    let of_warp = larger(of_thread, others);
    let (thread, lane) = (k.thread_index(), k.lane());
    let bytes = input.bytes();
    let own = shared.at(((thread >> 5) * SIDE + lane % ACROSS * VEC8) * bytes);
    for (i, four) in of_warp.chunks(4).enumerate() {
        let four = [four[0], four[1], four[2], four[3]];
        k.guard(lane.lt(ACROSS), || own.at(16 * i as u32).store_vec(four));
    }
    k.sync_threads();
    let factors = shared.at(WARPS * SIDE * 4);
    k.if_(thread.lt(SIDE), || {
        // Word of the column; with 16 bits, it also holds a neighbour.
        let at = shared.at((thread * bytes) & !3);
        let words = (0..WARPS).map(|warp| at.at(warp * SIDE * bytes).load());
        let word: U32 = words.reduce(|a, b| input.larger(a, b)).expect("there are warps");
        let amax = match input {
            Input::F32 => word,
            Input::Bf16 | Input::F16 => input.widen_abs(k, (word >> (thread % 2 * 16)) & 0xffff),
        };
        factors.at(thread * 4).store(factor(thread, amax));
    });
    k.sync_threads();
    let columns = factors.at(lane % ACROSS * (VEC8 * 4));
    (0..VEC8 / 4).flat_map(|four| columns.at(16 * four).load_vec::<f32, 4>()).collect()
}

fn shared_word<'k>(shared: Shared<'k>, index: U32<'k>) -> Shared<'k> {
    shared.at(index * 4)
}
