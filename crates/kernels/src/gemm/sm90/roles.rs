//! Roles of a persistent, warp-specialized block: what the FP8 and the 16-bit kernels share.
//!
//! Two consumer warpgroups multiply. The warps behind them serve them: a producer loads operand tiles, a scale producer
//! loads scales where there are some, and store threads have TMA store what the consumers have staged. Producers give
//! registers to the consumers. The block has a ring of operand stages, and a staging area for each consumer warpgroup.

use crate::common::pipeline::Pipeline;
use crate::gemm::epilogue::fusion::{EpilogueParams, GroupedEpilogueParams};
use crate::gemm::params::Params;
use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::TileScheduler;
use crate::gemm::scheduler::k_grouped::KGroups;
use crate::gemm::scheduler::m_grouped::MGroupedParams;
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS};
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{Kernel, Pred, Shared, U32};

/// Warp of the producer: the first behind the consumers.
pub(crate) const PRODUCER_WARP: u32 = MATH_WARPS;

/// Persistent block: what every role works with.
#[derive(Clone, Copy)]
pub(crate) struct PersistentBlock<'k> {
    pub k: &'k Kernel,
    pub params: Params<'k>,
    pub m_groups: Option<MGroupedParams<'k>>,
    pub k_groups: Option<KGroups<'k>>,
    pub epilogue: Option<EpilogueParams<'k>>,
    pub grouped_epilogue: Option<GroupedEpilogueParams<'k>>,
    pub shared: Shared<'k>,
    pub scheduler: TileScheduler<'k>,
    /// Operand stages.
    pub pipe: Pipeline<'k>,
    /// Staging areas of the consumer warpgroups, each a stage of a ring: `full` when it holds output to be stored.
    pub staged: Pipeline<'k>,
    pub warp: U32<'k>,
    pub lane: U32<'k>,
}

impl<'k> PersistentBlock<'k> {
    /// The block, with the barriers of so many operand stages and those of the staging areas at these offsets.
    pub fn new(
        k: &'k Kernel,
        params: PersistentParams<'k>,
        scheduler: TileScheduler<'k>,
        shared: Shared<'k>,
        (stages, barriers, staged_barriers): (u32, u32, u32),
    ) -> Self {
        let PersistentParams { gemm, m_groups, k_groups, epilogue, grouped_epilogue } = params;
        let (warp, lane) = (k.warp_index(), k.lane());
        PersistentBlock {
            k,
            params: gemm,
            m_groups,
            k_groups,
            epilogue,
            grouped_epilogue,
            shared,
            scheduler,
            pipe: Pipeline::new(k, shared.at(barriers), stages, stages),
            staged: Pipeline::new(k, shared.at(staged_barriers), MATH_WARPGROUPS, MATH_WARPGROUPS),
            warp,
            lane,
        }
    }

