//! Dynamic tile scheduler by cluster launch control: clusters claim tiles as they go.
//!
//! The grid has a cluster for each tile, and a cluster's first tile is its own. A thread then claims a cluster that has
//! not begun, whose tile is the next, one tile ahead of the roles: the response is there before they need it. When a
//! claim fails, the cluster ends after the tile that it has. Whatever is not claimed begins by itself, so no tile
//! is lost whichever claims fail, and none is computed twice.

use crate::common::pipeline::{Cursor, Pipeline};
use oxigemm_ptx::launch_control::ClaimResponse;
use oxigemm_ptx::{Kernel, Pred, Shared, U32};

/// Responses that are kept: that of the tile which the slowest role has, and the next one.
const SLOTS: u32 = 2;

/// Who reads responses for a role.
#[derive(Clone, Copy)]
pub(crate) enum Reader<'k> {
    /// One thread.
    Thread,
    /// All lanes of a warp, of which this is one.
    Warp(U32<'k>),
}

/// Claims of a block.
#[derive(Clone, Copy)]
pub(crate) struct LaunchControl<'k> {
    k: &'k Kernel,
    responses: Shared<'k>,
    /// A slot is full when the response has come and, in the leader, empty when the readers of all blocks have read it.
    ring: Pipeline<'k>,
    /// Whether two blocks are a cluster.
    pair: bool,
    reader: Reader<'k>,
}

impl<'k> LaunchControl<'k> {
    /// Bytes of the responses, and of their barriers.
    pub const BYTES: u32 = SLOTS * ClaimResponse::BYTES;
    pub const BARRIER_BYTES: u32 = Pipeline::barrier_bytes(SLOTS);

    /// The responses at `responses`, with their barriers at `barriers`.
    pub fn new(k: &'k Kernel, [responses, barriers]: [Shared<'k>; 2], pair: bool) -> Self {
        let ring = Pipeline::new(k, barriers, SLOTS, SLOTS);
        LaunchControl { k, responses, ring, pair, reader: Reader::Thread }
    }

    /// Gives names to them, so many bytes into dynamic shared memory.
    pub fn name(k: &Kernel, responses: u32, barriers: u32) {
        k.name_shared("responses", responses, ClaimResponse::BYTES, SLOTS);
        Pipeline::name_barriers(k, ["claimed", "claim_read"], barriers, SLOTS);
    }

    /// Initializes the barriers, for so many readers in all blocks. The caller fences.
    pub fn init(&self, readers: u32) {
        self.ring.init(1, readers);
    }

    /// The same for a reader.
    pub fn read_by(self, reader: Reader<'k>) -> Self {
        LaunchControl { reader, ..self }
    }

    /// Claims tiles, of so many in all, until there is none: one thread of each block, of which the leader's asks for
    /// all, and the other is a reader.
    pub fn claim(&self, tiles: U32<'k>, leads: Pred<'k>) {
        let (k, cursor, pace) = (self.k, self.ring.reader(), self.ring.writer());
        let tile = k.var_from(k.cluster_index());
        k.while_(
            || tile.live().lt(tiles),
            || {
                let full = self.ring.full(cursor.stage());
                k.if_(leads, || match self.pair {
                    true => pace.wait_empty_in_cluster(),
                    false => pace.wait_empty(),
                });
                pace.advance();
                full.arrive_expecting(ClaimResponse::BYTES);
                k.if_(leads, || self.response(&cursor).claim(full, self.pair));
                tile.set(self.next(&cursor));
                if self.pair {
                    k.if_(!leads, || self.release(&cursor));
                }
                cursor.advance();
            },
        );
    }

    /// Runs `body` with every tile of this block's cluster, of so many in all, for a reader.
    pub fn for_each(&self, tiles: U32<'k>, body: impl FnOnce(U32<'k>)) {
        let (k, cursor) = (self.k, self.ring.reader());
        let tile = k.var_from(k.cluster_index());
        k.while_(
            || tile.live().lt(tiles),
            || {
                body(tile.get());
                tile.set(self.next(&cursor));
                self.release(&cursor);
                cursor.advance();
            },
        );
    }

    fn response(&self, cursor: &Cursor<'k>) -> ClaimResponse<'k> {
        ClaimResponse(self.responses.at(cursor.stage() * ClaimResponse::BYTES))
    }

    /// The tile of the next response; one behind the last if there is none.
    fn next(&self, cursor: &Cursor<'k>) -> U32<'k> {
        cursor.wait_full();
        let block = self.response(cursor).first_block();
        // The next response comes to this place by the async proxy.
        self.k.fence_async_shared();
        block >> u32::from(self.pair)
    }

    /// Tells the leader that a response is read.
    fn release(&self, cursor: &Cursor<'k>) {
        let k = self.k;
        let empty = self.ring.empty(cursor.stage());
        let arrive = || match self.pair {
            true => empty.in_block(0u32).arrive_release(),
            false => empty.arrive(),
        };
        match self.reader {
            Reader::Thread => arrive(),
            Reader::Warp(lane) => {
                k.sync_warp();
                k.if_(lane.eq(0), arrive);
            }
        }
    }
}
