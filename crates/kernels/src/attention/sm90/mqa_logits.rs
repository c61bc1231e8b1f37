//! MQA logits of a prefill: every query has a range of keys.
//!
//! `logit[q, j] = scale[j] * sum over heads of  relu(Q[q,h] . KV[j]) * weight[q,h]`
//! for `start[q] <= j < end[q]`, and -inf elsewhere.
//!
//! Persistent and warp-specialized. A work unit is a query block, as many queries as have 256 heads together (128 where
//! each has few), and some of the key tiles that they see; all CTAs have about the same number of tiles. Four math
//! warpgroups multiply 64 keys of a stage with half of the heads each; while one of them reduces, the tensor core works
//! on what the others have issued. A fifth warpgroup holds the [roles of every
//! architecture](crate::attention::prefill).

use super::heads::LogitLayout;
use crate::attention::logits::LogitRow;
use crate::attention::prefill::{Params, Prefill};
use crate::attention::scheduler::{CostCount, KeyRanges};
use crate::attention::shape::{HeadTile, Heads, TILE_KEYS};
use crate::attention::smem::{Smem, SmemShape, WorkUnit};
use crate::common::pipeline::Cursor;
use crate::common::{WARP, WARPGROUP};
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Shared, Target, U32, Var};

/// Math warpgroups: those of either half of the columns split the keys of a stage. One more holds the other roles.
const MATH_WARPGROUPS: u32 = 2 * KEY_PARTS;
/// Most heads of a query block.
const MAX_COLUMNS: u32 = 256;
/// Parts of 64 keys that a stage has.
const KEY_PARTS: u32 = TILE_KEYS / 64;
const MATH_WARPS: u32 = MATH_WARPGROUPS * 4;
const THREADS: u32 = (MATH_WARPGROUPS + 1) * WARPGROUP;
/// Registers of a producer thread and of a math thread: together those that the CTA was launched with.
const PRODUCER_REGISTERS: u32 = 32;
const MATH_REGISTERS: u32 = 112;

/// Compile-time configuration. Shapes, ranges and the output type are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Heads of a query.
    pub tile: HeadTile,
}

impl Config {
    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        format!("sm90_fp8_mqa_logits_{}", self.tile.name())
    }

    fn heads(&self) -> Heads {
        self.tile.heads
    }

    /// N of both MMAs, and rows of Q of one TMA load: the heads of a query block. Where queries have few heads, their
    /// many logits need registers. A query block is a power of two of queries.
    pub fn columns(&self) -> u32 {
        let heads = self.heads().heads;
        let most = if heads >= 32 { MAX_COLUMNS } else { MAX_COLUMNS / 2 };
        heads << (most / heads).ilog2()
    }

    /// N of a warpgroup's MMA.
    fn half(&self) -> u32 {
        self.columns() / 2
    }

    /// Queries of a query block.
    pub fn block_queries(&self) -> u32 {
        self.columns() / self.heads().heads
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
        let stages = if self.heads().dim == 128 { 8 } else { 12 };
        SmemShape {
            heads: self.heads(),
            row_bytes: self.heads().dim,
            queries: self.block_queries(),
            stages,
            scale_pitch: TILE_KEYS * 4,
            readers: MATH_WARPS,
            words: THREADS / WARP,
        }
    }

    /// Queries of a warpgroup.
    fn half_queries(&self) -> u32 {
        self.half() / self.heads().heads
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Context that every role of the kernel works with.
struct Cta<'k, 'c> {
    cfg: &'c Config,
    roles: Prefill<'k>,
    warp: U32<'k>,
}

fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k, "");
    let smem = Smem::new(k, cfg.smem());
    let (warp, lane) = (k.warp_index(), k.lane());
    let ranges = KeyRanges {
        starts: params.starts,
        ends: params.ends,
        query_count: params.query_count,
        key_count: params.key_count,
        columns: params.columns,
        block_queries: cfg.block_queries(),
    };
    let costs = CostCount { ranges, words: smem.words(), warps: THREADS / WARP };
    let cta = Cta { cfg, roles: Prefill { k, params, smem, ranges, padded: cfg.tile.padded, lane }, warp };
    let roles = &cta.roles;
    let (key_warp, unit_warp, fill_warp) = (MATH_WARPS, MATH_WARPS + 1, MATH_WARPS + 2);
    let maps = [&roles.params.queries, &roles.params.keys, &roles.params.scales];
    roles.smem.begin(k, (warp, key_warp), lane, maps, MATH_WARPS + 1);
    costs.count(k, warp, lane);
    k.sync_threads();
    k.if_else(
        warp.ge(key_warp),
        || {
            k.registers_down(PRODUCER_REGISTERS);
            k.if_(warp.eq(key_warp), || k.if_(k.elect(), || k.role("keys", || roles.load_keys())));
            k.if_(warp.eq(unit_warp), || {
                k.role("units", || {
                    roles.produce_units(costs.cta_range(k), |_, _| ());
                });
            });
            k.if_(warp.ge(fill_warp), || k.role("fill", || roles.fill(warp - fill_warp)));
        },
        || {
            k.registers_up(MATH_REGISTERS);
            k.role("math", || cta.multiply());
        },
    );
    k.finish()
}

