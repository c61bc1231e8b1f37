//! The GEMM functions.

use oxigemm_kernels::gemm::params::ScalesOfB;

use crate::call::{Addresses, FusedAt, PlanKey};
use crate::check::int;
use crate::check::{Checked, Fp8GemmNt, Groups, Operand, Problem, Summed, Trivial};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memo::Memo;
use crate::plan::{GemmConfig, Limits};
use crate::reference;
use crate::remembered::{Call, CallArguments, Ready, RememberedCalls, launch};
use crate::runtime::Cuda;
use crate::simulated::{Sim, Work};
use crate::stream::{SimStream, Stream};
use crate::tensor::Tensor;

/// What is added to a product.
#[derive(Clone, Copy, Debug, Default)]
pub enum Addend<'a> {
    /// Nothing.
    #[default]
    None,
    /// The old content of D.
    InPlace,
    /// Another matrix like D.
    From(&'a Tensor),
}

impl<'a> Addend<'a> {
    /// It as a tensor, where `old` is what D held before.
    pub(crate) fn tensor(self, old: &'a Tensor) -> Option<&'a Tensor> {
        match self {
            Addend::None => None,
            Addend::InPlace => Some(old),
            Addend::From(c) => Some(c),
        }
    }

    /// It as the argument `c`, beside D.
    pub(crate) fn describe(&self, d: &Tensor) -> Option<Operand> {
        match self {
            Addend::None => None,
            Addend::InPlace => Some(d.describe("c")),
            Addend::From(c) => Some(c.describe("c")),
        }
    }
}

/// How a GEMM is run. The default is right for most calls.
#[derive(Clone, Debug, Default)]
pub struct GemmOptions {
    /// The stream to put it into; the default stream where there is none. Only for a GPU or the simulator.
    pub stream: Option<Stream>,
    /// The kernel and its launch, instead of the planned one.
    pub choice: Option<GemmConfig>,
    /// How many multiprocessors it may use at most; all where there is none.
    pub num_sms: Option<u32>,
    /// Whether the kernel may start while the one before it in the stream still runs. It then sets itself up, and
    /// waits for the other's results before it reads or writes anything. The simulator runs one at a time, and reports
    /// what would be too early.
    pub programmatic: bool,
    /// Whether a row of D must have the same bits however many rows A has, and whatever the others hold. Kernels that
    /// split K are then left out, which costs time where rows are few, and so are those that share tiles out along K. The others all
    /// add up K in the same order, in every tile: else every other one may begin with the end of K.
    pub batch_invariant: bool,
}

/// D = C + A·Bᵀ with FP8 operands and fine-grained scales.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | e4m3 or e5m2 | rows of K; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[N, K]` | e4m3 or e5m2 | as `a` |
/// | scales of `b` | `[ceil(N/128), ceil(K/128)]` or `[N, ceil(K/128)]` | f32 | any strides |
/// | `c`, `d` | `[M, N]` | bf16 or f32, the same | rows of N, any pitch |
///
/// The shape of B's scales tells whether 128 rows share one, as those of weights do, or each row has its own, as those
/// of activations and gradients do; then both operands are e4m3. (A single row has a single scale either way.) Where
/// scales have 1 instead of more along a dimension, that one holds for all: `[M, 1]` is a scale for each row of A,
/// `[1, 1]` or `[1]` one for the whole operand.
///
/// Sums of 128 products are accumulated in the tensor core and promoted to FP32. The same call gives the same bits.
/// The call returns when the kernel is in the stream; it can be captured into a graph once its shape was seen. In the
/// simulator it returns when the kernel is done.
/// Where M or N is 0 nothing is done; where K is 0, D becomes C or 0.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports. See [`crate::check`] for the rules.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp8_gemm_nt, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n, k) = (4, 256, 512);
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
/// fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
/// assert!(d.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn fp8_gemm_nt(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let describe = |d: &Tensor| Fp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b"),
        sfb: sfb.describe("sfb"),
        c: c.describe(d),
        d: d.describe("d"),
    };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { run(cuda, &describe(d), options) },
        Device::Sim(sim) => simulate(sim, &describe(d), options),
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            on_cpu((a, sfa), (b, sfb), c, d)
        }
    }
}

