//! Math warpgroups: MMA on both parts of W, squares of X meanwhile, and the reduction between CTAs.

use super::config::{LINE, MATH_THREADS};
use super::cta::Cta;
use crate::common::WARP;
use crate::common::workspace_reduce::WorkspaceReduce;
use crate::hyper_connection::{BLOCK_K, square};
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::wgmma::{Descriptor, Major, MatrixA, MmaType, Swizzle};
use oxigemm_ptx::{Bf16x2, F32, Pred, U32, Var};

impl<'k> Cta<'k, '_> {
    /// Math warpgroup: 64 rows of every stage.
    pub fn multiply(&self) {
        let (k, cfg, s, lane) = (self.k, self.cfg, &self.scheduler, self.lane);
        let p = &s.params;
        let workspace = WorkspaceReduce {
            k,
            workspace: p.workspace,
            threads: MATH_THREADS,
            thread: self.warp * WARP + lane,
            values: cfg.values(),
        };
        k.if_(p.sharing_ctas.gt(1), || workspace.warm(s.index));
        let accumulators = k.fragment::<f32>(cfg.columns as usize);
        let squares = [(); 4].map(|()| k.var(0.0f32));
        // Eight neighbouring lanes read the same 16 bytes of eight rows, which the swizzle puts into different banks.
        let swizzled = ((lane >> 4) * 4) ^ (lane & 7);
        let parts = [0u32, 1, 2, 3].map(|part| self.square_row() * LINE + ((swizzled ^ part) << 4));
        let cursor = self.pipeline.reader();
        let stage = k.var_from(s.begin);
        k.while_(
            || stage.live().lt(s.end),
            || {
                let first = stage.get();
                let unit = s.unit(first);
                squares.iter().for_each(|square| square.set(0.0));
                let end = unit.end.min(s.end);
                k.do_while(|| {
                    cursor.wait_full();
                    self.multiply_stage(cursor.stage(), &accumulators, stage.live().ne(first));
                    let x = self.x(cursor.stage());
                    let words = parts.map(|part| x.at(part).load_vec::<Bf16x2, 4>());
                    words.into_iter().for_each(|words| square(words, &squares));
                    k.wgmma_wait(0);
                    k.sync_warp();
                    k.guard(lane.eq(0), || self.pipeline.empty(cursor.stage()).arrive());
                    cursor.advance();
                    stage.set(stage.live() + 1);
                    stage.live().lt(end)
                });
                let values = self.values(&accumulators, &squares);
                let is_complete = unit.begin.ge(s.begin) & unit.end.le(s.end);
                k.if_else(
                    is_complete,
                    || self.store(&unit, &values),
                    || {
                        let ctas = s.contributors(&unit);
                        workspace.reduce(ctas, &values, |totals| self.store(&unit, &totals));
                    },
                );
            },
        );
        s.clear_splits(cfg.columns, (self.warp, lane), MATH_THREADS);
    }

    /// Issues the MMA of a stage.
    fn multiply_stage(&self, stage: U32<'k>, accumulators: &[Var<'k, f32>], accumulate: Pred<'k>) {
        let (k, types) = (self.k, MmaType::Bf16);
        let x = self.x(stage).at((self.warp >> 2) * (64 * LINE));
        let [x, w] = [x, self.w(stage)].map(|tile| Descriptor::k_major(tile, Swizzle::B128));
        k.wgmma_fence();
        for step in 0..BLOCK_K / types.k() {
            let along = step * types.k() * 2;
            let accumulate = if step == 0 { accumulate } else { k.constant(true) };
            let a = MatrixA::Shared(x.advance(along));
            k.wgmma(types, accumulators, a, w.advance(along), (Major::K, Major::K), accumulate);
        }
        k.wgmma_commit();
    }

    /// Row whose squares a thread adds: half of them. The lane 16 further on adds the other half.
    pub fn square_row(&self) -> U32<'k> {
        self.warp * 16 + (self.lane & 15)
    }

    /// Values of this thread: its columns of two rows, and the squares of a row.
    fn values(&self, accumulators: &[Var<'k, f32>], squares: &[Var<'k, f32>; 4]) -> Vec<F32<'k>> {
        // Neighbouring accumulators belong to the two parts of the same number.
        let products =
            accumulators.as_chunks::<2>().0.iter().map(|[upper, lower]| upper.live() + lower.live());
        let [a, b, c, d] = squares.map(|square| square.live());
        let square = (a + b) + (c + d);
        let square = square + self.k.shuffle(Shuffle::Xor, square, 16u32);
        products.chain([square]).collect()
    }
}
