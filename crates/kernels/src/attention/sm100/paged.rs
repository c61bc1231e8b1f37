//! Paged MQA logits of a decode step: roles of the kernel.

use super::config::{Config, EPILOGUE_WARPS};
use super::scales::PageLoads;
use super::{Cta, FILL_WARP, KEY_WARP, MMA_WARP, UNIT_WARP, drain};
use crate::attention::context_lens::ContextLens;
use crate::attention::logits::head_count;
use crate::attention::paged::{Paged, Params};
use crate::attention::shape::Format;
use crate::attention::smem::Smem;
use oxigemm_ptx::Kernel;

pub(super) fn write(k: &Kernel, cfg: &Config) {
    let params = Params::declare(k, "");
    let query_scales = (cfg.format == Format::Fp4).then(|| k.param_pointer("query_scales"));
    let Params { lengths: at, sequences, next, per_query, limit, .. } = params;
    let lengths = ContextLens { at, sequences, next, per_query, limit, any_next: true };
    let smem = Smem::new(k, cfg.smem());
    let (warp, lane) = (k.warp_index(), k.lane());
    let roles = &Paged { k, params, lengths, smem, padded: true, lane };
    let loads = PageLoads { keys: roles.load_size(), scale_bytes: roles.scale_bytes() };
    let cta = &Cta::new(k, cfg, &roles.smem, Some(loads), warp, lane);
    cta.begin();
    let maps = [&roles.params.queries, &roles.params.keys, &roles.params.scales];
    // MMA and the epilogue warps release a unit.
    roles.smem.begin(k, (warp, KEY_WARP), lane, maps, EPILOGUE_WARPS + 1);
    let memory = cta.memory();

    k.if_(warp.lt(EPILOGUE_WARPS), || {
        k.role("epilogue", || cta.reduce(memory, roles.params.flags));
    });
    k.if_(warp.eq(KEY_WARP), || k.role("keys", || roles.load_keys()));
    k.if_(warp.eq(UNIT_WARP), || {
        k.role("units", || {
            let slots = roles.produce_units(|slot, sequence, queries| {
                let Some(scales) = query_scales else { return };
                let first = sequence * next + queries.first;
                let heads = head_count(roles.params.flags);
                cta.load_query_scales(slot, [first, first + queries.count], scales, heads);
            });
            drain(&slots);
        });
    });
    k.if_(warp.eq(MMA_WARP), || k.role("mma", || cta.multiply(memory)));
    k.if_(warp.ge(FILL_WARP), || k.role("fill", || roles.fill(warp - FILL_WARP)));
    cta.end(memory);
}
