//! A GPU together with the kernels that are loaded on it and the plans that were made for it.
//!
//! The road of a call after its checks: the plan of the problem is looked up, or made once; it holds the loaded
//! kernel, the launch and the tensor maps of the addresses that came last. A call whose every argument is as in a
//! call before takes a shorter road: it is remembered whole, so that a comparison and a launch are left.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use oxigemm_cuda::{Buffer, CacheStats, CubinCache, Function, LaunchConfig, Provenance, PtxModule, Stream};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::gemm::launch::GemmKernel;
use oxigemm_kernels::gemm::scheduler::k_grouped::MAP_ROOM_BYTES;
use oxigemm_kernels::gemm::transpose;

use super::limits::Limits;
use super::workspace::Workspaces;
use super::workspace::grid_barrier::{self as rooms, Rooms, Tenant};
use super::workspace::stream_key::{self as stream_places, StreamPlaces};
use crate::error::{Error, Result};
use crate::gemm::LaunchCache;
use crate::launch::args::PlanKey;
use crate::launch::direct::Call;
use crate::launch::prepared::Prepared;
use crate::plan::{GemmConfig, Plan};

/// The architecture that the kernels are written for.
pub const ARCH: &str = "sm_90a";

/// Plans are forgotten when there are this many: a server may see every number of rows there is.
const MAX_PLANS: usize = 4096;

/// A GPU with its kernels and plans. Clones are cheap and share them.
///
/// ```no_run
/// use oxigemm::Cuda;
///
/// let cuda = Cuda::open(0)?;
/// cuda.load_all()?; // so that no later call has to load a kernel
/// println!("{:?}", cuda.stats());
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone)]
pub struct Cuda {
    inner: Arc<Inner>,
}

struct Inner {
    gpu: oxigemm_cuda::Device,
    default_stream: Stream,
    cache: CubinCache,
    limits: Limits,
    kernels: Vec<Slot>,
    /// Where each kernel is among them.
    places: HashMap<KernelId, usize>,
    plans: RwLock<HashMap<PlanKey, Arc<Prepared>>>,
    streams: StreamPlaces,
    workspaces: Workspaces<Buffer>,
    gathering_rooms: Workspaces<Buffer>,
    meeting_rooms: Rooms<Buffer>,
    calls: LaunchCache,
    /// Room for the tensor maps that kernels make, once there is a kernel that does.
    map_room: OnceLock<Buffer>,
}

/// A kernel of the closed set, loaded or not.
struct Slot {
    member: KernelId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kernel: Option<Kernel>,
    /// How many clusters run at a time, by the blocks of a cluster, as far as was asked.
    resident: Vec<(u32, u32)>,
}

#[derive(Clone)]
struct Kernel {
    function: Function,
    loaded: Loaded,
}

/// How a kernel came to be loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The kernel's name.
    pub name: String,
    /// Where its code came from.
    pub provenance: Provenance,
    /// How long it took, from writing the PTX to the loaded function.
    pub time: Duration,
    /// Registers per thread.
    pub registers: u32,
    /// Local memory per thread: anything but 0 means spills.
    pub local_bytes: u32,
}

/// What a device has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Kernels that are loaded.
    pub kernels: usize,
    /// Plans that are remembered.
    pub plans: usize,
    /// What the cubin cache did.
    pub cache: CacheStats,
}

impl Stats {
    /// How many kernels were compiled, by `ptxas` or by the driver.
    #[must_use]
    pub fn compilations(&self) -> u64 {
        self.cache.compiled_by_ptxas + self.cache.compiled_by_driver
    }
}

