//! A Hopper GPU that is simulated on the CPU: the same plans, the same PTX, the same arguments as on a real one.
//!
//! The road of a call is that of [`Cuda`](crate::Cuda) up to the launch. There the PTX of the kernel goes to
//! `oxigemm-sim` instead of the driver, and the call returns when the kernel is done.
//!
//! Tensors live in the memory of the simulated machine, each in an allocation of its own with unmapped space around
//! it. So a kernel that reads past an operand, or reads what nobody wrote, is found out, and addresses are as
//! (un)aligned as the caller made them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::ThreadId;

use oxigemm_kernels::KernelId;
#[cfg(doc)]
use oxigemm_kernels::gemm::epilogue::fusion::{FusedArgs, FusedGroupArgs};
use oxigemm_kernels::gemm::launch::{GemmKernel, MatrixMap};
use oxigemm_kernels::gemm::params::{Args, GroupedArgs};
use oxigemm_kernels::gemm::scheduler::dynamic;
#[cfg(doc)]
use oxigemm_kernels::gemm::scheduler::k_grouped::KGroupArgs;
use oxigemm_kernels::gemm::scheduler::k_grouped::MAP_ROOM_BYTES;
use oxigemm_kernels::gemm::transpose;
use oxigemm_kernels::quantize::per_tensor_single::ROOM_BYTES;
use oxigemm_sim::{Element, Launch, Machine, Module, Options, Param, Report, Swizzle, TensorMapSpec};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::limits::Limits;
use super::stream::SimStream;
use super::workspace::Workspaces;
use super::workspace::grid_barrier::{self as rooms, Rooms, Tenant};
use crate::error::{Error, Result};
use crate::launch::args::{Addresses, Arguments, KernelArgs, PlanKey};
use crate::launch::direct::Call;
use crate::launch::tensor_maps::{Map, MapElement};
use crate::plan::Plan;

/// A simulated GPU with its memory and its kernels. Clones are cheap and share them.
///
/// How kernels are scheduled, and whether hazards are looked for, are [`Options`] that can be changed between calls.
/// A hazard ends the call with [`Error::Fault`]; D is then of no use.
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
    inner: Arc<Inner>,
}

/// What can be put into a stream: done at once, or captured and done whenever its graph is launched.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A kernel with its arguments.
    Kernel { module: Arc<Module>, launch: Launch, programmatic: bool },
    /// Rows become zero.
    ClearRows { at: [u64; 2], width: usize, rows: usize },
    /// Rows are copied.
    CopyRows { to: [u64; 2], from: [u64; 2], width: usize, rows: usize },
}

struct Inner {
    number: u32,
    limits: Limits,
    machine: Mutex<Machine>,
    options: Mutex<Options>,
    kernels: Mutex<HashMap<KernelId, Arc<Module>>>,
    last: Mutex<Option<Report>>,
    /// Room for the tensor maps that kernels make.
    map_room: Mutex<Option<u64>>,
    workspaces: Workspaces<()>,
    gathering_rooms: Workspaces<()>,
    meeting_rooms: Rooms<()>,
    /// Threads that capture a stream, once for each capture.
    capturing: Mutex<Vec<ThreadId>>,
}

/// The threads of every simulated GPU. They run nothing else: a thread that waits for its part of a product never
/// takes up a task of the caller's, which could want the memory that the running kernel holds.
static THREADS: LazyLock<ThreadPool> = LazyLock::new(|| {
    let pool = ThreadPoolBuilder::new().thread_name(|i| format!("oxigemm-sim-{i}")).build();
    pool.expect("the system has room for a thread per core")
});

impl Sim {
    /// An H200 with empty memory: eager schedules, hazards are looked for.
    #[must_use]
    pub fn new() -> Sim {
        Sim::with_options(Options::default())
    }

