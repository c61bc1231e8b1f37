//! Shared memory of an MQA logits kernel: a pipeline of key tiles, and a pipeline of work units.
//!
//! A work unit is some queries with their weights and output rows, and a range of key tiles. One warp produces units;
//! the key producer and the math warps consume them.

use crate::attention::logits::LogitRow;
use crate::attention::shape::{Heads, TILE_KEYS};
use crate::common::WARP;
use crate::common::pipeline::{Cursor, Pipeline};
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{Kernel, MBarrier, Shared, SharedLayout, U32};

/// Stages of the unit pipeline.
pub(crate) const SLOTS: u32 = 2;
const UNIT_BYTES: u32 = 16;

/// Shape of the shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmemShape {
    pub heads: Heads,
    /// Bytes of a head, and of a key.
    pub row_bytes: u32,
    /// Queries of a slot.
    pub queries: u32,
    /// Stages of the key pipeline.
    pub stages: u32,
    /// Bytes between the scales of two stages.
    pub scale_pitch: u32,
    /// Arrivals that release a stage.
    pub readers: u32,
    /// Words that warps exchange.
    pub words: u32,
}

impl SmemShape {
    /// Heads of the queries of a slot.
    pub fn columns(&self) -> u32 {
        self.queries * self.heads.heads
    }

    /// Bytes of a slot's queries.
    pub fn query_bytes(&self) -> u32 {
        self.columns() * self.row_bytes
    }

    fn weight_bytes(&self) -> u32 {
        self.columns() * 4
    }

    fn row_bytes(&self) -> u32 {
        self.queries * LogitRow::BYTES
    }

    pub fn key_bytes(&self) -> u32 {
        TILE_KEYS * self.row_bytes
    }

    /// Bytes that are loaded into a stage.
    pub fn stage_bytes(&self) -> u32 {
        self.key_bytes() + TILE_KEYS * 4
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u32 {
        Offsets::new(self).bytes
    }
}

/// Offsets of all parts.
struct Offsets {
    keys: u32,
    queries: u32,
    scales: u32,
    weights: u32,
    rows: u32,
    units: u32,
    stage_barriers: u32,
    slot_barriers: u32,
    words: u32,
    bytes: u32,
}

impl Offsets {
    fn new(shape: &SmemShape) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let keys = layout.place(shape.stages * shape.key_bytes(), 1024);
        let queries = layout.place(SLOTS * shape.query_bytes(), 1024);
        let scales = layout.place(shape.stages * shape.scale_pitch, 128);
        let weights = layout.place(SLOTS * shape.weight_bytes(), 16);
        let rows = layout.place(SLOTS * shape.row_bytes(), 16);
        let units = layout.place(SLOTS * UNIT_BYTES, 16);
        let stage_barriers = layout.place(Pipeline::barrier_bytes(shape.stages), 8);
        let slot_barriers = layout.place(Pipeline::barrier_bytes(SLOTS), 8);
        let words = layout.place(shape.words * 4, 4);
        let bytes = layout.bytes();
        Offsets { keys, queries, scales, weights, rows, units, stage_barriers, slot_barriers, words, bytes }
    }

    /// Names the parts for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, shape: &SmemShape) {
        k.name_shared("keys", self.keys, shape.key_bytes(), shape.stages);
        k.name_shared("queries", self.queries, shape.query_bytes(), SLOTS);
        k.name_shared("scales", self.scales, shape.scale_pitch, shape.stages);
        k.name_shared("weights", self.weights, shape.weight_bytes(), SLOTS);
        k.name_shared("rows", self.rows, shape.row_bytes(), SLOTS);
        k.name_shared("units", self.units, UNIT_BYTES, SLOTS);
        Pipeline::name_barriers(k, ["full", "empty"], self.stage_barriers, shape.stages);
        Pipeline::name_barriers(k, ["known", "done"], self.slot_barriers, SLOTS);
        if shape.words > 0 {
            k.name_shared("words", self.words, 4, shape.words);
        }
    }
}

/// Shared memory of a CTA.
pub(crate) struct Smem<'k> {
    k: &'k Kernel,
    pub shape: SmemShape,
    shared: Shared<'k>,
    offsets: Offsets,
    /// Pipeline of key tiles.
    pub key_pipeline: Pipeline<'k>,
    /// Pipeline of work units.
    pub unit_pipeline: Pipeline<'k>,
}

/// Work unit: its tiles of keys (the first, and the one behind the last), its sequence if there are several, and
/// whether it is a unit at all: 0 for the end of them, and where a kernel needs it, the number of its queries.
#[derive(Clone, Copy)]
pub(crate) struct WorkUnit<'k> {
    pub tiles: [U32<'k>; 2],
    pub sequence: U32<'k>,
    pub is_unit: U32<'k>,
}

impl<'k> Smem<'k> {
    pub fn new(k: &'k Kernel, shape: SmemShape) -> Self {
        let (shared, offsets) = (k.dynamic_shared(), Offsets::new(&shape));
        offsets.name(k, &shape);
        let key_pipeline = Pipeline::new(k, shared.at(offsets.stage_barriers), shape.stages, shape.stages);
        let unit_pipeline = Pipeline::new(k, shared.at(offsets.slot_barriers), SLOTS, SLOTS);
        Smem { k, shape, shared, offsets, key_pipeline, unit_pipeline }
    }

