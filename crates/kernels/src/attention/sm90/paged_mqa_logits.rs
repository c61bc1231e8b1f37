//! Paged MQA logits of a decode step: the keys of each sequence lie in pages of a KV cache, which a block table names.
//!
//! `logit[b, n, j] = scale[j] * sum over heads of  relu(Q[b,n,h] . KV[b,j]) * weight[b,n,h]`
//! for `j < length[b,n]`, and -inf behind.
//!
//! Limited by memory bandwidth. The [schedule metadata](crate::attention::paged_metadata) splits the key tiles evenly
//! over the CTAs, each with a few consecutive sequences. Two math warpgroups multiply 64 keys of a stage with the heads
//! of one query after another. A third warpgroup holds the other roles: a warp produces pages, one produces units
//! (sequences), and two fill with -inf behind the sequences' ends.

use super::heads::LogitLayout;
use super::logits::{LogitRow, logit_size};
use super::smem::{Smem, SmemShape, WorkUnit};
use crate::attention::context_lens::ContextLens;
use crate::attention::shape::{Heads, LogitFlags, MAX_NEXT, PAGE_SIZES, TILE_KEYS};
use crate::common::params::kernel_params;
use crate::common::pipeline::Cursor;
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS, THREADS};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::Descriptor;
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Target, U32, Var};

const _: () = assert!(TILE_KEYS == 64 * MATH_WARPGROUPS);

/// Warps that fill with -inf.
const FILL_WARPS: u32 = 2;
/// Queries whose accumulators are live at a time.
const BUFFERS: u32 = 2;
/// Upper bound for the bytes of all stages. With more, an H200 was slower: perhaps because loads that are not needed
/// yet evict more from L2, which then has to be written back.
const MAX_STAGE_BYTES: u32 = 100 << 10;

/// Bytes between the scales of two pages in shared memory: TMA writes to multiples of 128.
const fn scale_bytes(page_keys: u32) -> u32 {
    if page_keys * 4 > 128 { page_keys * 4 } else { 128 }
}

/// Compile-time configuration. Shapes, lengths, the page size and the output type are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Heads of a query.
    pub heads: Heads,
}

