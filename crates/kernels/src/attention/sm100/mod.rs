//! Blackwell kernels of the MQA logits, on `tcgen05`, for FP8 and for FP4 with block scales.
//!
//! ```text
//!  keys  --full--> MMA --computed--> epilogue        full, empty: stages of key tiles
//!    ^              |  <---read------   |            computed, read: accumulators, one for each epilogue warpgroup
//!    +----empty-----+-------------------+            known, done: work units
//! ```
//!
//! Keys are the 128 lanes of tensor memory and the heads of a unit's queries its columns. So an epilogue thread has one
//! key with all heads of every query: it sums in registers, and no threads exchange anything. The warpgroups take tiles
//! in turn: while one sums, the tensor core works for the other.
//!
//! | warps | role | file |
//! |---|---|---|
//! | 0 to 7 | epilogue, two warpgroups | `epilogue.rs` |
//! | 8 | keys, one thread (prefill) or a warp (pages) | of every architecture |
//! | 9 | units | of every architecture |
//! | 10 | MMA, and the scales of FP4; it allocates tensor memory | `mma.rs` |
//! | 11, 12 | -inf | of every architecture |
//!
//! There is one kind of kernel: every number of heads is padded to the next of [`HEADS`].

mod config;
mod epilogue;
mod mma;
mod paged;
mod prefill;
mod scales;

pub use config::{Config, HEADS, Keys};

use crate::attention::smem::Smem;
use crate::common::WARP;
use crate::common::pipeline::{Cursor, Pipeline};
use config::{ALLOCATED_COLUMNS, EPILOGUE_GROUPS, Map, WARPGROUP_WARPS};
use oxigemm_ptx::tcgen05::{CtaGroup, TensorMemory};
use oxigemm_ptx::{Kernel, Shared, U32};
use scales::PageLoads;

const KEY_WARP: u32 = config::EPILOGUE_WARPS;
const UNIT_WARP: u32 = KEY_WARP + 1;
const MMA_WARP: u32 = KEY_WARP + 2;
const FILL_WARP: u32 = KEY_WARP + 3;

/// Unit producer warp: waits until the last unit is released, which the tensor core does. `slots` is at the slot of the
/// end, for which the unit before the last has been waited for.
fn drain(slots: &Cursor<'_>) {
    slots.advance();
    slots.wait_empty();
}

/// What the architecture's own roles work with.
struct Cta<'k, 'a> {
    k: &'k Kernel,
    cfg: &'a Config,
    smem: &'a Smem<'k>,
    map: Map,
    shared: Shared<'k>,
    /// Full when an accumulator is computed, empty when its warpgroup has read it.
    accumulators: Pipeline<'k>,
    /// Where keys are in pages.
    page_loads: Option<PageLoads<'k>>,
    warp: U32<'k>,
    lane: U32<'k>,
}

impl<'k, 'a> Cta<'k, 'a> {
    fn new(
        k: &'k Kernel,
        cfg: &'a Config,
        smem: &'a Smem<'k>,
        page_loads: Option<PageLoads<'k>>,
        warp: U32<'k>,
        lane: U32<'k>,
    ) -> Self {
        let (map, shared) = (Map::new(cfg), k.dynamic_shared());
        map.name(k, cfg);
        let accumulators =
            Pipeline::new(k, shared.at(map.accumulator_barriers), EPILOGUE_GROUPS, EPILOGUE_GROUPS);
        Cta { k, cfg, smem, map, shared, accumulators, page_loads, warp, lane }
    }

    /// Initializes the barriers of accumulators and allocates tensor memory, before [`Smem::begin`] synchronizes.
    fn begin(&self) {
        let k = self.k;
        k.if_(self.warp.eq(MMA_WARP), || {
            k.if_(self.lane.eq(0), || {
                self.accumulators.init(1, WARPGROUP_WARPS);
                k.fence_barrier_init();
            });
            k.sync_warp();
            k.tensor_memory_alloc(CtaGroup::One, self.shared.at(self.map.allocation), ALLOCATED_COLUMNS);
            k.tensor_memory_relinquish(CtaGroup::One);
            k.tcgen05_fence_before();
        });
    }

    /// Tensor memory, behind [`Smem::begin`].
    fn memory(&self) -> TensorMemory<'k> {
        self.k.tcgen05_fence_after();
        TensorMemory::at(self.shared.at(self.map.allocation).load())
    }

    /// Frees tensor memory when all roles are done with it.
    fn end(&self, memory: TensorMemory<'k>) {
        let k = self.k;
        k.sync_warp();
        k.tcgen05_fence_before();
        k.sync_threads();
        k.if_(self.warp.eq(MMA_WARP), || {
            k.tcgen05_fence_after();
            k.tensor_memory_dealloc(CtaGroup::One, memory, ALLOCATED_COLUMNS);
        });
    }

    /// The accumulator of an epilogue warpgroup.
    fn accumulator(&self, memory: TensorMemory<'k>, group: U32<'k>) -> TensorMemory<'k> {
        memory.column(group * self.cfg.columns())
    }

    /// First lane of tensor memory that this warp reaches, which is its first key in a tile.
    fn first_lane(&self) -> U32<'k> {
        (self.warp % WARPGROUP_WARPS) * WARP
    }
}
