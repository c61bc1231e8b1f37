//! Numbers as unsigned integers of the same order, which `redux` compares.
//!
//! | key | of |
//! |---|---|
//! | [`ABSENT`] | what cannot be chosen |
//! | [`NAN`] | NaN: below all numbers |
//! | others | numbers, by their size; both zeros are one |

use oxigemm_ptx::{F32, Pred, U32};

/// Key of an expert that cannot be chosen, or of a group without any that can be.
pub(super) const ABSENT: u32 = 0;
/// Key of NaN.
pub(super) const NAN: u32 = 1;
/// Bits of infinity: those of NaN without a sign are larger.
const INFINITY: u32 = 0x7f80_0000;
const SIGN: u32 = 0x8000_0000;

/// Key of a number or of NaN.
#[track_caller]
pub(super) fn of(value: F32<'_>) -> U32<'_> {
    // -0 becomes 0.
    let bits = (value + 0.0).bitcast::<u32>();
    let is_negative = bits.ge(SIGN);
    let key = bits ^ is_negative.select(u32::MAX, SIGN);
    is_nan(value).select(NAN, key)
}

/// The number of a key that is one of a number.
#[track_caller]
pub(super) fn number(key: U32<'_>) -> F32<'_> {
    let is_negative = key.lt(SIGN);
    (key ^ is_negative.select(u32::MAX, SIGN)).bitcast()
}

/// Whether a value is NaN.
#[track_caller]
pub(super) fn is_nan(value: F32<'_>) -> Pred<'_> {
    (value.bitcast::<u32>() & !SIGN).gt(INFINITY)
}
