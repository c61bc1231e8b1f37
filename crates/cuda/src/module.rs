//! Modules: PTX compiled and loaded on a GPU.

use std::ffi::{CString, c_char, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUjit_option as JitOption, CUmodule};

use crate::arch::{Arch, Fit};
use crate::assemble::Report;
use crate::cache::CubinCache;
use crate::device::Device;
use crate::driver::NOT_FOUND;
use crate::error::{Error, Result};
use crate::launch::Function;

/// A PTX module, before it is code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtxModule<'a> {
    /// A name for messages; it is no part of the cache's key.
    pub name: &'a str,
    /// The PTX.
    pub text: &'a str,
    /// The architecture to make code for, such as `sm_90a`.
    pub arch: &'a str,
}

/// Where the code of a module came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provenance {
    /// A cubin that was built ahead and shipped.
    Prebuilt,
    /// A cubin from the user's cache.
    Cached,
    /// Assembled by `ptxas` just now.
    Ptxas,
    /// Compiled by the driver just now, or taken from the driver's own cache.
    Driver,
}

impl std::fmt::Display for Provenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prebuilt => "prebuilt",
            Self::Cached => "cached",
            Self::Ptxas => "ptxas",
            Self::Driver => "driver",
        })
    }
}

/// Code that is loaded on a GPU; unloaded when it and all its functions are dropped.
#[derive(Debug, Clone)]
pub struct Module {
    loaded: Arc<Loaded>,
    provenance: Provenance,
    load_time: Duration,
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) device: Device,
    handle: CUmodule,
    name: String,
}

