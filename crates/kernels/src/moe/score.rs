//! Scores of experts. Every instruction is correctly rounded, so that all devices, and the CPU, compute the same bits.
//!
//! ```
//! use oxigemm_kernels::moe::score::on_host::{exp, log1p};
//!
//! assert!((f64::from(exp(-3.0)) / (-3.0f64).exp() - 1.0).abs() < 2e-7);
//! assert!((f64::from(log1p(0.25)) / 0.25f64.ln_1p() - 1.0).abs() < 3e-7);
//! ```

use oxigemm_ptx::F32;

use super::key;

/// Score of an expert, as a function of its logit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scoring {
    /// `exp(x - max) / sum of exp`, over the experts that are on.
    #[default]
    Softmax = 0,
    /// `1 / (1 + exp(-x))`.
    Sigmoid = 1,
    /// `sqrt(log(1 + exp(x)))`.
    SqrtSoftplus = 2,
}

/// Below this, the exponential counts as 0.
const LOWEST: f32 = -86.0;
/// 1.5 * 2²³: a sum with it has the nearest integer in its low bits.
const MAGIC: f32 = 12_582_912.0;
const LN_2: f32 = std::f32::consts::LN_2;
/// What [`LN_2`] lacks of ln 2.
const LN_2_REST: f32 = -1.904_654_3e-9;
/// Taylor series of the exponential, highest power first.
const EXP: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
/// Taylor series of `atanh(t) / t` in t², highest power first.
const ATANH: [f32; 8] = [1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0];

/// `exp(x)` for x of 0 or less, within 2 units in the last place; 0 below -86.
#[track_caller]
pub(super) fn exp(x: F32<'_>) -> F32<'_> {
    let shifted = x.fma(std::f32::consts::LOG2_E, MAGIC);
    let whole = shifted - MAGIC;
    let rest = whole.fma(-LN_2_REST, whole.fma(-LN_2, x));
    let power = shifted.bitcast::<u32>() << 23;
    let value = (polynomial(rest, EXP).bitcast::<u32>() + power).bitcast::<f32>();
    x.lt(LOWEST).select(0.0, value)
}

/// `log(1 + x)` for x from 0 to 1.
#[track_caller]
fn log1p(x: F32<'_>) -> F32<'_> {
    let t = x * (x + 2.0).reciprocal();
    polynomial(t * t, ATANH) * (t + t)
}

#[track_caller]
fn polynomial<'k>(x: F32<'k>, coefficients: [f32; 8]) -> F32<'k> {
    let [first, second, others @ ..] = coefficients;
    let start = x.fma(first, second);
    others.into_iter().fold(start, |sum, coefficient| sum.fma(x, coefficient))
}