    /// Prologue: the warp `loader` prefetches the tensor maps and initializes the barriers (a unit has this many
    /// consumers); then all threads wait for it and for the kernels before.
    pub fn begin(
        &self,
        k: &'k Kernel,
        (warp, loader): (U32<'k>, u32),
        lane: U32<'k>,
        maps: [&TensorMap<'k>; 3],
        unit_consumers: u32,
    ) {
        k.if_(warp.eq(loader), || {
            k.if_(lane.eq(0), || {
                maps.into_iter().for_each(|map| map.prefetch());
                self.key_pipeline.init(1, self.shape.readers);
                self.unit_pipeline.init(WARP, unit_consumers);
                k.fence_barrier_init();
            });
            k.sync_warp();
        });
        k.sync_threads();
        k.grid_dependency_wait();
    }

    /// Queries of a unit, a row for each of their heads.
    pub fn queries(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.queries).at(slot * self.shape.query_bytes())
    }

    /// Weights of a unit's heads.
    pub fn weights(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.weights).at(slot * self.shape.weight_bytes())
    }

    /// [`LogitRow`] of a unit's query.
    pub fn row(&self, slot: U32<'k>, query: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.rows).at(slot * self.shape.row_bytes()).at(query * LogitRow::BYTES)
    }

    /// Bytes between the keys of two stages.
    pub fn key_bytes(&self) -> u32 {
        self.shape.key_bytes()
    }

    /// Keys of a stage.
    pub fn keys(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.keys).at(stage * self.shape.key_bytes())
    }

    /// Scales of a stage's keys.
    pub fn scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.scales).at(stage * self.shape.scale_pitch)
    }

    /// Words that warps exchange.
    pub fn words(&self) -> Shared<'k> {
        self.shared.at(self.offsets.words)
    }

    fn unit(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.units).at(slot * UNIT_BYTES)
    }

    /// Writes a unit; one thread.
    pub fn set_unit(&self, slot: U32<'k>, unit: &WorkUnit<'k>) {
        let [first, end] = unit.tiles;
        self.unit(slot)
            .store_vec([first, end, unit.sequence, unit.is_unit].map(|word| self.k.var_from(word).live()));
    }

    /// Waits for the next unit.
    pub fn wait_unit(&self, slots: &Cursor<'k>) -> (U32<'k>, WorkUnit<'k>) {
        slots.wait_full();
        let slot = slots.stage();
        let [first, end, sequence, is_unit] = self.unit(slot).load_vec();
        (slot, WorkUnit { tiles: [first, end], sequence, is_unit })
    }

    /// Loop over the units of this CTA, each with its slot, which `body` releases.
    pub fn for_each_unit(&self, slots: &Cursor<'k>, body: impl FnOnce(U32<'k>, WorkUnit<'k>)) {
        let k = self.k;
        let more = k.var(1u32);
        k.while_(
            || more.live().ne(0),
            || {
                let (slot, unit) = self.wait_unit(slots);
                more.set(unit.is_unit);
                k.if_(unit.is_unit.ne(0), || body(slot, unit));
            },
        );
    }

    /// Producer commit of a unit: one warp has written it, and `load` issues a copy of so many bytes of queries. Every
    /// lane arrives, because a sanitizer does not take one lane's arrival for the others'.
    pub fn commit_unit(&self, slot: U32<'k>, lane: U32<'k>, bytes: U32<'k>, load: impl FnOnce(MBarrier<'k>)) {
        let full = self.unit_pipeline.full(slot);
        let first = || {
            full.arrive_expecting(bytes);
            load(full);
        };
        self.k.if_else(lane.eq(0), first, || full.arrive());
        self.k.sync_warp();
    }

    /// Producer commit of the end of all units; one warp.
    pub fn end_units(&self, cursor: &Cursor<'k>, lane: U32<'k>) {
        let k = self.k;
        cursor.wait_empty();
        let none = k.constant(0);
        k.if_(lane.eq(0), || {
            self.set_unit(cursor.stage(), &WorkUnit { tiles: [none; 2], sequence: none, is_unit: none });
        });
        self.unit_pipeline.full(cursor.stage()).arrive();
    }

    /// Consumer release of a unit by a warp. One lane arrives: with all lanes, the assembler put the loop over tiles in
    /// another order, 4% slower.
    pub fn release_unit(&self, slots: &Cursor<'k>, lane: U32<'k>) {
        self.k.sync_warp();
        self.k.guard(lane.eq(0), || self.unit_pipeline.empty(slots.stage()).arrive());
        slots.advance();
    }

    /// Consumer release of a stage by a warp.
    pub fn release(&self, stage: U32<'k>, lane: U32<'k>) {
        self.k.sync_warp();
        self.k.guard(lane.eq(0), || self.key_pipeline.empty(stage).arrive());
    }
}
