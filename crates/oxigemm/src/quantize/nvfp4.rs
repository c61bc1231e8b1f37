//! NVFP4: codes of e2m1, a scale of e4m3 for 16 of a row, and one of f32 for all.

use oxigemm_kernels::quantize::block_1x128::NVFP4_WIDTH;
use oxigemm_kernels::quantize::{self as kernels, Args, Code, Config, Source};

use super::raw::scales_operand;
use super::{RawScales, sm_count, step};
use crate::check::int;
use crate::check::{CheckedQuantize, DequantizeNvfp4, Operand, QuantizeNvfp4};
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::launch::{LaunchOptions, Step, run_steps};
use crate::reference::nvfp4 as on_cpu;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// The scale of a whole matrix, `[1]` f32, in a quantization to NVFP4.
#[derive(Debug)]
pub enum TensorScale<'a> {
    /// It is read: a positive number that is not subnormal, such as the largest magnitude of earlier batches by 2688.
    Given(&'a Tensor),
    /// It is computed from the largest magnitude, and written; the matrix is read twice.
    Computed(&'a mut Tensor),
}

impl TensorScale<'_> {
    fn tensor(&self) -> &Tensor {
        match self {
            TensorScale::Given(tensor) => tensor,
            TensorScale::Computed(tensor) => tensor,
        }
    }
}

