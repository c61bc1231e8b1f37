//! The check of a k-grouped GEMM: D\[g\] = C\[g\] + A_g·B_g, where groups are ranges of K.

use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_kernels::gemm::scheduler::k_grouped::PITCH_UNIT;
use oxigemm_kernels::gemm::scheduler::m_grouped::MAX_GROUPS;
use oxigemm_kernels::gemm::{ElementType, OperandKind};

use super::desc::{GemmDesc, GemmLayout, HostKs, KGroupedDesc};
use super::memory::Output;
use super::problem::{Checked, KGroups, Problem};
use super::scales::{ScaleWords, elements, like};
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
        let block =
            scales.map(|scales| self.scale_block_along_k(scales, groups.host.as_ref())).transpose()?;
        // FP8 and FP4 operands of nt are packed: the rows of each group follow each other.
        let packed = scales.is_some() && !k_first;
        let extent = if packed { packed_extent([a, b], [m, n])? } else { extent([a, b], k_first, [m, n])? };
        let blocks = match scales.zip(block) {
            None => 0,
            Some((scales, block)) => scale_blocks(scales, k_first, [m, n], (block, groups.host.as_ref()))?,
        };
        let unit = self.expect_alignment_of_ends(groups)?;
        if let Some(host) = &groups.host {
            host.check(count, (extent, unit), block.map(|block| (block, blocks)))?;
            self.expect_even_ks(host)?;
        }
        let output = Output::new(d, c.as_ref(), true, false)?;
        if extent == 0 || (scales.is_some() && blocks == 0) {
            return Ok(Checked::without_product(output.c));
        }

        let rows = |operand: &Operand| match packed {
            true => Ok(((extent / elements(operand)) as u64, operand.list().tma_rows()?.1)),
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
            family: match block {
                Some(block) if self.has_fp4() => {
                    OperandKind::block_scaled([ElementType::E2m1; 2], ScalesOfB::Rows, block)
                }
                Some(ScaleBlock::Of32) => OperandKind::FP8_1X32,
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
            transpose: [block.is_some() && k_first; 2],
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
        let unit = GemmDesc::k_unit(self.layout, self.a.dtype);
        let Some(alignment) = groups.ends else { return Ok(unit) };
        let wrong = |argument, expected: String, found: String| Error::Shape { argument, expected, found };
        if !ALIGNMENTS.contains(&alignment) || alignment < i64::from(unit) {
            let expected = match unit {
                1 => "1, 16, 32, 64 or 128".to_owned(),
                _ => format!("16, 32, 64 or 128, as groups begin at multiples of {unit} along K"),
            };
            return Err(wrong("alignment", expected, alignment.to_string()));
        }
        Ok(alignment as u32)
    }

    /// Elements of K that share a scale, of A and of B: those that the caller knows, else 32 of FP4, or of FP8 where the
    /// host's numbers have as many blocks.
    fn scale_block_along_k(
        &self,
        (sfa, _): (&Operand, &Operand),
        host: Option<&HostKs>,
    ) -> Result<ScaleBlock> {
        let fp4 = self.has_fp4();
        let [a, b] = self.scale_blocks;
        let along_k = || {
            let dims = sfa.matrix_dims().ok()?;
            Some(dims[usize::from(self.layout != GemmLayout::Tn)] as u128)
        };
        let by_host = || {
            let (host, found) = (host?, along_k()?);
            let is_of_32 = found == host.blocks_of_32 as u128 && found != host.blocks as u128;
            is_of_32.then_some(ScaleBlock::Of32)
        };
        let block =
            a.or(b).or_else(by_host).unwrap_or(if fp4 { ScaleBlock::Of32 } else { ScaleBlock::Of128 });
        let found = format!("{:?}", self.scale_blocks);
        let refuse = |expected: &str| {
            let expected = expected.to_owned();
            Err(Error::Shape { argument: "scale_blocks", expected, found: found.clone() })
        };
        match block {
            _ if b.is_some_and(|b| b != block) => refuse("as many of K for both operands"),
            ScaleBlock::Of128 if fp4 => refuse("32 of K, as operands are FP4"),
            ScaleBlock::Of16 => refuse("128 or 32 of K"),
            block => Ok(block),
        }
    }

    /// FP4 has two elements to a byte, and so an even K of each group.
    fn expect_even_ks(&self, host: &HostKs) -> Result<()> {
        if !self.has_fp4() || host.all_even {
            return Ok(());
        }
        let expected = "even numbers, as operands are FP4".to_owned();
        Err(Error::Shape { argument: "ks_host", expected, found: "an odd one".to_owned() })
    }

    /// The scales as words, with the kind of kernels that read those, of a k-grouped GEMM that was checked as `as_f32`.
    pub(crate) fn k_grouped_scale_words(
        &self,
        as_f32: &GemmDesc,
        problem: &Problem,
    ) -> Option<(OperandKind, [ScaleWords; 2])> {
        let blocks = problem.k_groups?.blocks;
        let own = self.sfa.as_ref().zip(self.sfb.as_ref())?;
        let checked = as_f32.sfa.as_ref().zip(as_f32.sfb.as_ref())?;
        let k_first = self.layout.a_begins_with_k();
        let view = |scales: &Operand| if k_first { scales.transposed() } else { *scales };
        let words = |own: &Operand, checked: &Operand, rows: u32| ScaleWords {
            from: like(&view(own), &view(checked), false),
            slabs: 1,
            rows,
            columns: blocks,
            row_shift: 0,
            column_shift: 0,
        };
        let element = if self.has_fp4() { ElementType::E2m1 } else { ElementType::E4m3 };
        let kind = OperandKind::block_scaled([element; 2], ScalesOfB::Rows, problem.family.scale_block);
        let kind = if k_first { kind.with_k_first() } else { kind };
        Some((kind, [words(own.0, checked.0, problem.m), words(own.1, checked.1, problem.n)]))
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
    fn check(&self, count: i64, (extent, unit): (i64, u32), blocks: Option<(ScaleBlock, i64)>) -> Result<()> {
        let wrong = |expected: String, found: String| Error::Shape { argument: "ks_host", expected, found };
        let HostKs { groups, end, padded_end, .. } = *self;
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
            Some((block, blocks)) if self.blocks_of(block) as u128 != blocks as u128 => {
                let found = self.blocks_of(block).to_string();
                Err(wrong(format!("numbers of {blocks} blocks of scales"), found))
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

/// K of all groups, of operands that are lists of all bytes.
fn packed_extent([a, b]: [&Operand; 2], [m, n]: [i64; 2]) -> Result<i64> {
    let of = |operand: &Operand, rows: i64, name: &str| {
        operand.expect_list(operand.dims[0])?;
        let length = operand.dims[0];
        let (bytes, unit) = (length / rows, i64::from(PITCH_UNIT));
        let extent = bytes.saturating_mul(elements(operand));
        if length < 0 || length % rows != 0 || bytes % unit != 0 {
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
        return Err(b.wrong_shape(
            [n * (extent / elements(b))],
            "N times the K of all groups, as `a` has M times that",
        ));
    }
    Ok(extent)
}

/// Scale blocks of all groups: both operands have a scale for each row and block. Where they differ, the one is right
/// that has what the host says, or more than the other.
fn scale_blocks(
    (sfa, sfb): (&Operand, &Operand),
    k_first: bool,
    [m, n]: [i64; 2],
    (block, host): (ScaleBlock, Option<&HostKs>),
) -> Result<i64> {
    let dims = |rows, blocks| if k_first { [blocks, rows] } else { [rows, blocks] };
    let blocks_of = |scales: &Operand| scales.matrix_dims().map(|dims| dims[usize::from(!k_first)]);
    let found = [blocks_of(sfa)?, blocks_of(sfb)?];
    let told = host.map(|host| int(host.blocks_of(block))).filter(|told| found.contains(told));
    let blocks = told.unwrap_or(found[0].max(found[1]));
    for (scales, rows) in [(sfa, m), (sfb, n)] {
        if scales.matrix_dims()? != dims(rows, blocks) {
            return Err(Error::ScaleShape {
                argument: scales.name,
                expected: format!(
                    "{:?}, one per row and {} of every group's K",
                    dims(rows, blocks),
                    block.size()
                ),
                found: format!("{:?}", scales.dims()),
            });
        }
    }
    Ok(blocks)
}
