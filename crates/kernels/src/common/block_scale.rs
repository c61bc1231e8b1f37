//! Scales of blocks: from an amax to a scale and its factor.

use oxigemm_ptx::{F32, Fp8, Fp8x2, Kernel, U32};

use super::codes::{Code, bits};

/// Lower bound of an amax, so that a block of zeros has a scale too.
pub const MIN_AMAX: f32 = 1e-4;
/// Bits of the first number that is not finite.
pub(crate) const INFINITY: u32 = 0x7f80_0000;
/// Reciprocal of the largest power of two that is a scale, 2¹²⁷.
pub(crate) const MIN_FACTOR: f32 = f32::from_bits(0x0040_0000);

/// Exponent of the scale of an amax that is a power of two, and the factor of the numbers: for codes up to `max_finite`.
#[track_caller]
pub(crate) fn power_of_two<'k>(max_finite: f32, amax: U32<'k>) -> (U32<'k>, F32<'k>) {
    let exponent = exponent(divide(amax.max(MIN_AMAX.to_bits()), max_finite));
    // The reciprocal of 2¹²⁷ is the only one that is not normal.
    let factor = ((exponent.kernel().constant(254u32) - exponent) << 23).max(MIN_FACTOR.to_bits());
    (exponent, factor.bitcast())
}

/// Per-tensor scale of NVFP4, above the e4m3 scales of the blocks.
#[derive(Clone, Copy)]
pub(crate) struct TensorScale<'k> {
    pub scale: F32<'k>,
    /// Factor from the amax of a block to its scale.
    per_amax: F32<'k>,
}

impl<'k> TensorScale<'k> {
    /// Divisor from the amax of the tensor to its scale: the largest code times the largest block scale.
    pub const AMAX_DIVISOR: f32 = Code::E2m1.max_finite() * Code::E4m3.max_finite();

    /// The scale that is given.
    #[track_caller]
    pub fn given(scale: F32<'k>) -> TensorScale<'k> {
        TensorScale { scale, per_amax: any_reciprocal(scale * Code::E2m1.max_finite()) }
    }

    /// Scale of a block as an e4m3 code (nearest, but never 0), and the factor of the block's numbers.
    #[track_caller]
    pub fn block_scale(&self, k: &'k Kernel, amax: U32<'k>) -> (U32<'k>, F32<'k>) {
        let wanted = amax.bitcast::<f32>() * self.per_amax;
        let code = to_e4m3(k, wanted).max(1);
        (code, any_reciprocal(from_e4m3(k, code) * self.scale))
    }
}

/// Nearest e4m3 code of a number, ties to even, saturating; that of NaN is 0x7f.
#[track_caller]
pub(crate) fn to_e4m3<'k>(k: &'k Kernel, value: F32<'k>) -> U32<'k> {
    let zero = k.constant(0f32);
    k.join_halves(k.pack_fp8(Fp8::E4m3, value, zero), k.pack_fp8(Fp8::E4m3, zero, zero))
}

/// Number of an e4m3 code.
#[track_caller]
pub(crate) fn from_e4m3<'k>(k: &'k Kernel, code: U32<'k>) -> F32<'k> {
    let [value, _] = k.unpack_fp8(Fp8::E4m3, code.to_u16().bitcast::<Fp8x2>()).to_f32();
    value
}

/// Correctly rounded quotient of a magnitude, given as its bits, by a constant. That of infinity is infinite, that of
/// NaN is NaN.
///
/// The product with the reciprocal is at most one ulp off, and its remainder is exact: these are the last steps of a
/// division, without the checks for numbers that cannot occur.
#[track_caller]
pub(crate) fn divide<'k>(amax: U32<'k>, divisor: f32) -> F32<'k> {
    let value: F32 = amax.bitcast();
    let near = value * (1.0 / divisor);
    let remainder = near.fma(-divisor, value);
    let quotient = remainder.fma(1.0 / divisor, near);
    amax.lt(INFINITY).select(quotient, near)
}

/// Correctly rounded reciprocal of a positive normal number whose reciprocal is normal too, from the result of
/// `rcp.approx`. The assembler makes the same of `rcp.rn`, with a branch for numbers that cannot occur here.
#[track_caller]
pub(crate) fn reciprocal<'k>(value: F32<'k>, near: F32<'k>) -> F32<'k> {
    let error = near.fma(value.negate(), 1.0);
    near.fma(error, near)
}

/// Reciprocal of any positive number; subnormal numbers and results count as 0.
#[track_caller]
pub(crate) fn any_reciprocal(value: F32<'_>) -> F32<'_> {
    let near = value.reciprocal_approx();
    // A reciprocal that is 0 or infinite is final.
    let ordinary = (bits(near) - 1).lt(INFINITY - 1);
    ordinary.select(reciprocal(value, near), near)
}

/// Biased exponent of the smallest power of two that is not below a positive number, from 1 to 254.
#[track_caller]
pub(crate) fn exponent(value: F32<'_>) -> U32<'_> {
    ((bits(value) + 0x7f_ffff) >> 23).max(1).min(254)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [`divide`] in Rust.
    fn quotient(value: f32, divisor: f32) -> f32 {
        let near = value * (1.0 / divisor);
        let remainder = near.mul_add(-divisor, value);
        remainder.mul_add(1.0 / divisor, near)
    }

    /// Powers of two do not change the rounding, so that one exponent stands for all but the outermost.
    #[test]
    fn a_quotient_by_multiplication_is_the_quotient_for_every_mantissa() {
        for divisor in Code::ALL.map(Code::max_finite).into_iter().chain([TensorScale::AMAX_DIVISOR]) {
            for mantissa in 0..1 << 23 {
                let value = f32::from_bits(0x3f80_0000 | mantissa);
                assert_eq!(quotient(value, divisor), value / divisor, "{value} / {divisor}");
            }
            for value in [MIN_AMAX, MIN_AMAX.next_up(), 1e30, f32::MAX, f32::MAX.next_down()] {
                assert_eq!(quotient(value, divisor), value / divisor, "{value} / {divisor}");
            }
        }
    }

    /// On a GPU the sequence is that of `rcp.rn`, which starts from the same approximation; elsewhere the start is
    /// exact.
    #[test]
    fn a_correctly_rounded_reciprocal_stays_so() {
        for mantissa in 0..1 << 23 {
            let value = f32::from_bits(0x3f80_0000 | mantissa);
            let right = 1.0 / value;
            let error = right.mul_add(-value, 1.0);
            assert_eq!(right.mul_add(error, right), right, "1 / {value}");
        }
    }
}
