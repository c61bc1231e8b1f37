//! A Hopper GPU that is simulated on the CPU: the same plans, the same PTX, the same arguments as on a real one.
//!
//! A call takes the path of [`Cuda`](crate::Cuda) up to the launch. There the PTX of the kernel goes to
//! `oxigemm-sim` instead of the driver, and the call returns when the kernel is done.
//!
//! Tensors live in the memory of the simulated machine, each in an allocation of its own with unmapped space around
//! it. So a kernel that reads past an operand, or reads uninitialized memory, is found, and addresses are as
//! (un)aligned as the caller made them.

mod guard;
mod memory;
mod ranks;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use oxigemm_cuda::TiledTensor;
use oxigemm_kernels::common::grid_barrier::WORKSPACE_BYTES as GRID_BARRIER_BYTES;
use oxigemm_kernels::gemm::dynamic_tensor_maps::MAP_WORKSPACE_BYTES as TENSOR_MAP_BYTES;
use oxigemm_kernels::gemm::scheduler::dynamic::WORKSPACE_BYTES as COUNTER_BYTES;
use oxigemm_kernels::{Arch, KernelId, Target};
use oxigemm_sim::{FaultKind, Interrupt, Launch, Machine, Module, Options, Report, World};
use oxigemm_threads::{Pool, wait};

use super::backend::Backend;
use super::extensions::Extensions;
use super::id::DeviceId;
use super::launch::{Geometry, KernelParams};
use super::limits::Limits;
use super::stream::{SimStream, Stream, wrong_stream};
use super::tensor_map;
use super::workspace::Workspaces;
use super::workspace::grid_barrier::{GRID_BARRIERS_BYTES, GridBarriers, Owner};
use crate::error::{Error, Result};
use guard::Guarded;
use ranks::Ranks;
pub use ranks::SimRank;

/// A simulated GPU with its memory and its kernels. Clones are cheap and share them.
///
/// How kernels are scheduled, and whether hazards are looked for, are [`Options`] that can be changed between calls.
/// A hazard ends the call with [`Error::Fault`]; D is then of no use. Kernels are held to the strict rules, and the
/// first fault ends a call: `strict` and `keep_going` are as if they were `true` and `false`.
///
/// ```
/// use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
/// use oxigemm::sim::{Options, Policy};
/// use oxigemm::{Addend, DType, Device, GemmOptions, Sim, Tensor, fp8_gemm_nt, random};
///
/// let sim = Sim::new();
/// let device = Device::Sim(sim.clone());
/// let (m, n, k) = (4, 64, 256);
/// let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
/// let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
/// let ((a, sfa), (b, sfb)) = (a.to_tensors(&device)?, b.to_tensors(&device)?);
/// let mut results = Vec::new();
/// for policy in [Policy::Eager, Policy::Lazy] {
///     sim.set_options(Options { policy, ..Options::default() });
///     let mut d = Tensor::empty(DType::Bf16, &[m, n], &device)?;
///     fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
///     results.push(d.to_bytes()?);
/// }
/// assert_eq!(results[0], results[1], "no schedule changes the bits");
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone)]
pub struct Sim {
    devices: Arc<Devices>,
    rank: usize,
}

/// One device, or those of a world.
struct Devices {
    all: Vec<Inner>,
    /// Where there are several: their memory, and the hosts that use them.
    ranks: Option<Arc<Ranks>>,
}

/// Work of a stream: done at once, or captured and done whenever its graph is launched.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A kernel with its arguments.
    Kernel { module: Arc<Module>, launch: Launch, programmatic: bool },
    /// Rows become zero.
    ClearRows { at: [u64; 2], width: usize, rows: usize },
    /// Rows are copied.
    CopyRows { to: [u64; 2], from: [u64; 2], width: usize, rows: usize },
}

/// Kernels whose names are kept.
const RECENT_KERNELS: usize = 64;