/// A logit for softmax and its like: infinities are the largest numbers, and so is NaN the smallest.
#[track_caller]
pub(super) fn finite(x: F32<'_>) -> F32<'_> {
    x.max(-f32::MAX).min(f32::MAX)
}

/// `exp(x - max)`; 0 for NaN.
#[track_caller]
pub(super) fn exp_below<'k>(x: F32<'k>, max: F32<'k>) -> F32<'k> {
    key::is_nan(x).select(0.0, exp(finite(x) - max))
}

/// Sigmoid; 0 for NaN.
#[track_caller]
pub(super) fn sigmoid(x: F32<'_>) -> F32<'_> {
    let e = exp(finite(x).abs().negate());
    let numerator = x.lt(0.0).select(e, 1.0);
    key::is_nan(x).select(0.0, numerator * (e + 1.0).reciprocal())
}

/// `sqrt(softplus(x))`; 0 for NaN.
#[track_caller]
pub(super) fn sqrt_softplus(x: F32<'_>) -> F32<'_> {
    let x_finite = finite(x);
    let softplus = x_finite.max(0.0) + log1p(exp(x_finite.abs().negate()));
    key::is_nan(x).select(0.0, softplus.sqrt())
}

/// The same on the host, bit for bit.
pub mod on_host {
    use super::{ATANH, EXP, LN_2, LN_2_REST, LOWEST, MAGIC};

    /// `exp(x)` for x of 0 or less, within 2 units in the last place; 0 below -86.
    pub fn exp(x: f32) -> f32 {
        if x < LOWEST {
            return 0.0;
        }
        let shifted = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
        let whole = shifted - MAGIC;
        let rest = whole.mul_add(-LN_2_REST, whole.mul_add(-LN_2, x));
        f32::from_bits(polynomial(rest, EXP).to_bits().wrapping_add(shifted.to_bits() << 23))
    }

    /// `log(1 + x)` for x from 0 to 1.
    pub fn log1p(x: f32) -> f32 {
        let t = x * (1.0 / (x + 2.0));
        polynomial(t * t, ATANH) * (t + t)
    }

    fn polynomial(x: f32, coefficients: [f32; 8]) -> f32 {
        coefficients
            .into_iter()
            .reduce(|sum, coefficient| sum.mul_add(x, coefficient))
            .expect("there are some")
    }

    /// A logit without infinities and NaN.
    fn finite(x: f32) -> f32 {
        if x.is_nan() { -f32::MAX } else { x.clamp(-f32::MAX, f32::MAX) }
    }

    /// `exp(x - max)`; 0 for NaN.
    pub fn exp_below(x: f32, max: f32) -> f32 {
        if x.is_nan() { 0.0 } else { exp(finite(x) - max) }
    }

    /// The largest of some logits, as softmax subtracts it.
    pub fn max(logits: impl Iterator<Item = f32>) -> f32 {
        logits.map(finite).fold(-f32::MAX, f32::max)
    }

    /// Sigmoid; 0 for NaN.
    pub fn sigmoid(x: f32) -> f32 {
        if x.is_nan() {
            return 0.0;
        }
        let e = exp(-finite(x).abs());
        (if x < 0.0 { e } else { 1.0 }) * (1.0 / (e + 1.0))
    }

    /// `sqrt(softplus(x))`; 0 for NaN.
    pub fn sqrt_softplus(x: f32) -> f32 {
        if x.is_nan() {
            return 0.0;
        }
        let x = finite(x);
        (x.max(0.0) + log1p(exp(-x.abs()))).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::on_host::{exp, exp_below, log1p, sigmoid, sqrt_softplus};

    fn relative(found: f32, expected: f64) -> f64 {
        (f64::from(found) / expected - 1.0).abs()
    }

    #[test]
    fn functions_are_within_a_few_units_of_exact() {
        for i in 0..=8_600 {
            let x = -0.01 * i as f32;
            let exact = f64::from(x);
            assert!(relative(exp(x), exact.exp()) < 1.5e-7, "exp({x})");
            assert!(relative(sigmoid(x), 1.0 / (1.0 + (-exact).exp())) < 3e-7, "sigmoid({x})");
            assert!(relative(sigmoid(-x), 1.0 / (1.0 + exact.exp())) < 2e-7, "sigmoid({})", -x);
            assert!(relative(sqrt_softplus(x), exact.exp().ln_1p().sqrt()) < 4e-7, "softplus({x})");
            let softplus = -exact + exact.exp().ln_1p();
            assert!(relative(sqrt_softplus(-x), softplus.sqrt()) < 2e-7, "softplus({})", -x);
        }
        for i in 1..=1000 {
            let x = 0.001 * i as f32;
            assert!(relative(log1p(x), f64::from(x).ln_1p()) < 4e-7, "log1p({x})");
        }
    }

    #[test]
    fn functions_have_limits_and_take_nan() {
        assert_eq!([exp(0.0), exp(-87.0), exp(f32::NEG_INFINITY)], [1.0, 0.0, 0.0]);
        assert_eq!([sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY), sigmoid(f32::NAN)], [1.0, 0.0, 0.0]);
        assert_eq!(sqrt_softplus(f32::NEG_INFINITY), 0.0);
        assert!(sqrt_softplus(f32::INFINITY).is_finite());
        assert_eq!([exp_below(f32::INFINITY, f32::MAX), exp_below(f32::NAN, 1.0)], [1.0, 0.0]);
        assert_eq!(exp_below(f32::NEG_INFINITY, f32::MAX), 0.0);
    }
}
