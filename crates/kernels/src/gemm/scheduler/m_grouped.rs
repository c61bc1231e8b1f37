//! M-grouped GEMM: the GEMMs of one launch share N and K, each with rows and a B of its own.
//!
//! Only the device knows where the groups lie, so that a captured graph can be launched again with other groups. Every
//! block of the grid reads that when it starts and lays a table out in shared memory: of each group the first row, the
//! end, and how many tiles come before it. Then an index in the order of all tiles leads to a group by binary search,
//! and within the group to a tile by the same [`TileOrder`] that dense kernels have.
//!
//! The operands lie in slabs: a group of [`Counts`](GroupLayout::Counts) or [`All`](GroupLayout::All) has a slab of A
//! and D to itself, all others share one. Groups that have all rows of their slabs are a batch of products.

use crate::common::WARP;
use crate::common::params::kernel_params;
use crate::gemm::scheduler::order::{TileOrder, streams_b};
use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Global, I32, Kernel, Pred, Scope, Shared, U32, Var};
use std::ops::Range;

/// Grouping of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// Dense: all rows are multiplied with the same B.
    #[default]
    Dense,
    /// M-grouped: rows belong to groups, each with a B of its own.
    Rows,
    /// K-grouped: each group has a K and a D of its own: see [`crate::gemm::scheduler::k_grouped`].
    K,
}

/// Layout of the groups, which the device reads as numbers of type `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum GroupLayout {
    /// Each group has a slab of rows; of each group, how many of them there are. Counts are clamped to the rows of a
    /// slab, and to 0.
    Counts = 0,
    /// All groups share one slab; of each group, the row behind its last. A group starts where the one before it ends,
    /// rounded up to the alignment. Ends are clamped to the rows of the slab; one that is not behind the group's start
    /// makes it empty, and the groups behind it start as if it were not there.
    Ends = 1,
    /// All groups share one slab; of each row, the group. Other numbers, such as -1, mark rows of no group. Blocks of as
    /// many rows as the alignment belong to the group of their first row. The rows of a group end with the last of its
    /// last block that has its number. Where the blocks of some group do not follow each other, all rows of every block
    /// count, and kernels take block by block.
    Ids = 2,
    /// Each group has a slab of rows, and all of them. There are no numbers.
    All = 3,
}

impl GroupLayout {
    /// Whether each group has a slab of A and D to itself.
    pub const fn has_slabs(self) -> bool {
        matches!(self, GroupLayout::Counts | GroupLayout::All)
    }

    /// Rows of the slabs that belong to groups, by the rules above: what the kernel finds. Each run is of one group; a
    /// group has several where its blocks do not follow each other.
    ///
    /// ```
    /// use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;
    ///
    /// assert_eq!(GroupLayout::Counts.runs(&[3, -1, 9], 3, 8, 1), [(0, 0..3), (1, 0..0), (2, 0..8)]);
    /// assert_eq!(GroupLayout::Ends.runs(&[3, 3, 9], 3, 8, 4), [(0, 0..3), (1, 4..4), (2, 4..8)]);
    /// assert_eq!(GroupLayout::Ids.runs(&[1, 1, 1, -1, 0, 0, -1, 0], 3, 8, 4), [(1, 0..3), (0, 4..8)]);
    /// let twice = GroupLayout::Ids.runs(&[1, -1, 0, 0, 1, 1, 5, 1], 3, 8, 2);
    /// assert_eq!(twice, [(1, 0..2), (0, 2..4), (1, 4..6)]);
    /// ```
    pub fn runs(self, numbers: &[i32], groups: u32, rows: u32, alignment: u32) -> Vec<(u32, Range<u32>)> {
        let clamped = |number: &i32| u32::try_from(*number).unwrap_or(0).min(rows);
        match self {
            GroupLayout::Counts => (0..).zip(numbers.iter().map(|count| 0..clamped(count))).collect(),
            GroupLayout::All => (0..groups).map(|group| (group, 0..rows)).collect(),
            GroupLayout::Ends => {
                let mut reached = 0u32;
                let place = |end: u32| {
                    let start = reached.next_multiple_of(alignment).min(rows);
                    reached = reached.max(end);
                    start..end.max(start)
                };
                (0..).zip(numbers.iter().map(clamped).map(place)).collect()
            }
            GroupLayout::Ids => {
                let block = |first: u32| {
                    let group =
                        u32::try_from(numbers[first as usize]).ok().filter(|group| *group < groups)?;
                    Some((group, first..first.saturating_add(alignment).min(rows)))
                };
                let blocks: Vec<_> = (0..rows).step_by(alignment as usize).filter_map(block).collect();
                let follows =
                    |a: &(u32, Range<u32>), b: &(u32, Range<u32>)| a.0 == b.0 && a.1.end == b.1.start;
                let runs = blocks.chunk_by(follows).map(|run| {
                    let ((group, first), last) = (run[0].clone(), run[run.len() - 1].1.clone());
                    let of_group = |row: &u32| numbers[*row as usize] == group as i32;
                    (group, first.start..last.rev().find(of_group).map_or(first.end, |row| row + 1))
                });
                let runs: Vec<_> = runs.collect();
                let mut found: Vec<u32> = runs.iter().map(|(group, _)| *group).collect();
                found.sort_unstable();
                let once = found.windows(2).all(|pair| pair[0] != pair[1]);
                if once { runs } else { blocks }
            }
        }
    }

