//! Epilogue: from accumulators to memory, with the addend, the output type, edges, and coalesced stores.
//!
//! The plain case (BF16 without addend, aligned rows) is staged in BF16, 64 rows at a time, and stored by TMA. The
//! issuing thread waits until TMA takes the store, so in the persistent kernels that is no consumer. Every other case
//! is staged in FP32 by each warp for itself and goes through [`OutputParams::store_four`], which also stores the
//! reduced accumulators of split-K kernels.

mod activation;
mod bias;
pub(crate) mod block_output;
pub(crate) mod fp8_output;
pub mod fusion;
mod partial_tile;
pub(crate) mod split_k;

pub use crate::gemm::params::{Heads, OutputFlags, OutputParams};
pub use activation::{Activation, Gate};
pub use block_output::BlockOutput;

use crate::common::{WARP, WARPGROUP};
use crate::gemm::operand::f16::Half;
use oxigemm_ptx::ldmatrix::Layout;
use oxigemm_ptx::wgmma::Swizzle;
use oxigemm_ptx::{Bf16, Bf16x2, F16, F16x2, F32, Global, Kernel, Pred, Shared, Type, U32, Val, Var};

impl<'k> OutputParams<'k> {
    /// Adds C to four neighbours of one row and stores them in D's type; what lies outside D is dropped.
    pub fn store_four(&self, k: &'k Kernel, row: U32<'k>, column: U32<'k>, accumulators: [F32<'k>; 4]) {
        let accumulators = accumulators.map(|accumulator| k.var_from(accumulator));
        let inside: [Pred<'k>; 4] =
            std::array::from_fn(|i| row.lt(self.rows) & (column + i as u32).lt(self.columns));
        let whole = inside[3] & self.has(OutputFlags::VECTORS);
        let place = Four { column, accumulators, inside, whole };
        let addend = self.has(OutputFlags::ADDEND);
        k.if_else(
            self.has(OutputFlags::F32),
            || self.store_four_as::<f32>(k, row, &place, addend),
            || match self.half {
                Half::Bf16 => self.store_four_as::<Bf16>(k, row, &place, addend),
                Half::F16 => self.store_four_as::<F16>(k, row, &place, addend),
            },
        );
    }

    /// The same of a row, if it exists, where the output is [`PLAIN`](OutputFlags::PLAIN).
    pub(crate) fn store_plain_four(
        &self,
        k: &'k Kernel,
        (row, exists): (U32<'k>, Pred<'k>),
        column: U32<'k>,
        values: [F32<'k>; 4],
    ) {
        let element = row.widening_mul(self.d_pitch) + self.column_of_d(column).to_u64();
        let (to, inside) = (self.d.at(element * 2u64), exists & column.lt(self.columns));
        k.guard(inside, || match self.half {
            Half::Bf16 => Bf16::store_four(k, to, values),
            Half::F16 => F16::store_four(k, to, values),
        });
    }

    fn store_four_as<T: Element>(&self, k: &'k Kernel, row: U32<'k>, four: &Four<'k>, addend: Pred<'k>) {
        let first = self.column_of_d(four.column);
        let element = |base: Global<'k>, pitch: U32<'k>| {
            base.at((row.widening_mul(pitch) + first.to_u64()) * u64::from(T::BYTES))
        };
        let (c, d) = (element(self.c, self.c_pitch), element(self.d, self.d_pitch));
        let singles = |base: Global<'k>| {
            [0u32, 1, 2, 3].map(|i| match self.heads {
                None => base.at(u64::from(i * T::BYTES)),
                Some(heads) => {
                    let behind = heads.column(four.column + i) - first;
                    base.at(behind.widening_mul(T::BYTES))
                }
            })
        };
        k.if_else(
            four.whole,
            || {
                k.if_(addend, || four.add(self.beta, T::load_four(c)));
                T::store_four(k, d, four.accumulators.map(|accumulator| accumulator.live()));
            },
            || {
                k.if_(addend, || {
                    let loaded: Vec<F32<'k>> = singles(c)
                        .iter()
                        .zip(four.inside)
                        .map(|(c, inside)| T::load_if(*c, inside))
                        .collect();
                    four.add(self.beta, loaded.try_into().expect("four of them"));
                });
                for ((d, inside), accumulator) in
                    singles(d).into_iter().zip(four.inside).zip(four.accumulators)
                {
                    let value = T::round(accumulator.live());
                    k.guard(inside, || d.store(value));
                }
            },
        );
    }
}

