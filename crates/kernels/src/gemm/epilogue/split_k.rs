//! [Fused epilogue](super::fusion) of split-K kernels, on reduced rows in shared memory: a warp has 128 columns of a
//! row at a time, which share a scale where D is quantized.

use super::activation::activate;
use super::fp8_output::{SMALLEST, scale_at, scale_of};
use super::fusion::{EpilogueFlags, EpilogueParams, Fusion};
use super::{OutputFlags, OutputParams};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Fp8, Kernel, Pred, Shared, U32, Var};

/// Rows of reduced accumulators in shared memory that a warp applies the epilogue to.
pub(crate) struct ReducedRows<'k> {
    pub k: &'k Kernel,
    /// Bytes from one row to the next.
    pub pitch: u32,
    /// Rows that a warp takes at a time, so that none has to be waited for alone.
    pub at_once: u32,
    /// Parts of a row's columns, and the bytes of one.
    pub parts: u32,
    pub part_bytes: u32,
    /// Where this lane's part of the tile's first row lies.
    pub at: Shared<'k>,
    /// The first row of the tile that is this warp's, and from one to the next.
    pub first: U32<'k>,
    pub step: U32<'k>,
    /// The row behind the last that D has.
    pub end: U32<'k>,
}

/// Row of reduced accumulators, as far as a lane has it.
pub(crate) struct ReducedRow<'k> {
    /// Which of the tile's.
    pub row: U32<'k>,
    /// Whether D has it.
    pub exists: Pred<'k>,
    /// Four neighbours of each part of its columns.
    pub accumulators: Vec<[F32<'k>; 4]>,
    at: Shared<'k>,
}

impl<'k> ReducedRow<'k> {
    /// Writes the values of its first part back, if D has the row.
    pub fn put_back(&self, k: &'k Kernel, values: [F32<'k>; 4]) {
        k.guard(self.exists, || self.at.store_vec(values));
    }
}