impl<'k> Cta<'k, '_> {
    /// Math warpgroup: 64 keys of each stage with the heads of half of the query block's queries.
    fn multiply(&self) {
        let Prefill { k, smem, lane, .. } = &self.roles;
        let consumer = Consumer::new(self);
        let slots = smem.unit_pipeline.reader();
        smem.for_each_unit(&slots, |slot, WorkUnit { tiles: [first, end], .. }| {
            let unit = consumer.begin(slot);
            k.for_(first, end, 1, |tile| consumer.multiply_tile(&unit, tile));
            smem.release_unit(&slots, *lane);
        });
    }
}

/// State of a math warp.
struct Consumer<'k, 'b, 'c> {
    cta: &'b Cta<'k, 'c>,
    cursor: Cursor<'k>,
    /// Half of the columns that it has.
    half: U32<'k>,
    /// Its keys in the first stage.
    keys: Descriptor<'k>,
    /// First key of this warp in a tile.
    first_key: U32<'k>,
    layout: LogitLayout<'k>,
    accumulators: Vec<Var<'k, f32>>,
    weights: Vec<Var<'k, f32>>,
}

/// Unit as a math warp uses it.
struct MathUnit<'k> {
    queries: Descriptor<'k>,
    /// First [`LogitRow`] of the thread's logits.
    rows: Shared<'k>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    fn new(cta: &'b Cta<'k, 'c>) -> Self {
        let &Prefill { k, lane, ref smem, .. } = &cta.roles;
        let columns = cta.cfg.half() as usize;
        let warpgroup = cta.warp >> 2;
        let (half, key_part) = (warpgroup / KEY_PARTS, warpgroup % KEY_PARTS);
        let keys = smem.keys(k.constant(0)).at(key_part * (64 * cta.cfg.heads().dim));
        Consumer {
            cta,
            cursor: smem.key_pipeline.reader(),
            half,
            keys: Descriptor::k_major(keys, cta.cfg.heads().swizzle()),
            first_key: key_part * 64 + (cta.warp & 3) * 16,
            layout: LogitLayout::new(cta.cfg.half_queries(), lane),
            accumulators: k.fragment(columns / 2),
            weights: k.fragment(columns / 4),
        }
    }

    /// Loads what does not change from tile to tile.
    fn begin(&self, slot: U32<'k>) -> MathUnit<'k> {
        let &Cta { cfg, roles: Prefill { lane, ref smem, .. }, .. } = self.cta;
        let columns = cfg.half();
        Heads::load_weights(smem.weights(slot).at(self.half * (columns * 4)), lane, &self.weights);
        let queries = smem.queries(slot).at(self.half * (columns * cfg.heads().dim));
        let first_query = self.layout.first_query() + self.half * cfg.half_queries();
        MathUnit {
            queries: Descriptor::k_major(queries, cfg.heads().swizzle()),
            rows: smem.row(slot, first_query),
        }
    }

    /// One tile: MMA, head reduction, stores. While this warpgroup reduces, the tensor core works on what the others
    /// have issued.
    fn multiply_tile(&self, unit: &MathUnit<'k>, tile: U32<'k>) {
        let &Cta { cfg, roles: Prefill { k, lane, ref smem, ref params, .. }, .. } = self.cta;
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        k.wgmma_fence();
        let keys = self.keys.advance(stage * smem.key_bytes());
        cfg.heads().mma(k, &self.accumulators, keys, unit.queries);
        k.wgmma_commit();
        let keys: Vec<U32<'k>> = self.layout.keys().into_iter().map(|key| self.first_key + key).collect();
        let load_scales = || -> Vec<F32<'k>> {
            let scales = smem.scales(stage);
            keys.iter().map(|&key| scales.at(key * 4).load()).collect()
        };
        // The scales of two keys need registers that the accumulators do not leave.
        let preloaded = (keys.len() == 1).then(load_scales);
        k.wgmma_wait(0);
        let own = cfg.heads().thread_sums(&self.accumulators, &self.weights);
        let scales = preloaded.unwrap_or_else(load_scales);
        smem.release(stage, lane);
        self.cursor.advance();
        let sums = Heads::reduce_scatter(k, lane, own);
        for (query, sums) in (0u32..).zip(sums.chunks(keys.len())) {
            let row = LogitRow::load(unit.rows.at(query * LogitRow::BYTES));
            for ((&sum, &scale), &key) in sums.iter().zip(&scales).zip(&keys) {
                let key = tile * TILE_KEYS + key;
                row.store_logit(k, key, sum * scale, params.flags, self.layout.stores());
            }
        }
    }
}
