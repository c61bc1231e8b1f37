//! Integer products of matrix instructions: exact sums, wrapped or saturated to 32 bits once.

use crate::text::types::{Ty, low_mask, sign_extend};

/// An integer input type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntInput {
    U8,
    S8,
    U4,
    S4,
    B1,
}

impl IntInput {
    pub(crate) fn of(ty: Ty) -> Option<IntInput> {
        Some(match ty {
            Ty::U8 => IntInput::U8,
            Ty::S8 => IntInput::S8,
            Ty::U4 => IntInput::U4,
            Ty::S4 => IntInput::S4,
            Ty::B1 => IntInput::B1,
            _ => return None,
        })
    }

    /// Width of one element.
    pub(crate) fn bits(self) -> u32 {
        match self {
            IntInput::U8 | IntInput::S8 => 8,
            IntInput::U4 | IntInput::S4 => 4,
            IntInput::B1 => 1,
        }
    }

    fn decode(self, code: u32) -> i64 {
        let code = u64::from(code) & low_mask(self.bits());
        match self {
            IntInput::S8 | IntInput::S4 => sign_extend(code, self.bits()) as i64,
            _ => code as i64,
        }
    }
}

/// How two elements make one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    Product,
    /// `.and.popc` of bits.
    And,
    /// `.xor.popc` of bits.
    Xor,
}

/// `d[m, n] = sum over k of term(a[m, k], b[n, k]) + d[m, n]`.
pub(crate) struct IntProduct<'a> {
    /// Codes of A, row-major `m x k`.
    pub(crate) a: &'a [u32],
    /// Codes of B, row-major `n x k`.
    pub(crate) b: &'a [u32],
    pub(crate) k: usize,
    pub(crate) a_type: IntInput,
    pub(crate) b_type: IntInput,
    pub(crate) term: Term,
    pub(crate) saturate: bool,
}

impl IntProduct<'_> {
    pub(crate) fn accumulate(&self, d: &mut [i32]) {
        let n = self.b.len() / self.k;
        for (i, out) in d.iter_mut().enumerate() {
            let (a, b) = (&self.a[i / n * self.k..][..self.k], &self.b[i % n * self.k..][..self.k]);
            let sum: i64 = a.iter().zip(b).map(|(x, y)| self.term(*x, *y)).sum::<i64>() + i64::from(*out);
            *out = if self.saturate {
                sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
            } else {
                sum as i32
            };
        }
    }

    fn term(&self, x: u32, y: u32) -> i64 {
        let (x, y) = (self.a_type.decode(x), self.b_type.decode(y));
        match self.term {
            Term::Product => x * y,
            Term::And => x & y,
            Term::Xor => x ^ y,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_wrap_or_saturate_once() {
        let product = |saturate| IntProduct {
            a: &[0x80, 0x7f],
            b: &[0xff, 0xff],
            k: 2,
            a_type: IntInput::S8,
            b_type: IntInput::U8,
            term: Term::Product,
            saturate,
        };
        let run = |start: i32, saturate| {
            let mut d = [start];
            product(saturate).accumulate(&mut d);
            d[0]
        };
        assert_eq!(run(10, false), 10 - 255);
        assert_eq!(run(i32::MIN, true), i32::MIN);
        assert_eq!(run(i32::MIN, false), i32::MIN.wrapping_sub(255));
        let bits = IntProduct {
            a: &[1, 0, 1, 1],
            b: &[1, 1, 0, 1],
            k: 4,
            a_type: IntInput::B1,
            b_type: IntInput::B1,
            term: Term::Xor,
            saturate: false,
        };
        let mut d = [5];
        bits.accumulate(&mut d);
        assert_eq!(d, [7]);
    }
}
