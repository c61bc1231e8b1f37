//! f64 arithmetic: the host's for rounding to nearest, and the sign of what it misses for the directed modes.

use crate::arith::AluFn;
use crate::arith::float::{Mode, exact_zero, f64_of};
use crate::arith::minifloat::Round;

/// Directions as constants, so that each has its own functions.
const ROUNDS: [Round; 4] = [Round::Nearest, Round::Zero, Round::Down, Round::Up];

/// An f64 result rounded in the direction that `ROUNDS[ROUND]` names, from the nearest one and the sign of
/// what it misses.
fn directed<const ROUND: usize>(nearest: f64, error: f64) -> u64 {
    if error == 0.0 || error.is_nan() {
        return nearest.to_bits();
    }
    let down = match ROUNDS[ROUND] {
        Round::Down => true,
        Round::Up => false,
        _ => nearest > 0.0,
    };
    match (down, error < 0.0) {
        (true, true) => nearest.next_down().to_bits(),
        (false, false) => nearest.next_up().to_bits(),
        _ => nearest.to_bits(),
    }
}

/// The exact error of a sum.
fn sum_error(a: f64, b: f64, s: f64) -> f64 {
    let t = s - a;
    (a - (s - t)) + (b - t)
}

/// f64 with directed rounding; the error terms are exact unless they underflow.
fn float64_directed<const ROUND: usize>(op: &str) -> Option<AluFn> {
    Some(match op {
        "add" => |a, b, _| {
            let (a, b) = (f64_of(a), f64_of(b));
            let s = exact_zero(a + b, a, b, ROUNDS[ROUND]);
            directed::<ROUND>(s, sum_error(a, b, a + b))
        },
        "sub" => |a, b, _| {
            let (a, b) = (f64_of(a), -f64_of(b));
            let s = exact_zero(a + b, a, b, ROUNDS[ROUND]);
            directed::<ROUND>(s, sum_error(a, b, a + b))
        },
        "mul" => |a, b, _| {
            let (a, b) = (f64_of(a), f64_of(b));
            directed::<ROUND>(a * b, a.mul_add(b, -(a * b)))
        },
        "fma" | "mad" => |a, b, c| {
            let (a, b, c) = (f64_of(a), f64_of(b), f64_of(c));
            // The product as two numbers, then the error of adding the third to both.
            let (p, low) = (a * b, a.mul_add(b, -(a * b)));
            let s = a.mul_add(b, c);
            let (high, rest) = (p + c, sum_error(p, c, p + c));
            directed::<ROUND>(exact_zero(s, p, c, ROUNDS[ROUND]), (high - s) + (rest + low))
        },
        "div" => |a, b, _| quotient::<ROUND>(f64_of(a), f64_of(b)),
        "rcp" => |a, _, _| quotient::<ROUND>(1.0, f64_of(a)),
        "sqrt" => |a, _, _| {
            let a = f64_of(a);
            directed::<ROUND>(a.sqrt(), (-a.sqrt()).mul_add(a.sqrt(), a))
        },
        _ => return None,
    })
}

fn quotient<const ROUND: usize>(a: f64, b: f64) -> u64 {
    let q = a / b;
    directed::<ROUND>(q, (-q).mul_add(b, a) * b.signum())
}

pub(crate) fn float64(op: &str, m: Mode) -> Option<AluFn> {
    match m.round {
        Round::Zero => return float64_directed::<1>(op),
        Round::Down => return float64_directed::<2>(op),
        Round::Up => return float64_directed::<3>(op),
        _ => {}
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
