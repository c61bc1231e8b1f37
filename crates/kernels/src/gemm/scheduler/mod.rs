//! Blocks of a cluster that share the operands of their tiles.
//!
//! A cluster of `cluster_m` by `cluster_n` blocks (each 1 or 2) computes that many neighbouring tiles. The blocks of
//! one row need the same rows of A, those of one column the same rows of B: each loads a part and multicasts it, and
//! a stage is free when all who received it have read it.

pub mod dynamic;
pub mod k_grouped;
pub mod m_grouped;
pub mod order;
pub mod stream_k;

use crate::common::pipeline::{Pipeline, RemoteEmpty};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::params::{Params, PersistentTuning};
use crate::gemm::scheduler::dynamic::{DynamicScheduler, NextTile};
use crate::gemm::scheduler::k_grouped::{KGroups, TileKGroup};
use crate::gemm::scheduler::m_grouped::{ClusterTiles, GroupTable, MGroupedParams, TileGroup};
use crate::gemm::scheduler::order::{KernelTileOrder, TileOrder, streams_b};
use crate::gemm::scheduler::stream_k::{StreamKParams, StreamKPart, StreamKTiles};
pub(crate) use crate::gemm::sm90::multicast::MulticastLoad;
use oxigemm_ptx::{Kernel, Pred, Shared, U32, Var};

/// The block's place in its cluster, and the tiles that it takes.
#[derive(Clone, Copy)]
pub(crate) struct TileScheduler<'k> {
    tile: [u32; 2],
    order: KernelTileOrder<'k>,
    cluster: (U32<'k>, U32<'k>),
    rank: (U32<'k>, U32<'k>),
    /// Rows of D.
    rows: U32<'k>,
    groups: Option<GroupTable<'k>>,
    k_groups: Option<KGroups<'k>>,
    passes: Option<Passes<'k>>,
    tail: Option<StreamKTiles<'k>>,
    dispatch: Option<DynamicScheduler<'k>>,
    /// 1 where every other tile takes K from its end, else 0; in kernels that can.
    serpentine_k: Option<U32<'k>>,
}

/// How often a block computes as many columns as it does at a time before it takes another tile: see
/// [`TileScheduler::with_passes`].
#[derive(Clone, Copy)]
struct Passes<'k> {
    count: U32<'k>,
    /// From the columns of one to those of the next.
    step: u32,
}

/// A tile of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct TileIndex<'k> {
    /// Its position in the tile order; among the cluster's own turns where tiles are shared out.
    pub index: U32<'k>,
    /// Which of its passes, where there are some.
    pub pass: Option<U32<'k>>,
}

/// Where a tile lies.
#[derive(Clone, Copy)]
pub(crate) struct TileInfo<'k> {
    /// Its first row: of A, or of the slab of its group.
    pub m: U32<'k>,
    /// Its first column.
    pub n: U32<'k>,
    /// Its group, where rows are grouped.
    pub group: Option<TileGroup<'k>>,
    /// Whether its rows of B are read at this moment, and not later.
    pub streams_b: Pred<'k>,
    /// Its group, where groups are along K.
    pub k_group: Option<TileKGroup<'k>>,
    /// Which of its passes, where there are some.
    pub pass: Option<U32<'k>>,
    /// Its blocks of K, where tiles are shared out along K.
    pub part: Option<StreamKPart<'k>>,
    /// Whether it takes K from the end, in kernels that can: see [`KOrder`](crate::gemm::scheduler::order::KOrder).
    pub back: Option<Pred<'k>>,
}

impl<'k> TileInfo<'k> {
    /// Bytes that it takes in shared memory.
    pub const BYTES: u32 = 16;

