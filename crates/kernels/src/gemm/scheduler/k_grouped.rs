//! Groups along K: matrix products of one launch that share M and N, each with a K of its own.
//!
//! How large each K is only the device knows, so that a captured graph can be launched again with others. Every block
//! of the grid reads that when it starts and lays a table out in shared memory: of each group its K, where its
//! operands start, and where its scales do. All groups have the same tiles, so a position in the order of all tiles
//! leads to a group by division.
//!
//! FP8 operands of a group are two matrices of `[rows, K]` without gaps, one behind those of the group before. So they
//! differ in pitch, and a tensor map serves one group. Those of 16 bits are matrices of all groups, of which each has a
//! range along K: one map serves all, but where K is no whole number of stages, the last one needs a map that ends with
//! the group. `MapRing` makes such maps on the way, in memory that a block has to itself.

use crate::gemm::scheduler::m_grouped::{exclusive_scan, groups_of_lane, last_not_above};
use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::{MapField, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Global, I32, Kernel, Scope, Shared, U32, U64, Var};
use std::ffi::c_void;

/// Rows of a group's FP8 operands are rounded up to a multiple of this many bytes: the copy engine reads them.
pub const PITCH_UNIT: u32 = 16;

/// What there is room for in the operands of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KRoom {
    /// The K of all groups together.
    pub extent: u32,
    /// What the K of each group is rounded up to: [`PITCH_UNIT`] or [`Operands::k_unit`].
    ///
    /// [`Operands::k_unit`]: crate::gemm::operand::f16::Operands::k_unit
    pub unit: u32,
    /// Blocks of scales, and the K of each, where there are scales.
    pub scales: Option<(u32, u32)>,
}

/// A group's place, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KGroup {
    /// Its K.
    pub k: u32,
    /// The K of all groups before it, each rounded up to the [`unit`](KRoom::unit).
    pub start: u32,
    /// Blocks of scales before its first, where there are scales.
    pub first_block: u32,
}

/// The groups of these numbers, as the kernel finds them. Numbers below 0 count as 0; what there is no room for is left
/// out.
///
/// ```
/// use oxigemm_kernels::gemm::scheduler::k_grouped::{KGroup, KRoom, k_groups};
///
/// let room = KRoom { extent: 384, unit: 16, scales: Some((3, 128)) };
/// let found = k_groups(&[100, -1, 256, 999], &room);
/// assert_eq!(found[0], KGroup { k: 100, start: 0, first_block: 0 });
/// assert_eq!(found[1], KGroup { k: 0, start: 112, first_block: 1 });
/// assert_eq!(found[2], KGroup { k: 256, start: 112, first_block: 1 });
/// assert_eq!(found[3], KGroup { k: 0, start: 368, first_block: 3 });
/// ```
pub fn k_groups(ks: &[i32], room: &KRoom) -> Vec<KGroup> {
    let (mut start, mut first_block) = (0u32, 0u32);
    let place = |number: &i32| {
        let k = u32::try_from(*number).unwrap_or(0).min(room.extent);
        let fitting = k.min(room.extent - start);
        let scaled = room.scales.map_or(fitting, |(blocks, block_k)| (blocks - first_block) * block_k);
        let group = KGroup { k: fitting.min(scaled), start, first_block };
        start = (start + k.next_multiple_of(room.unit)).min(room.extent);
        if let Some((blocks, block_k)) = room.scales {
            first_block = (first_block + k.div_ceil(block_k)).min(blocks);
        }
        group
    };
    ks.iter().map(place).collect()
}

/// What the host passes to a kernel with groups along K beside the arguments of the product, in the order of the
/// parameters.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KGroupArgs {
    /// Address of the K of each group, of type `i32`.
    pub ks: u64,
    /// Address of [`MAP_ROOM_BYTES`], zero before the first launch.
    pub map_room: u64,
    /// Address of A.
    pub a: u64,
    /// Address of B.
    pub b: u64,
    /// How many groups there are.
    pub groups: u32,
    /// The K of all groups together that the operands have room for; of FP8 a multiple of [`PITCH_UNIT`].
    pub extent: u32,
    /// Rows of D from one group to the next.
    pub d_slab: u32,
    /// Whether D is left as it is where K is 0: what is added is D itself.
    pub keeps_empty: u32,
}

impl KGroupArgs {
    /// How many parameters they are.
    pub const COUNT: usize = 8;

