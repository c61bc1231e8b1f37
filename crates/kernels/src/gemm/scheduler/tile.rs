//! Tile information: where a tile lies, what the roles of a block tell each other of it, and what of the parameters
//! holds for it.

use crate::common::BLOCK_K;
use crate::gemm::operand::gate_up::GateUpRows;
use crate::gemm::params::{Params, ScaleParams};
use crate::gemm::scheduler::k_grouped::TileKGroup;
use crate::gemm::scheduler::m_grouped::{MGroupedParams, TileGroup};
use crate::gemm::scheduler::stream_k::StreamKPart;
use oxigemm_ptx::{Kernel, Pred, Shared, U32};

/// Position in the order of a cluster's tiles.
#[derive(Clone, Copy)]
pub(crate) struct TileIndex<'k> {
    /// Position in the tile order of the grid; among the cluster's own tiles where some are stream-K tiles.
    pub index: U32<'k>,
    /// Which of the tile's passes, where there are several.
    pub pass: Option<U32<'k>>,
}

/// Tile of a block, as the tile scheduler gives it to every role.
#[derive(Clone, Copy)]
pub(crate) struct TileInfo<'k> {
    /// Its first row: of A, or of the slab of its group.
    pub m: U32<'k>,
    /// Its first column.
    pub n: U32<'k>,
    /// Its group, of m-grouped kernels.
    pub group: Option<TileGroup<'k>>,
    /// Its group, of k-grouped kernels.
    pub k_group: Option<TileKGroup<'k>>,
    /// Whether its rows of B are read at this moment only, and need not stay in the L2 cache.
    pub streams_b: Pred<'k>,
    /// Which of its passes, where there are several.
    pub pass: Option<U32<'k>>,
    /// Its K blocks, of stream-K kernels.
    pub part: Option<StreamKPart<'k>>,
    /// Whether it takes K from the end, in kernels with serpentine K: see [`KOrder`](super::order::KOrder).
    pub reverse_k: Option<Pred<'k>>,
}

