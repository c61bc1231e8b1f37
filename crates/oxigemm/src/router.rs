//! The router of a mixture of experts: which experts a token goes to, and with which weights.

use oxigemm_kernels::moe::{Args, Config, THREADS};

use crate::check::GemmLayout;
use crate::check::gemm::tensors::Addend;
use crate::check::{MoeRoute, MoeTopK, Operand, RouteProblem, Router, int};
use crate::device::backend::{Backend, with_backend};
use crate::device::launch::{Geometry, KernelLaunch};
use crate::device::{Device, DeviceId};
use crate::error::Result;
use crate::gemm::GemmOptions;
use crate::gemm::names::half_gemm;
use crate::gemm::raw::{RawGemm, RawMatrix, gemm_raw};
use crate::launch::LaunchOptions;
use crate::reference::router as on_cpu;
use crate::tensor::{DType, Tensor};

/// Routes tokens to experts, from hidden states: logits `x · gateᵀ` in FP32, then [`moe_top_k`].
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `x` | `[T, K]` | bf16 | rows of K; pitch and address multiples of 16 bytes |
/// | `gate` | `[E, K]`; E is 1 to 512 | bf16 | as `x` |
/// | `ids` | `[T, topk]`; topk is 1 to 32 | i32 | without gaps |
/// | `weights` | `[T, topk]` | f32 | without gaps |
///
/// Two kernels, of which the second starts while the first ends. Logits lie in a workspace of the stream, which is
/// allocated by the first call that needs as much. Nothing is read back: a captured call is replayed with other tokens.
///
/// The same call makes the same choice. With [`GemmOptions::batch_invariant`] a token has the same logits, and so the
/// same experts, whatever other tokens there are.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Router, Scoring, Tensor, moe_route};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let x = Tensor::from_f32(DType::Bf16, &[1.0; 8], &[1, 8], &device)?;
/// let gate: Vec<f32> = (0..4 * 8).map(|i| [0.5, -1.0, 0.5, 0.25][i / 8]).collect();
/// let gate = Tensor::from_f32(DType::Bf16, &gate, &[4, 8], &device)?;
/// let mut ids = Tensor::empty(DType::I32, &[1, 2], &device)?;
/// let mut weights = Tensor::empty(DType::F32, &[1, 2], &device)?;
/// let router = Router { scoring: Scoring::Sigmoid, renormalize: true, ..Router::default() };
/// moe_route(&x, &gate, &router, &mut ids, &mut weights, &GemmOptions::default())?;
/// assert_eq!(ids.to_vec::<i32>()?, [0, 2]); // a tie: the lower one is first
/// assert_eq!(weights.to_vec_f32()?, [0.5, 0.5]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_route(
    x: &Tensor,
    gate: &Tensor,
    router: &Router<&Tensor>,
    ids: &mut Tensor,
    weights: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let call = MoeRoute {
        x: x.describe("x"),
        gate: gate.describe("gate"),
        router: router.map([0; 2], |(name, _), _, tensor: &Tensor| tensor.describe(name)),
        ids: ids.describe("ids"),
        weights: weights.describe("weights"),
    };
    let reference = || match call.check()? {
        Some(_) => {
            let mut logits = Tensor::empty(DType::F32, &[x.dims()[0], gate.dims()[0]], x.device())?;
            half_gemm(GemmLayout::Nt, x, gate, Addend::None, &mut logits, options)?;
            on_cpu::top_k(&logits, router, ids, weights)
        }
        None => Ok(()),
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    x.device().run(options.stream.as_ref(), reference, |device| unsafe { run_route(device, &call, options) })
}

