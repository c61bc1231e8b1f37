//! Judgement of a GEMM: whether a result is right.
//!
//! Two references: the exact product of the quantized operands, in `f64`, tells whether the kernel computes what it
//! should; the product of the operands before they were quantized tells what a user gets.
//!
//! Against the exact product `calc_diff` must be below [`DIFF_LIMIT`], and every single element within
//! `|error| <= rounding * |exact| + part * sqrt(k)`. The first term is the rounding to the type of D; the second
//! allows for the 13 bits that the tensor core keeps of a sum of FP8 products (a part of 0.03), and for those that
//! FP32 accumulators are truncated to (a part of 0.0005, or of 0.00001 where K is small). The operands are standard
//! normals, so an element has a deviation of `sqrt(k)`, and a block of K that is left out or added twice is far
//! outside.

use oxigemm::metrics::calc_diff;
use oxigemm::{DType, random, reference};
use rayon::prelude::*;
use serde::Serialize;

use crate::Failure;
use crate::case::{AddendKind, GemmCase};
use crate::data::{Fp8Pair, GroupData, TENSOR_SCALES};

/// The largest distance from the exact product.
pub const DIFF_LIMIT: f64 = 1e-5;
/// The largest distance from the product before quantization. The peer's tests take the same.
pub const UNQUANTIZED_LIMIT: f64 = 1e-3;
/// In fewer elements `calc_diff` says little: a single one may be near zero by chance.
const FEW: usize = 4096;

impl GemmCase {
    /// The largest distance from the product before quantization: a mantissa of e5m2 has a bit less, which is four
    /// times the distance, and one of e2m1 two.
    pub fn unquantized_limit(&self) -> f64 {
        let of_fp4 = self.types.fp4.iter().filter(|fp4| **fp4).count() as f64;
        let of_fp8 = if self.e5m2.is_some() { 4.0 } else { 1.0 };
        (of_fp8 + 16.0 * of_fp4) * UNQUANTIZED_LIMIT
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// `calc_diff` from the exact product of the quantized operands.
    pub diff: f64,
    /// `calc_diff` from the product of the operands before they were quantized; that above where they are not.
    pub diff_unquantized: f64,
    /// The largest error of an element, in parts of what is allowed.
    pub worst_element: f64,
    /// Rows that were compared.
    pub rows: usize,
    /// Whether all of that is within its limit.
    pub right: bool,
}

impl Verdict {
    /// Of no rows.
    pub const NOTHING: Verdict =
        Verdict { diff: 0.0, diff_unquantized: 0.0, worst_element: 0.0, rows: 0, right: true };

    /// The worse of both in every respect, for the rows of both.
    pub fn worse(&self, other: &Verdict) -> Verdict {
        let worse = |a: f64, b: f64| worst([a, b]);
        Verdict {
            diff: worse(self.diff, other.diff),
            diff_unquantized: worse(self.diff_unquantized, other.diff_unquantized),
            worst_element: worse(self.worst_element, other.worst_element),
            rows: self.rows + other.rows,
            right: self.right && other.right,
        }
    }
}

/// The largest of these, from 0 on. NaN is worse than anything.
pub(crate) fn worst(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors.into_iter().fold(0.0, |worst, error| if error > worst || error.is_nan() { error } else { worst })
}

/// How much to compare, and how closely.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// At most this many multiplications; rows are left out to stay within.
    pub multiplications: f64,
    /// Whether to compare with the unquantized product too.
    pub unquantized: bool,
    /// Whether to allow no more than small K in the simulator need: less than a large K does.
    pub strict: bool,
}

impl Effort {
    /// For a check among many.
    pub const QUICK: Effort = Effort { multiplications: 4e8, unquantized: false, strict: false };
    /// For a case of the benchmark.
    pub const BENCH: Effort = Effort { multiplications: 2e9, unquantized: true, strict: false };
    /// For one of many kernels that compute the same.
    pub const SWEEP: Effort = Effort { multiplications: 1e8, unquantized: false, strict: false };
    /// For a check on its own.
    pub const THOROUGH: Effort = Effort { multiplications: 4e9, unquantized: true, strict: false };
    /// For tests: all of a small case.
    pub const STRICT: Effort = Effort { multiplications: f64::INFINITY, unquantized: false, strict: true };
}

/// Compares the rows of one GEMM with the references.
pub(crate) fn judge_gemm(
    case: &GemmCase,
    data: &GroupData,
    d: &[f32],
    effort: Effort,
) -> Result<Verdict, Failure> {
    let [m, n, k] = data.dims;
    let rows = sample(m, effort.multiplications / (n * k).max(1) as f64, case.seed);
    let pick = |values: &[f32]| -> Vec<f32> {
        rows.iter().flat_map(|&row| values[row * n..(row + 1) * n].iter().copied()).collect()
    };
    let found = pick(d);
    let mut exact = match &data.fp8 {
        Some(Fp8Pair { a, b }) => reference::fp8_gemm_nt_rows(&a.as_matrix(), &b.as_matrix(), &rows)?,
        None if case.types.ab == DType::F32 => {
            let read =
                |x: &[f32]| -> Vec<f32> { x.iter().map(|x| reference::truncated_to_tf32(*x)).collect() };
            reference::gemm_nt_rows(&read(&data.a_values), &read(&data.b_values), data.dims, &rows)?
        }
        None => reference::gemm_nt_rows(&data.a_values, &data.b_values, data.dims, &rows)?,
    };
    if case.types.is_nvfp4() {
        let [a, b] = TENSOR_SCALES;
        exact.iter_mut().for_each(|x| *x *= f64::from(a * b));
    }
    let addend = data.c.as_deref().filter(|_| case.addend != AddendKind::None).map(pick);
    add(&mut exact, addend.as_deref());
    let diff = calc_diff(&found, &exact);
    let allowed = Allowed::new(case, k, effort.strict);
    let off = |(i, (&found, &exact)): (usize, (&f32, &f64))| {
        let error = (f64::from(found) - exact).abs();
        let added = addend.as_ref().map_or(0.0, |c| f64::from(c[i]));
        // Where nothing is multiplied, nothing is allowed either.
        if error == 0.0 { 0.0 } else { error / allowed.error(exact, added) }
    };
    let worst_element = worst(found.iter().zip(&exact).enumerate().map(off));
    let diff_unquantized = if data.fp8.is_none() {
        diff
    } else if effort.unquantized {
        let mut product = unquantized_rows(&data.a_values, &data.b_values, &rows, n, k);
        add(&mut product, addend.as_deref());
        calc_diff(&found, &product)
    } else {
        0.0
    };
    let enough = found.len() >= FEW;
    let within = |diff: f64, limit: f64| if enough { diff < limit } else { !diff.is_nan() };
    let right = within(diff, DIFF_LIMIT)
        && within(diff_unquantized, case.unquantized_limit())
        && worst_element <= 1.0;
    Ok(Verdict { diff, diff_unquantized, worst_element, rows: rows.len(), right })
}

