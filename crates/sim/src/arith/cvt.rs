//! `cvt`: conversions between integers, floats and the packed small formats.

use crate::arith::minifloat::{self as mini, Format, Round};
use crate::text::types::{Ty, low_mask, sign_extend};

/// A decoded conversion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cvt {
    pub(crate) to: Ty,
    pub(crate) from: Ty,
    pub(crate) round: Round,
    /// An integer rounding (`.rni` and friends) was written.
    pub(crate) integer_round: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) satfinite: bool,
    pub(crate) relu: bool,
    pub(crate) with: With,
    /// Bits of the destination register, to which small integers are extended.
    pub(crate) width: u32,
}

/// What a conversion takes beside its sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum With {
    Nothing,
    /// `.rs`: 32 random bits.
    Random,
    /// `.scaled::n2::ue8m0`: two powers of two.
    Scales,
}

fn is_integer(ty: Ty) -> bool {
    matches!(ty, Ty::U8 | Ty::S8 | Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64)
}

/// The element format of a packed type, and its bits.
fn packed(ty: Ty) -> Option<(Element, u32)> {
    Some(match ty {
        Ty::F16x2 => (Element::Float(mini::F16), 16),
        Ty::Bf16x2 => (Element::Float(mini::BF16), 16),
        Ty::E4m3x2 | Ty::E4m3x4 => (Element::Float(mini::E4M3), 8),
        Ty::E5m2x2 | Ty::E5m2x4 => (Element::Float(mini::E5M2), 8),
        Ty::E2m3x2 | Ty::E2m3x4 => (Element::Float(mini::E2M3), 8),
        Ty::E3m2x2 | Ty::E3m2x4 => (Element::Float(mini::E3M2), 8),
        Ty::E2m1x2 | Ty::E2m1x4 => (Element::Float(mini::E2M1), 4),
        Ty::Ue8m0x2 => (Element::Scale, 8),
        Ty::S2f6x2 => (Element::Fixed, 8),
        _ => return None,
    })
}

#[derive(Clone, Copy)]
enum Element {
    Float(Format),
    Scale,
    /// S2F6: a signed byte of 64ths, without infinities and NaN (PTX 5.2.4).
    Fixed,
}

impl Element {
    fn decode(self, bits: u64) -> f64 {
        match self {
            Element::Float(f) => f.decode(bits),
            Element::Scale => mini::decode_ue8m0(bits),
            Element::Fixed => f64::from(bits as u8 as i8) / 64.0,
        }
    }

    fn encode(self, c: &Cvt, value: f64) -> u64 {
        match self {
            Element::Float(f) => f.encode(c.clamp(value), c.round, c.satfinite),
            Element::Scale => mini::encode_ue8m0(value, c.round),
            Element::Fixed if value.is_nan() => 0x7f,
            Element::Fixed => u64::from((c.clamp(value) * 64.0).round_ties_even() as i8 as u8),
        }
    }
}

