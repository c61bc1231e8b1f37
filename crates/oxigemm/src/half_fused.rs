//! Products of BF16 and FP16 operands whose sums are finished before they are stored.

use crate::check::{CheckedFused, EpilogueArguments, GemmLayout, HalfGemm};
use crate::device::backend::Backend;
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::Result;
use crate::fused::{Arguments, Epilogue, FusedGemm, FusedOutput};
use crate::fused_grouped::RawEpilogue;
use crate::gemm::{Addend, GemmOptions};
use crate::half_gemm::{RawHalfGemm, expect_type};
use crate::launch::cache::LaunchCache;
use crate::reference;
use crate::remembered::{Call, LaunchCaches};
use crate::tensor::Tensor;

/// [`half_gemm`](crate::half_gemm) in the layout `nt` with more done to the sums than to round them: see [`Epilogue`] for what,
/// and in which order.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | bf16 or f16 | rows of K; pitch and address multiples of 16 bytes |
/// | `b` | `[N, K]` | as `a` | as `a` |
/// | `c` | as `d` | as `d` | rows of any pitch; none where D is quantized |
/// | `d` | `[M, N]`; `[M, N/2]` with a gate; wider by what heads skip | that of `a`, f32 or e4m3 | rows of any pitch; see [`FusedOutput`] |
///
/// The result is that of the single steps in FP32, rounded once: of the same sums as `half_gemm` computes with K split as often, which planning decides for both.
/// Heads are skipped in matrices without gate that are not quantized. K must not be 0.
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
    let gemm = HalfGemm {
        layout: GemmLayout::Nt,
        a: a.describe("a"),
        b: b.describe("b"),
        c: c.describe(d.d()),
        d: d.d().describe("d"),
    };
    let (alpha, beta) = (epilogue.alpha, epilogue.beta);
    let arguments = Arguments { gemm, epilogue: epilogue.describe(&d), alpha, beta };
    let on_cpu = || reference::half_gemm_nt_fused_tensors(a, b, c, d, epilogue);
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { arguments.run(a.device(), options, on_cpu) }
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

/// The operands of a fused product as addresses, for engines that own their memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`half_gemm_nt_fused`].
#[derive(Clone, Copy, Debug)]
pub struct RawFusedHalfGemm {
    /// The product; its `n` is that of B's rows, its `d_type` e4m3 where D is quantized.
    pub gemm: RawHalfGemm,
    /// What is done with the sums.
    pub epilogue: RawEpilogue,
}

impl RawFusedHalfGemm {
    fn describe(&self, device: DeviceId) -> Arguments<HalfGemm> {
        let mut gemm = self.gemm.describe(device);
        let [m, n] = [gemm.a.dims[0], gemm.b.dims[0]];
        let quantized = self.gemm.d_type == DType::E4m3;
        let epilogue = self.epilogue.describe([1, n], (false, m), quantized, device);
        for output in gemm.c.iter_mut().chain([&mut gemm.d]) {
            output.dims[1] = self.epilogue.columns(n)[1];
        }
        let RawEpilogue { alpha, beta, .. } = self.epilogue;
        Arguments { gemm, epilogue, alpha, beta }
    }
}

/// [`half_gemm_nt_fused`] on memory that the caller owns, on the stream of the options. The device is a GPU or the
/// simulator, whose addresses are those of its tensors.
///
/// # Safety
/// As for [`fp8_gemm_nt_fused_raw`](crate::fp8_gemm_nt_fused_raw).
///
/// # Errors
/// As [`half_gemm_nt_fused`]. The CPU is refused: it has tensors only.
///
/// ```
/// use oxigemm::{
///     Activation, DType, Device, GemmOptions, RawEpilogue, RawFusedHalfGemm, RawHalfGemm, Tensor,
///     half_gemm_nt_fused_raw,
/// };
///
/// let device = Device::sim();
/// let (m, n, k) = (4, 64, 16); // 32 gates and as many ups
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; m * k], &[m, k], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; n * k], &[n, k], &device)?;
/// let d = Tensor::empty(DType::Bf16, &[m, n / 2], &device)?;
/// let gemm = RawHalfGemm {
///     m, n, k, ab_type: DType::Bf16,
///     a: a.address(), a_strides: [k, 1],
///     b: b.address(), b_strides: [k, 1],
///     c: 0, c_pitch: 0, d: d.address(), d_pitch: n / 2, d_type: DType::Bf16,
/// };
/// let epilogue = RawEpilogue { activation: Activation::Relu, gated: true, ..Default::default() };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { half_gemm_nt_fused_raw(&device, &RawFusedHalfGemm { gemm, epilogue }, &GemmOptions::default())? };
/// assert_eq!(d.to_vec_f32()?, vec![16.0 * 16.0; m * n / 2]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn half_gemm_nt_fused_raw(
    device: &Device,
    gemm: &RawFusedHalfGemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { gemm.describe(device.id()).run_raw(device, options) }
}

impl FusedGemm for HalfGemm {
    fn check_fused(&self, epilogue: &EpilogueArguments) -> Result<CheckedFused> {
        HalfGemm::check_fused(self, epilogue)
    }

    fn fused_cache<B: Backend>(caches: &LaunchCaches<B>) -> &LaunchCache<Call<Arguments<Self>>, B> {
        &caches.fused_half
    }
}
