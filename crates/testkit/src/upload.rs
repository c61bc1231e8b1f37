//! Operands of a case on a device, with poison in all gaps.

use oxigemm::cast::Quantized;
use oxigemm::{DType, Device, GemmLayout, Tensor};

use crate::Failure;
use crate::case::{AddendKind, GemmCase, Grouping};
use crate::data::{Fp8Pair, GemmData, GroupData};
use crate::gemm::Gemm;
use crate::groups::MGroups;
use crate::memory::{
    Fill, POISON, ScaleOrder, matrix, scale_bytes, scale_columns, scale_matrices, scale_matrix, transposed,
};
use crate::plan;

/// Elements of poison before and behind D. A multiple of 16 bytes for every type, so that D stays aligned.
pub(crate) const GUARD: usize = 1024;
/// Rows of the highest tile of a cluster.
const TILE_ROWS: usize = 512;

/// A and B with their scales, and the numbers that say where groups are.
struct Inputs {
    a: Tensor,
    b: Tensor,
    scales: Option<[Tensor; 2]>,
    numbers: Option<Tensor>,
}

/// D, all of the memory that it is a part of, and its scales where it is quantized.
pub(crate) struct Output {
    pub d: Tensor,
    pub memory: Tensor,
    pub scales: Option<Tensor>,
    pub scales_memory: Option<Tensor>,
}

impl GemmData {
    /// Puts the operands on a device.
    pub fn upload(&self, device: &Device) -> Result<Gemm, Failure> {
        let case = &self.case;
        let Inputs { a, b, scales, numbers } = match &case.grouping {
            Grouping::Dense => dense(case, &self.groups[0], device)?,
            Grouping::Summed(gemms) => summed(case, &self.groups[0], *gemms, device)?,
            Grouping::M(groups) => m_grouped(self, groups, device)?,
            Grouping::K(ks) => k_grouped(self, ks, device)?,
        };
        let bias = match case.fused().bias {
            None => None,
            Some(dtype) => {
                let dims: Vec<usize> = case.groups().into_iter().chain([case.n]).collect();
                Some(Tensor::from_f32(dtype, &self.bias(dtype), &dims, device)?)
            }
        };
        let accumulators = match case.epilogue {
            None => None,
            Some(_) => {
                let plain = self.accumulators();
                let output = output(&plain.case, 0, device)?;
                let [a, b] = [&a, &b].map(Tensor::clone);
                Some(Box::new(Gemm::new(
                    plain,
                    (a, b),
                    (scales.clone(), numbers.clone(), None),
                    output,
                    None,
                    None,
                )))
            }
        };
        // Groups of C are as many rows apart as those of D, of 16-bit operands as many elements.
        let apart = case.epilogue.is_some() && case.types.has_scales() && case.m_groups().is_some();
        let c = match case.addend {
            AddendKind::Other => Some(output(case, if apart { 8 } else { 0 }, device)?.d),
            _ => None,
        };
        let d = output(case, 0, device)?;
        let mut gemm = Gemm::new(self.clone(), (a, b), (scales, numbers, bias), d, c, accumulators);
        if let Some(c) = gemm.c.clone() {
            gemm.write_addend(&c)?;
        }
        gemm.restore()?;
        Ok(gemm)
    }
}

/// D in memory of its own, with so many elements more behind each row.
pub(crate) fn output(case: &GemmCase, more: usize, device: &Device) -> Result<Output, Failure> {
    let ([slabs, rows], dtype) = (case.slabs(), case.output_type());
    let columns = case.fused().columns(case.n);
    let width = case.fused().places(columns).1;
    // Rows of codes begin at multiples of 16 bytes, as another GEMM reads them.
    let (padding, offset) = match case.fused().quantized {
        Some(_) => (width.next_multiple_of(16) - width + case.d_padding * 16, case.d_offset * 16),
        None => (case.d_padding, case.d_offset),
    };
    let (pitch, all_rows) = (width + padding + more, rows + case.d_row_padding);
    let no_guard = matches!(case.fill, Fill::Zeros | Fill::Rows);
    let (guard, len) = (if no_guard { 0 } else { GUARD }, slabs * all_rows * pitch);
    let memory = case.fill.output(dtype, &[guard + offset + len + guard], device)?;
    let lines = memory.narrow(0, guard + offset, len)?;
    let interleaved = case.m_groups().is_some_and(|groups| groups.interleaved);
    let d = match interleaved {
        true => lines.view(&[all_rows, slabs, pitch])?.transpose(0, 1)?,
        false => lines.view(&[slabs, all_rows, pitch])?,
    };
    let d = flat(case, d.narrow(1, 0, rows)?.narrow(2, 0, width)?)?;
    let mut scales_memory = None;
    let scales = match case.fused().quantized {
        None => None,
        Some((order, _)) => {
            let allocate = |len| {
                let memory = case.fill.output(DType::F32, &[len], device)?;
                scales_memory = Some(memory.clone());
                Ok(memory)
            };
            Some(flat(case, scale_matrices([slabs, rows, columns.div_ceil(128)], order, allocate)?)?)
        }
    };
    Ok(Output { d, memory, scales, scales_memory })
}

