//! Division by a run-time constant as a multiplication and a shift (CUTLASS's `FastDivmod`).

/// Divisor that only the launch knows: the host computes factor and shift, the kernel multiplies.
///
/// ```
/// use oxigemm_kernels::common::fast_divmod::FastDivmod;
///
/// let seven = FastDivmod::new(7);
/// assert_eq!((seven.divide(20), seven.divide(21), FastDivmod::new(1).divide(5)), (2, 3, 5));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastDivmod {
    /// The divisor.
    pub value: u32,
    /// `2^shift / value`, rounded up.
    pub factor: u32,
    /// Right shift of the 64-bit product.
    pub shift: u32,
}

impl FastDivmod {
    /// Divisor from 1 to 2³¹, for dividends below 2³¹. 0 counts as 1.
    pub const fn new(value: u32) -> FastDivmod {
        let value = if value == 0 { 1 } else { value };
        let shift = 31 + value.next_power_of_two().trailing_zeros();
        FastDivmod { value, factor: (1u64 << shift).div_ceil(value as u64) as u32, shift }
    }

    /// The quotient, as a kernel computes it.
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
            let fast = FastDivmod::new(divisor);
            let near = (1..5u32).flat_map(|i| [i.saturating_mul(divisor), i.saturating_mul(divisor) - 1]);
            for dividend in dividends.into_iter().chain(near).filter(|x| *x < 1 << 31) {
                assert_eq!(fast.divide(dividend), dividend / divisor, "{dividend} by {divisor}");
            }
        }
    }
}
