//! Products with groups along K: what the weights of a mixture's experts get as gradients.

use crate::call::{Addresses, FusedAt, PlanKey};
use crate::check::int;
use crate::check::{CheckedKGroups, GemmLayout, KGroupedFp8Gemm, KGroups, Operand, Problem, Trivial};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gemm::{Addend, GemmOptions, cuda_stream, key, put, refuse_stream, sim_stream};
use crate::reference;
use crate::runtime::Cuda;
use crate::simulated::{Sim, Work};
use crate::tensor::Tensor;
use crate::transposed_groups::TransposedGroups;

/// D\[g\] = C\[g\] + A_g·B_gᵀ for groups that share M and N and have a K of their own.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | all elements, one after the other: of each group `[M, K_g]` | e4m3 | rows of K_g, rounded up to 16 elements; the address a multiple of 16 bytes |
/// | scales of `a` | `[M, sum of ceil(K_g/128)]` | f32 | any strides; along M they are read fastest |
/// | `b` | all elements: of each group `[N, K_g]` | e4m3 | as `a` |
/// | scales of `b` | `[N, sum of ceil(K_g/128)]` | f32 | any strides; along N they are read fastest |
/// | `c`, `d` | `[G, M, N]` | bf16 or f32, the same | rows of N, any pitch; groups whole rows apart |
/// | `ks` | `[G]` | i32 | on the device, without gaps |
///
/// The kernel itself reads `ks`, so that a captured call can be replayed with others. Any K will do: 0 (D becomes C or
/// 0), 1, and what is no multiple of 128. Numbers below 0 count as 0; a group is cut off where the operands or the
/// scales end. `ks_host` are the same numbers, if the host knows them: they must fit the operands exactly.
///
/// Where M, N or the number of groups is 0 nothing is done. There are at most 1024 groups.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_token_cast_to_fp8};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, k_grouped_fp8_gemm_nt_contiguous, random};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n, k) = (8, 24, 256); // of the first group; the second has none
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_token_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let (a, b) = (a.view(&[m * k])?, b.view(&[n * k])?);
/// let mut d = Tensor::zeros(DType::F32, &[2, m, n], &device)?;
///
/// let ks = Tensor::from_slice(&[k as i32, 0], &[2], &device)?;
/// let (a, b) = ((&a, &sfa), (&b, &sfb));
/// k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::InPlace, &mut d, &ks, None, &GemmOptions::default())?;
/// assert!(d.select(0)?.to_vec_f32()?.iter().any(|x| *x != 0.0));
/// assert!(d.select(1)?.to_vec_f32()?.iter().all(|x| *x == 0.0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn k_grouped_fp8_gemm_nt_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    ks: &Tensor,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    run(GemmLayout::Nt, (a, b), c, d, (ks, ks_host), options)
}

/// D\[g\] = C\[g\] + A_gᵀ·B_g for groups that share M and N and have a range of K each.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[K, M]` | e4m3 | rows of M; pitch and address multiples of 16 bytes |
/// | scales of `a` | `[sum of ceil(K_g/128), M]` | f32 | any strides |
/// | `b` | `[K, N]` | e4m3 | as `a` |
/// | scales of `b` | `[sum of ceil(K_g/128), N]` | f32 | any strides |
/// | `c`, `d`, `ks` | as for [`k_grouped_fp8_gemm_nt_contiguous`] | | |
///
/// K is that of all groups, which lie one behind another without gaps. A scale is of 128 steps of K of one group, or of
/// what is left of them at its end.
///
/// The tensor core multiplies FP8 operands that are contiguous along K, so both are transposed first, by one kernel, into
/// memory of the library that belongs to the stream: see [`fp8_gemm`](crate::fp8_gemm) for what that means to graphs. It
/// reads and writes all of A and B once more; who can should quantize along K.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports; that the stream is being captured and its memory
/// would have to grow.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, k_grouped_fp8_gemm_tn_contiguous};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n) = (16, 32);
/// let a = Tensor::from_f32(DType::E4m3, &vec![0.5; 5 * m], &[5, m], &device)?;
/// let b = Tensor::from_f32(DType::E4m3, &vec![2.0; 5 * n], &[5, n], &device)?;
/// // The second group has no K, and so no scales.
/// let sfa = Tensor::from_slice(&[[1.0f32; 16], [2.0; 16]].concat(), &[2, m], &device)?;
/// let sfb = Tensor::from_slice(&[1.0f32; 64], &[2, n], &device)?;
/// let mut d = Tensor::zeros(DType::F32, &[3, m, n], &device)?;
/// let ks = Tensor::from_slice(&[4i32, 0, 1], &[3], &device)?;
/// let (a, b, options) = ((&a, &sfa), (&b, &sfb), GemmOptions::default());
/// k_grouped_fp8_gemm_tn_contiguous(a, b, Addend::None, &mut d, &ks, Some(&[4, 0, 1]), &options)?;
/// let firsts: Vec<f32> = d.to_vec_f32()?.into_iter().step_by(m * n).collect();
/// assert_eq!(firsts, [4.0, 0.0, 2.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn k_grouped_fp8_gemm_tn_contiguous(
    a: (&Tensor, &Tensor),
    b: (&Tensor, &Tensor),
    c: Addend<'_>,
    d: &mut Tensor,
    ks: &Tensor,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    run(GemmLayout::Tn, (a, b), c, d, (ks, ks_host), options)
}

