//! A GPU: its streams, its loaded kernels and its workspaces.

mod kernels;

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use oxigemm_cuda::{Buffer, CacheStats, CubinCache, Function, TiledTensor};
use oxigemm_kernels::gemm::dynamic_tensor_maps::MAP_WORKSPACE_BYTES as TENSOR_MAP_BYTES;
use oxigemm_kernels::{Arch, KernelId};

use super::backend::Backend;
use super::extensions::Extensions;
use super::id::DeviceId;
use super::launch::{Geometry, KernelParams};
use super::limits::Limits;
use super::stream::{Stream, wrong_stream};
use super::workspace::Workspaces;
use super::workspace::grid_barrier::{GRID_BARRIERS_BYTES, GridBarriers, Owner};
use super::workspace::stream_key::{StreamKeys, stream_key};
use crate::error::{Error, Result};
use kernels::Kernels;
pub use kernels::Loaded;

/// A GPU with its kernels and plans. Clones are cheap and share them.
///
/// ```no_run
/// use oxigemm::Cuda;
///
/// let cuda = Cuda::open(0)?;
/// cuda.load_all()?; // so that no later call has to load a kernel
/// println!("{:?}", cuda.stats());
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone)]
pub struct Cuda {
    inner: Arc<Inner>,
}

struct Inner {
    gpu: oxigemm_cuda::Device,
    default_stream: oxigemm_cuda::Stream,
    limits: Limits,
    kernels: Kernels,
    streams: StreamKeys,
    workspaces: Workspaces<Buffer>,
    zeroed_workspaces: Workspaces<Buffer>,
    grid_barriers: GridBarriers<Buffer>,
    /// Allocated when the first kernel needs it.
    tensor_maps: OnceLock<Buffer>,
    extensions: Extensions,
}

impl Cuda {
    /// Opens a GPU, with the user's cache of cubins.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn open(ordinal: usize) -> Result<Cuda> {
        Cuda::with_cache(ordinal, CubinCache::user_default())
    }

    /// Opens a GPU, with a given cache of cubins.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn with_cache(ordinal: usize, cache: CubinCache) -> Result<Cuda> {
        let gpu = oxigemm_cuda::Device::open(ordinal)?;
        // A device without kernels refuses the first one that it is asked to load.
        let arch = Arch::of(gpu.compute_capability()).unwrap_or(Arch::Sm90a);
        let limits = Limits::of(arch, gpu.sm_count(), gpu.max_shared_per_block());
        Ok(Cuda {
            inner: Arc::new(Inner {
                default_stream: gpu.default_stream(),
                limits,
                kernels: Kernels::new(gpu.clone(), cache, &limits),
                gpu,
                streams: StreamKeys::default(),
                workspaces: Workspaces::default(),
                zeroed_workspaces: Workspaces::default(),
                grid_barriers: GridBarriers::default(),
                tensor_maps: OnceLock::new(),
                extensions: Extensions::default(),
            }),
        })
    }

    /// The GPU itself.
    #[must_use]
    pub fn gpu(&self) -> &oxigemm_cuda::Device {
        &self.inner.gpu
    }

    /// Whether the kernels run on it.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        Arch::of(self.gpu().compute_capability()).is_some()
    }

    /// What planning knows of it.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The default stream.
    #[must_use]
    pub fn default_stream(&self) -> &oxigemm_cuda::Stream {
        &self.inner.default_stream
    }

    /// A stream of its own.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new_stream(&self) -> Result<oxigemm_cuda::Stream> {
        Ok(self.gpu().new_stream()?)
    }

    /// A stream that another library owns, such as torch's current stream.
    ///
    /// # Safety
    /// `raw` must be a `CUstream` (or `cudaStream_t`) of this GPU's primary context, and must stay alive as long as
    /// the result or a clone of it is used.
    #[must_use]
    pub unsafe fn stream_from_raw(&self, raw: *mut c_void) -> oxigemm_cuda::Stream {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.gpu().stream_from_raw(raw) }
    }

    /// The kernels that are loaded, and how they came.
    #[must_use]
    pub fn loaded(&self) -> Vec<Loaded> {
        self.inner.kernels.loaded()
    }

    /// Loads the whole closed set, so that no later call has to.
    ///
    /// # Errors
    /// If a kernel cannot be assembled or loaded.
    pub fn load_all(&self) -> Result<()> {
        self.inner.kernels.load_all()
    }

    /// Loads one kernel of the closed set, if it is not loaded yet, and says how it came.
    ///
    /// # Errors
    /// If it cannot be assembled or loaded, or is not of the set.
    pub fn load(&self, kernel: impl Into<KernelId>) -> Result<Loaded> {
        self.inner.kernels.load(&kernel.into())
    }

    /// What the cubin cache did.
    pub(crate) fn cache_stats(&self) -> CacheStats {
        self.inner.kernels.cache_stats()
    }

    /// Allocates for a stream, which must not be captured: the driver refuses it, or ends the capture.
    fn alloc_for(&self, stream: &oxigemm_cuda::Stream, bytes: u64) -> Result<Buffer> {
        if stream.is_capturing()? {
            return Err(Error::workspace_in_capture());
        }
        Ok(self.gpu().alloc(bytes as usize)?)
    }

    fn zeros_for(&self, stream: &oxigemm_cuda::Stream, bytes: u64) -> Result<(u64, Buffer)> {
        let mut buffer = self.alloc_for(stream, bytes)?;
        buffer.fill_u8(0)?;
        Ok((buffer.ptr(), buffer))
    }
}

