//! GEMM of FP8 and FP4 operands.

use std::ops::Range;

use rayon::prelude::*;

use crate::cast::{Fp8Matrix, decode_e2m1};
use crate::error::{Error, Result};
use crate::parallel::{THREADS, refuse_interrupted};
use crate::tensor::dtype::{DType, Fp8Codes};
use crate::tensor::granularity::BLOCK;

const K_BLOCK: usize = BLOCK as usize;
/// Rows of A and rows of B that are multiplied at once: 16 sums, which stay in registers.
const LANES: usize = 4;
/// Rows of B in one task: decoded, 128 of K of them fit in the first-level cache.
const PANEL: usize = 32;
/// Rows of A in one task.
const ROWS: usize = 128;

/// `C + A·Bᵀ` for A `[M, K]` and B `[N, K]`: `M * N` values, row-major, as is C.
///
/// # Errors
/// [`Error::Shape`] or [`Error::ScaleShape`] if the slices do not hold what the sizes say.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::reference;
///
/// let a = per_token_cast_to_fp8(&[1.0f32, 2.0], 1, 2, ScaleFormat::PowerOfTwo)?;
/// let b = per_block_cast_to_fp8(&[3.0f32, 4.0, 5.0, 6.0], 2, 2, ScaleFormat::PowerOfTwo)?;
/// assert_eq!(reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None)?, [11.0, 17.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt(a: &Fp8Matrix<'_>, b: &Fp8Matrix<'_>, c: Option<&[f32]>) -> Result<Vec<f64>> {
    let rows: Vec<usize> = (0..a.rows).collect();
    let mut product = fp8_gemm_nt_rows(a, b, &rows)?;
    if let Some(c) = c {
        if c.len() != product.len() {
            return Err(Error::Shape {
                argument: "c",
                expected: format!("{} by {} values", a.rows, b.rows),
                found: format!("{} values", c.len()),
            });
        }
        product.iter_mut().zip(c).for_each(|(product, &c)| *product += f64::from(c));
    }
    Ok(product)
}

/// Only some rows of `A·Bᵀ`, in the order given: enough to check a product that is too large to compute.
///
/// # Errors
/// As for [`fp8_gemm_nt`], and if a row is not one of A.
///
/// ```
/// # use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// # use oxigemm::{random, reference};
/// let a = per_token_cast_to_fp8(&random::normals(1, 100 * 256), 100, 256, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, 30 * 256), 30, 256, ScaleFormat::F32)?;
/// let all = reference::fp8_gemm_nt(&a.as_matrix(), &b.as_matrix(), None)?;
/// let some = reference::fp8_gemm_nt_rows(&a.as_matrix(), &b.as_matrix(), &[99, 3])?;
/// assert_eq!(some[..30], all[99 * 30..]);
/// assert_eq!(some[30..], all[3 * 30..4 * 30]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt_rows(a: &Fp8Matrix<'_>, b: &Fp8Matrix<'_>, rows: &[usize]) -> Result<Vec<f64>> {
    a.check("a")?;
    b.check("b")?;
    if b.k != a.k {
        return Err(Error::Shape {
            argument: "b",
            expected: format!("K = {}, as in `a`", a.k),
            found: format!("K = {}", b.k),
        });
    }
    if let Some(row) = rows.iter().find(|&&row| row >= a.rows) {
        return Err(Error::Shape {
            argument: "rows",
            expected: format!("rows of `a`, which has {}", a.rows),
            found: format!("row {row}"),
        });
    }
    let n = b.rows;
    let mut product = vec![0.0; rows.len() * n];
    if n > 0 {
        THREADS.run(|interrupt| {
            let tasks = product.par_chunks_mut(ROWS * n).zip(rows.par_chunks(ROWS));
            tasks.try_for_each(|(product, rows)| -> Result<()> {
                let panel =
                    |panel: usize| refuse_interrupted(interrupt).map(|()| task(a, b, rows, panel * PANEL));
                let panels: Vec<Vec<f64>> =
                    (0..n.div_ceil(PANEL)).into_par_iter().map(panel).collect::<Result<_>>()?;
                for (row, product) in product.chunks_mut(n).enumerate() {
                    for (target, panel) in product.chunks_mut(PANEL).zip(&panels) {
                        target.copy_from_slice(&panel[row * PANEL..][..target.len()]);
                    }
                }
                Ok(())
            })
        })?;
    }
    Ok(product)
}

/// Up to 128 of K of four rows, transposed.
type Strip = [[f64; LANES]; K_BLOCK];

