//! The closed set of kernels on a GPU, loaded or not.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oxigemm_cuda::{CacheStats, CubinCache, Function, LaunchConfig, Provenance, PtxModule};
use oxigemm_kernels::{KernelId, Target};

use crate::device::launch::Geometry;
use crate::device::limits::Limits;
use crate::error::{Error, Result};

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

/// The kernels of a GPU.
pub(super) struct Kernels {
    gpu: oxigemm_cuda::Device,
    cache: CubinCache,
    /// What kernels are assembled for.
    target: Target,
    /// Bytes of shared memory that a block may have.
    shared_per_block: u32,
    slots: Vec<Slot>,
    /// Where each kernel is among the slots.
    index: HashMap<KernelId, usize>,
}

struct Slot {
    id: KernelId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kernel: Option<Kernel>,
    /// How many clusters are resident at a time, by the blocks of a cluster, as far as was asked.
    resident: Vec<(u32, u32)>,
}

#[derive(Clone)]
struct Kernel {
    function: Function,
    loaded: Loaded,
}

impl Kernels {
    pub fn new(gpu: oxigemm_cuda::Device, cache: CubinCache, limits: &Limits) -> Kernels {
        let target = limits.arch.target_of(gpu.compute_capability()).unwrap_or(limits.arch.target());
        Kernels {
            gpu,
            target,
            cache,
            shared_per_block: limits.shared_per_block,
            slots: KernelId::all(limits.arch).map(|id| Slot { id, state: Mutex::default() }).collect(),
            index: KernelId::all(limits.arch).zip(0..).collect(),
        }
    }

    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    pub fn loaded(&self) -> Vec<Loaded> {
        let kernel = |slot: &Slot| slot.lock().kernel.as_ref().map(|kernel| kernel.loaded.clone());
        self.slots.iter().filter_map(kernel).collect()
    }

    pub fn load_all(&self) -> Result<()> {
        self.slots.iter().try_for_each(|slot| slot.load(self).map(drop))
    }

    pub fn load(&self, kernel: &KernelId) -> Result<Loaded> {
        Ok(self.slot(kernel)?.load(self)?.loaded)
    }

    /// The loaded function; once it is, without any allocation.
    pub fn function(&self, kernel: &KernelId) -> Result<Function> {
        let slot = self.slot(kernel)?;
        if let Some(kernel) = &slot.lock().kernel {
            return Ok(kernel.function.clone());
        }
        Ok(slot.load(self)?.function)
    }

    /// How many clusters of a kernel are resident at a time. It is asked for persistent grids, whose shared memory
    /// leaves an SM to one block.
    pub fn resident_clusters(&self, kernel: &KernelId, geometry: &Geometry) -> Result<u32> {
        let slot = self.slot(kernel)?;
        let function = slot.load(self)?.function;
        let cluster = geometry.cluster;
        let mut state = slot.lock();
        if let Some((_, count)) = state.resident.iter().find(|(blocks, _)| *blocks == cluster) {
            return Ok(*count);
        }
        let config = LaunchConfig { grid: [cluster, 1, 1], ..geometry.config(false) };
        let count = function.max_active_clusters(&config)?;
        state.resident.push((cluster, count));
        Ok(count)
    }

    fn slot(&self, kernel: &KernelId) -> Result<&Slot> {
        let index = self.index.get(kernel);
        index.map(|index| &self.slots[*index]).ok_or_else(|| Error::Kernel {
            name: kernel.name(),
            reason: "it is not in the closed set for this GPU".to_owned(),
        })
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, kernels: &Kernels) -> Result<Kernel> {
        let mut state = self.lock();
        if let Some(kernel) = &state.kernel {
            return Ok(kernel.clone());
        }
        let started = Instant::now();
        let name = self.id.name();
        let text = self
            .id
            .code_text_for(kernels.target)
            .map_err(|error| Error::Kernel { name: name.clone(), reason: error.to_string() })?;
        let arch = kernels.target.name();
        let module = kernels.gpu.load(&kernels.cache, &PtxModule { name: &name, text: &text, arch })?;
        let function = module.function(&name)?;
        let attributes = function.attributes();
        function.allow_dynamic_shared(kernels.shared_per_block - attributes.shared_bytes)?;
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
}
