//! The product before the norm of a hyper-connection.

use oxigemm_cuda::{Element, L2Promotion, Swizzle, TiledTensor};
use oxigemm_kernels::hc_prenorm::{BLOCK_K, BLOCK_M, CLUSTERS, W_LINE};

use crate::check::{HcPrenormGemm, HcProblem, Operand};
use crate::device::Device;
use crate::direct::{Argument, Call};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{GemmOptions, refuse_stream};
use crate::reference;
use crate::tensor::Tensor;

/// D = A·Bᵀ with a few columns, and `sqr_sum[m]` = the sum of the squares of row m of A, in one pass over A.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | bf16 | rows of K; pitch and address multiples of 16 bytes |
/// | `b` | `[N, K]`; N is 8, 16, 24 or 32 | f32 | rows of K; pitch and address multiples of 16 bytes |
/// | `d` | `[M, N]` or `[splits, M, N]` | f32 | rows of N, any pitch |
/// | `sqr_sum` | `[M]` or `[splits, M]` | f32 | contiguous |
///
/// Of B the tensor core takes TF32: the upper 19 bits, the others are dropped. With splits, each sums its part of K, and whoever
/// uses them adds them; without, all of K is summed here, in an order that depends on M and K alone. The same call gives
/// the same bits.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{DType, Device, GemmOptions, Tensor, tf32_hc_prenorm_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let a = Tensor::from_f32(DType::Bf16, &[0.5; 3 * 64], &[3, 64], &device)?;
/// let b = Tensor::from_slice(&[2.0f32; 8 * 64], &[8, 64], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[3, 8], &device)?;
/// let mut sqr_sum = Tensor::zeros(DType::F32, &[3], &device)?;
/// tf32_hc_prenorm_gemm(&a, &b, &mut d, &mut sqr_sum, &GemmOptions::default())?;
/// assert_eq!(d.to_vec_f32()?, [64.0; 24]);
/// assert_eq!(sqr_sum.to_vec_f32()?, [16.0; 3]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn tf32_hc_prenorm_gemm(
    a: &Tensor,
    b: &Tensor,
    d: &mut Tensor,
    sqr_sum: &mut Tensor,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = HcPrenormGemm {
        a: a.describe("a"),
        b: b.describe("b"),
        d: d.describe("d"),
        sqr_sum: sqr_sum.describe("sqr_sum"),
    };
    if let Device::Cpu = a.device() {
        refuse_stream(a.device(), options)?;
        return match arguments.check()? {
            None => Ok(()),
            Some(problem) => reference::hc_prenorm_tensors(a, b, d, sqr_sum, problem.splits as usize),
        };
    }
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    unsafe { run(a.device(), &arguments, options) }
}

/// The operands of [`tf32_hc_prenorm_gemm`] as addresses, for engines that own their memory. Pitches are in elements.
#[derive(Clone, Copy, Debug)]
pub struct RawHcPrenormGemm {
    /// Rows of A.
    pub m: usize,
    /// Rows of B.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
    /// Parts of K, each with a D and sums of squares of its own, one behind another.
    pub splits: usize,
    /// Address of A.
    pub a: u64,
    /// From one row of A to the next.
    pub a_pitch: usize,
    /// Address of B.
    pub b: u64,
    /// From one row of B to the next.
    pub b_pitch: usize,
    /// Address of D.
    pub d: u64,
    /// From one row of D to the next.
    pub d_pitch: usize,
    /// From one split of D to the next.
    pub d_split: usize,
    /// Address of the sums of squares.
    pub sqr_sum: u64,
}

