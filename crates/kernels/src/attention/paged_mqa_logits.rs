//! Indexer logits of a decode step: the keys of each sequence lie in pages, which a table names.
//!
//! `logit[b, n, j] = scale[j] * sum over heads of  relu(Q[b,n,h] . KV[b,j]) * weight[b,n,h]` for `j < length[b,n]`, and -inf behind.
//!
//! Memory is what limits it. A [schedule](crate::attention::paged_metadata) gives every block of the grid as many tiles of keys as the others,
//! of a few sequences that follow one another. Two warpgroups multiply, each 64 keys of a stage with the heads of one
//! query after another. A third one serves them: a warp loads pages, one lays out what is to be known of the next sequence,
//! and two write -inf behind the sequences' ends.

use crate::attention::paged_metadata::Lengths;
use crate::attention::{Heads, LogitFlags, Memory, MemoryShape, Row, Share, Span, TILE_KEYS, logit_size};
use crate::common::pipeline::Cursor;
use crate::gemm::sm90::warpgroups::{MATH_WARPS, THREADS};
use oxigemm_ptx::tma::{LoadOptions, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{BuildError, F32, Global, Kernel, Module, Target, U32, Var};

/// Queries of a sequence, at most.
pub const MAX_NEXT: u32 = 4;
/// Keys of a page.
pub const PAGE_SIZES: [u32; 4] = [16, 32, 64, 128];
/// Warps that write -inf.
const CLEARING_WARPS: u32 = 2;
/// Queries whose products are kept at a time.
const BUFFERS: u32 = 2;
/// Bytes of stages that a block has at most. With more, an H200 was slower: perhaps as loads that are not needed yet drive more
/// out of the L2 cache, which then has to be written.
const IN_FLIGHT: u32 = 100 << 10;

/// Bytes between the scales of two pages in shared memory: the copy engine writes to multiples of 128.
const fn scale_bytes(page_keys: u32) -> u32 {
    if page_keys * 4 > 128 { page_keys * 4 } else { 128 }
}

/// What is compiled in. Shapes, lengths, the size of pages and the output type are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The heads of a query.
    pub heads: Heads,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        format!("sm90_fp8_paged_mqa_logits_h{}_d{}", self.heads.heads, self.heads.dim)
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
        let scale_pitch =
            PAGE_SIZES.map(|keys| TILE_KEYS / keys * scale_bytes(keys)).into_iter().max().unwrap_or(0);
        let one = MemoryShape {
            heads: self.heads,
            queries: MAX_NEXT,
            stages: 1,
            scale_pitch,
            math_warps: MATH_WARPS,
            words: 0,
        };
        MemoryShape { stages: (IN_FLIGHT / one.stage_bytes()).min(16), ..one }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// The parameters, in order.
struct Params<'k> {
    /// Rows are heads; a load brings those of all queries of a sequence.
    queries: TensorMap<'k>,
    /// Elements, keys of a page, pages; a load brings a page.
    keys: TensorMap<'k>,
    /// Keys of a page, pages.
    scales: TensorMap<'k>,
    weights: Global<'k>,
    table: Global<'k>,
    schedule: Global<'k>,
    logits: Global<'k>,
    lengths: Lengths<'k>,
    weights_pitch: U32<'k>,
    table_pitch: U32<'k>,
    logits_pitch: U32<'k>,
    /// Columns of the logits.
    columns: U32<'k>,
    /// Keys of a page, and how many pages there are.
    page_keys: U32<'k>,
    pages: U32<'k>,
    flags: U32<'k>,
}