/// Routes tokens to experts, from logits.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `logits` | `[T, E]`; E is 1 to 512 | f32 or bf16 | rows of E, any pitch |
/// | `ids` | `[T, topk]`; topk is 1 to 32 | i32 | without gaps |
/// | `weights` | `[T, topk]` | f32 | without gaps |
///
/// [`Router`] says which experts are chosen. They are stored from the best to the worst. All arithmetic is FP32 of
/// correctly rounded operations in a fixed order, so every device gives the same bytes.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, LaunchOptions, Router, Tensor, moe_top_k};
///
/// let device = Device::cpu();
/// let logits = Tensor::from_slice(&[0.0f32, 2.0, f32::NAN, 2.0], &[1, 4], &device)?;
/// let mut ids = Tensor::empty(DType::I32, &[1, 3], &device)?;
/// let mut weights = Tensor::empty(DType::F32, &[1, 3], &device)?;
/// let router = Router { renormalize: true, scale: 2.0, ..Router::default() };
/// moe_top_k(&logits, &router, &mut ids, &mut weights, &LaunchOptions::default())?;
/// assert_eq!(ids.to_vec::<i32>()?, [1, 3, 0]);
/// assert!((weights.to_vec_f32()?.iter().sum::<f32>() - 2.0).abs() < 1e-6);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn moe_top_k(
    logits: &Tensor,
    router: &Router<&Tensor>,
    ids: &mut Tensor,
    weights: &mut Tensor,
    options: &LaunchOptions,
) -> Result<()> {
    let call = MoeTopK {
        logits: logits.describe("logits"),
        router: router.map([0; 2], |(name, _), _, tensor: &Tensor| tensor.describe(name)),
        ids: ids.describe("ids"),
        weights: weights.describe("weights"),
    };
    let reference = || match call.check()? {
        Some(_) => on_cpu::top_k(logits, router, ids, weights),
        None => Ok(()),
    };
    // SAFETY: as in `moe_route`.
    logits
        .device()
        .run(options.stream.as_ref(), reference, |device| unsafe { run_top_k(device, &call, options) })
}

/// What routing is given and writes beside logits, as addresses.
#[derive(Clone, Copy, Debug)]
pub struct RawRouting {
    /// How many tokens there are.
    pub tokens: usize,
    /// How many experts there are.
    pub experts: usize,
    /// Experts of a token.
    pub topk: usize,
    /// The router, with addresses of its lists.
    pub router: Router<u64>,
    /// Address of the ids.
    pub ids: u64,
    /// Address of the weights.
    pub weights: u64,
}

/// A [`moe_route`] on memory that the caller owns. Pitches are in elements.
#[derive(Clone, Copy, Debug)]
pub struct RawMoeRoute {
    /// Address of X.
    pub x: u64,
    /// From one row of X to the next.
    pub x_pitch: usize,
    /// Address of the gate's weights.
    pub gate: u64,
    /// From one row of them to the next.
    pub gate_pitch: usize,
    /// Columns of both.
    pub k: usize,
    /// Everything else.
    pub routing: RawRouting,
}

/// A [`moe_top_k`] on memory that the caller owns.
#[derive(Clone, Copy, Debug)]
pub struct RawMoeTopK {
    /// Address of the logits.
    pub logits: u64,
    /// Their type.
    pub logits_type: DType,
    /// From one row of logits to the next, in elements.
    pub logits_pitch: usize,
    /// Everything else.
    pub routing: RawRouting,
}

impl RawRouting {
    fn outputs(&self, device: DeviceId) -> [Operand; 2] {
        let dims = [self.tokens, self.topk].map(int);
        let one = |name, dtype, address| {
            Operand::new((name, dtype), &dims, &[int(self.topk), 1], (address, device))
        };
        [one("ids", DType::I32, self.ids), one("weights", DType::F32, self.weights)]
    }

    fn router(&self, device: DeviceId) -> Router<Operand> {
        self.router.map([self.tokens, self.experts], |kind, length, address| {
            Operand::new(kind, &[int(length)], &[1], (address, device))
        })
    }
}

