//! Dense GEMMs of FP32 operands that are multiplied as TF32.

use super::super::GemmOptions;
use crate::check::GemmLayout;
use crate::check::gemm::tensors::{Addend, Gemm};
use crate::error::Result;
use crate::tensor::Tensor;

/// D = C + A·B of FP32 operands that are multiplied as TF32, given in some layout.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, or `[K, M]` where the layout begins with `t` | f32 | either dimension contiguous |
/// | `b` | `[N, K]`, or `[K, N]` where the layout ends with `n` | f32 | as `a` |
/// | `c`, `d` | `[M, N]` | f32 | rows of N, any pitch |
///
/// Pitch and address of A and B are multiples of 16 bytes. The tensor core reads the upper 19 bits of an operand, sign,
/// exponent and ten bits of mantissa: operands are truncated to TF32, not rounded. Products are exact, and all of K is
/// accumulated in FP32. The same call gives the same bits. Where M or N is 0 nothing is done; where K is 0, D becomes C or
/// 0.
///
/// There are kernels for `sm_100a`. On `sm_90a` the operands are refused.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports. See [`crate::check`] for the rules.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, tf32_gemm};
///
/// let device: Device = "sim:sm_100a".parse()?;
/// let a = Tensor::from_f32(DType::F32, &[0.5; 8 * 16], &[8, 16], &device)?;
/// let b = Tensor::from_f32(DType::F32, &[1.0 + 1.0 / 2048.0; 16 * 32], &[16, 32], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[8, 32], &device)?;
/// tf32_gemm(GemmLayout::Nn, &a, &b, Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [8.0; 8 * 32]); // 1/2048 is cut off
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn tf32_gemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { layout, c, ..Gemm::tf32(a, b, d) }.run(options)
}

/// The functions by their names, each for one layout.
macro_rules! named {
    ($($name:ident: $layout:ident, $formula:literal, $a:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for A `", $a, "` and B `", $b, "`: [`tf32_gemm`] with its layout.")]
        ///
        /// # Errors
        /// As [`tf32_gemm`].
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            tf32_gemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    tf32_gemm_nt: Nt, "A·Bᵀ", "[M, K]", "[N, K]";
    tf32_gemm_nn: Nn, "A·B", "[M, K]", "[K, N]";
    tf32_gemm_tn: Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    tf32_gemm_tt: Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
}
