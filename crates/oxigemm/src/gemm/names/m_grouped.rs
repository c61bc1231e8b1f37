//! Products whose rows are grouped, each group with a B of its own: the experts of a mixture.

use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

use crate::call::{Addresses, FusedAt, PlanKey};
use crate::check::int;
use crate::check::{CheckedGroups, GroupedFp8GemmNt, GroupsArgument, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{GemmOptions, cuda_stream, key, put, refuse_stream, sim_stream};
use crate::memo::Memo;
use crate::plan::Limits;
use crate::reference;
use crate::remembered::{self, Call, CallArguments, Ready, RememberedCalls};
use crate::runtime::Cuda;
use crate::simulated::Sim;
use crate::tensor::Tensor;

/// Where the groups of a matrix of rows are: numbers of type i32 in the memory of the device, which only the kernel
/// reads.
#[derive(Clone, Copy, Debug)]
pub enum GroupedRows<'a> {
    /// `[M]`: the group of each row. Any number that is no group, such as -1, marks a row of none.
    ///
    /// The rows of a group follow each other, and the first is at a multiple of the alignment. Of a group that does
    /// not keep to this, only the rows of one run are computed.
    Ids(&'a Tensor),
    /// `[G]`: of each group the row behind its last. A group starts where the one before ends, rounded up to the
    /// alignment.
    ///
    /// Ends are clamped to `0..=M`. One that does not lie behind the group's start makes the group empty, and moves no
    /// other.
    Ends(&'a Tensor),
}

impl<'a> GroupedRows<'a> {
    pub(crate) fn numbers(&self) -> (GroupLayout, &'static str, &'a Tensor) {
        match *self {
            GroupedRows::Ids(ids) => (GroupLayout::Ids, "ids", ids),
            GroupedRows::Ends(ends) => (GroupLayout::Ends, "ends", ends),
        }
    }
}

/// Where the groups of rows are.
#[derive(Clone, Copy, Debug)]
pub enum RowGroups<'a> {
    /// One behind another in one matrix.
    Contiguous {
        /// Where each is.
        rows: GroupedRows<'a>,
        /// What the first row of every group is a multiple of: 1, 16, 32, 64 or 128.
        alignment: usize,
        /// How many rows a group will have, for planning; without it an equal share of all.
        expected_m: Option<usize>,
    },
    /// Each in a matrix of its own, of which the first rows count.
    Masked {
        /// `[G]`: how many rows of each group there are.
        masked_m: &'a Tensor,
        /// How many rows a group will have, for planning.
        expected_m: usize,
    },
}

impl<'a> RowGroups<'a> {
    pub(crate) fn describe(&self) -> (GroupsArgument, &'a Tensor) {
        let (layout, name, numbers, alignment, expected) = match *self {
            RowGroups::Contiguous { rows, alignment, expected_m } => {
                let (layout, name, numbers) = rows.numbers();
                (layout, name, numbers, alignment, expected_m)
            }
            RowGroups::Masked { masked_m, expected_m } => {
                (GroupLayout::Counts, "masked_m", masked_m, 1, Some(expected_m))
            }
        };
        let (alignment, expected) = (int(alignment), expected.map(int));
        (GroupsArgument { layout, numbers: numbers.describe(name), alignment, expected }, numbers)
    }
}

/// D = A·Bᵀ for rows that are grouped one behind another: each group of rows with the B of its own.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[M, K]` | e4m3 | rows of K; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[G, N, K]` | e4m3 | as `a`; groups multiples of 16 bytes apart |
/// | scales of `b` | `[G, ceil(N/128), ceil(K/128)]` | f32 | any strides |
/// | `d` | `[M, N]` | bf16 or f32 | rows of N, any pitch |
/// | `rows` | `[M]` or `[G]` | i32 | without gaps |
///
/// Where scales have 1 instead of more along a dimension, that one holds for all: `[G, 1, 1]` is a scale for each
/// group's B.
///
/// `alignment` is what the first row of every group is a multiple of: 1, 16, 32, 64 or 128. Nothing has to be padded
/// further. Rows of no group cost nothing and are left as they are in D. They may be read, and must be memory, but
/// nothing depends on what they hold.
///
/// `expected_m` is how many rows a group will have; the plan is made for it, and any numbers are computed. Without it
/// an equal share of M is assumed. Where M, N or the number of groups is 0 nothing is done; K must not be 0. There are
/// at most 1024 groups.
///
/// The kernel itself reads where the groups are, so that a captured call can be replayed with others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, GroupedRows, Tensor, m_grouped_fp8_gemm_nt_contiguous, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, n, k) = (2, 24, 128, 256);
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, groups * n * k), groups * n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let (b, sfb) = (b.view(&[groups, n, k])?, sfb.view(&[groups, n / 128, k / 128])?);
/// let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device)?;
///
/// let ends = Tensor::from_slice(&[10i32, 24], &[groups], &device)?; // rows 0 to 9, and 16 to 23
/// let rows = GroupedRows::Ends(&ends);
/// m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), (&b, &sfb), &mut d, rows, 16, None, &GemmOptions::default())?;
/// let row = |i: usize| d.narrow(0, i, 1).and_then(|row| row.to_vec_f32());
/// assert!(row(9)?.iter().any(|x| *x != 0.0) && row(10)?.iter().all(|x| *x == 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nt_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: GroupedRows<'_>,
    alignment: usize,
    expected_m: Option<usize>,
    options: &GemmOptions,
) -> Result<()> {
    run(a, b, d, RowGroups::Contiguous { rows, alignment, expected_m }, options)
}

