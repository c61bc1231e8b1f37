//! Scale parameters of FP8 operands: their granularity, how they reach shared memory, and where they lie.

use crate::common::BLOCK_K;
use crate::gemm::operand::fp8::SCALE_K;
use oxigemm_ptx::{Global, Pred, U32};

/// Set in [`GemmArgs::scale_layouts`](super::GemmArgs::scale_layouts) where TMA can load rows of B's scales: see
/// [`sfb_bulk`].
pub const SFB_BULK: u32 = 4;

/// Whether TMA can load rows of B's scales at `address` with these strides (in elements, along N and along K), for a
/// number of K blocks: it takes addresses and sizes in multiples of 16 bytes.
pub fn sfb_bulk(address: u64, [stride_n, stride_k]: [u32; 2], k_blocks: u32) -> bool {
    stride_k == 1 && address.is_multiple_of(16) && stride_n.is_multiple_of(4) && k_blocks.is_multiple_of(4)
}

/// Granularity of B's scales along N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScalesOfB {
    /// 1D2D: one scale for a [block](ScaleBlock) of rows.
    #[default]
    Blocks,
    /// 1D1D: one scale for each row, as A has them.
    Rows,
}

/// Elements of K that share a scale, and rows of B where its scales are [blocks](ScalesOfB::Blocks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleBlock {
    /// 1x128 and 128x128 scales.
    #[default]
    Of128,
    /// 1x32 and 32x32 scales: those of MXFP8.
    Of32,
    /// 1x16 scales: those of NVFP4.
    Of16,
}

impl ScaleBlock {
    /// How many.
    pub const fn size(self) -> u32 {
        match self {
            ScaleBlock::Of128 => BLOCK_K,
            ScaleBlock::Of32 => SCALE_K,
            ScaleBlock::Of16 => 16,
        }
    }
}

/// How A's scales reach shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ScaleLayout {
    /// K is contiguous, and TMA can address the rows.
    RowMajor = 0,
    /// M is contiguous, and TMA can address the columns.
    MnMajor = 1,
    /// Any other strides, also 0, which no tensor map has: copied by threads.
    Copied = 2,
    /// K is contiguous, and a load takes whole rows: those of a tile are one piece.
    Packed = 3,
}

impl ScaleLayout {
    /// Layout for scales at `address` with these strides (in elements, along M and along K).
    ///
    /// TMA takes addresses and pitches in multiples of 16 bytes.
    pub fn of(address: u64, [stride_m, stride_k]: [u32; 2]) -> ScaleLayout {
        let addressable = |pitch: u32| address.is_multiple_of(16) && pitch.is_multiple_of(4) && pitch > 0;
        match (stride_m, stride_k) {
            (pitch, 1) if addressable(pitch) => ScaleLayout::RowMajor,
            (1, pitch) if addressable(pitch) => ScaleLayout::MnMajor,
            _ => ScaleLayout::Copied,
        }
    }

    /// Layout for the `rows` of A, each with `k_blocks` scales, where those of `piece_rows` and `piece_blocks` may be
    /// loaded as one piece: the rows of a tile.
    ///
    /// TMA requests every row of a tensor map by itself. Where all blocks of a grid want the same few rows, these may
    /// lie in one slice of the L2 cache, which is then busy with nothing else: packed scales are one request.
    pub fn in_tiles(
        self,
        strides: [u32; 2],
        k_blocks: u32,
        rows: u32,
        [piece_rows, piece_blocks]: [u32; 2],
    ) -> ScaleLayout {
        let one_piece = strides == [k_blocks, 1] && k_blocks <= piece_blocks;
        let whole_tiles = piece_rows > 0 && rows.is_multiple_of(piece_rows);
        match self {
            ScaleLayout::RowMajor if one_piece && whole_tiles => ScaleLayout::Packed,
            other => other,
        }
    }
}

/// Matrix of scales in memory, in any layout.
#[derive(Clone, Copy)]
pub(crate) struct ScaleParams<'k> {
    pub base: Global<'k>,
    pub stride_mn: U32<'k>,
    pub stride_k: U32<'k>,
}

impl<'k> ScaleParams<'k> {
    /// The matrix a number of strides further on.
    pub fn advance(self, count: U32<'k>, stride: U32<'k>) -> Self {
        ScaleParams { base: self.base.at(count.widening_mul(stride) << 2), ..self }
    }

    /// Whether the scales of one row are contiguous.
    pub fn is_row_major(&self) -> Pred<'k> {
        self.stride_k.eq(1)
    }

    /// Whether they are, and each four of them an aligned vector.
    pub fn has_fours_along_k(&self) -> Pred<'k> {
        self.is_row_major() & (self.stride_mn & 3).eq(0) & (self.base.address() & 15u64).eq(0u64)
    }

    /// The scale of one row of A (or one or 128 rows of B) and one 128-wide K block.
    pub fn at(&self, row: U32<'k>, block: U32<'k>) -> Global<'k> {
        let index = row.widening_mul(self.stride_mn) + block.widening_mul(self.stride_k);
        self.base.at(index << 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tma_loads_rows_of_b_scales_that_are_multiples_of_16_bytes() {
        assert!(sfb_bulk(0x100, [12, 1], 12));
        assert!(sfb_bulk(0x100, [16, 1], 12), "gaps between rows");
        assert!(!sfb_bulk(0x104, [12, 1], 12), "the address");
        assert!(!sfb_bulk(0x100, [13, 1], 12), "the pitch");
        assert!(!sfb_bulk(0x100, [12, 1], 11), "the size of a row");
        assert!(!sfb_bulk(0x100, [1, 12], 12), "along N");
    }

    #[test]
    fn scales_of_whole_tiles_that_are_loaded_together_are_packed() {
        let packed = |strides, k_blocks, rows, tile| {
            ScaleLayout::of(0x100, strides).in_tiles(strides, k_blocks, rows, tile) == ScaleLayout::Packed
        };
        assert!(packed([4, 1], 4, 64, [64, 16]));
        assert!(packed([8, 1], 8, 512, [256, 8]));
        assert!(packed([12, 1], 12, 64, [64, 16]));
        assert!(packed([16, 1], 16, 256, [128, 16]));
        assert!(!packed([8, 1], 4, 64, [64, 16]), "gaps between rows");
        assert!(!packed([20, 1], 20, 64, [64, 16]), "more than is loaded together");
        assert!(!packed([12, 1], 12, 256, [256, 8]), "more than high tiles load together");
        assert!(!packed([3, 1], 3, 64, [64, 16]), "a pitch that TMA cannot have");
        assert!(!packed([4, 1], 4, 65, [64, 16]), "a partial tile");
        assert!(!packed([1, 64], 4, 64, [64, 16]), "along M");
        assert!(!packed([4, 1], 4, 64, [0, 0]), "grouped rows");
        let odd = ScaleLayout::of(0x104, [4, 1]).in_tiles([4, 1], 4, 64, [64, 16]);
        assert_eq!(odd, ScaleLayout::Copied, "the address");
    }
}
