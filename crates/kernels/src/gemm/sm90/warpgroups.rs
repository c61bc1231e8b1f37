//! Warpgroups of the persistent kernels, and which part of a tile each computes.

use crate::common::WARPGROUP;
use crate::gemm::operand::gate_up::GateUpRows;
use oxigemm_ptx::U32;

/// Consumer (math) warpgroups; one more has the other roles.
pub(crate) const MATH_WARPGROUPS: u32 = 2;
pub(crate) const MATH_WARPS: u32 = MATH_WARPGROUPS * 4;
/// Threads of a block.
pub(crate) const THREADS: u32 = (MATH_WARPGROUPS + 1) * WARPGROUP;
/// Registers of a producer thread and of a consumer thread: together what the block was launched with.
pub(crate) const PRODUCER_REGISTERS: u32 = 40;
pub(crate) const MATH_REGISTERS: u32 = 232;
/// Rows from one M-subtile of a warpgroup to its next: M-subtiles alternate between the warpgroups down a tile. So
/// where only the upper half of a tile has rows, both warpgroups have one M-subtile to compute.
pub(crate) const M_SUBTILE_STRIDE: u32 = MATH_WARPGROUPS * 64;

/// Tile as its two consumer warpgroups divide it: each has half of the rows, in M-subtiles of 64, or, of 64 rows, half
/// of the columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerTile {
    pub block_m: u32,
    pub block_n: u32,
}

impl ConsumerTile {
    /// Warpgroups side by side along N: both, where one of them covers all rows.
    const fn warpgroups_n(&self) -> u32 {
        if self.block_m == 64 { MATH_WARPGROUPS } else { 1 }
    }

    /// Columns of a warpgroup's products.
    pub const fn columns(&self) -> u32 {
        self.block_n / self.warpgroups_n()
    }

    /// M-subtiles of a warpgroup: 64-row products of each stage.
    pub const fn m_subtiles(&self) -> u32 {
        (self.block_m * self.warpgroups_n()) / M_SUBTILE_STRIDE
    }

    /// Rows of A that one tensor load takes in m-grouped kernels: not too many, because those behind a group's last are
    /// left out by whole loads. Every load takes time of the producer thread.
    pub const fn group_box_rows(&self) -> u32 {
        if self.block_m == 64 { 32 } else { 128 }
    }

    /// The first row and column of a warpgroup's part.
    pub fn offset_of<'k>(&self, warpgroup: U32<'k>) -> [U32<'k>; 2] {
        let zero = warpgroup.kernel().constant(0);
        match self.warpgroups_n() {
            1 => [warpgroup * 64, zero],
            _ => [zero, warpgroup * self.columns()],
        }
    }

    /// The same in D, where a tile's [rows of B](GateUpRows) may not be contiguous.
    pub fn d_offset_of<'k>(&self, warpgroup: U32<'k>, gate_up: Option<GateUpRows<'k>>) -> [U32<'k>; 2] {
        let [row, column] = self.offset_of(warpgroup);
        match (gate_up, column.as_constant()) {
            (Some(gate_up), None) => [row, warpgroup * gate_up.stride],
            _ => [row, column],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_parts_make_a_tile() {
        for (block_m, block_n) in [(256, 128), (128, 176), (64, 256)] {
            let tile = ConsumerTile { block_m, block_n };
            assert_eq!(
                MATH_WARPGROUPS * tile.m_subtiles() * 64 * tile.columns(),
                block_m * block_n,
                "{tile:?}"
            );
        }
    }

    #[test]
    fn the_register_split_is_that_of_the_launch() {
        let launched = 65_536 / THREADS / 8 * 8;
        assert_eq!(MATH_WARPGROUPS * MATH_REGISTERS + PRODUCER_REGISTERS, (MATH_WARPGROUPS + 1) * launched);
    }
}
