//! Parameters and tile scheduler of persistent kernels: what architectures share.

use crate::gemm::epilogue::fusion::{EpilogueParams, GroupedEpilogueParams};
use crate::gemm::operand::gate_up::{Fusion, GateUpRows};
use crate::gemm::params::Params;
use crate::gemm::scheduler::TileScheduler;
use crate::gemm::scheduler::k_grouped::{KGroupedParams, KGroups};
use crate::gemm::scheduler::m_grouped::{Grouping, MGroupedParams};
use oxigemm_ptx::{Kernel, Shared};

/// What the tile scheduler of a persistent kernel has to know of its configuration.
pub(crate) struct PersistentShape {
    /// Rows and columns of D of a tile, in one pass.
    pub tile: [u32; 2],
    pub grouping: Grouping,
    pub fusion: Fusion,
    /// Columns of D that a warpgroup computes at a time.
    pub columns: u32,
    /// Passes of a tile where D is quantized.
    pub quantized_passes: u32,
    /// Whether the kernel has serpentine K.
    pub serpentine_k: bool,
    /// Whether D of groups is stored slab by slab.
    pub d_in_slabs: bool,
    /// How groups of a k-grouped kernel lie along K.
    pub k_ranges: KRanges,
}

/// Groups of a k-grouped kernel along K.
pub(crate) enum KRanges {
    /// Ranges of one matrix, which begin at multiples of so many elements, with scales for so many elements of K each
    /// where there are some.
    OfOneMatrix(u32, Option<u32>),
    /// Matrices of their own, which begin at multiples of so many elements, with scales for so many elements of K each.
    OwnMatrices(u32, u32),
}

/// Parameters of a persistent kernel.
pub(crate) struct PersistentParams<'k> {
    pub gemm: Params<'k>,
    pub m_groups: Option<MGroupedParams<'k>>,
    pub k_groups: Option<KGroups<'k>>,
    pub epilogue: Option<EpilogueParams<'k>>,
    pub grouped_epilogue: Option<GroupedEpilogueParams<'k>>,
}

impl<'k> PersistentParams<'k> {
    /// Declares them, but for those that only the [scheduler](Self::scheduler) needs.
    pub fn declare(k: &'k Kernel, shape: &PersistentShape) -> Self {
        let (is_grouped, is_fused) = (shape.grouping == Grouping::Rows, shape.fusion != Fusion::None);
        PersistentParams {
            gemm: Params::declare(k),
            m_groups: is_grouped.then(|| MGroupedParams::declare(k, "")),
            k_groups: None,
            epilogue: is_fused.then(|| EpilogueParams::declare(k)),
            grouped_epilogue: (is_fused && is_grouped).then(|| GroupedEpilogueParams::declare(k, "")),
        }
    }

    /// The tile scheduler, with the group table at `table`.
    pub fn scheduler(
        &mut self,
        k: &'k Kernel,
        shape: &PersistentShape,
        table: Shared<'k>,
    ) -> TileScheduler<'k> {
        let mut scheduler = TileScheduler::new(k, shape.tile, &self.gemm);
        if shape.serpentine_k {
            scheduler = scheduler.with_serpentine_k(&self.gemm);
        }
        if shape.grouping == Grouping::K {
            let (params, k_blocks) = (KGroupedParams::declare(k), self.gemm.k_blocks);
            let groups = match shape.k_ranges {
                KRanges::OfOneMatrix(unit, None) => KGroups::new(params, table, unit, None),
                KRanges::OfOneMatrix(unit, Some(block_k)) | KRanges::OwnMatrices(unit, block_k) => {
                    KGroups::new(params, table, unit, Some((k_blocks, block_k)))
                }
            };
            self.k_groups = Some(groups);
            scheduler = scheduler.with_k_groups(groups);
        }
        if let Some(epilogue) = &self.epilogue {
            let (columns, ups) = (shape.columns, self.gemm.output.columns);
            let passes = epilogue.passes(shape.quantized_passes);
            self.gemm.output = epilogue.output(self.gemm.output);
            let gate_up = GateUpRows { fusion: shape.fusion, columns, stride: passes * columns, ups };
            scheduler = scheduler.with_passes(&self.gemm, passes, gate_up);
        }
        if let Some(groups) = self.m_groups {
            scheduler = scheduler.with_m_groups(groups, table, self.gemm.output.rows, shape.d_in_slabs);
        }
        scheduler
    }
}
