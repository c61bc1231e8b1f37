//! Configuration of the persistent 16-bit kernel, and its shared-memory map.

use crate::common::pipeline::Pipeline;
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::epilogue::PANEL_BYTES;
use crate::gemm::epilogue::fp8_output::{QuantizedOutput, passes};
use crate::gemm::operand::f16::{OperandTile, Operands};
use crate::gemm::operand::gate_up::{BoxOfB, Fusion};
use crate::gemm::persistent::{KRanges, PersistentShape};
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::scheduler::stream_k::StreamK;
use crate::gemm::scheduler::tile::TileMessage;
use crate::gemm::sm90::store_pipeline::PartShape;
use crate::gemm::sm90::stream_k;
use crate::gemm::sm90::warpgroups::{
    ConsumerTile, MATH_REGISTERS, MATH_WARPGROUPS, PRODUCER_REGISTERS, THREADS,
};
use oxigemm_ptx::{BuildError, Kernel, Module, SharedLayout};

/// Configuration that is compiled in. Shapes, strides, the cluster's dimensions and whether D is FP32 are run-time
/// arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The operands.
    pub operands: Operands,
    /// Rows of a tile: 64, 128 or 256.
    pub block_m: u32,
    /// Columns of a tile: a multiple of 16, of 32 where it has 64 rows, of 64 where B is N-major.
    pub block_n: u32,
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is grouped; A of m-grouped kernels is K-major.
    pub grouping: Grouping,
    /// Whether the tiles of the last wave are [split along K](crate::gemm::scheduler::stream_k).
    pub stream_k: bool,
    /// Fused epilogue.
    pub fusion: Fusion,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { operands, block_m, block_n, stages, .. } = self;
        let (element, layout) = (operands.element.name(), operands.layout());
        let grouped = match self.grouping {
            Grouping::Dense => "",
            Grouping::Rows => "m_grouped_",
            Grouping::K => "k_grouped_",
        };
        let grouped = if self.stream_k { "stream_k_" } else { grouped };
        let fused = self.fusion.name();
        format!("sm90_{element}_gemm_persistent_{fused}{grouped}{layout}_{block_m}x{block_n}_s{stages}")
    }

    /// Whether rows are grouped.
    pub fn is_grouped(&self) -> bool {
        self.grouping == Grouping::Rows
    }

    /// Whether the kernel has serpentine K.
    pub fn serpentine_k(&self) -> bool {
        self.grouping != Grouping::K && !self.is_fused()
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        THREADS
    }

    /// Registers of a consumer thread, and of the others: the store thread of a stream-K kernel follows its parts.
    pub(super) fn registers(&self) -> [u32; 2] {
        match self.stream_k {
            true => [MATH_REGISTERS - 16, PRODUCER_REGISTERS + 32],
            false => [MATH_REGISTERS, PRODUCER_REGISTERS],
        }
    }

    /// FP32 accumulators of a block.
    pub fn accumulators(&self) -> u32 {
        self.block_m * self.block_n
    }

    /// Split of the last wave of so many tiles of clusters, with so many K blocks.
    pub fn stream_k_tiles(&self, tiles: u32, k_blocks: u32, clusters: u32) -> StreamK<u32> {
        match self.stream_k {
            true => StreamK::of(tiles, k_blocks, clusters),
            false => StreamK::default(),
        }
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    /// The operands' parts of a stage.
    pub(super) fn tiles(&self) -> [OperandTile; 2] {
        let Operands { a, b, .. } = self.operands;
        [OperandTile { major: a, rows: self.block_m }, OperandTile { major: b, rows: self.block_n }]
    }

    /// Bytes of the tiles of a stage.
    pub(super) fn stage_bytes(&self) -> u32 {
        self.tiles().iter().map(OperandTile::bytes).sum()
    }

    /// Lines of 128 bytes that one tensor load of A takes, for clusters of so many blocks along N.
    pub(crate) fn loaded_lines_of_a(&self, cluster_n: u32) -> u32 {
        let share = self.tiles()[0].lines() / cluster_n;
        if self.is_grouped() { share.min(self.shape().group_box_rows()) } else { share }
    }

    /// Box of one tensor load of B, in lines, for clusters of so many blocks along M.
    pub(crate) fn box_of_b(&self, cluster_m: u32, passes: u32) -> BoxOfB {
        BoxOfB::of(self.fusion, self.tiles()[1].lines() / cluster_m, self.part().columns, passes)
    }

    /// What the tile scheduler has to know.
    pub(super) fn persistent(&self) -> PersistentShape {
        PersistentShape {
            tile: [self.block_m, self.tile_columns()],
            grouping: self.grouping,
            fusion: self.fusion,
            columns: self.part().columns,
            quantized_passes: self.quantized_passes(),
            serpentine_k: self.serpentine_k(),
            d_in_slabs: false,
            k_ranges: KRanges::OfOneMatrix(self.operands.k_unit(), None),
        }
    }

    pub(super) fn shape(&self) -> ConsumerTile {
        ConsumerTile { block_m: self.block_m, block_n: self.block_n }
    }

    /// Part of a tile that a warpgroup computes, in columns of D.
    pub(super) fn part(&self) -> PartShape {
        PartShape {
            m_subtiles: self.shape().m_subtiles(),
            columns: self.shape().columns() / self.fusion.accumulators(),
        }
    }

    /// Bytes of a consumer warpgroup's staging area.
    pub(super) fn staging_bytes(&self) -> u32 {
        (self.part().panels() * PANEL_BYTES).max(self.quantized_bytes())
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
        if self.is_fused() { passes(self.part().columns) } else { 1 }
    }

    /// Bytes of a staging area that a warpgroup needs where D is quantized.
    fn quantized_bytes(&self) -> u32 {
        let part = self.part();
        if self.is_fused() { QuantizedOutput::staging_bytes(part.m_subtiles, part.columns) } else { 0 }
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
    pub barriers: u32,
    pub output_barriers: u32,
    /// M-grouped: of each stage, the message about its tile.
    pub messages: u32,
    /// K-grouped: tensor maps that are being made.
    pub map_drafts: u32,
    /// Stream-K: the words of the [fix-up](stream_k).
    pub fixup_words: u32,
    pub groups: u32,
    bytes: u32,
}

impl SharedMap {
    pub(super) fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let [a, b] = cfg.tiles().map(|tile| layout.place(cfg.stages * tile.bytes(), 1024));
        let staging = layout.place(MATH_WARPGROUPS * cfg.staging_bytes(), 1024);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let output_barriers = layout.place(Pipeline::barrier_bytes(MATH_WARPGROUPS), 8);
        let messages = if cfg.is_grouped() { cfg.stages * TileMessage::BYTES } else { 0 };
        let messages = layout.place(messages, if cfg.is_grouped() { TileMessage::BYTES } else { 1 });
        let draft_bytes = if cfg.grouping == Grouping::K { DynamicTensorMaps::DRAFT_BYTES } else { 0 };
        let map_drafts = layout.place(draft_bytes, if draft_bytes > 0 { 128 } else { 1 });
        let fixup_words = layout.place(if cfg.stream_k { stream_k::SHARED_BYTES } else { 0 }, 4);
        let bytes = layout.bytes();
        SharedMap {
            a,
            b,
            staging,
            barriers,
            output_barriers,
            messages,
            map_drafts,
            fixup_words,
            groups: bytes,
            bytes,
        }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    pub(super) fn name(&self, k: &Kernel, cfg: &Config) {
        let [a, b] = cfg.tiles();
        k.name_shared("a", self.a, a.bytes(), cfg.stages);
        k.name_shared("b", self.b, b.bytes(), cfg.stages);
        k.name_shared("staging", self.staging, cfg.staging_bytes(), MATH_WARPGROUPS);
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        Pipeline::name_barriers(k, ["staged", "stored"], self.output_barriers, MATH_WARPGROUPS);
        if cfg.is_grouped() {
            k.name_shared("places", self.messages, TileMessage::BYTES, cfg.stages);
        }
    }
}
