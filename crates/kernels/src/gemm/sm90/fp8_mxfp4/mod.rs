//! Persistent FP8 by MXFP4 GEMM: weights stay 4 bits wide up to the registers that `wgmma` reads them from.
//!
//! B is e2m1 with a UE8M0 scale for 32 of K, A is e4m3 with FP32 scales of 1x128. Operands are swapped: 64 rows of B are
//! the side of `wgmma` that may lie in registers, so codes are widened to e4m3 between shared memory and the
//! tensor core, and nothing is ever written back. Rows of A are the other side, which may be as narrow as 8: few rows
//! cost few MMAs.
//!
//! A block computes tiles of `block_m` rows of A by `block_n` rows of B by these roles (`roles.rs`):
//! - producer (`producer.rs`): one thread loads rows of A, and codes of B;
//! - scale producers (`scales.rs`): a warp loads scales of rows of A, two load words of four exponents of rows of B, and
//!   choose how those are applied;
//! - consumers (`mainloop.rs`): two warpgroups widen, multiply and promote, each half of every 128 rows of B;
//! - the same write D (`epilogue.rs`), through shared memory, where a warp then has whole rows: what the fused epilogues
//!   of split-K kernels work on.
//!
//! Rows may be [m-grouped](crate::gemm::scheduler::m_grouped), each group with a B of its own.

mod config;
mod epilogue;
mod mainloop;
mod producer;
mod scales;
mod widen;

use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::roles::{PersistentBlock, Role};
use crate::gemm::sm90::warpgroups::{MATH_WARPS, THREADS};
pub use config::Config;
use config::{CODE_LINE, REGISTERS, SharedMap};
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, Target, U32};
use scales::{B_WARPS, ScaleRole};
use std::ops::Deref;

/// Warp of A's scales, behind the producer; those of B's scales follow.
const SCALE_WARP: u32 = MATH_WARPS + 1;

/// Block of this kernel: what every role works with.
struct Block<'k, 'c> {
    persistent: PersistentBlock<'k>,
    cfg: &'c Config,
    map: SharedMap,
}

impl<'k> Deref for Block<'k, '_> {
    type Target = PersistentBlock<'k>;

    fn deref(&self) -> &PersistentBlock<'k> {
        &self.persistent
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * (sum over 32-wide blocks of it of  2^(sfb[n,i] - 127) *
/// (A[m,i] . B[n,i]))`, with the B and its scales of the group that row m belongs to where rows are grouped, and with a
/// fused epilogue where there is one.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(THREADS);
    let shape = cfg.persistent();
    let mut params = PersistentParams::declare(k, &shape);

    // Shared-memory map.
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);

    // Tile scheduler, pipeline and its barriers.
    let scheduler = params.scheduler(k, &shape, shared.at(map.groups));
    let rings = (cfg.stages, map.barriers, map.barriers);
    let persistent = PersistentBlock::new(k, params, scheduler, shared, rings);
    let block = &Block { persistent, cfg, map };
    let (warp, p) = (block.warp, &block.params);
    block.init_barriers(&[p.a, p.b], || block.init_stages(2 + B_WARPS));
    block.start(THREADS);

    // Roles.
    let producer = Role::producer(|| block.load_tiles());
    let of_a = Role::scale_producer(warp.eq(SCALE_WARP), || block.load_scales(ScaleRole::OfA));
    let of_b = Role::scale_producer(warp.gt(SCALE_WARP), || {
        block.load_scales(ScaleRole::OfB(warp - (SCALE_WARP + 1)));
    });
    block.run(REGISTERS, [producer, of_a, of_b], || block.consume());
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// `block_m` rows of A in a stage, 128 bytes each, swizzled.
    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.a).at(stage * self.cfg.a_bytes())
    }

    /// Codes of `block_n` rows of B in a stage, 64 bytes each, swizzled.
    fn codes(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.codes).at(stage * (self.cfg.block_n * CODE_LINE))
    }

    /// Scales of a stage: see [`scales`].
    fn scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.scales).at(stage * self.cfg.scale_bytes())
    }

    /// The message about the tile that a stage is of, in m-grouped kernels.
    fn message(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.messages).at(stage * TileMessage::BYTES)
    }
}
