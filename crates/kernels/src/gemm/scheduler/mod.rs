//! Tile scheduler: which output tiles a block of a persistent grid computes, in which order.
//!
//! A cluster of `cluster_m` by `cluster_n` blocks (each 1 or 2) computes that many neighbouring tiles. In the static
//! schedule, a cluster strides through the [raster order](order) by the number of clusters. Tiles of groups come from a
//! table that every block lays out in shared memory ([`m_grouped`], [`k_grouped`]). Tiles of the last wave may be split
//! along K ([`stream_k`]), or clusters take tiles from a counter as they finish ([`dynamic`]), or claim those of clusters that
//! have not begun (`launch_control`).

pub mod dynamic;
pub mod k_grouped;
pub(crate) mod launch_control;
pub mod m_grouped;
pub mod order;
pub mod stream_k;
pub(crate) mod tile;

use crate::gemm::operand::gate_up::{Fusion, GateUpRows};
use crate::gemm::params::{Params, PersistentTuning};
use crate::gemm::scheduler::dynamic::{DynamicScheduler, NextTile};
use crate::gemm::scheduler::k_grouped::KGroups;
use crate::gemm::scheduler::launch_control::{LaunchControl, Reader};
use crate::gemm::scheduler::m_grouped::{ClusterTiles, GroupTable, MGroupedParams, TileGroup};
use crate::gemm::scheduler::order::{KernelTileOrder, Serpentine, TileOrder, streams_b};
use crate::gemm::scheduler::stream_k::{StreamKParams, StreamKTiles};
use crate::gemm::scheduler::tile::{TileIndex, TileInfo, TileMessage, TileView};
use oxigemm_ptx::{Kernel, Pred, Shared, U32};

/// Position of a block in its cluster. Each dimension has 1 or 2 blocks.
#[derive(Clone, Copy)]
pub(crate) struct ClusterPosition<'k> {
    /// Blocks along M, which share B, and along N, which share A.
    pub blocks: [U32<'k>; 2],
    /// This block's rank along M and along N.
    pub rank: [U32<'k>; 2],
}

impl<'k> ClusterPosition<'k> {
    /// This block's rank in its cluster, and the blocks of the cluster.
    pub fn rank_and_size(&self) -> [U32<'k>; 2] {
        let ([cluster_m, cluster_n], [rank_m, rank_n]) = (self.blocks, self.rank);
        [rank_m * cluster_n + rank_n, cluster_m * cluster_n]
    }

    /// Blocks that write to this block's stages: those of its row and of its column of the cluster, itself once.
    pub fn stage_writers(&self) -> U32<'k> {
        self.blocks[0] + self.blocks[1] - 1
    }
}

/// Tile scheduler of a persistent block.
#[derive(Clone, Copy)]
pub(crate) struct TileScheduler<'k> {
    tile: [u32; 2],
    order: KernelTileOrder<'k>,
    pub cluster: ClusterPosition<'k>,
    /// Rows of D.
    rows: U32<'k>,
    groups: Option<GroupTable<'k>>,
    /// Whether D of groups is stored slab by slab.
    d_in_slabs: bool,
    k_groups: Option<KGroups<'k>>,
    passes: Option<Passes<'k>>,
    /// Rows of B of a tile, where they are not contiguous.
    pub gate_up: Option<GateUpRows<'k>>,
    stream_k: Option<StreamKTiles<'k>>,
    dynamic: Option<DynamicScheduler<'k>>,
    claims: Option<LaunchControl<'k>>,
    /// 1 where every other tile runs K backwards, else 0; in kernels with serpentine K.
    serpentine_k: Option<U32<'k>>,
}

/// Passes of a tile: how often a block computes as many columns as it does at a time before it takes another tile.
#[derive(Clone, Copy)]
struct Passes<'k> {
    count: U32<'k>,
    /// From the columns of one to those of the next.
    step: u32,
}

impl<'k> TileScheduler<'k> {
    /// Scheduler for tiles of `tile` rows and columns.
    pub fn new(k: &'k Kernel, tile: [u32; 2], p: &Params<'k>) -> Self {
        let PersistentTuning { cluster_m, cluster_n, raster_band, .. } = p.persistent_tuning();
        let rank = k.cluster_rank();
        let rank_m = rank / cluster_n;
        TileScheduler {
            tile,
            order: TileOrder {
                m_tiles: p.output.rows.div_ceil(cluster_m * tile[0]),
                n_tiles: p.output.columns.div_ceil(cluster_n * tile[1]),
                band: raster_band,
            },
            cluster: ClusterPosition {
                blocks: [cluster_m, cluster_n],
                rank: [rank_m, rank - rank_m * cluster_n],
            },
            rows: p.output.rows,
            groups: None,
            d_in_slabs: false,
            k_groups: None,
            passes: None,
            gate_up: None,
            stream_k: None,
            dynamic: None,
            claims: None,
            serpentine_k: None,
        }
    }