impl<'k> Params<'k> {
    fn declare(k: &'k Kernel) -> Self {
        Params {
            queries: k.param_tensor_map("queries"),
            keys: k.param_tensor_map("keys"),
            scales: k.param_tensor_map("scales"),
            weights: k.param_pointer("weights"),
            table: k.param_pointer("table"),
            schedule: k.param_pointer("schedule"),
            logits: k.param_pointer("logits"),
            lengths: Lengths::declare(k),
            weights_pitch: k.param("weights_pitch"),
            table_pitch: k.param("table_pitch"),
            logits_pitch: k.param("logits_pitch"),
            columns: k.param("columns"),
            page_keys: k.param("page_keys"),
            pages: k.param("pages"),
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
    block.memory.begin(k, (warp, key_warp), lane, maps, MATH_WARPS);
    k.if_else(
        warp.ge(key_warp),
        || {
            k.if_(warp.eq(key_warp), || k.role("keys", || block.load_keys()));
            k.if_(warp.eq(unit_warp), || k.role("units", || block.lay_out_units()));
            k.if_(warp.ge(clearing_warp), || k.role("clear", || block.clear(warp - clearing_warp)));
        },
        || k.role("math", || block.multiply()),
    );
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// What the schedule gives this block, as its warps that load read it for themselves: sequences, the first tile of each
    /// and the one behind the last, and how many keys some query sees. `body` may be called for a sequence without tiles.
    fn for_each_sequence(&self, body: impl FnOnce(Span<'k>, U32<'k>)) {
        let (k, p) = (self.k, &self.params);
        let part = p.schedule.at(k.block_index(0).widening_mul(8));
        // Read as loads of one word each: the caller's schedule may lie anywhere.
        let [first, first_tile, last, last_end] =
            [0u32, 4, 8, 12].map(|at| part.at(u64::from(at)).load_readonly());
        let end = (last + last_end.ne(0).select(1u32, 0u32)).min(p.lengths.sequences);
        k.for_(first, end, 1, |sequence| {
            let longest = self.limited(p.lengths.longest(sequence));
            let tiles = longest.div_ceil(TILE_KEYS);
            let begin: U32<'k> = sequence.eq(first).select(first_tile, 0u32);
            let behind: U32<'k> = sequence.eq(last).select(last_end.min(tiles), tiles);
            body(Span { tiles: [begin, behind], sequence, is_unit: k.constant(1) }, longest);
        });
    }

    /// The warp that says which sequences this block has a part of, and what their queries, weights and lengths are.
    fn lay_out_units(&self) {
        let (k, p, memory, lane) = (self.k, &self.params, &self.memory, self.lane);
        let (heads, next) = (self.cfg.heads.heads, p.lengths.next);
        let cursor = memory.slots.writer();
        self.for_each_sequence(|span, _| {
            let Span { tiles: [begin, behind], sequence, .. } = span;
            let query = sequence * next + lane;
            let is_query = lane.lt(next);
            let row = self.row(query, self.limited(p.lengths.of_query_if(is_query, sequence, lane)));
            let columns = next * heads;
            let weights: Vec<F32<'k>> = (0..(MAX_NEXT * heads).div_ceil(32))
                .map(|turn| {
                    let column = lane + turn * 32;
                    let query = sequence * next + column / heads;
                    let at = query.widening_mul(p.weights_pitch) + (column % heads).to_u64();
                    Heads::halved(p.weights.at(at * 4u64).load_readonly_if(column.lt(columns), 0.0))
                })
                .collect();
            k.if_(begin.lt(behind), || {
                cursor.wait_empty();
                let slot = cursor.stage();
                k.if_(is_query, || row.store(memory.row(slot, lane)));
                for (turn, weight) in (0u32..).zip(&weights) {
                    let column = lane + turn * 32;
                    k.guard(column.lt(MAX_NEXT * heads), || {
                        memory.weights(slot).at(column * 4).store(*weight);
                    });
                }
                k.if_(lane.eq(0), || memory.set_span(slot, &span));
                memory.announce(slot, lane, columns * self.cfg.heads.dim, |known| {
                    let at = [k.constant(0), sequence * columns];
                    p.queries.load(&at, memory.queries(slot), known, LoadOptions::default());
                });
                cursor.advance();
            });
        });
        memory.end_units(&cursor, lane);
    }

    /// Bytes between the scales of two pages in shared memory.
    fn scale_bytes(&self) -> U32<'k> {
        (self.params.page_keys * 4).max(scale_bytes(0))
    }

    /// A length as far as there are columns for it.
    fn limited(&self, length: U32<'k>) -> U32<'k> {
        length.min(self.params.columns)
    }

    /// How the logits of a query are written that sees so many keys.
    fn row(&self, query: U32<'k>, count: U32<'k>) -> Row<'k> {
        let (k, p) = (self.k, &self.params);
        let clean = (p.flags & LogitFlags::CLEAN).ne(0);
        let start = query.widening_mul(p.logits_pitch) * logit_size(p.flags).to_u64();
        Row {
            first: k.constant(0),
            count,
            stored_first: k.constant(0),
            stored_count: clean.select(p.columns, count),
            at: p.logits.address() + start,
        }
    }

    /// The warp that loads pages. What the table names outside of the cache reads as zeros, as does what lies behind the
    /// longest of a sequence's lengths.
    fn load_keys(&self) {
        let (k, p, memory, lane) = (self.k, &self.params, &self.memory, self.lane);
        let cursor = memory.ring.writer();
        let per_tile = k.constant(TILE_KEYS) / p.page_keys;
        // What the table has for a sequence, whatever its length.
        let table_pages = p.lengths.limit.div_ceil(p.page_keys);
        self.for_each_sequence(|span, longest| {
            let Span { tiles: [first, end], sequence, .. } = span;
            let pages = longest.div_ceil(p.page_keys);
            let table = p.table.at(sequence.widening_mul(p.table_pitch) * 4u64);
            // A lane for each of 32 pages, which a few tiles share. The first do not wait for the length.
            let entries = |page: U32<'k>| {
                let nth = (page & !31u32) + lane;
                table.at(nth.widening_mul(4)).load_readonly_if::<u32>(nth.lt(table_pages), u32::MAX)
            };
            let some = k.var_from(entries(first * per_tile));
            k.for_(first, end, 1, |tile| {
                let page = tile * per_tile;
                k.if_((page & 31).eq(0) & tile.ne(first), || some.set(entries(page)));
                let entry = k.shuffle(Shuffle::Index, some.get(), (page + lane) & 31);
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = memory.ring.full(stage);
                k.if_(lane.eq(0), || full.arrive_expecting(self.cfg.memory().stage_bytes()));
                k.sync_warp();
                k.if_(lane.lt(per_tile), || {
                    let (zero, row) = (k.constant(0), lane * p.page_keys);
                    let exists = (page + lane).lt(pages) & entry.lt(p.pages);
                    let entry: U32<'k> = exists.select(entry, i32::MAX as u32);
                    let (keys, scales) = (
                        memory.keys(stage).at(row * self.cfg.heads.dim),
                        memory.scales(stage).at(lane * self.scale_bytes()),
                    );
                    p.keys.load(&[zero, zero, entry], keys, full, LoadOptions::default());
                    p.scales.load(&[zero, entry], scales, full, LoadOptions::default());
                });
                k.sync_warp();
                cursor.advance();
            });
        });
        k.launch_dependents();
    }

