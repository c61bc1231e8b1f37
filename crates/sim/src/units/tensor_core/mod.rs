//! Tensor core arithmetic for floats, bit for bit.
//!
//! One instruction adds its products and the accumulator as one fused sum. A term is the product of two
//! significands, not normalized, with the sum of the two exponents; the accumulator is one more term and
//! a zero term has exponent -126. Every term is aligned to the largest exponent and truncated toward
//! zero at a fixed number of fractional bits; the terms are added exactly; the sum is truncated toward
//! zero. For FP8 inputs on Hopper both widths are 13 bits; for 16-bit and TF32 inputs the terms keep 25
//! bits and the result 23.
//!
//! The truncation makes the integer sum of each output small: the FP8 path does it in `f32` (a product
//! has 8 significant bits, so scaling it by a power of two is exact) and the wide path in `f64`. Columns
//! are processed eight at a time in fixed-size arrays, which compilers vectorize.

pub(crate) mod fused;
mod input;

use crate::arith::minifloat::{self, Round, power};
use input::Decoded;
pub(crate) use input::Input;
use multiversion::multiversion;

/// Fractional bits of aligned terms, and mantissa bits of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// Fractional bits that an aligned term keeps.
    pub term: u32,
    /// Mantissa bits of the result.
    pub result: u32,
    /// Whether the last bit of the result says that something was cut off, for another rounding behind this one; with
    /// terms of more than 13 bits.
    pub odd: bool,
}

impl Widths {
    /// Hopper's widths for an input type.
    pub fn hopper(input: Input) -> Widths {
        let (term, result) = if input.bits() == 8 { (13, 13) } else { (25, 23) };
        Widths { term, result, odd: false }
    }
}

const NAN: u32 = 0x7fff_ffff;
/// Columns that are processed together.
const COLUMNS: usize = 8;

/// Scratch space of a product, reused between instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    a: Decoded,
    b: Decoded,
}

/// What one product computes: `d[m, n] = sum over k of a[m, k] * b[n, k] (+ d[m, n])`.
pub(crate) struct Product<'a> {
    /// Codes of A, row-major `m x k`.
    pub(crate) a: &'a [u32],
    /// Codes of B, row-major `n x k`.
    pub(crate) b: &'a [u32],
    pub(crate) k: usize,
    pub(crate) a_type: Input,
    pub(crate) b_type: Input,
    pub(crate) negate_a: bool,
    pub(crate) negate_b: bool,
    pub(crate) widths: Widths,
}

impl Product<'_> {
    /// Adds the product to `d` (`m x n`, row-major). Rows are shared between threads when there is enough
    /// work; each output is computed by one thread alone, so the result does not depend on it.
    pub(crate) fn accumulate(&self, d: &mut [f32], scratch: &mut Scratch) {
        let n = self.b.len() / self.k;
        scratch.a.fill(self.a, self.k, self.a_type, self.negate_a, false);
        scratch.b.fill(self.b, self.k, self.b_type, self.negate_b, true);
        let (a, b) = (&scratch.a, &scratch.b);
        let rows = d.len() / n;
        let work = |first: usize, d: &mut [f32]| add_rows(self, a, b, first, d, n);
        if d.len() * self.k >= 1 << 15 {
            let half = rows / 2;
            let (low, high) = d.split_at_mut(half * n);
            rayon::join(|| work(0, low), || work(half, high));
        } else {
            work(0, d);
        }
    }

    #[inline(always)]
    fn row(&self, a: &Decoded, b: &Decoded, m: usize, d: &mut [f32]) {
        let k = self.k;
        let (av, ap) = (&a.value[m * k..][..k], &a.power[m * k..][..k]);
        for (block, out) in d.chunks_mut(COLUMNS).enumerate() {
            let bv = &b.value[block * k * COLUMNS..][..k * COLUMNS];
            let bp = &b.power[block * k * COLUMNS..][..k * COLUMNS];
            let mut acc = [0f32; COLUMNS];
            acc[..out.len()].copy_from_slice(out);
            let mut result = if self.widths.term <= 13 {
                narrow(av, ap, bv, bp, &acc)
            } else {
                wide(av, ap, bv, bp, &acc, self.widths)
            };
            let special = a.special[m] || b.any_special || acc.iter().any(|x| !x.is_finite());
            if special {
                for j in 0..out.len() {
                    if a.special[m] || b.special[block * COLUMNS + j] || !acc[j].is_finite() {
                        result[j] = special_sum(av, &bv[j..], acc[j]);
                    }
                }
            }
            out.copy_from_slice(&result[..out.len()]);
        }
    }
}

