//! FP8 GEMM with fine-grained scales, for many rows: persistent, warp-specialized, multicast.
//!
//! A block computes tiles of `block_m` by `block_n`. Two warpgroups multiply: each its own half of the rows, in
//! turns of 64, or of the columns where a tile has 64 rows. A third one serves them: one thread issues the tensor loads, a warp
//! brings the scales, and two threads have what the others have staged stored; or, where every row of B has a scale, one thread stores, and the
//! warps of a fourth one make operands of the scales (`outer.rs`). Clusters of blocks share their operands: each block loads its part of a tile and
//! multicasts it.
//!
//! Rows may be [grouped](crate::gemm::scheduler::m_grouped), each group with a B of its own: then a tile has rows of one group, and what
//! lies behind the group's last row is neither loaded nor stored.
//!
//! Tiles that fill no round may be [shared out](crate::gemm::scheduler::stream_k) along K: a block then leaves its sums of a part of K, or adds what another has
//! left (`shared_tile.rs`), before it stores them.
//!
//! Tiles of groups may take different times: clusters then take them [as they get done](crate::gemm::scheduler::dynamic).
//!
//! Sums may be [finished](crate::gemm::epilogue::fusion) before they are stored.

mod config;
mod epilogue;
mod mainloop;
mod scales_1d1d;
mod stream_k;

use crate::BLOCK_K;
use crate::common::pipeline::Pipeline;
use crate::gemm::epilogue::fusion::{EpilogueParams, GateUpRows, GroupedEpilogueParams};
use crate::gemm::params::{Params, ScalesOfB};
use crate::gemm::scheduler::dynamic::{DynamicScheduler, NextTile};
use crate::gemm::scheduler::k_grouped::{DynamicTensorMaps, KGroupedParams, KGroups};
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::m_grouped::MGroupedParams;
use crate::gemm::scheduler::order::KOrder;
use crate::gemm::scheduler::stream_k::{StreamKParams, UNIT};
use crate::gemm::scheduler::{TileIndex, TileInfo, TileScheduler};
use crate::gemm::sm90::scale_pipeline::{GROUP, ScalePipeline, group_start};
use crate::gemm::sm90::warpgroups::{MATH_WARPGROUPS, MATH_WARPS};
pub use config::Config;
use config::SharedMap;
use epilogue::Part;
use mainloop::{Consumer, ConsumerTileInfo};
use oxigemm_ptx::tma::Eviction;
use oxigemm_ptx::{BuildError, Kernel, Module, Shared, Target, U32};

/// What every role of the kernel works with.
struct Block<'k, 'c> {
    k: &'k Kernel,
    cfg: &'c Config,
    params: Params<'k>,
    grouped: Option<MGroupedParams<'k>>,
    k_groups: Option<KGroups<'k>>,
    tail: Option<StreamKParams<'k>>,
    fused: Option<EpilogueParams<'k>>,
    fused_groups: Option<GroupedEpilogueParams<'k>>,
    map: SharedMap,
    shared: Shared<'k>,
    place: TileScheduler<'k>,
    pipe: Pipeline<'k>,
    scales: ScalePipeline<'k>,
    /// The staging areas of the warpgroups, as if each were a stage of a ring: `full` when it holds a tile's output.
    store_pipeline: Pipeline<'k>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k> Block<'k, '_> {
    /// [`Config::padded_blocks`] of every tile, where groups are not along K.
    fn padded_blocks(&self) -> U32<'k> {
        self.cfg.padded(self.params.k_blocks)
    }

    /// The blocks of K that are computed of a tile: the first, and the one behind the last.
    fn blocks_of(&self, tile: &TileInfo<'k>) -> [U32<'k>; 2] {
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
        [rows, rows.at(scales_1d1d::bytes(self.cfg.block_m))]
    }

    /// How far behind those of the first stage zeros lie.
    fn zeros_behind_scale_operands(&self) -> [u32; 2] {
        let rows = self.map.scale_zeros - self.map.scale_operands;
        [rows, rows - scales_1d1d::bytes(self.cfg.block_m)]
    }
}

