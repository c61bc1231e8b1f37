//! Waves: how many tiles the busiest cluster computes, one after another.

use oxigemm_kernels::gemm::GemmConfig;

/// How far the K of a group is from the mean, in parts of it: the deviation of what is spread evenly between none and
/// twice the mean. Only the device knows the K of each group.
const SPREAD: f64 = 0.577;

/// The tiles of a GEMM, and how many clusters compute them at a time.
pub(super) struct Waves {
    /// Tiles of clusters.
    pub tiles: f64,
    /// Clusters that run at a time.
    pub clusters: f64,
    /// Groups of a k-grouped GEMM: 1 where all tiles take as long.
    pub k_groups: f64,
}

impl Waves {
    /// Tiles of the busiest cluster, in tiles of a mean K.
    ///
    /// In the static schedule a cluster has every so many-th tile, whatever those are. Of sums of as many tiles as a
    /// cluster has, of different groups, the largest of all clusters lies this far above the mean, if the sums are
    /// normally distributed. Clusters that claim tiles end together, but for half of a tile that may be the longest.
    pub fn of(&self, config: &GemmConfig) -> f64 {
        let whole = (self.tiles / self.clusters).ceil();
        if self.k_groups <= 1.0 || whole <= 1.0 {
            return whole;
        }
        if config.kernel.spec().claims_tiles() {
            return self.tiles / self.clusters + 1.0;
        }
        let different = whole.min(self.k_groups);
        let largest = (2.0 * self.clusters.ln()).sqrt();
        whole.max(self.tiles / self.clusters + SPREAD * different.sqrt() * largest)
    }
}