struct Inner {
    number: u32,
    limits: Limits,
    /// What kernels are written for.
    target: Target,
    machine: Guarded<Machine>,
    options: Mutex<Options>,
    kernels: Mutex<HashMap<KernelId, Arc<Module>>>,
    last: Mutex<Option<Report>>,
    /// Entries of the last kernels, the oldest first.
    recent: Mutex<VecDeque<String>>,
    workspaces: Workspaces<()>,
    zeroed_workspaces: Workspaces<()>,
    grid_barriers: GridBarriers<()>,
    /// Workspace for the tensor maps that kernels make.
    tensor_maps: Mutex<Option<u64>>,
    extensions: Extensions,
    /// Threads that capture a stream, once for each capture.
    capturing: Mutex<Vec<ThreadId>>,
}

/// The threads of every simulated GPU. They run nothing else: a thread that waits for its part of a GEMM never
/// takes up a task of the caller's, which could want the memory that the running kernel holds.
static THREADS: Pool = Pool::new("oxigemm-sim");

/// The architecture and the target of the simulated GPU. One that has no kernels refuses the first that it is asked to
/// load.
fn arch_of(options: &Options) -> (Arch, Target) {
    let named = |target: &Target| options.gpu.is_some_and(|gpu| gpu.to_string() == target.name());
    Arch::all_targets().find(|(_, target)| named(target)).unwrap_or((Arch::Sm90a, Target::Sm90a))
}

/// Its limits.
fn limits_of(arch: Arch) -> Limits {
    match arch {
        Arch::Sm100a => Limits::b200(),
        Arch::Sm90a => Limits::h200(),
    }
}

impl Sim {
    /// An H200 with empty memory: eager schedules, hazards are looked for.
    #[must_use]
    pub fn new() -> Sim {
        Sim::with_options(Options::default())
    }

    /// The GPU that the options name, or an H200, with empty memory.
    ///
    /// ```
    /// use oxigemm::Device;
    ///
    /// let blackwell: Device = "sim:sm_100a".parse()?;
    /// assert_eq!(blackwell.limits().map(|limits| limits.sms), Some(148));
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    #[must_use]
    pub fn with_options(options: Options) -> Sim {
        Sim { devices: Arc::new(Devices { all: vec![Inner::new(options)], ranks: None }), rank: 0 }
    }

    /// A new world: several GPUs, each with memory and workspaces of its own, that read and write the memory of each
    /// other by its addresses. Their kernels are in flight at the same time where [`Sim::each_rank`] gives each device
    /// a host.
    ///
    /// ```
    /// use oxigemm::sim::{Launch, Module, Options, Param};
    /// use oxigemm::{DType, Sim, Tensor};
    /// use std::sync::Arc;
    ///
    /// // Adds one to a counter in the memory of rank 0 and waits until every rank has.
    /// let barrier = Arc::new(Module::parse(
    ///     ".version 8.0\n.target sm_90a\n.address_size 64
    ///     .visible .entry barrier(.param .u64 at, .param .u32 count) {
    ///         .reg .b64 a; .reg .b32 n, x; .reg .pred p;
    ///         ld.param.u64 a, [at]; ld.param.u32 n, [count];
    ///         red.release.sys.global.add.u32 [a], 1;
    ///         again: ld.acquire.sys.global.u32 x, [a]; setp.lt.u32 p, x, n; @p bra again; ret;
    ///     }",
    /// )?);
    /// let world = Sim::world(2, Options::default())?;
    /// let outcomes = world[0].each_rank(|rank| -> oxigemm::Result<()> {
    ///     let counter = Tensor::zeros(DType::I32, &[1], &rank.device())?;
    ///     // The hosts tell each other where their counters are.
    ///     let counters = rank.meet(counter.address())?;
    ///     let launch = Launch {
    ///         entry: "barrier".to_owned(),
    ///         grid: [1; 3],
    ///         cluster: None,
    ///         block: [1; 3],
    ///         shared_bytes: 0,
    ///         params: vec![Param::U64(counters[0]), Param::U32(rank.size() as u32)],
    ///     };
    ///     rank.sim().launch_module(&barrier, &launch)?;
    ///     rank.meet(0)?;
    ///     Ok(())
    /// })?;
    /// outcomes.into_iter().collect::<oxigemm::Result<()>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Ranks`] if there are none or more than 16.
    pub fn world(devices: usize, options: Options) -> Result<Vec<Sim>> {
        if !(1..=World::MAX_DEVICES).contains(&devices) {
            let reason = format!("a world has 1 to {} devices, not {devices}", World::MAX_DEVICES);
            return Err(Error::Ranks { reason });
        }
        let all = (0..devices).map(|_| Inner::new(options.clone())).collect();
        let devices = Arc::new(Devices { all, ranks: Some(Arc::new(Ranks::new(devices))) });
        Ok(Sim { devices, rank: 0 }.peers())
    }

