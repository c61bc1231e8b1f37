//! Persistent FP8 GEMM with fine-grained scales, for many rows: warp-specialized, with multicast.
//!
//! A block computes tiles of `block_m` by `block_n` by these roles (`roles.rs`):
//! - producer (`producer.rs`): one thread loads this block's part of A and B, multicast to the cluster;
//! - scale producer (`producer.rs`): a warp loads scales. With 1D1D scales a warpgroup makes operands of them
//!   (`scales_1d1d.rs`);
//! - consumers (`mainloop.rs`): two warpgroups multiply and promote, each its half of the rows, in M-subtiles of 64, or
//!   of the columns where a tile has 64 rows;
//! - store (`epilogue.rs`): one thread for each consumer warpgroup, or for both, has TMA store what they have staged.
//!
//! GEMMs may be [m-grouped](crate::gemm::scheduler::m_grouped), each group with a B of its own, or
//! [k-grouped](crate::gemm::scheduler::k_grouped). The tiles of the last wave may be split by
//! [stream-K](crate::gemm::scheduler::stream_k), or clusters fetch tiles from the
//! [dynamic scheduler](crate::gemm::scheduler::dynamic). The [epilogue](crate::gemm::epilogue::fusion) may be fused.

mod config;
mod epilogue;
mod mainloop;
mod producer;
mod scales_1d1d;

use crate::common::BLOCK_K;
use crate::gemm::operand::fp8::SCALE_GROUP;
use crate::gemm::params::ScalesOfB;
use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::dynamic::DynamicScheduler;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::stream_k::{StreamKParams, UNIT};
use crate::gemm::sm90::roles::{PersistentBlock, Role};
use crate::gemm::sm90::scale_pipeline::ScalePipeline;
use crate::gemm::sm90::stream_k::Fixups;
use crate::gemm::sm90::warpgroups::MATH_WARPS;
pub use config::Config;
use config::SharedMap;
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, Target, U32};
use std::ops::Deref;

/// Block of this kernel: what every role works with.
struct Block<'k, 'c> {
    persistent: PersistentBlock<'k>,
    cfg: &'c Config,
    map: SharedMap,
    scales: ScalePipeline<'k>,
    fixups: Option<Fixups<'k>>,
}

impl<'k> Deref for Block<'k, '_> {
    type Target = PersistentBlock<'k>;

    fn deref(&self) -> &PersistentBlock<'k> {
        &self.persistent
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`, with `sfb[n,kb]`
/// where scales are 1D1D, with the B and its scales of the group that row m belongs to where rows are grouped, and with
/// a fused epilogue where there is one.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let shape = cfg.persistent();
    let mut params = PersistentParams::declare(k, &shape);

    // Shared-memory map.
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);

    // Tile scheduler.
    let mut scheduler = params.scheduler(k, &shape, shared.at(map.groups));
    let stream_k = cfg.stream_k.then(|| StreamKParams::declare(k));
    if let Some(stream_k) = stream_k {
        assert_eq!(
            [cfg.scale_blocks(), cfg.unroll()],
            [SCALE_GROUP, UNIT],
            "parts of tiles begin at such blocks"
        );
        scheduler = scheduler.with_stream_k(k, stream_k, cfg.padded(params.gemm.k_blocks));
    }
    let dynamic = cfg.has_dynamic_scheduler().then(|| {
        let [slots, barriers] = map.next_tiles.map(|offset| shared.at(offset));
        DynamicScheduler::declare(k, slots, barriers, scheduler.cluster.rank_and_size())
    });
    if let Some(dynamic) = dynamic {
        scheduler = scheduler.with_dynamic(dynamic);
    }

    // Pipelines and their barriers.
    let (slots, slot_barriers) = (shared.at(map.scales), shared.at(map.scale_barriers));
    let scales = ScalePipeline::new(k, cfg.scales(), slots, slot_barriers, &params.gemm);
    let rings = (cfg.stages, map.barriers, map.output_barriers);
    let persistent = PersistentBlock::new(k, params, scheduler, shared, rings);
    let fixups = stream_k.map(|StreamKParams { workspace, .. }| {
        let (words, cluster) = (shared.at(map.fixup_words), persistent.scheduler.cluster);
        let (accumulators, warp) = (cfg.accumulators(), persistent.warp);
        Fixups { k, workspace, words, accumulators, cluster, warp }
    });
    let block = &Block { persistent, cfg, map, scales, fixups };
    let (warp, p) = (block.warp, &block.params);
    let stores = match cfg.scales_of_b {
        ScalesOfB::Blocks => (warp & 1).eq(1),
        ScalesOfB::Rows => warp.eq(MATH_WARPS + 1),
    };
    let (first_scale_warp, loads_scales) = match cfg.scales_of_b {
        ScalesOfB::Blocks => (MATH_WARPS + 2, warp.eq(MATH_WARPS + 2)),
        ScalesOfB::Rows => {
            let first = MATH_WARPS + 4;
            (first, warp.ge(first) & warp.lt(first + cfg.scale_warps()))
        }
    };
    let stores = stores & p.output.is_stored_by_tma(cfg.part_columns(), block.epilogue.as_ref());
    block.init_barriers(&[p.a, p.b, p.sfa_map, p.output.d_map], || {
        block.init_stages(1 + cfg.scale_warps());
        scales.init(MATH_WARPS);
        block.init_staged();
        if let Some(dynamic) = dynamic {
            dynamic.init();
        }
    });
    if cfg.grouping == Grouping::Dense {
        scheduler.prefetch_b(k, warp.lt(MATH_WARPS), p);
    }
    block.start(cfg.threads());

    // Roles.
    let producer = match block.k_groups {
        None => Role::producer(|| block.load_tiles()),
        Some(groups) => Role::producer_warp(move || block.load_k_grouped_tiles(groups)),
    };
    let scale_producer = Role::scale_producer(loads_scales, || match cfg.scales_of_b {
        ScalesOfB::Blocks => block.load_scales(),
        ScalesOfB::Rows => block.make_scale_operands(warp - first_scale_warp),
    });
    let store = Role::store(stores, || block.store_tiles());
    block.run(cfg.registers(), [producer, scale_producer, store], || block.consume());
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// K blocks of every tile, where groups are not along K: see [`Config::padded_blocks`].
    fn padded_blocks(&self) -> U32<'k> {
        self.cfg.padded(self.params.k_blocks)
    }

    /// `block_m` rows of A in a stage, 128 bytes each, swizzled.
    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.a).at(stage * (self.cfg.block_m * BLOCK_K))
    }

    /// `block_n` rows of B in a stage.
    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.b).at(stage * (self.cfg.block_n * BLOCK_K))
    }

    /// The [operands](scales_1d1d) of the scales in a stage: of rows, and of columns.
    fn scale_operands(&self, stage: U32<'k>) -> [Shared<'k>; 2] {
        let rows = self.shared.at(self.map.scale_operands).at(stage * self.cfg.scale_operand_bytes());
        [rows, rows.at(scales_1d1d::bytes(self.cfg.block_m))]
    }

    /// How far behind those of the first stage zeros lie.
    fn zeros_behind_scale_operands(&self) -> [u32; 2] {
        let rows = self.map.scale_zeros - self.map.scale_operands;
        [rows, rows - scales_1d1d::bytes(self.cfg.block_m)]
    }
}
