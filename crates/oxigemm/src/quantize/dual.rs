//! A matrix and its transpose, quantized in one pass.

use oxigemm_kernels::quantize::{Config, dual};

use super::{RawQuantize, sm_count, step};
use crate::cast::ScaleFormat;
use crate::check::int;
use crate::check::{CheckedQuantize, Granularity, Operand, Quantize, QuantizeBoth, QuantizeSource};
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::launch::{LaunchOptions, run_steps};
use crate::reference::quantize::{self as on_cpu, SourceTensor};
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Where the transpose of a quantized matrix goes.
#[derive(Debug)]
pub struct TransposedCopy<'a> {
    /// `[K, M]` of the type of the codes, rows of M, any pitch.
    pub codes: &'a mut Tensor,
    /// Of 1x128, the scales of the transpose: `[K, ceil(M/128)]` f32, any strides. Of 128x128 there are none, as the
    /// transpose has the scales of the matrix.
    pub scales: Option<&'a mut Tensor>,
}

/// [`quantize`](crate::quantize), and the transpose of `x` quantized as well, while `x` is read once: what the GEMMs
/// of the forward and the backward pass read.
///
/// Of [1x128](Granularity::PerToken), `copy` is what `quantize` makes of the transpose: its scales are those of 128
/// rows of a column of `x`, so the codes are others. Of [128x128](Granularity::PerBlock), it has the same codes and the
/// same scales. Scales are f32, also where they are powers of two.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::ScaleFormat;
/// use oxigemm::{DType, Device, Granularity, LaunchOptions, Tensor, TransposedCopy, quantize_with_transpose};
///
/// let device = Device::cpu();
/// let x = Tensor::from_f32(DType::Bf16, &[1.0, 2.0, 4.0, 8.0], &[2, 2], &device)?;
/// let new = |dtype, dims: &[usize]| Tensor::empty(dtype, dims, &device);
/// let (mut codes, mut scales) = (new(DType::E4m3, &[2, 2])?, new(DType::F32, &[2, 1])?);
/// let (mut codes_t, mut scales_t) = (new(DType::E4m3, &[2, 2])?, new(DType::F32, &[2, 1])?);
/// let copy = TransposedCopy { codes: &mut codes_t, scales: Some(&mut scales_t) };
/// let (granularity, format) = (Granularity::PerToken, ScaleFormat::PowerOfTwo);
/// quantize_with_transpose(&x, &mut codes, &mut scales, copy, granularity, format, &LaunchOptions::default())?;
/// assert_eq!(codes.to_vec_f32()?, [128.0, 256.0, 128.0, 256.0]);
/// assert_eq!(scales.to_vec_f32()?, [1.0 / 128.0, 1.0 / 32.0]);
/// assert_eq!(codes_t.to_vec_f32()?, [64.0, 256.0, 64.0, 256.0]);
/// assert_eq!(scales_t.to_vec_f32()?, [1.0 / 64.0, 1.0 / 32.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn quantize_with_transpose(
    x: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    copy: TransposedCopy<'_>,
    granularity: Granularity,
    format: ScaleFormat,
    options: &LaunchOptions,
) -> Result<()> {
    let call = QuantizeBoth {
        matrix: Quantize {
            x: x.describe("x"),
            codes: codes.describe("codes"),
            scales: scales.describe("scales"),
            granularity,
            format,
            source: QuantizeSource::Matrix,
        },
        transposed_codes: copy.codes.describe("transposed_codes"),
        transposed_scales: copy.scales.as_ref().map(|scales| scales.describe("transposed_scales")),
    };
    let reference = || {
        if call.check()?.is_none() {
            return Ok(());
        }
        let matrix = SourceTensor::Matrix;
        on_cpu::quantize(x, matrix, codes, scales, granularity, format)?;
        let across = x.transpose(0, 1)?;
        let mut unseen = Tensor::empty(DType::F32, &reversed(scales.dims()), x.device())?;
        let scales = copy.scales.unwrap_or(&mut unseen);
        on_cpu::quantize(&across, matrix, copy.codes, scales, granularity, format)
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    x.device().run(options.stream.as_ref(), reference, |device| unsafe { run(device, &call, options) })
}

fn reversed(dims: &[usize]) -> Vec<usize> {
    dims.iter().rev().copied().collect()
}

/// Where the transpose of a [`RawQuantize`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawTransposedCopy {
    /// Address of the codes.
    pub codes: u64,
    /// From one row of the codes to the next, in elements.
    pub codes_pitch: usize,
    /// Of 1x128, the address of the f32 scales and their strides, in elements.
    pub scales: Option<(u64, [usize; 2])>,
}

/// [`quantize_with_transpose`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`quantize_with_transpose`]. The CPU is refused: it has tensors only.
pub unsafe fn quantize_with_transpose_raw(
    device: &Device,
    call: &RawQuantize,
    copy: &RawTransposedCopy,
    options: &LaunchOptions,
) -> Result<()> {
    let call = describe(call, copy, device.id());
    // SAFETY: the caller keeps the operands as described.
    unsafe { run(device, &call, options) }
}

fn describe(call: &RawQuantize, copy: &RawTransposedCopy, device: DeviceId) -> QuantizeBoth {
    let [rows, columns] = [call.rows, call.columns].map(int);
    let matrix = |name, dtype, dims, strides: [usize; 2], address| {
        Operand::matrix(name, dtype, dims, strides.map(int), address, device)
    };
    let strides = [copy.codes_pitch, 1];
    let blocks = int(call.rows.div_ceil(128));
    QuantizeBoth {
        matrix: call.describe(device),
        transposed_codes: matrix("transposed_codes", call.code_type, [columns, rows], strides, copy.codes),
        transposed_scales: copy.scales.map(|(address, strides)| {
            matrix("transposed_scales", DType::F32, [columns, blocks], strides, address)
        }),
    }
}

/// # Safety
/// As for [`quantize_with_transpose_raw`].
unsafe fn run(device: &Device, call: &QuantizeBoth, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, input, code, .. }) = call.check()? else { return Ok(()) };
    let granularity = match call.transposed_scales {
        Some(_) => dual::Granularity::Token,
        None => dual::Granularity::Block,
    };
    let config = dual::Config { input, code, granularity };
    let only = step(device, Config::Dual(config), config.launch(&args, sm_count(device)?))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}
