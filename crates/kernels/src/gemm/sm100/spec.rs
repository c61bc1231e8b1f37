//! Blackwell kernels as [`KernelSpec`]s: what the host and the planner ask each of them.

use std::ops::RangeInclusive;

use super::{launch, persistent};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::{GemmConfig, GemmShape, KernelSpec, Launch, OperandKind};
use oxigemm_ptx::{BuildError, Module};

/// A GEMM kernel for Blackwell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The persistent warp-specialized kernel.
    Persistent(persistent::Config),
}

impl Kernel {
    /// Its properties.
    pub fn spec(&self) -> &dyn KernelSpec {
        match self {
            Kernel::Persistent(config) => config,
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

    fn fusion(&self) -> Fusion {
        self.fusion
    }
}
