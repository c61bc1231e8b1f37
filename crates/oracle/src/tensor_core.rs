//! A model of tensor cores, after published measurements (MMA-Sim, arXiv 2511.10909, and those of this project on an
//! H200 for FP8): each step of K is one fused sum. Every term is aligned to the largest exponent and cut off at some
//! fractional bits; they are added exactly, and the sum is cut to what the accumulator holds. The largest exponent is no
//! smaller than that of normal FP32 numbers.

use rayon::prelude::*;

use crate::format::{BF16, E2M1, E4M3, E5M2, F16, F32, Float, Parts, TF32, power};
use crate::kernel::Kernel;

/// What an accumulator keeps of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// So many mantissa bits, toward zero.
    TowardZero(i32),
    /// FP16, to nearest even.
    NearestF16,
}

/// How block scales enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// The operands are multiplied before, or have none.
    Before,
    /// Exponents are added to those of every term.
    Exponents,
    /// Sixteen products are added exactly, then multiplied.
    Sixteens,
}

/// One instruction's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arithmetic {
    pub(crate) a: Float,
    pub(crate) b: Float,
    /// Terms of one fused sum.
    pub(crate) step: usize,
    /// Fractional bits behind the largest exponent.
    pub(crate) fraction: i32,
    pub(crate) kept: Kept,
    pub(crate) scaling: Scaling,
}

/// Block scales of an operand, a row of them for each row: as they are, their format, and how many elements share one.
pub(crate) struct Scales<'a> {
    pub(crate) a: &'a [f64],
    pub(crate) b: &'a [f64],
    pub(crate) format: Float,
    pub(crate) group: usize,
}

/// A term: an integer and the exponent that it is aligned by. Its value is `integer * 2^(exponent - mantissa)`.
struct Term {
    integer: i128,
    exponent: i32,
    mantissa: i32,
}