    /// An H200 with empty memory.
    #[must_use]
    pub fn with_options(options: Options) -> Sim {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        Sim {
            inner: Arc::new(Inner {
                number: OPENED.fetch_add(1, Ordering::Relaxed),
                limits: Limits::h200(),
                machine: Mutex::default(),
                options: Mutex::new(options),
                kernels: Mutex::default(),
                last: Mutex::default(),
                map_room: Mutex::default(),
                workspaces: Workspaces::default(),
                gathering_rooms: Workspaces::default(),
                meeting_rooms: Rooms::default(),
                capturing: Mutex::default(),
            }),
        }
    }

    /// How the next kernels are run.
    #[must_use]
    pub fn options(&self) -> Options {
        lock(&self.inner.options).clone()
    }

    /// Changes how the next kernels are run.
    pub fn set_options(&self, options: Options) {
        *lock(&self.inner.options) = options;
    }

    /// What planning knows of it.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// What the last kernel that came to its end did, with its timeline where the options asked for one.
    #[must_use]
    pub fn last_report(&self) -> Option<Report> {
        lock(&self.inner.last).clone()
    }

    /// Which one it is: no two share memory.
    pub(crate) fn number(&self) -> u32 {
        self.inner.number
    }

    /// Plans a problem: the work that computes it in a stream, if there is one.
    pub(crate) fn plan(
        &self,
        key: &PlanKey,
        at: &Addresses,
        stream: Option<&SimStream>,
        programmatic: bool,
    ) -> Result<Work> {
        let plan = key.plan(&self.inner.limits.restricted_to(key.sms))?;
        let config = plan.choice.config();
        let module = self.module(&config.into())?;
        let name = config.name();
        let fault = |fault| Error::Fault { kernel: name.clone(), fault: Box::new(fault) };
        let (arguments, maps) = Arguments::new(&plan, key);
        let args = arguments.at(at, |operand, address| {
            map_spec(maps.of(operand), address).encode().map(words).map_err(fault)
        })?;
        let args = match plan.launch.room_bytes {
            0 => args,
            // As on a GPU.
            _ if stream.is_some_and(SimStream::is_captured) => args.in_room(None),
            bytes => args.in_room(Some(self.gathering_room(stream, bytes)?)),
        };
        Ok(Work::Kernel { module, launch: launch(&plan, &name, &args), programmatic })
    }

    /// So many bytes for the kernels of one call in a stream: each stream has its own, as on a GPU.
    pub(crate) fn workspace(&self, stream: Option<&SimStream>, bytes: u64) -> Result<u64> {
        self.inner.workspaces.at(SimStream::place(stream), bytes, |bytes| {
            refuse_growth(stream)?;
            Ok((self.allocate(bytes as usize)?, ()))
        })
    }

    /// So many bytes in which the blocks of a kernel gather sums or count tiles: zeros at first, then what the last kernel left there.
    pub(crate) fn gathering_room(&self, stream: Option<&SimStream>, bytes: u64) -> Result<u64> {
        self.inner.gathering_rooms.at(SimStream::place(stream), bytes, |bytes| {
            refuse_growth(stream)?;
            Ok((self.zeros(bytes)?, ()))
        })
    }

    /// The room in which the blocks of a kernel meet: zeros at first, then what the last such kernel left there. Kernels are done one after
    /// another, whatever their streams and graphs are.
    pub(crate) fn meeting_room(&self, stream: Option<&SimStream>) -> Result<Option<u64>> {
        if stream.is_some_and(SimStream::is_captured) && self.inner.meeting_rooms.address().is_none() {
            return Ok(None);
        }
        let all = Tenant { stream: 0, capture: None };
        self.inner.meeting_rooms.of(all, || Ok((self.zeros(rooms::BYTES)?, ())))
    }

    fn zeros(&self, bytes: u64) -> Result<u64> {
        let address = self.allocate(bytes as usize)?;
        self.write(std::iter::once((address, &vec![0; bytes as usize][..])))?;
        Ok(address)
    }

    /// A thread of this device begins to capture a stream.
    pub(crate) fn begin_capture(&self) {
        lock(&self.inner.capturing).push(std::thread::current().id());
    }