/// Four neighbours of a row of D.
struct Four<'k> {
    column: U32<'k>,
    accumulators: [Var<'k, f32>; 4],
    inside: [Pred<'k>; 4],
    whole: Pred<'k>,
}

impl<'k> Four<'k> {
    fn add(&self, beta: Option<F32<'k>>, addends: [F32<'k>; 4]) {
        for (accumulator, addend) in self.accumulators.iter().zip(addends) {
            match beta {
                None => accumulator.set(accumulator.live() + addend),
                Some(beta) => accumulator.fma(beta, addend),
            }
        }
    }
}

/// An element type of D and C.
trait Element: Type {
    fn round(value: F32<'_>) -> Val<'_, Self>;
    fn load_if<'k>(from: Global<'k>, inside: Pred<'k>) -> F32<'k>;
    fn load_four(from: Global<'_>) -> [F32<'_>; 4];
    fn store_four<'k>(k: &'k Kernel, to: Global<'k>, values: [F32<'k>; 4]);
}

impl Element for f32 {
    fn round(value: F32<'_>) -> F32<'_> {
        value
    }
    fn load_if<'k>(from: Global<'k>, inside: Pred<'k>) -> F32<'k> {
        from.load_if(inside, 0.0f32)
    }
    fn load_four(from: Global<'_>) -> [F32<'_>; 4] {
        from.load_vec::<f32, 4>()
    }
    fn store_four<'k>(_: &'k Kernel, to: Global<'k>, values: [F32<'k>; 4]) {
        to.store_vec(values);
    }
}

impl Element for Bf16 {
    fn round(value: F32<'_>) -> Val<'_, Bf16> {
        value.to_bf16()
    }
    fn load_if<'k>(from: Global<'k>, inside: Pred<'k>) -> F32<'k> {
        from.load_if(inside, Bf16(0)).to_f32()
    }
    fn load_four(from: Global<'_>) -> [F32<'_>; 4] {
        let [[a, b], [c, d]] = from.load_vec::<Bf16x2, 2>().map(|pair| pair.to_f32());
        [a, b, c, d]
    }
    fn store_four<'k>(k: &'k Kernel, to: Global<'k>, [a, b, c, d]: [F32<'k>; 4]) {
        to.store_vec([k.pack_bf16(a, b), k.pack_bf16(c, d)]);
    }
}

impl Element for F16 {
    fn round(value: F32<'_>) -> Val<'_, F16> {
        value.to_f16()
    }
    fn load_if<'k>(from: Global<'k>, inside: Pred<'k>) -> F32<'k> {
        from.load_if(inside, F16(0)).to_f32()
    }
    fn load_four(from: Global<'_>) -> [F32<'_>; 4] {
        let [[a, b], [c, d]] = from.load_vec::<F16x2, 2>().map(|pair| pair.to_f32());
        [a, b, c, d]
    }
    fn store_four<'k>(k: &'k Kernel, to: Global<'k>, [a, b, c, d]: [F32<'k>; 4]) {
        to.store_vec([k.pack_f16(a, b), k.pack_f16(c, d)]);
    }
}

/// Output of one of the four warps that hold 64 rows of a tile, accumulated by `wgmma`.
#[derive(Clone, Copy)]
pub struct WarpOutput<'k, 'p> {
    /// Output parameters.
    pub params: &'p OutputParams<'k>,
    /// Where the 64 rows belong.
    pub place: Panels<'k>,
    /// Which of the four warps: it holds 16 of the rows.
    pub warp: U32<'k>,
    /// The lane.
    pub lane: U32<'k>,
}

/// Panels of 64 rows of a tile: where they are staged and where they belong.
#[derive(Clone, Copy)]
pub struct Panels<'k> {
    /// The first row.
    pub row: U32<'k>,
    /// The first column.
    pub column: U32<'k>,
    /// The staging area: [`staging_bytes`](Self::staging_bytes), aligned to 1024.
    pub staging: Shared<'k>,
}

