//! Arguments of the kernels that take a struct of them.

use std::ffi::c_void;

use oxigemm_kernels::common::params::ArgRef;
use oxigemm_kernels::gemm::transpose;

use super::args::KernelArgs;
use crate::device::launch::{KernelArg, KernelParams};

impl KernelParams for transpose::Args {
    fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> R) -> R {
        launch(&self.pointers())
    }

    fn values(&self) -> Vec<KernelArg> {
        self.args().map(ArgRef::value).collect()
    }
}

impl KernelParams for KernelArgs {
    #[inline]
    fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> R) -> R {
        let (pointers, count) = self.pointers();
        launch(&pointers[..count])
    }

    fn values(&self) -> Vec<KernelArg> {
        let mut all = Vec::new();
        self.for_each(|arg| all.push(arg.value()));
        all
    }
}