    /// A capture of this thread ends.
    pub(crate) fn end_capture(&self) {
        let (mut capturing, own) = (lock(&self.inner.capturing), std::thread::current().id());
        if let Some(nth) = capturing.iter().position(|thread| *thread == own) {
            capturing.swap_remove(nth);
        }
    }

    /// Refuses what the driver refuses to a thread that captures a stream.
    fn refuse_in_capture(&self, what: &str) -> Result<()> {
        if !lock(&self.inner.capturing).contains(&std::thread::current().id()) {
            return Ok(());
        }
        let reason = format!("{what} is not permitted while this thread captures a stream");
        Err(Error::Stream { reason })
    }

    /// A kernel that was stopped has not left the counters of a room as the next one expects them.
    fn clear_counters(&self) -> Result<()> {
        let zeros = [0; dynamic::ROOM_BYTES as usize];
        let gathering = self.inner.gathering_rooms.addresses().into_iter();
        let gathering = gathering.map(|room| (room, &zeros[..]));
        // One room is all that is used.
        let meeting = self.inner.meeting_rooms.address().map(|room| (room, &zeros[..ROOM_BYTES as usize]));
        self.write(gathering.chain(meeting))
    }

    /// The work that transposes.
    pub(crate) fn transpose(&self, args: &transpose::Args, programmatic: bool) -> Result<Work> {
        let (config, launch) = (KernelId::Gemm(GemmKernel::Transpose), args.launch());
        let module = self.module(&config)?;
        let params = |job: &transpose::Job| {
            let (addresses, numbers) = job.arguments();
            addresses.into_iter().map(Param::U64).chain(numbers.into_iter().map(Param::U32))
        };
        let launch = Launch {
            entry: config.name(),
            grid: [launch.grid[0], launch.grid[1], 1],
            cluster: Some([launch.cluster, 1, 1]),
            block: [launch.threads, 1, 1],
            shared_bytes: launch.shared_bytes,
            params: args.jobs.iter().flat_map(params).collect(),
        };
        Ok(Work::Kernel { module, launch, programmatic })
    }

    /// The work of a kernel that has no plan.
    pub(crate) fn work(&self, call: &Call<'_>, programmatic: bool) -> Result<Work> {
        let module = self.module(&call.kernel)?;
        let entry = call.kernel.name();
        let fault = |fault| Error::Fault { kernel: entry.clone(), fault: Box::new(fault) };
        let params = call.parameters().map_err(fault)?;
        let launch = Launch {
            entry,
            grid: [call.grid[0], call.grid[1], 1],
            cluster: Some([call.cluster, 1, 1]),
            block: [call.threads, 1, 1],
            shared_bytes: call.shared_bytes,
            params,
        };
        Ok(Work::Kernel { module, launch, programmatic })
    }

    /// Does work to the end.
    pub(crate) fn perform(&self, work: &Work) -> Result<()> {
        match work {
            Work::Kernel { module, launch, programmatic } => {
                let kernel = launch.entry.clone();
                match self.execute(Arc::clone(module), launch.clone(), *programmatic) {
                    Ok(report) => *lock(&self.inner.last) = Some(report),
                    Err(fault) => {
                        self.clear_counters()?;
                        return Err(Error::Fault { kernel, fault: Box::new(fault) });
                    }
                }
                Ok(())
            }
            Work::ClearRows { at, width, rows } => self.clear_rows(*at, *width, *rows),
            Work::CopyRows { to, from, width, rows } => self.copy_rows(*to, *from, *width, *rows),
        }
    }

