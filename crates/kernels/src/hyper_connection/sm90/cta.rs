//! Context of a CTA: shared memory, pipeline, and its range of stages.

use super::config::{Config, STAGES, SmemLayout};
use crate::common::pipeline::Pipeline;
use crate::hyper_connection::params::Params;
use crate::hyper_connection::scheduler::Scheduler;
use oxigemm_ptx::{Kernel, MBarrier, Shared, U32};

/// Context that every role of the kernel works with.
pub(super) struct Cta<'k, 'c> {
    pub k: &'k Kernel,
    pub cfg: &'c Config,
    pub layout: SmemLayout,
    pub shared: Shared<'k>,
    pub pipeline: Pipeline<'k>,
    pub warp: U32<'k>,
    pub lane: U32<'k>,
    pub scheduler: Scheduler<'k>,
}

impl<'k, 'c> Cta<'k, 'c> {
    /// Declares the parameters and lays out the shared memory.
    pub fn new(k: &'k Kernel, cfg: &'c Config) -> Self {
        let params = Params::declare(k, "");
        let (layout, shared) = (SmemLayout::new(cfg), k.dynamic_shared());
        layout.name(k, cfg);
        let pipeline = Pipeline::new(k, shared.at(layout.barriers), STAGES, STAGES);
        let (warp, lane) = (k.warp_index(), k.lane());
        let scheduler = Scheduler::new(k, params);
        Cta { k, cfg, layout, shared, pipeline, warp, lane, scheduler }
    }

    /// X of a stage.
    pub fn x(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.layout.x).at(stage * self.cfg.x_bytes())
    }

    /// W of a stage.
    pub fn w(&self, stage: U32<'k>) -> Shared<'k> {
        self.shared.at(self.layout.w).at(stage * self.cfg.w_bytes())
    }

    /// Barrier whose phase ends when W has arrived as FP32.
    pub fn landed(&self, stage: U32<'k>) -> MBarrier<'k> {
        MBarrier(self.shared.at(self.layout.landed).at(stage * MBarrier::BYTES))
    }
}
