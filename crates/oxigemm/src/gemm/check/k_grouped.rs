//! The argument checks of products with groups along K.

use oxigemm_kernels::gemm::launch::OperandKind;
use oxigemm_kernels::gemm::scheduler::k_grouped::PITCH_UNIT;
use oxigemm_kernels::gemm::scheduler::m_grouped::MAX_GROUPS;

use super::operand::Footprint;
use super::{Accumulate, BLOCK, D_ELEMENTS_LIMIT, GemmLayout, Operand, Problem, Trivial};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The arguments of an FP8 product with groups along K: D\[g\] = C\[g\] + A_g·B_gᵀ, or A_gᵀ·B_g.
#[derive(Clone, Copy, Debug)]
pub struct KGroupedFp8Gemm<'a> {
    /// How A and B are given: nt or tn.
    pub layout: GemmLayout,
    /// e4m3. Of nt, all elements: of each group `[M, K_g]`, rows of K_g rounded up to 16 elements. Of tn `[K, M]`.
    pub a: Operand,
    /// The scales of A: `[M, sum of ceil(K_g/128)]` f32, of tn `[sum of ceil(K_g/128), M]`.
    pub sfa: Operand,
    /// Like A: `[N, K_g]` of each group, or `[K, N]`.
    pub b: Operand,
    /// The scales of B, like those of A.
    pub sfb: Operand,
    /// What is added to the product: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[G, M, N]` bf16 or f32, row-major.
    pub d: Operand,
    /// The K of each group: `[G]` i32, which only the device reads.
    pub ks: Operand,
    /// The same numbers, as far as the host knows them.
    pub ks_host: Option<&'a [usize]>,
}

/// What a call with good arguments has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedKGroups {
    /// Run a kernel. The K of the problem is that of all groups together.
    Launch(Problem, KGroups),
    /// Something for which no kernel is needed: in every group, where there are any.
    Trivial(Trivial),
}

/// The groups of a checked product. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KGroups {
    /// How many groups there are.
    pub count: u32,
    /// Blocks of scales of all groups; 0 where there are no scales.
    pub blocks: u32,
    /// From one group of D, and of C, to the next, in rows.
    pub d_slab: u32,
}

impl KGroupedFp8Gemm<'_> {
    /// Checks every rule of the call. What the numbers on the device are is not looked at.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<CheckedKGroups> {
        let KGroupedFp8Gemm { layout, a, sfa, b, sfb, c, d, ks, .. } = self;
        let k_first = k_is_first(*layout)?;

        a.expect_dtype(&[DType::E4m3])?;
        b.expect_dtype(&[DType::E4m3])?;
        sfa.expect_dtype(&[DType::F32])?;
        sfb.expect_dtype(&[DType::F32])?;
        d.expect_dtype(&[DType::Bf16, DType::F32])?;
        let Some([count, m, n]) = expect_groups(a, &[sfa, b, sfb], c.as_ref(), d, ks)? else {
            return Ok(CheckedKGroups::Trivial(Trivial::Nothing));
        };
        let (extent, unit) = match k_first {
            false => (a.extent(m, "M")?, PITCH_UNIT),
            true => (expect_ranges([a, b], true, [m, n])?, 1),
        };
        if !k_first && b.extent(n, "N")? != extent {
            let expected = [n * extent];
            return Err(b.wrong_shape(expected, "N times the K of all groups, as `a` has M times that"));
        }
        let dims = |rows, blocks| if k_first { [blocks, rows] } else { [rows, blocks] };
        let found = sfa.matrix_dims()?;
        let blocks = if k_first { found[0] } else { found[1] };
        for (scales, rows) in [(sfa, m), (sfb, n)] {
            if scales.matrix_dims()? != dims(rows, blocks) {
                return Err(scale_shape(scales, dims(rows, blocks)));
            }
        }
        expect_host_numbers(self.ks_host, count, (extent, unit), Some(blocks))?;

        let output = GroupedOutput::of(d, c.as_ref())?;
        if extent == 0 || blocks == 0 {
            return Ok(CheckedKGroups::Trivial(Trivial::without_product(output.c)));
        }
        let rows = |operand: &Operand| match k_first {
            false => Ok((extent as u64, operand.list().tma_rows()?.1)),
            true => operand.tma_rows(),
        };
        let ((a_pitch, a_memory), (b_pitch, b_memory)) = (rows(a)?, rows(b)?);
        let strides = |scales: &Operand| match k_first {
            false => scales.scale_strides(),
            true => scales.transposed().scale_strides(),
        };
        let ((sfa_strides, sfa_memory), (sfb_strides, sfb_memory)) = (strides(sfa)?, strides(sfb)?);
        let (_, ks_memory) = ks.list().plain_rows()?;
        let inputs = [(a, a_memory), (b, b_memory), (sfa, sfa_memory), (sfb, sfb_memory), (ks, ks_memory)];
        for (input, memory) in &inputs {
            d.expect_apart(&output.memory, input, memory)?;
        }
        let problem = Problem {
            family: OperandKind::Fp8Rows,
            // Every one of them is bounded by i32::MAX.
            m: m as u32,
            n: n as u32,
            k: extent as u32,
            a_pitch,
            b_pitch,
            d_pitch: output.pitch,
            c: output.c,
            sfa: sfa_strides,
            sfb: sfb_strides,
            d_type: d.dtype,
        };
        let groups = KGroups { count: count as u32, blocks: blocks as u32, d_slab: output.slab };
        Ok(CheckedKGroups::Launch(problem, groups))
    }
}

