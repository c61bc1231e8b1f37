//! Sums of few rows on their way to D, where they are [finished](super::fusion): a warp has 128 columns of a row at a time, which
//! share a scale where D is quantized.

use super::activation::activate;
use super::fp8_output::{SMALLEST, scale_at, scale_of};
use super::fusion::{EpilogueFlags, EpilogueParams, Fusion};
use super::{OutputFlags, OutputParams};
use crate::gemm::sm90::dsmem_reduce::{ReducedRow, ReducedRows};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Fp8, Kernel, Pred, U32, Var};

/// What a warp knows of all rows that it finishes.
pub(crate) struct FusedRows<'k> {
    k: &'k Kernel,
    params: EpilogueParams<'k>,
    output: OutputParams<'k>,
    fusion: Fusion,
    /// The first of the four columns that this lane has.
    column: U32<'k>,
    lane: U32<'k>,
    /// What is added to the sums of those columns; with a gate to those of gates, then to those of ups.
    biases: Vec<[Var<'k, f32>; 4]>,
}

impl<'k> FusedRows<'k> {
    /// Of a lane, whose first column is given. Biases are still to be loaded.
    pub fn new(
        k: &'k Kernel,
        params: EpilogueParams<'k>,
        output: OutputParams<'k>,
        fusion: Fusion,
        [column, lane]: [U32<'k>; 2],
    ) -> Self {
        let biases = (0..fusion.sums()).map(|_| std::array::from_fn(|_| k.var(0.0f32))).collect();
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

    /// Turns all sums of a tile, of which D's row `m` is the first, into elements of D and stores them.
    pub fn finish(&self, m: U32<'k>, rows: &ReducedRows<'k>) {
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
        // What is rarely asked for takes a way of its own, row by row: the code for it is long.
        k.if_(!(quantized | plain), || {
            rows.for_each(|row, values| output.store_four(k, m + row, self.column, values));
        });
    }

    /// The elements of some rows, but for C.
    fn values(&self, rows: &[ReducedRow<'k>]) -> Vec<[F32<'k>; 4]> {
        let (k, p) = (self.k, &self.params);
        let scaled = |part: usize| -> Vec<F32<'k>> {
            let sums = rows.iter().flat_map(|row| row.sums[part].iter().zip(&self.biases[part]));
            sums.map(|(sum, bias)| sum.fma(p.alpha, bias.live())).collect()
        };
        let values: Vec<_> = scaled(0).into_iter().map(|value| k.var_from(value)).collect();
        activate(k, p.activation, &values);
        if self.fusion == Fusion::Gated {
            values.iter().zip(scaled(1)).for_each(|(gate, up)| gate.set(gate.live() * up));
        }
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

    /// The largest magnitude of a row, of which this lane has four elements, if they lie inside of D: behind the last gate come ups, which
    /// are none of this row's.
    fn largest(&self, values: &[F32<'k>; 4], inside: Pred<'k>) -> F32<'k> {
        let k = self.k;
        let own = values.iter().fold(k.constant(SMALLEST), |largest, x| largest.max_nan(x.abs()));
        [1, 2, 4, 8, 16].into_iter().fold(inside.select(own, SMALLEST), |largest, distance| {
            largest.max_nan(k.shuffle(Shuffle::Xor, largest, distance))
        })
    }
}
