//! Groups of rows: where each group of an m-grouped GEMM is.

use oxigemm_kernels::gemm::scheduler::m_grouped::GroupLayout;

use super::super::desc::MGroupedDesc;
use crate::device::DeviceId;
use crate::tensor::Tensor;
use crate::tensor::desc::{Operand, int};
use crate::tensor::dtype::DType;

/// Groups of an m-grouped contiguous GEMM: numbers of type i32 in device memory, which only the kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum GroupedRows<'a> {
    /// `[M]`: the group of each row. Any number that is no group, such as -1, marks a row of none.
    ///
    /// The rows of a group follow each other, and the first is at a multiple of the alignment. Of a group that does
    /// not keep to this, only the rows of one run are computed.
    Ids(&'a Tensor),
    /// `[G]`: of each group the row behind its last. A group starts where the one before ends, rounded up to the
    /// alignment.
    ///
    /// Ends are clamped to `0..=M`. One that does not lie behind the group's start makes the group empty, and moves no
    /// other.
    Ends(&'a Tensor),
}

impl<'a> GroupedRows<'a> {
    fn numbers(&self) -> (GroupLayout, &'static str, &'a Tensor) {
        match *self {
            GroupedRows::Ids(ids) => (GroupLayout::Ids, "ids", ids),
            GroupedRows::Ends(ends) => (GroupLayout::Ends, "ends", ends),
        }
    }
}

/// Groups of rows of an m-grouped GEMM.
#[derive(Clone, Copy, Debug)]
pub enum RowGroups<'a> {
    /// m-grouped contiguous: groups follow each other in one matrix.
    Contiguous {
        /// Rows of each group.
        rows: GroupedRows<'a>,
        /// Alignment of the first row of every group: 1, 16, 32, 64 or 128.
        alignment: usize,
        /// Rows that a group will have, for planning; an equal share of all without it.
        expected_m: Option<usize>,
    },
    /// m-grouped masked: each group has a matrix of its own, of which the first rows count.
    Masked {
        /// `[G]`: rows of each group.
        masked_m: &'a Tensor,
        /// Rows that a group will have, for planning.
        expected_m: usize,
    },
}

impl<'a> RowGroups<'a> {
    /// The numbers that say where groups are.
    pub(crate) fn numbers(&self) -> &'a Tensor {
        match self {
            RowGroups::Contiguous { rows, .. } => rows.numbers().2,
            RowGroups::Masked { masked_m, .. } => masked_m,
        }
    }

    pub(crate) fn describe(&self) -> MGroupedDesc {
        let (layout, name, numbers, alignment, expected) = match *self {
            RowGroups::Contiguous { rows, alignment, expected_m } => {
                let (layout, name, numbers) = rows.numbers();
                (layout, name, numbers, alignment, expected_m)
            }
            RowGroups::Masked { masked_m, expected_m } => {
                (GroupLayout::Counts, "masked_m", masked_m, 1, Some(expected_m))
            }
        };
        let (alignment, expected_m) = (int(alignment), expected.map(int));
        MGroupedDesc { layout, numbers: numbers.describe(name), alignment, expected_m }
    }
}

/// Groups of a k-grouped GEMM: numbers of type i32 in device memory, which only the kernel reads.
#[derive(Clone, Copy, Debug)]
pub enum KGroupNumbers<'a> {
    /// `[G]`: the K of each group.
    Ks(&'a Tensor),
    /// `[G]`: of each group the K behind its last (prefix sums). A group starts where the one before ends, rounded up
    /// to the alignment; what lies between is not read. Ends do not decrease.
    Ends {
        /// The ends.
        ends: &'a Tensor,
        /// Alignment of the first K of every group: 1, 16, 32, 64 or 128; for FP8 operands 16 or more.
        alignment: usize,
    },
}

impl<'a> KGroupNumbers<'a> {
    pub(crate) fn numbers(&self) -> &'a Tensor {
        match self {
            KGroupNumbers::Ks(numbers) | KGroupNumbers::Ends { ends: numbers, .. } => numbers,
        }
    }
}

impl<'a> From<&'a Tensor> for KGroupNumbers<'a> {
    fn from(ks: &'a Tensor) -> KGroupNumbers<'a> {
        KGroupNumbers::Ks(ks)
    }
}

/// Groups of rows of an m-grouped GEMM, as the address of numbers of type i32 in device memory.
#[derive(Clone, Copy, Debug)]
pub enum RawGroups {
    /// m-grouped masked: as [`RowGroups::Masked`].
    Masked {
        /// Address of the counts, one for each group.
        masked_m: u64,
        /// Rows that a group will have, for planning.
        expected_m: usize,
    },
    /// As [`GroupedRows::Ids`].
    Ids {
        /// Address of the ids, one for each row.
        ids: u64,
        /// Alignment of the first row of a group.
        alignment: usize,
        /// Rows that a group will have, for planning.
        expected_m: Option<usize>,
    },
    /// As [`GroupedRows::Ends`].
    Ends {
        /// Address of the ends, one for each group.
        ends: u64,
        /// Alignment of the first row of a group.
        alignment: usize,
        /// Rows that a group will have, for planning.
        expected_m: Option<usize>,
    },
}

impl RawGroups {
    /// Whether each group has a matrix of rows of its own.
    pub(crate) fn are_masked(&self) -> bool {
        matches!(self, RawGroups::Masked { .. })
    }

    /// The description, for so many groups and rows.
    pub(crate) fn describe(&self, [groups, m]: [i64; 2], device: DeviceId) -> MGroupedDesc {
        let (layout, numbers, length, alignment, expected) = match *self {
            RawGroups::Masked { masked_m, expected_m } => {
                (GroupLayout::Counts, ("masked_m", masked_m), groups, 1, Some(expected_m))
            }
            RawGroups::Ids { ids, alignment, expected_m } => {
                (GroupLayout::Ids, ("ids", ids), m, alignment, expected_m)
            }
            RawGroups::Ends { ends, alignment, expected_m } => {
                (GroupLayout::Ends, ("ends", ends), groups, alignment, expected_m)
            }
        };
        MGroupedDesc {
            layout,
            numbers: Operand::new((numbers.0, DType::I32), &[length], &[1], (numbers.1, device)),
            alignment: int(alignment),
            expected_m: expected.map(int),
        }
    }
}
