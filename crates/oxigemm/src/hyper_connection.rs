//! Hyper-connection: the GEMM before its norm.

use oxigemm_cuda::{Element, L2Promotion, Swizzle, TiledTensor};
use oxigemm_kernels::common::even_split::Shares;
use oxigemm_kernels::hyper_connection::{BLOCK_K, BLOCK_M, Config};

use crate::check::{HcPrenormGemm, HcProblem};
use crate::device::Device;
use crate::device::backend::{Backend, with_backend};
use crate::device::launch::{Geometry, KernelArg, KernelLaunch};
use crate::error::{Error, Result};
use crate::gemm::GemmOptions;
use crate::reference;
use crate::tensor::desc::{Operand, int};
use crate::tensor::{DType, Tensor};

/// D = A·Bᵀ with a few columns, and `sqr_sum[m]` = the sum of the squares of row m of A, in one pass over A.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | bf16 | rows of K; pitch and address multiples of 16 bytes |
/// | `b` | `[N, K]`; N is 8, 16, 24 or 32 | f32 | rows of K; pitch and address multiples of 16 bytes |
/// | `d` | `[M, N]` or `[splits, M, N]` | f32 | rows of N, any pitch |
/// | `sqr_sum` | `[M]` or `[splits, M]` | f32 | contiguous |
///
/// B is rounded to TF32, 11 bits; on Hopper a number that is then larger than the largest BF16 number counts as infinite.
/// An operand that is not finite makes its row, or its column, infinite or NaN, and nothing else. Accumulators are FP32.
///
/// With splits, D and `sqr_sum` are partial results that the caller adds: split i of S takes the K blocks i, i + S, ...
/// of 64. Without, the kernel reduces all of K, in an order that depends on the shape and on the number of SMs. The
/// same call gives the same bits. With [`GemmOptions::batch_invariant`] only K and the splits decide the order.
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
    let reference = || match arguments.check()? {
        None => Ok(()),
        Some(problem) => reference::hc_prenorm_tensors(a, b, d, sqr_sum, problem.splits as usize),
    };
    // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
    a.device().run(options.stream.as_ref(), reference, |device| unsafe { run(device, &arguments, options) })
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
    /// Splits of K, as for [`tf32_hc_prenorm_gemm`], each with a D and sums of squares of its own; those are
    /// contiguous.
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
/// Every operand must be memory of this device, as large as its shape and pitches say. It must stay alive, and not be
/// written elsewhere (the results also not be read), from the call until the stream has passed the kernel; where the
/// stream is being captured, whenever the graph runs.
///
/// # Errors
/// As [`tf32_hc_prenorm_gemm`]. The CPU is refused: it has tensors only.
pub unsafe fn tf32_hc_prenorm_gemm_raw(
    device: &Device,
    raw: &RawHcPrenormGemm,
    options: &GemmOptions,
) -> Result<()> {
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

/// Distribution of the stages of a GEMM, each of 128 rows and 64 of K, over the blocks of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharing {
    /// How often some blocks share some rows.
    groups: u32,
    /// Stages of these rows.
    stages: u32,
    /// Blocks that share them.
    blocks: u32,
}

impl Sharing {
    /// As many blocks as there are SMs, as long as each has a few stages. Every 128 rows have as many as the
    /// others, where none of them gets much longer by that than if all blocks shared all rows.
    fn best(problem: &HcProblem, sms: u32, batch_invariant: bool) -> Option<Sharing> {
        const FEW: u32 = 8;
        let (rows, deep) = (problem.m.div_ceil(BLOCK_M), problem.k.div_ceil(BLOCK_K));
        let apart = |blocks| Sharing { groups: rows, stages: deep, blocks };
        let stages = rows.checked_mul(deep)?;
        if batch_invariant {
            return Some(apart(1));
        }
        let blocks = stages.div_ceil(FEW).min(sms);
        let [alone, together] =
            [deep.div_ceil((blocks / rows).max(1)), stages.div_ceil(blocks)].map(u64::from);
        Some(if blocks >= rows && 10 * alone <= 11 * together {
            apart(blocks / rows)
        } else {
            Sharing { groups: 1, stages, blocks }
        })
    }
}

