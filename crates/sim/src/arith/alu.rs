//! Arithmetic, logic and comparison: one function per operation, type and rounding mode.
//!
//! A register holds its value zero-extended in a `u64`. A function takes and gives such values, so that
//! the executor needs no knowledge of types. Floating point is in [`crate::arith::float`].

use super::float::{Mode, f32_of, f64_of, float32, float32x2, ftz, half_op};
use super::float64::float64;
use super::minifloat::{BF16, F16};
use super::simd;
use super::{Alu4Fn, AluFn, CarryFn, CmpFn};
use crate::text::types::Ty;

macro_rules! int_ops {
    ($op:expr, $s:ty, $u:ty, $wide:ty, $bits:literal) => {{
        let f: AluFn = match $op {
            "add" => |a, b, _| (a as $u).wrapping_add(b as $u) as u64,
            "sub" => |a, b, _| (a as $u).wrapping_sub(b as $u) as u64,
            "mul.lo" => |a, b, _| (a as $u).wrapping_mul(b as $u) as u64,
            "mul.hi" => {
                |a, b, _| (((a as $s) as $wide).wrapping_mul((b as $s) as $wide) >> $bits) as $u as u64
            }
            "mad.lo" => |a, b, c| (a as $u).wrapping_mul(b as $u).wrapping_add(c as $u) as u64,
            "mad.hi" => |a, b, c| {
                ((((a as $s) as $wide).wrapping_mul((b as $s) as $wide) >> $bits) as $u).wrapping_add(c as $u)
                    as u64
            },
            // The hardware's result of a division by zero is all ones.
            "div" => |a, b, _| {
                let (a, b) = (a as $s, b as $s);
                (if b == 0 { <$u>::MAX as $s } else { a.wrapping_div(b) }) as $u as u64
            },
            "rem" => |a, b, _| {
                let (a, b) = (a as $s, b as $s);
                (if b == 0 { a } else { a.wrapping_rem(b) }) as $u as u64
            },
            "min" => |a, b, _| (a as $s).min(b as $s) as $u as u64,
            "max" => |a, b, _| (a as $s).max(b as $s) as $u as u64,
            "abs" => |a, _, _| {
                let a = a as $s;
                #[allow(unused_comparisons)]
                let negative = a < 0;
                (if negative { (0 as $s).wrapping_sub(a) } else { a }) as $u as u64
            },
            "neg" => |a, _, _| (0 as $u).wrapping_sub(a as $u) as u64,
            "and" => |a, b, _| ((a & b) as $u) as u64,
            "or" => |a, b, _| ((a | b) as $u) as u64,
            "xor" => |a, b, _| ((a ^ b) as $u) as u64,
            "not" => |a, _, _| (!a as $u) as u64,
            "cnot" => |a, _, _| u64::from(a as $u == 0),
            "shl" => |a, b, _| {
                let n = b as u32;
                if n >= $bits { 0 } else { ((a as $u) << n) as u64 }
            },
            "shr" => |a, b, _| {
                ((a as $s) >> (b as u32).min($bits - 1)) as $u as u64
                    * u64::from(<$s>::MIN != 0 || (b as u32) < $bits)
            },
            "popc" => |a, _, _| u64::from((a as $u).count_ones()),
            "clz" => |a, _, _| u64::from((a as $u).leading_zeros()),
            "brev" => |a, _, _| (a as $u).reverse_bits() as u64,
            "bfind" => |a, _, _| {
                let a = a as $s;
                #[allow(unused_comparisons)]
                let m = if a < 0 { !(a as $u) } else { a as $u };
                if m == 0 { 0xffff_ffff } else { u64::from($bits - 1 - m.leading_zeros()) }
            },
            "bfind.shiftamt" => |a, _, _| {
                let a = a as $s;
                #[allow(unused_comparisons)]
                let m = if a < 0 { !(a as $u) } else { a as $u };
                if m == 0 { 0xffff_ffff } else { u64::from(m.leading_zeros()) }
            },
            "bfe" => |a, b, c| {
                let (pos, len) = ((b & 0xff) as u32, (c & 0xff) as u32);
                let value = if pos >= $bits { 0 } else { (a as $u) >> pos };
                let sign_at = (pos + len.max(1) - 1).min($bits - 1);
                let sign = <$s>::MIN != 0 && len > 0 && (a as $u) >> sign_at & 1 == 1;
                let kept = len.min($bits - pos.min($bits));
                let low = if kept >= $bits { value } else { value & ((1 as $u) << kept).wrapping_sub(1) };
                let fill = if kept >= $bits { 0 } else { <$u>::MAX << kept };
                (if sign { low | fill } else { low }) as u64
            },
            "sad" => |a, b, c| ((a as $s).abs_diff(b as $s)).wrapping_add(c as $u) as u64,
            "selp" => |a, b, c| if c & 1 == 1 { (a as $u) as u64 } else { (b as $u) as u64 },
            "mov" => |a, _, _| (a as $u) as u64,
            _ => return None,
        };
        f
    }};
}

