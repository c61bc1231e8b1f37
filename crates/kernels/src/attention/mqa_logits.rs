//! Indexer logits of a prefill: every query has a range of the keys.
//!
//! `logit[q, j] = scale[j] * sum over heads of  relu(Q[q,h] . KV[j]) * weight[q,h]` for `start[q] <= j < end[q]`, and -inf elsewhere.
//!
//! Persistent. A unit of work is a block of queries, as many as have 256 heads together (128 where each has few), and some of the
//! tiles of keys that they see; all blocks of the grid have about the same number of tiles. Four
//! warpgroups multiply, each 64 keys of a stage with half of the heads; while one of them sums, the tensor core works on what
//! the others have issued. A fifth one serves them: a thread loads keys, a warp lays out what is to be known of the
//! unit after next, and two warps write -inf where no query of a block sees a key, which so costs no pass of its own.

use crate::attention::{
    Counting, Heads, LogitFlags, Memory, MemoryShape, Part, Ranges, Row, Share, Span, TILE_KEYS, logit_size,
};
use crate::common::pipeline::Cursor;
use crate::common::{WARP, WARPGROUP};
use oxigemm_ptx::tma::{LoadOptions, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{BuildError, F32, Global, Kernel, Module, Shared, Target, U32, Var};

/// Warps that write -inf.
const CLEARING_WARPS: u32 = 2;

/// Warpgroups that multiply: those of either half of the columns share out the keys of a stage. One more serves them.
const MATH_WARPGROUPS: u32 = 2 * KEY_PARTS;
/// Parts of 64 keys that a stage has.
const KEY_PARTS: u32 = TILE_KEYS / 64;
const MATH_WARPS: u32 = MATH_WARPGROUPS * 4;
const THREADS: u32 = (MATH_WARPGROUPS + 1) * WARPGROUP;
/// Registers of a thread that serves, and of one that multiplies: together what the block was launched with.
const SERVING_REGISTERS: u32 = 32;
const MATH_REGISTERS: u32 = 112;

/// What is compiled in. Shapes, ranges and the output type are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The heads of a query.
    pub heads: Heads,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        format!("fp8_mqa_logits_h{}_d{}", self.heads.heads, self.heads.dim)
    }

    /// Columns of the products, and rows of Q that one tensor load brings: the heads of a block of queries. Where queries have
    /// few, their many sums need registers.
    pub fn columns(&self) -> u32 {
        if self.heads.heads >= 32 { 256 } else { 128 }
    }

    /// Columns of a warpgroup's products.
    fn half(&self) -> u32 {
        self.columns() / 2
    }

    /// Queries of a block.
    pub fn block_queries(&self) -> u32 {
        self.columns() / self.heads.heads
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory.
    pub fn shared_bytes(&self) -> u32 {
        self.memory().bytes()
    }

    fn memory(&self) -> MemoryShape {
        let stages = if self.heads.dim == 128 { 8 } else { 12 };
        MemoryShape {
            heads: self.heads,
            queries: self.block_queries(),
            stages,
            scale_pitch: TILE_KEYS * 4,
            math_warps: MATH_WARPS,
            words: THREADS / WARP,
        }
    }

    /// Queries whose heads these are.
    fn half_queries(&self) -> u32 {
        self.half() / self.heads.heads
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// The parameters, in order.
struct Params<'k> {
    queries: TensorMap<'k>,
    keys: TensorMap<'k>,
    scales: TensorMap<'k>,
    weights: Global<'k>,
    starts: Global<'k>,
    ends: Global<'k>,
    logits: Global<'k>,
    /// Elements from the weights, and the logits, of one query to those of the next.
    weights_pitch: U32<'k>,
    logits_pitch: U32<'k>,
    query_count: U32<'k>,
    key_count: U32<'k>,
    /// Columns of the logits.
    columns: U32<'k>,
    flags: U32<'k>,
}

impl<'k> Params<'k> {
    fn declare(k: &'k Kernel) -> Self {
        Params {
            queries: k.param_tensor_map("queries"),
            keys: k.param_tensor_map("keys"),
            scales: k.param_tensor_map("scales"),
            weights: k.param_pointer("weights"),
            starts: k.param_pointer("starts"),
            ends: k.param_pointer("ends"),
            logits: k.param_pointer("logits"),
            weights_pitch: k.param("weights_pitch"),
            logits_pitch: k.param("logits_pitch"),
            query_count: k.param("query_count"),
            key_count: k.param("key_count"),
            columns: k.param("columns"),
            flags: k.param("flags"),
        }
    }
}

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    memory: Memory<'k>,
    ranges: Ranges<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k);
    let memory = Memory::new(k, cfg.memory());
    let (warp, lane) = (k.warp_index(), k.lane());
    let ranges = Ranges {
        starts: params.starts,
        ends: params.ends,
        query_count: params.query_count,
        key_count: params.key_count,
        columns: params.columns,
        block_queries: cfg.block_queries(),
    };
    let counting = Counting { ranges, words: memory.words(), warps: THREADS / WARP };
    let block = Block { k, cfg, params, memory, ranges, warp, lane };
    let (key_warp, unit_warp, clearing_warp) = (MATH_WARPS, MATH_WARPS + 1, MATH_WARPS + 2);
    let maps = [&block.params.queries, &block.params.keys, &block.params.scales];
    block.memory.begin(k, (warp, key_warp), lane, maps, MATH_WARPS + 1);
    counting.count(k, warp, lane);
    k.sync_threads();
    k.if_else(
        warp.ge(key_warp),
        || {
            k.registers_down(SERVING_REGISTERS);
            k.if_(warp.eq(key_warp), || k.if_(k.elect(), || k.role("keys", || block.load_keys())));
            k.if_(warp.eq(unit_warp), || k.role("units", || block.lay_out_units(counting.part(k))));
            k.if_(warp.ge(clearing_warp), || k.role("clear", || block.clear(warp - clearing_warp)));
        },
        || {
            k.registers_up(MATH_REGISTERS);
            k.role("math", || block.multiply());
        },
    );
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The warp that says what each unit is: its queries, their weights and ranges, and the tiles of this block.
    fn lay_out_units(&self, part: Part<'k>) {
        let (k, memory, lane) = (self.k, &self.memory, self.lane);
        let queries = self.cfg.block_queries();
        let cursor = memory.slots.writer();
        let (step, counted) = (k.var_from(part.steps), k.var_from(part.counted));
        k.while_(
            || counted.live().lt(part.end) & step.live().lt(self.ranges.steps()),
            || {
                let first_query = step.get() * WARP;
                let seen = self.ranges.seen(k, lane, first_query);
                k.for_(0, WARP, queries, |nth| {
                    let of_block = |value| k.shuffle(Shuffle::Index, value, nth);
                    let (tile, tiles) = (of_block(seen.tile), of_block(seen.tiles));
                    // Its tiles come behind what it takes to begin it.
                    let at = counted.get() + 1;
                    let behind = |count: U32<'k>| count.max(at) - at;
                    let [from, to] = [part.begin, part.end].map(|count| behind(count).min(tiles));
                    k.if_(from.lt(to), || {
                        let of_lane = |value| k.shuffle(Shuffle::Index, value, nth + lane % queries);
                        let (first, count) = (of_lane(seen.first), of_lane(seen.count));
                        self.lay_out(&cursor, first_query + nth, [tile + from, tile + to], [first, count]);
                    });
                    counted.set_if((first_query + nth).lt(self.params.query_count), at + tiles);
                });
                step.set(step.live() + 1);
            },
        );
        memory.end_units(&cursor, lane);
    }

    /// One unit: of the query of each lane the first key that it sees, and how many.
    fn lay_out(
        &self,
        cursor: &Cursor<'k>,
        query: U32<'k>,
        tiles: [U32<'k>; 2],
        [first, count]: [U32<'k>; 2],
    ) {
        let (k, p, memory, lane) = (self.k, &self.params, &self.memory, self.lane);
        let (queries, heads) = (self.cfg.block_queries(), self.cfg.heads.heads);
        cursor.wait_empty();
        let slot = cursor.stage();
        k.if_(lane.lt(queries), || self.row(query + lane, [first, count]).store(memory.row(slot, lane)));
        // Few at a time, as this warp has few registers.
        let turns: Vec<u32> = (0..self.cfg.columns() / WARP).collect();
        for turns in turns.chunks(4) {
            let weight = |turn: &u32| {
                let column = lane + turn * WARP;
                let (query, head) = (query + column / heads, column % heads);
                let at = query.widening_mul(p.weights_pitch) + head.to_u64();
                p.weights.at(at * 4u64).load_readonly_if(query.lt(p.query_count), 0.0)
            };
            let weights: Vec<F32<'k>> = turns.iter().map(weight).collect();
            for (turn, weight) in turns.iter().zip(weights) {
                memory.weights(slot).at((lane + turn * WARP) * 4).store(Heads::halved(weight));
            }
        }
        k.if_(lane.eq(0), || {
            memory.set_span(slot, &Span { tiles, sequence: k.constant(0), is_unit: k.constant(1) });
        });
        memory.announce(slot, lane, k.constant(self.cfg.memory().query_bytes()), |known| {
            let at = [k.constant(0), query * heads];
            p.queries.load(&at, memory.queries(slot), known, LoadOptions::default());
        });
        cursor.advance();
    }

    /// How the logits of a query are written.
    fn row(&self, query: U32<'k>, [first, count]: [U32<'k>; 2]) -> Row<'k> {
        let p = &self.params;
        let clean = (p.flags & LogitFlags::CLEAN).ne(0);
        let compressed = (p.flags & LogitFlags::COMPRESSED).ne(0);
        let skipped: U32<'k> = compressed.select(first, 0u32);
        let start = query.widening_mul(p.logits_pitch) - skipped.to_u64();
        let all: U32<'k> = query.lt(p.query_count).select(p.key_count, 0u32);
        Row {
            first,
            count,
            stored_first: clean.select(0u32, first),
            stored_count: clean.select(all, count),
            at: p.logits.address() + start * logit_size(p.flags).to_u64(),
        }
    }

    /// The thread that loads keys and their scales.
    fn load_keys(&self) {
        let (k, p, memory) = (self.k, &self.params, &self.memory);
        let (cursor, slots) = (memory.ring.writer(), memory.slots.reader());
        memory.for_each_unit(&slots, |slot, Span { tiles: [first, end], .. }| {
            memory.slots.empty(slot).arrive();
            slots.advance();
            k.for_(first, end, 1, |tile| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = memory.ring.full(stage);
                full.arrive_expecting(self.cfg.memory().stage_bytes());
                let (zero, key) = (k.constant(0), tile * TILE_KEYS);
                p.keys.load(&[zero, key], memory.keys(stage), full, LoadOptions::default());
                p.scales.load(&[key, zero], memory.scales(stage), full, LoadOptions::default());
                cursor.advance();
            });
        });
        k.launch_dependents();
    }

    /// A warp that writes -inf to the tiles that no query of some blocks sees, of all that the grid has.
    fn clear(&self, nth: U32<'k>) {
        let (k, p) = (self.k, &self.params);
        let queries = self.cfg.block_queries();
        k.if_((p.flags & LogitFlags::CLEAN).ne(0), || {
            let (first, step) = (k.block_index(0) * CLEARING_WARPS + nth, k.grid_blocks(0) * CLEARING_WARPS);
            k.for_(first, p.query_count.div_ceil(queries), step, |block| {
                let seen = self.ranges.seen(k, self.lane, block * queries);
                let [tile, tiles] = [seen.tile, seen.tiles].map(|value| k.shuffle(Shuffle::Index, value, 0));
                let none = k.constant(0);
                k.for_(block * queries, ((block + 1) * queries).min(p.query_count), 1, |query| {
                    for keys in [[none, tile * TILE_KEYS], [(tile + tiles) * TILE_KEYS, p.key_count]] {
                        self.row(query, [none; 2]).clear(k, self.lane, keys, p.flags);
                    }
                });
            });
        });
    }

    /// A math warpgroup: 64 keys of each stage with the heads of half of the block's queries.
    fn multiply(&self) {
        let (k, memory) = (self.k, &self.memory);
        let math = Math::new(self);
        let slots = memory.slots.reader();
        memory.for_each_unit(&slots, |slot, Span { tiles: [first, end], .. }| {
            let unit = math.begin(slot);
            k.for_(first, end, 1, |tile| math.multiply_tile(&unit, tile));
            memory.done(&slots, self.lane);
        });
    }
}

