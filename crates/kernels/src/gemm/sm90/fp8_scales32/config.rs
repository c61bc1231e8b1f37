//! Configuration of the persistent FP8 kernel with scales of 32, and its shared-memory map.

use crate::common::pipeline::Pipeline;
use crate::common::{BLOCK_K, WARP, WARPGROUP};
use crate::gemm::epilogue::PANEL_BYTES;
use crate::gemm::operand::fp8::SCALE_K;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::params::ScalesOfB;
use crate::gemm::persistent::{KRanges, PersistentShape};
use crate::gemm::scheduler::k_grouped::PITCH_UNIT;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::store_pipeline::PartShape;
use crate::gemm::sm90::warpgroups::{
    ConsumerTile, MATH_REGISTERS, MATH_WARPGROUPS, PRODUCER_REGISTERS, THREADS,
};
use oxigemm_ptx::{BuildError, Kernel, Module, SharedLayout};

/// Rows (or columns) whose scales a lane of a scale producer has, 32 apart.
pub(super) const PER_LANE: u32 = 2;
/// Rows (or columns) of a scale producer warp: as 128x128 tiles have four of those, each partition of an SM has one.
pub(super) const PER_WARP: u32 = PER_LANE * WARP;
/// K blocks of a stage that share scales.
pub(super) const STEPS: u32 = BLOCK_K / SCALE_K;

/// Configuration that is compiled in. Shapes, strides, the cluster's dimensions and the output type are run-time
/// arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of a tile: 64 or 128.
    pub block_m: u32,
    /// Columns of a tile: 64 or 128.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is grouped: nothing, or rows.
    pub grouping: Grouping,
    /// Granularity of B's scales: 32x32 blocks, or 1x32 as A has them.
    pub scales_of_b: ScalesOfB,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { block_m, block_n, stages, .. } = self;
        let grouped = if self.is_grouped() { "m_grouped_" } else { "" };
        let scales = match self.scales_of_b {
            ScalesOfB::Rows => "1x32",
            ScalesOfB::Blocks => "32x32",
        };
        format!("sm90_fp8_gemm_persistent_{grouped}{scales}_{block_m}x{block_n}_s{stages}")
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        self.grouping == Grouping::Rows
    }

    /// Threads of a block: one warpgroup more than other kernels have, of scale producers.
    pub fn threads(&self) -> u32 {
        THREADS + WARPGROUP
    }

    /// Registers of a consumer thread and of the others. With fewer accumulators there are more for the scales that scale
    /// producers hold.
    pub(super) fn registers(&self) -> [u32; 2] {
        let moved = if self.shape().columns() > 64 { 24 } else { 64 };
        [MATH_REGISTERS - 16 - moved, PRODUCER_REGISTERS + moved]
    }

    /// Warps that load scales.
    pub(super) fn scale_warps(&self) -> u32 {
        (self.block_m + self.block_n) / PER_WARP
    }

    /// Whether TMA stores an FP32 D: not where a warpgroup has fewer columns than a panel of 16-bit output, for which
    /// there is no store thread.
    pub fn tma_stores_f32(&self) -> bool {
        self.shape().columns() >= 64
    }

    /// Rows of A that one tensor load takes, for clusters of this many blocks along N.
    pub fn box_rows(&self, cluster_n: u32) -> u32 {
        let share = self.block_m / cluster_n;
        if self.is_grouped() { share.min(self.shape().group_box_rows()) } else { share }
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    /// What the tile scheduler has to know.
    pub(super) fn persistent(&self) -> PersistentShape {
        PersistentShape {
            tile: [self.block_m, self.block_n],
            grouping: self.grouping,
            fusion: Fusion::None,
            columns: self.shape().columns(),
            quantized_passes: 1,
            serpentine_k: false,
            d_in_slabs: false,
            k_ranges: KRanges::OwnMatrices(PITCH_UNIT, BLOCK_K),
        }
    }

    pub(super) fn shape(&self) -> ConsumerTile {
        ConsumerTile { block_m: self.block_m, block_n: self.block_n }
    }

    /// Part of a tile that a warpgroup computes.
    pub(super) fn part(&self) -> PartShape {
        PartShape { m_subtiles: self.shape().m_subtiles(), columns: self.shape().columns() }
    }

    /// Bytes of the scales of a stage: for each of its [`STEPS`] those of rows, then those of columns.
    pub(super) fn scale_bytes(&self) -> u32 {
        STEPS * self.step_bytes()
    }

    /// Bytes from the scales of one step to those of the next.
    pub(super) fn step_bytes(&self) -> u32 {
        (self.block_m + self.block_n) * 4
    }

    /// Bytes of a consumer warpgroup's staging area.
    pub(super) fn staging_bytes(&self) -> u32 {
        self.part().panels() * PANEL_BYTES
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        super::build(self)
    }
}

/// Shared-memory map: every offset in one place.
pub(super) struct SharedMap {
    pub a: u32,
    pub b: u32,
    pub staging: u32,
    pub scales: u32,
    pub barriers: u32,
    pub output_barriers: u32,
    /// M-grouped: of each stage, the message about its tile.
    pub messages: u32,
    pub groups: u32,
    bytes: u32,
}

impl SharedMap {
    pub(super) fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let a = layout.place(cfg.stages * cfg.block_m * BLOCK_K, 1024);
        let b = layout.place(cfg.stages * cfg.block_n * BLOCK_K, 1024);
        let staging = layout.place(MATH_WARPGROUPS * cfg.staging_bytes(), 1024);
        let scales = layout.place(cfg.stages * cfg.scale_bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let output_barriers = layout.place(Pipeline::barrier_bytes(MATH_WARPGROUPS), 8);
        let messages = if cfg.is_grouped() { cfg.stages * TileMessage::BYTES } else { 0 };
        let messages = layout.place(messages, if cfg.is_grouped() { TileMessage::BYTES } else { 1 });
        let bytes = layout.bytes();
        SharedMap { a, b, staging, scales, barriers, output_barriers, messages, groups: bytes, bytes }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    pub(super) fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("a", self.a, cfg.block_m * BLOCK_K, cfg.stages);
        k.name_shared("b", self.b, cfg.block_n * BLOCK_K, cfg.stages);
        k.name_shared("staging", self.staging, cfg.staging_bytes(), MATH_WARPGROUPS);
        k.name_shared("scales", self.scales, cfg.scale_bytes(), cfg.stages);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        Pipeline::name_barriers(k, ["staged", "stored"], self.output_barriers, MATH_WARPGROUPS);
        if cfg.is_grouped() {
            k.name_shared("places", self.messages, TileMessage::BYTES, cfg.stages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::sm90;

    #[test]
    fn every_row_and_column_has_a_scale_producer_and_registers_are_those_of_the_launch() {
        let scaled =
            |kernel| if let sm90::Kernel::Fp8Scales32(config) = kernel { Some(config) } else { None };
        let configs: Vec<Config> = sm90::Kernel::all().filter_map(scaled).collect();
        assert!(!configs.is_empty());
        for config in configs {
            let name = config.name();
            assert!(
                [config.block_m, config.block_n].iter().all(|dim| dim.is_multiple_of(PER_WARP)),
                "{name}"
            );
            assert!(config.scale_warps() <= WARPGROUP / WARP, "{name}");
            let launched = 65_536 / config.threads() / 8 * 8;
            assert_eq!(config.registers().iter().sum::<u32>(), 2 * launched, "{name}");
        }
    }
}
