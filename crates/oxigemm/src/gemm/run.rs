//! The run of a GEMM: the launch cache, the plan, and the launch on any device.

use std::sync::Arc;

use super::GemmOptions;
use super::scales::{self, RewrittenScales};
use super::transpose::Transposition;
use crate::check::gemm::tensors::Gemm;
use crate::check::{Checked, GemmDesc, GroupingDesc, Problem, Trivial};
use crate::device::Device;
use crate::device::backend::{Backend, with_backend};
use crate::device::limits::Limits;
use crate::error::{Error, Result};
use crate::launch::args::{Addresses, EpilogueAddresses, KernelArgs, PlanKey};
use crate::launch::cache::{self, Memo};
use crate::launch::prepared;
use crate::launch::prepared::Prepared;
use crate::plan::{GemmConfig, KOrder};
use crate::reference;
use crate::tensor::desc::Operand;

/// Launch cache of a device: calls that were checked and planned need a comparison and a launch.
struct LaunchCache<B: Backend> {
    calls: Memo<CallKey, ReadyCall<B>>,
}

impl<B: Backend> Default for LaunchCache<B> {
    fn default() -> Self {
        LaunchCache { calls: Memo::default() }
    }
}

/// Everything that decides what is launched.
struct CallKey {
    desc: GemmDesc,
    config: Option<GemmConfig>,
    num_sms: Option<u32>,
    batch_invariant: bool,
    k_order: Option<KOrder>,
    raster_band: Option<u32>,
}

impl CallKey {
    #[inline]
    fn is(&self, desc: &GemmDesc, options: &GemmOptions) -> bool {
        self.desc == *desc
            && self.config == options.config
            && self.num_sms == options.num_sms
            && self.batch_invariant == options.batch_invariant
            && self.k_order == options.k_order
            && self.raster_band == options.raster_band
    }
}

/// A call that was checked and planned.
struct ReadyCall<B: Backend> {
    prepared: Arc<Prepared<B>>,
    args: KernelArgs,
    /// Kernels before the GEMM, and the workspace that the arguments were made for.
    preparation: Option<(Preparation, u64)>,
}

/// Kernels before the GEMM, which write to a workspace: scales first, then what is transposed.
#[derive(Clone, Copy)]
struct Preparation {
    scales: Option<RewrittenScales>,
    transposition: Option<Transposition>,
}

/// Runs a GEMM. `tensors` are those that it was described from, which the CPU needs.
///
/// # Safety
/// Every operand must be memory of this device, as large as its shape and strides say. It must stay alive, and not be
/// written elsewhere (what is written also not be read), from the call until the stream has passed the kernel; where
/// the stream is being captured, whenever the graph runs.
pub(super) unsafe fn run(
    device: &Device,
    desc: &GemmDesc,
    tensors: Option<&Gemm<'_>>,
    options: &GemmOptions,
) -> Result<()> {
    let reference = || match tensors {
        Some(tensors) => reference::gemm(tensors),
        None => Err(Error::no_raw_memory("cpu")),
    };
    let launch = |device: &Device| {
        with_backend!(device, backend => {
            // SAFETY: the caller keeps the operands.
            unsafe { launch(backend, desc, options) }
        })
    };
    device.run(options.stream.as_ref(), reference, launch)
}