    /// All devices of its world, itself among them, by rank.
    #[must_use]
    pub fn peers(&self) -> Vec<Sim> {
        (0..self.devices.all.len()).map(|rank| Sim { rank, ..self.clone() }).collect()
    }

    /// Its number in its world.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The rank whose memory an address lies in.
    ///
    /// # Errors
    /// [`Error::Forked`], where a kernel ran when this process was forked.
    pub fn owner(&self, address: u64) -> Result<usize> {
        self.ranks().map_or(Ok(0), |ranks| ranks.owner(address))
    }

    /// Takes part in its world with this rank: where another rank that takes part launches a kernel, it runs when this
    /// one has launched one as well, or waits for the other hosts, or has left (the [`SimRank`] is dropped).
    ///
    /// All ranks should have joined before the first launches: [`Sim::each_rank`] sees to it.
    ///
    /// # Errors
    /// [`Error::Ranks`] where the device is alone, or has joined already.
    pub fn take_part(&self) -> Result<SimRank> {
        let alone =
            || Error::Ranks { reason: "this device has no peers: Sim::world makes several".to_owned() };
        SimRank::join(self.clone(), Arc::clone(self.devices.ranks.as_ref().ok_or_else(alone)?))
    }

    /// Does work for every rank of its world, each on a thread of its own, and gives the results by rank. A rank leaves
    /// when its work is done.
    ///
    /// # Errors
    /// As [`Sim::take_part`].
    ///
    /// # Panics
    /// If the work of a rank does; the others see that it has left.
    pub fn each_rank<R: Send>(&self, work: impl Fn(&SimRank) -> R + Sync) -> Result<Vec<R>> {
        let ranks = self.peers().iter().map(Sim::take_part).collect::<Result<Vec<SimRank>>>()?;
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || work(&rank))).collect();
            let joined: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            Ok(joined.into_iter().map(|r| r.unwrap_or_else(|panic| resume_unwind(panic))).collect())
        })
    }

    /// How long the ranks of its world wait for the host of one that takes part, 10 minutes if nothing is said.
    pub fn set_patience(&self, patience: Duration) {
        if let Some(ranks) = self.ranks() {
            ranks.set_patience(patience);
        }
    }

    /// Runs a kernel of any PTX to its end, under its options and with the rules for kernels of the library.
    ///
    /// # Errors
    /// [`Error::Fault`] with what is wrong; what else a call of the library reports.
    pub fn launch_module(&self, module: &Arc<Module>, launch: &Launch) -> Result<Report> {
        self.refuse_in_capture("a launch of other PTX")?;
        let (module, launch) = (Arc::clone(module), launch.clone());
        self.perform(&Work::Kernel { module, launch, programmatic: false })?;
        Ok(self.last_report().unwrap_or_default())
    }

    fn inner(&self) -> &Inner {
        &self.devices.all[self.rank]
    }

    /// The hosts of its world, where it has peers.
    fn ranks(&self) -> Option<&Ranks> {
        self.devices.ranks.as_deref()
    }

    /// How the next kernels are run.
    #[must_use]
    pub fn options(&self) -> Options {
        lock(&self.inner().options).clone()
    }

    /// Changes how the next kernels are run.
    pub fn set_options(&self, options: Options) {
        *lock(&self.inner().options) = options;
    }

    /// What planning knows of it.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner().limits
    }

    /// What the last kernel that came to its end did, with its timeline where the options asked for one.
    #[must_use]
    pub fn last_report(&self) -> Option<Report> {
        lock(&self.inner().last).clone()
    }

    /// Names of the last kernels that came to their end, at most 64, in order.
    ///
    /// ```
    /// use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, bf16_gemm_nt};
    ///
    /// let device = Device::sim();
    /// let x = Tensor::zeros(DType::Bf16, &[64, 64], &device)?;
    /// let mut d = Tensor::zeros(DType::Bf16, &[64, 64], &device)?;
    /// bf16_gemm_nt(&x, &x, Addend::None, &mut d, &GemmOptions::default())?;
    /// let kernels = device.as_sim().unwrap().recent_kernels();
    /// assert_eq!(kernels.len(), 1);
    /// assert!(kernels[0].starts_with("sm90_bf16_gemm_"));
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    #[must_use]
    pub fn recent_kernels(&self) -> Vec<String> {
        lock(&self.inner().recent).iter().cloned().collect()
    }

    /// Which one it is: no two share memory.
    pub(crate) fn number(&self) -> u32 {
        self.inner().number
    }

    /// A thread of this device begins to capture a stream.
    pub(crate) fn begin_capture(&self) {
        lock(&self.inner().capturing).push(std::thread::current().id());
    }

    /// A capture of this thread ends.
    pub(crate) fn end_capture(&self) {
        let (mut capturing, own) = (lock(&self.inner().capturing), std::thread::current().id());
        if let Some(nth) = capturing.iter().position(|thread| *thread == own) {
            capturing.swap_remove(nth);
        }
    }

    /// Whether this thread captures a stream.
    pub(crate) fn is_capturing_here(&self) -> bool {
        lock(&self.inner().capturing).contains(&std::thread::current().id())
    }

    /// Refuses what the driver refuses to a thread that captures a stream.
    fn refuse_in_capture(&self, what: &str) -> Result<()> {
        if !self.is_capturing_here() {
            return Ok(());
        }
        let reason = format!("{what} is not permitted while this thread captures a stream");
        Err(Error::Stream { reason })
    }

    /// A kernel that was stopped has not left the counters of its workspace as the next one expects them.
    fn clear_counters(&self) -> Result<()> {
        const { assert!(GRID_BARRIER_BYTES <= COUNTER_BYTES) };
        let zeros = [0; COUNTER_BYTES as usize];
        let zeroed = self.inner().zeroed_workspaces.addresses().into_iter();
        let zeroed = zeroed.map(|address| (address, &zeros[..]));
        // One grid barrier is all that is used.
        let barrier = self.inner().grid_barriers.address();
        let barrier = barrier.map(|address| (address, &zeros[..GRID_BARRIER_BYTES as usize]));
        self.write(zeroed.chain(barrier))
    }

    /// Does work, or records it in a stream that is being captured.
    pub(crate) fn submit(&self, stream: Option<&SimStream>, work: Work) -> Result<()> {
        match stream {
            Some(stream) => stream.submit(work),
            None => self.perform(&work),
        }
    }

    /// Does work to the end.
    pub(crate) fn perform(&self, work: &Work) -> Result<()> {
        match work {
            Work::Kernel { module, launch, programmatic } => {
                let kernel = launch.entry.clone();
                match self.execute(Arc::clone(module), launch.clone(), *programmatic)? {
                    Ok(report) => {
                        *lock(&self.inner().last) = Some(report);
                        let mut recent = lock(&self.inner().recent);
                        recent.push_back(kernel);
                        if recent.len() > RECENT_KERNELS {
                            recent.pop_front();
                        }
                    }
                    Err(fault) => {
                        self.clear_counters()?;
                        return Err(match fault.kind {
                            FaultKind::Interrupted => Error::Interrupted,
                            _ => Error::Fault { kernel, fault: Box::new(fault) },
                        });
                    }
                }
                Ok(())
            }
            Work::ClearRows { at, width, rows } => self.zero_memory(*at, *width, *rows),
            Work::CopyRows { to, from, width, rows } => self.copy_memory(*to, *from, *width, *rows),
        }
    }

    /// Runs a kernel on the threads of the simulator and waits for it, without taking up other work meanwhile.
    fn execute(
        &self,
        module: Arc<Module>,
        launch: Launch,
        programmatic: bool,
    ) -> Result<Result<Report, oxigemm_sim::Fault>> {
        // The library's own kernels keep to what the manual promises; and the first fault ends the call.
        let options = Options { strict: true, keep_going: false, ..self.options() };
        if let Some(ranks) = self.ranks() {
            return ranks.launch(self.rank, &module, &launch, &options);
        }
        let mut machine = self.inner().machine.lock()?;
        let mut taken = std::mem::take(&mut *machine);
        let interrupt = Interrupt::default();
        taken.interrupt = interrupt.clone();
        let (send, receive) = mpsc::sync_channel(1);
        THREADS.threads().spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| match programmatic {
                false => taken.run(&module, &launch, &options),
                true => taken.run_dependent(&module, &launch, &options),
            }));
            // The caller waits for it; were it gone, nobody would want the result.
            let _ = send.send((taken, outcome));
        });
        let (returned, outcome) = wait(&receive, &interrupt).expect("the task sends whatever happens");
        *machine = returned;
        drop(machine);
        Ok(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// A kernel of the closed set, written and parsed once.
    pub(crate) fn module(&self, kernel: &KernelId) -> Result<Arc<Module>> {
        if let Some(module) = lock(&self.inner().kernels).get(kernel) {
            return Ok(Arc::clone(module));
        }
        // Without the lock, which a fork would leave locked in the child. A thread that was first keeps its own.
        let refuse = |reason: String| Error::Kernel { name: kernel.name(), reason };
        let arch = self.inner().limits.arch;
        if kernel.arch() != arch {
            return Err(refuse(format!("it is written for {}, and the device is {arch}", kernel.arch())));
        }
        let ptx = kernel.build().and_then(|ptx| ptx.for_target(self.inner().target));
        let ptx = ptx.map_err(|error| refuse(error.to_string()))?;
        let module = Arc::new(Module::parse(&ptx.text).map_err(|error| refuse(error.to_string()))?);
        Ok(Arc::clone(lock(&self.inner().kernels).entry(*kernel).or_insert(module)))
    }

    /// Runs this PTX from now on where a kernel is asked for.
    ///
    /// It must have the same entry and parameters. This is how a change to a kernel, or a fault that is put into it,
    /// is tried on every shape that the library serves.
    ///
    /// # Errors
    /// If it is not PTX that the simulator has, with the line.
    pub fn replace_kernel(&self, kernel: impl Into<KernelId>, ptx: &str) -> Result<()> {
        let kernel = kernel.into();
        let module = Module::parse(ptx)
            .map_err(|error| Error::Kernel { name: kernel.name(), reason: error.to_string() })?;
        lock(&self.inner().kernels).insert(kernel, Arc::new(module));
        Ok(())
    }
}

