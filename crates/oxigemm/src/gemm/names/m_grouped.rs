//! m-grouped GEMMs: groups of rows, each with its own B, as the experts of a mixture.

use super::super::GemmOptions;
use super::expect_type;
use crate::check::GemmLayout;
use crate::check::gemm::tensors::groups::{GroupedRows, RowGroups};
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;

/// An FP8 GEMM in the layout `nt`.
fn nt(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &Tensor,
    groups: RowGroups<'_>,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { grouping: Grouping::MGrouped(groups), ..Gemm::fp8(a, b, d) }.run(options)
}

/// An FP8 GEMM in the layout `nn`.
fn nn(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &Tensor,
    groups: RowGroups<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::MGrouped(groups);
    Gemm { layout: GemmLayout::Nn, transpose: true, grouping, ..Gemm::fp8(a, b, d) }.run(options)
}

/// m-grouped contiguous GEMM: D = A·Bᵀ, where each group of rows has its own B.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | e4m3 | rows of K; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[G, N, K]` | e4m3 | as `a`; groups multiples of 16 bytes apart |
/// | scales of `b` | `[G, ceil(N/128), ceil(K/128)]` | f32 | any strides |
/// | `d` | `[M, N]` | bf16 or f32 | rows of N, any pitch |
/// | `rows` | `[M]` or `[G]` | i32 | contiguous |
///
/// Where scales have 1 instead of more along a dimension, that one holds for all: `[G, 1, 1]` is a scale for each
/// group's B.
/// With 32 in place of 128 for A and B, each 32 of K share a scale, as in MXFP8; then B may also have one for each row,
/// `[G, N, ceil(K/32)]`.
///
/// `alignment` is that of the first row of every group: 1, 16, 32, 64 or 128. Nothing has to be padded
/// further. Rows of no group cost nothing and are left as they are in D. They may be read, and must be memory, but
/// nothing depends on what they hold.
///
/// `expected_m` is how many rows a group will have; the plan is made for it, and any numbers are computed. Without it
/// an equal share of M is assumed. Where M, N or the number of groups is 0 nothing is done; K must not be 0. There are
/// at most 1024 groups.
///
/// The kernel itself reads where the groups are, so that a captured call can be replayed with others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, GroupedRows, Tensor, m_grouped_fp8_gemm_nt_contiguous, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, n, k) = (2, 24, 128, 256);
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, groups * n * k), groups * n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let (b, sfb) = (b.view(&[groups, n, k])?, sfb.view(&[groups, n / 128, k / 128])?);
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
///
/// let ends = Tensor::from_slice(&[10i32, 24], &[groups], &device)?; // rows 0 to 9, and 16 to 23
/// let rows = GroupedRows::Ends(&ends);
/// m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), (&b, &sfb), &mut d, rows, 16, None, &GemmOptions::default())?;
/// let row = |i: usize| d.narrow(0, i, 1).and_then(|row| row.to_vec_f32());
/// assert!(row(9)?.iter().any(|x| *x != 0.0) && row(10)?.iter().all(|x| *x == 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nt_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    let groups = RowGroups::Contiguous { rows, alignment, expected_m };
    nt(a, b, d, groups, options)
}

