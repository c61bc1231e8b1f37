//! The functions of atomics and reductions.

use crate::arith::alu;
use crate::arith::float::Mode;
use crate::arith::minifloat::Round;
use crate::text::types::Ty;

/// An atomic function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomFn {
    Add,
    And,
    Or,
    Xor,
    Min,
    Max,
    Inc,
    Dec,
    Exch,
    Cas,
}

/// The new value of a location that holds `old`; `None` where the function does not exist for the type.
pub(crate) fn apply(op: AtomFn, ty: Ty, old: u64, b: u64, c: u64) -> Option<u64> {
    let mask = crate::text::types::low_mask(ty.bits());
    let (old, b) = (old & mask, b & mask);
    let mode = Mode { round: Round::Nearest, ftz: false, sat: false, nan: false, relu: false };
    let by_alu = |name: &str| {
        let (f, _) = alu::lookup(&[name.to_owned()], ty, mode)?;
        Some(f(old, b, 0) & mask)
    };
    match op {
        AtomFn::Add => match ty {
            Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64 | Ty::U16 => Some(old.wrapping_add(b) & mask),
            Ty::F32 => Some(u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits())),
            _ => by_alu("add"),
        },
        AtomFn::And => Some(old & b),
        AtomFn::Or => Some(old | b),
        AtomFn::Xor => Some(old ^ b),
        AtomFn::Min => by_alu("min"),
        AtomFn::Max => by_alu("max"),
        AtomFn::Inc => Some(if old >= b { 0 } else { old + 1 }),
        AtomFn::Dec => Some(if old == 0 || old > b { b } else { old - 1 }),
        AtomFn::Exch => Some(b),
        AtomFn::Cas => Some(if old == b { c & mask } else { old }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions() {
        let f = |x: f32| u64::from(x.to_bits());
        assert_eq!(apply(AtomFn::Add, Ty::F32, f(1.5), f(2.0), 0), Some(f(3.5)));
        assert_eq!(apply(AtomFn::Add, Ty::U32, 0xffff_ffff, 2, 0), Some(1));
        assert_eq!(apply(AtomFn::Min, Ty::S32, 5, 0xffff_ffff, 0), Some(0xffff_ffff));
        assert_eq!(apply(AtomFn::Max, Ty::U32, 5, 0xffff_ffff, 0), Some(0xffff_ffff));
        assert_eq!(apply(AtomFn::Inc, Ty::U32, 7, 7, 0), Some(0));
        assert_eq!(apply(AtomFn::Dec, Ty::U32, 0, 7, 0), Some(7));
        assert_eq!(apply(AtomFn::Cas, Ty::B32, 3, 3, 9), Some(9));
        assert_eq!(apply(AtomFn::Cas, Ty::B32, 4, 3, 9), Some(4));
        assert_eq!(apply(AtomFn::Add, Ty::Bf16x2, 0x3f80_4000, 0x3f80_3f80, 0), Some(0x4000_4040));
    }
}
