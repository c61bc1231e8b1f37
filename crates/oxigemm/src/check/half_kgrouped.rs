//! The argument checks of products with 16-bit operands and groups along K.

use oxigemm_kernels::gemm::OperandKind;
use oxigemm_kernels::gemm::operand::f16::Half;

use super::kgrouped::{GroupedOutput, expect_groups, expect_host_numbers, expect_ranges, k_is_first};
use super::{CheckedKGroups, GemmLayout, KGroups, Operand, Problem, ScaleStrides, Trivial};
use crate::dtype::DType;
use crate::error::Result;

/// The arguments of a product with 16-bit operands and groups along K: D\[g\] = C\[g\] + A_g·B_g.
#[derive(Clone, Copy, Debug)]
pub struct KGroupedHalfGemm<'a> {
    /// How A and B are given: tn or nt.
    pub layout: GemmLayout,
    /// `[K, M]`, of nt `[M, K]`, bf16 or f16, contiguous along the last dimension; K is that of all groups.
    pub a: Operand,
    /// `[K, N]`, of nt `[N, K]`, like A.
    pub b: Operand,
    /// What is added to the product: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[G, M, N]`, row-major, of the type of `a` or f32.
    pub d: Operand,
    /// The K of each group: `[G]` i32, which only the device reads.
    pub ks: Operand,
    /// The same numbers, as far as the host knows them.
    pub ks_host: Option<&'a [usize]>,
}

impl KGroupedHalfGemm<'_> {
    /// Checks every rule of the call. What the numbers on the device are is not looked at.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<CheckedKGroups> {
        let KGroupedHalfGemm { layout, a, b, c, d, ks, .. } = self;
        let k_first = k_is_first(*layout)?;
        a.expect_dtype(&[DType::Bf16, DType::F16])?;
        b.expect_dtype(&[a.dtype])?;
        d.expect_dtype(&[a.dtype, DType::F32])?;
        let Some([count, m, n]) = expect_groups(a, &[b], c.as_ref(), d, ks)? else {
            return Ok(CheckedKGroups::Trivial(Trivial::Nothing));
        };
        let extent = expect_ranges([a, b], k_first, [m, n])?;
        let element = if a.dtype == DType::Bf16 { Half::Bf16 } else { Half::F16 };
        let operands = layout.operands(element);
        expect_host_numbers(self.ks_host, count, (extent, operands.k_unit()), None)?;

        let output = GroupedOutput::of(d, c.as_ref())?;
        if extent == 0 {
            return Ok(CheckedKGroups::Trivial(Trivial::without_product(output.c)));
        }
        let ((a_pitch, a_memory), (b_pitch, b_memory)) = (a.tma_rows()?, b.tma_rows()?);
        let (_, ks_memory) = ks.list().plain_rows()?;
        for (input, memory) in [(a, a_memory), (b, b_memory), (ks, ks_memory)] {
            d.expect_apart(&output.memory, input, &memory)?;
        }
        let problem = Problem {
            family: OperandKind::f16(operands),
            // Every one of them is bounded by i32::MAX.
            m: m as u32,
            n: n as u32,
            k: extent as u32,
            a_pitch,
            b_pitch,
            d_pitch: output.pitch,
            c: output.c,
            sfa: ScaleStrides::NONE,
            sfb: ScaleStrides::NONE,
            d_type: d.dtype,
        };
        Ok(CheckedKGroups::Launch(problem, KGroups { count: count as u32, blocks: 0, d_slab: output.slab }))
    }
}
