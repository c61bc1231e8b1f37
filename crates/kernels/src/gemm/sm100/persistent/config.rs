//! Configuration of the persistent kernel and its shared-memory map.

use super::EPILOGUE_WARPS;
use crate::common::pipeline::Pipeline;
use crate::gemm::dynamic_tensor_maps::DynamicTensorMaps;
use crate::gemm::epilogue::PANEL_BYTES;
use crate::gemm::kind::{ElementType, OperandKind};
use crate::gemm::operand::f16::Major;
use crate::gemm::operand::gate_up::Fusion;
use crate::gemm::persistent::{KRanges, PersistentShape};
use crate::gemm::scheduler::k_grouped::PITCH_UNIT;
use crate::gemm::scheduler::launch_control::LaunchControl;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::sm100::operand::{OperandTile, layout_name, mma_kind, operands_name, scale_words};
use crate::gemm::sm100::scales::{GROUP_BYTES, GROUP_ROWS};
use oxigemm_ptx::tcgen05::{CtaGroup, Instruction, Kind, OutputType};
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
    /// Whether clusters claim tiles as they go, and do not stride through them.
    pub claims: bool,
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
        let claims = if self.claims { "clc_" } else { "" };
        let (operands, rows) = (operands_name(operands), BLOCK_M * self.ctas());
        format!(
            "sm100_{operands}_gemm_persistent_{claims}{fused}{grouped}{layout}_{rows}x{block_n}_s{stages}"
        )
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

    /// Roles that read responses to claims, in all CTAs that share the MMA: in each the producer, the scale producer and
    /// the epilogue warps, in the one that multiplies the MMA thread, and in the other that which waits for responses.
    pub(super) fn claim_readers(&self) -> u32 {
        let scales = if self.scale_words() > 0 { 1 } else { 0 };
        self.ctas() * (2 + scales + EPILOGUE_WARPS)
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
    /// Responses to claims, and their barriers.
    pub responses: u32,
    pub response_barriers: u32,
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
        let accumulator_barriers = layout.place(Pipeline::barrier_bytes(cfg.accumulator_barriers()), 8);
        let allocation = layout.place(8, 8);
        let [response_bytes, response_barrier_bytes] =
            if cfg.claims { [LaunchControl::BYTES, LaunchControl::BARRIER_BYTES] } else { [0; 2] };
        let responses = layout.place(response_bytes, if cfg.claims { 16 } else { 1 });
        let response_barriers = layout.place(response_barrier_bytes, if cfg.claims { 8 } else { 1 });
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
            responses,
            response_barriers,
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
        if cfg.claims {
            LaunchControl::name(k, self.responses, self.response_barriers);
        }
        Pipeline::name_barriers(k, ["full", "empty"], self.barriers, cfg.stages);
        Pipeline::name_barriers(
            k,
            ["computed", "written"],
            self.accumulator_barriers,
            cfg.accumulator_barriers(),
        );
    }
}