/// Adds rows from `first` on. There is the same code for wider vectors, with the same bits: nothing is fused.
#[multiversion(targets("x86_64+avx2"))]
fn add_rows<'a>(product: &Product<'a>, a: &Decoded, b: &Decoded, first: usize, d: &mut [f32], n: usize) {
    for (i, row) in d.chunks_mut(n).enumerate() {
        product.row(a, b, first + i, row);
    }
}

/// A sum in which an infinity or a NaN takes part.
fn special_sum(av: &[f32], bv: &[f32], acc: f32) -> f32 {
    let sum = av
        .iter()
        .zip(bv.iter().step_by(COLUMNS))
        .fold(f64::from(acc), |s, (a, b)| s + f64::from(*a) * f64::from(*b));
    if sum.is_nan() { f32::from_bits(NAN) } else { sum as f32 }
}

/// Eight columns of FP8: terms and result of 13 bits.
#[inline(always)]
fn narrow(av: &[f32], ap: &[f32], bv: &[f32], bp: &[f32], acc: &[f32; COLUMNS]) -> [f32; COLUMNS] {
    let mut top = [0f32; COLUMNS];
    for j in 0..COLUMNS {
        let p = f32::from_bits(acc[j].to_bits() & 0x7f80_0000);
        top[j] = if p > f32::MIN_POSITIVE { p } else { f32::MIN_POSITIVE };
    }
    for (p, row) in ap.iter().zip(bp.chunks_exact(COLUMNS)) {
        for j in 0..COLUMNS {
            let x = p * row[j];
            top[j] = if x > top[j] { x } else { top[j] };
        }
    }
    let mut scale = [0f32; COLUMNS];
    for j in 0..COLUMNS {
        let e = (top[j].to_bits() >> 23) as i32;
        scale[j] = f32::from_bits((267 - e).clamp(1, 254).cast_unsigned() << 23);
    }
    let mut sum = [0f32; COLUMNS];
    for (a, row) in av.iter().zip(bv.chunks_exact(COLUMNS)) {
        for j in 0..COLUMNS {
            // Integers below 2^15 in magnitude, and at most 32 of them: their sum is exact. (Converted one by one, they
            // would saturate, which is not vectorized.) A sum with an infinity is replaced later.
            sum[j] += (a * row[j] * scale[j]).trunc();
        }
    }
    let mut out = [0f32; COLUMNS];
    for j in 0..COLUMNS {
        let e = (top[j].to_bits() >> 23) as i32;
        let bits = acc[j].to_bits();
        let (field, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x7f_ffff);
        let significand = if field == 0 { fraction } else { fraction | 1 << 23 };
        let shift = (10 + e - field.max(1)) as u32;
        let term = if shift < 32 { (significand >> shift) as i32 } else { 0 };
        let total = (sum[j] as i32).wrapping_add(if acc[j].is_sign_negative() { -term } else { term });
        // At most 21 bits: exact in f32, then cut to 13 mantissa bits.
        let kept = f32::from_bits((total as f32).to_bits() & !0x3ff);
        out[j] = if kept == 0.0 {
            0.0
        } else if e > 13 {
            kept * f32::from_bits(((e - 13) as u32) << 23)
        } else {
            encode_toward_zero(f64::from(kept) * power(e - 127 - 13))
        };
    }
    out
}

fn encode_toward_zero(x: f64) -> f32 {
    f32::from_bits(minifloat::F32.encode(x, Round::Zero, false) as u32)
}