/// The operands of a GEMM as addresses, for engines that own their memory. Pitches and strides are in elements.
///
/// What the fields mean and how they are checked is told at [`fp8_gemm_nt`].
#[derive(Clone, Copy, Debug)]
pub struct RawFp8Gemm {
    /// Rows of A and D.
    pub m: usize,
    /// Rows of B, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// The element types of A and of B: e4m3 or e5m2.
    pub ab_types: [DType; 2],
    /// Address of A.
    pub a: u64,
    /// From one row of A to the next.
    pub a_pitch: usize,
    /// Address of A's scales.
    pub sfa: u64,
    /// Strides of A's scales, along M and along K; 0 where one holds for all.
    pub sfa_strides: [usize; 2],
    /// Address of B.
    pub b: u64,
    /// From one row of B to the next.
    pub b_pitch: usize,
    /// Address of B's scales.
    pub sfb: u64,
    /// Strides of B's scales, along N and along K; 0 where one holds for all.
    pub sfb_strides: [usize; 2],
    /// Whether 128 rows of B share a scale, or each row has its own.
    pub scales_of_b: ScalesOfB,
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// From one row of C to the next.
    pub c_pitch: usize,
    /// Address of D.
    pub d: u64,
    /// From one row of D to the next.
    pub d_pitch: usize,
    /// The element type of C and D: bf16 or f32.
    pub d_type: DType,
}

impl RawFp8Gemm {
    pub(crate) fn describe(&self, device: DeviceId) -> Fp8GemmNt {
        let [m, n, k] = [self.m, self.n, self.k].map(int);
        let blocks = |x: i64| x / 128 + i64::from(x % 128 != 0);
        let matrix = |name, dtype, dims: [i64; 2], strides: [usize; 2], address| {
            Operand::matrix(name, dtype, dims, strides.map(int), address, device)
        };
        let c = matrix("c", self.d_type, [m, n], [self.c_pitch, 1], self.c);
        let scales_along_n = match self.scales_of_b {
            ScalesOfB::Blocks => blocks(n),
            ScalesOfB::Rows => n,
        };
        Fp8GemmNt {
            a: matrix("a", self.ab_types[0], [m, k], [self.a_pitch, 1], self.a),
            sfa: matrix("sfa", DType::F32, [m, blocks(k)], self.sfa_strides, self.sfa),
            b: matrix("b", self.ab_types[1], [n, k], [self.b_pitch, 1], self.b),
            sfb: matrix("sfb", DType::F32, [scales_along_n, blocks(k)], self.sfb_strides, self.sfb),
            c: (self.c != 0).then_some(c),
            d: matrix("d", self.d_type, [m, n], [self.d_pitch, 1], self.d),
        }
    }
}

/// [`fp8_gemm_nt`] on memory that the caller owns, on the stream of the options. The device is a GPU or the simulator,
/// whose addresses are those of its tensors.
///
/// The stream of another library is wrapped by [`Cuda::stream_from_raw`].
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (D also not be read), from the call until the stream has passed the kernel; where the stream
/// is being captured, whenever the graph runs.
///
/// # Errors
/// As [`fp8_gemm_nt`]. The CPU is refused: it has tensors only.
///
/// ```no_run
/// use oxigemm::{Cuda, DType, Device, GemmOptions, RawFp8Gemm, ScalesOfB, fp8_gemm_nt_raw};
///
/// # let (raw_stream, a, sfa, b, sfb, d) = (std::ptr::null_mut(), 0, 0, 0, 0, 0);
/// let cuda = Cuda::open(0)?;
/// let (m, n, k) = (64, 7168, 2048);
/// let gemm = RawFp8Gemm {
///     m, n, k, ab_types: [DType::E4m3; 2],
///     a, a_pitch: k, sfa, sfa_strides: [k / 128, 1],
///     b, b_pitch: k, sfb, sfb_strides: [k / 128, 1], scales_of_b: ScalesOfB::Blocks,
///     c: 0, c_pitch: 0, d, d_pitch: n, d_type: DType::Bf16,
/// };
/// // SAFETY: the engine's stream and buffers outlive the call and what it started.
/// unsafe {
///     let stream = cuda.stream_from_raw(raw_stream);
///     let options = GemmOptions { stream: Some(stream.into()), ..Default::default() };
///     fp8_gemm_nt_raw(&Device::Cuda(cuda), &gemm, &options)?;
/// }
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn fp8_gemm_nt_raw(device: &Device, gemm: &RawFp8Gemm, options: &GemmOptions) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

