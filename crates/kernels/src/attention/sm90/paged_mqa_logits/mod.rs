//! Paged MQA logits of a decode step: the keys of each sequence lie in pages of a KV cache, which a block table names.
//!
//! `logit[b, n, j] = scale[j] * sum over heads of  relu(Q[b,n,h] . KV[b,j]) * weight[b,n,h]`
//! for `j < length[b,n]`, and -inf behind.
//!
//! Limited by memory bandwidth. The [schedule metadata](crate::attention::paged_metadata) splits the key tiles evenly
//! over the CTAs, each with a few consecutive sequences. Two math warpgroups multiply 64 keys of a stage with the heads
//! of one query after another. A third warpgroup holds the [roles of every architecture](crate::attention::paged).
//!
//! | kernel | queries of a sequence | page | heads |
//! |---|---|---|---|
//! | dedicated | up to [`DEDICATED_NEXT`], unrolled | up to a tile | compiled in |
//! | padded | any number: a unit for every few of them, which loads the keys again | any size | padded |

mod mainloop;

use crate::attention::context_lens::ContextLens;
use crate::attention::paged::{Paged, Params, scale_pitch};
use crate::attention::shape::{DEDICATED_NEXT, HeadTile, Heads, TILE_KEYS};
use crate::attention::smem::{Smem, SmemShape};
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS, THREADS};
use oxigemm_ptx::{BuildError, Kernel, Module, Target, U32};

const _: () = assert!(TILE_KEYS == 64 * MATH_WARPGROUPS);

/// Most heads of a padded kernel's unit.
const PADDED_COLUMNS: u32 = 256;
/// Upper bound for the bytes of all stages. With more, an H200 was slower: perhaps because loads that are not needed
/// yet evict more from L2, which then has to be written back.
const MAX_STAGE_BYTES: u32 = 100 << 10;

/// Compile-time configuration. Shapes, lengths, the page size and the output type are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Heads of a query.
    pub tile: HeadTile,
}

impl Config {
    /// The kernel for the heads of a query, the queries of a sequence and the keys of a page.
    pub fn of(heads: Heads, next: u32, page_keys: u32) -> Config {
        let dedicated = next <= DEDICATED_NEXT && page_keys <= TILE_KEYS;
        Config { tile: if dedicated { HeadTile::of(heads) } else { HeadTile::padded(heads) } }
    }

    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        format!("sm90_fp8_paged_mqa_logits_{}", self.tile.name())
    }

    fn heads(&self) -> Heads {
        self.tile.heads
    }

    /// Most queries of a unit.
    pub fn unit_queries(&self) -> u32 {
        if self.tile.padded { PADDED_COLUMNS / self.heads().heads } else { DEDICATED_NEXT }
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        self.smem().bytes()
    }

    fn smem(&self) -> SmemShape {
        let one = SmemShape {
            heads: self.heads(),
            row_bytes: self.heads().dim,
            queries: self.unit_queries(),
            stages: 1,
            scale_pitch: scale_pitch(),
            readers: MATH_WARPS,
            words: 0,
        };
        SmemShape { stages: (MAX_STAGE_BYTES / one.stage_bytes()).min(16), ..one }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Context that every role of the kernel works with.
struct Cta<'k, 'c> {
    cfg: &'c Config,
    roles: Paged<'k>,
    warp: U32<'k>,
}

fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k, "");
    let Params { lengths: at, sequences, next, per_query, limit, .. } = params;
    let lengths = ContextLens { at, sequences, next, per_query, limit, any_next: cfg.tile.padded };
    let smem = Smem::new(k, cfg.smem());
    let (warp, lane) = (k.warp_index(), k.lane());
    let cta = Cta { cfg, roles: Paged { k, params, lengths, smem, padded: cfg.tile.padded, lane }, warp };
    let roles = &cta.roles;
    let (key_warp, unit_warp, fill_warp) = (MATH_WARPS, MATH_WARPS + 1, MATH_WARPS + 2);
    let maps = [&roles.params.queries, &roles.params.keys, &roles.params.scales];
    roles.smem.begin(k, (warp, key_warp), lane, maps, MATH_WARPS);
    k.if_else(
        warp.ge(key_warp),
        || {
            k.if_(warp.eq(key_warp), || k.role("keys", || roles.load_keys()));
            k.if_(warp.eq(unit_warp), || {
                k.role("units", || {
                    roles.produce_units(|_, _, _| ());
                });
            });
            k.if_(warp.ge(fill_warp), || k.role("fill", || roles.fill(warp - fill_warp)));
        },
        || k.role("math", || cta.multiply()),
    );
    k.finish()
}
