//! Dense GEMMs with BF16 and FP16 operands.

use super::super::GemmOptions;
use super::expect_type;
use crate::check::GemmLayout;
use crate::check::gemm::tensors::{Addend, Gemm};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;

/// D = C + A·B with 16-bit operands, given in some layout.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, or `[K, M]` where the layout begins with `t` | bf16 or f16 | either dimension contiguous |
/// | `b` | `[N, K]`, or `[K, N]` where the layout ends with `n` | as `a` | as `a` |
/// | `c`, `d` | `[M, N]` | that of `a`, or f32; the same | rows of N, any pitch |
///
/// Pitch and address of A and B are multiples of 16 bytes. The tensor core accumulates all of K in FP32. The same call
/// gives the same bits. The call returns when the kernel is in the stream; it can be captured into a graph once its
/// shape was seen. In the simulator it returns when the kernel is done. Where M or N is 0 nothing is done; where K is
/// 0, D becomes C or 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports. See [`crate::check`] for the rules.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, half_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::Bf16, &[1.0, 2.0, 3.0, 4.0], &[2, 2], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &[5.0, 6.0, 7.0, 8.0], &[2, 2], &device)?;
/// # let pad = |x: &Tensor| -> oxigemm::Result<Tensor> {
/// #     let whole = Tensor::zeros(DType::Bf16, &[2, 8], &Device::cpu())?;
/// #     let mut part = whole.narrow(1, 0, 2)?;
/// #     part.copy_from(x)?;
/// #     Ok(part)
/// # };
/// # let (a, b) = (pad(&a)?, pad(&b)?); // rows that begin at multiples of 16 bytes
/// let mut d = Tensor::zeros(DType::F32, &[2, 2], &device)?;
/// half_gemm(GemmLayout::Nn, &a, &b, Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [19.0, 22.0, 43.0, 50.0]);
/// half_gemm(GemmLayout::Nt, &a, &b, Addend::InPlace, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [19.0 + 17.0, 22.0 + 23.0, 43.0 + 39.0, 50.0 + 53.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_gemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { layout, c, ..Gemm::half(a, b, d) }.run(options)
}

/// The functions by their names, each for one type and layout.
macro_rules! named {
    ($($name:ident: $dtype:ident $layout:ident, $formula:literal, $a:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for A `", $a, "` and B `", $b, "`:")]
        /// [`half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`half_gemm`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            half_gemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    bf16_gemm_nt: Bf16 Nt, "A·Bᵀ", "[M, K]", "[N, K]";
    bf16_gemm_nn: Bf16 Nn, "A·B", "[M, K]", "[K, N]";
    bf16_gemm_tn: Bf16 Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    bf16_gemm_tt: Bf16 Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
    fp16_gemm_nt: F16 Nt, "A·Bᵀ", "[M, K]", "[N, K]";
    fp16_gemm_nn: F16 Nn, "A·B", "[M, K]", "[K, N]";
    fp16_gemm_tn: F16 Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    fp16_gemm_tt: F16 Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
}
