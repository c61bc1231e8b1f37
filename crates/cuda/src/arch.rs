//! Compatibility: which GPU runs code for which architecture.

use crate::error::{Error, Result};

/// An architecture name of the assembler: `sm_90a` is compute capability 9.0 with the features of that chip only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arch {
    capability: (u32, u32),
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `sm_90`: later chips of the same generation run the cubin, every later chip runs the PTX.
    Portable,
    /// `sm_100f`: later chips of the same family.
    Family,
    /// `sm_90a`: this chip alone.
    Exact,
}

/// What a GPU can do with code for an [`Arch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It runs a cubin.
    Cubin,
    /// It runs only what its driver makes of the PTX.
    Ptx,
    /// It runs neither.
    Nothing,
}

impl Arch {
    pub(crate) fn parse(name: &str) -> Result<Self> {
        let bad = || Error::BadArch { arch: name.into() };
        let rest = name.strip_prefix("sm_").ok_or_else(bad)?;
        let (digits, kind) = match rest.as_bytes().last() {
            Some(b'a') => (&rest[..rest.len() - 1], Kind::Exact),
            Some(b'f') => (&rest[..rest.len() - 1], Kind::Family),
            _ => (rest, Kind::Portable),
        };
        if !(2..=4).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let number: u32 = digits.parse().map_err(|_| bad())?;
        Ok(Self { capability: (number / 10, number % 10), kind })
    }

    pub(crate) fn fit(self, device: (u32, u32)) -> Fit {
        let same_generation = device.0 == self.capability.0 && device.1 >= self.capability.1;
        match self.kind {
            Kind::Exact if device == self.capability => Fit::Cubin,
            Kind::Family | Kind::Portable if same_generation => Fit::Cubin,
            Kind::Portable if device > self.capability => Fit::Ptx,
            _ => Fit::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_architecture_runs_on_its_own_chip_only() {
        let hopper = Arch::parse("sm_90a").unwrap();
        assert_eq!(hopper.fit((9, 0)), Fit::Cubin);
        assert_eq!(hopper.fit((10, 0)), Fit::Nothing);
        assert_eq!(hopper.fit((8, 9)), Fit::Nothing);
        let family = Arch::parse("sm_100f").unwrap();
        assert_eq!(family.fit((10, 3)), Fit::Cubin);
        assert_eq!(family.fit((12, 0)), Fit::Nothing);
        let portable = Arch::parse("sm_80").unwrap();
        assert_eq!(portable.fit((8, 6)), Fit::Cubin);
        assert_eq!(portable.fit((9, 0)), Fit::Ptx);
        assert_eq!(portable.fit((7, 5)), Fit::Nothing);
    }

    #[test]
    fn a_name_that_is_no_architecture_is_refused() {
        for name in ["", "sm_", "sm_a", "sm_9", "90a", "compute_90", "sm_90ab", "sm_9x", "sm_90000", "sm_+90"]
        {
            assert_eq!(Arch::parse(name), Err(Error::BadArch { arch: name.into() }), "{name}");
        }
    }
}
