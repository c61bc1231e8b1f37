//! K-grouped GEMM: the GEMMs of one launch share M and N, each with a K of its own.
//!
//! Only the device knows each K, so that a captured graph can be launched again with others. Every block of the grid
//! reads them when it starts and lays a table out in shared memory: of each group its K, where its operands start, and
//! where its scales do. All groups have the same tiles, so an index in the order of all tiles leads to a group by
//! division.
//!
//! K-major FP8 and FP4 operands of a group are two contiguous matrices of `[rows, K]`, each behind that of the group before.
//! Others are matrices of all groups, of which each has a range along K.

use crate::common::params::kernel_params;
use crate::gemm::scheduler::m_grouped::{exclusive_scan, groups_of_lane, last_not_above};
use oxigemm_ptx::{Global, I32, Kernel, Shared, U32, U64};

/// Bytes that rows of a group's FP8 operands are rounded up to a multiple of: TMA reads them.
pub const PITCH_UNIT: u32 = 16;

/// Capacity of the operands of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KCapacity {
    /// The K of all groups together.
    pub extent: u32,
    /// What the K of each group is rounded up to: [`PITCH_UNIT`] or [`Operands::k_unit`].
    ///
    /// [`Operands::k_unit`]: crate::gemm::operand::f16::Operands::k_unit
    pub unit: u32,
    /// Blocks of scales, and the K of each, where there are scales.
    pub scales: Option<(u32, u32)>,
}

/// Range of a group along K, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KGroup {
    /// Its K.
    pub k: u32,
    /// The K of all groups before it, each rounded up to the [`unit`](KCapacity::unit).
    pub start: u32,
    /// Blocks of scales before its first, where there are scales.
    pub first_block: u32,
}

/// Groups with these K, as the kernel finds them. Numbers below 0 count as 0; what exceeds the capacity is left out.
///
/// ```
/// use oxigemm_kernels::gemm::scheduler::k_grouped::{KGroup, KCapacity, k_groups};
///
/// let capacity = KCapacity { extent: 384, unit: 16, scales: Some((3, 128)) };
/// let found = k_groups(&[100, -1, 256, 999], &capacity);
/// assert_eq!(found[0], KGroup { k: 100, start: 0, first_block: 0 });
/// assert_eq!(found[1], KGroup { k: 0, start: 112, first_block: 1 });
/// assert_eq!(found[2], KGroup { k: 256, start: 112, first_block: 1 });
/// assert_eq!(found[3], KGroup { k: 0, start: 368, first_block: 3 });
/// ```
pub fn k_groups(ks: &[i32], capacity: &KCapacity) -> Vec<KGroup> {
    let (mut start, mut first_block) = (0u32, 0u32);
    let place = |number: &i32| {
        let k = u32::try_from(*number).unwrap_or(0).min(capacity.extent);
        let fitting = k.min(capacity.extent - start);
        let scaled = capacity.scales.map_or(fitting, |(blocks, block_k)| (blocks - first_block) * block_k);
        let group = KGroup { k: fitting.min(scaled), start, first_block };
        start = (start + k.next_multiple_of(capacity.unit)).min(capacity.extent);
        if let Some((blocks, block_k)) = capacity.scales {
            first_block = (first_block + k.div_ceil(block_k)).min(blocks);
        }
        group
    };
    ks.iter().map(place).collect()
}

/// The K of groups of which only the ends are known: a group begins where the one before it ends, rounded up to the
/// alignment, a power of two. The [`unit`](KCapacity::unit) is then the alignment. Ends do not decrease.
///
/// ```
/// use oxigemm_kernels::gemm::scheduler::k_grouped::ks_of_ends;
///
/// assert_eq!(ks_of_ends(&[100, 100, 200, 256], 64), [100, 0, 72, 0]);
/// ```
pub fn ks_of_ends(ends: &[i32], alignment: u32) -> Vec<i32> {
    let begin =
        |before: &i32| before.max(&0).cast_unsigned().saturating_add(alignment - 1) & !(alignment - 1);
    let begins = [0].into_iter().chain(ends.iter().map(begin));
    let k = |(end, begin): (&i32, u32)| end.max(&0).cast_unsigned().saturating_sub(begin).cast_signed();
    ends.iter().zip(begins).map(k).collect()
}

/// Arguments of a k-grouped kernel, behind those of every GEMM.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KGroupedArgs {
    /// Address of the K of each group, or of its end, of type `i32`.
    pub ks: u64,
    /// Address of [`MAP_WORKSPACE_BYTES`](crate::gemm::dynamic_tensor_maps::MAP_WORKSPACE_BYTES), zero before the
    /// first launch.
    pub map_workspace: u64,
    /// Address of A.
    pub a: u64,
    /// Address of B.
    pub b: u64,
    /// How many groups there are.
    pub groups: u32,
    /// The K of all groups together that the operands hold; of FP8 a multiple of [`PITCH_UNIT`].
    pub extent: u32,
    /// Rows of D from one group to the next.
    pub d_slab: u32,
    /// Whether D is left as it is where K is 0: what is added is D itself.
    pub keeps_empty: u32,
    /// Alignment of the first K of a group whose end is given: see [`ks_of_ends`]. 0 where its K is.
    pub alignment: u32,
}

