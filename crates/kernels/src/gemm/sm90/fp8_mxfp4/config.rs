//! Configuration of the persistent FP8 by MXFP4 kernel, and its shared-memory map.

use crate::common::pipeline::Pipeline;
use crate::common::{BLOCK_K, WARPGROUP};
use crate::gemm::epilogue::fusion::{Fusion, SCALED_COLUMNS};
use crate::gemm::persistent::{KRanges, PersistentShape};
use crate::gemm::scheduler::k_grouped::PITCH_UNIT;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::warpgroups::MATH_WARPGROUPS;
use crate::gemm::split_k::dsmem_reduce::ReduceShape;
use oxigemm_ptx::{BuildError, Kernel, Module, SharedLayout};

/// Bytes of a row of B in a stage: two codes each.
pub(super) const CODE_LINE: u32 = BLOCK_K / 2;
/// Rows of B that both consumer warpgroups multiply at a time.
pub(super) const ROWS_AT_ONCE: u32 = MATH_WARPGROUPS * 64;
/// Bytes of what a scale producer writes for a row of B.
pub(super) const ROW_SCALE_BYTES: u32 = 8;
/// Rows of A that a scale producer writes scales of, at least: its lanes.
const LEAST_A_SCALES: u32 = 32;

/// Configuration that is compiled in. Shapes, strides and the output type are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of A in a tile: 16, 32, 64 or 128.
    pub block_m: u32,
    /// Rows of B in a tile: 128; 256 with a gate, half of them gates.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is grouped: nothing, or rows.
    pub grouping: Grouping,
    /// Fused epilogue.
    pub fusion: Fusion,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { block_m, block_n, stages, .. } = self;
        let grouped = if self.is_grouped() { "m_grouped_" } else { "" };
        format!("sm90_fp8_mxfp4_gemm_persistent_{}{grouped}{block_m}x{block_n}_s{stages}", self.fusion.name())
    }

    /// Whether consumers widen in registers, and no warpgroup widens for them: few accumulators leave room for that.
    pub(super) fn widens_in_registers(&self) -> bool {
        self.block_m * self.block_n <= 32 * 128
    }

    /// Blocks that run on an SM at a time: with registers for a second, that hides what one waits for.
    pub fn blocks_per_sm(&self) -> u32 {
        if self.widens_in_registers() && self.block_n == 128 { 2 } else { 1 }
    }

    /// Warpgroups that widen, each every so many-th stage: one takes longer for a stage than the tensor cores, but
    /// accumulators of many rows leave no registers for a second.
    pub(super) fn converter_warpgroups(&self) -> u32 {
        match self.block_m * self.block_n {
            _ if self.widens_in_registers() => 0,
            ..0x4000 => 2,
            _ => 1,
        }
    }

    /// Threads of a block: consumer warpgroups, one of producers, and converters.
    pub fn threads(&self) -> u32 {
        (MATH_WARPGROUPS + 1 + self.converter_warpgroups()) * WARPGROUP
    }

    /// Registers of a consumer thread and of the others: a scale producer holds several words of several rows.
    pub(super) fn registers(&self) -> [u32; 2] {
        match (self.block_m, self.block_n) {
            (128, _) | (64, 256) => [168, 88],
            (64, _) => [144, 64],
            (32, 256) => [104, 88],
            (_, 256) => [208, 88],
            _ => [96, 48],
        }
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        self.grouping == Grouping::Rows
    }

    /// Whether the epilogue is fused.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    /// Columns of D of a tile: those that share a scale where D is quantized.
    pub fn tile_columns(&self) -> u32 {
        self.block_n / self.fusion.accumulators()
    }

    /// Subtiles of 64 rows of B that a warpgroup has, [`ROWS_AT_ONCE`] apart.
    pub(super) fn subtiles(&self) -> u32 {
        self.block_n / ROWS_AT_ONCE
    }

    /// Rows of A that one tensor load takes: in m-grouped kernels not too many, as those behind a group's last are left
    /// out by whole loads.
    pub fn box_rows(&self) -> u32 {
        if self.is_grouped() { self.block_m.min(64) } else { self.block_m }
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    /// What the tile scheduler has to know.
    pub(super) fn persistent(&self) -> PersistentShape {
        PersistentShape {
            tile: [self.block_m, self.tile_columns()],
            grouping: self.grouping,
            fusion: self.fusion,
            columns: self.tile_columns(),
            quantized_passes: 1,
            serpentine_k: false,
            d_in_slabs: false,
            k_ranges: KRanges::OwnMatrices(PITCH_UNIT, BLOCK_K),
        }
    }

    pub(super) fn a_bytes(&self) -> u32 {
        self.block_m * BLOCK_K
    }

    /// Bytes of the operands of a stage.
    pub(super) fn stage_bytes(&self) -> u32 {
        self.a_bytes() + self.block_n * CODE_LINE
    }

    /// Bytes of a widened tile of B.
    pub(super) fn wide_bytes(&self) -> u32 {
        self.block_n * BLOCK_K
    }

    /// Widened tiles in shared memory: what converters are at, and what consumers are.
    pub(super) fn wide_tiles(&self) -> u32 {
        match (self.converter_warpgroups(), self.block_n) {
            (0, _) => 0,
            (1, 128) => 3,
            (2, 128) => 4,
            _ => 2,
        }
    }

    /// Offsets of the scales of a stage: of rows of A at 0; of rows of B; and how those are applied, a word for each 64
    /// rows. Then the bytes of all.
    pub(super) fn scale_map(&self) -> [u32; 3] {
        let of_b = self.block_m.max(LEAST_A_SCALES) * 4;
        let applied = of_b + self.block_n * ROW_SCALE_BYTES;
        [of_b, applied, (applied + self.block_n / 64 * 4).next_multiple_of(16)]
    }

    pub(super) fn scale_bytes(&self) -> u32 {
        self.scale_map()[2]
    }

    /// The tile of accumulators that the epilogue reads rows of.
    pub(super) fn published(&self) -> ReduceShape {
        ReduceShape {
            rows: self.block_m,
            columns: self.block_n,
            swapped: true,
            beside: 1,
            threads: super::mainloop::MATH_THREADS,
        }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        debug_assert_eq!(self.tile_columns(), SCALED_COLUMNS);
        super::build(self)
    }
}