// SAFETY: module handles may be used from every thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Device {
    /// Makes code of a PTX module and loads it.
    ///
    /// A cubin is taken from the cache's prebuilt directories or from the cache itself, or made by `ptxas`
    /// where one is found, and is then kept in the cache. Otherwise the driver compiles the PTX. The driver
    /// also has the last word where it refuses a cubin, as an old driver does with that of a newer assembler.
    ///
    /// ```no_run
    /// use oxigemm_cuda::{CubinCache, Device, Error, LaunchConfig, PtxModule};
    ///
    /// let device = Device::open(0)?;
    /// let cache = CubinCache::user_default();
    /// let text = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    /// let module = device.load(&cache, &PtxModule { name: "nothing", text, arch: "sm_90a" })?;
    /// let nothing = module.function("nothing")?;
    /// // SAFETY: the kernel has no parameters and touches no memory.
    /// unsafe { nothing.launch(&device.default_stream(), &LaunchConfig::linear(1, 32), &[])? };
    /// # Ok::<(), Error>(())
    /// ```
    pub fn load(&self, cache: &CubinCache, ptx: &PtxModule<'_>) -> Result<Module> {
        let started = Instant::now();
        let fit = Arch::parse(ptx.arch)?.fit(self.compute_capability());
        if fit == Fit::Nothing {
            return Err(Error::UnsupportedArch {
                kernel: ptx.name.into(),
                arch: ptx.arch.into(),
                device: self.name().into(),
                found: self.compute_capability(),
            });
        }
        let module = |handle, provenance| {
            let load_time = started.elapsed();
            tracing::debug!(kernel = ptx.name, %provenance, ?load_time, "loaded");
            let loaded = Arc::new(Loaded { device: self.clone(), handle, name: ptx.name.into() });
            Module { loaded, provenance, load_time }
        };
        if fit == Fit::Cubin
            && let Some(cubin) = cache.cubin(ptx)?
        {
            match self.load_cubin(&cubin.bytes) {
                Ok(handle) => return Ok(module(handle, cubin.provenance)),
                Err(error) if is_refusal(&error) => {
                    cache.count_refused();
                    tracing::warn!(
                        kernel = ptx.name,
                        assembler = cubin.assembler,
                        "the driver refused a cubin ({error}); it compiles the PTX instead"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        let handle = self.compile(ptx)?;
        cache.count_driver();
        Ok(module(handle, Provenance::Driver))
    }

    fn load_cubin(&self, cubin: &[u8]) -> Result<CUmodule> {
        let _current = self.make_current()?;
        let mut handle = ptr::null_mut();
        let (options, values) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the image is an ELF file whose checksum was right or that ptxas just wrote.
        unsafe { self.driver().cuModuleLoadDataEx(&mut handle, cubin.as_ptr().cast(), 0, options, values)? };
        Ok(handle)
    }

    /// Has the driver compile the PTX. Its linker functions are never used: they drop `setmaxnreg`.
    fn compile(&self, ptx: &PtxModule<'_>) -> Result<CUmodule> {
        const LOG_BYTES: usize = 64 << 10;
        let text = CString::new(ptx.text)
            .map_err(|e| Error::ZeroByte { kernel: ptx.name.into(), offset: e.nul_position() })?;
        let mut errors = vec![0u8; LOG_BYTES];
        let mut infos = vec![0u8; LOG_BYTES];
        let number = |value: usize| ptr::without_provenance_mut::<c_void>(value);
        let mut options = [
            JitOption::CU_JIT_ERROR_LOG_BUFFER as c_uint,
            JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint,
            JitOption::CU_JIT_INFO_LOG_BUFFER as c_uint,
            JitOption::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES as c_uint,
            JitOption::CU_JIT_LOG_VERBOSE as c_uint,
            JitOption::CU_JIT_GENERATE_LINE_INFO as c_uint,
        ];
        let mut values = [
            errors.as_mut_ptr().cast(),
            number(LOG_BYTES),
            infos.as_mut_ptr().cast(),
            number(LOG_BYTES),
            number(1),
            number(usize::from(ptx.text.contains(".loc"))),
        ];
        let mut handle = ptr::null_mut();
        let _current = self.make_current()?;
        // SAFETY: the text is terminated; the options are as many as their values, and the logs as long as said.
        let loaded = unsafe {
            self.driver().cuModuleLoadDataEx(
                &mut handle,
                text.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        match loaded {
            Ok(()) => {
                if let Some(fault) = Report::parse(&log_text(&infos)).fault() {
                    tracing::warn!(
                        kernel = ptx.name,
                        "the driver's compiler: {fault}; the kernel will be slow"
                    );
                }
                Ok(handle)
            }
            Err(Error::Driver { name, text, .. }) => {
                Err(Error::Jit { kernel: ptx.name.into(), name, text, log: log_text(&errors) })
            }
            Err(other) => Err(other),
        }
    }
}

/// The driver cannot use this image, while it may well use the PTX: invalid image, unsupported PTX version or
/// none for this GPU, invalid PTX or source.
fn is_refusal(error: &Error) -> bool {
    matches!(error.driver_code(), Some(200 | 209 | 218 | 222 | 300))
}

fn log_text(log: &[u8]) -> String {
    let end = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).trim_end().to_owned()
}

impl Module {
    /// Where its code came from.
    pub fn provenance(&self) -> Provenance {
        self.provenance
    }

    /// How long it took from PTX to loaded code.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// One of its kernels.
    pub fn function(&self, name: &str) -> Result<Function> {
        let missing =
            || Error::NoSuchFunction { module: self.loaded.name.clone(), function: name.to_owned() };
        let terminated = CString::new(name).map_err(|_| missing())?;
        let device = &self.loaded.device;
        let _current = device.make_current()?;
        let mut handle = ptr::null_mut();
        let text: *const c_char = terminated.as_ptr();
        // SAFETY: the module is loaded, the name terminated, `handle` a valid place to write to.
        match unsafe { device.driver().cuModuleGetFunction(&mut handle, self.loaded.handle, text) } {
            Err(Error::Driver { code: NOT_FOUND, .. }) => return Err(missing()),
            other => other?,
        }
        Function::new(Arc::clone(&self.loaded), handle, name)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: loaded by `Device::load`, unloaded only here, when no function of it is left.
            let _ = unsafe { self.device.driver().cuModuleUnload(self.handle) };
        }
    }
}
