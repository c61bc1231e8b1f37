//! 1D1D scales: every row of A and every row of B has a scale, and the tensor core multiplies them.
//!
//! Every element of a tile has another scale, `sfa[m] * sfb[n]`, in every K block. A consumer thread has the
//! accumulators of a quarter of the columns; to load the scales of those would take shared memory half of the time that
//! the products take, beside the operands, which take three quarters. So the scales are an outer product, of those of
//! rows and those of columns, which lie in each stage beside the tiles. It arrives as the products do, element by
//! element in the same registers of the same thread, and costs a quarter of their time.
//!
//! TF32 has 11 bits of the 24: a scale is the sum of two such numbers, of which the second has a sign of its own and so
//! lacks one bit at most, the last; a product of scales is the sum of four products.

use super::Block;
use crate::common::WARP;
use crate::gemm::params::ScaleParams;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileView;
use crate::gemm::sm90::row_loader::RowLoader;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{F32, Kernel, MBarrier, Pred, Shared, U32, Var};

/// Bytes of a row of an operand: half of the K of one instruction.
const ROW_BYTES: u32 = 16;
/// K blocks whose scales are loaded at once: one vector of a row.
const AT_ONCE: u32 = 4;

/// Bytes of the operand that has the scales of so many rows (or columns).
pub(super) const fn bytes(rows: u32) -> u32 {
    rows * ROW_BYTES
}

/// The operand at `at`, from its row `first` on. The other half of its K, which an instruction has whether it is wanted
/// or not, is zero: in every operand the same [`bytes`] of zeros, that lie `zeros` bytes behind `at`.
pub(super) fn descriptor<'k>(at: Shared<'k>, zeros: u32, first: U32<'k>) -> Descriptor<'k> {
    Descriptor::new(at, Swizzle::None, zeros, 8 * ROW_BYTES).advance_start(first * ROW_BYTES)
}

/// Issues `scales = sfa · sfbᵀ`. (The caller fences, commits and waits.)
pub(super) fn multiply<'k>(k: &'k Kernel, scales: &[Var<'k, f32>], [rows, columns]: [Descriptor<'k>; 2]) {
    k.wgmma(MmaType::Tf32, scales, MatrixA::Shared(rows), columns, (Major::K, Major::K), k.constant(false));
}

/// Scales of a K block that a lane of a scale warp has: one of each 32 rows (or columns).
const PER_LANE: u32 = 2;
/// Rows (or columns) whose scales a warp loads. So 128x128 tiles have one such warp in each partition of an SM: a
/// warpgroup is as slow as the slowest of its four warps, which the scale warps take time from.
const PER_WARP: u32 = PER_LANE * WARP;

/// Scale warps for so many rows and columns.
pub(super) const fn scale_warps([rows, columns]: [u32; 2]) -> u32 {
    assert!(rows.is_multiple_of(PER_WARP) && columns.is_multiple_of(PER_WARP), "each warp has as many");
    assert!(rows + columns <= 4 * PER_WARP, "they are a warpgroup at most");
    (rows + columns) / PER_WARP
}