/// m-grouped masked GEMM: D = A·Bᵀ, where each group has its own A, B and D, of which the first rows count.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[G, M, K]` | e4m3 | rows of K; pitch, groups and address multiples of 16 bytes |
/// | scales of `a` | `[G, M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[G, N, K]` | e4m3 | as `a` |
/// | scales of `b` | `[G, ceil(N/128), ceil(K/128)]` | f32 | any strides |
/// | `d` | `[G, M, N]` | bf16 or f32 | rows of N, any pitch; groups whole rows apart |
/// | `masked_m` | `[G]` | i32 | contiguous |
///
/// Where scales have 1 instead of more along a dimension, that one holds for all.
/// With 32 in place of 128 for A and B, each 32 of K share a scale, as in MXFP8; then B may also have one for each row.
///
/// Of group `g` the first `masked_m[g]` rows are computed; counts are clamped to `0..=M`. All further rows cost
/// nothing and are left as they are in D. They may be read, and must be memory, but nothing depends on what they hold.
///
/// `expected_m` is how many rows a group will have; the plan is made for it, and any numbers are computed. Where M, N
/// or the number of groups is 0 nothing is done; K must not be 0. There are at most 1024 groups.
///
/// The kernel itself reads the counts, so that a captured call can be replayed with others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, Tensor, m_grouped_fp8_gemm_nt_masked, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, n, k) = (2, 8, 128, 256);
/// let a = per_token_cast_to_fp8(&random::normals(1, groups * m * k), groups * m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, groups * n * k), groups * n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let (a, sfa) = (a.view(&[groups, m, k])?, sfa.view(&[groups, m, k / 128])?);
/// let (b, sfb) = (b.view(&[groups, n, k])?, sfb.view(&[groups, n / 128, k / 128])?);
/// let mut d = Tensor::zeros(DType::Bf16, &[groups, m, n], &device)?;
///
/// let masked_m = Tensor::from_slice(&[3i32, 0], &[groups], &device)?;
/// m_grouped_fp8_gemm_nt_masked((&a, &sfa), (&b, &sfb), &mut d, &masked_m, 2, &GemmOptions::default())?;
/// let written = d.to_vec_f32()?.chunks(n).map(|row| row.iter().any(|x| *x != 0.0)).collect::<Vec<_>>();
/// assert_eq!(written.iter().filter(|row| **row).count(), 3);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nt_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    nt(a, b, d, RowGroups::Masked { masked_m, expected_m }, options)
}

/// m-grouped contiguous GEMM, D = A·B: as
/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous), but B is `[G, K, N]`, contiguous
/// along either of the last dimensions, and its scales are `[G, ceil(K/128), ceil(N/128)]`.
///
/// A B that is contiguous along N is transposed first, of all groups: see [`fp8_gemm`](crate::fp8_gemm) for where to.
/// That reads and writes all of B once more: keep it K-major where possible.
///
/// # Errors
/// As the other one, of shapes as they are there; that the stream is being captured and its workspace would have to
/// grow.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, GroupedRows, Tensor, m_grouped_fp8_gemm_nn_contiguous};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::E4m3, &[0.5; 8 * 16], &[8, 16], &device)?;
/// let b = Tensor::from_f32(DType::E4m3, &[4.0; 2 * 16 * 32], &[2, 16, 32], &device)?;
/// let one = Tensor::from_slice(&[1.0f32], &[1], &device)?;
/// let per_group = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1, 1], &device)?;
/// let ends = Tensor::from_slice(&[3i32, 8], &[2], &device)?;
/// let mut d = Tensor::zeros(DType::Bf16, &[8, 32], &device)?;
/// let rows = GroupedRows::Ends(&ends);
/// let options = GemmOptions::default();
/// m_grouped_fp8_gemm_nn_contiguous((&a, &one), (&b, &per_group), &mut d, rows, 1, None, &options)?;
/// let d = d.to_vec_f32()?;
/// assert!(d[..3 * 32].iter().all(|x| *x == 32.0) && d[3 * 32..].iter().all(|x| *x == 64.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nn_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    let groups = RowGroups::Contiguous { rows, alignment, expected_m };
    nn(a, b, d, groups, options)
}

/// m-grouped masked GEMM, D = A·B: as
/// [`m_grouped_fp8_gemm_nt_masked`](crate::m_grouped_fp8_gemm_nt_masked), but B and its scales are as for
/// [`m_grouped_fp8_gemm_nn_contiguous`].
///
/// # Errors
/// As [`m_grouped_fp8_gemm_nn_contiguous`].
pub fn m_grouped_fp8_gemm_nn_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    nn(a, b, d, RowGroups::Masked { masked_m, expected_m }, options)
}

