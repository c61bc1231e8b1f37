//! Scales in shared memory: FP32 ones of keys as TMA has loaded them, and words of FP4 as the tensor core wants them.

use super::Cta;
use crate::attention::shape::TILE_KEYS;
use crate::common::WARP;
use crate::gemm::sm100::scales::{GROUP_BYTES, copy_groups, store_words};
use oxigemm_ptx::tcgen05::{CtaGroup, Scales, TensorMemory};
use oxigemm_ptx::{Global, Shared, U32};

const _: () = assert!(TILE_KEYS == 4 * WARP, "a lane lays out four keys");

/// Loads of pages: how many keys each has, and the bytes between the scales of two.
#[derive(Clone, Copy)]
pub(super) struct PageLoads<'k> {
    pub keys: U32<'k>,
    pub scale_bytes: U32<'k>,
}

impl<'k> Cta<'k, '_> {
    /// Where the scale of a tile's key is in its stage.
    pub(super) fn scale_offset(&self, key: U32<'k>) -> U32<'k> {
        match self.page_loads {
            None => key * 4,
            Some(loads) => (key / loads.keys) * loads.scale_bytes + (key % loads.keys) * 4,
        }
    }

    /// Words of a stage's keys, as the tensor core wants them.
    fn key_scales(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.key_scales).at(stage * GROUP_BYTES)
    }

    /// Words of a unit's heads, as the tensor core wants them.
    fn query_scales(&self, slot: U32<'k>) -> Shared<'k> {
        self.shared.at(self.map.query_scales).at(slot * GROUP_BYTES)
    }

    /// Tensor memory of the words of keys and of queries.
    pub(super) fn scales(&self, memory: TensorMemory<'k>) -> Scales<'k> {
        let [a, b] = self.cfg.scale_columns().map(|column| memory.column(column));
        Scales { a, b }
    }

    /// Unit producer warp: lays out the words of a unit's heads, of queries from the first on up to the last. They are
    /// zeros where a query has no such head.
    pub(super) fn load_query_scales(
        &self,
        slot: U32<'k>,
        [first, end]: [U32<'k>; 2],
        scales: Global<'k>,
        heads: U32<'k>,
    ) {
        let tile = self.cfg.heads.heads;
        let word = |nth: u32| {
            let column = self.lane + nth * WARP;
            let (query, head) = (first + column / tile, column % tile);
            let exists = query.lt(end) & head.lt(heads);
            let at = query.widening_mul(heads) + head.to_u64();
            scales.at(at * 4u64).load_readonly_if::<u32>(exists, 0u32)
        };
        store_words(self.query_scales(slot), self.lane, &[[0, 1, 2, 3].map(word)]);
        self.k.fence_async_shared();
    }

    /// MMA warp: lays out the words of a stage's keys.
    pub(super) fn lay_out_key_scales(&self, stage: U32<'k>) {
        let (k, scales) = (self.k, self.smem.scales(stage));
        let word = |nth| scales.at(self.scale_offset(self.lane + nth * WARP)).load();
        store_words(self.key_scales(stage), self.lane, &[[0, 1, 2, 3].map(word)]);
        k.fence_async_shared();
        k.sync_warp();
    }

    /// MMA thread: copies the words of a stage's keys to tensor memory.
    pub(super) fn copy_key_scales(&self, memory: TensorMemory<'k>, stage: U32<'k>) {
        copy_groups(CtaGroup::One, self.key_scales(stage), self.scales(memory).a, 1);
    }

    /// MMA thread: copies the words of a unit's heads to tensor memory.
    pub(super) fn copy_query_scales(&self, memory: TensorMemory<'k>, slot: U32<'k>) {
        copy_groups(CtaGroup::One, self.query_scales(slot), self.scales(memory).b, 1);
    }
}
