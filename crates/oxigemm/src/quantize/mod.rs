//! Quantization to FP8 and FP4, its inverse, and scales from one layout to another.

mod dual;
mod nvfp4;
mod raw;
mod required;
mod scales;

pub use dual::{RawTransposedCopy, TransposedCopy, quantize_with_transpose, quantize_with_transpose_raw};
pub use nvfp4::{
    RawNvfp4, TensorScale, dequantize_nvfp4, dequantize_nvfp4_raw, quantize_nvfp4, quantize_nvfp4_raw,
};
pub use raw::{RawQuantize, RawScales, RawSource, dequantize_raw, quantize_by_scale_raw, quantize_raw};
pub use required::{
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor, get_tma_aligned_size,
    transform_sf_into_required_layout,
};
pub use scales::{
    RawTransformScales, blocked_scales, get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor, packed_scales, tma_aligned_scales, transform_scales,
    transform_scales_raw,
};

use oxigemm_kernels::KernelId;
use oxigemm_kernels::quantize::{self as kernels, Args, Code, Config, Input, Launch, Source};

use crate::cast::ScaleFormat;
use crate::check::{CheckedQuantize, Dequantize, Granularity, Quantize, QuantizeSource};
use crate::device::backend::{Backend, with_backend};
use crate::device::launch::{Geometry, KernelArg, KernelLaunch};
use crate::device::{Device, Limits};
use crate::error::{Error, Result};
use crate::launch::{LaunchOptions, Step, run_steps};
use crate::reference::quantize::{self as on_cpu, SourceTensor};
use crate::tensor::Tensor;

/// Quantizes a matrix: `codes` and `scales` such that `x ≈ codes * scales`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[M, K]` | bf16, f16 or f32 | rows of K, any pitch |
/// | `codes` | `[M, K]` | e4m3 or e5m2 | rows of K, any pitch |
/// | or, of 1x32, | `[M, K/2]` | u8: two e2m1 each, the first in the low half (MXFP4) | rows, any pitch |
/// | `scales` | [`Granularity::scale_dims`] | f32 | any strides: row-major, MN-major, ... |
/// | or, of 1x128 and 1x32, | `[M, ceil(S/4)]` for S scales a row | i32: UE8M0, four of a row in each | any strides |
/// | or | `[ceil(M/128), ceil(S/4), 32, 4]` | i32: the same in blocks of 128 by 4, as `tcgen05` reads them | no gaps |
///
/// A scale is `max(amax, 1e-4) / largest`, where `largest` is the largest finite code, 448, 57344 or, of e2m1, 6; with
/// [`ScaleFormat::PowerOfTwo`] it is rounded up to a power of two. A code is the nearest to `x * (1 / scale)`, ties to
/// even. These are the casts of [`crate::cast`], to the bit. Scales that only fill a packed layout up become 0.
///
/// What is not finite: an infinity makes the scale infinite and NaN makes it NaN, so that all of the block is NaN when
/// it is dequantized; scales that are powers of two become 2¹²⁷ instead, an infinity then saturates and NaN has the
/// code of NaN. (e2m1 has none: there NaN becomes 6, and infinity stays infinite by an infinite scale.)
///
/// One kernel that reads `x` once, or two [per tensor](Granularity::PerTensor). Rows that begin at multiples of 16
/// bytes, and a K that is a multiple of 8, are read and written as vectors; any others one by one. Up to about 4
/// million such numbers have one kernel per tensor too: a cooperative one with a grid barrier, which starts when all of
/// its blocks can run. (In a graph, if such a call was made before it was captured; do not instantiate a graph twice
/// and run both at one time.) The same call gives the same bits, and it can be captured into a graph once its kernel is
/// loaded. Where M or K is 0 nothing is done.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, Granularity, LaunchOptions, Tensor, quantize, random, tma_aligned_scales};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, k) = (5, 256);
/// let x = Tensor::from_f32(DType::Bf16, &random::normals(1, m * k), &[m, k], &device)?;
/// let mut codes = Tensor::empty(DType::E4m3, &[m, k], &device)?;
/// let mut scales = tma_aligned_scales(m, k / 128, &device)?; // MN-major, as engines want them
/// let per_token = Granularity::PerToken;
/// quantize(&x, &mut codes, &mut scales, per_token, ScaleFormat::F32, &LaunchOptions::default())?;
/// assert_eq!(scales.strides(), [1, 8]);
/// assert!(scales.to_vec_f32()?.iter().all(|scale| *scale > 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn quantize(
    x: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    granularity: Granularity,
    format: ScaleFormat,
    options: &LaunchOptions,
) -> Result<()> {
    fused(x, codes, scales, granularity, format, SourceTensor::Matrix, options)
}

