//! Targets: the architecture of a module, and what each instruction needs.

use std::fmt;

/// A version of the PTX language, as written in the `.version` directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PtxVersion(pub u8, pub u8);

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The architecture a module is written for.
///
/// The `a` targets are architecture-specific: code for `sm_90a` runs on compute capability 9.0 alone,
/// and only there do `wgmma` and `setmaxnreg` exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// Ampere (A100).
    Sm80,
    /// Hopper without its architecture-specific instructions.
    Sm90,
    /// Hopper (H100, H200, GH200).
    Sm90a,
    /// Blackwell (B200, GB200).
    Sm100a,
    /// Blackwell Ultra (B300, GB300).
    Sm103a,
}

impl Target {
    /// The name that `.target` and `ptxas -arch` take.
    pub fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90 => "sm_90",
            Target::Sm90a => "sm_90a",
            Target::Sm100a => "sm_100a",
            Target::Sm103a => "sm_103a",
        }
    }

    /// The compute capability that runs this code, as `(major, minor)`.
    pub fn compute_capability(self) -> (u32, u32) {
        match self {
            Target::Sm80 => (8, 0),
            Target::Sm90 | Target::Sm90a => (9, 0),
            Target::Sm100a => (10, 0),
            Target::Sm103a => (10, 3),
        }
    }

    /// Whether it has all that kernels for another target are written with, so that only their headers differ.
    pub fn has_all_of(self, other: Target) -> bool {
        self == other || matches!((self, other), (Target::Sm103a, Target::Sm100a))
    }

    /// The first PTX version that knows this target.
    pub fn since(self) -> PtxVersion {
        match self {
            Target::Sm80 => PtxVersion(7, 0),
            Target::Sm90 => PtxVersion(7, 8),
            Target::Sm90a => PtxVersion(8, 0),
            Target::Sm100a => PtxVersion(8, 6),
            Target::Sm103a => PtxVersion(8, 8),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The architectures on which an instruction exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    /// This compute capability (times ten) and every later one.
    From(u32),
    /// One of these architecture-specific targets.
    Only(&'static [Target]),
}

/// What an instruction asks of the module it stands in (PTX manual, "PTX ISA Notes" and "Target ISA Notes").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub version: PtxVersion,
    pub arch: Arch,
}

impl Needs {
    /// Every target has it.
    pub const BASE: Needs = Needs::from_sm(80, 7, 0);
    /// Hopper's general additions: clusters, transaction barriers, bulk copies.
    pub const SM90: Needs = Needs::from_sm(90, 8, 0);
    /// Hopper's architecture-specific instructions.
    pub const SM90A: Needs = Needs { version: PtxVersion(8, 0), arch: Arch::Only(&[Target::Sm90a]) };
    /// Those of them that Blackwell has as well.
    pub const SM90A_ON: Needs = Needs {
        version: PtxVersion(8, 0),
        arch: Arch::Only(&[Target::Sm90a, Target::Sm100a, Target::Sm103a]),
    };
    /// Blackwell's tensor core and tensor memory.
    pub const TCGEN05: Needs =
        Needs { version: PtxVersion(8, 6), arch: Arch::Only(&[Target::Sm100a, Target::Sm103a]) };

    pub const fn from_sm(sm: u32, major: u8, minor: u8) -> Needs {
        Needs { version: PtxVersion(major, minor), arch: Arch::From(sm) }
    }

    pub fn met_by(self, target: Target) -> bool {
        let (major, minor) = target.compute_capability();
        match self.arch {
            Arch::From(sm) => major * 10 + minor >= sm,
            Arch::Only(targets) => targets.contains(&target),
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arch::From(sm) => write!(f, "sm_{sm} or later"),
            Arch::Only(targets) => {
                let names: Vec<_> = targets.iter().map(|t| t.name()).collect();
                f.write_str(&names.join(" or "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_instructions_need_of_blackwell_its_successor_has() {
        assert!(Target::Sm103a.has_all_of(Target::Sm100a) && !Target::Sm100a.has_all_of(Target::Sm103a));
        for needs in [Needs::BASE, Needs::SM90, Needs::SM90A, Needs::SM90A_ON, Needs::TCGEN05] {
            assert_eq!(needs.met_by(Target::Sm100a), needs.met_by(Target::Sm103a), "{needs:?}");
        }
        assert!(!Needs::SM90A.met_by(Target::Sm103a) && !Target::Sm103a.has_all_of(Target::Sm90a));
    }
}
