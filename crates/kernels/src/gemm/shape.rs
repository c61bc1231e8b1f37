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
    /// Rows that a contiguous group likely has where it takes so many with the padding to its alignment: half of the
    /// last alignment is padding, or half of the group where it has only one.
    ///
    /// ```
    /// use oxigemm_kernels::gemm::MGroupedShape;
    ///
    /// assert_eq!(MGroupedShape::likely_rows(1024, 128), 961);
    /// assert_eq!(MGroupedShape::likely_rows(128, 128), 65);
    /// assert_eq!(MGroupedShape::likely_rows(50, 1), 50);
    /// ```
    pub fn likely_rows(padded: u32, alignment: u32) -> u32 {
        padded.saturating_sub(alignment.saturating_sub(1) / 2).max(padded.div_ceil(2))
    }

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
