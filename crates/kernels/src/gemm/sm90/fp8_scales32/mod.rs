//! Persistent FP8 GEMM with scales of 32, those of MXFP8 checkpoints: 1x32 of A, and 1x32 or 32x32 of B.
//!
//! One `wgmma` multiplies 32 of K, so every instruction has scales of its own, and its products are promoted before the
//! next one is issued: while one consumer warpgroup promotes, the tensor core works for the other. Scales lie in the
//! stages, beside the operands that they belong to.
//!
//! A block computes tiles of `block_m` by `block_n` by these roles (`roles.rs`):
//! - producer (`producer.rs`): one thread loads this block's part of A and B, multicast to the cluster;
//! - scale producers (`scales.rs`): warps load the scales of rows and of columns, in any layout;
//! - consumers (`mainloop.rs`): two warpgroups multiply and promote, each half of the rows, or of the columns where a
//!   tile has 64 rows;
//! - store (`epilogue.rs`): one thread for each consumer warpgroup has TMA store what it has staged.
//!
//! Rows may be [m-grouped](crate::gemm::scheduler::m_grouped), each group with a B of its own.

mod config;
mod epilogue;
mod mainloop;
mod producer;
mod scales;

use crate::common::BLOCK_K;
use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::roles::{PersistentBlock, Role};
use crate::gemm::sm90::warpgroups::MATH_WARPS;
pub use config::Config;
use config::{STEPS, SharedMap};
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, Target, U32};
use std::ops::Deref;

/// Warp of the first scale producer, behind the warpgroup of producer and store threads.
const SCALE_WARP: u32 = MATH_WARPS + 4;

/// Block of this kernel: what every role works with.
struct Block<'k, 'c> {
    persistent: PersistentBlock<'k>,
    cfg: &'c Config,
    map: SharedMap,
    /// K blocks of 32, which scales are for: the last stage may have fewer than it has room for.
    scale_blocks: U32<'k>,
}

impl<'k> Deref for Block<'k, '_> {
    type Target = PersistentBlock<'k>;

    fn deref(&self) -> &PersistentBlock<'k> {
        &self.persistent
    }
}

/// `D[m,n] = C[m,n] + sum over 32-wide K blocks of  sfa[m,kb] * sfb[n,kb] * (A[m,kb] . B[n,kb])`, with `sfb[n/32,kb]`
/// where scales of B are blocks, and with the B and its scales of the group that row m belongs to where rows are
/// grouped.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let shape = cfg.persistent();
    let mut params = PersistentParams::declare(k, &shape);
    // The host counts blocks that share scales, the roles count stages.
    let scale_blocks = params.gemm.k_blocks;
    params.gemm.k_blocks = scale_blocks.div_ceil(STEPS);

    // Shared-memory map.
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);

    // Tile scheduler, pipelines and their barriers.
    let scheduler = params.scheduler(k, &shape, shared.at(map.groups));
    let rings = (cfg.stages, map.barriers, map.output_barriers);
    let persistent = PersistentBlock::new(k, params, scheduler, shared, rings);
    let block = &Block { persistent, cfg, map, scale_blocks };
    let (warp, p) = (block.warp, &block.params);
    block.init_barriers(&[p.a, p.b, p.output.d_map], || {
        block.init_stages(1 + cfg.scale_warps());
        block.init_staged();
    });
    if cfg.grouping == Grouping::Dense {
        scheduler.prefetch_b(k, warp.lt(MATH_WARPS), p);
    }
    block.start(cfg.threads());

    // Roles.
    let stores = (warp & 1).eq(1) & warp.lt(SCALE_WARP);
    let stores = stores & p.output.is_stored_by_tma(cfg.part().columns, None);
    let loads_scales = warp.ge(SCALE_WARP) & warp.lt(SCALE_WARP + cfg.scale_warps());
    let producer = Role::producer(|| block.load_tiles());
    let scale_producer = Role::scale_producer(loads_scales, || block.load_scales(warp - SCALE_WARP));
    let store = Role::store(stores, || block.store_tiles());
    block.run(cfg.registers(), [producer, scale_producer, store], || block.consume());
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// `block_m` rows of A in a stage, 128 bytes each, swizzled.
    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.a).at(stage * (self.cfg.block_m * BLOCK_K))
    }

    /// `block_n` rows of B in a stage.
    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.b).at(stage * (self.cfg.block_n * BLOCK_K))
    }

    /// The scales of a stage: of rows, and of columns behind them, for each of its steps.
    fn scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.scales).at(stage * self.cfg.scale_bytes())
    }

    /// The message about the tile that a stage is of, in m-grouped kernels.
    fn message(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.messages).at(stage * TileMessage::BYTES)
    }
}
