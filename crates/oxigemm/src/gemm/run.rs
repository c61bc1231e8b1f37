//! The run of a GEMM: the launch cache, the plan, and the launch on any device.

use std::sync::Arc;

use super::desc::GemmDesc;
use super::problem::{Checked, Problem, Trivial};
use super::transpose::Transposition;
use super::{Gemm, GemmOptions, cuda_stream, put, refuse_stream, sim_stream};
use crate::device::limits::Limits;
use crate::device::sim::Work;
use crate::device::{Cuda, Device, Sim};
use crate::error::{Error, Result};
use crate::launch::args::{KernelArgs, PlanKey};
use crate::launch::cache::{self, Memo};
use crate::launch::prepared::Prepared;
use crate::plan::GemmConfig;
use crate::reference;
use crate::tensor::desc::Operand;

/// Launch cache of a GPU: calls that were checked and planned need a comparison and a launch.
#[derive(Default)]
pub(crate) struct LaunchCache {
    calls: Memo<CallKey, ReadyCall>,
}

/// Everything that decides what is launched.
struct CallKey {
    desc: GemmDesc,
    config: Option<GemmConfig>,
    num_sms: Option<u32>,
    batch_invariant: bool,
}

impl CallKey {
    #[inline]
    fn is(&self, desc: &GemmDesc, options: &GemmOptions) -> bool {
        self.desc == *desc
            && self.config == options.config
            && self.num_sms == options.num_sms
            && self.batch_invariant == options.batch_invariant
    }
}

/// A call that was checked and planned.
struct ReadyCall {
    prepared: Arc<Prepared>,
    args: KernelArgs,
    /// Transposition before the GEMM, and the workspace that the arguments were made for.
    transposition: Option<(Transposition, u64)>,
}

/// Runs a GEMM. `tensors` are those that it was described from, which the CPU needs.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (what is written also not be read), from the call until the stream has passed the kernel; where the
/// stream is being captured, whenever the graph runs.
pub(super) unsafe fn run(
    device: &Device,
    desc: &GemmDesc,
    tensors: Option<&Gemm<'_>>,
    options: &GemmOptions,
) -> Result<()> {
    match (device, tensors) {
        // SAFETY: the caller keeps the operands.
        (Device::Cuda(cuda), _) => unsafe { launch(cuda, desc, options) },
        (Device::Sim(sim), _) => simulate(sim, desc, options),
        (Device::Cpu, Some(tensors)) => {
            refuse_stream(device, options)?;
            reference::gemm(tensors)
        }
        (Device::Cpu, None) => Err(Error::no_raw_memory(device)),
    }
}

/// Checks, plans and launches, or launches what is cached.
///
/// # Safety
/// As for [`run`].
unsafe fn launch(cuda: &Cuda, desc: &GemmDesc, options: &GemmOptions) -> Result<()> {
    let stream = cuda_stream(cuda, options)?;
    let own = desc.addresses();
    let hash = cache::mix([own.a, own.sfa, own.b, own.sfb, own.c, own.d, own.groups]);
    let calls = &cuda.calls().calls;
    // SAFETY: an equal call was checked before; the caller keeps the operands.
    let cached = calls.recall(
        hash,
        |call| call.is(desc, options),
        |ready| unsafe { ready.launch(cuda, desc, stream, options) },
    );
    if let Some(result) = cached.flatten() {
        return result;
    }
    let problem = match desc.check()? {
        Checked::Nothing => return Ok(()),
        Checked::Trivial(trivial) => {
            for Rows { d, c, width, rows } in rows(desc) {
                match (trivial, c) {
                    // SAFETY: the check has compared D with its description; the caller keeps it.
                    (Trivial::Zero, _) => unsafe { stream.fill_rows_async(d, width, rows, 0)? },
                    // SAFETY: as above for both, which the check found apart.
                    (Trivial::CopyC, Some(c)) => unsafe { stream.copy_rows_async(d, c, width, rows)? },
                    (Trivial::CopyC, None) => {}
                }
            }
            return Ok(());
        }
        Checked::Launch(problem) => problem,
    };
    let (problem, transposition) = transposed(problem, desc)?;
    let prepared = cuda.prepared(&plan_key(problem, cuda.limits(), options))?;
    let mut at = own;
    if problem.k_groups.is_some() {
        at.map_workspace = cuda.map_room(stream)?;
    }
    let transposition = match transposition {
        None => None,
        Some(transposition) => Some((transposition, cuda.workspace(stream, transposition.bytes())?)),
    };
    if let Some((transposition, workspace)) = &transposition {
        at = transposition.addresses(at, *workspace);
    }
    let args = prepared.arguments(&at)?;
    let ready = ReadyCall { prepared, args, transposition };
    // SAFETY: the check has compared the operands with the problem; the caller keeps them.
    if let Some(result) = unsafe { ready.launch(cuda, desc, stream, options) } {
        result?;
    }
    let GemmOptions { config, num_sms, batch_invariant, .. } = *options;
    calls.remember(hash, CallKey { desc: *desc, config, num_sms, batch_invariant }, ready);
    Ok(())
}

