//! Operators: integer and predicate arithmetic with constant folding, comparisons, single-precision arithmetic.

use crate::kernel::Kernel;
use crate::target::Needs;
use crate::value::{Arg, F32, Pred, Type, U32, U64, Val, Var};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Not, Rem, Shl, Shr, Sub};

/// An integer type: arithmetic on it folds and is reduced in strength.
pub trait Int: Num + Bits {
    #[doc(hidden)]
    const SIGNED: bool;
    #[doc(hidden)]
    fn fold(op: IntOp, a: Self, b: Self) -> Option<Self>;
    #[doc(hidden)]
    fn from_u32(value: u32) -> Self;
    #[doc(hidden)]
    fn log2(self) -> Option<u32>;
    #[doc(hidden)]
    fn holds(compare: Compare, a: Self, b: Self) -> bool;
}

/// The integer operations that fold.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Min,
    Max,
}

/// A comparison, named as PTX names it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Compare {
    fn name(self) -> &'static str {
        match self {
            Compare::Eq => "eq",
            Compare::Ne => "ne",
            Compare::Lt => "lt",
            Compare::Le => "le",
            Compare::Gt => "gt",
            Compare::Ge => "ge",
        }
    }

    fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Compare::Eq => a == b,
            Compare::Ne => a != b,
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Gt => a > b,
            Compare::Ge => a >= b,
        }
    }
}