    /// Runs a kernel on the threads of the simulator and waits for it, without taking up other work meanwhile.
    fn execute(
        &self,
        module: Arc<Module>,
        launch: Launch,
        programmatic: bool,
    ) -> Result<Report, oxigemm_sim::Fault> {
        let options = self.options();
        let mut machine = lock(&self.inner.machine);
        let mut taken = std::mem::take(&mut *machine);
        let (send, receive) = mpsc::sync_channel(1);
        THREADS.spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| match programmatic {
                false => taken.run(&module, &launch, &options),
                true => taken.run_dependent(&module, &launch, &options),
            }));
            // The caller waits for it; were it gone, nobody would want the result.
            let _ = send.send((taken, outcome));
        });
        let (returned, outcome) = receive.recv().expect("the task sends whatever happens");
        *machine = returned;
        drop(machine);
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// A kernel of the closed set, written and parsed once.
    pub(crate) fn module(&self, kernel: &KernelId) -> Result<Arc<Module>> {
        let mut kernels = lock(&self.inner.kernels);
        if let Some(module) = kernels.get(kernel) {
            return Ok(Arc::clone(module));
        }
        let refuse = |reason: String| Error::Kernel { name: kernel.name(), reason };
        let ptx = kernel.build().map_err(|error| refuse(error.to_string()))?;
        let module = Arc::new(Module::parse(&ptx.text).map_err(|error| refuse(error.to_string()))?);
        kernels.insert(*kernel, Arc::clone(&module));
        Ok(module)
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
        lock(&self.inner.kernels).insert(kernel, Arc::new(module));
        Ok(())
    }

    /// Room for the tensor maps that kernels make, of all who run at a time.
    pub(crate) fn map_room(&self) -> Result<u64> {
        let mut room = lock(&self.inner.map_room);
        if let Some(address) = *room {
            return Ok(address);
        }
        let address = self.zeros(MAP_ROOM_BYTES.into())?;
        *room = Some(address);
        Ok(address)
    }

    /// Memory that nothing was written to yet.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64> {
        self.refuse_in_capture("an allocation")?;
        Ok(lock(&self.inner.machine).memory.allocate(bytes))
    }

    pub(crate) fn free(&self, address: u64) {
        // The address is that of an allocation: its owner calls this once.
        let _ = lock(&self.inner.machine).memory.free(address);
    }

    /// Shows bytes to `look`.
    pub(crate) fn read<R>(&self, at: Range<u64>, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.refuse_in_capture("a read by the host")?;
        let mut machine = lock(&self.inner.machine);
        // The host and copies in the stream wait for the kernels before them.
        machine.synchronize();
        machine.memory.read(at.start, (at.end - at.start) as usize).map(look).map_err(host_access)
    }

    /// Writes pieces, each at its address.
    pub(crate) fn write<'a>(&self, pieces: impl Iterator<Item = (u64, &'a [u8])>) -> Result<()> {
        self.refuse_in_capture("a write by the host")?;
        let mut machine = lock(&self.inner.machine);
        machine.synchronize();
        for (address, piece) in pieces {
            machine.memory.write(address, piece).map_err(host_access)?;
        }
        Ok(())
    }

    /// Fills rows of `width` bytes with zeros.
    pub(crate) fn clear_rows(&self, [address, pitch]: [u64; 2], width: usize, rows: usize) -> Result<()> {
        let zeros = vec![0; width];
        self.write((0..rows as u64).map(|row| (address + row * pitch, &zeros[..])))
    }

    /// Copies rows of `width` bytes.
    pub(crate) fn copy_rows(
        &self,
        [to, to_pitch]: [u64; 2],
        [from, from_pitch]: [u64; 2],
        width: usize,
        rows: usize,
    ) -> Result<()> {
        for row in 0..rows as u64 {
            let start = from + row * from_pitch;
            let bytes = self.read(start..start + width as u64, <[u8]>::to_vec)?;
            self.write(std::iter::once((to + row * to_pitch, &bytes[..])))?;
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
        write!(f, "Sim({}, {:?})", self.inner.number, self.options())
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

fn host_access(fault: oxigemm_sim::Fault) -> Error {
    Error::Fault { kernel: "none: an access of the host".to_owned(), fault: Box::new(fault) }
}

fn map_spec(map: &Map, address: u64) -> TensorMapSpec {
    let element = match map.element {
        MapElement::Byte => Element::U8,
        MapElement::Bf16 => Element::Bf16,
        MapElement::F16 => Element::F16,
        MapElement::F32 => Element::F32,
    };
    let MatrixMap { dims, pitch, tile, .. } = map.matrix;
    let outer = map.matrix.outer();
    TensorMapSpec {
        address,
        element,
        dims: dims.into_iter().chain(outer.clone().map(|outer| outer.count)).map(u64::from).collect(),
        strides: std::iter::once(pitch)
            .chain(outer.clone().map(|outer| outer.pitch))
            .map(|pitch| pitch * element.bytes())
            .collect(),
        box_dims: tile.into_iter().chain(outer.map(|outer| outer.tile)).collect(),
        swizzle: if map.swizzled { Swizzle::B128 } else { Swizzle::None },
    }
}

fn words(map: [u8; 128]) -> [u64; 16] {
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|byte| map[8 * i + byte])))
}