kernel_params! {
    struct KGroupedWords from KGroupedArgs {
        ks: Pointer = ks,
        map_workspace: Pointer = map_workspace,
        address_of_a: U64 = a,
        address_of_b: U64 = b,
        groups: U32 = groups,
        extent: U32 = extent,
        d_slab: U32 = d_slab,
        keeps_empty: U32 = keeps_empty,
        alignment: U32 = alignment,
    }
}

/// Bytes of the group table in shared memory, for operands with or without scales.
pub const fn table_bytes(groups: u32, has_scales: bool) -> u32 {
    (if has_scales { 3 } else { 2 }) * groups * 4
}

/// The same arguments inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct KGroupedParams<'k> {
    numbers: KGroupNumbers<'k>,
    pub map_workspace: Global<'k>,
    /// Where the operands are.
    pub operands: [U64<'k>; 2],
    d_slab: U32<'k>,
    pub keeps_empty: U32<'k>,
}

/// Numbers that describe the groups.
#[derive(Clone, Copy)]
pub(crate) struct KGroupNumbers<'k> {
    /// Where the K of each is.
    pub ks: Global<'k>,
    /// How many there are.
    pub groups: U32<'k>,
    /// As in [`KCapacity`].
    pub extent: U32<'k>,
    /// Alignment of groups whose ends are given, 0 where their K are; none where that is always so.
    pub alignment: Option<U32<'k>>,
}

impl<'k> KGroupedParams<'k> {
    /// Declares the parameters of [`KGroupedArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        let words = KGroupedWords::declare(k, "");
        KGroupedParams {
            numbers: KGroupNumbers {
                ks: words.ks,
                groups: words.groups,
                extent: words.extent,
                alignment: Some(words.alignment),
            },
            map_workspace: words.map_workspace,
            operands: [words.address_of_a, words.address_of_b],
            d_slab: words.d_slab,
            keeps_empty: words.keeps_empty,
        }
    }
}

/// Group of a tile.
#[derive(Clone, Copy)]
pub(crate) struct TileKGroup<'k> {
    /// The group.
    pub group: U32<'k>,
    /// Its K.
    pub k: U32<'k>,
    /// As in [`KGroup`].
    pub start: U32<'k>,
    /// As in [`KGroup`].
    pub first_block: U32<'k>,
    /// The row of D where the group starts.
    pub d_row: U32<'k>,
}

/// Groups of a k-grouped kernel: their table in shared memory, and the parameters.
#[derive(Clone, Copy)]
pub(crate) struct KGroups<'k> {
    table: KGroupTable<'k>,
    pub params: KGroupedParams<'k>,
}

impl<'k> KGroups<'k> {
    /// Groups that begin at multiples of `unit`, with the table at `table`, and with blocks of scales, and the K of each,
    /// where there are some.
    pub fn new(
        params: KGroupedParams<'k>,
        table: Shared<'k>,
        unit: u32,
        scales: Option<(U32<'k>, u32)>,
    ) -> Self {
        KGroups { table: KGroupTable::new(params.numbers, table, unit, scales), params }
    }

    /// The K of all groups together that the operands hold.
    pub fn extent(&self) -> U32<'k> {
        self.params.numbers.extent
    }

    /// How many groups there are.
    pub fn count(&self) -> U32<'k> {
        self.params.numbers.groups
    }

    /// Builds the table: all threads of the block take part.
    pub fn build(&self) {
        self.table.build();
    }

    /// A group, as its tiles have it.
    pub fn tile_group(&self, group: U32<'k>) -> TileKGroup<'k> {
        let KRange { k, start, first_block } = self.table.range(group);
        TileKGroup { group, k, start, first_block, d_row: group * self.params.d_slab }
    }
}

/// Group table in a block's shared memory.
#[derive(Clone, Copy)]
pub(crate) struct KGroupTable<'k> {
    k: &'k Kernel,
    numbers: KGroupNumbers<'k>,
    /// As in [`KCapacity`].
    unit: u32,
    scales: Option<ScaleTable<'k>>,
    depth: Shared<'k>,
    start: Shared<'k>,
}

/// Where the scales of each group begin.
#[derive(Clone, Copy)]
struct ScaleTable<'k> {
    /// Blocks of scales, and the K of each.
    blocks: U32<'k>,
    block_k: u32,
    first_block: Shared<'k>,
}

/// A [`KGroup`] inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct KRange<'k> {
    pub k: U32<'k>,
    pub start: U32<'k>,
    pub first_block: U32<'k>,
}