macro_rules! int {
    ($t:ty, $signed:literal) => {
        impl Int for $t {
            const SIGNED: bool = $signed;
            fn fold(op: IntOp, a: Self, b: Self) -> Option<Self> {
                Some(match op {
                    IntOp::Add => a.wrapping_add(b),
                    IntOp::Sub => a.wrapping_sub(b),
                    IntOp::Mul => a.wrapping_mul(b),
                    IntOp::Div => return a.checked_div(b),
                    IntOp::Rem => return a.checked_rem(b),
                    IntOp::And => a & b,
                    IntOp::Or => a | b,
                    IntOp::Xor => a ^ b,
                    IntOp::Min => a.min(b),
                    IntOp::Max => a.max(b),
                })
            }
            fn from_u32(value: u32) -> Self {
                value as $t
            }
            fn log2(self) -> Option<u32> {
                (self > 0 && self.count_ones() == 1).then(|| self.trailing_zeros())
            }
            fn holds(compare: Compare, a: Self, b: Self) -> bool {
                compare.holds(a, b)
            }
        }

        impl<'k> Add<Val<'k, $t>> for $t {
            type Output = Val<'k, $t>;
            #[track_caller]
            fn add(self, other: Val<'k, $t>) -> Val<'k, $t> {
                other + self
            }
        }
        impl<'k> Sub<Val<'k, $t>> for $t {
            type Output = Val<'k, $t>;
            #[track_caller]
            fn sub(self, other: Val<'k, $t>) -> Val<'k, $t> {
                other.k.constant(self) - other
            }
        }
        impl<'k> Mul<Val<'k, $t>> for $t {
            type Output = Val<'k, $t>;
            #[track_caller]
            fn mul(self, other: Val<'k, $t>) -> Val<'k, $t> {
                other * self
            }
        }
    };
}
int!(u32, false);
int!(i32, true);
int!(u64, false);

impl<'k, T: Int> Val<'k, T> {
    #[track_caller]
    fn int_op(self, op: IntOp, other: Val<'k, T>) -> Val<'k, T> {
        if let (Some(a), Some(b)) = (self.as_constant(), other.as_constant())
            && let Some(c) = T::fold(op, a, b)
        {
            return self.k.constant(c);
        }
        // A constant goes to the right, where PTX takes an immediate and the identities are looked for.
        let commutes = !matches!(op, IntOp::Sub | IntOp::Div | IntOp::Rem);
        if commutes && self.as_constant().is_some() {
            return other.int_op(op, self);
        }
        if let Some(simpler) = other.as_constant().and_then(|c| self.with_constant(op, c)) {
            return simpler;
        }
        let (opcode, suffix) = match op {
            IntOp::Add => ("add", T::NAME),
            IntOp::Sub => ("sub", T::NAME),
            IntOp::Mul => ("mul.lo", T::NAME),
            IntOp::Div => ("div", T::NAME),
            IntOp::Rem => ("rem", T::NAME),
            IntOp::And => ("and", T::RAW),
            IntOp::Or => ("or", T::RAW),
            IntOp::Xor => ("xor", T::RAW),
            IntOp::Min => ("min", T::NAME),
            IntOp::Max => ("max", T::NAME),
        };
        self.k.binary(opcode, suffix, self, other)
    }

    /// `self op c` by an identity or a cheaper instruction, where there is one.
    #[track_caller]
    fn with_constant(self, op: IntOp, c: T) -> Option<Val<'k, T>> {
        let is = |value| T::holds(Compare::Eq, c, T::from_u32(value));
        let zero = || self.k.constant(T::from_u32(0));
        match op {
            IntOp::Add | IntOp::Sub | IntOp::Or | IntOp::Xor if is(0) => Some(self),
            IntOp::Mul | IntOp::And if is(0) => Some(zero()),
            IntOp::Mul | IntOp::Div if is(1) => Some(self),
            IntOp::Rem if is(1) => Some(zero()),
            IntOp::Mul => c.log2().map(|shift| self << shift),
            IntOp::Div if !T::SIGNED => c.log2().map(|shift| self >> shift),
            IntOp::Rem if !T::SIGNED => {
                let mask = T::fold(IntOp::Sub, c, T::from_u32(1))?;
                c.log2().map(|_| self & mask)
            }
            _ => None,
        }
    }

    #[track_caller]
    fn shift(self, left: bool, by: U32<'k>) -> Val<'k, T> {
        if let (Some(a), Some(by)) = (self.as_constant(), by.as_constant())
            && by < T::BYTES * 8
            && !T::SIGNED
        {
            let power = T::from_u32(2);
            let op = if left { IntOp::Mul } else { IntOp::Div };
            return self.k.constant((0..by).fold(a, |x, _| T::fold(op, x, power).expect("two is not zero")));
        }
        if by.as_constant() == Some(0) {
            return self;
        }
        let out = self.k.fresh::<T>();
        let (opcode, suffix) = if left { ("shl", T::RAW) } else { ("shr", T::NAME) };
        let (dst, a, b) = (out.operand(), self.operand(), by.operand());
        self.k.op(format_args!("{opcode}.{suffix} {dst}, {a}, {b};"));
        out
    }

    #[track_caller]
    fn compare(self, compare: Compare, other: Val<'k, T>) -> Pred<'k> {
        if let (Some(a), Some(b)) = (self.as_constant(), other.as_constant()) {
            return self.k.constant(T::holds(compare, a, b));
        }
        self.k.set_predicate(compare.name(), self.in_register(), other)
    }

    /// `self == other`.
    #[track_caller]
    pub fn eq(self, other: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Compare::Eq, other.val(self.k))
    }

    /// `self != other`.
    #[track_caller]
    pub fn ne(self, other: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Compare::Ne, other.val(self.k))
    }

    /// `self < other`.
    #[track_caller]
    pub fn lt(self, other: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Compare::Lt, other.val(self.k))
    }

    /// `self <= other`.
    #[track_caller]
    pub fn le(self, other: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Compare::Le, other.val(self.k))
    }

    /// `self > other`.
    #[track_caller]
    pub fn gt(self, other: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Compare::Gt, other.val(self.k))
    }

    /// `self >= other`.
    #[track_caller]
    pub fn ge(self, other: impl Arg<'k, T>) -> Pred<'k> {
        self.compare(Compare::Ge, other.val(self.k))
    }

    /// The smaller of the two.
    #[track_caller]
    pub fn min(self, other: impl Arg<'k, T>) -> Val<'k, T> {
        self.int_op(IntOp::Min, other.val(self.k))
    }

    /// The larger of the two.
    #[track_caller]
    pub fn max(self, other: impl Arg<'k, T>) -> Val<'k, T> {
        self.int_op(IntOp::Max, other.val(self.k))
    }

    /// `self / divisor`, rounded up. Exact while `self + divisor - 1` does not wrap.
    #[track_caller]
    pub fn div_ceil(self, divisor: impl Arg<'k, T>) -> Val<'k, T> {
        let divisor = divisor.val(self.k);
        (self + (divisor - T::from_u32(1))) / divisor
    }

    /// `self * factor + addend`, low half.
    #[track_caller]
    pub fn mad(self, factor: impl Arg<'k, T>, addend: impl Arg<'k, T>) -> Val<'k, T> {
        let (factor, addend) = (factor.val(self.k), addend.val(self.k));
        if self.as_constant().is_some() || factor.as_constant().is_some() {
            return self * factor + addend;
        }
        let out = self.k.fresh::<T>();
        let (dst, a, b, c) = (out.operand(), self.operand(), factor.operand(), addend.operand());
        self.k.op(format_args!("mad.lo.{} {dst}, {a}, {b}, {c};", T::NAME));
        out
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:expr) => {
        impl<'k, T: Int, R: Arg<'k, T>> $trait<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, other: R) -> Val<'k, T> {
                self.int_op($op, other.val(self.k))
            }
        }
    };
}
operator!(Div, div, IntOp::Div);
operator!(Rem, rem, IntOp::Rem);

