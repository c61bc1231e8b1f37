//! Shapes of GEMMs: dense, m-grouped and k-grouped.

use crate::common::BLOCK_K;

/// The shape of one GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmShape {
    /// Rows of A and D.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
}

impl GemmShape {
    /// 128-wide blocks of K, the remainder included.
    pub fn k_blocks(&self) -> u32 {
        self.k.div_ceil(BLOCK_K)
    }
}

/// The shape of an m-grouped GEMM, or of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MGroupedShape {
    /// Number of groups.
    pub groups: u32,
    /// Slabs of A and D: one for each group (masked), or one for all groups (contiguous).
    pub slabs: u32,
    /// Rows of a slab.
    pub rows: u32,
    /// Expected rows of a group.
    pub expected: u32,
    /// Rows of a group's B, columns of D.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
}

impl MGroupedShape {
    /// The shape of one slab.
    pub fn slab(&self) -> GemmShape {
        GemmShape { m: self.rows, n: self.n, k: self.k }
    }
}

/// The shape of a k-grouped GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KGroupedShape {
    /// Number of groups.
    pub groups: u32,
    /// Rows of A and of a group's D.
    pub m: u32,
    /// Rows of B, columns of D.
    pub n: u32,
    /// The K of all groups together.
    pub k: u32,
}

impl KGroupedShape {
    /// The shape of one group, if all groups were equal.
    pub fn group(&self) -> GemmShape {
        GemmShape { m: self.m, n: self.n, k: self.k.div_ceil(self.groups.max(1)).max(1) }
    }
}
