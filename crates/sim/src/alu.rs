//! Arithmetic, logic and comparison: one function per operation, type and rounding mode.
//!
//! A register holds its value zero-extended in a `u64`. A function takes and gives such values, so that
//! the executor needs no knowledge of types. f32 is IEEE through the host, with directed rounding built
//! from exact f64 arithmetic; the `.approx` functions are computed in f64 and rounded to f32, which is
//! within the manual's bounds and not bit-equal with hardware.

use crate::isa::{AluFn, CmpFn};
use crate::minifloat::{BF16, F16, F32, Format, Round};
use crate::types::Ty;

fn f32_of(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

/// A result in f32, with the canonical NaN of the hardware.
fn of_f32(x: f32) -> u64 {
    if x.is_nan() { 0x7fff_ffff } else { u64::from(x.to_bits()) }
}

fn f64_of(x: u64) -> f64 {
    f64::from_bits(x)
}

fn ftz(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

fn sat(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }
}

/// Rounds to odd: keeps the fact that `value` is inexact for the next rounding.
fn odd(value: f64, error: f64) -> f64 {
    if error == 0.0 || !value.is_finite() || !error.is_finite() || value.to_bits() & 1 == 1 {
        return value;
    }
    // Truncate toward the true value, then set the last bit.
    let bits = value.to_bits();
    let toward_zero = (error < 0.0) == (value > 0.0);
    f64::from_bits(if toward_zero { bits - 1 } else { bits + 1 })
}

fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    if s == 0.0 || !s.is_finite() {
        return s;
    }
    let t = s - a;
    odd(s, (a - (s - t)) + (b - t))
}

fn round_f32(x: f64, round: Round) -> f32 {
    if x == 0.0 || !x.is_finite() {
        return x as f32;
    }
    f32::from_bits(F32.encode(x, round, false) as u32)
}

fn exact_zero(sum: f64, a: f64, b: f64, round: Round) -> f64 {
    if sum == 0.0 && round == Round::Down && !(a == 0.0 && b == 0.0 && a.is_sign_positive()) && a != b {
        return -0.0;
    }
    sum
}

fn add_mode(a: f32, b: f32, round: Round) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    round_f32(exact_zero(add_odd(a, b), a, b, round), round)
}

fn mul_mode(a: f32, b: f32, round: Round) -> f32 {
    round_f32(f64::from(a) * f64::from(b), round)
}

fn fma_mode(a: f32, b: f32, c: f32, round: Round) -> f32 {
    let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
    round_f32(exact_zero(add_odd(p, c), p, c, round), round)
}

fn div_mode(a: f32, b: f32, round: Round) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let q = a / b;
    if q == 0.0 || !q.is_finite() {
        return q as f32;
    }
    round_f32(odd(q, (-q).mul_add(b, a) * b.signum()), round)
}

fn sqrt_mode(a: f32, round: Round) -> f32 {
    let a = f64::from(a);
    let q = a.sqrt();
    if q == 0.0 || !q.is_finite() {
        return q as f32;
    }
    round_f32(odd(q, (-q).mul_add(q, a)), round)
}

/// IEEE 754-2019 minimumNumber and maximumNumber, as PTX `min` and `max` without `.NaN`.
fn min_f32(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::NAN,
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                a
            } else {
                b
            }
        }
        _ => {
            if a < b {
                a
            } else {
                b
            }
        }
    }
}

fn max_f32(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f32::NAN,
        (true, _) => b,
        (_, true) => a,
        _ if a == b => {
            if a.is_sign_negative() {
                b
            } else {
                a
            }
        }
        _ => {
            if a > b {
                a
            } else {
                b
            }
        }
    }
}

fn nan_or(a: f32, b: f32, f: fn(f32, f32) -> f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { f(a, b) }
}

/// What an f32 instruction's modifiers ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mode {
    pub(crate) round: Round,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) nan: bool,
    pub(crate) relu: bool,
}

/// An f32 operation: exact up to one rounding in the given direction.
trait FloatOp {
    fn apply(x: [f32; 3], round: Round) -> f32;
}

macro_rules! float_ops {
    ($($name:ident: |$a:ident, $b:ident, $c:ident, $r:ident| $e:expr;)*) => {
        $(
            struct $name;
            impl FloatOp for $name {
                #[inline(always)]
                fn apply([$a, $b, $c]: [f32; 3], $r: Round) -> f32 {
                    $e
                }
            }
        )*
    };
}

