//! Producer: TMA loads, and the L2 prefetch before them.

use super::config::{PRODUCER, W_LINES};
use super::cta::Cta;
use crate::common::WARP;
use crate::common::l2_prefetch::Rows;
use crate::gemm::sm90::warpgroups::MATH_WARPS;
use crate::hyper_connection::{BLOCK_K, BLOCK_M};
use oxigemm_ptx::tma::{Eviction, LoadOptions};

impl<'k> Cta<'k, '_> {
    /// L2 prefetch of the first two stages: X by the math warps, W by the splitters.
    pub fn prefetch(&self) {
        let (k, p) = (self.k, &self.scheduler.params);
        let [rows, nth] = [0, 1].map(|dimension| k.block_index(dimension));
        let first = nth * p.k_splits_per_cta;
        let x = Rows { at: p.x_rows, pitch: p.x_pitch, count: p.rows };
        let w = Rows { at: p.w_rows, pitch: p.w_pitch, count: k.constant(self.cfg.columns) };
        k.if_else(
            self.warp.lt(MATH_WARPS),
            || {
                for k_block in [first, first + p.k_splits] {
                    let tile = (rows * BLOCK_M, BLOCK_M);
                    x.prefetch_lines(k, k.thread_index(), tile, [k_block, p.k_blocks], 1);
                }
            },
            || {
                let thread = k.thread_index() - (PRODUCER + 1) * WARP;
                for k_block in [first, first + p.k_splits] {
                    // The last K block may have one line only.
                    let lines = [k_block * W_LINES, p.k_blocks * W_LINES - (W_LINES - 1)];
                    w.prefetch_lines(k, thread, (k.constant(0), self.cfg.columns), lines, W_LINES);
                }
            },
        );
    }

    /// Producer thread: TMA loads of both operands.
    pub fn load(&self) {
        let (k, cfg, s) = (self.k, self.cfg, &self.scheduler);
        let p = &s.params;
        let cursor = self.pipeline.writer();
        // X is read once.
        let once = LoadOptions { cache: Some(k.cache_policy(Eviction::First)), ..LoadOptions::default() };
        let position = s.first_position();
        k.for_(s.begin, s.end, 1, |_| {
            cursor.wait_empty();
            let stage = cursor.stage();
            let (landed, full) = (self.landed(stage), self.pipeline.full(stage));
            let column = position.k_block.live() * BLOCK_K;
            landed.arrive_expecting(cfg.w_bytes());
            p.w.load(&[column, k.constant(0), k.constant(0)], self.w(stage), landed, LoadOptions::default());
            full.arrive_expecting(cfg.x_bytes());
            p.x.load(&[column, position.row.get()], self.x(stage), full, once);
            cursor.advance();
            s.advance(&position);
        });
        k.launch_dependents();
    }
}
