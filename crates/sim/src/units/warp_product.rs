//! Float products of the matrix instructions of a warp (`mma.sync`, `wmma`), as each generation of GPUs computes them.
//!
//! | generation | f16, bf16, TF32 | FP8 |
//! |---|---|---|
//! | Ampere, Ada | terms of 24 bits, 128 bits of K at a time | 13 bits, 16 elements at a time (Ada) |
//! | Hopper, data center Blackwell | terms of 25 bits, all of K | through f16, see below |
//! | sm_120 | the same | FP8, FP6 and FP4: 25 bits, all of K; with block scales [`super::tensor_core::fused`] |
//!
//! FP8 on Hopper: both operands are widened to f16, the elements at depths 0 and 1 of every four are multiplied, then
//! those at depths 2 and 3 on top, and C is added in f32.

use super::tensor_core::fused::{Fused, FusedScratch, Output, Scales};
use super::tensor_core::{Input, Product, Scratch, Widths};
use crate::arith::minifloat::{F16, Round};

/// Generations of tensor cores, as far as `mma.sync` tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    Ampere,
    Ada,
    Hopper,
    /// `sm_120` and later.
    Rtx,
}

impl Generation {
    /// The generation of a target; one before Ampere counts as Ampere.
    pub(crate) fn of(arch: u32) -> Generation {
        match arch {
            0..89 => Generation::Ampere,
            89 => Generation::Ada,
            90..120 => Generation::Hopper,
            _ => Generation::Rtx,
        }
    }
}

/// What one instruction computes: `d[m, n] += sum over k of a[m, k] * b[n, k]`.
pub(crate) struct WarpProduct<'a> {
    pub(crate) generation: Generation,
    /// Codes of A, row-major `m x k`, and of B, row-major `n x k`.
    pub(crate) a: &'a [u32],
    pub(crate) b: &'a [u32],
    pub(crate) k: usize,
    pub(crate) a_type: Input,
    pub(crate) b_type: Input,
    /// Whether the accumulators are f16.
    pub(crate) half: bool,
    pub(crate) scales: Option<Scales<'a>>,
}