    /// Tells other warps of the block of a tile at row `m` and column `n`: these, as rows and columns of D and, where
    /// rows are grouped, the row of D behind the group's last.
    pub fn tell(to: Shared<'k>, [m, n]: [U32<'k>; 2], group: Option<TileGroup<'k>>) {
        match group {
            None => to.store_vec([m, n]),
            Some(group) => {
                let d_row = group.d_row();
                to.store_vec([d_row + m, n, d_row + group.end, n]);
            }
        }
    }

    /// Tells them that no tile follows.
    pub fn tell_end(k: &'k Kernel, to: Shared<'k>) {
        to.store_vec([k.constant(NO_ROW); 4]);
    }

    /// Whether they were told so.
    pub fn is_told_end(from: Shared<'k>) -> Pred<'k> {
        from.load::<u32>().eq(NO_ROW)
    }

    /// [Tells](Self::tell) them of a tile and its group, where rows are grouped and the group is asked for.
    pub fn tell_with_group(to: Shared<'k>, [m, n]: [U32<'k>; 2], group: TileGroup<'k>) {
        let d_row = group.d_row();
        to.store_vec([d_row + m, n, d_row + group.end, group.group]);
    }

    /// What they were told where rows are grouped.
    pub fn told_in_group(from: Shared<'k>) -> ([U32<'k>; 2], U32<'k>) {
        let [row, column, end, _] = from.load_vec::<u32, 4>();
        ([row, column], end)
    }

    /// The same as rows of the group's slab, with the slab, where D is stored slab by slab.
    pub fn tell_in_slab(to: Shared<'k>, [m, n]: [U32<'k>; 2], group: TileGroup<'k>) {
        to.store_vec([m, n, group.end, group.slab]);
    }

    /// The same with the group in the place of the slab, where the group is asked for.
    pub fn tell_in_slab_of_group(to: Shared<'k>, [m, n]: [U32<'k>; 2], group: TileGroup<'k>) {
        to.store_vec([m, n, group.end, group.group]);
    }

    /// What they were told in either way: the first row and column, the row behind the group's last, and the slab or the
    /// group.
    pub fn told_whose(from: Shared<'k>) -> ([U32<'k>; 2], [U32<'k>; 2]) {
        let [row, column, end, whose] = from.load_vec::<u32, 4>();
        ([row, column], [end, whose])
    }
}

impl<'k> TileScheduler<'k> {
    /// For tiles of `tile` rows and columns.
    pub fn new(k: &'k Kernel, tile: [u32; 2], p: &Params<'k>) -> Self {
        let PersistentTuning { cluster_m, cluster_n, raster_band: band, .. } = p.persistent_tuning();
        let rank = k.cluster_rank();
        let rank_m = rank / cluster_n;
        TileScheduler {
            tile,
            order: TileOrder {
                m_tiles: p.output.rows.div_ceil(cluster_m * tile[0]),
                n_tiles: p.output.columns.div_ceil(cluster_n * tile[1]),
                band,
            },
            cluster: (cluster_m, cluster_n),
            rank: (rank_m, rank - rank_m * cluster_n),
            rows: p.output.rows,
            groups: None,
            k_groups: None,
            passes: None,
            tail: None,
            dispatch: None,
            serpentine_k: None,
        }
    }

    /// The same place in a kernel that can take K from its end.
    pub fn with_serpentine_k(self, p: &Params<'k>) -> Self {
        TileScheduler { serpentine_k: Some(p.persistent_tuning().serpentine_k), ..self }
    }

    /// The same place where some tiles are shared out along K.
    pub fn with_stream_k(self, k: &'k Kernel, tail: StreamKParams<'k>, k_blocks: U32<'k>) -> Self {
        TileScheduler { tail: Some(tail.turns(k, self.order.count(), k_blocks)), ..self }
    }

    /// The same place where clusters take tiles of groups as they get done.
    pub fn with_dynamic(self, dispatch: DynamicScheduler<'k>) -> Self {
        TileScheduler { dispatch: Some(dispatch), ..self }
    }

    /// This block's rank in its cluster, and the blocks of that.
    pub fn rank_in_cluster(&self) -> [U32<'k>; 2] {
        [self.rank.0 * self.cluster.1 + self.rank.1, self.cluster.0 * self.cluster.1]
    }

    /// The same place among the tiles of groups along K. The blocks of a cluster have tiles of one group.
    pub fn with_k_groups(self, groups: KGroups<'k>) -> Self {
        TileScheduler { k_groups: Some(groups), ..self }
    }

    /// The same place among tiles that are computed in some passes, each `step` columns behind the one before.
    pub fn with_passes(self, p: &Params<'k>, count: U32<'k>, step: u32) -> Self {
        let n_tiles = p.output.columns.div_ceil(self.cluster.1 * count * self.tile[1]);
        let passes = Some(Passes { count, step });
        TileScheduler { order: TileOrder { n_tiles, ..self.order }, passes, ..self }
    }

    /// The same place among the tiles of groups, whose table is at `table`. The blocks of a cluster have tiles of one
    /// group: one that lies behind the group's last row takes part in loading and multiplies nothing.
    pub fn with_m_groups(self, params: MGroupedParams<'k>, table: Shared<'k>, slab_rows: U32<'k>) -> Self {
        let KernelTileOrder { n_tiles, band, .. } = self.order;
        let tiles = ClusterTiles { rows: self.cluster.0 * self.tile[0], n_tiles, band };
        TileScheduler { groups: Some(GroupTable::new(params, table, slab_rows, tiles)), ..self }
    }