/// Checks, plans and launches, or launches what is cached.
///
/// # Safety
/// As for [`run`].
unsafe fn launch<B: Backend>(backend: &B, desc: &GemmDesc, options: &GemmOptions) -> Result<()> {
    let stream = backend.stream(options.stream.as_ref())?;
    let own = desc.addresses();
    let hash = cache::mix([own.a, own.sfa, own.b, own.sfb, own.c, own.d, own.groups]);
    let calls = &backend.extensions().get::<LaunchCache<B>>().calls;
    let launch_cached = |ready: &ReadyCall<B>| match ready.is_current(backend, stream) {
        // SAFETY: an equal call was checked before; the caller keeps the operands.
        Ok(true) => Some(unsafe { ready.launch(backend, desc, stream, options) }),
        Ok(false) => None,
        Err(error) => Some(Err(error)),
    };
    if let Some(result) = calls.recall(hash, |call| call.is(desc, options), launch_cached).flatten() {
        return result;
    }
    let unpacked = desc.unpacked()?;
    let as_f32 = unpacked.as_ref().map_or(desc, |(desc, _)| desc);
    let problem = match as_f32.check()? {
        Checked::Nothing => return Ok(()),
        // SAFETY: the check has compared C and D with their description; the caller keeps them.
        Checked::Trivial(trivial) => return unsafe { update(backend, desc, trivial, stream) },
        Checked::Launch(problem) => problem,
    };
    if let Some((_, codes)) = &unpacked {
        codes.expect_apart(desc)?;
    }
    let arch = backend.limits().arch;
    let codes = unpacked.as_ref().map(|(_, codes)| codes);
    let (problem, rewritten) = scales::rewritten(arch, desc, as_f32, codes, problem)?;
    let (mut problem, transposition) = transposed(problem, as_f32)?;
    let copied = match rewritten {
        None => RewrittenScales::of_unaligned(&problem, own.sfa),
        Some(_) => None,
    };
    // A graph may run beside what its stream does later: it must not need the workspace of the stream.
    let without_copy = copied.is_some() && backend.is_capturing(stream)?;
    let rewritten = match copied.filter(|_| !without_copy) {
        Some((with_copy, copy)) => {
            problem = with_copy;
            Some(copy)
        }
        None => rewritten,
    };
    let prepared = prepared(backend, &plan_key(problem, backend.limits(), options))?;
    let mut at = own;
    if problem.k_groups.is_some() {
        at.map_workspace = backend.tensor_map_workspace(stream)?;
    }
    let preparation = match Preparation::new(rewritten, transposition) {
        None => None,
        Some(preparation) => Some((preparation, backend.workspace(stream, preparation.bytes())?)),
    };
    if let Some((preparation, workspace)) = &preparation {
        at = preparation.addresses(at, *workspace);
    }
    let args = prepared.arguments(backend, &at)?;
    let ready = ReadyCall { prepared, args, preparation };
    // SAFETY: the check has compared the operands with the problem; the caller keeps them.
    unsafe { ready.launch(backend, desc, stream, options)? };
    if without_copy {
        return Ok(());
    }
    let GemmOptions { config, num_sms, batch_invariant, k_order, raster_band, .. } = *options;
    let key = CallKey { desc: *desc, config, num_sms, batch_invariant, k_order, raster_band };
    calls.insert(hash, key, ready);
    Ok(())
}

/// Updates D where K is 0.
///
/// # Safety
/// As for [`run`], of C and D that were checked.
unsafe fn update<B: Backend>(
    backend: &B,
    desc: &GemmDesc,
    trivial: Trivial,
    stream: B::Stream<'_>,
) -> Result<()> {
    for Rows { d, c, width, rows } in rows(desc) {
        match (trivial, c) {
            // SAFETY: the caller keeps D.
            (Trivial::Zero, _) => unsafe { backend.clear_rows(d, width, rows, stream)? },
            // SAFETY: as above for both, which the check found apart.
            (Trivial::CopyC, Some(c)) => unsafe { backend.copy_rows(d, c, width, rows, stream)? },
            (Trivial::CopyC, None) => {}
        }
    }
    Ok(())
}

impl<B: Backend> ReadyCall<B> {
    /// Whether the workspace that the arguments were made for is that of a stream.
    #[inline]
    fn is_current(&self, backend: &B, stream: B::Stream<'_>) -> Result<bool> {
        match &self.preparation {
            None => Ok(true),
            Some((preparation, _)) if preparation.is_optional() && backend.is_capturing(stream)? => Ok(false),
            Some((preparation, known)) => Ok(backend.workspace(stream, preparation.bytes())? == *known),
        }
    }