/// D = A·Bᵀ for groups of rows that each have room for the same number: of each group so many rows as there are.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[G, M, K]` | e4m3 | rows of K; pitch, groups and address multiples of 16 bytes |
/// | scales of `a` | `[G, M, ceil(K/128)]` | f32 | any strides |
/// | `b` | `[G, N, K]` | e4m3 | as `a` |
/// | scales of `b` | `[G, ceil(N/128), ceil(K/128)]` | f32 | any strides |
/// | `d` | `[G, M, N]` | bf16 or f32 | rows of N, any pitch; groups whole rows apart |
/// | `masked_m` | `[G]` | i32 | without gaps |
///
/// Where scales have 1 instead of more along a dimension, that one holds for all.
///
/// Of group `g` the first `masked_m[g]` rows are computed; counts are clamped to `0..=M`. All further rows cost
/// nothing and are left as they are in D. They may be read, and must be memory, but nothing depends on what they hold.
///
/// `expected_m` is how many rows a group will have; the plan is made for it, and any numbers are computed. Where M, N
/// or the number of groups is 0 nothing is done; K must not be 0. There are at most 1024 groups.
///
/// The kernel itself reads the counts, so that a captured call can be replayed with others.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::{DType, Device, GemmOptions, Tensor, m_grouped_fp8_gemm_nt_masked, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (groups, m, n, k) = (2, 8, 128, 256);
/// let a = per_token_cast_to_fp8(&random::normals(1, groups * m * k), groups * m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, groups * n * k), groups * n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let (a, sfa) = (a.view(&[groups, m, k])?, sfa.view(&[groups, m, k / 128])?);
/// let (b, sfb) = (b.view(&[groups, n, k])?, sfb.view(&[groups, n / 128, k / 128])?);
/// let mut d = Tensor::zeros(DType::Bf16, &[groups, m, n], &device)?;
///
/// let masked_m = Tensor::from_slice(&[3i32, 0], &[groups], &device)?;
/// m_grouped_fp8_gemm_nt_masked((&a, &sfa), (&b, &sfb), &mut d, &masked_m, 2, &GemmOptions::default())?;
/// let written = d.to_vec_f32()?.chunks(n).map(|row| row.iter().any(|x| *x != 0.0)).collect::<Vec<_>>();
/// assert_eq!(written.iter().filter(|row| **row).count(), 3);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn m_grouped_fp8_gemm_nt_masked(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    d: &mut Tensor,
    masked_m: &Tensor,
    expected_m: usize,
    options: &GemmOptions,
) -> Result<()> {
    run(a, b, d, RowGroups::Masked { masked_m, expected_m }, options)
}

fn run(
    (a, sfa): (&Tensor, &Tensor),
    (b, sfb): (&Tensor, &Tensor),
    d: &mut Tensor,
    rows: RowGroups<'_>,
    options: &GemmOptions,
) -> Result<()> {
    let (groups, numbers) = rows.describe();
    let arguments = GroupedFp8GemmNt {
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b"),
        sfb: sfb.describe("sfb"),
        d: d.describe("d"),
        groups: Some(groups),
    };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { launch(cuda, &arguments, options) },
        Device::Sim(sim) => simulate(sim, &arguments, options),
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            match arguments.check()? {
                CheckedGroups::Nothing => Ok(()),
                CheckedGroups::Launch(_, groups) => {
                    reference::m_grouped_fp8_gemm_nt_tensors((a, sfa), (b, sfb), d, &groups, Some(numbers))
                }
            }
        }
    }
}