    /// The rows of each group, of which each has one run at most.
    pub fn rows(self, numbers: &[i32], groups: u32, rows: u32, alignment: u32) -> Vec<Range<u32>> {
        let mut found = vec![0..0; groups as usize];
        for (group, rows) in self.runs(numbers, groups, rows, alignment) {
            found[group as usize] = rows;
        }
        found
    }
}

/// Arguments of an m-grouped kernel, which the host passes behind [`GemmArgs`](crate::gemm::params::GemmArgs).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MGroupedArgs {
    /// Address of the counts, ends or ids, if there are any.
    pub layout: u64,
    /// A [`GroupLayout`], as a number.
    pub kind: u32,
    /// How many groups there are.
    pub groups: u32,
    /// What the first row of a group is a multiple of.
    pub alignment: u32,
    /// From one slab of D to the next: in rows of FP8 products, in elements of those with 16-bit operands.
    pub d_slab: u32,
    /// From one slab of A's scales to the next, in elements.
    pub sfa_slab: u32,
    /// From the scales of one group's B to those of the next, in elements.
    pub sfb_group: u32,
}

/// The most groups of a launch.
pub const MAX_GROUPS: u32 = 1024;
/// What is no row of a group.
const NONE: u32 = u32::MAX;
/// Runs whose last blocks a warp looks at together, and ids of each that a lane loads at a time: a whole block where groups
/// begin at multiples of 128 rows, as engines lay them out.
const RUNS_AT_ONCE: u32 = 4;
const IDS_OF_LANE: u32 = 4;

/// Bytes of the group table in shared memory.
pub const fn table_bytes(groups: u32) -> u32 {
    (3 * groups + 2) * 4
}

kernel_params! {
    /// The same inside a kernel.
    pub(crate) struct MGroupedParams from MGroupedArgs {
        group_layout: Pointer = layout,
        group_kind: U32 = kind,
        groups: U32 = groups,
        group_alignment: U32 = alignment,
        d_slab: U32 = d_slab,
        sfa_slab: U32 = sfa_slab,
        sfb_group: U32 = sfb_group,
    }
}

impl<'k> MGroupedParams<'k> {
    fn is(&self, layout: GroupLayout) -> Pred<'k> {
        self.group_kind.eq(layout as u32)
    }

    /// The slab of a group.
    pub fn slab_of(&self, group: U32<'k>) -> U32<'k> {
        let has_slabs = self.is(GroupLayout::Counts) | self.is(GroupLayout::All);
        has_slabs.select(group, 0)
    }

    fn number(&self, index: U32<'k>) -> Global<'k> {
        self.group_layout.at(index.widening_mul(4))
    }

    /// A number of the layout, within `0..=rows`.
    fn clamped(&self, index: U32<'k>, rows: U32<'k>) -> U32<'k> {
        let number: I32<'k> = self.number(index).load();
        number.max(0).bitcast::<u32>().min(rows)
    }
}

/// Group of a tile.
#[derive(Clone, Copy)]
pub(crate) struct TileGroup<'k> {
    /// The group, which is also that of B.
    pub group: U32<'k>,
    /// The slab of A and D.
    pub slab: U32<'k>,
    /// The row of the slab behind the group's last.
    pub end: U32<'k>,
    /// From one slab of D to the next: see [`MGroupedArgs`].
    pub d_slab: U32<'k>,
}

