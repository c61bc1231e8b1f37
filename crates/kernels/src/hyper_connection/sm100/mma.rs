//! MMA role: one thread multiplies.

use super::Cta;
use super::config::{ACCUMULATORS, KIND, LINE, STEPS, W_BOX_K};
use oxigemm_ptx::tcgen05::{CtaGroup, MatrixA, TensorMemory};
use oxigemm_ptx::wgmma::{Descriptor, Swizzle};
use oxigemm_ptx::{Pred, U32};

impl<'k> Cta<'k, '_> {
    /// MMA: all stages of every output unit of this CTA.
    pub(super) fn multiply(&self, memory: TensorMemory<'k>) {
        let (k, s) = (self.k, &self.scheduler);
        let cursor = self.pipeline.reader();
        let stage = k.var_from(s.begin);
        k.while_(
            || stage.live().lt(s.end),
            || {
                let first = stage.get();
                let end = s.unit(first).end.min(s.end);
                k.do_while(|| {
                    // The cast warps have also read the accumulators of the unit before.
                    self.cast_barrier(cursor.stage()).wait(cursor.parity());
                    k.tcgen05_fence_after();
                    self.multiply_stage(memory, cursor.stage(), stage.live().ne(first));
                    k.tcgen05_commit(CtaGroup::One, self.pipeline.empty(cursor.stage()));
                    cursor.advance();
                    stage.set(stage.live() + 1);
                    stage.live().lt(end)
                });
                k.tcgen05_commit(CtaGroup::One, self.computed());
            },
        );
    }

    /// Issues the MMAs of a stage, of which the first of a unit overwrite the accumulators.
    fn multiply_stage(&self, memory: TensorMemory<'k>, stage: U32<'k>, accumulate: Pred<'k>) {
        let (k, cfg) = (self.k, self.cfg);
        let (x, w) = (self.x_in_tensor_memory(memory, stage), self.w(stage));
        for step in 0..STEPS {
            let depth = step * KIND.k();
            let accumulator = memory.column(step % ACCUMULATORS * cfg.mma_columns());
            let adds = if step < ACCUMULATORS { accumulate } else { k.constant(true) };
            let tile = w.at(depth / W_BOX_K * cfg.w_box_bytes());
            let b = Descriptor::k_major(tile, Swizzle::B128).advance(depth * 4 % LINE);
            let a = MatrixA::Tensor(x.column(depth));
            k.tcgen05_mma(CtaGroup::One, &cfg.instruction(), accumulator, a, b, adds);
        }
    }
}