impl Backend for Sim {
    /// Its module is looked up at each launch, as [`Sim::replace_kernel`] may change it.
    type Kernel = KernelId;
    type Stream<'a> = Option<&'a SimStream>;

    fn limits(&self) -> &Limits {
        &self.inner().limits
    }

    fn extensions(&self) -> &Extensions {
        &self.inner().extensions
    }

    fn stream<'a>(&'a self, stream: Option<&'a Stream>) -> Result<Option<&'a SimStream>> {
        match stream {
            None => Ok(None),
            Some(Stream::Sim(stream)) if stream.device() == DeviceId::Sim(self.number()) => Ok(Some(stream)),
            Some(stream) => Err(wrong_stream(DeviceId::Sim(self.number()), stream)),
        }
    }

    fn is_capturing(&self, stream: Option<&SimStream>) -> Result<bool> {
        Ok(stream.is_some_and(SimStream::is_captured))
    }

    fn load_kernel(&self, kernel: &KernelId) -> Result<KernelId> {
        self.module(kernel).map(|_| *kernel)
    }

    fn resident_clusters(&self, _: &KernelId, _: &Geometry) -> Result<Option<u32>> {
        Ok(None)
    }

    unsafe fn launch_loaded(
        &self,
        kernel: &KernelId,
        geometry: &Geometry,
        params: &impl KernelParams,
        stream: Option<&SimStream>,
        programmatic: bool,
    ) -> Result<()> {
        let (module, launch) = (self.module(kernel)?, geometry.simulated(kernel, params));
        self.submit(stream, Work::Kernel { module, launch, programmatic })
    }