impl Config {
    /// Name of the kernel, unique in the registry.
    pub fn name(&self) -> String {
        format!("sm90_fp8_paged_mqa_logits_h{}_d{}", self.heads.heads, self.heads.dim)
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
        let scale_pitch =
            PAGE_SIZES.map(|keys| TILE_KEYS / keys * scale_bytes(keys)).into_iter().max().unwrap_or(0);
        let one = SmemShape {
            heads: self.heads,
            queries: MAX_NEXT,
            stages: 1,
            scale_pitch,
            math_warps: MATH_WARPS,
            words: 0,
        };
        SmemShape { stages: (MAX_STAGE_BYTES / one.stage_bytes()).min(16), ..one }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Arguments of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Args {
    /// Tensor map of Q: rows are heads; a load brings those of all queries of a sequence.
    pub queries: [u64; 16],
    /// Tensor map of the keys: elements, keys of a page, pages; a load brings a page.
    pub keys: [u64; 16],
    /// Tensor map of the keys' scales: keys of a page, pages; a load brings a page.
    pub scales: [u64; 16],
    /// Address of the weights.
    pub weights: u64,
    /// Address of the block table.
    pub table: u64,
    /// Address of the [schedule](crate::attention::paged_metadata).
    pub schedule: u64,
    /// Address of the logits.
    pub logits: u64,
    /// Address of the context lengths.
    pub lengths: u64,
    /// Number of sequences.
    pub sequences: u32,
    /// Queries of a sequence.
    pub next: u32,
    /// 1 where every query has a length of its own, else 0.
    pub per_query: u32,
    /// Upper bound of a length.
    pub limit: u32,
    /// Pitch of the weights in elements.
    pub weights_pitch: u32,
    /// Pitch of the block table in elements.
    pub table_pitch: u32,
    /// Pitch of the logits in elements.
    pub logits_pitch: u32,
    /// Columns of the logits.
    pub columns: u32,
    /// Keys of a page.
    pub page_keys: u32,
    /// Number of pages.
    pub pages: u32,
    /// [`LogitFlags`].
    pub flags: u32,
}

kernel_params! {
    struct Params from Args {
        queries: TensorMap = queries,
        keys: TensorMap = keys,
        scales: TensorMap = scales,
        weights: Pointer = weights,
        table: Pointer = table,
        schedule: Pointer = schedule,
        logits: Pointer = logits,
        lengths: Pointer = lengths,
        sequences: U32 = sequences,
        next: U32 = next,
        per_query: U32 = per_query,
        limit: U32 = limit,
        weights_pitch: U32 = weights_pitch,
        table_pitch: U32 = table_pitch,
        logits_pitch: U32 = logits_pitch,
        columns: U32 = columns,
        page_keys: U32 = page_keys,
        pages: U32 = pages,
        flags: U32 = flags,
    }
}

/// Context that every role of the kernel works with.
struct Cta<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    lengths: ContextLens<'k>,
    smem: Smem<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let params = Params::declare(k, "");
    let Params { lengths: at, sequences, next, per_query, limit, .. } = params;
    let lengths = ContextLens { at, sequences, next, per_query, limit };
    let smem = Smem::new(k, cfg.smem());
    let (warp, lane) = (k.warp_index(), k.lane());
    let cta = Cta { k, cfg, params, lengths, smem, warp, lane };
    let (key_warp, unit_warp, fill_warp) = (MATH_WARPS, MATH_WARPS + 1, MATH_WARPS + 2);
    let maps = [&cta.params.queries, &cta.params.keys, &cta.params.scales];
    cta.smem.begin(k, (warp, key_warp), lane, maps, MATH_WARPS);
    k.if_else(
        warp.ge(key_warp),
        || {
            k.if_(warp.eq(key_warp), || k.role("keys", || cta.load_keys()));
            k.if_(warp.eq(unit_warp), || k.role("units", || cta.produce_units()));
            k.if_(warp.ge(fill_warp), || k.role("fill", || cta.fill(warp - fill_warp)));
        },
        || k.role("math", || cta.multiply()),
    );
    k.finish()
}

impl<'k> Cta<'k, '_> {
    /// Loop over the sequences that the schedule gives this CTA, which each producer warp reads for itself: the unit,
    /// and the most keys that a query sees. `body` may be called for a sequence without tiles.
    fn for_each_sequence(&self, body: impl FnOnce(WorkUnit<'k>, U32<'k>)) {
        let (k, p) = (self.k, &self.params);
        let entry = p.schedule.at(k.block_index(0).widening_mul(8));
        // Loads of one word each: the caller's schedule has any alignment.
        let [first, first_tile, last, last_end] =
            [0u32, 4, 8, 12].map(|at| entry.at(u64::from(at)).load_readonly());
        let end = (last + last_end.ne(0).select(1u32, 0u32)).min(self.lengths.sequences);
        k.for_(first, end, 1, |sequence| {
            let longest = self.limited(self.lengths.longest(sequence));
            let tiles = longest.div_ceil(TILE_KEYS);
            let begin: U32<'k> = sequence.eq(first).select(first_tile, 0u32);
            let behind: U32<'k> = sequence.eq(last).select(last_end.min(tiles), tiles);
            body(WorkUnit { tiles: [begin, behind], sequence, is_unit: k.constant(1) }, longest);
        });
    }

    /// Unit producer warp: the sequences of this CTA with their queries, weights and lengths.
    fn produce_units(&self) {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let (heads, next) = (self.cfg.heads.heads, self.lengths.next);
        let cursor = smem.unit_pipeline.writer();
        self.for_each_sequence(|unit, _| {
            let WorkUnit { tiles: [begin, behind], sequence, .. } = unit;
            let query = sequence * next + lane;
            let is_query = lane.lt(next);
            let row = self.row(query, self.limited(self.lengths.of_query_if(is_query, sequence, lane)));
            let columns = next * heads;
            let weights: Vec<F32<'k>> = (0..(MAX_NEXT * heads).div_ceil(32))
                .map(|step| {
                    let column = lane + step * 32;
                    let query = sequence * next + column / heads;
                    let at = query.widening_mul(p.weights_pitch) + (column % heads).to_u64();
                    Heads::halved(p.weights.at(at * 4u64).load_readonly_if(column.lt(columns), 0.0))
                })
                .collect();
            k.if_(begin.lt(behind), || {
                cursor.wait_empty();
                let slot = cursor.stage();
                k.if_(is_query, || row.store(smem.row(slot, lane)));
                for (step, weight) in (0u32..).zip(&weights) {
                    let column = lane + step * 32;
                    k.guard(column.lt(MAX_NEXT * heads), || {
                        smem.weights(slot).at(column * 4).store(*weight);
                    });
                }
                k.if_(lane.eq(0), || smem.set_unit(slot, &unit));
                smem.commit_unit(slot, lane, columns * self.cfg.heads.dim, |full| {
                    let at = [k.constant(0), sequence * columns];
                    p.queries.load(&at, smem.queries(slot), full, LoadOptions::default());
                });
                cursor.advance();
            });
        });
        smem.end_units(&cursor, lane);
    }

