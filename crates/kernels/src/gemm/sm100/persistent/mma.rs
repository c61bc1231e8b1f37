//! MMA role of the persistent kernel: one thread multiplies.

use super::Block;
use super::config::STEPS;
use crate::gemm::scheduler::k_grouped::TileKGroup;
use crate::gemm::scheduler::launch_control::Reader;
use crate::gemm::sm100::scales::{GROUP_BYTES, GROUP_COLUMNS, copy_groups};
use oxigemm_ptx::tcgen05::{MatrixA, Scales, TensorMemory};
use oxigemm_ptx::{MBarrier, U32};

impl<'k> Block<'k, '_> {
    /// MMA: all stages of a tile into one accumulator, while the epilogue reads the other.
    pub(super) fn multiply_tiles(&self, memory: TensorMemory<'k>) {
        let (k, cfg) = (self.k, self.cfg);
        let (stages, accumulators) = (self.pipe.reader(), self.accumulators.writer());
        let multiply = |group: Option<&TileKGroup<'k>>| {
            match cfg.pair {
                true => accumulators.wait_empty_in_cluster(),
                false => accumulators.wait_empty(),
            }
            k.tcgen05_fence_after();
            let accumulator = self.accumulator(memory, &accumulators, 1).memory;
            k.for_(0, self.k_stages(group), 1, |block| {
                match cfg.pair {
                    true => self.pipe.full(stages.stage()).wait_for_cluster(stages.parity()),
                    false => stages.wait_full(),
                }
                k.tcgen05_fence_after();
                self.multiply_stage(memory, accumulator, stages.stage(), block);
                self.commit(self.pipe.empty(stages.stage()));
                stages.advance();
            });
            self.commit(self.accumulators.full(accumulators.stage()));
            accumulators.advance();
        };
        match self.k_groups {
            None => self.scheduler.for_each_index(k, |_| multiply(None)),
            Some(_) => self.for_each_tile(Reader::Thread, |tile| multiply(tile.k_group.as_ref())),
        }
    }

    /// Issues the MMAs of a full stage, of which the first of a tile overwrite the accumulator.
    fn multiply_stage(
        &self,
        memory: TensorMemory<'k>,
        accumulator: TensorMemory<'k>,
        stage: U32<'k>,
        block: U32<'k>,
    ) {
        let (k, cfg) = (self.k, self.cfg);
        let (kind, [a_tile, b_tile]) = (cfg.kind(), cfg.tiles());
        let [a, b] = self.stage(stage);
        let (a, b) = (a_tile.descriptor(a), b_tile.descriptor(b));
        let to = memory.column(cfg.scales_column());
        copy_groups(cfg.group(), self.scales(stage), to, cfg.scale_bytes() / GROUP_BYTES);
        for step in 0..STEPS {
            let a = MatrixA::Shared(a.advance(a_tile.step_offset(step, kind.k())));
            let b = b.advance(b_tile.step_offset(step, kind.k()));
            let adds = if step == 0 { block.ne(0) } else { k.constant(true) };
            if !kind.has_scales() {
                k.tcgen05_mma(cfg.group(), &cfg.instruction(0), accumulator, a, b, adds);
                continue;
            }
            // The scales of a step, of the four in a word.
            let first = step * kind.scales();
            let (word, instruction) = (first / 4, cfg.instruction(first % 4));
            let scales = self.scale_columns(memory, word);
            k.tcgen05_mma_scaled(cfg.group(), &instruction, accumulator, a, b, scales, adds);
        }
    }

    /// Where the scales of a word are in tensor memory.
    fn scale_columns(&self, memory: TensorMemory<'k>, word: u32) -> Scales<'k> {
        let [of_a, of_b] = self.cfg.scaled_groups();
        let first = self.cfg.scales_column() + word * (of_a + of_b) * GROUP_COLUMNS;
        Scales { a: memory.column(first), b: memory.column(first + of_a * GROUP_COLUMNS) }
    }

    /// Arrives at a barrier, in both CTAs of a pair, when what this thread has issued is complete.
    fn commit(&self, barrier: MBarrier<'k>) {
        let (k, group) = (self.k, self.cfg.group());
        match self.cfg.pair {
            true => k.tcgen05_commit_multicast(group, barrier, (k.constant(3u32) << self.leader).to_u16()),
            false => k.tcgen05_commit(group, barrier),
        }
    }
}
