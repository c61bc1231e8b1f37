//! MXFP4 to FP8 without loss: e2m1 codes become e4m3 codes of the same value, with other powers of two as scales.
//!
//! An e2m1 value times a power of two has one or two significant bits. e4m3 holds such a number exactly from 2⁻⁹ (its
//! last subnormal bit) to 1.5 · 2⁸, so values of 32s with different scales fit in one block as long as the largest and
//! the last bit of the smallest are at most 17 binades apart.

use std::sync::LazyLock;

use rayon::prelude::*;

use super::recipe::Recipe;
use super::weight::{MX_BLOCK, QuantizedWeight, WeightScales};
use crate::cast::decode_e2m1;
use crate::error::{Error, Result};
use crate::parallel::THREADS;
use crate::tensor::dtype::encode_e4m3;

/// Exponent of the largest e4m3 codes, and of the last bit of the smallest.
const TOP: i32 = 8;
const BOTTOM: i32 = -9;
/// The smallest power of two that a scale may be: no f32 is subnormal for a kernel.
const SMALLEST_SCALE: i32 = -126;
/// Of the e4m3 codes that are NaN.
const NAN_CODE: u8 = 0x7f;
const NAN_EXPONENT: u8 = 255;

/// FP8 codes and scales of MXFP4 weights: see [`widen_mxfp4`].
#[derive(Clone, Debug, PartialEq)]
pub struct Widened {
    /// e4m3, `[G, N, K]`.
    pub codes: Vec<u8>,
    /// f32 powers of two, `[G, ceil(N / rows), ceil(K / columns)]`.
    pub scales: Vec<f32>,
    /// Blocks whose values lie too far apart for a common scale: their small values are rounded.
    pub lossy_blocks: usize,
    /// Values that were rounded.
    pub changed: usize,
}

/// MXFP4 weights as FP8 with a scale for `block`, rows and columns: `[128, 128]`, or any other with columns in
/// multiples of 32. With `[1, 32]` every value is exact, whatever the weights are.
///
/// The scale of a block is the power of two that makes its largest magnitude 2⁸ to 1.5 · 2⁸, but at least 2⁻¹²⁶. A
/// value is exact if its last bit is not below 2⁻⁹ then, and is the nearest e4m3 otherwise. A block of zeros has the
/// scale 1. A 32 whose scale is NaN has codes of NaN.
///
/// # Errors
/// [`Error::DType`] for weights of another recipe, [`Error::Shape`] for such a block.
///
/// ```
/// use oxigemm::layers::{QuantizedWeight, Recipe, WeightScales, widen_mxfp4};
///
/// // Two 32s of a row, 13 binades apart: 6 * 2^6 and 0.5 * 2^-7.
/// let codes = [[0x77; 16], [0x11; 16]].concat();
/// let scales = WeightScales::E8m0 { block: [1, 32], values: vec![127 + 6, 127 - 7] };
/// let weight = QuantizedWeight::from_parts(Recipe::Mxfp4, [1, 1, 64], codes, scales)?;
/// let wide = widen_mxfp4(&weight, [128, 128])?;
/// assert_eq!((&wide.scales[..], wide.changed), (&[1.0][..], 0));
/// # Ok::<(), oxigemm::Error>(())
/// ```
pub fn widen_mxfp4(weight: &QuantizedWeight, block: [usize; 2]) -> Result<Widened> {
    let WeightScales::E8m0 { values: exponents, .. } = &weight.scales else {
        return Err(not_mxfp4(weight.recipe));
    };
    if weight.recipe != Recipe::Mxfp4 {
        return Err(not_mxfp4(weight.recipe));
    }
    let ([groups, n, k], [down, across]) = (weight.dims, block);
    if down == 0 || across == 0 || across % MX_BLOCK != 0 {
        return Err(Error::Shape {
            argument: "block",
            expected: "1 or more rows by a multiple of 32 columns".to_owned(),
            found: format!("{block:?}"),
        });
    }
    let (bands, columns) = (n.div_ceil(down), k.div_ceil(across));
    let mut wide = Widened {
        codes: vec![0; groups * n * k],
        scales: vec![1.0; groups * bands * columns],
        lossy_blocks: 0,
        changed: 0,
    };
    if wide.codes.is_empty() {
        return Ok(wide);
    }
    let sources = Sources { codes: &weight.codes, exponents, k };
    // A band is the rows of a group that share scales. Bands of a group are as long, but for the last one.
    let mut work = Vec::with_capacity(groups * bands);
    let (mut codes, mut scales) = (&mut wide.codes[..], &mut wide.scales[..]);
    for band in 0..groups * bands {
        let (group, within) = (band / bands, band % bands);
        let rows = down.min(n - within * down);
        let (own, rest) = codes.split_at_mut(rows * k);
        let (own_scales, rest_scales) = scales.split_at_mut(columns);
        (codes, scales) = (rest, rest_scales);
        work.push((group * n + within * down, own, own_scales));
    }
    let lost: [usize; 2] = THREADS.run(|_| {
        work.into_par_iter()
            .map(|(first, codes, scales)| sources.widen_band(first, codes, scales, across))
            .reduce(|| [0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
    });
    [wide.lossy_blocks, wide.changed] = lost;
    Ok(wide)
}

fn not_mxfp4(recipe: Recipe) -> Error {
    Error::DType {
        argument: "weight",
        expected: "mxfp4 weights".to_owned(),
        found: format!("{recipe} weights"),
    }
}

/// MXFP4 in memory: rows of `k / 2` bytes, and `ceil(k / 32)` exponents.
struct Sources<'a> {
    codes: &'a [u8],
    exponents: &'a [u8],
    k: usize,
}

impl Sources<'_> {
    /// The bytes of a part of a row that shares a scale, and its exponent.
    fn piece(&self, row: usize, column: usize) -> (&[u8], u8) {
        let per_row = self.k.div_ceil(MX_BLOCK);
        let end = (column + MX_BLOCK).min(self.k);
        let bytes = &self.codes[(row * self.k + column) / 2..(row * self.k + end) / 2];
        (bytes, self.exponents[row * per_row + column / MX_BLOCK])
    }

    /// Widens a band of rows from `first` on; counts blocks that lose something, and values that change.
    fn widen_band(&self, first: usize, codes: &mut [u8], scales: &mut [f32], across: usize) -> [usize; 2] {
        let rows = codes.len() / self.k;
        let mut lost = [0; 2];
        for (block, scale) in scales.iter_mut().enumerate() {
            let columns = block * across..((block + 1) * across).min(self.k);
            let pieces = || {
                (0..rows).flat_map(|row| columns.clone().step_by(MX_BLOCK).map(move |column| [row, column]))
            };
            let (mut top, mut bottom) = (i32::MIN, i32::MAX);
            for [row, column] in pieces() {
                let (bytes, exponent) = self.piece(first + row, column);
                let used = bytes.iter().fold(0u16, |used, &byte| used | USED[usize::from(byte)]);
                // The magnitudes that are not 0; signs do not matter.
                let used = ((used | used >> 8) & 0xfe) as u8;
                if used != 0 && exponent != NAN_EXPONENT {
                    let shift = i32::from(exponent) - 127;
                    top = top.max(shift + EXPONENTS[(7 - used.leading_zeros()) as usize]);
                    bottom = bottom.min(shift + lowest_bit(used));
                }
            }
            let base = if top == i32::MIN { 0 } else { (top - TOP).max(SMALLEST_SCALE) };
            *scale = f32::from_bits(((base + 127) as u32) << 23);
            lost[0] += usize::from(bottom != i32::MAX && bottom - base < BOTTOM);
            for [row, column] in pieces() {
                let (bytes, exponent) = self.piece(first + row, column);
                let table = WideCodes::new(exponent, base);
                let to = &mut codes[row * self.k + column..][..2 * bytes.len()];
                for (pair, &byte) in to.chunks_exact_mut(2).zip(bytes) {
                    let [low, high] = [byte & 15, byte >> 4].map(usize::from);
                    pair.copy_from_slice(&[table.codes[low], table.codes[high]]);
                    if table.changed != 0 {
                        lost[1] +=
                            usize::from(table.changed >> low & 1) + usize::from(table.changed >> high & 1);
                    }
                }
            }
        }
        lost
    }
}