impl WarpProduct<'_> {
    /// Adds the product to `d`, row-major; f16 accumulators by their values.
    pub(crate) fn accumulate(&self, d: &mut [f32], scratch: &mut Scratch) {
        let &WarpProduct { generation, a, b, k, a_type, b_type, half, scales } = self;
        let small = a_type.bits() <= 8;
        if scales.is_some() || (small && generation == Generation::Rtx) {
            let output = if half { Output::F16 } else { Output::F32 };
            let product = Fused {
                a,
                b,
                k,
                a_type,
                b_type,
                negate_a: false,
                negate_b: false,
                output,
                input_shift: 0,
                scales,
            };
            return product.accumulate(d, &mut FusedScratch::default());
        }
        match generation {
            Generation::Ampere | Generation::Ada => self.in_steps(d, scratch),
            _ if small => self.through_f16(d, scratch),
            Generation::Hopper | Generation::Rtx => self.step(a, b, k, Widths::hopper(a_type), d, scratch),
        }
    }

    /// One fused sum for each output.
    fn step(&self, a: &[u32], b: &[u32], k: usize, widths: Widths, d: &mut [f32], scratch: &mut Scratch) {
        let (a_type, b_type) = (self.a_type, self.b_type);
        Product { a, b, k, a_type, b_type, negate_a: false, negate_b: false, widths }.accumulate(d, scratch);
    }

    /// 128 bits of K after the other; accumulators of f16 are rounded each time.
    fn in_steps(&self, d: &mut [f32], scratch: &mut Scratch) {
        let bits = self.a_type.bits();
        // The sum is rounded once to f16: an f32 that is rounded to odd on the way loses nothing.
        let wide = Widths { term: 24, result: 23, odd: self.half };
        let widths = if bits == 8 { Widths::hopper(self.a_type) } else { wide };
        let depth = (128 / bits as usize).min(self.k);
        for first in (0..self.k).step_by(depth) {
            let part = |codes: &[u32]| -> Vec<u32> {
                codes.chunks(self.k).flat_map(|row| &row[first..first + depth]).copied().collect()
            };
            self.step(&part(self.a), &part(self.b), depth, widths, d, scratch);
            if self.half {
                d.iter_mut().for_each(|x| *x = F16.decode(super::mma::to_f16(*x)) as f32);
            }
        }
    }

    /// FP8 through f16 (see the head of this file).
    fn through_f16(&self, d: &mut [f32], scratch: &mut Scratch) {
        let mut sums = vec![0f32; d.len()];
        for pair in 0..2 {
            let half = |codes: &[u32], ty: Input| -> Vec<u32> {
                let chosen = codes.chunks(4).flat_map(|four| &four[2 * pair..2 * pair + 2]);
                chosen.map(|c| F16.encode(ty.value(*c), Round::Nearest, false) as u32).collect()
            };
            let product = Product {
                a: &half(self.a, self.a_type),
                b: &half(self.b, self.b_type),
                k: self.k / 2,
                a_type: Input::F16,
                b_type: Input::F16,
                negate_a: false,
                negate_b: false,
                widths: Widths::hopper(Input::F16),
            };
            product.accumulate(&mut sums, scratch);
        }
        for (out, s) in d.iter_mut().zip(sums) {
            let sum = *out + s;
            *out = if sum.is_nan() { f32::from_bits(0x7fff_ffff) } else { sum };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `1 * 1 + 2^-n * 1` at depths 0 and `at`, on top of `c`.
    fn sum(generation: Generation, ty: Input, k: usize, at: usize, small: u32, c: f32) -> f32 {
        let one = match ty {
            Input::E4m3 => 0x38,
            Input::Tf32 => 0x3f80_0000,
            _ => 0x3c00,
        };
        let (mut a, mut b) = (vec![0; k], vec![0; k]);
        (a[0], b[0], a[at], b[at]) = (one, one, small, one);
        let mut d = [c];
        WarpProduct { generation, a: &a, b: &b, k, a_type: ty, b_type: ty, half: false, scales: None }
            .accumulate(&mut d, &mut Scratch::default());
        d[0]
    }

    #[test]
    fn terms_keep_the_bits_of_their_generation() {
        // 2^-24 beside 1, then minus 1: an f16 subnormal, the smallest.
        let tail = |generation, at| {
            let (a, b) = (vec![0x3c00, 1, 0, 0, 0, 0, 0, 0, 0xbc00, 0, 0, 0, 0, 0, 0, 0], vec![0x3c00; 16]);
            let mut a = a;
            a.swap(1, at);
            let mut d = [0f32];
            let (a_type, b_type) = (Input::F16, Input::F16);
            WarpProduct { generation, a: &a, b: &b, k: 16, a_type, b_type, half: false, scales: None }
                .accumulate(&mut d, &mut Scratch::default());
            d[0]
        };
        // In one fused sum all of it is left; in two halves the first one ends as an f32 of 24 bits.
        assert_eq!(tail(Generation::Hopper, 1), 2f32.powi(-24));
        assert_eq!(tail(Generation::Rtx, 1), 2f32.powi(-24));
        assert_eq!(tail(Generation::Ampere, 1), 0.0);
        assert_eq!(tail(Generation::Ada, 9), 2f32.powi(-24));
        // TF32: 2^-25 beside 1 is below the 24 bits of Ampere, and 2^-24 is not.
        let both = |generation, e: i32, c| sum(generation, Input::Tf32, 4, 1, 2f32.powi(e).to_bits(), c);
        assert_eq!(both(Generation::Ampere, -24, -1.0), 2f32.powi(-24));
        assert_eq!(both(Generation::Ampere, -25, -1.0), 0.0);
        assert_eq!(both(Generation::Hopper, -25, -1.0), 2f32.powi(-25));
    }

    #[test]
    fn fp8_has_13_bits_on_ada_and_25_on_sm_120() {
        // 2^-9 times 1 (a subnormal E4M3 has exponent -6), beside 64, 256 or 448.
        let beside = |generation, c: f32| sum(generation, Input::E4m3, 32, 1, 1, c) - c - 1.0;
        assert_eq!(beside(Generation::Ada, 16.0 - 1.0), 2f32.powi(-9));
        assert_eq!(beside(Generation::Ada, 32.0 - 1.0), 0.0);
        assert_eq!(beside(Generation::Rtx, 8192.0 - 1.0), 2f32.powi(-9));
        // In its own half the small term meets what the first half left.
        let late = |c: f32| sum(Generation::Ada, Input::E4m3, 32, 17, 1, c) - c - 1.0;
        assert_eq!(late(16.0 - 1.0), 2f32.powi(-9));
    }

    #[test]
    fn generations_of_targets() {
        let of = [75, 80, 86, 89, 90, 100, 103, 110, 120, 121].map(Generation::of);
        use Generation::{Ada, Ampere, Hopper, Rtx};
        assert_eq!(of, [Ampere, Ampere, Ampere, Ada, Hopper, Hopper, Hopper, Hopper, Rtx, Rtx]);
    }
}
