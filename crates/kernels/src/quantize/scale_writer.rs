//! Scales that a lane finds one after another and that are neighbours in memory. It keeps them until they are a vector: a store of
//! each alone would cost as much as one of 32 bytes.

use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{Global, Kernel, Pred, Shared, U32};

/// Scales of a run; runs begin at multiples of it.
pub(super) const RUN: u32 = 4;

/// The places where a lane keeps its scales.
#[derive(Clone, Copy)]
pub(super) struct Run<'k>(pub Shared<'k>);

impl<'k> Run<'k> {
    /// Bytes of shared memory.
    pub const BYTES: u32 = 4 * RUN;

    /// Keeps the scale of a position.
    #[track_caller]
    pub fn keep(self, position: U32<'k>, scale: U32<'k>) {
        self.0.at(position % RUN * 4).store(scale);
    }

    /// Stores all of a run, whose first goes to `at`.
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
