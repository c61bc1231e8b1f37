//! The check of a k-grouped GEMM: D\[g\] = C\[g\] + A_g·B_g, where groups are ranges of K.

use oxigemm_kernels::gemm::OperandKind;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::scheduler::k_grouped::PITCH_UNIT;
use oxigemm_kernels::gemm::scheduler::m_grouped::MAX_GROUPS;

use super::desc::{GemmDesc, GemmLayout, HostKs, KGroupedDesc};
use super::memory::Output;
use super::problem::{Checked, KGroups, Problem};
use super::{ALIGNMENTS, expect_elements, half_operands};
use crate::error::{Error, Result};
use crate::tensor::desc::{Footprint, Operand, ScaleStrides, int};

impl GemmDesc {
    pub(super) fn check_k_grouped(&self, groups: &KGroupedDesc) -> Result<Checked> {
        let GemmDesc { layout, a, b, c, d, .. } = self;
        let k_first = k_is_first(*layout)?;
        let scales = self.sfa.as_ref().zip(self.sfb.as_ref());
        self.expect_types()?;
        let [count, m, n] = self.expect_k_groups(groups)?;
        if count == 0 || m == 0 || n == 0 {
            return Ok(Checked::Nothing);
        }
        // FP8 operands of nt are packed: the rows of each group follow each other.
        let packed = scales.is_some() && !k_first;
        let extent = if packed { packed_extent([a, b], [m, n])? } else { extent([a, b], k_first, [m, n])? };
        let blocks = match scales {
            None => 0,
            Some(scales) => scale_blocks(scales, k_first, [m, n], groups.host.as_ref())?,
        };
        let unit = self.expect_alignment_of_ends(groups)?;
        if let Some(host) = &groups.host {
            host.check(count, (extent, unit), scales.map(|_| blocks))?;
        }
        let output = Output::new(d, c.as_ref(), true, false)?;
        if extent == 0 || (scales.is_some() && blocks == 0) {
            return Ok(Checked::without_product(output.c));
        }

        let rows = |operand: &Operand| match packed {
            true => Ok((extent as u64, operand.list().tma_rows()?.1)),
            false => operand.tma_rows(),
        };
        let ((a_pitch, a_memory), (b_pitch, b_memory)) = (rows(a)?, rows(b)?);
        let mut inputs: [Option<(&Operand, Footprint)>; 5] =
            [Some((a, a_memory)), Some((b, b_memory)), None, None, None];
        let mut strides = [ScaleStrides::NONE; 2];
        for (i, scales) in scales.into_iter().flat_map(|(sfa, sfb)| [sfa, sfb]).enumerate() {
            let own = if k_first { scales.transposed().scale_strides()? } else { scales.scale_strides()? };
            (strides[i], inputs[2 + i]) = (own.0, Some((scales, own.1)));
        }
        inputs[4] = Some((&groups.ks, groups.ks.list().plain_rows()?.1));
        for (input, memory) in inputs.iter().flatten() {
            d.expect_apart(&output.memory, input, memory)?;
        }
        let major = if k_first { Major::MN } else { Major::K };
        Ok(Checked::Launch(Problem {
            family: match scales {
                Some(_) => OperandKind::FP8_1D1D,
                None => OperandKind::f16(half_operands(a, [major; 2])),
            },
            // Every one of them is bounded by i32::MAX.
            m: m as u32,
            n: n as u32,
            k: extent as u32,
            a_pitch,
            b_pitch,
            d_pitch: output.pitch,
            c: output.c,
            sfa: strides[0],
            sfb: strides[1],
            d_type: d.dtype,
            transpose: [scales.is_some() && k_first; 2],
            groups: None,
            k_groups: Some(KGroups {
                count: count as u32,
                blocks: blocks as u32,
                d_slab: (u64::from(output.slab) / output.pitch) as u32,
                alignment: groups.ends.unwrap_or(0) as u32,
            }),
            summed: None,
            fused: None,
        }))
    }

    /// Checks the alignment of groups whose ends are given; gives what the K of each group is rounded up to.
    fn expect_alignment_of_ends(&self, groups: &KGroupedDesc) -> Result<u32> {
        let unit = GemmDesc::k_unit(self.layout, self.sfa.is_some());
        let Some(alignment) = groups.ends else { return Ok(unit) };
        let wrong = |argument, expected: String, found: String| Error::Shape { argument, expected, found };
        if !ALIGNMENTS.contains(&alignment) || alignment < i64::from(unit) {
            let expected = match unit {
                1 => "1, 16, 32, 64 or 128".to_owned(),
                _ => format!("16, 32, 64 or 128, as groups begin at multiples of {unit} along K"),
            };
            return Err(wrong("alignment", expected, alignment.to_string()));
        }
        if self.sfa.is_some() && self.layout == GemmLayout::Tn {
            let expected = "the K of each group, as FP8 operands in tn are transposed".to_owned();
            return Err(wrong(groups.ks.name, expected, "the ends of groups".to_owned()));
        }
        Ok(alignment as u32)
    }

