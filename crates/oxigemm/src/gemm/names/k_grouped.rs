//! k-grouped GEMMs: groups share M and N and have a K of their own, as the weight gradients of experts.

use super::super::GemmOptions;
use super::expect_type;
use crate::check::GemmLayout;
use crate::check::gemm::tensors::groups::KGroupNumbers;
use crate::check::gemm::tensors::{Addend, Gemm, Grouping};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::tensor::dtype::DType;

/// k-grouped GEMM: D\[g\] = C\[g\] + A_g·B_gᵀ, where groups share M and N and have a K of their own.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | all elements, contiguous: of each group `[M, K_g]` | e4m3 | rows of K_g, rounded up to 16 elements |
/// | scales of `a` | `[M, sum of ceil(K_g/128)]` | f32 | any strides; along M they are read fastest |
/// | `b` | all elements: of each group `[N, K_g]` | e4m3 | as `a` |
/// | scales of `b` | `[N, sum of ceil(K_g/128)]` | f32 | any strides; along N they are read fastest |
/// | `c`, `d` | `[G, M, N]` | bf16 or f32, the same | rows of N, any pitch; groups whole rows apart |
/// | `ks` | `[G]` | i32 | on the device, contiguous |
///
/// Scales may also be UE8M0: see [`fp8_gemm_nt`](crate::fp8_gemm_nt); blocks of all groups are packed in their order.
/// Instead of the K of each group, `ks` may be [their ends](KGroupNumbers::Ends).
///
/// The addresses of A and B are multiples of 16 bytes. The kernel itself reads `ks`, so that a captured call can be
/// replayed with others. Any K will do: 0 (D becomes C or 0), 1, and what is no multiple of 128. Numbers below 0 count
/// as 0; a group is cut off where the operands or the scales end. `ks_host` are the same numbers, if the host knows
/// them: they must fit the operands exactly. The CPU and the simulator also compare them with `ks`; on a GPU, and in a
/// captured call, `ks` holds.
///
/// Where M, N or the number of groups is 0 nothing is done. There are at most 1024 groups.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_token_cast_to_fp8};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, k_grouped_fp8_gemm_nt_contiguous, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n, k) = (8, 24, 256); // of the first group; the second has none
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_token_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let (a, b) = (a.view(&[m * k])?, b.view(&[n * k])?);
/// let mut d = Tensor::zeros(DType::F32, &[2, m, n], &device)?;
///
/// let ks = Tensor::from_slice(&[k as i32, 0], &[2], &device)?;
/// let (a, b) = ((&a, &sfa), (&b, &sfb));
/// k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::InPlace, &mut d, &ks, None, &GemmOptions::default())?;
/// assert!(d.select(0)?.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// assert!(d.select(1)?.to_vec_f32()?.iter().all(|x| *x == 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn k_grouped_fp8_gemm_nt_contiguous<'a>(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    ks: impl Into<KGroupNumbers<'a>>,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::KGrouped { groups: ks.into(), ks_host };
    Gemm { c, grouping, ..Gemm::fp8(a, b, d) }.run(options)
}

