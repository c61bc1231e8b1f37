//! GEMMs with a fused epilogue.

use super::super::GemmOptions;
use super::expect_type;
use crate::check::HeadSplits;
use crate::check::gemm::tensors::epilogue::{Epilogue, FusedOutput};
use crate::check::gemm::tensors::groups::RowGroups;
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;

/// [`fp8_gemm_nt`](crate::fp8_gemm_nt) with a fused epilogue: see [`Epilogue`] for the order of its steps.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b` and their scales | | e4m3 | as for `fp8_gemm_nt`, with 128x128 scales for B |
/// | `c` | as `d` | as `d` | rows of any pitch; none where D is quantized |
/// | `d` | `[M, N]`; `[M, N/2]` with a gate | bf16, f32 or e4m3 | rows of any pitch; see [`FusedOutput`] |
///
/// With a gate, B has 128 rows of gates and as many ups, or a multiple. Heads widen D by the columns that they skip;
/// they go with neither gate nor quantization. The result is that of the single steps in FP32, rounded once: of the
/// accumulators of `fp8_gemm_nt` with the same split-K. K must not be 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{
///     Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, Tensor, fp8_gemm_nt_fused, random,
/// };
///
/// // The first GEMM of an MLP: gate and up projections, SwiGLU, and the result as the second GEMM reads it.
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, hidden, k) = (4, 256, 512);
/// let x = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let w = per_block_cast_to_fp8(&random::normals(2, 2 * hidden * k), 2 * hidden, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (x.to_tensors(&device)?, w.to_tensors(&device)?);
/// let mut d = Tensor::zeros(DType::E4m3, &[m, hidden], &device)?;
/// let mut scales = Tensor::zeros(DType::F32, &[m, hidden / 128], &device)?;
///
/// let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
/// let output = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::F32 };
/// fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, output, &swiglu, &GemmOptions::default())?;
/// assert!(Quantized::from_tensors(&d, &scales, 1)?.dequantize().iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt_fused(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: FusedOutput<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (d, scales) = d.parts();
    Gemm { c, ..Gemm::fp8(a, b, d) }.fused(epilogue, scales).run(options)
}

/// D = A·Bᵀ, of which every head has columns in the middle that are skipped: [`fp8_gemm_nt_fused`] with
/// [`heads`](Epilogue::heads) alone. Of D those columns stay as they are.
///
/// # Errors
/// As for [`fp8_gemm_nt_fused`].
///
/// ```
/// # use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, HeadSplits, Tensor, fp8_gemm_nt_skip_head_mid, random};
///
/// # let device = Device::cpu();
/// let (m, n, k) = (2, 512, 256); // two heads of 128 + 128
/// # let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?.to_tensors(&device)?;
/// # let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?.to_tensors(&device)?;
/// let heads = HeadSplits { left: 128, mid: 64, right: 128 };
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n + 2 * 64], &device)?;
/// fp8_gemm_nt_skip_head_mid((&a.0, &a.1), (&b.0, &b.1), &mut d, heads, &GemmOptions::default())?;
/// let row = d.to_vec_f32()?[..640].to_vec();
/// assert!(row[127] != 0.0 && row[128..192].iter().all(|x| *x == 0.0) && row[192] != 0.0);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt_skip_head_mid(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    heads: HeadSplits,
    options: &GemmOptions,
) -> Result<()> {
    let epilogue = Epilogue { heads: Some(heads), ..Default::default() };
    fp8_gemm_nt_fused(a, b, Addend::None, FusedOutput::Matrix(d), &epilogue, options)
}