    /// A warp that writes -inf behind the last tile of sequences, in all logits of the grid.
    fn clear(&self, nth: U32<'k>) {
        let (k, p) = (self.k, &self.params);
        k.if_((p.flags & LogitFlags::CLEAN).ne(0), || {
            let (first, step) = (k.block_index(0) * CLEARING_WARPS + nth, k.grid_blocks(0) * CLEARING_WARPS);
            k.for_(first, p.lengths.sequences * p.lengths.next, step, |query| {
                let tiles = self.limited(p.lengths.longest(query / p.lengths.next)).div_ceil(TILE_KEYS);
                let row = self.row(query, k.constant(0));
                row.clear(k, self.lane, [tiles * TILE_KEYS, p.columns], p.flags);
            });
        });
    }

    /// A math warpgroup: 64 keys of each stage with the heads of one query after another.
    fn multiply(&self) {
        let (k, p, memory) = (self.k, &self.params, &self.memory);
        let math = Math::new(self);
        let slots = memory.slots.reader();
        memory.for_each_unit(&slots, |slot, span| {
            for queries in 1..=MAX_NEXT {
                k.if_(p.lengths.next.eq(queries), || {
                    math.load_weights(slot, queries);
                    math.multiply_tiles(slot, span.tiles, queries);
                });
            }
            memory.done(&slots, self.lane);
        });
    }
}

