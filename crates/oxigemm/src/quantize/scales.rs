//! Scale tensors: their allocation, and transforms from one layout to another.

use oxigemm_kernels::quantize::{Config, scale_layout};

use super::raw::{RawScales, scales_operand};
use super::step;
use crate::check::{CheckedQuantize, TransformScales};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::{LaunchOptions, run_steps};
use crate::reference::quantize as on_cpu;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Copies scales from any layout to another: `to` has the same values as `from`, which is f32, `[MN, K]` or
/// `[G, MN, K]`, in any strides.
///
/// `to` is f32 of the same shape and any strides; or packed UE8M0, i32 `[MN, ceil(K/4)]` (`[G, MN, ceil(K/4)]`) of any
/// strides, four of a row in each, the first in the lowest byte; or the same in blocks of 128 by 4, i32 `[ceil(MN/128),
/// ceil(K/4), 32, 4]`. Packed scales are rounded up to powers of two, if they are none, and what only fills the layout
/// up becomes 0. There is no exponent for everything: 0 and subnormals become 2⁻¹²⁶, infinity and NaN 2¹²⁷, and a sign
/// is dropped.
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
    let reference = || {
        call.check()?;
        on_cpu::transform_scales(from, to)
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    from.device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_transform(device, &call, options) })
}

/// Empty tensor for `[mn, k]` f32 scales, MN-major, in columns that begin at multiples of 16 bytes.
///
/// # Errors
/// If the device has no memory left.
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

/// Empty tensor for packed UE8M0 scales, `[mn, ceil(k/4)]` i32, MN-major, in columns that begin at multiples of 16
/// bytes.
///
/// # Errors
/// If the device has no memory left.
pub fn packed_scales(mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    aligned(DType::I32, mn, k.div_ceil(4), device)
}

/// Empty tensor for packed UE8M0 scales in blocks of 128 by 4: `[ceil(mn/128), ceil(k/4), 32, 4]` i32.
///
/// # Errors
/// If the device has no memory left.
pub fn blocked_scales(mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    Tensor::empty(DType::I32, &[mn.div_ceil(128), k.div_ceil(4), 32, 4], device)
}

/// [`tma_aligned_scales`] with the values of f32 scales, `[MN, K]` of any strides; of `[G, MN, K]`, group behind group.
///
/// # Errors
/// As [`transform_scales`].
///
/// ```
/// use oxigemm::{Device, LaunchOptions, Tensor, get_mn_major_tma_aligned_tensor};
///
/// let scales: Vec<f32> = (0..30).map(|i| i as f32).collect();
/// let scales = Tensor::from_slice(&scales, &[2, 5, 3], &Device::cpu())?; // two groups
/// let found = get_mn_major_tma_aligned_tensor(&scales, &LaunchOptions::default())?;
/// assert_eq!((found.dims(), found.strides()), (&[2, 5, 3][..], &[24, 1, 8][..]));
/// assert_eq!(found.to_vec_f32()?, scales.to_vec_f32()?);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn get_mn_major_tma_aligned_tensor(scales: &Tensor, options: &LaunchOptions) -> Result<Tensor> {
    in_new_memory(DType::F32, scales, options)
}

/// [`packed_scales`] with the values of f32 scales, `[MN, K]` of any strides, rounded up to powers of two; of `[G, MN,
/// K]`, group behind group.
///
/// # Errors
/// As [`transform_scales`].
///
/// ```
/// use oxigemm::{Device, LaunchOptions, Tensor, get_mn_major_tma_aligned_packed_ue8m0_tensor};
///
/// let scales = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 0.5], &[1, 5], &Device::cpu())?;
/// let found = get_mn_major_tma_aligned_packed_ue8m0_tensor(&scales, &LaunchOptions::default())?;
/// assert_eq!((found.dims(), found.strides()), (&[1, 2][..], &[1, 4][..]));
/// assert_eq!(found.to_bytes()?, [127, 128, 129, 129, 126, 0, 0, 0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn get_mn_major_tma_aligned_packed_ue8m0_tensor(
    scales: &Tensor,
    options: &LaunchOptions,
) -> Result<Tensor> {
    in_new_memory(DType::I32, scales, options)
}

/// Scales, or packed scales, MN-major.
fn in_new_memory(dtype: DType, scales: &Tensor, options: &LaunchOptions) -> Result<Tensor> {
    let (groups, mn, k) = match *scales.dims() {
        [mn, k] => (None, mn, k),
        [groups, mn, k] => (Some(groups), mn, k),
        _ => {
            return Err(Error::Rank {
                argument: "scales",
                expected: "a matrix (2 dimensions), or groups of them (3 dimensions)".to_owned(),
                found: format!("{:?}", scales.dims()),
            });
        }
    };
    let k = if dtype == DType::I32 { k.div_ceil(4) } else { k };
    let device = scales.device();
    let mut to = match groups {
        None => aligned(dtype, mn, k, device)?,
        Some(groups) => {
            let memory = Tensor::empty(dtype, &[groups, k, mn.next_multiple_of(4)], device)?;
            memory.transpose(1, 2)?.narrow(1, 0, mn)?
        }
    };
    transform_scales(scales, &mut to, options)?;
    Ok(to)
}

fn aligned(dtype: DType, mn: usize, k: usize, device: &Device) -> Result<Tensor> {
    Tensor::empty(dtype, &[k, mn.next_multiple_of(4)], device)?.transpose(0, 1)?.narrow(0, 0, mn)
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
/// As for [`gemm_raw`](crate::gemm_raw).
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

/// # Safety
/// As for [`transform_scales_raw`].
unsafe fn run_transform(device: &Device, call: &TransformScales, options: &LaunchOptions) -> Result<()> {
    let Some(CheckedQuantize { args, groups, .. }) = call.check()? else { return Ok(()) };
    let only = step(device, Config::ScaleLayout, scale_layout::launch(&args, groups))?;
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { run_steps(device, std::iter::once(only), options) }
}
