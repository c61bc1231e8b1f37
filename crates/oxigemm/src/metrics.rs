//! How far a result is from its reference.
//!
//! All sums are in `f64` and in a fixed order, whatever the number of threads. A NaN in either argument makes the
//! result NaN, so compare as `diff < limit` and not as `!(diff > limit)`.

use rayon::prelude::*;

use crate::parallel::THREADS;

/// Elements that one thread sums before the partial sums are added.
const CHUNK: usize = 1 << 14;

/// The distance that the peer's tests use: `1 - 2·<x,y> / (|x|² + |y|²)`.
///
/// It is 0 for equal arguments (also when both are all zero), grows with the square of the relative error, and is
/// not disturbed by single elements near zero.
///
/// # Panics
/// If the lengths differ.
///
/// ```
/// use oxigemm::metrics::calc_diff;
///
/// assert_eq!(calc_diff(&[1.0f32, 2.0], &[1.0f64, 2.0]), 0.0);
/// assert_eq!(calc_diff(&[1.0f32, 0.0], &[0.0f32, 1.0]), 1.0);
/// assert!(calc_diff(&[1.0f32, 2.0], &[1.0f32, 2.001]) < 1e-6);
/// ```
#[must_use]
pub fn calc_diff<X, Y>(x: &[X], y: &[Y]) -> f64
where
    X: Copy + Into<f64> + Sync,
    Y: Copy + Into<f64> + Sync,
{
    // As |x - y|² / (|x|² + |y|²), which is the same and loses no digits where x and y are close.
    let sums = fold(
        x,
        y,
        [0.0; 2],
        |[apart, size], x, y| [apart + (x - y) * (x - y), size + (x * x + y * y)],
        |a, b| [a[0] + b[0], a[1] + b[1]],
    );
    if sums[1] == 0.0 { 0.0 } else { sums[0] / sums[1] }
}

/// The largest `|x - reference|`.
///
/// # Panics
/// If the lengths differ.
///
/// ```
/// assert_eq!(oxigemm::metrics::max_abs_error(&[1.0f32, -2.0], &[1.0f32, 2.0]), 4.0);
/// ```
#[must_use]
pub fn max_abs_error<X, Y>(x: &[X], reference: &[Y]) -> f64
where
    X: Copy + Into<f64> + Sync,
    Y: Copy + Into<f64> + Sync,
{
    fold(x, reference, 0.0, |worst, x, y| larger(worst, error(x, y)), larger)
}

/// The largest `|x - reference| / |reference|`: infinite where the reference is 0 and `x` is not.
///
/// # Panics
/// If the lengths differ.
///
/// ```
/// assert_eq!(oxigemm::metrics::max_rel_error(&[1.5f32, 0.0], &[2.0f32, 0.0]), 0.25);
/// ```
#[must_use]
pub fn max_rel_error<X, Y>(x: &[X], reference: &[Y]) -> f64
where
    X: Copy + Into<f64> + Sync,
    Y: Copy + Into<f64> + Sync,
{
    let relative = |x: f64, y: f64| if x == y { 0.0 } else { error(x, y) / y.abs() };
    fold(x, reference, 0.0, |worst, x, y| larger(worst, relative(x, y)), larger)
}

/// Equal infinities are no error.
fn error(x: f64, y: f64) -> f64 {
    if x == y { 0.0 } else { (x - y).abs() }
}

/// The maximum, but NaN wins.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

fn fold<X, Y, S>(
    x: &[X],
    y: &[Y],
    start: S,
    step: impl Fn(S, f64, f64) -> S + Sync,
    join: impl Fn(S, S) -> S,
) -> S
where
    X: Copy + Into<f64> + Sync,
    Y: Copy + Into<f64> + Sync,
    S: Copy + Send + Sync,
{
    assert_eq!(x.len(), y.len(), "compared data must have the same length");
    let part =
        |(x, y): (&[X], &[Y])| x.iter().zip(y).fold(start, |state, (&x, &y)| step(state, x.into(), y.into()));
    let parts: Vec<S> = THREADS.run(|_| x.par_chunks(CHUNK).zip(y.par_chunks(CHUNK)).map(part).collect());
    parts.into_iter().fold(start, join)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calc_diff_is_the_formula() {
        let x = crate::random::normals(1, 100_000);
        let y: Vec<f32> =
            x.iter().zip(crate::random::normals(2, 100_000)).map(|(x, e)| x + 0.1 * e).collect();
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        let formula = 1.0 - 2.0 * dot(&x, &y) / (dot(&x, &x) + dot(&y, &y));
        assert!((calc_diff(&x, &y) - formula).abs() < 1e-12);
        assert!((formula - 0.005).abs() < 0.001, "half the square of a relative error of 0.1");
    }

    #[test]
    fn nothing_and_zeros_are_equal() {
        assert_eq!(calc_diff::<f32, f32>(&[], &[]), 0.0);
        assert_eq!(calc_diff(&[0.0f32; 3], &[0.0f64; 3]), 0.0);
        assert_eq!(max_abs_error::<f32, f32>(&[], &[]), 0.0);
    }

    #[test]
    fn nan_is_never_within_a_limit() {
        let mut x = vec![1.0f32; 3 * CHUNK];
        let y = x.clone();
        x[CHUNK + 5] = f32::NAN;
        for error in [calc_diff(&x, &y), max_abs_error(&x, &y), max_rel_error(&y, &x)] {
            assert!(error.is_nan());
        }
    }

    #[test]
    fn relative_to_zero_is_infinite() {
        assert_eq!(max_rel_error(&[1e-30f64], &[0.0f64]), f64::INFINITY);
        assert_eq!(max_abs_error(&[f32::INFINITY], &[f32::INFINITY]), 0.0);
    }
}