    /// Checks D, C and the numbers, and that all operands are where A is; gives the number of groups, M and N.
    fn expect_k_groups(&self, groups: &KGroupedDesc) -> Result<[i64; 3]> {
        let GemmDesc { a, b, sfa, sfb, c, d, .. } = self;
        let dims @ [count, ..] = d.slab_dims(true)?;
        groups.ks.expect_list(count)?;
        if count > i64::from(MAX_GROUPS) {
            return Err(d.too_large(format!("at most {MAX_GROUPS} groups")));
        }
        expect_elements(d, dims)?;
        if let Some(c) = c {
            c.expect_dtype(&[d.dtype])?;
            if c.slab_dims(true)? != dims {
                return Err(c.wrong_shape(dims, "the shape of `d`"));
            }
        }
        let operands = [sfa.as_ref(), Some(b), sfb.as_ref(), Some(d), Some(&groups.ks), c.as_ref()];
        for operand in operands.into_iter().flatten() {
            operand.expect_device(a)?;
        }
        Ok(dims)
    }
}

impl HostKs {
    /// Numbers of the host must fit the operands: the K of all groups, which begin at multiples of `unit`, and the
    /// scale blocks, where there are scales.
    fn check(&self, count: i64, (extent, unit): (i64, u32), blocks: Option<i64>) -> Result<()> {
        let wrong = |expected: String, found: String| Error::Shape { argument: "ks_host", expected, found };
        let HostKs { groups, end, padded_end, blocks: found } = *self;
        if groups as i64 != count {
            return Err(wrong(format!("{count} numbers, one of each group"), format!("{groups} numbers")));
        }
        if ![end, padded_end].iter().any(|end| *end as u128 == extent as u128) {
            let apart =
                if unit > 1 { format!(", with groups at multiples of {unit},") } else { String::new() };
            let expected = format!("numbers that{apart} make {extent}, the K of `a` and `b`");
            return Err(wrong(expected, format!("{end}")));
        }
        match blocks {
            Some(blocks) if found as u128 != blocks as u128 => {
                Err(wrong(format!("numbers of {blocks} blocks of scales"), format!("{found}")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether operands begin with K, in one of the layouts that k-grouped GEMMs have.
fn k_is_first(layout: GemmLayout) -> Result<bool> {
    match layout {
        GemmLayout::Tn => Ok(true),
        GemmLayout::Nt => Ok(false),
        GemmLayout::Nn | GemmLayout::Tt => Err(Error::Shape {
            argument: "layout",
            expected: "tn or nt, as groups are along K of both operands".to_owned(),
            found: layout.to_string(),
        }),
    }
}

/// K of all groups, of operands that are one matrix each, of which groups have ranges.
fn extent([a, b]: [&Operand; 2], k_first: bool, [m, n]: [i64; 2]) -> Result<i64> {
    let found = a.matrix_dims()?;
    let extent = if k_first { found[0] } else { found[1] };
    let dims = |rows| if k_first { [extent, rows] } else { [rows, extent] };
    if found != dims(m) {
        return Err(a.wrong_shape(dims(m), "the M of `d` and the K of all groups"));
    }
    if b.matrix_dims()? != dims(n) {
        return Err(b.wrong_shape(dims(n), "the N of `d` and the K of `a`"));
    }
    Ok(extent)
}

/// K of all groups, of operands that are lists of all elements.
fn packed_extent([a, b]: [&Operand; 2], [m, n]: [i64; 2]) -> Result<i64> {
    let of = |operand: &Operand, rows: i64, name: &str| {
        operand.expect_list(operand.dims[0])?;
        let length = operand.dims[0];
        let (extent, unit) = (length / rows, i64::from(PITCH_UNIT));
        if length < 0 || length % rows != 0 || extent % unit != 0 {
            let expected = format!("a length of {name} = {rows} times a multiple of {unit}");
            return Err(Error::Shape { argument: operand.name, expected, found: format!("[{length}]") });
        }
        if extent > i64::from(i32::MAX) {
            return Err(operand.too_large(format!("a K of all groups up to {}", i32::MAX)));
        }
        Ok(extent)
    };
    let extent = of(a, m, "M")?;
    if of(b, n, "N")? != extent {
        return Err(b.wrong_shape([n * extent], "N times the K of all groups, as `a` has M times that"));
    }
    Ok(extent)
}

/// Scale blocks of all groups: both operands have a scale for each row and block. Where they differ, the one is right
/// that has what the host says, or more than the other.
fn scale_blocks(
    (sfa, sfb): (&Operand, &Operand),
    k_first: bool,
    [m, n]: [i64; 2],
    host: Option<&HostKs>,
) -> Result<i64> {
    let dims = |rows, blocks| if k_first { [blocks, rows] } else { [rows, blocks] };
    let blocks_of = |scales: &Operand| scales.matrix_dims().map(|dims| dims[usize::from(!k_first)]);
    let found = [blocks_of(sfa)?, blocks_of(sfb)?];
    let told = host.map(|host| int(host.blocks)).filter(|told| found.contains(told));
    let blocks = told.unwrap_or(found[0].max(found[1]));
    for (scales, rows) in [(sfa, m), (sfb, n)] {
        if scales.matrix_dims()? != dims(rows, blocks) {
            return Err(Error::ScaleShape {
                argument: scales.name,
                expected: format!("{:?}, one per row and 128 of every group's K", dims(rows, blocks)),
                found: format!("{:?}", scales.dims()),
            });
        }
    }
    Ok(blocks)
}