/// The error that an element may have.
struct Allowed {
    /// In parts of the element.
    rounding: f64,
    /// In parts of the element and of what was added to it.
    truncation: f64,
    /// Whatever the element.
    deviation: f64,
}

impl Allowed {
    fn new(case: &GemmCase, k: usize, strict: bool) -> Allowed {
        let (fp8, deviation) = (case.types.has_scales(), (k as f64).sqrt());
        let rounding = match case.d_type {
            DType::F32 if strict && !fp8 => 0.0,
            DType::F32 => f64::from(f32::EPSILON) * 8.0,
            DType::F16 => 2f64.powi(-11),
            _ => 2f64.powi(-8),
        };
        match (fp8, strict) {
            (true, _) => Allowed { rounding, truncation: 0.0, deviation: 0.03 * deviation },
            (false, false) => Allowed { rounding, truncation: 0.0, deviation: 0.0005 * deviation },
            (false, true) => {
                let deviation = 1e-5 * deviation + 1e-3 * rounding;
                Allowed { rounding, truncation: 1e-5, deviation }
            }
        }
    }

    fn error(&self, exact: f64, added: f64) -> f64 {
        self.rounding * exact.abs() + self.truncation * (exact.abs() + added.abs()) + self.deviation
    }
}

fn add(product: &mut [f64], addend: Option<&[f32]>) {
    if let Some(addend) = addend {
        product.iter_mut().zip(addend).for_each(|(x, &c)| *x += f64::from(c));
    }
}

/// Some rows, or all: the first, the last, and others by the seed.
fn sample(m: usize, affordable: f64, seed: u64) -> Vec<usize> {
    let count = (affordable as usize).max(4);
    if count >= m {
        return (0..m).collect();
    }
    let mut rows: Vec<usize> =
        (0..count as u64 - 2).map(|i| (random::bits(seed ^ 0x5a5a, i) % m as u64) as usize).collect();
    rows.extend([0, m - 1]);
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Rows of the product before quantization. Sums of 128 are made in `f32`, and those added in `f64`.
fn unquantized_rows(a: &[f32], b: &[f32], rows: &[usize], n: usize, k: usize) -> Vec<f64> {
    if n == 0 || k == 0 {
        return vec![0.0; rows.len() * n];
    }
    let mut product = vec![0.0; rows.len() * n];
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        let blocks = x.chunks(128).zip(y.chunks(128));
        blocks.map(|(x, y)| f64::from(lanes_dot(x, y))).sum()
    };
    product.par_chunks_mut(n).zip(rows).for_each(|(product, &row)| {
        let a = &a[row * k..(row + 1) * k];
        product.par_iter_mut().zip(b.par_chunks(k)).with_min_len(64).for_each(|(d, b)| *d = dot(a, b));
    });
    product
}

/// Independent sums, so that the processor can work on several at a time.
fn lanes_dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    for (x, y) in x.chunks(16).zip(y.chunks(16)) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += x * y;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm::{Device, GemmOptions};

    #[test]
    fn the_reference_is_right_and_one_wrong_element_is_not() {
        for (addend, d_type) in [(AddendKind::None, DType::Bf16), (AddendKind::Other, DType::F32)] {
            let case = GemmCase { addend, d_type, ..GemmCase::fp8(33, 130, 300) };
            let mut gemm = case.on(&Device::cpu()).unwrap();
            gemm.run(&GemmOptions::default()).unwrap();
            let good = gemm.judge(Effort::THOROUGH).unwrap();
            assert!(good.right, "{good:?}");
            assert!((1e-4..1e-3).contains(&good.diff_unquantized), "{good:?}");
            let mut d = gemm.result(0).unwrap();
            let mut judge = |change: f32| {
                d[777] += change;
                judge_gemm(&case, &gemm.data.groups[0], &d, Effort::QUICK).unwrap()
            };
            let bad = judge(20.0);
            assert!(!bad.right && bad.worst_element > 1.0, "{bad:?}");
            assert!(!judge(f32::NAN).right);
        }
    }

    #[test]
    fn a_sample_has_both_ends_and_no_row_twice() {
        assert_eq!(sample(3, 100.0, 1), [0, 1, 2]);
        let rows = sample(10_000, 50.0, 1);
        assert!(rows.len() > 40 && rows.len() <= 50);
        assert_eq!((rows[0], rows[rows.len() - 1]), (0, 9_999));
        assert!(rows.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
