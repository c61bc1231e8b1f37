//! Quantization to FP8, its inverse, and scales from one layout to another.

use oxigemm_kernels::AnyKernel;
use oxigemm_kernels::quantize::{self as kernels, Args, Config, Launch, Source, transform};

use crate::cast::ScaleFormat;
use crate::check::{
    CheckedQuantize, Dequantize, Granularity, Operand, Quantize, QuantizeSource, TransformScales,
};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::no_stream;
use crate::plain::{LaunchOptions, PlainLaunch, Step, run_steps};
use crate::reference::quantize as on_cpu;
use crate::tensor::Tensor;

/// Quantizes a matrix: `codes` and `scales` such that `x ≈ codes * scales`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[M, K]` | bf16, f16 or f32 | rows of K, any pitch |
/// | `codes` | `[M, K]` | e4m3 or e5m2 | rows of K, any pitch |
/// | or, of 1x32, | `[M, K/2]` | u8: two e2m1 each, the first in the low half (MXFP4) | rows, any pitch |
/// | `scales` | [`Granularity::scale_dims`] | f32 | any strides: row-major, MN-major, ... |
/// | or, of 1x128 and 1x32, | `[M, ceil(S/4)]` for S scales of a row | i32: UE8M0, four of a row in each | any strides |
/// | or | `[ceil(M/128), ceil(S/4), 32, 4]` | i32: the same in blocks of 128 by 4, as `tcgen05` reads them | no gaps |
///
/// A scale is `max(amax, 1e-4) / largest`, where `largest` is the largest finite code, 448, 57344 or, of e2m1, 6; with
/// [`ScaleFormat::PowerOfTwo`] it is rounded up to a power of two. A code is the nearest to `x * (1 / scale)`, ties to even.
/// These are the casts of [`crate::cast`], to the bit. Scales that only fill a packed layout up become 0.
///
/// What is not finite: an infinity makes the scale infinite and NaN makes it NaN, so that all of the block is NaN
/// when it is dequantized; scales that are powers of two become 2¹²⁷ instead, an infinity then saturates and NaN has the
/// code of NaN. (e2m1 has none: there NaN becomes 6.)
///
/// One kernel that reads `x` once, or two [per tensor](Granularity::PerTensor). Rows that begin at multiples of 16 bytes, and
/// a K that is a multiple of 8, are read and written as vectors; any others one by one. The same call gives the same bits,
/// and it can be captured into a graph once its kernel is loaded. Where M or K is 0 nothing is done.
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
/// `rows` is `[M]` i32 and read by the kernel: a graph can be replayed with others. A row that is -1, or not below T, is
/// none: its codes and its scales stay as they are. (Of packed scales, which are bytes, too.)
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
    fused(x, codes, scales, Granularity::PerToken, format, SourceTensor::Rows(rows), options)
}

/// RMSNorm and quantization in one: the values of [`quantize`] are
/// `x * (1 / sqrt(mean(x * x) + epsilon)) * weight`, where the mean is that of a row of `x`, `[M, K]`, and `weight` is `[K]`
/// of the same type. Scales are of 1x128, codes e4m3.
///
/// All of it is FP32, and squares are added in an order that depends on nothing: every device gives the same bytes.
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
    match codes.device() {
        Device::Cpu => {
            no_stream(codes.device(), options.stream.as_ref())?;
            call.check()?;
            on_cpu::dequantize(codes, scales, x, granularity)
        }
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        device => unsafe { run_dequantize(device, &call, options) },
    }
}

/// Copies scales from any layout to another: `to` has the same values as `from`, which is f32, `[MN, K]` or
/// `[G, MN, K]`, in any strides.
///
/// `to` is f32 of the same shape and any strides; or packed UE8M0, i32 `[MN, ceil(K/4)]` (`[G, MN, ceil(K/4)]`) of any
/// strides, four of a row in each, the first in the lowest byte; or the same in blocks of 128 by 4, i32
/// `[ceil(MN/128), ceil(K/4), 32, 4]`. Packed scales are rounded up to powers of two, if they are none, and
/// what only fills the layout up becomes 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, transform_scales};
///
/// let device = Device::cpu();
/// let scales = Tensor::from_f32(DType::F32, &[1.0, 2.0, 4.0, 0.5], &[2, 2], &device)?;
/// let mut packed = Tensor::empty(DType::I32, &[2, 1], &device)?;
/// transform_scales(&scales, &mut packed, &LaunchOptions::default())?;
/// assert_eq!(packed.to_vec::<i32>()?, [127 | 128 << 8, 129 | 126 << 8]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn transform_scales(from: &Tensor, to: &mut Tensor, options: &LaunchOptions) -> Result<()> {
    let call = TransformScales { from: from.describe("from"), to: to.describe("to") };
    match from.device() {
        Device::Cpu => {
            no_stream(from.device(), options.stream.as_ref())?;
            call.check()?;
            on_cpu::transform_scales(from, to)
        }
        // SAFETY: as in `dequantize`.
        device => unsafe { run_transform(device, &call, options) },
    }
}

