//! The checks of batches of products with 16-bit operands that are added up.

use oxigemm_kernels::gemm::OperandKind;
use oxigemm_kernels::gemm::operand::f16::{Half, Major, Operands};

use super::{Checked, Operand, Problem, ScaleStrides, Trivial, accumulation, expect_output};
use crate::dtype::DType;
use crate::error::Result;

/// The arguments of a sum of products with 16-bit operands: D = C + the sum of all A\[b\]·B\[b\]ᵀ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummedHalfGemm {
    /// `[B, M, K]` bf16 or f16, K-major.
    pub a: Operand,
    /// `[B, N, K]`, like A.
    pub b: Operand,
    /// What is added to the sum: like D. It may be D itself.
    pub c: Option<Operand>,
    /// The result: `[M, N]`, row-major, of the type of `a` or f32.
    pub d: Operand,
}

/// The batch of a checked sum. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Summed {
    /// How many products are added.
    pub slabs: u32,
    /// From one product of A to the next, in elements.
    pub a_slab: u64,
    /// From one product of B to the next, in elements.
    pub b_slab: u64,
}

impl SummedHalfGemm {
    /// Checks every rule of the call.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<Checked> {
        let SummedHalfGemm { a, b, c, d } = self;
        a.expect_dtype(&[DType::Bf16, DType::F16])?;
        b.expect_dtype(&[a.dtype])?;
        d.expect_dtype(&[a.dtype, DType::F32])?;
        let ([slabs, m, k], [b_slabs, n, b_k]) = (a.slab_dims(true)?, b.slab_dims(true)?);
        if [b_slabs, b_k] != [slabs, k] {
            return Err(b.wrong_shape([slabs, n, k], "with the products and the K of `a`"));
        }
        expect_output(d, c.as_ref(), [m, n], "the M of `a` by the N of `b`", a, &[b, d])?;
        if m == 0 || n == 0 {
            return Ok(Checked::Trivial(Trivial::Nothing));
        }
        let (d_pitch, d_memory, accumulate) = accumulation(d, c.as_ref())?;
        if slabs == 0 || k == 0 {
            return Ok(Checked::Trivial(Trivial::without_product(accumulate)));
        }
        // Kernels count K in elements, rounded up to stages of 64.
        if i128::from(slabs) * i128::from(k + 63) > i128::from(i32::MAX) {
            return Err(a.too_large(format!("a K of all products up to {}", i32::MAX)));
        }
        let (a_pitch, a_memory) = a.slab().tma_rows()?;
        let (b_pitch, b_memory) = b.slab().tma_rows()?;
        for (input, pitch, memory) in [(a, a_pitch, a_memory), (b, b_pitch, b_memory)] {
            d.expect_apart(&d_memory, input, &input.tma_slabs(pitch, memory)?.1)?;
        }
        let element = if a.dtype == DType::Bf16 { Half::Bf16 } else { Half::F16 };
        Ok(Checked::Launch(Problem {
            family: OperandKind::f16(Operands { element, a: Major::K, b: Major::K }),
            // slab_dims has bounded each of them by i32::MAX.
            m: m as u32,
            n: n as u32,
            k: k as u32,
            a_pitch,
            b_pitch,
            d_pitch,
            c: accumulate,
            sfa: ScaleStrides::NONE,
            sfb: ScaleStrides::NONE,
            d_type: d.dtype,
        }))
    }

    /// The batch, of arguments that were checked.
    ///
    /// # Errors
    /// None, if they were.
    pub fn summed(&self) -> Result<Summed> {
        let slab = |operand: &Operand| {
            let (pitch, memory) = operand.slab().tma_rows()?;
            operand.tma_slabs(pitch, memory).map(|(slab, _)| slab)
        };
        Ok(Summed { slabs: self.a.dims[0] as u32, a_slab: slab(&self.a)?, b_slab: slab(&self.b)? })
    }
}
