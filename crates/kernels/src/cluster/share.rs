//! What a block loads of the operands of its cluster.

use crate::BLOCK_K;
use crate::epilogue::fused::Pieces;
use oxigemm_ptx::tma::{CachePolicy, LoadOptions, TensorMap};
use oxigemm_ptx::{Kernel, MBarrier, Pred, Shared, U16, U32};

/// A row, as a signed number, that no box of a tile reaches a tensor's first from.
const BEFORE_ANY_ROW: u32 = (-256i32).cast_unsigned();

/// The part of a tile that this block loads, and for which blocks of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct Share<'k> {
    pub(super) first_row: U32<'k>,
    pub(super) rows: U32<'k>,
    pub(super) several: Pred<'k>,
    pub(super) blocks: U16<'k>,
    /// Whether it need not stay in the L2 cache, and the policy of what need not.
    pub(super) streamed: Option<(Pred<'k>, CachePolicy<'k>)>,
}

impl<'k> Share<'k> {
    /// The same which, where `holds`, is loaded with this policy. (Elsewhere with none: that is faster than the one
    /// that is called normal.)
    pub fn streamed(self, holds: Pred<'k>, policy: CachePolicy<'k>) -> Self {
        Share { streamed: Some((holds, policy)), ..self }
    }

    /// Loads it: `row` is the tile's first.
    pub fn load(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, row]: [U32<'k>; 2],
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        let (at, to) = ([column, row + self.first_row], tile.at(self.first_row * BLOCK_K));
        self.load_box(k, tensor, &at, to, full);
    }

    /// Loads it from one of the tensor's slabs.
    pub fn load_of_slab(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, row, slab]: [U32<'k>; 3],
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        let (at, to) = ([column, row + self.first_row, slab], tile.at(self.first_row * BLOCK_K));
        self.load_box(k, tensor, &at, to, full);
    }

    /// Loads its rows before `end` from one of the tensor's slabs, in boxes of `box_rows`. Boxes from `end` on are not
    /// read: rows outside of a tensor are zeros, and arrive as others do.
    pub fn load_before(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, row, slab]: [U32<'k>; 3],
        (end, box_rows): (U32<'k>, u32),
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        k.for_(0, self.rows, box_rows, |offset| {
            let offset = self.first_row + offset;
            let row = row + offset;
            let row = row.lt(end).select(row, BEFORE_ANY_ROW);
            self.load_box(k, tensor, &[column, row, slab], tile.at(offset * BLOCK_K), full);
        });
    }

    /// Loads it where the tile's rows are [pieces](Pieces) of B, of one of its groups if there are some: `n` is the
    /// tile's first column of D.
    pub fn load_pieces(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        [column, n]: [U32<'k>; 2],
        (pieces, group): (&Pieces<'k>, Option<U32<'k>>),
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        k.for_(0, self.rows, self.rows.min(pieces.columns), |offset| {
            let offset = self.first_row + offset;
            let (_, row) = pieces.place(n, offset);
            let at: Vec<U32<'k>> = [column, row].into_iter().chain(group).collect();
            self.load_box(k, tensor, &at, tile.at(offset * BLOCK_K), full);
        });
    }

    fn load_box(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        at: &[U32<'k>],
        to: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        let load = |cache| {
            let alone = LoadOptions { cache, multicast: None };
            k.if_else(
                self.several,
                || tensor.load(at, to, full, LoadOptions { multicast: Some(self.blocks), ..alone }),
                || tensor.load(at, to, full, alone),
            );
        };
        match self.streamed {
            None => load(None),
            Some((holds, policy)) => k.if_else(holds, || load(Some(policy)), || load(None)),
        }
    }
}
