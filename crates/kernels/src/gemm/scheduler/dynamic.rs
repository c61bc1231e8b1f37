//! Dynamic tile scheduler: clusters fetch tiles from an atomic counter as they finish.
//!
//! A tile in which a group of rows ends takes less time than another. With the static schedule some clusters would be
//! done long before others, and tiles that share rows of B would no longer read them at one time. So a counter
//! in memory says which tile is next. In a cluster, the scale producer of its first block requests it, as it is ahead
//! of all other roles, and tells the other roles and blocks by a small ring in the shared memory of each block. The
//! result of a tile does not depend on who computes it.

use crate::common::params::kernel_params;
use crate::common::pipeline::{Cursor, Pipeline};
use crate::common::workspace_reduce::COUNTER_BYTES;
use oxigemm_ptx::memory::{AtomicOp, Scope};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32, Var};

/// Tiles that the requesting warp may be ahead of the scale producers in the other blocks.
const AHEAD: u32 = 3;
/// Tiles that the slowest role of a block may be behind the scale producer. That loaded the scales of a tile when those
/// of the second group before them had been read, at the end of a tile; the tile before that was staged then, when the
/// one staged before it was stored.
const BEHIND: u32 = 5;
/// Slots of the ring: when one is written again, all roles have read it.
const SLOTS: u32 = AHEAD + BEHIND;
const SLOT_BYTES: u32 = 4;

/// Argument of a kernel with the dynamic scheduler, behind those of every m-grouped GEMM.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DynamicSchedulerArgs {
    /// Address of the counter; 0 where there is none: then the schedule is static.
    pub counter: u64,
}

/// Bytes of the workspace that has the counter. The counter begins as zero, and is zero again when a grid ends.
pub const WORKSPACE_BYTES: u64 = COUNTER_BYTES;

impl DynamicSchedulerArgs {
    /// Argument for the last counter of a workspace: other counters begin with the first.
    #[must_use]
    pub fn in_workspace(workspace: Option<u64>) -> Self {
        DynamicSchedulerArgs { counter: workspace.map_or(0, |workspace| workspace + WORKSPACE_BYTES - 4) }
    }
}

kernel_params! {
    struct DynamicSchedulerParams from DynamicSchedulerArgs {
        tile_counter: Pointer = counter,
    }
}

/// Dynamic tile scheduler of a block: its ring, and the counter.
#[derive(Clone, Copy)]
pub(crate) struct DynamicScheduler<'k> {
    k: &'k Kernel,
    counter: Global<'k>,
    slots: Shared<'k>,
    /// A slot is `full` when it has a tile, and, in the first block, `empty` when the scale producers of all blocks
    /// have read it. The others read it later, but before it is written again.
    ring: Pipeline<'k>,
    /// This block's rank in its cluster, and the blocks of that.
    rank: U32<'k>,
    blocks: U32<'k>,
}

/// Request for the tile after the current one, by the scale producer.
pub(crate) struct NextTile<'k, 'd> {
    scheduler: &'d DynamicScheduler<'k>,
    /// Whether this thread requests, and how many requests came before.
    requests: Pred<'k>,
    before: Var<'k, u32>,
}

impl<'k> DynamicScheduler<'k> {
    /// Bytes of the ring, and of its barriers.
    pub const BYTES: u32 = SLOTS * SLOT_BYTES;
    pub const BARRIER_BYTES: u32 = Pipeline::barrier_bytes(SLOTS);