fn nearest(r: Round) -> bool {
    matches!(r, Round::Nearest | Round::NearestAway)
}

float_ops! {
    Add: |a, b, _c, r| if nearest(r) { a + b } else { add_mode(a, b, r) };
    Sub: |a, b, _c, r| if nearest(r) { a - b } else { add_mode(a, -b, r) };
    Mul: |a, b, _c, r| if nearest(r) { a * b } else { mul_mode(a, b, r) };
    Fma: |a, b, c, r| if nearest(r) { a.mul_add(b, c) } else { fma_mode(a, b, c, r) };
    Div: |a, b, _c, r| if nearest(r) { a / b } else { div_mode(a, b, r) };
    Rcp: |a, _b, _c, r| if nearest(r) { 1.0 / a } else { div_mode(1.0, a, r) };
    Sqrt: |a, _b, _c, r| if nearest(r) { a.sqrt() } else { sqrt_mode(a, r) };
    Rsqrt: |a, _b, _c, _r| (1.0 / f64::from(a).sqrt()) as f32;
    Ex2: |a, _b, _c, _r| f64::from(a).exp2() as f32;
    Lg2: |a, _b, _c, _r| f64::from(a).log2() as f32;
    Sin: |a, _b, _c, _r| f64::from(a).sin() as f32;
    Cos: |a, _b, _c, _r| f64::from(a).cos() as f32;
    Tanh: |a, _b, _c, _r| f64::from(a).tanh() as f32;
    Abs: |a, _b, _c, _r| a.abs();
    Neg: |a, _b, _c, _r| -a;
    Min: |a, b, _c, _r| min_f32(a, b);
    Max: |a, b, _c, _r| max_f32(a, b);
    MinNan: |a, b, _c, _r| nan_or(a, b, min_f32);
    MaxNan: |a, b, _c, _r| nan_or(a, b, max_f32);
}

/// Directions as constants, so that every combination is its own function.
const ROUNDS: [Round; 4] = [Round::Nearest, Round::Zero, Round::Down, Round::Up];

fn float_run<O: FloatOp, const ROUND: usize, const FTZ: bool, const SAT: bool>(
    a: u64,
    b: u64,
    c: u64,
) -> u64 {
    let mut x = [f32_of(a), f32_of(b), f32_of(c)];
    if FTZ {
        x = x.map(ftz);
    }
    let mut r = O::apply(x, ROUNDS[ROUND]);
    if FTZ {
        r = ftz(r);
    }
    if SAT {
        r = sat(r);
    }
    of_f32(r)
}

fn float_pick<O: FloatOp>(m: Mode) -> AluFn {
    fn flags<O: FloatOp, const ROUND: usize>(m: Mode) -> AluFn {
        match (m.ftz, m.sat) {
            (false, false) => float_run::<O, ROUND, false, false>,
            (true, false) => float_run::<O, ROUND, true, false>,
            (false, true) => float_run::<O, ROUND, false, true>,
            (true, true) => float_run::<O, ROUND, true, true>,
        }
    }
    match m.round {
        Round::Nearest | Round::NearestAway => flags::<O, 0>(m),
        Round::Zero => flags::<O, 1>(m),
        Round::Down => flags::<O, 2>(m),
        Round::Up => flags::<O, 3>(m),
    }
}

fn float32(op: &str, m: Mode) -> Option<AluFn> {
    Some(match op {
        "add" => float_pick::<Add>(m),
        "sub" => float_pick::<Sub>(m),
        "mul" => float_pick::<Mul>(m),
        "fma" | "mad" => float_pick::<Fma>(m),
        "div" => float_pick::<Div>(m),
        "rcp" => float_pick::<Rcp>(m),
        "sqrt" => float_pick::<Sqrt>(m),
        "rsqrt" => float_pick::<Rsqrt>(m),
        "ex2" => float_pick::<Ex2>(m),
        "lg2" => float_pick::<Lg2>(m),
        "sin" => float_pick::<Sin>(m),
        "cos" => float_pick::<Cos>(m),
        "tanh" => float_pick::<Tanh>(m),
        "abs" => float_pick::<Abs>(m),
        "neg" => float_pick::<Neg>(m),
        "min" if m.nan => float_pick::<MinNan>(m),
        "max" if m.nan => float_pick::<MaxNan>(m),
        "min" => float_pick::<Min>(m),
        "max" => float_pick::<Max>(m),
        "copysign" => |a, b, _| u64::from(f32_of(b).copysign(f32_of(a)).to_bits()),
        _ => return None,
    })
}

