//! A GPU together with the kernels that are loaded on it and the plans that were made for it.
//!
//! The road of a call after its checks: the plan of the problem is looked up, or made once; it holds the loaded
//! kernel, the launch and the tensor maps of the addresses that came last. A call whose every argument is as in a
//! call before takes a shorter road: it is remembered whole, so that a comparison and a launch are left.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use oxigemm_cuda::{CacheStats, CubinCache, Function, LaunchConfig, Provenance, PtxModule, Stream};
use oxigemm_kernels::launch::Config;

use crate::call::PlanKey;
use crate::error::{Error, Result};
use crate::plan::{Choice, Limits, Plan};
use crate::prepared::Prepared;
use crate::remembered::RememberedCalls;

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
    plans: RwLock<HashMap<PlanKey, Arc<Prepared>>>,
    calls: RememberedCalls,
}

/// A kernel of the closed set, loaded or not.
struct Slot {
    config: Config,
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
                kernels: Config::all().map(|config| Slot { config, state: Mutex::default() }).collect(),
                plans: RwLock::default(),
                calls: RememberedCalls::default(),
            }),
        })
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
    pub fn load(&self, config: &Config) -> Result<Loaded> {
        Ok(self.slot(config)?.load(&self.inner)?.loaded)
    }

    /// The calls that are remembered whole.
    pub(crate) fn calls(&self) -> &RememberedCalls {
        &self.inner.calls
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
        let slot = self.slot(&plan.choice.config())?;
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

    fn slot(&self, config: &Config) -> Result<&Slot> {
        self.inner.kernels.iter().find(|slot| slot.config == *config).ok_or_else(|| Error::Kernel {
            name: config.name(),
            reason: "it is not in the closed set".to_owned(),
        })
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, inner: &Inner) -> Result<Kernel> {
        let mut state = self.lock();
        if let Some(kernel) = &state.kernel {
            return Ok(kernel.clone());
        }
        let started = std::time::Instant::now();
        let name = self.config.name();
        let ptx = self
            .config
            .build()
            .map_err(|error| Error::Kernel { name: name.clone(), reason: error.to_string() })?;
        let module = inner.gpu.load(&inner.cache, &PtxModule { name: &name, text: &ptx.text, arch: ARCH })?;
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
        if matches!(plan.choice, Choice::Slim { .. } | Choice::HalfSlim { .. }) {
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