/// Room for `[mn, k]` f32 scales, MN-major, in columns that begin at multiples of 16 bytes.
///
/// # Errors
/// If the device has no room.
///
/// ```
/// use oxigemm::{Device, tma_aligned_scales};
///
/// let scales = tma_aligned_scales(5, 3, &Device::cpu())?;
/// assert_eq!((scales.dims(), scales.strides()), (&[5, 3][..], &[1, 8][..]));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn tma_aligned_scales(mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    aligned(DType::F32, mn, k, device)
}

/// Room for packed UE8M0 scales, `[mn, ceil(k/4)]` i32, MN-major, in columns that begin at multiples of 16 bytes.
///
/// # Errors
/// If the device has no room.
pub fn packed_scales(mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    aligned(DType::I32, mn, k.div_ceil(4), device)
}

/// Room for packed UE8M0 scales in blocks of 128 by 4: `[ceil(mn/128), ceil(k/4), 32, 4]` i32.
///
/// # Errors
/// If the device has no room.
pub fn blocked_scales(mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    Tensor::empty(DType::I32, &[mn.div_ceil(128), k.div_ceil(4), 32, 4], device)
}

/// [`tma_aligned_scales`] with the values of f32 scales, `[MN, K]`, of any strides.
///
/// # Errors
/// As [`transform_scales`].
pub fn get_mn_major_tma_aligned_tensor(scales: &Tensor) -> Result<Tensor> {
    let [mn, k] = matrix(scales)?;
    let mut to = tma_aligned_scales(mn, k, scales.device())?;
    transform_scales(scales, &mut to, &LaunchOptions::default())?;
    Ok(to)
}

/// [`packed_scales`] with the values of f32 scales, `[MN, K]`, of any strides.
///
/// # Errors
/// As [`transform_scales`].
pub fn get_mn_major_tma_aligned_packed_ue8m0_tensor(scales: &Tensor) -> Result<Tensor> {
    let [mn, k] = matrix(scales)?;
    let mut to = packed_scales(mn, k, scales.device())?;
    transform_scales(scales, &mut to, &LaunchOptions::default())?;
    Ok(to)
}

fn matrix(scales: &Tensor) -> Result<[usize; 2]> {
    <[usize; 2]>::try_from(scales.dims()).map_err(|_| Error::Rank {
        argument: "scales",
        expected: "a matrix (2 dimensions)".to_owned(),
        found: format!("{:?}", scales.dims()),
    })
}

fn aligned(dtype: DType, mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    Tensor::empty(dtype, &[k, mn.next_multiple_of(4)], device)?.transpose(0, 1)?.narrow(0, 0, mn)
}

/// Where values come from, as tensors.
#[derive(Clone, Copy)]
pub(crate) enum SourceTensor<'a> {
    Matrix,
    SwiGlu,
    Rows(&'a Tensor),
    RmsNorm { weight: &'a Tensor, epsilon: f32 },
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
    match x.device() {
        Device::Cpu => {
            no_stream(x.device(), options.stream.as_ref())?;
            match call.check()? {
                Some(_) => on_cpu::quantize(x, source, codes, scales, granularity, format),
                None => Ok(()),
            }
        }
        // SAFETY: as in `dequantize`.
        device => unsafe { run_quantize(device, &call, options) },
    }
}

/// Where scales lie, for engines that own their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawScales {
    /// f32, with the strides along rows and columns of scales, in elements.
    F32([usize; 2]),
    /// UE8M0, four of a row in an i32, with the strides of these.
    Packed([usize; 2]),
    /// The same in blocks of 128 rows by 4.
    Blocked,
}

/// A quantization on memory that the caller owns. Pitches and strides are in elements.
///
/// What the fields mean and how they are checked is told at [`quantize`] and, where values are computed or
/// gathered, at [`swiglu_quantize`], [`gather_quantize`] and [`rms_norm_quantize`].
#[derive(Clone, Copy, Debug)]
pub struct RawQuantize {
    /// Rows of the codes.
    pub rows: usize,
    /// Columns of the codes.
    pub columns: usize,
    /// Address of X.
    pub x: u64,
    /// The type of X.
    pub x_type: DType,
    /// From one row of X to the next.
    pub x_pitch: usize,
    /// Address of the codes.
    pub codes: u64,
    /// The type of the codes.
    pub code_type: DType,
    /// From one row of the codes to the next.
    pub codes_pitch: usize,
    /// Address of the scales.
    pub scales: u64,
    /// Where the scales lie.
    pub scale_layout: RawScales,
    /// Which values share a scale.
    pub granularity: Granularity,
    /// Which scales there may be; packed ones are powers of two.
    pub format: ScaleFormat,
    /// Where the values come from.
    pub source: RawSource,
}

