//! Bias stage: `alpha * accumulator + bias`, the bias along N.

use super::fusion::{EpilogueFlags, EpilogueParams, FusedAccumulators};
use crate::gemm::operand::f16::Half;
use oxigemm_ptx::{Bf16, F16, F32, Global, Kernel, Pred, Var};

/// Loads the bias at an address, where it exists; else 0.
type LoadBias<'l, 'k> = &'l dyn Fn(Global<'k>, Pred<'k>) -> F32<'k>;

impl<'k> EpilogueParams<'k> {
    /// Loads biases, if there are any: `load` is given what loads one that lies inside of D, and how many bytes it has.
    pub(super) fn load_biases(&self, k: &'k Kernel, half: Half, load: impl Fn(LoadBias<'_, 'k>, u32)) {
        k.if_(self.has(EpilogueFlags::BIAS), || {
            k.if_else(
                self.has(EpilogueFlags::BIAS_F32),
                || load(&|from, inside| from.load_if(inside, 0.0f32), 4),
                || match half {
                    Half::Bf16 => load(&|from, inside| from.load_if(inside, Bf16(0)).to_f32(), 2),
                    Half::F16 => load(&|from, inside| from.load_if(inside, F16(0)).to_f32(), 2),
                },
            );
        });
    }
}

impl<'k> FusedAccumulators<'k, '_> {
    /// Multiplies the accumulators with alpha and adds the bias of their columns.
    pub(super) fn scale_and_add_bias(&self, accumulators: &[Vec<Var<'k, f32>>]) {
        let (k, p) = (self.k, self.params);
        // A thread has two neighbours of every octet of columns, in two rows.
        let octets = accumulators[0].len() / 4;
        let biases: Vec<[Var<'k, f32>; 2]> = (0..octets).map(|_| [k.var(0.0f32), k.var(0.0f32)]).collect();
        p.load_biases(k, self.half, |load, size| {
            let column = self.column + (self.lane & 3) * 2;
            let left = self.columns.max(column) - column;
            // Those of gates, then those of ups.
            for (part, biases) in (0u32..).zip(biases.chunks(octets / self.fusion.accumulators() as usize)) {
                let first = p.bias.at((column + self.columns * part).widening_mul(size));
                for (octet, biases) in (0u32..).zip(biases) {
                    for (i, bias) in (octet * 8..).zip(biases) {
                        bias.set(load(first.at(u64::from(i * size)), left.gt(i)));
                    }
                }
            }
        });
        for accumulators in accumulators {
            for (accumulators, biases) in accumulators.chunks(4).zip(&biases) {
                for (i, accumulator) in accumulators.iter().enumerate() {
                    accumulator.set(accumulator.live().fma(p.alpha, biases[i % 2].live()));
                }
            }
        }
    }
}