impl Backend for Cuda {
    type Kernel = Function;
    type Stream<'a> = &'a oxigemm_cuda::Stream;

    #[inline]
    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    #[inline]
    fn extensions(&self) -> &Extensions {
        &self.inner.extensions
    }

    #[inline]
    fn stream<'a>(&'a self, stream: Option<&'a Stream>) -> Result<&'a oxigemm_cuda::Stream> {
        match stream {
            None => Ok(self.default_stream()),
            Some(Stream::Cuda(stream)) => Ok(stream),
            Some(stream) => Err(wrong_stream(DeviceId::Cuda(self.gpu().ordinal()), stream)),
        }
    }

    fn is_capturing(&self, stream: &oxigemm_cuda::Stream) -> Result<bool> {
        Ok(stream.is_capturing()?)
    }

    fn load_kernel(&self, kernel: &KernelId) -> Result<Function> {
        self.inner.kernels.function(kernel)
    }

    fn resident_clusters(&self, kernel: &KernelId, geometry: &Geometry) -> Result<Option<u32>> {
        self.inner.kernels.resident_clusters(kernel, geometry).map(Some)
    }

    #[inline]
    unsafe fn launch_loaded(
        &self,
        kernel: &Function,
        geometry: &Geometry,
        params: &impl KernelParams,
        stream: &oxigemm_cuda::Stream,
        programmatic: bool,
    ) -> Result<()> {
        let config = geometry.config(programmatic);
        // SAFETY: the caller keeps the same contract; the pointers live for the call.
        params.with_pointers(|pointers| unsafe { kernel.launch(stream, &config, pointers) })?;
        Ok(())
    }

    unsafe fn clear_rows(
        &self,
        at: [u64; 2],
        width: usize,
        rows: usize,
        stream: &oxigemm_cuda::Stream,
    ) -> Result<()> {
        // SAFETY: the caller keeps the same contract.
        unsafe { stream.fill_rows_async(at, width, rows, 0)? };
        Ok(())
    }

    unsafe fn copy_rows(
        &self,
        to: [u64; 2],
        from: [u64; 2],
        width: usize,
        rows: usize,
        stream: &oxigemm_cuda::Stream,
    ) -> Result<()> {
        // SAFETY: the caller keeps the same contract.
        unsafe { stream.copy_rows_async(to, from, width, rows)? };
        Ok(())
    }

    fn tensor_map(&self, tensor: &TiledTensor) -> Result<[u64; 16]> {
        Ok(tensor.encode()?.0)
    }

    fn workspace(&self, stream: &oxigemm_cuda::Stream, bytes: u64) -> Result<u64> {
        self.inner.workspaces.at(self.inner.streams.of(stream)?, bytes, |bytes| {
            let buffer = self.alloc_for(stream, bytes)?;
            Ok((buffer.ptr(), buffer))
        })
    }

    fn zeroed_workspace(&self, stream: &oxigemm_cuda::Stream, bytes: u64) -> Result<u64> {
        let key = self.inner.streams.of(stream)?;
        self.inner.zeroed_workspaces.at(key, bytes, |bytes| self.zeros_for(stream, bytes))
    }

    fn grid_barrier_workspace(&self, stream: &oxigemm_cuda::Stream) -> Result<Option<u64>> {
        let capture = stream.capture_id()?;
        // Nobody had the workspace of a capture before.
        let key = if capture.is_some() { stream_key(stream) } else { self.inner.streams.of(stream)? };
        let owner = Owner { stream: key, capture };
        self.inner.grid_barriers.of(owner, || self.zeros_for(stream, GRID_BARRIERS_BYTES))
    }

    fn tensor_map_workspace(&self, stream: &oxigemm_cuda::Stream) -> Result<u64> {
        if let Some(buffer) = self.inner.tensor_maps.get() {
            return Ok(buffer.ptr());
        }
        let (_, buffer) = self.zeros_for(stream, TENSOR_MAP_BYTES.into())?;
        // Another thread may have been faster; nothing has used this one yet.
        Ok(self.inner.tensor_maps.get_or_init(|| buffer).ptr())
    }
}
