//! From accumulators to memory: the addend, the output type, edges, and coalesced stores.
//!
//! A warp owns 16 rows of a tile and a small staging area of its own, so that it never waits for another warp.
//! The plain case (BF16 without addend, aligned rows) is staged in BF16 and copied out 16 bytes a lane. Every
//! other case is staged in FP32 and goes through [`OutputParams::store_four`], which also finishes the sums of
//! the kernels that split K.

use crate::WARP;
use oxigemm_ptx::matrix::Layout;
use oxigemm_ptx::{Bf16, Bf16x2, F32, Global, Kernel, Pred, Shared, Type, U32, Val, Var};

/// Arguments of the output, shared by every kernel.
pub struct OutputParams<'k> {
    /// D.
    pub d: Global<'k>,
    /// C, or null.
    pub c: Global<'k>,
    /// Elements from one row of D to the next.
    pub d_pitch: U32<'k>,
    /// Elements from one row of C to the next.
    pub c_pitch: U32<'k>,
    /// Rows of D (M).
    pub rows: U32<'k>,
    /// Columns of D (N).
    pub columns: U32<'k>,
    /// See [`OutputFlags`].
    pub flags: U32<'k>,
}

/// Bits of the `flags` argument.
pub struct OutputFlags;

impl OutputFlags {
    /// D and C are FP32, not BF16.
    pub const F32: u32 = 1;
    /// C is added.
    pub const ADDEND: u32 = 2;
    /// Four neighbours of D, and of C if there is one, lie in one aligned vector.
    pub const VECTORS: u32 = 4;
    /// BF16 without addend; N is a multiple of 8 and D's rows are aligned to 16 bytes.
    pub const PLAIN: u32 = 8;
}