impl<'k> TileGroup<'k> {
    /// The row of D where the slab starts, where slabs are whole rows apart.
    pub fn d_row(&self) -> U32<'k> {
        self.slab * self.d_slab
    }
}

/// Tiles of clusters: their height, and how many lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct ClusterTiles<'k> {
    /// Rows of such a tile.
    pub rows: U32<'k>,
    /// Such tiles along N.
    pub n_tiles: U32<'k>,
    /// As in [`TileOrder`].
    pub band: U32<'k>,
}

/// Group table in a block's shared memory.
#[derive(Clone, Copy)]
pub(crate) struct GroupTable<'k> {
    k: &'k Kernel,
    pub params: MGroupedParams<'k>,
    tiles: ClusterTiles<'k>,
    /// Rows of a slab.
    rows: U32<'k>,
    first: Shared<'k>,
    end: Shared<'k>,
    /// Tiles before each group, and behind the last.
    before: Shared<'k>,
    /// Not 0 where blocks of a group do not follow each other: tiles are then those of blocks.
    by_blocks: Shared<'k>,
}

impl<'k> GroupTable<'k> {
    /// The table at `table`, for slabs of `rows` rows.
    pub fn new(
        params: MGroupedParams<'k>,
        table: Shared<'k>,
        rows: U32<'k>,
        tiles: ClusterTiles<'k>,
    ) -> Self {
        let (k, bytes) = (rows.kernel(), params.groups * 4);
        let end = table.at(bytes);
        let before = end.at(bytes);
        GroupTable { k, params, tiles, rows, first: table, end, before, by_blocks: before.at(bytes + 4) }
    }

    /// Builds the table; all `threads` threads of the block take part.
    pub fn build(&self, threads: u32) {
        let (k, p) = (self.k, self.params);
        let thread = k.thread_index();
        k.guard(thread.eq(0), || self.by_blocks.store(0u32));
        k.if_else(
            p.is(GroupLayout::Ids),
            || self.find_runs(thread, threads),
            || {
                k.for_(thread, p.groups, threads, |group| {
                    let end = k.var_from(self.rows);
                    k.if_(!p.is(GroupLayout::All), || end.set(p.clamped(group, self.rows)));
                    self.first.at(group * 4).store(0u32);
                    self.end.at(group * 4).store(end.get());
                });
            },
        );
        self.sync();
        k.if_(k.warp_index().eq(0), || {
            k.if_(p.is(GroupLayout::Ends), || self.place_in_order(k.lane()));
            k.if_(p.is(GroupLayout::Ids), || self.expect_one_run(k.lane()));
            self.count_tiles(k.lane());
        });
        self.sync();
    }

    /// Synchronizes the block, whose lanes diverged in loops.
    fn sync(&self) {
        self.k.sync_warp();
        self.k.sync_threads();
    }

    /// The run of each group, and how many there are. A thread looks at the first rows of two blocks: where the group
    /// changes, a run starts, or ends in between.
    fn find_runs(&self, thread: U32<'k>, threads: u32) {
        let (k, p, rows) = (self.k, self.params, self.rows);
        k.for_(thread, p.groups, threads, |group| {
            self.first.at(group * 4).store(NONE);
            self.end.at(group * 4).store(NONE);
            self.before.at(group * 4).store(0u32);
        });
        self.sync();
        k.for_(thread, rows.div_ceil(p.group_alignment), threads, |step| {
            let row = step * p.group_alignment;
            let next = row + p.group_alignment;
            let id: U32<'k> = p.number(row).load();
            let before = p.number(row - p.group_alignment).load_if(step.ne(0), NONE);
            let behind = p.number(next).load_if(next.lt(rows), NONE);
            let exists = id.lt(p.groups);
            k.if_(exists & before.ne(id), || {
                self.first.at(id * 4).reduce(AtomicOp::Min, row, Scope::Cta);
                self.before.at(id * 4).reduce(AtomicOp::Add, 1u32, Scope::Cta);
            });
            // Until all rows of the run's last block are looked at, its first stands for its end.
            k.if_(exists & behind.ne(id), || self.end.at(id * 4).reduce(AtomicOp::Min, row, Scope::Cta));
        });
        self.sync();
        self.find_ends(threads);
    }