impl Cuda {
    /// Opens a GPU, with the user's cache of cubins.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn open(ordinal: usize) -> Result<Cuda> {
        Cuda::with_cache(ordinal, CubinCache::user_default())
    }

    /// Opens a GPU, with a given cache of cubins.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn with_cache(ordinal: usize, cache: CubinCache) -> Result<Cuda> {
        let gpu = oxigemm_cuda::Device::open(ordinal)?;
        Ok(Cuda {
            inner: Arc::new(Inner {
                default_stream: gpu.default_stream(),
                limits: Limits::hopper(gpu.sm_count(), gpu.max_shared_per_block()),
                gpu,
                cache,
                kernels: KernelId::all().map(|member| Slot { member, state: Mutex::default() }).collect(),
                places: KernelId::all().zip(0..).collect(),
                plans: RwLock::default(),
                streams: StreamPlaces::default(),
                workspaces: Workspaces::default(),
                gathering_rooms: Workspaces::default(),
                meeting_rooms: Rooms::default(),
                calls: LaunchCache::default(),
                map_room: OnceLock::new(),
            }),
        })
    }

    /// The address of room for the tensor maps that kernels make, of all who run at a time.
    pub(crate) fn map_room(&self, stream: &Stream) -> Result<u64> {
        if let Some(room) = self.inner.map_room.get() {
            return Ok(room.ptr());
        }
        let mut room = self.alloc_for(stream, MAP_ROOM_BYTES.into())?;
        room.fill_u8(0)?;
        // Another thread may have been faster; nothing has used this one yet.
        Ok(self.inner.map_room.get_or_init(|| room).ptr())
    }

    /// The GPU itself.
    #[must_use]
    pub fn gpu(&self) -> &oxigemm_cuda::Device {
        &self.inner.gpu
    }

    /// Whether the kernels run on it.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.gpu().supports(ARCH)
    }

    /// What planning knows of it.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The default stream.
    #[must_use]
    pub fn default_stream(&self) -> &Stream {
        &self.inner.default_stream
    }

    /// A stream of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new_stream(&self) -> Result<Stream> {
        Ok(self.gpu().new_stream()?)
    }

    /// A stream that another library owns, such as torch's current stream.
    ///
    /// # Safety
    /// `raw` must be a `CUstream` (or `cudaStream_t`) of this GPU's primary context, and must stay alive as long as
    /// the result or a clone of it is used.
    #[must_use]
    pub unsafe fn stream_from_raw(&self, raw: *mut c_void) -> Stream {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.gpu().stream_from_raw(raw) }
    }

    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            kernels: self.loaded().len(),
            plans: self.inner.plans.read().unwrap_or_else(PoisonError::into_inner).len(),
            cache: self.inner.cache.stats(),
        }
    }

    /// The kernels that are loaded, and how they came.
    #[must_use]
    pub fn loaded(&self) -> Vec<Loaded> {
        let kernels = self.inner.kernels.iter();
        kernels.filter_map(|slot| slot.lock().kernel.as_ref().map(|kernel| kernel.loaded.clone())).collect()
    }

    /// Loads the whole closed set, so that no later call has to.
    ///
    /// # Errors
    /// If a kernel cannot be assembled or loaded.
    pub fn load_all(&self) -> Result<()> {
        self.inner.kernels.iter().try_for_each(|slot| slot.load(&self.inner).map(drop))
    }

    /// Loads one kernel of the closed set, if it is not loaded yet, and says how it came.
    ///
    /// # Errors
    /// If it cannot be assembled or loaded, or is not of the set.
    pub fn load(&self, kernel: impl Into<KernelId>) -> Result<Loaded> {
        Ok(self.slot(&kernel.into())?.load(&self.inner)?.loaded)
    }

    /// The calls that are remembered whole.
    pub(crate) fn calls(&self) -> &LaunchCache {
        &self.inner.calls
    }

    /// The function of a kernel, which is loaded if it is not yet.
    pub(crate) fn function(&self, kernel: &KernelId) -> Result<Function> {
        self.slot(kernel)?.function(&self.inner)
    }

    /// Puts a kernel into a stream.
    ///
    /// # Safety
    /// The arguments must be the parameters of the kernel, in order, and what they point to be as the kernel expects it
    /// until it is done or, where the stream is being captured, whenever the graph is launched.
    pub(crate) unsafe fn launch(&self, call: &Call<'_>, stream: &Stream, programmatic: bool) -> Result<()> {
        let function = self.function(&call.kernel)?;
        call.with_pointers(|pointers| {
            // SAFETY: the caller keeps the same contract; the pointers live for the call.
            unsafe { function.launch(stream, &call.config(programmatic), pointers)? };
            Ok(())
        })
    }

    /// The plan of a problem: remembered, or made now.
    #[inline]
    pub(crate) fn prepared(&self, key: &PlanKey) -> Result<Arc<Prepared>> {
        let plans = self.inner.plans.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = plans.get(key) {
            return Ok(Arc::clone(found));
        }
        drop(plans);
        self.prepare(key)
    }

    #[cold]
    fn prepare(&self, key: &PlanKey) -> Result<Arc<Prepared>> {
        let limits = self.limits().restricted_to(key.sms);
        let mut plan = key.plan(&limits)?;
        let slot = self.slot(&plan.choice.config().into())?;
        let kernel = slot.load(&self.inner)?;
        let resident = slot.resident(&kernel.function, &plan)?;
        let cluster = plan.launch.cluster;
        let allowed = if limits.restricted { limits.sms / cluster } else { u32::MAX };
        plan.set_concurrent(resident.min(allowed).max(1));
        let prepared = Arc::new(Prepared::new(&plan, kernel.function, key));
        let mut plans = self.inner.plans.write().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        // Another thread may have been faster; its tensor maps are as good.
        Ok(Arc::clone(plans.entry(*key).or_insert(prepared)))
    }

    /// So many bytes for the kernels of one call in a stream.
    pub(crate) fn workspace(&self, stream: &Stream, bytes: u64) -> Result<u64> {
        self.inner.workspaces.at(self.inner.streams.of(stream)?, bytes, |bytes| {
            let buffer = self.alloc_for(stream, bytes)?;
            Ok((buffer.ptr(), buffer))
        })
    }

    /// So many bytes in which the blocks of a kernel gather sums or count tiles: zeros at first, then what the last kernel of the stream
    /// left there.
    pub(crate) fn gathering_room(&self, stream: &Stream, bytes: u64) -> Result<u64> {
        self.inner.gathering_rooms.at(self.inner.streams.of(stream)?, bytes, |bytes| {
            let mut buffer = self.alloc_for(stream, bytes)?;
            buffer.fill_u8(0)?;
            Ok((buffer.ptr(), buffer))
        })
    }

    /// The room in which the blocks of a kernel meet, if there is one for this stream, or for what is captured of it: zeros at first, then
    /// what the last such kernel left there.
    pub(crate) fn meeting_room(&self, stream: &Stream) -> Result<Option<u64>> {
        let capture = stream.capture_id()?;
        // Nobody had the room of a capture before.
        let place =
            if capture.is_some() { stream_places::place(stream) } else { self.inner.streams.of(stream)? };
        let tenant = Tenant { stream: place, capture };
        self.inner.meeting_rooms.of(tenant, || {
            let mut buffer = self.alloc_for(stream, rooms::BYTES)?;
            buffer.fill_u8(0)?;
            Ok((buffer.ptr(), buffer))
        })
    }

    fn alloc_for(&self, stream: &Stream, bytes: u64) -> Result<Buffer> {
        if stream.is_capturing()? {
            return Err(Error::workspace_in_capture());
        }
        Ok(self.gpu().alloc(bytes as usize)?)
    }

    /// Puts a transposition into a stream.
    ///
    /// # Safety
    /// What is transposed must be memory of this GPU as described, until the kernel is done or, where the stream is being
    /// captured, whenever the graph is launched.
    pub(crate) unsafe fn transpose(
        &self,
        args: &transpose::Args,
        stream: &Stream,
        programmatic: bool,
    ) -> Result<()> {
        let function = self.function(&KernelId::Gemm(GemmKernel::Transpose))?;
        let launch = args.launch();
        let config = LaunchConfig {
            grid: [launch.grid[0], launch.grid[1], 1],
            block: [launch.threads, 1, 1],
            cluster: [launch.cluster, 1, 1],
            shared_bytes: launch.shared_bytes,
            programmatic,
            cooperative: false,
        };
        // SAFETY: these are the parameters of the kernel, in order, and live for the call; the caller keeps the memory.
        unsafe { function.launch(stream, &config, &args.pointers())? };
        Ok(())
    }

    fn slot(&self, kernel: &KernelId) -> Result<&Slot> {
        let place = self.inner.places.get(kernel);
        place.map(|place| &self.inner.kernels[*place]).ok_or_else(|| Error::Kernel {
            name: kernel.name(),
            reason: "it is not in the closed set".to_owned(),
        })
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loaded function; once it is, without any allocation.
    fn function(&self, inner: &Inner) -> Result<Function> {
        if let Some(kernel) = &self.lock().kernel {
            return Ok(kernel.function.clone());
        }
        Ok(self.load(inner)?.function)
    }

    fn load(&self, inner: &Inner) -> Result<Kernel> {
        let mut state = self.lock();
        if let Some(kernel) = &state.kernel {
            return Ok(kernel.clone());
        }
        let started = std::time::Instant::now();
        let name = self.member.name();
        let text = self
            .member
            .code_text()
            .map_err(|error| Error::Kernel { name: name.clone(), reason: error.to_string() })?;
        let module = inner.gpu.load(&inner.cache, &PtxModule { name: &name, text: &text, arch: ARCH })?;
        let function = module.function(&name)?;
        let attributes = function.attributes();
        function.allow_dynamic_shared(inner.limits.shared_per_block - attributes.shared_bytes)?;
        let loaded = Loaded {
            name,
            provenance: module.provenance(),
            time: started.elapsed(),
            registers: attributes.registers,
            local_bytes: attributes.local_bytes,
        };
        let kernel = Kernel { function, loaded };
        state.kernel = Some(kernel.clone());
        Ok(kernel)
    }

    /// How many clusters of this plan run at a time. Only persistent grids ask; their shared memory leaves room for no
    /// second block.
    fn resident(&self, function: &Function, plan: &Plan) -> Result<u32> {
        let cluster = plan.launch.cluster;
        if matches!(plan.choice, GemmConfig::Slim { .. } | GemmConfig::HalfSlim { .. }) {
            return Ok(1);
        }
        let mut state = self.lock();
        if let Some((_, count)) = state.resident.iter().find(|(blocks, _)| *blocks == cluster) {
            return Ok(*count);
        }
        let count = function.max_active_clusters(&LaunchConfig {
            grid: [cluster, 1, 1],
            block: [plan.launch.threads, 1, 1],
            cluster: [cluster, 1, 1],
            shared_bytes: plan.launch.shared_bytes,
            programmatic: false,
            cooperative: false,
        })?;
        state.resident.push((cluster, count));
        Ok(count)
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({:?}, {:?})", self.gpu(), self.stats())
    }
}
