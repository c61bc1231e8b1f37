//! The tensor core of sm_100a as a function of codes: for tests of kernels that are not in the corpus.

use std::ops::Range;

use crate::format::{BF16, E2M1, E4M3, E5M2, F16, Float, Format, TF32, e2m1, power};
use crate::tensor_core::{Arithmetic, Kept, Scales, Scaling, UE8M0};

/// What the bytes of an operand stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// BF16.
    Bf16,
    /// FP16.
    F16,
    /// FP32, of which the tensor core reads TF32: the upper 19 bits.
    Tf32,
    /// FP8 with 4 bits of exponent.
    E4m3,
    /// FP8 with 5 bits of exponent.
    E5m2,
    /// FP4, two to a byte, the first in the lower bits.
    E2m1,
}

/// The scales that the tensor core applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockScale {
    /// Powers of two, one for so many elements of K.
    Ue8m0(usize),
    /// E4M3 without a sign, one for 16 elements of K.
    Ue4m3,
}

/// An operand, K-major.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a> {
    /// The type of its elements.
    pub codes: Codes,
    /// Its elements, row after row. Infinities and NaN have no model.
    pub bytes: &'a [u8],
    /// A byte for each row and block of K, row after row; nothing without scales.
    pub scales: &'a [u8],
}

impl Codes {
    fn float(self) -> Float {
        match self {
            Codes::Bf16 => BF16,
            Codes::F16 => F16,
            Codes::Tf32 => TF32,
            Codes::E4m3 => E4M3,
            Codes::E5m2 => E5M2,
            Codes::E2m1 => E2M1,
        }
    }

    fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Codes::Bf16 => Format::Bf16.decode(bytes),
            Codes::F16 => Format::F16.decode(bytes),
            Codes::Tf32 => {
                let cut = bytes.chunks(4).flat_map(|word| [0, word[1] & 0xe0, word[2], word[3]]);
                Format::F32.decode(&cut.collect::<Vec<u8>>())
            }
            Codes::E4m3 => Format::E4m3.decode(bytes),
            Codes::E5m2 => Format::E5m2.decode(bytes),
            Codes::E2m1 => bytes.iter().flat_map(|byte| [e2m1(byte & 15), e2m1(byte >> 4)]).collect(),
        }
    }
}

impl BlockScale {
    /// Elements of K that share a scale.
    pub fn block(self) -> usize {
        match self {
            BlockScale::Ue8m0(block) => block,
            BlockScale::Ue4m3 => 16,
        }
    }

    fn format(self) -> Float {
        match self {
            BlockScale::Ue8m0(_) => UE8M0,
            BlockScale::Ue4m3 => E4M3,
        }
    }

    fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            BlockScale::Ue8m0(_) => bytes.iter().map(|byte| power(i32::from(*byte) - 127)).collect(),
            BlockScale::Ue4m3 => Format::E4m3.decode(bytes),
        }
    }
}

/// The arithmetic of the MMA for operands of these types.
fn arithmetic(a: Codes, b: Codes, scale: Option<BlockScale>) -> Arithmetic {
    let fp4 = a == Codes::E2m1 && b == Codes::E2m1;
    let (step, fraction, scaling) = match scale {
        None if a == Codes::Tf32 => (8, 25, Scaling::Before),
        None => (16, 25, Scaling::Before),
        Some(_) if fp4 => (64, 35, Scaling::Sixteens),
        Some(_) => (32, 25, Scaling::Exponents),
    };
    Arithmetic { a: a.float(), b: b.float(), step, fraction, kept: Kept::TowardZero(23), scaling }
}

/// Columns `range` of rows of `width`.
fn columns<T: Copy>(values: &[T], width: usize, range: &Range<usize>) -> Vec<T> {
    values.chunks(width).flat_map(|row| row[range.clone()].iter().copied()).collect()
}

/// `sum over the K of a range of  A[m, k] * B[n, k]`, each product times the scales of its blocks, by MMAs from the
/// beginning of the range to its end into FP32 that starts as zero. `k` is that of the operands; a range begins with an
/// MMA and with a block of scales.
pub fn product(
    a: &Factor<'_>,
    b: &Factor<'_>,
    scale: Option<BlockScale>,
    k: usize,
    range: Range<usize>,
) -> Vec<f32> {
    let (x, y) = (a.codes.decode(a.bytes), b.codes.decode(b.bytes));
    if range.is_empty() {
        return vec![0.0; (x.len() / k) * (y.len() / k)];
    }
    let of_blocks = |factor: &Factor<'_>, scale: BlockScale| {
        let blocks = range.start / scale.block()..range.end.div_ceil(scale.block());
        columns(&scale.decode(factor.scales), k.div_ceil(scale.block()), &blocks)
    };
    let scales = scale.map(|scale| (of_blocks(a, scale), of_blocks(b, scale)));
    let scales = scale.zip(scales.as_ref()).map(|(scale, (a, b))| Scales {
        a,
        b,
        format: scale.format(),
        group: scale.block(),
    });
    let (x, y) = (columns(&x, k, &range), columns(&y, k, &range));
    let sums = arithmetic(a.codes, b.codes, scale).matmul(&x, &y, &scales, range.len());
    sums.into_iter().map(|sum| sum as f32).collect()
}