/// Quantizes a matrix to NVFP4: `x ≈ codes * scales * tensor_scale`.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[M, K]`, K even | bf16, f16 or f32 | rows of K, any pitch |
/// | `codes` | `[M, K/2]` | u8: two e2m1 each, the first in the low half | rows, any pitch |
/// | `scales` | `[M, ceil(K/16)]` | e4m3 | any strides |
/// | or | `[M, ceil(S/4)]` for S scales a row | i32: four of a row in each, the first in the low byte | any strides |
/// | or | `[ceil(M/128), ceil(S/4), 32, 4]` | i32: the same in blocks of 128 by 4, as `tcgen05` reads them | no gaps |
///
/// All in f32: `tensor_scale = max(amax, 1e-4) / 2688`, where it is computed; 2688 is the largest code, 6, by the
/// largest scale, 448. `scale = amax_of_16 * (1 / (6 * tensor_scale))`, to the nearest e4m3, saturating, and at least
/// 2⁻⁹, the smallest that is not 0. `code = x * (1 / (scale * tensor_scale))`, to the nearest e2m1. Ties go to even, as
/// those of `cvt`. So a block of zeros has the scale 2⁻⁹ and codes of 0, and magnitudes beyond what a given
/// `tensor_scale` allows saturate at 6 * 448 of it. Scales that only fill a layout up become 0.
///
/// What is not finite: NaN makes the scale of its block NaN. An infinity has the scale 448 and the code 6. Where the
/// scale of all is computed, either makes that infinite or NaN, and then nothing is left of the matrix.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Tensor, TensorScale, dequantize_nvfp4, quantize_nvfp4};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let x: Vec<f32> = (0..32).map(|i| if i < 16 { 6.0 } else { 0.5 }).collect();
/// let x = Tensor::from_f32(DType::Bf16, &x, &[1, 32], &device)?;
/// let mut codes = Tensor::empty(DType::U8, &[1, 16], &device)?;
/// let mut scales = Tensor::empty(DType::E4m3, &[1, 2], &device)?;
/// let mut tensor_scale = Tensor::empty(DType::F32, &[1], &device)?;
/// let options = LaunchOptions::default();
/// quantize_nvfp4(&x, &mut codes, &mut scales, TensorScale::Computed(&mut tensor_scale), &options)?;
/// assert_eq!(tensor_scale.to_vec_f32()?, [6.0 / 2688.0]);
/// assert_eq!(scales.to_vec_f32()?, [448.0, 36.0]); // of 37.3, the nearest
/// let mut back = Tensor::empty(DType::F32, &[1, 32], &device)?;
/// dequantize_nvfp4(&codes, &scales, &tensor_scale, &mut back, &options)?;
/// assert!((back.to_vec_f32()?[31] - 0.5).abs() < 0.02);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn quantize_nvfp4(
    x: &Tensor,
    codes: &mut Tensor,
    scales: &mut Tensor,
    tensor_scale: TensorScale<'_>,
    options: &LaunchOptions,
) -> Result<()> {
    let call = QuantizeNvfp4 {
        x: x.describe("x"),
        codes: codes.describe("codes"),
        scales: scales.describe("scales"),
        tensor_scale: tensor_scale.tensor().describe("tensor_scale"),
    };
    let computed = matches!(tensor_scale, TensorScale::Computed(_));
    let reference = || match (call.check()?, tensor_scale) {
        (None, _) => Ok(()),
        (Some(_), TensorScale::Given(given)) => {
            on_cpu::quantize(x, codes, scales, Some(given.to_vec_f32()?[0])).map(drop)
        }
        (Some(_), TensorScale::Computed(computed)) => {
            let found = on_cpu::quantize(x, codes, scales, None)?;
            computed.write_f32(&[found])
        }
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    let launch = |device: &Device| unsafe { run_quantize(device, &call, computed, options) };
    x.device().run(options.stream.as_ref(), reference, launch)
}

/// `x = codes * (scales * tensor_scale)`, rounded once to f32 and once to the type of `x`: the inverse of
/// [`quantize_nvfp4`], with the same arguments.
///
/// # Errors
/// As [`quantize_nvfp4`].
pub fn dequantize_nvfp4(
    codes: &Tensor,
    scales: &Tensor,
    tensor_scale: &Tensor,
    x: &mut Tensor,
    options: &LaunchOptions,
) -> Result<()> {
    let call = DequantizeNvfp4 {
        codes: codes.describe("codes"),
        scales: scales.describe("scales"),
        tensor_scale: tensor_scale.describe("tensor_scale"),
        x: x.describe("x"),
    };
    let reference = || match call.check()? {
        Some(_) => on_cpu::dequantize(codes, scales, tensor_scale, x),
        None => Ok(()),
    };
    // SAFETY: as in `quantize_nvfp4`.
    let launch = |device: &Device| unsafe { run_dequantize(device, &call, options) };
    codes.device().run(options.stream.as_ref(), reference, launch)
}

/// A quantization to NVFP4 on memory that the caller owns. Pitches and strides are in elements.
///
/// What the fields mean and how they are checked is told at [`quantize_nvfp4`].
#[derive(Clone, Copy, Debug)]
pub struct RawNvfp4 {
    /// Rows of X.
    pub rows: usize,
    /// Columns of X: an even number.
    pub columns: usize,
    /// Address of X.
    pub x: u64,
    /// The type of X.
    pub x_type: DType,
    /// From one row of X to the next.
    pub x_pitch: usize,
    /// Address of the codes.
    pub codes: u64,
    /// Bytes from one row of the codes to the next.
    pub codes_pitch: usize,
    /// Address of the scales of blocks.
    pub scales: u64,
    /// Where these lie: [`RawScales::E4m3`], or packed.
    pub scale_layout: RawScales,
    /// Address of the scale of all.
    pub tensor_scale: u64,
    /// Whether the scale of all is computed; else it is read.
    pub computed: bool,
}

impl RawNvfp4 {
    fn describe(&self, device: DeviceId) -> QuantizeNvfp4 {
        let [rows, columns] = [self.rows, self.columns].map(int);
        let matrix = |name, dtype, columns, pitch, address| {
            Operand::matrix(name, dtype, [rows, columns], [int(pitch), 1], address, device)
        };
        let blocks = [self.rows, self.columns.div_ceil(NVFP4_WIDTH as usize)];
        let bytes = int(self.columns.div_ceil(2));
        let number = Operand::matrix("tensor_scale", DType::F32, [1, 1], [1, 1], self.tensor_scale, device);
        QuantizeNvfp4 {
            x: matrix("x", self.x_type, columns, self.x_pitch, self.x),
            codes: matrix("codes", DType::U8, bytes, self.codes_pitch, self.codes),
            scales: scales_operand("scales", self.scale_layout, blocks, self.scales, device),
            tensor_scale: Operand { rank: 1, ..number },
        }
    }
}

/// [`quantize_nvfp4`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`quantize_nvfp4`]. The CPU is refused: it has tensors only.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, RawNvfp4, RawScales, Tensor, quantize_nvfp4_raw};
///
/// let device = Device::sim();
/// let x = Tensor::from_f32(DType::Bf16, &[3.0; 32], &[2, 16], &device)?;
/// let codes = Tensor::empty(DType::U8, &[2, 8], &device)?;
/// let scales = Tensor::empty(DType::E4m3, &[2, 1], &device)?;
/// let tensor_scale = Tensor::from_f32(DType::F32, &[0.5], &[1], &device)?;
/// let call = RawNvfp4 {
///     rows: 2, columns: 16, x: x.address(), x_type: DType::Bf16, x_pitch: 16, codes: codes.address(), codes_pitch: 8,
///     scales: scales.address(), scale_layout: RawScales::E4m3([1, 1]),
///     tensor_scale: tensor_scale.address(), computed: false,
/// };
/// // SAFETY: the tensors live on, and nobody else uses them.
/// unsafe { quantize_nvfp4_raw(&device, &call, &LaunchOptions::default())? };
/// assert_eq!((codes.to_bytes()?, scales.to_vec_f32()?), (vec![0x77; 16], vec![1.0, 1.0]));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn quantize_nvfp4_raw(device: &Device, call: &RawNvfp4, options: &LaunchOptions) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_quantize(device, &call.describe(device.id()), call.computed, options) }
}

