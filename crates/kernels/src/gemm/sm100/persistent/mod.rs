//! Persistent GEMM: warp-specialized, with accumulators in tensor memory, by one CTA or a pair.
//!
//! A CTA computes tiles of 128 rows by `block_n` columns by these roles, each a warp or more:
//! - producer (`producer.rs`): one thread loads A and B by TMA;
//! - scale producer (`scales.rs`): a warp loads block scales and lays them out for the tensor core, where there are some;
//! - MMA (`mma.rs`): one thread copies scales to tensor memory and multiplies all of K into one of two accumulators;
//! - claims (`scheduler::launch_control`): one thread, where clusters claim tiles;
//! - epilogue (`epilogue.rs`): four warps take the other accumulator to D, each its quarter of the lanes.
//!
//! In a pair, the even CTA's MMA thread multiplies for both: each CTA has its own 128 rows of A and of the accumulator,
//! and half of the rows of B.
//!
//! The tiles may be those of [groups](crate::gemm::scheduler::m_grouped), each with a B of its own, or of [groups along
//! K](crate::gemm::scheduler::k_grouped), each with a range of K and a D of its own. The
//! [epilogue](crate::gemm::epilogue::fusion) may be fused.

mod config;
mod epilogue;
mod mma;
mod producer;
mod scales;
mod tensor_memory;

use crate::common::pipeline::Pipeline;
use crate::gemm::epilogue::fusion::{EpilogueParams, GroupedEpilogueParams};
use crate::gemm::kind::ElementType;
use crate::gemm::operand::f16::Half;
use crate::gemm::params::Params;
use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::TileScheduler;
use crate::gemm::scheduler::k_grouped::{KGroups, TileKGroup};
use crate::gemm::scheduler::launch_control::{LaunchControl, Reader};
use crate::gemm::scheduler::m_grouped::MGroupedParams;
use crate::gemm::scheduler::tile::TileInfo;
use config::SharedMap;
pub use config::{BLOCK_M, Config, THREADS};
pub(super) use epilogue::ROWS as EPILOGUE_ROWS;
use oxigemm_ptx::tcgen05::TensorMemory;
use oxigemm_ptx::{BuildError, Kernel, MBarrier, Module, Pred, Shared, Target, U32};

/// Warps of the roles.
const PRODUCER_WARP: u32 = 0;
const MMA_WARP: u32 = 1;
const SCALE_WARP: u32 = 2;
/// It allocates tensor memory and frees it.
const ALLOCATION_WARP: u32 = 3;
/// It claims tiles, where clusters do.
const CLAIM_WARP: u32 = ALLOCATION_WARP;
const EPILOGUE_WARP: u32 = 4;
/// Epilogue warps: one for each quarter of the lanes of tensor memory.
const EPILOGUE_WARPS: u32 = 4;

/// CTA of this kernel: what every role works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    map: SharedMap,
    params: Params<'k>,
    m_groups: Option<MGroupedParams<'k>>,
    k_groups: Option<KGroups<'k>>,
    epilogue: Option<EpilogueParams<'k>>,
    grouped_epilogue: Option<GroupedEpilogueParams<'k>>,
    scheduler: TileScheduler<'k>,
    shared: Shared<'k>,
    /// Operand stages. An MMA empties a stage in both CTAs of a pair; the even one's is full when both have loaded.
    pipe: Pipeline<'k>,
    /// Accumulators in tensor memory, of the even CTA of a pair: full when they are computed, empty when both CTAs have
    /// read them; where they share columns, when both have read those of the tile before.
    accumulators: Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
    /// Rank in the cluster of the CTA that multiplies.
    leader: U32<'k>,
    is_leader: Pred<'k>,
}

