//! Targets: the GPU that a module was written for, and which GPUs run it.

use std::fmt;
use std::str::FromStr;

/// What a target has beyond its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Features {
    /// `sm_90`: what all later GPUs have as well.
    Base,
    /// `sm_100f`: also what the GPUs of one family share.
    Family,
    /// `sm_100a`: also what this one GPU has.
    Specific,
}

/// A target such as `sm_90a`: a compute capability, and features beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Ten times the compute capability: 90 for `sm_90a`.
    pub arch: u32,
    /// The suffix.
    pub features: Features,
}

/// Compute capabilities with the version of PTX that introduced each; then those of its `a` and `f` targets.
type Row = (u32, (u32, u32), Option<(u32, u32)>, Option<(u32, u32)>);

/// Every target. The assembler of CUDA 13.4 knows the same ones.
const TARGETS: [Row; 26] = [
    (30, (3, 0), None, None),
    (32, (4, 0), None, None),
    (35, (3, 1), None, None),
    (37, (4, 1), None, None),
    (50, (4, 0), None, None),
    (52, (4, 1), None, None),
    (53, (4, 2), None, None),
    (60, (5, 0), None, None),
    (61, (5, 0), None, None),
    (62, (5, 0), None, None),
    (70, (6, 0), None, None),
    (72, (6, 1), None, None),
    (75, (6, 3), None, None),
    (80, (7, 0), None, None),
    (82, (7, 0), None, None),
    (86, (7, 1), None, None),
    (87, (7, 4), None, None),
    (88, (9, 0), None, None),
    (89, (7, 8), None, None),
    (90, (7, 8), Some((8, 0)), None),
    (100, (8, 6), Some((8, 6)), Some((8, 8))),
    (101, (8, 6), Some((8, 6)), Some((8, 8))),
    (103, (8, 8), Some((8, 8)), Some((8, 8))),
    (110, (9, 0), Some((9, 0)), Some((9, 0))),
    (120, (8, 7), Some((8, 7)), Some((8, 8))),
    (121, (8, 8), Some((8, 8)), Some((8, 8))),
];

/// Versions of PTX: a major one with its last minor one.
const VERSIONS: [(u32, u32); 9] = [(1, 5), (2, 3), (3, 2), (4, 3), (5, 0), (6, 5), (7, 8), (8, 8), (9, 4)];

/// Whether there is such a version of PTX.
pub(crate) fn version_exists((major, minor): (u32, u32)) -> bool {
    VERSIONS.iter().any(|(known, last)| *known == major && minor <= *last)
}

/// The latest version of PTX that is known here.
pub(crate) fn latest_version() -> (u32, u32) {
    VERSIONS[VERSIONS.len() - 1]
}

impl Target {
    /// The first version of PTX that has this target, where there is one.
    pub(crate) fn since(self) -> Option<(u32, u32)> {
        let (_, base, specific, family) = TARGETS.iter().find(|row| row.0 == self.arch)?;
        match self.features {
            Features::Base => Some(*base),
            Features::Specific => *specific,
            Features::Family => *family,
        }
    }

    /// The first GPU of the family that this one belongs to.
    pub(crate) fn family(self) -> u32 {
        match self.arch {
            100 | 103 => 100,
            // The GPU of sm_101 was named sm_110 later.
            101 | 110 => 101,
            120 | 121 => 120,
            arch => arch,
        }
    }

    /// Whether a GPU of this kind runs a module that was written for `module`.
    pub fn runs(self, module: Target) -> bool {
        match module.features {
            Features::Base => self.arch >= module.arch,
            Features::Family => self.family() == module.family() && self.arch >= module.arch,
            Features::Specific => self.arch == module.arch,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.features {
            Features::Base => "",
            Features::Family => "f",
            Features::Specific => "a",
        };
        write!(f, "sm_{}{suffix}", self.arch)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Target, String> {
        let parse = || {
            let number = name.strip_prefix("sm_").or(name.strip_prefix("compute_"))?;
            let (number, features) = match number.strip_suffix('a') {
                Some(number) => (number, Features::Specific),
                None => match number.strip_suffix('f') {
                    Some(number) => (number, Features::Family),
                    None => (number, Features::Base),
                },
            };
            let plain = number.len() <= 3 && number.bytes().all(|c| c.is_ascii_digit());
            let target = Target { arch: number.parse().ok().filter(|_| plain)?, features };
            target.since().map(|_| target)
        };
        parse().ok_or_else(|| format!("`{name}` is not a target"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Target {
        name.parse().expect(name)
    }

    #[test]
    fn targets_are_read_as_they_are_written() {
        for name in ["sm_80", "sm_90", "sm_90a", "sm_100f", "sm_103a", "sm_110f", "sm_121a"] {
            assert_eq!(target(name).to_string(), name);
        }
        assert_eq!(target("compute_90a"), target("sm_90a"));
        for wrong in ["sm_999", "sm_90f", "sm_80a", "sm_102", "SM_90", "sm_90aa", "sm_", "sm_+90", "90", ""] {
            assert_eq!(wrong.parse::<Target>().unwrap_err(), format!("`{wrong}` is not a target"));
        }
    }

    #[test]
    fn a_gpu_runs_what_was_written_for_it_and_for_those_before_it() {
        let runs = |gpu: &str, module: &str| target(gpu).runs(target(module));
        assert!(runs("sm_90a", "sm_80") && runs("sm_100a", "sm_90") && runs("sm_103a", "sm_100f"));
        assert!(runs("sm_100a", "sm_100a") && runs("sm_121a", "sm_120f") && runs("sm_110a", "sm_101f"));
        assert!(!runs("sm_100a", "sm_90a") && !runs("sm_100a", "sm_103f") && !runs("sm_120a", "sm_100f"));
        assert!(!runs("sm_103a", "sm_100a") && !runs("sm_80", "sm_90"));
    }
}
