//! Persistent GEMM of BF16 or FP16 operands, for many rows: warp-specialized, with multicast.
//!
//! A block computes tiles of `block_m` by `block_n` by these roles (`roles.rs`):
//! - producer (`producer.rs`): one thread loads this block's part of A and B, multicast to the cluster;
//! - consumers (`mainloop.rs`): two warpgroups multiply, each its half of the rows, in M-subtiles of 64, or of the
//!   columns where a tile has 64 rows. The tensor core accumulates all of K in FP32, so the products of a stage are
//!   only issued: while they run, those of the stage before complete and it is released;
//! - store (`epilogue.rs`): one thread for each consumer warpgroup has TMA store what it has staged.
//!
//! The tiles may be those of [groups](crate::gemm::scheduler::m_grouped), each with a B of its own, or of [groups along
//! K](crate::gemm::scheduler::k_grouped), each with a range of K and a D of its own. The tiles of the last wave may be
//! split by [stream-K](crate::gemm::scheduler::stream_k). The [epilogue](crate::gemm::epilogue::fusion) may be fused.

mod config;
mod epilogue;
mod mainloop;
mod producer;

use crate::gemm::operand::f16::Major;
use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::stream_k::StreamKParams;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::roles::{PersistentBlock, Role};
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
    fixups: Option<Fixups<'k>>,
}

impl<'k> Deref for Block<'k, '_> {
    type Target = PersistentBlock<'k>;

    fn deref(&self) -> &PersistentBlock<'k> {
        &self.persistent
    }
}

/// `D[m,n] = C[m,n] + sum over k of  A[m,k] * B[n,k]`, with the B of the group that row m belongs to, where rows are
/// grouped; where groups are along K, `D[g,m,n] = C[g,m,n] + ` that sum over the K of group g. With a fused epilogue
/// where there is one.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let shape = cfg.persistent();
    let mut params = PersistentParams::declare(k, &shape);
    params.gemm.output.half = cfg.operands.element;

    // Shared-memory map.
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);

    // Tile scheduler, pipelines and their barriers.
    let mut scheduler = params.scheduler(k, &shape, shared.at(map.groups));
    let stream_k = cfg.stream_k.then(|| StreamKParams::declare(k));
    if let Some(stream_k) = stream_k {
        scheduler = scheduler.with_stream_k(k, stream_k, params.gemm.k_blocks);
    }
    let rings = (cfg.stages, map.barriers, map.output_barriers);
    let persistent = PersistentBlock::new(k, params, scheduler, shared, rings);
    let fixups = stream_k.map(|StreamKParams { workspace, .. }| {
        let (words, cluster) = (shared.at(map.fixup_words), persistent.scheduler.cluster);
        let (accumulators, warp) = (cfg.accumulators(), persistent.warp);
        Fixups { k, workspace, words, accumulators, cluster, warp }
    });
    let block = &Block { persistent, cfg, map, fixups };
    let (warp, p) = (block.warp, &block.params);
    let stores = (warp & 1).eq(1) & p.output.is_stored_by_tma(cfg.part().columns, block.epilogue.as_ref());
    block.init_barriers(&[p.a, p.b, p.output.d_map], || {
        block.init_stages(1);
        block.init_staged();
    });
    if cfg.grouping == Grouping::Dense && cfg.operands.b == Major::K {
        scheduler.prefetch_b(k, warp.lt(MATH_WARPS), p);
    }
    block.start(cfg.threads());

    // Roles.
    let producer = match block.k_groups {
        None => Role::producer(|| block.load_tiles()),
        Some(groups) => Role::producer_warp(move || block.load_k_grouped_tiles(groups)),
    };
    let store = Role::store(stores, || block.store_tiles());
    block.run(cfg.registers(), [producer, store], || block.consume());
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The tiles of A and B in a stage.
    fn stage(&self, stage: U32<'k>) -> [Shared<'k>; 2] {
        let [a, b] = self.cfg.tiles();
        [self.shared.at(self.map.a).at(stage * a.bytes()), self.shared.at(self.map.b).at(stage * b.bytes())]
    }

    /// The message about the tile that a stage is of, in m-grouped kernels.
    fn message(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.messages).at(stage * TileMessage::BYTES)
    }
}