/// SwiGLU and quantization in one: the values of [`quantize`] are `silu(gate) * up` of `x`, `[M, 2K]`, whose rows have
/// the gates and then the ups. Scales are of 1x128, codes e4m3.
///
/// `silu(x) = x / (1 + exp(-x))` in f32, with the exponential and the reciprocal of the GPU.
///
/// What is not finite is what the formula gives: NaN of NaN, infinity of an infinite gate or up, but NaN where that is
/// multiplied with 0, as `silu` is of 0 and of gates below -88. A gate of -∞ gives NaN. No other block notices.
///
/// # Errors
/// As [`quantize`].
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, swiglu_quantize};
///
/// let device = Device::cpu();
/// let x = Tensor::from_f32(DType::Bf16, &[1.0, -1.0, 2.0, 4.0], &[1, 4], &device)?; // two gates, two ups
/// let mut codes = Tensor::empty(DType::E4m3, &[1, 2], &device)?;
/// let mut scales = Tensor::empty(DType::F32, &[1, 1], &device)?;
/// swiglu_quantize(&x, &mut codes, &mut scales, ScaleFormat::F32, &LaunchOptions::default())?;
/// let value = |code: f32| code * scales.to_vec_f32().unwrap()[0];
/// let [first, second] = [0, 1].map(|i| value(codes.to_vec_f32().unwrap()[i]));
/// assert!((first - 2.0 * 0.731).abs() < 0.01 && (second + 4.0 * 0.269).abs() < 0.05);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn swiglu_quantize(
    x: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    format: ScaleFormat,
    options: &LaunchOptions,
) -> Result<()> {
    fused(x, codes, scales, Granularity::PerToken, format, SourceTensor::SwiGlu, options)
}

/// Gathers rows and quantizes them: row `i` of `codes` and `scales` is that of row `rows[i]` of `x`, `[T, K]`, as
/// [`quantize`] has it, of 1x128 and e4m3. So tokens are copied to the places of their experts, in the layout that
/// [`m_grouped_fp8_gemm_nt_contiguous`](crate::m_grouped_fp8_gemm_nt_contiguous) reads.
///
/// `rows` is `[M]` i32 and read by the kernel: a graph can be replayed with others. A row that is -1, or not below T,
/// is none: its codes and its scales stay as they are. (Of packed scales, which are bytes, too.) What is not finite is
/// so in its block of its row alone, as in [`quantize`].
///
/// # Errors
/// As [`quantize`].
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, gather_quantize};
///
/// let device = Device::cpu();
/// let x = Tensor::from_f32(DType::F32, &[1.0, 2.0, 3.0, 4.0], &[2, 2], &device)?;
/// let rows = Tensor::from_slice(&[1i32, -1, 0], &[3], &device)?;
/// let mut codes = Tensor::zeros(DType::E4m3, &[3, 2], &device)?;
/// let mut scales = Tensor::zeros(DType::F32, &[3, 1], &device)?;
/// gather_quantize(&x, &rows, &mut codes, &mut scales, ScaleFormat::PowerOfTwo, &LaunchOptions::default())?;
/// assert_eq!(codes.to_vec_f32()?, [192.0, 256.0, 0.0, 0.0, 128.0, 256.0]);
/// assert_eq!(scales.to_vec_f32()?, [1.0 / 64.0, 0.0, 1.0 / 128.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn gather_quantize(
    x: &Tensor,
    rows: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    format: ScaleFormat,
    options: &LaunchOptions,
) -> Result<()> {
    gather_quantize_in_blocks(x, rows, codes, scales, Granularity::PerToken, format, options)
}

