//! Launches of kernels that are no products: what their arguments are, each call says anew.

use std::ffi::c_void;

use oxigemm_cuda::{LaunchConfig, TensorMap, TiledTensor};
use oxigemm_kernels::KernelId;
use oxigemm_sim::{Element, Param, Swizzle, TensorMapSpec};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gemm::{GemmOptions, cuda_stream, put, sim_stream};

/// The most arguments that a kernel has.
const MOST: usize = 24;

/// One argument of a kernel, in the order of its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// A tensor map.
    Map(TiledTensor),
    /// An address.
    Address(u64),
    /// A number.
    Number(u32),
}

/// A kernel with its grid and arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub kernel: KernelId,
    pub grid: [u32; 2],
    /// Blocks of a cluster.
    pub cluster: u32,
    pub threads: u32,
    pub shared_bytes: u32,
    pub arguments: &'a [Argument],
}

/// An argument as the driver reads it.
#[derive(Clone, Copy)]
#[repr(C)]
union Word {
    map: TensorMap,
    address: u64,
    number: u32,
}

impl Call<'_> {
    /// Runs it on a GPU or in the simulator.
    ///
    /// # Safety
    /// As for [`Cuda::launch`](crate::Cuda).
    pub unsafe fn run(&self, device: &Device, options: &GemmOptions) -> Result<()> {
        match device {
            Device::Cuda(cuda) => {
                let stream = cuda_stream(cuda, options)?;
                // SAFETY: the caller keeps the same contract.
                unsafe { cuda.launch(self, stream, options.programmatic) }
            }
            Device::Sim(sim) => {
                let stream = sim_stream(sim, options)?;
                put(sim, stream, sim.work(self, options.programmatic)?)
            }
            Device::Cpu => Err(Error::no_raw_memory(device)),
        }
    }
    pub fn config(&self, programmatic: bool) -> LaunchConfig {
        LaunchConfig {
            grid: [self.grid[0], self.grid[1], 1],
            block: [self.threads, 1, 1],
            cluster: [self.cluster, 1, 1],
            shared_bytes: self.shared_bytes,
            programmatic,
            cooperative: false,
        }
    }

    /// Encodes the arguments and gives `launch` a pointer to each.
    pub fn with_pointers<R>(&self, launch: impl FnOnce(&[*mut c_void]) -> Result<R>) -> Result<R> {
        assert!(self.arguments.len() <= MOST, "{} has more arguments than {MOST}", self.kernel.name());
        let mut words = [Word { map: TensorMap([0; 16]) }; MOST];
        for (word, argument) in words.iter_mut().zip(self.arguments) {
            *word = match argument {
                Argument::Map(tensor) => Word { map: tensor.encode()? },
                Argument::Address(address) => Word { address: *address },
                Argument::Number(number) => Word { number: *number },
            };
        }
        let pointers: [*mut c_void; MOST] = std::array::from_fn(|i| std::ptr::from_mut(&mut words[i]).cast());
        launch(&pointers[..self.arguments.len()])
    }

    /// The arguments as values, for the simulator.
    pub fn parameters(&self) -> Result<Vec<Param>, oxigemm_sim::Fault> {
        let parameter = |argument: &Argument| {
            Ok(match argument {
                Argument::Map(tensor) => Param::Bytes(map_spec(tensor).encode()?.to_vec()),
                Argument::Address(address) => Param::U64(*address),
                Argument::Number(number) => Param::U32(*number),
            })
        };
        self.arguments.iter().map(parameter).collect()
    }
}

fn map_spec(tensor: &TiledTensor) -> TensorMapSpec {
    TensorMapSpec {
        address: tensor.address,
        element: match tensor.element {
            oxigemm_cuda::Element::U8 => Element::U8,
            oxigemm_cuda::Element::Bf16 => Element::Bf16,
            oxigemm_cuda::Element::F32 => Element::F32,
            other => unreachable!("no call has a map of {other:?}"),
        },
        dims: tensor.dims[..tensor.rank].to_vec(),
        strides: tensor.strides[..tensor.rank - 1].to_vec(),
        box_dims: tensor.tile[..tensor.rank].to_vec(),
        swizzle: match tensor.swizzle {
            oxigemm_cuda::Swizzle::None => Swizzle::None,
            oxigemm_cuda::Swizzle::B32 => Swizzle::B32,
            oxigemm_cuda::Swizzle::B64 => Swizzle::B64,
            oxigemm_cuda::Swizzle::B128 => Swizzle::B128,
        },
    }
}
