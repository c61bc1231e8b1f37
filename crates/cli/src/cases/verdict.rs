//! Whether a result is right.
//!
//! Two references: the exact product of the quantized operands, in `f64`, tells whether the kernel computes what it
//! should; the product of the operands before they were quantized tells what a user gets.
//!
//! Against the exact product `calc_diff` must be below [`DIFF_LIMIT`], and every single element within
//! `|error| <= rounding * |exact| + part * sqrt(k)`. The first is the rounding to the type of D; the second
//! allows for the 13 bits that the tensor core keeps of a sum of FP8 products (a part of 0.03), and for those that
//! FP32 sums are truncated to (a part of 0.0005). The operands are standard normals, so an element
//! has a deviation of `sqrt(k)`, and a block of K that is left out or added twice is far outside.

use oxigemm::metrics::calc_diff;
use oxigemm::{DType, reference};
use rayon::prelude::*;
use serde::Serialize;

use crate::problem::{Fp8Pair, Host, Spec};
use crate::{Failure, Op};

/// The largest distance from the exact product.
pub const DIFF_LIMIT: f64 = 1e-5;
/// The largest distance from the product before quantization. The peer's tests take the same.
pub const UNQUANTIZED_LIMIT: f64 = 1e-3;
/// That of a problem: a mantissa of e5m2 has a bit less, which is four times the distance.
pub fn unquantized_limit(spec: &Spec) -> f64 {
    if spec.e5m2.is_some() { 4.0 * UNQUANTIZED_LIMIT } else { UNQUANTIZED_LIMIT }
}

/// The part of an element's deviation by which it may be off.
fn element_limit(op: Op) -> f64 {
    match op {
        Op::Bf16 | Op::Fp16 => 0.0005,
        _ => 0.03,
    }
}

/// In fewer elements `calc_diff` says little: a single one may be near zero by chance.
const FEW: usize = 4096;

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
    /// The worse of both in every respect, for the rows of both.
    pub fn worse(&self, other: &Verdict) -> Verdict {
        // NaN is worse than anything.
        let worse = |a: f64, b: f64| if a > b || a.is_nan() { a } else { b };
        Verdict {
            diff: worse(self.diff, other.diff),
            diff_unquantized: worse(self.diff_unquantized, other.diff_unquantized),
            worst_element: worse(self.worst_element, other.worst_element),
            rows: self.rows + other.rows,
            right: self.right && other.right,
        }
    }
}

/// How much to compare.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// At most this many multiplications; rows are left out to stay within.
    pub multiplications: f64,
    /// Whether to compare with the unquantized product too.
    pub unquantized: bool,
}

impl Effort {
    /// For a check among many.
    pub const QUICK: Effort = Effort { multiplications: 4e8, unquantized: false };
    /// For a case of the benchmark.
    pub const BENCH: Effort = Effort { multiplications: 2e9, unquantized: true };
    /// For one of many kernels that compute the same.
    pub const SWEEP: Effort = Effort { multiplications: 1e8, unquantized: false };
    /// For a check on its own.
    pub const THOROUGH: Effort = Effort { multiplications: 4e9, unquantized: true };
}

/// Compares a row-major D with the references.
pub fn judge(host: &Host, d: &[f32], effort: Effort) -> Result<Verdict, Failure> {
    let spec = &host.spec;
    let (n, k) = (spec.n, spec.k);
    let rows = sample(spec.m, effort.multiplications / (n * k).max(1) as f64, spec.seed);
    let pick = |values: &[f32]| -> Vec<f32> {
        rows.iter().flat_map(|&row| values[row * n..(row + 1) * n].iter().copied()).collect()
    };
    let found = pick(d);
    let mut exact = match &host.fp8 {
        Some(Fp8Pair { a, b }) => reference::fp8_gemm_nt_rows(&a.as_matrix(), &b.as_matrix(), &rows)?,
        None => reference::gemm_nt_rows(&host.a_values, &host.b_values, [spec.m, n, k], &rows)?,
    };
    let addend = host.c.as_deref().map(pick);
    add(&mut exact, addend.as_deref());
    let diff = calc_diff(&found, &exact);
    let rounding = match spec.d_type {
        DType::F32 => f64::from(f32::EPSILON) * 8.0,
        DType::F16 => 2f64.powi(-11),
        _ => 2f64.powi(-8),
    };
    let deviation = (k as f64).sqrt() * element_limit(spec.op);
    let off = |found: f32, exact: f64| {
        let error = (f64::from(found) - exact).abs();
        // Where nothing is multiplied, nothing is allowed either.
        if error == 0.0 { 0.0 } else { error / (rounding * exact.abs() + deviation) }
    };
    // NaN is worse than anything.
    let worse = |worst: f64, error: f64| if error > worst || error.is_nan() { error } else { worst };
    let worst_element =
        found.iter().zip(&exact).fold(0.0, |worst, (&found, &exact)| worse(worst, off(found, exact)));
    let diff_unquantized = if host.fp8.is_none() {
        diff
    } else if effort.unquantized {
        let mut product = unquantized_rows(&host.a_values, &host.b_values, &rows, n, k);
        add(&mut product, addend.as_deref());
        calc_diff(&found, &product)
    } else {
        0.0
    };
    let enough = found.len() >= FEW;
    let within = |diff: f64, limit: f64| if enough { diff < limit } else { !diff.is_nan() };
    let right =
        within(diff, DIFF_LIMIT) && within(diff_unquantized, unquantized_limit(spec)) && worst_element <= 1.0;
    Ok(Verdict { diff, diff_unquantized, worst_element, rows: rows.len(), right })
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
    let mut rows: Vec<usize> = (0..count as u64 - 2)
        .map(|i| (oxigemm::random::bits(seed ^ 0x5a5a, i) % m as u64) as usize)
        .collect();
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
    use crate::problem::AddendKind;
    use oxigemm::{Device, GemmOptions};

    fn result(spec: Spec) -> (Host, Vec<f32>) {
        let host = Host::draw(spec).unwrap();
        let mut operands = host.upload(&Device::cpu()).unwrap();
        operands.run(&GemmOptions::default()).unwrap();
        let d = operands.result().unwrap();
        (host, d)
    }

    #[test]
    fn the_reference_is_right_and_one_wrong_element_is_not() {
        for (addend, d_type) in [(AddendKind::None, DType::Bf16), (AddendKind::Other, DType::F32)] {
            let (host, mut d) = result(Spec { addend, d_type, ..Spec::new(33, 130, 300) });
            let good = judge(&host, &d, Effort::THOROUGH).unwrap();
            assert!(good.right, "{good:?}");
            assert!((1e-4..1e-3).contains(&good.diff_unquantized), "{good:?}");
            d[777] += 20.0;
            let bad = judge(&host, &d, Effort::QUICK).unwrap();
            assert!(!bad.right && bad.worst_element > 1.0, "{bad:?}");
            d[777] = f32::NAN;
            assert!(!judge(&host, &d, Effort::QUICK).unwrap().right);
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
