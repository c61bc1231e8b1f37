//! Tensor-memory map of the persistent kernel: two accumulators and the scales of a stage.
//!
//! Two accumulators of 256 columns leave no room for scales. They then share as many columns as the scales take, the last
//! ones of the first accumulator and the first ones of the second:
//!
//! ```text
//! column 0                     240  256                    496  512
//!        |    accumulator 0     |....|                      |    |
//!        |                      |....|    accumulator 1     |    |
//!        |                      |....|                      | scales
//! ```
//!
//! The MMAs of a tile may begin when the epilogue has read the shared columns of the tile before, which it takes first:
//! by then it is done with the tile before that, whose accumulator they write. So one pair of barriers is enough, as if
//! there were one accumulator.

use super::{Block, Config};
use crate::common::pipeline::Cursor;
use crate::gemm::TensorMemoryPart;
use crate::gemm::sm100::scales::GROUP_COLUMNS;
use oxigemm_ptx::tcgen05::TensorMemory;
use oxigemm_ptx::{Pred, U32};

/// Accumulators. The MMAs of a tile overlap the epilogue of the one before.
const ACCUMULATORS: u32 = 2;
/// Shared columns are a multiple of so many.
const SHARED_UNIT: u32 = 16;

impl Config {
    fn columns_of_scales(&self) -> u32 {
        self.scaled_groups().iter().sum::<u32>() * self.scale_words() * GROUP_COLUMNS
    }

    /// Columns that both accumulators have, where there is no room for two without.
    pub fn shared_columns(&self) -> u32 {
        let needed = ACCUMULATORS * self.block_n + self.columns_of_scales();
        needed.saturating_sub(TensorMemory::COLUMNS).next_multiple_of(SHARED_UNIT)
    }

    /// Whether there are such columns.
    pub(super) fn shares_columns(&self) -> bool {
        self.shared_columns() > 0
    }

    /// Columns from the first accumulator to the second.
    fn accumulator_step(&self) -> u32 {
        self.block_n - self.shared_columns()
    }

    /// Pairs of barriers between MMA and epilogue.
    pub(super) fn accumulator_barriers(&self) -> u32 {
        if self.shares_columns() { 1 } else { ACCUMULATORS }
    }

    /// The first column of the scales in tensor memory, behind the accumulators.
    pub(super) fn scales_column(&self) -> u32 {
        ACCUMULATORS * self.block_n - self.shared_columns()
    }

    /// Columns of tensor memory that the kernel uses.
    pub fn used_columns(&self) -> u32 {
        self.scales_column() + self.columns_of_scales()
    }

    /// Columns of tensor memory that the kernel allocates.
    pub fn allocated_columns(&self) -> u32 {
        self.used_columns().next_power_of_two().clamp(32, TensorMemory::COLUMNS)
    }

    /// What lies in tensor memory, in the order of its columns.
    pub fn tensor_memory(&self) -> Vec<TensorMemoryPart> {
        let [of_a, of_b] = self.scaled_groups().map(|groups| groups * self.scale_words() * GROUP_COLUMNS);
        let (own, shared) = (self.accumulator_step(), self.shared_columns());
        let part = |name, columns| TensorMemoryPart { name, columns };
        let parts = [
            part("accumulator 0", own),
            part("both accumulators", shared),
            part("accumulator 1", own),
            part("scales of A", of_a),
            part("scales of B", of_b),
            part("free", self.allocated_columns() - self.used_columns()),
        ];
        parts.into_iter().filter(|part| part.columns > 0).collect()
    }
}

/// A role's accumulator of a tile.
#[derive(Clone, Copy)]
pub(super) struct Accumulator<'k> {
    /// Which of the two it is.
    pub nth: U32<'k>,
    /// Its first column.
    pub memory: TensorMemory<'k>,
}

impl<'k> Block<'k, '_> {
    /// The accumulator of a role's current tile. Where there is one pair of barriers, its parity tells: `first` is that
    /// of the role's first tile.
    pub(super) fn accumulator(
        &self,
        memory: TensorMemory<'k>,
        cursor: &Cursor<'k>,
        first: u32,
    ) -> Accumulator<'k> {
        let nth = if self.cfg.shares_columns() { cursor.parity() ^ first } else { cursor.stage() };
        Accumulator { nth, memory: memory.column(nth * self.cfg.accumulator_step()) }
    }

    /// The column that the epilogue reads `nth`, of columns of D that it reads `step` at a time: shared ones are first.
    pub(super) fn column_read(&self, accumulator: Accumulator<'k>, nth: U32<'k>, step: u32) -> U32<'k> {
        if !self.cfg.shares_columns() {
            return nth;
        }
        accumulator.nth.eq(0).select(self.cfg.tile_columns() - step - nth, nth)
    }

    /// Lets the MMAs of the next tile begin when the last of the columns read first are read, where there are shared
    /// ones.
    pub(super) fn release_shared(&self, was_last: Pred<'k>, release: impl FnOnce()) {
        if self.cfg.shares_columns() {
            self.k.if_(was_last, || {
                release();
                // One lane has arrived; all of them stage what was read.
                self.k.sync_warp();
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::sm100::Kernel;
    use crate::gemm::sm100::persistent::epilogue::COLUMNS;

    fn configs() -> impl Iterator<Item = Config> {
        Kernel::all().filter_map(|kernel| match kernel {
            Kernel::Persistent(config) => Some(config),
            Kernel::SplitK(_) => None,
        })
    }

    #[test]
    fn everything_fits_and_nothing_that_must_be_apart_overlaps() {
        for config in configs() {
            assert!(config.used_columns() <= TensorMemory::COLUMNS, "{}", config.name());
            assert_eq!(
                config.accumulator_step() + config.block_n,
                config.scales_column(),
                "{}",
                config.name()
            );
        }
    }

    #[test]
    fn shared_columns_are_read_first() {
        for config in configs() {
            // The epilogue reads so many at a time at least; of gates and ups each.
            assert!(config.shared_columns() <= COLUMNS, "{}", config.name());
        }
    }

    #[test]
    fn only_tiles_of_256_columns_with_scales_share() {
        for config in configs() {
            let needs = config.block_n == 256 && config.scale_words() > 0;
            assert_eq!(config.shares_columns(), needs, "{}", config.name());
        }
    }
}
