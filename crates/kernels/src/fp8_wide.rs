//! FP8 GEMM with fine-grained scales, for many rows: persistent, warp-specialized, multicast.
//!
//! A block computes tiles of `block_m` by `block_n`. Two warpgroups multiply: each its own half of the rows, or
//! of the columns where a tile has 64 rows. A third one serves them: one thread issues the tensor loads, a warp
//! brings the scales, and two threads have what the others have staged stored. Clusters of blocks share their operands:
//! each block loads its part of a tile and multicasts it.
//!
//! Rows may be [grouped](crate::grouping), each group with a B of its own: then a tile has rows of one group, and what
//! lies behind the group's last row is neither loaded nor stored.

mod math;

use crate::BLOCK_K;
use crate::cluster::{Place, TilePlace};
use crate::epilogue::{OutputFlags, OutputParams, PANEL_BYTES, Panels, WarpOutput};
use crate::fp8::{self, E5m2};
use crate::grouping::Grouping;
use crate::half_output::{Outbox, PartShape};
use crate::kgroups::{KGroupParams, KGroups, MapRing};
use crate::many_rows::{MATH_REGISTERS, MATH_WARPGROUPS, MATH_WARPS, ManyRows, PRODUCER_REGISTERS, THREADS};
use crate::params::{GroupedParams, Params, ScalesOfB};
use crate::pipeline::Pipeline;
use crate::scales::{GROUP, ScaleRing, ScaleShape};
use math::{Math, MathTile};
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
    /// What shares one scale of B.
    pub scales_of_b: ScalesOfB,
    /// Which operands are e5m2, if any is.
    pub e5m2: Option<E5m2>,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let grouped = match self.grouping {
            Grouping::Dense => "",
            Grouping::Rows => "grouped_",
            Grouping::K => "kgrouped_",
        };
        let scales = if self.scales_of_b == ScalesOfB::Rows { "1d1d_" } else { "" };
        let types = fp8::prefix(self.e5m2);
        format!("fp8_gemm_wide_{types}{grouped}{scales}{}x{}_s{}", self.block_m, self.block_n, self.stages)
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

    /// Blocks of K that the main loop is unrolled by, two or four: those whose scales are loaded at once. The more, the
    /// faster, as far as registers reach.
    const UNROLL: u32 = 4;

    /// Columns that are sure to share one scale of B, whatever tile and warpgroup they are in.
    fn columns_per_scale(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Blocks => gcd(self.shape().columns(), BLOCK_K),
            ScalesOfB::Rows => 1,
        }
    }

    fn scales(&self) -> ScaleShape {
        let columns_per_scale = self.columns_per_scale();
        let columns = self.block_n / columns_per_scale;
        ScaleShape { rows: self.block_m, columns_per_scale, columns }
    }

    /// Bytes of a math warpgroup's staging area.
    fn staging_bytes(&self) -> u32 {
        self.shape().waves() * Panels::staging_bytes(self.shape().columns())
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
    scales: u32,
    barriers: u32,
    scale_barriers: u32,
    output_barriers: u32,
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
        let scales = layout.place(cfg.scales().bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let scale_barriers = layout.place(ScaleShape::BARRIER_BYTES, 8);
        let output_barriers = layout.place(Pipeline::barrier_bytes(MATH_WARPGROUPS), 8);
        let draft_bytes = if cfg.grouping == Grouping::K { MapRing::DRAFT_BYTES } else { 0 };
        let map_drafts = layout.place(draft_bytes, if draft_bytes > 0 { 128 } else { 1 });
        let groups = layout.bytes();
        let bytes = layout.bytes();
        SharedMap {
            a,
            b,
            staging,
            scales,
            barriers,
            scale_barriers,
            output_barriers,
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
        cfg.scales().name(k, self.scales);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        ScaleRing::name_barriers(k, self.scale_barriers);
        Pipeline::name_barriers(k, ["staged", "stored"], self.output_barriers, MATH_WARPGROUPS);
    }
}

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    grouped: Option<GroupedParams<'k>>,
    k_groups: Option<KGroups<'k>>,
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
    /// `block_m` rows of A in a stage, 128 bytes each, swizzled.
    fn a(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.a).at(stage * (self.cfg.block_m * BLOCK_K))
    }

    /// `block_n` rows of B in a stage.
    fn b(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.b).at(stage * (self.cfg.block_n * BLOCK_K))
    }

    /// Does what writes a tile's output, unless its group is empty and D is left as it is.
    fn unless_kept(&self, k_blocks: U32<'k>, write: impl FnOnce()) {
        match self.k_groups {
            Some(groups) => self.k.if_(k_blocks.ne(0) | groups.params.keeps_empty.eq(0), write),
            None => write(),
        }
    }

    /// The way of a warpgroup's part to D in rounds, where it takes that.
    fn outbox_of(
        &self,
        warpgroup: U32<'k>,
        output: &OutputParams<'k>,
        slab: Option<U32<'k>>,
    ) -> Option<Outbox<'k>> {
        (self.cfg.scales_of_b == ScalesOfB::Rows).then(|| Outbox {
            k: self.k,
            params: *output,
            slab,
            goes_on: false,
            shape: self.cfg.part(),
            room: self.cfg.staging_bytes() / PANEL_BYTES,
            staging: self.shared.at(self.map.staging).at(warpgroup * self.cfg.staging_bytes()),
            ring: self.outbox,
            warpgroup,
        })
    }

    /// Where each 64 rows of a warpgroup's part of a tile are staged and belong.
    fn panels(&self, warpgroup: U32<'k>, tile: [U32<'k>; 2]) -> Vec<Panels<'k>> {
        let cfg = self.cfg;
        let [row, column] = self.cfg.shape().part_of(warpgroup);
        let staging = self.shared.at(self.map.staging).at(warpgroup * cfg.staging_bytes());
        (0..cfg.shape().waves())
            .map(|wave| Panels {
                row: tile[0] + row + wave * 64,
                column: tile[1] + column,
                staging: staging.at(wave * Panels::staging_bytes(cfg.shape().columns())),
            })
            .collect()
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`,
/// with the B and its scales of the group that row m belongs to, where rows are grouped; with `sfb[n,kb]` where every
/// row of B has a scale.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let mut params = Params::declare(k);
    let grouped = cfg.is_grouped().then(|| GroupedParams::declare(k));
    if cfg.scales_of_b == ScalesOfB::Rows {
        params = params.with_scales_of_rows(k);
    }
    let map = SharedMap::new(cfg);
    let shared = k.dynamic_shared();
    map.name(k, cfg);
    let mut place = Place::new(k, [cfg.block_m, cfg.block_n], &params);
    let k_groups = (cfg.grouping == Grouping::K).then(|| {
        let table = shared.at(map.groups);
        KGroups::new(KGroupParams::declare(k), table, (params.k_blocks, BLOCK_K))
    });
    if let Some(groups) = k_groups {
        place = place.among_k_groups(groups);
    }
    if let Some(grouped) = &grouped {
        place = place.among_groups(grouped.groups, shared.at(map.groups), params.output.rows);
    }
    let pipe = Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages);
    let scales =
        ScaleRing::new(k, cfg.scales(), shared.at(map.scales), shared.at(map.scale_barriers), &params);
    let (warp, lane) = (k.warp_index(), k.lane());
    let outbox = Pipeline::new(k, shared.at(map.output_barriers), MATH_WARPGROUPS, MATH_WARPGROUPS);
    let block =
        Block { k, cfg, params, grouped, k_groups, map, shared, place, pipe, scales, outbox, warp, lane };

    let tile_warp = MATH_WARPS;
    let scale_warp = MATH_WARPS + 2;
    // Those that serve and are left.
    let storer = (warp & 1).eq(1) & block.params.output.has(OutputFlags::PLAIN);
    k.if_(warp.eq(tile_warp), || {
        k.if_(lane.eq(0), || {
            block.params.a.prefetch();
            block.params.b.prefetch();
            block.params.sfa_map.prefetch();
            block.params.output.d_map.prefetch();
            pipe.init(1, place.sharers() * MATH_WARPS);
            scales.init(MATH_WARPS);
            outbox.init(MATH_WARPS / MATH_WARPGROUPS, 1);
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
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
            k.if_(warp.eq(scale_warp), || k.role("scales", || block.bring_scales()));
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
    /// The producer thread: this block's part of A and B, multicast to the blocks that share them, and scales.
    fn load_tiles(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let (a, b) = (self.place.share_of_a(), self.place.share_of_b());
        let once = k.cache_policy(Eviction::First);
        let cursor = self.pipe.writer();
        self.place.for_each_place(k, |tile| {
            // What is not read again leaves the L2 cache before what others have there.
            let b = b.streamed(tile.streams_b, once);
            k.for_(0, p.k_blocks, 1, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                let column = block * BLOCK_K;
                let TilePlace { m, n, group, .. } = tile;
                if let Some(place) = group {
                    let rows = (place.end, cfg.shape().group_box_rows());
                    a.load_before(k, &p.a, [column, m, place.slab], rows, self.a(stage), full);
                    b.load_of_slab(k, &p.b, [column, n, place.group], self.b(stage), full);
                } else {
                    a.load(k, &p.a, [column, m], self.a(stage), full);
                    b.load(k, &p.b, [column, n], self.b(stage), full);
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
        let (a, b) = (self.place.share_of_a(), self.place.share_of_b());
        let cursor = self.pipe.writer();
        let drafts = self.shared.at(self.map.map_drafts);
        let ring = MapRing::claim(groups.params, [p.a, p.b], drafts, self.lane);
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

    /// The warp that brings the scales, as far ahead of the tiles as its ring allows.
    fn bring_scales(&self) {
        let (k, p) = (self.k, &self.params);
        let (writer, copier) = (self.scales.writer(), self.scales.copier(self.lane));
        self.place.for_each_place(k, |tile| {
            let (p, at) = (&p.of(&tile, self.grouped.as_ref()), [tile.m, tile.n]);
            // A tile of an empty group has a place too.
            let blocks = if tile.k_group.is_some() { p.k_blocks.max(1) } else { p.k_blocks };
            k.for_(0, blocks, GROUP, |block| {
                k.if_(self.lane.eq(0), || writer.load(p, at, block));
                k.if_(self.scales.copied(), || copier.copy(p, at, block, p.k_blocks));
            });
        });
    }

    /// A math warpgroup: 64-row products of each stage, promoted into FP32 sums with their scales.
    fn multiply(&self) {
        let (k, cfg, p) = (self.k, self.cfg, &self.params);
        let math = Math::new(self);
        let warpgroup = self.warp >> 2;
        let first_row = self.cfg.shape().part_of(warpgroup)[0];
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        self.place.if_any_tile(k, || math.load_scales(k.constant(0)));
        self.place.for_each_turn(k, |turn| {
            math.sums.iter().flatten().for_each(|sum| sum.set(0.0));
            let k_blocks = math.k_blocks();
            match cfg.grouping {
                Grouping::Dense | Grouping::K => math.multiply_tile(k_blocks),
                Grouping::Rows => k.if_else(
                    math.has_rows(first_row),
                    || math.multiply_tile(k_blocks),
                    || math.pass_tile_by(),
                ),
            }
            // Only now: until here it would take registers.
            let MathTile { at: tile, end, k_blocks } = math.tile();
            k.sync_warp();
            k.if_(self.place.has_another(k, turn), || {
                math.scales.release();
                math.load_scales(k.constant(0));
            });
            let output = OutputParams { rows: end.unwrap_or(p.output.rows), ..p.output };
            if let Some(outbox) = self.outbox_of(warpgroup, &output, None) {
                let [row, column] = cfg.shape().part_of(warpgroup);
                let first = [tile[0] + row, tile[1] + column];
                self.unless_kept(k_blocks, || {
                    outbox.write([self.warp & 3, self.lane], first, &math.sums, parity);
                });
                return;
            }
            let columns = cfg.shape().columns();
            let part = |place| WarpOutput { params: &output, place, warp: self.warp & 3, lane: self.lane };
            let parts = self.panels(warpgroup, tile).into_iter().map(part);
            let parts: Vec<_> = parts.zip(math.sums.iter().map(Vec::as_slice)).collect();
            k.if_else(
                p.output.has(OutputFlags::PLAIN),
                || {
                    self.outbox.empty(warpgroup).wait(parity.get());
                    parts.iter().for_each(|(part, sums)| part.stage(k, sums));
                    k.fence_async_shared();
                    k.sync_warp();
                    let full = self.outbox.full(warpgroup);
                    k.guard(self.lane.eq(0), || full.arrive());
                    parity.set(parity.live() ^ 1);
                    for (part, _) in &parts {
                        match end {
                            None => part.store_left_over(k, columns),
                            Some(_) => part.store_within(k, columns),
                        }
                    }
                },
                || match end {
                    None => WarpOutput::write_f32(k, &parts),
                    Some(end) => {
                        k.if_((tile[0] + first_row).lt(end), || WarpOutput::write_f32(k, &parts));
                    }
                },
            );
        });
    }

    /// The thread that has stored what a math warpgroup has staged, so that none of those ever waits for the copy
    /// engine.
    fn store_tiles(&self) {
        let (k, output, columns) = (self.k, &self.params.output, self.cfg.shape().columns());
        let warpgroup = (self.warp - MATH_WARPS) >> 1;
        let parity = k.var(0u32);
        self.place.for_each_place(k, |tile| {
            let slab = tile.k_group.map(|group| group.group);
            if let Some(outbox) = self.outbox_of(warpgroup, output, slab) {
                let [row, column] = self.cfg.shape().part_of(warpgroup);
                let k_blocks = tile.k_group.map_or(self.params.k_blocks, |group| group.k);
                self.unless_kept(k_blocks, || outbox.store([tile.m + row, tile.n + column], parity));
                return;
            }
            self.outbox.full(warpgroup).wait(parity.get());
            let (row, end) = match tile.group {
                None => (tile.m, None),
                Some(group) => {
                    let d_row = group.d_row();
                    (d_row + tile.m, Some(d_row + group.end))
                }
            };
            for panels in self.panels(warpgroup, [row, tile.n]) {
                match end {
                    None => panels.store(output, columns),
                    Some(end) => k.if_(panels.is_before(end), || panels.store(output, columns)),
                }
            }
            k.bulk_commit();
            k.bulk_wait_read(0);
            self.outbox.empty(warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        });
    }
}
