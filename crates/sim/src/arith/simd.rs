//! Integer instructions beside the plain ones of [`crate::arith::alu`]: pairs of 16-bit integers, dot products,
//! 24-bit products, and bit searches.

use crate::arith::Alu4Fn;
use crate::arith::AluFn;
use crate::text::types::{Ty, low_mask, sign_extend};

fn pair(a: u64, b: u64, f: impl Fn(u16, u16) -> u16) -> u64 {
    let low = f(a as u16, b as u16);
    let high = f((a >> 16) as u16, (b >> 16) as u16);
    u64::from(low) | u64::from(high) << 16
}

/// `add`, `min` and `max` of `.u16x2` and `.s16x2`, and `.relu` of signed minima and maxima.
pub(crate) fn packed(op: &str, ty: Ty, relu: bool) -> Option<AluFn> {
    Some(match (op, ty, relu) {
        ("add", Ty::U16x2 | Ty::S16x2, false) => |a, b, _| pair(a, b, u16::wrapping_add),
        ("min", Ty::U16x2, false) => |a, b, _| pair(a, b, u16::min),
        ("max", Ty::U16x2, false) => |a, b, _| pair(a, b, u16::max),
        ("min", Ty::S16x2, false) => |a, b, _| pair(a, b, |x, y| (x as i16).min(y as i16) as u16),
        ("max", Ty::S16x2, false) => |a, b, _| pair(a, b, |x, y| (x as i16).max(y as i16) as u16),
        ("min", Ty::S16x2, true) => |a, b, _| pair(a, b, |x, y| (x as i16).min(y as i16).max(0) as u16),
        ("max", Ty::S16x2, true) => |a, b, _| pair(a, b, |x, y| (x as i16).max(y as i16).max(0) as u16),
        ("min", Ty::S32, true) => |a, b, _| (a as i32).min(b as i32).max(0) as u64,
        ("max", Ty::S32, true) => |a, b, _| (a as i32).max(b as i32).max(0) as u64,
        _ => return None,
    })
}

/// `mul24` and `mad24`: the product of the low 24 bits, its low 32 or its bits from 16 up.
pub(crate) fn product24(ty: Ty, high: bool) -> Option<AluFn> {
    Some(match (ty, high) {
        (Ty::U32, false) => |a, b, c| ((a & 0xff_ffff) * (b & 0xff_ffff)).wrapping_add(c) as u32 as u64,
        (Ty::U32, true) => {
            |a, b, c| (((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16).wrapping_add(c) as u32 as u64
        }
        (Ty::S32, false) => |a, b, c| signed24(a, b).wrapping_add(c as i64) as u32 as u64,
        (Ty::S32, true) => |a, b, c| (signed24(a, b) >> 16).wrapping_add(c as i64) as u32 as u64,
        _ => return None,
    })
}

fn signed24(a: u64, b: u64) -> i64 {
    (sign_extend(a & 0xff_ffff, 24) as i64) * (sign_extend(b & 0xff_ffff, 24) as i64)
}

/// `dp2a`: two 16-bit halves of a against two bytes of b, added to c. Bit 0 of `how` makes a signed,
/// bit 1 b; bit 2 takes the upper bytes of b.
pub(crate) const DP2A: Alu4Fn = |a, b, c, how| {
    let b = if how & 4 == 0 { b } else { b >> 16 };
    (0..2).fold(c as u32, |sum, i| {
        let x = (a >> (16 * i)) as u16;
        let y = (b >> (8 * i)) as u8;
        let x = if how & 1 == 1 { i32::from(x as i16) } else { i32::from(x) };
        let y = if how & 2 == 2 { i32::from(y as i8) } else { i32::from(y) };
        sum.wrapping_add(x.wrapping_mul(y) as u32)
    }) as u64
};

/// `szext`: keeps the low `b` bits of a and extends them.
pub(crate) fn extend(ty: Ty, wrap: bool) -> Option<AluFn> {
    Some(match (ty, wrap) {
        (Ty::U32, false) => |a, b, _| a & low_mask((b as u32).min(32)),
        (Ty::U32, true) => |a, b, _| a & low_mask(b as u32 & 31),
        (Ty::S32, false) => |a, b, _| signed_bits(a, (b as u32).min(32)),
        (Ty::S32, true) => |a, b, _| signed_bits(a, b as u32 & 31),
        _ => return None,
    })
}

fn signed_bits(a: u64, bits: u32) -> u64 {
    if bits == 0 { 0 } else { sign_extend(a, bits) & 0xffff_ffff }
}

/// `fns`: the place of the n-th set bit of a mask, counted from `base` (upward for n > 0, downward for
/// n < 0, the bit itself for 0); all ones where there is none.
pub(crate) const FIND_NTH_SET: AluFn = |mask, base, n| {
    let (mask, base, n) = (mask as u32, base as u32, n as i32);
    let set = |i: &u32| mask >> i & 1 == 1;
    let found = match n {
        0 => Some(base).filter(|b| *b < 32 && set(b)),
        n if n > 0 => (base..32).filter(set).nth(n as usize - 1),
        n => (0..=base.min(31)).rev().filter(set).nth(n.unsigned_abs() as usize - 1),
    };
    found.map_or(0xffff_ffff, u64::from)
};

/// `cvt.pack.sat`: a and b saturated to `bits` bits, b lowest, above them the low bits of c.
pub(crate) fn pack(to: Ty, from: Ty) -> Option<AluFn> {
    fn put<const BITS: u32, const SIGNED: bool>(a: u64, b: u64, c: u64) -> u64 {
        let (low, high) =
            if SIGNED { (-(1 << (BITS - 1)), (1 << (BITS - 1)) - 1) } else { (0, (1 << BITS) - 1) };
        let narrow = |x: u64| i64::from(x as i32).clamp(low, high) as u64 & low_mask(BITS);
        (narrow(a) << BITS | narrow(b) | c << (2 * BITS)) & 0xffff_ffff
    }
    if from != Ty::S32 {
        return None;
    }
    Some(match to {
        Ty::U16 => |a, b, _| put::<16, false>(a, b, 0),
        Ty::S16 => |a, b, _| put::<16, true>(a, b, 0),
        Ty::U8 => |a, b, c| put::<8, false>(a, b, c),
        Ty::S8 => |a, b, c| put::<8, true>(a, b, c),
        Ty::U4 => |a, b, c| put::<4, false>(a, b, c),
        Ty::S4 => |a, b, c| put::<4, true>(a, b, c),
        _ => return None,
    })
}
