//! Partial sums of a tile, added up by the blocks of a cluster.
//!
//! Each block of the cluster has summed its slice of K and owns an equal part of the tile's columns. It sends every
//! block the sums of that block's columns, and adds up what the others have sent of its own, in the order of the
//! slices: the result does not depend on timing. What is sent counts itself at the receiver's barrier, so nobody waits for
//! more than it needs, and a block may leave as soon as it has what is its own.

use crate::epilogue::OutputParams;
use oxigemm_ptx::{ClusterShared, F32, Kernel, MBarrier, Pred, RemoteMBarrier, Shared, U32, Var};

/// The block's part in an exchange.
#[derive(Clone, Copy)]
pub(crate) struct Exchange<'k> {
    pub k: &'k Kernel,
    /// Rows and columns of the tile; the columns are a power of two.
    pub tile: [u32; 2],
    /// Room for what this block receives: a tile of FP32.
    pub inbox: Shared<'k>,
    /// Ends its first phase when all of it has come.
    pub arrived: MBarrier<'k>,
    /// Blocks of the cluster (a power of two), and which of them this is.
    pub blocks: U32<'k>,
    pub rank: U32<'k>,
    /// Rows of the tile that exist.
    pub rows: U32<'k>,
}

/// Columns that lie in one 16-byte chunk.
const FOUR: u32 = 4;

impl<'k> Exchange<'k> {
    /// One thread prepares the barrier, before the cluster synchronizes.
    pub fn init(&self) {
        self.arrived.init(1);
        self.arrived.arrive_expecting(self.rows * (self.tile[1] * 4));
    }

    /// What the math warps need to take part.
    pub fn shares(&self) -> Shares<'k> {
        let columns = self.k.constant(self.tile[1]) / self.blocks;
        let fours = columns / FOUR;
        Shares { exchange: *self, columns, fours, spread: (fours - 1) & 7 }
    }
}

/// An exchange with every block's share of the columns.
pub(crate) struct Shares<'k> {
    exchange: Exchange<'k>,
    /// Columns that each block owns.
    columns: U32<'k>,
    /// The same in chunks of four.
    fours: U32<'k>,
    /// Neighbouring rows keep a chunk in this many banks more than one.
    spread: U32<'k>,
}

impl<'k> Shares<'k> {
    /// Where a chunk of a row of a block's own columns lies in what one slice has sent.
    fn chunk(&self, slice: U32<'k>, row: U32<'k>, four: U32<'k>) -> Shared<'k> {
        let four = four ^ (row & self.spread);
        self.exchange.inbox.at(((slice * self.exchange.tile[0] + row) * self.fours + four) * 16)
    }

    /// Where this block's sums of a row and column of the tile belong, at whose barrier they count, and whether the
    /// row exists.
    fn destination(
        &self,
        row: U32<'k>,
        column: U32<'k>,
    ) -> (ClusterShared<'k>, RemoteMBarrier<'k>, Pred<'k>) {
        let Exchange { tile, blocks, rank, arrived, rows, .. } = self.exchange;
        let owner = column * blocks / tile[1];
        let within = column - owner * self.columns;
        let place = self.chunk(rank, row, within / FOUR).at((within % FOUR) * 4);
        (place.in_block(owner), arrived.in_block(owner), row.lt(rows))
    }

    /// Sends a sum to the owner of its column.
    pub fn send(&self, [row, column]: [U32<'k>; 2], sum: F32<'k>) {
        let (place, arrived, exists) = self.destination(row, column);
        self.exchange.k.guard(exists, || place.store_async(sum, arrived));
    }

    /// Sends the sums of a column, which is even, and of the next.
    pub fn send_pair(&self, [row, column]: [U32<'k>; 2], sums: [F32<'k>; 2]) {
        let (place, arrived, exists) = self.destination(row, column);
        self.exchange.k.guard(exists, || place.store_vec_async(sums, arrived));
    }

    /// Waits for what the others send, adds it up and writes it to D, whose tile starts at `tile`. `threads` of them
    /// share the work.
    pub fn receive(&self, output: &OutputParams<'k>, tile: [U32<'k>; 2], thread: U32<'k>, threads: u32) {
        let Exchange { k, blocks, rank, arrived, rows, .. } = self.exchange;
        arrived.wait(0);
        // Both are powers of two: this is division by `fours`.
        let first = thread * blocks / (self.exchange.tile[1] / FOUR);
        let four = thread - first * self.fours;
        let rows_at_a_time = blocks * threads / (self.exchange.tile[1] / FOUR);
        let column = tile[1] + rank * self.columns + four * FOUR;
        k.for_(first, rows, rows_at_a_time, |row| {
            let sums: [Var<'k, f32>; 4] = std::array::from_fn(|_| k.var(0.0f32));
            k.for_(0, blocks, 1, |slice| {
                let part: [F32<'k>; 4] = self.chunk(slice, row, four).load_vec();
                sums.iter().zip(part).for_each(|(sum, part)| sum.set(sum.live() + part));
            });
            output.store_four(k, tile[0] + row, column, sums.map(|sum| sum.live()));
        });
    }
}