/// Whether operands begin with K, in one of the layouts that there are.
pub(super) fn k_is_first(layout: GemmLayout) -> Result<bool> {
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

/// The K of all groups, of operands that are one matrix each, of which groups have ranges.
pub(super) fn expect_ranges([a, b]: [&Operand; 2], k_first: bool, [m, n]: [i64; 2]) -> Result<i64> {
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

/// The rules of C, D and the numbers, and that all operands are where `a` is. Gives the number of groups, M and N, unless
/// one of them is 0.
pub(super) fn expect_groups(
    a: &Operand,
    others: &[&Operand],
    c: Option<&Operand>,
    d: &Operand,
    ks: &Operand,
) -> Result<Option<[i64; 3]>> {
    ks.expect_dtype(&[DType::I32])?;
    let [count, m, n] = d.slab_dims(true)?;
    ks.expect_list(count)?;
    if count > i64::from(MAX_GROUPS) {
        return Err(d.too_large(format!("at most {MAX_GROUPS} groups")));
    }
    if i128::from(count) * i128::from(m) * i128::from(n) > i128::from(D_ELEMENTS_LIMIT) {
        return Err(d.too_large(format!("at most {D_ELEMENTS_LIMIT} elements")));
    }
    if let Some(c) = c {
        c.expect_dtype(&[d.dtype])?;
        if c.slab_dims(true)? != [count, m, n] {
            return Err(c.wrong_shape([count, m, n], "the shape of `d`"));
        }
    }
    for operand in others.iter().copied().chain([d, ks]).chain(c) {
        operand.expect_device(a)?;
    }
    Ok((count != 0 && m != 0 && n != 0).then_some([count, m, n]))
}

/// What the host knows of the numbers must fit the operands: a K of all groups, which begin at multiples of a unit, and
/// blocks of scales, where there are some.
pub(super) fn expect_host_numbers(
    ks: Option<&[usize]>,
    count: i64,
    (extent, unit): (i64, u32),
    blocks: Option<i64>,
) -> Result<()> {
    let Some(ks) = ks else { return Ok(()) };
    let wrong = |expected: String, found: String| Error::Shape { argument: "ks_host", expected, found };
    if ks.len() as i64 != count {
        return Err(wrong(format!("{count} numbers, one of each group"), format!("{} numbers", ks.len())));
    }
    let unit = unit as usize;
    let rounded = |end: usize| end.checked_next_multiple_of(unit).unwrap_or(usize::MAX);
    let numbers = ks.iter().filter(|k| **k > 0);
    let end = numbers.fold(0usize, |end, k| rounded(end).saturating_add(*k));
    if ![end, rounded(end)].iter().any(|end| *end as u128 == extent as u128) {
        let apart = if unit > 1 { format!(", with groups at multiples of {unit},") } else { String::new() };
        return Err(wrong(
            format!("numbers that{apart} make {extent}, the K of `a` and `b`"),
            format!("{end}"),
        ));
    }
    let found = ks.iter().fold(0usize, |sum, k| sum.saturating_add(k.div_ceil(BLOCK as usize)));
    if blocks.is_some_and(|blocks| found as u128 != blocks as u128) {
        let blocks = blocks.unwrap_or_default();
        return Err(wrong(format!("numbers of {blocks} blocks of scales"), format!("{found}")));
    }
    Ok(())
}

/// How D of all groups lies in memory, and what is added to it.
pub(super) struct GroupedOutput {
    /// From one row to the next, in elements.
    pub pitch: u64,
    /// From one group to the next, in rows.
    pub slab: u32,
    pub memory: Footprint,
    pub c: Accumulate,
}

impl GroupedOutput {
    /// That of `d` with `c` added.
    pub fn of(d: &Operand, c: Option<&Operand>) -> Result<GroupedOutput> {
        let (pitch, slab, memory) = d.rows_of_groups()?;
        let Some(c) = c else { return Ok(GroupedOutput { pitch, slab, memory, c: Accumulate::None }) };
        let (c_pitch, c_slab, c_memory) = c.rows_of_groups()?;
        if c.address == d.address && c_pitch == pitch && c_slab == slab {
            return Ok(GroupedOutput { pitch, slab, memory, c: Accumulate::InPlace });
        }
        if c_slab != slab {
            return Err(Error::Stride {
                argument: c.name,
                expected: format!("groups {slab} rows apart, as those of `d`"),
                found: format!("{c_slab} rows"),
            });
        }
        d.expect_apart(&memory, c, &c_memory)?;
        Ok(GroupedOutput { pitch, slab, memory, c: Accumulate::From { pitch: c_pitch } })
    }
}

fn scale_shape(scales: &Operand, expected: [i64; 2]) -> Error {
    Error::ScaleShape {
        argument: scales.name,
        expected: format!("{expected:?}, one per row and 128 of every group's K"),
        found: format!("{:?}", scales.dims()),
    }
}

impl Operand {
    /// The K of all groups, of which this has all elements of `rows` rows.
    fn extent(&self, rows: i64, name: &str) -> Result<i64> {
        self.expect_list(self.dims[0])?;
        let length = self.dims[0];
        let (extent, unit) = (length / rows, i64::from(PITCH_UNIT));
        if length < 0 || length % rows != 0 || extent % unit != 0 {
            let expected = format!("a length of {name} = {rows} times a multiple of {unit}");
            return Err(Error::Shape { argument: self.name, expected, found: format!("[{length}]") });
        }
        if extent > i64::from(i32::MAX) {
            return Err(self.too_large(format!("a K of all groups up to {}", i32::MAX)));
        }
        Ok(extent)
    }

    /// The pitch of an output of several groups, the rows from one group to the next, and the bytes of all.
    fn rows_of_groups(&self) -> Result<(u64, u32, Footprint)> {
        let (pitch, memory) = self.slab().plain_rows()?;
        let (pitch, elements, memory) = self.whole_rows_apart(pitch, memory)?;
        Ok((pitch, (u64::from(elements) / pitch) as u32, memory))
    }
}
