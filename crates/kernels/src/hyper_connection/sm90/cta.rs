//! Context of a CTA: parameters, shared memory, pipeline, and its range of stages.

use super::config::{Config, STAGES, SmemLayout};
use super::params::Params;
use crate::common::pipeline::Pipeline;
use oxigemm_ptx::{Kernel, MBarrier, Shared, U32};

/// Context that every role of the kernel works with.
pub(super) struct Cta<'k, 'c> {
    pub k: &'k Kernel,
    pub cfg: &'c Config,
    pub params: Params<'k>,
    pub layout: SmemLayout,
    pub shared: Shared<'k>,
    pub pipeline: Pipeline<'k>,
    pub warp: U32<'k>,
    pub lane: U32<'k>,
    /// First of the CTAs that share the same rows, and this one.
    pub first_cta: U32<'k>,
    pub index: U32<'k>,
    /// Their first stage.
    pub first_stage: U32<'k>,
    /// Stages of this CTA: the first, and the one behind the last.
    pub begin: U32<'k>,
    pub end: U32<'k>,
}

impl<'k, 'c> Cta<'k, 'c> {
    /// Declares the parameters and lays out the shared memory.
    pub fn new(k: &'k Kernel, cfg: &'c Config) -> Self {
        let params = Params::declare(k, "");
        let (layout, shared) = (SmemLayout::new(cfg), k.dynamic_shared());
        layout.name(k, cfg);
        let pipeline = Pipeline::new(k, shared.at(layout.barriers), STAGES, STAGES);
        let (warp, lane) = (k.warp_index(), k.lane());
        let [sharers, nth] = [0, 1].map(|dimension| k.block_index(dimension));
        let first_cta = sharers * params.sharing_ctas;
        let first_stage = sharers * params.shared_stages;
        let [begin, end] = [nth, nth + 1].map(|nth| first_stage + params.cta_stages().begin(nth));
        let index = first_cta + nth;
        Cta {
            k,
            cfg,
            params,
            layout,
            shared,
            pipeline,
            warp,
            lane,
            first_cta,
            index,
            first_stage,
            begin,
            end,
        }
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
