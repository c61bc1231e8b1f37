//! Where tensors live and kernels run.

use std::fmt;

/// A place for tensors: host memory, or one CUDA device.
///
/// ```
/// use oxigemm::Device;
///
/// assert_eq!(Device::Cpu.to_string(), "cpu");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Device {
    /// The CPU; functions run as the reference.
    Cpu,
    /// A CUDA device.
    Cuda(oxigemm_cuda::Device),
}

/// The identity of a [`Device`]: small, comparable, without the device behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceId {
    /// The CPU.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(usize),
}

impl Device {
    /// Which device this is.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        match self {
            Device::Cpu => DeviceId::Cpu,
            Device::Cuda(device) => DeviceId::Cuda(device.ordinal()),
        }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Cpu => f.write_str("cpu"),
            DeviceId::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}
