//! Element types, and the conversions between them and `f32`.
//!
//! Conversions into a narrower type round to nearest, ties to even. The two FP8 types saturate: a finite value or an
//! infinity beyond the largest finite code becomes that code, and NaN stays NaN. This is what
//! `cvt.rn.satfinite` does on the GPU.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::parallel::THREADS;

/// The type of a tensor's elements.
///
/// ```
/// use oxigemm::DType;
///
/// assert_eq!(DType::Bf16.size(), 2);
/// assert_eq!(DType::E4m3.to_string(), "e4m3");
/// assert_eq!("bf16".parse::<DType>()?, DType::Bf16);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// FP8 with 4 exponent and 3 mantissa bits: no infinities, largest value 448, NaN is `0x7f` and `0xff`.
    E4m3,
    /// FP8 with 5 exponent and 2 mantissa bits: largest finite value 57344.
    E5m2,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// 32-bit signed integers: indices and counts.
    I32,
    /// Bytes, such as two e2m1 codes (FP4) each, the first in the low half.
    U8,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 7] =
        [DType::E4m3, DType::E5m2, DType::Bf16, DType::F16, DType::F32, DType::I32, DType::U8];

    /// The size of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::E4m3 | DType::E5m2 | DType::U8 => 1,
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
        }
    }

    /// The name that users type and read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::E4m3 => "e4m3",
            DType::E5m2 => "e5m2",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F32 => "f32",
            DType::I32 => "i32",
            DType::U8 => "u8",
        }
    }

    /// The largest finite value.
    #[must_use]
    pub const fn max_finite(self) -> f32 {
        match self {
            DType::E4m3 => 448.0,
            DType::E5m2 => 57344.0,
            DType::Bf16 => 3.389_531_4e38,
            DType::F16 => 65504.0,
            DType::F32 => f32::MAX,
            // The largest integer that an f32 holds is below i32::MAX.
            DType::I32 => 2_147_483_520.0,
            DType::U8 => 255.0,
        }
    }

    /// Reads the little-endian elements in `bytes`; a trailing partial element is not read.
    ///
    /// ```
    /// use oxigemm::DType;
    ///
    /// assert_eq!(DType::E4m3.decode(&[0x38, 0x7e, 0x81]), [1.0, 448.0, -0.001953125]);
    /// ```
    #[must_use]
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            DType::E4m3 => each(bytes, |&code| E4M3_VALUES[code as usize]),
            DType::E5m2 => decode_as::<F8E5M2>(bytes),
            DType::Bf16 => decode_as::<bf16>(bytes),
            DType::F16 => decode_as::<f16>(bytes),
            DType::F32 => decode_as::<f32>(bytes),
            DType::I32 => decode_as::<i32>(bytes),
            DType::U8 => bytes.iter().map(|&byte| byte.into()).collect(),
        }
    }

    /// Rounds `values` to this type and returns their little-endian bytes.
    ///
    /// ```
    /// use oxigemm::DType;
    ///
    /// assert_eq!(DType::E4m3.encode(&[1.0, 1e9, f32::NAN]), [0x38, 0x7e, 0x7f]);
    /// ```
    #[must_use]
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            DType::E4m3 => each(values, |&value| encode_e4m3(value)),
            DType::E5m2 => encode_as::<F8E5M2>(values),
            DType::Bf16 => encode_as::<bf16>(values),
            DType::F16 => encode_as::<f16>(values),
            DType::F32 => encode_as::<f32>(values),
            DType::I32 => encode_as::<i32>(values),
            DType::U8 => values.iter().map(|value| value.round_ties_even() as u8).collect(),
        }
    }

    /// Rounds `values` to this type, once, and returns their little-endian bytes.
    ///
    /// ```
    /// use oxigemm::{DType, bf16};
    ///
    /// // Just above the middle of two bf16: rounding to f32 first would land on the middle, and then on the even one.
    /// let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    /// assert_eq!(DType::Bf16.encode_f64(&[value]), bf16::from_f32(1.0078125).to_le_bytes());
    /// ```
    #[must_use]
    pub fn encode_f64(self, values: &[f64]) -> Vec<u8> {
        let narrow = if self == DType::F32 { |value| value as f32 } else { round_to_odd };
        self.encode(&values.iter().map(|&value| narrow(value)).collect::<Vec<f32>>())
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| Error::DType {
            argument: "dtype",
            expected: "one of e4m3, e5m2, bf16, f16, f32, i32, u8".to_owned(),
            found: format!("`{name}`"),
        })
    }
}

