//! Architectures: what kernels are written for, and what a chip of each one offers.
//!
//! A new architecture is a variant here, a folder beside `gemm/sm90`, and a cost model in the planner.

use std::fmt;

use oxigemm_ptx::{Kernel, Target};

/// An architecture that has kernels.
///
/// ```
/// use oxigemm_kernels::Arch;
///
/// assert_eq!(Arch::of((9, 0)), Some(Arch::Sm90a));
/// assert_eq!(Arch::of((10, 0)), Some(Arch::Sm100a));
/// assert_eq!(Arch::of((10, 3)), Some(Arch::Sm100a));
/// assert_eq!(Arch::of((8, 0)), None);
/// assert_eq!(Arch::Sm90a.name(), "sm_90a");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Hopper: H100, H200, GH200.
    Sm90a,
    /// Blackwell: B200, GB200, and with a target of their own B300, GB300.
    Sm100a,
}

/// Limits of an architecture (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchLimits {
    /// Bytes of shared memory of a block at most.
    pub shared_per_block: u32,
    /// Bytes of shared memory of an SM.
    pub shared_per_sm: u32,
    /// Bytes of shared memory that the system reserves in each block.
    pub reserved_shared: u32,
    /// 32-bit registers of an SM.
    pub registers_per_sm: u32,
    /// Blocks of a portable cluster at most.
    pub max_cluster: u32,
    /// Blocks of a grid along y at most.
    pub max_grid_y: u32,
}

const SM90A: ArchLimits = ArchLimits {
    shared_per_block: 227 << 10,
    shared_per_sm: 228 << 10,
    reserved_shared: 1 << 10,
    registers_per_sm: 64 << 10,
    max_cluster: 8,
    max_grid_y: 65_535,
};

const SM100A: ArchLimits = SM90A;

impl Arch {
    /// All architectures.
    pub const ALL: [Arch; 2] = [Arch::Sm90a, Arch::Sm100a];

    /// The architecture of devices with this compute capability, as `(major, minor)`.
    pub fn of(compute_capability: (u32, u32)) -> Option<Arch> {
        Arch::all_targets()
            .find(|(_, target)| target.compute_capability() == compute_capability)
            .map(|(arch, _)| arch)
    }

    /// Every target that there are kernels for, with its architecture.
    pub fn all_targets() -> impl Iterator<Item = (Arch, Target)> {
        Arch::ALL.into_iter().flat_map(|arch| arch.targets().iter().map(move |target| (arch, *target)))
    }

    /// The targets that its kernels are assembled for: their text is the same but for the header. Code for one of them
    /// does not run on devices of another.
    pub const fn targets(self) -> &'static [Target] {
        match self {
            Arch::Sm90a => &[Target::Sm90a],
            Arch::Sm100a => &[Target::Sm100a, Target::Sm103a],
        }
    }

    /// The target of its devices with this compute capability.
    pub fn target_of(self, compute_capability: (u32, u32)) -> Option<Target> {
        self.targets().iter().copied().find(|target| target.compute_capability() == compute_capability)
    }

    /// The PTX target that its kernels are written for.
    pub const fn target(self) -> Target {
        match self {
            Arch::Sm90a => Target::Sm90a,
            Arch::Sm100a => Target::Sm100a,
        }
    }

    /// The name that `.target`, `ptxas -arch` and keys of cubins have.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm90a => "sm_90a",
            Arch::Sm100a => "sm_100a",
        }
    }

    /// The prefix of the names of kernels and configurations.
    pub const fn short_name(self) -> &'static str {
        match self {
            Arch::Sm90a => "sm90",
            Arch::Sm100a => "sm100",
        }
    }

    /// The full name of a kernel that exists for several architectures.
    pub fn kernel_name(self, name: &str) -> String {
        format!("{}_{name}", self.short_name())
    }

    /// A kernel of this name, to be written for this architecture.
    pub(crate) fn kernel(self, name: &str) -> Kernel {
        Kernel::new(&self.kernel_name(name), self.target())
    }

    /// The limits of its chips.
    pub const fn limits(self) -> &'static ArchLimits {
        match self {
            Arch::Sm90a => &SM90A,
            Arch::Sm100a => &SM100A,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_is_found_by_its_compute_capability_and_has_the_name_of_its_target() {
        for arch in Arch::ALL {
            assert!(
                arch.targets()[0] == arch.target()
                    && arch.targets().iter().all(|x| x.has_all_of(arch.target()))
            );
            for target in arch.targets() {
                let capability = target.compute_capability();
                assert_eq!((Arch::of(capability), arch.target_of(capability)), (Some(arch), Some(*target)));
            }
            assert_eq!(arch.name(), arch.target().name());
            assert!(arch.name().replace('_', "").starts_with(arch.short_name()));
        }
    }

    #[test]
    fn shared_memory_of_a_block_and_its_reserved_part_fill_an_sm() {
        for limits in Arch::ALL.map(Arch::limits) {
            assert_eq!(limits.shared_per_block + limits.reserved_shared, limits.shared_per_sm);
        }
    }
}
