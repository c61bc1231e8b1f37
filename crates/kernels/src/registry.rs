//! The closed set: every kernel of every family, by one type.

use crate::attention;
use crate::gemm::launch;
use crate::gemm::transpose_k_grouped;
use crate::hyper_connection;
use crate::quantize;
use oxigemm_ptx::{BuildError, Module};

/// A kernel of the closed set. A family joins it with a variant that holds its configuration.
///
/// What is listed, built ahead, loaded, assembled in tests and kept by a simulated device is this set. How a kernel is
/// launched, and with which arguments, is its family's own business.
///
/// ```
/// use oxigemm_kernels::KernelId;
///
/// let names: Vec<String> = KernelId::all().map(|kernel| kernel.name()).collect();
/// assert!(names.iter().any(|name| name == "fp8_gemm_slim_8x64"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelId {
    /// A matrix product.
    Gemm(launch::GemmKernel),
    /// Quantization, and what belongs to it.
    Quantize(quantize::Config),
    /// Logits of an indexer.
    Indexer(attention::Config),
    /// The product before the norm of a hyper-connection.
    HcPrenorm(hyper_connection::Config),
    /// What makes FP8 operands with groups along K K-major: see [`crate::gemm::transpose_k_grouped`].
    TransposeGroups,
}

impl KernelId {
    /// Every kernel that exists: no call ever needs another.
    pub fn all() -> impl Iterator<Item = KernelId> {
        let products = launch::GemmKernel::all().map(KernelId::Gemm);
        let quantize = quantize::Config::all().map(KernelId::Quantize);
        let logits = attention::Config::all().map(KernelId::Indexer);
        let hc = hyper_connection::Config::all().map(KernelId::HcPrenorm);
        products.chain(quantize).chain(logits).chain(hc).chain([KernelId::TransposeGroups])
    }

    /// The kernel's name, which is also the entry's.
    pub fn name(&self) -> String {
        match self {
            KernelId::Gemm(config) => config.name(),
            KernelId::Quantize(config) => config.name(),
            KernelId::Indexer(config) => config.name(),
            KernelId::HcPrenorm(config) => config.name(),
            KernelId::TransposeGroups => transpose_k_grouped::NAME.to_owned(),
        }
    }

    /// Writes the kernel.
    pub fn build(&self) -> Result<Module, BuildError> {
        match self {
            KernelId::Gemm(config) => config.build(),
            KernelId::Quantize(config) => config.build(),
            KernelId::Indexer(config) => config.build(),
            KernelId::HcPrenorm(config) => config.build(),
            KernelId::TransposeGroups => transpose_k_grouped::build(),
        }
    }

    /// The kernel as it is assembled, compiled and looked up in caches.
    ///
    /// Where the environment has `OXIGEMM_LINES`, and it is neither empty nor 0, it says which line of Rust wrote which
    /// instruction, as [`build`](Self::build) does, and Nsight Compute and compute-sanitizer show it. Elsewhere it does not: an
    /// assembler takes less time then. The code is the same.
    ///
    /// ```
    /// use oxigemm_kernels::KernelId;
    ///
    /// let kernel = KernelId::TransposeGroups;
    /// assert!(kernel.build()?.text.contains(".loc "));
    /// assert!(!kernel.code_text()?.contains(".loc "));
    /// # Ok::<(), oxigemm_ptx::BuildError>(())
    /// ```
    pub fn code_text(&self) -> Result<String, BuildError> {
        let module = self.build()?;
        let lines = std::env::var_os("OXIGEMM_LINES").is_some_and(|value| !value.is_empty() && value != "0");
        Ok(if lines { module.text } else { module.without_lines() })
    }
}

impl From<launch::GemmKernel> for KernelId {
    fn from(config: launch::GemmKernel) -> KernelId {
        KernelId::Gemm(config)
    }
}

impl From<quantize::Config> for KernelId {
    fn from(config: quantize::Config) -> KernelId {
        KernelId::Quantize(config)
    }
}

impl From<attention::Config> for KernelId {
    fn from(config: attention::Config) -> KernelId {
        KernelId::Indexer(config)
    }
}

impl From<hyper_connection::Config> for KernelId {
    fn from(config: hyper_connection::Config) -> KernelId {
        KernelId::HcPrenorm(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_names_are_unique() {
        let names: HashSet<String> = KernelId::all().map(|kernel| kernel.name()).collect();
        assert_eq!(names.len(), KernelId::all().count());
    }
}