/// Rounds an inexact value to the neighbour with an odd last bit. A second rounding, to nearest in a type that is at
/// least two bits narrower, then gives what rounding once would have given.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || !nearest.is_finite() {
        return nearest;
    }
    let toward_zero = nearest.to_bits() - u32::from(f64::from(nearest).abs() > value.abs());
    f32::from_bits(toward_zero | 1)
}

/// The value of every e4m3 code.
pub(crate) static E4M3_VALUES: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|code| F8E4M3::from_bits(code as u8).to_f32()));

/// The codes of a type of FP8.
pub(crate) struct Fp8Codes {
    /// The value of every code.
    pub values: [f32; 256],
}

static E4M3_CODES: LazyLock<Fp8Codes> = LazyLock::new(|| Fp8Codes { values: *E4M3_VALUES });
static E5M2_CODES: LazyLock<Fp8Codes> =
    LazyLock::new(|| Fp8Codes { values: std::array::from_fn(|code| F8E5M2::from_bits(code as u8).to_f32()) });

impl Fp8Codes {
    /// Those of a type, if it is one of FP8.
    pub fn of(dtype: DType) -> Option<&'static Fp8Codes> {
        match dtype {
            DType::E4m3 => Some(&E4M3_CODES),
            DType::E5m2 => Some(&E5M2_CODES),
            _ => None,
        }
    }
}

/// The e4m3 code nearest to `value`: ties to even, saturating at 448, NaN to `0x7f` with its sign.
#[inline]
pub(crate) fn encode_e4m3(value: f32) -> u8 {
    F8E4M3::from_f32(value).to_bits()
}

fn decode_as<T: Element>(bytes: &[u8]) -> Vec<f32> {
    let read = |raw: &[u8]| bytemuck::pod_read_unaligned::<T>(raw).widen();
    let size = size_of::<T>();
    if bytes.len() / size < MANY {
        return bytes.chunks_exact(size).map(read).collect();
    }
    THREADS.run(|_| bytes.par_chunks_exact(size).map(read).collect())
}

fn encode_as<T: Element>(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(&each(values, |&value| T::nearest(value))).to_vec()
}

/// From here on elements are converted by several threads.
const MANY: usize = 1 << 20;

/// What becomes of every item.
fn each<S: Sync, T: Send>(items: &[S], convert: impl Fn(&S) -> T + Sync + Send) -> Vec<T> {
    if items.len() < MANY {
        items.iter().map(convert).collect()
    } else {
        THREADS.run(|_| items.par_iter().map(convert).collect())
    }
}

/// A Rust type that is the element of a tensor.
///
/// Implemented for `f32`, [`struct@bf16`], [`struct@f16`], [`F8E4M3`], [`F8E5M2`] and `i32`, and for nothing else. FP8
/// data that is held as `u8` codes goes through [`Tensor::from_bytes`](crate::Tensor::from_bytes).
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The tensor element type of this Rust type.
    const DTYPE: DType;
    /// The value as `f32`, which is exact but for integers beyond 2²⁴.
    fn widen(self) -> f32;
    /// The nearest value of this type.
    fn nearest(value: f32) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($rust:ty, $dtype:expr, $to:expr, $from:expr) => {
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = $dtype;
            fn widen(self) -> f32 {
                $to(self)
            }
            fn nearest(value: f32) -> Self {
                $from(value)
            }
        }
    };
}

element!(f32, DType::F32, std::convert::identity, std::convert::identity);
element!(bf16, DType::Bf16, bf16::to_f32, bf16::from_f32);
element!(f16, DType::F16, f16::to_f32, f16::from_f32);
element!(F8E4M3, DType::E4m3, |x: F8E4M3| x.to_f32(), F8E4M3::from_f32);
element!(F8E5M2, DType::E5m2, |x: F8E5M2| x.to_f32(), F8E5M2::from_f32);
element!(i32, DType::I32, |x: i32| x as f32, |x: f32| x.round_ties_even() as i32);

