//! GEMMs with FP4 operands, or with FP4 beside FP8.

use super::super::GemmOptions;
use crate::check::GemmLayout;
use crate::check::gemm::tensors::epilogue::{Epilogue, FusedOutput};
use crate::check::gemm::tensors::groups::{GroupedRows, RowGroups};
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;
use oxigemm_kernels::gemm::params::ScaleBlock;

/// D = C + A·Bᵀ with operands of FP8 or FP4, each either, and fine-grained scales.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | e4m3 (beside FP8 also e5m2) | rows of K; pitch and address multiples of 16 bytes |
/// | or | `[M, K/2]` | u8: FP4, two e2m1 codes each, the first in the low half | as above |
/// | scales of `a` | `[M, ceil(K/32)]` or `[M, ceil(K/128)]` | f32, or codes | any strides |
/// | `b` | `[N, K]`, FP4 `[N, K/2]` | as `a` | as `a` |
/// | scales of `b` | `[N, ceil(K/32)]`, `[N, ceil(K/128)]` or `[ceil(N/128), ceil(K/128)]` | as those of `a` | any strides |
/// | `c`, `d` | `[M, N]` | bf16 or f32, the same | rows of N, any pitch |
///
/// This is MXFP8 (e4m3 with scales of 32), MXFP4 (FP4 with scales of 32), or one beside the other. Where an operand is FP4
/// each operand may have either granularity. Where scales have 1 instead of more along a dimension, that one holds for all.
///
/// Codes are UE8M0, exponents of powers of two: u8 in the shape of the scales (2^(e - 127), NaN for 255), or i32 with four
/// of a row in each along K, the first in the lowest byte: `[M, ceil(ceil(K/32)/4)]`. Up to 128 of K are one word of either
/// granularity: that of 32 where an operand is FP4, else of 128, unless [`GemmOptions::scale_blocks`] tells.
///
/// The tensor core of Blackwell applies scales itself, as powers of two in words of four bytes. Words are read where they
/// lie, and bytes that are whole words; the bytes of a word behind the last scale must not be 255. Other bytes and FP32
/// scales are packed first, by a kernel, into the workspace of the stream (see [`fp8_gemm`](crate::fp8_gemm)). **An FP32
/// scale that is no power of two is rounded down to one there**, as DeepGEMM does: quantize with
/// [`ScaleFormat::PowerOfTwo`](crate::cast::ScaleFormat::PowerOfTwo). The CPU takes FP32 scales as they are. FP4 beside FP8
/// has a K that is a multiple of 128 there, and rows and addresses that are multiples of 32 bytes.
///
/// Hopper has kernels for an FP8 A with scales of 1x128 beside a B of MXFP4, which they widen to FP8. Scales of A are read
/// as they are, those of B as on Blackwell.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp4, cast_blocks_to_fp8};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp8_fp4_gemm_nt, random};
///
/// let device = Device::cpu();
/// let (m, n, k) = (4, 64, 256);
/// let format = ScaleFormat::PowerOfTwo;
/// let a = cast_blocks_to_fp8(&random::normals(1, m * k), m, k, DType::E4m3, [1, 128], format)?;
/// let b = cast_blocks_to_fp4(&random::normals(2, n * k), n, k, [1, 32], format)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// assert_eq!((b.dtype(), b.dims(), sfb.dims()), (DType::U8, &[64, 128][..], &[64, 8][..]));
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
/// fp8_fp4_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
/// assert!(d.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_fp4_gemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { c, ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// The same, given in some layout: operands and scales are transposed alike, as for [`fp8_gemm`](crate::fp8_gemm).
///
/// FP8 operands may be contiguous along either dimension. FP4 operands are contiguous along K, so that one that begins
/// with K is `[K/2, N]` or `[K/2, M]`, a transposed view.
///
/// # Errors
/// As [`fp8_fp4_gemm_nt`].
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, fp8_fp4_gemm};
///
/// let device = Device::cpu();
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 4 * 32], &[4, 32], &device)?;
/// let b = Tensor::from_bytes(DType::U8, &[0x22; 8 * 16], &[8, 16], &device)?; // codes of 1
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[4, 8], &device)?;
/// let (b, options) = (b.transpose(0, 1)?, GemmOptions::default());
/// fp8_fp4_gemm(GemmLayout::Nn, (&a, &one), (&b, &one), Addend::None, &mut d, &options)?;
/// assert_eq!(d.to_vec_f32()?, [16.0; 4 * 8]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_fp4_gemm(
    layout: GemmLayout,
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { layout, transpose: true, c, ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// The functions by their names, each for one layout.
macro_rules! named {
    ($($name:ident: $layout:ident, $formula:literal;)*) => {$(
        #[doc = concat!("D = C + ", $formula, " with operands of FP8 or FP4: [`fp8_fp4_gemm`] with its layout.")]
        ///
        /// # Errors
        /// As [`fp8_fp4_gemm`].
        pub fn $name(
            a: (&Tensor, &Tensor),
            b: (&Tensor, &Tensor),
            c: Addend<'_>,
            d: &mut Tensor,
            options: &GemmOptions,
        ) -> Result<()> {
            fp8_fp4_gemm(GemmLayout::$layout, a, b, c, d, options)
        }
    )*};
}

named! {
    fp8_fp4_gemm_nn: Nn, "A·B";
    fp8_fp4_gemm_tn: Tn, "Aᵀ·B";
    fp8_fp4_gemm_tt: Tt, "Aᵀ·Bᵀ";
}

/// D = C + A·Bᵀ with FP4 operands, `[M, K/2]` and `[N, K/2]`, and scales of 32 (MXFP4): [`fp8_fp4_gemm_nt`], whose rules are
/// the same.
///
/// # Errors
/// As [`fp8_fp4_gemm_nt`]; operands of another type are refused.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp4_gemm_nt};
///
/// let device = Device::cpu();
/// let a = Tensor::from_bytes(DType::U8, &[0x21; 32], &[2, 16], &device)?; // codes of 0.5 and 1
/// let b = Tensor::from_bytes(DType::U8, &[0x44; 48], &[3, 16], &device)?; // codes of 2
/// let sfa = Tensor::from_bytes(DType::U8, &[127, 128], &[2, 1], &device)?; // UE8M0: 1 and 2
/// let sfb = Tensor::from_bytes(DType::U8, &[127; 3], &[3, 1], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[2, 3], &device)?;
/// fp4_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [48.0, 48.0, 48.0, 96.0, 96.0, 96.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp4_gemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    expect_fp4(a.0, b.0)?;
    fp8_fp4_gemm_nt(a, b, c, d, options)
}