/// The types that `+`, `-` and `*` work on.
pub trait Num: Type {
    #[doc(hidden)]
    fn arithmetic<'k>(op: IntOp, a: Val<'k, Self>, b: Val<'k, Self>) -> Val<'k, Self>;
}

macro_rules! int_num {
    ($t:ty) => {
        impl Num for $t {
            #[track_caller]
            fn arithmetic<'k>(op: IntOp, a: Val<'k, Self>, b: Val<'k, Self>) -> Val<'k, Self> {
                a.int_op(op, b)
            }
        }
    };
}
int_num!(u32);
int_num!(i32);
int_num!(u64);

impl Num for f32 {
    #[track_caller]
    fn arithmetic<'k>(op: IntOp, a: Val<'k, Self>, b: Val<'k, Self>) -> Val<'k, Self> {
        let opcode = match op {
            IntOp::Add => "add.rn",
            IntOp::Sub => "sub.rn",
            IntOp::Mul => "mul.rn",
            _ => unreachable!("only +, - and * are routed here"),
        };
        a.k.binary(opcode, "f32", a, b)
    }
}

macro_rules! arithmetic {
    ($trait:ident, $method:ident, $op:expr) => {
        impl<'k, T: Num, R: Arg<'k, T>> $trait<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, other: R) -> Val<'k, T> {
                T::arithmetic($op, self, other.val(self.k))
            }
        }
    };
}
arithmetic!(Add, add, IntOp::Add);
arithmetic!(Sub, sub, IntOp::Sub);
arithmetic!(Mul, mul, IntOp::Mul);

impl<'k, T: Int, R: Arg<'k, u32>> Shl<R> for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn shl(self, by: R) -> Val<'k, T> {
        self.shift(true, by.val(self.k))
    }
}

impl<'k, T: Int, R: Arg<'k, u32>> Shr<R> for Val<'k, T> {
    type Output = Val<'k, T>;
    #[track_caller]
    fn shr(self, by: R) -> Val<'k, T> {
        self.shift(false, by.val(self.k))
    }
}

/// The types that `&`, `|` and `^` work on: integers and predicates.
pub trait Bits: Type {
    #[doc(hidden)]
    fn bitwise<'k>(op: IntOp, a: Val<'k, Self>, b: Val<'k, Self>) -> Val<'k, Self>;
}

macro_rules! int_bits {
    ($t:ty) => {
        impl Bits for $t {
            #[track_caller]
            fn bitwise<'k>(op: IntOp, a: Val<'k, Self>, b: Val<'k, Self>) -> Val<'k, Self> {
                a.int_op(op, b)
            }
        }
    };
}
int_bits!(u32);
int_bits!(i32);
int_bits!(u64);

impl Bits for bool {
    #[track_caller]
    fn bitwise<'k>(op: IntOp, a: Pred<'k>, b: Pred<'k>) -> Pred<'k> {
        let k = a.k;
        match (op, a.as_constant(), b.as_constant()) {
            (IntOp::And, Some(true), _) | (IntOp::Or, Some(false), _) => return b,
            (IntOp::And, _, Some(true)) | (IntOp::Or, _, Some(false)) => return a,
            (IntOp::And, Some(false), _) | (IntOp::And, _, Some(false)) => return k.constant(false),
            (IntOp::Or, Some(true), _) | (IntOp::Or, _, Some(true)) => return k.constant(true),
            (IntOp::Xor, Some(a), Some(b)) => return k.constant(a != b),
            _ => {}
        }
        let opcode = match op {
            IntOp::And => "and",
            IntOp::Or => "or",
            _ => "xor",
        };
        k.binary(opcode, "pred", a, b)
    }
}

