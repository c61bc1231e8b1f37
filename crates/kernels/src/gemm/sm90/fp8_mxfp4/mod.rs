//! Persistent FP8 by MXFP4 GEMM: weights stay 4 bits wide up to shared memory, behind which they are widened to e4m3.
//!
//! B is e2m1 with a UE8M0 scale for 32 of K, A is e4m3 with FP32 scales of 1x128. Operands are swapped: rows of B are
//! the side of `wgmma` that has 64, rows of A the other, which may be as narrow as 8: few rows cost few MMAs.
//!
//! A block computes tiles of `block_m` rows of A by `block_n` rows of B by these roles (`roles.rs`):
//! - producer (`producer.rs`): one thread loads rows of A, and codes of B;
//! - scale producers (`scales.rs`): a warp loads scales of rows of A, two load words of four exponents of rows of B, and
//!   choose how those are applied;
//! - converters (`convert.rs`), where tiles are high: warpgroups widen codes to tiles of e4m3, a ring of their own, a
//!   stage each. Where tiles are low, consumers widen in registers (`fragment.rs`), and two blocks share an SM;
//! - consumers (`mainloop.rs`): two warpgroups multiply and promote, each half of every 128 rows of B;
//! - the same write D (`epilogue.rs`), through shared memory, where a warp then has whole rows: what the fused epilogues
//!   of split-K kernels work on.
//!
//! Rows may be [m-grouped](crate::gemm::scheduler::m_grouped), each group with a B of its own.

mod config;
mod convert;
mod epilogue;
mod fragment;
mod mainloop;
mod producer;
mod scales;
mod widen;

use crate::common::pipeline::Pipeline;
use crate::gemm::persistent::PersistentParams;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::roles::{PersistentBlock, Role};
use crate::gemm::sm90::warpgroups::MATH_WARPS;
pub use config::Config;
use config::{CODE_LINE, SharedMap};
use convert::{CONVERTER_WARP, STAGE_WARPS};
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
    /// Widened tiles of B.
    wide: Pipeline<'k>,
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
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads()).resident(cfg.blocks_per_sm());
    let shape = cfg.persistent();
    let mut params = PersistentParams::declare(k, &shape);

    // Shared-memory map.
    let (map, shared) = (SharedMap::new(cfg), k.dynamic_shared());
    map.name(k, cfg);

    // Tile scheduler, pipeline and its barriers.
    let scheduler = params.scheduler(k, &shape, shared.at(map.groups));
    let rings = (cfg.stages, map.barriers, map.barriers);
    let persistent = PersistentBlock::new(k, params, scheduler, shared, rings);
    let wide = Pipeline::new(k, shared.at(map.wide_barriers), cfg.wide_tiles(), cfg.wide_tiles());
    let block = &Block { persistent, cfg, map, wide };
    let (warp, p) = (block.warp, &block.params);
    block.init_barriers(&[p.a, p.b], || {
        block.init_stages(2 + B_WARPS);
        if !cfg.widens_in_registers() {
            block.wide.init(STAGE_WARPS, MATH_WARPS);
        }
    });
    block.start(cfg.threads());

    // Roles.
    let producer = Role::producer(|| block.load_tiles());
    let of_a = Role::scale_producer(warp.eq(SCALE_WARP), || block.load_scales(ScaleRole::OfA));
    let of_b = Role::scale_producer(warp.gt(SCALE_WARP) & warp.lt(CONVERTER_WARP), || {
        block.load_scales(ScaleRole::OfB(warp - (SCALE_WARP + 1)));
    });
    let converter = || Role::converter(warp.ge(CONVERTER_WARP), || block.convert());
    let converter = (!cfg.widens_in_registers()).then(converter);
    block.run(cfg.registers(), [producer, of_a, of_b].into_iter().chain(converter), || block.consume());
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

    /// A widened tile: `block_n` rows of B, 128 bytes each, swizzled.
    fn wide_tile(&self, tile: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.wide).at(tile * self.cfg.wide_bytes())
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
