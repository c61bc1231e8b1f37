//! Configuration of the persistent FP8 kernel, and its shared-memory map.

use super::scales_1d1d;
use crate::common::pipeline::Pipeline;
use crate::common::{BLOCK_K, WARPGROUP};
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::epilogue::Panels;
use crate::gemm::epilogue::fp8_output::{QuantizedOutput, passes};
use crate::gemm::epilogue::fusion::{BoxOfB, Fusion};
use crate::gemm::operand::fp8::{self, E5m2};
use crate::gemm::params::ScalesOfB;
use crate::gemm::persistent::{KRanges, PersistentShape};
use crate::gemm::scheduler::dynamic::DynamicScheduler;
use crate::gemm::scheduler::k_grouped::PITCH_UNIT;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::stream_k::{StreamK, UNIT};
use crate::gemm::sm90::scale_pipeline::{ScalePipeline, ScaleShape};
use crate::gemm::sm90::store_pipeline::PartShape;
use crate::gemm::sm90::stream_k;
use crate::gemm::sm90::warpgroups::{
    ConsumerTile, MATH_REGISTERS, MATH_WARPGROUPS, PRODUCER_REGISTERS, THREADS,
};
use oxigemm_ptx::{BuildError, Kernel, Module, SharedLayout, U32};

/// Configuration that is compiled in. Shapes, strides, the cluster's dimensions and the output type are run-time
/// arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Rows of a tile: 64, 128 or 256.
    pub block_m: u32,
    /// Columns of a tile: a multiple of 16, of 32 where it has 64 rows.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is grouped.
    pub grouping: Grouping,
    /// Whether D of groups is stored slab by slab, so that slabs may lie any distance apart: those of a batch.
    pub d_in_slabs: bool,
    /// Granularity of B's scales.
    pub scales_of_b: ScalesOfB,
    /// Which operands are e5m2, if any is.
    pub e5m2: Option<E5m2>,
    /// Fused epilogue.
    pub fusion: Fusion,
    /// Whether the tiles of the last wave are [split along K](crate::gemm::scheduler::stream_k).
    pub stream_k: bool,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let grouped = match self.grouping {
            Grouping::Dense => "",
            Grouping::Rows if self.d_in_slabs => "batched_",
            Grouping::Rows => "m_grouped_",
            Grouping::K => "k_grouped_",
        };
        let scales = if self.scales_of_b == ScalesOfB::Rows { "1d1d_" } else { "" };
        let grouped = if self.stream_k { "stream_k_" } else { grouped };
        let (types, fused) = (fp8::prefix(self.e5m2), self.fusion.name());
        let (block_m, block_n, stages) = (self.block_m, self.block_n, self.stages);
        format!("sm90_fp8_gemm_persistent_{types}{fused}{grouped}{scales}{block_m}x{block_n}_s{stages}")
    }

    /// Whether the epilogue is fused.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    /// Columns of D of a tile, in one pass.
    pub fn tile_columns(&self) -> u32 {
        self.block_n / self.fusion.accumulators()
    }

    /// Passes of a tile where D is quantized.
    pub fn quantized_passes(&self) -> u32 {
        if self.is_fused() { passes(self.part_columns()) } else { 1 }
    }

    /// Columns of D that a warpgroup computes at a time.
    pub(super) fn part_columns(&self) -> u32 {
        self.shape().columns() / self.fusion.accumulators()
    }

    /// Box of one tensor load of B, for clusters of this many blocks along M.
    pub fn box_of_b(&self, cluster_m: u32, passes: u32) -> BoxOfB {
        BoxOfB::of(self.fusion, self.block_n / cluster_m, self.part_columns(), passes)
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        self.grouping == Grouping::Rows
    }

    /// Rows of A that one tensor load takes, for clusters of this many blocks along N.
    pub fn box_rows(&self, cluster_n: u32) -> u32 {
        let share = self.block_m / cluster_n;
        if self.is_grouped() { share.min(self.shape().group_box_rows()) } else { share }
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Rows => THREADS + WARPGROUP,
            ScalesOfB::Blocks => THREADS,
        }
    }

    /// Warps that make [operands of scales](scales_1d1d).
    pub(super) fn scale_warps(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Rows => scales_1d1d::scale_warps([self.block_m, self.block_n]),
            ScalesOfB::Blocks => 0,
        }
    }

    /// Registers of a consumer thread and of the others. With 1D1D scales there is a warpgroup more, so there are fewer
    /// for each: consumers hold no scales then.
    pub(super) fn registers(&self) -> [u32; 2] {
        match self.scales_of_b {
            ScalesOfB::Rows => [MATH_REGISTERS - 32, PRODUCER_REGISTERS + 16],
            ScalesOfB::Blocks => [MATH_REGISTERS, PRODUCER_REGISTERS],
        }
    }

    /// Whether the kernel has serpentine K. (With 1D1D scales nothing was gained.)
    pub fn serpentine_k(&self) -> bool {
        self.scales_of_b == ScalesOfB::Blocks && self.grouping != Grouping::K && !self.is_fused()
    }

    /// Whether serpentine K is another order (`KOrder`) where K has so many blocks: several whole scale groups.
    pub fn is_serpentine_in(&self, k_blocks: u32) -> bool {
        let (blocks, group) = (self.padded_blocks(k_blocks), self.scale_blocks());
        self.serpentine_k() && blocks > group && blocks.is_multiple_of(group)
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
            columns: self.part_columns(),
            quantized_passes: self.quantized_passes(),
            serpentine_k: self.serpentine_k(),
            d_in_slabs: self.d_in_slabs,
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

    /// K blocks that the main loop is unrolled by: those whose scales are loaded at once. With a second M-subtile, the
    /// step into the next iteration is taken behind products of the first, and unrolling gains little; in stream-K
    /// kernels, half a percent.
    pub(super) fn unroll(&self) -> u32 {
        match (self.shape().m_subtiles(), self.stream_k) {
            (1, _) => 4,
            (_, true) => UNIT,
            (_, false) => 1,
        }
    }

    /// Whether a tile has a multiple of [`unroll`](Self::unroll) K blocks: those behind the end of K are zero. Large
    /// tiles, whose products fill the registers, are 1 to 2% faster without a loop for the rest, and assembled sooner;
    /// low and narrow ones are there for a K that would waste too much.
    pub(super) fn pads_k(&self) -> bool {
        const LARGE: u32 = 176;
        let large = self.shape().m_subtiles() * self.shape().columns() >= LARGE;
        self.scales_of_b == ScalesOfB::Blocks && self.unroll() > 1 && large
    }

    /// K blocks of a tile where K has that many.
    pub fn padded_blocks(&self, k_blocks: u32) -> u32 {
        if self.pads_k() { k_blocks.next_multiple_of(self.unroll()) } else { k_blocks }
    }

    /// The same inside a kernel.
    pub(super) fn padded<'k>(&self, k_blocks: U32<'k>) -> U32<'k> {
        if self.pads_k() { k_blocks.div_ceil(self.unroll()) * self.unroll() } else { k_blocks }
    }

    /// Accumulators of all threads of a block.
    pub fn accumulators(&self) -> u32 {
        self.block_m * self.block_n
    }

    /// Whether the kernel has the [dynamic scheduler](crate::gemm::scheduler::dynamic): tiles in which groups end take
    /// less time.
    pub fn has_dynamic_scheduler(&self) -> bool {
        self.is_grouped() && self.shape().m_subtiles() > 1 && !self.is_fused() && !self.d_in_slabs
    }

    /// Stream-K split of so many tiles of clusters.
    pub fn stream_k_tiles(&self, tiles: u32, k_blocks: u32, clusters: u32) -> StreamK<u32> {
        match self.stream_k {
            true => StreamK::of(tiles, self.padded_blocks(k_blocks), clusters),
            false => StreamK::default(),
        }
    }

    /// Columns that are sure to share one scale of B, whatever tile and warpgroup they are in, where 128 rows of B
    /// share one.
    pub(super) fn columns_per_scale(&self) -> u32 {
        gcd(self.part_columns(), BLOCK_K)
    }

    /// Bytes of the [scale operands](scales_1d1d) that a stage has beside its tiles: scales of rows, then of columns.
    pub(super) fn scale_operand_bytes(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Blocks => 0,
            ScalesOfB::Rows => scales_1d1d::bytes(self.block_m + self.block_n),
        }
    }

    /// Bytes of the zeros that these operands share.
    pub(super) fn scale_zero_bytes(&self) -> u32 {
        match self.scales_of_b {
            ScalesOfB::Blocks => 0,
            ScalesOfB::Rows => scales_1d1d::bytes(self.shape().columns().max(64)),
        }
    }

    /// K blocks whose scales are loaded together.
    pub fn scale_blocks(&self) -> u32 {
        self.scales().group
    }

    /// Rows of A and K blocks whose scales may be loaded as one piece; none in grouped kernels.
    pub fn scale_piece(&self) -> [u32; 2] {
        self.scales().piece()
    }

    pub(super) fn scales(&self) -> ScaleShape {
        if self.scales_of_b == ScalesOfB::Rows {
            return ScaleShape::MESSAGES;
        }
        let columns_per_scale = self.columns_per_scale();
        let columns = self.block_n / columns_per_scale;
        match self.grouping {
            Grouping::Dense => ScaleShape::dense(self.block_m, columns_per_scale, columns),
            Grouping::Rows | Grouping::K => ScaleShape::grouped(self.block_m, columns_per_scale, columns),
        }
    }

    /// Bytes of a consumer warpgroup's staging area.
    pub(super) fn staging_bytes(&self) -> u32 {
        let (m_subtiles, columns) = (self.shape().m_subtiles(), self.part_columns());
        let rounded = m_subtiles * Panels::staging_bytes(columns);
        match (self.fusion, self.scales_of_b) {
            // With such scales, output is mostly added to FP32: space for all of it, where there is.
            (Fusion::None, ScalesOfB::Rows) => 2 * rounded,
            (Fusion::None, _) => rounded,
            _ => rounded.max(QuantizedOutput::staging_bytes(m_subtiles, columns)),
        }
    }

    /// Builds the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        super::build(self)
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Shared-memory map: every offset in one place.
pub(super) struct SharedMap {
    pub a: u32,
    pub b: u32,
    pub staging: u32,
    pub scale_operands: u32,
    pub scale_zeros: u32,
    pub scales: u32,
    pub barriers: u32,
    pub scale_barriers: u32,
    pub output_barriers: u32,
    /// Stream-K: the words of the [fix-up](stream_k).
    pub fixup_words: u32,
    /// Dynamic scheduler: the ring of next tiles, and its barriers.
    pub next_tiles: [u32; 2],
    /// K-grouped: tensor maps that are being made.
    pub map_drafts: u32,
    pub groups: u32,
    pub bytes: u32,
}

