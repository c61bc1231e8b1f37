//! GEMM: kernel identity, configurations and everything that architectures share; a folder for each architecture.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`GemmKernel`]: what is compiled in; [`GemmConfig`]: a kernel and its launch-time choices |
//! | [`kind`] | [`OperandKind`]: element types, majors and scale granularity |
//! | [`shape`] | [`GemmShape`], [`MGroupedShape`], [`KGroupedShape`] |
//! | [`tensor_maps`] | [`MatrixMap`]: TMA descriptors as plain numbers |
//! | [`launch`] | [`Launch`]: grid, cluster, shared memory and TMA boxes of a launch |
//! | [`dynamic_tensor_maps`] | TMA descriptors that k-grouped kernels make on the device |
//! | [`scheduler`], [`epilogue`], [`operand`], [`params`] | parts that kernels are written on |
//! | `persistent` | parameters and tile scheduler of persistent kernels |
//! | `split_k` | tile, K split and epilogue of split-K kernels |
//! | [`sm90`], [`sm100`] | the kernels for Hopper and Blackwell |

pub mod dynamic_tensor_maps;
pub mod epilogue;
pub mod kind;
pub mod launch;
pub mod operand;
pub mod pack_scales;
pub mod params;
pub(crate) mod persistent;
pub mod scheduler;
pub mod shape;
pub mod sm100;
pub mod sm90;
pub(crate) mod split_k;
pub mod tensor_maps;
pub mod transpose;
pub mod transpose_k_grouped;
pub mod unpack_scales;

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use crate::arch::Arch;
use epilogue::fusion::Fusion;
pub use kind::{ElementType, Operand, OperandKind, ScaleType};
pub use launch::Launch;
pub use oxigemm_ptx::wgmma::Swizzle;
use oxigemm_ptx::{BuildError, Module};
use scheduler::k_grouped;
use scheduler::m_grouped::{self, Grouping};
pub use shape::{GemmShape, KGroupedShape, MGroupedShape};
pub use tensor_maps::{MatrixMap, Outer};

/// A GEMM kernel of the closed set: everything that is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmKernel {
    /// A kernel for Hopper.
    Sm90(sm90::Kernel),
    /// A kernel for Blackwell.
    Sm100(sm100::Kernel),
}

/// Part of a kernel's tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMemoryPart {
    /// What lies there.
    pub name: &'static str,
    /// Its columns.
    pub columns: u32,
}

/// Properties of a kernel that hosts and planners ask for; each kernel of each architecture implements it.
pub trait KernelSpec {
    /// The name, unique in the closed set, which is also the name of the entry.
    fn name(&self) -> String;
    /// The PTX.
    fn build(&self) -> Result<Module, BuildError>;
    /// Types, majors and scales of the operands.
    fn operands(&self) -> OperandKind;
    /// Rows and columns of the accumulator tile of a block. With a gate, half of the columns are gates.
    fn tile(&self) -> [u32; 2];
    /// Columns of D that a tile becomes.
    fn tile_columns(&self) -> u32;
    /// Threads of a block.
    fn threads(&self) -> u32;
    /// Numbers of pipeline stages that can be launched: one where it is compiled in.
    fn stages(&self) -> RangeInclusive<u32>;
    /// Bytes of dynamic shared memory for a number of stages, without the table of groups that follows.
    fn shared_bytes(&self, stages: u32) -> u32;
    /// The launch of one GEMM whose tiles are computed in `passes`, on a device that runs up to `concurrent` clusters.
    fn launch(&self, config: &GemmConfig, shape: GemmShape, passes: u32, concurrent: u32) -> Launch;

    /// Blocks that run on an SM at a time.
    fn blocks_per_sm(&self) -> u32 {
        1
    }