/// k-grouped GEMM of FP4 operands (MXFP4): D\[g\] = C\[g\] + A_g·B_gᵀ, as [`k_grouped_fp8_gemm_nt_contiguous`] but for:
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b` | all elements, contiguous: of each group `[M, K_g/2]`, `[N, K_g/2]` | u8: two e2m1 codes each | rows rounded up to 16 bytes, 32 of K |
/// | scales | `[M, sum of ceil(K_g/32)]`, `[N, ...]` | f32, or UE8M0 | any strides; along M they are read fastest |
///
/// The K of each group is even; an odd one counts as one less. Hopper has no FP4.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp4};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, k_grouped_fp4_gemm_nt_contiguous, random};
///
/// let device = Device::cpu();
/// let (m, n, k) = (8, 24, 64); // of the second group; the first has none
/// let cast = |seed, rows| {
///     let values = random::normals(seed, rows * k);
///     cast_blocks_to_fp4(&values, rows, k, [1, 32], ScaleFormat::PowerOfTwo)?.to_tensors(&device)
/// };
/// let ((a, sfa), (b, sfb)) = (cast(1, m)?, cast(2, n)?);
/// let (a, b) = (a.view(&[m * k / 2])?, b.view(&[n * k / 2])?);
/// let mut d = Tensor::zeros(DType::F32, &[2, m, n], &device)?;
///
/// let ks = Tensor::from_slice(&[0, k as i32], &[2], &device)?;
/// let (a, b) = ((&a, &sfa), (&b, &sfb));
/// k_grouped_fp4_gemm_nt_contiguous(a, b, Addend::None, &mut d, &ks, None, &GemmOptions::default())?;
/// assert!(d.select(1)?.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn k_grouped_fp4_gemm_nt_contiguous<'a>(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    ks: impl Into<KGroupNumbers<'a>>,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    expect_type(a.0, DType::U8)?;
    let grouping = Grouping::KGrouped { groups: ks.into(), ks_host };
    Gemm { c, grouping, ..Gemm::fp8_fp4(a, b, d) }.run(options)
}

/// k-grouped GEMM: D\[g\] = C\[g\] + A_gᵀ·B_g, where groups share M and N and have a range of K each.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[K, M]` | e4m3 | rows of M; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[sum of ceil(K_g/128), M]` | f32 | any strides |
/// | `b` | `[K, N]` | e4m3 | as `a` |
/// | scales of `b` | `[sum of ceil(K_g/128), N]` | f32 | any strides |
/// | `c`, `d`, `ks` | as for [`k_grouped_fp8_gemm_nt_contiguous`] | | |
///
/// K is that of all groups, which are contiguous; their ends are not accepted. A scale is of 128 steps of K of one group, or of
/// what is left of them at its end.
///
/// The tensor core multiplies FP8 operands that are contiguous along K, so both are transposed first, by one kernel,
/// into a workspace of the stream: see [`fp8_gemm`](crate::fp8_gemm) for what that means to graphs. It reads and writes
/// all of A and B once more: quantize along K where possible.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports; that the stream is being captured and its
/// workspace would have to grow.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, k_grouped_fp8_gemm_tn_contiguous};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n) = (16, 32);
/// let a = Tensor::from_f32(DType::E4m3, &vec![0.5; 5 * m], &[5, m], &device)?;
/// let b = Tensor::from_f32(DType::E4m3, &vec![2.0; 5 * n], &[5, n], &device)?;
/// // The second group has no K, and so no scales.
/// let sfa = Tensor::from_slice(&[[1.0f32; 16], [2.0; 16]].concat(), &[2, m], &device)?;
/// let sfb = Tensor::from_slice(&[1.0f32; 64], &[2, n], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[3, m, n], &device)?;
/// let ks = Tensor::from_slice(&[4i32, 0, 1], &[3], &device)?;
/// let (a, b, options) = ((&a, &sfa), (&b, &sfb), GemmOptions::default());
/// k_grouped_fp8_gemm_tn_contiguous(a, b, Addend::None, &mut d, &ks, Some(&[4, 0, 1]), &options)?;
/// let firsts: Vec<f32> = d.to_vec_f32()?.into_iter().step_by(m * n).collect();
/// assert_eq!(firsts, [4.0, 0.0, 2.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn k_grouped_fp8_gemm_tn_contiguous<'a>(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    ks: impl Into<KGroupNumbers<'a>>,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::KGrouped { groups: ks.into(), ks_host };
    Gemm { layout: GemmLayout::Tn, c, grouping, ..Gemm::fp8(a, b, d) }.run(options)
}

/// k-grouped GEMM with 16-bit operands: D\[g\] = C\[g\] + A_g·B_g, where groups share M and N and have a range of K
/// each.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[K, M]`, of `nt` `[M, K]` | bf16 or f16 | rows; pitch and address multiples of 16 bytes |
/// | `b` | `[K, N]`, of `nt` `[N, K]` | as `a` | as `a` |
/// | `c`, `d` | `[G, M, N]` | that of `a`, or f32; the same | rows of N, any pitch; groups whole rows apart |
/// | `ks` | `[G]` | i32 | on the device, contiguous |
///
/// The layout is `tn` or `nt`. K is that of all groups: in `tn` they are contiguous, in `nt` each begins at a multiple
/// of 8, and what lies between does not count. Each may have any K, also 0 (D becomes C or 0), 1, and what is no
/// multiple of anything. Instead of the K of each group, `ks` may be [their ends](KGroupNumbers::Ends).
///
/// The kernel itself reads `ks`, so that a captured call can be replayed with others. Numbers below 0 count as 0; a
/// group is cut off where the operands end. What lies behind the last group is not read. `ks_host` are the same
/// numbers, if the host knows them: they must fit K exactly. The CPU and the simulator also compare them with `ks`; on a
/// GPU, and in a captured call, `ks` holds.
///
/// Where M, N or the number of groups is 0 nothing is done. There are at most 1024 groups.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, k_grouped_half_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n) = (8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; 5 * m], &[5, m], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; 5 * n], &[5, n], &device)?;
/// let mut d = Tensor::from_f32(DType::F32, &vec![100.0; 3 * m * n], &[3, m, n], &device)?;
///
/// let ks = Tensor::from_slice(&[4i32, 0, 1], &[3], &device)?; // rows of A and B that each group has
/// let (layout, options) = (GemmLayout::Tn, GemmOptions::default());
/// k_grouped_half_gemm(layout, &a, &b, Addend::InPlace, &mut d, &ks, Some(&[4, 0, 1]), &options)?;
/// let firsts: Vec<f32> = d.to_vec_f32()?.into_iter().step_by(m * n).collect();
/// assert_eq!(firsts, [104.0, 100.0, 101.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[expect(clippy::too_many_arguments, reason = "every one of them is a part of the call")]
pub fn k_grouped_half_gemm<'a>(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    ks: impl Into<KGroupNumbers<'a>>,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    let grouping = Grouping::KGrouped { groups: ks.into(), ks_host };
    Gemm { layout, c, grouping, ..Gemm::half(a, b, d) }.run(options)
}

/// The functions by their names, each for one type and layout.
macro_rules! named {
    ($($name:ident: $dtype:ident $layout:ident, $formula:literal, $shapes:literal;)*) => {$(
        #[doc = concat!("k-grouped GEMM, D\\[g\\] = C\\[g\\] + ", $formula, ", ", $shapes, ":")]
        /// [`k_grouped_half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`k_grouped_half_gemm`]; operands of another type are refused."]
        pub fn $name<'a>(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            ks: impl Into<KGroupNumbers<'a>>,
            ks_host: Option<&[usize]>,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            k_grouped_half_gemm(GemmLayout::$layout, a, b, c, d, ks, ks_host, options)
        }
    )*};
}

named! {
    k_grouped_bf16_gemm_tn_contiguous: Bf16 Tn, "A_gᵀ·B_g", "A `[K, M]` and B `[K, N]`";
    k_grouped_bf16_gemm_nt_contiguous: Bf16 Nt, "A_g·B_gᵀ", "A `[M, K]` and B `[N, K]`";
    k_grouped_fp16_gemm_tn_contiguous: F16 Tn, "A_gᵀ·B_g", "A `[K, M]` and B `[K, N]`";
    k_grouped_fp16_gemm_nt_contiguous: F16 Nt, "A_g·B_gᵀ", "A `[M, K]` and B `[N, K]`";
}