fn integer(op: &str, ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::U16 | Ty::B16 => int_ops!(op, u16, u16, u32, 16),
        Ty::S16 => int_ops!(op, i16, u16, i32, 16),
        Ty::U32 | Ty::B32 => int_ops!(op, u32, u32, u64, 32),
        Ty::S32 => int_ops!(op, i32, u32, i64, 32),
        Ty::U64 | Ty::B64 => int_ops!(op, u64, u64, u128, 64),
        Ty::S64 => int_ops!(op, i64, u64, i128, 64),
        Ty::Pred => match op {
            "and" => |a, b, _| a & b & 1,
            "or" => |a, b, _| (a | b) & 1,
            "xor" => |a, b, _| (a ^ b) & 1,
            "not" => |a, _, _| !a & 1,
            "mov" => |a, _, _| a & 1,
            _ => return None,
        },
        _ => return None,
    })
}

/// The operation that an opcode names, with its number of sources.
pub(crate) fn lookup(parts: &[String], ty: Ty, m: Mode) -> Option<(AluFn, usize)> {
    let op = parts[0].as_str();
    let has = |s: &str| parts.iter().any(|p| p == s);
    let sources = match op {
        "fma" | "mad" | "mad24" | "selp" | "bfe" | "sad" | "fns" | "min3" | "max3" | "min3.abs"
        | "max3.abs" => 3,
        "abs" | "neg" | "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" | "mov" | "rcp" | "sqrt"
        | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => 1,
        _ => 2,
    };
    let f = match ty {
        Ty::F32 if op == "selp" || op == "mov" => integer(op, Ty::B32),
        Ty::F64 if op == "selp" || op == "mov" => integer(op, Ty::B64),
        Ty::F16 | Ty::Bf16 if op == "selp" || op == "mov" => integer(op, Ty::B16),
        Ty::F16x2 | Ty::Bf16x2 if op == "selp" || op == "mov" => integer(op, Ty::B32),
        Ty::F32 if has("xorsign") => float32(&format!("{op}.xorsign"), m),
        Ty::F32 => float32(op, m),
        Ty::F32x2 => float32x2(op, m),
        Ty::F64 => float64(op, m),
        Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => half_op(ty, op, m),
        _ if op == "mul" || op == "mad" => {
            if has("wide") {
                wide(op, ty)
            } else if has("hi") {
                integer(if op == "mul" { "mul.hi" } else { "mad.hi" }, ty)
            } else {
                integer(if op == "mul" { "mul.lo" } else { "mad.lo" }, ty)
            }
        }
        Ty::U16x2 | Ty::S16x2 => simd::packed(op, ty, m.relu),
        _ if m.relu => simd::packed(op, ty, m.relu),
        _ if op == "mul24" || op == "mad24" => simd::product24(ty, has("hi")),
        _ if op == "szext" => simd::extend(ty, has("wrap")),
        Ty::B32 if op == "fns" => Some(simd::FIND_NTH_SET),
        _ if op == "bfind" && has("shiftamt") => integer("bfind.shiftamt", ty),
        Ty::S32 if op == "add" && has("sat") => {
            Some((|a, b, _| (a as i32).saturating_add(b as i32) as u32 as u64) as AluFn)
        }
        Ty::S32 if op == "sub" && has("sat") => {
            Some((|a, b, _| (a as i32).saturating_sub(b as i32) as u32 as u64) as AluFn)
        }
        _ => integer(op, ty),
    };
    f.map(|f| (f, sources))
}

