//! Paged MQA logits: arguments and the roles that the kernels of every architecture share. They differ in who multiplies.
//!
//! The [schedule metadata](crate::attention::paged_metadata) gives each CTA a few consecutive sequences. A work unit is
//! queries of a sequence and some of its key tiles. A warp produces pages, one produces units, and some fill with -inf
//! behind the sequences' ends.

use crate::attention::context_lens::ContextLens;
use crate::attention::logits::{LogitRow, head_count, logit_size};
use crate::attention::prefill::FILL_WARPS;
use crate::attention::shape::{Heads, LogitFlags, PAGE_SIZES, TILE_KEYS};
use crate::attention::smem::{Smem, WorkUnit};
use crate::common::params::kernel_params;
use crate::common::pipeline::Cursor;
use oxigemm_ptx::tma::LoadOptions;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Kernel, U32};

/// Bytes between the scales of two pages in shared memory: TMA writes to multiples of 128.
pub(crate) const fn scale_bytes(page_keys: u32) -> u32 {
    if page_keys * 4 > 128 { page_keys * 4 } else { 128 }
}

/// Bytes between the scales of two stages: enough for pages of any size.
pub(crate) fn scale_pitch() -> u32 {
    PAGE_SIZES.map(|keys| TILE_KEYS / keys * scale_bytes(keys)).into_iter().max().unwrap_or(0)
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
    pub(crate) struct Params from Args {
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
pub(crate) struct UnitQueries<'k> {
    pub first: U32<'k>,
    pub count: U32<'k>,
}

/// What the shared roles work with.
pub(crate) struct Paged<'k> {
    pub k: &'k Kernel,
    pub params: Params<'k>,
    pub lengths: ContextLens<'k>,
    pub smem: Smem<'k>,
    /// Whether queries are padded to the heads of the kernel, and sequences may have any number of them.
    pub padded: bool,
    pub lane: U32<'k>,
}

impl<'k> Paged<'k> {
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
            if !self.padded {
                return body(unit, UnitQueries { first: k.constant(0), count: next }, longest);
            }
            let most = self.smem.shape.queries;
            k.for_(0, next, most, |first| {
                let count = (next - first).min(most);
                body(WorkUnit { is_unit: count, ..unit }, UnitQueries { first, count }, longest);
            });
        });
    }

    /// Unit producer warp: the sequences of this CTA with their queries, weights and lengths.
    ///
    /// The cursor that it gives is at the slot of the end. `also` writes what else an architecture needs of a unit, of
    /// which it is given the slot, the sequence and the queries.
    pub fn produce_units(&self, also: impl Fn(U32<'k>, U32<'k>, UnitQueries<'k>)) -> Cursor<'k> {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let (heads, next) = (smem.shape.heads.heads, self.lengths.next);
        let (padded, most) = (self.padded, self.smem.shape.queries);
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
                also(slot, sequence, queries);
                k.if_(lane.eq(0), || smem.set_unit(slot, &unit));
                // A load brings as many queries to every unit; the last of a sequence may have fewer.
                let loaded = if padded { next.min(most) * heads } else { columns };
                smem.commit_unit(slot, lane, loaded * smem.shape.row_bytes, |full| {
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
        cursor
    }

    /// Keys of a load: a page, or a tile of a larger one.
    pub fn load_size(&self) -> U32<'k> {
        let page_keys = self.params.page_keys;
        if self.padded { page_keys.min(TILE_KEYS) } else { page_keys }
    }

    /// Bytes between the scales of two loads in shared memory.
    pub fn scale_bytes(&self) -> U32<'k> {
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
    pub fn load_keys(&self) {
        let (k, p, smem, lane) = (self.k, &self.params, &self.smem, self.lane);
        let cursor = smem.key_pipeline.writer();
        let padded = self.padded;
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
                k.if_(lane.eq(0), || full.arrive_expecting(smem.shape.stage_bytes()));
                k.sync_warp();
                k.if_(lane.lt(per_tile), || {
                    let (zero, row) = (k.constant(0), lane * self.load_size());
                    // A tile begins inside of a page only where that is larger.
                    let within = if padded { (tile * TILE_KEYS) % p.page_keys } else { zero };
                    let exists = (page + lane).lt(pages) & entry.lt(p.pages);
                    let entry: U32<'k> = exists.select(entry, i32::MAX as u32);
                    let (keys, scales) = (
                        smem.keys(stage).at(row * smem.shape.row_bytes),
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

    /// Fill warp, one of [`FILL_WARPS`]: -inf behind the last tile of sequences, for some of the grid's queries.
    pub fn fill(&self, nth: U32<'k>) {
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