/// [`half_gemm`](crate::half_gemm) in the layout `nt` with a fused epilogue: see [`Epilogue`] for the order of
/// its steps.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | bf16 or f16 | rows of K; pitch and address multiples of 16 bytes |
/// | `b` | `[N, K]` | as `a` | as `a` |
/// | `c` | as `d` | as `d` | rows of any pitch; none where D is quantized |
/// | `d` | `[M, N]`; `[M, N/2]` with a gate | that of `a`, f32 or e4m3 | rows of any pitch; see [`FusedOutput`] |
///
/// The result is that of the single steps in FP32, rounded once: of the accumulators of `half_gemm` with the same
/// split-K, which planning decides for both. Heads widen D by the columns that they skip; they go with neither gate nor
/// quantization. K must not be 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{
///     Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, Tensor, half_gemm_nt_fused, random,
/// };
///
/// // A linear layer with bias and GELU.
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n, k) = (4, 96, 64);
/// let a = Tensor::from_f32(DType::F16, &random::normals(1, m * k), &[m, k], &device)?;
/// let b = Tensor::from_f32(DType::F16, &random::normals(2, n * k), &[n, k], &device)?;
/// let bias = Tensor::from_f32(DType::F16, &vec![-1000.0; n], &[n], &device)?;
/// let mut d = Tensor::empty(DType::F16, &[m, n], &device)?;
/// let gelu = Epilogue { activation: Activation::Gelu, bias: Some(&bias), ..Default::default() };
/// let output = FusedOutput::Matrix(&mut d);
/// half_gemm_nt_fused(&a, &b, Addend::None, output, &gelu, &GemmOptions::default())?;
/// assert!(d.to_vec_f32()?.iter().all(|x| *x == 0.0), "GELU of what is far below 0");
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn half_gemm_nt_fused(
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: FusedOutput<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (d, scales) = d.parts();
    Gemm { c, ..Gemm::half(a, b, d) }.fused(epilogue, scales).run(options)
}

/// The functions by their names, each for one type.
macro_rules! named {
    ($($name:ident: $dtype:ident;)*) => {$(
        #[doc = concat!("[`half_gemm_nt_fused`] of [`", stringify!($dtype), "`](DType::", stringify!($dtype), ").")]
        ///
        /// # Errors
        #[doc = "As [`half_gemm_nt_fused`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: FusedOutput<'_>,
            epilogue: &Epilogue<'_>,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            half_gemm_nt_fused(a, b, c, d, epilogue, options)
        }
    )*};
}

named! {
    bf16_gemm_nt_fused: Bf16;
    fp16_gemm_nt_fused: F16;
}

/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked) and
/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous) with a fused epilogue:
/// see [`Epilogue`] for the order of its steps.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b`, their scales and `groups` | | | as for those functions; of gates and ups 128 rows each, or a multiple |
/// | `c` | as `d` | as `d` | rows of any pitch, groups as many rows apart as those of `d`; none where D is quantized |
/// | `d` | `[M, N]`, masked `[G, M, N]`; N/2 with a gate | bf16, f32 or e4m3 | as for those functions |
/// | scales of an e4m3 `d` | `[M, ceil(N/128)]`, masked `[G, M, ceil(N/128)]` | f32 | any strides without overlap |
/// | [`bias`](Epilogue::bias) | `[G, N]`, or `[N]` for all groups | bf16 or f32 | rows of any pitch |
///
/// Heads widen D by the columns that they skip. Scales of masked groups are contiguous. A quantized D is what either
/// function reads as A, with the same groups. Rows of no group are left as they are, in D and in its scales.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{
///     Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, RowGroups, Tensor,
///     m_grouped_fp8_gemm_nt_fused, m_grouped_fp8_gemm_nt_masked, random,
/// };
///
/// // Two experts: gate and up projections, SwiGLU, and the projection back. Only e4m3 is read or written in between.
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, hidden, k) = (2, 8, 128, 256);
/// let x = per_token_cast_to_fp8(&random::normals(1, groups * m * k), groups * m, k, ScaleFormat::F32)?;
/// let weights = |seed, rows: usize, k: usize| {
///     per_block_cast_to_fp8(&random::normals(seed, groups * rows * k), groups * rows, k, ScaleFormat::F32)
/// };
/// let (w1, w2) = (weights(2, 2 * hidden, k)?, weights(3, k, hidden)?);
/// let ((a, sfa), (b, sfb), (b2, sfb2)) =
///     (x.to_tensors(&device)?, w1.to_tensors(&device)?, w2.to_tensors(&device)?);
/// let (a, sfa) = (a.view(&[groups, m, k])?, sfa.view(&[groups, m, k / 128])?);
/// let (b, sfb) = (b.view(&[groups, 2 * hidden, k])?, sfb.view(&[groups, 2, k / 128])?);
/// let (b2, sfb2) = (b2.view(&[groups, k, hidden])?, sfb2.view(&[groups, k / 128, 1])?);
/// let masked_m = Tensor::from_slice(&[3i32, 8], &[groups], &device)?;
///
/// let mut h = Tensor::zeros(DType::E4m3, &[groups, m, hidden], &device)?;
/// let mut sfh = Tensor::zeros(DType::F32, &[groups, m, hidden / 128], &device)?;
/// let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
/// let output = FusedOutput::Fp8 { d: &mut h, scales: &mut sfh, format: ScaleFormat::F32 };
/// let (rows, options) = (RowGroups::Masked { masked_m: &masked_m, expected_m: 4 }, GemmOptions::default());
/// m_grouped_fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, output, rows, &swiglu, &options)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[groups, m, k], &device)?;
/// m_grouped_fp8_gemm_nt_masked((&h, &sfh), (&b2, &sfb2), &mut d, &masked_m, 4, &options)?;
///
/// let written = d.to_vec_f32()?.chunks(k).map(|row| row.iter().any(|x| *x != 0.0)).collect::<Vec<_>>();
/// assert_eq!(written.iter().filter(|row| **row).count(), 3 + 8);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nt_fused(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: FusedOutput<'_>,
    groups: RowGroups<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (d, scales) = d.parts();
    let grouping = Grouping::MGrouped(groups);
    Gemm { c, grouping, ..Gemm::fp8(a, b, d) }.fused(epilogue, scales).run(options)
}

