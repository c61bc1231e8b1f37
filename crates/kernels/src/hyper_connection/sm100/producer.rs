//! Producer: TMA loads.

use super::Cta;
use super::config::{W_BOX_K, W_BOXES};
use crate::hyper_connection::BLOCK_K;
use oxigemm_ptx::tma::{Eviction, LoadOptions};

impl Cta<'_, '_> {
    /// Producer thread: TMA loads of both operands.
    pub(super) fn load(&self) {
        let (k, cfg, s) = (self.k, self.cfg, &self.scheduler);
        let p = &s.params;
        let cursor = self.pipeline.writer();
        // X is read once.
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..LoadOptions::default() };
        let position = s.first_position();
        k.for_(s.begin, s.end, 1, |_| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let full = self.pipeline.full(stage);
            let column = position.k_block.live() * BLOCK_K;
            full.arrive_expecting(cfg.x_bytes() + cfg.w_bytes());
            p.x.load(&[column, position.row.get()], self.x(stage), full, once);
            for nth in 0..W_BOXES {
                let (at, to) = (column + nth * W_BOX_K, self.w(stage).at(nth * cfg.w_box_bytes()));
                p.w.load(&[at, k.constant(0), k.constant(0)], to, full, LoadOptions::default());
            }
            cursor.advance();
            s.advance(&position);
        });
        k.launch_dependents();
    }
}