/// Eight columns with terms of up to 30 fractional bits.
#[inline(always)]
fn wide(
    av: &[f32],
    ap: &[f32],
    bv: &[f32],
    bp: &[f32],
    acc: &[f32; COLUMNS],
    widths: Widths,
) -> [f32; COLUMNS] {
    let smallest = f64::from(f32::MIN_POSITIVE);
    let mut top = [smallest; COLUMNS];
    for j in 0..COLUMNS {
        let p = f64::from(f32::from_bits(acc[j].to_bits() & 0x7f80_0000));
        if acc[j].is_finite() && p > top[j] {
            top[j] = p;
        }
    }
    for (p, row) in ap.iter().zip(bp.chunks_exact(COLUMNS)) {
        let p = f64::from(*p);
        for j in 0..COLUMNS {
            let x = p * f64::from(row[j]);
            top[j] = if x > top[j] { x } else { top[j] };
        }
    }
    let (one, unit) = (power(widths.term as i32), power(-(widths.term as i32)));
    let drop = 52 - widths.result;
    let mut scale = [0f64; COLUMNS];
    for j in 0..COLUMNS {
        scale[j] = one / top[j];
    }
    let mut sum = [0f64; COLUMNS];
    for (a, row) in av.iter().zip(bv.chunks_exact(COLUMNS)) {
        let a = f64::from(*a);
        for j in 0..COLUMNS {
            // Integers of at most 32 bits: their sum is exact.
            sum[j] += (a * f64::from(row[j]) * scale[j]).trunc();
        }
    }
    let mut out = [0f32; COLUMNS];
    for j in 0..COLUMNS {
        // An integer below 2^53, of which the bits behind the result's are cut off. A sum with an infinity is replaced
        // later.
        let total = sum[j] + (f64::from(acc[j]) * scale[j]).trunc();
        let bits = total.to_bits();
        let cut = widths.odd && bits << (64 - drop) != 0;
        let kept = f64::from_bits((bits >> drop | u64::from(cut)) << drop);
        let value = kept * (top[j] * unit);
        // A number of at most 24 bits converts exactly unless it is subnormal.
        out[j] =
            if value.abs() < smallest && value != 0.0 { encode_toward_zero(value) } else { value as f32 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The model, written with integers as its definition reads.
    fn reference(a: &[u32], b: &[u32], acc: f32, ta: Input, tb: Input, widths: Widths) -> f32 {
        // (signed significand, exponent of its unit bit, exponent)
        let split = |t: Input, c: u32| -> (i128, i32, i32) {
            let f = t.format();
            let c = if t == Input::Tf32 { c >> 13 } else { c };
            let field = (c >> f.mantissa & ((1 << f.exponent) - 1)) as i32;
            let fraction = i128::from(c & ((1 << f.mantissa) - 1));
            let bias = (1 << (f.exponent - 1)) - 1;
            let s = if field == 0 { fraction } else { fraction | 1 << f.mantissa };
            let e = field.max(1) - bias;
            let sign = if c >> (f.exponent + f.mantissa) & 1 == 1 { -1 } else { 1 };
            (sign * s, e - f.mantissa as i32, e)
        };
        let mut terms: Vec<(i128, i32, i32)> = a
            .iter()
            .zip(b)
            .map(|(x, y)| {
                let (sx, ux, ex) = split(ta, *x);
                let (sy, uy, ey) = split(tb, *y);
                (sx * sy, ux + uy, ex + ey)
            })
            .collect();
        let bits = acc.to_bits();
        let field = (bits >> 23 & 0xff) as i32;
        let m = i128::from(if field == 0 { bits & 0x7f_ffff } else { bits & 0x7f_ffff | 1 << 23 });
        terms.push((if acc.is_sign_negative() { -m } else { m }, field.max(1) - 150, field.max(1) - 127));
        let top = terms.iter().map(|t| if t.0 == 0 { -126 } else { t.2 }).max().unwrap();
        let unit = top - widths.term as i32;
        let sum: i128 = terms
            .iter()
            .map(|&(s, u, _)| {
                let shift = u - unit;
                let magnitude = if shift >= 0 {
                    s.abs() << shift
                } else {
                    s.abs().checked_shr(-shift as u32).unwrap_or(0)
                };
                magnitude * s.signum()
            })
            .sum();
        let magnitude = sum.unsigned_abs();
        let drop = (128 - magnitude.leading_zeros()).saturating_sub(widths.result + 1);
        let kept = (magnitude >> drop << drop) as f64;
        encode_toward_zero(kept * power(unit) * if sum < 0 { -1.0 } else { 1.0 })
    }

    fn check(codes: &[u32], acc: &[f32], ta: Input, tb: Input, k: usize) {
        let (a, b) = codes.split_at(2 * k);
        let widths = Widths::hopper(ta);
        let product = Product { a, b, k, a_type: ta, b_type: tb, negate_a: false, negate_b: false, widths };
        let n = b.len() / k;
        let (mut d, mut scratch) = (acc[..2 * n].to_vec(), Scratch::default());
        product.accumulate(&mut d, &mut scratch);
        let mut anywhere = acc[..2 * n].to_vec();
        anywhere.chunks_mut(n).enumerate().for_each(|(i, row)| product.row(&scratch.a, &scratch.b, i, row));
        let bits = |d: &[f32]| d.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&d), bits(&anywhere), "wider vectors give other bits");
        for i in 0..2 {
            for j in 0..n {
                let want = reference(&a[i * k..][..k], &b[j * k..][..k], acc[i * n + j], ta, tb, widths);
                assert_eq!(d[i * n + j].to_bits(), want.to_bits(), "{ta:?} {i} {j} acc {}", acc[i * n + j]);
            }
        }
    }

    fn finite(input: Input) -> impl Strategy<Value = u32> {
        let bits = input.bits();
        any::<u32>().prop_filter_map("finite", move |c| {
            let c = if bits == 32 { c } else { c & ((1 << bits) - 1) };
            input.decode(c).0.is_finite().then_some(c)
        })
    }

    fn accumulator() -> impl Strategy<Value = f32> {
        prop_oneof![
            Just(0f32),
            -1e6f32..1e6,
            any::<f32>().prop_filter("finite", |x| x.is_finite() && x.abs() < 1e37)
        ]
    }

    proptest! {
        #[test]
        fn fp8_matches_the_integer_definition(
            codes in prop::collection::vec(finite(Input::E4m3), 32 * 10),
            acc in prop::collection::vec(accumulator(), 16),
        ) {
            check(&codes, &acc, Input::E4m3, Input::E4m3, 32);
        }

        #[test]
        fn mixed_fp8_matches_the_integer_definition(
            a in prop::collection::vec(finite(Input::E4m3), 64),
            b in prop::collection::vec(finite(Input::E5m2), 32 * 8),
            acc in prop::collection::vec(accumulator(), 16),
        ) {
            let codes = [a, b].concat();
            check(&codes, &acc, Input::E4m3, Input::E5m2, 32);
        }

        #[test]
        fn f16_matches_the_integer_definition(
            codes in prop::collection::vec(finite(Input::F16), 16 * 10),
            acc in prop::collection::vec(accumulator(), 16),
        ) {
            check(&codes, &acc, Input::F16, Input::F16, 16);
        }

        #[test]
        fn bf16_matches_the_integer_definition(
            exps in prop::collection::vec((100u32..150, any::<u32>()), 16 * 10),
            acc in prop::collection::vec(accumulator(), 16),
        ) {
            let codes: Vec<u32> = exps.iter().map(|(e, m)| e << 7 | m & 0x807f).collect();
            check(&codes, &acc, Input::Bf16, Input::Bf16, 16);
        }
    }

    #[test]
    fn infinities_and_nans_win() {
        let dot = |a: u32, b: u32, acc: f32| {
            let (mut av, mut bv) = (vec![0u32; 32], vec![0u32; 32]);
            (av[3], bv[3]) = (a, b);
            let widths = Widths::hopper(Input::E5m2);
            let p = Product {
                a: &av,
                b: &bv,
                k: 32,
                a_type: Input::E5m2,
                b_type: Input::E5m2,
                negate_a: false,
                negate_b: false,
                widths,
            };
            let mut d = vec![acc];
            p.accumulate(&mut d, &mut Scratch::default());
            d[0]
        };
        assert_eq!(dot(0x7c, 0x3c, 0.0), f32::INFINITY);
        assert_eq!(dot(0x7c, 0x00, 0.0).to_bits(), NAN);
        assert_eq!(dot(0xfc, 0x3c, f32::INFINITY).to_bits(), NAN);
        assert_eq!(dot(0x3c, 0x3c, 1.0), 2.0);
    }

    #[test]
    fn many_infinities_are_one() {
        for (input, infinity, one, k) in [
            (Input::E5m2, 0x7c, 0x3c, 32),
            (Input::F16, 0x7c00, 0x3c00, 16),
            (Input::Bf16, 0x7f80, 0x3f80, 16),
        ] {
            for acc in [0.0, 1.0, f32::INFINITY] {
                for a in [infinity, one] {
                    let (a, b) = (vec![a; k], vec![one; k]);
                    let widths = Widths::hopper(input);
                    let p = Product {
                        a: &a,
                        b: &b,
                        k,
                        a_type: input,
                        b_type: input,
                        negate_a: false,
                        negate_b: false,
                        widths,
                    };
                    let mut d = vec![acc];
                    p.accumulate(&mut d, &mut Scratch::default());
                    let want = if a[0] == one { acc + k as f32 } else { f32::INFINITY };
                    assert_eq!(d[0], want, "{input:?} {acc}");
                }
            }
        }
    }
}
