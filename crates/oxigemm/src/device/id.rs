//! Identity of a device.

use std::fmt;

/// The identity of a [`Device`](crate::Device): small, comparable, without the device behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceId {
    /// The CPU.
    Cpu,
    /// The CUDA device of this ordinal.
    Cuda(usize),
    /// The simulated device of this number, counted as they are made: each has memory of its own.
    Sim(u32),
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Cpu => f.write_str("cpu"),
            DeviceId::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            DeviceId::Sim(number) => write!(f, "sim #{number}"),
        }
    }
}