impl Cvt {
    /// Whether this combination of types exists.
    pub(crate) fn supported(&self) -> bool {
        let scalar = |t| is_integer(t) || matches!(t, Ty::F16 | Ty::Bf16 | Ty::F32 | Ty::F64 | Ty::Tf32);
        let four = |t| matches!(t, Ty::E4m3x4 | Ty::E5m2x4 | Ty::E2m3x4 | Ty::E3m2x4 | Ty::E2m1x4);
        let small = |t| matches!(t, Ty::E4m3x2 | Ty::E5m2x2 | Ty::E2m3x2 | Ty::E3m2x2 | Ty::E2m1x2);
        let nearest = self.round == Round::Nearest;
        match (self.to, self.from) {
            (Ty::S2f6x2, Ty::F32 | Ty::Bf16x2) | (Ty::Bf16x2, Ty::S2f6x2) => {
                return nearest && self.with != With::Random;
            }
            (Ty::S2f6x2, _) | (_, Ty::S2f6x2) => return false,
            (to, from) if self.with == With::Scales => return nearest && to == Ty::Bf16x2 && small(from),
            (to, from) if self.with == With::Random || four(to) || four(from) => {
                let random = four(to) || matches!(to, Ty::F16x2 | Ty::Bf16x2);
                return random && from == Ty::F32 && self.with == With::Random;
            }
            _ => {}
        }
        let pair = |t| matches!(t, Ty::F16x2 | Ty::Bf16x2);
        match (packed(self.to), packed(self.from)) {
            (Some(_), Some(_)) => match (self.to, self.from) {
                (Ty::Ue8m0x2, Ty::Bf16x2) => matches!(self.round, Round::Zero | Round::Up),
                (Ty::Bf16x2, Ty::Ue8m0x2) => nearest,
                (to, from) => nearest && (pair(to) && small(from) || small(to) && pair(from)),
            },
            (Some(_), None) if self.from != Ty::F32 => false,
            (Some(_), None) => match self.round {
                Round::Nearest => self.to != Ty::Ue8m0x2,
                Round::Zero => !small(self.to),
                Round::Up => self.to == Ty::Ue8m0x2,
                Round::Down | Round::NearestAway => false,
            },
            (None, Some(_)) => false,
            (None, None) => scalar(self.to) && scalar(self.from),
        }
    }

    /// How many values the instruction takes: two in `cvt.rn.bf16x2.f32 d, a, b`, four in one vector for
    /// `.e4m3x4` and its kind.
    pub(crate) fn sources(&self) -> usize {
        match packed(self.to) {
            Some((_, bits)) if packed(self.from).is_none() => (self.to.bits() / bits) as usize,
            _ => 1,
        }
    }

    fn clamp(&self, value: f64) -> f64 {
        if self.relu && (value.is_sign_negative() && !value.is_nan()) {
            0.0
        } else if self.sat {
            if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
        } else {
            value
        }
    }

    /// Converts `a` (and `b`, the low half of a packed pair).
    pub(crate) fn apply(&self, a: u64, b: u64) -> u64 {
        if let Some((to, bits)) = packed(self.to) {
            let (hi, lo) = self.pair(a, b);
            return to.encode(self, hi) << bits | to.encode(self, lo);
        }
        match (is_integer(self.from), is_integer(self.to)) {
            (true, true) => self.int_to_int(a),
            (true, false) => self.int_to_float(a),
            (false, true) => self.float_to_int(self.float_source(a)),
            (false, false) => self.float_to_float(self.float_source(a)),
        }
    }

    /// The two values of a packed conversion, the upper first.
    fn pair(&self, a: u64, b: u64) -> (f64, f64) {
        match packed(self.from) {
            Some((from, n)) => (from.decode(a >> n & low_mask(n)), from.decode(a & low_mask(n))),
            None => (self.float_source(a), self.float_source(b)),
        }
    }

    /// Converts with random bits or scales, which are the last of `src`.
    pub(crate) fn apply_with(&self, src: [u64; 5]) -> u64 {
        let [a, b, .., with] = src;
        match (self.with, packed(self.to)) {
            (With::Random, Some((Element::Float(format), bits))) => {
                let (random, n) = random_bits(self.to, with as u32);
                src.iter().zip(random).take(self.sources()).fold(0, |packed, (x, r)| {
                    let value = self.clamp(self.float_source(*x));
                    packed << bits | format.encode_stochastic(value, u64::from(r), n, self.satfinite)
                })
            }
            (With::Scales, Some((to, bits))) => {
                // Exact in f64: both factors have few bits, and one is a power of two.
                let scale = |x: f64, s: f64| if self.to == Ty::S2f6x2 { x / s } else { x * s };
                let (hi, lo) = self.pair(a, b);
                let hi = scale(hi, mini::decode_ue8m0(with >> 8));
                let lo = scale(lo, mini::decode_ue8m0(with));
                to.encode(self, hi) << bits | to.encode(self, lo)
            }
            _ => self.apply(a, b),
        }
    }