/// Without the dimension of slabs, where there is only one.
fn flat(case: &GemmCase, tensor: Tensor) -> oxigemm::Result<Tensor> {
    let has_slabs = match &case.grouping {
        Grouping::Dense | Grouping::Summed(_) => false,
        Grouping::M(groups) => groups.has_slabs(),
        Grouping::K(_) => true,
    };
    if has_slabs { Ok(tensor) } else { tensor.select(0) }
}

fn dense(case: &GemmCase, data: &GroupData, device: &Device) -> Result<Inputs, Failure> {
    let [m, n, k] = data.dims;
    let k_first = [case.layout.a_begins_with_k(), case.layout.b_begins_with_k()];
    let place = (case.ab_padding, case.at_end);
    if let Some(Fp8Pair { a, b }) = &data.fp8 {
        let codes = |x: &Quantized, k_first: bool| match k_first {
            // FP4 is contiguous along K, and a view begins with K. Beside FP8, rows are multiples of 32 bytes.
            _ if x.dtype == DType::U8 => {
                let place = (fp4_padding(case, x.k, case.ab_padding), case.at_end);
                let rows = matrix(x.dtype, &x.codes, [x.rows, x.k / 2], place, device)?;
                Ok(if k_first { rows.transpose(0, 1)? } else { rows })
            }
            true => matrix(x.dtype, &transposed(&x.codes, [x.rows, x.k]), [x.k, x.rows], place, device),
            false => matrix(x.dtype, &x.codes, [x.rows, x.k], place, device),
        };
        let scales = |x: &Quantized, order: ScaleOrder, k_first: bool| -> Result<Tensor, Failure> {
            let dtype = case.types.scale_type;
            let scales = scale_matrix(&x.scales, x.scale_dims(), dtype, order, case.fill, device)?;
            Ok(if k_first { scales.transpose(0, 1)? } else { scales })
        };
        let both = [scales(a, case.sfa, k_first[0])?, scales(b, case.sfb, k_first[1])?];
        return Ok(Inputs {
            a: codes(a, k_first[0])?,
            b: codes(b, k_first[1])?,
            scales: Some(both),
            numbers: None,
        });
    }
    let dtype = case.types.ab;
    let lay_out = |values: &[f32], dims: [usize; 2], k_first: bool| match k_first {
        true => matrix(dtype, &dtype.encode(&transposed(values, dims)), [dims[1], dims[0]], place, device),
        false => matrix(dtype, &dtype.encode(values), dims, place, device),
    };
    let a = lay_out(&data.a_values, [m, k], k_first[0])?;
    Ok(Inputs { a, b: lay_out(&data.b_values, [n, k], k_first[1])?, scales: None, numbers: None })
}

/// 16-byte units behind each row of an FP4 operand beyond what 16 bytes need.
fn fp4_padding(case: &GemmCase, k: usize, padding: usize) -> usize {
    let beside_fp8 = case.types.fp4 != [true; 2];
    padding + usize::from(beside_fp8) * (((k / 2).div_ceil(16) + padding) % 2)
}

/// Operands as `[GEMMs, rows, K of each]`, with poison behind every row unless memory is filled with rows.
fn summed(case: &GemmCase, data: &GroupData, gemms: usize, device: &Device) -> Result<Inputs, Failure> {
    let (dtype, k) = (case.types.ab, case.k / gemms.max(1));
    let operand = |values: &[f32], rows: usize| -> Result<Tensor, Failure> {
        let pitch = (if case.fill == Fill::Rows { k } else { k + 1 }).next_multiple_of(16 / dtype.size());
        let memory = Fill::Poison.memory(dtype, &[gemms, rows, pitch], device)?;
        let operand = memory.narrow(2, 0, k)?;
        if !operand.is_empty() {
            // Rows first, as they are on the host.
            operand.transpose(0, 1)?.write_f32(values)?;
        }
        Ok(operand)
    };
    let (a, b) = (operand(&data.a_values, case.m)?, operand(&data.b_values, case.n)?);
    Ok(Inputs { a, b, scales: None, numbers: None })
}