    /// Clusters along M and N that can be launched.
    fn clusters(&self) -> &'static [[u32; 2]] {
        &[[1, 1]]
    }

    /// Numbers of splits of K that can be launched.
    fn splits(&self) -> &'static [u32] {
        &[1]
    }

    /// Whether it is a split-K kernel for small M, whose grid covers D, and not a persistent one.
    fn is_split_k(&self) -> bool {
        false
    }

    /// What is grouped.
    fn grouping(&self) -> Grouping {
        Grouping::Dense
    }

    /// What the epilogue fuses.
    fn fusion(&self) -> Fusion {
        Fusion::None
    }

    /// Whether it computes batches, and not other m-grouped GEMMs.
    fn is_batched(&self) -> bool {
        false
    }

    /// Whether it sums the GEMMs of a batch.
    fn is_summed(&self) -> bool {
        false
    }

    /// Whether it has a [stream-K](scheduler::stream_k) tail.
    fn is_stream_k(&self) -> bool {
        false
    }

    /// Whether it has a [dynamic tile scheduler](scheduler::dynamic).
    fn has_dynamic_scheduler(&self) -> bool {
        false
    }

    /// Whether clusters claim tiles (`scheduler::launch_control`): the grid then covers D.
    fn claims_tiles(&self) -> bool {
        false
    }

    /// Whether TMA stores an FP32 D, and reduces into D where that is C.
    fn tma_stores_f32(&self) -> bool {
        false
    }

    /// Whether the map of a grouped D has slabs, which are any number of elements apart. Else it is one matrix of the
    /// rows of all slabs, which are whole rows apart.
    fn maps_slabs_of_d(&self) -> bool {
        true
    }

    /// Passes over K in which a tile is computed if D is quantized.
    fn quantized_passes(&self) -> u32 {
        1
    }

    /// Whether its epilogue quantizes D to every [`BlockOutput`](epilogue::BlockOutput).
    fn quantizes_to_blocks(&self) -> bool {
        false
    }

    /// What lies in tensor memory, in the order of its columns; nothing where the architecture has none.
    fn tensor_memory(&self) -> Vec<TensorMemoryPart> {
        Vec::new()
    }

    /// Pipeline stages that a K takes, padding included.
    fn k_blocks(&self, k: u32) -> u32 {
        self.operands().k_blocks(k)
    }
}

impl GemmKernel {
    /// Every GEMM kernel of an architecture: no shape ever needs another.
    pub fn all(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        static SM90: LazyLock<Vec<GemmKernel>> =
            LazyLock::new(|| sm90::Kernel::all().map(GemmKernel::Sm90).collect());
        static SM100: LazyLock<Vec<GemmKernel>> =
            LazyLock::new(|| sm100::Kernel::all().map(GemmKernel::Sm100).collect());
        let all = match arch {
            Arch::Sm90a => &SM90,
            Arch::Sm100a => &SM100,
        };
        all.iter().copied()
    }