    /// A pointer to each argument, as a launch takes them.
    pub fn pointers(&self) -> [*mut c_void; Self::COUNT] {
        fn to<T>(value: &T) -> *mut c_void {
            std::ptr::from_ref(value).cast_mut().cast()
        }
        [
            to(&self.ks),
            to(&self.map_room),
            to(&self.a),
            to(&self.b),
            to(&self.groups),
            to(&self.extent),
            to(&self.d_slab),
            to(&self.keeps_empty),
        ]
    }
}

/// Bytes of the table of this many groups, whose operands have scales or not.
pub const fn table_bytes(groups: u32, has_scales: bool) -> u32 {
    (if has_scales { 3 } else { 2 }) * groups * 4
}

/// The same arguments inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct KGroupParams<'k> {
    numbers: KNumbers<'k>,
    map_room: Global<'k>,
    /// Where the operands are.
    operands: [U64<'k>; 2],
    d_slab: U32<'k>,
    pub keeps_empty: U32<'k>,
}

/// What a kernel is told of groups.
#[derive(Clone, Copy)]
pub(crate) struct KNumbers<'k> {
    /// Where the K of each is.
    pub ks: Global<'k>,
    /// How many there are.
    pub groups: U32<'k>,
    /// As in [`KRoom`].
    pub extent: U32<'k>,
}

impl<'k> KGroupParams<'k> {
    /// Declares them in the order of [`KGroupArgs`].
    pub fn declare(k: &'k Kernel) -> Self {
        let (ks, map_room) = (k.param_pointer("ks"), k.param_pointer("map_room"));
        let operands = [k.param("address_of_a"), k.param("address_of_b")];
        KGroupParams {
            numbers: KNumbers { ks, groups: k.param("groups"), extent: k.param("extent") },
            map_room,
            operands,
            d_slab: k.param("d_slab"),
            keeps_empty: k.param("keeps_empty"),
        }
    }
}

/// A tile's place in its group.
#[derive(Clone, Copy)]
pub(crate) struct KGroupPlace<'k> {
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

/// The table of groups in a block's shared memory, and where their output is.
#[derive(Clone, Copy)]
pub(crate) struct KGroups<'k> {
    table: KTable<'k>,
    pub params: KGroupParams<'k>,
}

impl<'k> KGroups<'k> {
    /// The table at `table` of groups that are ranges of their operands, which begin at multiples of `unit`.
    pub fn of_ranges(params: KGroupParams<'k>, table: Shared<'k>, unit: u32) -> Self {
        KGroups { table: KTable::new(params.numbers, table, unit, None), params }
    }

    /// The same of groups with matrices of their own, and `blocks` blocks of scales of `block_k` each.
    pub fn with_scales(params: KGroupParams<'k>, table: Shared<'k>, blocks: (U32<'k>, u32)) -> Self {
        KGroups { table: KTable::new(params.numbers, table, PITCH_UNIT, Some(blocks)), params }
    }

    /// How many groups there are.
    pub fn count(&self) -> U32<'k> {
        self.params.numbers.groups
    }

    /// Fills the table in: all threads of the block take part.
    pub fn find(&self) {
        self.table.find();
    }