/// Interleaved split of the stages of some rows: split i of `count` has the stages i, i + `count`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interleave {
    count: u32,
    /// The splits of a block, where every block has as many whole ones.
    of_block: Option<u32>,
}

impl Interleave {
    /// By splits; where there is one only, by the blocks that share rows and have no others.
    fn of(splits: u32, k_blocks: u32, sharing: &Sharing) -> Interleave {
        let alone = sharing.stages == k_blocks;
        let count = if splits == 1 && alone { sharing.blocks } else { splits };
        let whole = sharing.blocks == 1
            || count == sharing.blocks
            || (k_blocks.is_multiple_of(count) && count.is_multiple_of(sharing.blocks));
        Interleave { count, of_block: (alone && whole).then(|| count / sharing.blocks) }
    }
}

/// # Safety
/// As for [`tf32_hc_prenorm_gemm_raw`].
unsafe fn run(device: &Device, arguments: &HcPrenormGemm, options: &GemmOptions) -> Result<()> {
    // SAFETY: the caller keeps the same contract.
    with_backend!(device, backend => unsafe { run_on(backend, arguments, options) })
}

unsafe fn run_on<B: Backend>(backend: &B, arguments: &HcPrenormGemm, options: &GemmOptions) -> Result<()> {
    let limits = backend.limits();
    let Some(problem) = arguments.check()? else { return Ok(()) };
    let sms = options.num_sms.map_or(limits.sms, |sms| sms.clamp(1, limits.sms));
    let too_large = || Error::Overflow {
        argument: "a",
        expected: "fewer than 2^32 tiles of 128 rows by 64".to_owned(),
        found: format!("{} by {}", problem.m, problem.k),
    };
    let sharing = Sharing::best(&problem, sms, options.batch_invariant).ok_or_else(too_large)?;
    let HcProblem { columns, m, k, splits, a_pitch, b_pitch, d_pitch, d_split } = problem;
    let config = Config { arch: limits.arch, columns };
    let stream = backend.stream(options.stream.as_ref())?;
    // Blocks that share rows reduce their accumulators there.
    let workspace = match sharing.blocks {
        1 => 0,
        _ => backend.zeroed_workspace(stream, config.workspace_bytes(limits.sms))?,
    };
    let k_blocks = k.div_ceil(BLOCK_K);
    let of_splits = Shares::of(k_blocks, splits.min(k_blocks));
    let of_blocks = Shares::of(sharing.stages, sharing.blocks);
    let interleave = Interleave::of(splits.min(k_blocks), k_blocks, &sharing);
    let of_interleave = Shares::of(k_blocks, interleave.count);
    // No L2 prefetch where threads would have to divide for it, or where the pitch does not fit 32 bits.
    let prefetch_pitch = |pitch_bytes: u64| match interleave.of_block {
        Some(_) => u32::try_from(pitch_bytes).unwrap_or(0),
        None => 0,
    };
    let x = TiledTensor {
        element: Element::Bf16,
        rank: 2,
        address: arguments.a.address,
        dims: [k.into(), m.into(), 1, 1, 1],
        strides: [a_pitch * 2, 0, 0, 0],
        tile: [BLOCK_K, BLOCK_M, 1, 1, 1],
        swizzle: Swizzle::B128,
        // 256 was slower on an H200: perhaps lines that come too soon evict more of the L2 cache, which is written
        // back.
        promotion: L2Promotion::B128,
    };
    let tile = config.w_tile();
    let apart = tile.interleave;
    let w = TiledTensor {
        element: Element::F32,
        rank: 3,
        address: arguments.b.address,
        dims: [k.into(), (columns / apart).into(), apart.into(), 1, 1],
        strides: [u64::from(apart) * b_pitch * 4, b_pitch * 4, 0, 0],
        tile: [tile.k, tile.rows / apart, apart, 1, 1],
        swizzle: if tile.is_swizzled { Swizzle::B128 } else { Swizzle::None },
        promotion: L2Promotion::B256,
    };
    let list = [
        KernelArg::TensorMap(backend.tensor_map(&x)?),
        KernelArg::TensorMap(backend.tensor_map(&w)?),
        KernelArg::U64(arguments.d.address),
        KernelArg::U64(arguments.sqr_sum.address),
        KernelArg::U64(workspace),
        KernelArg::U64(d_split),
        KernelArg::U32(d_pitch),
        KernelArg::U32(m),
        KernelArg::U32(k_blocks),
        KernelArg::U32(splits),
        KernelArg::U32(of_splits.each),
        KernelArg::U32(of_splits.more),
        KernelArg::U32(interleave.count),
        KernelArg::U32(of_interleave.each),
        KernelArg::U32(of_interleave.more),
        KernelArg::U32(interleave.of_block.unwrap_or(0)),
        KernelArg::U32(sharing.stages),
        KernelArg::U32(sharing.blocks),
        KernelArg::U32(of_blocks.each),
        KernelArg::U32(of_blocks.more),
        KernelArg::U64(arguments.a.address),
        KernelArg::U32(prefetch_pitch(a_pitch * 2)),
        KernelArg::U64(arguments.b.address),
        KernelArg::U32(prefetch_pitch(b_pitch * 4)),
    ];
    let launch = KernelLaunch {
        kernel: config.into(),
        geometry: Geometry {
            grid: [sharing.groups, sharing.blocks],
            cluster: 1,
            threads: config.threads(),
            shared_bytes: config.shared_bytes(),
            cooperative: false,
        },
        programmatic: options.programmatic,
        params: list,
    };
    // SAFETY: these are the kernel's parameters; the check has compared the operands with them, and the caller keeps
    // them.
    unsafe { backend.launch(&launch, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_interleaved_by_splits_or_by_blocks() {
        let sharing = |groups, stages, blocks| Sharing { groups, stages, blocks };
        let interleave = |splits, k_blocks, sharing| {
            let Interleave { count, of_block } = Interleave::of(splits, k_blocks, &sharing);
            (count, of_block)
        };
        assert_eq!(interleave(1, 112, sharing(32, 112, 4)), (4, Some(1)), "blocks interleave");
        assert_eq!(interleave(4, 112, sharing(32, 112, 4)), (4, Some(1)));
        assert_eq!(interleave(16, 112, sharing(32, 112, 4)), (16, Some(4)));
        assert_eq!(interleave(3, 112, sharing(32, 112, 4)), (3, None), "a block ends within a split");
        assert_eq!(interleave(16, 120, sharing(32, 120, 4)), (16, None), "splits are of two lengths");
        assert_eq!(
            interleave(1, 112, sharing(1, 40 * 112, 132)),
            (1, None),
            "blocks have parts of several rows"
        );
        assert_eq!(interleave(1, 20, sharing(1, 20, 3)), (3, Some(1)), "the last has one less");
        assert_eq!(interleave(3, 112, sharing(1, 40 * 112, 132)), (3, None));
        assert_eq!(interleave(3, 10, sharing(3, 10, 1)), (3, Some(3)), "the block begins with the first");
    }

    #[test]
    fn blocks_have_the_same_number_of_stages() {
        let sharing = |m, k, sms, batch_invariant| {
            let (a_pitch, b_pitch) = (k, k);
            let problem = HcProblem {
                columns: 24,
                m,
                k: k as u32,
                splits: 1,
                a_pitch,
                b_pitch,
                d_pitch: 24,
                d_split: 0,
            };
            Sharing::best(&problem, sms, batch_invariant)
        };
        for (m, k, sms, groups, stages, blocks) in [
            (4096, 7168, 132, 32, 112, 4),
            (4096, 28672, 132, 32, 448, 4),
            (8192, 7680, 132, 64, 120, 2),
            (137, 7168, 132, 2, 112, 14),
            (1, 64, 132, 1, 1, 1),
            (5000, 7168, 132, 1, 40 * 112, 132),
            (20000, 7168, 132, 1, 157 * 112, 132),
            (4096, 7168, 20, 1, 32 * 112, 20),
        ] {
            assert_eq!(sharing(m, k, sms, false), Some(Sharing { groups, stages, blocks }), "m={m} k={k}");
        }
        assert_eq!(sharing(300, 640, 132, true), Some(Sharing { groups: 3, stages: 10, blocks: 1 }));
        assert_eq!(sharing(1 << 30, 1 << 30, 132, false), None);
    }
}