/// [`gather_quantize`] with scales of 1x128 or 1x32, as `granularity` says: of 32 they are those of MXFP8, and of its
/// grouped GEMMs.
///
/// # Errors
/// As [`quantize`]; another granularity is refused.
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, Granularity, LaunchOptions, Tensor, gather_quantize_in_blocks, packed_scales};
///
/// let device = Device::cpu();
/// let x: Vec<f32> = (0..64).map(|i| if i < 32 { 448.0 } else { 0.5 * 448.0 }).collect();
/// let x = Tensor::from_f32(DType::Bf16, &x, &[1, 64], &device)?;
/// let rows = Tensor::from_slice(&[0i32, 0], &[2], &device)?;
/// let mut codes = Tensor::zeros(DType::E4m3, &[2, 64], &device)?;
/// let mut words = packed_scales(2, 2, &device)?;
/// let (of_32, format) = (Granularity::PerGroup32, ScaleFormat::PowerOfTwo);
/// gather_quantize_in_blocks(&x, &rows, &mut codes, &mut words, of_32, format, &LaunchOptions::default())?;
/// assert_eq!((words.to_vec::<i32>()?, codes.to_vec_f32()?), (vec![127 | 126 << 8; 2], vec![448.0; 128]));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn gather_quantize_in_blocks(
    x: &Tensor,
    rows: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    granularity: Granularity,
    format: ScaleFormat,
    options: &LaunchOptions,
) -> Result<()> {
    fused(x, codes, scales, granularity, format, SourceTensor::Rows(rows), options)
}

/// RMSNorm and quantization in one: the values of [`quantize`] are `x * weight * (1 / sqrt(mean(x * x) + epsilon))`,
/// where the mean is that of a row of `x`, `[M, K]`, and `weight` is `[K]` of the same type. Scales are of 1x128, codes
/// e4m3.
///
/// All of it is FP32, and squares are added in an order that depends on nothing: every device gives the same bytes.
///
/// NaN makes its row NaN. An infinity makes the mean infinite: it becomes NaN, and all else in its row 0. So does a
/// number beyond 1.8e19, whose square is infinite; it becomes 0 where its product with the weight is finite. With an
/// `epsilon` of 0, a row whose squares are 0 is NaN.
///
/// # Errors
/// As [`quantize`].
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, rms_norm_quantize};
///
/// let device = Device::cpu();
/// let x = Tensor::from_f32(DType::F32, &[3.0, -3.0], &[1, 2], &device)?;
/// let weight = Tensor::from_f32(DType::F32, &[1.0, 0.5], &[2], &device)?;
/// let mut codes = Tensor::empty(DType::E4m3, &[1, 2], &device)?;
/// let mut scales = Tensor::empty(DType::F32, &[1, 1], &device)?;
/// let format = ScaleFormat::PowerOfTwo;
/// rms_norm_quantize(&x, &weight, 0.0, &mut codes, &mut scales, format, &LaunchOptions::default())?;
/// assert_eq!(codes.to_vec_f32()?, [256.0, -128.0]);
/// assert_eq!(scales.to_vec_f32()?, [1.0 / 256.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn rms_norm_quantize(
    x: &Tensor,
    weight: &Tensor,
    epsilon: f32,
    codes: &mut Tensor,
    scales: &mut Tensor,
    format: ScaleFormat,
    options: &LaunchOptions,
) -> Result<()> {
    let source = SourceTensor::RmsNorm { weight, epsilon };
    fused(x, codes, scales, Granularity::PerToken, format, source, options)
}

/// `x = codes * scales`, rounded once to the type of `x`: the inverse of [`quantize`], with the same arguments.
///
/// # Errors
/// As [`quantize`].
///
/// ```
/// use oxigemm::{DType, Device, Granularity, LaunchOptions, Tensor, dequantize};
///
/// let device = Device::cpu();
/// let codes = Tensor::from_f32(DType::E4m3, &[448.0, -2.0], &[1, 2], &device)?;
/// let scales = Tensor::from_f32(DType::F32, &[0.5], &[1, 1], &device)?;
/// let mut x = Tensor::empty(DType::Bf16, &[1, 2], &device)?;
/// dequantize(&codes, &scales, &mut x, Granularity::PerRow, &LaunchOptions::default())?;
/// assert_eq!(x.to_vec_f32()?, [224.0, -1.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn dequantize(
    codes: &Tensor,
    scales: &Tensor,
    x: &mut Tensor,
    granularity: Granularity,
    options: &LaunchOptions,
) -> Result<()> {
    let call = Dequantize {
        codes: codes.describe("codes"),
        scales: scales.describe("scales"),
        x: x.describe("x"),
        granularity,
    };
    let reference = || {
        call.check()?;
        on_cpu::dequantize(codes, scales, x, granularity)
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    codes
        .device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_dequantize(device, &call, options) })
}