    /// The end of each run: behind the last row of its last block that has the group's number. The ids come from memory,
    /// so a warp loads those of several blocks before it looks at the first.
    fn find_ends(&self, threads: u32) {
        let (k, p, lane, warps) = (self.k, self.params, self.k.lane(), threads / WARP);
        k.for_(k.warp_index(), p.groups, warps * RUNS_AT_ONCE, |first| {
            let runs = (0..RUNS_AT_ONCE).map(|run| {
                let group = first + run * warps;
                let block = self.end.at(group * 4).load_if(group.lt(p.groups), NONE);
                let limit = block.ne(NONE).select((block + p.group_alignment).min(self.rows), 0);
                (group, block, limit, k.var(0u32))
            });
            let runs: Vec<_> = runs.collect();
            k.for_(0, p.group_alignment, WARP * IDS_OF_LANE, |from| {
                let ids = runs.iter().flat_map(|&(group, block, limit, end)| {
                    let rows = (0..IDS_OF_LANE).map(move |i| block + from + lane + i * WARP);
                    rows.map(move |row| (end, row, group, p.number(row).load_if(row.lt(limit), NONE)))
                });
                let ids: Vec<_> = ids.collect();
                ids.iter().for_each(|&(end, row, group, id)| end.set_if(id.eq(group), row + 1u32));
            });
            let ends: Vec<_> = runs.iter().map(|(.., end)| k.warp_max(end.get())).collect();
            // All lanes have read where the last blocks begin.
            k.sync_warp();
            for ((group, _, limit, _), end) in runs.into_iter().zip(ends) {
                k.guard(lane.eq(0) & limit.ne(0), || self.end.at(group * 4).store(end));
            }
        });
    }

    /// Notes whether some group has several runs: a warp does it.
    fn expect_one_run(&self, lane: U32<'k>) {
        let (first, last) = self.of_lane(lane);
        self.k.for_(first, last, 1, |group| {
            let several = self.before.at(group * 4).load::<u32>().gt(1);
            self.k.guard(several, || self.by_blocks.store(1u32));
        });
    }

    /// The groups of a lane, which follow each other.
    fn of_lane(&self, lane: U32<'k>) -> (U32<'k>, U32<'k>) {
        groups_of_lane(lane, self.params.groups)
    }

    /// Where each group starts, by the ends of those before it: a warp does it.
    fn place_in_order(&self, lane: U32<'k>) {
        let (k, p) = (self.k, self.params);
        let (first, last) = self.of_lane(lane);
        let reached = k.var(0u32);
        let reach = |end: U32<'k>| reached.set(reached.live().max(end));
        k.for_(first, last, 1, |group| reach(self.end.at(group * 4).load()));
        reached.set(exclusive_scan(k, lane, reached.get(), |a, b| a.max(b)));
        k.for_(first, last, 1, |group| {
            let start = (reached.live().div_ceil(p.group_alignment) * p.group_alignment).min(self.rows);
            let end = self.end.at(group * 4).load::<u32>();
            reach(end);
            self.first.at(group * 4).store(start);
            self.end.at(group * 4).store(start.max(end));
        });
    }

    /// Tiles before each group: a warp does it.
    fn count_tiles(&self, lane: U32<'k>) {
        let k = self.k;
        let (first, last) = self.of_lane(lane);
        let before = k.var(0u32);
        let add = |group: U32<'k>| before.set(before.live() + self.tiles_of(group) * self.tiles.n_tiles);
        k.for_(first, last, 1, add);
        before.set(exclusive_scan(k, lane, before.get(), |a, b| a + b));
        k.for_(first, last, 1, |group| {
            self.before.at(group * 4).store(before.live());
            add(group);
        });
        k.guard(lane.eq(WARP - 1), || self.before.at(self.params.groups * 4).store(before.live()));
    }

