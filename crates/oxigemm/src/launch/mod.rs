//! Launches: the one path from checked arguments to a kernel in a stream.
//!
//! A GEMM has a plan that is looked up or made ([`plan_cache`]), and a whole call of it is cached ([`cache`]), so that
//! a call with the arguments of an earlier one takes a comparison and a launch. The other kernels take their arguments
//! as they are ([`run_steps`]).

pub(crate) mod args;
pub(crate) mod cache;
mod output;
mod params;
mod plan_cache;
pub(crate) mod prepared;
mod tensor_maps;

use crate::device::Device;
use crate::device::backend::{Backend, with_backend};
use crate::device::launch::{KernelLaunch, KernelParams};
use crate::device::stream::Stream;
use crate::error::Result;

pub use plan_cache::Stats;
pub(crate) use plan_cache::prepared;
pub(crate) use prepared::geometry;

/// How a call that is not a GEMM is run. The default is right for most calls.
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
pub(crate) enum Step<P> {
    /// Bytes become zero.
    Zero { address: u64, bytes: usize },
    /// A kernel runs.
    Kernel(KernelLaunch<P>),
}

/// Puts steps into the stream of the options, one after another. A kernel that is the only step may start early where
/// the options say so.
///
/// # Safety
/// What the arguments of the kernels are addresses of must be memory of this device, as large as the kernels take it to
/// be. It must stay alive, and not be used otherwise, until the stream has passed them; where the stream is being
/// captured, whenever the graph runs.
pub(crate) unsafe fn run_steps<P: KernelParams>(
    device: &Device,
    steps: impl ExactSizeIterator<Item = Step<P>>,
    options: &LaunchOptions,
) -> Result<()> {
    let programmatic = options.programmatic && steps.len() == 1;
    with_backend!(device, backend => {
        let stream = backend.stream(options.stream.as_ref())?;
        for step in steps {
            match step {
                // SAFETY: the caller keeps the memory.
                Step::Zero { address, bytes } => unsafe {
                    backend.clear_rows([address, bytes as u64], bytes, 1, stream)?;
                },
                // SAFETY: as above.
                Step::Kernel(launch) => unsafe {
                    backend.launch(&KernelLaunch { programmatic, ..launch }, stream)?;
                },
            }
        }
        Ok(())
    })
}
