//! Number formats: bits to values and back.

/// A type of elements, by the compiler's name of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) enum Format {
    #[serde(rename = "fp32")]
    F32,
    #[serde(rename = "fp16")]
    F16,
    #[serde(rename = "bf16")]
    Bf16,
    #[serde(rename = "fp8e4nv")]
    E4m3,
    #[serde(rename = "fp8e5")]
    E5m2,
    #[serde(rename = "i8")]
    I8,
    #[serde(rename = "u8")]
    U8,
    #[serde(rename = "i32")]
    I32,
}

/// A binary floating-point format: how many mantissa bits, and the exponent of its smallest normal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Float {
    pub(crate) mantissa: i32,
    pub(crate) least: i32,
}

pub(crate) const F32: Float = Float { mantissa: 23, least: -126 };
pub(crate) const TF32: Float = Float { mantissa: 10, least: -126 };
pub(crate) const F16: Float = Float { mantissa: 10, least: -14 };
pub(crate) const BF16: Float = Float { mantissa: 7, least: -126 };
pub(crate) const E4M3: Float = Float { mantissa: 3, least: -6 };
pub(crate) const E5M2: Float = Float { mantissa: 2, least: -14 };
pub(crate) const E2M1: Float = Float { mantissa: 1, least: 0 };

/// A number as a tensor core takes it apart: an integer significand that is not normalized below the least exponent.
/// Its value is `significand * 2^(exponent - mantissa)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) significand: i64,
    pub(crate) exponent: i32,
}

pub(crate) fn power(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

impl Float {
    /// The exponent of a finite number other than zero, no smaller than the least.
    fn exponent(self, value: f64) -> i32 {
        let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
        exponent.max(self.least)
    }

    /// Takes a number of this format apart; further mantissa bits are cut off.
    pub(crate) fn parts(self, value: f64) -> Parts {
        if value == 0.0 {
            return Parts { significand: 0, exponent: self.least };
        }
        let exponent = self.exponent(value);
        Parts { significand: (value * power(self.mantissa - exponent)).trunc() as i64, exponent }
    }

    /// The nearest number of this format, ties to even. Not for numbers beyond its largest.
    pub(crate) fn nearest(self, value: f64) -> f64 {
        if value == 0.0 {
            return value;
        }
        let unit = power(self.exponent(value) - self.mantissa);
        (value / unit).round_ties_even() * unit
    }

    /// The bits of a number of this format.
    fn encode(self, value: f64) -> u32 {
        let sign_bit = match self.mantissa {
            23 | 7 => self.mantissa + 8,
            10 => 15,
            _ => 7,
        };
        let sign = u32::from(value.is_sign_negative()) << sign_bit;
        let Parts { significand, exponent } = self.parts(value.abs());
        let hidden = 1 << self.mantissa;
        let magnitude = if significand < hidden {
            significand as u32
        } else {
            ((exponent - self.least + 1) as u32) << self.mantissa | (significand - hidden) as u32
        };
        sign | magnitude
    }

    /// The number that bits without a sign stand for. Infinities and NaN are not told apart: no operand has them.
    fn decode(self, bits: u32) -> f64 {
        let mantissa = f64::from(bits & ((1 << self.mantissa) - 1));
        let exponent = (bits >> self.mantissa) as i32;
        match exponent {
            0 => mantissa * power(self.least - self.mantissa),
            e => (mantissa + power(self.mantissa)) * power(self.least - 1 + e - self.mantissa),
        }
    }
}

impl Format {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Format::F32 | Format::I32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::E4m3 | Format::E5m2 | Format::I8 | Format::U8 => 1,
        }
    }

    /// The floating-point format, if it is one.
    pub(crate) fn float(self) -> Option<Float> {
        match self {
            Format::F32 => Some(F32),
            Format::F16 => Some(F16),
            Format::Bf16 => Some(BF16),
            Format::E4m3 => Some(E4M3),
            Format::E5m2 => Some(E5M2),
            Format::I8 | Format::U8 | Format::I32 => None,
        }
    }

    /// The nearest number that has this type.
    pub(crate) fn nearest(self, value: f64) -> f64 {
        self.float().map_or(value.round_ties_even(), |float| float.nearest(value))
    }

    /// Numbers of this type as memory has them.
    pub(crate) fn encode(self, values: &[f64]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values.len() * self.bytes());
        for value in values {
            let bits = match self.float() {
                Some(float) => float.encode(*value),
                None => *value as i64 as u32,
            };
            bytes.extend(&bits.to_le_bytes()[..self.bytes()]);
        }
        bytes
    }

    /// Numbers as memory has them. NaN and infinity only in FP32, FP16 and BF16.
    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let number = |chunk: &[u8]| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_le_bytes(word);
            match self {
                Format::F32 => f64::from(f32::from_bits(bits)),
                Format::Bf16 => f64::from(f32::from_bits(bits << 16)),
                Format::I32 => f64::from(bits as i32),
                Format::I8 => f64::from(bits as u8 as i8),
                Format::U8 => f64::from(bits),
                Format::F16 if bits & 0x7c00 == 0x7c00 => f64::NAN,
                Format::F16 | Format::E4m3 | Format::E5m2 => {
                    let sign = if bits >> (8 * chunk.len() - 1) == 0 { 1.0 } else { -1.0 };
                    let float = self.float().expect("a float");
                    sign * float.decode(bits & ((1 << (8 * chunk.len() - 1)) - 1))
                }
            }
        };
        bytes.chunks(self.bytes()).map(number).collect()
    }
}

/// The value of a 4-bit E2M1 number.
pub(crate) fn e2m1(bits: u8) -> f64 {
    let magnitude = E2M1.decode(u32::from(bits & 7));
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_bits_of_their_standards() {
        assert_eq!(Format::E4m3.encode(&[1.0, -448.0, 0.001953125, 0.0]), [0x38, 0xfe, 0x01, 0]);
        assert_eq!(Format::E5m2.encode(&[1.0, -57344.0]), [0x3c, 0xfb]);
        assert_eq!(Format::F16.encode(&[1.5, -65504.0]), [0, 0x3e, 0xff, 0xfb]);
        assert_eq!(Format::Bf16.encode(&[1.0, -2.5]), [0x80, 0x3f, 0x20, 0xc0]);
        assert_eq!(Format::F32.encode(&[-0.1f32.into()]), (-0.1f32).to_le_bytes());
        assert_eq!(Format::I8.encode(&[-3.0]), [0xfd]);
        let values: Vec<f64> = (0..16).map(e2m1).collect();
        assert_eq!(values[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(values[15], -6.0);
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for format in [Format::F32, Format::F16, Format::Bf16, Format::E4m3, Format::E5m2] {
            let values: Vec<f64> = (-40..40).map(|i| format.nearest(f64::from(i) * 0.37)).collect();
            assert_eq!(format.decode(&format.encode(&values)), values, "{format:?}");
        }
        assert_eq!(Format::I32.decode(&Format::I32.encode(&[-70000.0])), [-70000.0]);
    }
}