/// Bytes of a row of a panel. A panel is 64 staged rows, of 64 columns of BF16: what TMA stores at a time.
pub(crate) const ROW_BYTES: u32 = 128;
/// Bytes of a panel.
pub(crate) const PANEL_BYTES: u32 = 64 * ROW_BYTES;
/// Rows of a warp.
pub(crate) const WARP_ROWS: u32 = 16;
/// Bytes of a warp's rows of a panel; a panel of FP32 is that large, and 32 columns wide.
pub(crate) const WARP_BYTES: u32 = WARP_ROWS * ROW_BYTES;
/// Fours of columns in a panel of FP32.
const FOURS: u32 = ROW_BYTES / 16;
/// The first chunk of a row of FP32 that holds odd columns.
const ODD_COLUMNS: u32 = 4;

/// Offset of a 16-byte chunk of a panel's row: the swizzle that TMA undoes, and that keeps eight rows of one column of
/// chunks in different banks.
pub(crate) fn chunk_offset<'k>(row: U32<'k>, chunk: U32<'k>) -> U32<'k> {
    row * ROW_BYTES + ((chunk ^ (row & (Swizzle::B128.bytes() / 16 - 1))) << 4)
}

impl<'k> Panels<'k> {
    /// Rows and columns of the tiles of D's tensor map, which has 128-byte swizzle.
    pub const MAP_TILE: [u32; 2] = [64, ROW_BYTES / 2];

    /// Bytes of shared memory for 64 rows of a tile of `columns` columns.
    pub fn staging_bytes(columns: u32) -> u32 {
        columns.div_ceil(Self::MAP_TILE[1]) * PANEL_BYTES
    }

    /// Whether some panels of `columns` columns are whole: those TMA stores, and the lanes the rest.
    pub(crate) const fn some_are_whole(columns: u32) -> bool {
        columns >= Self::MAP_TILE[1]
    }

    /// The column and the staged copy of a panel.
    fn panel(&self, panel: u32) -> (U32<'k>, Shared<'k>) {
        (self.column + panel * Self::MAP_TILE[1], self.staging.at(panel * PANEL_BYTES))
    }

    /// Has TMA store the whole panels of `columns` columns, by one thread. TMA drops what lies outside D. (The caller
    /// commits.)
    pub fn store(&self, params: &OutputParams<'k>, columns: u32) {
        self.store_in(None, params, columns);
    }

    /// The same in one of the slabs of D, where its map has several.
    pub fn store_in(&self, slab: Option<U32<'k>>, params: &OutputParams<'k>, columns: u32) {
        for panel in 0..columns / Self::MAP_TILE[1] {
            let (column, staged) = self.panel(panel);
            let at: Vec<U32<'k>> = [params.column_of_d(column), self.row].into_iter().chain(slab).collect();
            params.d_map.store(&at, staged);
        }
    }
}

