//! Indexer logits of a prefill: every query has a range of the keys.
//!
//! `logit[q, j] = scale[j] * sum over heads of  relu(Q[q,h] . KV[j]) * weight[q,h]` for `start[q] <= j < end[q]`, and -inf elsewhere.
//!
//! Persistent. A unit of work is a block of queries, as many as have 256 heads together (128 where each has few), and a chunk of the keys. Two
//! warpgroups multiply, each 64 keys of a stage with all heads; what they have of one half of the heads they sum while
//! the tensor core works on the other. A third one serves them: a thread loads keys, a warp lays out what is to be known of the
//! unit after next, and two warps write -inf where no query of the block sees a key, which so costs no pass of its own.

use crate::indexer::{Heads, LogitFlags, Memory, MemoryShape, Row, Share, Span, TILE_KEYS, logit_size};
use crate::many_rows::{MATH_REGISTERS, MATH_WARPS, PRODUCER_REGISTERS, THREADS};
use crate::pipeline::Cursor;
use oxigemm_ptx::tma::{LoadOptions, TensorMap};
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{BuildError, F32, Global, I32, Kernel, Module, Target, U32, Var};

/// Warps that write -inf.
const CLEARING_WARPS: u32 = 2;

/// Tiles between whose products the tensor core does not run dry.
const UNROLL: u32 = 2;

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

    /// What the tensor core works on while the other half is summed.
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
        MemoryShape { heads: self.heads, queries: self.block_queries(), stages, scale_pitch: TILE_KEYS * 4 }
    }

    /// Queries of half a block.
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
    /// Columns of compressed logits.
    columns: U32<'k>,
    flags: U32<'k>,
    /// Tiles of a chunk of the keys.
    chunk: U32<'k>,
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
            chunk: k.param("chunk"),
        }
    }
}

