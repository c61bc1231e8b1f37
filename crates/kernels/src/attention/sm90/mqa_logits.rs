//! MQA logits of a prefill: every query has a range of keys.
//!
//! `logit[q, j] = scale[j] * sum over heads of  relu(Q[q,h] . KV[j]) * weight[q,h]`
//! for `start[q] <= j < end[q]`, and -inf elsewhere.
//!
//! Persistent and warp-specialized. A work unit is a query block, as many queries as have 256 heads together (128 where
//! each has few), and some of the key tiles that they see; all CTAs have about the same number of tiles. Four math
//! warpgroups multiply 64 keys of a stage with half of the heads each; while one of them reduces, the tensor core works
//! on what the others have issued. A fifth warpgroup holds the other roles: a thread produces keys, a warp produces
//! units, and two warps fill with -inf where no query of a query block sees a key, so that this needs no pass of its
//! own.

use super::heads::LogitLayout;
use super::logits::{LogitRow, head_count, logit_size};
use super::scheduler::{CostCount, CostRange, KeyRanges};
use super::smem::{Smem, SmemShape, WorkUnit};
use crate::attention::shape::{HeadTile, Heads, LogitFlags, TILE_KEYS};
use crate::common::params::kernel_params;
use crate::common::pipeline::Cursor;
use crate::common::{WARP, WARPGROUP};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Shared, Target, U32, Var};

/// Warps that fill with -inf.
const FILL_WARPS: u32 = 2;

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
            queries: self.block_queries(),
            stages,
            scale_pitch: TILE_KEYS * 4,
            math_warps: MATH_WARPS,
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

/// Arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Tensor map of Q: rows are heads; a load brings [`Config::columns`] of them. For a padded kernel: elements, heads,
    /// queries; a load brings the padded heads of [`Config::block_queries`].
    pub queries: [u64; 16],
    /// Tensor map of the keys; a load brings [`TILE_KEYS`].
    pub keys: [u64; 16],
    /// Tensor map of the keys' scales; a load brings [`TILE_KEYS`].
    pub scales: [u64; 16],
    /// Address of the weights.
    pub weights: u64,
    /// Address of the first key of each query.
    pub starts: u64,
    /// Address of the end of each query's keys.
    pub ends: u64,
    /// Address of the logits.
    pub logits: u64,
    /// Pitch of the weights in elements.
    pub weights_pitch: u32,
    /// Pitch of the logits in elements.
    pub logits_pitch: u32,
    /// Number of queries.
    pub query_count: u32,
    /// Number of keys.
    pub key_count: u32,
    /// Columns of the logits.
    pub columns: u32,
    /// [`LogitFlags`].
    pub flags: u32,
}

kernel_params! {
    struct Params from Args {
        queries: TensorMap = queries,
        keys: TensorMap = keys,
        scales: TensorMap = scales,
        weights: Pointer = weights,
        starts: Pointer = starts,
        ends: Pointer = ends,
        logits: Pointer = logits,
        weights_pitch: U32 = weights_pitch,
        logits_pitch: U32 = logits_pitch,
        query_count: U32 = query_count,
        key_count: U32 = key_count,
        columns: U32 = columns,
        flags: U32 = flags,
    }
}

/// Context that every role of the kernel works with.
struct Cta<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    smem: Smem<'k>,
    ranges: KeyRanges<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
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
    let cta = Cta { k, cfg, params, smem, ranges, warp, lane };
    let (key_warp, unit_warp, fill_warp) = (MATH_WARPS, MATH_WARPS + 1, MATH_WARPS + 2);
    let maps = [&cta.params.queries, &cta.params.keys, &cta.params.scales];
    cta.smem.begin(k, (warp, key_warp), lane, maps, MATH_WARPS + 1);
    costs.count(k, warp, lane);
    k.sync_threads();
    k.if_else(
        warp.ge(key_warp),
        || {
            k.registers_down(PRODUCER_REGISTERS);
            k.if_(warp.eq(key_warp), || k.if_(k.elect(), || k.role("keys", || cta.load_keys())));
            k.if_(warp.eq(unit_warp), || k.role("units", || cta.produce_units(costs.cta_range(k))));
            k.if_(warp.ge(fill_warp), || k.role("fill", || cta.fill(warp - fill_warp)));
        },
        || {
            k.registers_up(MATH_REGISTERS);
            k.role("math", || cta.multiply());
        },
    );
    k.finish()
}