/// `D[m,n] = C[m,n] + sum over 128-wide K blocks of  sfa[m,kb] * sfb[n/128,kb] * (A[m,kb] . B[n,kb])`,
/// with the B and its scales of the group that row m belongs to, where rows are grouped; with `sfb[n,kb]` where every
/// row of B has a scale; and finished where that is fused.
fn build(cfg: &Config) -> Result<Module, BuildError> {
    let k = &Kernel::new(&cfg.name(), Target::Sm90a).threads(cfg.threads());
    let mut params = Params::declare(k);
    let grouped = cfg.is_grouped().then(|| MGroupedParams::declare(k, ""));
    params.d_in_slabs = cfg.d_in_slabs;
    let fused = cfg.is_fused().then(|| EpilogueParams::declare(k));
    let fused_groups = (cfg.is_fused() && cfg.is_grouped()).then(|| GroupedEpilogueParams::declare(k, ""));
    let map = SharedMap::new(cfg);
    let shared = k.dynamic_shared();
    map.name(k, cfg);
    let mut place = TileScheduler::new(k, [cfg.block_m, cfg.tile_columns()], &params);
    if cfg.serpentine_k() {
        place = place.with_serpentine_k(&params);
    }
    let k_groups = (cfg.grouping == Grouping::K).then(|| {
        let table = shared.at(map.groups);
        KGroups::with_scales(KGroupedParams::declare(k), table, (params.k_blocks, BLOCK_K))
    });
    if let Some(groups) = k_groups {
        place = place.with_k_groups(groups);
    }
    let tail = cfg.stream_k.then(|| StreamKParams::declare(k));
    if let Some(tail) = tail {
        assert_eq!([cfg.scale_blocks(), cfg.unroll()], [GROUP, UNIT], "parts of tiles begin at such blocks");
        place = place.with_stream_k(k, tail, cfg.padded(params.k_blocks));
    }
    if let Some(fused) = &fused {
        let (columns, ups) = (cfg.part_columns(), params.output.columns);
        let passes = fused.passes(cfg.quantized_passes());
        params.output = fused.output(params.output);
        params.gate_up = Some(GateUpRows { fusion: cfg.fusion, columns, stride: passes * columns, ups });
        place = place.with_passes(&params, passes, columns);
    }
    if let Some(grouped) = &grouped {
        place = place.with_m_groups(*grouped, shared.at(map.groups), params.output.rows);
    }
    let dispatch = cfg.has_dynamic_scheduler().then(|| {
        let [slots, barriers] = map.next_tiles.map(|offset| shared.at(offset));
        DynamicScheduler::declare(k, slots, barriers, place.rank_in_cluster())
    });
    if let Some(dispatch) = dispatch {
        place = place.with_dynamic(dispatch);
    }
    let pipe = Pipeline::new(k, shared.at(map.barriers), cfg.stages, cfg.stages);
    let scales =
        ScalePipeline::new(k, cfg.scales(), shared.at(map.scales), shared.at(map.scale_barriers), &params);
    let (warp, lane) = (k.warp_index(), k.lane());
    let store_pipeline = Pipeline::new(k, shared.at(map.output_barriers), MATH_WARPGROUPS, MATH_WARPGROUPS);
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
        store_pipeline,
        warp,
        lane,
    };

    let tile_warp = MATH_WARPS;
    // The others that serve: one brings scales, and one for each warpgroup that multiplies has what is staged stored; or a warpgroup of their own
    // carries scales, and one stores for both.
    let (scale_warp, stores) = match cfg.scales_of_b {
        ScalesOfB::Blocks => (MATH_WARPS + 2, (warp & 1).eq(1)),
        ScalesOfB::Rows => (MATH_WARPS + 4, warp.eq(MATH_WARPS + 1)),
    };
    let brings_scales = match cfg.scales_of_b {
        ScalesOfB::Blocks => warp.eq(scale_warp),
        ScalesOfB::Rows => warp.ge(scale_warp) & warp.lt(scale_warp + cfg.scale_warps()),
    };
    let storer = stores & block.params.output.is_copied(cfg.part_columns(), block.fused.as_ref());
    k.if_(warp.eq(tile_warp), || {
        k.if_(lane.eq(0), || {
            block.params.a.prefetch();
            block.params.b.prefetch();
            block.params.sfa_map.prefetch();
            block.params.output.d_map.prefetch();
            pipe.init(1 + cfg.scale_warps(), place.stage_writers() * MATH_WARPS);
            scales.init(MATH_WARPS);
            store_pipeline.init(MATH_WARPS / MATH_WARPGROUPS, 1);
            if let Some(dispatch) = dispatch {
                dispatch.init();
            }
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    if cfg.grouping == Grouping::Dense {
        place.prefetch_b(k, warp.lt(MATH_WARPS), &block.params);
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
                    ScalesOfB::Blocks => block.produce_scales(),
                    ScalesOfB::Rows => block.produce_scale_operands(warp - scale_warp),
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
            self.stagger_start(p.k_blocks);
        }
        self.place.for_each_tile(k, |tile| {
            // What is not read again leaves the L2 cache before what others have there.
            let b = b.streamed(tile.streams_b, once);
            let boxes = p.gate_up.map(|gate_up| b.boxes(&gate_up, cfg.block_n, tile.n));
            KOrder::new(tile.back, self.blocks_of(&tile), cfg.scale_blocks()).for_each(k, |block| {
                cursor.wait_empty();
                let stage = cursor.stage();
                let full = self.pipe.full(stage);
                full.arrive_expecting((cfg.block_m + cfg.block_n) * BLOCK_K);
                let column = block * BLOCK_K;
                let TileInfo { m, n, group, .. } = tile;
                match group {
                    Some(place) => {
                        let rows = (place.end, cfg.shape().group_box_rows());
                        a.load_before(k, &p.a, [column, m, place.slab], rows, self.a(stage), full);
                    }
                    None => a.load(k, &p.a, [column, m], self.a(stage), full),
                }
                match (&boxes, group) {
                    (Some(boxes), _) => {
                        let group = group.map(|place| place.group);
                        b.load_boxes(k, &p.b, (column, group), boxes, self.b(stage), full);
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
        let ring = DynamicTensorMaps::claim(groups.params, [p.a, p.b], drafts, self.lane);
        self.stagger_start(groups.place(groups.count() - 1).k.div_ceil(BLOCK_K));
        self.place.for_each_tile(k, |tile| {
            let Some(group) = tile.k_group else { return };
            k.if_(group.k.gt(0), || {
                ring.turn_to(&group, [p.output.rows, p.output.columns]);
                let [map_a, map_b] = ring.maps();
                // By the lane that is elected: the assembler knows that it is one, and its loads take fewer instructions.
                k.if_(k.elect(), || {
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
        k.if_(k.elect(), || {
            cursor.drain();
            ring.give_back();
        });
    }

    /// Where a cluster has a tile less than others, it begins later instead of ending earlier: not all add to memory at one time then. `blocks` are
    /// those of a last tile.
    fn stagger_start(&self, blocks: U32<'k>) {
        // About what a block takes: half a microsecond where a tile has 128 rows.
        let block_ns = self.cfg.block_m * 3;
        self.k.for_(0, self.place.stagger(self.k, blocks), 1, |_| self.k.sleep(block_ns));
    }

    /// The warp that brings the scales, as far ahead of the tiles as its ring allows.
    fn produce_scales(&self) {
        let (k, p, group) = (self.k, &self.params, self.cfg.scale_blocks());
        let producer = self.scales.producer(self.lane);
        let load = |tile: TileInfo<'k>, leader: Option<&NextTile<'k, '_>>| {
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
                producer.load(p, at, order.group(start));
            });
        };
        self.place.lead_tiles(k, self.lane, load, || producer.end());
    }

    /// A math warpgroup: 64-row products of each stage, promoted into FP32 sums with their scales.
    fn multiply(&self) {
        let k = self.k;
        let math = Consumer::new(self);
        let warpgroup = self.warp >> 2;
        let (first_row, m_subtiles) = (self.cfg.shape().part_of(warpgroup)[0], self.cfg.shape().m_subtiles());
        // The first tile finds its staging area empty.
        let parity = k.var(1u32);
        self.place.if_any_tile(k, || math.load_first_scales());
        // How math warps learn whether a tile follows, where only those who ask for it know.
        let follows = self.cfg.has_dynamic_scheduler().then(|| k.var_from(self.place.has_any_tile(k)));
        let compute = |turn: TileIndex<'k>| {
            math.sums.iter().flatten().for_each(|sum| sum.set(0.0));
            let blocks = math.blocks();
            match self.cfg.grouping {
                Grouping::Dense | Grouping::K => math.multiply_tile(m_subtiles, blocks),
                Grouping::Rows => math.multiply_rows(m_subtiles, first_row, blocks),
            }
            // Only now: until here it would take registers.
            let ConsumerTileInfo { at: tile, end, slab, group, k_blocks, fixup } = math.tile();
            match follows {
                Some(follows) => {
                    math.scales.release();
                    math.scales.wait();
                    follows.set(math.scales.has_tile());
                    k.if_(follows.get(), || math.load_first_scales());
                }
                None => k.if_(self.place.has_next(k, turn), || {
                    math.scales.release();
                    math.load_first_scales();
                }),
            }
            let complete = fixup.map(|place| self.complete(place, &math.sums));
            let part = Part { warpgroup, tile, end, slab, group, k_blocks, pass: turn.pass, complete };
            self.write((&part, first_row), &math.sums, parity);
        };
        match follows {
            Some(follows) => {
                let turn = TileIndex { index: k.constant(0), pass: None };
                k.while_(|| follows.live(), || compute(turn));
            }
            None => self.place.for_each_index(k, compute),
        }
    }

    /// The thread that has stored what a math warpgroup has staged, so that none of those ever waits for the copy
    /// engine.
    fn store_tiles(&self) {
        let k = self.k;
        match self.cfg.scales_of_b {
            ScalesOfB::Blocks => {
                let (warpgroup, parity) = ((self.warp - MATH_WARPS) >> 1, k.var(0u32));
                self.place.for_each_tile(k, |tile| self.store(warpgroup, &tile, parity));
            }
            ScalesOfB::Rows => {
                let both = (0..MATH_WARPGROUPS).map(|warpgroup| (k.constant(warpgroup), k.var(0u32)));
                let both: Vec<_> = both.collect();
                self.place.for_each_tile(k, |tile| {
                    both.iter().for_each(|&(warpgroup, _)| self.prefetch_addend(warpgroup, &tile));
                    both.iter().for_each(|&(warpgroup, parity)| self.store(warpgroup, &tile, parity));
                });
            }
        }
    }
}