    unsafe fn clear_rows(
        &self,
        at: [u64; 2],
        width: usize,
        rows: usize,
        stream: Option<&SimStream>,
    ) -> Result<()> {
        self.submit(stream, Work::ClearRows { at, width, rows })
    }

    unsafe fn copy_rows(
        &self,
        to: [u64; 2],
        from: [u64; 2],
        width: usize,
        rows: usize,
        stream: Option<&SimStream>,
    ) -> Result<()> {
        self.submit(stream, Work::CopyRows { to, from, width, rows })
    }

    fn tensor_map(&self, tensor: &TiledTensor) -> Result<[u64; 16]> {
        let map = tensor_map::simulated(tensor).encode().map_err(memory::host_access)?;
        Ok(std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|byte| map[8 * i + byte]))))
    }

    fn workspace(&self, stream: Option<&SimStream>, bytes: u64) -> Result<u64> {
        self.inner().workspaces.at(SimStream::key(stream), bytes, |bytes| {
            refuse_growth(stream)?;
            Ok((self.allocate(bytes as usize)?, ()))
        })
    }

    fn zeroed_workspace(&self, stream: Option<&SimStream>, bytes: u64) -> Result<u64> {
        self.inner().zeroed_workspaces.at(SimStream::key(stream), bytes, |bytes| {
            refuse_growth(stream)?;
            Ok((self.zeros(bytes)?, ()))
        })
    }

    /// One for all: kernels run one after another, whatever their streams and graphs are.
    fn grid_barrier_workspace(&self, stream: Option<&SimStream>) -> Result<Option<u64>> {
        if stream.is_some_and(SimStream::is_captured) && self.inner().grid_barriers.address().is_none() {
            return Ok(None);
        }
        let all = Owner { stream: 0, capture: None };
        self.inner().grid_barriers.of(all, || Ok((self.zeros(GRID_BARRIERS_BYTES)?, ())))
    }

    fn tensor_map_workspace(&self, stream: Option<&SimStream>) -> Result<u64> {
        let mut address = lock(&self.inner().tensor_maps);
        match *address {
            Some(address) => Ok(address),
            None => {
                refuse_growth(stream)?;
                Ok(*address.insert(self.zeros(TENSOR_MAP_BYTES.into())?))
            }
        }
    }
}