    /// Initializes the barriers by `init`, in one thread, which also prefetches tensor maps.
    pub fn init_barriers(&self, maps: &[TensorMap<'k>], init: impl FnOnce()) {
        let k = self.k;
        k.if_(self.warp.eq(PRODUCER_WARP), || {
            k.if_(self.lane.eq(0), || {
                maps.iter().for_each(|map| map.prefetch());
                init();
                k.fence_barrier_init();
            });
            k.sync_warp();
        });
    }

    /// Initializes the barriers of the operand stages, at which so many arrive to fill one.
    pub fn init_stages(&self, full_arrivals: u32) {
        self.pipe.init(full_arrivals, self.scheduler.cluster.stage_writers() * MATH_WARPS);
    }

    /// Initializes the barriers of the staging areas.
    pub fn init_staged(&self) {
        self.staged.init(MATH_WARPS / MATH_WARPGROUPS, 1);
    }

    /// Waits until this block may start: the barriers exist, the kernels before it are done and the group table is
    /// built. All `threads` threads of the block take part.
    pub fn start(&self, threads: u32) {
        let k = self.k;
        if !self.scheduler.has_tables() {
            self.sync_cluster(threads);
            return k.grid_dependency_wait();
        }
        // To build the table takes longer than the cluster takes to arrive.
        k.cluster_arrive();
        k.grid_dependency_wait();
        self.scheduler.build_tables(threads);
        k.cluster_wait();
    }

    /// Waits until the barriers exist that tiles are loaded with. A block that is alone in its cluster waits for its
    /// own, and its producer warp, which has initialized them, for nobody; others wait for the whole cluster.
    fn sync_cluster(&self, threads: u32) {
        let (k, is_producer) = (self.k, self.warp.eq(PRODUCER_WARP));
        k.if_else(
            self.scheduler.cluster.stage_writers().eq(1),
            || k.if_else(is_producer, || k.barrier_arrive(0, threads), || k.barrier_sync(0, threads)),
            || k.cluster_sync(),
        );
    }

    /// Runs the roles. Consumers and the other warps have these registers.
    pub fn run<'r>(
        &self,
        [consumer_registers, producer_registers]: [u32; 2],
        roles: impl IntoIterator<Item = Role<'r, 'k>>,
        consumer: impl FnOnce(),
    ) {
        let k = self.k;
        k.if_else(
            self.warp.ge(PRODUCER_WARP),
            || {
                k.registers_down(producer_registers);
                roles.into_iter().for_each(|role| role.run(self));
            },
            || {
                k.registers_up(consumer_registers);
                k.role("math", consumer);
            },
        );
    }

    /// Writes a tile's output, unless its group of a k-grouped kernel is empty and D is left as it is. `extent` is 0
    /// where the group is empty.
    pub fn unless_kept(&self, extent: U32<'k>, write: impl FnOnce()) {
        match self.k_groups {
            Some(groups) => self.k.if_(extent.ne(0) | groups.params.keeps_empty.eq(0), write),
            None => write(),
        }
    }
}

/// Role of some warps behind the consumers.
pub(crate) struct Role<'r, 'k> {
    /// Its name in the simulator's timeline.
    name: &'static str,
    /// Where it runs; in the producer warp where nothing is said.
    warps: Option<Pred<'k>>,
    /// Whether one elected thread of each warp runs it. The assembler knows that it is one: loads take fewer
    /// instructions.
    elected: bool,
    body: Box<dyn FnOnce() + 'r>,
}

impl<'r, 'k> Role<'r, 'k> {
    /// Producer: loads operand tiles, in one thread.
    pub fn producer(body: impl FnOnce() + 'r) -> Self {
        Role { name: "producer", warps: None, elected: true, body: Box::new(body) }
    }

    /// Producer of a k-grouped kernel, in a warp: it takes all lanes to make tensor maps.
    pub fn producer_warp(body: impl FnOnce() + 'r) -> Self {
        Role { elected: false, ..Role::producer(body) }
    }

    /// Scale producer: loads scales, in these warps.
    pub fn scale_producer(warps: Pred<'k>, body: impl FnOnce() + 'r) -> Self {
        Role { name: "scales", warps: Some(warps), elected: false, body: Box::new(body) }
    }

    /// Converter: rewrites what was loaded, in these warps.
    pub fn converter(warps: Pred<'k>, body: impl FnOnce() + 'r) -> Self {
        Role { name: "converter", warps: Some(warps), elected: false, body: Box::new(body) }
    }

    /// Store: has TMA store staged output, in one thread of each of these warps.
    pub fn store(warps: Pred<'k>, body: impl FnOnce() + 'r) -> Self {
        Role { name: "output", warps: Some(warps), elected: true, body: Box::new(body) }
    }

    fn run(self, block: &PersistentBlock<'k>) {
        let (k, Role { name, warps, elected, body }) = (block.k, self);
        let warps = warps.unwrap_or_else(|| block.warp.eq(PRODUCER_WARP));
        k.if_(warps, || match elected {
            true => k.if_(k.elect(), || k.role(name, body)),
            false => k.role(name, body),
        });
    }
}