/// [`m_grouped_half_gemm`](crate::m_grouped_half_gemm) in the layout `nt` with a fused epilogue: see [`Epilogue`] for
/// the order of its steps.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b` and `groups` | | | as for that function; `b` contiguous along K |
/// | `c` | as `d` | as `d` | as for that function; none where D is quantized |
/// | `d` | `[M, N]`, masked `[G, M, N]`; N/2 with a gate | that of `a`, f32 or e4m3 | as for that function |
/// | scales of an e4m3 `d` | `[M, ceil(N/128)]`, masked `[G, M, ceil(N/128)]` | f32 | any strides without overlap |
/// | [`bias`](Epilogue::bias) | `[G, N]`, or `[N]` for all groups | that of `a` or f32 | rows of any pitch |
///
/// Heads widen D by the columns that they skip. Scales of masked groups are contiguous. Rows of no group are left as
/// they are, in D and in its scales. See [`FusedOutput`].
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{
///     Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, RowGroups, Tensor,
///     m_grouped_half_gemm_nt_fused,
/// };
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, hidden, k) = (2, 4, 8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; groups * m * k], &[groups, m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![0.25; groups * 2 * hidden * k], &[groups, 2 * hidden, k], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[groups, m, hidden], &device)?;
/// let masked_m = Tensor::from_slice(&[3i32, 0], &[groups], &device)?;
///
/// let relu = Epilogue { activation: Activation::Relu, gated: true, ..Default::default() };
/// let (rows, options) = (RowGroups::Masked { masked_m: &masked_m, expected_m: 2 }, GemmOptions::default());
/// m_grouped_half_gemm_nt_fused(&a, &b, Addend::None, FusedOutput::Matrix(&mut d), rows, &relu, &options)?;
/// assert_eq!(d.to_vec_f32()?.iter().filter(|x| **x == 4.0).count(), 3 * hidden);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_half_gemm_nt_fused(
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: FusedOutput<'_>,
    groups: RowGroups<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (d, scales) = d.parts();
    let grouping = Grouping::MGrouped(groups);
    Gemm { c, grouping, ..Gemm::half(a, b, d) }.fused(epilogue, scales).run(options)
}

/// The functions by their names, each for one type.
macro_rules! m_grouped {
    ($($name:ident: $dtype:ident;)*) => {$(
        #[doc = concat!("[`m_grouped_half_gemm_nt_fused`] of")]
        #[doc = concat!("[`", stringify!($dtype), "`](DType::", stringify!($dtype), ").")]
        ///
        /// # Errors
        #[doc = "As [`m_grouped_half_gemm_nt_fused`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: FusedOutput<'_>,
            groups: RowGroups<'_>,
            epilogue: &Epilogue<'_>,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            m_grouped_half_gemm_nt_fused(a, b, c, d, groups, epilogue, options)
        }
    )*};
}

m_grouped! {
    m_grouped_bf16_gemm_nt_fused: Bf16;
    m_grouped_fp16_gemm_nt_fused: F16;
}
