//! MQA logits of a prefill: roles of the kernel.

use super::config::{Config, EPILOGUE_WARPS, WARPS};
use super::{Cta, FILL_WARP, KEY_WARP, MMA_WARP, UNIT_WARP, drain};
use crate::attention::logits::head_count;
use crate::attention::prefill::{Params, Prefill};
use crate::attention::scheduler::{CostCount, KeyRanges};
use crate::attention::shape::Format;
use crate::attention::smem::Smem;
use oxigemm_ptx::Kernel;

pub(super) fn write(k: &Kernel, cfg: &Config) {
    let params = Params::declare(k, "");
    let query_scales = (cfg.format == Format::Fp4).then(|| k.param_pointer("query_scales"));
    let smem = Smem::new(k, cfg.smem());
    let (warp, lane) = (k.warp_index(), k.lane());
    let ranges = KeyRanges {
        starts: params.starts,
        ends: params.ends,
        query_count: params.query_count,
        key_count: params.key_count,
        columns: params.columns,
        block_queries: cfg.unit_queries(),
    };
    let costs = CostCount { ranges, words: smem.words(), warps: WARPS };
    let roles = &Prefill { k, params, smem, ranges, padded: true, lane };
    let cta = &Cta::new(k, cfg, &roles.smem, None, warp, lane);
    cta.begin();
    let maps = [&roles.params.queries, &roles.params.keys, &roles.params.scales];
    // Keys, MMA and the epilogue warps release a unit.
    roles.smem.begin(k, (warp, KEY_WARP), lane, maps, EPILOGUE_WARPS + 2);
    let memory = cta.memory();
    costs.count(k, warp, lane);
    k.sync_threads();

    k.if_(warp.lt(EPILOGUE_WARPS), || {
        k.role("epilogue", || cta.reduce(memory, roles.params.flags));
    });
    k.if_(warp.eq(KEY_WARP), || k.if_(k.elect(), || k.role("keys", || roles.load_keys())));
    k.if_(warp.eq(UNIT_WARP), || {
        let range = costs.cta_range(k);
        k.role("units", || {
            let slots = roles.produce_units(range, |slot, query| {
                let Some(scales) = query_scales else { return };
                let queries = [query, roles.params.query_count];
                cta.load_query_scales(slot, queries, scales, head_count(roles.params.flags));
            });
            drain(&slots);
        });
    });
    k.if_(warp.eq(MMA_WARP), || k.role("mma", || cta.multiply(memory)));
    k.if_(warp.ge(FILL_WARP), || k.role("fill", || roles.fill(warp - FILL_WARP)));
    cta.end(memory);
}
