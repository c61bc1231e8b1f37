//! Index arithmetic that the host and kernels share.

use oxigemm_ptx::{Arg, Int, Val};

/// Arithmetic of tile orders and splits, for plain integers and for kernel values. So a rule exists once: the kernel
/// executes the same function that the host and the tests call.
pub trait Index:
    Copy
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
{
    /// The smaller of the two.
    fn smaller(self, other: Self) -> Self;
    /// `then` where it is less than the other, else `otherwise`.
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self;
}

impl Index for u32 {
    fn smaller(self, other: u32) -> u32 {
        self.min(other)
    }

    fn if_less(self, other: u32, then: u32, otherwise: u32) -> u32 {
        if self < other { then } else { otherwise }
    }
}

impl<'k, T: Int> Index for Val<'k, T>
where
    T: Arg<'k, T>,
{
    fn smaller(self, other: Self) -> Self {
        self.min(other)
    }

    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        self.lt(other).select(then, otherwise)
    }
}