/// A math warp's state.
struct Math<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    cursor: Cursor<'k>,
    /// This thread's key in a tile, of which it has the sums of a single query, and where its scale is.
    key: U32<'k>,
    scale: U32<'k>,
    share: Share<'k>,
    /// Of one query and of the next.
    products: [Vec<Var<'k, f32>>; BUFFERS as usize],
    /// Those of every query.
    weights: Vec<Vec<Var<'k, f32>>>,
}

impl<'k, 'b, 'c> Math<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, heads) = (block.k, block.cfg.heads.heads as usize);
        let share = Share::new(1, block.lane);
        let key = block.warp * 16 + share.keys()[0];
        let page_keys = block.params.page_keys;
        let weights = |_| (0..heads / 4).map(|_| k.var(0.0f32)).collect();
        Math {
            block,
            cursor: block.memory.ring.reader(),
            key,
            scale: (key / page_keys) * block.scale_bytes() + (key % page_keys) * 4,
            share,
            products: [(); BUFFERS as usize].map(|()| k.fragment(heads / 2)),
            weights: (0..MAX_NEXT).map(weights).collect(),
        }
    }

    fn load_weights(&self, slot: U32<'k>, queries: u32) {
        let Block { cfg, lane, memory, .. } = self.block;
        for (query, weights) in (0..queries).zip(&self.weights) {
            let from = memory.weights(slot).at(query * cfg.heads.heads * 4);
            Heads::load_weights(from, *lane, weights);
        }
    }

    /// All tiles of a unit, whose sequence has this many queries.
    fn multiply_tiles(&self, slot: U32<'k>, [first, end]: [U32<'k>; 2], queries: u32) {
        self.block.k.for_(first, end, 1, |tile| self.multiply_tile(slot, tile, queries));
    }

    /// While the products of one query are summed, the tensor core works on those of the next.
    fn multiply_tile(&self, slot: U32<'k>, tile: U32<'k>, queries: u32) {
        let &Block { k, lane, ref memory, .. } = self.block;
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        let scale: F32<'k> = memory.scales(stage).at(self.scale).load();
        (0..queries.min(BUFFERS)).for_each(|query| self.issue(slot, query));
        for query in 0..queries {
            let behind = queries - query - 1;
            k.wgmma_wait(behind.min(BUFFERS - 1));
            if behind == 0 {
                memory.release(stage, lane);
            }
            self.finish(slot, query, tile, scale);
            if behind >= BUFFERS {
                self.issue(slot, query + BUFFERS);
            }
        }
        self.cursor.advance();
    }

    fn products_of(&self, query: u32) -> &[Var<'k, f32>] {
        &self.products[(query % BUFFERS) as usize]
    }

    /// Has the current tile multiplied with the heads of a query.
    fn issue(&self, slot: U32<'k>, query: u32) {
        let &Block { k, cfg, warp, ref memory, .. } = self.block;
        let keys = memory.keys(self.cursor.stage()).at((warp >> 2) * (64 * cfg.heads.dim));
        let queries = memory.queries(slot).at(query * cfg.heads.heads * cfg.heads.dim);
        let [keys, queries] = [keys, queries].map(|tile| Descriptor::k_major(tile, cfg.heads.swizzle()));
        k.wgmma_fence();
        cfg.heads.multiply(k, self.products_of(query), keys, queries);
        k.wgmma_commit();
    }

    /// Sums the products of a query and stores the logits.
    fn finish(&self, slot: U32<'k>, query: u32, tile: U32<'k>, scale: F32<'k>) {
        let &Block { k, cfg, lane, ref memory, ref params, .. } = self.block;
        let row = Row::load(memory.row(slot, k.constant(query)));
        for sum in cfg.heads.sums(k, lane, self.products_of(query), &self.weights[query as usize]) {
            row.put(k, tile * TILE_KEYS + self.key, sum * scale, params.flags, self.share.stores());
        }
    }
}