/// Where the values of a [`RawQuantize`] come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RawSource {
    /// X.
    Matrix,
    /// SwiGLU of X.
    SwiGlu,
    /// Rows of X.
    Rows {
        /// Address of as many i32 as there are rows of codes.
        rows: u64,
        /// How many rows X has.
        of: usize,
    },
    /// RMSNorm of X.
    RmsNorm {
        /// Address of as many weights as there are columns, of the type of X.
        weight: u64,
        /// What is added to the mean of squares.
        epsilon: f32,
    },
}

impl RawQuantize {
    fn scales(&self, device: DeviceId) -> Operand {
        let [rows, columns] = self.granularity.scale_dims(self.rows, self.columns);
        scales_operand("scales", self.scale_layout, [rows, columns], self.scales, device)
    }

    fn describe(&self, device: DeviceId) -> Quantize {
        let [m, k] = [self.rows, self.columns].map(int);
        let (x_dims, source) = match self.source {
            RawSource::Matrix => ([m, k], QuantizeSource::Matrix),
            RawSource::SwiGlu => ([m, k.saturating_mul(2)], QuantizeSource::SwiGlu),
            RawSource::Rows { rows, of } => {
                let list =
                    Operand { rank: 1, ..Operand::matrix("rows", DType::I32, [m, 1], [1, 1], rows, device) };
                ([int(of), k], QuantizeSource::Rows(list))
            }
            RawSource::RmsNorm { weight, epsilon } => {
                let list = Operand::matrix("weight", self.x_type, [k, 1], [1, 1], weight, device);
                ([m, k], QuantizeSource::RmsNorm { weight: Operand { rank: 1, ..list }, epsilon })
            }
        };
        Quantize {
            x: Operand::matrix("x", self.x_type, x_dims, [int(self.x_pitch), 1], self.x, device),
            codes: {
                // Two codes of FP4 are a byte; K is even.
                let bytes = if self.code_type == DType::U8 { int(self.columns.div_ceil(2)) } else { k };
                let strides = [int(self.codes_pitch), 1];
                Operand::matrix("codes", self.code_type, [m, bytes], strides, self.codes, device)
            },
            scales: self.scales(device),
            granularity: self.granularity,
            format: self.format,
            source,
        }
    }
}

/// [`quantize`] and its kind on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`](crate::fp8_gemm_nt_raw).
///
/// # Errors
/// As [`quantize`]. The CPU is refused: it has tensors only.
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, Granularity, LaunchOptions, RawQuantize, RawScales, RawSource, Tensor, quantize_raw};
///
/// let device = Device::sim();
/// let (m, k) = (3, 128);
/// let x = Tensor::from_f32(DType::Bf16, &vec![1.75; m * k], &[m, k], &device)?;
/// let codes = Tensor::empty(DType::E4m3, &[m, k], &device)?;
/// let scales = Tensor::empty(DType::F32, &[m, 1], &device)?;
/// let call = RawQuantize {
///     rows: m, columns: k,
///     x: x.address(), x_type: DType::Bf16, x_pitch: k,
///     codes: codes.address(), code_type: DType::E4m3, codes_pitch: k,
///     scales: scales.address(), scale_layout: RawScales::F32([1, 1]),
///     granularity: Granularity::PerToken, format: ScaleFormat::PowerOfTwo, source: RawSource::Matrix,
/// };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { quantize_raw(&device, &call, &LaunchOptions::default())? };
/// assert_eq!(scales.to_vec_f32()?, [1.0 / 256.0; 3]);
/// assert_eq!(codes.to_vec_f32()?, vec![448.0; m * k]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn quantize_raw(device: &Device, call: &RawQuantize, options: &LaunchOptions) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_quantize(device, &call.describe(device.id()), options) }
}

/// [`dequantize`] on memory that the caller owns: the fields of a [`RawQuantize`] mean the same, and X is written.
/// Its format and its source do not count.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`](crate::fp8_gemm_nt_raw).
///
/// # Errors
/// As [`dequantize`]. The CPU is refused: it has tensors only.
pub unsafe fn dequantize_raw(device: &Device, call: &RawQuantize, options: &LaunchOptions) -> Result<()> {
    let Quantize { x, codes, scales, granularity, .. } =
        RawQuantize { source: RawSource::Matrix, ..*call }.describe(device.id());
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_dequantize(device, &Dequantize { codes, scales, x, granularity }, options) }
}