    fn float_source(&self, a: u64) -> f64 {
        match self.from {
            Ty::F16 => mini::F16.decode(a & 0xffff),
            Ty::Bf16 => mini::BF16.decode(a & 0xffff),
            Ty::F64 => f64::from_bits(a),
            _ => {
                let x = f32::from_bits(a as u32);
                f64::from(if self.ftz && x.is_subnormal() { 0f32.copysign(x) } else { x })
            }
        }
    }

    fn int_to_int(&self, a: u64) -> u64 {
        let from = self.from.bits();
        let value = if self.from.signed() {
            i128::from(sign_extend(a, from) as i64)
        } else {
            i128::from(a & low_mask(from))
        };
        self.integer_result(if self.sat { self.clamp_integer(value) } else { value })
    }

    fn limits(&self) -> (i128, i128) {
        let bits = self.to.bits();
        if self.to.signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
    }

    fn clamp_integer(&self, value: i128) -> i128 {
        let (low, high) = self.limits();
        value.clamp(low, high)
    }

    fn integer_result(&self, value: i128) -> u64 {
        let bits = self.to.bits();
        let low = value as u64 & low_mask(bits);
        let wide = if self.to.signed() { sign_extend(low, bits) } else { low };
        wide & low_mask(self.width.max(bits))
    }

    fn int_to_float(&self, a: u64) -> u64 {
        let from = self.from.bits();
        let value = if self.from.signed() {
            i128::from(sign_extend(a, from) as i64)
        } else {
            i128::from(a & low_mask(from))
        };
        // At most 64 significant bits: exact in the nearest f64 plus a sticky correction.
        let near = value as f64;
        let error = value - near as i128;
        let odd = if error != 0 && near.to_bits() & 1 == 0 {
            let toward_zero = (error < 0) == (near > 0.0);
            f64::from_bits(if toward_zero { near.to_bits() - 1 } else { near.to_bits() + 1 })
        } else {
            near
        };
        match self.to {
            Ty::F64 => near.to_bits(),
            Ty::F32 => mini::F32.encode(self.clamp(odd), self.round, false),
            Ty::F16 => mini::F16.encode(odd, self.round, false),
            _ => mini::BF16.encode(odd, self.round, false),
        }
    }

    fn round_to_integer(&self, x: f64) -> f64 {
        match self.round {
            Round::Nearest => x.round_ties_even(),
            Round::NearestAway => x.round(),
            Round::Zero => x.trunc(),
            Round::Down => x.floor(),
            Round::Up => x.ceil(),
        }
    }

    fn float_to_int(&self, x: f64) -> u64 {
        if x.is_nan() {
            // The hardware's result for NaN: zero, and the sign bit alone for 64-bit destinations.
            return if self.to.bits() == 64 { 1 << 63 } else { 0 };
        }
        let (low, high) = self.limits();
        let r = self.round_to_integer(x);
        let value = if r <= low as f64 {
            low
        } else if r >= high as f64 {
            high
        } else {
            r as i128
        };
        self.integer_result(value)
    }

    fn float_to_float(&self, x: f64) -> u64 {
        let x = if self.integer_round && x.is_finite() { self.round_to_integer(x).copysign(x) } else { x };
        let x = self.clamp(x);
        let round = if self.integer_round { Round::Nearest } else { self.round };
        match self.to {
            Ty::F64 => {
                if x.is_nan() {
                    0x7fff_ffff_ffff_ffff
                } else {
                    x.to_bits()
                }
            }
            Ty::F32 => {
                let bits = mini::F32.encode(x, round, self.satfinite);
                let f = f32::from_bits(bits as u32);
                if self.ftz && f.is_subnormal() { u64::from(0f32.copysign(f).to_bits()) } else { bits }
            }
            // TF32 keeps the layout of f32 with 13 zero bits.
            Ty::Tf32 => mini::TF32.encode(x, round, self.satfinite) << 13,
            Ty::F16 => mini::F16.encode(x, round, self.satfinite),
            _ => mini::BF16.encode(x, round, self.satfinite),
        }
    }
}