impl SharedMap {
    pub(super) fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let a = layout.place(cfg.stages * cfg.block_m * BLOCK_K, 1024);
        let b = layout.place(cfg.stages * cfg.block_n * BLOCK_K, 1024);
        let staging = layout.place(MATH_WARPGROUPS * cfg.staging_bytes(), 1024);
        let scale_operands = layout.place(cfg.stages * cfg.scale_operand_bytes(), 128);
        let scale_zeros = layout.place(cfg.scale_zero_bytes(), 128);
        let scales = layout.place(cfg.scales().bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let scale_barriers = layout.place(ScaleShape::BARRIER_BYTES, 8);
        let output_barriers = layout.place(Pipeline::barrier_bytes(MATH_WARPGROUPS), 8);
        let fixup_words = layout.place(if cfg.stream_k { stream_k::SHARED_BYTES } else { 0 }, 4);
        let ring_bytes = [DynamicScheduler::BYTES, DynamicScheduler::BARRIER_BYTES];
        let next_tiles =
            ring_bytes.map(|bytes| layout.place(if cfg.has_dynamic_scheduler() { bytes } else { 0 }, 8));
        let draft_bytes = if cfg.grouping == Grouping::K { DynamicTensorMaps::DRAFT_BYTES } else { 0 };
        let map_drafts = layout.place(draft_bytes, if draft_bytes > 0 { 128 } else { 1 });
        let groups = layout.bytes();
        let bytes = layout.bytes();
        SharedMap {
            a,
            b,
            staging,
            scale_operands,
            scale_zeros,
            scales,
            barriers,
            scale_barriers,
            output_barriers,
            fixup_words,
            next_tiles,
            map_drafts,
            groups,
            bytes,
        }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    pub(super) fn name(&self, k: &Kernel, cfg: &Config) {
        k.name_shared("a", self.a, cfg.block_m * BLOCK_K, cfg.stages);
        k.name_shared("b", self.b, cfg.block_n * BLOCK_K, cfg.stages);
        k.name_shared("staging", self.staging, cfg.staging_bytes(), MATH_WARPGROUPS);
        if cfg.scale_operand_bytes() > 0 {
            k.name_shared("scale_operands", self.scale_operands, cfg.scale_operand_bytes(), cfg.stages);
            k.name_shared("scale_zeros", self.scale_zeros, cfg.scale_zero_bytes(), 1);
        }
        cfg.scales().name(k, self.scales);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        ScalePipeline::name_barriers(k, self.scale_barriers);
        Pipeline::name_barriers(k, ["staged", "stored"], self.output_barriers, MATH_WARPGROUPS);
        if cfg.has_dynamic_scheduler() {
            let [slots, barriers] = self.next_tiles;
            DynamicScheduler::name(k, slots, barriers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::sm90;

    #[test]
    fn the_register_split_is_that_of_the_launch() {
        let fp8 = |kernel| if let sm90::Kernel::Fp8Persistent(config) = kernel { Some(config) } else { None };
        for config in sm90::Kernel::all().filter_map(fp8) {
            let warpgroups = config.threads() / WARPGROUP;
            let launched = 65_536 / config.threads() / 8 * 8;
            let [consumer, producer] = config.registers();
            let split = MATH_WARPGROUPS * consumer + (warpgroups - MATH_WARPGROUPS) * producer;
            assert_eq!(split, warpgroups * launched, "{}", config.name());
        }
    }
}