/// A math warp's state.
struct Math<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    cursor: Cursor<'k>,
    /// Which half of the columns it has.
    half: U32<'k>,
    /// Its keys in the first stage.
    keys: Descriptor<'k>,
    /// The first of this warp's keys in a tile.
    first_key: U32<'k>,
    share: Share<'k>,
    products: Vec<Var<'k, f32>>,
    weights: Vec<Var<'k, f32>>,
}

/// What a math warp knows of a unit.
struct Begun<'k> {
    queries: Descriptor<'k>,
    /// The first [`Row`] of which a thread has logits.
    rows: Shared<'k>,
}

impl<'k, 'b, 'c> Math<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, columns) = (block.k, block.cfg.half() as usize);
        let warpgroup = block.warp >> 2;
        let (half, key_part) = (warpgroup / KEY_PARTS, warpgroup % KEY_PARTS);
        let keys = block.memory.keys(k.constant(0)).at(key_part * (64 * block.cfg.heads.dim));
        Math {
            block,
            cursor: block.memory.ring.reader(),
            half,
            keys: Descriptor::k_major(keys, block.cfg.heads.swizzle()),
            first_key: key_part * 64 + (block.warp & 3) * 16,
            share: Share::new(block.cfg.half_queries(), block.lane),
            products: k.fragment(columns / 2),
            weights: k.fragment(columns / 4),
        }
    }

    /// What does not change from tile to tile.
    fn begin(&self, slot: U32<'k>) -> Begun<'k> {
        let &Block { cfg, lane, ref memory, .. } = self.block;
        let columns = cfg.half();
        Heads::load_weights(memory.weights(slot).at(self.half * (columns * 4)), lane, &self.weights);
        let queries = memory.queries(slot).at(self.half * (columns * cfg.heads.dim));
        let first_query = self.share.first_query() + self.half * cfg.half_queries();
        Begun {
            queries: Descriptor::k_major(queries, cfg.heads.swizzle()),
            rows: memory.row(slot, first_query),
        }
    }

    /// Multiplies, sums and stores. While this warpgroup sums, the tensor core works on what the others have issued.
    fn multiply_tile(&self, unit: &Begun<'k>, tile: U32<'k>) {
        let &Block { k, cfg, lane, ref memory, ref params, .. } = self.block;
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        k.wgmma_fence();
        let keys = self.keys.advance(stage * memory.key_bytes());
        cfg.heads.multiply(k, &self.products, keys, unit.queries);
        k.wgmma_commit();
        let keys: Vec<U32<'k>> = self.share.keys().into_iter().map(|key| self.first_key + key).collect();
        let load_scales = || -> Vec<F32<'k>> {
            let scales = memory.scales(stage);
            keys.iter().map(|&key| scales.at(key * 4).load()).collect()
        };
        // Of two keys they would need registers that the sums leave none of.
        let early = (keys.len() == 1).then(load_scales);
        k.wgmma_wait(0);
        let own = cfg.heads.own_sums(&self.products, &self.weights);
        let scales = early.unwrap_or_else(load_scales);
        memory.release(stage, lane);
        self.cursor.advance();
        let sums = Heads::share_out(k, lane, own);
        for (query, sums) in (0u32..).zip(sums.chunks(keys.len())) {
            let row = Row::load(unit.rows.at(query * Row::BYTES));
            for ((&sum, &scale), &key) in sums.iter().zip(&scales).zip(&keys) {
                let key = tile * TILE_KEYS + key;
                row.put(k, key, sum * scale, params.flags, self.share.stores());
            }
        }
    }
}