    /// Until this block may begin: its barriers exist, which the warp `loader` has just initialized, the kernels before
    /// it are done and, where there are groups, it knows where. All `threads` threads of the block take part.
    pub fn begin(&self, k: &'k Kernel, (warp, loader): (U32<'k>, u32), threads: u32) {
        if self.groups.is_none() && self.k_groups.is_none() {
            self.meet(k, warp.eq(loader), threads);
            return k.grid_dependency_wait();
        }
        // Finding the groups takes longer than the cluster takes to meet.
        k.cluster_arrive();
        k.grid_dependency_wait();
        if let Some(groups) = self.groups {
            groups.find(threads);
        }
        if let Some(groups) = self.k_groups {
            groups.find();
        }
        k.cluster_wait();
    }

    /// Tiles of a cluster, of the whole grid.
    fn turns(&self) -> U32<'k> {
        match (self.groups, self.k_groups) {
            (Some(groups), _) => groups.count(),
            (None, Some(groups)) => self.order.count() * groups.count(),
            (None, None) => self.order.count(),
        }
    }

    /// Until the barriers exist that tiles are loaded with, which `loader` has just initialized: a block that is alone
    /// waits for its own, and its loading warp for nobody; with others, for theirs as well.
    fn meet(&self, k: &'k Kernel, loader: Pred<'k>, threads: u32) {
        k.if_else(
            self.stage_writers().eq(1),
            || k.if_else(loader, || k.barrier_arrive(0, threads), || k.barrier_sync(0, threads)),
            || k.cluster_sync(),
        );
    }

    /// Blocks that write to this block's stages: those of its row and of its column of the cluster, itself once.
    pub fn stage_writers(&self) -> U32<'k> {
        self.cluster.0 + self.cluster.1 - 1
    }

    /// Runs `body` with every tile of this block's cluster, in each of its passes.
    pub fn for_each_index(&self, k: &'k Kernel, body: impl FnOnce(TileIndex<'k>)) {
        if let Some(tail) = self.tail {
            return k.for_(0, tail.count, 1, |index| body(TileIndex { index, pass: None }));
        }
        if let Some(dispatch) = self.dispatch {
            return dispatch.follow(self.turns(), |index| body(TileIndex { index, pass: None }));
        }
        k.for_(k.cluster_index(), self.turns(), k.grid_clusters(), |index| match self.passes {
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

    /// Runs `body` where this block has a tile. A grid has no more clusters than tiles, unless rows are grouped: how
    /// many tiles there are then only the device knows.
    pub fn if_any_tile(&self, k: &'k Kernel, body: impl FnOnce()) {
        match self.groups {
            None => body(),
            Some(_) => k.if_(self.has_any_tile(k), body),
        }
    }

    /// Whether this block has one.
    pub fn has_any_tile(&self, k: &'k Kernel) -> Pred<'k> {
        k.cluster_index().lt(self.turns())
    }

    /// Whether this block has a tile or a pass after this one.
    pub fn has_next(&self, k: &'k Kernel, turn: TileIndex<'k>) -> Pred<'k> {
        if let Some(tail) = self.tail {
            return (turn.index + 1).lt(tail.count);
        }
        let tile = (turn.index + k.grid_clusters()).lt(self.turns());
        match (self.passes, turn.pass) {
            (Some(passes), Some(pass)) => (pass + 1).lt(passes.count) | tile,
            _ => tile,
        }
    }

    /// How many blocks of K later than the others this cluster may begin: fewer than the `blocks` of a last tile where it has a tile less than
    /// others, spread over all such clusters; else none.
    pub fn stagger(&self, k: &'k Kernel, blocks: U32<'k>) -> U32<'k> {
        let (index, clusters) = (k.cluster_index(), k.grid_clusters());
        let busy = self.turns() % clusters;
        let has_less = busy.ne(0) & index.ge(busy);
        has_less.select((index - busy) * blocks / (clusters - busy), 0)
    }

    /// The first column of this block's tile at an index along N, in one of its passes.
    fn first_column(&self, n: U32<'k>, pass: Option<U32<'k>>) -> U32<'k> {
        let index = n * self.cluster.1 + self.rank.1;
        match (self.passes, pass) {
            (Some(passes), Some(pass)) => index * (passes.count * self.tile[1]) + pass * passes.step,
            _ => index * self.tile[1],
        }
    }

    /// Runs `body` with the first row and column of every tile of this block.
    pub fn for_each_dense_tile(&self, k: &'k Kernel, body: impl FnOnce(U32<'k>, U32<'k>)) {
        self.for_each_index(k, |turn| {
            let (m, n) = self.dense_tile(turn);
            body(m, n);
        });
    }

    /// The first row and column of this block's tile, where rows are not grouped.
    fn dense_tile(&self, turn: TileIndex<'k>) -> (U32<'k>, U32<'k>) {
        let index = self.tail.map_or(turn.index, |tail| tail.tile(turn.index.kernel(), turn.index));
        let (m, n) = self.order.tile(index);
        ((m * self.cluster.0 + self.rank.0) * self.tile[0], self.first_column(n, turn.pass))
    }

    /// The threads where `fetches` holds ask for the beginning of the first tile's rows of B, where nothing is grouped and all
    /// wait for B: of many rows, tiles take so long that it costs more than it gains.
    pub fn prefetch_b(&self, k: &'k Kernel, fetches: Pred<'k>, p: &Params<'k>) {
        k.if_(fetches & streams_b(self.rows), || {
            // So few rows are one or two tiles high, which follow each other. No division, as they take long.
            let two_high = self.rows.gt(self.cluster.0 * self.tile[0]).select::<u32>(1, 0);
            let rank = k.cluster_rank() & (self.cluster.1 - 1);
            let n = (k.cluster_index() >> two_high) * self.cluster.1 + rank;
            let columns = self.passes.map_or(k.constant(self.tile[1]), |passes| passes.count * self.tile[1]);
            let fusion = p.gate_up.map_or(Fusion::None, |gate_up| gate_up.fusion);
            let rows = self.tile[1] * fusion.sums();
            p.b_rows.prefetch_parts(k, (n * columns, rows), fusion, [k.constant(0), p.k_blocks]);
        });
    }

    /// Runs `body` with the place of every tile of this block, whether rows are grouped or not.
    pub fn for_each_tile(&self, k: &'k Kernel, body: impl FnOnce(TileInfo<'k>)) {
        let turned = self.turned(k);
        if let Some(groups) = self.k_groups {
            return self.for_each_index(k, |turn| {
                let group = turn.index / self.order.count();
                let (m, n) = self.order.tile(turn.index - group * self.order.count());
                body(TileInfo {
                    m: (m * self.cluster.0 + self.rank.0) * self.tile[0],
                    n: self.first_column(n, turn.pass),
                    group: None,
                    k_group: Some(groups.place(group)),
                    streams_b: streams_b(self.rows),
                    pass: turn.pass,
                    part: None,
                    back: None,
                });
            });
        }
        if self.groups.is_some() {
            return self.for_each_grouped_tile(k, |tile, _| body(tile));
        }
        let streams_b = streams_b(self.rows);
        self.for_each_index(k, |turn| {
            let (m, n) = self.dense_tile(turn);
            let part = self.tail.map(|tail| tail.part(k, turn.index));
            let whole = part.map(|part| !part.fixup.exists());
            let back = turned.now(whole);
            body(TileInfo { m, n, group: None, k_group: None, streams_b, pass: turn.pass, part, back });
            turned.turn();
        });
    }

    /// Whether the tiles of a loop take K from its end, in turn. ([Computed](Self::turned_at) from a tile's number it would be slower where a cluster
    /// has every so-many-th anyway.)
    fn turned(&self, k: &'k Kernel) -> Serpentine<'k> {
        Serpentine(self.serpentine_k.map(|by| (k.var(0u32), by)))
    }

    /// Runs `body` with the place of every tile of this block, and its place in its group, where rows are grouped.
    pub fn for_each_grouped_tile(&self, k: &'k Kernel, body: impl FnOnce(TileInfo<'k>, TileGroup<'k>)) {
        if self.dispatch.is_some() {
            return self.for_each_index(k, |turn| {
                let (tile, group) = self.group_tile(turn, self.turned_at(k, turn.index));
                body(tile, group);
            });
        }
        let turned = self.turned(k);
        self.for_each_index(k, |turn| {
            let (tile, group) = self.group_tile(turn, turned.now(None));
            body(tile, group);
            turned.turn();
        });
    }

    /// [`for_each_tile`](Self::for_each_tile) for the warp of a block that is ahead of all others: where clusters take tiles as they get
    /// done, `body` asks for the next some time before it is done, and `end` is run when there is none.
    pub fn lead_tiles(
        &self,
        k: &'k Kernel,
        lane: U32<'k>,
        body: impl FnOnce(TileInfo<'k>, Option<&NextTile<'k, '_>>),
        end: impl FnOnce(),
    ) {
        let Some(dispatch) = self.dispatch else { return self.for_each_tile(k, |tile| body(tile, None)) };
        let tile = |index| self.group_tile(TileIndex { index, pass: None }, self.turned_at(k, index)).0;
        dispatch.lead(lane, self.turns(), |index, leader| body(tile(index), Some(leader)), end);
    }

    /// Where a tile is, and its place in its group, where rows are grouped.
    fn group_tile(&self, turn: TileIndex<'k>, back: Option<Pred<'k>>) -> (TileInfo<'k>, TileGroup<'k>) {
        let groups = self.groups.expect("rows are grouped");
        let (m, n, streams_b, group) = groups.tile(turn.index);
        let tile = TileInfo {
            streams_b,
            m: m + self.rank.0 * self.tile[0],
            n: self.first_column(n, turn.pass),
            group: Some(group),
            k_group: None,
            pass: turn.pass,
            part: None,
            back,
        };
        (tile, group)
    }

    /// Whether a tile takes K from its end, whichever cluster has it: as if each had every so-many-th.
    fn turned_at(&self, k: &'k Kernel, tile: U32<'k>) -> Option<Pred<'k>> {
        self.serpentine_k.map(|serpentine_k| ((tile / k.grid_clusters()) & serpentine_k).ne(0))
    }

    /// A tile's rows of A serve every block of a row of the cluster: each loads an equal part for all of them.
    pub fn share_of_a(&self) -> MulticastLoad<'k> {
        self.part_of_a(self.tile[0])
    }

    /// The same, where what is shared has this many lines of 128 bytes.
    pub fn part_of_a(&self, lines: u32) -> MulticastLoad<'k> {
        let blocks = self.cluster.1;
        let k = blocks.kernel();
        let all = (k.constant(1u32) << blocks) - 1;
        let rows = k.constant(lines) / blocks;
        MulticastLoad {
            first_row: self.rank.1 * rows,
            rows,
            several: blocks.gt(1),
            streamed: None,
            blocks: (all << (self.rank.0 * blocks)).to_u16(),
        }
    }

    /// And its rows of B, of which there are this many lines of 128 bytes, every block of a column.
    pub fn part_of_b(&self, lines: u32) -> MulticastLoad<'k> {
        let blocks = self.cluster.0;
        let k = blocks.kernel();
        let other_row = blocks.gt(1).select::<u32>(1, 0) << self.cluster.1;
        let rows = k.constant(lines) / blocks;
        MulticastLoad {
            first_row: self.rank.0 * rows,
            rows,
            several: blocks.gt(1),
            streamed: None,
            blocks: ((other_row | 1) << self.rank.1).to_u16(),
        }
    }
}