/// [`tf32_hc_prenorm_gemm`] on memory that the caller owns. The device is a GPU or the simulator.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and pitches say. It must stay alive, and not be written
/// elsewhere (the results also not be read), from the call until the stream has passed the kernel; where the stream is being
/// captured, whenever the graph runs.
///
/// # Errors
/// As [`tf32_hc_prenorm_gemm`]. The CPU is refused: it has tensors only.
pub unsafe fn tf32_hc_prenorm_gemm_raw(
    device: &Device,
    raw: &RawHcPrenormGemm,
    options: &GemmOptions,
) -> Result<()> {
    // What does not fit is refused as too large.
    let int = |x: usize| i64::try_from(x).unwrap_or(i64::MAX);
    let matrix = |name, dtype, dims: [usize; 2], pitch: usize, address| {
        Operand::matrix(name, dtype, dims.map(int), [int(pitch), 1], address, device.id())
    };
    let mut d = matrix("d", DType::F32, [raw.splits, raw.m], raw.d_split, raw.d);
    d.rank = 3;
    (d.dims[2], d.strides[1], d.strides[2]) = (int(raw.n), int(raw.d_pitch), 1);
    let arguments = HcPrenormGemm {
        a: matrix("a", DType::Bf16, [raw.m, raw.k], raw.a_pitch, raw.a),
        b: matrix("b", DType::F32, [raw.n, raw.k], raw.b_pitch, raw.b),
        d,
        sqr_sum: matrix("sqr_sum", DType::F32, [raw.splits, raw.m], raw.m, raw.sqr_sum),
    };
    // SAFETY: the caller keeps the operands as described.
    unsafe { run(device, &arguments, options) }
}

/// How many blocks sum a split together: as many as there are multiprocessors for, as long as each has a few blocks of K.
fn cluster(problem: &HcProblem, sms: u32) -> u32 {
    const FEW: u32 = 4;
    let row_blocks = problem.m.div_ceil(BLOCK_M);
    let k_blocks = problem.k.div_ceil(BLOCK_K);
    let fits = |cluster: &u32| {
        let blocks = u64::from(row_blocks) * u64::from(problem.splits) * u64::from(*cluster);
        blocks <= u64::from(sms) && k_blocks >= FEW * problem.splits * cluster
    };
    CLUSTERS.into_iter().rev().find(fits).unwrap_or(1)
}

/// # Safety
/// As for [`tf32_hc_prenorm_gemm_raw`].
unsafe fn run(device: &Device, arguments: &HcPrenormGemm, options: &GemmOptions) -> Result<()> {
    let limits = device.limits().ok_or_else(|| Error::no_raw_memory(device))?;
    let Some(problem) = arguments.check()? else { return Ok(()) };
    let cluster = cluster(&problem, options.num_sms.map_or(limits.sms, |sms| sms.clamp(1, limits.sms)));
    let HcProblem { config, m, k, splits, a_pitch, b_pitch, d_pitch, d_split } = problem;
    let map = |element: Element, address, rows: u32, pitch: u64, tile| TiledTensor {
        element,
        rank: 2,
        address,
        dims: [k.into(), rows.into(), 1, 1, 1],
        strides: [pitch * element.bytes(), 0, 0, 0],
        tile,
        swizzle: Swizzle::B128,
        promotion: L2Promotion::B256,
    };
    let list = [
        Argument::Map(map(Element::Bf16, arguments.a.address, m, a_pitch, [BLOCK_K, BLOCK_M, 1, 1, 1])),
        Argument::Map(map(
            Element::F32,
            arguments.b.address,
            config.columns,
            b_pitch,
            [W_LINE, config.columns, 1, 1, 1],
        )),
        Argument::Address(arguments.d.address),
        Argument::Address(arguments.sqr_sum.address),
        Argument::Address(d_split),
        Argument::Number(d_pitch),
        Argument::Number(m),
        Argument::Number(k.div_ceil(BLOCK_K)),
    ];
    let call = Call {
        kernel: config.into(),
        grid: [m.div_ceil(BLOCK_M) * cluster, splits],
        cluster,
        threads: config.threads(),
        shared_bytes: config.shared_bytes(),
        arguments: &list,
    };
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps them.
    unsafe { call.run(device, options) }
}