    /// Bytes between the scales of two pages in shared memory.
    fn scale_bytes(&self) -> U32<'k> {
        (self.params.page_keys * 4).max(scale_bytes(0))
    }

    /// A length, bounded by the columns of the logits.
    fn limited(&self, length: U32<'k>) -> U32<'k> {
        length.min(self.params.columns)
    }

    /// Output row of a query that sees so many keys.
    fn row(&self, query: U32<'k>, count: U32<'k>) -> LogitRow<'k> {
        let (k, p) = (self.k, &self.params);
        let clean = (p.flags & LogitFlags::CLEAN).ne(0);
        let start = query.widening_mul(p.logits_pitch) * logit_size(p.flags).to_u64();
        LogitRow {
            first: k.constant(0),
            count,
            stored_first: k.constant(0),
            stored_count: clean.select(p.columns, count),
            at: p.logits.address() + start,
        }
    }

    /// Key producer warp. Pages that the table names outside of the cache are zeros, as are those behind the longest of
    /// a sequence's lengths.
    fn load_keys(&self) {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let cursor = smem.key_pipeline.writer();
        let per_tile = k.constant(TILE_KEYS) / p.page_keys;
        // Table entries of a sequence, whatever its length.
        let table_pages = self.lengths.limit.div_ceil(p.page_keys);
        self.for_each_sequence(|unit, longest| {
            let WorkUnit { tiles: [first, end], sequence, .. } = unit;
            let pages = longest.div_ceil(p.page_keys);
            let table = p.table.at(sequence.widening_mul(p.table_pitch) * 4u64);
            // A lane for each of 32 pages, which are a few tiles. The first loads do not wait for the length.
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
                let full = smem.key_pipeline.full(stage);
                k.if_(lane.eq(0), || full.arrive_expecting(self.cfg.smem().stage_bytes()));
                k.sync_warp();
                k.if_(lane.lt(per_tile), || {
                    let (zero, row) = (k.constant(0), lane * p.page_keys);
                    let exists = (page + lane).lt(pages) & entry.lt(p.pages);
                    let entry: U32<'k> = exists.select(entry, i32::MAX as u32);
                    let (keys, scales) = (
                        smem.keys(stage).at(row * self.cfg.heads.dim),
                        smem.scales(stage).at(lane * self.scale_bytes()),
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

    /// Fill warp: -inf behind the last tile of sequences, for some of the grid's queries.
    fn fill(&self, nth: U32<'k>) {
        let (k, p) = (self.k, &self.params);
        k.if_((p.flags & LogitFlags::CLEAN).ne(0), || {
            let (first, step) = (k.block_index(0) * FILL_WARPS + nth, k.grid_blocks(0) * FILL_WARPS);
            k.for_(first, self.lengths.sequences * self.lengths.next, step, |query| {
                let tiles = self.limited(self.lengths.longest(query / self.lengths.next)).div_ceil(TILE_KEYS);
                let row = self.row(query, k.constant(0));
                row.fill(k, self.lane, [tiles * TILE_KEYS, p.columns], p.flags);
            });
        });
    }

    /// Math warpgroup: 64 keys of each stage with the heads of one query after another.
    fn multiply(&self) {
        let (k, smem) = (self.k, &self.smem);
        let consumer = Consumer::new(self);
        let slots = smem.unit_pipeline.reader();
        smem.for_each_unit(&slots, |slot, unit| {
            for queries in 1..=MAX_NEXT {
                k.if_(self.lengths.next.eq(queries), || {
                    consumer.load_weights(slot, queries);
                    consumer.multiply_tiles(slot, unit.tiles, queries);
                });
            }
            smem.release_unit(&slots, self.lane);
        });
    }
}

/// State of a math warp.
struct Consumer<'k, 'b, 'c> {
    cta: &'b Cta<'k, 'c>,
    cursor: Cursor<'k>,
    /// This thread's key in a tile, and the offset of its scale.
    key: U32<'k>,
    scale: U32<'k>,
    layout: LogitLayout<'k>,
    /// Accumulators of one query and of the next.
    accumulators: [Vec<Var<'k, f32>>; BUFFERS as usize],
    /// Weights of every query.
    weights: Vec<Vec<Var<'k, f32>>>,
}

impl<'k, 'b, 'c> Consumer<'k, 'b, 'c> {
    fn new(cta: &'b Cta<'k, 'c>) -> Self {
        let (k, heads) = (cta.k, cta.cfg.heads.heads as usize);
        let layout = LogitLayout::new(1, cta.lane);
        let key = cta.warp * 16 + layout.keys()[0];
        let page_keys = cta.params.page_keys;
        let weights = |_| (0..heads / 4).map(|_| k.var(0.0f32)).collect();
        Consumer {
            cta,
            cursor: cta.smem.key_pipeline.reader(),
            key,
            scale: (key / page_keys) * cta.scale_bytes() + (key % page_keys) * 4,
            layout,
            accumulators: [(); BUFFERS as usize].map(|()| k.fragment(heads / 2)),
            weights: (0..MAX_NEXT).map(weights).collect(),
        }
    }

    fn load_weights(&self, slot: U32<'k>, queries: u32) {
        let Cta { cfg, lane, smem, .. } = self.cta;
        for (query, weights) in (0..queries).zip(&self.weights) {
            let from = smem.weights(slot).at(query * cfg.heads.heads * 4);
            Heads::load_weights(from, *lane, weights);
        }
    }

    /// All tiles of a unit whose sequence has this many queries.
    fn multiply_tiles(&self, slot: U32<'k>, [first, end]: [U32<'k>; 2], queries: u32) {
        self.cta.k.for_(first, end, 1, |tile| self.multiply_tile(slot, tile, queries));
    }

    /// One tile. While the heads of one query are reduced, the tensor core works on those of the next.
    fn multiply_tile(&self, slot: U32<'k>, tile: U32<'k>, queries: u32) {
        let &Cta { k, lane, ref smem, .. } = self.cta;
        self.cursor.wait_full();
        let stage = self.cursor.stage();
        let scale: F32<'k> = smem.scales(stage).at(self.scale).load();
        (0..queries.min(BUFFERS)).for_each(|query| self.issue(slot, query));
        for query in 0..queries {
            let behind = queries - query - 1;
            k.wgmma_wait(behind.min(BUFFERS - 1));
            if behind == 0 {
                smem.release(stage, lane);
            }
            self.finish(slot, query, tile, scale);
            if behind >= BUFFERS {
                self.issue(slot, query + BUFFERS);
            }
        }
        self.cursor.advance();
    }

    fn accumulators_of(&self, query: u32) -> &[Var<'k, f32>] {
        &self.accumulators[(query % BUFFERS) as usize]
    }

    /// Issues the MMA of the current tile with the heads of a query.
    fn issue(&self, slot: U32<'k>, query: u32) {
        let &Cta { k, cfg, warp, ref smem, .. } = self.cta;
        let keys = smem.keys(self.cursor.stage()).at((warp >> 2) * (64 * cfg.heads.dim));
        let queries = smem.queries(slot).at(query * cfg.heads.heads * cfg.heads.dim);
        let [keys, queries] = [keys, queries].map(|tile| Descriptor::k_major(tile, cfg.heads.swizzle()));
        k.wgmma_fence();
        cfg.heads.mma(k, self.accumulators_of(query), keys, queries);
        k.wgmma_commit();
    }

    /// Reduces the heads of a query and stores the logits.
    fn finish(&self, slot: U32<'k>, query: u32, tile: U32<'k>, scale: F32<'k>) {
        let &Cta { k, cfg, lane, ref smem, ref params, .. } = self.cta;
        let row = LogitRow::load(smem.row(slot, k.constant(query)));
        for sum in cfg.heads.reduce(k, lane, self.accumulators_of(query), &self.weights[query as usize]) {
            row.store_logit(k, tile * TILE_KEYS + self.key, sum * scale, params.flags, self.layout.stores());
        }
    }
}
