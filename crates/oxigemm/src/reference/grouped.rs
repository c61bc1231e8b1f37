//! Products whose rows are grouped.

use std::ops::Range;

use super::{fp8_gemm_nt, half_gemm_tensors};
use crate::cast::Quantized;
use crate::check::{BLOCK, GemmLayout, Groups};
use crate::error::Result;
use crate::gemm::Addend;
use crate::tensor::Tensor;

/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous) or
/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked) on tensors of any device, whose arguments were
/// checked: `groups` is what the check gave, `numbers` where the groups are, if there are any.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn m_grouped_fp8_gemm_nt_tensors(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    groups: &Groups,
    numbers: Option<&Tensor>,
) -> Result<()> {
    let masked = groups.layout.has_slabs();
    // Of scales, one may hold for all.
    let scales_of = |x: &Tensor, group: usize, several: bool| match x.dims() {
        [groups, _, _] if several => x.select(if *groups == 1 { 0 } else { group }),
        _ => Ok(x.clone()),
    };
    for (group, rows) in found(groups, a, numbers)? {
        let part = |x: &Tensor| part(groups, x, group, &rows);
        let mut scales = scales_of(sfa, group, masked)?;
        if scales.dims()[0] > 1 {
            scales = scales.narrow(0, rows.start as usize, rows.len())?;
        }
        let of_a = Quantized::from_tensors(&part(a)?, &scales, 1)?;
        let scales = scales_of(sfb, group, true)?;
        let of_b = Quantized::from_tensors(&b.select(group)?, &scales, BLOCK as usize)?;
        let product = fp8_gemm_nt(&of_a.as_matrix(), &of_b.as_matrix(), None)?;
        let mut of_d = part(d)?;
        of_d.write_bytes(&of_d.dtype().encode_f64(&product))?;
    }
    Ok(())
}

/// [`m_grouped_half_gemm`](crate::m_grouped_half_gemm) on tensors of any device, whose arguments were checked: `groups`
/// is what the check gave, `numbers` where the groups are, if there are any.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn m_grouped_half_gemm_tensors(
    layout: GemmLayout,
    [a, b]: [&Tensor; 2],
    c: Addend<'_>,
    d: &mut Tensor,
    groups: &Groups,
    numbers: Option<&Tensor>,
) -> Result<()> {
    for (group, rows) in found(groups, a, numbers)? {
        let part = |x: &Tensor| part(groups, x, group, &rows);
        let mut of_d = part(d)?;
        let addend = match c {
            Addend::None => None,
            Addend::InPlace => Some(of_d.clone()),
            Addend::From(c) => Some(part(c)?),
        };
        half_gemm_tensors(layout, &part(a)?, &b.select(group)?, addend.as_ref(), &mut of_d)?;
    }
    Ok(())
}

/// The rows of every group that has some.
fn found(groups: &Groups, a: &Tensor, numbers: Option<&Tensor>) -> Result<Vec<(usize, Range<u32>)>> {
    let rows = a.dims()[a.dims().len() - 2] as u32;
    let numbers = numbers.map_or(Ok(Vec::new()), Tensor::to_vec::<i32>)?;
    let found = groups.layout.rows(&numbers, groups.count, rows, groups.alignment);
    Ok(found.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()).collect())
}

/// The rows of a group, in the matrix of the group or the only one there is.
fn part(groups: &Groups, x: &Tensor, group: usize, rows: &Range<u32>) -> Result<Tensor> {
    let slab = if groups.layout.has_slabs() { x.select(group)? } else { x.clone() };
    slab.narrow(0, rows.start as usize, rows.len())
}
