//! Products whose sums are finished before they are stored: bias, activation, gate, quantization, skipped columns.

use oxigemm_kernels::gemm::epilogue::Activation;

use crate::call::{Addresses, FusedAt, PlanKey};
use crate::cast::ScaleFormat;
use crate::check::int;
use crate::check::{CheckedFused, EpilogueArguments, Fp8GemmNt, HeadSplits, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Addend, GemmOptions, RawFp8Gemm, cuda_stream, key, put, refuse_stream, sim_stream};
use crate::memo::Memo;
use crate::plan::Limits;
use crate::reference;
use crate::remembered::{Call, CallArguments, Ready, RememberedCalls, launch};
use crate::runtime::Cuda;
use crate::simulated::Sim;
use crate::tensor::Tensor;

/// What is done with the sums of a product before they are stored, in this order and in FP32:
///
/// `D = act(alpha * A·Bᵀ + bias) + beta * C`, rounded once.
///
/// With a gate, the first half of B's rows are gates and the other half are ups, and D has as many columns as there are
/// of each: `D = act(gate) * up + beta * C`, where gate and up are `alpha * A·Bᵀ + bias`. With
/// [`Silu`](Activation::Silu) this is SwiGLU.
///
/// The default does nothing.
///
/// ```
/// use oxigemm::{Activation, Epilogue};
///
/// let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
/// assert_eq!((swiglu.alpha, swiglu.beta), (1.0, 1.0));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// The factor of the product.
    pub alpha: f32,
    /// One number for each row of B, `[N]` of the 16-bit type of the product (bf16 for FP8) or f32, without gaps.
    pub bias: Option<&'a Tensor>,
    /// What a sum, or a gate, becomes.
    pub activation: Activation,
    /// Whether the first half of B's rows are gates.
    pub gated: bool,
    /// The factor of C.
    pub beta: f32,
    /// Columns of D that are skipped, which stay as they are.
    pub heads: Option<HeadSplits>,
}

impl Default for Epilogue<'_> {
    fn default() -> Self {
        Epilogue {
            alpha: 1.0,
            bias: None,
            activation: Activation::None,
            gated: false,
            beta: 1.0,
            heads: None,
        }
    }
}

/// Where the result of a fused product goes.
#[derive(Debug)]
pub enum FusedOutput<'a> {
    /// A matrix of the 16-bit type of the product (bf16 for FP8) or f32: rows of any pitch.
    Matrix(&'a mut Tensor),
    /// A matrix of e4m3, which another product can read: the rule is that of
    /// [`per_token_cast_to_fp8`](crate::cast::per_token_cast_to_fp8), applied to the result in FP32.
    Fp8 {
        /// The codes: a multiple of 16 columns; pitch and address multiples of 16 bytes.
        d: &'a mut Tensor,
        /// One f32 for each row and 128 columns, in any strides that share no element.
        scales: &'a mut Tensor,
        /// What scales may be.
        format: ScaleFormat,
    },
}

impl FusedOutput<'_> {
    /// D.
    pub(crate) fn d(&self) -> &Tensor {
        match self {
            FusedOutput::Matrix(d) | FusedOutput::Fp8 { d, .. } => d,
        }
    }

    fn describe_scales(&self) -> Option<(Operand, ScaleFormat)> {
        match self {
            FusedOutput::Matrix(_) => None,
            FusedOutput::Fp8 { scales, format, .. } => Some((scales.describe("d_scales"), *format)),
        }
    }
}

impl Epilogue<'_> {
    /// It as arguments, beside the result.
    pub(crate) fn describe(&self, d: &FusedOutput<'_>) -> EpilogueArguments {
        EpilogueArguments {
            activation: self.activation,
            gated: self.gated,
            bias: self.bias.map(|bias| bias.describe("bias")),
            heads: self.heads,
            scales: d.describe_scales(),
        }
    }
}

