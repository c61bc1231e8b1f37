//! Paged MQA logits of a decode step: the keys of each sequence lie in pages of a KV cache, which a block table names.
//!
//! `logit[b, n, j] = scale[j] * sum over heads of  relu(Q[b,n,h] . KV[b,j]) * weight[b,n,h]`
//! for `j < length[b,n]`, and -inf behind.
//!
//! Limited by memory bandwidth. The [schedule metadata](crate::attention::paged_metadata) splits the key tiles evenly
//! over the CTAs, each with a few consecutive sequences. Two math warpgroups multiply 64 keys of a stage with the heads
//! of one query after another. A third warpgroup holds the other roles: a warp produces pages, one produces units
//! (sequences), and two fill with -inf behind the sequences' ends.
//!
//! | kernel | queries of a sequence | page | heads |
//! |---|---|---|---|
//! | dedicated | up to [`DEDICATED_NEXT`], unrolled | up to a tile | compiled in |
//! | padded | any number: a unit for every few of them, which loads the keys again | any size | padded |

mod mainloop;

use super::logits::{LogitRow, head_count, logit_size};
use super::smem::{Smem, SmemShape, WorkUnit};
use crate::attention::context_lens::ContextLens;
use crate::attention::shape::{DEDICATED_NEXT, HeadTile, Heads, LogitFlags, PAGE_SIZES, TILE_KEYS};
use crate::common::params::kernel_params;
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS, THREADS};
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{BuildError, F32, Kernel, Module, Target, U32};

const _: () = assert!(TILE_KEYS == 64 * MATH_WARPGROUPS);

