//! Configuration of the persistent kernel, its shared-memory map and its tensor-memory map.

use crate::common::pipeline::Pipeline;
use crate::gemm::TensorMemoryPart;
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::epilogue::PANEL_BYTES;
use crate::gemm::kind::{ElementType, OperandKind};
use crate::gemm::operand::f16::Major;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::persistent::{KRanges, PersistentShape};
use crate::gemm::scheduler::k_grouped::PITCH_UNIT;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::sm100::operand::{OperandTile, layout_name, mma_kind, operands_name, scale_words};
use crate::gemm::sm100::scales::{GROUP_BYTES, GROUP_COLUMNS, GROUP_ROWS};
use oxigemm_ptx::tcgen05::{CtaGroup, Instruction, Kind, OutputType, TensorMemory};
use oxigemm_ptx::{BuildError, Kernel, Module, SharedLayout};

/// Rows of a CTA's tile: the lanes of tensor memory.
pub const BLOCK_M: u32 = 128;
/// Threads of a CTA: four warps for loads, MMAs and scales, and an epilogue warp for each quarter of the lanes.
pub const THREADS: u32 = 256;
/// MMAs of a stage.
pub(super) const STEPS: u32 = 4;
/// Staging buffers of an epilogue warp.
pub(super) const BUFFERS: u32 = 2;
/// Panels of 64 rows of a tile.
pub(super) const PANELS: u32 = BLOCK_M / 64;

/// Configuration that is compiled in. Shapes, strides and the layout of groups are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The operands.
    pub operands: OperandKind,
    /// Columns of the accumulator: a multiple of 32, of 64 where B is N-major.
    pub block_n: u32,
    /// Whether two CTAs share the MMA: 256 rows, of which each CTA has half, and half of B's rows.
    pub pair: bool,
    /// Stages of the pipeline.
    pub stages: u32,
    /// What is grouped.
    pub grouping: Grouping,
    /// Fused epilogue.
    pub fusion: Fusion,
}

impl Config {
    /// The kernel's name, unique in the closed set.
    pub fn name(&self) -> String {
        let Config { operands, block_n, stages, .. } = *self;
        let grouped = match self.grouping {
            Grouping::Dense => "",
            Grouping::Rows => "m_grouped_",
            Grouping::K => "k_grouped_",
        };
        let (fused, layout) = (self.fusion.name(), layout_name(operands));
        let (operands, rows) = (operands_name(operands), BLOCK_M * self.ctas());
        format!("sm100_{operands}_gemm_persistent_{fused}{grouped}{layout}_{rows}x{block_n}_s{stages}")
    }

    /// CTAs that share an MMA.
    pub const fn ctas(&self) -> u32 {
        if self.pair { 2 } else { 1 }
    }

    pub(super) const fn group(&self) -> CtaGroup {
        if self.pair { CtaGroup::Two } else { CtaGroup::One }
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        SharedMap::new(self).bytes
    }

    /// The operands' parts of a CTA's stage.
    pub(in crate::gemm::sm100) fn tiles(&self) -> [OperandTile; 2] {
        let OperandKind { a, b, .. } = self.operands;
        let tile = |operand, rows| OperandTile { operand, rows, block_k: self.operands.block_k() };
        [tile(a, BLOCK_M), tile(b, self.block_n / self.ctas())]
    }

    /// Bytes that TMA loads of a stage, in all CTAs that share the MMA.
    pub(super) fn loaded_bytes(&self) -> u32 {
        self.tiles().iter().map(OperandTile::loaded_bytes).sum::<u32>() * self.ctas()
    }

    pub(super) fn kind(&self) -> Kind {
        mma_kind(self.operands)
    }

    /// The MMA of a step whose scales are at these bytes of their words.
    pub(super) fn instruction(&self, scale_byte: u32) -> Instruction {
        let OperandKind { a, b, .. } = self.operands;
        Instruction::new(self.kind(), OutputType::F32, BLOCK_M * self.ctas(), self.block_n)
            .majors(a.major, b.major)
            .scale_bytes(scale_byte, scale_byte)
    }

    /// Words of scales of a row in a stage.
    pub(super) fn scale_words(&self) -> u32 {
        scale_words(self.operands)
    }

    /// Groups of 128 rows that have scales: those of a CTA's A, and all rows of B.
    pub(super) fn scaled_groups(&self) -> [u32; 2] {
        [1, self.block_n.div_ceil(GROUP_ROWS)]
    }

    /// Bytes of scales of a stage.
    pub(super) fn scale_bytes(&self) -> u32 {
        self.scale_words() * self.scaled_groups().iter().sum::<u32>() * GROUP_BYTES
    }

