//! FP8 GEMM with fine-grained scales, for many rows: persistent, warp-specialized, multicast.
//!
//! A block computes tiles of `block_m` by `block_n`. Two warpgroups multiply: each its own half of the rows, in
//! turns of 64, or of the columns where a tile has 64 rows. A third one serves them: one thread issues the tensor loads, a warp
//! brings the scales, and two threads have what the others have staged stored; or two warps make operands of the scales (`outer.rs`), and
//! one thread stores, where every row of B has a scale. Clusters of blocks share their operands: each block loads its part of a tile and
//! multicasts it.
//!
//! Rows may be [grouped](crate::grouping), each group with a B of its own: then a tile has rows of one group, and what
//! lies behind the group's last row is neither loaded nor stored.
//!
//! Tiles that fill no round may be [shared out](crate::tail) along K: a block then leaves its sums of a part of K, or adds what another has
//! left (`shared_tile.rs`), before it stores them.
//!
//! Tiles of groups may take different times: clusters then take them [as they get done](crate::dispatch).
//!
//! Sums may be [finished](crate::epilogue::fused) before they are stored.

mod math;
mod outer;
mod output;
mod shared_tile;

use crate::BLOCK_K;
use crate::cluster::{Place, TilePlace, Turn};
use crate::dispatch::{Dispatch, Leader};
use crate::epilogue::Panels;
use crate::epilogue::fused::{FusedGroupParams, FusedParams, Fusion, Pieces};
use crate::epilogue::quantized::{QuantizedOutput, passes};
use crate::fp8::{self, E5m2};
use crate::grouping::Grouping;
use crate::half_output::PartShape;
use crate::kgroups::{KGroupParams, KGroups, MapRing};
use crate::many_rows::{MATH_REGISTERS, MATH_WARPGROUPS, MATH_WARPS, ManyRows, PRODUCER_REGISTERS, THREADS};
use crate::params::{GroupedParams, Params, ScalesOfB};
use crate::pipeline::Pipeline;
use crate::scales::{GROUP, ScaleRing, ScaleShape, group_start};
use crate::schedule::KOrder;
use crate::tail::{self, Tail, TailParams};
use math::{Math, MathTile};
use output::Part;
use oxigemm_ptx::tma::Eviction;
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, SharedLayout, Target, U32};