/// The arguments of some GEMM, not yet checked.
pub(crate) trait GemmArguments: CallArguments {
    /// Checks every rule of the call.
    fn check(&self) -> Result<Checked>;
    /// What is added, and the result.
    fn output(&self) -> (Option<&Operand>, &Operand);
    /// The batch that K runs through, of checked arguments, where its products are added up.
    fn summed(&self) -> Result<Option<Summed>> {
        Ok(None)
    }
}

impl CallArguments for Fp8GemmNt {
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready> {
        &calls.fp8
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            a: self.a.address,
            sfa: self.sfa.address,
            b: self.b.address,
            sfb: self.sfb.address,
            c: self.c.map_or(0, |c| c.address),
            d: self.d.address,
            groups: 0,
            map_room: 0,
            fused: FusedAt::default(),
        }
    }
}

impl GemmArguments for Fp8GemmNt {
    fn check(&self) -> Result<Checked> {
        Fp8GemmNt::check(self)
    }

    fn output(&self) -> (Option<&Operand>, &Operand) {
        (self.c.as_ref(), &self.d)
    }
}

/// Runs a GEMM on memory that the caller owns.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`].
pub(crate) unsafe fn run_raw(
    device: &Device,
    arguments: &impl GemmArguments,
    options: &GemmOptions,
) -> Result<()> {
    match device {
        // SAFETY: the caller keeps the operands as described.
        Device::Cuda(cuda) => unsafe { run(cuda, arguments, options) },
        Device::Sim(sim) => simulate(sim, arguments, options),
        Device::Cpu => Err(Error::no_raw_memory(device)),
    }
}

/// Checks, plans and launches.
///
/// # Safety
/// As for [`fp8_gemm_nt_raw`].
pub(crate) unsafe fn run(cuda: &Cuda, arguments: &impl GemmArguments, options: &GemmOptions) -> Result<()> {
    let stream = cuda_stream(cuda, options)?;
    let plan = || match arguments.check()? {
        Checked::Launch(problem) => {
            let key = key(cuda.limits(), problem, None, options);
            Ok(Some(PlanKey { summed: arguments.summed()?, ..key }))
        }
        // SAFETY: the caller keeps the operands as described.
        Checked::Trivial(trivial) => unsafe { multiply_nothing(trivial, arguments, stream) }.map(|()| None),
    };
    // SAFETY: as above, and the plan is that of the check.
    unsafe { launch(cuda, arguments, stream, options, plan) }
}

/// Checks, plans, and does it or has it captured.
pub(crate) fn simulate(sim: &Sim, arguments: &impl GemmArguments, options: &GemmOptions) -> Result<()> {
    let stream = sim_stream(sim, options)?;
    let work = match arguments.check()? {
        Checked::Launch(problem) => {
            let key = key(sim.limits(), problem, None, options);
            let key = PlanKey { summed: arguments.summed()?, ..key };
            sim.plan(&key, &arguments.addresses(), stream, options.programmatic)?
        }
        Checked::Trivial(trivial) => {
            let (c, d) = arguments.output();
            let (d, width, rows) = output_rows(d);
            match (trivial, c) {
                (Trivial::Zero, _) => Work::ClearRows { at: d, width, rows },
                (Trivial::CopyC, Some(c)) => Work::CopyRows { to: d, from: place(c), width, rows },
                _ => return Ok(()),
            }
        }
    };
    put(sim, stream, work)
}

/// The stream of a call on a GPU.
pub(crate) fn cuda_stream<'a>(cuda: &'a Cuda, options: &'a GemmOptions) -> Result<&'a oxigemm_cuda::Stream> {
    stream_on_cuda(cuda, options.stream.as_ref())
}

