//! Scales: from an amax to a scale and its factor, and scale layouts in memory.

use oxigemm_ptx::{F32, Global, Kernel, Pred, U32, U64};

use super::params::{Flags, Params};
use super::vec8::{Code, bits};
pub use crate::common::block_scale::MIN_AMAX;
use crate::common::block_scale::{INFINITY, MIN_FACTOR, divide, from_e4m3, reciprocal};
pub(crate) use crate::common::block_scale::{TensorScale, exponent};

/// Scale, and the factor that numbers are multiplied with before they are converted.
#[derive(Clone, Copy)]
pub(crate) struct Scale<'k> {
    pub scale: F32<'k>,
    pub factor: F32<'k>,
}

impl<'k> Scale<'k> {
    /// Scale of an amax, which is given as the bits of an `f32`, for a type of codes.
    #[track_caller]
    pub fn of(p: &Params<'k>, code: Code, amax: U32<'k>) -> Scale<'k> {
        Scale::up_to(p, code.max_finite(), amax)
    }

    /// Scale by which numbers up to `amax` become numbers up to `max_finite`.
    #[track_caller]
    pub fn up_to(p: &Params<'k>, max_finite: f32, amax: U32<'k>) -> Scale<'k> {
        let least = MIN_AMAX.to_bits();
        let exact = divide(amax.max(least), max_finite);
        let rounded: F32 = (exponent(exact) << 23).bitcast();
        let power_of_two = p.has(Flags::POWER_OF_TWO);
        let scale = power_of_two.select(rounded, exact);
        // Only infinity and NaN have scales whose reciprocals are not normal numbers.
        let near = scale.reciprocal_approx();
        let endless = power_of_two.select(MIN_FACTOR, near);
        let factor = amax.lt(INFINITY).select(reciprocal(scale, near), endless);
        Scale { scale, factor }
    }

    /// Bits of the scale, and the factor.
    #[track_caller]
    pub fn bits_and_factor(self) -> (U32<'k>, F32<'k>) {
        (bits(self.scale), self.factor)
    }

    /// A scale that exists already.
    #[track_caller]
    pub fn given(scale: F32<'k>) -> Scale<'k> {
        Scale { scale, factor: scale.reciprocal() }
    }

    /// FP8 codes of eight numbers.
    #[track_caller]
    pub fn encode(&self, k: &'k Kernel, code: Code, values: &[F32<'k>]) -> Vec<U32<'k>> {
        let scaled: Vec<F32> = values.iter().map(|value| *value * self.factor).collect();
        code.encode(k, &scaled)
    }
}

impl<'k> TensorScale<'k> {
    /// Loads the scale at [`Args::aux`](super::Args::aux).
    #[track_caller]
    pub fn load(p: &Params<'k>) -> TensorScale<'k> {
        TensorScale::given(p.aux.load_readonly())
    }
}

/// Layout of scales in memory: strides, UE8M0 bytes, blocks.
pub(crate) struct ScaleLayout<'k> {
    strides: [U32<'k>; 3],
    bytes: Pred<'k>,
    blocked: Pred<'k>,
}

impl<'k> ScaleLayout<'k> {
    #[track_caller]
    pub fn new(p: &Params<'k>) -> ScaleLayout<'k> {
        ScaleLayout { strides: p.scale_strides(), bytes: p.has(Flags::BYTES), blocked: p.has(Flags::BLOCKED) }
    }

    /// Offset of a scale in bytes.
    #[track_caller]
    pub fn offset(&self, row: U32<'k>, column: U32<'k>) -> U64<'k> {
        let [row_stride, four, one] = self.strides;
        // 32 rows of 16 bytes: the four of row 0, of row 32, of row 64 and of row 96, then those of row 1...
        let blocked = (row >> 7).widening_mul(row_stride) + ((row & 31) * 16 + ((row >> 5) & 3) * 4).to_u64();
        let rows = self.blocked.select(blocked, row.widening_mul(row_stride));
        rows + (column >> 2).widening_mul(four) + ((column & 3) * one).to_u64()
    }

    /// Loads a scale of NVFP4.
    #[track_caller]
    pub fn load_e4m3(&self, k: &'k Kernel, at: Global<'k>, wanted: Pred<'k>) -> F32<'k> {
        from_e4m3(k, at.load_readonly_byte_if(wanted))
    }

    /// Stores a scale, as its exponent where scales are UE8M0.
    #[track_caller]
    pub fn store(&self, k: &'k Kernel, at: Global<'k>, scale: F32<'k>, wanted: Pred<'k>) {
        k.guard(wanted & self.bytes, || at.store_byte(bits(scale) >> 23));
        k.guard(wanted & !self.bytes, || at.store(scale));
    }

    /// Loads a scale.
    #[track_caller]
    pub fn load(&self, at: Global<'k>, wanted: Pred<'k>) -> F32<'k> {
        let exponent = at.load_readonly_byte_if(wanted & self.bytes);
        let scale = at.load_readonly_if(wanted & !self.bytes, 0f32);
        self.bytes.select((exponent << 23).bitcast::<f32>(), scale)
    }
}