macro_rules! bitwise {
    ($trait:ident, $method:ident, $op:expr) => {
        impl<'k, T: Bits, R: Arg<'k, T>> $trait<R> for Val<'k, T> {
            type Output = Val<'k, T>;
            #[track_caller]
            fn $method(self, other: R) -> Val<'k, T> {
                T::bitwise($op, self, other.val(self.k))
            }
        }
    };
}
bitwise!(BitAnd, bitand, IntOp::And);
bitwise!(BitOr, bitor, IntOp::Or);
bitwise!(BitXor, bitxor, IntOp::Xor);

impl<'k> Not for Pred<'k> {
    type Output = Pred<'k>;
    #[track_caller]
    fn not(self) -> Pred<'k> {
        if let Some(c) = self.as_constant() {
            return self.k.constant(!c);
        }
        let out = self.k.fresh::<bool>();
        self.k.op(format_args!("not.pred {}, {};", out.operand(), self.operand()));
        out
    }
}

impl<'k> Pred<'k> {
    /// `yes` where the predicate holds, else `no`.
    #[track_caller]
    pub fn select<T: Type>(self, yes: impl Arg<'k, T>, no: impl Arg<'k, T>) -> Val<'k, T> {
        let (yes, no) = (yes.val(self.k), no.val(self.k));
        if let Some(c) = self.as_constant() {
            return if c { yes } else { no };
        }
        let out = self.k.fresh::<T>();
        let (dst, a, b, p) = (out.operand(), yes.operand(), no.operand(), self.operand());
        self.k.op(format_args!("selp.{} {dst}, {a}, {b}, {p};", T::RAW));
        out
    }
}

impl<'k> U32<'k> {
    /// The full 64-bit product.
    #[track_caller]
    pub fn widening_mul(self, other: impl Arg<'k, u32>) -> U64<'k> {
        let other = other.val(self.k);
        if let (Some(a), Some(b)) = (self.as_constant(), other.as_constant()) {
            return self.k.constant(u64::from(a) * u64::from(b));
        }
        let out = self.k.fresh::<u64>();
        let (dst, a, b) = (out.operand(), self.operand(), other.operand());
        self.k.op(format_args!("mul.wide.u32 {dst}, {a}, {b};"));
        out
    }

    /// Four bytes of the eight of `self` and `other`, chosen by the hexadecimal digits of `order`, the lowest first: 0
    /// to 3 are those of `self`, 4 to 7 those of `other`.
    #[track_caller]
    pub fn permute_bytes(self, other: U32<'k>, order: impl Arg<'k, u32>) -> U32<'k> {
        let order = order.val(self.k);
        let out = self.k.fresh::<u32>();
        let (dst, a, b) = (out.operand(), self.operand(), other.operand());
        match order.as_constant() {
            Some(order) => self.k.op(format_args!("prmt.b32 {dst}, {a}, {b}, {order:#x};")),
            None => self.k.op(format_args!("prmt.b32 {dst}, {a}, {b}, {};", order.operand())),
        }
        out
    }

    /// The upper half of the 64-bit product.
    #[track_caller]
    pub fn mul_high(self, other: impl Arg<'k, u32>) -> U32<'k> {
        self.k.binary("mul.hi", "u32", self, other.val(self.k))
    }

    /// How many bits are set.
    #[track_caller]
    pub fn count_ones(self) -> U32<'k> {
        self.k.unary("popc.b32", self)
    }

    /// The larger of each half, both as unsigned numbers.
    #[track_caller]
    pub fn max_halves(self, other: U32<'k>) -> U32<'k> {
        let out = self.k.fresh::<u32>();
        let (dst, a, b) = (out.operand(), self.in_register().operand(), other.in_register().operand());
        self.k.emit(Needs::from_sm(90, 8, 0), format_args!("max.u16x2 {dst}, {a}, {b};"));
        out
    }
}

impl<'k> F32<'k> {
    /// `self * factor + addend`, rounded once.
    #[track_caller]
    pub fn fma(self, factor: impl Arg<'k, f32>, addend: impl Arg<'k, f32>) -> F32<'k> {
        let k = self.k;
        let out = k.fresh::<f32>();
        let (dst, a, b, c) =
            (out.operand(), self.operand(), factor.val(k).operand(), addend.val(k).operand());
        k.op(format_args!("fma.rn.f32 {dst}, {a}, {b}, {c};"));
        out
    }