/// D = C + s·A·Bᵀ with NVFP4 operands, where s is the product of the scales of both tensors.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b` | `[M, K/2]`, `[N, K/2]` | u8: two e2m1 codes each, the first in the low half | as [`fp8_fp4_gemm_nt`] |
/// | scales of `a`, of `b` | `[M, ceil(K/16)]`, `[N, ceil(K/16)]` | e4m3, or u8 of the same codes | any strides |
/// | or | `[M, ceil(ceil(K/16)/4)]` and alike | i32: four codes of a row in each | any strides |
/// | `tensor_scales` | of A and of B | f32 of the host | |
/// | `c`, `d` | `[M, N]` | bf16 or f32, the same | rows of N, any pitch |
///
/// [`quantize_nvfp4`](crate::quantize_nvfp4) makes such operands. Their product becomes the factor of a fused
/// [`Epilogue`], unless it is 1; K must not be 0 then.
///
/// # Errors
/// As [`fp8_fp4_gemm_nt`]; operands of another type are refused.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, nvfp4_gemm_nt};
///
/// let device = Device::cpu();
/// let a = Tensor::from_bytes(DType::U8, &[0x22; 16], &[1, 16], &device)?; // codes of 1
/// let sfa = Tensor::from_f32(DType::E4m3, &[1.0, 3.5], &[1, 2], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[1, 1], &device)?;
/// let options = GemmOptions::default();
/// nvfp4_gemm_nt((&a, &sfa), (&a, &sfa), Addend::None, &mut d, [0.5, 4.0], &options)?;
/// assert_eq!(d.to_vec_f32()?, [2.0 * 16.0 * (1.0 + 3.5 * 3.5)]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn nvfp4_gemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    tensor_scales: [f32; 2],
    options: &GemmOptions,
) -> Result<()> {
    let alpha = Epilogue { alpha: tensor_scales[0] * tensor_scales[1], ..Default::default() };
    nvfp4(a, b, d, &alpha, |gemm| Gemm { c, ..gemm }.run(options))
}

