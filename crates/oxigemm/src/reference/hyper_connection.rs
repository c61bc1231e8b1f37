//! Hyper-connection prenorm GEMM, in `f64`.

use oxigemm_kernels::hyper_connection::BLOCK_K;
use rayon::prelude::*;

use crate::error::Result;
use crate::parallel::{THREADS, refuse_interrupted};
use crate::tensor::Tensor;

/// [`tf32_hc_prenorm_gemm`](crate::tf32_hc_prenorm_gemm) on tensors of any device, whose arguments are right.
pub(crate) fn hc_prenorm_tensors(
    a: &Tensor,
    b: &Tensor,
    d: &mut Tensor,
    sqr_sum: &mut Tensor,
    splits: usize,
) -> Result<()> {
    let (k, n) = (a.dims()[1], b.dims()[0]);
    let (a, b) = (a.to_vec_f32()?, b.to_vec_f32()?.into_iter().map(tf32).collect::<Vec<_>>());
    let parts = splits.min(k.div_ceil(BLOCK_K as usize));
    let mut sums = Vec::new();
    let mut squares = Vec::new();
    for split in 0..splits {
        // Splits beyond the blocks of K have none, the others take them in turn.
        let part = |row: &[f32]| -> Vec<f32> {
            let blocks = row.chunks(BLOCK_K as usize).enumerate();
            blocks.filter(|(block, _)| block % parts == split).flat_map(|(_, block)| block.to_vec()).collect()
        };
        let columns: Vec<Vec<f32>> = b.chunks(k).map(part).collect();
        let of_row = |row: &[f32]| {
            let row = part(row);
            let sums = columns.iter().map(|column| {
                let products = row.iter().zip(column);
                products.map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
            });
            (sums.collect(), row.iter().map(|&x| f64::from(x) * f64::from(x)).sum())
        };
        let rows: Vec<(Vec<f64>, f64)> = THREADS.run(|interrupt| {
            let row = |row: &[f32]| refuse_interrupted(interrupt).map(|()| of_row(row));
            a.par_chunks(k).map(row).collect::<Result<Vec<_>>>()
        })?;
        debug_assert!(rows.iter().all(|(sums, _)| sums.len() == n));
        for (row, square) in rows {
            sums.extend(row);
            squares.push(square);
        }
    }
    d.write_bytes(&d.dtype().encode_f64(&sums))?;
    sqr_sum.write_bytes(&sqr_sum.dtype().encode_f64(&squares))
}

/// Rounded to the 11 bits of TF32, ties away from zero.
///
/// ```
/// assert_eq!(oxigemm::reference::tf32(1.0 + 0.6 / 1024.0), 1.0 + 1.0 / 1024.0);
/// ```
#[must_use]
pub fn tf32(x: f32) -> f32 {
    const LOST: u32 = 13;
    match x.is_finite() {
        true => f32::from_bits((x.to_bits() + (1 << (LOST - 1))) >> LOST << LOST),
        false => x,
    }
}

#[cfg(test)]
mod tests {
    use super::tf32;

    #[test]
    fn eleven_bits_are_kept() {
        let ulp = 2f32.powi(-10);
        for (x, rounded) in [
            (1.0 + ulp, 1.0 + ulp),
            (1.0 + ulp / 2.0, 1.0 + ulp),
            (-1.0 - ulp / 2.0, -1.0 - ulp),
            (1.0 + ulp * 0.49, 1.0),
            (2.0 - ulp / 4.0, 2.0),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(tf32(x), rounded, "{x}");
        }
        assert!(tf32(f32::NAN).is_nan());
    }
}