/// A stream of a GPU: the default one where there is none.
pub(crate) fn stream_on_cuda<'a>(
    cuda: &'a Cuda,
    stream: Option<&'a Stream>,
) -> Result<&'a oxigemm_cuda::Stream> {
    match stream {
        None => Ok(cuda.default_stream()),
        Some(Stream::Cuda(stream)) => Ok(stream),
        Some(stream) => Err(wrong_stream(DeviceId::Cuda(cuda.gpu().ordinal()), stream)),
    }
}

/// The stream of a call in the simulator, if it has one.
pub(crate) fn sim_stream<'a>(sim: &Sim, options: &'a GemmOptions) -> Result<Option<&'a SimStream>> {
    stream_on_sim(sim, options.stream.as_ref())
}

/// A stream of a simulated GPU, if there is one.
pub(crate) fn stream_on_sim<'a>(sim: &Sim, stream: Option<&'a Stream>) -> Result<Option<&'a SimStream>> {
    match stream {
        None => Ok(None),
        Some(Stream::Sim(stream)) if stream.device() == DeviceId::Sim(sim.number()) => Ok(Some(stream)),
        Some(stream) => Err(wrong_stream(DeviceId::Sim(sim.number()), stream)),
    }
}

/// Does work in the simulator, or puts it into a stream.
pub(crate) fn put(sim: &Sim, stream: Option<&SimStream>, work: Work) -> Result<()> {
    match stream {
        Some(stream) => stream.put(work),
        None => sim.perform(&work),
    }
}

/// What decides about the plan of a problem.
pub(crate) fn key(
    limits: &Limits,
    problem: Problem,
    groups: Option<Groups>,
    options: &GemmOptions,
) -> PlanKey {
    let sms = options.num_sms.map_or(limits.sms, |sms| sms.clamp(1, limits.sms));
    let GemmOptions { choice, batch_invariant, .. } = *options;
    PlanKey { problem, groups, k_groups: None, summed: None, fused: None, choice, sms, batch_invariant }
}

/// The address of a matrix and the bytes from one of its rows to the next, both bounded by the check.
fn place(operand: &Operand) -> [u64; 2] {
    [operand.address, operand.strides[0].unsigned_abs() * operand.dtype.size() as u64]
}

/// Where D is, the bytes of its rows, and how many there are.
fn output_rows(d: &Operand) -> ([u64; 2], usize, usize) {
    (place(d), d.dims[1] as usize * d.dtype.size(), d.dims[0] as usize)
}

/// # Safety
/// As for [`fp8_gemm_nt_raw`].
unsafe fn multiply_nothing(
    trivial: Trivial,
    arguments: &impl GemmArguments,
    stream: &oxigemm_cuda::Stream,
) -> Result<()> {
    let (c, d) = arguments.output();
    let (d, width, rows) = output_rows(d);
    match (trivial, c) {
        // SAFETY: the check has compared D with its description; the caller keeps it.
        (Trivial::Zero, _) => unsafe { stream.fill_rows_async(d, width, rows, 0)? },
        // SAFETY: as above for both, which the check found apart.
        (Trivial::CopyC, Some(c)) => unsafe { stream.copy_rows_async(d, place(c), width, rows)? },
        _ => {}
    }
    Ok(())
}

/// The CPU has no streams.
pub(crate) fn refuse_stream(device: &Device, options: &GemmOptions) -> Result<()> {
    no_stream(device, options.stream.as_ref())
}

/// Refuses a stream where there are none.
pub(crate) fn no_stream(device: &Device, stream: Option<&Stream>) -> Result<()> {
    match stream {
        None => Ok(()),
        Some(stream) => Err(Error::Device {
            argument: "stream",
            expected: format!("no stream, as the operands are on {device}"),
            found: format!("a stream of {}", stream.device()),
        }),
    }
}

/// A stream belongs to the device of the operands.
fn wrong_stream(device: DeviceId, stream: &Stream) -> Error {
    Error::Device {
        argument: "stream",
        expected: format!("a stream of {device}"),
        found: format!("a stream of {}", stream.device()),
    }
}

fn on_cpu(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
) -> Result<()> {
    let old = d.clone();
    let c = c.tensor(&old);
    reference::fp8_gemm_nt_tensors(a, sfa, b, sfb, c, d)
}
