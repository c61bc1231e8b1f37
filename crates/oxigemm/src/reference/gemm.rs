//! Products whose rows are grouped.

use std::ops::Range;

use super::fused::{computed, finish_into};
use super::{fp8_gemm_nt, gemm_nt, half_gemm_tensors};
use crate::cast::Quantized;
use crate::check::{BLOCK, GemmLayout, Groups};
use crate::error::Result;
use crate::fused::{Epilogue, FusedOutput};
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
    each_product((a, sfa), (b, sfb), groups, numbers, |group, rows, product| {
        let mut of_d = part(groups, d, group, rows)?;
        of_d.write_bytes(&of_d.dtype().encode_f64(product))
    })
}

/// [`m_grouped_fp8_gemm_nt_fused`](crate::m_grouped_fp8_gemm_nt_fused) on tensors of any device, whose arguments were
/// checked: `groups` is what the check gave, `numbers` where the groups are. A quantized D is rounded to `f32` before it is
/// cast.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn m_grouped_fp8_gemm_nt_fused_tensors(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &FusedOutput<'_>,
    (groups, numbers): (&Groups, &Tensor),
    epilogue: &Epilogue<'_>,
) -> Result<()> {
    let n = b.0.dims()[1];
    each_product(a, b, groups, Some(numbers), |group, rows, product| {
        finish_group((groups, group, rows), (product, n), c, d, epilogue)
    })
}

/// [`m_grouped_half_gemm_nt_fused`](crate::m_grouped_half_gemm_nt_fused) in the same way.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn m_grouped_half_gemm_nt_fused_tensors(
    [a, b]: [&Tensor; 2],
    c: Addend<'_>,
    d: &FusedOutput<'_>,
    (groups, numbers): (&Groups, &Tensor),
    epilogue: &Epilogue<'_>,
) -> Result<()> {
    let [n, k] = [b.dims()[1], b.dims()[2]];
    for (group, rows) in found(groups, a, Some(numbers))? {
        let of_a = part(groups, a, group, &rows)?.to_vec_f32()?;
        let product = gemm_nt(&of_a, &b.select(group)?.to_vec_f32()?, [rows.len(), n, k], None)?;
        finish_group((groups, group, &rows), (&product, n), c, d, epilogue)?;
    }
    Ok(())
}

/// Finishes the sums of a group's rows, `n` in each, and stores them.
fn finish_group(
    (groups, group, rows): (&Groups, usize, &Range<u32>),
    (product, n): (&[f64], usize),
    c: Addend<'_>,
    d: &FusedOutput<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<()> {
    let part = |x: &Tensor| part(groups, x, group, rows);
    let mut of_d = part(d.d())?;
    let c = match c {
        Addend::None => None,
        Addend::InPlace => Some(computed(&of_d, epilogue.heads)?),
        Addend::From(c) => Some(computed(&part(c)?, epilogue.heads)?),
    };
    let bias = match epilogue.bias {
        Some(bias) if bias.dims().len() == 2 => Some(bias.select(group)?),
        bias => bias.cloned(),
    };
    let epilogue = Epilogue { bias: bias.as_ref(), ..*epilogue };
    let mut of_scales = match d {
        FusedOutput::Matrix(_) => None,
        FusedOutput::Fp8 { scales, format, .. } => Some((part(scales)?, *format)),
    };
    let to = match &mut of_scales {
        None => FusedOutput::Matrix(&mut of_d),
        Some((scales, format)) => FusedOutput::Fp8 { d: &mut of_d, scales, format: *format },
    };
    finish_into(product, [rows.len(), n], c.as_deref(), to, &epilogue)
}

/// Runs `body` with every group that has rows, these, and the exact product.
fn each_product(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    groups: &Groups,
    numbers: Option<&Tensor>,
    mut body: impl FnMut(usize, &Range<u32>, &[f64]) -> Result<()>,
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
        body(group, &rows, &product)?;
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
