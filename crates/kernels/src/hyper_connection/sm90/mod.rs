//! Hopper kernel of the hyper-connection pre-norm GEMM, on `wgmma`.
//!
//! CTAs that have parts of the same output [reduce](crate::common::workspace_reduce) them in the
//! workspace.
//!
//! Rows of W arrive as FP32. Four warps split them in place into two BF16 parts (`w_splitter.rs`), which the tensor
//! core takes as two columns; the thread that holds both accumulators adds them. While the tensor core works, that
//! thread squares its part of X. Rows of W come in an order in which the columns of D that a thread holds are
//! neighbours.

mod config;
mod consumer;
mod cta;
mod epilogue;
mod producer;
mod w_splitter;

pub use config::{Config, THREADS};

use crate::gemm::sm90::warpgroups::MATH_WARPS;
use config::{PRODUCER, SPLITTERS, STAGES};
use cta::Cta;
use oxigemm_ptx::{BuildError, Kernel, Module, Target};

impl Config {
    /// Builds the kernel.
    pub fn build(&self, name: &str) -> Result<Module, BuildError> {
        let k = Kernel::new(name, Target::Sm90a).threads(THREADS);
        write(&k, self);
        k.finish()
    }
}

fn write(k: &Kernel, cfg: &Config) {
    let cta = Cta::new(k, cfg);
    let (warp, lane, params) = (cta.warp, cta.lane, &cta.scheduler.params);
    k.if_(warp.eq(PRODUCER), || {
        k.if_(lane.eq(0), || {
            params.x.prefetch();
            params.w.prefetch();
            cta.pipeline.init(1 + SPLITTERS, MATH_WARPS);
            (0..STAGES).for_each(|stage| cta.landed(k.constant(stage)).init(1u32));
            k.fence_barrier_init();
        });
        k.sync_warp();
    });
    // Only where the CTAs that share rows have no others. A division would take longer than the prefetch gains.
    let has_one_tile = params.shared_stages.eq(params.k_blocks);
    k.if_(warp.ne(PRODUCER) & has_one_tile, || cta.prefetch());
    k.sync_threads();
    k.grid_dependency_wait();
    k.if_else(
        warp.lt(MATH_WARPS),
        || k.role("math", || cta.multiply()),
        || {
            k.if_else(
                warp.eq(PRODUCER),
                || {
                    k.if_(k.elect(), || k.role("producer", || cta.load()));
                    k.sync_warp();
                },
                || k.role("splitter", || cta.split_w()),
            );
        },
    );
}