/// The operands of a product whose rows are grouped, as addresses, for engines that own their memory. Strides are in
/// elements.
///
/// What the fields mean and how they are checked is told at [`m_grouped_fp8_gemm_nt_contiguous`] and
/// [`m_grouped_fp8_gemm_nt_masked`].
#[derive(Clone, Copy, Debug)]
pub struct RawGroupedFp8Gemm {
    /// How many groups there are.
    pub groups: usize,
    /// Rows of A and D: of each group where they are [`Masked`](RawGroups::Masked), of all together elsewhere.
    pub m: usize,
    /// Rows of a group's B, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Address of A.
    pub a: u64,
    /// From one group of A to the next, which counts only where they are masked, and from one row to the next.
    pub a_strides: [usize; 2],
    /// Address of A's scales.
    pub sfa: u64,
    /// Strides of A's scales: along the groups, which counts only where they are masked, along M and along K.
    pub sfa_strides: [usize; 3],
    /// Address of B.
    pub b: u64,
    /// From one group of B to the next, and from one row to the next.
    pub b_strides: [usize; 2],
    /// Address of B's scales.
    pub sfb: u64,
    /// Strides of B's scales: along the groups, along N and along K.
    pub sfb_strides: [usize; 3],
    /// Address of D.
    pub d: u64,
    /// From one group of D to the next, which counts only where they are masked, and from one row to the next.
    pub d_strides: [usize; 2],
    /// The element type of D: bf16 or f32.
    pub d_type: DType,
    /// Where the groups are.
    pub rows: RawGroups,
}

/// Where groups are, as the address of numbers of type i32 in the memory of the device.
#[derive(Clone, Copy, Debug)]
pub enum RawGroups {
    /// As for [`m_grouped_fp8_gemm_nt_masked`].
    Masked {
        /// Address of the counts, one of each group.
        masked_m: u64,
        /// Rows that a group will have, for planning.
        expected_m: usize,
    },
    /// As [`GroupedRows::Ids`].
    Ids {
        /// Address of the ids, one of each row.
        ids: u64,
        /// What the first row of a group is a multiple of.
        alignment: usize,
        /// Rows that a group will have, for planning.
        expected_m: Option<usize>,
    },
    /// As [`GroupedRows::Ends`].
    Ends {
        /// Address of the ends, one of each group.
        ends: u64,
        /// What the first row of a group is a multiple of.
        alignment: usize,
        /// Rows that a group will have, for planning.
        expected_m: Option<usize>,
    },
}

impl RawGroups {
    /// Whether each group has rows of its own.
    pub(crate) fn are_masked(&self) -> bool {
        matches!(self, RawGroups::Masked { .. })
    }

    /// It as an argument, for so many groups and rows.
    pub(crate) fn describe(&self, [groups, m]: [i64; 2], device: DeviceId) -> GroupsArgument {
        let (layout, numbers, length, alignment, expected) = match *self {
            RawGroups::Masked { masked_m, expected_m } => {
                (GroupLayout::Counts, ("masked_m", masked_m), groups, 1, Some(expected_m))
            }
            RawGroups::Ids { ids, alignment, expected_m } => {
                (GroupLayout::Ids, ("ids", ids), m, alignment, expected_m)
            }
            RawGroups::Ends { ends, alignment, expected_m } => {
                (GroupLayout::Ends, ("ends", ends), groups, alignment, expected_m)
            }
        };
        GroupsArgument {
            layout,
            numbers: Operand::new((numbers.0, DType::I32), &[length], &[1], (numbers.1, device)),
            alignment: int(alignment),
            expected: expected.map(int),
        }
    }
}

impl RawGroupedFp8Gemm {
    pub(crate) fn describe(&self, device: DeviceId) -> GroupedFp8GemmNt {
        let [groups, m, n, k] = [self.groups, self.m, self.n, self.k].map(int);
        let blocks = |x: i64| x / 128 + i64::from(x % 128 != 0);
        let masked = self.rows.are_masked();
        let cube = |name, dtype, dims: [i64; 3], strides: [usize; 3], address, several: bool| {
            let from = usize::from(!several);
            Operand::new((name, dtype), &dims[from..], &strides.map(int)[from..], (address, device))
        };
        let ([a_slab, a_row], [b_group, b_row], [d_slab, d_row]) =
            (self.a_strides, self.b_strides, self.d_strides);
        GroupedFp8GemmNt {
            a: cube("a", DType::E4m3, [groups, m, k], [a_slab, a_row, 1], self.a, masked),
            sfa: cube("sfa", DType::F32, [groups, m, blocks(k)], self.sfa_strides, self.sfa, masked),
            b: cube("b", DType::E4m3, [groups, n, k], [b_group, b_row, 1], self.b, true),
            sfb: cube("sfb", DType::F32, [groups, blocks(n), blocks(k)], self.sfb_strides, self.sfb, true),
            d: cube("d", self.d_type, [groups, m, n], [d_slab, d_row, 1], self.d, masked),
            groups: Some(self.rows.describe([groups, m], device)),
        }
    }
}

