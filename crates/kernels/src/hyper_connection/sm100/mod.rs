//! Blackwell kernel of the hyper-connection pre-norm GEMM, on `tcgen05` with TF32 operands.
//!
//! ```text
//!  producer --full--> cast warps --cast--> MMA --computed--> cast warps
//!     ^                                     |
//!     +---------------empty-----------------+
//! ```
//!
//! - producer (`producer.rs`): one thread loads X and W by TMA;
//! - cast (`cast.rs`): four warps, a thread for each row. They widen X from BF16, which TF32 has exactly, into tensor
//!   memory, add its squares, and round W to TF32 where it is;
//! - MMA (`mma.rs`): one thread multiplies X in tensor memory by W in shared memory;
//! - epilogue (`epilogue.rs`): the cast warps again, each thread with a row of D.
//!
//! CTAs that have parts of the same output [reduce](crate::common::workspace_reduce) them in the workspace.

mod cast;
mod config;
mod epilogue;
mod mma;
mod producer;

pub use config::{Config, THREADS};

use crate::common::pipeline::Pipeline;
use crate::hyper_connection::BLOCK_K;
use crate::hyper_connection::params::Params;
use crate::hyper_connection::scheduler::Scheduler;
use config::{ALLOCATED_COLUMNS, CAST_WARPS, MMA_WARP, PRODUCER_WARP, STAGES, SharedMap};
use oxigemm_ptx::tcgen05::{CtaGroup, TensorMemory};
use oxigemm_ptx::{BuildError, Kernel, MBarrier, Module, Shared, Target, U32};

/// CTA of this kernel: what every role works with.
struct Cta<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    map: SharedMap,
    shared: Shared<'k>,
    scheduler: Scheduler<'k>,
    /// Full when TMA has loaded a stage, empty when the tensor core has read it.
    pipeline: Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl Config {
    /// Builds the kernel.
    pub fn build(&self, name: &str) -> Result<Module, BuildError> {
        let k = Kernel::new(name, Target::Sm100a).threads(THREADS);
        write(&k, self);
        k.finish()
    }
}

fn write(k: &Kernel, cfg: &Config) {
    let params = Params::declare(k, "");
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);
    let pipeline = Pipeline::new(k, shared.at(map.barriers), STAGES, STAGES);
    let (warp, lane) = (k.warp_index(), k.lane());
    let cta = Cta { k, cfg, map, shared, scheduler: Scheduler::new(k, params), pipeline, warp, lane };
    let memory = cta.start();
    k.if_(warp.lt(CAST_WARPS), || k.role("cast", || cta.cast(memory)));
    k.if_(warp.eq(PRODUCER_WARP), || k.if_(k.elect(), || k.role("producer", || cta.load())));
    k.if_(warp.eq(MMA_WARP), || k.if_(k.elect(), || k.role("mma", || cta.multiply(memory))));
    cta.end(memory);
}

impl<'k> Cta<'k, '_> {
    /// Initializes barriers, allocates tensor memory and waits for the kernels before this one.
    fn start(&self) -> TensorMemory<'k> {
        let (k, p) = (self.k, &self.scheduler.params);
        let allocation = self.shared.at(self.map.allocation);
        k.if_(self.warp.eq(PRODUCER_WARP), || {
            k.if_(self.lane.eq(0), || {
                p.x.prefetch();
                p.w.prefetch();
                self.pipeline.init(1, 1);
                (0..STAGES).for_each(|stage| self.cast_barrier(k.constant(stage)).init(CAST_WARPS));
                self.computed().init(1u32);
                k.fence_barrier_init();
            });
            k.sync_warp();
        });
        k.if_(self.warp.eq(MMA_WARP), || {
            k.tensor_memory_alloc(CtaGroup::One, allocation, ALLOCATED_COLUMNS);
            k.tensor_memory_relinquish(CtaGroup::One);
            k.tcgen05_fence_before();
        });
        k.sync_threads();
        k.tcgen05_fence_after();
        k.grid_dependency_wait();
        TensorMemory::at(allocation.load())
    }

    /// Frees tensor memory when all roles are done with it.
    fn end(&self, memory: TensorMemory<'k>) {
        let k = self.k;
        k.sync_warp();
        k.tcgen05_fence_before();
        k.sync_threads();
        k.if_(self.warp.eq(MMA_WARP), || {
            k.tcgen05_fence_after();
            k.tensor_memory_dealloc(CtaGroup::One, memory, ALLOCATED_COLUMNS);
        });
    }

    /// X of a stage, in shared memory.
    fn x(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.x).at(stage * self.cfg.x_bytes())
    }

    /// The same in tensor memory, a column for each of K.
    fn x_in_tensor_memory(&self, memory: TensorMemory<'k>, stage: U32<'k>) -> TensorMemory<'k> {
        memory.column(stage * BLOCK_K + self.cfg.x_column())
    }

    /// W of a stage: boxes of 32 of K.
    fn w(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.w).at(stage * self.cfg.w_bytes())
    }

    /// Barrier whose phase ends when all cast warps are done with a stage.
    fn cast_barrier(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.shared.at(self.map.cast).at(stage * MBarrier::BYTES))
    }

    /// Barrier whose phase ends when the accumulators of an output unit are computed.
    fn computed(&self) -> MBarrier<'k> {
        MBarrier(self.shared.at(self.map.computed))
    }
}
