//! Devices: memory, streams, loaded kernels and workspaces of a GPU, of the simulator and of the CPU.

pub(crate) mod backend;
mod cuda;
mod extensions;
mod id;
pub(crate) mod launch;
pub(crate) mod limits;
mod sim;
pub(crate) mod stream;
mod tensor_map;
mod workspace;

use std::fmt;
use std::str::FromStr;

use oxigemm_sim::{Options, Policy};

use crate::error::{Error, Result};

pub use cuda::{Cuda, Loaded};
pub use id::DeviceId;
pub use limits::Limits;
pub use sim::{Sim, SimRank};
pub use stream::{Event, Graph, SimEvent, SimGraph, SimStream, Stream};

/// A device that holds tensors and runs functions: the CPU, a GPU, or a simulated GPU.
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
    /// A GPU in the simulator, which runs the same kernels.
    Sim(Sim),
}

impl Device {
    /// Runs a call: by the `reference` on the CPU, which has no streams, and by a `launch` of kernels on a GPU or in the
    /// simulator.
    #[inline]
    pub(crate) fn run(
        &self,
        stream: Option<&Stream>,
        reference: impl FnOnce() -> Result<()>,
        launch: impl FnOnce(&Device) -> Result<()>,
    ) -> Result<()> {
        match self {
            Device::Cpu => {
                stream::refuse_stream(self, stream)?;
                reference()
            }
            Device::Cuda(_) | Device::Sim(_) => launch(self),
        }
    }

    /// Whether numbers in its memory can be compared with those of the host before a call: not those of a GPU, whose
    /// earlier work may still write them, nor while a stream is captured.
    pub(crate) fn can_compare(&self) -> bool {
        match self {
            Device::Cpu => true,
            Device::Cuda(_) => false,
            Device::Sim(sim) => !sim.is_capturing_here(),
        }
    }

    /// The first GPU that the kernels run on, else the simulator.
    #[must_use]
    pub fn auto() -> Device {
        let count = oxigemm_cuda::device_count().unwrap_or(0);
        (0..count)
            .filter_map(|ordinal| Cuda::open(ordinal).ok())
            .find(Cuda::is_supported)
            .map_or_else(Device::sim, Device::Cuda)
    }

    /// The GPU of this number.
    ///
    /// # Errors
    /// If there is no driver or no such GPU.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Ok(Device::Cuda(Cuda::open(ordinal)?))
    }

    /// A new simulated GPU, which looks for hazards; [`Sim`] has the other ways to run it.
    ///
    /// It runs the kernels of the GPU, with a model of its tensor cores, far slower: it is for trying and for testing.
    #[must_use]
    pub fn sim() -> Device {
        Device::Sim(Sim::new())
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
            Device::Sim(sim) => DeviceId::Sim(sim.number()),
        }
    }

    /// The GPU, where it is one.
    #[must_use]
    pub fn as_cuda(&self) -> Option<&Cuda> {
        match self {
            Device::Cuda(cuda) => Some(cuda),
            Device::Cpu | Device::Sim(_) => None,
        }
    }

    /// The simulated GPU, where it is one.
    #[must_use]
    pub fn as_sim(&self) -> Option<&Sim> {
        match self {
            Device::Sim(sim) => Some(sim),
            Device::Cpu | Device::Cuda(_) => None,
        }
    }

    /// What planning knows of the device; nothing of the CPU, which has no kernels.
    #[must_use]
    pub fn limits(&self) -> Option<&Limits> {
        match self {
            Device::Cpu => None,
            Device::Cuda(cuda) => Some(cuda.limits()),
            Device::Sim(sim) => Some(sim.limits()),
        }
    }

    /// Waits until everything that was given to it is done.
    ///
    /// # Errors
    /// What the GPU reports of the work before.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu | Device::Sim(_) => Ok(()),
            Device::Cuda(cuda) => Ok(cuda.gpu().synchronize()?),
        }
    }
}

/// `auto`, `cpu`, `cuda`, `cuda:N`, `sim`, or `sim:` with a GPU (`sm_90a`), a schedule (`eager`, `lazy`, or the seed of a
/// random one), or both: `sim:sm_100a:lazy`. `sim:2xsm_90a` is the first of two devices of a new world, whose
/// [peers](Sim::peers) are the others, `sim:2xsm_90a/1` the second; `sim:2xsm_90a:lazy/1` has a schedule too.
impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Device> {
        let refuse =
            |reason: &str| Err(Error::DeviceName { name: name.to_owned(), reason: reason.to_owned() });
        match name {
            "auto" => Ok(Device::auto()),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Device::cuda(0),
            "sim" => Ok(Device::sim()),
            _ => match name.split_once(':') {
                Some(("cuda", number)) => match number.parse() {
                    Ok(ordinal) => Device::cuda(ordinal),
                    Err(_) => refuse("expected the number of a GPU behind `cuda:`"),
                },
                Some(("sim", how)) => match world(how) {
                    Some((devices, rank, options)) => match Sim::world(devices, options)?.get(rank) {
                        Some(sim) => Ok(Device::Sim(sim.clone())),
                        None => refuse(&format!("{devices} devices have no rank {rank}")),
                    },
                    None => match options(how) {
                        Some(options) => Ok(Device::Sim(Sim::with_options(options))),
                        None => refuse(
                            "expected a GPU such as sm_100a, several as 2xsm_90a, or eager, lazy or the seed of a \
                             random schedule behind `sim:`, or both: sim:sm_100a:lazy",
                        ),
                    },
                },
                _ => refuse("expected auto, cpu, sim, cuda or cuda:N"),
            },
        }
    }
}