fn wide(op: &str, ty: Ty) -> Option<AluFn> {
    Some(match (op, ty) {
        ("mul", Ty::U16) => |a, b, _| (a & 0xffff) * (b & 0xffff),
        ("mul", Ty::S16) => |a, b, _| (i32::from(a as i16) * i32::from(b as i16)) as u32 as u64,
        ("mul", Ty::U32) => |a, b, _| u64::from(a as u32) * u64::from(b as u32),
        ("mul", Ty::S32) => |a, b, _| (i64::from(a as i32) * i64::from(b as i32)) as u64,
        ("mad", Ty::U16) => {
            |a, b, c| u64::from(((a & 0xffff) * (b & 0xffff)) as u32).wrapping_add(c) & 0xffff_ffff
        }
        ("mad", Ty::S16) => {
            |a, b, c| (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32 as u64
        }
        ("mad", Ty::U32) => |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c),
        ("mad", Ty::S32) => {
            |a, b, c| (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64
        }
        _ => return None,
    })
}

/// A comparison of `setp`, `set` and `slct`.
pub(crate) fn compare(op: &str, ty: Ty, flush: bool) -> Option<CmpFn> {
    macro_rules! ints {
        ($t:ty) => {
            match op {
                "eq" => |a, b| a as $t == b as $t,
                "ne" => |a, b| a as $t != b as $t,
                "lt" | "lo" => |a, b| (a as $t) < (b as $t),
                "le" | "ls" => |a, b| (a as $t) <= (b as $t),
                "gt" | "hi" => |a, b| (a as $t) > (b as $t),
                "ge" | "hs" => |a, b| (a as $t) >= (b as $t),
                _ => return None,
            }
        };
    }
    macro_rules! floats {
        ($of:expr) => {
            match op {
                "eq" => |a, b| $of(a) == $of(b),
                "ne" => |a, b| $of(a) < $of(b) || $of(a) > $of(b),
                "lt" => |a, b| $of(a) < $of(b),
                "le" => |a, b| $of(a) <= $of(b),
                "gt" => |a, b| $of(a) > $of(b),
                "ge" => |a, b| $of(a) >= $of(b),
                "equ" => |a, b| !($of(a) < $of(b) || $of(a) > $of(b)),
                "neu" => |a, b| $of(a) != $of(b),
                "ltu" => |a, b| !($of(a) >= $of(b)),
                "leu" => |a, b| !($of(a) > $of(b)),
                "gtu" => |a, b| !($of(a) <= $of(b)),
                "geu" => |a, b| !($of(a) < $of(b)),
                "num" => |a, b| !$of(a).is_nan() && !$of(b).is_nan(),
                "nan" => |a, b| $of(a).is_nan() || $of(b).is_nan(),
                _ => return None,
            }
        };
    }
    #[allow(clippy::neg_cmp_op_on_partial_ord)]
    let f: CmpFn = match ty {
        Ty::U8 | Ty::B8 => ints!(u8),
        Ty::U16 | Ty::B16 => ints!(u16),
        Ty::S16 => ints!(i16),
        Ty::U32 | Ty::B32 => ints!(u32),
        Ty::S32 => ints!(i32),
        Ty::U64 | Ty::B64 => ints!(u64),
        Ty::S64 => ints!(i64),
        Ty::F32 if flush => floats!(|x| ftz(f32_of(x))),
        Ty::F32 => floats!(f32_of),
        Ty::F64 => floats!(f64_of),
        // Of a packed pair each half is compared by itself.
        Ty::F16 | Ty::F16x2 => floats!(|x| F16.decode(x)),
        Ty::Bf16 | Ty::Bf16x2 => floats!(|x| BF16.decode(x)),
        _ => return None,
    };
    Some(f)
}

macro_rules! classify {
    ($of:expr, $name:expr) => {
        Some(match $name {
            "finite" => |a, _, _| u64::from($of(a).is_finite()),
            "infinite" => |a, _, _| u64::from($of(a).is_infinite()),
            "number" => |a, _, _| u64::from(!$of(a).is_nan()),
            "notanumber" => |a, _, _| u64::from($of(a).is_nan()),
            "normal" => |a, _, _| u64::from($of(a).is_normal()),
            "subnormal" => |a, _, _| u64::from($of(a).is_subnormal()),
            _ => return None,
        })
    };
}

/// `testp` of an f32.
pub(crate) fn classify32(name: &str) -> Option<AluFn> {
    classify!(f32_of, name)
}

/// `testp` of an f64.
pub(crate) fn classify64(name: &str) -> Option<AluFn> {
    classify!(f64_of, name)
}

/// `prmt.b32` in its default and named modes.
pub(crate) fn prmt(mode: Option<&str>) -> Option<AluFn> {
    fn byte(a: u64, b: u64, i: u64) -> u64 {
        ((b & 0xffff_ffff) << 32 | a & 0xffff_ffff) >> (8 * (i & 7)) & 0xff
    }
    macro_rules! pick {
        (|$c:ident, $i:ident| $index:expr) => {
            |a, b, c| {
                let $c = c & 3;
                (0..4u64).map(|$i| byte(a, b, $index) << (8 * $i)).sum()
            }
        };
    }
    Some(match mode {
        None => |a, b, c| {
            (0..4u64)
                .map(|i| {
                    let s = c >> (4 * i) & 0xf;
                    let v = byte(a, b, s);
                    (if s & 8 == 0 {
                        v
                    } else if v & 0x80 == 0 {
                        0
                    } else {
                        0xff
                    }) << (8 * i)
                })
                .sum()
        },
        Some("f4e") => pick!(|c, i| c + i),
        Some("b4e") => pick!(|c, i| (c + 8 - i) & 7),
        Some("rc8") => pick!(|c, i| {
            let _ = i;
            c
        }),
        Some("ecl") => pick!(|c, i| i.max(c)),
        Some("ecr") => pick!(|c, i| i.min(c)),
        Some("rc16") => pick!(|c, i| (c & 1) * 2 + (i & 1)),
        _ => return None,
    })
}

/// `shf.{l,r}.{wrap,clamp}.b32`: a is the low word, b the high word.
pub(crate) fn funnel(left: bool, clamp: bool) -> AluFn {
    match (left, clamp) {
        (true, false) => |a, b, c| ((b << 32 | a & 0xffff_ffff) << (c & 31)) >> 32,
        (true, true) => |a, b, c| {
            let n = (c & 0xffff_ffff).min(32);
            (((u128::from(b) << 32 | u128::from(a & 0xffff_ffff)) << n) >> 32) as u32 as u64
        },
        (false, false) => |a, b, c| ((b << 32 | a & 0xffff_ffff) >> (c & 31)) as u32 as u64,
        (false, true) => |a, b, c| ((b << 32 | a & 0xffff_ffff) >> (c & 0xffff_ffff).min(32)) as u32 as u64,
    }
}

/// `bfi`: inserts the low `len` bits of a into b at `pos`.
pub(crate) fn bfi(ty: Ty) -> Option<Alu4Fn> {
    fn insert(a: u64, b: u64, pos: u64, len: u64, bits: u32) -> u64 {
        let (pos, len) = ((pos & 0xff) as u32, (len & 0xff) as u32);
        if pos >= bits || len == 0 {
            return b;
        }
        let mask = crate::text::types::low_mask(len.min(bits - pos)) << pos;
        b & !mask | (a << pos) & mask
    }
    Some(match ty {
        Ty::B32 => |a, b, pos, len| insert(a, b, pos, len, 32),
        Ty::B64 => |a, b, pos, len| insert(a, b, pos, len, 64),
        _ => return None,
    })
}

/// `lop3.b32`: any function of three bits, by its truth table.
pub(crate) fn lop3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let mut r = 0;
    for i in (0..8u32).filter(|i| table >> i & 1 == 1) {
        let pick = |x: u64, bit: u32| if i >> bit & 1 == 1 { x } else { !x };
        r |= pick(a, 2) & pick(b, 1) & pick(c, 0);
    }
    r & 0xffff_ffff
}

