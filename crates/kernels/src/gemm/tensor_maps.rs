//! Tensor maps of operands and D, as plain numbers: what TMA descriptors are encoded from.

use crate::common::BLOCK_K;
use crate::gemm::epilogue::ROW_BYTES;
use crate::gemm::kind::Operand;
use crate::gemm::launch::Launch;
use crate::gemm::operand::f16::{LINE_BYTES, Major};
use crate::gemm::shape::GemmShape;

/// A tensor map: a matrix in memory, or slabs of it, and the box that one TMA copy moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixMap {
    /// Elements along the contiguous dimension and the other.
    pub dims: [u32; 2],
    /// Elements from one row to the next.
    pub pitch: u64,
    /// Elements of a box along the same dimensions.
    pub tile: [u32; 2],
    /// A dimension of which a box has one or several indices: gates and ups.
    pub parts: Option<Outer>,
    /// A dimension of which a box has one index: groups, or matrices of a batch.
    pub slabs: Option<Outer>,
}

/// A dimension beyond those of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// Number of matrices.
    pub count: u32,
    /// Elements from one matrix to the next.
    pub pitch: u64,
    /// Matrices of which a box has rows.
    pub tile: u32,
}

impl MatrixMap {
    pub(crate) fn new(dims: [u32; 2], pitch: u64, tile: [u32; 2]) -> MatrixMap {
        MatrixMap { dims, pitch, tile, parts: None, slabs: None }
    }

    /// The map of the same operand where it is contiguous along its rows, with at most `widest` of them in a box.
    #[must_use]
    pub fn across(self, widest: u32) -> MatrixMap {
        let ([columns, rows], [width, height]) = (self.dims, self.tile);
        MatrixMap { dims: [rows, columns], tile: [height.min(widest), width], ..self }
    }

    /// The same matrix `count` times, `pitch` elements apart.
    #[must_use]
    pub fn in_slabs(self, count: u32, pitch: u64) -> MatrixMap {
        MatrixMap { slabs: Some(Outer { count, pitch, tile: 1 }), ..self }
    }

    /// A matrix whose rows are those of `count` contiguous parts, of `of_tile` of which a box has the same rows;
    /// unchanged where that is 0.
    #[must_use]
    pub fn in_parts(self, count: u32, of_tile: u32) -> MatrixMap {
        if of_tile == 0 {
            return self;
        }
        let [columns, rows] = [self.dims[0], self.dims[1] / count];
        let parts = Some(Outer { count, pitch: u64::from(rows) * self.pitch, tile: of_tile });
        MatrixMap { dims: [columns, rows], parts, ..self }
    }

    /// The dimensions beyond those of one matrix.
    pub fn outer(&self) -> impl Iterator<Item = Outer> + Clone {
        self.parts.into_iter().chain(self.slabs)
    }
}

impl Launch {
    /// The map of A, of bytes with 128-byte swizzle.
    pub fn map_a(&self, shape: GemmShape, pitch: u64) -> MatrixMap {
        MatrixMap::new([shape.k, shape.m], pitch, [BLOCK_K, self.tile_a])
    }

    /// The map of B, of bytes with 128-byte swizzle.
    pub fn map_b(&self, shape: GemmShape, pitch: u64) -> MatrixMap {
        MatrixMap::new([shape.k, shape.n], pitch, [BLOCK_K, self.tile_b])
    }

    /// The map of a B of packed FP4 codes that a kernel widens, of bytes with 64-byte swizzle.
    pub fn map_packed_b(&self, shape: GemmShape, pitch: u64) -> MatrixMap {
        MatrixMap::new([shape.k.div_ceil(2), shape.n], pitch, [BLOCK_K / 2, self.tile_b])
    }

    /// The map of an operand of 16 or 32 bits: `rows` of M or N by `k`, of which a box has `lines` of 128 bytes.
    pub fn map_lines(&self, operand: Operand, [rows, k]: [u32; 2], pitch: u64, lines: u32) -> MatrixMap {
        let dims = match operand.major {
            Major::K => [k, rows],
            Major::MN => [rows, k],
        };
        MatrixMap::new(dims, pitch, [LINE_BYTES * 8 / operand.element.bits(), lines])
    }

    /// The map of a plain D, of elements of `size` bytes with 128-byte swizzle.
    pub fn map_d(&self, shape: GemmShape, pitch: u64, size: u32) -> MatrixMap {
        MatrixMap::new([shape.n, shape.m], pitch, [ROW_BYTES / size, self.tile_d])
    }
}