fn run(
    layout: GemmLayout,
    ((a, sfa), (b, sfb)): ((&Tensor, &Tensor), (&Tensor, &Tensor)),
    c: Addend<'_>,
    d: &mut Tensor,
    (ks, ks_host): (&Tensor, Option<&[usize]>),
    options: &GemmOptions,
) -> Result<()> {
    let arguments = KGroupedFp8Gemm {
        layout,
        a: a.describe("a"),
        sfa: sfa.describe("sfa"),
        b: b.describe("b"),
        sfb: sfb.describe("sfb"),
        c: c.describe(d),
        d: d.describe("d"),
        ks: ks.describe("ks"),
        ks_host,
    };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { launch(cuda, &arguments, options) },
        Device::Sim(sim) => simulate(sim, &arguments, options),
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            let checked = arguments.check()?;
            let old = d.clone();
            let c = c.tensor(&old);
            reference::k_grouped_fp8_gemm_tensors(layout, (a, sfa), (b, sfb), c, d, ks, &checked)
        }
    }
}

/// The operands of a product with groups along K, as addresses, for engines that own their memory. Pitches and strides
/// are in elements.
///
/// What the fields mean and how they are checked is told at [`k_grouped_fp8_gemm_nt_contiguous`] and
/// [`k_grouped_fp8_gemm_tn_contiguous`]; of the latter, A is `[K, M]` and B `[K, N]` without gaps.
#[derive(Clone, Copy, Debug)]
pub struct RawKGroupedFp8Gemm<'a> {
    /// How many groups there are.
    pub groups: usize,
    /// Rows of A and of a group's D.
    pub m: usize,
    /// Rows of B, columns of D.
    pub n: usize,
    /// The K of all groups together, of nt each rounded up to 16: what A and B have room for.
    pub k: usize,
    /// Blocks of scales of all groups.
    pub blocks: usize,
    /// Address of A.
    pub a: u64,
    /// Address of A's scales.
    pub sfa: u64,
    /// Strides of A's scales, along M and along K.
    pub sfa_strides: [usize; 2],
    /// Address of B.
    pub b: u64,
    /// Address of B's scales.
    pub sfb: u64,
    /// Strides of B's scales, along N and along K.
    pub sfb_strides: [usize; 2],
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// From one group of C to the next, and from one row to the next.
    pub c_strides: [usize; 2],
    /// Address of D.
    pub d: u64,
    /// From one group of D to the next, and from one row to the next.
    pub d_strides: [usize; 2],
    /// The element type of C and D: bf16 or f32.
    pub d_type: DType,
    /// Address of the K of each group, of type i32.
    pub ks: u64,
    /// The same numbers, as far as the host knows them.
    pub ks_host: Option<&'a [usize]>,
}