/// `dp4a`: four byte products added to c; bit 0 of `signs` makes a signed, bit 1 b.
pub(crate) fn dp4a(a: u64, b: u64, c: u64, signs: u64) -> u64 {
    let byte = |x: u64, i: u32, signed: bool| {
        let v = (x >> (8 * i)) as u8;
        if signed { i32::from(v as i8) } else { i32::from(v) }
    };
    (0..4).fold(c as u32, |s, i| {
        s.wrapping_add((byte(a, i, signs & 1 == 1) * byte(b, i, signs & 2 == 2)) as u32)
    }) as u64
}

/// The extended-precision instructions, by opcode and type width.
pub(crate) fn carry(op: &str, parts: &[String], ty: Ty) -> Option<CarryFn> {
    let hi = parts.iter().any(|p| p == "hi");
    let signed = ty.signed();
    macro_rules! chain {
        ($u:ty, $uw:ty, $s:ty, $sw:ty, $bits:literal) => {{
            fn add(a: u64, b: u64, c: bool) -> (u64, bool) {
                let (s, x) = (a as $u).overflowing_add(b as $u);
                let (s, y) = s.overflowing_add(<$u>::from(c));
                (s as u64, x || y)
            }
            fn product(a: u64, b: u64) -> $uw {
                <$uw>::from(a as $u) * <$uw>::from(b as $u)
            }
            fn signed_high(a: u64, b: u64) -> u64 {
                ((<$sw>::from(a as $s) * <$sw>::from(b as $s)) >> $bits) as $u as u64
            }
            let f: CarryFn = match (op, hi) {
                ("add", _) => |a, b, _, _| add(a, b, false),
                ("addc", _) => |a, b, _, k| add(a, b, k),
                // The carry of a subtraction is the borrow.
                ("sub", _) => |a, b, _, _| ((a as $u).wrapping_sub(b as $u) as u64, (a as $u) < (b as $u)),
                ("subc", _) => |a, b, _, k| {
                    let (s, x) = (a as $u).overflowing_sub(b as $u);
                    let (s, y) = s.overflowing_sub(<$u>::from(k));
                    (s as u64, x || y)
                },
                ("mad", false) => |a, b, c, _| add(product(a, b) as $u as u64, c, false),
                ("madc", false) => |a, b, c, k| add(product(a, b) as $u as u64, c, k),
                ("mad", true) if signed => |a, b, c, _| add(signed_high(a, b), c, false),
                ("madc", true) if signed => |a, b, c, k| add(signed_high(a, b), c, k),
                ("mad", true) => |a, b, c, _| add((product(a, b) >> $bits) as $u as u64, c, false),
                ("madc", true) => |a, b, c, k| add((product(a, b) >> $bits) as $u as u64, c, k),
                _ => return None,
            };
            f
        }};
    }
    Some(match ty.bits() {
        32 => chain!(u32, u64, i32, i64, 32),
        64 => chain!(u64, u128, i64, i128, 64),
        _ => return None,
    })
}