fn launch(plan: &Plan, entry: &str, args: &KernelArgs) -> Launch {
    let launch = plan.launch;
    Launch {
        entry: entry.to_owned(),
        grid: [launch.grid[0], launch.grid[1], 1],
        cluster: Some([launch.cluster, 1, 1]),
        block: [launch.threads, 1, 1],
        shared_bytes: launch.shared_bytes,
        params: parameters(args),
    }
}

/// The parameters in the order of [`Args::pointers`], of [`GroupedArgs`] where rows are grouped, of [`KGroupArgs`] where groups are along K, of [`FusedArgs`] and [`FusedGroupArgs`] where sums are finished, of tiles that are shared out, and of those that are handed out.
fn parameters(args: &KernelArgs) -> Vec<Param> {
    let KernelArgs { product: args, groups, k_groups, fused, fused_groups, tail, dispatch } = args;
    let map = |map: [u64; 16]| Param::Bytes(map.iter().flat_map(|word| word.to_le_bytes()).collect());
    let maps = [args.a, args.b, args.sfa_map, args.d_map].map(map);
    let [[sfa_mn, sfa_k], [sfb_mn, sfb_k]] = [args.sfa_strides, args.sfb_strides];
    let numbers = |numbers: &[u32]| numbers.iter().copied().map(Param::U32).collect::<Vec<_>>();
    let addresses = |addresses: &[u64]| addresses.iter().copied().map(Param::U64).collect::<Vec<_>>();
    let all = [
        maps.to_vec(),
        addresses(&[args.sfa, args.sfb, args.b_rows]),
        numbers(&[args.m, args.n, args.k_blocks, args.b_pitch, sfb_mn, sfb_k, args.scale_layouts]),
        numbers(&args.tuning),
        numbers(&[args.output_flags, sfa_mn, sfa_k]),
        addresses(&[args.d, args.c]),
        numbers(&[args.d_pitch, args.c_pitch]),
    ];
    let mut all: Vec<Param> = all.into_iter().flatten().collect();
    debug_assert_eq!(all.len(), Args::COUNT);
    if let Some(GroupedArgs { groups, sfa_slab, sfb_group }) = *groups {
        all.push(Param::U64(groups.layout));
        let numbers = [groups.kind, groups.groups, groups.alignment, groups.d_slab, sfa_slab, sfb_group];
        all.extend(numbers.map(Param::U32));
        debug_assert_eq!(all.len(), Args::COUNT + GroupedArgs::COUNT);
    }
    if let Some(groups) = k_groups {
        all.extend([groups.ks, groups.map_room, groups.a, groups.b].map(Param::U64));
        let numbers = [groups.groups, groups.extent, groups.d_slab, groups.keeps_empty];
        all.extend(numbers.map(Param::U32));
    }
    if let Some(fused) = fused {
        all.extend([Param::F32(fused.alpha), Param::F32(fused.beta), Param::U64(fused.bias)]);
        all.extend([fused.flags, fused.activation].into_iter().chain(fused.heads).map(Param::U32));
        all.push(Param::U64(fused.scales));
        all.extend(fused.scale_strides.map(Param::U32));
    }
    if let Some(groups) = fused_groups {
        all.extend([groups.bias_group, groups.scales_slab].map(Param::U32));
    }
    if let Some(tail) = tail {
        all.push(Param::U64(tail.room));
        all.extend(tail.numbers().map(|number| Param::U32(*number)));
    }
    if let Some(dispatch) = dispatch {
        all.push(Param::U64(dispatch.counter));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_kernels::gemm::epilogue::fusion::{FusedArgs, FusedGroupArgs};
    use oxigemm_kernels::gemm::scheduler::dynamic::DispatchArgs;
    use oxigemm_kernels::gemm::scheduler::k_grouped::KGroupArgs;
    use oxigemm_kernels::gemm::scheduler::m_grouped::GroupArgs;
    use oxigemm_kernels::gemm::scheduler::stream_k::{Tail, TailArgs};

    /// A GPU is given pointers, the simulator values: both must mean the same parameters.
    #[test]
    fn pointers_and_values_are_the_same_parameters() {
        let map = |first: u64| std::array::from_fn(|i| first + i as u64);
        let product = Args {
            a: map(100),
            b: map(200),
            sfa_map: map(300),
            d_map: map(400),
            sfa: 1,
            sfb: 2,
            d: 3,
            c: 4,
            d_pitch: 5,
            c_pitch: 6,
            m: 7,
            n: 8,
            output_flags: 9,
            k_blocks: 10,
            sfa_strides: [11, 12],
            sfb_strides: [13, 14],
            scale_layouts: 15,
            tuning: [16, 17, 18, 47],
            b_rows: 19,
            b_pitch: 20,
        };
        let groups = GroupArgs { layout: 19, kind: 20, groups: 21, alignment: 22, d_slab: 23 };
        let groups = GroupedArgs { groups, sfa_slab: 24, sfb_group: 25 };
        let k_groups = KGroupArgs {
            ks: 26,
            map_room: 27,
            a: 28,
            b: 29,
            groups: 30,
            extent: 31,
            d_slab: 32,
            keeps_empty: 33,
        };
        let fused = FusedArgs {
            alpha: 34.0,
            beta: 35.0,
            bias: 36,
            flags: 37,
            activation: 38,
            heads: [39, 40, 41],
            scales: 42,
            scale_strides: [43, 44],
        };
        let fused_groups = Some(FusedGroupArgs { bias_group: 45, scales_slab: 46 });
        let tail = Tail { tiles: 70, helpers: 71, owners: [72, 73], help: [74, 75] };
        let tail = TailArgs { room: 69, tail };
        let none = KernelArgs {
            product,
            groups: None,
            k_groups: None,
            fused: None,
            fused_groups: None,
            tail: None,
            dispatch: None,
        };
        let each = [
            none,
            KernelArgs { groups: Some(groups), ..none },
            KernelArgs { groups: Some(groups), dispatch: Some(DispatchArgs { counter: 76 }), ..none },
            KernelArgs { k_groups: Some(k_groups), ..none },
            KernelArgs { fused: Some(fused), ..none },
            KernelArgs { tail: Some(tail), ..none },
            KernelArgs { groups: Some(groups), fused: Some(fused), fused_groups, ..none },
        ];
        for args in each {
            let (pointers, count) = args.pointers();
            let values = parameters(&args);
            assert_eq!(values.len(), count);
            for (i, (pointer, value)) in pointers.iter().zip(values).enumerate() {
                let expected = match value {
                    Param::U32(value) => value.to_le_bytes().to_vec(),
                    Param::U64(value) => value.to_le_bytes().to_vec(),
                    Param::F32(value) => value.to_le_bytes().to_vec(),
                    Param::Bytes(bytes) => bytes,
                };
                // SAFETY: a pointer to a field of `args`, which has the size of its value.
                let found = unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), expected.len()) };
                assert_eq!(found, expected, "parameter {i}");
            }
        }
    }
}
