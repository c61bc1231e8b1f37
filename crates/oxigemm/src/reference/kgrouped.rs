//! Products with groups along K.

use oxigemm_kernels::gemm::operand::f16::Operands;
use oxigemm_kernels::gemm::scheduler::k_grouped::{KCapacity, KGroup, PITCH_UNIT, k_groups};

use super::{Fp8Matrix, fp8_gemm_nt, gemm_nt, without_product};
use crate::check::{BLOCK, CheckedKGroups, GemmLayout};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// [`k_grouped_fp8_gemm_nt_contiguous`](crate::k_grouped_fp8_gemm_nt_contiguous), or the same in the layout `tn`, on tensors
/// of any device, whose arguments were checked: `checked` is what the check gave.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn k_grouped_fp8_gemm_tensors(
    layout: GemmLayout,
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
    let ranges = layout == GemmLayout::Tn;
    let unit = if ranges { 1 } else { PITCH_UNIT };
    let room = KCapacity { extent: problem.k, unit, scales: Some((groups.blocks, BLOCK)) };
    let found = k_groups(&ks.to_vec::<i32>()?, &room);
    let by_rows = |x: &Tensor| if ranges { x.transpose(0, 1) } else { Ok(x.clone()) };
    let (a, b) = (by_rows(a)?.to_bytes()?, by_rows(b)?.to_bytes()?);
    let (sfa, sfb) = (by_rows(sfa)?.to_vec::<f32>()?, by_rows(sfb)?.to_vec::<f32>()?);
    for (group, place) in found.into_iter().enumerate() {
        let of_group = |codes, scales, rows: u32| {
            let (start, rows) = (place.start as usize, rows as usize);
            let (first, pitch) = match ranges {
                true => (start, problem.k),
                false => (start * rows, place.k.next_multiple_of(PITCH_UNIT)),
            };
            matrix((codes, scales), rows, groups.blocks as usize, place, (first, pitch as usize))
        };
        let (of_a, of_b) = (of_group(&a, &sfa, problem.m), of_group(&b, &sfb, problem.n));
        let of_c = c.map(|c| c.select(group)?.to_vec_f32()).transpose()?;
        let product = fp8_gemm_nt(&of_a, &of_b, of_c.as_deref())?;
        let mut of_d = d.select(group)?;
        of_d.write_bytes(&of_d.dtype().encode_f64(&product))?;
    }
    Ok(())
}

/// [`k_grouped_half_gemm`](crate::k_grouped_half_gemm) on tensors of any device, whose arguments were checked: `checked`
/// is what the check gave.
///
/// # Errors
/// If the tensors are not of the shapes that were checked.
pub fn k_grouped_half_gemm_tensors(
    layout: GemmLayout,
    [a, b]: [&Tensor; 2],
    c: Option<&Tensor>,
    d: &mut Tensor,
    ks: &Tensor,
    checked: &CheckedKGroups,
) -> Result<()> {
    let CheckedKGroups::Launch(problem, _) = checked else {
        return if !d.is_empty() { without_product(c, d) } else { Ok(()) };
    };
    let unit = problem.family.as_f16().map_or(PITCH_UNIT, Operands::k_unit);
    let along_k = |x: &Tensor, k_first| if k_first { x.transpose(0, 1) } else { Ok(x.clone()) };
    let (a, b) = (along_k(a, layout.a_begins_with_k())?, along_k(b, layout.b_begins_with_k())?);
    let room = KCapacity { extent: problem.k, unit, scales: None };
    for (group, KGroup { k, start, .. }) in k_groups(&ks.to_vec::<i32>()?, &room).into_iter().enumerate() {
        let (k, start) = (k as usize, start as usize);
        let of_group = |x: &Tensor| x.narrow(1, start, k)?.to_vec_f32();
        let of_c = c.map(|c| c.select(group)?.to_vec_f32()).transpose()?;
        let dims = [problem.m as usize, problem.n as usize, k];
        let product = gemm_nt(&of_group(&a)?, &of_group(&b)?, dims, of_c.as_deref())?;
        let mut of_d = d.select(group)?;
        of_d.write_bytes(&of_d.dtype().encode_f64(&product))?;
    }
    Ok(())
}

/// A group's matrix, of all elements and scales of an operand: its first element, and from one row to the next.
fn matrix<'a>(
    (codes, scales): (&'a [u8], &'a [f32]),
    rows: usize,
    blocks: usize,
    KGroup { k, first_block, .. }: KGroup,
    (first, pitch): (usize, usize),
) -> Fp8Matrix<'a> {
    Fp8Matrix {
        dtype: DType::E4m3,
        codes: &codes[first..],
        rows,
        k: k as usize,
        pitch,
        scales: &scales[first_block as usize..],
        scale_strides: [blocks, 1],
        rows_per_scale: 1,
    }
}
