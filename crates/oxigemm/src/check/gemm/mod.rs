//! The check of a GEMM: every rule of its arguments, in one sequence for every grouping.
//!
//! A GEMM of tensors ([`tensors`]) or of raw addresses is described by a [`GemmDesc`]. The check turns that into a
//! [`Problem`], which planning and launching read.
//!
//! Types come first, then shapes, devices, and last how each operand lies in memory and what overlaps. An error names
//! the first argument that breaks a rule.

pub(crate) mod desc;
mod epilogue;
mod k_grouped;
mod memory;
pub(crate) mod output_format;
pub(crate) mod problem;
pub(crate) mod scale_codes;
pub(crate) mod scales;
pub(crate) mod tensors;

use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
use oxigemm_kernels::gemm::operand::fp8::E5m2;
use oxigemm_kernels::gemm::params::ScaleBlock;
use oxigemm_kernels::gemm::scheduler::m_grouped::{GroupLayout, MAX_GROUPS};
use oxigemm_kernels::gemm::{MGroupedShape, OperandKind};

use crate::error::{Error, Result};
use crate::tensor::desc::{Operand, ScaleStrides};
use crate::tensor::dtype::DType;
use crate::tensor::granularity::BLOCK;
use desc::{EpilogueDesc, GemmDesc, GemmLayout, GroupingDesc, MGroupedDesc};
use memory::{Output, TmaOperand};
use problem::{Checked, Groups, Problem, Summed};
use scales::{Scales, elements};

/// Bound of the elements of D: kernels count tiles of at least 64x16 elements in 32 bits, which then cannot overflow.
const D_ELEMENTS_LIMIT: i64 = 1 << 40;

/// Alignments that the first row of a group may have.
const ALIGNMENTS: [i64; 5] = [1, 16, 32, 64, 128];

/// Types of FP8 operands; all kernels have the first.
const FP8: [DType; 2] = [DType::E4m3, DType::E5m2];

/// Types of operands without scales; f32 is multiplied as TF32.
const UNSCALED: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// Types of operands where one is FP4.
const FP8_FP4: [DType; 2] = [DType::E4m3, DType::U8];

/// Dimensions of a dense, batched, summed or m-grouped GEMM.
#[derive(Clone, Copy)]
struct Shape {
    /// Slabs of A: the groups where each has rows of its own, else 1.
    slabs: i64,
    /// Groups, or matrices of a batch.
    count: i64,
    m: i64,
    /// Rows of B.
    n: i64,
    k: i64,
}