    /// The place of a group's tiles.
    pub fn place(&self, group: U32<'k>) -> KGroupPlace<'k> {
        let KRange { k, start, first_block } = self.table.range(group);
        KGroupPlace { group, k, start, first_block, d_row: group * self.params.d_slab }
    }
}

/// The table of groups in a block's shared memory.
#[derive(Clone, Copy)]
pub(crate) struct KTable<'k> {
    k: &'k Kernel,
    numbers: KNumbers<'k>,
    /// As in [`KRoom`].
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

impl<'k> KTable<'k> {
    /// Of groups that begin at multiples of `unit`, with blocks of scales, and the K of each, where there are some.
    pub fn new(numbers: KNumbers<'k>, table: Shared<'k>, unit: u32, scales: Option<(U32<'k>, u32)>) -> Self {
        let (k, bytes) = (numbers.groups.kernel(), numbers.groups * 4);
        let start = table.at(bytes);
        let scales = scales.map(|(blocks, block_k)| {
            let first_block = start.at(bytes);
            ScaleTable { blocks, block_k, first_block }
        });
        KTable { k, numbers, unit, scales, depth: table, start }
    }

    /// Fills it in: one warp does it, and all threads of the block take part.
    pub fn find(&self) {
        let k = self.k;
        k.if_(k.warp_index().eq(0), || self.place_behind_each_other(k.lane()));
        k.sync_warp();
        k.sync_threads();
    }

    fn place_behind_each_other(&self, lane: U32<'k>) {
        let (k, p) = (self.k, self.numbers);
        let (first, last) = groups_of_lane(lane, p.groups);
        let number = |group: U32<'k>| {
            let number: I32<'k> = p.ks.at(group.widening_mul(4)).load();
            number.max(0).bitcast::<u32>().min(p.extent)
        };
        let (start, room) = (k.var(0u32), p.extent);
        let scales = self.scales.map(|scales| (scales, k.var(0u32)));
        let pass = |depth: U32<'k>| {
            start.set((start.live() + depth.div_ceil(self.unit) * self.unit).min(room));
            if let Some((scales, block)) = scales {
                block.set((block.live() + depth.div_ceil(scales.block_k)).min(scales.blocks));
            }
        };
        k.for_(first, last, 1, |group| pass(number(group)));
        start.set(exclusive_scan(k, lane, start.get(), |a, b| (a + b).min(room)));
        if let Some((scales, block)) = scales {
            block.set(exclusive_scan(k, lane, block.get(), |a, b| (a + b).min(scales.blocks)));
        }
        k.for_(first, last, 1, |group| {
            let depth = number(group);
            let (start, block) = (start.get(), scales.map(|(scales, block)| (scales, block.get())));
            let scaled = block.map(|(scales, block)| (scales.blocks - block) * scales.block_k);
            let to = self.depth.at(group * 4);
            let fitting = depth.min(room - start);
            to.store(scaled.map_or(fitting, |scaled| fitting.min(scaled)));
            self.start.at(group * 4).store(start);
            if let Some((scales, block)) = block {
                scales.first_block.at(group * 4).store(block);
            }
            pass(depth);
        });
    }

    /// What it says of a group.
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

/// Blocks that may run at a time: each has a whole multiprocessor, and no Hopper GPU has as many.
const CLAIMS: u32 = 256;
/// Groups whose maps a block keeps: more than a pipeline has stages. Every group of a block has a tile with a load, so
/// when a place is used again, loads by its old map are done.
const KEPT: u32 = 16;
/// The maps of A and B of one group.
const PAIR_BYTES: u32 = 2 * MAP_BYTES;
/// Bytes of a tensor map.
const MAP_BYTES: u32 = 128;
/// A block's part of the room.
const BLOCK_BYTES: u32 = KEPT * PAIR_BYTES;
/// Bytes for the tensor maps of all blocks that run at a time, and a flag of each that says it is taken.
pub const MAP_ROOM_BYTES: u32 = CLAIMS * (BLOCK_BYTES + 4);

/// Tensor maps of the groups that a block comes by, made by the warp that loads tiles. All of its lanes call what is here, but for
/// [`give_back`](Self::give_back).
pub(crate) struct MapRing<'k> {
    k: &'k Kernel,
    params: KGroupParams<'k>,
    lane: U32<'k>,
    /// Copies of the maps that the host passed, in which address, K and pitch are replaced.
    drafts: [Shared<'k>; 2],
    flag: Global<'k>,
    room: Global<'k>,
    place: Var<'k, u32>,
    /// The group of the maps that were made last.
    group: Var<'k, u32>,
}

impl<'k> MapRing<'k> {
    /// Bytes of shared memory, aligned to 128.
    pub const DRAFT_BYTES: u32 = PAIR_BYTES;