    /// The kernels of an architecture for plain dense GEMMs.
    pub fn dense(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch).filter(|kernel| {
            kernel.grouping() == Grouping::Dense && kernel.fusion() == Fusion::None && !kernel.is_summed()
        })
    }

    /// The dense kernels of an architecture with a fused epilogue.
    pub fn fused(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch)
            .filter(|kernel| kernel.grouping() == Grouping::Dense && kernel.fusion() != Fusion::None)
    }

    /// The m-grouped kernels of an architecture without a fused epilogue, those of batches left out.
    pub fn m_grouped(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch).filter(|kernel| {
            kernel.grouping() == Grouping::Rows && kernel.fusion() == Fusion::None && !kernel.is_batched()
        })
    }

    /// The m-grouped kernels of an architecture with a fused epilogue.
    pub fn fused_m_grouped(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch)
            .filter(|kernel| kernel.grouping() == Grouping::Rows && kernel.fusion() != Fusion::None)
    }

    /// The kernels of an architecture for batches of FP8 GEMMs.
    pub fn batched(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch).filter(GemmKernel::is_batched)
    }

    /// The k-grouped kernels of an architecture.
    pub fn k_grouped(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch).filter(|kernel| kernel.grouping() == Grouping::K)
    }

    /// The kernels of an architecture that sum the GEMMs of a batch.
    pub fn summed(arch: Arch) -> impl Iterator<Item = GemmKernel> {
        GemmKernel::all(arch).filter(GemmKernel::is_summed)
    }

    /// The architecture it is written for.
    pub const fn arch(&self) -> Arch {
        match self {
            GemmKernel::Sm90(_) => Arch::Sm90a,
            GemmKernel::Sm100(_) => Arch::Sm100a,
        }
    }

    /// Its properties.
    pub fn spec(&self) -> &dyn KernelSpec {
        match self {
            GemmKernel::Sm90(kernel) => kernel.spec(),
            GemmKernel::Sm100(kernel) => kernel.spec(),
        }
    }

    /// The name, which is also the name of the entry.
    pub fn name(&self) -> String {
        self.spec().name()
    }

    /// The PTX.
    pub fn build(&self) -> Result<Module, BuildError> {
        self.spec().build()
    }

    /// Types, majors and scales of the operands.
    pub fn operands(&self) -> OperandKind {
        self.spec().operands()
    }

    /// What is grouped.
    pub fn grouping(&self) -> Grouping {
        self.spec().grouping()
    }

    /// What the epilogue fuses.
    pub fn fusion(&self) -> Fusion {
        self.spec().fusion()
    }

    /// Rows and columns of the accumulator tile of a block. With a gate, half of the columns are gates.
    pub fn tile(&self) -> [u32; 2] {
        self.spec().tile()
    }

    /// Columns of D that a tile becomes.
    pub fn tile_columns(&self) -> u32 {
        self.spec().tile_columns()
    }

    /// Numbers of pipeline stages that can be launched: one where it is compiled in.
    pub fn stages(&self) -> RangeInclusive<u32> {
        self.spec().stages()
    }

    /// Whether it is a split-K kernel for small M, and not a persistent one.
    pub fn is_split_k(&self) -> bool {
        self.spec().is_split_k()
    }

    /// Whether it is m-grouped.
    pub fn is_m_grouped(&self) -> bool {
        self.grouping() == Grouping::Rows
    }

    /// Whether it computes batches, and not other m-grouped GEMMs.
    pub fn is_batched(&self) -> bool {
        self.spec().is_batched()
    }

    /// Whether it sums the GEMMs of a batch.
    pub fn is_summed(&self) -> bool {
        self.spec().is_summed()
    }

    /// The configurations of a persistent kernel with clusters of these dimensions along M and N.
    pub fn with_clusters<const N: usize>(self, clusters: [[u32; 2]; N]) -> [GemmConfig; N] {
        clusters.map(|cluster| GemmConfig { cluster, ..GemmConfig::of(self) })
    }
}

/// A kernel and its launch-time choices: what a planner chooses among.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmConfig {
    /// The kernel.
    pub kernel: GemmKernel,
    /// Blocks of a cluster along M, which multicast B, and along N, which multicast A.
    pub cluster: [u32; 2],
    /// Splits of K: the blocks of a cluster of a split-K kernel.
    pub split_k: u32,
    /// Stages of the pipeline.
    pub stages: u32,
}

impl GemmConfig {
    /// The configuration of a kernel with the first of its clusters, without splits, with as few stages as it has.
    pub fn of(kernel: GemmKernel) -> GemmConfig {
        let cluster = kernel.spec().clusters()[0];
        GemmConfig { kernel, cluster, split_k: 1, stages: *kernel.stages().start() }
    }

    /// Every configuration of a kernel.
    pub fn all(kernel: GemmKernel) -> impl Iterator<Item = GemmConfig> {
        let (clusters, splits) = (kernel.spec().clusters(), kernel.spec().splits());
        clusters.iter().flat_map(move |&cluster| {
            splits.iter().flat_map(move |&split_k| {
                kernel.stages().map(move |stages| GemmConfig { kernel, cluster, split_k, stages })
            })
        })
    }

    /// Whether the kernel can be launched so.
    pub fn is_valid(&self) -> bool {
        let kernel = self.kernel.spec();
        kernel.clusters().contains(&self.cluster)
            && kernel.splits().contains(&self.split_k)
            && kernel.stages().contains(&self.stages)
    }

    /// Types, majors and scales of the operands.
    pub fn operands(&self) -> OperandKind {
        self.kernel.operands()
    }

    /// Rows and columns of the accumulator tile of a block.
    pub fn tile(&self) -> [u32; 2] {
        self.kernel.tile()
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.kernel.spec().threads()
    }