/// [`dequantize_nvfp4`] on memory that the caller owns: the fields of a [`RawNvfp4`] mean the same, X is written, and
/// the scale of all is read.
///
/// # Safety
/// As for [`gemm_raw`](crate::gemm_raw).
///
/// # Errors
/// As [`dequantize_nvfp4`]. The CPU is refused: it has tensors only.
pub unsafe fn dequantize_nvfp4_raw(device: &Device, call: &RawNvfp4, options: &LaunchOptions) -> Result<()> {
    let QuantizeNvfp4 { x, codes, scales, tensor_scale } = call.describe(device.id());
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_dequantize(device, &DequantizeNvfp4 { codes, scales, tensor_scale, x }, options) }
}

/// # Safety
/// As for [`quantize_nvfp4_raw`].
unsafe fn run_quantize(
    device: &Device,
    call: &QuantizeNvfp4,
    computed: bool,
    options: &LaunchOptions,
) -> Result<()> {
    let Some(CheckedQuantize { args, input, mn_major, .. }) = call.check()? else { return Ok(()) };
    let config =
        kernels::block_1x128::Config { input, code: Code::E2m1, width: NVFP4_WIDTH, source: Source::Plain };
    let convert = step(device, Config::Block1x128(config), config.launch(&args, mn_major))?;
    if !computed {
        // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
        return unsafe { run_steps(device, std::iter::once(convert), options) };
    }
    let find = kernels::per_tensor::ScaleConfig { input, code: Code::E2m1 };
    let find_args = Args { scales: args.aux, ..args };
    let steps = [
        Step::Zero { address: args.aux, bytes: 4 },
        step(device, Config::PerTensorScale(find), find.launch(&find_args, sm_count(device)?))?,
        convert,
    ];
    // SAFETY: as above.
    unsafe { run_steps(device, steps.into_iter(), options) }
}

/// # Safety
/// As for [`dequantize_nvfp4_raw`].
unsafe fn run_dequantize(device: &Device, call: &DequantizeNvfp4, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, input, code, .. }) = call.check()? else { return Ok(()) };
    let scales = kernels::dequantize::Scales::TwoLevels;
    let config = kernels::dequantize::Config { code, output: input, scales };
    let only = step(device, Config::Dequantize(config), config.launch(&args))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}
