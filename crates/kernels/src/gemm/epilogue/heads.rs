//! Columns of D that are skipped in the middle of every head.

use oxigemm_ptx::U32;

/// Of every head so many columns to the left, as many in the middle that are skipped, and the rest.
#[derive(Clone, Copy)]
pub struct Heads<'k> {
    pub(crate) left: U32<'k>,
    pub(crate) mid: U32<'k>,
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
