//! Scales of rows and columns as operands of a product, where every row of B has a scale of its own.
//!
//! Then every element of a tile has another scale, `sfa[m] * sfb[n]`, in every block of K. A thread that multiplies has the
//! sums of a quarter of the columns; to load the scales of those would take shared memory half of the time that the
//! products take, beside the operands, which take three quarters. So the tensor core is asked for the scales too: as the
//! outer product of those of rows and those of columns, which lie in each stage beside the tiles. It comes as the products
//! come, element by element in the same registers of the same thread, and costs a quarter of their time.
//!
//! TF32 has 11 bits of the 24: a scale is the sum of two such numbers, of which the second has a sign of its own and so lacks one
//! bit at most, the last; a product of scales is the sum of four products.

use super::Block;
use crate::WARP;
use crate::grouping::Grouping;
use crate::params::{Params, ScaleParams};
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{F32, Global, Kernel, MBarrier, Shared, U32, Var};

/// Bytes of a row of an operand: half of the K of one instruction.
const ROW_BYTES: u32 = 16;
/// Blocks of K whose scales are loaded at once: one vector of a row.
const AT_ONCE: u32 = 4;

/// Bytes of the operand that has the scales of so many rows (or columns).
pub(super) const fn bytes(rows: u32) -> u32 {
    rows * ROW_BYTES
}

/// The operand at `at`, from its row `first` on. The other half of its K, which an instruction has whether it is wanted or not, is zero: in
/// every operand the same [`bytes`] of zeros, that lie `zeros` bytes behind `at`.
pub(super) fn descriptor<'k>(at: Shared<'k>, zeros: u32, first: U32<'k>) -> Descriptor<'k> {
    Descriptor::new(at, Swizzle::None, zeros, 8 * ROW_BYTES).advance_start(first * ROW_BYTES)
}

/// Issues `scales = sfa · sfbᵀ`. (The caller fences, commits and waits.)
pub(super) fn multiply<'k>(k: &'k Kernel, scales: &[Var<'k, f32>], [rows, columns]: [Descriptor<'k>; 2]) {
    k.wgmma(MmaType::Tf32, scales, MatrixA::Shared(rows), columns, (Major::K, Major::K), k.constant(false));
}

impl<'k> Block<'k, '_> {
    /// One of the [`CARRIERS`]: a warp that makes operands of scales, stage by stage.
    pub(super) fn carry_scales(&self, carrier: U32<'k>) {
        let (k, cfg, lane) = (self.k, self.cfg, self.lane);
        let (places, cursor) = (self.scales.writer(), self.pipe.writer());
        // Tiles of an empty group have no stages; else the first is announced behind the tile's place.
        let awaited = cfg.grouping == Grouping::K;
        let mine = Carried {
            k,
            rows: Carrier::new(k, Side::Rows, cfg.block_m, (carrier, lane)),
            columns: Carrier::new(k, Side::Columns, cfg.block_n, (carrier, lane)),
        };
        // What is announced first, these are announced with.
        let zeros = self.shared.at(self.map.scale_zeros);
        k.for_(
            (carrier * WARP + lane) * ROW_BYTES,
            cfg.scale_zero_bytes(),
            CARRIERS * WARP * ROW_BYTES,
            |at| {
                zeros.at(at).store_vec([k.constant(0.0f32); 4]);
            },
        );
        // Writes the scales of the `nth` of the blocks that are held, and gives the barrier that is to be told.
        let put = |nth: u32| {
            cursor.wait_empty();
            let stage = cursor.stage();
            mine.put(nth, self.scale_operands(stage));
            cursor.advance();
            self.pipe.full(stage)
        };
        let announce = |stages: &[MBarrier<'k>]| {
            k.fence_async_shared();
            k.sync_warp();
            k.if_(lane.eq(0), || stages.iter().for_each(|full| full.arrive()));
        };
        self.place.for_each_place(k, |tile| {
            let p = &self.params.of(&tile, self.grouped.as_ref());
            k.if_(carrier.eq(0) & lane.eq(0), || places.tell_place(p, [tile.m, tile.n], awaited));
            mine.turn_to(p, [tile.m, tile.n]);
            k.if_(p.k_blocks.gt(0), || mine.fetch(p, k.constant(0)));
            k.for_(0, p.k_blocks, AT_ONCE, |block| {
                mine.take();
                let left = p.k_blocks - block;
                for nth in (0..AT_ONCE).step_by(2) {
                    // By twos, as fences take long.
                    k.if_(left.gt(nth + 1), || announce(&[put(nth), put(nth + 1)]));
                    k.if_(left.eq(nth + 1), || announce(&[put(nth)]));
                    if nth == 0 {
                        k.if_(left.gt(AT_ONCE), || mine.fetch(p, block + AT_ONCE));
                    }
                }
            });
        });
    }
}

/// What one warp carries of a tile.
struct Carried<'k> {
    k: &'k Kernel,
    rows: Carrier<'k>,
    columns: Carrier<'k>,
}