/// Quantizes by one scale that is given, such as one from calibration: the nearest codes to `x * (1 / scale)`, ties to
/// even; what is larger than the largest code becomes that.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[M, K]` | bf16, f16 or f32 | rows of K, any pitch |
/// | `scale` | `[1, 1]` | f32 | as [`quantize`] leaves it [per tensor](Granularity::PerTensor) |
/// | `codes` | `[M, K]` | e4m3 or e5m2 | as `x` |
///
/// One kernel, which reads the scale: a graph can be replayed with another. The scale is a positive number that is not
/// subnormal; of any other, codes are what the product is.
///
/// # Errors
/// As [`quantize`].
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, quantize_by_scale};
///
/// let device = Device::cpu();
/// let x = Tensor::from_f32(DType::Bf16, &[1.0, -3.0, 1000.0], &[1, 3], &device)?;
/// let scale = Tensor::from_f32(DType::F32, &[0.5], &[1, 1], &device)?;
/// let mut codes = Tensor::empty(DType::E4m3, &[1, 3], &device)?;
/// quantize_by_scale(&x, &scale, &mut codes, &LaunchOptions::default())?;
/// assert_eq!(codes.to_vec_f32()?, [2.0, -6.0, 448.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn quantize_by_scale(
    x: &Tensor,
    scale: &Tensor,
    codes: &mut Tensor,
    options: &LaunchOptions,
) -> Result<()> {
    let call = Quantize {
        x: x.describe("x"),
        codes: codes.describe("codes"),
        scales: scale.describe("scale"),
        granularity: Granularity::PerTensor,
        format: ScaleFormat::F32,
        source: QuantizeSource::Matrix,
    };
    let reference = || match call.check()? {
        Some(_) => on_cpu::quantize_by_scale(x, scale, codes),
        None => Ok(()),
    };
    // SAFETY: as in `dequantize`.
    x.device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_by_scale(device, &call, options) })
}

fn fused(
    x: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    granularity: Granularity,
    format: ScaleFormat,
    source: SourceTensor<'_>,
    options: &LaunchOptions,
) -> Result<()> {
    let call = Quantize {
        x: x.describe("x"),
        codes: codes.describe("codes"),
        scales: scales.describe("scales"),
        granularity,
        format,
        source: match source {
            SourceTensor::Matrix => QuantizeSource::Matrix,
            SourceTensor::SwiGlu => QuantizeSource::SwiGlu,
            SourceTensor::Rows(rows) => QuantizeSource::Rows(rows.describe("rows")),
            SourceTensor::RmsNorm { weight, epsilon } => {
                QuantizeSource::RmsNorm { weight: weight.describe("weight"), epsilon }
            }
        },
    };
    let reference = || match call.check()? {
        Some(_) => on_cpu::quantize(x, source, codes, scales, granularity, format),
        None => Ok(()),
    };
    // SAFETY: as in `dequantize`.
    x.device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_quantize(device, &call, options) })
}

/// The SMs of a device.
pub(crate) fn sm_count(device: &Device) -> Result<u32> {
    Ok(device_limits(device)?.sms)
}

fn device_limits(device: &Device) -> Result<Limits> {
    device.limits().copied().ok_or_else(|| Error::no_raw_memory("cpu"))
}

pub(crate) type KernelStep = Step<[KernelArg; Args::COUNT]>;

/// The launch of a kernel on a device.
pub(crate) fn step(device: &Device, config: Config, (launch, args): (Launch, Args)) -> Result<KernelStep> {
    Ok(Step::Kernel(KernelLaunch {
        kernel: KernelId::Quantize(device_limits(device)?.arch, config),
        geometry: Geometry {
            grid: launch.grid,
            cluster: 1,
            threads: launch.threads,
            shared_bytes: launch.shared_bytes,
            cooperative: config.is_cooperative(),
        },
        programmatic: false,
        params: args.list(),
    }))
}