    /// Columns of D of a tile.
    pub fn tile_columns(&self) -> u32 {
        self.block_n / self.fusion.accumulators()
    }

    /// Whether the epilogue is fused.
    pub fn is_fused(&self) -> bool {
        self.fusion != Fusion::None
    }

    /// What the tile scheduler has to know.
    pub(super) fn persistent(&self) -> PersistentShape {
        PersistentShape {
            tile: [BLOCK_M, self.tile_columns()],
            grouping: self.grouping,
            fusion: self.fusion,
            columns: self.tile_columns(),
            quantized_passes: 1,
            serpentine_k: false,
            d_in_slabs: true,
            k_ranges: self.k_ranges(),
        }
    }

    /// How groups lie along K, in k-grouped kernels: K-major operands with scales are matrices of their own.
    pub(super) fn k_ranges(&self) -> KRanges {
        let block_k = self.operands.scale_block.size();
        match self.operands.as_f16() {
            Some(operands) => KRanges::OfOneMatrix(operands.k_unit(), None),
            None if self.operands.a.major == Major::MN => KRanges::OfOneMatrix(1, Some(block_k)),
            None => KRanges::OwnMatrices(PITCH_UNIT * self.elements_of_byte(), block_k),
        }
    }

    /// Elements of K in a byte of an operand whose groups are matrices of their own.
    pub(super) fn elements_of_byte(&self) -> u32 {
        if self.operands.a.element == ElementType::E2m1 { 2 } else { 1 }
    }

    /// Accumulators in tensor memory. With two, the MMAs of a tile overlap the epilogue of the one before.
    pub fn accumulators(&self) -> u32 {
        if 2 * self.block_n + self.columns_of_scales() <= TensorMemory::COLUMNS { 2 } else { 1 }
    }

    fn columns_of_scales(&self) -> u32 {
        self.scaled_groups().iter().sum::<u32>() * self.scale_words() * GROUP_COLUMNS
    }

    /// The first column of the scales in tensor memory, behind the accumulators.
    pub(super) fn scales_column(&self) -> u32 {
        self.accumulators() * self.block_n
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
        let part = |name, columns| TensorMemoryPart { name, columns };
        let accumulators = ["accumulator 0", "accumulator 1"].into_iter().take(self.accumulators() as usize);
        let scales = [part("scales of A", of_a), part("scales of B", of_b)];
        let free = part("free", self.allocated_columns() - self.used_columns());
        let parts = accumulators.map(|name| part(name, self.block_n)).chain(scales).chain([free]);
        parts.filter(|part| part.columns > 0).collect()
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
    /// Scales of each stage.
    pub scales: u32,
    pub barriers: u32,
    pub accumulator_barriers: u32,
    /// Address of the allocated tensor memory.
    pub allocation: u32,
    /// K-grouped: tensor maps that are being made.
    pub map_drafts: u32,
    pub groups: u32,
    bytes: u32,
}

impl SharedMap {
    pub fn new(cfg: &Config) -> Self {
        let mut layout = SharedLayout::default();
        // Swizzled tiles repeat every 1024 bytes.
        let [a, b] = cfg.tiles().map(|tile| layout.place(cfg.stages * tile.bytes(), 1024));
        let staging = layout.place(PANELS * BUFFERS * PANEL_BYTES, 1024);
        let scales = layout.place(cfg.stages * cfg.scale_bytes(), 128);
        let barriers = layout.place(Pipeline::barrier_bytes(cfg.stages), 8);
        let accumulator_barriers = layout.place(Pipeline::barrier_bytes(cfg.accumulators()), 8);
        let allocation = layout.place(8, 8);
        let draft_bytes = if cfg.grouping == Grouping::K { DynamicTensorMaps::DRAFT_BYTES } else { 0 };
        let map_drafts = layout.place(draft_bytes, if draft_bytes > 0 { 128 } else { 1 });
        let bytes = layout.bytes();
        SharedMap {
            a,
            b,
            staging,
            scales,
            barriers,
            accumulator_barriers,
            allocation,
            map_drafts,
            groups: bytes,
            bytes,
        }
    }

    /// Gives names to its parts, for the simulator's messages and timeline.
    pub fn name(&self, k: &Kernel, cfg: &Config) {
        let [a, b] = cfg.tiles();
        k.name_shared("a", self.a, a.bytes(), cfg.stages);
        k.name_shared("b", self.b, b.bytes(), cfg.stages);
        k.name_shared("staging", self.staging, BUFFERS * PANEL_BYTES, PANELS);
        if cfg.scale_bytes() > 0 {
            k.name_shared("scales", self.scales, cfg.scale_bytes(), cfg.stages);
        }
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        Pipeline::name_barriers(k, ["computed", "written"], self.accumulator_barriers, cfg.accumulators());
    }
}
