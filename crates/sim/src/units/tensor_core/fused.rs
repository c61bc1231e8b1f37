//! Blackwell's tensor core arithmetic, in integers: fused sums of 25 fractional bits, and block scales.
//!
//! A term is the product of two significands, not normalized, with the sum of the two exponents; a block scale of
//! UE8M0 adds its exponent. The accumulator is one more term; a zero term has exponent -126. Every term is aligned
//! to the largest exponent and truncated toward zero at 25 fractional bits, the terms are added exactly, and the sum
//! is rounded toward zero to FP32, or to nearest even where the accumulators are f16.
//!
//! FP4 with several scales along K (`mxf4`, `mxf4nvf4`) adds the products in groups of sixteen exactly. A group times
//! the significands of its two scales is one term, with the exponents of the scales; 35 fractional bits are kept.
//!
//! Where rows share one exponent of scales, the sum is taken without it and the accumulator's exponent is lowered
//! instead, so that the inner loop is the same for all kinds. Eight columns run side by side in arrays of fixed size,
//! which compilers vectorize.

mod split;
#[cfg(test)]
mod tests;

use super::{COLUMNS, Input, NAN, encode_toward_zero};
use crate::arith::minifloat::{self, Round, power};
use multiversion::multiversion;
use split::{ScaleRow, Split};

/// Fractional bits of an aligned term.
const TERM: i32 = 25;
/// Fractional bits of an aligned term of FP4 with several scales.
const GROUP_TERM: i32 = 35;
/// Products of FP4 that are added before they are scaled.
const GROUP: usize = 16;
/// Terms that an `i32` can add: each is below 2^27.
const CHUNK: usize = 16;
/// Exponent of a zero term, and of the smallest normal FP32 number.
const LEAST: i32 = -126;

/// The type of the accumulators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    F32,
    /// Sums are rounded to nearest even.
    F16,
}

/// The type of block scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleType {
    /// An exponent alone; `0xff` is NaN.
    Ue8m0,
    /// E4M3 whose sign is ignored.
    Ue4m3,
}

/// Block scales of both operands: codes, row-major, one for each `block` elements of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scales<'a> {
    pub(crate) ty: ScaleType,
    pub(crate) block: usize,
    pub(crate) a: &'a [u8],
    pub(crate) b: &'a [u8],
}

/// One fused sum for each output: `d[m, n] = d[m, n] * 2^-input_shift + sum over k of a[m, k] * b[n, k]`.
///
/// Scales with a block of `k` elements add exponents (`mxf8f6f4`); smaller blocks are those of FP4, of which both
/// operands then are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fused<'a> {
    /// Codes of A, row-major `m x k`.
    pub(crate) a: &'a [u32],
    /// Codes of B, row-major `n x k`.
    pub(crate) b: &'a [u32],
    pub(crate) k: usize,
    pub(crate) a_type: Input,
    pub(crate) b_type: Input,
    pub(crate) negate_a: bool,
    pub(crate) negate_b: bool,
    pub(crate) output: Output,
    /// The accumulator is divided by this power of two.
    pub(crate) input_shift: u32,
    pub(crate) scales: Option<Scales<'a>>,
}

/// Operands split into significands and exponents, reused between instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct FusedScratch {
    a: Split,
    b: Split,
}

