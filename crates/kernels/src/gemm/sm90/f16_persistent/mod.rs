//! GEMM of BF16 or FP16 operands, for many rows: persistent, warp-specialized, multicast.
//!
//! A block computes tiles of `block_m` by `block_n`. Two warpgroups multiply: each its own half of the rows, or of the
//! columns where a tile has 64 rows. A third one serves them: one thread issues the tensor loads, and two have what the
//! others have staged stored. The tensor core sums all of K in FP32, so the products of a stage are only issued: while
//! they run, those of the stage before come to their end and it is let go.
//! Clusters of blocks share their operands: each block loads its part of a tile and multicasts it.
//!
//! Rows may be [grouped](crate::gemm::scheduler::m_grouped), each group with a B of its own: then a tile has rows of one group, and what
//! lies behind the group's last row is neither loaded nor stored. Or groups are [along K](crate::gemm::scheduler::k_grouped): then each has
//! a range of K and a D of its own.
//!
//! Sums may be [finished](crate::gemm::epilogue::fusion) before they are stored.

mod epilogue;

use epilogue::FinishedTile;

use crate::common::pipeline::{Cursor, Pipeline};
use crate::gemm::epilogue::PANEL_BYTES;
use crate::gemm::epilogue::fusion::{BoxOfB, FusedGroupParams, FusedParams, Fusion};
use crate::gemm::operand::f16::{BLOCK_K, OperandTile, Operands, PANEL};
use crate::gemm::params::{GroupedParams, Params};
use crate::gemm::scheduler::k_grouped::{KGroupParams, KGroups, MapRing};
use crate::gemm::scheduler::m_grouped::{GroupPlace, Grouping};
use crate::gemm::scheduler::order::KOrder;
use crate::gemm::scheduler::{Place, Release, Share, TilePlace};
use crate::gemm::sm90::store_pipeline::{Adding, Outbox, PartShape};
use crate::gemm::sm90::warpgroups::{
    MATH_REGISTERS, MATH_WARPGROUPS, MATH_WARPS, ManyRows, PRODUCER_REGISTERS, THREADS, WAVE_ROWS,
};
use oxigemm_ptx::tma::{Eviction, TensorMap};
use oxigemm_ptx::wgmma::{Descriptor, DescriptorVar, Major, MatrixA};
use oxigemm_ptx::{BuildError, Kernel, MBarrier, Module, Pred, Shared, SharedLayout, Target, U32, Var};