/// The product of some rows of A with one panel of B: `rows.len()` rows of `PANEL` values.
fn task(a: &Fp8Matrix<'_>, b: &Fp8Matrix<'_>, rows: &[usize], first: usize) -> Vec<f64> {
    let mut product = vec![0.0; rows.len() * PANEL];
    let mut a_strip: Strip = [[0.0; LANES]; K_BLOCK];
    let mut b_strips: Vec<Strip> = vec![a_strip; PANEL / LANES];
    let columns: Vec<usize> = (first..b.rows.min(first + PANEL)).collect();
    let length = strip_length(a, b);
    for first in (0..a.k).step_by(length) {
        let part = first..a.k.min(first + length);
        for (strip, columns) in b_strips.iter_mut().zip(columns.chunks(LANES)) {
            b.decode(columns, part.clone(), strip);
        }
        for (rows, product) in rows.chunks(LANES).zip(product.chunks_mut(LANES * PANEL)) {
            a.decode(rows, part.clone(), &mut a_strip);
            for (strip, (columns, lane)) in
                b_strips.iter().zip(columns.chunks(LANES).zip((0..).step_by(LANES)))
            {
                let sums = multiply(&a_strip[..part.len()], &strip[..part.len()]);
                for (i, &row) in rows.iter().enumerate() {
                    let scale_a = f64::from(a.scale(row, first));
                    for (j, &column) in columns.iter().enumerate() {
                        let scale = scale_a * f64::from(b.scale(column, first));
                        product[i * PANEL + lane + j] += sums[i][j] * scale;
                    }
                }
            }
        }
    }
    product
}

/// How many of K are multiplied at once: a divisor of 128, all with the same scales.
fn strip_length(a: &Fp8Matrix<'_>, b: &Fp8Matrix<'_>) -> usize {
    let shared = [a, b].map(|x| if x.k_per_scale >= x.k { K_BLOCK } else { x.k_per_scale });
    shared.into_iter().fold(K_BLOCK, gcd)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn multiply(a: &[[f64; LANES]], b: &[[f64; LANES]]) -> [[f64; LANES]; LANES] {
    let mut sums = [[0.0; LANES]; LANES];
    for (a, b) in a.iter().zip(b) {
        for (sums, a) in sums.iter_mut().zip(a) {
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

impl Fp8Matrix<'_> {
    /// Up to four rows of some of K; what is past the end of the rows is zero.
    fn decode(&self, rows: &[usize], columns: Range<usize>, strip: &mut Strip) {
        let values = self.codes_of_type().map(|codes| &codes.values);
        if rows.len() < LANES {
            strip.fill([0.0; LANES]);
        }
        for (lane, &row) in rows.iter().enumerate() {
            let codes = &self.codes[row * self.pitch..];
            match values {
                Some(values) => {
                    for (values_of_k, &code) in strip.iter_mut().zip(&codes[columns.clone()]) {
                        values_of_k[lane] = f64::from(values[code as usize]);
                    }
                }
                // FP4: the check has seen the type.
                None => {
                    for (values_of_k, k) in strip.iter_mut().zip(columns.clone()) {
                        values_of_k[lane] = f64::from(decode_e2m1(codes[k / 2] >> (k % 2 * 4)));
                    }
                }
            }
        }
    }

    fn scale(&self, row: usize, k: usize) -> f32 {
        let (group, block) = (row / self.rows_per_scale, k / self.k_per_scale);
        self.scales[group * self.scale_strides[0] + block * self.scale_strides[1]]
    }

    fn codes_of_type(&self) -> Option<&'static Fp8Codes> {
        Fp8Codes::of(self.dtype)
    }

    fn check(&self, argument: &'static str) -> Result<()> {
        let per_row = match (self.codes_of_type(), self.dtype) {
            (Some(_), _) => Some(self.k),
            (None, DType::U8) => Some(self.k.div_ceil(2)),
            (None, _) => None,
        };
        let Some(per_row) = per_row else {
            return Err(Error::DType {
                argument,
                expected: format!("{}, {} or {}", DType::E4m3, DType::E5m2, DType::U8),
                found: self.dtype.to_string(),
            });
        };
        let last = |counts: [usize; 2], strides: [usize; 2]| -> Option<usize> {
            let [rows, columns] = counts;
            let row = rows.checked_sub(1)?.checked_mul(strides[0])?;
            row.checked_add(columns.checked_sub(1)?.checked_mul(strides[1])?)
        };
        if self.rows == 0 || self.k == 0 {
            return Ok(());
        }
        if last([self.rows, per_row], [self.pitch, 1]).is_none_or(|last| last >= self.codes.len()) {
            return Err(Error::Shape {
                argument,
                expected: format!("{} rows of {per_row} codes with a pitch of {}", self.rows, self.pitch),
                found: format!("{} codes", self.codes.len()),
            });
        }
        let blocks = |length: usize, size: usize| if size == 0 { 0 } else { length.div_ceil(size) };
        let counts = [blocks(self.rows, self.rows_per_scale), blocks(self.k, self.k_per_scale)];
        if last(counts, self.scale_strides).is_none_or(|last| last >= self.scales.len()) {
            return Err(Error::ScaleShape {
                argument,
                expected: format!("{counts:?} scales with strides {:?}", self.scale_strides),
                found: format!("{} scales", self.scales.len()),
            });
        }
        Ok(())
    }
}
