//! The small floating-point formats: exact decoding, and encoding with the roundings of PTX.

/// A binary format of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Exponent bits.
    pub(crate) exponent: u32,
    /// Mantissa bits.
    pub(crate) mantissa: u32,
    /// Whether the top exponent holds infinities and NaNs (IEEE), only the NaN `S.1111.111` (E4M3), or
    /// ordinary numbers.
    pub(crate) top: Top,
}

/// What the largest exponent of a [`Format`] encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Top {
    /// Infinities and NaNs.
    Ieee,
    /// Numbers, and one NaN per sign.
    NanOnly,
    /// Numbers only.
    Finite,
}

pub(crate) const F16: Format = Format { exponent: 5, mantissa: 10, top: Top::Ieee };
pub(crate) const BF16: Format = Format { exponent: 8, mantissa: 7, top: Top::Ieee };
pub(crate) const TF32: Format = Format { exponent: 8, mantissa: 10, top: Top::Ieee };
pub(crate) const E4M3: Format = Format { exponent: 4, mantissa: 3, top: Top::NanOnly };
pub(crate) const E5M2: Format = Format { exponent: 5, mantissa: 2, top: Top::Ieee };
pub(crate) const E2M1: Format = Format { exponent: 2, mantissa: 1, top: Top::Finite };
pub(crate) const E2M3: Format = Format { exponent: 2, mantissa: 3, top: Top::Finite };
pub(crate) const E3M2: Format = Format { exponent: 3, mantissa: 2, top: Top::Finite };
pub(crate) const F32: Format = Format { exponent: 8, mantissa: 23, top: Top::Ieee };

/// A rounding direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero.
    NearestAway,
    /// Toward zero.
    Zero,
    /// Toward negative infinity.
    Down,
    /// Toward positive infinity.
    Up,
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    fn bits(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    fn canonical_nan(self) -> u64 {
        match self.top {
            // PTX gives the canonical NaN: every bit but the sign.
            Top::Ieee | Top::NanOnly => (1 << (self.bits() - 1)) - 1,
            // A format without NaN gives its largest positive number.
            Top::Finite => self.max_finite(),
        }
    }

    /// The largest finite magnitude, as bits.
    pub(crate) fn max_finite(self) -> u64 {
        let all = (1u64 << (self.bits() - 1)) - 1;
        match self.top {
            Top::Ieee => all - (1 << self.mantissa),
            Top::NanOnly => all - 1,
            Top::Finite => all,
        }
    }

    /// The exact value of the low bits of `code`.
    pub(crate) fn decode(self, code: u64) -> f64 {
        let sign = if code >> (self.bits() - 1) & 1 == 1 { -1.0 } else { 1.0 };
        let m = code & ((1 << self.mantissa) - 1);
        let e = (code >> self.mantissa & ((1 << self.exponent) - 1)) as i32;
        let top = (1 << self.exponent) - 1;
        if e == top {
            match self.top {
                Top::Ieee if m == 0 => return sign * f64::INFINITY,
                Top::Ieee => return f64::NAN,
                Top::NanOnly if m == (1 << self.mantissa) - 1 => return f64::NAN,
                _ => {}
            }
        }
        let magnitude = if e == 0 {
            m as f64 * power(1 - self.bias() - self.mantissa as i32)
        } else {
            (m | 1 << self.mantissa) as f64 * power(e - self.bias() - self.mantissa as i32)
        };
        sign * magnitude
    }

    /// Rounds `value` into this format. `saturate` is `.satfinite`: out of range gives the largest finite
    /// number instead of infinity (or NaN where the format has none).
    pub(crate) fn encode(self, value: f64, round: Round, saturate: bool) -> u64 {
        let negative = value.is_sign_negative();
        let toward_zero = match round {
            Round::Zero => true,
            Round::Down => !negative,
            Round::Up => negative,
            _ => false,
        };
        self.encode_by(value, saturate, toward_zero, |kept, rest, drop| {
            let half = 1u64 << (drop.min(63) - 1);
            match round {
                Round::Nearest => rest > half || (rest == half && kept & 1 == 1),
                Round::NearestAway => rest >= half,
                Round::Zero => false,
                Round::Down => negative && rest != 0,
                Round::Up => !negative && rest != 0,
            }
        })
    }

    /// Rounds away from zero where adding `random` to the highest `bits` of the discarded bits carries, and
    /// toward zero elsewhere (`.rs`). Lower bits meet no random ones, so that they never carry.
    pub(crate) fn encode_stochastic(self, value: f64, random: u64, bits: u32, saturate: bool) -> u64 {
        self.encode_by(value, saturate, false, |_, rest, drop| {
            (rest.checked_shr(drop - bits).unwrap_or(0) + random) >> bits != 0
        })
    }

    /// Encodes with `up` deciding, of the bits that are kept, those that are discarded and how many these are,
    /// whether the magnitude grows. `toward_zero`: a finite number out of range gives the largest one.
    fn encode_by(
        self,
        value: f64,
        saturate: bool,
        toward_zero: bool,
        up: impl Fn(u64, u64, u32) -> bool,
    ) -> u64 {
        if value.is_nan() {
            return self.canonical_nan();
        }
        let sign = u64::from(value.is_sign_negative()) << (self.bits() - 1);
        let magnitude = value.abs();
        if magnitude == 0.0 {
            return sign;
        }
        let overflow = |round_to_max: bool| {
            if saturate || round_to_max || self.top == Top::Finite {
                sign | self.max_finite()
            } else if self.top == Top::Ieee {
                sign | ((1 << self.exponent) - 1) << self.mantissa
            } else {
                sign | self.canonical_nan()
            }
        };
        if magnitude.is_infinite() {
            return overflow(false);
        }
        let bits = magnitude.to_bits();
        let (e, m) = if bits >> 52 == 0 {
            // A subnormal f64 is far below every format here; keep it as a nonzero sticky value.
            (-1022, bits.max(1))
        } else {
            ((bits >> 52) as i32 - 1023, bits & ((1 << 52) - 1) | 1 << 52)
        };
        let min = 1 - self.bias();
        // The mantissa keeps `52 - drop` fractional bits.
        let drop = (52 - self.mantissa as i32 + (min - e).max(0)) as u32;
        let kept = m >> drop.min(63);
        let rest = m & ((1u64 << drop.min(63)) - 1);
        let kept = kept + u64::from(up(kept, rest, drop));
        let exponent = if e < min { 0 } else { (e + self.bias()) as u64 };
        // Adding with carry turns a subnormal that rounded up into the smallest normal number.
        let code =
            if exponent == 0 { kept } else { (exponent << self.mantissa) + (kept - (1 << self.mantissa)) };
        if code > self.max_finite() {
            return overflow(toward_zero);
        }
        sign | code
    }
}