impl<'k> Carried<'k> {
    fn turn_to(&self, p: &Params<'k>, [m, n]: [U32<'k>; 2]) {
        self.rows.turn_to(&p.sfa, m, p.output.rows);
        self.columns.turn_to(&p.sfb, n, p.output.columns);
    }

    /// Asks for the scales of the blocks of K from `block` on, of which there is at least one.
    fn fetch(&self, p: &Params<'k>, block: U32<'k>) {
        let vectors = p.sfa.has_fours_along_k() & p.sfb.has_fours_along_k();
        self.k.if_else(
            vectors & (block + AT_ONCE).le(p.k_blocks),
            || {
                self.rows.fetch_vectors(block);
                self.columns.fetch_vectors(block);
            },
            || {
                self.rows.fetch_each(&p.sfa, block, p.k_blocks);
                self.columns.fetch_each(&p.sfb, block, p.k_blocks);
            },
        );
    }

    fn take(&self) {
        self.rows.take();
        self.columns.take();
    }

    fn put(&self, nth: u32, [rows, columns]: [Shared<'k>; 2]) {
        self.rows.put(nth, rows);
        self.columns.put(nth, columns);
    }
}

/// Which operand of the outer product.
#[derive(Clone, Copy)]
enum Side {
    Rows,
    Columns,
}

/// Warps that carry scales.
pub(super) const CARRIERS: u32 = 2;

/// The scales of a part of a tile's rows, or of its columns, on their way through the registers of a warp: a lane has every 32nd of
/// them, for a few blocks of K.
struct Carrier<'k> {
    k: &'k Kernel,
    side: Side,
    /// The first of them that the lane has.
    first: U32<'k>,
    /// Where those of the lane's rows begin in memory.
    rows: Vec<Var<'k, u64>>,
    held: Vec<Vec<Var<'k, f32>>>,
    /// Those of the blocks behind, on their way from memory.
    ahead: Vec<Vec<Var<'k, f32>>>,
}

impl<'k> Carrier<'k> {
    /// The part of so many rows or columns that one of the [`CARRIERS`] has.
    fn new(k: &'k Kernel, side: Side, all: u32, (carrier, lane): (U32<'k>, U32<'k>)) -> Self {
        assert!(all.is_multiple_of(CARRIERS * WARP), "each lane has as many of {all}");
        let count = all / CARRIERS;
        let each = 0..count / WARP;
        let some = || each.clone().map(|_| (0..AT_ONCE).map(|_| k.var(0.0f32)).collect()).collect();
        let rows = each.clone().map(|_| k.var(0u64)).collect();
        Carrier { k, side, first: carrier * count + lane, rows, held: some(), ahead: some() }
    }

    /// Turns to the tile that begins with the row or column `tile`, of which the ones before `limit` exist. (The others take the scale
    /// of the last: nobody stores what becomes of it.)
    fn turn_to(&self, scales: &ScaleParams<'k>, tile: U32<'k>, limit: U32<'k>) {
        for (nth, from) in (0u32..).zip(&self.rows) {
            let row = (tile + self.first + nth * WARP).min(limit - 1);
            from.set(scales.at(row, self.k.constant(0)).address());
        }
    }

    /// Asks for those of the blocks of K from `block` on, a vector of each row.
    fn fetch_vectors(&self, block: U32<'k>) {
        let offset = block.widening_mul(4);
        for (row, ahead) in self.rows.iter().zip(&self.ahead) {
            let scales = Global::new(row.get()).at(offset).load_readonly_vec::<f32, { AT_ONCE as usize }>();
            ahead.iter().zip(scales).for_each(|(ahead, scale)| ahead.set(scale));
        }
    }

    /// The same one by one, of those before `end`.
    fn fetch_each(&self, scales: &ScaleParams<'k>, block: U32<'k>, end: U32<'k>) {
        for later in 0..AT_ONCE {
            let offset = (block + later).min(end - 1).widening_mul(scales.stride_k) << 2;
            for (row, ahead) in self.rows.iter().zip(&self.ahead) {
                ahead[later as usize].set(Global::new(row.get()).at(offset).load_readonly::<f32>());
            }
        }
    }

    /// Takes what was asked for.
    fn take(&self) {
        for (held, ahead) in self.held.iter().flatten().zip(self.ahead.iter().flatten()) {
            held.set(ahead.live());
        }
    }

    /// Writes those of the `nth` of the blocks to the operand `to`.
    fn put(&self, nth: u32, to: Shared<'k>) {
        let mine = to.at(self.first * ROW_BYTES);
        for (further, held) in (0u32..).step_by((WARP * ROW_BYTES) as usize).zip(&self.held) {
            mine.at(further).store_vec(self.side.row(held[nth as usize].get()));
        }
    }
}

impl Side {
    /// A row of the operand: the parts of a scale, in such an order that the sum of the products with those of the
    /// other side is the product of both.
    fn row<'k>(self, scale: F32<'k>) -> [F32<'k>; 4] {
        let high = to_tf32(scale);
        let low = scale - high;
        match self {
            Side::Rows => [high, high, low, low],
            Side::Columns => [high, low, high, low],
        }
    }
}

/// Rounds to TF32, to nearest. (The instruction for that takes several, of which most are for what is not a number.)
fn to_tf32(x: F32<'_>) -> F32<'_> {
    const LOST: u32 = 13;
    ((x.bitcast::<u32>() + (1 << (LOST - 1))) & (u32::MAX << LOST)).bitcast()
}