impl Fused<'_> {
    /// Adds the product to `d` (`m x n`, row-major; f16 accumulators by their values). Rows are shared between
    /// threads where there is enough work; each output is computed by one thread alone.
    pub(crate) fn accumulate(&self, d: &mut [f32], scratch: &mut FusedScratch) {
        let n = self.b.len() / self.k;
        scratch.a.fill(self.a, self.k, self.a_type, self.negate_a, false);
        scratch.b.fill(self.b, self.k, self.b_type, self.negate_b, true);
        if let Some(scales) = self.scales {
            scratch.a.scale(scales.ty, scales.a, self.k / scales.block);
            scratch.b.scale(scales.ty, scales.b, self.k / scales.block);
            if scales.block < self.k {
                scratch.a.whole();
                scratch.b.whole();
            }
        }
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

    /// Bits that turn a product of significands into one of 25 fractional bits.
    fn left(&self) -> u32 {
        TERM as u32 - self.a_type.format().mantissa - self.b_type.format().mantissa
    }

    /// The exponent of an accumulator: of a subnormal one the least of its type.
    fn accumulator(&self, x: f32) -> (i64, i32) {
        if x == 0.0 {
            return (0, LEAST);
        }
        let bits = x.to_bits();
        let field = (bits >> 23 & 0xff) as i32;
        let fraction = i64::from(bits & 0x7f_ffff);
        let mut significand = if field == 0 { fraction } else { fraction | 1 << 23 };
        let mut exponent = field.max(1) - 127;
        // An f16 number has 10 fractional bits: a subnormal one moved to the exponent of its type stays exact.
        let least = -14;
        if self.output == Output::F16 && exponent < least {
            significand >>= least - exponent;
            exponent = least;
        }
        let signed = if x.is_sign_negative() { -significand } else { significand };
        (signed, exponent - self.input_shift as i32)
    }

    /// The sum `total * 2^unit`, rounded to the type of the accumulators.
    #[inline(always)]
    fn round(&self, total: i64, unit: i32) -> f32 {
        if total == 0 {
            return 0.0;
        }
        // Below 2^53: exact.
        let exact = total as f64;
        if self.output == Output::F16 {
            let code = minifloat::F16.encode(exact * power(unit), Round::Nearest, false);
            return minifloat::F16.decode(code) as f32;
        }
        let drop = 52 - 23;
        let kept = f64::from_bits(exact.to_bits() >> drop << drop) * power(unit);
        if kept.abs() < f64::from(f32::MIN_POSITIVE) { encode_toward_zero(kept) } else { kept as f32 }
    }

    #[inline(always)]
    fn row(&self, a: &Split, b: &Split, m: usize, d: &mut [f32]) {
        let k = self.k;
        let (av, ae) = (&a.significand[m * k..][..k], &a.exponent[m * k..][..k]);
        let grouped = self.scales.is_some_and(|s| s.block < k);
        for (block, out) in d.chunks_mut(COLUMNS).enumerate() {
            let bv = &b.significand[block * k * COLUMNS..][..k * COLUMNS];
            let first = block * COLUMNS;
            let mut acc = [0f32; COLUMNS];
            acc[..out.len()].copy_from_slice(out);
            let (mut terms, mut exponents) = ([0i64; COLUMNS], [0i32; COLUMNS]);
            for j in 0..COLUMNS {
                (terms[j], exponents[j]) = self.accumulator(acc[j]);
            }
            let result = if grouped {
                self.grouped(av, bv, &a.scales[m], &b.scales[first..], terms, exponents)
            } else {
                let be = &b.exponent[block * k * COLUMNS..][..k * COLUMNS];
                self.plain((av, ae), (bv, be), a.scales.get(m), b.scales.get(first..), terms, exponents)
            };
            out.copy_from_slice(&result[..out.len()]);
            if a.special[m] || b.any_special || acc.iter().any(|x| !x.is_finite()) {
                for (j, x) in out.iter_mut().enumerate() {
                    if a.special[m] || b.special[first + j] || !acc[j].is_finite() {
                        *x = self.special_sum(a, b, m, first + j, acc[j]);
                    }
                }
            }
        }
    }

    /// Eight columns in which all products of a column share one exponent of scales.
    #[inline(always)]
    fn plain(
        &self,
        (av, ae): (&[i32], &[i32]),
        (bv, be): (&[i32], &[i32]),
        scale_a: Option<&ScaleRow>,
        scale_b: Option<&[ScaleRow]>,
        terms: [i64; COLUMNS],
        exponents: [i32; COLUMNS],
    ) -> [f32; COLUMNS] {
        let mut scale = [0i32; COLUMNS];
        if let (Some(a), Some(b)) = (scale_a, scale_b) {
            for (s, b) in scale.iter_mut().zip(b) {
                *s = a.exponent[0] + b.exponent[0];
            }
        }
        // Without the scales: the accumulator and the least exponent are lowered by them.
        let mut top = [0i32; COLUMNS];
        for j in 0..COLUMNS {
            top[j] = exponents[j].max(LEAST) - scale[j];
        }
        for (a, row) in ae.iter().zip(be.chunks_exact(COLUMNS)) {
            for j in 0..COLUMNS {
                top[j] = top[j].max(a.wrapping_add(row[j]));
            }
        }
        let left = self.left();
        let mut total = [0i64; COLUMNS];
        let wide = av.chunks(CHUNK).zip(ae.chunks(CHUNK));
        let columns = bv.chunks(CHUNK * COLUMNS).zip(be.chunks(CHUNK * COLUMNS));
        for ((av, ae), (bv, be)) in wide.zip(columns) {
            let sum = aligned_sum(av, ae, bv, be, &top, left);
            for j in 0..COLUMNS {
                total[j] += i64::from(sum[j]);
            }
        }
        std::array::from_fn(|j| {
            let largest = top[j] + scale[j];
            // 23 fractional bits become 25.
            let term = shift_toward_zero(terms[j] << (TERM - 23), largest - exponents[j]);
            self.round(total[j] + term, largest - TERM)
        })
    }

    /// Eight columns of FP4 in groups of sixteen, each with scales of its own.
    #[inline(always)]
    fn grouped(
        &self,
        av: &[i32],
        bv: &[i32],
        scale_a: &ScaleRow,
        scale_b: &[ScaleRow],
        terms: [i64; COLUMNS],
        exponents: [i32; COLUMNS],
    ) -> [f32; COLUMNS] {
        let mut sums = [[0i32; COLUMNS]; 8];
        let groups = self.k / GROUP;
        for (sum, (av, bv)) in sums.iter_mut().zip(av.chunks(GROUP).zip(bv.chunks(GROUP * COLUMNS))) {
            for (a, row) in av.iter().zip(bv.chunks_exact(COLUMNS)) {
                for j in 0..COLUMNS {
                    sum[j] = sum[j].wrapping_add(a.wrapping_mul(row[j]));
                }
            }
        }
        // A product of two E2M1 numbers in halves has two fractional bits, one of two UE4M3 significands six.
        let ty = self.scales.map_or(ScaleType::Ue8m0, |s| s.ty);
        let left = GROUP_TERM - 2 - 2 * ty.mantissa() as i32;
        let per_block = self.scales.map_or(1, |s| s.block / GROUP).max(1);
        std::array::from_fn(|j| {
            let Some(b) = scale_b.get(j) else { return 0.0 };
            let mut parts = [(0i64, LEAST); 8];
            let mut top = exponents[j].max(LEAST);
            for (g, part) in parts.iter_mut().enumerate().take(groups) {
                let at = g / per_block;
                let significand =
                    i64::from(sums[g][j]) * i64::from(scale_a.significand[at] * b.significand[at]);
                if significand != 0 {
                    *part = (significand, scale_a.exponent[at] + b.exponent[at]);
                    top = top.max(part.1);
                }
            }
            let mut total = shift_toward_zero(terms[j] << (GROUP_TERM - 23), top - exponents[j]);
            for (significand, exponent) in &parts[..groups] {
                total += shift_toward_zero(significand << left, top - exponent);
            }
            self.round(total, top - GROUP_TERM)
        })
    }

    /// A sum in which an infinity or a NaN takes part.
    #[cold]
    fn special_sum(&self, a: &Split, b: &Split, m: usize, n: usize, acc: f32) -> f32 {
        let k = self.k;
        let nan = |rows: &[ScaleRow], i: usize| rows.get(i).is_some_and(|r| r.nan);
        let signed = |x: f64, negate: bool| if negate { -x } else { x };
        let sum = self.a[m * k..][..k].iter().zip(&self.b[n * k..][..k]).fold(f64::from(acc), |s, (x, y)| {
            s + signed(self.a_type.value(*x), self.negate_a) * signed(self.b_type.value(*y), self.negate_b)
        });
        if sum.is_nan() || nan(&a.scales, m) || nan(&b.scales, n) { f32::from_bits(NAN) } else { sum as f32 }
    }
}

