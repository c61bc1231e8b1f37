//! The shared memory of an indexer kernel: a ring of stages with keys, and slots for what its roles know of a unit.

use super::{Heads, Row, TILE_KEYS};
use crate::common::WARP;
use crate::common::pipeline::{Cursor, Pipeline};
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{Kernel, MBarrier, Shared, SharedLayout, U32};

/// Units that are laid out at a time.
const SLOTS: u32 = 2;
const SPAN_BYTES: u32 = 16;

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryShape {
    pub heads: Heads,
    /// Queries of a slot.
    pub queries: u32,
    /// Stages of the ring.
    pub stages: u32,
    /// Bytes between the scales of two stages.
    pub scale_pitch: u32,
    /// Warps that read the stages.
    pub math_warps: u32,
    /// Words that warps leave for each other.
    pub words: u32,
}

impl MemoryShape {
    /// Heads of the queries of a slot.
    fn columns(&self) -> u32 {
        self.queries * self.heads.heads
    }

    /// Bytes of a slot's queries.
    pub fn query_bytes(&self) -> u32 {
        self.columns() * self.heads.dim
    }

    fn weight_bytes(&self) -> u32 {
        self.columns() * 4
    }

    fn row_bytes(&self) -> u32 {
        self.queries * Row::BYTES
    }

    fn key_bytes(&self) -> u32 {
        TILE_KEYS * self.heads.dim
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

/// Every offset in one place.
struct Offsets {
    keys: u32,
    queries: u32,
    scales: u32,
    weights: u32,
    rows: u32,
    spans: u32,
    stage_barriers: u32,
    slot_barriers: u32,
    words: u32,
    bytes: u32,
}

impl Offsets {
    fn new(shape: &MemoryShape) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let keys = layout.place(shape.stages * shape.key_bytes(), 1024);
        let queries = layout.place(SLOTS * shape.query_bytes(), 1024);
        let scales = layout.place(shape.stages * shape.scale_pitch, 128);
        let weights = layout.place(SLOTS * shape.weight_bytes(), 16);
        let rows = layout.place(SLOTS * shape.row_bytes(), 16);
        let spans = layout.place(SLOTS * SPAN_BYTES, 16);
        let stage_barriers = layout.place(Pipeline::barrier_bytes(shape.stages), 8);
        let slot_barriers = layout.place(Pipeline::barrier_bytes(SLOTS), 8);
        let words = layout.place(shape.words * 4, 4);
        let bytes = layout.bytes();
        Offsets { keys, queries, scales, weights, rows, spans, stage_barriers, slot_barriers, words, bytes }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, shape: &MemoryShape) {
        k.name_shared("keys", self.keys, shape.key_bytes(), shape.stages);
        k.name_shared("queries", self.queries, shape.query_bytes(), SLOTS);
        k.name_shared("scales", self.scales, shape.scale_pitch, shape.stages);
        k.name_shared("weights", self.weights, shape.weight_bytes(), SLOTS);
        k.name_shared("rows", self.rows, shape.row_bytes(), SLOTS);
        k.name_shared("spans", self.spans, SPAN_BYTES, SLOTS);
        Pipeline::name_barriers(k, ["full", "empty"], self.stage_barriers, shape.stages);
        Pipeline::name_barriers(k, ["known", "done"], self.slot_barriers, SLOTS);
        if shape.words > 0 {
            k.name_shared("words", self.words, 4, shape.words);
        }
    }
}

/// The memory, placed.
pub(crate) struct Memory<'k> {
    k: &'k Kernel,
    shape: MemoryShape,
    shared: Shared<'k>,
    offsets: Offsets,
    /// Tiles of keys.
    pub ring: Pipeline<'k>,
    /// Units.
    pub slots: Pipeline<'k>,
}

/// Which tiles of keys a unit has: the first, and the one behind the last; of which sequence, if there are several;
/// and whether it is a unit at all, or the end of them.
#[derive(Clone, Copy)]
pub(crate) struct Span<'k> {
    pub tiles: [U32<'k>; 2],
    pub sequence: U32<'k>,
    pub is_unit: U32<'k>,
}

impl<'k> Memory<'k> {
    pub fn new(k: &'k Kernel, shape: MemoryShape) -> Self {
        let (shared, offsets) = (k.dynamic_shared(), Offsets::new(&shape));
        offsets.name(k, &shape);
        let ring = Pipeline::new(k, shared.at(offsets.stage_barriers), shape.stages, shape.stages);
        let slots = Pipeline::new(k, shared.at(offsets.slot_barriers), SLOTS, SLOTS);
        Memory { k, shape, shared, offsets, ring, slots }
    }