fn float64(op: &str, m: Mode) -> Option<AluFn> {
    if m.round != Round::Nearest {
        return None;
    }
    Some(match op {
        "add" => |a, b, _| (f64_of(a) + f64_of(b)).to_bits(),
        "sub" => |a, b, _| (f64_of(a) - f64_of(b)).to_bits(),
        "mul" => |a, b, _| (f64_of(a) * f64_of(b)).to_bits(),
        "fma" | "mad" => |a, b, c| f64_of(a).mul_add(f64_of(b), f64_of(c)).to_bits(),
        "div" => |a, b, _| (f64_of(a) / f64_of(b)).to_bits(),
        "rcp" => |a, _, _| (1.0 / f64_of(a)).to_bits(),
        "sqrt" => |a, _, _| f64_of(a).sqrt().to_bits(),
        "rsqrt" => |a, _, _| (1.0 / f64_of(a).sqrt()).to_bits(),
        "abs" => |a, _, _| f64_of(a).abs().to_bits(),
        "neg" => |a, _, _| (-f64_of(a)).to_bits(),
        "min" => |a, b, _| f64_of(a).min(f64_of(b)).to_bits(),
        "max" => |a, b, _| f64_of(a).max(f64_of(b)).to_bits(),
        "copysign" => |a, b, _| f64_of(b).copysign(f64_of(a)).to_bits(),
        _ => return None,
    })
}

/// Half-precision operations, in the order that [`half_op`] numbers them.
const HALF_OPS: [&str; 10] = ["add", "sub", "mul", "fma", "abs", "neg", "min", "max", "ex2", "tanh"];

/// Flags of a half-precision operation.
const FLUSH: u8 = 1;
const SATURATE: u8 = 2;
const KEEP_NAN: u8 = 4;
const RELU: u8 = 8;

/// One half-precision operation: exact in f64 (round-to-odd for sums), rounded once.
fn half(format: Format, op: usize, flags: u8, x: [u64; 3]) -> u64 {
    let [a, b, c] = x.map(|v| {
        let v = format.decode(v & 0xffff);
        let subnormal = format == F16 && v.abs() < crate::minifloat::power(-14);
        if flags & FLUSH != 0 && subnormal { 0.0f64.copysign(v) } else { v }
    });
    let pick = |first: bool| if first { a } else { b };
    let value = match HALF_OPS[op] {
        "add" => add_odd(a, b),
        "sub" => add_odd(a, -b),
        "mul" => a * b,
        "fma" => add_odd(a * b, c),
        "abs" => return x[0] & 0x7fff,
        "neg" => return (x[0] ^ 0x8000) & 0xffff,
        "min" | "max" if flags & KEEP_NAN != 0 && (a.is_nan() || b.is_nan()) => f64::NAN,
        "min" if a == b => pick(a.is_sign_negative()),
        "max" if a == b => pick(!a.is_sign_negative()),
        "min" => a.min(b),
        "max" => a.max(b),
        "ex2" => a.exp2(),
        _ => a.tanh(),
    };
    let value = if flags & RELU != 0 && value < 0.0 { 0.0 } else { value };
    let value = match flags & SATURATE {
        0 => value,
        _ if value.is_nan() => 0.0,
        _ => value.clamp(0.0, 1.0),
    };
    format.encode(value, Round::Nearest, false)
}

fn half_run<const OP: usize, const BF16_INPUT: bool, const PAIR: bool, const FLAGS: u8>(
    a: u64,
    b: u64,
    c: u64,
) -> u64 {
    let format = if BF16_INPUT { BF16 } else { F16 };
    let low = half(format, OP, FLAGS, [a, b, c]);
    if PAIR { low | half(format, OP, FLAGS, [a >> 16, b >> 16, c >> 16]) << 16 } else { low }
}

