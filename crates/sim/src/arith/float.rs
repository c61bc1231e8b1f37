//! Floating-point arithmetic.
//!
//! f32 is IEEE through the host, with directed rounding built from exact f64 arithmetic; half precision is
//! computed exactly in f64 and rounded once. The `.approx` functions are computed in f64 and rounded to f32,
//! which is within the manual's bounds and not bit-equal with hardware.

use crate::arith::AluFn;
use crate::arith::minifloat::{BF16, F16, F32, Format, Round};
use crate::text::types::Ty;

pub(crate) fn f32_of(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

/// A result in f32, with the canonical NaN of the hardware.
fn of_f32(x: f32) -> u64 {
    if x.is_nan() { 0x7fff_ffff } else { u64::from(x.to_bits()) }
}

pub(crate) fn f64_of(x: u64) -> f64 {
    f64::from_bits(x)
}

pub(crate) fn ftz(x: f32) -> f32 {
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

pub(crate) fn exact_zero(sum: f64, a: f64, b: f64, round: Round) -> f64 {
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

/// Modifiers of an f32 instruction.
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
    Min3: |a, b, c, _r| min_f32(min_f32(a, b), c);
    Max3: |a, b, c, _r| max_f32(max_f32(a, b), c);
    Min3Nan: |a, b, c, _r| nan_or(nan_or(a, b, min_f32), c, min_f32);
    Max3Nan: |a, b, c, _r| nan_or(nan_or(a, b, max_f32), c, max_f32);
    Min3Abs: |a, b, c, _r| min_f32(min_f32(a.abs(), b.abs()), c.abs());
    Max3Abs: |a, b, c, _r| max_f32(max_f32(a.abs(), b.abs()), c.abs());
    Min3NanAbs: |a, b, c, _r| nan_or(nan_or(a.abs(), b.abs(), min_f32), c.abs(), min_f32);
    Max3NanAbs: |a, b, c, _r| nan_or(nan_or(a.abs(), b.abs(), max_f32), c.abs(), max_f32);
    MinXorSign: |a, b, _c, _r| xor_sign(a, b, min_f32);
    MaxXorSign: |a, b, _c, _r| xor_sign(a, b, max_f32);
}

/// `.xorsign.abs`: the smaller or larger magnitude with the product's sign.
fn xor_sign(a: f32, b: f32, pick: fn(f32, f32) -> f32) -> f32 {
    let sign = if a.is_sign_negative() != b.is_sign_negative() { -1.0f32 } else { 1.0 };
    pick(a.abs(), b.abs()).copysign(sign)
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

pub(crate) fn float32(op: &str, m: Mode) -> Option<AluFn> {
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
        "min3" if m.nan => float_pick::<Min3Nan>(m),
        "max3" if m.nan => float_pick::<Max3Nan>(m),
        "min3.abs" if m.nan => float_pick::<Min3NanAbs>(m),
        "max3.abs" if m.nan => float_pick::<Max3NanAbs>(m),
        "min3.abs" => float_pick::<Min3Abs>(m),
        "max3.abs" => float_pick::<Max3Abs>(m),
        "min3" => float_pick::<Min3>(m),
        "max3" => float_pick::<Max3>(m),
        "min.xorsign" if !m.nan => float_pick::<MinXorSign>(m),
        "max.xorsign" if !m.nan => float_pick::<MaxXorSign>(m),
        "copysign" => |a, b, _| u64::from(f32_of(b).copysign(f32_of(a)).to_bits()),
        _ => return None,
    })
}

/// `add`, `sub` and `fma` of a half-precision value (two for `fma`) and an f32, in f32.
pub(crate) fn mixed(op: &str, half: Ty, m: Mode) -> Option<AluFn> {
    fn wide<const BF: bool>(x: u64) -> u64 {
        let value = if BF { BF16.decode(x & 0xffff) } else { F16.decode(x & 0xffff) };
        of_f32(value as f32)
    }
    fn run<O: FloatOp, const TWO: bool, const BF: bool, const ROUND: usize, const SAT: bool>(
        a: u64,
        b: u64,
        c: u64,
    ) -> u64 {
        // `fma d, a, b, c` widens a and b; `add d, a, c` and `sub d, a, c` widen a alone.
        let b = if TWO { wide::<BF>(b) } else { b };
        float_run::<O, ROUND, false, SAT>(wide::<BF>(a), b, c)
    }
    fn pick<O: FloatOp, const TWO: bool>(half: Ty, m: Mode) -> Option<AluFn> {
        fn rounded<O: FloatOp, const TWO: bool, const BF: bool, const SAT: bool>(m: Mode) -> AluFn {
            match m.round {
                Round::Zero => run::<O, TWO, BF, 1, SAT>,
                Round::Down => run::<O, TWO, BF, 2, SAT>,
                Round::Up => run::<O, TWO, BF, 3, SAT>,
                _ => run::<O, TWO, BF, 0, SAT>,
            }
        }
        Some(match (half, m.sat) {
            (Ty::F16, false) => rounded::<O, TWO, false, false>(m),
            (Ty::F16, true) => rounded::<O, TWO, false, true>(m),
            (Ty::Bf16, false) => rounded::<O, TWO, true, false>(m),
            (Ty::Bf16, true) => rounded::<O, TWO, true, true>(m),
            _ => return None,
        })
    }
    match op {
        "add" => pick::<Add, false>(half, m),
        "sub" => pick::<Sub, false>(half, m),
        "fma" => pick::<Fma, true>(half, m),
        _ => None,
    }
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
        let smallest = if format == F16 { -14 } else { -126 };
        let subnormal = v.abs() < crate::arith::minifloat::power(smallest);
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
    let code = format.encode(value, Round::Nearest, false);
    let subnormal = code & 0x7fff < 1 << format.mantissa;
    if flags & FLUSH != 0 && subnormal { code & 0x8000 } else { code }
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

pub(crate) fn half_op(ty: Ty, op: &str, m: Mode) -> Option<AluFn> {
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

/// Packed pairs of f32 (`add.f32x2` and friends) in four roundings.
pub(crate) fn float32x2(op: &str, m: Mode) -> Option<AluFn> {
    fn run<O: FloatOp, const ROUND: usize, const FTZ: bool>(a: u64, b: u64, c: u64) -> u64 {
        let f = float_run::<O, ROUND, FTZ, false>;
        f(a, b, c) | f(a >> 32, b >> 32, c >> 32) << 32
    }
    fn pick<O: FloatOp>(m: Mode) -> Option<AluFn> {
        Some(match (m.round, m.ftz) {
            (Round::Nearest, false) => run::<O, 0, false>,
            (Round::Nearest, true) => run::<O, 0, true>,
            (Round::Zero, false) => run::<O, 1, false>,
            (Round::Zero, true) => run::<O, 1, true>,
            (Round::Down, false) => run::<O, 2, false>,
            (Round::Down, true) => run::<O, 2, true>,
            (Round::Up, false) => run::<O, 3, false>,
            (Round::Up, true) => run::<O, 3, true>,
            (Round::NearestAway, _) => return None,
        })
    }
    if m.sat || m.nan || m.relu {
        return None;
    }
    match op {
        "add" => pick::<Add>(m),
        "sub" => pick::<Sub>(m),
        "mul" => pick::<Mul>(m),
        "fma" => pick::<Fma>(m),
        _ => None,
    }
}