impl<'k> WarpOutput<'k, '_> {
    /// The first of the warp's rows.
    fn first_row(&self) -> U32<'k> {
        self.place.row + self.warp * WARP_ROWS
    }

    /// Writes the warp's rows of several fragments, whose staging areas are contiguous, through FP32: as much at a time
    /// as the warp's part of the staging areas holds.
    pub fn write_f32(k: &'k Kernel, parts: &[(Self, &[Var<'k, f32>])]) {
        let Some((first, _)) = parts.first() else { return };
        let bytes = parts
            .iter()
            .map(|(_, accumulators)| Panels::staging_bytes(accumulators.len() as u32 * 2) / 4)
            .sum::<u32>();
        let area = first.place.staging.at(first.warp * bytes);
        let panel = ROW_BYTES as usize / 8;
        let capacity = (bytes / WARP_BYTES) as usize * panel;
        let chunks = first.chunks_f32(area);
        for (part, accumulators) in parts {
            for (step, accumulators) in accumulators.chunks(capacity).enumerate() {
                for (i, accumulators) in (0u32..).zip(accumulators.chunks(panel)) {
                    Self::stage_f32(&chunks.map(|chunk| chunk.at(i * WARP_BYTES)), accumulators);
                }
                k.sync_warp();
                let column = part.place.column + (step * capacity * 2) as u32;
                part.copy_f32(k, area, column, accumulators.len() as u32 * 2);
                k.sync_warp();
            }
        }
    }

    /// Stages the warp's rows in BF16, for TMA to store: visible to it when all four warps have done so and
    /// synchronized.
    pub fn stage(&self, k: &'k Kernel, accumulators: &[Var<'k, f32>]) {
        let chunks = self.chunks_bf16();
        for (panel, accumulators) in (0u32..).zip(accumulators.chunks(ROW_BYTES as usize / 4)) {
            self.stage_half(k, &chunks.map(|chunk| chunk.at(panel * PANEL_BYTES)), accumulators);
        }
    }

    /// The warp's rows of a panel.
    fn rows_of(&self, panel: u32) -> Shared<'k> {
        self.place.panel(panel).1.at(self.warp * WARP_BYTES)
    }

    /// Stores the columns that are no whole panel, if there are any, by the lanes of a warp that has staged its rows
    /// and synchronized. (It synchronizes again with the products of a tile, before it stages others.)
    pub fn store_left_over(&self, k: &'k Kernel, columns: u32) {
        let left_over = columns % Panels::MAP_TILE[1];
        if left_over > 0 {
            let panel = columns / Panels::MAP_TILE[1];
            self.copy_bf16(k, self.place.panel(panel).0, self.rows_of(panel), left_over / 8);
        }
    }

    /// Copies a staged panel of BF16 to D, 16 bytes a lane; `chunks` of them make a row.
    fn copy_bf16(&self, k: &'k Kernel, first_column: U32<'k>, panel: Shared<'k>, chunks: u32) {
        let p = self.params;
        for first in (0..WARP_ROWS * chunks).step_by(WARP as usize) {
            let index = self.lane + first;
            let row = index / chunks;
            let chunk = index - row * chunks;
            let column = first_column + chunk * 8;
            let (row_of_d, words) =
                (self.first_row() + row, panel.at(chunk_offset(row, chunk)).load_vec::<u32, 4>());
            let column_of_d = p.column_of_d(column);
            let to = p.d.at((row_of_d.widening_mul(p.d_pitch) + column_of_d.to_u64()) * 2);
            let exists = row_of_d.lt(p.rows) & column.lt(p.columns);
            k.guard(exists, || to.store_vec(words));
        }
    }

    /// Where this lane stores matrices of the first panel of BF16: one address for each two octets of columns.
    fn chunks_bf16(&self) -> [Shared<'k>; 4] {
        // Matrices of `stmatrix`: upper and lower eight rows of an octet of columns, then of the next octet.
        let (row, next_octet) = (self.lane & 15, self.lane >> 4);
        [0, 2, 4, 6].map(|octet| self.rows_of(0).at(chunk_offset(row, next_octet + octet)))
    }

    /// Rounds a panel of the fragment to 16 bits and stages its rows.
    fn stage_half(&self, k: &'k Kernel, chunks: &[Shared<'k>; 4], accumulators: &[Var<'k, f32>]) {
        for (to, accumulators) in chunks.iter().zip(accumulators.chunks(8)) {
            let pair =
                |i: usize| self.params.half.pack(k, accumulators[i].live(), accumulators[i + 1].live());
            to.store_matrices(Layout::Rows, [pair(0), pair(2), pair(4), pair(6)]);
        }
    }

    /// Where this lane stores its numbers of the upper eight rows of the first panel of FP32: the even column of each
    /// octet, then the odd ones.
    fn chunks_f32(&self, panel: Shared<'k>) -> [Shared<'k>; 2 * ODD_COLUMNS as usize] {
        let (k, row, pair) = (self.lane.kernel(), self.lane >> 2, self.lane & 3);
        let rows = panel.at(pair * 4);
        std::array::from_fn(|chunk| rows.at(chunk_offset(row, k.constant(chunk as u32))))
    }

    /// Stages a panel of the fragment in FP32: the even columns in one half of a row, the odd in the other.
    ///
    /// Neighbouring numbers of a thread are apart on purpose. Were they stored as a vector, that would want an even
    /// register followed by an odd one, and so decide the registers of the main loop. There
    /// `accumulator += scale * product` reads both in one cycle only if one is even and the other odd, which the
    /// assembler sees to where it is free to choose.
    fn stage_f32(chunks: &[Shared<'k>; 2 * ODD_COLUMNS as usize], accumulators: &[Var<'k, f32>]) {
        let (even, odd) = chunks.split_at(ODD_COLUMNS as usize);
        for ((even, odd), accumulators) in even.iter().zip(odd).zip(accumulators.chunks(4)) {
            for (below, accumulators) in [0, 8 * ROW_BYTES].into_iter().zip(accumulators.chunks(2)) {
                even.at(below).store(accumulators[0].live());
                odd.at(below).store(accumulators[1].live());
            }
        }
    }

    /// Copies staged panels of FP32 that hold `columns` columns from `first_column` on to D, four numbers a lane.
    fn copy_f32(&self, k: &'k Kernel, panels: Shared<'k>, first_column: U32<'k>, columns: u32) {
        let fours = columns / 4;
        k.for_(self.lane, WARP_ROWS * fours, WARP, |index| {
            let row = index / fours;
            let four = index - row * fours;
            let panel = panels.at((four / FOURS) * WARP_BYTES);
            let half = |odd: u32| {
                let octet = panel.at(chunk_offset(row, ((four % FOURS) >> 1) + odd * ODD_COLUMNS));
                octet.at((four & 1) * 8).load_vec::<f32, 2>()
            };
            let ([a, c], [b, d]) = (half(0), half(1));
            self.params.store_four(k, self.first_row() + row, first_column + four * 4, [a, b, c, d]);
        });
    }
}