/// What a name of several devices says: how many, whose rank is meant, and their options.
fn world(how: &str) -> Option<(usize, usize, Options)> {
    let (count, rest) = how.split_once('x').filter(|(_, rest)| rest.starts_with("sm_"))?;
    let (how, rank) = rest.split_once('/').unwrap_or((rest, "0"));
    Some((count.parse().ok()?, rank.parse().ok()?, options(how)?))
}

/// The options of a name: a GPU, a schedule, or a GPU and a schedule.
fn options(how: &str) -> Option<Options> {
    let (gpu, schedule) = match how.split_once(':') {
        Some((gpu, schedule)) => (Some(gpu.parse().ok()?), schedule),
        None if how.starts_with("sm_") => (Some(how.parse().ok()?), "eager"),
        None => (None, how),
    };
    let (policy, seed) = match schedule {
        "eager" => (Policy::Eager, 0),
        "lazy" => (Policy::Lazy, 0),
        seed => (Policy::Random, seed.parse().ok()?),
    };
    Some(Options { policy, seed, gpu, ..Options::default() })
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Sim(sim) => sim.fmt(f),
            Device::Cpu | Device::Cuda(_) => self.id().fmt(f),
        }
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
            ("gpu", "expected auto, cpu, sim, cuda or cuda:N"),
            ("", "expected auto"),
            ("cuda:", "the number of a GPU"),
            ("cuda:-1", "the number of a GPU"),
            ("sim:late", "eager, lazy or the seed"),
            ("sim:sm_999", "expected a GPU such as sm_100a"),
            ("sim:lazy:sm_100a", "sim:sm_100a:lazy"),
            ("sim:2x", "several as 2xsm_90a"),
            ("sim:2xsm_90a/2", "2 devices have no rank 2"),
        ] {
            let error = name.parse::<Device>().unwrap_err();
            assert!(matches!(error, Error::DeviceName { .. }));
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn a_name_of_several_devices_is_that_of_one_in_a_new_world() {
        for (name, rank, peers) in
            [("sim:2xsm_90a", 0, 2), ("sim:4xsm_90a/3", 3, 4), ("sim:2xsm_100a/1", 1, 2)]
        {
            let device: Device = name.parse().unwrap();
            assert_eq!(device.to_string(), name);
            let sim = device.as_sim().unwrap();
            assert_eq!((sim.rank(), sim.peers().len()), (rank, peers));
            assert_eq!(device.id(), Device::Sim(sim.peers()[rank].clone()).id());
            assert_ne!(sim.peers()[0].number(), sim.peers()[1].number());
        }
        let lazy: Device = "sim:2xsm_100a:lazy/1".parse().unwrap();
        let sim = lazy.as_sim().unwrap();
        assert_eq!((sim.options().policy, sim.limits().sms), (Policy::Lazy, 148));
        let error = "sim:17xsm_90a".parse::<Device>().unwrap_err().to_string();
        assert!(error.contains("1 to 16 devices"), "{error}");
    }

    #[test]
    fn auto_always_finds_something() {
        let device: Device = "auto".parse().unwrap();
        assert!(matches!(device.id(), DeviceId::Sim(_) | DeviceId::Cuda(_)));
    }

    #[test]
    fn a_simulated_device_has_a_schedule_and_memory_of_its_own() {
        for (name, policy, seed) in
            [("sim", Policy::Eager, 0), ("sim:lazy", Policy::Lazy, 0), ("sim:17", Policy::Random, 17)]
        {
            for (gpu, name) in
                [(None, name.to_owned()), (Some("sm_100a"), name.replacen("sim", "sim:sm_100a", 1))]
            {
                let device: Device = name.parse().unwrap();
                let options = device.as_sim().unwrap().options();
                assert_eq!((options.policy, options.seed), (policy, seed), "{name}");
                assert_eq!(options.gpu, gpu.map(|gpu| gpu.parse().unwrap()), "{name}");
            }
            let device: Device = name.parse().unwrap();
            let options = device.as_sim().unwrap().options();
            assert_eq!((options.policy, options.seed, options.hazards), (policy, seed, true));
            assert_eq!(device.to_string(), "sim");
            assert_eq!(device.id(), device.clone().id());
            assert_ne!(device.id(), Device::sim().id());
        }
    }
}
