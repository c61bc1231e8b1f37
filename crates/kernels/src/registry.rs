//! Registry of kernels: one type that identifies every kernel of every operation.

use crate::arch::Arch;
use crate::attention;
use crate::exchange;
use crate::gemm::{GemmKernel, pack_scales, transpose, transpose_k_grouped, unpack_scales};
use crate::hyper_connection;
use crate::moe;
use crate::quantize;
use oxigemm_ptx::{BuildError, Module, Target};

/// A kernel of the closed set. An operation joins the set with a variant that holds its compile-time configuration.
///
/// `list`, `prebuild`, module loading, assembly tests and the simulator all iterate over this set. Launch geometry and
/// arguments belong to the operation.
///
/// ```
/// use oxigemm_kernels::{Arch, KernelId};
///
/// let names: Vec<String> = KernelId::all(Arch::Sm90a).map(|kernel| kernel.name()).collect();
/// assert!(names.iter().any(|name| name == "sm90_fp8_gemm_split_k_8x64"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelId {
    /// A GEMM.
    Gemm(GemmKernel),
    /// The transposition that makes FP8 operands K-major: see [`crate::gemm::transpose`].
    Transpose(Arch),
    /// Quantization, scale layouts, MoE permutation.
    Quantize(Arch, quantize::Config),
    /// MQA logits of an attention indexer.
    Attention(attention::Config),
    /// The GEMM before the norm of a hyper-connection.
    HyperConnection(hyper_connection::Config),
    /// The transposition that makes k-grouped FP8 operands K-major: see [`crate::gemm::transpose_k_grouped`].
    TransposeKGrouped(Arch),
    /// The kernel that unpacks UE8M0 scales before a GEMM: see [`crate::gemm::unpack_scales`].
    UnpackScales(Arch),
    /// The kernel that packs scales for a tensor core that applies them: see [`crate::gemm::pack_scales`].
    PackScales(Arch),
    /// Top-k of a mixture-of-experts router.
    MoeTopK(moe::Config),
    /// A step of the exchange of tokens between ranks.
    Exchange(Arch, exchange::Step),
}

impl KernelId {
    /// Every kernel of an architecture: no call ever needs another.
    pub fn all(arch: Arch) -> impl Iterator<Item = KernelId> {
        let mut all: Vec<KernelId> = GemmKernel::all(arch).map(KernelId::Gemm).collect();
        all.push(KernelId::Transpose(arch));
        all.extend(quantize::Config::all().map(|config| KernelId::Quantize(arch, config)));
        all.extend(attention::Config::all(arch).map(KernelId::Attention));
        all.extend(hyper_connection::Config::all(arch).map(KernelId::HyperConnection));
        all.extend([
            KernelId::TransposeKGrouped(arch),
            KernelId::UnpackScales(arch),
            KernelId::PackScales(arch),
        ]);
        all.extend(moe::Config::all(arch).map(KernelId::MoeTopK));
        all.extend(exchange::Step::ALL.map(|step| KernelId::Exchange(arch, step)));
        all.into_iter()
    }

    /// The architecture the kernel is written for.
    pub fn arch(&self) -> Arch {
        match self {
            KernelId::Gemm(kernel) => kernel.arch(),
            KernelId::Attention(config) => config.arch(),
            KernelId::HyperConnection(config) => config.arch,
            KernelId::MoeTopK(config) => config.arch,
            KernelId::Transpose(arch)
            | KernelId::Quantize(arch, _)
            | KernelId::TransposeKGrouped(arch)
            | KernelId::UnpackScales(arch)
            | KernelId::PackScales(arch)
            | KernelId::Exchange(arch, _) => *arch,
        }
    }

    /// The kernel's name, which is also the name of its entry. It starts with the architecture.
    pub fn name(&self) -> String {
        match self {
            KernelId::Gemm(kernel) => kernel.name(),
            KernelId::Transpose(arch) => arch.kernel_name(transpose::NAME),
            KernelId::Quantize(arch, config) => arch.kernel_name(&config.name()),
            KernelId::Attention(config) => config.name(),
            KernelId::HyperConnection(config) => config.name(),
            KernelId::TransposeKGrouped(arch) => arch.kernel_name(transpose_k_grouped::NAME),
            KernelId::UnpackScales(arch) => arch.kernel_name(unpack_scales::NAME),
            KernelId::PackScales(arch) => arch.kernel_name(pack_scales::NAME),
            KernelId::MoeTopK(config) => config.name(),
            KernelId::Exchange(arch, step) => arch.kernel_name(step.name()),
        }
    }

