//! The checks of products with 16-bit operands whose rows are grouped.

use oxigemm_kernels::gemm::launch::OperandKind;
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};
use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

use super::grouped::expect_sizes;
use super::operand::Footprint;
use super::{
    Accumulate, CheckedGroups, EpilogueArguments, GemmLayout, Groups, GroupsArgument, Operand, Problem,
    ScaleStrides,
};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The arguments of a product with 16-bit operands whose rows are grouped: D = C + A·B, each group with its own B.
///
/// Where [`GroupsArgument::layout`] is `Counts`, or there are no such, A, C and D have a leading dimension for the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupedHalfGemm {
    /// How A and the B of a group are given: nt or nn.
    pub layout: GemmLayout,
    /// `[M, K]` or `[G, M, K]` bf16 or f16, K-major.
    pub a: Operand,
    /// `[G, N, K]` or `[G, K, N]`, of the same type, contiguous along either of the last two dimensions.
    pub b: Operand,
    /// What is added to the product: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[M, N]` or `[G, M, N]`, row-major, of the type of `a` or f32.
    pub d: Operand,
    /// Where the groups are; without it, each has all rows of its slab: a batch of products.
    pub groups: Option<GroupsArgument>,
}

impl GroupedHalfGemm {
    /// Checks every rule of the call. What the numbers are is not looked at: only the device knows.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<CheckedGroups> {
        self.check_finished(None)
    }

    /// The same; with an `epilogue` sums are finished: D may be of other columns and another type, and B is K-major.
    pub(super) fn check_finished(&self, epilogue: Option<&EpilogueArguments>) -> Result<CheckedGroups> {
        let GroupedHalfGemm { layout, a, b, c, d, groups } = self;
        let numbers = groups.as_ref().map(|groups| &groups.numbers);
        let group_layout = groups.map_or(GroupLayout::All, |groups| groups.layout);
        let masked = group_layout.has_slabs();
        let finish = epilogue.copied().unwrap_or_default();

        if layout.a_begins_with_k() {
            return Err(Error::Shape {
                argument: "layout",
                expected: "nt or nn, as groups are of rows of `a`".to_owned(),
                found: layout.to_string(),
            });
        }
        a.expect_dtype(&[DType::Bf16, DType::F16])?;
        b.expect_dtype(&[a.dtype])?;
        finish.expect_type_of_d(d, a)?;
        if let Some(numbers) = numbers {
            numbers.expect_dtype(&[DType::I32])?;
        }
        let k_first = layout.b_begins_with_k();
        let [count, rows, columns] = b.slab_dims(true)?;
        let [n, k] = if k_first { [columns, rows] } else { [rows, columns] };
        let [slabs, m, a_k] = a.slab_dims(masked)?;
        if masked && slabs != count {
            return Err(a.wrong_shape([count, m, k], "with the groups of `b`"));
        }
        if a_k != k {
            let expected = if masked { vec![count, m, k] } else { vec![m, k] };
            return Err(a.wrong_shape(expected, "with the K of `b`"));
        }
        let columns = finish.columns(b, n, 1)?;
        let d_dims = [slabs, m, finish.columns_of_d(columns)];
        let expect_dims = |operand: &Operand, meaning: &str| {
            if operand.slab_dims(masked)? == d_dims {
                return Ok(());
            }
            Err(operand.wrong_shape(&d_dims[usize::from(!masked)..], meaning))
        };
        let meaning =
            epilogue.map_or("the rows of `a` by the N of a group's `b`", EpilogueArguments::meaning_of_d);
        expect_dims(d, meaning)?;
        if let Some(c) = c {
            c.expect_dtype(&[d.dtype])?;
            expect_dims(c, "the shape of `d`")?;
        }
        match groups {
            Some(groups) => groups.check(b, d, [slabs, count, m, d_dims[2]])?,
            None => expect_sizes(b, d, [slabs, count, m, d_dims[2]])?,
        }
        for operand in [Some(b), c.as_ref(), Some(d), numbers].into_iter().flatten() {
            operand.expect_device(a)?;
        }
        let rows = &[slabs, m, columns][usize::from(!masked)..];
        finish.check_shapes((Some(count), n), rows, a, c.as_ref())?;
        if count == 0 || m == 0 || n == 0 {
            return Ok(CheckedGroups::Nothing);
        }
        if k == 0 {
            let expected = if k_first { [count, 1, n] } else { [count, n, 1] };
            return Err(b.wrong_shape(expected, "or more along K"));
        }

        let (d_pitch, d_slab, d_memory, accumulate) = output(d, c.as_ref())?;
        let (a_pitch, a_memory) = a.slab().tma_rows()?;
        let (a_slab, a_memory) = a.tma_slabs(a_pitch, a_memory)?;
        let b_rows = if k_first { b.slab().transposed() } else { b.slab() };
        let (b_major, b_pitch, b_memory) = match (epilogue, k_first) {
            (Some(_), _) => b_rows.tma_rows().map(|(pitch, memory)| (Major::K, pitch, memory))?,
            (None, false) => b_rows.tma_either_major(Major::K)?,
            (None, true) => b_rows.tma_either_major(Major::MN)?,
        };
        let (b_group, b_memory) = b.tma_slabs(b_pitch, b_memory)?;
        for (input, memory) in [(a, &a_memory), (b, &b_memory)] {
            d.expect_apart(&d_memory, input, memory)?;
        }
        if let Some(numbers) = numbers {
            d.expect_apart(&d_memory, numbers, &numbers.list().plain_rows()?.1)?;
        }
        let element = if a.dtype == DType::Bf16 { Half::Bf16 } else { Half::F16 };
        let problem = Problem {
            family: OperandKind::Half(Operands { element, a: Major::K, b: b_major }),
            // slab_dims has bounded each of them by i32::MAX.
            m: m as u32,
            n: columns as u32,
            k: k as u32,
            a_pitch,
            b_pitch,
            d_pitch,
            c: accumulate,
            sfa: ScaleStrides::NONE,
            sfb: ScaleStrides::NONE,
            d_type: d.dtype,
        };
        let groups = Groups {
            layout: group_layout,
            count: count as u32,
            alignment: groups.map_or(1, |groups| groups.alignment as u32),
            expected: groups.map_or(m as u32, |groups| groups.expected_rows([slabs, count, m])),
            a_slab,
            b_group,
            d_slab,
            sfa_slab: 0,
            sfb_group: 0,
        };
        Ok(CheckedGroups::Launch(problem, groups))
    }
}

/// From one row of D to the next and from one slab to the next, its bytes, and what is added to it.
fn output(d: &Operand, c: Option<&Operand>) -> Result<(u64, u32, Footprint, Accumulate)> {
    let (d_pitch, d_slab, d_memory) = d.plain_slabs()?;
    let Some(c) = c else { return Ok((d_pitch, d_slab, d_memory, Accumulate::None)) };
    let (pitch, slab, memory) = c.plain_slabs()?;
    if slab != d_slab {
        return Err(Error::Stride {
            argument: "c",
            expected: format!("groups {d_slab} elements apart, as those of `d`"),
            found: format!("groups {slab} elements apart"),
        });
    }
    if c.address == d.address && pitch == d_pitch {
        return Ok((d_pitch, d_slab, d_memory, Accumulate::InPlace));
    }
    d.expect_apart(&d_memory, c, &memory)?;
    Ok((d_pitch, d_slab, d_memory, Accumulate::From { pitch }))
}