/// m-grouped GEMM with NVFP4 operands: [`nvfp4_gemm_nt`] for groups of rows, each with its own B `[N, K/2]` of
/// `[G, N, K/2]`. The scale of a tensor is one for all groups. Nothing is added.
///
/// # Errors
/// As [`nvfp4_gemm_nt`] and [`m_grouped_fp8_fp4_gemm_nt_masked`].
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, RowGroups, Tensor, m_grouped_nvfp4_gemm_nt};
///
/// let device = Device::cpu();
/// let codes = Tensor::from_bytes(DType::U8, &[0x22; 2 * 2 * 16], &[2, 2, 16], &device)?; // codes of 1
/// let scales = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0];
/// let scales = Tensor::from_f32(DType::E4m3, &scales, &[2, 2, 2], &device)?;
/// let masked_m = Tensor::from_slice(&[1i32, 2], &[2], &device)?;
/// let groups = RowGroups::Masked { masked_m: &masked_m, expected_m: 1 };
/// let mut d = Tensor::zeros(DType::F32, &[2, 2, 2], &device)?;
/// let (x, options) = ((&codes, &scales), GemmOptions::default());
/// m_grouped_nvfp4_gemm_nt(x, x, &mut d, groups, [0.5, 1.0], &options)?;
/// assert_eq!(d.to_vec_f32()?, [16.0, 16.0, 0.0, 0.0, 64.0, 64.0, 64.0, 64.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_nvfp4_gemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    groups: RowGroups<'_>,
    tensor_scales: [f32; 2],
    options: &GemmOptions,
) -> Result<()> {
    let alpha = Epilogue { alpha: tensor_scales[0] * tensor_scales[1], ..Default::default() };
    nvfp4(a, b, d, &alpha, |gemm| Gemm { grouping: Grouping::MGrouped(groups), ..gemm }.run(options))
}

