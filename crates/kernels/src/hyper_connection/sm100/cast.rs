//! Cast warps: X to tensor memory as TF32, its squares, W rounded to TF32; and the reduction between CTAs.

use super::Cta;
use super::config::{ACCUMULATORS, CAST_THREADS, CAST_WARPS, LINE, W_BOXES};
use crate::common::WARP;
use crate::common::workspace_reduce::WorkspaceReduce;
use crate::hyper_connection::square;
use oxigemm_ptx::tcgen05::TensorMemory;
use oxigemm_ptx::{Bf16x2, F32, U32, Var};

/// Vectors of 16 bytes of a row of X in a stage, and how many of them go to tensor memory at a time.
const VECTORS: u32 = LINE / 16;
const VECTORS_AT_ONCE: u32 = VECTORS / 2;

/// Squares of a row, in groups of sums for vectors in turn: the fewer are added to a sum, the less it loses.
type Squares<'k> = [[Var<'k, f32>; 4]; SQUARE_GROUPS];
const SQUARE_GROUPS: usize = VECTORS_AT_ONCE as usize;

impl<'k> Cta<'k, '_> {
    /// Cast warp: a row of every stage for each thread, and the same row of D.
    pub(super) fn cast(&self, memory: TensorMemory<'k>) {
        let (k, s) = (self.k, &self.scheduler);
        let workspace = WorkspaceReduce {
            k,
            workspace: s.params.workspace,
            threads: CAST_THREADS,
            thread: self.row(),
            values: self.cfg.values(),
        };
        k.if_(s.params.sharing_ctas.gt(1), || workspace.warm(s.index));
        let lanes = memory.lane(self.warp * WARP);
        let squares: Squares<'k> = [(); SQUARE_GROUPS].map(|()| [(); 4].map(|()| k.var(0.0f32)));
        let cursor = self.pipeline.reader();
        let (stage, computed) = (k.var_from(s.begin), k.var(0u32));
        k.while_(
            || stage.live().lt(s.end),
            || {
                let unit = s.unit(stage.get());
                squares.as_flattened().iter().for_each(|square| square.set(0.0));
                let end = unit.end.min(s.end);
                k.do_while(|| {
                    cursor.wait_full();
                    // The MMAs of this stage before are over.
                    k.tcgen05_fence_after();
                    self.widen_x(lanes, cursor.stage(), &squares);
                    self.round_w(cursor.stage());
                    k.tensor_memory_wait_stores();
                    k.tcgen05_fence_before();
                    k.fence_async_shared();
                    k.sync_warp();
                    k.guard(self.lane.eq(0), || self.cast_barrier(cursor.stage()).arrive());
                    cursor.advance();
                    stage.set(stage.live() + 1);
                    stage.live().lt(end)
                });
                self.computed().wait(computed.get());
                computed.set(computed.live() ^ 1);
                k.tcgen05_fence_after();
                let values = self.values(lanes, &squares);
                let is_complete = unit.begin.ge(s.begin) & unit.end.le(s.end);
                k.if_else(
                    is_complete,
                    || self.store(&unit, &values),
                    || workspace.reduce(s.contributors(&unit), &values, |totals| self.store(&unit, &totals)),
                );
            },
        );
        s.clear_splits(self.cfg.columns, (self.warp, self.lane), CAST_THREADS);
    }

    /// Row of a tile that a thread has: its lane of tensor memory.
    pub(super) fn row(&self) -> U32<'k> {
        self.warp * WARP + self.lane
    }

    /// Widens this thread's row of X into tensor memory, and adds its squares.
    fn widen_x(&self, lanes: TensorMemory<'k>, stage: U32<'k>, squares: &Squares<'k>) {
        let row = self.x(stage).at(self.row() * LINE);
        // Eight neighbouring lanes read the same 16 bytes of eight rows, which the swizzle puts into different banks.
        let vector = |nth: u32| row.at((self.lane & 7 ^ nth) << 4).load_vec::<Bf16x2, 4>();
        let to = self.x_in_tensor_memory(lanes, stage);
        for first in (0..VECTORS).step_by(VECTORS_AT_ONCE as usize) {
            let vectors: Vec<_> = (first..first + VECTORS_AT_ONCE).map(vector).collect();
            vectors.iter().zip(squares).for_each(|(words, squares)| square(*words, squares));
            let wide = vectors.as_flattened().iter().flat_map(|pair| pair.to_f32());
            let wide: Vec<U32<'k>> = wide.map(|x| x.bitcast::<u32>()).collect();
            to.column(first * 8).store_rows(&wide);
        }
    }

    /// Rounds W to TF32 where it is, a box with each two of the warps. (The tensor core would ignore the lower bits.)
    fn round_w(&self, stage: U32<'k>) {
        const WARPS: u32 = CAST_WARPS / W_BOXES;
        let (warps, vector) = (self.warp / WARPS, self.row() % (WARPS * WARP));
        let own = self.w(stage).at(warps * self.cfg.w_box_bytes() + vector * 16);
        let steps = (0..self.cfg.w_box_bytes()).step_by((WARPS * WARP * 16) as usize);
        let vectors: Vec<_> = steps.map(|at| (at, own.at(at).load_vec::<f32, 4>())).collect();
        for (at, numbers) in vectors {
            own.at(at).store_vec(numbers.map(|number| number.to_tf32()));
        }
    }

    /// Values of this thread: its row of D, and the squares of its row of X.
    fn values(&self, lanes: TensorMemory<'k>, squares: &Squares<'k>) -> Vec<F32<'k>> {
        let columns = self.cfg.mma_columns();
        let parts: Vec<Vec<U32<'k>>> =
            (0..ACCUMULATORS).map(|nth| lanes.column(nth * columns).load_rows(columns)).collect();
        self.k.tensor_memory_wait_loads();
        let part = |nth: usize, column: usize| parts[nth][column].bitcast::<f32>();
        let of_column = |column: usize| add([0, 1, 2, 3].map(|nth| part(nth, column)));
        let products = (0..self.cfg.columns as usize).map(of_column);
        let square = add(squares.map(|squares| add(squares.map(|square| square.live()))));
        products.chain([square]).collect()
    }
}

fn add([a, b, c, d]: [F32<'_>; 4]) -> F32<'_> {
    (a + b) + (c + d)
}
