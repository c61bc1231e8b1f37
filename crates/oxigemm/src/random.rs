//! Random test data that is the same on every machine.
//!
//! A value depends only on the seed and its index: a counter goes through the mixing function of SplitMix64, and a
//! Box-Muller transform makes normals of it. So data can be made in parallel and in part, and a problem is known by
//! its seed. A stateful generator gives neither, and the logarithm and sines of the system's C library differ in
//! the last bit between versions; those of the `libm` crate are Rust code and do not.

use rayon::prelude::*;

use crate::parallel::THREADS;

/// The standard normal with this seed and index.
///
/// ```
/// use oxigemm::random;
///
/// assert_eq!(random::normals(7, 100)[42], random::normal(7, 42));
/// ```
#[must_use]
pub fn normal(seed: u64, index: u64) -> f32 {
    let (even, odd) = normal_pair(seed, index / 2);
    if index.is_multiple_of(2) { even } else { odd }
}

/// The first `len` standard normals of a seed.
///
/// ```
/// let x = oxigemm::random::normals(1, 10_000);
/// let mean = x.iter().sum::<f32>() / 10_000.0;
/// assert!(mean.abs() < 0.05);
/// ```
#[must_use]
pub fn normals(seed: u64, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    let draw = |(chunk, values): (usize, &mut [f32])| {
        for (i, pair) in values.chunks_mut(2).enumerate() {
            let (even, odd) = normal_pair(seed, chunk as u64 * 2048 + i as u64);
            pair[0] = even;
            if let Some(second) = pair.get_mut(1) {
                *second = odd;
            }
        }
    };
    THREADS.run(|_| values.par_chunks_mut(4096).enumerate().for_each(draw));
    values
}

/// 64 uniformly random bits of a seed and an index.
#[must_use]
pub fn bits(seed: u64, index: u64) -> u64 {
    // The seed is mixed first, so that neighbouring seeds do not give shifted copies of one sequence.
    mix(mix(seed).wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn normal_pair(seed: u64, index: u64) -> (f32, f32) {
    let bits = bits(seed, index);
    // Two uniforms of 24 bits, the first in (0, 1] for the logarithm.
    let u = ((bits >> 40) as f32 + 1.0) * (1.0 / 16_777_216.0);
    let v = (bits & 0xff_ffff) as f32 * (1.0 / 16_777_216.0);
    let radius = (-2.0 * libm::logf(u)).sqrt();
    let (sin, cos) = libm::sincosf(v * std::f32::consts::TAU);
    (radius * cos, radius * sin)
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_seed_never_change() {
        let bits: Vec<u32> = (0..4).map(|i| normal(0x5eed, i).to_bits()).collect();
        assert_eq!(bits, [0xbf54_03a7, 0x3eeb_3807, 0xbfe3_cc64, 0xbf20_64d8]);
    }

    #[test]
    fn the_moments_are_those_of_a_normal() {
        let values = normals(3, 1 << 18);
        let moment =
            |power: i32| values.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / values.len() as f64;
        assert!(moment(1).abs() < 0.01, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "variance {}", moment(2));
        assert!(moment(3).abs() < 0.04, "skewness {}", moment(3));
        assert!((moment(4) - 3.0).abs() < 0.1, "kurtosis {}", moment(4));
        let tail = values.iter().filter(|x| x.abs() > 3.0).count() as f64 / values.len() as f64;
        assert!((tail - 0.0027).abs() < 0.0005, "beyond three sigma {tail}");
    }

    #[test]
    fn lengths_and_seeds_are_independent() {
        let long = normals(9, 10_001);
        assert_eq!(normals(9, 4097), long[..4097]);
        assert!(normals(9, 0).is_empty());
        let other = normals(10, 10_001);
        let correlation: f32 = long.iter().zip(&other).map(|(x, y)| x * y).sum::<f32>() / 10_001.0;
        assert!(correlation.abs() < 0.05, "{correlation}");
    }
}