/// A block of queries and a chunk of the keys.
#[derive(Clone, Copy)]
struct Unit<'k> {
    /// Its first query.
    query: U32<'k>,
    /// Its first tile of keys, and the one behind its last.
    tiles: [U32<'k>; 2],
}

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    memory: Memory<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k);
    let memory = Memory::new(k, cfg.memory());
    let (warp, lane) = (k.warp_index(), k.lane());
    let block = Block { k, cfg, params, memory, warp, lane };
    let (key_warp, unit_warp, clearing_warp) = (MATH_WARPS, MATH_WARPS + 1, MATH_WARPS + 2);
    let maps = [&block.params.queries, &block.params.keys, &block.params.scales];
    block.memory.begin(k, (warp, key_warp), lane, maps, MATH_WARPS + 1 + CLEARING_WARPS);
    k.if_else(
        warp.ge(key_warp),
        || {
            k.registers_down(PRODUCER_REGISTERS);
            k.if_(warp.eq(key_warp), || k.if_(k.elect(), || k.role("keys", || block.load_keys())));
            k.if_(warp.eq(unit_warp), || k.role("units", || block.lay_out_units()));
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
    /// This block's units. Those of all queries and the first keys come first, so that blocks of the grid read the same
    /// keys at about the same time.
    fn for_each_unit(&self, body: impl FnOnce(Unit<'k>)) {
        let (k, p) = (self.k, &self.params);
        let tiles = p.key_count.div_ceil(TILE_KEYS);
        let blocks = p.query_count.div_ceil(self.cfg.block_queries());
        let units = blocks * tiles.div_ceil(p.chunk);
        k.for_(k.block_index(0), units, k.grid_blocks(0), |unit| {
            let first = (unit / blocks) * p.chunk;
            let query = (unit % blocks) * self.cfg.block_queries();
            body(Unit { query, tiles: [first, (first + p.chunk).min(tiles)] });
        });
    }

    /// The warp that says what each unit is: its queries, their weights and ranges, and the tiles that some of them sees.
    fn lay_out_units(&self) {
        let (k, p, memory, lane) = (self.k, &self.params, &self.memory, self.lane);
        let cursor = memory.slots.writer();
        self.for_each_unit(|unit| {
            let (queries, heads) = (self.cfg.block_queries(), self.cfg.heads.heads);
            let query = unit.query + lane;
            let exists = query.lt(p.query_count) & lane.lt(queries);
            let bound = |bounds: Global<'k>| {
                let bound = bounds.at(query.widening_mul(4)).load_readonly_if::<i32>(exists, 0);
                let bound: I32<'k> = bound.max(0);
                bound.bitcast::<u32>().min(p.key_count)
            };
            let (first, end) = (bound(p.starts), bound(p.ends));
            let count = end.max(first) - first;
            let weights: Vec<F32<'k>> = (0..self.cfg.columns() / 32)
                .map(|turn| {
                    let column = lane + turn * 32;
                    let (query, head) = (unit.query + column / heads, column % heads);
                    let at = query.widening_mul(p.weights_pitch) + head.to_u64();
                    Heads::halved(p.weights.at(at * 4u64).load_readonly_if(query.lt(p.query_count), 0.0))
                })
                .collect();

            // Where no query sees a key, the largest are 0 and the span is empty.
            let sees = count.ne(0);
            let before = k.warp_max(sees.select(first ^ u32::MAX, 0u32)) ^ u32::MAX;
            let behind = k.warp_max(sees.select(end, 0u32));
            let [unit_first, unit_end] = unit.tiles;
            let tile = (before / TILE_KEYS).max(unit_first).min(unit_end);
            let tile_end = behind.div_ceil(TILE_KEYS).min(unit_end).max(tile);

            let clean = (p.flags & LogitFlags::CLEAN).ne(0);
            let compressed = (p.flags & LogitFlags::COMPRESSED).ne(0);
            let skipped: U32<'k> = compressed.select(first, 0u32);
            let start = query.widening_mul(p.logits_pitch) - skipped.to_u64();
            let row = Row {
                first,
                count,
                stored_first: clean.select(0u32, first),
                stored_count: clean.select(exists.select(p.key_count, 0u32), count.min(p.columns)),
                at: p.logits.address() + start * logit_size(p.flags).to_u64(),
            };
            cursor.wait_empty();
            let slot = cursor.stage();
            k.if_(lane.lt(queries), || row.store(memory.row(slot, lane)));
            for (turn, weight) in (0u32..).zip(weights) {
                memory.weights(slot).at((lane + turn * 32) * 4).store(weight);
            }
            let span = Span { tiles: [tile, tile_end], sequence: k.constant(0), is_unit: k.constant(1) };
            k.if_(lane.eq(0), || memory.set_span(slot, &span));
            k.sync_warp();
            k.if_(lane.eq(0), || {
                let known = memory.slots.full(slot);
                known.arrive_expecting(self.cfg.memory().query_bytes());
                let at = [k.constant(0), unit.query * heads];
                p.queries.load(&at, memory.queries(slot), known, LoadOptions::default());
            });
            k.sync_warp();
            cursor.advance();
        });
    }

    /// The thread that loads keys and their scales.
    fn load_keys(&self) {
        let (k, p, memory) = (self.k, &self.params, &self.memory);
        let (cursor, slots) = (memory.ring.writer(), memory.slots.reader());
        self.for_each_unit(|_| {
            let (slot, Span { tiles: [first, end], .. }) = memory.known(&slots);
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

    /// A warp that writes -inf to the tiles that no query of the block sees.
    fn clear(&self, nth: U32<'k>) {
        let (k, p, memory) = (self.k, &self.params, &self.memory);
        let slots = memory.slots.reader();
        self.for_each_unit(|unit| {
            let (slot, Span { tiles: [first, end], .. }) = memory.known(&slots);
            k.if_((p.flags & LogitFlags::CLEAN).ne(0), || {
                k.for_(nth, self.cfg.block_queries(), CLEARING_WARPS, |query| {
                    let row = Row::load(memory.row(slot, query));
                    for [from, to] in [[unit.tiles[0], first], [end, unit.tiles[1]]] {
                        row.clear(k, self.lane, [from * TILE_KEYS, to * TILE_KEYS], p.flags);
                    }
                });
            });
            memory.done(&slots, self.lane);
        });
    }

    /// A math warpgroup: 64 keys of each stage with all heads of the block's queries.
    fn multiply(&self) {
        let (k, memory) = (self.k, &self.memory);
        let math = Math::new(self);
        let slots = memory.slots.reader();
        self.for_each_unit(|_| {
            let (slot, Span { tiles, .. }) = memory.known(&slots);
            k.if_(tiles[0].lt(tiles[1]), || {
                for (half, weights) in (0u32..).zip(&math.weights) {
                    Heads::load_weights(
                        memory.weights(slot).at(half * self.cfg.half() * 4),
                        self.lane,
                        weights,
                    );
                }
                math.multiply_tiles(slot, tiles);
            });
            memory.done(&slots, self.lane);
        });
    }
}

/// A math warp's state.
struct Math<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    cursor: Cursor<'k>,
    /// The first of this warp's keys in a tile.
    first_key: U32<'k>,
    share: Share<'k>,
    /// The products of both halves of the heads, and their weights.
    products: [Vec<Var<'k, f32>>; 2],
    weights: [Vec<Var<'k, f32>>; 2],
}

impl<'k, 'b, 'c> Math<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, half) = (block.k, block.cfg.half() as usize);
        Math {
            block,
            cursor: block.memory.ring.reader(),
            first_key: block.warp * 16,
            share: Share::new(block.cfg.half_queries(), block.lane),
            products: [(); 2].map(|()| k.fragment(half / 2)),
            weights: [(); 2].map(|()| k.fragment(half / 4)),
        }
    }

    /// All tiles of a unit, some at a time.
    fn multiply_tiles(&self, slot: U32<'k>, [first, end]: [U32<'k>; 2]) {
        let k = self.block.k;
        let whole = first + (end - first) / UNROLL * UNROLL;
        k.for_(first, whole, UNROLL, |tile| self.multiply_some(slot, tile, UNROLL));
        k.for_(whole, end, 1, |tile| self.multiply_some(slot, tile, 1));
    }

    /// A few tiles. While the products of one half of the heads are summed, the tensor core works on those of the other, or of
    /// the next tile; while the very last are, on what the other warpgroup has issued.
    fn multiply_some(&self, slot: U32<'k>, first: U32<'k>, tiles: u32) {
        let (k, memory, lane) = (self.block.k, &self.block.memory, self.block.lane);
        self.cursor.wait_full();
        self.issue(slot, 0);
        self.issue(slot, 1);
        for nth in 0..tiles {
            let (tile, is_last) = (first + nth, nth + 1 == tiles);
            let (stage, scales) = (self.cursor.stage(), self.scales());
            k.wgmma_wait(1);
            self.finish(slot, 0, tile, &scales);
            self.cursor.advance();
            if !is_last {
                self.cursor.wait_full();
                self.issue(slot, 0);
            }
            k.wgmma_wait(u32::from(!is_last));
            memory.release(stage, lane);
            self.finish(slot, 1, tile, &scales);
            if !is_last {
                self.issue(slot, 1);
            }
        }
    }

    /// Has the current tile multiplied with half of the heads.
    fn issue(&self, slot: U32<'k>, half: u32) {
        let &Block { k, cfg, warp, .. } = self.block;
        let keys = self.block.memory.keys(self.cursor.stage()).at((warp >> 2) * (64 * cfg.heads.dim));
        let queries = self.block.memory.queries(slot).at(half * cfg.half() * cfg.heads.dim);
        let [keys, queries] = [keys, queries].map(|tile| Descriptor::k_major(tile, cfg.heads.swizzle()));
        k.wgmma_fence();
        cfg.heads.multiply(k, &self.products[half as usize], keys, queries);
        k.wgmma_commit();
    }

    /// The scales of this thread's keys in the current tile.
    fn scales(&self) -> Vec<F32<'k>> {
        let scales = self.block.memory.scales(self.cursor.stage());
        self.share.keys().into_iter().map(|key| scales.at((self.first_key + key) * 4).load()).collect()
    }

    /// Sums the products of half of the heads and stores the logits.
    fn finish(&self, slot: U32<'k>, half: u32, tile: U32<'k>, scales: &[F32<'k>]) {
        let &Block { k, cfg, lane, .. } = self.block;
        let sums = cfg.heads.sums(k, lane, &self.products[half as usize], &self.weights[half as usize]);
        let first = self.share.first_query() + half * cfg.half_queries();
        let keys = self.share.keys();
        for (query, sums) in (0u32..).zip(sums.chunks(keys.len())) {
            let row = Row::load(self.block.memory.row(slot, first + query));
            for ((&sum, &scale), &key) in sums.iter().zip(scales).zip(&keys) {
                let key = tile * TILE_KEYS + self.first_key + key;
                row.put(k, key, sum * scale, self.block.params.flags, self.share.stores());
            }
        }
    }
}