/// # Safety
/// As for [`quantize_raw`].
unsafe fn run_quantize(device: &Device, call: &Quantize, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, input, code, mn_major, .. }) = call.check()? else { return Ok(()) };
    let source = match call.source {
        QuantizeSource::Matrix => Source::Plain,
        QuantizeSource::SwiGlu => Source::SwiGlu,
        QuantizeSource::Rows(_) => Source::Gather,
        QuantizeSource::RmsNorm { .. } => {
            let config = kernels::rms_norm::Config { input };
            let only = step(device, Config::RmsNorm(config), config.launch(&args, sm_count(device)?))?;
            // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
            return unsafe { run_steps(device, std::iter::once(only), options) };
        }
    };
    let groups = |width| {
        let config = kernels::block_1x128::Config { input, code, width, source };
        step(device, Config::Block1x128(config), config.launch(&args, mn_major))
    };
    let tiles = |granularity| {
        let config = kernels::block_128x128::Config { input, code, granularity };
        step(device, Config::Block128x128(config), config.launch(&args))
    };
    let only = match call.granularity {
        Granularity::PerToken => groups(128)?,
        Granularity::PerGroup32 => groups(32)?,
        Granularity::PerBlock => tiles(kernels::block_128x128::Granularity::Block)?,
        Granularity::PerChannel => tiles(kernels::block_128x128::Granularity::Channel)?,
        Granularity::PerRow => {
            let config = kernels::per_row::Config { input, code };
            step(device, Config::PerRow(config), config.launch(&args))?
        }
        Granularity::PerTensor => {
            if let Some(only) = in_one_kernel(device, &args, (input, code), options)? {
                // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
                let done = unsafe { run_steps(device, std::iter::once(only), options) };
                // A process may be limited to some of the SMs; two kernels without a grid barrier then do it.
                match done {
                    Err(Error::Cuda(error)) if error.is_too_large_together() => {
                        tracing::warn!(%error, "one scale for a matrix takes two kernels");
                    }
                    done => return done,
                }
            }
            let (find, convert) = (
                kernels::per_tensor::ScaleConfig { input, code },
                kernels::per_tensor::CodesConfig { input, code },
            );
            let steps = [
                Step::Zero { address: args.scales, bytes: 4 },
                step(device, Config::PerTensorScale(find), find.launch(&args, sm_count(device)?))?,
                step(device, Config::PerTensorCodes(convert), convert.launch(&args))?,
            ];
            // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
            return unsafe { run_steps(device, steps.into_iter(), options) };
        }
    };
    // SAFETY: as above.
    unsafe { run_steps(device, std::iter::once(only), options) }
}

/// One scale for a small matrix: the kernel with a grid barrier, where there is a workspace for it.
fn in_one_kernel(
    device: &Device,
    args: &Args,
    (input, code): (Input, Code),
    options: &LaunchOptions,
) -> Result<Option<KernelStep>> {
    let config = kernels::per_tensor_single::Config { input, code };
    let Some((launch, args)) = config.launch(args, sm_count(device)?) else { return Ok(None) };
    let workspace = with_backend!(device, backend => {
        backend.grid_barrier_workspace(backend.stream(options.stream.as_ref())?)
    })?;
    workspace
        .map(|aux| step(device, Config::PerTensorSingle(config), (launch, Args { aux, ..args })))
        .transpose()
}

/// # Safety
/// As for [`quantize_by_scale_raw`].
unsafe fn run_by_scale(device: &Device, call: &Quantize, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, input, code, .. }) = call.check()? else { return Ok(()) };
    let config = kernels::per_tensor::CodesConfig { input, code };
    let only = step(device, Config::PerTensorCodes(config), config.launch(&args))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}

/// # Safety
/// As for [`dequantize_raw`].
unsafe fn run_dequantize(device: &Device, call: &Dequantize, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, input, code, .. }) = call.check()? else { return Ok(()) };
    let scales = match call.granularity {
        Granularity::PerChannel => kernels::dequantize::Scales::PerChannel,
        _ => kernels::dequantize::Scales::PerBlock,
    };
    let config = kernels::dequantize::Config { code, output: input, scales };
    let only = step(device, Config::Dequantize(config), config.launch(&args))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}