/// The terms of eight columns, aligned to `top` and added. There are at most [`CHUNK`] of them.
#[inline(always)]
fn aligned_sum(
    av: &[i32],
    ae: &[i32],
    bv: &[i32],
    be: &[i32],
    top: &[i32; COLUMNS],
    left: u32,
) -> [i32; COLUMNS] {
    let mut sum = [0i32; COLUMNS];
    let a = av.iter().zip(ae);
    for ((a, ea), (row, exponents)) in a.zip(bv.chunks_exact(COLUMNS).zip(be.chunks_exact(COLUMNS))) {
        let a = a << left;
        for j in 0..COLUMNS {
            // Nothing wraps; what is checked for it is not vectorized.
            let product = a.wrapping_mul(row[j]);
            let shift = top[j].wrapping_sub(ea.wrapping_add(exponents[j])).min(31) as u32;
            let sign = product >> 31;
            let magnitude = product.unsigned_abs().wrapping_shr(shift) as i32;
            sum[j] = sum[j].wrapping_add((magnitude ^ sign).wrapping_sub(sign));
        }
    }
    sum
}

fn shift_toward_zero(x: i64, by: i32) -> i64 {
    let magnitude = x.unsigned_abs().checked_shr(by as u32).unwrap_or(0) as i64;
    if x < 0 { -magnitude } else { magnitude }
}

/// Adds rows from `first` on; there is the same code for wider vectors.
#[multiversion(targets("x86_64+avx2"))]
fn add_rows<'a>(fused: &Fused<'a>, a: &Split, b: &Split, first: usize, d: &mut [f32], n: usize) {
    for (i, row) in d.chunks_mut(n).enumerate() {
        fused.row(a, b, first + i, row);
    }
}