/// Runs what becomes of a GEMM of NVFP4 operands with such a factor.
fn nvfp4(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &Tensor,
    alpha: &Epilogue<'_>,
    run: impl FnOnce(Gemm<'_>) -> Result<()>,
) -> Result<()> {
    expect_fp4(a.0, b.0)?;
    let gemm = Gemm { scale_blocks: [Some(ScaleBlock::Of16); 2], ..Gemm::fp8_fp4(a, b, d) };
    run(if alpha.alpha == 1.0 { gemm } else { gemm.fused(alpha, None) })
}

/// D = epilogue(A·Bᵀ) with operands of FP8 or FP4: [`fp8_fp4_gemm_nt`] with what
/// [`fp8_gemm_nt_fused`](crate::fp8_gemm_nt_fused) does behind it.
///
/// # Errors
/// As both of them.
pub fn fp8_fp4_gemm_nt_fused(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: FusedOutput<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (d, scales) = d.parts();
    Gemm { c, ..Gemm::fp8_fp4(a, b, d) }.fused(epilogue, scales).run(options)
}

/// D = epilogue(A·Bᵀ) for groups of rows with operands of FP8 or FP4: [`m_grouped_fp8_fp4_gemm_nt_masked`] or
/// [`m_grouped_fp8_fp4_gemm_nt_contiguous`], with what
/// [`m_grouped_fp8_gemm_nt_fused`](crate::m_grouped_fp8_gemm_nt_fused) does behind them.
///
/// # Errors
/// As they.
pub fn m_grouped_fp8_fp4_gemm_nt_fused(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: FusedOutput<'_>,
    groups: RowGroups<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (d, scales) = d.parts();
    let gemm = Gemm { c, grouping: Grouping::MGrouped(groups), ..Gemm::fp8_fp4(a, b, d) };
    gemm.fused(epilogue, scales).run(options)
}

/// Batched GEMM with operands of FP8 or FP4: [`fp8_fp4_gemm_nt`] of each of a batch. Every operand has a leading dimension,
/// and nothing is added.
///
/// # Errors
/// As [`fp8_fp4_gemm_nt`] and [`fp8_bgemm_nt`](crate::fp8_bgemm_nt).
pub fn fp8_fp4_bgemm_nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { grouping: Grouping::Batched, ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// m-grouped contiguous GEMM with operands of FP8 or FP4, D = A·Bᵀ, where each group of rows has its own B.
///
/// Operands and scales are those of [`fp8_fp4_gemm_nt`], B and its scales with a leading dimension for groups; groups are
/// those of [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous).
///
/// # Errors
/// As both of them.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, GroupedRows, Tensor, m_grouped_fp8_fp4_gemm_nt_contiguous};
///
/// let device = Device::cpu();
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 8 * 32], &[8, 32], &device)?;
/// let codes = [[0x22; 4 * 16], [0x44; 4 * 16]].concat(); // of 1 and, in the second group, of 2
/// let b = Tensor::from_bytes(DType::U8, &codes, &[2, 4, 16], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let ends = Tensor::from_slice(&[3i32, 8], &[2], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[8, 4], &device)?;
/// let (rows, options) = (GroupedRows::Ends(&ends), GemmOptions::default());
/// m_grouped_fp8_fp4_gemm_nt_contiguous((&a, &one), (&b, &one), &mut d, rows, 1, None, &options)?;
/// let d = d.to_vec_f32()?;
/// assert!(d[..3 * 4].iter().all(|x| *x == 16.0) && d[3 * 4..].iter().all(|x| *x == 32.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_fp4_gemm_nt_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    let groups = RowGroups::Contiguous { rows, alignment, expected_m };
    Gemm { grouping: Grouping::MGrouped(groups), ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// m-grouped contiguous GEMM with operands of FP8 or FP4, D = A·B: as [`m_grouped_fp8_fp4_gemm_nt_contiguous`], but B is
/// `[G, K, N]`, and FP4 a transposed view `[G, K/2, N]`, with scales alike.
///
/// # Errors
/// As the other one.
pub fn m_grouped_fp8_fp4_gemm_nn_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::MGrouped(RowGroups::Contiguous { rows, alignment, expected_m });
    Gemm { layout: GemmLayout::Nn, transpose: true, grouping, ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// m-grouped masked GEMM with operands of FP8 or FP4, D = A·B: as [`m_grouped_fp8_fp4_gemm_nt_masked`], but B and its scales
/// are as for [`m_grouped_fp8_fp4_gemm_nn_contiguous`].
///
/// # Errors
/// As the other one.
pub fn m_grouped_fp8_fp4_gemm_nn_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::MGrouped(RowGroups::Masked { masked_m, expected_m });
    Gemm { layout: GemmLayout::Nn, transpose: true, grouping, ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// m-grouped masked GEMM with operands of FP8 or FP4, D = A·Bᵀ, where each group has its own A, B and D, of which the first
/// rows count.
///
/// Operands and scales are those of [`fp8_fp4_gemm_nt`] with a leading dimension for groups, which are those of
/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked).
///
/// # Errors
/// As both of them.
pub fn m_grouped_fp8_fp4_gemm_nt_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    let groups = RowGroups::Masked { masked_m, expected_m };
    Gemm { grouping: Grouping::MGrouped(groups), ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// m-grouped contiguous GEMM with FP4 operands (MXFP4): [`m_grouped_fp8_fp4_gemm_nt_contiguous`] with its type.
///
/// # Errors
/// As that one; operands of another type are refused.
pub fn m_grouped_fp4_gemm_nt_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    expect_fp4(a.0, b.0)?;
    m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, d, rows, alignment, expected_m, options)
}

/// m-grouped masked GEMM with FP4 operands (MXFP4): [`m_grouped_fp8_fp4_gemm_nt_masked`] with its type.
///
/// # Errors
/// As that one; operands of another type are refused.
pub fn m_grouped_fp4_gemm_nt_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    expect_fp4(a.0, b.0)?;
    m_grouped_fp8_fp4_gemm_nt_masked(a, b, d, masked_m, expected_m, options)
}

/// Refuses operands of another type than FP4.
fn expect_fp4(a: &Tensor, b: &Tensor) -> Result<()> {
    let other = [("a", a), ("b", b)].into_iter().find(|(_, x)| x.dtype() != DType::U8);
    other.map_or(Ok(()), |(argument, x)| {
        let expected = "u8, two e2m1 codes each".to_owned();
        Err(Error::DType { argument, expected, found: x.dtype().to_string() })
    })
}
