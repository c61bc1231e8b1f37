//! Where tensors live and kernels run.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::runtime::Cuda;

/// A place for tensors: host memory, or one CUDA device.
///
/// Clones are cheap and stand for the same device. What a device has loaded and planned lives in it and not in a
/// global: two devices, or two that were opened apart, share nothing but the memory of the GPU.
///
/// ```
/// use oxigemm::Device;
///
/// assert_eq!(Device::cpu().to_string(), "cpu");
/// assert_eq!("cpu".parse::<Device>()?.id(), Device::cpu().id());
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Device {
    /// The CPU; functions run as the reference.
    Cpu,
    /// A CUDA device.
    Cuda(Cuda),
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
    /// The first GPU that the kernels run on, else the CPU.
    #[must_use]
    pub fn auto() -> Device {
        let count = oxigemm_cuda::device_count().unwrap_or(0);
        (0..count)
            .filter_map(|ordinal| Cuda::open(ordinal).ok())
            .find(Cuda::is_supported)
            .map_or(Device::Cpu, Device::Cuda)
    }

    /// The GPU of this number.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Ok(Device::Cuda(Cuda::open(ordinal)?))
    }

    /// The CPU.
    #[must_use]
    pub fn cpu() -> Device {
        Device::Cpu
    }

    /// Which device this is.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        match self {
            Device::Cpu => DeviceId::Cpu,
            Device::Cuda(cuda) => DeviceId::Cuda(cuda.gpu().ordinal()),
        }
    }

    /// The GPU, where it is one.
    #[must_use]
    pub fn as_cuda(&self) -> Option<&Cuda> {
        match self {
            Device::Cuda(cuda) => Some(cuda),
            Device::Cpu => None,
        }
    }

    /// Waits until everything that was given to it is done.
    ///
    /// # Errors
    /// What the GPU reports of the work before.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(cuda) => Ok(cuda.gpu().synchronize()?),
        }
    }
}

/// `auto`, `cpu`, `cuda` or `cuda:N`.
impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Device> {
        let refuse =
            |reason: &str| Err(Error::DeviceName { name: name.to_owned(), reason: reason.to_owned() });
        match name {
            "auto" => Ok(Device::auto()),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Device::cuda(0),
            "sim" => refuse("the simulator is not part of this build; use `cpu` to run without a GPU"),
            _ => match name.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Device::cuda(ordinal),
                Some(Err(_)) => refuse("expected the number of a GPU behind `cuda:`"),
                None => refuse("expected auto, cpu, cuda or cuda:N"),
            },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_device_says_what_would_be() {
        for (name, words) in [
            ("gpu", "expected auto, cpu, cuda or cuda:N"),
            ("", "expected auto"),
            ("cuda:", "the number of a GPU"),
            ("cuda:-1", "the number of a GPU"),
            ("sim", "simulator"),
        ] {
            let error = name.parse::<Device>().unwrap_err();
            assert!(matches!(error, Error::DeviceName { .. }));
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn auto_always_finds_something() {
        let device: Device = "auto".parse().unwrap();
        assert!(matches!(device.id(), DeviceId::Cpu | DeviceId::Cuda(_)));
    }
}