    /// Takes a part of the room for this block; `maps` are those of A and B that the host passed.
    pub fn claim(
        params: KGroupParams<'k>,
        maps: [TensorMap<'k>; 2],
        drafts: Shared<'k>,
        lane: U32<'k>,
    ) -> Self {
        let k = lane.kernel();
        let drafts = [drafts, drafts.at(MAP_BYTES)];
        for (map, draft) in maps.into_iter().zip(drafts) {
            k.if_(lane.lt(MAP_BYTES / 8), || draft.at(lane * 8).store(map.word(lane)));
        }
        let flags = params.map_room.at(u64::from(CLAIMS * BLOCK_BYTES));
        let claim = k.var_from(k.block_index(0) % CLAIMS);
        k.if_(lane.eq(0), || {
            let taken = k.var(1u32);
            k.while_(
                || taken.live().ne(0),
                || {
                    claim.set((claim.live() + 1) % CLAIMS);
                    let flag = flags.at(claim.live().widening_mul(4));
                    taken.set(flag.atomic::<u32>(AtomicOp::Exchange, 1, Scope::Gpu));
                },
            );
            // What the block before has done with the maps is over.
            k.fence(Scope::Gpu);
        });
        let claim = k.shuffle(Shuffle::Index, claim.get(), 0);
        MapRing {
            k,
            params,
            lane,
            drafts,
            flag: flags.at(claim.widening_mul(4)),
            room: params.map_room.at(claim.widening_mul(BLOCK_BYTES)),
            place: k.var(0),
            group: k.var(u32::MAX),
        }
    }

    /// Sees to it that the maps are those of a group, whose K is not 0.
    pub fn turn_to(&self, group: &KGroupPlace<'k>, [rows_of_a, rows_of_b]: [U32<'k>; 2]) {
        self.remake(group, || {
            let pitch = group.k.div_ceil(PITCH_UNIT) * PITCH_UNIT;
            let rows = [rows_of_a, rows_of_b];
            for ((draft, address), rows) in self.drafts.iter().zip(self.params.operands).zip(rows) {
                let start = address + group.start.widening_mul(rows);
                draft.replace_map_field(MapField::GlobalAddress, start);
                draft.replace_map_field(MapField::Dim(0), group.k.to_u64());
                draft.replace_map_field(MapField::Stride(0), pitch.to_u64());
            }
        });
    }

    /// Sees to it that the maps end with a group, whose K is not 0; K is this dimension of A's and of B's.
    pub fn end_with(&self, group: &KGroupPlace<'k>, dimensions: [u32; 2]) {
        self.remake(group, || {
            let end = (group.start + group.k).to_u64();
            for (draft, dimension) in self.drafts.iter().zip(dimensions) {
                draft.replace_map_field(MapField::Dim(dimension), end);
            }
        });
    }

    /// Makes the maps of a group unless they are those of the last one; one lane runs `replace`.
    fn remake(&self, group: &KGroupPlace<'k>, replace: impl FnOnce()) {
        let k = self.k;
        k.if_(group.group.ne(self.group.get()), || {
            self.group.set(group.group);
            self.place.set((self.place.live() + 1) % KEPT);
            // All lanes have written the drafts, and read those of the group before.
            k.sync_warp();
            k.if_(self.lane.eq(0), replace);
            k.sync_warp();
            for (draft, to) in self.drafts.iter().zip(self.memory()) {
                draft.publish_map(to);
            }
            self.maps().iter().for_each(|map| map.acquire());
        });
    }

    fn memory(&self) -> [Global<'k>; 2] {
        let a = self.room.at(self.place.get().widening_mul(PAIR_BYTES));
        [a, a.at(u64::from(MAP_BYTES))]
    }

    /// The maps of A and B that were made last.
    pub fn maps(&self) -> [TensorMap<'k>; 2] {
        self.memory().map(TensorMap::in_global)
    }

    /// Gives the part of the room back: the lane that loads does, when it has seen all loads done.
    pub fn give_back(&self) {
        self.flag.store_release::<u32>(0, Scope::Gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_outside_of_the_operands() {
        let numbers = [i32::MIN, -1, 0, 1, 15, 16, 17, 128, 129, 1000, i32::MAX];
        let scales = [None, Some(0), Some(1), Some(5), Some(9)];
        for extent in [0, 16, 160, 1024] {
            for (unit, blocks) in scales.into_iter().flat_map(|blocks| [(1, blocks), (PITCH_UNIT, blocks)]) {
                let room = KRoom { extent, unit, scales: blocks.map(|blocks| (blocks, 128)) };
                for shift in 0..numbers.len() {
                    let ks: Vec<i32> = (0..8).map(|i| numbers[(i * 3 + shift) % numbers.len()]).collect();
                    for group in k_groups(&ks, &room) {
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

    #[test]
    fn a_block_keeps_more_maps_than_a_pipeline_has_stages() {
        use crate::gemm::GemmKernel;
        for kernel in GemmKernel::k_grouped(crate::Arch::Sm90a) {
            assert!(*kernel.stages().end() < KEPT);
        }
    }
}