impl GemmDesc {
    /// Checks every rule of the call. Numbers that only the device knows are not looked at. It allocates nothing
    /// unless a rule is broken.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Checked> {
        self.expect_supported()?;
        match &self.grouping {
            GroupingDesc::KGrouped(groups) => self.check_k_grouped(groups),
            // FP8 operands and their scales are checked as they are in nt; errors show them as they were passed.
            _ if self.is_scaled() => self.as_nt().check_rows(),
            _ => self.check_rows(),
        }
    }

    /// Whether operands are FP8 or FP4, which have scales.
    fn is_scaled(&self) -> bool {
        self.sfa.is_some() || self.sfb.is_some()
    }

    /// Whether A and D have a leading dimension, and B.
    fn leading(&self) -> (bool, bool, bool) {
        match &self.grouping {
            GroupingDesc::Dense => (false, false, false),
            GroupingDesc::Summed => (true, false, true),
            GroupingDesc::Batched | GroupingDesc::KGrouped(_) => (true, true, true),
            GroupingDesc::MGrouped(groups) => (groups.layout.has_slabs(), groups.layout.has_slabs(), true),
        }
    }

    fn m_groups(&self) -> Option<&MGroupedDesc> {
        match &self.grouping {
            GroupingDesc::MGrouped(groups) => Some(groups),
            _ => None,
        }
    }

    /// The same with A as `[M, K]`, B as `[N, K]`, and scales alike.
    fn as_nt(&self) -> GemmDesc {
        let rank = if self.grouping == GroupingDesc::Dense { 2 } else { 3 };
        let view = |operand: Operand, k_first: bool| match k_first && operand.rank == rank {
            true if rank == 2 => operand.transposed(),
            true => operand.transposed_slabs(),
            false => operand,
        };
        let (a_first, b_first) = (self.layout.a_begins_with_k(), self.layout.b_begins_with_k());
        GemmDesc {
            layout: GemmLayout::Nt,
            a: view(self.a, a_first),
            sfa: self.sfa.map(|sfa| view(sfa, a_first)),
            b: view(self.b, b_first),
            sfb: self.sfb.map(|sfb| view(sfb, b_first)),
            ..*self
        }
    }

    fn check_rows(&self) -> Result<Checked> {
        let GemmDesc { a, b, c, d, .. } = self;
        self.expect_types()?;
        let shape = self.shape()?;
        let Shape { slabs, count, m, n, k } = shape;
        let scales = self.expect_scales(&shape)?;
        let epilogue = self.epilogue.unwrap_or_default();
        let columns = epilogue.columns(b, n, if scales.is_some() { BLOCK.into() } else { 1 })?;
        let (_, d_slabs, b_slabs) = self.leading();
        let d_dims = [if d_slabs { slabs } else { 1 }, m, epilogue.columns_of_d(columns)];
        self.expect_output(d_dims, b_slabs.then_some(count), scales.as_ref())?;
        let rows = &[d_dims[0], m, columns][usize::from(!d_slabs)..];
        epilogue.check_shapes((self.is_grouped().then_some(count), n), rows, a, c.as_ref())?;
        if m == 0 || n == 0 || (self.is_grouped() && count == 0) {
            return Ok(Checked::Nothing);
        }
        if k == 0 && self.is_grouped() {
            return Err(self.no_k(&shape));
        }

        // m-grouped FP8 kernels count the rows of all slabs.
        let whole_rows = scales.is_some() && self.m_groups().is_some();
        // Those kernels are held to it by a test.
        let dense_fp8 = scales.is_some() && self.grouping == GroupingDesc::Dense && self.epilogue.is_none();
        let output = Output::new(d, c.as_ref(), whole_rows, dense_fp8 && k > 0)?;
        if k == 0 || slabs == 0 {
            return match self.epilogue {
                None => Ok(Checked::without_product(output.c)),
                // What an activation makes of nothing may be anything.
                Some(_) => Err(self.no_k(&shape)),
            };
        }
        // Kernels count K in elements, rounded up to stages of 64.
        if self.grouping == GroupingDesc::Summed && i128::from(slabs) * i128::from(k + 63) > i32::MAX.into() {
            return Err(a.too_large(format!("a K of all products up to {}", i32::MAX)));
        }

        let either = self.either_major();
        let tma_a = TmaOperand::new(a, self.layout.a_begins_with_k(), either[0])?;
        let tma_b = TmaOperand::new(b, self.layout.b_begins_with_k(), either[1])?;
        let majors = [tma_a.major, tma_b.major];
        let mut inputs = [Some((a, tma_a.memory)), Some((b, tma_b.memory)), None, None, None];
        let (mut strides, mut scale_slabs) = ([ScaleStrides::NONE; 2], [0; 2]);
        if let Some(Scales { sfa, sfb, .. }) = &scales {
            for (i, scales) in [sfa, sfb].into_iter().enumerate() {
                let (own, memory) = scales.slab().scale_strides()?;
                let (slab, memory) = scales.scale_slabs(own, memory)?;
                (strides[i], scale_slabs[i], inputs[2 + i]) = (own, slab, Some((scales, memory)));
            }
        }
        if let Some(groups) = self.m_groups() {
            inputs[4] = Some((&groups.numbers, groups.numbers.list().plain_rows()?.1));
        }
        for (input, memory) in inputs.iter().flatten() {
            d.expect_apart(&output.memory, input, memory)?;
        }
        let fused = match &self.epilogue {
            None => None,
            Some(epilogue) => Some(epilogue.check_memory(
                d,
                &output.memory,
                inputs.iter().flatten().map(|x| (x.0, &x.1)),
            )?),
        };
        let is_batch = self.grouping == GroupingDesc::Batched;
        let groups = (is_batch || self.m_groups().is_some()).then(|| Groups {
            layout: self.m_groups().map_or(GroupLayout::All, |groups| groups.layout),
            count: count as u32,
            alignment: self.m_groups().map_or(1, |groups| groups.alignment as u32),
            expected: self.m_groups().map_or(m as u32, |groups| groups.expected_rows(&shape)),
            a_slab: tma_a.slab,
            b_group: tma_b.slab,
            d_slab: output.slab,
            sfa_slab: scale_slabs[0],
            sfb_group: scale_slabs[1],
        });
        let summed = Summed { slabs: slabs as u32, a_slab: tma_a.slab, b_slab: tma_b.slab };
        let is_fp8 = scales.is_some();
        Ok(Checked::Launch(Problem {
            family: match &scales {
                Some(scales) => scales.kind,
                None if a.dtype == DType::F32 => OperandKind::tf32(majors),
                None => OperandKind::f16(half_operands(a, majors)),
            },
            // The dimensions are bounded by i32::MAX.
            m: m as u32,
            n: columns as u32,
            k: k as u32,
            a_pitch: tma_a.pitch,
            b_pitch: tma_b.pitch,
            d_pitch: output.pitch,
            c: output.c,
            sfa: strides[0],
            sfb: strides[1],
            d_type: d.dtype,
            transpose: majors.map(|major| is_fp8 && major == Major::MN),
            groups,
            k_groups: None,
            summed: (self.grouping == GroupingDesc::Summed).then_some(summed),
            fused,
        }))
    }

    /// Whether rows are grouped, or GEMMs batched.
    fn is_grouped(&self) -> bool {
        matches!(self.grouping, GroupingDesc::Batched | GroupingDesc::MGrouped(_))
    }

    /// Refuses combinations that no kernel serves.
    fn expect_supported(&self) -> Result<()> {
        let refuse = |argument, expected: &str, found: String| {
            Err(Error::Shape { argument, expected: expected.to_owned(), found })
        };
        let (scaled, batch) = (self.is_scaled(), self.is_grouped() && self.m_groups().is_none());
        if self.sfa.is_some() != self.sfb.is_some() {
            let argument = if self.sfa.is_some() { "sfb" } else { "sfa" };
            return refuse(argument, "scales of both operands, or of none", "scales of one".to_owned());
        }
        if self.is_grouped() && self.layout.a_begins_with_k() {
            return refuse("layout", "nt or nn, as groups are of rows of `a`", self.layout.to_string());
        }
        if self.grouping == GroupingDesc::Summed && (scaled || self.layout != GemmLayout::Nt) {
            let found = format!("{}, {}", if scaled { "scales" } else { "no scales" }, self.layout);
            return refuse("grouping", "16-bit operands in nt where products are added up", found);
        }
        let fusible = self.grouping == GroupingDesc::Dense || self.m_groups().is_some();
        if self.epilogue.is_some() && !fusible {
            return refuse("epilogue", "a dense or an m-grouped GEMM", "another grouping".to_owned());
        }
        if self.c.is_some() && scaled && (batch || (self.m_groups().is_some() && self.epilogue.is_none())) {
            return refuse(
                "c",
                "nothing to add to grouped FP8 products without epilogue",
                "an addend".to_owned(),
            );
        }
        Ok(())
    }

    /// Checks the element types of all operands but C and those of the epilogue.
    fn expect_types(&self) -> Result<()> {
        let GemmDesc { a, b, sfa, sfb, d, .. } = self;
        if self.is_scaled() {
            let dense = self.grouping == GroupingDesc::Dense && self.epilogue.is_none();
            let types = match (&self.grouping, self.has_fp4()) {
                (GroupingDesc::KGrouped(_), true) if self.layout == GemmLayout::Nt => &FP8_FP4[1..],
                (GroupingDesc::KGrouped(_), _) => &FP8[..1],
                (_, true) => &FP8_FP4[..],
                (_, false) if dense => &FP8[..],
                (_, false) => &FP8[..1],
            };
            a.expect_dtype(types)?;
            b.expect_dtype(types)?;
        } else {
            // TF32 is for one GEMM without an epilogue.
            let dense = self.grouping == GroupingDesc::Dense && self.epilogue.is_none();
            a.expect_dtype(if dense { &UNSCALED } else { &UNSCALED[..2] })?;
            b.expect_dtype(&[a.dtype])?;
        }
        for scales in [sfa, sfb].into_iter().flatten() {
            scales.expect_dtype(&[DType::F32])?;
        }
        self.epilogue.unwrap_or_default().expect_type_of_d(d, a)?;
        match &self.grouping {
            GroupingDesc::MGrouped(groups) => groups.numbers.expect_dtype(&[DType::I32]),
            GroupingDesc::KGrouped(groups) => groups.ks.expect_dtype(&[DType::I32]),
            _ => Ok(()),
        }
    }

    /// The dimensions of A and B, which must fit each other.
    fn shape(&self) -> Result<Shape> {
        let GemmDesc { layout, a, b, .. } = self;
        let (a_slabs, _, b_slabs) = self.leading();
        let along_k = |operand: &Operand, k_first: bool, several: bool| -> Result<[i64; 3]> {
            let [slabs, rows, columns] = operand.slab_dims(several)?;
            let [rows, k] = if k_first { [columns, rows] } else { [rows, columns] };
            let k = k * elements(operand);
            if k > i32::MAX.into() {
                return Err(operand.too_large(format!("a K up to {}", i32::MAX)));
            }
            Ok([slabs, rows, k])
        };
        let (a_first, b_first) = (layout.a_begins_with_k(), layout.b_begins_with_k());
        if !self.is_grouped() {
            let [slabs, m, k] = along_k(a, a_first, a_slabs)?;
            let [count, n, b_k] = along_k(b, b_first, b_slabs)?;
            if [count, b_k] != [slabs, k] {
                self.expect_even([k, b_k])?;
                let k = k / elements(b);
                let expected = if b_first { [slabs, k, n] } else { [slabs, n, k] };
                let meaning =
                    if b_slabs { "with the products and the K of `a`" } else { "with the K of `a`" };
                return Err(b.wrong_shape(&expected[usize::from(!b_slabs)..], meaning));
            }
            return Ok(Shape { slabs, count, m, n, k });
        }
        let [count, n, k] = along_k(b, b_first, true)?;
        let [slabs, m, a_k] = along_k(a, false, a_slabs)?;
        let expected = [count, m, k / elements(a)];
        if a_slabs && slabs != count {
            return Err(a.wrong_shape(expected, "with the groups of `b`"));
        }
        if a_k != k {
            self.expect_even([a_k, k])?;
            return Err(a.wrong_shape(&expected[usize::from(!a_slabs)..], "with the K of `b`"));
        }
        Ok(Shape { slabs, count, m, n, k })
    }

    /// K is even where an operand is FP4.
    fn expect_even(&self, k: [i64; 2]) -> Result<()> {
        let odd = [&self.a, &self.b].into_iter().zip(k).find(|(_, k)| k % 2 != 0);
        match odd.filter(|_| self.has_fp4()) {
            None => Ok(()),
            Some((operand, k)) => Err(Error::Shape {
                argument: operand.name,
                expected: "an even K, as the other operand is FP4".to_owned(),
                found: format!("{k}"),
            }),
        }
    }

    fn no_k(&self, &Shape { count, n, .. }: &Shape) -> Error {
        let (_, _, several) = self.leading();
        let expected = if self.layout.b_begins_with_k() { [count, 1, n] } else { [count, n, 1] };
        self.b.wrong_shape(&expected[usize::from(!several)..], "or more along K")
    }

    /// Checks the shapes of D and C, the numbers of groups, and that all operands are where A is.
    fn expect_output(&self, dims: [i64; 3], groups: Option<i64>, scales: Option<&Scales>) -> Result<()> {
        let GemmDesc { a, b, c, d, .. } = self;
        let (_, several, _) = self.leading();
        let expect_dims = |operand: &Operand, meaning: &str| match operand.slab_dims(several)? == dims {
            true => Ok(()),
            false => Err(operand.wrong_shape(&dims[usize::from(!several)..], meaning)),
        };
        expect_dims(d, self.meaning_of_d())?;
        if let Some(c) = c {
            c.expect_dtype(&[d.dtype])?;
            expect_dims(c, "the shape of `d`")?;
        }
        let numbers = self.m_groups().map(|groups| &groups.numbers);
        if let Some(groups) = self.m_groups() {
            let count = groups_of(groups, dims[1], b);
            groups.numbers.expect_list(count)?;
        }
        if self.is_grouped() && groups.is_some_and(|count| count > i64::from(MAX_GROUPS)) {
            return Err(b.too_large(format!("at most {MAX_GROUPS} groups")));
        }
        expect_elements(d, dims)?;
        if let Some(groups) = self.m_groups() {
            groups.expect_parameters()?;
        }
        let scales = scales.map(|scales| [&scales.sfa, &scales.sfb]);
        let [sfa, sfb] = scales.map_or([None, None], |scales| scales.map(Some));
        for operand in [sfa, Some(b), sfb, Some(d), numbers, c.as_ref()].into_iter().flatten() {
            operand.expect_device(a)?;
        }
        Ok(())
    }

    /// Dimensions of D in words, for errors.
    fn meaning_of_d(&self) -> &'static str {
        let in_rows = self.is_scaled() && !self.a.exchanged && !self.b.exchanged;
        match (&self.epilogue, self.is_grouped(), in_rows) {
            (Some(epilogue), ..) => epilogue.meaning_of_d(),
            (None, true, true) => "the rows of `a` by the rows of a group's `b`",
            (None, true, false) => "the rows of `a` by the N of a group's `b`",
            (None, false, true) => EpilogueDesc::default().meaning_of_d(),
            (None, false, false) => "the M of `a` by the N of `b`",
        }
    }

    /// Whether A, and B, may be contiguous along M or N instead of K.
    fn either_major(&self) -> [bool; 2] {
        let k_major = |operand: &Operand| operand.rank == 2 && operand.strides[1] == 1;
        let [a, b] = match (&self.epilogue, &self.grouping, self.is_scaled()) {
            (Some(_), ..) | (None, GroupingDesc::Summed, _) => [false; 2],
            (None, GroupingDesc::Dense, true) => {
                [self.transpose && !(k_major(&self.a) && k_major(&self.b)); 2]
            }
            (None, GroupingDesc::Dense, false) => [true; 2],
            (None, _, scaled) => [false, self.transpose || !scaled],
        };
        // FP4 is not transposed.
        [a && self.a.dtype != DType::U8, b && self.b.dtype != DType::U8]
    }
}

