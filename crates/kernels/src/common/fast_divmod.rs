//! Fast division: a multiplication and a shift in place of a division.

/// Division by a number that only the launch knows, as a multiplication and a shift.
///
/// ```
/// use oxigemm_kernels::common::fast_divmod::Divisor;
///
/// let seven = Divisor::new(7);
/// assert_eq!((seven.divide(20), seven.divide(21), Divisor::new(1).divide(5)), (2, 3, 5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divisor {
    /// The divisor.
    pub value: u32,
    /// 2 to the power of `shift` by the divisor, rounded up.
    pub factor: u32,
    /// How far the product is shifted right.
    pub shift: u32,
}

impl Divisor {
    /// A divisor from 1 to 2³¹, for dividends below 2³¹.
    pub const fn new(value: u32) -> Divisor {
        let value = if value == 0 { 1 } else { value };
        let shift = 31 + value.next_power_of_two().trailing_zeros();
        Divisor { value, factor: (1u64 << shift).div_ceil(value as u64) as u32, shift }
    }

    /// What the kernel computes.
    pub fn divide(self, dividend: u32) -> u32 {
        ((u64::from(dividend) * u64::from(self.factor)) >> self.shift) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_division_is_exact_for_every_dividend_below_two_to_the_31() {
        let dividends = [0, 1, 2, 6, 7, 8, 55, 56, 57, 1 << 20, (1 << 31) - 2, (1 << 31) - 1];
        for divisor in (1..2000).chain([4095, 4096, 4097, 65535, 1 << 20, (1 << 30) + 1, 1 << 31]) {
            let fast = Divisor::new(divisor);
            let near = (1..5u32).flat_map(|i| [i.saturating_mul(divisor), i.saturating_mul(divisor) - 1]);
            for dividend in dividends.into_iter().chain(near).filter(|x| *x < 1 << 31) {
                assert_eq!(fast.divide(dividend), dividend / divisor, "{dividend} by {divisor}");
            }
        }
    }
}
