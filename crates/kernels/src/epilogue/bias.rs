//! `alpha * sum + bias`, the bias along N.

use super::fused::{FusedFlags, Sums};
use crate::half::Half;
use oxigemm_ptx::{Bf16, F16, F32, Global, Pred, Var};

impl<'k> Sums<'k, '_> {
    /// Multiplies the sums with alpha and adds the bias of their columns.
    pub(super) fn scale_and_add_bias(&self, sums: &[Vec<Var<'k, f32>>]) {
        let (k, p) = (self.k, self.params);
        // A thread has two neighbours of every octet of columns, in two rows.
        let octets = sums[0].len() / 4;
        let biases: Vec<[Var<'k, f32>; 2]> = (0..octets).map(|_| [k.var(0.0f32), k.var(0.0f32)]).collect();
        k.if_(p.has(FusedFlags::BIAS), || {
            let load = |load: &dyn Fn(Global<'k>, Pred<'k>) -> F32<'k>, size: u32| {
                let column = self.column + (self.lane & 3) * 2;
                let left = self.columns.max(column) - column;
                // Those of gates, then those of ups.
                for (part, biases) in (0u32..).zip(biases.chunks(octets / self.fusion.sums() as usize)) {
                    let first = p.bias.at((column + self.columns * part).widening_mul(size));
                    for (octet, biases) in (0u32..).zip(biases) {
                        for (i, bias) in (octet * 8..).zip(biases) {
                            bias.set(load(first.at(u64::from(i * size)), left.gt(i)));
                        }
                    }
                }
            };
            k.if_else(
                p.has(FusedFlags::BIAS_F32),
                || load(&|from, inside| from.load_if(inside, 0.0f32), 4),
                || match self.half {
                    Half::Bf16 => load(&|from, inside| from.load_if(inside, Bf16(0)).to_f32(), 2),
                    Half::F16 => load(&|from, inside| from.load_if(inside, F16(0)).to_f32(), 2),
                },
            );
        });
        for sums in sums {
            for (sums, biases) in sums.chunks(4).zip(&biases) {
                for (i, sum) in sums.iter().enumerate() {
                    sum.set(sum.live().fma(p.alpha, biases[i % 2].live()));
                }
            }
        }
    }
}
