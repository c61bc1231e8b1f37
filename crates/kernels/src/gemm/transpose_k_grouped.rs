//! K-grouped transpose of FP8 operands: from one matrix `[K, rows]` of all groups to one K-major matrix for each group,
//! as [`crate::gemm::scheduler::k_grouped`] has them.
//!
//! Only the device knows where groups are. A block takes a tile of 128 by 128 bytes, as in [`crate::gemm::transpose`];
//! the tiles of a group along K are its blocks of scales, so that how many there are in all is known before. The first
//! block also writes the K of each group as it was found, within the capacity: that is what the GEMM reads.

use oxigemm_ptx::{BuildError, Global, Kernel, Module, U32};

use crate::arch::Arch;
use crate::common::{BLOCK_K, WARP};
use crate::gemm::scheduler::k_grouped::{KGroupNumbers, KGroupTable, PITCH_UNIT, table_bytes};
use crate::gemm::transpose::{ResultMatrix, SourceMatrix, THREADS, TILE, transpose_tile};

/// The kernel's name, behind that of its architecture.
pub const NAME: &str = "fp8_transpose_k_grouped";

/// Threads of a block.
pub const fn threads() -> u32 {
    THREADS
}

/// Bytes of dynamic shared memory for so many groups.
pub const fn shared_bytes(groups: u32) -> u32 {
    TILE * TILE + table_bytes(groups, true)
}

/// Tiles of an operand with so many rows, next to each other.
pub const fn tiles_across(rows: u32) -> u32 {
    rows.div_ceil(TILE)
}

/// The K of all groups together in the result, each rounded up: for `groups` groups that had `extent` before.
pub const fn result_extent(extent: u64, groups: u32) -> u64 {
    let unit = PITCH_UNIT as u64;
    (extent + groups as u64 * (unit - 1)) / unit * unit
}

/// An operand inside the kernel.
#[derive(Clone, Copy)]
struct Operand<'k> {
    from: Global<'k>,
    to: Global<'k>,
    /// Its M or N, and from one step of K to the next.
    rows: U32<'k>,
    pitch: U32<'k>,
}

impl<'k> Operand<'k> {
    fn declare(k: &'k Kernel, name: &str) -> Self {
        Operand {
            from: k.param_pointer(&format!("{name}_from")),
            to: k.param_pointer(&format!("{name}_to")),
            rows: k.param(&format!("{name}_rows")),
            pitch: k.param(&format!("{name}_pitch")),
        }
    }
}

/// Builds the kernel for an architecture. Its parameters: the numbers, where to write those that were found, A and B (from, to, rows,
/// pitch), how many groups there are, their K together, and their blocks of scales.
pub fn build(arch: Arch) -> Result<Module, BuildError> {
    let k = &arch.kernel(NAME).threads(THREADS);
    let (ks, found) = (k.param_pointer("ks"), k.param_pointer("found"));
    let [a, b] = ["a", "b"].map(|name| Operand::declare(k, name));
    let (groups, extent) = (k.param("groups"), k.param("extent"));
    let numbers = KGroupNumbers { ks, groups, extent, alignment: None };
    let blocks: U32<'_> = k.param("blocks");
    let tile = k.dynamic_shared();
    k.name_shared("tile", 0, TILE * TILE, 1);
    let table = KGroupTable::new(numbers, tile.at(TILE * TILE), 1, Some((blocks, BLOCK_K)));
    k.grid_dependency_wait();
    // The next kernel waits for all of this, and may set itself up meanwhile.
    k.launch_dependents();
    table.build();

    let across = [a, b].map(|operand| operand.rows.div_ceil(TILE));
    let index = k.block_index(0);
    let block = index / (across[0] + across[1]);
    let column = index - block * (across[0] + across[1]);
    k.if_(index.eq(0), || {
        k.for_(k.thread_index(), numbers.groups, THREADS, |group| {
            found.at(group.widening_mul(4)).store(table.range(group).k);
        });
    });
    let group = table.group_of_block(block);
    let range = table.range(group);
    // What the groups before it take in the result.
    let before = k.var(0u32);
    k.for_(k.lane(), group, WARP, |other| {
        before.set(before.live() + pitch(table.range(other).k));
    });
    k.sync_warp();
    let before = k.warp_sum(before.get());
    let line = (block - range.first_block) * BLOCK_K;
    let transpose = |operand: &Operand<'_>, column: U32<'_>| {
        let from = SourceMatrix {
            from: operand.from.at(range.start.widening_mul(operand.pitch)),
            pitch: operand.pitch,
            lines: range.k,
            columns: operand.rows,
        };
        let to = ResultMatrix {
            to: operand.to.at(before.widening_mul(operand.rows)),
            pitch: pitch(range.k),
            rows: operand.rows,
            end: Some(pitch(range.k)),
        };
        transpose_tile(k, &from, &to, [line, column * TILE], tile);
    };
    // More blocks of scales than the numbers on the device have leave some blocks without a tile.
    k.if_(line.lt(range.k), || {
        k.if_else(column.lt(across[0]), || transpose(&a, column), || transpose(&b, column - across[0]));
    });
    k.finish()
}

/// From one row of a group's result to the next.
fn pitch(depth: U32<'_>) -> U32<'_> {
    depth.div_ceil(PITCH_UNIT) * PITCH_UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_has_room_for_every_way_to_share_k_out() {
        for (extent, groups) in [(0u64, 1u32), (1, 1), (16, 1), (17, 3), (100, 7), (4096, 64)] {
            // As many groups as can be of 1, which are rounded up the most; what is left belongs to the last.
            let ones = extent.min(u64::from(groups) - 1);
            let needed = ones * 16 + (extent - ones).next_multiple_of(16);
            assert!(needed <= result_extent(extent, groups), "{extent} of {groups}");
        }
    }
}