/// [`moe_route`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`].
///
/// # Errors
/// As [`moe_route`]. The CPU is refused: it has tensors only.
pub unsafe fn moe_route_raw(device: &Device, call: &RawMoeRoute, options: &GemmOptions) -> Result<()> {
    let RawMoeRoute { x, x_pitch, gate, gate_pitch, k, routing } = call;
    let id = device.id();
    let matrix = |name, rows: usize, pitch: usize, address| {
        Operand::matrix(name, DType::Bf16, [rows, *k].map(int), [int(pitch), 1], address, id)
    };
    let [ids, weights] = routing.outputs(id);
    let described = MoeRoute {
        x: matrix("x", routing.tokens, *x_pitch, *x),
        gate: matrix("gate", routing.experts, *gate_pitch, *gate),
        router: routing.router(id),
        ids,
        weights,
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_route(device, &described, options) }
}

/// [`moe_top_k`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// As for [`gemm_raw`].
///
/// # Errors
/// As [`moe_top_k`]. The CPU is refused: it has tensors only.
pub unsafe fn moe_top_k_raw(device: &Device, call: &RawMoeTopK, options: &LaunchOptions) -> Result<()> {
    let RawMoeTopK { logits, logits_type, logits_pitch, routing } = call;
    let (id, dims) = (device.id(), [routing.tokens, routing.experts].map(int));
    let [ids, weights] = routing.outputs(id);
    let described = MoeTopK {
        logits: Operand::matrix("logits", *logits_type, dims, [int(*logits_pitch), 1], *logits, id),
        router: routing.router(id),
        ids,
        weights,
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_top_k(device, &described, options) }
}

/// # Safety
/// As for [`moe_route_raw`].
unsafe fn run_route(device: &Device, call: &MoeRoute, options: &GemmOptions) -> Result<()> {
    let Some(RouteProblem { k, x_pitch, gate_pitch, args }) = call.check()? else { return Ok(()) };
    let pitch = args.logits_pitch;
    let bytes = u64::from(args.tokens) * u64::from(pitch) * 4;
    let logits = with_backend!(device, backend => {
        backend.workspace(backend.stream(options.stream.as_ref())?, bytes)
    })?;
    let gemm = RawGemm::new(
        [args.tokens as usize, args.experts as usize, k],
        RawMatrix::new(call.x.address, DType::Bf16, x_pitch),
        RawMatrix::new(call.gate.address, DType::Bf16, gate_pitch),
        RawMatrix::new(logits, DType::F32, pitch as usize),
    );
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them, and the device the
    // workspace. K-major operands need none of their own.
    unsafe {
        gemm_raw(device, &gemm, options)?;
        launch(device, &Args { logits, ..args }, &LaunchOptions { programmatic: true, ..options.into() })
    }
}

/// # Safety
/// As for [`moe_top_k_raw`].
unsafe fn run_top_k(device: &Device, call: &MoeTopK, options: &LaunchOptions) -> Result<()> {
    let Some(args) = call.check()? else { return Ok(()) };
    // SAFETY: the check has compared the operands with the arguments; the caller keeps them.
    unsafe { launch(device, &args, options) }
}

/// Puts the top-k kernel into a stream.
///
/// # Safety
/// What the arguments are addresses of must be as [`Args`] says, as for [`moe_top_k_raw`].
unsafe fn launch(device: &Device, args: &Args, options: &LaunchOptions) -> Result<()> {
    with_backend!(device, backend => {
        let config = Config::for_experts(backend.limits().arch, args.experts);
        let launch = KernelLaunch {
            kernel: config.into(),
            geometry: Geometry {
                grid: [config.ctas(args.tokens), 1],
                cluster: 1,
                threads: THREADS,
                shared_bytes: config.shared_bytes(),
                cooperative: false,
            },
            programmatic: options.programmatic,
            params: args.values(),
        };
        // SAFETY: the caller keeps the memory.
        unsafe { backend.launch(&launch, backend.stream(options.stream.as_ref())?) }
    })
}
