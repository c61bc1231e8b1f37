//! Kernels that take plain numbers and addresses: launched as they are, without tensor maps and plans to remember.

pub(crate) mod args;
pub(crate) mod cache;
pub(crate) mod direct;
mod output;
pub(crate) mod prepared;
pub(crate) mod tensor_maps;

use std::ffi::c_void;

use oxigemm_cuda::LaunchConfig;
use oxigemm_kernels::{Argument, KernelId};
use oxigemm_sim::Param;

use crate::device::Device;
use crate::device::sim::Work;
use crate::device::{Cuda, Sim, Stream};
use crate::error::{Error, Result};
use crate::gemm::{put, stream_on_cuda, stream_on_sim};

/// The most arguments that such a kernel has.
const MOST: usize = 32;

/// How a call that is not a product is run. The default is right for most calls.
#[derive(Clone, Debug, Default)]
pub struct LaunchOptions {
    /// The stream to put it into; the default stream where there is none. Only for a GPU or the simulator.
    pub stream: Option<Stream>,
    /// Whether the kernel may start while the one before it in the stream still runs; it then waits for the other's
    /// results. Calls of several kernels do not.
    pub programmatic: bool,
}

/// A part of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<const N: usize> {
    /// Bytes become zero.
    Zero { address: u64, bytes: usize },
    /// A kernel runs.
    Kernel(PlainLaunch<N>),
}

/// A kernel with its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainLaunch<const N: usize> {
    pub kernel: KernelId,
    pub grid: [u32; 2],
    pub threads: u32,
    pub shared_bytes: u32,
    /// Whether all blocks have to run at one time.
    pub together: bool,
    pub arguments: [Argument; N],
}

/// Puts steps into the stream of the options, one after another.
///
/// # Safety
/// What the arguments of the kernels are addresses of must be memory of this device, as large as the kernels take it to
/// be. It must stay alive, and not be used otherwise, until the stream has passed them; where the stream is being
/// captured, whenever the graph runs.
pub(crate) unsafe fn run_steps<const N: usize>(
    device: &Device,
    steps: impl ExactSizeIterator<Item = Step<N>>,
    options: &LaunchOptions,
) -> Result<()> {
    let programmatic = options.programmatic && steps.len() == 1;
    match device {
        Device::Cuda(cuda) => {
            let stream = stream_on_cuda(cuda, options.stream.as_ref())?;
            for step in steps {
                match step {
                    // SAFETY: the caller keeps the memory.
                    Step::Zero { address, bytes } => unsafe {
                        stream.fill_rows_async([address, bytes as u64], bytes, 1, 0)?;
                    },
                    // SAFETY: as above.
                    Step::Kernel(launch) => unsafe { launch.on_cuda(cuda, stream, programmatic)? },
                }
            }
            Ok(())
        }
        Device::Sim(sim) => {
            let stream = stream_on_sim(sim, options.stream.as_ref())?;
            for step in steps {
                let work = match step {
                    Step::Zero { address, bytes } => {
                        Work::ClearRows { at: [address, 0], width: bytes, rows: 1 }
                    }
                    Step::Kernel(launch) => launch.work(sim, programmatic)?,
                };
                put(sim, stream, work)?;
            }
            Ok(())
        }
        Device::Cpu => Err(Error::no_raw_memory(device)),
    }
}

impl<const N: usize> PlainLaunch<N> {
    /// # Safety
    /// As for [`run_steps`].
    unsafe fn on_cuda(&self, cuda: &Cuda, stream: &oxigemm_cuda::Stream, programmatic: bool) -> Result<()> {
        const { assert!(N <= MOST) };
        let function = cuda.function(&self.kernel)?;
        let mut pointers: [*mut c_void; MOST] = [std::ptr::null_mut(); MOST];
        for (pointer, argument) in pointers.iter_mut().zip(&self.arguments) {
            *pointer = match argument {
                Argument::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
            };
        }
        let config = LaunchConfig {
            grid: [self.grid[0], self.grid[1], 1],
            block: [self.threads, 1, 1],
            cluster: [1, 1, 1],
            shared_bytes: self.shared_bytes,
            // A kernel that needs the whole device waits until it has it.
            programmatic: programmatic && !self.together,
            cooperative: self.together,
        };
        // SAFETY: the arguments are the kernel's parameters in order and live for the call; the caller keeps the rest.
        unsafe { function.launch(stream, &config, &pointers[..N])? };
        Ok(())
    }

    fn work(&self, sim: &Sim, programmatic: bool) -> Result<Work> {
        let launch = oxigemm_sim::Launch {
            entry: self.kernel.name(),
            grid: [self.grid[0], self.grid[1], 1],
            cluster: None,
            block: [self.threads, 1, 1],
            shared_bytes: self.shared_bytes,
            params: self.arguments.iter().map(parameter).collect(),
        };
        Ok(Work::Kernel { module: sim.module(&self.kernel)?, launch, programmatic })
    }
}

fn parameter(argument: &Argument) -> Param {
    match *argument {
        Argument::U32(value) => Param::U32(value),
        Argument::U64(value) => Param::U64(value),
    }
}
