//! What a block loads of the operands of its cluster.

use crate::BLOCK_K;
use crate::gemm::epilogue::fusion::{Fusion, GateUpRows};
use oxigemm_ptx::tma::{CachePolicy, LoadOptions, TensorMap};
use oxigemm_ptx::{Kernel, MBarrier, Pred, Shared, U16, U32};

/// A row, as a signed number, that no box of a tile reaches a tensor's first from.
const BEFORE_ANY_ROW: u32 = (-256i32).cast_unsigned();

/// The part of a tile that this block loads, and for which blocks of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct MulticastLoad<'k> {
    pub(crate) first_row: U32<'k>,
    pub(crate) rows: U32<'k>,
    pub(crate) several: Pred<'k>,
    pub(crate) blocks: U16<'k>,
    /// Whether it need not stay in the L2 cache, and the policy of what need not.
    pub(crate) streamed: Option<(Pred<'k>, CachePolicy<'k>)>,
}

/// A box of a tile whose rows are [pieces](GateUpRows) of B.
#[derive(Clone, Copy)]
pub(crate) struct GateUpBox<'k> {
    /// Whether this block loads it.
    exists: Pred<'k>,
    /// Its first row of the tile.
    in_tile: U32<'k>,
    /// The column of D that this belongs to, and which of its sums, where it has several.
    column: U32<'k>,
    part: Option<U32<'k>>,
}

impl<'k> MulticastLoad<'k> {
    /// The same which, where `holds`, is loaded with this policy. (Elsewhere with none: that is faster than the one
    /// that is called normal.)
    pub fn streamed(self, holds: Pred<'k>, policy: CachePolicy<'k>) -> Self {
        MulticastLoad { streamed: Some((holds, policy)), ..self }
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

    /// The boxes that it is where the rows of a tile of so many are [pieces](GateUpRows) of B. To find them takes about as long as to load them: once for all
    /// blocks of K. `n` is the tile's first column of D.
    pub fn boxes(&self, gate_up: &GateUpRows<'k>, tile_rows: u32, n: U32<'k>) -> Vec<GateUpBox<'k>> {
        let rows = gate_up.box_rows(self.rows);
        let most = (tile_rows / (gate_up.columns * gate_up.fusion.sums())).max(1);
        let place = |nth: u32| {
            let offset = rows * nth;
            let in_tile = self.first_row + offset;
            let [column, part] = gate_up.place_in_part(n, in_tile);
            let part = (gate_up.fusion == Fusion::Gated).then_some(part);
            GateUpBox { exists: offset.lt(self.rows), in_tile, column, part }
        };
        (0..most).map(place).collect()
    }

    /// Loads such boxes, of one of B's groups if there are some.
    pub fn load_boxes(
        &self,
        k: &'k Kernel,
        tensor: &TensorMap<'k>,
        (depth, group): (U32<'k>, Option<U32<'k>>),
        boxes: &[GateUpBox<'k>],
        tile: Shared<'k>,
        full: MBarrier<'k>,
    ) {
        self.load_by(k, |options| {
            for (nth, piece) in boxes.iter().enumerate() {
                let at: Vec<U32<'k>> =
                    [depth, piece.column].into_iter().chain(piece.part).chain(group).collect();
                let load = || tensor.load(&at, tile.at(piece.in_tile * BLOCK_K), full, options);
                // A block loads one at least.
                if nth == 0 { load() } else { k.if_(piece.exists, load) }
            }
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
        self.load_by(k, |options| tensor.load(at, to, full, options));
    }

    /// Has something loaded as it is to be: for the blocks that share it, and with the policy that it has.
    fn load_by(&self, k: &'k Kernel, load: impl Fn(LoadOptions<'k>)) {
        let load = |cache| {
            let alone = LoadOptions { cache, multicast: None };
            let shared = LoadOptions { multicast: Some(self.blocks), ..alone };
            k.if_else(self.several, || load(shared), || load(alone));
        };
        match self.streamed {
            None => load(None),
            Some((holds, policy)) => k.if_else(holds, || load(Some(policy)), || load(None)),
        }
    }
}
