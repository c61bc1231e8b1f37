//! Errors: every text is one sentence that a caller can act on.

use cudarc::driver::sys::CUresult;

use crate::launch::LaunchConfig;
use crate::tensor_map::TensorMapRule;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the driver, of the assembler or of a check made before either is called.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's library is not on this machine.
    #[error("no NVIDIA driver: libcuda could not be loaded; install the GPU driver or run on another device")]
    NoDriver,
    /// The driver is older than the oldest one that has tensor maps.
    #[error("the NVIDIA driver is too old: it supports CUDA {}.{}, at least {}.{} is needed", found.0, found.1, needed.0, needed.1)]
    DriverTooOld {
        /// The CUDA version of the installed driver.
        found: (u32, u32),
        /// The oldest CUDA version that will do.
        needed: (u32, u32),
    },
    /// A library was loaded, but a function that is called is not in it.
    #[error("{library} has no function {symbol}: the library is too old or damaged")]
    MissingSymbol {
        /// The library.
        library: String,
        /// The function that is missing.
        symbol: String,
    },
    /// There is no GPU at all, or not as many as were asked for.
    #[error("no GPU {ordinal}: the driver sees {count} device(s)")]
    NoDevice {
        /// The device that was asked for.
        ordinal: usize,
        /// How many devices the driver sees.
        count: usize,
    },
    /// The code was written for an architecture that the GPU is not.
    #[error("{kernel} is written for {arch}, which {device} (compute capability {}.{}) cannot run", found.0, found.1)]
    UnsupportedArch {
        /// The kernel module.
        kernel: String,
        /// The architecture the code is for.
        arch: String,
        /// The name of the GPU.
        device: String,
        /// The compute capability of the GPU.
        found: (u32, u32),
    },
    /// The name of an architecture could not be read.
    #[error("{arch:?} is not an architecture: expected a name like sm_90a")]
    BadArch {
        /// The name that was given.
        arch: String,
    },
    /// A driver call failed; name and text are the driver's own.
    #[error("{call} failed: {text} ({name}, {code})")]
    Driver {
        /// The driver function.
        call: &'static str,
        /// The value it returned.
        code: i32,
        /// The driver's name of that value.
        name: String,
        /// The driver's description of it.
        text: String,
    },
    /// The driver was initialized before the process was forked. It does not work in the child.
    #[error(
        "CUDA was initialized before this process was forked, and does not work in the child: start the process by \
         spawn instead of fork, or make the first CUDA call in the child"
    )]
    Forked,
    /// The GPU has not enough free memory.
    #[error("out of GPU memory: {requested} bytes were asked for, {free} of {total} are free")]
    OutOfMemory {
        /// How much was asked for.
        requested: usize,
        /// How much was free.
        free: usize,
        /// How much the GPU has.
        total: usize,
    },
    /// The driver refused a launch; name and text are the driver's own.
    #[error(
        "the driver refused to launch {kernel} (grid {:?}, block {:?}, cluster {:?}, {} bytes of dynamic shared memory): {text} ({name})",
        config.grid, config.block, config.cluster, config.shared_bytes
    )]
    Launch {
        /// The kernel.
        kernel: String,
        /// What was asked for.
        config: LaunchConfig,
        /// The value that the driver returned.
        code: i32,
        /// The driver's name of that value.
        name: String,
        /// The driver's description of it.
        text: String,
    },
    /// A copy, fill or view would leave the buffer.
    #[error("{what} of {len} bytes at offset {offset} does not fit in a buffer of {size} bytes")]
    OutOfBounds {
        /// The operation.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// How long it is.
        len: usize,
        /// How long the buffer is.
        size: usize,
    },
    /// A fill with 32-bit values needs an address and a length that are multiples of four.
    #[error("a 32-bit fill needs a multiple of 4: got offset {offset} and {len} bytes")]
    Misaligned {
        /// Where the fill starts.
        offset: usize,
        /// How many bytes it fills.
        len: usize,
    },
    /// Two things that must be on one GPU are on two.
    #[error("{what} is on GPU {found}, expected GPU {expected}")]
    WrongDevice {
        /// The thing.
        what: &'static str,
        /// The GPU it is on.
        found: usize,
        /// The GPU it should be on.
        expected: usize,
    },
    /// A tensor map breaks a rule of the hardware.
    #[error("a tensor map cannot describe this tensor: {0}")]
    TensorMap(TensorMapRule),
    /// The assembler refused the PTX, or made code that must not be used.
    #[error("{kernel} could not be assembled: {reason}\n{log}")]
    Assemble {
        /// The kernel module.
        kernel: String,
        /// Why, in one sentence.
        reason: String,
        /// What the assembler said.
        log: String,
    },
    /// This assembler cannot do it, while another one, or the driver, may.
    #[error("{assembler} cannot assemble {kernel}: {reason}")]
    AssemblerUnfit {
        /// The assembler.
        assembler: String,
        /// The kernel module.
        kernel: String,
        /// Why, in its own words.
        reason: String,
    },
    /// The driver refused the PTX.
    #[error("the driver could not compile {kernel}: {text} ({name})\n{log}")]
    Jit {
        /// The kernel module.
        kernel: String,
        /// The driver's name of the failure.
        name: String,
        /// The driver's description of it.
        text: String,
        /// What the driver's compiler said.
        log: String,
    },
    /// The PTX holds a zero byte, which ends a text for the driver.
    #[error("the PTX of {kernel} holds a zero byte at offset {offset}")]
    ZeroByte {
        /// The kernel module.
        kernel: String,
        /// Where.
        offset: usize,
    },
    /// A module has no kernel of that name.
    #[error("module {module} has no kernel {function}")]
    NoSuchFunction {
        /// The module.
        module: String,
        /// The kernel that was asked for.
        function: String,
    },
    /// An optional NVIDIA library is not on this machine.
    #[error("{library} was not found; looked for {}", searched.join(", "))]
    LibraryNotFound {
        /// The library.
        library: &'static str,
        /// Where it was looked for.
        searched: Vec<String>,
    },
    /// A call of an optional NVIDIA library failed.
    #[error("{call} failed: {text} ({code})")]
    Library {
        /// The function.
        call: &'static str,
        /// The value it returned.
        code: i32,
        /// What that means.
        text: String,
    },
    /// An operand has another size than the operation needs.
    #[error("{what} has {found} bytes, expected {expected}")]
    WrongSize {
        /// The operand.
        what: &'static str,
        /// Its size.
        found: usize,
        /// The size it should have.
        expected: usize,
    },
    /// The host could not do something with a file or a program.
    #[error("could not {action}: {text}")]
    Io {
        /// What was tried, and on what.
        action: String,
        /// What the system answered.
        text: String,
    },
}

impl Error {
    pub(crate) fn io(action: impl Into<String>, error: std::io::Error) -> Self {
        Self::Io { action: action.into(), text: error.to_string() }
    }

    /// The value that the driver returned, where the driver is what failed.
    pub fn driver_code(&self) -> Option<i32> {
        match self {
            Self::Driver { code, .. } | Self::Launch { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether a cooperative launch was refused because its blocks cannot all run at one time.
    ///
    /// ```
    /// use oxigemm_cuda::{Error, LaunchConfig};
    ///
    /// let refused = |code| Error::Launch {
    ///     kernel: "k".to_owned(),
    ///     config: LaunchConfig::linear(1 << 20, 1024),
    ///     code,
    ///     name: String::new(),
    ///     text: String::new(),
    /// };
    /// assert!(refused(720).is_too_large_together());
    /// assert!(!refused(1).is_too_large_together());
    /// ```
    pub fn is_too_large_together(&self) -> bool {
        const TOO_LARGE: i32 = CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE as i32;
        matches!(self, Self::Launch { code: TOO_LARGE, .. })
    }
}