impl Arithmetic {
    /// The arithmetic of the only MMA instruction of a kernel. None where there are several kinds of it, or one that has
    /// no model here.
    pub(crate) fn of(kernel: &Kernel, a: Float, b: Float, f16_accumulator: bool) -> Option<Arithmetic> {
        let mut found: Vec<Arithmetic> = Vec::new();
        for opcode in opcodes(&kernel.ptx) {
            let arithmetic = instruction(opcode, &kernel.target, a, b, f16_accumulator)?;
            if !found.contains(&arithmetic) {
                found.push(arithmetic);
            }
        }
        match found[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// `A[m, k] @ B[n, k]^T` with an accumulator that starts as zero.
    pub(crate) fn matmul(&self, a: &[f64], b: &[f64], scales: &Option<Scales>, k: usize) -> Vec<f64> {
        let parts = |values: &[f64], format: Float| -> Vec<Parts> {
            values.iter().map(|value| format.parts(*value)).collect()
        };
        let (a, b) = (parts(a, self.a), parts(b, self.b));
        let rows: Vec<(usize, &[Parts])> = a.chunks(k).enumerate().collect();
        rows.into_par_iter()
            .flat_map_iter(|(i, row)| {
                b.chunks(k).enumerate().map(move |(j, column)| match (self.scaling, scales) {
                    (Scaling::Sixteens, Some(scales)) => self.sixteens(row, column, scales, i, j),
                    (Scaling::Exponents, Some(scales)) => {
                        let groups = k.div_ceil(scales.group);
                        self.chain(row, column, |at| {
                            let group = at / scales.group;
                            exponent(scales.a[i * groups + group]) + exponent(scales.b[j * groups + group])
                        })
                    }
                    _ => self.chain(row, column, |_| 0),
                })
            })
            .collect()
    }

    /// One output: fused sums one after another. `shift` adds to the exponent of the term at some K.
    fn chain(&self, a: &[Parts], b: &[Parts], shift: impl Fn(usize) -> i32) -> f64 {
        let mantissa = self.a.mantissa + self.b.mantissa;
        let mut sum = 0.0;
        for start in (0..a.len()).step_by(self.step) {
            let exponent = |at: usize| a[at].exponent + b[at].exponent + shift(at);
            let all = start..a.len().min(start + self.step);
            let accumulator = F32.parts(sum);
            let mut largest = accumulator.exponent;
            for at in all.clone() {
                if a[at].significand != 0 && b[at].significand != 0 {
                    largest = largest.max(exponent(at));
                }
            }
            let mut total =
                cut(accumulator.significand, self.fraction - F32.mantissa - largest + accumulator.exponent);
            for at in all {
                let product = a[at].significand * b[at].significand;
                total += cut(product, self.fraction - mantissa - largest + exponent(at));
            }
            sum = self.keep(total as f64 * power(largest - self.fraction));
        }
        sum
    }

    /// One output where sixteen products are added exactly before they are scaled.
    fn sixteens(&self, a: &[Parts], b: &[Parts], scales: &Scales, i: usize, j: usize) -> f64 {
        let groups = a.len().div_ceil(scales.group);
        let mut sum = 0.0;
        for start in (0..a.len()).step_by(self.step) {
            let mut terms: Vec<Term> = (start..a.len().min(start + self.step))
                .step_by(16)
                .map(|at| {
                    let products: i64 = (at..at + 16).map(|at| quarters(a[at], b[at])).sum();
                    let group = at / scales.group;
                    let (x, y) = (scales.a[i * groups + group], scales.b[j * groups + group]);
                    let (x, y) = (scales.format.parts(x), scales.format.parts(y));
                    Term {
                        integer: i128::from(products) * i128::from(x.significand) * i128::from(y.significand),
                        exponent: x.exponent + y.exponent,
                        mantissa: 2 + 2 * scales.format.mantissa,
                    }
                })
                .collect();
            let accumulator = F32.parts(sum);
            terms.push(Term {
                integer: accumulator.significand.into(),
                exponent: accumulator.exponent,
                mantissa: F32.mantissa,
            });
            terms.retain(|term| term.integer != 0);
            let largest = terms.iter().map(|term| term.exponent).fold(F32.least, i32::max);
            let total: i128 = terms
                .iter()
                .map(|t| {
                    let up = self.fraction - t.mantissa - largest + t.exponent;
                    let magnitude = t.integer.abs();
                    let cut = if up >= 0 {
                        magnitude << up
                    } else {
                        magnitude.checked_shr(-up as u32).unwrap_or(0)
                    };
                    cut * t.integer.signum()
                })
                .sum();
            sum = self.keep(total as f64 * power(largest - self.fraction));
        }
        sum
    }

    fn keep(&self, sum: f64) -> f64 {
        match self.kept {
            Kept::TowardZero(bits) => toward_zero(sum, bits),
            Kept::NearestF16 => F16.nearest(sum),
        }
    }
}

/// Scales that are powers of two.
pub(crate) const UE8M0: Float = Float { mantissa: 0, least: -127 };

/// A number with so many mantissa bits, fewer where it is below the normal FP32 numbers, toward zero.
fn toward_zero(value: f64, bits: i32) -> f64 {
    if value.abs() < power(F32.least) {
        let unit = power(F32.least - bits);
        return (value / unit).trunc() * unit;
    }
    f64::from_bits(value.to_bits() & !((1 << (52 - bits)) - 1))
}

/// An integer times a power of two, toward zero.
fn cut(integer: i64, up: i32) -> i64 {
    let magnitude = integer.unsigned_abs();
    let cut = if up >= 0 { magnitude << up } else { magnitude.checked_shr(-up as u32).unwrap_or(0) };
    if integer < 0 { -(cut as i64) } else { cut as i64 }
}

/// A product of two E2M1 numbers, in quarters.
fn quarters(a: Parts, b: Parts) -> i64 {
    (a.significand * b.significand) << (a.exponent + b.exponent)
}

/// The exponent of a power of two.
fn exponent(scale: f64) -> i32 {
    (scale.to_bits() >> 52) as i32 - 1023
}

/// Opcodes of MMA instructions, in order.
pub(crate) fn opcodes(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split(|c: char| c.is_whitespace() || "{};".contains(c)).filter(|word| {
        word.starts_with("mma.sync")
            || word.starts_with("wgmma.mma_async")
            || word.starts_with("tcgen05.mma.")
    })
}

/// The arithmetic of an instruction by its opcode. `a` and `b` are what it multiplies where the opcode does not say.
fn instruction(opcode: &str, target: &str, a: Float, b: Float, f16_accumulator: bool) -> Option<Arithmetic> {
    let words: Vec<&str> = opcode.split('.').collect();
    let f32_kept = if f16_accumulator { Kept::NearestF16 } else { Kept::TowardZero(23) };
    let plain = |step, fraction, kept| Arithmetic { a, b, step, fraction, kept, scaling: Scaling::Before };
    if let Some(kind) = words.iter().find_map(|word| word.strip_prefix("kind::")) {
        let scaling = if opcode.contains("block_scale") { Scaling::Exponents } else { Scaling::Before };
        return Some(match kind {
            "f16" => plain(16, 25, f32_kept),
            "tf32" => plain(8, 25, f32_kept),
            "f8f6f4" | "mxf8f6f4" => Arithmetic { scaling, ..plain(32, 25, f32_kept) },
            "mxf4" | "mxf4nvf4" => Arithmetic { scaling: Scaling::Sixteens, ..plain(64, 35, f32_kept) },
            _ => return None,
        });
    }
    let shape = words.iter().find(|word| word.starts_with('m') && word.contains('k'))?;
    let k: usize = shape.rsplit_once('k')?.1.parse().ok()?;
    // Types are those of D, A, B and, for `mma.sync`, C.
    let types: Vec<&str> =
        words.iter().copied().filter(|word| TYPES.iter().any(|(name, _)| name == word)).collect();
    let format = |name: &str| TYPES.iter().find(|(known, _)| *known == name)?.1;
    let (x, y) = (format(types.get(1)?)?, format(types.get(2)?)?);
    let kept = if types[0] == "f16" { Kept::NearestF16 } else { Kept::TowardZero(23) };
    let fp8 = x == E4M3 || x == E5M2;
    let old = matches!(target, "sm_80" | "sm_86" | "sm_89");
    let (step, fraction, kept) = match (words[0], fp8) {
        ("wgmma", true) => (k, 13, if kept == Kept::NearestF16 { kept } else { Kept::TowardZero(13) }),
        ("wgmma", false) => (k, 25, kept),
        (_, true) if target == "sm_89" => (k / 2, 13, Kept::TowardZero(13)),
        (_, true) if target.starts_with("sm_12") => (k, 25, kept),
        // On Hopper FP8 of `mma.sync` goes through FP16; no kernel of the corpus does that.
        (_, true) => return None,
        (_, false) if old => (k / 2, 24, kept),
        (_, false) => (k, 25, kept),
    };
    Some(Arithmetic { a: x, b: y, step, fraction, kept, scaling: Scaling::Before })
}

/// Types in opcodes, and which float they are.
const TYPES: [(&str, Option<Float>); 9] = [
    ("f32", Some(F32)),
    ("f16", Some(F16)),
    ("bf16", Some(BF16)),
    ("tf32", Some(TF32)),
    ("e4m3", Some(E4M3)),
    ("e5m2", Some(E5M2)),
    ("e2m1", Some(E2M1)),
    ("s32", None),
    ("s8", None),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(arithmetic: Arithmetic, a: &[f64], b: &[f64]) -> f64 {
        arithmetic.matmul(a, b, &None, a.len())[0]
    }

    fn fp8(step: usize, fraction: i32, bits: i32) -> Arithmetic {
        let kept = Kept::TowardZero(bits);
        Arithmetic { a: E4M3, b: E4M3, step, fraction, kept, scaling: Scaling::Before }
    }

    #[test]
    fn terms_far_below_the_largest_are_cut_off_toward_zero() {
        let (a, b) = ([256.0, -0.5, 0.0, 0.0], [1.0, 0.0625, 0.0, 0.0]);
        assert_eq!(sum(fp8(4, 13, 13), &a, &b), 256.0 - 0.03125, "one unit of 2^(8 - 13)");
        assert_eq!(sum(fp8(4, 12, 13), &a, &b), 256.0, "less than one unit of 2^(8 - 12)");
        assert_eq!(sum(fp8(4, 25, 23), &a, &b), 256.0 - 0.03125);
    }

    #[test]
    fn halves_of_k_are_added_one_after_another() {
        // 2^-5 is lost beside 256, and would not be beside 0.
        let (a, b) = ([256.0, -256.0, 0.015625, 0.0], [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(sum(fp8(4, 13, 13), &a, &b), 0.0);
        assert_eq!(sum(fp8(2, 13, 13), &a, &b), 0.015625);
    }

    #[test]
    fn scales_move_the_exponent_or_multiply_sixteen_products() {
        let ones = [1.0; 32];
        let scales = Some(Scales { a: &[4.0], b: &[0.5], format: UE8M0, group: 32 });
        let exponents = Arithmetic { scaling: Scaling::Exponents, ..fp8(32, 25, 23) };
        assert_eq!(exponents.matmul(&ones, &ones, &scales, 32), [64.0]);
        let fours = Arithmetic { a: E2M1, b: E2M1, scaling: Scaling::Sixteens, ..fp8(64, 35, 23) };
        let scales = Some(Scales { a: &[1.5, 1.0], b: &[0.5, 3.0], format: E4M3, group: 16 });
        assert_eq!(fours.matmul(&ones, &ones, &scales, 32), [16.0 * 0.75 + 48.0]);
    }

    #[test]
    fn small_sums_are_cut_off_as_fp32_has_them() {
        let tiny = Some(Scales { a: &[power(-127)], b: &[power(-20)], format: UE8M0, group: 4 });
        let exponents = Arithmetic { scaling: Scaling::Exponents, ..fp8(4, 25, 23) };
        let of = |a: [f64; 4]| exponents.matmul(&a, &[1.0; 4], &tiny, 4);
        assert_eq!(of([0.25, 0.0, 0.0, 0.0]), [power(-149)]);
        assert_eq!(of([0.25, 0.125, 0.0, 0.0]), [power(-149)], "1.5 units");
        assert_eq!(of([0.25, 0.25, 0.25, 0.0625]), [3.0 * power(-149)], "a quarter of a unit is lost");
        assert_eq!(of([0.125, 0.0, 0.0, 0.0]), [0.0]);
    }

    #[test]
    fn opcodes_say_what_is_computed() {
        let of = |opcode, target| instruction(opcode, target, F16, F16, false);
        let ada = of("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "sm_89").unwrap();
        assert_eq!((ada.step, ada.fraction, ada.kept), (16, 13, Kept::TowardZero(13)));
        let ampere = of("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", "sm_80").unwrap();
        assert_eq!((ampere.step, ampere.fraction, ampere.kept), (8, 24, Kept::NearestF16));
        let hopper = of("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16", "sm_90a").unwrap();
        assert_eq!((hopper.step, hopper.fraction, hopper.a), (16, 25, BF16));
        let blackwell = of("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16", "sm_100a").unwrap();
        assert_eq!((blackwell.step, blackwell.scaling), (64, Scaling::Sixteens));
        assert_eq!(of("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "sm_80"), None);
    }
}