    /// Bytes of dynamic shared memory, without the table of groups that follows.
    pub fn shared_bytes(&self) -> u32 {
        self.kernel.spec().shared_bytes(self.stages)
    }

    /// The same with the table of this many groups, where the kernel is grouped.
    pub fn grouped_shared_bytes(&self, groups: u32) -> u32 {
        let table = match self.kernel.grouping() {
            Grouping::Dense => 0,
            Grouping::Rows => m_grouped::table_bytes(groups),
            Grouping::K => k_grouped::table_bytes(groups, self.operands().has_scales()),
        };
        self.shared_bytes() + table
    }

    /// Whether the grid covers D, and cannot be held back to some SMs.
    pub fn covers_d(&self) -> bool {
        self.is_split_k() || self.kernel.spec().claims_tiles()
    }

    /// Blocks of a cluster.
    pub fn cluster_blocks(&self) -> u32 {
        let [m, n] = self.cluster;
        m * n * self.split_k
    }

    /// Rows and columns of D that a cluster computes at a time, in so many passes.
    pub fn cluster_tile(&self, passes: u32) -> [u32; 2] {
        let ([tile_m, _], [m, n]) = (self.tile(), self.cluster);
        [tile_m * m, self.kernel.tile_columns() * passes * n]
    }

    /// Pipeline stages that a K takes, padding included.
    pub fn k_blocks(&self, k: u32) -> u32 {
        self.kernel.spec().k_blocks(k)
    }

    /// Whether the kernel is a split-K kernel for small M, and not a persistent one.
    pub fn is_split_k(&self) -> bool {
        self.kernel.is_split_k()
    }

    /// Whether the kernel has a [stream-K](scheduler::stream_k) tail.
    pub fn is_stream_k(&self) -> bool {
        self.kernel.spec().is_stream_k()
    }

    /// Whether the kernel has a [dynamic tile scheduler](scheduler::dynamic).
    pub fn has_dynamic_scheduler(&self) -> bool {
        self.kernel.spec().has_dynamic_scheduler()
    }

    /// Whether TMA stores an FP32 D, and reduces into D where that is C.
    pub fn tma_stores_f32(&self) -> bool {
        self.kernel.spec().tma_stores_f32()
    }

    /// Passes over K in which a tile is computed if D is quantized.
    pub fn quantized_passes(&self) -> u32 {
        self.kernel.spec().quantized_passes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_set_is_small_and_its_names_are_unique() {
        for arch in Arch::ALL {
            let kernels: Vec<GemmKernel> = GemmKernel::all(arch).collect();
            let names: HashSet<String> = kernels.iter().map(GemmKernel::name).collect();
            assert_eq!(names.len(), kernels.len());
            assert!(names.len() <= 440, "{arch}: {}", names.len());
        }
    }

    #[test]
    fn every_kernel_fits_the_shared_memory_of_a_block() {
        for kernel in Arch::ALL.into_iter().flat_map(GemmKernel::all) {
            let bytes = GemmConfig::of(kernel).grouped_shared_bytes(128);
            assert!(
                bytes <= kernel.arch().limits().shared_per_block,
                "{} needs {bytes} bytes",
                kernel.name()
            );
        }
    }

    #[test]
    fn every_kernel_is_of_one_kind() {
        for arch in Arch::ALL {
            let kinds = [
                GemmKernel::dense(arch).count(),
                GemmKernel::fused(arch).count(),
                GemmKernel::m_grouped(arch).count(),
                GemmKernel::fused_m_grouped(arch).count(),
                GemmKernel::batched(arch).count(),
                GemmKernel::k_grouped(arch).count(),
                GemmKernel::summed(arch).count(),
            ];
            assert_eq!(kinds.iter().sum::<usize>(), GemmKernel::all(arch).count());
        }
    }

    #[test]
    fn a_kernel_has_a_configuration_of_its_own_and_all_are_valid() {
        for kernel in Arch::ALL.into_iter().flat_map(GemmKernel::all) {
            assert!(GemmConfig::of(kernel).is_valid(), "{}", kernel.name());
            for config in GemmConfig::all(kernel) {
                assert!(config.is_valid() && config.cluster_blocks() <= kernel.arch().limits().max_cluster);
            }
        }
    }
}
