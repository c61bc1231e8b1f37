//! Dense GEMMs with FP8 operands.

use super::super::GemmOptions;
use crate::check::GemmLayout;
use crate::check::gemm::tensors::{Addend, Gemm};
use crate::error::Result;
use crate::tensor::Tensor;

/// D = C + A·Bᵀ with FP8 operands and fine-grained scales.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | e4m3 or e5m2 | rows of K; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[N, K]` | e4m3 or e5m2 | as `a` |
/// | scales of `b` | `[ceil(N/128), ceil(K/128)]` or `[N, ceil(K/128)]` | f32 | any strides |
/// | `c`, `d` | `[M, N]` | bf16 or f32, the same | rows of N, any pitch |
///
/// The shape of B's scales tells whether 128 rows share one, as those of weights do, or each row has its own, as those
/// of activations and gradients do; then both operands are e4m3. (A single row has a single scale either way.) With 32
/// in place of 128 for A and B, each 32 of K share a scale, as in MXFP8, and both operands are e4m3. Where
/// scales have 1 instead of more along a dimension, that one holds for all: `[M, 1]` is a scale for each row of A,
/// `[1, 1]` or `[1]` one for the whole operand.
///
/// Scales may also be UE8M0, exponents of powers of two: u8 in the same shape (2^(e - 127), NaN for 255), or i32 with four
/// of a row in each, the first in the lowest byte: `[M, ceil(ceil(K/128)/4)]`. A kernel unpacks them, exactly, into the
/// workspace of the stream (see [`fp8_gemm`]) before the GEMM.
///
/// Rows of `c` may all be one row (a row stride of 0), such as a bias; then K must not be 0.
///
/// Accumulators of 128 products are promoted to FP32. The same call gives the same bits.
/// The call returns when the kernel is in the stream; it can be captured into a graph once its shape was seen. In the
/// simulator it returns when the kernel is done.
/// Where M or N is 0 nothing is done; where K is 0, D becomes C or 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports. See [`crate::check`] for the rules.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp8_gemm_nt, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n, k) = (4, 256, 512);
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
/// fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
/// assert!(d.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { c, ..Gemm::fp8(a, b, d) }.run(options)
}

/// D = C + A·B with FP8 operands and scales, given in some layout.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, or `[K, M]` where the layout begins with `t` | e4m3 or e5m2 | either dimension contiguous |
/// | scales of `a` | `[M, ceil(K/128)]`, or `[ceil(K/128), M]` | f32 | any strides |
/// | `b` | `[N, K]`, or `[K, N]` where the layout ends with `n` | e4m3 or e5m2 | as `a` |
/// | scales of `b` | `[ceil(N/128), ceil(K/128)]`, or `[ceil(K/128), ceil(N/128)]` | f32 | any strides |
/// | `c`, `d` | `[M, N]` | bf16 or f32, the same | rows of N, any pitch |
///
/// Pitch and address of A and B are multiples of 16 bytes.
///
/// On `sm_100a`, the tensor core takes e4m3 operands that are contiguous along either dimension, and all are multiplied
/// where they lie. On `sm_90a`, and beside e5m2, it takes FP8 operands that are contiguous along K. Those that already
/// are, such as transposed views of K-major tensors, are multiplied where they lie: then this is
/// [`fp8_gemm_nt`](crate::fp8_gemm_nt). Any others are first transposed into a workspace, both by one kernel. Each stream has a workspace of its own. It grows
/// when a call needs more than any before in its stream, so that a call can be captured once it was made; a graph with
/// such a call must not run at the same time as another one, or as calls in the stream where it was captured.
///
/// # Errors
/// As [`fp8_gemm_nt`](crate::fp8_gemm_nt), of the shapes as they are in `nt`; that the stream is being captured and its
/// workspace would have to grow.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, fp8_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 4 * 16], &[4, 16], &device)?;
/// let b = Tensor::from_f32(DType::E4m3, &[4.0; 16 * 32], &[16, 32], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[4, 32], &device)?;
/// fp8_gemm(GemmLayout::Nn, (&a, &one), (&b, &one), Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [32.0; 4 * 32]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm(
    layout: GemmLayout,
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { layout, transpose: true, c, ..Gemm::fp8(a, b, d) }.run(options)
}

/// The functions by their names, each for one layout.
macro_rules! named {
    ($($name:ident: $layout:ident, $formula:literal, $a:literal, $b:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " for A `", $a, "` and B `", $b, "`: [`fp8_gemm`] with its layout.")]
        ///
        /// # Errors
        /// As [`fp8_gemm`].
        pub fn $name(
            a: (&Tensor, &Tensor),
            b: (&Tensor, &Tensor),
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            fp8_gemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    fp8_gemm_nn: Nn, "A·B", "[M, K]", "[K, N]";
    fp8_gemm_tn: Tn, "Aᵀ·B", "[K, M]", "[K, N]";
    fp8_gemm_tt: Tt, "Aᵀ·Bᵀ", "[K, M]", "[N, K]";
}
