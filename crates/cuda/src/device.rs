//! A GPU and its primary context.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute as Attribute};

use crate::arch::{Arch, Fit};
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};

/// Number of GPUs that the driver sees.
///
/// A machine without the driver, or without a GPU, is an error that says which.
///
/// ```
/// match oxigemm_cuda::device_count() {
///     Ok(count) => println!("{count} GPU(s)"),
///     Err(why) => println!("no GPU here: {why}"),
/// }
/// ```
pub fn device_count() -> Result<usize> {
    let mut count = 0;
    // SAFETY: `count` is a valid place to write to.
    unsafe { driver()?.cuDeviceGetCount(&mut count)? };
    Ok(count.max(0) as usize)
}

/// A GPU. Clones are cheap and stand for the same one.
///
/// It holds the GPU's *primary* context, the one that every library in the process shares, so memory and
/// streams of other libraries can be used with it. Every call makes that context current on the calling
/// thread and puts back the one that was, so a thread's idea of its current device never changes.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Primary>,
}

struct Primary {
    driver: &'static Driver,
    handle: CUdevice,
    context: CUcontext,
    ordinal: usize,
    name: String,
    capability: (u32, u32),
    sm_count: u32,
    total_memory: u64,
    l2_bytes: u64,
    max_shared_per_block: u32,
}

// SAFETY: a context handle may be used from every thread; the other fields are plain data.
unsafe impl Send for Primary {}
// SAFETY: as above.
unsafe impl Sync for Primary {}

impl Device {
    /// Opens a GPU and retains its primary context.
    pub fn open(ordinal: usize) -> Result<Self> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let driver = driver()?;
        let mut handle = 0;
        let mut name = [0u8; 256];
        let mut total_memory = 0usize;
        // SAFETY: the ordinal was checked; every pointer is to a place of the size that is passed.
        unsafe {
            driver.cuDeviceGet(&mut handle, ordinal as c_int)?;
            driver.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, handle)?;
            driver.cuDeviceTotalMem_v2(&mut total_memory, handle)?;
        }
        let attribute = |attribute: Attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: `value` is a valid place to write to, `handle` a device.
            unsafe { driver.cuDeviceGetAttribute(&mut value, attribute as c_uint, handle)? };
            Ok(value.max(0) as u32)
        };
        let capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let sm_count = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let l2_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into();
        let max_shared_per_block =
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a valid place to write to; `Primary::drop` releases what is retained here.
        unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, handle)? };
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        Ok(Self {
            inner: Arc::new(Primary {
                driver,
                handle,
                context,
                ordinal,
                name: String::from_utf8_lossy(&name[..end]).into_owned(),
                capability,
                sm_count,
                total_memory: total_memory as u64,
                l2_bytes,
                max_shared_per_block,
            }),
        })
    }

    /// Its number among the GPUs that the driver sees.
    pub fn ordinal(&self) -> usize {
        self.inner.ordinal
    }

    /// Its name, as the driver says it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its compute capability: (9, 0) is Hopper.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.inner.capability
    }

    /// Number of SMs.
    pub fn sm_count(&self) -> u32 {
        self.inner.sm_count
    }

    /// Bytes of device memory.
    pub fn total_memory(&self) -> u64 {
        self.inner.total_memory
    }

    /// Bytes of device memory that are free now.
    pub fn free_memory(&self) -> Result<u64> {
        Ok(self.memory_info()?.0 as u64)
    }

    /// Bytes of the L2 cache.
    pub fn l2_bytes(&self) -> u64 {
        self.inner.l2_bytes
    }

    /// Bytes of shared memory that a block can have, with the opt-in of [`Function::allow_dynamic_shared`].
    ///
    /// [`Function::allow_dynamic_shared`]: crate::Function::allow_dynamic_shared
    pub fn max_shared_per_block(&self) -> u32 {
        self.inner.max_shared_per_block
    }

    /// The CUDA version that the driver supports.
    pub fn driver_version(&self) -> (u32, u32) {
        self.inner.driver.version()
    }

    /// Whether code for an architecture such as `sm_90a` runs here.
    pub fn supports(&self, arch: &str) -> bool {
        Arch::parse(arch).is_ok_and(|arch| arch.fit(self.compute_capability()) != Fit::Nothing)
    }

    /// Waits until everything that was given to this GPU, on every stream, is done.
    pub fn synchronize(&self) -> Result<()> {
        let _current = self.make_current()?;
        // SAFETY: the context is current.
        unsafe { self.driver().cuCtxSynchronize() }
    }

    pub(crate) fn memory_info(&self) -> Result<(usize, usize)> {
        let _current = self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places to write to, and the context is current.
        unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total)? };
        Ok((free, total))
    }

    #[inline]
    pub(crate) fn driver(&self) -> &'static Driver {
        self.inner.driver
    }

    /// The context as the raw handle that other libraries take.
    pub fn raw_context(&self) -> *mut c_void {
        self.inner.context.cast()
    }

    /// Makes the primary context current on this thread until the guard is dropped.
    ///
    /// Reading the current context costs some nanoseconds, and in the common case nothing is set. A thread
    /// that had no context keeps this one, so its later calls take the short way.
    #[inline]
    pub(crate) fn make_current(&self) -> Result<Current> {
        let mut before = ptr::null_mut();
        // SAFETY: `before` is a valid place to write to.
        unsafe { self.driver().cuCtxGetCurrent(&mut before)? };
        if before == self.inner.context {
            return Ok(Current { restore: None });
        }
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { self.driver().cuCtxSetCurrent(self.inner.context)? };
        Ok(Current { restore: (!before.is_null()).then_some((self.driver(), before)) })
    }

    pub(crate) fn same(&self, other: &Device) -> bool {
        self.inner.context == other.inner.context
    }

    pub(crate) fn expect(&self, what: &'static str, other: &Device) -> Result<()> {
        if self.same(other) {
            return Ok(());
        }
        Err(Error::WrongDevice { what, found: other.ordinal(), expected: self.ordinal() })
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`. At process exit the driver may be gone already and says so.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}: {})", self.ordinal(), self.name())
    }
}

/// Puts back the context that was current before, where there was another one.
pub(crate) struct Current {
    restore: Option<(&'static Driver, CUcontext)>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some((driver, context)) = self.restore {
            // SAFETY: the context was current on this thread a moment ago.
            let _ = unsafe { driver.cuCtxSetCurrent(context) };
        }
    }
}