/// [`fp8_gemm_nt`](crate::fp8_gemm_nt) with more done to the sums than to round them: see [`Epilogue`] for what, and in
/// which order.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a`, `b` and their scales | | | as for `fp8_gemm_nt`, of e4m3, with scales for 128 rows of B; of gates and ups 128 rows each, or a multiple |
/// | `c` | as `d` | as `d` | rows of any pitch; none where D is quantized |
/// | `d` | `[M, N]`; `[M, N/2]` with a gate; wider by what heads skip | bf16, f32 or e4m3 | rows of any pitch; see [`FusedOutput`] |
///
/// The result is that of the single steps in FP32, rounded once: of the same sums as `fp8_gemm_nt` computes with K split as often. Heads are
/// skipped in matrices without gate that are not quantized. K must not be 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{
///     Activation, Addend, DType, Device, Epilogue, FusedOutput, GemmOptions, Tensor, fp8_gemm_nt_fused, random,
/// };
///
/// // The first product of an MLP: gate and up projections, SwiGLU, and the result as the second product reads it.
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, hidden, k) = (4, 256, 512);
/// let x = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let w = per_block_cast_to_fp8(&random::normals(2, 2 * hidden * k), 2 * hidden, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (x.to_tensors(&device)?, w.to_tensors(&device)?);
/// let mut d = Tensor::zeros(DType::E4m3, &[m, hidden], &device)?;
/// let mut scales = Tensor::zeros(DType::F32, &[m, hidden / 128], &device)?;
///
/// let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
/// let output = FusedOutput::Fp8 { d: &mut d, scales: &mut scales, format: ScaleFormat::F32 };
/// fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, output, &swiglu, &GemmOptions::default())?;
/// assert!(Quantized::from_tensors(&d, &scales, 1)?.dequantize().iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt_fused(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    c: Addend<'_>,
    d: FusedOutput<'_>,
    epilogue: &Epilogue<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let gemm = Fp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b"),
        sfb: sfb.describe("sfb"),
        c: c.describe(d.d()),
        d: d.d().describe("d"),
    };
    let (alpha, beta) = (epilogue.alpha, epilogue.beta);
    let arguments = Arguments { gemm, epilogue: epilogue.describe(&d), alpha, beta };
    let on_cpu = || reference::fp8_gemm_nt_fused_tensors((a, sfa), (b, sfb), c, d, epilogue);
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { arguments.run(a.device(), options, on_cpu) }
}

/// D = A·Bᵀ, of which every head has columns in the middle that are skipped: [`fp8_gemm_nt_fused`] with
/// [`heads`](Epilogue::heads) alone. Of D those columns stay as they are.
///
/// # Errors
/// As for [`fp8_gemm_nt_fused`].
///
/// ```
/// # use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, HeadSplits, Tensor, fp8_gemm_nt_skip_head_mid, random};
///
/// # let device = Device::cpu();
/// let (m, n, k) = (2, 512, 256); // two heads of 128 + 128
/// # let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?.to_tensors(&device)?;
/// # let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?.to_tensors(&device)?;
/// let heads = HeadSplits { left: 128, mid: 64, right: 128 };
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n + 2 * 64], &device)?;
/// fp8_gemm_nt_skip_head_mid((&a.0, &a.1), (&b.0, &b.1), &mut d, heads, &GemmOptions::default())?;
/// let row = d.to_vec_f32()?[..640].to_vec();
/// assert!(row[127] != 0.0 && row[128..192].iter().all(|x| *x == 0.0) && row[192] != 0.0);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt_skip_head_mid(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    heads: HeadSplits,
    options: &GemmOptions,
) -> Result<()> {
    let epilogue = Epilogue { heads: Some(heads), ..Default::default() };
    fp8_gemm_nt_fused(a, b, Addend::None, FusedOutput::Matrix(d), &epilogue, options)
}

/// The operands of a fused product as addresses, for engines that own their memory. Strides are in elements.
///
/// What the fields mean and how they are checked is told at [`fp8_gemm_nt_fused`].
#[derive(Clone, Copy, Debug)]
pub struct RawFusedFp8Gemm {
    /// The product; its `n` is that of B's rows, its `d_type` e4m3 where D is quantized.
    pub gemm: RawFp8Gemm,
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
    /// Address of the bias, or 0.
    pub bias: u64,
    /// The type of the bias: bf16 or f32.
    pub bias_type: DType,
    /// What a sum, or a gate, becomes.
    pub activation: Activation,
    /// Whether the first half of B's rows are gates.
    pub gated: bool,
    /// Columns of D that are skipped.
    pub heads: Option<HeadSplits>,
    /// Address of the scales of a quantized D; not looked at elsewhere.
    pub d_scales: u64,
    /// Strides of those scales, along M and along N.
    pub d_scales_strides: [usize; 2],
    /// What those scales may be.
    pub d_scales_format: ScaleFormat,
}

impl RawFusedFp8Gemm {
    fn describe(&self, device: DeviceId) -> Arguments<Fp8GemmNt> {
        let mut gemm = self.gemm.describe(device);
        let n = gemm.b.dims[0];
        let columns = if self.gated { n / 2 } else { n };
        let skipped = self.heads.map_or(0, |heads| {
            let count = columns.checked_div(heads.computed() as i64).unwrap_or(0);
            count.saturating_mul(heads.mid.into())
        });
        for output in gemm.c.iter_mut().chain([&mut gemm.d]) {
            output.dims[1] = columns.saturating_add(skipped);
        }
        let bias =
            Operand { rank: 1, ..Operand::matrix("bias", self.bias_type, [n, 1], [1, 1], self.bias, device) };
        let dims = [gemm.a.dims[0], columns / 128 + i64::from(columns % 128 != 0)];
        let strides = self.d_scales_strides.map(int);
        let scales = Operand::matrix("d_scales", DType::F32, dims, strides, self.d_scales, device);
        let epilogue = EpilogueArguments {
            activation: self.activation,
            gated: self.gated,
            bias: (self.bias != 0).then_some(bias),
            heads: self.heads,
            scales: (self.gemm.d_type == DType::E4m3).then_some((scales, self.d_scales_format)),
        };
        Arguments { gemm, epilogue, alpha: self.alpha, beta: self.beta }
    }
}

