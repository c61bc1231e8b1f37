//! Products of 16-bit operands.
//!
//! A product of two BF16 or FP16 numbers has at most 22 bits of significand and is exact in `f64`; only the additions
//! round, 2⁻⁵³ each.

use rayon::prelude::*;

use crate::check::{Checked, GemmLayout, HalfGemm};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

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
        for (product, rows) in product.chunks_mut(ROWS * n).zip(rows.chunks(ROWS)) {
            let columns: Vec<Vec<f64>> = b
                .par_chunks_exact(k)
                .with_min_len(16)
                .map(|b| rows.iter().map(|&row| dot(&a[row * k..][..k], b)).collect())
                .collect();
            for (column, sums) in columns.iter().enumerate() {
                sums.iter().enumerate().for_each(|(i, sum)| product[i * n + column] = *sum);
            }
        }
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

/// [`half_gemm`](crate::half_gemm) on tensors of any device: the arguments pass the same checks as on a GPU, and D
/// takes the exact result, rounded once.
///
/// # Errors
/// Whatever [`HalfGemm::check`] refuses.
pub fn half_gemm_tensors(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Option<&Tensor>,
    d: &mut Tensor,
) -> Result<()> {
    let arguments = HalfGemm {
        layout,
        a: a.describe("a"),
        b: b.describe("b"),
        c: c.map(|c| c.describe("c")),
        d: d.describe("d"),
    };
    if let Checked::Trivial(_) = arguments.check()? {
        return super::without_product(c, d);
    }
    let along_k = |x: &Tensor, k_first| if k_first { x.transpose(0, 1) } else { Ok(x.clone()) };
    let (a, b) = (along_k(a, layout.a_begins_with_k())?, along_k(b, layout.b_begins_with_k())?);
    let dims = [a.dims()[0], b.dims()[0], a.dims()[1]];
    let c = c.map(Tensor::to_vec_f32).transpose()?;
    let product = gemm_nt(&a.to_vec_f32()?, &b.to_vec_f32()?, dims, c.as_deref())?;
    d.write_bytes(&d.dtype().encode_f64(&product))
}

/// [`half_bgemm_nt_summed`](crate::half_bgemm_nt_summed) on tensors of any device, whose arguments were checked: `checked` is
/// what the check gave.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn half_bgemm_nt_summed_tensors(
    a: &Tensor,
    b: &Tensor,
    c: Option<&Tensor>,
    d: &mut Tensor,
    checked: &Checked,
) -> Result<()> {
    if let Checked::Trivial(_) = checked {
        return super::without_product(c, d);
    }
    // Products side by side are one with the K of all.
    let side_by_side = |x: &Tensor| x.transpose(0, 1)?.to_vec_f32();
    let dims = [a.dims()[1], b.dims()[1], a.dims()[0] * a.dims()[2]];
    let c = c.map(Tensor::to_vec_f32).transpose()?;
    let product = gemm_nt(&side_by_side(a)?, &side_by_side(b)?, dims, c.as_deref())?;
    d.write_bytes(&d.dtype().encode_f64(&product))
}