/// What is compiled in. Shapes, strides, the cluster's dimensions and whether D is FP32 are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The operands.
    pub operands: Operands,
    /// Rows of a tile: 64, 128 or 256.
    pub block_m: u32,
    /// Columns of a tile: a multiple of 16, of 32 where it has 64 rows, of 64 where B is N-major.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is grouped; where it is rows, A is K-major.
    pub grouping: Grouping,
    /// What is done with sums before they are stored.
    pub fusion: Fusion,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { operands, block_m, block_n, stages, .. } = self;
        let (element, layout) = (operands.element.name(), operands.layout());
        let grouped = match self.grouping {
            Grouping::Dense => "",
            Grouping::Rows => "m_grouped_",
            Grouping::K => "k_grouped_",
        };
        let fused = self.fusion.name();
        format!("sm90_{element}_gemm_persistent_{fused}{grouped}{layout}_{block_m}x{block_n}_s{stages}")
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        self.grouping == Grouping::Rows
    }

    /// Whether it can take K from its end.
    pub fn turns_back(&self) -> bool {
        self.grouping != Grouping::K && !self.is_fused()
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    /// The operands' parts of a stage.
    fn tiles(&self) -> [OperandTile; 2] {
        let Operands { a, b, .. } = self.operands;
        [OperandTile { major: a, rows: self.block_m }, OperandTile { major: b, rows: self.block_n }]
    }

    /// Bytes that the loads of a stage bring.
    fn stage_bytes(&self) -> u32 {
        self.tiles().iter().map(OperandTile::bytes).sum()
    }

    /// Lines that one tensor load of A brings to a cluster of so many blocks along N.
    pub(crate) fn loaded_lines_of_a(&self, cluster_n: u32) -> u32 {
        let share = self.tiles()[0].lines() / cluster_n;
        if self.is_grouped() { share.min(self.shape().group_box_rows()) } else { share }
    }

    /// What one tensor load brings of B, in lines, to a cluster of so many blocks along M.
    pub(crate) fn box_of_b(&self, cluster_m: u32, passes: u32) -> BoxOfB {
        BoxOfB::of(self.fusion, self.tiles()[1].lines() / cluster_m, self.part().columns, passes)
    }

    fn shape(&self) -> ManyRows {
        ManyRows { block_m: self.block_m, block_n: self.block_n }
    }

    /// What a warpgroup computes of a tile: columns of D.
    fn part(&self) -> PartShape {
        PartShape { waves: self.shape().waves(), columns: self.shape().columns() / self.fusion.sums() }
    }

    /// Bytes of a math warpgroup's staging area.
    fn staging_bytes(&self) -> u32 {
        (self.part().panels() * PANEL_BYTES).max(self.quantized_bytes())
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

/// Shared memory, every offset in one place.
struct SharedMap {
    a: u32,
    b: u32,
    staging: u32,
    barriers: u32,
    output_barriers: u32,
    /// Of each stage, the place of the tile that it is of, where rows are grouped.
    places: u32,
    /// Where groups are along K: tensor maps that are being made.
    map_drafts: u32,
    groups: u32,
    bytes: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let [a, b] = cfg.tiles().map(|tile| layout.place(cfg.stages * tile.bytes(), 1024));
        let staging = layout.place(MATH_WARPGROUPS * cfg.staging_bytes(), 1024);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let output_barriers = layout.place(Pipeline::barrier_bytes(MATH_WARPGROUPS), 8);
        let places = if cfg.is_grouped() { cfg.stages * TilePlace::BYTES } else { 0 };
        let places = layout.place(places, if cfg.is_grouped() { TilePlace::BYTES } else { 1 });
        let draft_bytes = if cfg.grouping == Grouping::K { MapRing::DRAFT_BYTES } else { 0 };
        let map_drafts = layout.place(draft_bytes, if draft_bytes > 0 { 128 } else { 1 });
        let bytes = layout.bytes();
        SharedMap { a, b, staging, barriers, output_barriers, places, map_drafts, groups: bytes, bytes }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, cfg: &Config) {
        let [a, b] = cfg.tiles();
        k.name_shared("a", self.a, a.bytes(), cfg.stages);
        k.name_shared("b", self.b, b.bytes(), cfg.stages);
        k.name_shared("staging", self.staging, cfg.staging_bytes(), MATH_WARPGROUPS);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        Pipeline::name_barriers(k, ["staged", "stored"], self.output_barriers, MATH_WARPGROUPS);
        if cfg.is_grouped() {
            k.name_shared("places", self.places, TilePlace::BYTES, cfg.stages);
        }
    }
}

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    grouped: Option<GroupedParams<'k>>,
    k_groups: Option<KGroups<'k>>,
    fused: Option<FusedParams<'k>>,
    fused_groups: Option<FusedGroupParams<'k>>,
    map: SharedMap,
    shared: Shared<'k>,
    place: Place<'k>,
    pipe: Pipeline<'k>,
    /// The staging areas of the warpgroups, as if each were a stage of a ring.
    staged: Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Block<'k, '_> {
    /// The way of a warpgroup's part to D.
    fn outbox(&self, warpgroup: U32<'k>) -> Outbox<'k> {
        Outbox {
            k: self.k,
            params: self.params.output,
            slab: None,
            goes_on: false,
            adding: Adding::AtOnce,
            stores_f32: !self.cfg.is_fused(),
            shape: self.cfg.part(),
            room: self.cfg.part().panels(),
            staging: self.staging(warpgroup),
            ring: self.staged,
            warpgroup,
        }
    }

    fn staging(&self, warpgroup: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.staging).at(warpgroup * self.cfg.staging_bytes())
    }

    /// The tiles of A and B in a stage.
    fn stage(&self, stage: U32<'k>) -> [Shared<'k>; 2] {
        let [a, b] = self.cfg.tiles();
        [self.shared.at(self.map.a).at(stage * a.bytes()), self.shared.at(self.map.b).at(stage * b.bytes())]
    }

    /// Elements from one slab of D, and of C, to the next, where rows are grouped.
    fn d_slab(&self) -> U32<'k> {
        self.grouped.expect("rows are grouped").groups.d_slab
    }

    /// Where the producer tells of the tile that a stage is of, where rows are grouped.
    fn told(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.places).at(stage * TilePlace::BYTES)
    }
}