impl Inner {
    fn new(options: Options) -> Inner {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let (arch, target) = arch_of(&options);
        Inner {
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            limits: limits_of(arch),
            target,
            machine: Guarded::default(),
            options: Mutex::new(options),
            kernels: Mutex::default(),
            last: Mutex::default(),
            recent: Mutex::default(),
            workspaces: Workspaces::default(),
            zeroed_workspaces: Workspaces::default(),
            grid_barriers: GridBarriers::default(),
            tensor_maps: Mutex::default(),
            extensions: Extensions::default(),
            capturing: Mutex::default(),
        }
    }
}

/// `sim`, or of a world the name of this device: `sim:2xsm_90a/1`.
impl fmt::Display for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ranks().is_none() {
            return f.write_str("sim");
        }
        write!(f, "sim:{}x{}", self.devices.all.len(), self.inner().target.name())?;
        if self.rank > 0 {
            write!(f, "/{}", self.rank)?;
        }
        Ok(())
    }
}

impl Default for Sim {
    fn default() -> Sim {
        Sim::new()
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sim({}, {:?})", self.inner().number, self.options())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The workspace of a captured call is the one that a call before it has made.
fn refuse_growth(stream: Option<&SimStream>) -> Result<()> {
    if stream.is_some_and(SimStream::is_captured) {
        return Err(Error::workspace_in_capture());
    }
    Ok(())
}
