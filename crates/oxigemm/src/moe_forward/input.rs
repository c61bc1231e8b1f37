//! Tokens of a mixture: in bf16, or quantized already.

use oxigemm_kernels::KernelId;
use oxigemm_kernels::common::fast_divmod::FastDivmod;
use oxigemm_kernels::exchange::{Step as Exchange, THREADS, pull};

use super::scratch::Rows;
use crate::device::Device;
use crate::device::backend::with_backend;
use crate::device::launch::{Geometry, KernelLaunch, KernelParams};
use crate::error::{Error, Result};
use crate::launch::{LaunchOptions, Step, run_steps};
use crate::layers::{LayerOptions, Recipe, Strategy};
use crate::moe_experts::{ALIGNMENT, BLOCK, MoeExperts, SortedRows};
use crate::tensor::{DType, Tensor};

/// CTAs that fetch rows: as many as keep memory and links busy, each of them a row at a time.
const PULLING: u32 = 1024;

/// Tokens.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// `[T, K]` bf16.
    Half(&'a Tensor),
    /// `[T, K]` e4m3, and `[T, ceil(K/128)]` f32, or i32 with four scales of 32 columns.
    Quantized(&'a Tensor, &'a Tensor),
}

impl<'a> Input<'a> {
    pub fn x(self) -> &'a Tensor {
        match self {
            Input::Half(x) | Input::Quantized(x, _) => x,
        }
    }

    /// The type that `x` has to have.
    pub fn dtype(self) -> DType {
        match self {
            Input::Half(_) => DType::Bf16,
            Input::Quantized(..) => DType::E4m3,
        }
    }

    /// The type that their scales have in rows.
    pub fn scales(self) -> DType {
        match self {
            Input::Quantized(_, scales) => scales.dtype(),
            Input::Half(_) => DType::F32,
        }
    }

    /// The rules of tokens that are quantized already.
    pub fn check(self, experts: &MoeExperts<'_>) -> Result<()> {
        let Input::Quantized(x, scales) = self else { return Ok(()) };
        let device = x.device();
        let (x, scales) = (x.describe("x"), scales.describe("scales"));
        if experts.is_half() {
            let expected = "e4m3 or u8, as `x` is quantized".to_owned();
            return Err(Error::DType { argument: "gate_up", expected, found: DType::Bf16.to_string() });
        }
        let [tokens, columns] = x.matrix_dims()?;
        if columns % 16 != 0 {
            return Err(x.wrong_shape(format!("[{tokens}, K]"), "with a K that is a multiple of 16"));
        }
        x.expect_contiguous()?;
        x.expect_aligned(16)?;
        let packed = experts.gate_up.weight.dtype() == DType::U8 && has_block_scales(device)?;
        scales.expect_dtype(if packed { &[DType::F32, DType::I32] } else { &[DType::F32] })?;
        scales.expect_shape(&[tokens, (columns + 127) / 128], "one for each 128 of a row of `x`")?;
        scales.expect_contiguous()?;
        scales.expect_device(&x)
    }
}

/// Whether a tensor core applies scales of 32 to what it multiplies; the reference does.
pub(super) fn has_block_scales(device: &Device) -> Result<bool> {
    let strategy = Recipe::Mxfp8.runs_on(device, &LayerOptions::default())?;
    Ok(matches!(device, Device::Cpu) || strategy == Strategy::BlockScaled)
}

/// Rows of tokens and of their scales. The arguments have been checked.
pub(super) fn gather(x: &Tensor, scales: &Tensor, rows: &Rows, options: &LaunchOptions) -> Result<()> {
    let SortedRows::Fp8 { x: [codes, to_scales], .. } = &rows.sorted else { return Ok(()) };
    let columns = x.dims()[1];
    let args = pull::Args {
        x: x.address(),
        scales: scales.address(),
        row_bytes: columns as u32,
        row_scales: columns.div_ceil(BLOCK) as u32,
        tokens: FastDivmod::new(x.dims()[0] as u32),
        rows: rows.tokens.address(),
        row_count: codes.dims()[0] as u32,
        ends: rows.ends.address(),
        experts: rows.ends.len() as u32,
        alignment_shift: ALIGNMENT.trailing_zeros(),
        to: codes.address(),
        to_scales: to_scales.address(),
        ..pull::Args::default()
    };
    let reference = || gather_on_cpu([x, scales], &rows.tokens, [codes, to_scales]);
    // SAFETY: tensors hold the memory that they describe.
    x.device().run(options.stream.as_ref(), reference, |device| unsafe { run_pull(device, &args, options) })
}

/// Fetches rows.
///
/// # Safety
/// What the arguments are addresses of must be as the kernel says.
pub(super) unsafe fn run_pull(device: &Device, args: &pull::Args, options: &LaunchOptions) -> Result<()> {
    let ctas = PULLING.min(args.row_count).max(1);
    // SAFETY: the caller keeps the memory.
    unsafe { run_step(device, Exchange::Pull, (ctas, THREADS), args.values(), options) }
}

/// Puts a kernel of the exchange into a stream.
///
/// # Safety
/// What the arguments are addresses of must be as the kernel says.
pub(super) unsafe fn run_step<P: KernelParams>(
    device: &Device,
    step: Exchange,
    (ctas, threads): (u32, u32),
    params: P,
    options: &LaunchOptions,
) -> Result<()> {
    let arch = with_backend!(device, backend => Ok(backend.limits().arch))?;
    let geometry = Geometry { grid: [ctas, 1], cluster: 1, threads, shared_bytes: 0, cooperative: false };
    let launch =
        KernelLaunch { kernel: KernelId::Exchange(arch, step), geometry, programmatic: false, params };
    // SAFETY: the caller keeps the memory.
    unsafe { run_steps(device, std::iter::once(Step::Kernel(launch)), options) }
}

/// [`gather`] on the CPU.
fn gather_on_cpu(from: [&Tensor; 2], tokens: &Tensor, [codes, scales]: [&Tensor; 2]) -> Result<()> {
    let tokens = tokens.to_vec::<i32>()?;
    let row = |tensor: &Tensor, bytes: &[u8], token: i32| -> Vec<u8> {
        let length = tensor.dims()[1] * tensor.dtype().size();
        match usize::try_from(token) {
            Ok(token) => bytes[token * length..][..length].to_vec(),
            Err(_) => vec![0; length],
        }
    };
    let [from_codes, from_scales] = [from[0].to_bytes()?, from[1].to_bytes()?];
    let rows: Vec<u8> = tokens.iter().flat_map(|token| row(from[0], &from_codes, *token)).collect();
    codes.clone().write_bytes(&rows)?;
    let rows: Vec<u8> = tokens.iter().flat_map(|token| row(from[1], &from_scales, *token)).collect();
    let dims = [tokens.len(), from[1].dims()[1]];
    let sorted = Tensor::from_bytes(scales.dtype(), &rows, &dims, &Device::cpu())?;
    // Scales of sorted rows begin with K.
    scales.transpose(0, 1)?.write_bytes(&sorted.transpose(0, 1)?.contiguous()?.to_bytes()?)
}
