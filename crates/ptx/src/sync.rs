//! Barriers, fences and grid dependencies (PTX manual, "Parallel Synchronization and Communication Instructions").

use crate::kernel::Kernel;
use crate::memory::Scope;
use crate::target::Needs;
use crate::value::{Arg, U32};

impl Kernel {
    /// Waits for every thread of the block.
    #[track_caller]
    pub fn sync_threads(&self) {
        self.op(format_args!("barrier.sync.aligned 0;"));
    }

    /// Waits at named barrier `id` (0 to 15) for `threads` threads, whole warps of them.
    #[track_caller]
    pub fn barrier_sync<'k>(&'k self, id: impl Arg<'k, u32>, threads: u32) {
        let id = self.barrier_id(id.val(self), threads);
        self.op(format_args!("barrier.sync.aligned {id}, {threads};"));
    }

    /// Arrives at named barrier `id` without waiting.
    #[track_caller]
    pub fn barrier_arrive<'k>(&'k self, id: impl Arg<'k, u32>, threads: u32) {
        let id = self.barrier_id(id.val(self), threads);
        self.op(format_args!("barrier.arrive.aligned {id}, {threads};"));
    }

    #[track_caller]
    fn barrier_id(&self, id: U32<'_>, threads: u32) -> String {
        self.require(threads.is_multiple_of(32) && threads > 0, || {
            format!("a named barrier counts whole warps, not {threads} threads")
        });
        self.require(id.as_constant().is_none_or(|id| id < 16), || {
            format!("named barriers are 0 to 15, not {id:?}")
        });
        id.operand().to_string()
    }

    /// Arrives at the cluster's barrier; what was written before is released to the cluster.
    #[track_caller]
    pub fn cluster_arrive(&self) {
        self.emit(Needs::SM90, format_args!("barrier.cluster.arrive.release.aligned;"));
    }

    /// Arrives at the cluster's barrier without ordering memory.
    #[track_caller]
    pub fn cluster_arrive_relaxed(&self) {
        self.emit(Needs::SM90, format_args!("barrier.cluster.arrive.relaxed.aligned;"));
    }

    /// Waits for every thread of the cluster to arrive.
    #[track_caller]
    pub fn cluster_wait(&self) {
        self.emit(Needs::SM90, format_args!("barrier.cluster.wait.acquire.aligned;"));
    }

    /// Arrives and waits.
    #[track_caller]
    pub fn cluster_sync(&self) {
        self.cluster_arrive();
        self.cluster_wait();
    }

    /// Makes freshly initialized barriers visible to the cluster and to TMA.
    #[track_caller]
    pub fn fence_barrier_init(&self) {
        self.emit(Needs::SM90, format_args!("fence.mbarrier_init.release.cluster;"));
    }

    /// Orders this thread's ordinary accesses to shared memory before later ones by the tensor cores and TMA.
    #[track_caller]
    pub fn fence_async_shared(&self) {
        self.emit(Needs::SM90, format_args!("fence.proxy.async.shared::cta;"));
    }

    /// The same for every state space.
    #[track_caller]
    pub fn fence_async(&self) {
        self.emit(Needs::SM90, format_args!("fence.proxy.async;"));
    }

    /// Releases changed tensor maps in global memory to the TMA units of the device.
    #[track_caller]
    pub fn fence_tensor_maps_release(&self) {
        self.emit(Needs::from_sm(90, 8, 3), format_args!("fence.proxy.tensormap::generic.release.gpu;"));
    }

    /// A fence that orders everything before it with everything after it, in this scope.
    #[track_caller]
    pub fn fence(&self, scope: Scope) {
        self.emit(scope.needs(), format_args!("fence.acq_rel.{};", scope.name()));
    }

    /// Waits until the grids this one depends on have finished and their memory is visible.
    #[track_caller]
    pub fn grid_dependency_wait(&self) {
        self.emit(Needs::from_sm(90, 7, 8), format_args!("griddepcontrol.wait;"));
    }

    /// Suspends the thread for about so many nanoseconds, a million at most: between none and twice as many.
    #[track_caller]
    pub fn sleep(&self, nanoseconds: u32) {
        const LONGEST: u32 = 1_000_000;
        self.require(nanoseconds <= LONGEST, || format!("{nanoseconds} ns are more than {LONGEST}"));
        self.emit(Needs::from_sm(70, 6, 3), format_args!("nanosleep.u32 {nanoseconds};"));
    }

    /// Lets the grids that depend on this one start.
    #[track_caller]
    pub fn launch_dependents(&self) {
        self.emit(Needs::from_sm(90, 7, 8), format_args!("griddepcontrol.launch_dependents;"));
    }
}