impl<'k> OutputParams<'k> {
    /// Declares them, in the order in which the host passes them.
    pub fn declare(k: &'k Kernel) -> Self {
        OutputParams {
            d: k.param_pointer("d"),
            c: k.param_pointer("c"),
            d_pitch: k.param("d_pitch"),
            c_pitch: k.param("c_pitch"),
            rows: k.param("m"),
            columns: k.param("n"),
            flags: k.param("output_flags"),
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }

    /// Adds C to four neighbours of one row and stores them in D's type; what lies outside D is dropped.
    pub fn store_four(&self, k: &'k Kernel, row: U32<'k>, column: U32<'k>, sums: [F32<'k>; 4]) {
        let sums = sums.map(|sum| k.var_from(sum));
        let inside: [Pred<'k>; 4] =
            std::array::from_fn(|i| row.lt(self.rows) & (column + i as u32).lt(self.columns));
        let whole = inside[3] & self.has(OutputFlags::VECTORS);
        let place = Four { column, sums, inside, whole };
        let addend = self.has(OutputFlags::ADDEND);
        k.if_else(
            self.has(OutputFlags::F32),
            || self.store_four_as::<f32>(k, row, &place, addend),
            || self.store_four_as::<Bf16>(k, row, &place, addend),
        );
    }

    fn store_four_as<T: Element>(&self, k: &'k Kernel, row: U32<'k>, four: &Four<'k>, addend: Pred<'k>) {
        let element = |base: Global<'k>, pitch: U32<'k>| {
            base.at((row.widening_mul(pitch) + four.column.to_u64()) * u64::from(T::BYTES))
        };
        let (c, d) = (element(self.c, self.c_pitch), element(self.d, self.d_pitch));
        let singles = |base: Global<'k>| [0u32, 1, 2, 3].map(|i| base.at(u64::from(i * T::BYTES)));
        k.if_else(
            four.whole,
            || {
                k.if_(addend, || four.add(T::load_four(c)));
                T::store_four(k, d, four.sums.map(|sum| sum.live()));
            },
            || {
                k.if_(addend, || {
                    let loaded: Vec<F32<'k>> = singles(c)
                        .iter()
                        .zip(four.inside)
                        .map(|(c, inside)| T::load_if(*c, inside))
                        .collect();
                    four.add(loaded.try_into().expect("four of them"));
                });
                for ((d, inside), sum) in singles(d).into_iter().zip(four.inside).zip(four.sums) {
                    let value = T::round(sum.live());
                    k.guard(inside, || d.store(value));
                }
            },
        );
    }
}

/// Four neighbours of a row on their way to D.
struct Four<'k> {
    column: U32<'k>,
    sums: [Var<'k, f32>; 4],
    inside: [Pred<'k>; 4],
    whole: Pred<'k>,
}

impl<'k> Four<'k> {
    fn add(&self, addends: [F32<'k>; 4]) {
        for (sum, addend) in self.sums.iter().zip(addends) {
            sum.set(sum.live() + addend);
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

/// A warp's 16 rows of a tile, accumulated by `wgmma`, on their way to memory.
pub struct WarpOutput<'k, 'p> {
    /// The output's arguments.
    pub params: &'p OutputParams<'k>,
    /// The first of the warp's 16 rows.
    pub row: U32<'k>,
    /// The tile's first column.
    pub column: U32<'k>,
    /// The warp's own staging area.
    pub staging: Shared<'k>,
    /// The lane.
    pub lane: U32<'k>,
}

/// Bytes of a staged row. Sixteen of them make a panel: 64 columns of BF16 or 32 of FP32.
const STAGED_ROW: u32 = 128;
const CHUNKS_PER_ROW: u32 = STAGED_ROW / 16;

/// Where a 16-byte chunk of a staged row lies: chunks are permuted so that eight rows of one column of chunks
/// fall into different banks.
fn staged_chunk<'k>(row: U32<'k>, chunk: U32<'k>) -> U32<'k> {
    row * STAGED_ROW + ((chunk ^ (row & 7)) << 4)
}

impl<'k> WarpOutput<'k, '_> {
    /// Bytes of shared memory that each warp needs: one panel.
    pub const STAGING_BYTES: u32 = 16 * STAGED_ROW;

    /// Writes the warp's rows. `sums` is the accumulator fragment of 64 rows, of which this warp holds 16.
    pub fn write(&self, k: &'k Kernel, sums: &[Var<'k, f32>]) {
        k.if_else(
            self.params.has(OutputFlags::PLAIN),
            || {
                for (panel, sums) in (0u32..).zip(sums.chunks(STAGED_ROW as usize / 4)) {
                    self.stage_bf16(k, sums);
                    k.sync_warp();
                    self.copy_bf16(k, self.column + panel * (STAGED_ROW / 2), sums.len() as u32 / 4);
                    k.sync_warp();
                }
            },
            || {
                for (panel, sums) in (0u32..).zip(sums.chunks(STAGED_ROW as usize / 8)) {
                    self.stage_f32(sums);
                    k.sync_warp();
                    self.copy_f32(k, self.column + panel * (STAGED_ROW / 4), sums.len() as u32 / 2);
                    k.sync_warp();
                }
            },
        );
    }

    /// Rounds a panel of the fragment to BF16 and lays its rows out.
    fn stage_bf16(&self, k: &'k Kernel, sums: &[Var<'k, f32>]) {
        let pair = |i: usize| k.pack_bf16(sums[i].live(), sums[i + 1].live());
        // Matrices of `stmatrix`: upper and lower eight rows of an octet of columns, then of the next octet.
        let (row, next_octet) = (self.lane & 15, self.lane >> 4);
        for (octets, first) in (0u32..).zip((0..sums.len()).step_by(8)) {
            let to = self.staging.at(staged_chunk(row, next_octet + octets * 2));
            to.store_matrices(Layout::Rows, [pair(first), pair(first + 2), pair(first + 4), pair(first + 6)]);
        }
    }

    /// Copies a staged panel of BF16 to D, 16 bytes a lane; `chunks` of them make a row.
    fn copy_bf16(&self, k: &'k Kernel, first_column: U32<'k>, chunks: u32) {
        let p = self.params;
        for first in (0..16 * chunks).step_by(WARP as usize) {
            let (row, chunk) = self.chunk(first, chunks);
            let column = first_column + chunk * 8;
            let exists = row.lt(16) & (self.row + row).lt(p.rows) & column.lt(p.columns);
            let to = p.d.at(((self.row + row).widening_mul(p.d_pitch) + column.to_u64()) * 2);
            let words = self.staging.at(staged_chunk(row, chunk)).load_vec::<u32, 4>();
            k.guard(exists, || to.store_vec(words));
        }
    }

    /// Lays a panel of the fragment out in FP32.
    fn stage_f32(&self, sums: &[Var<'k, f32>]) {
        let (row, pair) = (self.lane >> 2, self.lane & 3);
        for (octet, sums) in (0u32..).zip(sums.chunks(4)) {
            for (half, sums) in (0u32..).zip(sums.chunks(2)) {
                let chunk = staged_chunk(row + half * 8, (pair >> 1) + octet * 2);
                let to = self.staging.at(chunk + (pair & 1) * 8);
                to.store_vec([sums[0].live(), sums[1].live()]);
            }
        }
    }

    /// Finishes a staged panel of FP32, four numbers a lane; `chunks` of them make a row.
    fn copy_f32(&self, k: &'k Kernel, first_column: U32<'k>, chunks: u32) {
        k.for_(0, (16 * chunks).div_ceil(WARP), 1, |round| {
            let (row, chunk) = self.chunk(round * WARP, chunks);
            k.if_(row.lt(16), || {
                let sums = self.staging.at(staged_chunk(row, chunk)).load_vec::<f32, 4>();
                self.params.store_four(k, self.row + row, first_column + chunk * 4, sums);
            });
        });
    }

    /// The row and the place in it of this lane's chunk, of those that start at `first`.
    fn chunk(&self, first: impl oxigemm_ptx::Arg<'k, u32>, chunks: u32) -> (U32<'k>, U32<'k>) {
        debug_assert!(chunks <= CHUNKS_PER_ROW);
        let index = self.lane + first;
        let row = index / chunks;
        (row, index - row * chunks)
    }
}