impl MGroupedDesc {
    fn expect_parameters(&self) -> Result<()> {
        let wrong = |argument, expected: &str, found: i64| Error::Shape {
            argument,
            expected: expected.to_owned(),
            found: found.to_string(),
        };
        if !ALIGNMENTS.contains(&self.alignment) {
            return Err(wrong("alignment", "1, 16, 32, 64 or 128", self.alignment));
        }
        match self.expected_m {
            Some(negative @ ..0) => Err(wrong("expected_m", "0 or more", negative)),
            _ => Ok(()),
        }
    }

    /// Rows that a group is expected to have: as many as are told, but no more than there are.
    fn expected_rows(&self, &Shape { slabs, count, m, .. }: &Shape) -> u32 {
        let likely = || {
            let padded = u32::try_from(m * slabs / count).unwrap_or(u32::MAX);
            let alignment = if self.layout.has_slabs() { 1 } else { self.alignment as u32 };
            MGroupedShape::likely_rows(padded, alignment).into()
        };
        self.expected_m.unwrap_or_else(likely).clamp(1, m) as u32
    }
}

/// Length of the list of numbers: one for each row, or one for each group.
fn groups_of(groups: &MGroupedDesc, rows: i64, b: &Operand) -> i64 {
    if groups.layout == GroupLayout::Ids { rows } else { b.dims[0] }
}

/// Checks that kernels can count the tiles of D.
fn expect_elements(d: &Operand, dims: [i64; 3]) -> Result<()> {
    if dims.iter().map(|dim| i128::from(*dim)).product::<i128>() > D_ELEMENTS_LIMIT.into() {
        return Err(d.too_large(format!("at most {D_ELEMENTS_LIMIT} elements")));
    }
    Ok(())
}

/// Kernels of FP8 operands of these types, where 128 rows of B share a scale.
fn fp8_kind(types: [DType; 2]) -> OperandKind {
    E5m2::of(types.map(|dtype| dtype == DType::E5m2)).map_or(OperandKind::FP8, OperandKind::fp8_e5m2)
}

/// 16-bit operands of the type of A.
fn half_operands(a: &Operand, [a_major, b_major]: [Major; 2]) -> Operands {
    let element = if a.dtype == DType::Bf16 { Half::Bf16 } else { Half::F16 };
    Operands { element, a: a_major, b: b_major }
}

/// Scale blocks along a dimension.
fn blocks(length: i64, block: ScaleBlock) -> i64 {
    blocks_of(length, block.size().into())
}

fn blocks_of(length: i64, size: i64) -> i64 {
    (length + size - 1) / size
}
