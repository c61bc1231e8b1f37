//! Blackwell kernels as [`KernelSpec`]s: what the host and the planner ask each of them.

use std::ops::RangeInclusive;

use super::{launch, persistent, split_k};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::{GemmConfig, GemmShape, KernelSpec, Launch, OperandKind, TensorMemoryPart};
use oxigemm_ptx::{BuildError, Module};

/// A GEMM kernel for Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The persistent warp-specialized kernel.
    Persistent(persistent::Config),
    /// The split-K kernel for small M.
    SplitK(split_k::Config),
}

impl Kernel {
    /// Its properties.
    pub fn spec(&self) -> &dyn KernelSpec {
        match self {
            Kernel::Persistent(config) => config,
            Kernel::SplitK(config) => config,
        }
    }
}

impl KernelSpec for persistent::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        self.operands
    }

    fn tile(&self) -> [u32; 2] {
        [persistent::BLOCK_M, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.tile_columns()
    }

    fn threads(&self) -> u32 {
        persistent::THREADS
    }

    fn stages(&self) -> RangeInclusive<u32> {
        self.stages..=self.stages
    }

    fn shared_bytes(&self, _stages: u32) -> u32 {
        self.shared_bytes()
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, passes: u32, concurrent: u32) -> Launch {
        launch::persistent(self, config, shape, passes, concurrent)
    }

    fn clusters(&self) -> &'static [[u32; 2]] {
        if self.pair { &[[2, 1]] } else { &[[1, 1]] }
    }

    fn grouping(&self) -> Grouping {
        self.grouping
    }

    fn claims_tiles(&self) -> bool {
        self.claims
    }

    fn fusion(&self) -> Fusion {
        self.fusion
    }

    fn quantizes_to_blocks(&self) -> bool {
        self.is_fused()
    }

    fn tensor_memory(&self) -> Vec<TensorMemoryPart> {
        self.tensor_memory()
    }
}

/// With fewer stages, loads and MMAs do not overlap.
const MIN_STAGES: u32 = 2;

impl KernelSpec for split_k::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        self.operands
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.rows_of_b()]
    }

    fn tile_columns(&self) -> u32 {
        split_k::COLUMNS
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        MIN_STAGES..=split_k::MAX_STAGES
    }

    fn shared_bytes(&self, stages: u32) -> u32 {
        self.shared_bytes(stages)
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, _passes: u32, _concurrent: u32) -> Launch {
        launch::split_k(self, config, shape)
    }

    fn splits(&self) -> &'static [u32] {
        &split_k::SPLITS
    }

    fn is_split_k(&self) -> bool {
        true
    }

    fn fusion(&self) -> Fusion {
        self.fusion
    }

    fn is_summed(&self) -> bool {
        self.summed
    }

    fn tensor_memory(&self) -> Vec<TensorMemoryPart> {
        self.tensor_memory()
    }
}