/// `D[m,n] = C[m,n] + sum over k of  A[m,k] * B[n,k]`, with the B of the group that row m belongs to, where rows are
/// grouped; where groups are along K, `D[g,m,n] = C[g,m,n] + ` that sum over the K of group g. Finished where that is fused.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let mut params = Params::declare(k);
    params.output.half = cfg.operands.element;
    let grouped = cfg.is_grouped().then(|| GroupedParams::declare(k));
    let fused = cfg.is_fused().then(|| FusedParams::declare(k));
    let fused_groups = (cfg.is_fused() && cfg.is_grouped()).then(|| FusedGroupParams::declare(k));
    let map = SharedMap::new(cfg);
    let shared = k.dynamic_shared();
    map.name(k, cfg);
    let mut place = Place::new(k, [cfg.block_m, cfg.tile_columns()], &params);
    if cfg.turns_back() {
        place = place.turning_back(&params);
    }
    if let Some(fused) = &fused {
        let passes = fused.passes(cfg.quantized_passes());
        params.output = fused.output(params.output);
        params.pieces = Some(cfg.pieces(&params, passes));
        place = place.in_passes(&params, passes, cfg.part().columns);
    }
    if let Some(grouped) = &grouped {
        place = place.among_groups(grouped.groups, shared.at(map.groups), params.output.rows);
    }
    let k_groups = (cfg.grouping == Grouping::K)
        .then(|| KGroups::of_ranges(KGroupParams::declare(k), shared.at(map.groups), cfg.operands.k_unit()));
    if let Some(groups) = k_groups {
        place = place.among_k_groups(groups);
    }
    let pipe = Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages);
    let staged = Pipeline::new(k, shared.at(map.output_barriers), MATH_WARPGROUPS, MATH_WARPGROUPS);
    let (warp, lane) = (k.warp_index(), k.lane());
    let block = Block {
        k,
        cfg,
        params,
        grouped,
        k_groups,
        fused,
        fused_groups,
        map,
        shared,
        place,
        pipe,
        staged,
        warp,
        lane,
    };

    let tile_warp = MATH_WARPS;
    let storer = (warp & 1).eq(1) & block.params.output.is_copied(cfg.part().columns, block.fused.as_ref());
    k.if_(warp.eq(tile_warp), || {
        k.if_(lane.eq(0), || {
            block.params.a.prefetch();
            block.params.b.prefetch();
            block.params.output.d_map.prefetch();
            pipe.init(1, place.sharers() * MATH_WARPS);
            staged.init(MATH_WARPS / MATH_WARPGROUPS, 1);
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    if cfg.grouping == Grouping::Dense && cfg.operands.b == Major::K {
        place.fetch_early(k, warp.lt(MATH_WARPS), &block.params);
    }
    place.begin(k, (warp, tile_warp), cfg.threads());

    k.if_else(
        warp.ge(tile_warp),
        || {
            k.registers_down(PRODUCER_REGISTERS);
            match block.k_groups {
                None => k.if_(warp.eq(tile_warp), || {
                    k.if_(k.elect(), || k.role("producer", || block.load_tiles()))
                }),
                Some(groups) => {
                    k.if_(warp.eq(tile_warp), || k.role("producer", || block.load_tiles_of_groups(groups)));
                }
            }
            k.if_(storer, || k.if_(k.elect(), || k.role("output", || block.store_tiles())));
        },
        || {
            k.registers_up(MATH_REGISTERS);
            k.role("math", || block.multiply());
        },
    );
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The producer thread: this block's part of A and B, multicast to the blocks that share them.
    fn load_tiles(&self) {
        let (k, p, tiles) = (self.k, &self.params, self.cfg.tiles());
        let shares = self.shares();
        let cursor = self.pipe.writer();
        // Every stage of a tile: `tell` is done before its loads, which `load` issues for a depth of K.
        type Load<'a, 'k> = &'a dyn Fn([Shared<'k>; 2], U32<'k>, MBarrier<'k>);
        let stages = |back: Option<Pred<'k>>, tell: &dyn Fn(U32<'k>), load: Load<'_, 'k>| {
            KOrder::new(back, [k.constant(0), p.k_blocks], 1).for_each(k, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                tell(stage);
                full.arrive_expecting(self.cfg.stage_bytes());
                load(self.stage(stage), block * BLOCK_K, full);
                cursor.advance();
            });
        };
        match self.cfg.grouping {
            Grouping::Dense => self.place.for_each_place(k, |TilePlace { m, n, back, .. }| {
                let boxes = p.pieces.map(|pieces| shares[1].boxes(&pieces, self.cfg.block_n, n));
                stages(back, &|_| {}, &|operands, depth, full| {
                    if let Some(boxes) = &boxes {
                        shares[0].load(k, &p.a, [depth, m], operands[0], full);
                        return shares[1].load_boxes(k, &p.b, (depth, None), boxes, operands[1], full);
                    }
                    self.load_stage((&shares, [&p.a, &p.b]), [m, n, depth], operands, full);
                });
            }),
            Grouping::K => unreachable!("a warp loads the tiles of groups along K"),
            Grouping::Rows => {
                let once = k.cache_policy(Eviction::First);
                self.place.for_each_group_tile(k, |TilePlace { m, n, streams_b, back, .. }, place| {
                    // What is not read again leaves the L2 cache before what others have there.
                    let of_b = shares[1].streamed(streams_b, once);
                    let tell = |stage| match &p.pieces {
                        None => TilePlace::tell_in_slab(self.told(stage), [m, n], place),
                        Some(_) => TilePlace::tell_in_slab_of_group(self.told(stage), [m, n], place),
                    };
                    let boxes = p.pieces.map(|pieces| of_b.boxes(&pieces, self.cfg.block_n, n));
                    stages(back, &tell, &|[a, b], depth, full| {
                        let rows = (place.end, self.cfg.shape().group_box_rows());
                        shares[0].load_before(k, &p.a, [depth, m, place.slab], rows, a, full);
                        if let Some(boxes) = &boxes {
                            return of_b.load_boxes(k, &p.b, (depth, Some(place.group)), boxes, b, full);
                        }
                        tiles[1].boxes([n, depth], b).for_each(|([x, y], to)| {
                            of_b.load_of_slab(k, &p.b, [x, y, place.group], to, full);
                        });
                    });
                });
            }
        }
        k.launch_dependents();
        cursor.drain();
    }

    /// What this block loads of the tiles of A and B.
    fn shares(&self) -> [Share<'k>; 2] {
        let [a, b] = self.cfg.tiles();
        [self.place.part_of_a(a.lines()), self.place.part_of_b(b.lines())]
    }

    /// Loads this block's shares of a stage of the tile at row `m` and column `n`, from a depth of K on.
    fn load_stage(
        &self,
        (shares, maps): (&[Share<'k>; 2], [&TensorMap<'k>; 2]),
        [m, n, depth]: [U32<'k>; 3],
        operands: [Shared<'k>; 2],
        full: MBarrier<'k>,
    ) {
        let tiles = self.cfg.tiles().into_iter().zip(operands).zip([m, n]);
        for (((tile, to), first), (share, map)) in tiles.zip(shares.iter().zip(maps)) {
            tile.boxes([first, depth], to).for_each(|(at, to)| share.load(self.k, map, at, to, full));
        }
    }

    /// The producer where groups are along K: a warp, of which one elected lane loads, because it takes all of them to make a
    /// tensor map. Where the K of a group is no whole number of stages, the last has maps that end with the group, and
    /// zeros behind.
    fn load_tiles_of_groups(&self, groups: KGroups<'k>) {
        let (k, p, shares) = (self.k, &self.params, self.shares());
        let cursor = self.pipe.writer();
        let drafts = self.shared.at(self.map.map_drafts);
        let ring = MapRing::claim(groups.params, [p.a, p.b], drafts, self.lane);
        let k_dimensions = self.cfg.tiles().map(|tile| tile.k_dimension());
        self.place.for_each_place(k, |tile| {
            let Some(group) = tile.k_group else { return };
            let load = |maps: [&TensorMap<'k>; 2], block: U32<'k>| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting(self.cfg.stage_bytes());
                let depth = group.start + block * BLOCK_K;
                self.load_stage((&shares, maps), [tile.m, tile.n, depth], self.stage(stage), full);
                cursor.advance();
            };
            let whole = group.k / BLOCK_K;
            k.if_(k.elect(), || k.for_(0, whole, 1, |block| load([&p.a, &p.b], block)));
            k.if_((group.k % BLOCK_K).ne(0), || {
                ring.end_with(&group, k_dimensions);
                let [a, b] = ring.maps();
                k.if_(k.elect(), || load([&a, &b], whole));
            });
        });
        k.launch_dependents();
        k.if_(k.elect(), || {
            cursor.drain();
            ring.give_back();
        });
    }

    /// A math warpgroup: the products of all stages of a tile, one stage always in flight.
    fn multiply(&self) {
        let k = self.k;
        let math = Math::new(self);
        let warpgroup = self.warp >> 2;
        let ([first_row, first_column], outbox) =
            (self.cfg.shape().part_of(warpgroup), self.outbox(warpgroup));
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        let (waves, k_blocks) = (self.cfg.shape().waves(), self.params.k_blocks);
        let write = |[m, n]: [U32<'k>; 2], outbox: Outbox<'k>| {
            let first = [m + first_row, n + first_column];
            let sums: Vec<_> = math.sums.iter().map(Vec::as_slice).collect();
            outbox.write([self.warp & 3, self.lane], first, &sums, parity);
        };
        match self.cfg.grouping {
            Grouping::Dense if self.fused.is_some() => self.place.for_each_place(k, |tile| {
                math.multiply_tile(waves, k_blocks);
                self.finish(warpgroup, &FinishedTile::of(&tile), &math.sums, parity);
            }),
            Grouping::Dense => self.place.for_each_tile(k, |m, n| {
                math.multiply_tile(waves, k_blocks);
                write([m, n], outbox);
            }),
            Grouping::K => self.place.for_each_place(k, |tile| {
                let Some(group) = tile.k_group else { return };
                let zeros = || math.sums.iter().flatten().for_each(|sum| sum.set(0.0));
                let k_blocks = group.k.div_ceil(BLOCK_K);
                k.if_else(k_blocks.eq(0), zeros, || math.multiply_tile(waves, k_blocks));
                let outbox = outbox.of_group(group.group, group.d_row + self.params.output.rows);
                self.unless_kept(group.k, || write([group.d_row + tile.m, tile.n], outbox));
            }),
            Grouping::Rows => self.place.for_each_turn(k, |turn| {
                let (tile, [end, slab]) = math.told();
                let row = tile[0] + first_row;
                let compute = || {
                    match waves {
                        2 => {
                            let all = (row + WAVE_ROWS).lt(end);
                            let some = || math.multiply_tile(1, k_blocks);
                            k.if_else(all, || math.multiply_tile(2, k_blocks), some)
                        }
                        waves => math.multiply_tile(waves, k_blocks),
                    }
                    match self.fused {
                        None => write(tile, outbox.in_slab(slab, self.d_slab(), end)),
                        Some(_) => {
                            let tile = FinishedTile { at: tile, pass: turn.pass, rows: Some([slab, end]) };
                            self.finish(warpgroup, &tile, &math.sums, parity);
                        }
                    }
                };
                k.if_else(row.lt(end), compute, || math.pass_tile_by());
            }),
        }
    }

    /// Does what writes a tile's output, unless the K of its group is 0 and D is left as it is.
    fn unless_kept(&self, depth: U32<'k>, write: impl FnOnce()) {
        let groups = self.k_groups.expect("groups are along K");
        self.k.if_(depth.ne(0) | groups.params.keeps_empty.eq(0), write);
    }

    /// The thread that has stored what a math warpgroup has staged: the copy engine makes whoever asks it wait.
    fn store_tiles(&self) {
        let k = self.k;
        let warpgroup = (self.warp - MATH_WARPS) >> 1;
        let ([first_row, first_column], outbox) =
            (self.cfg.shape().part_of(warpgroup), self.outbox(warpgroup));
        let parity = k.var(0u32);
        if self.fused.is_some() {
            return self
                .place
                .for_each_place(k, |tile| self.store_finished(warpgroup, &FinishedTile::of(&tile), parity));
        }
        match self.cfg.grouping {
            Grouping::Dense => {
                self.place.for_each_tile(k, |m, n| outbox.store([m + first_row, n + first_column], parity));
            }
            Grouping::K => self.place.for_each_place(k, |tile| {
                let Some(group) = tile.k_group else { return };
                let outbox = outbox.of_group(group.group, self.params.output.rows);
                let first = [tile.m + first_row, tile.n + first_column];
                self.unless_kept(group.k, || outbox.store(first, parity));
            }),
            Grouping::Rows => self.place.for_each_group_tile(k, |tile, GroupPlace { slab, end, .. }| {
                let (row, column) = (tile.m + first_row, tile.n + first_column);
                k.if_(row.lt(end), || {
                    outbox.in_slab(slab, self.d_slab(), end).store([row, column], parity);
                });
            }),
        }
    }
}

/// A math warp's state.
struct Math<'k, 'b, 'c> {
    block: &'b Block<'k, 'c>,
    /// The operands in the first stage, and in the cursor's.
    operands: [Descriptor<'k>; 2],
    current: [DescriptorVar<'k>; 2],
    cursor: Cursor<'k>,
    /// The stage whose products were issued last, and the one before it.
    issued: [Var<'k, u32>; 2],
    /// The sums of each wave.
    sums: Vec<Vec<Var<'k, f32>>>,
    release: Release<'k>,
}

impl<'k, 'b, 'c> Math<'k, 'b, 'c> {
    fn new(block: &'b Block<'k, 'c>) -> Self {
        let (k, cfg) = (block.k, block.cfg);
        let (waves, columns) = (cfg.shape().waves(), cfg.shape().columns());
        let zero = k.constant(0);
        let [first_row, first_column] = cfg.shape().part_of(block.warp >> 2);
        debug_assert!(cfg.operands.b == Major::K || columns.is_multiple_of(PANEL));
        let ([a, b], [a_tile, b_tile]) = (block.stage(zero), cfg.tiles());
        let operands = [
            a_tile.descriptor(a.at(first_row * OperandTile::row_offset(1))),
            b_tile.descriptor(b.at(first_column * OperandTile::row_offset(1))),
        ];
        let sums: Vec<Vec<Var<'k, f32>>> = (0..waves).map(|_| k.fragment(columns as usize / 2)).collect();
        if cfg.is_grouped() {
            // Waves without rows are staged all the same.
            sums[1..].iter().flatten().for_each(|sum| sum.set(0.0));
        }
        Math {
            block,
            operands,
            current: operands.map(Descriptor::var),
            cursor: block.pipe.reader(),
            issued: [k.var(0), k.var(0)],
            sums,
            release: Release::new(k, &block.place, &block.pipe, block.lane),
        }
    }

    /// The first row and column of the tile that comes next, the row behind its group's last, and its slab: where rows
    /// are grouped.
    fn told(&self) -> ([U32<'k>; 2], [U32<'k>; 2]) {
        self.cursor.wait_full();
        TilePlace::told_whose(self.block.told(self.cursor.stage()))
    }

    /// All stages of a tile, at least one, of which so many waves have rows.
    fn multiply_tile(&self, waves: u32, k_blocks: U32<'k>) {
        let (k, sums) = (self.block.k, &self.sums[..waves as usize]);
        // Where rows are grouped, what is told of a tile has come with its first stage.
        if !self.block.cfg.is_grouped() {
            self.cursor.wait_full();
        }
        self.issue_stage(sums, false);
        k.for_(1, k_blocks, 1, |_| {
            self.cursor.wait_full();
            self.issue_stage(sums, true);
            k.wgmma_wait(1);
            self.release_previous();
        });
        k.wgmma_wait(0);
        self.release_last();
    }

    /// Lets go of all stages of a tile in which no row of this warpgroup belongs to the tile's group.
    fn pass_tile_by(&self) {
        let k = self.block.k;
        k.for_(0, self.block.params.k_blocks, 1, |_| {
            self.cursor.wait_full();
            // No lane may still wait for what another has let go of, or read what it tells.
            k.sync_warp();
            self.release.stage(k, self.cursor.stage());
            self.advance();
        });
    }

    /// Issues the products of a stage that has come, as one group. The first of a tile begin new sums.
    fn issue_stage(&self, sums: &[Vec<Var<'k, f32>>], accumulate: bool) {
        let (k, cfg) = (self.block.k, self.block.cfg);
        let Operands { a: major_a, b: major_b, .. } = cfg.operands;
        let (types, [a_tile, b_tile]) = (cfg.operands.mma_type(), cfg.tiles());
        let [a, b] = self.current.map(DescriptorVar::get);
        // Between stages only products touch the sums, but the assembler wants the fence in every block of code.
        k.wgmma_fence();
        for depth in (0..BLOCK_K).step_by(types.k() as usize) {
            let b = b.advance(b_tile.depth_offset(depth));
            for (wave, sums) in (0u32..).zip(sums) {
                let a = a.advance(OperandTile::row_offset(wave * WAVE_ROWS) + a_tile.depth_offset(depth));
                let adds = k.constant(accumulate || depth > 0);
                k.wgmma(types, sums, MatrixA::Shared(a), b, (major_a, major_b), adds);
            }
        }
        k.wgmma_commit();
        self.advance();
    }

    /// Moves to the next stage.
    fn advance(&self) {
        let [last, previous] = self.issued;
        previous.set(last.live());
        last.set(self.cursor.stage());
        self.cursor.advance();
        let stage = self.cursor.stage();
        for ((current, first), tile) in self.current.iter().zip(self.operands).zip(self.block.cfg.tiles()) {
            current.set(first.advance(stage * tile.bytes()));
        }
    }

    /// Lets go of the stage before the one whose products were issued last.
    fn release_previous(&self) {
        self.release.stage(self.block.k, self.issued[1].get());
    }

    /// Lets go of the stage whose products were issued last.
    fn release_last(&self) {
        self.release.stage(self.block.k, self.issued[0].get());
    }
}
