//! The raw layer: the driver functions that this crate calls, resolved once and each checked for.
//!
//! The types are those of [`cudarc::driver::sys`]. Its functions are not used, for two reasons: they panic
//! where the library or a symbol is missing, and they return a Rust `enum`, which a newer driver with a
//! newer error code would make invalid. Here a missing symbol is an [`Error`] and a result is an integer.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUlaunchConfig,
    CUmodule, CUstream,
};
use libloading::Library;

use crate::error::{Error, Result};

/// `cuTensorMapEncodeTiled` came with CUDA 12.0; everything else here is older.
pub(crate) const OLDEST_CUDA: (u32, u32) = (12, 0);

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
const STUB_LIBRARY: c_int = 34;

/// The driver's library and its CUDA version, found and checked on the first call.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Driver::open).as_ref().map_err(Clone::clone)
}

macro_rules! driver_functions {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        #[allow(non_snake_case)]
        pub(crate) struct Driver {
            version: (u32, u32),
            /// The process that has initialized it.
            process: u32,
            cuGetErrorName: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            cuGetErrorString: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Driver {
            fn resolve(library: &Library, version: (u32, u32)) -> Result<Self> {
                // SAFETY: the names and signatures are those of cuda.h, for the ABI that the names select.
                unsafe {
                    Ok(Self {
                        version,
                        process: std::process::id(),
                        cuGetErrorName: symbol(library, "cuGetErrorName")?,
                        cuGetErrorString: symbol(library, "cuGetErrorString")?,
                        $($name: symbol(library, stringify!($name))?,)*
                    })
                }
            }

            $(
                /// The driver function of the same name, its result checked.
                ///
                /// # Safety
                /// The driver's own contract for this function.
                #[inline]
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> Result<()> {
                    // SAFETY: the caller keeps the driver's contract.
                    let code = unsafe { (self.$name)($($arg),*) };
                    if code == SUCCESS { Ok(()) } else { Err(self.error(stringify!($name), code)) }
                }
            )*
        }
    };
}

driver_functions! {
    fn cuInit(flags: c_uint);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSynchronize();
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    fn cuMemsetD32Async(address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    fn cuMemsetD2D8Async(address: CUdeviceptr, pitch: usize, value: u8, width: usize, rows: usize, stream: CUstream);
    fn cuMemcpy2DAsync_v2(copy: *const sys::CUDA_MEMCPY2D, stream: CUstream);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamGetId(stream: CUstream, id: *mut u64);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: *mut c_uint,
        id: *mut u64,
        graph: *mut CUgraph,
        dependencies: *mut *const c_void,
        count: *mut usize,
    );
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphExecDestroy(exec: CUgraphExec);
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    fn cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: CUfunction);
    fn cuFuncSetAttribute(function: CUfunction, attribute: c_uint, value: c_int);
    fn cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);
    fn cuOccupancyMaxActiveClusters(count: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(count: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize);
    fn cuTensorMapEncodeTiled(map: *mut sys::CUtensorMap, element: c_uint, rank: c_uint, address: *mut c_void, dims: *const u64, strides: *const u64, tile: *const u32, element_strides: *const u32, interleave: c_uint, swizzle: c_uint, promotion: c_uint, fill: c_uint);
}

impl Driver {
    fn open() -> Result<Self> {
        // SAFETY: loading libcuda runs its initializers, which is what every user of CUDA does.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        // SAFETY: as above; the library was found, so this does not panic.
        let library = unsafe { sys::culib() };
        type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
        let mut version = 0;
        // SAFETY: the signature is that of cuda.h, and `version` is a valid place to write to.
        let code = unsafe { symbol::<GetVersion>(library, "cuDriverGetVersion")?(&mut version) };
        if code == STUB_LIBRARY {
            return Err(Error::NoDriver);
        }
        let found = ((version / 1000) as u32, (version % 1000 / 10) as u32);
        if found < OLDEST_CUDA {
            return Err(Error::DriverTooOld { found, needed: OLDEST_CUDA });
        }
        let driver = Self::resolve(library, found)?;
        // SAFETY: cuInit may be called at any time, more than once and from any thread.
        match unsafe { driver.cuInit(0) } {
            Err(Error::Driver { code: NO_DEVICE, .. }) => Err(Error::NoDevice { ordinal: 0, count: 0 }),
            Err(Error::Driver { code: STUB_LIBRARY, .. }) => Err(Error::NoDriver),
            Err(error) => Err(error),
            Ok(()) => Ok(driver),
        }
    }

    /// The CUDA version that the driver supports.
    pub(crate) fn version(&self) -> (u32, u32) {
        self.version
    }

    #[cold]
    fn error(&self, call: &'static str, code: c_int) -> Error {
        // The driver calls it an error of initialization, or whatever else it stumbles over.
        if self.process != std::process::id() {
            return Error::Forked;
        }
        let words = |get: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = ptr::null();
            // SAFETY: `text` is a valid place to write to.
            if unsafe { get(code, &mut text) } != SUCCESS || text.is_null() {
                return None;
            }
            // SAFETY: on success the driver gives a static, terminated string.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        Error::Driver {
            call,
            code,
            name: words(self.cuGetErrorName).unwrap_or_else(|| "an unknown error".into()),
            text: words(self.cuGetErrorString).unwrap_or_else(|| "the driver has no words for it".into()),
        }
    }
}

/// # Safety
/// `F` must be the type of the function that `name` stands for.
unsafe fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F> {
    // SAFETY: the caller names the right type; the library is never unloaded.
    let found = unsafe { library.get::<F>(name.as_bytes()) };
    found.map(|f| *f).map_err(|_| Error::MissingSymbol { library: "libcuda".into(), symbol: name.into() })
}