/// A bit for each of the two codes in a byte.
static USED: LazyLock<[u16; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| 1 << (byte & 15) | 1 << (byte >> 4)));

/// Exponents of e2m1 magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6, and of their last bits.
const EXPONENTS: [i32; 8] = [0, -1, 0, 0, 1, 1, 2, 2];
const LAST_BITS: [i32; 8] = [0, -1, 0, -1, 1, 0, 2, 1];

/// The exponent of the lowest last bit of some magnitudes.
fn lowest_bit(used: u8) -> i32 {
    (1..8).filter(|i| used >> i & 1 == 1).map(|i| LAST_BITS[i]).min().unwrap_or(0)
}

/// The e4m3 codes of the 16 e2m1 codes of a 32, and a bit for each that is not exact.
struct WideCodes {
    codes: [u8; 16],
    changed: u16,
}

/// For each distance between the exponent of a 32 and that of its block.
static TABLES: LazyLock<Vec<WideCodes>> =
    LazyLock::new(|| (LOWEST..=HIGHEST).map(WideCodes::of_distance).collect());
/// Below, every code rounds to 0. Above, none is asked for: the largest magnitude fits.
const LOWEST: i32 = BOTTOM - 4;
const HIGHEST: i32 = TOP + 1;

impl WideCodes {
    fn new(exponent: u8, base: i32) -> &'static WideCodes {
        static NAN: WideCodes = WideCodes { codes: [NAN_CODE; 16], changed: 0 };
        if exponent == NAN_EXPONENT {
            return &NAN;
        }
        let distance = i32::from(exponent) - 127 - base;
        // A 32 of zeros may have any exponent: codes of 0 are the same in all tables.
        &TABLES[(distance.clamp(LOWEST, HIGHEST) - LOWEST) as usize]
    }

    fn of_distance(distance: i32) -> WideCodes {
        let value = |code: usize| decode_e2m1(code as u8) * 2f32.powi(distance);
        let codes = std::array::from_fn(|code| encode_e4m3(value(code)));
        let wrong =
            |code: &usize| crate::tensor::dtype::E4M3_VALUES[usize::from(codes[*code])] != value(*code);
        WideCodes { codes, changed: (0..16).filter(wrong).fold(0, |bits, code| bits | 1 << code) }
    }
}