impl<'k> KGroupTable<'k> {
    /// Table of groups that begin at multiples of `unit`, with blocks of scales, and the K of each, where there are
    /// some.
    pub fn new(
        numbers: KGroupNumbers<'k>,
        table: Shared<'k>,
        unit: u32,
        scales: Option<(U32<'k>, u32)>,
    ) -> Self {
        let (k, bytes) = (numbers.groups.kernel(), numbers.groups * 4);
        let start = table.at(bytes);
        let scales = scales.map(|(blocks, block_k)| {
            let first_block = start.at(bytes);
            ScaleTable { blocks, block_k, first_block }
        });
        KGroupTable { k, numbers, unit, scales, depth: table, start }
    }

    /// Builds it: one warp does, and all threads of the block take part.
    pub fn build(&self) {
        let k = self.k;
        k.if_(k.warp_index().eq(0), || self.place_in_order(k.lane()));
        k.sync_warp();
        k.sync_threads();
    }

    fn place_in_order(&self, lane: U32<'k>) {
        let (k, p) = (self.k, self.numbers);
        let (first, last) = groups_of_lane(lane, p.groups);
        let given = |group: U32<'k>| {
            let number: I32<'k> = p.ks.at(group.widening_mul(4)).load();
            number.max(0).bitcast::<u32>().min(p.extent)
        };
        let number = |group: U32<'k>| {
            let Some(alignment) = p.alignment else { return given(group) };
            // Where the K of groups is given the alignment is 0, and so is `begin`: an end then is a K.
            let before = given(group.max(1) - 1u32);
            let begin = (before + (alignment - 1u32)) & (k.constant(0u32) - alignment);
            let (end, begin) = (given(group), group.eq(0).select(0u32, begin));
            end - begin.min(end)
        };
        // Both are powers of two.
        let unit = p.alignment.map(|alignment| alignment.max(self.unit));
        let padded = |depth: U32<'k>| match unit {
            None => depth.div_ceil(self.unit) * self.unit,
            Some(unit) => (depth + (unit - 1u32)) & (k.constant(0u32) - unit),
        };
        let (start, extent) = (k.var(0u32), p.extent);
        let scales = self.scales.map(|scales| (scales, k.var(0u32)));
        let pass = |depth: U32<'k>| {
            start.set((start.live() + padded(depth)).min(extent));
            if let Some((scales, block)) = scales {
                block.set((block.live() + depth.div_ceil(scales.block_k)).min(scales.blocks));
            }
        };
        k.for_(first, last, 1, |group| pass(number(group)));
        start.set(exclusive_scan(k, lane, start.get(), |a, b| (a + b).min(extent)));
        if let Some((scales, block)) = scales {
            block.set(exclusive_scan(k, lane, block.get(), |a, b| (a + b).min(scales.blocks)));
        }
        k.for_(first, last, 1, |group| {
            let depth = number(group);
            let (start, block) = (start.get(), scales.map(|(scales, block)| (scales, block.get())));
            let scaled = block.map(|(scales, block)| (scales.blocks - block) * scales.block_k);
            let to = self.depth.at(group * 4);
            let fitting = depth.min(extent - start);
            to.store(scaled.map_or(fitting, |scaled| fitting.min(scaled)));
            self.start.at(group * 4).store(start);
            if let Some((scales, block)) = block {
                scales.first_block.at(group * 4).store(block);
            }
            pass(depth);
        });
    }

    /// Range of a group.
    pub fn range(&self, group: U32<'k>) -> KRange<'k> {
        let of = |table: Shared<'k>| table.at(group * 4).load::<u32>();
        KRange {
            k: of(self.depth),
            start: of(self.start),
            first_block: self.scales.map_or_else(|| self.k.constant(0), |scales| of(scales.first_block)),
        }
    }

    /// The group that a block of scales belongs to; the last, if none does.
    pub fn group_of_block(&self, block: U32<'k>) -> U32<'k> {
        let scales = self.scales.expect("there are scales");
        last_not_above(self.k, scales.first_block, self.numbers.groups, block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_group_exceeds_the_operands() {
        let numbers = [i32::MIN, -1, 0, 1, 15, 16, 17, 128, 129, 1000, i32::MAX];
        let scales = [None, Some(0), Some(1), Some(5), Some(9)];
        for extent in [0, 16, 160, 1024] {
            for (unit, blocks) in scales.into_iter().flat_map(|blocks| [(1, blocks), (PITCH_UNIT, blocks)]) {
                let capacity = KCapacity { extent, unit, scales: blocks.map(|blocks| (blocks, 128)) };
                for shift in 0..numbers.len() {
                    let ks: Vec<i32> = (0..8).map(|i| numbers[(i * 3 + shift) % numbers.len()]).collect();
                    for group in k_groups(&ks, &capacity) {
                        let KGroup { k, start, first_block } = group;
                        assert!(start.is_multiple_of(unit));
                        assert!(start + k.next_multiple_of(unit) <= extent, "{ks:?} {group:?}");
                        let before = first_block + k.div_ceil(128);
                        assert!(blocks.is_none_or(|blocks| before <= blocks), "{ks:?} {group:?}");
                    }
                }
            }
        }
    }
}