/// [`m_grouped_fp8_gemm_nt_contiguous`] or [`m_grouped_fp8_gemm_nt_masked`] on memory that the caller owns, on the
/// stream of the options. The device is a GPU or the simulator, whose addresses are those of its tensors.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (D also not be read), from the call until the stream has passed the kernel; where the stream
/// is being captured, whenever the graph runs.
///
/// # Errors
/// As for those functions. The CPU is refused: it has tensors only.
///
/// ```no_run
/// use oxigemm::{Cuda, DType, Device, GemmOptions, RawGroupedFp8Gemm, RawGroups, m_grouped_fp8_gemm_nt_raw};
///
/// # let (a, sfa, b, sfb, d, masked_m) = (0, 0, 0, 0, 0, 0);
/// let (groups, m, n, k) = (32, 4096, 7168, 2048);
/// let gemm = RawGroupedFp8Gemm {
///     groups, m, n, k,
///     a, a_strides: [m * k, k],
///     sfa, sfa_strides: [m * k / 128, 1, m], // MN-major
///     b, b_strides: [n * k, k],
///     sfb, sfb_strides: [n / 128 * k / 128, k / 128, 1],
///     d, d_strides: [m * n, n], d_type: DType::Bf16,
///     rows: RawGroups::Masked { masked_m, expected_m: 20 },
/// };
/// // SAFETY: the engine's buffers outlive the call and what it started.
/// unsafe { m_grouped_fp8_gemm_nt_raw(&Device::Cuda(Cuda::open(0)?), &gemm, &GemmOptions::default())? };
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub unsafe fn m_grouped_fp8_gemm_nt_raw(
    device: &Device,
    gemm: &RawGroupedFp8Gemm,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

/// The arguments of some product whose rows are grouped, not yet checked.
pub(crate) trait GroupedArguments: CallArguments {
    /// Checks every rule of the call; gives what decides about the plan, if there is something to do.
    fn key(&self, limits: &Limits, options: &GemmOptions) -> Result<Option<PlanKey>>;
}

impl GroupedArguments for GroupedFp8GemmNt {
    fn key(&self, limits: &Limits, options: &GemmOptions) -> Result<Option<PlanKey>> {
        Ok(self.check()?.key(limits, options))
    }
}

impl CheckedGroups {
    /// What decides about the plan of a call that was checked, if there is something to do.
    pub(crate) fn key(self, limits: &Limits, options: &GemmOptions) -> Option<PlanKey> {
        match self {
            CheckedGroups::Nothing => None,
            CheckedGroups::Launch(problem, groups) => Some(key(limits, problem, Some(groups), options)),
        }
    }
}

impl CallArguments for GroupedFp8GemmNt {
    fn remembered(calls: &RememberedCalls) -> &Memo<Call<Self>, Ready> {
        &calls.grouped_fp8
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            a: self.a.address,
            sfa: self.sfa.address,
            b: self.b.address,
            sfb: self.sfb.address,
            c: 0,
            d: self.d.address,
            groups: self.groups.map_or(0, |groups| groups.numbers.address),
            map_room: 0,
            fused: FusedAt::default(),
        }
    }
}

/// Runs a product on memory that the caller owns.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`].
pub(crate) unsafe fn run_raw(
    device: &Device,
    arguments: &impl GroupedArguments,
    options: &GemmOptions,
) -> Result<()> {
    match device {
        // SAFETY: the caller keeps the operands as described.
        Device::Cuda(cuda) => unsafe { launch(cuda, arguments, options) },
        Device::Sim(sim) => simulate(sim, arguments, options),
        Device::Cpu => Err(Error::no_raw_memory(device)),
    }
}

/// Checks, plans and launches.
///
/// # Safety
/// As for [`m_grouped_fp8_gemm_nt_raw`].
pub(crate) unsafe fn launch(
    cuda: &Cuda,
    arguments: &impl GroupedArguments,
    options: &GemmOptions,
) -> Result<()> {
    let stream = cuda_stream(cuda, options)?;
    let plan = || arguments.key(cuda.limits(), options);
    // SAFETY: the caller keeps the operands as described, and the plan is that of the check.
    unsafe { remembered::launch(cuda, arguments, stream, options, plan) }
}

/// Checks, plans, and does it or has it captured.
pub(crate) fn simulate(sim: &Sim, arguments: &impl GroupedArguments, options: &GemmOptions) -> Result<()> {
    let stream = sim_stream(sim, options)?;
    let Some(key) = arguments.key(sim.limits(), options)? else { return Ok(()) };
    let work = sim.plan(&key, &arguments.addresses(), stream, options.programmatic)?;
    put(sim, stream, work)
}
