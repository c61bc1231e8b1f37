//! Products with groups along K.

use oxigemm_kernels::kgroups::{KGroup, PITCH_UNIT, k_groups};

use super::{Fp8Matrix, fp8_gemm_nt, without_product};
use crate::check::{BLOCK, CheckedKGroups};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// [`k_grouped_fp8_gemm_nt_contiguous`](crate::k_grouped_fp8_gemm_nt_contiguous) on tensors of any device, whose
/// arguments were checked: `checked` is what the check gave.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn k_grouped_fp8_gemm_nt_tensors(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    c: Option<&Tensor>,
    d: &mut Tensor,
    ks: &Tensor,
    checked: &CheckedKGroups,
) -> Result<()> {
    let CheckedKGroups::Launch(problem, groups) = checked else {
        return if !d.is_empty() { without_product(c, d) } else { Ok(()) };
    };
    let found = k_groups(&ks.to_vec::<i32>()?, problem.k, groups.blocks, BLOCK);
    let (a, b) = (a.to_bytes()?, b.to_bytes()?);
    let (sfa, sfb) = (sfa.to_vec::<f32>()?, sfb.to_vec::<f32>()?);
    for (group, place) in found.into_iter().enumerate() {
        let of_a = matrix((&a, &sfa), problem.m as usize, groups.blocks as usize, place);
        let of_b = matrix((&b, &sfb), problem.n as usize, groups.blocks as usize, place);
        let of_c = c.map(|c| c.select(group)?.to_vec_f32()).transpose()?;
        let product = fp8_gemm_nt(&of_a, &of_b, of_c.as_deref())?;
        let mut of_d = d.select(group)?;
        of_d.write_bytes(&of_d.dtype().encode_f64(&product))?;
    }
    Ok(())
}

/// A group's matrix, of all elements and scales of an operand.
fn matrix<'a>(
    (codes, scales): (&'a [u8], &'a [f32]),
    rows: usize,
    blocks: usize,
    KGroup { k, start, first_block }: KGroup,
) -> Fp8Matrix<'a> {
    Fp8Matrix {
        dtype: DType::E4m3,
        codes: &codes[start as usize * rows..],
        rows,
        k: k as usize,
        pitch: k.next_multiple_of(PITCH_UNIT) as usize,
        scales: &scales[first_block as usize..],
        scale_strides: [blocks, 1],
        rows_per_scale: 1,
    }
}