    fn is_by_blocks(&self) -> Pred<'k> {
        self.by_blocks.load::<u32>().ne(0)
    }

    /// Tiles of a block along M.
    fn tiles_of_block(&self) -> U32<'k> {
        self.params.group_alignment.div_ceil(self.tiles.rows)
    }

    /// Tiles of all blocks, those of no group included.
    fn count_by_blocks(&self) -> U32<'k> {
        self.rows.div_ceil(self.params.group_alignment) * self.tiles_of_block() * self.tiles.n_tiles
    }

    /// Tiles of a group along M.
    fn tiles_of(&self, group: U32<'k>) -> U32<'k> {
        let (first, end) = self.rows_of(group);
        (end - first).div_ceil(self.tiles.rows)
    }

    fn rows_of(&self, group: U32<'k>) -> (U32<'k>, U32<'k>) {
        (self.first.at(group * 4).load(), self.end.at(group * 4).load())
    }

    /// Tiles of all groups.
    pub fn count(&self) -> U32<'k> {
        let of_groups = self.before.at(self.params.groups * 4).load();
        self.is_by_blocks().select(self.count_by_blocks(), of_groups)
    }

    /// The first row (of the group's slab) and the index along N of the tile at `index`, whether the group's B is read
    /// once, and the group.
    pub fn tile(&self, index: U32<'k>) -> (U32<'k>, U32<'k>, Pred<'k>, TileGroup<'k>) {
        let (k, p) = (self.k, self.params);
        let [group, row, n, end] = [0; 4].map(|zero: u32| k.var(zero));
        let rows_of_group = k.var(0u32);
        k.if_else(
            self.is_by_blocks(),
            || {
                let strip = index / self.tiles.n_tiles;
                let block = strip / self.tiles_of_block();
                let first = block * p.group_alignment;
                let id: U32<'k> = p.number(first).load();
                let exists = id.lt(p.groups);
                let start = first + (strip - block * self.tiles_of_block()) * self.tiles.rows;
                group.set(exists.select(id, 0));
                row.set(start);
                n.set(index - strip * self.tiles.n_tiles);
                end.set(exists.select((first + p.group_alignment).min(self.rows), start));
                rows_of_group.set(p.group_alignment);
            },
            || {
                let found = self.group_at(index);
                let (first, behind) = self.rows_of(found);
                let m_tiles = (behind - first).div_ceil(self.tiles.rows);
                let order = TileOrder { m_tiles, n_tiles: self.tiles.n_tiles, band: self.tiles.band };
                let (m, along_n) = order.tile(index - self.before.at(found * 4).load::<u32>());
                group.set(found);
                row.set(first + m * self.tiles.rows);
                n.set(along_n);
                end.set(behind);
                rows_of_group.set(behind - first);
            },
        );
        let group = group.get();
        let place = TileGroup { group, slab: p.slab_of(group), end: end.get(), d_slab: p.d_slab };
        (row.get(), n.get(), streams_b(rows_of_group.get()), place)
    }

    /// The last group that no more than `index` tiles come before.
    fn group_at(&self, index: U32<'k>) -> U32<'k> {
        last_not_above(self.k, self.before, self.params.groups, index)
    }
}

/// The last of `count` entries of a table that do not decrease which is not above a number; the first, if all are.
pub(crate) fn last_not_above<'k>(
    k: &'k Kernel,
    table: Shared<'k>,
    count: U32<'k>,
    number: U32<'k>,
) -> U32<'k> {
    let (from, to) = (k.var(0u32), k.var_from(count));
    k.while_(
        || (to.live() - from.live()).gt(1),
        || {
            let middle = (from.live() + to.live()) >> 1;
            let reached = table.at(middle * 4).load::<u32>().le(number);
            from.set_if(reached, middle);
            to.set_if(!reached, middle);
        },
    );
    from.get()
}

/// The first group of a lane, and the one behind its last, where every lane has as many.
pub(crate) fn groups_of_lane<'k>(lane: U32<'k>, groups: U32<'k>) -> (U32<'k>, U32<'k>) {
    let each = groups.div_ceil(WARP);
    let first = (lane * each).min(groups);
    (first, (first + each).min(groups))
}

/// What `combine` makes of the values of the lanes below; 0 for the first.
pub(crate) fn exclusive_scan<'k>(
    k: &'k Kernel,
    lane: U32<'k>,
    value: U32<'k>,
    combine: impl Fn(U32<'k>, U32<'k>) -> U32<'k>,
) -> U32<'k> {
    let sum: Var<'k, u32> = k.var_from(value);
    for distance in [1, 2, 4, 8, 16] {
        let below = k.shuffle(Shuffle::Up, sum.get(), distance);
        sum.set(combine(sum.live(), lane.ge(distance).select(below, 0)));
    }
    let below = k.shuffle(Shuffle::Up, sum.get(), 1);
    lane.ge(1).select(below, 0)
}