impl<'a> RawKGroupedFp8Gemm<'a> {
    fn describe(&self, layout: GemmLayout, device: DeviceId) -> KGroupedFp8Gemm<'a> {
        let [groups, m, n, k, blocks] = [self.groups, self.m, self.n, self.k, self.blocks].map(int);
        let list = |name, dtype, length: i64, address| {
            Operand::new((name, dtype), &[length], &[1], (address, device))
        };
        let scales = |name, rows, strides: [usize; 2], address| {
            let scales = Operand::matrix(name, DType::F32, [rows, blocks], strides.map(int), address, device);
            if layout == GemmLayout::Tn { scales.transposed() } else { scales }
        };
        let operand = |name, rows: i64, address| match layout {
            GemmLayout::Tn => Operand::matrix(name, DType::E4m3, [k, rows], [rows, 1], address, device),
            _ => list(name, DType::E4m3, rows.saturating_mul(k), address),
        };
        let output = |name, [group, row]: [usize; 2], address| {
            let dims = [groups, m, n];
            Operand::new((name, self.d_type), &dims, &[int(group), int(row), 1], (address, device))
        };
        KGroupedFp8Gemm {
            layout,
            a: operand("a", m, self.a),
            sfa: scales("sfa", m, self.sfa_strides, self.sfa),
            b: operand("b", n, self.b),
            sfb: scales("sfb", n, self.sfb_strides, self.sfb),
            c: (self.c != 0).then(|| output("c", self.c_strides, self.c)),
            d: output("d", self.d_strides, self.d),
            ks: list("ks", DType::I32, groups, self.ks),
            ks_host: self.ks_host,
        }
    }
}

/// [`k_grouped_fp8_gemm_nt_contiguous`] on memory that the caller owns, on the stream of the options. The device is a
/// GPU or the simulator, whose addresses are those of its tensors.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (D also not be read), from the call until the stream has passed the kernel; where the stream
/// is being captured, whenever the graph runs.
///
/// # Errors
/// As for that function. The CPU is refused: it has tensors only.
pub unsafe fn k_grouped_fp8_gemm_nt_contiguous_raw(
    device: &Device,
    gemm: &RawKGroupedFp8Gemm<'_>,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(GemmLayout::Nt, device.id()), options) }
}

/// [`k_grouped_fp8_gemm_tn_contiguous`] on memory that the caller owns, on the stream of the options. The device is a GPU
/// or the simulator, whose addresses are those of its tensors.
///
/// # Safety
/// As for [`k_grouped_fp8_gemm_nt_contiguous_raw`].
///
/// # Errors
/// As for that function. The CPU is refused: it has tensors only.
pub unsafe fn k_grouped_fp8_gemm_tn_contiguous_raw(
    device: &Device,
    gemm: &RawKGroupedFp8Gemm<'_>,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(GemmLayout::Tn, device.id()), options) }
}

/// The arguments of some product with groups along K, not yet checked.
pub(crate) trait KGroupedArguments {
    /// Checks every rule of the call.
    fn check(&self) -> Result<CheckedKGroups>;
    /// What is added, and the result.
    fn output(&self) -> (Option<&Operand>, &Operand);
    /// Where the operands are, but for the room for tensor maps.
    fn addresses(&self) -> Addresses;
    /// What makes the operands of a checked product K-major first, where they have to be.
    fn transposed(&self, _: &Problem, _: &KGroups) -> Result<Option<TransposedGroups>> {
        Ok(None)
    }
}

impl KGroupedArguments for KGroupedFp8Gemm<'_> {
    fn check(&self) -> Result<CheckedKGroups> {
        KGroupedFp8Gemm::check(self)
    }

    fn output(&self) -> (Option<&Operand>, &Operand) {
        (self.c.as_ref(), &self.d)
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            a: self.a.address,
            sfa: self.sfa.address,
            b: self.b.address,
            sfb: self.sfb.address,
            c: self.c.map_or(0, |c| c.address),
            d: self.d.address,
            groups: self.ks.address,
            map_room: 0,
            fused: FusedAt::default(),
        }
    }

    fn transposed(&self, problem: &Problem, groups: &KGroups) -> Result<Option<TransposedGroups>> {
        (self.layout == GemmLayout::Tn).then(|| TransposedGroups::new(problem, groups)).transpose()
    }
}

