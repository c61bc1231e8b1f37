//! GEMM of 16-bit operands.
//!
//! A product of two BF16 or FP16 numbers has at most 22 bits of significand and is exact in `f64`; only the additions
//! round, 2⁻⁵³ each.

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::parallel::{THREADS, refuse_interrupted};

/// `C + A·Bᵀ` for A `[M, K]` and B `[N, K]`, all row-major and without gaps: `M * N` values.
///
/// # Errors
/// [`Error::Shape`] if the slices do not hold what the sizes say.
///
/// ```
/// use oxigemm::reference;
///
/// let product = reference::gemm_nt(&[1.0, 2.0], &[3.0, 4.0, 5.0, 6.0], [1, 2, 2], Some(&[0.5, 0.5]))?;
/// assert_eq!(product, [11.5, 17.5]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn gemm_nt(a: &[f32], b: &[f32], [m, n, k]: [usize; 3], c: Option<&[f32]>) -> Result<Vec<f64>> {
    let rows: Vec<usize> = (0..m).collect();
    let mut product = gemm_nt_rows(a, b, [m, n, k], &rows)?;
    if let Some(c) = c {
        expect_len("c", c, [m, n])?;
        product.iter_mut().zip(c).for_each(|(product, &c)| *product += f64::from(c));
    }
    Ok(product)
}

/// Only some rows of `A·Bᵀ`, in the order given: enough to check a product that is too large to compute.
///
/// # Errors
/// As for [`gemm_nt`], and if a row is not one of A.
pub fn gemm_nt_rows(a: &[f32], b: &[f32], [m, n, k]: [usize; 3], rows: &[usize]) -> Result<Vec<f64>> {
    expect_len("a", a, [m, k])?;
    expect_len("b", b, [n, k])?;
    if let Some(row) = rows.iter().find(|&&row| row >= m) {
        return Err(Error::Shape {
            argument: "rows",
            expected: format!("rows of `a`, which has {m}"),
            found: format!("row {row}"),
        });
    }
    let mut product = vec![0.0; rows.len() * n];
    if n > 0 && k > 0 {
        // A row of B is read once for some rows of A.
        THREADS.run(|interrupt| -> Result<()> {
            for (product, rows) in product.chunks_mut(ROWS * n).zip(rows.chunks(ROWS)) {
                let column = |b: &[f32]| {
                    refuse_interrupted(interrupt)?;
                    Ok(rows.iter().map(|&row| dot(&a[row * k..][..k], b)).collect())
                };
                let columns: Vec<Vec<f64>> =
                    b.par_chunks_exact(k).with_min_len(16).map(column).collect::<Result<_>>()?;
                for (column, sums) in columns.iter().enumerate() {
                    sums.iter().enumerate().for_each(|(i, sum)| product[i * n + column] = *sum);
                }
            }
            Ok(())
        })?;
    }
    Ok(product)
}

/// Rows of A that are multiplied at a time: they stay in the cache.
const ROWS: usize = 16;

/// Eight sums at a time, which the compiler keeps in vectors.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    const LANES: usize = 8;
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail = a_chunks.remainder().iter().zip(b_chunks.remainder());
    let tail: f64 = tail.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    let mut sums = [0.0f64; LANES];
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    sums.iter().sum::<f64>() + tail
}

fn expect_len(argument: &'static str, values: &[f32], [rows, columns]: [usize; 2]) -> Result<()> {
    if rows.checked_mul(columns) == Some(values.len()) {
        return Ok(());
    }
    Err(Error::Shape {
        argument,
        expected: format!("{rows} by {columns} values"),
        found: format!("{} values", values.len()),
    })
}

/// FP32 as the tensor core reads it where it multiplies TF32: without its lower 13 bits.
#[must_use]
pub fn truncated_to_tf32(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & !0x1fff)
}