fn half_op(ty: Ty, op: &str, m: Mode) -> Option<AluFn> {
    fn flags<const OP: usize, const BF: bool, const PAIR: bool>(m: Mode) -> Option<AluFn> {
        Some(match (m.ftz, m.sat, m.nan, m.relu) {
            (false, false, false, false) => half_run::<OP, BF, PAIR, 0>,
            (true, false, false, false) => half_run::<OP, BF, PAIR, FLUSH>,
            (false, true, false, false) => half_run::<OP, BF, PAIR, SATURATE>,
            (true, true, false, false) => half_run::<OP, BF, PAIR, { FLUSH | SATURATE }>,
            (false, false, true, false) => half_run::<OP, BF, PAIR, KEEP_NAN>,
            (true, false, true, false) => half_run::<OP, BF, PAIR, { FLUSH | KEEP_NAN }>,
            (false, false, false, true) => half_run::<OP, BF, PAIR, RELU>,
            (true, false, false, true) => half_run::<OP, BF, PAIR, { FLUSH | RELU }>,
            _ => return None,
        })
    }
    fn typed<const OP: usize>(ty: Ty, m: Mode) -> Option<AluFn> {
        match ty {
            Ty::F16 => flags::<OP, false, false>(m),
            Ty::F16x2 => flags::<OP, false, true>(m),
            Ty::Bf16 => flags::<OP, true, false>(m),
            Ty::Bf16x2 => flags::<OP, true, true>(m),
            _ => None,
        }
    }
    if m.round != Round::Nearest {
        return None;
    }
    match HALF_OPS.iter().position(|o| *o == op)? {
        0 => typed::<0>(ty, m),
        1 => typed::<1>(ty, m),
        2 => typed::<2>(ty, m),
        3 => typed::<3>(ty, m),
        4 => typed::<4>(ty, m),
        5 => typed::<5>(ty, m),
        6 => typed::<6>(ty, m),
        7 => typed::<7>(ty, m),
        8 => typed::<8>(ty, m),
        _ => typed::<9>(ty, m),
    }
}

/// Packed pairs of f32 (`add.f32x2` and friends), round to nearest.
fn float32x2(op: &str, m: Mode) -> Option<AluFn> {
    fn run<O: FloatOp, const FTZ: bool>(a: u64, b: u64, c: u64) -> u64 {
        let f = float_run::<O, 0, FTZ, false>;
        f(a, b, c) | f(a >> 32, b >> 32, c >> 32) << 32
    }
    if m.round != Round::Nearest || m.sat {
        return None;
    }
    Some(match (op, m.ftz) {
        ("add", false) => run::<Add, false>,
        ("add", true) => run::<Add, true>,
        ("sub", false) => run::<Sub, false>,
        ("sub", true) => run::<Sub, true>,
        ("mul", false) => run::<Mul, false>,
        ("mul", true) => run::<Mul, true>,
        ("fma", false) => run::<Fma, false>,
        ("fma", true) => run::<Fma, true>,
        _ => return None,
    })
}

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
        "fma" | "mad" | "selp" | "bfe" | "sad" | "lop3" | "slct" | "dp4a" | "szext" => 3,
        "abs" | "neg" | "not" | "cnot" | "popc" | "clz" | "brev" | "bfind" | "mov" | "rcp" | "sqrt"
        | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => 1,
        _ => 2,
    };
    let f = match ty {
        Ty::F32 if op == "selp" || op == "mov" => integer(op, Ty::B32),
        Ty::F64 if op == "selp" || op == "mov" => integer(op, Ty::B64),
        Ty::F16 | Ty::Bf16 if op == "selp" || op == "mov" => integer(op, Ty::B16),
        Ty::F16x2 | Ty::Bf16x2 if op == "selp" || op == "mov" => integer(op, Ty::B32),
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
        Ty::F16 => floats!(|x| F16.decode(x)),
        Ty::Bf16 => floats!(|x| BF16.decode(x)),
        _ => return None,
    };
    Some(f)
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

/// A function of four values.
pub(crate) type Alu4Fn = fn(u64, u64, u64, u64) -> u64;

/// `bfi`: inserts the low `len` bits of a into b at `pos`.
pub(crate) fn bfi(ty: Ty) -> Option<Alu4Fn> {
    fn insert(a: u64, b: u64, pos: u64, len: u64, bits: u32) -> u64 {
        let (pos, len) = ((pos & 0xff) as u32, (len & 0xff) as u32);
        if pos >= bits || len == 0 {
            return b;
        }
        let mask = crate::types::low_mask(len.min(bits - pos)) << pos;
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

/// Sum and carry of one step of an extended-precision chain.
pub(crate) type CarryFn = fn(u64, u64, u64, bool) -> (u64, bool);

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