/// Runs a product on memory that the caller owns.
///
/// # Safety
/// As for [`k_grouped_fp8_gemm_nt_contiguous_raw`].
pub(crate) unsafe fn run_raw(
    device: &Device,
    arguments: &impl KGroupedArguments,
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
/// As for [`k_grouped_fp8_gemm_nt_contiguous_raw`].
pub(crate) unsafe fn launch(
    cuda: &Cuda,
    arguments: &impl KGroupedArguments,
    options: &GemmOptions,
) -> Result<()> {
    let stream = cuda_stream(cuda, options)?;
    match arguments.check()? {
        CheckedKGroups::Launch(problem, groups) => {
            let transposed = arguments.transposed(&problem, &groups)?;
            let problem = transposed.as_ref().map_or(problem, |transposed| transposed.problem);
            let key = PlanKey { k_groups: Some(groups), ..key(cuda.limits(), problem, None, options) };
            let prepared = cuda.prepared(&key)?;
            let own = Addresses { map_room: cuda.map_room(stream)?, ..arguments.addresses() };
            let Some(transposed) = transposed else {
                let args = prepared.arguments(&own)?;
                // SAFETY: the check has compared the operands with the problem; the caller keeps them.
                return unsafe { prepared.launch(cuda, &args, stream, options.programmatic) };
            };
            let workspace = cuda.workspace(stream, transposed.bytes)?;
            let args = prepared.arguments(&transposed.addresses(own, workspace))?;
            // SAFETY: as above, and the device keeps the workspace. The second kernel waits for the first, and so for all
            // before it.
            unsafe {
                transposed.call(own, workspace, |call| cuda.launch(call, stream, options.programmatic))?;
                prepared.launch(cuda, &args, stream, true)
            }
        }
        CheckedKGroups::Trivial(trivial) => {
            for (d, c, width, rows) in output_rows(arguments.output()) {
                match (trivial, c) {
                    // SAFETY: the check has compared D with its description; the caller keeps it.
                    (Trivial::Zero, _) => unsafe { stream.fill_rows_async(d, width, rows, 0)? },
                    // SAFETY: as above for both, which the check found apart.
                    (Trivial::CopyC, Some(c)) => unsafe { stream.copy_rows_async(d, c, width, rows)? },
                    _ => {}
                }
            }
            Ok(())
        }
    }
}

/// Checks, plans, and does it or has it captured.
pub(crate) fn simulate(sim: &Sim, arguments: &impl KGroupedArguments, options: &GemmOptions) -> Result<()> {
    let stream = sim_stream(sim, options)?;
    match arguments.check()? {
        CheckedKGroups::Launch(problem, groups) => {
            let transposed = arguments.transposed(&problem, &groups)?;
            let problem = transposed.as_ref().map_or(problem, |transposed| transposed.problem);
            let key = PlanKey { k_groups: Some(groups), ..key(sim.limits(), problem, None, options) };
            let own = Addresses { map_room: sim.map_room()?, ..arguments.addresses() };
            let Some(transposed) = transposed else {
                return put(sim, stream, sim.plan(&key, &own, stream, options.programmatic)?);
            };
            let workspace = sim.workspace(stream, transposed.bytes)?;
            let multiply = sim.plan(&key, &transposed.addresses(own, workspace), stream, true)?;
            let transpose = transposed.call(own, workspace, |call| sim.work(call, options.programmatic))?;
            put(sim, stream, transpose)?;
            put(sim, stream, multiply)
        }
        CheckedKGroups::Trivial(trivial) => {
            for (at, c, width, rows) in output_rows(arguments.output()) {
                match (trivial, c) {
                    (Trivial::Zero, _) => put(sim, stream, Work::ClearRows { at, width, rows })?,
                    (Trivial::CopyC, Some(from)) => {
                        put(sim, stream, Work::CopyRows { to: at, from, width, rows })?;
                    }
                    _ => {}
                }
            }
            Ok(())
        }
    }
}

/// Of each group, where D is and what is added, as an address and bytes from row to row, the bytes of a row, and how
/// many rows there are.
fn output_rows(
    (c, d): (Option<&Operand>, &Operand),
) -> impl Iterator<Item = ([u64; 2], Option<[u64; 2]>, usize, usize)> {
    let [groups, rows, columns, _] = d.dims;
    let size = d.dtype.size() as u64;
    let place = move |operand: &Operand, group: u64| {
        let [slab, row, ..] = operand.strides.map(|stride| stride.unsigned_abs() * size);
        [operand.address + group * slab, row]
    };
    let width = columns as usize * size as usize;
    (0..groups as u64).map(move |group| (place(d, group), c.map(|c| place(c, group)), width, rows as usize))
}