/// [`fp8_gemm_nt_fused`] on memory that the caller owns, on the stream of the options. The device is a GPU or the
/// simulator, whose addresses are those of its tensors.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (D and its scales also not be read), from the call until the stream has passed the kernel; where
/// the stream is being captured, whenever the graph runs.
///
/// # Errors
/// As [`fp8_gemm_nt_fused`]. The CPU is refused: it has tensors only.
pub unsafe fn fp8_gemm_nt_fused_raw(
    device: &Device,
    gemm: &RawFusedFp8Gemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { gemm.describe(device.id()).run_raw(device, options) }
}

/// A product whose sums can be finished, not yet checked.
pub(crate) trait FusedGemm: CallArguments {
    /// Checks every rule of the call.
    fn check_fused(&self, epilogue: &EpilogueArguments) -> Result<CheckedFused>;
    /// Where calls of the function are remembered.
    fn remembered_fused(calls: &RememberedCalls) -> &Memo<Call<Arguments<Self>>, Ready>;
}

impl FusedGemm for Fp8GemmNt {
    fn check_fused(&self, epilogue: &EpilogueArguments) -> Result<CheckedFused> {
        Fp8GemmNt::check_fused(self, epilogue)
    }

    fn remembered_fused(calls: &RememberedCalls) -> &Memo<Call<Arguments<Self>>, Ready> {
        &calls.fused_fp8
    }
}

/// The arguments of a fused product, not yet checked.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Arguments<G> {
    pub gemm: G,
    pub epilogue: EpilogueArguments,
    pub alpha: f32,
    pub beta: f32,
}

impl<G: FusedGemm> Arguments<G> {
    /// Checks, plans and launches, or simulates, or does what is done on the CPU for checked arguments.
    ///
    /// # Safety
    /// As for [`fp8_gemm_nt_fused_raw`].
    pub unsafe fn run(
        &self,
        device: &Device,
        options: &GemmOptions,
        on_cpu: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match device {
            // SAFETY: the caller keeps the operands.
            Device::Cuda(cuda) => unsafe { self.launch(cuda, options) },
            Device::Sim(sim) => self.simulate(sim, options),
            Device::Cpu => {
                refuse_stream(device, options)?;
                match self.gemm.check_fused(&self.epilogue)? {
                    CheckedFused::Nothing => Ok(()),
                    CheckedFused::Launch(..) => on_cpu(),
                }
            }
        }
    }

    /// The same for addresses, which the CPU has none of.
    ///
    /// # Safety
    /// As for [`fp8_gemm_nt_fused_raw`].
    pub unsafe fn run_raw(&self, device: &Device, options: &GemmOptions) -> Result<()> {
        match device {
            // SAFETY: the caller keeps the operands.
            Device::Cuda(cuda) => unsafe { self.launch(cuda, options) },
            Device::Sim(sim) => self.simulate(sim, options),
            Device::Cpu => Err(Error::no_raw_memory(device)),
        }
    }

    /// Checks, plans and launches.
    ///
    /// # Safety
    /// As for [`fp8_gemm_nt_fused_raw`].
    unsafe fn launch(&self, cuda: &Cuda, options: &GemmOptions) -> Result<()> {
        let stream = cuda_stream(cuda, options)?;
        let plan = || self.key(cuda.limits(), options);
        // SAFETY: the plan is that of the check, which has compared the operands with it; the caller keeps them.
        unsafe { launch(cuda, self, stream, options, plan) }
    }

    /// Checks, plans, and does it or has it captured.
    fn simulate(&self, sim: &Sim, options: &GemmOptions) -> Result<()> {
        let stream = sim_stream(sim, options)?;
        let Some(key) = self.key(sim.limits(), options)? else { return Ok(()) };
        let work = sim.plan(&key, &self.addresses(), stream, options.programmatic)?;
        put(sim, stream, work)
    }

    /// What decides about the plan, if there is something to do.
    fn key(&self, limits: &Limits, options: &GemmOptions) -> Result<Option<PlanKey>> {
        let CheckedFused::Launch(problem, fused) = self.gemm.check_fused(&self.epilogue)? else {
            return Ok(None);
        };
        Ok(Some(PlanKey { fused: Some(fused), ..key(limits, problem, None, options) }))
    }
}

impl<G: FusedGemm> CallArguments for Arguments<G> {
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready> {
        G::remembered_fused(calls)
    }

    fn addresses(&self) -> Addresses {
        let fused = FusedAt::of(&self.epilogue, self.alpha, self.beta);
        Addresses { fused, ..self.gemm.addresses() }
    }
}