    /// Puts the kernels into a stream.
    ///
    /// # Safety
    /// As for [`run`]: the call is the one that was checked, and the workspace was given to this stream. A workspace that
    /// has grown since is kept by the device.
    #[inline]
    unsafe fn launch(
        &self,
        backend: &B,
        desc: &GemmDesc,
        stream: B::Stream<'_>,
        options: &GemmOptions,
    ) -> Result<()> {
        let mut programmatic = options.programmatic;
        if let Some((preparation, workspace)) = &self.preparation {
            // SAFETY: the caller keeps the operands, and the device the workspace.
            unsafe { preparation.launch(backend, desc.addresses(), *workspace, stream, programmatic)? };
            // The GEMM waits for the last of these kernels, and so for all before it.
            programmatic = true;
        }
        // SAFETY: the arguments are those of the checked call; the caller keeps the operands.
        unsafe { self.prepared.launch(backend, &self.args, stream, programmatic) }
    }
}

impl Preparation {
    /// What comes before a GEMM; `None` where nothing does.
    fn new(scales: Option<RewrittenScales>, transposition: Option<Transposition>) -> Option<Preparation> {
        let some = scales.is_some() || transposition.is_some();
        some.then_some(Preparation { scales, transposition })
    }

    /// Whether the GEMM could do without.
    #[inline]
    fn is_optional(&self) -> bool {
        self.scales.as_ref().is_some_and(RewrittenScales::is_optional)
    }

    /// Bytes of the workspace that scales take.
    #[inline]
    fn scale_bytes(&self) -> u64 {
        self.scales.as_ref().map_or(0, RewrittenScales::bytes)
    }

    /// Bytes of the workspace.
    #[inline]
    fn bytes(&self) -> u64 {
        self.scale_bytes() + self.transposition.as_ref().map_or(0, Transposition::bytes)
    }

    /// Addresses of the GEMM, once all is prepared.
    fn addresses(&self, own: Addresses, workspace: u64) -> Addresses {
        let at = self.scales.as_ref().map_or(own, |scales| scales.addresses(own, workspace));
        match &self.transposition {
            None => at,
            Some(transposition) => transposition.addresses(at, workspace + self.scale_bytes()),
        }
    }

    /// Puts the kernels into a stream.
    ///
    /// # Safety
    /// As for [`ReadyCall::launch`], of operands at these addresses.
    unsafe fn launch<B: Backend>(
        &self,
        backend: &B,
        own: Addresses,
        workspace: u64,
        stream: B::Stream<'_>,
        mut programmatic: bool,
    ) -> Result<()> {
        if let Some(scales) = &self.scales {
            // SAFETY: the caller's promise.
            unsafe { scales.launch(backend, workspace, stream, programmatic)? };
            programmatic = true;
        }
        match &self.transposition {
            None => Ok(()),
            // SAFETY: the caller's promise.
            Some(transposition) => unsafe {
                transposition.launch(backend, own, workspace + self.scale_bytes(), stream, programmatic)
            },
        }
    }
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
    let GemmOptions { config, batch_invariant, k_order, raster_band, .. } = *options;
    PlanKey { problem, config, sms, batch_invariant, k_order, raster_band }
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

impl GemmDesc {
    /// Addresses of the operands.
    #[inline]
    pub(super) fn addresses(&self) -> Addresses {
        let address = |operand: &Option<Operand>| operand.as_ref().map_or(0, |operand| operand.address);
        Addresses {
            a: self.a.address,
            sfa: address(&self.sfa),
            b: self.b.address,
            sfb: address(&self.sfb),
            c: address(&self.c),
            d: self.d.address,
            groups: match &self.grouping {
                GroupingDesc::MGrouped(groups) => groups.numbers.address,
                GroupingDesc::KGrouped(groups) => groups.ks.address,
                GroupingDesc::Dense | GroupingDesc::Batched | GroupingDesc::Summed => 0,
            },
            map_workspace: 0,
            epilogue: self.epilogue.as_ref().map_or_else(EpilogueAddresses::default, |epilogue| {
                EpilogueAddresses {
                    alpha: epilogue.alpha,
                    beta: epilogue.beta_or_tensor_scale(),
                    bias: address(&epilogue.bias),
                    gate: epilogue.gate,
                    scales: epilogue.scales.as_ref().map_or(0, |(scales, _)| scales.address),
                }
            }),
        }
    }
}
