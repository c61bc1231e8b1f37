//! Kernels and their launches.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as Attribute, CUlaunchAttribute, CUlaunchAttributeID as AttributeId,
    CUlaunchAttributeValue as AttributeValue, CUlaunchAttributeValue_union__bindgen_ty_1 as ClusterDim,
    CUlaunchConfig, CUstream,
};

use crate::error::{Error, Result};
use crate::module::Loaded;
use crate::stream::Stream;

/// The geometry of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaunchConfig {
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Blocks of a cluster in each dimension; `[1, 1, 1]` for none.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Programmatic dependent launch: the kernel may start before the one ahead of it in the stream is done,
    /// and waits for it by itself (`griddepcontrol.wait`).
    pub programmatic: bool,
    /// Cooperative launch: all blocks are resident, or the launch is refused, so that they may wait for each other.
    pub cooperative: bool,
}

impl LaunchConfig {
    /// A plain launch in one dimension: no cluster, no dynamic shared memory.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            cluster: [1, 1, 1],
            shared_bytes: 0,
            programmatic: false,
            cooperative: false,
        }
    }

    /// Calls `call` with the driver's form of this configuration, which is on the stack.
    fn with_raw<R>(
        &self,
        stream: CUstream,
        always_cluster: bool,
        call: impl FnOnce(*const CUlaunchConfig) -> R,
    ) -> R {
        let [x, y, z] = self.cluster;
        let cluster = attribute(
            AttributeId::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            AttributeValue { clusterDim: ClusterDim { x, y, z } },
        );
        let programmatic = attribute(
            AttributeId::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            AttributeValue { programmaticStreamSerializationAllowed: 1 },
        );
        let cooperative =
            attribute(AttributeId::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, AttributeValue { cooperative: 1 });
        let mut attributes = [cluster, programmatic, cooperative];
        let mut count = 0;
        if always_cluster || self.cluster != [1, 1, 1] {
            count += 1;
        }
        if self.programmatic {
            attributes[count] = programmatic;
            count += 1;
        }
        if self.cooperative {
            attributes[count] = cooperative;
            count += 1;
        }
        let raw = CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as c_uint,
        };
        call(&raw)
    }
}

fn attribute(id: AttributeId, value: AttributeValue) -> CUlaunchAttribute {
    CUlaunchAttribute { id, pad: [0 as c_char; 4], value }
}

/// What the driver knows about a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Registers per thread.
    pub registers: u32,
    /// Local memory per thread; anything but 0 means spills or a stack.
    pub local_bytes: u32,
    /// Static shared memory per block.
    pub shared_bytes: u32,
    /// The most threads that a block may have.
    pub max_threads: u32,
}

/// A kernel of a loaded [`Module`](crate::Module). Clones are cheap and keep the module loaded.
#[derive(Clone)]
pub struct Function {
    module: Arc<Loaded>,
    handle: CUfunction,
    name: Arc<str>,
    attributes: FunctionAttributes,
}

// SAFETY: function handles may be used from every thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The driver may load code lazily; reading the attributes makes it do so now and not inside a capture.
    pub(crate) fn new(module: Arc<Loaded>, handle: CUfunction, name: &str) -> Result<Self> {
        let get = |attribute: Attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the handle is a function of the loaded module, whose context the caller made current.
            unsafe { module.device.driver().cuFuncGetAttribute(&mut value, attribute as c_uint, handle)? };
            Ok(value.max(0) as u32)
        };
        let attributes = FunctionAttributes {
            registers: get(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: get(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared_bytes: get(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads: get(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        };
        Ok(Self { module, handle, name: name.into(), attributes })
    }

    /// Its name in the PTX.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the driver knows about it.
    pub fn attributes(&self) -> FunctionAttributes {
        self.attributes
    }

    /// Allows it more dynamic shared memory than the 48 KiB that every kernel may have. Once is enough.
    pub fn allow_dynamic_shared(&self, bytes: u32) -> Result<()> {
        self.set(Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes)
    }

    /// Allows it clusters of more than eight blocks, where the GPU has them. Once is enough.
    pub fn allow_large_clusters(&self) -> Result<()> {
        self.set(Attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    }

    fn set(&self, attribute: Attribute, value: u32) -> Result<()> {
        let device = &self.module.device;
        let _current = device.make_current()?;
        let value = c_int::try_from(value).unwrap_or(c_int::MAX);
        // SAFETY: the handle is a function of a loaded module of the current context.
        unsafe { device.driver().cuFuncSetAttribute(self.handle, attribute as c_uint, value) }
    }

    /// Clusters of this configuration that are resident on the GPU at a time.
    pub fn max_active_clusters(&self, config: &LaunchConfig) -> Result<u32> {
        let device = &self.module.device;
        let _current = device.make_current()?;
        let mut count = 0;
        config.with_raw(ptr::null_mut(), true, |raw| {
            // SAFETY: `raw` lives for this call, `count` is a valid place to write to, the module is loaded.
            unsafe { device.driver().cuOccupancyMaxActiveClusters(&mut count, self.handle, raw) }
        })?;
        Ok(count.max(0) as u32)
    }

    /// Occupancy: blocks with this many threads and this much dynamic shared memory that are resident on an SM.
    pub fn max_active_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32> {
        let device = &self.module.device;
        let _current = device.make_current()?;
        let mut count = 0;
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: `count` is a valid place to write to, the module is loaded in the current context.
        unsafe {
            device.driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut count,
                self.handle,
                threads,
                shared_bytes as usize,
            )?
        };
        Ok(count.max(0) as u32)
    }

    /// Launches it. Nothing is allocated on the way.
    ///
    /// # Safety
    /// `params` must point to one value for every parameter of the kernel, in order, each of the parameter's
    /// type; they are read during this call. Device memory that the kernel uses must be alive and of this GPU
    /// until the kernel is done, or, where the stream is being captured, whenever the graph is launched. The
    /// kernel must not leave that memory or race with other work on it.
    #[inline]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        config: &LaunchConfig,
        params: &[*mut c_void],
    ) -> Result<()> {
        let device = &self.module.device;
        device.expect("the stream", stream.device())?;
        let _current = device.make_current()?;
        config
            .with_raw(stream.handle(), false, |raw| {
                // SAFETY: `raw` lives for this call and the module is loaded; the driver does not write to the
                // array of parameters; the caller keeps the rest.
                unsafe {
                    device.driver().cuLaunchKernelEx(
                        raw,
                        self.handle,
                        params.as_ptr().cast_mut(),
                        ptr::null_mut(),
                    )
                }
            })
            .map_err(|error| self.refused(config, error))
    }

    #[cold]
    fn refused(&self, config: &LaunchConfig, error: Error) -> Error {
        match error {
            Error::Driver { code, name, text, .. } => {
                Error::Launch { kernel: self.name.to_string(), config: *config, code, name, text }
            }
            other => other,
        }
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({})", self.name)
    }
}
