//! Plan cache: the prepared plans of a device, by problem.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use oxigemm_cuda::CacheStats;

use super::args::PlanKey;
use super::prepared::{Prepared, geometry};
use crate::device::Cuda;
use crate::device::backend::Backend;
use crate::error::Result;

/// Plans are dropped when there are this many: a server may see every number of rows there is.
const MAX_PLANS: usize = 4096;

/// The plans of a device.
pub(crate) struct PlanCache<B: Backend> {
    plans: RwLock<HashMap<PlanKey, Arc<Prepared<B>>>>,
}

impl<B: Backend> Default for PlanCache<B> {
    fn default() -> Self {
        PlanCache { plans: RwLock::default() }
    }
}

impl<B: Backend> PlanCache<B> {
    fn len(&self) -> usize {
        self.plans.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The plan of a problem: cached, or made now.
#[inline]
pub(crate) fn prepared<B: Backend>(backend: &B, key: &PlanKey) -> Result<Arc<Prepared<B>>> {
    let cache: &PlanCache<B> = backend.extensions().get();
    let plans = cache.plans.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = plans.get(key) {
        return Ok(Arc::clone(found));
    }
    drop(plans);
    prepare(backend, cache, key)
}

#[cold]
fn prepare<B: Backend>(backend: &B, cache: &PlanCache<B>, key: &PlanKey) -> Result<Arc<Prepared<B>>> {
    let limits = backend.limits().restricted_to(key.sms);
    let mut plan = key.plan(&limits)?;
    let id = plan.config.kernel.into();
    let kernel = backend.load_kernel(&id)?;
    // The grids of the other kernels do not depend on how many clusters are resident.
    let persistent = !plan.config.is_split_k();
    let resident = if persistent { backend.resident_clusters(&id, &geometry(&plan.launch))? } else { None };
    if let Some(resident) = resident {
        let allowed = if limits.restricted { limits.sms / plan.launch.cluster } else { u32::MAX };
        plan.set_concurrent(resident.min(allowed).max(1));
    }
    let prepared = Arc::new(Prepared::new(&plan, kernel, key));
    let mut plans = cache.plans.write().unwrap_or_else(PoisonError::into_inner);
    if plans.len() >= MAX_PLANS {
        plans.clear();
    }
    // Another thread may have been faster; its tensor maps are as good.
    Ok(Arc::clone(plans.entry(*key).or_insert(prepared)))
}

/// What a device has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Kernels that are loaded.
    pub kernels: usize,
    /// Plans in the plan cache.
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
    /// What it has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let plans: &PlanCache<Cuda> = self.extensions().get();
        Stats { kernels: self.loaded().len(), plans: plans.len(), cache: self.cache_stats() }
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({:?}, {:?})", self.gpu(), self.stats())
    }
}