impl<'k> Cta<'k, '_> {
    /// Unit producer warp: queries, their weights and ranges, and the tiles of this CTA.
    fn produce_units(&self, range: CostRange<'k>) {
        let (k, smem, lane) = (self.k, &self.smem, self.lane);
        let queries = self.cfg.block_queries();
        let cursor = smem.unit_pipeline.writer();
        let (step, cost) = (k.var_from(range.steps), k.var_from(range.cost));
        k.while_(
            || cost.live().lt(range.end) & step.live().lt(self.ranges.steps()),
            || {
                let first_query = step.get() * WARP;
                let visible = self.ranges.visible(k, lane, first_query);
                k.for_(0, WARP, queries, |nth| {
                    let of_block = |value| k.shuffle(Shuffle::Index, value, nth);
                    let (tile, tiles) = (of_block(visible.tile), of_block(visible.tiles));
                    // Its tiles come behind the cost of its start.
                    let at = cost.get() + 1;
                    let behind = |count: U32<'k>| count.max(at) - at;
                    let [from, to] = [range.begin, range.end].map(|count| behind(count).min(tiles));
                    k.if_(from.lt(to), || {
                        let of_lane = |value| k.shuffle(Shuffle::Index, value, nth + lane % queries);
                        let (first, count) = (of_lane(visible.first), of_lane(visible.count));
                        self.produce_unit(
                            &cursor,
                            first_query + nth,
                            [tile + from, tile + to],
                            [first, count],
                        );
                    });
                    cost.set_if((first_query + nth).lt(self.params.query_count), at + tiles);
                });
                step.set(step.live() + 1);
            },
        );
        smem.end_units(&cursor, lane);
    }

    /// One unit, from the range of each lane's query: the first key, and how many.
    fn produce_unit(
        &self,
        cursor: &Cursor<'k>,
        query: U32<'k>,
        tiles: [U32<'k>; 2],
        [first, count]: [U32<'k>; 2],
    ) {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let (queries, heads) = (self.cfg.block_queries(), self.cfg.heads().heads);
        cursor.wait_empty();
        let slot = cursor.stage();
        k.if_(lane.lt(queries), || self.row(query + lane, [first, count]).store(smem.row(slot, lane)));
        // Four loads at a time: this warp has few registers.
        let steps: Vec<u32> = (0..self.cfg.columns() / WARP).collect();
        for steps in steps.chunks(4) {
            let weight = |step: &u32| {
                let column = lane + step * WARP;
                let (query, head) = (query + column / heads, column % heads);
                let at = query.widening_mul(p.weights_pitch) + head.to_u64();
                let from = p.weights.at(at * 4u64);
                let exists = query.lt(p.query_count);
                let exists =
                    if self.cfg.tile.padded { exists & head.lt(head_count(p.flags)) } else { exists };
                from.load_readonly_if(exists, 0.0)
            };
            let weights: Vec<F32<'k>> = steps.iter().map(weight).collect();
            for (step, weight) in steps.iter().zip(weights) {
                smem.weights(slot).at((lane + step * WARP) * 4).store(Heads::halved(weight));
            }
        }
        k.if_(lane.eq(0), || {
            smem.set_unit(slot, &WorkUnit { tiles, sequence: k.constant(0), is_unit: k.constant(1) });
        });
        smem.commit_unit(slot, lane, k.constant(self.cfg.smem().query_bytes()), |full| {
            let zero = k.constant(0);
            let at = if self.cfg.tile.padded { vec![zero, zero, query] } else { vec![zero, query * heads] };
            p.queries.load(&at, smem.queries(slot), full, LoadOptions::default());
        });
        cursor.advance();
    }

    /// Output row of a query.
    fn row(&self, query: U32<'k>, [first, count]: [U32<'k>; 2]) -> LogitRow<'k> {
        let p = &self.params;
        let clean = (p.flags & LogitFlags::CLEAN).ne(0);
        let compressed = (p.flags & LogitFlags::COMPRESSED).ne(0);
        let skipped: U32<'k> = compressed.select(first, 0u32);
        let start = query.widening_mul(p.logits_pitch) - skipped.to_u64();
        let all: U32<'k> = query.lt(p.query_count).select(p.key_count, 0u32);
        LogitRow {
            first,
            count,
            stored_first: clean.select(0u32, first),
            stored_count: clean.select(all, count),
            at: p.logits.address() + start * logit_size(p.flags).to_u64(),
        }
    }

    /// Key producer thread: keys and their scales.
    fn load_keys(&self) {
        let (k, p, smem) = (self.k, &self.params, &self.smem);
        let (cursor, slots) = (smem.key_pipeline.writer(), smem.unit_pipeline.reader());
        smem.for_each_unit(&slots, |slot, WorkUnit { tiles: [first, end], .. }| {
            smem.unit_pipeline.empty(slot).arrive();
            slots.advance();
            k.for_(first, end, 1, |tile| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = smem.key_pipeline.full(stage);
                full.arrive_expecting(self.cfg.smem().stage_bytes());
                let (zero, key) = (k.constant(0), tile * TILE_KEYS);
                p.keys.load(&[zero, key], smem.keys(stage), full, LoadOptions::default());
                p.scales.load(&[key, zero], smem.scales(stage), full, LoadOptions::default());
                cursor.advance();
            });
        });
        k.launch_dependents();
    }

    /// Fill warp: -inf for the tiles that no query of a query block sees, for some of the grid's query blocks.
    fn fill(&self, nth: U32<'k>) {
        let (k, p) = (self.k, &self.params);
        let queries = self.cfg.block_queries();
        k.if_((p.flags & LogitFlags::CLEAN).ne(0), || {
            let (first, step) = (k.block_index(0) * FILL_WARPS + nth, k.grid_blocks(0) * FILL_WARPS);
            k.for_(first, p.query_count.div_ceil(queries), step, |block| {
                let visible = self.ranges.visible(k, self.lane, block * queries);
                let [tile, tiles] =
                    [visible.tile, visible.tiles].map(|value| k.shuffle(Shuffle::Index, value, 0));
                let none = k.constant(0);
                k.for_(block * queries, ((block + 1) * queries).min(p.query_count), 1, |query| {
                    for keys in [[none, tile * TILE_KEYS], [(tile + tiles) * TILE_KEYS, p.key_count]] {
                        self.row(query, [none; 2]).fill(k, self.lane, keys, p.flags);
                    }
                });
            });
        });
    }

    /// Math warpgroup: 64 keys of each stage with the heads of half of the query block's queries.
    fn multiply(&self) {
        let (k, smem) = (self.k, &self.smem);
        let consumer = Consumer::new(self);
        let slots = smem.unit_pipeline.reader();
        smem.for_each_unit(&slots, |slot, WorkUnit { tiles: [first, end], .. }| {
            let unit = consumer.begin(slot);
            k.for_(first, end, 1, |tile| consumer.multiply_tile(&unit, tile));
            smem.release_unit(&slots, self.lane);
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
        let (k, columns) = (cta.k, cta.cfg.half() as usize);
        let warpgroup = cta.warp >> 2;
        let (half, key_part) = (warpgroup / KEY_PARTS, warpgroup % KEY_PARTS);
        let keys = cta.smem.keys(k.constant(0)).at(key_part * (64 * cta.cfg.heads().dim));
        Consumer {
            cta,
            cursor: cta.smem.key_pipeline.reader(),
            half,
            keys: Descriptor::k_major(keys, cta.cfg.heads().swizzle()),
            first_key: key_part * 64 + (cta.warp & 3) * 16,
            layout: LogitLayout::new(cta.cfg.half_queries(), cta.lane),
            accumulators: k.fragment(columns / 2),
            weights: k.fragment(columns / 4),
        }
    }

    /// Loads what does not change from tile to tile.
    fn begin(&self, slot: U32<'k>) -> MathUnit<'k> {
        let &Cta { cfg, lane, ref smem, .. } = self.cta;
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
        let &Cta { k, cfg, lane, ref smem, ref params, .. } = self.cta;
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
