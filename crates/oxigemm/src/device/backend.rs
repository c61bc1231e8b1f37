//! Backend: what the library needs of a device that runs kernels. [`Cuda`](crate::Cuda) and [`Sim`](crate::Sim) are
//! one.
//!
//! The CPU is none: it computes by the [`reference`](crate::reference), without kernels, streams and addresses.

use oxigemm_cuda::TiledTensor;
use oxigemm_kernels::KernelId;

use super::extensions::Extensions;
use super::launch::{Geometry, KernelLaunch, KernelParams};
use super::limits::Limits;
use super::stream::Stream;
use crate::error::Result;

/// A device that runs kernels.
pub(crate) trait Backend: Send + Sync + 'static {
    /// A kernel that is ready to be launched.
    type Kernel: Clone + Send + Sync + 'static;
    /// A stream of this device, or its default stream.
    type Stream<'a>: Copy;

    /// What planning depends on.
    fn limits(&self) -> &Limits;

    /// State of higher layers.
    fn extensions(&self) -> &Extensions;

    /// The stream of a call: the default stream where there is none.
    ///
    /// # Errors
    /// If it is a stream of another device.
    fn stream<'a>(&'a self, stream: Option<&'a Stream>) -> Result<Self::Stream<'a>>;

    /// Whether a stream is being captured into a graph.
    fn is_capturing(&self, stream: Self::Stream<'_>) -> Result<bool>;

    /// A kernel of the closed set, which is loaded if it is not yet.
    fn load_kernel(&self, kernel: &KernelId) -> Result<Self::Kernel>;

    /// How many clusters of a kernel the device runs at a time, where the device can tell.
    fn resident_clusters(&self, kernel: &KernelId, geometry: &Geometry) -> Result<Option<u32>>;

    /// Puts a loaded kernel into a stream.
    ///
    /// # Safety
    /// The arguments must be the parameters of the kernel, in order. The memory that they are addresses of must be as
    /// the kernel expects it until it is done or, where the stream is being captured, whenever the graph is launched.
    unsafe fn launch_loaded(
        &self,
        kernel: &Self::Kernel,
        geometry: &Geometry,
        params: &impl KernelParams,
        stream: Self::Stream<'_>,
        programmatic: bool,
    ) -> Result<()>;

    /// Puts a kernel into a stream.
    ///
    /// # Safety
    /// As for [`launch_loaded`](Self::launch_loaded).
    unsafe fn launch(
        &self,
        launch: &KernelLaunch<impl KernelParams>,
        stream: Self::Stream<'_>,
    ) -> Result<()> {
        let kernel = self.load_kernel(&launch.kernel)?;
        // SAFETY: the caller keeps the same contract.
        unsafe { self.launch_loaded(&kernel, &launch.geometry, &launch.params, stream, launch.programmatic) }
    }

    /// Puts a fill with zeros into a stream: `rows` rows of `width` bytes, at an address and a pitch.
    ///
    /// # Safety
    /// The rows must be memory of this device, alive and not otherwise used until the stream has passed the fill or,
    /// where it is being captured, whenever the graph is launched.
    unsafe fn clear_rows(
        &self,
        at: [u64; 2],
        width: usize,
        rows: usize,
        stream: Self::Stream<'_>,
    ) -> Result<()>;

    /// Puts a copy of `rows` rows of `width` bytes into a stream; each side is an address and a pitch.
    ///
    /// # Safety
    /// As for [`clear_rows`](Self::clear_rows), for both. They must not overlap.
    unsafe fn copy_rows(
        &self,
        to: [u64; 2],
        from: [u64; 2],
        width: usize,
        rows: usize,
        stream: Self::Stream<'_>,
    ) -> Result<()>;

    /// The tensor map of a tensor.
    fn tensor_map(&self, tensor: &TiledTensor) -> Result<[u64; 16]>;

    /// Workspace of so many bytes for the kernels of one call in a stream.
    fn workspace(&self, stream: Self::Stream<'_>, bytes: u64) -> Result<u64>;

    /// Workspace in which the blocks of a kernel reduce or count: zeros at first, then what the last kernel of the
    /// stream left there.
    fn zeroed_workspace(&self, stream: Self::Stream<'_>, bytes: u64) -> Result<u64>;

    /// Workspace of a grid barrier for this stream, or for what is captured of it: zeros at first, then what the last
    /// such kernel left there. There is none where a capture would have to allocate it, or where all are taken.
    fn grid_barrier_workspace(&self, stream: Self::Stream<'_>) -> Result<Option<u64>>;

    /// Workspace for tensor maps that kernels make, of all blocks that run at a time.
    fn tensor_map_workspace(&self, stream: Self::Stream<'_>) -> Result<u64>;
}

/// Runs an expression for the backend of a device, statically dispatched. The CPU is refused, as it has none.
macro_rules! with_backend {
    ($device:expr, $backend:ident => $body:expr) => {
        match $device {
            $crate::device::Device::Cuda($backend) => $body,
            $crate::device::Device::Sim($backend) => $body,
            $crate::device::Device::Cpu => Err($crate::error::Error::no_raw_memory("cpu")),
        }
    };
}

pub(crate) use with_backend;
