//! What can be wrong with a call, in the words of the caller.
//!
//! Every public function checks its arguments before any work. The error it returns names the argument, what was
//! expected of it and what came, both as fields for programs and as one sentence for people.

/// The result of this library's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refused argument, or a failure of the device below.
///
/// ```
/// use oxigemm::{DType, Device, Error, Tensor};
///
/// let error = Tensor::zeros(DType::F32, &[2, 3], &Device::Cpu)?.narrow(1, 2, 5).unwrap_err();
/// assert!(matches!(error, Error::Shape { argument: "range", .. }));
/// assert_eq!(
///     error.to_string(),
///     "`range` has the wrong shape: expected a range within 0..3 of dimension 1, found 2..7"
/// );
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of dimensions is wrong.
    #[error("`{argument}` has the wrong rank: expected {expected}, found {found}")]
    Rank {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A dimension is wrong, or a length does not match the shape.
    #[error("`{argument}` has the wrong shape: expected {expected}, found {found}")]
    Shape {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A number is not one that this function takes.
    #[error("`{argument}` has a wrong value: expected {expected}, found {found}")]
    Value {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The strides do not describe a layout that this function reads.
    #[error("`{argument}` has the wrong strides: expected {expected}, found {found}")]
    Stride {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The element type is wrong.
    #[error("`{argument}` has the wrong element type: expected {expected}, found {found}")]
    DType {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The address is not aligned as the hardware needs it.
    #[error("`{argument}` is misaligned: expected {expected}, found {found}")]
    Alignment {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The argument lives on another device than the rest of the call.
    #[error("`{argument}` is on the wrong device: expected {expected}, found {found}")]
    Device {
        /// The argument at fault.
        argument: &'static str,
        /// Where it should have been.
        expected: String,
        /// Where it was.
        found: String,
    },
    /// A scale tensor does not have one scale per block.
    #[error("`{argument}` has the wrong number of scales: expected {expected}, found {found}")]
    ScaleShape {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A scale tensor is laid out in a way that the kernels do not read.
    #[error("`{argument}` has an unusable scale layout: expected {expected}, found {found}")]
    ScaleLayout {
        /// The argument at fault.
        argument: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A null address for a tensor that has elements.
    #[error("`{argument}` is a null pointer: expected the address of {expected}")]
    NullPointer {
        /// The argument at fault.
        argument: &'static str,
        /// What it should point to.
        expected: String,
    },
    /// Two arguments share memory that one of them is written to.
    #[error("`{argument}` overlaps `{with}`: expected {expected}, found {found}")]
    Overlap {
        /// The argument at fault.
        argument: &'static str,
        /// The argument whose memory it shares.
        with: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A size does not fit the integers that the kernels count with.
    #[error("`{argument}` is too large: expected {expected}, found {found}")]
    Overflow {
        /// The argument at fault.
        argument: &'static str,
        /// The largest size that works.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The tensor memory accelerator (TMA) of the GPU cannot address this layout.
    #[error("`{argument}` cannot be addressed by TMA: {reason}")]
    Tma {
        /// The argument at fault.
        argument: &'static str,
        /// The rule that is broken, with what was found.
        reason: String,
    },
    /// A name that is not one of a device.
    #[error("`{name}` is not a device: {reason}")]
    DeviceName {
        /// What was given.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A kernel was asked for that cannot serve the problem.
    #[error("{name} cannot compute {shape}: its grid or its shared memory would be too large")]
    Config {
        /// The choice, as [`crate::plan::name`] writes it.
        name: String,
        /// The problem and where.
        shape: String,
    },
    /// A kernel was asked for that multiplies other operands.
    #[error("{name} does not multiply these operands: expected a configuration for {expected}")]
    ConfigOperands {
        /// The choice, as [`crate::plan::name`] writes it.
        name: String,
        /// What the operands are.
        expected: String,
    },
    /// A kernel was asked for that splits K, in a call whose result must not depend on the number of rows.
    #[error("{name} splits K: expected one that does not, as the call is batch-invariant")]
    ConfigBatchInvariant {
        /// The choice, as [`crate::plan::name`] writes it.
        name: String,
    },
    /// Serpentine K was asked for, in a call whose result must not depend on the number of rows.
    #[error("k_order is Serpentine: expected Forward, as the call is batch-invariant")]
    KOrderBatchInvariant,
    /// A stream that is being captured into a graph, or an event, was asked for what it cannot do.
    #[error("a stream or event cannot do this: {reason}")]
    Stream {
        /// Why.
        reason: String,
    },
    /// A kernel could not be written: a fault of this library.
    #[error("the kernel {name} could not be built: {reason}")]
    Kernel {
        /// The kernel.
        name: String,
        /// Why.
        reason: String,
    },
    /// The simulator found a fault while a kernel ran.
    #[error("the simulator stopped the kernel {kernel}: {fault}")]
    Fault {
        /// The kernel.
        kernel: String,
        /// What was found, with the line of the kernel's source on both sides.
        fault: Box<oxigemm_sim::Fault>,
    },
    /// The simulated GPUs of a world do not go on together.
    #[error("the simulated GPUs cannot go on together: {reason}")]
    Ranks {
        /// Why, with the ranks that are missing.
        reason: String,
    },
    /// The ranks of a group do not go on together.
    #[error("the ranks of the group cannot go on together: {reason}")]
    Group {
        /// Why, with the rank at fault.
        reason: String,
    },
    /// The device has not enough memory.
    #[error("out of memory on {device}: {bytes} bytes were asked for")]
    OutOfMemory {
        /// The device: the CPU, or a simulated GPU, whose memory is that of the CPU.
        device: String,
        /// How much was asked for.
        bytes: usize,
    },
    /// The call was asked to end early: see [`set_interrupt_hook`](crate::set_interrupt_hook). What it writes is of no
    /// use.
    #[error("the call was interrupted")]
    Interrupted,
    /// A checkpoint does not hold what its layout says.
    #[error("`{tensor}` of the checkpoint is wrong: expected {expected}, found {found}")]
    Checkpoint {
        /// The tensor at fault, or the file.
        tensor: String,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// Tuned configurations cannot be read, written or used.
    #[error("tuned configurations: {reason}")]
    Tuned {
        /// What is wrong, with the file or the configuration.
        reason: String,
    },
    /// The process is a child that was forked while another thread used the device.
    #[error("the device {device} was in use by another thread when this process was forked: open a new one")]
    Forked {
        /// The device.
        device: String,
    },
    /// The CUDA driver or device failed.
    #[error(transparent)]
    Cuda(#[from] oxigemm_cuda::Error),
}

/// Errors of an argument.
macro_rules! of_argument {
    ($argument:ident) => {
        Error::Rank { $argument, .. }
            | Error::Value { $argument, .. }
            | Error::Shape { $argument, .. }
            | Error::Stride { $argument, .. }
            | Error::DType { $argument, .. }
            | Error::Alignment { $argument, .. }
            | Error::Device { $argument, .. }
            | Error::ScaleShape { $argument, .. }
            | Error::ScaleLayout { $argument, .. }
            | Error::NullPointer { $argument, .. }
            | Error::Overlap { $argument, .. }
            | Error::Overflow { $argument, .. }
            | Error::Tma { $argument, .. }
    };
}

impl Error {
    /// A call on addresses, of a device that has tensors only.
    pub(crate) fn no_raw_memory(device: &str) -> Error {
        Error::Device {
            argument: "device",
            expected: "a GPU or the simulator".to_owned(),
            found: device.to_owned(),
        }
    }

    /// A captured call that needs more memory than a call before it has made.
    pub(crate) fn workspace_in_capture() -> Error {
        Error::Stream {
            reason: "the workspace of a captured call cannot grow: make the call once before".to_owned(),
        }
    }

    /// The argument at fault, or `None` when the failure lies below the arguments.
    ///
    /// ```
    /// # use oxigemm::{DType, Device, Tensor};
    /// let error = Tensor::from_slice(&[1.0f32, 2.0], &[3], &Device::Cpu).unwrap_err();
    /// assert_eq!(error.argument(), Some("values"));
    /// ```
    #[must_use]
    pub fn argument(&self) -> Option<&'static str> {
        match self {
            of_argument!(argument) => Some(argument),
            Error::DeviceName { .. }
            | Error::Config { .. }
            | Error::ConfigOperands { .. }
            | Error::ConfigBatchInvariant { .. }
            | Error::KOrderBatchInvariant
            | Error::Stream { .. }
            | Error::Kernel { .. }
            | Error::Fault { .. }
            | Error::Ranks { .. }
            | Error::Group { .. }
            | Error::OutOfMemory { .. }
            | Error::Interrupted
            | Error::Checkpoint { .. }
            | Error::Tuned { .. }
            | Error::Forked { .. }
            | Error::Cuda(_) => None,
        }
    }

    /// The same of an argument that has another name in the function that was called.
    pub(crate) fn renamed(mut self, name: impl FnOnce(&'static str) -> &'static str) -> Error {
        if let of_argument!(argument) = &mut self {
            *argument = name(argument);
        }
        self
    }
}