fn m_grouped(data: &GemmData, groups: &MGroups, device: &Device) -> Result<Inputs, Failure> {
    let case = &data.case;
    let (n, k, dtype, [slabs, rows]) = (case.n, case.k, case.types.ab, groups.slabs());
    let matrices = |dtype: DType, dims: [usize; 3], padding: usize| -> oxigemm::Result<Tensor> {
        let fp4 = dtype == DType::U8;
        let (unit, columns) = (16 / dtype.size(), if fp4 { dims[2] / 2 } else { dims[2] });
        let padding = if fp4 { fp4_padding(case, k, padding) } else { padding };
        let pitch = columns.next_multiple_of(unit) + padding * unit;
        case.fill.memory(dtype, &[dims[0], dims[1], pitch], device)?.narrow(2, 0, columns)
    };
    let (count, [a_type, b_type]) = (groups.sizes.len(), case.ab_types());
    let a = match groups.interleaved {
        true => matrices(a_type, [rows, slabs, k], 0)?.transpose(0, 1)?,
        false => matrices(a_type, [slabs, rows, k], 0)?,
    };
    let k_first = case.layout.b_begins_with_k();
    let b = matrices(b_type, if k_first { [count, k, n] } else { [count, n, k] }, case.ab_padding)?;
    let scale_type = case.types.scale_type;
    let memory = |len| case.fill.memory(scale_type, &[len], device);
    let columns = |of_k: usize| scale_columns(k.div_ceil(of_k), scale_type);
    let scales = match case.types.scale_blocks {
        None => None,
        Some([[_, of_a], [rows_of_b, of_b]]) => Some([
            scale_matrices([slabs, rows, columns(of_a)], case.sfa, memory)?,
            scale_matrices([count, n.div_ceil(rows_of_b), columns(of_b)], case.sfb, memory)?,
        ]),
    };
    let scale_bytes = |x: &Quantized| scale_bytes(&x.scales, x.scale_dims()[1], scale_type);
    for (group, (range, data)) in groups.ranges().into_iter().zip(data.groups.iter()).enumerate() {
        let slab = if groups.has_slabs() { group } else { 0 };
        let (of_b, len) = (b.select(group)?, range.len());
        // The rows of the group and, where memory is filled with rows, the same again and again.
        let end = rows.min(range.end.next_multiple_of(TILE_ROWS));
        let again =
            if case.fill == Fill::Rows && groups.has_slabs() && len > 0 { end - range.end } else { 0 };
        let write_rows = |x: &Tensor, bytes: &[u8]| -> oxigemm::Result<()> {
            let slab = x.select(slab)?;
            write(slab.narrow(0, range.start, len)?, bytes)?;
            let repeated = bytes.repeat(again.div_ceil(len.max(1)));
            write(slab.narrow(0, range.end, again)?, &repeated[..bytes.len() / len.max(1) * again])
        };
        match (&data.fp8, &scales) {
            (Some(pair), Some([sfa, sfb])) => {
                write_rows(&a, &pair.a.codes)?;
                write_rows(sfa, &scale_bytes(&pair.a))?;
                write(of_b, &pair.b.codes)?;
                write(sfb.select(group)?, &scale_bytes(&pair.b))?;
            }
            _ => {
                write_rows(&a, &dtype.encode(&data.a_values))?;
                let b = match k_first {
                    true => dtype.encode(&transposed(&data.b_values, [n, k])),
                    false => dtype.encode(&data.b_values),
                };
                write(of_b, &b)?;
            }
        }
    }
    let scales = match scales {
        None => None,
        Some([sfa, sfb]) => Some([flat(case, sfa)?, sfb]),
    };
    let numbers = groups.numbers();
    let numbers = Some(Tensor::from_slice(&numbers, &[numbers.len()], device)?);
    Ok(Inputs { a: flat(case, a)?, b, scales, numbers })
}

/// Nothing is written to a part that has no elements.
pub(crate) fn write(mut part: Tensor, bytes: &[u8]) -> oxigemm::Result<()> {
    if bytes.is_empty() { Ok(()) } else { part.write_bytes(bytes) }
}