/// `2^e`, exact over the range of f64 (subnormals included).
pub(crate) fn power(e: i32) -> f64 {
    if e >= -1022 {
        f64::from_bits(((e.min(1023) + 1023) as u64) << 52)
    } else if e >= -1074 {
        f64::from_bits(1 << (e + 1074))
    } else {
        0.0
    }
}

/// UE8M0: an exponent alone; `0xff` is NaN.
pub(crate) fn decode_ue8m0(code: u64) -> f64 {
    if code & 0xff == 0xff { f64::NAN } else { power((code & 0xff) as i32 - 127) }
}

/// Rounds to UE8M0. Only `Zero` and `Up` exist in PTX; the sign is dropped.
pub(crate) fn encode_ue8m0(value: f64, round: Round) -> u64 {
    if value.is_nan() {
        return 0xff;
    }
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        return 0xfe;
    }
    if magnitude <= power(-127) {
        return 0;
    }
    let bits = magnitude.to_bits();
    let e = (bits >> 52) as i32 - 1023;
    let up = round == Round::Up && bits & ((1 << 52) - 1) != 0;
    (e + 127 + i32::from(up)).clamp(0, 254) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_a_round_trip() {
        for format in [F16, BF16, E4M3, E5M2, E2M1, E2M3, E3M2] {
            for code in 0..1u64 << format.bits() {
                let value = format.decode(code);
                if value.is_nan() {
                    continue;
                }
                for round in [Round::Nearest, Round::Zero, Round::Up, Round::Down, Round::NearestAway] {
                    assert_eq!(format.encode(value, round, false), code, "{format:?} {code:#x}");
                }
            }
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(E4M3.encode(448.0, Round::Nearest, true), 0x7e);
        assert_eq!(E4M3.encode(1e9, Round::Nearest, true), 0x7e);
        assert_eq!(E4M3.encode(-1e9, Round::Nearest, true), 0xfe);
        assert_eq!(E4M3.encode(f64::NAN, Round::Nearest, true), 0x7f);
        assert_eq!(E5M2.encode(57344.0, Round::Nearest, true), 0x7b);
        assert_eq!(E5M2.encode(f64::INFINITY, Round::Nearest, true), 0x7b);
        assert_eq!(E2M1.encode(6.0, Round::Nearest, true), 0x7);
        assert_eq!(E2M1.encode(2.5, Round::Nearest, true), 0x4);
        assert_eq!(E2M1.encode(3.5, Round::Nearest, true), 0x6);
        assert_eq!(BF16.encode(f64::NAN, Round::Nearest, false), 0x7fff);
        assert_eq!(encode_ue8m0(1.0, Round::Up), 127);
        assert_eq!(encode_ue8m0(1.5, Round::Up), 128);
        assert_eq!(encode_ue8m0(1.5, Round::Zero), 127);
        assert_eq!(decode_ue8m0(0), power(-127));
    }

    #[test]
    fn f32_encoding_is_the_conversion_of_rust() {
        for value in [1.0f64, 1.0 / 3.0, 1e-40, 1e-46, 3.4e38, 3.5e38, -2.0 / 3.0] {
            assert_eq!(F32.encode(value, Round::Nearest, false), u64::from((value as f32).to_bits()));
        }
    }
}
