//! Hopper kernels as [`KernelSpec`]s: what the host and the planner ask each of them.

use std::ops::RangeInclusive;

use super::{f16_persistent, fp8_mxfp4, fp8_persistent, fp8_scales32, launch, split_k};
use crate::gemm::epilogue::fusion::Fusion;
use crate::gemm::params::ScalesOfB;
use crate::gemm::scheduler::m_grouped::Grouping;
use crate::gemm::{GemmConfig, GemmShape, KernelSpec, Launch, OperandKind};
use oxigemm_ptx::{BuildError, Module};

/// A GEMM kernel for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// The persistent warp-specialized FP8 kernel.
    Fp8Persistent(fp8_persistent::Config),
    /// The persistent warp-specialized FP8 kernel with scales of 32.
    Fp8Scales32(fp8_scales32::Config),
    /// The persistent kernel that multiplies FP8 by MXFP4, which it widens.
    Fp8Mxfp4(fp8_mxfp4::Config),
    /// The FP8 split-K kernel for small M.
    Fp8SplitK(split_k::fp8::Config),
    /// The persistent warp-specialized kernel for BF16 and FP16.
    F16Persistent(f16_persistent::Config),
    /// The split-K kernel for small M, for BF16 and FP16.
    F16SplitK(split_k::f16::Config),
}

impl Kernel {
    /// Its properties.
    pub fn spec(&self) -> &dyn KernelSpec {
        match self {
            Kernel::Fp8Persistent(config) => config,
            Kernel::Fp8Scales32(config) => config,
            Kernel::Fp8Mxfp4(config) => config,
            Kernel::Fp8SplitK(config) => config,
            Kernel::F16Persistent(config) => config,
            Kernel::F16SplitK(config) => config,
        }
    }
}

/// Clusters that persistent kernels can be launched with, along M and N.
const CLUSTERS: &[[u32; 2]] = &[[1, 1], [1, 2], [2, 1], [2, 2]];

/// With fewer stages, loads and MMAs do not overlap.
const MIN_STAGES: u32 = 2;

impl KernelSpec for fp8_persistent::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        match self.scales_of_b {
            ScalesOfB::Rows => OperandKind::FP8_1D1D,
            ScalesOfB::Blocks => self.e5m2.map_or(OperandKind::FP8, OperandKind::fp8_e5m2),
        }
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.tile_columns()
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        self.stages..=self.stages
    }

    fn shared_bytes(&self, _stages: u32) -> u32 {
        self.shared_bytes()
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, passes: u32, concurrent: u32) -> Launch {
        launch::fp8_persistent(self, config, shape, passes, concurrent)
    }

    fn clusters(&self) -> &'static [[u32; 2]] {
        CLUSTERS
    }

    fn grouping(&self) -> Grouping {
        self.grouping
    }

    fn fusion(&self) -> Fusion {
        self.fusion
    }

    fn is_batched(&self) -> bool {
        self.d_in_slabs
    }

    fn maps_slabs_of_d(&self) -> bool {
        self.d_in_slabs
    }

    fn is_stream_k(&self) -> bool {
        self.stream_k
    }

    fn has_dynamic_scheduler(&self) -> bool {
        self.has_dynamic_scheduler()
    }

    fn tma_stores_f32(&self) -> bool {
        self.scales_of_b == ScalesOfB::Rows
    }

    fn quantized_passes(&self) -> u32 {
        self.quantized_passes()
    }

    fn k_blocks(&self, k: u32) -> u32 {
        self.padded_blocks(self.operands().k_blocks(k))
    }
}

impl KernelSpec for fp8_scales32::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        match self.scales_of_b {
            ScalesOfB::Rows => OperandKind::FP8_1X32,
            ScalesOfB::Blocks => OperandKind::FP8_32X32,
        }
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.block_n
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        self.stages..=self.stages
    }

    fn shared_bytes(&self, _stages: u32) -> u32 {
        self.shared_bytes()
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, _passes: u32, concurrent: u32) -> Launch {
        launch::fp8_scales32(self, config, shape, concurrent)
    }

    fn clusters(&self) -> &'static [[u32; 2]] {
        CLUSTERS
    }

    fn grouping(&self) -> Grouping {
        self.grouping
    }

    fn tma_stores_f32(&self) -> bool {
        self.tma_stores_f32()
    }

    fn maps_slabs_of_d(&self) -> bool {
        false
    }
}

impl KernelSpec for fp8_mxfp4::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        OperandKind::FP8_MXFP4
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.tile_columns()
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        self.stages..=self.stages
    }

    fn shared_bytes(&self, _stages: u32) -> u32 {
        self.shared_bytes()
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, passes: u32, concurrent: u32) -> Launch {
        launch::fp8_mxfp4(self, config, shape, passes, concurrent)
    }

    fn blocks_per_sm(&self) -> u32 {
        self.blocks_per_sm()
    }

    fn grouping(&self) -> Grouping {
        self.grouping
    }

    fn fusion(&self) -> Fusion {
        self.fusion
    }

    fn maps_slabs_of_d(&self) -> bool {
        false
    }
}

impl KernelSpec for f16_persistent::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        OperandKind::f16(self.operands)
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.tile_columns()
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        self.stages..=self.stages
    }

    fn shared_bytes(&self, _stages: u32) -> u32 {
        self.shared_bytes()
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, passes: u32, concurrent: u32) -> Launch {
        launch::f16_persistent(self, config, shape, passes, concurrent)
    }

    fn clusters(&self) -> &'static [[u32; 2]] {
        CLUSTERS
    }

    fn grouping(&self) -> Grouping {
        self.grouping
    }

    fn fusion(&self) -> Fusion {
        self.fusion
    }

    fn is_stream_k(&self) -> bool {
        self.stream_k
    }

    fn tma_stores_f32(&self) -> bool {
        self.fusion == Fusion::None
    }

    fn quantized_passes(&self) -> u32 {
        self.quantized_passes()
    }
}

impl KernelSpec for split_k::fp8::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        self.e5m2.map_or(OperandKind::FP8, OperandKind::fp8_e5m2)
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.tile_columns()
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        MIN_STAGES..=split_k::fp8::MAX_STAGES
    }

    fn shared_bytes(&self, stages: u32) -> u32 {
        self.shared_bytes(stages)
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, _passes: u32, _concurrent: u32) -> Launch {
        launch::fp8_split_k(self, config, shape)
    }

    fn splits(&self) -> &'static [u32] {
        &split_k::fp8::SPLITS
    }

    fn is_split_k(&self) -> bool {
        true
    }

    fn fusion(&self) -> Fusion {
        self.fusion
    }
}

impl KernelSpec for split_k::f16::Config {
    fn name(&self) -> String {
        self.name()
    }

    fn build(&self) -> Result<Module, BuildError> {
        self.build()
    }

    fn operands(&self) -> OperandKind {
        OperandKind::f16(self.operands)
    }

    fn tile(&self) -> [u32; 2] {
        [self.block_m, self.block_n]
    }

    fn tile_columns(&self) -> u32 {
        self.tile_columns()
    }

    fn threads(&self) -> u32 {
        self.threads()
    }

    fn stages(&self) -> RangeInclusive<u32> {
        MIN_STAGES..=split_k::f16::MAX_STAGES
    }

    fn shared_bytes(&self, stages: u32) -> u32 {
        self.shared_bytes(stages)
    }

    fn launch(&self, config: &GemmConfig, shape: GemmShape, _passes: u32, _concurrent: u32) -> Launch {
        launch::f16_split_k(self, config, shape)
    }

    fn splits(&self) -> &'static [u32] {
        &split_k::f16::SPLITS
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
}
