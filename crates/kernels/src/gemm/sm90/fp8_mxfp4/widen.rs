//! Codes of e2m1 widened to e4m3, times powers of two, in registers.
//!
//! e4m3 holds each of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times 2^-5 to 2^6 as 0 or a normal number, whose codes differ by 8 from
//! one power to the next. So a table of the eight codes of the lowest power is all there is to keep, and a
//! [fold](Table::new) is an addition to it: exact, or not done. Byte permutes look four codes up at a time.

use oxigemm_ptx::{Kernel, U32};

/// Exponents that may lie between the lowest and the highest scale of a row that are folded into its codes.
pub(super) const FOLDS: u32 = 11;
/// Codes that nothing is folded into stand for their numbers times 2 to the minus this.
pub(super) const LOWEST: u32 = 5;
/// One exponent in e4m3 codes.
pub(super) const EXPONENT: u32 = 8;

/// e4m3 codes of the eight magnitudes of e2m1 times 2^-5, from the lowest byte on.
const MAGNITUDES: [u32; 2] = [0x1410_0800, 0x2420_1c18];
/// The bytes that are not of 0, whose code is the same with any power.
const NOT_ZERO: [u32; 2] = [0x0101_0100, 0x0101_0101];
/// Magnitudes of packed codes.
const MAGNITUDE_BITS: u32 = 0x7777_7777;
/// Signs of e4m3 codes.
const SIGN_BITS: u32 = 0x8080_8080;
/// Of codes and of codes a half byte further up: bytes whose upper halves are the lower four codes, and the upper four.
const UPPER_HALVES: [u32; 2] = [0x1504, 0x3726];

/// e4m3 codes of the eight magnitudes, times a power of two.
#[derive(Clone, Copy)]
pub(super) struct Table<'k>([U32<'k>; 2]);

impl<'k> Table<'k> {
    /// With this fold, times [`EXPONENT`].
    pub fn new(fold: U32<'k>) -> Self {
        Table([0, 1].map(|half| fold.mad(NOT_ZERO[half], MAGNITUDES[half])))
    }

    /// Eight packed codes as e4m3, four to a word, in their order.
    pub fn widen(&self, codes: U32<'k>) -> [U32<'k>; 2] {
        let Table([low, high]) = *self;
        let (magnitudes, up) = (codes & MAGNITUDE_BITS, codes << 4);
        let select = [magnitudes, magnitudes >> 16];
        [0, 1].map(|half| {
            let signs = codes.permute_bytes(up, UPPER_HALVES[half]) & SIGN_BITS;
            low.permute_bytes(high, select[half]) | signs
        })
    }
}

/// How the four scales of a row in a stage are applied.
pub(super) struct Applied<'k> {
    /// The four exponents above the lowest, times [`EXPONENT`], in the order of the scales.
    pub folds: U32<'k>,
    /// The scale that is left for all of them, as bits of FP32: of NaN where one of the four is.
    pub scale: U32<'k>,
    /// The exponents that lie between the lowest of the scales and the highest.
    pub spread: U32<'k>,
}

impl<'k> Applied<'k> {
    /// The largest exponent that codes without a fold may have as their scale: 2^127 in FP32.
    const LARGEST: u32 = 254 - LOWEST;
    /// The exponent of NaN.
    const NAN: u32 = 0xff;
    const NAN_BITS: u32 = 0x7fff_ffff;

    /// Of a word of four exponents.
    pub fn new(k: &'k Kernel, word: U32<'k>) -> Self {
        let [first, others @ ..] = [0, 1, 2, 3].map(|nth| byte(k, word, nth));
        let least = others.into_iter().fold(first, |least, x| least.min(x)).min(Self::LARGEST);
        let most = others.into_iter().fold(first, |most, x| most.max(x));
        Applied {
            folds: (word - least * 0x0101_0101) * EXPONENT,
            scale: Self::scale(least, most),
            spread: most - least,
        }
    }

    /// Of one exponent.
    pub fn of_one(exponent: U32<'k>) -> Self {
        let least = exponent.min(Self::LARGEST);
        let above = exponent - least;
        Applied { folds: above * EXPONENT, scale: Self::scale(least, exponent), spread: above }
    }

    fn scale(least: U32<'k>, most: U32<'k>) -> U32<'k> {
        most.eq(Self::NAN).select(Self::NAN_BITS, (least + LOWEST) << 23)
    }
}

/// A byte of a word.
pub(super) fn byte<'k>(k: &'k Kernel, word: U32<'k>, nth: u32) -> U32<'k> {
    word.permute_bytes(k.constant(0), 0x4440 + nth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_ptx::Target;

    const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    /// A normal number of e4m3, or 0.
    fn e4m3(code: u32) -> f64 {
        let (exponent, mantissa) = ((code >> 3 & 15) as i32, f64::from(code & 7));
        assert!(code == 0 || (exponent > 0 && code < 0x7f), "{code:#x} is no normal number");
        if code == 0 { 0.0 } else { (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7) }
    }

    #[test]
    fn tables_hold_every_magnitude_times_every_power() {
        let k = Kernel::new("table", Target::Sm90a);
        for fold in 0..=FOLDS {
            let Table(words) = Table::new(k.constant(fold * EXPONENT));
            let words = words.map(|word| word.as_constant().expect("all of it is known"));
            let codes = words.map(u32::to_le_bytes).concat();
            for (code, magnitude) in codes.iter().zip(E2M1) {
                let power = 2f64.powi(fold as i32 - LOWEST as i32);
                assert_eq!(e4m3((*code).into()), magnitude * power, "{fold}");
            }
        }
    }
}
