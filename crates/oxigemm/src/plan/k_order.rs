//! K order: which families of GEMMs visit K forward in every tile, and which in serpentine order.

use oxigemm_kernels::gemm::{GemmConfig, Launch};

use super::{PlanRequest, PlanShape};
use crate::error::{Error, Result};

/// Order in which the tiles of a persistent kernel visit K.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KOrder {
    /// From the start of K in every tile: the bits of a row do not depend on its place among the rows.
    Forward,
    /// Serpentine K: from the end in every other tile of a CTA, where that reads less from memory.
    Serpentine,
}

/// K order of a family, for FP8 and for 16-bit operands, where the caller has no wish. Forward for batches, whose sums then
/// are those of other libraries at a price of 0.3%. Forward K would cost dense and m-grouped GEMMs 0.5 to 1.2% in the mean
/// (`oxigemm bench --suite k-order`), and rows of a stream-K tail would depend on their place all the same.
struct Family {
    fp8: KOrder,
    half: KOrder,
}

const DENSE: Family = Family { fp8: KOrder::Serpentine, half: KOrder::Serpentine };
const M_GROUPED: Family = Family { fp8: KOrder::Serpentine, half: KOrder::Serpentine };
const BATCHED: Family = Family { fp8: KOrder::Forward, half: KOrder::Forward };

impl KOrder {
    /// The order of a request.
    ///
    /// # Errors
    /// If serpentine K is wanted for a batch-invariant GEMM.
    pub(super) fn of(request: &PlanRequest) -> Result<KOrder> {
        match (request.batch_invariant, request.k_order) {
            (true, Some(KOrder::Serpentine)) => Err(Error::KOrderBatchInvariant),
            (true, _) => Ok(KOrder::Forward),
            (false, Some(order)) => Ok(order),
            (false, None) => Ok(KOrder::of_family(request)),
        }
    }

    fn of_family(request: &PlanRequest) -> KOrder {
        let family = match request.shape {
            PlanShape::Dense(_) => DENSE,
            PlanShape::MGrouped(_) => M_GROUPED,
            PlanShape::Batched(_) => BATCHED,
            // Their kernels have forward K only.
            PlanShape::Summed { .. } | PlanShape::KGrouped(_) => return KOrder::Forward,
        };
        if request.operands.is_fp8() { family.fp8 } else { family.half }
    }
}

/// How the tiles of a persistent kernel are traversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traversal {
    /// The K order of each tile.
    pub k_order: KOrder,
    /// The raster band that the caller wants, in rows of tiles.
    pub raster_band: Option<u32>,
}

impl Traversal {
    /// A launch with this traversal. Split-K kernels have none: each CTA has one tile.
    pub(super) fn of(self, launch: Launch, config: &GemmConfig) -> Launch {
        if config.is_split_k() {
            return launch;
        }
        let launch = match self.k_order {
            KOrder::Forward => launch.with_forward_k(),
            KOrder::Serpentine => launch,
        };
        self.raster_band.map_or(launch, |band| launch.with_raster_band(band))
    }
}