/// `D[m,n] = C[m,n] + sum over k of  A[m,k] * B[n,k]`, each product times the scales of its blocks where there are some,
/// with the B of the group that row m belongs to where rows are grouped, and a fused epilogue where there is one; where groups
/// are along K, `D[g,m,n] = C[g,m,n] + ` that sum over the K of group g.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm100a).threads(THREADS);
    let shape = cfg.persistent();
    let mut params = PersistentParams::declare(k, &shape);
    if cfg.operands.a.element == ElementType::F16 {
        params.gemm.output.half = Half::F16;
    }

    // Shared-memory map.
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);

    // Tile scheduler, pipelines and their barriers.
    let claims = cfg.claims.then(|| {
        LaunchControl::new(k, [map.responses, map.response_barriers].map(|at| shared.at(at)), cfg.pair)
    });
    let scheduler = params.scheduler(k, &shape, shared.at(map.groups)).with_claims(claims);
    let PersistentParams { gemm, m_groups, k_groups, epilogue, grouped_epilogue } = params;
    let rank = k.cluster_rank();
    let leader = if cfg.pair { rank & !1u32 } else { rank };
    let block = &Block {
        k,
        cfg,
        params: gemm,
        m_groups,
        k_groups,
        epilogue,
        grouped_epilogue,
        scheduler,
        shared,
        pipe: Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages),
        accumulators: {
            let count = cfg.accumulator_barriers();
            Pipeline::new(k, shared.at(map.accumulator_barriers), count, count)
        },
        warp: k.warp_index(),
        lane: k.lane(),
        leader,
        is_leader: if cfg.pair { rank.eq(leader) } else { k.constant(true) },
        map,
    };
    let memory = block.start();

    // Roles.
    match k_groups {
        None => block.one_thread(PRODUCER_WARP, "producer", || block.load_tiles()),
        // It takes a warp to make tensor maps.
        Some(groups) => k.if_(block.warp.eq(PRODUCER_WARP), || {
            k.role("producer", || block.load_k_grouped_tiles(groups));
        }),
    }
    block.one_thread(MMA_WARP, "mma", || k.if_(block.is_leader, || block.multiply_tiles(memory)));
    if cfg.claims {
        block.one_thread(CLAIM_WARP, "claims", || block.scheduler.claim_tiles(block.is_leader));
    }
    if cfg.scale_words() > 0 {
        k.if_(block.warp.eq(SCALE_WARP), || k.role("scales", || block.load_scales()));
    }
    k.if_(block.warp.ge(EPILOGUE_WARP), || k.role("epilogue", || block.write_tiles(memory)));
    block.end(memory);
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// Initializes barriers, allocates tensor memory, waits for the kernels before this one and builds the group table.
    fn start(&self) -> TensorMemory<'k> {
        let (k, cfg) = (self.k, self.cfg);
        let allocation = self.shared.at(self.map.allocation);
        k.if_(self.warp.eq(PRODUCER_WARP), || {
            k.if_(self.lane.eq(0), || {
                [self.params.a, self.params.b, self.params.output.d_map]
                    .iter()
                    .for_each(|map| map.prefetch());
                let scale_warps = if cfg.scale_words() > 0 { cfg.ctas() } else { 0 };
                self.pipe.init(1 + scale_warps, 1);
                self.accumulators.init(1, EPILOGUE_WARPS * cfg.ctas());
                if let Some(claims) = self.scheduler.claims() {
                    claims.init(cfg.claim_readers());
                }
                k.fence_barrier_init();
            });
            k.sync_warp();
        });
        k.if_(self.warp.eq(ALLOCATION_WARP), || {
            k.tensor_memory_alloc(cfg.group(), allocation, cfg.allocated_columns());
            k.tensor_memory_relinquish(cfg.group());
            k.tcgen05_fence_before();
        });
        self.sync();
        k.tcgen05_fence_after();
        k.grid_dependency_wait();
        if self.scheduler.has_tables() {
            self.scheduler.build_tables(THREADS);
        }
        TensorMemory::at(allocation.load())
    }

    /// Frees tensor memory when all roles of the CTA, or of both, are done with it.
    fn end(&self, memory: TensorMemory<'k>) {
        let (k, cfg) = (self.k, self.cfg);
        k.sync_warp();
        k.tcgen05_fence_before();
        self.sync();
        k.if_(self.warp.eq(ALLOCATION_WARP), || {
            k.tcgen05_fence_after();
            k.tensor_memory_dealloc(cfg.group(), memory, cfg.allocated_columns());
        });
    }

    /// Waits for all threads that share an MMA.
    fn sync(&self) {
        if self.cfg.pair { self.k.cluster_sync() } else { self.k.sync_threads() }
    }

    /// Runs a role in one thread of a warp.
    fn one_thread(&self, warp: u32, name: &str, body: impl FnOnce()) {
        let k = self.k;
        k.if_(self.warp.eq(warp), || k.if_(k.elect(), || k.role(name, body)));
    }

    /// The tiles of A and B in a stage.
    fn stage(&self, stage: U32<'k>) -> [Shared<'k>; 2] {
        let [a, b] = self.cfg.tiles();
        [self.shared.at(self.map.a).at(stage * a.bytes()), self.shared.at(self.map.b).at(stage * b.bytes())]
    }

    /// The scales of a stage: those of A, then those of B, word by word.
    fn scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.scales).at(stage * self.cfg.scale_bytes())
    }

    /// Runs `body` with every tile of this CTA that is computed: not with those of a group without K whose D is left as it
    /// is.
    fn for_each_tile(&self, reader: Reader<'k>, body: impl FnOnce(TileInfo<'k>)) {
        let k = self.k;
        self.scheduler.read_by(reader).for_each_tile(k, |tile| match (tile.k_group, self.k_groups) {
            (Some(group), Some(groups)) => {
                k.if_(group.k.ne(0) | groups.params.keeps_empty.eq(0), || body(tile));
            }
            _ => body(tile),
        });
    }

    /// Stages of a group along K, the remainder included. Where it has no K, one of zeros.
    fn stages_of(&self, group: &TileKGroup<'k>) -> U32<'k> {
        group.k.max(1).div_ceil(self.cfg.operands.block_k())
    }

    /// Stages of K of a tile, the remainder included.
    fn k_stages(&self, group: Option<&TileKGroup<'k>>) -> U32<'k> {
        if let Some(group) = group {
            return self.stages_of(group);
        }
        let operands = self.cfg.operands;
        match operands.is_block_scaled() {
            false => self.params.k_blocks,
            true => self.params.k_blocks.div_ceil(operands.block_k() / operands.scale_block.size()),
        }
    }

    /// A barrier of the CTA that multiplies, as TMA names it.
    fn of_leader(&self, barrier: MBarrier<'k>) -> MBarrier<'k> {
        match self.cfg.pair {
            true => MBarrier(Shared::new(barrier.0.in_block(self.leader).address())),
            false => barrier,
        }
    }

    /// Arrives at a barrier of the CTA that multiplies; what this thread has done before is seen by who waits there.
    fn arrive_at_leader(&self, barrier: MBarrier<'k>) {
        match self.cfg.pair {
            true => barrier.in_block(self.leader).arrive_release(),
            false => barrier.arrive(),
        }
    }
}