/// Output of a warpgroup with swapped operands: 64 columns of D, which are the 64 rows of `wgmma`.
pub struct SwappedOutput<'k, 'p> {
    /// Output parameters, which are plain.
    pub params: &'p OutputParams<'k>,
    /// The first row of the tile.
    pub row: U32<'k>,
    /// The first of the 64 columns.
    pub column: U32<'k>,
    /// 128 bytes for each row of the tile, aligned to 1024.
    pub staging: Shared<'k>,
    /// The thread's index in the warpgroup.
    pub thread: U32<'k>,
    /// A named barrier, and how many threads write their columns together.
    pub barrier: (u32, u32),
}

impl<'k> SwappedOutput<'k, '_> {
    /// Writes the tile's rows, twice as many as a thread has accumulators, in BF16.
    pub fn write(&self, k: &'k Kernel, accumulators: &[Var<'k, f32>]) {
        let p = self.params;
        let rows = accumulators.len() as u32 * 2;
        self.stage(k, accumulators);
        k.barrier_sync(self.barrier.0, self.barrier.1);
        let (first, chunk) = (self.thread / 8, self.thread % 8);
        let column = self.column + chunk * 8;
        for step in (0..rows).step_by(WARPGROUP as usize / 8) {
            let row = first + step;
            let to = p.d.at(((self.row + row).widening_mul(p.d_pitch) + column.to_u64()) * 2);
            let exists = row.lt(rows) & (self.row + row).lt(p.rows) & column.lt(p.columns);
            let words = self.staging.at(chunk_offset(row, chunk)).load_vec::<u32, 4>();
            k.guard(exists, || to.store_vec(words));
        }
    }

    /// Transposes the fragment on its way to shared memory: a row there is a column of the accumulator.
    fn stage(&self, k: &'k Kernel, accumulators: &[Var<'k, f32>]) {
        let (p, warp, lane) = (self.params, self.thread / WARP, self.thread % WARP);
        // Matrices of `stmatrix`: the warp's upper and lower eight columns of D, then the same for eight rows more.
        let matrix = lane / 8;
        let chunk = warp * 2 + (matrix & 1);
        let row = (matrix >> 1) * 8 + (lane & 7);
        for (octets, accumulators) in (0u32..).zip(accumulators.chunks(8)) {
            let to = self.staging.at(chunk_offset(row + octets * 16, chunk));
            let pair = |i: usize| p.half.pack(k, accumulators[i].live(), accumulators[i + 1].live());
            match accumulators.len() {
                8 => to.store_matrices(Layout::Transposed, [pair(0), pair(2), pair(4), pair(6)]),
                _ => to.store_matrices(Layout::Transposed, [pair(0), pair(2)]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_ptx::Target;

    #[test]
    fn staged_chunks_lie_where_tma_reads_them() {
        let k = Kernel::new("swizzle", Target::Sm90a);
        for row in 0..128 {
            for chunk in 0..ROW_BYTES / 16 {
                let staged = chunk_offset(k.constant(row), k.constant(chunk)).as_constant();
                assert_eq!(staged, Some(Swizzle::B128.apply(row * ROW_BYTES + chunk * 16)), "{row} {chunk}");
            }
        }
    }
}