    /// The ring at `slots`, with its barriers at `barriers`. Declares the parameter of [`DynamicSchedulerArgs`].
    pub fn declare(
        k: &'k Kernel,
        slots: Shared<'k>,
        barriers: Shared<'k>,
        [rank, blocks]: [U32<'k>; 2],
    ) -> Self {
        DynamicScheduler {
            k,
            counter: DynamicSchedulerParams::declare(k, "").tile_counter,
            slots,
            ring: Pipeline::new(k, barriers, SLOTS, SLOTS),
            rank,
            blocks,
        }
    }

    /// Gives names to the ring and its barriers, so many bytes into dynamic shared memory.
    pub fn name(k: &Kernel, slots: u32, barriers: u32) {
        k.name_shared("next_tiles", slots, SLOT_BYTES, SLOTS);
        Pipeline::name_barriers(k, ["next_tile_told", "next_tile_read"], barriers, SLOTS);
    }

    /// Initializes the barriers. The caller fences.
    pub fn init(&self) {
        self.ring.init(1, self.blocks);
    }

    /// Runs `body` with every tile of this block's cluster, of so many in all, for a thread that reads the ring.
    pub fn for_each(&self, tiles: U32<'k>, body: impl FnOnce(U32<'k>)) {
        let (k, cursor) = (self.k, self.ring.reader());
        let tile = k.var_from(k.cluster_index());
        k.while_(
            || tile.live().lt(tiles),
            || {
                body(tile.get());
                tile.set(self.next(&cursor));
            },
        );
    }

    /// The same for the scale producer of each block, which is ahead of all others. `body`
    /// [requests](NextTile::request) the next tile some time before it is done with one. Runs `end` when there is none.
    pub fn lead(
        &self,
        lane: U32<'k>,
        tiles: U32<'k>,
        body: impl FnOnce(U32<'k>, &NextTile<'k, '_>),
        end: impl FnOnce(),
    ) {
        let (k, cursor, pace) = (self.k, self.ring.reader(), self.ring.writer_of(AHEAD));
        let (tile, first) = (k.var_from(k.cluster_index()), lane.eq(0));
        let next = NextTile { scheduler: self, requests: first & self.rank.eq(0), before: k.var(0u32) };
        let read = self.ring.empty_in_block(k.constant(0));
        k.while_(
            || tile.live().lt(tiles),
            || {
                next.before.set(tile.get());
                body(tile.get(), &next);
                k.if_(first, || {
                    let slot = cursor.stage();
                    k.if_else(
                        next.requests,
                        || {
                            pace.wait_empty_in_cluster();
                            pace.advance();
                            self.publish(slot, next.answer(tiles));
                        },
                        || self.ring.full(slot).arrive_expecting(SLOT_BYTES),
                    );
                    tile.set(self.next(&cursor));
                    read.at(slot).arrive_release();
                });
                tile.set(k.shuffle(Shuffle::Index, tile.get(), 0u32));
            },
        );
        end();
        // The other blocks arrive at barriers of this block.
        k.if_(next.requests, || pace.drain_of(AHEAD));
    }

    /// Writes a tile to the rings of all blocks of the cluster.
    fn publish(&self, slot: U32<'k>, tile: U32<'k>) {
        let (to, full) = (self.slots.at(slot * SLOT_BYTES), self.ring.full(slot));
        to.store(tile);
        full.arrive();
        self.k.for_(1, self.blocks, 1, |rank| to.in_block(rank).store_async(tile, full.in_block(rank)));
    }

    /// The next tile of a reader.
    fn next(&self, cursor: &Cursor<'k>) -> U32<'k> {
        cursor.wait_full();
        let tile = self.slots.at(cursor.stage() * SLOT_BYTES).load();
        cursor.advance();
        tile
    }
}

impl<'k> NextTile<'k, '_> {
    /// Requests the tile that comes next.
    pub fn request(&self) {
        let DynamicScheduler { k, counter, .. } = *self.scheduler;
        k.if_(self.requests & counter.address().ne(0u64), || {
            self.before.set(counter.atomic::<u32>(AtomicOp::Add, 1u32, Scope::Gpu));
        });
    }

    /// That tile, of so many in all; one behind the last if there is none.
    fn answer(&self, tiles: U32<'k>) -> U32<'k> {
        let DynamicScheduler { k, counter, .. } = *self.scheduler;
        let before = self.before.get();
        // Every cluster begins with a tile that it does not request, if there is one, and learns once that there are no
        // more: in all there are as many requests as tiles. The last leaves a zero for the next grid.
        k.if_((before + 1).eq(tiles) & counter.address().ne(0u64), || {
            counter.reduce(AtomicOp::Add, k.constant(0) - tiles, Scope::Gpu);
        });
        before + k.grid_clusters()
    }
}
