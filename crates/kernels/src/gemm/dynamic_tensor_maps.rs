//! Dynamic tensor maps of k-grouped kernels: made on the device, in memory that a block has to itself.
//!
//! FP8 and FP4 operands of a group may be matrices of their own, which differ in pitch, so a tensor map serves one group.
//! Others are matrices of all groups: one map serves all, but where K is no whole number of stages, the last stage of a
//! group needs a map that ends with the group.

use crate::gemm::scheduler::k_grouped::{KGroupedParams, PITCH_UNIT, TileKGroup};
use oxigemm_ptx::memory::AtomicOp;
use oxigemm_ptx::tma::{MapField, TensorMap};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{Global, Kernel, Scope, Shared, U32, Var};

/// Blocks that may run at a time: each has an SM to itself, and no GPU has as many.
const CLAIMS: u32 = 256;
/// Groups whose maps a block keeps: more than a pipeline has stages. Every group of a block has a tile with a load, so
/// when a slot is used again, loads by its old map are done.
const KEPT: u32 = 16;
/// The maps of A and B of one group.
const PAIR_BYTES: u32 = 2 * MAP_BYTES;
/// Bytes of a tensor map.
const MAP_BYTES: u32 = 128;
/// A block's part of the workspace.
const BLOCK_BYTES: u32 = KEPT * PAIR_BYTES;
/// Bytes of the workspace: tensor maps of all blocks that run at a time, and a flag of each that says it is taken.
pub const MAP_WORKSPACE_BYTES: u32 = CLAIMS * (BLOCK_BYTES + 4);

/// Tensor maps of a block's groups, made by the producer warp. All of its lanes call these functions, but for
/// [`release`](Self::release).
pub(crate) struct DynamicTensorMaps<'k> {
    k: &'k Kernel,
    params: KGroupedParams<'k>,
    lane: U32<'k>,
    /// Copies of the maps that the host passed, in which address, K and pitch are replaced.
    drafts: [Shared<'k>; 2],
    flag: Global<'k>,
    workspace: Global<'k>,
    slot: Var<'k, u32>,
    /// The group of the maps that were made last.
    group: Var<'k, u32>,
}

impl<'k> DynamicTensorMaps<'k> {
    /// Bytes of shared memory, aligned to 128.
    pub const DRAFT_BYTES: u32 = PAIR_BYTES;

    /// Claims a part of the workspace for this block; `maps` are those of A and B that the host passed.
    pub fn claim(
        params: KGroupedParams<'k>,
        maps: [TensorMap<'k>; 2],
        drafts: Shared<'k>,
        lane: U32<'k>,
    ) -> Self {
        let k = lane.kernel();
        let drafts = [drafts, drafts.at(MAP_BYTES)];
        for (map, draft) in maps.into_iter().zip(drafts) {
            k.if_(lane.lt(MAP_BYTES / 8), || draft.at(lane * 8).store(map.word(lane)));
        }
        let flags = params.map_workspace.at(u64::from(CLAIMS * BLOCK_BYTES));
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
            // Uses of the maps by the block before are over.
            k.fence(Scope::Gpu);
        });
        let claim = k.shuffle(Shuffle::Index, claim.get(), 0);
        DynamicTensorMaps {
            k,
            params,
            lane,
            drafts,
            flag: flags.at(claim.widening_mul(4)),
            workspace: params.map_workspace.at(claim.widening_mul(BLOCK_BYTES)),
            slot: k.var(0),
            group: k.var(u32::MAX),
        }
    }

    /// Makes the maps those of a group's own matrices of bytes, whose K is not 0. A byte has so many elements.
    pub fn set_group(&self, group: &TileKGroup<'k>, [rows_of_a, rows_of_b]: [U32<'k>; 2], elements: u32) {
        self.remake(group, || {
            let bytes = |extent: U32<'k>| if elements == 1 { extent } else { extent / elements };
            let (depth, start) = (bytes(group.k), bytes(group.start));
            let pitch = depth.div_ceil(PITCH_UNIT) * PITCH_UNIT;
            let rows = [rows_of_a, rows_of_b];
            for ((draft, address), rows) in self.drafts.iter().zip(self.params.operands).zip(rows) {
                let start = address + start.widening_mul(rows);
                draft.replace_map_field(MapField::GlobalAddress, start);
                draft.replace_map_field(MapField::Dim(0), depth.to_u64());
                draft.replace_map_field(MapField::Stride(0), pitch.to_u64());
            }
        });
    }

    /// Makes the maps end with a group, whose K is not 0; K is this dimension of A's and of B's.
    pub fn set_end(&self, group: &TileKGroup<'k>, dimensions: [u32; 2]) {
        self.remake(group, || {
            let end = (group.start + group.k).to_u64();
            for (draft, dimension) in self.drafts.iter().zip(dimensions) {
                draft.replace_map_field(MapField::Dim(dimension), end);
            }
        });
    }

    /// Makes the maps of a group unless they are those of the last one; one lane runs `replace`.
    fn remake(&self, group: &TileKGroup<'k>, replace: impl FnOnce()) {
        let k = self.k;
        k.if_(group.group.ne(self.group.get()), || {
            self.group.set(group.group);
            self.slot.set((self.slot.live() + 1) % KEPT);
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
        let a = self.workspace.at(self.slot.get().widening_mul(PAIR_BYTES));
        [a, a.at(u64::from(MAP_BYTES))]
    }

    /// The maps of A and B that were made last.
    pub fn maps(&self) -> [TensorMap<'k>; 2] {
        self.memory().map(TensorMap::in_global)
    }

    /// Releases the part of the workspace: the loading lane does, when all loads are done.
    pub fn release(&self) {
        self.flag.store_release::<u32>(0, Scope::Gpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_more_maps_than_a_pipeline_has_stages() {
        use crate::gemm::GemmKernel;
        for kernel in crate::arch::Arch::ALL.into_iter().flat_map(GemmKernel::k_grouped) {
            assert!(*kernel.stages().end() < KEPT, "{}", kernel.name());
        }
    }
}
