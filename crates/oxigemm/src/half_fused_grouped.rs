//! Products of BF16 and FP16 operands whose rows are grouped and whose sums are finished before they are stored.

use crate::check::{CheckedGroupedFused, EpilogueArguments, GemmLayout, GroupedHalfGemm, Groups, Operand};
use crate::device::backend::Backend;
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::Result;
use crate::fused::{Epilogue, FusedOutput};
use crate::fused_grouped::{Arguments, FusedGroupedGemm, RawEpilogue};
use crate::gemm::{Addend, GemmOptions};
use crate::grouped::{RowGroups, run_raw};
use crate::half_gemm::expect_type;
use crate::half_grouped::RawGroupedHalfGemm;
use crate::launch::cache::LaunchCache;
use crate::reference;
use crate::remembered::{Call, LaunchCaches};
use crate::tensor::Tensor;

/// [`m_grouped_half_gemm`](crate::m_grouped_half_gemm) in the layout `nt` with more done to the sums than to round them: see
/// [`Epilogue`] for what, and in which order.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b` and `groups` | | | as for that function; `b` contiguous along K |
/// | `c` | as `d` | as `d` | as for that function; none where D is quantized |
/// | `d` | `[M, N]`, masked `[G, M, N]`; N/2 with a gate; wider by what heads skip | that of `a`, f32 or e4m3 | as for that function; see [`FusedOutput`] |
/// | scales of an e4m3 `d` | `[M, ceil(N/128)]`, masked `[G, M, ceil(N/128)]` | f32 | any strides that share no element; groups one behind another |
/// | [`bias`](Epilogue::bias) | `[G, N]`, or `[N]` for all groups | that of `a` or f32 | rows of any pitch |
///
/// Rows of no group are left as they are, in D, and in its scales.
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
    let (argument, numbers) = groups.describe();
    let gemm = GroupedHalfGemm {
        layout: GemmLayout::Nt,
        a: a.describe("a"),
        b: b.describe("b"),
        c: None,
        d: d.d().describe("d"),
        groups: Some(argument),
    };
    let (alpha, beta) = (epilogue.alpha, epilogue.beta);
    let arguments = Arguments { gemm, c: c.describe(d.d()), epilogue: epilogue.describe(&d), alpha, beta };
    let on_cpu = |groups: &Groups| {
        reference::m_grouped_half_gemm_nt_fused_tensors([a, b], c, &d, (groups, numbers), epilogue)
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { arguments.run(a.device(), options, on_cpu) }
}

/// The functions by their names, each for one type.
macro_rules! named {
    ($($name:ident: $dtype:ident;)*) => {$(
        #[doc = concat!("[`m_grouped_half_gemm_nt_fused`] of [`", stringify!($dtype), "`](DType::", stringify!($dtype), ").")]
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

named! {
    m_grouped_bf16_gemm_nt_fused: Bf16;
    m_grouped_fp16_gemm_nt_fused: F16;
}

/// The operands of a product whose rows are grouped and whose sums are finished, as addresses, for engines that own their
/// memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`m_grouped_half_gemm_nt_fused`].
#[derive(Clone, Copy, Debug)]
pub struct RawFusedGroupedHalfGemm {
    /// The product; its `n` is that of B's rows, its `d_type` e4m3 where D is quantized.
    pub gemm: RawGroupedHalfGemm,
    /// What is done with the sums.
    pub epilogue: RawEpilogue,
}

impl RawFusedGroupedHalfGemm {
    fn describe(&self, device: DeviceId) -> Arguments<GroupedHalfGemm> {
        let mut gemm = self.gemm.describe(device);
        let [groups, n] = [gemm.b.dims[0], gemm.b.dims[1]];
        let masked = self.gemm.rows.are_masked();
        let rows = (masked, gemm.a.dims[usize::from(masked)]);
        let quantized = self.gemm.d_type == DType::E4m3;
        let epilogue = self.epilogue.describe([groups, n], rows, quantized, device);
        for output in gemm.c.iter_mut().chain([&mut gemm.d]) {
            output.dims[output.rank - 1] = self.epilogue.columns(n)[1];
        }
        let RawEpilogue { alpha, beta, .. } = self.epilogue;
        Arguments { c: gemm.c.take(), gemm, epilogue, alpha, beta }
    }
}

/// [`m_grouped_half_gemm_nt_fused`] on memory that the caller owns, on the stream of the options. The device is a GPU or the
/// simulator, whose addresses are those of its tensors.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_fused_raw`](crate::m_grouped_fp8_gemm_nt_fused_raw).
///
/// # Errors
/// As [`m_grouped_half_gemm_nt_fused`]. The CPU is refused: it has tensors only.
pub unsafe fn m_grouped_half_gemm_nt_fused_raw(
    device: &Device,
    gemm: &RawFusedGroupedHalfGemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

impl FusedGroupedGemm for GroupedHalfGemm {
    fn check_fused(&self, c: Option<&Operand>, epilogue: &EpilogueArguments) -> Result<CheckedGroupedFused> {
        GroupedHalfGemm::check_fused(&GroupedHalfGemm { c: c.copied(), ..*self }, epilogue)
    }

    fn fused_cache<B: Backend>(caches: &LaunchCaches<B>) -> &LaunchCache<Call<Arguments<Self>>, B> {
        &caches.fused_grouped_half
    }
}