#[cfg(test)]
mod tests {
    use super::*;

    /// e4m3 from its definition: bias 7, subnormals at exponent -6, all ones is NaN.
    fn value_by_definition(code: u8) -> f64 {
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let (exponent, mantissa) = (i32::from(code >> 3 & 0xf), f64::from(code & 7));
        match (exponent, code & 7) {
            (15, 7) => f64::NAN,
            (0, _) => sign * mantissa / 8.0 * 2f64.powi(-6),
            _ => sign * (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
        }
    }

    #[test]
    fn every_e4m3_code_decodes_by_the_definition_and_encodes_back() {
        for code in 0..=255u8 {
            let (value, expected) = (E4M3_VALUES[code as usize], value_by_definition(code));
            if expected.is_nan() {
                assert!(value.is_nan());
                assert_eq!(encode_e4m3(value) & 0x7f, 0x7f, "NaN stays NaN");
            } else {
                assert_eq!(f64::from(value), expected, "code {code:#04x}");
                assert_eq!(encode_e4m3(value), code, "zero keeps its sign too");
            }
        }
    }

    #[test]
    fn between_two_e4m3_codes_the_nearest_wins_and_a_tie_goes_to_even() {
        for code in 0..0x7eu8 {
            let (low, high) = (value_by_definition(code), value_by_definition(code + 1));
            // Midpoints have at most five significant bits: exact in f32.
            let middle = ((low + high) / 2.0) as f32;
            let even = code + code % 2;
            for (value, expected) in
                [(middle.next_down(), code), (middle, even), (middle.next_up(), code + 1)]
            {
                assert_eq!(encode_e4m3(value), expected, "{value}");
                assert_eq!(encode_e4m3(-value), expected | 0x80, "{}", -value);
            }
        }
    }

    #[test]
    fn e4m3_saturates() {
        for value in [449.0, 463.9, 464.0, 464.1, 480.0, 1e9, f32::MAX, f32::INFINITY] {
            assert_eq!(encode_e4m3(value), 0x7e, "{value}");
            assert_eq!(encode_e4m3(-value), 0xfe, "{}", -value);
        }
        assert_eq!(encode_e4m3(f32::MIN_POSITIVE), 0);
        assert_eq!(encode_e4m3(f32::NAN) & 0x7f, 0x7f);
    }

    #[test]
    fn every_code_of_every_narrow_type_survives_a_round_trip() {
        for dtype in [DType::E5m2, DType::Bf16, DType::F16] {
            for code in 0..1u32 << (8 * dtype.size()) {
                let bytes = &code.to_le_bytes()[..dtype.size()];
                let value = dtype.decode(bytes);
                if value[0].is_finite() {
                    assert_eq!(dtype.encode(&value), bytes, "{dtype} {code:#x}");
                    assert!(value[0].abs() <= dtype.max_finite());
                }
            }
        }
    }

    #[test]
    fn f64_is_rounded_once() {
        for dtype in [DType::E4m3, DType::Bf16, DType::F16] {
            let values: Vec<f32> =
                (0..0x3ffu32).flat_map(|code| dtype.decode(&code.to_le_bytes()[..dtype.size()])).collect();
            for pair in values.windows(2).filter(|pair| pair[0] < pair[1]) {
                let middle = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0;
                assert_eq!(dtype.encode_f64(&[middle.next_down()]), dtype.encode(&pair[..1]));
                assert_eq!(dtype.encode_f64(&[middle.next_up()]), dtype.encode(&pair[1..]));
                assert_eq!(dtype.encode_f64(&[-middle.next_up()]), dtype.encode(&[-pair[1]]));
                assert_eq!(dtype.encode_f64(&[middle])[0] & 1, 0, "a tie goes to even");
            }
            for value in [0.0, f64::INFINITY, -1e300, 1e-300] {
                assert_eq!(dtype.encode_f64(&[value]), dtype.encode(&[value as f32]), "{value}");
            }
        }
        assert_eq!(DType::F32.encode_f64(&[0.1]), 0.1f32.to_le_bytes());
    }

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert!(matches!("fp8".parse::<DType>(), Err(Error::DType { argument: "dtype", .. })));
    }
}