impl<'k> ReducedRows<'k> {
    fn at(&self, row: U32<'k>) -> Shared<'k> {
        self.at.at(row * self.pitch)
    }

    /// Runs `body` with all rows, a few at a time, of which the last may not exist.
    fn for_each_few(&self, body: impl FnOnce(&[ReducedRow<'k>])) {
        self.k.for_(self.first, self.end, self.step * self.at_once, |first| {
            let row = |nth: u32| {
                let row = first + self.step * nth;
                let exists = row.lt(self.end);
                // Others may write to what is not this warp's.
                let at = self.at(exists.select(row, first));
                let accumulators =
                    (0..self.parts).map(|nth| at.at(nth * self.part_bytes).load_vec()).collect();
                ReducedRow { row, exists, accumulators, at }
            };
            body(&(0..self.at_once).map(row).collect::<Vec<_>>());
        });
    }

    /// Runs `body` with all rows, one at a time: what lies in their first part.
    fn for_each(&self, body: impl FnOnce(U32<'k>, [F32<'k>; 4])) {
        self.k.for_(self.first, self.end, self.step, |row| body(row, self.at(row).load_vec()));
    }
}

/// Fused epilogue of a warp, for all of its rows.
pub(crate) struct FusedRows<'k> {
    k: &'k Kernel,
    params: EpilogueParams<'k>,
    output: OutputParams<'k>,
    fusion: Fusion,
    /// The first of the four columns that this lane has.
    column: U32<'k>,
    lane: U32<'k>,
    /// Biases of those columns; with a gate those of gates, then those of ups.
    biases: Vec<[Var<'k, f32>; 4]>,
}

impl<'k> FusedRows<'k> {
    /// Epilogue of a lane, whose first column is given. Biases are still to be loaded.
    pub fn new(
        k: &'k Kernel,
        params: EpilogueParams<'k>,
        output: OutputParams<'k>,
        fusion: Fusion,
        [column, lane]: [U32<'k>; 2],
    ) -> Self {
        let biases = (0..fusion.accumulators()).map(|_| std::array::from_fn(|_| k.var(0.0f32))).collect();
        FusedRows { k, params, output, fusion, column, lane, biases }
    }

    /// Loads the biases.
    pub fn load_biases(&self) {
        let columns = self.output.columns;
        self.params.load_biases(self.k, self.output.half, |load, size| {
            for (part, biases) in (0u32..).zip(&self.biases) {
                let first = self.params.bias.at((self.column + columns * part).widening_mul(size));
                for (i, bias) in (0u32..).zip(biases) {
                    let inside = (self.column + i).lt(columns);
                    bias.set(load(first.at(u64::from(i * size)), inside));
                }
            }
        });
    }

    /// Turns all rows of a tile, of which D's row `m` is the first, into elements of D and stores them.
    pub fn apply(&self, m: U32<'k>, rows: &ReducedRows<'k>) {
        let (k, output) = (self.k, &self.output);
        let (quantized, plain) = (self.params.has(EpilogueFlags::QUANTIZED), output.has(OutputFlags::PLAIN));
        rows.for_each_few(|rows| {
            let values = self.values(rows);
            k.if_else(
                quantized,
                || self.quantize(m, rows, &values),
                || {
                    k.if_else(
                        plain,
                        || {
                            for (row, values) in rows.iter().zip(&values) {
                                let place = (m + row.row, row.exists);
                                output.store_plain_four(k, place, self.column, *values);
                            }
                        },
                        || rows.iter().zip(&values).for_each(|(row, values)| row.put_back(k, *values)),
                    );
                },
            );
        });
        // Other output is rare and goes row by row: the code for it is long.
        k.if_(!(quantized | plain), || {
            rows.for_each(|row, values| output.store_four(k, m + row, self.column, values));
        });
    }

    /// The elements of some rows, but for C.
    fn values(&self, rows: &[ReducedRow<'k>]) -> Vec<[F32<'k>; 4]> {
        let (k, p) = (self.k, &self.params);
        let scaled = |part: usize| -> Vec<F32<'k>> {
            let rows = rows.iter().flat_map(|row| row.accumulators[part].iter().zip(&self.biases[part]));
            rows.map(|(accumulator, bias)| accumulator.fma(p.alpha, bias.live())).collect()
        };
        let vars = |part| scaled(part).into_iter().map(|value| k.var_from(value)).collect::<Vec<_>>();
        let (values, ups) = (vars(0), if self.fusion == Fusion::Gated { vars(1) } else { Vec::new() });
        activate(k, p.activation, &p.gate, &values, &ups);
        values.as_chunks::<4>().0.iter().map(|four| four.map(|value| value.live())).collect()
    }

    /// Stores some rows in e4m3, and their scales. D ends with a lane's columns, or with another lane's.
    fn quantize(&self, m: U32<'k>, rows: &[ReducedRow<'k>], values: &[[F32<'k>; 4]]) {
        let (k, output) = (self.k, &self.output);
        let inside: Pred<'k> = self.column.lt(output.columns);
        let largest: Vec<F32<'k>> = values.iter().map(|values| self.largest(values, inside)).collect();
        // Divisions take long: a lane divides for one of the rows, and tells the others.
        let own = (1u32..)
            .zip(&largest[1..])
            .fold(largest[0], |own, (nth, largest)| self.lane.eq(nth).select(*largest, own));
        let scale = scale_of(&self.params, own);
        let factor = k.constant(1.0f32).divide(scale);
        for ((nth, row), values) in (0u32..).zip(rows).zip(values) {
            let row_of_d = m + row.row;
            let scale_at = scale_at(&self.params, [row_of_d, self.column]);
            k.guard(row.exists & self.lane.eq(nth), || scale_at.store(scale));
            let factor = k.shuffle(Shuffle::Index, factor, nth);
            let [a, b, c, d] = values.map(|value| value * factor);
            let codes = k.join_halves(k.pack_fp8(Fp8::E4m3, a, b), k.pack_fp8(Fp8::E4m3, c, d));
            let to = output.d.at(row_of_d.widening_mul(output.d_pitch) + self.column.to_u64());
            k.guard(row.exists & inside, || to.store(codes));
        }
    }

    /// The largest magnitude of a row, of which this lane has four elements, if they lie inside of D: behind the last
    /// gate come ups, which are none of this row's.
    fn largest(&self, values: &[F32<'k>; 4], inside: Pred<'k>) -> F32<'k> {
        let k = self.k;
        let own = values.iter().fold(k.constant(SMALLEST), |largest, x| largest.max_nan(x.abs()));
        [1, 2, 4, 8, 16].into_iter().fold(inside.select(own, SMALLEST), |largest, distance| {
            largest.max_nan(k.shuffle(Shuffle::Xor, largest, distance))
        })
    }
}
