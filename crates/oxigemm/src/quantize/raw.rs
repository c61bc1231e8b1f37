//! Quantization on memory that the caller owns.

use super::{run_by_scale, run_dequantize, run_quantize};
use crate::cast::ScaleFormat;
use crate::check::int;
use crate::check::{Dequantize, Granularity, Operand, Quantize, QuantizeSource};
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::launch::LaunchOptions;
use crate::tensor::DType;

/// Where scales lie, for engines that own their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawScales {
    /// f32, with the strides along rows and columns of scales, in elements.
    F32([usize; 2]),
    /// UE8M0, four of a row in an i32, with the strides of these.
    Packed([usize; 2]),
    /// The same in blocks of 128 rows by 4.
    Blocked,
    /// e4m3, with the strides along rows and columns of scales, in elements: of NVFP4 alone.
    E4m3([usize; 2]),
}

/// A quantization on memory that the caller owns. Pitches and strides are in elements.
///
/// What the fields mean and how they are checked is told at [`quantize`](crate::quantize) and, where values are
/// computed or gathered, at [`swiglu_quantize`](crate::swiglu_quantize), [`gather_quantize`](crate::gather_quantize)
/// and [`rms_norm_quantize`](crate::rms_norm_quantize).
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

    pub(super) fn describe(&self, device: DeviceId) -> Quantize {
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

/// [`quantize`](crate::quantize) and its kind on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`quantize`](crate::quantize). The CPU is refused: it has tensors only.
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

/// [`dequantize`](crate::dequantize) on memory that the caller owns: the fields of a [`RawQuantize`] mean the same, and
/// X is written.
/// Its format and its source do not count.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`dequantize`](crate::dequantize). The CPU is refused: it has tensors only.
pub unsafe fn dequantize_raw(device: &Device, call: &RawQuantize, options: &LaunchOptions) -> Result<()> {
    let Quantize { x, codes, scales, granularity, .. } =
        RawQuantize { source: RawSource::Matrix, ..*call }.describe(device.id());
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_dequantize(device, &Dequantize { codes, scales, x, granularity }, options) }
}

/// [`quantize_by_scale`](crate::quantize_by_scale) on memory that the caller owns: the fields of a [`RawQuantize`] mean
/// the same, and its one scale is read. Its granularity, its format and its source do not count.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`quantize_by_scale`](crate::quantize_by_scale). The CPU is refused: it has tensors only.
pub unsafe fn quantize_by_scale_raw(
    device: &Device,
    call: &RawQuantize,
    options: &LaunchOptions,
) -> Result<()> {
    let (granularity, format, source) = (Granularity::PerTensor, ScaleFormat::F32, RawSource::Matrix);
    let call = RawQuantize { granularity, format, source, ..*call };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_by_scale(device, &call.describe(device.id()), options) }
}

pub(super) fn scales_operand(
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
        RawScales::E4m3(strides) => {
            Operand::matrix(name, DType::E4m3, [rows, columns].map(int), strides.map(int), address, device)
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