/// Scales that are transformed, on memory that the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct RawTransformScales {
    /// Rows of scales.
    pub mn: usize,
    /// Columns of scales.
    pub k: usize,
    /// Address of the f32 scales.
    pub from: u64,
    /// Their strides, in elements.
    pub from_strides: [usize; 2],
    /// Address of the result.
    pub to: u64,
    /// Where it lies.
    pub to_layout: RawScales,
}

/// [`transform_scales`] of a matrix on memory that the caller owns.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`](crate::fp8_gemm_nt_raw).
///
/// # Errors
/// As [`transform_scales`]. The CPU is refused: it has tensors only.
pub unsafe fn transform_scales_raw(
    device: &Device,
    call: &RawTransformScales,
    options: &LaunchOptions,
) -> Result<()> {
    let (dims, id) = ([call.mn, call.k], device.id());
    let call = TransformScales {
        from: scales_operand("from", RawScales::F32(call.from_strides), dims, call.from, id),
        to: scales_operand("to", call.to_layout, dims, call.to, id),
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_transform(device, &call, options) }
}

fn scales_operand(
    name: &'static str,
    layout: RawScales,
    [rows, columns]: [usize; 2],
    address: u64,
    device: DeviceId,
) -> Operand {
    match layout {
        RawScales::F32(strides) => {
            Operand::matrix(name, DType::F32, [rows, columns].map(int), strides.map(int), address, device)
        }
        RawScales::Packed(strides) => {
            let dims = [rows, columns.div_ceil(4)].map(int);
            Operand::matrix(name, DType::I32, dims, strides.map(int), address, device)
        }
        RawScales::Blocked => {
            let [down, across] = [rows.div_ceil(128), columns.div_ceil(4)].map(int);
            Operand {
                rank: 4,
                dims: [down, across, 32, 4],
                strides: [across.saturating_mul(128), 128, 4, 1],
                ..Operand::matrix(name, DType::I32, [1, 1], [1, 1], address, device)
            }
        }
    }
}

/// What does not fit is refused as too large.
fn int(x: usize) -> i64 {
    i64::try_from(x).unwrap_or(i64::MAX)
}

type KernelStep = Step<{ Args::COUNT }>;

fn step(config: Config, (launch, args): (Launch, Args)) -> KernelStep {
    Step::Kernel(PlainLaunch {
        kernel: AnyKernel::Quantize(config),
        grid: launch.grid,
        threads: launch.threads,
        shared_bytes: launch.shared_bytes,
        arguments: args.list(),
    })
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
            let config = kernels::norm::Config { input };
            let only = step(Config::Norm(config), config.launch(&args));
            // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
            return unsafe { run_steps(device, std::iter::once(only), options) };
        }
    };
    let groups = |width| {
        let config = kernels::groups::Config { input, code, width, source };
        step(Config::Groups(config), config.launch(&args, mn_major))
    };
    let tiles = |sharing| {
        let config = kernels::tiles::Config { input, code, sharing };
        step(Config::Tiles(config), config.launch(&args))
    };
    let only = match call.granularity {
        Granularity::PerToken => groups(128),
        Granularity::PerGroup32 => groups(32),
        Granularity::PerBlock => tiles(kernels::tiles::Sharing::Block),
        Granularity::PerChannel => tiles(kernels::tiles::Sharing::Channel),
        Granularity::PerRow => {
            let config = kernels::rows::Config { input, code };
            step(Config::Rows(config), config.launch(&args))
        }
        Granularity::PerTensor => {
            let (find, convert) =
                (kernels::whole::ScaleConfig { input, code }, kernels::whole::CodesConfig { input, code });
            let steps = [
                Step::Zero { address: args.scales, bytes: 4 },
                step(Config::WholeScale(find), find.launch(&args)),
                step(Config::WholeCodes(convert), convert.launch(&args)),
            ];
            // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
            return unsafe { run_steps(device, steps.into_iter(), options) };
        }
    };
    // SAFETY: as above.
    unsafe { run_steps(device, std::iter::once(only), options) }
}

/// # Safety
/// As for [`dequantize_raw`].
unsafe fn run_dequantize(device: &Device, call: &Dequantize, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, input, code, .. }) = call.check()? else { return Ok(()) };
    let per_column = call.granularity == Granularity::PerChannel;
    let config = kernels::dequantize::Config { code, output: input, per_column };
    let only = step(Config::Dequantize(config), config.launch(&args));
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}

/// # Safety
/// As for [`transform_scales_raw`].
unsafe fn run_transform(device: &Device, call: &TransformScales, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, groups, .. }) = call.check()? else { return Ok(()) };
    let only = step(Config::Transform, transform::launch(&args, groups));
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}