    /// The smaller of the two; a NaN gives the other.
    #[track_caller]
    pub fn min(self, other: impl Arg<'k, f32>) -> F32<'k> {
        self.k.binary("min", "f32", self, other.val(self.k))
    }

    /// The larger of the two; a NaN gives the other.
    #[track_caller]
    pub fn max(self, other: impl Arg<'k, f32>) -> F32<'k> {
        self.k.binary("max", "f32", self, other.val(self.k))
    }

    /// The smaller of the two; NaN where either is.
    #[track_caller]
    pub fn min_nan(self, other: impl Arg<'k, f32>) -> F32<'k> {
        let k = self.k;
        let (out, other) = (k.fresh::<f32>(), other.val(k));
        let (dst, a, b) = (out.operand(), self.operand(), other.operand());
        k.emit(Needs::from_sm(80, 7, 0), format_args!("min.NaN.f32 {dst}, {a}, {b};"));
        out
    }

    /// The larger of the two; NaN where either is.
    #[track_caller]
    pub fn max_nan(self, other: impl Arg<'k, f32>) -> F32<'k> {
        let k = self.k;
        let (out, other) = (k.fresh::<f32>(), other.val(k));
        let (dst, a, b) = (out.operand(), self.operand(), other.operand());
        k.emit(Needs::from_sm(80, 7, 0), format_args!("max.NaN.f32 {dst}, {a}, {b};"));
        out
    }

    /// The absolute value.
    #[track_caller]
    pub fn abs(self) -> F32<'k> {
        self.k.unary("abs.f32", self)
    }

    /// The negated value.
    #[track_caller]
    pub fn negate(self) -> F32<'k> {
        self.k.unary("neg.f32", self)
    }

    /// `1 / self`, within one unit in the last place.
    #[track_caller]
    pub fn reciprocal_approx(self) -> F32<'k> {
        self.k.unary("rcp.approx.ftz.f32", self)
    }

    /// `1 / self`, correctly rounded.
    #[track_caller]
    pub fn reciprocal(self) -> F32<'k> {
        self.k.unary("rcp.rn.f32", self)
    }

    /// The square root, correctly rounded.
    #[track_caller]
    pub fn sqrt(self) -> F32<'k> {
        self.k.unary("sqrt.rn.f32", self)
    }

    /// `2^self`, within two units in the last place.
    #[track_caller]
    pub fn exp2_approx(self) -> F32<'k> {
        self.k.unary("ex2.approx.ftz.f32", self)
    }

    /// `self / divisor`, correctly rounded.
    #[track_caller]
    pub fn divide(self, divisor: impl Arg<'k, f32>) -> F32<'k> {
        self.k.binary("div.rn", "f32", self, divisor.val(self.k))
    }

    /// `self < other`; false when either is NaN.
    #[track_caller]
    pub fn lt(self, other: impl Arg<'k, f32>) -> Pred<'k> {
        self.k.set_predicate("lt", self.in_register(), other.val(self.k))
    }

    /// `self > other`; false when either is NaN.
    #[track_caller]
    pub fn gt(self, other: impl Arg<'k, f32>) -> Pred<'k> {
        self.k.set_predicate("gt", self.in_register(), other.val(self.k))
    }
}

impl<'k> Var<'k, f32> {
    /// `self = a * b + self`, in place: the promotion of an accumulator.
    #[track_caller]
    pub fn fma(self, a: F32<'k>, b: F32<'k>) {
        let (x, a, b) = (self.live(), a.operand(), b.operand());
        let dst = x.operand();
        x.k.op(format_args!("fma.rn.f32 {dst}, {a}, {b}, {dst};"));
    }
}

impl Kernel {
    #[track_caller]
    fn binary<'k, T: Type>(&'k self, opcode: &str, suffix: &str, a: Val<'k, T>, b: Val<'k, T>) -> Val<'k, T> {
        let out = self.fresh::<T>();
        let (dst, a, b) = (out.operand(), a.operand(), b.operand());
        self.op(format_args!("{opcode}.{suffix} {dst}, {a}, {b};"));
        out
    }

    #[track_caller]
    fn unary<'k, T: Type>(&'k self, opcode: &str, a: Val<'k, T>) -> Val<'k, T> {
        let out = self.fresh::<T>();
        let (dst, a) = (out.operand(), a.operand());
        self.op(format_args!("{opcode} {dst}, {a};"));
        out
    }

    #[track_caller]
    fn set_predicate<'k, T: Type>(&'k self, compare: &str, a: Val<'k, T>, b: Val<'k, T>) -> Pred<'k> {
        let out = self.fresh::<bool>();
        let (dst, a, b) = (out.operand(), a.operand(), b.operand());
        self.op(format_args!("setp.{compare}.{} {dst}, {a}, {b};", T::NAME));
        out
    }
}
