//! Checks of the hyper-connection prenorm GEMM.

use oxigemm_kernels::hyper_connection::COLUMNS;

use super::Operand;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// The arguments of `tf32_hc_prenorm_gemm`.
#[derive(Clone, Copy, Debug)]
pub struct HcPrenormGemm {
    /// `[M, K]` bf16.
    pub a: Operand,
    /// `[N, K]` f32; N is 8, 16, 24 or 32.
    pub b: Operand,
    /// `[M, N]` f32, or `[splits, M, N]`.
    pub d: Operand,
    /// The sums of squares: `[M]` f32, or `[splits, M]`, contiguous.
    pub sqr_sum: Operand,
}

/// A checked prenorm GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HcProblem {
    /// Rows of B: one of [`COLUMNS`].
    pub columns: u32,
    /// Rows of A.
    pub m: u32,
    /// Columns of A and B.
    pub k: u32,
    /// Parts of K that are summed by themselves.
    pub splits: u32,
    /// From one row of A to the next, in elements.
    pub a_pitch: u64,
    /// From one row of B to the next.
    pub b_pitch: u64,
    /// From one row of D to the next.
    pub d_pitch: u32,
    /// From one split of D to the next.
    pub d_split: u64,
}

impl HcPrenormGemm {
    /// Checks every rule of the call. Where there are no rows, nothing is left to do.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Option<HcProblem>> {
        let HcPrenormGemm { a, b, d, sqr_sum } = self;
        a.expect_dtype(&[DType::Bf16])?;
        b.expect_dtype(&[DType::F32])?;
        d.expect_dtype(&[DType::F32])?;
        sqr_sum.expect_dtype(&[DType::F32])?;
        let [m, k] = a.matrix_dims()?;
        let [n, b_k] = b.matrix_dims()?;
        if k == 0 {
            return Err(a.wrong_shape("[M, 1 or more]", "something to sum"));
        }
        if b_k != k {
            return Err(b.wrong_shape([n, k], "with the K of `a`"));
        }
        let Some(columns) = COLUMNS.into_iter().find(|&columns| i64::from(columns) == n) else {
            return Err(b.wrong_shape(format!("one of {COLUMNS:?} rows"), "for which there are kernels"));
        };
        let (splits, rows) = match d.rank {
            2 => (1, *d),
            3 => (d.dims[0], d.within_first()),
            _ => {
                return Err(Error::Rank {
                    argument: d.name,
                    expected: "[M, N] or [splits, M, N]".to_owned(),
                    found: format!("{} dimensions, {:?}", d.rank, d.dims()),
                });
            }
        };
        if rows.matrix_dims()? != [m, n] || !(1..=i64::from(u16::MAX)).contains(&splits) {
            return Err(d.wrong_shape(
                [m, n],
                "the rows of `a` by the rows of `b`, once for each of 1 to 65535 splits",
            ));
        }
        match d.rank {
            2 => sqr_sum.expect_shape(&[m], "one for each row of `a`")?,
            _ => sqr_sum.expect_shape(&[splits, m], "one for each row of `a` and split of `d`")?,
        }
        for operand in [b, d, sqr_sum] {
            operand.expect_device(a)?;
        }
        if m == 0 {
            return Ok(None);
        }
        let (d_pitch, first) = rows.plain_rows()?;
        let d_split = if splits > 1 { d.strides[0] } else { 0 };
        if splits > 1 && (d_split as i128) < i128::from(d_pitch) * i128::from(m - 1) + i128::from(n) {
            return Err(d.wrong_strides("splits that do not overlap".to_owned()));
        }
        let last = (splits as u128 - 1) * d_split as u128 * 4 + u128::from(first.length());
        let end = d.end_of(last)?;
        let d_memory = first.repeated(splits as u64, d_split as u64 * 4, end);
        let squares_memory = sqr_sum.expect_contiguous()?;
        let (a_pitch, a_memory) = a.tma_rows()?;
        let (b_pitch, b_memory) = b.tma_rows()?;
        for (output, memory) in [(d, &d_memory), (sqr_sum, &squares_memory)] {
            output.expect_apart(memory, a, &a_memory)?;
            output.expect_apart(memory, b, &b_memory)?;
        }
        d.expect_apart(&d_memory, sqr_sum, &squares_memory)?;
        Ok(Some(HcProblem {
            columns,
            m: m as u32,
            k: k as u32,
            splits: splits as u32,
            a_pitch,
            b_pitch,
            d_pitch: d_pitch as u32,
            d_split: d_split as u64,
        }))
    }
}