/// Warps that fill with -inf.
const FILL_WARPS: u32 = 2;
/// Most heads of a padded kernel's unit.
const PADDED_COLUMNS: u32 = 256;
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
        let scale_pitch =
            PAGE_SIZES.map(|keys| TILE_KEYS / keys * scale_bytes(keys)).into_iter().max().unwrap_or(0);
        let one = SmemShape {
            heads: self.heads(),
            queries: self.unit_queries(),
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
    /// Tensor map of Q: rows are heads; a load brings those of all queries of a sequence. For a padded kernel:
    /// elements, heads, queries; a load brings the padded heads of a unit's queries.
    pub queries: [u64; 16],
    /// Tensor map of the keys: elements, keys of a page, pages; a load brings a page, or a tile of a larger one.
    pub keys: [u64; 16],
    /// Tensor map of the keys' scales: keys of a page, pages; a load brings a page, or a tile of a larger one.
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

/// Queries of a unit: the first, in its sequence, and how many.
#[derive(Clone, Copy)]
struct UnitQueries<'k> {
    first: U32<'k>,
    count: U32<'k>,
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
    let lengths = ContextLens { at, sequences, next, per_query, limit, any_next: cfg.tile.padded };
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
    /// Loop over the units that the schedule gives this CTA, which each producer warp reads for itself: the unit, its
    /// queries, and the most keys that a query of its sequence sees. `body` may be called for a unit without tiles.
    fn for_each_unit(&self, body: impl FnOnce(WorkUnit<'k>, UnitQueries<'k>, U32<'k>)) {
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
            let unit = WorkUnit { tiles: [begin, behind], sequence, is_unit: k.constant(1) };
            let next = self.lengths.next;
            if !self.cfg.tile.padded {
                return body(unit, UnitQueries { first: k.constant(0), count: next }, longest);
            }
            let most = self.cfg.unit_queries();
            k.for_(0, next, most, |first| {
                let count = (next - first).min(most);
                body(WorkUnit { is_unit: count, ..unit }, UnitQueries { first, count }, longest);
            });
        });
    }

    /// Unit producer warp: the sequences of this CTA with their queries, weights and lengths.
    fn produce_units(&self) {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let (heads, next) = (self.cfg.heads().heads, self.lengths.next);
        let (padded, most) = (self.cfg.tile.padded, self.cfg.unit_queries());
        let cursor = smem.unit_pipeline.writer();
        self.for_each_unit(|unit, queries, _| {
            let WorkUnit { tiles: [begin, behind], sequence, .. } = unit;
            // The first query of all that a dedicated kernel's unit has is that of its sequence.
            let from_first = |nth: U32<'k>| if padded { queries.first + nth } else { nth };
            let query = sequence * next + from_first(lane);
            let is_query = lane.lt(queries.count);
            let length = self.lengths.of_query_if(is_query, sequence, from_first(lane));
            let row = self.row(query, self.limited(length));
            let columns = queries.count * heads;
            let weights: Vec<F32<'k>> = (0..(most * heads).div_ceil(32))
                .map(|step| {
                    let column = lane + step * 32;
                    let query = sequence * next + from_first(column / heads);
                    let row = query.widening_mul(p.weights_pitch);
                    let head = column % heads;
                    let from = p.weights.at((row + head.to_u64()) * 4u64);
                    let exists = column.lt(columns);
                    let exists = if padded { exists & head.lt(head_count(p.flags)) } else { exists };
                    Heads::halved(from.load_readonly_if(exists, 0.0))
                })
                .collect();
            k.if_(begin.lt(behind), || {
                cursor.wait_empty();
                let slot = cursor.stage();
                k.if_(is_query, || row.store(smem.row(slot, lane)));
                for (step, weight) in (0u32..).zip(&weights) {
                    let column = lane + step * 32;
                    k.guard(column.lt(most * heads), || {
                        smem.weights(slot).at(column * 4).store(*weight);
                    });
                }
                k.if_(lane.eq(0), || smem.set_unit(slot, &unit));
                // A load brings as many queries to every unit; the last of a sequence may have fewer.
                let loaded = if padded { next.min(most) * heads } else { columns };
                smem.commit_unit(slot, lane, loaded * self.cfg.heads().dim, |full| {
                    let zero = k.constant(0);
                    let at = if padded {
                        vec![zero, zero, sequence * next + queries.first]
                    } else {
                        vec![zero, sequence * columns]
                    };
                    p.queries.load(&at, smem.queries(slot), full, LoadOptions::default());
                });
                cursor.advance();
            });
        });
        smem.end_units(&cursor, lane);
    }

    /// Keys of a load: a page, or a tile of a larger one.
    fn load_size(&self) -> U32<'k> {
        let page_keys = self.params.page_keys;
        if self.cfg.tile.padded { page_keys.min(TILE_KEYS) } else { page_keys }
    }

    /// Bytes between the scales of two loads in shared memory.
    fn scale_bytes(&self) -> U32<'k> {
        (self.load_size() * 4).max(scale_bytes(0))
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
        let padded = self.cfg.tile.padded;
        let per_tile = k.constant(TILE_KEYS) / self.load_size();
        // Page of a tile's first key.
        let first_page = |tile: U32<'k>| match padded {
            true => (tile * TILE_KEYS) / p.page_keys,
            false => tile * per_tile,
        };
        // Table entries of a sequence, whatever its length.
        let table_pages = self.lengths.limit.div_ceil(p.page_keys);
        self.for_each_unit(|unit, _, longest| {
            let WorkUnit { tiles: [first, end], sequence, .. } = unit;
            let pages = longest.div_ceil(p.page_keys);
            let table = p.table.at(sequence.widening_mul(p.table_pitch) * 4u64);
            // A lane for each of 32 pages, which are a few tiles. The first loads do not wait for the length.
            let entries = |page: U32<'k>| {
                let nth = (page & !31u32) + lane;
                table.at(nth.widening_mul(4)).load_readonly_if::<u32>(nth.lt(table_pages), u32::MAX)
            };
            let some = k.var_from(entries(first_page(first)));
            k.for_(first, end, 1, |tile| {
                let page = first_page(tile);
                k.if_((page & 31).eq(0) & tile.ne(first), || some.set(entries(page)));
                let entry = k.shuffle(Shuffle::Index, some.get(), (page + lane) & 31);
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = smem.key_pipeline.full(stage);
                k.if_(lane.eq(0), || full.arrive_expecting(self.cfg.smem().stage_bytes()));
                k.sync_warp();
                k.if_(lane.lt(per_tile), || {
                    let (zero, row) = (k.constant(0), lane * self.load_size());
                    // A tile begins inside of a page only where that is larger.
                    let within = if padded { (tile * TILE_KEYS) % p.page_keys } else { zero };
                    let exists = (page + lane).lt(pages) & entry.lt(p.pages);
                    let entry: U32<'k> = exists.select(entry, i32::MAX as u32);
                    let (keys, scales) = (
                        smem.keys(stage).at(row * self.cfg.heads().dim),
                        smem.scales(stage).at(lane * self.scale_bytes()),
                    );
                    p.keys.load(&[zero, within, entry], keys, full, LoadOptions::default());
                    p.scales.load(&[within, entry], scales, full, LoadOptions::default());
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
}