/// Message about a tile in shared memory, from a producer to the consumers.
#[derive(Clone, Copy)]
pub(crate) enum TileMessage<'k> {
    /// First row and column of D.
    Dense,
    /// The same, and the row of D behind the group's last.
    Grouped(TileGroup<'k>),
    /// The same, and the group, for an epilogue that depends on it.
    GroupedWithGroup(TileGroup<'k>),
    /// First row of the group's slab and column, the row behind the group's last, and the slab.
    InSlab(TileGroup<'k>),
    /// The same with the group in place of the slab.
    InSlabWithGroup(TileGroup<'k>),
    /// First row and column of D, the row of D behind the group's last of `rows`, and the K blocks.
    KGrouped {
        /// The group.
        group: TileKGroup<'k>,
        /// Rows of a group's D.
        rows: U32<'k>,
        /// K blocks of the group.
        k_blocks: U32<'k>,
    },
    /// First row and column of D, and the part.
    StreamK(StreamKPart<'k>),
}

/// Row that no tile begins with: the message that no tile follows.
const NO_ROW: u32 = u32::MAX;

impl<'k> TileMessage<'k> {
    /// Bytes of a message, which is aligned to as many.
    pub const BYTES: u32 = 16;

    /// Writes the message about a tile at a row and a column.
    pub fn store(self, to: Shared<'k>, [m, n]: [U32<'k>; 2]) {
        match self {
            TileMessage::Dense => to.store_vec([m, n]),
            TileMessage::Grouped(group) => {
                let d_row = group.d_row();
                to.store_vec([d_row + m, n, d_row + group.end, n]);
            }
            TileMessage::GroupedWithGroup(group) => {
                let d_row = group.d_row();
                to.store_vec([d_row + m, n, d_row + group.end, group.group]);
            }
            TileMessage::InSlab(group) => to.store_vec([m, n, group.end, group.slab]),
            TileMessage::InSlabWithGroup(group) => to.store_vec([m, n, group.end, group.group]),
            TileMessage::KGrouped { group, rows, k_blocks } => {
                to.store_vec([group.d_row + m, n, group.d_row + rows, k_blocks]);
            }
            TileMessage::StreamK(part) => part.store(to, [m, n]),
        }
    }

    /// Writes that no tile follows.
    pub fn store_end(k: &'k Kernel, to: Shared<'k>) {
        to.store_vec([k.constant(NO_ROW); 4]);
    }

    /// Whether the message is that no tile follows.
    pub fn is_end(from: Shared<'k>) -> Pred<'k> {
        from.load::<u32>().eq(NO_ROW)
    }

    /// First row and column of any message.
    pub fn load(from: Shared<'k>) -> [U32<'k>; 2] {
        from.load_vec::<u32, 2>()
    }

    /// First row and column of a grouped message, and the row behind the group's last.
    pub fn load_grouped(from: Shared<'k>) -> ([U32<'k>; 2], U32<'k>) {
        let [row, column, end, _] = from.load_vec::<u32, 4>();
        ([row, column], end)
    }

    /// First row and column, the row behind the group's last, and the word that follows: the slab, the group or the K
    /// blocks.
    pub fn load_all(from: Shared<'k>) -> ([U32<'k>; 2], [U32<'k>; 2]) {
        let [row, column, end, word] = from.load_vec::<u32, 4>();
        ([row, column], [end, word])
    }
}

/// Kernel parameters as of one tile: its scales, its K and the end of its rows are those of its group.
#[derive(Clone, Copy)]
pub(crate) struct TileView<'k> {
    /// First row and column of the tile.
    pub at: [U32<'k>; 2],
    /// Rows of A and D before the tile's group ends, and columns of D.
    pub rows: U32<'k>,
    pub columns: U32<'k>,
    /// K blocks of the group; of a stream-K part, of the whole tile.
    pub k_blocks: U32<'k>,
    pub sfa: ScaleParams<'k>,
    pub sfb: ScaleParams<'k>,
    /// Slab of A's scales, of m-grouped kernels.
    pub slab: Option<U32<'k>>,
    /// The tile's rows of B, where they are not contiguous.
    gate_up: Option<GateUpRows<'k>>,
    /// What the consumers are told.
    message: TileMessage<'k>,
}

impl<'k> TileView<'k> {
    /// View of a tile without groups.
    pub fn dense(params: &Params<'k>, at: [U32<'k>; 2], gate_up: Option<GateUpRows<'k>>) -> Self {
        TileView {
            at,
            rows: params.output.rows,
            columns: params.output.columns,
            k_blocks: params.k_blocks,
            sfa: params.sfa,
            sfb: params.sfb,
            slab: None,
            gate_up,
            message: TileMessage::Dense,
        }
    }

    /// The view with the message to consumers.
    pub fn with_message(self, message: TileMessage<'k>) -> Self {
        TileView { message, ..self }
    }

    /// The view of a tile of an m-grouped kernel.
    pub fn in_group(self, group: TileGroup<'k>, params: &MGroupedParams<'k>) -> Self {
        TileView {
            sfa: self.sfa.advance(group.slab, params.sfa_slab),
            sfb: self.sfb.advance(group.group, params.sfb_group),
            rows: group.end,
            slab: Some(group.slab),
            ..self
        }
    }

    /// The view of a tile of a k-grouped kernel.
    pub fn in_k_group(self, group: TileKGroup<'k>) -> Self {
        let sfa = self.sfa.advance(group.first_block, self.sfa.stride_k);
        let sfb = self.sfb.advance(group.first_block, self.sfb.stride_k);
        let k_blocks = group.k.div_ceil(BLOCK_K);
        let message = TileMessage::KGrouped { group, rows: self.rows, k_blocks };
        TileView { sfa, sfb, k_blocks, message, ..self }
    }

    /// Writes the message to the consumers.
    pub fn store_message(&self, to: Shared<'k>) {
        self.message.store(to, self.at);
    }

    /// The column of D and the row of B of one of the tile's accumulator columns.
    pub fn column_and_row(&self, accumulator: U32<'k>) -> (U32<'k>, U32<'k>) {
        match self.gate_up {
            None => {
                let column = self.at[1] + accumulator;
                (column, column)
            }
            Some(gate_up) => gate_up.row(self.at[1], accumulator),
        }
    }
}