/// What is compiled in. Shapes, strides, the cluster's dimensions and the output type are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of a tile: 64, 128 or 256.
    pub block_m: u32,
    /// Columns of a tile: a multiple of 16, of 32 where it has 64 rows.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// Whether rows are grouped.
    pub grouping: Grouping,
    /// Whether D of groups is stored slab by slab, so that slabs may lie any distance apart: those of a batch.
    pub d_in_slabs: bool,
    /// What shares one scale of B.
    pub scales_of_b: ScalesOfB,
    /// Which operands are e5m2, if any is.
    pub e5m2: Option<E5m2>,
    /// What is done with sums before they are stored.
    pub fusion: Fusion,
    /// Whether tiles that fill no round are [shared out](crate::tail) along K.
    pub shares_tail: bool,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let grouped = match self.grouping {
            Grouping::Dense => "",
            Grouping::Rows if self.d_in_slabs => "batched_",
            Grouping::Rows => "grouped_",
            Grouping::K => "kgrouped_",
        };
        let scales = if self.scales_of_b == ScalesOfB::Rows { "1d1d_" } else { "" };
        let grouped = if self.shares_tail { "shared_" } else { grouped };
        let (types, fused) = (fp8::prefix(self.e5m2), self.fusion.name());
        let (block_m, block_n, stages) = (self.block_m, self.block_n, self.stages);
        format!("fp8_gemm_wide_{types}{fused}{grouped}{scales}{block_m}x{block_n}_s{stages}")
    }

    /// Whether sums are finished before they are stored.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    /// Columns of D that a tile's sums become.
    pub fn tile_columns(&self) -> u32 {
        self.block_n / self.fusion.sums()
    }

    /// How many times a block computes that many columns for D to be quantized.
    pub fn quantized_passes(&self) -> u32 {
        if self.is_fused() { passes(self.part_columns()) } else { 1 }
    }

    /// Columns of D that a warpgroup's sums become.
    fn part_columns(&self) -> u32 {
        self.shape().columns() / self.fusion.sums()
    }

    /// Rows of B that one tensor load brings, for clusters of this many blocks along M.
    pub fn box_rows_of_b(&self, cluster_m: u32) -> u32 {
        let share = self.block_n / cluster_m;
        if self.is_fused() { share.min(self.part_columns()) } else { share }
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        self.grouping == Grouping::Rows
    }

    /// Rows of A that one tensor load brings, for clusters of this many blocks along N.
    pub fn box_rows(&self, cluster_n: u32) -> u32 {
        let share = self.block_m / cluster_n;
        if self.is_grouped() { share.min(self.shape().group_box_rows()) } else { share }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Registers of a thread that multiplies, and of one that serves those: warps that carry scales need some more, and those that multiply
    /// hold none then.
    fn registers(&self) -> [u32; 2] {
        match self.scales_of_b {
            ScalesOfB::Rows => [MATH_REGISTERS - 24, PRODUCER_REGISTERS + 48],
            ScalesOfB::Blocks => [MATH_REGISTERS, PRODUCER_REGISTERS],
        }
    }

    /// Whether it can take K from its end. (With a scale for each row of B nothing was gained.)
    pub fn turns_back(&self) -> bool {
        self.scales_of_b == ScalesOfB::Blocks && self.grouping != Grouping::K && !self.is_fused()
    }

    /// Whether that is another order (`KOrder`) where K has so many blocks: several whole groups of scales.
    pub fn turns_back_in(&self, k_blocks: u32) -> bool {
        let (blocks, group) = (self.padded_blocks(k_blocks), self.scale_blocks());
        self.turns_back() && blocks > group && blocks.is_multiple_of(group)
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    fn shape(&self) -> ManyRows {
        ManyRows { block_m: self.block_m, block_n: self.block_n }
    }

    /// What a warpgroup computes of a tile.
    fn part(&self) -> PartShape {
        PartShape { waves: self.shape().waves(), columns: self.shape().columns() }
    }

    /// Blocks of K that the main loop is unrolled by: those whose scales are loaded at once. With a second wave, the step into the next
    /// round is taken behind products of the first, and unrolling gains little; where tiles are shared out, half a percent.
    fn unroll(&self) -> u32 {
        match (self.shape().waves(), self.shares_tail) {
            (1, _) => 4,
            (_, true) => tail::UNIT,
            (_, false) => 1,
        }
    }

    /// Whether a tile has a multiple of [`unroll`](Self::unroll) blocks of K: those behind the end of K are zero. Large tiles, whose
    /// products fill the registers, are 1 to 2% faster without a loop for what is left over, and assembled sooner; low and
    /// narrow ones are there for a K that would waste too much.
    fn pads_k(&self) -> bool {
        const LARGE: u32 = 176;
        let large = self.shape().waves() * self.shape().columns() >= LARGE;
        self.scales_of_b == ScalesOfB::Blocks && self.unroll() > 1 && large
    }

    /// The blocks of K that a tile has where K has that many.
    pub fn padded_blocks(&self, k_blocks: u32) -> u32 {
        if self.pads_k() { k_blocks.next_multiple_of(self.unroll()) } else { k_blocks }
    }

    /// The same inside a kernel.
    fn padded<'k>(&self, k_blocks: U32<'k>) -> U32<'k> {
        if self.pads_k() { k_blocks.div_ceil(self.unroll()) * self.unroll() } else { k_blocks }
    }

    /// Sums of all threads of a block.
    pub fn sums(&self) -> u32 {
        self.block_m * self.block_n
    }

    /// Whether clusters take tiles [as they get done](crate::dispatch): where groups end within tiles, those take less time.
    pub fn hands_out_tiles(&self) -> bool {
        self.is_grouped() && self.shape().waves() > 1 && !self.is_fused() && !self.d_in_slabs
    }

    /// What is shared out of so many tiles of clusters.
    pub fn tail(&self, tiles: u32, k_blocks: u32, clusters: u32) -> Tail<u32> {
        match self.shares_tail {
            true => Tail::of(tiles, self.padded_blocks(k_blocks), clusters),
            false => Tail::default(),
        }
    }

    /// Columns that are sure to share one scale of B, whatever tile and warpgroup they are in, where 128 rows of B share one.
    fn columns_per_scale(&self) -> u32 {
        gcd(self.part_columns(), BLOCK_K)
    }

    /// Bytes of the [operands](outer) that a stage has beside its tiles: scales of rows, then of columns.
    fn scale_operand_bytes(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Blocks => 0,
            ScalesOfB::Rows => outer::bytes(self.block_m + self.block_n),
        }
    }

    /// Bytes of the zeros that these operands share.
    fn scale_zero_bytes(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Blocks => 0,
            ScalesOfB::Rows => outer::bytes(self.shape().columns().max(64)),
        }
    }

    /// Blocks of K whose scales come together.
    pub fn scale_blocks(&self) -> u32 {
        self.scales().group
    }

    /// Rows of A and blocks of K whose scales may come as one piece; none where rows are grouped.
    pub fn scale_piece(&self) -> [u32; 2] {
        self.scales().piece()
    }

    fn scales(&self) -> ScaleShape {
        if self.scales_of_b == ScalesOfB::Rows {
            return ScaleShape::PLACES;
        }
        let columns_per_scale = self.columns_per_scale();
        let columns = self.block_n / columns_per_scale;
        match self.grouping {
            Grouping::Dense => ScaleShape::dense(self.block_m, columns_per_scale, columns),
            Grouping::Rows | Grouping::K => ScaleShape::grouped(self.block_m, columns_per_scale, columns),
        }
    }

    /// Bytes of a math warpgroup's staging area.
    fn staging_bytes(&self) -> u32 {
        let (waves, columns) = (self.shape().waves(), self.part_columns());
        let rounded = waves * Panels::staging_bytes(columns);
        match (self.fusion, self.scales_of_b) {
            // What has such scales mostly adds to sums in FP32: room for all of them, where there is.
            (Fusion::None, ScalesOfB::Rows) => 2 * rounded,
            (Fusion::None, _) => rounded,
            _ => rounded.max(QuantizedOutput::staging_bytes(waves, columns)),
        }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        build(self)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Shared memory, every offset in one place.
struct SharedMap {
    a: u32,
    b: u32,
    staging: u32,
    scale_operands: u32,
    scale_zeros: u32,
    scales: u32,
    barriers: u32,
    scale_barriers: u32,
    output_barriers: u32,
    /// Where tiles are shared out: a [word](shared_tile) for each warpgroup that multiplies, and one for each that stores for it.
    meetings: u32,
    /// Where clusters take tiles as they get done: the ring that tells which is next, and its barriers.
    next_tiles: [u32; 2],
    /// Where groups are along K: tensor maps that are being made.
    map_drafts: u32,
    groups: u32,
    bytes: u32,
}

impl SharedMap {
    fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let a = layout.place(cfg.stages * cfg.block_m * BLOCK_K, 1024);
        let b = layout.place(cfg.stages * cfg.block_n * BLOCK_K, 1024);
        let staging = layout.place(MATH_WARPGROUPS * cfg.staging_bytes(), 1024);
        let scale_operands = layout.place(cfg.stages * cfg.scale_operand_bytes(), 128);
        let scale_zeros = layout.place(cfg.scale_zero_bytes(), 128);
        let scales = layout.place(cfg.scales().bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let scale_barriers = layout.place(ScaleShape::BARRIER_BYTES, 8);
        let output_barriers = layout.place(Pipeline::barrier_bytes(MATH_WARPGROUPS), 8);
        let meetings = layout.place(if cfg.shares_tail { shared_tile::SHARED_BYTES } else { 0 }, 4);
        let ring_bytes = [Dispatch::BYTES, Dispatch::BARRIER_BYTES];
        let next_tiles =
            ring_bytes.map(|bytes| layout.place(if cfg.hands_out_tiles() { bytes } else { 0 }, 8));
        let draft_bytes = if cfg.grouping == Grouping::K { MapRing::DRAFT_BYTES } else { 0 };
        let map_drafts = layout.place(draft_bytes, if draft_bytes > 0 { 128 } else { 1 });
        let groups = layout.bytes();
        let bytes = layout.bytes();
        SharedMap {
            a,
            b,
            staging,
            scale_operands,
            scale_zeros,
            scales,
            barriers,
            scale_barriers,
            output_barriers,
            meetings,
            next_tiles,
            map_drafts,
            groups,
            bytes,
        }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("a", self.a, cfg.block_m * BLOCK_K, cfg.stages);
        k.name_shared("b", self.b, cfg.block_n * BLOCK_K, cfg.stages);
        k.name_shared("staging", self.staging, cfg.staging_bytes(), MATH_WARPGROUPS);
        if cfg.scale_operand_bytes() > 0 {
            k.name_shared("scale_operands", self.scale_operands, cfg.scale_operand_bytes(), cfg.stages);
            k.name_shared("scale_zeros", self.scale_zeros, cfg.scale_zero_bytes(), 1);
        }
        cfg.scales().name(k, self.scales);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        ScaleRing::name_barriers(k, self.scale_barriers);
        Pipeline::name_barriers(k, ["staged", "stored"], self.output_barriers, MATH_WARPGROUPS);
        if cfg.hands_out_tiles() {
            let [slots, barriers] = self.next_tiles;
            Dispatch::name(k, slots, barriers);
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
    tail: Option<TailParams<'k>>,
    fused: Option<FusedParams<'k>>,
    fused_groups: Option<FusedGroupParams<'k>>,
    map: SharedMap,
    shared: Shared<'k>,
    place: Place<'k>,
    pipe: Pipeline<'k>,
    scales: ScaleRing<'k>,
    /// The staging areas of the warpgroups, as if each were a stage of a ring: `full` when it holds a tile's output.
    outbox: Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Block<'k, '_> {
    /// [`Config::padded_blocks`] of every tile, where groups are not along K.
    fn padded_blocks(&self) -> U32<'k> {
        self.cfg.padded(self.params.k_blocks)
    }

    /// The blocks of K that are computed of a tile: the first, and the one behind the last.
    fn blocks_of(&self, tile: &TilePlace<'k>) -> [U32<'k>; 2] {
        match tile.part {
            Some(part) => [part.first, part.end],
            None => [self.k.constant(0), self.padded_blocks()],
        }
    }

    /// `block_m` rows of A in a stage, 128 bytes each, swizzled.
    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.a).at(stage * (self.cfg.block_m * BLOCK_K))
    }

    /// `block_n` rows of B in a stage.
    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.b).at(stage * (self.cfg.block_n * BLOCK_K))
    }

    /// The [operands](outer) of the scales in a stage: of rows, and of columns.
    fn scale_operands(&self, stage: U32<'k>) -> [Shared<'k>; 2] {
        let rows = self.shared.at(self.map.scale_operands).at(stage * self.cfg.scale_operand_bytes());
        [rows, rows.at(outer::bytes(self.cfg.block_m))]
    }

    /// How far behind those of the first stage zeros lie.
    fn zeros_behind_scale_operands(&self) -> [u32; 2] {
        let rows = self.map.scale_zeros - self.map.scale_operands;
        [rows, rows - outer::bytes(self.cfg.block_m)]
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`,
/// with the B and its scales of the group that row m belongs to, where rows are grouped; with `sfb[n,kb]` where every
/// row of B has a scale; and finished where that is fused.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let mut params = Params::declare(k);
    let grouped = cfg.is_grouped().then(|| GroupedParams::declare(k));
    params.d_in_slabs = cfg.d_in_slabs;
    let fused = cfg.is_fused().then(|| FusedParams::declare(k));
    let fused_groups = (cfg.is_fused() && cfg.is_grouped()).then(|| FusedGroupParams::declare(k));
    let map = SharedMap::new(cfg);
    let shared = k.dynamic_shared();
    map.name(k, cfg);
    let mut place = Place::new(k, [cfg.block_m, cfg.tile_columns()], &params);
    if cfg.turns_back() {
        place = place.turning_back(&params);
    }
    let k_groups = (cfg.grouping == Grouping::K).then(|| {
        let table = shared.at(map.groups);
        KGroups::with_scales(KGroupParams::declare(k), table, (params.k_blocks, BLOCK_K))
    });
    if let Some(groups) = k_groups {
        place = place.among_k_groups(groups);
    }
    let tail = cfg.shares_tail.then(|| TailParams::declare(k));
    if let Some(tail) = tail {
        assert_eq!(
            [cfg.scale_blocks(), cfg.unroll()],
            [GROUP, tail::UNIT],
            "parts of tiles begin at such blocks"
        );
        place = place.with_tail(k, tail, cfg.padded(params.k_blocks));
    }
    if let Some(fused) = &fused {
        let (columns, ups) = (cfg.part_columns(), params.output.columns);
        let passes = fused.passes(cfg.quantized_passes());
        params.output = fused.output(params.output);
        params.pieces = Some(Pieces { fusion: cfg.fusion, columns, stride: passes * columns, ups });
        place = place.in_passes(&params, passes, columns);
    }
    if let Some(grouped) = &grouped {
        place = place.among_groups(grouped.groups, shared.at(map.groups), params.output.rows);
    }
    let dispatch = cfg.hands_out_tiles().then(|| {
        let [slots, barriers] = map.next_tiles.map(|offset| shared.at(offset));
        Dispatch::declare(k, slots, barriers, place.among_blocks())
    });
    if let Some(dispatch) = dispatch {
        place = place.with_dispatch(dispatch);
    }
    let pipe = Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages);
    let scales =
        ScaleRing::new(k, cfg.scales(), shared.at(map.scales), shared.at(map.scale_barriers), &params);
    let (warp, lane) = (k.warp_index(), k.lane());
    let outbox = Pipeline::new(k, shared.at(map.output_barriers), MATH_WARPGROUPS, MATH_WARPGROUPS);
    let block = Block {
        k,
        cfg,
        params,
        grouped,
        k_groups,
        tail,
        fused,
        fused_groups,
        map,
        shared,
        place,
        pipe,
        scales,
        outbox,
        warp,
        lane,
    };

    let tile_warp = MATH_WARPS;
    // The others that serve: one or two bring scales, and one for each warpgroup that multiplies, or for both, has what is staged stored.
    let scale_warp = MATH_WARPS + 2;
    let (brings_scales, stores) = match cfg.scales_of_b {
        ScalesOfB::Blocks => (warp.eq(scale_warp), (warp & 1).eq(1)),
        ScalesOfB::Rows => (warp.ge(scale_warp), warp.eq(MATH_WARPS + 1)),
    };
    let storer = stores & block.params.output.is_copied(cfg.part_columns(), block.fused.as_ref());
    k.if_(warp.eq(tile_warp), || {
        k.if_(lane.eq(0), || {
            block.params.a.prefetch();
            block.params.b.prefetch();
            block.params.sfa_map.prefetch();
            block.params.output.d_map.prefetch();
            let writers = match cfg.scales_of_b {
                ScalesOfB::Blocks => 1,
                ScalesOfB::Rows => 1 + outer::CARRIERS,
            };
            pipe.init(writers, place.sharers() * MATH_WARPS);
            scales.init(MATH_WARPS);
            outbox.init(MATH_WARPS / MATH_WARPGROUPS, 1);
            if let Some(dispatch) = dispatch {
                dispatch.init();
            }
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    if cfg.grouping == Grouping::Dense && !cfg.is_fused() {
        place.fetch_early(k, warp.lt(MATH_WARPS), &block.params);
    }
    place.begin(k, (warp, tile_warp), cfg.threads());

    k.if_else(
        warp.ge(tile_warp),
        || {
            k.registers_down(cfg.registers()[1]);
            match block.k_groups {
                None => k.if_(warp.eq(tile_warp), || {
                    k.if_(k.elect(), || k.role("producer", || block.load_tiles()))
                }),
                Some(groups) => {
                    k.if_(warp.eq(tile_warp), || k.role("producer", || block.load_tiles_of_groups(groups)));
                }
            }
            k.if_(brings_scales, || {
                k.role("scales", || match cfg.scales_of_b {
                    ScalesOfB::Blocks => block.bring_scales(),
                    ScalesOfB::Rows => block.carry_scales(warp - scale_warp),
                });
            });
            k.if_(storer, || k.if_(k.elect(), || k.role("output", || block.store_tiles())));
        },
        || {
            k.registers_up(cfg.registers()[0]);
            k.role("math", || block.multiply());
        },
    );
    k.finish()
}

impl<'k> Block<'k, '_> {
    /// The producer thread: this block's part of A and B, multicast to the blocks that share them, and scales.
    fn load_tiles(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let (a, b) = (self.place.share_of_a(), self.place.part_of_b(cfg.block_n));
        let once = k.cache_policy(Eviction::First);
        let cursor = self.pipe.writer();
        if cfg.scales_of_b == ScalesOfB::Rows {
            self.begin_late(p.k_blocks);
        }
        self.place.for_each_place(k, |tile| {
            // What is not read again leaves the L2 cache before what others have there.
            let b = b.streamed(tile.streams_b, once);
            KOrder::new(tile.back, self.blocks_of(&tile), cfg.scale_blocks()).for_each(k, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                let column = block * BLOCK_K;
                let TilePlace { m, n, group, .. } = tile;
                match group {
                    Some(place) => {
                        let rows = (place.end, cfg.shape().group_box_rows());
                        a.load_before(k, &p.a, [column, m, place.slab], rows, self.a(stage), full);
                    }
                    None => a.load(k, &p.a, [column, m], self.a(stage), full),
                }
                match (p.pieces, group) {
                    (Some(pieces), _) => {
                        let group = group.map(|place| place.group);
                        b.load_pieces(k, &p.b, [column, n], (&pieces, group), self.b(stage), full);
                    }
                    (None, Some(place)) => {
                        b.load_of_slab(k, &p.b, [column, n, place.group], self.b(stage), full);
                    }
                    (None, None) => b.load(k, &p.b, [column, n], self.b(stage), full),
                }
                cursor.advance();
            });
        });
        k.launch_dependents();
        cursor.drain();
    }

    /// The same where groups are along K: a warp, of which one lane loads, because it takes all of them to make the
    /// tensor maps of a group.
    fn load_tiles_of_groups(&self, groups: KGroups<'k>) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let (a, b) = (self.place.share_of_a(), self.place.part_of_b(cfg.block_n));
        let cursor = self.pipe.writer();
        let drafts = self.shared.at(self.map.map_drafts);
        let ring = MapRing::claim(groups.params, [p.a, p.b], drafts, self.lane);
        self.begin_late(groups.place(groups.count() - 1).k.div_ceil(BLOCK_K));
        self.place.for_each_place(k, |tile| {
            let Some(group) = tile.k_group else { return };
            k.if_(group.k.gt(0), || {
                ring.turn_to(&group, [p.output.rows, p.output.columns]);
                let [map_a, map_b] = ring.maps();
                k.if_(self.lane.eq(0), || {
                    k.for_(0, group.k.div_ceil(BLOCK_K), 1, |block| {
                        cursor.wait_empty();
                        let stage = cursor.stage();
                        let full = self.pipe.full(stage);
                        full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                        a.load(k, &map_a, [block * BLOCK_K, tile.m], self.a(stage), full);
                        b.load(k, &map_b, [block * BLOCK_K, tile.n], self.b(stage), full);
                        cursor.advance();
                    });
                });
            });
        });
        k.launch_dependents();
        k.if_(self.lane.eq(0), || cursor.drain());
        ring.give_back();
    }

    /// Where a cluster has a tile less than others, it begins later instead of ending earlier: not all add to memory at one time then. `blocks` are
    /// those of a last tile.
    fn begin_late(&self, blocks: U32<'k>) {
        // About what a block takes: half a microsecond where a tile has 128 rows.
        let block_ns = self.cfg.block_m * 3;
        self.k.for_(0, self.place.late_by(self.k, blocks), 1, |_| self.k.sleep(block_ns));
    }

    /// The warp that brings the scales, as far ahead of the tiles as its ring allows.
    fn bring_scales(&self) {
        let (k, p, group) = (self.k, &self.params, self.cfg.scale_blocks());
        let bringer = self.scales.bringer(self.lane);
        let bring = |tile: TilePlace<'k>, leader: Option<&Leader<'k, '_>>| {
            let (p, at) = (&p.of(&tile, self.grouped.as_ref()), [tile.m, tile.n]);
            let [first, end] = match tile.part {
                Some(part) => [group_start(part.first, group), part.end],
                None => [k.constant(0), p.k_blocks],
            };
            let order = KOrder::new(tile.back, [first, self.cfg.padded(end)], group);
            k.for_(first, end, group, |start| {
                if let Some(leader) = leader {
                    k.if_((start + group).ge(end), || leader.ask());
                }
                bringer.bring(p, at, order.group(start));
            });
        };
        self.place.lead_places(k, self.lane, bring, || bringer.end());
    }

    /// A math warpgroup: 64-row products of each stage, promoted into FP32 sums with their scales.
    fn multiply(&self) {
        let k = self.k;
        let math = Math::new(self);
        let warpgroup = self.warp >> 2;
        let (first_row, waves) = (self.cfg.shape().part_of(warpgroup)[0], self.cfg.shape().waves());
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        self.place.if_any_tile(k, || math.load_first_scales());
        // How math warps learn whether a tile follows, where only those who ask for it know.
        let follows = self.cfg.hands_out_tiles().then(|| k.var_from(self.place.has_any_tile(k)));
        let compute = |turn: Turn<'k>| {
            math.sums.iter().flatten().for_each(|sum| sum.set(0.0));
            let blocks = math.blocks();
            match self.cfg.grouping {
                Grouping::Dense | Grouping::K => math.multiply_tile(waves, blocks),
                Grouping::Rows => math.multiply_rows(waves, first_row, blocks),
            }
            // Only now: until here it would take registers.
            let MathTile { at: tile, end, slab, group, k_blocks, meeting } = math.tile();
            match follows {
                Some(follows) => {
                    math.scales.release();
                    math.scales.wait();
                    follows.set(math.scales.has_tile());
                    k.if_(follows.get(), || math.load_first_scales());
                }
                None => k.if_(self.place.has_another(k, turn), || {
                    math.scales.release();
                    math.load_first_scales();
                }),
            }
            let complete = meeting.map(|place| self.complete(place, &math.sums));
            let part = Part { warpgroup, tile, end, slab, group, k_blocks, pass: turn.pass, complete };
            self.write((&part, first_row), &math.sums, parity);
        };
        match follows {
            Some(follows) => {
                let turn = Turn { index: k.constant(0), pass: None };
                k.while_(|| follows.live(), || compute(turn));
            }
            None => self.place.for_each_turn(k, compute),
        }
    }

    /// The thread that has stored what a math warpgroup has staged, so that none of those ever waits for the copy
    /// engine.
    fn store_tiles(&self) {
        let k = self.k;
        match self.cfg.scales_of_b {
            ScalesOfB::Blocks => {
                let (warpgroup, parity) = ((self.warp - MATH_WARPS) >> 1, k.var(0u32));
                self.place.for_each_place(k, |tile| self.store(warpgroup, &tile, parity));
            }
            ScalesOfB::Rows => {
                let both = (0..MATH_WARPGROUPS).map(|warpgroup| (k.constant(warpgroup), k.var(0u32)));
                let both: Vec<_> = both.collect();
                self.place.for_each_place(k, |tile| {
                    both.iter().for_each(|&(warpgroup, _)| self.fetch_addend(warpgroup, &tile));
                    both.iter().for_each(|&(warpgroup, parity)| self.store(warpgroup, &tile, parity));
                });
            }
        }
    }
}
