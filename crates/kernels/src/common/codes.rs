//! Codes of FP8 and FP4: their types, and conversion to and from FP32.

use oxigemm_ptx::{F32, Fp8, Fp8x2, Kernel, U32};

/// Numbers that are converted together.
const EIGHT: u32 = 8;

/// Type of the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// 4 exponent bits, 3 mantissa bits.
    E4m3,
    /// 5 exponent bits, 2 mantissa bits.
    E5m2,
    /// 2 exponent bits, 1 mantissa bit: two codes in a byte.
    E2m1,
}

impl Code {
    /// FP8 types.
    pub const FP8: [Code; 2] = [Code::E4m3, Code::E5m2];
    /// All of them.
    pub const ALL: [Code; 3] = [Code::E4m3, Code::E5m2, Code::E2m1];

    /// Name in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Code::E4m3 => "e4m3",
            Code::E5m2 => "e5m2",
            Code::E2m1 => "e2m1",
        }
    }

    /// Largest finite number.
    pub const fn max_finite(self) -> f32 {
        match self {
            Code::E4m3 => 448.0,
            Code::E5m2 => 57344.0,
            Code::E2m1 => 6.0,
        }
    }

    /// Codes per byte.
    pub const fn per_byte(self) -> u32 {
        match self {
            Code::E4m3 | Code::E5m2 => 1,
            Code::E2m1 => 2,
        }
    }

    /// FP8 codes of eight numbers, in two words. [`encode_e2m1`] makes those of e2m1.
    #[track_caller]
    pub(crate) fn encode<'k>(self, k: &'k Kernel, values: &[F32<'k>]) -> Vec<U32<'k>> {
        let fp8 = |format| {
            let pairs: Vec<_> = values.chunks(2).map(|pair| k.pack_fp8(format, pair[0], pair[1])).collect();
            vec![k.join_halves(pairs[0], pairs[1]), k.join_halves(pairs[2], pairs[3])]
        };
        match self {
            Code::E4m3 => fp8(Fp8::E4m3),
            Code::E5m2 => fp8(Fp8::E5m2),
            Code::E2m1 => unreachable!("encode_e2m1 makes these"),
        }
    }

    /// Numbers of eight codes.
    #[track_caller]
    pub(crate) fn decode<'k>(self, k: &'k Kernel, words: &[U32<'k>]) -> Vec<F32<'k>> {
        let fp8 = |format| {
            let pairs = words.iter().flat_map(|word| [word.to_u16(), (*word >> 16).to_u16()]);
            pairs.flat_map(|pair| k.unpack_fp8(format, pair.bitcast::<Fp8x2>()).to_f32()).collect()
        };
        match self {
            Code::E4m3 => fp8(Fp8::E4m3),
            Code::E5m2 => fp8(Fp8::E5m2),
            Code::E2m1 => (0..EIGHT).map(|i| decode_e2m1(words[0] >> (4 * i))).collect(),
        }
    }
}

/// e2m1 codes of the magnitudes of up to eight numbers times a factor, which is not negative: nearest, ties to even,
/// saturating at 6, which is also the code of NaN.
///
/// Codes grow with magnitudes `m` along three lines: `2 m` up to 2, `m + 2` up to 4, and `m / 2 + 4`. The code is the
/// lowest of the three, rounded to an integer; an even integer is an even code, and an FMA multiplies and rounds each
/// line at once. Where `m` passes 4, the second line's sum passes a power of two, from where on numbers are 2 apart: it
/// continues as the third line.
#[track_caller]
pub(crate) fn encode_e2m1<'k>(values: &[F32<'k>], factor: F32<'k>) -> U32<'k> {
    /// The first number whose neighbour is 2 above it; the code of 4, which is 6, has its bits.
    const BEND: f32 = 16_777_216.0;
    const ZERO: u32 = BEND.to_bits() - 6;
    let twice = factor * 2.0;
    let rounded = values.iter().map(|value| {
        let amax = value.abs();
        let [first, others] = [amax.fma(twice, BEND - 6.0), amax.fma(factor, BEND - 4.0)].map(bits);
        first.min(others).min(ZERO + 7)
    });
    // Only the code differs from the bits of 0, so those are subtracted once at the end.
    let all = rounded.rev().reduce(|high, low| high.mad(16, low)).expect("there are some");
    let zeros = (0..values.len() as u32).fold(0u32, |sum, i| sum.wrapping_add(ZERO.wrapping_shl(4 * i)));
    all - zeros
}

/// Number of the e2m1 code in the lowest four bits.
#[track_caller]
pub(crate) fn decode_e2m1(code: U32<'_>) -> F32<'_> {
    // The code becomes exponent and first mantissa bit of a number 2^126 times too small, subnormal where e2m1 is.
    let small: F32 = (((code & 7) << 22) | ((code & 8) << 28)).bitcast();
    small * f32::from_bits(253 << 23)
}

/// e2m1 codes of eight FP32 numbers, with a factor for each four, and with their signs.
#[track_caller]
pub(crate) fn encode_e2m1_fours<'k>(values: &[F32<'k>; 8], [first, second]: [F32<'k>; 2]) -> U32<'k> {
    let (low, high) = values.split_at(4);
    let codes = encode_e2m1(low, first).permute_bytes(encode_e2m1(high, second), 0x5410);
    let words = values.map(bits);
    let [even, odd] = replicate_signs(high_bytes(&words[..4]), high_bytes(&words[4..]));
    codes | (even & 0x0808_0808) | (odd & 0x8080_8080)
}

/// The highest byte of each of four words.
#[track_caller]
pub(crate) fn high_bytes<'k>(words: &[U32<'k>]) -> U32<'k> {
    let pair = |i: usize| words[i].permute_bytes(words[i + 1], 0x73);
    pair(0).permute_bytes(pair(2), 0x5410)
}

/// Signs of the even bytes of two words and of the odd ones, each in all bits of a byte.
#[track_caller]
pub(crate) fn replicate_signs<'k>(low: U32<'k>, high: U32<'k>) -> [U32<'k>; 2] {
    // Bit 3 of a selector replicates the sign of the byte.
    [0xeca8u32, 0xfdb9].map(|order| low.permute_bytes(high, order))
}

/// Bits of a number.
#[track_caller]
pub(crate) fn bits(value: F32<'_>) -> U32<'_> {
    value.bitcast()
}
