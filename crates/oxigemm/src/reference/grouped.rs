//! Products whose rows are grouped.

use oxigemm_kernels::grouping::GroupLayout;

use super::fp8_gemm_nt;
use crate::cast::Quantized;
use crate::check::{BLOCK, Groups};
use crate::error::Result;
use crate::tensor::Tensor;

/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous) or
/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked) on tensors of any device, whose arguments were
/// checked: `groups` is what the check gave, `numbers` where the groups are.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn m_grouped_fp8_gemm_nt_tensors(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    groups: &Groups,
    numbers: &Tensor,
) -> Result<()> {
    let masked = groups.layout == GroupLayout::Counts;
    let rows = a.dims()[a.dims().len() - 2] as u32;
    let numbers = numbers.to_vec::<i32>()?;
    let found = groups.layout.rows(&numbers, groups.count, rows, groups.alignment);
    // The matrix of a group, or the only one there is.
    let slab = |x: &Tensor, group: usize| if masked { x.select(group) } else { Ok(x.clone()) };
    for (group, rows) in found.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let part = |x: &Tensor| slab(x, group)?.narrow(0, rows.start as usize, rows.len());
        let of_a = Quantized::from_tensors(&part(a)?, &part(sfa)?, 1)?;
        let of_b = Quantized::from_tensors(&b.select(group)?, &sfb.select(group)?, BLOCK as usize)?;
        let product = fp8_gemm_nt(&of_a.as_matrix(), &of_b.as_matrix(), None)?;
        let mut of_d = part(d)?;
        of_d.write_bytes(&of_d.dtype().encode_f64(&product))?;
    }
    Ok(())
}