    /// Until all threads may begin: the maps are on their way, the warp `loader` has initialized the barriers, of which a
    /// slot has this many readers, and the kernels before are done.
    pub fn begin(
        &self,
        k: &'k Kernel,
        (warp, loader): (U32<'k>, u32),
        lane: U32<'k>,
        maps: [&TensorMap<'k>; 3],
        slot_readers: u32,
    ) {
        k.if_(warp.eq(loader), || {
            k.if_(lane.eq(0), || {
                maps.into_iter().for_each(|map| map.prefetch());
                self.ring.init(1, self.shape.math_warps);
                self.slots.init(WARP, slot_readers);
                k.fence_barrier_init();
            });
            k.sync_warp();
        });
        k.sync_threads();
        k.grid_dependency_wait();
    }

    /// The queries of a slot, a row for each of their heads.
    pub fn queries(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.queries).at(slot * self.shape.query_bytes())
    }

    /// The weights of those.
    pub fn weights(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.weights).at(slot * self.shape.weight_bytes())
    }

    /// A [`Row`] of a slot.
    pub fn row(&self, slot: U32<'k>, query: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.rows).at(slot * self.shape.row_bytes()).at(query * Row::BYTES)
    }

    /// Bytes between the keys of two stages.
    pub fn key_bytes(&self) -> u32 {
        self.shape.key_bytes()
    }

    /// The keys of a stage.
    pub fn keys(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.keys).at(stage * self.shape.key_bytes())
    }

    /// The scales of those.
    pub fn scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.scales).at(stage * self.shape.scale_pitch)
    }

    /// What warps leave for each other.
    pub fn words(&self) -> Shared<'k> {
        self.shared.at(self.offsets.words)
    }

    fn span(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.offsets.spans).at(slot * SPAN_BYTES)
    }

    /// One thread lays out which tiles a unit has.
    pub fn set_span(&self, slot: U32<'k>, span: &Span<'k>) {
        let [first, end] = span.tiles;
        self.span(slot)
            .store_vec([first, end, span.sequence, span.is_unit].map(|word| self.k.var_from(word).live()));
    }

    /// Waits until the next unit is known.
    pub fn known(&self, slots: &Cursor<'k>) -> (U32<'k>, Span<'k>) {
        slots.wait_full();
        let slot = slots.stage();
        let [first, end, sequence, is_unit] = self.span(slot).load_vec();
        (slot, Span { tiles: [first, end], sequence, is_unit })
    }

    /// All units of this block, each with its slot, which `body` lets go of.
    pub fn for_each_unit(&self, slots: &Cursor<'k>, body: impl FnOnce(U32<'k>, Span<'k>)) {
        let k = self.k;
        let more = k.var(1u32);
        k.while_(
            || more.live().ne(0),
            || {
                let (slot, span) = self.known(slots);
                more.set(span.is_unit);
                k.if_(span.is_unit.ne(0), || body(slot, span));
            },
        );
    }

    /// One warp has laid out a unit, of which `load` brings so many bytes of queries. Every lane says so: a sanitizer takes the word of
    /// none for the others.
    pub fn announce(&self, slot: U32<'k>, lane: U32<'k>, bytes: U32<'k>, load: impl FnOnce(MBarrier<'k>)) {
        let known = self.slots.full(slot);
        let first = || {
            known.arrive_expecting(bytes);
            load(known);
        };
        self.k.if_else(lane.eq(0), first, || known.arrive());
        self.k.sync_warp();
    }

    /// One warp says that there are no more units.
    pub fn end_units(&self, cursor: &Cursor<'k>, lane: U32<'k>) {
        let k = self.k;
        cursor.wait_empty();
        let none = k.constant(0);
        k.if_(lane.eq(0), || {
            self.set_span(cursor.stage(), &Span { tiles: [none; 2], sequence: none, is_unit: none });
        });
        self.slots.full(cursor.stage()).arrive();
    }

    /// A warp is done with a unit. One lane says so: where all did, the assembler put the loop over tiles in another order, 4% slower.
    pub fn done(&self, slots: &Cursor<'k>, lane: U32<'k>) {
        self.k.sync_warp();
        self.k.guard(lane.eq(0), || self.slots.empty(slots.stage()).arrive());
        slots.advance();
    }

    /// A warp is done with a stage.
    pub fn release(&self, stage: U32<'k>, lane: U32<'k>) {
        self.k.sync_warp();
        self.k.guard(lane.eq(0), || self.ring.empty(stage).arrive());
    }
}
