//! FP8 operands: e4m3, unless they are said to be e5m2, and the groups in which their scales are loaded.
//!
//! The tensor core multiplies any mix of both types.

use oxigemm_ptx::{Fp8, U32};

/// Scale group: K blocks whose scales are loaded together, 32 bytes of a row, one sector of the L2 cache. Groups start
/// at multiples of it; a tile may start inside one.
pub(crate) const SCALE_GROUP: u32 = 8;

/// Elements of K that share a scale where scales are 1x32 or 32x32, and rows of B of the latter: the K of one `wgmma`.
pub const SCALE_K: u32 = 32;

/// The first K block of a block's scale group.
#[track_caller]
pub(crate) fn scale_group_start(block: U32<'_>, group: u32) -> U32<'_> {
    block - block % group
}

/// The operands that are e5m2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum E5m2 {
    /// A.
    A,
    /// B.
    B,
    /// A and B.
    Both,
}

impl E5m2 {
    /// Every mix.
    pub const ALL: [E5m2; 3] = [E5m2::A, E5m2::B, E5m2::Both];

    /// Whether A and B are, in this order; `None` where neither is.
    pub const fn of(operands: [bool; 2]) -> Option<E5m2> {
        match operands {
            [false, false] => None,
            [true, false] => Some(E5m2::A),
            [false, true] => Some(E5m2::B),
            [true, true] => Some(E5m2::Both),
        }
    }

    /// Whether A and B are.
    pub const fn operands(self) -> [bool; 2] {
        [matches!(self, E5m2::A | E5m2::Both), matches!(self, E5m2::B | E5m2::Both)]
    }

    /// The types of A and B, for names.
    pub const fn name(self) -> &'static str {
        match self {
            E5m2::A => "e5m2_e4m3",
            E5m2::B => "e4m3_e5m2",
            E5m2::Both => "e5m2_e5m2",
        }
    }
}

/// Operand types in a kernel's name.
pub(crate) fn prefix(e5m2: Option<E5m2>) -> String {
    e5m2.map_or(String::new(), |e5m2| format!("{}_", e5m2.name()))
}

/// The types of A and B.
pub(crate) fn types(e5m2: Option<E5m2>) -> [Fp8; 2] {
    let operands = e5m2.map_or([false; 2], E5m2::operands);
    operands.map(|e5m2| if e5m2 { Fp8::E5m2 } else { Fp8::E4m3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_is_told_by_its_operands() {
        for mix in E5m2::ALL {
            assert_eq!(E5m2::of(mix.operands()), Some(mix));
            let [a, b] = types(Some(mix)).map(|fp8| fp8.name());
            assert_eq!(mix.name(), format!("{a}_{b}"));
        }
        assert_eq!(types(None), [Fp8::E4m3; 2]);
    }
}
