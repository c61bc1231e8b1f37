//! Vectorized scale stores: scales that a lane finds in turn and that are neighbours in memory.
//!
//! They are staged in shared memory until they are a vector of 16 bytes: a store of a single scale costs as much as one
//! of 32 bytes.

use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32};

/// Scales of a run; runs begin at multiples of it.
pub(super) const RUN_LENGTH: u32 = 4;

/// Staging buffer of one run, owned by one lane.
#[derive(Clone, Copy)]
pub(super) struct ScaleRun<'k>(pub Shared<'k>);

impl<'k> ScaleRun<'k> {
    /// Bytes of shared memory.
    pub const BYTES: u32 = 4 * RUN_LENGTH;

    /// Stages the scale at a position.
    #[track_caller]
    pub fn stage(self, position: U32<'k>, scale: U32<'k>) {
        self.0.at(position % RUN_LENGTH * 4).store(scale);
    }

    /// Stores the whole run, whose first scale goes to `at`.
    #[track_caller]
    pub fn store(self, k: &'k Kernel, at: Global<'k>, wanted: Pred<'k>, policy: Option<CachePolicy<'k>>) {
        k.if_(wanted, || {
            let run = self.0.load_vec::<u32, 4>();
            match policy {
                Some(policy) => at.store_vec_by(run, policy),
                None => at.store_vec(run),
            }
        });
        k.sync_warp();
    }
}