fn k_grouped(data: &GemmData, ks: &[usize], device: &Device) -> Result<Inputs, Failure> {
    let case = &data.case;
    let numbers: Vec<i32> = ks.iter().map(|k| *k as i32).collect();
    let numbers = Some(Tensor::from_slice(&numbers, &[numbers.len()], device)?);
    if !case.types.has_scales() {
        let dtype = case.types.ab;
        let of = |values: fn(&GroupData) -> &[f32], rows| {
            let groups: Vec<_> = data.groups.iter().map(|group| dtype.encode(values(group))).collect();
            ranges(case, ks, &groups, rows, device)
        };
        let (a, b) = (of(|data| &data.a_values, case.m)?, of(|data| &data.b_values, case.n)?);
        return Ok(Inputs { a, b, scales: None, numbers });
    }
    let block = plan::scale_block(case).size() as usize;
    let (blocks, k_first) =
        (ks.iter().map(|k| k.div_ceil(block)).sum::<usize>(), case.layout == GemmLayout::Tn);
    let pairs = data.groups.iter().map(GroupData::quantized).collect::<Result<Vec<_>, _>>()?;
    let operand = |of: fn(&Fp8Pair) -> &Quantized, rows: usize, order: ScaleOrder| {
        let groups: Vec<&Quantized> = pairs.iter().map(|pair| of(pair)).collect();
        let codes: Vec<Vec<u8>> = groups.iter().map(|x| x.codes.clone()).collect();
        let codes = match k_first {
            true => ranges(case, ks, &codes, rows, device)?,
            false => slabs_along_k(case, ks, &codes, device)?,
        };
        let mut scales = vec![0.0; rows * blocks];
        let mut first = 0;
        for (x, k) in groups.iter().zip(ks) {
            let of_group = k.div_ceil(block).max(1);
            for (i, scale) in x.scales.iter().enumerate() {
                scales[i / of_group * blocks + first + i % of_group] = *scale;
            }
            first += k.div_ceil(block);
        }
        let scales = scale_matrix(&scales, [rows, blocks], case.types.scale_type, order, case.fill, device)?;
        Ok::<_, Failure>((codes, if k_first { scales.transpose(0, 1)? } else { scales }))
    };
    let (a, sfa) = operand(|pair| &pair.a, case.m, case.sfa)?;
    let (b, sfb) = operand(|pair| &pair.b, case.n, case.sfb)?;
    Ok(Inputs { a, b, scales: Some([sfa, sfb]), numbers })
}

/// An operand as one matrix that groups have ranges of; the elements of each group are `[rows, K]`.
fn ranges(
    case: &GemmCase,
    ks: &[usize],
    groups: &[Vec<u8>],
    rows: usize,
    device: &Device,
) -> Result<Tensor, Failure> {
    let (dtype, unit) = (case.types.ab, plan::k_unit(case));
    let (extent, size) = (ks.iter().map(|k| k.next_multiple_of(unit)).sum::<usize>(), dtype.size());
    let k_first = case.layout == GemmLayout::Tn;
    let [lines, length] = if k_first { [extent, rows] } else { [rows, extent] };
    // Something behind every row, and it begins at 16 bytes.
    let pitch = (length + 1).next_multiple_of(16 / size);
    let mut memory = vec![POISON; lines * pitch * size];
    let mut start = 0;
    for (elements, &k) in groups.iter().zip(ks) {
        for (i, element) in elements.chunks(size).enumerate() {
            let (row, depth) = (i / k, start + i % k);
            let at = if k_first { depth * pitch + row } else { row * pitch + depth };
            memory[at * size..][..size].copy_from_slice(element);
        }
        start += k.next_multiple_of(unit);
    }
    Ok(Tensor::from_bytes(dtype, &memory, &[lines, pitch], device)?.narrow(1, 0, length)?)
}

/// FP8 or FP4 operands of all groups, one matrix `[rows, K]` after the other.
fn slabs_along_k(
    case: &GemmCase,
    ks: &[usize],
    groups: &[Vec<u8>],
    device: &Device,
) -> Result<Tensor, Failure> {
    let (mut all, unit) = (Vec::new(), plan::k_unit(case));
    let per_byte = if case.types.has_fp4() { 2 } else { 1 };
    for (codes, &k) in groups.iter().zip(ks) {
        for row in codes.chunks((k / per_byte).max(1)) {
            all.extend_from_slice(row);
            all.resize(all.len() + (k.next_multiple_of(unit) - k) / per_byte, POISON);
        }
    }
    Ok(Tensor::from_bytes(case.ab_types()[0], &all, &[all.len()], device)?)
}