/// The random bits of each source of `cvt.rs`, and how many they are (PTX 9.7.9.22).
///
/// Two of four sources share sixteen bits. The manual's text does not say how; on B200 the first reads them in
/// reverse, as public measurements report.
fn random_bits(to: Ty, rbits: u32) -> ([u16; 4], u32) {
    let (high, low) = ((rbits >> 16) as u16, rbits as u16);
    let (ab, ef) = match to {
        Ty::F16x2 => return ([high & 0x1fff, low & 0x1fff, 0, 0], 13),
        Ty::Bf16x2 => return ([high, low, 0, 0], 16),
        Ty::E2m1x4 => (high & 0xff00 | low >> 8, high << 8 | low & 0xff),
        _ => (high, low),
    };
    ([ab.reverse_bits(), ab, ef.reverse_bits(), ef], 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cvt(to: Ty, from: Ty, round: Round) -> Cvt {
        Cvt {
            to,
            from,
            round,
            integer_round: false,
            ftz: false,
            sat: false,
            satfinite: false,
            relu: false,
            with: With::Nothing,
            width: 32,
        }
    }

    fn bits(x: f32) -> u64 {
        u64::from(x.to_bits())
    }

    #[test]
    fn packed_pairs_put_the_first_source_high() {
        let c = cvt(Ty::Bf16x2, Ty::F32, Round::Nearest);
        assert_eq!(c.apply(bits(1.0), bits(-2.0)), 0x3f80_c000);
        let c = Cvt { satfinite: true, ..cvt(Ty::E4m3x2, Ty::F32, Round::Nearest) };
        assert_eq!(c.apply(bits(448.0), bits(1000.0)), 0x7e7e);
        let c = Cvt { satfinite: true, ..cvt(Ty::E2m1x2, Ty::F32, Round::Nearest) };
        assert_eq!(c.apply(bits(-6.0), bits(0.5)), 0xf1);
        let c = cvt(Ty::F16x2, Ty::E4m3x2, Round::Nearest);
        assert_eq!(c.apply(0x38_c0, 0), 0x3c00_c000);
    }

    #[test]
    fn integers_saturate_and_extend() {
        let c = Cvt { sat: true, ..cvt(Ty::S8, Ty::S32, Round::Zero) };
        assert_eq!(c.apply(1000, 0), 127);
        assert_eq!(c.apply(-1000i32 as u32 as u64, 0), 0xffff_ff80);
        let c = cvt(Ty::S32, Ty::F32, Round::Zero);
        assert_eq!(c.apply(bits(-1.9), 0), 0xffff_ffff);
        assert_eq!(c.apply(bits(1e20), 0), 0x7fff_ffff);
        assert_eq!(c.apply(bits(f32::NAN), 0), 0);
    }

    proptest! {
        #[test]
        fn rounding_to_bf16_is_the_nearest_neighbour(x in any::<u32>()) {
            let value = f32::from_bits(x);
            prop_assume!(value.is_finite());
            let got = cvt(Ty::Bf16, Ty::F32, Round::Nearest).apply(u64::from(x), 0);
            // The classic integer formulation of round to nearest even.
            let want = (x.wrapping_add(0x7fff + (x >> 16 & 1))) >> 16;
            prop_assert_eq!(got, u64::from(want));
        }

        #[test]
        fn e4m3_is_never_further_than_the_neighbours(x in -500f32..500.0) {
            let c = Cvt { satfinite: true, ..cvt(Ty::E4m3x2, Ty::F32, Round::Nearest) };
            let got = mini::E4M3.decode(c.apply(0, bits(x)) & 0xff);
            let best = (0..=255u64)
                .map(|b| mini::E4M3.decode(b))
                .filter(|v| !v.is_nan())
                .map(|v| (v - f64::from(x)).abs())
                .fold(f64::INFINITY, f64::min);
            prop_assert_eq!((got - f64::from(x)).abs(), best);
        }

        #[test]
        fn integers_to_f32_round_as_rust_does(x in any::<i64>()) {
            let got = cvt(Ty::F32, Ty::S64, Round::Nearest).apply(x as u64, 0);
            prop_assert_eq!(got, bits(x as f32));
        }
    }
}
