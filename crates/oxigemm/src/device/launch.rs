//! One launch of one kernel: its grid, and its arguments in the two forms that a GPU and the simulator take.

use std::ffi::c_void;

use oxigemm_cuda::LaunchConfig;
use oxigemm_kernels::{Argument, KernelId};
use oxigemm_sim::Param;

/// The most arguments of a kernel whose arguments are a list.
const MAX_ARGS: usize = 32;

/// Argument of a kernel, by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KernelArg {
    /// A number.
    U32(u32),
    /// An address, or a large number.
    U64(u64),
    /// A floating-point number.
    F32(f32),
    /// A tensor map.
    TensorMap([u64; 16]),
}

impl From<Argument> for KernelArg {
    fn from(argument: Argument) -> KernelArg {
        match argument {
            Argument::U32(value) => KernelArg::U32(value),
            Argument::U64(value) => KernelArg::U64(value),
        }
    }
}

/// Geometry of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub grid: [u32; 2],
    /// Blocks of a cluster.
    pub cluster: u32,
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// Whether all blocks have to be resident at one time.
    pub cooperative: bool,
}

impl Geometry {
    /// As the driver takes it. A cooperative kernel needs the whole device, and so waits for the one before it.
    #[inline]
    pub fn config(&self, programmatic: bool) -> LaunchConfig {
        LaunchConfig {
            grid: [self.grid[0], self.grid[1], 1],
            block: [self.threads, 1, 1],
            cluster: [self.cluster, 1, 1],
            shared_bytes: self.shared_bytes,
            programmatic: programmatic && !self.cooperative,
            cooperative: self.cooperative,
        }
    }

    /// As the simulator takes it. As on a GPU, a cluster of one block is none.
    pub fn simulated(&self, kernel: &KernelId, params: &impl KernelParams) -> oxigemm_sim::Launch {
        oxigemm_sim::Launch {
            entry: kernel.name(),
            grid: [self.grid[0], self.grid[1], 1],
            cluster: (self.cluster > 1).then_some([self.cluster, 1, 1]),
            block: [self.threads, 1, 1],
            shared_bytes: self.shared_bytes,
            params: params.values().into_iter().map(param).collect(),
        }
    }
}

/// A kernel with its geometry and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelLaunch<P> {
    pub kernel: KernelId,
    pub geometry: Geometry,
    /// Whether it may start while the kernel before it in the stream still runs, whose results it waits for by itself.
    pub programmatic: bool,
    pub params: P,
}

/// Arguments of a kernel, in the order of its parameters.
pub(crate) trait KernelParams {
    /// Passes a pointer to each argument to `launch`.
    fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> R) -> R;

    /// The arguments by value.
    fn values(&self) -> Vec<KernelArg>;
}

impl<const N: usize> KernelParams for [KernelArg; N] {
    #[inline]
    fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> R) -> R {
        const { assert!(N <= MAX_ARGS) };
        fn to<T>(value: &T) -> *mut c_void {
            std::ptr::from_ref(value).cast_mut().cast()
        }
        let pointers: [*mut c_void; N] = std::array::from_fn(|i| match &self[i] {
            KernelArg::U32(value) => to(value),
            KernelArg::U64(value) => to(value),
            KernelArg::F32(value) => to(value),
            KernelArg::TensorMap(value) => to(value),
        });
        launch(&pointers)
    }

    fn values(&self) -> Vec<KernelArg> {
        self.to_vec()
    }
}

fn param(arg: KernelArg) -> Param {
    match arg {
        KernelArg::U32(value) => Param::U32(value),
        KernelArg::U64(value) => Param::U64(value),
        KernelArg::F32(value) => Param::F32(value),
        KernelArg::TensorMap(map) => Param::Bytes(map.iter().flat_map(|word| word.to_le_bytes()).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_and_values_are_the_same_arguments() {
        let map = std::array::from_fn(|i| 100 + i as u64);
        let args = [KernelArg::U32(1), KernelArg::TensorMap(map), KernelArg::U64(2), KernelArg::F32(3.0)];
        assert_eq!(args.values(), args);
        args.with_pointers(|pointers| {
            assert_eq!(pointers.len(), args.len());
            // SAFETY: pointers to arguments of these types.
            unsafe {
                assert_eq!(*pointers[0].cast::<u32>(), 1);
                assert_eq!(*pointers[1].cast::<[u64; 16]>(), map);
                assert_eq!(*pointers[2].cast::<u64>(), 2);
                assert_eq!(*pointers[3].cast::<f32>(), 3.0);
            }
        });
    }

    #[test]
    fn a_cooperative_kernel_is_not_launched_early() {
        let geometry = Geometry { grid: [3, 2], cluster: 1, threads: 64, shared_bytes: 8, cooperative: true };
        let config = geometry.config(true);
        assert_eq!((config.grid, config.programmatic, config.cooperative), ([3, 2, 1], false, true));
        assert!(Geometry { cooperative: false, ..geometry }.config(true).programmatic);
    }
}
