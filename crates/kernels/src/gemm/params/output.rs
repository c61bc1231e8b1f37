//! Output parameters: D, C, their pitches, flags, and the columns that heads leave out.

use crate::gemm::operand::f16::Half;
use oxigemm_ptx::tma::TensorMap;
use oxigemm_ptx::{F32, Global, Pred, U32};

/// Output parameters inside a kernel, shared by every family.
#[derive(Clone, Copy)]
pub struct OutputParams<'k> {
    /// Tensor map of D for plain output: see [`Panels::MAP_TILE`](crate::gemm::epilogue::Panels::MAP_TILE).
    pub d_map: TensorMap<'k>,
    /// D.
    pub d: Global<'k>,
    /// C, or null.
    pub c: Global<'k>,
    /// Elements from one row of D to the next.
    pub d_pitch: U32<'k>,
    /// Elements from one row of C to the next.
    pub c_pitch: U32<'k>,
    /// Rows of D (M).
    pub rows: U32<'k>,
    /// Columns of D (N).
    pub columns: U32<'k>,
    /// See [`OutputFlags`].
    pub flags: U32<'k>,
    /// Type of D and C where they are not FP32.
    pub half: Half,
    /// Factor of C, where the kernel has one.
    pub beta: Option<F32<'k>>,
    /// Head splits of D's columns, where the kernel has them.
    pub heads: Option<Heads<'k>>,
}

/// Bits of the `flags` argument.
pub struct OutputFlags;

impl OutputFlags {
    /// D and C are FP32, not BF16.
    pub const F32: u32 = 1;
    /// C is added.
    pub const ADDEND: u32 = 2;
    /// Four neighbours of D, and of C if there is one, lie in one aligned vector.
    pub const VECTORS: u32 = 4;
    /// TMA can store D: 16 bits without addend, N a multiple of 8, rows aligned to 16 bytes.
    pub const PLAIN: u32 = 8;
}

impl<'k> OutputParams<'k> {
    /// The column of D that a column of the product is.
    pub(crate) fn column_of_d(&self, column: U32<'k>) -> U32<'k> {
        self.heads.map_or(column, |heads| heads.column(column))
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> Pred<'k> {
        (self.flags & flag).ne(0)
    }
}

/// Head splits: every head has columns to the left, columns in the middle that D skips, and the rest.
#[derive(Clone, Copy)]
pub struct Heads<'k> {
    pub(crate) left: U32<'k>,
    pub(crate) mid: U32<'k>,
    /// Columns of a head that are computed.
    pub(crate) computed: U32<'k>,
}

impl<'k> Heads<'k> {
    /// The column of D that a column of the product is.
    pub(crate) fn column(&self, column: U32<'k>) -> U32<'k> {
        let head = column / self.computed;
        let right = (column - head * self.computed).ge(self.left).select::<u32>(1, 0);
        column + (head + right) * self.mid
    }
}