/// Shared-memory map: every offset in one place.
pub(super) struct SharedMap {
    pub a: u32,
    pub codes: u32,
    /// Widened tiles of B.
    pub wide: u32,
    /// Accumulators of a tile, `[block_m][block_n]` with padding.
    pub accumulators: u32,
    pub scales: u32,
    pub barriers: u32,
    pub wide_barriers: u32,
    /// M-grouped: of each stage, the message about its tile.
    pub messages: u32,
    pub groups: u32,
    bytes: u32,
}

impl SharedMap {
    pub(super) fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes, those of codes every 512.
        let a = layout.place(cfg.stages * cfg.a_bytes(), 1024);
        let codes = layout.place(cfg.stages * cfg.block_n * CODE_LINE, 1024);
        let wide = layout.place(cfg.wide_tiles() * cfg.wide_bytes(), 1024);
        let accumulators = layout.place(cfg.published().bytes(), 128);
        let scales = layout.place(cfg.stages * cfg.scale_bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let wide_barriers = layout.place(Pipeline::barrier_bytes(cfg.wide_tiles()), 8);
        let messages = if cfg.is_grouped() { cfg.stages * TileMessage::BYTES } else { 0 };
        let messages = layout.place(messages, if cfg.is_grouped() { TileMessage::BYTES } else { 1 });
        let bytes = layout.bytes();
        SharedMap {
            a,
            codes,
            wide,
            accumulators,
            scales,
            barriers,
            wide_barriers,
            messages,
            groups: bytes,
            bytes,
        }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    pub(super) fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("a", self.a, cfg.a_bytes(), cfg.stages);
        k.name_shared("codes", self.codes, cfg.block_n * CODE_LINE, cfg.stages);
        if cfg.wide_tiles() > 0 {
            k.name_shared("widened", self.wide, cfg.wide_bytes(), cfg.wide_tiles());
            Pipeline::name_barriers(k, ["converted", "multiplied"], self.wide_barriers, cfg.wide_tiles());
        }
        k.name_shared("accumulators", self.accumulators, cfg.published().bytes(), 1);
        k.name_shared("scales", self.scales, cfg.scale_bytes(), cfg.stages);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
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
    fn tiles_are_whole_subtiles_and_registers_are_those_of_the_launch() {
        let widening = |kernel| if let sm90::Kernel::Fp8Mxfp4(config) = kernel { Some(config) } else { None };
        let configs: Vec<Config> = sm90::Kernel::all().filter_map(widening).collect();
        assert!(!configs.is_empty());
        for config in configs {
            let name = config.name();
            assert_eq!(config.tile_columns(), SCALED_COLUMNS, "{name}");
            assert_eq!(config.subtiles() * ROWS_AT_ONCE, config.block_n, "{name}");
            assert!([16, 32, 64, 128].contains(&config.block_m), "{name}");
            let launched = 65_536 / config.blocks_per_sm() / config.threads() / 8 * 8;
            let [consumer, other] = config.registers();
            let warpgroups = config.threads() / WARPGROUP;
            let asked = MATH_WARPGROUPS * consumer + (warpgroups - MATH_WARPGROUPS) * other;
            assert!(asked <= warpgroups * launched, "{name}");
            assert!(config.shared_bytes() * config.blocks_per_sm() <= 227 << 10, "{name}");
        }
    }
}