    /// The kernel's PTX.
    pub fn build(&self) -> Result<Module, BuildError> {
        match self {
            KernelId::Gemm(kernel) => kernel.build(),
            KernelId::Transpose(arch) => transpose::build(*arch),
            KernelId::Quantize(arch, config) => config.build(*arch),
            KernelId::Attention(config) => config.build(),
            KernelId::HyperConnection(config) => config.build(),
            KernelId::TransposeKGrouped(arch) => transpose_k_grouped::build(*arch),
            KernelId::UnpackScales(arch) => unpack_scales::build(*arch),
            KernelId::PackScales(arch) => pack_scales::build(*arch),
            KernelId::MoeTopK(config) => config.build(),
            KernelId::Exchange(arch, step) => step.build(*arch),
        }
    }

    /// The PTX that is assembled, compiled and looked up in caches.
    ///
    /// Source lines are left out, because an assembler takes less time without them. Where the environment has
    /// `OXIGEMM_LINES`, and it is neither empty nor 0, they stay in, as in [`build`](Self::build), and Nsight Compute
    /// and compute-sanitizer show which line of Rust emitted an instruction. The code is the same.
    ///
    /// ```
    /// use oxigemm_kernels::{Arch, KernelId};
    ///
    /// let kernel = KernelId::TransposeKGrouped(Arch::Sm90a);
    /// assert!(kernel.build()?.text.contains(".loc "));
    /// assert!(!kernel.code_text()?.contains(".loc "));
    /// # Ok::<(), oxigemm_ptx::BuildError>(())
    /// ```
    pub fn code_text(&self) -> Result<String, BuildError> {
        self.code_text_for(self.arch().target())
    }

    /// The same for one of the [targets](Arch::targets) of its architecture.
    ///
    /// ```
    /// use oxigemm_kernels::{Arch, KernelId, Target};
    ///
    /// let kernel = KernelId::TransposeKGrouped(Arch::Sm100a);
    /// assert!(kernel.code_text_for(Target::Sm103a)?.contains(".target sm_103a"));
    /// assert!(kernel.code_text_for(Target::Sm90a).is_err());
    /// # Ok::<(), oxigemm_ptx::BuildError>(())
    /// ```
    pub fn code_text_for(&self, target: Target) -> Result<String, BuildError> {
        let module = self.build()?.for_target(target)?;
        let lines = std::env::var_os("OXIGEMM_LINES").is_some_and(|value| !value.is_empty() && value != "0");
        Ok(if lines { module.text } else { module.without_lines() })
    }
}

impl From<GemmKernel> for KernelId {
    fn from(kernel: GemmKernel) -> KernelId {
        KernelId::Gemm(kernel)
    }
}

impl From<attention::Config> for KernelId {
    fn from(config: attention::Config) -> KernelId {
        KernelId::Attention(config)
    }
}

impl From<hyper_connection::Config> for KernelId {
    fn from(config: hyper_connection::Config) -> KernelId {
        KernelId::HyperConnection(config)
    }
}

impl From<moe::Config> for KernelId {
    fn from(config: moe::Config) -> KernelId {
        KernelId::MoeTopK(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Kernels of plain PTX differ between architectures in the target and in the prefix of their name alone.
    #[test]
    fn plain_kernels_are_the_same_for_every_architecture() {
        let plain = |arch: Arch| {
            KernelId::all(arch).filter(|id| match id {
                KernelId::Gemm(_) | KernelId::HyperConnection(_) => false,
                KernelId::Attention(config) => matches!(config, attention::Config::PagedMetadata(_)),
                KernelId::Transpose(_)
                | KernelId::Quantize(..)
                | KernelId::TransposeKGrouped(_)
                | KernelId::UnpackScales(_)
                | KernelId::PackScales(_)
                | KernelId::MoeTopK(_)
                | KernelId::Exchange(..) => true,
            })
        };
        let text = |id: KernelId| {
            let (arch, module) = (id.arch(), id.build().expect("it builds"));
            let text = module.without_lines().replace(&arch.kernel_name(""), "");
            let header = format!(".version {}\n.target {arch}", module.version);
            assert!(text.contains(&header), "{}", id.name());
            text.replace(&header, "")
        };
        for arch in Arch::ALL {
            let [own, hopper] = [arch, Arch::Sm90a].map(|arch| plain(arch).map(text).collect::<Vec<_>>());
            assert!(own.len() > 60 && own == hopper, "{arch}");
        }
    }

    #[test]
    fn names_are_unique_and_start_with_the_architecture() {
        let mut names = HashSet::new();
        for (arch, kernel) in
            Arch::ALL.into_iter().flat_map(|arch| KernelId::all(arch).map(move |id| (arch, id)))
        {
            let name = kernel.name();
            assert_eq!(kernel.arch(), arch, "{name}");
            assert!(name.starts_with(&format!("{}_", arch.short_name())), "{name}");
            assert_eq!(kernel.build().expect("it builds").target, arch.target(), "{name}");
            assert!(names.insert(name.clone()), "{name} twice");
        }
    }
}