/// See [`TileScheduler::turned`]: 1 or 0, and what it changes by.
struct Serpentine<'k>(Option<(Var<'k, u32>, U32<'k>)>);

impl<'k> Serpentine<'k> {
    /// Whether this tile does, of those that may.
    fn now(&self, may: Option<Pred<'k>>) -> Option<Pred<'k>> {
        let (turned, _) = self.0?;
        let turned = turned.get().ne(0);
        Some(may.map_or(turned, |may| turned & may))
    }

    fn turn(&self) {
        if let Some((turned, by)) = self.0 {
            turned.set(turned.live() ^ by);
        }
    }
}

/// A row that no tile begins with.
const NO_ROW: u32 = u32::MAX;

/// How a math warp lets go of a stage: lane `i` tells the `i`-th block that writes to it.
pub(crate) struct Release<'k> {
    takes_part: Pred<'k>,
    empty: RemoteEmpty<'k>,
}

impl<'k> Release<'k> {
    /// For the blocks that share stages with this one.
    pub fn new(k: &'k Kernel, place: &TileScheduler<'k>, pipe: &Pipeline<'k>, lane: U32<'k>) -> Self {
        let (cluster_m, cluster_n) = place.cluster;
        let (rank_m, rank_n) = place.rank;
        // Lanes below cluster_n: the blocks of this block's row. The next cluster_m - 1: the others of its column.
        let in_row = lane.lt(cluster_n);
        let other_row = (rank_m + 1 + (lane - cluster_n)) % cluster_m;
        let target = in_row.select(rank_m * cluster_n + lane, other_row * cluster_n + rank_n);
        let takes_part = lane.lt(cluster_m + cluster_n - 1);
        let own = k.cluster_rank();
        Release { takes_part, empty: pipe.empty_in_block(takes_part.select(target, own)) }
    }

    /// Lets go of a stage.
    pub fn stage(&self, k: &'k Kernel, stage: U32<'k>) {
        let barrier = self.empty.at(stage);
        k.guard(self.takes_part, || barrier.arrive());
    }
}