/// m-grouped GEMM with 16-bit operands: D = C + A·B, where each group of rows has its own B.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]`, masked `[G, M, K]` | bf16 or f16 | rows of K; pitch, groups and address multiples of 16 bytes |
/// | `b` | `[G, N, K]`, of `nn` `[G, K, N]` | as `a` | contiguous along either of the last two; as `a` |
/// | `c`, `d` | `[M, N]`, masked `[G, M, N]` | that of `a`, or f32; the same | rows of N, any pitch |
/// | the groups | `[M]` or `[G]` | i32 | contiguous |
///
/// C and D have the same group stride, whatever it is.
///
/// The layout is `nt` or `nn`. Rows of no group cost nothing and are left as they are in D. They may be read, and must
/// be memory, but nothing depends on what they hold. `expected_m` decides about the plan, and where groups are large
/// and K is long about serpentine K, and so about last bits (not in the batch-invariant mode). Where M, N or the number
/// of groups is 0 nothing is done; K must not be 0. There are at most 1024 groups.
///
/// The kernel itself reads where the groups are, so that a captured call can be replayed with others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{
///     Addend, DType, Device, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor, m_grouped_half_gemm,
/// };
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, n, k) = (2, 4, 8, 16);
/// let a = Tensor::from_f32(DType::F16, &vec![0.5; m * k], &[m, k], &device)?;
/// let b = [vec![1.0; k * n], vec![2.0; k * n]].concat(); // the second group's is twice the first's
/// let b = Tensor::from_f32(DType::F16, &b, &[groups, k, n], &device)?;
/// let mut d = Tensor::from_f32(DType::F32, &vec![100.0; m * n], &[m, n], &device)?;
///
/// let ids = Tensor::from_slice(&[0i32, 0, -1, 1], &[m], &device)?;
/// let rows = RowGroups::Contiguous { rows: GroupedRows::Ids(&ids), alignment: 1, expected_m: None };
/// m_grouped_half_gemm(GemmLayout::Nn, &a, &b, Addend::InPlace, &mut d, rows, &GemmOptions::default())?;
/// let column: Vec<f32> = d.to_vec_f32()?.into_iter().step_by(n).collect();
/// assert_eq!(column, [108.0, 108.0, 100.0, 116.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_half_gemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    groups: RowGroups<'_>,
    options: &GemmOptions,
) -> Result<()> {
    Gemm { layout, c, grouping: Grouping::MGrouped(groups), ..Gemm::half(a, b, d) }.run(options)
}

/// The functions by their names, each for one type, layout and kind of groups.
macro_rules! named {
    ($($contiguous:ident, $masked:ident: $dtype:ident $layout:ident, $formula:literal, $b:literal;)*) => {$(
        #[doc = concat!("m-grouped contiguous GEMM, D = ", $formula, ", B `", $b, "`:")]
        /// [`m_grouped_half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`m_grouped_half_gemm`]; operands of another type are refused."]
        pub fn $contiguous(
            a: &Tensor,
            b: &Tensor,
            d: &mut Tensor,
            rows: GroupedRows<'_>,
            alignment: usize,
            expected_m: Option<usize>,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            let groups = RowGroups::Contiguous { rows, alignment, expected_m };
            m_grouped_half_gemm(GemmLayout::$layout, a, b, Addend::None, d, groups, options)
        }

        #[doc = concat!("m-grouped masked GEMM, D = ", $formula, ", B `", $b, "`:")]
        /// [`m_grouped_half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`m_grouped_half_gemm`]; operands of another type are refused."]
        pub fn $masked(
            a: &Tensor,
            b: &Tensor,
            d: &mut Tensor,
            masked_m: &Tensor,
            expected_m: usize,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            let groups = RowGroups::Masked { masked_m, expected_m };
            m_grouped_half_gemm(GemmLayout::$layout, a, b, Addend::None, d, groups, options)
        }
    )*};
}

named! {
    m_grouped_bf16_gemm_nt_contiguous, m_grouped_bf16_gemm_nt_masked: Bf16 Nt, "A·Bᵀ", "[G, N, K]";
    m_grouped_bf16_gemm_nn_contiguous, m_grouped_bf16_gemm_nn_masked: Bf16 Nn, "A·B", "[G, K, N]";
    m_grouped_fp16_gemm_nt_contiguous, m_grouped_fp16_gemm_nt_masked: F16 Nt, "A·Bᵀ", "[G, N, K]";
    m_grouped_fp16_gemm_nn_contiguous, m_grouped_fp16_gemm_nn_masked: F16 Nn, "A·B", "[G, K, N]";
}
