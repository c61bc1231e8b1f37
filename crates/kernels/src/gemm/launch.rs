//! Launch geometry: grid, clusters, shared memory and TMA boxes of a configuration for a shape.

use crate::gemm::params::PersistentTuning;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::order::MAX_BAND;
use crate::gemm::scheduler::stream_k::StreamK;
use crate::gemm::{GemmConfig, GemmShape, KGroupedShape, MGroupedShape};

/// A launch as plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x and y.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Blocks of a cluster (along x).
    pub cluster: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Rows of A in a TMA box; lines along K where A is M-major.
    pub tile_a: u32,
    /// Rows of B in a TMA box; lines along K where B is N-major.
    pub tile_b: u32,
    /// Rows of D in a TMA box.
    pub tile_d: u32,
    /// Parts of B (gates and ups) of which a TMA box has so many rows; 0 where B is one matrix.
    pub parts_of_b: u32,
    /// Rows of A whose scales one TMA box has, where A has scales.
    pub scale_rows: u32,
    /// K blocks whose scales are loaded together.
    pub scale_blocks: u32,
    /// Rows of A and K blocks whose scales may be one bulk copy; none where they never are.
    pub scale_piece: [u32; 2],
    /// The words of the kernel's [`PersistentTuning`] or [`SplitKTuning`](crate::gemm::params::SplitKTuning).
    pub tuning: [u32; 4],
    /// Raster band of the same launch with forward K, where K is traversed in serpentine order.
    pub forward_band: u32,
    /// The stream-K tail, where the kernel has one.
    pub stream_k: StreamK<u32>,
    /// Bytes of workspace for stream-K partial tiles, or for the tile counter of a dynamic scheduler.
    pub workspace_bytes: u64,
}

impl Launch {
    /// Whether K is traversed in serpentine order: every other tile of a block starts at the end of K, and finds in the
    /// L2 cache what was read last.
    #[must_use]
    pub fn is_serpentine(&self) -> bool {
        PersistentTuning::from_words(self.tuning).serpentine_k != 0
    }

    /// The same launch with forward K for every tile, so that a row's result does not depend on which tile it is in.
    #[must_use]
    pub fn with_forward_k(self) -> Launch {
        if !self.is_serpentine() {
            return self;
        }
        let (raster_band, tuning) = (self.forward_band, PersistentTuning::from_words(self.tuning));
        Launch { tuning: PersistentTuning { serpentine_k: 0, raster_band, ..tuning }.words(), ..self }
    }

    /// The same launch of a persistent kernel with another raster band, of 1 to [`MAX_BAND`] rows of tiles.
    #[must_use]
    pub fn with_raster_band(self, band: u32) -> Launch {
        let (raster_band, tuning) = (band.clamp(1, MAX_BAND), PersistentTuning::from_words(self.tuning));
        Launch { tuning: PersistentTuning { raster_band, ..tuning }.words(), ..self }
    }
}

impl GemmConfig {
    /// The launch for a shape, on a device that runs up to `concurrent` clusters of this configuration at a time.
    pub fn launch(&self, shape: GemmShape, concurrent: u32) -> Launch {
        self.launch_in_passes(shape, 1, concurrent)
    }

    /// The same where tiles are computed in this many passes.
    pub fn launch_in_passes(&self, shape: GemmShape, passes: u32, concurrent: u32) -> Launch {
        self.kernel.spec().launch(self, shape, passes, concurrent)
    }

    /// The launch of an m-grouped kernel, `None` for other kernels. Only the device knows the number of tiles, so the
    /// grid has as many clusters as the device runs at a time.
    pub fn launch_m_grouped(&self, shape: &MGroupedShape, passes: u32, concurrent: u32) -> Option<Launch> {
        if !self.kernel.is_m_grouped() {
            return None;
        }
        let [tile_m, tile_n] = self.cluster_tile(passes);
        // As one group with the expected rows.
        let group = GemmShape { m: shape.expected.clamp(1, shape.rows.max(1)), ..shape.slab() };
        let one = self.launch_in_passes(group, passes, concurrent);
        // More clusters than tiles of whole slabs would never have a tile, whatever the groups are.
        let tiles = |rows: u32| u64::from(rows.div_ceil(tile_m)) * u64::from(shape.n.div_ceil(tile_n));
        let most = match shape.slabs {
            // A group may begin anywhere, and so have a tile more than its rows would fill.
            1 => tiles(shape.rows) + u64::from(shape.groups) * tiles(1),
            slabs => u64::from(slabs) * tiles(shape.rows),
        };
        let clusters = u64::from(concurrent).min(most).max(1) as u32;
        Some(Launch {
            grid: [clusters * one.cluster, 1],
            shared_bytes: self.grouped_shared_bytes(shape.groups).max(one.shared_bytes),
            ..one
        })
    }

    /// The launch of a k-grouped kernel, `None` for other kernels.
    pub fn launch_k_grouped(&self, shape: &KGroupedShape, concurrent: u32) -> Option<Launch> {
        if self.kernel.grouping() != Grouping::K {
            return None;
        }
        let one = self.launch(shape.group(), concurrent);
        let [tile_m, tile_n] = self.cluster_tile(1);
        let tiles = shape.m.div_ceil(tile_m) * shape.n.div_ceil(tile_n);
        let tiles = tiles.saturating_mul(shape.groups);
        let clusters = if self.covers_d() { tiles } else { concurrent.min(tiles) }.max(1);
        Some(Launch {
            grid: [clusters * one.cluster, 1],
            shared_bytes: self.grouped_shared_bytes(shape.groups).max(one.shared_bytes),
            ..one
        })
    }
}