    /// The scheduler of a kernel with serpentine K.
    pub fn with_serpentine_k(self, p: &Params<'k>) -> Self {
        TileScheduler { serpentine_k: Some(p.persistent_tuning().serpentine_k), ..self }
    }

    /// The scheduler where the tiles of the last wave are split along K.
    pub fn with_stream_k(self, k: &'k Kernel, params: StreamKParams<'k>, k_blocks: U32<'k>) -> Self {
        TileScheduler { stream_k: Some(params.tiles(k, self.order.count(), k_blocks)), ..self }
    }

    /// The scheduler where clusters take tiles of groups as they finish.
    pub fn with_dynamic(self, dynamic: DynamicScheduler<'k>) -> Self {
        TileScheduler { dynamic: Some(dynamic), ..self }
    }

    /// The scheduler where clusters claim tiles.
    pub fn with_claims(self, claims: Option<LaunchControl<'k>>) -> Self {
        TileScheduler { claims, ..self }
    }

    /// The claims, where clusters claim tiles.
    pub fn claims(&self) -> Option<LaunchControl<'k>> {
        self.claims
    }

    /// The same for a role that reads claims so.
    pub fn read_by(self, reader: Reader<'k>) -> Self {
        TileScheduler { claims: self.claims.map(|claims| claims.read_by(reader)), ..self }
    }

    /// Claims tiles, where clusters do, for the other roles of the block: one thread, of the leader or not.
    pub fn claim_tiles(&self, leads: Pred<'k>) {
        if let Some(claims) = self.claims {
            claims.claim(self.count(), leads);
        }
    }

    /// The scheduler of a k-grouped kernel. The blocks of a cluster have tiles of one group.
    pub fn with_k_groups(self, groups: KGroups<'k>) -> Self {
        TileScheduler { k_groups: Some(groups), ..self }
    }

    /// The scheduler of a fused kernel, whose tiles have these rows of B and are computed in `count` passes, each as
    /// many columns behind the one before as a warpgroup computes at a time.
    pub fn with_passes(self, p: &Params<'k>, count: U32<'k>, gate_up: GateUpRows<'k>) -> Self {
        let n_tiles = p.output.columns.div_ceil(self.cluster.blocks[1] * count * self.tile[1]);
        let (passes, gate_up) = (Some(Passes { count, step: gate_up.columns }), Some(gate_up));
        TileScheduler { order: TileOrder { n_tiles, ..self.order }, passes, gate_up, ..self }
    }

    /// The scheduler of an m-grouped kernel, with the table of groups at `table`. The blocks of a cluster have tiles of
    /// one group: a block whose tile lies behind the group's last row takes part in loading and multiplies nothing.
    pub fn with_m_groups(
        self,
        params: MGroupedParams<'k>,
        table: Shared<'k>,
        slab_rows: U32<'k>,
        d_in_slabs: bool,
    ) -> Self {
        let KernelTileOrder { n_tiles, band, .. } = self.order;
        let tiles = ClusterTiles { rows: self.cluster.blocks[0] * self.tile[0], n_tiles, band };
        let groups = Some(GroupTable::new(params, table, slab_rows, tiles));
        TileScheduler { groups, d_in_slabs, ..self }
    }

    /// Whether there is a table of groups to [build](Self::build_tables).
    pub fn has_tables(&self) -> bool {
        self.groups.is_some() || self.k_groups.is_some()
    }

    /// Builds the table of groups; all `threads` threads of the block take part.
    pub fn build_tables(&self, threads: u32) {
        if let Some(groups) = self.groups {
            groups.build(threads);
        }
        if let Some(groups) = self.k_groups {
            groups.build();
        }
    }

    /// Tiles of clusters, of the whole grid.
    fn count(&self) -> U32<'k> {
        match (self.groups, self.k_groups) {
            (Some(groups), _) => groups.count(),
            (None, Some(groups)) => self.order.count() * groups.count(),
            (None, None) => self.order.count(),
        }
    }

    /// Runs `body` with every tile of this block's cluster, in each of its passes.
    pub fn for_each_index(&self, k: &'k Kernel, body: impl FnOnce(TileIndex<'k>)) {
        if let Some(stream_k) = self.stream_k {
            return k.for_(0, stream_k.count, 1, |index| body(TileIndex { index, pass: None }));
        }
        if let Some(dynamic) = self.dynamic {
            return dynamic.for_each(self.count(), |index| body(TileIndex { index, pass: None }));
        }
        if let Some(claims) = self.claims {
            return claims.for_each(self.count(), |index| body(TileIndex { index, pass: None }));
        }
        k.for_(k.cluster_index(), self.count(), k.grid_clusters(), |index| match self.passes {
            None => body(TileIndex { index, pass: None }),
            Some(passes) => {
                k.for_(0, passes.count, 1, |pass| body(TileIndex { index, pass: Some(pass) }));
            }
        });
    }

    /// Runs `body` in the last pass of a tile.
    pub fn if_last_pass(&self, k: &'k Kernel, pass: Option<U32<'k>>, body: impl FnOnce()) {
        match (self.passes, pass) {
            (Some(passes), Some(pass)) => k.if_((pass + 1).eq(passes.count), body),
            _ => body(),
        }
    }

    /// Runs `body` where this block has a tile. A grid has no more clusters than tiles, except in m-grouped kernels:
    /// there only the device knows how many tiles there are.
    pub fn if_any_tile(&self, k: &'k Kernel, body: impl FnOnce()) {
        match self.groups {
            None => body(),
            Some(_) => k.if_(self.has_any_tile(k), body),
        }
    }

    /// Whether this block has a tile.
    pub fn has_any_tile(&self, k: &'k Kernel) -> Pred<'k> {
        k.cluster_index().lt(self.count())
    }

    /// Whether this block has a tile or a pass after this one.
    pub fn has_next(&self, k: &'k Kernel, tile: TileIndex<'k>) -> Pred<'k> {
        if let Some(stream_k) = self.stream_k {
            return (tile.index + 1).lt(stream_k.count);
        }
        let next = (tile.index + k.grid_clusters()).lt(self.count());
        match (self.passes, tile.pass) {
            (Some(passes), Some(pass)) => (pass + 1).lt(passes.count) | next,
            _ => next,
        }
    }

    /// How many K blocks later than the others this cluster may start: fewer than the `blocks` of a last tile where it
    /// has a tile less than others, spread over all such clusters; else none.
    pub fn stagger(&self, k: &'k Kernel, blocks: U32<'k>) -> U32<'k> {
        let (index, clusters) = (k.cluster_index(), k.grid_clusters());
        let busy = self.count() % clusters;
        let has_less = busy.ne(0) & index.ge(busy);
        has_less.select((index - busy) * blocks / (clusters - busy), 0)
    }

    /// The first column of this block's tile at an index along N, in one of its passes.
    fn first_column(&self, n: U32<'k>, pass: Option<U32<'k>>) -> U32<'k> {
        let index = n * self.cluster.blocks[1] + self.cluster.rank[1];
        match (self.passes, pass) {
            (Some(passes), Some(pass)) => index * (passes.count * self.tile[1]) + pass * passes.step,
            _ => index * self.tile[1],
        }
    }

    /// The first row of this block's tile at an index along M.
    fn first_row(&self, m: U32<'k>) -> U32<'k> {
        (m * self.cluster.blocks[0] + self.cluster.rank[0]) * self.tile[0]
    }

    /// Runs `body` with the first row and column of every tile of this block, in dense kernels.
    pub fn for_each_dense_tile(&self, k: &'k Kernel, body: impl FnOnce(U32<'k>, U32<'k>)) {
        self.for_each_index(k, |tile| {
            let (m, n) = self.dense_tile(tile);
            body(m, n);
        });
    }

    fn dense_tile(&self, tile: TileIndex<'k>) -> (U32<'k>, U32<'k>) {
        let index =
            self.stream_k.map_or(tile.index, |stream_k| stream_k.tile(tile.index.kernel(), tile.index));
        let (m, n) = self.order.tile(index);
        (self.first_row(m), self.first_column(n, tile.pass))
    }

    /// Prefetches the beginning of the first tile's rows of B into the L2 cache, by the threads where `prefetches`
    /// holds, in dense kernels whose blocks all wait for B: tiles of many rows take so long that it costs more than it
    /// gains.
    pub fn prefetch_b(&self, k: &'k Kernel, prefetches: Pred<'k>, p: &Params<'k>) {
        k.if_(prefetches & streams_b(self.rows), || {
            let [cluster_m, cluster_n] = self.cluster.blocks;
            // So few rows are one or two tiles high, which follow each other. No division, as they take long.
            let two_high = self.rows.gt(cluster_m * self.tile[0]).select::<u32>(1, 0);
            let rank = k.cluster_rank() & (cluster_n - 1);
            let n = (k.cluster_index() >> two_high) * cluster_n + rank;
            let columns = self.passes.map_or(k.constant(self.tile[1]), |passes| passes.count * self.tile[1]);
            let parts = self.gate_up.map_or(Fusion::None, |gate_up| gate_up.fusion).accumulators();
            let rows = self.tile[1] * parts;
            p.b_rows.prefetch(k, (n * columns, rows), parts, [k.constant(0), p.k_blocks]);
        });
    }

    /// Runs `body` with every tile of this block.
    pub fn for_each_tile(&self, k: &'k Kernel, body: impl FnOnce(TileInfo<'k>)) {
        let serpentine = self.serpentine(k);
        if let Some(groups) = self.k_groups {
            return self.for_each_index(k, |tile| {
                let group = tile.index / self.order.count();
                let (m, n) = self.order.tile(tile.index - group * self.order.count());
                body(TileInfo {
                    m: self.first_row(m),
                    n: self.first_column(n, tile.pass),
                    group: None,
                    k_group: Some(groups.tile_group(group)),
                    streams_b: streams_b(self.rows),
                    pass: tile.pass,
                    part: None,
                    reverse_k: None,
                });
            });
        }
        if self.groups.is_some() {
            return self.for_each_grouped_tile(k, |tile, _| body(tile));
        }
        let streams_b = streams_b(self.rows);
        self.for_each_index(k, |tile| {
            let (m, n) = self.dense_tile(tile);
            let part = self.stream_k.map(|stream_k| stream_k.part(k, tile.index));
            let whole = part.map(|part| !part.fixup.exists());
            let reverse_k = serpentine.current(whole);
            let pass = tile.pass;
            body(TileInfo { m, n, group: None, k_group: None, streams_b, pass, part, reverse_k });
            serpentine.advance();
        });
    }

    /// Serpentine K of a loop over tiles. ([Computed](Self::reverse_k_at) from a tile's index it would be slower where
    /// the schedule is static.)
    fn serpentine(&self, k: &'k Kernel) -> Serpentine<'k> {
        Serpentine::new(k, self.serpentine_k)
    }

    /// Runs `body` with every tile of this block and its group, in m-grouped kernels.
    pub fn for_each_grouped_tile(&self, k: &'k Kernel, body: impl FnOnce(TileInfo<'k>, TileGroup<'k>)) {
        if self.dynamic.is_some() {
            return self.for_each_index(k, |tile| {
                let (tile, group) = self.grouped_tile(tile, self.reverse_k_at(k, tile.index));
                body(tile, group);
            });
        }
        let serpentine = self.serpentine(k);
        self.for_each_index(k, |tile| {
            let (tile, group) = self.grouped_tile(tile, serpentine.current(None));
            body(tile, group);
            serpentine.advance();
        });
    }

    /// [`for_each_tile`](Self::for_each_tile) for the warp of a block that is ahead of all others: with the dynamic
    /// scheduler, `body` requests the next tile some time before it is done, and `end` runs when there is none.
    pub fn lead_tiles(
        &self,
        k: &'k Kernel,
        lane: U32<'k>,
        body: impl FnOnce(TileInfo<'k>, Option<&NextTile<'k, '_>>),
        end: impl FnOnce(),
    ) {
        let Some(dynamic) = self.dynamic else { return self.for_each_tile(k, |tile| body(tile, None)) };
        let tile = |index| self.grouped_tile(TileIndex { index, pass: None }, self.reverse_k_at(k, index)).0;
        dynamic.lead(lane, self.count(), |index, next| body(tile(index), Some(next)), end);
    }

    fn grouped_tile(
        &self,
        tile: TileIndex<'k>,
        reverse_k: Option<Pred<'k>>,
    ) -> (TileInfo<'k>, TileGroup<'k>) {
        let groups = self.groups.expect("an m-grouped kernel");
        let (m, n, streams_b, group) = groups.tile(tile.index);
        let tile = TileInfo {
            streams_b,
            m: m + self.cluster.rank[0] * self.tile[0],
            n: self.first_column(n, tile.pass),
            group: Some(group),
            k_group: None,
            pass: tile.pass,
            part: None,
            reverse_k,
        };
        (tile, group)
    }

    /// Whether a tile runs K backwards, whichever cluster has it: as if the schedule were static.
    fn reverse_k_at(&self, k: &'k Kernel, tile: U32<'k>) -> Option<Pred<'k>> {
        self.serpentine_k.map(|serpentine_k| ((tile / k.grid_clusters()) & serpentine_k).ne(0))
    }

    /// The kernel's parameters as of a tile.
    pub fn view(&self, params: &Params<'k>, tile: &TileInfo<'k>) -> TileView<'k> {
        let view = TileView::dense(params, [tile.m, tile.n], self.gate_up);
        if let Some(group) = tile.k_group {
            return view.in_k_group(group);
        }
        if let Some(part) = tile.part {
            return view.with_message(TileMessage::StreamK(part));
        }
        match (tile.group, &self.groups) {
            (Some(group), Some(groups)) => {
                let message = match self.gate_up {
                    _ if self.d_in_slabs => TileMessage::InSlab(group),
                    Some(_) => TileMessage::GroupedWithGroup(group),
                    None => TileMessage::Grouped(group),
                };
                view.in_group(group, &groups.params).with_message(message)
            }
            _ => view,
        }
    }
}