impl<'k> Block<'k, '_> {
    /// Scale producer, one of the [`scale_warps`]: makes operands of scales, stage by stage.
    pub(super) fn make_scale_operands(&self, scale_warp: U32<'k>) {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let (messages, cursor) = (self.scales.tma_producer(), self.pipe.writer());
        // Tiles of an empty group have no stages; elsewhere the first stage arrives behind the tile's message.
        let awaited = cfg.grouping == Grouping::K;
        let mine = ScaleLoader::new(k, cfg.block_m, (scale_warp, lane));
        // These arrive with the first stage.
        let zeros = self.shared.at(self.map.scale_zeros);
        let lanes = cfg.scale_warps() * WARP;
        k.for_((scale_warp * WARP + lane) * ROW_BYTES, cfg.scale_zero_bytes(), lanes * ROW_BYTES, |at| {
            zeros.at(at).store_vec([k.constant(0.0f32); 4]);
        });
        // The operand of columns lies behind that of rows.
        let operands = self.scale_operands(k.constant(0))[0].at(mine.first * ROW_BYTES);
        // Writes the scales of the `nth` of the K blocks that are held, and gives the barrier to arrive at.
        let put = |nth: u32| {
            cursor.wait_empty();
            let stage = cursor.stage();
            mine.put(nth, operands.at(stage * cfg.scale_operand_bytes()));
            cursor.advance();
            self.pipe.full(stage)
        };
        let commit = |stages: &[MBarrier<'k>]| {
            k.fence_async_shared();
            k.sync_warp();
            k.if_(lane.eq(0), || stages.iter().for_each(|full| full.arrive()));
        };
        self.scheduler.for_each_tile(k, |tile| {
            let view = &self.scheduler.view(&self.params, &tile);
            let k_blocks = view.k_blocks;
            k.if_(scale_warp.eq(0) & lane.eq(0), || messages.store_message(view, awaited));
            mine.begin_tile(view);
            k.if_(k_blocks.gt(0), || mine.loader.fetch(k_blocks));
            let left_over = k_blocks % AT_ONCE;
            k.for_(0, k_blocks - left_over, AT_ONCE, |block| {
                mine.loader.take();
                // By twos, as fences take long.
                commit(&[put(0), put(1)]);
                let left = k_blocks - block;
                k.if_(left.gt(AT_ONCE), || mine.loader.fetch(left - AT_ONCE));
                commit(&[put(2), put(3)]);
            });
            mine.loader.take();
            (0..AT_ONCE - 1).for_each(|nth| k.if_(left_over.gt(nth), || commit(&[put(nth)])));
        });
    }
}

/// Scales of some of a tile's rows, or of its columns, in the registers of a warp, for a few K blocks.
struct ScaleLoader<'k> {
    k: &'k Kernel,
    side: Side<'k>,
    /// The first that the lane has, of rows and then columns; the others are 32 apart.
    first: U32<'k>,
    loader: RowLoader<'k, f32>,
}

impl<'k> ScaleLoader<'k> {
    /// Loader for a tile of so many rows.
    fn new(k: &'k Kernel, rows: u32, (scale_warp, lane): (U32<'k>, U32<'k>)) -> Self {
        ScaleLoader {
            k,
            side: Side { rows, is_rows: scale_warp.lt(rows / PER_WARP) },
            first: scale_warp * PER_WARP + lane,
            loader: RowLoader::new(k, PER_LANE as usize, AT_ONCE, 0.0, None),
        }
    }

    /// Begins a tile.
    fn begin_tile(&self, tile: &TileView<'k>) {
        let (Side { rows, is_rows }, [m, n]) = (self.side, tile.at);
        let (of_rows, of_columns) = (m + self.first, n + self.first - rows);
        self.k.if_else(
            is_rows,
            || self.begin(&tile.sfa, of_rows, tile.rows),
            || self.begin(&tile.sfb, of_columns, tile.columns),
        );
    }

    /// Begins with the scales of the row `first`, of those before `limit`. (The others take the scale of the last:
    /// nobody stores what becomes of it.)
    fn begin(&self, scales: &ScaleParams<'k>, first: U32<'k>, limit: U32<'k>) {
        let row = |nth: u32| (first + nth * WARP).min(limit - 1);
        self.loader.begin(scales, (0..PER_LANE).map(row));
    }

    /// Writes those of the `nth` K block to the operands; `to` is where the lane's first belongs.
    fn put(&self, nth: u32, to: Shared<'k>) {
        for row in 0..PER_LANE {
            let scale = self.loader.held(row as usize, nth);
            to.at(row * WARP * ROW_BYTES).store_vec(self.side.row(scale));
        }
    }
}

/// Side of the outer product: the operand of so many rows, or the one of columns behind it.
#[derive(Clone, Copy)]
struct Side<'k> {
    rows: u32,
    is_rows: Pred<'k>,
}

impl<'k> Side<'k> {
    /// A row of the operand: the parts of a scale, in such an order that the sum of the products with those of the
    /// other side is the product of both.
    fn row(self, scale: F32<'k>) -> [F32<'k>; 4] {
        let high = to_tf32(scale);
        let low = scale - high;
        let [second, third] =
            [(high, low), (low, high)].map(|(rows, columns)| self.is_rows.select(rows, columns));
        [high, second, third, low]
    }
}

/// Rounds to TF32, to nearest. (The instruction for that takes several, of which most are for what is not a number.)
fn to_tf32(x: F32<'_>) -> F32<'_> {
    const LOST: u32 = 13;
    ((x.bitcast::<u32>() + (1 << (LOST - 1))) & (u32::MAX << LOST)).bitcast()
}