impl ReadyCall {
    /// Puts the kernels into a stream; `None` where the workspace of this stream is another one than that of the
    /// arguments.
    ///
    /// # Safety
    /// As for [`run`]: the call is the one that was checked.
    #[inline]
    unsafe fn launch(
        &self,
        cuda: &Cuda,
        desc: &GemmDesc,
        stream: &oxigemm_cuda::Stream,
        options: &GemmOptions,
    ) -> Option<Result<()>> {
        let mut programmatic = options.programmatic;
        if let Some((transposition, known)) = &self.transposition {
            let workspace = match cuda.workspace(stream, transposition.bytes()) {
                Ok(workspace) if workspace == *known => workspace,
                Ok(_) => return None,
                Err(error) => return Some(Err(error)),
            };
            // SAFETY: the caller keeps the operands, and the device the workspace.
            let result =
                unsafe { transposition.launch(cuda, desc.addresses(), workspace, stream, programmatic) };
            if result.is_err() {
                return Some(result);
            }
            // The GEMM waits for the transposition, and so for all before it.
            programmatic = true;
        }
        // SAFETY: the arguments are those of the checked call; the caller keeps the operands.
        Some(unsafe { self.prepared.launch(cuda, &self.args, stream, programmatic) })
    }
}

/// Checks, plans, and simulates, or has it captured.
fn simulate(sim: &Sim, desc: &GemmDesc, options: &GemmOptions) -> Result<()> {
    let stream = sim_stream(sim, options)?;
    let problem = match desc.check()? {
        Checked::Nothing => return Ok(()),
        Checked::Trivial(trivial) => {
            for Rows { d, c, width, rows } in rows(desc) {
                match (trivial, c) {
                    (Trivial::Zero, _) => put(sim, stream, Work::ClearRows { at: d, width, rows })?,
                    (Trivial::CopyC, Some(from)) => {
                        put(sim, stream, Work::CopyRows { to: d, from, width, rows })?;
                    }
                    (Trivial::CopyC, None) => {}
                }
            }
            return Ok(());
        }
        Checked::Launch(problem) => problem,
    };
    let (problem, transposition) = transposed(problem, desc)?;
    let key = plan_key(problem, sim.limits(), options);
    let mut at = desc.addresses();
    if problem.k_groups.is_some() {
        at.map_workspace = sim.map_room()?;
    }
    let mut programmatic = options.programmatic;
    let mut transpose = None;
    if let Some(transposition) = transposition {
        let workspace = sim.workspace(stream, transposition.bytes())?;
        transpose = Some(transposition.work(sim, at, workspace, programmatic)?);
        at = transposition.addresses(at, workspace);
        programmatic = true;
    }
    let gemm = sim.plan(&key, &at, stream, programmatic)?;
    if let Some(transpose) = transpose {
        put(sim, stream, transpose)?;
    }
    put(sim, stream, gemm)
}

/// The GEMM that is launched, and the transposition before it.
fn transposed(problem: Problem, desc: &GemmDesc) -> Result<(Problem, Option<Transposition>)> {
    Ok(match Transposition::new(&problem, desc)? {
        None => (problem, None),
        Some((problem, transposition)) => (problem, Some(transposition)),
    })
}

/// Key of the plan of a problem.
fn plan_key(problem: Problem, limits: &Limits, options: &GemmOptions) -> PlanKey {
    let sms = options.num_sms.map_or(limits.sms, |sms| sms.clamp(1, limits.sms));
    PlanKey { problem, config: options.config, sms, batch_invariant: options.batch_invariant }
}

/// Rows of one matrix of D and of C: addresses with pitches in bytes, the bytes of a row, and how many there are.
struct Rows {
    d: [u64; 2],
    c: Option<[u64; 2]>,
    width: usize,
    rows: usize,
}

/// Rows of every matrix of D.
fn rows(desc: &GemmDesc) -> impl Iterator<Item = Rows> {
    let GemmDesc { c, d, .. } = desc;
    let (count, first) = if d.rank == 3 { (d.dims[0] as u64, 1) } else { (1, 0) };
    let size = d.dtype.size() as u64;
    // The check has bounded every stride that counts.
    let place = move |operand: &Operand, nth: u64| {
        let stride = |i: usize| operand.strides[i].unsigned_abs().wrapping_mul(size);
        let slab = if first == 1 && count > 1 { nth * stride(0) } else { 0 };
        [operand.address + slab, stride(first)]
    };
    let [rows, columns] = [d.dims[first], d.dims[first + 1]].map(|dim| dim as usize);
    (0..count).map(move |nth| Rows {
        d: place(d, nth),
        c: c.as_ref().map(|c| place(c, nth)),
        width: columns * size as usize,
        rows,
    })
}
